"""A new engine is one file: does a toy of sixty lines work in every mode, with all operations, wherever it runs?

What can't exist, by its mathematics: derivatives of what is not analytic, `abs` and `max` say. Nothing else is missing.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import autograd
import autograd.numpy as anp
import dask.array as da
import numpy as onp
import pytest
from dask.base import compute as dask_compute
from dask.config import set as dask_set
from dask.delayed import delayed

import dagad
from dagad._engines import registry
from dagad.extend import Composed, Engine, Keep, Preaccumulate, Recompute
from support.every_mode import MODES, check, derivatives
from support.every_operation import OPERATIONS, RIGHT, ROWS, Written, wave
from support.toy_engine import ComplexStep

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

compute: Any = dask_compute  # Dask has few types


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("mode", MODES)
def test_a_new_engine_works_in_every_mode(mode: str, name: str) -> None:
    check(mode, partial(OPERATIONS[name][0], onp, engine=ComplexStep(), scheduler="sync"), RIGHT[name])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["of a tree", "map_rect"])
@pytest.mark.parametrize("mode", ["value_and_grad", "jvp", "hvp", "hessian"])
def test_a_new_engine_works_wherever_it_is_run(mode: str, name: str, scheduler: Any) -> None:
    check(mode, partial(OPERATIONS[name][0], onp, engine=ComplexStep(), scheduler=scheduler), RIGHT[name])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("policy", [Keep(), Recompute(), Preaccumulate()])
def test_policies_have_their_way_with_a_new_engine(policy: Any) -> None:
    for mode in ("value_and_grad", "vjp", "hessian"):
        check(mode, partial(OPERATIONS["of rows"][0], onp, engine=ComplexStep(), policy=policy), RIGHT["of rows"])


@pytest.mark.sampled(4)
def test_an_engine_has_a_name_or_comes_as_an_object(monkeypatch: pytest.MonkeyPatch, scheduler: Any) -> None:
    engine: Engine = ComplexStep()
    ways: list[Any] = [engine, "toy", None]
    monkeypatch.setitem(registry._ENGINES, "toy", ComplexStep)
    with dask_set({"dagad.engine": "toy"}):
        for way in ways:
            check("hvp", partial(OPERATIONS["map"][0], onp, engine=way, scheduler=scheduler), RIGHT["map"])


def test_tasks_of_a_graph_have_derivatives_of_any_engine() -> None:
    def loss(x: Any, np: Any = onp) -> Any:
        return np.sum(np.sin(x) ** 2)

    at = onp.array([0.3, -0.2])
    x = delayed(at)
    slope = dagad.gradient(delayed(loss)(x), x, engine=ComplexStep())
    curvature = dagad.gradient(delayed(anp.sum)(slope), x, engine=ComplexStep())
    found = compute(slope, curvature, scheduler="sync")
    onp.testing.assert_allclose(found[0], onp.sin(2 * at), rtol=1e-12)
    onp.testing.assert_allclose(found[1], 2 * onp.cos(2 * at), rtol=1e-10)
    with dask_set({"dagad.engine": ComplexStep()}):
        value, tangent = compute(*dagad.jvp(delayed(loss)(x), x, onp.array([1.0, 0.0])), scheduler="sync")
    assert value == pytest.approx(onp.sum(onp.sin(at) ** 2))
    assert tangent == pytest.approx(onp.sin(0.6))


class ForeignArrays(ComplexStep):
    has_own_arrays = True


def test_functions_that_dask_has_fused_are_those_of_an_engine_with_arrays_of_its_own() -> None:
    """What is not the engine's is autograd's, and so is what stands before and behind it in the same task."""
    seen = []

    def bent(block: Any) -> Any:
        seen.append(type(block))
        return onp.exp(block)

    at = onp.array([0.3, -0.2, 0.7, 1.1])
    x = da.from_array(at, chunks=2)
    y = (da.sin(x).map_blocks(bent, meta=onp.empty(0)) * x).sum()
    found = compute(dagad.gradient(y, x, engine=ForeignArrays()), scheduler="sync")[0]
    onp.testing.assert_allclose(found, onp.exp(onp.sin(at)) * (1.0 + at * onp.cos(at)), rtol=1e-10)
    assert set(seen) == {onp.ndarray}


def test_a_function_that_is_given_to_one_of_an_engine_with_arrays_of_its_own_is_called_as_it_is() -> None:
    def applied(block: Any, fun: Any) -> Any:
        assert fun is bent
        return fun(block)

    def bent(block: Any) -> Any:
        return onp.exp(block)

    at = onp.array([0.3, -0.2, 0.7, 1.1])
    x = da.from_array(at, chunks=2)
    y = (da.blockwise(applied, "i", da.sin(x), "i", bent, None, meta=onp.empty(0)) * x).sum()
    found = compute(dagad.gradient(y, x, engine=ForeignArrays()), scheduler="sync")[0]
    onp.testing.assert_allclose(found, onp.exp(onp.sin(at)) * (1.0 + at * onp.cos(at)), rtol=1e-10)


def test_a_new_engine_gets_only_leaves_with_a_tangent_or_a_seed() -> None:
    """At an infinite slope a zero would be nan."""

    def roots(rows: Any, a: Any, b: Any) -> Any:
        return {"a": onp.sqrt(a) * onp.sum(rows), "b": b**3 * onp.sum(rows)}

    def total(a: Any, b: Any) -> Any:
        return dagad.reduce_sum(roots, ROWS, a, b, grainsize=3, engine=ComplexStep(), scheduler="sync")

    value, tangent = dagad.jvp(total, (0.0, 2.0), (0.0, 1.0))
    assert value["b"] == pytest.approx(8.0 * ROWS.sum())
    assert tangent["b"] == pytest.approx(12.0 * ROWS.sum())
    assert tangent["a"] == 0.0
    assert dagad.hvp(lambda b: total(0.0, b)["b"], 2.0, 1.0) == pytest.approx(12.0 * ROWS.sum())


class Wrong(ComplexStep):
    """An engine whose derivatives have other shapes than they should."""

    name = "wrong"

    def value(self, fun: Any, leaves: Any) -> Any:
        values = super().value(fun, leaves)
        return values if getattr(fun, "base", None) is fun else [*values[:-1], onp.ones(5)]


def test_an_engine_is_held_to_the_shapes_of_what_it_differentiates() -> None:
    loss = partial(OPERATIONS["reduce_sum"][0], onp, engine=Wrong(), scheduler="sync")
    for mode, what in (("value_and_grad", "cotangent"), ("jvp", "tangent")):
        with pytest.raises(dagad.StructureError, match=rf"{what} from the engine 'wrong' has the shape \(5,\), where"):
            MODES[mode][0](loss)


class CutAsForPullbacks(ComplexStep):
    """An engine whose pushforward takes the first n leaves for x, as pullbacks do."""

    def pushforward(self, fun: Any, n: int) -> Any:
        return lambda leaves: [*fun(leaves[:n]), *fun(leaves[:n])]


class WithoutValues(ComplexStep):
    """An engine whose pushforward gives tangents only."""

    def pushforward(self, fun: Any, n: int) -> Any:
        def jvp(leaves: Any) -> Any:
            found = super(WithoutValues, self).pushforward(fun, n)(leaves)
            return found[: len(found) // (1 + n)] * n

        return jvp


class OneTooFew(ComplexStep):
    """An engine whose pullback forgets a leaf."""

    def pullback(self, fun: Any, n: int) -> Any:
        pulled = super().pullback(fun, n)
        return lambda leaves: pulled(leaves)[:-1]


class Twice(ComplexStep):
    """An engine that returns each output twice."""

    def value(self, fun: Any, leaves: Any) -> Any:
        return super().value(fun, leaves) * 2


class Empty(ComplexStep):
    """An engine that returns nothing."""

    def value(self, fun: Any, leaves: Any) -> Any:
        return super().value(fun, leaves)[:0]


MISCOUNTING: dict[str, tuple[Any, list[str], str]] = {
    "called": (CutAsForPullbacks(), ["jvp", "hvp"], r"has called `product` with 1 leaf, and needed are 2.*\*dx_n"),
    "without values": (
        WithoutValues(),
        ["jvp"],
        r"value and 1 tangents together, 1 leaf, and needed are 2 equal parts",
    ),
    "one too few": (OneTooFew(), ["grad", "hvp"], r"as cotangents, 1 leaf, and needed are 2.*first n leaves are x"),
    "twice": (Twice(), ["value", "jvp"], r"as the value of `product`, 2 leaves, and needed is 1"),
    "empty": (Empty(), ["value", "grad"], r"as the value of `product`, 0 leaves, and needed is 1"),
}


def product(rows: Any, a: Any, b: Any) -> Any:
    return onp.sum(rows) * onp.sum(a * a) * b


@pytest.mark.parametrize("case", MISCOUNTING)
def test_an_engine_is_held_to_the_number_of_leaves(case: str) -> None:
    engine, modes, sentence = MISCOUNTING[case]

    def loss(a: Any, b: Any) -> Any:
        return dagad.reduce_sum(product, ROWS, a, b, engine=engine, scheduler="sync", grainsize=3)

    at = onp.array([1.0, 2.0]), 3.0
    ways: dict[str, Any] = {
        "value": lambda: loss(*at),
        "grad": lambda: dagad.grad(loss, (0, 1))(*at),
        "jvp": lambda: dagad.jvp(loss, at, at),
        "hvp": lambda: dagad.hvp(loss, at, at),
    }
    for mode in modes:
        with pytest.raises(dagad.StructureError, match=sentence):
            ways[mode]()


def test_no_array_of_another_engine_gets_into_a_function() -> None:
    """Else autograd would differentiate where the engine should."""
    seen = set()

    def curious(rows: Any, t: Any) -> Any:
        seen.add(type(t).__module__.partition(".")[0])
        return onp.sum(rows * t**2)

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(curious, ROWS, t, grainsize=3, engine=ComplexStep(), scheduler="sync")

    assert autograd.grad(autograd.grad(loss))(0.7) == pytest.approx(2 * ROWS.sum())
    assert dagad.hvp(loss, 0.7, 1.0) == pytest.approx(2 * ROWS.sum())
    assert seen <= {"numpy", "builtins"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("engines", [(None, ComplexStep()), (ComplexStep(), ComplexStep())], ids=["autograd", "toy"])
@pytest.mark.parametrize("mode", ["value_and_grad", "jvp", "hvp", "hessian"])
def test_reductions_in_chunks_have_engines_of_their_own(mode: str, engines: Any, scheduler: Any) -> None:
    outer, inner = engines

    def nested(rows: Any, t: Any) -> Any:
        return t * dagad.reduce_sum(Written(wave), rows, t, grainsize=1, engine=inner)

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(nested, ROWS, t, grainsize=4, engine=outer, scheduler=scheduler)

    check(mode, loss, derivatives(lambda t: t * wave(anp, ROWS, t)))


def test_shards_have_derivatives_of_any_engine(cluster: Any) -> None:
    shards = dagad.shard(ROWS, grainsize=2, scheduler=cluster)
    for mode in ("value_and_grad", "value_and_grad", "vjp", "jvp", "hvp", "hessian"):
        check(mode, lambda t: dagad.reduce_sum(Written(wave), shards, t, engine=ComplexStep()), RIGHT["reduce_sum"])


class Cutting(ComplexStep):
    """An engine that has the rows of a chunk cut further, as those that compile do."""

    def pieces(self, n_rows: int, grainsize: int) -> list[int]:
        return [n_rows] if n_rows in (grainsize, 2) else [n_rows - n_rows // 2, n_rows // 2]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["reduce_sum", "of rows", "compensated"])
def test_an_engine_that_cuts_chunks_further_has_the_same_derivatives(name: str) -> None:
    operation = OPERATIONS[name][0]
    for mode in MODES:
        check(mode, lambda t: operation(onp, t, engine=Cutting(), scheduler="sync"), RIGHT[name])


@pytest.mark.parametrize("grainsize", [4, 5])  # the last chunk has three rows, or two
def test_rows_of_a_chunk_that_is_cut_further_get_their_own_cotangents(grainsize: int) -> None:
    def loss(rows: Any, t: Any) -> Any:
        options: Any = {"engine": Cutting(), "scheduler": "sync", "grainsize": grainsize}
        return dagad.reduce_sum(lambda r, t: onp.sum(onp.sin(r["x"] * t) * r["c"]), rows, t, **options)

    rows = {"x": ROWS, "c": onp.arange(1.0, 8.0)}
    gradient = dagad.grad(loss, (0, 1))(rows, 0.7)
    wave = onp.cos(ROWS * 0.7)
    onp.testing.assert_allclose(gradient[0]["x"], 0.7 * wave * rows["c"], rtol=1e-10)
    onp.testing.assert_allclose(gradient[0]["c"], onp.sin(ROWS * 0.7), rtol=1e-10)
    assert gradient[1] == pytest.approx(onp.sum(ROWS * wave * rows["c"]))


class Own(onp.ndarray):
    """An array of an engine's own."""


class OwnArrays(ComplexStep):
    """An engine that gives its functions nothing but arrays of its own, as jax and torch need it."""

    def value(self, fun: Any, leaves: Any) -> Any:
        fun.base.given = [constant.view(Own) for constant in map(onp.asarray, fun.base.constants())]
        return super().value(fun, [onp.asarray(leaf).view(Own) for leaf in leaves])

    def pullback(self, fun: Any, n: int) -> Any:
        return Composed(super().pullback(fun, n), fun, "pullback")


def test_columns_of_a_table_reach_a_function_as_arrays_of_the_engines_own() -> None:
    frame = pytest.importorskip("pandas").DataFrame({"x": ROWS, "word": ["a"] * len(ROWS)})

    def strict(rows: Any, t: Any) -> Any:
        assert isinstance(rows["x"], Own) or not onp.ndim(rows["x"])  # an entry of one
        assert onp.all(rows["word"] == "a")
        return onp.sum(onp.sin(rows["x"] * t))

    for data in (frame, dagad.shard(frame, grainsize=3, scheduler="sync")):
        for reduction in (dagad.reduce_sum, dagad.map_sum):

            def loss(t: Any, data: Any = data, reduction: Any = reduction) -> Any:
                return reduction(strict, data, t, engine=OwnArrays(), scheduler="sync", grainsize=3)

            assert float(dagad.grad(loss)(0.7)) == pytest.approx(onp.sum(ROWS * onp.cos(ROWS * 0.7)))


def test_constants_may_be_arrays_of_the_engines_own_too() -> None:
    def strict(rows: Any, options: Any, t: Any) -> Any:
        assert isinstance(rows["x"], Own)
        assert isinstance(options["scale"], Own)
        assert options["name"] == "a name"
        return onp.sum(onp.sin(rows["x"] * t) * options["scale"])

    def loss(t: Any) -> Any:
        options = {"scale": 2.0, "name": "a name"}
        return dagad.reduce_sum(strict, {"x": ROWS}, options, t, grainsize=3, engine=OwnArrays(), scheduler="sync")

    for mode in ("value_and_grad", "hvp", "hessian"):
        check(mode, loss, derivatives(lambda t: 2.0 * anp.sum(anp.sin(ROWS * t))))


class TooComplex(ComplexStep):
    """Says of everything real that its derivative has an imaginary part."""

    name = "too complex"
    share = 0.5j

    def linearize(self, fun: Any, leaves: Any) -> Any:
        values, pullback = super().linearize(fun, leaves)

        def pulled(cotangents: Any) -> Any:
            return [(1.0 + self.share) * part for part in pullback(cotangents)]

        pulled.nbytes = int  # type: ignore[attr-defined]  # of a function
        return values, pulled


class Rounding(TooComplex):
    share = 1e-15j


def square(rows: Any, t: Any) -> Any:
    return onp.sum(rows) * onp.sum(t**2)


def test_an_engine_that_gives_a_complex_cotangent_to_a_real_argument_is_refused(scheduler: Any) -> None:
    def loss(t: Any, engine: Any) -> Any:
        return dagad.reduce_sum(square, onp.ones(4), t, engine=engine, grainsize=2, scheduler=scheduler)

    sentence = r"from the engine 'too complex' has an imaginary part, of up to 2.*`np\.real\(part\)`"
    for at in (onp.ones(2), 1.0):
        with pytest.raises(dagad.StructureError, match=sentence):
            dagad.grad(loss)(at, TooComplex())
        with pytest.raises(dagad.StructureError, match=sentence):
            dagad.jacrev(loss)(at, TooComplex())
        gradient = dagad.grad(loss)(at, Rounding())
        onp.testing.assert_allclose(gradient, 8.0 * at, rtol=1e-14)
        assert not onp.iscomplexobj(gradient)
    w = delayed(2.0)
    with pytest.raises(dagad.StructureError, match=sentence):
        compute(dagad.gradient(delayed(lambda w: w**2)(w), w, engine=TooComplex()), scheduler="sync")
