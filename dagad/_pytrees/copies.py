"""What an object carries, and how one like it is made with other things in their place: a kind of objects a class.

The walk of `closures` asks each kind what an object carries; the templates of `templates` take it apart and make it
again, as `copy` would, but never by code of the user's: neither ``__new__`` nor ``__init__`` nor ``__setattr__`` runs.
"""

from __future__ import annotations

import enum
import functools
import gc
import itertools
import operator
from collections.abc import Sequence
from contextvars import ContextVar
from types import (
    CellType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

from dagad._errors import ClosureError

# An attribute's name; with the class that has the slot, where it is kept in one.
Attribute = str | tuple[type, str]


def contents_of(cell: CellType) -> tuple[Any, ...]:
    """Return what a closure's cell holds, as a tuple of one; empty when the variable has no value yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def attributes_of(obj: Any) -> tuple[list[Attribute], list[Any]]:
    """Return an instance's own attributes, those in slots too: how they are called, and their values."""
    own = getattr(obj, "__dict__", None)
    keys: list[Attribute] = list(own) if own else []
    values: list[Any] = list(own.values()) if own else []
    for cls in type(obj).__mro__:
        if "__slots__" in cls.__dict__:
            for key, slot in cls.__dict__.items():
                if type(slot) is MemberDescriptorType:  # names that begin with two underscores are mangled here
                    try:
                        values.append(slot.__get__(obj))
                    except AttributeError:  # not set
                        continue
                    keys.append((cls, key))
    return keys, values


def set_attributes(made: Any, keys: Sequence[Attribute], values: Sequence[Any]) -> None:
    """Give a new instance its attributes, past descriptors and ``__setattr__``: frozen records too."""
    for key, value in zip(keys, values, strict=True):
        if isinstance(key, str):
            made.__dict__[key] = value
        else:
            key[0].__dict__[key[1]].__set__(made, value)


class Kind:
    """A kind of objects. `first` is what is needed to make one, `rest` what may lead back to it and is put in later."""

    @staticmethod
    def first(obj: Any) -> list[Any]:
        """Return the parts that an object can't be made without."""
        del obj
        return []

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        """Return the parts that are put in when it is there."""
        return attributes_of(obj)[1]

    @staticmethod
    def fixed(obj: Any) -> Any:
        """Return what else is needed to make one like it."""
        return type(obj), attributes_of(obj)[0]

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        """Return a new object."""
        raise NotImplementedError("A kind of objects has to say how one is made.")

    @staticmethod
    def finish(made: Any, fixed: Any, rest: list[Any]) -> None:
        """Put the rest of the parts in."""
        set_attributes(made, fixed[1], rest)

    @staticmethod
    def label(obj: Any, index: int) -> str:
        """Return how the user would call a part; the last {} stands for the object. Parts are `first`, then `rest`."""
        return _attribute_label(attributes_of(obj)[0][index])


def _attribute_label(key: Attribute) -> str:
    return f"`{key if isinstance(key, str) else key[1]}` of {{}}"


def no_copy(cls: type, why: str) -> ClosureError:
    """Return what is raised where a value is held by something that can't be made again."""
    return ClosureError(
        f"A value being differentiated is held by a `{cls.__name__}`, which dagad {why}. Pass the value to the "
        "function as a shared argument."
    )


class Instance(Kind):
    """Of a class of somebody's, which derives from none of the below."""

    @staticmethod
    def fixed(obj: Any) -> Any:
        cls = type(obj)
        if issubclass(cls, enum.Enum):
            raise no_copy(cls, "doesn't copy: there is one only")
        if hasattr(cls, "__del__"):
            raise no_copy(cls, "doesn't copy: its `__del__` would run for every copy")
        Instance.make((cls, ()), [])  # refused here rather than in a chunk
        return Kind.fixed(obj)

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        try:
            return (SimpleNamespace if issubclass(fixed[0], SimpleNamespace) else object).__new__(fixed[0])
        except TypeError as error:
            raise no_copy(fixed[0], "can't copy") from error


class Cell(Kind):
    """A variable of a closure. Functions that share it go on sharing it."""

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        return list(contents_of(obj))

    @staticmethod
    def fixed(obj: Any) -> Any:
        return None

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        return CellType()

    @staticmethod
    def finish(made: Any, fixed: Any, rest: list[Any]) -> None:
        for part in rest:
            made.cell_contents = part

    @staticmethod
    def label(obj: Any, index: int) -> str:
        return "{}"  # the variable was named by its function


class Function(Kind):
    """A Python function: its closure, its defaults and its attributes."""

    @staticmethod
    def first(obj: Any) -> list[Any]:
        return list(obj.__closure__ or ())

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        if not (obj.__defaults__ or obj.__kwdefaults__ or obj.__dict__):
            return []
        return [*(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values(), *obj.__dict__.values()]

    @staticmethod
    def fixed(obj: Any) -> Any:
        empty = tuple(CellType() for _ in obj.__closure__ or ())  # or what is carried would travel along
        bare = function_like(obj, empty)
        return bare, len(obj.__defaults__ or ()), tuple(obj.__kwdefaults__ or ()), tuple(obj.__dict__)

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        return function_like(fixed[0], tuple(first))

    @staticmethod
    def finish(made: Any, fixed: Any, rest: list[Any]) -> None:
        _, n_defaults, keywords, keys = fixed
        if rest:
            made.__defaults__ = tuple(rest[:n_defaults]) or None
            made.__kwdefaults__ = dict(zip(keywords, rest[n_defaults:], strict=False)) or None
            made.__dict__.update(zip(keys, rest[n_defaults + len(keywords) :], strict=True))

    @staticmethod
    def label(obj: Any, index: int) -> str:
        variables, n_defaults = obj.__code__.co_freevars, len(obj.__defaults__ or ())
        if index < len(variables):
            return f"`{variables[index]}` in {{}}"
        index -= len(variables)
        if index < n_defaults:
            return "a default argument of {}"
        names = [*(f"the default of `{key}` of {{}}" for key in obj.__kwdefaults__ or {}), *map(_own, obj.__dict__)]
        return names[index - n_defaults]


def _own(key: str) -> str:
    return "{}" if key == "__wrapped__" else _attribute_label(key)


def function_like(original: FunctionType, cells: tuple[CellType, ...]) -> FunctionType:
    """Return the same function with another closure, without defaults and attributes."""
    made = FunctionType(original.__code__, original.__globals__, original.__name__, None, cells)
    made.__qualname__, made.__module__, made.__doc__ = original.__qualname__, original.__module__, original.__doc__
    made.__annotations__ = original.__annotations__
    return made


class Partial(Kind):
    """A `functools.partial`."""

    @staticmethod
    def first(obj: Any) -> list[Any]:
        return [obj.func, *obj.args, *obj.keywords.values()]

    @staticmethod
    def fixed(obj: Any) -> Any:
        return type(obj), attributes_of(obj)[0], len(obj.args), tuple(obj.keywords)

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        cls, _, n_args, keys = fixed
        keywords = dict(zip(keys, first[1 + n_args :], strict=True))
        return functools.partial.__new__(cls, *first[: 1 + n_args], **keywords)

    @staticmethod
    def label(obj: Any, index: int) -> str:
        n_first = 1 + len(obj.args) + len(obj.keywords)
        if index >= n_first:
            return Kind.label(obj, index - n_first)
        return "an argument of the partial {}" if index else "{}"


class Method(Kind):
    """A method bound to an instance."""

    @staticmethod
    def first(obj: Any) -> list[Any]:
        return [obj.__func__, obj.__self__]

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        return []  # its attributes are the function's

    @staticmethod
    def fixed(obj: Any) -> Any:
        return MethodType, ()

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        return MethodType(*first)

    @staticmethod
    def label(obj: Any, index: int) -> str:
        return "the instance that {} is bound to" if index else "{}"


class BuiltinMethod(Kind):
    """A method of a type written in C, bound to an instance: ``{"a": t}.get``; or a function written in C."""

    @staticmethod
    def first(obj: Any) -> list[Any]:
        return [] if isinstance(obj.__self__, ModuleType | type | None) else [obj.__self__]

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        return []

    @staticmethod
    def fixed(obj: Any) -> Any:
        return obj.__name__, ()

    @staticmethod
    def make(fixed: Any, first: list[Any]) -> Any:
        return getattr(first[0], fixed[0])

    @staticmethod
    def label(obj: Any, index: int) -> str:
        return "the object that {} is bound to"


class Opaque(Kind):
    """An iterator, a generator, an exception, a variable of the context: looked into, and never made again."""

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        if isinstance(obj, BaseException):
            return [*obj.args, *obj.__dict__.values()]
        if isinstance(obj, GeneratorType):
            return list(obj.gi_frame.f_locals.values()) if obj.gi_frame else []
        if isinstance(obj, ContextVar):
            return [obj.get(None)]
        return gc.get_referents(obj)

    @staticmethod
    def fixed(obj: Any) -> Any:
        raise no_copy(type(obj), "can't copy")

    @staticmethod
    def label(obj: Any, index: int) -> str:
        return "what is held by {}"


class Descriptor(Opaque):
    """What a class wraps its functions in."""

    @staticmethod
    def rest(obj: Any) -> list[Any]:
        names = ("__func__", "fget", "fset", "fdel", "func", "args", "keywords", "dispatcher")
        return [getattr(obj, name) for name in names if hasattr(obj, name)]

    @staticmethod
    def label(obj: Any, index: int) -> str:
        return "{}"


_ITERATORS: tuple[Any, ...] = (map, filter, zip, enumerate, reversed, type(iter([])), type(iter(())), type(iter(set())))
_OF_DICTS: tuple[Any, ...] = (type(iter({})), type(iter({}.values())), type(iter({}.items())))
_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
OPAQUE: frozenset[type] = frozenset(
    {GeneratorType, ContextVar, *_ITERATORS, *_OF_DICTS, *_GETTERS}
    | {found for found in vars(itertools).values() if isinstance(found, type)}
)
