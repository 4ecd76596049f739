"""A function of one item -> a chunk function that owns the outputs: stacked for `map`, end to end for `map_rect`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._errors import StructureError, add_note_once
from dagad._graphs.linearization import PullbackFunction
from dagad._graphs.sum_trees import RunningTree
from dagad._kernels.chunks import ChunkContext, ChunkFunction
from dagad._kernels.kernel import (
    DIFFERENT,
    Groups,
    Kernel,
    Note,
    Outputs,
    Seeds,
    check_alike,
    in_groups,
    joined,
)
from dagad._sources.rows import Rows, row_by_row
from dagad._values import pytree
from dagad._values.shipping import opened
from dagad._words import described


class Stack:
    """Outputs of one structure and shape, each leaf stacked on a new first axis."""

    def read(self, output: Any) -> list[Any]:
        """Return the leaves of one item's output."""
        return numbers_of(output, "`map` can't stack what an item gave")

    def together(self, outputs: Sequence[Any], items: Sequence[list[Any]]) -> tuple[list[Any], Any]:
        """Return the leaves that a chunk owns, and the structure of an output."""
        treedef = pytree.flatten(outputs[0])[1]
        for output, leaves in zip(outputs, items, strict=True):
            pytree.check_same_structure(treedef, pytree.flatten(output)[1], DIFFERENT)
            for first, leaf in zip(items[0], leaves, strict=True):
                check_alike(np.shape(pytree.plain(first)), np.shape(pytree.plain(leaf)))
        return [_stacked(column) for column in zip(*items, strict=True)], Note(treedef)

    def cut(self, seed: Any, lengths: Sequence[int]) -> list[Any]:
        """Return the seeds of the items from that of the chunk."""
        return [seed[place] for place in range(len(lengths))]


class EndToEnd:
    """Outputs of one dimension and any length."""

    def read(self, output: Any) -> list[Any]:
        """Return the one leaf of an item's output."""
        plain = pytree.plain(output)
        if not isinstance(plain, np.ndarray) or plain.ndim != 1 or not _is_numeric(plain):
            raise StructureError(
                f"`map_rect` needs an array of one dimension from every job, and got {described(plain)}. Return "
                "`np.atleast_1d(value)` for a number and `array.ravel()` of an array, or use `dagad.map`."
            )
        return [output]

    def together(self, outputs: Sequence[Any], items: Sequence[list[Any]]) -> tuple[list[Any], Any]:
        """Return the one leaf that a chunk owns."""
        del outputs
        return [joined([leaves[0] for leaves in items])], Note(pytree.flatten(0)[1])

    def cut(self, seed: Any, lengths: Sequence[int]) -> list[Any]:
        """Return the seeds of the items from that of the chunk."""
        ends = np.cumsum([0, *lengths])
        return [seed[start:stop] for start, stop in itertools.pairwise(ends)]


def numbers_of(output: Any, what: str) -> list[Any]:
    """Return the leaves of an output after making sure that they are numbers: a traced one was not looked at yet."""
    leaves: list[Any] = pytree.flatten(output)[0]
    other = next((described(pytree.plain(leaf)) for leaf in leaves if not _is_numeric(leaf)), None)
    if other or not leaves:
        raise StructureError(
            f"{what}: {other or 'None or an empty container'}. Return a number, an array, or tuples, lists and dicts "
            "of these."
        )
    return leaves


_NUMERIC = (np.ndarray, np.generic, int, float, complex)


def _is_numeric(leaf: Any) -> bool:
    plain = pytree.plain(leaf)
    return isinstance(plain, _NUMERIC) and np.asarray(plain).dtype.kind in "fciub"


def _stacked(leaves: Sequence[Any]) -> Any:
    return anp.stack(list(leaves)) if any(map(pytree.is_traced, leaves)) else np.stack(leaves)


class Items(Kernel):
    """A function of one item, for all items of a chunk; each is recorded alone, and pulled only if it has a seed."""

    __slots__ = ("_arrange", "function")
    reduces = False

    def __init__(self, function: ChunkFunction, arrange: Stack | EndToEnd) -> None:
        self.function: ChunkFunction = opened(function)
        self._arrange = arrange

    def state(self) -> tuple[Any, ...]:
        return self.function, self._arrange

    def run(self, context: ChunkContext, rows: Any, shared: Groups, sliced: Groups) -> Outputs:
        common, leaves, outputs = list(shared[0]), list(sliced[0]) if sliced else [], []
        traced = any(map(pytree.is_traced, (*common, *leaves)))
        for number, (item, own) in enumerate(items_of(rows, leaves)):
            with _named(context, number):
                if traced:
                    outputs.append(self.function.run(item, [*common, *own], len(common)))
                else:
                    outputs.append(self.function.value(context, item, common, own))
        return self._together(context, outputs)[0]

    def _together(self, context: ChunkContext, outputs: list[Any]) -> tuple[Outputs, list[list[Any]]]:
        items = []
        try:
            for number, output in enumerate(outputs):
                with _named(context, number):
                    items.append(self._arrange.read(output))
            own, note = self._arrange.together(outputs, items)
        except Exception as error:
            add_note_once(error, context.note("value"))
            raise
        return Outputs(None, own, note), items

    def record(
        self, context: ChunkContext, rows: Any, shared: Groups, sliced: Groups = (), *, with_grad: bool = False
    ) -> tuple[Any, PullbackFunction, Any]:
        """Run a chunk item by item, each by its own engine; see `Kernel`."""
        del with_grad
        common, leaves = list(shared[0]), list(sliced[0]) if sliced else []
        outputs, pulls, sizes = [], list[Callable[[Seeds], Any]](), []
        for number, (item, own) in enumerate(items_of(opened(rows), leaves)):
            with _named(context, number):
                value, pull, nbytes = self.function.linearize(context, item, common, own)
            outputs.append(value)
            pulls.append(pull)
            sizes.append(nbytes)
        gaps = [gaps for _, gaps in opened(rows).items(leaves)]
        parts, items = self._together(context, outputs)

        def pullback(seeds: Seeds) -> tuple[Any, ...]:
            total, found = RunningTree(), list[Any]()
            for number, (pull, own_seeds) in enumerate(zip(pulls, self._cut(parts, items, seeds), strict=True)):
                if all(seed is None for seed in own_seeds):  # exact zeros, that cost nothing
                    found.append(None)
                    continue
                with _named(context, number):
                    cotangents = self.function.pull(context, pull, own_seeds, len(common), [])
                flat = [leaf for group in cotangents for leaf in group]
                total.push(flat[: len(common)])
                found.append(flat[len(common) :])
            shared_cotangents = total.total() if any(part is not None for part in found) else [None] * len(common)
            return in_groups([*shared_cotangents, *gathered(leaves, gaps, found)], shared, sliced)

        return parts, pullback, lambda: sum(nbytes() for nbytes in sizes)

    def _cut(self, parts: Outputs, items: list[list[Any]], seeds: Seeds) -> list[list[Any]]:
        columns = []
        for column, seed in zip(zip(*items, strict=True), parts.seeds(seeds), strict=True):
            lengths = [len(pytree.plain(leaf)) if np.ndim(pytree.plain(leaf)) else 1 for leaf in column]
            pieces = [None] * len(items) if seed is None else self._arrange.cut(seed, lengths)
            columns.append([_seed(piece, leaf) for piece, leaf in zip(pieces, column, strict=True)])
        return [list(row) for row in zip(*columns, strict=True)]


def _seed(seed: Any, leaf: Any) -> Any:
    if seed is None or pytree.is_traced(seed) or pytree.is_traced(leaf):
        return seed
    if not np.any(seed):
        return None
    # Where other items have floats this one's may be an integer; a function with a pullback of its own may want it.
    return pytree.cast_like(seed, leaf, "A cotangent") if pytree.is_differentiable(leaf) else seed


def items_of(rows: Rows, leaves: Sequence[Any]) -> Iterator[tuple[Rows, list[Any]]]:
    """Yield each item as rows of its own, with the leaves that belong in its gaps."""
    by_row: dict[int, Any] = {}
    for item, gaps in rows.items(leaves):
        own = []
        for number, place in gaps:
            if place is not None and number not in by_row:
                by_row[number] = row_by_row(leaves[number])
            own.append(leaves[number] if place is None else by_row[number][place])
        yield item, own


def gathered(leaves: Sequence[Any], gaps: Sequence[Any], found: Sequence[Any]) -> list[Any]:
    """Return the cotangents of the rows from those of the items; None where no item has one."""
    columns: list[Any] = [None] * len(leaves)
    for own, parts in zip(gaps, found, strict=True):
        for (number, place), part in zip(own, parts or (), strict=bool(parts)):
            if part is None:
                continue
            if place is None:
                columns[number] = part
            else:
                columns[number] = columns[number] or {}
                columns[number][place] = part
    return [
        _column(column, leaf) if isinstance(column, dict) else column
        for column, leaf in zip(columns, leaves, strict=True)
    ]


def _column(parts: dict[int, Any], leaf: Any) -> Any:
    plain = pytree.plain(leaf)
    if any(map(pytree.is_traced, parts.values())):
        zero = pytree.zeros_like(plain[0])
        return anp.stack([parts.get(place, zero) for place in range(len(plain))])
    column = np.zeros(plain.shape, plain.dtype)
    for place, part in parts.items():
        column[place] = part
    return column


class _named:
    """Adds to an exception which item it is about."""

    def __init__(self, context: ChunkContext, number: int) -> None:
        self._item = context.chunk.start + number

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, Exception):
            add_note_once(error, f"dagad: item {self._item}")
