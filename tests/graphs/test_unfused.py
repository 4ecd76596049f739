"""Derivatives of derivatives by any node: also one that an earlier derivative has put into a task, or renamed."""

from __future__ import annotations

from typing import Any

import autograd
import autograd.numpy as np
import dask.array as da
import numpy as onp
import pytest
from dask._task_spec import fuse_linear_task_spec
from dask.base import compute as dask_compute, optimize as dask_optimize
from dask.config import set as dask_set
from dask.delayed import Delayed, delayed
from hypothesis import given, settings, strategies as st

import dagad
from dagad import extend
from support.examples import examples

compute: Any = dask_compute  # Dask has few types
optimize: Any = dask_optimize
A, B, DIRECTION = onp.array([0.5, -1.0, 2.0]), onp.array([1.5, 0.25, -0.75]), onp.array([0.3, -0.2, 0.7])


def loaded(factor: float) -> Any:
    return factor * B


def added(x: Any, y: Any) -> Any:
    return x + 0.5 * y


def multiplied(x: Any, y: Any) -> Any:
    return 0.3 * x * y


def curved(x: Any, y: Any) -> Any:
    return np.sin(x) * y


def bent(x: Any, y: Any) -> Any:
    return np.tanh(x - y)


def total(*parts: Any) -> Any:
    return sum([np.sum(np.sin(part)) for part in parts])


def along(tangent: Any) -> Any:
    return tangent * DIRECTION


STEPS: list[Any] = [added, multiplied, curved, bent]
POLICIES: dict[str, Any] = {
    "keep": lambda: extend.Keep(),
    "recompute": lambda: extend.Recompute(),
    "preaccumulate": lambda: extend.Preaccumulate(),
    "segment": lambda: extend.Segment(2),
}
LEAVES = 2


class OnDask:
    """A program as a Dask graph."""

    def __init__(self, steps: Any, as_arrays: bool = False) -> None:
        self.nodes: list[Any] = [delayed(A), delayed(loaded)(delayed(1.0))]
        for how, left, right, policy in steps:
            n = len(self.nodes)
            x, y = self.nodes[left % n], self.nodes[right % n]
            if how == "gradient":
                made = dagad.gradient(delayed(total)(x), y, policy=POLICIES[policy](), unused="zeros")
            elif how == "tangent":
                reached = delayed(total)(x, y)  # so that it depends on y
                made = delayed(along)(dagad.jvp(reached, y, DIRECTION)[1])
            elif how == "copy":
                made = da.from_delayed(delayed(x), (3,), float).rechunk(2)
                made = delayed(added)(made, y)
            else:
                made = delayed(STEPS[how])(x, y)
            self.nodes.append(made)

    def end(self) -> Any:
        return delayed(total)(*self.nodes[-2:], self.nodes[len(self.nodes) // 2])


class OnArrays:
    """A program as one of dask arrays, whose operations on blocks Dask fuses."""

    def __init__(self, steps: Any, chunk: int) -> None:
        self.nodes: list[Any] = [
            da.from_array(A, chunks=chunk),
            da.map_blocks(loaded, 1.0, chunks=((3,),), dtype=float),
        ]
        self.nodes[1] = self.nodes[1].rechunk(chunk)
        for how, left, right, policy in steps:
            n = len(self.nodes)
            x, y = self.nodes[left % n], self.nodes[right % n]
            if how == "gradient":
                made = dagad.gradient(self.total(x), y, policy=POLICIES[policy](), unused="zeros")
            elif how == "tangent":
                made = dagad.jvp(self.total(x, y), y, DIRECTION)[1] * da.from_array(DIRECTION, chunks=chunk)
            elif how == "copy":  # a table of all pairs, and its transpose
                made = 0.1 * n * ((x[:, None] * y[None, :]).T.sum(axis=1) + (y[None, :] ** 2).sum(axis=0))
            else:
                made = 0.1 * n * (x + 0.5 * y, 0.3 * x * y, da.sin(x) * y, da.tanh(x - y))[how]  # no two are equal
            self.nodes.append(made)

    @staticmethod
    def total(*parts: Any) -> Any:
        return sum(da.sin(part).sum() for part in parts)

    def end(self) -> Any:
        return self.total(*self.nodes[-2:], self.nodes[len(self.nodes) // 2])


class Plain:
    """The same program by numpy and autograd; `shifts` adds something to nodes, each with all that is made of it.

    A derivative by a node is one by what is added to it: so the node goes on depending on what it is made of.
    """

    def __init__(self, steps: Any, shifts: dict[int, Any], are_arrays: bool = False) -> None:
        self.steps, self.shifts, self.are_arrays = steps, shifts, are_arrays

    def value(self, number: int, shifts: dict[int, Any]) -> Any:
        found = self._found(number, shifts)
        return found + shifts[number] if number in shifts else found

    def _found(self, number: int, shifts: dict[int, Any]) -> Any:
        if number < LEAVES:
            return (A, B)[number]
        how, left, right, _ = self.steps[number - LEAVES]
        left, right = left % number, right % number
        if how in ("gradient", "tangent"):

            def reached(by: Any) -> Any:
                inner = {**shifts, right: shifts.get(right, 0.0) + by}
                parts = [self.value(left, inner)] + ([self.value(right, inner)] if how == "tangent" else [])
                return total(*parts) + 0.0 * np.sum(by)  # depends on it in any case

            slope = autograd.grad(reached)(onp.zeros(3))
            return slope if how == "gradient" else along(np.sum(slope * DIRECTION))
        x, y = self.value(left, shifts), self.value(right, shifts)
        if self.are_arrays:
            return 0.1 * number * (pairs(x, y) if how == "copy" else STEPS[how](x, y))
        return added(x, y) if how == "copy" else STEPS[how](x, y)

    def end(self) -> Any:
        n = LEAVES + len(self.steps)
        return total(*[self.value(number, self.shifts) for number in (n - 2, n - 1, n // 2)])


def pairs(x: Any, y: Any) -> Any:
    return np.sum((x[:, None] * y[None, :]).T, axis=1) + np.sum(y[None, :] ** 2, axis=0)


def fused(y: Any) -> Any:
    return Delayed(y.key, fuse_linear_task_spec(dict(optimize(y)[0].dask), {y.key}))


def optimized_and_fused(y: Any) -> Any:
    with dask_set({"optimization.fuse.delayed": True}):
        return optimize(y)[0]


WAYS: dict[str, Any] = {"as built": lambda y: y, "fused": fused, "optimized": optimized_and_fused}


def assert_right(steps: Any, way: str) -> None:
    made = OnDask(steps)
    assert_right_by_each(made.nodes, WAYS[way](made.end()), lambda shifts: Plain(steps, shifts), way)


def assert_arrays_right(steps: Any, chunk: int, way: str = "as built") -> None:
    made = OnArrays(steps, chunk)
    assert_right_by_each(made.nodes, WAYS[way](made.end()), lambda shifts: Plain(steps, shifts, are_arrays=True), way)


def assert_right_by_each(nodes: Any, y: Any, plain: Any, way: str) -> None:
    for number, node in enumerate(nodes):
        expected = autograd.grad(lambda delta, at=number: plain({at: delta}).end() + 0.0 * np.sum(delta))(onp.zeros(3))
        refused, found = "", None
        try:
            found = dagad.gradient(y, node)
        except dagad.NotDifferentiableError as error:
            refused = str(error)
        if found is None:  # nothing reads it, or Dask's own optimization has fused it away
            assert "does not need" in refused or "would miss that part" in refused
            assert way != "as built" or not expected.any(), (number, expected, refused)
            continue
        onp.testing.assert_allclose(
            compute(found, scheduler="sync")[0], expected, 1e-9, 1e-11, err_msg=f"node {number}"
        )
        tangent = compute(dagad.jvp(y, node, DIRECTION)[1], scheduler="sync")[0]
        onp.testing.assert_allclose(tangent, onp.sum(expected * DIRECTION), 1e-9, 1e-11, err_msg=f"jvp {number}")


STEP = st.tuples(
    st.one_of(st.integers(0, len(STEPS) - 1), st.sampled_from(["gradient", "gradient", "tangent", "copy"])),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from(list(POLICIES)),
)


def programs(longest: int) -> Any:
    """Return programs of up to so many steps; each derivative in a program is one order more for those after it."""
    return st.lists(STEP, min_size=2, max_size=longest).filter(
        lambda steps: sum(how in ("gradient", "tangent") for how, *_ in steps) <= 2
    )


@settings(max_examples=examples(20), deadline=None, derandomize=True)
@given(programs(6), st.sampled_from(list(WAYS)))
def test_a_derivative_by_any_node_of_a_derivative_is_right(steps: Any, way: str) -> None:
    assert_right(steps, way)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(programs(4), st.sampled_from([3, 2]))
def test_a_derivative_by_any_array_of_a_derivative_is_right(steps: Any, chunk: int) -> None:
    assert_arrays_right(steps, chunk)


def test_an_array_that_a_tangent_has_put_into_a_task_is_differentiated_in() -> None:
    chain = [(0, 3, 0, "keep"), (0, 0, 0, "keep")]
    assert_arrays_right([*chain, ("tangent", 2, 4, "recompute")], 3)
    assert_arrays_right([*chain, ("tangent", 2, 0, "keep"), (2, 4, 2, "keep")], 2)


def test_an_array_that_is_fused_with_what_loads_its_data_is_differentiated_in() -> None:
    assert_arrays_right([(2, 7, 5, "keep"), ("tangent", 8, 9, "recompute"), (1, 6, 4, "recompute")], 3)


def test_blocks_that_dask_has_fused_without_their_keys_are_refused() -> None:
    x = da.from_array(A, chunks=2)
    a = da.sin(x)
    with dask_set({"optimization.fuse.active": True}):
        fused_without = optimize(da.exp(a).sum())[0]
    for y in (fused_without + (a**2).sum(), dagad.gradient(fused_without, x).sum() + (a**2).sum()):
        with pytest.raises(dagad.NotDifferentiableError, match="Take the derivative before `y` is optimized"):
            dagad.gradient(y, a)


def test_a_task_that_loads_what_it_needs_one_entry_of_is_differentiated_in() -> None:
    x, data = da.from_array(A, chunks=2), da.from_array(B, chunks=2)
    a = da.sin(x) * data[1]
    slope = dagad.gradient((a**3).sum(), [a, x])[0]
    onp.testing.assert_allclose(dagad.gradient((slope**2).sum(), a).compute(scheduler="sync"), 36.0 * a.compute() ** 3)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_array_that_dask_has_fused_for_its_delayed_blocks_is_differentiated_in(policy: str) -> None:
    x = da.from_array(A, chunks=2)
    a = da.cumsum(x, axis=0) * 0.5
    blocks = zip(a.to_delayed(), [(2,), (1,)], strict=True)
    b = da.concatenate([da.from_delayed(block, shape, float) for block, shape in blocks])
    slope = dagad.gradient((b**3).sum(), x, policy=POLICIES[policy]())
    second = dagad.gradient((slope * x).sum(), x, policy=POLICIES[policy]())
    found = compute(a, dagad.gradient((second * x).sum(), a), scheduler="sync")
    onp.testing.assert_allclose(found[1], 12.0 * found[0] ** 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("way", WAYS)
def test_data_that_an_inner_gradient_loads_in_its_tasks_are_differentiated_in(policy: str, way: str) -> None:
    # gradient by a leaf that the data stand beside; the data are read once more, outside of it
    assert_right([(1, 0, 1, policy), ("gradient", 2, 0, policy), (0, 3, 1, policy)], way)


@pytest.mark.parametrize("way", WAYS)
def test_a_node_in_the_middle_of_a_chain_of_an_inner_gradient_is_differentiated_in(way: str) -> None:
    chain = [(2, 0, 0, "keep"), (2, 2, 2, "keep"), (3, 3, 0, "keep")]
    assert_right([*chain, ("gradient", 4, 0, "keep"), (0, 5, 2, "keep"), (0, 6, 3, "keep")], way)


def test_an_earlier_gradient_is_a_node_of_a_later_one() -> None:
    assert_right(
        [("gradient", 0, 0, "keep"), (1, 2, 1, "keep"), ("gradient", 3, 1, "keep"), (0, 4, 2, "keep")], "as built"
    )


def test_a_node_in_a_chain_of_an_inner_tangent_is_differentiated_in() -> None:
    chain = [(2, 0, 0, "keep"), (2, 2, 2, "keep"), (3, 3, 0, "keep")]
    assert_right([*chain, ("tangent", 4, 0, "keep"), (0, 5, 2, "keep"), (0, 6, 3, "keep")], "as built")


def test_third_derivatives_by_hidden_nodes_are_right() -> None:
    chain = [(2, 0, 1, "keep"), (2, 2, 2, "keep"), ("gradient", 3, 0, "keep")]
    assert_right([*chain, (2, 4, 2, "keep"), ("gradient", 5, 1, "keep"), (0, 6, 2, "keep")], "as built")


def test_derivatives_by_hidden_nodes_have_the_same_bits_on_every_scheduler(scheduler: Any) -> None:
    chain = [(2, 0, 1, "keep"), (2, 2, 2, "recompute"), ("gradient", 3, 0, "keep"), (2, 4, 2, "keep")]
    get = scheduler if isinstance(scheduler, str) else scheduler.get
    for made in (OnDask([*chain, ("tangent", 3, 2, "keep")]), OnArrays(chain, 2)):
        gradients = [dagad.gradient(made.end(), node, unused="zeros") for node in made.nodes]
        for found, right in zip(
            compute(gradients, scheduler=get)[0], compute(gradients, scheduler="sync")[0], strict=True
        ):
            onp.testing.assert_array_equal(found, right)
