"""The recipes of deploy/, and dask-jobqueue as these tests import it."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
# What Python compiled beside model.py is no recipe.
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
KINDS = {"slurm": "SLURM", "pbs": "PBS", "sge": "SGE"}


def section(queue: str) -> dict[str, Any]:
    """Return what the recipe of a queue sets in Dask's configuration."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / queue / "jobqueue.yaml").read_text(encoding="utf-8"))
    return found


def jobqueue(name: str = "") -> Any:
    """Import dask-jobqueue, which takes SIGINT for itself and writes into the user's configuration: here it doesn't."""
    handler, path = signal.getsignal(signal.SIGINT), dask.config.PATH
    try:
        dask.config.PATH = os.devnull
        return importlib.import_module(f"dask_jobqueue{name}")
    finally:
        dask.config.PATH = path
        signal.signal(signal.SIGINT, handler)


def run(command: str, *more: str, cwd: Path, timeout: float = 90.0, **env: str) -> str:
    """Run a command where recipes are run, and return what it prints; its errors are shown."""
    done = subprocess.run(
        [*shlex.split(command), *more],
        cwd=cwd,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHON": sys.executable,
        **more,
    }


def theta(output: str) -> str:
    """Return what ``fit.py`` found, to the last bit."""
    (found,) = re.findall(r"^theta (.+)$", output, re.MULTILINE)
    return str(found)
