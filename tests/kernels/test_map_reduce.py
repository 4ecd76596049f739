"""`map_reduce`: is any associative combine right, in value and derivatives, and its tree that of the chunks alone?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
from hypothesis import given, settings, strategies as st

import dagad
from dagad.extend import Keep, Preaccumulate, Recompute, explicit
from dagad.testing import taylor_rate
from support.examples import examples
from support.plain_autograd import Uncut, assert_close, bits, number

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

RNG = onp.random.default_rng(2)
N = 11
X, Y = RNG.standard_normal((N, 3)), RNG.standard_normal(N)
THETA = onp.array([0.3, -0.7, 1.1])
MATRICES = RNG.standard_normal((N, 3, 3)) / 2.0
RAGGED = [RNG.standard_normal(length) for length in (3, 1, 0, 5, 2)]


def log_sum_exp(rows: Any, theta: Any) -> Any:
    exponents = np.dot(rows, theta)
    largest = np.max(exponents)
    return largest + np.log(np.sum(np.exp(exponents - largest)))


def moments(rows: Any, theta: Any) -> Any:
    """Return count, mean and sum of squared deviations, after Welford."""
    x = np.dot(rows, theta)
    return {"n": len(x), "mean": np.mean(x), "m2": np.sum((x - np.mean(x)) ** 2)}


def both_moments(a: Any, b: Any) -> Any:
    n, gap = a["n"] + b["n"], b["mean"] - a["mean"]
    mean = a["mean"] + gap * b["n"] / n
    return {"n": n, "mean": mean, "m2": a["m2"] + b["m2"] + gap**2 * a["n"] * b["n"] / n}


def product(matrices: Any, theta: Any) -> Any:
    result = np.eye(3)
    for place in range(len(matrices)):
        result = np.dot(result, matrices[place] + np.diag(theta))
    return result


def product_of_numbers(rows: Any, theta: Any) -> Any:
    result = theta[0]
    for place in range(len(rows)):
        result = result * rows[place]
    return result


def times(a: Any, b: Any) -> Any:
    return a * b


CASES: dict[str, tuple[Any, Any, Any]] = {
    "log-sum-exp": (log_sum_exp, np.logaddexp, X),
    "moments": (moments, both_moments, X),
    "products of matrices": (product, np.dot, MATRICES),
    "products": (product_of_numbers, times, Y),
    "ragged": (lambda rows, t: sum([np.sum(np.sin(t[0] * row)) for row in rows], 0.0), np.add, RAGGED),
}


def pairwise(f: Any, combine: Any, sliced: Any, *shared: Any, grainsize: int) -> Any:
    """Combine by hand: each half of a power of two of chunks first, what is left over last."""
    values = [f(sliced[at : at + grainsize], *shared) for at in range(0, len(sliced), grainsize)]

    def at(start: int, level: int) -> Any:
        if not level:
            return values[start]
        half = 1 << level - 1
        if start + half >= len(values):
            return at(start, level - 1)
        return combine(at(start, level - 1), at(start + half, level - 1))

    return at(0, (len(values) - 1).bit_length())


def program(total: Callable[..., Any], name: str, **options: Any) -> Callable[..., Any]:
    f, combine, _ = CASES[name]
    return lambda sliced, theta: number(total(f, combine, sliced, theta, **options))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_map_reduce_gives_what_autograd_makes_of_the_same_tree(name: str, scheduler: Any) -> None:
    f, combine, sliced = CASES[name]
    for grainsize in (1, 2, 4, 100) if scheduler == "sync" else (2,):
        options: Any = {"grainsize": grainsize, "scheduler": scheduler}
        value = dagad.map_reduce(f, combine, sliced, THETA, **options)
        assert bits(value) == bits(pairwise(f, combine, sliced, THETA, grainsize=grainsize))
        uncut = Uncut(program(pairwise, name, grainsize=grainsize), sliced, THETA)
        loss, expected = program(dagad.map_reduce, name, **options), uncut.value_and_grad()
        actual = dagad.value_and_grad(loss, (0, 1))(sliced, THETA)
        assert_close(actual, expected)
        here = program(dagad.map_reduce, name, grainsize=grainsize, scheduler="sync")
        assert bits(actual) == bits(dagad.value_and_grad(here, (0, 1))(sliced, THETA))


@pytest.mark.parametrize("name", CASES)
def test_further_derivatives_of_map_reduce_are_those_of_the_same_tree(name: str) -> None:
    args = CASES[name][2], THETA
    uncut, loss = Uncut(program(pairwise, name, grainsize=2), *args), program(dagad.map_reduce, name, grainsize=2)
    assert_close(dagad.hvp(loss, args, uncut.direction()), uncut.hvp(uncut.direction()), 1e-10)
    assert abs(taylor_rate(lambda theta: loss(args[0], theta), THETA) - 2.0) < 0.1


@pytest.mark.parametrize("policy", [None, Keep, Recompute, Preaccumulate])
def test_the_bits_of_map_reduce_do_not_depend_on_the_policy(policy: Any, scheduler: Any) -> None:
    found = [
        dagad.value_and_grad(program(dagad.map_reduce, "moments", grainsize=2, **options), (0, 1))(X, THETA)
        for options in ({"scheduler": scheduler, "policy": policy and policy()}, {"scheduler": "sync"})
    ]
    assert bits(found[0]) == bits(found[1])


@pytest.mark.parametrize("n_chunks", range(1, 21))
def test_the_tree_of_map_reduce_is_that_of_pairs_for_any_number_of_chunks(n_chunks: int) -> None:
    def combine(a: Any, b: Any) -> Any:
        return a * 1.1 + b / 3.0  # not associative at all: another tree gives another value

    rows = RNG.standard_normal(n_chunks)
    written = dagad.map_reduce(lambda rows: rows[0], combine, rows, grainsize=1, scheduler="sync")
    level = list(rows)
    while len(level) > 1:
        pairs = [combine(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) - len(level) % 2 :]
    assert bits(written) == bits(level[0])
    gradient = dagad.grad(lambda r: dagad.map_reduce(lambda r: r[0], combine, r, grainsize=1, scheduler="sync"))(rows)
    expected = autograd.grad(lambda r: pairwise(lambda rows: rows[0], combine, r, grainsize=1))(rows)
    assert_close(gradient, expected)


# --- combines with an edge --------------------------------------------------------------------------------------------


def test_the_gradient_of_a_log_sum_exp_is_the_softmax(scheduler: Any) -> None:
    exponents = onp.array([1000.0, 1001.0, 999.5, -1000.0, 1000.3])
    gradient = dagad.grad(
        lambda x: dagad.map_reduce(
            lambda r: np.logaddexp(r[0], -onp.inf), np.logaddexp, x, grainsize=1, scheduler=scheduler
        )
    )(exponents)
    softmax = onp.exp(exponents - 1001.0)
    assert_close(gradient, softmax / softmax.sum(), 1e-12)


def test_moments_combined_by_map_reduce_are_those_of_the_whole(scheduler: Any) -> None:
    def variance(x: Any) -> Any:
        found = dagad.map_reduce(lambda x: moments(x, THETA), both_moments, x, grainsize=4, scheduler=scheduler)
        return found["m2"] / found["n"]

    actual = dagad.value_and_grad(variance)(X)
    assert_close(actual, autograd.value_and_grad(lambda x: np.var(np.dot(x, THETA)))(X))


@pytest.mark.parametrize("zeros", [[], [3], [0, 6]])
@pytest.mark.parametrize("grainsize", [1, 3])
def test_derivatives_of_products_with_zeros_by_map_reduce_are_right(zeros: list[int], grainsize: int) -> None:
    rows = Y.copy()
    rows[zeros] = 0.0

    def loss(x: Any) -> Any:
        return dagad.map_reduce(lambda r: product_of_numbers(r, onp.ones(1)), times, x, grainsize=grainsize)

    others = onp.array([onp.prod(onp.delete(rows, place)) for place in range(N)])
    assert_close(dagad.grad(loss)(rows), others)
    pairs: Any = [[0.0 if i == j else onp.prod(onp.delete(rows, [i, j])) for i in range(N)] for j in range(N)]
    assert_close(dagad.hvp(loss, rows, onp.ones(N)), onp.sum(pairs, axis=0), 1e-10)


def test_a_tie_gives_half_to_each_side() -> None:
    def largest(x: Any) -> Any:
        return dagad.map_reduce(lambda rows: rows[0], np.maximum, x, grainsize=1, scheduler="sync")

    assert dagad.grad(largest)(onp.array([1.0, 3.0, 3.0, 2.0])).tolist() == [0.0, 0.5, 0.5, 0.0]
    assert dagad.grad(largest)(onp.array([1.0, 5.0, 3.0, 2.0])).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert dagad.grad(largest)(onp.full(4, 2.0)).tolist() == [0.25] * 4


def test_a_combine_can_carry_what_is_rounded_off() -> None:
    def two_sum(a: Any, b: Any) -> Any:
        total = a[0] + b[0]
        partner = total - a[0]
        return total, a[1] + b[1] + (a[0] - (total - partner)) + (b[0] - partner)

    def compensated(x: Any) -> Any:
        return sum(dagad.map_reduce(lambda rows: (rows[0], 0.0 * rows[0]), two_sum, x, grainsize=1))

    value, gradient = dagad.value_and_grad(compensated)(onp.array([1e16, 1.0, -1e16, 1.0, 1.0]))
    assert value == 3.0
    assert_close(gradient, onp.ones(5))


def test_combine_and_function_can_close_over_what_is_differentiated(scheduler: Any) -> None:
    def program(params: Any, total: Any) -> Any:
        return total(lambda rows: np.sum(rows * params["a"]) ** 2, lambda a, b: a * params["b"] + b, Y)

    params = {"a": 0.5, "b": 1.5}
    args = params, lambda *a: dagad.map_reduce(*a, grainsize=2, scheduler=scheduler)
    plain = params, lambda *a: pairwise(*a, grainsize=2)
    assert_close(dagad.value_and_grad(program)(*args), autograd.value_and_grad(program)(*plain))
    expected = autograd.grad(lambda p: autograd.grad(program)(p, plain[1])["b"])(params)
    assert_close(dagad.grad(lambda p: dagad.grad(program)(p, args[1])["b"])(params), expected, 1e-10)


def test_map_reduce_takes_an_explicit_chunk_function(scheduler: Any) -> None:
    @explicit
    def chunk(rows: Any, theta: Any) -> Any:
        return theta * onp.sum(rows), lambda seed: (seed * theta * onp.ones_like(rows), seed * onp.sum(rows))

    def program(x: Any, theta: Any) -> Any:
        return dagad.map_reduce(chunk, times, x, theta, grainsize=4, scheduler=scheduler)

    actual = dagad.value_and_grad(program, (0, 1))(Y, 2.0)
    expected = Uncut(lambda x, t: pairwise(lambda r, t: t * np.sum(r), times, x, t, grainsize=4), Y, 2.0)
    assert_close(actual, expected.value_and_grad())


def test_map_reduce_takes_rows_in_shards(scheduler: Any) -> None:
    shards = dagad.shard(X, grainsize=4, scheduler=scheduler)
    actual = dagad.value_and_grad(lambda theta: dagad.map_reduce(log_sum_exp, np.logaddexp, shards, theta))(THETA)
    here = dagad.value_and_grad(
        lambda theta: dagad.map_reduce(log_sum_exp, np.logaddexp, X, theta, grainsize=4, scheduler="sync")
    )(THETA)
    assert bits(actual) == bits(here)


def test_map_reduce_may_be_nested_in_a_sum_and_hold_a_map(scheduler: Any) -> None:
    def chunk(rows: Any, theta: Any) -> Any:
        return np.sum(dagad.map(lambda row, t: np.tanh(np.dot(row, t)), rows, theta, grainsize=1))

    def item(row: Any, theta: Any) -> Any:
        return dagad.map_reduce(lambda part, t: np.prod(part * t), times, row, theta[0], grainsize=1)

    def program(theta: Any) -> Any:
        inner = dagad.map_reduce(chunk, times, X, theta, grainsize=4, scheduler=scheduler)
        return inner * dagad.map_sum(item, X, theta, grainsize=4, scheduler=scheduler)

    def plain(theta: Any) -> Any:
        inner = pairwise(lambda rows, t: np.sum(np.tanh(np.dot(rows, t))), times, X, theta, grainsize=4)
        return inner * np.sum(np.prod(X * theta[0], axis=1))

    assert_close(dagad.value_and_grad(program)(THETA), autograd.value_and_grad(plain)(THETA))


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(1, 5), st.sampled_from(["f4", "f8"]))
def test_map_reduce_takes_ragged_rows_of_any_dtype(lengths: list[int], grainsize: int, dtype: str) -> None:
    rows = [RNG.standard_normal(length).astype(dtype) for length in lengths]

    def chunk(rows: Any) -> Any:
        return {"sum": sum([np.sum(np.exp(row)) for row in rows]), "n": len(rows), "last": rows[-1]}

    def combine(a: Any, b: Any) -> Any:
        last = np.concatenate([a["last"], b["last"]])
        return {"sum": a["sum"] * b["sum"], "n": a["n"] + b["n"], "last": last}

    def loss(rows: Any, total: Any) -> Any:
        found = total(chunk, combine, rows, grainsize=grainsize)
        assert found["n"] == len(rows)
        return found["sum"] + np.sum(found["last"] ** 2)

    actual = dagad.value_and_grad(loss)(rows, dagad.map_reduce)
    expected = Uncut(lambda rows: loss(rows, pairwise), rows).value_and_grad()
    assert [leaf.dtype for leaf in actual[1]] == [dtype] * len(rows)
    assert_close((actual[0], (actual[1],)), expected, 1e-4 if dtype == "f4" else 1e-12)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_map_reduce_of_no_rows_is_refused_with_the_remedy() -> None:
    with pytest.raises(dagad.DagadError, match=r"there is nothing to combine.*or use `reduce_sum`"):
        dagad.map_reduce(log_sum_exp, np.logaddexp, onp.zeros((0, 3)), THETA)
    with pytest.raises(dagad.DagadError, match="Give a positive int"):
        dagad.map_reduce(log_sum_exp, np.logaddexp, X, THETA, grainsize=0)


def test_a_chunk_that_returns_nothing_or_words_is_refused() -> None:
    functions: Any = (lambda rows: None, lambda rows: {}, lambda rows: "a")
    for f in functions:
        for transform in (lambda loss: loss(Y), lambda loss: dagad.grad(loss)(Y), lambda loss: dagad.jvp(loss, Y, Y)):
            with pytest.raises(dagad.DagadError, match="Return a number, an array, or tuples"):
                transform(lambda x, f=f: dagad.map_reduce(f, times, x, grainsize=4, scheduler="sync"))


def test_errors_in_function_and_combine_arrive_as_they_are(scheduler: Any) -> None:
    def chunk(rows: Any) -> Any:
        return {"a" if rows[0] == Y[0] else "b": np.sum(rows)}

    with pytest.raises(KeyError, match="a"):
        dagad.map_reduce(chunk, lambda a, b: {"a": a["a"] + b["a"]}, Y, grainsize=6, scheduler=scheduler)
    with pytest.raises(ZeroDivisionError) as raised:
        dagad.map_reduce(lambda rows: 1 // int(rows[0] != Y[4]), times, Y, grainsize=4, scheduler=scheduler)
    assert "chunk 1 (rows 4:8)" in " ".join(raised.value.__notes__)


WORDS = ["a", "b", "a", "a", "c", "d", "a"]


def weights_of(words: Any, theta: Any) -> Any:
    found: dict[str, Any] = {}
    for word in words:
        found[word] = found.get(word, 0.0) + np.exp(theta[ord(word) - ord("a")] * len(found))
    return found


def both_weights(a: Any, b: Any) -> Any:
    return {key: a.get(key, 0.0) + b.get(key, 0.0) * 2.0 for key in sorted({*a, *b})}


@pytest.mark.parametrize("combine", [both_weights, lambda a, b: {**a, **b}])
@pytest.mark.parametrize("grainsize", [1, 2, 3])
def test_chunks_may_give_different_numbers_of_leaves(combine: Any, grainsize: int, scheduler: Any) -> None:
    theta = onp.array([0.3, -0.7, 1.1, 0.2])

    def cut(theta: Any, total: Any) -> Any:
        found = total(theta)
        return sum(found[key] ** 2 * (1.0 + place) for place, key in enumerate(sorted(found)))

    def by_dagad(theta: Any) -> Any:
        return dagad.map_reduce(weights_of, combine, WORDS, theta, grainsize=grainsize, scheduler=scheduler)

    def by_hand(theta: Any) -> Any:
        chunks = [weights_of(WORDS[at : at + grainsize], theta) for at in range(0, len(WORDS), grainsize)]
        while len(chunks) > 1:
            pairs = [combine(*chunks[at : at + 2]) for at in range(0, len(chunks) - 1, 2)]
            chunks = pairs + chunks[len(chunks) // 2 * 2 :]
        return chunks[0]

    assert by_dagad(theta) == pytest.approx(by_hand(theta), rel=1e-14)
    loss, plain = (lambda theta, total=total: cut(theta, total) for total in (by_dagad, by_hand))
    assert_close(dagad.grad(loss)(theta), autograd.grad(plain)(theta))
    direction = onp.cos(onp.arange(4.0))
    assert dagad.jvp(loss, theta, direction)[1] == pytest.approx(autograd.grad(plain)(theta) @ direction)
    assert_close(dagad.hvp(loss, theta, direction), autograd.hessian(plain)(theta) @ direction)
    assert_close(
        dagad.jacrev(lambda theta: by_dagad(theta)["a"])(theta), autograd.grad(lambda t: by_hand(t)["a"])(theta)
    )


def test_lists_of_several_lengths_are_combined(scheduler: Any) -> None:
    def squares(theta: Any) -> Any:
        listed = dagad.map_reduce(
            lambda rows, t: [row * t for row in rows],
            lambda a, b: a + b,
            Y[:7],
            theta,
            grainsize=2,
            scheduler=scheduler,
        )
        assert len(listed) == 7
        return sum(entry**2 for entry in listed)

    assert dagad.grad(squares)(3.0) == pytest.approx(6.0 * onp.sum(Y[:7] ** 2))
    assert dagad.hvp(squares, 3.0, 1.0) == pytest.approx(2.0 * onp.sum(Y[:7] ** 2))
