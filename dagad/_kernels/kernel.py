"""Kernels: chunk functions with shared and sliced leaves in, and out what is reduced and what stays, stacked.

Forward mode and transposition lead from such functions to such functions: a pushforward moves both kinds of leaves and
results, a pullback makes shared leaves into summed results, sliced ones into owned ones, and the other way round. So
the derivative of a reduction, of any order, is a reduction again, and runs in parallel like the first.

All of them are called as ``function(context, rows, shared, sliced)``, with `shared` and `sliced` lists of groups of
leaves: each layer adds a group, or as many again, and takes them off when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import autograd.numpy as anp
import numpy as np

from dagad._errors import StructureError, add_note_once
from dagad._graphs.linearization import PullbackFunction
from dagad._graphs.monoids import NUMBERS, counted
from dagad._kernels.chunks import ChunkContext, ChunkFunction
from dagad._sources.packed import Unpacked, unpacked
from dagad._tracing.tape import pull, record, tape_nbytes
from dagad._types import AnyRows, Cotangent, Function, Leaf, Value
from dagad._values import pytree
from dagad._values.blocks import is_seed
from dagad._values.canonical import canonical
from dagad._values.shipping import Portable, opened
from dagad_scheduler.roles import Role

Groups = Sequence[Sequence[Any]]
# One seed (None: zero) per leaf of what is summed, None among them, then of what is owned.
Seeds = Sequence[Any]
# Which of the leaves that a chunk owns have a seed; None: those that are floats in it, but for some.
Seeded = tuple[tuple[bool, ...] | None, frozenset[int]]


class Outputs(NamedTuple):
    """What one chunk gives: a pytree that is added up over the chunks, and leaves that stay its own."""

    reduced: Any
    stacked: list[Any]
    note: Any = None  # what the caller has to know about the leaves of its own
    positions: Any = None  # of all chunks together: for each, the leaves and rows that are its own

    def floats(self) -> list[Any]:
        """Return the leaves that have derivatives, in the order of seeds."""
        if not self.stacked and type(self.reduced) in NUMBERS:  # nearly always
            return [self.reduced]
        return [leaf for leaf in self.leaves() if pytree.is_differentiable_or_traced(leaf)]

    def leaves(self) -> list[Any]:
        """Return all leaves."""
        return [*pytree.flatten(self.reduced)[0], *self.stacked]

    def all_leaves(self) -> list[Any]:
        """Return all leaves, None among them: as many for each chunk."""
        summed = pytree.flatten_with_none(self.reduced)[0]
        return [*(summed if any(leaf is not None for leaf in summed) else ()), *self.stacked]

    def all_seeds(self, seeds: Seeds) -> list[Any]:
        """Return one seed for each of `all_leaves`, from one for each of `floats`."""
        rest = iter(seeds)
        return [next(rest) if pytree.is_differentiable_or_traced(leaf) else None for leaf in self.all_leaves()]

    def own_seeds(self, seeds: Seeds, seeded: Seeded) -> list[Any]:
        """Return one seed per leaf of its own."""
        rest, (flags, unseeded) = iter(seeds), seeded
        if flags is None:
            floats = map(pytree.is_differentiable_or_traced, self.stacked)
            flags = tuple([is_float and index not in unseeded for index, is_float in enumerate(floats)])
        return [next(rest) if is_seeded else None for is_seeded in flags]

    def seeds(self, seeds: Seeds) -> Seeds:
        """Return one seed per leaf; there may be seeds for those with derivatives only.

        A sum of nothing is the integer 0: what is an integer in this chunk may be floating point in others, and so have
        a seed, which is not to be taken for that of the next leaf. A leaf that nobody used has zero for a seed, which
        at an infinite slope would give nan: None.
        """
        if not self.stacked and type(self.reduced) in NUMBERS and len(seeds) == 1:  # nearly always
            return seeds if type(seeds[0]) is np.float64 else [_cast(seeds[0], self.reduced)]
        if not self.stacked and pytree.is_traced(self.reduced) and len(seeds) == 1:  # nearly always, of the others
            return [seeds[0] if is_seed(seeds[0]) else None]
        leaves, count = self.all_leaves(), len(self.floats())
        if len(seeds) not in (len(leaves), count):
            leaves = [leaf for leaf in leaves if leaf is not None]  # as what combines them hands back
        if len(seeds) not in (len(leaves), count):
            raise StructureError(
                "Some parts of what a chunk returned are integers in this chunk, and floating point in others. Return "
                "the same from every chunk: `float(...)` of a number, `.astype(float)` of an array."
            )
        rest, found = iter(seeds), []
        for leaf in leaves:
            has_derivative = pytree.is_differentiable_or_traced(leaf)
            seed = next(rest) if has_derivative or len(seeds) == len(leaves) else None
            if leaf is not None:
                found.append(_cast(seed, leaf) if has_derivative and is_seed(seed) else None)
        return found


def _cast(seed: Cotangent, leaf: Leaf) -> Any:
    plain = seed is not None and not pytree.is_traced(seed) and not pytree.is_traced(leaf)
    return pytree.cast_like(seed, leaf, "A cotangent") if plain else seed


class LeafNames(NamedTuple):
    """What sentences call the leaves that go into a chunk."""

    shared: list[str]
    sliced: list[str]

    @classmethod
    def of(cls, function: ChunkFunction, rows: AnyRows) -> LeafNames:
        """Return the names of what is being differentiated of a function's arguments."""
        gaps = rows.gaps() if hasattr(rows, "gaps") else []
        return cls(function.names_of_leaves(), [f"`{path}`" for path in gaps])


class Kernel(Portable):
    """Base of these functions; `run` is what they do, on leaves that somebody may trace, with a `function`.

    Shared leaves are canonical: who has the kernel run on many chunks sees to that, once for all of them.
    """

    __slots__ = ()
    function: Any
    reduces = stacks = True  # whether anything of it is summed, or owned
    is_reduction = False  # whether it may give one real number, and so have a gradient for the seed 1
    gives = "value"  # what it is for, in profiles
    role = Role.VALUE  # of the tasks that run it
    copies = 0  # of what is owned, where each chunk has leaves of its own; 0: these are one array's rows
    unpacks_itself = False  # whether it is given rows of Shards packed, see `unpacking`
    pulls_itself = False  # whether a chunk may have been pulled when it was recorded, so that nothing is left of it

    def run(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups) -> Outputs:
        """Run one chunk."""
        raise NotImplementedError(f"`{type(self).__name__}.run` has to run one chunk.")

    def value(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups = ()) -> Outputs:
        """Run one chunk, tracing nothing."""
        try:
            return self.run(context, opened(rows), shared, canonical_groups(sliced) if sliced else sliced)
        except Exception as error:
            add_note_once(error, context.note("value"))
            raise

    def record(
        self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups = (), *, with_grad: bool = False
    ) -> tuple[Any, PullbackFunction, Callable[[], int]]:
        """Run one chunk traced; see `Recordable`. Who pulls the seed 1 of a number next says so, by `with_grad`."""
        del with_grad
        sliced = canonical_groups(sliced) if sliced else sliced
        leaves = [leaf for group in (*shared, *sliced) for leaf in group]

        def run(leaves: Sequence[Any]) -> Outputs:
            rest = iter(leaves)
            return self.run(context, opened(rows), regrouped(shared, rest), regrouped(sliced, rest))

        try:
            value, ends, roots = record(run, leaves)
        except Exception as error:
            add_note_once(error, context.note("value"))
            raise
        parts = Outputs(*value)

        def pullback(seeds: Seeds) -> tuple[Any, ...]:
            try:
                # The last end is that of the note.
                cotangents = pull(ends[: len(parts.leaves())], parts.seeds(seeds), roots, leaves)
            except Exception as error:
                add_note_once(error, context.note("pullback"))
                raise
            return in_groups(cotangents, shared, sliced)

        return parts, pullback, lambda: tape_nbytes(ends)

    def stacked_like(self, sliced: Groups) -> list[Any] | None:
        """Return the sliced inputs that the stacked outputs correspond to, in their order; None where to none."""
        del sliced
        return None

    def unpacked(self, sliced: Groups) -> list[list[Unpacked | None]]:
        """Unpack what is packed among the sliced leaves, by group; None for other leaves. See `unpacking`."""
        return [unpacked(group) for group in sliced]

    def on_leaves(self, groups: Groups) -> Kernel:
        """Return the kernel that is given the leaves of what was packed: it may know some by their indices."""
        del groups
        return self

    @property
    def of_users(self) -> Sequence[ChunkFunction]:
        """The functions of all users: of one, but for members."""
        return (self.of_user,)

    @property
    def of_user(self) -> ChunkFunction:
        """The user's function, whatever derivative of it this is."""
        found: ChunkFunction = self.function.of_user
        return found

    def check(self, reduced: Value, n_shared: int) -> None:
        """Raise unless what somebody has sent as the sum of what is reduced may be one."""

    def narrowed(self, *args: Any) -> tuple[Any, ...]:
        """Return the arguments of the chunk among those of a run whose value is not finite."""
        return args

    def inputs(self, names: LeafNames) -> LeafNames:
        """Return the names of all leaves that go into a chunk, from those of the user's function."""
        return names

    def named(self, parts: Outputs, names: LeafNames) -> Iterator[tuple[str, Any]]:
        """Yield what a chunk gave, leaf by leaf, each with what sentences call it."""
        del names
        summed, treedef = pytree.flatten(parts.reduced)
        yield from ((one.codify("the value"), leaf) for one, leaf in zip(treedef.accessors(), summed, strict=True))
        yield from (("the value", leaf) for leaf in parts.stacked)

    @property
    def name(self) -> str:
        """What the user's function is called."""
        return str(self.function.name)

    @property
    def signature(self) -> tuple[Any, ...]:
        """What tells derivatives of one function apart: they don't cost the same."""
        return (type(self),)


def in_groups(cotangents: Sequence[Any], shared: Groups, sliced: Groups) -> tuple[Any, ...]:
    """Return cotangents as a task has its arguments: of shared leaves, of the rows; neither where there are none."""
    n_theta = sum(map(len, shared))
    parts = (list(cotangents[:n_theta]),) if n_theta else ()
    return (*parts, list(cotangents[n_theta:])) if sliced else parts


BY_THREAD = "n_compiled_by_thread"


def n_compiled(kernel: Kernel, where: str = "n_compiled") -> int:
    """Return how often the engine of the user's function has compiled something, whichever derivative a kernel is."""
    return int(getattr(kernel.of_user.engine, where, 0))


def canonical_groups(groups: Groups) -> list[list[Any]]:
    return [[canonical(leaf) for leaf in group] for group in groups]


def split_groups(groups: Groups, count: int) -> list[Groups]:
    """Return groups in so many parts of equally many."""
    each = len(groups) // count
    return [groups[number * each : (number + 1) * each] for number in range(count)]


def regrouped(groups: Groups, leaves: Iterator[Any]) -> list[list[Any]]:
    return [[next(leaves) for _ in group] for group in groups]


class ChunkPullback:
    """The pullback of one chunk, which may pull many seeds at once."""

    __slots__ = ("_context", "_function", "_n_shared", "_own", "_parts", "_pull")

    def __init__(
        self,
        function: ChunkFunction,
        context: ChunkContext,
        pull: Function,
        parts: Outputs,
        n_shared: int,
        own: Sequence[Any] | None,
    ) -> None:
        self._function, self._context, self._pull = function, context, pull
        self._parts, self._n_shared, self._own = parts, n_shared, own

    def __call__(self, seeds: Seeds) -> tuple[Any, ...]:
        return self._function.pull(self._context, self._pull, self._parts.seeds(seeds), self._n_shared, self._own)

    def many(self, many: Sequence[Seeds | None]) -> list[tuple[Any, ...] | None]:
        """Pull many seeds; None where there are none."""
        each = [None if seeds is None else self._parts.seeds(seeds) for seeds in many]
        return self._function.pull_many(self._context, self._pull, each, self._n_shared, self._own)


class Summed(Kernel):
    """A chunk function of a reduction: all of it is summed."""

    __slots__ = ("function",)
    stacks = False
    is_reduction = True

    def __init__(self, function: ChunkFunction) -> None:
        self.function: ChunkFunction = opened(function)

    def __init_subclass__(cls) -> None:
        if "run" in vars(cls) and "record" not in vars(cls):
            raise TypeError(
                f"`{cls.__name__}` changes what `run` of a `Summed` gives, but `record` goes to the engine "
                "past it: its gradient would be another function's. Change `record` too, or derive from `Kernel`, "
                "whose derivatives are those of `run`."
            )
        super().__init_subclass__()

    def state(self) -> tuple[Any, ...]:
        return (self.function,)

    def run(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups) -> Outputs:
        theta = shared[0]
        leaves = [*theta, *sliced[0]] if sliced else theta
        for leaf in leaves:
            if type(leaf) in pytree.TRACED:
                return Outputs(self.term(self.function.run(rows, leaves, len(theta))), [])
        return Outputs(self.term(self.function.value(context, rows, theta, sliced[0] if sliced else None)), [])

    def term(self, value: Value) -> Any:
        """Return what is added up, from what the function gave."""
        return value if type(value) in NUMBERS else counted(value)

    def record(
        self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups = (), *, with_grad: bool = False
    ) -> Any:
        """Run one chunk by its own engine, which is told whether the seed 1 of a number comes next; see `Kernel`."""
        own = sliced[0] if sliced else None
        value, pull_leaves, nbytes = self.function.linearize(context, rows, shared[0], own, with_grad)
        parts = Outputs(value if type(value) in NUMBERS else self.term(value), [])
        return parts, ChunkPullback(self.function, context, pull_leaves, parts, len(shared[0]), own), nbytes


class Unreduced(Summed):
    """A chunk function whose values are combined by somebody else: each chunk owns all the leaves of its value."""

    __slots__ = ()
    reduces, stacks, copies, is_reduction = False, True, 1, False

    def term(self, value: Value) -> Any:
        """Return the value as it is: nobody adds it up."""
        return value

    def run(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups) -> Outputs:
        return _unreduced(super().run(context, rows, shared, sliced))

    def record(
        self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups = (), *, with_grad: bool = False
    ) -> Any:
        """Run one chunk by its own engine; see `Kernel`."""
        parts, pullback, nbytes = super().record(context, rows, shared, sliced, with_grad=with_grad)
        return _unreduced(parts), pullback, nbytes


def _unreduced(parts: Outputs) -> Outputs:
    leaves, treedef = pytree.flatten(parts.reduced)
    return Outputs(None, leaves, Note(treedef))


DIFFERENT = "The outputs of two items differ in structure; return the same for every item"


def check_alike(shape: Sequence[int], other: Sequence[int]) -> None:
    """Raise unless the outputs of two items have one shape."""
    if shape != other:
        raise StructureError(
            f"The outputs of two items differ in shape: {shape} and {other}. Return the same shape for every item, or "
            "use `dagad.map_rect` for 1-d outputs of different lengths."
        )


class Note:
    """The structure of what is owned."""

    def __init__(self, treedef: pytree.TreeDef) -> None:
        self.treedef = treedef


pytree.register(Note, lambda note: ((), note.treedef), lambda treedef, _: Note(treedef))


def joined(parts: Sequence[Any]) -> Any:
    """Return what the chunks own of one leaf as one array."""
    if any(map(pytree.is_traced, parts)):
        return anp.concatenate(list(parts))
    return np.concatenate(parts)
