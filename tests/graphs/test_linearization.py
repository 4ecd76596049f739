"""Linearizations: are they small when they travel, true about their size, made again when lost, and gone when used?"""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import threading
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
from dask._task_spec import Task, TaskRef
from dask.sizeof import sizeof

import dagad
from dagad._graphs.linearization import Counters
from dagad._graphs.linearize import TaskFunction
from dagad._kernels.batch import BatchSeeds
from dagad._sources.plan import Plan
from dagad.extend import Keep, Linearization, Preaccumulate, Recompute
from support.operations_by_hand import operation
from support.waiting import PATIENCE

RNG = onp.random.default_rng(11)
X, THETA = RNG.standard_normal((40, 3)), onp.array([0.4, -0.2, 0.9])


def task_of(fun: Any, *active: int, n_args: int = 1) -> TaskFunction:
    """Return a function as a task that can be recorded, differentiated in some of its arguments."""
    names = [f"x{i}" for i in range(n_args)]
    return TaskFunction(Task("y", fun, *map(TaskRef, names)), tuple(names), active or (0,))


class Collecting:
    """A policy that keeps what it made."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.made = policy, list[Linearization]()

    def linearize(self, task: Any, args: Any) -> Linearization:
        self.made.append(self.policy.linearize(task, args))
        return self.made[-1]


def of_chunks(chunk: Any, theta: Any, policy: Any = None, grainsize: int = 10) -> list[Linearization]:
    """Return the linearizations of the chunks of a reduction."""
    collecting: Any = Collecting(policy or Keep())
    operation(chunk, X, [theta], Plan(len(X), grainsize), policy=collecting).forward([theta])
    return list(collecting.made)


def sines(x: Any) -> Any:
    for _ in range(2000):
        x = np.sin(x) * 1.5
    return np.sum(x)


def sines_of_rows(rows: Any, theta: Any) -> Any:
    total = np.sum(rows) * theta
    for _ in range(2000):
        total = np.sin(total) * 1.5
    return np.sum(total)


def squares(rows: Any, theta: Any) -> Any:
    return np.sum((rows - theta) ** 2)


ELSEWHERE = """
import pickle, sys
linearization, seed = pickle.loads(sys.stdin.buffer.read())
cotangents = linearization.pull(seed), linearization.pull(seed)
sys.stdout.buffer.write(pickle.dumps((linearization.value, cotangents)))
"""


ONE = [BatchSeeds([1.0])]


def pulled_elsewhere(sent: bytes) -> Any:
    """Return value and cotangents as another process computes them, which knows this module by its path alone."""
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{ELSEWHERE}"]
    return pickle.loads(subprocess.run(command, input=sent, capture_output=True, check=True, timeout=PATIENCE).stdout)


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_pickled_linearization_of_a_long_chain_is_small_and_gives_the_same_bits() -> None:
    linearization = Linearization.recorded(task_of(sines), (THETA,))
    sent = pickle.dumps((linearization, 1.0))
    assert len(sent) < 10_000
    expected = linearization.pull(1.0)
    assert onp.allclose(expected[0], autograd.grad(sines)(THETA), rtol=1e-12)
    value, both = pulled_elsewhere(sent)
    assert value == linearization.value
    assert all(cotangents[0].tobytes() == expected[0].tobytes() for cotangents in both)


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_pickled_linearization_of_a_chunk_is_small_and_gives_the_same_bits() -> None:
    for policy in (Keep(), Recompute(), Preaccumulate()):
        linearization = of_chunks(sines_of_rows, THETA, policy)[2]
        sent = pickle.dumps((linearization, ONE))
        assert len(sent) < 10_000 + X[:10].nbytes
        value, both = pulled_elsewhere(sent)
        expected = linearization.pull(ONE)[0][0]
        assert value == linearization.value
        assert all(cotangents[0][0].tobytes() == expected.tobytes() for cotangents in both)


def test_a_linearization_may_be_pickled_before_and_after_its_pull_and_again() -> None:
    linearization = Linearization.recorded(task_of(sines), (THETA,))
    again = pickle.loads(pickle.dumps(linearization))
    first = linearization.pull(1.0)[0]
    third = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(linearization))))
    for each in (linearization, again, third):
        assert each.pull(1.0)[0].tobytes() == first.tobytes()
        assert each.value == linearization.value


# --- size -------------------------------------------------------------------------------------------------------------


def logistic(x: Any, theta: Any) -> Any:
    return np.sum(np.log1p(np.exp(np.tanh(x) @ theta)) + np.sin(x @ theta))


def loop(x: Any) -> Any:
    total = 0.0
    for i in range(1000):
        total = total + np.sin(x[i % 3] * 0.1)
    return total


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("task", "args"),
    [
        (task_of(logistic, 1, n_args=2), (RNG.standard_normal((20_000, 20)), onp.zeros(20))),
        (task_of(logistic, 0, 1, n_args=2), (RNG.standard_normal((20_000, 20)), onp.zeros(20))),
        (task_of(loop), (THETA,)),
        (task_of(sines), (THETA,)),
        (task_of(sines), (onp.ones(1000),)),
    ],
    ids=["arrays", "arrays in the rows", "many indices", "many small", "many middling"],
)
def test_the_size_of_a_linearization_is_what_its_tape_holds(task: Any, args: Any) -> None:
    Linearization.recorded(task, args)  # what is imported or cached on the way is not its own
    gc.collect()
    tracemalloc.start()
    linearization = Linearization.recorded(task, args)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    told = sizeof(linearization)
    assert told == sys.getsizeof(linearization) or abs(told - sys.getsizeof(linearization)) < 100
    # The arguments are held too, by the recipe, whoever else holds them.
    assert held / 2 <= told <= 2 * (held + sum(arg.nbytes for arg in args))
    linearization.pull(1.0)
    assert sizeof(linearization) < 1000


def test_the_size_of_an_unrecorded_linearization_is_without_a_tape() -> None:
    assert sizeof(Linearization.unrecorded(task_of(sines), (THETA,))) < 1000
    assert sizeof(pickle.loads(pickle.dumps(Linearization.recorded(task_of(sines), (THETA,))))) < 1000
    array = Linearization.unrecorded(task_of(np.exp), (onp.zeros(1000),))
    assert 8000 <= sizeof(array) < 9000


# --- what can't travel ------------------------------------------------------------------------------------------------


def test_a_linearization_without_a_recipe_is_pickled_and_refused_when_pulled() -> None:
    lock = threading.Lock()

    def locked(x: Any) -> Any:
        with lock:
            return np.sum(x**2)

    linearization = Linearization.recorded(task_of(locked), (THETA,))
    arrived = pickle.loads(pickle.dumps(linearization))
    again = pickle.loads(pickle.dumps(arrived))
    assert arrived.value == again.value == linearization.value
    for each in (arrived, again):
        with pytest.raises(dagad.PortabilityError, match=r"without its recipe.*lock"):
            each.pull(1.0)
    assert onp.allclose(linearization.pull(1.0)[0], 2 * THETA)


# --- freed ------------------------------------------------------------------------------------------------------------


def test_a_tape_is_freed_by_its_pull() -> None:
    alive: list[Any] = []

    def watched(x: Any) -> Any:
        inner = np.exp(x)
        alive.append(weakref.ref(inner._value))
        return np.sum(inner * inner)

    linearization = Linearization.recorded(task_of(watched), (THETA,))
    gc.disable()  # freed at once, not by the collector some day
    try:
        assert alive[0]() is not None
        linearization.pull(1.0)
        assert alive[0]() is None
    finally:
        gc.enable()


def test_a_tape_is_freed_with_its_linearization() -> None:
    counters = Counters()
    for _ in range(3):
        Linearization.recorded(task_of(np.sum), (THETA,), counters)
    assert counters.peak_linearizations == 1
    kept = [Linearization.recorded(task_of(np.sum), (THETA,), counters) for _ in range(3)]
    assert counters.peak_linearizations == 3
    assert (counters.n_primal, counters.n_pullback) == (6, 0)
    for each in kept:
        each.pull(1.0)
    assert (counters.n_primal, counters.n_pullback) == (6, 3)
    kept[0].pull(1.0)
    assert (counters.n_primal, counters.n_pullback) == (7, 4)
    del each, kept
    Linearization.recorded(task_of(np.sum), (THETA,), counters)
    assert counters.peak_linearizations == 3


def test_a_failing_pullback_frees_its_tape_too() -> None:
    counters = Counters()
    linearization = Linearization.recorded(task_of(np.exp), (THETA,), counters)
    with pytest.raises(ValueError, match="broadcast"):
        linearization.pull(onp.ones((2, 2)))
    linearization.pull(THETA)
    assert counters.peak_linearizations == 1


@pytest.mark.parametrize(("policy", "most", "primals"), [(Keep(), 4, 4), (Recompute(), 1, 8), (Preaccumulate(), 1, 4)])
def test_as_many_tapes_are_alive_as_the_policy_says(policy: Any, most: int, primals: int) -> None:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(squares, X, theta, grainsize=10, policy=policy, scheduler="sync")

    value, pullback = dagad.vjp(loss, THETA)
    assert value == pytest.approx(squares(X, THETA))
    (gradient,) = pullback(1.0)
    assert onp.allclose(gradient, autograd.grad(lambda t: squares(X, t))(THETA))
    assert (policy.n_primal, policy.n_pullback, policy.peak_linearizations) == (primals, 4, most)


def test_a_reduction_that_was_pulled_leaves_nothing_behind() -> None:
    alive: list[Any] = []

    def watched(rows: Any, theta: Any) -> Any:
        inner = np.exp(rows * theta)
        alive.append(weakref.ref(getattr(inner, "_value", inner)))
        return np.sum(inner)

    for policy in (None, Keep(), Recompute(), Preaccumulate()):
        dagad.grad(partial(dagad.reduce_sum, watched, X, grainsize=10, policy=policy))(THETA)
    assert len(alive) >= 16
    assert not [ref for ref in alive if ref() is not None]


# --- pulling ----------------------------------------------------------------------------------------------------------


def test_many_threads_may_pull_the_same_linearization() -> None:
    linearization = Linearization.recorded(task_of(lambda x: np.exp(x) * x), (THETA,))
    expected = onp.exp(THETA) * (1 + THETA)
    barrier = threading.Barrier(4)

    def pull(number: int) -> bool:
        barrier.wait(PATIENCE)
        return bool(onp.allclose(linearization.pull(onp.full(3, float(number)))[0], number * expected))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(pull, range(8)))


def test_each_differentiated_argument_of_a_linearization_has_its_own_cotangent() -> None:
    def product(a: Any, b: Any, c: Any) -> Any:
        return np.sum(a["x"] * b) * c[1]

    args = ({"x": THETA, "n": 3}, THETA + 1, ["text", 2.0])
    of_a, of_c = Linearization.recorded(task_of(product, 0, 2, n_args=3), args).pull(1.0)
    assert onp.allclose(of_a["x"], 2 * (THETA + 1))
    assert of_a["n"] is None
    assert of_c[0] is None
    assert of_c[1] == pytest.approx(onp.sum(THETA * (THETA + 1)))


def test_a_linearization_pulled_with_none_gives_none() -> None:
    linearization = Linearization.recorded(task_of(lambda x: {"a": x * 2.0, "b": [x * 3.0]}), (THETA,))
    assert linearization.pull(None) == (None,)
    assert onp.allclose(linearization.pull({"a": None, "b": [THETA]})[0], 3 * THETA)
    assert onp.allclose(linearization.pull({"a": THETA, "b": [THETA]})[0], 5 * THETA)


def test_a_preaccumulated_linearization_gives_its_gradient_without_another_run() -> None:
    policy = Preaccumulate()
    expected = autograd.grad(lambda t: squares(X[:10], t))(THETA)
    made = Linearization.with_grad(task_of(lambda t: squares(X[:10], t)), (THETA,), policy.counters)
    runs = policy.n_primal
    twice = made.pull_scaled(2.0)[0]
    assert policy.n_primal == runs
    assert onp.allclose(twice, 2.0 * expected)
    assert made.pull_scaled(2.0)[0].tobytes() == twice.tobytes()  # taken once, then computed again
    assert policy.n_primal == runs + 1


def test_an_error_in_a_replay_is_the_users_own_with_its_chunk() -> None:
    calls: list[int] = []

    def second_time_fails(rows: Any, theta: Any) -> Any:
        calls.append(1)
        if len(calls) > 4:
            raise KeyError("mine")
        return np.sum(rows * theta)

    _, pullback = dagad.vjp(
        lambda t: dagad.reduce_sum(second_time_fails, X, t, grainsize=10, policy=Recompute(), scheduler="sync"), THETA
    )
    with pytest.raises(KeyError, match="mine") as caught:
        pullback(1.0)
    assert any("chunk" in note for note in caught.value.__notes__)


# Counts


class Guarded(int):
    """A count that may change only under its lock: two threads would read the same number, and one count is lost."""

    lock: Any

    def _now(self, number: int) -> Guarded:
        assert self.lock.locked()
        made = Guarded(number)
        made.lock = self.lock
        return made

    def __add__(self, other: int) -> Guarded:
        return self._now(int(self) + other)

    def __sub__(self, other: int) -> Guarded:
        return self._now(int(self) - other)


def test_counters_of_a_policy_lose_no_count_between_threads() -> None:
    counters = Counters()
    for name in ("n_primal", "n_pullback", "_live"):
        guarded = Guarded(0)
        guarded.lock = counters._lock
        setattr(counters, name, guarded)
    calls = [counters.ran, counters.recorded, counters.recorded, counters.used_up, counters.dropped, counters.recorded]
    for call in calls:
        call()
    counters.pulled(3)
    assert (counters.n_primal, counters.n_pullback, counters.peak_linearizations) == (4, 4, 2)


def test_a_tape_may_end_in_a_thread_that_is_counting() -> None:
    policy = Keep()

    def delinearize() -> None:
        made = policy.linearize(TaskFunction(Task("y", pow, TaskRef("x"), 2.0), ("x",), (0,)), (3.0,))
        with policy.counters._lock:  # where the collector may run
            del made

    delinearize()
    delinearize()
    assert policy.peak_linearizations == 1
