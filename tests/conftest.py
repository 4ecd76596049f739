"""One scheduler after the other for the same tests, in two tiers, and no threads or processes left behind."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import signal
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context
from hypothesis import given, settings, strategies

from dagad._api import adding_up
from dagad._executors import resident
from dagad._remembered import Remembered
from dagad_scheduler.residents import client as residents
from support import leaks, tiers, tls, versions
from support.leaks import _no_leaks as _no_leaks
from support.waiting import CANARY, PATIENCE

dask.config.set({"dagad.full-tracebacks": True})  # a test that fails is to be understood; users see less

# Tests fork the workers of their own clusters off a process that has imported what these need: a quarter of the work.
# Only imports are shared; what a worker is to do is pickled as ever. In the whole tier the cluster of the session, that
# of most tests, is started as users start theirs, and so are those of all examples, tours and recipes.
dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
get_mp_context()  # which says what to import: what it finds of all that Dask has to do with
multiprocessing.set_forkserver_preload(
    "distributed distributed.http.worker.prometheus dask.array dask.bag pytest "
    "dagad dagad._rules.scipy_rules support.hot_loops".split()
)

# Idle clusters look at themselves up to a hundred times a second: five of them take half of a core.
dask.config.set(
    {
        "distributed.admin.system-monitor.interval": "10s",
        "distributed.admin.tick.interval": "1s",
        "distributed.worker.memory.monitor-interval": "1s",
        "distributed.worker.profile.enabled": False,
    }
)


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there is one process
def pytest_xdist_auto_num_workers() -> int:
    """Return one process more than there are processors: tests wait for other processes a third of their time."""
    has_affinity = hasattr(os, "sched_getaffinity")  # only Linux tells on which ones we may run
    return (len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1) + 1


def pytest_addoption(parser: pytest.Parser) -> None:
    tiers.add_options(parser)
    tls.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it in a job in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    tiers.configure(config)
    tls.configure(config)
    config.pluginmanager.register(leaks.LEAKS, "leaks")


def pytest_report_header() -> list[str]:
    return versions.told()


MANY_OBJECTS = 50_000  # to look at these takes a hundredth of a second
gc.disable()  # until the tests are collected: what is imported and made for them stays


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _hypothesis_has_its_generator() -> None:
    """Have Hypothesis draw once before anything is frozen: it asks the collector whether somebody holds its generator.

    From Python 3.14 on the collector knows the empty variables of a thread, too, and they would be frozen by then.
    """
    given(strategies.none())(settings(max_examples=1, database=None, deadline=None)(lambda nothing: None))()


@pytest.fixture(scope="module", autouse=True)
def _what_is_there_is_not_looked_at() -> None:
    """Leave what tests are made of, and what earlier ones imported and compiled, out of all later collections.

    These are millions of objects, and tests that wait until something is gone collect again and again. Before they are
    frozen all of them are looked at: what is frozen as part of a cycle that somebody still holds would stay for ever.
    """
    gc.enable()  # Dask's slicing of arrays may have left it off
    gc.collect()
    if len(gc.get_objects(generation=2)) > MANY_OBJECTS:
        gc.unfreeze()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _slow_workers_are_waited_for() -> Iterator[None]:
    """Have calls past the scheduler wait for their answers as long as tests do, however slow the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resident, "LEAST_PATIENCE", PATIENCE)
        patch.setattr(residents, "REACH_WITHIN", max(residents.REACH_WITHIN, 4.0 * CANARY))
        yield


@pytest.fixture
def rounds(pytestconfig: pytest.Config) -> Callable[[int], int]:
    """Return how often to do what the whole tier does so many times: a quarter in the quick tier; `--rest` does all."""
    share = 4 if pytestconfig.getoption("tier") == "quick" else 1
    return lambda n: math.ceil(n / share)


@pytest.fixture
def one_in(pytestconfig: pytest.Config) -> Callable[[int, str], bool]:
    """Return whether to try what has a name: of many in a loop the quick tier tries one in n; `--rest` tries all."""
    is_quick = pytestconfig.getoption("tier") == "quick"
    return lambda n, name: not is_quick or zlib.crc32(name.encode()) % n == 0


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Client]:
    options: Any = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    method = "forkserver" if pytestconfig.getoption("tier") == "quick" else "spawn"
    with dask.config.set({"distributed.worker.multiprocessing-method": method}):
        made = LocalCluster(**options)
    with made, Client(made, set_as_default=False) as client:
        leaks.LEAKS.know()
        yield client


@pytest.fixture(scope="session", params=["sync", "threads", "cluster"])
def scheduler(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("cluster") if request.param == "cluster" else request.param


class Met(Remembered[bool]):
    """Functions all of which were looked at before: tests count runs, and some functions don't add up on purpose."""

    def find(self, key: Any) -> bool:
        return True


@pytest.fixture(autouse=True)
def _no_function_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding_up, "_SEEN", Met(1))


@pytest.fixture
def new_functions(_no_function_is_new: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test be the first to call its functions."""
    monkeypatch.setattr(adding_up, "_SEEN", Remembered(64))
