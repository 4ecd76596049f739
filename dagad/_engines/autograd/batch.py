"""Reverse mode for many cotangents at once: one walk over the tape; whole reductions get all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dagad._engines.autograd.patches import patches
from dagad._engines.autograd.private import add_outgrads
from dagad._engines.autograd.tape import downward, like
from dagad._pytrees.blocks import Blocks, full

Entry = Any  # None for zero, Blocks, or autograd's pair of a cotangent and whether it may be written to


def pull_many(
    ends: Sequence[Any], many: Sequence[Sequence[Any]], roots: Sequence[Any], leaves: Sequence[Any]
) -> list[list[Any]]:
    """Send many sets of cotangents of the outputs back to the roots; for each root one cotangent per set, or None."""
    count = len(many)
    if not count:  # an output without entries
        return [[] for _ in roots]
    at_roots: dict[Any, list[Entry]] = {root: [None] * count for root in roots}
    arrived: dict[Any, list[Entry]] = {}
    for place, end in enumerate(ends):
        if end is not None:
            _arrive(arrived, end, [seeds[place] for seeds in many])
    for node in downward(list(arrived)):
        entries = [_value(entry) for entry in arrived.pop(node, ())]
        if not entries:  # nothing but zeros went this way
            continue
        if node in at_roots:
            at_roots[node] = entries
            continue
        for parent, parts in zip(node.parents, _through(node, entries), strict=True):
            _arrive(arrived, parent, parts)
    pairs = zip((at_roots[root] for root in roots), leaves, strict=True)
    return [[_cast(part, leaf) for part in parts] for parts, leaf in pairs]


def _through(node: Any, entries: list[Any]) -> list[list[Any]]:
    """Return for each parent of a node its cotangents."""
    together = getattr(node.vjp, "many", None)
    if together is not None:
        parts: list[list[Any]] = together(entries)
        return parts
    nothing = [None] * len(node.parents)
    with patches:
        rows = [nothing if entry is None else list(node.vjp(full(entry))) for entry in entries]
    return [list(column) for column in zip(*rows, strict=True)]


def _arrive(arrived: dict[Any, list[Entry]], node: Any, parts: Sequence[Any]) -> None:
    if all(part is None for part in parts):
        return
    before = arrived.get(node) or [None] * len(parts)
    arrived[node] = [_sum(entry, part) for entry, part in zip(before, parts, strict=True)]


def _sum(entry: Entry, part: Any) -> Entry:
    if part is None:
        return entry
    if entry is None and isinstance(part, Blocks):
        return part
    previous = (entry.full(), True) if isinstance(entry, Blocks) else entry
    return add_outgrads(previous, full(part))


def _value(entry: Entry) -> Any:
    return entry if entry is None or isinstance(entry, Blocks) else entry[0]


def _cast(part: Any, leaf: Any) -> Any:
    return part if isinstance(part, Blocks) else like(part, leaf)
