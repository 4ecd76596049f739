"""Traced values that a chunk function carries along: found, and made shared arguments, or refused by name.

A chunk task may not meet a value of somebody else's tape. What a function holds in closures, default arguments,
partials, bound instances and containers is taken out here and given back, chunk by chunk, as plain or newly traced
values. What it reaches through globals or attributes of classes and modules can't be given back without changing them
for everybody, and is refused.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from autograd.tracer import Box

from dagad import _tree
from dagad._engines.autograd import open_containers
from dagad._errors import ClosureError
from dagad._templates import Template, attributes_of, contents_of

_PLAIN = frozenset(
    {np.ndarray, np.float64, np.float32, int, float, complex, bool, str, bytes, type(None), range, slice, np.dtype}
    | {BuiltinFunctionType, CodeType, np.ufunc}
)
_LIBRARIES = frozenset({"numpy", "scipy", "pandas", "autograd", "dagad", "dask", "distributed"})
# Not walked into: a logger, say, leads to every other logger. What is usually used to hold values is.
_CLOSED = (sys.stdlib_module_names | _LIBRARIES) - {"__main__", "types", "collections"}


def hoist(fun: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the traced values that a function carries, and how to make the function with other values in their place.

    Raises
    ------
    ClosureError
        If it reaches a traced value in a way that can't be replaced; the message names the way.
    """
    walk = _Walk()
    walk.visit(fun, _name(fun))
    if not walk.boxes:
        return [], functools.partial(_unchanged, fun)
    return _flat(list(walk.boxes.values()), Template.of(fun, tuple(walk.boxes), frozenset(walk.carriers)))


def _unchanged(fun: Any, values: Sequence[Any]) -> Any:
    del values
    return fun


def _flat(hoisted: list[Any], make: Any) -> tuple[list[Any], Any]:
    """Take traced containers, as autograd's own transforms make them of pytrees, apart into their leaves."""
    if not any(isinstance(_tree.plain(box), list | tuple | dict) for box in hoisted):
        return hoisted, make
    forms = [_tree.Form.of(open_containers(box), _tree.is_traced) for box in hoisted]
    return [leaf for form in forms for leaf in form.taken], _Refilled(make, [form.bare() for form in forms])


class _Refilled:
    """Puts leaves back into containers before a function is made with them."""

    __slots__ = ("_forms", "_make")

    def __init__(self, make: Any, forms: list[_tree.Form]) -> None:
        self._make, self._forms = make, forms

    def __call__(self, values: Any) -> Any:
        rest = iter(values)
        return self._make([form.fill(rest) for form in self._forms])

    def __reduce__(self) -> tuple[Any, ...]:
        return _Refilled, (self._make, self._forms)


class _Walk:
    """Looks through everything a function carries, each object once."""

    def __init__(self, seen: dict[int, Any] | None = None) -> None:
        self.boxes: dict[int, Any] = {}
        self.carriers: set[int] = set()  # ids of what has a box somewhere below
        self._seen: dict[int, Any] = {} if seen is None else seen

    def visit(self, obj: Any, name: str) -> bool:
        """Return whether there is a box in `obj` or below."""
        kind = type(obj)
        if kind in _PLAIN and not (kind is np.ndarray and obj.dtype.kind == "O"):
            return False
        if kind in Box.types:
            self.boxes[id(obj)] = obj
            return True
        known = self._seen.get(id(obj))
        if known is None:
            self._seen[id(obj)] = (obj, False)  # the object is kept alive, or its id could come again
            found = False
            for part, path in _parts(obj, name):
                found = self.visit(part, path) or found
            if found:
                self.carriers.add(id(obj))
            self._seen[id(obj)] = known = (obj, found)
            if kind is FunctionType:
                _refuse_globals(obj, name, self._seen)
            elif not isinstance(obj, type):
                _refuse_class_attributes(obj, name, self._seen)
        return known[1]


def _parts(obj: Any, name: str) -> Iterator[tuple[Any, str]]:
    """Yield what an object carries, with how its user would call it."""
    if isinstance(obj, FunctionType):
        for variable, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True):
            for contents in contents_of(cell):
                yield contents, f"`{variable}` in {name}"
        for default in obj.__defaults__ or ():
            yield default, f"a default argument of {name}"
        for key, default in (obj.__kwdefaults__ or {}).items():
            yield default, f"the default of `{key}` of {name}"
        wrapped = getattr(obj, "__wrapped__", None)
        if wrapped is not None:
            yield wrapped, name
    elif isinstance(obj, functools.partial):
        yield obj.func, _name(obj.func)
        for item in (*obj.args, *obj.keywords.values()):
            yield item, f"an argument of the partial {name}"
    elif isinstance(obj, MethodType):
        yield obj.__func__, name
        yield obj.__self__, f"the instance that {name} is bound to"
    elif isinstance(obj, dict):
        for key, item in obj.items():
            yield item, f"[{key!r}] of {name}"
    elif isinstance(obj, list | tuple | set | frozenset):
        if not set(map(type, obj)) <= _PLAIN:  # long lists of plain data are common, and looked through in C
            for item in obj:
                yield item, f"an item of {name}"
    elif isinstance(obj, np.ndarray) and obj.dtype.kind == "O":
        for item in obj.flat:
            yield item, f"an item of {name}"
    elif not isinstance(obj, ModuleType | type) and _root(type(obj)) not in _CLOSED - {"dagad"}:
        for key, item in attributes_of(obj):
            yield item, f"`{key}` of {name}"


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code and those of the functions defined in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes(const)


def _refuse_globals(function: FunctionType, name: str, seen: dict[int, Any]) -> None:
    """Refuse boxes in the globals a function names, in attributes of modules and classes there, and in its helpers."""
    scope = function.__globals__
    if str(scope.get("__name__", "")).partition(".")[0] in _CLOSED:
        return
    names = {used for code in codes(function.__code__) for used in code.co_names}
    for used in names:
        if used in scope:
            _refuse_global(scope[used], used, names, name, seen)


def _refuse_global(value: Any, used: str, names: set[str], name: str, seen: dict[int, Any]) -> None:
    if type(value) in _PLAIN:
        return
    if type(value) in Box.types:
        _refuse(f"the global `{used}`", name)
    if isinstance(value, ModuleType | type):
        if _root(value) not in _CLOSED:
            for attribute in names & vars(value).keys():
                if type(vars(value)[attribute]) in Box.types:
                    _refuse(f"`{used}.{attribute}`", name)
    elif id(value) not in seen:
        walk = _Walk(seen)  # one walk: helpers that call each other are looked at once
        if walk.visit(value, f"the global `{used}`"):
            _refuse(f"the global `{used}`", name)


def _refuse_class_attributes(obj: Any, name: str, seen: dict[int, Any]) -> None:
    for cls in type(obj).__mro__:
        if _root(cls) not in _CLOSED and _root(cls) != "builtins":
            for attribute, value in vars(cls).items():
                if type(value) in Box.types:
                    _refuse(f"`{cls.__name__}.{attribute}`, an attribute of a class,", name)
                if attribute == "__call__" and isinstance(value, FunctionType):
                    _refuse_globals(value, name, seen)


def _root(thing: Any) -> str:
    """Return the top-level package that a module or a class belongs to."""
    home = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
    return str(home).partition(".")[0]


def _refuse(way: str, name: str) -> None:
    raise ClosureError(
        f"A value being differentiated reaches {name} through {way}. Chunks can't take it from there. "
        "Pass it to the function as a shared argument."
    )


def _name(fun: Any) -> str:
    return f"`{getattr(fun, '__qualname__', None) or type(fun).__qualname__}`"
