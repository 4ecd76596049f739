"""The graph of y: is what it does not need refused, and does all that Dask makes of graphs come out right?"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as np
import dask.array as da
import numpy as onp
import pytest
from dask._task_spec import Task, TaskRef
from dask.base import compute as dask_compute, optimize as dask_optimize
from dask.config import set as dask_set
from dask.delayed import Delayed, delayed

import dagad

compute: Any = dask_compute  # Dask has few types
optimize: Any = dask_optimize
A = onp.array([0.5, -1.0, 2.0])


def where(scheduler: Any) -> dict[str, Any]:
    return {"scheduler": scheduler} if isinstance(scheduler, str) else {"scheduler": scheduler.get}


def quartic(x: Any) -> Any:
    return np.sum(x**4)


f: Any = delayed(quartic)


# --- what y does not need ---------------------------------------------------------------------------------------------


def cut_off(w: Any) -> dict[str, Any]:
    """Return what is made of w, or of the same data, without w in its graph."""
    return {
        "persisted": f((w * 2.0).persist(scheduler="sync")),
        "a persisted gradient": f(dagad.gradient(f(w), w).persist(scheduler="sync")),
        "y persisted": f(w).persist(scheduler="sync"),
        "another Delayed of the same data": f(delayed(A)),
        "data of an array": f(delayed(da.from_array(A)).persist(scheduler="sync")),
        "lies in the mapping": Delayed("y", {**w.__dask_graph__(), "y": Task("y", quartic, 2.0)}),
    }


@pytest.mark.parametrize("name", cut_off(delayed(A)))
def test_a_gradient_in_a_leaf_that_y_does_not_need_is_refused(name: str) -> None:
    w = delayed(A)
    y = cut_off(w)[name]
    refused: list[Callable[[], Any]] = [
        lambda: dagad.gradient(y, {"w": [w]}),
        lambda: dagad.value_and_gradient(y, w),
        lambda: dagad.jvp(y, w, onp.ones(3)),
    ]
    for ask in refused:
        with pytest.raises(dagad.NotDifferentiableError, match=rf"{w.key}.*before that.*`unused=\"zeros\"`"):
            ask()
    found = compute(dagad.gradient(y, w, unused="zeros"), scheduler="sync")[0]
    assert (found.shape, found.dtype, found.any()) == ((3,), float, False)


def test_an_error_counts_the_many_leaves_that_y_does_not_need() -> None:
    strangers = [delayed(A) for _ in range(5)]
    w = delayed(A)
    with pytest.raises(dagad.NotDifferentiableError, match="and 2 more"):
        dagad.gradient(f(w), [w, *strangers])
    found = compute(dagad.gradient(f(w), [strangers[0] * 2.0, w], unused="zeros"), scheduler="sync")[0]
    onp.testing.assert_allclose(found, [onp.zeros(3), 4 * A**3])


def test_a_node_that_y_does_not_depend_on_has_a_gradient_of_zeros() -> None:
    """It is in the graph: y's task reads it, or that of another derivative does."""
    x, a = delayed(A), delayed(2.0)
    y = f(x) + a
    of_x, of_a = dagad.gradient(y, [x, a])
    again = [dagad.gradient(delayed(np.sum)(of_x), a), dagad.gradient(of_a, [x, a]), dagad.gradient(of_a * 1.0, of_a)]
    found = compute(*again, dagad.gradient(delayed(lambda x, a: np.sum(x))(x, a), a), scheduler="sync")
    assert (found[0], found[2], found[3]) == (0.0, 1.0, 0.0)
    assert not found[1][0].any()
    assert not found[1][1]


@pytest.mark.parametrize("width", [1, 10**6])
def test_an_unneeded_block_of_unknown_shape_has_a_gradient_of_zeros(width: int) -> None:
    w = delayed(A)
    between = delayed(np.sin)(w) * delayed(abs)(delayed(A) * 2.0)
    blocks = [between * 2.0, between[:2]]
    x = da.concatenate([da.from_delayed(block, (onp.nan,), float) for block in blocks])
    y = (x.blocks[0] ** 4).sum()
    with dask_set({"dagad.graph-width": width}):
        of_w, of_x = compute(*dagad.gradient(y, [w, x]), scheduler="sync")
    expected = autograd.grad(lambda w: quartic(np.sin(w) * abs(A * 2.0) * 2.0))(A)
    assert onp.allclose(of_w, expected, rtol=1e-12)
    first = 4 * (onp.sin(A) * abs(A * 2.0) * 2.0) ** 3
    assert onp.allclose(of_x, [*first, 0.0, 0.0], rtol=1e-12)


def test_a_graph_that_lacks_a_key_is_refused() -> None:
    w = delayed(A)
    graph = dict(w.__dask_graph__()) | {"y": Task("y", lambda x, n: np.sum(x) * n, TaskRef(w.key), TaskRef("gone"))}
    for ask in (lambda y: dagad.gradient(y, w), lambda y: dagad.jvp(y, w, A)):
        with pytest.raises(dagad.StructureError, match=r"'y' needs 'gone', which is nowhere in it.*graphs of all"):
            ask(Delayed("y", graph))
    with pytest.raises(dagad.StructureError, match=r"does not hold its key, 'z'.*whole graph"):
        dagad.gradient(Delayed("z", graph), w)


def test_wrong_options_of_gradient_are_refused_with_the_choice() -> None:
    w = delayed(A)
    y, strange, mode = f(w), dagad.DagadError(), "ignore"
    with pytest.raises(dagad.PlanError, match=r'`unused=\'ignore\'`.*Give "raise" or "zeros"'):
        dagad.gradient(y, w, unused=mode)
    with pytest.raises(dagad.PlanError, match=r"not a policy. Give an object: `dagad\.extend\.Keep\(\)`"):
        dagad.gradient(y, w, policy=strange)
    with pytest.raises(dagad.PlanError, match="no engine 'jaxx'"):
        dagad.value_and_gradient(y, w, engine="jaxx")


@pytest.mark.parametrize("collection", [da.ones(3), delayed(A)], ids=["Array", "DelayedLeaf"])
def test_a_collection_as_the_argument_of_a_function_is_refused_with_the_remedy(collection: Any) -> None:
    name = type(collection).__name__
    for ask in (
        lambda: dagad.grad(lambda x: x.sum())({"x": collection}),
        lambda: dagad.jvp(np.sum, (collection,), (1.0,)),
        lambda: dagad.evaluate(np.sum, collection).value(),
    ):
        with pytest.raises(
            dagad.NotDifferentiableError, match=rf"holds an? {name} of Dask.*Compute it.*dagad\.gradient"
        ):
            ask()


# --- ways that graphs go ----------------------------------------------------------------------------------------------


def descend(x: Any, rate: Any, steps: int, slope: Callable[[Any], Any]) -> list[Any]:
    found = [x]
    for _ in range(steps):
        x = x - rate * slope(x)
        found.append(x)
    return found


@pytest.mark.sampled(2)
def test_a_descent_can_hold_a_gradient_a_step(scheduler: Any) -> None:
    x, rate = delayed(A), delayed(0.05)
    path = descend(x, rate, 4, lambda x: dagad.gradient(f(x), x))
    loss = f(path[-1])
    *points, value, of_rate, of_start = compute(*path, loss, *dagad.gradient(loss, [rate, x]), **where(scheduler))
    expected = descend(A, 0.05, 4, lambda x: 4 * x**3)
    onp.testing.assert_allclose(points, expected, rtol=1e-12)

    def last(rate: Any, start: Any) -> Any:
        return quartic(descend(start, rate, 4, lambda x: 4 * x**3)[-1])

    assert value == pytest.approx(last(0.05, A), rel=1e-12)
    onp.testing.assert_allclose(of_rate, autograd.grad(last)(0.05, A), rtol=1e-11)
    onp.testing.assert_allclose(of_start, autograd.grad(last, 1)(0.05, A), rtol=1e-11)


def test_two_gradients_can_meet_in_one_that_is_differentiated() -> None:
    x, y = delayed(A), delayed(A + 1.0)
    one, other = dagad.gradient(f(x * y), x), dagad.gradient(f(x * x), x)
    found = compute(*dagad.gradient(delayed(np.sum)(one * other), [x, y]), scheduler="sync")

    def plain(xy: Any) -> Any:
        return np.sum(4 * xy[0] ** 3 * xy[1] ** 4 * 8 * xy[0] ** 7)

    for actual, expected in zip(found, autograd.grad(plain)([A, A + 1.0]), strict=True):
        onp.testing.assert_allclose(actual, expected, rtol=1e-11)


def test_a_gradient_can_be_optimized_and_persisted(scheduler: Any) -> None:
    x = delayed(A)
    value, slope = dagad.value_and_gradient(f(x * x), x)
    expected = 8 * A**7
    kept = slope.persist(**where(scheduler))
    for way in (slope, optimize(slope)[0], kept):
        onp.testing.assert_allclose(compute(way, **where(scheduler))[0], expected, rtol=1e-12)
    both = compute(f(x * x), value, slope, **where(scheduler))
    assert both[0] == both[1] == pytest.approx(quartic(A**2))
    twice = compute(dagad.gradient(f(kept), kept), dagad.gradient(f(slope), slope), **where(scheduler))
    onp.testing.assert_array_equal(*twice)


@pytest.mark.parametrize("local", ["sync", "threads"])
def test_a_gradient_can_be_fused(local: str) -> None:
    x = delayed(A)
    slope = dagad.gradient(f(x * x), x)
    with dask_set({"optimization.fuse.delayed": True}):
        for way in (slope, slope.persist(scheduler=local), dagad.gradient(optimize(f(slope))[0], slope)):
            assert onp.isfinite(compute(way, scheduler=local)[0]).all()
        onp.testing.assert_allclose(compute(slope, scheduler=local)[0], 8 * A**7, rtol=1e-12)


def test_a_client_persists_and_computes_gradient_graphs(cluster: Any) -> None:
    x = delayed(A)
    (kept,) = cluster.persist([x])
    on_cluster = delayed(lambda a, b: np.sum(a * b))(kept, cluster.scatter(A + 1.0))
    value, gradients = dagad.value_and_gradient(f(kept) + on_cluster, [kept])
    kept_slope = cluster.persist(gradients[0])
    found = cluster.gather(cluster.compute([value, gradients[0], kept_slope, dagad.jvp(on_cluster, kept, A)[1]]))
    assert found[0] == pytest.approx(quartic(A) + onp.sum(A * (A + 1.0)))
    onp.testing.assert_allclose(found[1], 4 * A**3 + A + 1.0)
    onp.testing.assert_array_equal(found[1], found[2])
    assert found[3] == pytest.approx(onp.sum(A * (A + 1.0)))
    many = cluster.gather(cluster.compute(dagad.gradient(on_cluster, [kept] * 9)))
    onp.testing.assert_array_equal(many, [A + 1.0] * 9)
    with pytest.raises(dagad.NotDifferentiableError, match="persisted"):
        dagad.gradient(f(kept_slope), kept)


# --- value and gradient -----------------------------------------------------------------------------------------------


class Counted:
    """A function that counts its runs and draws a number at each."""

    def __init__(self) -> None:
        self.runs, self.lock, self.events = 0, threading.Lock(), list[str]()

    def __call__(self, x: Any) -> Any:
        with self.lock:
            self.runs += 1
        return x * (1.0 + random.random())


@pytest.mark.parametrize("local", ["sync", "threads"])
def test_a_task_runs_once_for_a_value_and_its_gradients(local: str) -> None:
    noisy, w = Counted(), delayed(A)
    value, (of_w, of_middle) = dagad.value_and_gradient(delayed(np.sum)(middle := delayed(noisy)(w)), [w, middle])
    total, slope, ones = compute(value, of_w, of_middle, scheduler=local)
    assert noisy.runs == 1
    assert total == pytest.approx(onp.sum(slope * A))  # of the same draw
    assert ones.tolist() == [1.0] * 3


def test_value_and_gradient_are_of_the_same_draw_on_a_cluster(cluster: Any) -> None:
    noisy, w = delayed(lambda x: x * (1.0 + random.random())), delayed(A)
    value, slope = cluster.compute(list(dagad.value_and_gradient(delayed(np.sum)(noisy(w)), w)))
    assert value.result() == pytest.approx(onp.sum(slope.result() * A))


def test_the_value_of_a_graph_lands_before_any_pullback_begins() -> None:
    events: list[str] = []

    @autograd.extend.primitive  # type: ignore[untyped-decorator]  # autograd has no types
    def step(x: Any) -> Any:
        events.append("value")
        return x * 2.0

    def pulled(ans: Any, x: Any) -> Any:
        def vjp(cotangent: Any) -> Any:
            events.append("pullback")
            return cotangent * 2.0

        return vjp

    autograd.extend.defvjp(step, pulled)
    w = delayed(1.0)
    parts = [delayed(step)(w * float(n)) for n in range(6)]
    value, slope = dagad.value_and_gradient(delayed(sum)(parts), w)

    def landed(value: Any) -> Any:
        events.append("landed")
        return value

    assert compute(delayed(landed)(value), slope, scheduler="sync") == (30.0, 30.0)
    assert events.index("pullback") > max(place for place, event in enumerate(events) if event == "value")
