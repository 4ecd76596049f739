"""Annotations: do a task's resources, workers, retries and priority stay with its linearization and its pullback?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import autograd
import autograd.numpy as np
import dask.array as da
import numpy as onp
import pytest
from dask.base import annotate, collections_to_expr
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph
from distributed import Client, Nanny, Scheduler, SpecCluster

import dagad
from dagad._graphs.layers import annotations_of
from dagad.extend import Recompute
from dagad_scheduler import Role, role_of
from support.clusters import identity

A = onp.array([0.5, -1.0, 2.0])


def squares(x: Any) -> Any:
    return np.sum(x**2)


def told(*collections: Any) -> dict[Any, dict[str, Any]]:
    """Return what a scheduler is told about each key."""
    found: dict[Any, dict[str, Any]] = {}
    expression: Any = collections_to_expr(collections).optimize()
    for kind, values in expression.__dask_annotations__().items():
        for key, value in values.items():
            if value is not None:  # as distributed reads it
                found.setdefault(key, {})[kind] = value
    return found


def by_role(annotations: dict[Any, dict[str, Any]]) -> dict[Any, list[dict[str, Any]]]:
    found: dict[Any, list[dict[str, Any]]] = {}
    for key, own in annotations.items():
        if role_of(key) is not None:
            found.setdefault(role_of(key), []).append(own)
    return found


def test_annotations_are_kept_by_linearization_and_pullback() -> None:
    a, b = delayed(A), delayed(A + 1.0)
    with annotate(resources={"GPU": 1}, priority=7, retries=2, workers=["alice"], allow_other_workers=True):
        product = delayed(np.multiply)(a, b)
    value, gradients = dagad.value_and_gradient(delayed(squares)(product), [a, b])
    whole = {"resources": {"GPU": 1}, "priority": 7, "retries": 2, "workers": ["alice"], "allow_other_workers": True}
    part = {kind: own for kind, own in whole.items() if kind != "resources"}
    found = by_role(told(value, *gradients))
    assert found == {Role.VALUE: [whole], Role.PULLBACK: [whole], Role.GETITEM: [part]}
    tangent = dagad.jvp(delayed(squares)(product), [a, b], [A, A])[1]
    assert by_role(told(tangent)) == {Role.VALUE: [whole], Role.GETITEM: [part] * 2}


def test_an_annotation_that_is_a_function_gets_the_users_key() -> None:
    a = delayed(A)
    with annotate(priority=lambda key: len(key)):
        y = delayed(squares)(a, dask_key_name="nine chars")
    found = by_role(told(dagad.gradient(y, a)))
    assert {own["priority"] for role in found for own in found[role]} == {len("nine chars")}


def test_annotations_around_the_call_are_those_of_the_new_tasks_only() -> None:
    a = delayed(A)
    with annotate(priority=1):
        m = delayed(np.exp)(a)
    y = delayed(squares)(m)
    for wrt in ([a], [a, m]):
        with annotate(priority=5, retries=3):
            gradients = dagad.gradient(y, wrt)
        found = told(*gradients)
        assert m.key not in found  # it has another key here
        assert found[a.key] == {"priority": 1}  # Dask makes a leaf's graph where it is used
        own = by_role(found)
        assert {(each["priority"], each["retries"]) for role in own for each in own[role]} == {(1, 3), (5, 3)}
        assert all(each["priority"] == 5 for each in own[Role.GRADIENT])


def test_annotations_reach_the_second_derivative() -> None:
    a = delayed(A)
    with annotate(resources={"GPU": 1}):
        y = delayed(squares)(a)
    again = dagad.gradient(delayed(np.sum)(dagad.gradient(y, a)), a)
    computed = [own for role, some in by_role(told(again)).items() for own in some if role is not Role.GETITEM]
    assert len(computed) >= 3
    assert all(own == {"resources": {"GPU": 1}} for own in computed)


def test_annotated_tasks_alternate_without_a_cycle_of_layers() -> None:
    x = start = delayed(A)
    for number in range(6):
        with annotate(priority=number):
            x = delayed(np.sin)(x)
        x = delayed(np.multiply)(x, start)
    for wrt in ([start], [start] * 9):
        gradients = dagad.gradient(delayed(np.sum)(x), wrt)
        graph = gradients[0].__dask_graph__()
        assert type(graph) is HighLevelGraph
        assert all(other.__dask_graph__() is graph for other in gradients)
        graph.validate()
        assert len(graph._toposort_layers()) == len(graph.layers)
        assert {own["priority"] for own in annotations_of(graph).values()} == set(range(6))
        culled = graph.cull(gradients[0].__dask_keys__())
        found = culled[gradients[0].key]
        assert found is not None

    def plain(start: Any) -> Any:
        x = start
        for _ in range(6):
            x = np.sin(x) * start
        return np.sum(x)

    onp.testing.assert_allclose(gradients[0].compute(scheduler="sync"), autograd.grad(plain)(A), rtol=1e-12)


def test_a_gradient_of_a_graph_without_annotations_has_none() -> None:
    a = delayed(A)
    gradient = dagad.gradient(delayed(squares)(a), a)
    assert all(layer.annotations is None for layer in gradient.__dask_graph__().layers.values())


# --- on a cluster -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_kinds() -> Iterator[Client]:
    """A cluster of a worker with a resource and one without."""
    options = {"nthreads": 1, "dashboard_address": ":0"}
    workers = {
        "gpu": {"cls": Nanny, "options": {**options, "resources": {"GPU": 1}}},
        "cpu": {"cls": Nanny, "options": options},
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": ":0"}}
    with SpecCluster(workers=workers, scheduler=scheduler) as made, Client(made, set_as_default=False) as client:
        client.wait_for_workers(2)
        yield client


def pids_of(client: Client) -> dict[str, int]:
    workers = identity(client)["workers"]
    names = {address: worker["name"] for address, worker in workers.items()}
    return {names[address]: pid for address, pid in client.run(os.getpid).items()}


def test_pullbacks_run_on_the_worker_that_their_task_is_annotated_with(two_kinds: Client) -> None:
    pids = pids_of(two_kinds)

    def only_here(x: Any) -> Any:
        """Return the square; value and pullback alike fail on the other worker."""

        @autograd.extend.primitive  # type: ignore[untyped-decorator]  # autograd has no types
        def square(x: Any) -> Any:
            assert os.getpid() == pids["gpu"]
            return x**2

        def pulled(ans: Any, x: Any) -> Any:
            def vjp(cotangent: Any) -> Any:
                assert os.getpid() == pids["gpu"]
                return cotangent * 2.0 * x

            return vjp

        autograd.extend.defvjp(square, pulled)
        return np.sum(square(x))

    leaves = [delayed(A + number) for number in range(8)]
    with annotate(resources={"GPU": 1}):
        parts = [delayed(only_here)(leaf) for leaf in leaves]
    y = delayed(sum)(parts)
    for policy in (None, Recompute()):
        value, gradients = dagad.value_and_gradient(y, leaves, policy=policy)
        total, *found = two_kinds.gather(two_kinds.compute([value, *gradients]))
        assert total == pytest.approx(sum(onp.sum((A + number) ** 2) for number in range(8)))
        onp.testing.assert_allclose(found, [2.0 * (A + number) for number in range(8)])
    many = two_kinds.gather(two_kinds.compute(dagad.gradient(y, [*leaves, leaves[0]])))
    onp.testing.assert_allclose(many[-1], 2.0 * A)

    whole: Any = onp.arange(24.0)
    x: Any = da.from_array(whole, chunks=3)
    with annotate(resources={"GPU": 1}):
        sums = x.map_blocks(lambda block: only_here(block)[None], chunks=((1,) * 8,), dtype=float, meta=whole[:0])
    for made in (sums.sum(), (2.0 * sums + 1.0).mean()):
        value, gradient = dagad.value_and_gradient(made, x)
        total, slope = two_kinds.gather(two_kinds.compute([value, gradient]))
        onp.testing.assert_allclose(slope, whole * (2.0 if made.name.startswith("sum") else 0.5))
