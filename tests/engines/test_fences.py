"""Long programs are cut for XLA: the same numbers, and no more instructions than the program is long.

The loops of these programs are found again, too (test_loops.py): `fenced` is what happens to those that are not.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dagad
from dagad._engines.jax_settings import compiled_for_cpu
from dagad._engines.xla import fences
from dagad._engines.xla.fences import ROUNDS, SHORTEST, fenced, n_equations, shortened
from dagad._engines.xla.traced import XlaArray
from dagad._engines.xla.tracing import numpy_trace
from support.every_mode import MODES, numbers

ROWS = np.linspace(0.1, 2.0, 24)


def looped(rows: Any, n: int, t: Any) -> Any:
    """A loop that Python unrolls, each of whose values is used several times."""
    x, y = rows, 0.5 * rows
    for _ in range(n):
        x, y = x + 0.1 * np.sin(y * t) * x, y + 0.1 * np.cos(x * t) - 0.1 * x * y
    return np.sum(x * y)


def scalars(rows: Any, n: int, t: Any) -> Any:
    """The same with numbers."""
    x = t
    for _ in range(n):
        x = x + 0.01 * np.sin(x) * np.cos(2.0 * x) - 0.001 * x * x
    return np.sum(rows * x)


def counted(rows: Any, n: int, t: Any) -> Any:
    """The same with functions of jax's that XLA has in one with the rest, and with whole numbers and truth values."""
    x, seen = rows * t, jnp.zeros(rows.shape, int)
    step = jax.jit(lambda x, seen: (x + 0.1 * jnp.sin(x) * x, seen + (x > 0.5) * (seen < 7)))
    for _ in range(n):
        x, seen = step(x, seen)
    return jnp.sum(x * (1 + seen))


PROGRAMS = {"arrays": looped, "numbers": scalars, "functions of jax": counted}


def loss(fun: Any, n: int, scheduler: Any = "sync", name: str | None = "jax") -> Any:
    return lambda t: dagad.reduce_sum(fun, ROWS, n, t, grainsize=6, engine=name, scheduler=scheduler)


def instructions(compiled: Any) -> int:
    return sum(" = " in line for line in compiled.as_text().splitlines())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_long_program_is_as_long_after_xla_has_fused_it(name: str) -> None:
    with jax.enable_x64(True):
        own = jax.jit(jax.value_and_grad(lambda t: jaxs(name, 40, t)))
        program = own.trace(0.7)
        cut = fenced(program.jaxpr)
        assert cut is not None
        made = compiled_for_cpu(jax.jit(cut).lower(ROUNDS, 0.7))
        assert instructions(made) < 10 * n_equations(program.jaxpr.jaxpr)
        short = jax.jit(jax.value_and_grad(lambda t: jaxs(name, 2, t))).trace(0.7)
        assert n_equations(short.jaxpr.jaxpr) < SHORTEST
        assert fenced(short.jaxpr) is None
        again = shortened(program.jaxpr)
        assert again is not None
        rolled = compiled_for_cpu(jax.jit(again).lower(ROUNDS, 0.7))
        assert instructions(rolled) < instructions(made) / 3
        assert np.array(rolled(ROUNDS, 0.7)) == pytest.approx(np.array(made(ROUNDS, 0.7)), rel=1e-11)


def jaxs(name: str, n: int, t: Any) -> Any:
    """Return what a program gives, traced by jax alone."""
    if name == "functions of jax":
        return counted(jnp.asarray(ROWS), n, t)
    rows = jnp.asarray(ROWS)
    with numpy_trace(name, 10_000) as trace:
        return trace.opened(PROGRAMS[name](XlaArray(trace, rows), n, XlaArray(trace, t)))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_a_long_program_agrees_with_autograd(mode: str) -> None:
    def found(engine: str | None) -> list[float]:
        return numbers(MODES[mode][0](loss(looped, 15, "sync", engine)))

    assert found("jax") == pytest.approx(found(None), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", ["arrays", "numbers"])
def test_a_long_program_has_the_same_bits_on_every_scheduler(name: str, scheduler: Any) -> None:
    ours = dagad.value_and_grad(loss(PROGRAMS[name], 15, scheduler))(0.7)
    assert ours == dagad.value_and_grad(loss(PROGRAMS[name], 15))(0.7)
    assert ours == pytest.approx(dagad.value_and_grad(loss(PROGRAMS[name], 15, name=None))(0.7), rel=1e-10)


def test_a_long_program_of_jaxs_own_functions_is_right() -> None:
    slope = dagad.grad(loss(counted, 40))(0.7)
    assert slope == pytest.approx((loss(counted, 40)(0.7 + 1e-6) - loss(counted, 40)(0.7 - 1e-6)) / 2e-6, rel=1e-6)


def test_random_keys_of_jaxs_in_a_long_program_are_left_alone() -> None:
    def noisy(rows: Any, n: int, t: Any) -> Any:
        key, x = jax.random.key(0), rows * t
        for _ in range(n):
            key, own = jax.random.split(key)
            x = x + 0.1 * jnp.sin(x) * jax.random.normal(own, rows.shape)
        return jnp.sum(x)

    slope = dagad.grad(loss(noisy, 30))(0.7)
    assert slope == pytest.approx((loss(noisy, 30)(0.7 + 1e-6) - loss(noisy, 30)(0.7 - 1e-6)) / 2e-6, rel=1e-6)


def test_fences_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(rows: Any, t: Any) -> Any:
        return looped(rows, 12, t)

    def again(rows: Any, t: Any) -> Any:
        return looped(rows, 12, t) + 0.0

    def at(fun: Any) -> Any:
        return dagad.value_and_grad(
            lambda t: dagad.reduce_sum(fun, ROWS, t, grainsize=6, engine="jax", scheduler="sync")
        )(0.7)

    monkeypatch.setattr(fences, "rolled", lambda program: None)
    with_fences = at(own)
    monkeypatch.setattr(fences, "SHORTEST", 10**9)
    without = at(again)
    assert with_fences[0] == pytest.approx(without[0], rel=1e-14)
    assert with_fences[1] == pytest.approx(without[1], rel=1e-13)
