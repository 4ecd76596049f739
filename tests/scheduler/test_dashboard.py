"""The dashboard: do the page, its JSON and the metrics of a real scheduler say what is evaluated, by tasks or not?"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from dask.utils import key_split
from distributed import Client, LocalCluster, get_task_stream, performance_report, span
from distributed.dashboard.scheduler import template_variables

import dagad
from dagad.extend import Keep
from dagad_scheduler.residents.service import Known
from dagad_scheduler.watching.board import Board
from dagad_scheduler.watching.dashboard import SMOOTHED_OVER, View
from dagad_scheduler.watching.plugin import DagadPlugin
from support.clusters import a_cluster
from support.hot_loops import a_watched_cluster, heat_up
from support.waiting import PATIENCE, SOON, until

pytestmark = pytest.mark.whole("what is shown: pages, bars, certificates, examinations of clusters")

N = 8
X = np.random.default_rng(0).standard_normal((5 * N, 3))
THETA = np.array([0.3, -0.7, 1.1])


def log_likelihood(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))


def squared_error(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.dot(rows, theta) ** 2)


def unlucky(rows: Any, theta: Any) -> Any:
    raise LookupError("no <b>luck</b>")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with a_watched_cluster() as found:
        assert dagad.dashboard(found).endswith("/dagad")
        yield found


def base_of(client: Client) -> str:
    return str(client.dashboard_link).rpartition("/")[0]


def get(client: Client, path: str) -> str:
    with urllib.request.urlopen(base_of(client) + path, timeout=PATIENCE) as reply:
        return str(reply.read().decode())


def board(client: Client) -> dict[str, Any]:
    return dict(json.loads(get(client, "/dagad.json")))


def last_of(client: Client, function: str, road: str | None = None) -> dict[str, Any]:
    """Return the latest evaluation of a function, by a road if one is named: hot ones are reported a little later."""
    found = (
        one for one in board(client)["evaluations"] if one["function"] == function and road in (None, one["executor"])
    )
    return next(found, {"values": [0, 0], "gradients": [0, 0], "count": 0, "executor": "", "is_running": False})


def loss(client: Client, function: Any, data: Any = X, **options: Any) -> Callable[[Any], Any]:
    options = options if isinstance(data, dagad.Shards) else {"grainsize": 5, "scheduler": client} | options
    return lambda theta: dagad.reduce_sum(function, data, theta, **options)


def test_a_graph_fills_its_slots_and_two_models_are_distinguished(client: Client) -> None:
    before = board(client)
    dagad.value_and_grad(loss(client, log_likelihood))(THETA)
    dagad.evaluate(loss(client, squared_error, policy=Keep()), THETA).gradient(PATIENCE)
    until(lambda: last_of(client, "squared-error")["gradients"] == [N, N], SOON)
    for function in ("log-likelihood", "squared-error"):
        one = last_of(client, function, "graph")
        assert (one["executor"], one["values"], one["gradients"]) == ("graph", [N, N], [N, N])
        assert one["cells"] == N * "g"
    after = board(client)
    assert after["values"] - before["values"] == after["gradients"] - before["gradients"] == 2 * N
    names = client.run_on_scheduler(names_of_tasks)
    assert {"dagad-valuegrad-log-likelihood", "dagad-value-squared-error", "dagad-pullback-squared-error"} <= names
    assert not [name for name in names if "part" in name]


def test_spans_are_by_function_and_role_within_those_of_the_user(client: Client) -> None:
    evaluate = dagad.value_and_grad(loss(client, log_likelihood))
    for _ in range(2):
        evaluate(THETA)
    with span("fit", "first"):
        evaluate(THETA)
    found = client.run_on_scheduler(spans)
    assert found["dagad", "log-likelihood", "valuegrad"] == 1
    assert found["fit", "first", "log-likelihood", "valuegrad"] == 1


def spans(dask_scheduler: Any) -> dict[tuple[str, ...], int]:
    """Return the names of all spans, and how many there are of each."""
    return {name: len(some) for name, some in dask_scheduler.extensions["spans"].spans_search_by_name.items()}


def names_of_tasks(dask_scheduler: Any) -> set[str]:
    return set(dask_scheduler.task_prefixes)


def test_linearizations_are_seen_while_they_live(client: Client) -> None:
    _, pullback = dagad.vjp(loss(client, log_likelihood, policy=Keep()), THETA)
    held = board(client)["workers"]
    assert sum(one["linearizations"] for one in held.values()) == N
    assert all(one["linearization_bytes"] > 0 for one in held.values())
    assert last_of(client, "log-likelihood")["cells"] == N * "v"
    pullback(1.0)
    del pullback
    until(lambda: not any(one["linearizations"] for one in board(client)["workers"].values()), SOON)


def test_a_hot_loop_is_counted_shown_in_the_task_stream_and_reported(client: Client, tmp_path: Path) -> None:
    shards = dagad.shard(X, grainsize=5, scheduler=client)
    evaluate = dagad.value_and_grad(loss(client, log_likelihood, shards))
    heat_up(client, lambda: evaluate(THETA))
    before = last_of(client, "log-likelihood")["count"]
    with client.as_current(), get_task_stream() as stream, performance_report(tmp_path / "report.html"):
        for _ in range(40):
            evaluate(THETA)
        until(lambda: (evaluate(THETA), is_counted(client, before + 40))[1])
    one = last_of(client, "log-likelihood")
    assert (one["executor"], one["values"], one["gradients"]) == ("residents", [N, N], [N, N])
    assert one["seconds"] > 0.0
    records = [record for record in stream.data if key_split(record["key"]) == "dagad-valuegrad-log-likelihood"]
    assert len({record["worker"] for record in records}) == 2
    for record in records:
        (span,) = record["startstops"]
        assert 0.0 < span["stop"] - span["start"] < 10.0
        assert record["thread"]
    assert "dagad-valuegrad-log-likelihood" in (tmp_path / "report.html").read_text(encoding="utf-8")
    of_workers = board(client)["workers"]
    assert all(one["calls"] >= 40 and one["chunks"] == N // 2 * one["calls"] for one in of_workers.values())


def is_counted(client: Client, count: int) -> bool:
    one = last_of(client, "log-likelihood")
    return one["executor"] == "residents" and one["count"] >= count and has_calls(client)


def has_calls(client: Client) -> bool:
    return all(one["calls"] >= 40 for one in board(client)["workers"].values())


def test_workers_tell_little_and_nothing_when_nobody_wants_to_know() -> None:
    with a_watched_cluster() as client:
        tell_little(client, dagad.shard(X, grainsize=5, scheduler=client))


def tell_little(client: Client, shards: dagad.Shards) -> None:
    evaluate = dagad.value_and_grad(loss(client, log_likelihood, shards))
    heat_up(client, lambda: evaluate(THETA))
    for _ in range(50):
        evaluate(THETA)
    assert len(client.get_events("dagad")) == 0
    assert len(client.get_events("dagad-services")) == 2  # one a worker
    client.register_plugin(DagadPlugin())
    until(lambda: (evaluate(THETA), len(client.get_events("dagad")) >= 3)[1])


def test_the_dashboard_says_why_evaluations_fall_back(client: Client) -> None:
    shards = dagad.shard(X, grainsize=5, scheduler=client)
    evaluate = dagad.value_and_grad(loss(client, log_likelihood, shards))
    heat_up(client, lambda: evaluate(THETA))
    client.run(forget_rows)
    evaluate(THETA)
    until(lambda: (evaluate(THETA), any("missing" in one["reason"] for one in board(client)["fallbacks"]))[1])
    assert board(client)["fell_back"] >= 1
    heat_up(client, lambda: evaluate(THETA))


def forget_rows(dask_worker: Any) -> None:
    service = dask_worker.plugins["dagad-resident"].service
    for known in service._programs.values():
        known.keys = {chunk: [("gone", 0)] for chunk in known.keys}


def test_the_dashboard_shows_errors_with_function_and_worker(client: Client) -> None:
    with pytest.raises(LookupError):
        dagad.grad(loss(client, unlucky))(THETA)
    errors = board(client)["errors"]
    assert errors[0]["function"] == "unlucky"
    assert "LookupError" in errors[0]["error"]
    assert errors[0]["worker"].startswith("tcp://")
    assert board(client)["failed"] >= 1


class Raises:
    """A program that raises."""

    def is_current(self) -> bool:
        raise RuntimeError("as it was to be")


async def failures_told_of(dask_worker: Any) -> list[int]:
    """Return how many failures a worker tells of when nobody waits for a call that fails, and when somebody does."""
    service, message = dask_worker.plugins["dagad-resident"].service, {"token": "raises", "number": "1"}
    service._programs["raises"] = Known(Raises(), {}, [], 0.0)  # type: ignore[arg-type]  # it does no more than raise
    found = []
    for is_over in (True, False):
        before = len(service.reports._failures)
        reply = await service.call(message, lambda is_over=is_over: is_over)
        assert reply["status"] == "failed"
        found.append(len(service.reports._failures) - before)
    del service._programs["raises"]
    return found


def test_a_call_that_was_given_up_has_not_failed(client: Client) -> None:
    gradient = dagad.grad(loss(client, log_likelihood, dagad.shard(X, scheduler=client)))
    heat_up(client, lambda: gradient(THETA))  # there are desks
    assert list(client.run(failures_told_of).values()) == [[0, 1]] * 2


def test_the_page_of_the_dashboard_is_served_linked_and_listed(client: Client) -> None:
    page = get(client, "/dagad")
    assert "data-root-id" in page
    assert "cdn.bokeh.org" not in page  # its scripts come from here
    for script in re.findall(r'src="(static/js/[^"]+)"', page):
        assert len(get(client, f"/{script}")) > 1000
    assert 'href="dagad"' in get(client, "/status")
    assert "/individual-dagad" in json.loads(get(client, "/individual-plots.json")).values()
    assert "/individual-progress" in json.loads(get(client, "/individual-plots.json")).values()
    assert "Dask: dagad" in get(client, "/individual-dagad")


def test_metrics_are_beside_those_of_dask(client: Client) -> None:
    dagad.value_and_grad(loss(client, log_likelihood))(THETA)
    metrics = dict(re.findall(r"^(dask_\w+(?:\{[^}]*\})?) ([0-9.e+-]+)$", get(client, "/metrics"), flags=re.MULTILINE))
    assert float(metrics['dask_dagad_evaluations_total{executor="graph"}']) >= 1
    assert float(metrics["dask_dagad_values_total"]) >= N
    assert float(metrics['dask_dagad_evaluation_seconds_total{executor="graph"}']) > 0
    assert "dask_scheduler_clients" in metrics


def test_the_dashboard_is_registered_once_and_leaves_on_request() -> None:
    with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster, Client(cluster) as client:
        scheduler: Any = cluster.scheduler
        for _ in range(2):
            dagad.dashboard(client)
        assert template_variables(scheduler)["pages"].count("dagad") == 1
        plugin = scheduler.plugins["dagad"]
        client.sync(plugin.close)
        client.unregister_scheduler_plugin("dagad")
        assert "dagad" not in template_variables(scheduler)["pages"]
        for path in ("/dagad", "/dagad.json"):
            with pytest.raises(urllib.error.HTTPError, match="404") as caught:
                get(client, path)
            caught.value.close()
        assert 'href="dagad"' not in get(client, "/status")
        dagad.dashboard(client)
        assert board(client)["evaluations"] == []


def test_a_missing_cluster_dashboard_or_dagad_is_refused_with_its_own_remedy(
    cluster: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(dagad.PlanError, match=r"`client = distributed.Client\(\)`"):
        dagad.dashboard("threads")
    monkeypatch.setattr(Client, "register_plugin", lambda *args: None)
    monkeypatch.setattr(Client, "dashboard_link", None)
    with pytest.raises(dagad.PlanError, match="--dashboard-address :8787"):
        dagad.dashboard(cluster)
    monkeypatch.setattr(Client, "register_plugin", no_dagad)
    with pytest.raises(dagad.PortabilityError, match="Start it in an environment in which dagad is installed"):
        dagad.dashboard(cluster)


def no_dagad(*args: Any) -> None:
    raise ModuleNotFoundError("No module named 'dagad_scheduler'")


def test_the_dashboard_escapes_names_of_users_and_wraps_a_long_strip() -> None:
    plugin = DagadPlugin()
    plugin.snapshot = plugin.board.snapshot  # type: ignore[method-assign]  # there is no scheduler
    view = View(lambda: plugin)
    view.update()
    assert "No evaluation so far" in str(view.root.children[2].text)
    loops = [["<b>f</b>", "value", 3, 0.3, 0.2, 250, 0]]
    plugin.board.take({"client": "c", "loops": loops, "fallbacks": [["<script>", 1]]})
    view.update()
    cards, _, title, strip, tables = view.root.children
    for part in (title, tables):
        assert "&lt;b&gt;f" in part.text
        assert "<b>f" not in part.text
    assert "&lt;script&gt;" in tables.text
    assert "100 ms" in tables.text
    assert (strip.x_range.end, strip.y_range.start, strip.visible) == (100, 3, True)
    assert ">3</b><span>evaluations<" in cards.text


def test_the_axis_of_latencies_has_few_ticks_over_many_decades() -> None:
    plugin, now = DagadPlugin(), [100.0]
    plugin.board = Board(clock=lambda: now[0])
    plugin.snapshot = plugin.board.snapshot  # type: ignore[method-assign]  # there is no scheduler
    view = View(lambda: plugin)
    for seconds in (1e-3, 1e-2, 0.3, 5.0, 70.0):
        for _ in range(2 * SMOOTHED_OVER):  # so that there are means of these alone
            plugin.board.take({"client": "c", "loops": [["f", "value", 1, seconds, seconds, 4, 0]]})
            now[0] += 1.0
            plugin.board.tick()
    view.update()
    (axis,) = view.root.children[1].children[1].yaxis
    assert axis.ticker.ticks == [1.0, 100.0, 10_000.0]


# Started with the scheduler


@pytest.mark.parametrize("way", ["option", "config"])
def test_a_scheduler_started_with_the_preload_shows_the_dashboard(way: str, tmp_path: Path) -> None:
    module, file = "dagad_scheduler.preload", tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "dask", "scheduler", "--port", "0", "--dashboard-address", ":0"]
    command += ["--host", "127.0.0.1", "--scheduler-file", str(file)]
    environment = dict(os.environ)
    if way == "option":
        command += ["--preload", module]
    else:
        environment["DASK_DISTRIBUTED__SCHEDULER__PRELOAD"] = json.dumps([module])
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        until(file.exists)
        until(lambda: file.read_text(encoding="utf-8").endswith("}"), SOON)
        with Client(scheduler_file=str(file), set_as_default=False) as client:
            assert board(client)["evaluations"] == []
            assert "data-root-id" in get(client, "/dagad")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)


def test_a_worker_started_with_the_preload_answers_hot_calls_at_once() -> None:
    with a_cluster(1, preload=["dagad_scheduler.preload"]) as client:
        assert all(client.run(has_desk).values())


def has_desk(dask_worker: Any) -> bool:
    return "dagad-resident" in dask_worker.plugins
