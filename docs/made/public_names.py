"""What is public in dagad, found by looking at it: a page of the reference is made for each name."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import NamedTuple, TypeGuard

import dagad

ROOT = Path(str(dagad.__file__)).parent
COMMANDS = {"dagad.doctor"}  # modules that are run, and have a page written by hand
OTHERS, ERRORS = "More", "Errors, and the warning"
BLOCK = re.compile(r"^(\w.*[^:\n])\n((?: {4}.*\n)+)", re.MULTILINE)  # a heading, and the lines below it


class Name(NamedTuple):
    """A public name: where it is, what kind of thing it is, and its summary."""

    path: str
    kind: str  # of Sphinx's directives: function, class or exception
    summary: str
    group: str

    @property
    def page(self) -> str:
        """Return the page's name, in lower case, where some file systems don't tell cases apart."""
        return self.path.lower() + ("-class" if self.kind == "class" else "")


def doors() -> list[str]:
    """Return the modules that users import, `dagad` first and the neighbours last."""
    inside = sorted(ROOT.glob("[a-z]*.py")) + sorted(ROOT.glob("[a-z]*/__init__.py"))
    found = [path.parent.name if path.name == "__init__.py" else path.stem for path in inside]
    neighbours = [f"interop.{path.stem}" for path in sorted(ROOT.glob("interop/[a-z]*.py"))]
    modules = [f"dagad.{name}" for name in [*found, *neighbours] if name != "interop"]
    return ["dagad", *(module for module in modules if module not in COMMANDS)]


def names_of(door: str) -> list[Name]:
    """Return what a module offers: what it lists, what it defines without a list, and the errors of `dagad`."""
    listed = _listed(door)
    if door == "dagad":
        listed += sorted(name for name in vars(dagad) if name.endswith(("Error", "Warning")))
    found = [_read(f"{door}.{name}", door) for name in listed if f"{door}.{name}" not in doors()]
    docstring = importlib.import_module(door).__doc__ if _is_here(door) else None
    table = [re.sub(r" \(``.*?\)", "", heading) for heading, _ in BLOCK.findall(docstring or "")]
    return sorted(found, key=lambda name: _place(name.group, table))


def _place(group: str, table: list[str]) -> int:
    """Return where a group stands: as in the table of the module's docstring, errors and the rest behind."""
    places = [place for place, heading in enumerate(table) if heading == group]
    return places[0] if places else len(table) + (group == ERRORS)


def _is_here(door: str) -> bool:
    """Return whether a module can be imported to be looked at: neighbours need packages of their own."""
    return not door.startswith("dagad.interop.")


def all_names() -> list[Name]:
    """Return all that is public."""
    return [name for door in doors() for name in names_of(door)]


def _file_of(door: str) -> Path:
    path = ROOT.parent.joinpath(*door.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _listed(door: str) -> list[str]:
    tree = _tree(_file_of(door))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return [name for name in _definitions(tree) if not name.startswith("_")]


def _definitions(tree: ast.Module) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    """Return what a module defines, or offers of a private one: what is imported `as` what it is called."""
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in tree.body:
        offered = [alias.name for alias in node.names if alias.asname == alias.name] if _is_import(node) else []
        found |= {name: _definitions(_tree(_file_of(node.module)))[name] for name in offered}
    return found


def _is_import(node: ast.stmt) -> TypeGuard[ast.ImportFrom]:
    return isinstance(node, ast.ImportFrom) and node.module is not None


def _read(path: str, door: str) -> Name:
    """Read a name where it is; of neighbours, whose packages may not be here, only its source is read."""
    last = path.rpartition(".")[2]
    if not _is_here(door):
        node = _definitions(_tree(_file_of(door)))[last]
        kind, docstring = "class" if isinstance(node, ast.ClassDef) else "function", ast.get_docstring(node) or ""
        return Name(path, kind, _summary(docstring), OTHERS)
    found = getattr(importlib.import_module(door), last)
    summary = _summary(inspect.getdoc(found) or "")
    if isinstance(found, type) and issubclass(found, BaseException):
        return Name(path, "exception", summary, ERRORS)
    return Name(path, "class" if isinstance(found, type) else "function", summary, _group(door, last))


def _summary(docstring: str) -> str:
    return " ".join(docstring.split("\n\n")[0].split())


def _group(door: str, name: str) -> str:
    """Return the heading above a name in the table with which the module's docstring begins."""
    table = BLOCK.findall(importlib.import_module(door).__doc__ or "")
    first = [(heading, re.sub(r"(?<=\S)   .*", "", lines, flags=re.MULTILINE)) for heading, lines in table]
    for heading, lines in [*first, *table]:
        if re.search(rf"\b{name}\b", lines):
            return re.sub(r" \(``.*?\)", "", heading)
    return OTHERS
