"""Ways of adding up: does a compensated sum keep what additions round off, in values and in gradients, everywhere?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as np
import dask
import numpy as onp
import pytest
from dask._task_spec import Task, TaskRef
from hypothesis import given, settings, strategies as st

import dagad
from dagad._graphs.monoids import Exact
from dagad._graphs.sum_trees import OpenTree, RunningTree, assembled, combined, subtrees, sum_tree
from dagad.extend import CompensatedSum, Keep, PlainSum, Preaccumulate, Recompute
from dagad.testing import taylor_rate
from support.examples import examples
from support.gated_chunks import bits

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

RNG = onp.random.default_rng(7)
X, THETA = RNG.standard_normal((13, 3)), onp.array([0.4, -0.2, 0.9])
CANCELLING = onp.array([1e16, 1.0, -1e16, 1e16, 3.0, -1e16, 0.25])
EXACT = CompensatedSum()
POLICIES = [None, Keep(), Recompute(), Preaccumulate()]


def compensated(terms: Any, **options: Any) -> Any:
    options = {**{"grainsize": 1, "scheduler": "sync", "sum": EXACT}, **options}
    return dagad.reduce_sum(lambda rows: np.sum(rows), terms, **options)


def run(terms: list[Any], key_of: Callable[[int, int], Any] = lambda *at: ("sum", *at)) -> Any:
    """Return what the tree of sums gives, by calling its tasks one after the other."""
    values: dict[Any, Any] = {("term", place): term for place, term in enumerate(terms)}
    total, tasks = sum_tree([TaskRef(key) for key in values], key_of, EXACT)
    if not tasks:
        return EXACT.lower(EXACT.lift(values[total.key]))
    for key, task in tasks.items():
        values[key] = task({name: values[name] for name in task.dependencies})
    return values[total.key]


# --- the tree ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [*range(1, 21), 64, 65, 100])
def test_a_compensated_sum_of_any_number_of_terms_is_that_of_fsum(count: int) -> None:
    terms = [float(term) for term in RNG.standard_normal(count) * 10.0 ** RNG.integers(-8, 8, count)]
    assert run(terms) == math.fsum(terms)
    assert run([onp.full(2, term) for term in terms]).tolist() == [math.fsum(terms)] * 2


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=30))
def test_a_compensated_sum_is_as_good_as_one_in_twice_the_precision(terms: list[float]) -> None:
    size = math.fsum(map(abs, terms))
    assert abs(run(terms) - math.fsum(terms)) <= 2.0**-52 * abs(math.fsum(terms)) + 40 * 2.0**-105 * size


def test_a_compensated_sum_is_added_up_along_the_tree_of_a_plain_one() -> None:
    terms = [TaskRef(("term", place)) for place in range(20)]
    trees = [sum_tree(terms, lambda *at: at, way) for way in (EXACT, PlainSum())]
    (root, tasks), (other_root, others) = trees
    assert root.key == other_root.key
    assert {key: task.dependencies for key, task in tasks.items()} == {
        key: task.dependencies for key, task in others.items()
    }
    assert [task.args[1] for task in tasks.values() if isinstance(task, Task)] == [False] * 3 + [
        True
    ]  # the last rounds


def test_a_compensated_sum_of_one_term_is_that_term() -> None:
    term = onp.arange(3.0)
    assert sum_tree([term], lambda *at: at, EXACT) == (term, {})
    assert EXACT.lower(term) is term
    assert combined(EXACT, True, None, None) is None


def test_an_unfinished_sum_can_travel() -> None:
    part = combined(EXACT, False, {"a": 1e16, "b": None}, {"a": 1.0, "b": None})
    arrived = dask.utils.apply(*part.__reduce__())
    assert isinstance(arrived, Exact)
    assert combined(EXACT, True, arrived, {"a": -1e16, "b": 2.0}) == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize("seed", range(20))
def test_a_compensated_sum_has_the_same_bits_however_its_terms_are_shared_out(seed: int) -> None:
    rng = onp.random.default_rng(seed)
    count = int(rng.integers(1, 70))
    terms = [rng.standard_normal(3) * 10.0 ** rng.integers(-8, 8) for _ in range(count)]
    expected, cuts = run(terms), sorted({0, count, *map(int, rng.integers(0, count + 1, 5))})

    def summed(some: list[Any]) -> Any:
        tree = RunningTree(EXACT)
        for term in some:
            tree.push(term)
        return tree.total()

    parts = [part for start, stop in itertools.pairwise(cuts) for part in subtrees(start, stop, count)]
    sums = [summed(terms[part.start : part.start + (1 << part.level)]) for part in parts]
    assert bits([EXACT.lower(assembled(parts, sums, count, EXACT))]) == bits([expected])
    assert bits([EXACT.lower(summed(terms))]) == bits([expected])
    tree = OpenTree(count, EXACT)
    for number in rng.permutation(count).tolist():
        tree.push(number, terms[number])
    assert bits([EXACT.lower(tree.total())]) == bits([expected])
    for size in (2, 8, 64):  # tasks of several chunks each
        groups = [summed(terms[start : start + size]) for start in range(0, count, size)]
        assert bits([run(groups)]) == bits([expected])


def test_cotangents_that_are_none_add_nothing() -> None:
    parts: list[Any] = [[1e16, None, None], [1.0, None, 2.0], [-1e16, None, None]]
    assert run(parts) == [1.0, None, 2.0]


# --- known answers ----------------------------------------------------------------------------------------------------


def test_a_compensated_sum_keeps_what_a_plain_one_rounds_off(scheduler: Any) -> None:
    assert compensated(CANCELLING, scheduler=scheduler) == 4.25
    assert compensated(CANCELLING, scheduler=scheduler, sum=PlainSum()) != 4.25
    assert compensated(CANCELLING, scheduler=scheduler, sum=None) != 4.25


@pytest.mark.parametrize("grainsize", [1, 2, 7, 1000])
def test_compensated_sums_of_series_are_those_of_fsum(grainsize: int) -> None:
    count = onp.arange(1.0, 1001.0)
    for series in (1 / count, (-1) ** count / count):
        parts = [float(onp.sum(series[start : start + grainsize])) for start in range(0, 1000, grainsize)]
        assert compensated(series, grainsize=grainsize) == math.fsum(parts)


def test_shared_gradients_are_compensated(scheduler: Any) -> None:
    def linear(rows: Any, slope: Any) -> Any:
        return np.sum(rows * slope)

    for slope in (2.0, onp.array(2.0), onp.array([2.0])):
        for policy in POLICIES if scheduler == "sync" else [None]:
            options: Any = {"grainsize": 1, "scheduler": scheduler, "sum": EXACT, "policy": policy}
            value, gradient = dagad.value_and_grad(lambda t, o=options: dagad.reduce_sum(linear, CANCELLING, t, **o))(
                slope
            )
            assert value == 8.5
            assert onp.array_equal(gradient, onp.full(onp.shape(slope), 4.25))
    tangent = dagad.jvp(lambda t: dagad.reduce_sum(linear, CANCELLING, t, **options), 2.0, 1.0)[1]
    assert float(tangent) == 4.25


def test_arrays_and_trees_are_added_up_leaf_by_leaf(scheduler: Any) -> None:
    def parts(rows: Any) -> Any:
        return {"sum": rows[0] * onp.array([1.0, 2.0]), "rest": (float(rows[0]), len(rows), [rows[0] * (1.0 - 2.0j)])}

    found = dagad.reduce_sum(parts, CANCELLING, grainsize=1, scheduler=scheduler, sum=EXACT)
    assert found["sum"].tolist() == [4.25, 8.5]
    assert found["rest"] == (4.25, 7, [4.25 - 8.5j])


def test_a_compensated_sum_of_integers_is_an_integer() -> None:
    total = dagad.reduce_sum(lambda rows: len(rows), X, grainsize=2, sum=EXACT, scheduler="sync")
    assert (total, type(total)) == (13, int)
    counts = dagad.reduce_sum(lambda rows: np.sum(rows, axis=0), onp.arange(6).reshape(3, 2), grainsize=1, sum=EXACT)
    assert counts.tolist() == [6, 9]
    assert counts.dtype.kind == "i"


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128", "float64"])
def test_a_compensated_sum_keeps_the_dtype_of_its_terms(dtype: str) -> None:
    huge = 1e8 if dtype in ("float32", "complex64") else 1e16
    terms = onp.array([huge, 1.0, -huge], dtype)
    for rows in (terms, terms.reshape(3, 1)):
        total = dagad.reduce_sum(lambda rows: rows[0] * (1 + 0 * rows[0]), rows, grainsize=1, sum=EXACT)
        assert total == 1
        assert total.dtype == dtype


@pytest.mark.filterwarnings("ignore:`<lambda>` gave:dagad.DagadWarning")
def test_nan_and_infinity_pass_through_a_compensated_sum() -> None:
    with onp.errstate(over="ignore", invalid="ignore"):
        for terms, expected in (
            ([1.0, math.inf, 2.0], math.inf),
            ([1.0, -math.inf, 2.0, 3.0], -math.inf),
            ([1e308, 1e308, 1.0], math.inf),
            ([math.inf, -math.inf, 1.0], math.nan),
            ([1.0, math.nan, 2.0], math.nan),
        ):
            assert onp.array_equal(compensated(onp.array(terms)), expected, equal_nan=True)
    mixed = dagad.reduce_sum(
        lambda rows: rows[0], onp.array([[1.0, 1e16], [math.inf, 1.0], [2.0, -1e16]]), grainsize=1, sum=EXACT
    )
    assert mixed.tolist() == [math.inf, 1.0]


def test_a_compensated_sum_of_no_rows_is_zero_without_a_call() -> None:
    def refused(rows: Any, theta: Any) -> Any:
        raise AssertionError

    assert dagad.reduce_sum(refused, onp.zeros((0, 3)), THETA, sum=EXACT) == 0.0
    assert dagad.map_sum(refused, [], THETA, sum=EXACT) == 0.0
    value, gradient = dagad.value_and_grad(lambda t: dagad.reduce_sum(refused, [], t, sum=EXACT))(THETA)
    assert value == 0.0
    assert gradient.tolist() == [0.0, 0.0, 0.0]


# --- the same bits everywhere -----------------------------------------------------------------------------------------


def misfit(rows: Any, theta: Any) -> Any:
    return np.sum(np.tanh(rows @ theta) ** 2)


def columns(rows: Any, theta: Any) -> Any:
    return {"a": np.sum(np.sin(rows * theta), axis=0), "n": len(rows)}


def all_bits(result: Any) -> list[bytes]:
    value, gradients = result
    return bits([value, *gradients])


def loss(x: Any, theta: Any, **options: Any) -> Any:
    options = {**{"grainsize": 3, "sum": EXACT}, **options}
    first = dagad.reduce_sum(misfit, x, theta, **options)
    return np.exp(0.1 * first) + np.sum(dagad.reduce_sum(columns, x, theta, **options)["a"] ** 3)


def plain(x: Any, theta: Any, **options: Any) -> Any:
    return np.exp(0.1 * misfit(x, theta)) + np.sum(columns(x, theta)["a"] ** 3)


def close(actual: Any, expected: Any, rtol: float = 1e-12) -> bool:
    gap = onp.max(onp.abs(onp.asarray(actual) - onp.asarray(expected)), initial=0.0)
    return bool(gap <= rtol * onp.max(onp.abs(expected), initial=1e-300)) and onp.shape(actual) == onp.shape(expected)


@pytest.mark.sampled(3)
def test_a_compensated_sum_has_the_same_bits_on_every_scheduler_under_every_policy(scheduler: Any) -> None:
    expected = all_bits(dagad.value_and_grad(loss, (0, 1))(X, THETA, scheduler="sync"))
    for policy in POLICIES:
        assert all_bits(dagad.value_and_grad(loss, (0, 1))(X, THETA, scheduler=scheduler, policy=policy)) == expected


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_compensated_sum_has_the_same_bits_with_any_number_of_threads(workers: int) -> None:
    expected = all_bits(dagad.value_and_grad(loss, (0, 1))(X, THETA, grainsize=1, scheduler="sync"))
    with dask.config.set(num_workers=workers):
        assert all_bits(dagad.value_and_grad(loss, (0, 1))(X, THETA, grainsize=1, scheduler="threads")) == expected


# --- derivatives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grainsize", [1, 4, 13, 20])
@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_of_a_compensated_sum_are_those_of_autograd(grainsize: int, policy: Any) -> None:
    options: Any = {"grainsize": grainsize, "policy": policy, "scheduler": "sync"}
    value, gradients = dagad.value_and_grad(loss, (0, 1))(X, THETA, **options)
    assert close(value, plain(X, THETA))
    for place, gradient in enumerate(gradients):
        assert close(gradient, autograd.grad(plain, place)(X, THETA))


@pytest.mark.sampled(3)
def test_second_derivatives_and_tangents_of_a_compensated_sum_are_right(scheduler: Any) -> None:
    def of(theta: Any) -> Any:
        return loss(X, theta, scheduler=scheduler)

    def whole(theta: Any) -> Any:
        return plain(X, theta)

    hessian, v = autograd.hessian(whole)(THETA), onp.array([1.0, -2.0, 0.5])
    assert close(dagad.jvp(of, THETA, v)[1], autograd.grad(whole)(THETA) @ v)
    assert close(dagad.hvp(of, THETA, v), hessian @ v, 1e-10)
    assert close(dagad.hessian(of)(THETA), hessian, 1e-10)
    assert close(dagad.grad(lambda t: np.sum(dagad.grad(of)(t) * v))(THETA), hessian @ v, 1e-10)
    jacobian = autograd.jacobian(lambda t: columns(X, t)["a"])(THETA)
    for jac in (dagad.jacfwd, dagad.jacrev):
        found = jac(lambda t: dagad.reduce_sum(columns, X, t, grainsize=3, sum=EXACT, scheduler=scheduler))(THETA)
        assert close(found["a"], jacobian)
        assert found["n"] is None


def test_taylor_rate_of_a_compensated_sum_is_two() -> None:
    assert taylor_rate(lambda x, t: loss(x, t, scheduler="sync"), X, THETA) == pytest.approx(2.0, abs=0.1)


def test_a_compensated_pullback_can_be_pulled_again(scheduler: Any) -> None:
    for policy in (None, Preaccumulate()):
        options: Any = {"grainsize": 3, "sum": EXACT, "scheduler": scheduler, "policy": policy}
        pullback = dagad.vjp(lambda t, o=options: dagad.reduce_sum(columns, X, t, **o)["a"], THETA)[1]
        reference = autograd.make_vjp(lambda t: columns(X, t)["a"])(THETA)[0]
        for seed in (onp.ones(3), onp.array([0.0, 3.0, -1.0])):
            assert close(pullback(seed)[0], reference(seed))


def test_map_sum_adds_up_its_items_by_a_compensated_sum(scheduler: Any) -> None:
    def item(row: Any, theta: Any) -> Any:
        return np.sum(np.sin(row * theta))

    models = [row[: 1 + place % 3] for place, row in enumerate(X)]

    def of(models: Any, theta: Any) -> Any:
        return dagad.map_sum(
            lambda m, t: item(m, t[: np.size(m)]), models, theta, grainsize=2, scheduler=scheduler, sum=EXACT
        )

    def whole(models: Any, theta: Any) -> Any:
        return sum([item(m, theta[: np.size(m)]) for m in models], 0.0)

    value, (of_models, of_theta) = dagad.value_and_grad(of, (0, 1))(models, THETA)
    assert close(value, whole(models, THETA))
    assert close(of_theta, autograd.grad(whole, 1)(models, THETA))
    assert all(close(*pair) for pair in zip(of_models, autograd.grad(whole)(models, THETA), strict=True))
    exact = dagad.map_sum(lambda term: term, CANCELLING, grainsize=1, scheduler=scheduler, sum=EXACT)
    assert exact == 4.25


@pytest.mark.sampled(4)
def test_a_chunk_without_terms_is_like_any_other(scheduler: Any) -> None:
    """A sum of nothing is the integer 0: the chunk's seeds and tangents are still those of its own leaves."""

    def positive(rows: Any, t: Any) -> Any:
        return {"a": sum([t * row for row in rows if row > 0]), "b": sum([np.sin(t * row) * row for row in rows], 0.0)}

    def of(t: Any, way: Any = EXACT, whole: bool = False) -> Any:
        rows = [1.0, 2.0, -1.5, 4.0, -2.5]
        parts = (
            positive(rows, t)
            if whole
            else dagad.reduce_sum(positive, rows, t, grainsize=1, sum=way, scheduler=scheduler)
        )
        return parts["a"] ** 2 + 3 * parts["b"]

    expected = autograd.grad(lambda t: of(t, whole=True))
    for way in (EXACT, None):
        assert close(dagad.grad(lambda t, way=way: of(t, way))(0.3), expected(0.3))
        assert close(dagad.vjp(lambda t, way=way: of(t, way), 0.3)[1](2.0)[0], 2.0 * expected(0.3))
        assert close(dagad.grad(dagad.grad(lambda t, way=way: of(t, way)))(0.3), autograd.grad(expected)(0.3), 1e-10)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [0, "exact", CompensatedSum, sum, object()])
def test_a_way_of_adding_up_that_is_none_is_refused(way: Any) -> None:
    for reduction in (dagad.reduce_sum, dagad.map_sum):
        with pytest.raises(dagad.PlanError, match=r"`sum=.* is not a way to add up. Give an object: .*PlainSum\(\)"):
            reduction(misfit, X, THETA, sum=way)


def test_partial_sums_of_different_shapes_are_refused() -> None:
    with pytest.raises(dagad.StructureError, match=r"differ in shape: \(2,\) and \(1,\). Each chunk has to return"):
        dagad.reduce_sum(lambda rows: rows, X[:3, 0], grainsize=2, sum=EXACT, scheduler="sync")
    with pytest.raises(dagad.StructureError, match="differ in shape"):
        dagad.grad(lambda t: np.sum(dagad.reduce_sum(lambda rows, t: rows * t, X[:, 0], t, grainsize=2, sum=EXACT)))(
            1.0
        )


def test_partial_sums_of_different_structures_are_refused() -> None:
    def uneven(rows: Any) -> Any:
        return [1.0] * len(rows)

    with pytest.raises(dagad.StructureError, match="partial sums of two chunks differ in structure: expected"):
        dagad.reduce_sum(uneven, X, grainsize=4, sum=EXACT, scheduler="sync")


def test_a_compensated_sum_refuses_words_and_none() -> None:
    for value, name in (("text", "str"), (None, "None or an empty container")):
        with pytest.raises(dagad.StructureError, match=name):
            dagad.reduce_sum(lambda rows, value=value: value, X, grainsize=4, sum=EXACT, scheduler="sync")


def test_a_sum_of_something_that_does_not_add_is_refused(scheduler: Any) -> None:
    """Gradients are added by it too: of a maximum, each chunk would have given its own."""

    class Largest:
        def lift(self, term: Any) -> Any:
            return term

        def add(self, a: Any, b: Any, ours: bool) -> Any:
            del ours
            return onp.maximum(a, b)

        def lower(self, total: Any) -> Any:
            return total

    def total(t: Any) -> Any:
        options: Any = {"grainsize": 1, "sum": Largest(), "scheduler": scheduler}
        return dagad.reduce_sum(lambda rows, t: np.max(rows * t), onp.array([1.0, 5.0, 2.0]), t, **options)

    with pytest.raises(dagad.PlanError, match=r"does not add.*`dagad.map_reduce"):
        dagad.grad(total)(-1.0)
