"""Departures: does a worker give up at once what it asks of one that is gone?"""

from __future__ import annotations

import time
from typing import Any

from dagad_scheduler.workers import workers_of
from support.clusters import a_cluster, kill, pids_of
from support.waiting import PATIENCE, SOON

HELD = 0.5  # seconds for which the scheduler keeps what it has to say, where it waits for milliseconds


def hold(address: str, dask_scheduler: Any) -> None:
    """Have the scheduler say all at once to a worker what there is to say in half a second."""
    dask_scheduler.stream_comms[address].interval = HELD


def plus_one(number: int) -> int:
    return number + 1


def test_a_task_whose_input_dies_while_it_is_sent_does_not_wait_for_dasks_patience() -> None:
    with a_cluster(2) as client:
        workers_of(client).fit()  # what is asked before anything is sent
        (here, pid), (there, _) = pids_of(client).items()
        at: Any = {"allow_other_workers": True, "pure": False}
        one = client.submit(int, 1, workers=[here], **at)
        one.result()
        client.run_on_scheduler(hold, there)
        client.submit(plus_one, 1, workers=[there], **at).result()  # what comes after a message is kept
        two = client.submit(plus_one, one, workers=[there], **at)
        kill(pid)
        began = time.perf_counter()
        assert two.result(PATIENCE) == 2
        assert time.perf_counter() - began < SOON
        del one, two
