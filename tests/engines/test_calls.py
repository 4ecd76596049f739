"""Functions of jax inside tasks of Dask graphs: are they compiled once, whatever Dask puts around them?"""

from __future__ import annotations

import functools
from typing import Any

import autograd.numpy as anp
import dask.array as da
import jax
import jax.numpy as jnp
import numpy as onp
import pytest
import torch
from dask.base import compute as dask_compute
from dask.config import set as dask_set
from dask.delayed import delayed
from jax.numpy import add, exp

import dagad
from dagad._engines.jax import JaxEngine
from dagad.extend import Keep, Preaccumulate, Recompute


def compiled_here() -> int:
    return JaxEngine().n_compiled


def compute(where: Any, *collections: Any) -> Any:
    if isinstance(where, str):
        return dask_compute(*collections, scheduler=where)
    return where.compute(list(collections), sync=True)


def load(number: int) -> Any:
    return onp.sort(onp.random.default_rng(number).random(5))  # not jax's, and nothing that is differentiated


def wave(rows: Any, t: Any) -> Any:
    return jnp.sum(jnp.sin(rows * t))


def test_delayed_tasks_are_compiled_once_for_all(scheduler: Any, cluster: Any) -> None:
    def own(rows: Any, t: Any) -> Any:
        return wave(rows, t)

    def gradient(engine: Any, fun: Any) -> Any:
        t = delayed(float)(0.7)
        y = delayed(sum)([delayed(fun)(delayed(load)(number), t) for number in range(20)])
        return compute(scheduler, *dagad.value_and_gradient(y, t, engine=engine))

    here, there = compiled_here(), cluster.run(compiled_here)
    value, slope = gradient("jax", own)
    right = gradient(None, lambda rows, t: anp.sum(anp.sin(rows * t)))
    assert (value, slope) == pytest.approx(right, rel=1e-12)
    assert tuple(gradient("jax", own)) == (value, slope)
    assert compiled_here() - here <= 2  # the function and its pullback
    assert all(count - there[worker] <= 2 for worker, count in cluster.run(compiled_here).items())


@pytest.mark.parametrize("policy", [Keep(), Recompute(), Preaccumulate()])
def test_a_task_of_the_jax_engine_gives_the_same_bits_on_every_scheduler(policy: Any, scheduler: Any) -> None:
    def gradient(where: Any) -> Any:
        x = delayed(load)(3)
        y = delayed(wave)(delayed(functools.partial(jnp.multiply, 2.0))(x), 0.3)
        return compute(where, dagad.gradient(y, x, engine="jax", policy=policy))[0].tolist()

    assert gradient(scheduler) == gradient("sync")
    assert gradient("sync") == pytest.approx(0.6 * onp.cos(0.6 * load(3)), rel=1e-12)


X = onp.concatenate([load(number) for number in range(4)])
META = onp.empty(0)  # or Dask calls a function to find out what it gives, in float32
BLOCKS = da.concatenate([da.from_delayed(delayed(load)(number), (5,), dtype=float) for number in range(4)])


def numpys(block: Any) -> Any:
    return onp.sort(block) * 2.0


def cubes(block: Any, np: Any, block_info: Any = None) -> Any:
    assert block_info[0]["num-chunks"] == (4,)
    return block**3 * np.ones(())


def joined(block: Any, np: Any) -> Any:
    return block * np.roll(block, 1)


ENGINES = {"jax": jnp, "torch": torch}
ARRAYS: dict[str, tuple[Any, Any]] = {
    "a ufunc before and a sum behind": (lambda np, x: (da.sin(x).map_blocks(np.exp, meta=META) * x).sum(), 2),
    "the number of the block": (lambda np, x: x.map_blocks(functools.partial(cubes, np=np), meta=META).sum(), 8),
    "overlapping": (
        lambda np, x: da.map_overlap(
            functools.partial(joined, np=np), x, depth=1, boundary="periodic", meta=META
        ).mean(),
        2,
    ),
    "by rows": (
        lambda np, x: da.apply_gufunc(
            lambda a: np.sum(a**2, -1), "(i)->()", x.reshape(4, 5), meta=META, allow_rechunk=True
        ).sum(),
        2,
    ),
}
RIGHT: dict[str, Any] = {
    "a ufunc before and a sum behind": anp.exp(anp.sin(X)) * (1.0 + X * anp.cos(X)),
    "the number of the block": 3.0 * X**2,
    "overlapping": onp.array([X[(i - 1) % 20] * (i % 5 >= 0) + X[(i + 1) % 20] for i in range(20)]) / 20,
    "by rows": 2.0 * X,
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ARRAYS)
def test_a_function_of_blocks_is_compiled_without_what_dask_puts_around_it(
    name: str, engine: str, scheduler: Any
) -> None:
    build, n_compiled = ARRAYS[name]
    before = compiled_here()
    found = compute(scheduler, dagad.gradient(build(ENGINES[engine], BLOCKS), BLOCKS, engine=engine))[0]
    onp.testing.assert_allclose(found, RIGHT[name], rtol=1e-12)
    assert compiled_here() - before <= n_compiled


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_of_another_engine_may_hold_arrays_as_arguments(engine: str, scheduler: Any) -> None:
    def own(data: Any, t: Any) -> Any:
        return np.sum(np.sin(data["x"] * t))

    np, t, before = ENGINES[engine], delayed(float)(0.7), compiled_here()
    y = delayed(sum)([delayed(own)({"x": load(number)}, t) for number in range(4)])
    assert compute(scheduler, dagad.gradient(y, t, engine=engine))[0] == pytest.approx(
        onp.sum(X * onp.cos(0.7 * X)), rel=1e-12
    )
    assert compiled_here() - before <= 2


def test_a_task_of_the_jax_engine_may_call_numpy_on_constants_and_on_what_is_differentiated() -> None:
    t = da.from_array(onp.array([0.3]), chunks=1)
    base = da.blockwise(numpys, "i", BLOCKS, "i", dtype=float)
    y = da.blockwise(lambda rows, t: jnp.sin(rows * t), "i", base, "i", t, "j", meta=META, concatenate=True).sum()
    found = compute("sync", dagad.gradient(y, t, engine="jax"))[0]
    assert found == pytest.approx(onp.sum(2 * X * onp.cos(0.6 * X)), rel=1e-12)
    tangent_out = base.map_blocks(numpys, dtype=float).sum()
    assert compute("sync", dagad.gradient(tangent_out, base, engine="jax"))[0].tolist() == [2.0] * len(X)


def test_second_derivatives_and_tangents_of_a_jax_task_are_right() -> None:
    x = delayed(load)(1)
    slope = dagad.gradient(delayed(wave)(x, 0.5), x, engine="jax")
    y = delayed(jnp.sum)(slope)
    found = compute("threads", dagad.gradient(y, x, engine="jax"))[0]
    onp.testing.assert_allclose(found, -0.25 * onp.sin(0.5 * load(1)), rtol=1e-12)
    with dask_set({"dagad.engine": "jax"}):
        value, tangent_out = compute("sync", *dagad.jvp(delayed(wave)(x, 0.5), x, onp.ones(5)))
    assert value == pytest.approx(onp.sum(onp.sin(0.5 * load(1))), rel=1e-12)
    assert tangent_out == pytest.approx(0.5 * onp.sum(onp.cos(0.5 * load(1))), rel=1e-12)


def test_arrays_of_jaxs_own_are_refused_with_the_remedy() -> None:
    x = delayed(load)(1)
    y = delayed(wave)(x, delayed(jnp.ones)(5))
    with pytest.raises(dagad.StructureError, match=r"task was given .* Give it numpy's, `np.asarray\(array\)`"):
        compute("sync", dagad.gradient(y, x, engine="jax"))


@jax.jit
def jitted(x: Any) -> Any:
    return 2.0 * x


@jax.custom_jvp
def with_rule(x: Any) -> Any:
    return jnp.sin(x)


with_rule.defjvp(lambda x, dx: (with_rule(x[0]), jnp.cos(x[0]) * dx[0]))
many_jitted = jax.vmap(jitted)


def test_functions_that_jax_made_do_not_have_others_compiled_again(cluster: Any) -> None:
    def own(rows: Any, t: Any) -> Any:
        return jnp.sum(exp(add(rows, t)) + many_jitted(rows) * jitted(t) + with_rule(t) + jax.nn.relu(rows))

    def run(where: Any) -> Any:
        return dagad.value_and_grad(lambda t: dagad.reduce_sum(own, X, t, grainsize=5, engine="jax", scheduler=where))(
            0.3
        )

    before, first, there = compiled_here(), run("sync"), cluster.run(compiled_here)
    assert [run("sync"), *(run(cluster) for _ in range(3))] == [first] * 4
    assert compiled_here() - before == 1
    assert all(count - there[worker] <= 1 for worker, count in cluster.run(compiled_here).items())
    assert first[1] == pytest.approx(onp.sum(onp.exp(X + 0.3) + 4.0 * X + onp.cos(0.3)), rel=1e-12)
