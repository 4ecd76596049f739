"""Lists beside traced arrays: each function of the table of calls takes one wherever it takes an array."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import scipy.special

import dagad
from support.called import PLAIN as HOMES
from support.numpy_calls import FAMILIES, calls, is_here

CALLS = [call for family in FAMILIES.values() for call in calls(family) if is_here(call, HOMES)]
X = np.random.default_rng(0).uniform(0.3, 0.9, 12)
M = X.reshape(3, 4)
NAMES = HOMES | {"x": X, "m": M, "s": M @ M.T + np.eye(3), "y": np.linspace(0.5, 1.6, 12), "z": X + 0.5j * X**2}
NAMES["hole"] = np.where(NAMES["y"] > 1.5, np.nan, X)

Arguments = dict[int | str, Any]  # by position, or by name


def parts(call: str) -> tuple[Any, Arguments] | None:
    """Return the first function of a call that is in a module of ours, with its arguments."""
    for node in ast.walk(ast.parse(call, mode="eval")):
        if isinstance(node, ast.Call) and ast.unparse(node.func).partition(".")[0] in HOMES:
            function = evaluated(node.func)
            given: Arguments = {at: evaluated(arg) for at, arg in enumerate(node.args)}
            given |= {str(each.arg): evaluated(each.value) for each in node.keywords}
            return function, spread(given) if isinstance(function, np.ufunc) else given
    return None


def evaluated(node: ast.expr) -> Any:
    return eval(ast.unparse(node), dict(NAMES))


def spread(given: Arguments) -> Arguments:
    """Return the operands of a ufunc, with arrays for numbers."""
    size = max(np.size(arg) for arg in given.values())
    return {at: np.full(size, arg) if isinstance(arg, int | float) else arg for at, arg in given.items()}


def is_array(arg: Any) -> bool:
    return isinstance(arg, np.ndarray) and arg.ndim > 0


def variants() -> Iterator[Any]:
    """Yield functions with arguments and the one among them to be a list, where another one can be differentiated."""
    seen = set()
    for call in CALLS:
        found = parts(call)
        if found is None:
            continue
        function, given = found
        arrays = [at for at, arg in given.items() if is_array(arg)]
        for at in arrays:
            others = [other for other in arrays if other != at and given[other].dtype.kind in "fc"]
            if others and (function, at, len(given)) not in seen:
                seen.add((function, at, len(given)))
                yield pytest.param(function, given, at, others, id=f"{call}: {at}")


def loss_of(function: Any, given: Arguments, others: list[int | str]) -> Callable[[Any], Any]:
    def loss(t: Any) -> Any:
        full = {at: arg * t if at in others else arg for at, arg in given.items()}
        named = {at: arg for at, arg in full.items() if isinstance(at, str)}
        return weighed(function(*[arg for at, arg in full.items() if not isinstance(at, str)], **named))

    return loss


def weighed(out: Any) -> Any:
    total: Any = 0.0
    for part in out if isinstance(out, list | tuple) else [out]:
        weights = np.cos(np.arange(np.size(part))).reshape(np.shape(part)) + 1.5
        total = total + np.sum(weights * (np.real(part) + 0.5 * np.imag(part)))
    return total


def in_every_mode(loss: Callable[[Any], Any]) -> list[Any]:
    """Return value, gradient, tangent and second derivative; or the sentence that refuses."""
    try:
        value, gradient = dagad.value_and_grad(loss)(1.0)
        return [value, gradient, dagad.jvp(loss, 1.0, 1.0)[1], dagad.hvp(loss, 1.0, 1.0)]
    except dagad.NotDifferentiableError as error:
        return [str(error)]


def is_taken(loss: Callable[[Any], Any]) -> bool:
    """Return whether the function takes a list where nothing is traced."""
    try:
        loss(1.0)
    except (TypeError, ValueError, AttributeError, ArithmeticError, IndexError, RuntimeError):
        return False
    return True


VARIANTS = list(variants())


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("function", "given", "at", "others"), VARIANTS)
@pytest.mark.filterwarnings("ignore")
def test_a_list_beside_a_traced_array_is_an_array(
    function: Any, given: Arguments, at: int | str, others: list[int | str]
) -> None:
    laid_out = np.array(given[at], order="C")  # as what a list becomes: bits of LAPACK depend on it
    expected = in_every_mode(loss_of(function, given | {at: laid_out}, others))
    for sequence in (given[at].tolist(), tuple(given[at].tolist())):
        if not is_taken(loss_of(function, given | {at: sequence}, others)):
            continue  # as a pair of column and row
        found = in_every_mode(loss_of(function, given | {at: sequence}, others))
        assert len(found) == len(expected)
        assert found == expected or np.array_equal(found, expected, equal_nan=True)


# What wraps round, has no negative, or too few digits, when one computes with it alone.
SMALL = {
    "u1": [3, 1, 2, 200, 0],
    "u4": [7, 3, 1],
    "u8": [2, 0, 3, 1],
    "i1": [-128, 1, 127],
    "?": [1, 0, 1, 0, 0],
    "f2": [0.1, 2],
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("function", "given", "at", "others"), VARIANTS)
@pytest.mark.filterwarnings("ignore")
def test_a_constant_of_a_small_type_has_the_derivatives_of_the_same_floats(
    function: Any, given: Arguments, at: int | str, others: list[int | str]
) -> None:
    for dtype, numbers in SMALL.items():
        constant = np.resize(np.array(numbers, dtype), np.shape(given[at]))
        small, floats = (loss_of(function, given | {at: each}, others) for each in (constant, constant.astype(float)))
        if not (is_taken(small) and is_taken(floats) and np.isclose(small(1.0), floats(1.0), rtol=1e-12, atol=0.0)):
            continue  # a mask, an index, a singular matrix, what numpy itself computes in few digits
        if abs(floats(1.0)) > 1e9:
            continue  # a matrix that is nearly singular
        expected = in_every_mode(floats)
        if len(expected) > 1 and np.all(np.isfinite(expected)):
            np.testing.assert_allclose(in_every_mode(small), expected, rtol=1e-9, atol=1e-9)


def test_lists_for_arrays_are_tried_in_as_many_functions_as_take_several() -> None:
    assert len({id(variant.values[0]) for variant in VARIANTS}) >= 100


OPERATORS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
    lambda a, b: a // b * a,
    lambda a, b: a % b,
    lambda a, b: a**b,
    lambda a, b: a @ b,
    lambda a, b: divmod(a, b)[1],
    lambda a, b: (a < b) * a,
]
LIST = [0.5, 2.0, 1.5]


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_takes_a_list_on_either_side(operator: Callable[[Any, Any], Any]) -> None:
    for given in (LIST, tuple(LIST), range(1, 4)):
        for at in (np.array([0.7, 1.2, 0.4]), np.array([2.2, 1.7, 3.4])):
            assert_same(lambda x, other: operator(x, other), given, at)
            assert_same(lambda x, other: operator(other, x), given, at)


def assert_same(function: Callable[[Any, Any], Any], given: Any, at: Any) -> None:
    """Assert that a list does what its array does, where ordinary arrays take one."""
    try:
        function(at, given)
    except TypeError:
        return

    def in_modes(other: Any) -> Any:
        def loss(x: Any) -> Any:
            return np.sum(np.sin(function(x, other)) ** 2)

        return [*dagad.grad(loss)(at), dagad.jvp(loss, at, at)[1], *dagad.hvp(loss, at, at)]

    np.testing.assert_array_equal(in_modes(given), in_modes(np.asarray(given)))


def test_a_list_of_traced_values_beside_a_traced_array_is_a_traced_array() -> None:
    x, weights = np.array([0.7, 1.2, 0.4]), np.array([1.0, 2.0, 3.0])
    functions: list[Callable[[Any], Any]] = [
        lambda x: np.sum(np.arctan2(x, [x[1], 2.0, x[0]]) * weights),
        lambda x: x @ [x[1], 2.0, x[0]],
        lambda x: np.dot(x, (x[1], 2.0, x[0])),
        lambda x: np.sum(x ** [x[1], 2.0, x[0]]),
        lambda x: scipy.special.xlogy([x[1], 2.0, x[0]], x) @ weights,
    ]
    for call in functions:
        step = 1e-6
        slopes = [(call(x + step * unit) - call(x - step * unit)) / (2 * step) for unit in np.eye(3)]
        np.testing.assert_allclose(dagad.grad(call)(x), slopes, rtol=1e-8)


def test_a_heaviside_step_between_listed_numbers_has_its_slope_at_zero() -> None:
    gradient = dagad.grad(lambda h: np.sum(np.heaviside([0, 1, 0], h)))(np.full(3, 0.5))
    np.testing.assert_array_equal(gradient, [1.0, 0.0, 1.0])


def test_functions_of_several_results_return_a_tuple() -> None:
    for function in (np.modf, lambda x: np.divmod(x, 0.7), np.frexp):
        seen: list[Any] = []

        def loss(x: Any, function: Any = function, seen: Any = seen) -> Any:
            found = function(x)
            seen.append((type(found), len(found)))
            first, _ = found
            return np.sum(first**2)

        assert np.all(np.isfinite(dagad.hvp(loss, 3 * X, X)))
        assert set(seen) == {(tuple, 2)}


def test_traced_values_are_compared_with_words_as_plain_ones_are() -> None:
    seen: list[Any] = []

    def loss(x: Any) -> Any:
        seen.append([np.any(x == "a"), np.all(x != b"a"), np.all(x == x)])
        return np.sum(x**2)

    for at in (3.0, X):
        np.testing.assert_array_equal(dagad.grad(loss)(at), 2 * at)
    assert seen == [[False, True, True]] * 2
