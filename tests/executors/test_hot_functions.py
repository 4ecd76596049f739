"""Functions of hot loops: is what runs on the workers always what the function is now, and nothing else?"""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import autograd.numpy as anp
import dask.array as da
import numpy as np
import pytest
from dask.delayed import delayed
from distributed import Client

import dagad
from dagad._sources import shards as shards_module
from dagad_scheduler.residents import loop
from support.gated_chunks import bits
from support.hot_loops import THETA, X, a_watched_cluster, heat_up, in_all, is_hot, shards_on
from support.service_contents import forget_programs, n_held, n_programs
from support.waiting import PATIENCE

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
    pytest.mark.sampled(2),
]

SCALE = 2.0
Current = Callable[[], Callable[..., Any]]  # what the function is now
Change = Callable[[], None]
Loss = Callable[[Any], Any]


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    """A cluster that is to be empty in the end."""
    with a_watched_cluster() as client:
        yield client


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))


def on(sliced: Any, fun: Any = chunk, *shared: Any, **options: Any) -> Loss:
    return lambda theta: dagad.reduce_sum(fun, sliced, theta, *shared, **options)


def on_one_thread(fun: Any = chunk, *shared: Any, data: Any = X) -> Loss:
    return on(data, fun, *shared, grainsize=4, scheduler="sync")


# What has changed is used


def a_global(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    def fun(rows: Any, theta: Any) -> Any:
        return SCALE * chunk(rows, theta)

    return lambda: fun, lambda: patch.setitem(globals(), "SCALE", SCALE + 1.0)


def a_closure(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    scale = 2.0

    def fun(rows: Any, theta: Any) -> Any:
        return scale * chunk(rows, theta)

    def change() -> None:
        nonlocal scale
        scale += 1.0

    return lambda: fun, change


def scaled_by(contents: Any, of: Callable[[Any], float]) -> Callable[..., Any]:
    def fun(rows: Any, theta: Any) -> Any:
        return of(contents) * chunk(rows, theta)

    return fun


def changing(contents: Any, of: Callable[[Any], float], change: Callable[[Any], Any]) -> tuple[Current, Change]:
    """Return a function that carries something, and what changes that."""
    fun = scaled_by(contents, of)
    return lambda: fun, lambda: change(contents)


def an_array(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    return changing(np.array([2.0, 1.0]), lambda held: held[0], lambda held: held.__setitem__(0, 3.0))


def a_list(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    return changing([2.0], lambda held: held[0], lambda held: held.append(held.pop() + 1.0))


def an_instance(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    held = types.SimpleNamespace(scale=2.0)
    return changing(held, lambda held: float(held.scale), lambda held: held.__setattr__("scale", 3.0))


def a_class(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    class Settings:
        scale = 2.0

    return changing(Settings, lambda held: float(held.scale), lambda held: setattr(held, "scale", 3.0))


def a_module(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    module: Any = types.ModuleType("made_here")
    module.scale = 2.0
    return changing(module, lambda held: float(held.scale), lambda held: setattr(held, "scale", 3.0))


def a_bound_method(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    table = {"scale": 2.0}
    fun = scaled_by(table.get, lambda get: float(get("scale")))
    return lambda: fun, lambda: table.update(scale=3.0)


def a_callable(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    class Model:
        scale = 2.0

        def __call__(self, rows: Any, theta: Any) -> Any:
            return self.scale * chunk(rows, theta)

    model = Model()
    return lambda: model, lambda: model.__setattr__("scale", model.scale + 1.0)


def a_default(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    def fun(rows: Any, theta: Any, scale: float = 2.0) -> Any:
        return scale * chunk(rows, theta)

    return lambda: fun, lambda: setattr(fun, "__defaults__", (3.0,))


def a_code(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    def fun(rows: Any, theta: Any) -> Any:
        return 2.0 * chunk(rows, theta)

    def other(rows: Any, theta: Any) -> Any:
        return 3.0 * chunk(rows, theta)

    return lambda: fun, lambda: setattr(fun, "__code__", other.__code__)


def one_of_several(*several: Any, of: Callable[[Any], float]) -> tuple[Current, Change]:
    """Return what is defined again for every evaluation, from the next of several values."""
    left = list(several)
    return lambda: scaled_by(left[0], of), lambda: left.append(left.pop(0))


def a_number(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    return one_of_several(2.0, 3.0, of=float)


def a_sign_of_zero(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    return one_of_several(0.0, -0.0, of=lambda held: float(np.copysign(2.0, held)))


def a_nesting(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    return one_of_several(((1,), 2), (1, (2,)), of=lambda held: 2.0 if held[1] == 2 else 3.0)


def a_partial(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    def fun(scale: float, rows: Any, theta: Any) -> Any:
        return scale * chunk(rows, theta)

    left = [2.0, 3.0]
    return lambda: functools.partial(fun, left[0]), lambda: left.append(left.pop(0))


def a_choice(patch: pytest.MonkeyPatch) -> tuple[Current, Change]:
    left = [0, 1]

    def current() -> Callable[..., Any]:
        first, second = scaled_by(2.0, float), scaled_by(3.0, lambda held: held + 1.0)
        used = (first, second)[left[0]]

        def fun(rows: Any, theta: Any) -> Any:
            return first(rows, theta) + second(rows, theta) + used(rows, theta)

        return fun

    return current, left.reverse


KINDS = [
    *(a_global, a_closure, an_array, a_list, an_instance, a_class, a_module, a_bound_method, a_callable, a_default),
    *(a_code, a_number, a_sign_of_zero, a_nesting, a_partial, a_choice),
]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("kind", KINDS)
def test_a_hot_loop_sees_a_change_of_its_chunk_function_at_once(
    kind: Any, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    current, change = kind(monkeypatch)
    shards = shards_on(client)

    def act() -> list[bytes]:
        return in_all(on(shards, current()))(THETA)

    heat_up(client, act)
    for _ in range(2):
        before = in_all(on_one_thread(current()))(THETA)
        assert act() == act() == before
        change()
        assert is_hot(client, act) or kind is a_code  # else this would show nothing; another code is another function
        assert act() == act() == in_all(on_one_thread(current()))(THETA)
    heat_up(client, act)


def of_constants(rows: Any, theta: Any, scale: Any, more: Any) -> Any:
    return scale[0] * chunk(rows, theta) * more["n"]


@pytest.mark.parametrize("size", [2, 100_000])
def test_shared_arrays_that_change_in_place_are_sent_again(size: int, client: Client) -> None:
    scale, more, shards = np.ones(size), {"n": 1.0}, shards_on(client)
    there, here = (
        in_all(each) for each in (on(shards, of_constants, scale, more), on_one_thread(of_constants, scale, more))
    )
    heat_up(client, lambda: there(THETA))
    for number in range(4):
        scale[0] = number
        assert there(THETA) == there(THETA) == here(THETA)
        more["n"] += 1.0
        assert there(THETA) == there(THETA) == here(THETA)
    assert is_hot(client, lambda: there(THETA))


def test_a_function_that_is_defined_again_stays_hot(client: Client) -> None:
    shards = shards_on(client)
    heat_up(client, lambda: in_all(on(shards, scaled_by(2.0, float)))(THETA))
    for _ in range(3):
        assert is_hot(client, lambda: in_all(on(shards, scaled_by(2.0, float)))(THETA))


MOST_CALLS = 1010  # of functions of Python and C by the thread that evaluates; there have been 1,480


def test_an_evaluation_of_a_hot_loop_makes_few_python_calls(client: Client) -> None:
    both, n_calls = dagad.value_and_grad(on(shards_on(client))), 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal n_calls
        n_calls += event in ("call", "c_call")

    heat_up(client, lambda: both(THETA))
    gc.disable()  # its callbacks are other libraries'
    sys.setprofile(count)
    try:
        both(THETA)
    finally:
        sys.setprofile(None)
        gc.enable()
    assert n_calls < MOST_CALLS


def of_either(rows: Any, theta: Any) -> Any:
    """Return what depends on how its rows are wrapped."""
    if isinstance(rows, dict):
        return sum((1.0 + number) * chunk(rows[key], theta) for number, key in enumerate(sorted(rows, reverse=True)))
    return sum((10.0 + number) * chunk(part, theta) for number, part in enumerate(rows))


def test_a_hot_loop_distinguishes_the_same_rows_in_another_structure(client: Client) -> None:
    one, other, y = shards_on(client), shards_on(client, X[::-1]), np.ascontiguousarray(X[::-1])
    wraps: list[Any] = [lambda a, b: (a, b), lambda a, b: {"a": a, "b": b}, lambda a, b: {"b": a, "c": b}]
    wraps += [lambda a, b: (a,), lambda a, b: {"a": a}, lambda a, b: {"x": a}, lambda a, b: (a, a)]
    heat_up(client, lambda: [in_all(on(wrap(one, other), of_either))(THETA) for wrap in wraps])
    for wrap in [*wraps, *reversed(wraps)]:
        there, here = on(wrap(one, other), of_either), on_one_thread(of_either, data=wrap(X, y))
        assert in_all(there)(THETA) == in_all(here)(THETA)


# Several at once


def test_hot_loops_in_several_threads_give_the_bits_of_one_thread(client: Client) -> None:
    shards, others = shards_on(client), shards_on(client, X[::-1])
    pairs = [
        (in_all(on(shards)), in_all(on_one_thread())),
        (in_all(on(shards, scaled_by(2.0, float))), in_all(on_one_thread(scaled_by(2.0, float)))),
        (in_all(on(shards, scaled_by(3.0, float))), in_all(on_one_thread(scaled_by(3.0, float)))),
        (in_all(on(others)), in_all(on_one_thread(data=np.ascontiguousarray(X[::-1])))),
    ]
    for there, _ in pairs:
        heat_up(client, lambda there=there: there(THETA))  # type: ignore[misc]  # a default argument has no type
    jobs = [(pairs[number % 4], (number - 8.0) * THETA) for number in range(32)]
    expected = [here(theta) for (_, here), theta in jobs]

    def run() -> None:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda job: job[0][0](job[1]), jobs)) == expected

    assert is_hot(client, run)


@pytest.mark.parametrize("most", [1, 32])
def test_hot_loops_over_several_functions_and_shards_in_turn_stay_hot_and_right(
    most: int, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MOST_PROGRAMS", most)
    data = [X, np.ascontiguousarray(X[::-1])]
    places = [shards_on(client, each) for each in data]
    funs = [chunk, scaled_by(2.0, float), scaled_by(3.0, float), of_twice]

    def turn() -> None:
        for fun in funs:
            for plain, shards in zip(data, places, strict=True):
                assert in_all(on(shards, fun))(THETA) == in_all(on_one_thread(fun, data=plain))(THETA)

    heat_up(client, turn)
    assert is_hot(client, turn)


def of_twice(rows: Any, theta: Any) -> Any:
    return chunk(rows, 2.0 * theta)


def loops_of(shards: Any) -> list[Any]:
    return [made for made in shards._made._entries.values() if isinstance(made, loop.Loop)]


def test_functions_over_several_shards_in_turn_make_no_state_anew(client: Client) -> None:
    one, other = shards_on(client), shards_on(client, X[::-1])

    def of_both(rows: Any, theta: Any) -> Any:
        return chunk(rows[0], theta) + chunk(rows[1], 2.0 * theta)

    acts = [in_all(on(one)), in_all(on((one, other), of_both))]
    for act in acts:
        heat_up(client, lambda act=act: act(THETA))  # type: ignore[misc]  # a default argument has no type
    first = loops_of(one)
    assert len(first) == 2
    for act in (*acts, *acts):
        act(THETA)
    assert set(map(id, loops_of(one))) == set(map(id, first))
    for number in range(shards_module.MOST_REMEMBERED):
        one.remembered(number, object)
        assert one.remembered("used", object) is one.remembered("used", object)
    assert len(one._made) == shards_module.MOST_REMEMBERED
    assert loops_of(one) == []


def test_a_hot_loop_holds_large_constants_of_its_program_once(client: Client) -> None:
    constant, shards = np.ones(100_000), shards_on(client)
    there = in_all(on(shards, of_constants, constant, {"n": 1.0}))
    heat_up(client, lambda: there(THETA))
    (made,) = loops_of(shards)
    (sent,) = made._sent.values()
    large = [np.frombuffer(part, np.uint8) for part in sent.payload if len(part) >= constant.nbytes]
    assert len(large) == 1
    assert any(np.shares_memory(large[0], np.frombuffer(part, np.uint8)) for part in sent.program if len(part))
    assert sum(len(part) for part in sent.program) < constant.nbytes + 10_000
    made._looked, made._homes = -1e9, None  # as if rows had moved
    there(THETA)
    assert {version for version, _ in sent.known} == {made._homes.version}


def test_a_worker_that_has_forgotten_a_program_gets_it_again(client: Client) -> None:
    there, expected = in_all(on(shards_on(client))), in_all(on_one_thread())(THETA)
    heat_up(client, lambda: there(THETA))
    for workers in (None, list(client.nthreads())[:1]):
        client.run(forget_programs, workers=workers)
        assert is_hot(client, lambda: there(THETA))
        client.run(forget_programs, workers=workers)
        assert there(THETA) == expected


def test_programs_that_are_of_no_use_any_more_do_not_pile_up(client: Client) -> None:
    """Each may hold constants of many megabytes."""
    scale, shards = np.ones(1000), shards_on(client)
    there = in_all(on(shards, of_constants, scale, {"n": 1.0}))
    heat_up(client, lambda: there(THETA))
    before = client.run(n_programs)
    for number in range(8):
        scale[0] = number
        there(THETA)
    assert all(number <= before[address] + 1 for address, number in client.run(n_programs).items())


def test_more_values_than_are_kept_still_get_their_gradients(client: Client) -> None:
    shards = shards_on(client)
    heat_up(client, lambda: in_all(on(shards))(THETA))
    thetas = [factor * THETA for factor in np.linspace(-1.0, 1.0, 7)]
    expected = [in_all(on_one_thread())(theta) for theta in thetas]
    evaluations = [dagad.evaluate(on(shards), theta, lazy=True) for theta in thetas]
    values = [evaluation.value(PATIENCE) for evaluation in evaluations]
    assert max(client.run(n_held).values()) <= 4
    found = [bits([value, one.gradient(PATIENCE)]) for value, one in zip(values, evaluations, strict=True)]
    assert found == expected
    assert set(client.run(n_held).values()) == {0}


# What a chunk is given is not its own


def spoiling(rows: Any, theta: Any, constant: Any) -> Any:
    if theta[0] > 1.0:
        rows *= 2.0
    if theta[0] < -1.0:
        constant += 1.0
    return anp.sum(rows @ theta) * constant[0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["arrays", "blocks", "loaders"])
@pytest.mark.parametrize("size", [3, 100_000])
def test_rows_and_constants_are_read_only(kind: str, size: int, client: Client) -> None:
    makers: dict[str, Callable[[], Any]] = {
        "arrays": lambda: shards_on(client),
        "blocks": lambda: dagad.shard(da.from_array(X, chunks=(4, 2)), scheduler=client),
        "loaders": lambda: dagad.shard(list(map(delayed, np.split(X, 6))), scheduler=client),
    }
    constant = np.ones(size)
    there = in_all(on(makers[kind](), spoiling, constant))
    expected = in_all(on_one_thread(spoiling, constant))(THETA)
    heat_up(client, lambda: there(THETA))
    for factor in (10.0, -10.0, 10.0):
        with pytest.raises(ValueError, match="read-only"):
            there(factor * THETA)
        assert there(THETA) == expected


def test_a_pullback_that_is_called_again_runs_what_the_value_ran(client: Client) -> None:
    """The tape is gone then, and what the function carries may have changed meanwhile."""
    rate, rows = [1.0], np.arange(1.0, 13.0)

    def grown(part: Any, t: Any) -> Any:
        return anp.stack([anp.sum(part) * rate[0] * t**2, anp.sum(part) * t])

    for data in (dagad.shard(rows, grainsize=4, scheduler=client), rows):
        options: Any = {} if data is not rows else {"grainsize": 4, "scheduler": client}
        rate[0] = 1.0

        def loss(t: Any, data: Any = data, options: Any = options) -> Any:
            return dagad.reduce_sum(grown, data, t, **options)

        for _ in range(3):
            value, pullback = dagad.vjp(loss, 1.5)
            expected = pullback(np.array([1.0, 2.0]))[0]
        rate[0] = 7.0
        assert pullback(np.array([1.0, 2.0]))[0] == expected
        assert pullback(np.array([2.0, 4.0]))[0] == pytest.approx(2.0 * expected)
        assert dagad.vjp(loss, 1.5)[0][0] == pytest.approx(7.0 * value[0])
