"""LSODA, which scipy can run once at a time in a thread: its turns, and sensitivities by one call of it.

`scipy.integrate.solve_ivp` goes through Python at each step of it, `odeint` through none, and both are the same code.

State: `_LOCK`, as before scipy 1.17 one LSODA of a process refuses to go on when another has begun; `_here`, the
process in which one runs in this thread: a process that is forked from it has begun none.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from dagad._errors import ArgumentsError
from dagad._executors.member import by_itself
from dagad._tracing.stacked_tangents import FLOAT
from dagad._types import Array
from dagad.solvers._equations import Field
from dagad.solvers._stepping import LEAST_RTOL, ByNumbers, Slopes

_MOST_STEPS = 2**31 - 1  # as many as it takes
_TOO_CLOSE = 1e-14  # of a time: to one that is as close to the first, LSODA takes no step

_LOCK = threading.RLock()


class _Here(threading.local):
    process: int | None = None


_here = _Here()


def shares_states() -> bool:
    """Return whether LSODA has one state for the whole process, as it had before scipy 1.17."""
    from scipy import integrate

    return hasattr(integrate._ode, "LSODA_LOCK")


@contextlib.contextmanager
def lsoda(takes_turns: bool) -> Iterator[None]:
    """Have LSODA to oneself in this thread; with `takes_turns` in the process, too, where it has one state for all."""
    if _here.process == os.getpid() or (_here.process is not None and shares_states()):  # and their locks, too
        raise ArgumentsError(_WITHIN)
    try:
        _here.process = os.getpid()
        if takes_turns and shares_states():
            with _LOCK, by_itself():  # a member that waited for others would have it while they come here
                yield
        else:
            yield
    finally:
        _here.process = None


_WITHIN = (
    "An equation is to be solved by LSODA, as `odeint` does, and `sol(t)` of its solutions where that is "
    "differentiated, within the right-hand side of another that LSODA is solving in this thread. scipy has one "
    "function for both: it waits for ever, or goes on with the inner one's and returns wrong numbers without a word. "
    "Solve one of them otherwise, for example the inner one by "
    '`dagad.solvers.solve_ivp(fun, (t0, t1), y0, method="DOP853")`.'
)


def stock_odeint(*args: Any, **kwargs: Any) -> Any:
    """Return what scipy's `odeint` does."""
    from scipy import integrate

    with lsoda(takes_turns=False), by_itself(shares_states()):  # it has a lock of its own, which others come to
        return integrate.odeint(*args, **kwargs)


class _Borrowed:
    """Slopes of states in memory that is overwritten later: by a program of floats where there is one.

    Of what that computes elsewhere numpy is to say nothing; of what the user's function does, what it says anyway.
    """

    def __init__(self, slope: ByNumbers) -> None:
        self._slope, self._errors = slope, dict[str, Any](np.geterr())
        self._quick: Slopes | None = None

    def __call__(self, t: float, y: Array) -> Any:
        if self._quick is not None:  # nearly always
            try:
                return self._quick(t, y.tolist())
            except Exception:  # arrays meet it too
                pass
        found = self.by(self._slope, t, y)
        self._quick = self._slope.numbers  # which are others now
        return found

    def by(self, fun: Field, t: float, y: Array) -> Any:
        """Return what another function returns."""
        with np.errstate(**self._errors):
            return fun(t, y.copy())


def at_times_by_lsoda(
    slope: ByNumbers, y0: Array, span: tuple[float, float], times: np.ndarray, options: dict[str, Any]
) -> Any:
    """Return the numbers at times along the span, a column for each; None where that is left to `solve_ivp`.

    `options` are those that scipy takes there: tolerances, lengths of steps, the Jacobian.
    """
    start, stop = span
    later = times[times > start]
    is_too_short = not stop > start or later[0] - start < _TOO_CLOSE * max(abs(start), abs(stop))
    is_stock = y0.dtype != FLOAT or not np.min(options["atol"], initial=1.0) > 0.0  # it says itself what fails
    if shares_states() or is_too_short or is_stock:
        return None
    longest, borrowed = options.get("max_step", np.inf), _Borrowed(slope)
    with np.errstate(all="ignore"):
        found, facts = stock_odeint(
            borrowed,
            y0,
            np.concatenate([[start], later]),
            Dfun=lambda t, y: borrowed.by(options["jac"], t, y),
            rtol=np.maximum(options["rtol"], LEAST_RTOL),  # as there: of less, `odeint` warns and gives up
            atol=options["atol"],
            h0=options.get("first_step", 0.0),
            hmin=options.get("min_step", 0.0),
            hmax=0.0 if longest == np.inf else longest,
            tcrit=[stop],  # as `solve_ivp`, it asks for no slopes beyond
            mxstep=_MOST_STEPS,
            full_output=1,
            tfirst=True,
        )
    if "successful" not in facts["message"]:
        return None
    return found[np.searchsorted(later, times) + (times > start)].T
