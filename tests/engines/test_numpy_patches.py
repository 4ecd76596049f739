"""What of numpy is changed while jax traces: for the thread that does, for as long as it does, and where needed."""

from __future__ import annotations

import inspect
import os
import pickle
import random
import threading
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.random import bit_generator as typed_bit_generator

import dagad
from dagad._engines.xla import patches
from dagad._engines.xla.patches import arrays_stay_traced, seeds_are_seen

bit_generator: Any = typed_bit_generator  # which has no type for what it uses
ROWS = np.linspace(0.1, 2.0, 24)
NAMES = ("asarray", "array", "asanyarray", "ascontiguousarray")
PLACES = (
    [(np, name) for name in NAMES]
    + [(bit_generator, "randbits"), (random, "_urandom"), (random.Random, "seed")]
    + [(os, name) for name in ("urandom", "getrandom") if hasattr(os, name)]
    + [(uuid.UUID, "__init__")]
)
STOCK = {name: getattr(home, name) for home, name in PLACES}


def at(fun: Any, t: Any = 0.7) -> Any:
    return dagad.value_and_grad(lambda t: dagad.reduce_sum(fun, ROWS, t, grainsize=6, scheduler="sync", engine="jax"))(
        t
    )


def is_numpys_own() -> bool:
    return all(getattr(home, name) is STOCK[name] for home, name in PLACES)


def in_a_thread(call: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


class Picky:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("no array of this")


NOTHING: Any = ()
STRANGE: Any = {"colour": "red"}
CALLS: dict[str, Callable[[], Any]] = {
    "list": lambda: np.asarray([1, 2.5]),
    "keyword": lambda: np.asarray(a=[1, 2], dtype=float),
    "dtype": lambda: np.array([[1, 2], [3, 4]], np.float32, order="F").flags.f_contiguous,
    "copy": lambda: np.array(ROWS, copy=False) is ROWS,
    "same": lambda: np.asarray(ROWS) is ROWS,
    "matrix": lambda: type(np.asanyarray(np.ma.ones(2))).__name__,
    "like": lambda: np.asarray([1.0], like=np.ones(1)),
    "ndmin": lambda: np.array(3.0, ndmin=2),
    "ragged": lambda: np.array([[1.0], [1.0, 2.0]]),
    "nothing": lambda: np.asarray(*NOTHING),
    "strange": lambda: np.asarray([1.0], **STRANGE),
    "picky": lambda: np.asarray(Picky()),
    "words": lambda: np.asarray(["a"], float),
    "contiguous": lambda: np.ascontiguousarray(ROWS[::2]).flags.c_contiguous,
    "module": lambda: np.asarray.__module__ + np.asarray.__name__ + str(np.asarray.__doc__)[:60],
    "pickle": lambda: pickle.loads(pickle.dumps(np.asarray))([1.0]),
    "repr": lambda: repr(np.asarray),
    "stack": lambda: np.vstack([[1.0], [2.0]]),
    "generator": lambda: np.random.default_rng().normal() is not None,
    "seeded": lambda: np.random.default_rng(3).normal(),
    "python's": lambda: random.Random().random() is not None,
    "python's seeded": lambda: random.Random(3).random(),
    "python's from words": lambda: random.Random("three").getstate()[1][0],
    "the system's": lambda: len(os.urandom(3)) + random.SystemRandom().randrange(1),
    "a name for something": lambda: str(uuid.UUID(int=7)) + str(uuid.uuid4().version),
    "state": lambda: np.random.RandomState().get_state(legacy=False)["bit_generator"],
}


def seen() -> dict[str, str]:
    """Return what these calls give, or how they fail."""
    found = {}
    for name, call in CALLS.items():
        try:
            found[name] = repr(call())
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def test_another_thread_sees_numpys_own_results_and_errors_while_one_traces() -> None:
    before, meanwhile = seen(), list[Any]()

    def own(rows: Any, t: Any) -> Any:
        x = np.asarray(rows)
        assert np.asarray is not STOCK["asarray"]
        meanwhile.append(in_a_thread(seen))
        return np.sum(x * t)

    assert at(own)[1] == pytest.approx(ROWS.sum())
    assert before["ragged"].startswith("ValueError")
    assert [found == before for found in meanwhile] == [True] * len(meanwhile) != []
    assert is_numpys_own()
    assert seen() == before


def test_the_thread_that_traces_has_numpys_own_functions_of_what_is_not_traced() -> None:
    before, meanwhile = seen(), list[Any]()

    def own(rows: Any, t: Any) -> Any:
        x = np.asarray(rows)
        meanwhile.append(seen())
        return np.sum(x * t)

    at(own)
    assert [found == before for found in meanwhile] == [True] * len(meanwhile) != []


def test_a_function_that_asks_for_no_arrays_leaves_them_alone() -> None:
    def own(rows: Any, t: Any) -> Any:
        assert all(getattr(np, name) is STOCK[name] for name in NAMES)
        return np.sum(rows * t)

    assert at(own)[1] == pytest.approx(ROWS.sum())


@pytest.mark.parametrize("make", NAMES)
def test_arrays_of_what_is_traced_stay_traced(make: str) -> None:
    def own(rows: Any, t: Any) -> Any:
        return np.sum(getattr(np, make)(rows, dtype=float) * getattr(np, make)([t, 2.0 * t])[1])

    assert at(own)[1] == pytest.approx(2.0 * ROWS.sum())


def test_numpy_is_its_own_again_however_a_trace_ends() -> None:
    def failing(rows: Any, t: Any) -> Any:
        x = np.asarray(rows)
        if x[0] > t:
            return np.sum(x)
        return np.sum(x * t)

    def swallowing(rows: Any, t: Any) -> Any:
        try:
            x = np.asarray(rows)
        except Exception:
            x = 0.0 * rows
        return np.sum(x * t)

    with pytest.raises(dagad.NotDifferentiableError, match=r"`if x\[0\] > t:`"):
        at(failing)
    assert is_numpys_own()
    assert at(swallowing)[1] == pytest.approx(ROWS.sum())  # it is traced again all the same
    assert is_numpys_own()


def test_the_last_thread_that_leaves_puts_numpys_own_back() -> None:
    with arrays_stay_traced(), arrays_stay_traced():
        inside, leave = threading.Event(), threading.Event()

        def other() -> None:
            with arrays_stay_traced():
                inside.set()
                leave.wait(60)

        thread = threading.Thread(target=other)
        thread.start()
        inside.wait(60)
    assert np.asarray is not STOCK["asarray"]
    leave.set()
    thread.join()
    assert is_numpys_own()


def test_a_function_that_somebody_has_put_into_numpy_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def another(*args: Any, **kwargs: Any) -> Any:
        return STOCK["asarray"](*args, **kwargs)

    with arrays_stay_traced():
        kept = np.asarray
        monkeypatch.setattr(np, "asarray", another)
    assert np.asarray is another
    assert kept([1.0]).tolist() == [1.0]
    monkeypatch.setattr(np, "array", another)
    with arrays_stay_traced():
        assert np.array is another
    monkeypatch.undo()
    np.asarray = STOCK["asarray"]


def signature_of(function: Any) -> str:
    try:
        return str(inspect.signature(function))
    except ValueError:
        return "none, as in numpy before 2.4"


def test_signatures_and_names_are_numpys_in_the_meantime() -> None:
    def said() -> dict[str, tuple[str, str]]:
        return {name: (getattr(home, name).__name__, signature_of(getattr(home, name))) for home, name in PLACES}

    before = said()
    assert "bits" in before["randbits"][1] or "k" in before["randbits"][1]  # there is something to compare
    with arrays_stay_traced(), seeds_are_seen():
        assert said() == before
        assert not inspect.isclass(np.asarray)
        assert {one.name for patch in (arrays_stay_traced, seeds_are_seen) for one in patch.ours} == set(STOCK)
    assert patches.__doc__
    assert all(name in patches.__doc__ for name in STOCK)
