"""What gradients through small arrays cost: ``python tests/benchmarks/small_arrays.py [--rounds N]``.

Runge-Kutta's steps of the page on differential equations, written with numpy: for one subject with three samples, 60
steps of two numbers; and for 500 subjects at once, 20 steps of two times 500 numbers. Value and gradient take turns, by
the processor's clock; printed are the shortest runs, and how many values a gradient costs.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
import report

import dagad

THETA = np.log(np.array([1.2, 0.3]))
TIMES = np.array([0.5, 1.0, 4.0])
SUBJECTS = 500


def flow(state: Any, ka: Any, ke: Any) -> Any:
    """What enters and leaves gut and blood in an hour."""
    gut, blood = state
    return np.stack([-ka * gut, ka * gut - ke * blood])


def runge_kutta(state: Any, span: float, n_steps: int, *rates: Any) -> Any:
    """Take steps of equal length."""
    h = span / n_steps
    for _ in range(n_steps):
        k1 = flow(state, *rates)
        k2 = flow(state + h / 2 * k1, *rates)
        k3 = flow(state + h / 2 * k2, *rates)
        k4 = flow(state + h * k3, *rates)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return state


def one_subject(theta: Any) -> Any:
    """Return the sum of squares of the concentrations of one subject."""
    rates = np.exp(theta[0]), np.exp(theta[1])
    state, now, total = np.stack([10.0, 0.0]), 0.0, 0.0
    for at in TIMES:
        state, now = runge_kutta(state, at - now, 20, *rates), at
        total = total + state[1] ** 2
    return total


def many_subjects(theta: Any) -> Any:
    """Return the sum of squares of the concentrations of many subjects, two hours after the dose."""
    start = np.stack([np.linspace(5.0, 15.0, SUBJECTS), np.zeros(SUBJECTS)])
    return np.sum(runge_kutta(start, 2.0, 20, np.exp(theta[0]), np.exp(theta[1]))[1] ** 2)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(report.machine()["cpu"], report.machine()["memory"])
    for title, fun in (("one subject, 60 steps", one_subject), (f"{SUBJECTS} subjects, 20 steps", many_subjects)):
        gradient = dagad.value_and_grad(fun)
        ways = {"value": partial(fun, THETA), "gradient": partial(gradient, THETA)}
        seconds = report.shortest(ways, options.rounds)
        value, both = 1e3 * seconds["value"], 1e3 * seconds["gradient"]
        print(f"{title:24} value {value:6.2f} ms, with its gradient {both:6.1f} ms: {both / value:.0f} times")


if __name__ == "__main__":
    main()
