"""Sentences of errors and warnings, read from dagad's source: those that are written where they are raised, and others.

Many are put together by a function, a constant or a variable. What these may say is found by reading on there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

FILLED_IN = "…"
DEEPEST = 5  # steps from where something is raised to where its words are
FEWEST_WORDS, FEWEST_ELSEWHERE = 3, 4  # of a sentence where it is raised; elsewhere there are parts of sentences too
ENDS = (".", "?", FILLED_IN)
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """Where an expression stands: its module, and the function around it, if there is one."""

    module: str
    function: Function | None


class Source:
    """The source of some packages, by the names that its modules import each other by."""

    def __init__(self, roots: list[Path]) -> None:
        self._trees = {
            module: ast.parse(path.read_text(encoding="utf-8"))
            for root in roots
            for path in sorted(root.rglob("*.py"))
            for module in [".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")]
        }

    def calls(self) -> Iterator[tuple[Place, ast.Call]]:
        """Yield all calls that are written anywhere, each with its place."""
        for module, tree in self._trees.items():
            yield from _calls(tree, Place(module, None))

    @cached_property
    def _names(self) -> dict[tuple[str, str], tuple[str, ast.AST]]:
        """What stands behind a name of a module: where it is defined, as a function or as an expression."""
        found = dict[tuple[str, str], tuple[str, ast.AST]]()
        for module, tree in self._trees.items():
            for node in tree.body:
                if isinstance(node, Function):
                    found[module, node.name] = module, node
                elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                    found[module, node.targets[0].id] = module, node.value
        return found

    def _imported(self, module: str, name: str) -> str:
        """Return the full name that an import in a module gives a name, or that name in the module itself."""
        for node in ast.walk(self._trees[module]):
            if isinstance(node, ast.ImportFrom):
                for one in node.names:
                    if (one.asname or one.name) == name:
                        parent = module.rpartition(".")[0] if node.level else ""
                        return ".".join(filter(None, (parent, node.module, one.name)))
        return f"{module}.{name}"

    def _found(self, place: Place, node: ast.AST) -> tuple[str, ast.AST] | None:
        """Return what a name, or a name of an imported module, stands for."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            full = f"{self._imported(place.module, node.value.id)}.{node.attr}"
        elif isinstance(node, ast.Name):
            full = self._imported(place.module, node.id)
        else:
            return None
        module, _, name = full.rpartition(".")
        return self._names.get((module, name))

    def texts(self, place: Place, node: ast.AST, depth: int = 0) -> Iterator[str]:
        """Yield all that an expression may say, with an ellipsis for what is filled in."""
        text = " ".join(self._text(place, node).split())
        if len(text.replace(FILLED_IN, "").split()) >= (FEWEST_ELSEWHERE if depth else FEWEST_WORDS):
            if not depth or text.endswith(ENDS):
                yield text
        elif depth < DEEPEST:
            for there, one in self._behind(place, node):
                yield from self.texts(there, one, depth + 1)

    def _behind(self, place: Place, node: ast.AST) -> Iterator[tuple[Place, ast.AST]]:
        """Yield the expressions that say what an expression may be."""
        if isinstance(node, ast.IfExp):
            yield from ((place, node.body), (place, node.orelse))
        elif isinstance(node, ast.BoolOp):
            yield from ((place, one) for one in node.values)
        elif isinstance(node, ast.Dict):
            yield from ((place, one) for one in node.values)
        elif isinstance(node, ast.JoinedStr):
            yield from ((place, part.value) for part in node.values if isinstance(part, ast.FormattedValue))
        elif isinstance(node, ast.Call):
            yield from self._behind_call(place, node)
        elif isinstance(node, ast.Name | ast.Attribute):
            yield from self._behind_name(place, node)

    def _behind_call(self, place: Place, node: ast.Call) -> Iterator[tuple[Place, ast.AST]]:
        found = self._found(place, node.func)
        if found is not None and isinstance(found[1], Function):
            module, function = found[0], found[1]
            yield from ((Place(module, function), one) for one in _returned(function))
            return
        if isinstance(node.func, ast.Attribute):  # `text.rstrip()`, `_SENTENCES.get(name)`
            yield place, node.func.value
        yield from ((place, one) for one in node.args if not isinstance(one, ast.Starred))

    def _behind_name(self, place: Place, node: ast.Name | ast.Attribute) -> Iterator[tuple[Place, ast.AST]]:
        assigned = list(_assigned(place.function, node.id)) if isinstance(node, ast.Name) else []
        yield from ((place, one) for one in assigned)
        found = self._found(place, node)
        if not assigned and found is not None and not isinstance(found[1], Function):
            yield Place(found[0], None), found[1]

    def _text(self, place: Place, node: ast.AST) -> str:
        """Return the words that stand in an expression itself; a constant's are those that it has."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.JoinedStr):
            return "".join(self._text(place, part) for part in node.values)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._text(place, node.left) + self._text(place, node.right)
        if isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name):
            found = self._found(place, node.value)
            if found is not None and not isinstance(found[1], Function | ast.FormattedValue):
                return self._text(Place(found[0], None), found[1])
        return FILLED_IN


def _calls(node: ast.AST, place: Place) -> Iterator[tuple[Place, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield place, child
        inside = Place(place.module, child) if isinstance(child, Function) else place
        yield from _calls(child, inside)


def _own(function: Function) -> Iterator[ast.AST]:
    """Yield what stands in a function, and not in one inside of it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _returned(function: Function) -> Iterator[ast.AST]:
    yield from (node.value for node in _own(function) if isinstance(node, ast.Return) and node.value is not None)


def _assigned(function: Function | None, name: str) -> Iterator[ast.AST]:
    """Yield what a variable of a function may be."""
    for node in _own(function) if function is not None else ():
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Name) and target.id == name and isinstance(node, ast.Assign):
                yield node.value
