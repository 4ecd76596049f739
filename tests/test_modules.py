"""Modules: do they stand in one order, import what is allowed to them, and keep to the size of this house?"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from support.source_files import FILES, ROOTS, functions, text_of, trees

pytestmark = pytest.mark.whole("what the source looks like")

# What `import dagad` has to do without.
OPTIONAL = {
    *("distributed", "bokeh", "graphviz", "jax", "scipy", "narwhals", "rich", "IPython", "prometheus_client"),
    *("torch", "tornado"),
}


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


@functools.cache
def imports() -> dict[str, set[str]]:
    """Return what each module imports, early or late."""
    return {
        name: {module for node in ast.walk(tree) for module in imported(name, node)} for name, tree in trees().items()
    }


def importers(package: str) -> set[str]:
    return {name for name, needed in imports().items() if any(module.partition(".")[0] == package for module in needed)}


# Imported when there is a cluster.
NEED_DISTRIBUTED = {
    f"dagad_scheduler.{name}"
    for name in (
        *("residents.plugin", "watching.plugin", "watching.dashboard"),
        *("private_distributed", "private_dashboard"),
    )
}
# Imported when somebody has imported that part of scipy.
NEED_SCIPY = {
    f"dagad._rules.{name}"
    for name in (
        *(
            "densities",
            "distribution_functions",
            "elliptic",
            "incomplete",
            "line_profiles",
            "special_integrals",
            "bessel_functions",
        ),
        *("multivariate", "scipy_rules", "scipy_linalg", "scipy_sparse", "scipy_stats", "statistics"),
        *("eigenproblems", "matrix_equations", "scipy_banded"),
    )
}
# Imported when somebody asks for that engine.
OTHER_ENGINES = {
    f"dagad._engines.{name}"
    for name in ("jax", "jax_constants", "jax_settings", "torch", "torch_levels", "torch_settings", "torch_turns")
} | {name for name in FILES if name.startswith("dagad._engines.xla.")}
NEIGHBOURS = {name for name in FILES if name.startswith("dagad.interop.")}  # imported by those who want them
SOLVERS = {name for name in FILES if name.startswith("dagad.solvers")}  # they are scipy's
IMPORTED_LATE = NEED_DISTRIBUTED | NEED_SCIPY | OTHER_ENGINES | NEIGHBOURS | SOLVERS


# Order

ROOMS = [
    *("_values", "_tracing", "_rules", "_engines", "_graphs", "_sources", "_kernels", "_executors", "_watching"),
    *("_api", "_diagnosis", "interop"),
]


def room_of(module: str) -> int:
    """Return which room a module is in: the floor is below them all, the doors above."""
    if module in ("dagad", "dagad.extend", "dagad.testing", "dagad.doctor") or module.startswith("dagad.solvers"):
        return len(ROOMS)
    room = module.split(".")[1]
    return ROOMS.index(room) if room in ROOMS else -1


def test_a_room_imports_those_before_it_only() -> None:
    ours = [name for name in FILES if name.startswith("dagad.")]
    needs = [(name, needed) for name in ours for needed in imports()[name] & set(ours)]
    assert not [pair for pair in needs if room_of(pair[1]) > room_of(pair[0])]


def test_contributors_read_of_modules_that_there_are() -> None:
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
    ends = {f"dagad_scheduler.{one}" for one in ("running.cluster", "watching.plugin", "preload")}
    below = {
        "_types",
        "annotations",
        "departures",
        "private",
        "private_distributed",
        "process",
        "roles",
        "run",
        "workers",
    }
    for name, needed in imports().items():
        inside = name.startswith("dagad_scheduler.residents")
        theirs = {module for module in needed if module.startswith("dagad_scheduler.residents")}
        may = name in ends or name.startswith("dagad._executors.resident")
        assert inside or may or not theirs
        ours = {module.partition(".")[2] for module in needed - theirs if module.startswith("dagad_scheduler")}
        assert not inside or ours <= below


# What the other folders of the scheduler are made of stands beside them; `preload` is a door.
FOLDERS = ["residents", "watching", "running"]


def folder_of(module: str) -> int:
    folder = module.split(".")[1] if "." in module else ""
    return FOLDERS.index(folder) if folder in FOLDERS else -1


def test_a_folder_of_the_scheduler_imports_those_before_it_only() -> None:
    theirs = {name for name in FILES if name.startswith("dagad_scheduler.")} - {"dagad_scheduler.preload"}
    needs = [(name, needed) for name in theirs for needed in imports()[name] & theirs]
    assert not [pair for pair in needs if folder_of(pair[1]) > folder_of(pair[0])]


def test_no_module_needs_itself_by_way_of_others() -> None:
    graph = {name: needed & FILES.keys() - {name} for name, needed in imports().items()}
    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the cycle
    assert order.index("dagad._errors") < order.index("dagad._sources.plan") < order.index("dagad._api.reductions")
    assert order[-1] in ("dagad", "dagad.testing", "dagad.doctor")


def test_the_scheduler_knows_nothing_of_dagad() -> None:
    assert not {name for name in importers("dagad") if name.startswith("dagad_scheduler")}


# Nodes and keys, and which releases these are of.
OF_GRAPHS = {f"dagad_scheduler.{name}" for name in ("private", "releases", "roles")}


HOLD_THE_COLLECTOR = {"dagad._tracing.tape", "dagad._graphs.fused", "dagad._api.collections"}


def test_only_the_evaluation_talks_to_the_scheduler() -> None:
    ours = {
        name
        for name, needed in imports().items()
        if any(module.startswith("dagad_scheduler") for module in needed - OF_GRAPHS)
    } - {name for name in FILES if name.startswith("dagad_scheduler")}
    residents = {name for name in ours if name.startswith("dagad._executors.resident")}
    assert ours - residents == {
        "dagad._executors.evaluation",
        "dagad._executors.profile",
        *HOLD_THE_COLLECTOR,
    }
    there = {need for name in HOLD_THE_COLLECTOR for need in imports()[name] if need.startswith("dagad_scheduler")}
    assert there <= {"dagad_scheduler.process", *OF_GRAPHS}


def test_only_the_tree_talks_to_optree_and_knows_traced_values() -> None:
    assert importers("optree") == {"dagad._values.pytree"}
    assert {name for name in importers("autograd") if "_values" in name} == {"dagad._values.pytree"}


def test_derivatives_and_schedulers_do_not_meet() -> None:
    assert not {name for name in importers("autograd") if name.startswith("dagad_scheduler")}


def test_a_plan_knows_no_dask_and_no_derivatives() -> None:
    assert "dagad._sources.plan" not in importers("dask") | importers("autograd") | importers("dagad_scheduler")


def packages(modules: Iterable[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def imported_late(name: str) -> set[str]:
    """Return what the functions of a module import."""
    late = [node for function in functions(trees()[name]) for part in function.body for node in ast.walk(part)]
    return {module for node in late for module in imported(name, node)}


def test_only_optional_packages_are_imported_late() -> None:
    late = {name: packages(imported_late(name) - IMPORTED_LATE) - OPTIONAL for name in FILES}
    assert not {name: found for name, found in late.items() if found}


def test_no_optional_package_is_imported_early() -> None:
    early = {
        name: packages(module for node in trees()[name].body for module in imported(name, node)) & OPTIONAL
        for name in FILES.keys() - IMPORTED_LATE
    }
    assert not {name: found for name, found in early.items() if found}


def test_no_module_imports_for_type_checkers_only() -> None:
    assert not [name for name in FILES if "TYPE_CHECKING" in text_of(name)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("module", ["dagad", "dagad.extend", "dagad.testing", "dagad_scheduler"])
def test_importing_brings_in_no_optional_package(module: str) -> None:
    heavy = OPTIONAL | {"scipy.optimize", "matplotlib", "pandas", "polars", "pyarrow", "zarr", "xarray"}
    code = f"import sys, {module}; print([name for name in sorted(sys.modules) if name in {sorted(heavy)}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_dagad_has_four_public_submodules() -> None:
    public = {name for name in FILES if name.startswith("dagad.") and "._" not in name and ".interop" not in name}
    assert public == {"dagad.extend", "dagad.solvers", "dagad.testing", "dagad.doctor"}  # the last one is a command


def test_the_init_modules_hold_imported_names_only() -> None:
    kinds = {type(node) for package in ROOTS for node in trees()[package].body[1:]}
    assert kinds <= {ast.ImportFrom, ast.Assign}


def test_both_packages_ship_their_types() -> None:
    assert not [package for package, root in ROOTS.items() if not (root / "py.typed").exists()]


# Size


def test_each_file_is_short() -> None:
    lines = {name: len(text_of(name).splitlines()) for name in FILES}
    assert not {name: n for name, n in lines.items() if n > 450}


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    docstring = ast.get_docstring(function, clean=False)
    return (function.end_lineno or 0) - function.lineno + 1 - (docstring.count("\n") + 1 if docstring else 0)


def test_each_function_fits_on_a_screen() -> None:
    lines = {
        f"{name}.{function.name}": length(function) for name, tree in trees().items() for function in functions(tree)
    }
    assert not {name: n for name, n in lines.items() if n > 45}
