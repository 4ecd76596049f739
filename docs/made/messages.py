"""The sentences of dagad's errors and warnings, read from its source, each with an anchor of its own."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import dagad
import dagad_scheduler
from made.sentences import FILLED_IN, Source

ROOTS = [Path(str(module.__file__)).parent for module in (dagad, dagad_scheduler)]
KINDS = {name for name in vars(dagad) if name.endswith(("Error", "Warning"))}
LONGEST_ANCHOR = 60


@functools.cache
def sentences() -> dict[str, list[str]]:
    """Return what each error and the warning may say, with an ellipsis for what is filled in."""
    found: dict[str, set[str]] = defaultdict(set)
    for kind, _, texts in _said():
        found[kind] |= texts
    return {kind: sorted(found[kind], key=str.lower) for kind in sorted(found)}


def unread() -> set[str]:
    """Return the modules that raise something, or warn, by words that are not found."""
    return {module for _, module, texts in _said() if not texts}


def _said() -> Iterator[tuple[str, str, set[str]]]:
    """Yield what is raised or warned of: the kind, the module, and all that it may say."""
    source = Source(ROOTS)
    for place, call in source.calls():
        called = ast.unparse(call.func)
        kind = "DagadWarning" if called == "warn" else called.rpartition(".")[2]  # `_tracebacks.warn` has one kind
        if kind in KINDS and call.args:
            yield kind, place.module, {*source.texts(place, call.args[0])}


def anchor(kind: str, text: str) -> str:
    """Return the name by which a page links to a sentence."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower().replace(FILLED_IN, " ")).strip("-")
    return f"{kind.lower()}-{words[:LONGEST_ANCHOR].rstrip('-')}"


def page(summaries: dict[str, str]) -> str:
    """Return the page of errors: for each its class, and its sentences."""
    parts = [HEAD]
    for kind, texts in sentences().items():
        parts.append(f"## {kind}\n\n{{py:obj}}`dagad.{kind}`: {summaries[kind]}\n")
        seen = Counter[str]()
        for text in texts:
            name = anchor(kind, text)
            seen[name] += 1
            number = f"-{seen[name]}" if seen[name] > 1 else ""
            parts.append(f"({name}{number})=\n* {_escaped(text)}\n")
    return "\n".join(parts)


def _escaped(text: str) -> str:
    """Return a sentence as MyST, where what is not in backticks is meant as it is."""
    if text.count("`") % 2:
        text = text.replace("`", "'")
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([\\*_<>\[\]{}$#~|])", r"\\\1", piece) for piece in pieces
    )


HEAD = """# Errors, and what they advise

What dagad raises on purpose derives from `dagad.DagadError` and from one of Python's own errors, so that either can be
caught. Each sentence says what was asked, why it can't be, and what to write instead. An ellipsis stands for what is
filled in: a name, a number, a shape. These are the sentences as they stand in dagad's source; where one is put together
from parts, an ellipsis may stand for a part. Each has an anchor, to link to.

What a chunk function of yours raises arrives as it was raised, [with a note that names the
chunk](../../how-to/failures.md).
"""
