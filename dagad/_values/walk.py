"""Walks through all that a function carries, and what it reaches by name, in search of traced values."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Container, Iterable, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from dagad._errors import ClosureError
from dagad._values import bytecode, names
from dagad._values.contents import contents_of
from dagad._values.homes import is_closed, root_of
from dagad._values.kinds import CACHED, CONTAINERS, DESCRIPTOR, FUNCTION, HOMES, INSTANCE, UFUNC, WRAPPER, Kind, kind_of
from dagad._values.pytree import TRACED

_PLAIN = frozenset(
    {np.ndarray, np.float64, np.float32, np.int64, np.int32, np.bool_, np.dtype}
    | {int, float, complex, bool, str, bytes, type(None), range, slice, CodeType}
)
# What runs where nobody names it, as long as nobody makes an instance.
_MAKERS = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__del__"})


def leads_nowhere(fun: Any) -> bool:
    """Return whether a walk would end at once: nothing is carried, and names mean plain data or parts of libraries.

    So do those of its helpers, each of which is looked at once, whoever calls it.
    """
    functions = [fun.fun if kind_of(type(fun)) is WRAPPER else fun]
    seen = {id(functions[0])}
    for function in functions:
        if type(function) is not FunctionType or function.__closure__ or function.__defaults__:
            return False
        if function.__kwdefaults__ or function.__dict__:
            return False
        for _, value in names.of_function(function, bytecode.names_of(function.__code__)):
            kind = type(value)
            if kind is ModuleType:
                if not is_closed(root_of(value)):
                    return False
            elif kind is FunctionType:
                if id(value) not in seen:
                    seen.add(id(value))
                    functions.append(value)
            elif issubclass(kind, type):
                if not all(is_closed(root_of(cls)) for cls in value.__mro__):
                    return False
            elif kind is np.ufunc:
                if UFUNC.first(value):
                    return False
            elif kind not in _PLAIN or kind is np.ndarray:  # of objects, it may be
                return False
    return True


class Walk:
    """Looks through everything that a function carries, then through what it reaches by name, each object once.

    What it looks for are values of the classes `traced`, autograd's unless others are given. These are seldom in
    globals, so that whatever might name one counts, words and attributes too. Where others often are,
    `read_only=True` counts globals that are read by name, and words once a function looks things up by words.

    ==========  ======================================================================================
    `boxes`     the traced values that it carries, by id
    `_reached`  those that it reaches only by the name of a global, or of something in a module or class
    `_owners`   for each part, the ids of the objects that have it
    `_links`    for each part, the first of them, and which of its parts it is
    `_entries`  what is reached by name: its id, the way, and the id of what names it
    `_homes`    modules and classes: what they are called, and the id of what names them
    `_worded`   functions whose words have not been looked up; None where they are looked up at once
    `_keyed`    keys of containers, among them whole numbers, which may be ids
    ==========  ======================================================================================
    """

    def __init__(self, fun: object, traced: Container[type] = TRACED, read_only: bool = False) -> None:
        self._traced = traced
        self._worded: list[FunctionType] | None = [] if read_only else None
        self.boxes: dict[int, Any] = {}
        self._reached: dict[int, Any] = {}
        self._objects: dict[int, Any] = {id(fun): fun}  # they are kept alive, or an id could come again
        self._owners: dict[int, list[int]] = {}
        self._links: dict[int, tuple[int, int]] = {}
        self._entries: dict[int, tuple[str, int]] = {}
        self._functions: list[FunctionType] = []
        self._scopes = names.Scopes(functools.partial(runs_unnamed, traced))  # a method would be a cycle
        self._homes: dict[int, tuple[str, int]] = {}
        self._keyed: list[Any] = []
        self._stack: list[Any] = [fun]
        self._look(self.boxes)
        self._look_by_name()

    @property
    def finds(self) -> bool:
        """Whether there are traced values, carried or reached by name."""
        return bool(self.boxes or self._reached)

    def _look(self, found: dict[int, Any]) -> None:
        while self._stack:
            obj = self._stack.pop()
            cls = type(obj)
            if cls in self._traced:
                found[id(obj)] = obj
            elif (kind := kind_of(cls)) in HOMES:
                self._enter(obj, obj.__name__, id(obj))
            else:
                if kind is FUNCTION:
                    self._functions.append(obj)
                if kind is not INSTANCE or root_of(cls) == "dagad" or not is_closed(root_of(cls)):
                    self._take(obj, kind)
                if cls.__module__ != "builtins":
                    self._enter(cls, cls.__name__, id(obj))

    def _take(self, obj: object, kind: Kind) -> None:
        objects, owner = self._objects, id(obj)
        if kind in CONTAINERS and self._is_plain(obj):
            return
        for index, part in enumerate(kind.parts(obj)):
            if type(part) in _PLAIN and not (type(part) is np.ndarray and part.dtype.kind == "O"):
                continue
            key = id(part)
            if key not in objects:
                objects[key] = part
                self._links[key] = owner, index
                self._stack.append(part)
            self._owners.setdefault(key, []).append(owner)

    def _is_plain(self, obj: Any) -> bool:
        """Return whether a container holds plain data only: long ones are common, and looked through in C."""
        keys = dict.keys(obj) if isinstance(obj, dict) else obj if isinstance(obj, set | frozenset) else ()
        kinds = set(map(type, keys))
        if int in kinds:
            self._keyed.append(list(keys))
        if type(obj).__module__ not in ("builtins", "collections") or getattr(obj, "__dict__", None):
            return False
        if not isinstance(getattr(obj, "default_factory", None), type | None):
            return False
        items = list(obj.values() if isinstance(obj, dict) else obj)  # other threads may add to it
        kinds.update(map(type, items))
        if not kinds <= _PLAIN:
            return False
        return np.ndarray not in kinds or not any(type(each) is np.ndarray and each.dtype.kind == "O" for each in items)

    def _enter(self, home: Any, label: str, owner: int) -> None:
        """Note that names may mean what is in a module, or in a class."""
        if id(home) in self._homes:
            return
        self._objects[id(home)] = home
        is_module = isinstance(home, ModuleType)
        for each, name in [(home, label)] if is_module else [(cls, cls.__name__) for cls in home.__mro__]:
            if id(each) not in self._homes:
                self._homes[id(each)] = name, owner
                if not is_closed(root_of(each)):
                    self._scopes.enter(each)

    def _look_by_name(self) -> None:
        fresh = True
        while fresh or self._functions:
            while self._functions:
                function = self._functions.pop()
                if not is_closed(str(function.__globals__.get("__name__", "")).partition(".")[0]):
                    self._meet(function)
                self._look(self._reached)
            fresh = False
            for home, key, value in self._scopes.fresh():
                label, owner = self._homes[id(home)]
                more = "" if isinstance(home, ModuleType) else ", an attribute of a class"
                self._reach(value, f"`{label}.{key}`{more}", key, owner)
                fresh = True
            self._look(self._reached)

    def _meet(self, function: FunctionType) -> None:
        """Look up what a function names: its words too, unless no function that was met looks things up by words."""
        code = function.__code__
        if self._worded is not None:
            self._worded.append(function)
            if not bytecode.looks_up_words(code):
                self._look_up(function, bytecode.globals_of(code), bytecode.used_in(code))
                return
        for one in self._worded or (function,):
            self._look_up(one, bytecode.names_of(one.__code__), bytecode.names_of(one.__code__))
        self._worded = None

    def _look_up(self, function: FunctionType, own: Sequence[str], others: Sequence[str]) -> None:
        """Reach the globals of a function that have some names, and hear of names of what is in modules and classes."""
        self._scopes.meet(others)
        for name, value in FUNCTION.named(function, own):
            self._reach(value, f"the global `{name}`", name, id(function))

    def _reach(self, value: object, way: str, label: str, owner: int) -> None:
        if type(value) in _PLAIN and not (type(value) is np.ndarray and value.dtype.kind == "O"):
            return
        if kind_of(type(value)) in HOMES:
            self._enter(value, label, owner)
            return
        self._entries.setdefault(id(value), (way, owner))
        if id(value) not in self._objects:
            self._objects[id(value)] = value
            self._stack.append(value)

    def reaches(self, obj: object) -> bool:
        """Return whether a function carries an object, or names it."""
        return id(obj) in self._objects

    def carriers(self) -> set[int]:
        """Return the ids of all objects that lead to a traced value."""
        traced = {*self.boxes, *self._reached}
        found, n_found = leading_to(traced, self._owners), 0
        while len(found) > n_found:
            n_found = len(found)
            found.update([memory for key in found for memory in self._memories(key)])
            if len(found) > n_found:
                found |= leading_to(found, self._owners)
        return found - traced

    def _memories(self, key: int) -> list[int]:
        """Return the weak dictionaries of a function's closure: what it has remembered is of the function as it was."""
        function = self._objects.get(key)
        cells = (function.__closure__ or ()) if type(function) is FunctionType else ()
        held = [contents for cell in cells for contents in contents_of(cell)]
        return [id(contents) for contents in held if type(contents) is weakref.WeakKeyDictionary]

    def ways(self) -> list[tuple[Any, str]]:
        """Return each traced value, and how the function gets at it, in the words of whoever wrote it."""
        found = self.boxes | self._reached
        return [(found[key], self._entries[key][0] if key in self._entries else self._name(key)) for key in found]

    def refuse_names(self, carriers: set[int]) -> None:
        """Refuse what is reached by a name and leads to a traced value."""
        for key, (way, owner) in self._entries.items() if carriers or self._reached or self.boxes else ():
            if key in carriers or key in self.boxes or key in self._reached:
                raise ClosureError(
                    f"A value being differentiated reaches {self._name(owner)} through {way}. Chunks can't take it "
                    "from there. Pass it to the function as a shared argument."
                )

    def refuse_ids(self, carriers: set[int]) -> None:
        """Refuse containers that know by its id what will be another object in a chunk."""
        for keys in self._keyed:
            for key in carriers.intersection(key for key in keys if type(key) is int):
                raise ClosureError(
                    f"{self._name(key)} holds a value being differentiated, so every chunk gets a copy of it; but "
                    "something that the function reaches knows it by its `id`, which the copy has not. Pass the value "
                    "to the function as a shared argument, or look the object up by a name."
                )

    def refuse_weak(self, carriers: set[int]) -> None:
        """Refuse weak references to what nobody else would hold: a copy of it would be gone at once."""
        for key in carriers:
            if type(self._objects[key]) is weakref.ref:
                target = id(self._objects[key]())
                if all(type(self._objects[owner]) in _WEAK for owner in self._owners.get(target, ())):
                    raise ClosureError(
                        f"{self._name(target)} holds a value being differentiated, and the function has only a weak "
                        "reference to it. Pass the value to the function as a shared argument."
                    )

    def _name(self, key: int) -> str:
        """Return how the user would call an object, by the way it was found."""
        owner, index = self._links.get(key, (0, 0))
        if not owner:
            obj = self._objects[key]
            return f"`{getattr(obj, '__qualname__', None) or type(obj).__qualname__}`"
        above = self._objects[owner]
        label = kind_of(type(above)).label(above, index)
        return self._name(owner).join(label.rpartition("{}")[::2])


def leading_to(keys: Iterable[int], owners: Mapping[int, Sequence[int]]) -> set[int]:
    """Return the ids of all that leads to some parts, by the ids of what has each part."""
    found: set[int] = set()
    fresh = list(keys)
    while fresh:
        above = [owner for owner in owners.get(fresh.pop(), ()) if owner not in found]
        found.update(above)
        fresh.extend(above)
    return found


def led_to_by(keys: Iterable[int], owners: Mapping[int, Sequence[int]]) -> set[int]:
    """Return the ids of all that some parts lead to."""
    below = dict[int, list[int]]()
    for key, above in owners.items():
        for owner in above:
            below.setdefault(owner, []).append(key)
    return leading_to(keys, below)


_WEAK = (weakref.ref, weakref.WeakKeyDictionary)


def runs_unnamed(traced: Container[type], cls: type, key: str, value: object, known: Container[str]) -> bool:
    """Return whether what is in a class counts though no code names it."""
    if type(value) in traced:
        return True
    if not (key.startswith("__") and key.endswith("__") and _is_code(value)):
        return False
    return key not in _MAKERS or cls.__name__ in known


def _is_code(value: object) -> bool:
    return kind_of(type(value)) in (DESCRIPTOR, CACHED) or type(value) is FunctionType
