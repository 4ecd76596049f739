"""Takes up what dagad has for a part of scipy when somebody has imported that part: dagad itself does without scipy."""

from __future__ import annotations

from types import ModuleType

from dagad._rules import distances, polynomials, scipy_fft, scipy_integrate, scipy_optimize, scipy_signal
from dagad._tracing.patches import patches
from dagad._tracing.rules import HOMES


def _special(module: ModuleType) -> bool:
    del module
    from dagad._rules import bessel_functions, elliptic, scipy_rules, special_integrals

    patches.swap(scipy_rules.SWAPS + bessel_functions.SWAPS + special_integrals.SWAPS)
    for table in (elliptic, bessel_functions, special_integrals):
        table.enter_all()
    return True


def _linalg(module: ModuleType) -> bool:
    del module
    from dagad._rules import eigenproblems, matrix_equations, scipy_banded, scipy_linalg

    for table in (scipy_linalg, scipy_banded, eigenproblems, matrix_equations):
        patches.swap(table.SWAPS)
    return True


def _stats(module: ModuleType) -> bool:
    del module
    from dagad._rules import multivariate, scipy_stats, statistics

    patches.swap(scipy_stats.SWAPS + multivariate.SWAPS + statistics.SWAPS)
    return True


def _sparse(module: ModuleType) -> bool:
    del module
    from dagad._rules import scipy_sparse

    patches.swap(scipy_sparse.SWAPS)
    return True


def _integrals(module: ModuleType) -> bool:
    patches.swap(scipy_integrate.of_integrals(module))
    return True


def _polynomials(module: ModuleType) -> bool:
    patches.swap(polynomials.of_powers(module))
    return True


def _series(module: ModuleType) -> bool:
    patches.swap(polynomials.of_series(module))
    return True


def _operators(module: ModuleType) -> bool:
    from dagad._rules import scipy_sparse

    patches.swap(scipy_sparse.of_operators(module))
    return True


def _normal(module: ModuleType) -> bool:
    from dagad._rules import scipy_stats

    return scipy_stats.learn_normal(module)


def _optimize(module: ModuleType) -> bool:
    patches.swap(scipy_optimize.of_solvers(module))
    return True


def _distances(module: ModuleType) -> bool:
    patches.swap(distances.of_distances(module))
    return True


def _transforms(module: ModuleType) -> bool:
    patches.swap(scipy_fft.of_transforms(module))
    return True


def _signal(module: ModuleType) -> bool:
    patches.swap(scipy_signal.of_signals(module))
    return True


def _ndimage(module: ModuleType) -> bool:
    patches.swap(scipy_signal.of_images(module))
    return True


HOMES["scipy.ndimage"] = _ndimage
HOMES["scipy.signal"] = _signal
HOMES["scipy.fft"] = _transforms
HOMES["scipy.optimize"] = _optimize
HOMES["scipy.spatial.distance"] = _distances
HOMES["scipy.special"] = _special
HOMES["scipy.stats"] = _stats
HOMES["autograd.scipy.stats.norm"] = _normal
HOMES["numpy.polynomial.polynomial"] = _polynomials
HOMES.update({f"numpy.polynomial.{name}": _series for name in "chebyshev hermite hermite_e laguerre legendre".split()})
HOMES["scipy.integrate"] = _integrals
HOMES["scipy.sparse"] = _sparse
HOMES["scipy.sparse.linalg"] = _operators
HOMES["scipy.linalg"] = _linalg
