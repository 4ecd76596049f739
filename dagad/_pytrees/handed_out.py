"""Gradients on their way out -> the caller's own: arrays that can be written to, and that nothing else holds."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np


def handed_out(parts: list[Any]) -> list[Any]:
    """Return the same list with arrays that nobody else holds, and that can be written to.

    What only this list holds is made writable where it lies. Of anything else there is a copy: of what a pullback keeps
    for its next call, of the cotangent that came in, of the user's data that a rule returned, of an array that stands
    in two places. The list has to be the only one: whoever calls this keeps nothing that is in it.
    """
    alone = np.empty(0)
    holders = sys.getrefcount(alone)  # of an array that a local variable holds
    for place in range(len(parts)):
        if type(parts[place]) is not np.ndarray:
            continue
        part, parts[place] = parts[place], None
        if part.base is not None or sys.getrefcount(part) > holders:
            part = part.copy("K")
        elif not part.flags.writeable:
            part.flags.writeable = True
        parts[place] = part
    return parts


def writable(part: Any) -> Any:
    """Return an array that can be written to: a copy of one that can't."""
    return part if type(part) is not np.ndarray or part.flags.writeable else part.copy("K")
