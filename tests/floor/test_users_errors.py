"""A user's own errors: do they arrive as they were raised, and tell where?"""

from __future__ import annotations

import pickle
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dagad
from dagad import reduce_sum
from dagad.extend import explicit
from support.small_sums import X, grad, squares, total

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")


class Plain(Exception):
    """Without frills."""


class Demanding(Exception):
    """Can't be made from its message."""

    def __init__(self, row: float, *, why: str) -> None:
        super().__init__(f"row {row}: {why}")
        self.row, self.why = row, why


RAISED: dict[str, Callable[[], Exception]] = {
    "builtin": lambda: ValueError("bad row"),
    "KeyError": lambda: KeyError("bad row"),
    "own": lambda: Plain("bad row"),
    "demanding": lambda: Demanding(4.0, why="bad row"),
    "numpy's": lambda: np.linalg.LinAlgError("bad row"),
    "NotImplementedError": lambda: NotImplementedError("bad row"),
    "StopIteration": lambda: StopIteration("bad row"),
    "ours": lambda: dagad.PlanError("bad row"),
}


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("differentiated", [False, True])
def test_a_users_exception_keeps_its_type_and_tells_where(kind: str, differentiated: bool, scheduler: Any) -> None:
    make = RAISED[kind]

    def fail(rows: Any, theta: Any) -> Any:
        if rows[0] == 4:
            raise make()
        return squares(rows, theta)

    with pytest.raises(type(make()), match="bad row") as caught:
        (grad if differentiated else total)(fail, scheduler=scheduler)
    error = caught.value
    assert type(error) is type(make())
    assert error.args == make().args
    assert vars(error).keys() - {"__notes__"} == vars(make()).keys()
    (note,) = error.__notes__
    where = "dagad: value of chunk 2 \\(rows 4:6\\), key \\('dagad-value(grad)?-(fail-)?[0-9a-f]+', 2\\)"
    how = r"\nTo run it alone, here: `dagad\.replay\(error\)`\."
    assert re.fullmatch(rf"{where}(, worker t(cp|ls)://[0-9.:]+)?{how}", note)
    assert ("worker" in note) == isinstance(scheduler, Client)
    assert grad(squares, scheduler=scheduler) == -18.0


def test_a_users_exception_in_a_pullback_tells_where(scheduler: Any) -> None:
    @explicit
    def fail(rows: Any, theta: Any) -> Any:
        def pullback(seed: Any) -> Any:
            if rows[0] == 2:
                raise Plain("no way back")
            return None, 0.0

        return 0.0, pullback

    with pytest.raises(Plain, match="no way back") as caught:
        grad(fail, scheduler=scheduler)
    (note,) = caught.value.__notes__
    assert re.match(r"dagad: pullback of chunk 1 \(rows 2:4\), key \('dagad-(pullback|valuegrad)-", note)
    assert grad(squares, scheduler=scheduler) == -18.0


def test_a_users_exception_in_a_nested_chunk_names_both_chunks(scheduler: Any) -> None:
    def inner(rows: Any, theta: Any) -> Any:
        if rows[0] == 3:
            raise Plain("inside")
        return squares(rows, theta)

    def outer(rows: Any, theta: Any) -> Any:
        return reduce_sum(inner, rows, theta, grainsize=1)

    with pytest.raises(Plain, match="inside") as caught:
        grad(outer, scheduler=scheduler)
    first, second = caught.value.__notes__
    assert "chunk 1 (rows 1:2)" in first
    assert "chunk 1 (rows 2:4)" in second


def test_an_exception_that_cannot_travel_is_repeated_in_words(cluster: Client) -> None:
    class Stuck(Exception):
        def __init__(self) -> None:
            super().__init__("stuck")
            self.lock = threading.Lock()

    def fail(rows: Any, theta: Any) -> Any:
        raise Stuck

    with pytest.raises(Exception, match="stuck"):
        grad(fail, scheduler=cluster)
    assert grad(squares, scheduler=cluster) == -18.0


def test_an_error_of_a_chunk_does_not_ask_for_the_repr_of_its_arguments(scheduler: Any) -> None:
    class Unprintable:
        def __repr__(self) -> str:
            raise RuntimeError("do not print me")

    def fail(rows: Any, thing: Any, theta: Any) -> Any:
        raise Plain("with an argument that can't be printed")

    with pytest.raises(Plain, match="can't be printed"):
        reduce_sum(fail, X, Unprintable(), 1.0, grainsize=2, scheduler=scheduler)


SPOILT: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "array": (X, lambda rows: rows),
    "tuple": ((X, X), lambda rows: rows[1]),
    "dict": ({"x": X}, lambda rows: rows["x"]),
    "list": ([X, X, X, X], lambda rows: rows[0]),
    "matrix": (np.ones((6, 2)), lambda rows: rows[:, 0]),
    "fortran": (np.asfortranarray(np.ones((6, 2))), lambda rows: rows[:, 0]),
}


@pytest.mark.parametrize("kind", SPOILT)
@pytest.mark.parametrize("differentiated", [False, True])
def test_a_function_that_spoils_its_rows_is_refused(kind: str, differentiated: bool, scheduler: Any) -> None:
    sliced, part = SPOILT[kind]
    before = pickle.dumps(sliced)

    def spoil(rows: Any, theta: Any) -> Any:
        part(rows)[...] = 0.0
        return 1.0 * theta

    with pytest.raises(ValueError, match="read-only"):
        (grad if differentiated else total)(spoil, 1.0, sliced, scheduler=scheduler)
    assert pickle.dumps(sliced) == before


def test_in_place_work_on_a_copy_is_allowed(scheduler: Any) -> None:
    def work(rows: Any, theta: Any) -> Any:
        mine = np.array(rows)
        mine *= 2
        return theta * np.sum(mine)

    assert grad(work, scheduler=scheduler) == 30.0


def test_an_error_that_is_its_own_cause_arrives_from_everywhere(scheduler: Any) -> None:
    """Dask follows causes to their end before an error leaves a worker."""

    def loops(rows: Any, t: Any) -> Any:
        try:
            raise KeyError("mine")
        except KeyError as error:
            raise error from error

    def circles(rows: Any, t: Any) -> Any:
        first, second = KeyError("mine"), KeyError("other")
        first.__cause__, second.__cause__ = second, first
        raise first

    for fun in (loops, circles):
        for mode in (dagad.grad, dagad.jacfwd):
            with pytest.raises(KeyError, match="mine") as caught:
                mode(lambda t, fun=fun: dagad.reduce_sum(fun, np.arange(4.0), t, grainsize=2, scheduler=scheduler))(1.0)
            found = caught.value
            assert found.__cause__ is None or found.__cause__.__cause__ is None
