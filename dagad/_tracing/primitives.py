"""Primitives that travel by value, with their rules: each exists once in a process, and no longer than it is used.

Rules are looked up in autograd's tables by the primitive itself, so unpickling one twice has to give one object. These
tables hold what is in them for ever, and a rule mentions its primitive: what arrives is therefore entered under a key
that only equals the primitive, with a rule that only knows where the true one is.

State: `_PRIMITIVES`, the primitives that have been sent or have arrived and are in use, by the token that they travel
under; and their entries in autograd's tables, which go with them.
"""

from __future__ import annotations

import sys
import threading
import uuid
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

import autograd.numpy as anp
from autograd.extend import primitive as as_primitive

from dagad._tracing.private import primitive_jvps, primitive_vjps, trace_primitives_map
from dagad._types import Function
from dagad._values import shipping

_PRIMITIVES: MutableMapping[str, Any] = weakref.WeakValueDictionary()
_LOCK = threading.Lock()

Rules = tuple[Callable[..., Any], Any, Any]  # what it computes, its rule in reverse mode, in forward mode; or None


def _reduce(primitive: Function) -> tuple[Any, ...]:
    """Return how to pickle a primitive: by reference where every process finds it, else with its rules."""
    home = _home_of(primitive)
    if home is not None:
        return _import_primitive, home
    token = primitive.__dict__.setdefault("_dagad_token", uuid.uuid4().hex)
    with _LOCK:
        _PRIMITIVES.setdefault(token, primitive)
    # The rules travel as state, after the object itself is known: they usually mention the primitive.
    return _empty_primitive, (token, primitive.__name__), rules_of(primitive), None, None, _fill_primitive


def rules_of(primitive: Any) -> Rules:
    """Return what a primitive computes and its rules, wherever it comes from."""
    fun, vjp, jvp = primitive.fun, primitive_vjps.get(primitive), primitive_jvps.get(primitive)
    cell = primitive.__dict__.get("_dagad_cell")
    if cell is None:
        return fun, vjp, jvp
    # Whoever has this primitive here may have given it a rule of his own.
    return cell.fun, cell.vjp if vjp is cell.given["vjp"] else vjp, cell.jvp if jvp is cell.given["jvp"] else jvp


def _home_of(primitive: Any) -> tuple[str, str] | None:
    """Return module and name under which every process finds the primitive, if there is one."""
    name = getattr(primitive, "__name__", "")
    own = getattr(primitive.fun, "__module__", None) or ""
    for module in [own, *(m for m in list(sys.modules) if m.startswith("autograd."))]:
        if module not in ("", "__main__") and getattr(sys.modules.get(module), name, None) is primitive:
            return module, name
    return None


def _import_primitive(module: str, name: str) -> Any:
    __import__(module)
    return getattr(sys.modules[module], name)


class _Cell:
    """What an arrived primitive consists of; the primitive holds it. `given` is what autograd's tables got of it."""

    fun: Callable[..., Any]
    vjp: Any = None
    jvp: Any = None
    key: _Key

    def __init__(self) -> None:
        self.given: dict[str, Any] = {"vjp": None, "jvp": None}


class _Key:
    """Equals a primitive, without keeping it alive."""

    __slots__ = ("_hash", "_primitive")

    def __init__(self, primitive: Function) -> None:
        self._hash, self._primitive = hash(primitive), weakref.ref(primitive)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return other is self or (other is not None and other is self._primitive())


class _Rule:
    """Calls one of the rules in a cell, without keeping the cell alive."""

    __slots__ = ("_cell", "_kind")

    def __init__(self, cell: _Cell, kind: str) -> None:
        self._cell, self._kind = weakref.ref(cell), kind

    def __call__(self, *args: Any) -> Any:
        return getattr(self._cell(), self._kind)(*args)


_TABLES = {"vjp": primitive_vjps, "jvp": primitive_jvps}


def _empty_primitive(token: str, name: str) -> Any:
    with _LOCK:
        arrived = _PRIMITIVES.get(token)
        if arrived is None:
            cell = _Cell()

            def raw(*args: Any, **kwargs: Any) -> Any:
                return cell.fun(*args, **kwargs)

            raw.__name__ = name
            arrived = as_primitive(raw)
            # autograd lists every primitive by what it wraps, for numpy functions that meet a traced value; ours is
            # no numpy function, and would stay for ever.
            trace_primitives_map.pop(raw, None)
            arrived.__dict__.update(_dagad_token=token, _dagad_cell=cell)
            cell.key = _Key(arrived)
            weakref.finalize(arrived, _forget, cell.key).atexit = False
            _PRIMITIVES[token] = arrived
        return arrived


def _fill_primitive(primitive: Function, rules: Rules) -> None:
    cell = primitive.__dict__.get("_dagad_cell")
    if cell is None:  # it came home: this is the process that defined it
        return
    cell.fun, cell.vjp, cell.jvp = rules
    for kind, table in _TABLES.items():
        before, cell.given[kind] = cell.given[kind], None
        if getattr(cell, kind) is not None:
            table[cell.key] = cell.given[kind] = _Rule(cell, kind)
        elif before is not None and table.get(cell.key) is before:
            del table[cell.key]


def _forget(key: _Key) -> None:
    for table in _TABLES.values():
        table.pop(key, None)


shipping.register(shipping.Primitives(anp.sin.__code__, _reduce, rules_of))  # the code of every primitive
