"""A cluster of many small worker processes on one machine, and what it sends: messages and bytes of every process.

All processes are forked from one that has imported what they need, so that a hundred of them start in seconds and fit
into a few gigabytes. The scheduler has a process of its own, as on a cluster, and so have the workers, of one thread
each and without nannies. What workers, scheduler and client tell each other when nothing is asked of them is off, so
that bytes are exact.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dask
from distributed import Client, Scheduler, Worker
from distributed.comm import tcp

import dagad as dagad  # workers have it when they start
from dagad_scheduler.residents.client import resident_client_of

PATIENCE = 120.0
MEMORY = "400MB"
SETTINGS = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.memory.pause": False,
    "distributed.scheduler.work-stealing": False,  # its messages depend on how busy the machine is
}


class Traffic(NamedTuple):
    """What a process has received and sent: messages and bytes; and the seconds of its processor's clock."""

    received: float = 0
    bytes_in: float = 0
    sent: float = 0
    bytes_out: float = 0
    seconds: float = 0

    def since(self, before: Traffic, count: int = 1) -> Traffic:
        """Return what there was since then, for each of so many evaluations."""
        return Traffic(*((now - then) / count for now, then in zip(self, before, strict=True)))


class Wire:
    """Counts what this process reads from TCP connections and writes to them; by peer, for who asks.

    With `bandwidth`, its link takes so many bytes a second, one message after the other.
    """

    def __init__(self, bandwidth: float = math.inf) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._peers: dict[int, str] = {}
        self._bandwidth, self._free = bandwidth, 0.0

    async def _pass(self, n_bytes: int) -> None:
        """Take as long as so many bytes do."""
        if self._bandwidth < math.inf:
            self._free = max(self._free, time.monotonic()) + n_bytes / self._bandwidth
            await asyncio.sleep(self._free - time.monotonic())

    @contextlib.contextmanager
    def counting(self) -> Iterator[Wire]:
        """Count for a while."""
        kinds: Any = tcp
        write, read, read_bytes = kinds.TCP.write, kinds.TCP.read, kinds.read_bytes_rw
        kinds.TCP.write, kinds.TCP.read, kinds.read_bytes_rw = (
            self._write(write),
            self._read(read),
            self._some(read_bytes),
        )
        kinds.TCP.wire = self
        try:
            yield self
        finally:
            kinds.TCP.write, kinds.TCP.read, kinds.read_bytes_rw = write, read, read_bytes
            del kinds.TCP.wire

    def _write(self, write: Callable[..., Awaitable[int]]) -> Any:
        async def counted(comm: Any, *args: Any, **options: Any) -> int:
            written = await write(comm, *args, **options)
            await self._pass(written)
            self._counts["sent", comm.peer_address] += 1
            self._counts["bytes_out", comm.peer_address] += written
            return written

        return counted

    def _read(self, read: Callable[..., Awaitable[Any]]) -> Any:
        async def counted(comm: Any, *args: Any, **options: Any) -> Any:
            self._peers[id(comm.stream)] = comm.peer_address
            message = await read(comm, *args, **options)
            self._counts["received", comm.peer_address] += 1
            self._counts["bytes_in", comm.peer_address] += 8  # that say how long the rest is
            return message

        return counted

    def _some(self, read: Callable[..., Awaitable[Any]]) -> Any:
        async def counted(stream: Any, n_bytes: int) -> Any:
            found = await read(stream, n_bytes)
            await self._pass(n_bytes)
            self._counts["bytes_in", self._peers.get(id(stream), "")] += n_bytes
            return found

        return counted

    def traffic(self, peer: str = "") -> Traffic:
        """Return what there was so far, with one peer if it is given."""
        kinds = Traffic._fields[:-1]
        sums = {
            kind: sum(n for (what, who), n in self._counts.items() if what == kind and peer in ("", who))
            for kind in kinds
        }
        return Traffic(**sums, seconds=time.process_time())


def traffic_here() -> Traffic:
    """Return the traffic of a process of such a cluster."""
    wire: Wire = tcp.TCP.wire  # type: ignore[attr-defined]  # `Wire.counting` puts it there
    return wire.traffic()


@contextlib.contextmanager
def many_workers(n_workers: int) -> Iterator[Client]:
    """Start a cluster of so many workers, and a client of it."""
    with tempfile.TemporaryDirectory() as folder:
        program, pipe = [sys.executable, __file__, str(n_workers), folder], subprocess.PIPE
        env = os.environ | {"DASK_LOGGING__DISTRIBUTED": "warning", "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen(program, stdin=pipe, stdout=pipe, env=env) as started:
            try:
                assert started.stdout is not None
                address = json.loads(started.stdout.readline())
                with Client(address, set_as_default=False) as client:
                    client.wait_for_workers(n_workers, PATIENCE)
                    client.run(be_quiet)
                    client.run_on_scheduler(be_quiet)
                    client.sync(ask_nothing, client)
                    yield client
            finally:
                started.communicate()  # its input ends, and so does it


def be_quiet(dask_worker: Any = None, dask_scheduler: Any = None) -> None:
    """Say nothing any more unless it is asked for."""
    for callback in (dask_worker or dask_scheduler).periodic_callbacks.values():
        callback.stop()


async def ask_nothing(client: Client) -> None:
    """Have a client neither say that it is there nor ask who else is, every few seconds."""
    for callback in client._periodic_callbacks.values():
        callback.stop()


@contextlib.contextmanager
def out_of_reach(client: Client) -> Iterator[None]:
    """Have a client reach its scheduler only, for a while."""
    lines = resident_client_of(client)
    lines._relayed = float("inf")
    try:
        yield
    finally:
        lines._relayed = 0.0


def main(n_workers: int, folder: str) -> None:
    """Be such a cluster until the input ends."""
    dask.config.set(SETTINGS)
    with Wire().counting():
        there, here = multiprocessing.get_context("fork"), Path(folder, "address")
        processes = [there.Process(target=be_scheduler, args=(here,), daemon=True)]
        processes[0].start()
        while not here.exists():
            time.sleep(0.01)
        address = here.read_text()
        for number in range(n_workers):
            processes.append(there.Process(target=be_worker, args=(address, f"{folder}/{number}"), daemon=True))
            processes[-1].start()
        print(json.dumps(address), flush=True)
        sys.stdin.read()
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.join(PATIENCE)
            process.kill()


def be_scheduler(here: Path) -> None:
    """Be the scheduler, and write down where."""

    async def run() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
            here.with_suffix(".new").write_text(scheduler.address)
            here.with_suffix(".new").rename(here)  # it is there at once
            await scheduler.finished()

    asyncio.run(run())


def be_worker(address: str, folder: str) -> None:
    """Be a worker of one thread."""

    async def run() -> None:
        async with Worker(address, nthreads=1, memory_limit=MEMORY, local_directory=folder, dashboard=False) as worker:
            await worker.finished()

    asyncio.run(run())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
