"""What users say with `dask.annotate` about where and when tasks run: it goes before our own placement."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from dask import (  # type: ignore[attr-defined]  # dask's `__init__` does not say what it exports
    annotate,
    get_annotations,
)

from dagad_scheduler.roles import Key, function_of, group_of, role_of

# Ours among the tasks of one priority of the user's, so that pullbacks still wait for values.
FINER = 1 / 64


@dataclass(frozen=True, slots=True)
class Annotated:
    """The annotations in force where a graph is submitted."""

    given: dict[str, Any]

    @property
    def restrict(self) -> bool:
        """Whether they say which workers may run tasks."""
        return bool(self.given.keys() & {"workers", "resources"})

    @property
    def needs_tasks(self) -> bool:
        """Whether they say something that only tasks can follow; what fails without tasks is tried again as tasks."""
        return bool(self.given) and (self.restrict or "priority" in self.given)

    @property
    def workers(self) -> Collection[str] | None:
        """The addresses of the only workers that may run tasks; None where that is not said, or not in so few words."""
        named, others = self.given.get("workers"), self.given.get("allow_other_workers")
        named = [named] if isinstance(named, str) else named
        return None if callable(named) or others or not named else list(named)

    def with_ours(self, priority: Callable[[Key], int], homes: Callable[[Key], list[str]] | None) -> dict[str, Any]:
        """Return what to add to them: our priorities within the user's, and homes where the user names no workers.

        A home is a wish, `allow_other_workers`. Together with resources that no worker has yet, Dask's scheduler fails
        on it; together with the user's own workers it would set these free.
        """
        users = self.given.get("priority")
        ours: dict[str, Any] = {"priority": priority if users is None else _Finer(users, priority)}
        if not callable(span := self.given.get("span")):
            ours["span"] = _Spans(span)
        if homes is not None and not self.restrict:
            ours |= {"workers": homes, "allow_other_workers": True}
        return ours

    def __str__(self) -> str:
        said = {name: value for name, value in self.given.items() if name in ("workers", "resources", "priority")}
        return f"`dask.annotate({', '.join(f'{name}={value!r}' for name, value in said.items())})`"


class _Finer:
    """The user's priority of a key, and within one priority ours."""

    def __init__(self, users: Any, ours: Callable[[Key], int]) -> None:
        self._users, self._ours = users, ours

    def __call__(self, key: Key) -> float:
        users = self._users(key) if callable(self._users) else self._users
        return float(users) + FINER * self._ours(key)


class _Spans:
    """The span of a key, by function and role, within the user's; one of the same name is the same, or Dask has many.

    State: `_found`, those of groups of keys.
    """

    def __init__(self, users: dict[str, Any] | None) -> None:
        self._users = {"name": ("dagad",), "ids": ("dagad",)} if users is None else users
        self._found: dict[Any, dict[str, tuple[str, ...]]] = {}

    def __call__(self, key: Key) -> dict[str, tuple[str, ...]]:
        group = group_of(key)
        if group not in self._found:
            tags = [str(tag) for tag in (function_of(key), role_of(key)) if tag] if role_of(key) else ["others"]
            ids = itertools.accumulate(tags, "{}/{}".format, initial=self._users["ids"][-1])
            found = {"name": (*self._users["name"], *tags), "ids": (*self._users["ids"], *list(ids)[1:])}
            self._found[group] = found
        return self._found[group]


# What counts of the annotations of single tasks, and what stands for none.
_DEFAULTS: dict[str, Any] = {"workers": (), "allow_other_workers": False, "resources": {}, "retries": 0, "priority": 0}


class _OfTasks:
    """Annotations of one kind by key: those of single tasks, and what is said around for all others."""

    def __init__(self, own: dict[Key, Any], around: object) -> None:
        self._own, self._around = own, around

    def __call__(self, key: Key) -> Any:
        if key in self._own:
            return self._own[key]
        return self._around(key) if callable(self._around) else self._around

    def __repr__(self) -> str:
        return " or ".join(sorted({repr(one) for one in self._own.values()}))


def tasks_annotated(annotations: Mapping[Key, Mapping[str, Any]]) -> contextlib.AbstractContextManager[None]:
    """Return what puts annotations of single tasks into force, before those that are."""
    around = get_annotations()
    kinds = {kind for own in annotations.values() for kind in own if kind in _DEFAULTS}
    if "workers" in kinds:  # else homes would set them free
        kinds.add("allow_other_workers")
    found: dict[str, Any] = {}
    for kind in kinds:
        says = "workers" if kind == "allow_other_workers" else kind
        own = {
            key: each.get(kind, _DEFAULTS[kind]) for key, each in annotations.items() if kind in each or says in each
        }
        found[kind] = _OfTasks(own, around.get(kind, _DEFAULTS[kind]))
    held: contextlib.AbstractContextManager[None] = annotate(**found)
    return held


def annotated() -> Annotated:
    """Return the annotations in force here."""
    return Annotated(dict(get_annotations()))
