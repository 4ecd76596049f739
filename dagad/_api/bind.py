"""What the public functions are called with -> a flat chunk function, its plan and its leaves; nothing is run yet.

State: `_WAS_NUMBER`, whether a reduction's value was a number last time. The gradient of a number is computed during
the call, so its arguments need not be copied; of anything else the pullback runs later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from dagad._config import setting
from dagad._engines.registry import find_engine
from dagad._errors import NotDifferentiableError, PlanError, SchedulerLostError
from dagad._executors.checkpointed import is_checkpointed, remembered_grainsize
from dagad._executors.evaluation import Scheduler, find_scheduler, new_names, process_settings
from dagad._executors.grainsize import find_grainsize
from dagad._graphs.linearization import is_scalar
from dagad._graphs.policies import Policy, checked_policy, may_run_again, pulls_at_once
from dagad._kernels.additivity import on_rows
from dagad._kernels.chunks import ChunkFunction
from dagad._kernels.context import are_directions_divided, current_mode
from dagad._kernels.job import is_executor
from dagad._kernels.kernel import Kernel
from dagad._remembered import Remembered
from dagad._sources.base import AnyShards
from dagad._sources.columns import Sliced, read_sliced
from dagad._sources.plan import AnyPlan, Plan, check_grainsize
from dagad._tracing.patches import patches
from dagad._tracing.tape import refuse_stale, reverse_depth
from dagad._types import AnyRows, AnyScheduler, Args, Function, Value
from dagad._values import pytree
from dagad._values.canonical import all_read_only, contiguous, snapshot, snapshots
from dagad._values.closures import closure_convert, unchanged, with_arrays
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
    scheduler: Scheduler
    policy: Policy
    owner: Any  # what stays the same when the function is defined again
    key: Hashable = None  # of what is remembered of the value, where that is of use
    was_number: bool | None = None  # whether the value was a number last time, as far as is known


MOST_REMEMBERED = 4096
_WAS_NUMBER: Remembered[bool] = Remembered(MOST_REMEMBERED)


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
    is_traced = patches.somebody_traces()
    if is_traced:  # then look for what is traced
        sliced, shared = pytree.all_opened(sliced), tuple([pytree.all_opened(argument) for argument in shared])
    parts, theta = _with_constants(f, shared, is_traced, mode.lasting)
    function = ChunkFunction(*parts, engine, mode.policy, are_directions_divided())
    columns, active_rows = read_sliced(sliced, len(theta))
    scheduler = _scheduler(options["scheduler"], columns)
    size = _grainsize(options["grainsize"], columns)
    leaves = [*theta, *active_rows]
    _check_leaves(leaves)
    if size is None:
        size = _automatic_grainsize(f, sliced, shared, kernel(function), columns, leaves, len(theta))
    plan = columns.shards[0].plan if columns.shards else Plan(columns.n_rows, size)
    policy = mode.policy() if options["policy"] is None else checked_policy(options["policy"])
    owner, key, was_number = identity_of(f), None, None
    # What is sent to another process is a copy.
    is_copied = scheduler.remote and not getattr(scheduler, "in_process", False)
    later = ALL if mode.lasting and not is_copied else NOTHING
    is_nested = False
    for leaf in leaves:
        is_nested = is_nested or type(leaf._value) in pytree.TRACED
    runs_again = is_checkpointed()  # which keeps values on disk, and no tapes
    if leaves and later is NOTHING and (is_nested or not is_copied or runs_again or options["policy"] is not None):
        asked: Any = kernel if isinstance(kernel, type) else kernel(function)  # not made where its class says all
        key = owner, plan.key, kernel if asked is kernel else asked.signature
        was_number = _WAS_NUMBER.find(key)
        later = _read_later(policy, leaves, is_nested, bool(was_number) and asked.is_reduction)
        later = ALL if runs_again and later.arguments else later
        if later.rows or (later.arguments and not is_copied):
            parts, _ = _with_constants(f, shared, is_traced, True)
            function = ChunkFunction(*parts, engine, mode.policy, are_directions_divided())
            # What arrives on workers that are threads of this process is a view that is taken for frozen.
            columns = columns.lasting_elsewhere() if scheduler.remote else columns.copied()
    if later.rows:
        columns = columns.lasting_elsewhere() if scheduler.remote else columns.lasting()
    return Arguments(function, plan, columns, leaves, len(theta), scheduler, policy, owner, key, was_number)


def _with_constants(
    f: Function, shared: Sequence[Any], is_traced: bool, is_kept: bool
) -> tuple[tuple[Any, int, tuple[Partition, ...]], list[Any]]:
    """Return what a function is made of, with its constants as they are now if these are kept, and theta's leaves."""
    f = with_arrays(f, snapshot if is_kept else contiguous)
    hoisted, make = closure_convert(f) if is_traced else ([], functools.partial(unchanged, f))
    taken = snapshots if is_kept else all_read_only
    theta, bare = list(hoisted), list[Partition]()
    for argument in shared:
        one = Partition.of(taken(argument), pytree.is_traced)
        theta += one.taken
        bare += [one.bare()]
    return (make, len(hoisted), tuple(bare)), theta


class Later(NamedTuple):
    """What a pullback reads after the call, when the user may have written into it."""

    arguments: bool  # as tapes do
    rows: bool  # cut once more, by a chunk that runs again


NOTHING, ALL = Later(False, False), Later(True, True)


def _read_later(policy: Policy, leaves: Sequence[Any], is_nested: bool, gives_number: bool) -> Later:
    """Return what is read after the call. A number's gradient is computed with its value, and reads nothing then."""
    is_at_once = gives_number and pulls_at_once(policy)
    if is_at_once and not is_nested:
        return NOTHING
    depth = max(map(reverse_depth, leaves))
    if not depth or (depth == 1 and is_at_once):
        return NOTHING
    return Later(True, is_nested or may_run_again(policy))


def is_as_expected(read: Arguments, total: Value) -> bool:
    """Return whether a reduction's arguments were bound for such a value, and remember whether it is a number.

    Functions that nothing tells apart may take turns. One that was taken to give a number, and does not, has kept
    nothing for its pullback: it has to be called again, while its arguments are what they were.
    """
    found = is_scalar(pytree.plain(total))
    if found is not read.was_number:
        _WAS_NUMBER.change(read.key, lambda before: found and before is not False)
    return found or not read.was_number


def _scheduler(scheduler: AnyScheduler, columns: Sliced) -> Scheduler:
    """Return where to run: where the Shards are, if there are any."""
    if scheduler is None and columns.shards:
        chosen: Scheduler = columns.shards[0].scheduler
    else:
        # An executor of the user's own runs jobs itself; anything else is what Dask calls a scheduler.
        chosen = scheduler if is_executor(scheduler) else find_scheduler(scheduler)
    for shards in columns.shards:
        if not shards.is_here:
            _refuse_elsewhere(shards, chosen)
    return chosen


def _refuse_elsewhere(shards: AnyShards, chosen: Any) -> None:
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
        with process_settings, patches:
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
