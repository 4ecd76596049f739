"""Functions known by their code to compute and nothing else: is nothing taken for one that does more?"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import autograd.numpy as anp
import numpy as np
import pytest
from autograd.extend import primitive
from autograd.tracer import getval
from scipy import integrate

import dagad
from dagad.solvers import solve_ivp
from dagad.solvers._arithmetic import Arithmetic


class Point(NamedTuple):
    x: float


RATE, TABLE, LARGE, COUNTS = 0.5, np.array([1.0, 2.0]), np.zeros(5000), [0]
PAIR = (0.5, 2.0)
POINT = Point(1.0)
user_rule = primitive(lambda x: x * 1.0)
own_ufunc = np.frompyfunc(COUNTS.count, 1, 1)


def helper(x: Any, k: Any) -> Any:
    return x / (k + x)


def of_globals(t: Any, y: Any) -> Any:
    return RATE * TABLE @ y + helper(y[0], 2.0) * math.pi


def of_loops(t: Any, y: Any) -> Any:
    total = 0.0
    for index in range(2):
        total = total + y[index]
    parts = [each * RATE for each in y]
    return [total if t < 1.0 and total > 0.0 else -total, sum(parts) + max(y[0], 0.0)]


def of_autograd(t: Any, y: Any) -> Any:
    return anp.stack([anp.exp(-y[0]), np.sin(t) * y.size])


def carrying() -> Callable[..., Any]:
    rates, table, name, own = (0.5, [1.0, 2.0]), np.eye(2), {"k": 0.3}, np

    def inner(x: Any) -> Any:
        return x * name["k"]

    def field(t: Any, y: Any, scale: Any = 2.0) -> Any:
        first, _ = rates
        return own.concatenate([table @ y, inner(y[1:]) * first * scale])

    return field


def calling() -> Callable[..., Any]:
    table, act, own = np.eye(2), np.tanh, helper
    return lambda t, y: act(own(y, 2.0)) * np.exp(helper(y, y[0])) + np.dot(table, y) + table.sum(0)


def deleting(t: Any, y: Any) -> Any:
    del t
    twice = 2.0 * y
    found = [twice[0], -twice[1]]
    del twice
    return found


@pytest.mark.parametrize("fun", [of_globals, of_loops, of_autograd, carrying(), helper, calling(), deleting])
def test_functions_that_compute_are_known(fun: Callable[..., Any]) -> None:
    known = Arithmetic.of(fun)
    assert known is not None
    assert known.leaves == []


def writes_entries(t: Any, y: Any) -> Any:
    COUNTS[0] += 1
    return y


def writes_in_place(t: Any, y: Any) -> Any:
    total = TABLE
    total += y
    return total


def writes_by_a_function(t: Any, y: Any) -> Any:
    return np.add(TABLE, 1.0, TABLE) * y


def writes_by_a_keyword(t: Any, y: Any) -> Any:
    return np.add(TABLE, 1.0, out=TABLE) * y


def appends(t: Any, y: Any) -> Any:
    COUNTS.append(t)
    return y


def binds_a_global(t: Any, y: Any) -> Any:
    global RATE
    RATE = RATE + 0.0
    return y * RATE


def draws(t: Any, y: Any) -> Any:
    return y * np.random.normal()


def draws_by_random(t: Any, y: Any) -> Any:
    return y * random.random()


def reads_a_list(t: Any, y: Any) -> Any:
    return y * COUNTS[0]


def reads_much(t: Any, y: Any) -> Any:
    return y * LARGE[0]


def asks_what_it_is(t: Any, y: Any) -> Any:
    return y if isinstance(t, float) else -y


def asks_its_type(t: Any, y: Any) -> Any:
    return y if type(t) is float else -y


def asks_whether_it_is_the_same(t: Any, y: Any) -> Any:
    return y if y[0] is not y[1] else -y


def takes_an_attribute(t: Any, y: Any) -> Any:
    return y * t.real


def asks_by_a_word(t: Any, y: Any) -> Any:
    return y * getattr(t, "value", 1.0)


def catches(t: Any, y: Any) -> Any:
    try:
        return y * t
    except TypeError:
        return y


def takes_a_value_out(t: Any, y: Any) -> Any:
    return y * getval(t)


def of_a_users_rule(t: Any, y: Any) -> Any:
    return user_rule(y)


def of_a_users_ufunc(t: Any, y: Any) -> Any:
    return own_ufunc(y)


def of_a_record(t: Any, y: Any) -> Any:
    return y * POINT.x


def shows(t: Any, y: Any) -> Any:
    return y * float(f"{t}")


def imports(t: Any, y: Any) -> Any:
    import os

    return y * len(os.environ)


def yields(t: Any, y: Any) -> Any:
    yield y


def makes_a_class(t: Any, y: Any) -> Any:
    class Own:
        rate = 2.0

    return y * Own.rate


def counting() -> Callable[..., Any]:
    count = 0

    def field(t: Any, y: Any) -> Any:
        nonlocal count
        count = count + 1
        return y * count

    return field


def with_an_iterator() -> Callable[..., Any]:
    ticks = itertools.count()
    return lambda t, y: [y * each for each in ticks]


def with_an_object() -> Callable[..., Any]:
    class Own:
        def __mul__(self, other: Any) -> Any:
            COUNTS.append(other)
            return other

    own = Own()
    return lambda t, y: own * y


def with_a_subclass() -> Callable[..., Any]:
    class Own(np.ndarray):
        pass

    own = np.ones(2).view(Own)
    return lambda t, y: own * y


def with_objects() -> Callable[..., Any]:
    own = np.array([1.0, None])
    return lambda t, y: own * y


def with_a_buffer() -> Callable[..., Any]:
    own = np.zeros(2)
    return lambda t, y: np.multiply(own, 2.0, own) + y


def with_a_buffer_of_a_function_of_one() -> Callable[..., Any]:
    own = np.zeros(2)
    return lambda t, y: own * y + np.sin(t, own)


def with_a_buffer_of_a_primitive() -> Callable[..., Any]:
    own = np.zeros(2)
    return lambda t, y: own * y + anp.sin(t, own)


def with_a_buffer_that_may_be_given() -> Callable[..., Any]:
    own, other = np.zeros(2), np.zeros(2)
    return lambda t, y: own * y + np.sin(t if t < 1.0 else -t, own if t < 1.0 else other)


def with_a_buffer_of_a_method() -> Callable[..., Any]:
    own, table = np.zeros(2), np.eye(2)
    return lambda t, y: own * y + table.dot(y, own)


def with_a_buffer_of_a_method_of_an_argument() -> Callable[..., Any]:
    own = np.zeros(())
    return lambda t, y: own * y + y.sum(0, None, own)


def with_a_buffer_of_a_function_under_another_name() -> Callable[..., Any]:
    own, each = np.zeros(2), [np.sin]
    return lambda t, y: own * y + each[0](t, own)


def with_a_helper_that_counts() -> Callable[..., Any]:
    inner = counting()
    return lambda t, y: inner(t, y)


def with_a_method() -> Callable[..., Any]:
    own = [1.0, 2.0]
    take = own.pop
    return lambda t, y: y * take()


def with_a_cached_helper() -> Callable[..., Any]:
    inner = functools.lru_cache(lambda t: t * 2.0)
    return lambda t, y: y * inner(t)


MORE = [
    *(writes_entries, writes_in_place, writes_by_a_function, writes_by_a_keyword, appends, binds_a_global, draws),
    *(draws_by_random, reads_a_list, reads_much, asks_what_it_is, asks_its_type, asks_whether_it_is_the_same),
    *(takes_an_attribute, asks_by_a_word, catches, takes_a_value_out, of_a_users_rule, of_a_users_ufunc, of_a_record),
    *(shows, imports, yields, makes_a_class, counting(), with_an_iterator(), with_an_object(), with_a_subclass()),
    *(with_a_buffer_of_a_function_of_one(), with_a_buffer_that_may_be_given(), with_a_buffer_of_a_method()),
    *(
        with_a_buffer_of_a_primitive(),
        with_a_buffer_of_a_method_of_an_argument(),
        with_a_buffer_of_a_function_under_another_name(),
    ),
    *(with_objects(), with_a_buffer(), with_a_helper_that_counts(), with_a_method(), with_a_cached_helper()),
    functools.partial(helper, 1.0),
]


@pytest.mark.parametrize("fun", MORE)
def test_functions_that_may_do_more_are_not_known(fun: Callable[..., Any]) -> None:
    assert Arithmetic.of((fun, ())) is None


def test_a_variable_without_a_value_is_not_known() -> None:
    def field(t: Any, y: Any) -> Any:
        return y * later

    assert Arithmetic.of(field) is None
    later = 1.0
    assert Arithmetic.of(field) is not None


def of_one(value: Any) -> Callable[..., Any]:
    return lambda t, y: value * y


def test_functions_of_the_same_code_that_read_other_things_have_other_keys() -> None:
    def key(value: Any) -> Any:
        known = Arithmetic.of(of_one(value))
        assert known is not None
        return known.key

    values = [1.0, 1, True, -0.0, 0.0, np.float64(1.0), (1.0,), [1.0], np.ones(1), np.ones(1, int), np.ones((1, 1))]
    keys = [key(value) for value in values]
    assert len(set(keys)) == len(values)
    assert keys == [key(value) for value in values]


def test_a_function_is_as_it_was_whatever_has_changed_since() -> None:
    scope: dict[str, Any] = {"np": np}
    text = "RATE, TABLE, LATER = 0.5, np.ones(2), 1.0\ndef inner(x):\n    return x * RATE\n"
    exec(f"{text}def field(t, y):\n    return inner(y) * TABLE + LATER + max(1.0, 0.5)", scope)
    held, many = np.ones(2), [1.0, 2.0]

    def field(t: Any, y: Any) -> Any:
        return scope_field(t, y) + held * many[0]

    scope_field = scope["field"]
    known = Arithmetic.of((field, (many, {"a": 1.0})))
    assert known is not None
    known = known.kept()
    expected = field(0.0, np.ones(2))
    scope["TABLE"] += 1.0
    held += 1.0
    many[0] = 7.0
    scope.update(RATE=3.0, inner=lambda x: 0.0 * x, max=min)
    del scope["LATER"]
    again, (given, words) = known.at([])
    np.testing.assert_array_equal(again(0.0, np.ones(2)), expected)
    assert (given, words) == ([1.0, 2.0], {"a": 1.0})
    np.testing.assert_array_equal(known.at([])[0](0.0, np.ones(2)), expected)


def test_derivatives_are_of_the_codes_that_the_solution_had() -> None:
    def inner(x: Any) -> Any:
        return 2.0 * x

    def other(x: Any) -> Any:
        return 5.0 * x

    def flow(t: Any, y: Any, k: Any) -> Any:
        return [-k * inner(y[0])]

    def end(k: Any) -> Any:
        return solve_ivp(flow, (0.0, 1.0), [1.0], args=(k,), rtol=1e-9, atol=1e-12).y[0, -1]

    value, pullback = dagad.vjp(end, 0.5)
    inner.__code__ = other.__code__
    np.testing.assert_allclose(pullback(1.0), -2.0 * value, rtol=1e-6)


def test_a_function_that_another_one_changes_is_not_taken_as_it_was() -> None:
    rate = [1.0]

    def flow(t: Any, y: Any, k: Any) -> Any:
        return [-k * rate[0] * y[0]]

    def jac(t: Any, y: Any, k: Any) -> Any:
        rate[0] = 2.0
        return [[-k]]

    expected = integrate.solve_ivp(flow, (0.0, 1.0), [1.0], "BDF", args=(0.5,), jac=jac).y
    rate[0] = 1.0
    found, _ = dagad.vjp(lambda k: solve_ivp(flow, (0.0, 1.0), [1.0], "BDF", args=(k,), jac=jac).y, 0.5)
    np.testing.assert_array_equal(found, expected)


def test_derivatives_are_of_the_globals_that_the_solution_had() -> None:
    scope: dict[str, Any] = {}
    exec("RATE = 0.5\ndef flow(t, y, k):\n    return [-RATE * k * y[0]]", scope)

    def end(k: Any) -> Any:
        return solve_ivp(scope["flow"], (0.0, 1.0), [1.0], args=(k,), rtol=1e-9, atol=1e-12).y[0, -1]

    for rate in (0.5, 0.8, 0.5):
        scope["RATE"] = rate
        value, pullback = dagad.vjp(end, 1.5)
        scope["RATE"] = 100.0
        np.testing.assert_allclose(pullback(1.0), -rate * value, rtol=1e-6)


def test_derivatives_are_of_the_tables_that_the_solution_had() -> None:
    table, times = np.array([0.5, 0.1]), [1.0]

    def end(k: Any) -> Any:
        found = solve_ivp(lambda t, y: -k * table * y, (0.0, 1.0), [1.0, 1.0], t_eval=times, rtol=1e-9, atol=1e-12)
        return found.y[:, -1]

    for scale in (1.0, 2.0, 3.0):
        table[:] = scale * np.array([0.5, 0.1])
        value, pullback = dagad.vjp(end, 1.5)
        expected = -table * value
        table[:] = 100.0
        np.testing.assert_allclose(pullback(np.array([1.0, 0.0])), expected[0], rtol=1e-5)
        np.testing.assert_allclose(pullback(np.array([0.0, 1.0])), expected[1], rtol=1e-5)


def flow_of(k: Any, power: Any, is_late: bool) -> Callable[..., Any]:
    return lambda t, y: [-(k if is_late else 2.0 * k) * y[0] ** power]


def test_a_kept_program_follows_what_its_equation_carries() -> None:
    def slope(k: Any, power: Any, is_late: bool) -> Any:
        def end(k: Any) -> Any:
            return solve_ivp(flow_of(k, power, is_late), (0.0, 1.0), [1.0], rtol=1e-9, atol=1e-12).y[0, -1]

        return dagad.grad(end)(k)

    for _ in range(2):
        for k in (0.5, 0.7):
            np.testing.assert_allclose(slope(k, 1, True), -np.exp(-k), rtol=1e-6)
            np.testing.assert_allclose(slope(k, 1, False), -2.0 * np.exp(-2.0 * k), rtol=1e-6)
            np.testing.assert_allclose(slope(k, 2, True), -1.0 / (1.0 + k) ** 2, rtol=1e-6)


def test_a_kept_program_has_arrays_of_its_own() -> None:
    scope: dict[str, Any] = {"TABLE": np.array([0.5, 0.1])}
    exec("def flow(t, y, k):\n    return -k * (TABLE @ y) * TABLE", scope)

    def end(k: Any) -> Any:
        return solve_ivp(scope["flow"], (0.0, 1.0), [1.0, 1.0], args=(k,), rtol=1e-9, atol=1e-12).y[0, -1]

    slope, old = dagad.grad(end)(1.5), scope["TABLE"]
    scope["TABLE"] = old.copy()
    old[:] = 100.0
    assert dagad.grad(end)(1.5) == slope


@pytest.mark.parametrize("steps", [np.floor, lambda p: 1.0 * np.greater(p, 2.0), np.sign])
def test_numbers_that_numpy_finds_of_parameters_without_a_derivative_are_not_kept(steps: Callable[..., Any]) -> None:
    def end(p: Any) -> Any:
        return solve_ivp(lambda t, y: [-steps(p)[0] * p[0] * y[0]], (0.0, 1.0), [1.0], rtol=1e-9, atol=1e-12).y[0, -1]

    for p in (1.5, 2.5, -0.5):
        rate = float(steps(np.array(p)))
        np.testing.assert_allclose(dagad.grad(end)(np.array([p])), [-rate * np.exp(-rate * p)], rtol=1e-6)


def test_values_are_those_of_arrays_as_they_lie() -> None:
    rng = np.random.default_rng(0)
    table, start = rng.normal(size=(40, 40))[::2, ::2].T * 0.1, rng.normal(size=20)

    def flow(t: Any, y: Any, k: Any) -> Any:
        return table @ y * k

    found, _ = dagad.vjp(lambda k: solve_ivp(flow, (0.0, 1.0), start, args=(k,)).y, 1.3)
    np.testing.assert_array_equal(found, integrate.solve_ivp(flow, (0.0, 1.0), start, args=(1.3,)).y)


def test_long_lists_are_data() -> None:
    numbers = [1.0] * 5000
    assert Arithmetic.of(lambda t, y: numbers[0] * y) is None
