"""Where does a function carry so little that nothing need be looked through? Never where anything might be traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad
from dagad._errors import ClosureError
from dagad._values.walk import Walk, leads_nowhere
from dagad.extend import explicit

HELD: Any = None  # what the tests put here


class Holder:
    value: Any = None


def _of_a_global(rows: Any) -> Any:
    return np.sum(rows) * HELD


def _of_a_class(rows: Any) -> Any:
    return np.sum(rows) * Holder.value


def _even(rows: Any, depth: int) -> Any:
    return np.sum(rows) * HELD if depth == 0 else _odd(rows, depth - 1)


def _odd(rows: Any, depth: int) -> Any:
    return _even(rows, depth - 1) if depth else np.sum(rows)


def _squares(rows: Any) -> Any:
    return np.sum(rows**2)


def _ping(rows: Any, depth: int) -> Any:
    return _pong(rows, depth - 1) if depth else _squares(rows)


def _pong(rows: Any, depth: int) -> Any:
    return _ping(rows, depth - 1) if depth else np.sum(rows)


def by_a_global(rows: Any, theta: Any) -> Any:
    return theta * HELD * np.sum(rows)


def by_a_global_of_a_helper(rows: Any, theta: Any) -> Any:
    return theta * _of_a_global(rows)


def by_a_class_of_a_helper(rows: Any, theta: Any) -> Any:
    return theta * _of_a_class(rows)


def by_helpers_that_call_each_other(rows: Any, theta: Any) -> Any:
    return theta * _odd(rows, 3)


def by_its_own_rule(rows: Any, theta: Any) -> Any:
    slope = _of_a_global(rows)
    return theta * slope, lambda seed: (None, seed * slope)


_TWO = np.ones(2)
REACHES: list[Callable[..., Any]] = [
    by_a_global,
    by_a_global_of_a_helper,
    by_a_class_of_a_helper,
    by_helpers_that_call_each_other,
]


@pytest.mark.parametrize("chunk", REACHES, ids=lambda chunk: chunk.__name__)
def test_a_traced_value_that_a_helper_reaches_is_refused(chunk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(theta: Any) -> Any:
        monkeypatch.setattr(f"{__name__}.HELD", theta)
        monkeypatch.setattr(Holder, "value", theta)
        return dagad.reduce_sum(chunk, np.arange(4.0), theta, grainsize=2, scheduler="sync")

    with pytest.raises(ClosureError, match=r"HELD|Holder|value"):
        dagad.grad(loss)(2.0)


def test_a_traced_value_that_an_explicit_function_reaches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(theta: Any) -> Any:
        monkeypatch.setattr(f"{__name__}.HELD", theta)
        return dagad.reduce_sum(explicit(by_its_own_rule), np.arange(4.0), theta, grainsize=2, scheduler="sync")

    with pytest.raises(ClosureError, match="HELD"):
        dagad.grad(loss)(2.0)


def _by_plain_helpers(rows: Any, theta: Any) -> Any:
    values: dict[str, Any] = {"total": _ping(rows, 3)}
    return theta * float(values["total"])


def test_helpers_of_libraries_and_plain_data_end_the_walk_at_once() -> None:
    for fun in (_by_plain_helpers, explicit(_by_plain_helpers), _ping, _squares):
        assert leads_nowhere(fun)
        assert not Walk(fun).finds


def test_helpers_that_many_helpers_share_are_looked_at_once() -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("def f0(rows, theta): return theta\ng0 = f0", space)
    for level in range(1, 60):  # of two helpers each, so 2 ** 60 ways lead to the last one
        for name in "fg":
            exec(f"def {name}{level}(rows, theta): return f{level - 1}(rows, theta) + g{level - 1}(rows, theta)", space)
    assert leads_nowhere(space["f59"])
    space["f0"].__defaults__ = (_TWO,)
    assert not leads_nowhere(space["f59"])


def test_helpers_with_anything_of_their_own_are_walked_through() -> None:
    def with_a_closure(rows: Any) -> Any:
        return rows * scale

    def with_a_default(rows: Any, factor: Any = _TWO) -> Any:
        return rows * factor

    def decorated(rows: Any) -> Any:
        return rows

    scale = np.ones(2)
    vars(decorated)["note"] = scale
    for helper in (with_a_closure, with_a_default, decorated):
        space = {"helper": helper, "__name__": "__main__"}
        exec("def chunk(rows, theta): return helper(rows) * theta", space)
        assert not leads_nowhere(space["chunk"])
