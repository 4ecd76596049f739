"""What functions mean by the names in their code: globals, modules that they import, members of modules and classes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Container, Iterable
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

from dagad._values.bytecode import globals_of, imports_of, words_of

Named = list[tuple[str, Any]]
Unnamed = Callable[[type, str, Any, Container[str]], bool]  # whether what is in a class counts, though nobody names it
_OF_GLOBALS = frozenset({"globals", "eval", "exec"})


def of_function(function: FunctionType, names: Iterable[str]) -> Named:
    """Return the globals that a function means by some names, then the modules that it imports, if they are there."""
    scope = function.__globals__
    found = [(name, scope[name]) for name in names if name in scope]
    for name in imports_of(function.__code__, scope.get("__package__")):
        if isinstance(module := sys.modules.get(name), ModuleType):
            found.append((name, module))
    return found


def unnamed_globals(function: FunctionType, known: Container[str]) -> Named:
    """Return the globals of a function that are not known: cloudpickle leaves out what classes in it and words name."""
    code, scope = function.__code__, function.__globals__
    read = globals_of(code)
    names = read if _OF_GLOBALS.isdisjoint(read) else dict.fromkeys([*read, *words_of(code)])
    return [(name, scope[name]) for name in names if name in scope and name not in known and name != "__builtins__"]


def of_module(module: ModuleType, names: Iterable[str]) -> Named:
    scope = vars(module)
    return [(name, scope[name]) for name in names if name in scope]


def of_class(cls: type, names: Iterable[str] = ()) -> Named:
    """Return what is in a class, but for what Python itself puts there: all of it travels, whoever names it."""
    del names
    return [(name, value) for name, value in list(vars(cls).items()) if not is_of_python(name, value)]


def is_of_python(name: str, value: object) -> bool:
    """Return whether Python itself has put something into a class, or what makes dataclasses."""
    if name in _ANNOTATIONS:
        return True
    if name in _OF_PYTHON or name.startswith(("__dataclass_", "__attrs_")):
        return not isinstance(value, CODE)
    return isinstance(value, _DESCRIPTORS)


CODE: tuple[type, ...] = (FunctionType, staticmethod, classmethod, property, functools.cached_property)
_DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)
_OF_PYTHON = frozenset(
    "__module__ __qualname__ __name__ __doc__ __dict__ __weakref__ __annotations__ __firstlineno__ "
    "__static_attributes__ __slots__ __match_args__ __abstractmethods__ __parameters__ __orig_bases__ __hash__ "
    "__slotnames__ __signature__ __text_signature__ __final__ _abc_impl".split()
)
_ANNOTATIONS = frozenset({"__annotations_cache__", "__annotate_func__", "__annotate__"})  # code that Python makes


class Scopes:
    """Modules and classes that were met, and the names that were: one function may hand another what that one names.

    `unnamed` says of a class, what is in it, what that is, and all names whether it counts though nobody names it.
    """

    __slots__ = ("_homes", "_met", "_names", "_unnamed")

    def __init__(self, unnamed: Unnamed | None = None) -> None:
        self._unnamed = unnamed
        self._met: set[str] = set()
        self._names: list[str] = []
        self._homes: dict[int, _Home] = {}

    def meet(self, names: Iterable[str]) -> None:
        fresh = [name for name in names if name not in self._met]
        self._met.update(fresh)
        self._names += fresh

    def enter(self, home: object) -> None:
        """Add a module or a class."""
        if id(home) not in self._homes:
            self._homes[id(home)] = _Home(home)

    def present(self) -> list[tuple[Any, frozenset[str], frozenset[str]]]:
        """Return homes, the names that were met, and which of these are in each now."""
        names = frozenset(self._met)
        return [(each.home, names, names & vars(each.home).keys()) for each in self._homes.values()]

    def fresh(self) -> list[tuple[Any, str, Any]]:
        """Return homes, names and meanings that have not been returned before: more may be met in them."""
        found = []
        for each in list(self._homes.values()):
            names = self._names[each.n_names :]  # it has been asked for the others
            for name in each.not_returned(names, self._unnamed, self._met):
                found.append((each.home, name, each.members[name]))
            each.n_names = len(self._names)
        return found


class _Home:
    """A module or a class, what is in it, and what of it has been returned."""

    __slots__ = ("home", "is_class", "members", "n_names", "returned")

    def __init__(self, home: Any) -> None:
        self.home, self.is_class, self.n_names = home, isinstance(home, type), 0
        self.members: dict[str, Any] = dict(of_class(home)) if self.is_class else vars(home)
        self.returned: set[str] = set()

    def not_returned(self, names: list[str], unnamed: Unnamed | None, met: set[str]) -> list[str]:
        found = [name for name in names if name in self.members and name not in self.returned]
        if self.is_class and unnamed is not None and (self.n_names == 0 or self.home.__name__ in names):
            found += [
                name
                for name, value in self.members.items()
                if name not in self.returned and name not in found and unnamed(self.home, name, value, met)
            ]
        self.returned.update(found)
        return found
