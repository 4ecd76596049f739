"""Loops that Python has unrolled are found again: the same numbers, in as many equations as one round has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

import dagad
from dagad._engines.xla import loops
from dagad._engines.xla.loops import LARGEST, rolled
from support.compiled_quickly import quickly
from support.every_mode import MODES, numbers

X = np.linspace(0.1, 2.0, 6)
T = np.array([0.7, 0.4, 0.3])
TABLE = np.random.default_rng(0).uniform(0.1, 1.0, (6, 12))
Program = Callable[[Any], Any]


def plain(t: Any) -> Any:
    """The result of each round goes into the next."""
    x, y = jnp.asarray(X), 0.5 * X
    for _ in range(12):
        x, y = x + 0.1 * jnp.sin(y * t[0]) * x, y + 0.1 * jnp.cos(x * t[1]) - 0.1 * x * y
    return jnp.sum(x * y)


def of_time(t: Any) -> Any:
    """Each round has a number of its own."""
    x = jnp.asarray(X)
    for k in range(20):
        x = x + 0.1 * jnp.sin(x * t[0] + 0.1 * k) * jnp.exp(-0.01 * k * x)
    return jnp.sum(x)


def two_back(t: Any) -> Any:
    """A round takes what was two and three rounds before, as the methods of several steps do."""
    x = [jnp.asarray(X), t[0] * X, t[1] * X]
    for _ in range(14):
        x.append(2.0 * x[-1] - x[-2] - 0.01 * jnp.sin(x[-3]) * t[0] * x[-1] + 0.001 * jnp.tanh(x[-2] * x[-1]))
    return jnp.sum(x[-1]) + jnp.sum(x[-2] * t[2])


def collected(t: Any) -> Any:
    """What every round gives is used afterwards."""
    x, seen = jnp.asarray(X), []
    for _ in range(15):
        x = x + 0.1 * jnp.sin(x * t[0]) * jnp.cos(x) - 0.01 * jnp.exp(-x) * t[1]
        seen.append(jnp.sum(x))
    return jnp.sum(jnp.stack(seen[::2]) * t[2]) + seen[3] * seen[-1] * x[0]


def backwards(t: Any) -> Any:
    """A second loop takes what a first has given, the last first, and a third every other."""
    x, seen = jnp.asarray(X), []
    for _ in range(16):
        x = x + 0.1 * jnp.sin(x * t[0]) * jnp.cos(x) - 0.01 * jnp.exp(-x)
        seen.append(x)
    y = jnp.zeros(6)
    for x in reversed(seen):
        y = y + jnp.tanh(x * t[1]) * jnp.exp(-y) + 0.1 * jnp.sin(x + y) - 0.1 * y * x
    for x in seen[::2]:
        y = y + jnp.tanh(x * t[1]) * jnp.exp(-y) + 0.1 * jnp.sin(x - y) - 0.1 * y * y * x
    return jnp.sum(y)


def nested(t: Any) -> Any:
    """A loop in a loop, and a column of a table for each round of the outer one."""
    x, total, table = jnp.asarray(X), jnp.zeros(()), jnp.asarray(TABLE)
    for i in range(12):
        for _ in range(5):
            x = x + 0.1 * jnp.sin(x * t[0]) * jnp.cos(x) * jnp.exp(-x * t[1])
        total = total + jnp.sum((table[:, i] - x) ** 2 * jnp.exp(-t[2]))
    return total


def weights(t: Any) -> Any:
    """A parameter for each round."""
    x, w = jnp.asarray(X), jnp.concatenate([t] * 5)
    for k in range(15):
        x = jnp.tanh(x * w[k] + w[k] ** 2) + 0.1 * x * jnp.sin(x) - 0.05 * x * w[14 - k]
    return jnp.sum(x)


def of_kinds(t: Any) -> Any:
    """Whole numbers, truth values, matrices, solutions, choices, sorted and accumulated values."""
    x, n, a = jnp.asarray(X), jnp.zeros(6, int), jnp.eye(6) + 0.1 * jnp.outer(jnp.asarray(X), jnp.asarray(X))
    for _ in range(10):
        high = x > 1.0
        n = n + high * (n < 7)
        x = jnp.where(high, 0.5 * x * t[0], x + 0.1 * jnp.cumsum(jnp.sort(x)) * t[1])
        x = x + 0.1 * jnp.linalg.solve(a, x)[::-1] - 0.01 * jnp.take(x, (n + 1) % 6)
    return jnp.sum(x * (1 + n))


def complex_numbers(t: Any) -> Any:
    """The phase of a state."""
    z = jnp.asarray(X) + 0.0j
    for k in range(16):
        z = z * jnp.exp(1j * t[0] * 0.1) + 0.01 * jnp.conj(z) * t[1] * k + 0.001j * z * z
    return jnp.sum(jnp.abs(z) ** 2)


def of_functions(t: Any) -> Any:
    """Functions of jax's with rules of their own, and compiled ones."""
    x = jnp.asarray(X)
    step = jax.jit(lambda x, t: x + 0.1 * jnp.sin(x * t) * jax.nn.softplus(x))
    for k in range(12):
        x = step(x, t[0]) - 0.01 * jax.scipy.special.gammaln(x + 0.5 * k + t[1] + 1.0) + 0.01 * jax.nn.relu(x - 1.0)
    return jnp.sum(x)


def accumulated(t: Any) -> Any:
    """Sums of terms that have nothing to do with each other."""
    total = jnp.zeros(())
    for k in range(30):
        size = t[0] + 0.1 * k
        total = total + jnp.sum(jnp.exp(-size * X) * jnp.log1p(X * t[1] * size))
    return total


ONES = [plain, of_time, two_back, collected, weights, of_kinds, complex_numbers, of_functions, accumulated]
PROGRAMS: dict[str, Program] = {f.__name__.replace("_", " "): f for f in (*ONES, backwards, nested)}
DERIVED: dict[str, Callable[[Program], Program]] = {
    "value": lambda f: f,
    "value and gradient": jax.value_and_grad,
    "jacfwd": jax.jacfwd,
}


def n_equations(jaxpr: Jaxpr) -> int:
    inner = [part.jaxpr for e in jaxpr.eqns for part in e.params.values() if isinstance(part, ClosedJaxpr)]
    return len(jaxpr.eqns) + sum(map(n_equations, inner))


def compared(program: Any, t: Any, name: str, rtol: float = 1e-11) -> float:
    """Compare a program with its loops found, and return by how much it has become shorter; 1 where none is."""
    with jax.enable_x64(True):
        traced = jax.make_jaxpr(program)(t)
        found = rolled(traced)
        if found is None:
            return 1.0
        at_once = jax.jit(jaxpr_as_fun(found), compiler_options=quickly())  # its loops would be compiled one by one
        for ours, own in zip(at_once(t), jaxpr_as_fun(traced)(t), strict=True):
            assert (ours.dtype, ours.shape) == (own.dtype, own.shape)
            np.testing.assert_allclose(ours, own, rtol=rtol, atol=1e-12, err_msg=name)
        return n_equations(found.jaxpr) / n_equations(traced.jaxpr)


@pytest.mark.parametrize("derived", DERIVED)
def test_programs_with_loops_have_the_same_numbers_in_fewer_equations(derived: str) -> None:
    shares = {name: compared(DERIVED[derived](f), T, name) for name, f in PROGRAMS.items()}
    assert sum(share < 1.0 for share in shares.values()) >= len(shares) - 1, shares
    assert float(np.median(list(shares.values()))) < 0.35, shares


def test_second_derivatives_of_loops_are_the_same() -> None:
    for second in (jax.hessian(plain), jax.grad(lambda t: jnp.sum(jax.grad(of_time)(t) * t))):
        assert compared(second, T, "second derivatives") < 0.35


STEPS: list[Callable[..., Any]] = [
    lambda a, b, k, t, before: a + 0.1 * jnp.sin(b * t[0]),
    lambda a, b, k, t, before: a * jnp.exp(-0.1 * b) + 0.01 * k,
    lambda a, b, k, t, before: jnp.where(a > b, 0.9 * a, b * t[1]),
    lambda a, b, k, t, before: a - 0.05 * TABLE[:, k] * b,
    lambda a, b, k, t, before: jnp.tanh(a * t[k % 3] + b),
    lambda a, b, k, t, before: a.at[k % 5].add(0.1 * b[(k + 1) % 5]),
    lambda a, b, k, t, before: 0.95 * jnp.concatenate([b[:2], a[2:]]),
    lambda a, b, k, t, before: 0.5 * a + 0.5 * before[-min(len(before), 2)],
    lambda a, b, k, t, before: 0.9 * a + 0.1 * before[max(len(before) - 4, 0)],
    lambda a, b, k, t, before: a + 0.01 * jnp.sum(jnp.outer(a, b), axis=k % 2),
    lambda a, b, k, t, before: a.astype(jnp.float32).astype(jnp.float64) + 0.1 * b * t[2],
    lambda a, b, k, t, before: a / (1.0 + jnp.cumsum(jnp.abs(b))) - (0.1 if k % 2 else 0.2) * a,
]


def random_program(seed: int) -> Program:
    rng = np.random.default_rng(seed)
    n_rounds, n_states, n_inner = rng.integers(4, 12), rng.integers(1, 4), rng.integers(0, 6)
    steps = [(*rng.integers(n_states, size=2), rng.choice(np.array(STEPS))) for _ in range(rng.integers(1, 5))]

    def program(t: Any) -> Any:
        states: list[Any] = [X * (i + 1) for i in range(n_states)]
        total, seen = jnp.zeros(()), list[Any]()
        before = [states[0]]
        for k in range(n_rounds):
            for i, j, step in steps:
                states[i] = step(states[i], states[j], k, t, before)
            for _ in range(n_inner):
                states[0] = states[0] - 0.05 * jnp.cos(states[0] * t[1]) * states[-1]
            before.append(states[0])
            seen.append(jnp.sum(states[-1]))
            total = total + jnp.sum(states[0] * t[2]) * (k + 1)
        return total + sum(map(jnp.sum, states)) + (jnp.sum(jnp.stack(seen) ** 2) + seen[1] if seed % 2 else 0.0)

    return program


def test_random_loops_keep_their_values_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "FEWEST_SAVED", 10)
    programs = {f"seed {seed}": jax.value_and_grad(random_program(seed)) for seed in range(8)}
    shares = [compared(f, T, name, 1e-9) for name, f in programs.items()]
    assert sum(share < 1.0 for share in shares) > 4


def test_loops_of_large_arrays_and_what_has_effects_are_left_unrolled() -> None:
    def printed(x: Any) -> Any:
        for _ in range(40):
            x = x + jnp.sin(x) * jnp.cos(x)
            jax.debug.callback(lambda: None)
        return x

    def long(x: Any) -> Any:
        for _ in range(40):
            x = x + jnp.sin(x) * jnp.cos(x)
        return x

    with jax.enable_x64(True):
        assert rolled(jax.make_jaxpr(printed)(X)) is None
        assert rolled(jax.make_jaxpr(long)(np.ones(LARGEST + 1))) is None
        assert rolled(jax.make_jaxpr(long)(np.ones(LARGEST))) is not None


def stepped(rows: Any, n: int, t: Any) -> Any:
    """Steps of an equation in plain numpy, with an observation at each."""
    x, total = rows[:, 0] * t, 0.0
    for k in range(n):
        for _ in range(4):
            x = x + 0.05 * np.sin(x * t) * np.exp(-0.1 * x) - 0.01 * x * x
        total = total + np.sum((rows[:, 1 + k] - x) ** 2)
    return total


def loss(n: int, scheduler: Any, engine: str | None) -> Any:
    rows = np.linspace(0.1, 1.0, 12 * 13).reshape(12, 13)
    return lambda t: dagad.reduce_sum(stepped, rows, n, t, grainsize=4, engine=engine, scheduler=scheduler)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_a_loop_in_numpy_agrees_with_autograd(mode: str) -> None:
    def found(engine: str | None) -> list[float]:
        return numbers(MODES[mode][0](loss(12, "sync", engine)))

    assert found("jax") == pytest.approx(found(None), rel=1e-9, abs=1e-9)


def test_a_loop_in_numpy_has_the_same_bits_on_every_scheduler(scheduler: Any) -> None:
    assert dagad.value_and_grad(loss(12, scheduler, "jax"))(0.7) == dagad.value_and_grad(loss(12, "sync", "jax"))(0.7)
