"""Three of autograd's special functions, with rules that compute a derivative once and not once per cotangent.

Counts and shapes have log-gammas in their likelihoods: a Hessian pulls each of them many times, and autograd computes
the derivative anew for every cotangent. The second derivative, the trigamma function, comes from scipy as a Hurwitz
zeta function, which takes half of a Hessian-vector product of negative-binomial rows; a recurrence and the asymptotic
series are six times faster, to 4e-15.

State: the rules of ``gammaln``, ``psi`` and ``digamma`` in autograd's table, set once, when a process first records
after it has imported ``autograd.scipy.special``, and only where they are still autograd's own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from autograd import core
from autograd.extend import defvjp, primitive

_HOME = "autograd.scipy.special"
_done: list[bool] = []


def mend_special_functions() -> None:
    """Give the special functions better rules, if somebody has imported them; costs a look otherwise."""
    special = None if _done else sys.modules.get(_HOME)
    if special is None or not hasattr(special, "gammaln"):
        return
    _done.append(True)
    for name, derivative in (("gammaln", special.psi), ("psi", trigamma), ("digamma", trigamma)):
        function = getattr(special, name)
        if _is_autograds(function):
            defvjp(function, _once(derivative))
    defvjp(trigamma, lambda ans, x: lambda g: g * special.polygamma(2, x))


def _is_autograds(function: Any) -> bool:
    """Return whether a primitive's rule is autograd's own: a user's is not to be replaced."""
    cells = [cell.cell_contents for cell in getattr(core.primitive_vjps.get(function), "__closure__", None) or ()]
    rules = next((held for held in cells if isinstance(held, dict)), {})
    return getattr(rules.get(0), "__module__", None) == _HOME


def _once(derivative: Callable[[Any], Any]) -> Any:
    """Return the rule of a function of one argument that computes its derivative when it is first pulled."""

    def rule(ans: Any, x: Any) -> Callable[[Any], Any]:
        del ans
        found: list[Any] = []

        def pull(cotangent: Any) -> Any:
            if not found:
                found.append(derivative(x))
            return cotangent * found[0]

        return pull

    return rule


# Terms B(2k) / x**(2k + 1) of the asymptotic series, from the last one; after Abramowitz and Stegun, 6.4.12.
_BERNOULLI = (-691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6)
_SHIFTS = 8  # by 6.4.6: from 8 on the series is good to the last bits


@primitive  # type: ignore[untyped-decorator]  # autograd has no types
def trigamma(x: Any) -> Any:
    """Return the second derivative of the log-gamma function."""
    at = np.asarray(x, float)
    if np.any(at <= 0):  # poles, and the reflection formula: rare enough to leave them to scipy
        from scipy.special import polygamma

        total = polygamma(1, at)
    else:
        total, moved = np.zeros_like(at), at.copy()
        for _ in range(_SHIFTS):
            total += 1.0 / (moved * moved)
            moved += 1.0
        inverse = 1.0 / moved
        square, series = inverse * inverse, np.zeros_like(at)
        for number in _BERNOULLI:
            series = (series + number) * square
        total += inverse * (1.0 + inverse * 0.5 + series)
    dtype = getattr(x, "dtype", None)
    return np.asarray(total, dtype if dtype is not None and dtype.kind == "f" else float)[()]
