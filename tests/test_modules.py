"""Modules: do they stand in one order, and keep to the size and the manners of this house?"""

from __future__ import annotations

import ast
import graphlib
import importlib
import inspect
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import dagad
import dagad.extend
import dagad.testing
import dagad_scheduler

ROOTS = {"dagad": Path(dagad.__file__).parent, "dagad_scheduler": Path(dagad_scheduler.__file__).parent}
# What `import dagad` has to do without.
OPTIONAL = {
    *("distributed", "bokeh", "graphviz", "jax", "scipy", "narwhals", "rich", "IPython", "prometheus_client"),
    *("torch", "tornado"),
}


def name_of(package: str, path: Path) -> str:
    parts = path.relative_to(ROOTS[package]).with_suffix("").parts
    return ".".join((package, *(part for part in parts if part != "__init__")))


FILES = {name_of(package, path): path for package, root in ROOTS.items() for path in sorted(root.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def imported(name: str, node: ast.AST) -> Iterator[str]:
    """Yield the modules that an import statement needs, with our own as exactly as possible."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        home = name if FILES[name].stem == "__init__" else name.rpartition(".")[0]
        for _ in range(node.level - 1):
            home = home.rpartition(".")[0]
        base = ".".join(filter(None, (home if node.level else "", node.module)))
        for alias in node.names:
            submodule = f"{base}.{alias.name}"
            yield submodule if submodule in FILES else base


def imports(name: str) -> set[str]:
    return {module for node in ast.walk(TREES[name]) for module in imported(name, node)}


IMPORTS = {name: imports(name) for name in FILES}


def importers(package: str) -> set[str]:
    return {name for name, needed in IMPORTS.items() if any(module.partition(".")[0] == package for module in needed)}


# Imported when there is a cluster.
NEED_DISTRIBUTED = {
    f"dagad_scheduler.{name}"
    for name in ("residents.plugin", "private_distributed", "plugin", "dashboard", "private_dashboard")
}
# Imported when somebody has imported that part of scipy.
NEED_SCIPY = {f"dagad._engines.autograd.{name}" for name in ("scipy_rules", "scipy_linalg", "scipy_stats")}
# Imported when somebody asks for that engine.
OTHER_ENGINES = {f"dagad._engines.{name}" for name in ("jax", "jax_constants", "torch")}
NEIGHBOURS = {name for name in FILES if name.startswith("dagad.interop.")}  # imported by those who want them
IMPORTED_LATE = NEED_DISTRIBUTED | NEED_SCIPY | OTHER_ENGINES | NEIGHBOURS


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


# Order

ROOMS = ["_pytrees", "_engines", "_graphs", "_sources", "_operations", "_executors", "_api", "interop"]


def room_of(module: str) -> int:
    """Return which room a module is in: the floor is below them all, the doors above."""
    if module in ("dagad", "dagad.extend", "dagad.testing", "dagad.doctor"):
        return len(ROOMS)
    room = module.split(".")[1]
    return ROOMS.index(room) if room in ROOMS else -1


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("dagad.")])
def test_a_room_imports_those_before_it_only(name: str) -> None:
    above = {needed for needed in IMPORTS[name] & FILES.keys() if needed.partition(".")[0] == "dagad"}
    above = {needed.split(".")[1] for needed in above if room_of(needed) > room_of(name)}
    assert not above


def test_contributors_are_told_of_modules_that_there_are() -> None:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = dict(re.findall(r"^\* \*\*`(\w+)`\*\*: (.*?)(?=^\S)", text, flags=re.MULTILINE | re.DOTALL))
    assert list(rooms) == [*ROOMS, "dagad_scheduler"]
    for room, words in rooms.items():
        home = ROOTS[room] if room in ROOTS else ROOTS["dagad"] / room
        named = set(re.findall(r"`([a-z_/]+)`", words)) - {"dagad"}
        assert not {name for name in named if not any(home.rglob(f"{name.rstrip('/')}*"))}
    paths = re.findall(r"`(_\w+/[\w/]+)", text)
    assert paths
    assert not {path for path in paths if not (ROOTS["dagad"] / f"{path}.py").exists()}


def test_residents_answer_and_know_no_runs() -> None:
    ends = {f"dagad_scheduler.{one}" for one in ("cluster", "plugin", "preload")}
    below = {"annotations", "departures", "private", "private_distributed", "process", "roles", "run", "workers"}
    for name, needed in IMPORTS.items():
        inside = name.startswith("dagad_scheduler.residents")
        theirs = {module for module in needed if module.startswith("dagad_scheduler.residents")}
        may = name in ends or name.startswith("dagad._executors.resident")
        assert inside or may or not theirs
        ours = {module.partition(".")[2] for module in needed - theirs if module.startswith("dagad_scheduler")}
        assert not inside or ours <= below


def test_no_module_needs_itself_by_way_of_others() -> None:
    graph = {name: needed & FILES.keys() - {name} for name, needed in IMPORTS.items()}
    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the cycle
    assert order.index("dagad._errors") < order.index("dagad._sources.plan") < order.index("dagad._api.reductions")
    assert order[-1] in ("dagad", "dagad.testing", "dagad.doctor")


def test_the_scheduler_knows_nothing_of_dagad() -> None:
    assert not {name for name in importers("dagad") if name.startswith("dagad_scheduler")}


OF_GRAPHS = {"dagad_scheduler.private", "dagad_scheduler.roles"}  # nodes and keys


HOLD_THE_COLLECTOR = {"dagad._engines.autograd.tape", "dagad._graphs.fused", "dagad._api.collections"}


def test_only_the_evaluation_talks_to_the_scheduler() -> None:
    ours = {
        name
        for name, needed in IMPORTS.items()
        if any(module.startswith("dagad_scheduler") for module in needed - OF_GRAPHS)
    } - {name for name in FILES if name.startswith("dagad_scheduler")}
    residents = {name for name in ours if name.startswith("dagad._executors.resident")}
    assert ours - residents == {
        "dagad._executors.evaluation",
        "dagad._executors.profile",
        *HOLD_THE_COLLECTOR,
    }
    there = {need for name in HOLD_THE_COLLECTOR for need in IMPORTS[name] if need.startswith("dagad_scheduler")}
    assert there <= {"dagad_scheduler.process", *OF_GRAPHS}


def test_only_the_tree_talks_to_optree_and_knows_traced_values() -> None:
    assert importers("optree") == {"dagad._pytrees.pytree"}
    assert {name for name in importers("autograd") if "_pytrees" in name} == {"dagad._pytrees.pytree"}


def test_derivatives_and_schedulers_do_not_meet() -> None:
    assert not {name for name in importers("autograd") if name.startswith("dagad_scheduler")}


def test_a_plan_knows_no_dask_and_no_derivatives() -> None:
    assert "dagad._sources.plan" not in importers("dask") | importers("autograd") | importers("dagad_scheduler")


@pytest.mark.parametrize("name", FILES)
def test_only_optional_packages_are_imported_late(name: str) -> None:
    tree = TREES[name]
    late = [node for function in functions(tree) for part in function.body for node in ast.walk(part)]
    found = {module for node in late for module in imported(name, node)} - IMPORTED_LATE
    assert {module.partition(".")[0] for module in found} <= OPTIONAL
    if name in IMPORTED_LATE:
        return
    early = {module for node in tree.body for module in imported(name, node)}
    assert not {module.partition(".")[0] for module in early} & OPTIONAL


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_imported_for_type_checkers_only(name: str) -> None:
    assert "TYPE_CHECKING" not in FILES[name].read_text(encoding="utf-8")


@pytest.mark.parametrize("module", ["dagad", "dagad.extend", "dagad.testing", "dagad_scheduler"])
def test_importing_brings_in_no_optional_package(module: str) -> None:
    heavy = OPTIONAL | {"scipy.optimize", "matplotlib", "pandas", "polars", "pyarrow", "zarr", "xarray"}
    code = f"import sys, {module}; print([name for name in sorted(sys.modules) if name in {sorted(heavy)}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_there_are_three_doors() -> None:
    public = {name for name in FILES if name.startswith("dagad.") and "._" not in name and ".interop" not in name}
    assert public == {"dagad.extend", "dagad.testing", "dagad.doctor"}  # the last one is a command


@pytest.mark.parametrize("package", ROOTS)
def test_the_doors_hold_names_only(package: str) -> None:
    kinds = {type(node) for node in TREES[package].body[1:]}
    assert kinds <= {ast.ImportFrom, ast.Assign}


@pytest.mark.parametrize("package", ROOTS)
def test_types_are_shipped(package: str) -> None:
    assert (ROOTS[package] / "py.typed").exists()


# Size


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_short(name: str) -> None:
    assert len(FILES[name].read_text(encoding="utf-8").splitlines()) <= 450


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    docstring = ast.get_docstring(function, clean=False)
    return (function.end_lineno or 0) - function.lineno + 1 - (docstring.count("\n") + 1 if docstring else 0)


@pytest.mark.parametrize("name", FILES)
def test_a_function_fits_on_a_screen(name: str) -> None:
    assert not {function.name: length(function) for function in functions(TREES[name]) if length(function) > 45}


# Words


@pytest.mark.parametrize("name", FILES)
def test_a_module_begins_by_saying_its_place(name: str) -> None:
    docstring = ast.get_docstring(TREES[name])
    assert docstring, "the docstring comes first in the file"
    summary = docstring.split("\n\n")[0]
    assert summary.endswith(".")
    assert "\n" not in summary
    assert summary[0].isupper() or summary.startswith(("`", "dagad", "autograd"))


DOORS = [dagad, dagad.extend, dagad.testing, dagad_scheduler]
PUBLIC = {
    f"{door.__name__}.{name}": found
    for door in DOORS
    for name in door.__all__
    if isinstance(found := getattr(door, name), FunctionType | type)
}


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_what_a_door_offers_is_what_it_lists(door: Any) -> None:
    errors = {name for name, found in vars(dagad).items() if isinstance(found, type) and issubclass(found, Exception)}
    own = {name for name, found in vars(door).items() if getattr(found, "__module__", "").startswith("dagad")}
    own = {name for name in own if not name.startswith("_")} - errors - {"public"}
    assert own | ({"extend", "testing"} if door is dagad else set()) == set(door.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_explained(name: str) -> None:
    docstring = inspect.getdoc(PUBLIC[name])
    assert docstring
    assert docstring.split("\n")[0].endswith((".", ":"))


def sections(docstring: str) -> set[str]:
    found = set(re.findall(r"^([A-Z]\w+(?: \w+)?)\n-{3,}$", docstring, flags=re.MULTILINE))
    return found | {"Returns"} if "Yields" in found else found  # of a context manager


@pytest.mark.parametrize(
    "name", [name for name, found in PUBLIC.items() if isinstance(found, FunctionType) and "scheduler" not in name]
)
def test_a_public_function_shows_how_it_is_used(name: str) -> None:
    function: Any = PUBLIC[name]
    docstring = inspect.getdoc(function) or ""
    assert {"Parameters", "Returns", "Raises", "Examples"} <= sections(docstring)
    assert ">>>" in docstring
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"^(?:\w+, )*\*{{0,2}}{parameter}(?:, \w+)*$", docstring, flags=re.MULTILINE), parameter


@pytest.mark.parametrize("name", [name for name in PUBLIC if "scheduler" not in name])
def test_a_public_class_has_an_example_and_explains_its_methods(name: str) -> None:
    found: Any = PUBLIC[name]
    assert ">>>" in (inspect.getdoc(found) or "")
    if isinstance(found, type) and (name.count(".") == 1 or getattr(found, "_is_protocol", False)):
        own = {method: found.__dict__.get(method) for method in dir(found) if not method.startswith("_")}
        assert not [
            method for method, call in own.items() if isinstance(call, FunctionType) and not inspect.getdoc(call)
        ]


PLAIN_WORDS = re.compile(
    r"differentiated? in\b(?! (this|its|forward|reverse|a|parallel|real))|stand bare|can't be had|told as such|end to "
    r"end|show in the bits|brings? (its|their) own deriv|[Ww]hat becomes of|\ba (?!one)[aeio]|\ban [bcdgjkpqtvwz]"
)


def help_on(door: Any) -> str:
    return pydoc.plain(pydoc.render_doc(door))


@pytest.mark.parametrize("door", [dagad, dagad.extend, dagad.testing], ids=lambda door: door.__name__)
def test_help_is_in_plain_words(door: Any) -> None:
    text = help_on(door)
    assert not re.search(r" \|  _(?!_)", text)  # nothing of what is our own
    said = [found.group() for found in PLAIN_WORDS.finditer(text)]
    assert not said


@pytest.mark.parametrize("made", [dagad.Shards, dagad.Evaluation], ids=lambda made: made.__name__)
def test_help_on_what_functions_return_shows_what_users_call(made: type) -> None:
    text = help_on(made)
    assert "__" not in text
    assert f"{made.__name__}(" not in text.replace(f"class {made.__name__}(builtins.object)", "")


def sentences(tree: ast.AST) -> Iterator[str]:
    """Yield what is raised, with {} for what is filled in."""
    for node in ast.walk(tree):
        for part in ast.walk(node) if isinstance(node, ast.Raise) else ():
            if isinstance(part, ast.JoinedStr):
                yield "".join(one.value if isinstance(one, ast.Constant) else "{}" for one in part.values)  # type: ignore[misc]  # text
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("dagad.")])
def test_messages_are_in_plain_words(name: str) -> None:
    said = [text for text in sentences(TREES[name]) if PLAIN_WORDS.search(text) or re.search(r"\ba \{\}", text)]
    assert not said


def test_help_begins_with_a_table_of_what_there_is() -> None:
    text = help_on(dagad)
    table = text[: text.index("PACKAGE CONTENTS")]
    errors = {name for name, found in vars(dagad).items() if isinstance(found, type) and issubclass(found, Exception)}
    assert not [name for name in {*dagad.__all__} | errors if name not in table]


def test_all_deliberate_errors_are_public() -> None:
    errors = importlib.import_module("dagad._errors")
    defined = {name for name, found in vars(errors).items() if isinstance(found, type) and not name.startswith("_")}
    assert defined <= vars(dagad).keys()


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_raised_without_a_sentence(name: str) -> None:
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Name):
            assert not node.exc.id[0].isupper(), f"line {node.lineno}"
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            assert node.exc.args, f"line {node.lineno}"


HERE = sorted(Path(__file__).parent.rglob("*.py"))
IGNORED = re.compile(r"#\s*(type: ignore(\[[\w, -]+\])?|noqa(: [A-Z]+\d+(, [A-Z]+\d+)*)?)(?P<reason>.*)")


@pytest.mark.parametrize("path", [*FILES.values(), *HERE], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_is_ignored_has_its_reason_on_the_line(path: Path) -> None:
    if path == Path(__file__):
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = IGNORED.search(line)
        assert match is None or len(match["reason"].strip("# ")) > 3, f"line {number}: {line.strip()}"
