"""What functions mean by the names in their code: globals, modules that they import, members of modules and classes."""

from __future__ import annotations

import contextlib
import dis
import functools
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from importlib import util
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

Named = list[tuple[str, Any]]
Unnamed = Callable[[type, str, Any, Container[str]], bool]  # whether what is in a class counts, though nobody names it
_BY_WORDS = frozenset({"getattr", "attrgetter", "globals", "vars", "__dict__"})
_EVALUATORS = _BY_WORDS | {"eval", "exec", "locals", "methodcaller", "getattr_static", "__getattribute__"}
_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_OF_GLOBALS, _RUN_TEXTS = frozenset({"globals", "eval", "exec"}), frozenset({"eval", "exec"})
_IMPORTERS = frozenset({"import_module", "__import__", "modules"})


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code and those of the functions defined in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes(const)


@functools.lru_cache(maxsize=1024)
def used_in(code: CodeType) -> tuple[str, ...]:
    """Return the names of globals and attributes in a code, and its words where it looks things up by words."""
    found = dict.fromkeys(name for each in codes(code) for name in each.co_names)
    is_by_name = _BY_WORDS.isdisjoint(found) and _RUN_TEXTS.isdisjoint(globals_of(code))
    return tuple(found) if is_by_name else names_of(code)


@functools.lru_cache(maxsize=1024)
def names_of(code: CodeType) -> tuple[str, ...]:
    """Return the names of globals and attributes in a code, and words that may be asked for with `getattr`."""
    found: dict[str, None] = {}
    for each in codes(code):
        found.update(dict.fromkeys(each.co_names))
    return tuple(found | dict.fromkeys(_words_of(code)))


def _words_of(code: CodeType) -> Iterator[str]:
    """Yield the words among the constants of a code, and those in texts where it runs texts."""
    runs_texts = not _RUN_TEXTS.isdisjoint(globals_of(code))
    for each in codes(code):
        for const in each.co_consts:
            for text in const if isinstance(const, tuple | frozenset) else (const,):
                if isinstance(text, str):
                    yield from _WORD.findall(text) if runs_texts else [text] if text.isidentifier() else ()


_WORD = re.compile(r"[^\W\d]\w*")


@functools.lru_cache(maxsize=1024)
def globals_of(code: CodeType) -> tuple[str, ...]:
    """Return the names of the globals that a code reads, without those of attributes."""
    steps = (step for each in codes(code) for step in dis.get_instructions(each))
    return tuple(dict.fromkeys(step.argval for step in steps if step.opname in _READS))


@functools.lru_cache(maxsize=1024)
def names_in(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return all names that a code mentions, and those of the attributes that it binds."""
    every, bound = set[str](), set[str]()
    for each in codes(code):
        every.update(each.co_names)
        bound.update(step.argval for step in dis.get_instructions(each) if step.opname == "STORE_ATTR")
    return frozenset(every), frozenset(bound)


# Methods and functions of numpy's that write into an array they are given; and all that change what they are called on.
WRITE = frozenset("at copyto fill fill_diagonal itemset place put put_along_axis putmask shuffle".split())
_CHANGE = WRITE | frozenset(
    "add append appendleft clear discard extend extendleft insert next pop popitem popleft remove resize reverse "
    "rotate send setattr setdefault setflags setfield sort update write writelines".split()
)
_OTHERS = frozenset("STORE_ATTR DELETE_ATTR STORE_GLOBAL DELETE_GLOBAL STORE_SUBSCR DELETE_SUBSCR STORE_SLICE".split())


@functools.lru_cache(maxsize=1024)
def changes_others(code: CodeType) -> bool:
    """Return whether a code may change what others hold: entries, attributes, variables of others, arrays in place."""
    for each in codes(code):
        if not _CHANGE.isdisjoint(each.co_names) or any(map(names_out, each.co_consts)):
            return True
        for step in dis.get_instructions(each):
            if step.opname in _OTHERS or (step.opname == "BINARY_OP" and step.argrepr.endswith("=")):
                return True
            if step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in each.co_freevars:
                return True
    return False


@functools.lru_cache(maxsize=1024)
def binds_globals(code: CodeType) -> tuple[str, ...]:
    """Return the names of the globals that a code binds, or deletes."""
    steps = (step for each in codes(code) for step in dis.get_instructions(each))
    return tuple(dict.fromkeys(step.argval for step in steps if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")))


def names_out(constant: object) -> bool:
    """Return whether a constant names the keyword `out`: those of a call are a tuple."""
    return constant == "out" or (isinstance(constant, tuple) and "out" in constant)


# Functions that take all attributes of what they are given, by themselves.
_TAKERS = frozenset({"asdict", "astuple", "copy", "deepcopy", "dumps", "fields", "replace"})


@functools.lru_cache(maxsize=1024)
def takes_all_attributes(code: CodeType) -> bool:
    """Return whether a code may read attributes that it does not name."""
    return looks_up_words(code) or any(not _TAKERS.isdisjoint(each.co_names) for each in codes(code))


@functools.lru_cache(maxsize=1024)
def looks_up_words(code: CodeType) -> bool:
    """Return whether a code, or a function defined in it, looks things up by words, and not by names alone."""
    return any(not _EVALUATORS.isdisjoint(each.co_names) for each in codes(code))


@functools.lru_cache(maxsize=1024)
def imports_of(code: CodeType, package: str | None) -> tuple[str, ...]:
    """Return the names of the modules that a code of a package imports when it runs, and of what may be modules."""
    found: list[str] = []
    for each in codes(code):
        steps = list(dis.get_instructions(each))
        for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):  # both are put before an import
            if step.opname == "IMPORT_NAME":
                with contextlib.suppress(ImportError):  # the function itself will tell
                    module = util.resolve_name("." * level.argval + step.argval, package)
                    found += [module, *(f"{module}.{name}" for name in names.argval or () if name != "*")]
        if not _IMPORTERS.isdisjoint(each.co_names):
            words = (const for const in each.co_consts if isinstance(const, str))
            found += [word for word in words if word.replace(".", "").isidentifier()]
    return tuple(found)


# What is reached by name, for the table of kinds


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
    names = read if _OF_GLOBALS.isdisjoint(read) else dict.fromkeys([*read, *_words_of(code)])
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
    if name in _OF_PYTHON or name.startswith(("__dataclass_", "__attrs_")):
        return not isinstance(value, CODE)
    return isinstance(value, _DESCRIPTORS)


CODE: tuple[type, ...] = (FunctionType, staticmethod, classmethod, property, functools.cached_property)
_DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType)
_OF_PYTHON = frozenset(
    "__module__ __qualname__ __name__ __doc__ __dict__ __weakref__ __annotations__ __firstlineno__ "
    "__static_attributes__ __slots__ __match_args__ __abstractmethods__ __parameters__ __orig_bases__ __hash__ "
    "__annotations_cache__ __annotate_func__ __slotnames__ __signature__ __text_signature__ __final__ "
    "_abc_impl".split()
)


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
