"""Derivatives of chunk functions, which are chunk functions again: pushforward, pullback, value with gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dagad._errors import StructureError
from dagad._graphs.linearization import Counters, PullbackFunction, is_scalar, pulled_many, seed_of_one
from dagad._graphs.monoids import NUMBERS
from dagad._kernels.chunks import ChunkContext
from dagad._kernels.kernel import (
    Groups,
    Kernel,
    LeafNames,
    Outputs,
    Seeded,
    Seeds,
    regrouped,
    split_groups,
)
from dagad._sources.packed import Unpacked, unpacked
from dagad._tracing.forward import push_flat
from dagad._types import AnyRows, Args, Leaf, Tangent, Value
from dagad._values import pytree
from dagad._values.blocks import is_seed
from dagad._values.shipping import opened
from dagad_scheduler.roles import Role


class _Derivative(Kernel):
    __slots__ = ()
    n_directions = 0

    @property
    def name(self) -> str:
        """What the user's function is called, and which derivative of it this is."""
        return f"{type(self).__name__.lower()}_{self.function.name}"

    @property
    def signature(self) -> tuple[Any, ...]:
        """What tells derivatives of one function apart: they don't cost the same."""
        return type(self), self.n_directions, *self.function.signature

    def over(self, function: Kernel) -> Kernel:
        """Return the same derivative of another function."""
        kind: Any = type(self)
        made: Kernel = kind(function, *self.state()[1:])
        return made

    def own_groups(self, sliced: Groups) -> Groups:
        """Return those groups of sliced leaves that are the function's."""
        return sliced

    def unpacked(self, sliced: Groups) -> list[list[Unpacked | None]]:
        """Unpack what is packed among the sliced leaves, by group; see `Kernel`."""
        found: list[list[Unpacked | None]] = self.function.unpacked(sliced)
        return found

    def on_leaves(self, groups: Groups) -> Kernel:
        """Return the kernel that is given the leaves of what was packed; see `Kernel`."""
        function = self.function.on_leaves(self.own_groups(groups))
        return self if function is self.function else self.over(function)

    def narrowed(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups) -> tuple[Any, ...]:
        """Return the arguments of the chunk among those of a run whose value is not finite."""
        found: tuple[Any, ...] = self.function.narrowed(context, rows, shared, sliced)  # its own groups come first
        return found


class Pushforward(_Derivative):
    """A function and its tangents, for some directions.

    Groups of leaves: those of the function, then as many again for each direction, one tangent per leaf.
    """

    __slots__ = ("copies", "function", "n_directions", "reduces", "stacks")
    gives = "value and tangents"

    def __init__(self, function: Kernel, n_directions: int) -> None:
        self.function: Kernel = opened(function)
        self.n_directions, self.reduces, self.stacks = n_directions, self.function.reduces, self.function.stacks
        self.copies = (1 + n_directions) * self.function.copies

    def state(self) -> tuple[Any, ...]:
        return self.function, self.n_directions

    def run(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups) -> Outputs:
        count, function = 1 + self.n_directions, self.function
        n_theta, n_active = len(shared) // count, len(sliced) // count
        own, active, directions = shared[:n_theta], sliced[:n_active], []
        for number in range(1, count):
            groups = shared[number * n_theta : (number + 1) * n_theta]
            if active:
                groups = [*groups, *sliced[number * n_active : (number + 1) * n_active]]
            directions.append([_or_none(leaf) for group in groups for leaf in group])
        held: list[tuple[pytree.TreeDef, int, Any]] = []

        def run(leaves: Sequence[Any]) -> list[Any]:
            if is_one:
                reduced, stacked, note, _ = function.run(context, rows, [leaves], [])
            else:
                rest = iter(leaves)
                reduced, stacked, note, _ = function.run(context, rows, regrouped(own, rest), regrouped(active, rest))
            summed, treedef = pytree.flatten(pytree.open_containers(reduced))
            held.append((treedef, len(summed), note))
            return [*summed, *stacked]

        is_one = n_theta == 1 and not active  # one group, as nearly always
        leaves = list(own[0]) if is_one else [leaf for group in (*own, *active) for leaf in group]
        values, tangents = push_flat(run, leaves, directions)
        return self._outputs(values, tangents, *held[-1])

    def own_groups(self, sliced: Groups) -> Groups:
        """Return those groups of sliced leaves that are the function's: the others are tangents."""
        return split_groups(sliced, 1 + self.n_directions)[0]

    def unpacked(self, sliced: Groups) -> list[list[Unpacked | None]]:
        """Unpack what is packed: tangents like what they belong to."""
        own, *tangents = split_groups(sliced, 1 + self.n_directions)
        likes = self.function.unpacked(own)
        pairs = [pair for some in tangents for pair in zip(some, likes, strict=True)]
        return [*likes, *(unpacked(group, like) for group, like in pairs)]

    def stacked_like(self, sliced: Groups) -> list[Any] | None:
        """Return the inputs of the value's outputs, and for each direction these again."""
        inputs = self.function.stacked_like(self.own_groups(sliced))
        return inputs and inputs * (1 + self.n_directions)

    def inputs(self, names: LeafNames) -> LeafNames:
        """Return the names of the function's leaves, then of their tangents."""
        inner = self.function.inputs(names)
        return LeafNames(*([*own, *[f"the tangent of {name}" for name in own] * self.n_directions] for own in inner))

    def named(self, parts: Outputs, names: LeafNames) -> Iterator[tuple[str, Any]]:
        """Yield the value, then the tangents, leaf by leaf, each with what sentences call it."""
        reduced, moving = parts.reduced if self.reduces else (None, [None] * self.n_directions)
        each = len(parts.stacked) // (1 + self.n_directions)
        for number, tree in enumerate([reduced, *moving]):
            own = parts.stacked[number * each : (number + 1) * each]
            for name, leaf in self.function.named(Outputs(tree, own), names):
                yield f"the tangent of {name}" if number else name, leaf

    def _outputs(
        self, values: list[Any], directions: list[list[Any]], treedef: pytree.TreeDef, n_summed: int, note: object
    ) -> Outputs:
        """Return the value with its tangents: in what is summed, integers have None, as they may move elsewhere."""
        if len(values) == n_summed == 1 and treedef is pytree.LEAF and type(values[0]) in NUMBERS:  # nearly always
            value = values[0]
            return Outputs((value, [type(value)(0) if part is None else part for (part,) in directions]), [], note)
        summed, own, moving = values[:n_summed], values[n_summed:], []
        are_floats, stacked = list(map(pytree.is_differentiable_or_traced, summed)), list(own)
        for tangents in directions:
            triples = zip(tangents[:n_summed], summed, are_floats, strict=True)
            mine = [_or_zeros(part, leaf) if is_float else None for part, leaf, is_float in triples]
            moving.append(pytree.unflatten(treedef, mine))
            stacked += [_or_zeros(part, leaf) for part, leaf in zip(tangents[n_summed:], own, strict=True)]
        return Outputs((pytree.unflatten(treedef, summed), moving) if self.reduces else None, stacked, note)


def _or_none(tangent: Tangent) -> Any:
    """Return None for a tangent that is zero: it moves nothing, and costs nothing."""
    if type(tangent) is np.ndarray:  # nearly always
        return tangent if np.count_nonzero(tangent) else None
    return tangent if pytree.is_traced(tangent) or np.any(tangent) else None


def _or_zeros(tangent: Tangent, leaf: Leaf) -> Any:
    return pytree.zeros_like(pytree.plain(leaf)) if tangent is None else tangent


class Pullback(_Derivative):
    """The pullback of a function, as a function of its leaves and of the seeds.

    Groups of leaves: those of the function, then one of seeds: with the shared leaves for what it reduces, with the
    sliced ones for what it stacks. `reduced` and `seeded` say which leaves have a seed: in a chunk, some of these may
    be integers.
    """

    __slots__ = ("function", "reduced", "reduces", "seeded", "stacks")
    gives = "gradient"

    def __init__(
        self,
        function: Kernel,
        reduced: tuple[bool, ...],
        seeded: Seeded,
        reduces: bool,
        stacks: bool,
    ) -> None:
        self.function: Kernel = opened(function)
        self.reduced, self.seeded, self.reduces, self.stacks = reduced, seeded, reduces, stacks

    def state(self) -> tuple[Any, ...]:
        return self.function, self.reduced, self.seeded, self.reduces, self.stacks

    def run(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups) -> Outputs:
        own_seeds = sliced[-1] if self.function.stacks and sliced else []  # a seed of zeros is not among them
        actives = self.own_groups(sliced)
        rest = iter(shared[-1])
        seeds = [next(rest) if is_float else None for is_float in self.reduced]
        if _is_unseeded([*seeds, *own_seeds], itertools.chain(*shared, *sliced)):
            own = [pytree.zeros_like(leaf) for group in actives for leaf in group]
            return Outputs([None] * sum(map(len, shared[:-1])), own)
        cotangents: Outputs = pulled_at(
            self.function, (context, rows, shared[:-1], actives), (seeds, own_seeds, self.seeded)
        )[1]
        return cotangents

    def inputs(self, names: LeafNames) -> LeafNames:
        """Return the names of the function's leaves, then of the seeds."""
        inner = self.function.inputs(names)
        n_own = sum(self.seeded[0] or ())
        return LeafNames([*inner.shared, *[SEED] * sum(self.reduced)], [*inner.sliced, *[SEED] * n_own])

    def named(self, parts: Outputs, names: LeafNames) -> Iterator[tuple[str, Any]]:
        """Yield the cotangents, each with what sentences call it."""
        return named_gradient(self.function, parts, names)

    def own_groups(self, sliced: Groups) -> Groups:
        """Return those groups of sliced leaves that are the function's: the last one is of seeds, if it stacks."""
        return sliced[:-1] if self.function.stacks else sliced

    def unpacked(self, sliced: Groups) -> list[list[Unpacked | None]]:
        """Unpack what is packed: seeds like the outputs that have one."""
        groups = self.function.unpacked(self.own_groups(sliced))
        if not self.function.stacks:
            return groups
        outputs = self.function.stacked_like(groups) or []
        likes = [like for index, like in enumerate(outputs) if self._is_seeded(index)]
        return [*groups, unpacked(sliced[-1], likes)]

    def on_leaves(self, groups: Groups) -> Kernel:
        """Return the kernel that is given the leaves of what was packed: which of them have seeds is said of each."""
        own = self.own_groups(groups)
        counts = [1 if like is None else len(like.leaves) for like in self.function.stacked_like(own) or ()]
        flags, unseeded = self.seeded
        each = [index for index, count in enumerate(counts) for _ in range(count)]
        if flags is not None and counts:
            flags = tuple([flags[index] for index in each])
        unseeded = frozenset([at for at, index in enumerate(each) if index in unseeded]) if counts else unseeded
        return Pullback(self.function.on_leaves(own), self.reduced, (flags, unseeded), self.reduces, self.stacks)

    def _is_seeded(self, index: int) -> bool:
        flags, unseeded = self.seeded
        return index not in unseeded if flags is None else flags[index]

    def stacked_like(self, sliced: Groups) -> list[Any] | None:
        """Return the inputs of the function: its outputs are their cotangents."""
        return [leaf for group in self.own_groups(sliced) for leaf in group]


class ValueAndGrad(_Derivative):
    """A function of a reduction with its gradient for the seed 1, and whether there is none: 1, or 0, to be summed."""

    __slots__ = ("function", "reduces", "stacks")
    gives, role = "value and gradient", Role.VALUE_AND_GRAD

    def __init__(self, function: Kernel, stacks: bool) -> None:
        self.function: Kernel = opened(function)
        self.reduces, self.stacks = True, stacks

    def state(self) -> tuple[Any, ...]:
        return self.function, self.stacks

    def run(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups) -> Outputs:
        value, gradient = pulled_at(self.function, (context, rows, shared, sliced), None)
        if gradient is None:  # other chunks may have one
            own = [pytree.zeros_like(pytree.plain(leaf)) for group in sliced for leaf in group]
            return Outputs((value.reduced, [None] * sum(map(len, shared)), 1), own)
        return Outputs((value.reduced, gradient.reduced, 0), gradient.stacked)

    def named(self, parts: Outputs, names: LeafNames) -> Iterator[tuple[str, Any]]:
        """Yield the value, then the gradient, leaf by leaf, each with what sentences call it."""
        value, gradient, _ = parts.reduced
        yield from self.function.named(Outputs(value, []), names)
        yield from named_gradient(self.function, Outputs(gradient, parts.stacked), names)

    @property
    def name(self) -> str:
        """What the user's function is called: the role of its tasks says that this gives a gradient, too."""
        return str(self.function.name)

    def check(self, reduced: Value, n_shared: int) -> None:
        """Raise unless what somebody has sent is a value, so many cotangents, and a count."""
        is_one = type(reduced) is tuple and len(reduced) == 3 and type(reduced[1]) is list and np.isscalar(reduced[2])
        if not is_one or len(reduced[1]) != n_shared:
            raise StructureError("It is no value with its gradient.")

    def stacked_like(self, sliced: Groups) -> list[Any] | None:
        """Return all inputs: the outputs are their cotangents."""
        return [leaf for group in sliced for leaf in group]


class GradOrPullback(ValueAndGrad):
    """The same where nobody differentiates it further. Recorded, it leaves the pullback of what is no number.

    A chunk that gives a number is pulled at once: its tape dies while it is in cache, and nothing is left of it, nor
    where all that it gives are integers. Of other chunks the value comes, and the pullback, which takes seeds of the
    value: those of what comes with it are None. `counters` count what has been run.
    """

    __slots__ = ("counters",)
    pulls_itself = True

    def __init__(self, function: Kernel, stacks: bool, counters: Counters | None = None) -> None:
        super().__init__(function, stacks)
        self.counters = counters or Counters()

    def state(self) -> tuple[Any, ...]:
        return self.function, self.stacks, self.counters

    def value(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups = ()) -> Outputs:
        """Run one chunk and pull the seed 1 of a number."""
        parts, pull, nbytes = self.function.record(context, rows, shared, sliced, with_grad=True)
        found, left, _ = self._pulled(parts, pull, nbytes, shared, sliced)
        if left is not None:
            self.counters.dropped()
        return found

    def record(
        self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups = (), *, with_grad: bool = False
    ) -> Any:
        """Do so; the pullback of what is no number is left, None of a number."""
        del with_grad
        return self._pulled(*self.function.record(context, rows, shared, sliced, with_grad=True), shared, sliced)

    def _pulled(
        self, parts: Outputs, pull: PullbackFunction, nbytes: Callable[[], int], shared: Groups, sliced: Groups
    ) -> tuple[Outputs, PullbackFunction | None, Callable[[], int]]:
        """Return what a chunk gives, from how it was recorded."""
        self.counters.recorded()
        value = parts.reduced
        if is_scalar(value):
            groups = pull([seed_of_one(value)])
            self.counters.used_up()
            return Outputs((value, groups[0] if any(shared) else [], 0), groups[-1] if self.stacks else []), None, int
        theta, own = ([None] * sum(map(len, groups)) for groups in (shared, sliced))
        if parts.floats():
            pull = _PullbackOfValue(pull, len(parts.all_leaves())) if self.stacks else pull
            return Outputs((value, theta, 1), own), pull, nbytes
        self.counters.used_up()  # integers have no derivative
        return Outputs((value, theta, 0), own), None, int


class _PullbackOfValue:
    """The pullback of a value that takes the seeds of what comes with it, too: those are last, and None."""

    __slots__ = ("_n_leaves", "_pull")

    def __init__(self, pull: PullbackFunction, n_leaves: int) -> None:
        self._pull, self._n_leaves = pull, n_leaves

    def __call__(self, seeds: Seeds) -> tuple[Any, ...]:
        return self._pull(seeds[: self._n_leaves])

    def many(self, many: Sequence[Seeds | None]) -> list[tuple[Any, ...] | None]:
        """Pull many seeds; None where there are none."""
        return pulled_many(self._pull, [None if seeds is None else seeds[: self._n_leaves] for seeds in many])


SEED = "the seed of a pullback"


def named_gradient(function: Kernel, parts: Outputs, names: LeafNames) -> Iterator[tuple[str, Any]]:
    """Yield the cotangents of a function's leaves, each with what sentences call it."""
    inputs = function.inputs(names)
    for own, leaves in zip(inputs, (parts.reduced or (), parts.stacked), strict=True):
        yield from ((f"the gradient in {name}", leaf) for name, leaf in zip(own, leaves, strict=False))


def _is_unseeded(seeds: Sequence[Any], leaves: Iterable[Any]) -> bool:
    """Return whether all seeds of a chunk are zero, so that it is not pulled, as nowhere: bits depend on it.

    Pulled with zeros it would give zeros of either sign, and nan at infinite slopes. Where somebody traces, seeds have
    derivatives even so.
    """
    return not any(map(is_seed, seeds)) and not any(map(pytree.is_traced, leaves))


def pulled_at(function: Kernel, args: Args, given: tuple[Any, ...] | None) -> tuple[Outputs, Any]:
    """Run a chunk and pull seeds, or the seed 1: its value, and the cotangents, those of shared leaves to be summed.

    Given are a seed for each leaf that is summed, those of what is stacked, and which leaves these belong to.
    """
    context, rows, shared, sliced = args
    value, pullback, _ = function.record(context, rows, shared, sliced)
    if given is None:
        total = pytree.plain(value.reduced)
        if not is_scalar(total) and not isinstance(total, int | np.integer):
            return value, None
        seeds = [seed_of_one(total) if is_scalar(total) else None]  # a sum of nothing is the integer 0
    else:
        seeds = [*given[0], *value.own_seeds(*given[1:])]
    cotangents = list(pullback(seeds))
    of_shared = cotangents.pop(0) if sum(map(len, shared)) else []
    of_sliced = cotangents.pop() if cotangents else []
    return value, Outputs(
        [_or_zeros(part, leaf) for part, leaf in zip(of_shared, itertools.chain(*shared), strict=True)],
        [_or_zeros(part, leaf) for part, leaf in zip(of_sliced, itertools.chain(*sliced), strict=True)],
    )
