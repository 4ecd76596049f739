"""What the transforms return is a function like any other: does it travel, to processes, clusters and as a task?"""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
from dask.base import compute as dask_compute
from dask.delayed import delayed

import dagad
from dagad._values.digest import digest

compute: Any = dask_compute  # Dask has few types
ROWS = np.arange(1.0, 7.0)
AT = np.array([1.5, -0.5])


def loss(t: Any) -> Any:
    return dagad.reduce_sum(lambda rows, t: np.sum(np.sin(rows * t[0]) * t[1] ** 2), ROWS, t, grainsize=2)


def pair(t: Any) -> Any:
    return loss(t) * np.array([1.0, 2.0])


MADE: dict[str, Callable[[Any], Any]] = {
    "grad": lambda local: dagad.grad(local),
    "value_and_grad": lambda local: dagad.value_and_grad(local),
    "grad of grad": lambda local: dagad.grad(lambda t: np.sum(dagad.grad(local)(t))),
    "jacfwd": lambda local: dagad.jacfwd(lambda t: local(t) * np.array([1.0, 2.0])),
    "jacrev": lambda local: dagad.jacrev(lambda t: local(t) * np.array([1.0, 2.0])),
    "hessian": lambda local: dagad.hessian(local),
    "jvp": lambda local: lambda t: dagad.jvp(local, t, t)[1],
    "hvp": lambda local: lambda t: dagad.hvp(local, t, t),
    "vmap": lambda local: lambda t: dagad.vmap(local)(np.stack([t, 2.0 * t])),
    "vmap of grad": lambda local: functools.partial(_of_two, dagad.vmap(dagad.grad(local))),
}


def _of_two(members: Any, t: Any) -> Any:
    return members(np.stack([t, 2.0 * t]))


def transformed(name: str) -> Any:
    scale = 2.0
    return MADE[name](lambda t: scale * loss(t))


def assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(np.atleast_1d(found), np.atleast_1d(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def flat(found: Any) -> Any:
    return np.concatenate([np.ravel(part) for part in (found if isinstance(found, tuple) else (found,))])


@pytest.mark.parametrize("name", MADE)
def test_a_transformed_function_travels_by_cloudpickle(name: str) -> None:
    fun = transformed(name)
    assert_same(flat(cloudpickle.loads(cloudpickle.dumps(fun))(AT)), flat(fun(AT)))


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_transform_arrives_in_a_process_that_has_not_imported_dagad(tmp_path: Any) -> None:
    fun = dagad.value_and_grad(lambda t: np.sum(t**3))
    (tmp_path / "function").write_bytes(cloudpickle.dumps((fun, AT)))
    program = "import pickle, sys; fun, at = pickle.load(open(sys.argv[1], 'rb')); print(*fun(at)[1])"
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "function")], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == [str(part) for part in 3 * AT**2]


def test_a_transformed_function_is_a_task_of_a_cluster(cluster: Any) -> None:
    for name in MADE:
        fun = transformed(name)
        assert_same(flat(cluster.submit(fun, AT, pure=False).result()), flat(fun(AT)))


@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_a_transformed_function_is_a_delayed_task(scheduler: str) -> None:
    tasks = [delayed(transformed(name))(AT) for name in MADE]
    for found, name in zip(compute(*tasks, scheduler=scheduler), MADE, strict=True):
        assert_same(flat(found), flat(transformed(name)(AT)))


def test_an_evaluation_and_a_pullback_say_that_they_stay() -> None:
    evaluation, (_, pullback) = dagad.evaluate(loss, AT), dagad.vjp(pair, AT)
    evaluation.gradient()
    for dumps in (pickle.dumps, cloudpickle.dumps):
        with pytest.raises(dagad.PortabilityError, match=r"An Evaluation can't be sent.*Send its `\.value\(\)`"):
            dumps(evaluation)
    with pytest.raises(dagad.PortabilityError, match=r"The pullback of `pair` can't be sent.*`dagad\.grad`"):
        cloudpickle.dumps(pullback)


def test_a_chunk_function_takes_members_along_and_is_the_same_whatever_they_have_run(cluster: Any) -> None:
    """Members count how long their calls took, which is no state of a function that holds them."""
    squares = dagad.vmap(lambda row: np.sin(row) ** 2)

    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(squares(rows * t[0])) * t[1]

    def made(**options: Any) -> Any:
        return dagad.vjp(lambda t: dagad.reduce_sum(chunk, ROWS, t, grainsize=2, **options), AT)

    expected = made(scheduler="sync")[1](1.0)[0]
    _, pullback = made(scheduler="sync", policy=dagad.extend.Recompute())
    before = digest(chunk, here=True)
    squares(ROWS)
    assert digest(chunk, here=True) == before
    assert_same(pullback(1.0)[0], expected)
    assert_same(made(scheduler=cluster)[1](1.0)[0], expected)
    assert_same(dagad.jacfwd(squares, scheduler=cluster)(ROWS), dagad.jacfwd(squares)(ROWS))
