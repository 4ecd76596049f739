"""Complex numbers: rules that take them for real are wrong in silence, and so are cotangents that are too complex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.special

import dagad
from support.numpy_calls import calls, is_here

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

RNG = np.random.default_rng(2)
AT, ALONG = np.array([0.1, -0.2, 0.05]), np.array([0.6, -0.3, 0.7])


def number(*shape: int) -> Any:
    return RNG.normal(size=shape) + 1j * RNG.normal(size=shape)


BASE = {"c": number(3, 3) + 5 * np.eye(3), "t": number(5, 3), "u": number(3), "w": number(5)}
TURN = {name: [number(*np.shape(base)) for _ in range(3)] for name, base in BASE.items()}
K = number(3, 3)  # a constant
H = K + K.conj().T  # another

MATRICES = """
np.linalg.det(c) | np.linalg.slogdet(c)[0] | np.linalg.slogdet(c)[1] | np.linalg.inv(c) | np.linalg.pinv(t)
np.linalg.pinv(t.T) | np.linalg.solve(c, u) | np.linalg.cholesky(h) | np.linalg.eigh(h)[0] | np.linalg.eigvals(c)
abs(np.linalg.eigh(h)[1]) ** 2 | np.linalg.svdvals(t) | abs(np.linalg.svd(t, full_matrices=False)[2]) ** 2
np.linalg.eigh(h)[1] | np.linalg.eigh(h, UPLO="U")[1] | np.linalg.eig(c)[1] | np.linalg.eig(q)[1][0]
np.linalg.svd(np.stack([t, 2j * t]), full_matrices=False)[0] | abs(np.linalg.svd(np.stack([t, 1j * t]), False)[2]) ** 2
np.linalg.svd(t, full_matrices=False)[0] | np.linalg.svd(t.T, full_matrices=False)[2] | linalg.eigh(h)[1] ** 2
linalg.svd(t, False)[2] | linalg.eigh(h, lower=False)[1] ** 2
np.linalg.qr(t)[0] | np.linalg.qr(t, mode="r") | np.linalg.norm(t, 2) | np.linalg.norm(u, 3) | np.linalg.cond(c)
np.linalg.lstsq(t, w, rcond=None)[0] | np.linalg.lstsq(t, w, rcond=None)[1] | np.linalg.lstsq(r, K[0], rcond=None)[1]
linalg.solve(h, u, assume_a="pos") | linalg.solve(h, u, lower=True, assume_a="her") | linalg.inv(h, assume_a="pos")
linalg.solve(c + c.T, u, assume_a="sym") | linalg.cholesky(h) | linalg.cholesky(h, lower=True) | linalg.cho_factor(h)[0]
linalg.cho_solve(linalg.cho_factor(h), u) | linalg.cho_solve(linalg.cho_factor(h, lower=True), c)
linalg.solve_triangular(c, u) | linalg.solve_triangular(c, u, trans=1) | linalg.solve_triangular(c, u, trans=2)
linalg.solve_triangular(c, c, trans="C", lower=True) | linalg.solve_triangular(c, u, trans="C", unit_diagonal=True)
linalg.solve_triangular(c, r[0], trans=2) | linalg.solve_triangular(q, u, trans="C") | linalg.eigh(h)[0]
linalg.eigh(h, eigvals_only=True) | abs(linalg.eigh(h)[1]) ** 2 | abs(linalg.svd(t, False)[0]) ** 2
linalg.svd(t, False)[0] @ linalg.svd(t, False)[2] | linalg.svdvals(t) | linalg.qr(t, mode="economic")[1]
linalg.qr(t, mode="economic", pivoting=True)[0]
linalg.pinv(t) | linalg.polar(c)[0] | linalg.polar(c)[1] | linalg.polar(c, side="left")[1] | linalg.lstsq(t, w)[0]
linalg.lstsq(t, w)[1] | linalg.solveh_banded(np.stack([u, abs(u) + 9 + 0j]), u) | linalg.toeplitz(u)
linalg.toeplitz(u, u**2) | linalg.solve_toeplitz(u + [6, 0, 0], u) | linalg.matmul_toeplitz(u, c) | linalg.expm(c / 5)
"""

# `q` and `r` are real, and made of complex numbers: a cotangent has to be real when it reaches `np.real`.
BESIDE = """
np.linalg.solve(q, K[0]) | np.linalg.solve(K, r[0]) | np.inner(q, K) | np.cross(r[0], K[0]) | np.where(K.real > 0, q, K)
np.concatenate([r[0], K[0]]) | np.block([[q, K]]) | np.stack([r[0], K[0]]) | np.select([K.real > 0], [q], K)
np.insert(K[0], 1, r[0]) | linalg.solve_triangular(q, K[0]) | linalg.solve_triangular(K, r[0], lower=True)
linalg.solve_banded((1, 1), q + np.diag([9.0, 9, 9])[[1, 0, 2]], K[0]) | np.where([True, False, True], abs(u), K[0])
np.append(np.angle(u), K[0]) | np.append(np.imag(u), K[0]) | np.append(np.linalg.norm(t, axis=0), K[0])
np.append(np.linalg.eigh(h)[0], K[0]) | np.append(np.linalg.svd(t, full_matrices=False)[1], K[0])
np.append(np.std(t, axis=0), K[0])
linalg.solve_sylvester(K, q + 0j, q) | linalg.solve_sylvester(q, K, q=K)
np.append(np.fft.irfft(w), K[0]) | np.append(np.linalg.slogdet(c)[1], K[0])
np.stack([r[0, 0], K[0, 0]]) | np.einsum("ij,j", q, K[0]) | np.kron(q, K)
np.arccosh(u) | np.arccosh(w) | np.sign(t) | np.fft.hfft(t) | np.var(t, axis=1, ddof=1)
np.prod(w, dtype=float) | np.prod(t, axis=0, dtype=float) | np.insert(K[0].real, 1, u)
"""

# Complex constants and something real: `H + g` is Hermitian, and moves by real matrices.
REAL_STEPS = """
np.linalg.eigvalsh(H + g) | np.linalg.eigh(H + g)[0] | abs(np.linalg.eigh(H + g, "U")[1]) ** 2
linalg.eigvalsh(H + g) | abs(linalg.eigh(H + g)[1]) ** 2 | linalg.eigh(H + g, lower=False)[0]
linalg.eigvalsh(H + g, subset_by_index=[0, 1]) | np.linalg.pinv(H + g, hermitian=True)
np.linalg.svd(H + g, compute_uv=False, hermitian=True) | linalg.eigvalsh(H + g, h) | linalg.pinvh(H + g)
linalg.eigvals_banded(np.stack([r[0], K[0]]), lower=True)
"""
HOMES = {"np": np, "linalg": scipy.linalg, "special": scipy.special}
CALLS = [call for call in calls(MATRICES) + calls(BESIDE) + calls(REAL_STEPS) if is_here(call, HOMES)]


def weighed(out: Any) -> Any:
    numbers = np.arange(np.prod(np.shape(out), dtype=int)).reshape(np.shape(out))
    total = np.sum((np.cos(numbers) + 1.5) * np.real(out))
    return total + np.sum((np.sin(numbers) + 0.7) * np.imag(out)) if np.iscomplexobj(out) else total


def loss_of(call: str) -> Callable[[Any], Any]:
    code = compile(call, "<call>", "eval")

    def loss(x: Any) -> Any:
        made = {name: BASE[name] + sum(x[k] * turn for k, turn in enumerate(TURN[name])) for name in BASE}
        made["h"] = made["c"] @ made["c"].conj().T + np.eye(3)
        made["q"], made["r"] = np.real(made["c"] * (1 + 1j * x[0])), np.real(made["t"] * (1 + 1j * x[1]))
        made["g"] = made["q"] + made["q"].T
        made["r"] = made["r"][:3, :2] if "lstsq(r" in call else made["r"]
        return weighed(eval(code, {**HOMES, "K": K, "H": H, **made}))

    return loss


def slope(fun: Callable[[Any], Any], step: float = 1e-4) -> Any:
    ahead, behind = (fun(AT + k * ALONG) - fun(AT - k * ALONG) for k in (step, 2 * step))
    return (8 * ahead - behind) / (12 * step)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_a_function_of_complex_numbers_is_right_in_every_mode(call: str) -> None:
    loss = loss_of(call)
    value, gradient = dagad.value_and_grad(loss)(AT)
    assert value == loss(AT)
    assert gradient @ ALONG == pytest.approx(slope(loss), rel=1e-8)
    assert dagad.jvp(loss, AT, ALONG)[1] == pytest.approx(slope(loss), rel=1e-8)
    curved = slope(dagad.grad(loss))
    np.testing.assert_allclose(dagad.hvp(loss, AT, ALONG), curved, rtol=1e-6, atol=1e-7 * abs(curved).max())


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "psi": (lambda z: scipy.special.psi(z), r"no derivative of `digamma` of complex numbers"),
    "ive": (lambda z: scipy.special.ive(1, z), r"no derivative of `ive`"),
    "phases": (lambda z: np.linalg.eigh(np.diag(abs(z)) + 0j)[1] * 1j, r"no derivative of `eigh` where .* phases"),
    "some vectors": (
        lambda z: scipy.linalg.eigh(H + np.diag(z.real), subset_by_index=[0, 1])[1],
        r"no derivative of `scipy\.linalg\.eigh` of complex matrices with vectors.*phases are free",
    ),
    "rank": (lambda z: np.linalg.pinv(np.outer(z, z)), r"no derivative of `pinv` of complex matrices that are not"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_function_without_a_derivative_for_complex_numbers_is_refused(case: str) -> None:
    fun, sentence = REFUSED[case]

    def loss(x: Any) -> Any:
        return weighed(fun(BASE["u"] + x[0] * K[0]))

    for call in (dagad.grad(loss), lambda x: dagad.jvp(loss, x, ALONG)):
        with pytest.raises(dagad.NotDifferentiableError, match=sentence):
            call(AT)
