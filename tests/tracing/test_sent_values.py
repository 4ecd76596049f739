"""Values being differentiated that Dask is to send: is it said that they can't go, and who can make such tasks?"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dask.delayed import delayed

import dagad

X = np.arange(4.0)


def scaled(rows: Any, t: Any) -> Any:
    return np.sum(rows) * t


TASKS: dict[str, Callable[[Any, Any], Any]] = {
    "delayed": lambda client, t: delayed(scaled)(X, t).compute(),
    "delayed in a list": lambda client, t: sum(delayed(list)([delayed(scaled)(X, t)]).compute()),
    "submit": lambda client, t: client.submit(scaled, X, t).result(),
    "submit a closure": lambda client, t: client.submit(lambda: t * 2.0).result(),
    "map": lambda client, t: sum(client.gather(client.map(scaled, [X, X], [t, t]))),
    "scatter": lambda client, t: client.scatter(t).result(),
}


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("mode", [dagad.grad, lambda loss: lambda t: dagad.jvp(loss, t, 1.0)])
@pytest.mark.parametrize("task", TASKS)
def test_a_task_of_dasks_own_is_refused_where_it_gets_a_value_being_differentiated(
    task: str, mode: Any, cluster: Any
) -> None:
    with cluster.as_current(), pytest.raises(dagad.NotDifferentiableError) as caught:
        mode(lambda t: TASKS[task](cluster, t))(2.0)
    assert re.search(r"`client\.submit`.*Have dagad make the tasks.*reduce_sum.*dagad\.gradient", str(caught.value))


def test_something_else_that_cannot_be_sent_keeps_dasks_words(cluster: Any) -> None:
    with pytest.raises(TypeError, match="Could not serialize object"):
        dagad.grad(lambda t: t * cluster.submit(bool, threading.Lock()).result())(2.0)
