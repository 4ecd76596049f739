"""Functions that read one triangle of a matrix: the derivative is of what they read, whatever is in the other one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg as sl

import dagad

RNG = np.random.default_rng(4)
N = 3
REAL = RNG.normal(size=(N, N))
COMPLEX = REAL + 1j * RNG.normal(size=(N, N))
B = RNG.normal(size=(N, 2))


def positive(a: Any) -> Any:
    return a @ a.conj().T + N * np.eye(N)


def indefinite(a: Any) -> Any:
    return a + a.conj().T + np.diag([4.0, -3.0, 1.0])


def squares(found: Any) -> Any:
    """Return eigenvalues beside squares of vectors: the signs of these are free."""
    return [found[0], abs(found[1]) ** 2]


def of_svd(a: Any) -> Any:
    u, s, vh = np.linalg.svd(a, hermitian=True)
    return [s, abs(u) ** 2, (u * s) @ vh]


Case = tuple[Callable[[Any], Any], Callable[[Any], Any], bool]  # the function, a matrix for it, is it the lower one?
CASES: dict[str, Case] = {
    "np.linalg.cholesky": (np.linalg.cholesky, positive, True),
    "np.linalg.cholesky, upper": (lambda a: np.linalg.cholesky(a, upper=True), positive, False),
    "np.linalg.cholesky, stack": (lambda a: np.linalg.cholesky(np.stack([a, 2 * a])), positive, True),
    "np.linalg.eigh": (lambda a: squares(np.linalg.eigh(a)), indefinite, True),
    "np.linalg.eigh, U": (lambda a: squares(np.linalg.eigh(a, UPLO="U")), indefinite, False),
    "np.linalg.eigh, u": (lambda a: squares(np.linalg.eigh(a, "u")), indefinite, False),
    "np.linalg.eigvalsh": (np.linalg.eigvalsh, indefinite, True),
    "np.linalg.eigvalsh, U": (lambda a: np.linalg.eigvalsh(a, UPLO="U"), indefinite, False),
    "np.linalg.svd, hermitian": (of_svd, indefinite, True),
    "np.linalg.svd, values": (lambda a: np.linalg.svd(a, False, False, True), indefinite, True),
    "np.linalg.pinv, hermitian": (lambda a: np.linalg.pinv(a, hermitian=True), indefinite, True),
    "scipy cholesky": (sl.cholesky, positive, False),
    "scipy cholesky, lower": (lambda a: sl.cholesky(a, lower=True), positive, True),
    "cho_factor": (lambda a: np.triu(sl.cho_factor(a)[0]), positive, False),
    "cho_factor, lower": (lambda a: np.tril(sl.cho_factor(a, lower=True)[0]), positive, True),
    "cho_solve": (lambda a: sl.cho_solve((a, False), B), positive, False),
    "cho_solve, lower": (lambda a: sl.cho_solve((a, True), B), positive, True),
    "both": (lambda a: sl.cho_solve(sl.cho_factor(a), B), positive, False),
    "solve, pos": (lambda a: sl.solve(a, B, assume_a="pos"), positive, False),
    "solve, pos, lower": (lambda a: sl.solve(a, B, assume_a="pos", lower=True), positive, True),
    "solve, her": (lambda a: sl.solve(a, B, assume_a="her"), indefinite, False),
    "solve, her, lower": (lambda a: sl.solve(a, B, assume_a="her", lower=True), indefinite, True),
    "solve, sym": (lambda a: sl.solve(a, B, assume_a="sym"), lambda a: a + a.T + 4.0 * np.eye(N), False),
    "scipy eigh": (lambda a: squares(sl.eigh(a)), indefinite, True),
    "scipy eigh, upper": (lambda a: squares(sl.eigh(a, lower=False)), indefinite, False),
    "scipy eigh, values": (lambda a: sl.eigh(a, eigvals_only=True), indefinite, True),
    "scipy eigvalsh": (sl.eigvalsh, indefinite, True),
    "scipy eigvalsh, upper": (lambda a: sl.eigvalsh(a, lower=False), indefinite, False),
    "solve_triangular": (lambda a: sl.solve_triangular(a, B), positive, False),
    "solve_triangular, lower": (lambda a: sl.solve_triangular(a, B, lower=True), positive, True),
    "solve_triangular, trans": (lambda a: sl.solve_triangular(a, B, trans=1, lower=True), positive, True),
    "solve_triangular, unit": (lambda a: sl.solve_triangular(a, B, unit_diagonal=True), positive, False),
    "solve, triangle": (lambda a: sl.solve(a, B, assume_a="lower triangular"), positive, True),
}
OTHER = {True: np.triu(RNG.normal(size=(N, N)), 1), False: np.tril(RNG.normal(size=(N, N)), -1)}  # by what is read


def weighed(found: Any) -> Any:
    total: Any = 0.0
    for part in found if isinstance(found, list) else [found]:
        weights = np.cos(np.arange(np.size(part))).reshape(np.shape(part)) + 1.5
        total = total + np.sum(weights * (np.real(part) + 0.5 * np.imag(part)) ** 2)
    return total


def loss_of(function: Callable[[Any], Any], scalar: str) -> Callable[[Any], Any]:
    """Return the loss of the entries, real parts before imaginary ones."""

    def loss(entries: Any) -> Any:
        a = entries[0] + 1j * entries[1] if scalar == "complex" else entries[0]
        return weighed(function(a))

    return loss


def difference(fun: Callable[[Any], Any], at: Any, along: Any, step: float = 1e-4) -> Any:
    """Return the derivative in a direction, by a difference of fourth order."""
    ahead, behind = (fun(at + k * step * along) - fun(at - k * step * along) for k in (1, 2))
    return (8 * ahead - behind) / (12 * step)


def assert_right(loss: Callable[[Any], Any], at: Any) -> Any:
    """Assert that every mode agrees with differences, entry by entry, and return the gradient."""
    gradient, along = dagad.grad(loss)(at), np.cos(1.7 * np.arange(at.size)).reshape(at.shape)
    slopes = [difference(loss, at, unit.reshape(at.shape)) for unit in np.eye(at.size)]
    np.testing.assert_allclose(gradient.ravel(), slopes, rtol=1e-7, atol=1e-8 * abs(gradient).max())
    assert dagad.jvp(loss, at, along)[1] == pytest.approx(np.sum(gradient * along), rel=1e-10)
    curved = difference(dagad.grad(loss), at, along)
    np.testing.assert_allclose(dagad.hvp(loss, at, along), curved, rtol=1e-6, atol=1e-7 * abs(curved).max())
    return gradient


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scalar", ["real", "complex"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")  # the matrix with garbage is nearly singular
def test_a_function_has_the_derivative_of_the_triangle_that_it_reads(case: str, scalar: str) -> None:
    function, make, lower = CASES[case]
    whole = make(COMPLEX if scalar == "complex" else REAL)
    read = np.tril(whole) if lower else np.triu(whole)
    parts = np.stack([np.real(read), np.imag(read)]) if scalar == "complex" else np.real(read)[None]
    loss, gradients = loss_of(function, scalar), []
    for other in (OTHER[lower], 0.0):  # garbage, or nothing: only this triangle has been filled
        gradients.append(assert_right(loss, parts + other))
        assert not np.any(gradients[-1] * (OTHER[lower] != 0))
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-12, atol=1e-12 * abs(gradients[0]).max())


BANDS = {
    "solve_banded": lambda ab: sl.solve_banded((1, 1), ab, B[:, 0]),
    "solveh_banded": lambda ab: sl.solveh_banded(ab[:2], B),
    "solveh_banded, lower": lambda ab: sl.solveh_banded(ab[1:], B, lower=True),
}


@pytest.mark.parametrize("case", BANDS)
def test_corners_of_bands_have_no_part_in_a_derivative(case: str) -> None:
    at = np.array([[9.0, 0.7, -0.4], [5.0, 6.0, 7.0], [0.3, 1.1, -8.0]])  # the 9 and the 8 are in no band
    gradient = assert_right(loss_of(BANDS[case], "real"), at[None])
    assert gradient[0, 0, 0] == gradient[0, 2, 2] == 0.0
