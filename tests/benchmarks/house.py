"""Count what the house is made of: ``python tests/benchmarks/house.py [CHECKOUT]``, beside an earlier commit.

Lines of code are those with code on them: no docstrings, comments and blanks. Frames are what stands between
`reduce_sum` and the user's function in the calling thread, and the modules are those that these are of.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import statistics
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parents[2]
PACKAGES = {"dagad": Path("dagad"), "dagad_scheduler": Path("scheduler", "dagad_scheduler")}
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
# What holds state when a module of ours makes one.
STATE = {"Remembered", "WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "ContextVar", "local", "Lock", "RLock"}
FRAMES = """
import json, sys
import autograd.numpy as np, numpy as onp
import dagad

rows, seen = onp.arange(4.0), []

def f(rows, theta):
    frame, own = sys._getframe(1), []
    while frame is not None and frame.f_code.co_name != "reduce_sum":
        own.append(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    seen.append(own)
    return np.sum(rows * theta**3)

def total(theta):
    return dagad.reduce_sum(f, rows, theta, grainsize=2, scheduler="sync")

found = {}
for name, run in {
    "value": lambda: total(2.0),
    "gradient": lambda: dagad.grad(total)(2.0),
    "hvp": lambda: dagad.hvp(total, (2.0,), (1.0,)),
}.items():
    run(), seen.clear(), run()  # the first call looks whether chunks add up
    ours = [frame for frame in seen[0] if frame.startswith("dagad")]
    found[name] = len(ours), len(set(ours))
print(json.dumps(found))
"""


class Module(NamedTuple):
    """One file of the source."""

    name: str
    text: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The folder that it is in, of those that make the house."""
        package, *inner = self.name.split(".")
        return f"{package}.{inner[0]}" if len(inner) > 1 else f"{package} (floor and doors)"

    def lines(self) -> int:
        """Return how many lines have code on them."""
        found = set[int]()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in NO_CODE:
                found.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
                ast.get_docstring(node, clean=False) is not None
            ):
                words = node.body[0]
                found.difference_update(range(words.lineno, (words.end_lineno or words.lineno) + 1))
        return len(found)


def modules(checkout: Path) -> list[Module]:
    found = []
    for package, root in PACKAGES.items():
        for path in sorted((checkout / root).rglob("*.py")):
            parts = path.relative_to(checkout / root).with_suffix("").parts
            text = path.read_text(encoding="utf-8")
            found.append(Module(".".join((package, *parts)), text, ast.parse(text)))
    return found


def nodes(house: list[Module], *kinds: type[ast.AST]) -> Iterator[Any]:
    return (node for module in house for node in ast.walk(module.tree) if isinstance(node, kinds))


def named(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def type_tests(house: list[Module]) -> int:
    """Return how often code asks whether something is of a class of ours."""
    classes = {node.name for node in nodes(house, ast.ClassDef)}
    count = 0
    for module in house:
        own, packages = classes - others(module), other_packages(module)
        for node in nodes([module], ast.Call, ast.Compare):
            if isinstance(node, ast.Call):
                asked = node.args[1:] if named(node.func) in ("isinstance", "issubclass") else []
            else:
                is_of_type = isinstance(node.left, ast.Call) and named(node.left.func) == "type"
                asked = node.comparators if is_of_type else []
            count += any(named(each) in own for one in asked for each in ast.walk(one) if not _is_in(packages, each))
    return count


def _is_in(packages: set[str], node: ast.AST) -> bool:
    """Return whether something is a member of another package, as in `ast.Constant`, or of a module of one."""
    while isinstance(node, ast.Attribute):
        node = node.value
        if named(node) in packages:
            return True
    return False


def others(module: Module) -> set[str]:
    """Return the names that a module has from other packages, which may be those of classes of ours, too."""
    imports = [
        node for node in nodes([module], ast.ImportFrom) if (node.module or "").partition(".")[0] not in PACKAGES
    ]
    return {each.asname or each.name for node in imports for each in node.names}


def other_packages(module: Module) -> set[str]:
    """Return the names under which a module knows other packages."""
    names = [each for node in nodes([module], ast.Import) for each in node.names]
    return {each.asname or each.name for each in names if each.name.partition(".")[0] not in PACKAGES}


def probes(house: list[Module]) -> int:
    """Return how often code asks for a member that may not be there."""
    calls = [node for node in nodes(house, ast.Call) if named(node.func) in ("getattr", "hasattr")]
    return sum(named(node.func) == "hasattr" or len(node.args) == 3 for node in calls)


def registries(house: list[Module]) -> list[str]:
    """Return what modules hold that changes while they run."""
    found = []
    for module in house:
        for node in module.tree.body:
            value = getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign) else None
            if isinstance(value, ast.Call):
                made = value.func.value if isinstance(value.func, ast.Subscript) else value.func
                if named(made) in STATE or (named(made) in ("dict", "list", "set") and not value.args):
                    found.append(module.name)
            elif isinstance(value, ast.Dict) and not value.keys:
                found.append(module.name)
    return found


def figures(checkout: Path) -> tuple[dict[str, Any], Counter[str]]:
    """Return what is counted in a checkout, and the lines of each room."""
    house = modules(checkout)
    rooms = Counter[str]()
    for module in house:
        rooms[module.room] += module.lines()
    functions = list(nodes(house, ast.FunctionDef, ast.AsyncFunctionDef))
    lengths = sorted(_length(node) for node in functions)
    given = [each for node in functions for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    parameters = [each for each in given if each.arg not in ("self", "cls")]
    bare = sum(each.annotation is not None and named(each.annotation) == "Any" for each in parameters)
    tests = [path for path in (checkout / "tests").rglob("*.py") if "benchmarks" not in path.parts]
    texts = [path.read_text(encoding="utf-8") for path in tests]
    found: dict[str, Any] = {
        "modules": len(house),
        "rooms of dagad": len({room for room in rooms if room.startswith("dagad._")}),
        "lines of code": sum(rooms.values()),
        "functions: median, p99, longest": (
            f"{statistics.median(lengths):.0f}, {lengths[len(lengths) * 99 // 100]}, {lengths[-1]}"
        ),
        "type tests on own classes": type_tests(house),
        "`getattr` with a default, `hasattr`": probes(house),
        "parameters annotated bare `Any`": f"{bare} of {len(parameters)}",
        "functions named `value_and_grad`": sum(node.name == "value_and_grad" for node in functions),
        "state at the level of modules": len(registries(house)),
        "test functions": sum(text.count("\ndef test_") for text in texts),
        "lines of tests": sum(text.count("\n") for text in texts),
    }
    for mode, (n_frames, n_modules) in frames(checkout).items():
        found[f"frames to f, and modules: {mode}"] = f"{n_frames}, {n_modules}"
    return found, rooms


def _length(node: Any) -> int:
    """Return the lines of a function without its docstring."""
    words = node.body[0] if ast.get_docstring(node, clean=False) is not None else None
    without = 0 if words is None else words.end_lineno - words.lineno + 1
    return int(node.end_lineno - node.lineno + 1 - without)


def frames(checkout: Path) -> dict[str, tuple[int, int]]:
    """Return for each mode how many frames, and how many modules, are between the user's call and his function."""
    path = os.pathsep.join(map(str, (checkout, checkout / "scheduler")))
    command, env = [sys.executable, "-c", FRAMES], os.environ | {"PYTHONPATH": path}
    ran = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=True)
    found: dict[str, tuple[int, int]] = json.loads(ran.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, help="the sources of an earlier commit")
    earlier = parser.parse_args().checkout
    sides = [figures(path.resolve()) for path in ([earlier] if earlier else []) + [HERE]]
    titles = (["there"] if earlier else []) + ["here"]
    of_house, of_rooms = Table("", *titles, title="The house"), Table("", *titles, title="Lines of code")
    for name in sides[-1][0]:
        of_house.add_row(name, *[str(found.get(name, "-")) for found, _ in sides])
    for room in sorted({room for _, rooms in sides for room in rooms}):
        of_rooms.add_row(room, *[f"{rooms[room]:,}" if rooms[room] else "-" for _, rooms in sides])
    console = Console()
    console.print(of_house)
    console.print(of_rooms)


if __name__ == "__main__":
    main()
