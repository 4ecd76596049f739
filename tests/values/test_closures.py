"""Closures: whatever carries the value being differentiated, is the gradient right, and the user's own left alone?"""

from __future__ import annotations

import functools
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest

import dagad
from dagad._values.closures import Hole, closure_convert
from support.closure_forms import FORMS, Model
from support.waves import ROWS, expected_at, wave


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FORMS)
def test_the_gradient_is_right_whatever_carries_the_value(name: str, scheduler: Any) -> None:
    build = FORMS[name]
    value, slope = expected_at(0.7)
    for differentiate in (dagad.value_and_grad, autograd.value_and_grad):
        found = differentiate(lambda t: dagad.reduce_sum(build(t), ROWS, grainsize=4, scheduler=scheduler))(0.7)
        assert found[0] == pytest.approx(value, rel=1e-13)
        assert found[1] == pytest.approx(slope, rel=1e-12)


@pytest.mark.parametrize("name", ["nested_function", "Model", "partial_keyword", "list_of_functions", "decorated"])
def test_a_second_derivative_is_right_whatever_carries_the_value(name: str) -> None:
    expected = autograd.grad(autograd.grad(lambda t: wave(ROWS, t)))(0.7)
    found = dagad.grad(dagad.grad(lambda t: dagad.reduce_sum(FORMS[name](t), ROWS, grainsize=4)))(0.7)
    assert found == pytest.approx(expected, rel=1e-11)


def test_a_value_can_come_by_a_closure_and_by_an_argument(scheduler: Any) -> None:
    def loss(t: Any) -> Any:
        scale = onp.array([1.0, 2.0]) * t
        return dagad.reduce_sum(
            lambda rows, u: wave(rows, t) * u * scale[1], ROWS * t, t, grainsize=4, scheduler=scheduler
        )

    expected = autograd.grad(lambda t: sum([wave(ROWS[i : i + 4] * t, t) * t * 2 * t for i in range(0, 9, 4)]))(0.7)
    assert dagad.grad(loss)(0.7) == pytest.approx(expected, rel=1e-12)


def test_arrays_can_be_closed_over(scheduler: Any) -> None:
    theta = onp.array([0.5, -1.0, 2.0])

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(
            lambda rows: np.sum(np.tanh(np.outer(rows, theta))), ROWS, grainsize=4, scheduler=scheduler
        )

    expected = autograd.grad(lambda theta: np.sum(np.tanh(np.outer(ROWS, theta))))(theta)
    assert onp.allclose(dagad.grad(loss)(theta), expected, rtol=1e-12)


def test_items_can_be_mapped_by_a_closure(scheduler: Any) -> None:
    def loss(t: Any) -> Any:
        return dagad.map_sum(lambda row: wave(row, t), ROWS, grainsize=4, scheduler=scheduler)

    assert dagad.grad(loss)(0.7) == pytest.approx(expected_at(0.7)[1], rel=1e-12)


def test_a_reduction_inside_a_chunk_can_close_over_the_chunks_values(scheduler: Any) -> None:
    def outer(rows: Any, t: Any) -> Any:
        scale = t * rows[0]
        return dagad.reduce_sum(lambda inner: wave(inner, scale) * t, rows, grainsize=2)

    def plain(t: Any) -> Any:
        return sum([wave(ROWS[i : i + 4], t * ROWS[i]) * t for i in range(0, 9, 4)])

    found = dagad.grad(lambda t: dagad.reduce_sum(outer, ROWS, t, grainsize=4, scheduler=scheduler))(0.7)
    assert found == pytest.approx(autograd.grad(plain)(0.7), rel=1e-12)


def test_a_boxed_container_of_autograds_can_be_closed_over() -> None:
    """Inside autograd's own grad a dict of parameters is one traced object; its entries are, once taken out."""

    def whole(params: Any) -> Any:
        return dagad.reduce_sum(lambda rows: wave(rows, params["a"] * params["b"][0]), ROWS, grainsize=4)

    def entries(params: Any) -> Any:
        a, b = params["a"], params["b"][0]
        return dagad.reduce_sum(lambda rows: wave(rows, a * b), ROWS, grainsize=4)

    at = {"a": 0.7, "b": [1.0]}
    assert autograd.grad(entries)(at)["a"] == pytest.approx(expected_at(0.7)[1], rel=1e-12)
    assert dagad.grad(whole)(at)["a"] == pytest.approx(expected_at(0.7)[1], rel=1e-12)
    assert autograd.grad(whole)(at)["a"] == pytest.approx(expected_at(0.7)[1], rel=1e-12)


class Event:
    """Has an attribute of the name that autograd's traced values have."""

    def __init__(self, x: float) -> None:
        self.x, self._trace = x, "a log"

    def wave(self, rows: Any) -> Any:
        return wave(rows, self.x)


def test_an_object_with_a_trace_of_its_own_is_no_traced_value(scheduler: Any) -> None:
    events = [Event(x) for x in ROWS]

    def by_rows(events: Any, t: Any) -> Any:
        return wave(np.array([event.x for event in events]), t)

    def by_argument(rows: Any, event: Any, t: Any) -> Any:
        return wave(rows, t * event.x)

    losses: list[Any] = [
        lambda t: dagad.reduce_sum(by_rows, events, t, grainsize=4, scheduler=scheduler),
        lambda t: dagad.reduce_sum(by_argument, ROWS, Event(1.0), t, grainsize=4, scheduler=scheduler),
        lambda t: dagad.reduce_sum(Event(t).wave, ROWS, grainsize=4, scheduler=scheduler),
    ]
    for loss in losses:
        assert dagad.grad(loss)(0.7) == pytest.approx(expected_at(0.7)[1], rel=1e-12)


def test_the_users_own_object_is_left_alone() -> None:
    seen: list[Any] = []

    def loss(t: Any) -> Any:
        model = Model(t)
        before = dict(vars(model))
        result = dagad.reduce_sum(model.chunk, ROWS, grainsize=4)
        seen.append(all(vars(model)[key] is before[key] for key in before))
        return result

    dagad.grad(loss)(0.7)
    assert seen == [True]


def test_a_closure_made_again_has_its_name_and_its_attributes() -> None:
    names: list[Any] = []

    def loss(t: Any) -> Any:
        def chunk(rows: Any, *, by: int = 2) -> Any:
            """Do something."""
            return wave(rows, t)

        vars(chunk)["mark"] = "mine"
        values, make = closure_convert(chunk)
        made = make([0.5])
        names.append((made.__name__, made.__qualname__, made.__doc__, made.__module__, made.mark, made.__kwdefaults__))
        assert len(values) == 1
        return dagad.reduce_sum(chunk, ROWS)

    dagad.grad(loss)(0.7)
    assert names[0][0] == "chunk"
    assert names[0][1].endswith("loss.<locals>.chunk")
    assert names[0][2:] == ("Do something.", __name__, "mine", {"by": 2})


def test_a_function_without_traced_values_has_nothing_to_hoist() -> None:
    model = Model(0.5)
    values, make = closure_convert(model.chunk)
    assert values == []
    assert make([]) == model.chunk


def test_a_hole_of_another_template_is_none_of_this_one() -> None:
    found: list[Any] = []

    def loss(t: Any) -> Any:
        values, make = closure_convert(functools.partial(lambda *args: args, Hole(0), t))
        found.extend(make([3.0])())
        return values[0]

    assert autograd.grad(loss)(0.7) == 1.0
    assert found == [Hole(0), 3.0]
