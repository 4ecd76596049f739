"""Equations integrated by scipy, of plain values: the one place that calls its solvers, and their options."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._tracing.stacked_tangents import FLOAT
from dagad._types import Array
from dagad.solvers._equations import Equation, Field, is_kind_of, not_finite
from dagad.solvers._floats import at_times
from dagad.solvers._jacobians import Jacobian
from dagad.solvers._lsoda import at_times_by_lsoda, lsoda
from dagad.solvers._stepping import Slopes, stepped

MOST_BAD = 300  # calls that give nan, before the time goes on: a step gets shorter by five each time or so
GOES_ON = 1e-10  # of the span


def solver_options(
    equation: Equation, params: Sequence[Any], span: float, until: contextlib.ExitStack
) -> dict[str, Any]:
    """Return what scipy is told about how to integrate an equation; what that needs is open until then."""
    settings = equation.settings
    rtol = settings.rtol
    if np.ndim(rtol):
        rtol = np.tile(rtol, len(equation.atol) // len(rtol))
    options = {**settings.for_span(span), "rtol": rtol, "atol": equation.atol, "method": settings.method}
    if settings.is_implicit:
        options["jac"] = Jacobian(equation, params, until)
    return options


def solved(*args: Any, **kwargs: Any) -> Any:
    """Return what scipy's `solve_ivp` does, which is called with keywords."""
    from scipy import integrate

    method = kwargs["method"]
    if method in ("BDF", integrate.BDF):
        kwargs["method"] = _initialised_bdf()
    if not is_kind_of(method, "LSODA"):
        return integrate.solve_ivp(*args, **kwargs)
    with lsoda(takes_turns=True):
        return integrate.solve_ivp(*args, **kwargs)


@functools.cache
def _initialised_bdf() -> Any:
    """Return scipy's BDF with all of its differences written.

    Its first step subtracts a row that nobody wrote before it is replaced (gh-16883). It is in no result, but where the
    memory holds a signalling nan, numpy warns of an invalid value, once in thousands of solutions.
    """
    from scipy import integrate

    class BDF(integrate.BDF):  # type: ignore[misc]  # scipy has no types
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.D[2:] = 0.0

    return BDF


def is_finite(slope: Array) -> bool:
    """Return whether all numbers of a slope are finite: of few, Python knows before numpy has begun."""
    if len(slope) < 32 and slope.dtype == FLOAT:
        return all(map(math.isfinite, slope.tolist()))
    return bool(np.isfinite(slope).all())


class FiniteSlope:
    """The slope of sensitivities or of an adjoint: scipy may meet nan in it, but not begin with that, nor stay there.

    It makes steps smaller where a trial of one gives nan. From a first step that is nan itself it never comes back, and
    towards a time of zero steps may become smaller and smaller.
    """

    def __init__(self, field: Field, start: float, stop: float) -> None:
        self._field, self._least = field, GOES_ON * abs(stop - start)
        self._last, self._n_bad, self._is_first = start, 0, True

    def __call__(self, t: float, y: Array) -> Any:
        slope = self._field(t, y)
        if not is_finite(slope):
            self._n_bad += 1
            if self._is_first or self._n_bad > MOST_BAD:
                raise NotDifferentiableError(not_finite(t))
        elif self._n_bad and abs(t - self._last) > self._least:
            self._last, self._n_bad = t, 0
        self._is_first = False
        return slope

    @property
    def numbers(self) -> Slopes | None:
        """Returns finite slopes of floats, with an error where there is more to say; None if there are none."""
        if self._is_first or self._n_bad:
            return None
        numbers: Slopes | None = getattr(self._field, "numbers", None)
        return numbers


def integrate(equation: Equation, params: Sequence[Any], y0: Array, span: tuple[float, float], **asked: Any) -> Any:
    """Return scipy's result at plain values; what failed is refused."""
    with equation.plain_field(params) as field, contextlib.ExitStack() as until:
        options = solver_options(equation, params, abs(span[1] - span[0]), until)
        slope = FiniteSlope(field, *span)
        found = solved(slope, span, y0, **asked, **options | stepped(options["method"], y0, slope))
    check_solved(found, "the equations of its sensitivities, or of its adjoint,")
    return found


def integrate_to(
    equation: Equation, params: Sequence[Any], y0: Array, span: tuple[float, float], times: np.ndarray
) -> Any:
    """Return the solution at some times of the span, in its order, as columns; what failed is refused."""
    with equation.plain_field(params) as field, contextlib.ExitStack() as until:
        options = solver_options(equation, params, abs(span[1] - span[0]), until)
        along = at_times_by_lsoda if options["method"] == "LSODA" else at_times
        found = along(FiniteSlope(field, *span), y0, span, times, options)
    return integrate(equation, params, y0, span, t_eval=times).y if found is None else found


def check_solved(found: Any, what: str) -> None:
    """Refuse to differentiate what scipy did not integrate to the end."""
    if found.status != 0:
        reached = found.t[-1] if len(found.t) else "the beginning"
        raise NotDifferentiableError(
            f"A solution of differential equations is being differentiated, and scipy could not integrate {what} "
            f"beyond t = {reached}: {found.message} Try another `method` (Radau, BDF and LSODA are for stiff "
            "equations), other tolerances, or a shorter `t_span`."
        )
