"""Equations, eigenvalues and factors of scipy.linalg beyond the table of calls: equal values, edges, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy
import scipy.linalg as sl

import dagad
from support.compiled_quickly import compiled_quickly as compiled_quickly

ENGINES = [None, pytest.param("jax", marks=pytest.mark.needs("jax"))]
RNG = np.random.default_rng(11)
A, C = RNG.normal(size=(2, 4, 4))
B = C @ C.T + np.eye(4)
H, K = A + A.T, A - A.T  # symmetric and not
TALL = RNG.normal(size=(5, 3))
ORTHOGONAL = np.linalg.qr(TALL)[0]
BANDS = RNG.normal(size=(3, 6)) + np.array([[0.0], [6.0], [0.0]])


def weighed(found: Any) -> Any:
    total: Any = 0.0
    for part in found if isinstance(found, list | tuple) else [found]:
        weights = np.cos(np.arange(np.prod(np.shape(part), dtype=int))).reshape(np.shape(part)) + 1.5
        total = total + np.sum(weights * (np.real(part) + 0.5 * np.imag(part)) ** 2)
    return total


def loss_of(fun: Callable[[Any], Any], engine: str | None) -> Callable[[Any], Any]:
    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(rows) * weighed(fun(t))

    return lambda t: dagad.reduce_sum(chunk, np.ones(1), t, grainsize=1, scheduler="sync", engine=engine)


def difference(fun: Callable[[Any], Any], at: Any, along: Any, step: float = 1e-4) -> Any:
    ahead, behind = (fun(at + k * step * along) - fun(at - k * step * along) for k in (1, 2))
    return (8 * ahead - behind) / (12 * step)


def of_scipy(fun: Callable[[Any], Any], at: Any) -> Any:
    """Return the value of a function, or skip the test where this scipy takes one matrix at a time."""
    try:
        return fun(at)
    except ValueError:
        if tuple(map(int, scipy.__version__.split(".")[:2])) >= (1, 17):
            raise
        pytest.skip("this scipy takes one matrix at a time")


def assert_right(fun: Callable[[Any], Any], at: Any, engine: str | None = None) -> None:
    """Assert that gradient, jvp and hvp agree with differences, and the value with scipy's to the bit, or nearly."""
    loss, at = loss_of(fun, engine), np.asarray(at, float)
    expected_value = weighed(of_scipy(fun, at))
    along = np.cos(1.7 * np.arange(at.size)).reshape(at.shape) + 0.2
    value, gradient = dagad.value_and_grad(loss)(at)
    assert value == pytest.approx(expected_value, rel=1e-12 if engine else 0.0, abs=0.0)
    slope = difference(lambda t: weighed(fun(t)), at, along)
    assert np.sum(gradient * along) == pytest.approx(slope, rel=1e-7, abs=1e-8)
    assert dagad.jvp(loss, at, along)[1] == pytest.approx(slope, rel=1e-7, abs=1e-8)
    expected = difference(dagad.grad(loss), at, along)
    np.testing.assert_allclose(dagad.hvp(loss, at, along), expected, rtol=1e-6, atol=1e-6 * abs(expected).max())


def of_four(equation: Any, imaginary: complex = 0.0) -> Callable[[Any], Any]:
    """Return the solution of a Riccati equation whose weights are positive, and complex if that is asked for."""

    def solution(t: Any) -> Any:
        half = t[2] + imaginary * t[0]
        weight = t[3][:2] @ t[3][:2].T + np.eye(2)
        inputs = t[1][:, :2] * (1.0 + imaginary)
        return equation(t[0] + imaginary * t[1], inputs, half @ np.conj(half).T, weight)

    return solution


FOUR = RNG.normal(size=(4, 4, 4))
BOTH: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "a complex pair of matrices": (lambda t: np.abs(sl.eigh(t[0] + 1j * K, t[1])[1]), [H, B]),
    "a pair, by its upper triangles": (lambda t: np.abs(sl.eigh(t[0], t[1], lower=False, type=3)[1]), [H, B]),
    "pairs in a stack": (lambda t: sl.eigvalsh(t, np.stack([B, 2 * B]), subset_by_index=[1, 2]), [H, H + 3 * B]),
    "some of a chain": (lambda t: sl.eigvalsh_tridiagonal(t[:4], t[4:], select=2, select_range=(1, 2)), A.ravel()[:7]),
    "a band": (lambda t: np.abs(sl.eig_banded(t, lower=True)[1]), BANDS),
    "complex bands": (lambda t: sl.eigvals_banded(t * np.array([[1 + 0.1j], [1 - 0.2j], [1.0]])), BANDS),
    "complex eigenvalues of a real matrix": (sl.eigvals, A),
    "a factor of bands": (lambda t: sl.cholesky_banded(np.stack([t, 2 * t])), BANDS[[0, 2, 1]]),
    "a complex factor": (
        lambda t: sl.cho_solve_banded((sl.cholesky_banded(t * np.array([[0.2 + 1j], [1.0]])), False), t.T),
        BANDS[:2],
    ),
    "complex bands solved": (lambda t: sl.solve_banded((1, 1), t * (1 + 0.2j), t[:2].T), BANDS),
    "one row": (lambda t: sl.solve_banded((1, 1), t[:3], t[3]), TALL[:4, :1] + 4.0),
    "Hermitian bands in a stack": (lambda t: sl.solveh_banded(np.stack([t, 2 * t]), t[0]), BANDS[[0, 2, 1]]),
    "a polar factor where singular values are equal": (sl.polar, np.eye(3)),
    "a complex wide polar factor": (lambda t: sl.polar(t.T * (1 + 0.3j * t.T), side="left"), TALL),
    "polar factors in a stack": (sl.polar, np.stack([A, C])),
    "a rotation that is none": (lambda t: sl.orthogonal_procrustes(t, ORTHOGONAL), ORTHOGONAL),
    "a complex rotation": (lambda t: sl.orthogonal_procrustes(t[0] + 1j * t[1], t[1] + 0.4j), [TALL, TALL**2]),
    "a pseudo-inverse of lower rank": (lambda t: sl.pinvh(t @ t.T), TALL),
    "a complex pseudo-inverse": (lambda t: sl.pinvh(t + 1j * K, lower=False), H),
    "Riccati's equation": (of_four(sl.solve_continuous_are), FOUR),
    "Riccati's equation in complex numbers": (of_four(sl.solve_continuous_are, 0.3j), FOUR),
    "Riccati's equation of numbers": (lambda t: sl.solve_continuous_are(*t), [0.3, 1.0, 2.0, 1.0]),
    "Riccati's equation in steps": (of_four(sl.solve_discrete_are), FOUR),
    "complex steps": (of_four(sl.solve_discrete_are, 0.3j), FOUR),
    "steps of numbers": (lambda t: sl.solve_discrete_are(*t, balanced=False), [0.3, 1.0, 2.0, 1.0]),
    "a large direction of an exponential": (lambda t: sl.expm_frechet(t[0], t[1])[1] / 1e4, [A, 1e4 * C]),
    "complex coefficients": (lambda t: sl.companion(t * (1 + 0.2j * t)), TALL.T),
    "two coefficients": (sl.fiedler_companion, [2.0, 3.0]),
    "a stack of coefficients": (sl.fiedler_companion, A),
    "complex distances": (lambda t: sl.fiedler(t + 1j * t**2), A[0]),
    "a list of rates": (lambda t: sl.leslie([t[0], 2.0, t[1]], t[2:]), A[0]),
    "angles of a complex space": (lambda t: sl.subspace_angles(t[:, :1] + 1j * t[:, 1:2], t[:, 1:]), TALL),
    "small angles": (lambda t: sl.subspace_angles(t[:, :2], t[:, :2] + 0.01 * TALL[:, 1:] ** 2), TALL),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", BOTH)
def test_solutions_and_factors_have_the_slopes_of_their_equations_in_every_mode(case: str, engine: str | None) -> None:
    fun, at = BOTH[case]
    assert_right(fun, at, engine)


ALONE: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "some of a pair, with vectors": (lambda t: sl.eigh(t[0], t[1], subset_by_index=[0, 1]), [H, B]),
    "vectors of another driver": (lambda t: sl.eigh(t, driver="ev"), H),
    "vectors of a chain": (lambda t: sl.eigh_tridiagonal(t[:4], t[4:], lapack_driver="stemr"), A.ravel()[:7]),
    "phases of a complex pair": (lambda t: sl.eigh(t[0] + 1j * K, t[1] + 0.1j * K), [H, B + 9 * np.eye(4)]),
    "vectors of a real matrix": (sl.eig, A),
    "vectors of a complex matrix": (lambda t: sl.eig(t + 1j * C), A),
    "a root of the identity": (lambda t: sl.fractional_matrix_power(t, 0.3), np.eye(3)),
    "a power with complex values": (lambda t: sl.fractional_matrix_power(t, -0.7), A),
    "powers in a stack": (lambda t: sl.fractional_matrix_power(t, 2.5), np.stack([B, 2 * B])),
    "an inverse that is a power": (lambda t: sl.fractional_matrix_power(t, -2), B),
    "base and exponent": (lambda t: sl.fractional_matrix_power(B * t[0], t[1]), [1.1, 0.4]),
}


@pytest.mark.parametrize("case", ALONE)
def test_vectors_and_powers_follow_scipys_signs_and_branches(case: str) -> None:
    fun, at = ALONE[case]
    assert_right(fun, at)


def test_large_bands_are_solved_in_their_bands() -> None:
    n = 100_000
    bands = np.stack([np.full(n, -1.0), np.full(n, 2.5), np.full(n, -1.0)])

    def loss(t: Any) -> Any:
        return np.sum(sl.solve_banded((1, 1), bands * t[0], np.ones((n, 2)) * t[1]))

    gradient = dagad.grad(loss)(np.array([2.0, 3.0]))
    total = loss(np.array([2.0, 3.0]))
    np.testing.assert_allclose(gradient, [-total / 2.0, total / 3.0], rtol=1e-12)


def test_gradients_of_a_riccati_equation_are_as_symmetric_as_its_weights() -> None:
    gradient = dagad.grad(lambda q: sl.solve_continuous_are(A, np.eye(4), q, B)[0, 1])(B)
    np.testing.assert_allclose(gradient, gradient.T, atol=1e-15)


def test_a_triangle_of_a_pair_that_is_not_read_has_no_slope() -> None:
    for lower in (True, False):
        gradient = dagad.grad(lambda t, lower=lower: np.sum(sl.eigh(t[0], t[1], lower=lower)[0] ** 2))(np.stack([H, B]))
        assert not np.any(np.triu(gradient, 1) if lower else np.tril(gradient, -1))
        assert np.all(np.tril(gradient)[:, 3, 0] != 0) == lower


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "values between": (
        lambda t: sl.eigh(t + t.T, subset_by_value=[0.0, 9.0])[0],
        r"`scipy\.linalg\.eigh` was.*by_value",
    ),
    "phases of some": (lambda t: sl.eigh(H + 1j * t, subset_by_index=[0, 1])[1], r"`scipy\.linalg\.eigh` of complex"),
    "a chain's values between": (
        lambda t: sl.eigvalsh_tridiagonal(t[0], t[1, :3], select="v", select_range=(0.0, 9.0)),
        r"tridiagonal` was called with `select='v'`",
    ),
    "left vectors": (lambda t: sl.eig(t, left=True)[0], r"`scipy\.linalg\.eig` was called with `left`"),
    "a pencil": (lambda t: sl.eigvals(t, B), r"`scipy\.linalg\.eigvals` was called with `b`"),
    "homogeneous": (lambda t: sl.eigvals(t, homogeneous_eigvals=True), r"with `homogeneous_eigvals`"),
    "complex vectors of bands": (lambda t: sl.eig_banded(t + 1j * t)[1], r"`scipy\.linalg\.eig_banded` of complex"),
    "a tolerance": (lambda t: sl.pinvh(t, rtol=0.1), r"`scipy\.linalg\.pinvh` was called with `rtol`"),
    "a rank": (lambda t: sl.pinvh(t, return_rank=True)[0], r"with `return_rank`"),
    "a descriptor": (lambda t: sl.solve_continuous_are(t, B, B, B, e=B), r"continuous_are` was called with `e`"),
    "a cross term": (lambda t: sl.solve_discrete_are(t, B, B, B, s=A), r"discrete_are` was called with `s`"),
    "a singular factor": (lambda t: sl.polar(t * np.array([[1.0], [1], [1], [0]]))[0], r"polar`.*matrix is singular"),
    "dependent columns": (lambda t: sl.subspace_angles(t[:, [0, 0]], C[:, :2]), r"depend on each other linearly"),
    "bands in a stack": (lambda t: sl.solve_banded((1, 2), np.stack([t, t]), A[0]), r"solve_banded` of a stack"),
    "a real matrix beside complex ones": (lambda t: sl.solve_continuous_lyapunov(t, 1j * B), r"write `a \+ 0j`"),
    "a real matrix in steps": (lambda t: sl.solve_discrete_lyapunov(t, 1j * B, "bilinear"), r"write `a \+ 0j`"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_form_without_a_derivative_is_refused_by_what_was_asked(case: str) -> None:
    fun, sentence = REFUSED[case]
    with pytest.raises(dagad.NotDifferentiableError, match=sentence):
        dagad.grad(loss_of(fun, None))(K + 0.1 * A + (H if "between" in case else 0.0))


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_whether_a_polar_factor_has_a_slope_does_not_depend_on_the_unit_of_its_matrix(scale: float) -> None:
    def factor(unit: float, last: float) -> Callable[[Any], Any]:
        return loss_of(lambda t: sl.polar(unit * t * np.array([[1.0], [1.0], [1.0], [last]]))[0], None)

    at = K + 0.1 * A
    with pytest.raises(dagad.NotDifferentiableError, match="matrix is singular"):
        dagad.grad(factor(scale, 0.0))(at)
    found, expected = dagad.grad(factor(scale, 1.0))(at), dagad.grad(factor(1.0, 1.0))(at)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)  # a rotation has no unit


def large_bands(t: Any) -> Any:
    return sl.solve_banded((0, 0), np.ones((1, 1001)) * t[0, 0], np.ones(1001))


def large_equation(t: Any) -> Any:
    return sl.solve_sylvester(np.eye(33) * t[0, 0], np.eye(33), np.eye(33))


REFUSED_BY_JAX: dict[str, tuple[Callable[[Any], Any], str]] = {
    "large bands": (large_bands, r"more than 1,000 rows"),
    "a large equation": (large_equation, r"more than 1,024 unknowns"),
    "a stack": (lambda t: sl.solve_sylvester(np.stack([t, t]), B, B), r"solve_sylvester` of a stack of matrices"),
    "another driver": (lambda t: sl.eigh(t, driver="ev")[0], r"`scipy\.linalg\.eigh` with `driver`"),
    "vectors": (lambda t: sl.eig(t)[0], r"`scipy\.linalg\.eig`"),
    "a large root": (lambda t: sl.sqrtm(np.eye(33) * t[0, 0]), r"`scipy\.linalg\.sqrtm` with more than 1,024 unknowns"),
    "a descriptor": (lambda t: sl.solve_continuous_are(t, B, B, B, e=B), r"continuous_are` with `e`"),
    "no more rows": (lambda t: sl.lstsq(t, B)[0], r"without more rows than columns"),
    "values between": (lambda t: sl.eigvals_banded(t, select="v", select_range=(0, 9)), r"`select='v'`"),
}


@pytest.mark.needs("jax")
@pytest.mark.parametrize("case", REFUSED_BY_JAX)
def test_inexact_and_large_problems_are_refused_compiled(case: str) -> None:
    fun, sentence = REFUSED_BY_JAX[case]
    with pytest.raises(dagad.NotDifferentiableError, match=sentence):
        dagad.grad(loss_of(fun, "jax"))(A)


SOLVED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "Sylvester": (lambda t: sl.solve_sylvester(t[0] + 5 * np.eye(4), t[1][:3, :3], t[2][:, :3]), FOUR),
    "Lyapunov": (lambda t: sl.solve_continuous_lyapunov(t[0] * (1 + 0.5j) + 5 * np.eye(4), t[2]), FOUR),
    "Stein": (lambda t: sl.solve_discrete_lyapunov(t[0] * (1 + 0.5j) / 5, t[2], method="bilinear"), FOUR),
    "a complex Toeplitz matrix": (
        lambda t: sl.solve_toeplitz((t[0, 0] + [5, 0, 0, 0], t[1, 0] * (1 + 0.2j)), t[2, :, :2]),
        FOUR,
    ),
    "a Hermitian Toeplitz matrix": (lambda t: sl.solve_toeplitz(t[0, 0] * (1 + 0.1j) + [5, 0, 0, 0], t[1, 1]), FOUR),
    "a Toeplitz product": (lambda t: sl.matmul_toeplitz((t[0, 0], t[1, 0, :3]), t[2, :3]), FOUR),
    "a circulant matrix": (lambda t: sl.solve_circulant(t[0, 0] + [5, 0, 0, 0], t[1]), FOUR),
    "orthonormal columns": (lambda t: sl.lstsq(t, TALL)[:2], ORTHOGONAL),
    "the root of the identity": (sl.sqrtm, np.eye(3)),
    "roots in a stack": (lambda t: sl.sqrtm(t @ np.swapaxes(t, -1, -2) + np.eye(4)), FOUR[:2]),
    "a logarithm": (lambda t: sl.logm(t / 9 + np.eye(4) + 0.1j * K), A),
    "base and exponent": (lambda t: sl.fractional_matrix_power(B * t[0], t[1]), [1.1, 0.4]),
    "an inverse that is a power": (lambda t: sl.fractional_matrix_power(t, -2), B),
    "complex angles": (lambda t: [sl.cosm(t * (1 + 0.2j)), sl.sinm(t * (1 + 0.2j)), sl.tanm(t / 4)], A),
    "hyperbolic angles": (lambda t: [sl.coshm(t), sl.sinhm(t * (1 + 0.1j)), sl.tanhm(t / 4)], A),
    "complex least squares": (lambda t: sl.lstsq(t * (1 + 0.2j * t), t[:, 0])[0], TALL),
}


@pytest.mark.needs("jax")
@pytest.mark.parametrize("case", SOLVED)
def test_linear_equations_are_compiled_with_the_derivatives_of_the_default_engine(case: str) -> None:
    fun, at = SOLVED[case]
    at = np.asarray(at)
    (right, gradient), (value, slope) = (dagad.value_and_grad(loss_of(fun, engine))(at) for engine in (None, "jax"))
    assert value == pytest.approx(right, rel=1e-12)
    np.testing.assert_allclose(slope, gradient, rtol=1e-10, atol=1e-10 * abs(gradient).max())
    curved, expected = (dagad.hvp(loss_of(fun, engine), at, np.cos(at)) for engine in ("jax", None))
    np.testing.assert_allclose(curved, expected, rtol=1e-9, atol=1e-10 * abs(expected).max())


UNSOLVED: dict[str, Callable[[Any], Any]] = {
    "columns that depend on each other": lambda t: sl.lstsq(np.ones((5, 2)) * t, TALL)[0],
    "slopes of a singular factor": lambda t: sl.polar(np.ones((5, 2)) * t)[0],
    "spaces of fewer dimensions": lambda t: sl.subspace_angles(np.ones((5, 2)) * t, TALL),
    "a root of what is negative": lambda t: sl.sqrtm(np.diag([1.0, -2.0]) * t),
    "what nothing stabilizes": lambda t: sl.solve_continuous_are(np.eye(2), np.zeros((2, 1)), np.eye(2) * t, np.eye(1)),
    "what no step stabilizes": lambda t: sl.solve_discrete_are(
        2 * np.eye(2), np.zeros((2, 1)), np.eye(2) * t, np.eye(1)
    ),
}


@pytest.mark.needs("jax")
@pytest.mark.filterwarnings("ignore::dagad.DagadWarning")  # which says so
@pytest.mark.parametrize("case", UNSOLVED)
def test_problems_without_a_solution_give_nan_compiled(case: str) -> None:
    assert np.isnan(dagad.grad(loss_of(UNSOLVED[case], "jax"))(np.float64(1.5)))
