"""The sentences of dagad's errors and warnings, read from its source, each with an anchor of its own."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import dagad
import dagad_scheduler

ROOTS = [Path(str(module.__file__)).parent for module in (dagad, dagad_scheduler)]
KINDS = {name for name in vars(dagad) if name.endswith(("Error", "Warning"))}
FILLED_IN = "…"
LONGEST_ANCHOR = 60
MARKUP = re.compile(r"([\\*_<>\[\]{}$#~|])")


def sentences() -> dict[str, list[str]]:
    """Return what each error and the warning may say, with an ellipsis for what is filled in."""
    found: dict[str, set[str]] = defaultdict(set)
    for root in ROOTS:
        for path in sorted(root.rglob("*.py")):
            for kind, text in _said(ast.parse(path.read_text(encoding="utf-8"))):
                found[kind].add(text)
    return {kind: sorted(found[kind], key=str.lower) for kind in sorted(found)}


def _said(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield what is raised or warned of in a module, where it is written as a sentence there."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = ast.unparse(node.func)
        kind = "DagadWarning" if called == "warn" else called.rpartition(".")[2]  # `_tracebacks.warn` has one kind
        text = " ".join(_text(node.args[0]).split())
        if kind in KINDS and len(text.replace(FILLED_IN, "").split()) >= 3:
            yield kind, text


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return FILLED_IN


def anchor(kind: str, text: str) -> str:
    """Return the name by which a page links to a sentence."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower().replace(FILLED_IN, " ")).strip("-")
    return f"{kind.lower()}-{words[:LONGEST_ANCHOR].rstrip('-')}"


def page(summaries: dict[str, str]) -> str:
    """Return the page of errors: for each its class, and its sentences."""
    parts = [HEAD]
    for kind, texts in sentences().items():
        parts.append(f"## {kind}\n\n{{py:obj}}`dagad.{kind}`: {summaries[kind]}\n")
        seen = set[str]()
        for text in texts:
            name = anchor(kind, text)
            target = f"({name})=\n" if name not in seen else ""
            seen.add(name)
            parts.append(f"{target}* {_escaped(text)}\n")
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
filled in: a name, a number, a shape. These are the sentences as they stand in dagad's source; a few more are put
together from parts, and are not here.

What a chunk function of yours raises arrives as it was raised, [with a note that names the
chunk](../../how-to/failures.md).
"""
