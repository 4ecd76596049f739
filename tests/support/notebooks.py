"""The notebooks of the examples, run in a real kernel; `python tests/support/notebooks.py` saves the outputs."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("tour", "cluster_tour")
CHECKED = "checked"  # tag of the cells that print the same everywhere


def read(name: str) -> Any:
    """Return a notebook as it is saved."""
    text = (EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8")
    return nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]  # nbformat's


def run(name: str, **environment: str) -> Any:
    """Return a notebook as this environment's Python runs it, whatever kernels the user has installed."""
    notebook = read(name)
    with tempfile.TemporaryDirectory() as folder:
        kernel = AsyncKernelManager(
            kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
            transport="ipc",  # sockets in the folder, for nobody else
            connection_file=f"{folder}/kernel.json",
        )
        client = NotebookClient(notebook, km=kernel, timeout=900, record_timing=False, coalesce_streams=True)
        client.execute(cleanup_kc=True, cwd=EXAMPLES, env=os.environ | {"IPYTHONDIR": folder} | environment)
    return notebook


def outputs(notebook: Any) -> Iterator[tuple[Any, Any]]:
    """Give each output, and the cell that it belongs to."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            yield cell, output


def printed(notebook: Any) -> Mapping[str, str]:
    """Return what the cells that are checked print."""
    return {
        cell.id: "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        for cell in notebook.cells
        if CHECKED in cell.metadata.get("tags", ())
    }


def main(names: list[str]) -> None:
    """Run notebooks, and write them with their outputs."""
    for name in names or NAMES:
        notebook = run(name)
        (EXAMPLES / f"{name}.ipynb").write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")  # type: ignore[no-untyped-call]  # nbformat's


if __name__ == "__main__":
    main(sys.argv[1:])
