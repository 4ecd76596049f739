"""Notes: does a user's exception say in every mode which chunk, rows and item it comes from, and on which way?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as np
import numpy as onp
import pytest
from autograd.extend import defvjp, primitive

import dagad
from dagad._values import pytree
from dagad.extend import CompensatedSum

X = onp.random.default_rng(5).standard_normal((7, 3))
THETA, ONES = onp.array([0.4, -0.2, 0.9]), onp.ones(3)
WRONG = X[4, 0]


@primitive  # type: ignore[untyped-decorator]  # autograd has no types
def fragile(x: Any) -> Any:
    return onp.sum(x)


def broken_pullback(ans: Any, x: Any) -> Any:
    del ans

    def pull(g: Any) -> Any:
        if onp.any(pytree.plain(x) == WRONG):
            raise ZeroDivisionError("on purpose")
        return g * onp.ones(onp.shape(x))

    return pull


defvjp(fragile, broken_pullback)


def failing(rows: Any, theta: Any) -> Any:
    if onp.any(onp.asarray(pytree.plain(rows)) == WRONG):
        raise ZeroDivisionError("on purpose")
    return np.sum(np.sin(rows * theta))


def failing_later(rows: Any, theta: Any) -> Any:
    return fragile(rows * 1.0) * np.sum(theta)


def added(a: Any, b: Any) -> Any:
    return a + b


def operation(name: str, f: Callable[..., Any], x: Any, theta: Any, scheduler: Any = "sync") -> Any:
    options: Any = {"grainsize": 3, "scheduler": scheduler}
    if name == "compensated":
        return dagad.reduce_sum(f, x, theta, sum=CompensatedSum(), **options)
    if name == "map_reduce":
        return dagad.map_reduce(f, added, x, theta, **options)
    if name == "map_rect":
        return np.sum(dagad.map_rect(lambda x, t: f(x, t) * onp.ones(2), x, theta, **options))
    return np.sum(getattr(dagad, name)(f, x, theta, **options))


OPERATIONS = ["reduce_sum", "compensated", "map_sum", "map", "map_rect", "map_reduce"]
MODES: dict[str, Callable[[Any, Any], Any]] = {
    "value": lambda fun, at: fun(at),
    "grad": lambda fun, at: dagad.grad(fun)(at),
    "vjp": lambda fun, at: dagad.vjp(fun, at)[1](1.0),
    "jvp": lambda fun, at: dagad.jvp(fun, at, onp.ones(at.shape)),
    "jacfwd": lambda fun, at: dagad.jacfwd(fun)(at),
    "jacrev": lambda fun, at: dagad.jacrev(fun)(at),
    "hvp": lambda fun, at: dagad.hvp(fun, at, onp.ones(at.shape)),
    "hessian": lambda fun, at: dagad.hessian(fun)(at),
    "grad of grad": lambda fun, at: dagad.grad(lambda t: np.sum(dagad.grad(fun)(t)))(at),
}


def notes_of(mode: str, fun: Callable[[Any], Any], at: Any) -> list[str]:
    with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
        MODES[mode](fun, at)
    return list(getattr(caught.value, "__notes__", []))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_notes_name_chunk_and_rows_in_every_mode(name: str, mode: str) -> None:
    for at, notes in (
        (THETA, notes_of(mode, lambda t: operation(name, failing, X, t), THETA)),
        (X, notes_of(mode, lambda x: operation(name, failing, x, THETA), X)),
    ):
        assert any("value of chunk 1 (rows 3:6)" in note for note in notes), (at.shape, notes)
        assert any("item 4" in note for note in notes) == (name in ("map", "map_rect"))


@pytest.mark.parametrize("mode", ["grad", "vjp", "jacrev"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_notes_of_an_exception_say_that_it_was_in_a_pullback(name: str, mode: str) -> None:
    notes = notes_of(mode, lambda x: operation(name, failing_later, x, THETA), X)
    assert any("pullback of chunk 1 (rows 3:6)" in note for note in notes), notes


@pytest.mark.parametrize("mode", ["hvp", "hessian", "grad of grad"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_notes_of_an_exception_in_a_differentiated_pullback_name_its_chunk(name: str, mode: str) -> None:
    notes = notes_of(mode, lambda x: operation(name, failing_later, x, THETA), X)
    assert any("of chunk 1 (rows 3:6)" in note for note in notes), notes


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["compensated", "map", "map_reduce"])
def test_notes_come_from_other_processes(name: str, scheduler: Any) -> None:
    for mode in ("value", "jvp", "hvp"):
        notes = notes_of(mode, lambda t: operation(name, failing, X, t, scheduler), THETA)
        assert any("value of chunk 1 (rows 3:6)" in note for note in notes), notes
