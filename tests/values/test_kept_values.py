"""Values that chunks keep: is one of another chunk, or of a derivative that is over, refused in every mode?"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import autograd.numpy as np
import pytest

import dagad
from support.every_mode import MODES, check, derivatives
from support.waiting import PATIENCE
from support.waves import ROWS

LEAKS: dict[str, Callable[[], Callable[[Any, Any], Any]]] = {}
MEMO: dict[str, Any] = {}


def leak(build: Any) -> Any:
    return LEAKS.setdefault(build.__name__, build)


@leak
def a_dict_in_a_closure() -> Any:
    cache: dict[str, Any] = {}
    return lambda rows, t: np.sum(rows * cache.setdefault("t", t**2))


@leak
def a_dict_in_a_closure_beside_the_value() -> Any:
    cache: dict[str, Any] = {}
    return lambda rows, t: np.sum(rows * cache.setdefault("t", t**2) * t)


@leak
def a_nonlocal_variable() -> Any:
    kept = None

    def chunk(rows: Any, t: Any) -> Any:
        nonlocal kept
        kept = t**2 if kept is None else kept
        return {"a": [np.sum(rows * kept), t]}["a"][0]

    return chunk


@leak
def a_field_of_a_record() -> Any:
    record = types.SimpleNamespace(kept=[])

    def chunk(rows: Any, t: Any) -> Any:
        record.kept.append(t**2)
        return np.sum(rows * record.kept[0])

    return chunk


@leak
def a_global_dict() -> Any:
    MEMO.clear()
    return lambda rows, t: np.sum(rows * MEMO.setdefault("t", t**2))


@leak
def a_cache_of_a_derivative_inside_the_chunk() -> Any:
    cache: dict[str, Any] = {}

    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(rows) * dagad.grad(lambda u: cache.setdefault("u", u**3))(t)

    return chunk


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LEAKS)
@pytest.mark.parametrize("place", ["sync", "threads"])
def test_a_traced_value_of_another_chunk_is_refused_in_every_mode(name: str, mode: str, place: str) -> None:
    chunk = LEAKS[name]()
    with pytest.raises(dagad.ClosureError, match=r"shared argument|Compute it again"):
        check(mode, lambda t: dagad.reduce_sum(chunk, ROWS, t, grainsize=2, scheduler=place), [0.0] * 3)
    MEMO.clear()


@pytest.mark.parametrize("mode", MODES)
def test_a_value_left_over_from_a_derivative_that_is_over_is_refused(mode: str) -> None:
    cache: dict[str, Any] = {}

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: np.sum(rows * cache.setdefault("t", t**2)), ROWS, t, grainsize=9)

    right = derivatives(lambda t: np.sum(ROWS) * t**2)
    assert dagad.grad(loss)(0.7) == pytest.approx(right[1])  # one chunk: it is its own value
    with pytest.raises(dagad.ClosureError, match=r"kept, in a cache .* Compute it again"):
        check(mode, loss, right)
    if mode != "autograd's grad":
        with pytest.raises(dagad.ClosureError, match="Compute it again"):
            check(mode, lambda t: t * cache["t"], right)


@pytest.mark.parametrize("mode", MODES)
def test_a_value_of_a_derivative_that_another_thread_is_in_is_refused(mode: str) -> None:
    """It was taken for a constant: 0 for the derivative inside, without a word, when two threads met there."""
    cache: dict[str, Any] = {}
    put, taken = threading.Event(), threading.Event()

    def cube(u: Any, leads: bool) -> Any:
        if leads:
            cache["u"] = u**3
            put.set()
            taken.wait(PATIENCE)
        put.wait(PATIENCE)
        return cache["u"]

    def chunk(rows: Any, t: Any) -> Any:
        leads = rows[0] == ROWS[0]
        try:
            return np.sum(rows) * dagad.grad(lambda u: cube(u, leads))(t)
        finally:
            if not leads:
                taken.set()

    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(dagad.ClosureError, match=r"shared argument|Compute it again"):
            check(mode, lambda t: dagad.reduce_sum(chunk, ROWS, t, grainsize=5, scheduler=pool), [0.0] * 3)


@pytest.mark.parametrize("mode", ["value_and_grad", "jvp", "hessian"])
def test_a_traced_value_of_another_chunk_is_refused_in_maps_and_nested_reductions_too(mode: str) -> None:
    def chunk(total: Any) -> Any:
        cache: dict[str, Any] = {}
        return lambda rows, t: total(rows * cache.setdefault("t", t**2))

    def nested(rows: Any, t: Any) -> Any:
        return dagad.reduce_sum(chunk(np.sum), rows, t, grainsize=1, scheduler="sync")

    losses: list[Callable[[Any], Any]] = [
        lambda t: dagad.map_sum(chunk(np.sum), ROWS, t, grainsize=4, scheduler="sync"),
        lambda t: np.sum(dagad.map(chunk(np.sum), ROWS, t, grainsize=4, scheduler="sync")),
        lambda t: np.sum(dagad.map_rect(chunk(lambda x: x * np.ones(2)), ROWS, t, grainsize=4, scheduler="sync")),
        lambda t: dagad.map_reduce(chunk(np.sum), np.add, ROWS, t, grainsize=4, scheduler="sync"),
        lambda t: dagad.reduce_sum(nested, ROWS, t, grainsize=9, scheduler="sync"),
    ]
    for loss in losses:
        with pytest.raises(dagad.ClosureError, match=r"shared argument|Compute it again"):
            check(mode, loss, [0.0] * 3)
