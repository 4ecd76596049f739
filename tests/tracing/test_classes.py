"""Classes of traced values: the user's code is told that of the value within, libraries are told the truth."""

from __future__ import annotations

import copy
import functools
import numbers
from typing import Any

import numpy as np
import pytest

import dagad
from dagad._tracing.traced_array import TracedArray
from support.compiled_quickly import compiled_quickly as compiled_quickly

ENGINES = [None, pytest.param("jax", marks=pytest.mark.needs("jax"))]
X = np.array([1.0, 2.0, 4.0])
THETA = np.array([0.7, -0.3])
is_scalar: Any = np.isscalar  # to type checkers it would say that an array is none


def of_an_array(rows: Any, theta: Any) -> Any:
    return np.sum(rows) * np.sum(theta**2 if isinstance(theta, np.ndarray) else theta)


def of_rows(rows: Any, theta: Any) -> Any:
    return np.sum(rows**2 if isinstance(rows, np.ndarray) else rows) * np.sum(theta)


def of_a_float(rows: Any, theta: Any) -> Any:
    return np.sum(rows) * (theta[0] ** 2 if isinstance(theta[0] * theta[1], float) else theta[0])


def of_a_real_number(rows: Any, theta: Any) -> Any:
    return np.sum(rows) * (theta[0] ** 2 if isinstance(theta[0], numbers.Real) else theta[0])


def of_a_scalar(rows: Any, theta: Any) -> Any:
    return np.sum(rows) * (theta[0] ** 2 if is_scalar(theta[0]) else theta[0])


def by_a_pattern(rows: Any, theta: Any) -> Any:
    match theta[1]:
        case float():
            return np.sum(rows) * theta[1] ** 2
        case _:
            return np.sum(rows) * theta[1]


@functools.singledispatch
def dispatched(value: Any) -> Any:
    return value


@dispatched.register(np.ndarray)
def _of_arrays(value: np.ndarray[Any, Any]) -> Any:
    return value**2


def by_dispatch(rows: Any, theta: Any) -> Any:
    return np.sum(dispatched(rows)) * np.sum(dispatched(theta))


def of_a_length(rows: Any, theta: Any) -> Any:
    number = theta[0] * theta[1]
    return (
        np.sum(rows)
        * (number if hasattr(number, "__len__") else number**2)
        * (len(theta) if hasattr(theta, "__len__") else 1.0)
    )


def of_an_iterator(rows: Any, theta: Any) -> Any:
    number = theta[0] * theta[1]
    return np.sum(rows) * (number if getattr(number, "__iter__", None) else number**2) * sum(theta)


ASKING = [
    of_a_length,
    of_an_iterator,
    of_an_array,
    of_rows,
    of_a_float,
    of_a_real_number,
    of_a_scalar,
    by_a_pattern,
    by_dispatch,
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("function", ASKING, ids=lambda function: function.__name__)
def test_a_function_that_asks_for_a_class_goes_the_same_way_traced_or_not(function: Any, engine: Any) -> None:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(function, X, theta, engine=engine, scheduler="sync")

    value, gradient = dagad.value_and_grad(loss)(THETA)
    differences = [(function(X, THETA + step) - function(X, THETA - step)) / 2e-6 for step in 1e-6 * np.eye(len(THETA))]
    np.testing.assert_allclose(value, function(X, THETA), rtol=1e-14)
    np.testing.assert_allclose(gradient, differences, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(dagad.jvp(loss, (THETA,), (X[:2],))[1], gradient @ X[:2], rtol=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_being_differentiated_are_arrays_to_the_user(engine: Any) -> None:
    def loss(rows: Any) -> Any:
        return dagad.reduce_sum(of_rows, rows, THETA, engine=engine, scheduler="sync")

    np.testing.assert_allclose(dagad.grad(loss)(X), 2.0 * X * np.sum(THETA), rtol=1e-14)


def test_a_traced_value_is_of_the_class_of_the_value_within_and_no_other() -> None:
    def looked_at(theta: Any, number: Any) -> Any:
        assert type(theta) is TracedArray
        assert isinstance(theta, TracedArray)
        assert isinstance(theta, np.ndarray)
        assert not isinstance(theta, list | tuple | float | np.generic)
        assert isinstance(theta[0], np.float64)
        assert not isinstance(theta[0], np.ndarray)
        assert isinstance(number, float)
        assert not isinstance(number, int)
        assert theta.__class__ is np.ndarray
        return np.sum(theta) * number

    np.testing.assert_array_equal(dagad.grad(looked_at)(THETA, 2.0), [2.0, 2.0])
    np.testing.assert_allclose(dagad.hessian(lambda theta: looked_at(theta**2, 1.5))(THETA), 3.0 * np.eye(2))


def test_a_traced_number_has_no_length_whatever_the_line_names() -> None:
    def asked(theta: Any) -> Any:
        number = theta[0]
        with pytest.raises(TypeError, match="unsized"):
            _ = "__len__", len(number)
        with pytest.raises(TypeError):
            _ = "__iter__", list(number)
        assert [*np.shape(theta), len(theta), np.iterable(theta[0]), np.iterable(theta)] == [2, 2, False, True]
        return sum(each * k for k, each in enumerate(theta))

    np.testing.assert_array_equal(dagad.grad(asked)(THETA), [0.0, 1.0])


def test_a_traced_value_that_a_library_copies_stays_traced() -> None:
    def copied(theta: Any) -> Any:
        return np.sum(copy.deepcopy([theta])[0] * copy.copy(theta))

    np.testing.assert_allclose(dagad.grad(copied)(THETA), 2.0 * THETA)
