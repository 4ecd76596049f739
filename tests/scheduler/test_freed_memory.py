"""Freed memory: is it kept for the next arrays, no more of it than is agreed, and only where nobody said otherwise?"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dagad
from dagad_scheduler.process import _return_memory_while_paused, keep_freed_memory

pytestmark = pytest.mark.whole("many rounds, workers or bytes: the same is seen of few here")

GLIBC = platform.libc_ver()[0] == "glibc"


@pytest.mark.skipif(not GLIBC, reason="only glibc can be told")
def test_glibc_can_be_set_to_keep_memory() -> None:
    assert keep_freed_memory(256 * 2**20)


@pytest.mark.parametrize("nbytes", [None, 0])
def test_the_allocator_can_be_left_alone(nbytes: Any) -> None:
    assert not keep_freed_memory(nbytes)


class Worker:
    """A Dask worker as far as memory is concerned: whether it is paused, and a loop that runs what is due when told."""

    def __init__(self) -> None:
        self.status = SimpleNamespace(name="running")
        self.loop, self.due = self, list[Any]()

    def add_callback(self, call: Any) -> None:
        self.due.append(call)

    def call_later(self, seconds: float, call: Any) -> None:
        assert seconds < 5.0
        self.due.append(call)

    def turn(self) -> None:
        self.due.pop(0)()


def test_a_worker_that_dask_has_paused_returns_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, returned = Worker(), list[int]()
    monkeypatch.setattr("distributed.get_worker", lambda: worker)
    _return_memory_while_paused(SimpleNamespace(malloc_trim=returned.append))
    worker.turn()
    assert returned == []
    worker.status.name = "paused"
    worker.turn()
    assert returned == [0]
    worker.status.name = "running"
    worker.turn()
    assert returned == [0]
    assert len(worker.due) == 1  # it goes on looking


FAULTS = """
import resource
import dask, numpy as np
import dagad

def faults(rows=None):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        [np.ones(2**20) + 1.0 for _ in range(3)]
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

stock = faults()
with dask.config.set({"dagad.keep-freed-memory": %s}):
    dagad.reduce_sum(faults, np.zeros(1), grainsize=1, scheduler="sync")
print(stock, faults())
"""


@pytest.mark.skipif(not GLIBC, reason="only glibc can be told")
def test_arrays_are_no_longer_faulted_in_again_and_again() -> None:
    own = {"MALLOC_TRIM_THRESHOLD_": "65536"}  # as a Dask nanny has it; here it is the user's
    stock = {name: value for name, value in os.environ.items() if name not in own}  # clusters leave it in there
    told, left, obeyed = (
        subprocess.run(
            [sys.executable, "-c", FAULTS % setting], env=environment, capture_output=True, text=True, check=True
        ).stdout.split()
        for setting, environment in (("2**28", stock), ("None", stock), ("2**28", stock | own))
    )
    assert float(told[0]) > 5_000
    assert float(told[1]) < 2_000
    assert float(left[1]) > 5_000
    assert float(obeyed[1]) > 20_000


KEPT = """
import ctypes
import numpy as np
import dagad

dagad.reduce_sum(lambda rows: rows.sum(), np.zeros(1), grainsize=1, scheduler="sync")
ctypes.CDLL(None).malloc_trim(0)

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

before = resident()
held = [np.ones(2**20 * (1 + i % 3)) for i in range(25)]
del held
print((resident() - before) / 2**20)
"""


@pytest.mark.skipif(not GLIBC, reason="only glibc can be told")
def test_not_more_freed_memory_is_kept_than_after_a_large_array_of_the_users_own() -> None:
    stock = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", KEPT], env=stock, capture_output=True, text=True, check=True)
    assert float(done.stdout) <= 64 + 8


@pytest.mark.skipif(not GLIBC, reason="only glibc can be told")
def test_a_worker_does_not_fault_arrays_in_again_and_again(cluster: Client) -> None:
    def faults(rows: Any) -> float:
        import resource

        np.ones(2**17) + 1.0
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(100):
            np.ones(2**17) + 1.0
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    assert dagad.reduce_sum(faults, np.zeros(4), grainsize=1, scheduler=cluster) < 4 * 2_000
