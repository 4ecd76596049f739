"""A chunk function and its rows, made flat: what is being differentiated as lists of leaves, all else out of the way.

A chunk task is ``function(context, rows, shared, sliced)``: `function` holds everything that is the same for all
chunks, `rows` the constant rows of one chunk, `shared` and `sliced` the leaves that are being differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from sys import getrefcount
from types import FunctionType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from dagad._engines.explicit_rules import check_count
from dagad._errors import ClosureError, StructureError, add_note_once
from dagad._graphs.linearization import PullbackFunction, Recordable, pulled_many
from dagad._kernels.context import VALUE_AND_GRAD, DefaultPolicy, directions_divided, like_here
from dagad._sources.plan import Chunk
from dagad._sources.rows import Rows
from dagad._tracing.embedded import traced_engine
from dagad._tracing.flat_functions import Engine, FlatFunction, LeafPullback, Mark, Side, Traits, constants_of
from dagad._tracing.patches import patches
from dagad._tracing.tape import refuse_boxes, refuse_strangers
from dagad._types import AnyRows, Cotangent, Cotangents, Leaf, Value
from dagad._values import pytree
from dagad._values.canonical import canonical, is_strange
from dagad._values.partition import Partition
from dagad._values.shipping import Portable, opened
from dagad._values.work_arrays import ALONE, kept
from dagad._words import described, name_of, parameter_of

Names = Callable[[str, Any], Any]
# Cotangents of the value's leaves -> cotangents of the leaves being differentiated; None stands for zero on both sides.
PullLeaves = Callable[[Sequence[Any]], list[Any]]


class ChunkContext(NamedTuple):
    """Which chunk a task works on, and what its keys are called."""

    chunk: Chunk
    names: Names

    def note(self, role: str) -> str:
        """Return what a user's exception is told about where it was raised."""
        number, start, stop = self.chunk
        return f"dagad: {role} of chunk {number} (rows {start}:{stop}), key {self.names(role, number)!r}"


class ChunkFunction(Recordable, Portable):
    """The user's chunk function with everything that all chunks share.

    Parameters
    ----------
    make
        From the values that the function had in its closures (and which are being differentiated) to the function.
    n_hoisted
        How many such values there are; they come first in `shared`.
    shared
        The shared arguments, with gaps for what is being differentiated.
    engine
        What differentiates it.
    nested
        Default policy of reductions inside it: in another process nobody else could tell them.
    divided
        Whether it is run for some directions of a Jacobian, and elsewhere for others; see `context`.
    """

    __slots__ = (
        "_divided",
        "_is_plain",
        "_make",
        "_n_hoisted",
        "_nested",
        "_shared",
        "_traced",
        "_with_grad",
        "engine",
        "kept",
        "traits",
    )

    def __init__(
        self,
        make: Callable[[Sequence[Any]], Any],
        n_hoisted: int,
        shared: tuple[Partition, ...],
        engine: Engine,
        nested: DefaultPolicy = VALUE_AND_GRAD,
        divided: bool = False,
    ) -> None:
        self._make, self._n_hoisted, self._shared = make, n_hoisted, shared
        self.engine, self._nested, self._divided = engine, nested, divided
        self._is_plain = nested is VALUE_AND_GRAD and not divided  # nearly always: it runs as it is
        self.traits = Traits.of(engine)
        self._traced = traced_engine(engine, self.traits)
        own = self.traits.value_and_grad or engine.linearize
        self._with_grad = own if self._traced is engine else self._traced.value_and_grad
        self.kept: dict[str, Any] = {}  # what an engine has made of what is shared

    def state(self) -> tuple[Any, ...]:
        return self._make, self._n_hoisted, self._shared, self.engine, self._nested, self._divided

    @property
    def of_user(self) -> ChunkFunction:
        """Itself; kernels have it somewhere inside."""
        return self

    @property
    def fun(self) -> Any:
        """The user's function, with None for the values that it closes over and that are being differentiated."""
        return self._make([None] * self._n_hoisted)

    def constants(self) -> Iterator[Any]:
        """Yield the leaves of the shared arguments that are not being differentiated."""
        for partition in self._shared:
            taken = frozenset(partition.positions)
            yield from (leaf for number, leaf in enumerate(partition.leaves) if number not in taken)

    @property
    def name(self) -> str:
        """What sentences call the function."""
        return name_of(self.fun)

    def named_shared(self, leaves: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Yield the leaves of what all chunks share, constants too, each with what sentences call it."""
        rest = iter(leaves)
        fun = self._make([next(rest) for _ in range(self._n_hoisted)])
        yield from ((f"a value in the closure of `{name_of(fun)}`", leaf) for leaf in leaves[: self._n_hoisted])
        for index, partition in enumerate(self._shared):
            name = parameter_of(fun, 1 + index)
            found, treedef = pytree.flatten(partition.merge(rest))
            yield from ((f"`{one.codify(name)}`", leaf) for one, leaf in zip(treedef.accessors(), found, strict=True))

    def names_of_leaves(self) -> list[str]:
        """Return what sentences call those shared leaves that are being differentiated."""
        marks = [object() for _ in range(self._n_hoisted + sum(len(p.positions) for p in self._shared))]
        mine = set(map(id, marks))
        return [name for name, leaf in self.named_shared(marks) if id(leaf) in mine]

    def value(
        self, context: ChunkContext, rows: AnyRows, shared: Sequence[Any], sliced: Sequence[Any] | None = None
    ) -> Any:
        """Run one chunk, tracing nothing."""
        try:
            leaves = [canonical(leaf) for leaf in (*shared, *(sliced or ()))]
            fun = BoundChunk(self, rows, len(shared), len(leaves))
            run = self._traced.run
            value = run(fun, leaves) if self._is_plain else self._in_mode(run, fun, leaves)
            return _checked(value, context, fun.called)
        except Exception as error:
            add_note_once(error, context.note("value"))
            raise

    def run(self, rows: AnyRows, leaves: Sequence[Any], n_shared: int) -> Any:
        """Run one chunk on leaves some of which somebody traces."""
        fun = BoundChunk(self, rows, n_shared, len(leaves))
        run = self._traced.run
        value = run(fun, leaves) if self._is_plain else self._in_mode(run, fun, leaves)
        if type(value) in pytree.TRACED and type(value._value) in _NUMBERS:  # nearly always
            return value
        return _without_strangers(value, fun.called)

    def _in_mode(self, run: Callable[..., Any], fun: BoundChunk, leaves: Sequence[Any]) -> Any:
        """Run in the mode of those who made the chunks; the patches are held by who runs the batch."""
        with directions_divided(self._divided):
            if self._nested is VALUE_AND_GRAD:
                return run(fun, leaves)
            with like_here(self._nested):
                return run(fun, leaves)

    def record(
        self, context: ChunkContext, rows: AnyRows, shared: Sequence[Any], sliced: Sequence[Any] | None = None
    ) -> tuple[Any, PullbackFunction, Callable[[], int]]:
        """Run one chunk traced; see `Recordable`."""
        value, pull, nbytes = self.linearize(context, rows, shared, sliced)
        return value, self._pullback(context, value, pull, len(shared), sliced), nbytes

    def _pullback(
        self, context: ChunkContext, value: Value, pull: PullLeaves, n_shared: int, sliced: Sequence[Any] | None
    ) -> PullbackFunction:
        def pullback(cotangent: Cotangent) -> tuple[Any, ...]:
            return self.pull(context, pull, pytree.leaf_seeds(value, cotangent), n_shared, sliced)

        return pullback

    def linearize(
        self,
        context: ChunkContext,
        rows: AnyRows,
        shared: Sequence[Any],
        sliced: Sequence[Any] | None,
        with_grad: bool = False,
    ) -> tuple[Any, PullLeaves, Callable[[], int]]:
        """Run one chunk, ready to be pulled; `with_grad` tells the engine that the seed 1 of a number comes next."""
        leaves = [canonical(leaf) for leaf in (shared if sliced is None else (*shared, *sliced))]
        fun = BoundChunk(self, rows, len(shared), len(leaves))
        try:
            run = self._with_grad if with_grad else self._traced.linearize
            values, pull = run(fun, leaves) if self._is_plain else self._in_mode(run, fun, leaves)
            value = values[0] if fun.out is None and len(values) == 1 else fun.merge(values)  # nearly always
            if type(value) not in _NUMBERS:
                if any(map(pytree.is_traced, leaves)):
                    _without_strangers(value, fun.called)
                else:
                    _checked(value, context, fun.called)
        except Exception as error:
            add_note_once(error, context.note("value"))
            raise
        return value, pull if fun.out is None else _selecting(fun, pull), pull.nbytes

    def pull(
        self, context: ChunkContext, pull: PullLeaves, seeds: Sequence[Any], n_shared: int, sliced: Sequence[Any] | None
    ) -> tuple[Any, ...]:
        """Return the cotangents in groups, as the task has its arguments: of shared, of the rows."""
        try:
            found = pull([canonical(seed) for seed in seeds])
        except Exception as error:
            add_note_once(error, context.note("pullback"))
            raise
        return _in_two(found, n_shared, sliced is not None)

    def pull_many(
        self,
        context: ChunkContext,
        pull: PullLeaves,
        many: Sequence[Sequence[Any] | None],
        n_shared: int,
        sliced: Sequence[Any] | None,
    ) -> list[tuple[Any, ...] | None]:
        """Do so for many seeds, all at once where the engine can; None where there are none."""
        each = [None if seeds is None else [canonical(seed) for seed in seeds] for seeds in many]
        try:
            found = pulled_many(pull, each)
        except Exception as error:
            add_note_once(error, context.note("pullback"))
            raise
        return [None if one is None else _in_two(one, n_shared, sliced is not None) for one in found]


def _in_two(cotangents: list[Any], n_shared: int, has_sliced: bool) -> tuple[Any, ...]:
    return (cotangents[:n_shared], cotangents[n_shared:]) if has_sliced and n_shared else (cotangents,)


_NUMBERS, _BARE = frozenset({float, np.float64}), frozenset({float, np.float64, np.ndarray})
_BARE_OR_FUNCTION = _BARE | {FunctionType}


class BoundChunk(FlatFunction):
    """A chunk function at its rows, as a function of the leaves being differentiated: shared ones, then the rows'."""

    __slots__ = ("_function", "_n_shared", "_rows")

    def __init__(self, function: ChunkFunction, rows: AnyRows, n_shared: int, n_leaves: int) -> None:
        self.takes, self._function, self._n_shared = function.engine.takes, function, n_shared
        self.n_leaves, self.given = n_leaves, None
        self._rows: Rows = opened(rows)

    def called(self) -> str:
        """Return what sentences call the function."""
        return self._function.name

    @property
    def name(self) -> str:
        return self._function.name

    def function(self, leaves: Sequence[Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = self._function._make(leaves[: self._function._n_hoisted])
        return made

    def run(self, leaves: Sequence[Any]) -> Any:
        task = patches.task
        before, task.leaves = task.leaves, leaves
        try:
            if self.given is None:  # nearly always: to ask the base costs more than to look
                function = self._function
                output = function._make(leaves[: function._n_hoisted])(*self.arguments(leaves))
            else:
                output = super().run(leaves)
        finally:
            task.leaves = before
        if type(output) is np.ndarray:
            if output.base is not None or getrefcount(output) > ALONE:  # a function may fill it again
                output = kept(output)
            return output
        if type(output) in _BARE:
            return output
        if type(output) is tuple and set(map(type, output)) <= _BARE_OR_FUNCTION:  # a value and its pullback
            return output if np.ndarray not in map(type, output) else kept(output)
        refuse_strangers(output, leaves)
        if type(getattr(output, "_value", None)) in _BARE:
            return output
        output = pytree.open_containers(output)
        return kept(output)  # held by a variable, as `kept` expects

    def arguments(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        function, n_shared = self._function, self._n_shared
        theta, found = iter(leaves[function._n_hoisted : n_shared]), [self._rows.merge(iter(leaves[n_shared:]))]
        for partition in function._shared:
            found.append(partition.merge(theta))
        return tuple(found)

    def sides(self) -> list[Side]:
        function, rows = self._function, self._rows
        first, n_shared = function._n_hoisted, self._n_shared

        def of_rows() -> Partition:
            return constants_of((rows.merge(map(Mark, range(n_shared, self.n_leaves))),), are_rows=True)

        def of_shared() -> Partition:
            theta = map(Mark, range(first, n_shared))
            return constants_of(tuple(p.merge(theta) for p in function._shared))

        return [Side(None if rows.is_made else rows, of_rows), Side(function, of_shared, (function._make, first))]

    def extract(self, cotangents: Cotangents) -> list[Any]:
        shared = self._function._shared
        if self._function._n_hoisted:
            raise ClosureError(
                "An explicit function has a value being differentiated in its closure, for which its pullback returns "
                "no cotangent. Pass the value to the function as a shared argument."
            )
        of_rows, *parts = check_count(cotangents, 1 + len(shared))
        found: list[Any] = []
        for partition, part in zip(shared, parts, strict=True):
            found += partition.extract(part)
        return found + self._rows.extract(of_rows)


def _selecting(fun: FlatFunction, pull: LeafPullback) -> PullLeaves:
    """Return a pullback from the seeds of all leaves of a value, where not all of them are the engine's."""
    if fun.out is None or len(fun.out.positions) == len(fun.out.leaves):
        return pull
    return lambda seeds: pull(fun.select(seeds))


_NUMERIC = (np.ndarray, np.generic, int, float, complex)
RETURN = "Return a number, an array, or tuples, lists and dicts of these."
RETURN_PLAIN = (
    "Return numpy's own arrays, which is all that comes back: `x.filled(value)` of a masked one, `np.asarray(x)` of "
    "others."
)


def is_number(leaf: Leaf) -> bool:
    """Return whether a leaf is a number, or an array of numbers of numpy's own class."""
    return isinstance(leaf, _NUMERIC) and not is_strange(leaf) and np.asarray(leaf).dtype.kind in "fciub"


def _checked(value: Value, context: ChunkContext, name: Callable[[], str]) -> Any:
    """Return a partial sum after making sure that it can be summed."""
    if type(value) is np.float64 or type(value) is float:
        return value
    leaves, _ = pytree.flatten(value)
    for leaf in leaves:
        refuse_boxes(leaf, f"What chunk {context.chunk.number} returned")
        if not is_number(leaf):
            _refuse(leaf, name)
    if not leaves:
        _refuse_nothing(name)
    return value


def _without_strangers(value: Value, name: Callable[[], str]) -> Any:
    """Return a partial sum that somebody traces, after making sure that its leaves can be summed.

    On a cluster, what can't be pickled would travel to the sum, and Dask waits for it for ever. What engines have for
    arrays has a dtype, and is theirs to judge.
    """
    if type(pytree.plain(value)) in _NUMBERS:
        return value
    leaves = list(map(pytree.plain, pytree.flatten(value)[0]))
    for leaf in leaves:
        if not is_number(leaf) and (isinstance(leaf, np.ndarray) or not hasattr(leaf, "dtype")):
            _refuse(leaf, name)
    if not leaves:
        _refuse_nothing(name)
    return value


def _refuse(leaf: Leaf, name: Callable[[], str]) -> NoReturn:
    remedy = RETURN_PLAIN if is_strange(leaf) else RETURN
    raise StructureError(f"`{name()}` returned {described(leaf)}, which can't be summed. {remedy}")


def _refuse_nothing(name: Callable[[], str]) -> NoReturn:
    raise StructureError(
        f"`{name()}` returned None or an empty container, so there is nothing to sum: is a `return` missing? {RETURN}"
    )
