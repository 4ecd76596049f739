"""Many cotangents of one program: kept by blocks where they are zero elsewhere, and pulled together, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dagad._errors import StructureError
from dagad._executors.evaluation import Scheduler, new_names, run_graph
from dagad._graphs.linearize import Step
from dagad._graphs.summation import Summation
from dagad._graphs.transpose import pulled_together, transpose
from dagad._pytrees import pytree
from dagad._sources.columns import owned
from dagad_scheduler.private import DataNode, GraphNode, TaskRef

Key = Any
Targets = list[tuple[int, slice | None]]
# So many seeds make a task: few enough that the workers share them, enough that a task's own cost is small.
SEEDS_A_TASK = 16


class Blocks:
    """A cotangent that is zero but for some runs of rows, which do not overlap."""

    __slots__ = ("dtype", "parts", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: Any, parts: list[tuple[slice, Any]]) -> None:
        self.shape, self.dtype, self.parts = shape, dtype, parts

    @classmethod
    def one_hot(cls, leaf: Any, index: int) -> Any:
        """Return the cotangent that is 1 at one entry of a leaf, counted in C order, and zero elsewhere."""
        shape, dtype = pytree.shape_of(leaf), pytree.dtype_of(leaf)
        if not shape:
            return dtype.type(1)
        row, place = divmod(index, max(int(np.prod(shape[1:])), 1))
        values = np.zeros((1, *shape[1:]), dtype)
        values.reshape(-1)[place] = 1
        return cls(shape, dtype, [(slice(row, row + 1), values)])

    def full(self) -> Any:
        """Return the whole array."""
        array = np.zeros(self.shape, self.dtype)
        for rows, values in self.parts:
            array[rows] = values
        return array

    def cut(self, rows: slice) -> Any:
        """Return some rows; None where they are zero."""
        found = None
        for own, values in self.parts:
            first, last = max(own.start, rows.start), min(own.stop, rows.stop)
            if first < last:
                found = np.zeros((rows.stop - rows.start, *self.shape[1:]), self.dtype) if found is None else found
                found[first - rows.start : last - rows.start] = values[first - own.start : last - own.start]
        return found


def cut_rows(seed: Any, rows: slice | None) -> Any:
    """Return the part of a seed that belongs to some rows; None for zero."""
    if seed is None:
        return None
    if isinstance(seed, Blocks):
        return seed.full() if rows is None else seed.cut(rows)
    return owned(seed, rows)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A linearized graph, pulled with many seeds."""

    steps: Sequence[Step]
    inputs: Mapping[Key, Targets]
    scheduler: Scheduler
    kept: Mapping[Key, Any]
    summation: Summation

    def run(
        self, leaves: Sequence[Any], n_seeds: int, arriving: Callable[[range], Mapping[Key, list[Any]]]
    ) -> list[list[Any]]:
        """Return for each of `leaves` its cotangents, one per seed; None for zero.

        `arriving` says for some of the seeds which keys they arrive at: one cotangent or None per seed.
        """
        graph: dict[Key, GraphNode] = {}
        sinks: dict[Key, tuple[range, Targets]] = {}
        for start in range(0, n_seeds, SEEDS_A_TASK):
            some, names = range(start, min(start + SEEDS_A_TASK, n_seeds)), new_names()
            refs = {}
            for number, (key, seeds) in enumerate(arriving(some).items()):
                if all(seed is None for seed in seeds):
                    continue
                name = names("input", ("seed", number))
                graph[name], refs[key] = DataNode(name, seeds), TaskRef(name)
            cotangents, reverse = transpose(self.steps, refs, names, pulled_together, self.summation)
            graph.update(reverse)
            sinks.update((cotangents[at].key, (some, own)) for at, own in self.inputs.items() if at in cotangents)
        found: list[list[Any]] = [[None] * n_seeds for _ in leaves]

        def landed(key: Key, result: Any) -> None:
            some, targets = sinks[key]
            parts = iter(result)
            for index in some:
                for leaf, rows in targets:
                    found[leaf][index] = _placed(found[leaf][index], leaves[leaf], rows, next(parts))

        if sinks:
            run_graph(self.scheduler, graph, list(sinks), landed, kept=self.kept)
        return found


def _placed(found: Any, leaf: Any, rows: slice | None, part: Any) -> Any:
    """Return what was found of a leaf's cotangent together with one more part of it, after checking it."""
    if part is None:
        return found
    shape, dtype = pytree.shape_of(leaf), pytree.dtype_of(leaf)
    expected = shape if rows is None else (rows.stop - rows.start, *shape[1:])
    if np.shape(part) != expected or pytree.dtype_of(part) != dtype:
        raise StructureError(
            f"A cotangent of shape {np.shape(part)} and dtype {pytree.dtype_of(part)} came where one of shape "
            f"{expected} and dtype {dtype} belongs."
        )
    if rows is None:
        return part
    found = found or Blocks(shape, dtype, [])
    found.parts.append((rows, part))
    return found
