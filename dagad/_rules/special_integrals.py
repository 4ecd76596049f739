"""Functions of scipy.special that are integrals, and Lambert's: their slopes, by series where a quotient cancels.

Formulas are those of Abramowitz and Stegun, 5.2, 7.3 and 27.7.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import scipy.special as of
from autograd.scipy import special
from scipy.special import _ufuncs as inner

from dagad._errors import NotDifferentiableError
from dagad._rules import line_profiles
from dagad._rules.scipy_functions import defined
from dagad._rules.scipy_rules import Slopes, beta_density, enter, enter_results, f
from dagad._rules.tails import ROOT_2PI
from dagad._tracing import refusals
from dagad._tracing.numpy_protocols import UFUNCS
from dagad._tracing.patches import Swap
from dagad._tracing.private import isbox
from dagad._types import Array, Value
from dagad._values import pytree

plain = pytree.plain


# By series, where a quotient cancels


def _by_series(edge: float, terms: list[float], x: Array, formula: Callable[[Any], Any]) -> Any:
    """Return a sum of powers where x is small, and a formula elsewhere; each sees its own part only."""
    small = np.abs(plain(x)) < edge
    if not np.any(small):
        return formula(x)
    at, total = anp.where(small, x, 0.0), terms[-1]
    for term in terms[-2::-1]:
        total = total * at + term
    return total if np.all(small) else anp.where(small, total, formula(anp.where(small, edge, x)))


_SINES = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(24)]
_LOGARITHMS = [(-1.0) ** (k + 1) / (k + 1) for k in range(40)]


def _sine_over(x: Array) -> Any:
    return _by_series(4.0, _SINES, x * x, lambda _: anp.sin(_away(x)) / _away(x))


def _sinh_over(x: Array) -> Any:
    return _by_series(4.0, [abs(term) for term in _SINES], x * x, lambda _: anp.sinh(_away(x)) / _away(x))


def _away(x: Array) -> Any:
    return anp.where(np.abs(plain(x)) ** 2 < 4.0, 1.0, x)


def _over(fun: Callable[[Any], Any], x: Array) -> Any:
    """Return a quotient that is infinite at zero, where the other result may be asked for."""
    gone = plain(x) == 0
    at = anp.where(gone, 1.0, x)
    return anp.where(gone, np.inf, fun(at) / at)


def _spence_slope(ans: Value, z: Array) -> Any:
    """Return log(z) / (1 - z)."""
    near = np.abs(plain(z) - 1.0) < 0.25
    return _by_series(0.25, _LOGARITHMS, z - 1.0, lambda less: anp.log(anp.where(near, 1.25, z)) / -less)


# Functions


def _lambertw_slope(ans: Value, z: Array, k: Array, tol: float) -> Any:
    """Return the derivative of W: next to zero, where it is z, and elsewhere, where exp(-W) has fewer digits."""
    small = np.abs(plain(ans)) < 1.0
    near, far = anp.where(small, ans, 0.0), anp.where(small, 1.0, ans)
    return anp.where(small, anp.exp(-near) / (1.0 + near), far / (anp.where(small, 1.0, z) * (1.0 + far)))


def _kolmogorov_slope(ans: Value, y: Array) -> Any:
    """Return the derivative by the series in exp(-2 y^2), and by Jacobi's other one where that needs many terms."""
    held = plain(y)
    large, none = held > 1.0, held < 0.03
    at = anp.where(large, y, 1.0)
    outer = sum((-1.0) ** k * 8.0 * k**2 * at * anp.exp(-2.0 * k**2 * at**2) for k in range(1, 9))
    at = anp.where(large | none, 1.0, y)
    rates = [(np.pi * k) ** 2 / 8.0 for k in (1, 3, 5, 7, 9)]
    inside = ROOT_2PI * sum((1.0 - 2.0 * a / at**2) / at**2 * anp.exp(-a / at**2) for a in rates)
    return anp.where(large, outer, anp.where(none, 0.0, inside))


def _negative_binomial(k: Array, n: Array, p: Array) -> Any:
    return beta_density(anp.trunc(n), anp.trunc(k) + 1.0, p)


TABLE: dict[str, Slopes] = {
    "spence": (_spence_slope,),
    "wofz": line_profiles.WOFZ,
    "voigt_profile": line_profiles.VOIGT,
    "kolmogorov": (_kolmogorov_slope,),
    "round": (lambda ans, x: 0.0 * x,),
    "nbdtr": (None, None, lambda ans, k, n, p: _negative_binomial(k, n, p)),
    "nbdtrc": (None, None, lambda ans, k, n, p: -_negative_binomial(k, n, p)),
}
SEVERAL: dict[str, tuple[Callable[..., Any], ...]] = {
    "fresnel": (lambda x: anp.sin(np.pi / 2.0 * x**2), lambda x: anp.cos(np.pi / 2.0 * x**2)),
    "sici": (_sine_over, lambda x: _over(anp.cos, x)),
    "shichi": (_sinh_over, lambda x: _over(anp.cosh, x)),
}


def enter_all() -> None:
    """Enter the slopes of these functions where those of `scipy.special` are looked up."""
    for name, slopes in TABLE.items():
        enter(getattr(of, name), slopes)
    for name, each in SEVERAL.items():
        enter_results(getattr(of, name), *each)
    enter(getattr(inner, "_riemann_zeta", None), (None,))
    enter(inner._zeta, (None, lambda ans, x, q: -x * UFUNCS[inner._zeta](x + 1.0, q)))
    enter(inner._lambertw, (_lambertw_slope, None, None))


# What is no ufunc


def _factorial(n: Array, exact: bool = False, extend: str = "zero") -> Any:
    if extend != "zero":
        raise NotDifferentiableError(refusals.of_option("scipy.special.factorial", [f"extend={extend!r}"]))
    up = plain(n) >= 0
    return anp.where(up, special.gamma(anp.where(up, n, 0.0) + 1.0), 0.0)


def _diric(x: Array, n: Array) -> Any:
    """Return Dirichlet's kernel as a polynomial, which divides by nothing."""
    if isbox(n):
        raise NotImplementedError("VJP of diric wrt argnums 1 not defined")
    orders = np.asarray(n)
    is_whole = (orders > 0) & (orders == np.floor(orders))
    orders = np.where(is_whole, orders, 1).astype(int)
    return anp.where(is_whole, f.eval_chebyu(orders - 1, anp.cos(x / 2.0)) / orders, np.nan)


SWAPS: list[Swap] = [defined(of.factorial, _factorial), defined(of.diric, _diric)]
