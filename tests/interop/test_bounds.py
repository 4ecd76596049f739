"""Bounds in `dagad.interop.scipy`: is each form read as scipy reads it, and what might be two forms refused?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize
from scipy.optimize import Bounds

import dagad
from dagad._values import pytree
from dagad.interop.scipy import least_squares, minimize
from support.two_array_program import Pair


def test_bounds_are_a_pair_for_each_leaf() -> None:
    def bowl(p: Any, shift: float) -> Any:
        return np.sum((p["a"] - shift) ** 2) + (p["b"] + 5.0) ** 2 + (p["c"] - 1.0) ** 2

    start: dict[str, Any] = {"a": np.zeros((2, 2)), "b": 0.0, "c": 0.0}
    bounds: dict[str, Any] = {"a": (None, np.array([[1.0, 2.0], [3.0, 4.0]])), "b": (-1, None), "c": None}
    for method in ("L-BFGS-B", "TNC", "SLSQP", "trust-constr", "Nelder-Mead", None):
        found = minimize(bowl, start, (2.5,), method, bounds=bounds).x
        np.testing.assert_allclose(found["a"], [[1.0, 2.0], [2.5, 2.5]], rtol=1e-2)
        np.testing.assert_allclose([found["b"], found["c"]], [-1.0, 1.0], rtol=1e-2)


@pytest.mark.parametrize("method", ["Nelder-Mead", "Powell", "trust-constr", "L-BFGS-B"])
def test_there_may_be_no_bound_for_some_numbers_of_an_array(method: str) -> None:
    bounds = {"a": ([None, -9.0], np.array([1.0, None]))}
    found = minimize(lambda p: np.sum((p["a"] - 3.0) ** 2), {"a": np.zeros(2)}, method=method, bounds=bounds)
    np.testing.assert_allclose(found.x["a"], [1.0, 3.0], rtol=1e-2)


def of_two(x: Any) -> Any:
    return (x[0] - 1.0) ** 2 + (x[1] - 2.5) ** 2


FORMS: dict[str, Any] = {
    "a tuple of two pairs": ((0, None), (0, None)),
    "a list of two pairs": [(0, None), (0, 2)],
    "lists": [[None, 0.5], [3, None]],
    "an array": np.array([[0, 1], [-9, 2]]),
    "an end that looks like a pair": ((0.0, 0.5), (3.0, 4.0)),
    "one pair for all": [(0, 0.75)],
    "Bounds": Bounds([0, -9], [0.5, 2]),
    "Bounds for all": Bounds(0, 0.5),
    "numpy's numbers": (np.array([0, 3]), np.array([1, 4])),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", ["L-BFGS-B", "SLSQP", "trust-constr"])
@pytest.mark.parametrize("form", FORMS)
def test_bounds_of_an_array_are_what_scipy_takes(form: str, method: str) -> None:
    start, bounds = np.array([2.0, 0.0]), FORMS[form]
    right = scipy.optimize.minimize(of_two, start, method=method, bounds=bounds).x
    np.testing.assert_allclose(minimize(of_two, start, method=method, bounds=bounds).x, right, atol=2e-3)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (Bounds([0, 0, 0], [1, 2, 3]), [1, 2, 3]),
        ([(0, 1), (0, 2), (None, 3)], [1, 2, 3]),
        ((0, 3), [3, 3, 3]),
        ((None, None), [9, 9, 9]),
    ],
)
def test_bounds_of_arrays_of_other_lengths_are_read_number_by_number(bounds: Any, expected: list[int]) -> None:
    found = minimize(lambda x: np.sum((x - 9.0) ** 2), np.ones(3), bounds=bounds).x
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_bounds_of_a_matrix_are_pairs_in_its_order_or_of_its_shape() -> None:
    def miss(x: Any) -> Any:
        return np.sum((x - 9.0) ** 2)

    for bounds in ([(0, 1), (0, 2), (0, 3), (0, 4)], Bounds(0, [[1, 2], [3, 4]])):
        np.testing.assert_allclose(minimize(miss, np.zeros((2, 2)), bounds=bounds).x, [[1, 2], [3, 4]], rtol=1e-4)


TREES: dict[str, Any] = {
    "dicts": ({"a": np.zeros(2), "b": 0.0}, Bounds({"a": [0, 0], "b": -9}, {"a": np.array([1, 2]), "b": None})),
    "a tuple": ((np.zeros(2), 0.0), ((np.zeros(2), np.array([1, 2])), None)),
    "a tuple of arrays": ((np.zeros(2), np.zeros(1)), ((0, np.array([1, 2])), (None, None))),
    "a list of numbers": ([0.0, 0.0, 0.0], Bounds([0, 0, -9], [1, 2, np.inf])),
    "a list of dicts": ([{"a": 0.0}, {"a": 0.0}, {"a": 0.0}], Bounds(0, [{"a": 1}, {"a": 2}, {"a": None}])),
    "a namedtuple": (Pair(np.zeros(2), 0.0), Pair((0, np.array([1, 2])), None)),
    "pairs of numbers": ((0.0, 0.0, 0.0), ((0, 1), [0, 2], (0, None))),
    "a list that looks like scipy's": ([0.0, 0.0, 0.0], [(0, 1), (0, 2), None]),
}


@pytest.mark.parametrize("name", TREES)
def test_bounds_of_a_pytree_are_pairs_at_its_leaves_or_two_pytrees(name: str) -> None:
    start, bounds = TREES[name]

    def leaves(p: Any) -> Any:
        parts = p.values() if isinstance(p, dict) else p
        return [part["a"] if isinstance(part, dict) else part for part in parts]

    def miss(p: Any) -> Any:
        return sum(np.sum((part - 9.0) ** 2) for part in leaves(p))

    found = minimize(miss, start, bounds=bounds)
    assert type(found.x) is type(start)
    np.testing.assert_allclose(np.concatenate([np.ravel(part) for part in leaves(found.x)]), [1, 2, 9], rtol=1e-4)


@pytest.mark.parametrize("bounds", [(0, 2), ([0, 0], [2, 1]), (-np.inf, np.array([2, 1])), Bounds([0, 0], [2, 1])])
def test_bounds_of_an_array_in_least_squares_are_the_low_and_the_high_ends(bounds: Any) -> None:
    start = np.full(2, 0.5)
    right = scipy.optimize.least_squares(lambda x: x - 3.0, start, bounds=bounds).x
    np.testing.assert_allclose(least_squares(lambda x: x - 3.0, start, bounds=bounds).x, right, rtol=1e-6)


def test_keep_feasible_is_handed_on() -> None:
    seen = []

    def noted(p: Any) -> Any:
        seen.append(float(pytree.plain(p["a"])))
        return (p["a"] + 1.0) ** 2

    bounds = Bounds({"a": 0.0}, {"a": np.inf}, keep_feasible=True)
    minimize(noted, {"a": 0.5}, method="trust-constr", bounds=bounds)
    assert min(seen) >= 0.0


ARRAY, DICT = np.ones(2), {"a": np.ones(2)}


@pytest.mark.parametrize(
    ("start", "bounds", "said"),
    [
        (ARRAY, [(0, 1)] * 3, r"are 3 pairs, where it holds 2 numbers. Give a sequence of 2 pairs"),
        (
            np.ones(3),
            ([0, 0, 0], [1, 1, 1]),
            r"sequence of 3 pairs `\(low, high\)`.*`scipy.optimize.Bounds\(low, high\)`",
        ),
        (np.ones(3), ((0, 1), (0, 1)), "are 2 pairs, where it holds 3 numbers"),
        (ARRAY, (None, (0, 1)), r"are \(None, \(0, 1\)\). Give a sequence of 2 pairs"),
        (ARRAY, (("a", "b"), ("c", "d")), "Give a sequence of 2 pairs"),
        (ARRAY, (), "are 0 pairs"),
        (
            ARRAY,
            Bounds([0, 0, 0], [1, 1, 1]),
            r"the low ends don't fit `x0`. Give a number, or an array of shape \(2,\)",
        ),
        (1.0, 3, r"The bounds of `x0` are 3. Give a pair `\(low, high\)`"),
        (DICT, {"b": (0, 1)}, r"Give a pair `\(low, high\)` for each of `x0\['a'\]`"),
        (DICT, {"a": (0, np.ones(3))}, r"`x0\['a'\]` are .*arrays of shape \(2,\)"),
        (
            DICT,
            {"a": ((0, None), (0, None))},
            r"or a pair for each of two numbers. Give the ends as arrays, `\(np.array",
        ),
        (DICT, {"a": [(0, 1), (0, 1)]}, "or a pair for each of two numbers"),
        (DICT, {"a": np.ones((2, 2))}, "or a pair for each of two numbers"),
        (DICT, Bounds([0, 0], [1, 1]), r"Give one number, or a pytree like `x0` .*`x0\['a'\]` of shape \(2,\)"),
        (DICT, Bounds({"b": 0}, {"a": 1}), "another structure.*the low ends of `Bounds` for each of"),
        (DICT, Bounds({"a": 0}, {"a": np.ones(3)}), "the high ends don't fit"),
        ((1.0, 2.0), [(0, 1), (0, 1)], "another structure than `x0`"),
    ],
)
def test_bounds_that_do_not_fit_are_refused_with_what_does(start: Any, bounds: Any, said: str) -> None:
    with pytest.raises(dagad.StructureError, match=said):
        minimize(lambda x: 0.0, start, bounds=bounds)


@pytest.mark.parametrize("bounds", [[(0, 1)] * 3, ([0, 0, 0], 1), 3])
def test_pairs_for_each_number_are_refused_by_least_squares(bounds: Any) -> None:
    with pytest.raises(dagad.StructureError, match=r"pair `\(low, high\)` of numbers, of arrays of shape \(2,\)"):
        least_squares(lambda x: x, ARRAY, bounds=bounds)
