"""Traps: is what runs, and is most likely not what was meant, said in a warning, once, with what to write instead?"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import autograd.numpy as np
import numpy as onp
import pytest
from distributed import Client

import dagad
from dagad._executors import choose
from dagad._executors.planning import Cost
from dagad._remembered import Remembered
from dagad.testing import check_grads
from support.waiting import PATIENCE, until

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

_spent = threading.local()


def spend(seconds: float) -> None:
    """Take so long, by the clock that timings are read off."""
    _spent.seconds = clock() + seconds


def clock() -> float:
    return float(getattr(_spent, "seconds", 0.0))


@pytest.fixture
def dear_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows take long enough for "auto" to cut them, whatever the machine does."""
    monkeypatch.setattr("dagad._executors.grainsize.perf_counter", clock)


def slow(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of rows that "auto" cuts, of code of its own: what was found is remembered by code."""

    def chunk(rows: Any, *shared: Any) -> Any:
        spend(1e-4 * len(rows))
        return fun(rows, *shared)

    return chunk


def each_scheduler(scheduler: Any) -> int:
    """Return a number of rows that each scheduler has to itself: what was found is remembered by shapes, too."""
    return 640 + len(str(scheduler))


# Chunk functions that don't add up


def a_mean(rows: Any, theta: Any) -> Any:
    return np.mean((rows - theta) ** 2)


def with_a_prior(rows: Any, theta: Any) -> Any:
    return np.sum((rows - theta) ** 2) + 0.5 * theta**2


def column_against_rows(rows: Any, theta: Any) -> Any:
    return np.sum((rows[:, None] - theta * np.ones(len(rows))) ** 2)


def of_random_numbers(rows: Any, theta: Any) -> Any:
    return theta * np.sum(rows * onp.random.default_rng().standard_normal(len(rows)))


TRAPS = {
    a_mean: "`chunk` does not add up.*`np.sum",
    with_a_prior: "`chunk` does not add up.*prior or a penalty is added once, outside",
    column_against_rows: r"`chunk` does not add up.*y of shape \(N,\), not \(N, 1\)",
    of_random_numbers: "for the same rows when it was called again.*Draw random numbers before",
}


@pytest.mark.sampled(6)
@pytest.mark.usefixtures("dear_rows", "new_functions")
@pytest.mark.parametrize("mode", [dagad.grad, lambda total: total])
@pytest.mark.parametrize("fun", TRAPS)
def test_a_sum_that_does_not_add_up_is_warned_of_once_at_its_line(fun: Any, mode: Any, scheduler: Any) -> None:
    chunk, data = slow(fun), onp.linspace(1.0, 2.0, each_scheduler(scheduler) + (mode is dagad.grad))
    total = mode(lambda theta: dagad.reduce_sum(chunk, data, theta, scheduler=scheduler))
    with pytest.warns(dagad.DagadWarning, match=TRAPS[fun]) as caught:
        total(3.0)
    assert [one.filename for one in caught] == [__file__]
    total(3.0)  # warnings are errors here


@pytest.mark.usefixtures("dear_rows", "new_functions")
def test_sums_that_add_up_and_other_combinations_are_not_warned_of(scheduler: Any) -> None:
    data = onp.linspace(1.0, 2.0, each_scheduler(scheduler))

    def log_sum_exp(rows: Any, theta: Any) -> Any:
        spend(1e-4 * len(rows))
        largest = np.max(rows * theta)
        return largest + np.log(np.sum(np.exp(rows * theta - largest)))

    def outputs(rows: Any, theta: Any) -> Any:
        return {"n": len(rows), "squares": [theta * rows @ rows, np.sum(rows) * np.ones(3)]}

    assert dagad.reduce_sum(slow(outputs), data, 2.0, scheduler=scheduler)["n"] == len(data)
    combined = dagad.map_reduce(log_sum_exp, np.logaddexp, data, 2.0, scheduler=scheduler)
    assert combined == pytest.approx(float(onp.log(onp.sum(onp.exp(2.0 * data)))))
    assert dagad.map_sum(slow(lambda item: item), data.reshape(-1, 1), scheduler=scheduler) == pytest.approx(data.sum())


@pytest.mark.parametrize("rows", [1, 2, 5, 40])
@pytest.mark.parametrize("fun", TRAPS)
def test_check_grads_refuses_sums_that_do_not_add_up_in_chunks_of_any_size(fun: Any, rows: int, scheduler: Any) -> None:
    data, match = onp.linspace(1.0, 2.0, 20), TRAPS[fun].replace("chunk", fun.__name__)
    with pytest.raises(dagad.GradientError, match=match):
        check_grads(partial(dagad.reduce_sum, fun, data, grainsize=rows, scheduler=scheduler), 3.0, modes=("rev",))


def test_checks_of_gradients_look_at_rows_that_are_differentiated_too() -> None:
    def loss(data: Any) -> Any:
        return dagad.reduce_sum(a_mean, data, 3.0, grainsize=5)

    with pytest.raises(dagad.GradientError, match="`a_mean` does not add up"):
        check_grads(loss, onp.linspace(1.0, 2.0, 20))
    check_grads(lambda data: dagad.map_reduce(np.max, np.maximum, data, grainsize=5), onp.linspace(1.0, 2.0, 20))


@pytest.mark.parametrize("as_items", [False, True])
def test_checks_of_gradients_allow_for_roundings_of_single_precision_in_the_rows(as_items: bool) -> None:
    ones = onp.sqrt(1.0 + 1e-3 * onp.random.default_rng(0).standard_normal(2048))

    def cancelling(rows: Any, theta: Any) -> Any:
        rows = onp.stack(rows) if as_items else rows
        return theta * (float(onp.cumsum(rows**2)[-1]) - len(rows))  # one after the other

    def check(rows: Any, tolerance: float | None = None) -> None:
        rows = list(rows) if as_items else rows
        check_grads(lambda theta: dagad.reduce_sum(cancelling, rows, theta), 1.5, modes=("rev",), tolerance=tolerance)

    check(ones)
    check(ones.astype("f4"))


def test_checks_of_gradients_take_the_tolerance_that_a_user_gives_for_sums_too() -> None:
    def inexact(rows: Any, theta: Any) -> Any:
        return theta**2 * onp.round(onp.sum(rows), 4)

    fun = partial(dagad.reduce_sum, inexact, 1.0 / onp.arange(1.0, 34.0), grainsize=16)
    with pytest.raises(dagad.GradientError, match="`inexact` does not add up"):
        check_grads(fun, 1.5)
    check_grads(fun, 1.5, tolerance=1e-3)
    with pytest.raises(dagad.GradientError, match="`a_mean` does not add up"):
        check_grads(partial(dagad.reduce_sum, a_mean, onp.linspace(1.0, 2.0, 20)), 3.0, tolerance=1e-3)


# What is not finite


def logarithms(rows: Any, theta: Any) -> Any:
    with onp.errstate(all="ignore"):
        return np.sum(np.log(rows * theta))


ROWS = onp.arange(1.0, 21.0)
HOLE = onp.where(ROWS == 14.0, onp.nan, ROWS)
OF_ONE_ROW = r"gave nan for chunk 2 \(rows 10:15\)\. Row 13 holds nan or infinity: leave such rows out"
MODES: dict[str, Callable[..., Any]] = {
    "value": lambda fun: fun(2.0),
    "gradient": lambda fun: dagad.grad(fun)(2.0),
    "jvp": lambda fun: dagad.jvp(fun, (2.0,), (1.0,)),
    "hessian": lambda fun: dagad.hessian(fun)(2.0),
    "evaluate": lambda fun: dagad.evaluate(fun, 2.0).gradient(),
}


@pytest.fixture(autouse=True)
def _nothing_was_sought_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagad._api.non_finite._SOUGHT", Remembered[bool](64))
    monkeypatch.setattr("dagad._api.non_finite.LONGEST_SOUGHT", 60.0)  # whatever else the machine does


@pytest.mark.parametrize(
    "sliced", [HOLE, list(HOLE), (ROWS, {"x": HOLE.reshape(-1, 1)})], ids=["array", "list", "tree"]
)
@pytest.mark.parametrize("mode", MODES)
def test_a_chunk_that_gives_nan_is_named_with_the_row(mode: str, sliced: Any, scheduler: Any) -> None:
    def chunk(rows: Any, theta: Any) -> Any:
        rows = rows[1]["x"] if isinstance(rows, tuple) else onp.asarray(rows)
        with onp.errstate(all="ignore"):
            return np.sum(np.log(rows * theta))

    def total(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, sliced, theta, grainsize=5, scheduler=scheduler)

    with pytest.warns(dagad.DagadWarning, match=f"`chunk` {OF_ONE_ROW}") as caught:
        MODES[mode](total)
    assert len(caught) == 1
    MODES[mode](total)  # it is said once


def test_a_chunk_that_gives_nan_is_named_in_shards_and_in_differentiated_rows(scheduler: Any) -> None:
    def total(theta: Any) -> Any:
        return dagad.reduce_sum(logarithms, dagad.shard(HOLE, grainsize=5, scheduler=scheduler), theta)

    with pytest.warns(dagad.DagadWarning, match=r"`logarithms` gave nan for chunk 2 \(rows 10:15\)"):
        dagad.grad(total)(2.0)
    with pytest.warns(dagad.DagadWarning, match=OF_ONE_ROW.replace("chunk 2", "chunk 1").replace("10:15", "7:14")):
        dagad.grad(lambda rows: dagad.reduce_sum(logarithms, rows, 2.0, grainsize=7, scheduler=scheduler))(HOLE)


def test_chunks_that_give_nan_are_named_where_rows_are_not_the_cause(scheduler: Any) -> None:
    def total(theta: Any, grainsize: int) -> Any:
        return dagad.reduce_sum(logarithms, ROWS - 8.5, theta, grainsize=grainsize, scheduler=scheduler)

    with pytest.warns(dagad.DagadWarning, match=r"chunk 0 \(rows 0:4\) and 1 more of 5\. Call it with these rows"):
        total(1.0, 4)
    with pytest.warns(dagad.DagadWarning, match=r"all 2 chunks\. Look at the arguments that all chunks share"):
        total(onp.nan, 10)
    with pytest.warns(dagad.DagadWarning, match=r"chunk 0 \(rows 0:20\)\. Call it with these rows"):
        total(1.0, 20)


def test_an_infinite_value_is_not_warned_of_unless_it_is_in_the_rows(scheduler: Any) -> None:
    def total(rows: Any, theta: Any, grainsize: int) -> Any:
        return dagad.reduce_sum(logarithms, rows, theta, grainsize=grainsize, scheduler=scheduler)

    assert total(ROWS, 0.0, 5) == -onp.inf
    with pytest.warns(dagad.DagadWarning, match=r"`logarithms` gave infinity for chunk 1 \(rows 4:8\).*Row 7 holds"):
        assert total(onp.where(ROWS == 8.0, onp.inf, ROWS), 1.0, 4) == onp.inf


def test_a_chunk_with_a_nested_sum_that_gives_nan_is_named() -> None:
    def outer(rows: Any, theta: Any) -> Any:
        return dagad.reduce_sum(logarithms, rows, theta, grainsize=2)

    with pytest.warns(dagad.DagadWarning, match=f"`outer` {OF_ONE_ROW}") as caught:
        dagad.grad(lambda theta: dagad.reduce_sum(outer, HOLE, theta, grainsize=5, scheduler="threads"))(2.0)
    assert len(caught) == 1


def visited(rows: Any, theta: Any, folder: str) -> Any:
    """Write down who comes a second time, and have him wait at a gate."""
    come, first = Path(folder, f"come {rows[0]}"), not Path(folder, f"come {rows[0]}").exists()
    (come if first else Path(folder, f"again {rows[0]}")).touch()
    until(lambda: first or Path(folder, "gate").exists())
    return logarithms(rows, theta)


def again(folder: Path) -> int:
    return len(list(folder.glob("again *")))


@pytest.mark.parametrize("rows", [HOLE, ROWS - 8.5])
def test_a_long_evaluation_is_not_repeated_to_find_the_chunk_that_gave_nan(
    rows: Any, scheduler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagad._api.non_finite.LONGEST_SOUGHT", 0.0)

    def total(theta: Any) -> Any:
        return dagad.reduce_sum(visited, rows, theta, str(tmp_path), grainsize=1, scheduler=scheduler)

    why = r"Which chunk did is not looked for.*as long again \(.* s\)\. Call it with some of the rows at a time to see"
    with pytest.warns(dagad.DagadWarning, match=why):
        dagad.value_and_grad(total)(1.0)
    assert again(tmp_path) == 0
    # The rows are here, and are looked at for a while.
    monkeypatch.setattr("dagad._api.non_finite.perf_counter", lambda: 0.0)
    with pytest.warns(dagad.DagadWarning, match=r"`logarithms` gave nan\. (Row 13 holds nan|Which chunk)") as caught:
        dagad.reduce_sum(logarithms, rows, 1.0, grainsize=5, scheduler=scheduler)
    assert ("Row 13" in str(caught[0].message)) == (rows is HOLE)
    dagad.reduce_sum(logarithms, rows, 1.0, grainsize=5, scheduler=scheduler)  # it is said once
    # Only the first run was long, on a cluster that had to import all.
    monkeypatch.setattr("dagad._api.non_finite.LONGEST_SOUGHT", 60.0)
    with pytest.warns(dagad.DagadWarning, match=r"gave nan for chunk"):
        dagad.reduce_sum(logarithms, rows, 1.0, grainsize=5, scheduler=scheduler)


def test_an_evaluation_that_is_cancelled_ends_while_the_chunk_is_looked_for(scheduler: Any, tmp_path: Path) -> None:
    def total(theta: Any) -> Any:
        found = dagad.reduce_sum(visited, HOLE, theta, str(tmp_path), grainsize=1, scheduler=scheduler)
        (tmp_path / "gone on").touch()
        return found

    evaluation = dagad.evaluate(total, 1.0)
    (thread,) = (one for one in threading.enumerate() if one.name == "dagad-evaluation")
    until(lambda: again(tmp_path))
    evaluation.cancel()
    with pytest.raises(dagad.CancelledError):
        evaluation.value(PATIENCE)
    (tmp_path / "gate").touch()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert again(tmp_path) < len(HOLE)
    assert not (tmp_path / "gone on").exists()


def test_stored_rows_are_not_read_here_to_name_a_chunk(
    cluster: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zarr: Any = pytest.importorskip("zarr")
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=(20,), chunks=(5,), dtype="f8")
    reads, read = list[Any](), zarr.Array.__getitem__

    def reads_here(self: Any, rows: Any) -> Any:
        reads.append(rows)
        return read(self, rows)

    monkeypatch.setattr(zarr.Array, "__getitem__", reads_here)  # in this process
    total = partial(dagad.reduce_sum, logarithms, array, 1.0, grainsize=5, scheduler=cluster)
    array[:] = HOLE
    with pytest.warns(dagad.DagadWarning, match=r"chunk 2 \(rows 10:15\)\. Call it with these rows"):
        total()
    array[:] = onp.where(ROWS == 14.0, onp.inf, ROWS)
    assert total() == onp.inf  # which may be meant, for all that is known here
    assert not reads


# Integers among parameters


class Record(NamedTuple):
    count: Any
    scale: Any


@pytest.mark.parametrize(
    ("argument", "path"),
    [({"a": 0, "b": 1, "r": 2.0}, r"\['a'\] and 1 more"), ((2, 1.0), r"\[0\]"), ([1.0, onp.int64(3)], r"\[1\]")],
)
def test_integers_beside_parameters_are_named(argument: Any, path: str) -> None:
    def fun(parameters: Any) -> Any:
        return sum(parameters.values() if isinstance(parameters, dict) else parameters) ** 2

    with pytest.warns(
        dagad.DagadWarning, match=rf"Argument 0 \(`parameters`\) holds integers.*None for {path}\. Write"
    ):
        gradient = dagad.grad(fun)(argument)
    assert [type(part) for part in (gradient.values() if isinstance(gradient, dict) else gradient)].count(type(None))


@pytest.mark.parametrize(
    "argument",
    [
        Record(3, 2.0),
        {"model": Record((3, 4), 2.0)},
        [{"n": 3, "x": 2.0}],
        {"labels": onp.arange(3), "x": 2.0},
        (2.0, True, "name", None),
    ],
)
def test_constants_in_records_arrays_and_words_are_not_warned_of(argument: Any) -> None:
    def fun(argument: Any) -> Any:
        return sum(leaf for leaf in _numbers(argument)) ** 2

    assert dagad.grad(fun)(argument) is not None


def _numbers(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict | list | tuple):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _numbers(part)
    elif not isinstance(tree, int | str | None | onp.ndarray):
        yield tree


# Processes, and what "auto" chose


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_threads_are_advised_where_processes_take_longer_to_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    costs: Remembered[Cost] = Remembered(64)
    monkeypatch.setattr("dagad._executors.planning._COSTS", costs)
    for _ in range(2):
        dagad.grad(lambda theta: dagad.reduce_sum(logarithms, ROWS, theta, grainsize=10, scheduler="processes"))(2.0)
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1
    assert 'Use "threads", or a `distributed.Client`' in said[0]
    assert costs.find(choose.PROCESSES) is not None


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("dear_rows", "new_functions")
def test_find_grainsize_gives_the_grainsize_that_auto_chose(scheduler: Any, cluster: Client) -> None:
    data = onp.linspace(1.0, 2.0, each_scheduler(scheduler))

    def fun(rows: Any, theta: Any) -> Any:
        spend(1e-4 * len(rows))
        return np.sum(np.tanh(rows * theta))

    def total(**options: Any) -> str:
        return float(dagad.reduce_sum(fun, data, 1.5, scheduler=scheduler, **options)).hex()

    automatic, size = total(), dagad.find_grainsize(fun, data, 1.5)
    assert 1 < size < len(data)
    assert total(grainsize=size) == automatic
    assert dagad.find_grainsize(fun, dagad.shard(data, grainsize=7, scheduler=cluster), 1.5) == 7
    assert dagad.find_grainsize(fun, data[:0], 1.5) == 1
