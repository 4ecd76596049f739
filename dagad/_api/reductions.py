"""The public reductions: `reduce_sum` and `map_sum`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dagad._api.adding_up import warn_unless_sum
from dagad._api.bind import Arguments, is_as_expected, read_arguments
from dagad._api.outer import differentiable
from dagad._engines.registry import find_engine
from dagad._errors import PlanError
from dagad._executors.checkpointed import checkpointed
from dagad._executors.choose import executor_on
from dagad._executors.members import as_member
from dagad._graphs.monoids import PLAIN, Monoid
from dagad._kernels.inputs import Inputs
from dagad._kernels.kernel import Kernel, Summed
from dagad._kernels.operation import Operation
from dagad._kernels.sums import sum_by_item, sum_by_length
from dagad._tracebacks import public
from dagad._types import AnyEngine, AnyPolicy, AnyRows, AnyScheduler


@public
def reduce_sum(
    f: Callable[..., Any],
    sliced: AnyRows,
    *shared: Any,
    grainsize: int | str = "auto",
    engine: AnyEngine = None,
    policy: AnyPolicy = None,
    scheduler: AnyScheduler = None,
    sum: Monoid | None = None,
) -> Any:
    """Sum a function over the rows of data, chunk by chunk, in parallel.

    The result is ``f(sliced, *shared)`` but for the order of additions, if `f` is a sum over rows. It can be
    differentiated with respect to all floating-point arguments, and to what `f` finds in its closure.

    Parameters
    ----------
    f
        ``f(rows, *shared) -> partial sum`` of one chunk: a number, an array or a pytree, of the same shape for every
        chunk. Sum inside it, don't average: the partial sums are added up.
    sliced
        Pytree of arrays, shape (rows, ...), lists and tables, which agree on their first length. Lists are cut along
        their length and may hold anything, ragged arrays included; tuples, dicts and records are structure. Of a table
        (pandas, polars, pyarrow) ``rows["name"]`` is that column as an array; one that holds no numbers is refused when
        it is read as numbers. Inside `f` the rows are read-only. Data that many evaluations use are best placed once,
        by `shard`; `Shards` are taken wherever arrays are.
    *shared
        Pytrees that every chunk gets whole.
    grainsize
        Rows per chunk; the last chunk may be shorter. "auto" times `f` on a few rows, once for each function and
        shapes. Sums are rounded in another order for another grainsize, so the last digits of the result depend on it:
        `find_grainsize` tells what "auto" takes.
    engine
        What differentiates a chunk: a name or an ``extend.Engine``; by default Dask's setting ``dagad.engine``.
    policy
        What happens to the tape of a chunk between value and gradient: ``extend.Keep()``, ``extend.Recompute()`` or
        ``extend.Preaccumulate()``. By default a chunk's gradient is computed together with its value, or its tape is
        kept where only the value is waited for.
    scheduler
        Where it runs, as in Dask: a ``distributed.Client``, "threads", "sync" or "processes"; by default what Dask
        would choose, an active client or threads.
    sum
        How the chunks are added up: ``extend.PlainSum()``, or ``extend.CompensatedSum()`` where terms cancel.

    Returns
    -------
    float, array or pytree
        The sum of the partial sums; 0.0 for no rows, in which case `f` is not called.

    Raises
    ------
    PlanError
        If `grainsize` is neither a positive int nor "auto", or another option is not a known one.
    ArgumentsError
        If `f` can't be called with the rows and the shared arguments.
    StructureError
        If the parts of `sliced` differ in length, or the partial sums in shape or structure.
    ClosureError
        If `f` gets a value being differentiated by a global or another way than its arguments and closures.

    Notes
    -----
    After Stan's ``reduce_sum`` (Stan Functions Reference, "Reduce-sum"). There are no `start` and `end`: what goes with
    the rows is sliced too, ``reduce_sum(f, (y, x), theta)``.

    The value is found by one call of `f` for each chunk. Once for each function and shape of rows there are a few calls
    more: up to three of at most an eighth of the rows where `grainsize` is "auto", to find it, and afterwards three of
    at most 64 rows in all and their halves, to see that chunks add up; a warning says if they don't. Where an
    evaluation took longer than a second, one row is tried first, and nothing else where that took a quarter second; of
    one chunk that took so long nothing is called again. On a cluster workers make these calls.

    What `f` raises arrives as it was raised, with a note that
    names the chunk, its rows and its key.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> def log_likelihood(rows, mean):
    ...     return -0.5 * np.sum((rows - mean) ** 2)
    >>> data = np.array([1.0, 2.0, 3.0, 6.0])
    >>> float(dagad.reduce_sum(log_likelihood, data, 2.0, grainsize=2))
    -9.0
    >>> float(dagad.grad(lambda mean: dagad.reduce_sum(log_likelihood, data, mean, grainsize=2))(2.0))
    4.0
    """
    options = {"grainsize": grainsize, "engine": engine, "policy": policy, "scheduler": scheduler}
    began = time.perf_counter()
    read = read_arguments(f, sliced, shared, options, Summed)
    operation = bound(read, sum_by_length(read.function, read.plan), _checked_sum(sum))
    total = differentiable(operation, read.leaves).reduced
    if read.key is not None and not is_as_expected(read, total):
        return reduce_sum(f, sliced, *shared, **options, sum=sum)
    warn_unless_sum(operation, read.scheduler, read.leaves, began)
    return total


@public
def map_sum(
    f: Callable[..., Any],
    sliced: AnyRows,
    *shared: Any,
    grainsize: int | str = "auto",
    engine: AnyEngine = None,
    policy: AnyPolicy = None,
    scheduler: AnyScheduler = None,
    sum: Monoid | None = None,
) -> Any:
    """Sum a function over items, in parallel: ``sum(f(item, *shared) for item in sliced)``.

    Parameters
    ----------
    f
        ``f(item, *shared) -> number, array or pytree``, of the same shape for every item.
    sliced
        The items: a list of anything, or a pytree of arrays, shape (items, ...), lists and tables that agree on their
        first length; an item then has the same structure, with one row of each: of a table a mapping from names to
        numbers.
    *shared
        Pytrees that every call gets whole.
    grainsize
        Items per chunk; see `reduce_sum`.
    engine, policy, scheduler
        See `reduce_sum`.
    sum
        How the chunks are added up; see `reduce_sum`. Inside a chunk items are added in their order, as by Python's
        `sum`: with ``grainsize=1`` all additions are those of `sum`.

    Returns
    -------
    float, array or pytree
        The sum; 0.0 for no items.

    Raises
    ------
    PlanError, StructureError, ClosureError
        As by `reduce_sum`.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> def line(model, x):
    ...     return model["slope"] * x + model["offset"]
    >>> models = [{"slope": 1.0, "offset": 0.5}, {"slope": 3.0, "offset": 0.0}]
    >>> float(dagad.map_sum(line, models, 2.0))
    8.5
    >>> gradient = dagad.grad(lambda models: dagad.map_sum(line, models, 2.0))(models)
    >>> [float(model["slope"]) for model in gradient]
    [2.0, 2.0]
    """
    options = {"grainsize": grainsize, "engine": engine, "policy": policy, "scheduler": scheduler}
    fun, kernel = sum_by_item(f, find_engine(engine, f))
    read = read_arguments(fun, sliced, shared, options, kernel)
    total = differentiable(bound(read, kernel(read.function), _checked_sum(sum)), read.leaves).reduced
    if read.key is not None and not is_as_expected(read, total):
        return map_sum(f, sliced, *shared, **options, sum=sum)
    return total


@public
def find_grainsize(f: Callable[..., Any], sliced: AnyRows, *shared: Any, engine: AnyEngine = None) -> int:
    """Return the rows per chunk that `reduce_sum` takes where `grainsize` is left out.

    What "auto" finds depends on how fast the machine is; as an int, written down, it gives the same bits everywhere.

    Parameters
    ----------
    f, sliced
        As for `reduce_sum`. If its grainsize is not known yet, `f` is timed on a few rows; a call of `reduce_sum` that
        follows knows it then.
    *shared
        As for `reduce_sum`.
    engine
        As for `reduce_sum`.

    Returns
    -------
    int
        The grainsize; that of Shards and that of Dask's setting ``dagad.grainsize`` where there are these.

    Raises
    ------
    StructureError, ClosureError
        As by `reduce_sum`.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> def squares(rows, mean):
    ...     return np.sum((rows - mean) ** 2)
    >>> rows = np.arange(100.0)
    >>> grainsize = dagad.find_grainsize(squares, rows, 50.0)  # on a machine that is not busy 100: too little to be cut
    >>> float(dagad.reduce_sum(squares, rows, 50.0, grainsize=grainsize))
    83350.0
    """
    options = {"grainsize": "auto", "engine": engine, "policy": None, "scheduler": None}
    return read_arguments(f, sliced, shared, options, Summed).plan.grainsize


def bound(read: Arguments, kernel: Kernel, monoid: Monoid = PLAIN) -> Operation:
    """Return a kernel on all chunks."""
    inputs = Inputs.of(read.plan, read.columns, read.n_theta, len(read.leaves) - read.n_theta)
    executor = as_member(checkpointed(executor_on(read.scheduler), read.scheduler), read.scheduler)
    return Operation(kernel, read.plan, read.columns, inputs, executor, read.policy, read.owner, monoid)


def _checked_sum(monoid: Any) -> Monoid:
    if monoid is None:
        return PLAIN
    if isinstance(monoid, type) or not all(callable(getattr(monoid, name, None)) for name in ("lift", "add", "lower")):
        raise PlanError(
            f"`sum={monoid!r}` is not a way to add up. Give an object: `dagad.extend.PlainSum()` or "
            "`dagad.extend.CompensatedSum()`, or None."
        )
    if monoid.lower(monoid.add(monoid.lift(1.0), monoid.lift(2.0), False)) != 3.0:  # gradients are added by it, too
        raise PlanError(
            f"`sum={monoid!r}` does not add: of 1 and 2 it makes something else than 3. Use "
            "`dagad.map_reduce(f, combine, sliced, *shared)`, which differentiates `combine` as it is written."
        )
    return monoid  # type: ignore[no-any-return]  # anything that adds is one
