"""Ufuncs of scipy.special: primitives for those that autograd has none of, with their partial derivatives.

Imported when a process first meets a function of scipy's in a trace, since it needs scipy. A slope is a function of the
value and the arguments; None where there is none (most orders), which is refused. Formulas are those of Abramowitz and
Stegun, or follow from the function's definition as a density's integral; `incomplete` has those in shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import scipy.special as of
from autograd.extend import defjvp_argnums, defvjp_argnums, primitive
from autograd.scipy import special

from dagad._errors import NotDifferentiableError
from dagad._rules import incomplete
from dagad._rules.incomplete import log_t_density, slope_in
from dagad._rules.scipy_functions import defined
from dagad._rules.tails import (
    ROOT_2PI,
    ROOT_PI,
    dawsn_slope,
    erfcx_slope,
    log_ndtr_slope,
    scaled_bessel_slope,
)
from dagad._tracing import refusals
from dagad._tracing.by_definition import entrywise
from dagad._tracing.numpy_protocols import UFUNCS
from dagad._tracing.patches import Swap
from dagad._tracing.private import isbox, trace_primitives_map
from dagad._tracing.rules import define, own_primitive
from dagad._types import Array, Axis, Shape, Value
from dagad._values import pytree

Slope = Callable[..., Any]
plain = pytree.plain
DEGREE = np.pi / 180.0
LARGEST = 709.0  # whose exponential is finite


class _Functions:
    """The functions by name, as primitives: autograd's, or those made here."""

    def __getattr__(self, name: str) -> Any:
        ufunc = getattr(of, name)
        return trace_primitives_map.get(ufunc) or UFUNCS[ufunc]


f = _Functions()


def _ratio(x: Array, y: Array) -> Any:
    """Return x / y, and 0 for 0 / 0: the limit of x log(y) along x = 0."""
    empty = (plain(x) == 0) & (plain(y) == 0)
    return x / anp.where(empty, 1.0, y)


def _exprel_slope(ans: Value, x: Array) -> Any:
    """Return the derivative of (exp(x) - 1) / x; by its series, 1/2 + x/3 + x^2/8 + ..., where that cancels."""
    small = np.abs(plain(x)) < 0.1
    at = anp.where(small, 1.0, x)
    series, factor = 0.0, 1.0
    for power in range(12):
        factor = factor / (power + 1)
        series = series + factor * (power + 1) / (power + 2) * x**power
    return anp.where(small, series, (anp.exp(at) - f.exprel(at)) / at)


def _by_power(log: Array, power: Array) -> Any:
    """Return the derivative of (exp(power log) - 1) / power in `power`."""
    return log**2 * _exprel_slope(None, power * log)


def _gamma_density(shape: Shape, x: Array) -> Any:
    return anp.exp(f.xlogy(shape - 1.0, x) - x - special.gammaln(shape))


def beta_density(a: Array, b: Array, x: Array) -> Any:
    return anp.exp(_powers(a - 1.0, b - 1.0, x) - special.betaln(a, b))


def _t_density(df: Array, t: Array) -> Any:
    return anp.exp(log_t_density(df, t))


def _f_density(n: Array, d: Array, x: Array) -> Any:
    at = n * x / (n * x + d)
    return beta_density(n / 2.0, d / 2.0, at) * n * d / (n * x + d) ** 2


def _poisson(k: Array, m: Array) -> Any:
    k = anp.floor(k)
    return anp.exp(f.xlogy(k, m) - m - special.gammaln(k + 1.0))


def _binomial(k: Array, n: Array, p: Array) -> Any:
    k, n = anp.floor(k), anp.floor(n)
    return anp.exp(anp.log(n - k) - special.betaln(k + 1.0, n - k + 1.0) - anp.log1p(n) + _powers(k, n - k - 1.0, p))


def _powers(a: Array, b: Array, p: Array) -> Any:
    return f.xlogy(a, p) + f.xlog1py(b, -p)


# In shapes and degrees of freedom: of functions that are made of incomplete gamma and beta functions

_BELOW = slope_in(0, incomplete.gammainc)
_OF_BETA = tuple(slope_in(number, incomplete.betainc) for number in range(2))


def _below_f(n: Array, d: Array, x: Array) -> Any:
    return special.betainc(0.5 * n, 0.5 * d, n * x / (n * x + d))


_BELOW_F = tuple(slope_in(number, _below_f) for number in range(2))
_BELOW_T = slope_in(0, incomplete.student(_t_density, special.betainc))


def _times(sign: float, slope: Slope) -> Slope:
    return lambda ans, *args: sign * slope(ans, *args)


def _of_half(sign: float) -> Slope:
    return lambda ans, v, x: 0.5 * sign * _BELOW(None, 0.5 * v, 0.5 * x)


def _of_gamma_inverse(ans: Value, a: Array, p: Array) -> Any:
    return -_BELOW(None, a, ans) / _gamma_density(a, ans)


def _of_beta_inverse(number: int) -> Slope:
    return lambda ans, a, b, p: -_OF_BETA[number](None, a, b, ans) / beta_density(a, b, ans)


def _gone(sign: float, slope: Slope) -> Slope:
    return lambda ans, *args: sign * slope(*args)


def _huber_width(ans: Value, width: Array, r: Array) -> Any:
    return anp.maximum(anp.abs(r) - width, 0.0)


def _soft_huber(width: Array, r: Array) -> Any:
    return anp.sqrt(1.0 + (r / width) ** 2)


def _soft_huber_width(ans: Value, width: Array, r: Array) -> Any:
    """Return width (s - 1)^2 / s, of s as above: 2 ans / width - r^2 / (width s), which cancels for small r."""
    soft = _soft_huber(width, r)
    return width * ((r / width) ** 2 / (soft + 1.0)) ** 2 / soft


def _in_real_numbers(slope: Slope) -> Slope:
    """Return the slope of `ive`, which is scaled by the real part of a complex number."""

    def real(ans: Value, v: Array, x: Array) -> Any:
        if np.iscomplexobj(plain(x)):
            raise NotImplementedError("VJP of ive wrt argnums 1 not defined")
        return slope(ans, v, x)

    return real


def _order_down(fun: str, sign: float, *, kept: float = 0.0) -> Slope:
    """Half of the sum of two neighbours, for Bessel functions; scaled ones keep a multiple of their own value."""

    def slope(ans: Value, v: Array, x: Array) -> Any:
        bessel = getattr(f, fun)
        return sign * (bessel(v - 1, x) + bessel(v + 1, x)) / 2.0 + kept * ans

    return slope


def _scaled_bessel(sign: float, near: Callable[[Any, Any, Any], Any]) -> Slope:
    """Return the slope of `ive` (sign -1) or `kve` (sign 1) from its formula, which cancels where x is large."""

    def slope(ans: Value, v: Array, x: Array) -> Any:
        return scaled_bessel_slope(plain(v), sign, lambda ans, x: near(ans, v, x))(ans, x)

    return slope


def _in_whole_orders(slope: Slope) -> Slope:
    """Return the slope of a function that takes what is before the point of its order."""
    return lambda ans, n, x: slope(ans, np.trunc(plain(n)), x)


def _expn_slope(ans: Value, n: Array, x: Array) -> Any:
    """Return the derivative of an exponential integral; scipy has none below order 0, whose own is written out."""
    if np.all(n >= 1):
        return -f.expn(n - 1, x)
    return -anp.where(n >= 1, f.expn(np.maximum(n, 1) - 1, x), (ans + anp.exp(-x)) / x)


def _degree_down(n: Array, value: Callable[[Any], Any]) -> Any:
    """Return the derivative of a polynomial, from that of one degree less; the constant has none."""
    if np.any((np.asarray(n) < 1) & (np.asarray(n) != 0)):
        raise NotDifferentiableError(
            refusals.of_function("scipy.special.eval_*", " in a degree between 0 and 1 or below")
        )
    return anp.where(np.asarray(n) > 0, value(np.maximum(n, 1) - 1), 0.0)


Slopes = tuple[Slope | None, ...]

ONE: dict[str, Slope] = {
    "cbrt": lambda ans, x: 1.0 / (3.0 * ans**2),
    "cosm1": lambda ans, x: -anp.sin(x),
    "cosdg": lambda ans, x: -DEGREE * f.sindg(x),
    "cotdg": lambda ans, x: -DEGREE * (1.0 + ans**2),
    "dawsn": dawsn_slope,
    "entr": lambda ans, x: -anp.log(x) - 1.0,
    "erfcx": erfcx_slope,
    "erfi": lambda ans, x: 2.0 / ROOT_PI * anp.exp(x**2),
    "exp10": lambda ans, x: np.log(10.0) * ans,
    "exp1": lambda ans, x: -anp.exp(-x) / x,
    "exp2": lambda ans, x: np.log(2.0) * ans,
    "expi": lambda ans, x: anp.exp(x) / x,
    "expm1": lambda ans, x: anp.exp(x),
    "exprel": _exprel_slope,
    "i0e": scaled_bessel_slope(0, -1.0, lambda ans, x: f.i1e(x) - anp.sign(x) * ans),
    "i1e": scaled_bessel_slope(1, -1.0, lambda ans, x: (f.i0e(x) + f.ive(2, x)) / 2.0 - anp.sign(x) * ans),
    "k0": lambda ans, x: -f.k1(x),
    "k0e": scaled_bessel_slope(0, 1.0, lambda ans, x: ans - f.k1e(x)),
    "k1": lambda ans, x: -f.k0(x) - ans / x,
    "k1e": scaled_bessel_slope(1, 1.0, lambda ans, x: ans - f.k0e(x) - ans / x),
    "log1p": lambda ans, x: 1.0 / (1.0 + x),
    "log_expit": lambda ans, x: f.expit(-x),
    "log_ndtr": log_ndtr_slope,
    "loggamma": lambda ans, x: special.psi(x),
    "ndtr": lambda ans, x: anp.exp(-(x**2) / 2.0) / ROOT_2PI,
    "ndtri": lambda ans, x: ROOT_2PI * anp.exp(ans**2 / 2.0),
    "ndtri_exp": lambda ans, x: 1.0 / log_ndtr_slope(x, ans),  # its inverse
    "sindg": lambda ans, x: DEGREE * f.cosdg(x),
    "tandg": lambda ans, x: DEGREE * (1.0 + ans**2),
    "wrightomega": lambda ans, x: anp.where(np.abs(plain(ans)) > 1.0, 1.0 - 1.0 / (1.0 + ans), ans / (1.0 + ans)),
}

MORE: dict[str, Slopes] = {
    "xlogy": (lambda ans, x, y: anp.log(y), lambda ans, x, y: _ratio(x, y)),
    "xlog1py": (lambda ans, x, y: anp.log1p(y), lambda ans, x, y: _ratio(x, 1.0 + y)),
    "rel_entr": (lambda ans, x, y: anp.log(x / y) + 1.0, lambda ans, x, y: -x / y),
    "kl_div": (lambda ans, x, y: anp.log(x / y), lambda ans, x, y: 1.0 - x / y),
    "huber": (_huber_width, lambda ans, width, r: anp.minimum(anp.maximum(r, -width), width)),
    "pseudo_huber": (
        _soft_huber_width,
        lambda ans, width, r: r / _soft_huber(width, r),
    ),
    "boxcox": (lambda ans, x, p: x ** (p - 1.0), lambda ans, x, p: _by_power(anp.log(x), p)),
    "boxcox1p": (lambda ans, x, p: (1.0 + x) ** (p - 1.0), lambda ans, x, p: _by_power(anp.log1p(x), p)),
    "inv_boxcox": (
        lambda ans, y, p: ans ** (1.0 - p),
        lambda ans, y, p: -_by_power(anp.log(ans), p) * ans ** (1.0 - p),
    ),
    "inv_boxcox1p": (
        lambda ans, y, p: (1.0 + ans) ** (1.0 - p),
        lambda ans, y, p: -_by_power(anp.log1p(ans), p) * (1.0 + ans) ** (1.0 - p),
    ),
    "powm1": (lambda ans, x, y: y * x ** (y - 1.0), lambda ans, x, y: anp.log(x) * x**y),
    "binom": (
        lambda ans, n, k: ans * (special.psi(n + 1.0) - special.psi(n - k + 1.0)),
        lambda ans, n, k: ans * (special.psi(n - k + 1.0) - special.psi(k + 1.0)),
    ),
    "poch": (
        lambda ans, a, m: ans * (special.psi(a + m) - special.psi(a)),
        lambda ans, a, m: ans * special.psi(a + m),
    ),
    "betaincc": (_times(-1.0, _OF_BETA[0]), _times(-1.0, _OF_BETA[1]), _gone(-1.0, beta_density)),
    "betaincinv": (_of_beta_inverse(0), _of_beta_inverse(1), lambda ans, a, b, p: 1.0 / beta_density(a, b, ans)),
    "betainccinv": (_of_beta_inverse(0), _of_beta_inverse(1), lambda ans, a, b, p: -1.0 / beta_density(a, b, ans)),
    "gammaincinv": (_of_gamma_inverse, lambda ans, a, p: 1.0 / _gamma_density(a, ans)),
    "gammainccinv": (_of_gamma_inverse, lambda ans, a, p: -1.0 / _gamma_density(a, ans)),
    "chdtr": (_of_half(1.0), lambda ans, v, x: 0.5 * _gamma_density(v / 2.0, x / 2.0)),
    "chdtrc": (_of_half(-1.0), lambda ans, v, x: -0.5 * _gamma_density(v / 2.0, x / 2.0)),
    "gdtr": (
        lambda ans, a, b, x: x * _gamma_density(b, a * x),
        lambda ans, a, b, x: _BELOW(None, b, a * x),
        lambda ans, a, b, x: a * _gamma_density(b, a * x),
    ),
    "gdtrc": (
        lambda ans, a, b, x: -x * _gamma_density(b, a * x),
        lambda ans, a, b, x: -_BELOW(None, b, a * x),
        lambda ans, a, b, x: -a * _gamma_density(b, a * x),
    ),
    "stdtr": (_BELOW_T, lambda ans, df, t: _t_density(df, t)),
    "stdtrit": (
        lambda ans, df, p: -_BELOW_T(None, df, ans) / _t_density(df, ans),
        lambda ans, df, p: 1.0 / _t_density(df, ans),
    ),
    "fdtr": (*_BELOW_F, _gone(1.0, _f_density)),
    "fdtrc": (_times(-1.0, _BELOW_F[0]), _times(-1.0, _BELOW_F[1]), _gone(-1.0, _f_density)),
    "pdtr": (None, _gone(-1.0, _poisson)),
    "pdtrc": (None, _gone(1.0, _poisson)),
    "bdtr": (None, None, _gone(-1.0, _binomial)),
    "bdtrc": (None, None, _gone(1.0, _binomial)),
    "owens_t": (
        lambda ans, h, a: -anp.exp(-(h**2) / 2.0) * special.erf(a * h / np.sqrt(2.0)) / (2.0 * ROOT_2PI),
        lambda ans, h, a: anp.exp(-(h**2) * (1.0 + a**2) / 2.0) / (2.0 * np.pi * (1.0 + a**2)),
    ),
    "expn": (None, _in_whole_orders(_expn_slope)),
    "yv": (None, lambda ans, v, x: (f.yv(v - 1, x) - f.yv(v + 1, x)) / 2.0),
    "kn": (None, _in_whole_orders(_order_down("kn", -1.0))),
    "kv": (None, _order_down("kv", -1.0)),
    "kve": (None, _scaled_bessel(1.0, _order_down("kve", -1.0, kept=1.0))),
    "struve": (None, lambda ans, v, x: f.struve(v - 1.0, x) - v / x * ans),
    "modstruve": (None, lambda ans, v, x: f.modstruve(v - 1.0, x) - v / x * ans),
    "hyp0f1": (None, lambda ans, v, x: f.hyp0f1(v + 1.0, x) / v),
    "hyp1f1": (None, None, lambda ans, a, b, x: a / b * f.hyp1f1(a + 1.0, b + 1.0, x)),
    "hyp2f1": (None, None, None, lambda ans, a, b, c, x: a * b / c * f.hyp2f1(a + 1.0, b + 1.0, c + 1.0, x)),
    "hyperu": (None, None, lambda ans, a, b, x: -a * f.hyperu(a + 1.0, b + 1.0, x)),
    "eval_chebyt": (None, lambda ans, n, x: n * _degree_down(n, lambda m: f.eval_chebyu(m, x))),
    "eval_chebyu": (None, lambda ans, n, x: _degree_down(n, lambda m: 2.0 * f.eval_gegenbauer(m, 2.0, x))),
    "eval_gegenbauer": (
        None,
        None,
        lambda ans, n, a, x: _degree_down(n, lambda m: 2.0 * a * f.eval_gegenbauer(m, a + 1.0, x)),
    ),
    "eval_legendre": (None, lambda ans, n, x: _degree_down(n, lambda m: f.eval_gegenbauer(m, 1.5, x))),
    "eval_hermite": (None, lambda ans, n, x: 2.0 * n * _degree_down(n, lambda m: f.eval_hermite(m, x))),
    "eval_hermitenorm": (None, lambda ans, n, x: n * _degree_down(n, lambda m: f.eval_hermitenorm(m, x))),
    "eval_laguerre": (None, lambda ans, n, x: _degree_down(n, lambda m: -f.eval_genlaguerre(m, 1.0, x))),
    "eval_genlaguerre": (
        None,
        None,
        lambda ans, n, a, x: _degree_down(n, lambda m: -f.eval_genlaguerre(m, a + 1.0, x)),
    ),
    "eval_jacobi": (
        None,
        None,
        None,
        lambda ans, n, a, b, x: _degree_down(
            n, lambda m: (n + a + b + 1.0) / 2.0 * f.eval_jacobi(m, a + 1.0, b + 1.0, x)
        ),
    ),
}


# In place of autograd's own: those overflow for large shapes, cancel in a tail, or take other orders than scipy does.
BETTER: dict[str, Slopes] = {
    "betainc": (*_OF_BETA, _gone(1.0, beta_density)),
    "expit": (lambda ans, x: ans * f.expit(-x),),
    "gammainc": (_BELOW, _gone(1.0, _gamma_density)),
    "gammaincc": (_times(-1.0, _BELOW), _gone(-1.0, _gamma_density)),
    "ive": (
        None,
        _in_real_numbers(_scaled_bessel(-1.0, lambda ans, v, x: ans * (v / x - anp.sign(x)) + f.ive(v + 1, x))),
    ),
    "yn": (None, _in_whole_orders(lambda ans, n, x: (f.yn(n - 1, x) - f.yn(n + 1, x)) / 2.0)),
}


def _enter() -> None:
    for name, slopes in BETTER.items():
        define(getattr(of, name), *entrywise(name, *slopes), lambda *call: True)
    for name, slopes in {**{name: (slope,) for name, slope in ONE.items()}, **MORE}.items():
        enter(getattr(of, name, None), slopes)


def enter(ufunc: Any, slopes: Slopes) -> None:
    """Make a primitive of a ufunc; None where an older scipy has none."""
    if ufunc is None or ufunc in trace_primitives_map or ufunc in UFUNCS:
        return
    made = primitive(ufunc)
    del trace_primitives_map[ufunc]  # for autograd's own traces it stays what it was: unknown
    vjp, jvp = entrywise(ufunc.__name__.lstrip("_"), *slopes)
    defvjp_argnums(made, vjp)
    defjvp_argnums(made, jvp)
    UFUNCS[ufunc] = made


def enter_results(ufunc: np.ufunc, *slopes: Callable[[Any], Any]) -> None:
    """Make a primitive of each result of a ufunc of one argument: one that nobody uses has no derivative."""
    parts = [_result(ufunc, index, slope) for index, slope in enumerate(slopes)]

    def results(x: Array, called_by_autograd_dispatcher: bool = False) -> Any:
        return tuple(part(x) for part in parts)

    UFUNCS[ufunc] = results


def _result(ufunc: np.ufunc, index: int, slope: Callable[[Any], Any]) -> Any:
    return own_primitive(lambda x: ufunc(x)[index], *entrywise(ufunc.__name__, lambda ans, x: slope(x)))


_enter()


# What is no ufunc


def _softmax(x: Array, axis: Axis = None) -> Any:
    return anp.exp(_log_softmax(x, axis))


def _log_softmax(x: Array, axis: Axis = None) -> Any:
    if np.ndim(plain(x)) == 0:  # autograd makes an axis for it
        return x - x
    return x - special.logsumexp(x, axis=axis, keepdims=True)


def _logsumexp(a: Array, axis: Axis = None, b: Array = None, keepdims: bool = False) -> Any:
    """Return the logarithm of a weighed sum of exponentials; `b` may be differentiated, too."""
    if b is None:
        top = np.max(plain(a), axis=axis, keepdims=True)
        total = anp.log(anp.sum(anp.exp(a - top), axis=axis, keepdims=True)) + top
    else:
        top, terms = _weighed_terms(a, b, axis)
        total = anp.log(anp.sum(terms, axis=axis, keepdims=True)) + top
    return total if keepdims else anp.squeeze(total, axis)


def _weighed_terms(a: Array, b: Array, axis: Axis) -> tuple[Any, Any]:
    """Return the largest entry that has a weight, and weighed exponentials beside it."""
    shape = np.broadcast_shapes(np.shape(plain(a)), np.shape(plain(b)))
    weighs = np.broadcast_to(np.not_equal(plain(b), 0), shape)
    top = np.max(np.where(weighs, plain(a), -np.inf), axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    # What has no weight may be far above: times zero it is zero, as long as it is finite.
    return top, b * anp.exp(anp.where(weighs, a - top, anp.minimum(a - top, LARGEST)))


def _comb(N: Array, k: Array) -> Any:
    n, m = np.asarray(plain(N)), np.asarray(plain(k))
    some = (m <= n) & (n >= 0) & (m >= 0)
    return anp.where(some, f.binom(anp.where(some, N, 1.0), anp.where(some, k, 0.0)), 0.0)


SWAPS: list[Swap] = [
    defined(of.softmax, _softmax),
    defined(of.log_softmax, _log_softmax),
    defined(of.logsumexp, _logsumexp),
    defined(of.multigammaln, lambda a, d: special.multigammaln(a, d)),
    defined(of.polygamma, lambda n, x: special.polygamma(n if isbox(n) else np.asarray(n), x)),
    defined(of.comb, _comb),
]
if hasattr(of, "softplus"):  # since scipy 1.17
    SWAPS.append(defined(of.softplus, lambda x: anp.logaddexp(0.0, x)))
