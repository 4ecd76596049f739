"""Values that are nearly what dagad takes: is each refused with what to give, and is that taken?"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import dask
import numpy as np
import pytest
import xarray

import dagad
from dagad import NotDifferentiableError, StructureError

X, THETA = np.arange(12.0).reshape(6, 2), np.ones(2)


class Derived(np.ndarray):
    """An array of somebody's own class."""


class Named(dict[str, Any]):
    """A dict with more to it."""


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum((rows @ theta) ** 2)


def loss(theta: Any, rows: Any = X) -> Any:
    return dagad.reduce_sum(chunk, rows, theta, grainsize=2, scheduler="sync")


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


ARRAY = xarray.DataArray(X, dims=("row", "column"))
# What was given, what the sentence says, and what it asks for.
ROWS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "derived": (X.view(Derived), r"gave a `Derived`.*`np\.asarray\(rows\)`", np.asarray),
    "DataArray": (ARRAY, r"`data\.to_numpy\(\)`", lambda data: data.to_numpy()),
    "future": (done(X), r"`future\.result\(\)`", lambda future: future.result()),
}
PARAMETERS: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "DataArray": (ARRAY[0], r"`DataArray`.*`\.to_numpy\(\)`", lambda data: data.to_numpy()),
    "Dataset": (xarray.Dataset({"a": ARRAY}), r"\.to_numpy\(\)", lambda data: data["a"].to_numpy()[0]),
    "future": (done(THETA), r"a Future, .*`\.result\(\)`", lambda future: future.result()),
    "dict": (Named(a=THETA), r"`Named` is derived from `dict`.*`dict\(\.\.\.\)`", dict),
}


@pytest.mark.parametrize("kind", ROWS)
def test_rows_of_another_kind_are_refused_with_what_to_give(kind: str) -> None:
    rows, sentence, remedy = ROWS[kind]
    with pytest.raises((NotDifferentiableError, StructureError), match=sentence):
        dagad.grad(loss)(THETA, rows)
    np.testing.assert_array_equal(dagad.grad(loss)(THETA, remedy(rows)), dagad.grad(loss)(THETA, X))


@pytest.mark.parametrize("kind", PARAMETERS)
def test_parameters_of_another_kind_are_refused_with_what_to_give(kind: str) -> None:
    def of_any(theta: Any) -> Any:
        return loss(theta["a"] if isinstance(theta, dict) else theta)

    given, sentence, remedy = PARAMETERS[kind]
    with pytest.raises(NotDifferentiableError, match=sentence):
        dagad.grad(of_any)(given)
    assert dagad.grad(of_any)(remedy(given)) is not None


class Tenfold(np.ndarray):
    """An array with arithmetic of its own, as those with units have."""

    def __mul__(self, other: Any) -> Any:
        return np.asarray(self) * other * 10.0


@pytest.mark.parametrize("own", [np.matrix([[1.0, 2.0], [3.0, 4.0]]), np.ones((2, 2)).view(Tenfold)])
def test_an_array_with_arithmetic_of_its_own_is_not_differentiated_as_if_it_had_none(own: Any) -> None:
    def in_a_chunk(t: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: np.sum(t * t) * np.sum(rows), np.ones(1), t, scheduler="sync")

    def in_rows(rows: Any) -> Any:
        return dagad.reduce_sum(lambda rows: np.sum(rows * rows), rows, grainsize=1, scheduler="sync")

    sentence = rf"a `[\w.]*{type(own).__name__}` was asked for.*of its own.*`np\.asarray\(m\)`"
    for loss in (lambda t: np.sum(t * t), in_a_chunk, in_rows):
        for derivative in (
            lambda loss=loss: dagad.grad(loss)(own),
            lambda loss=loss: dagad.jvp(loss, (own,), (np.ones((2, 2)),)),
            lambda loss=loss: dagad.hvp(loss, (own,), (np.ones((2, 2)),)),
        ):
            with pytest.raises(NotDifferentiableError, match=sentence):
                derivative()
        np.testing.assert_array_equal(dagad.grad(loss)(np.asarray(own)), 2.0 * np.asarray(own))
    derived = np.ones((2, 2)).view(Derived)
    np.testing.assert_array_equal(dagad.grad(in_a_chunk)(derived), np.full((2, 2), 2.0))


COTANGENTS: dict[str, tuple[Any, str]] = {
    "complex": (np.array([1.0 + 1.0j, 2.0]), r"has an imaginary part, of up to 1, .*`np\.real\(array\)`"),
    "masked": (np.ma.masked_array([1.0, 5.0], [False, True]), r"is a masked array.*`array\.filled\(0\.0\)`"),
    "words": (np.array(["a", "b"]), r"is an array.*[Gg]ive a number,? or an array"),
    "objects": (np.array([1.0, None], dtype=object), r"is an array.*[Gg]ive a number,? or an array"),
    "a word": ("a", r"[Gg]ive a number,? or an array"),
}


@pytest.mark.parametrize("kind", COTANGENTS)
def test_a_cotangent_or_tangent_of_which_something_would_be_dropped_is_refused(kind: str) -> None:
    given, sentence = COTANGENTS[kind]
    pullback = dagad.vjp(lambda t: t * 2.0, THETA)[1]
    for derivative in (
        lambda: pullback(given),
        lambda: dagad.jvp(lambda t: t * 2.0, (THETA,), (given,)),
        lambda: dagad.hvp(lambda t: np.sum(t**3), (THETA,), (given,)),
    ):
        with pytest.raises(StructureError, match=sentence):
            derivative()
    for taken in ([1, 2], np.array([1.0 + 0.0j, 2.0]), np.array([True, False])):
        assert np.asarray(pullback(np.asarray(taken))[0]).dtype == float
    complex_one = dagad.vjp(lambda z: z * 2.0, np.ones(2) + 1.0j)[1]
    assert np.iscomplexobj(complex_one(np.array([1.0 + 1.0j, 2.0]))[0])


@pytest.mark.parametrize("returned", [dict, list, tuple])
def test_a_container_is_refused_with_has_aux(returned: Any) -> None:
    def contained(theta: Any) -> Any:
        value = loss(theta)
        return {"value": value} if returned is dict else returned([value, 1, 2])

    with pytest.raises(NotDifferentiableError, match=r"Return that number itself.*`has_aux=True`, as `return number"):
        dagad.grad(contained)(THETA)
    gradient, _ = dagad.grad(lambda theta: (loss(theta), {"rest": 1}), has_aux=True)(THETA)
    np.testing.assert_array_equal(gradient, dagad.grad(loss)(THETA))


def test_an_array_in_place_of_an_engine_is_not_printed() -> None:
    engine: Any = np.zeros(1000)
    with pytest.raises(dagad.PlanError, match=r"an array of shape \(1000,\).*has no method `takes`") as seen:
        dagad.reduce_sum(chunk, X, THETA, engine=engine)
    assert len(str(seen.value)) < 400


def test_an_index_that_is_differentiated_is_no_case_for_another_function() -> None:
    with pytest.raises(NotDifferentiableError, match="An index or a count has no derivative: take it from what is con"):
        dagad.grad(lambda theta: X[int(theta[0]), 0] * theta[1])(THETA)


def test_a_traced_value_shows_its_numbers_in_a_debugger() -> None:
    seen = list[str]()

    def looking(theta: Any) -> Any:
        seen.append(repr(theta))
        return np.sum(theta)

    dagad.grad(looking)(THETA)
    assert seen == ["<traced array([1., 1.])>"]


def test_a_checkpoint_of_another_lambda_does_not_name_both_alike(tmp_path: Path) -> None:
    def gradient(fun: Any, path: Path) -> Any:
        with dagad.checkpoint(path):
            return dagad.grad(lambda t: dagad.reduce_sum(fun, X, t, grainsize=2, scheduler="sync"))(1.0)

    gradient(lambda rows, theta: rows.sum() * theta, tmp_path / "run")
    with pytest.raises(dagad.CheckpointError, match=r"0 was of `<lambda>`, and its function"):
        gradient(lambda rows, theta: 2.0 * rows.sum() * theta, tmp_path / "run")
    assert gradient(lambda rows, theta: 2.0 * rows.sum() * theta, tmp_path / "other") == 2.0 * X.sum()


@pytest.mark.parametrize("where", ["around", "setting", "chunk"])
@pytest.mark.parametrize("library", [pytest.param(name, marks=pytest.mark.needs(name)) for name in ("jax", "torch")])
def test_a_function_of_another_library_without_its_engine_is_sent_into_a_chunk(library: str, where: str) -> None:
    module = pytest.importorskip(library)
    numbers = module.numpy if library == "jax" else module

    def squares(rows: Any, theta: Any) -> Any:
        return numbers.sum(theta**2) * rows.sum()

    def around(theta: Any) -> Any:
        return squares(X, theta) if where != "chunk" else dagad.reduce_sum(squares, X, theta, scheduler="sync")

    with dask.config.set({"dagad.engine": library if where == "setting" else "autograd"}):
        with pytest.raises(NotDifferentiableError, match=rf'engine="{library}"\)`.*has no engine, whatever'):
            dagad.grad(around)(THETA)
    inside = dagad.grad(lambda t: dagad.reduce_sum(squares, X, t, grainsize=6, engine=library, scheduler="sync"))(THETA)
    np.testing.assert_allclose(inside, 2 * THETA * X.sum())
