"""Several cheap chunks as one task: the same sums in the same order, for less of the runtime's own time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dagad._engines.autograd.patches import patches
from dagad._graphs.linearization import Counters, Preaccumulated, Pullback, unused_pullback
from dagad._graphs.sums import RunningTree
from dagad._operations.chunks import ChunkFunction, Place
from dagad._pytrees.shipping import Portable, opened
from dagad._sources.rows import Rows


class GroupFunction(Portable):
    """A chunk function on a run of chunks that is a whole subtree of the tree of sums."""

    __slots__ = ("_function",)

    def __init__(self, function: ChunkFunction) -> None:
        self._function: ChunkFunction = opened(function)

    def state(self) -> tuple[Any, ...]:
        return (self._function,)

    def value(
        self, places: Sequence[Place], rows: Sequence[Rows], theta: Any, active_rows: Sequence[Any] | None = None
    ) -> Any:
        """Return the sum of the chunks' values."""
        total = RunningTree()
        for args in _chunks(places, rows, theta, active_rows):
            total.push(self._function.value(*args))
        return total.total()

    def record(
        self, places: Sequence[Place], rows: Sequence[Rows], theta: Any, active_rows: Sequence[Any] | None = None
    ) -> tuple[Any, Pullback, Callable[[], int]]:
        """Record every chunk; see `Recordable`."""
        total, pulls = RunningTree(), []
        for args in _chunks(places, rows, theta, active_rows):
            value, pull, nbytes = self._function.record(*args)
            total.push(value)
            pulls.append((pull, nbytes))
        return total.total(), *_pulls_together(pulls, bool(theta), active_rows is not None)

    def preaccumulate(
        self,
        counters: Counters,
        places: Sequence[Place],
        rows: Sequence[Rows],
        theta: Any,
        active_rows: Sequence[Any] | None = None,
    ) -> Preaccumulated:
        """Run chunk after chunk, each tape dying before the next is recorded; see `Recordable`."""
        groups = bool(theta), active_rows is not None
        total, gradient, pulls = RunningTree(), GroupGradient(*groups), []
        with patches:  # once for all chunks
            for args in _chunks(places, rows, theta, active_rows):
                value, own, pull, nbytes = self._function.preaccumulate(counters, *args)
                total.push(value)
                if own is None:
                    pulls.append((pull, nbytes))
                else:
                    gradient.push(own)
        if pulls and len(pulls) < len(places):  # some of each kind: only a cotangent for all of them is right
            value, pullback, nbytes = self.record(places, rows, theta, active_rows)
            return value, None, pullback, nbytes
        if pulls:  # no numbers, but arrays or structures: they need a cotangent of their own
            return total.total(), None, *_pulls_together(pulls, *groups, counters)
        return total.total(), gradient.parts(), unused_pullback, int


def _pulls_together(
    pulls: list[tuple[Pullback, Callable[[], int]]], has_theta: bool, has_rows: bool, counters: Counters | None = None
) -> Any:
    def pullback(cotangent: Any) -> tuple[Any, ...]:
        gradient = GroupGradient(has_theta, has_rows)
        for number, (pull, _) in enumerate(pulls):
            gradient.push(pull(cotangent))
            if number and counters is not None:  # whoever pulls the whole counts it as one
                counters.used_up()
        return tuple(gradient.parts())

    return pullback, lambda: sum(nbytes() for _, nbytes in pulls)


class GroupGradient:
    """The cotangents of several chunks: those of theta are summed, those of the rows stand one after the other."""

    __slots__ = ("_rows", "_theta")

    def __init__(self, has_theta: bool, has_rows: bool) -> None:
        self._theta = RunningTree() if has_theta else None
        self._rows: list[Any] | None = [] if has_rows else None

    def push(self, cotangents: Sequence[Any]) -> None:
        """Take what one chunk's pullback returned."""
        if self._theta is not None:
            self._theta.push(cotangents[0])
        if self._rows is not None:
            self._rows.extend(cotangents[-1])

    def parts(self) -> list[Any]:
        """Return the cotangents in groups, as a chunk's pullback does."""
        shared = [] if self._theta is None else [self._theta.total()]
        return shared if self._rows is None else [*shared, self._rows]


def _chunks(places: Sequence[Place], rows: Sequence[Rows], theta: Any, active_rows: Sequence[Any] | None) -> Any:
    if active_rows is None:
        return [(place, part, theta) for place, part in zip(places, rows, strict=True)]
    return [(place, part, theta, own) for place, part, own in zip(places, rows, active_rows, strict=True)]
