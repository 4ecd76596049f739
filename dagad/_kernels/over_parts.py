"""A chunk function called for each part of a chunk: items of a map, pieces for an engine, chunks of a run.

A cut says which parts there are, a join what their values make together. Each part is recorded alone, by its engine,
and pulled only where it has a seed. Cotangents of what is shared are added up along one tree over all parts of the
chunk, so the bits depend on the plan alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from dagad._errors import add_note_once
from dagad._graphs.linearization import PullbackFunction
from dagad._graphs.sum_trees import RunningTree
from dagad._kernels.chunks import ChunkContext, ChunkFunction
from dagad._kernels.finite import is_finite
from dagad._kernels.kernel import Groups, Kernel, Outputs, Seeds, in_groups
from dagad._types import AnyRows, Function
from dagad._values import pytree
from dagad._values.shipping import opened


class Part(NamedTuple):
    """Some rows of a chunk, with the leaves that belong in their gaps.

    Attributes
    ----------
    context
        What exceptions that are raised in it are told.
    gaps
        Where the leaves are from; the cut that made it knows how to read this.
    item
        Its number, where it is an item.
    """

    context: ChunkContext
    rows: Any
    leaves: Sequence[Any]
    gaps: Any = None
    item: int | None = None


class Cut(Protocol):
    """How the rows of a chunk are cut."""

    def parts(self, context: ChunkContext, rows: AnyRows, leaves: Sequence[Any]) -> list[Part]:
        """Return the parts of a chunk, in their order."""

    def joined(self, parts: Sequence[Part], leaves: Sequence[Any], found: Sequence[Any]) -> list[Any]:
        """Return the cotangents of the leaves of a chunk from those of its parts, None for a part that has none."""


# From the seeds of what a chunk gave to those of what each of its parts gave; None for zeros.
Distribute = Callable[[Seeds], Sequence[Sequence[Any]]]


class Join(Protocol):
    """What the values of the parts make together.

    `reduces`, `stacks`, `copies` and `is_reduction` are those of the kernel; see `Kernel`.
    """

    reduces: bool
    stacks: bool
    copies: int
    is_reduction: bool

    def outputs(self, context: ChunkContext, parts: Sequence[Part], values: Sequence[Any]) -> Outputs:
        """Return what a chunk gives."""

    def record(
        self, context: ChunkContext, parts: Sequence[Part], values: Sequence[Any]
    ) -> tuple[Outputs, Distribute, Callable[[], int]]:
        """Return what a chunk gives, how seeds of this become seeds of the parts, and how much is held for that."""


class OverParts(Kernel):
    """A chunk function on each part of a chunk."""

    __slots__ = ("copies", "cut", "function", "is_reduction", "join", "reduces", "stacks")

    def __init__(self, function: ChunkFunction, cut: Cut, join: Join) -> None:
        self.function: ChunkFunction = opened(function)
        self.cut, self.join = cut, join
        self.reduces, self.stacks, self.copies = join.reduces, join.stacks, join.copies
        self.is_reduction = join.is_reduction

    def state(self) -> tuple[Any, ...]:
        return self.function, self.cut, self.join

    @property
    def signature(self) -> tuple[Any, ...]:
        """What tells derivatives of one function apart: they don't cost the same."""
        return type(self), type(self.join)

    def run(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups) -> Outputs:
        common, leaves = list(shared[0]), list(sliced[0]) if sliced else []
        traced = any(map(pytree.is_traced, (*common, *leaves)))
        parts, values = self.cut.parts(context, opened(rows), leaves), []
        for part in parts:
            with raised_in(part, "value"):
                if traced:
                    values.append(self.function.run(part.rows, [*common, *part.leaves], len(common)))
                else:
                    values.append(self.function.value(part.context, part.rows, common, part.leaves))
        return self.join.outputs(context, parts, values)

    def record(
        self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups = (), *, with_grad: bool = False
    ) -> tuple[Outputs, PullbackFunction, Callable[[], int]]:
        """Record each part by its own engine; see `Kernel`."""
        common, leaves = list(shared[0]), list(sliced[0]) if sliced else []
        parts, recorded = self.cut.parts(context, opened(rows), leaves), []
        for part in parts:
            with raised_in(part, "value"):
                recorded.append(self.function.linearize(part.context, part.rows, common, part.leaves, with_grad))
        values, pulls, sizes = zip(*recorded, strict=True)
        outputs, distribute, nbytes = self.join.record(context, parts, values)
        pullback = PartsPullback(self, parts, pulls, (outputs, distribute), (shared, sliced))
        return outputs, pullback, lambda: nbytes() + sum(size() for size in sizes)

    def narrowed(self, *args: Any) -> tuple[Any, ...]:
        """Return the arguments of the chunk among those of a run whose value is not finite."""
        context, rows, shared, sliced = args
        for part in self.cut.parts(context, opened(rows), sliced[0] if sliced else ()):
            if part.context is context:
                break  # it is one chunk
            if not is_finite(self.function.value(part.context, part.rows, shared[0], part.leaves)):
                return part.context, part.rows, shared, [part.leaves]
        return args


class PartsPullback:
    """The pullback of a chunk from those of its parts; many seeds are pulled through each part at once."""

    __slots__ = ("_cut", "_distribute", "_function", "_groups", "_outputs", "_parts", "_pulls")

    def __init__(
        self,
        kernel: OverParts,
        parts: Sequence[Part],
        pulls: Sequence[Any],
        joined: tuple[Outputs, Distribute],
        groups: tuple[Groups, Groups],
    ) -> None:
        self._function, self._cut, self._parts, self._pulls = kernel.function, kernel.cut, parts, pulls
        self._outputs, self._distribute = joined
        self._groups = groups

    def __call__(self, seeds: Seeds) -> tuple[Any, ...]:
        return self._pulled([seeds])[0]

    def many(self, many: Sequence[Seeds | None]) -> list[tuple[Any, ...] | None]:
        """Pull many seeds; None where there are none."""
        rest = iter(self._pulled([seeds for seeds in many if seeds is not None]))
        return [None if seeds is None else next(rest) for seeds in many]

    def _pulled(self, many: Sequence[Seeds]) -> list[tuple[Any, ...]]:
        shared, sliced = self._groups
        n_shared, leaves = len(shared[0]), list(sliced[0]) if sliced else []
        each = [self._distribute(self._outputs.seeds(seeds)) for seeds in many]
        trees, found = [RunningTree() for _ in many], [list[Any]() for _ in many]
        for number, part in enumerate(self._parts):
            cotangents = self._of_part(part, self._pulls[number], [seeds[number] for seeds in each], n_shared)
            for flat, tree, own in zip(cotangents, trees, found, strict=True):
                tree.push(None if flat is None else flat[:n_shared])
                own.append(None if flat is None else flat[n_shared:])
        return [
            in_groups(
                [*(tree.total() or [None] * n_shared), *self._cut.joined(self._parts, leaves, own)], shared, sliced
            )
            for tree, own in zip(trees, found, strict=True)
        ]

    def _of_part(self, part: Part, pull: Function, many: Sequence[Sequence[Any]], n_shared: int) -> Iterator[Any]:
        """Yield the cotangents of all leaves of a part for each of many seeds; None for exact zeros."""
        given = [None if all(seed is None for seed in seeds) else seeds for seeds in many]
        with raised_in(part, "pullback"):
            if len(given) > 1:
                groups = self._function.pull_many(part.context, pull, given, n_shared, part.leaves)
            else:
                groups = [
                    None if seeds is None else self._function.pull(part.context, pull, seeds, n_shared, part.leaves)
                    for seeds in given
                ]
        return ([leaf for group in own for leaf in group] if own else None for own in groups)


class raised_in:
    """Adds to an exception which part it is about."""

    __slots__ = ("_part", "_role")

    def __init__(self, part: Part, role: str) -> None:
        self._part, self._role = part, role

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            part = self._part
            where = part.context.note(self._role) if part.item is None else f"dagad: item {part.item}"
            add_note_once(error, where)
