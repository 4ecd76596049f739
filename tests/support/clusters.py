"""Clusters of processes, workers and schedulers that may be killed, and what has to be true of them in the end."""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster

import dagad
from support.waiting import PATIENCE, SOON, until


@contextlib.contextmanager
def a_cluster(n_workers: int, **options: Any) -> Iterator[Client]:
    """Start a cluster of processes with nannies; when all went well, see that nothing is left on it in the end."""
    chosen: dict[str, Any] = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0", **options}
    # A LocalCluster gives up workers for good that are not there some seconds after a death.
    patient = dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"})
    with patient, LocalCluster(n_workers=n_workers, **chosen) as made, Client(made, set_as_default=False) as client:
        try:
            yield client
            assert_empty(client)
        finally:  # distributed hangs when it closes a nanny that is just starting its worker
            with contextlib.suppress(AssertionError):
                until(lambda: len(client.nthreads()) >= len(made.workers))


def identity(client: Client) -> dict[str, Any]:
    """Return what the scheduler says of itself and of all workers.

    `Client.scheduler_info` may lose its own answer: the client overwrites it twice a minute, and then without workers.
    """
    scheduler: Any = client.scheduler
    found: dict[str, Any] = client.sync(scheduler.identity)
    return found


HIDES_DAGAD = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("dagad", "dagad_scheduler"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
"""


def without_dagad(folder: Path) -> str:
    """Return a folder from which processes import first, and then find no dagad."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(HIDES_DAGAD)
    return str(folder)


@contextlib.contextmanager
def a_process(program: str, *arguments: str, path: str = "", **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a scheduler or a worker as one does from a shell, with a folder to import from before all others."""
    command = [sys.executable, "-m", f"distributed.cli.dask_{program}", *arguments, "--no-dashboard"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [path, *sys.path]))} | env
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def a_forked_process(program: str, *arguments: str) -> Iterator[BaseProcess]:
    """Start the same in a process that has imported already what it needs."""
    before = dask.config.get("distributed.nanny.pre-spawn-environ")
    os.environ.update({name: str(value) for name, value in before.items()})  # as nannies do: this may be the first
    process = multiprocessing.get_context("forkserver").Process(target=_run, args=(program, *arguments), daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def _run(program: str, *arguments: str) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    importlib.import_module(f"distributed.cli.dask_{program}").main([*arguments, "--no-dashboard"])


def a_worker(*where: str) -> contextlib.AbstractContextManager[BaseProcess]:
    """Start a worker without a nanny."""
    return a_forked_process("worker", *where, "--no-nanny", "--nthreads", "1")


@contextlib.contextmanager
def a_scheduler(folder: Path) -> Iterator[tuple[Client, BaseProcess]]:
    """Start a scheduler with one worker, each in a process of its own."""
    address = folder / "address"
    where = "--scheduler-file", str(address)
    with a_forked_process("scheduler", *where, "--host", "127.0.0.1", "--port", "0") as scheduler, a_worker(*where):
        until(lambda: address.exists() and address.read_text().endswith("}"))
        with Client(scheduler_file=str(address), set_as_default=False) as client:
            client.wait_for_workers(1, PATIENCE)
            yield client, scheduler


def assert_empty(client: Client) -> None:
    """Wait until nothing is left on a cluster."""
    gc.collect()
    left: list[str] = []

    def is_empty() -> bool:
        left[:] = client.run_on_scheduler(_tasks)
        return not left

    with contextlib.suppress(AssertionError):
        until(is_empty, SOON)
    assert not left, f"left on the scheduler: {left}"


def _tasks(dask_scheduler: Any) -> list[str]:
    return [str(key) for key in dask_scheduler.tasks]


def kill(pid: int) -> None:
    """Kill a process, without giving it time to say so."""
    os.kill(pid, signal.SIGKILL)


def pids_of(client: Client) -> dict[str, int]:
    """Return the process of each worker, by its address."""
    pids: dict[str, int] = client.run(os.getpid)
    return pids


def assert_clear(error: BaseException | None) -> None:
    """See that an error is of a kind that one can catch, and says whom it is about."""
    assert isinstance(error, OSError | RuntimeError | dagad.DagadError), repr(error)
    assert "scheduler" in str(error) or "client" in str(error), repr(error)
