"""Scheduled graphs: the same bits, as many runs as agreed, and never more tapes and states than that?"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import autograd
import autograd.numpy as np
import checkpoint_schedules as theirs
import numpy as onp
import pytest
from dask.base import annotate as dask_annotate, compute as dask_compute
from dask.delayed import delayed
from test_layers import by_role, told

import dagad
from dagad._graphs.activity import topological
from dagad._graphs.linearization import Linearization
from dagad._graphs.states import WrittenState, read_state, write_state
from dagad.extend import Keep, Revolve, Segment
from dagad_scheduler import Role, role_of
from dagad_scheduler.private import convert_legacy_graph

pytestmark = pytest.mark.sampled(3)

compute: Any = dask_compute  # Dask has few types
annotate: Any = dask_annotate
START = onp.linspace(0.1, 1.0, 6)


def advance(left: Any, own: Any, right: Any, rate: Any) -> Any:
    line = np.concatenate([left, own, right])
    return own + rate * np.sin(line[2:] - 2.0 * own + line[:-2]) * own


def energy(*blocks: Any) -> Any:
    return sum(np.sum(block**2) for block in blocks)


def stepped(n_steps: int, n_blocks: int = 1, mark: Callable[[int], dict[str, Any]] | None = None) -> tuple[Any, Any]:
    """Return a number at the end of some steps of blocks that read their neighbours, and what it is made of."""
    start: list[Any] = [delayed(part) for part in onp.array_split(START, n_blocks)]
    rate, blocks = delayed(0.3), start
    for step in range(n_steps):
        with annotate(**(mark(step) if mark else {})):
            first, last = [block[:1] for block in blocks], [block[-1:] for block in blocks]
            blocks = [
                delayed(advance)(last[i - 1], own, first[(i + 1) % n_blocks], rate) for i, own in enumerate(blocks)
            ]
    return delayed(energy)(*blocks), [*start, rate]


def chains(n_steps: int, n_chains: int, mark: Callable[[int], dict[str, Any]] | None = None) -> tuple[Any, Any]:
    start: list[Any] = [delayed(START + i) for i in range(n_chains)]
    ends = start
    for step in range(n_steps - 1):
        with annotate(**(mark(step) if mark else {})):
            ends = [delayed(np.sin)(end) for end in ends]
    return delayed(energy)(*ends), start


def where(scheduler: Any) -> dict[str, Any]:
    return {"scheduler": scheduler} if isinstance(scheduler, str) else {"scheduler": scheduler.get}


def bits(found: Any) -> list[bytes]:
    return [onp.asarray(part).tobytes() for part in found]


def computed(y: Any, wrt: Any, policy: Any, scheduler: Any = "sync") -> list[bytes]:
    value, gradients = dagad.value_and_gradient(y, wrt, policy=policy)
    return bits(compute(value, *gradients, **where(scheduler)))


SCHEDULES: dict[str, Callable[[], Any]] = {  # for 9 steps
    "segments of one": lambda: Segment(1),
    "segments": lambda: Segment(4),
    "one segment": lambda: Segment(99),
    "segments on disk": lambda: Segment(2, disk=True),
    "one state": lambda: Revolve(1),
    "states": lambda: Revolve(3),
    "states on disk": lambda: Revolve(2, disk=True),
    "theirs": lambda: theirs.Revolve(9, 3),
    "theirs, on disk and in memory": lambda: theirs.MultistageCheckpointSchedule(9, 1, 1),
    "theirs, tapes as states": lambda: theirs.MixedCheckpointSchedule(9, 3, storage=theirs.StorageType.RAM),
    "theirs, with periods": lambda: theirs.TwoLevelCheckpointSchedule(3, 1),
    "theirs, all tapes": theirs.SingleMemoryStorageSchedule,
    "theirs, from disk to memory": lambda: theirs.HRevolve(9, 1, 2),
}


# Theirs would like to have numba.
@pytest.mark.sampled(27)
@pytest.mark.filterwarnings("ignore:Numba not available")
@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("n_blocks", [1, 3])
def test_a_schedule_does_not_change_the_bits(name: str, n_blocks: int) -> None:
    y, wrt = stepped(8, n_blocks)
    expected = computed(y, wrt, Keep())
    assert computed(y, wrt, SCHEDULES[name]()) == expected
    assert computed(y, wrt, SCHEDULES[name](), "threads") == expected


@pytest.mark.parametrize("policy", [Revolve(2), Segment(2, disk=True)], ids=repr)
def test_a_schedule_does_not_change_the_bits_on_a_cluster(policy: Any, cluster: Any) -> None:
    y, wrt = stepped(4, 2)
    assert computed(y, wrt, policy, cluster) == computed(y, wrt, Keep())


def test_a_gradient_under_a_schedule_is_that_of_autograd() -> None:
    def whole(start: Any, rate: Any) -> Any:
        for _ in range(8):
            start = advance(start[-1:], start, start[:1], rate)
        return energy(start)

    y, wrt = stepped(8, 3)
    found = compute(dagad.gradient(y, wrt, policy=Revolve(2)), scheduler="sync")[0]
    expected = autograd.grad(lambda both: whole(*both))([START, 0.3])
    onp.testing.assert_allclose(onp.concatenate(found[:3]), expected[0], rtol=1e-13)
    onp.testing.assert_allclose(found[3], expected[1], rtol=1e-13)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize(
    ("policy", "n_steps", "n_runs"),
    [
        (Revolve(3), 10, 25),
        (Revolve(3), 100, 590),
        (Revolve(10), 500, 2136),
        (Segment(4), 64, 2 * 64 - 4),
        (Segment(7), 64, 2 * 64 - 1),
    ],
    ids=repr,
)
def test_a_schedule_runs_what_it_promises(policy: Any, n_steps: int, n_runs: int, scheduler: str) -> None:
    before = policy.n_primal, policy.n_pullback
    computed(*chains(n_steps, 1), policy, scheduler)
    assert (policy.n_primal - before[0], policy.n_pullback - before[1]) == (n_runs, n_steps)
    assert policy.peak_linearizations == getattr(policy, "k", 1)


@pytest.mark.parametrize("k", [1, 4, 8])
def test_k_tapes_are_alive_for_each_worker_that_has_a_chain(k: int) -> None:
    y, wrt = chains(33, 2, lambda t: {"dagad_step": t})
    policy = Segment(k)
    value, gradients = dagad.value_and_gradient(y, wrt, policy=policy)
    compute(value, *gradients, scheduler="threads", num_workers=2)
    assert policy.peak_linearizations == 2 * k + 1  # the sum of both ends belongs to the last step
    assert policy.n_pullback == 2 * 32 + 1


def in_any_order(graph: Any, keys: list[Any], rng: random.Random) -> Iterator[dict[Any, Any]]:
    """Run a graph task by task, in any order that it allows; yield all results that somebody needs still."""
    order = topological(graph, keys)
    waiting = {key: len(refs) for key, refs in order.items()}
    ready = [key for key, count in waiting.items() if not count]
    behind: dict[Any, list[Any]] = {key: [] for key in order}
    for key, refs in order.items():
        for ref in refs:
            behind[ref].append(key)
    readers = {key: len(behind[key]) + (key in keys) for key in order}
    results: dict[Any, Any] = {}
    while ready:
        key = ready.pop(rng.randrange(len(ready)))
        results[key] = graph[key]({ref: results[ref] for ref in order[key]})
        for ref in order[key]:
            readers[ref] -= 1
            if not readers[ref]:
                del results[ref]
        for reader in behind[key]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
        yield results


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("make", "n_states", "n_tapes"),
    [
        (lambda: Segment(4), 6, 4),
        (lambda: Segment(4, disk=True), 0, 4),
        (lambda: Revolve(3), 3, 1),
        (lambda: Revolve(3, disk=True), 0, 1),
        (lambda: theirs.Revolve(21, 3), 3, 1),
    ],
)
@pytest.mark.parametrize("n_blocks", [1, 2])
def test_a_schedule_keeps_its_limits_of_states_and_tapes_in_any_order_of_tasks(
    make: Any, n_states: int, n_tapes: int, n_blocks: int
) -> None:
    """Gates alone keep them: here nothing gives values priority, and what is first ready may be last to run."""
    y, wrt = stepped(20, n_blocks)
    expected = computed(y, wrt, Keep())
    for seed in range(5):
        value, gradients = dagad.value_and_gradient(y, wrt, policy=make())
        graph, keys = convert_legacy_graph(dict(gradients[0].dask)), [value.key, *(each.key for each in gradients)]
        for results in in_any_order(graph, keys, random.Random(seed)):
            alive = [found for found in results.values() if isinstance(found, Linearization)]
            assert (
                len([one for one in alive if one._pull is not None]) <= n_tapes * 3 * n_blocks
            )  # slices have them too
            states = [key for key, found in results.items() if is_state(key, found)]
            # And those of the step that is running, of the one it reads, and of what is recorded.
            assert len(states) <= (n_states + n_tapes + 2) * n_blocks
            files = [found for found in results.values() if isinstance(found, WrittenState)]
            assert len(files) <= 6 * n_blocks
        assert bits(results[key] for key in keys) == expected


def is_state(key: Any, found: Any) -> bool:
    is_block = isinstance(found, onp.ndarray) and found.shape != (1,)
    return is_block and role_of(key) in (Role.VALUE, Role.GETITEM) and "cotangent" not in str(key)


def test_the_value_under_a_schedule_does_not_wait_for_steps_that_run_again() -> None:
    y, wrt = stepped(12, 2)
    for policy in (Segment(3), Revolve(2)):
        value, gradients = dagad.value_and_gradient(y, wrt, policy=policy)
        graph = convert_legacy_graph(dict(gradients[0].dask))
        needed = topological(graph, [value.key])
        assert not [key for key in needed if role_of(key) in (Role.PULLBACK, Role.GATE)]
        again = [key for key in graph if role_of(key) is Role.VALUE and key not in needed]
        assert all(value.key in topological(graph, [key]) for key in again)


def test_tasks_that_carry_no_derivative_run_once_under_a_schedule() -> None:
    calls: list[int] = []

    def forcing(step: int) -> Any:
        calls.append(step)
        return onp.full(3, 0.1 * step)

    start = x = delayed(onp.ones(3))
    for step in range(9):
        x = delayed(np.multiply)(x, delayed(forcing)(step) + 1.0)
    dagad.gradient(delayed(np.sum)(x), start, policy=Revolve(2)).compute(scheduler="threads")
    assert sorted(calls) == list(range(9))


@pytest.mark.parametrize("make", [lambda: Segment(3), lambda: Revolve(2), lambda: Revolve(2, disk=True)])
def test_a_number_of_every_step_and_states_on_the_way_are_differentiated_alike(make: Any) -> None:
    start = x = delayed(START)
    states, misfits = [], []
    for _ in range(7):
        x = delayed(np.sin)(x) * x
        states.append(x)
        misfits.append(delayed(energy)(x))
    y = delayed(sum)(misfits)
    wrt = [start, states[2], states[2], states[6]]
    assert computed(y, wrt, make()) == computed(y, wrt, Keep())


def test_a_sum_over_all_steps_keeps_the_graph_of_files_in_proportion() -> None:
    """What the last step alone reads is not part of any state: it would be written and read again and again."""

    def n_tasks(n_steps: int) -> float:
        start = x = delayed(0.5)
        misfits = []
        for _ in range(n_steps):
            x = delayed(np.sin)(x)
            misfits.append(delayed(energy)(x))
        gradient = dagad.gradient(delayed(sum)(misfits), start, policy=Revolve(4, disk=True))
        return len(dict(gradient.__dask_graph__())) / n_steps

    assert n_tasks(160) <= 1.5 * n_tasks(20)


def test_all_runs_of_a_task_have_its_annotations() -> None:
    whole = {"resources": {"GPU": 1}, "priority": 7, "retries": 2, "workers": ["alice"]}
    y, (start, *_) = stepped(6, 1, lambda t: whole)
    found = by_role(told(dagad.gradient(y, start, policy=Revolve(2))))
    assert len(found[Role.VALUE]) > 2 * 6 * 3  # of a step: two slices and a block
    assert all(own == whole for own in found[Role.VALUE] + found[Role.PULLBACK])
    marked, (start, *_) = stepped(6, 1, lambda t: {"dagad_step": t, "retries": 2})
    found = by_role(told(dagad.gradient(marked, start, policy=Revolve(2))))
    assert {tuple(own.items()) for own in found[Role.VALUE] + found[Role.PULLBACK]} == {(("retries", 2),)}


def test_chains_in_marked_steps_run_as_one_with_the_same_bits() -> None:
    sizes, found = [], []
    for mark in (False, True):
        start = x = delayed(START)
        for step in range(8):
            with annotate(**({"dagad_step": step} if mark else {})):
                x = delayed(np.cos)(delayed(np.sin)(delayed(np.tanh)(x)))
        y, policy = delayed(energy)(x), Segment(3 if mark else 9)
        sizes.append(len(dict(dagad.gradient(y, start, policy=policy).__dask_graph__())))
        found.append(computed(y, [start], policy))
    assert found[0] == found[1]
    assert sizes[1] < 0.5 * sizes[0]


@pytest.mark.parametrize("make", [lambda: Segment(2), lambda: Revolve(1)])
def test_a_task_under_a_schedule_that_keeps_a_traced_value_is_refused(make: Any) -> None:
    cache: dict[str, Any] = {}

    def remembering(x: Any) -> Any:
        return x * cache.setdefault("squares", x**2)

    x = delayed(START)
    y = delayed(energy)(delayed(np.sin)(delayed(remembering)(x)))
    with pytest.raises(dagad.ClosureError, match="Compute it again where it is needed"):
        dagad.gradient(y, x, policy=make()).compute(scheduler="sync")


def test_states_may_stand_on_a_cluster_already(cluster: Any) -> None:
    start, rate = delayed(START), delayed(0.3)
    kept = start.persist(scheduler=cluster.get)
    again = delayed(energy)(delayed(advance)(kept[-1:], kept, kept[:1], rate))
    found = dagad.gradient(again, [kept, rate], policy=Segment(1))
    fresh = delayed(energy)(delayed(advance)(start[-1:], start, start[:1], rate))
    expected = dagad.gradient(fresh, [start, rate])
    assert bits(compute(*found, scheduler=cluster.get)) == bits(compute(*expected, scheduler="sync"))


# States in files


def test_states_are_in_the_directory_that_is_given_and_gone_afterwards(tmp_path: Path) -> None:
    seen: list[int] = []
    there = tmp_path / "states"

    def looking(x: Any) -> Any:
        seen.append(len(list(there.glob("dagad-state-*.npy"))) if there.exists() else 0)
        return x * 1.5

    start = x = delayed(START)
    for _ in range(8):
        x = delayed(looking)(x)
    y = delayed(energy)(x)
    assert computed(y, [start], Segment(2, disk=there)) == computed(y, [start], Keep())
    assert max(seen) >= 2  # of three: before the first step there is no state but the start, and one may be on its way
    assert not list(there.iterdir())


def test_a_state_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    y, wrt = stepped(6)
    with pytest.raises(OSError, match="file") as caught:
        computed(y, wrt, Segment(2, disk=tmp_path / "file"))
    assert "`disk=` may name another directory" in caught.value.__notes__[0]


def test_a_state_is_the_same_when_it_comes_back_and_travels_as_itself() -> None:

    state = {"x": onp.arange(6.0).reshape(2, 3).T, "t": (3, 0.5, None), "name": "s", "f4": onp.float32(2.0)}
    for written in (write_state(True, state), pickle.loads(pickle.dumps(write_state(True, state)))):
        for again in (written, pickle.loads(pickle.dumps(written))):
            found = read_state(again, None)
            assert found["x"].tobytes() == state["x"].tobytes()  # type: ignore[attr-defined]  # an array
            assert found["x"].flags.f_contiguous
            assert (found["t"], found["name"], type(found["f4"])) == ((3, 0.5, None), "s", onp.float32)


# Steps


def test_slices_belong_to_the_step_that_reads_them_under_a_schedule() -> None:
    y, wrt = stepped(10, 3)
    policy = Segment(4)
    computed(y, wrt, policy)
    n_tasks = 9  # of a step: two slices and a block, three times
    # the sum is step 10: the last segment has steps 8, 9 and 10
    assert policy.n_primal == 2 * (10 * n_tasks + 1) - (2 * n_tasks + 1)
    assert 3 * n_tasks < policy.peak_linearizations <= 4 * n_tasks


def test_methods_that_dask_calls_are_no_slices() -> None:
    x = delayed(START)
    y = x.sum() * delayed(energy)(x.T[::-1].copy())
    assert computed(y, [x], Segment(1)) == computed(y, [x], Keep())


def test_marks_of_steps_count_by_their_order_only() -> None:
    marks: list[Any] = [None, lambda t: {"dagad_step": t}, lambda t: {"dagad_step": 100 * t - 7}]
    policies = [Segment(3) for _ in marks]
    for policy, mark in zip(policies, marks, strict=True):
        y, wrt = stepped(9, 2, mark)
        assert computed(y, wrt, policy) == computed(y, wrt, Keep())
    # Nine steps of six tasks; the sum is a level of its own, and belongs to the last step that is marked.
    assert [policy.n_primal for policy in policies] == [2 * 55 - 1, 2 * 55 - (3 * 6 + 1), 2 * 55 - (3 * 6 + 1)]


def test_tasks_with_equal_marks_are_one_step_of_a_schedule() -> None:
    policy = Segment(1)
    y, wrt = stepped(12, 1, lambda t: {"dagad_step": t // 4})
    computed(y, wrt, policy)
    assert policy.peak_linearizations == 4 * 3 + 1
    assert policy.n_primal == 2 * (12 * 3 + 1) - 13


def test_marks_of_steps_that_go_backwards_are_refused() -> None:
    y, wrt = stepped(5, 1, lambda t: {"dagad_step": -t})
    with pytest.raises(
        dagad.PlanError, match=r"go backwards.*step -1.*Mark the steps in the order of time.*optimize_graph=False"
    ):
        dagad.gradient(y, wrt, policy=Segment(2))
    assert dagad.gradient(y, wrt, policy=Keep())  # nobody asks


@pytest.mark.parametrize("mark", [1.0, "first", True, None])
def test_a_mark_of_a_step_that_is_no_int_is_refused(mark: Any) -> None:
    y, wrt = stepped(3, 1, lambda t: {"dagad_step": mark})
    if mark is None:  # Dask takes it for no annotation
        assert dagad.gradient(y, wrt, policy=Segment(2))
    else:
        with pytest.raises(dagad.PlanError, match=r"is no step. Number the steps by ints"):
            dagad.gradient(y, wrt, policy=Segment(2))


# Further derivatives


@pytest.mark.parametrize("make", [lambda: Segment(2), lambda: Revolve(2), lambda: Segment(2, disk=True)])
def test_a_gradient_of_a_scheduled_gradient_is_right(make: Any) -> None:
    y, (start, rate) = stepped(5)

    def plain(start: Any, rate: Any) -> Any:
        for _ in range(5):
            start = advance(start[-1:], start, start[:1], rate)
        return energy(start)

    slope = delayed(np.sum)(dagad.gradient(y, start, policy=make()) * START)
    expected = autograd.grad(lambda both: np.sum(autograd.grad(plain)(*both) * START))([START, 0.3])
    again = [compute(dagad.gradient(slope, [start, rate], policy=each), scheduler="sync")[0] for each in (None, make())]
    assert bits(again[0]) == bits(again[1])
    for found in again:
        onp.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
        onp.testing.assert_allclose(found[1], expected[1], rtol=1e-12)
    tangent = dagad.jvp(slope, [start, rate], [START, 0.5])[1].compute(scheduler="sync")
    assert tangent == pytest.approx(onp.sum(expected[0] * START) + 0.5 * expected[1], rel=1e-12)


def test_a_gradient_of_a_marked_gradient_is_right() -> None:
    y, (start, _) = stepped(4, 1, lambda t: {"dagad_step": t})
    slope = delayed(np.sum)(dagad.gradient(y, start, policy=Segment(2)))
    found = [dagad.gradient(slope, start, policy=policy).compute(scheduler="sync") for policy in (None, Segment(2))]
    assert bits(found[:1]) == bits(found[1:])


def test_no_task_of_a_gradient_of_a_marked_graph_is_marked() -> None:
    x, leaves = delayed(START), []
    for step in range(4):
        with annotate(dagad_step=step, retries=2):
            leaves.append(delayed(np.array)(START))  # made in its step
            x = delayed(np.multiply)(delayed(np.sin)(x), leaves[-1])
    slope = dagad.gradient(delayed(np.sum)(x), leaves)[0]
    # One mark alone would put all tasks into one step, whose tapes a schedule would keep at the same time.
    assert {tuple(own.items()) for own in told(slope).values() if own} == {(("retries", 2),)}


# What does not fit


class Listed:
    """A schedule that is a list."""

    def __init__(self, *listed: Any) -> None:
        self._listed = listed

    def actions(self, n_steps: int) -> Any:
        del n_steps
        return self._listed


def forward(n0: int, n1: int, store: bool = False, record: bool = False, storage: Any = "RAM") -> Any:
    return theirs.Forward(n0, n1, store, record, storage)


ALL = forward(0, 4, record=True)
DISK = theirs.StorageType.DISK
UNFIT: dict[str, tuple[list[Any], str]] = {
    "nothing": ([], "steps 0 to 3 are pulled back. Reverse them"),
    "a part": ([ALL, theirs.Reverse(4, 2, True)], "steps 0 to 1 are pulled back. Reverse them"),
    "not recorded": ([forward(0, 4), theirs.Reverse(4, 3, True)], "has not been recorded.*`write_adj_deps`"),
    "from the middle": ([ALL, theirs.Reverse(2, 0, True)], "first 4 are to be pulled.*from the last to the first"),
    "beyond": ([ALL, theirs.Reverse(9, 0, True)], "first 4 are to be pulled.*from the last to the first"),
    "a jump": ([forward(2, 4)], "can't run steps 2 to 3 after the first 0.*Copy the state"),
    "no state": ([forward(0, 4), theirs.Copy(0, "RAM", "WORK")], "stored nothing there. Store it"),
    "pulled before": (
        [forward(0, 4, True, True), theirs.Reverse(4, 2, True), theirs.Copy(0, "RAM", "WORK"), forward(0, 3)],
        "with 2 to be pulled back",
    ),
    "tapes on disk": ([forward(0, 4, False, True, DISK)], "`storage=StorageType.RAM`"),
    "another action": ([ALL, "Sleep"], "'Sleep', which is no action. There are Forward"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_schedule_that_does_not_fit_is_refused(name: str) -> None:
    actions, told = UNFIT[name]
    y, wrt = chains(4, 1)
    with pytest.raises(dagad.PlanError, match=told):
        dagad.gradient(y, wrt, policy=Listed(*actions))


def test_a_schedule_of_ones_own_is_an_object_that_lists_actions() -> None:
    y, wrt = chains(4, 1)
    listed = Listed(ALL, theirs.EndForward(), theirs.Reverse(4, 0, True), theirs.EndReverse())
    assert computed(y, wrt, listed) == computed(y, wrt, None)


def test_a_graph_without_steps_has_a_gradient_under_a_schedule() -> None:
    x = delayed(2.0)
    assert dagad.gradient(x, x, policy=Revolve(3)).compute(scheduler="sync") == 1.0


@pytest.mark.parametrize("on_disk", [False, True])
def test_tasks_of_a_schedule_grow_with_the_steps_where_all_states_are_read_late(on_disk: bool, tmp_path: Path) -> None:
    """Each state would be read out of its file wherever an earlier one is taken up."""

    def built(n_steps: int) -> tuple[int, Any, Any]:
        rate = delayed(onp.array([0.3]))
        states = [delayed(onp.ones(3))]
        for _ in range(n_steps):
            states.append(delayed(lambda x, t: x + 0.1 * np.sin(x * t))(states[-1], rate))
        y = delayed(lambda *xs: sum(np.sum(x**2) for x in xs))(*states)
        policy = Segment(10, disk=str(tmp_path)) if on_disk else Segment(10)
        gradient = dagad.gradient(y, rate, policy=policy)
        return len(dict(gradient.__dask_graph__())), gradient, dagad.gradient(y, rate)

    few, gradient, plain = built(40)
    found = compute(gradient, plain, scheduler="sync")
    assert found[0] == found[1]
    assert built(160)[0] < 4.2 * few
