"""The look at whether a chunk function adds up: is it made wherever it runs first, once, and at little cost?"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import autograd.numpy as np
import numpy as onp
import pandas
import pytest
from distributed import Client, get_worker

import dagad
from dagad._api import adding_up
from dagad._kernels import additivity
from dagad._kernels.additivity import MOST_ROWS
from dagad._remembered import Remembered
from support.waiting import PATIENCE

ROWS = onp.linspace(1.0, 2.0, 90)
RAGGED = [onp.linspace(0.0, 1.0, 1 + n % 3) for n in range(90)]
pytestmark = [
    pytest.mark.usefixtures("new_functions"),
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
]

NOT_A_SUM = "does not add up: for rows 0:.* depends on `grainsize`"


def mean(rows: Any, theta: Any) -> Any:
    return np.mean((rows - theta) ** 2)


def column(rows: Any, theta: Any) -> Any:
    x, y = rows
    return np.sum((y - theta * x) ** 2)


def prior(rows: Any, theta: Any) -> Any:
    return np.sum(rows["y"] * theta) - theta**2


def ragged(rows: Any, theta: Any) -> Any:
    return sum(np.sum(item * theta) for item in rows) / len(rows)


def total(rows: Any, theta: Any) -> Any:
    return {"n": len(rows), "of": [np.sum(rows * theta), np.ones(2) * np.sum(rows)]}


CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "mean": (mean, ROWS),
    "column": (column, (ROWS, ROWS[:, None])),
    "prior in a table": (prior, pandas.DataFrame({"y": ROWS})),
    "lists": (ragged, RAGGED),
}
MODES: dict[str, Callable[..., Any]] = {
    "value": lambda loss: loss(3.0),
    "grad": lambda loss: dagad.grad(loss)(3.0),
    "jvp": lambda loss: dagad.jvp(loss, (3.0,), (1.0,)),
    "hessian": lambda loss: dagad.hessian(loss)(3.0),
    "evaluate": lambda loss: dagad.evaluate(loss, 3.0).value(PATIENCE),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_sum_that_does_not_add_up_is_warned_of_once_on_every_scheduler(
    case: str, sharded: bool, scheduler: Any
) -> None:
    fun, rows = CASES[case]
    options: Any = {"grainsize": 40, "scheduler": scheduler}
    if sharded:
        rows, options = dagad.shard(rows, **options), {}

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(fun, rows, theta, **options)

    with pytest.warns(dagad.DagadWarning, match=NOT_A_SUM) as caught:
        dagad.value_and_grad(loss)(3.0)
    assert [one.filename for one in caught] == [__file__]
    dagad.value_and_grad(loss)(4.0)  # warnings are errors here


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_warns_of_a_chunk_function_that_does_not_add_up(mode: str) -> None:
    with pytest.warns(dagad.DagadWarning, match=NOT_A_SUM):
        MODES[mode](lambda theta: dagad.reduce_sum(mean, ROWS, theta, grainsize=40))


@pytest.mark.parametrize("sharded", [False, True])
def test_a_gradient_in_rows_warns_of_a_chunk_function_that_does_not_add_up(sharded: bool, scheduler: Any) -> None:
    rows: Any = dagad.shard(ROWS, grainsize=40, scheduler=scheduler) if sharded else ROWS
    options: Any = {} if sharded else {"grainsize": 40, "scheduler": scheduler}
    with pytest.warns(dagad.DagadWarning, match=NOT_A_SUM):
        dagad.grad(lambda rows: dagad.reduce_sum(mean, rows, 3.0, **options))(rows)


@pytest.mark.parametrize("n_rows", [2, 3, 90])
@pytest.mark.parametrize("in_tree", [False, True])
def test_one_result_for_each_row_is_warned_of_where_chunks_are_of_one_length(
    in_tree: bool, n_rows: int, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of other lengths are refused where they are added up; these would be added row by row, in silence."""

    def losses(rows: Any, theta: Any) -> Any:
        each = (rows - theta) ** 2
        return {"sum": np.sum(each), "each": each} if in_tree else each

    grainsize = n_rows if n_rows < 4 else 30
    shards = dagad.shard(ROWS[:n_rows], grainsize=grainsize, scheduler=scheduler)
    for data, options in ((shards, {}), (ROWS[:n_rows], {"grainsize": grainsize, "scheduler": scheduler})):
        monkeypatch.setattr(adding_up, "_SEEN", Remembered(64))
        with pytest.warns(dagad.DagadWarning, match=r"gives an array of shape .* entry by entry.*`dagad.map`"):
            dagad.reduce_sum(losses, data, 1.5, **options)


def test_a_chunk_function_that_draws_random_numbers_is_not_taken_for_a_mean(scheduler: Any) -> None:
    def noisy(rows: Any, theta: Any) -> Any:
        return theta * np.sum(rows * onp.random.default_rng().standard_normal(len(rows)))

    with pytest.warns(dagad.DagadWarning, match="when it was called again.*Draw random numbers before"):
        dagad.reduce_sum(noisy, ROWS, 3.0, grainsize=40, scheduler=scheduler)


class Lengths:
    """A function that notes how many rows it got."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, rows: Any, theta: Any = 1.0) -> Any:
        self.seen.append(len(rows))
        return np.sum(rows * theta)


@pytest.mark.parametrize("n_rows", [5, 90, 1000])
def test_a_chunk_function_is_checked_on_a_few_rows_after_its_first_evaluation_only(n_rows: int) -> None:
    counted, rows = Lengths(), onp.ones(n_rows)

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(lambda rows, theta: counted(rows, theta), rows, theta, grainsize=4, scheduler="sync")

    dagad.grad(loss)(1.0)
    n_chunks, few = -(-n_rows // 4), min(n_rows, MOST_ROWS)
    assert counted.seen[n_chunks:] == [few // 2, few - few // 2, few]
    for mode in MODES.values():
        counted.seen.clear()
        mode(loss)
        assert set(counted.seen) <= {4, n_rows % 4}


@pytest.mark.parametrize("grainsize", [50, "auto"])
def test_a_column_beside_a_row_is_warned_of_in_one_chunk_and_after_rows_of_another_shape(grainsize: Any) -> None:
    x, y = onp.linspace(0.0, 1.0, 50), onp.linspace(1.0, 2.0, 50)

    def misses(rows: Any, theta: Any) -> Any:
        x, y = rows
        return np.sum((y - theta * x) ** 2)

    def loss(y: Any) -> Any:
        return lambda theta: dagad.reduce_sum(misses, (x, y), theta, grainsize=grainsize, scheduler="sync")

    assert dagad.value_and_grad(loss(y))(2.0)[0] == pytest.approx(onp.sum((y - 2.0 * x) ** 2))
    with pytest.warns(dagad.DagadWarning, match=NOT_A_SUM):
        dagad.grad(loss(y[:, None]))(2.0)
    dagad.grad(loss(y[:, None] + 1.0))(2.0)  # was warned of


@pytest.mark.parametrize("sharded", [False, True])
def test_rows_of_each_shape_are_looked_at_once(sharded: bool) -> None:
    counted = Lengths()
    kinds = [ROWS, ROWS[:, None], onp.ones((90, 3)), onp.ones((60, 3)), pandas.DataFrame({"y": ROWS}), list(ROWS)]

    def loss(rows: Any) -> Any:
        if sharded:
            rows = dagad.shard(rows, grainsize=90, scheduler="sync")
        return dagad.reduce_sum(lambda rows: counted(0 * np.ones(len(rows))), rows, grainsize=90, scheduler="sync")

    looks = []
    for _ in range(2):
        for rows in kinds:
            counted.seen.clear()
            loss(rows)
            looks.append(len(counted.seen) == 4)
    assert looks == [True, True, True, False, True, True] + [False] * 6


@pytest.mark.parametrize("n_chunks", [1, 2])
def test_chunks_that_take_long_whatever_their_rows_are_not_run_again_alone(
    n_chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, counted = [0.0], Lengths()

    def slow(rows: Any) -> Any:
        clock[0] += 30.0
        return counted(rows)

    for module in ("dagad._api.adding_up", "dagad._kernels.additivity", "dagad._api.reductions"):
        monkeypatch.setattr(f"{module}.time", Clock(clock))
    dagad.reduce_sum(slow, ROWS, grainsize=90 // n_chunks, scheduler="sync")
    assert counted.seen[n_chunks:] == [1] * (n_chunks - 1)


def runs_on_a_worker(rows: Any) -> Any:
    get_worker()  # raises in the client's process
    return np.mean(rows)


def test_workers_look_whether_a_function_adds_up_that_cannot_run_in_the_client(cluster: Client) -> None:
    with pytest.warns(dagad.DagadWarning, match=NOT_A_SUM):
        dagad.reduce_sum(runs_on_a_worker, ROWS, grainsize=45, scheduler=cluster)


def a_sum_on_a_dashboard(rows: Any) -> Any:
    return np.sum(rows)


def test_a_look_on_a_cluster_is_no_evaluation_of_the_function_on_its_dashboard(cluster: Client) -> None:
    dagad.reduce_sum(a_sum_on_a_dashboard, ROWS, grainsize=45, scheduler=cluster)
    names = cluster.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.task_prefixes])
    assert any("look-at-a-sum-on-a-dashboard" in name for name in names)


def test_maps_and_nested_sums_are_not_checked_for_adding_up() -> None:
    counted = Lengths()
    dagad.map_reduce(counted, np.add, ROWS, grainsize=40, scheduler="sync")
    assert counted.seen == [40, 40, 10]
    assert dagad.map(mean, ROWS[:, None], 3.0, grainsize=40).shape == (90,)

    counted.seen.clear()

    def outer(rows: Any) -> Any:
        return dagad.reduce_sum(counted, rows, grainsize=20, scheduler="sync")

    dagad.reduce_sum(outer, ROWS, grainsize=45, scheduler="sync")
    assert counted.seen == [20, 20, 5] * 2 + [20, 12, 20, 12, 20, 20, 20, 4]  # then 32, 32 and 64 rows


def test_a_chunk_function_that_adds_up_is_not_warned_of_and_keeps_its_bits(scheduler: Any) -> None:
    def run() -> Any:
        return dagad.reduce_sum(total, ROWS, 0.1, grainsize=40, scheduler=scheduler)

    first, then = run(), run()
    assert first["n"] == 90
    assert [onp.asarray(part).tobytes() for part in first["of"]] == [onp.asarray(part).tobytes() for part in then["of"]]


def test_a_chunk_function_that_refuses_few_rows_is_not_warned_of() -> None:
    def picky(rows: Any) -> Any:
        if len(rows) < 100:
            raise ValueError("more rows, please")
        return np.sum(rows)

    assert dagad.reduce_sum(picky, onp.ones(300), grainsize=100, scheduler="sync") == 300.0


def test_slow_rows_are_timed_before_a_chunk_function_is_checked_for_adding_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, counted = [0.0], Lengths()

    def slow(rows: Any) -> Any:
        clock[0] += 1.0 * len(rows)
        return counted(rows)

    monkeypatch.setattr(adding_up, "time", Clock(clock))
    monkeypatch.setattr(additivity, "time", Clock(clock))
    monkeypatch.setattr("dagad._api.reductions.time", Clock(clock))
    dagad.reduce_sum(slow, ROWS, grainsize=45, scheduler="sync")
    assert counted.seen == [45, 45, 1]


class Clock:
    def __init__(self, now: list[float]) -> None:
        self._now = now

    def perf_counter(self) -> float:
        return self._now[0]


def test_the_check_for_adding_up_keeps_no_chunk_function_alive() -> None:
    class Data:
        pass

    scope: dict[str, Any] = {"held": Data()}
    exec("def make(held):\n    return lambda rows: rows.sum() + 0 * bool(held)\nfun = make(held)", scope)
    dagad.reduce_sum(scope["fun"], ROWS, grainsize=40, scheduler="sync")
    gone = [weakref.ref(scope[name]) for name in ("fun", "held")]
    scope.clear()
    gc.collect()
    assert [one() for one in gone] == [None, None]
