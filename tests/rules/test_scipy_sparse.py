"""Sparse matrices and linear operators of scipy beside traced arrays: every product, in every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spl

import dagad

RNG = np.random.default_rng(8)
DENSE = RNG.normal(size=(4, 3)) * (RNG.uniform(size=(4, 3)) > 0.4)
SQUARE = np.diag([3.0, 4.0, 5.0]) + DENSE[:3]
X, ROWS = RNG.normal(size=3), RNG.normal(size=4)

PRODUCTS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {  # sparse, dense
    "A @ x": (lambda a, x: a @ x, lambda a, x: a @ x),
    "A.dot(x)": (lambda a, x: a.dot(x), lambda a, x: a @ x),
    "A @ matrix": (lambda a, x: a @ np.outer(x, x), lambda a, x: a @ np.outer(x, x)),
    "A.T @ y": (lambda a, x: a.T @ (a @ x), lambda a, x: a.T @ (a @ x)),
    "y @ A": (lambda a, x: (a @ x) @ a, lambda a, x: (a @ x) @ a),
    "matrix @ A": (lambda a, x: np.outer(x, a @ x) @ a, lambda a, x: np.outer(x, a @ x) @ a),
    "column": (lambda a, x: a @ x[:, None], lambda a, x: a @ x[:, None]),
}
FORMS = ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"]
MAKERS: dict[str, Callable[[Any], Any]] = {
    f"{form}_{kind}": getattr(sp, f"{form}_{kind}") for form in FORMS for kind in ("array", "matrix")
}
MAKERS["operator"] = spl.aslinearoperator
MAKERS["own operator"] = lambda a: spl.LinearOperator(
    a.shape, matvec=lambda x: a @ x, rmatvec=lambda y: a.conj().T @ y, dtype=a.dtype
)


def weighed(found: Any) -> Any:
    weights = np.cos(np.arange(np.size(found))).reshape(np.shape(found)) + 1.5
    return np.sum(weights * (np.real(found) ** 3 + 0.5 * np.imag(found)))


def assert_same(loss: Any, expected: Any, at: Any) -> None:
    along = np.cos(np.arange(np.size(at)) + 0.3).reshape(np.shape(at))
    assert loss(at) == pytest.approx(expected(at))
    gradient = dagad.grad(loss)(at)
    assert gradient.dtype == float
    np.testing.assert_allclose(gradient, dagad.grad(expected)(at), rtol=1e-12, atol=1e-13)
    assert dagad.jvp(loss, at, along)[1] == pytest.approx(dagad.jvp(expected, at, along)[1], rel=1e-12)
    np.testing.assert_allclose(dagad.hvp(loss, at, along), dagad.hvp(expected, at, along), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
def test_a_product_with_a_sparse_matrix_is_that_with_a_dense_one(product: str, maker: str) -> None:
    sparse, dense = PRODUCTS[product]
    a = MAKERS[maker](DENSE)
    assert_same(lambda x: weighed(sparse(a, x)), lambda x: weighed(dense(DENSE, x)), X)


def test_a_sparse_matrix_of_the_older_kind_multiplies_by_a_star() -> None:
    a = sp.csr_matrix(DENSE)
    assert_same(lambda x: weighed(a * x), lambda x: weighed(DENSE @ x), X)
    assert_same(lambda y: weighed(y * a), lambda y: weighed(y @ DENSE), ROWS)


def test_a_complex_sparse_matrix_has_a_real_derivative_by_what_is_real() -> None:
    dense = DENSE + 1j * DENSE[::-1]
    for maker in ("csr_array", "coo_matrix", "operator", "own operator"):
        a = MAKERS[maker](dense)
        assert_same(lambda x, a=a: weighed(a @ x), lambda x: weighed(dense @ x), X)
        assert_same(lambda x, a=a: weighed(a @ (x * (1 + 2j * x))), lambda x: weighed(dense @ (x * (1 + 2j * x))), X)
        assert_same(lambda y, a=a: weighed(y @ a), lambda y: weighed(y @ dense), ROWS)


def test_methods_of_a_linear_operator_are_products() -> None:
    dense = DENSE + 1j * DENSE[::-1]
    a = MAKERS["own operator"](dense)
    assert_same(lambda x: weighed(a.matvec(x)), lambda x: weighed(dense @ x), X)
    assert_same(lambda x: weighed(a.matmat(np.outer(x, x))), lambda x: weighed(dense @ np.outer(x, x)), X)
    assert_same(lambda y: weighed(a.rmatvec(y)), lambda y: weighed(dense.conj().T @ y), ROWS)
    assert_same(lambda x: weighed((2.0 * a) @ x), lambda x: weighed(2.0 * dense @ x), X)


def test_solutions_of_sparse_equations_are_right() -> None:
    for a in (sp.csc_array(SQUARE), sp.csr_matrix(SQUARE)):
        assert_same(lambda x, a=a: weighed(spl.spsolve(a, x)), lambda x: weighed(np.linalg.solve(SQUARE, x)), X)


SOLVERS: dict[str, Callable[[Any], Any]] = {
    "splu": lambda x: spl.splu(sp.csc_array(SQUARE)).solve(x),
    "factorized": lambda x: spl.factorized(sp.csc_array(SQUARE))(x),
    "cg": lambda x: spl.cg(sp.csc_array(SQUARE), x)[0],
}


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_sparse_solver_without_a_derivative_is_refused_with_the_one_that_has_it(solver: str) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"`scipy\.sparse\.linalg\.spsolve\(A, b\)`.*implicit"):
        dagad.grad(lambda x: np.sum(SOLVERS[solver](x)))(X)


def test_an_operator_without_its_transpose_is_pushed_forward_and_refused_in_reverse() -> None:
    a = spl.LinearOperator((4, 3), matvec=lambda x: DENSE @ x, dtype=float)
    np.testing.assert_allclose(dagad.jvp(lambda x: a @ x, X, X)[1], DENSE @ X)
    with pytest.raises(dagad.NotDifferentiableError, match=r"has no `rmatvec`.*rmatvec=\.\.\."):
        dagad.grad(lambda x: np.sum(a @ x))(X)


def test_entries_of_a_sparse_matrix_are_constant_and_said_to_be() -> None:
    a = sp.csr_array(DENSE)
    for call in (
        lambda x: np.sum((x[0] * a) @ x),
        lambda x: a.multiply(x).sum(),
        lambda x: sp.csr_array((x, ([0, 1, 2], [0, 1, 2]))) @ x,
    ):
        with pytest.raises(dagad.NotDifferentiableError, match=r"`scipy\.sparse.*constant.*`t \* \(A @ x\)`"):
            dagad.grad(call)(X)


def of_rows(rows: Any, x: Any) -> Any:
    return np.sum((sp.csr_array(rows) @ x) ** 2)


def test_a_chunk_may_make_its_sparse_matrix_of_rows(scheduler: Any) -> None:
    def loss(x: Any) -> Any:
        return dagad.reduce_sum(of_rows, DENSE, x, grainsize=2, scheduler=scheduler)

    np.testing.assert_allclose(dagad.grad(loss)(X), 2.0 * DENSE.T @ DENSE @ X)
    np.testing.assert_allclose(dagad.hvp(loss, X, X), 2.0 * DENSE.T @ DENSE @ X)


def test_untraced_products_are_scipys_own() -> None:
    a = sp.csr_array(DENSE)
    seen = []

    def loss(x: Any) -> Any:
        seen.append((a @ X, X @ a.T, a @ a.T))
        return np.sum(a @ x)

    dagad.grad(loss)(X)
    np.testing.assert_array_equal(seen[0][0], a @ X)
    np.testing.assert_array_equal(seen[0][1], X @ a.T)
    assert type(seen[0][2]) is sp.csr_array
