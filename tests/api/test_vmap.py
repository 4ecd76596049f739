"""Members: has each the bits that it has alone, in every mode, everywhere, and do they visit the rows together?"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad._executors import members
from dagad._values import pytree
from dagad_scheduler.residents.client import ResidentClient
from support.gated_chunks import bits
from support.hot_loops import a_watched_cluster, tasks_made
from support.waiting import PATIENCE, until

RNG = np.random.default_rng(0)
X, V = RNG.standard_normal((22, 3)), RNG.standard_normal((22, 3))
THETAS = RNG.standard_normal((5, 3))
GRAINSIZE = 4


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    with a_watched_cluster() as client:
        yield client


@pytest.fixture(params=["sync", "threads", "client"])
def scheduler(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("client") if request.param == "client" else request.param


@pytest.fixture(params=["sync", "threads", "client", "arrays", "arrays to the client"])
def data(request: pytest.FixtureRequest) -> Callable[[Any], tuple[Any, dict[str, Any]]]:
    """Return what makes rows, and the options that go with them."""
    client, kind = request.getfixturevalue("client"), request.param
    if kind.startswith("arrays"):
        place = client if kind.endswith("client") else "threads"
        return lambda rows: (rows, {"grainsize": GRAINSIZE, "scheduler": place})
    place = client if kind == "client" else kind
    return lambda rows: (dagad.shard(rows, grainsize=GRAINSIZE, scheduler=place), {})


class Asked(NamedTuple):
    method: str
    n_members: int
    is_together: bool


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """What members have asked for, how many at once, and whether they got it together."""
    seen, answers = list[Asked](), members._answers

    def noted(requests: Any) -> Any:
        found = answers(requests)
        seen.append(Asked(requests[0].method, len(requests), found[0] is not members.ALONE))
        return found

    monkeypatch.setattr(members, "_answers", noted)
    return seen


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta) ** 2)


def vectors(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.tanh(rows * theta), axis=0)


def a_tree(rows: Any, theta: Any) -> Any:
    return {"a": anp.sum(rows * theta), "n": len(rows), "b": (anp.sum(rows, axis=0) * theta,)}


def item(row: Any, theta: Any) -> Any:
    return anp.sin(row * theta)


def every_bit(tree: Any) -> list[bytes]:
    leaves = [leaf.gather() if isinstance(leaf, dagad.Shards) else leaf for leaf in pytree.flatten(tree)[0]]
    return bits([leaf for leaf in leaves if not isinstance(leaf, str)])


def one_by_one(fun: Any, *columns: Any) -> list[Any]:
    return [fun(*member) for member in zip(*columns, strict=True)]


def check(fun: Callable[..., Any], *columns: Any, rounds: int = 3, expected: list[Any] | None = None) -> None:
    """See that members have the bits that each has alone, here if nowhere else, also once loops are hot."""
    expected = one_by_one(fun, *columns) if expected is None else expected
    for _ in range(rounds):
        found, treedef = pytree.flatten(dagad.vmap(fun)(*columns))
        for number, own in enumerate(expected):
            leaves, alone = pytree.flatten(own)
            assert alone == treedef
            for column, leaf in zip(found, leaves, strict=True):
                assert every_bit(column[number]) == every_bit(leaf), number


# Bits

Make = Callable[..., Callable[[Any], Any]]


def value(x: Any, **options: Any) -> Any:
    return lambda theta: dagad.reduce_sum(chunk, x, theta, **options)


def around(x: Any, **options: Any) -> Any:
    return lambda theta: anp.exp(0.01 * value(x, **options)(anp.sin(theta))) * theta[0]


def twice(x: Any, **options: Any) -> Any:
    return lambda theta: value(x, **options)(theta * value(x, **options)(theta))


def of_vectors(x: Any, **options: Any) -> Any:
    return lambda theta: dagad.reduce_sum(vectors, x, theta, **options)


def of_trees(x: Any, **options: Any) -> Any:
    return lambda theta: dagad.reduce_sum(a_tree, x, theta, **options)


def compensated(x: Any, **options: Any) -> Any:
    return lambda theta: dagad.reduce_sum(chunk, x, theta, sum=dagad.extend.CompensatedSum(), **options)


def mapped(x: Any, **options: Any) -> Any:
    return lambda theta: dagad.map(item, x, theta, **options)


def combined(x: Any, **options: Any) -> Any:
    return lambda theta: dagad.map_reduce(chunk, anp.logaddexp, x, theta, **options)


NUMBERS: dict[str, Make] = {make.__name__: make for make in (value, around, twice, compensated, combined)}
ARRAYS: dict[str, Make] = {make.__name__: make for make in (of_vectors, mapped)}
MODES: dict[str, Callable[[Any], Any]] = {
    "value": lambda fun: fun,
    "grad": dagad.grad,
    "value_and_grad": dagad.value_and_grad,
    "jvp": lambda fun: lambda theta: dagad.jvp(fun, theta, np.cos(theta)),
    "hvp": lambda fun: lambda theta: dagad.hvp(fun, theta, np.cos(theta)),
    "hessian": dagad.hessian,
    "jacfwd": dagad.jacfwd,
}


@cache
def alone(make: Make, mode: Callable[[Any], Any]) -> list[Any]:
    """Return what each member has alone in one thread, and so everywhere."""
    return one_by_one(mode(make(X, grainsize=GRAINSIZE, scheduler="sync")), THETAS)


@pytest.mark.each_value("each mode, each function and each place")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", NUMBERS)
def test_members_have_the_bits_that_each_has_alone(make: str, mode: str, data: Any, asked: list[Asked]) -> None:
    rows, options = data(X)
    check(MODES[mode](NUMBERS[make](rows, **options)), THETAS, expected=alone(NUMBERS[make], MODES[mode]))
    assert asked[-1].is_together
    assert asked[-1].n_members == len(THETAS)


def by_vjp(fun: Any) -> Any:
    def there_and_back(theta: Any) -> Any:
        found, pullback = dagad.vjp(fun, theta)
        return found, pullback(np.cos(found)), pullback(np.sin(found))

    return there_and_back


OF_ARRAYS = {**{mode: MODES[mode] for mode in ("value", "jvp", "jacfwd")}, "jacrev": dagad.jacrev, "vjp": by_vjp}


@pytest.mark.each_value("each mode, each function and each place")
@pytest.mark.parametrize("mode", ["value", "jvp", "jacrev", "jacfwd", "vjp"])
@pytest.mark.parametrize("make", ARRAYS)
def test_members_of_arrays_have_the_bits_that_each_has_alone(make: str, mode: str, data: Any, asked: Any) -> None:
    rows, options = data(X)
    how = OF_ARRAYS[mode]
    check(how(ARRAYS[make](rows, **options)), THETAS, expected=alone(ARRAYS[make], how))
    assert asked[-1].is_together


@pytest.mark.sampled(3)
def test_members_return_pytrees(data: Any) -> None:
    rows, options = data(X)
    check(of_trees(rows, **options), THETAS)
    check(lambda theta: dagad.jvp(of_trees(rows, **options), theta, theta), THETAS)


def test_gradients_of_members_are_those_of_autograd(data: Any) -> None:
    rows, options = data(X)
    found = dagad.vmap(dagad.grad(value(rows, **options)))(THETAS)
    np.testing.assert_allclose(found, [autograd.grad(lambda t: chunk(X, t))(t) for t in THETAS], rtol=1e-12)


def test_rows_that_are_differentiated_are_each_members_own() -> None:
    """Where rows are arguments of members, or of all of them."""
    both = dagad.value_and_grad(lambda theta, x: dagad.reduce_sum(chunk, x, theta, grainsize=GRAINSIZE), (0, 1))
    found = dagad.vmap(both, (0, None))(THETAS, X)
    for number, theta in enumerate(THETAS):
        assert every_bit([leaf[number] for leaf in pytree.flatten(found)[0]]) == every_bit(both(theta, X))
    check(lambda theta, x: both(theta, x), THETAS, np.stack([X * number for number in range(5)]))


def test_gradients_in_shards_are_refused_as_results_but_may_be_used(client: Client) -> None:
    shards = dagad.shard(X, grainsize=GRAINSIZE, scheduler=client)

    def total(x: Any, theta: Any) -> Any:
        return dagad.reduce_sum(chunk, x, theta)

    def slope(theta: Any) -> Any:
        gradient = dagad.grad(total)(shards, theta)
        return dagad.jvp(lambda x: total(x, theta), shards, gradient)[1]

    check(slope, THETAS)
    with pytest.raises(dagad.StructureError, match="can't be stacked"):
        dagad.vmap(lambda theta: dagad.grad(total)(shards, theta))(THETAS)


# Programs


def newton(x: Any, **options: Any) -> Any:
    def find(start: Any) -> Any:
        loss, theta, n_steps = value(x, **options), start, 0
        while n_steps < 8:
            found, gradient = dagad.value_and_grad(loss)(theta)
            if np.linalg.norm(gradient) < 5.0:
                break
            theta, n_steps = theta - 0.05 * gradient, n_steps + 1
        return theta, n_steps, float(found)

    return find


@pytest.mark.sampled(3)
def test_programs_with_loops_and_branches_run_as_they_are(data: Any, asked: list[Asked]) -> None:
    rows, options = data(X)
    starts = np.array([[0.01, 0.0, 0.0], [1.0, -2.0, 0.5], [0.3, 0.1, 0.1], [3.0, 3.0, 3.0]])
    expected = one_by_one(newton(rows, **options), starts)
    assert len({n_steps for _, n_steps, _ in expected}) > 1
    asked.clear()
    found = dagad.vmap(newton(rows, **options))(starts)
    for number, own in enumerate(expected):
        assert every_bit([leaf[number] for leaf in found]) == every_bit(own)
    assert asked[0].n_members == 4
    assert asked[-1].n_members < 4


def test_members_that_part_come_together_again(asked: list[Asked]) -> None:
    def other(rows: Any, theta: Any) -> Any:
        return anp.sum(anp.sin(rows * theta))

    def fun(theta: Any) -> Any:
        more = dagad.reduce_sum(other, V, theta, grainsize=3) if theta[0] > 0.0 else 0.0
        return more + dagad.reduce_sum(chunk, X, theta, grainsize=GRAINSIZE)

    check(fun, THETAS, rounds=1)
    n_more = int(np.sum(THETAS[:, 0] > 0.0))
    assert 0 < n_more < len(THETAS)
    assert [one.n_members for one in asked] == [n_more, len(THETAS)]


def test_a_profile_says_which_members_went_together(client: Client) -> None:
    shards = dagad.shard(X, grainsize=GRAINSIZE, scheduler=client)

    def fun(n: Any) -> Any:
        more = value(V, grainsize=GRAINSIZE)(THETAS[1]) if n > 1.5 else 0.0
        return more + value(shards)(THETAS[0] * n)

    with dagad.progress() as seen:
        dagad.vmap(fun)(np.arange(3.0))
    assert seen.last is not None
    reasons = [call.reason for call in seen.last.calls]
    assert sum(reason.startswith("3 members together") for reason in reasons) == 3
    assert sum(reason.startswith("of one member, as no other one") for reason in reasons) == 1


def test_a_vmap_inside_a_vmap_is_one_of_all_members(data: Any, asked: list[Asked]) -> None:
    rows, options = data(X)
    grid = RNG.standard_normal((2, 3, 3))
    loss = dagad.value_and_grad(value(rows, **options))
    found = dagad.vmap(dagad.vmap(loss))(grid)
    for i, j in np.ndindex(2, 3):
        assert every_bit([leaf[i, j] for leaf in found]) == every_bit(loss(grid[i, j]))
    assert all(one.is_together for one in asked)


def test_a_vmap_that_is_differentiated_has_the_derivative(data: Any) -> None:
    rows, options = data(X)

    def total(thetas: Any) -> Any:
        return anp.sum(dagad.vmap(value(rows, **options))(thetas) ** 2)

    expected = autograd.grad(lambda thetas: sum(chunk(X, theta) ** 2 for theta in thetas))(THETAS)
    np.testing.assert_allclose(dagad.grad(total)(THETAS), expected, rtol=1e-10)


def test_a_vmap_in_a_chunk_stays_in_its_thread() -> None:
    def of_rows(rows: Any, thetas: Any) -> Any:
        return np.sum(dagad.vmap(lambda theta: dagad.reduce_sum(chunk, rows, theta))(thetas))

    found = dagad.reduce_sum(of_rows, X, THETAS, grainsize=GRAINSIZE, scheduler="threads")
    np.testing.assert_allclose(found, sum(chunk(X, theta) for theta in THETAS), rtol=1e-12)


def test_a_member_may_evaluate_in_a_thread_of_its_own() -> None:
    def fun(theta: Any) -> Any:
        evaluation = dagad.evaluate(value(X, grainsize=GRAINSIZE), theta)
        return evaluation.value(PATIENCE), evaluation.gradient(PATIENCE)

    check(fun, THETAS, rounds=1)


def test_settings_of_the_caller_are_those_of_members() -> None:
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        dagad.vmap(lambda theta: theta / 0.0)(THETAS)
    inside = dagad.vmap(lambda theta: float(np.geterr()["over"] == "ignore"))
    with np.errstate(over="ignore"):
        assert inside(THETAS).all()


def test_a_checkpoint_knows_members_again(tmp_path: Path) -> None:
    loss = dagad.value_and_grad(value(X, grainsize=GRAINSIZE, scheduler="threads"))
    expected = every_bit(dagad.vmap(loss)(THETAS))
    for n_known in (0, len(THETAS)):
        with dagad.checkpoint(tmp_path / "run") as run:
            assert every_bit(dagad.vmap(loss)(THETAS)) == expected
        assert run.n_known == n_known


# Together


def test_each_chunk_runs_once_for_each_member(client: Client, tmp_path: Path) -> None:
    log = tmp_path / "runs"

    def counted(rows: Any, theta: Any) -> Any:
        with open(log, "a") as file:
            file.write(f"{len(rows)} ")
        return anp.sum(anp.tanh(rows * theta) ** 2)

    for place in (client, "threads"):
        shards = dagad.shard(X[:20], grainsize=GRAINSIZE, scheduler=place)
        fun = dagad.value_and_grad(lambda theta, shards=shards: dagad.reduce_sum(counted, shards, theta))
        for _ in range(3):  # it is looked at, becomes hot
            dagad.vmap(fun)(THETAS)
        log.unlink()
        dagad.vmap(fun)(THETAS)
        assert log.read_text().split() == ["4"] * 5 * len(THETAS)


def test_a_hot_loop_sends_one_message_to_each_worker_for_all_members(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = dagad.shard(X, grainsize=GRAINSIZE, scheduler=client)
    fun, here = (
        dagad.vmap(dagad.value_and_grad(lambda theta, x=x: dagad.reduce_sum(chunk, x, theta)))
        for x in (shards, dagad.shard(X, grainsize=GRAINSIZE, scheduler="sync"))
    )

    def is_warm() -> bool:
        before = tasks_made(client)
        fun(THETAS)
        return tasks_made(client) == before

    until(is_warm)
    fun(THETAS)
    calls, exchange = list[list[Any]](), ResidentClient._exchange

    async def counted(self: ResidentClient, some: dict[str, Any]) -> Any:
        calls.append(list(some.values()))
        return await exchange(self, some)

    monkeypatch.setattr(ResidentClient, "_exchange", counted)
    before = tasks_made(client)
    for number in range(5):
        thetas = THETAS * (1.0 + number)
        assert every_bit(fun(thetas)) == every_bit(here(thetas))
    assert tasks_made(client) == before
    assert len(calls) == 5
    assert all(len(some) == 2 and not any("program" in one for one in some) for some in calls)


@pytest.mark.parametrize("kind", ["threads", "client"])
def test_many_members_call_the_function_as_often_as_alone_and_send_as_much_as_one(
    kind: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 of them, of 50 parameters, beside 32 evaluations: calls and messages are counted, and bits compared."""
    n_members, n_parameters, log = 32, 50, tmp_path / "calls"
    rows, thetas = RNG.standard_normal((8 * 20, n_parameters)), RNG.standard_normal((n_members, n_parameters)) / 10

    def counted(rows: Any, theta: Any) -> Any:
        with open(log, "a") as file:
            file.write(".")
        return anp.sum(anp.tanh(rows @ theta) ** 2)

    shards = dagad.shard(rows, grainsize=20, scheduler=client if kind == "client" else kind)
    alone = dagad.value_and_grad(lambda theta: dagad.reduce_sum(counted, shards, theta))
    together, messages, exchange = dagad.vmap(alone), list[int](), ResidentClient._exchange

    async def noted(self: ResidentClient, some: dict[str, Any]) -> Any:
        messages.append(len(some))
        return await exchange(self, some)

    def is_hot() -> bool:
        before = tasks_made(client)
        alone(thetas[0])
        together(thetas)
        return tasks_made(client) == before

    until(is_hot)
    is_hot()
    monkeypatch.setattr(ResidentClient, "_exchange", noted)
    runs: dict[str, Callable[[], Any]] = {
        "loop": lambda: [np.stack(column) for column in zip(*map(alone, thetas), strict=True)],
        "vmap": lambda: together(thetas),
    }
    found, calls, sent = dict[str, Any](), dict[str, int](), dict[str, int]()
    for name, act in runs.items():
        log.unlink()
        messages.clear()
        found[name] = every_bit(act())
        calls[name], sent[name] = len(log.read_text()), sum(messages)
    assert found["vmap"] == found["loop"]
    assert calls == {"vmap": 8 * n_members, "loop": 8 * n_members}
    assert sent == ({"vmap": 2, "loop": 2 * n_members} if kind == "client" else {"vmap": 0, "loop": 0})


def test_threads_of_members_are_gone_when_it_is_over() -> None:
    before = set(threading.enumerate())  # some of which, of other tests, may end meanwhile
    dagad.vmap(value(X, grainsize=GRAINSIZE))(THETAS)
    with pytest.raises(ZeroDivisionError):
        dagad.vmap(lambda theta: value(X, grainsize=GRAINSIZE)(theta) + 1 // 0)(THETAS)
    gc.collect()
    assert before.issuperset(threading.enumerate())


def test_members_take_turns_by_number_and_are_ended_where_they_stand_when_one_fails(
    asked: list[Asked], capsys: Any
) -> None:
    def fun(theta: Any, number: Any) -> Any:
        try:
            print("begins", int(number))
            total = value(X, grainsize=GRAINSIZE)(theta)
            if number == 1:
                raise KeyError("this one")
            return total
        finally:
            print("ends", int(number))

    with pytest.raises(KeyError) as caught:
        dagad.vmap(fun)(THETAS[:3], np.arange(3))
    assert "dagad: member 1 of a `dagad.vmap`" in caught.value.__notes__
    assert capsys.readouterr().out.split() == "begins 0 begins 1 begins 2 ends 0 ends 1 ends 2".split()


def test_an_interrupt_ends_members_where_they_next_stand() -> None:
    before = set(threading.enumerate())

    def fun(theta: Any, number: Any) -> Any:
        if number == 0:  # twice would be an interrupt of the end, too
            os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            value(X, grainsize=GRAINSIZE)(theta)

    with pytest.raises(KeyboardInterrupt):
        dagad.vmap(fun)(THETAS, np.arange(len(THETAS)))
    assert before.issuperset(threading.enumerate())


# Errors


def test_an_error_in_a_chunk_names_its_member_and_its_chunk(scheduler: Any) -> None:
    def fails(rows: Any, theta: Any) -> Any:
        if pytree.plain(theta)[0] > 50.0:
            raise ZeroDivisionError("this model")
        return anp.sum(rows * theta)

    thetas = THETAS.copy()
    thetas[3, 0] = 99.0
    options = {"grainsize": GRAINSIZE, "scheduler": scheduler}
    with pytest.raises(ZeroDivisionError, match="this model") as caught:
        dagad.vmap(dagad.grad(lambda theta: dagad.reduce_sum(fails, X, theta, **options)))(thetas)
    notes = "\n".join(caught.value.__notes__)
    assert "dagad: member 3 of a `dagad.vmap`" in notes
    assert "of chunk" in notes


def test_a_member_may_catch_its_own_error() -> None:
    def fails(rows: Any, theta: Any) -> Any:
        if theta[0] < 0.0:
            raise ValueError("outside")
        return np.sum(rows * theta)

    def fun(theta: Any) -> Any:
        try:
            return dagad.reduce_sum(fails, X, theta, grainsize=GRAINSIZE)
        except ValueError:
            return np.inf

    check(fun, THETAS, rounds=1)
    assert np.isinf(dagad.vmap(fun)(THETAS)).any()


def fine(*args: Any, **kwargs: Any) -> Any:
    return 1.0


NOTHING: Any = 3.0
Case = tuple[Callable[[], Any], type[Exception], str]
REFUSED: dict[str, Case] = {
    "no members": (lambda: dagad.vmap(fine)(np.zeros((0, 3))), dagad.StructureError, "There are no members"),
    "lengths": (
        lambda: dagad.vmap(fine)(np.zeros(3), np.zeros((4, 2))),
        dagad.StructureError,
        r"different numbers of members: .* has 3, .* has 4. Give all of them the same number",
    ),
    "all shared": (lambda: dagad.vmap(fine, None)(np.zeros(3)), dagad.PlanError, "call the function itself"),
    "entries": (lambda: dagad.vmap(fine, (0,))(1.0, 2.0), dagad.PlanError, "has 1 entries, and .* 2 positional"),
    "a word": (lambda: dagad.vmap(fine, "rows")(np.zeros(3)), dagad.PlanError, "Give an int, None for what all"),
    "a float": (lambda: dagad.vmap(fine, (0.5,))(np.zeros(3)), dagad.PlanError, "Give an int, or None"),
    "structure": (
        lambda: dagad.vmap(fine, ({"a": 0},))({"b": np.zeros(3)}),
        dagad.PlanError,
        "has another structure than its entry of `in_axes`",
    ),
    "a number": (lambda: dagad.vmap(fine)(3.0), dagad.PlanError, "of 0 axes, and its members were to lie along axis 0"),
    "an axis": (lambda: dagad.vmap(fine, 2)(np.zeros((3, 3))), dagad.PlanError, "along axis 2"),
    "shards": (
        lambda: dagad.vmap(fine)(dagad.shard(X, grainsize=4, scheduler="sync")),
        dagad.PlanError,
        "Give None for it in `in_axes`",
    ),
    "no function": (lambda: dagad.vmap(NOTHING), dagad.ArgumentsError, "takes a function"),
    "shapes": (
        lambda: dagad.vmap(lambda n: np.zeros(int(n)))(np.arange(3)),
        dagad.StructureError,
        r"member 0 \(0,\), member 1 \(1,\). Return the same shape",
    ),
    "structures": (
        lambda: dagad.vmap(lambda n: [0.0] * int(n))(np.arange(3)),
        dagad.StructureError,
        "different structures: member 0",
    ),
    "objects": (lambda: dagad.vmap(lambda n: object())(np.arange(3)), dagad.StructureError, "can't be stacked"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_and_results_that_have_no_members_are_refused_with_a_remedy(case: str) -> None:
    act, kind, sentence = REFUSED[case]
    with pytest.raises(kind, match=sentence):
        act()


# Arguments


def test_members_lie_along_the_axes_that_are_given() -> None:
    a: Any = RNG.standard_normal((3, 4))
    b: Any = {"x": RNG.standard_normal((4, 2)), "y": (RNG.standard_normal((2, 4)), 7.0)}
    axes: Any = (1, {"x": 0, "y": (-1, None)})

    def fun(a: Any, b: Any, *, c: Any) -> Any:
        return {"sum": np.sum(a) + np.sum(b["x"]) * b["y"][1], "y": b["y"][0] * c}

    found = dagad.vmap(fun, axes)(a, b, c=np.arange(4.0))
    for number in range(4):
        own = fun(a[:, number], {"x": b["x"][number], "y": (b["y"][0][:, number], 7.0)}, c=float(number))
        assert every_bit({"sum": found["sum"][number], "y": found["y"][number]}) == every_bit(own)
    assert every_bit(dagad.vmap(fun, list(axes))(a, b, c=np.arange(4.0))) == every_bit(found)


def test_members_may_write_into_their_arguments() -> None:
    def fun(theta: Any, shared: Any) -> Any:
        theta += 1.0
        return theta + shared

    before = THETAS.copy()
    found = dagad.vmap(fun, (0, None))(THETAS, 2.0)
    np.testing.assert_array_equal(found, before + 1.0 + 2.0)
    np.testing.assert_array_equal(THETAS, before)


def test_one_member_and_numbers_and_words_are_fine() -> None:
    found, word, nothing, count = dagad.vmap(lambda t: (t * 2.0, "w", None, 3))(np.array([1.5]))
    assert (found.tolist(), word, nothing, count.tolist()) == ([3.0], "w", None, [3])
    assert dagad.vmap(lambda t: t)(np.arange(3)).dtype == np.arange(3).dtype
