"""Plain numpy compiled by jax, at its corners: changes in place, types of its own, single points, refusals caught."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

import dagad
from support.beside_numpy import SAME, compared
from support.views import parts

ROWS = np.array([3.0, 1.0, 2.0])


def at(fun: Any, t: Any = 1.0, rows: Any = ROWS, engine: str | None = "jax") -> Any:
    """Return value and gradient of a function of all rows and a parameter, compiled or by autograd."""
    return dagad.value_and_grad(total(fun, rows, engine))(t)


def total(fun: Any, rows: Any = ROWS, engine: str | None = "jax") -> Any:
    return lambda t: dagad.reduce_sum(fun, rows, t, grainsize=len(rows), scheduler="sync", engine=engine)


# --- in place ---------------------------------------------------------------------------------------------------------


def sorted_and_indexed(rows: Any, t: Any) -> Any:
    y = rows * t
    y.sort()
    return y[0]


def sorted_and_weighed(rows: Any, t: Any) -> Any:
    y = rows * t
    y.sort()
    return (y * np.arange(3.0)).sum()


def seen_in_other_bits(rows: Any, t: Any) -> Any:
    y = rows * t
    part = y[1:]
    part *= 2.0
    return y.view(np.int64)[0] * 0.0 + y[1]


def in_a_new_array(rows: Any, t: Any) -> Any:
    y = rows * t
    part = y[1:]
    part *= 2.0
    return np.array([y[1], y[2]])[0]


def beside_a_new_array(rows: Any, t: Any) -> Any:
    y = rows * t
    part = y[1:]
    part *= 2.0
    return y[1] + np.asarray([t, t])[0]


@pytest.mark.filterwarnings("ignore:.*does not add up")
@pytest.mark.parametrize(
    "fun", [sorted_and_indexed, sorted_and_weighed, seen_in_other_bits, in_a_new_array, beside_a_new_array]
)
def test_changes_in_place_are_refused_without_any_call_of_numpys_functions(fun: Any) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"changes an array in place.*`np\.sort\(x\)`"):
        at(fun)


# --- indices ----------------------------------------------------------------------------------------------------------

SQUARE = np.array([[1.0, 2.0], [3.0, 4.0]])
TRUTHS = """
x[None, True]; x[True]; x[np.True_]; x[None, np.True_]; x[None, False]; x[0, True]; x[True, 0]; x[..., True]
x[:1, True]; x[np.array(True)]; x[None, np.array(True)]; x[True, [0, 1]]; x[[0, 1], True, None]; x[True, True]
x[None, True, :, 1]; x[None, [True, False]]; x[None, [[True, False], [False, True]]]
x.T[None, True]; np.take(x, True, 0)
"""


@pytest.mark.parametrize("text", parts(TRUTHS))
def test_single_truths_among_indices_are_numpys(text: str) -> None:
    how, theirs, ours = compared(eval(f"lambda x: {text}", {"np": np}), (SQUARE,))
    assert how == SAME, f"numpy gives {theirs!r}, and traced it is {ours!r}"


def test_a_single_truth_beside_a_traced_index_is_refused() -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"leave out `engine="):
        raise compared(lambda x, i: x[None, True, i], (SQUARE, np.array([0, 1])))[2]


# --- classes of arrays ------------------------------------------------------------------------------------------------

MATRIX, MASKED = SQUARE.view(np.matrix), np.ma.masked_array(SQUARE, [[True, False], [False, False]])
WITH_CLASSES = """
m * x; x * m; np.multiply(m, x); m + x; x @ m; np.dot(m, x); np.stack([m, x]); np.where(x > 1, m, x); np.sum(x * m)
x / m; x == m; np.linalg.solve(m, x)
"""


@pytest.mark.parametrize("m", [MATRIX, MASKED], ids=["matrix", "masked"])
@pytest.mark.parametrize("text", parts(WITH_CLASSES))
def test_arrays_of_classes_with_operators_of_their_own_are_refused(text: str, m: Any) -> None:
    fun = eval(f"lambda x: {text}", {"np": np, "m": m})
    with pytest.raises(dagad.NotDifferentiableError, match=r"leave out `engine="):
        raise compared(fun, (SQUARE,))[2]


def test_arrays_of_classes_that_change_no_operator_are_arrays() -> None:
    constant = SQUARE.view(np.recarray)
    value, _ = at(lambda rows, t: np.sum(rows @ (constant * t)), 2.0, SQUARE)
    assert value == pytest.approx(2.0 * (SQUARE @ SQUARE).sum())


@pytest.mark.parametrize("where", ["rows", "a shared argument"])
def test_matrices_that_a_task_is_given_are_refused(where: str) -> None:
    def product(rows: Any, t: Any, other: Any) -> Any:
        return np.sum(np.asarray(rows * t * other))

    rows, other = (MATRIX, 1.0) if where == "rows" else (SQUARE, MATRIX)

    def summed(t: Any) -> Any:
        return dagad.reduce_sum(product, rows, t, other, grainsize=2, scheduler="sync", engine="jax")

    with pytest.raises(dagad.NotDifferentiableError, match=r"numpy\.matrix.*operators.*`m @ x`.*leave out `engine="):
        dagad.grad(summed)(2.0)


@pytest.mark.parametrize("engine", [None, "jax"])
def test_matrices_are_not_differentiated_in(engine: str | None) -> None:
    def loss(m: Any) -> Any:
        return dagad.reduce_sum(lambda rows, m: np.sum(rows) * np.sum(m * m), ROWS, m, scheduler="sync", engine=engine)

    with pytest.raises(dagad.NotDifferentiableError, match=r"with respect to a `numpy\.matrix.*`np\.asarray\(m\)`"):
        dagad.grad(loss)(MATRIX)
    with pytest.raises(dagad.NotDifferentiableError, match=r"with respect to a `numpy\.matrix.*`m @ x`"):
        dagad.jvp(loss, (MATRIX,), (MATRIX,))


# --- refusals that the function catches -------------------------------------------------------------------------------


def asks_whether(rows: Any, t: Any) -> Any:
    return np.sum(rows * t) if t > 0 else 0.0 * t


def writes(rows: Any, t: Any) -> Any:
    rows[0] = t
    return np.sum(rows)


def loops(rows: Any, t: Any) -> Any:
    for _ in range(3_000):
        t = t + 1.0
    return np.sum(rows * t)


CAUGHT: dict[str, tuple[Any, str]] = {
    "if": (asks_whether, "asks whether a value is true"),
    "float": (lambda rows, t: np.sum(rows) * float(t), "asks for a Python number"),
    "list": (lambda rows, t: sum(rows.tolist()) * t, "asks for a Python number"),
    "item of several": (lambda rows, t: rows.item(0) * t, "asks for a Python number"),
    "pickle": (lambda rows, t: pickle.loads(pickle.dumps(rows))[0] * t, "pickles a value"),
    "item": (lambda rows, t: np.sum(rows) * t.item(), "asks for a Python number"),
    "index": (lambda rows, t: rows[0] * [1.0, 2.0][t.astype(int)], "as a count"),
    "mask": (lambda rows, t: np.sum(rows[rows > t]), "depends on values"),
    "function": (lambda rows, t: scipy.special.kv(1.5, t), "for which jax has no function"),
    "conversion": (lambda rows, t: np.sum(rows) * np.fromiter([t], float)[0], r"leave out `engine="),
    "assignment": (writes, "writes into entries"),
    "a long loop": (loops, "consists of more than 2,000 operations"),
}


@pytest.mark.parametrize("case", CAUGHT)
def test_a_refusal_that_the_function_catches_is_raised_nevertheless(case: str) -> None:
    fun, sentence = CAUGHT[case]

    def catches(rows: Any, t: Any) -> Any:
        try:
            return fun(rows, t)
        except Exception:
            return 99.0 * t

    with pytest.raises(dagad.NotDifferentiableError, match=sentence):
        at(catches)


@pytest.mark.filterwarnings("ignore:.*does not add up")
def test_errors_that_numpy_raises_too_may_be_caught() -> None:
    def catches(rows: Any, t: Any) -> Any:
        attempts: list[Any] = [bool, float, lambda x: [1.0, 2.0][x[0]], lambda x: x[7], lambda x: x + np.ones(5)]
        for attempt in attempts:
            try:
                attempt(rows)
            except (TypeError, ValueError, IndexError):
                t = t * 2.0
        return np.sum(rows * t)

    rows = np.array([3.0, 1.0])
    assert at(catches, 1.0, rows)[0] == at(catches, 1.0, rows, engine=None)[0] == 128.0


# --- special functions ------------------------------------------------------------------------------------------------

# Each with an argument, and derivatives from the order zero on: computed with forty digits.
EXACT: dict[str, tuple[Any, float, list[float]]] = {
    "hypot of equal parts": (lambda t: np.hypot(t, 1.0), 1.0, [2**0.5, 0.5**0.5, 0.125**0.5]),
    "hypot of opposite parts": (lambda t: np.hypot(t, -1.0), 1.0, [2**0.5, 0.5**0.5, 0.125**0.5]),
    "hypot of large numbers": (lambda t: np.hypot(t * 1e200, 1e200) / 1e200, 1.0, [2**0.5, 0.5**0.5]),
    "i0 at zero": (scipy.special.i0, 0.0, [1.0, 0.0, 0.5]),
    "np.i0 at zero": (lambda t: np.i0(t).reshape(()), 0.0, [1.0, 0.0, 0.5]),
    "betaln": (
        lambda t: scipy.special.betaln(t, 2.5),
        10.0,
        [-5.647837161382057, -0.23344306220819094, 0.021881111080107377],
    ),
    "betaln of large numbers": (
        lambda t: scipy.special.betaln(t, 2e5),
        100000.0,
        [-190958.88527911686, -1.0986156220088503, 6.666711111271605e-06],
    ),
    "beta": (
        lambda t: scipy.special.beta(2.5, t),
        10.0,
        [0.0035251328292114402, -0.0008229178023417424, 0.00026923827473239985],
    ),
    "the beta distribution": (
        lambda t: scipy.stats.beta.logpdf(0.25, t, 2.5),
        10.0,
        [-7.26033519737463, -1.1528512989116997, -0.021881111080107377],
    ),
    "the beta-binomial distribution": (
        lambda t: scipy.stats.betabinom.logpmf(3, 10, 1.5, t),
        2.5,
        [-1.993743282311285, 0.14778081395728454, -0.16957778055803086],
    ),
    "digamma below zero": (scipy.special.digamma, -10.3, [4.662403493582087, 14.986887065722637, 68.82898861103696]),
    "gammaln below zero": (scipy.special.gammaln, -10.3, [-14.457515440024208, 4.662403493582087, 14.986887065722637]),
    "gamma below zero": (scipy.special.gamma, -2.3, [-1.447107394255918, -4.800522870444103, -37.23486206181961]),
    "log_ndtr at the switch": (
        scipy.special.log_ndtr,
        -20.0,
        [-203.91715537109727, 20.04975306852785, -0.9975367383849478],
    ),
    "log_ndtr far below zero": (
        scipy.special.log_ndtr,
        -10000.0,
        [-50000010.12927891, 10000.000099999997, -0.9999999900000006],
    ),
    "the tail of the normal distribution": (
        lambda t: scipy.stats.norm.logsf(20.5, t),
        0.5,
        [-203.91715537109727, 20.04975306852785, -0.9975367383849478],
    ),
    "expm1 far below zero": (
        lambda t: np.expm1(t) * 1e16 + 1e16 + scipy.special.expm1(t) * 1e16,
        -38.0,
        [-1e16, 2e16 * math.exp(-38.0), 2e16 * math.exp(-38.0)],
    ),
    "i1 at zero": (scipy.special.i1, 0.0, [0.0, 0.5, 0.0]),
}


def derivatives(fun: Any, at: float, n: int) -> list[float]:
    found, one = [], total(lambda rows, t: fun(t), np.zeros(1))
    for _ in range(n):
        found.append(float(one(at)))
        one = dagad.grad(one)
    return found


@pytest.mark.parametrize("case", EXACT)
def test_derivatives_of_special_functions_are_exact_where_jaxs_are_not(case: str) -> None:
    fun, point, right = EXACT[case]
    assert derivatives(fun, point, len(right)) == pytest.approx(right, rel=1e-11, abs=1e-13)


@pytest.mark.parametrize("text", ["exp1(t)", "expi(-t)", "expn(2, t)"])
def test_integrals_whose_terms_jax_has_without_end_are_refused(text: str) -> None:
    fun = eval(f"lambda rows, t: np.sum(scipy.special.{text})", {"np": np, "scipy": scipy})
    with pytest.raises(dagad.NotDifferentiableError, match=r"scipy\.special\.exp.*leave out `engine="):
        at(fun, np.array([1e-8, 1.5]))


POWERS = """
np.sum(t ** np.arange(3)); np.sum(t ** np.array([0.0, 1.0, 2.0])); np.sum(np.power(t, [0, 1, 2])); np.sum(t ** r)
np.sum(np.float_power(t, np.arange(3))); np.sum(np.vander(np.reshape(t, 1), 3)); np.sum(t ** np.zeros(99)) + t + t * t
np.sum(t ** np.array([0.0, 1.0, 2.5])) + t * t
"""


@pytest.mark.parametrize("text", parts(POWERS))
def test_powers_of_zero_have_the_derivatives_of_polynomials(text: str) -> None:
    fun = eval(f"lambda r, t: {text}", {"np": np})
    one = total(fun, np.arange(3))
    slope = dagad.grad(one)
    assert slope(0.0) == 1.0
    assert dagad.grad(slope)(0.0) == 2.0
    rows = np.array([1.0, -2.0])
    assert at(lambda r, t: np.sum(r ** np.arange(2) * t), -1.5, rows)[0] == -1.5 * (1.0 - 2.0)


@pytest.mark.parametrize("distance", [1e-200, 1e-160, 1e-9, 1e-8, 1e-5, 9e-3, 1.1e-2, 0.5])
def test_sinc_has_all_digits_of_its_derivatives_near_zero(distance: float) -> None:
    shift, scale = (lambda rows, t: np.sum(np.sinc(rows - t))), (lambda rows, t: np.sum(np.sinc(rows * t)))
    rows = np.array([distance, -distance])
    for fun, t in ((shift, 0.0), (shift, distance), (scale, 1.0)):
        found, right = (
            [dagad.grad(total(fun, rows[:1], engine))(t), dagad.hessian(total(fun, rows, engine))(t)]
            for engine in ("jax", "autograd")
        )
        np.testing.assert_allclose(found, right, rtol=1e-10, atol=1e-300)  # XLA has no smaller ones
