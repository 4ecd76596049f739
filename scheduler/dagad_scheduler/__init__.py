"""Where and when to run a graph: keys and roles, and schedulers that run values first. Knows no derivatives."""

from __future__ import annotations

from dagad_scheduler.roles import Names as Names, Role as Role, role_of as role_of
from dagad_scheduler.run import (
    Account as Account,
    Progress as Progress,
    ResultsLost as ResultsLost,
    Run as Run,
    Scheduler as Scheduler,
    SchedulerLost as SchedulerLost,
    WorkersLost as WorkersLost,
    WorkersUnfit as WorkersUnfit,
    task_depth as task_depth,
)
from dagad_scheduler.running.resolve import resolve as resolve
from dagad_scheduler.running.threads import Sync as Sync, Threads as Threads, get as get

__all__ = [
    "Account",
    "Names",
    "Progress",
    "ResultsLost",
    "Role",
    "Run",
    "Scheduler",
    "SchedulerLost",
    "Sync",
    "Threads",
    "WorkersLost",
    "WorkersUnfit",
    "get",
    "resolve",
    "role_of",
    "task_depth",
]
