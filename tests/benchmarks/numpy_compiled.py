"""Plain numpy compiled by jax, beside jax itself and autograd: ``python tests/benchmarks/numpy_compiled.py``.

Each model is one text, read three times: with numpy, for dagad's two engines, with autograd.numpy, for autograd alone
on all rows at once, and with jax.numpy, for `jax.jit` of the same; the kinetics, which is a loop, by hand with
`jax.lax.scan`. Competitors are timed in turns, so that the ratios hold where the machine drifts. On one thread it is
the best processor time, which others on the machine disturb less, and with `--threads 2`, where the rows are cut in two
for dagad, the best time. Data are in place before, but for one: *of arrays* is given numpy's in place of Shards.
`--only NAME` takes one model, `--compile` tells how long compiling takes by the number of operations, `--fit` times a
fit of the kinetics.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import autograd
import autograd.numpy as anp
import autograd.scipy.special
import dask
import jax
import jax.numpy as jnp
import models
import numpy as np
import scipy.optimize
from dask.utils import format_time
from scipy import special

import dagad
from dagad._engines import jax as engine
from dagad._engines.xla import traced

RNG = np.random.default_rng(0)
GROUPS = 500
Model = tuple[Callable[..., Any], Any, np.ndarray]


def poisson(rows: Any, theta: Any) -> Any:
    x, y, group = rows
    eta = x @ theta[:10] + theta[10:][group]
    return np.sum(y * eta - np.exp(eta))


def negative_binomial(rows: Any, theta: Any) -> Any:
    x, y = rows
    eta, size = x @ theta[:-1], np.exp(theta[-1])
    terms = special.gammaln(y + size) + y * eta - (y + size) * np.log(size + np.exp(eta))
    return np.sum(terms + size * theta[-1] - special.gammaln(size))


def kinetics(rows: Any, theta: Any) -> Any:
    dose, observed = rows
    shared, own = theta[:6], theta[6:].reshape(-1, 5)
    absorption, clearance, volume, exchange, other = (np.exp(shared[k] + own[:, k]) for k in range(5))
    rates = (absorption, clearance / volume + exchange / volume, exchange / volume, exchange / other)
    state, total = (dose, 0.0 * dose, 0.0 * dose), 0.0
    for interval in range(models.INTERVALS):
        for _ in range(models.STEPS_VECTORISED):
            state = models._rk4_step(state, rates, models.HOURS_PER_INTERVAL / models.STEPS_VECTORISED)
        error = (observed[:, interval] - np.log(state[1] / volume)) * np.exp(-shared[5])
        total = total + np.sum(-0.5 * error * error - shared[5])
    return total - 0.5 * np.sum(own * own) / models.SPREAD_OF_SUBJECTS**2


def simulated(n_subjects: int) -> tuple[Any, np.ndarray]:
    """Return doses and measured logarithms of concentrations, and parameters near to those that they come from."""
    shared, own = np.array([0.3, 1.0, 2.0, 0.5, 2.5, -2.3]), 0.1 * RNG.normal(size=(n_subjects, 5))
    dose = np.full(n_subjects, 100.0)
    seen = np.stack(list(models._log_concentrations(own.T, dose, shared, models.STEPS_VECTORISED)), axis=1)
    observed = seen + 0.1 * RNG.normal(size=seen.shape)
    return (dose, observed), np.concatenate([np.add(shared, [0.1, -0.1, 0.1, 0.1, -0.1, 0.5]), 0 * own.ravel()])


def kinetics_by_hand(rows: Any, theta: Any) -> Any:
    """The same as one would write it for jax, where the loop is not unrolled."""
    dose, observed = rows
    shared, own = theta[:6], theta[6:].reshape(-1, 5)
    absorption, clearance, volume, exchange, other = (jnp.exp(shared[k] + own[:, k]) for k in range(5))
    rates = (absorption, clearance / volume + exchange / volume, exchange / volume, exchange / other)

    def interval(state: Any, seen: Any) -> Any:
        for _ in range(models.STEPS_VECTORISED):
            state = models._rk4_step(state, rates, models.HOURS_PER_INTERVAL / models.STEPS_VECTORISED)
        error = (seen - jnp.log(state[1] / volume)) * jnp.exp(-shared[5])
        return state, jnp.sum(-0.5 * error * error - shared[5])

    terms = jax.lax.scan(interval, (dose, 0.0 * dose, 0.0 * dose), observed.T)[1]
    return jnp.sum(terms) - 0.5 * jnp.sum(own * own) / models.SPREAD_OF_SUBJECTS**2


def logistic(rows: Any, theta: Any) -> Any:
    x, y = rows
    eta = x @ theta
    return np.sum(y * eta - np.logaddexp(0.0, eta))


def mixture(rows: Any, theta: Any) -> Any:
    logits, means, log_scales = theta[:5], theta[5:55].reshape(5, 10), theta[55:]
    weights = logits - special.logsumexp(logits)
    z = (rows[:, None, :] - means) * np.exp(-log_scales)[:, None]
    each = weights - 0.5 * np.sum(z**2, axis=2) - 10.0 * log_scales
    return np.sum(special.logsumexp(each, axis=1))


def network(rows: Any, theta: Any) -> Any:
    x, y = rows
    first, second, last = theta[:160].reshape(10, 16), theta[160:416].reshape(16, 16), theta[416:]
    hidden = np.tanh(np.tanh(x @ first) @ second)
    return np.sum((y - hidden @ last) ** 2)


def hierarchical(rows: Any, theta: Any) -> Any:
    x, y, group = rows
    own, log_scale = theta[2:], theta[1]
    z = (y - theta[0] * x - own[group]) * np.exp(-log_scale)
    return np.sum(-0.5 * z**2 - log_scale)


def data() -> dict[str, Model]:
    """Return each model with its rows and parameters."""
    large, groups, seen = RNG.normal(size=(10**6, 10)), RNG.integers(0, GROUPS, 10**6), RNG.poisson(1.0, 10**6)
    small = 0.1 * RNG.normal(size=600)
    x, group, counts = large[:300_000].copy(), groups[:300_000].copy(), seen[:300_000].astype(float)
    return {
        "poisson (W1)": (poisson, (large, seen.astype(float), groups), small[:510]),
        "negative binomial (W2)": (negative_binomial, (large, seen.astype(float)), small[:11]),
        "kinetics (W3b)": (kinetics, *simulated(1000)),
        "negative binomial": (negative_binomial, (x, counts), small[:11]),
        "logistic": (logistic, (x, (counts > 0) * 1.0), small[:10]),
        "mixture": (mixture, x[:50_000], small[:60]),
        "network": (network, (x[:50_000], counts[:50_000]), small[:432]),
        "hierarchical": (hierarchical, (x[:, 0], counts, group), small[:502]),
    }


def competitors(model: Model, threads: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what gives value and gradient, warm, each by its name."""
    plain, rows, theta = model
    n_rows = len(rows[0]) if isinstance(rows, tuple) else len(rows)
    where = "sync" if threads == 1 else "threads"
    grainsize = -(-n_rows // (1 if plain is kinetics else threads))
    shards = dagad.shard(rows, grainsize=grainsize, scheduler=where)
    for name in ("jax", "autograd"):
        loss = dagad.value_and_grad(lambda t, name=name: dagad.reduce_sum(plain, shards, t, engine=name))
        yield f"dagad, {name}", functools.partial(loss, theta)
    loss = dagad.value_and_grad(
        lambda t: dagad.reduce_sum(plain, rows, t, engine="jax", scheduler=where, grainsize=grainsize)
    )
    yield "dagad, jax, of arrays", functools.partial(loss, theta)
    of_autograd = globals() | {"np": anp, "special": autograd.scipy.special}
    alone = autograd.value_and_grad(FunctionType(plain.__code__, of_autograd), 1)
    yield "autograd alone", functools.partial(alone, rows, theta)
    with jax.enable_x64(True):
        of_jax = globals() | {"np": jnp, "special": jax.scipy.special}
        own = kinetics_by_hand if plain is kinetics else FunctionType(plain.__code__, of_jax)
        sharded = jax.tree.map(jnp.asarray, rows)
        of_one = {"xla_cpu_multi_thread_eigen": False} if threads == 1 else {}
        by_hand = jax.jit(jax.value_and_grad(own, 1), compiler_options=of_one)

    def run() -> Any:
        with jax.enable_x64(True):
            value, slope = by_hand(sharded, theta)
            return float(value), np.asarray(slope)

    yield "jax.jit by hand", run


def timed(calls: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the best time of each, called in turns: what else runs on the machine only adds to it."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            began = clock()
            call()
            found[name].append(clock() - began)
    return {name: min(each) for name, each in found.items()}


def compare(name: str, model: Model, threads: int, rounds: int) -> None:
    calls, first = dict(competitors(model, threads)), {}
    for each, call in calls.items():
        began = time.perf_counter()
        first[each] = call()
        compiling = time.perf_counter() - began if each == "dagad, jax" else 0.0
        if compiling:
            print(f"{name:24} {threads} thread(s): first call {format_time(compiling)}", end="", flush=True)
    value, slope = first["dagad, autograd"]
    for other in first.values():
        np.testing.assert_allclose(other[0], value, rtol=1e-11)
        np.testing.assert_allclose(other[1], slope, rtol=1e-8, atol=1e-8 * abs(slope).max())
    found = timed(calls, rounds, time.process_time if threads == 1 else time.perf_counter)
    ours, theirs = found["dagad, jax"], found["jax.jit by hand"]
    print(f", dagad {ours * 1e3:8.2f} ms, by hand {theirs * 1e3:8.2f} ({ours / theirs:.2f})", end="")
    print(f", of arrays {found['dagad, jax, of arrays'] * 1e3:8.2f}", end="")
    for each in ("dagad, autograd", "autograd alone"):
        print(f", {each} {found[each] * 1e3:8.2f} ({found[each] / ours:.2f} times ours)", end="")
    print(flush=True)


def fit() -> None:
    """Fit the parameters of 1,000 subjects, in plain numpy, with each engine."""
    function, rows, theta = data()["kinetics (W3b)"]
    for engine_name in ("jax", "autograd"):
        loss = dagad.value_and_grad(
            lambda t, name=engine_name: (
                -dagad.reduce_sum(function, rows, t, grainsize=1000, engine=name, scheduler="sync")
            )
        )
        for which in ("first", "second"):
            began = time.perf_counter()
            found = scipy.optimize.minimize(loss, theta, jac=True, method="L-BFGS-B", options={"maxiter": 200})
            print(
                f"{which} fit, {engine_name:8}: {time.perf_counter() - began:6.1f} s, {found.nfev} evaluations, "
                f"{found.fun:.4f}",
                flush=True,
            )


def steps(rows: Any, n: int, t: Any) -> Any:
    """Runge-Kutta steps of many rows: 94 operations each."""
    a, b, h = rows[:, 0], rows[:, 1], 0.01
    for _ in range(n):
        slopes: list[Any] = []
        for ahead in (0.0, 0.5 * h, 0.5 * h, h):
            before = slopes[-1] if slopes else (0.0, 0.0)
            x, y = a + ahead * before[0], b + ahead * before[1]
            slopes.append((-t[0] * x + t[1] * y, t[0] * x - (t[1] + t[2]) * y))
        a, b = (
            one + h / 6.0 * (slopes[0][k] + 2.0 * slopes[1][k] + 2.0 * slopes[2][k] + slopes[3][k])
            for k, one in enumerate((a, b))
        )
    return np.sum(a * b)


def numbers(rows: Any, n: int, t: Any) -> Any:
    """Steps of three numbers, as a recursion of parameters is: 10 operations each."""
    a, b, c = t[0], t[1], t[2]
    for _ in range(n):
        a, b, c = a + 0.01 * (b - a * c), b + 0.01 * (c - a), c * (1.0 - 0.01 * b)
    return np.sum(rows) * a * b * c


def layers(rows: Any, n: int, t: Any) -> Any:
    """Layers of a network: 4 operations each."""
    x, w = rows, t[:2] * np.ones((2, 2))
    for _ in range(n):
        x = np.tanh(x @ w + t[2]) + 0.1 * x
    return np.sum(x)


def densities(rows: Any, n: int, t: Any) -> Any:
    """Terms of a likelihood, one after the other, with special functions: 11 operations each."""
    total: Any = 0.0
    for number in range(n):
        size = t[0] + 0.1 * number
        total = total + np.sum(special.gammaln(rows + size) - special.gammaln(size) - np.log1p(rows * t[1]))
    return total


def filtered(rows: Any, n: int, t: Any) -> Any:
    """Steps of a filter, each with a solution of equations and a determinant: 17 operations each."""
    state, spread, total = t[:2], np.eye(2), 0.0
    move = np.eye(2) + 0.1 * np.outer(t[:2], t[1:])
    for number in range(n):
        spread = move @ spread @ move.T + 0.1 * np.eye(2)
        gap = rows[number % 4] - state
        total = total + gap @ np.linalg.solve(spread, gap) + np.log(np.linalg.det(spread))
        state = move @ state + 0.5 * gap
    return total


PROGRAMS = {
    "steps of a differential equation": (steps, (4, 8, 16, 24)),
    "a recursion of numbers": (numbers, (40, 80, 160, 240)),
    "layers of a network": (layers, (80, 160, 320, 480)),
    "special functions": (densities, (20, 40, 80, 120)),
    "a filter with 2 x 2 matrices": (filtered, (20, 40, 80)),
}


def compiling() -> None:
    """Tell how long value and gradient take to compile, by the program and its number of operations."""
    finished, settle = engine._Compiled._finished, traced.NumpyTrace.settle
    counts, rows = list[int](), np.linspace(0.1, 2.0, 2000).reshape(-1, 2)

    def counted(self: Any) -> None:
        counts.append(self.n_operations)
        settle(self)

    def told(self: Any, lowered: Any, unflat: Any, name: str) -> Any:
        began = time.process_time()
        found = finished(self, lowered, unflat, name)
        spent = time.process_time() - began
        print(f"  {counts[-1]:7,} operations: compiled in {spent:6.2f} s of processor time", end="", flush=True)
        return found

    traced.NumpyTrace.settle = counted  # type: ignore[method-assign]  # this program is all that there is
    engine._Compiled._finished = told  # type: ignore[method-assign]  # as above
    theta = np.array([0.5, 0.3, 0.2])
    with dask.config.set({"dagad.jax-most-operations": 10**6}):
        for name, (program, sizes) in PROGRAMS.items():
            print(name)
            for n in sizes:
                loss = dagad.value_and_grad(
                    lambda t, n=n, program=program: dagad.reduce_sum(
                        program, rows, n, t, grainsize=1000, engine="jax", scheduler="sync"
                    )
                )
                began = time.process_time()
                loss(theta)
                print(f", {time.process_time() - began:6.2f} s with tracing", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--fit", action="store_true", help="time a fit of the kinetics")
    asked = parser.parse_args()
    if asked.compile:
        compiling()
        return
    with dask.config.set({"dagad.jax-most-operations": 10**5}):
        if asked.fit:
            fit()
            return
        for name, model in data().items():
            for threads in asked.threads:
                if asked.only in name:
                    compare(name, model, threads, asked.rounds)


if __name__ == "__main__":
    main()
