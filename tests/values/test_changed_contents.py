"""What a function carries and somebody changes: is it noticed wherever an earlier state could be used again?

A content (a value, a type, an order, which of two things is which) in what can hold it, in what a chunk function can
hold: each is changed in place between two evaluations. Some are refused, by a sentence; none is stale.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dagad
from dagad._executors import choose
from dagad._executors.planning import Cost, cost_of
from dagad._values.digest import digest
from dagad.extend import Recompute
from support.carrying.all_ways import BY_NAME, clean
from support.carrying.changing import Cell, cells, made
from support.compiled_quickly import compiled_quickly as compiled_quickly

ROWS = np.arange(1.0, 7.0)
# An object's own pickle says what it consists of, wherever it travels or is looked for on disk.
BY_ITS_PICKLE = {"an_instance_that_pickles_otherwise"}
# They change by themselves: what a chunk has consumed or remembered is not what the next one finds.
CONSUMED = {"a_generator", "an_endless_iterator", "a_variable_that_the_chunk_changes"}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    clean()


def evaluated(chunk: Any, data: Any, **options: Any) -> tuple[float, float]:
    """Return the value and half the gradient at 1, without the rows: what `chunk` carries, twice."""
    value, gradient = dagad.value_and_grad(lambda t: dagad.reduce_sum(chunk, data, t, **options))(1.0)
    return round(float(value) / 21.0, 9), round(float(gradient) / 42.0, 9)


def plain(chunk: Any) -> float:
    return round(float(chunk(ROWS, 1.0)) / 21.0, 9)


def stale(some: list[Cell], notice: Callable[[Any, Callable[[], None]], bool]) -> tuple[list[Cell], int]:
    """Return the cells in which a change was not noticed, and how many were right and not refused."""
    missed, n_right = [], 0
    for content, ways, how in some:
        try:
            chunk, change = made(content, ways, how)
            plain(chunk)
        except (TypeError, ValueError, KeyError, IndexError):  # a set of lists, say
            continue
        try:
            if notice(chunk, change):
                n_right += 1
            else:
                missed.append((content, ways, how))
        except dagad.DagadError:
            pass
        finally:
            clean()
    return missed, n_right


def share(rounds: Callable[[int], int], all_of: int) -> int:
    """Return one in how many cells are tried: in the quick tier a sixteenth of those of the whole one."""
    return all_of * (400 // rounds(400)) ** 2


def test_a_gradient_that_runs_a_function_again_is_of_what_it_carried_at_the_value(rounds: Any) -> None:
    def notice(chunk: Any, change: Callable[[], None]) -> bool:
        before = plain(chunk)
        options: Any = {"grainsize": 2, "scheduler": "sync", "policy": Recompute()}
        value, pull = dagad.vjp(lambda t: dagad.reduce_sum(chunk, ROWS, t, **options), 1.0)
        change()
        return round(float(value) / 21.0, 9) == round(float(pull(1.0)[0]) / 42.0, 9) == before

    missed, _ = stale(cells(share(rounds, 2)), notice)
    assert not missed


def test_a_function_that_has_not_changed_runs_again_under_recompute(rounds: Any) -> None:
    def notice(chunk: Any, change: Callable[[], None]) -> bool:
        options: Any = {"grainsize": 2, "scheduler": "sync", "policy": Recompute()}
        return evaluated(chunk, ROWS, **options) == (plain(chunk),) * 2

    some = [cell for cell in cells(12 * 400 // rounds(400), seed=1) if cell[1][0] not in CONSUMED]
    missed, n_right = stale(some, notice)
    assert not missed
    assert n_right > 0.95 * len(some)


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_checkpoint_is_not_continued_by_a_function_that_carries_something_else(tmp_path: Path, rounds: Any) -> None:
    def notice(chunk: Any, change: Callable[[], None]) -> bool:
        numbers.append(len(numbers))
        path = tmp_path / str(len(numbers))
        for _ in range(2):
            with dagad.checkpoint(path):
                evaluated(chunk, ROWS, grainsize=2, scheduler="sync")
        change()
        with dagad.checkpoint(path):
            return evaluated(chunk, ROWS, grainsize=2, scheduler="sync") == (plain(chunk),) * 2

    numbers: list[int] = []
    missed, _ = stale([cell for cell in cells(share(rounds, 8)) if cell[1][0] not in BY_ITS_PICKLE], notice)
    assert not missed
    assert numbers


def weighed_by_nothing(rows: Any, t: Any) -> Any:
    return np.sum(rows) * t**2


def test_a_hot_loop_sends_what_has_changed_again(cluster: Any, rounds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Residents run each function from the first time on: they are held to know already what it costs."""
    shards = dagad.shard(ROWS, grainsize=2, scheduler=cluster)
    evaluated(weighed_by_nothing, shards)  # a graph, after which they lie on workers
    monkeypatch.setattr(choose, "cost_of", lambda signature: cost_of(signature) or Cost())

    def notice(chunk: Any, change: Callable[[], None]) -> bool:
        for _ in range(2):
            evaluated(chunk, shards)
        change()
        return [evaluated(chunk, shards) for _ in range(2)] == [(plain(chunk),) * 2] * 2

    local = BY_NAME.keys() | BY_ITS_PICKLE | CONSUMED | {"a_registry_by_id", "an_attribute_of_an_array"}
    missed, n_right = stale([cell for cell in cells(share(rounds, 16)) if cell[1][0] not in local], notice)
    assert not missed
    assert n_right


@pytest.mark.needs("jax")
def test_a_function_that_jax_has_compiled_is_compiled_again_for_what_has_changed() -> None:
    def notice(chunk: Any, change: Callable[[], None]) -> bool:
        options: Any = {"grainsize": 2, "scheduler": "sync", "engine": "jax"}
        for _ in range(2):
            evaluated(chunk, ROWS, **options)
        change()
        return evaluated(chunk, ROWS, **options) == (plain(chunk),) * 2

    missed, n_right = stale([cell for cell in cells(64) if cell[1][0] not in CONSUMED], notice)
    assert not missed
    assert n_right


def digests(some: list[Cell]) -> list[str]:
    found = []
    for cell in some:
        try:
            found.append(digest(made(*cell)[0]))
        except Exception as error:
            found.append(type(error).__name__)
        finally:
            clean()
    return found


def digests_of_another_process(seed: int) -> list[str]:
    program = f"import json; from test_changed_contents import *; print(json.dumps(digests({SOME!r})))"
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
    env = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": str(seed)}
    ran = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(ran.stdout.splitlines()[-1])
    return found


SOME = [cell for cell in cells(8, seed=2) if cell[1] != ("a_registry_by_id",)]


def test_another_process_finds_the_same_digests() -> None:
    """Else a checkpoint would refuse the very program that wrote it."""
    one, other = digests_of_another_process(1), digests_of_another_process(7)
    assert [cell for cell, mine, theirs in zip(SOME, one, other, strict=True) if mine != theirs] == []
    assert sum(len(each) == 32 for each in one) > 0.8 * len(one)
