"""Checkpoints: does an interrupted run go on where it stood, to the same bits, and refuse what is not its own?"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad._executors.checkpointed import CheckpointedExecutor
from dagad._values import pytree
from dagad.extend import CompensatedSum
from support.checkpointed_driver import killed
from support.gated_chunks import bits as bits_of
from support.waiting import until


def bits(results: Any) -> list[bytes]:
    return bits_of(pytree.flatten(results)[0])


X, THETA = np.random.default_rng(0).standard_normal((40, 3)), np.array([0.3, -0.7, 1.1])


def chunk(rows: Any, theta: Any) -> Any:
    return np.sum(np.tanh(rows @ theta))


def vector(rows: Any, theta: Any) -> Any:
    return {"a": np.sum(rows * theta, axis=0), "b": np.sum(rows)}


def row(item: Any, theta: Any) -> Any:
    return np.sin(item * theta)


def root(item: Any, theta: Any) -> Any:
    return np.sqrt(item * theta)


def total(scheduler: Any, rows: Any = X, **options: Any) -> Callable[[Any], Any]:
    return lambda theta: dagad.reduce_sum(chunk, rows, theta, grainsize=3, scheduler=scheduler, **options)


def everything(scheduler: Any) -> list[Any]:
    """Return the results of all modes."""
    few = X[:16]
    loss, careful = total(scheduler, few), total(scheduler, few, sum=CompensatedSum())

    def ragged(theta: Any) -> Any:
        return dagad.map_rect(row, list(X[:5]), theta, grainsize=2, scheduler=scheduler)

    def sums(rows: Any, theta: Any) -> Any:
        return dagad.reduce_sum(vector, rows, theta, grainsize=7, scheduler=scheduler)["a"]

    def ends(theta: Any) -> Any:  # of their slopes, one part of the map has no seed
        found = ragged(theta)
        return anp.stack([anp.sum(found[:6] ** 2), anp.sum(found[6:] ** 3)])

    value, pullback = dagad.vjp(ragged, THETA)
    evaluation = dagad.evaluate(loss, THETA)
    return [
        loss(THETA),
        dagad.value_and_grad(loss)(THETA),
        dagad.value_and_grad(careful)(THETA),
        dagad.grad(lambda rows: dagad.reduce_sum(chunk, rows, THETA, grainsize=3, scheduler=scheduler))(few),
        dagad.jvp(loss, THETA, THETA),
        dagad.hvp(loss, THETA, THETA),
        dagad.hessian(loss)(THETA),
        dagad.reduce_sum(vector, few, THETA, grainsize=7, scheduler=scheduler),
        value,
        pullback(np.ones_like(value)),
        dagad.jacrev(ragged)(THETA),
        dagad.jacrev(sums, argnums=(0, 1))(few, THETA),
        dagad.hessian(lambda theta: anp.sum(sums(few, theta) ** 2))(THETA),
        dagad.jacrev(ends)(THETA),
        dagad.grad(lambda theta: dagad.map_reduce(chunk, np.add, few, theta, grainsize=3, scheduler=scheduler))(THETA),
        evaluation.value(),
        evaluation.gradient(),
    ]


@functools.cache
def everything_on_one_thread() -> list[bytes]:
    return bits(everything("sync"))


def test_chunks_that_no_seed_reaches_are_not_pulled(scheduler: Any, tmp_path: Path) -> None:
    """At an infinite slope a zero would be nan; elsewhere it would lose its sign."""

    def steep(theta: Any) -> Any:
        return dagad.map(root, np.array([0.0, 0.0, 1.0, 4.0]), theta, grainsize=1, scheduler=scheduler)

    seed = np.array([0.0, 0.0, 1.0, 0.0])
    expected = dagad.vjp(steep, 1.0)[1](seed)
    with dagad.checkpoint(tmp_path / "run"):
        found = dagad.vjp(steep, 1.0)[1](seed)
    assert bits(found) == bits(expected) == bits((0.5,))


def test_a_cotangent_of_zeros_pulls_no_chunk(scheduler: Any, tmp_path: Path) -> None:
    def roots(theta: Any) -> Any:
        return dagad.map(root, np.array([0.0, 1.0, 4.0]), theta, grainsize=1, scheduler=scheduler)

    with dagad.checkpoint(tmp_path / "run"):
        assert bits(dagad.vjp(roots, 1.0)[1](np.zeros(3))) == bits((np.float64(0.0),))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("by_chunk", [True, False])
def test_every_mode_gives_the_same_bits_with_a_checkpoint_and_without(
    by_chunk: bool, scheduler: Any, tmp_path: Path
) -> None:
    expected = everything_on_one_thread()
    with dagad.checkpoint(tmp_path / "run", chunks=by_chunk):
        first = everything(scheduler)
    with dagad.checkpoint(tmp_path / "run") as run:
        again = everything(scheduler)
    assert run.n_known > 10
    assert bits(first) == bits(again) == expected


def logged(rows: Any, theta: Any) -> Any:
    """Write down that it ran; no part of what a checkpoint takes for the function."""
    with open(os.environ["RUNS"], "a") as file:
        file.write(f"{int(rows[0, 0])}\n")
    return np.sum(np.tanh(rows @ theta) / (1.0 + rows[0, 0]))


ROWS = np.arange(120.0).reshape(40, 3)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Return what returns which chunks have run since it was last asked."""
    file = tmp_path / "runs"
    monkeypatch.setenv("RUNS", str(file))

    def taken() -> list[str]:
        found = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        return found

    return taken


def loss(theta: Any) -> Any:
    return dagad.reduce_sum(logged, ROWS, theta, grainsize=4, scheduler="sync")


def test_an_evaluation_in_a_checkpoint_is_read_and_not_computed_again(
    tmp_path: Path, runs: Callable[[], list[str]]
) -> None:
    expected = dagad.value_and_grad(loss)(THETA)
    assert len(runs()) == 10
    for n_runs in (10, 0):
        with dagad.checkpoint(tmp_path / "run") as run:
            assert bits(dagad.value_and_grad(loss)(THETA)) == bits(expected)
            assert repr(run) == f"<Checkpoint: 1 operations in {str(tmp_path / 'run')!r}>"
        assert len(runs()) == n_runs


def logged_vector(rows: Any, theta: Any) -> Any:
    return logged(rows, theta) * anp.sin(np.arange(1.0, 13.0) * theta[0])


def stopping_vector(rows: Any, theta: Any) -> Any:
    return stopping(rows, theta) * anp.sin(np.arange(1.0, 13.0) * theta[0])


def slopes_of(chunk: Any) -> Any:
    return dagad.jacrev(lambda theta: dagad.reduce_sum(chunk, ROWS, theta, grainsize=4, scheduler="sync"))(THETA)


@pytest.mark.parametrize("by_chunk", [True, False])
def test_all_rows_of_a_jacobian_take_one_more_run_of_each_chunk(
    by_chunk: bool, tmp_path: Path, runs: Callable[[], list[str]]
) -> None:
    expected = slopes_of(logged_vector)
    assert len(runs()) == 10
    for n_known, n_runs in ((0, 20), (2, 0)):
        with dagad.checkpoint(tmp_path / "run", chunks=by_chunk) as run:
            assert bits(slopes_of(logged_vector)) == bits(expected)
            assert run.n_known == n_known
        assert len(runs()) == n_runs


def test_a_jacobian_in_progress_pulls_the_chunks_that_are_missing(
    tmp_path: Path, runs: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = slopes_of(stopping_vector)
    runs()

    def interrupted() -> None:
        with dagad.checkpoint(tmp_path / "run") as run:
            monkeypatch.setattr(run._journal, "ended", stopping_after(run._journal.ended, monkeypatch))
            slopes_of(stopping_vector)

    with pytest.raises(Stopped):
        interrupted()
    assert len(runs()) == 10 + 5
    monkeypatch.delenv("STOP")
    with dagad.checkpoint(tmp_path / "run") as run:
        assert bits(slopes_of(stopping_vector)) == bits(expected)
        assert run.n_known == 1
    assert len(runs()) == 5


def stopping_after(ended: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Return what has the sixth chunk stop from when an operation has ended."""

    def write(record: Any) -> None:
        ended(record)
        monkeypatch.setenv("STOP", str(5 * 12))

    return write


@pytest.mark.parametrize("by_chunk", [True, False])
def test_a_reduction_is_written_by_chunk_or_when_it_has_ended(
    by_chunk: bool, tmp_path: Path, runs: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written by chunk is found by a run that writes no chunks."""

    def two_evaluations() -> Any:
        return [bits(dagad.value_and_grad(stopping_loss)(theta)) for theta in (0.9 * THETA, THETA)]

    expected = two_evaluations()
    runs()
    monkeypatch.setenv("STOP", str(5 * 12))
    with pytest.raises(Stopped), dagad.checkpoint(tmp_path / "run", chunks=by_chunk):
        two_evaluations()
    assert len(runs()) == 5
    monkeypatch.delenv("STOP")
    for n_known, n_runs in ((0, 15 if by_chunk else 20), (2, 0)):
        with dagad.checkpoint(tmp_path / "run", chunks=False) as run:
            assert two_evaluations() == expected
            assert run.n_known == n_known
        assert len(runs()) == n_runs


class Stopped(BaseException):
    """Stands for a signal."""


def stopping(rows: Any, theta: Any) -> Any:
    if int(rows[0, 0]) == int(os.environ.get("STOP", "-1")):
        raise Stopped
    return logged(rows, theta)


def stopping_loss(theta: Any) -> Any:
    return dagad.reduce_sum(stopping, ROWS, theta, grainsize=4, scheduler="sync")


def test_an_evaluation_in_progress_computes_what_is_missing(
    tmp_path: Path, runs: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = dagad.value_and_grad(stopping_loss)(THETA)
    runs()
    monkeypatch.setenv("STOP", str(5 * 12))
    with pytest.raises(Stopped), dagad.checkpoint(tmp_path / "run"):
        dagad.value_and_grad(stopping_loss)(THETA)
    before = runs()
    monkeypatch.delenv("STOP")
    with dagad.checkpoint(tmp_path / "run"):
        assert bits(dagad.value_and_grad(stopping_loss)(THETA)) == bits(expected)
    after = runs()
    assert len(before) == 5
    assert sorted([*before, *after], key=int) == [str(12 * number) for number in range(10)]


def test_a_run_that_differs_from_its_checkpoint_is_refused(tmp_path: Path) -> None:
    with dagad.checkpoint(tmp_path / "run"):
        dagad.grad(total("sync"))(THETA)
    others: dict[str, Callable[[], Any]] = {
        "its function": lambda: dagad.grad(lambda t: dagad.reduce_sum(lambda r, t: chunk(r, t), X, t, grainsize=3))(
            THETA
        ),
        "cut otherwise": lambda: dagad.grad(lambda t: dagad.reduce_sum(chunk, X, t, grainsize=4))(THETA),
        "its rows are others": lambda: dagad.grad(lambda t: dagad.reduce_sum(chunk, X + 1, t, grainsize=3))(THETA),
        "its arguments": lambda: dagad.grad(total("sync"))(THETA + 1),
        "something else is asked": lambda: total("sync")(THETA),
    }
    for why, other in others.items():
        with (
            pytest.raises(dagad.CheckpointError, match=f"{why}.*another directory"),
            dagad.checkpoint(tmp_path / "run"),
        ):
            other()
    with dagad.checkpoint(tmp_path / "run"):
        dagad.grad(total("threads"))(THETA)  # where it runs is of no account


@pytest.mark.parametrize("sharded", [False, True])
def test_a_run_that_is_cut_otherwise_is_not_said_to_have_other_rows(sharded: bool, tmp_path: Path) -> None:
    def run(grainsize: int) -> Any:
        rows = dagad.shard(X, grainsize=grainsize, scheduler="threads") if sharded else X
        how: dict[str, Any] = {} if sharded else {"grainsize": grainsize}
        return dagad.grad(lambda t: dagad.reduce_sum(chunk, rows, t, **how))(THETA)

    with dagad.checkpoint(tmp_path / "run"):
        run(3)
    with (
        pytest.raises(dagad.CheckpointError, match=r"cut otherwise\. Run.* a number for the `grainsize` of Shards"),
        dagad.checkpoint(tmp_path / "run"),
    ):
        run(4)


def test_a_checkpoint_notices_rows_that_are_written_into_between_evaluations(tmp_path: Path) -> None:
    rows = X.copy()

    def fit(shift: float) -> Any:
        first = dagad.grad(lambda t: dagad.reduce_sum(chunk, rows, t, grainsize=3, scheduler="sync"))(THETA)
        rows[0] += shift
        return first, dagad.grad(lambda t: dagad.reduce_sum(chunk, rows, t, grainsize=3, scheduler="sync"))(THETA)

    with dagad.checkpoint(tmp_path / "run"):
        fit(1.0)
    rows[:] = X
    with (
        pytest.raises(dagad.CheckpointError, match=r"operation 1 .*its rows are others"),
        dagad.checkpoint(tmp_path / "run"),
    ):
        fit(2.0)


def test_a_damaged_record_of_a_checkpoint_is_warned_of_and_computed_again(
    tmp_path: Path, runs: Callable[[], list[str]]
) -> None:
    def fit() -> Any:
        return [dagad.value_and_grad(loss)(THETA * scale) for scale in (1.0, 2.0, 3.0)]

    with dagad.checkpoint(tmp_path / "run"):
        expected = fit()
    whole = (tmp_path / "run" / "evaluations").read_bytes()
    each = len(whole) // 3
    damaged = {
        "in the middle of a record": whole[: 2 * each + 100],
        "is not what was written": whole[: 2 * each + 200]
        + bytes([whole[2 * each + 200] ^ 1])
        + whole[2 * each + 201 :],
        "something else than a record": whole[: 2 * each] + b"nonsense" * 10,
    }
    for why, content in damaged.items():
        (tmp_path / "run" / "evaluations").write_bytes(content)
        runs()
        with pytest.warns(dagad.DagadWarning, match=why), dagad.checkpoint(tmp_path / "run") as run:
            assert bits(fit()) == bits(expected)
        assert run.n_known == 2
        assert len(runs()) == 10


def test_a_damaged_state_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with dagad.checkpoint(tmp_path / "run") as run:
        run.save({"theta": THETA, "step": 3})
    content = bytearray((tmp_path / "run" / "state").read_bytes())
    content[-1] ^= 1
    (tmp_path / "run" / "state").write_bytes(content)
    with (
        pytest.raises(dagad.CheckpointError, match=r"state in the checkpoint .* is damaged"),
        dagad.checkpoint(tmp_path / "run"),
    ):
        pass


def descend(run: Any, n_steps: int) -> Any:
    """Return where a loop ends that saves its state every third step."""
    state: dict[str, Any] = {"theta": THETA, "step": 0} if run.state is None else run.state
    while state["step"] < n_steps:
        gradient = dagad.grad(loss)(state["theta"])
        state = {"theta": state["theta"] - 0.1 * gradient, "step": state["step"] + 1}
        if state["step"] % 3 == 0:
            run.save(state)
    return state["theta"]


def test_a_loop_goes_on_from_the_state_that_it_saved(tmp_path: Path, runs: Callable[[], list[str]]) -> None:
    with dagad.checkpoint(tmp_path / "whole") as run:
        expected = descend(run, 8)
    runs()
    with dagad.checkpoint(tmp_path / "run") as run:
        descend(run, 5)
    assert len(runs()) == 50
    with dagad.checkpoint(tmp_path / "run") as run:
        assert run.state["step"] == 3
        assert run.n_known == 2
        assert bits(descend(run, 8)) == bits(expected)
    assert len(runs()) == 30
    assert (tmp_path / "run" / "evaluations").stat().st_size < 3 * 5000  # what led to the state is not kept


def test_a_checkpoint_does_not_take_evaluations_before_a_state_for_later_ones(tmp_path: Path) -> None:
    with dagad.checkpoint(tmp_path / "run") as run:
        dagad.grad(total("sync"))(THETA)
        old = (tmp_path / "run" / "evaluations").read_bytes()
        run.save(1.0)
    (tmp_path / "run" / "evaluations").write_bytes(old)  # killed before it could be emptied
    with dagad.checkpoint(tmp_path / "run") as run:
        assert (run.state, run.n_known) == (1.0, 0)
        dagad.grad(total("sync"))(THETA + 1)


# --- what `evaluate` started goes on meanwhile ------------------------------------------------------------------------


class Gate:
    """Holds chunks, wherever they run, until it is opened."""

    def __init__(self) -> None:
        (self._inner, began), (gate, self._outer) = os.pipe(), os.pipe()
        self._all, self.name = [self._inner, began, gate], f"{began} {gate}"

    def wait(self) -> None:
        """Return when a chunk has come to it."""
        os.read(self._inner, 1)

    def open(self) -> None:
        if self._outer >= 0:
            os.close(self._outer)
            self._outer = -1

    def close(self) -> None:
        for end in self._all:
            os.close(end)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    monkeypatch.setenv("GATE", made.name)
    yield made
    made.open()
    made.close()


def held(rows: Any, theta: Any) -> Any:
    began, gate = map(int, os.environ["GATE"].split())
    os.write(began, b"x")
    os.read(gate, 1)
    return chunk(rows, theta)


def held_loss(theta: Any) -> Any:
    return dagad.reduce_sum(held, X, theta, grainsize=10, scheduler="sync")


def test_a_loop_goes_on_from_a_state_saved_during_an_evaluation(tmp_path: Path, gate: Gate) -> None:
    with dagad.checkpoint(tmp_path / "run") as run:
        evaluation = dagad.evaluate(held_loss, THETA)
        gate.wait()
        run.save(1.0)
        gate.open()
        found = evaluation.gradient()
    assert bits(found) == bits(dagad.grad(held_loss)(THETA))
    with dagad.checkpoint(tmp_path / "run") as run:
        assert (run.state, run.n_known) == (1.0, 0)
        found = dagad.evaluate(held_loss, THETA + 1).gradient()
    assert bits(found) == bits(dagad.grad(held_loss)(THETA + 1))


def test_evaluations_that_waited_while_a_checkpoint_saved_a_state_are_not_written_either(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, is_without = list[Any](), CheckpointedExecutor._bypasses

    def bypasses(self: Any, job: Any) -> bool:
        found = is_without(self, job)
        asked.append(job)
        return found

    monkeypatch.setattr(CheckpointedExecutor, "_bypasses", bypasses)
    with dagad.checkpoint(tmp_path / "run") as run:
        evaluations = [dagad.evaluate(held_loss, THETA + number) for number in range(2)]
        gate.wait()
        until(lambda: len(asked) == 4)  # each comes by two doors, to the lock
        run.save(1.0)
        gate.open()
        found = [evaluation.gradient() for evaluation in evaluations]
        again = dagad.evaluate(held_loss, THETA + 2).gradient()
    with dagad.checkpoint(tmp_path / "run") as run:
        assert (run.state, run.n_known) == (1.0, 1)
        assert bits(dagad.evaluate(held_loss, THETA + 2).gradient()) == bits(again)
    assert list(map(bits, found)) == [bits(dagad.grad(held_loss)(THETA + number)) for number in range(2)]


def test_a_checkpoint_writes_nothing_after_its_block_has_ended(tmp_path: Path, gate: Gate) -> None:
    with dagad.checkpoint(tmp_path / "run") as run:
        evaluation = dagad.evaluate(held_loss, THETA)
        gate.wait()
    with pytest.raises(dagad.CheckpointError, match=r"block has ended\. Save it inside"):
        run.save(1.0)
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    gate.open()
    assert bits(evaluation.gradient()) == bits(dagad.grad(held_loss)(THETA))
    assert {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()} == before


def some_nan(rows: Any, theta: Any) -> Any:
    return np.sum(rows * theta) + (np.nan if rows[0, 0] == X[0, 0] else 0.0)


def test_a_checkpoint_does_not_record_the_search_for_a_nan(tmp_path: Path) -> None:
    for n_known in (0, 2):
        with dagad.checkpoint(tmp_path / "run") as run, warnings.catch_warnings():
            warnings.simplefilter("ignore", dagad.DagadWarning)  # the first time it is said which chunk it was
            assert run.n_known == n_known
            assert np.isnan(dagad.reduce_sum(some_nan, X, THETA, grainsize=4, scheduler="sync"))
            dagad.reduce_sum(chunk, X, THETA, grainsize=4, scheduler="sync")


def test_evaluations_after_a_saved_state_are_read_from_the_checkpoint(
    tmp_path: Path, runs: Callable[[], list[str]]
) -> None:
    for n_known in (0, 1):
        with dagad.checkpoint(tmp_path / "run") as run:
            assert run.n_known == n_known
            for step in range(0 if run.state is None else run.state, 4):
                dagad.evaluate(loss, THETA + step / 100).gradient()
                if step == 2:
                    run.save(3)
    assert len(runs()) == 40  # ten chunks each, all in the first run


@pytest.mark.parametrize("state", ["text", {"a": object()}, [np.array(["a"])]])
def test_a_checkpoint_refuses_a_state_of_words_and_objects(state: Any, tmp_path: Path) -> None:
    with dagad.checkpoint(tmp_path / "run") as run, pytest.raises(dagad.CheckpointError, match="Save numbers, numpy's"):
        run.save(state)


class Level(IntEnum):
    """A number that is not Python's own."""

    LOW = 1


@pytest.mark.parametrize("name", ["mask", "record", "enum", "series"])
def test_a_checkpoint_refuses_what_would_come_back_as_something_else(name: str, tmp_path: Path) -> None:
    states: dict[str, Any] = {
        "mask": lambda: np.ma.masked_array([1.0, 2.0], [False, True]),
        "record": lambda: np.array([1.0]).view(np.recarray),
        "enum": lambda: Level.LOW,
        "series": lambda: pytest.importorskip("pandas").Series([1.0, 2.0]),
    }
    with (
        dagad.checkpoint(tmp_path / "run") as run,
        pytest.raises(dagad.CheckpointError, match=r"of others' arrays `np.asarray.x.`.* its `data` and its `mask`"),
    ):
        run.save({"state": states[name]()})


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, -(2**63), -(2**63) - 1, 3**300, -(256**20), True])
def test_a_checkpoint_keeps_ints_of_any_length(number: int, tmp_path: Path) -> None:
    with dagad.checkpoint(tmp_path / "run") as run:
        run.save({"number": number, "theta": THETA})
    with dagad.checkpoint(tmp_path / "run") as run:
        assert (run.state["number"], type(run.state["number"])) == (number, type(number))
        assert run.state["theta"].tolist() == THETA.tolist()


def test_a_checkpoint_keeps_the_numbers_of_a_random_generator(tmp_path: Path) -> None:
    generator, again = np.random.default_rng(1), np.random.default_rng(2)
    generator.standard_normal(5)
    name = generator.bit_generator.state["bit_generator"]
    with dagad.checkpoint(tmp_path / "run") as run:
        run.save({what: part for what, part in generator.bit_generator.state.items() if what != "bit_generator"})
    with dagad.checkpoint(tmp_path / "run") as run:
        again.bit_generator.state = run.state | {"bit_generator": name}
    assert again.standard_normal(3).tolist() == generator.standard_normal(3).tolist()


@pytest.mark.parametrize(
    ("options", "remedy"), [({"chunks": 4}, "`grainsize=`"), ({"sync_every": "5"}, "Give 0 to wait")]
)
def test_options_of_a_checkpoint_that_cannot_be_are_refused(options: Any, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(dagad.ArgumentsError, match=remedy):
        dagad.checkpoint(tmp_path, **options)


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_second_writer_of_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with dagad.checkpoint(tmp_path / "run"), pytest.raises(dagad.CheckpointError, match="one at a time"):
        with dagad.checkpoint(tmp_path / "other"):
            pass
    program = f"import dagad\nwith dagad.checkpoint({str(tmp_path / 'run')!r}): pass"
    with dagad.checkpoint(tmp_path / "run"):
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"is being written by process {os.getpid()} on " in other.stderr


def test_a_checkpoint_in_a_directory_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(dagad.CheckpointError, match=r"not empty.*thesis\.tex"), dagad.checkpoint(tmp_path):
        pass
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.json").write_text('{"format": 99}')
    with pytest.raises(dagad.CheckpointError, match="format 99"), dagad.checkpoint(tmp_path / "run"):
        pass
    with pytest.raises(dagad.ArgumentsError, match="Recompute"):
        dagad.checkpoint(chunk).__enter__()  # type: ignore[arg-type]  # as in JAX


def test_a_grainsize_that_was_timed_is_not_timed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dagad._api import bind

    sizes = iter([3, 4, 5])
    monkeypatch.setattr(bind, "find_grainsize", lambda *args, **kwargs: next(sizes))
    for _ in range(2):
        with dagad.checkpoint(tmp_path / "run"):
            dagad.grad(lambda theta: dagad.reduce_sum(chunk, X, theta, scheduler="sync"))(THETA)
    assert next(sizes) == 4


def test_a_checkpoint_records_chunks_of_shards_too(cluster: Client, tmp_path: Path) -> None:
    expected = dagad.value_and_grad(total("sync"))(THETA)
    for n_known in (0, 2):
        shards = dagad.shard(X, grainsize=3, scheduler=cluster)
        with dagad.checkpoint(tmp_path / "run") as run:
            found = dagad.value_and_grad(lambda theta, data=shards: dagad.reduce_sum(chunk, data, theta))(THETA)
            assert run.n_known == n_known
            again = dagad.value_and_grad(lambda theta, data=shards: dagad.reduce_sum(chunk, data, theta))(THETA)
        assert bits(found) == bits(again) == bits(expected)
    other = dagad.shard(X + 1, grainsize=3, scheduler=cluster)
    with pytest.raises(dagad.CheckpointError, match="its rows are others"), dagad.checkpoint(tmp_path / "run"):
        dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, other, theta))(THETA)


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
@pytest.mark.parametrize("what", ["evaluation", "loop"])
def test_a_killed_driver_goes_on_from_its_checkpoint(what: str, tmp_path: Path) -> None:
    campaign = killed(what, tmp_path, n_kills=3, seed=7)
    assert campaign.after == campaign.expected
    assert campaign.n_all <= campaign.n_runs <= campaign.n_all + campaign.n_workers * campaign.n_kills
