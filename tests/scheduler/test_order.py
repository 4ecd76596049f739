"""Order: does the scheduler's own record show that all values are there before the gradients take up the workers?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client, get_task_stream

import dagad
from dagad.extend import Keep, Recompute
from dagad_scheduler import Role
from dagad_scheduler.roles import role_of
from support.waiting import PATIENCE

pytestmark = pytest.mark.sampled(3)

N_CHUNKS = 200
X = np.random.default_rng(0).standard_normal((N_CHUNKS * 50, 3))
THETA = np.array([0.3, -0.7, 1.1])


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))


def loss_on(scheduler: Any, policy: Any) -> Callable[[Any], Any]:
    return lambda theta: dagad.reduce_sum(chunk, X, theta, grainsize=50, policy=policy, scheduler=scheduler)


def spans(records: Any, role: Role) -> list[tuple[float, float]]:
    """Return when the tasks of a role began and ended to compute, as their workers said, in the order of beginnings."""
    found = [record["startstops"] for record in records if role_of(record["key"]) == role]
    computing = [step for steps in found for step in steps if step["action"] == "compute"]
    return sorted((step["start"], step["stop"]) for step in computing)


@pytest.mark.parametrize("policy", [Keep(), Recompute(), None], ids=["keep", "recompute", "default"])
def test_the_last_value_lands_before_the_tenth_pullback_starts(policy: Any, cluster: Client) -> None:
    with get_task_stream(cluster) as stream:
        evaluation = dagad.evaluate(loss_on(cluster, policy), THETA)
        value, gradient = evaluation.value(PATIENCE), evaluation.gradient(PATIENCE)
    expected = dagad.value_and_grad(loss_on("sync", policy))(THETA)
    assert value == expected[0]
    assert gradient.tobytes() == expected[1].tobytes()
    values, pullbacks = spans(stream.data, Role.VALUE), spans(stream.data, Role.PULLBACK)
    assert len(values) == len(pullbacks) == N_CHUNKS
    assert len({record["worker"] for record in stream.data}) == 2
    assert max(stop for _, stop in values) < pullbacks[9][0]
