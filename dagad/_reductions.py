"""The public reductions: `reduce_sum` and `map_sum`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from dagad import _tree
from dagad._chunked import Reduction
from dagad._chunks import ChunkFunction, Place
from dagad._closures import hoist, laid_out_cells
from dagad._columns import Sliced, read_sliced
from dagad._config import setting
from dagad._engines import find_engine
from dagad._engines.autograd import open_containers
from dagad._engines.explicit import Explicit, ExplicitEngine
from dagad._engines.traces import traces
from dagad._errors import NotDifferentiableError, PlanError
from dagad._evaluation import Scheduler, calm_process, find_scheduler, new_names
from dagad._grainsize import code_of, find_grainsize
from dagad._graph.policies import Policy
from dagad._items import ItemSum
from dagad._mode import current_mode, default_policy
from dagad._plan import Chunk, Plan, check_grainsize
from dagad._primitive import differentiable


def reduce_sum(
    f: Callable[..., Any],
    sliced: Any,
    *shared: Any,
    grainsize: int | str = "auto",
    engine: Any = None,
    policy: Any = None,
    scheduler: Any = None,
) -> Any:
    """Sum a function over rows, chunk by chunk, in parallel; differentiable in all floating-point arguments.

    Equal, but for the order of additions, to ``f(sliced, *shared)``.

    Parameters
    ----------
    f
        ``f(rows, *shared) -> partial sum`` of one chunk: a number, an array or a pytree, of the same shape for every
        chunk.
    sliced
        Pytree of arrays, shape (rows, ...), and lists, which agree on their first length. Lists are cut along their
        length and may hold anything, ragged arrays included; tuples, dicts and records are structure. Inside `f` the
        rows are read-only. Data that many evaluations use are better placed once: `Shards` may stand for any leaf.
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
    engine = find_engine(engine, f)
    if isinstance(engine, ExplicitEngine) and not isinstance(f, Explicit):
        f = Explicit(f)
    f = laid_out_cells(f)
    if traces.open:  # somebody differentiates: look for what is traced
        sliced, shared = _opened((sliced, shared))
        hoisted, make = hoist(f)
    else:
        hoisted, make = [], _Itself(f)
    forms = tuple(_tree.Form.of(_tree.all_protected(argument), _tree.is_traced) for argument in shared)
    theta = [*hoisted, *(leaf for form in forms for leaf in form.taken)]
    columns, active_rows = read_sliced(sliced, itertools.count(len(theta)))
    place = _place(scheduler, columns)
    size = _grainsize(grainsize, columns)
    function = ChunkFunction(make, len(hoisted), tuple(form.bare() for form in forms), engine, current_mode().policy)
    leaves = [*theta, *active_rows]
    _check_leaves(leaves)
    if size is None:
        size = _automatic_grainsize(f, sliced, shared, function, columns, leaves, len(theta))
    plan = columns.shards[0].plan if columns.shards else Plan(columns.n_rows, size)
    reduction = Reduction(function, plan, columns, len(theta), place, _policy(policy), code_of(f))
    return differentiable(reduction, leaves) if leaves else reduction.value()


def map_sum(
    f: Callable[..., Any],
    sliced: Any,
    *shared: Any,
    grainsize: int | str = "auto",
    engine: Any = None,
    policy: Any = None,
    scheduler: Any = None,
) -> Any:
    """Sum a function over items, in parallel: ``sum(f(item, *shared) for item in sliced)``.

    Parameters
    ----------
    f
        ``f(item, *shared) -> number, array or pytree``, of the same shape for every item.
    sliced
        The items: a list of anything, or a pytree of arrays, shape (items, ...), and lists that agree on their first
        length; an item then has the same structure, with one row of each.
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
    options = {"grainsize": grainsize, "engine": engine, "policy": policy, "scheduler": scheduler}
    return reduce_sum(ItemSum.of(f), sliced, *shared, **options)


class _Itself:
    """Makes a function that carries nothing traced: itself."""

    __slots__ = ("_fun",)

    def __init__(self, fun: Any) -> None:
        self._fun = fun

    def __call__(self, values: Any) -> Any:
        del values
        return self._fun

    def __reduce__(self) -> tuple[Any, ...]:
        return _Itself, (self._fun,)


def _opened(arguments: Any) -> Any:
    """Return arguments with autograd's boxed containers as plain ones of boxed entries."""
    leaves, treedef = _tree.flatten(arguments)
    if any(isinstance(_tree.plain(leaf), list | tuple | dict) for leaf in leaves if _tree.is_traced(leaf)):
        return _tree.unflatten(treedef, [open_containers(leaf) for leaf in leaves])
    return arguments


def _place(scheduler: Any, columns: Sliced) -> Scheduler:
    """Return where to run: where the Shards are, if there are any."""
    if scheduler is None and columns.shards:
        chosen: Scheduler = columns.shards[0].scheduler
    else:
        chosen = find_scheduler(scheduler)
    for shards in columns.shards:
        if not shards.is_here and shards.scheduler != chosen:
            raise PlanError(
                f"The Shards are on {shards.scheduler.name}, but the reduction is to run on {chosen.name}. Leave "
                "`scheduler=` out, place the data there with `dagad.shard`, or pass what `.gather()` returns."
            )
    return chosen


def _grainsize(grainsize: Any, columns: Sliced) -> int | None:
    size = check_grainsize(grainsize, columns.n_rows)
    if columns.shards:
        cut = columns.shards[0].plan.grainsize
        if size not in (None, cut) and columns.n_rows:
            raise PlanError(
                f"The Shards were cut into chunks of {cut} rows, so `grainsize={size}` can't be had. Leave it out, or "
                f"cut the data anew: `dagad.shard(shards.gather(), grainsize={size})`."
            )
        return max(cut, 1)
    return check_grainsize(setting("grainsize"), columns.n_rows) if size is None else size


def _policy(policy: Any) -> Policy:
    if policy is None:
        return default_policy()
    if not callable(getattr(policy, "linearize", None)) or isinstance(policy, type):
        raise PlanError(
            f"`policy={policy!r}` is no policy. Give an object: `dagad.extend.Keep()`, `Recompute()` or "
            "`Preaccumulate()`, or None for what fits."
        )
    return policy  # type: ignore[no-any-return]  # anything with the method is a policy


def _check_leaves(leaves: list[Any]) -> None:
    for leaf in leaves:
        if not _tree.is_differentiable_or_traced(leaf):
            raise NotDifferentiableError(
                f"An argument being differentiated is a {type(_tree.plain(leaf)).__name__} without floating-point "
                "numbers. Convert it with `.astype(float)`."
            )


def _automatic_grainsize(
    f: Any, sliced: Any, shared: Any, function: ChunkFunction, columns: Sliced, leaves: list[Any], n_theta: int
) -> int:
    """Find out how many rows a chunk should have; see `find_grainsize`."""
    plain = [_tree.plain(leaf) for leaf in leaves]

    def run(start: int, stop: int) -> None:
        chunk = Chunk(0, start, stop)
        owned = [plain[leaf] if rows is None else plain[leaf][rows] for leaf, rows in columns.targets(chunk)]
        args = Place(chunk, new_names("grainsize")), columns.rows(chunk), plain[:n_theta], owned
        with calm_process:
            if leaves:
                function.record(*args)
            else:
                function.value(*args)

    if columns.n_rows < 2:
        return 1
    # Recorded but not pulled back: about a third of a value with its gradient, not recorded about a quarter.
    weight = 3.0 if leaves else 4.0
    return find_grainsize(f, (sliced, shared), columns.n_rows, run, weight)
