"""Tracebacks and logs: are a user's own lines shown, dagad's left out, and nothing said twice?"""

from __future__ import annotations

import functools
import logging
import re
import subprocess
import sys
import threading
from typing import Any

import autograd.numpy as anp
import dask
import numpy as np
import pytest
from dask.delayed import delayed
from distributed import Client

import dagad
from support.first_hour import (
    MOST_LINES,
    THETA,
    A,
    Y,
    _as_users_see_it as _as_users_see_it,
    cut,
    grad,
    misses,
    scaled,
    told,
)
from support.hot_loops import a_watched_cluster, heat_up
from support.waiting import PATIENCE

SCRIPT = """
import numpy as np
import dagad

def chunk(rows, theta):
    raise ValueError("bad row")

def loss(theta):
    return dagad.reduce_sum(chunk, np.arange(6.0), theta, grainsize=2, scheduler={scheduler!r})

{program}
"""
PROGRAMS = {
    "grad": "dagad.grad(loss)(1.0)",
    "value": "loss(1.0)",
    "hessian": "dagad.hessian(loss)(1.0)",
    "jvp": "dagad.jvp(loss, 1.0, 1.0)",
    "evaluate": "dagad.evaluate(loss, 1.0).gradient()",
    "await": "import asyncio\nasync def main():\n    await dagad.evaluate(loss, 1.0)\nasyncio.run(main())",
    "grainsize": "dagad.reduce_sum(chunk, np.arange(6.0), 1.0, grainsize=0)",
}


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
@pytest.mark.parametrize(("program", "scheduler"), [("grad", "sync"), ("hessian", "threads"), ("value", "threads")])
def test_the_traceback_of_a_script_shows_its_own_lines_and_none_of_dagads(program: str, scheduler: str) -> None:
    code = SCRIPT.format(scheduler=scheduler, program=PROGRAMS[program])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    above = next(at for at, text in enumerate(lines) if text.startswith("ValueError: bad row"))
    assert above <= MOST_LINES, done.stderr
    assert "in chunk" in done.stderr
    assert "dagad/_" not in done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_traceback_of_every_mode_shows_the_users_lines_and_none_of_dagads(program: str) -> None:
    code = SCRIPT.format(scheduler="threads", program=PROGRAMS[program])
    _, text, _ = told(lambda: exec(compile(code, "<program>", "exec"), {"__name__": "__main__"}))
    assert "dagad/_" not in text
    assert ("in chunk" in text) == (program != "grainsize")


def test_a_traceback_shows_all_frames_on_request() -> None:
    with dask.config.set({"dagad.full-tracebacks": True}):
        _, text, _ = told(lambda: grad(misses, Y, 1.0))
    assert "dagad/_executors" in text


def test_a_fault_inside_dagad_has_its_whole_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagad._api.reductions.sum_by_length", None)
    _, text, _ = told(lambda: cut(scaled, Y, 1.0))
    assert "dagad/_api/reductions.py" in text


def test_an_evaluation_that_fails_is_not_logged_chunk_by_chunk(cluster: Client) -> None:
    before = str(cluster.get_worker_logs()).count("Compute Failed")
    with pytest.raises(LookupError):
        dagad.reduce_sum(misses, np.arange(40.0), 1.0, grainsize=1, scheduler=cluster)
    assert str(cluster.get_worker_logs()).count("Compute Failed") == before
    with pytest.raises(ZeroDivisionError):
        cluster.submit(lambda: 1 / 0).result()
    assert str(cluster.get_worker_logs()).count("Compute Failed") == before + 1  # what is not ours is logged as ever


def refuses(rows: Any, theta: Any) -> Any:
    if theta[0] > 1.0:
        raise LookupError("as the user wrote it")
    return anp.sum(rows * theta)


def failures(client: Client, road: str) -> list[str]:
    """Have some evaluations fail in all their chunks; return how each is called in keys."""
    x, options = np.arange(20.0), dict[str, Any]() if road == "hot" else {"grainsize": 1, "scheduler": client}
    rows: Any = dagad.shard(x, grainsize=1, scheduler=client) if road == "hot" else x
    loss = dagad.value_and_grad(lambda theta: dagad.reduce_sum(refuses, rows, theta, **options))
    if road == "hot":
        heat_up(client, lambda: loss(THETA))
    tokens = []
    for _ in range(3):
        with pytest.raises(LookupError, match="as the user wrote it") as caught:
            loss(2.0 * THETA)
        tokens += re.findall(r"dagad: value of chunk .*key \('([^']+)'", caught.value.__notes__[0])
    return tokens


@pytest.mark.whole("what is shown: pages, bars, certificates, examinations of clusters")
def test_a_failed_evaluation_is_a_line_in_a_workers_log_and_nowhere_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One each: workers don't hear of each other's failures, and a message about them would cost more than a line."""
    with a_watched_cluster() as client:
        tokens = [*failures(client, "graph"), *failures(client, "hot")]
        logs = ["\n".join(map(str, lines)) for lines in client.get_worker_logs().values()]
        assert len(tokens) == 6
        assert all(max(log.count(token) for log in logs) == 1 for token in tokens)
        assert max(log.count("as the user wrote it") for log in logs) <= 6
        said = str([client.get_scheduler_logs(), *capfd.readouterr()])
        assert "as the user wrote it" not in said
        assert "Compute Failed" not in str(logs) + said


def test_a_worker_logs_one_line_of_an_evaluation(caplog: pytest.LogCaptureFixture) -> None:
    from dagad_scheduler.failures import log_one_line

    logger = logging.getLogger("tests.worker")
    log_one_line(logger)
    log_one_line(logger)
    assert len(logger.filters) == 1
    with caplog.at_level(logging.INFO, "tests.worker"):
        for token in ("one", "other"):
            for number in range(3):
                key = (f"dagad-value-{token}", number)
                logger.error("Compute Failed\nKey: %s\n%s %s %r %r", key, "executing", "task", "ValueError('no')", "tb")
        logger.error(
            "Compute Failed\nKey: %s\n%s %s %r %r", ("sum-1", 0), "executing", "task", "ValueError('no')", "tb"
        )
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.INFO, logging.ERROR]
    assert "('dagad-value-one', 0) failed: ValueError('no')" in caplog.text


@pytest.mark.parametrize("mode", ["gradient", "jvp"])
def test_a_task_of_a_graph_that_fails_shows_its_line(mode: str) -> None:
    failing = delayed(misses)(A, 1.0)
    graph = dagad.gradient(failing, A) if mode == "gradient" else dagad.jvp(failing, A, 1.0)[1]
    error, text, _ = told(lambda: graph.compute(scheduler="threads"))
    assert type(error) is LookupError
    assert "in misses" in text
    assert "dagad/_" not in text
    assert f"while task '{failing.key}'" in text


def test_an_evaluation_that_is_late_raises_an_error_that_names_what_is_missing() -> None:
    done = threading.Event()
    evaluation = dagad.evaluate(lambda x: (done.wait(PATIENCE), x)[1], 1.0)
    for what in ("value", "gradient"):
        error, text, _ = told(functools.partial(getattr(evaluation, what), timeout=0.0))
        assert type(error) is dagad.TimedOutError
        assert isinstance(error, TimeoutError)
        assert f"The {what} was not there after 0.0 seconds. The evaluation goes on" in text
    done.set()
    assert evaluation.gradient() == 1.0
