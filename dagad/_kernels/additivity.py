"""Whether a chunk function adds up: what it gives for some rows against the sum of what it gives for parts of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._kernels.chunks import ChunkContext, ChunkFunction, Names
from dagad._kernels.kernel import Groups, Kernel, Outputs, canonical_groups
from dagad._sources.columns import Sliced, read_sliced
from dagad._sources.plan import Chunk
from dagad._tracing.patches import patches
from dagad._types import AnyRows, Tree
from dagad._values import pytree
from dagad._values.shipping import opened

# Powers of the rounding unit, far above what roundings do: how far both may be from each other relative to the largest
# number in them, and by the row where all numbers are roundings themselves, as at the minimum of exact data.
RELATIVE, A_ROW = 1 / 3, 2 / 3
MOST_ROWS, LONGEST_ROW = 64, 0.25  # that are looked at, and seconds for one of them
MOST_COMPILED = 2  # of a function that is compiled anew for each number of rows


def why_no_sum(
    name: str,
    run: Callable[[int, int], Any],
    ends: tuple[int, int, int],
    parts: Sequence[Any],
    inputs: Tree,
    tolerance: float = 0.0,
) -> str | None:
    """Return why the total of a chunk function depends on how the rows are cut; None if it does not seem to.

    `run(start, stop)` calls the function; for rows between neighbours of `ends` it gave `parts`. What it is given,
    `inputs`, may be of single precision; who knows that it is less exact than its inputs says so by `tolerance`.
    """
    start, middle, stop = ends
    found = _gap(run(start, stop), parts, inputs, stop - start, tolerance)
    if found is None:
        return None
    random = _gap(run(start, middle), parts[:1], inputs, middle - start, tolerance)
    if random is not None:
        return (
            f"`{name}` gave {random[1]:.8g} for rows {start}:{middle}, and {random[0]:.8g} for the same rows when it "
            "was called again. Gradients and lost chunks are computed by calling it again, so they don't belong to the "
            "value. Draw random numbers before, and pass them along with the rows, `(rows, noise)`."
        )
    return (
        f"`{name}` does not add up: for rows {start}:{stop} it gives {found[0]:.8g}, for rows {start}:{middle} and "
        f"{middle}:{stop} together {found[1]:.8g}, so that the total depends on `grainsize`. Return a sum over the "
        "rows: `np.sum(...)` where there is `np.mean(...)`, divided by the number of all rows outside; a prior or a "
        "penalty is added once, outside; and y of shape (N,), not (N, 1), goes with predictions of shape (N,). Where "
        "rows belong together, make each group an item of a list, for `dagad.map_sum`."
    )


class Halves(Kernel):
    """A chunk function on the first rows of a chunk, at once and in halves: gives why that is no sum, else nothing."""

    __slots__ = ("function", "is_long")
    stacks, gives = False, "look"

    def __init__(self, function: ChunkFunction, is_long: bool) -> None:
        self.function: ChunkFunction = opened(function)
        self.is_long = is_long  # whether a row may take long, and has to be timed first

    def state(self) -> tuple[Any, ...]:
        return self.function, self.is_long

    @property
    def name(self) -> str:
        """What its task is called: on a dashboard it is no evaluation of the function's."""
        return f"look at {self.function.name}"

    def run(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups) -> Outputs:
        whole = rows.merge(iter(sliced[0] if sliced else ()))
        given, inputs = read_sliced(whole)[0], (pytree.by_column(whole), shared)

        def run(start: int, stop: int) -> Any:
            part = Chunk(context.chunk.number, start, stop)
            return self.function.value(context._replace(chunk=part), given.rows(part), shared[0])

        is_compiled = self.of_user.traits.pieces is not None
        stop = min(given.n_rows, MOST_COMPILED if is_compiled else MOST_ROWS)
        if stop < 2 or (self.is_long and _seconds(run, is_compiled) > LONGEST_ROW):
            return Outputs(_as_leaf(None), [])
        middle = stop // 2
        with patches, np.errstate(all="ignore"):
            parts, whole = [run(0, middle), run(middle, stop)], run(0, stop)

            def known(start: int, end: int) -> Any:
                return whole if (start, end) == (0, stop) else run(start, end)

            why = _why_by_row(self.function.name, whole, stop, parts[0], middle)
            return Outputs(_as_leaf(why or why_no_sum(self.function.name, known, (0, middle, stop), parts, inputs)), [])


def _seconds(run: Callable[[int, int], Any], is_compiled: bool) -> float:
    if is_compiled:  # the first time
        run(0, 1)
    began = time.perf_counter()
    run(0, 1)
    return time.perf_counter() - began


def _as_leaf(why: str | None) -> Any:
    return np.array(why or "")


def on_rows(
    kernel: Kernel, sliced: Sliced, leaves: Sequence[Any], n_theta: int, names: Names
) -> Callable[[int, int], Any]:
    """Return what runs a kernel on any rows, for what it reduces: traced where there is something to trace."""
    theta = canonical_groups([leaves[:n_theta]])

    def run(start: int, stop: int) -> Any:
        chunk = Chunk(0, start, stop)
        owned = [leaves[leaf] if rows is None else leaves[leaf][rows] for leaf, rows in sliced.targets(chunk)]
        args = ChunkContext(chunk, names), sliced.rows(chunk), theta, [owned]
        parts: Outputs = kernel.record(*args)[0] if leaves else kernel.value(*args)
        return parts.reduced

    return run


def _why_by_row(name: str, whole: object, n_rows: int, part: object, n_fewer: int) -> str | None:
    """Return what is to be said of a function that gives one result for each row; None if its shapes are the same."""
    (leaves, treedef), (fewer, other) = pytree.flatten(whole), pytree.flatten(part)
    shapes = [(np.shape(leaf), np.shape(one)) for leaf, one in zip(leaves, fewer, strict=False)]
    found = next((pair for pair in shapes if pair[0] != pair[1]), None)
    if found is None or treedef != other:
        return None
    return (
        f"`{name}` gives an array of shape {found[0]} for rows 0:{n_rows}, and of {found[1]} for rows 0:{n_fewer}. "
        "Chunks are added entry by entry, so that entry i is the sum of row i of each chunk. Return a sum over the "
        "rows, `np.sum(..., axis=0)`; for one result for each row take `dagad.map`, or `dagad.map_rect` for several."
    )


def _gap(whole: object, parts: Sequence[Any], inputs: Tree, n_rows: int, tolerance: float) -> tuple[Any, Any] | None:
    """Return a number of a value and of the sum of others, where they differ most; None if they agree."""
    trees = [pytree.flatten(tree) for tree in (whole, *parts)]
    columns = [[np.asarray(leaf) * 1.0 for leaf in leaves] for leaves, _ in trees]
    if any(treedef != trees[0][1] for _, treedef in trees) or not columns[0]:
        return None  # refused where they are added up, as are other shapes
    if any(leaf.shape != first.shape for leaves in columns for leaf, first in zip(leaves, columns[0], strict=True)):
        return None
    first, *others = (np.concatenate([leaf.ravel() for leaf in leaves]) for leaves in columns)
    scale = max(float(np.max(np.abs(flat), initial=0.0)) for flat in (first, *others))
    if not first.size or not np.isfinite(scale):
        return None
    together, eps = np.sum(others, axis=0), _rounding(inputs, *columns)
    worst = int(np.argmax(np.abs(first - together)))
    if abs(first[worst] - together[worst]) <= max(eps**RELATIVE, tolerance) * scale + eps**A_ROW * n_rows:
        return None
    return first[worst], together[worst]


def _rounding(*trees: Any) -> float:
    leaves = [pytree.plain(leaf) for leaf in pytree.flatten(trees, is_leaf=pytree.is_list)[0]]
    dtypes = {leaf.dtype for leaf in leaves if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "fc"}
    of_items = [_rounding(leaf[0]) for leaf in leaves if pytree.is_list(leaf) and leaf]
    return max([*of_items, *(float(np.finfo(dtype).eps) for dtype in dtypes)], default=2.0**-52)
