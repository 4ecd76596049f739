"""Whether a function may write into arrays, by its bytecode, and that of the functions inside of it.

``b[...] = x``, ``b += x``, ``out=b`` and methods such as ``b.fill(x)`` write. What is surely no array does not count: a
dict or list that was made there, a word as a key, a number that is added to.

State: `_WRITES`, by the `id` of the code of a function, for as long as there is such a function.
"""

from __future__ import annotations

import dis
import functools
import itertools
import weakref
from types import CodeType, FrameType
from typing import Any

from dagad._values.bytecode import STORES, WRITE, names_out, steps as steps_of
from dagad._values.homes import is_closed

_LOADS = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_NAME"})
_MAKE_CONTAINERS = frozenset({"BUILD_MAP", "BUILD_LIST", "BUILD_CONST_KEY_MAP", "DICT_UPDATE", "LIST_EXTEND"})
_CONSTANTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
WRITES, DOES_NOT, BEGINS = 1, 0, -1  # the last: here a trace begins
_WRITES: dict[int, tuple[weakref.ref[CodeType], int]] = {}


def is_written_meanwhile(frame: FrameType | None) -> bool:
    """Return whether a function that runs may write into arrays, if it has begun since a trace did."""
    writes = False
    while frame is not None:
        known = _WRITES.get(id(frame.f_code))
        kind = _learnt(frame) if known is None else known[1]
        if kind == WRITES:
            writes = True
        elif kind == BEGINS and writes:
            return True
        frame = frame.f_back
    return False


def _learnt(frame: FrameType) -> int:
    code, home = frame.f_code, str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if home == "dagad":
        found = BEGINS if code.co_name == "traced" else DOES_NOT
    else:
        found = DOES_NOT if is_closed(home) else int(_writes(code))
    key = id(code)
    _WRITES[key] = weakref.ref(code, functools.partial(_forget, key)), found
    return found


def _forget(key: int, reference: weakref.ref[CodeType]) -> None:
    del reference
    _WRITES.pop(key, None)


def _writes(code: CodeType) -> bool:
    if not WRITE.isdisjoint(code.co_names) or any(map(names_out, code.co_consts)):
        return True
    steps = list(steps_of(code))
    numbers, containers = _names_of_others(steps)
    for position, step in enumerate(steps):
        if step.opname in STORES:
            index, name = _stored(steps[:position], STORES[step.opname])
            if name not in containers and not isinstance(index, str):
                return True
        elif step.opname == "BINARY_OP" and step.argrepr.endswith("="):
            name = _bound(steps[position + 1])
            if name is not None and name not in numbers:
                return True
    return any(isinstance(each, CodeType) and _writes(each) for each in code.co_consts)


def _names_of_others(steps: list[dis.Instruction]) -> tuple[set[Any], set[Any]]:
    """Return the names of what begins as a number, and of what is always a dict or a list."""
    numbers, containers, unknown = set[Any](), set[Any](), set[Any]()
    for before, step in itertools.pairwise(steps):
        name = step.argval if step.opname == "STORE_DEREF" else _bound(step)
        if name is not None:
            if before.opname in _CONSTANTS and isinstance(before.argval, int | float | complex):
                numbers.add(name)
            elif before.opname in _MAKE_CONTAINERS:
                containers.add(name)
            else:
                unknown.add(name)
    return numbers, containers - unknown


def _bound(step: dis.Instruction) -> Any:
    """Return the name of the local variable that a step binds."""
    return step.argval if step.opname.startswith(("STORE_FAST", "STORE_NAME")) else None


def _stored(steps: list[dis.Instruction], above: int) -> tuple[Any, Any]:
    """Return a constant index and the name of what entries are assigned of; None for what is neither."""
    copies = [at for at, step in enumerate(steps) if step.opname == "COPY" and step.arg == 2]
    if steps[-1].opname == "SWAP" and len(copies) > 1:  # of `b[i] += x`
        steps = steps[: copies[-2]]
    index = steps[-1].argval if steps[-1].opname == "LOAD_CONST" else None
    while steps and above > 0:
        step = steps.pop()
        above -= dis.stack_effect(step.opcode, step.arg)
    return index, steps[-1].argval if steps and not above and steps[-1].opname in _LOADS else None
