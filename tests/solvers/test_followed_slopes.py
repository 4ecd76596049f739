"""Right-hand sides that ask, change or keep more than numbers: are they followed, and their derivatives right?"""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from autograd.extend import Box, defjvp, primitive
from autograd.tracer import getval

import dagad
from dagad._tracing import stacked_tangents
from dagad.solvers import _recorded_tangents, _recording, odeint, solve_ivp
from support.right_hand_sides import THETA, TIMES, Calls, Field, followed, oscillator, states


def test_derivatives_are_those_of_the_branch_taken_where_branches_have_equal_values() -> None:
    def left(rates: Any) -> Any:
        found = solve_ivp(lambda t, y: [-(rates[0] if t < 1.0 else rates[1]) * y[0]], (0.0, 3.0), [1.0], max_step=0.05)
        return found.y[0, -1]

    rates = np.array([0.3, 0.3])
    expected = -np.array([1.0, 2.0]) * np.exp(-0.3 * 3.0)
    np.testing.assert_allclose(dagad.grad(left)(rates), expected, rtol=0.02)


def test_a_right_hand_side_that_reads_what_it_changes_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TICKS", "0")  # which nobody looks into

    def field(t: Any, y: Any, p: Any) -> Any:
        os.environ["TICKS"] = str(int(os.environ["TICKS"]) + 1)
        return [-p[0] * y[0] * (1.0 if int(os.environ["TICKS"]) < 300 else 1.0 + 1e-9), y[0]]

    calls = Calls(monkeypatch)
    dagad.jacfwd(lambda theta: states(field, theta, rtol=1e-10, atol=1e-10))(THETA)
    assert calls.followed == 1
    assert calls.by_program


def test_a_right_hand_side_that_draws_from_an_iterator_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()

    def field(t: Any, y: Any, p: Any) -> Any:
        return [-p[0] * y[0] * (1.0 if next(ticks) < 300 else 1.0 + 1e-9), y[0]]

    calls = Calls(monkeypatch)
    dagad.jacfwd(lambda theta: states(field, theta, rtol=1e-10, atol=1e-10))(THETA)
    assert calls.followed == calls.by_program == 0


def test_a_right_hand_side_that_keeps_what_it_was_given_first_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    def jacobian() -> Any:
        kept: dict[str, Any] = {}

        def field(t: Any, y: Any, p: Any) -> Any:
            return [-p[0] * y[0], p[1] * kept.setdefault("first", y[0])]

        return dagad.jacfwd(lambda theta: states(field, theta))(THETA)

    calls = Calls(monkeypatch)
    found = jacobian()
    assert not calls.by_program
    followed(monkeypatch)
    assert found.tobytes() == jacobian().tobytes()


class Delayed:
    """Reads what it has kept of calls half a unit of time before."""

    history: ClassVar[list[tuple[Any, Any]]] = []

    def slopes(self, t: Any, y: Any, p: Any) -> Any:
        past = next((kept for time, kept in reversed(self.history) if time <= t - 0.5), 0.3)
        self.history.append((t, y[0]))
        return [-p[0] * y[0] + p[2] * past, p[1] * y[0]]


CALLED: list[Any] = []
HELD: dict[str, Any] = {}


def called(t: Any, y: Any) -> Any:
    CALLED.append(t)
    return y[0] if len(CALLED) % 2 else y[0] * 1.0


def held(t: Any, y: Any, p: Any) -> Any:
    if t >= HELD["next"]:
        HELD.update(next=HELD["next"] + 0.3, rate=y[0] * p[1])
    return [-p[0] * called(t, y) + HELD["rate"], p[1] * y[0]]


def warm() -> Field:
    kept = {"x": 0.5}

    def field(t: Any, y: Any, p: Any) -> Any:
        x = kept["x"]
        for _ in range(4):
            x = x - (x * x * x + x - y[0]) / (3 * x * x + 1)
        kept["x"] = x
        return [-p[0] * x, p[1] * y[0]]

    return field


@pytest.mark.parametrize("make", [lambda: Delayed().slopes, lambda: held, warm], ids=["delayed", "held", "warm"])
def test_a_right_hand_side_that_changes_what_it_reads_is_not_recorded(
    make: Callable[[], Field], monkeypatch: pytest.MonkeyPatch
) -> None:
    def jacobian() -> Any:
        Delayed.history.clear()
        CALLED.clear()
        HELD.update(next=0.5, rate=0.1)
        field = make()
        return dagad.jacfwd(lambda theta: states(field, theta))(THETA)

    calls = Calls(monkeypatch)
    found = jacobian()
    assert calls.followed == calls.by_program == 0
    assert not any(isinstance(time, _recording.Number) for time in CALLED)
    followed(monkeypatch)
    assert found.tobytes() == jacobian().tobytes()


damped = primitive(lambda x: x * 1.0)
defjvp(damped, lambda g, ans, x: g * (1.0 if abs(x) < 1.5 else 0.0))


def of_a_users_rule(t: Any, y: Any, p: Any) -> Any:
    return [2.0 * p[0] * damped(y[1]), p[1] * damped(y[0])]


def by_its_class(t: Any, y: Any, p: Any) -> Any:
    return [-(p[1] if isinstance(t, float) and t > 1.0 else p[0]) * y[0], p[2] * y[0]]


def by_its_digits(t: Any, y: Any, p: Any) -> Any:
    return [-p[min(int(f"{t}"[0]), 1)] * y[0], p[2] * y[0]]


def by_an_attribute(t: Any, y: Any, p: Any) -> Any:
    return [-p[0 if getattr(t, "value", t) < 1.0 else 1] * y[0], p[2] * y[0]]


def by_the_type_of_the_time(t: Any, y: Any, p: Any) -> Any:
    return [-(p[0] if type(t) in (float, np.float64) else p[1]) * y[0], p[2] * y[0]]


def by_the_type_of_states(t: Any, y: Any, p: Any) -> Any:
    rate = p[0] if type(y).__module__.startswith("dagad.solvers") else p[1]
    return [-rate * y[0], p[2] * y[0]]


def by_the_type_of_an_array(t: Any, y: Any, p: Any) -> Any:
    return -(p[:2] if type(y * 1.0) is np.ndarray else p[1:]) * y


def by_the_class_of_an_array(t: Any, y: Any, p: Any) -> Any:
    return -(p[:2] if isinstance(p[:2] * y, np.ndarray) else p[1:]) * y


def by_what_an_array_holds(t: Any, y: Any, p: Any) -> Any:
    return -(p[:2] if np.all(y < 2.0 * p[0]) else p[1:]) * y


def test_names_that_a_number_may_have_are_those_of_no_recorded_one() -> None:
    """Or code that asks for them, of what may be a number or have one, would lose its tangents."""
    recording = _recording.Recording(1)
    number = _recording.Number(recording, "y0", 1.0, moves=True, varies=True)
    own_tangents = _recorded_tangents.DualNumber(recording, number, [number], 1)
    names = {name for each in (number, own_tangents) for name in dir(type(each)) if not name.startswith("_")}
    array = {"shape", "ndim", "size"}
    ours = {"recording", "recorded_number", "recorded_value", "recorded_tangents", "recorded_level"}
    assert names - array - ours == {"entry", "is_moving", "is_varying", "term"}


@pytest.mark.parametrize("name", ["value", "number", "tangents", "level", "magnitude", "nominal_value", "n", "val"])
def test_second_derivatives_of_a_right_hand_side_that_asks_for_a_number_inside_are_whole(name: str) -> None:
    def loss(theta: Any) -> Any:
        def field(t: Any, y: Any, p: Any) -> Any:
            return [t * getattr(p[0], name, p[0]) * p[1] * y[0]]

        return solve_ivp(field, (0.0, 1.0), np.array([1.0]), args=(theta,), sensitivity="forward").y[0, -1]

    theta = np.array([0.7, 0.0])  # a term that is switched off: its first derivative is zero
    np.testing.assert_allclose(dagad.hessian(loss)(theta), [[0.0, 0.5], [0.5, 0.1225]], atol=1e-4)
    np.testing.assert_allclose(dagad.grad(loss)(np.array([0.7, 0.3])), [0.16660725, 0.38875026], rtol=1e-3)


ASKING = [
    *(of_a_users_rule, by_its_class, by_its_digits, by_an_attribute),
    *(by_the_type_of_the_time, by_the_type_of_states),
    *(by_the_type_of_an_array, by_the_class_of_an_array, by_what_an_array_holds),
]


@pytest.mark.parametrize("field", ASKING)
def test_right_hand_sides_that_ask_what_a_number_is_are_followed(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = np.array([0.5, 0.5, 0.5])  # with the same values, and other derivatives
    calls = Calls(monkeypatch)
    found = dagad.jacfwd(lambda theta: states(field, theta))(rates)
    assert not calls.by_program
    followed(monkeypatch)
    assert found.tobytes() == dagad.jacfwd(lambda theta: states(field, theta))(rates).tobytes()


def later_by_the_type_of_the_time(t: Any, y: Any, p: Any) -> Any:
    return [-(p[0] if type(t) in (float, np.float64) and t > 1.0 else p[1]) * y[0], p[2] * y[0]]


def later_by_the_type_of_states(t: Any, y: Any, p: Any) -> Any:
    is_late = t > 1.0
    return [-(p[0] if is_late and type(y).__module__.startswith("dagad.solvers") else p[1]) * y[0], p[2] * y[0]]


@pytest.mark.parametrize("field", [later_by_the_type_of_the_time, later_by_the_type_of_states])
def test_a_right_hand_side_that_asks_later_what_a_number_is_is_followed_from_then_on(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At first both decide alike, and at equal rates no value tells later what was decided."""

    def derivatives() -> list[bytes]:
        rates = np.array([0.5, 0.5, 1.3])
        hessian = dagad.hessian(lambda theta: np.sum(states(field, theta) ** 2))(rates)
        return [dagad.jacfwd(lambda theta: states(field, theta))(rates).tobytes(), hessian.tobytes()]

    calls = Calls(monkeypatch)
    found = derivatives()
    assert calls.by_program
    followed(monkeypatch)
    assert found == derivatives()


def test_tangents_that_overflow_are_met_by_the_tracer() -> None:
    def field(t: Any, y: Any, p: Any) -> Any:
        return [-p[0] * y[0], (p[1] * 1e200) * (y[1] * 1e108) * 0.0 + p[1] + y[1] * y[1] * 0.0 * 1e-300]

    def end(theta: Any) -> Any:
        return solve_ivp(field, (0.0, 2.5), [0.1, 1.0], args=(theta,), max_step=0.5).y[:, -1]

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with pytest.raises(dagad.NotDifferentiableError):
            dagad.jacfwd(end)(THETA)
    assert any("overflow" in str(one.message) for one in seen)


def test_a_number_that_was_kept_is_refused_with_the_remedy() -> None:
    recording = _recording.Recording(1)
    number = _recording.Number(recording, "y0", 1.0, moves=True, varies=True)
    recording.is_open = False
    with pytest.raises(dagad.DagadError, match="Keep nothing between calls"):
        number + 1.0


def test_another_rule_of_an_operation_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    monkeypatch.setattr(stacked_tangents, "_is_others", lambda fun: True)
    dagad.jacfwd(lambda theta: states(oscillator, theta))(THETA)
    assert not calls.by_program


def test_numbers_in_closures_and_objects_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rates:
        def __init__(self, theta: Any) -> None:
            self.up, self.down = theta[0], theta[1:]

        def __call__(self, y: Any, t: Any) -> Any:
            return [self.up - self.down[0] * y[0], self.down[1] * (y[0] - y[1])]

    def rows(theta: Any) -> Any:
        return odeint(Rates(theta), [0.1, 0.2], np.array(TIMES), sensitivity="forward")

    calls = Calls(monkeypatch)
    found = dagad.jacfwd(rows)(THETA)
    assert calls.by_program > 10
    followed(monkeypatch)
    assert found.tobytes() == dagad.jacfwd(rows)(THETA).tobytes()
    assert dagad.testing.taylor_rate(lambda theta: np.sum(rows(theta) ** 2), THETA) > 1.9


def test_a_quotient_by_zero_is_met_by_the_tracer() -> None:
    def field(t: Any, y: Any, p: Any) -> Any:
        return [-p[0] * y[0], p[1] * y[0] / (y[1] - y[1] + (0.0 if t > 1.0 else 1.0))]

    with pytest.raises(RuntimeWarning, match="divide by zero"):
        dagad.jacfwd(lambda theta: states(field, theta))(THETA)


def test_complex_states_are_followed() -> None:
    def end(rate: Any) -> Any:
        found = solve_ivp(lambda t, y: [1j * rate * y[0]], (0.0, 1.0), np.array([1.0 + 0.0j]), rtol=1e-9, atol=1e-9)
        return np.real(found.y[0, -1])

    np.testing.assert_allclose(dagad.grad(end)(0.7), -np.sin(0.7), rtol=1e-6)


def late(t: Any) -> Any:
    """Return a factor that is zero at first, when slopes are compared."""
    return np.maximum(0.0, t - 1.0)


def by_a_value_taken_out(t: Any, y: Any, p: Any) -> Any:
    return [-p[0] * y[0], late(t) * getval(p[2]) * y[1] + late(t) * getval(y[0])]


def by_an_array_taken_out(t: Any, y: Any, p: Any) -> Any:
    return late(t) * getval(p[:2]) * y - p[1:] * getval(y)


def by_whether_it_is_traced(t: Any, y: Any, p: Any) -> Any:
    return [-p[0] * y[0], late(t) * (p[2] if type(y[0]) in Box.types else 1.0 * p[1]) * y[1]]


@pytest.mark.parametrize("field", [by_a_value_taken_out, by_an_array_taken_out, by_whether_it_is_traced])
def test_derivatives_do_not_go_through_a_value_that_was_taken_out_of_what_is_traced(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    def derivatives() -> list[Any]:
        hessian = dagad.hessian(lambda theta: np.sum(states(field, theta) ** 2))(THETA)
        return [dagad.jacfwd(lambda theta: states(field, theta))(THETA).tobytes(), hessian.tobytes()]

    found = derivatives()
    followed(monkeypatch)
    assert found == derivatives()


ATTEMPTS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "trunc": (math.trunc, 0),
    "floor": (math.floor, 0),
    "ceil": (math.ceil, 1),
    "plus": (lambda x: math.floor(+x), 0),
    "divmod": (lambda x: divmod(x, 1.0)[0], 0),
    "entry": (lambda x: math.floor(x[()]), 0),
}


@pytest.mark.parametrize(("attempt", "at_first"), ATTEMPTS.values(), ids=ATTEMPTS)
def test_the_tracer_tries_whatever_a_right_hand_side_tries_in_vain(
    attempt: Callable[[Any], Any], at_first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that stays zero does not show in values what its rate is."""

    def field(t: Any, y: Any, p: Any) -> Any:
        try:
            rate = attempt(t)
        except TypeError:
            rate = at_first
        return [-p[0] * y[0], (1.0 + rate) * p[2] * y[1]]

    def zero_at_first(theta: Any) -> Any:
        start = [1.0, theta[1] - 0.4]
        return solve_ivp(field, (0.5, 2.5), start, args=(theta,), sensitivity="forward").y[:, -1]

    found = dagad.jacfwd(zero_at_first)(THETA)
    followed(monkeypatch)
    assert found.tobytes() == dagad.jacfwd(zero_at_first)(THETA).tobytes()


def test_nobody_is_warned_of_parameters_nearby() -> None:
    def field(t: Any, y: Any, p: Any) -> Any:
        return [-np.sqrt(1.0 + 1e-8 - p[0]) * y[0] - p[1] * y[0], p[1] * y[0] + y[1] * 0.1]

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for method in ["RK45", "BDF"]:
            dagad.jacfwd(lambda theta, by=method: states(field, theta, by))(np.array([1.0, 0.3, 0.5]))
    assert not seen


def test_a_state_that_stays_zero_does_not_hide_a_rate_that_goes_by_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def field(t: Any, y: Any, p: Any) -> Any:
        return [-p[0] * y[0], (2.0 if type(t) is np.float64 and t > 1.0 else 1.0) * p[2] * y[1]]

    def end(theta: Any) -> Any:
        return solve_ivp(field, (0.0, 2.5), [1.0, theta[1] - 0.4], args=(theta,), sensitivity="forward").y[:, -1]

    found = dagad.jacfwd(end)(THETA)
    followed(monkeypatch)
    assert found.tobytes() == dagad.jacfwd(end)(THETA).tobytes()
