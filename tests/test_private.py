"""What is private elsewhere: does each module take all of it in one place, and is it still there?"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import dagad
import dagad_scheduler

ROOTS = [Path(str(module.__file__)).parent for module in (dagad, dagad_scheduler)]
TASKS = "Alias DataNode Dict GraphNode List Set Task TaskRef Tuple convert_legacy_graph"
TRACER = "TraceStack box_types find_top_boxed_args isbox new_box notrace_primitives trace_primitives_map"

# The one module that takes them, the release in which the whole suite last passed with them, and the names.
SEEN = {
    "dask": (
        "dagad_scheduler.private",
        "2026.8.0",
        {
            "dask._expr": "LLGExpr",
            "dask._task_spec": TASKS,
            "dask.blockwise": "fuse_roots optimize_blockwise",
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
        "2026.8.0",
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
        "2026.8.0",
        {
            "distributed.dashboard.components.scheduler": "BOKEH_THEME env",
            "distributed.dashboard.core": "DaskBokehTornado",
            "distributed.dashboard.scheduler": "template_variables",
        },
    ),
    "autograd": (
        "dagad._engines.autograd.private",
        "1.9.1",
        {
            "autograd": "builtins tracer",
            "autograd.builtins": "SequenceBox",
            "autograd.core": "add_outgrads primitive_jvps primitive_vjps",
            "autograd.numpy": "numpy_boxes numpy_vjps numpy_wrapper",
            "autograd.numpy.numpy_vjps": "unbroadcast_f",
            "autograd.tracer": TRACER,
            "autograd.util": "subvals",
        },
    ),
}
PACKAGES = {name.partition("'")[0] for name in SEEN}
DOCUMENTED = {
    "dask": "annotate base config delayed get_annotations local threaded visualize",
    "dask.base": "compute get_annotations is_dask_collection",
    "dask.callbacks": "Callback",
    "dask.delayed": "Delayed delayed",
    "dask.highlevelgraph": "HighLevelGraph MaterializedLayer",
    "dask.utils": "format_bytes key_split",
    "distributed": "Client SchedulerPlugin Security WorkerPlugin as_completed get_worker rejoin rpc secede",
    "autograd": "numpy",
    "autograd.extend": "Box JVPNode VJPNode VSpace defjvp defjvp_argnums defvjp defvjp_argnums primitive vspace",
    "autograd.numpy": "linalg",
    "autograd.scipy": "linalg special",
}


def taken(path: Path) -> Iterator[tuple[str, str]]:
    """Yield what a file imports from the three: from where, and the name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in PACKAGES:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            dotted = (alias.name for alias in node.names if alias.name.partition(".")[0] in PACKAGES)
            yield from (name.rpartition(".")[::2] if "." in name else (name, "") for name in dotted)


@pytest.mark.parametrize("package", SEEN)
def test_all_that_is_private_is_taken_in_one_module_and_listed(package: str) -> None:
    module, _, names = SEEN[package]
    listed = {(home, name) for home, line in names.items() for name in line.split()}
    assert set(taken(Path(str(pkgutil.resolve_name(module).__file__)))) == listed


def test_nobody_else_takes_what_is_private() -> None:
    homes = {module for module, _, _ in SEEN.values()}
    for root in ROOTS:
        for path in root.rglob("*.py"):
            if ".".join((root.name, *path.relative_to(root).with_suffix("").parts)) in homes:
                continue
            strangers = {pair for pair in taken(path) if pair[1] and pair[1] not in DOCUMENTED.get(pair[0], "").split()}
            assert not strangers, f"{path.name} takes {strangers}: by way of the module that SEEN names, please."


@pytest.mark.parametrize("package", SEEN)
def test_what_is_private_is_still_there(package: str) -> None:
    module, seen, names = SEEN[package]
    installed = version(package.partition("'")[0])
    gone = [
        f"{home}.{name}"
        for home, line in names.items()
        for name in line.split()
        if not hasattr(importlib.import_module(home), name)
    ]
    assert not gone, (
        f"{package} {installed} has no {', '.join(gone)}, last seen in {seen}: find what replaces it, in {module}."
    )
    if installed != seen:
        pytest.skip(f"{package} {installed} has all that was seen in {seen}: write it here once all tests pass.")
