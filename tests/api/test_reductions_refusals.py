"""Reductions that can't be made: is each refused by name, and does what a chunk raises say where?"""

from __future__ import annotations

from functools import partial
from typing import Any

import autograd
import autograd.numpy as np
import dask.array
import numpy as onp
import pytest

import dagad
from support.sum_cases import X, Y, assert_close, bits, cut_on, squares


def test_rows_of_different_lengths_are_refused_by_name() -> None:
    with pytest.raises(dagad.StructureError, match=r"\['a'\] has 23, \['b'\] has 22"):
        dagad.reduce_sum(lambda rows: 0.0, {"a": Y, "b": Y[:-1]})


def test_a_sliced_argument_without_rows_is_refused() -> None:
    refused: Any = [
        (1.5, "float"),
        (onp.array(1.5), "array"),
        ((Y, 1.5), r"\[1\]"),
        ({}, "no arrays"),
        (None, "no "),
    ]
    for sliced, found in refused:
        with pytest.raises(dagad.StructureError, match=found):
            dagad.reduce_sum(lambda rows: 0.0, sliced)


@pytest.mark.sampled(3)
def test_partial_sums_of_different_shape_are_refused_even_where_numpy_would_broadcast(scheduler: Any) -> None:
    def ones(rows: Any, theta: Any) -> Any:
        return theta * np.ones(len(rows) if len(rows) < 4 else 1)

    with pytest.raises(dagad.StructureError, match="differ in shape"):
        dagad.reduce_sum(ones, Y, 2.0, grainsize=4, scheduler=scheduler)
    with pytest.raises(dagad.StructureError, match="differ in shape"):
        dagad.grad(lambda t: np.sum(dagad.reduce_sum(ones, Y, t, grainsize=4, scheduler=scheduler)))(2.0)


def test_partial_sums_of_different_structure_are_refused() -> None:
    def changing(rows: Any, theta: Any) -> Any:
        return {"a": theta} if len(rows) == 4 else {"b": theta}

    with pytest.raises(dagad.StructureError, match=r"'a'.*'b'"):
        dagad.reduce_sum(changing, Y, 2.0, grainsize=4)


def test_a_partial_sum_that_cannot_be_added_is_refused_with_its_chunk(scheduler: Any) -> None:
    text = onp.array(["a"])
    for returned, found in (("text", "str"), (None, "None"), ([], "empty"), (text, "an array"), (object(), "object")):

        def partial_sum(rows: Any, returned: Any = returned) -> Any:
            return returned

        with pytest.raises(dagad.StructureError, match=found) as caught:
            dagad.reduce_sum(partial_sum, Y, grainsize=4)
        assert "chunk 0 (rows 0:4)" in "".join(caught.value.__notes__)
    with pytest.raises(dagad.StructureError, match="str"):
        dagad.grad(lambda t: dagad.reduce_sum(lambda rows, t: "text", Y, t, scheduler=scheduler))(1.0)


class UnluckyError(Exception):
    """A user's exception with arguments of its own."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(code, what)
        self.code = code


def unlucky(rows: Any, theta: Any) -> Any:
    if rows[0] == 8.0:
        raise UnluckyError(7, "eight")
    return np.sum(rows) * theta


def test_a_users_exception_arrives_unchanged_with_its_chunk_and_rows(scheduler: Any) -> None:
    data = onp.arange(12.0)
    total = partial(cut_on(scheduler), unlucky)
    for call in (partial(total, data), dagad.grad(partial(total, data))):
        with pytest.raises(UnluckyError) as caught:
            call(1.0)
        assert caught.value.code == 7
        notes = [note for note in caught.value.__notes__ if note.startswith("dagad:")]
        assert len(notes) == 1
        assert "value of chunk 2 (rows 8:12), key ('dagad-value" in notes[0]
        assert total(data[:8], 1.0) == 28.0


def test_a_missing_rule_is_named_with_its_remedy() -> None:
    def unruly(rows: Any, t: Any) -> Any:
        return np.sum(np.spacing(rows * t))

    with pytest.raises(dagad.NotDifferentiableError, match=r"`spacing`.*defvjp"):
        dagad.grad(lambda t: dagad.reduce_sum(unruly, Y, t, grainsize=4))(1.0)


def test_an_integer_array_that_is_differentiated_is_refused() -> None:
    with pytest.raises(TypeError):
        autograd.grad(lambda n: dagad.reduce_sum(squares, Y, n))(3)


def test_rows_that_a_function_writes_to_are_refused(scheduler: Any) -> None:
    def spoil(rows: Any, theta: Any) -> Any:
        rows *= 2.0
        return np.sum(rows * theta)

    data = Y.copy()
    total = partial(cut_on(scheduler), spoil, data)
    for call in (total, dagad.grad(total)):
        with pytest.raises(ValueError, match="read-only") as caught:
            call(1.0)
        assert any("value of chunk" in note for note in caught.value.__notes__)
    assert bits(data) == bits(Y)


def test_items_that_a_function_writes_to_are_refused(scheduler: Any) -> None:
    def spoil(rows: Any, theta: Any) -> Any:
        for row in rows:
            row["x"] *= 2.0
        return sum([np.sum(row["x"]) for row in rows]) * theta

    data = [{"x": onp.ones(2)} for _ in range(5)]
    with pytest.raises(ValueError, match="read-only"):
        dagad.reduce_sum(spoil, data, 1.0, grainsize=2, scheduler=scheduler)
    assert all(row["x"].tolist() == [1.0, 1.0] for row in data)


def test_a_shared_argument_that_a_function_writes_to_is_refused(scheduler: Any) -> None:
    def spoil(rows: Any, theta: Any, more: Any) -> Any:
        more["a"] += 1.0
        return np.sum(rows @ more["a"]) * theta

    shared = {"a": onp.ones(3)}
    total = partial(cut_on(scheduler), spoil, X)
    for call in (total, dagad.grad(total)):
        with pytest.raises(ValueError, match="read-only"):
            call(1.0, shared)
    assert shared["a"].tolist() == [1.0, 1.0, 1.0]


def test_dask_collections_are_refused_as_arguments() -> None:
    with pytest.raises(dagad.DagadError):
        dagad.reduce_sum(lambda rows, t: np.sum(rows) * t, dask.array.from_array(X, chunks=5), 1.0, grainsize=3)
    with pytest.raises(dagad.DagadError):
        dagad.reduce_sum(lambda rows: dask.array.from_array(rows, chunks=5).sum(), X, grainsize=3)


def test_in_place_work_on_copies_and_float_of_data_are_allowed(scheduler: Any) -> None:
    def work(rows: Any, theta: Any) -> Any:
        mine = rows.copy()
        mine -= float(rows[0])
        mine[mine < 0] = 0.0
        return np.sum(mine * theta)

    value, gradient = dagad.value_and_grad(partial(cut_on(scheduler), work, Y))(2.0)
    assert_close(value, 2.0 * gradient)


@pytest.mark.filterwarnings("ignore:`<lambda>` gave:dagad.DagadWarning")
def test_nan_and_infinity_in_rows_pass_through_a_reduction(scheduler: Any) -> None:
    data = onp.array([1.0, onp.nan, 2.0, onp.inf])
    value, gradient = dagad.value_and_grad(
        lambda t: dagad.reduce_sum(lambda rows, t: t * np.sum(rows), data[[0, 1]], t, grainsize=1, scheduler=scheduler)
    )(1.0)
    assert onp.isnan(value)
    assert onp.isnan(gradient)
    assert dagad.reduce_sum(lambda rows: np.sum(rows), data[[0, 3]], grainsize=1, scheduler=scheduler) == onp.inf
