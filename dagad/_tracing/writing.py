"""What functions may write into, by their bytecode: arrays under names of their own, or any that they get hold of.

``b[...] = x`` and ``b += x`` write into what `b` is; ``out=``, methods such as ``b.fill(x)``, and what has no name, as
in ``self.b[...] = x``, into anything. So do functions and methods of the user's, of names that are used, which write
into their arguments. What a library writes, and a function that is an argument, are not seen.

State: `_WRITES`, by the `id` of the code of a function, for as long as there is such a function.
"""

from __future__ import annotations

import dis
import functools
import weakref
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from dagad._types import Array
from dagad._values.homes import is_closed, is_installed, root_of

# Methods and functions of numpy's that write into an array they are given.
_METHODS = frozenset(
    """
    at byteswap copyto fill fill_diagonal itemset partition place put put_along_axis putmask resize setfield shuffle
    sort __setitem__
    """.split()
)
_STORES = {"STORE_SUBSCR": 1, "STORE_SLICE": 2}  # and how many values stand on the stack above the array
_LOADS = frozenset({"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME"})
_SHUFFLES = frozenset({"COPY", "SWAP"})


class Writes(NamedTuple):
    """What a function may write into."""

    names: frozenset[str]  # what is under these
    anything: bool
    begins: bool = False  # whether it is where a trace begins: what runs around it has nothing to do with the trace


_NOTHING = Writes(frozenset(), False)
_WRITES: dict[int, tuple[weakref.ref[CodeType], Writes]] = {}


def is_written_meanwhile(array: Array, frame: FrameType | None) -> bool:
    """Return whether a function that runs, and has begun since the trace did, may write into an array."""
    while frame is not None:
        known = _WRITES.get(id(frame.f_code))
        writes = _learnt(frame) if known is None else known[1]
        if writes.anything:
            return True
        if writes.begins:
            return False
        if writes.names and _is_among(array, writes.names, frame):
            return True
        frame = frame.f_back
    return False


def _is_among(array: Array, names: frozenset[str], frame: FrameType) -> bool:
    local = frame.f_locals
    named = (local[name] if name in local else frame.f_globals.get(name) for name in names)
    return any(isinstance(each, np.ndarray) and np.may_share_memory(each, array) for each in named)


def _learnt(frame: FrameType) -> Writes:
    code, scope = frame.f_code, frame.f_globals
    home = str(scope.get("__name__", "")).partition(".")[0]
    if home == "dagad":
        found = _NOTHING._replace(begins=code.co_name == "traced")
    else:
        found = _NOTHING if is_closed(home) else _writes_of(code, scope, set())
    key = id(code)
    _WRITES[key] = weakref.ref(code, functools.partial(_forget, key)), found
    return found


def _forget(key: int, reference: weakref.ref[CodeType]) -> None:
    del reference
    _WRITES.pop(key, None)


def _writes_of(code: CodeType, scope: Mapping[str, Any], seen: set[CodeType]) -> Writes:
    seen.add(code)
    targets = list(_targets(code))
    anything = None in targets or not _METHODS.isdisjoint(code.co_names) or any(map(_names_out, code.co_consts))
    inner = [(each, scope) for each in code.co_consts if isinstance(each, CodeType)]
    for each, names in [*inner, *_called(code, scope)]:
        if anything:
            break
        if each not in seen:
            writes = _writes_of(each, names, seen)
            anything = writes.anything or not writes.names.isdisjoint(_brought_in(each))
    return Writes(frozenset(name for name in targets if name is not None), anything)


def _brought_in(code: CodeType) -> set[str]:
    """Return the names under which a function may have arrays of others: arguments, variables around it, globals."""
    n_arguments = code.co_argcount + code.co_kwonlyargcount
    return {*code.co_varnames[:n_arguments], *code.co_freevars, *code.co_names}


def _targets(code: CodeType) -> Iterator[str | None]:
    """Yield the names of what the steps of a function write into; None where it has no name."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "CACHE"]
    for place, step in enumerate(steps):
        if step.opname in _STORES:
            yield _loaded(steps[:place], _STORES[step.opname])
        elif step.opname == "BINARY_OP" and step.argrepr.endswith("="):
            after = steps[place + 1]
            if after.opname.startswith("STORE_") and after.opname not in _STORES:
                yield after.argval if isinstance(after.argval, str) else None


def _loaded(steps: list[dis.Instruction], above: int) -> str | None:
    """Return the name of what was loaded before the last so many values on the stack; None if it was not by name."""
    while steps and above > 0:
        step = steps.pop()
        if step.opname in _SHUFFLES:  # of `b[i] += x`
            return None
        above -= dis.stack_effect(step.opcode, step.arg)
    return steps[-1].argval if steps and not above and steps[-1].opname in _LOADS else None


def _names_out(constant: object) -> bool:
    """Return whether a constant names the keyword `out`: those of a call are a tuple."""
    return constant == "out" or (isinstance(constant, tuple) and "out" in constant)


def _called(code: CodeType, scope: Mapping[str, Any]) -> Iterator[tuple[CodeType, Mapping[str, Any]]]:
    """Yield the code of the user's functions and methods that have names used here, and where they look names up."""
    for name in code.co_names:
        for home in _homes(scope):
            named = getattr(home.get(name), "__wrapped__", home.get(name))
            if isinstance(named, FunctionType) and not is_closed(root_of(named)):
                yield named.__code__, named.__globals__


def _homes(scope: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a scope, the user's modules and classes in it, and the classes in those modules."""
    yield scope
    for each in list(scope.values()):
        if isinstance(each, ModuleType | type) and not is_closed(root_of(each)) and not is_installed(_module(each)):
            yield vars(each)
            if isinstance(each, ModuleType):
                yield from (vars(one) for one in list(vars(each).values()) if isinstance(one, type))


def _module(thing: ModuleType | type) -> str:
    return thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
