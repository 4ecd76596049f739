"""Finite: is the chunk named, and the argument, whose value or gradient is nan or infinite; and does a look show?"""

from __future__ import annotations

import contextlib
import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import autograd.numpy as np
import dask
import numpy as onp
import pytest
from distributed import Client

import dagad
from dagad._kernels.finite import is_finite, is_finite_leaf
from dagad._values import pytree
from support.hot_loops import a_watched_cluster, heat_up, is_hot, shards_on
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

X = onp.linspace(0.5, 3.0, 24).reshape(12, 2)
THETA = onp.array([0.5, 1.5])
NOWHERE = 10.0  # the square root has no derivative at zero


@contextlib.contextmanager
def looking(*, on: bool = True) -> Iterator[None]:
    with dask.config.set({"dagad.check-finite": on}):
        yield


@pytest.fixture(autouse=True)
def _on() -> Iterator[None]:
    with looking(), onp.errstate(all="ignore"):
        yield


def logs(rows: Any, theta: Any) -> Any:
    """nan where a row is negative."""
    return np.sum(np.log(rows * theta))


def roots(rows: Any, theta: Any) -> Any:
    """A value that is finite, and a gradient that is infinite, where a row is zero."""
    return np.sum(np.sqrt(rows * theta["scale"])) + theta["offset"][1]


SCALED = {"offset": onp.zeros(2), "scale": onp.array([0.5, 1.5])}


def with_row(row: int, value: float) -> Any:
    data = X.copy()
    data[row, 1] = value
    return data


def loss_of(f: Callable[..., Any], data: Any, scheduler: Any = "sync", grainsize: int = 4) -> Callable[[Any], Any]:
    return lambda theta: dagad.reduce_sum(f, data, theta, grainsize=grainsize, scheduler=scheduler)


def refused(call: Callable[[], Any]) -> dagad.NonFiniteError:
    with pytest.raises(dagad.NonFiniteError) as caught:
        call()
    return caught.value


def test_a_value_that_is_nan_is_named_with_its_chunk(scheduler: Any) -> None:
    for act in (dagad.grad, dagad.value_and_grad, lambda fun: fun, lambda fun: lambda at: dagad.jvp(fun, (at,), (at,))):
        error = refused(lambda act=act: act(loss_of(logs, with_row(6, -1.0), scheduler))(THETA))  # type: ignore[misc]  # of a loop
        assert (error.chunk, error.argument) == (1, "the value")
        assert "In chunk 1 (rows 4:8) of `logs` the value is nan. What the chunk was given is finite" in str(error)
        (note,) = error.__notes__
        assert note.startswith("dagad: value of chunk 1 (rows 4:8)")
        assert note.endswith("`dagad.replay(error)`.")
        assert ("worker" in note) == isinstance(scheduler, Client)


@pytest.mark.sampled(4)
def test_a_gradient_that_is_infinite_is_named_with_its_argument(scheduler: Any) -> None:
    loss = loss_of(roots, with_row(9, 0.0), scheduler)
    assert math.isfinite(loss(SCALED))
    at = {**SCALED, "scale": onp.array([0.5, 0.0])}
    for act in (
        lambda: dagad.grad(loss_of(roots, X, scheduler))(at),
        lambda: dagad.vjp(loss_of(roots, X, scheduler), at)[1](1.0),
        lambda: dagad.evaluate(loss_of(roots, X, scheduler), at).gradient(PATIENCE),
    ):
        error = refused(act)
        assert (error.chunk, error.argument) == (0, "the gradient in `theta['scale']`")
        assert "is infinite" in str(error)
        assert error.__notes__[0].startswith("dagad: pullback of chunk 0 (rows 0:4)")
    both = refused(
        lambda: dagad.grad(lambda x: dagad.reduce_sum(roots, {"a": x}["a"], SCALED, grainsize=4))(with_row(9, 0.0))
    )
    assert (both.chunk, both.argument) == (2, "the gradient in `rows`")


def test_an_argument_or_row_that_was_not_finite_before_is_named(scheduler: Any) -> None:
    error = refused(lambda: loss_of(logs, with_row(6, math.nan), scheduler)(THETA))
    assert error.chunk == 1
    assert "Row 6 holds nan or infinity" in str(error)
    error = refused(lambda: dagad.grad(loss_of(roots, X, scheduler))({**SCALED, "offset": onp.array([0.0, math.inf])}))
    assert "So is `theta['offset']`, which every chunk is given" in str(error)
    error = refused(lambda: loss_of(roots, X, scheduler)({**SCALED, "offset": onp.array([0.0, math.inf])}))
    assert "So is `theta['offset']`, which every chunk is given" in str(error)
    held = onp.array([1.0, math.inf])
    error = refused(lambda: dagad.grad(loss_of(lambda rows, t: np.sum(rows * t) + held[1], X, scheduler))(THETA))
    assert error.argument == "the value"


MODES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "jvp": (lambda fun, at: dagad.jvp(fun, (at,), (onp.ones(2),)), "the tangent of the value"),
    "jacfwd": (lambda fun, at: dagad.jacfwd(fun)(at), "the tangent of the value"),
    "jacrev": (lambda fun, at: dagad.jacrev(fun)(at), "the gradient in `theta`"),
    "hvp": (lambda fun, at: dagad.hvp(fun, (at,), (onp.ones(2),)), "the gradient in `theta`"),
    "grad of grad": (lambda fun, at: dagad.grad(lambda t: np.sum(dagad.grad(fun)(t)))(at), "the gradient in `theta`"),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_names_its_result_that_is_not_finite(mode: str, scheduler: Any) -> None:
    act, argument = MODES[mode]
    fun = loss_of(lambda rows, theta: np.sum(np.sqrt(theta * rows)), X, scheduler)
    assert refused(lambda: act(fun, onp.array([1.0, 0.0]))).argument == argument
    act(fun, THETA)


def test_a_second_derivative_that_alone_is_not_finite_is_named(scheduler: Any) -> None:
    fun = loss_of(lambda rows, theta: np.sum((theta * rows) ** 1.5), X, scheduler)
    at = onp.array([1.0, 0.0])
    assert refused(lambda: dagad.hvp(fun, (at,), (onp.ones(2),))).argument == "the tangent of the gradient in `theta`"


@pytest.mark.parametrize("name", ["map_sum", "map", "map_rect", "map_reduce"])
def test_every_operation_names_its_chunk_that_is_not_finite(name: str, scheduler: Any) -> None:
    f = (lambda x, t: logs(x, t) * onp.ones(2)) if name == "map_rect" else logs
    combine = [lambda a, b: a + b] if name == "map_reduce" else []
    data = with_row(6, -1.0)
    call: Any = getattr(dagad, name)

    def loss(theta: Any) -> Any:
        return np.sum(call(f, *combine, data, theta, grainsize=4, scheduler=scheduler))

    for act in (loss, dagad.grad(loss)):
        error = refused(lambda act=act: act(THETA))  # type: ignore[misc]  # of a loop
        assert (error.chunk, error.argument) == (1, "the value")


def test_the_outer_chunk_of_nested_reductions_that_are_not_finite_is_named(scheduler: Any) -> None:
    def outer(rows: Any, theta: Any) -> Any:
        return dagad.reduce_sum(logs, rows, theta, grainsize=1)

    for act in (loss_of(outer, with_row(6, -1.0), scheduler), dagad.grad(loss_of(outer, with_row(6, -1.0), scheduler))):
        error = refused(lambda act=act: act(THETA))  # type: ignore[misc]  # of a loop
        assert (error.chunk, error.rows, error.argument) == (1, (4, 8), "the value")
        assert "of `outer` the value is nan" in str(error)


def many(rows: Any, theta: Any) -> Any:
    return np.sum(np.log(rows) * theta)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("n_chunks", "bad"), [(1000, [137]), (60, [51, 13, 30])])
def test_nan_in_one_chunk_of_a_thousand_is_found(n_chunks: int, bad: list[int], scheduler: Any) -> None:
    data = onp.linspace(1.0, 2.0, 4 * n_chunks)
    data[[4 * number + 2 for number in bad]] = -1.0
    error = refused(lambda: dagad.grad(loss_of(many, data, scheduler))(1.0))
    assert (error.chunk, error.rows, error.argument) == (min(bad), (4 * min(bad), 4 * min(bad) + 4), "the value")


def test_a_hot_loop_that_is_checked_for_nan_stays_hot() -> None:
    def act(client: Client) -> None:
        loss = loss_of(logs, shards_on(client, X, 4), None)
        with looking(on=False):
            heat_up(client, lambda: dagad.value_and_grad(loss)(THETA))
            plain = dagad.value_and_grad(loss)(THETA)
        assert is_hot(client, lambda: dagad.value_and_grad(loss)(THETA))
        value, gradient = dagad.value_and_grad(loss)(THETA)
        assert (value, gradient.tobytes()) == (plain[0], plain[1].tobytes())
        error = refused(lambda: dagad.grad(loss)(-THETA))
        assert (error.chunk, error.argument) == (0, "the value")
        until(lambda: is_hot(client, lambda: dagad.grad(loss)(THETA)))
        shards = shards_on(client, with_row(5, 0.0), 4)
        error = refused(lambda: dagad.grad(lambda x: dagad.reduce_sum(roots, x, SCALED))(shards))
        assert (error.chunk, error.argument) == (1, "the gradient in `rows`")

    with a_watched_cluster() as client:
        act(client)


def test_a_check_for_nan_does_not_change_the_bits(scheduler: Any) -> None:
    def act() -> list[bytes]:
        loss = loss_of(roots, X, scheduler)
        found = dagad.value_and_grad(loss)(SCALED), dagad.hvp(loss, (SCALED,), (SCALED,))
        return [onp.asarray(part).tobytes() for part in pytree.flatten(found)[0]]

    with looking(on=False):
        plain = act()
    assert act() == plain


def test_chunks_are_not_checked_for_nan_unless_the_setting_says_so() -> None:
    with looking(on=False), pytest.warns(dagad.DagadWarning, match="gave nan for chunk 1"):
        assert math.isnan(loss_of(logs, with_row(6, -1.0))(THETA))


def test_a_non_finite_error_is_a_floating_point_error_and_can_be_pickled() -> None:
    error = refused(lambda: loss_of(logs, with_row(6, -1.0))(THETA))
    assert isinstance(error, FloatingPointError)
    there = pickle.loads(pickle.dumps(error))
    assert (there.chunk, there.argument, str(there)) == (error.chunk, error.argument, str(error))


def test_a_replay_of_a_non_finite_chunk_stops_where_nan_arises(scheduler: Any) -> None:
    error = refused(lambda: dagad.grad(loss_of(logs, with_row(6, -1.0), scheduler))(THETA))
    with pytest.raises(FloatingPointError, match="invalid value encountered in log") as caught:
        dagad.replay(error)
    assert not isinstance(caught.value, dagad.NonFiniteError)
    with pytest.raises(FloatingPointError, match="invalid value encountered in log"):
        dagad.replay(caught.value)
    error = refused(lambda: dagad.grad(loss_of(logs, with_row(6, math.nan), scheduler))(THETA))
    with pytest.raises(dagad.NonFiniteError, match="Row 6 holds"):
        dagad.replay(error)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (), (0,), (100_005,), (300, 301)])
@pytest.mark.parametrize("dtype", ["f8", "f4", "c16", "f2"])
def test_one_number_that_is_not_finite_among_many_is_found(shape: tuple[int, ...], dtype: str) -> None:
    largest = onp.finfo(dtype).max
    array = onp.full(shape, largest, dtype)  # whose squares overflow
    with onp.errstate(over="raise"):
        assert is_finite_leaf(array)
        assert is_finite_leaf(array.T)
        assert is_finite_leaf(array[::2] if array.ndim else array)
    array[...] = 1.0
    for bad in (math.nan, math.inf, -math.inf) if array.size else ():
        for place in {0, array.size // 2, array.size - 1}:
            array.flat[place] = bad
            assert not is_finite_leaf(array)
            assert not is_finite_leaf(array.T)
            array.flat[place] = 1.0


def test_leaves_without_a_derivative_count_as_finite() -> None:
    assert is_finite({"a": 3, "b": onp.arange(3), "c": [1.0, onp.float32(2.0)], "d": None})
    assert not is_finite({"a": 3, "b": [onp.float32("nan")]})
