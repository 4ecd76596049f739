"""What objects hold, and how others like them are made with other things in them: what the table of kinds is made of.

Objects are made again as `copy` would, but never by code of the user's: neither ``__new__`` nor ``__init__`` nor
``__setattr__`` runs.
"""

from __future__ import annotations

import collections
import enum
import functools
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodWrapperType,
    SimpleNamespace,
)
from typing import Any

import numpy as np

from dagad._errors import ClosureError
from dagad._values.partition import Partition
from dagad._words import texts_of_annotations

Parts = Sequence[Any]
Making = tuple[Callable[[Parts], Any], Callable[[Any, Parts], None]]
# An attribute's name; with the class that has the slot, where it is kept in one.
Attribute = str | tuple[type, str]


def refuse(obj: object) -> Making:
    raise _no_copy(type(obj), "can't copy")


def _no_copy(cls: type, why: str) -> ClosureError:
    return ClosureError(
        f"A value being differentiated is held by a `{cls.__name__}`, which dagad {why}. Pass the value to the "
        "function as a shared argument."
    )


def made_by(make: Callable[..., Any], parts: Parts) -> Any:
    return make(*parts)


def cached_like(obj: Any) -> Making:
    return partial(_made_cached, obj.cache_parameters()), leave


def _made_cached(parameters: dict[str, Any], parts: Parts) -> Any:
    return functools.lru_cache(**parameters)(parts[0])


# Attributes


def attributes_of(obj: object) -> tuple[list[Attribute], list[Any]]:
    """Return an instance's own attributes, those in slots too: how they are called, and their values."""
    if issubclass(type(obj), threading.local):
        own = threading.local.__getattribute__(obj, "__dict__")  # type: ignore[arg-type]  # what this thread has there
    else:
        own = _dict_of(obj) if type(obj).__dictoffset__ else None
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


def _dict_of(obj: object) -> dict[str, Any] | None:
    """Return the attributes of an object, not by code of the user's."""
    try:
        own: dict[str, Any] = object.__getattribute__(obj, "__dict__")
    except Exception:  # of a property of that name, as what stands for another object has
        kept = (vars(cls).get("__dict__") for cls in type(obj).__mro__)
        return next((slot.__get__(obj) for slot in kept if type(slot) is GetSetDescriptorType), None)
    return own


def set_attributes(made: object, keys: Sequence[Attribute], values: Sequence[Any]) -> None:
    """Give a new instance its attributes, past descriptors and ``__setattr__``: frozen records too."""
    for key, value in zip(keys, values, strict=True):
        if isinstance(key, str):
            made.__dict__[key] = value
        else:
            key[0].__dict__[key[1]].__set__(made, value)


def leave(made: object, parts: Parts) -> None:
    """Put nothing in."""


def fill_made(made: object, state: tuple[Any, ...]) -> None:
    """Put in what stood in an object that was pickled: see `Kind.reduced`."""
    fill, rest, keys, values = state
    fill(made, rest)
    set_attributes(made, keys, values)


def attribute_label(key: Attribute) -> str:
    name = key if isinstance(key, str) else key[1]
    return "{}" if name == "__wrapped__" else f"`{name}` of {{}}"


def instance_like(obj: object) -> Making:
    cls = type(obj)
    if issubclass(cls, enum.Enum):
        raise _no_copy(cls, "doesn't copy: there is one only")
    if hasattr(cls, "__del__"):
        raise _no_copy(cls, "doesn't copy: its `__del__` would run for every copy")
    _blank(cls, ())  # refused here rather than in a chunk
    return partial(_blank, cls), leave


def _blank(cls: type, parts: Parts) -> Any:
    del parts
    try:
        return (SimpleNamespace if issubclass(cls, SimpleNamespace) else object).__new__(cls)
    except TypeError as error:
        raise _no_copy(cls, "can't copy") from error


# Functions, and the variables of their closures; functions that share one go on sharing it


def contents_of(cell: CellType) -> tuple[Any, ...]:
    """Return what a closure's cell holds, as a tuple of one; empty when the variable has no value yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def variables_of(function: FunctionType) -> list[tuple[str, Any]]:
    """Return the variables of a closure that have a value, by their names."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [(name, held) for name, cell in cells for held in contents_of(cell)]


def fill_cell(made: CellType, contents: Parts) -> None:
    for part in contents:
        made.cell_contents = part


def held_by_function(obj: FunctionType) -> Parts:
    if not (obj.__defaults__ or obj.__kwdefaults__ or obj.__dict__):
        return ()
    return [*(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values(), *obj.__dict__.values()]


def labels_of_function(obj: FunctionType) -> list[str]:
    return [
        *(f"`{name}` in {{}}" for name in obj.__code__.co_freevars),
        *("a default argument of {}" for _ in obj.__defaults__ or ()),
        *(f"the default of `{name}` of {{}}" for name in obj.__kwdefaults__ or {}),
        *map(attribute_label, obj.__dict__),
    ]


def function_like(obj: FunctionType, scope: dict[str, Any] | None = None) -> Making:
    """Return how a function is made again; with a scope, of other globals."""
    cells = [CellType() for _ in obj.__closure__ or ()]  # or what is carried would travel along
    bare = _with_cells(obj, cells, scope)
    names = len(obj.__defaults__ or ()), tuple(obj.__kwdefaults__ or ()), tuple(obj.__dict__)
    return partial(_with_cells, bare), partial(_fill_function, *names)


def _with_cells(original: FunctionType, cells: Parts, scope: dict[str, Any] | None = None) -> FunctionType:
    """Return the same function with another closure, without defaults and attributes."""
    home = original.__globals__ if scope is None else scope
    made = FunctionType(original.__code__, home, original.__name__, None, tuple(cells))
    made.__qualname__, made.__module__, made.__doc__ = original.__qualname__, original.__module__, original.__doc__
    if sys.version_info >= (3, 14) and original.__annotate__ is not None:
        made.__annotate__ = original.__annotate__  # which may name what is there for type checkers only
    else:
        made.__annotations__ = original.__annotations__
    return made


def with_texts_for_annotations(original: FunctionType) -> FunctionType:
    """Return the same function with annotations that are not evaluated."""
    made = _with_cells(original, original.__closure__ or ())
    made.__annotations__ = texts_of_annotations(original)
    made.__defaults__, made.__kwdefaults__ = original.__defaults__, original.__kwdefaults__
    made.__dict__.update(original.__dict__)
    return made


def _fill_function(n_defaults: int, keywords: Parts, keys: Parts, made: FunctionType, parts: Parts) -> None:
    if parts:
        made.__defaults__ = tuple(parts[:n_defaults]) or None
        n_given = n_defaults + len(keywords)
        made.__kwdefaults__ = dict(zip(keywords, parts[n_defaults:n_given], strict=True)) or None
        made.__dict__.update(zip(keys, parts[n_given:], strict=True))


def partial_like(obj: partial[Any]) -> Making:
    return partial(_made_partial, type(obj), 1 + len(obj.args), tuple(obj.keywords)), leave


def _made_partial(cls: Any, n_first: int, keys: Parts, parts: Parts) -> Any:
    return partial.__new__(cls, *parts[:n_first], **dict(zip(keys, parts[n_first:], strict=True)))


def method_like(obj: BuiltinFunctionType | MethodWrapperType) -> Making:
    return partial(_bound_method, obj.__name__), leave


def _bound_method(name: str, parts: Parts) -> Any:
    return getattr(parts[0], name)


# Containers, and what derives from them: filled by the methods of the type written in C, which do as told


DICTS = (collections.OrderedDict, collections.defaultdict, dict)
SERIES_TYPES = (list, collections.deque)


def _base_of(obj: object) -> Any:
    kind = type(obj)
    bases: Any = (*DICTS, *SERIES_TYPES, set, tuple, frozenset)
    return kind if kind in bases else next(base for base in bases if issubclass(kind, base))


def makes_anew(cls: type) -> bool:
    """Return whether pickle would run code of a class on what an object holds, which has run when that was put in.

    A class that says how it is pickled knows what it does.
    """
    if not issubclass(cls, _DERIVED_FROM):  # nearly always
        return False
    base: Any = next(base for base in _RUN_BY_PICKLE if issubclass(cls, base))
    if any(getattr(cls, name, None) is not getattr(base, name, None) for name in _PICKLED):
        return False
    return any(getattr(cls, name) is not getattr(base, name) for name in _RUN_BY_PICKLE[base])


_PICKLED = ("__reduce_ex__", "__reduce__", "__getnewargs_ex__", "__getnewargs__", "__getstate__", "__setstate__")
VALUES = (float, int, complex, str, bytes)  # classes of one value, from which others may derive
# What pickle runs for an object of a class, by what that derives from.
_RUN_BY_PICKLE: dict[type, tuple[str, ...]] = {
    **dict.fromkeys(DICTS, ("__setitem__",)),
    **dict.fromkeys(SERIES_TYPES, ("append", "extend")),
    **dict.fromkeys((set, frozenset), ("__new__", "__init__")),
    **dict.fromkeys((tuple, *VALUES), ("__new__",)),
}
_DERIVED_FROM = tuple(_RUN_BY_PICKLE)


def value_like(obj: object) -> tuple[Any, ...]:
    """Return how pickle makes a number or word again whose class makes another one of what it is given."""
    base: Any = next(base for base in VALUES if isinstance(obj, base))
    reduced: Any = obj.__reduce_ex__(2)
    return _made_value, (base, type(obj), base.__getnewargs__(obj)), *reduced[2:]


def _made_value(base: type[Any], cls: type, args: tuple[Any, ...]) -> Any:
    return base.__new__(cls, *args)


def of_mapping(obj: Any) -> Parts:
    base = _base_of(obj)
    factory = [obj.default_factory] if base is collections.defaultdict else []
    return [*base.keys(obj), *base.values(obj), *factory]  # keys may carry something too


def labels_of_mapping(obj: object) -> list[str]:
    keys = list(_base_of(obj).keys(obj))
    return [*["a key of {}"] * len(keys), *(f"[{key!r}] of {{}}" for key in keys), "the default of {}"]


def mapping_like(obj: object) -> Making:
    base = _base_of(obj)
    return partial(_empty, base, type(obj), None), partial(_fill_mapping, base)


def _empty(base: Any, cls: type, longest: int | None, parts: Parts) -> Any:
    del parts
    made = base.__new__(cls)
    if base is collections.deque:
        base.__init__(made, (), longest)
    return made


def _fill_mapping(base: type[Any], made: Any, parts: Parts) -> None:
    size = len(parts) // 2
    for key, value in zip(parts[:size], parts[size : 2 * size], strict=True):
        base.__setitem__(made, key, value)  # not `update`: a Counter's adds
    if base is collections.defaultdict:
        made.default_factory = parts[-1]


def made_view(name: str, parts: Parts) -> object:
    return getattr(parts[0], name)()


def n_items(obj: object) -> int:
    """Return how many entries a container has; of a class of the user's, too, by Python's own count."""
    count: int = _base_of(obj).__len__(obj)
    return count


def items_of(obj: object) -> Parts:
    return list(_base_of(obj).__iter__(obj))


def series_like(obj: object) -> Making:
    base = _base_of(obj)
    return partial(_empty, base, type(obj), getattr(obj, "maxlen", None)), partial(_fill_series, base)


def _fill_series(base: Any, made: Any, parts: Parts) -> None:
    (base.update if base is set else base.extend)(made, parts)


def fixed_like(obj: object) -> Making:
    return partial(_made_fixed, _base_of(obj), type(obj)), leave


def _made_fixed(base: type[Any], cls: type, parts: Parts) -> Any:
    return base.__new__(cls, parts)


def array_like(obj: np.ndarray) -> Making:
    numbers = None if obj.dtype.kind == "O" else obj.view(np.ndarray)
    return partial(_made_array, type(obj), obj.shape, numbers), _fill_array


def _made_array(cls: type, shape: tuple[int, ...], numbers: np.ndarray | None, parts: Parts) -> Any:
    del parts
    made = np.empty(shape, object) if numbers is None else numbers
    return made if cls is np.ndarray else made.view(cls)


def _fill_array(made: np.ndarray, parts: Parts) -> None:
    plain = made.view(np.ndarray)
    for index, part in enumerate(parts):
        plain.flat[index] = part


def of_weak_keys(obj: weakref.WeakKeyDictionary[Any, Any]) -> Parts:
    items = list(obj.items())
    return [*(key for key, _ in items), *(item for _, item in items)]


def fill_weak_keys(made: weakref.WeakKeyDictionary[Any, Any], parts: Parts) -> None:
    half = len(parts) // 2
    made.update(zip(parts[:half], parts[half:], strict=True))


# What is looked into, and never made again


def inside(obj: object) -> Parts:
    if isinstance(obj, BaseException):
        return [*obj.args, *obj.__dict__.values()]
    if isinstance(obj, GeneratorType):
        return list(obj.gi_frame.f_locals.values()) if obj.gi_frame else []
    return [obj.get(None)] if isinstance(obj, ContextVar) else gc.get_referents(obj)


def wrapped_in(obj: object) -> Parts:
    names = ("__func__", "fget", "fset", "fdel", "func", "args", "keywords", "dispatcher")
    return [getattr(obj, name) for name in names if hasattr(obj, name)]


# Codes, and what other packages compile


def words_of_function(obj: FunctionType) -> Parts:
    return [obj.__code__, len(obj.__defaults__ or ()), *(obj.__kwdefaults__ or ()), *obj.__dict__]


def words_of_code(code: CodeType) -> Parts:
    """Return what a code does beside its constants; its table of exceptions says which of it is under a `try`."""
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return [code.co_name, *counts, code.co_flags, code.co_code, getattr(code, "co_exceptiontable", b""), *names]


def computed_by(ufunc: np.ufunc) -> Parts:
    """Return the function that `numpy.frompyfunc` was given; there is none in numpy's own."""
    return [part for part in gc.get_referents(ufunc) if callable(part)]


def compiled_by_jax(jitted: Any) -> Parts:
    """Return the function that is compiled, which has travelled where `__wrapped__` has not; all else of it changes."""
    return (jitted.__reduce_ex__(2)[2]["fun"],)


def how_jax_compiles(jitted: Any) -> Parts:
    state = jitted.__reduce_ex__(2)[2]
    return [state["static_argnums"], state["static_argnames"], repr(state["global_cache_key"])]


def made_partition(parts: Parts) -> Partition:
    treedef, positions, *leaves = parts
    return Partition(treedef, leaves, positions)
