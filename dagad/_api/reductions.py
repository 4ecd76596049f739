"""The public reductions: `reduce_sum` and `map_sum`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dagad._engines.autograd.outer import differentiable
from dagad._engines.registry import find_engine
from dagad._errors import PlanError
from dagad._executors.chunked import Reduction
from dagad._executors.mapped import Mapped
from dagad._graphs.summation import PlainSum, Summation
from dagad._operations.arguments import Arguments, read_arguments
from dagad._operations.chunks import ChunkFunction
from dagad._operations.derived import Derived, Summed
from dagad._operations.inputs import Inputs
from dagad._operations.items import item_sum


def reduce_sum(
    f: Callable[..., Any],
    sliced: Any,
    *shared: Any,
    grainsize: int | str = "auto",
    engine: Any = None,
    policy: Any = None,
    scheduler: Any = None,
    sum: Any = None,
) -> Any:
    """Sum a function over rows, chunk by chunk, in parallel; differentiable in all floating-point arguments.

    Equal, but for the order of additions, to ``f(sliced, *shared)``.

    Parameters
    ----------
    f
        ``f(rows, *shared) -> partial sum`` of one chunk: a number, an array or a pytree, of the same shape for every
        chunk.
    sliced
        Pytree of arrays, shape (rows, ...), lists and tables, which agree on their first length. Lists are cut along
        their length and may hold anything, ragged arrays included; tuples, dicts and records are structure. Of a table
        (pandas, polars, pyarrow) ``rows["name"]`` is that column as an array; one that holds no numbers is refused when
        it is read as numbers. Inside `f` the rows are read-only. Data that many evaluations use are better placed once:
        `Shards` may stand for any leaf.
    *shared
        Pytrees that every chunk gets whole.
    grainsize
        Rows per chunk; the last chunk may be shorter. The last bits of the result depend on it. "auto" times `f` on a
        few rows once per function and shapes, and stays with what it found.
    engine
        What differentiates a chunk: a name or an ``extend.Engine``; by default Dask's setting ``dagad.engine``.
    policy
        What becomes of a chunk's linearization between value and gradient: one of ``extend.Keep``,
        ``extend.Recompute``, ``extend.Preaccumulate``; by default the gradient of a scalar chunk is computed together
        with its value, or kept for later where only the value is waited for.
    scheduler
        Where it runs, in Dask's words: a ``Client``, "threads", "sync", "processes"; by default what Dask would choose.
    sum
        How the chunks are added up: ``extend.PlainSum()``, or ``extend.CompensatedSum()`` where terms cancel.

    Returns
    -------
    float, array or pytree
        The sum of the partial sums; 0.0 for no rows, in which case `f` is not called.

    Raises
    ------
    PlanError
        If `grainsize` is neither a positive int nor "auto".
    StructureError
        If the sliced leaves differ in length, or the partial sums in shape or structure.
    ClosureError
        If `f` reaches a value being differentiated other than by its arguments and closures.

    Notes
    -----
    After Stan's ``reduce_sum`` (Stan Functions Reference, "Reduce-sum"), with gradients computed only where asked for.
    What `f` raises arrives with its own type and a note that names the chunk, its rows and its key.

    Examples
    --------
    >>> import autograd.numpy as np
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
    read = read_arguments(f, sliced, shared, options, itself)
    if sum is not None and not isinstance(_checked_sum(sum), PlainSum):
        return summed_otherwise(read, sum)
    reduction = Reduction(read.function, read.plan, read.columns, read.n_theta, read.place, read.policy, read.owner)
    return differentiable(reduction, read.leaves) if read.leaves else reduction.value()


def map_sum(
    f: Callable[..., Any],
    sliced: Any,
    *shared: Any,
    grainsize: int | str = "auto",
    engine: Any = None,
    policy: Any = None,
    scheduler: Any = None,
    sum: Any = None,
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
    engine
        See `reduce_sum`.
    policy
        See `reduce_sum`.
    scheduler
        See `reduce_sum`.
    sum
        See `reduce_sum`.

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
    >>> import autograd.numpy as np
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
    options = {"grainsize": grainsize, "engine": engine, "policy": policy, "scheduler": scheduler, "sum": sum}
    return reduce_sum(item_sum(f, find_engine(engine, f)), sliced, *shared, **options)


def itself(function: ChunkFunction) -> ChunkFunction:
    """Return the chunk function as it is: it runs a whole chunk."""
    return function


def summed_otherwise(read: Arguments, summation: Summation) -> Any:
    """Return the total by another way of adding up."""
    if not len(read.plan):
        return 0.0
    operation = mapped(read, Summed(read.function), summation)
    return differentiable(operation, read.leaves).summed


def mapped(read: Arguments, function: Derived, summation: Summation | None = None) -> Mapped:
    """Return a derived function on all chunks."""
    inputs = Inputs.of(read.plan, read.columns, read.n_theta)
    return Mapped(function, read.plan, read.columns, inputs, read.place, read.policy, summation or PlainSum())


def _checked_sum(summation: Any) -> Any:
    if not callable(getattr(summation, "tree", None)) or isinstance(summation, type):
        raise PlanError(
            f"`sum={summation!r}` does not say how to add up. Give an object: `dagad.extend.PlainSum()` or "
            "`CompensatedSum()`, or None."
        )
    return summation
