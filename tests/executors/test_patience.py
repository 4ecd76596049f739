"""How long to wait for a result: any number of seconds, or until it is there."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import dagad
from dagad._executors.patience import result_of


@pytest.mark.parametrize("timeout", [None, np.inf, 1e300, 60, np.float32(60.0)])
def test_whoever_waits_as_long_as_it_takes_gets_the_result(timeout: Any) -> None:
    evaluation = dagad.evaluate(lambda t: t**2, 3.0)
    assert (evaluation.value(timeout=timeout), evaluation.gradient(timeout=timeout)) == (9.0, 6.0)


@pytest.mark.parametrize("timeout", ["1", np.nan, [1.0], "soon"])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(timeout: Any) -> None:
    evaluation = dagad.evaluate(lambda t: t**2, 3.0)
    for wait in (evaluation.value, evaluation.gradient):
        with pytest.raises(dagad.ArgumentsError, match=r"`timeout` says for how many seconds.*Give a number, or None"):
            wait(timeout=timeout)


def test_whoever_waits_in_vain_may_ask_again() -> None:
    with pytest.raises(dagad.TimedOutError, match=r"The value was not there after 0\.01 seconds"):
        result_of(Future(), 0.01, "value")
