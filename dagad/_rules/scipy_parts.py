"""Takes up what dagad has for a part of scipy when somebody has imported that part: dagad itself does without scipy."""

from __future__ import annotations

import functools
from typing import Any

from dagad._errors import NotDifferentiableError
from dagad._rules import scipy_integrate
from dagad._rules.scipy_functions import replaced, stock
from dagad._tracing import refusals
from dagad._tracing.patches import patches
from dagad._tracing.private import isbox
from dagad._tracing.rules import HOMES
from dagad._types import Function


def _special(module: Any) -> bool:
    del module
    from dagad._rules import scipy_rules

    patches.swap(scipy_rules.SWAPS)
    return True


def _linalg(module: Any) -> bool:
    del module
    from dagad._rules import scipy_linalg

    patches.swap(scipy_linalg.SWAPS)
    return True


def _stats(module: Any) -> bool:
    del module
    from dagad._rules import scipy_stats

    patches.swap(scipy_stats.SWAPS)
    return True


def _sparse(module: Any) -> bool:
    del module
    from dagad._rules import scipy_sparse

    patches.swap(scipy_sparse.SWAPS)
    return True


def _integrals(module: Any) -> bool:
    patches.swap(scipy_integrate.of_integrals(module))
    return True


def _polynomials(module: Any) -> bool:
    patches.swap(scipy_integrate.of_polynomials(module))
    return True


def _operators(module: Any) -> bool:
    from dagad._rules import scipy_sparse

    patches.swap(scipy_sparse.of_operators(module))
    return True


def _normal(module: Any) -> bool:
    from dagad._rules import scipy_stats

    return scipy_stats.learn_normal(module)


def _optimize(module: Any) -> bool:
    wrap = module._zeros_py._wrap_nan_raise  # all root finders in C call it
    own = stock(wrap)
    patches.swap([replaced(wrap, lambda fun: own(functools.partial(_ordinary, fun)))])
    return True


def _ordinary(fun: Function, *args: Any) -> Any:
    """Refuse a traced value here: C code, to which it goes, does not look for errors, and would call `fun` amid one."""
    found = fun(*args)
    if isbox(found):
        raise NotDifferentiableError(refusals.of_number())
    return found


HOMES["scipy.optimize"] = _optimize
HOMES["scipy.special"] = _special
HOMES["scipy.stats"] = _stats
HOMES["autograd.scipy.stats.norm"] = _normal
HOMES["numpy.polynomial.polynomial"] = _polynomials
HOMES["scipy.integrate"] = _integrals
HOMES["scipy.sparse"] = _sparse
HOMES["scipy.sparse.linalg"] = _operators
HOMES["scipy.linalg"] = _linalg
