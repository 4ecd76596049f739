"""The source of both packages: each module by its name, its file and its syntax tree."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import dagad
import dagad_scheduler

ROOTS = {"dagad": Path(dagad.__file__).parent, "dagad_scheduler": Path(dagad_scheduler.__file__).parent}


def name_of(package: str, path: Path) -> str:
    parts = path.relative_to(ROOTS[package]).with_suffix("").parts
    return ".".join((package, *(part for part in parts if part != "__init__")))


FILES = {name_of(package, path): path for package, root in ROOTS.items() for path in sorted(root.rglob("*.py"))}


def text_of(name: str) -> str:
    return FILES[name].read_text(encoding="utf-8")


@functools.cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(text_of(name)) for name in FILES}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
