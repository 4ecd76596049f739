"""What the table of calls can't ask: long arrays, edges of a support, whose distribution or code it is."""

from __future__ import annotations

import ast
import inspect
import itertools
import sys
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.special
import scipy.stats

import dagad
from dagad._rules import bessel_functions, elliptic, scipy_stats, special_integrals
from dagad._rules.scipy_functions import replaced
from dagad._rules.scipy_rules import BETTER, MORE, ONE
from dagad._tracing.patches import patches
from support.numpy_calls import calls
from support.scipy_calls import SPECIAL

RNG = np.random.default_rng(1)


def test_a_long_array_is_parted_as_numpy_parts_it() -> None:
    x = RNG.normal(size=1500)  # introselect leaves another order than in short ones
    weights = np.linspace(1.0, 2.0, 1500)
    gradient = dagad.grad(lambda x: np.sum(np.partition(x, 700)[:700] ** 2))(x)
    np.testing.assert_array_equal(gradient, np.where(x < np.partition(x, 700)[700], 2 * x, 0.0))
    gradient = dagad.grad(lambda x: np.sum(weights * np.partition(x, [3, 700])))(x)
    np.testing.assert_array_equal(gradient, weights[np.argsort(np.argpartition(x, [3, 700]))])
    equal = np.round(x, 1)
    gradient = dagad.grad(lambda x: np.sum(np.partition(x, 700)[:700]))(equal)
    assert gradient.sum() == 700
    assert gradient @ equal == pytest.approx(np.partition(equal, 700)[:700].sum())


def test_full_like_has_the_asked_dtype_and_its_derivative() -> None:
    value, pullback = dagad.vjp(lambda x: np.full_like(x, x[0], dtype=np.float32), np.array([0.3, 0.4]))
    np.testing.assert_array_equal(value, np.full(2, 0.3, np.float32))
    assert value.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(pullback(np.ones(2, np.float32))).ravel(), [2.0, 0.0])


def test_on_the_edge_of_a_support_parameters_have_their_slope() -> None:
    gradient = dagad.grad(lambda b: np.sum(scipy.stats.pareto.logpdf(np.array([1.0, 2.0]), b)))(2.0)
    assert gradient == pytest.approx(1.0 - np.log(2.0))  # 1/b - log(x)
    gradient = dagad.grad(lambda s: np.sum(scipy.stats.expon.logpdf(np.array([0.0, 1.0]), 0.0, s)))(2.0)
    assert gradient == pytest.approx(-0.75)  # x/s^2 - 1/s
    gradient = dagad.grad(lambda s: np.sum(scipy.stats.uniform.cdf(np.array([0.0, 1.0, 5.0]), 0.0, s)))(2.0)
    assert gradient == pytest.approx(-0.25)  # -x/s^2, and none above
    gradient = dagad.grad(lambda s: np.sum(scipy.stats.rayleigh.pdf(np.array([0.0, 1.0]), scale=s)))(1.0)
    assert gradient == pytest.approx(-np.exp(-0.5))  # (x^3/s^5 - 2x/s^3) exp(-x^2/2s^2)


# What the calls of the table give to scipy's functions; each argument that has a rule is moved in turn.
ARGUMENTS: dict[str, Any] = {"x": np.linspace(0.31, 0.87, 12), "y": np.linspace(1.7, 0.4, 12), "np": np}
ARGUMENTS["m"] = ARGUMENTS["x"].reshape(3, 4)
ARGUMENTS["z"] = ARGUMENTS["x"] * (1.0 + 0.5j)
RULES = {
    **{name: (slope,) for name, slope in ONE.items()},
    **MORE,
    **BETTER,
    **bessel_functions.TABLE,
    **special_integrals.TABLE,
    **elliptic.SLOPES,
}


def of_special(text: str) -> list[tuple[str, list[Any]]]:
    """Return the functions of scipy.special that expressions call, each with its arguments."""
    found = []
    for call in calls(text):
        for node in ast.walk(ast.parse(call)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("special."):
                given = [eval(compile(ast.Expression(arg), call, "eval"), ARGUMENTS) for arg in node.args]
                given = [np.asarray(arg) if isinstance(arg, list) else arg for arg in given]
                found.append((ast.unparse(node.func).removeprefix("special."), given))
    return found


def test_each_rule_of_scipys_functions_is_the_slope_in_its_argument() -> None:
    tried, wrong = set(), []
    for name, args in of_special(SPECIAL):
        fun = getattr(scipy.special, name, None)
        for number in [number for number, rule in enumerate(RULES.get(name, ())) if rule is not None and fun]:

            def moved(t: Any, number: int = number, args: list[Any] = args, fun: Any = fun) -> Any:
                return fun(*args[:number], args[number] + t, *args[number + 1 :])

            zero = np.zeros(np.shape(moved(0.0)))
            found = dagad.jvp(lambda t: moved(t), (zero,), (zero + 1.0,))[1]
            steps = [(moved(h) - moved(-h)) / (2.0 * h) for h in (1e-3, 2e-3, 4e-3)]
            once = [(4.0 * fine - coarse) / 3.0 for fine, coarse in itertools.pairwise(steps)]
            expected = (16.0 * once[0] - once[1]) / 15.0
            tried.add((name, number))
            if not np.allclose(found, expected, rtol=1e-6, atol=1e-8):
                wrong.append((name, number, found, expected))
    assert not wrong
    rules = {(name, number) for name, slopes in RULES.items() for number, rule in enumerate(slopes) if rule is not None}
    assert not {(name, number) for name, number in rules - tried if hasattr(scipy.special, name)}


class Own(scipy.stats.rv_continuous):  # type: ignore[misc]  # scipy has no types
    def _pdf(self, x: Any) -> Any:
        return np.where(x < 0, 0.0, np.exp(-x))


def test_a_distribution_is_known_by_more_than_its_name() -> None:
    scale = 1.5
    expected = dagad.grad(lambda x: scipy.stats.norm.logpdf(x, 0.0, scale))(0.3)
    kept = scipy_stats._primitive.cache_info().currsize
    for _ in range(5):
        frozen = scipy.stats.norm(0.0, scale)
        assert dagad.grad(lambda x, frozen=frozen: frozen.logpdf(x))(0.3) == expected
    assert scipy_stats._primitive.cache_info().currsize == kept
    for other in (Own(name="norm"), type(scipy.stats.norm)(a=0.0, name="norm")):
        with pytest.raises(dagad.NotDifferentiableError, match=r"no derivative of `scipy\.stats\.norm\.pdf`"):
            dagad.grad(lambda x, other=other: other.pdf(x))(0.3)


def test_a_parameter_that_no_distribution_has_is_an_error() -> None:
    for call in (
        lambda x: scipy.stats.norm.logpdf(x, mean=0.2),
        lambda x: scipy.stats.norm.logpdf(x, 0.0, 1.0, 2.0),
        lambda x: scipy.stats.poisson.pmf(2, x, scale=2.0),
    ):
        with pytest.raises(TypeError, match="got unexpected arguments"):
            dagad.grad(call)(0.3)


def test_combinations_of_more_than_there_are_have_no_slope() -> None:
    at, k = np.array([5.5, 2.0, 3.5, -1.0]), np.array([2.0, 4.0, 3.5, 1.0])
    value, gradient = dagad.value_and_grad(lambda n: np.sum(scipy.special.comb(n, k)))(at)
    assert value == np.sum(scipy.special.comb(at, k))
    ends = [scipy.special.comb(at + step, k) for step in (1e-6, -1e-6)]
    assert gradient[0] == pytest.approx(((ends[0] - ends[1]) / 2e-6)[0])
    np.testing.assert_array_equal(gradient[[1, 3]], 0.0)


# --- whose code -------------------------------------------------------------------------------------------------------


def theirs(*args: Any, **kwargs: Any) -> Any:
    return "theirs"


def test_code_that_others_put_into_a_function_stays() -> None:
    dagad.grad(lambda x: scipy.linalg.solve(x * np.eye(2), np.ones(2))[0])(2.0)  # from here on, it is known
    own = scipy.linalg.norm.__code__
    try:
        scipy.linalg.norm.__code__ = theirs.__code__  # before
        with patches:
            assert scipy.linalg.norm.__code__ is theirs.__code__
            assert scipy.linalg.norm(np.ones(2)) == "theirs"
        assert scipy.linalg.norm.__code__ is theirs.__code__
        scipy.linalg.norm.__code__ = own
        with patches:
            assert scipy.linalg.norm.__code__ is not own
            scipy.linalg.norm.__code__ = theirs.__code__  # inside
        assert scipy.linalg.norm.__code__ is theirs.__code__
    finally:
        scipy.linalg.norm.__code__ = own
    with patches:
        assert scipy.linalg.norm(np.ones(4)) == 2.0
    assert dagad.grad(scipy.linalg.norm)(np.array([3.0, 4.0])) == pytest.approx([0.6, 0.8])
    assert scipy.linalg.norm.__code__ is own


def test_variables_of_a_function_in_which_dagad_looks_first_can_be_looked_at() -> None:
    """Debuggers and pytest do so; scipy has functions with free variables among them, other ones in each release."""

    def around(one: Any, other: Any) -> Any:
        def function(*args: Any) -> Any:
            return one, other, args

        return function

    def first(*args: Any) -> Any:
        del args
        return dict(sys._getframe(1).f_locals)

    function = around(1, 2)
    _, own, ours = replaced(function, first)
    function.__code__ = ours
    assert function(3)["args"] == (3,)
    function.__code__ = own
    assert function(3) == (1, 2, (3,))


def test_scipy_functions_have_their_signature_while_dagad_traces() -> None:
    seen: list[Any] = []
    functions = (scipy.linalg.solve, scipy.linalg.eigh, scipy.special.logsumexp, type(scipy.stats.norm).logpdf)

    def chunk(x: Any) -> Any:
        seen.extend(map(inspect.signature, functions))
        return scipy.linalg.norm(x)

    before = list(map(inspect.signature, functions))
    dagad.grad(chunk)(np.ones(2))
    assert seen == before == list(map(inspect.signature, functions))
    assert list(before[0].parameters)[:3] == ["a", "b", "lower"]
