"""Functions of scipy's as jax has them: ufuncs of `scipy.special`, and what knows no protocol.

Those of the same name in jax.scipy are taken where they have scipy's values; some are one line of others.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jax.scipy import special as jss

from dagad._engines.xla import (
    corners,
    elliptic,
    integrals,
    lambert,
    line_profiles,
    orthogonal_polynomials,
    refusals,
    special,
    vectors,
)
from dagad._engines.xla.conversions import as_dtype
from dagad._engines.xla.distances import DISTANCES
from dagad._engines.xla.distributions import of_distribution
from dagad._engines.xla.matrices import floating, mirrored
from dagad._engines.xla.matrix_functions import FUNCTIONS
from dagad._engines.xla.multivariate import of_several
from dagad._engines.xla.protocols import (
    UFUNCS_OF_SCIPY,
    Called,
    array_of,
    call_function,
    common_dtype,
)
from dagad._engines.xla.scipy_linalg import LINALG
from dagad._engines.xla.signals import IMAGES, SIGNALS
from dagad._engines.xla.written import WRITTEN
from dagad._errors import NotDifferentiableError
from dagad._rules import polynomials, scipy_fft
from dagad._rules.scipy_functions import home_of
from dagad._types import Args, Array, Axis, Function, Kwargs


def call_scipy(function: Function, args: Args, kwargs: Kwargs) -> Any:
    """Call a function of scipy's, or a method of a distribution, of whose arguments one at least is traced."""
    home = home_of(function)
    name = f"{home}.{function.__name__}"
    kwargs = {key: each for key, each in kwargs.items() if not key.startswith(("overwrite", "check_finite"))}
    if function.__qualname__.startswith(("rv_continuous.", "rv_discrete.")):
        return of_distribution(function.__name__, args[0])(*args[1:], **kwargs)
    if home == "scipy.stats":
        statistic = _of_samples(function)
        if statistic is None:
            return of_several(function, args, kwargs)
        return Called(function, statistic, name)(*args, **kwargs)
    found = WRITTEN_SCIPY.get(name) or _of_same_name(name)
    if found is None:
        raise NotDifferentiableError(refusals.of_function(name))
    return Called(function, found, name)(*args, **kwargs)


def _of_samples(function: Function) -> Function | None:
    """Return the definition of a statistic, or of a density by kernels."""
    from dagad._rules.statistics import DEFINITIONS, OF_KERNELS  # needs scipy.stats, which is there: this is of it

    if function.__qualname__.startswith("gaussian_kde."):
        return OF_KERNELS.get(function.__name__)
    return DEFINITIONS.get(function.__name__)


def _of_same_name(name: str) -> Function | None:
    module, _, short = name.rpartition(".")
    if name in _OTHERWISE:
        return None
    home = {"scipy.special": jss, "scipy.linalg": jsp.linalg, "scipy.integrate": jsp.integrate}.get(module)
    return getattr(home, short, None)


# What jax has under the same name, with other arguments or other results.
_OTHERWISE = frozenset(
    """
    scipy.linalg.sqrtm scipy.linalg.funm scipy.linalg.hankel scipy.linalg.lu scipy.linalg.svd scipy.linalg.qr
    """.split()
)


# scipy.special


_LONG = " (its terms there are the more the smaller an entry is, without end)"
UFUNCS_OF_SCIPY.update({name: refusals.refused(name, _LONG) for name in ("exp1", "expi", "expn")})
UFUNCS_OF_SCIPY.update(
    {
        "psi": refusals.of_real("psi", special.digamma),
        "digamma": refusals.of_real("digamma", special.digamma),
        "gammaln": special.gammaln,
        "gamma": refusals.of_real("gamma", special.gamma),
        "betaln": special.betaln,
        "beta": special.beta,
        "log_ndtr": refusals.of_real("log_ndtr", special.log_ndtr),
        "i0": special.i0,
        "i1": special.i1,
        "log1p": vectors.log1p,
        "expm1": corners.expm1,
        "exp2": jnp.exp2,
        "exp10": lambda x: jnp.power(10.0, x),
        "cbrt": jnp.cbrt,
        "cosm1": lambda x: -2.0 * jnp.sin(0.5 * x) ** 2,
        "expit": corners.expit,
        "xlogy": corners.xlogy,
        "xlog1py": corners.xlog1py,
        "entr": corners.entr,
        "rel_entr": corners.rel_entr,
        "kl_div": corners.kl_div,
        "log_expit": lambda x: -corners.logaddexp(0.0, -x),
        "erfcinv": special.erfcinv,
        "rgamma": refusals.of_real("rgamma", special.rgamma),
        "binom": special.binom,
        "poch": special.poch,
        "betaincc": lambda a, b, x: jss.betainc(b, a, 1.0 - x),
        "bdtr": lambda k, n, p: jss.betainc(n - jnp.floor(k), jnp.floor(k) + 1.0, 1.0 - p),
        "bdtrc": lambda k, n, p: jss.betainc(jnp.floor(k) + 1.0, n - jnp.floor(k), p),
        "pdtr": lambda k, m: jss.gammaincc(jnp.floor(k) + 1.0, m),
        "pdtrc": lambda k, m: jss.gammainc(jnp.floor(k) + 1.0, m),
        "cosdg": lambda x: jnp.cos(jnp.radians(x)),
        "sindg": lambda x: jnp.sin(jnp.radians(x)),
        "tandg": lambda x: jnp.tan(jnp.radians(x)),
        "cotdg": lambda x: 1.0 / jnp.tan(jnp.radians(x)),
        "fdtr": lambda a, b, x: jss.betainc(0.5 * a, 0.5 * b, a * x / (b + a * x)),
        "fdtrc": lambda a, b, x: jss.betainc(0.5 * b, 0.5 * a, b / (b + a * x)),
        "gdtr": lambda a, b, x: jss.gammainc(b, a * x),
        "gdtrc": lambda a, b, x: jss.gammaincc(b, a * x),
        "chdtr": lambda v, x: jss.gammainc(0.5 * v, 0.5 * x),
        "chdtrc": lambda v, x: jss.gammaincc(0.5 * v, 0.5 * x),
        "huber": corners.huber,
        "pseudo_huber": corners.pseudo_huber,
        "powm1": special.powm1,
        "boxcox": special.boxcox,
        "boxcox1p": special.boxcox1p,
        "ndtri": special.ndtri,
        "erfcx": special.erfcx,
        "loggamma": refusals.of_real("loggamma", special.loggamma),
        "hyp1f1": refusals.of_real("hyp1f1", special.hyp1f1),
        **integrals.UFUNCS,
        **elliptic.UFUNCS,
        **line_profiles.UFUNCS,
        **orthogonal_polynomials.UFUNCS,
        **lambert.UFUNCS,
        "exprel": special.exprel,
        "inv_boxcox": special.inv_boxcox,
        "inv_boxcox1p": special.inv_boxcox1p,
        "round": jnp.round,
        "hyp2f1": refusals.refused("hyp2f1", " (it sums too few terms where an entry is near one)"),
    }
)


UFUNCS_OF_SCIPY.update({name: refusals.of_real(name, getattr(jss, name)) for name in ("erf", "erfc", "dawsn", "ndtr")})
WRITTEN.update({np.hypot: special.hypot, np.i0: lambda x: special.i0(floating(x))})


_LARGEST = 709.0  # whose exponential is finite


def _softmax(x: Array, axis: Axis = None) -> Any:
    return jax.nn.softmax(x, axis=axis)


def _log_softmax(x: Array, axis: Axis = None) -> Any:
    return jax.nn.log_softmax(x, axis=axis)


def _logsumexp(a: Array, axis: Axis = None, b: Array = None, keepdims: bool = False, return_sign: bool = False) -> Any:
    b, a = None if b is None else array_of(b), floating(a)
    axis = None if axis in (0, -1) and not np.ndim(a) else axis  # scipy takes a number for an array with one axis
    if b is None:
        return jss.logsumexp(a, axis=axis, keepdims=keepdims, return_sign=return_sign)
    b = floating(b)
    weighs = jnp.broadcast_to(b != 0, jnp.broadcast_shapes(jnp.shape(a), jnp.shape(b)))
    top = jax.lax.stop_gradient(jnp.max(jnp.where(weighs, a, -jnp.inf), axis=axis, keepdims=True))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    # What has no weight may be far above: times zero it is zero, as long as it is finite.
    terms = b * jnp.exp(jnp.where(weighs, a - top, jnp.minimum(a - top, _LARGEST)))
    total = jnp.sum(terms, axis=axis, keepdims=True)
    found = jnp.log(jnp.abs(total) if return_sign else total) + top
    found, sign = (each if keepdims else jnp.squeeze(each, axis) for each in (found, jnp.sign(total)))
    return (found, sign) if return_sign else found


# scipy.linalg


def _solve(a: Array, b: Array, lower: bool = False, assume_a: str | None = None, transposed: bool = False) -> Any:
    a = floating(a)
    if assume_a in ("sym", "symmetric", "her", "hermitian", "pos", "positive definite"):
        a = mirrored(a, lower)
    elif assume_a not in (None, "gen", "general"):
        raise NotDifferentiableError(refusals.of_option("scipy.linalg.solve", [f"assume_a={assume_a!r}"]))
    a = jnp.swapaxes(a, -1, -2) if transposed else a
    return jnp.linalg.solve(a, as_dtype(array_of(b), common_dtype([a, array_of(b)])))


def _inv(a: Array, assume_a: str | None = None, lower: bool = False) -> Any:
    a = floating(a)
    if assume_a in ("sym", "her", "pos"):
        a = mirrored(a, lower)
    elif assume_a not in (None, "gen", "general"):
        raise NotDifferentiableError(refusals.of_option("scipy.linalg.inv", [f"assume_a={assume_a!r}"]))
    return jnp.linalg.inv(a)


def _cholesky(a: Array, lower: bool = False) -> Any:
    return jnp.linalg.cholesky(mirrored(floating(a), lower), upper=not lower)


def _cho_factor(a: Array, lower: bool = False) -> Any:
    from dagad._rules.scipy_linalg import LEAVES_THE_REST  # needs scipy.linalg, which is there: this is of it

    a = floating(a)
    factor = _cholesky(a, lower)
    if LEAVES_THE_REST:  # nobody reads it
        factor = factor + (jnp.triu(a, 1) if lower else jnp.tril(a, -1))
    return factor, lower


def _cho_solve(c_and_lower: tuple[Array, bool], b: Array) -> Any:
    c, lower = c_and_lower
    c, b = floating(c), floating(b)
    return jsp.linalg.cho_solve((jnp.tril(c) if lower else jnp.triu(c), lower), b)


def _svd(a: Array, full_matrices: bool = True, compute_uv: bool = True, lapack_driver: str | None = None) -> Any:
    if lapack_driver not in (None, "gesdd"):  # the signs of its vectors are others
        raise NotDifferentiableError(refusals.of_option("scipy.linalg.svd", [f"lapack_driver={lapack_driver!r}"]))
    found = call_function(np.linalg.svd, (a,), {"full_matrices": full_matrices, "compute_uv": compute_uv})
    return tuple(found) if compute_uv else found


def _qr(a: Array, mode: str = "full") -> Any:
    a = floating(a)
    if mode == "economic":
        return tuple(jnp.linalg.qr(a, mode="reduced"))
    if mode == "full" and a.shape[-1] == a.shape[-2]:
        return tuple(jnp.linalg.qr(a))
    raise NotDifferentiableError(refusals.of_option("scipy.linalg.qr", [f"mode={mode!r}"]))


def _norm(a: Array, ord: float | str | None = None, axis: Axis = None, keepdims: bool = False) -> Any:
    return call_function(np.linalg.norm, (a, ord, axis, keepdims), {})


def _solve_triangular(
    a: Array, b: Array, trans: int | str = 0, lower: bool = False, unit_diagonal: bool = False
) -> Any:
    a, b = floating(a), floating(b)
    return jsp.linalg.solve_triangular(a, b, trans=trans, lower=lower, unit_diagonal=unit_diagonal)


def _lu(a: Array, permute_l: bool = False) -> Any:
    return jsp.linalg.lu(floating(a), permute_l=permute_l)


def _hankel(c: Array, r: Array = None) -> Any:
    c = jnp.ravel(array_of(c))
    rest = jnp.zeros(c.shape[0] - 1, c.dtype) if r is None else jnp.ravel(array_of(r))[1:]
    both, n = jnp.concatenate([c, rest]), rest.shape[0] + 1
    return both[np.arange(c.shape[0])[:, None] + np.arange(n)]


def _khatri_rao(a: Array, b: Array) -> Any:
    return (a[..., :, None, :] * b[..., None, :, :]).reshape(*a.shape[:-2], -1, a.shape[-1])


def _polyval(x: Array, c: Array, tensor: bool = True) -> Any:
    x, c = floating(x), floating(c)
    c = polynomials.with_axes_of(x, c) if tensor else c
    found = c[-1] + x * 0.0
    for number in range(2, len(c) + 1):
        found = c[-number] + found * x
    return found


def _from_roots(x: Array, r: Array, tensor: bool = True) -> Any:
    x, r = floating(x), jnp.atleast_1d(floating(r))
    return jnp.prod(x - (polynomials.with_axes_of(x, r) if tensor else r), axis=0)


def _series(recurrence: Function) -> Function:
    def series(x: Array, c: Array, tensor: bool = True) -> Any:
        x, c = floating(x), jnp.atleast_1d(floating(c))
        return polynomials.summed(recurrence, x, polynomials.with_axes_of(x, c) if tensor else c)

    return series


WRITTEN_SCIPY: dict[str, Function] = {
    **{f"scipy.fft.{name}": each for name, each in (scipy_fft.FOURIER | scipy_fft.WAVES).items()},
    **{f"scipy.ndimage.{name}": each for name, each in IMAGES.items()},
    **{f"scipy.signal.{name}": each for name, each in SIGNALS.items()},
    **{f"scipy.spatial.distance.{name}": each for name, each in DISTANCES.items()},
    "numpy.polynomial.polyval": _polyval,
    "numpy.polynomial.polyvalfromroots": _from_roots,
    **{f"numpy.polynomial.{name}": _series(each) for name, each in polynomials.RECURRENCES.items()},
    **integrals.WRITTEN,
    **orthogonal_polynomials.WRITTEN,
    "scipy.special.logsumexp": _logsumexp,
    "scipy.special.polygamma": lambda n, x: jss.polygamma(array_of(n), as_dtype(array_of(x), np.float64)),
    "scipy.special.softmax": _softmax,
    "scipy.special.log_softmax": _log_softmax,
    "scipy.linalg.solve": _solve,
    "scipy.linalg.inv": _inv,
    "scipy.linalg.det": lambda a: jnp.linalg.det(floating(a)),
    "scipy.linalg.pinv": lambda a: jnp.linalg.pinv(floating(a)),
    "scipy.linalg.cholesky": _cholesky,
    "scipy.linalg.cho_factor": _cho_factor,
    "scipy.linalg.cho_solve": _cho_solve,
    "scipy.linalg.svd": _svd,
    "scipy.linalg.svdvals": lambda a: jnp.linalg.svd(floating(a), compute_uv=False),
    "scipy.linalg.qr": _qr,
    "scipy.linalg.norm": _norm,
    "scipy.linalg.solve_triangular": _solve_triangular,
    "scipy.linalg.lu": _lu,
    "scipy.linalg.hankel": _hankel,
    "scipy.linalg.khatri_rao": _khatri_rao,
    "scipy.linalg.block_diag": lambda *arrs: jsp.linalg.block_diag(*map(array_of, arrs)),
    **LINALG,
    **FUNCTIONS,
}
