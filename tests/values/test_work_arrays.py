"""Arrays that functions fill again and again: is each result that of its own chunk, and is nothing else copied?"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import dagad
from dagad._kernels.chunks import BoundChunk
from dagad._values.work_arrays import kept
from dagad.extend import CompensatedSum, explicit

X = np.arange(1.0, 8.0)
OWN = threading.local()  # compiled code with one work array for all threads would be wrong in a plain loop, too


def work() -> Any:
    if not hasattr(OWN, "array"):
        OWN.array = np.empty(2)
    return OWN.array


def squares(item: Any) -> Any:
    return np.multiply([1.0, item], item, out=work())


def of_rows(rows: Any) -> Any:
    work()[:] = np.sum(rows), np.sum(rows**2)
    return work()


@explicit
def likelihood(rows: Any, t: Any) -> Any:
    def pullback(cotangent: Any) -> Any:
        work()[:] = cotangent * np.sum(rows)
        return None, work()

    return np.sum(rows) * np.sum(t), pullback


@pytest.mark.parametrize("grainsize", [1, 2, 3, 100])
def test_a_work_array_that_is_returned_again_spoils_no_other_chunk(grainsize: int, scheduler: Any) -> None:
    how: dict[str, Any] = {"grainsize": grainsize, "scheduler": scheduler}
    np.testing.assert_array_equal(dagad.reduce_sum(of_rows, X, **how), [28.0, 140.0])
    np.testing.assert_array_equal(dagad.reduce_sum(of_rows, X, sum=CompensatedSum(), **how), [28.0, 140.0])
    np.testing.assert_array_equal(dagad.map_sum(squares, X, **how), [28.0, 140.0])
    np.testing.assert_array_equal(dagad.map(squares, X, **how), np.stack([X, X**2], 1))
    np.testing.assert_array_equal(dagad.map_rect(squares, X, **how), np.stack([X, X**2], 1).ravel())
    in_a_list = dagad.reduce_sum(lambda rows: {"all": [of_rows(rows), 1.0]}, X, **how)
    np.testing.assert_array_equal(in_a_list["all"][0], [28.0, 140.0])
    combined = dagad.map_reduce(of_rows, lambda a, b: np.add(a, b, out=work()), X, **how)
    np.testing.assert_array_equal(combined, [28.0, 140.0])


@pytest.mark.parametrize("grainsize", [1, 2, 3, 100])
def test_a_work_array_of_a_pullback_spoils_no_other_gradient(grainsize: int, scheduler: Any) -> None:
    how: dict[str, Any] = {"grainsize": grainsize, "scheduler": scheduler}
    for total in (dagad.reduce_sum, dagad.map_sum):
        gradient = dagad.grad(lambda t, total=total: total(likelihood, X, t, **how))(np.ones(2))
        np.testing.assert_array_equal(gradient, [28.0, 28.0])

    @explicit
    def of_each(rows: Any, t: Any) -> Any:
        def pullback(cotangent: Any) -> Any:
            work()[: len(rows)] = cotangent * t
            return work()[: len(rows)], cotangent * np.sum(rows)

        return np.sum(rows) * t, pullback

    if grainsize <= 2:
        gradient = dagad.grad(lambda x: dagad.reduce_sum(of_each, x, 3.0, **how) ** 2)(X)
        np.testing.assert_array_equal(gradient, np.full(7, 2 * 84.0 * 3.0))


def test_a_pullback_that_writes_into_its_cotangent_is_refused() -> None:
    @explicit
    def scaled(rows: Any, t: Any) -> Any:
        def pullback(cotangent: Any) -> Any:
            cotangent *= np.sum(rows)
            return None, cotangent

        return np.sum(rows) * t, pullback

    def total(t: Any) -> Any:
        return dagad.reduce_sum(scaled, X, t, grainsize=3, scheduler="sync")

    seed = np.array([1.0, 2.0])
    with pytest.raises(ValueError, match="read-only") as seen:
        dagad.vjp(total, np.ones(2))[1](seed)
    assert "work on a copy" in "".join(seen.value.__notes__)
    np.testing.assert_array_equal(seed, [1.0, 2.0])


def test_the_result_of_one_chunk_is_the_callers_own() -> None:
    constant, y = np.ones(2), np.arange(1.0, 8.0)
    for found in (
        dagad.map_reduce(lambda rows: rows, lambda a, b: np.concatenate([a, b]), y, grainsize=100),
        dagad.reduce_sum(lambda rows: rows[0], [y]),
        dagad.map_sum(lambda item: item, [y]),
        dagad.reduce_sum(lambda rows: constant * 1.0 if len(rows) > 1 else constant, [y]),
    ):
        before = found.copy()
        found += 1.0
        np.testing.assert_array_equal(found, before + 1.0)
    np.testing.assert_array_equal(y, np.arange(1.0, 8.0))
    np.testing.assert_array_equal(constant, np.ones(2))


def test_an_array_that_nobody_else_holds_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    made, given = [], []

    def noted(array: Any) -> Any:
        made.append(array.__array_interface__["data"][0])
        return array

    def run(self: Any, leaves: Any, stock: Any = BoundChunk.run) -> Any:
        output = stock(self, leaves)
        array = output[0] if isinstance(output, tuple | list) else output
        given.append(array.__array_interface__["data"][0])
        return output

    monkeypatch.setattr(BoundChunk, "run", run)
    shapes: list[Any] = [
        lambda array: array,
        lambda array: array.reshape(2, 5).T,
        lambda array: (array, 1.0),
        lambda array: [array, array[:2] * 1.0],
    ]
    for shape in shapes:
        dagad.reduce_sum(lambda rows, shape=shape: shape(noted(np.full(10, rows[0]))), X, grainsize=4, scheduler="sync")
    assert made == given


def test_an_array_that_others_hold_is_copied_as_it_lies() -> None:
    held = np.asfortranarray(np.ones((2, 3)))
    record: dict[str, Any] = {"a": [held, (held[0],)]}
    pairs: list[Any] = [(held, kept(held)), (held.T, kept(held.T)), (held, kept(record)["a"][0])]
    for given, found in pairs:
        assert not np.shares_memory(given, found)
        assert found.flags.f_contiguous == given.flags.f_contiguous
    assert kept(3.0) == 3.0
    words = ("a", None, 1.0)
    assert kept(words) == words
