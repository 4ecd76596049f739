"""Identities of functions: the same when one is defined again, different where what it calls differs."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from autograd import tracer
from autograd.extend import primitive

import dagad
from dagad._kernels.items import ItemSum
from dagad._values.fingerprint import identity_of
from dagad.extend import explicit


def a_sum(rows: Any) -> Any:
    return anp.sum(rows)


def a_vector(rows: Any) -> Any:
    return rows * 1.0


def called(fun: Any) -> Any:
    return lambda rows: fun(rows)


def wrapping(fun: Any) -> Any:
    @functools.wraps(fun)
    def wrapper(rows: Any) -> Any:
        return fun(rows)

    return wrapper


def summing(fun: Any) -> Any:
    @functools.wraps(fun)
    def wrapper(rows: Any) -> Any:
        return anp.sum(fun(rows))

    return wrapper


def by_default(fun: Any) -> Any:
    def inner(rows: Any, fun: Any = fun) -> Any:
        return fun(rows)

    return inner


def apply(fun: Any, rows: Any) -> Any:
    return fun(rows)


class Model:
    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def __call__(self, rows: Any) -> Any:
        return rows

    def loss(self, rows: Any) -> Any:
        return rows


class Other(Model):
    pass


WAYS: dict[str, Callable[[Any], Any]] = {
    "closure": called,
    "wraps": wrapping,
    "default": by_default,
    "partial": lambda fun: functools.partial(apply, fun),
    "deep": lambda fun: called(wrapping(functools.partial(apply, called(fun)))),
    "primitive": primitive,
    "items": ItemSum,
    "explicit": explicit,
    "cached": functools.lru_cache,
}


@pytest.fixture(autouse=True)
def _functions_of_numpy_keep_their_primitives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd takes what was made a primitive last for that of a function of numpy's, in the whole process."""
    for fun in (np.sum, np.cumsum):
        monkeypatch.setitem(tracer.trace_primitives_map, fun, tracer.trace_primitives_map[fun])


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_functions_made_of_two_functions_have_two_identities(way: Any) -> None:
    assert identity_of(way(a_sum)) == identity_of(way(a_sum))
    assert identity_of(way(a_sum)) != identity_of(way(a_vector))
    assert identity_of(way(a_sum)) != identity_of(a_sum)
    assert identity_of(way(np.sum)) != identity_of(way(np.cumsum))


def test_functions_made_by_two_decorators_have_two_identities() -> None:
    assert len({identity_of(made(a_vector)) for made in (called, wrapping, summing)}) == 3


def test_a_decorated_primitive_has_another_identity() -> None:
    made: Any = primitive(a_sum)
    assert len({identity_of(each) for each in (made, wrapping(made), summing(made))}) == 3


@pytest.mark.parametrize(
    "held", [lambda n: np.full(3, n), float, lambda n: [n], lambda n: Model(n), lambda n: Model(n).loss]
)
def test_a_function_that_is_defined_again_has_the_same_identity(held: Any) -> None:
    def made(held: Any) -> Any:
        return lambda rows: (rows, held)

    assert identity_of(made(held(1.0))) == identity_of(made(held(2.0)))


def test_a_bound_method_of_an_array_is_the_same_when_it_is_looked_up_again() -> None:
    array = np.ones(3)
    assert identity_of(called(array.dot)) == identity_of(called(array.dot))
    assert identity_of(called(array.dot)) != identity_of(called(array.sum))


def test_instances_and_methods_go_by_their_class() -> None:
    assert identity_of(Model(1)) == identity_of(Model(2)) != identity_of(Other(1))
    assert identity_of(Model(1).loss) == identity_of(Model(2).loss) != identity_of(Other(1).loss)


def test_a_function_that_holds_itself_has_an_identity() -> None:
    def fun(rows: Any) -> Any:
        return fun(rows)

    assert identity_of(fun) == identity_of(fun)


def test_many_functions_that_hold_each_other_are_looked_at_once() -> None:
    funs: list[Any] = [a_sum] * 30

    def made() -> Any:
        a, b, c, d = funs[-4:]
        return lambda rows: (a, b, c, d)

    for _ in range(30):
        funs.append(made())
    assert hash(identity_of(funs[-1])) == hash(identity_of(funs[-1]))


def test_a_class_of_chunk_functions_is_let_go_with_all_that_hangs_on_it() -> None:
    seen = []

    def total(fun: Any, *shared: Any) -> Any:
        return dagad.reduce_sum(fun, np.arange(10.0), *shared, grainsize=5, scheduler="sync")

    def evaluate() -> None:
        class Factory:
            def __call__(self, rows: Any, t: Any) -> Any:
                return np.sum(rows * t)

            def loss(self, rows: Any, t: Any) -> Any:
                return np.sum(rows * t)

        seen.append(weakref.ref(Factory))
        made = Factory()
        for fun in (made, made.loss, functools.partial(made), called(functools.partial(made, t=1.0))):
            shared = () if hasattr(fun, "__closure__") and not hasattr(fun, "__self__") else (1.0,)
            assert total(fun, *shared) == 45.0
            assert dagad.grad(lambda t, fun=fun, shared=shared: t * total(fun, *shared))(2.0) == 45.0

    for _ in range(3):
        evaluate()
    gc.collect()
    assert [reference() for reference in seen] == [None] * 3
