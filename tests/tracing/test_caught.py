"""Refusals that a function catches: the other way it goes gives the same value, or is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dask.delayed import delayed

import dagad
from dagad._tracing.caught import CAUGHT

ROWS = np.linspace(0.1, 2.0, 7)
T = 0.73
OTHER = r"The function has caught this error, and what it gives then is not what it gives without derivatives"


def as_float(t: Any) -> Any:
    try:
        return float(t)
    except TypeError:
        return 2.0


def as_int(t: Any) -> Any:
    try:
        return int(10 * t) / 10
    except Exception:
        return t


def as_entry(t: Any) -> Any:
    found = np.zeros(1)
    try:
        found[0] = t
    except Exception:
        return 2.0
    return found[0]


def as_array(t: Any) -> Any:
    try:
        return np.array([t, t])
    except Exception:
        return np.zeros(2)


def as_item(t: Any) -> Any:
    try:
        return np.exp(t).item() * np.ones(3)
    except Exception:
        return np.ones(2)


def with_math(t: Any) -> Any:
    try:
        return math.exp(t)
    except TypeError:
        return np.exp(t)


def is_number(t: Any) -> bool:
    try:
        float(t)
    except (TypeError, ValueError):
        return False
    return True


def by_kind(t: Any) -> Any:
    return t**2 if is_number(t) else np.sum(t * t)


def as_stack(t: Any) -> Any:
    try:
        return np.array([t, t**2])
    except dagad.DagadError:
        return np.stack([t, t**2])


def failing(t: Any) -> Any:
    try:
        float(t)
    except TypeError:
        return t**2
    raise ZeroDivisionError


def direct(fun: Any) -> Any:
    return lambda t: np.sum(fun(t)) * t


def in_chunks(fun: Any) -> Any:
    return lambda t: dagad.reduce_sum(lambda rows, t: np.sum(rows) * np.sum(fun(t)) * t, ROWS, t, grainsize=3)


def in_a_closure(fun: Any) -> Any:
    return lambda t: dagad.reduce_sum(lambda rows: np.sum(rows) * np.sum(fun(t)) * t, ROWS, grainsize=3)


MODES: dict[str, Callable[[Any], Any]] = {
    "grad": lambda fun: dagad.grad(fun)(T),
    "jvp": lambda fun: dagad.jvp(fun, (T,), (1.0,))[1],
    "hessian": lambda fun: dagad.hessian(fun)(T),
    "hvp": lambda fun: dagad.hvp(fun, (T,), (1.0,))[0],
}


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("place", [direct, in_chunks, in_a_closure])
@pytest.mark.parametrize("fun", [as_float, as_int, as_entry, as_array, as_item])
@pytest.mark.parametrize("mode", MODES)
def test_another_value_after_a_refusal_that_is_caught_is_refused(fun: Any, mode: str, place: Any) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=OTHER):
        MODES[mode](place(fun))
    assert not CAUGHT


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("place", [direct, in_chunks, in_a_closure])
@pytest.mark.parametrize(
    ("fun", "plain"),
    [(with_math, np.exp), (by_kind, lambda t: t**2), (as_stack, lambda t: np.stack([t, t**2])), (failing, np.square)],
)
@pytest.mark.parametrize("mode", MODES)
def test_the_same_value_by_another_way_has_its_derivatives(fun: Any, plain: Any, mode: str, place: Any) -> None:
    if fun is failing and place is not direct:
        return  # its chunks run without derivatives first
    assert MODES[mode](place(fun)) == pytest.approx(MODES[mode](place(plain)), rel=1e-12)
    assert not CAUGHT


def test_a_task_of_a_graph_that_catches_a_refusal_is_compared_with_itself() -> None:
    t = delayed(T)
    same, other = (delayed(fun)(t) for fun in (with_math, as_float))
    assert dagad.gradient(same, t).compute() == pytest.approx(math.exp(T))
    with pytest.raises(dagad.NotDifferentiableError, match=OTHER):
        dagad.gradient(other, t).compute()


def test_numbers_of_less_digits_and_nan_are_compared_as_they_are() -> None:
    def rounded(t: Any) -> Any:
        try:
            return np.float32(math.exp(t)) * np.array([1.0, np.nan, np.inf], np.float32)
        except TypeError:
            return np.exp(t) * np.array([1.0, np.nan, np.inf], np.float32)

    moved = dagad.jvp(rounded, (np.float32(T),), (np.float32(1.0),))[1]
    assert moved[0] == pytest.approx(math.exp(T), rel=1e-6)
