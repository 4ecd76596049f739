"""Forward mode: is every primitive's tangent what autograd's reverse mode says, to second order and in any order?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as np
import autograd.scipy.linalg as linalg
import autograd.scipy.signal as signal
import autograd.scipy.special as special
import autograd.scipy.stats as stats
import numpy as onp
import pytest
from autograd.builtins import dict as traced_dict, tuple as traced_tuple
from autograd.extend import defjvp, defvjp, primitive

import dagad

RNG = onp.random.default_rng(4)
V, M = RNG.uniform(0.2, 0.9, 4), RNG.uniform(0.2, 0.9, (3, 4))
S, T = RNG.uniform(0.2, 0.9, (3, 3)) + 2.0 * onp.eye(3), RNG.uniform(0.2, 0.9, (2, 3, 2))
YES = onp.array([True, False, True, False])
EYE = onp.eye(3)
COUNTS = onp.array([0, 2, 1, 3])


def symmetric(a: Any) -> Any:
    return a + a.T


def definite(a: Any) -> Any:
    return a @ a.T + EYE


# With a pushforward of autograd's own, and without.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "arithmetic": (lambda x: (2.0 * x - x[0]) / (x + x[::-1]) ** 2 - x % 0.15, V),
    "powers": (lambda x: x ** x[0] + 2.0**x + x**2 + x**0.5 + np.square(x) + np.sqrt(x), V),
    "exponentials": (lambda x: np.exp(x) + np.expm1(x) * np.exp2(x) + np.log(x) * np.log1p(x) + np.log2(x), V),
    "circles": (lambda x: np.sin(x) * np.cos(x) + np.tan(x) + np.arcsin(x) * np.arccos(x) + np.arctan(x), V),
    "hyperbolas": (lambda x: np.sinh(x) * np.cosh(x) + np.tanh(x) + np.arcsinh(x) * np.arctanh(x), V),
    "two arguments": (lambda x: np.arctan2(x, x[0]) + np.hypot(x, x[1]) + np.logaddexp(x, x[2]), V),
    "the larger": (lambda x: np.maximum(x, 0.5) ** 2 + np.fmin(x**2, x[1]) + np.abs(x - 0.5), V),
    "clip": (lambda x: np.clip(x, 0.3, 0.7) * x, V),
    "where": (lambda x: np.where(YES, x**2, np.sin(x)), V),
    "where, of one number": (lambda x: np.sum(np.where(True, x[0] ** 2, np.ones(3))) * x, V),
    "where, broadcast": (lambda x: np.sum(np.where(onp.ones((2, 1)) > 0, x[0] ** 2, x * np.ones((2, 4)))) * x, V),
    "select": (lambda x: np.select([x > 0.5, x > 0.3], [x**3, x**4], 0.0) * x, V),
    "sums": (lambda m: np.sum(m**2, axis=0) + np.mean(m**3, axis=0, keepdims=True)[0] + np.cumsum(m**2, 1)[0], M),
    "product": (lambda m: np.prod(m, axis=1), M),
    "max": (lambda m: np.max(m, axis=1) ** 2 + np.min(m), M),
    "max over axes from the end": (lambda t: np.max(t, axis=(-2, -1)) ** 2, T),
    "var": (lambda m: np.var(m, axis=-1, ddof=1) + np.std(m), M),
    "var over axes": (lambda t: np.var(t, axis=(0, 2)) + np.std(t, axis=(-1, 0), keepdims=True)[0, :, 0], T),
    "norm": (lambda m: np.linalg.norm(m, axis=0) + np.linalg.norm(m) * np.linalg.norm(m, 3, axis=0), M),
    "nuclear norm": (lambda m: np.linalg.norm(m, "nuc"), M),
    "sort": (lambda x: np.sort(x) * onp.arange(4.0) * x, V),
    "partition": (lambda x: np.partition(x, 2)[2:] ** 2, V),
    "integer arrays": (lambda x: x[[0, 2, 2, 3, 0]] ** 2, V),
    "masks": (lambda x: x[YES] * x[~YES], V),
    "mixed indices": (lambda m: m[1:, onp.array([0, 0, 3])] ** 2 * m[..., None, 0][:1], M),
    "concatenate": (lambda x: np.concatenate([x, x**2, onp.ones(2), onp.arange(2)]), V),
    "stack": (lambda x: np.stack([x, x**2], axis=1) @ np.vstack([x, 2.0 * x]) * np.hstack([x[:2], x[:2]]), V),
    "array": (lambda x: np.array([[x[0], 1.0], [x[1] * x[2], 2]]) ** 2, V),
    "split": (lambda x: np.split(x, 2)[1] * np.array_split(x, 3)[0], V),
    "diff": (lambda m: np.diff(m**2, 2, axis=1) * np.gradient(m[0])[:2], M),
    "pad": (lambda m: np.pad(m, ((1, 0), (0, 2)), "constant") ** 2, M),
    "shapes": (lambda m: np.reshape(m, (4, 3)) @ np.ravel(m.T)[:3] * np.swapaxes(m, 0, 1)[:, 0] ** 2, M),
    "turns": (lambda m: np.roll(m, 1, axis=1) * np.flipud(m) * np.rot90(m, 2) * np.tile(m[:1], (3, 1)), M),
    "repeat": (lambda m: np.repeat(m, 2, axis=1) ** 2 * np.expand_dims(np.squeeze(m[:1, :1]), 0), M),
    "axes": (lambda t: np.transpose(t, (2, 0, 1)) ** 2 * np.moveaxis(t, 2, 0), T),
    "diagonals": (lambda m: np.diag(m[0])[0] * np.trace(m @ m.T) * np.tril(m)[1] * np.triu(m)[2], M),
    "made of numbers": (lambda x: np.linspace(x[0], x[1], 4) ** 2 * np.full(4, x[2]), V),
    "astype": (lambda x: (x**2).astype(float) * np.nan_to_num(x), V),
    "containers": (lambda x: traced_dict(a=x**2)["a"] * traced_tuple((x, x[0]))[1], V),
    "matmul": (lambda m: m @ m.T @ m, M),
    "dot": (lambda m: np.dot(m, m[0]) + np.inner(m, m)[0] + np.outer(m[0], m[1])[:3, 0], M),
    "einsum": (lambda m: np.einsum("ij,kj->ik", m, m) + np.einsum(m, [0, 1], m, [2, 1], [0, 2]), M),
    "tensordot": (lambda t: np.tensordot(t, t, axes=[(0, 1), (0, 1)]), T),
    "products of vectors": (lambda m: np.cross(m[:2, :3], m[1:, 1:])[0] + np.kron(m[0, :1], m[1, :3]), M),
    "solve": (lambda a: np.linalg.solve(a, a[0]) + np.linalg.solve(a, a**2)[0], S),
    "inv": (lambda a: np.linalg.inv(a) + np.linalg.pinv(a[:, :2])[0], S),
    "det": (lambda a: np.linalg.det(a) + np.linalg.slogdet(a)[1], S),
    "cholesky": (lambda a: np.linalg.cholesky(definite(a)), S),
    "eigenvalues": (lambda a: np.linalg.eigh(symmetric(a))[0] ** 2, S),
    "eigenvectors": (lambda a: np.linalg.eigh(symmetric(a))[1] ** 2, S),
    "svd": (lambda m: np.linalg.svd(m, full_matrices=False)[1] * np.linalg.svd(m, full_matrices=False)[0][0] ** 2, M),
    "solve_triangular": (lambda a: linalg.solve_triangular(a, a**2, trans="T") + linalg.sqrtm(definite(a)), S),
    "sylvester": (lambda a: linalg.solve_sylvester(a, a + EYE, a * a), S),
    "fft": (lambda x: np.abs(np.fft.fft(x)) ** 2 + np.real(np.fft.ifft(x * np.exp(1j * x))), V),
    "rfft": (lambda x: np.imag(np.fft.rfft(x**2))[1] * np.fft.irfft(x + 1j * x[::-1], 6), V),
    "fft2": (lambda m: np.fft.fftshift(np.imag(np.fft.fft2(m)) * np.real(np.fft.ifftn(m * 1j))), M),
    "complex": (lambda x: np.angle(x + 1j * x**2) * np.abs(np.exp(1j * x) + np.conj(x * (1j + x))), V),
    "convolve": (lambda x: signal.convolve(x, x[:2]), V),
    "gamma": (lambda x: special.gammaln(x) + special.psi(x) * special.gamma(x) + special.polygamma(1, x), V),
    "incomplete": (lambda x: special.gammainc(2.0, x) * special.betainc(2.0, 3.0, x) + special.beta(x, x[0]), V),
    "erf": (lambda x: special.erf(x) * special.erfc(x) + special.erfinv(x) * special.erfcinv(x), V),
    "logit": (lambda x: special.logit(x) * special.expit(x), V),
    "bessel": (lambda x: special.j0(x) * special.y1(x) + special.jn(2, x) * special.i0(x), V),
    "logsumexp": (lambda m: special.logsumexp(m, axis=1) ** 2 + special.logsumexp(m, b=onp.arange(1.0, 5.0)), M),
    "logsumexp over axes from the end": (lambda t: special.logsumexp(t, axis=(-2, -1)) ** 2, T),
    "normal": (lambda x: stats.norm.logpdf(x, x[0], x[1]) + stats.norm.cdf(x) * stats.norm.logsf(x, 0.2, x[2]), V),
    "student": (lambda x: stats.t.logpdf(x, 3.0 + x[1], x[0], 1.5), V),
    "others": (lambda x: stats.gamma.logpdf(x, 2.0 + x[0]) + stats.beta.logpdf(x, 2.0, 3.0 + x[1]), V),
    "poisson": (lambda x: stats.poisson.logpmf(COUNTS, x) + stats.chi2.logpdf(x, 3.0), V),
    "normal vectors": (lambda a: stats.multivariate_normal.logpdf(a, a[0], definite(a)), S),
    "dirichlet": (lambda x: stats.dirichlet.logpdf(x / np.sum(x), x + 1.0), V),
}


def close(actual: Any, expected: Any, rtol: float = 1e-12) -> bool:
    gap = onp.max(onp.abs(onp.asarray(actual) - onp.asarray(expected)), initial=0.0)
    scale = max(1.0, onp.max(onp.abs(expected), initial=0.0))
    return bool(gap <= rtol * scale) and onp.shape(actual) == onp.shape(expected)


def directions(name: str) -> tuple[Any, Any, Any, Any]:
    fun, x = FUNCTIONS[name]
    rng = onp.random.default_rng(sum(map(ord, name)))
    return fun, x, rng.standard_normal(x.shape), rng.standard_normal(onp.shape(fun(x)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_tangent_is_what_reverse_mode_and_differences_say(name: str) -> None:
    fun, x, v, w = directions(name)
    value, tangent = dagad.jvp(fun, x, v)
    assert onp.array_equal(value, fun(x))
    assert onp.asarray(tangent).dtype == float
    pulled = autograd.grad(lambda x: np.sum(w * fun(x)))(x)
    assert close(onp.sum(w * tangent), onp.sum(pulled * v))
    step = 1e-3
    points = [fun(x + k * step * v) for k in (-2, -1, 1, 2)]
    assert close(tangent, (points[0] - 8 * points[1] + 8 * points[2] - points[3]) / (12 * step), 1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_second_derivative_is_the_same_in_any_order_of_modes(name: str) -> None:
    fun, x, v, w = directions(name)

    def scalar(x: Any) -> Any:
        return np.sum(w * fun(x))

    expected = autograd.grad(lambda x: np.sum(autograd.grad(scalar)(x) * v))(x)
    assert close(dagad.jvp(dagad.grad(scalar), x, v)[1], expected, 1e-10)
    assert close(dagad.grad(lambda x: np.sum(w * dagad.jvp(fun, x, v)[1]))(x), expected, 1e-10)
    twice = dagad.jvp(lambda x: dagad.jvp(fun, x, v)[1], x, x)[1]
    assert close(np.sum(w * twice), onp.sum(expected * x), 1e-10)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_tangent_and_an_hvp_of_each_function_are_right_in_chunks(name: str) -> None:
    fun, x, v, w = directions(name)
    factors = onp.array([0.5, 2.0, -0.25])

    def total(x: Any) -> Any:
        return dagad.reduce_sum(lambda rows, x: np.sum(rows) * fun(x), factors, x, grainsize=2, scheduler="sync")

    value, tangent = dagad.jvp(total, x, v)
    assert close(value, 2.25 * fun(x))
    assert close(tangent, 2.25 * dagad.jvp(fun, x, v)[1])
    expected = dagad.hvp(lambda x: np.sum(w * fun(x)), x, v)
    assert close(dagad.hvp(lambda x: np.sum(w * total(x)), x, v), 2.25 * expected, 1e-10)


@pytest.mark.parametrize("name", ["eigenvectors", "where, broadcast", "fft", "gamma", "sort", "split", "var over axes"])
def test_many_directions_at_once_give_what_each_alone_gives(name: str) -> None:
    fun, x = FUNCTIONS[name]
    jacobian = dagad.jacfwd(fun)(x)
    for index in onp.ndindex(x.shape):
        unit = onp.zeros(x.shape)
        unit[index] = 1.0
        assert onp.array_equal(jacobian[(..., *index)], dagad.jvp(fun, x, unit)[1])


# --- types ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_values_and_tangents_keep_their_type(dtype: str) -> None:
    x = onp.array([0.5, 1.5, -2.0]).astype(dtype)
    value, tangent = dagad.jvp(lambda x: np.exp(x) * np.array([x[0], x[1], 2.0]) + np.fft.ifft(np.fft.fft(x)), x, x)
    assert onp.asarray(value).dtype == onp.asarray(tangent).dtype
    for fun in (lambda x: x * 2, lambda x: np.where(x != 0, x**2, x), lambda x: np.concatenate([x, x])):
        assert dagad.jvp(fun, x, x)[1].dtype == dtype


def test_a_real_tangent_of_a_real_value_is_real() -> None:
    value, tangent = dagad.jvp(lambda x: np.real(np.exp(1j * x)) + np.abs(x + 1j), 0.3, 1.0)
    assert type(value) is type(tangent) is onp.float64
    assert close(tangent, -onp.sin(0.3) + 0.3 / onp.sqrt(1.09))


def test_a_holomorphic_function_moves_in_complex_directions() -> None:
    z, dz = onp.array([0.3 + 0.2j, -1.0 + 0.5j]), onp.array([1j, 2.0 - 0.5j])
    assert close(dagad.jvp(lambda z: np.sin(z) * z**2, z, dz)[1], (onp.cos(z) * z**2 + 2 * z * onp.sin(z)) * dz)
    assert close(dagad.jvp(np.conj, z, dz)[1], onp.conj(dz))
    assert close(dagad.jvp(lambda z: np.abs(z) ** 2, z, dz)[1], 2 * onp.real(onp.conj(z) * dz))


def test_perturbations_are_not_confused() -> None:
    def slope(fun: Any, x: Any) -> Any:
        return dagad.jvp(fun, (x,), (1.0,))[1]

    assert slope(lambda x: x * slope(lambda y: x + y, 1.0), 1.0) == 1.0
    assert slope(lambda x: x * slope(lambda y: x * y**2, 3.0), 2.0) == 24.0
    assert slope(lambda x: dagad.grad(lambda y: x**2 * y**3)(2.0), 3.0) == 72.0
    assert dagad.grad(lambda x: slope(lambda y: x**2 * y**3, 2.0))(3.0) == 72.0


# --- rules of the user's own, and none --------------------------------------------------------------------------------


@primitive  # type: ignore[untyped-decorator]  # autograd has no types
def cubed(x: Any, unused: Any = 1.0) -> Any:
    return x**3


@primitive  # type: ignore[untyped-decorator]  # autograd has no types
def spread(x: Any) -> Any:
    return onp.ones(3) * x


@primitive  # type: ignore[untyped-decorator]  # autograd has no types
def unknown(x: Any) -> Any:
    return x * 2.0


defvjp(cubed, lambda ans, x, unused=1.0: lambda g: g * 3.0 * x**2)
defjvp(spread, lambda g, ans, x: g)  # smaller than the value


def namesake(name: str) -> Any:
    """Return a primitive of three arguments that is called like one of numpy's, and is another: x * y**2 * z**3."""

    def product(x: Any, y: Any, z: Any) -> Any:
        return x * y**2 * z**3

    product.__name__ = name
    made = primitive(product)
    defvjp(
        made,
        lambda ans, x, y, z: lambda g: g * y**2 * z**3,
        lambda ans, x, y, z: lambda g: g * x * 2 * y * z**3,
        lambda ans, x, y, z: lambda g: g * x * y**2 * 3 * z**2,
    )
    defjvp(
        made,
        lambda g, ans, x, y, z: g * y**2 * z**3,
        lambda g, ans, x, y, z: g * x * 2 * y * z**3,
        lambda g, ans, x, y, z: g * x * y**2 * 3 * z**2,
    )
    return made


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["where", "max", "sort", "pad", "partition", "logsumexp", "var", "concatenate", "sum"])
def test_a_primitive_of_the_users_own_is_not_taken_for_its_namesake(name: str, scheduler: Any) -> None:
    fun = namesake(name)
    at = (2.0, 3.0, 1.0)
    tangent_out = dagad.jvp(fun, at, (1.0, 1.0, 1.0))[1]
    assert tangent_out == sum(dagad.grad(fun, (0, 1, 2))(*at)) == 9.0 + 12.0 + 54.0
    assert dagad.jvp(lambda x: fun(x, 3.0, (1, 2)[0]), 2.0, 1.0)[1] == 9.0
    assert dagad.hvp(lambda x: fun(2.0, x, 1.0), 3.0, 1.0) == 4.0

    def total(t: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: fun(rows[0], t, 1.0), V, t, grainsize=1, scheduler=scheduler)

    assert close(dagad.jvp(total, 3.0, 1.0)[1], 6.0 * V.sum())


def test_a_rule_of_the_users_own_is_used_or_transposed() -> None:
    assert dagad.jvp(cubed, 2.0, 1.0)[1] == 12.0
    assert dagad.jvp(lambda x: dagad.jvp(cubed, x, 1.0)[1], 2.0, 1.0)[1] == 12.0
    assert float(dagad.jvp(lambda x: np.sum(spread(x) * x), 2.0, 1.0)[1]) == 12.0


@pytest.mark.parametrize(
    ("fun", "name"),
    [
        (unknown, "unknown"),
        (lambda x: cubed(1.0, x), "cubed"),
        (lambda x: spread(x)[0] * unknown(x), "unknown"),
        (lambda x: np.unique(x * np.ones(2)), "unique"),
        (lambda x: np.polyfit(onp.arange(3.0), x * np.ones(3), 1), "polyfit"),
        (lambda x: np.clip(0.5, x, 2.0), "clip"),
        (lambda x: np.pad(x * np.ones(2), 1, "symmetric") * special.jn(x, 1.0), "jv"),
    ],
)
def test_a_primitive_without_a_rule_is_refused_with_the_remedy(fun: Any, name: str) -> None:
    sentence = f"no derivative of `{name}`.*functions of numpy.*defvjp"
    with pytest.raises(dagad.NotDifferentiableError, match=sentence):
        dagad.jvp(fun, 1.0, 1.0)
    with pytest.raises(dagad.NotDifferentiableError, match=sentence) as caught:
        dagad.jvp(lambda x: dagad.reduce_sum(lambda rows, x: fun(x), V, x, grainsize=2, scheduler="sync"), 1.0, 1.0)
    assert any("chunk 0 (rows 0:2)" in note for note in caught.value.__notes__)


def test_a_gradient_that_has_lost_its_shape_is_refused() -> None:
    @primitive  # type: ignore[untyped-decorator]  # autograd has no types
    def spread_out(x: Any, y: Any) -> Any:
        return x * y

    defvjp(spread_out, lambda ans, x, y: lambda g: g * y)  # forgets what was broadcast
    with pytest.raises(dagad.StructureError, match=r"shape \(4,\), and its argument \(\).*Broadcast"):
        dagad.grad(lambda t: np.sum(spread_out(t, V)))(2.0)


def test_gradients_keep_their_shape_where_autograds_rules_lose_it() -> None:
    assert dagad.grad(lambda t: np.sum(np.where(YES, t, 0.0)))(2.0) == 2.0
    assert dagad.jvp(lambda t: np.sum(np.where(YES, t, 0.0)), 2.0, 1.0)[1] == 2.0
    rows = onp.linalg.norm(M, axis=1, keepdims=True)
    onp.testing.assert_allclose(dagad.grad(lambda m: np.sum(np.linalg.norm(m, axis=1, keepdims=True)))(M), M / rows)
