"""What stays the same when a function is defined again, in a loop say: what is known of it is remembered by this."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Hashable, Sequence
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, MethodWrapperType
from typing import Any

import numpy as np

from dagad._pytrees.kinds import contents_of

# Bound ones are made anew whenever they are looked up.
_BY_NAME = (BuiltinFunctionType, MethodWrapperType, MethodDescriptorType, np.ufunc, type(np.sum))
MOST = 32  # functions that are looked at, each once


def identity_of(fun: Any) -> Hashable:
    """Return a key for a function: its code, and that of the functions that it holds, in closures say.

    What a decorator made of two functions differs by what it was made of; what two make of one, by their own code.
    Equal code is the same function, that of a cell that is run again for instance.

    >>> def scaled(factor):
    ...     return lambda x: factor * x
    >>> identity_of(scaled(2.0)) == identity_of(scaled(3.0))
    True
    >>> def twice(fun):
    ...     return lambda x: 2 * fun(x)
    >>> identity_of(twice(scaled(2.0))) == identity_of(twice(twice(scaled(2.0))))
    False
    """
    if _is_bare(fun):
        code: Hashable = fun.__code__
        return code  # nearly always
    inner: Any = getattr(fun, "fun", None)  # of what is marked explicit, say
    return (type(fun), inner.__code__) if _is_bare(inner) else _identity(fun, set())


def _is_bare(fun: Any) -> bool:
    """Return whether something is a function that holds no other."""
    return type(fun) is FunctionType and not (fun.__closure__ or fun.__defaults__ or fun.__kwdefaults__ or fun.__dict__)


def _identity(fun: Any, seen: set[int]) -> Hashable:
    kind: Any = type(fun)
    first = not seen
    if id(fun) in seen or len(seen) > MOST:
        return None
    seen.add(id(fun))
    if kind is FunctionType:
        return _with_held(fun.__code__, _held_by(fun), seen)
    if isinstance(fun, _BY_NAME):
        return kind, getattr(fun, "__module__", None), getattr(fun, "__qualname__", getattr(fun, "__name__", None))
    if isinstance(fun, functools.partial):
        return _with_held(kind, (fun.func, *fun.args, *fun.keywords.values()), seen)
    if isinstance(fun, MethodType):
        return _identity(fun.__func__, seen), type(fun.__self__)
    call = getattr(kind, "__call__", None)  # noqa: B004  # the function is wanted, not whether there is one
    code = call.__code__ if isinstance(call, FunctionType) else None
    held = _wrapped_by(fun)
    if code is not None or any(map(callable, held)):
        return _with_held((kind, code), held, seen)
    return _itself(fun) if first else kind


def _held_by(function: FunctionType) -> Sequence[Any]:
    held = [contents for cell in function.__closure__ or () for contents in contents_of(cell)]
    held.extend((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))
    return [*held, *_wrapped_by(function)] if function.__dict__ else held


def _wrapped_by(fun: Any) -> Sequence[Any]:
    return getattr(fun, "__wrapped__", None), getattr(fun, "fun", None)


def _with_held(own: Hashable, held: Sequence[Any], seen: set[int]) -> Hashable:
    found = [_identity(part, seen) for part in held if callable(part)]
    return (own, *found) if found else own


def _itself(fun: Any) -> Hashable:
    """Return a weak reference to a function that has no code, else its type."""
    kind: Any = type(fun)
    try:
        hash(fun)
        return weakref.ref(fun)
    except TypeError:
        return kind  # type: ignore[no-any-return]  # a class is hashable
