"""Patterns of `match`: to these, numpy's arrays are sequences from numpy 2.5 on, and so traced ones have to be.

Whether ``case [a, b]`` may fit is a flag of the class, and how many entries there are is asked afterwards. A traced
number is of the same class as a traced array; a number of numpy's fits no such pattern.
"""

from __future__ import annotations

import abc
from types import FrameType
from typing import Any

import numpy as np

from dagad._types import Shape
from dagad._values.bytecode import steps

# Gives Python's flag of sequences to classes that are registered with it, without being what they inherit from.
_SEQUENCES: Any = abc.ABCMeta("_SEQUENCES", (), {"__abc_tpflags__": 1 << 5})


def _are_sequences(array: object) -> bool:
    match array:
        case [_]:
            return True
    return False


def fit_as_arrays_do(kind: type) -> None:
    """Have a class of traced arrays fit patterns of sequences if numpy's arrays do."""
    if _are_sequences(np.zeros(1)):
        _SEQUENCES.register(kind)


def length(shape: Shape, frame: FrameType) -> int:
    """Return how many entries there are along the first axis, to what asks in this frame.

    Where that is a pattern, and this is a number, the answer is a length that the pattern does not have.
    """
    if shape:
        return int(shape[0])
    code = list(steps(frame.f_code))
    asking = [at for at, each in enumerate(code) if each.offset == frame.f_lasti and each.opname == "GET_LEN"]
    if not asking:
        raise TypeError("len() of unsized object")
    wanted, comparison = code[asking[0] + 1 : asking[0] + 3]  # `== n` or, beside ``*rest``, `>= n` with an n above 0
    return int(wanted.argval) + 1 if comparison.argrepr.startswith("==") else 0
