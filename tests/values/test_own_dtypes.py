"""Own dtypes: do arrays that come from elsewhere have the dtype objects of the process that they arrive in?"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from autograd.extend import defvjp, primitive
from distributed import Client

import dagad
from dagad.extend import Keep, Preaccumulate, Recompute


def foreign(leaf: Any) -> Any:
    """Return a copy whose dtype equals this process's own but is another object, as from any pickle."""
    made = pickle.loads(pickle.dumps(leaf))
    assert made.dtype == leaf.dtype
    assert made.dtype is not leaf.dtype
    return made


def count_own(*arrays: Any) -> float:
    plain = [getattr(array, "_value", array) for array in arrays]
    return float(sum(array.dtype is np.dtype(array.dtype.char) for array in plain))


X = np.arange(6.0)
PAIRS = np.linspace(-1.0, 1.0, 24).reshape(12, 2)
DATA: dict[str, tuple[Any, Callable[[Any], list[Any]]]] = {
    "array": (X, lambda rows: [rows]),
    "tuple": ((X, X > 2, X.astype(np.float32)), list),
    "dict": ({"x": X, "i": np.arange(6)}, lambda rows: list(rows.values())),
    "list": ([X, X[:2]] * 3, list),
}


@pytest.mark.parametrize("kind", DATA)
def test_rows_arrive_with_the_process_own_dtype(kind: str, scheduler: Any) -> None:
    data, arrays = DATA[kind]

    def own(rows: Any) -> float:
        return count_own(*arrays(rows)) / len(arrays(rows))

    leaves, treedef = dagad._values.pytree.flatten(data)
    data = dagad._values.pytree.unflatten(treedef, [foreign(leaf) for leaf in leaves])
    assert dagad.reduce_sum(own, data, grainsize=2, scheduler=scheduler) == 3.0


def test_shared_and_closed_over_arrays_arrive_with_the_process_own_dtype(scheduler: Any) -> None:
    hidden = foreign(X)

    def own(rows: Any, array: Any, pair: Any, record: Any) -> float:
        return count_own(array, *pair, record["deep"][0], hidden) / 5

    shared = foreign(X), (foreign(X), foreign(X > 1)), {"deep": [foreign(X)]}
    found = dagad.reduce_sum(own, X, *shared, grainsize=2, scheduler=scheduler)
    if isinstance(scheduler, Client):
        assert found == 3.0
    else:
        assert found >= 3 * 4 / 5  # without a journey a closure is as the user made it


@pytest.mark.parametrize("policy", [Keep(), Recompute(), Preaccumulate()], ids=["keep", "recompute", "preaccumulate"])
def test_differentiated_arguments_arrive_with_the_process_own_dtype(policy: Any, scheduler: Any) -> None:
    def own(rows: Any, theta: Any) -> Any:
        return count_own(rows, theta["beta"]) / 2 + 0.0 * anp.sum(theta["beta"]) * anp.sum(rows)

    def total(x: Any, theta: Any) -> Any:
        return dagad.reduce_sum(own, x, theta, grainsize=2, policy=policy, scheduler=scheduler)

    value, _ = dagad.value_and_grad(total, (0, 1))(foreign(X), {"beta": foreign(X)})
    assert value == 3.0


def test_all_arrays_in_a_chunk_on_a_worker_have_its_own_dtype(cluster: Any) -> None:
    closed, gathered = PAIRS[:3].copy(), {"deep": [PAIRS[:2].astype("f4"), np.arange(3)]}

    def fast(array: Any) -> bool:
        return array.dtype is np.dtype(array.dtype.char) and array.flags.aligned

    def chunk(rows: Any, theta: Any, shared: Any) -> Any:
        plain = [
            np.asarray(getattr(array, "_value", array)) for array in (rows["x"], rows["n"], *rows["l"], theta, shared)
        ]
        seen = [fast(array) for array in (*plain, closed, *gathered["deep"])]
        return anp.sum(theta) * float(all(seen))

    rows = {"x": PAIRS, "n": np.arange(12), "l": [np.ones(i) for i in range(12)]}
    losses: list[Any] = [
        lambda t: dagad.reduce_sum(chunk, rows, t, PAIRS, grainsize=5, scheduler=cluster),
        lambda t: dagad.reduce_sum(chunk, rows | {"x": PAIRS * t[0]}, t, PAIRS, grainsize=5, scheduler=cluster),
    ]
    for loss in losses:
        assert dagad.grad(loss)(np.ones(2)).tolist() == [3.0, 3.0]
        assert dagad.vjp(loss, np.ones(2))[1](1.0)[0].tolist() == [3.0, 3.0]
        assert loss(np.ones(2)) == 6.0


def test_cotangents_pulled_on_a_worker_have_its_own_dtype(cluster: Any) -> None:
    looked_at: Any = primitive(lambda x: x * 1.0)

    def check(ans: Any, x: Any) -> Any:
        return lambda g: g * float(g.dtype is np.dtype("f8") and g.flags.aligned)

    defvjp(looked_at, check)
    _, pullback = dagad.vjp(
        lambda t: dagad.reduce_sum(
            lambda rows, t: looked_at(t * anp.sum(rows)), PAIRS, t, grainsize=5, scheduler=cluster
        ),
        np.ones((3, 2)),
    )
    for _ in range(3):
        assert np.allclose(pullback(np.ones((3, 2)))[0], PAIRS.sum())
