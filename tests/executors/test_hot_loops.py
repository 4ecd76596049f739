"""Hot loops: are the bits those of one thread, is no old function ever used, and is the graph really done without?"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import autograd
import autograd.numpy as anp
import dask.array as da
import numpy as np
import pytest
from dask.delayed import delayed
from distributed import Client

import dagad
from dagad._values import pytree
from dagad.extend import Keep, Preaccumulate, Recompute, explicit
from support.gated_chunks import bits
from support.hot_loops import (
    THETA,
    Act,
    X,
    a_watched_cluster,
    check,
    chunks_as_tasks,
    heat_up,
    in_all,
    is_hot,
    shards_on,
)
from support.waiting import PATIENCE

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
    pytest.mark.sampled(3),
]

ROWS = np.random.default_rng(1).standard_normal((40, 3))
PLANS = pytest.mark.parametrize(("data", "grainsize"), [(X, 4), (ROWS, 1)], ids=["6 chunks", "40 chunks"])


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    """A cluster that is to be empty in the end."""
    with a_watched_cluster() as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def threaded() -> Iterator[Client]:
    """The same with two threads a worker."""
    with a_watched_cluster(threads_per_worker=2) as client:
        yield client


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))


def loss(sliced: Any, *, fun: Any = chunk, reduction: Any = dagad.reduce_sum, **options: Any) -> Callable[..., Any]:
    return lambda *theta: reduction(fun, sliced, *theta, **options)


# How it is evaluated


def value_of(fun: Callable[..., Any]) -> Act:
    return lambda *args: bits([fun(*args)])


def evaluation_of(fun: Callable[..., Any], lazy: bool = False) -> Act:
    def act(*args: Any) -> list[bytes]:
        evaluation = dagad.evaluate(fun, *args, lazy=lazy)
        return bits([evaluation.value(PATIENCE), evaluation.gradient(PATIENCE)])

    return act


def pullbacks_of(fun: Callable[..., Any]) -> Act:
    def act(*args: Any) -> list[bytes]:
        value, pullback = dagad.vjp(fun, *args)
        return bits([value, *pullback(1.0), *pullback(-2.5), *pullback(0.0), *pullback(1.0)])

    return act


def inside_autograd(fun: Callable[..., Any]) -> Act:
    return lambda theta: bits([autograd.grad(lambda theta: anp.sin(fun(2.0 * theta)))(theta)])


def curvature_of(fun: Callable[..., Any]) -> Act:
    return lambda theta: bits([dagad.grad(lambda theta: anp.dot(dagad.grad(fun)(theta), THETA))(theta)])


lazily = functools.partial(evaluation_of, lazy=True)
WAYS: list[Callable[[Any], Act]] = [in_all, value_of, evaluation_of, lazily, pullbacks_of, inside_autograd]


def unheard_of(name: str) -> Callable[..., Any]:
    """Return a function whose cost nobody remembers."""

    def fun(rows: Any, theta: Any) -> Any:
        return anp.sum(anp.tanh(anp.dot(rows, theta)))

    fun.__code__ = fun.__code__.replace(co_name=name)
    return fun


def test_a_loop_is_run_by_a_graph_first_and_hot_from_then_on(client: Client) -> None:
    fun, tasks = unheard_of("first"), []
    there, here = in_all(loss(shards_on(client), fun=fun)), in_all(loss(X, fun=fun, grainsize=4, scheduler="sync"))
    for factor in (1.0, 0.5, -1.0, 2.0):
        before = chunks_as_tasks(client)
        assert there(factor * THETA) == here(factor * THETA)
        tasks.append(chunks_as_tasks(client) - before)
    assert tasks == [6, 0, 0, 0]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("how", WAYS, ids=["gradient", "value", "evaluation", "lazy", "vjp", "autograd"])
def test_every_mode_of_a_hot_loop_gives_the_bits_of_one_thread(how: Any, client: Client) -> None:
    check(client, loss, THETA, how=how, warm=in_all)


@pytest.mark.parametrize("how", [value_of, evaluation_of, pullbacks_of], ids=["value", "evaluation", "vjp"])
def test_a_loop_of_values_evaluations_or_pullbacks_alone_gets_hot(how: Any, client: Client) -> None:
    """Also where nobody asks for value and gradient together: along a line, or in a sampler without gradients."""
    check(client, functools.partial(loss, fun=unheard_of(how.__name__)), THETA, how=how)


@pytest.mark.parametrize("policy", [Keep, Recompute, Preaccumulate])
@pytest.mark.parametrize("how", [in_all, pullbacks_of, evaluation_of], ids=["gradient", "vjp", "evaluation"])
def test_a_hot_loop_gives_the_bits_of_one_thread_under_every_policy(policy: Any, how: Any, client: Client) -> None:
    shards = shards_on(client)
    usual = in_all(loss(shards))
    heat_up(client, lambda: usual(THETA))
    there, here = how(loss(shards, policy=policy())), how(loss(X, policy=policy(), grainsize=4, scheduler="sync"))
    for theta in (THETA, -0.5 * THETA):
        found: list[bytes] = []
        assert is_hot(client, lambda theta=theta, found=found: found.extend(there(theta)))  # type: ignore[misc]  # defaults
        assert found == here(theta)


def test_second_derivatives_over_shards_have_the_bits_of_one_thread(client: Client) -> None:
    there, here = curvature_of(loss(shards_on(client))), curvature_of(loss(X, grainsize=4, scheduler="sync"))
    for _ in range(3):
        assert there(THETA) == here(THETA)


@pytest.mark.parametrize("lazy", [False, True])
def test_progress_counts_every_chunk_once(lazy: bool, client: Client) -> None:
    fun = loss(shards_on(client))
    heat_up(client, lambda: in_all(fun)(THETA))
    evaluation = dagad.evaluate(fun, THETA, lazy=lazy)
    evaluation.gradient(PATIENCE)
    done = evaluation.progress
    assert (done.values_done, done.values_total, done.gradients_done, done.gradients_total) == (6, 6, 6, 6)


# What is evaluated


def of_several(rows: Any, first: Any, second: Any, words: Any = "", third: Any = 0.0) -> Any:
    middle = anp.dot(rows, second["w"]) * second["more"][0] + first
    return anp.sum(anp.tanh(middle)) + third * len(words)


def of_any(rows: Any, theta: Any) -> Any:
    """Return a real number of theta's own precision, whatever theta is."""
    leaves = pytree.flatten(theta)[0]
    return sum(
        anp.sum(anp.abs(anp.sin(leaf) * leaf.dtype.type(rows[0, 0])))
        if hasattr(leaf, "dtype")
        else anp.sin(leaf) * rows[0, 0]
        for leaf in leaves
    )


THETAS: dict[str, Any] = {
    "float": 0.5,
    "numpy float": np.float64(0.5),
    "numpy float32": np.float32(0.5),
    "float32": THETA.astype("f4"),
    "complex": THETA + 1j * THETA[::-1],
    "complex64": (THETA - 2j).astype("c8"),
    "zero-d": np.array(0.5),
    "empty": np.zeros((0, 2)),
    "columns": np.asfortranarray(ROWS[:4]),
    "strided": ROWS[:8:2, ::2],
    "cube": ROWS[:24].reshape(4, 6, 3),
    "tree": {"b": [0.1, (THETA, np.float32(2.0))], "a": np.array([[1.0], [2.0]])},
    "large": np.linspace(0.1, 1.0, 20_000),  # beside the message, not in it
}


@pytest.mark.sampled(18)
@pytest.mark.parametrize("theta", THETAS.values(), ids=THETAS)
@PLANS
def test_a_hot_loop_takes_parameters_of_any_kind(theta: Any, data: Any, grainsize: int, client: Client) -> None:
    check(client, functools.partial(loss, fun=of_any), theta, data=data, grainsize=grainsize)


def test_a_hot_loop_takes_several_parameters(client: Client) -> None:
    def make(sliced: Any, **options: Any) -> Callable[..., Any]:
        return lambda a, b: dagad.reduce_sum(of_several, sliced, a, b, "words", 0.5, **options)

    check(client, make, 0.3, {"w": THETA, "more": (2.0,)})


def test_a_hot_loop_takes_a_parameter_in_a_closure(client: Client) -> None:
    def make(sliced: Any, **options: Any) -> Callable[..., Any]:
        def fun(theta: Any, scale: Any) -> Any:
            inner = {"theta": theta}
            return dagad.reduce_sum(lambda rows: anp.sum(anp.tanh(rows @ inner["theta"])) * scale, sliced, **options)

        return fun

    check(client, make, THETA, 0.5)


def half_constant(rows: Any, one: Any, other: Any) -> Any:
    return anp.sum(rows) * one + (anp.sum(other) if rows[0, 0] > 0 else 0.0)


def never(rows: Any, one: Any, other: Any) -> Any:
    return np.sum(rows) if rows[0, 0] > 100 else anp.sum(rows) * one


@pytest.mark.parametrize("fun", [half_constant, never])
@PLANS
def test_a_hot_loop_takes_parameters_that_only_some_chunks_depend_on(
    fun: Any, data: Any, grainsize: int, client: Client
) -> None:
    check(client, functools.partial(loss, fun=fun), 0.5, THETA, data=data, grainsize=grainsize)


VALUES: dict[str, Any] = {
    "python": lambda rows, theta: float(rows[0, 0]),
    "float32": lambda rows, theta: anp.sum(theta.astype("f4") * anp.float32(rows[0, 0])),
    "zero-d": lambda rows, theta: np.array(rows[0, 0]) * anp.sum(theta),
    "either": lambda rows, theta: anp.sum(theta) if rows[0, 0] > 0 else 1.5,
    "nan": lambda rows, theta: anp.sum(theta) * (math.nan if rows[0, 0] > 1 else math.inf),
    "explicit": explicit(lambda rows, theta: (float(rows[0] @ theta), lambda seed: (None, seed * rows[0]))),
}


@pytest.mark.sampled(12)
@pytest.mark.filterwarnings("ignore:`<lambda>` gave nan:dagad.DagadWarning")
@pytest.mark.parametrize("fun", VALUES.values(), ids=VALUES)
@PLANS
def test_a_hot_loop_gives_values_of_any_kind(fun: Any, data: Any, grainsize: int, client: Client) -> None:
    check(client, functools.partial(loss, fun=fun), THETA, data=data, grainsize=grainsize)


def arrays(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta), axis=0)


def integers(rows: Any, theta: Any) -> Any:
    return int(rows.shape[0])


def sometimes_arrays(rows: Any, theta: Any) -> Any:
    return anp.sum(theta) if theta[0] > 0 else theta * rows[0, 0]


def some(all_of: Iterable[Any], rounds: Callable[[int], int]) -> list[Any]:
    values = list(all_of)
    return values[: rounds(len(values))]


@pytest.mark.filterwarnings("ignore:`<lambda>` gave nan:dagad.DagadWarning")
def test_threads_share_the_chunks_of_a_worker(threaded: Client, rounds: Callable[[int], int]) -> None:
    for theta in some(THETAS.values(), rounds):
        check(threaded, functools.partial(loss, fun=of_any), theta, data=ROWS, grainsize=1)
    for fun in some(VALUES.values(), rounds):
        check(threaded, functools.partial(loss, fun=fun), THETA, data=ROWS, grainsize=3)
    for how in some(WAYS, rounds):
        check(threaded, loss, THETA, how=how, warm=in_all)


@pytest.mark.parametrize("fun", [arrays, integers, sometimes_arrays])
def test_a_reduction_over_shards_to_something_else_than_a_number_is_right(fun: Any, client: Client) -> None:
    there, here = loss(shards_on(client), fun=fun), loss(X, fun=fun, grainsize=4, scheduler="sync")
    for factor in (1.0, 1.0, -1.0, -1.0, 1.0, 1.0):
        assert bits([there(factor * THETA)]) == bits([here(factor * THETA)])
        (value, pullback), (wanted, expected) = (dagad.vjp(each, factor * THETA) for each in (there, here))
        assert bits([value]) == bits([wanted])
        seed = np.asarray(value) * 0.5 if fun is not integers else 0.0
        assert bits(pullback(seed)) == bits(expected(seed))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ["map_sum", "columns", "blocks", "loaders", "nested"])
def test_a_hot_loop_runs_reductions_of_any_kind(kind: str, client: Client) -> None:
    def nested(rows: Any, theta: Any) -> Any:
        return dagad.reduce_sum(chunk, rows, theta, grainsize=2)

    def of_columns(rows: Any, theta: Any) -> Any:
        return chunk(rows["x"] * rows["y"][0][0], theta)

    makers: dict[str, Callable[[], Any]] = {
        "blocks": lambda: dagad.shard(da.from_array(X, chunks=(4, 2)), scheduler=client),
        "loaders": lambda: dagad.shard(list(map(delayed, np.split(X, 6))), scheduler=client),
        "columns": lambda: {"x": shards_on(client), "y": shards_on(client, list(X))},
    }
    shards = makers.get(kind, lambda: shards_on(client))()
    options: dict[str, Any] = {"fun": {"nested": nested, "columns": of_columns}.get(kind, chunk)}
    options |= {"reduction": dagad.map_sum} if kind == "map_sum" else {}
    there = in_all(loss(shards, **options))
    plain = {"x": X, "y": list(X)} if kind == "columns" else X
    here = in_all(loss(plain, grainsize=4, scheduler="sync", **options))
    heat_up(client, lambda: there(THETA))
    for factor in (1.0, -0.5):
        assert there(factor * THETA) == here(factor * THETA)
