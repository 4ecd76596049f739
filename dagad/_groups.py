"""Several cheap chunks as one task: the same sums in the same order, for less of the runtime's own time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dagad._chunks import ChunkFunction, Place, Rows
from dagad._graph.sums import RunningTree
from dagad._linearization import Counters, Preaccumulated, Pullback


class GroupFunction:
    """A chunk function on a run of chunks that is a whole subtree of the tree of sums."""

    __slots__ = ("_function",)

    def __init__(self, function: ChunkFunction) -> None:
        self._function = function

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
        records = [self._function.record(*args) for args in _chunks(places, rows, theta, active_rows)]

        total = RunningTree()
        for value, _, _ in records:
            total.push(value)

        def pullback(cotangent: Any) -> tuple[Any, ...]:
            gradient = GroupGradient(bool(theta), active_rows is not None)
            for _, pull, _ in records:
                gradient.push(pull(cotangent))
            return tuple(gradient.parts())

        return total.total(), pullback, lambda: sum(size() for _, _, size in records)

    def preaccumulate(
        self,
        counters: Counters,
        places: Sequence[Place],
        rows: Sequence[Rows],
        theta: Any,
        active_rows: Sequence[Any] | None = None,
    ) -> Preaccumulated:
        """Run chunk after chunk, each tape dying before the next is recorded; see `Recordable`."""
        total, gradient = RunningTree(), GroupGradient(bool(theta), active_rows is not None)
        for args in _chunks(places, rows, theta, active_rows):
            value, own, _, _ = self._function.preaccumulate(counters, *args)
            if own is None:  # groups are for functions whose chunks were scalars last time; this one changed
                value, pullback, nbytes = self.record(places, rows, theta, active_rows)
                counters.recorded()
                return value, None, pullback, nbytes
            total.push(value)
            gradient.push(own)
        return total.total(), gradient.parts(), _unused, int


def _unused(cotangent: Any) -> tuple[Any, ...]:
    raise AssertionError(f"A group that was preaccumulated is not pulled with {cotangent!r}.")


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
