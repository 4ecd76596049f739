"""Replay: does the chunk that failed fail here as it did there, with the same inputs, and what if it can't?"""

from __future__ import annotations

import asyncio
import functools
import gc
import io
import os
import pickle
import re
import sys
import traceback
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import autograd.numpy as np
import dask
import numpy as onp
import pytest
from autograd.extend import defvjp, primitive
from dask.delayed import delayed
from distributed import Client

import dagad
from dagad._values import pytree
from support.clusters import kill, pids_of
from support.hot_loops import a_watched_cluster, heat_up, shards_on
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

X = onp.arange(24.0).reshape(12, 2)
THETA = onp.array([0.5, -1.5])
WRONG = 10.0  # stands in chunk 1 of 3


class Refused(Exception):
    """What a chunk raises: with all that it was given, and where that was."""


def told(rows: Any, theta: Any) -> Refused:
    plain = [onp.array(pytree.plain(part)).tolist() for part in (rows, theta)]
    return Refused(*plain, os.getpid())


def fails(rows: Any, theta: Any) -> Any:
    if onp.any(onp.asarray(pytree.plain(rows)) == WRONG) and pytree.plain(theta)[0] > 0.0:
        raise told(rows, theta)
    return np.sum(np.sin(rows * theta))


@primitive  # type: ignore[untyped-decorator]  # autograd has no types
def one_way(rows: Any, theta: Any) -> Any:
    return onp.sum(onp.sin(rows * theta))


def no_way_back(ans: Any, rows: Any, theta: Any) -> Any:
    def pull(seed: Any) -> Any:
        if onp.any(onp.asarray(rows) == WRONG) and pytree.plain(theta)[0] > 0.0:
            raise told(rows, theta) from None
        return seed * onp.sum(rows * onp.cos(rows * theta), axis=0)

    return pull


defvjp(one_way, None, no_way_back)


def fails_on_its_way_back(rows: Any, theta: Any) -> Any:
    return one_way(rows, theta)


def loss_of(f: Callable[..., Any], scheduler: Any, data: Any = X, **options: Any) -> Callable[[Any], Any]:
    return lambda theta: dagad.reduce_sum(f, data, theta, grainsize=4, scheduler=scheduler, **options)


FAILING = {"value": fails, "pullback": fails_on_its_way_back}


def failed(call: Callable[[], Any], kind: type[Exception] = Refused) -> Any:
    with pytest.raises(kind) as caught:
        call()
    return caught.value


def fails_here(error: Exception, role: str) -> None:
    """See that the replay of an error raises the same, in this process, from the user's line, as in its role."""
    again = failed(functools.partial(dagad.replay, error))
    assert again.args == (*error.args[:2], os.getpid())
    assert any(f"dagad: {role} of chunk 1 (rows 4:8)" in note for note in again.__notes__)


def tells(error: Exception, role: str, where: str) -> None:
    (note,) = [note for note in error.__notes__ if note.startswith("dagad: ")]
    first, second = note.splitlines()
    assert re.match(rf"dagad: {role} of chunk 1 \(rows 4:8\), key \(.*\){where}$", first)
    assert second == "To run it alone, here: `dagad.replay(error)`."


ON_A_WORKER = r", worker t(cp|ls)://[0-9.:]+"


@pytest.mark.parametrize("role", FAILING)
def test_a_chunk_that_failed_fails_again_in_a_replay(role: str, scheduler: Any) -> None:
    loss = loss_of(FAILING[role], scheduler)
    for _ in range(2):  # a local one goes inline the second time
        error = failed(lambda: dagad.grad(loss)(THETA))
        assert (error.args[2] == os.getpid()) == isinstance(scheduler, str)
        tells(error, role, "" if isinstance(scheduler, str) else ON_A_WORKER)
        fails_here(error, role)
        assert onp.all(onp.isfinite(dagad.grad(loss)(-THETA)))


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_chunk_that_failed_in_a_process_pool_fails_again_in_a_replay() -> None:
    error = failed(lambda: dagad.grad(loss_of(fails_on_its_way_back, "processes"))(THETA))
    tells(error, "pullback", f", process {error.args[2]}")
    fails_here(error, "pullback")


MODES: dict[str, Callable[[Any, Any], Any]] = {
    "value": lambda fun, at: fun(at),
    "pullback of vjp": lambda fun, at: dagad.vjp(fun, at)[1](2.0),
    "jvp": lambda fun, at: dagad.jvp(fun, (at,), (onp.ones(at.shape),)),
    "hvp": lambda fun, at: dagad.hvp(fun, (at,), (onp.ones(at.shape),)),
    "evaluate": lambda fun, at: dagad.evaluate(fun, at).gradient(PATIENCE),
    "lazily": lambda fun, at: dagad.evaluate(fun, at, lazy=True).gradient(PATIENCE),
    "awaited": lambda fun, at: asyncio.run(_awaited(fun, at)),
}


async def _awaited(fun: Any, at: Any) -> Any:
    return await dagad.evaluate(fun, at)


@pytest.mark.parametrize("mode", MODES)
def test_a_replay_runs_a_failed_chunk_of_every_mode_again(mode: str, scheduler: Any) -> None:
    error = failed(lambda: MODES[mode](loss_of(fails, scheduler), THETA))
    assert failed(lambda: dagad.replay(error)).args == (*error.args[:2], os.getpid())
    if mode not in ("jvp", "hvp", "value"):  # the primitive has no rule for these
        error = failed(lambda: MODES[mode](loss_of(fails_on_its_way_back, scheduler), THETA))
        fails_here(error, "pullback")


@pytest.mark.parametrize("name", ["map_sum", "map", "map_rect", "map_reduce"])
def test_a_replay_runs_every_operation_again_with_its_rows_differentiated(name: str, scheduler: Any) -> None:
    f = {"map_rect": lambda x, t: fails(x, t) * onp.ones(2)}.get(name, fails)
    combine = [lambda a, b: a + b] if name == "map_reduce" else []
    call = getattr(dagad, name)
    options: Any = {"grainsize": 4, "scheduler": scheduler}

    def loss(x: Any) -> Any:
        return np.sum(call(f, *combine, x, THETA, **options))

    for act in (lambda: loss(X), lambda: dagad.grad(loss)(X)):
        error = failed(act)
        assert failed(lambda error=error: dagad.replay(error)).args == (*error.args[:2], os.getpid())  # type: ignore[misc]  # of a loop


def test_a_replay_of_differentiated_shards_has_their_rows_and_cotangents(cluster: Client) -> None:
    shards = shards_on(cluster, X, 4)
    error = failed(lambda: dagad.grad(lambda t: np.sum(dagad.map(fails_on_its_way_back, shards, t) ** 2))(THETA))
    assert failed(lambda: dagad.replay(error)).args == (*error.args[:2], os.getpid())
    error = failed(lambda: dagad.grad(lambda x: dagad.reduce_sum(fails, x, THETA))(shards))
    assert failed(lambda: dagad.replay(error)).args == (*error.args[:2], os.getpid())


def test_a_replay_of_nested_reductions_runs_the_outermost_chunk_again(scheduler: Any) -> None:
    def outer(rows: Any, theta: Any) -> Any:
        return dagad.reduce_sum(fails, rows, theta, grainsize=1)

    error = failed(lambda: dagad.grad(loss_of(outer, scheduler))(THETA))
    inner, note = error.__notes__
    assert "chunk 1 (rows 1:2)" in inner
    assert "replay" not in inner
    assert "chunk 1 (rows 4:8)" in note
    assert note.endswith("`dagad.replay(error)`.")
    again = failed(lambda: dagad.replay(error))
    assert again.args == (*error.args[:2], os.getpid())
    assert failed(lambda: dagad.replay(again)).args == again.args


def test_a_replay_takes_an_error_whose_cause_is_a_failed_chunk() -> None:
    def act() -> None:
        try:
            loss_of(fails, "sync")(THETA)
        except Refused as error:
            raise RuntimeError("the fit has failed") from error

    assert failed(lambda: dagad.replay(failed(act, RuntimeError))).args[2] == os.getpid()


def test_a_replay_without_an_error_takes_the_last_that_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", failed(lambda: loss_of(fails, "sync")(THETA)), raising=False)
    monkeypatch.setattr(sys, "last_value", failed(lambda: dagad.replay()))
    failed(lambda: dagad.replay())


def test_the_traceback_of_a_replay_has_the_users_lines_only() -> None:
    error = failed(lambda: dagad.grad(loss_of(fails, "threads"))(THETA))
    with dask.config.set({"dagad.full-tracebacks": False}):
        again = failed(lambda: dagad.replay(error))
    frames = [frame.name for frame in traceback.extract_tb(again.__traceback__)]
    assert frames[-1] == "fails"
    assert not {"attempt", "linearize", "door"} & set(frames)


# In a debugger


@pytest.mark.parametrize("full", [False, True])
def test_a_debugger_stands_at_the_line_that_failed(
    full: bool, scheduler: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = failed(lambda: loss_of(fails, scheduler)(THETA))
    commands = ["p rows.shape, theta[1]", "p theta[0] * 8", "q"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(commands) + "\n"))
    with dask.config.set({"dagad.full-tracebacks": full}):
        failed(lambda: dagad.replay(error, debugger=True))
    out = capsys.readouterr().out
    assert "-> raise told(rows, theta)" in out
    assert re.search(r"\(\(4, 2\), (np\.float64\()?-1\.5", out)
    assert re.search(r"\b4\.0", out)


def test_a_replay_in_ipython_uses_its_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Debugger:
        def reset(self) -> None:
            seen.append("reset")

        def interaction(self, frame: Any, trace: Any) -> None:
            seen.append((frame, traceback.extract_tb(trace)[-1].name))

    shell = SimpleNamespace(debugger_cls=Debugger)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    error = failed(lambda: loss_of(fails, "sync")(THETA))
    with dask.config.set({"dagad.full-tracebacks": False}):
        failed(lambda: dagad.replay(error, debugger=True))
    assert seen == ["reset", (None, "fails")]


# What can't be run again


def test_a_replay_of_a_chunk_that_does_not_fail_gives_its_result(cluster: Client) -> None:
    here = os.getpid()

    def elsewhere(rows: Any, theta: Any) -> Any:
        if os.getpid() != here:
            raise Refused("not here")
        return np.sum(rows) * theta

    error = failed(lambda: dagad.grad(loss_of(elsewhere, cluster))(2.0))
    with pytest.warns(dagad.DagadWarning, match=r"chunk \d \(rows \d:\d+\) did not fail here\. .* another machine"):
        found = dagad.replay(error)
    assert found in [2.0 * onp.sum(X[start : start + 4]) for start in (0, 4, 8)]


def chunkless() -> Exception:
    try:
        dagad.reduce_sum(lambda rows: onp.zeros(len(rows)), X, grainsize=5)
    except dagad.StructureError as error:
        return error
    raise AssertionError("it is refused")


def of_a_task() -> Any:
    x = delayed(-1.0)
    y = delayed(fails_as_a_task)(x)
    return failed(lambda: dagad.gradient(y, x).compute(scheduler="sync"))


def fails_as_a_task(x: Any) -> Any:
    raise Refused(x)


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "nothing": (lambda: None, dagad.ArgumentsError, "given None, which is no exception.*right after it was shown"),
    "a number": (lambda: 2, dagad.ArgumentsError, "an int, which is no exception. Give it the one"),
    "no chunk": (chunkless, dagad.ArgumentsError, "was not raised in a chunk.*full-tracebacks"),
    "a task": (of_a_task, dagad.ArgumentsError, r"task of your own graph.*scheduler=\"sync\".*recreate_error_locally"),
    "a copy": (
        lambda: pickle.loads(pickle.dumps(failed(lambda: loss_of(fails, "sync")(THETA)))),
        dagad.PortabilityError,
        "from another process.*in which it was raised",
    ),
    "a deadly chunk": (
        lambda: _with_suspects("chunk 2 (rows 8:12)"),
        dagad.WorkerLostError,
        r"Workers died on chunk 2 \(rows 8:12\): run here, that may end this process.*faulthandler.*sync",
    ),
}


def _with_suspects(*suspects: str) -> dagad.WorkerLostError:
    error = dagad.WorkerLostError("They died.")
    error.suspects = suspects
    return error


@pytest.mark.parametrize("case", REFUSED)
def test_a_replay_says_why_it_has_no_chunk_to_run(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, kind, remedy = REFUSED[case]
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    with pytest.raises(kind, match=f"(?s){remedy}"):
        dagad.replay(make())


def test_an_error_of_a_chunk_is_pickled_with_its_notes_in_words(scheduler: Any) -> None:
    error = failed(lambda: loss_of(fails, scheduler)(THETA))
    there = pickle.loads(pickle.dumps(error))
    assert there.__notes__ == error.__notes__
    assert [type(note) for note in there.__notes__] == [str]
    assert vars(error).keys() == {"__notes__"}


# Where the rows were


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_a_replay_gets_rows_of_a_dead_worker_and_not_of_a_restarted_cluster() -> None:
    with a_watched_cluster() as client:
        losses = {role: loss_of(f, None, shards_on(client, X, 4)) for role, f in FAILING.items()}
        errors = {}
        for role, loss in losses.items():
            heat_up(client, lambda loss=loss: dagad.grad(loss)(-THETA))  # type: ignore[misc]  # of a loop
            errors[role] = error = failed(lambda loss=loss: dagad.grad(loss)(THETA))  # type: ignore[misc]  # of a loop
            tells(error, role, ON_A_WORKER)
            fails_here(error, role)
        for pid in pids_of(client).values():
            kill(pid)
        for role, error in errors.items():
            fails_here(error, role)
        client.restart()
        with pytest.raises(dagad.DataLostError, match=r"rows of chunk 1 \(rows 4:8\).*gone.*`dagad\.shard`"):
            dagad.replay(errors["value"])


def test_an_error_that_was_replayed_and_is_gone_keeps_no_shards(cluster: Client) -> None:
    def act() -> Any:
        shards = shards_on(cluster, X, 4)
        error = failed(lambda: dagad.grad(loss_of(fails, None, shards))(THETA))
        failed(lambda: dagad.replay(error))
        return shards.keys

    keys = act()
    gc.collect()
    until(lambda: not cluster.futures.keys() & set(keys))
