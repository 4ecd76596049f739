"""Residents, without a cluster: the same bits whoever has which chunks, on however many threads, for any kernel?"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import autograd.numpy as anp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dagad
from dagad._executors import resident
from dagad._executors.evaluation import new_names
from dagad._executors.resident import UnavailableError
from dagad._executors.resident_program import PULL, RECORD, VALUE, Found, ResidentProgram
from dagad._graphs.sum_trees import Subtree
from dagad._kernels.cuts import ByItem
from dagad._kernels.inputs import Inputs
from dagad._kernels.joins import EndToEnd, Stack
from dagad._kernels.kernel import Kernel, Outputs, Summed, Unreduced
from dagad._kernels.operation import Operation, Recorded, WithGrad
from dagad._kernels.over_parts import OverParts
from dagad._sources.arrays import ArraySource
from dagad._sources.columns import Sliced, read_sliced
from dagad._sources.plan import Plan
from dagad._sources.shards import ShardSource
from dagad._values import pytree
from dagad._values.buffers import pack_tree, unpack_tree
from dagad.extend import CompensatedSum, Keep, PlainSum, Preaccumulate, Recompute
from dagad_scheduler.residents import loop
from support.cluster_of_dicts import OnPaper, PaperLines, Placed
from support.gated_chunks import bits
from support.operations_by_hand import EXECUTORS, Known, Run, chunk_function

RNG = np.random.default_rng(0)
X = RNG.standard_normal((150, 2)) * 10.0 ** RNG.integers(-8, 8, (150, 1))
Y = RNG.standard_normal(150)
THETA, SCALE = np.array([0.3, -0.7]), 0.6
N_EMPTY = 1  # chunks of three rows whose items all give nothing
often = settings(max_examples=4, deadline=None, derandomize=True)
Maker = Callable[[Any], Kernel]


# Chunk functions, of rows that live on workers and of rows that are differentiated in


def number(rows: Any, theta: Any, scale: Any) -> Any:
    x, y = rows
    return anp.sum(anp.sin(x @ theta) * y) * scale


def tree(rows: Any, theta: Any, scale: Any) -> Any:
    x, y = rows
    return {"a": [anp.sum(x * theta, axis=0) * scale, anp.sum(y) * theta[0]], "b": scale**2, "n": len(x)}


def sometimes_nothing(rows: Any, theta: Any, scale: Any) -> Any:
    return number(rows, theta, scale) if rows[0][0, 0] > 0 else 0


def integers_and_trees(rows: Any, theta: Any, scale: Any) -> Any:
    x, y = rows
    return (anp.sum(y) * theta * scale, 1) if x[0, 0] > 0 else (np.zeros(2, int), 1)


def single(rows: Any, theta: Any, scale: Any) -> Any:
    return anp.sum(anp.array(theta, "f4") * anp.float32(rows[0][0, 0])) * scale


def item(row: Any, theta: Any, scale: Any) -> Any:
    x, y = row
    return {"sin": anp.sin(x * theta) * y, "n": 3, "scaled": scale * y}


def ragged(row: Any, theta: Any, scale: Any) -> Any:
    x, y = row
    return anp.ones(int(np.abs(x[0])) % 4) * y * theta[0] + scale


KERNELS: dict[str, tuple[Any, Maker]] = {
    "number": (number, Summed),
    "tree": (tree, Summed),
    "sometimes nothing": (sometimes_nothing, Summed),
    "integers and trees": (integers_and_trees, Summed),
    "single precision": (single, Summed),
    "apart": (tree, Unreduced),
    "map": (item, lambda function: OverParts(function, ByItem(), Stack())),
    "map_rect": (ragged, lambda function: OverParts(function, ByItem(), EndToEnd())),
}
MIXED = pytest.mark.parametrize("name", KERNELS)


def columns_of(plan: Plan, sharded: Placed | None, active: bool) -> Sliced:
    n_rows, shards = plan.n_rows, () if sharded is None else (sharded,)
    arrays = ArraySource(n_rows, X[:n_rows], None)
    first: Any = arrays if sharded is None else ShardSource(n_rows, sharded, None)  # type: ignore[arg-type]  # on paper
    second = ArraySource(n_rows, None, 2) if active else ArraySource(n_rows, Y[:n_rows], None)
    return Sliced(pytree.flatten((0, 0))[1], [first, second], n_rows, shards)  # type: ignore[arg-type]  # on paper


def operation(name: str, plan: Plan, executor: Any, sharded: Any = None, active: bool = True, **more: Any) -> Operation:
    (fun, kernel), sliced = KERNELS[name], columns_of(plan, sharded, active)
    policy, function = more.pop("policy", Preaccumulate()), kernel(chunk_function(fun, [THETA, SCALE]))
    return Operation(function, plan, sliced, Inputs.of(plan, sliced, 2), executor, policy, (name, active), **more)


def pair(
    name: str, plan: Plan, owners: Sequence[int] | None = None, n_threads: int = 1, **more: Any
) -> tuple[Operation, Operation, PaperLines]:
    """Return the same operation here and by residents."""
    sharded = Placed(X[: plan.n_rows], plan)
    lines = PaperLines([sharded], [0] * len(plan) if owners is None else owners, n_threads)
    there = operation(name, plan, OnPaper(lines), sharded, **more)
    return operation(name, plan, EXECUTORS["inline"], **more), there, lines


def leaves_of(plan: Plan, active: bool = True) -> list[Any]:
    return [THETA, SCALE, Y[: plan.n_rows]] if active else [THETA, SCALE]


def bits_of(parts: Outputs) -> list[bytes]:
    assert not isinstance(parts.reduced, list)
    return bits(parts.leaves())


def seeds_of(value: Outputs, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(np.shape(leaf)) for leaf in value.floats()]


def full(part: Any) -> Any:
    return part.full() if hasattr(part, "full") else part


def everything(made: Operation, leaves: Sequence[Any]) -> list[Any]:
    """Return the bits of what an operation and its derivatives give."""
    found: list[Any] = [bits_of(made.call(leaves))]
    tangents = [np.cos(np.arange(float(np.size(leaf)))).reshape(np.shape(leaf))[()] for leaf in leaves]
    found.append(bits_of(made.pushforward(1).call([*leaves[:2], *tangents[:2], *leaves[2:], *tangents[2:]])))
    run = Run(made, leaves)
    found.append(bits_of(run.value))
    seeds = [seeds_of(run.value, number) for number in range(3)]
    found.append(bits(run.pulled(seeds[0])))
    found.append(bits(run.pulled(seeds[1])))
    many = run.many([seeds[0], seeds[2]])
    found.append([[None if part is None else bits([full(part)]) for part in column] for column in many])
    if made.kernel.is_reduction:
        found.append(bits_of(made.value_and_grad().call(leaves)))
    return found


def see_same_bits(name: str, plan: Plan, owners: Any, n_threads: int, seed: int, *, active: bool, monoid: Any) -> None:
    policy = [Keep, Recompute, Preaccumulate][seed % 3]()
    here, there, lines = pair(name, plan, owners.tolist(), n_threads, policy=policy, active=active, monoid=monoid)
    leaves = leaves_of(plan, active)
    assert everything(there, leaves) == everything(here, leaves)
    gc.collect()
    assert lines.n_held() == 0


@pytest.mark.sampled(2)
@MIXED
@pytest.mark.parametrize("monoid", [PlainSum(), CompensatedSum()])
@often
@given(st.integers(1, 60), st.integers(1, 16), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_residents_give_the_same_bits_whoever_has_which_chunks(
    name: str, monoid: Any, n_rows: int, grainsize: int, n_workers: int, n_threads: int, seed: int
) -> None:
    plan, rng = Plan(n_rows, grainsize), np.random.default_rng(seed)
    owners = rng.integers(0, n_workers, len(plan))
    if seed % 2:  # runs of neighbours, as they usually are
        owners = np.sort(owners)
    see_same_bits(name, plan, owners, n_threads, seed, active=bool(seed % 5), monoid=monoid)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["number", "tree", "sometimes nothing", "integers and trees"])
@pytest.mark.parametrize("monoid", [PlainSum(), CompensatedSum()])
@often
@given(st.integers(1, 60), st.integers(1, 16), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_residents_give_the_same_bits_whoever_adds_up_what(
    name: str, monoid: Any, n_rows: int, grainsize: int, n_workers: int, n_threads: int, seed: int
) -> None:
    """Workers give each other what belongs to a larger subtree, so that none of them sends more than one gradient."""
    plan, rng = Plan(n_rows, grainsize), np.random.default_rng(seed)
    owners = rng.integers(0, n_workers, len(plan)) if seed % 2 else np.arange(len(plan)) * n_workers // len(plan)
    all_relayed = patch.object(PaperLines, "is_relayed", True)
    with all_relayed, patch.object(resident, "LARGE", 0), patch.object(resident, "_found", one_at_most(seed)):
        see_same_bits(name, plan, owners, n_threads, seed, active=False, monoid=monoid)


@pytest.mark.parametrize("seeds", [1, 2])
def test_residents_drop_the_tapes_of_chunks_that_have_moved(seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LOOK_AGAIN", -1.0)
    here, there, lines = pair("tree", Plan(8, 1), [0, 0, 0, 0, 1, 1, 1, 1], active=False, policy=Keep())
    runs = [Run(one, leaves_of(Plan(8, 1), False)) for one in (there, here)]
    assert lines.n_held() == 2
    lines.move([0, 0, 1, 1, 1, 1, 1, 1])
    some = [seeds_of(runs[0].value, number) for number in range(seeds)]
    pulled, expected = [run.many(some) if seeds > 1 else run.pulled(some[0]) for run in runs]
    assert pytree.flatten(pulled)[1] == pytree.flatten(expected)[1]
    assert bits(list(map(full, pytree.flatten(pulled)[0]))) == bits(list(map(full, pytree.flatten(expected)[0])))
    del runs
    gc.collect()
    assert lines.n_held() == 0


@pytest.mark.parametrize(("owners", "times"), [([0, 0, 0, 1, 1, 1], 1), ([0, 0, 0, 0, 1, 1], 0)])
def test_residents_give_each_other_gradients_only_where_one_would_send_several(owners: list[int], times: int) -> None:
    _, there, lines = pair("number", Plan(6, 1), owners, active=False)
    lines.is_relayed = True
    with patch.object(resident, "LARGE", 0):
        run = Run(there, leaves_of(Plan(6, 1), False))
        run.pulled(seeds_of(run.value))
    assert lines.methods[0] in (RECORD, VALUE)  # once it is known that it gives a number, it is a call
    assert lines.methods[1:] == ["gather"] * times


def one_at_most(seed: int) -> Any:
    """Return what takes replies, and sees how many gradients there are where neighbours lie together."""

    def found(job: Any, homes: Any, address: str, reply: Any, method: str) -> Any:
        address, answer = taken(job, homes, address, reply, method)
        has_gradient = method == PULL or "gradient" in job.kernel.gives
        assert seed % 2 or not has_gradient or len(answer.reduced) <= 1
        return address, answer

    taken = resident._found
    return found


# How often, and what stays


class Counting:
    """Counts the runs of a kernel in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_runs, self._inside = 0, False
        for kind, method in itertools.product((Summed, OverParts), ("value", "record")):
            inner = getattr(kind, method)

            def watched(made: Any, *args: Any, inner: Any = inner, **how: Any) -> Any:
                outermost, self._inside = not self._inside, True
                self.n_runs += outermost
                try:
                    return inner(made, *args, **how)
                finally:
                    self._inside = not outermost

            monkeypatch.setattr(kind, method, watched)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(monkeypatch)


REDUCTIONS = ["number", "tree", "sometimes nothing", "integers and trees", "map", "map_rect"]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize(("policy", "times"), [(Keep, 1), (Recompute, 2), (Preaccumulate, 1)])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_pullback_uses_what_the_value_left_behind(
    name: str, policy: Any, times: int, n_threads: int, runs: Counting
) -> None:
    plan = Plan(40, 3)
    here, there, lines = pair(name, plan, [0] * 6 + [1] * 8, n_threads, policy=policy())
    expected = Run(here, leaves_of(plan))
    seeds = seeds_of(expected.value)
    gradient = bits(expected.pulled(seeds))
    runs.n_runs = 0
    run = Run(there, leaves_of(plan))
    is_number = name in ("number", "sometimes nothing")
    assert isinstance(run.state, WithGrad if is_number and policy is Preaccumulate else Recorded)
    assert bits_of(run.value) == bits_of(expected.value)
    assert runs.n_runs == len(plan)
    assert bits(run.pulled(seeds)) == gradient
    n_seeded = len(plan) - (name == "map_rect" and policy is Recompute) * N_EMPTY
    assert runs.n_runs == len(plan) + (times - 1) * n_seeded
    assert lines.n_held() == 0
    assert bits(run.pulled(seeds)) == gradient
    before = len(plan) + (times - 1) * n_seeded
    assert runs.n_runs == before + (not is_number) * len(plan)  # a tape is pulled once


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_many_seeds_record_a_chunk_once(name: str, runs: Counting) -> None:
    plan = Plan(40, 3)
    here, there, lines = pair(name, plan, [0] * 6 + [1] * 8, 2, policy=Keep())
    expected = Run(here, leaves_of(plan))
    seeds = [seeds_of(expected.value, number) for number in range(100)]  # more than one call takes
    wanted = expected.many(seeds)
    runs.n_runs = 0
    run = Run(there, leaves_of(plan))
    for _ in range(2):
        found = run.many(seeds)
        assert [bits(list(map(full, column))) for column in found] == [
            bits(list(map(full, column))) for column in wanted
        ]
        assert runs.n_runs == len(plan)
    del run, found
    gc.collect()
    assert lines.n_held() == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["call", "forward", "backward"])
def test_residents_run_again_what_workers_have_forgotten(method: str) -> None:
    plan = Plan(40, 3)
    for name in REDUCTIONS:
        here, there, lines = pair(name, plan, [0] * 6 + [1] * 8, 2, policy=Keep())
        run, expected = Run(there, leaves_of(plan)), Run(here, leaves_of(plan))
        for worker in lines.by_address.values():
            worker.held.clear()
            if method != "backward":
                worker.programs.clear()
        if method == "call":
            assert bits_of(there.call(leaves_of(plan))) == bits_of(expected.value)
        elif method == "forward":
            run = Run(there, leaves_of(plan))
        assert bits(run.pulled(seeds_of(run.value))) == bits(expected.pulled(seeds_of(run.value)))


def test_tapes_that_residents_hold_go_with_their_state() -> None:
    plan = Plan(40, 3)
    _, there, lines = pair("tree", plan, [0] * 6 + [1] * 8, policy=Keep())
    run = Run(there, leaves_of(plan))
    assert lines.n_held() == 2
    assert all(job.nbytes() > 0 for worker in lines.by_address.values() for job in worker.held.values())
    del run
    gc.collect()
    assert lines.n_held() == 0


def test_a_call_sends_a_program_once_and_a_value_leaves_nothing() -> None:
    plan = Plan(40, 3)
    _, there, lines = pair("number", plan, [0] * 6 + [1] * 8)
    for _ in range(3):
        there.call(leaves_of(plan))
        Run(there, leaves_of(plan))
    assert lines.methods[:1] + lines.methods[2:] == [VALUE] * 5
    assert lines.methods[1] in (RECORD, VALUE)
    assert lines.n_held() == 0
    n_kernels = 3 if RECORD in lines.methods else 2
    assert {len(worker.programs) for worker in lines.by_address.values()} == {n_kernels}


def test_a_number_that_was_expected_and_is_none_is_recorded_before_the_call_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Plan(40, 3)
    for name in ("tree", "integers and trees"):
        here, _, _ = pair(name, plan, policy=Keep())
        monkeypatch.setattr("dagad._kernels.operation._GIVES_NUMBERS", Known(numbers=True))
        sharded = Placed(X[:40], plan)
        lines = PaperLines([sharded], [0] * 6 + [1] * 8)
        there = operation(name, plan, OnPaper(lines), sharded)
        run, expected = Run(there, leaves_of(plan)), Run(here, leaves_of(plan))
        assert bits_of(run.value) == bits_of(expected.value)
        assert lines.n_held() == 2  # a job on each worker, of arguments as they are now
        seeds = seeds_of(run.value)
        assert bits(run.pulled(seeds)) == bits(expected.pulled(seeds))
        del run
        gc.collect()
        assert lines.n_held() == 0


# One job


def program_of(fun: Callable[..., Any], plan: Plan, policy: Any = None) -> tuple[ResidentProgram, Any]:
    kernel = Summed(chunk_function(fun, [THETA]))
    program = ResidentProgram(kernel, PlainSum(), policy or Keep(), plan, None, new_names())
    columns, chunks = read_sliced(X[: plan.n_rows])[0], list(plan)
    return program, lambda number: [columns.rows(chunks[number])]


def message(method: str, seeds: Sequence[Any] = (), keep: bool = False) -> dict[str, Any]:
    return {"method": method, "keep": keep, "shared": list(pack_tree(([[THETA]], list(seeds))))}


def of_array(rows: Any, theta: Any) -> Any:
    return anp.sum(rows @ theta) + anp.sum(theta)


@pytest.mark.parametrize("method", [VALUE, RECORD, PULL])
def test_a_resident_that_nobody_waits_for_stops_after_its_chunk(method: str) -> None:
    calls = []

    def fun(rows: Any, theta: Any) -> Any:
        calls.append(rows)
        return of_array(rows, theta)

    program, rows = program_of(fun, Plan(40, 4))
    job = program.job(message(method, [[1.0]] if method == PULL else ()), None)
    with pytest.raises(dagad.CancelledError, match="Nobody waits"):
        job.part(Subtree(0, 4), rows, lambda: len(calls) == 3)
    assert len(calls) == 3


def test_a_value_that_nobody_keeps_leaves_nothing_behind() -> None:
    program, rows = program_of(of_array, Plan(40, 3))
    job = program.job(message(VALUE), None)
    job.part(Subtree(0, 4), rows, bool)
    assert not job.holds
    assert job.nbytes() == 0


def test_a_resident_refuses_messages_of_another_size() -> None:
    program, _ = program_of(of_array, Plan(4, 2))
    short = message(VALUE)
    short["shared"][1] = bytes(24)
    with pytest.raises(dagad.StructureError, match="A message of 16 bytes was expected"):
        program.job(short, None)


@pytest.mark.parametrize("method", ["call", "forward"])
def test_replies_of_residents_with_other_parts_are_refused(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(40, 3)
    for name in ("number", "map"):
        _, there, lines = pair(name, plan, [0] * 6 + [1] * 8)
        worker = lines.by_address["worker-1"]
        call = worker.call

        def wrong(asked: dict[str, Any], call: Any = call) -> dict[str, Any]:
            asked = dict(asked)
            if "parts" in asked:
                asked["parts"] = asked["parts"][:1]
            found: dict[str, Any] = call(asked)
            return found

        monkeypatch.setattr(worker, "call", wrong)
        with pytest.raises(UnavailableError, match="worker-1 sent other parts"):
            getattr(there, method)(leaves_of(plan))


def test_replies_of_residents_with_too_few_notes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _, there, lines = pair("map", Plan(40, 3), [0] * 6 + [1] * 8)
    worker = lines.by_address["worker-1"]
    call = worker.call

    def wrong(asked: dict[str, Any]) -> dict[str, Any]:
        reply = call(asked)
        found = Found(*unpack_tree(reply["head"], reply["data"]))
        head, data = pack_tree(found._replace(notes=found.notes[:-1]))
        return {**reply, "head": head, "data": bytes(data)}

    monkeypatch.setattr(worker, "call", wrong)
    with pytest.raises(UnavailableError, match="something else than was asked for"):
        there.call(leaves_of(Plan(40, 3)))


def test_an_exception_of_a_chunk_at_a_resident_is_left_to_the_graph() -> None:
    plan = Plan(40, 3)
    _, there, lines = pair("number", plan)
    monkey = lines.by_address["worker-0"]
    monkey.call = lambda message: {"status": "failed", "reason": "LookupError: no"}  # type: ignore[method-assign]  # on paper only
    with pytest.raises(UnavailableError, match="LookupError") as caught:
        there.call(leaves_of(plan))
    assert caught.value.by_chunks
