"""Modes in use: do `jvp` and `hvp` take what is given, run no chunk for nothing, and refuse what they can't do?"""

from __future__ import annotations

from functools import partial
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import optree
import pytest

import dagad
from dagad.extend import Keep, Preaccumulate, Recompute, explicit
from support.cut_and_whole_programs import (
    DTHETA,
    DX,
    PROGRAMS,
    THETA,
    WHOLE,
    Point,
    X,
    bits,
    close,
    columns,
    cut_on,
    expected_hvp,
    logistic,
)

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")


@optree.dataclasses.dataclass(namespace="dagad")  # type: ignore[call-overload]  # optree reads it
class Registered:
    x: Any
    y: Any


def product(a: Any, b: Any = 2.0) -> Any:
    return np.sum(a**2) * b**3


def of_a_pair(pair: Any) -> Any:
    return np.sum(pair[0] ** 3) * pair[1]


def test_a_tuple_of_primals_is_the_arguments_and_anything_bare_is_one() -> None:
    assert float(dagad.hvp(product, 3.0, 1.0)) == 16.0
    assert [float(part) for part in dagad.hvp(product, (3.0,), (1.0,))] == [16.0]
    assert float(dagad.jvp(product, (3.0, 2.0), (1.0, None))[1]) == 48.0
    products = dagad.hvp(product, (3.0, 2.0), (None, 1.0))
    assert type(products) is tuple
    assert [float(part) for part in products] == [72.0, 108.0]
    assert dagad.jvp(product, (3.0, 2.0), (None, None)) == (72.0, 0.0)
    assert float(dagad.hvp(product, 3.0, None)) == 0.0
    of_a_dict = dagad.hvp(lambda p: of_a_pair([p["a"], p["b"]]), {"a": 2.0, "b": 1.0}, {"a": 1.0, "b": None})
    assert of_a_dict == {"a": 12.0, "b": 12.0}


@pytest.mark.parametrize("kind", [Point, Registered])
def test_a_record_is_one_primal_and_comes_back_as_a_record(kind: Any) -> None:
    def total(p: Any) -> Any:
        return of_a_pair([p.x, p.y])

    at, along = kind(onp.ones(2), 1.0), kind(onp.ones(2), None)
    assert float(dagad.jvp(total, at, along)[1]) == 6.0
    for found in (dagad.hvp(total, at, along), *dagad.hvp(total, (at,), (along,))):
        assert type(found) is kind
        assert found.x.tolist() == [6.0, 6.0]
        assert float(found.y) == 6.0
    with pytest.raises(dagad.StructureError, match=r"tangent of argument 0 .* has another structure"):
        dagad.jvp(total, at, (onp.ones(2), None))


@pytest.mark.parametrize("mode", ["jvp", "hvp"])
def test_a_list_of_primals_is_refused_with_both_ways_to_write_it(mode: str) -> None:
    point, along = [onp.ones(2), 1.0], [onp.ones(2), None]
    both_ways = (
        rf"`dagad\.{mode}\(f, \(\[...\],\), \(\[...\],\)\)` for one .* `dagad\.{mode}\(f, \(a, b\), \(u, v\)\)` for"
    )
    for fun in (of_a_pair, product):
        with pytest.raises(TypeError, match=both_ways) as caught:
            getattr(dagad, mode)(fun, point, along)
        assert type(caught.value) is dagad.ArgumentsError
    # Both ways, one after the other.
    assert float(dagad.jvp(of_a_pair, (point,), (along,))[1]) == 6.0
    assert dagad.hvp(of_a_pair, (point,), (along,))[0][0].tolist() == [6.0, 6.0]
    assert dagad.hvp(product, tuple(point), tuple(along))[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("outer", [autograd.grad, dagad.grad])
def test_traced_primals_are_read_as_plain_ones_are(outer: Any) -> None:
    def along(point: Any) -> Any:
        return dagad.jvp(lambda a, b: a**2 * b, point, (1.0, 0.0))[1]

    assert outer(along)((2.0, 3.0)) == (6.0, 4.0)
    with pytest.raises(dagad.ArgumentsError, match="`primals` is a list"):
        outer(along)([2.0, 3.0])


@pytest.mark.filterwarnings("ignore:Argument . .*holds integers:dagad.DagadWarning")  # constants on purpose
def test_jvp_and_hvp_give_pytrees_with_constants_back_as_they_went_in() -> None:
    def program(tree: Any) -> Any:
        total = dagad.reduce_sum(lambda rows, t: np.sum(rows * t["p"].x) ** 2 * t["n"], X[:, 0], tree, grainsize=20)
        return {"total": total * tree["p"].y[0], "count": 3, "name": "x", "list": [tree["p"].x, None]}

    tree = {"p": Point(2.0, [onp.float32(0.5), "text"]), "n": 3}
    value, tangent = dagad.jvp(program, tree, {"p": Point(1.0, [None, None]), "n": None})
    total = onp.sum(X[:, 0]) ** 2 * 3.0
    assert close(value["total"], total * 4.0 * 0.5)
    assert close(tangent["total"], total * 4.0 * 0.5)
    assert (tangent["count"], tangent["name"], tangent["list"]) == (None, None, [1.0, None])
    same = dagad.jvp(program, (tree,), ({"p": Point(1.0, [0.0, "any"]), "n": 7},))[1]
    assert float(same["total"]) == float(tangent["total"])
    product = dagad.hvp(lambda tree: program(tree)["total"], tree, {"p": Point(1.0, [0.0, None]), "n": None})
    assert type(product["p"]) is Point
    assert close(product["p"].x, total * 2.0 * 0.5)
    assert type(product["p"].y[0]) is onp.float32
    assert (product["p"].y[1], product["n"]) == (None, None)


@pytest.mark.sampled(3)
def test_jvp_and_hvp_of_float32_are_float32(scheduler: Any) -> None:
    x, theta = X.astype("f4"), THETA.astype("f4")
    for name in ("a sum", "a map"):
        fun = partial(PROGRAMS[name], cut_on(scheduler, 4))
        value, tangent = dagad.jvp(fun, (x, theta), (DX, DTHETA))
        products = dagad.hvp(fun, (x, theta), (DX, DTHETA))
        assert value.dtype == tangent.dtype == products[0].dtype == products[1].dtype == "f4"
        expected = dagad.hvp(fun, (X, THETA), (DX, DTHETA))
        assert all(close(*pair, 1e-3) for pair in zip(products, expected, strict=True))


def test_values_inside_chunks_can_be_complex() -> None:
    def waves(rows: Any, t: Any) -> Any:
        return np.sum(np.exp(1j * rows * t) * rows)

    def program(t: Any, total: Any) -> Any:
        return np.abs(total(waves, X[:, 0], t)) ** 2

    cut, whole = partial(program, total=cut_on("sync").reduce_sum), partial(program, total=WHOLE.reduce_sum)
    assert close(dagad.jvp(cut, 0.7, 1.0)[1], autograd.grad(whole)(0.7))
    assert close(dagad.hvp(cut, 0.7, 1.0), autograd.grad(autograd.grad(whole))(0.7), 1e-10)
    value, tangent = dagad.jvp(lambda t: cut_on("sync").reduce_sum(waves, X[:, 0], t), 0.7, 1.0)
    assert close(tangent, onp.sum(1j * X[:, 0] ** 2 * onp.exp(1j * X[:, 0] * 0.7)))
    assert onp.iscomplexobj(value)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (1, 3)])
def test_jvp_and_hvp_of_no_rows_and_of_empty_rows_are_right(shape: tuple[int, int], scheduler: Any) -> None:
    rng, ops = onp.random.default_rng(5), cut_on(scheduler, 2)
    x, t = rng.standard_normal(shape), rng.standard_normal(shape[1])

    def program(ops: Any, x: Any, t: Any) -> Any:
        mapped = ops.map(lambda row, t: row * t, x, t) if len(x) else np.zeros(0)
        laid = ops.map_rect(lambda row, t: row**2 * t, x, t) if len(x) else np.zeros(0)
        return np.sum(ops.reduce_sum(columns, x, t)) ** 2 + np.sum(mapped**2) + np.sum(laid)

    value, tangent = dagad.jvp(partial(program, ops), (x, t), (x, t))
    products = dagad.hvp(partial(program, ops), (x, t), (x, t))
    whole = partial(program, WHOLE)
    assert close(value, whole(x, t))
    slopes = autograd.grad(whole, 0)(x, t), autograd.grad(whole, 1)(x, t)
    assert close(tangent, onp.sum(slopes[0] * x) + onp.sum(slopes[1] * t))
    for product, expected in zip(products, expected_hvp(whole, (x, t), (x, t)), strict=True):
        assert close(product, expected, 1e-10)


@pytest.mark.sampled(2)
def test_rows_in_shards_can_be_constant(scheduler: Any) -> None:
    shards = dagad.shard(X, grainsize=4, scheduler=scheduler)
    cut = cut_on(scheduler, 4)

    def of(total: Any, rows: Any, t: Any) -> Any:
        return total(logistic, rows, t)

    here, there = partial(of, cut.reduce_sum, X), partial(of, dagad.reduce_sum, shards)
    assert bits(*dagad.jvp(there, THETA, DTHETA)) == bits(*dagad.jvp(here, THETA, DTHETA))
    assert bits(dagad.hvp(there, THETA, DTHETA)) == bits(dagad.hvp(here, THETA, DTHETA))
    assert bits(dagad.hessian(there)(THETA)) == bits(dagad.hessian(here)(THETA))
    both = dagad.jvp(partial(of, dagad.reduce_sum), (shards, THETA), (None, DTHETA))[1]
    assert bits(both) == bits(dagad.jvp(here, THETA, DTHETA)[1])


# --- how often --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [None, Preaccumulate()])
def test_jvp_and_hvp_run_each_chunk_once(policy: Any) -> None:
    calls: list[int] = []

    def counted(rows: Any, theta: Any) -> Any:
        calls.append(len(rows))
        return logistic(rows, theta)

    def loss(theta: Any) -> Any:
        return np.exp(dagad.reduce_sum(counted, X, theta, grainsize=4, scheduler="sync", policy=policy)) ** 2

    modes: Any = (dagad.jvp, dagad.hvp)
    for mode in modes:
        calls.clear()
        mode(loss, THETA, DTHETA)
        assert sorted(calls) == [3, 4, 4]
    calls.clear()
    dagad.jvp(lambda t: dagad.map(counted, X[:, None], t, grainsize=4, scheduler="sync"), THETA, DTHETA)
    assert calls == [1] * 11


@pytest.mark.parametrize("policy", [Keep(), Recompute(), Preaccumulate()])
def test_a_policy_does_not_change_an_hvp(policy: Any, scheduler: Any) -> None:
    fun = partial(PROGRAMS["several"], cut_on(scheduler, 4, policy=policy), X)
    expected = autograd.hessian_vector_product(partial(PROGRAMS["several"], WHOLE, X))(THETA, DTHETA)
    assert close(dagad.hvp(fun, THETA, DTHETA), expected, 1e-10)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [dagad.jvp, dagad.hvp])
@pytest.mark.parametrize(
    ("primals", "tangents", "sentence"),
    [
        ((1.0, 2.0), (1.0,), "`primals` is 2, that of `tangents` is 1.*one tangent per primal"),
        ((1.0, 2.0), 1.0, "`tangents` is a float.*None where nothing moves"),
        ((1.0, 2.0), [1.0, 2.0], "`tangents` is a list, not a tuple.*in a tuple; None where nothing moves"),
        ((1.0, 2.0), Point(1.0, 2.0), "`tangents` is a Point, not a tuple"),
        ((), (), "`primals` is empty"),
        (THETA, onp.ones(2), r"tangent of argument 0 .* has the shape \(2,\), where \(3,\) is needed"),
        ((1.0, {"a": THETA}), (1.0, {"b": THETA}), "tangent of argument 1 .* has another structure"),
        (1.0, (1.0,), r"tangent of argument 0 .* has the shape \(1,\), where \(\) is needed"),
        (1.0, {"a": 1.0}, "tangent of argument 0 .* is a dict"),
        (1.0, "north", "is a str. Give a number"),
    ],
)
def test_tangents_that_do_not_fit_are_refused(mode: Any, primals: Any, tangents: Any, sentence: str) -> None:
    with pytest.raises(dagad.StructureError, match=sentence):
        mode(lambda a, b=None: np.sum(a), primals, tangents)


@pytest.mark.parametrize("mode", [dagad.jvp, dagad.hvp])
def test_jvp_and_hvp_in_integers_are_refused_with_the_remedy(mode: Any) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"Argument 1 .*holds no floating-point.*astype\(float\)"):
        mode(lambda a, b: a * b, (1.0, onp.arange(3)), (1.0, onp.ones(3)))


@pytest.mark.parametrize("returned", [lambda x: None, lambda x: x * onp.ones(3), lambda x: (x, x), lambda x: x * 1j])
def test_a_second_derivative_of_something_else_than_a_number_is_refused(returned: Any) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"one real floating-point number has a gradient"):
        dagad.hvp(returned, 1.0, 1.0)
    with pytest.raises(dagad.NotDifferentiableError, match="one real floating-point number"):
        dagad.hessian(returned)(1.0)


@explicit
def scaled(rows: Any, t: Any) -> Any:
    return np.sum(rows) * t**2, lambda seed: (None, 2.0 * seed * t * np.sum(rows))


def test_an_explicit_function_has_all_modes(scheduler: Any) -> None:
    def total(t: Any) -> Any:
        return dagad.reduce_sum(scaled, X, t, grainsize=4, scheduler=scheduler)

    whole = onp.sum(X)
    assert close(dagad.jvp(total, 2.0, 1.0)[1], 4.0 * whole)
    assert close(dagad.grad(total)(2.0), 4.0 * whole)
    for second in (dagad.hvp(total, 2.0, 1.0), dagad.hessian(total)(2.0), dagad.grad(dagad.grad(total))(2.0)):
        assert close(second, 2.0 * whole)
    tangent_out = dagad.jvp(lambda t: dagad.map(scaled, X, t, grainsize=4, scheduler=scheduler), 2.0, 1.0)[1]
    assert close(tangent_out, 4.0 * onp.sum(X, axis=tuple(range(1, X.ndim))))


def test_an_exception_in_a_chunk_arrives_as_it_is(scheduler: Any) -> None:
    def fail(rows: Any, t: Any) -> Any:
        if rows[0, 0] == X[4, 0]:
            raise KeyError("mine")
        return np.sum(rows) * t

    for mode in (dagad.jvp, dagad.hvp):
        with pytest.raises(KeyError, match="mine") as caught:
            mode(lambda t: dagad.reduce_sum(fail, X, t, grainsize=4, scheduler=scheduler), 1.0, 1.0)
        assert any("chunk 1 (rows 4:8)" in note for note in caught.value.__notes__)
