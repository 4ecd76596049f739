"""Members and pullbacks: has each what it has alone, whoever pulls what, when, and in which thread?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from scipy import integrate

import dagad
from dagad import solvers
from dagad._executors import members
from support.gated_chunks import bits
from support.waiting import PATIENCE, in_background

RNG = np.random.default_rng(0)
X = RNG.standard_normal((22, 3))
THETAS = RNG.standard_normal((4, 3))
N = len(THETAS)
NUMBERS = np.arange(N)


@pytest.fixture
def sharded(scheduler: Any) -> Callable[[], Any]:
    """Return what makes Shards: pytest holds what a fixture returns until the cluster is gone."""
    return lambda: dagad.shard(X, grainsize=4, scheduler=scheduler)


def vectors(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta), axis=0)


def numbers(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta) ** 2)


KINDS = {"vectors": vectors, "numbers": numbers}


def over(shards: Any, chunk: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda theta: dagad.reduce_sum(chunk, shards, theta, **options)


def seed_of(value: Any, number: int) -> Any:
    return np.cos(value) * (1.0 + number)


def finished(act: Callable[[], Any]) -> Any:
    """Return what a call returns, which is not to hang."""
    return in_background(act).result(PATIENCE)


def check(fun: Any, expected: Any) -> None:
    for _ in range(3):  # hot, on a cluster
        assert bits(list(finished(lambda: dagad.vmap(fun)(THETAS, NUMBERS)))) == bits(list(expected))


class Whose:
    """A program whose members make a pullback each, and then call that of some member, when all are there."""

    def __init__(self, shards: Any, chunk: Any, whose: Callable[[int], int | None], **options: Any) -> None:
        self.loss, self.meet, self.whose = over(shards, chunk, **options), over(shards, numbers), whose
        # Members hand pullbacks over by what belongs to Python, and is not looked into: else they would run one by one.
        self.handed_over: Any = threading.Event()
        vars(self.handed_over)["pullbacks"] = {}

    @property
    def made(self) -> dict[int, Any]:
        found: dict[int, Any] = self.handed_over.pullbacks
        return found

    def __call__(self, theta: Any, number: Any) -> Any:
        value, pullback = dagad.vjp(self.loss, theta)
        self.made[int(number)] = pullback
        self.meet(theta)
        return self.called(value, int(number))

    def called(self, value: Any, number: int) -> Any:
        chosen = self.whose(number)
        return np.zeros(3) if chosen is None else self.made[chosen](seed_of(value, number))[0]

    def alone(self) -> list[Any]:
        made = [dagad.vjp(self.loss, theta) for theta in THETAS]
        chosen = [self.whose(number) for number in range(N)]
        return [
            np.zeros(3) if which is None else made[which][1](seed_of(made[number][0], number))[0]
            for number, which in enumerate(chosen)
        ]


WHOSE: dict[str, Callable[[int], int | None]] = {
    "its own": lambda number: number,
    "the next one's": lambda number: (number + 1) % N,
    "that of one of them": lambda number: 1,
    "its own, but for one": lambda number: None if number == 2 else number,
    "one of another, and no other": lambda number: 0 if number == 3 else None,
}
POLICIES = {"as ever": None, "keep": dagad.extend.Keep, "recompute": dagad.extend.Recompute}


@pytest.mark.each_value("each way, each kind and each policy")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("whose", WHOSE)
def test_a_pullback_gives_its_own_members_cotangents_whichever_member_calls_it(
    whose: str, kind: str, policy: str, sharded: Any
) -> None:
    shards = sharded()
    made: Any = POLICIES[policy]
    program = Whose(shards, KINDS[kind], WHOSE[whose], policy=made and made())
    check(program, program.alone())


def test_members_pull_together_where_each_pulls_its_own_or_those_of_each_other(monkeypatch: Any, sharded: Any) -> None:
    shards = sharded()
    seen, answers = list[tuple[int, bool]](), members._answers

    def noted(requests: Any) -> Any:
        found = answers(requests)
        if requests[0].method == members.PULL:
            seen.append((len(requests), found[0] is not members.ALONE))
        return found

    monkeypatch.setattr(members, "_answers", noted)
    for whose in ("its own", "the next one's"):
        program = Whose(shards, vectors, WHOSE[whose])
        dagad.vmap(program)(THETAS, NUMBERS)
    assert seen == [(N, True)] * 2


def test_a_pullback_from_outside_is_called_by_members(sharded: Any) -> None:
    shards = sharded()
    value, pullback = dagad.vjp(over(shards, vectors), THETAS[0])
    expected = [pullback(seed_of(value, number))[0] for number in range(N)]
    check(lambda theta, number: pullback(seed_of(value, int(number)))[0], expected)


@pytest.mark.sampled(3)
def test_a_pullback_is_called_by_members_of_a_vmap_inside(sharded: Any) -> None:
    shards = sharded()

    def outer(chunk: Any) -> Any:
        def fun(theta: Any, number: Any) -> Any:
            _, pullback = dagad.vjp(over(shards, chunk), theta)
            seeds = THETAS[:, 0] if chunk is numbers else THETAS
            return dagad.vmap(lambda seed: pullback(seed)[0])(seeds)

        return fun

    for chunk in KINDS.values():
        seeds = THETAS[:, 0] if chunk is numbers else THETAS
        expected = []
        for theta in THETAS:
            _, pullback = dagad.vjp(over(shards, chunk), theta)
            expected.append(np.stack([pullback(seed)[0] for seed in seeds]))
        check(outer(chunk), expected)


def test_a_pullback_of_another_member_is_called_in_a_thread_of_a_members_own(sharded: Any) -> None:
    shards = sharded()

    class InThread(Whose):
        def called(self, value: Any, number: int) -> Any:
            with ThreadPoolExecutor(1) as pool:
                other = pool.submit(self.made[0], seed_of(value, number)).result(PATIENCE)[0]
            return other + self.made[number](seed_of(value, number))[0]

    program = InThread(shards, vectors, lambda number: number)
    first = Whose(shards, vectors, lambda number: 0)
    check(program, [a + b for a, b in zip(first.alone(), program.alone(), strict=True)])


def test_a_pullback_is_called_when_all_members_are_over(sharded: Any) -> None:
    shards = sharded()
    program = Whose(shards, vectors, lambda number: None)
    dagad.vmap(program)(THETAS, NUMBERS)
    found = [program.made[number](theta)[0] for number, theta in enumerate(THETAS)]
    again = [program.made[number](theta)[0] for number, theta in enumerate(THETAS)]
    expected = [dagad.vjp(program.loss, theta)[1](theta)[0] for theta in THETAS]
    assert bits(found) == bits(again) == bits(expected)


def of_a_box(box: list[float]) -> Callable[[Any, Any], Any]:
    return lambda rows, theta: anp.sum(rows * theta * box[0], axis=0)


def squares(rows: Any, theta: Any) -> Any:
    return anp.sum(rows**2 * theta)


def test_members_have_the_derivatives_of_their_gradients_in_shards(sharded: Any) -> None:
    shards = sharded()

    def through(theta: Any) -> Any:
        slope = dagad.grad(lambda x: dagad.reduce_sum(numbers, x, theta))(shards)
        return dagad.reduce_sum(squares, slope, theta)

    expected = [dagad.grad(through)(theta) for theta in THETAS]
    check(lambda theta, number: dagad.grad(through)(theta), expected)
    for found, theta in zip(expected, THETAS, strict=True):
        whole = autograd.grad(lambda t: squares(autograd.grad(numbers)(X, t), t))(theta)
        np.testing.assert_allclose(found, whole, rtol=1e-12)


@pytest.mark.parametrize("who_pulls", [(0, 2), (1,), (0, 1, 2, 3)])
def test_a_pullback_is_that_of_the_value_whatever_the_function_carries_by_then(sharded: Any, who_pulls: Any) -> None:
    """Alone a tape is kept; that others have theirs is no reason to run again with what has changed."""

    shards = sharded()

    def fun(theta: Any, number: Any) -> Any:
        box = [1.0]
        value, pullback = dagad.vjp(over(shards, of_a_box(box)), theta)
        box[0] = 100.0
        return pullback(seed_of(value, int(number)))[0] if int(number) in who_pulls else np.zeros(3)

    check(fun, [fun(theta, number) for number, theta in enumerate(THETAS)])


def test_a_pullback_that_runs_again_is_refused_where_it_would_be_another_ones() -> None:
    """Together the tapes are used up; the second time each runs again, as it would alone."""

    def fun(theta: Any, number: Any) -> Any:
        box = [1.0]
        value, pullback = dagad.vjp(over(X, of_a_box(box), grainsize=4, scheduler="sync"), theta)
        first = pullback(value)[0]
        if number == 2:
            box[0] = 100.0
        return first, pullback(value)[0]

    acts: list[Callable[[], Any]] = [lambda: fun(THETAS[2], 2), lambda: dagad.vmap(fun)(THETAS, NUMBERS)]
    for act in acts:
        with pytest.raises(dagad.ClosureError, match="gives another value when it runs again"):
            act()
    others = THETAS[[0, 1, 3]]
    found = dagad.vmap(fun)(others, np.array([0, 1, 3]))
    assert bits(found[1]) == bits(found[0])


def test_an_evaluation_is_waited_for_by_members_wherever_it_was_started(sharded: Any) -> None:
    shards = sharded()
    loss = over(shards, numbers)
    expected = [dagad.grad(loss)(THETAS[0]) * theta for theta in THETAS]
    for lazy in (True, False):
        outside = dagad.evaluate(loss, THETAS[0], lazy=lazy)
        check(lambda theta, number, outside=outside: outside.gradient(PATIENCE) * theta, expected)
    made: dict[int, Any] = {}

    def fun(theta: Any, number: Any) -> Any:
        if number == 0:
            made[0] = dagad.evaluate(loss, theta, lazy=True)
        loss(theta)
        return made[0].gradient(PATIENCE) * theta

    check(fun, expected)


def test_members_that_end_early_or_have_one_reduction_fewer_let_the_others_go_on(sharded: Any) -> None:
    shards = sharded()

    def fun(theta: Any, number: Any) -> Any:
        found = np.zeros(3)
        for _ in range(int(number)):
            value, pullback = dagad.vjp(over(shards, vectors), theta + found)
            found = pullback(value)[0] if number != 2 else value
        return found

    check(fun, [fun(theta, number) for number, theta in enumerate(THETAS)])


@pytest.mark.sampled(3)
def test_a_vmap_in_a_thread_of_a_member_is_one_of_its_own(sharded: Any) -> None:
    shards = sharded()
    grad = dagad.grad(over(shards, numbers))

    def fun(theta: Any, number: Any) -> Any:
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(dagad.vmap(grad), THETAS * scale) for scale in (1.0, theta[0])]
            return sum(one.result(PATIENCE) for one in both) + grad(theta)

    expected = [np.stack([grad(one) + grad(one * theta[0]) for one in THETAS]) + grad(theta) for theta in THETAS]
    check(fun, expected)


def test_a_member_whose_thread_cannot_be_started_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "dagad-member-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    loss = over(X, numbers, grainsize=4, scheduler="sync")
    with pytest.raises(RuntimeError, match="can't start new thread"):
        finished(lambda: dagad.vmap(loss)(THETAS))


def test_reductions_inside_a_solver_that_only_one_may_run_at_a_time_wait_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As LSODA is before scipy 1.17: a member that waits for others would have it while they come to it."""
    if not hasattr(integrate._ode, "LSODA_LOCK"):
        monkeypatch.setattr(integrate._ode, "LSODA_LOCK", None, raising=False)
    loss = over(X, numbers, grainsize=4, scheduler="sync")

    def fun(theta: Any, number: Any) -> Any:
        found = solvers.solve_ivp(lambda t, y: -y * loss(theta), (0.0, 0.01), [1.0], method="LSODA")
        return found.y[0, -1]

    check(fun, [fun(theta, number) for number, theta in enumerate(THETAS)])
