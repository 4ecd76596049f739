"""What one process of a cluster says of itself: sent by value, for a worker may have no dagad."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any

import dask

PACKAGES = "numpy", "dask", "distributed", "autograd", "dagad", "cloudpickle", "msgpack"
THREADS = "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"
SETTINGS = (
    "distributed.scheduler.allowed-failures",
    "distributed.scheduler.idle-timeout",
    "distributed.worker.lifetime.stagger",
    "distributed.worker.memory.spill",
    "distributed.deploy.lost-worker-timeout",
)


def facts(dask_worker: Any = None) -> dict[str, Any]:
    """Return what this process is, has and can import; Dask gives the worker, or the scheduler, that it is asked on."""
    packages, failures = {}, {}
    for name in PACKAGES:
        try:
            module = importlib.import_module(name)
            packages[name] = str(getattr(module, "__version__", None) or importlib.metadata.version(name))
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
    found = {
        "time": time.time(),
        "python": platform.python_version(),
        "packages": packages,
        "failures": failures,
        "host": socket.gethostname(),
        "cpu": cpu_model(),
        "n_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "threads": {name: os.environ.get(name) for name in THREADS},
        "flushes": flushes_to_zero(),
        "settings": {name: dask.config.get(name, None) for name in SETTINGS},
    }
    if hasattr(dask_worker, "lifetime"):
        found["directory"] = dask_worker.local_directory
        found["free"] = shutil.disk_usage(dask_worker.local_directory).free
        found["lifetime"] = dask_worker.lifetime
    elif dask_worker is not None:
        found["idle_timeout"] = dask_worker.idle_timeout
        found["allowed_failures"] = dask_worker.allowed_failures
    return found


def cpu_model() -> str:
    """Return the name of the processor, by which numpy chooses its loops."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def flushes_to_zero() -> bool:
    """Return whether numbers below 2.2e-308 are lost in this thread: some libraries do that when they are loaded."""
    return sys.float_info.min / 4.0 * float(len("x")) == 0.0


def at_work(peer: str | None, size: int) -> dict[str, Any]:
    """Return what a thread of a worker sees, and how far away another worker is; run as a task."""
    from distributed import get_worker, rpc

    found: dict[str, Any] = {"flushes": flushes_to_zero()}
    if peer is not None:
        security = get_worker().security.get_connection_args("worker")
        try:
            found["line"] = asyncio.run(measured(rpc(peer, connection_args=security), size))
        except Exception as error:
            found["failure"] = f"{type(error).__name__}: {error}"
    return found


async def measured(line: Any, size: int, timeout: float = 10.0) -> tuple[float, float]:
    """Return the seconds of a round trip, and the bytes per second both ways."""
    try:
        await asyncio.wait_for(line.echo(data=b""), timeout)
        trips = []
        for _ in range(15):
            began = time.perf_counter()
            await asyncio.wait_for(line.echo(data=b""), timeout)
            trips.append(time.perf_counter() - began)
        began, data = time.perf_counter(), os.urandom(size)
        await asyncio.wait_for(line.echo(data=data), timeout)
        return sorted(trips)[len(trips) // 2], 2 * size / (time.perf_counter() - began)
    finally:
        await line.close_rpc()
