"""jax around dagad without `as_jax`: is it refused with what to write, and does that work?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import dagad
from dagad.interop.jax import as_jax

X, THETA = np.arange(12.0).reshape(6, 2), np.ones(2)


def chunk(rows: Any, theta: Any) -> Any:
    return ((rows @ theta) ** 2).sum()


def both(a: Any, b: Any) -> Any:
    return a + b


def loss(theta: Any, **options: Any) -> Any:
    return dagad.reduce_sum(chunk, X, theta, grainsize=2, **{"scheduler": "sync"} | options)


OBJECTIVES: dict[str, Callable[[Any], Any]] = {
    "shared": loss,
    "threads": lambda theta: loss(theta, scheduler="threads"),
    "jax engine": lambda theta: loss(theta, engine="jax"),
    "closure": lambda theta: dagad.reduce_sum(lambda rows: chunk(rows, theta), X, grainsize=2, scheduler="sync"),
    "numpy": lambda theta: dagad.reduce_sum(lambda rows, t: np.exp(rows @ t).sum(), X, theta, scheduler="sync"),
    "rows": lambda theta: dagad.reduce_sum(lambda rows: np.exp(rows).sum(), theta, grainsize=2, scheduler="sync"),
    "map_reduce": lambda theta: dagad.map_reduce(chunk, both, X, theta, grainsize=2, scheduler="sync"),
    "map": lambda theta: dagad.map(chunk, X, theta, scheduler="sync").sum(),
    "grad": lambda theta: dagad.grad(loss)(theta).sum(),
    "vjp": lambda theta: dagad.vjp(loss, theta)[0],
    "evaluate": lambda theta: dagad.evaluate(loss, theta).value(),
}
REMEDY = r"jax traces.*`from dagad\.interop\.jax import as_jax` and `jax\.grad\(as_jax\(loss\)\)`, or .*`dagad\.grad"


@pytest.mark.parametrize("around", ["jit", "grad", "jacfwd"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_transformation_of_jax_around_dagad_is_refused_with_as_jax(around: str, objective: str) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=REMEDY):
        getattr(jax, around)(OBJECTIVES[objective])(THETA)


def test_vmap_of_jax_around_dagad_is_refused_with_as_jax() -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=REMEDY):
        jax.vmap(loss)(np.ones((3, 2)))
    np.testing.assert_allclose(jax.vmap(as_jax(loss))(np.ones((3, 2))), [loss(THETA)] * 3)


def test_a_chunk_function_sent_to_a_cluster_is_refused_with_as_jax(cluster: Any) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=REMEDY):
        jax.grad(lambda theta: loss(theta, scheduler=cluster))(THETA)


def test_both_remedies_give_the_same_gradient() -> None:
    np.testing.assert_allclose(jax.grad(as_jax(loss))(THETA), dagad.grad(loss)(THETA))


def test_an_error_of_a_chunk_under_as_jax_is_not_taken_for_a_missing_as_jax() -> None:
    def branches(rows: Any, theta: Any) -> Any:
        return chunk(rows, theta) if theta[0] > 0 else 0.0

    def compiled(theta: Any) -> Any:
        return dagad.reduce_sum(branches, X, theta, engine="jax", scheduler="sync")

    with pytest.raises(Exception, match=r"(?i)bool") as seen:
        as_jax(compiled)(THETA)
    assert "as_jax(loss)" not in str(seen.value)


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [(lambda x: x, r"`np\.asarray\(theta\)`"), (lambda x: {"a": x}, r"`optree\.tree_map\(np\.asarray, theta\)`")],
    ids=["array", "dict"],
)
def test_parameters_of_jax_are_refused_with_what_to_give(argument: Any, remedy: str) -> None:
    import optree

    def of_any(theta: Any) -> Any:
        return loss(theta["a"] if isinstance(theta, dict) else theta)

    given = argument(jax.numpy.ones(2))
    with pytest.raises(dagad.NotDifferentiableError, match=f"no array of numpy's. Give {remedy}"):
        dagad.grad(of_any)(given)
    assert dagad.grad(of_any)(optree.tree_map(np.asarray, given)) is not None


def test_an_if_under_jax_names_the_users_line_and_no_file_of_dagads() -> None:
    def branches(rows: Any, theta: Any) -> Any:
        total = jax.numpy.sum(rows @ theta)
        return total if total > 0 else -total

    def chosen(rows: Any, theta: Any) -> Any:
        total = jax.numpy.sum(rows @ theta)
        return jax.numpy.where(total > 0, total, -total)

    def gradient(fun: Any) -> Any:
        return dagad.grad(lambda t: dagad.reduce_sum(fun, X, t, grainsize=6, engine="jax", scheduler="sync"))(THETA)

    line = r"Line \d+ of test_jax_habits.py, `return total if total > 0 else -total`, asks whether a value is true"
    with pytest.raises(dagad.NotDifferentiableError, match=line) as seen:
        gradient(branches)
    assert "_engines" not in str(seen.value)
    assert "`np.where(mask, a, b)`" in str(seen.value)
    np.testing.assert_allclose(gradient(chosen), X.sum(axis=0))
