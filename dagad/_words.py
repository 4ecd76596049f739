"""How messages speak of values, functions and arguments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from dagad._types import Function

if sys.version_info >= (3, 14):
    import annotationlib


def a(noun: str) -> str:
    """Return a noun with its article.

    Examples
    --------
    >>> a("int"), a("Array"), a("float64"), a("uint8")
    ('an int', 'an Array', 'a float64', 'a uint8')
    """
    return f"{'an' if noun[:1].lower() in set('aeio') else 'a'} {noun}"


def described(value: object) -> str:
    """Return what a value is, in a few words.

    Examples
    --------
    >>> described(np.zeros(3)), described(2), described(None)
    ('an array of shape (3,) and dtype float64', 'an int', 'None')
    """
    if isinstance(value, np.ndarray):
        kind = "an array" if type(value) is np.ndarray else a(type(value).__name__)
        return f"{kind} of shape {value.shape} and dtype {value.dtype}"
    return "None" if value is None else a(type(value).__name__)


def name_of(fun: Any) -> str:
    """Return what sentences call a function: its own name, whatever is wrapped around it.

    Examples
    --------
    >>> import functools
    >>> name_of(functools.partial(described, 2))
    'described'
    """
    while not hasattr(fun, "__name__") and (hasattr(fun, "fun") or hasattr(fun, "func")):
        fun = fun.fun if hasattr(fun, "fun") else fun.func
    return str(getattr(fun, "__name__", fun))


def argument_of(fun: Function, index: int) -> str:
    """Return what sentences call a positional argument of a function.

    Examples
    --------
    >>> argument_of(lambda x, theta: 0, 1)
    'Argument 1 (`theta`)'
    """
    names = _parameters(fun)
    return f"Argument {index}" + (f" (`{names[index]}`)" if index < len(names) else "")


def parameter_of(fun: Any, index: int) -> str:
    """Return the name of a positional argument of a function, whatever is wrapped around it.

    Examples
    --------
    >>> parameter_of(lambda x, *args: 0, 1)
    'argument_1'
    """
    while getattr(type(fun), "__dagad_wraps__", False):
        fun = fun.fun
    names = _parameters(fun)
    return names[index] if index < len(names) else f"argument_{index}"


def signature_of(fun: Callable[..., Any]) -> inspect.Signature:
    """Return what a function of the user's takes; annotations may name what is there for type checkers only."""
    if sys.version_info >= (3, 14):
        return inspect.signature(fun, annotation_format=annotationlib.Format.STRING)
    return inspect.signature(fun)


def texts_of_annotations(fun: Callable[..., Any]) -> dict[str, Any]:
    """Return a function's annotations as they are written."""
    if sys.version_info >= (3, 14):
        return annotationlib.get_annotations(fun, format=annotationlib.Format.STRING)
    return dict(fun.__annotations__)


def _parameters(fun: Any) -> list[str]:
    try:
        return [one.name for one in signature_of(fun).parameters.values() if one.kind in (0, 1)]
    except (TypeError, ValueError):
        return []


class Listing(type):
    """A class that lists for `help` and for completion what its users call: all else is for dagad's other modules."""

    for_users: tuple[str, ...]
    __signature__ = inspect.Signature()  # users get instances of it from functions

    def __dir__(cls) -> tuple[str, ...]:
        return cls.for_users
