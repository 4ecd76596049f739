"""Whether a value being differentiated was found equal to another: who asks may be about to take what he remembers.

A function that keeps its last argument, and what it computed from that, finds a traced value equal to the plain one
that it was called with before. What it takes then is plain too, and no derivative goes through it. Nobody can tell from
the comparison alone, as in `if power == 0.0:`. So they are counted, and where there was one the derivative is
looked at.

State: `_SEEN`, how many there were in this thread.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from dagad._tracing.recalled import suspect
from dagad._types import Args, Function, Kwargs, Value
from dagad._values.pytree import TRACED

OF_ARRAYS: frozenset[Any] = frozenset({np.array_equal, np.array_equiv, np.allclose, np.isclose})
_ROUNDED: frozenset[Any] = frozenset({np.round, np.around})
_TEXTS: frozenset[Any] = frozenset({np.array2string, np.array_repr, np.array_str})
OF_KEYS = OF_ARRAYS | _ROUNDED | _TEXTS
OF_ENTRIES: dict[Any, bool] = {np.equal: True, np.not_equal: False}  # whether they say so of what is equal


class _Seen(threading.local):
    count = 0


_SEEN = _Seen()


def noted(found: Value, operands: Sequence[Any], of_equal: bool = True) -> Any:
    """Return what a comparison has found, and count it where all was equal; values of one trace are one's own."""
    if not isinstance(found, np.ndarray | np.bool_ | bool):  # what is lazy is not computed to be looked at
        return found
    if np.all(found) if of_equal else not np.any(found):
        if len({each._trace if type(each) in TRACED else None for each in operands}) > 1:
            _SEEN.count += 1
            if np.size(found):
                suspect(operands)
    return found


def noted_as_key(func: Function, found: Value, args: Args, kwargs: Kwargs) -> Any:
    """Return what a function of numpy has found that tells whether a value is known, and note that it was asked."""
    if func in OF_ARRAYS:
        return noted(found, args[:2])
    decimals = args[1] if len(args) > 1 else kwargs.get("decimals", 0)
    if func in _TEXTS or (type(decimals) is int and decimals > 0):  # who makes whole numbers rather counts by them
        suspect(args[:1], may_tell=True)
    return found


def count() -> int:
    """Return how many comparisons have found a value being differentiated equal to another, in this thread."""
    return _SEEN.count
