"""Where and when to run a graph: keys and roles, and schedulers that run values first. Knows no derivatives."""

from __future__ import annotations

from dagad_scheduler._resolve import resolve as resolve
from dagad_scheduler._roles import Names as Names, Role as Role, role_of as role_of
from dagad_scheduler._run import Progress as Progress, Run as Run, Scheduler as Scheduler
from dagad_scheduler._sync import Sync as Sync
from dagad_scheduler._threads import Threads as Threads


def get(dsk, keys, **kwargs):  # type: ignore[no-untyped-def]  # Dask's protocol has no types
    """Compute `keys` of a Dask graph in threads, values first: ``dask.compute(..., scheduler=dagad_scheduler.get)``.

    Parameters
    ----------
    dsk
        A Dask graph.
    keys
        A key, or nested lists of keys.
    **kwargs
        ``num_workers`` and ``pool``, as for ``dask.threaded.get``; anything else is ignored, as Dask does.

    Returns
    -------
    object
        The result of the key, or nested tuples of results.
    """
    return Threads(kwargs.get("num_workers"), kwargs.get("pool")).get(dsk, keys)
