"""What derivatives of differential equations cost, in solutions by plain scipy: forward, adjoint, many subjects.

A ratio is that of processor times, the least of several rounds in which all ways take turns. Beside dagad stands the
extended system written by hand, for scipy alone.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from report import shortest
from scipy.integrate import odeint as stock_odeint, solve_ivp as stock_solve_ivp

import dagad
from dagad.solvers import odeint, solve_ivp

TOLERANCES: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8}


def show(title: str, seconds: dict[str, float], unit: str, allowed: float | None = None) -> None:
    bound = "" if allowed is None else f", at most {allowed:.1f}"
    print(f"{title} (in units of {1e3 * seconds[unit]:.2f} ms, {unit}{bound})")
    for name, each in seconds.items():
        print(f"    {name:44} {each / seconds[unit]:8.2f}")


class Front:
    """A population that spreads and grows on a ring of `n_states` places, at rates made of `n_params` parameters."""

    def __init__(self, n_states: int, n_params: int) -> None:
        place = np.linspace(0.0, 2.0 * np.pi, n_states, endpoint=False)
        self.start = 0.1 + 0.05 * np.sin(place)
        self.shapes = np.stack([1.0 + 0.5 * np.cos(k * place + k) for k in range(n_params)], axis=1) / n_params
        self.params = np.linspace(0.5, 1.0, n_params)
        self.weights = np.cos(place)

    def field(self, t: Any, y: Any, params: Any) -> Any:
        del t
        around = np.concatenate([y[1:], y[:1]]) + np.concatenate([y[-1:], y[:-1]]) - 2.0 * y
        return around + (self.shapes @ params) * y * (1.0 - y)

    def end(self, params: Any, of: Any = solve_ivp, **options: Any) -> Any:
        return of(self.field, (0.0, 5.0), self.start, args=(params,), t_eval=[5.0], **TOLERANCES, **options).y[:, -1]

    def by_hand(self) -> Any:
        n, k = self.shapes.shape
        rates = self.shapes @ self.params

        def extended(t: Any, state: Any) -> Any:
            rows = state.reshape(1 + k, n)
            found = np.roll(rows, -1, axis=1) + np.roll(rows, 1, axis=1) - 2.0 * rows
            y = rows[0]
            found[0] += rates * y * (1.0 - y)
            found[1:] += (rates * (1.0 - 2.0 * y)) * rows[1:] + self.shapes.T * (y * (1.0 - y))
            return found.reshape(-1)

        start = np.concatenate([self.start, np.zeros(n * k)])
        atol = np.concatenate([np.full(n, 1e-8), np.repeat(1e-8 / self.params, n)])
        return stock_solve_ivp(extended, (0.0, 5.0), start, t_eval=[5.0], rtol=1e-6, atol=atol).y[:, -1]


class Network(Front):
    """As many states, each coupled to each: nearly all work is the product of a matrix and the states."""

    def __init__(self, n_states: int, n_params: int) -> None:
        super().__init__(n_states, n_params)
        self.coupling = np.random.default_rng(0).normal(size=(n_states, n_states)) / np.sqrt(n_states)

    def field(self, t: Any, y: Any, params: Any) -> Any:
        del t
        return (self.shapes @ params) * np.tanh(self.coupling @ y) - y

    def by_hand(self) -> Any:
        n, k = self.shapes.shape
        rates = self.shapes @ self.params

        def extended(t: Any, state: Any) -> Any:
            rows = state.reshape(1 + k, n)
            inner = rows @ self.coupling.T
            heights = np.tanh(inner[0])
            found = rates * (1.0 - heights**2) * inner
            found[0] = rates * heights
            found[1:] += self.shapes.T * heights
            return (found - rows).reshape(-1)

        start = np.concatenate([self.start, np.zeros(n * k)])
        atol = np.concatenate([np.full(n, 1e-8), np.repeat(1e-8 / self.params, n)])
        return stock_solve_ivp(extended, (0.0, 5.0), start, t_eval=[5.0], rtol=1e-6, atol=atol).y[:, -1]


def forward(front: Front, rounds: int) -> None:
    n_states, n_params = front.shapes.shape

    def cost(params: Any, **options: Any) -> Any:
        return front.weights @ front.end(params, **options)

    ways: dict[str, Callable[[], Any]] = {
        "the solution, by scipy": lambda: front.end(front.params, stock_solve_ivp),
        "the extended system, by hand": front.by_hand,
        "dagad.jacfwd": lambda: dagad.jacfwd(front.end)(front.params),
        "dagad.grad, forward sensitivities": lambda: dagad.grad(lambda p: cost(p, sensitivity="forward"))(front.params),
        "dagad.grad, adjoint": lambda: dagad.grad(lambda p: cost(p, sensitivity="adjoint"))(front.params),
    }
    show(
        f"{type(front).__name__}, {n_states} states, {n_params} parameters, forward",
        shortest(ways, rounds),
        "the solution, by scipy",
        1.2 * (1 + n_params),
    )


def adjoint(front: Front, rounds: int) -> None:
    n_states, n_params = front.shapes.shape
    ways: dict[str, Callable[[], Any]] = {
        "the solution, by scipy": lambda: front.end(front.params, stock_solve_ivp),
        "dagad.grad": lambda: dagad.grad(lambda params: front.weights @ front.end(params))(front.params),
        "dagad.hvp": lambda: dagad.hvp(
            lambda params: front.weights @ front.end(params, sensitivity="adjoint"), (front.params,), (front.params,)
        ),
    }
    show(
        f"{type(front).__name__}, {n_states} states, {n_params} parameters, adjoint",
        shortest(ways, rounds),
        "the solution, by scipy",
        6.0,
    )


def either_way(front: Front, rounds: int) -> None:
    """Show what "auto" takes, beside both that it may take."""
    n_states, n_params = front.shapes.shape
    ways: dict[str, Callable[[], Any]] = {
        sensitivity: lambda sensitivity=sensitivity: dagad.grad(  # type: ignore[misc]  # mypy knows no defaults of lambdas
            lambda params: front.weights @ front.end(params, sensitivity=sensitivity)
        )(front.params)
        for sensitivity in ("auto", "forward", "adjoint")
    }
    show(
        f"{type(front).__name__}, {n_states} states, {n_params} parameters, either way", shortest(ways, rounds), "auto"
    )


def one_subject(rounds: int) -> None:
    times = np.array([0.5, 1.0, 4.0])

    def curve(theta: Any, of: Any = solve_ivp) -> Any:
        ka, ke = np.exp(theta[0]), np.exp(theta[1])
        flow = lambda t, y: [-ka * y[0], ka * y[0] - ke * y[1]]  # noqa: E731  # it carries the rates
        return of(flow, (0.0, 4.0), [10.0, 0.0], t_eval=times, **TOLERANCES).y[1]

    def by_hand(theta: Any) -> Any:
        ka, ke = np.exp(theta)

        def flow(t: Any, y: Any) -> Any:
            gut, blood, gut_ka, blood_ka, blood_ke = y
            return [
                -ka * gut,
                ka * gut - ke * blood,
                -gut - ka * gut_ka,
                gut + ka * gut_ka - ke * blood_ka,
                -blood - ke * blood_ke,
            ]

        return stock_solve_ivp(flow, (0.0, 4.0), [10.0, 0.0, 0.0, 0.0, 0.0], t_eval=times, **TOLERANCES).y

    theta = np.log([1.2, 0.3])
    cost = lambda theta: np.sum(curve(theta) ** 2)  # noqa: E731  # what is differentiated
    ways: dict[str, Callable[[], Any]] = {
        "the solution, by scipy": lambda: curve(theta, stock_solve_ivp),
        "the extended system, by hand": lambda: by_hand(theta),
        "dagad.grad": lambda: dagad.grad(cost)(theta),
        "dagad.hessian": lambda: dagad.hessian(cost)(theta),
    }
    show("2 states, 2 parameters, lists of numbers", shortest(ways, rounds), "the solution, by scipy")


def predators(y: Any, t: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    del t
    return [a * y[0] - b * y[0] * y[1], c * y[0] * y[1] - d * y[1]]


def predators_by_hand(state: Any, t: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    x, y, *tangents = state.tolist()
    sources = ((x, 0.0), (-x * y, 0.0), (0.0, x * y), (0.0, -y))
    slopes = predators((x, y), t, a, b, c, d)
    for u, v, (to_x, to_y) in zip(tangents[::2], tangents[1::2], sources, strict=True):
        slopes += [(a - b * y) * u - b * x * v + to_x, c * y * u + (c * x - d) * v + to_y]
    return slopes


def by_odeint(rounds: int) -> None:
    """The gradient of what `odeint` finds at 21 times, in four parameters."""
    times, theta = np.linspace(0.0, 10.0, 21), np.array([1.0, 0.1, 0.05, 1.1])

    def cost(theta: Any, of: Any = odeint) -> Any:
        return np.sum(of(predators, [10.0, 5.0], times, args=tuple(theta)) ** 2)

    ways: dict[str, Callable[[], Any]] = {
        "the solution, by scipy": lambda: cost(theta, stock_odeint),
        "the extended system, by hand": lambda: stock_odeint(
            predators_by_hand, [10.0, 5.0, *[0.0] * 8], times, args=tuple(theta)
        ),
        "dagad.grad": lambda: dagad.grad(cost)(theta),
    }
    seconds = shortest(ways, 20 * rounds)
    show("2 states, 4 parameters, odeint", seconds, "the solution, by scipy", 1.2 * (1 + len(theta)))


def robertson(t: Any, y: Any, p: Any) -> Any:
    del t
    slow, fast = p[0] * y[0] - p[2] * y[1] * y[2], p[1] * y[1] ** 2
    return [-slow, slow - fast, fast]


def robertson_by_hand(t: Any, state: Any, p: Any) -> Any:
    a, b, c, *tangents = state.tolist()
    slopes = robertson(t, (a, b, c), p)
    for number, own in enumerate(((a, 0.0), (0.0, b**2), (-b * c, 0.0))):
        u, v, w = tangents[3 * number : 3 * number + 3]
        slow, fast = own[0] + p[0] * u - p[2] * (v * c + b * w), own[1] + 2.0 * p[1] * b * v
        slopes += [-slow, slow - fast, fast]
    return slopes


def stiff(rounds: int) -> None:
    """Robertson's problem, in three parameters; the extended system by hand has differences for a Jacobian."""
    rates, times, start = np.array([0.04, 3e7, 1e4]), [0.4, 4.0, 40.0, 400.0, 4000.0], [1.0, 0.0, 0.0]
    atol = np.array([1e-8, 1e-12, 1e-8])
    of_extended = np.concatenate([atol, *(atol / rate for rate in rates)])

    def cost(rates: Any, options: dict[str, Any], of: Any = solve_ivp) -> Any:
        return np.sum(of(robertson, (0.0, times[-1]), start, args=(rates,), atol=atol, **options).y ** 2)

    def by_hand(options: dict[str, Any]) -> Any:
        zeros, span = [0.0] * 9, (0.0, times[-1])
        return stock_solve_ivp(robertson_by_hand, span, start + zeros, args=(rates,), atol=of_extended, **options)

    for method in ("Radau", "BDF", "LSODA"):
        options: dict[str, Any] = {"method": method, "t_eval": times, "rtol": 1e-6}
        ways: dict[str, Callable[[], Any]] = {
            "the solution, by scipy": functools.partial(cost, rates, options, stock_solve_ivp),
            "the extended system, by hand": functools.partial(by_hand, options),
            "dagad.grad": functools.partial(dagad.grad(cost), rates, options),
        }
        show(f"Robertson, 3 parameters, {method}", shortest(ways, 3 * rounds), "the solution, by scipy", 4.8)


def many_subjects(n: int, rounds: int) -> None:
    """A gradient of two-compartment curves of many subjects: by adaptive steps, and by those of the example."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    example = importlib.import_module("pharmacokinetics")
    rng = np.random.default_rng(0)
    subjects = [example.Subject({0: 100.0}, sorted(rng.choice(48, 6, replace=False) + 1)) for _ in range(n)]
    log_theta = np.log([1.2, 5.0, 30.0, 4.0]) + 0.2 * rng.normal(size=(n, 4))

    def adaptive(item: Any, log_v2: Any) -> Any:
        log_theta, subject = item
        matrix, hours = example.flows(log_theta, log_v2), example.HOURS * np.array(subject.samples)
        start = np.array([100.0, 0.0, 0.0])
        found = solve_ivp(lambda t, y: matrix @ y, (0.0, 24.0), start, t_eval=hours, **TOLERANCES)
        return np.log(found.y[1]) - log_theta[2]

    def gradient(of: Any, scheduler: str = "sync") -> Any:
        def cost(log_theta: Any, log_v2: Any) -> Any:
            return np.sum(dagad.map_rect(of, (log_theta, subjects), log_v2, scheduler=scheduler) ** 2)

        return dagad.value_and_grad(cost, (0, 1))(log_theta, np.log(50.0))

    differ = gradient(adaptive)[1][0] - gradient(example.predict)[1][0]
    print(f"the gradients differ by {np.max(np.abs(differ)):.1e}, as the fixed steps are of half an hour")
    ways: dict[str, Callable[[], Any]] = {
        "fixed steps (examples/pharmacokinetics.py)": lambda: gradient(example.predict),
        "dagad.solvers.solve_ivp": lambda: gradient(adaptive),
    }
    seconds = shortest(ways, rounds)
    show(f"{n} subjects, 5 parameters each", seconds, "fixed steps (examples/pharmacokinetics.py)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--subjects", type=int, default=1000)
    options = parser.parse_args()
    for n_params in (1, 4, 10):
        forward(Network(2000, n_params), options.rounds)
        forward(Front(20_000, n_params), options.rounds)
    adjoint(Network(2000, 100), options.rounds)
    adjoint(Front(20_000, 100), options.rounds)
    for n_params in (50, 100, 200, 1000):
        either_way(Front(3, n_params), options.rounds)
    one_subject(options.rounds)
    by_odeint(options.rounds)
    stiff(options.rounds)
    many_subjects(options.subjects, options.rounds)


if __name__ == "__main__":
    main()
