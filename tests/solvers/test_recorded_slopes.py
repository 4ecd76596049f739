"""Right-hand sides that are recorded: have they the tracer's bits, whatever the function decides, reads and keeps?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dagad
from support.right_hand_sides import (
    FOLLOWED,
    IN_ARRAYS,
    RECORDED,
    THETA,
    Calls,
    Field,
    decided_by_time,
    followed,
    oscillator,
    roughly,
    states,
    with_functions,
)


@pytest.mark.each_value("each way of writing a right-hand side, by each method")
@pytest.mark.parametrize("method", ["RK45", "DOP853", "Radau", "BDF", "LSODA"])
@pytest.mark.parametrize("field", RECORDED + IN_ARRAYS + FOLLOWED)
def test_recorded_slopes_have_the_bits_of_followed_ones(
    field: Field, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gradient_and_jacobian() -> tuple[bytes, bytes]:
        gradient = dagad.grad(lambda theta: np.sum(roughly(field, theta, method) ** 2))(THETA)
        return gradient.tobytes(), dagad.jacfwd(lambda theta: roughly(field, theta, method))(THETA).tobytes()

    found = gradient_and_jacobian()
    followed(monkeypatch)
    assert found == gradient_and_jacobian()


def curvatures(field: Field, method: str) -> Any:
    """Return second derivatives in all parameters, in both orders of modes, and products with the Hessian."""

    def loss(theta: Any) -> Any:
        return np.sum(roughly(field, theta, method) ** 2)

    forward = dagad.jacfwd(dagad.jacfwd(lambda theta: roughly(field, theta, method)[0, 1:]))(THETA)
    return dagad.hessian(loss)(THETA), dagad.hvp(loss, THETA, np.array([0.5, -1.0, 2.0])), forward


@pytest.mark.sampled(6)
@pytest.mark.parametrize("method", ["RK45", "BDF", "LSODA"])
@pytest.mark.parametrize("field", RECORDED + IN_ARRAYS + FOLLOWED)
def test_second_derivatives_of_recorded_slopes_have_the_bits_of_followed_ones(
    field: Field, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = curvatures(field, method)
    followed(monkeypatch)
    expected = curvatures(field, method)
    assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]


@pytest.mark.parametrize("field", RECORDED)
def test_second_derivatives_follow_a_right_hand_side_of_numbers_a_few_times_only(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    dagad.jacfwd(dagad.jacfwd(lambda theta: states(field, theta)))(THETA)
    assert calls.followed < 30
    assert calls.by_program > 5 * calls.followed


@pytest.mark.whole("derivatives of third order: half a minute where all is followed")
@pytest.mark.parametrize("field", [oscillator, decided_by_time, with_functions])
def test_third_derivatives_of_recorded_slopes_have_the_bits_of_followed_ones(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    def third() -> bytes:
        found: Any = dagad.jacfwd(dagad.jacfwd(dagad.jacfwd(lambda theta: states(field, theta)[1, 2])))(THETA)
        return bytes(found.tobytes())

    calls = Calls(monkeypatch)
    found = third()
    assert calls.by_program > 5 * calls.followed
    followed(monkeypatch)
    assert found == third()


@pytest.mark.parametrize("field", RECORDED + IN_ARRAYS)
def test_a_right_hand_side_of_numbers_is_followed_where_it_decides_otherwise_only(
    field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    dagad.jacfwd(lambda theta: states(field, theta))(THETA)
    assert calls.followed < 8
    assert calls.by_program > 5 * calls.followed


@pytest.mark.parametrize("field", FOLLOWED)
def test_right_hand_sides_that_can_not_be_recorded_are_followed(field: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    dagad.jacfwd(lambda theta: states(field, theta))(THETA)
    assert calls.followed == 1
    assert not calls.by_program
