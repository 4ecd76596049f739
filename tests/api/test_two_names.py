"""Arrays that a function writes by one name and reads by another: are its derivatives those of what it has written?"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
X = np.arange(1.0, 5.0)
T, V = 2.0, 0.5
HOME = types.ModuleType("home_of_a_buffer")


class Holder:
    """Something with a buffer, and methods that fill it."""

    def __init__(self, b: Any) -> None:
        self.b = b

    def filled(self, x: Any) -> None:
        self.b[:] = x

    def through_a_helper(self, x: Any) -> None:
        self.filled(x)


# Ways to write into a buffer: each is a function of what is written
def by_an_attribute(b: Any) -> Any:
    held = types.SimpleNamespace(b=b)

    def write(x: Any) -> None:
        held.b[:] = x

    return write


def by_a_method(b: Any) -> Any:
    return Holder(b).filled


def by_a_method_of_a_method(b: Any) -> Any:
    held = Holder(b)
    return lambda x: held.through_a_helper(x)


def by_an_entry(b: Any) -> Any:
    held = {"b": [b]}

    def write(x: Any) -> None:
        held["b"][0][:] = x

    return write


def by_out(b: Any) -> Any:
    held = Holder(b)
    return lambda x: np.multiply(x, 1.0, out=held.b)


def by_copyto(b: Any) -> Any:
    held = [b]
    return lambda x: np.copyto(held[0], x)


def by_a_view(b: Any) -> Any:
    held = Holder(b[:])

    def write(x: Any) -> None:
        held.b += x - held.b

    return write


def by_a_module(b: Any) -> Any:
    HOME.b = b  # type: ignore[attr-defined]  # it is put there

    def write(x: Any) -> None:
        HOME.b[:] = x

    return write


WRITE: list[Callable[[Any], Any]] = [
    by_an_attribute,
    by_a_method,
    by_a_method_of_a_method,
    by_an_entry,
    by_out,
    by_copyto,
    by_a_view,
    by_a_module,
]


# Ways to read it
def in_a_variable(b: Any, write: Any) -> Any:
    def chunk(rows: Any, t: Any) -> Any:
        write(rows[0])
        return np.sum(b * t**2 * rows)

    return chunk


def in_a_default(b: Any, write: Any) -> Any:
    def chunk(rows: Any, t: Any, b: Any = b) -> Any:
        write(rows[0])
        return np.sum(b * t**2 * rows)

    return chunk


def in_a_tuple(b: Any, write: Any) -> Any:
    pair = (b, 1.0)

    def chunk(rows: Any, t: Any) -> Any:
        write(rows[0])
        return np.sum(pair[0] * t**2 * rows)

    return chunk


def in_a_partial(b: Any, write: Any) -> Any:
    return functools.partial(lambda b, rows, t: (write(rows[0]), np.sum(b * t**2 * rows))[1], b)


def in_a_part(b: Any, write: Any) -> Any:
    part = b[:1]

    def chunk(rows: Any, t: Any) -> Any:
        write(rows[0])
        return np.sum(part * t**2 * rows)

    return chunk


def in_another_order(b: Any, write: Any) -> Any:
    turned = b[::-1]

    def chunk(rows: Any, t: Any) -> Any:
        write(rows[0])
        return np.sum(turned * t**2 * rows)

    return chunk


READ: list[Callable[[Any, Any], Any]] = [
    in_a_variable,
    in_a_default,
    in_a_tuple,
    in_a_partial,
    in_a_part,
    in_another_order,
]


def pulled(loss: Any) -> Any:
    value, pull = dagad.vjp(loss, T)
    return value, pull(V)[0]


S1, S2 = float(np.sum(X**2)), 2.0 * float(np.sum(X**2))
MODES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "value": (lambda loss: loss(T), S1 * T**2),
    "grad": (lambda loss: dagad.grad(loss)(T), S2 * T),
    "value_and_grad": (lambda loss: dagad.value_and_grad(loss)(T), (S1 * T**2, S2 * T)),
    "jacrev": (lambda loss: dagad.jacrev(loss)(T), S2 * T),
    "jacfwd": (lambda loss: dagad.jacfwd(loss)(T), S2 * T),
    "vjp": (pulled, (S1 * T**2, S2 * T * V)),
    "jvp": (lambda loss: dagad.jvp(loss, T, V), (S1 * T**2, S2 * T * V)),
    "hessian": (lambda loss: dagad.hessian(loss)(T), S2),
    "a gradient, again": (lambda loss: (dagad.grad(loss)(T), dagad.grad(loss)(T)), (S2 * T, S2 * T)),
    "a Jacobian of a gradient": (lambda loss: dagad.jacrev(dagad.grad(loss))(T), S2),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("write", WRITE)
def test_an_array_that_is_written_by_another_name_is_read_as_it_is_then_by_derivatives(
    write: Any, read: Any, mode: str
) -> None:
    differentiated, expected = MODES[mode]
    buffer = np.zeros(1)
    chunk = read(buffer, write(buffer))
    found = differentiated(lambda t: dagad.reduce_sum(chunk, X, t, grainsize=1, scheduler="sync"))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("mode", ["grad", "vjp", "hessian"])
@pytest.mark.parametrize("write", WRITE)
def test_an_array_that_is_written_by_another_name_is_never_read_as_it_was_on_a_cluster(
    write: Any, mode: str, cluster: Any
) -> None:
    differentiated, expected = MODES[mode]
    buffer = np.zeros(1)
    chunk = in_a_variable(buffer, write(buffer))
    try:
        found = differentiated(lambda t: dagad.reduce_sum(chunk, X, t, grainsize=1, scheduler=cluster))
    except ValueError as error:  # an array of a closure can't be written into there, whatever it is called
        notes = "".join(error.__notes__)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        return
    assert "arrays in closures are read-only in a function" in notes


def test_an_array_that_others_write_into_after_a_call_is_not_read_by_its_pullback() -> None:
    held = Holder(np.full(1, 3.0))  # two names, and nobody of the function writes by either
    b = held.b

    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(b * held.b * t * rows)

    _, pull = dagad.vjp(lambda t: dagad.reduce_sum(chunk, X, t, grainsize=1, scheduler="sync"), T)
    held.b[:] = 100.0
    assert pull(1.0)[0] == 9.0 * X.sum()


class Windows:
    """Something with arrays that lie in one another, and others that lie beside one another."""

    def __init__(self) -> None:
        series, table = np.arange(6.0), np.zeros((3, 2))
        self.now, self.before = series[1:], series[:-1]
        self.one, self.other = table[:, 0], table[:, 1]

    def follow(self, rows: Any, t: Any) -> Any:
        self.one[:] = rows[0]
        self.other[:] = 2.0 * rows[0]
        return t * np.sum((self.now - self.before) ** 2) * np.sum(self.one + self.other)


def test_arrays_that_lie_in_one_another_are_read_on_a_cluster_and_those_beside_one_another_filled(cluster: Any) -> None:
    held = Windows()
    found = dagad.grad(lambda t: dagad.reduce_sum(held.follow, X, t, grainsize=1, scheduler=cluster))(T)
    assert found == 5.0 * 9.0 * X.sum()
