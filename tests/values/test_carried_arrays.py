"""Arrays that a chunk function carries: are they laid out in this process as they would be in another?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad._values.canonical import contiguous
from dagad._values.closures import with_arrays
from dagad.extend import explicit
from support.gated_chunks import bits

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

WIDE = np.random.default_rng(0).standard_normal((64, 64))
STRIDED = WIDE[::2, ::2]
X = np.random.default_rng(1).standard_normal(12)


def is_contiguous(array: Any) -> float:
    return float(array.flags.c_contiguous or array.flags.f_contiguous)


def in_a_closure() -> Callable[..., Any]:
    weights = STRIDED
    return lambda rows, theta: is_contiguous(weights) + 0.0 * theta


def in_a_helper() -> Callable[..., Any]:
    inner = in_a_closure()
    return lambda rows, theta: inner(rows, theta)


def of_a_partial(weights: Any, rows: Any, theta: Any, more: Any = None) -> Any:
    return is_contiguous(weights) * is_contiguous(more) + 0.0 * theta


def in_a_default() -> Callable[..., Any]:
    def fun(rows: Any, theta: Any, weights: Any = STRIDED, *, more: Any = STRIDED) -> Any:
        return is_contiguous(weights) * is_contiguous(more) + 0.0 * theta

    return fun


def by_hand() -> Callable[..., Any]:
    weights = STRIDED
    return explicit(lambda rows, theta: (is_contiguous(weights), lambda seed: (0.0 * rows, 0.0 * seed)))


MADE: dict[str, Callable[[], Any]] = {
    "closure": in_a_closure,
    "helper": in_a_helper,
    "partial": lambda: functools.partial(of_a_partial, STRIDED, more=STRIDED),
    "defaults": in_a_default,
    "explicit": by_hand,
}
REDUCTIONS = {"reduce_sum": dagad.reduce_sum, "map_sum": dagad.map_sum}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
@pytest.mark.parametrize("reduction", REDUCTIONS.values(), ids=REDUCTIONS)
def test_a_carried_array_is_contiguous_as_on_a_worker(make: Any, reduction: Any, scheduler: Any) -> None:
    def loss(theta: Any) -> Any:
        return reduction(make(), X, theta, grainsize=1, scheduler=scheduler)

    assert loss(1.0) == 12.0
    assert float(dagad.value_and_grad(loss)(1.0)[0]) == 12.0


def test_a_function_that_carries_strided_arrays_has_the_bits_of_a_worker(cluster: Client) -> None:
    weights = STRIDED

    def item(x: Any, theta: Any) -> Any:
        return anp.sum(anp.tanh(anp.dot(weights, theta * x)))

    def found(where: Any) -> list[bytes]:
        def loss(theta: Any) -> Any:
            return dagad.map_sum(functools.partial(item), X, theta, grainsize=4, scheduler=where)

        return bits(dagad.value_and_grad(loss)(STRIDED[0].copy()))

    assert found("sync") == found("threads") == found(cluster)


def test_functions_that_carry_no_strided_array_stay_what_they_are() -> None:
    ordered, count = np.zeros(3), [0]

    def fun(rows: Any) -> Any:
        count[0] += 1
        return np.sum(rows * ordered)

    for same in (fun, functools.partial(fun), len, np.sum, anp.sin):
        assert with_arrays(same, contiguous) is same


def test_variables_that_others_write_to_stay_shared() -> None:
    weights, n_calls = STRIDED, 0

    def fun(rows: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        return is_contiguous(weights)

    assert dagad.reduce_sum(fun, X, grainsize=4, scheduler="sync") == 3.0
    assert n_calls == 3


def test_a_recursive_function_may_carry_a_strided_array() -> None:
    weights = STRIDED

    def fun(rows: Any) -> Any:
        return is_contiguous(weights) if len(rows) == 1 else fun(rows[:1])

    assert np.isfinite(dagad.reduce_sum(fun, X, grainsize=4, scheduler="sync"))


def test_functions_go_on_sharing_a_variable_that_holds_an_array() -> None:
    """Each got a variable of its own: 1080.0 for 324.0, and no gradient."""

    def chunk_of(t: Any) -> Any:
        weights = np.arange(12.0).reshape(3, 4)[:, ::2]  # laid out anew

        def put() -> None:
            nonlocal weights
            weights = weights * 0.0 + t

        def chunk(rows: Any) -> Any:
            put()
            return np.sum(rows) * anp.sum(weights)

        return chunk

    rows = np.arange(1.0, 9.0)

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(chunk_of(t), rows, grainsize=8, scheduler="sync")

    assert loss(1.5) == 324.0
    assert dagad.value_and_grad(loss)(1.5) == (324.0, 216.0)
    assert dagad.vjp(loss, 1.5)[1](1.0) == (216.0,)
