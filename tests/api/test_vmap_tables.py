"""Members and tables, which remember what somebody has read of them: that is no change, and what is written is one."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest

import dagad
from support.gated_chunks import bits

RNG = np.random.default_rng(0)
X = RNG.standard_normal((22, 3))
THETAS = RNG.standard_normal((4, 3))
NUMBERS = np.arange(len(THETAS))
LIBRARIES = ["pandas", pytest.param("polars", marks=pytest.mark.needs("polars"))]


def table_of(library: str) -> Any:
    pytest.importorskip("narwhals")
    columns = {"x": X[:, 0].copy(), "y": X[:, 1], "word": [str(number) for number in range(len(X))]}
    columns["day"] = np.datetime64("2020-01-01") + np.arange(len(X))
    return pytest.importorskip(library).DataFrame(columns)


def column(table: Any, name: str) -> Any:
    return table[name].to_numpy()


def of_table(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.sin(rows["x"] * theta[0]) * rows["y"])


def read(table: Any) -> float:
    """Return numbers of a table, which its library remembers in many places."""
    repr(table)
    days = table["day"].dt.day
    last = (days() if callable(days) else days).max()
    return float(column(table, "word")[-1]) + float(last) + float(table["x"].mean()) + len(table.columns)


def write(table: Any, number: Any) -> None:
    if hasattr(table, "loc"):
        table.loc[0, "x"] = float(number)
    else:
        table[0, "x"] = float(number)


@pytest.mark.parametrize("library", LIBRARIES)
def test_members_reduce_tables_and_what_is_read_of_these_is_no_change(library: str, scheduler: Any) -> None:
    table, options = table_of(library), dict[str, Any](grainsize=8, scheduler=scheduler)

    def of_closure(rows: Any, theta: Any) -> Any:
        return anp.sum(rows * theta) * column(table, "y")[3]

    def fun(theta: Any) -> Any:
        first = dagad.grad(lambda t: dagad.reduce_sum(of_table, table, t, **options))(theta)
        return first, dagad.reduce_sum(of_closure, X, theta, **options) * read(table)

    expected = [fun(theta) for theta in THETAS]
    table = table_of(library)
    found = dagad.vmap(fun)(THETAS)
    assert [bits(one) for one in zip(*found, strict=True)] == [bits(one) for one in expected]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("held", [False, True])
def test_a_table_that_members_write_into_is_that_of_each(library: str, held: bool) -> None:
    table, options = table_of(library), dict[str, Any](grainsize=8, scheduler="sync")

    def of_closure(rows: Any, theta: Any) -> Any:
        return anp.sum(rows * theta) * column(table, "x")[0]

    def fun(theta: Any, number: Any) -> Any:
        write(table, number)
        return dagad.reduce_sum(*((of_closure, X) if held else (of_table, table)), theta, **options)

    found = dagad.vmap(fun)(THETAS, NUMBERS)
    assert bits(list(found)) == bits(fun(theta, number) for theta, number in zip(THETAS, NUMBERS, strict=True))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_gradient_by_a_second_run_may_follow_a_look_at_a_table(library: str, scheduler: Any) -> None:
    table, policy = table_of(library), dagad.extend.Recompute()

    def of_closure(rows: Any, theta: Any) -> Any:
        return anp.sum(rows * theta**2) * column(table, "x")[0]

    def total(theta: Any) -> Any:
        return dagad.reduce_sum(of_closure, X, theta, grainsize=8, scheduler=scheduler, policy=policy)

    expected = dagad.grad(total)(THETAS[0])
    _, pull = dagad.vjp(total, THETAS[0])
    read(table)
    assert bits(pull(1.0)[0]) == bits(expected)
    _, pull = dagad.vjp(total, THETAS[0])
    write(table, 7.0)
    with pytest.raises(dagad.ClosureError, match="`table` in its closure"):
        pull(1.0)


def test_attributes_of_an_array_with_labels_are_no_change_once_they_are_read() -> None:
    """Of xarray's: attributes and encodings begin to be there when somebody asks for them."""
    labelled = pytest.importorskip("xarray").DataArray(np.arange(3.0), dims=("column",))

    def chunk(rows: Any, theta: Any) -> Any:
        return anp.sum(rows * theta * labelled.values)

    def fun(theta: Any, number: Any) -> Any:
        if number < 0:
            labelled[0] = number
        first = dagad.reduce_sum(chunk, X, theta, grainsize=8, scheduler="sync")
        return first * (len(labelled.attrs) + labelled.mean().item() + len(labelled.encoding))

    for numbers in (NUMBERS, -1.0 - NUMBERS):
        found = dagad.vmap(fun)(THETAS, numbers)
        assert bits(list(found)) == bits(fun(theta, number) for theta, number in zip(THETAS, numbers, strict=True))
