"""Explicit functions whose pullbacks find in some holder what their call has put there, until the next one does."""

from __future__ import annotations

import array
import collections
import contextvars
import functools
import pickle
import queue
import threading
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import dagad
from dagad.extend import explicit

ROWS = np.arange(1.0, 13.0).reshape(6, 2) / 5.0
X = np.array([0.7, -0.3])
WEIGHTS = np.array([3.0, 5.0])

Holder = tuple[Callable[[Any], Any], Callable[[], Any]]  # what puts something there, and what gets it again


class Saved(NamedTuple):
    rows: Any


class Bag:
    """An object of the user's, with what a class, a property and a method may hold."""

    shared: Any = None

    def __init__(self) -> None:
        self.stack, self._hidden = list[Any](), np.zeros(0)

    @property
    def hidden(self) -> Any:
        return self._hidden

    def top(self) -> Any:
        return self.stack[-1]


class Slots:
    __slots__ = ("rows",)


def in_a_dict(wrap: Callable[[Any], Any], unwrap: Callable[[Any], Any]) -> Callable[[], Holder]:
    def made() -> Holder:
        saved = dict[str, Any]()

        def put(rows: Any) -> None:
            saved["rows"] = wrap(rows)

        return put, lambda: unwrap(saved["rows"])

    return made


def on_a_stack() -> Holder:
    stack = list[Any]()
    return lambda rows: stack.append((rows, 1)), lambda: stack[-1][0]


def in_a_container(holder: Any, put: Callable[[Any, Any], Any], get: Callable[[Any], Any]) -> Callable[[], Holder]:
    def made() -> Holder:
        held = holder()
        return functools.partial(put, held), lambda: get(held)

    return made


def in_an_object(name: str, get: Callable[[Any], Any]) -> Callable[[], Holder]:
    def made() -> Holder:
        bag = Bag()
        return lambda rows: setattr(bag, name, rows), lambda: get(bag)

    return made


def on_the_stack_of_an_object() -> Holder:
    bag = Bag()
    return lambda rows: bag.stack.append(rows), lambda: bag.top()


def in_an_object_in_a_list() -> Holder:
    layers: list[Any] = [types.SimpleNamespace(), Slots()]
    return lambda rows: setattr(layers[1], "rows", rows), lambda: layers[1].rows


def in_a_class() -> Holder:
    kind: Any = type("Own", (Bag,), {"__module__": __name__})
    return lambda rows: setattr(kind, "shared", rows), lambda: kind.shared


def in_an_attribute_of_a_function() -> Holder:
    def helper() -> None: ...

    there: Any = helper
    return lambda rows: setattr(there, "rows", rows), lambda: there.rows


def in_a_module() -> Holder:
    module: Any = types.ModuleType("notebook")
    return lambda rows: setattr(module, "rows", rows), lambda: module.rows


def in_a_thread_local() -> Holder:
    local = threading.local()
    return lambda rows: setattr(local, "rows", rows), lambda: local.rows


def in_a_context_variable() -> Holder:
    variable = contextvars.ContextVar[Any]("rows")
    return variable.set, variable.get


CODE, KEPT = 0, ROWS


def in_a_global_number() -> Holder:
    def put(rows: Any) -> None:
        global CODE
        CODE = 10 * (round(rows[0, 0] * 5) // 2) + len(rows)

    return put, by_code


def by_code() -> Any:
    return ROWS[CODE // 10 :][: CODE % 10]


def in_a_global() -> Holder:
    def put(rows: Any) -> None:
        global KEPT
        KEPT = rows

    return put, lambda: KEPT


def in_bytes() -> Holder:
    held = bytearray(ROWS.nbytes)

    def put(rows: Any) -> None:
        held[: rows.nbytes] = rows.tobytes()
        held[rows.nbytes :] = bytes(ROWS.nbytes - rows.nbytes)

    return put, lambda: np.frombuffer(bytes(held)).reshape(-1, 2)


def in_a_strided_view_of_bytes() -> Holder:
    held = np.zeros((ROWS.size, 2))
    shown = memoryview(held)[::2]  # type: ignore[arg-type]  # an array has a buffer

    def put(rows: Any) -> None:
        np.asarray(shown)[...] = 0.0
        np.asarray(shown)[: len(rows)] = rows

    return put, lambda: np.array(shown)


class Unruly:
    """An object that says nothing of itself."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def beside_what_raises() -> Holder:
    held: dict[str, Any] = {"unruly": Unruly()}
    return lambda rows: held.update(rows=rows), lambda: held["rows"]


def in_an_array_of_python() -> Holder:
    held = array.array("d", [0.0] * ROWS.size)

    def put(rows: Any) -> None:
        for place in range(ROWS.size):
            held[place] = rows.flat[place] if place < rows.size else 0.0

    return put, lambda: np.array(held).reshape(-1, 2)


def in_a_large_array() -> Holder:
    bag: Any = types.SimpleNamespace(held=np.zeros((10_000, 2)))

    def put(rows: Any) -> None:
        bag.held[:] = 0.0
        bag.held[5_000 : 5_000 + len(rows)] = rows

    return put, lambda: bag.held[5_000:5_006].copy()


def in_a_view() -> Holder:
    bag: Any = types.SimpleNamespace(held=np.zeros((6, 2)))
    bag.shown = bag.held.view()
    bag.shown.flags.writeable = False

    def put(rows: Any) -> None:
        bag.held[:] = 0.0
        bag.held[: len(rows)] = rows

    return put, lambda: bag.shown.copy()


HOLDERS: dict[str, Callable[[], Holder]] = {
    "a tuple in a dict": in_a_dict(lambda rows: (rows, 1), lambda held: held[0]),
    "a named tuple in a dict": in_a_dict(Saved, lambda held: held.rows),
    "a list in a tuple": in_a_dict(lambda rows: ([rows],), lambda held: held[0][0]),
    "bytes in a dict": in_a_dict(pickle.dumps, pickle.loads),
    "a function in a dict": in_a_dict(lambda rows: lambda: rows, lambda held: held()),
    "a partial in a dict": in_a_dict(lambda rows: functools.partial(np.array, rows), lambda held: held()),
    "a whole number": in_a_dict(
        lambda rows: 10 * (round(rows[0, 0] * 5) // 2) + len(rows), lambda code: ROWS[code // 10 :][: code % 10]
    ),
    "a table in a dict": in_a_dict(lambda rows: pd.DataFrame(rows), lambda held: held.to_numpy()),
    "a sparse matrix in a dict": in_a_dict(sparse.csr_array, lambda held: held.toarray()),
    "a stack of tuples": on_a_stack,
    "a deque": in_a_container(collections.deque, lambda held, rows: held.append(rows), lambda held: held[-1]),
    "a dict of the library": in_a_container(
        collections.UserDict, lambda held, rows: held.update(rows=rows), lambda held: held["rows"]
    ),
    "a queue": in_a_container(queue.LifoQueue, lambda held, rows: held.put(rows), lambda held: held.queue[-1]),
    "a property": in_an_object("_hidden", lambda bag: bag.hidden),
    "the stack of an object": on_the_stack_of_an_object,
    "an object in a list": in_an_object_in_a_list,
    "a class": in_a_class,
    "a function": in_an_attribute_of_a_function,
    "a module": in_a_module,
    "a thread local": in_a_thread_local,
    "a context variable": in_a_context_variable,
    "a global number that a helper reads": in_a_global_number,
    "a global": in_a_global,
    "a dict that holds what raises": beside_what_raises,
    "a strided view of bytes": in_a_strided_view_of_bytes,
    "bytes that are written into": in_bytes,
    "an array of Python's": in_an_array_of_python,
    "a large array": in_a_large_array,
    "a read-only view": in_a_view,
}


def made_with(holder: str) -> Any:
    put, get = HOLDERS[holder]()

    @explicit
    def fun(rows: Any, x: Any) -> Any:
        own = np.array(rows).reshape(-1, 2)
        put(own)

        def pullback(seed: Any) -> Any:
            held = get()
            return None, seed * np.sum(np.cos(held * x) * held**2, axis=0)

        return np.sum(np.sin(own * x) * own, axis=0), pullback

    return fun


def right(x: Any, seed: Any) -> Any:
    return seed * np.sum(np.cos(ROWS * x) * ROWS**2, axis=0)


WAYS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a sum": lambda fun, x, how: dagad.reduce_sum(fun, ROWS, x, grainsize=2, scheduler=how),
    "a map": lambda fun, x, how: sum(dagad.map(fun, list(ROWS), x, scheduler=how)),
    "a sum of items": lambda fun, x, how: dagad.map_sum(fun, list(ROWS), x, grainsize=2, scheduler=how),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_pullback_finds_what_its_own_call_has_left_in_any_holder(holder: str, way: str) -> None:
    check(holder, way, "sync")


@pytest.mark.parametrize("way", WAYS)
def test_a_pullback_finds_what_its_own_call_has_left_for_its_thread(way: str) -> None:
    """Whichever thread calls it."""
    check("a thread local", way, "threads")


def check(holder: str, way: str, scheduler: str) -> None:
    fun = made_with(holder)
    found = dagad.grad(lambda x: np.sum(WEIGHTS * WAYS[way](fun, x, scheduler)))(X)
    np.testing.assert_allclose(found, right(X, WEIGHTS), rtol=1e-13)
    found = dagad.jacrev(lambda x: WAYS[way](fun, x, scheduler))(X)
    np.testing.assert_allclose(found, np.diag(right(X, np.ones(2))), rtol=1e-13, atol=1e-15)
    _, pullback = dagad.vjp(lambda x: WAYS[way](fun, x, scheduler), X)
    dagad.value_and_grad(lambda x: np.sum(WAYS[way](fun, x, scheduler)))(2.0 * X)
    for seed in (WEIGHTS, np.ones(2)):
        np.testing.assert_allclose(pullback(seed)[0], right(X, seed), rtol=1e-13)


def test_a_function_whose_pullback_reads_what_stays_the_same_runs_once_a_chunk() -> None:
    table, names, by_key = np.linspace(0.0, 1.0, 50), ["a", "b"], {"scale": 2.0, "rows": (ROWS, 3)}
    runs = list[int]()

    @explicit
    def fun(rows: Any, x: Any) -> Any:
        runs.append(len(rows))
        own = np.array(rows)

        def pullback(seed: Any) -> Any:
            scale = by_key["scale"] * table[-1] / len(names)
            return None, seed * np.sum(np.cos(own * x) * own**2, axis=0) * scale

        return np.sum(np.sin(own * x) * own, axis=0), pullback

    found = dagad.grad(lambda x: np.sum(WEIGHTS * dagad.reduce_sum(fun, ROWS, x, grainsize=2, scheduler="sync")))(X)
    np.testing.assert_allclose(found, right(X, WEIGHTS), rtol=1e-13)
    assert runs == [2, 2, 2]
