"""Programs that are kept from call to call: are they those of what is computed now, and not too many?"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import dagad
from dagad._tracing import stacked_tangents
from dagad.solvers import _programs, _recorded, solve_ivp

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """Return the programs that are kept in a test, none at first."""
    found: dict[Any, Any] = {}
    monkeypatch.setattr(_programs, "_kept", found)
    return found


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the recordings that are made, as a list that gets longer."""
    found: list[Any] = []
    stock = _recorded.RecordedSlopes._record

    def record(slopes: Any, *args: Any) -> None:
        found.append(slopes)
        stock(slopes, *args)

    monkeypatch.setattr(_recorded.RecordedSlopes, "_record", record)
    return found


def decay(rate: Any) -> Any:
    return solve_ivp(lambda t, y: [-rate * y[0]], (0.0, 1.0), [1.0], **TIGHT).y[0, -1]


def test_a_loop_records_an_equation_once(records: list[Any]) -> None:
    for rate in (0.5, 0.8, 1.7):
        np.testing.assert_allclose(dagad.grad(decay)(rate), -np.exp(-rate), rtol=1e-7)
        np.testing.assert_allclose(dagad.jvp(decay, (rate,), (2.0,))[1], -2.0 * np.exp(-rate), rtol=1e-7)
    assert len(records) == 1


def test_a_loop_records_second_derivatives_once_for_each_way(records: list[Any]) -> None:
    dagad.hessian(decay)(0.5)
    before = len(records)
    for rate in (0.5, 0.8):
        np.testing.assert_allclose(dagad.hessian(decay)(rate), np.exp(-rate), rtol=1e-6)
    assert len(records) == before


def test_another_number_of_directions_is_recorded_anew(records: list[Any]) -> None:
    def end(theta: Any) -> Any:
        return solve_ivp(lambda t, y: [-theta[0] * y[0]], (0.0, 1.0), [1.0], **TIGHT).y[0, -1]

    for n in (1, 3):
        slopes = dagad.grad(end)(np.full(n, 0.7))
        np.testing.assert_allclose(slopes, [-np.exp(-0.7), *[0.0] * (n - 1)], rtol=1e-7)
    assert len(records) == 2


def test_another_rule_given_since_is_followed(monkeypatch: pytest.MonkeyPatch, records: list[Any]) -> None:
    dagad.grad(decay)(0.5)
    monkeypatch.setattr(stacked_tangents, "_is_others", lambda fun: True)
    dagad.grad(decay)(0.5)
    assert len(records) == 2


def deciding(rate: Any) -> Any:
    def field(t: Any, y: Any) -> Any:
        steps = 0
        for bound in range(60):
            steps = steps + 1 if 60.0 * t > bound else steps
        return [-rate * y[0] * steps / 60.0]

    return solve_ivp(field, (0.0, 1.0), [1.0], rtol=1e-4).y[0, -1]


def test_slopes_that_decide_otherwise_each_time_are_kept_a_few_times_only(kept: dict[Any, Any]) -> None:
    slopes = [dagad.grad(deciding)(rate) for rate in np.linspace(0.5, 0.6, 4)]
    assert np.all(np.diff(slopes) > 0.0)
    assert 1 < max(map(len, kept.values())) <= _programs.MOST_RECORDS


def of(power: int) -> Callable[..., Any]:
    return lambda rate: solve_ivp(lambda t, y: [-rate * y[0] ** power], (0.0, 1.0), [1.0], **TIGHT).y[0, -1]


def test_many_equations_are_kept_for_a_while_only(kept: dict[Any, Any]) -> None:
    for power in range(2 * _programs._MOST):
        dagad.grad(of(power))(0.5)
    assert 0 < len(kept) <= _programs._MOST


def test_threads_share_programs_and_have_the_same_bits() -> None:
    rates = np.linspace(0.2, 2.0, 40)
    expected = [dagad.grad(decay)(rate).tobytes() for rate in rates]
    with ThreadPoolExecutor(4) as pool:
        assert [slope.tobytes() for slope in pool.map(dagad.grad(decay), rates)] == expected
