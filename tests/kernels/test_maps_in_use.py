"""Maps in use: what costs nothing, and what nests in what, closes over what and stands beside what?"""

from __future__ import annotations

from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest

import dagad
from dagad.extend import CompensatedSum, Keep, Recompute, explicit
from support.clusters import a_cluster, kill, pids_of
from support.plain_autograd import assert_close, bits

RNG = onp.random.default_rng(1)
N = 7
X, Y = RNG.standard_normal((N, 3)), RNG.standard_normal(N)
THETA = onp.array([0.3, -0.7, 1.1])
RAGGED = [RNG.standard_normal(length) for length in (3, 1, 0, 5, 2, 2, 4)]


def wave(job: Any, rate: Any) -> Any:
    return np.sin(rate * job)


def curve(row: Any, theta: Any) -> Any:
    return np.tanh(np.sum(row * theta))


# --- exact zeros ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "runs"), [(Keep(), N), (Recompute(), N + 1)])
def test_the_parameters_of_other_jobs_have_exact_zeros_that_cost_nothing(policy: Any, runs: int) -> None:
    options: Any = {"grainsize": 1, "policy": policy, "scheduler": "sync"}
    value, pullback = dagad.vjp(lambda jobs: dagad.map_rect(wave, jobs, 0.7, **options), RAGGED)
    seed = onp.zeros_like(value)
    seed[4:9] = onp.arange(1.0, 6.0)  # the fourth job's
    (jobs,) = pullback(seed)
    assert_close(jobs[3], seed[4:9] * 0.7 * onp.cos(0.7 * RAGGED[3]))
    assert [bits(jobs[n]) == bits(onp.zeros_like(RAGGED[n])) for n in range(N)] == [n != 3 for n in range(N)]
    assert (policy.n_primal, policy.n_pullback) == (runs, 1)


@pytest.mark.parametrize("grainsize", [1, 3, N])
def test_a_job_without_a_seed_is_not_pulled(grainsize: int) -> None:
    pulled = []

    @explicit
    def job(item: Any, theta: Any) -> Any:
        x, number = item

        def pullback(seed: Any) -> Any:
            pulled.append(int(number))
            return (seed * theta, None), onp.sum(seed * x)

        return x * theta, pullback

    def program(x: Any, theta: Any) -> Any:
        return dagad.map_rect(job, (x, onp.arange(N)), theta, grainsize=grainsize, scheduler="sync")

    pullback = dagad.vjp(program, X, 2.0)[1]
    seed = onp.zeros(3 * N)
    assert not onp.any(pullback(seed)[0])
    assert pulled == []
    seed[7], seed[18] = 1.0, 3.0
    rows, theta = pullback(seed)
    assert sorted(pulled) == [2, 6]
    assert_close((rows, theta), (2.0 * seed.reshape(N, 3), onp.sum(seed * X.ravel())))


def test_a_pullback_can_be_called_again_with_other_cotangents(scheduler: Any) -> None:
    def program(jobs: Any, rate: Any) -> Any:
        return dagad.map_rect(wave, jobs, rate, grainsize=2, scheduler=scheduler)

    value, pullback = dagad.vjp(program, RAGGED, 0.7)
    whole = onp.concatenate(RAGGED)
    for seed in (onp.cos(onp.arange(len(value))), onp.ones(len(value)), onp.cos(onp.arange(len(value)))):
        jobs, rate = pullback(seed)
        assert_close(onp.concatenate(jobs), seed * 0.7 * onp.cos(0.7 * whole))
        assert_close(rate, onp.sum(seed * whole * onp.cos(0.7 * whole)))


def test_a_pullback_can_be_called_after_its_worker_has_died() -> None:
    with a_cluster(1) as client:
        value, pullback = dagad.vjp(lambda x: dagad.map(curve, x, THETA, grainsize=3, scheduler=client), X)
        expected = pullback(onp.ones(N))
        (pid,) = pids_of(client).values()
        kill(pid)
        assert bits(pullback(onp.ones(N))) == bits(expected)
        assert bits(value) == bits(dagad.map(curve, X, THETA, grainsize=3, scheduler="sync"))
        del pullback


@pytest.mark.parametrize("local", ["sync", "threads"])
def test_an_evaluation_counts_the_chunks_of_maps(local: str) -> None:
    def loss(theta: Any) -> Any:
        return np.sum(dagad.map(curve, X, theta, grainsize=2, scheduler=local) ** 2)

    evaluation = dagad.evaluate(loss, THETA, lazy=True)
    value = evaluation.value()
    progress = evaluation.progress
    assert (progress.values_done, progress.values_total, progress.gradients_done) == (4, 4, 0)
    gradient = evaluation.gradient()
    assert evaluation.progress.gradients_done == 4
    assert_close((value, gradient), dagad.value_and_grad(loss)(THETA))


# --- programs ---------------------------------------------------------------------------------------------------------


def test_a_map_can_be_inside_a_chunk_and_a_sum_inside_an_item(scheduler: Any) -> None:
    def chunk(rows: Any, theta: Any) -> Any:
        return np.sum(dagad.map(curve, rows, theta, grainsize=2) ** 2)

    def item(row: Any, theta: Any) -> Any:
        return dagad.reduce_sum(lambda part, t: np.sum(np.exp(part * t[1])), row, theta, grainsize=2) * theta[0]

    def outer(theta: Any) -> Any:
        inside = dagad.reduce_sum(chunk, X, theta, grainsize=4, scheduler=scheduler)
        return inside + np.sum(dagad.map(item, X, theta, grainsize=4, scheduler=scheduler) ** 2)

    def plain(theta: Any) -> Any:
        sums = np.sum(np.exp(X * theta[1]), axis=1) * theta[0]
        return np.sum(np.tanh(np.dot(X, theta)) ** 2) + np.sum(sums**2)

    assert_close(dagad.value_and_grad(outer)(THETA), autograd.value_and_grad(plain)(THETA))
    expected = autograd.hessian_vector_product(plain)(THETA, THETA[::-1])
    assert_close(dagad.hvp(outer, THETA, THETA[::-1].copy()), expected, 1e-10)


def test_a_map_works_in_gradients_of_autograds_own(scheduler: Any) -> None:
    def program(theta: Any, mapped: Any) -> Any:
        return np.sum(mapped(lambda x, t: x[:, None] * t**3, theta) ** 2)

    def cut(f: Any, theta: Any) -> Any:
        flat = dagad.map_rect(lambda x, t: f(x, t).ravel(), RAGGED, theta, grainsize=3, scheduler=scheduler)
        return flat

    def whole(f: Any, theta: Any) -> Any:
        return f(onp.concatenate(RAGGED), theta)

    assert_close(autograd.grad(program)(THETA, cut), autograd.grad(program)(THETA, whole))
    actual, expected = (
        autograd.grad(lambda t, m=m: np.sum(autograd.grad(program)(t, m) ** 2))(THETA) for m in (cut, whole)
    )
    assert_close(actual, expected, 1e-10)


def test_a_mapped_function_may_close_over_differentiated_parameters(scheduler: Any) -> None:
    def loss(params: Any) -> Any:
        scaled = params["theta"] * 2.0

        def item(row: Any, power: int = 2) -> Any:
            return np.sum(row * scaled) ** power * params["scale"]

        return np.sum(dagad.map(item, X, grainsize=3, scheduler=scheduler))

    params = {"theta": THETA, "scale": 0.5}
    expected = autograd.grad(lambda p: np.sum(np.dot(X, p["theta"] * 2.0) ** 2 * p["scale"]))(params)
    assert_close(dagad.grad(loss)(params), expected)


def test_shards_can_stand_beside_what_is_differentiated(scheduler: Any) -> None:
    shards = dagad.shard({"x": onp.asfortranarray(X), "n": list(range(N))}, grainsize=3, scheduler=scheduler)

    def item(item: Any, theta: Any) -> Any:
        data, weight, extra = item["data"], item["weight"], item["extra"]
        return np.sum(data["x"] * theta) * weight * data["n"] * extra + weight**2

    def program(weight: Any, extra: Any, theta: Any, data: Any = shards, **options: Any) -> Any:
        return np.sum(dagad.map(item, {"data": data, "weight": weight, "extra": extra}, theta, **options) ** 2)

    extra = [onp.array([1.0, n]) for n in range(N)]
    actual = dagad.value_and_grad(program, (0, 1, 2))(Y, extra, THETA)
    here = dagad.value_and_grad(program, (0, 1, 2))(
        Y, extra, THETA, {"x": X, "n": list(range(N))}, grainsize=3, scheduler="sync"
    )
    assert bits(actual) == bits(here)
    alone = dagad.grad(lambda t: np.sum(dagad.map(lambda i, t: i["x"] * t * i["n"], shards, t)))(THETA)
    assert_close(alone, onp.arange(N) @ X)


def test_one_array_passed_to_a_map_twice_has_the_gradient_of_both(scheduler: Any) -> None:
    def loss(x: Any) -> Any:
        pairs = (x, {"again": x})
        return np.sum(
            dagad.map(lambda p, all: p[0] * np.exp(p[1]["again"]) * np.sum(all), pairs, x, scheduler=scheduler)
        )

    assert_close(dagad.grad(loss)(Y), autograd.grad(lambda x: np.sum(x * np.exp(x)) * np.sum(x))(Y))


def test_some_items_can_be_differentiated_and_others_not(scheduler: Any) -> None:
    def loss(x: Any) -> Any:
        jobs = [
            {"x": x["one"], "n": 2},
            {"x": RAGGED[0], "n": 3},
            {"x": x["two"][:2], "n": 4},
            {"x": RAGGED[2], "n": 5},
        ]
        return np.sum(dagad.map_rect(lambda job: job["x"] ** job["n"], jobs, grainsize=2, scheduler=scheduler))

    x = {"one": onp.array([0.5, 2.0]), "two": onp.array([1.0, 3.0, 5.0])}
    assert_close(dagad.grad(loss)(x), {"one": 2.0 * x["one"], "two": onp.array([4.0, 108.0, 0.0])})


@pytest.mark.parametrize("grainsize", [1, 2, 3, 4])
def test_an_output_can_be_an_integer_for_some_items(grainsize: int) -> None:
    """Python's sum of nothing is the int 0, which is what data without entries give."""
    data, counted = [[], [1.0], [2.0, 3.0], []], True

    def item(entries: Any, t: Any) -> Any:
        found = {"a": sum([t**3 * entry for entry in entries]), "b": t**2 * (1 + len(entries))}
        return found | {"n": len(entries)} if counted else found

    def loss(t: Any) -> Any:
        mapped = dagad.map(item, data, t, grainsize=grainsize, scheduler="sync")
        assert not counted or mapped["n"].tolist() == [0, 1, 2, 0]
        return np.sum(mapped["a"] * onp.arange(1.0, 5.0)) + 10.0 * np.sum(mapped["b"] * onp.arange(2.0, 6.0))

    def plain(t: Any) -> Any:
        return t**3 * 17.0 + 10.0 * t**2 * (2.0 + 6.0 + 12.0 + 5.0)

    assert_close(dagad.grad(loss)(1.5), autograd.grad(plain)(1.5))
    assert_close(dagad.jvp(loss, 1.5, 1.0), (plain(1.5), autograd.grad(plain)(1.5)))
    counted = False
    assert_close(dagad.hvp(loss, 1.5, 1.0), autograd.grad(autograd.grad(plain))(1.5), 1e-10)


@pytest.mark.parametrize("grainsize", [1, 2, 3, 4])
@pytest.mark.parametrize("sum_", [None, CompensatedSum()])
def test_a_partial_sum_can_be_an_integer_in_further_derivatives(grainsize: int, sum_: Any) -> None:
    data = [[], [1.0], [2.0, 3.0], []]

    def chunk(rows: Any, t: Any) -> Any:
        entries = [entry for row in rows for entry in row]
        return {"a": sum([t**3 * entry for entry in entries]), "b": t**2 * (1 + len(entries))}

    def loss(t: Any) -> Any:
        total = dagad.reduce_sum(chunk, data, t, grainsize=grainsize, scheduler="sync", sum=sum_)
        return total["a"] + total["b"] ** 2

    def plain(t: Any) -> Any:
        return 6.0 * t**3 + ((3.0 + -(-4 // grainsize)) * t**2) ** 2

    assert_close(dagad.grad(loss)(1.5), autograd.grad(plain)(1.5))
    assert_close(dagad.jvp(loss, 1.5, 1.0), (plain(1.5), autograd.grad(plain)(1.5)))
    expected = autograd.grad(autograd.grad(plain))(1.5)
    assert_close(dagad.hvp(loss, 1.5, 1.0), expected, 1e-10)
    assert_close(dagad.grad(dagad.grad(loss))(1.5), expected, 1e-10)
    assert_close(dagad.grad(lambda t: dagad.jvp(loss, t, 1.0)[1])(1.5), expected, 1e-10)


def test_the_layout_of_rows_leaves_the_bits_alone() -> None:
    """A row of a whole array that lies column by column has gaps, and numpy rounds a product with it differently."""
    rows, theta = RNG.standard_normal((40, 33)), RNG.standard_normal(33)
    found = set()
    for size in (1, 7, 40):
        for data in (rows, onp.asfortranarray(rows), dagad.shard(onp.asfortranarray(rows), size, "sync")):
            found.add(dagad.map(np.dot, data, theta, grainsize=size, scheduler="sync").tobytes())
        for data in (rows, onp.asfortranarray(rows)):
            value = dagad.vjp(lambda x, n=size: dagad.map(np.dot, x, theta, grainsize=n, scheduler="sync"), data)[0]
            found.add(value.tobytes())
            value = dagad.jvp(lambda x, n=size: dagad.map(np.dot, x, theta, grainsize=n), (data,), (data,))[0]
            found.add(value.tobytes())
    assert len(found) == 1


def test_a_map_of_no_items_and_of_one_item_is_right(scheduler: Any) -> None:
    options: Any = {"scheduler": scheduler}
    nothing: Any = [[], onp.zeros((0, 3)), {"a": [], "b": onp.zeros(0)}]
    for mapping in (dagad.map, dagad.map_rect):
        for items in nothing:
            assert bits(mapping(curve, items, THETA, **options)) == bits(onp.zeros(0))
        gradient = dagad.grad(lambda t, m=mapping: np.sum(m(curve, [], t, **options)) + np.sum(t))(THETA)
        assert bits(gradient) == bits(onp.ones(3))
        rows = dagad.grad(lambda x, m=mapping: np.sum(m(curve, x, THETA, **options)))(onp.zeros((0, 3)))
        assert bits(rows) == bits(onp.zeros((0, 3)))
        slope = dagad.grad(lambda x, m=mapping: np.sum(m(lambda i: i**2, x, **options)))(X[:1])
        assert_close(slope, 2.0 * X[:1])
