"""Arrays changed in place while they are differentiated: what shares their memory is refused, all else is right."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad
from dagad._tracing import in_place, traced_array
from dagad.solvers import solve_ivp
from support.views import APART, CHANGES, SHARE, SQUARE, changed, parts

STALE = r"in place.*another one is used afterwards.*Write `y = y \* 2`"
MAKES_ARRAYS = ("np.asarray(", "np.array(", "np.ascontiguousarray(", ".view(")  # refused in any case


def both(fun: Any, x: Any = SQUARE) -> tuple[float, float, float]:
    """Return the value of a function untraced, and traced in both modes."""
    seen: list[Any] = []

    def total(x: Any) -> Any:
        found = fun(x)
        return sum(np.sum(part) for part in (found if isinstance(found, tuple) else (found,)))

    seen.append(float(total(x.copy())))
    seen.append(float(dagad.value_and_grad(total)(x)[0]))
    seen.append(float(dagad.jvp(total, (x,), (np.ones_like(x),))[0]))
    return seen[0], seen[1], seen[2]


def of(views: str) -> list[str]:
    return [view for view in parts(views) if not any(name in view for name in MAKES_ARRAYS) and is_here(view)]


def is_here(view: str) -> bool:
    """Return whether this numpy takes such a call: `np.clip` without bounds is of numpy 2.1."""
    try:
        changed(view, "pass")(SQUARE)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("view", of(SHARE))
def test_an_array_that_shares_memory_with_one_changed_in_place_is_refused(view: str) -> None:
    for change in CHANGES:
        fun = changed(view, change)
        for mode in (lambda fun: dagad.grad(fun)(SQUARE), lambda fun: dagad.jvp(fun, (SQUARE,), (SQUARE,))):
            if view == "x":
                continue
            with pytest.raises(dagad.NotDifferentiableError, match=STALE):
                mode(lambda x, fun=fun: sum(fun(x)))
    assert len({*both(changed(view, "v *= 2.0", "v"))}) == 1
    assert len({*both(changed(view, "v = v * 2.0"))}) == 1


@pytest.mark.parametrize("view", of(APART))
def test_an_array_with_memory_of_its_own_may_be_changed_in_place(view: str) -> None:
    for change in CHANGES:
        assert len({*both(changed(view, change))}) == 1


def test_an_array_changed_in_place_by_another_name_is_refused_wherever_it_is_used() -> None:
    def scaled(x: Any) -> Any:
        def scale(v: Any) -> None:
            v *= 2.0

        x = x * 1.0
        scale(x)
        return x

    uses = ["x + 1", "x > 0", "bool(x[0, 0] > 9)", "x.argmax()", "np.argmax(x)", "np.exp(x)", "np.sum(x)", "x**2", "x"]
    for use in uses:
        made: dict[str, Any] = {"np": np, "scaled": scaled}
        exec(f"def fun(x):\n    x = scaled(x)\n    {use}\n    return np.sum(x) * 0", made)
        with pytest.raises(dagad.NotDifferentiableError, match=STALE):
            dagad.grad(made["fun"])(SQUARE)
    with pytest.raises(dagad.NotDifferentiableError, match=STALE):
        dagad.vjp(scaled, SQUARE)


def test_arrays_changed_in_place_keep_shape_and_dtype_as_in_numpy() -> None:
    def single(x: Any) -> Any:
        y = x.astype(np.float32)
        y += x
        return y

    assert dagad.vjp(single, SQUARE)[0].dtype == single(SQUARE).dtype == np.float32
    for change, error in (("y += np.ones((2, 2, 3))", ValueError), ("y *= 1j", TypeError)):
        made: dict[str, Any] = {"np": np}
        exec(f"def fun(x):\n    y = x * 1.0\n    {change}\n    return np.sum(np.real(y))", made)
        for run in (made["fun"], dagad.grad(made["fun"])):
            with pytest.raises(error, match="output"):
                run(SQUARE)


def orbit(state: Any) -> Any:
    place, speed, _ = state.T
    place, speed = place.copy(), speed.copy()
    total = np.zeros(2)
    for _ in range(4):
        speed -= 0.1 * place
        place += 0.1 * speed
        total = total + place**2
    total /= 4.0
    total **= 2
    return np.sum(total @ np.eye(2))


def test_loops_that_add_up_in_place_have_the_derivatives_of_those_that_do_not() -> None:
    def plain(state: Any) -> Any:
        place, speed, _ = state.T
        total = 0.0
        for _ in range(4):
            speed = speed - 0.1 * place
            place = place + 0.1 * speed
            total = total + place**2
        return np.sum((total / 4.0) ** 2)

    for order in (dagad.grad, lambda fun: dagad.grad(lambda x: np.sum(dagad.grad(fun)(x) ** 2))):
        np.testing.assert_allclose(order(orbit)(SQUARE), order(plain)(SQUARE), rtol=1e-12)


def test_rows_of_one_array_changed_in_place_do_not_make_the_others_stale() -> None:
    def fun(x: Any) -> Any:
        place, speed = x.T[0], x.T[1]
        place += 0.1 * speed
        return place, speed

    assert len({*both(fun)}) == 1


def test_memory_that_was_changed_is_forgotten_with_its_trace_and_other_threads_do_not_see_it() -> None:
    def chunk(rows: Any, t: Any) -> Any:
        t *= 2.0
        return np.sum(rows * t)

    def total(t: Any, scheduler: str) -> Any:
        return dagad.reduce_sum(chunk, np.ones((40, 3)), t, grainsize=4, scheduler=scheduler)

    for scheduler in ("threads", "sync"):
        assert dagad.grad(total)(np.ones(3), scheduler) == pytest.approx(80.0)
    assert not in_place.CHANGED


X = np.array([1.2, 2.7, 3.1, 0.4])
TAKEN: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: dagad.reduce_sum(lambda rows: np.sum(rows**2), x, grainsize=2),
    "a shared argument": lambda x: dagad.reduce_sum(lambda rows, x: np.sum(rows * x[0]), X, x, grainsize=2),
    "a closure": lambda x: dagad.reduce_sum(lambda rows: np.sum(rows * x[0]), X, grainsize=2),
    "a map": lambda x: np.sum(dagad.map(lambda row: row**2, x, grainsize=2)),
    "a solver": lambda x: np.sum(solve_ivp(lambda t, y, k: -k * y, (0.0, 1.0), np.ones(1), args=(x[0],)).y),
    "a start": lambda x: np.sum(solve_ivp(lambda t, y: -y, (0.0, 1.0), x).y),
    "a copy": lambda x: np.sum(x.copy() ** 2),
    "a deep copy": lambda x: np.sum(copy.deepcopy(x) ** 2),
    "whole numbers": lambda x: np.sum(x.astype(int)) * x[0],
}


@pytest.mark.parametrize("mode", ["grad", "jacfwd"])
@pytest.mark.parametrize("name", TAKEN)
def test_stale_arrays_are_refused_where_reductions_solvers_and_copies_take_them(name: str, mode: str) -> None:
    def loss(x: Any) -> Any:
        x = x * 1.0
        y = x
        y *= 2.0
        return TAKEN[name](x)

    with pytest.raises(dagad.NotDifferentiableError, match=STALE):
        getattr(dagad, mode)(loss)(X)


def test_parts_that_were_not_changed_may_be_taken_out_of_an_array() -> None:
    def by_rows(x: Any) -> Any:
        m = np.reshape(x * 1.0, (2, -1))
        for row in m:
            row /= np.sum(row)
        w = x[:2] * 1.0
        first, last = w[:1], w[1:]
        first *= 2.0
        return np.sum(first) + np.sum(w[1:] * 3.0) + np.sum(last)

    def plain(x: Any) -> Any:
        return 2.0 * x[0] + 4.0 * x[1]

    assert by_rows(X) == pytest.approx(plain(X))
    for mode in (dagad.grad, dagad.jacfwd):
        np.testing.assert_allclose(mode(by_rows)(X), mode(plain)(X))


@pytest.mark.parametrize("where", [0, slice(1), [0], (..., None)], ids=str)
def test_parts_that_were_changed_under_another_name_are_refused(where: Any) -> None:
    def loss(x: Any) -> Any:
        x = x * 1.0
        y = x[:2]
        y *= 2.0
        return np.sum(x[where])

    with pytest.raises(dagad.NotDifferentiableError, match=STALE):
        dagad.grad(loss)(X)


def test_notes_of_changes_in_place_go_with_the_memory_in_long_loops() -> None:
    seen = []

    def loss(x: Any) -> Any:
        y = x * 1.0
        for _ in range(500):
            y *= 0.999
        seen.append(sum(map(len, next(iter(in_place.CHANGED.values())).values())))
        return np.sum(y)

    dagad.jvp(loss, (X,), (X,))
    assert seen[0] < 10
    assert not in_place.CHANGED


def test_a_first_look_at_a_function_leaves_the_parameters_as_they_are(new_functions: None) -> None:
    def chunk(rows: Any, theta: Any) -> Any:
        theta *= 2.0
        return np.sum(rows * theta[0] ** 2)

    theta = np.array([1.2, 2.7])
    value, gradient = dagad.value_and_grad(lambda t: dagad.reduce_sum(chunk, X, t, grainsize=2, scheduler="sync"))(
        theta
    )
    assert theta.tolist() == [1.2, 2.7]
    assert value == pytest.approx(4 * 1.44 * np.sum(X))
    np.testing.assert_allclose(gradient, [8 * 1.2 * np.sum(X), 0.0])


def test_changes_are_seen_while_a_part_is_being_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread of the same trace may change an array meanwhile, or use one that is stale."""
    take = traced_array._stock_getitem

    def loss(x: Any) -> Any:
        y = x * 1.0
        y *= 2.0
        w, found = x * 3.0, []
        v = np.reshape(w, (2, 2))

        def change() -> None:
            nonlocal w
            w *= 2.0

        def meanwhile(self: Any, where: Any) -> Any:
            thread = threading.Thread(target=change)
            thread.start()
            thread.join()
            return take(self, where)

        monkeypatch.setattr(traced_array, "_stock_getitem", meanwhile)
        found.append(y[0:1])
        monkeypatch.setattr(traced_array, "_stock_getitem", take)
        return np.sum(v)

    with pytest.raises(dagad.NotDifferentiableError, match=STALE):
        dagad.grad(loss)(X)


def test_parts_at_numpys_own_whole_numbers_are_parts_too() -> None:
    def loss(x: Any) -> Any:
        y = x * 1.0
        first = y[:1]
        first *= 2.0
        return sum(y[index] for index in np.arange(1, 4)) + np.sum(first)

    np.testing.assert_allclose(dagad.grad(loss)(X), [2.0, 1.0, 1.0, 1.0])
