"""Settings that jax and torch keep by thread, around a reduction: do they show in the bits, or are they refused?"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import dask.array as da
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from dask.base import compute as dask_compute
from torch.utils.checkpoint import checkpoint

import dagad

compute: Any = dask_compute  # Dask has few types
ROWS = np.random.default_rng(0).normal(size=(40, 3)).astype("f4")
T = np.array([0.1, 0.2, 0.3], "f4")
Around = Callable[[], AbstractContextManager[Any]]


def product(rows: Any, t: Any) -> Any:
    return torch.sum(torch.tanh(rows @ t)).double()


def low(rows: Any, t: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return product(rows, t)


def loss(fun: Any, scheduler: Any = "sync", engine: str = "torch") -> Any:
    return lambda t: dagad.reduce_sum(fun, ROWS, t, grainsize=11, engine=engine, scheduler=scheduler)


def bits(found: Any) -> list[bytes]:
    return [np.asarray(part).tobytes() for part in found]


def test_autocast_around_a_reduction_is_refused_on_every_scheduler(scheduler: Any) -> None:
    """It would count in the calling thread, and nowhere else."""
    x = da.from_array(ROWS, chunks=11)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for wrong in (
            lambda: loss(product, scheduler)(T),
            lambda: dagad.value_and_grad(loss(product, scheduler))(T),
            lambda: dagad.gradient(da.sum(x.map_blocks(torch.tanh, dtype="f4")), x, engine="torch"),
        ):
            with pytest.raises(dagad.PlanError, match=r"with torch.autocast..cpu..:` in the chunk function"):
                wrong()
        with torch.autocast("cpu", enabled=False):
            assert loss(product, scheduler)(T) == pytest.approx(3.75566, rel=1e-5)


def test_autocast_in_a_chunk_function_has_the_same_bits_on_every_scheduler(scheduler: Any) -> None:
    found = dagad.value_and_grad(loss(low, scheduler))(T)
    assert bits(found) == bits(dagad.value_and_grad(loss(low))(T))
    assert found[0] != loss(product)(T)


def test_autocast_around_a_pullback_or_a_graph_that_runs_does_not_show_in_the_bits() -> None:
    x = da.from_array(ROWS, chunks=11)
    y = da.sum(x.map_blocks(lambda rows: torch.tanh(rows @ rows.T), chunks=(11, 11), dtype="f4"))
    _, pull = dagad.vjp(loss(product), T)
    graph = dagad.value_and_gradient(y, x, engine="torch")
    apart = bits(pull(1.0)), bits(compute(*graph, scheduler="sync"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (bits(pull(1.0)), bits(compute(*graph, scheduler="sync"))) == apart
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("around", [nullcontext, torch.autograd.graph.save_on_cpu])
def test_hooks_for_what_torch_saves_are_refused_with_the_remedy(around: Around) -> None:
    def kept(rows: Any, t: Any) -> Any:
        return checkpoint(product, rows, t, use_reentrant=False)

    with around(), pytest.raises(dagad.NotDifferentiableError, match=r"`torch.utils.checkpoint`.*Recompute\(\)`"):
        dagad.grad(loss(kept if around is nullcontext else product))(T)


def drawn(rows: Any, t: Any) -> Any:
    return jnp.sum(rows @ t * jax.random.normal(jax.random.key(3)))


AROUND: list[Around] = [
    lambda: jax.default_prng_impl("rbg"),
    lambda: jax.numpy_dtype_promotion("strict"),
    lambda: jax.default_matmul_precision("highest"),
    lambda: jax.enable_x64(False),
]


@pytest.mark.parametrize("around", AROUND)
def test_settings_of_jax_around_a_reduction_show_neither_in_the_bits_nor_in_errors(around: Around) -> None:
    def found(where: Around, number: float) -> list[bytes]:
        def another(rows: Any, t: Any) -> Any:  # to jax, as it holds another number
            return drawn(rows, t) + 0.0 * number

        with where():
            value_and_gradient = dagad.value_and_grad(loss(another, engine="jax"))(T)
            return bits([*value_and_gradient, dagad.jacrev(loss(another, engine="jax"))(T)])

    number = float(AROUND.index(around))
    assert found(around, number + 0.5) == found(nullcontext, number)


def test_a_jax_without_its_compiler_is_refused_with_the_remedy(scheduler: Any) -> None:
    with (
        jax.disable_jit(),
        pytest.raises(dagad.PlanError, match=r"with jax.disable_jit.False.:`, and print by `jax.debug.print`"),
    ):
        loss(drawn, scheduler, "jax")(T)
