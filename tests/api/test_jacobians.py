"""Jacobians: are `jacfwd`, `jacrev` and `hessian` those of the uncut function, and is no chunk run for nothing?"""

from __future__ import annotations

from functools import partial
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
from autograd.extend import defvjp, primitive
from hypothesis import given, settings, strategies as st

import dagad
from dagad.extend import CompensatedSum, Dense, Keep, Preaccumulate, Recompute, Sparse
from support.cut_and_whole_programs import WHOLE, Point, close, cut_on
from support.examples import examples

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

RNG = onp.random.default_rng(6)
X, THETA = RNG.standard_normal((7, 2)), onp.array([0.4, -0.9])
LENGTHS = [2, 0, 1, 2, 1, 0, 2]


def moments(rows: Any, t: Any) -> Any:
    return np.sum(np.sin(rows * t) * rows[:, ::-1], axis=0)


def job(rows: Any, t: Any) -> Any:
    row, length = rows
    return (np.exp(row * t[0]) + np.sum(row) * t[1] ** 2)[:length]


def mixed(ops: Any, x: Any, t: Any) -> Any:
    total = ops.reduce_sum(moments, x, t)
    return np.outer(total, ops.map(lambda row, t: np.sum(np.tanh(row * t)), x, total)) * np.sum(x[0])


# From rows and shared parameters to an array.
PROGRAMS: dict[str, Any] = {
    "a sum": lambda ops, x, t: ops.reduce_sum(moments, x, t),
    "a compensated sum": lambda ops, x, t: ops.reduce_sum(moments, x, t, sum=CompensatedSum()),
    "a number": lambda ops, x, t: ops.reduce_sum(lambda rows, t: np.sum(np.cos(rows @ t)), x, t),
    "a map": lambda ops, x, t: ops.map(lambda row, t: np.outer(row**2, t), x, t),
    "a map of numbers": lambda ops, x, t: ops.map(lambda row, t: np.prod(row * t), x, t),
    "ragged jobs": lambda ops, x, t: ops.map_rect(job, (x, LENGTHS), t),
    "combined": lambda ops, x, t: ops.map_reduce(lambda rows, t: np.max(rows * t, axis=0), np.maximum, x, t),
    "mixed": mixed,
}


# --- the numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_jacobian_is_that_of_the_uncut_function(name: str, scheduler: Any) -> None:
    cut, whole = partial(PROGRAMS[name], cut_on(scheduler)), partial(PROGRAMS[name], WHOLE)
    by_rows, by_columns = dagad.jacrev(cut, (0, 1))(X, THETA), dagad.jacfwd(cut, (0, 1))(X, THETA)
    for place in (0, 1):
        expected = autograd.jacobian(whole, place)(X, THETA)
        assert close(by_rows[place], expected)
        assert close(by_columns[place], expected)
        sparse = dagad.jacrev(cut, place, layout=Sparse())(X, THETA)
        assert sparse.shape == (onp.size(whole(X, THETA)), onp.size((X, THETA)[place]))
        assert onp.array_equal(sparse.toarray(), by_rows[place].reshape(sparse.shape))
    if scheduler != "sync":
        again = partial(PROGRAMS[name], cut_on("sync"))
        assert [part.tobytes() for part in by_rows] == [
            part.tobytes() for part in dagad.jacrev(again, (0, 1))(X, THETA)
        ]
        assert [part.tobytes() for part in by_columns] == [
            part.tobytes() for part in dagad.jacfwd(again, (0, 1))(X, THETA)
        ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("grainsize", [1, 2, 100])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hessian_is_right_and_symmetric(name: str, grainsize: int) -> None:
    def scalar(ops: Any, x: Any, t: Any) -> Any:
        out = PROGRAMS[name](ops, x, t)
        return np.sum(out**2 * np.cos(out))

    (xx, xt), (tx, tt) = dagad.hessian(partial(scalar, cut_on("sync", grainsize)), (0, 1))(X, THETA)
    assert close(xx, autograd.hessian(partial(scalar, WHOLE))(X, THETA), 1e-10)
    assert close(tt, autograd.hessian(partial(scalar, WHOLE, X))(THETA), 1e-10)
    assert close(xt, onp.moveaxis(tx, 0, 2), 1e-10)
    assert close(xx, onp.transpose(xx, (2, 3, 0, 1)), 1e-10)
    assert close(tt, tt.T, 1e-10)
    for jacobian in (dagad.jacfwd(dagad.grad(partial(scalar, cut_on("sync", grainsize)), 1), 1), autograd.hessian):
        if jacobian is not autograd.hessian:
            assert close(jacobian(X, THETA), tt, 1e-10)
    assert close(autograd.hessian(partial(scalar, cut_on("sync", grainsize), X))(THETA), tt, 1e-10)


@pytest.mark.sampled(4)
def test_a_hessian_has_the_same_bits_on_every_scheduler(scheduler: Any) -> None:
    def valley(t: Any, where: Any) -> Any:
        """Rosenbrock's function, in pieces."""
        pairs = (t[:-1], t[1:])
        return dagad.reduce_sum(
            lambda rows: np.sum(100.0 * (rows[1] - rows[0] ** 2) ** 2 + (1.0 - rows[0]) ** 2),
            pairs,
            grainsize=2,
            scheduler=where,
        )

    t = onp.array([1.0, 2.0, -0.5, 0.25, 3.0, 1.5])
    found = dagad.hessian(valley)(t, scheduler)
    expected = onp.zeros((6, 6))
    for i in range(5):
        expected[i, i] += 1200.0 * t[i] ** 2 - 400.0 * t[i + 1] + 2.0
        expected[i + 1, i + 1] += 200.0
        expected[i, i + 1] = expected[i + 1, i] = -400.0 * t[i]
    assert close(found, expected)
    assert found.tobytes() == dagad.hessian(valley)(t, "sync").tobytes()
    minimum = onp.ones(6)
    assert not dagad.grad(valley)(minimum, scheduler).any()
    assert onp.linalg.eigvalsh(dagad.hessian(valley)(minimum, scheduler))[0] > 0


ROAD = settings(max_examples=examples(25), deadline=None, derandomize=True)


@ROAD
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_jacobians_of_ragged_jobs_agree(lengths: list[int], grainsize: int, seed: int) -> None:
    rng = onp.random.default_rng(seed)
    x, t = rng.standard_normal((len(lengths), 3)), rng.standard_normal(2)

    def program(x: Any, t: Any) -> Any:
        return dagad.map_rect(job, (x, lengths), t, grainsize=grainsize, scheduler="sync")

    by_rows, by_columns = dagad.jacrev(program, (0, 1))(x, t), dagad.jacfwd(program, (0, 1))(x, t)
    for row_wise, column_wise in zip(by_rows, by_columns, strict=True):
        assert close(row_wise, column_wise)
    w, v = rng.standard_normal(sum(lengths)), rng.standard_normal(x.shape)
    tangent_out, pulled = dagad.jvp(program, (x, t), (v, None))[1], dagad.vjp(program, x, t)[1](w)[0]
    assert abs(onp.sum(tangent_out * w) - onp.sum(pulled * v)) <= 1e-12 * max(onp.sum(onp.abs(pulled * v)), 1e-300)
    owner = onp.repeat(onp.arange(len(lengths)), lengths)
    for row, mine in zip(by_rows[0], owner, strict=True):
        assert not onp.delete(row, mine, axis=0).any()


# --- structure and types ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Argument . .*holds integers:dagad.DagadWarning")  # constants on purpose
def test_a_jacobian_of_pytrees_is_a_pytree_of_pytrees() -> None:
    def program(tree: Any, scale: Any) -> Any:
        total = dagad.reduce_sum(lambda rows, p: np.sum(rows * p.x) * p.y[0], X[:, 0], tree["p"], grainsize=2)
        return Point(total * scale, {"a": tree["p"].x ** 2 * onp.ones((2, 3)), "n": 3, "none": None})

    tree, total = {"p": Point(2.0, [onp.array([0.5, 1.5]), "text"]), "n": 7}, onp.sum(X[:, 0])
    for jacobian in (dagad.jacfwd, dagad.jacrev):
        found = jacobian(program, (0, 1))(tree, 3.0)
        assert type(found) is Point
        of_tree, of_scale = found.x
        assert close(of_tree["p"].x, total * onp.array([0.5, 1.5]) * 3.0)
        assert close(of_tree["p"].y[0], 2.0 * total * 3.0 * onp.eye(2))
        assert (of_tree["p"].y[1], of_tree["n"]) == (None, None)
        assert close(of_scale, 2.0 * total * onp.array([0.5, 1.5]))
        assert close(found.y["a"][0]["p"].x, onp.full((2, 3), 4.0))
        assert found.y["a"][0]["p"].y[0].shape == (2, 3, 2)
        assert found.y["a"][1].shape == (2, 3)
        assert (found.y["n"], found.y["none"]) == (None, None)
    hessian = dagad.hessian(lambda tree: np.sum(program(tree, 3.0).x ** 2))(tree)
    assert hessian["p"].x["p"].y[0].shape == (2,)
    assert close(hessian["p"].x["p"].y[0], hessian["p"].y[0]["p"].x)
    assert hessian["n"] is None


def test_a_jacobian_of_outputs_of_different_sums_is_right() -> None:
    t, rows = onp.linspace(0.1, 1.0, 40), X[:, 0]

    def waves(rows: Any, t: Any) -> Any:
        return np.sum(np.sin(np.outer(rows, t)), axis=0)

    def program(ops: Any, t: Any, a: Any) -> Any:
        """Half of the outputs come from a sum, more of them than a task pulls at once, the others don't."""
        sums = ops.reduce_sum(waves, rows, t)
        return ops.map(lambda item: item[0] ** 2 if item[2] < 20 else item[1] ** 2, (sums, a, list(range(40))))

    found = dagad.jacrev(partial(program, cut_on("sync")), (0, 1))(t, t)
    for place in (0, 1):
        assert close(found[place], autograd.jacobian(partial(program, WHOLE), place)(t, t))
    apart = dagad.jacrev(lambda t: (dagad.reduce_sum(waves, rows, t, grainsize=2), t**2))(t)
    assert close(apart[0], autograd.jacobian(partial(waves, rows))(t))
    assert close(apart[1], onp.diag(2.0 * t))


def test_jacobians_take_keywords_and_argnums() -> None:
    def program(a: Any, b: Any, *, power: int = 1) -> Any:
        return a**power * b

    for jacobian in (dagad.jacfwd, dagad.jacrev):
        assert close(jacobian(program, -1)(onp.ones(2), 3.0, power=2), onp.ones(2))
        assert close(jacobian(program)(onp.array([1.0, 2.0]), 3.0, power=2), onp.diag([6.0, 12.0]))
        assert jacobian(program).__name__ == "program"
        with pytest.raises(dagad.StructureError, match="argnums=2"):
            jacobian(program, 2)(1.0, 2.0)


@pytest.mark.sampled(4)
def test_jacobians_of_float32_are_float32(scheduler: Any) -> None:
    fun = partial(PROGRAMS["a map"], cut_on(scheduler))
    for jacobian in (dagad.jacfwd, dagad.jacrev):
        found = jacobian(fun, 1)(X.astype("f4"), THETA.astype("f4"))
        assert found.dtype == "f4"
        assert close(found, jacobian(fun, 1)(X, THETA), 1e-6)
    assert dagad.hessian(lambda t: np.sum(fun(X, t) ** 2))(THETA.astype("f4")).dtype == "f4"


EMPTY = [
    (name, shape)
    for name in ("a sum", "a map of numbers", "a map", "a compensated sum", "ragged jobs")
    for shape in ((0, 2), (3, 0), (1, 2))
    if (name, shape) != ("ragged jobs", (3, 0))  # which take two parameters
]


@pytest.mark.parametrize(("name", "shape"), EMPTY)
def test_jacobians_of_no_rows_and_of_empty_rows_are_right(name: str, shape: tuple[int, int]) -> None:
    rng = onp.random.default_rng(7)
    x, t = rng.standard_normal(shape), rng.standard_normal(shape[1])
    program = PROGRAMS[name] if name != "ragged jobs" else ragged
    cut = partial(program, cut_on("sync", 2))
    by_rows, by_columns = dagad.jacrev(cut, (0, 1))(x, t), dagad.jacfwd(cut, (0, 1))(x, t)
    out = onp.shape(cut(x, t))
    for place, argument in enumerate((x, t)):
        assert by_rows[place].shape == by_columns[place].shape == (*out, *argument.shape)
        assert close(by_rows[place], by_columns[place])
        sparse = dagad.jacrev(cut, place, layout=Sparse())(x, t)
        assert sparse.shape == (onp.prod(out, dtype=int), argument.size)
    hessian = dagad.hessian(lambda x, t: np.sum(cut(x, t) ** 2), (0, 1))(x, t)
    assert hessian[0][1].shape == (*shape, shape[1])


def ragged(ops: Any, x: Any, t: Any) -> Any:
    return ops.map_rect(job, (x, LENGTHS[: len(x)]), t)


def test_jacobians_can_be_differentiated_again() -> None:
    fun = partial(PROGRAMS["mixed"], cut_on("sync"), X)
    whole = partial(PROGRAMS["mixed"], WHOLE, X)

    def norm(jacobian: Any, fun: Any, t: Any) -> Any:
        return np.sum(np.sin(jacobian(fun)(t)))

    expected = autograd.grad(partial(norm, autograd.jacobian, whole))(THETA)
    for jacobian in (dagad.jacfwd, dagad.jacrev, autograd.jacobian):
        assert close(dagad.grad(partial(norm, jacobian, fun))(THETA), expected, 1e-10)
        assert close(dagad.jvp(partial(norm, jacobian, fun), THETA, THETA)[1], onp.sum(expected * THETA), 1e-10)
    assert close(dagad.jacfwd(dagad.jacrev(fun))(THETA), dagad.jacrev(dagad.jacfwd(fun))(THETA), 1e-10)


# --- how often --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", ["sync", "threads"])
@pytest.mark.parametrize(("policy", "runs"), [(Keep, 1), (Recompute, 2), (Preaccumulate, 1)])
def test_each_chunk_is_run_once_for_a_jacobian_of_64_rows(policy: Any, runs: int, local: str) -> None:
    t, kept = onp.linspace(0.1, 1.0, 64), policy()

    def waves(rows: Any, t: Any) -> Any:
        return np.sum(np.sin(np.outer(rows[:, 0], t)), axis=0)

    jacobian = dagad.jacrev(lambda t: dagad.reduce_sum(waves, X, t, grainsize=2, policy=kept, scheduler=local))(t)
    assert close(jacobian, onp.diag(X[:, 0] @ onp.cos(onp.outer(X[:, 0], t))))
    assert kept.n_primal == 4 * runs
    assert kept.n_pullback == 64 * 4
    assert close(dagad.jacfwd(lambda t: dagad.reduce_sum(waves, X, t, grainsize=2, scheduler=local))(t), jacobian)


@pytest.mark.parametrize(("policy", "runs"), [(Keep, 1), (Recompute, 2)])
def test_each_chunk_is_run_once_for_a_jacobian_of_several_outputs(policy: Any, runs: int) -> None:
    kept = policy()

    def two(rows: Any, t: Any) -> Any:
        return {"waves": moments(rows, t), "number": np.sum(np.cos(rows @ t))}

    jacobian = dagad.jacrev(lambda t: dagad.reduce_sum(two, X, t, grainsize=2, policy=kept, scheduler="sync"))(THETA)
    assert close(jacobian["waves"], autograd.jacobian(lambda t: two(X, t)["waves"])(THETA))
    assert close(jacobian["number"], autograd.grad(lambda t: two(X, t)["number"])(THETA))
    assert kept.n_primal == 4 * runs


PULLED: list[float] = []


@primitive  # type: ignore[untyped-decorator]  # autograd has no types
def watched(x: Any) -> Any:
    return x**3


def watch(x: Any, g: Any) -> Any:
    PULLED.append(float(x[0]))
    return g * 3.0 * x**2


defvjp(watched, lambda ans, x: lambda g: watch(x, g))


@pytest.mark.parametrize("grainsize", [1, 3, 100])
def test_a_job_is_pulled_for_its_own_outputs_only(grainsize: int) -> None:
    def cubes(rows: Any) -> Any:
        return dagad.map_rect(
            lambda item: watched(item[0])[: item[1]], (rows, LENGTHS), grainsize=grainsize, scheduler="sync"
        )

    PULLED.clear()
    sparse = dagad.jacrev(cubes, layout=Sparse())(X)
    assert sorted(PULLED) == sorted(onp.repeat(X[:, 0], LENGTHS))
    assert sparse.nnz == sum(LENGTHS)
    PULLED.clear()
    assert onp.array_equal(dagad.jacrev(cubes, layout=Dense())(X).reshape(sparse.shape), sparse.toarray())
    assert len(PULLED) == sum(LENGTHS)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jacobian", [dagad.jacfwd, dagad.jacrev])
def test_complex_jacobians_are_refused_with_the_remedy(jacobian: Any) -> None:
    for fun, argument in ((lambda x: x * 1j, 1.0), (lambda x: np.abs(x), 1.0 + 1j)):
        with pytest.raises(dagad.NotDifferentiableError, match=r"complex.*`dagad\.vjp` or `dagad\.jvp`"):
            jacobian(fun)(argument)


@pytest.mark.parametrize("jacobian", [dagad.jacfwd, dagad.jacrev, dagad.hessian])
def test_a_jacobian_in_integers_is_refused_with_the_remedy(jacobian: Any) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"Argument 0 .*holds no floating-point.*only int.*`float"):
        jacobian(lambda x: x * 2.0)(3)


def test_a_layout_of_a_jacobian_that_is_none_is_refused() -> None:
    wrong: Any = ("sparse", Sparse)
    for layout in wrong:
        with pytest.raises(dagad.PlanError, match=r"layout=.*Give an object.*Sparse\(\)"):
            dagad.jacrev(lambda x: x, layout=layout)


def test_a_sparse_jacobian_that_is_differentiated_is_refused() -> None:
    with pytest.raises(dagad.NotDifferentiableError, match="sparse Jacobian can't be differentiated"):
        dagad.grad(lambda b: dagad.jacrev(lambda a: a * b, layout=Sparse())(2.0))(1.0)


@pytest.mark.parametrize("jacobian", [dagad.jacfwd, dagad.jacrev, dagad.hessian])
def test_jacobians_in_shards_are_refused_with_the_remedy(jacobian: Any, scheduler: Any) -> None:
    shards = dagad.shard(X, grainsize=2, scheduler=scheduler)
    with pytest.raises(dagad.NotDifferentiableError, match=r"rows in Shards.*`shards\.gather\(\)`"):
        jacobian(lambda rows: dagad.reduce_sum(lambda x, t: np.sum(np.cos(x @ t)), rows, THETA))(shards)


def test_numbers_in_single_precision_need_not_agree_to_more_than_that_between_groups_of_columns() -> None:
    def chunk(rows: Any) -> Any:
        first, second, numbers = rows
        inner = np.sum(np.sin(first) * 0.6) + np.sum(np.sin(second) * 0.2) + 0.9 * np.sin(numbers[0])
        return np.sin(inner) + 0.3 * inner

    def fun(sliced: Any) -> Any:
        return np.sin(dagad.reduce_sum(chunk, sliced, grainsize=1, scheduler="sync"))

    for seed in range(12):
        first, second, third = onp.random.default_rng(seed).random((3, 6))
        numbers = [onp.float32(number) if place in (3, 5) else float(number) for place, number in enumerate(third)]
        found = dagad.jacfwd(dagad.grad(fun))((first, second, numbers))
        exact = dagad.jacfwd(dagad.grad(fun))((first, second, third))
        onp.testing.assert_allclose(found[0][1], exact[0][1], rtol=1e-4, atol=1e-6)
