"""Chunks of a hot loop, without a cluster: the same bits whoever has which chunks, on however many threads?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from faults import bits
from hypothesis import given, settings, strategies as st

import dagad
from dagad._engines.autograd.engine import AutogradEngine
from dagad._executors.evaluation import new_names
from dagad._executors.hot_chunks import FEWEST_STACKED, GRADIENT, LARGEST_STACK, VALUE, HotChunks, Stack
from dagad._executors.hot_road import _parts, _read
from dagad._graphs.sums import RunningTree, Subtree, assembled
from dagad._operations.chunks import ChunkFunction
from dagad._pytrees import pytree
from dagad._pytrees.buffers import Layout, Spec
from dagad._pytrees.partition import Partition
from dagad._sources.columns import read_sliced
from dagad._sources.plan import Plan

RNG = np.random.default_rng(0)
X = RNG.standard_normal((150, 2)) * 10.0 ** RNG.integers(-8, 8, (150, 1))
often = settings(max_examples=30, deadline=None, derandomize=True)


class Always:
    """Makes a function that carries nothing traced."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.fun = fun

    def __call__(self, values: Any) -> Any:
        return self.fun


def program_of(fun: Callable[..., Any], plan: Plan, theta: Sequence[Any]) -> HotChunks:
    partitions = tuple(Partition.of(leaf, pytree.is_differentiable).bare() for leaf in theta)
    function = ChunkFunction(Always(fun), 0, partitions, AutogradEngine())
    return HotChunks(function, plan, None, tuple(map(Spec.of, theta)), new_names())


def packed(layout: Layout, theta: Sequence[Any]) -> bytes:
    buffer = np.zeros(layout.nbytes, np.uint8)
    layout.write(theta, buffer)
    return buffer.tobytes()


def rows_of(plan: Plan, data: Any = X) -> Callable[[int], list[Any]]:
    columns, chunks = read_sliced(data[: plan.n_rows])[0], list(plan)
    return lambda number: [columns.rows(chunks[number])]


def never() -> bool:
    return False


def on_workers(
    fun: Callable[..., Any], plan: Plan, theta: Sequence[Any], owners: Sequence[int], n_threads: int, role: str
) -> list[bytes]:
    """Have every worker compute what it owns, and return the bits of the total."""
    program, rows, sums = program_of(fun, plan, theta), rows_of(plan), dict[Subtree, Any]()
    for worker in set(owners):
        parts = _parts([chunk for chunk, owner in enumerate(owners) if owner == worker], len(plan))
        job = program.job(role, packed(program.layout, theta), None, keep=False)
        shares = job.split(parts, n_threads)
        assert len(shares) <= n_threads
        found = {part: job.part(part, rows, never) for share in shares for part in share}
        head, buffer = job.reply(parts, found)
        reply = {**head, "data": bytes(buffer), "seconds": 0.0}
        sums.update(zip(parts, _read(reply, program.layout, len(parts), role), strict=True))
    total = assembled(sums, len(plan))
    leaves = [np.zeros_like(leaf) if part is None else part for part, leaf in zip(total[1:], theta, strict=False)]
    return bits([total[0], *leaves])


def by_one_thread(fun: Callable[..., Any], plan: Plan, theta: Sequence[Any], role: str) -> list[bytes]:
    def loss(*theta: Any) -> Any:
        return dagad.reduce_sum(fun, X[: plan.n_rows], *theta, grainsize=plan.grainsize, scheduler="sync")

    if role == VALUE:
        return bits([loss(*theta)])
    value, gradients = dagad.value_and_grad(loss, argnums=tuple(range(len(theta))))(*theta)
    return bits([value, *gradients])


def of_array(rows: Any, theta: Any) -> Any:
    return anp.sum(rows @ theta) + anp.sum(theta)


def of_float(rows: Any, theta: Any) -> Any:
    return anp.sum(rows) * theta


def of_some(rows: Any, one: Any, other: Any) -> Any:
    return anp.sum(rows) * one + (anp.sum(other * rows[0, 0]) if rows[0, 0] > 0 else 0.0)


def of_single(rows: Any, theta: Any) -> Any:
    return anp.sum(theta * anp.float32(rows[0, 0]))


def of_large(rows: Any, theta: Any) -> Any:
    return anp.sum(theta * rows[0, 0])


CASES: list[tuple[Callable[..., Any], list[Any]]] = [
    (of_array, [np.array([0.3, -0.7])]),
    (of_array, [np.full((2, 1), 1.5, order="F")]),
    (of_float, [0.5]),
    (of_float, [np.float64(0.5)]),
    (of_single, [np.ones(3, "f4")]),
    (of_some, [0.5, np.ones((2, 2))]),
]


@pytest.mark.parametrize(("fun", "theta"), CASES)
@pytest.mark.parametrize("role", [VALUE, GRADIENT])
@often
@given(st.integers(1, 150), st.integers(1, 40), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_the_bits_do_not_tell_who_had_which_chunks(
    role: str, fun: Any, theta: Any, n_rows: int, grainsize: int, n_workers: int, n_threads: int, seed: int
) -> None:
    plan = Plan(n_rows, grainsize)
    rng = np.random.default_rng(seed)
    owners = rng.integers(0, n_workers, len(plan))
    if seed % 2:  # runs of neighbours, as they usually are
        owners = np.sort(owners)
    found = on_workers(fun, plan, theta, list(map(int, owners)), n_threads, role)
    assert found == by_one_thread(fun, plan, theta, role)


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_a_gradient_uses_what_its_value_left_behind(n_threads: int) -> None:
    calls = []

    def fun(rows: Any, theta: Any) -> Any:
        calls.append(rows)
        return of_array(rows, theta)

    plan, theta = Plan(40, 3), [np.array([0.3, -0.7])]
    program, rows = program_of(fun, plan, theta), rows_of(plan)
    arguments, parts = packed(program.layout, theta), _parts(range(len(plan)), len(plan))
    first = program.job(VALUE, arguments, None, keep=True)
    value = {part: first.part(part, rows, never) for share in first.split(parts, n_threads) for part in share}
    assert first.nbytes() > 0
    second = program.job(GRADIENT, arguments, first, keep=False)
    found = {part: second.part(part, rows, never) for share in second.split(parts, n_threads) for part in share}
    assert len(calls) == len(plan)
    assert second.nbytes() == 0
    expected = by_one_thread(of_array, plan, theta, GRADIENT)
    assert bits(assembled(found, len(plan))) == expected
    assert bits(assembled(value, len(plan))) == expected[:1]


def test_a_value_that_nobody_keeps_leaves_nothing_behind() -> None:
    plan, theta = Plan(40, 3), [np.array([0.3, -0.7])]
    program = program_of(of_array, plan, theta)
    for role in (VALUE, GRADIENT):
        job = program.job(role, packed(program.layout, theta), None, keep=False)
        job.part(Subtree(0, 4), rows_of(plan), never)
        assert job.nbytes() == 0


def test_it_stops_after_the_chunk_that_it_is_in() -> None:
    calls = []

    def fun(rows: Any, theta: Any) -> Any:
        calls.append(rows)
        return of_array(rows, theta)

    plan, theta = Plan(40, 4), [np.array([0.3, -0.7])]
    program = program_of(fun, plan, theta)
    job = program.job(GRADIENT, packed(program.layout, theta), None, keep=False)
    with pytest.raises(dagad.CancelledError, match="Nobody waits"):
        job.part(Subtree(0, 4), rows_of(plan), lambda: len(calls) == 3)
    assert len(calls) == 3


@pytest.mark.parametrize("value", [1, np.ones(2), 1j, (1.0, 2.0), np.ones((1, 1))], ids=repr)
@pytest.mark.parametrize("role", [VALUE, GRADIENT])
def test_what_is_not_one_real_number_is_left_to_the_graph(role: str, value: Any) -> None:
    plan, theta = Plan(4, 2), [np.array([0.3, -0.7])]
    program = program_of(lambda rows, theta: value, plan, theta)
    job = program.job(role, packed(program.layout, theta), None, keep=False)
    with pytest.raises(dagad.NotDifferentiableError, match="only the sum of real numbers takes the fast road"):
        job.part(Subtree(0, 1), rows_of(plan), never)


def test_arguments_of_another_size_are_refused() -> None:
    program = program_of(of_array, Plan(4, 2), [np.ones(2)])
    with pytest.raises(dagad.StructureError, match="A message of 16 bytes was expected"):
        program.job(VALUE, bytes(24), None, keep=False)


# Stacks


@often
@given(st.integers(1, 80), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.05]), st.booleans())
def test_a_stack_is_the_same_tree(count: int, seed: int, gaps: float, numbers: bool) -> None:
    rng = np.random.default_rng(seed)

    def term() -> list[Any]:
        size = 10.0 ** rng.integers(-8, 8)
        made: list[Any] = [np.float64(rng.standard_normal() * size), rng.standard_normal((2, 3)) * size]
        made.append(float(rng.standard_normal()) if numbers else np.asarray(rng.standard_normal(4), order="F"))
        return [None if number and rng.random() < gaps else leaf for number, leaf in enumerate(made)]

    terms = [term() for _ in range(count)]
    before = [bits([leaf for leaf in one if leaf is not None]) for one in terms]
    stack, tree = Stack(Layout([])), RunningTree()
    for one in terms:
        stack.push(one)
        tree.push(one)
    found, expected = stack.total(), tree.total()
    assert [leaf is None for leaf in found] == [leaf is None for leaf in expected]
    assert bits([leaf for leaf in found if leaf is not None]) == bits([leaf for leaf in expected if leaf is not None])
    assert [np.shape(leaf) for leaf in found] == [np.shape(leaf) for leaf in expected]
    assert [bits([leaf for leaf in one if leaf is not None]) for one in terms] == before


def test_terms_of_other_shapes_are_not_stacked() -> None:
    stack = Stack(Layout([]))
    for number in range(2 * FEWEST_STACKED):
        stack.push([1.0, np.ones(2 + number % 2)])
    with pytest.raises(ValueError, match="shape"):
        stack.total()


def test_large_terms_are_added_up_one_by_one() -> None:
    plan, theta = Plan(20, 1), [np.linspace(0.0, 1.0, LARGEST_STACK // 64)]
    found = on_workers(of_large, plan, theta, [0] * 20, 1, GRADIENT)
    assert found == by_one_thread(of_large, plan, theta, GRADIENT)
