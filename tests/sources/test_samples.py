"""Samples of Shards: which chunks are they, and are they Shards in every other respect, wherever they lie?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from autograd import value_and_grad
from dask.delayed import delayed

import dagad
from dagad._sources.plan import GivenPlan, Plan
from dagad._values import pytree
from support.gated_chunks import bits
from support.schedulers_of_shards import client as client, place as place, pool as pool

RNG = np.random.default_rng(0)
X, V = RNG.standard_normal((30, 3)), RNG.standard_normal((30, 3))
THETA = np.array([0.3, -0.7, 1.1])
N_CHUNKS, GRAINSIZE = 8, 4


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta) ** 2)


def item(row: Any, theta: Any) -> Any:
    return anp.sin(row * theta)


def on(scheduler: Any, data: Any = X) -> Any:
    return dagad.shard(data, grainsize=GRAINSIZE, scheduler=scheduler)


def numbers(n_chunks: int, step: int, seed: int = 0, n_total: int = N_CHUNKS) -> list[int]:
    """Return which chunks a sample has, of one row each."""
    shards = dagad.shard(np.arange(float(n_total)), grainsize=1, scheduler="sync")
    return [int(row) for row in shards.sample(n_chunks, seed=seed, step=step).gather()]


def numbers_of(sample: Any) -> Any:
    return sample.drawn.numbers


# Which chunks


def test_a_sample_has_the_chunks_that_it_had_when_this_was_written() -> None:
    """Other releases of numpy, other processes and machines are to go on with the same samples."""
    assert [numbers(3, step) for step in range(4)] == [[4, 5, 6], [0, 2, 3], [0, 3, 7], [1, 5, 6]]
    assert [numbers(3, step, seed=2**70) for step in (0, 10**12)] == [[0, 5, 7], [2, 3, 7]]


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_sample_does_not_depend_on_the_seed_of_hashes() -> None:
    program = (
        "import dagad, numpy as np\n"
        "shards = dagad.shard(np.arange(50.0), grainsize=1, scheduler='sync')\n"
        "print(*[shards.sample(7, seed=3, step=step).gather().astype(int).tolist() for step in range(9)])\n"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert str(numbers(7, 8, seed=3, n_total=50)) in found[0]


@pytest.mark.parametrize("n_chunks", [1, 3, 4, 7, 8])
def test_a_sample_has_each_chunk_once_and_in_order_and_an_epoch_too(n_chunks: int) -> None:
    an_epoch = N_CHUNKS // n_chunks
    for epoch in range(5):
        samples = [numbers(n_chunks, step) for step in range(epoch * an_epoch, (epoch + 1) * an_epoch)]
        assert all(one == sorted(set(one)) and len(one) == n_chunks for one in samples)
        seen = [number for one in samples for number in one]
        assert len(set(seen)) == len(seen) == an_epoch * n_chunks


def test_samples_of_many_steps_have_every_chunk_equally_often() -> None:
    counts = np.zeros(N_CHUNKS)
    for step in range(2000):
        counts[numbers(3, step, seed=5)] += 1
    assert np.all(abs(counts - 750) < 5 * np.sqrt(750))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n_chunks": 0, "step": 0}, "Give `n_chunks` from 1 to 8; data cut finer"),
    ({"n_chunks": 9, "step": 0}, "Cannot sample 9 of 8 chunks"),
    ({"n_chunks": 2.5, "step": 0}, "`n_chunks=2.5` is no whole number from 0 on. Give an int"),
    ({"n_chunks": True, "step": 0}, "`n_chunks=True` is no whole number"),
    ({"n_chunks": 2, "step": -1}, "`step=-1` is no whole number from 0 on. Give the number of the step"),
    ({"n_chunks": 2, "step": 1.0}, "`step=1.0`"),
    ({"n_chunks": 2, "step": 1, "seed": None}, "`seed=None`"),
    ({"n_chunks": 2, "step": 1, "seed": -3}, "`seed=-3`"),
]


def test_shards_without_rows_have_no_sample() -> None:
    with pytest.raises(dagad.PlanError, match=r"Cannot sample Shards without rows.*Skip the step"):
        dagad.shard(np.zeros((0, 2)), scheduler="sync").sample(1, step=0)


@pytest.mark.parametrize(("options", "sentence"), REFUSED, ids=[repr(options) for options, _ in REFUSED])
def test_a_sample_that_cannot_be_is_refused_at_once(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(dagad.PlanError, match=sentence):
        on("sync").sample(**options)


def test_a_sample_is_not_sampled_again_but_the_whole_may_be() -> None:
    shards = on("sync")
    with pytest.raises(
        dagad.PlanError, match=r"a sample already, 3 of 8 chunks\. Sample those that they were sampled from"
    ):
        shards.sample(3, step=0).sample(2, step=0)
    assert shards.sample(2, step=0).n_chunks == 2
    with pytest.raises(TypeError, match="step"):
        shards.sample(3)  # the step has no default


def test_numbers_of_numpy_are_taken_as_step_and_seed() -> None:
    shards = on("sync")
    found = shards.sample(np.int64(3), seed=np.int64(2), step=np.uint8(4))
    assert bits(found.gather()) == bits(shards.sample(3, seed=2, step=4).gather())


# Shards in every other respect


def n_rows_of(data: Any) -> int:
    return data.n_rows if isinstance(data, dagad.Shards) else len(data)


def in_theta(data: Any, other: Any, **options: Any) -> Any:
    return dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, data, theta, **options))(THETA)


def in_rows(data: Any, other: Any, **options: Any) -> Any:
    both = dagad.value_and_grad(lambda x, theta: dagad.reduce_sum(chunk, x, theta, **options), (0, 1))
    return both(data, THETA)


def by_jvp(data: Any, other: Any, **options: Any) -> Any:
    return dagad.jvp(lambda x, theta: dagad.reduce_sum(chunk, x, theta, **options), (data, THETA), (other, THETA))


def by_hvp(data: Any, other: Any, **options: Any) -> Any:
    return dagad.hvp(lambda x, theta: dagad.reduce_sum(chunk, x, theta, **options), (data, THETA), (other, THETA))


def mapped(data: Any, other: Any, **options: Any) -> Any:
    return dagad.vjp(lambda theta: dagad.map(item, data, theta, **options), THETA)[1](np.ones((n_rows_of(data), 3)))


def combined(data: Any, other: Any, **options: Any) -> Any:
    return dagad.grad(lambda theta: dagad.map_reduce(chunk, anp.logaddexp, data, theta, **options))(THETA)


def compensated(data: Any, other: Any, **options: Any) -> Any:
    return in_theta(data, other, sum=dagad.extend.CompensatedSum(), **options)


def beside_arrays(data: Any, other: Any, **options: Any) -> Any:
    def total(theta: Any, weights: Any) -> Any:
        return dagad.reduce_sum(weighted, {"x": data, "w": weights}, theta, **options)

    return dagad.value_and_grad(total, (0, 1))(THETA, np.arange(float(n_rows_of(data))))


def weighted(rows: Any, theta: Any) -> Any:
    return chunk(rows["x"] * rows["w"][:, None], theta)


WAYS: dict[str, Callable[..., Any]] = {
    fun.__name__: fun for fun in (in_theta, in_rows, by_jvp, by_hvp, mapped, combined, compensated, beside_arrays)
}


def every_bit(tree: Any) -> list[bytes]:
    leaves = [leaf.gather() if isinstance(leaf, dagad.Shards) else leaf for leaf in pytree.flatten(tree)[0]]
    return bits(leaves)


@pytest.mark.each_value("each way, and each place")
@pytest.mark.parametrize("way", WAYS)
def test_a_sample_has_the_bits_of_its_rows_cut_alike(way: str, place: Any) -> None:
    """In its last chunk, which is shorter, too."""
    shards, other = on(place), on(place, V)
    for step, n_rows in ((0, 16), (1, 14)):
        some, moved = shards.sample(4, step=step), other.sample(4, step=step)
        assert some.n_rows == n_rows
        expected = WAYS[way](some.gather(), moved.gather(), grainsize=GRAINSIZE, scheduler="sync")
        for _ in range(3):  # at first by tasks, then without
            assert every_bit(WAYS[way](some, moved)) == every_bit(expected)


def test_a_gradient_of_a_sample_is_that_of_autograd(place: Any) -> None:
    for step in range(6):
        some = on(place).sample(3, step=step)
        value, gradient = in_theta(some, None)
        expected, by_autograd = value_and_grad(lambda theta, some=some: chunk(some.gather(), theta))(THETA)
        np.testing.assert_allclose(value, expected, rtol=1e-14)
        np.testing.assert_allclose(gradient, by_autograd, rtol=1e-12)


def test_a_gradient_in_the_rows_of_a_sample_is_shards_of_the_same_cut(place: Any) -> None:
    some = on(place).sample(3, step=2)
    gradient = dagad.grad(lambda x: dagad.reduce_sum(chunk, x, THETA))(some)
    assert isinstance(gradient, dagad.Shards)
    assert (gradient.n_chunks, gradient.n_rows, gradient.plan) == (3, some.n_rows, some.plan)
    _, tangent = dagad.jvp(lambda x: dagad.reduce_sum(chunk, x, THETA), some, gradient)
    np.testing.assert_allclose(tangent, np.sum(gradient.gather() ** 2), rtol=1e-12)
    # Data that were cut alike are of the same cut.
    alike = dagad.shard(gradient.gather(), grainsize=GRAINSIZE, scheduler=place)
    assert dagad.jvp(lambda x: dagad.reduce_sum(chunk, x, THETA), some, alike)[1] == tangent


def test_a_sample_of_pieces_of_any_lengths_keeps_them(place: Any) -> None:
    lengths = [3, 1, 5, 2, 4]
    starts = np.cumsum([0, *lengths])
    loaders = [delayed(X[start : start + n]) for start, n in zip(starts, lengths, strict=False)]
    shards = dagad.shard(loaders, scheduler=place)
    whole = [X[start : start + n] for start, n in zip(starts, lengths, strict=False)]
    for step in range(4):
        some = shards.sample(2, seed=1, step=step)
        chosen = numbers_of(some)
        assert bits(some.gather()) == bits(np.concatenate([whole[number] for number in chosen]))
        assert some.plan == GivenPlan((0, lengths[chosen[0]], sum(lengths[n] for n in chosen)), 5)
        value, _ = in_theta(some, None)
        np.testing.assert_allclose(value, sum(chunk(whole[number], THETA) for number in chosen), rtol=1e-14)


def test_a_sample_of_all_chunks_is_the_whole() -> None:
    shards = on("sync")
    every = shards.sample(N_CHUNKS, step=7)
    assert every.plan == shards.plan == Plan(30, GRAINSIZE)
    assert bits(in_theta(every, None)) == bits(in_theta(shards, None))


def test_a_sample_is_shown_as_shards() -> None:
    some = on("threads").sample(2, step=0)
    assert repr(some) == f"<Shards: {some.n_rows} rows in 2 chunks on threads>"
    assert "sample" in dir(some)


# Shards that are differentiated


def test_a_sample_of_shards_that_are_differentiated_has_a_derivative_wherever_they_lie(place: Any) -> None:
    def loss(shards: Any, theta: Any) -> Any:
        some = shards.sample(3, seed=1, step=2)
        total = dagad.reduce_sum(chunk, some, theta) / some.n_rows + shards.n_chunks * shards.grainsize
        return total + dagad.reduce_sum(chunk, shards, theta) * shards.n_rows

    whole = on(place)
    rows = on("sync", np.arange(30)).sample(3, seed=1, step=2).gather()

    def by_autograd(x: Any, theta: Any) -> Any:
        return chunk(x[rows], theta) / len(rows) + 32.0 + chunk(x, theta) * 30.0

    expected = value_and_grad(by_autograd)(X, THETA)
    for _ in range(3):  # hot, on a cluster
        value, gradient = dagad.value_and_grad(loss)(whole, THETA)
        np.testing.assert_allclose(value, expected[0], rtol=1e-12)
        np.testing.assert_allclose(gradient.gather(), expected[1], rtol=1e-12)
    _, tangent = dagad.jvp(lambda shards: loss(shards, THETA), (whole,), (on(place, V),))
    np.testing.assert_allclose(tangent, np.sum(expected[1] * V), rtol=1e-12)


def test_a_gradient_of_a_sample_alone_is_zero_elsewhere() -> None:
    def loss(shards: Any) -> Any:
        return dagad.reduce_sum(chunk, shards.sample(3, seed=1, step=2), THETA)

    whole = on("threads")
    found = dagad.grad(loss)(whole).gather()
    rows = on("sync", np.arange(30)).sample(3, seed=1, step=2).gather()
    assert not np.delete(found, rows, axis=0).any()
    assert np.all(found[rows] != 0.0)


UNDER_DIFFERENTIATION: dict[str, tuple[Any, type[Exception], str]] = {
    "gather": (lambda s: np.sum(s.gather()), dagad.NotDifferentiableError, "differentiate with respect to the array"),
    "len": (lambda s: len(s) * 1.0, dagad.ArgumentsError, r"`shards\.n_rows` is the number of rows"),
    "an index": (lambda s: s[0], dagad.ArgumentsError, r"Sum a function over them, `dagad\.reduce_sum"),
    "a product": (lambda s: s * 2.0, dagad.ArgumentsError, r"Sum a function over them, `dagad\.reduce_sum"),
    "a shape": (lambda s: s.shape[0] * 1.0, AttributeError, r"`shards\.n_rows` is the number of rows"),
    "a method": (lambda s: s.sum(), AttributeError, r"Sum a function over them, `dagad\.reduce_sum"),
    "a sample without a step": (
        lambda s: s.sample(2),
        dagad.ArgumentsError,
        r"called as `sample\(n_chunks, step=\.\.\.\)`",
    ),
}


@pytest.mark.parametrize("case", UNDER_DIFFERENTIATION)
def test_operations_that_shards_under_differentiation_lack_are_refused_with_a_remedy(case: str) -> None:
    act, kind, sentence = UNDER_DIFFERENTIATION[case]
    with pytest.raises(kind, match=sentence):
        dagad.grad(act)(on("sync"))


def test_a_sample_without_a_step_is_shown_how_to_be_called() -> None:
    with pytest.raises(dagad.ArgumentsError, match=r"It is called as `sample\(n_chunks, step=\.\.\.\)`\."):
        on("sync").sample(2, seed=0)
