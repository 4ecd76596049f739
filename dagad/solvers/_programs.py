"""Programs of recorded right-hand sides, and those that are kept: for other parameters they have other constants.

State: `_kept`, by what is computed, the programs that were right, some of `_MOST` right-hand sides at most. A loop that
differentiates the same equation at each step records it once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import autograd.numpy as anp
import numpy as np

from dagad._tracing.private import numpy_wrapper
from dagad._tracing.stacked_tangents import has_stock_rule
from dagad._values.reach import SMALL
from dagad.solvers._recorded_rules import NAMES, OF_ONE, OF_TWO, POWER
from dagad.solvers._recording import Number, Recording

_MOST, MOST_RECORDS = 64, 16  # right-hand sides; programs of one: what decides otherwise each time is not worth it
Slopes = Callable[..., Any]  # of a time, and of numbers: states, and their tangents in all directions


@functools.lru_cache(maxsize=64)
def _compiled(source: str) -> Callable[..., Any]:
    """Return what makes slopes of constants: subjects whose right-hand side is the same share it."""
    names: dict[str, Any] = {**NAMES, "array": np.array}
    exec(compile(source, "<a recorded right-hand side>", "exec"), names)  # nothing but names and operators of ours
    made: Callable[..., Any] = names["make"]
    return made


def maker(recording: Recording, ends: Sequence[Number], names: Sequence[str], count: int) -> Callable[..., Slopes]:
    """Return what makes the slopes of constants: a function of the time, and of the states with their tangents."""
    states, directions = [f"y{index}" for index in range(len(ends))], range(count)
    tangent_names = [f"{state}_{number}" for number in directions for state in states]
    found = [end.term for end in ends]
    tangents = [f"{end.term}_{number}" if end.is_moving else "0.0" for number in directions for end in ends]
    lines = [f"def make({', '.join(names)}):"]
    lines += [f"    {line}" for line, is_value in recording.ahead if is_value or count]
    lines.append(f"    def slopes(t, {', '.join([*states, *tangent_names])}):")
    lines += [f"        {line}" for line, is_value in recording.body if is_value or count]
    lines += [f"        return [{', '.join([*found, *tangents])}]", "    return slopes"]
    return _compiled("\n".join(lines))


class Portable(NamedTuple):
    """A program with parameters and their tangents left open: names of its constants, those that stay, those taken."""

    make: Callable[..., Slopes]
    constants: dict[str, Any]
    taken: dict[str, tuple[int, int]]

    @classmethod
    def of(cls, recording: Recording, make: Callable[..., Slopes]) -> Portable | None:
        """Return what was recorded as such a program; None where it holds of these parameters, or of data, alone."""
        arrays = (each for each in recording.constants.values() if type(each) is np.ndarray)
        if not recording.is_portable or any(array.size > SMALL for array in arrays):  # these have no keys
            return None
        return cls(make, {name: _own(each) for name, each in recording.constants.items()}, dict(recording.taken))

    def at(self, params: Sequence[Any], stacks: Sequence[Any]) -> Slopes:
        """Return the slopes at some parameters, whose tangents are in stacks."""
        constants = dict(self.constants)
        for name, (param, index) in self.taken.items():
            stack = stacks[param]
            constants[name] = float(np.ravel(params[param])[index])
            for number, row in enumerate(stack.reshape(len(stack), -1)):
                constants[f"{name}_{number}"] = float(row[index])
        return self.make(*constants.values())


def _own(constant: Any) -> Any:
    """Return a constant that stays as it is, whoever writes into the user's array."""
    if type(constant) in (list, tuple):
        return type(constant)(map(_own, constant))
    return constant.copy("K") if type(constant) is np.ndarray else constant


_kept: dict[Any, tuple[Portable, ...]] = {}
_RULES = frozenset(
    rule.function for rules in ([*OF_ONE.values(), POWER], *(each for _, each in OF_TWO.values())) for rule in rules
)
_OF_ARRAYS = frozenset({anp.sum, anp.matmul, anp.dot, numpy_wrapper.concatenate_args})


def kept(key: Any) -> tuple[Portable, ...]:
    """Return the programs for what has a key; none where somebody has given an operation another rule since."""
    return _kept.get(key, ()) if key is not None and all(map(has_stock_rule, _RULES | _OF_ARRAYS)) else ()


def keep(key: Any, program: Portable) -> None:
    """Keep a program that was right, under a key."""
    if len(_kept) >= _MOST and key not in _kept:
        _kept.clear()
    others = _kept.get(key, ())
    if len(others) < MOST_RECORDS and all(program.make is not other.make for other in others):
        _kept[key] = (*others, program)
