"""What is private elsewhere: does each module take all of it in one place, and and which releases have it?"""

from __future__ import annotations

import ast
import importlib
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from dagad_scheduler import releases
from support import versions
from support.source_files import trees

PROJECT = Path(__file__).parents[1]
TASKS = "Alias DataNode Dict GraphNode List Set Task TaskRef Tuple convert_legacy_graph"
TRACER = "TraceStack box_types find_top_boxed_args isbox new_box notrace_primitives trace_primitives_map"

# The one module that takes them, and the names; `dagad_scheduler.releases` says which releases are known to have them.
TAKEN = {
    "dask": (
        "dagad_scheduler.private",
        {
            "dask._expr": "LLGExpr",
            "dask._task_spec": TASKS,
            "dask.blockwise": "Blockwise fuse_roots optimize_blockwise",
            "dask.callbacks": "local_callbacks unpack_callbacks",
            "dask.core": "flatten",
            "dask.dot": "graphviz_to_file",
            "dask.local": "finish_task start_state_from_dask",
            "dask.system": "CPU_COUNT",
            "dask.utils": "ensure_dict",
        },
    ),
    "distributed": (
        "dagad_scheduler.private_distributed",
        {
            "distributed.comm.core": "connect",
            "distributed.core": "Status clean_exception",
            "distributed.diagnostics.task_stream": "TaskStreamPlugin",
            "distributed.http.utils": "RequestHandler",
            "distributed.protocol.pickle": "dumps",
            "distributed.protocol.serialize": "to_serialize",
            "distributed.worker_state_machine": "SecedeEvent",
        },
    ),
    "distributed's dashboard": (
        "dagad_scheduler.private_dashboard",
        {
            "distributed.dashboard.components.scheduler": "BOKEH_THEME env",
            "distributed.dashboard.core": "DaskBokehTornado",
            "distributed.dashboard.scheduler": "template_variables",
        },
    ),
    "jax": (  # all of it public, for those who extend jax, and apt to change
        "dagad._engines.xla.jaxs_core",
        {"jax": "typeof", "jax.core": "Trace Tracer", "jax.extend.core": "set_current_trace take_current_trace"},
    ),
    "autograd": (
        "dagad._tracing.private",
        {
            "autograd": "builtins tracer",
            "autograd.builtins": "SequenceBox",
            "autograd.core": "SparseObject add_outgrads primitive_jvps primitive_vjps",
            "autograd.numpy": "numpy_boxes numpy_vjps numpy_wrapper",
            "autograd.numpy.numpy_vjps": "unbroadcast_f",
            "autograd.tracer": TRACER,
            "autograd.util": "subvals",
        },
    ),
}
NEEDED_BY = {"distributed's dashboard": "bokeh", "jax": "jax"}  # which the quick tier has not
INSTALLED = [
    pytest.param(package, marks=pytest.mark.needs(NEEDED_BY[package]) if package in NEEDED_BY else ())
    for package in TAKEN
]
PACKAGES = {name.partition("'")[0] for name in TAKEN}
DOCUMENTED = {
    "dask": "annotate base config delayed get_annotations local threaded visualize",
    "dask.base": "compute get_annotations is_dask_collection",
    "dask.callbacks": "Callback",
    "dask.delayed": "Delayed delayed",
    "dask.highlevelgraph": "HighLevelGraph MaterializedLayer",
    "dask.sizeof": "sizeof",
    "dask.utils": "format_bytes key_split",
    "distributed": "Client Future SchedulerPlugin Security WorkerPlugin as_completed get_worker rejoin rpc secede",
    "autograd": "numpy",
    "autograd.extend": "Box JVPNode VJPNode VSpace defjvp defjvp_argnums defvjp defvjp_argnums primitive vspace",
    "autograd.numpy": "linalg",
    "autograd.scipy": "linalg special",
}


def taken(module: str) -> Iterator[tuple[str, str]]:
    """Yield what a module of ours imports from the three: from where, and the name."""
    for node in ast.walk(trees()[module]):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in PACKAGES:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            dotted = (alias.name for alias in node.names if alias.name.partition(".")[0] in PACKAGES)
            yield from (name.rpartition(".")[::2] if "." in name else (name, "") for name in dotted)


def is_documented_in_jax(home: str) -> bool:
    """Return whether something is in a module of jax's that users may import."""
    return home.partition(".")[0] == "jax" and not home.startswith("jax._src")


def gone(names: dict[str, str]) -> list[str]:
    """Return those that are not there, modules that are not there among them."""
    found = []
    for home, line in names.items():
        try:
            module = importlib.import_module(home)
        except ModuleNotFoundError:
            found.append(home)
        else:
            found += [f"{home}.{name}" for name in line.split() if not hasattr(module, name)]
    return found


def told(package: str, names: dict[str, str]) -> str:
    """Return what is to be said of what is gone, and nothing where all is there."""
    missing, module = gone(names), TAKEN[package][0]
    of = package.partition("'")[0]
    oldest, newest = releases.SEEN[of]
    if not missing:
        return ""
    return (
        f"{package} {version(of)} has no {', '.join(missing)}, as {oldest} to {newest} have: "
        f"find what took its place, for both, in {module}."
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("package", TAKEN)
def test_private_names_of_a_package_are_taken_in_one_module_and_listed(package: str) -> None:
    module, names = TAKEN[package]
    listed = {(home, name) for home, line in names.items() for name in line.split()}
    assert set(taken(module)) == listed


def test_no_other_module_takes_private_names_of_packages() -> None:
    homes = {module for module, _ in TAKEN.values()}
    for module in trees().keys() - homes:
        pairs = [pair for pair in taken(module) if not is_documented_in_jax(pair[0])]
        strangers = {pair for pair in pairs if pair[1] and pair[1] not in DOCUMENTED.get(pair[0], "").split()}
        assert not strangers, f"{module} takes {strangers}: by way of the module that TAKEN names, please."


@pytest.mark.parametrize("package", INSTALLED)
def test_private_names_that_dagad_takes_are_still_there(package: str) -> None:
    assert not (words := told(package, TAKEN[package][1])), words


def test_a_private_name_that_is_gone_is_named_with_release_and_module() -> None:
    words = told("dask", {"dask.utils": "ensure_dict moved_away", "dask.no_module": "name"})
    assert words.startswith(
        f"dask {version('dask')} has no dask.utils.moved_away, dask.no_module, as 2025.11.0 to 2026."
    )
    assert words.endswith("in dagad_scheduler.private.")


# The window


def test_an_import_of_a_private_name_that_is_gone_says_which_releases_have_it() -> None:
    for line in ("from dask.utils import moved_away", "from dask import moved_away", "import dask.no_module"):
        with pytest.raises(ImportError) as caught, releases.taken_from("dask"):
            exec(line)
        (note,) = caught.value.__notes__
        assert f"dask {version('dask')} has not got" in note
        assert '"dask>=2025.11.0,<=2026.' in note
    for line in ("import no_such_package", "from collections import moved_away"):  # Dask is not to blame
        with pytest.raises(ImportError) as caught, releases.taken_from("dask"):
            exec(line)
        assert not hasattr(caught.value, "__notes__")


def test_a_newer_release_with_all_private_names_is_noted_and_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(releases.SEEN, "dask", ("2025.1.0", "2025.2.0"))
    first, *newer = versions.told()
    assert f"dask {version('dask')}, distributed" in first
    assert newer == [line for line in newer if "is newer than" in line]
    assert f"dask {version('dask')} is newer than 2025.2.0, the last release that is known to pass" in "".join(newer)
    test_private_names_that_dagad_takes_are_still_there("dask")


def pinned() -> dict[str, str]:
    lines = (PROJECT / ".ci" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def requirements() -> dict[str, list[Requirement]]:
    """Return what dagad needs, under the empty name, and what each of its extras does."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: [Requirement(line) for line in lines] for extra, lines in lists.items()}


def needed(extra: str) -> Iterator[Requirement]:
    """Yield what dagad needs with one of its extras, with those in it."""
    for requirement in requirements()[extra]:
        if requirement.name == "dagad":
            for inner in requirement.extras:
                yield from needed(inner)
        else:
            yield requirement


def test_the_oldest_releases_tested_are_the_oldest_that_dagad_takes() -> None:
    lowest = {one.name: str(one.specifier).removeprefix(">=") for extra in ("", "scipy") for one in needed(extra)}
    for name, release in lowest.items():
        assert Version(pinned()[name]) == Version(release), name
    assert {name: oldest for name, (oldest, _) in releases.SEEN.items()}.items() <= pinned().items()


def test_the_pins_of_the_oldest_releases_satisfy_the_extra_test() -> None:
    for requirement in needed("test"):
        assert requirement.specifier.contains(pinned()[requirement.name]), requirement


def test_the_readme_tells_the_window() -> None:
    text = " ".join((PROJECT / "README.md").read_text(encoding="utf-8").split())
    oldest = {name: ".".join(release.split(".")[:2]) for name, release in pinned().items()}
    words = "Dask {dask}, numpy {numpy}, autograd {autograd}, scipy {scipy}".format(**oldest)
    assert words in text
    assert pinned()["dask"] == pinned()["distributed"]
