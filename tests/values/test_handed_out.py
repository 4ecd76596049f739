"""Gradients: the caller's own in every mode, without a copy where nobody else holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad._sources.slots import Slots
from dagad._values import pytree
from dagad._values.canonical import handed_out
from dagad.extend import CompensatedSum, Keep, Recompute
from support.waiting import PATIENCE

X = np.arange(1.0, 9.0)
THETA = np.array([1.0, 2.0])


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(rows * theta[0] ** 2) + anp.sum(theta**3)


MODES: dict[str, Callable[[Any], Any]] = {
    "grad": lambda loss: dagad.grad(loss)(THETA),
    "value_and_grad": lambda loss: dagad.value_and_grad(loss)(THETA),
    "vjp": lambda loss: dagad.vjp(loss, THETA)[1](1.0),
    "evaluate": lambda loss: dagad.evaluate(loss, THETA).gradient(PATIENCE),
    "lazy": lambda loss: dagad.evaluate(loss, THETA, lazy=True).gradient(PATIENCE),
    "jvp": lambda loss: dagad.jvp(dagad.grad(loss), (THETA,), (THETA,)),
    "hvp": lambda loss: dagad.hvp(loss, THETA, THETA),
    "hessian": lambda loss: dagad.hessian(loss)(THETA),
    "jacrev": lambda loss: dagad.jacrev(dagad.grad(loss))(THETA),
    "jacrev of a number": lambda loss: dagad.jacrev(loss)(THETA),
    "jacfwd": lambda loss: dagad.jacfwd(dagad.grad(loss))(THETA),
    "jacfwd of a number": lambda loss: dagad.jacfwd(loss)(THETA),
    "grad of grad": lambda loss: dagad.grad(lambda theta: anp.sum(dagad.grad(loss)(theta) ** 2))(THETA),
    "autograd.grad": lambda loss: autograd.grad(loss)(THETA),
    "autograd.value_and_grad": lambda loss: autograd.value_and_grad(loss)(THETA)[1],
    "autograd around": lambda loss: autograd.grad(lambda theta: anp.sum(dagad.grad(loss)(theta)))(THETA),
}
SUMS: dict[str, Callable[..., Any]] = {
    "reduce_sum": lambda data, theta, **options: dagad.reduce_sum(chunk, data, theta, **options),
    "map_sum": lambda data, theta, **options: dagad.map_sum(chunk, data, theta, **options),
    "map": lambda data, theta, **options: anp.sum(dagad.map(chunk, data, theta, **options)),
    "compensated": lambda data, theta, **options: dagad.reduce_sum(chunk, data, theta, sum=CompensatedSum(), **options),
    "plain": lambda data, theta, **options: chunk(data, theta),
}


def arrays_of(tree: Any) -> list[Any]:
    return [leaf for leaf in pytree.flatten(tree)[0] if isinstance(leaf, np.ndarray)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("total", SUMS.values(), ids=SUMS)
@pytest.mark.parametrize("where", ["sync", "threads"])
def test_arrays_that_every_mode_gives_can_be_written_to(mode: Any, total: Any, where: Any) -> None:
    found = arrays_of(mode(lambda theta: total(X, theta, grainsize=2, scheduler=where)))
    assert found
    for array in found:
        array *= 2.0
    assert THETA.tolist() == [1.0, 2.0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_arrays_that_every_mode_gives_from_a_cluster_can_be_written_to(mode: Any, cluster: Client) -> None:
    test_arrays_that_every_mode_gives_can_be_written_to(mode, SUMS["reduce_sum"], cluster)


def test_gradients_in_rows_can_be_written_to(scheduler: Any) -> None:
    def loss(x: Any, items: Any) -> Any:
        return dagad.reduce_sum(
            lambda rows: anp.sum(rows[0] ** 2) + sum(anp.sum(item**2) for item in rows[1]),
            (x, items),
            grainsize=2,
            scheduler=scheduler,
        )

    found = dagad.grad(loss, argnums=(0, 1))(X, [np.ones(2)] * 8)
    for array in arrays_of(found):
        array *= 2.0
    assert found[0].tolist() == (4 * X).tolist()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", [None, Keep(), Recompute()], ids=str)
def test_a_pullback_does_not_remember_what_is_written_into_its_gradient(policy: Any, scheduler: Any) -> None:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=2, policy=policy, scheduler=scheduler)

    ours, autograds = dagad.vjp(loss, THETA)[1], autograd.make_vjp(loss)(THETA)[0]
    pulls: list[Callable[[float], Any]] = [lambda seed: ours(seed)[0], autograds]
    for pull in pulls:
        first = pull(1.0)
        expected = first.copy()
        first *= 0.0
        assert pull(1.0).tolist() == expected.tolist()


# What else might hold it


def test_a_cotangent_that_comes_back_is_not_the_one_that_went_in() -> None:
    seed = np.ones(2)
    (found,) = dagad.vjp(lambda theta: theta + 0.0, THETA)[1](seed)
    found *= 2.0
    assert seed.tolist() == [1.0, 1.0]


def test_two_arguments_do_not_share_their_gradient() -> None:
    one, other = dagad.grad(lambda x, y: anp.sum(x + y), argnums=(0, 1))(THETA, THETA)
    one *= 2.0
    assert other.tolist() == [1.0, 1.0]


def test_tangents_are_neither_the_one_that_went_in_nor_one_for_two_outputs() -> None:
    direction = np.ones(3)
    a, b = dagad.jvp(lambda x: (x + 1.0, x + 2.0), (np.zeros(3),), (direction,))[1]
    a[0] = 9.0
    assert direction.tolist() == b.tolist() == [1.0, 1.0, 1.0]


def test_data_that_a_rule_returns_stay_the_users() -> None:
    mine = np.array([3.0, 4.0])
    mine.flags.writeable = False

    @autograd.extend.primitive  # type: ignore[untyped-decorator]  # autograd has no types
    def linear(theta: Any) -> Any:
        return float(mine @ theta)

    autograd.extend.defvjp(linear, lambda ans, theta: lambda seed: mine)
    gradient = dagad.grad(linear)(THETA)
    gradient *= 2.0
    assert mine.tolist() == [3.0, 4.0]
    assert not mine.flags.writeable


def test_a_gradient_in_a_number_is_a_number() -> None:
    assert type(dagad.grad(lambda theta: dagad.reduce_sum(np.multiply, X[:1], theta)[0])(2.0)) is np.float64


# Without a copy


@pytest.mark.parametrize("mode", ["grad", "evaluate", "lazy"])
@pytest.mark.parametrize("where", ["sync", "threads"])
def test_a_gradient_that_nobody_else_holds_is_not_copied(
    mode: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed, seal = list[int](), Slots.seal

    def noted(slots: Slots) -> list[Any]:
        found = seal(slots)
        sealed.extend(array.ctypes.data for array in found)
        return found

    monkeypatch.setattr(Slots, "seal", noted)
    for grainsize in (1, 8, 8, 8):  # as a graph, and inline
        (gradient,) = arrays_of(
            MODES[mode](lambda theta, size=grainsize: SUMS["reduce_sum"](X, theta, grainsize=size, scheduler=where))
        )
        assert gradient.ctypes.data in sealed


def test_only_gradients_that_are_held_elsewhere_are_copied() -> None:
    mine = np.ones(2)
    shared, view = np.zeros(2), np.zeros(4)[::2]
    parts: list[Any] = [np.ones(3), mine, shared, shared, view, 1.0, None]
    before = [getattr(part, "ctypes", None) and part.ctypes.data for part in parts]
    del shared, view
    found = handed_out(parts)
    assert found is parts
    kept = [getattr(part, "ctypes", None) and part.ctypes.data == at for part, at in zip(found, before, strict=True)]
    assert kept == [True, False, False, True, False, None, None]
