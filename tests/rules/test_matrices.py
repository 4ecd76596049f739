"""Matrices beyond the table of calls: singular ones, stacks of them, and real ones with complex roots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl

import dagad

RNG = np.random.default_rng(6)


def weighed(found: Any) -> Any:
    total: Any = 0.0
    for part in found if isinstance(found, list | tuple) else [found]:
        weights = np.cos(np.arange(np.size(part))).reshape(np.shape(part)) + 1.5
        total = total + np.sum(weights * (np.real(part) + 0.5 * np.imag(part)) ** 2)
    return total


def difference(fun: Callable[[Any], Any], at: Any, along: Any, step: float = 1e-4) -> Any:
    """Return the derivative in a direction, by a difference of fourth order."""
    ahead, behind = (fun(at + k * step * along) - fun(at - k * step * along) for k in (1, 2))
    return (8 * ahead - behind) / (12 * step)


def assert_right(loss: Callable[[Any], Any], at: Any, rtol: float = 1e-7) -> None:
    """Assert that every mode agrees with differences in a direction, and keeps what is real real."""
    along = np.cos(1.7 * np.arange(np.size(at))).reshape(np.shape(at)) + 0.2
    gradient, curved = dagad.grad(loss)(at), dagad.hvp(loss, at, along)
    assert gradient.dtype == curved.dtype == np.asarray(at).dtype == float
    slope = difference(loss, at, along)
    assert np.sum(gradient * along) == pytest.approx(slope, rel=rtol, abs=1e-9)
    assert dagad.jvp(loss, at, along)[1] == pytest.approx(slope, rel=rtol, abs=1e-9)
    expected = difference(dagad.grad(loss), at, along)
    np.testing.assert_allclose(curved, expected, rtol=1e-6, atol=1e-6 * abs(expected).max())


# --- determinants -----------------------------------------------------------------------------------------------------


def cofactors(a: Any) -> Any:
    """Return the derivative of a determinant, by its definition."""
    n = len(a)
    found = np.zeros_like(a)
    for i in range(n):
        for j in range(n):
            minor = np.delete(np.delete(a, i, 0), j, 1)
            found[i, j] = (-1) ** (i + j) * np.linalg.det(minor)
    return found


def of_rank(rank: int, n: int = 4) -> Any:
    return RNG.normal(size=(n, rank)) @ RNG.normal(size=(rank, n))


SINGULAR = {
    "rank 3": of_rank(3),
    "rank 2": of_rank(2),
    "rank 1": of_rank(1),
    "zero": np.zeros((4, 4)),
    "zero row": np.diag([1.0, 0.0, 2.0, 3.0]),
    "equal rows": np.array([[1.0, 2.0], [2.0, 4.0]]),
    "one number": np.zeros((1, 1)),
    "nearly": of_rank(3) + 1e-9 * RNG.normal(size=(4, 4)),
    "tiny": np.diag([1e-200, 1e-150, 1.0]),
}


@pytest.mark.parametrize("case", SINGULAR)
@pytest.mark.parametrize("function", [np.linalg.det, sl.det])
def test_the_derivative_of_a_determinant_is_its_cofactors_however_singular_it_is(case: str, function: Any) -> None:
    a = SINGULAR[case]
    expected, scale = cofactors(a), max(1.0, abs(a).max()) ** 3
    np.testing.assert_allclose(dagad.grad(function)(a), expected, rtol=1e-12, atol=1e-13 * scale)
    along = RNG.normal(size=a.shape)
    assert dagad.jvp(function, a, along)[1] == pytest.approx(np.sum(expected * along), rel=1e-12, abs=1e-12 * scale)
    curved = (cofactors(a + 1e-4 * along) - cofactors(a - 1e-4 * along)) / 2e-4
    np.testing.assert_allclose(dagad.hvp(function, a, along), curved, rtol=1e-6, atol=1e-6 * scale)


def test_a_determinant_of_a_complex_or_stacked_singular_matrix_has_its_cofactors_too() -> None:
    real, imaginary = np.stack([of_rank(2, 3), np.eye(3)]), np.stack([of_rank(1, 3), np.zeros((3, 3))])

    def loss(parts: Any) -> Any:
        found = np.linalg.det(parts[0] + 1j * parts[1])
        return np.sum(np.real(found) * [1.0, 2.0] + np.imag(found) * [0.5, 0.3])

    at = np.stack([real, imaginary])
    at[1, 0] = 0.0
    assert_right(loss, at)
    expected = np.stack([cofactors(each) for each in real])
    np.testing.assert_allclose(dagad.grad(lambda a: np.sum(np.linalg.det(a)))(real), expected, atol=1e-12)


def test_a_third_derivative_of_a_singular_determinant_is_refused() -> None:
    def curved(a: Any) -> Any:
        return np.sum(dagad.hvp(np.linalg.det, a, np.eye(2)))

    assert np.all(np.isfinite(dagad.grad(curved)(np.eye(2))))
    with pytest.raises(dagad.NotDifferentiableError, match=r"`np\.linalg\.det` of a matrix that is nearly .*defvjp"):
        dagad.grad(curved)(np.ones((2, 2)))


# --- functions of matrices --------------------------------------------------------------------------------------------

ROTATED = np.array([[0.3, -1.2, 0.4], [1.1, 0.2, -0.3], [0.2, 0.5, -0.9]])  # one eigenvalue below zero


@pytest.mark.parametrize("name", ["sqrtm", "logm", "expm", "sinm", "cosm", "tanm", "sinhm", "coshm", "tanhm"])
def test_derivatives_by_a_real_matrix_are_real_where_the_value_is_complex(name: str) -> None:
    function = getattr(sl, name)
    assert np.iscomplexobj(function(ROTATED)) == (name in ("sqrtm", "logm"))
    assert_right(lambda a: weighed(function(a)), ROTATED, rtol=1e-6)


def test_a_complex_root_of_a_real_matrix_made_of_complex_numbers_is_right() -> None:
    def loss(t: Any) -> Any:
        return weighed(sl.sqrtm(np.real(ROTATED * (1.0 + 0.3j * t) * (1.0 + 0.2j * t))))

    assert_right(loss, np.array(0.4))


# --- stacks -----------------------------------------------------------------------------------------------------------

G = RNG.normal(size=(2, 3, 3)) + 2.0 * np.eye(3)
S = G @ np.swapaxes(G, -1, -2) + np.array([1.0, 2.0])[:, None, None] * np.eye(3)
TALL, B, V = RNG.normal(size=(2, 4, 3)), RNG.normal(size=(2, 3, 2)), RNG.normal(size=3)

STACKS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "solve": (sl.solve, (G, B)),
    "solve, pos": (lambda a, b: sl.solve(a, b, assume_a="pos"), (S, B)),
    "solve, vector": (sl.solve, (G, V)),
    "solve, transposed": (lambda a, b: sl.solve(a, b, transposed=True), (G, B)),
    "inv": (sl.inv, (G,)),
    "det": (sl.det, (G,)),
    "cholesky": (sl.cholesky, (S,)),
    "cho_solve": (lambda a, b: sl.cho_solve(sl.cho_factor(a), b), (S, B)),
    "cho_solve, vector": (lambda a, b: sl.cho_solve(sl.cho_factor(a), b), (S, V)),
    "solve_triangular": (sl.solve_triangular, (G, B)),
    "solve_triangular, lower": (lambda a, b: sl.solve_triangular(a, b, lower=True), (G, B)),
    "solve_triangular, trans": (lambda a, b: sl.solve_triangular(a, b, trans=1), (G, B)),
    "solve_triangular, unit": (lambda a, b: sl.solve_triangular(a, b, unit_diagonal=True), (G, B)),
    "solve_triangular, vector": (sl.solve_triangular, (G, V)),
    "solve_triangular, one matrix": (sl.solve_triangular, (G[0], B)),
    "solve_triangular, one side": (sl.solve_triangular, (G, B[0])),
    "eigh": (lambda a: [sl.eigh(a)[0], sl.eigh(a)[1] ** 2], (S,)),
    "svd": (lambda a: [part**2 for part in sl.svd(a, False)], (TALL,)),
    "qr": (lambda a: sl.qr(a, mode="economic"), (TALL,)),
    "qr, pivoting": (lambda a: sl.qr(a, mode="economic", pivoting=True)[:2], (TALL,)),
    "lu": (sl.lu, (G,)),
    "pinv": (sl.pinv, (TALL,)),
    "polar": (sl.polar, (G,)),
    "expm": (sl.expm, (G,)),
    "logm": (sl.logm, (S,)),
    "khatri_rao": (sl.khatri_rao, (G, G[::-1])),
    "toeplitz": (sl.toeplitz, (B[..., 0],)),
}
REFUSED = {
    "solve_sylvester": (sl.solve_sylvester, (S, S, G)),
    "solve_continuous_lyapunov": (sl.solve_continuous_lyapunov, (S, S)),
    "solve_discrete_lyapunov": (sl.solve_discrete_lyapunov, (S / 50.0, S)),
    "lstsq": (lambda a, b: sl.lstsq(a, b)[0], (TALL, RNG.normal(size=(2, 4, 1)))),
}


def along_all(function: Callable[..., Any], arrays: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Return a loss of one number that moves all the arrays."""
    moves = [np.cos(np.arange(array.size) + k).reshape(array.shape) for k, array in enumerate(arrays)]
    return lambda t: weighed(function(*[array + t * move for array, move in zip(arrays, moves, strict=True)]))


def takes_stacks(case: str, cases: Any) -> bool:
    function, arrays = cases[case]
    try:
        function(*arrays)
    except (ValueError, TypeError, FutureWarning):  # before 1.17: by accident, or with a warning that it is to change
        return False
    return True


@pytest.mark.parametrize("case", STACKS)
def test_a_stack_of_matrices_is_right_wherever_scipy_takes_one(case: str) -> None:
    if not takes_stacks(case, STACKS):
        pytest.skip("this scipy takes one matrix at a time")
    assert_right(along_all(*STACKS[case]), np.array(0.1))


@pytest.mark.parametrize("case", REFUSED)
def test_a_stack_of_matrices_without_a_derivative_is_refused(case: str) -> None:
    if not takes_stacks(case, REFUSED):
        pytest.skip("this scipy takes one matrix at a time")
    sentence = rf"no derivative of `scipy\.linalg\.{case}` of a stack of matrices.*`np\.stack`"
    with pytest.raises(dagad.NotDifferentiableError, match=sentence):
        dagad.grad(along_all(*REFUSED[case]))(0.1)


def test_the_order_of_pivots_is_an_index() -> None:
    a, weights = RNG.normal(size=(4, 3)), np.array([1.0, 2.0, 4.0])

    def loss(a: Any) -> Any:
        _, r, order = sl.qr(a, mode="economic", pivoting=True)
        return np.sum(weights[order] * np.diagonal(r) ** 2)

    assert_right(loss, a)


# --- equal singular values --------------------------------------------------------------------------------------------


def test_sums_of_equal_singular_values_have_a_slope_in_both_modes() -> None:
    at = np.diag([2.0, 1.0, 1.0])
    losses: list[Callable[[Any], Any]] = [
        lambda a: np.linalg.norm(a, 2),  # of the largest, which is alone
        lambda a: np.linalg.norm(a, "nuc"),
        lambda a: np.sum(np.linalg.svdvals(a) ** 2),
        lambda a: sl.norm(a, 2),
    ]
    along = np.cos(np.arange(9.0)).reshape(3, 3)
    for loss in losses:
        gradient = dagad.grad(loss)(at)
        assert np.sum(gradient * along) == pytest.approx(difference(loss, at, along), rel=1e-8)
        assert dagad.jvp(loss, at, along)[1] == pytest.approx(np.sum(gradient * along), rel=1e-12)
    for full in (True, False):  # whose vectors nobody asks for
        gradient = dagad.grad(lambda a, full=full: np.sum(np.linalg.svd(a, full_matrices=full)[1] ** 2))(at)
        np.testing.assert_allclose(gradient, 2.0 * at, atol=1e-12)


@pytest.mark.parametrize("factors", [np.linalg.qr, lambda a: sl.qr(a, mode="economic")], ids=["numpy", "scipy"])
def test_the_derivative_of_orthogonal_factors_has_the_digits_of_the_factors(factors: Callable[[Any], Any]) -> None:
    u, _, v = np.linalg.svd(RNG.standard_normal((8, 3)), full_matrices=False)
    for condition in (1e2, 1e5, 1e8, 1e11):
        a = u * np.array([1.0, condition**-0.5, 1.0 / condition]) @ v

        def log_volume(a: Any) -> Any:
            return np.sum(np.log(np.abs(np.diagonal(factors(a)[1]))))

        q, r = factors(a)
        expected = q @ np.linalg.inv(r).T  # of half the log-determinant of A^H A
        exact = np.linalg.pinv(a, 1e-15).T
        np.testing.assert_allclose(expected, exact, atol=1e-15 * condition * abs(exact).max())
        np.testing.assert_allclose(dagad.grad(log_volume)(a), expected, atol=1e-11 * abs(expected).max())
        along = a[:, [2, 0, 1]]
        moved = np.sum(expected * along)
        assert dagad.jvp(log_volume, a, along)[1] == pytest.approx(moved, rel=1e-9, abs=1e-9 * condition)
