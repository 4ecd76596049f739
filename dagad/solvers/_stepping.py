"""Explicit Runge-Kutta steps in fewer calls than scipy's: of arrays with its bits, and of few numbers in floats.

A step of arrays does what scipy's does, in the same order. Where the installed scipy has other formulas, it takes its
steps by itself.

scipy takes a step of two or three states in some fifty calls of numpy's, each dearer than what it computes.
Where slopes are a program of floats (see `_recorded`), a step is one, too, written from scipy's own coefficients. Sums
may be rounded otherwise than scipy's: so sensitivities are integrated by this, and never what scipy is to return.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Sequence
from math import inf, nextafter, sqrt
from typing import Any, Protocol

import numpy as np

EXPLICIT = "RK23", "RK45", "DOP853"
MOST_NUMBERS = 60  # of more, arrays are as quick
LEAST_RTOL = 100 * np.finfo(float).eps  # of less scipy warns, and takes this
SAFETY, LEAST_FACTOR, MOST_FACTOR = 0.9, 0.2, 10  # scipy's
# Which text its formulas have from 1.15 to 1.18.
_KNOWN = frozenset({"e139a7d03052fd42cbe218b765361f1e1c047e8fe11a12e0b1084027ad193137"})

Slopes = Callable[[float, list[float]], list[float]]  # from a time and numbers to their slopes


class ByNumbers(Protocol):
    """A right-hand side that knows its slopes as a program of floats, at times.

    Attributes
    ----------
    numbers
        The program, which raises an error where an array has to be asked; None where it always has to.
    """

    @property
    def numbers(self) -> Slopes | None:
        """Returns the program."""

    def __call__(self, t: Any, y: np.ndarray) -> Any:
        """Return the slopes of an array."""


class _Solver:
    """What an explicit solver of scipy's has, for what is put before one."""

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    E: np.ndarray
    K: np.ndarray
    TOO_SMALL_STEP: str
    atol: np.ndarray
    direction: Any
    error_exponent: float
    f: np.ndarray
    fun: Callable[[Any, np.ndarray], np.ndarray]
    fun_single: Callable[[Any, np.ndarray], np.ndarray]
    h_abs: Any
    h_previous: Any
    max_step: float
    n: int
    n_stages: int
    nfev: int
    rtol: Any
    t: Any
    t_bound: float
    y: np.ndarray
    y_old: Any
    _estimate_error_norm: Callable[..., Any]


# Steps of arrays


@functools.cache
def _is_known() -> bool:
    """Return whether scipy takes steps by the formulas that are written here."""
    try:
        from scipy.integrate._ivp import common, rk

        base = rk.RungeKutta
        parts = rk.rk_step, base._step_impl, base._estimate_error, base._estimate_error_norm, common.norm
        text = "\n".join(map(_formulas_of, parts))
    except (ImportError, AttributeError, OSError):  # it has other parts, or no source
        return False
    return hashlib.sha256(text.encode()).hexdigest() in _KNOWN


def _formulas_of(function: Any) -> str:
    """Return what a function computes, without what is said of it."""
    tree: Any = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    tree.body = [
        part for part in tree.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
    ]
    return ast.unparse(tree)


class _ArraySteps(_Solver):
    """For a class of scipy's explicit solvers: its steps, of real states."""

    _rows: Sequence[tuple[int, np.ndarray, np.ndarray, Any]] = ()
    _sizes: tuple[Any, Any] = None, None  # a state, and the sizes of its numbers

    def _advanced_arrays(self, t: Any, y: np.ndarray, h: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return where a step ends, and the slope there."""
        stages, slope = self.K, self.fun_single
        stages[0] = self.f
        for index, before, factors, part in self._rows:
            state = before.dot(factors)
            state *= h
            state += y
            stages[index] = slope(t + part * h, state)
        new = stages[:-1].T.dot(self.B)
        new *= h
        new += y
        stages[-1] = last = slope(t + h, new)
        self.nfev += self.n_stages
        return new, last

    def _norm_of_arrays(self, h: Any, y: np.ndarray, new: np.ndarray) -> Any:
        state, sizes = self._sizes
        sizes = sizes if state is y else np.abs(y)
        self._sizes = new, np.abs(new)
        scale = np.maximum(sizes, self._sizes[1])
        scale *= self.rtol
        scale += self.atol
        if hasattr(self, "E5"):  # of two errors
            return self._estimate_error_norm(self.K, h, scale)
        error = self.K.T.dot(self.E)
        error *= h
        error /= scale
        return np.sqrt(error.dot(error)) / error.size**0.5

    def _step_impl(self) -> tuple[bool, str | None]:
        t, y, direction, is_rejected = self.t, self.y, self.direction, False
        if y.dtype != float:
            base: Any = super()
            by_scipy: tuple[bool, str | None] = base._step_impl()
            return by_scipy
        if not self._rows:
            self._rows = [(s, self.K[:s].T, self.A[s, :s], self.C[s]) for s in range(1, self.n_stages)]
        least = 10 * abs(nextafter(t, direction * inf) - t)
        length = self.max_step if self.h_abs > self.max_step else max(self.h_abs, least)
        while length >= least:
            stop = t + length * direction
            if direction * (stop - self.t_bound) > 0:
                stop = self.t_bound
            h = stop - t
            length = abs(h)
            new, slope = self._advanced_arrays(t, y, h)
            norm = self._norm_of_arrays(h, y, new)
            factor = MOST_FACTOR if norm == 0 else SAFETY * norm**self.error_exponent
            if norm < 1:
                self.h_abs = length * min(1 if is_rejected else MOST_FACTOR, factor)
                self.h_previous, self.y_old, self.t, self.y, self.f = h, y, stop, new, slope
                return True, None
            length, is_rejected = length * max(LEAST_FACTOR, factor), True
        return False, self.TOO_SMALL_STEP


@functools.cache
def _of_arrays(name: str) -> Any:
    from scipy import integrate

    base = getattr(integrate, name)
    return type(base.__name__, (_ArraySteps, base), {}) if _is_known() else base


def quick(method: object) -> Any:
    """Return a method of scipy's, or what gives the same bits sooner."""
    return _of_arrays(str(method)) if method in EXPLICIT else method


# Steps of floats


def sum_of(coefficients: Iterable[float]) -> tuple[str, str, str]:
    """Return a sum of stages, the names of their numbers in it, and those of the stages."""
    terms = [(float(each), index) for index, each in enumerate(coefficients) if each]
    total = " + ".join(f"{each!r} * p{index}" for each, index in terms)
    return total, ", ".join(f"p{index}" for _, index in terms), ", ".join(f"k{index}" for _, index in terms)


def _lines(solver: Any) -> list[str]:
    """Return the functions `advance`, from which a step's end and its stages come, and `error`, its norm."""
    lines = ["def advance(slope, t, h, y, k0):"]
    for stage in range(1, solver.n_stages):
        total, numbers, stages = sum_of(solver.A[stage, :stage])
        state = f"[v + h * ({total}) for v, {numbers} in zip(y, {stages})]"
        lines.append(f"    k{stage} = slope(t + {float(solver.C[stage])!r} * h, {state})")
    total, numbers, stages = sum_of(solver.B)
    lines.append(f"    new = [v + h * ({total}) for v, {numbers} in zip(y, {stages})]")
    every = ", ".join(f"k{stage}" for stage in range(solver.n_stages + 1))
    lines += [f"    k{solver.n_stages} = slope(t + h, new)", f"    return new, ({every})"]
    lines += ["def error(h, y, new, stages, atol, rtol):", f"    {every} = stages"]
    scale = "(a + r * max(abs(v), abs(w)))"
    if not hasattr(solver, "E5"):
        total, numbers, stages = sum_of(solver.E)
        whole = f"sum([(e := ({total}) / {scale}) * e for v, w, a, r, {numbers} in zip(y, new, atol, rtol, {stages})])"
        return [*lines, f"    return abs(h) * sqrt({whole} / len(y))"]
    for order in (3, 5):
        total, numbers, stages = sum_of(getattr(solver, f"E{order}"))
        each = f"(e := ({total}) / {scale}) * e for v, w, a, r, {numbers} in zip(y, new, atol, rtol, {stages})"
        lines.append(f"    e{order} = sum([{each}])")
    lines.append("    return abs(h) * e5 / sqrt((e5 + 0.01 * e3) * len(y)) if e5 or e3 else 0.0")
    return lines


@functools.cache
def of_floats(name: str) -> Any:
    """Return a class of scipy's solvers whose steps are of floats."""
    from scipy import integrate

    base = getattr(integrate, name)
    names: dict[str, Any] = {"sqrt": sqrt}
    exec("\n".join(_lines(base)), names)  # nothing but scipy's coefficients, and operators
    formulas = {"_advance": staticmethod(names["advance"]), "_error": staticmethod(names["error"])}
    return type(base.__name__, (_FloatSteps, base), formulas)


class _FloatSteps(_Solver):
    """For a class of scipy's explicit solvers: steps of floats."""

    _advance: Callable[..., tuple[list[float], Sequence[list[float]]]]
    _error: Callable[..., float]

    def __init__(self, *args: Any, field: ByNumbers, **options: Any) -> None:
        super().__init__(*args, **options)
        self.begin(field)

    def begin(self, field: ByNumbers) -> None:
        """Have the numbers of what is in arrays."""
        self._field = field
        self._stages: Sequence[list[float]] = ()
        self._state, self._slope = self.y.tolist(), self.f.tolist()
        self._tolerances = [np.broadcast_to(each, self.n).tolist() for each in (self.atol, self.rtol)]

    def _slopes(self, t: float, numbers: list[float]) -> list[float]:
        slope: list[float] = self.fun(np.float64(t), np.array(numbers)).tolist()
        return slope

    def _tried(self, *step: Any) -> Any:
        """Return where a step ends, and its stages."""
        quick = self._field.numbers
        if quick is not None:
            try:
                with np.errstate(all="ignore"):  # it computes at other parameters, too
                    return self._advance(quick, *step)
            except Exception:  # arrays meet it too
                pass
        return self._advance(self._slopes, *step)

    def _step_impl(self) -> tuple[bool, str | None]:
        t, direction, bound, is_rejected = float(self.t), float(self.direction), self.t_bound, False
        least = 10.0 * abs(nextafter(t, direction * inf) - t)
        length = float(self.max_step if self.h_abs > self.max_step else max(self.h_abs, least))
        while length >= least:
            stop = t + length * direction
            stop = bound if direction * (stop - bound) > 0 else stop
            length = abs(stop - t)
            new, stages = self._tried(t, stop - t, self._state, self._slope)
            norm = self._norm(stop - t, new, stages)
            factor = SAFETY * norm**self.error_exponent if norm else MOST_FACTOR
            if norm < 1:
                self._accept(stop, new, stages)
                self.h_abs = length * min(1 if is_rejected else MOST_FACTOR, factor)
                return True, None
            length, is_rejected = length * max(LEAST_FACTOR, factor), True
        return False, self.TOO_SMALL_STEP

    def _norm(self, h: float, new: list[float], stages: Sequence[list[float]]) -> float:
        try:
            return self._error(h, self._state, new, stages, *self._tolerances)
        except ZeroDivisionError:  # of no tolerance: numpy says what becomes of it
            self.K[:] = stages
            scale = self.atol + np.maximum(np.abs(self.y), np.abs(new)) * self.rtol
            return float(self._estimate_error_norm(self.K, h, scale))

    def _accept(self, stop: float, new: list[float], stages: Sequence[list[float]]) -> None:
        self.h_previous, self.y_old = stop - float(self.t), self.y
        self.t, self.y = np.float64(stop), np.array(new)
        self._state, self._slope, self._stages = new, stages[-1], stages

    def _dense_output_impl(self) -> Any:
        self.K[:], self.f = self._stages, np.array(self._slope)
        base: Any = super()
        return base._dense_output_impl()


def stepped(method: object, y0: np.ndarray, field: ByNumbers) -> dict[str, Any]:
    """Return the options that have scipy take steps of sensitivities sooner: in floats where arrays are no quicker."""
    if method not in EXPLICIT or len(y0) > MOST_NUMBERS or y0.dtype != float:
        return {"method": quick(method)}
    return {"method": of_floats(str(method)), "field": field}
