"""Habits of other packages on dagad's objects: is each answered by a sentence, and does what it says work?"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dagad
from dagad import ArgumentsError, MissingNameError

X, THETA = np.arange(6.0), 1.0


def chunk(rows: Any, theta: Any) -> Any:
    return np.sum((rows - theta) ** 2)


def loss(theta: Any) -> Any:
    return dagad.reduce_sum(chunk, X, theta, grainsize=2, scheduler="sync")


@pytest.fixture
def shards() -> Any:
    return dagad.shard(X, grainsize=2, scheduler="sync")


@pytest.fixture
def evaluation() -> Any:
    return dagad.evaluate(loss, THETA)


ON_SHARDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "len": (len, "`shards.n_rows`"),
    "index": (lambda shards: shards[0], r"`shards\.gather\(\)`"),
    "slice": (lambda shards: shards[:2], r"`dagad\.reduce_sum\(f, shards\)`"),
    "loop": (list, r"`shards\.gather\(\)`"),
    "shape": (lambda shards: shards.shape, "`shards.n_rows`"),
    "nrows": (lambda shards: shards.nrows, r"Did you mean `\.n_rows`"),
    "compute": (lambda shards: shards.compute(), r"`shards\.gather\(\)`"),
    "chunks": (lambda shards: shards.chunks, r"`shards\.grainsize`"),
    "method of arrays": (lambda shards: shards.mean(), r"no array.*`dagad\.reduce_sum\(f, shards\)`"),
    "plus": (lambda shards: shards + 1.0, "no array"),
    "from the right": (lambda shards: 2.0 * shards, "no array"),
    "minus": (lambda shards: -shards, "no array"),
    "nothing like it": (lambda shards: shards.zzz, r"There are `\.gather`, `\.grainsize`"),
}


@pytest.mark.parametrize("habit", ON_SHARDS)
def test_a_habit_of_arrays_is_answered_by_shards(habit: str, shards: Any) -> None:
    act, remedy = ON_SHARDS[habit]
    with pytest.raises((ArgumentsError, MissingNameError), match=f"Shards.*{remedy}"):
        act(shards)


def test_shards_have_all_that_they_speak_of(shards: Any) -> None:
    assert (shards.n_rows, shards.n_chunks, shards.grainsize) == (6, 3, 2)
    assert dagad.reduce_sum(chunk, shards, THETA) == chunk(shards.gather(), THETA)
    assert shards
    assert not hasattr(shards, "shape")


ON_EVALUATIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "result": (lambda evaluation: evaluation.result(), r"`evaluation\.value\(\)` and `evaluation\.gradient\(\)`"),
    "compute": (lambda evaluation: evaluation.compute(), r"`evaluation\.value\(\)`"),
    "done": (lambda evaluation: evaluation.done(), r"`evaluation\.progress`"),
    "grad": (lambda evaluation: evaluation.grad(), r"`evaluation\.gradient\(\)`"),
    "unpack": (lambda evaluation: [*evaluation], r"`await evaluation`"),
    "index": (lambda evaluation: evaluation[0], r"`evaluation\.value\(\)`"),
    "number": (float, r"`evaluation\.value\(\)`"),
    "array": (np.asarray, r"`evaluation\.value\(\)`"),
    "plus": (lambda evaluation: evaluation + 1.0, r"`evaluation\.value\(\)`"),
    "misspelt": (lambda evaluation: evaluation.gradiant(), r"Did you mean `\.gradient`"),
}


@pytest.mark.parametrize("habit", ON_EVALUATIONS)
def test_a_habit_of_futures_is_answered_by_an_evaluation(habit: str, evaluation: Any) -> None:
    act, remedy = ON_EVALUATIONS[habit]
    with pytest.raises((ArgumentsError, MissingNameError), match=f"An Evaluation.*{remedy}"):
        act(evaluation)


@pytest.mark.parametrize("act", [pickle.dumps, copy.deepcopy])
def test_an_evaluation_that_is_to_travel_says_what_does(act: Any, evaluation: Any) -> None:
    with pytest.raises(dagad.PortabilityError, match=r"Send its `\.value\(\)` and `\.gradient\(\)`"):
        act(evaluation)
    assert pickle.loads(pickle.dumps((evaluation.value(), evaluation.gradient()))) == (31.0, -18.0)


@pytest.mark.parametrize("name", ["save", "state", "n_known"])
def test_a_checkpoint_without_with_says_how_it_is_opened(name: str, tmp_path: Path) -> None:
    checkpoint: Any = dagad.checkpoint(tmp_path / "run")
    with pytest.raises(MissingNameError, match=rf"not open.*`with dagad\.checkpoint\(path\) as run:`, .*`run\.{name}`"):
        getattr(checkpoint, name)
    with checkpoint as run:
        assert hasattr(run, name)


@pytest.mark.parametrize(
    "act",
    [lambda as_in_jax: as_in_jax(chunk), lambda as_in_jax: as_in_jax(chunk)(X, THETA), lambda as_in_jax: as_in_jax(3)],
    ids=["decorator", "called", "number"],
)
def test_a_checkpoint_of_a_function_is_refused_at_once(act: Any) -> None:
    with pytest.raises(ArgumentsError, match=r"path of a directory.*`policy=dagad\.extend\.Recompute\(\)`"):
        act(dagad.checkpoint)
    policy = dagad.extend.Recompute()
    assert dagad.grad(lambda theta: dagad.reduce_sum(chunk, X, theta, grainsize=2, policy=policy))(THETA) == -18.0


def test_a_checkpoint_decorates_a_function_for_each_of_its_calls(tmp_path: Path) -> None:
    @dagad.checkpoint(tmp_path / "run")
    def run() -> Any:
        return dagad.grad(loss)(THETA)

    assert run() == run() == -18.0
