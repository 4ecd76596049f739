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

from dagad._types import Value
from dagad._values.pytree import TRACED

OF_ARRAYS: frozenset[Any] = frozenset({np.array_equal, np.array_equiv, np.allclose, np.isclose})
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
    return found


def count() -> int:
    """Return how many comparisons have found a value being differentiated equal to another, in this thread."""
    return _SEEN.count
