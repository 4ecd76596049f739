"""Functions made again over copies of their globals, in which names mean something else."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import FunctionType
from typing import Any, NamedTuple

from dagad._values.baseline import copied
from dagad._values.bytecode import binds_globals, globals_of, looks_up_words, names_of
from dagad._values.closures import Template
from dagad._values.contents import function_like
from dagad._values.reach import MISSING, Contents, Key, Reach, Slot, held_by, is_part, opened
from dagad._values.walk import leading_to


class Affected(NamedTuple):
    """Names that have to mean something else, and the ids of parts that have to be made again."""

    slots: list[Slot]
    parts: set[int]


def affected(reach: Reach, changed: set[Key], parts: set[int]) -> Affected | None:
    """Return all that depends on names and parts that have changed; None where it is in a class or a module.

    None, too, where weak references alone lead to something: nobody would hold another one.
    What functions bind in a scope of which they get a copy counts as well: all of them have to see it.
    """
    keys, found, before = set(changed), set(parts), (-1, -1)
    while before != (len(keys), len(found)):
        before = len(keys), len(found)
        scopes = {number for number, _ in keys}
        keys.update(key for key in reach.written if key[0] in scopes)
        found.update(reader for key in keys for reader in reach.readers.get(key, ()))
        found |= leading_to(found, reach.owners)
        keys.update(key for key, slot in reach.slots.items() if id(slot.value) in found)
    weak = {key for key in found if issubclass(type(reach.part(key)), weakref.ref)}
    if weak and any(weak.issuperset(reach.owners.get(key, (key,))) for key in found):
        return None
    asked = [reach.slots[key] for key in keys]
    return Affected(asked, found) if all(slot.is_global for slot in asked) else None


def made_again(
    made: object, of: Affected, reach: Reach, contents: Mapping[int, Contents], copies: Mapping[int, Any]
) -> Any:
    """Return functions that read names as they were, with what parts held then, and copies of arrays and the like."""
    scopes: dict[int, dict[str, Any]] = {id(slot.home): dict(slot.home) for slot in of.slots}
    names: dict[int, set[str]] = {number: set() for number in scopes}
    for slot in of.slots:
        names[id(slot.home)].add(slot.name)
    held, owners = held_by([made], is_part, inside=opened)
    every = {**reach.held, **reach.named, **held}
    readers = {key for key, part in every.items() if type(part) is FunctionType and _reads(part, names)}
    root = [made, *(slot.value for slot in of.slots)]
    carriers = {id(root), *of.parts, *readers, *leading_to(readers, owners)}
    makings = {key: function_like(every[key], scopes[id(every[key].__globals__)]) for key in readers}
    template = Template.of(root, copies, carriers, contents, makings)
    again, *values = template([copied(copy) for copy in copies.values()])
    for slot, value in zip(of.slots, values, strict=True):
        if slot.value is MISSING:
            scopes[id(slot.home)].pop(slot.name, None)
        else:
            scopes[id(slot.home)][slot.name] = value
    return again


def _reads(function: FunctionType, names: Mapping[int, set[str]]) -> bool:
    """Return whether a function reads or binds one of the names that are asked for in its globals."""
    asked, code = names.get(id(function.__globals__)), function.__code__
    if asked is None:
        return False
    used = (*globals_of(code), *binds_globals(code), *(names_of(code) if looks_up_words(code) else ()))
    return not asked.isdisjoint(used)
