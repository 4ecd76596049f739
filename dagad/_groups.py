"""Several cheap chunks as one task: the same sums in the same order, for less of the runtime's own time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dagad._chunks import ChunkFunction, Place, Rows
from dagad._graph.sums import tree_sum
from dagad._linearization import Counters, Pullback


class GroupFunction:
    """A chunk function on a run of chunks that is a whole subtree of the tree of sums."""

    __slots__ = ("_function",)

    def __init__(self, function: ChunkFunction) -> None:
        self._function = function

    def value(
        self, places: Sequence[Place], rows: Sequence[Rows], theta: Any, active_rows: Sequence[Any] | None = None
    ) -> Any:
        """Return the sum of the chunks' values."""
        function = self._function
        return tree_sum([function.value(*args) for args in _chunks(places, rows, theta, active_rows)])

    def record(
        self, places: Sequence[Place], rows: Sequence[Rows], theta: Any, active_rows: Sequence[Any] | None = None
    ) -> tuple[Any, Pullback, Callable[[], int]]:
        """Record every chunk; see `Recordable`."""
        records = [self._function.record(*args) for args in _chunks(places, rows, theta, active_rows)]

        def pullback(cotangent: Any) -> tuple[Any, ...]:
            return tuple(_together([list(pull(cotangent)) for _, pull, _ in records], bool(theta)))

        return tree_sum([value for value, _, _ in records]), pullback, lambda: sum(size() for _, _, size in records)

    def preaccumulate(
        self,
        counters: Counters,
        places: Sequence[Place],
        rows: Sequence[Rows],
        theta: Any,
        active_rows: Sequence[Any] | None = None,
    ) -> tuple[Any, list[Any] | None]:
        """Run chunk after chunk, each tape dying before the next is recorded; see `ChunkFunction.preaccumulate`."""
        values, gradients = [], []
        for args in _chunks(places, rows, theta, active_rows):
            value, gradient = self._function.preaccumulate(counters, *args)
            values.append(value)
            if gradient is None:  # not scalars: the whole group is recorded instead
                return value, None
            gradients.append(gradient)
        return tree_sum(values), _together(gradients, bool(theta))


def _chunks(places: Sequence[Place], rows: Sequence[Rows], theta: Any, active_rows: Sequence[Any] | None) -> Any:
    if active_rows is None:
        return [(place, part, theta) for place, part in zip(places, rows, strict=True)]
    return [(place, part, theta, own) for place, part, own in zip(places, rows, active_rows, strict=True)]


def _together(gradients: list[list[Any]], has_theta: bool) -> list[Any]:
    """Sum the cotangents of theta; those of the rows stand one after the other."""
    shared = [tree_sum([gradient[0] for gradient in gradients])] if has_theta else []
    rows = [part for gradient in gradients for part in gradient[-1]] if len(gradients[0]) > len(shared) else None
    return shared if rows is None else [*shared, rows]
