"""Sums of what arrives at a value on a tape: in place, where the sum is the tape's own and has room for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from dagad._tracing.private import add_outgrads as add_in_place
from dagad._types import Cotangent
from dagad._values import pytree


def add_outgrads(before: tuple[Any, bool] | None, part: Cotangent) -> tuple[Any, bool]:
    """Add a part to a cotangent: in place if that is ours, and has room for it.

    Of a complex value real parts may arrive first, by `np.real` or from an eigenvalue, and a complex one later.
    """
    if before is not None and before[1] and not _has_room(before[0], part):
        before = before[0], False
    found: tuple[Any, bool] = add_in_place(before, part)
    return found


def _has_room(held: Cotangent, part: Cotangent) -> bool:
    """Return whether a part may be added to a cotangent in place, entry by entry of lists and the like."""
    if type(held) is np.ndarray and type(part) is np.ndarray and held.dtype == part.dtype:  # nearly always
        return True
    held, part = pytree.plain(held), pytree.plain(part)
    if isinstance(held, list | tuple | dict):
        entries, others = pytree.flatten(held)[0], pytree.flatten(part)[0]  # of one entry alone: it is put among zeros
        return type(held) is not type(part) or all(map(_has_room, entries, others))
    own, other = getattr(held, "dtype", None), getattr(getattr(part, "vs", part), "dtype", None)
    return own is None or other is None or np.can_cast(other, own, "same_kind")
