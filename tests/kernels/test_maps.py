"""Maps: is every output and gradient what plain autograd makes of a loop, and does the cut not show in the bits?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import autograd.numpy as np
import numpy as onp
import optree
import pytest
from hypothesis import given, settings, strategies as st

import dagad
from dagad.extend import Keep, Preaccumulate, Recompute
from dagad.testing import taylor_rate
from support.examples import examples
from support.plain_autograd import Uncut, assert_close, bits, flatten, loop, number, rect_loop

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

RNG = onp.random.default_rng(0)
N = 7
X, Y = RNG.standard_normal((N, 3)), RNG.standard_normal(N)
THETA = onp.array([0.3, -0.7, 1.1])
RAGGED = [RNG.standard_normal(length) for length in (3, 1, 0, 5, 2, 2, 4)]
NAMES = ["a", "b", "a", "c", "b", "a", "c"]
FACTORS = {"a": 1.0, "b": 2.0, "c": 0.5}


@dataclass(frozen=True)
class Job:
    dose: Any
    times: Any


register: Any = optree.register_pytree_node
register(Job, lambda job: ((job.dose, job.times), None), lambda _, parts: Job(*parts), namespace="dagad")
JOBS = [Job(float(dose), onp.arange(n, dtype=float)) for n, dose in enumerate(Y)]


@dataclass(frozen=True)
class Case:
    """A function of items; its outputs are stacked, or laid end to end."""

    fun: Callable[..., Any]
    sliced: Any
    shared: tuple[Any, ...]

    @property
    def args(self) -> tuple[Any, ...]:
        return self.sliced, *self.shared


def curve(item: Any, theta: Any) -> Any:
    return np.tanh(np.dot(item, theta))


def visit(item: Any, rate: Any) -> Any:
    return FACTORS[item["name"]] * np.sum(np.sin(rate * item["x"])) * item["n"] + rate


def of_columns(item: Any, params: Any) -> Any:
    x, rest = item
    return np.exp(-params["beta"][0] * x) * rest["n"] * FACTORS[rest["name"]] + np.sum(rest["ragged"] ** 2) * x[0]


def summary(item: Any, theta: Any) -> Any:
    return {"loss": np.sum((item * theta) ** 2), "parts": (item * theta, [len(item)]), "size": onp.arange(2)}


def decay(job: Job, rate: Any) -> Any:
    return np.exp(-rate * np.sum(job.times)) * job.dose**2


COLUMNS = (X, {"n": onp.arange(N), "name": NAMES, "ragged": RAGGED})
CASES = {
    "numbers": Case(lambda x, scale: np.exp(scale * x) * x**2, Y, (0.5,)),
    "rows": Case(curve, X, (THETA,)),
    "rows by columns": Case(curve, onp.asfortranarray(X), (THETA,)),
    "arrays out": Case(lambda row, theta: np.outer(row, theta) ** 2, X, (THETA,)),
    "list": Case(lambda x, rate: np.sum(np.exp(rate * x)), RAGGED, (0.4,)),
    "list of dicts": Case(visit, [{"n": i, "x": RAGGED[i], "name": NAMES[i]} for i in range(N)], (0.7,)),
    "list of records": Case(decay, JOBS, (0.2,)),
    "columns": Case(of_columns, COLUMNS, ({"beta": [0.3, THETA]},)),
    "pytree out": Case(summary, X, (THETA,)),
}
RECT_CASES = {
    "ragged": Case(lambda x, rate: np.cos(rate * x), RAGGED, (0.4,)),
    "ragged of one array": Case(lambda item, t: item[0] * t[: item[1]], (Y, onp.arange(N) % 4), (THETA,)),
    "records": Case(lambda job, rate: job.dose**2 * np.exp(-rate * job.times), JOBS, (0.2,)),
    "columns": Case(of_columns, COLUMNS, ({"beta": [0.3, THETA]},)),
    "all of length 0": Case(lambda x, rate: rate * x[:0], RAGGED, (0.4,)),
}
MAPS: list[Any] = [(dagad.map, loop, name, case) for name, case in CASES.items()]
MAPS += [(dagad.map_rect, rect_loop, name, case) for name, case in RECT_CASES.items()]
PER_CASE = pytest.mark.parametrize(
    ("mapping", "plain", "case"),
    [(m, plain, case) for m, plain, _, case in MAPS],
    ids=[f"{m[0].__name__}: {m[2]}" for m in MAPS],
)


def program(mapping: Any, case: Case, **options: Any) -> Callable[..., Any]:
    """Return a function of all arguments that returns one number."""
    return lambda *args: number(mapping(case.fun, *args, **options))


def places(case: Case) -> tuple[int, ...]:
    """Return which arguments hold what can be differentiated in."""
    return tuple(range(len(case.args)))


@pytest.mark.sampled(2)
@PER_CASE
def test_a_map_is_what_autograd_makes_of_a_loop(mapping: Any, plain: Any, case: Case, scheduler: Any) -> None:
    outputs = plain(case.fun, *case.args)
    expected = Uncut(program(plain, case), *case.args).value_and_grad()
    found = set()
    for grainsize in (1, 2, 3, 100, "auto") if scheduler == "sync" else (3,):
        mapped = mapping(case.fun, *case.args, grainsize=grainsize, scheduler=scheduler)
        assert_close(mapped, outputs)
        assert [onp.asarray(leaf).dtype for leaf in flatten(mapped)[0]] == [leaf.dtype for leaf in flatten(outputs)[0]]
        found.add(str(bits(mapped)))
        loss = program(mapping, case, grainsize=grainsize, scheduler=scheduler)
        actual = dagad.value_and_grad(loss, places(case))(*case.args)
        assert_close(actual, expected)
    assert len(found) == 1  # of every grainsize
    here = dagad.value_and_grad(program(mapping, case, grainsize=3, scheduler="sync"), places(case))(*case.args)
    if scheduler != "sync":
        assert bits(here) == bits(actual)


@pytest.mark.sampled(4)
@PER_CASE
def test_further_derivatives_of_a_map_are_those_of_a_loop(mapping: Any, plain: Any, case: Case) -> None:
    uncut = Uncut(program(plain, case), *case.args)
    value, gradients = uncut.value_and_grad()
    direction = uncut.direction()
    loss = program(mapping, case, grainsize=3, scheduler="sync")
    pairs = zip(flatten(direction)[0], flatten(gradients)[0], strict=True)
    slope = sum(float(onp.sum(part * other)) for part, other in pairs)
    assert_close(dagad.jvp(loss, case.args, direction), (value, slope), 1e-11)
    assert_close(dagad.hvp(loss, case.args, direction), uncut.hvp(direction), 1e-10)


@pytest.mark.parametrize(("mapping", "case"), [(dagad.map, CASES["rows"]), (dagad.map_rect, RECT_CASES["ragged"])])
def test_taylor_rate_of_a_map_is_two(mapping: Any, case: Case, scheduler: Any) -> None:
    assert abs(taylor_rate(program(mapping, case, grainsize=2, scheduler=scheduler), *case.args) - 2.0) < 0.1


@pytest.mark.parametrize("policy", [None, Keep, Recompute, Preaccumulate])
@pytest.mark.parametrize("name", ["rows", "pytree out", "columns"])
def test_the_bits_of_a_map_do_not_depend_on_the_policy(name: str, policy: Any) -> None:
    case = CASES[name]
    expected = dagad.value_and_grad(program(dagad.map, case, grainsize=2, scheduler="sync"), places(case))(*case.args)
    options: Any = {"grainsize": 2, "scheduler": "threads", "policy": policy and policy()}
    assert bits(dagad.value_and_grad(program(dagad.map, case, **options), places(case))(*case.args)) == bits(expected)


ROAD = settings(max_examples=examples(40), deadline=None, derandomize=True)


@ROAD
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 7), st.sampled_from(["f4", "f8"]), st.data())
def test_map_rect_is_right_at_any_lengths_grainsize_and_dtype(
    lengths: list[int], grainsize: int, dtype: str, data: st.DataObject
) -> None:
    rng = onp.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    jobs = [rng.standard_normal(length).astype(data.draw(st.sampled_from(["f4", "f8"]))) for length in lengths]
    case = Case(lambda job, rate: np.sin(rate * job[: len(job) // 2 + 1]), jobs, (onp.asarray(0.7, dtype)[()],))
    mapped = dagad.map_rect(case.fun, *case.args, grainsize=grainsize, scheduler="sync")
    outputs = rect_loop(case.fun, *case.args)
    assert bits(mapped) == bits(outputs)
    value, gradients = Uncut(program(rect_loop, case), *case.args).value_and_grad()
    loss = program(dagad.map_rect, case, grainsize=grainsize, scheduler="sync")
    actual, found = dagad.value_and_grad(loss, (0, 1))(*case.args)
    assert [leaf.dtype for leaf in flatten(found)[0]] == [leaf.dtype for leaf in flatten(case.args)[0]]
    assert_close(
        (actual, found),
        (value, gradients),
        1e-5 if "f4" in {leaf.dtype.str[1:] for leaf in flatten(case.args)[0]} else 1e-12,
    )


@ROAD
@given(st.integers(1, 5), st.lists(st.integers(0, 3), max_size=2), st.integers(1, 6), st.sampled_from(["f4", "f8"]))
def test_a_map_of_items_whose_shape_holds_zeros_is_right(
    n_items: int, shape: list[int], grainsize: int, dtype: str
) -> None:
    rows = RNG.standard_normal((n_items, *shape)).astype(dtype)
    case = Case(lambda row, t: {"same": np.sin(t * row), "sum": np.sum(row**2) * t}, rows, (THETA[0].astype(dtype),))
    options: Any = {"grainsize": grainsize, "scheduler": "sync"}
    mapped = dagad.map(case.fun, *case.args, **options)
    assert bits(mapped) == bits(loop(case.fun, *case.args))
    expected = Uncut(program(loop, case), *case.args).value_and_grad()
    actual = dagad.value_and_grad(program(dagad.map, case, **options), (0, 1))(*case.args)
    assert [leaf.dtype for leaf in flatten(actual[1])[0]] == [dtype, dtype]
    assert_close(actual, expected, 1e-5 if dtype == "f4" else 1e-12)
