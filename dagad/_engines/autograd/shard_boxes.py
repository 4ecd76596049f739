"""What autograd has to know of Shards for them to be differentiated in: told when the first of them is made."""

from __future__ import annotations

import functools
from typing import Any

from autograd.extend import Box, VSpace


class ShardsBox(Box):  # type: ignore[misc]  # autograd has no types
    """Shards that are being differentiated in. Only reductions know what to do with them."""


class ShardsSpace(VSpace):  # type: ignore[misc]  # autograd has no types
    """What autograd asks of a type whose cotangents it adds."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def _add(self, x: Any, y: Any) -> Any:
        return x.added(y)

    _mut_add = _add

    def zeros(self) -> Any:
        """Return zeros of the same cut."""
        return self._value.zeros()


@functools.cache  # to import dagad adds nothing to autograd's tables
def tell_autograd(shards: type) -> None:
    """Let autograd box Shards, and add them."""
    ShardsBox.register(shards)
    ShardsSpace.register(shards)
