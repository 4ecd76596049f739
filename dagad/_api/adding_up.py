"""A look at whether a chunk function adds up, at its first evaluation on rows of a kind: said in a warning if not.

State: `_SEEN`, the functions that were looked at, each with what the rows looked like.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dagad._executors.choose import INLINE, PROCESSES, executor_on
from dagad._executors.evaluation import Scheduler, is_inside_any_task
from dagad._graphs.monoids import PLAIN
from dagad._kernels.additivity import MOST_ROWS, Halves
from dagad._kernels.context import VALUE_AND_GRAD, Mode, recorded
from dagad._kernels.inputs import Inputs
from dagad._kernels.operation import Operation
from dagad._remembered import Remembered
from dagad._sources.plan import GivenPlan
from dagad._tracebacks import warn
from dagad._values import pytree
from dagad._values.canonical import read_only

MOST_REMEMBERED = 4096
SHORT = 1.0  # seconds: no row of an evaluation that took no longer needs to be timed
_SEEN: Remembered[bool] = Remembered(MOST_REMEMBERED)


def warn_unless_sum(operation: Operation, scheduler: Scheduler, leaves: Sequence[Any], began: float) -> None:
    """Run a function again on a few rows, at once and in halves, after its first evaluation on rows of this kind."""
    key = operation.owner, operation.sliced.row_kinds()
    if operation.plan.n_rows < 2 or _SEEN.find(key) or is_inside_any_task():
        return
    seconds = time.perf_counter() - began
    _SEEN.change(key, lambda _: True)
    if seconds > SHORT and len(operation.plan) < 2:  # a call takes perhaps as long for one row as for all
        return
    try:
        why = str(_look(operation, scheduler, [read_only(pytree.plain(leaf)) for leaf in leaves], seconds > SHORT))
    except Exception:  # the user's, of a run that only looks
        return
    if why:
        warn(why)


def _look(operation: Operation, scheduler: Scheduler, leaves: list[Any], is_long: bool) -> Any:
    shards, n_theta = operation.sliced.shards, operation.inputs.shared[0]
    stop = operation.plan.chunk(0).stop if shards else min(operation.plan.n_rows, MOST_ROWS)
    plan = GivenPlan((0, stop))
    inputs = Inputs.of(plan, operation.sliced, n_theta, len(leaves) - n_theta)
    # Where the function was to run, as it may not be able to run here; but no processes are started for it. It is not
    # the operation's executor, which may write down what it runs.
    elsewhere = scheduler.remote and scheduler.name != PROCESSES
    look = replace(
        operation,
        kernel=Halves(operation.kernel.function, is_long),
        plan=plan,
        inputs=inputs,
        monoid=PLAIN,
        executor=executor_on(scheduler) if elsewhere else INLINE,
    )
    with Mode(VALUE_AND_GRAD), recorded(None):
        return look.call(leaves).reduced
