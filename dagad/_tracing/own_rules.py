"""Primitives of autograd's that users gave a rule of their own, called with what another library follows.

A primitive called with an array of jax's or torch's runs its code, and that library differentiates the code: the rule
would count in no derivative. So it is refused there, where a derivative is asked for.

State: `REFUSERS`, by class, what refuses to be differentiated; engines put the classes of their arrays there when they
are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import FrameType, FunctionType
from typing import Any

from autograd.extend import JVPNode, VJPNode

from dagad._tracing.primitives import rules_of
from dagad._tracing.private import notrace_primitives
from dagad._types import Function, Value
from dagad._values.contents import contents_of
from dagad._values.reach import is_rule
from dagad._words import name_of

Refuser = Callable[[Value, str, str], None]
REFUSERS: dict[type, Refuser] = {}
_LIBRARIES = frozenset({"autograd", "dagad", "numpy", "scipy"})  # whose rules are derivatives of the code


def refuse_users_rule(frame: FrameType, value: Value) -> None:
    """Have a value refuse derivatives, if the frame is that of a primitive of autograd's with a rule of the user's."""
    primitive = frame.f_locals.get("f_wrapped")
    if primitive is not None and has_own_rule(primitive):
        REFUSERS[type(value)](value, f"`{name_of(primitive)}`", "has a rule of its own, by `autograd.extend`")


def has_own_rule(primitive: Function) -> bool:
    """Return whether a primitive has rules that are not a library's: these may say anything."""
    fun, *rules = rules_of(primitive)
    if any(primitive in notrace_primitives[kind] for kind in (VJPNode, JVPNode)):
        return _is_users(fun)
    return any(map(_is_users, _functions_in(rules)))


def _is_users(part: object) -> bool:
    return str(getattr(part, "__module__", None)).partition(".")[0] not in _LIBRARIES


def _functions_in(rules: Iterable[Any]) -> Iterator[Any]:
    """Yield what computes rules: autograd keeps those of single arguments in closures of its own."""
    for part in rules:
        if isinstance(part, dict):
            yield from _functions_in(part.values())
        elif type(part) is FunctionType and part.__module__ == "autograd.core":
            yield from _functions_in(contents for cell in part.__closure__ or () for contents in contents_of(cell))
        elif callable(part) and not is_rule(part):  # that is what the rules are of
            yield part


def of_own_rule(line: str, what: str, how: str, library: str) -> str:
    """Tell that a derivative was asked for of what has a rule of its own, from a library that does not know it."""
    return (
        f"{line} calls {what}, which {how}, and its derivative is asked for where {library} differentiates: {library} "
        "follows the code instead, whose derivative may be another one, zero for a search. Leave out `engine=`, and "
        "the setting `dagad.engine`, and write the function with numpy: autograd, the default engine, goes by the rule."
    )
