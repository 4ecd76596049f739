"""Texts of traced values: digits to be printed, which are the key of what is remembered for that value alone."""

from __future__ import annotations

from typing import Any, NoReturn

from dagad._errors import NotDifferentiableError
from dagad._tracing import refusals
from dagad._types import AnyNode


class Text(str):
    """The digits of a traced value, as one asks for them by `f"{x:.3f}"`.

    It equals the same digits, but is the key of nothing else in a dict: what a function remembers for another value
    that is equal, or for plain numbers, has another derivative. And no number is read from it, as that would have none.
    """

    __slots__ = ("_node",)

    def __new__(cls, digits: str, node: AnyNode) -> Text:
        made = super().__new__(cls, digits)
        made._node = node
        return made

    _node: Any

    def __eq__(self, other: object) -> bool:
        is_same = not isinstance(other, Text) or other._node is self._node
        return is_same and str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((str.__hash__(self), id(self._node)))

    def __float__(self) -> NoReturn:
        raise NotDifferentiableError(refusals.of_number())

    __int__ = __float__

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)
