"""The arrays that a chunk function carries -> laid out as they would arrive in another process, or as they are now."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import numpy as np

from dagad._pytrees.containers import kind_of
from dagad._pytrees.templates import Template
from dagad._pytrees.walk import is_wrapper

_LOOKED_INTO = frozenset({FunctionType, CellType, functools.partial})


def with_arrays(fun: Any, take: Callable[[Any], Any]) -> Any:
    """Return a function with `take(array)` for the arrays in its closures, defaults and partials, and in its helpers'.

    It is the function itself where `take` changes none of them. Functions that share a variable go on sharing it.
    """
    bare = fun.fun if is_wrapper(type(fun)) else fun
    if type(bare) is FunctionType and not (bare.__closure__ or bare.__defaults__ or bare.__kwdefaults__):
        return fun  # nearly always
    taken: dict[int, Any] = {}
    owners: dict[int, list[int]] = {}
    stack, seen = [fun] if _is_looked_into(type(fun)) else [], {id(fun)}
    while stack:
        obj = stack.pop()
        kind = kind_of(type(obj))
        for part in (*kind.first(obj), *kind.rest(obj)):
            cls, key = type(part), id(part)
            # A decorated helper stays as it is: its identity may count, as that of autograd's primitives does.
            if cls is not np.ndarray and (not _is_looked_into(cls) or (cls is FunctionType and part.__dict__)):
                continue
            owners.setdefault(key, []).append(id(obj))
            if cls is np.ndarray and key not in taken:
                taken[key] = part, take(part)
            elif cls is not np.ndarray and key not in seen:
                seen.add(key)
                stack.append(part)
    changed = {key: new for key, (old, new) in taken.items() if new is not old}
    return Template.of(fun, tuple(changed), _above(changed, owners))(list(changed.values())) if changed else fun


def _is_looked_into(kind: type) -> bool:
    return kind in _LOOKED_INTO or is_wrapper(kind)


def _above(keys: dict[int, Any], owners: dict[int, list[int]]) -> set[int]:
    """Return the ids of all that leads to some parts."""
    found: set[int] = set()
    fresh = list(keys)
    while fresh:
        above = [owner for owner in owners.get(fresh.pop(), ()) if owner not in found]
        found.update(above)
        fresh.extend(above)
    return found
