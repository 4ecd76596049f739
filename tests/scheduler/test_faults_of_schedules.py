"""Faults under a schedule: when the worker that holds states and tapes dies, do steps run again, to the same bits?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from dask.base import annotate as dask_annotate, compute as dask_compute
from dask.delayed import delayed
from distributed import Client

import dagad
from dagad.extend import Revolve, Segment
from support.clusters import a_cluster, kill
from support.gated_chunks import Watch, bits, watched
from support.waiting import PATIENCE, in_background

pytestmark = [
    pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier"),
]

N_STEPS = 8
START = np.linspace(0.3, 0.9, 4)


def step(state: Any, theta: Any, number: int, folder: str) -> Any:
    return anp.sin(watched(state, number, folder) * theta) + state


def chain(folder: Path) -> tuple[Any, list[Any]]:
    """Return the sum of a state after some steps, and what it depends on."""
    annotate: Any = dask_annotate  # Dask has few types
    start, theta = delayed(START), delayed(0.7)
    state = start
    for number in range(N_STEPS):
        with annotate(dagad_step=number):
            state = delayed(step)(state, theta, number, str(folder))
    return delayed(anp.sum)(state), [start, theta]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with a_cluster(2) as client:
        yield client


SCHEDULES: dict[str, Callable[[Path], Any]] = {
    "segment": lambda folder: Segment(3),
    "revolve": lambda folder: Revolve(2),
    "on disk": lambda folder: Segment(3, disk=str(folder / "states")),
}


@pytest.mark.parametrize("gate", ["value", "pullback"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_death_of_a_worker_costs_only_time(name: str, gate: str, client: Client, tmp_path: Path) -> None:
    client.wait_for_workers(2, PATIENCE)
    open_to_all = Watch(tmp_path, "value", "pullback")
    y, wrt = chain(tmp_path)
    expected = bits(dask_compute(*_flat(dagad.value_and_gradient(y, wrt)), scheduler="sync"))
    open_to_all.close("value", "pullback")
    watch = Watch(tmp_path, "pullback" if gate == "value" else "value")
    graph = _flat(dagad.value_and_gradient(y, wrt, policy=SCHEDULES[name](tmp_path)))
    waiting = in_background(lambda: client.gather(client.compute(graph)))
    try:
        pid = watch.wait(gate, waiting)
        kill(pid)
    finally:
        watch.open("value", "pullback")
    assert bits(waiting.result(PATIENCE)) == expected
    assert watch.again(gate, pid)


def _flat(made: tuple[Any, list[Any]]) -> list[Any]:
    return [made[0], *made[1]]
