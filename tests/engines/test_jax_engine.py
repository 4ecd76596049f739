"""The jax engine: every mode, the same bits everywhere, few compilations, float64, and no stale function."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from functools import partial
from itertools import pairwise
from operator import attrgetter
from types import ModuleType
from typing import Any

import autograd.numpy as anp
import jax
import jax.numpy as jnp
import numpy as onp
import pytest
from dask.delayed import delayed

import dagad
from dagad._engines import jax_constants, jax_settings
from dagad._engines.jax import _COMPILED, JaxEngine, _Compiled as Compiled
from dagad._executors import resident
from dagad._values import shipping
from dagad.extend import Recompute
from support.evaluations_seen import evaluations_seen
from support.every_mode import MODES, check, derivatives, numbers
from support.every_operation import OPERATIONS, RIGHT

ENGINE = JaxEngine()


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_the_jax_engine_agrees_with_plain_autograd(mode: str, name: str) -> None:
    loss = partial(OPERATIONS[name][0], jnp, engine="jax", scheduler="sync")
    check(mode, loss, RIGHT[name], tolerance=1e-12)


@pytest.mark.parametrize("name", ["of a tree", "map_rect"])
@pytest.mark.parametrize("mode", ["value_and_grad", "jvp", "hvp", "hessian"])
def test_every_mode_of_the_jax_engine_has_the_same_bits_on_every_scheduler(
    mode: str, name: str, scheduler: Any
) -> None:
    def found(where: Any) -> list[float]:
        return numbers(MODES[mode][0](partial(OPERATIONS[name][0], jnp, engine="jax", scheduler=where)))

    assert found(scheduler) == found("sync")


ROWS = onp.linspace(0.1, 2.0, 24)


def wave(rows: Any, t: Any) -> Any:
    return jnp.sum(jnp.sin(rows * t))


def compiled_here() -> int:
    return ENGINE.n_compiled


def test_a_chunk_is_compiled_once_for_all_chunks_and_evaluations() -> None:
    def own(rows: Any, t: Any) -> Any:
        return jnp.sum(jnp.cos(rows * t))

    before = compiled_here()
    for scheduler in ("sync", "threads"):
        for number in range(500):
            dagad.value_and_grad(
                lambda t, where=scheduler: dagad.reduce_sum(own, ROWS, t, grainsize=6, engine="jax", scheduler=where)
            )(0.1 * number)
    assert compiled_here() - before == 1


def test_each_worker_compiles_a_jax_chunk_function_once(cluster: Any) -> None:
    def own(rows: Any, t: Any) -> Any:
        return jnp.sum(jnp.tan(rows * t))

    shards = dagad.shard(ROWS, grainsize=3, scheduler=cluster)
    before = cluster.run(compiled_here)
    for number in range(100):
        # Written anew each time, as in a notebook's cell.
        value, slope = dagad.value_and_grad(lambda t: dagad.reduce_sum(own, shards, t, engine="jax"))(1e-3 * number)
    assert value == pytest.approx(onp.sum(onp.tan(ROWS * 0.099)), rel=1e-12)
    assert slope == pytest.approx(onp.sum(ROWS / onp.cos(ROWS * 0.099) ** 2), rel=1e-12)
    after = cluster.run(compiled_here)
    assert [after[worker] - before[worker] for worker in after] == [1, 1]


def compiled_for() -> list[tuple[Any, ...]]:
    """What was compiled in this process, and for what rows; `compiled_here` counts it."""
    entries: Any = _COMPILED._entries
    return [(key.what, *(one[0] for one in key.sides[0][2])) for key in entries]


@pytest.mark.usefixtures("new_functions")
def test_the_check_for_adding_up_has_jax_compile_for_one_row_and_for_two(cluster: Any) -> None:
    shards = dagad.shard(ROWS, grainsize=3, scheduler=cluster)
    before, counts = cluster.run(compiled_for), cluster.run(compiled_here)

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: jnp.sum(jnp.expm1(rows * t)), shards, t, engine="jax")

    for number in range(30):
        dagad.grad(loss)(1e-3 * number)
    after, more = cluster.run(compiled_for), cluster.run(compiled_here)
    new = [sorted((Counter(after[worker]) - Counter(before[worker])).elements()) for worker in after]
    assert sorted(new) == [[("value", (1,)), ("value", (2,)), ("value_and_grad", (3,))], [("value_and_grad", (3,))]]
    assert [more[worker] - counts[worker] for worker in after] == [len(some) for some in new]

    with pytest.warns(UserWarning, match="does not add up: for rows 0:2"):
        dagad.grad(lambda t: dagad.reduce_sum(lambda rows, t: jnp.mean(rows * t), shards, t, engine="jax"))(0.5)


def test_a_warm_loop_pickles_nothing(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, pack, twice = [], shipping.pack, jax.jit(lambda x: 2.0 * x)

    def counted(parts: Any) -> Any:
        packed.append(parts)
        return pack(parts)

    def own(rows: Any, t: Any) -> Any:
        return jnp.sum(twice(rows) * t)

    monkeypatch.setattr(resident, "pack", counted)
    shards = dagad.shard(ROWS, grainsize=3, scheduler=cluster)
    for reduce in (dagad.reduce_sum, dagad.map_sum):
        for number in range(4):
            slope = dagad.grad(lambda t, reduce=reduce: reduce(own, shards, t, engine="jax"))(float(number))
        assert slope == pytest.approx(2.0 * ROWS.sum(), rel=1e-12)
        assert len(packed) <= 1
        packed.clear()


def test_rows_of_a_jacobian_are_pulled_in_blocks(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def powers(rows: Any, t: Any) -> Any:
        return jnp.sum(jnp.cos(jnp.outer(jnp.arange(1.0, 22.0), rows) * t[0]) * t[1], axis=1)

    def jacobian(where: Any, **how: Any) -> Any:
        shards = dagad.shard(ROWS, grainsize=6, scheduler=where)
        return dagad.jacrev(lambda t: dagad.reduce_sum(powers, shards, t, engine="jax", **how))(onp.array([0.7, 2.0]))

    pulls, pull = [], Compiled.pull

    def counted(*args: Any, **how: Any) -> Any:
        pulls.append(args)
        return pull(*args, **how)

    monkeypatch.setattr(Compiled, "pull", counted)
    here = jacobian("sync")
    assert len(pulls) == 4 * 3  # blocks of 8 in each chunk
    outer = onp.outer(onp.arange(1.0, 22.0), ROWS)
    right = [onp.sum(-onp.sin(0.7 * outer) * outer * 2.0, axis=1), onp.sum(onp.cos(0.7 * outer), axis=1)]
    onp.testing.assert_allclose(here, onp.transpose(right), rtol=1e-12, atol=1e-12)
    for how in ({}, {"policy": Recompute()}):
        assert jacobian(scheduler, **how).tolist() == here.tolist()


def test_a_profile_says_how_often_something_was_compiled(scheduler: Any) -> None:
    def own(rows: Any, t: Any, n: int, where: str) -> Any:
        return jnp.sum(jnp.arctan(rows * t)) * n

    shards = dagad.shard(ROWS, grainsize=3, scheduler=scheduler)
    with evaluations_seen() as seen:
        for n in (2, 2, 3, 3, 3):
            dagad.grad(lambda t, n=n: dagad.reduce_sum(own, shards, t, n, str(scheduler), engine="jax"))(0.5)
    n_workers = 1 if isinstance(scheduler, str) else 2
    counts = [profile.n_compiled for profile in seen.over]
    assert (counts[1], counts[3:]) == (0, [0, 0])
    assert 1 <= counts[0] <= n_workers
    assert 1 <= counts[2] <= n_workers
    assert "compiled" in seen.over[0]._repr_html_()


def test_float64_stays_float64_everywhere_and_the_process_is_left_alone(scheduler: Any) -> None:
    def dtypes(rows: Any, t: Any) -> Any:
        assert rows.dtype == t.dtype == jnp.float64
        return jnp.sum(rows * t) * jnp.ones(1)

    found = dagad.grad(lambda t: dagad.reduce_sum(dtypes, ROWS, t, grainsize=6, engine="jax", scheduler=scheduler)[0])
    assert found(1 / 3) == pytest.approx(ROWS.sum(), rel=1e-15)
    assert jnp.ones(1).dtype == jnp.float32
    assert not jax.config.jax_enable_x64  # type: ignore[attr-defined]  # jax's own


SCALE = 2.0


def scaled(rows: Any, t: Any) -> Any:
    return jnp.sum(SCALE * rows * t)


def test_a_changed_global_or_closure_never_meets_what_was_compiled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    held = onp.ones(2)
    options = {"power": 2}

    def closed(rows: Any, t: Any) -> Any:
        return jnp.sum(rows * t ** options["power"]) * held[0]

    def at(fun: Any) -> float:
        return float(dagad.reduce_sum(fun, ROWS, 3.0, grainsize=6, engine="jax", scheduler="sync"))

    assert at(scaled) == pytest.approx(6.0 * ROWS.sum())
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert at(scaled) == pytest.approx(15.0 * ROWS.sum())
    assert at(closed) == pytest.approx(9.0 * ROWS.sum())
    held[0] = 2.0
    assert at(closed) == pytest.approx(18.0 * ROWS.sum())
    options["power"] = 3
    assert at(closed) == pytest.approx(54.0 * ROWS.sum())


def total_of(fun: Any) -> Any:
    return lambda rows, t: jnp.sum(fun(rows * t))


def test_functions_that_jax_wraps_are_not_taken_for_those_compiled_before() -> None:
    at, t = 0.7 * ROWS, delayed(0.7)
    slopes = {jnp.sin: onp.cos(at), jax.vmap(jax.grad(jnp.sin)): -onp.sin(at), jax.vmap(jax.jit(jnp.cos)): -onp.sin(at)}
    for fun, slope in slopes.items():
        expected = onp.sum(slope * ROWS)
        loss = partial(dagad.reduce_sum, total_of(fun), ROWS, grainsize=8, engine="jax", scheduler="sync")
        assert dagad.grad(loss)(0.7) == pytest.approx(expected, rel=1e-12)
        y = delayed(total_of(fun))(ROWS, t)
        assert dagad.gradient(y, t, engine="jax").compute(scheduler="sync") == pytest.approx(expected, rel=1e-12)


def test_the_jax_engine_compiles_anew_for_other_ints_but_not_for_other_floats() -> None:
    def powers(rows: Any, n: Any, options: Any, t: Any) -> Any:
        total = rows * 0.0
        for _ in range(n):
            total = total + jnp.sin(rows * t)
        return jnp.sum(total) * options["scale"] if options["twice"] is False else 2.0 * jnp.sum(total)

    def at(n: int, scale: float, twice: bool) -> float:
        options = {"scale": scale, "twice": twice, "name": "a name"}
        return float(dagad.reduce_sum(powers, ROWS, n, options, 0.7, grainsize=6, engine="jax", scheduler="sync"))

    right, before = float(onp.sum(onp.sin(ROWS * 0.7))), compiled_here()
    assert [at(3, scale, False) for scale in (1.0, 2.0, 3.0)] == pytest.approx([3 * right, 6 * right, 9 * right])
    assert compiled_here() - before == 1
    assert at(4, 1.0, True) == pytest.approx(8 * right)
    assert compiled_here() - before == 2


def test_the_jax_engine_refuses_branches_with_the_remedy() -> None:
    def branching(rows: Any, t: Any) -> Any:
        return jnp.sum(rows) if t > 0 else 0.0 * t

    with pytest.raises(dagad.NotDifferentiableError, match=r"`if t > 0 else`|asks whether a value is true"):
        dagad.grad(lambda t: dagad.reduce_sum(branching, ROWS, t, grainsize=6, engine="jax", scheduler="sync"))(0.7)


@pytest.mark.parametrize("outside", ["sync", "threads"])
def test_reductions_inside_and_arrays_of_jaxs_own_are_refused_with_the_remedy(outside: str) -> None:
    def nested(rows: Any, t: Any) -> Any:
        return dagad.reduce_sum(wave, rows, t, grainsize=1, engine="jax")

    def total(fun: Any, rows: Any, t: Any) -> Any:
        return dagad.reduce_sum(fun, rows, t, grainsize=6, engine="jax", scheduler=outside)

    with pytest.raises(dagad.NotDifferentiableError, match="Put the reduction around that function"):
        total(nested, ROWS, 0.7)
    with pytest.raises(dagad.NotDifferentiableError, match=r'written with `jax\.numpy`: .*engine="jax"\)`'):
        dagad.grad(lambda t: dagad.reduce_sum(wave, ROWS, t, grainsize=6, scheduler=outside))(0.7)
    with pytest.raises(dagad.StructureError, match=r"Give it numpy's, `np.asarray\(array\)`"):
        total(wave, jnp.asarray(ROWS), 0.7)
    with pytest.raises(dagad.StructureError, match=r"no arrays of the dtype \w+. Convert the data"):
        total(wave, ROWS.astype(onp.longdouble), 0.7)


def test_data_stay_on_the_device_between_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    sharded, put = [], jax.device_put

    def counted(array: Any, **options: Any) -> Any:
        sharded.append(array.shape)
        return put(array, **options)

    monkeypatch.setattr(jax, "device_put", counted)
    shards: Any = dagad.shard(ROWS, grainsize=6, scheduler="threads")
    for number in range(5):
        dagad.grad(lambda t: dagad.reduce_sum(wave, shards, t, engine="jax"))(float(number))
    assert sharded == [(6,)] * 4

    def both(rows: Any, t: Any) -> Any:
        own, data = rows
        return jnp.sum(jnp.sin(own * data * t))

    for number in range(5):  # next to rows that are differentiated
        dagad.grad(lambda own: dagad.reduce_sum(both, (own, shards), 0.7, engine="jax"))(ROWS * number)
    assert sharded == [(6,)] * 4
    gc.collect()  # of what other tests have left
    before = len(jax_constants._ON_DEVICE)
    shards = None
    gc.collect()
    assert len(jax_constants._ON_DEVICE) == before - 4


def test_rows_that_somebody_writes_into_are_read_again() -> None:
    data = ROWS.copy()
    for number in range(3):
        data[:] = number
        found = dagad.reduce_sum(wave, data, 1.0, grainsize=6, engine="jax", scheduler="sync")
        assert found == pytest.approx(24 * onp.sin(number))


HELPED = ModuleType("helped")
exec("import jax.numpy as jnp\nFACTOR = 2.0\ndef helper(x):\n    return jnp.sum(x) * FACTOR", HELPED.__dict__)


HIDDEN = 2.0


@pytest.mark.parametrize(
    "factor",
    [lambda: attrgetter("FACTOR")(HELPED), lambda: vars(HELPED)["FACTOR"], lambda: globals()["HIDDEN"]],
)
def test_a_changed_value_that_a_jax_function_finds_by_name_is_compiled_anew(
    factor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(rows: Any, t: Any) -> Any:
        return jnp.sum(rows) * factor() * t

    def at() -> float:
        return float(dagad.reduce_sum(found, ROWS, 1.0, grainsize=6, engine="jax", scheduler="sync"))

    assert at() == pytest.approx(2.0 * ROWS.sum())
    monkeypatch.setattr(HELPED, "FACTOR", 3.0)
    monkeypatch.setitem(globals(), "HIDDEN", 3.0)
    assert at() == pytest.approx(3.0 * ROWS.sum())


def with_module(rows: Any, t: Any) -> Any:
    return HELPED.helper(rows) * HELPED.FACTOR * t


def test_a_changed_attribute_of_a_module_that_a_jax_function_reads_is_compiled_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "helped", HELPED)

    def at() -> float:
        return float(dagad.reduce_sum(with_module, ROWS, 1.0, grainsize=6, engine="jax", scheduler="sync"))

    assert at() == at() == pytest.approx(4.0 * ROWS.sum())
    monkeypatch.setattr(HELPED, "FACTOR", 3.0)
    assert at() == pytest.approx(9.0 * ROWS.sum())


def test_a_missing_jax_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dagad._engines.jax")
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(dagad.PlanError, match=r'pip install "dagad\[jax\]"'):
        dagad.reduce_sum(wave, ROWS, 0.7, engine="jax", scheduler="sync")


LENGTHS = onp.random.default_rng(7).permutation(onp.arange(3, 53))
BOUNDS = onp.cumsum([0, *LENGTHS])
MANY = onp.linspace(0.1, 2.0, BOUNDS[-1])
RAGGED = [MANY[start:stop] for start, stop in pairwise(BOUNDS)]


def test_rows_of_fifty_lengths_are_a_few_compilations() -> None:
    def own(rows: Any, t: Any) -> Any:
        return {"sum": jnp.sum(jnp.sinh(rows * t)), "n": len(rows)}

    def total(t: Any) -> Any:
        parts = [dagad.reduce_sum(own, x, t, grainsize=60, engine="jax", scheduler="sync") for x in RAGGED]
        return sum(part["sum"] for part in parts) / sum(part["n"] for part in parts)

    before = compiled_here()
    value, slope = dagad.value_and_grad(total)(0.7)
    assert compiled_here() - before <= 6
    assert value == pytest.approx(onp.mean(onp.sinh(MANY * 0.7)), rel=1e-12)
    assert slope == pytest.approx(onp.mean(MANY * onp.cosh(MANY * 0.7)), rel=1e-12)


@pytest.mark.parametrize("mode", ["value_and_grad", "hessian"])
def test_pieces_of_chunks_have_derivatives_of_any_order_in_rows_too(mode: str, scheduler: Any) -> None:
    def own(rows: Any, t: Any) -> Any:
        data, items = rows
        return jnp.sum(jnp.sin(data * t)) + sum(jnp.sum(item) ** 2 for item in items)

    def loss(t: Any) -> Any:
        items = [t * x[:2] for x in RAGGED[:37]]
        return dagad.reduce_sum(own, (MANY[:37] * t, items), t, grainsize=20, engine="jax", scheduler=scheduler)

    right = derivatives(
        lambda t: anp.sum(anp.sin(MANY[:37] * t * t)) + sum(anp.sum(t * x[:2]) ** 2 for x in RAGGED[:37])
    )
    check(mode, loss, right, tolerance=1e-11)


def test_items_are_compiled_once_for_each_shape(cluster: Any) -> None:
    items = [MANY[:3] * k for k in range(40)] + [MANY[:4] * k for k in range(40)]

    def own(item: Any, t: Any) -> Any:
        return jnp.sum(jnp.cosh(item * t))

    before = compiled_here()
    found = dagad.grad(lambda t: dagad.map_sum(own, items, t, grainsize=16, engine="jax", scheduler="threads"))(0.01)
    assert compiled_here() - before == 2
    assert found == pytest.approx(sum(onp.sum(x * onp.sinh(x * 0.01)) for x in items), rel=1e-12)
    again = dagad.grad(lambda t: dagad.map_sum(own, items, t, grainsize=16, engine="jax", scheduler=cluster))(0.01)
    assert again == found


def test_an_option_that_a_release_of_jax_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_settings, "OPTIONS", jax_settings.OPTIONS | {"xla_of_a_release": 1, "xla_of_another": True})

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(
            lambda rows, t: onp.sum(rows * t**2), onp.arange(7.0), t, engine="jax", scheduler="sync"
        )

    assert dagad.grad(loss)(0.5) == 21.0
