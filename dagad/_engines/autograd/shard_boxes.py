"""What autograd has to know of Shards for them to be differentiated in: told when the first of them is made."""

from __future__ import annotations

import functools
from typing import Any

from autograd.extend import Box, VSpace

from dagad._pytrees import pytree
from dagad._pytrees.shipping import opened
from dagad._sources.rows import Rows


class ShardsBox(Box):  # type: ignore[misc]  # autograd has no types
    """Shards that are being differentiated in. Only reductions know what to do with them."""


class ShardsSpace(VSpace):  # type: ignore[misc]  # autograd has no types
    """What autograd asks of a type whose cotangents it adds."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def _add(self, x: Any, y: Any) -> Any:
        return x.mapped(added_rows, y)

    _mut_add = _add

    def zeros(self) -> Any:
        """Return zeros of the same cut."""
        return self._value.zeros()


@functools.cache  # to import dagad adds nothing to autograd's tables
def tell_autograd(shards: type) -> None:
    """Let autograd box Shards, and add them."""
    ShardsBox.register(shards)
    ShardsSpace.register(shards)


def added_rows(one: Any, other: Any) -> Rows:
    """Add the rows of two gradients."""
    trees = [pytree.flatten(opened(rows).merge(iter(()))) for rows in (one, other)]
    return Rows.of(pytree.unflatten(trees[0][1], [a + b for a, b in zip(trees[0][0], trees[1][0], strict=True)]))
