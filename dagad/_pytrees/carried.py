"""What a function carried at some time, by name: so that it can be said later what of it has changed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

from dagad._errors import ClosureError
from dagad._pytrees.digest import States, is_installed
from dagad._pytrees.kinds import contents_of
from dagad._pytrees.walk import is_wrapper, used_in
from dagad._words import name_of


class Carried:
    """What a function carries, noted before and after it ran: what changes while it runs is its own, a counter say."""

    __slots__ = ("_fun", "_kept", "_states")

    def __init__(self, fun: Any) -> None:
        states = States()
        self._fun, self._kept, self._states = fun, states.kept, _of_all(fun, states)

    def settle(self) -> Carried:
        """Leave out what has changed by now: the function itself did that."""
        changed = set(self._changed())
        self._states = {name: state for name, state in self._states.items() if name not in changed}
        return self

    def _changed(self) -> Iterator[str]:
        now = _of_all(self._fun, States())
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


def _of_all(fun: Any, states: States) -> dict[str, str]:
    found = {name: states.of(part, words) for name, part, words in parts_of(fun)}
    return found | {"something in a module": states.of_modules()}


def parts_of(fun: Any) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Yield what users would call each part, the part, and the names that the function knows."""
    if is_wrapper(type(fun)):
        yield from parts_of(fun.fun)
    elif isinstance(fun, functools.partial):
        yield from parts_of(fun.func)
        yield "an argument of the partial", (fun.args, fun.keywords, vars(fun)), ()
    elif isinstance(fun, MethodType):
        yield from parts_of(fun.__func__)
        yield "the instance that it is bound to", fun.__self__, ()
    elif isinstance(fun, FunctionType) and not is_installed(fun.__module__):
        words = used_in(fun.__code__)
        for name, cell in zip(fun.__code__.co_freevars, fun.__closure__ or (), strict=True):
            yield f"`{name}` in its closure", contents_of(cell), words
        yield "a default argument", (fun.__defaults__, fun.__kwdefaults__), ()
        yield "an attribute of the function", vars(fun), ()
        scope = fun.__globals__
        yield from ((f"the global `{name}`", scope[name], words) for name in words if name in scope)
    elif callable(fun):
        yield "the object that is called", fun, ()
