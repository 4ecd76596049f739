"""The torch engine: is every mode right, to the same bits everywhere, and is torch left as it was?"""

from __future__ import annotations

import math
import sys
import threading
from functools import partial
from itertools import product
from typing import Any

import autograd.numpy as anp
import numpy as onp
import pytest
import torch
from dask.base import compute as dask_compute
from dask.config import set as dask_set
from dask.delayed import delayed
from torch.nn.utils import stateless

import dagad
from dagad._engines.torch import TorchEngine, _Derived as Derived
from dagad.extend import Composed, Recompute
from dagad.testing import check_grads, taylor_rate
from support.every_mode import MODES, check, derivatives, numbers
from support.every_operation import OPERATIONS, RIGHT
from support.torch_functions import ROWS, Cubed, wave

compute: Any = dask_compute  # Dask has few types


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_the_torch_engine_agrees_with_plain_autograd(mode: str, name: str) -> None:
    loss = partial(OPERATIONS[name][0], torch, engine="torch", scheduler="sync")
    check(mode, loss, RIGHT[name], tolerance=1e-12)


@pytest.mark.parametrize("name", ["of rows", "of a tree", "map_rect"])
@pytest.mark.parametrize("mode", ["value_and_grad", "jvp", "hvp", "hessian"])
def test_every_mode_of_the_torch_engine_has_the_same_bits_on_every_scheduler(
    mode: str, name: str, scheduler: Any
) -> None:
    def found(where: Any) -> list[float]:
        return numbers(MODES[mode][0](partial(OPERATIONS[name][0], torch, engine="torch", scheduler=where)))

    assert found(scheduler) == found("sync")


def large(rows: Any, beta: Any) -> Any:
    """Products and sums that torch cuts into one part a thread, and rounds by where their numbers lie."""
    return torch.sum(torch.logsumexp(rows @ beta.T, 1)) + torch.sum(rows * rows) + torch.sum(torch.sin(rows @ beta[0]))


def test_the_torch_engine_has_the_same_bits_with_any_threads_and_memory_alignment(scheduler: Any) -> None:
    data = onp.random.default_rng(0).normal(size=(9_999, 33))  # every other chunk begins 8 bytes beside 16
    beta = onp.random.default_rng(1).normal(size=(4, 33))

    results = []

    def found(where: Any, rows: Any = data) -> Any:
        how = {"scheduler": where, "grainsize": 3_333} if rows is data else {}
        loss: Any = partial(dagad.reduce_sum, large, rows, engine="torch", **how)
        value, slope = dagad.value_and_grad(loss)(beta)
        return value, slope.tobytes(), loss(beta)

    n_threads = torch.get_num_threads()
    try:
        for other in (1, 2, 3):
            torch.set_num_threads(other)
            results.append(found(scheduler))
    finally:
        torch.set_num_threads(n_threads)
    assert results == [found("sync")] * 3
    sharded = dagad.shard(data, grainsize=3_333, scheduler="sync")
    assert found("sync", sharded) == results[0]


def test_torch_is_left_as_it_was() -> None:
    inside, after = list[Any](), list[Any]()

    def states(rows: Any, t: Any) -> Any:
        inside.append((torch.get_num_threads(), torch.is_inference_mode_enabled(), torch.ones(1).device.type))
        assert rows.dtype == t.dtype == torch.float64
        return torch.sum(rows * t)

    def run() -> None:
        n_threads = torch.get_num_threads()
        with torch.inference_mode(), torch.device("meta"):
            dagad.grad(lambda t: dagad.reduce_sum(states, ROWS, t, grainsize=6, engine="torch", scheduler="sync"))(0.7)
            assert torch.is_inference_mode_enabled()
            assert torch.ones(1).device.type == "meta"
        after.append(torch.get_num_threads() == n_threads)

    n_threads = torch.get_num_threads()
    torch.set_num_threads(n_threads + 3)  # for this thread, and those that start from now on
    try:
        run()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert torch.get_num_threads() == n_threads + 3
    finally:
        torch.set_num_threads(n_threads)
    assert set(inside) == {(1, False, "cpu")}
    assert after == [True, True]
    assert torch.get_default_dtype() == torch.float32
    with pytest.raises(ZeroDivisionError):
        dagad.reduce_sum(lambda rows: torch.sum(rows) / (1 // 0), ROWS, engine="torch", scheduler="sync")
    assert torch.get_num_threads() == n_threads


def test_derivatives_of_the_torch_engine_agree_with_differences(scheduler: Any) -> None:
    data = onp.random.default_rng(3).normal(size=(40, 3))

    def loss(beta: Any) -> Any:
        return dagad.reduce_sum(large, data, beta, grainsize=16, engine="torch", scheduler=scheduler)

    check_grads(loss, onp.ones((2, 3)), order=2)
    assert taylor_rate(loss, onp.ones((2, 3))) == pytest.approx(2.0, abs=0.05)


def test_complex_numbers_have_the_derivatives_that_autograd_gives() -> None:
    def plain(rows: Any, z: Any) -> Any:
        return anp.sum(anp.exp(rows * z) * anp.conj(z) ** 2)

    def at(fun: Any, **how: Any) -> Any:
        def loss(z: Any) -> Any:
            total = dagad.reduce_sum(fun, ROWS, z, grainsize=6, scheduler="sync", **how)
            return anp.real(total) ** 2 + 3.0 * anp.imag(total)

        z, dz = 0.3 - 0.4j, 0.2 + 0.7j
        return onp.array([dagad.grad(loss)(z), *dagad.jvp(loss, (z,), (dz,)), dagad.hvp(loss, z, dz)])

    onp.testing.assert_allclose(at(wave, engine="torch"), at(plain), rtol=1e-12)


def cubes(rows: Any, t: Any) -> Any:
    return torch.sum(Cubed.apply(rows * t))  # type: ignore[no-untyped-call]  # torch's own


def test_users_own_rules_work_in_every_mode() -> None:
    loss = partial(dagad.reduce_sum, cubes, ROWS, grainsize=6, engine="torch", scheduler="sync")
    for mode in MODES:
        check(mode, loss, derivatives(lambda t: anp.sum((ROWS * t) ** 3)), tolerance=1e-12)
    jacobian = dagad.jacfwd(lambda t: loss(t[0] * t[1]))(onp.array([0.7, 2.0]))
    onp.testing.assert_allclose(jacobian, 3 * onp.sum(ROWS**3) * 1.4**2 * onp.array([2.0, 0.7]), rtol=1e-12)


class Scaled(Cubed):
    """A rule that can't be pulled for many at once: it asks for a number."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        (x,) = ctx.saved_tensors
        scale = float(abs(cotangents[0]).max()) or 1.0
        return scale * (cotangents[0] / scale * 3.0 * x**2)


def test_a_rule_that_refuses_many_cotangents_gets_one_after_the_other() -> None:
    def powers(rows: Any, t: Any) -> Any:
        return torch.sum(Scaled.apply(torch.outer(t, rows)), 1)  # type: ignore[no-untyped-call]  # torch's own

    at = onp.linspace(0.5, 1.5, 11)
    found = dagad.jacrev(lambda t: dagad.reduce_sum(powers, ROWS, t, grainsize=6, engine="torch", scheduler="sync"))(at)
    onp.testing.assert_allclose(found, onp.diag(3 * at**2 * onp.sum(ROWS**3)), rtol=1e-12)


def test_rows_of_a_jacobian_are_pulled_in_blocks(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def powers(rows: Any, t: Any) -> Any:
        numbers = torch.arange(1.0, 22.0, dtype=torch.float64)
        return torch.sum(torch.cos(torch.outer(numbers, rows) * t[0]) * t[1], 1)

    def jacobian(where: Any, **how: Any) -> Any:
        shards = dagad.shard(ROWS, grainsize=6, scheduler=where)
        return dagad.jacrev(lambda t: dagad.reduce_sum(powers, shards, t, engine="torch", **how))(onp.array([0.7, 2.0]))

    blocks, pull_block = [], Derived.pull_block

    def counted(*args: Any) -> Any:
        found = pull_block(*args)
        blocks.append(found is not None)
        return found

    monkeypatch.setattr(Derived, "pull_block", counted)
    here = jacobian("sync")
    assert blocks == [True] * (4 * 3)  # blocks of 8 in each chunk
    outer = onp.outer(onp.arange(1.0, 22.0), ROWS)
    right = [onp.sum(-onp.sin(0.7 * outer) * outer * 2.0, axis=1), onp.sum(onp.cos(0.7 * outer), axis=1)]
    onp.testing.assert_allclose(here, onp.transpose(right), rtol=1e-12, atol=1e-12)
    for how in ({}, {"policy": Recompute()}):
        assert jacobian(scheduler, **how).tolist() == here.tolist()


def test_modules_of_torch_travel_in_closures(scheduler: Any) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh()).double()
    weights = {name: part.detach().numpy().copy() for name, part in layer.named_parameters()}

    def energy(rows: Any, own: Any) -> Any:
        return torch.sum(torch.func.functional_call(layer, own, (rows,)) ** 2)

    def plain(own: Any) -> Any:
        return anp.sum(anp.tanh(ROWS.reshape(12, 2) @ own["0.weight"].T + own["0.bias"]) ** 2)

    def loss(own: Any) -> Any:
        return dagad.reduce_sum(energy, ROWS.reshape(12, 2), own, grainsize=4, engine="torch", scheduler=scheduler)

    found, right = dagad.grad(loss)(weights), dagad.grad(plain)(weights)
    for name in weights:
        onp.testing.assert_allclose(found[name], right[name], rtol=1e-12)


class Slow(torch.nn.Module):
    """Waits, for other threads to lend it other weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, rows: Any) -> Any:
        lent = self.weight
        threading.Event().wait(0.005)
        assert self.weight is lent
        return torch.sum(rows * lent)


def test_threads_do_not_lend_a_module_each_others_weights() -> None:
    module, lend = Slow(), stateless._reparametrize_module

    def energy(rows: Any, t: Any) -> Any:
        return torch.func.functional_call(module, {"weight": t * torch.mean(rows)}, (rows,))

    def loss(t: Any, where: Any) -> Any:
        return dagad.reduce_sum(energy, ROWS, t, grainsize=2, engine="torch", scheduler=where)

    with dask_set(num_workers=4):
        assert dagad.grad(loss)(0.7, "threads") == dagad.grad(loss)(0.7, "sync")
    assert stateless._reparametrize_module is lend
    assert module.weight == 0.0


def test_tasks_of_a_graph_have_derivatives_by_torch(cluster: Any) -> None:
    def energy(x: Any, scale: float) -> Any:
        return torch.sum(torch.sin(x * scale) ** 2)

    at = onp.array([0.3, -0.2])
    x = delayed(at)
    y = delayed(energy)(x, 2.0)
    value, slope = dagad.value_and_gradient(y, x, engine="torch")
    curvature = dagad.gradient(delayed(torch.sum)(dagad.gradient(y, x, engine="torch")), x, engine="torch")
    with dask_set({"dagad.engine": "torch"}):
        tangent_out, tangent = dagad.jvp(y, x, onp.array([1.0, 0.0]))
    for where in ("sync", cluster):
        found = compute(value, slope, curvature, tangent_out, tangent, scheduler=where)
        assert found[0] == found[3] == pytest.approx(onp.sum(onp.sin(2 * at) ** 2), rel=1e-14)
        onp.testing.assert_allclose(found[1], 2 * onp.sin(4 * at), rtol=1e-12)
        onp.testing.assert_allclose(found[2], 8 * onp.cos(4 * at), rtol=1e-12)
        assert found[4] == pytest.approx(2 * onp.sin(1.2), rel=1e-12)


def test_shards_are_copied_once_and_rows_that_somebody_writes_into_are_read_again(
    monkeypatch: pytest.MonkeyPatch, cluster: Any
) -> None:
    def total(rows: Any, t: Any) -> Any:
        return torch.sum(rows * t)

    sharded, make = [], torch.tensor

    def counted(array: Any, **options: Any) -> Any:
        sharded.extend([array.shape] if array.shape else [])
        return make(array, **options)

    monkeypatch.setattr(torch, "tensor", counted)
    shards: Any = dagad.shard(ROWS, grainsize=6, scheduler="threads")
    for number in range(5):
        slope = dagad.grad(lambda t: dagad.reduce_sum(total, shards, t, engine="torch"))(float(number))
    assert sharded == [(6,)] * 4
    data = ROWS.copy()
    for number in range(3):
        data[:] = number
        found = dagad.reduce_sum(total, data, 1.0, grainsize=6, engine="torch", scheduler="sync")
        assert found == 24.0 * number
    remote = dagad.shard(ROWS, grainsize=6, scheduler=cluster)
    for _ in range(3):
        assert dagad.grad(lambda t: dagad.reduce_sum(total, remote, t, engine="torch"))(0.7) == slope


def test_tensors_of_the_torch_engine_have_the_dtypes_of_numpy_and_are_contiguous() -> None:
    rows = {
        "single": ROWS.astype(onp.float32),
        "swapped": ROWS.astype(">f8"),
        "backwards": ROWS[::-1],
        "counts": onp.arange(24),
        "columns": onp.asfortranarray(ROWS.reshape(8, 3).repeat(3, 0)),
        "word": onp.array(["a"] * 24),
    }

    def own(rows: Any, t: Any, n: int, words: Any) -> Any:
        assert [rows[name].dtype for name in ("single", "swapped", "counts")] == [
            torch.float32,
            torch.float64,
            torch.int64,
        ]
        assert all(part.is_contiguous() for name, part in rows.items() if name != "word")
        assert rows["word"][0] == words["a"] == "a"
        assert type(n) is int
        return {"sum": t * torch.sum(rows["swapped"] + n * rows["backwards"]), "single": torch.sum(rows["single"])}

    def total(t: Any) -> Any:
        return dagad.reduce_sum(own, rows, t, 2, {"a": "a"}, grainsize=6, engine="torch", scheduler="sync")

    found = total(0.5)
    assert found["single"].dtype == onp.float32
    assert found["sum"] == pytest.approx(1.5 * ROWS.sum(), rel=1e-14)
    assert dagad.grad(lambda t: total(t)["sum"])(0.5) == pytest.approx(3 * ROWS.sum(), rel=1e-14)


def test_a_pullback_tells_what_memory_it_holds() -> None:
    engine, at = TorchEngine(), onp.ones(1000)

    def run(leaves: Any) -> list[Any]:
        return [torch.sum(torch.sin(torch.exp(leaves[0])))]

    fun = Composed(run, run)
    _, pull = engine.linearize(fun, [at])
    assert pull.nbytes() == at.nbytes  # what `exp` gave is what `sin` was given
    onp.testing.assert_allclose(pull([2.0])[0], 2.0 * onp.cos(math.e) * math.e, rtol=1e-15)
    onp.testing.assert_allclose(pull([3.0])[0], 3.0 * onp.cos(math.e) * math.e, rtol=1e-15)


def test_a_missing_torch_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dagad._engines.torch")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(dagad.PlanError, match=r'pip install "dagad\[torch\]"'):
        dagad.reduce_sum(large, ROWS, 0.7, engine="torch", scheduler="sync")


def test_a_missing_gpu_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(dagad.PlanError, match=r'torch sees none here.*or write `engine="torch"`'):
        dagad.reduce_sum(large, ROWS, 0.7, engine="torch:cuda", scheduler="sync")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch sees")
def test_a_gpu_gives_the_same_numbers_in_every_mode() -> None:
    for name, mode in product(OPERATIONS, MODES):
        loss = partial(OPERATIONS[name][0], torch, engine="torch:cuda", scheduler="threads")
        check(mode, loss, RIGHT[name], tolerance=1e-10)
