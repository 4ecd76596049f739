"""Members with settings of their own: is one run by another one's monoid, policy, executor, or context?"""

from __future__ import annotations

import contextlib
import decimal
import functools
import io
import os
import sys
import threading
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

import dagad
from dagad._executors import members
from dagad._executors.choose import INLINE
from dagad._kernels import members as jobs
from dagad.extend import PlainSum, Recompute
from support.gated_chunks import bits

RNG = np.random.default_rng(0)
X = RNG.standard_normal(400)
NUMBERS = np.array([0.0, 2.0, 6.0])


def chunk(rows: Any, theta: Any) -> Any:
    return np.sum((rows - theta) ** 2)


def total(scheduler: Any = "sync", **options: Any) -> Any:
    return dagad.reduce_sum(chunk, X, 1.0, grainsize=50, scheduler=scheduler, **options)


# Monoids


class Rounded(PlainSum):
    """A subclass of a dataclass with a state that is no field."""

    def __init__(self, n: int) -> None:
        object.__setattr__(self, "n", n)

    def lift(self, term: Any) -> Any:
        return np.round(term, getattr(self, "n", 0))


@dataclass
class Attribute:
    """A dataclass that is given an attribute."""

    def lift(self, term: Any) -> Any:
        return np.round(term, getattr(self, "n", 0))

    def add(self, a: Any, b: Any, ours: bool) -> Any:
        return a + b

    def lower(self, total: Any) -> Any:
        return total


class Slot:
    __slots__ = ("n",)
    n: int


@dataclass
class OfSlot(Attribute, Slot):
    """A dataclass whose base has room for something."""


@dataclass
class OfNumber(float, Attribute):
    """A dataclass that is a number, too."""

    def lift(self, term: Any) -> Any:
        return np.round(term, int(self))


def with_n(made: Any, n: int) -> Any:
    made.n = n
    return made


STATES: dict[str, Callable[[int], Any]] = {
    "a subclass of a dataclass": Rounded,
    "an attribute": lambda n: with_n(Attribute(), n),
    "a slot of a base": lambda n: with_n(OfSlot(), n),
    "a number": lambda n: float.__new__(OfNumber, n),
}


@pytest.mark.parametrize("what", STATES)
def test_each_member_is_added_up_by_its_own_monoid(what: str) -> None:
    make = STATES[what]

    def fun(number: Any) -> Any:
        return total(sum=make(int(number)))

    expected = [fun(number) for number in NUMBERS]
    assert len(set(expected)) == len(NUMBERS)
    assert bits(list(dagad.vmap(fun)(NUMBERS))) == bits(expected)


def test_monoids_of_the_same_fields_are_the_same() -> None:
    @dataclass(frozen=True)
    class Fields(PlainSum):
        n: float = 0.0

    assert jobs.has_same_fields(Fields(1.0), Fields(1.0))
    assert not jobs.has_same_fields(Fields(0.0), Fields(-0.0))
    assert not jobs.has_same_fields(Fields(1.0), PlainSum())
    assert jobs.has_same_fields(PlainSum(), PlainSum())


def test_a_monoid_or_a_policy_that_members_share_and_change_is_refused_by_name() -> None:
    monoid, policy = with_n(Attribute(), 0), Counted(0)

    def of_sum(number: Any) -> Any:
        return total(sum=with_n(monoid, int(number)))

    def of_policy(number: Any) -> Any:
        def fun(theta: Any) -> Any:
            return dagad.reduce_sum(chunk, X, theta, grainsize=50, policy=with_n(policy, int(number)))

        return dagad.grad(fun)(1.0)

    for fun in (of_sum, of_policy):
        with pytest.raises(dagad.ClosureError, match=r"`sum` or `policy`.*made inside"):
            dagad.vmap(fun)(NUMBERS)


# Policies and executors


class Counted:
    """A policy of a user's own, which notes who asks."""

    value_and_grad = False

    def __init__(self, n: int) -> None:
        self.n, self._inner, self.counters = n, Recompute(), Recompute().counters

    def linearize(self, task: Any, args: Any) -> Any:
        SEEN.append(self.n)
        return self._inner.linearize(task, args)


SEEN = list[int]()


def test_each_member_has_its_own_policy() -> None:
    def fun(number: Any) -> Any:
        policy = Counted(int(number))
        return dagad.grad(lambda theta: dagad.reduce_sum(chunk, X, theta, grainsize=50, policy=policy))(number)

    SEEN.clear()
    expected = [fun(number) for number in NUMBERS]
    SEEN.clear()
    assert bits(list(dagad.vmap(fun)(NUMBERS))) == bits(expected)
    assert set(SEEN) == {0, 2, 6}


class Numbered:
    """An executor whose state is in a slot."""

    __slots__ = ("__dict__", "number")
    name, remote = "numbered", False

    def __init__(self, number: int) -> None:
        self.number = number

    def call(self, job: Any) -> Any:
        SEEN.append(self.number)
        return INLINE.call(job)

    def linearize(self, job: Any, policy: Any) -> Any:
        return INLINE.linearize(job, policy)


def test_each_member_has_its_own_executor() -> None:
    SEEN.clear()
    dagad.vmap(lambda number: total(Numbered(int(number))))(NUMBERS)
    assert SEEN == [0, 2, 6]


# Contexts


def raises_in_numpy(number: Any, scheduler: Any) -> Any:
    def exceeding(rows: Any, theta: Any) -> Any:
        return np.sum(np.exp((theta + 1.0) * rows * 1e3) > 1.0) * 1.0

    with np.errstate(over="raise" if number > 0.0 else "ignore"):
        try:
            return dagad.reduce_sum(exceeding, X, number, grainsize=100, scheduler=scheduler)
        except FloatingPointError:
            return -1.0


VARIABLE: ContextVar[float] = ContextVar("variable", default=1.0)


def sets_a_variable(number: Any, scheduler: Any) -> Any:
    VARIABLE.set(float(number))
    try:
        one = dagad.reduce_sum(lambda rows: np.sum(rows) * VARIABLE.get(), X, grainsize=100, scheduler=scheduler)
        return one + total(scheduler)
    finally:
        VARIABLE.set(1.0)


def rounds_decimals(number: Any, scheduler: Any) -> Any:
    def rounded(rows: Any) -> Any:
        return float(decimal.Decimal(float(rows[0])) / 3)

    with decimal.localcontext() as context:
        context.prec = 2 + int(number)
        return dagad.reduce_sum(rounded, X, grainsize=100, scheduler=scheduler)


def pulls_in_numpy(number: Any, scheduler: Any) -> Any:
    loss = functools.partial(dagad.reduce_sum, lambda rows, theta: np.sum(theta**2 * rows), X, grainsize=100)
    _, pull = dagad.vjp(lambda theta: loss(theta, scheduler=scheduler), 1.0 + number)
    with np.errstate(over="raise" if number > 0.0 else "ignore"):
        try:
            return pull(1e308)[0]
        except FloatingPointError:
            return -1.0


OF_CONTEXTS = [raises_in_numpy, sets_a_variable, rounds_decimals, pulls_in_numpy]


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("fun", OF_CONTEXTS, ids=lambda fun: fun.__name__)
def test_each_member_runs_under_its_own_settings(fun: Any, scheduler: Any) -> None:
    expected = [fun(number, scheduler) for number in NUMBERS]
    assert len(set(expected)) > 1
    with np.errstate(all="ignore"):
        found = dagad.vmap(lambda number: fun(number, scheduler))(NUMBERS)
    assert bits(list(found)) == bits(expected)


@pytest.mark.parametrize("number", [0.0, 2.0])
@pytest.mark.parametrize("fun", OF_CONTEXTS, ids=lambda fun: fun.__name__)
def test_members_with_the_same_settings_go_together_under_these(fun: Any, number: float, monkeypatch: Any) -> None:
    seen, answers = list[int](), members._answers

    def noted(requests: Any) -> Any:
        seen.append(len(requests))
        return answers(requests)

    monkeypatch.setattr(members, "_answers", noted)
    numbers = np.full(3, number)
    expected = [fun(one, "threads") for one in numbers]
    assert bits(list(dagad.vmap(lambda one: fun(one, "threads"))(numbers))) == bits(expected)
    assert set(seen) <= ({3} if -1.0 not in expected else {3, 1})
    assert VARIABLE.get() == 1.0
    assert np.geterr()["over"] == "warn"


def test_members_of_members_run_under_their_own_settings() -> None:
    def outer(number: Any) -> Any:
        with np.errstate(over="raise" if number > 0.0 else "ignore"):
            return dagad.vmap(lambda theta: raises_in_numpy(theta, "sync") + sets_a_variable(number, "sync"))(NUMBERS)

    expected = [outer(number) for number in NUMBERS]
    assert bits(list(dagad.vmap(outer)(NUMBERS))) == bits(expected)


def test_each_member_may_have_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    def fun(number: Any) -> Any:
        with dagad.checkpoint(tmp_path / f"{number}"):
            return dagad.reduce_sum(chunk, X, number, grainsize=50, scheduler="sync")

    first = dagad.vmap(fun)(NUMBERS)
    assert {one.name for one in tmp_path.iterdir()} >= {"0.0", "2.0", "6.0"}
    assert bits(list(dagad.vmap(fun)(NUMBERS))) == bits(list(first))


# The process


def with_warnings(number: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if number else "error")
        try:
            return dagad.reduce_sum(lambda rows, t: np.sum(1e300 * np.exp(t + rows) > 1e301), X, number + 700.0)
        except RuntimeWarning:
            return -1.0


def with_settings_of_dask(number: Any) -> Any:
    with dask.config.set({"scheduler": "sync", "dagad.grainsize": 50 + int(number)}):
        return dagad.reduce_sum(chunk, X, number) + dask.config.get("dagad.grainsize")


def with_output(number: Any) -> Any:
    with contextlib.redirect_stdout(io.StringIO()) as found:
        dagad.reduce_sum(lambda rows: print(int(number)) or 0.0, X, grainsize=200, scheduler="sync")
    return float(found.getvalue().split()[0])


def with_directory(number: Any) -> Any:
    with contextlib.chdir("/" if number else "."):
        return dagad.reduce_sum(lambda rows: float(len(os.getcwd())), X, grainsize=200, scheduler="sync")


def with_the_environment(number: Any) -> Any:
    os.environ["DAGAD_TESTS_NUMBER"] = str(float(number))
    try:
        return dagad.reduce_sum(
            lambda rows: np.sum(rows) * float(os.environ["DAGAD_TESTS_NUMBER"]), X, grainsize=200, scheduler="sync"
        )
    finally:
        del os.environ["DAGAD_TESTS_NUMBER"]


LOCAL = threading.local()


def with_a_local_of_its_thread(number: Any) -> Any:
    LOCAL.number = float(number)
    return dagad.reduce_sum(
        lambda rows: np.sum(rows) * getattr(LOCAL, "number", 100.0), X, grainsize=200, scheduler="sync"
    )


OF_PROCESSES = [
    *(with_warnings, with_settings_of_dask, with_output, with_directory, with_the_environment),
    with_a_local_of_its_thread,
]


@pytest.mark.parametrize("fun", OF_PROCESSES, ids=lambda fun: fun.__name__)
def test_a_member_that_has_changed_the_process_for_a_while_leaves_it_as_it_was(fun: Any) -> None:
    def program(number: Any) -> Any:
        return total() + fun(number) + total()

    expected = [program(number) for number in NUMBERS]
    assert len(set(expected)) > 1
    before = state_of_process()
    vmapped = dagad.vmap(program)
    for _ in range(2):
        assert bits(list(vmapped(NUMBERS))) == bits(expected)
        assert state_of_process() == before


def state_of_process() -> Any:
    settings = repr(dask.config.config)
    return list(warnings.filters), settings, os.getcwd(), dict(os.environ), sys.stdout, warnings.showwarning


def test_members_wait_for_each_other_again_after_what_one_sets_for_good(monkeypatch: Any) -> None:
    seen, answers = list[int](), members._answers

    def noted(requests: Any) -> Any:
        seen.append(len(requests))
        return answers(requests)

    monkeypatch.setattr(members, "_answers", noted)

    def fun(number: Any) -> Any:
        if number == 0.0:
            monkeypatch.setenv("DAGAD_TESTS_FOR_GOOD", "1")
        return total() + total()

    assert bits(list(dagad.vmap(fun)(NUMBERS))) == bits([2.0 * total()] * 3)
    assert seen == [2, 2]
