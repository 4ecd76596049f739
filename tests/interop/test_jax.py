"""`as_jax`: every transformation of jax's, one evaluation a gradient, none for a value, and no lost derivative."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import test_util

import dagad
from dagad.interop.jax import as_jax

X = np.random.default_rng(0).standard_normal((24, 3))
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.1 * np.random.default_rng(1).standard_normal(24)
P = {"slopes": np.array([0.1, 0.2, 0.3]), "log scale": np.array(0.5)}


@pytest.fixture(autouse=True)
def _x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def wave(rows: Any, p: Any) -> Any:
    return np.sum(np.sin(np.dot(rows, p["slopes"])) * np.exp(p["log scale"]))


def jax_wave(rows: Any, p: Any) -> Any:
    return jnp.sum(jnp.sin(rows @ p["slopes"]) * jnp.exp(p["log scale"]))


def ours(scheduler: Any, **options: Any) -> Any:
    chunk = jax_wave if options else wave
    return as_jax(lambda p: dagad.reduce_sum(chunk, X, p, grainsize=8, scheduler=scheduler, **options))


def theirs(p: Any) -> Any:
    return jax_wave(X, p)


def norm_of_gradient(fun: Any) -> Any:
    return jax.grad(lambda p: sum(jnp.sum(part**2) for part in jax.tree.leaves(jax.grad(fun)(p))))


MODES: dict[str, Any] = {
    "value": lambda fun: fun,
    "value_and_grad": jax.value_and_grad,
    "jvp": lambda fun: lambda p: jax.jvp(fun, (p,), (jax.tree.map(jnp.ones_like, p),)),
    "hessian": jax.hessian,
    "reverse twice": lambda fun: jax.jacrev(jax.jacrev(fun)),
    "forward twice": lambda fun: jax.jacfwd(jax.jacfwd(fun)),
    "gradient of a norm": norm_of_gradient,
    "vmap": lambda fun: lambda p: jax.vmap(jax.grad(fun))(jax.tree.map(lambda part: jnp.stack([part, 2 * part]), p)),
}


def assert_close(found: Any, right: Any, tolerance: float = 1e-12) -> None:
    assert str(jax.tree.structure(found)) == str(jax.tree.structure(right))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", MODES)
def test_every_jax_transformation_of_as_jax_gives_what_jax_gives_of_its_own(mode: str) -> None:
    right = jax.jit(MODES[mode](theirs))(P)
    assert_close(jax.jit(MODES[mode](ours("sync")))(P), right)
    if mode in ("value", "value_and_grad", "jvp"):
        assert_close(MODES[mode](ours("sync"))(P), right)


@pytest.mark.parametrize("engine", [{}, {"engine": "jax"}], ids=["autograd", "jax"])
def test_a_function_of_as_jax_has_the_same_bits_on_every_scheduler(engine: Any, scheduler: Any) -> None:
    def found(where: Any) -> list[bytes]:
        value, gradient = jax.jit(jax.value_and_grad(ours(where, **engine)))(P)
        return [np.asarray(part).tobytes() for part in (value, *jax.tree.leaves(gradient))]

    assert found(scheduler) == found("sync")


def test_jax_checks_our_derivatives(scheduler: Any) -> None:
    check: Any = test_util.check_grads
    check(jax.jit(ours(scheduler)), (P,), order=2 if scheduler == "sync" else 1)


def test_a_third_derivative_in_forward_mode_is_right() -> None:
    found, right = (jax.jit(jax.jacfwd(jax.hessian(fun)))(P) for fun in (ours("sync"), theirs))
    assert_close(found, right, tolerance=1e-10)


@pytest.mark.parametrize("mode", ["value_and_grad", "hessian"])
def test_a_function_of_as_jax_is_not_rounded_in_a_thread_without_x64(mode: str) -> None:
    """jax's own threads, for instance, know nothing of a `with`."""
    right = jax.jit(MODES[mode](theirs))(P)
    compiled = jax.jit(MODES[mode](ours("sync"))).lower(P).compile()
    at = jax.tree.map(jnp.asarray, P)
    with jax.enable_x64(False):
        found = compiled(at)
        assert_close(found, right)


def test_in_a_compiled_loop_chunks_may_be_compiled_too() -> None:
    def descended(fun: Any) -> Any:
        def step(p: Any, _: Any) -> Any:
            value, gradient = jax.value_and_grad(fun)(p)
            return jax.tree.map(lambda part, slope: part - 1e-3 * slope, p, gradient), value

        return jax.jit(lambda p: jax.lax.scan(step, p, None, length=20))(P)

    right = descended(theirs)
    for scheduler in ("sync", "threads"):
        assert_close(descended(ours(scheduler, engine="jax")), right, tolerance=1e-10)


class Counted:
    """A chunk function that knows how often it ran, and how often with something to differentiate."""

    def __init__(self) -> None:
        self.values = self.traced = 0

    def __call__(self, rows: Any, t: Any) -> Any:
        if isinstance(t, np.ndarray):
            self.values += 1
        else:
            self.traced += 1
        return np.sum((np.dot(rows, t) - 1.0) ** 2)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_value_runs_no_pullback_and_a_gradient_each_chunk_once(compiled: bool) -> None:
    count = Counted()
    fun = as_jax(lambda t: dagad.reduce_sum(count, X, t, grainsize=8, scheduler="sync"))
    at, jit = jnp.ones(3), jax.jit if compiled else lambda fun: fun
    for number in range(1, 4):
        jit(fun)(at * number).block_until_ready()
        assert (count.values, count.traced) == (3 * number, 0)
    jit(jax.value_and_grad(fun))(at)[1].block_until_ready()
    assert (count.values, count.traced) == (9, 3)


def test_only_what_jax_differentiates_with_respect_to_needs_a_derivative() -> None:
    def loss(t: Any, k: Any, opaque: Any) -> Any:
        power = dagad.reduce_sum(lambda rows, t: np.sum(rows * t) ** k, X, t, grainsize=len(X), scheduler="sync")
        return power + float(opaque)

    found = jax.jit(jax.grad(as_jax(loss)))(2.0, 3, 1.5)
    assert found == pytest.approx(3 * 4 * X.sum() ** 3)
    whole = jax.grad(as_jax(loss), argnums=(0, 1), allow_int=True)(2.0, 3, 1.5)
    assert whole[1].dtype == jax.dtypes.float0


def test_float32_through_as_jax_is_only_rounded_at_the_end() -> None:
    big = np.full(100_000, 1.0 + 1e-7)
    fun = as_jax(lambda t: dagad.reduce_sum(lambda rows, t: np.sum(rows * t), big, t, scheduler="sync") - 1e5)
    with jax.enable_x64(False):
        value, slope = jax.jit(jax.value_and_grad(fun))(1.0)
    assert value.dtype == slope.dtype == jnp.float32
    assert value == pytest.approx(0.01, rel=1e-5)  # in float32 throughout, it would be 0 or 0.0078


def test_a_jax_tracer_in_the_closure_of_a_function_of_as_jax_is_refused() -> None:
    def total(t: Any, scale: Any) -> Any:
        fun = as_jax(lambda t: dagad.reduce_sum(lambda rows, t: np.sum(rows) * t * scale, X, t, scheduler="sync"))
        return fun(t)

    for wrong, args in (
        (jax.grad(total, 1), (1.0, 2.0)),
        (jax.jit(total), (1.0, 2.0)),
        (jax.vmap(total), (X[0], X[1])),
    ):
        with pytest.raises(dagad.ClosureError, match=r"`scale`.* pass the value to the function as an argument"):
            wrong(*args)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: as_jax(lambda t: t)(1j), "complex numbers, argument .0.*real and imaginary part"),
        (lambda: as_jax(lambda k: k)(jax.random.key(0)), r"a key of random numbers, argument .0.*key_data.key"),
        (lambda: as_jax(lambda t: t)("name"), "a str, argument .0., which is no number.*functools.partial"),
        (lambda: as_jax(lambda t: t)(jnp.ones(2)), "Return its sum"),
        (lambda: jax.grad(as_jax(lambda t: (t, t)))(1.0), "has_aux"),
        (lambda: as_jax(3), "takes a function, and was given an int"),  # type: ignore[arg-type]  # on purpose
    ],
)
def test_as_jax_refuses_arguments_and_results_that_cannot_be_with_the_remedy(wrong: Any, said: str) -> None:
    with pytest.raises(dagad.DagadError, match=said):
        wrong()


def test_an_exception_of_a_chunk_comes_out_of_as_jax_or_within_jaxs_error() -> None:
    def chunk(rows: Any, t: Any) -> Any:
        raise ZeroDivisionError("of the user's")

    fun = as_jax(lambda t: dagad.reduce_sum(chunk, X, t, scheduler="sync"))
    with pytest.raises(ZeroDivisionError, match="of the user's"):
        jax.grad(fun)(1.0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="of the user's"):
        jax.jit(fun)(1.0).block_until_ready()


MIXED: dict[str, Any] = {
    "forward over reverse": lambda fun: jax.jacfwd(jax.grad(fun, 0), 1),
    "reverse over reverse": lambda fun: jax.jacrev(jax.grad(fun, 0), 1),
    "the other way": lambda fun: jax.jacrev(jax.grad(fun, 1), 0),
    "a third one": lambda fun: jax.jacfwd(jax.jacfwd(jax.grad(fun, 0), 1), 1),
}


@dataclasses.dataclass
class Model:
    """A function without a hash."""

    rows: Any

    def __call__(self, slopes: Any, log_scale: Any) -> Any:
        p = {"slopes": slopes, "log scale": log_scale}
        return dagad.reduce_sum(wave, self.rows, p, grainsize=8, scheduler="sync")


@pytest.mark.parametrize("mode", MIXED)
def test_mixed_derivatives_with_respect_to_two_arguments_are_right(mode: str) -> None:
    args = P["slopes"], P["log scale"]
    right = MIXED[mode](lambda slopes, log_scale: theirs({"slopes": slopes, "log scale": log_scale}))
    assert_close(jax.jit(MIXED[mode](as_jax(Model(X))))(*args), jax.jit(right)(*args), tolerance=1e-11)


def test_a_function_of_as_jax_may_return_a_python_number() -> None:
    square = dagad.extend.explicit(lambda rows, t: (float(t) ** 2, lambda cotangent: (None, 2 * t * cotangent)))
    fun = as_jax(lambda t: dagad.reduce_sum(square, np.ones(1), t, scheduler="sync"))
    assert [float(part) for part in jax.jit(jax.value_and_grad(fun))(3.0)] == [9.0, 6.0]
    assert float(fun(3.0)) == 9.0


def test_optax_finds_the_least_squares(cluster: Any) -> None:
    shards = dagad.shard((X, Y), grainsize=8, scheduler=cluster)

    def squares(rows: Any, t: Any) -> Any:
        x, y = rows
        return 0.5 * np.sum((y - np.dot(x, t)) ** 2)

    fun = as_jax(lambda t: dagad.reduce_sum(squares, shards, t))
    right = np.linalg.lstsq(X, Y)[0]
    solver = optax.lbfgs(linesearch=optax.scale_by_backtracking_linesearch(30, store_grad=True))

    @jax.jit
    def step(t: Any, state: Any) -> Any:
        value, gradient = optax.value_and_grad_from_state(fun)(t, state=state)
        moves, state = solver.update(gradient, state, t, value=value, grad=gradient, value_fn=fun)
        return optax.apply_updates(t, moves), state

    t = jnp.zeros(3)
    state = solver.init(t)
    for _ in range(12):
        t, state = step(t, state)
    np.testing.assert_allclose(t, right, rtol=1e-8)
