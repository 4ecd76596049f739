"""Progress: is what is shown what happens, in terminals, notebooks and files, on every scheduler, and left tidy?"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import io
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import autograd.numpy as anp
import dask
import numpy as np
import pytest
from distributed import Client
from scipy import optimize

import dagad
from dagad._executors.profile import Profile
from dagad._watching import screens, watching
from dagad._watching.display import MOST_SAID, Bar, Looked
from support.terminals import run_in_terminal
from support.waiting import until

WAIT = 60
X, THETA = np.random.default_rng(0).standard_normal((40, 3)), np.array([0.3, -0.7, 1.1])


def chunk(rows: Any, theta: Any) -> Any:
    return np.sum(np.tanh(rows @ theta))


def loss(theta: Any) -> Any:
    return dagad.reduce_sum(chunk, X, theta, grainsize=5, scheduler="sync")


def square(x: Any) -> Any:
    return anp.sum(x**2)


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


# A terminal

SLOW = """
import sys, threading, time
import numpy as np
from distributed import Client
import dagad

def chunk(rows, theta):
    time.sleep(0.05)
    return np.sum(rows) * theta

def loss(theta):
    return dagad.reduce_sum(chunk, np.arange(24.0), theta, grainsize=1, scheduler=scheduler)

if __name__ == "__main__":
    scheduler = Client(sys.argv[1], set_as_default=False) if "://" in sys.argv[1] else sys.argv[1]
"""

BLOCK = """
    with dagad.progress() as seen:
        for theta in (1.0, 2.0):
            dagad.value_and_grad(loss)(theta)
            print("the program's own line", theta)
    assert not [one.name for one in threading.enumerate() if one.name == "dagad-progress"]
    print(seen.count, "seen")
"""


@pytest.mark.whole("what is shown: pages, bars, certificates, examinations of clusters")
@pytest.mark.parametrize("where", ["threads", "sync", "cluster"])
def test_progress_in_a_terminal_has_bars_while_it_lasts_and_lines_at_the_end(where: str, cluster: Client) -> None:
    address = str(cluster.scheduler_info()["address"]) if where == "cluster" else where
    seen = run_in_terminal(SLOW + BLOCK, address)
    assert seen.returned == 0, seen.last
    assert not seen.is_cursor_hidden
    shown = re.compile(r"#[12] (values|gradients) +[━─]+ (\d+)/24( [\d.]+/s)?( .* left)?$", re.MULTILINE)
    bars = [(found[1], int(found[2]), bool(found[4])) for frame in seen.frames for found in shown.finditer(frame)]
    under_way = [done for name, done, _ in bars if name == "values" and 0 < done < 24]
    assert under_way, seen.frames  # a cluster's scheduler is asked twice a second
    assert all(left for _, done, left in bars if 0 < done < 24)
    assert [found[:2] for found in shown.findall(seen.last)] == [("values", "24"), ("gradients", "24")]
    executor = {"sync": "inline", "threads": "threads"}.get(where, "graph")
    first, second = (
        re.search(rf"^ +{number}  loss +{value} +276 +[\d.]+ m?s  {executor}$", seen.last, re.MULTILINE)
        for number, value in ((1, 276), (2, 552))
    )
    assert first, seen.last
    assert second, seen.last
    assert seen.last.count("the program's own line") == 2
    assert "2 evaluations" in seen.last
    assert seen.last.endswith("2 seen")


INTERRUPTED = """
    import os, signal
    drawn, told = threading.Event(), threading.Event()

    class Shown:
        def write(self, text):
            if "─" in text:
                drawn.set()
            return sys.__stderr__.write(text)

        def __getattr__(self, name):
            return getattr(sys.__stderr__, name)

    def handle(*args):
        told.set()
        raise KeyboardInterrupt

    def stopped(rows, theta):
        if rows[0] == 12:  # when the bars are there, and before this evaluation can end
            drawn.wait(60)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            told.wait(60)
        return chunk(rows, theta)

    signal.signal(signal.SIGINT, handle)
    try:
        with dagad.progress(file=Shown()):
            dagad.grad(lambda t: dagad.reduce_sum(stopped, np.arange(24.0), t, grainsize=1, scheduler=scheduler))(1.0)
    except KeyboardInterrupt:
        threads = [one.name for one in threading.enumerate() if one.name == "dagad-progress"]
        print("interrupted", threads)
"""


@pytest.mark.whole("what is shown: pages, bars, certificates, examinations of clusters")
def test_an_interrupt_leaves_the_terminal_as_it_was() -> None:
    seen = run_in_terminal(SLOW + INTERRUPTED, "threads")
    assert seen.returned == 0, seen.last
    assert not seen.is_cursor_hidden
    assert seen.last.endswith("interrupted []")
    assert "KeyboardInterrupt" in seen.last, ascii(seen.last)
    assert "1 failed" in seen.last, ascii(seen.last)
    bars = re.findall(r"#1 \w+ +[━─]+ (\d+)/24", seen.last)
    assert bars, ascii(seen.last)
    assert all(0 < int(done) < 24 for done in bars)


@pytest.mark.whole("what is shown: pages, bars, certificates, examinations of clusters")
def test_the_progress_setting_shows_evaluations_without_a_block() -> None:
    script = """
    for theta in (1.0, 2.0):
        dagad.value_and_grad(loss)(theta)
    for one in threading.enumerate():
        if one.name == "dagad-progress":
            one.join()  # it goes when nothing runs any more
    print("over")
    dagad.value_and_grad(loss)(3.0)
"""
    seen = run_in_terminal(SLOW + script, "threads", env={"DASK_DAGAD__PROGRESS": "true"})
    assert seen.returned == 0, seen.last
    assert not seen.is_cursor_hidden
    assert re.search(r"^ +2  loss .*\n(.*\n)+over\n +3  loss ", seen.last, re.MULTILINE), seen.last
    assert any("#3 values" in frame and "─" in frame for frame in seen.frames)


def test_one_of_two_displays_has_the_terminal() -> None:
    outer, inner = Tty(), Tty()

    def has_it(theta: Any) -> Any:
        until(lambda: screens._TERMINAL.locked(), WAIT)
        return loss(theta)

    with dagad.progress(file=outer, every=0) as seen:
        dagad.grad(has_it)(THETA)
        with dagad.progress(file=inner, every=0) as also:
            loss(THETA)
    assert (seen.count, also.count) == (2, 1)
    assert "has_it" in outer.getvalue()
    assert inner.getvalue() == ""
    with dagad.progress(file=inner):
        loss(THETA)
    assert "chunk" in inner.getvalue()


def test_progress_in_a_terminal_without_rich_is_a_line_that_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    out = Tty()
    with dagad.progress(file=out):
        dagad.value_and_grad(loss)(THETA)
    *lines, last, end = re.split(r"[\r\n]+", out.getvalue())
    assert lines[-1].split()[:2] == ["1", "loss"]
    assert re.match(r"#1 values: 8/8 [\d.,]+/s, #1 gradients: 8/8 .*, 1 evaluation, ", last)
    assert end == ""


def test_an_evaluation_survives_a_terminal_that_goes_away() -> None:
    class Gone(Tty):
        def write(self, text: str) -> int:
            raise BrokenPipeError("gone")

    with dagad.progress(file=Gone()) as seen:
        expected = dagad.grad(loss)(THETA)
    assert seen.count == 1
    assert np.array_equal(dagad.grad(loss)(THETA), expected)
    out = Tty()
    with dagad.progress(file=out):  # the terminal is free
        loss(THETA)
    assert out.getvalue()


# A file


def test_a_progress_display_prints_nothing_where_nobody_looks(capfd: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    with dagad.progress() as seen, dagad.progress(file=out), dagad.progress(show=False, file=Tty()):
        loss(THETA)
        assert not [one for one in threading.enumerate() if one.name == "dagad-progress"]
    assert capfd.readouterr() == ("", "")
    assert out.getvalue() == ""
    assert seen.count == 1


@contextlib.contextmanager
def printed(**options: Any) -> Iterator[list[list[str]]]:
    """Give the lines that a display prints, each as its words, at the end of the block."""
    out = io.StringIO()
    lines: list[list[str]] = []
    with dagad.progress(show=True, file=out, **options):
        yield lines
    lines += [line.split() for line in out.getvalue().splitlines()]


def test_every_evaluation_has_a_line_of_progress_if_asked() -> None:
    with printed(every=0) as found:
        for number in range(300):
            dagad.value_and_grad(square)(np.array([3.0, float(number)]))
    head, *lines, status = found
    assert head[0] == "#"
    assert [int(line[0]) for line in lines] == list(range(1, 301))
    assert lines[4][1:4] == ["square", "25", "10"]
    assert status[:2] == ["300", "evaluations,"]


def test_a_hot_loop_has_few_lines_the_last_one_among_them() -> None:
    began = time.monotonic()
    with printed(every=0.5) as found:
        for _ in range(3000):
            dagad.value_and_grad(square)(np.ones(3))
    numbers = [int(line[0].replace(",", "")) for line in found[1:-1]]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 3000
    assert len(numbers) <= 10 + 2 * (time.monotonic() - began) + 2


def test_a_line_of_progress_says_which_evaluation_failed_and_why() -> None:
    def fails(theta: Any) -> Any:
        raise ZeroDivisionError("on\npurpose " * MOST_SAID)

    profile = Profile("f")
    with printed() as found:
        with pytest.raises(ZeroDivisionError):
            dagad.grad(fails)(1.0)
    line, status = found[1:]
    assert line[:2] == ["1", "fails"]
    assert ["ZeroDivisionError:", "on", "purpose", "on"] == line[4:8]
    assert status[-2:] == ["1", "failed"]
    assert profile.fallbacks == []


# What is told of it


def test_a_progress_bar_estimates_the_time_left_from_the_rate_so_far() -> None:
    profile = Profile("f")
    profile.began = time.time() - 10.0
    looked = Looked(profile)
    assert looked.look(0.0) == []
    assert Bar("values", 50, 200, 5.0, 30.0).words == "50/200 5/s 30.00 s left"
    assert Bar("values", 1_000, 2_000, 1234.5, 0.81).words == "1,000/2,000 1,234/s 810 ms left"
    assert Bar("values", 0, 200, 0.0, None, "workers").words == "0/200 waiting for workers"


def test_a_callback_gets_every_evaluation_and_may_end_it_all() -> None:
    told: list[Any] = []

    def stop(profile: Profile) -> None:
        told.append((profile.number, profile.name, profile.value, profile.seconds is not None))
        if profile.number == 3:
            raise StopIteration("enough")

    def loop() -> None:
        while True:
            dagad.value_and_grad(square)(2.0)

    with dagad.progress(callback=stop) as seen, pytest.raises(StopIteration, match="enough"):
        loop()
    assert told == [(number, "square", 4.0, True) for number in (1, 2, 3)]
    assert seen.count == 3


@pytest.mark.parametrize("goes_wrong", [False, True])
def test_an_evaluation_raises_what_its_progress_callback_raises(goes_wrong: bool) -> None:
    def fails(theta: Any) -> Any:
        if goes_wrong:
            raise ValueError("the function's own")
        return square(theta)

    def stop(profile: Profile) -> None:
        raise StopAsyncIteration("enough")

    with dagad.progress(callback=stop):
        evaluation = dagad.evaluate(fails, 2.0)
        with pytest.raises(ValueError if goes_wrong else StopAsyncIteration) as caught:
            evaluation.gradient(WAIT)
    assert len(getattr(caught.value, "__notes__", ())) == goes_wrong


def test_progress_shows_all_evaluations_that_run_at_the_same_time() -> None:
    barrier = threading.Barrier(4)

    def meets(rows: Any, theta: Any) -> Any:
        if rows[0] == 0.0:
            barrier.wait(WAIT)
        return np.sum(rows) * theta

    def waits(theta: Any) -> Any:
        return dagad.reduce_sum(meets, np.arange(8.0), theta, grainsize=4, scheduler="sync")

    out = io.StringIO()
    with dagad.progress(show=True, file=out, every=0) as seen:
        evaluations = [dagad.evaluate(waits, float(number)) for number in range(3)]
        assert len(seen.running) == 3
        barrier.wait(WAIT)
        assert [one.value(WAIT) for one in evaluations] == [0.0, 28.0, 56.0]
        assert [one.gradient(WAIT) for one in evaluations] == [28.0] * 3
    assert sorted(profile.number for profile in seen.recent) == [1, 2, 3]
    assert len(re.findall(r"^ +\d  waits ", out.getvalue(), re.MULTILINE)) == 3


def test_progress_shows_evaluations_that_are_awaited() -> None:
    async def both() -> Any:
        return await asyncio.gather(*(dagad.evaluate(loss, factor * THETA) for factor in (1.0, 2.0)))

    with dagad.progress() as seen:
        found = asyncio.run(both())
    assert sorted(one.value for one in seen.recent if one.value) == sorted(value for value, _ in found)


def test_progress_counts_a_cancelled_evaluation_as_ended() -> None:
    go = threading.Event()

    def waits(rows: Any, theta: Any) -> Any:
        assert go.wait(WAIT)
        return np.sum(rows) * theta

    with dagad.progress() as seen:
        evaluation = dagad.evaluate(
            lambda theta: dagad.reduce_sum(waits, np.ones(4), theta, grainsize=1, scheduler="sync"), 1.0
        )
        evaluation.cancel()
        assert (seen.count, seen.n_failed, seen.running) == (1, 1, [])
        go.set()
        with pytest.raises(dagad.CancelledError):
            evaluation.value(WAIT)


@pytest.mark.parametrize("method", ["L-BFGS-B", "trust-constr"])
def test_steps_of_an_optimiser_have_a_line_each(method: str) -> None:
    out = io.StringIO()
    with dagad.progress(show=True, file=out, every=0) as seen:
        found = optimize.minimize(
            dagad.value_and_grad(lambda x: anp.sum((x - 1.0) ** 4)),
            np.zeros(2),
            jac=True,
            method=method,
            callback=seen.iterated,
        )
    assert len(seen.iterations) == found.nit
    assert sum(step.n_evaluations for step in seen.iterations) <= seen.count == found.nfev
    assert [step.number for step in seen.iterations] == list(range(1, found.nit + 1))
    assert len(re.findall(r"^ +\d+  iteration ", out.getvalue(), re.MULTILINE)) == found.nit


def test_progress_shows_the_result_that_an_optimiser_reports() -> None:
    def told(intermediate_result: Any) -> None:
        seen.iterated(intermediate_result=intermediate_result)

    with dagad.progress() as seen:
        found = optimize.minimize(
            dagad.value_and_grad(square), np.array([3.0, 4.0]), jac=True, method="BFGS", callback=told
        )
    assert seen.iterations[-1].value == found.fun


def test_a_hot_loop_says_what_ran_it_and_what_it_fell_back_from(cluster: Client) -> None:
    shards = dagad.shard(X, grainsize=5, scheduler=cluster)
    with dagad.progress() as seen:
        for _ in range(4):
            dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, shards, theta))(THETA)
    assert seen.executors["resident"] + seen.executors["graph"] == 4
    assert seen.executors["resident"] >= 1
    assert f"resident {seen.executors['resident']}" in seen.summary()
    assert not seen.fallbacks


# The setting


@pytest.fixture
def no_display() -> Iterator[None]:
    """Let the setting make a display of its own."""
    before = dict(watching._DISPLAYS)
    watching._DISPLAYS.clear()
    yield
    watching._DISPLAYS.clear()
    watching._DISPLAYS.update(before)


def test_the_progress_setting_prints_nothing_where_nobody_looks_unless_always() -> None:
    code = (
        "import dagad, dask, autograd.numpy as np\n"
        "for setting in (False, True, 'always'):\n"
        "    with dask.config.set({'dagad.progress': setting}):\n"
        "        for number in range(3):\n"
        "            dagad.value_and_grad(lambda x: np.sum(x ** 2))(np.ones(3))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["#", "1", "2", "3", "3"]


def test_a_progress_setting_that_makes_no_sense_is_refused(no_display: None) -> None:
    with dask.config.set({"dagad.progress": "yes"}), pytest.raises(dagad.ArgumentsError, match="Choose false for none"):
        loss(THETA)
    assert watching._DISPLAYS == {}


def test_a_progress_block_goes_before_the_setting(no_display: None) -> None:
    with dask.config.set({"dagad.progress": True}):
        with dagad.progress() as seen:
            loss(THETA)
        assert watching._DISPLAYS == {}
        loss(THETA)
    (display,) = watching._DISPLAYS.values()
    assert display.seen.count == seen.count == 1


# The log


def test_an_evaluation_is_logged_with_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "dagad"):
        value, gradient = dagad.value_and_grad(loss)(THETA)
        with pytest.raises(dagad.NotDifferentiableError):
            dagad.grad(lambda x: None)(1.0)
    first, second = (record.dagad for record in caplog.records if hasattr(record, "dagad"))
    assert (first["name"], first["value"], first["error"]) == ("loss", value, "")
    assert first["gradient_norm"] == pytest.approx(float(np.linalg.norm(gradient)))
    assert (first["executors"], first["fallbacks"]) == (["inline"], [])
    assert second["number"] == first["number"] + 1
    assert second["error"].startswith("NotDifferentiableError")
    assert "evaluation" in caplog.messages[-1]


def test_an_evaluation_is_not_logged_where_nobody_reads_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "dagad"):
        dagad.grad(loss)(THETA)
    assert not [record for record in caplog.records if hasattr(record, "dagad")]


# What is refused


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"show": "terminal"}, "Choose None for terminals and notebooks"),
        ({"every": -1}, "Give a number, 0 for each one"),
        ({"every": "second"}, "Give a number"),
        ({"callback": 3}, "Give a function that takes the profile"),
        ({"file": "progress.log"}, "Give an open file"),
    ],
)
def test_options_of_progress_that_make_no_sense_are_refused(options: dict[str, Any], remedy: str) -> None:
    with pytest.raises(dagad.ArgumentsError, match=remedy):
        dagad.progress(**options)


def test_a_progress_bar_for_something_else_is_refused() -> None:
    anything: Any = dagad.progress
    with pytest.raises(dagad.ArgumentsError):
        anything(range(3))
