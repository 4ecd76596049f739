"""Read-only views of arrays that are written into: are gradients of what they showed? Rows of chunks are no such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import pandas as pd
import pytest

import dagad
from dagad._tracing import residuals
from dagad._values.canonical import as_given, is_written_elsewhere, read_only
from support.gated_chunks import bits

X = np.array([0.3, 0.8, 0.6])


def locked(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


def of_a_view(array: Any) -> Any:
    return locked(array)[:]


def of_rows(array: Any) -> Any:
    return locked(array.reshape(1, -1))[0]


def windows(array: Any) -> Any:
    return np.lib.stride_tricks.sliding_window_view(array, array.size)[0]


VIEWS: dict[str, Callable[[Any], Any]] = {
    "of the same shape": lambda array: np.broadcast_to(array, array.shape),
    "locked": locked,
    "of a view": of_a_view,
    "of rows": of_rows,
    "a window": windows,
    "a column of pandas": lambda array: pd.Series(array, copy=False).to_numpy(),
    "values of a column of pandas": lambda array: (
        pd.DataFrame({"a": pd.Series(array, copy=False)}, copy=False)["a"].values
    ),
}
MEETS: dict[str, Callable[[Any, Any], Any]] = {
    "x * b": lambda x, b: np.sum(np.sin(x * b)),
    "b @ x": lambda x, b: (b @ x) ** 2,
    "x ** b": lambda x, b: np.sum(x ** (1 + b)),
    "interp": lambda x, b: np.sum(np.interp(x, np.sort(np.linspace(0.0, 1.0, b.size)), b) ** 2),
    "einsum": lambda x, b: np.einsum("i,i->", x * x, b),
    "in a list": lambda x, b: sum(np.sum(x * part) for part in [b, [b][0]]),
}


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("meet", MEETS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_read_only_view_of_an_array_that_is_written_into_is_what_it_was(view: str, meet: str) -> None:
    def fun(x: Any, keep: Callable[[Any], Any]) -> Any:
        buffer, total = np.ones(3), 0.0
        for k in range(3):
            buffer[:] = k, 0.5 * k, 2.0
            total = total + MEETS[meet](x, keep(VIEWS[view](buffer)))
        return total

    for transform in (dagad.grad, dagad.jacfwd, dagad.hessian):
        expected = transform(lambda x: fun(x, np.array))(X)
        assert bits(transform(lambda x: fun(x, lambda shown: shown))(X)) == bits(expected)


@pytest.mark.parametrize("view", VIEWS)
def test_a_large_read_only_view_whose_array_is_written_into_later_is_refused_or_what_it_was(view: str) -> None:
    data = np.ones(20_000)
    shown = VIEWS[view](data)
    value, pullback = dagad.vjp(lambda x: np.sum(shown * x**2), np.float64(0.5))
    data[:] = 3.0
    try:
        found = pullback(1.0)[0]
    except dagad.NotDifferentiableError as error:
        assert "was written into" in str(error)  # noqa: PT017  # either will do
    else:
        assert found == 4.0 * value


def test_arguments_of_a_function_are_distinguished_from_other_read_only_views() -> None:
    array = np.arange(6.0)
    given = as_given(array)
    for part in (given, given[1:3], given[::2], given.reshape(2, 3).T[1], read_only(array)[2:], as_given(array[::2])):
        assert not part.flags.writeable
        assert type(part) is np.ndarray
        assert not is_written_elsewhere(part)
    for view in VIEWS.values():
        if not view(array).flags.writeable and np.shares_memory(view(array), array):
            assert is_written_elsewhere(view(array))
    array.flags.writeable = False
    assert not any(is_written_elsewhere(part) for part in (array, array[1:], np.broadcast_to(array, 6)))


ROWS = np.arange(24.0).reshape(8, 3)
SLICED: dict[str, Callable[[], Any]] = {
    "an array": lambda: ROWS,
    "an array of another order": lambda: np.asfortranarray(ROWS),
    "every other row": lambda: np.repeat(ROWS, 2, axis=0)[::2],
    "a tuple": lambda: (ROWS, ROWS[:, 0]),
    "a list": lambda: list(ROWS),
    "a table": lambda: pd.DataFrame(ROWS, columns=list("abc")),
}


def loss(rows: Any, theta: Any, weights: Any) -> Any:
    if not isinstance(rows, tuple | list | np.ndarray):
        rows = rows["a"], rows["b"]
    parts = rows if isinstance(rows, tuple | list) else (rows, rows[:, 1])
    return sum(anp.sum(anp.sin(part * (theta if np.ndim(part) > 1 else theta[0])) * weights[0]) for part in parts)


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("sliced", SLICED)
def test_rows_and_arguments_of_chunks_are_held_as_they_are(sliced: str, scheduler: str, monkeypatch: Any) -> None:
    """To copy them would take memory, and time."""
    seen = list[bool]()

    def noted(array: Any) -> bool:
        seen.append(is_written_elsewhere(array))
        return seen[-1]

    monkeypatch.setattr(residuals, "is_written_elsewhere", noted)
    for data in (SLICED[sliced](), dagad.shard(SLICED[sliced](), grainsize=4, scheduler="threads")):
        options = {} if isinstance(data, dagad.Shards) else {"scheduler": scheduler, "grainsize": 4}
        dagad.grad(lambda x, data=data, options=options: dagad.reduce_sum(loss, data, x, np.ones(3), **options))(X)
    assert seen
    assert not any(seen)
