"""The public maps: `map`, `map_rect` and `map_reduce`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._api.bind import Arguments, read_arguments
from dagad._api.outer import differentiable
from dagad._api.reductions import bound
from dagad._errors import PlanError
from dagad._executors.members_snapshot import unchanged
from dagad._graphs.sum_trees import Subtree
from dagad._kernels.chunks import ChunkFunction
from dagad._kernels.cuts import ByChunk, ByItem
from dagad._kernels.joins import CANT, Combined, EndToEnd, Stack, combined, numbers_of
from dagad._kernels.kernel import Outputs, Unreduced
from dagad._kernels.operation import Operation
from dagad._kernels.over_parts import OverParts
from dagad._sources.runs import Runs, runs_for
from dagad._tracebacks import public
from dagad._tracing.patches import patches
from dagad._tracing.tape import reverse_depth
from dagad._types import AnyEngine, AnyPolicy, AnyRows, AnyScheduler, Function
from dagad._values import pytree
from dagad._values.canonical import snapshot
from dagad._values.closures import closure_convert, with_arrays


@public
def map(
    f: Callable[..., Any],
    sliced: AnyRows,
    *shared: Any,
    grainsize: int | str = "auto",
    engine: AnyEngine = None,
    policy: AnyPolicy = None,
    scheduler: AnyScheduler = None,
) -> Any:
    """Call a function on each item, in parallel, and stack what it returns on a new first axis.

    Parameters
    ----------
    f
        ``f(item, *shared) -> number, array or pytree``, of the same shape for every item.
    sliced
        The items: a list of anything, or a pytree of arrays, shape (items, ...), lists and tables that agree on their
        first length; an item then has the same structure, with one row of each: of a table a mapping from names to
        numbers. `Shards` are taken wherever arrays are.
    *shared
        Pytrees that every call gets whole.
    grainsize
        Items per chunk; see `reduce_sum`. The result is the same for any.
    engine, scheduler
        See `reduce_sum`.
    policy
        See `reduce_sum`; the tapes of outputs that are more than one number are kept.

    Returns
    -------
    array or pytree
        With the structure of one output, its leaves of shape (items, ...); an empty array for no items.

    Raises
    ------
    PlanError, StructureError, ClosureError
        As by `reduce_sum`; the outputs of all items have to agree in structure and shape.

    Notes
    -----
    Python calls `f` once for each item. Where an item is a row of numbers, a function of many rows at once is much
    faster: `reduce_sum` takes one.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> def norm(point, scale):
    ...     return np.sqrt(np.sum((scale * point) ** 2))
    >>> dagad.map(norm, np.array([[3.0, 4.0], [6.0, 8.0]]), 2.0)
    array([10., 20.])
    """
    options = {"grainsize": grainsize, "engine": engine, "policy": policy, "scheduler": scheduler}
    parts = _outputs(f, sliced, shared, options, Stack())
    return np.zeros(0) if parts is None else pytree.unflatten(parts.note[0].treedef, parts.stacked)


@public
def map_rect(
    f: Callable[..., Any],
    sliced: AnyRows,
    *shared: Any,
    grainsize: int | str = "auto",
    engine: AnyEngine = None,
    policy: AnyPolicy = None,
    scheduler: AnyScheduler = None,
) -> Any:
    """Call a function on each job, in parallel, and concatenate the arrays that it returns.

    Parameters
    ----------
    f
        ``f(job, *shared) -> array of one dimension``, of any length, which may be 0.
    sliced
        The jobs, as the items of `map`: parameters of their own (rows of arrays, or lists of arrays of any lengths, or
        of pytrees) beside their data, real or integer.
    *shared
        Pytrees that every job gets whole: shared parameters, for instance.
    grainsize
        Jobs per chunk; see `reduce_sum`. The result is the same for any.
    engine, policy, scheduler
        See `map`.

    Returns
    -------
    array
        The outputs one after the other, in the order of the jobs; empty for no jobs. The derivative of a job's output
        with respect to the parameters of another job is exactly zero, and is never computed.

    Raises
    ------
    PlanError, StructureError, ClosureError
        As by `reduce_sum`; every output has to be an array of one dimension.

    Notes
    -----
    After Stan's ``map_rect`` (Stan Functions Reference, "Higher-order map"), without its rectangles: neither parameters
    nor data need to be padded. Stan's ``map_rect(f, phi, thetas, x_r, x_i)`` is
    ``map_rect(f, (thetas, x_r, x_i), phi)`` here, with ``f((theta, x_r, x_i), phi)``.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> def decay(job, rate):
    ...     dose, times = job
    ...     return dose * np.exp(-rate * times)
    >>> jobs = (np.array([1.0, 2.0]), [np.array([0.0]), np.array([0.0, 1.0, 2.0])])
    >>> dagad.map_rect(decay, jobs, np.log(2.0))
    array([1. , 2. , 1. , 0.5])
    """
    options = {"grainsize": grainsize, "engine": engine, "policy": policy, "scheduler": scheduler}
    parts = _outputs(f, sliced, shared, options, EndToEnd())
    return np.zeros(0) if parts is None else parts.stacked[0]


@public
def map_reduce(
    f: Callable[..., Any],
    combine: Callable[[Any, Any], Any],
    sliced: AnyRows,
    *shared: Any,
    grainsize: int | str = "auto",
    engine: AnyEngine = None,
    policy: AnyPolicy = None,
    scheduler: AnyScheduler = None,
) -> Any:
    """Call a function on each chunk, in parallel, and combine what it returns, neighbours first.

    Parameters
    ----------
    f
        ``f(rows, *shared) -> number, array or pytree`` of one chunk.
    combine
        ``combine(left, right)`` of two such values, in the order of the rows; associative, written with numpy. It is
        differentiated as it is written: a product of factors that may be zero is right, and where
        ``np.maximum(left, right)`` has a tie, each side gets half of the gradient.
    sliced
        See `reduce_sum`.
    *shared
        Pytrees that every chunk gets whole.
    grainsize
        Rows per chunk; see `reduce_sum`. The order in which `combine` is called depends on it, and on nothing else.
    engine
        See `reduce_sum`; `combine` is always differentiated by autograd.
    policy
        See `map`.
    scheduler
        Where the chunks run; see `reduce_sum`. On a cluster `combine` runs where the chunks did, and then, on what the
        workers send, where `map_reduce` was called.

    Returns
    -------
    number, array or pytree
        The combined value.

    Raises
    ------
    PlanError
        If there are no rows, so that there is nothing to combine; else as by `reduce_sum`.
    StructureError, ClosureError
        As by `reduce_sum`.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> def log_sum_exp(rows):
    ...     largest = np.max(rows)
    ...     return largest + np.log(np.sum(np.exp(rows - largest)))
    >>> round(float(dagad.map_reduce(log_sum_exp, np.logaddexp, np.zeros(8), grainsize=2)), 6)
    2.079442
    """
    options = {"grainsize": grainsize, "engine": engine, "policy": policy, "scheduler": scheduler}
    read = read_arguments(f, sliced, shared, options, Unreduced)
    if not len(read.plan):
        raise PlanError(
            "`map_reduce` got no rows, so there is nothing to combine, and no value that would stand for that. Treat "
            "empty data before the call, or use `reduce_sum`, whose sum of no rows is 0.0."
        )
    runs = _runs(read, combine)
    kept = with_arrays(combine, snapshot) if read.leaves else combine  # who pulls later reads what its arrays hold now
    with unchanged(combine):
        parts = differentiable(_by_runs(read, kept, runs), read.leaves)
    leaves = iter(parts.stacked)
    values = [
        pytree.unflatten(note.treedef, [next(leaves) for _ in range(note.treedef.num_leaves)]) for note in parts.note
    ]
    for value in values:
        numbers_of(value, CANT)
    return combined(kept, values, runs or [Subtree(number, 0) for number in range(len(values))], len(read.plan))


def _runs(read: Arguments, combine: Function) -> list[Subtree] | None:
    """Return which chunks are combined where they run; None where chunks are tasks of this process, or one each."""
    count = getattr(read.scheduler, "n_workers", None)
    if count is None or (patches.somebody_traces() and closure_convert(combine)[0]):  # what it carries is traced here
        return None
    if len(read.columns.constant_shards) < len(read.columns.shards):  # each chunk owns the rows that stay
        return None
    if any(reverse_depth(leaf) > 1 for leaf in read.leaves):  # by tapes of tapes sums come in another order
        return None
    runs = runs_for(len(read.plan), max(count(), 1))
    return runs if len(runs) < len(read.plan) else None


def _by_runs(read: Arguments, combine: Function, parts: list[Subtree] | None) -> Operation:
    if parts is None:
        return bound(read, Unreduced(read.function))
    runs: Any = Runs(read.columns, read.plan, parts)
    return bound(
        read._replace(plan=runs.plan, columns=runs),
        OverParts(read.function, ByChunk(read.plan, tuple(parts)), Combined(combine)),
    )


def _outputs(
    f: Function, sliced: AnyRows, shared: Sequence[Any], options: dict[str, Any], arrange: Stack | EndToEnd
) -> Outputs | None:
    """Return the outputs of all items; None for no items."""

    def kernel(function: ChunkFunction) -> OverParts:
        return OverParts(function, ByItem(), arrange)

    read = read_arguments(f, sliced, shared, options, kernel)
    return differentiable(bound(read, kernel(read.function)), read.leaves) if len(read.plan) else None
