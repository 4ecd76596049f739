"""Journeys: is what can't be pickled, loaded or imported elsewhere told at once, with the remedy?"""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import autograd.numpy as anp
import pytest
from distributed import Client

import dagad
from dagad import reduce_sum
from dagad.extend import Linearization
from support.small_sums import X, grad, squares, total
from support.waiting import SOON


def soon(act: Callable[[], Any], kind: type[BaseException], remedy: str) -> None:
    began = time.monotonic()
    with pytest.raises(kind, match=remedy):
        act()
    assert time.monotonic() - began < SOON


@pytest.mark.sampled(8)
@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("where", ["closure", "rows", "shared", "closure with floats"])
def test_an_argument_that_cannot_be_pickled_is_refused_before_it_is_sent(
    where: str, differentiated: bool, cluster: Client
) -> None:
    lock = threading.Lock()
    locks: list[Any] = [lock] * 6

    def closed(rows: Any, *shared: Any) -> Any:
        with lock:
            return anp.sum(rows * shared[0])

    def plain(rows: Any, *shared: Any) -> Any:
        return anp.sum(rows[0]) * shared[0] if isinstance(rows, tuple) else anp.sum(rows) * shared[0]

    def loss(theta: Any) -> Any:
        fun = closed if where.startswith("closure") else plain
        rows: Any = (X, locks) if where == "rows" else X
        shared = (lock,) if where == "shared" else ()
        return reduce_sum(fun, rows, theta, *shared, grainsize=2, scheduler=cluster)

    act = dagad.grad(loss) if differentiated else loss
    soon(lambda: act(1.0), dagad.PortabilityError, r'can\'t be pickled.*lock.*use `scheduler="threads"`')
    assert grad(squares, scheduler=cluster) == -18.0


def test_a_function_that_cannot_be_pickled_runs_in_threads() -> None:
    lock = threading.Lock()

    def closed(rows: Any, theta: Any) -> Any:
        with lock:
            return squares(rows, theta)

    assert grad(closed, scheduler="threads") == -18.0


@pytest.mark.parametrize("what", ["function", "data"])
def test_a_module_that_is_missing_on_the_workers_is_named(
    what: str, cluster: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"only_here_{what}"
    code = "class Record:\n    pass\n\ndef fun(rows, theta):\n    return theta * 1.0\n"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    fun, shared = (module.fun, ()) if what == "function" else (lambda rows, theta, record: theta, (module.Record(),))

    def loss(theta: Any) -> Any:
        return reduce_sum(fun, X, theta, *shared, grainsize=2, scheduler=cluster)

    for act in (loss, dagad.grad(loss)):
        remedy = f"No module named '{name}'.*importable.*on every worker"
        soon(functools.partial(act, 1.0), dagad.PortabilityError, remedy)
    assert grad(squares, scheduler=cluster) == -18.0
    sys.modules.pop(name)


class Unloadable:
    """Can be pickled, but not loaded again."""

    def __reduce__(self) -> Any:
        return _refuse_to_load, ()


def _refuse_to_load() -> Any:
    raise RuntimeError("not in this process")


def test_an_object_that_cannot_be_loaded_on_a_worker_fails_in_its_task(cluster: Client) -> None:
    thing = Unloadable()

    def fun(rows: Any, theta: Any) -> Any:
        assert thing is not None
        return theta * anp.sum(rows)

    soon(
        lambda: grad(fun, scheduler=cluster), dagad.PortabilityError, "could not be unpickled here.*not in this process"
    )
    assert grad(squares, scheduler=cluster) == -18.0


def test_a_result_that_cannot_be_pickled_does_not_hang(cluster: Client) -> None:
    def fun(rows: Any, theta: Any) -> Any:
        return SimpleNamespace(lock=threading.Lock())

    soon(lambda: total(fun, scheduler=cluster), dagad.StructureError, "can't be summed")
    assert grad(squares, scheduler=cluster) == -18.0


def test_a_linearization_that_lost_its_recipe_says_so_when_it_is_pulled() -> None:
    class Task:
        lock = threading.Lock()

        def __init__(self) -> None:
            self.mine = threading.Lock()

        def value(self, x: Any) -> Any:
            return x

        def record(self, x: Any) -> Any:
            return x, lambda seed: (seed,), int

    moved = pickle.loads(pickle.dumps(Linearization.recorded(Task(), (2.0,))))
    assert moved.value == 2.0
    with pytest.raises(dagad.PortabilityError, match=r"without its recipe.*can't be pickled"):
        moved.pull(1.0)
