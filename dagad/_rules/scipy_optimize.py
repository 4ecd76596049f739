"""Solvers of `scipy.optimize` that would compute with what is traced, and differentiate their own iterations.

Nearly all of scipy's solvers make ordinary arrays of what they are given, which is refused there. These are written in
Python for numbers, or go on in C, which hides why. Where an iteration stops because the solution has been reached, its
derivative is any number: that of Newton's method begun at the root is zero.
"""

from __future__ import annotations

import functools
import inspect
import sys
from types import FunctionType, ModuleType
from typing import Any

from dagad._errors import NotDifferentiableError
from dagad._rules.scipy_functions import replaced, stock
from dagad._tracing import refusals
from dagad._tracing.patches import Swap
from dagad._tracing.private import isbox
from dagad._types import Function

_IN_PYTHON = "newton", "golden", "bracket", "brent", "fminbound", "line_search"
_IN_C = "bisect", "brenth", "brentq", "ridder", "milp", "lsq_linear"


def of_solvers(optimize: ModuleType) -> list[Swap]:
    """Return the swaps for `scipy.optimize`."""
    wrap = optimize._zeros_py._wrap_nan_raise  # all root finders in C call it
    own = stock(wrap)
    solvers = [(name, getattr(optimize, name, None)) for name in (*_IN_PYTHON, *_IN_C)]
    return [
        replaced(wrap, lambda fun: own(functools.partial(_ordinary, fun))),
        *(replaced(fun, _Ordinary(name, fun)) for name, fun in solvers if isinstance(fun, FunctionType)),
    ]


def _ordinary(fun: Function, *args: Any) -> Any:
    """Refuse a traced value here: C code, to which it goes, does not look for errors, and would call `fun` amid one."""
    found = fun(*args)
    if isbox(found):
        raise NotDifferentiableError(refusals.of_number())
    return found


class _Ordinary:
    """Calls a solver of scipy's with ordinary numbers, and with functions that return them."""

    __slots__ = ("_name", "_signature", "_stock")

    def __init__(self, name: str, function: Function) -> None:
        self._name, self._stock = f"scipy.optimize.{name}", stock(function)
        self._signature = inspect.signature(self._stock)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return self._stock(*args, **kwargs)  # which says so
        name = refusals.library_function_of(sys._getframe(2)) or self._name  # of another solver that calls this one
        for parameter, arg in bound.arguments.items():
            if callable(arg):
                bound.arguments[parameter] = functools.partial(_ordinary_of, name, arg)
            elif parameter != "args" and _holds_boxes(arg):
                raise NotDifferentiableError(refusals.of_solver(name))
        return self._stock(*bound.args, **bound.kwargs)


def _ordinary_of(name: str, fun: Function, /, *args: Any, **kwargs: Any) -> Any:
    found = fun(*args, **kwargs)
    if _holds_boxes(found):
        raise NotDifferentiableError(refusals.of_solver(name))
    return found


def _holds_boxes(arg: object) -> bool:
    if isinstance(arg, tuple | list):
        return any(map(_holds_boxes, arg))
    if type(arg).__module__.startswith("scipy.optimize."):  # bounds and constraints
        return any(map(_holds_boxes, vars(arg).values())) if hasattr(arg, "__dict__") else False
    return bool(isbox(arg))
