"""Where a scheduler shows its board over HTTP: pages on Dask's own dashboard, JSON, and metrics beside Dask's.

All of it is served by the server that the scheduler has anyway, for as long as its plugin is there.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import dask

from dagad_scheduler._types import Server
from dagad_scheduler.watching.evaluations import NAME

PAGE, PLOT, JSON = "/dagad", "/individual-dagad", "/dagad.json"


class Pages:
    """What is served for one scheduler; `plugin` says what is shown."""

    def __init__(self, scheduler: Server, plugin: object) -> None:
        self._ends: list[Callable[[], Any]] = []
        application = getattr(scheduler, "http_application", None)
        if application is None:
            return
        prefix = self._serve_pages(application, scheduler) if importlib.util.find_spec("bokeh") is not None else ""
        application.add_handlers(r".*$", [(prefix + JSON, _json_handler(), {"dask_server": scheduler})])
        if importlib.util.find_spec("prometheus_client") is not None:
            self._serve_metrics(plugin)

    async def close(self) -> None:
        """Serve nothing any more; what can't be taken back says that there is nothing."""
        while self._ends:
            ended = self._ends.pop()()
            if inspect.isawaitable(ended):
                await ended

    def _serve_pages(self, application: Any, scheduler: object) -> str:
        """Serve our pages beside Dask's, with links on these; return the path under which they are."""
        from dagad_scheduler.private_dashboard import template_variables
        from dagad_scheduler.watching import dashboard

        dasks = dashboard.bokeh_application_of(application)
        if dasks is None:  # started without a dashboard
            return ""
        variables, link = template_variables(scheduler), {"url": PLOT.strip("/"), "name": "Dagad"}
        ours = dashboard.serve({PAGE: dashboard.page, PLOT: dashboard.plot}, dasks, scheduler, variables)
        # Before Dask's: the list of plots, `/individual-plots.json`, is made of the first one.
        application.applications.insert(0, ours)
        variables["pages"].insert(-1, NAME)
        variables["plots"].append(link)
        stop: Any = getattr(ours, "stop_async", ours.stop)  # from bokeh 3.10 on: its `stop` would wait for this loop
        self._ends += [
            stop,
            lambda: application.applications.remove(ours),
            lambda: variables["pages"].remove(NAME),
            lambda: variables["plots"].remove(link),
        ]
        return str(dasks.prefix)

    def _serve_metrics(self, plugin: Any) -> None:
        from prometheus_client import REGISTRY

        metrics = Metrics(plugin.snapshot)
        try:
            REGISTRY.register(metrics)
        except ValueError:  # there is another scheduler in this process, and one page for all that is in it
            return
        self._ends.append(lambda: REGISTRY.unregister(metrics))


def _json_handler() -> Any:
    from dagad_scheduler.private_distributed import RequestHandler

    class Snapshot(RequestHandler):
        def get(self) -> None:
            plugin = self.server.plugins.get(NAME)
            if plugin is None:
                self.send_error(404)
            else:
                self.write(plugin.snapshot())

    return Snapshot


class Metrics:
    """What Prometheus gets of a board, as its library wants it."""

    def __init__(self, snapshot: Callable[[], dict[str, Any]]) -> None:
        self._snapshot = snapshot
        self._prefix = "_".join(filter(None, (dask.config.get("distributed.dashboard.prometheus.namespace"), NAME)))

    def collect(self) -> Iterator[Any]:
        """Yield all metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        found = self._snapshot()
        evaluations = CounterMetricFamily(
            f"{self._prefix}_evaluations", "Evaluations that have a result", labels=["executor"]
        )
        seconds = CounterMetricFamily(
            f"{self._prefix}_evaluation_seconds", "Their latency, summed", labels=["executor"]
        )
        for executor, of_executor in found["executors"].items():
            evaluations.add_metric([executor], of_executor["evaluations"])
            seconds.add_metric([executor], of_executor["seconds"])
        yield from (evaluations, seconds)
        for name, meaning in _COUNTERS.items():
            yield CounterMetricFamily(f"{self._prefix}_{name}", meaning, value=found[name])
        running = sum(one["is_running"] for one in found["evaluations"])
        yield GaugeMetricFamily(f"{self._prefix}_running", "Evaluations and hot loops under way", value=running)
        for name, meaning in _GAUGES.items():
            gauge = GaugeMetricFamily(f"{self._prefix}_{name}", meaning, labels=["worker"])
            for address, of_worker in found["workers"].items():
                gauge.add_metric([address], of_worker[name])
            yield gauge


_COUNTERS = {
    "values": "Chunks whose value was computed",
    "gradients": "Chunks whose gradient was computed",
    "recomputed": "Chunks that were computed or recorded again",
    "failed": "Chunks that raised something",
    "fell_back": "Evaluations that took the graph since residents could not",
}
_GAUGES = {
    "linearizations": "Linearizations that a worker holds",
    "linearization_bytes": "The memory that they take",
}
