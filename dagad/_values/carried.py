"""What a function carried at some time, by name: so that it can be said later what of it has changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dagad._errors import ClosureError
from dagad._types import Function
from dagad._values.bytecode import used_in
from dagad._values.digest import States
from dagad._values.homes import is_installed
from dagad._values.kinds import FUNCTION, METHOD, PARTIAL, WRAPPER, kind_of
from dagad._words import name_of


class Carried:
    """What a function carries, noted before and after it ran: what changes while it runs is its own, a counter say."""

    __slots__ = ("_fun", "_kept", "_states")

    def __init__(self, fun: Function) -> None:
        states = States()
        self._fun, self._kept, self._states = fun, states.kept, states_of(fun, states)

    def settle(self) -> Carried:
        """Leave out what has changed by now: the function itself did that."""
        changed = set(self._changed())
        self._states = {name: state for name, state in self._states.items() if name not in changed}
        return self

    def _changed(self) -> Iterator[str]:
        now = states_of(self._fun, States())
        return (name for name, state in self._states.items() if now.get(name) != state)

    def refuse_changes(self) -> None:
        """Raise if anything is not what it was."""
        changed = list(self._changed())
        if changed:
            name = name_of(self._fun)
            raise ClosureError(
                f"A gradient runs `{name}` once more, as its policy says, and what `{name}` uses is not what it was at "
                f"the value: {', '.join(changed)}. Pass what changes as a shared argument, which is kept as it was, or "
                "leave out `policy=`."
            )


_LOOKED_INTO = frozenset({FUNCTION, PARTIAL, METHOD, WRAPPER})


def states_of(fun: Function, states: States) -> dict[str, list[str]]:
    """Return the states of all that a function carries, by what users would call it."""
    found: dict[str, list[str]] = {}
    for name, part, words in parts_of(fun):
        found.setdefault(name, []).append(states.of(part, words))
    return found | {f"`{name}`": [state] for name, state in states.of_modules()}


def parts_of(fun: Function) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Yield what users would call each part, the part, and the names that the function knows."""
    kind = kind_of(type(fun))
    if kind not in _LOOKED_INTO:
        yield "the object that is called", fun, ()
    elif kind is not FUNCTION or not is_installed(fun.__module__):
        used = used_in(fun.__code__) if kind is FUNCTION else ()
        for index, part in enumerate(kind.parts(fun)):
            label = kind.label(fun, index)
            if label == "{}" and kind is not FUNCTION:  # what it is made of is called as it is
                yield from parts_of(part)
            else:
                yield label.replace(" in {}", " in its closure").replace("{}", f"`{name_of(fun)}`"), part, used
        yield from ((f"the global `{name}`", part, used) for name, part in kind.named(fun, used))
