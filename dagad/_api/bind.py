"""What the public functions are called with -> a flat chunk function, its plan and its leaves; nothing is run yet."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dagad._config import setting
from dagad._engines.registry import find_engine
from dagad._errors import NotDifferentiableError, PlanError, SchedulerLostError
from dagad._executors.checkpointed import remembered_grainsize
from dagad._executors.evaluation import Scheduler, calm_process, find_scheduler, new_names
from dagad._executors.grainsize import find_grainsize
from dagad._graphs.policies import Policy, checked_policy
from dagad._kernels.additivity import on_rows
from dagad._kernels.chunks import ChunkFunction
from dagad._kernels.context import current_mode
from dagad._kernels.kernel import Kernel
from dagad._sources.base import Placed
from dagad._sources.columns import Sliced, read_sliced
from dagad._sources.plan import AnyPlan, Plan, check_grainsize
from dagad._tracing.patches import patches
from dagad._tracing.tape import refuse_stale
from dagad._types import AnyRows, AnyScheduler, Args, Function
from dagad._values import pytree
from dagad._values.canonical import all_read_only, contiguous, snapshot, snapshots
from dagad._values.closures import hoist, unchanged, with_arrays
from dagad._values.fingerprint import identity_of
from dagad._values.partition import Partition
from dagad._words import described


class Arguments(NamedTuple):
    """What a reduction or a map is made of; `leaves` are those being differentiated, theta first, then rows."""

    function: ChunkFunction
    plan: AnyPlan
    columns: Sliced
    leaves: list[Any]
    n_theta: int
    place: Scheduler
    policy: Policy
    owner: Any  # what stays the same when the function is defined again


def read_arguments(
    f: Function,
    sliced: AnyRows,
    shared: Sequence[Any],
    options: dict[str, Any],
    kernel: Callable[[ChunkFunction], Kernel],
) -> Arguments:
    """Take the arguments of a public function apart: `options` are its keywords, `kernel` is what may be timed."""
    engine = find_engine(options["engine"], f)
    mode = current_mode()
    lasting = mode.lasting
    f = with_arrays(f, snapshot if lasting else contiguous)
    if patches.somebody_traces():  # then look for what is traced
        sliced, shared = pytree.all_opened(sliced), tuple([pytree.all_opened(argument) for argument in shared])
        hoisted, make = hoist(f)
    else:
        hoisted, make = [], functools.partial(unchanged, f)
    taken = snapshots if lasting else all_read_only
    partitions = [Partition.of(taken(argument), pytree.is_traced) for argument in shared]
    theta = list(hoisted)
    for one in partitions:
        theta += one.taken
    columns, active_rows = read_sliced(sliced, len(theta))
    place = _place(options["scheduler"], columns)
    size = _grainsize(options["grainsize"], columns)
    function = ChunkFunction(make, len(hoisted), tuple([p.bare() for p in partitions]), engine, mode.policy)
    leaves = [*theta, *active_rows]
    _check_leaves(leaves)
    if size is None:
        size = _automatic_grainsize(f, sliced, shared, kernel(function), columns, leaves, len(theta))
    plan = columns.shards[0].plan if columns.shards else Plan(columns.n_rows, size)
    columns = columns.lasting() if lasting and not place.remote else columns  # what is sent is a copy
    policy = mode.policy() if options["policy"] is None else checked_policy(options["policy"])
    return Arguments(function, plan, columns, leaves, len(theta), place, policy, identity_of(f))


def _place(scheduler: AnyScheduler, columns: Sliced) -> Scheduler:
    """Return where to run: where the Shards are, if there are any."""
    if scheduler is None and columns.shards:
        chosen: Scheduler = columns.shards[0].scheduler
    else:
        # An executor of the user's own runs jobs itself; anything else is what Dask calls a scheduler.
        chosen = scheduler if hasattr(scheduler, "linearize") else find_scheduler(scheduler)
    for shards in columns.shards:
        if not shards.is_here:
            _refuse_elsewhere(shards, chosen)
    return chosen


def _refuse_elsewhere(shards: Placed, chosen: Any) -> None:
    """Raise if Shards are not where a reduction is to run, or are gone."""
    there, here, another = shards.scheduler, chosen.name, ""
    if there.is_closed:
        raise SchedulerLostError(
            "The Shards were placed by a `distributed.Client` that was closed, and are gone with it. Place the data "
            "again, `shards = dagad.shard(data)`, while a client is open."
        )
    if there == chosen:
        return
    where = f"on {there.name}"
    if there.name == here:
        where, here = "with the client that placed them", "the cluster of another client, be it the same cluster"
        another = ", or pass the client that placed them,"
    raise PlanError(
        f"The Shards are {where}, but the reduction is to run on {here}. Leave `scheduler=` out{another} to "
        "run it where they are; or place the data there, `dagad.shard(shards.gather(), scheduler=...)`."
    )


def _grainsize(grainsize: object, columns: Sliced) -> int | None:
    size = check_grainsize(grainsize, columns.n_rows)
    if columns.shards:
        cut = columns.shards[0].plan.grainsize
        if size not in (None, cut) and columns.n_rows:
            raise PlanError(
                f"The Shards were cut into chunks of {cut} rows, which can't be changed to `grainsize={size}`. Leave "
                f"it out, or cut the data anew: `dagad.shard(shards.gather(), grainsize={size})`."
            )
        return max(cut, 1)
    return check_grainsize(setting("grainsize"), columns.n_rows) if size is None else size


def _check_leaves(leaves: list[Any]) -> None:
    for leaf in leaves:
        refuse_stale(leaf, "A value that a reduction is given, or that its function carries,")
        if not pytree.is_differentiable_or_traced(leaf):
            raise NotDifferentiableError(
                f"An argument being differentiated is {described(pytree.plain(leaf))}, which has no derivative. "
                "Convert it with `.astype(float)`."
            )


def _automatic_grainsize(
    f: Function, sliced: AnyRows, shared: Args, kernel: Kernel, columns: Sliced, leaves: list[Any], n_theta: int
) -> int:
    """Find out how many rows a chunk should have; see `find_grainsize`."""
    run_rows = on_rows(kernel, columns, list(map(pytree.plain, leaves)), n_theta, new_names(token="grainsize"))

    def run(start: int, stop: int) -> Any:
        with calm_process, patches:
            return run_rows(start, stop)

    if columns.n_rows < 2:
        return 1
    # Recorded but not pulled back: about a third of a value with its gradient, not recorded about a quarter.
    weight = 3.0 if leaves else 4.0
    arguments = {type(kernel).__name__: (sliced, shared)}  # a function of rows and one of items are two

    is_compiled = kernel.of_user.traits.pieces is not None

    def find() -> int:
        return find_grainsize(f, arguments, columns.n_rows, run, weight, is_compiled=is_compiled)

    return remembered_grainsize(kernel, columns.n_rows, find)
