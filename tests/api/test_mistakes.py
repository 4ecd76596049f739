"""The mistakes of the first hour: is each told by its remedy, in a few lines, on threads and on a cluster?"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, cast

import autograd.numpy as anp
import dask
import dask.array
import numpy as np
import pandas as pd
import pytest
import scipy.integrate
import scipy.optimize
import scipy.special
import scipy.stats
from dask.delayed import delayed
from distributed import Client
from hot import a_watched_cluster, heat_up

import dagad
from dagad import ArgumentsError, MissingNameError, NotDifferentiableError, PlanError, PortabilityError, StructureError
from dagad._api import non_finite
from dagad._remembered import Remembered
from dagad.extend import Keep, Preaccumulate, Recompute, explicit

X, Y, THETA = np.arange(12.0).reshape(6, 2), np.arange(6.0), np.ones(2)
TABLE = pd.DataFrame({"a": Y, "b": Y + 1.0})
A: Any = delayed(2.0)
B: Any = A * 3.0
MOST_LINES = 12  # above the message of what a chunk raised


@pytest.fixture(autouse=True)
def _as_users_see_it() -> Iterator[None]:
    with dask.config.set({"dagad.full-tracebacks": False}):
        yield


@dataclasses.dataclass
class Model:
    """A record that nobody has registered."""

    slope: float
    offset: float


class Foreign:
    """An array of a library that dagad does not know."""

    dtype = "float32"


def line(rows: Any, theta: Any) -> Any:
    x, y = rows
    return anp.sum((y - anp.dot(x, theta)) ** 2)


def scaled(rows: Any, theta: Any) -> Any:
    return anp.sum(rows * theta)


def unsummed(rows: Any, theta: Any) -> Any:
    return rows * theta


def as_in_stan(rows: Any, start: Any, end: Any, theta: Any) -> Any:
    return anp.sum(rows * theta)


def three(rows: Any, x: Any, r: Any) -> Any:
    return anp.sum(rows * x * r)


def job(phi: Any, theta: Any, x_r: Any, x_i: Any) -> Any:
    return phi * theta


def square(x: Any) -> Any:
    return anp.sum(x**2)


def with_aux(x: Any) -> Any:
    return square(x), {"x": x}


def holding(lock: Any) -> Any:
    def locked(rows: Any, theta: Any) -> Any:
        with lock:
            return anp.sum(rows * theta)

    return locked


def writes_theta(rows: Any, theta: Any) -> Any:
    theta[0] = 0.0
    return anp.sum(rows * theta[0])


def writes_rows(rows: Any, theta: Any) -> Any:
    rows *= 2.0
    return anp.sum(rows * theta)


def branches(rows: Any, theta: Any) -> Any:
    return anp.sum(rows * theta[0]) if theta > 0 else 0.0


def fills(rows: Any, theta: Any) -> Any:
    out = np.zeros(2)
    out[0] = theta[0]
    return np.sum(out)


def misfits(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.dot(rows, np.ones(5)) * theta)


def misses(rows: Any, theta: Any) -> Any:
    raise LookupError("no such station")


def no_way_back(rows: Any, theta: Any) -> Any:
    def pullback(seed: Any) -> Any:
        raise LookupError("no way back")

    return 0.0, pullback


def cut(fun: Any, data: Any, *shared: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"grainsize": 2, "scheduler": "threads"}
    return dagad.reduce_sum(fun, data, *shared, **given | options)


def grad(fun: Any, data: Any, theta: Any = THETA, **options: Any) -> Any:
    return dagad.grad(lambda theta: cut(fun, data, theta, **options))(theta)


def any_call(name: str) -> Any:
    """Return a public function without its type, for calls that it does not allow."""
    return getattr(dagad, name)


# What a user does: the error that comes, and its remedy.
Case = tuple[Callable[[], Any], type[Exception], str]
CALLS: dict[str, Case] = {
    # other packages' names
    **{
        name: (lambda name=name: getattr(dagad, name), MissingNameError, remedy)  # type: ignore[misc]  # a default argument has no type
        for name, remedy in {
            "jit": "leave it out",
            "vmap": r"dagad\.reduce_sum",
            "pmap": r"dagad\.map",
            "custom_vjp": r"dagad\.extend\.explicit",
            "jacobian": r"dagad\.jacrev",
            "linearize": r"dagad\.jvp",
            "stop_gradient": "getval",
            "ravel_pytree": r"optree\.integration",
            "tree_map": r"optree\.tree_map",
            "scan": r"dagad\.map_reduce",
            "reduce_sum_static": r"dagad\.reduce_sum",
            "check_grads": r"dagad\.testing\.check_grads",
            "explict": r"Did you mean `dagad\.extend\.explicit`",
            "reduce_sums": r"Did you mean `dagad\.reduce_sum`",
            "no_such_thing": r"help\(dagad\)",
        }.items()
    },
    # how functions are called
    "holomorphic": (lambda: any_call("grad")(square, holomorphic=True), ArgumentsError, r"dagad\.vjp"),
    "allow_int": (lambda: any_call("grad")(square, allow_int=True), ArgumentsError, r"\.astype\(float\)"),
    "in_axes": (lambda: any_call("map")(square, X, in_axes=1), ArgumentsError, "moveaxis"),
    "n_jobs": (lambda: cut(scaled, Y, 1.0, n_jobs=2), ArgumentsError, "scheduler=client"),
    "n_chunks": (lambda: cut(scaled, Y, 1.0, n_chunks=3), ArgumentsError, "grainsize=.*number of rows"),
    "client=": (lambda: cut(scaled, Y, 1.0, client=None), ArgumentsError, "scheduler="),
    "shared by keyword": (lambda: cut(scaled, Y, theta=1.0), ArgumentsError, r"`reduce_sum\(f, sliced, theta\)`"),
    "no such keyword": (lambda: any_call("shard")(Y, where=1), ArgumentsError, "keywords are `grainsize`, `scheduler`"),
    "hvp curried": (lambda: any_call("hvp")(square)(Y, Y), ArgumentsError, r"`hvp\(fun, primals, tangents\)`"),
    "gradient curried": (lambda: any_call("gradient")(square)(Y), ArgumentsError, r"`gradient\(y, wrt\)`"),
    "grad of a point": (lambda: any_call("grad")(square, Y), StructureError, r"`dagad\.grad\(square\)\(\.\.\.\)`"),
    "hessian at a point": (lambda: any_call("hessian")(square, Y), StructureError, r"dagad\.hessian\(square\)"),
    "grad of a number": (lambda: any_call("grad")(3.0), ArgumentsError, "takes a function, and was given a float"),
    "too few arguments": (lambda: dagad.grad(line)(X), ArgumentsError, r"`line\(rows, theta\)`"),
    "too few primals": (lambda: dagad.vjp(line, X), ArgumentsError, r"`line\(rows, theta\)`"),
    "data first": (lambda: cut(Y, scaled, 1.0), StructureError, "The function comes first"),
    "a number for f": (lambda: cut(3.0, Y, 1.0), ArgumentsError, "a float where a function belongs"),
    "too many shared": (
        lambda: cut(scaled, Y, 1.0, 2.0),
        ArgumentsError,
        r"calls `scaled\(rows, theta\)` with some rows, a float, a float",
    ),
    "too few shared": (lambda: cut(scaled, Y), ArgumentsError, "missing a required argument: 'theta'"),
    "Stan's grainsize": (lambda: cut(three, Y, 500, Y, 1.0), ArgumentsError, r"grainsize=500\)`"),
    "Stan's start and end": (lambda: cut(as_in_stan, Y, THETA), ArgumentsError, "no `start` and `end`"),
    "Stan's map_rect": (lambda: dagad.map_rect(job, 1.0, [Y, Y], [X, X], [1, 2]), StructureError, "has no rows to cut"),
    "argnums too large": (lambda: dagad.grad(square, 3)(Y), StructureError, "Pass by position"),
    # how the work is cut, and where it runs
    "grainsize in words": (lambda: cut(scaled, Y, 1.0, grainsize="1000"), PlanError, 'positive int or `"auto"`'),
    "grainsize 1e3": (lambda: cut(scaled, Y, 1.0, grainsize=1e3), PlanError, "positive int"),
    "an address": (
        lambda: cut(scaled, Y, 1.0, scheduler="tcp://h:1"),
        PlanError,
        r"distributed\.Client\('tcp://h:1'\)",
    ),
    "a misspelt scheduler": (lambda: cut(scaled, Y, 1.0, scheduler="threds"), PlanError, 'Choose "threads"'),
    "a number of workers": (lambda: cut(scaled, Y, 1.0, scheduler=4), PlanError, 'Choose "threads"'),
    "no client": (lambda: cut(scaled, Y, 1.0, scheduler="distributed"), PlanError, r"Start one.*Client\(\)"),
    "no engine": (lambda: cut(scaled, Y, 1.0, engine="jaxx"), PlanError, "Choose one of"),
    "a policy in words": (lambda: cut(scaled, Y, 1.0, policy="recompute"), PlanError, r"`dagad\.extend\.Keep\(\)`"),
    "other chunks": (
        lambda: cut(scaled, dagad.shard(Y, 3), 1.0),
        PlanError,
        r"shard\(shards\.gather\(\), grainsize=2\)",
    ),
    "Shards in shard": (lambda: dagad.shard(dagad.shard(Y)), PlanError, r"`\.gather\(\)`"),
    # the data
    "lengths": (lambda: cut(line, (X, Y[:4]), THETA), StructureError, "give them the same number"),
    "a number": (lambda: cut(scaled, 3.0, 1.0), StructureError, "is a float, which has no rows"),
    "a generator": (lambda: cut(scaled, iter([1.0]), 1.0), StructureError, r"Make a list of it, `list\(\.\.\.\)`"),
    "a set": (lambda: cut(scaled, {1.0, 2.0}, 1.0), StructureError, r"`sorted\(\.\.\.\)`"),
    "a path": (lambda: cut(scaled, "data.csv", 1.0), StructureError, r"np\.loadtxt\(path\)"),
    "nothing": (lambda: cut(scaled, {}, 1.0), StructureError, "nothing to cut"),
    "a Series": (lambda: cut(scaled, TABLE["a"], 1.0), StructureError, r"`column\.to_numpy\(\)`"),
    "a dict of Series": (lambda: cut(scaled, {"a": TABLE["a"]}, 1.0), StructureError, r"`column\.to_numpy\(\)`"),
    "a Delayed": (lambda: cut(scaled, A, 1.0), StructureError, r"dagad\.shard\(\[load\(path\), \.\.\.\]\)"),
    "a dask array": (lambda: cut(scaled, dask.array.ones(4), 1.0), StructureError, r"`dagad\.shard\(array\)`"),
    # what is differentiated
    "theta is a Series": (lambda: grad(scaled, Y, pd.Series([1.0])), NotDifferentiableError, r"`\.to_numpy\(\)`"),
    "theta is a table": (lambda: grad(scaled, Y, TABLE), NotDifferentiableError, r"table\[name\]\.to_numpy\(\)"),
    "theta is a dask array": (lambda: grad(scaled, Y, dask.array.ones(2)), NotDifferentiableError, "Compute it first"),
    "theta is an int": (
        lambda: dagad.grad(square)(3),
        NotDifferentiableError,
        r"0 \(`x`\) .* only int.*`float\(\.\.\.\)`",
    ),
    "theta is a word": (lambda: dagad.grad(square)("a"), NotDifferentiableError, "only str. Give numbers, arrays"),
    "theta is another's array": (
        lambda: dagad.grad(square)(Foreign()),
        NotDifferentiableError,
        r"a Foreign of test_mistakes, which is no array of numpy's. Give `np\.asarray",
    ),
    "theta is a record": (
        lambda: dagad.grad(lambda m: m.slope)(Model(1.0, 2.0)),
        NotDifferentiableError,
        r"register_pytree_node\(Model, lambda m: \(\(m\.slope, m\.offset.*namespace=\"dagad\"",
    ),
    "grad of a Delayed": (lambda: dagad.grad(B), NotDifferentiableError, r"`dagad\.gradient\(y, wrt\)`"),
    "value_and_grad of a Delayed": (lambda: dagad.value_and_grad(B), NotDifferentiableError, "value_and_gradient"),
    "hessian of a Delayed": (lambda: dagad.hessian(B), NotDifferentiableError, "once more of what it returns"),
    "at a Delayed": (lambda: dagad.grad(square)(A), NotDifferentiableError, r"`dagad\.gradient`"),
    "swapped": (lambda: dagad.gradient(A, B), NotDifferentiableError, r"swapped.*`dagad\.gradient\(y, wrt\)`"),
    "gradient of a function": (lambda: any_call("gradient")(square, Y), NotDifferentiableError, r"use `dagad\.grad`"),
    "gradient of an array": (
        lambda: any_call("gradient")(dask.array.ones(3), A),
        NotDifferentiableError,
        "one real",
    ),
    "with respect to nothing": (lambda: dagad.gradient(B, []), NotDifferentiableError, "Give one of"),
    "elsewhere": (lambda: dagad.gradient(B, delayed(1.0)), NotDifferentiableError, 'unused="zeros"'),
    # what functions return
    "forgot to sum": (lambda: grad(unsummed, Y, 1.0), NotDifferentiableError, r"`<lambda>` returned an array.*np\.sum"),
    "a list": (lambda: dagad.grad(lambda x: [x])(1.0), NotDifferentiableError, "returned a list.*Return its sum"),
    "forgot has_aux": (
        lambda: dagad.grad(with_aux)(Y),
        NotDifferentiableError,
        "`with_aux` returned a tuple.*has_aux=True",
    ),
    "has_aux without aux": (lambda: dagad.grad(square, has_aux=True)(Y), StructureError, r"Return `\(value, aux\)`"),
    "forgot to return": (lambda: dagad.grad(lambda x: None)(1.0), NotDifferentiableError, "is a `return` missing"),
    "complex": (lambda: dagad.grad(lambda x: x * 1j)(1.0), NotDifferentiableError, "real part"),
    "a pair of primals": (lambda: dagad.jvp(line, (X, Y), (X,)), StructureError, "one tangent per primal"),
    "has_aux of a Delayed": (
        lambda: dagad.jvp(B, A, 1.0, has_aux=True),
        ArgumentsError,
        "is for functions.*Leave it out",
    ),
    "a tangent's shape": (lambda: dagad.jvp(square, Y, THETA), StructureError, r"shape \(2,\), where \(6,\) is needed"),
    "a cotangent's shape": (lambda: dagad.vjp(square, Y)[1](Y), StructureError, r"shape \(6,\), where \(\) is needed"),
    "a lock": (
        lambda: cut(holding(threading.Lock()), Y, 1.0, scheduler="processes"),
        PortabilityError,
        "`locked` uses `lock`.*inside the function",
    ),
}

# Inside chunks, on a cluster too: the function, its data, the error and its remedy, in the message or in a note.
CHUNKS: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "a user's own": (misses, Y, LookupError, r"value of chunk \d \(rows \d:\d\)"),
    "a user's own pullback": (explicit(no_way_back), Y, LookupError, r"pullback of chunk \d \(rows \d:\d\)"),
    "shapes": (misfits, X, ValueError, r"not aligned"),
    "theta is written into": (writes_theta, Y, NotDifferentiableError, r"`np\.where\(mask, new, old\)`"),
    "rows are written into": (writes_rows, Y, ValueError, r"`x = x\.copy\(\)`"),
    "math": (lambda rows, theta: math.exp(theta[0]), Y, NotDifferentiableError, r"`np\.exp\(x\)`"),
    "float": (lambda rows, theta: float(theta[0]), Y, NotDifferentiableError, "Use the value as it is"),
    "item": (lambda rows, theta: theta[0].item(), Y, NotDifferentiableError, "Use the value as it is"),
    "a function of scipy's that fills arrays": (
        lambda rows, theta: np.sum(scipy.stats.gaussian_kde(theta)(rows)),
        Y,
        NotDifferentiableError,
        "`scipy.stats.gaussian_kde.*Write it with",
    ),
    "a fresh array is filled": (fills, Y, NotDifferentiableError, r"`np\.stack\(parts\)`"),
    "an array of objects": (
        lambda rows, theta: np.sum(np.array([theta[0]], dtype=object)),
        Y,
        NotDifferentiableError,
        r"`np\.stack\(\[a, b\]\)`",
    ),
    "a condition on an array": (branches, Y, ValueError, r"`np\.where\(condition, a, b\)`"),
    "no return": (lambda rows, theta: None, Y, StructureError, "is a `return` missing"),
    "words": (lambda rows, theta: "six", Y, StructureError, "returned a str.*Return a number"),
    "another length in each chunk": (unsummed, np.arange(5.0), StructureError, "sum over the rows inside"),
    "a table's attribute": (lambda rows, t: anp.sum(rows.a * t), TABLE, MissingNameError, r"`rows\[\"a\"\]`"),
    "a table's columns": (lambda rows, t: anp.sum(rows[["a"]] * t), TABLE, StructureError, r"np\.stack"),
    "a table's arithmetic": (lambda rows, t: anp.sum(rows * t[0]), TABLE, StructureError, r"`rows\[name\]`"),
    "a column's to_numpy": (lambda rows, t: anp.sum(rows["a"].to_numpy() * t), TABLE, AttributeError, "leave it out"),
    "a column that is not there": (lambda rows, t: anp.sum(rows["c"]), TABLE, KeyError, "it has 'a', 'b'"),
}


def told(act: Callable[[], Any]) -> tuple[Exception, str, int]:
    """Return what a call raises, all that a user reads of it, and how many lines of it stand above the message."""
    try:
        act()
    except Exception as error:
        lines = "".join(traceback.format_exception(error)).splitlines()
        name = f"{type(error).__module__}.{type(error).__name__}".removeprefix("builtins.")
        return error, "\n".join(lines), next(at for at, text in enumerate(lines) if text.startswith(name))
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("case", CALLS)
def test_a_mistake_is_told_by_its_remedy(case: str) -> None:
    act, kind, remedy = CALLS[case]
    error, text, lines = told(act)
    assert type(error) is kind
    message = text.splitlines()[lines]
    assert re.search(remedy, message), message
    assert message.startswith(f"dagad.{kind.__name__}: ")
    assert message.endswith((".", "?"))
    assert not re.search(r"\ba (?=[aeiou])(?!u)|\bcan't be had|ifferentiated? in\b", message)
    assert lines <= 13  # of this file: `told`, the case, and its helpers
    assert "dagad/_" not in text


@pytest.mark.parametrize("case", CHUNKS)
def test_a_mistake_in_a_chunk_is_told_in_a_few_lines(case: str, scheduler: Any) -> None:
    fun, data, kind, remedy = CHUNKS[case]
    theta: Any = THETA[0] if case == "another length in each chunk" else THETA

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(fun, data, theta, grainsize=2, scheduler=scheduler)

    error, text, lines = told(lambda: dagad.grad(loss)(theta))
    assert type(error) is kind
    assert re.search(remedy, text), text
    assert lines <= MOST_LINES + 6, text  # of this test: `told` and the lambda, which a user does not have
    assert not re.search(r"(dagad|dagad_scheduler|dask|distributed|autograd)/\w+(/\w+)*\.py", text), text
    if kind is not StructureError or "rows" in fun.__code__.co_names:
        assert f"in {fun.__name__}" in text or case == "a user's own pullback"


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


@pytest.mark.parametrize(("program", "scheduler"), [("grad", "sync"), ("hessian", "threads"), ("value", "threads")])
def test_a_script_shows_its_own_lines(program: str, scheduler: str) -> None:
    code = SCRIPT.format(scheduler=scheduler, program=PROGRAMS[program])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    above = next(at for at, text in enumerate(lines) if text.startswith("ValueError: bad row"))
    assert above <= MOST_LINES, done.stderr
    assert "in chunk" in done.stderr
    assert "dagad/_" not in done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_shows_its_own_lines(program: str) -> None:
    code = SCRIPT.format(scheduler="threads", program=PROGRAMS[program])
    _, text, _ = told(lambda: exec(compile(code, "<program>", "exec"), {"__name__": "__main__"}))
    assert "dagad/_" not in text
    assert ("in chunk" in text) == (program != "grainsize")


def test_all_frames_are_there_on_request() -> None:
    with dask.config.set({"dagad.full-tracebacks": True}):
        _, text, _ = told(lambda: grad(misses, Y, 1.0))
    assert "dagad/_executors" in text


def test_a_fault_of_dagads_is_told_whole(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_of_an_evaluation_that_fails_a_worker_logs_a_line_and_nobody_prints_any(
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


def test_a_value_that_is_not_there_in_time_is_told_so() -> None:
    done = threading.Event()
    evaluation = dagad.evaluate(lambda x: (done.wait(60), x)[1], 1.0)
    for what in ("value", "gradient"):
        error, text, _ = told(functools.partial(getattr(evaluation, what), timeout=0.0))
        assert type(error) is dagad.TimedOutError
        assert isinstance(error, TimeoutError)
        assert f"The {what} was not there after 0.0 seconds. The evaluation goes on" in text
    done.set()
    assert evaluation.gradient() == 1.0


# What works at once


def test_plain_numpy_scipy_and_formatting_just_work(scheduler: Any) -> None:
    def chunk(rows: Any, theta: Any) -> Any:
        assert f"{theta[0]:.1f}" == "1.0"
        return np.sum(scipy.special.expit(rows * theta[0])) + np.sum(rows @ np.ones(len(rows)) * theta[1])

    def by_autograd(rows: Any, theta: Any) -> Any:
        return anp.sum(1.0 / (1.0 + anp.exp(-rows * theta[0]))) + anp.sum(rows) * theta[1]

    found, wanted = (
        dagad.grad(lambda theta, f=f: dagad.reduce_sum(f, Y, theta, grainsize=2, scheduler=scheduler))(THETA)
        for f in (chunk, by_autograd)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


def test_doors_are_open_without_an_import_of_their_own() -> None:
    code = "import dagad; dagad.testing.check_grads; dagad.extend.Keep; print(hasattr(dagad, 'vmap'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_what_comes_along_comes_along_in_every_mode() -> None:
    matrix = X[:2]

    def both(x: Any) -> Any:
        return anp.dot(matrix, x), {"x": x, "n": 3}

    def one(x: Any) -> Any:
        return anp.sum(x**3), {"x": x, "n": 3}

    values, pullback, aux = dagad.vjp(both, THETA, has_aux=True)
    np.testing.assert_array_equal(values, matrix @ THETA)
    np.testing.assert_array_equal(pullback(values)[0], matrix.T @ values)
    found = [aux, dagad.jvp(both, THETA, THETA, has_aux=True)[2]]
    np.testing.assert_array_equal(dagad.jvp(both, THETA, THETA, has_aux=True)[1], matrix @ THETA)
    for transform in (dagad.jacrev, dagad.jacfwd):
        jacobian, aux = transform(both, has_aux=True)(THETA)
        np.testing.assert_array_equal(jacobian, matrix)
        found.append(aux)
    hessian, aux = dagad.hessian(one, has_aux=True)(THETA)
    np.testing.assert_array_equal(hessian, 6.0 * np.eye(2))
    found += [aux, dagad.grad(one, has_aux=True)(THETA)[1], dagad.value_and_grad(one, has_aux=True)(THETA)[0][1]]
    for aux in found:
        assert aux["n"] == 3
        assert type(aux["x"]) is np.ndarray
        np.testing.assert_array_equal(aux["x"], THETA)
    nested = dagad.jacfwd(dagad.grad(lambda x: dagad.jvp(one, x, THETA, has_aux=True)[1]))(THETA)
    np.testing.assert_array_equal(nested, 6.0 * np.eye(2))


@pytest.mark.parametrize("policy", [None, Keep, Recompute, Preaccumulate])
def test_gradients_can_be_written_to(policy: Any, scheduler: Any) -> None:
    theta = {"a": np.ones(1), "b": [np.ones(2)]}

    def loss(theta: Any, rows: Any = X) -> Any:
        options = {"grainsize": 2, "scheduler": scheduler, "policy": policy and policy()}
        part = lambda rows, theta: anp.sum((rows * theta["a"] - theta["b"][0]) ** 2)  # noqa: E731  # one line is enough
        return dagad.reduce_sum(part, rows, theta, **options)

    found = [
        dagad.grad(loss)(theta),
        dagad.value_and_grad(loss)(theta)[1],
        dagad.vjp(loss, theta)[1](1.0)[0],
        dagad.evaluate(loss, theta).gradient(),
        dagad.hvp(loss, theta, theta),
        dagad.hessian(loss)(theta)["a"],
    ]
    for gradient in found:
        for leaf in (gradient["a"], gradient["b"][0]):
            leaf *= 0.1
            np.clip(leaf, -1.0, 1.0, out=leaf)
    rows = dagad.grad(loss, 1)(theta, X)
    rows += 1.0
    np.testing.assert_array_equal(loss(theta), loss(theta, np.arange(12.0).reshape(6, 2)))


# What is silently something else elsewhere


def test_is_the_length_of_rows_of_a_table_their_number(scheduler: Any) -> None:
    def count(rows: Any) -> Any:
        assert rows.shape == (len(rows), 2)
        assert dict(rows).keys() == {"a", "b"}
        return len(rows)

    assert dagad.reduce_sum(count, TABLE, grainsize=4, scheduler=scheduler) == len(TABLE)
    assert dagad.map(lambda row: float(len(row)), TABLE, scheduler=scheduler).tolist() == [2.0] * len(TABLE)


@pytest.mark.parametrize("fun", [np.sum, np.mean, np.exp, np.asarray, np.shape, lambda shards: np.ones(2) * shards])
def test_is_numpy_on_shards_refused_with_what_to_write(fun: Any, scheduler: Any) -> None:
    shards = dagad.shard(Y, grainsize=2, scheduler=scheduler)
    with pytest.raises(ArgumentsError, match=r"`np\..* was given Shards.*dagad\.reduce_sum\(f, shards\).*\.gather\(\)"):
        fun(shards)
    assert shards.n_chunks == 3


def test_is_a_gradient_that_is_nan_told_once_with_its_argument(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(non_finite, "_SOUGHT", Remembered(8))

    def chunk(rows: Any, theta: Any) -> Any:
        return np.sum(np.where(rows > theta["at"], np.sqrt(np.abs(rows - theta["at"])), 0.0) * theta["by"])

    def loss(scale: Any, theta: Any) -> Any:
        return scale * dagad.reduce_sum(chunk, Y, theta, grainsize=4, scheduler=scheduler)

    both = dagad.value_and_grad(loss, (0, 1))
    match = (
        r"`loss` gave a finite value, and a gradient that is nan in argument 1 \(`theta`\), leaf \['at'\].*np\.where"
    )
    with np.errstate(all="ignore"), pytest.warns(dagad.DagadWarning, match=match) as caught:
        both(2.0, {"at": 2.0, "by": 1.0})
    assert [one.filename for one in caught] == [__file__]
    with np.errstate(all="ignore"):
        assert np.isnan(both(2.0, {"at": 3.0, "by": 1.0})[1][1]["at"])


def test_has_a_gradient_the_type_of_its_argument(scheduler: Any) -> None:
    def loss(a: Any, b: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: np.sum(rows * t[0] + t[1]), Y, np.stack([a, b]), scheduler=scheduler)

    for found in (*dagad.grad(loss, (0, 1))(0.1, 0.2), *dagad.grad(loss, (0, 1))(np.float64(0.1), 0.2)):
        assert type(found) is np.float64
    assert dagad.grad(loss)(np.array(0.1), 0.2).shape == ()


def test_are_shards_of_a_closed_client_said_to_be_gone(cluster: Client) -> None:
    with Client(cluster.scheduler_info()["address"], set_as_default=False) as client:
        shards = dagad.shard(Y, grainsize=2, scheduler=client)
        assert "gone" not in repr(shards)
    assert repr(shards) == "<Shards: 6 rows in 3 chunks on distributed, gone since the client was closed>"


SUM = "sum"  # type checkers know that there is none
TOLD: dict[str, tuple[Callable[[], Any], str]] = {
    "positions": (
        lambda: dagad.value_and_grad(lambda t: t, cast(Any, (Y, Y))),
        r"was given a tuple of an array.*\(<lambda>\)\(\.\.\.\)",
    ),
    "None": (lambda: dagad.grad(lambda t: t)(None), r"Argument 0 \(`t`\) is None.*Give numbers"),
    "bool": (lambda: dagad.grad(lambda t: t)(True), "True and False have no derivative"),
    "sum": (lambda: getattr(dagad, SUM), r"Use `dagad\.reduce_sum`"),
    "n_jobs": (lambda: dagad.reduce_sum(np.sum, Y, **{"n_jobs": 2}), r"dask\.config\.set\(num_workers=4\)"),
    "attribute": (
        lambda: dagad.reduce_sum(lambda rows: rows.mean(), TABLE),
        r"`rows\[\"a\"\]` for a column, and for a",
    ),
    "number from map_rect": (lambda: dagad.map_rect(lambda row: row * 2.0, Y), r"Return `np\.atleast_1d\(value\)`"),
}


@pytest.mark.parametrize("name", TOLD)
def test_is_it_said_what_to_write(name: str) -> None:
    call, remedy = TOLD[name]
    with pytest.raises(dagad.DagadError, match=remedy):
        call()


LEAVES_NUMPY: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "vectorize": (lambda x, t: np.sum(np.vectorize(lambda v: v * t[0])(x)), r"`np\.vectorize` .*whole arrays"),
    "fromiter": (lambda x, t: np.sum(np.fromiter((v * t[0] for v in x), float)), r"`np\.fromiter`.*np\.stack\(parts\)"),
    "generator": (lambda x, t: np.random.default_rng(0).normal(t[0]), r"mean \+ scale \* noise"),
    "quad": (
        lambda x, t: scipy.integrate.quad(lambda s: s * t[0], 0, 1)[0],
        r"`scipy\.integrate\.quad`.*equations\.md",
    ),
    "solve_ivp": (
        lambda x, t: np.sum(scipy.integrate.solve_ivp(lambda s, y: -t[0] * y, (0, 1), [1.0]).y),
        r"`scipy\.integrate\.solve_ivp`.*equations\.md",
    ),
    "brentq": (
        lambda x, t: scipy.optimize.brentq(lambda s: s - t[0], 0, 9),
        r"`scipy\.optimize\.brentq` computes with ordinary numbers.*equations\.md",
    ),
}


def test_is_a_root_finder_in_c_told_before_it_calls_python_again_amid_the_error() -> None:
    """Python then may fail anywhere."""
    calls: list[float] = []

    def chunk(x: Any, t: Any) -> Any:
        return scipy.optimize.brentq(lambda s: calls.append(s) or s - t[0], 0, 9)  # type: ignore[func-returns-value]  # it returns None

    with pytest.raises(NotDifferentiableError, match=r"`scipy\.optimize\.brentq` computes with ordinary numbers"):
        dagad.grad(lambda theta: dagad.reduce_sum(chunk, Y, theta, scheduler="sync"))(np.array([1.0, 2.0]))
    assert set(calls) == {0.0}


@pytest.mark.parametrize("name", LEAVES_NUMPY)
def test_is_it_said_who_took_a_value_out_of_numpy_and_what_to_write(name: str) -> None:
    chunk, remedy = LEAVES_NUMPY[name]
    with pytest.raises(NotDifferentiableError, match=remedy):
        dagad.grad(lambda theta: dagad.reduce_sum(chunk, Y, theta, scheduler="sync"))(np.array([1.0, 2.0]))
