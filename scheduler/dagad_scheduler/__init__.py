"""Where and when to run a graph: keys and roles, and schedulers that run values first. Knows no derivatives."""

from __future__ import annotations

from dagad_scheduler._local import LocalRun as LocalRun
from dagad_scheduler._resolve import resolve as resolve
from dagad_scheduler._roles import Names as Names, Role as Role, role_of as role_of
from dagad_scheduler._run import (
    Progress as Progress,
    ResultsLost as ResultsLost,
    Run as Run,
    Scheduler as Scheduler,
    SchedulerLost as SchedulerLost,
    WorkersLost as WorkersLost,
    WorkersUnfit as WorkersUnfit,
)
from dagad_scheduler._sync import Sync as Sync
from dagad_scheduler._threads import Threads as Threads, get as get
