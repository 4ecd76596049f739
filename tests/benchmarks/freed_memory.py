"""What it costs that freed memory goes back to the system: ``python tests/benchmarks/freed_memory.py [--rounds N]``.

Dask starts its workers so that glibc returns freed memory at once. Two workers take turns at the gradient of a million
rows by plain autograd, in 16 chunks, by their own clock: one as it was started, and one in which dagad has had it kept,
as the setting `dagad.keep-freed-memory` says. Printed are the shortest runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import report
from chunking import Data, loop, simulate, timed
from distributed import Client, LocalCluster
from threadpoolctl import threadpool_limits

from dagad_scheduler.process import keep_freed_memory

HERE = str(Path(__file__).parent)


def seconds(data: Data) -> float:
    """Return the seconds of the processor that the gradient takes here."""
    theta = {"beta": np.zeros(3), "log_sd": 0.0, "z": np.zeros(1_000)}
    with threadpool_limits(1):
        return timed(lambda: loop(data, 16, theta), 2)[0]


@contextmanager
def worker(keeps: bool) -> Iterator[Client]:
    """Yield a client of one worker, as Dask starts it, told to keep freed memory or not."""
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.run(sys.path.insert, 0, HERE)
        if keeps:
            assert client.submit(keep_freed_memory, 256 * 2**20, pure=False).result()
        yield client


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    print(report.machine()["cpu"], report.machine()["memory"])
    with worker(keeps=False) as returning, worker(keeps=True) as keeping:
        clients = {"memory goes back at once": returning, "memory is kept": keeping}
        data = {name: client.submit(simulate, 1_000_000, 1_000) for name, client in clients.items()}
        least = dict.fromkeys(clients, float("inf"))
        for _ in range(options.rounds):
            for name, client in clients.items():
                least[name] = min(least[name], client.submit(seconds, data[name], pure=False).result())
    for name, each in least.items():
        print(f"{name:26} {1e3 * each:6.1f} ms")


if __name__ == "__main__":
    main()
