"""The page on Dask's dashboard that shows evaluations: how it is switched on."""

from __future__ import annotations

from dagad._errors import PlanError, PortabilityError
from dagad._executors.evaluation import find_scheduler
from dagad._tracebacks import public
from dagad._types import AnyScheduler


@public
def dashboard(scheduler: AnyScheduler = None) -> str:
    """Have a cluster show evaluations on its Dask dashboard, and return the address of that page.

    It shows how many evaluations there are per second and how long they take, which chunks have their value and their
    gradient, what workers hold for gradients, what was computed again and why, and the last errors. The same is at
    ``/dagad.json`` for machines, and among Dask's metrics for Prometheus. The work of hot loops then is in Dask's task
    stream too, a sample of it. `dask scheduler --preload dagad_scheduler.preload` has it from the start.

    Parameters
    ----------
    scheduler
        A ``distributed.Client``; by default the one that is active.

    Returns
    -------
    str
        The address of the page.

    Raises
    ------
    PlanError
        If there is no cluster, or its scheduler has no dashboard.
    PortabilityError
        If the scheduler can't import dagad.

    Examples
    --------
    >>> from distributed import Client
    >>> import dagad
    >>> with Client(processes=False, dashboard_address=":0") as client:
    ...     dagad.dashboard().endswith("/dagad")
    True
    """
    found = find_scheduler(scheduler)
    show = getattr(found, "dashboard", None)
    if show is None:
        raise PlanError(
            f"`dagad.dashboard` shows what a cluster does, and `{found.name}` is none. Start one, `client = "
            "distributed.Client()`, and call it again."
        )
    try:
        link: str | None = show()
    except ImportError as error:
        raise PortabilityError(
            f"The scheduler can't import dagad ({error}). Start it in an environment in which dagad is installed."
        ) from error
    if link is None:
        raise PlanError(
            "The scheduler has no dashboard. Install bokeh where it runs, and start it with a dashboard: "
            '`distributed.Client(dashboard_address=":8787")`, `dask scheduler --dashboard-address :8787`.'
        )
    return link
