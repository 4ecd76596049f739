"""Members and what they share: are rows that differ in a bit taken for the same, and what if one changes a thing?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest

import dagad
from dagad._executors import members
from support.gated_chunks import bits

RNG = np.random.default_rng(0)
X = RNG.standard_normal((22, 3))
THETAS = RNG.standard_normal((4, 3))
NUMBERS = np.arange(len(THETAS))


# Rows that differ in a bit


class Unit(np.ndarray):
    """An array that holds more than its numbers."""

    unit: float = 0.0

    def __reduce__(self) -> Any:
        return with_unit, (self.unit,)


DATA = np.array([1.0, 2.0])
NANS = np.array([0x7FF8000000000001, 0x7FF8000000000002], np.uint64).view(float)


def with_unit(unit: float) -> Any:
    found = DATA.view(Unit)
    found.unit = unit
    return found


def masked(mask: list[bool]) -> Any:
    return np.ma.array(DATA, mask=mask, copy=False)


def word(number: Any) -> float:
    """Return a number that tells the bits of others apart."""
    return float(np.asarray(number, float).view(np.uint64) % 1_000_003)


DIFFERENT: dict[str, tuple[list[Any], Callable[[Any], Any]]] = {
    "a sign of zero": ([[0.0, 1.0], [-0.0, 1.0]], word),
    "a sign of zero among numpy's": ([[np.float64(0.0)], [np.float64(-0.0)]], word),
    "numbers of numpy's": ([[np.float64(1.0)], [np.float64(3.0)]], float),
    "a sign of zero in a complex number": ([[complex(0.0, 0.0)], [complex(0.0, -0.0)]], lambda z: word(z.imag)),
    "what a nan holds": ([[float(NANS[0])], [float(NANS[1])]], word),
    "a mask": ([[masked([False, False])], [masked([True, False])]], lambda row: float(np.ma.getmaskarray(row).sum())),
    "a dtype": ([DATA, DATA.view(np.int64)], float),
    "a dtype in a list": ([[DATA], [DATA.view(np.int64)]], lambda row: float(np.sum(row))),
    "a unit": ([[with_unit(1.0)], [with_unit(2.0)]], lambda row: row.unit),
    "a key": ([[{0.0: 1.0}], [{-0.0: 1.0}]], lambda row: word(next(iter(row)))),
    "a truth": ([[True, 1], [1, 1]], lambda row: float(type(row) is bool)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_members_whose_rows_differ_only_in_a_bit_have_their_own(what: str, scheduler: Any) -> None:
    rows, item = DIFFERENT[what]

    def fun(number: Any) -> Any:
        return dagad.map(item, rows[int(number)], grainsize=1, scheduler=scheduler)

    both = np.arange(2)
    expected = [fun(number) for number in both]
    assert bits([expected[0]]) != bits([expected[1]])
    assert bits(list(dagad.vmap(fun)(both))) == bits(expected)


SCALARS = {"a sign of zero": [0.0, -0.0], "what a nan holds": [NANS[0], NANS[1]], "a dtype": [np.float32(1), 1.0]}


@pytest.mark.parametrize("what", SCALARS)
def test_members_whose_shared_arguments_or_closures_differ_only_in_a_bit_have_their_own(
    what: str, scheduler: Any
) -> None:
    values, options = SCALARS[what], {"grainsize": 8, "scheduler": scheduler}

    def of_argument(number: Any) -> Any:
        one = values[int(number)]
        return dagad.reduce_sum(lambda rows, one: word(one) + np.asarray(one).itemsize, X, one, **options)

    def of_closure(number: Any) -> Any:
        one = values[int(number)]
        return dagad.reduce_sum(lambda rows: word(one) + np.asarray(one).itemsize, X, **options)

    for fun in (of_argument, of_closure):
        expected = [fun(number) for number in range(2)]
        assert expected[0] != expected[1]
        for _ in range(3):
            assert bits(list(dagad.vmap(fun)(np.arange(2)))) == bits(expected)


def test_members_that_draw_the_same_sample_go_together(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shards, seen, answers = dagad.shard(X, grainsize=4, scheduler=scheduler), list[int](), members._answers

    def noted(requests: Any) -> Any:
        seen.append(len(requests))
        return answers(requests)

    monkeypatch.setattr(members, "_answers", noted)

    def chunk(rows: Any, theta: Any) -> Any:
        return anp.sum(anp.tanh(rows * theta) ** 2)

    def fun(theta: Any, first: Any) -> Any:
        for step in range(3):
            some = shards.sample(2, step=int(first) + step)
            theta = theta - 0.1 * dagad.grad(lambda t, some=some: dagad.reduce_sum(chunk, some, t))(theta)
        return theta

    for firsts, together in ((np.zeros(4, int), 4), (np.array([0, 0, 10, 10]), 2)):
        expected = [fun(theta, first) for theta, first in zip(THETAS, firsts, strict=True)]
        seen.clear()
        assert bits(list(dagad.vmap(fun)(THETAS, firsts))) == bits(expected)
        assert set(seen) == {together}


# What one changes, all share

COUNT = 0


class Model:
    def __init__(self) -> None:
        self.scale = 0.0

    def chunk(self, rows: Any, theta: Any) -> Any:
        return anp.sum(rows * theta) * self.scale


Program = Callable[[Any, Any], Any]
Make = Callable[..., Program]


def a_list(**options: Any) -> Program:
    log = list[int]()

    def fun(theta: Any, number: Any) -> Any:
        log.append(1)
        return dagad.reduce_sum(lambda rows, t: anp.sum(rows * t) * len(log), X, theta, **options)

    return fun


def a_counter(**options: Any) -> Program:
    count = 0

    def fun(theta: Any, number: Any) -> Any:
        nonlocal count
        count += 1
        return dagad.reduce_sum(lambda rows, t: anp.sum(rows * t) * count, X, theta, **options)

    return fun


def a_global(**options: Any) -> Program:
    def fun(theta: Any, number: Any) -> Any:
        global COUNT
        COUNT = int(number)
        return dagad.reduce_sum(lambda rows, t: anp.sum(rows * t) * COUNT, X, theta, **options)

    return fun


def an_attribute(**options: Any) -> Program:
    model = Model()

    def fun(theta: Any, number: Any) -> Any:
        model.scale = float(number)
        return dagad.reduce_sum(model.chunk, X, theta, **options)

    return fun


def an_attribute_of_an_argument(**options: Any) -> Program:
    model = Model()

    def fun(theta: Any, number: Any) -> Any:
        model.scale = float(number)
        return dagad.reduce_sum(lambda rows, t, m: anp.sum(rows * t) * m.scale, X, theta, model, **options)

    return fun


def an_array(**options: Any) -> Program:
    weights = np.zeros(3)

    def fun(theta: Any, number: Any) -> Any:
        weights[1] = number
        return dagad.reduce_sum(lambda rows, t: anp.sum(rows * t * weights), X, theta, **options)

    return fun


def an_array_there_and_back(**options: Any) -> Program:
    weights = np.ones(3)

    def fun(theta: Any, number: Any) -> Any:
        weights[:] *= -1.0
        return dagad.reduce_sum(lambda rows, t: anp.sum(rows * t * weights), X, theta, **options)

    return fun


def an_argument(**options: Any) -> Program:
    weights = np.zeros(3)

    def fun(theta: Any, number: Any) -> Any:
        weights[1] = number
        return dagad.reduce_sum(lambda rows, t, w: anp.sum(rows * t * w), X, theta, weights, **options)

    return fun


def an_argument_that_is_differentiated(**options: Any) -> Program:
    point = np.zeros(3)

    def fun(theta: Any, number: Any) -> Any:
        point[:] = theta
        return dagad.grad(lambda p: dagad.reduce_sum(lambda rows, t: anp.sum((rows * t) ** 2), X, p, **options))(point)

    return fun


def a_generator(**options: Any) -> Program:
    rng = np.random.default_rng(0)

    def fun(theta: Any, number: Any) -> Any:
        rng.standard_normal()
        state = rng.bit_generator

        def chunk(rows: Any, t: Any) -> Any:
            return anp.sum(rows * t) * (state.state["state"]["state"] % 1001)

        return dagad.reduce_sum(chunk, X, theta, **options)

    return fun


def rows(**options: Any) -> Program:
    data = X.copy()

    def fun(theta: Any, number: Any) -> Any:
        data[3, 1] = number
        return dagad.reduce_sum(lambda rows, t: anp.sum(rows * t), data, theta, **options)

    return fun


def rows_of_another_order(**options: Any) -> Program:
    data = np.asfortranarray(X)

    def fun(theta: Any, number: Any) -> Any:
        data[3, 1] = number
        return dagad.reduce_sum(lambda rows, t: anp.sum(rows * t), data, theta, **options)

    return fun


def items(**options: Any) -> Program:
    data: list[Any] = [[1.0], [2.0]]

    def fun(theta: Any, number: Any) -> Any:
        data[1].append(float(number))
        return dagad.map_sum(lambda item, t: anp.sum(t) * sum(item), data, theta, **options)

    return fun


def a_cotangent(**options: Any) -> Program:
    seed = np.zeros(3)

    def fun(theta: Any, number: Any) -> Any:
        total = dagad.vjp(lambda t: dagad.reduce_sum(lambda rows, t: anp.sum(rows * t, axis=0), X, t, **options), theta)
        seed[:] = number
        return total[1](seed)[0]

    return fun


CHANGED: dict[str, tuple[Make, str]] = {
    "a list": (a_list, "`log`"),
    "a counter": (a_counter, "`count`"),
    "a global": (a_global, "the global `COUNT`"),
    "an attribute": (an_attribute, "the instance that `.*chunk` is bound to"),
    "an attribute of an argument": (an_attribute_of_an_argument, "an argument"),
    "an array": (an_array, "`weights`"),
    "an array, there and back": (an_array_there_and_back, "`weights`"),
    "an argument": (an_argument, "an argument"),
    "an argument that is differentiated": (an_argument_that_is_differentiated, "an argument"),
    "a generator": (a_generator, "`state`"),
    "rows": (rows, "the rows"),
    "rows of another order": (rows_of_another_order, "the rows"),
    "items": (items, "the rows"),
    "a cotangent": (a_cotangent, "a cotangent"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_members_that_change_what_others_use_run_one_by_one_as_in_a_loop(what: str, scheduler: Any) -> None:
    make, _ = CHANGED[what]
    options = {"grainsize": 8, "scheduler": scheduler}
    numbers = NUMBERS + 1
    program, again = make(**options), make(**options)
    expected = [program(theta, number) for theta, number in zip(THETAS, numbers, strict=True)]
    assert bits(list(dagad.vmap(again)(THETAS, numbers))) == bits(expected)


@pytest.mark.parametrize("what", ["a global", "an array", "an argument", "a cotangent"])
def test_a_change_of_what_a_member_before_waits_to_use_is_refused_by_name(what: str, scheduler: Any) -> None:
    """The first member writes what is there already, and that nobody sees."""
    global COUNT
    COUNT = 0
    make, name = CHANGED[what]
    with pytest.raises(dagad.ClosureError, match=f"when member 0 called it: .*{name}.*. Another member"):
        dagad.vmap(make(grainsize=8, scheduler=scheduler))(THETAS, NUMBERS)


# What a member leaves for itself, and finds again after a reduction


OfOne = Callable[[Any], Any]


def total(theta: Any) -> Any:
    return dagad.reduce_sum(lambda rows, t: anp.sum(anp.tanh(rows * t)), X, theta, grainsize=8, scheduler="sync")


BUFFER = np.zeros(3)


def in_a_global_array(theta: Any) -> Any:
    BUFFER[:] = 2.0 * theta
    return total(theta) + BUFFER.sum()


def by_out(theta: Any) -> Any:
    np.multiply(theta, 2.0, out=BUFFER)
    return total(theta) * BUFFER.sum()


def in_a_view_of_it(theta: Any) -> Any:
    part = BUFFER[1:]
    part *= 0.0
    part += theta[1:]
    return total(theta) * BUFFER.sum()


def in_a_global(theta: Any) -> Any:
    global LATEST
    LATEST = theta
    return total(theta) + LATEST.sum()


LATEST = np.zeros(3)


class Fit:
    def __init__(self) -> None:
        self.work, self.steps, self.by_key = np.zeros(3), list[Any](), dict[str, Any]()

    def __call__(self, theta: Any) -> Any:
        self.theta = 3.0 * theta
        return total(theta) + self.theta.sum()

    def by_array(self, theta: Any) -> Any:
        np.copyto(self.work, theta)
        return total(theta) + self.work.sum()

    def by_list(self, theta: Any) -> Any:
        self.steps.append(theta)
        return total(theta) + self.steps[-1].sum()

    def by_dict(self, theta: Any) -> Any:
        self.by_key.update(theta=theta)
        return total(theta) + self.by_key["theta"].sum()


def by_a_nonlocal() -> OfOne:
    latest: Any = None

    def fun(theta: Any) -> Any:
        nonlocal latest
        latest = theta
        return total(theta) + latest.sum()

    return fun


def by_a_helper() -> OfOne:
    work = {"inner": [np.zeros(3)]}

    def keep(theta: Any) -> None:
        work["inner"][0][:] = theta

    def fun(theta: Any) -> Any:
        keep(theta)
        return total(theta) + work["inner"][0].sum()

    return functools.partial(fun)


def by_random_numbers() -> OfOne:
    rng = np.random.default_rng(0)
    return lambda theta: rng.normal() + total(theta) * rng.normal()


def by_an_iterator() -> OfOne:
    numbers = iter(range(1, 100))
    return lambda theta: next(numbers) * total(theta) + next(numbers)


def between_two_reductions(theta: Any) -> Any:
    first = total(theta)
    BUFFER[:] = first
    return total(2.0 * theta) + BUFFER.sum()


LEFT: dict[str, Callable[[], OfOne]] = {
    "a global array": lambda: in_a_global_array,
    "a global array, by `out=`": lambda: by_out,
    "a view of a global array": lambda: in_a_view_of_it,
    "a global": lambda: in_a_global,
    "an attribute": Fit,
    "an array of an object": lambda: Fit().by_array,
    "a list of an object": lambda: Fit().by_list,
    "a dict of an object": lambda: Fit().by_dict,
    "a variable of the function around it": by_a_nonlocal,
    "an array that a helper writes into": by_a_helper,
    "random numbers": by_random_numbers,
    "an iterator": by_an_iterator,
    "between two reductions": lambda: between_two_reductions,
}


@pytest.mark.parametrize("where", LEFT)
def test_members_find_what_they_have_left_for_themselves(where: str) -> None:
    program, again = LEFT[where](), dagad.vmap(LEFT[where]())
    for step in range(3):  # what was there at first may be there no more
        thetas = THETAS + step
        expected = [program(theta) for theta in thetas]
        assert bits(list(again(thetas))) == bits(expected)


@pytest.mark.parametrize("transform", [dagad.grad, dagad.jacfwd, dagad.hessian])
def test_members_find_it_under_derivatives_too(transform: Callable[..., Any]) -> None:
    def fun(theta: Any) -> Any:
        BUFFER[:] = BUFFER + 1.0
        return total(theta * BUFFER) + anp.sum(BUFFER * theta) ** 2

    BUFFER[:] = 0.0
    expected = [transform(fun)(theta) for theta in THETAS]
    BUFFER[:] = 0.0
    assert bits(list(dagad.vmap(transform(fun))(THETAS))) == bits(expected)


def test_a_log_makes_members_run_one_by_one_and_the_next_call_tries_again() -> None:
    seen, is_logged = list[Any](), [True]

    def fun(theta: Any) -> Any:
        if is_logged[0]:
            seen.append(theta)
        return total(theta)

    vmapped = dagad.vmap(fun)
    expected = [total(theta) for theta in THETAS]
    for _ in range(2):
        assert bits(list(vmapped(THETAS))) == bits(expected)
    assert len(seen) == 2 * len(THETAS)


def test_a_member_that_changes_what_one_that_waits_has_read_has_that_one_refused() -> None:
    """Which has written what was there already."""
    best = np.zeros(3)

    def fun(theta: Any, number: Any) -> Any:
        best[:] = number
        found = total(theta)
        return found + best.sum()

    with pytest.raises(dagad.ClosureError, match=r"while member 0 of `fun` waited.*run one by one"):
        dagad.vmap(fun)(THETAS, NUMBERS)


class Unruly:
    """An object that says nothing of itself."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_members_may_reach_objects_that_say_nothing_of_themselves() -> None:
    held: dict[str, Any] = {"unruly": Unruly()}

    def fun(theta: Any) -> Any:
        held["latest"] = theta
        return total(theta) + held["latest"].sum()

    expected = [fun(theta) for theta in THETAS]
    assert bits(list(dagad.vmap(fun)(THETAS))) == bits(expected)


def test_members_that_return_one_buffer_have_their_own_numbers() -> None:
    buffer = np.zeros(3)

    def fun(theta: Any) -> Any:
        np.multiply(theta, 2.0, out=buffer)
        return {"whole": buffer, "part": [buffer[1:], buffer.T]}

    found = dagad.vmap(fun)(THETAS)
    assert bits(found["whole"]) == bits(2.0 * THETAS)
    assert bits(found["part"][0]) == bits(2.0 * THETAS[:, 1:])
    assert bits(found["part"][1]) == bits(2.0 * THETAS)


@pytest.mark.parametrize("what", sorted(CHANGED.keys() - {"a global"}))
def test_members_may_change_what_is_their_own(what: str) -> None:
    """In a loop of its own, say: each makes its own list, counter, array and rows."""
    make, _ = CHANGED[what]
    options = {"grainsize": 8, "scheduler": "sync"}

    def fun(theta: Any, number: Any) -> Any:
        own = make(**options)
        return sum(own(theta * step, number + step) for step in range(3))

    expected = [fun(theta, number) for theta, number in zip(THETAS, NUMBERS, strict=True)]
    assert bits(list(dagad.vmap(fun)(THETAS, NUMBERS))) == bits(expected)


def test_chunk_functions_may_change_what_nobody_uses() -> None:
    """Such as a count of their calls, which nobody uses: also where members part."""
    calls = list[int]()

    def chunk(rows: Any, theta: Any) -> Any:
        calls.append(len(rows))
        return anp.sum(anp.tanh(rows * theta))

    def fun(theta: Any, number: Any) -> Any:
        found = 0.0
        for step in range(3):
            data = X if (number + step) % 3 else X[:10]
            found = found + dagad.grad(lambda t, d=data: dagad.reduce_sum(chunk, d, t, grainsize=8, scheduler="sync"))(
                theta
            )
        return found

    expected = [fun(theta, number) for theta, number in zip(THETAS, NUMBERS, strict=True)]
    calls.clear()
    assert bits(list(dagad.vmap(fun)(THETAS, NUMBERS))) == bits(expected)
    assert calls


def test_members_that_run_alone_after_one_has_failed_are_looked_at_one_by_one() -> None:
    """Together they fail, as one's chunks do; then each runs alone, and goes on before the next one does."""
    log = list[int]()

    def chunk(rows: Any, theta: Any) -> Any:
        if theta[0] == 0.0:
            raise ZeroDivisionError("this one")
        return anp.sum(rows * theta) * (1 + len(log))

    def fun(theta: Any, number: Any) -> Any:
        try:
            return dagad.reduce_sum(chunk, X, theta, grainsize=8, scheduler="sync")
        except ZeroDivisionError:
            return 0.0
        finally:
            log.append(1)

    thetas = THETAS.copy()
    thetas[-1, 0] = 0.0
    with pytest.raises(dagad.ClosureError, match="when member 1 called it: `log`"):
        dagad.vmap(fun)(thetas, NUMBERS)


def test_names_that_combine_uses_are_looked_at_too(scheduler: Any) -> None:
    weights = [1.0]

    def combine(one: Any, other: Any) -> Any:
        return one + weights[0] * other

    def fun(theta: Any, number: Any) -> Any:
        if number:
            weights[0] = float(number)
        return dagad.map_reduce(lambda rows, t: anp.sum(rows * t), combine, X, theta, grainsize=11, scheduler=scheduler)

    with pytest.raises(dagad.ClosureError, match=r"while member 0 of `fun` waited.*run one by one"):
        dagad.vmap(fun)(THETAS, NUMBERS)
    expected = [fun(theta, number) for theta, number in zip(THETAS, NUMBERS + 2, strict=True)]
    assert bits(list(dagad.vmap(fun)(THETAS, NUMBERS + 2))) == bits(expected)


def test_cotangents_of_maps_are_looked_at_in_members_of_members() -> None:
    cotangent = np.ones_like(X)

    def inner(theta: Any, number: Any) -> Any:
        _, pull = dagad.vjp(lambda t: dagad.map(lambda row, t: row * t, X, t, grainsize=11, scheduler="sync"), theta)
        cotangent[...] = 1.0 + number
        return pull(cotangent)[0]

    def outer(theta: Any, number: Any) -> Any:
        return dagad.vmap(lambda t: inner(t, number))(np.stack([theta, 2.0 * theta]))

    with pytest.raises(dagad.ClosureError, match=r"a cotangent"):
        dagad.vmap(outer)(THETAS, NUMBERS)
