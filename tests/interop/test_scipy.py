"""`dagad.interop.scipy`: every method gets the derivatives that it asks for, no others, and comes to known answers."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
import scipy.optimize
from packaging.version import Version

import dagad
from dagad.interop.scipy import FlatFunction, least_squares, minimize
from support.tiers import optional
from support.two_array_program import Pair

pytestmark = pytest.mark.sampled(3)

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((60, 2))
Y = (RANDOM.random(60) < 1 / (1 + np.exp(-X @ np.array([1.0, -0.5]) - 0.3))).astype(float)
START = {"slopes": np.zeros(2), "intercept": 0.0}
LOGIT = np.array([0.7405679445109807, -0.3408083477558239, -0.09106465446909606])  # the slopes, the intercept


def chunk(rows: Any, p: Any) -> Any:
    x, y = rows
    score = np.dot(x, p["slopes"]) + p["intercept"]
    return np.sum(anp.logaddexp(0.0, score) - y * score)


def logistic(scheduler: Any) -> Any:
    shards = dagad.shard((X, Y), grainsize=20, scheduler=scheduler)
    return lambda p: dagad.reduce_sum(chunk, shards, p)


def as_vector(p: Any) -> Any:
    return np.append(p["slopes"], p["intercept"])


@pytest.mark.needs("statsmodels")
def test_the_known_answer_of_a_logistic_fit_is_that_of_statsmodels() -> None:
    sm: Any = optional("statsmodels.api")
    found = sm.Logit(Y, sm.add_constant(X, prepend=False)).fit(disp=0, tol=1e-12)
    np.testing.assert_allclose(found.params, LOGIT, rtol=1e-12)


METHODS = ["BFGS", "CG", "L-BFGS-B", "TNC", "SLSQP", "Newton-CG", "trust-ncg", "trust-krylov", "trust-exact"]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("method", [*METHODS, "trust-constr", "dogleg", "Nelder-Mead", "Powell", None])
def test_every_method_of_minimize_finds_what_statsmodels_finds(method: Any) -> None:
    tight = {"Nelder-Mead": {"xatol": 1e-9}, "Powell": {"xtol": 1e-9, "ftol": 1e-12}}
    found = minimize(logistic("sync"), START, method=method, options=tight.get(method))
    np.testing.assert_allclose(as_vector(found.x), LOGIT, rtol=2e-3)
    assert list(found.x) == ["slopes", "intercept"]
    np.testing.assert_array_equal(found.x_flat, np.append(found.x["intercept"], found.x["slopes"]))  # by sorted keys


@pytest.mark.sampled(6)
@pytest.mark.parametrize("method", ["L-BFGS-B", "trust-ncg"])
def test_the_steps_of_minimize_are_the_same_on_every_scheduler(method: str, scheduler: Any) -> None:
    tight = {"gtol": 1e-9} | ({"ftol": 0.0} if method == "L-BFGS-B" else {})
    found = minimize(logistic(scheduler), START, method=method, options=tight)
    np.testing.assert_allclose(as_vector(found.x), LOGIT, rtol=1e-7)
    here = minimize(logistic("sync"), START, method=method, options=tight)
    assert found.x_flat.tobytes() == here.x_flat.tobytes()
    assert found.jac_flat.tobytes() == here.jac_flat.tobytes()


def test_scipy_checks_our_derivatives(scheduler: Any) -> None:
    flat = FlatFunction(logistic(scheduler), START)
    at, v = flat.x0 + 0.3, np.array([1.0, -2.0, 0.5])
    assert scipy.optimize.check_grad(flat.value, flat.gradient, at) < 1e-5
    assert scipy.optimize.check_grad(flat.value_only, flat.gradient, at) < 1e-5
    np.testing.assert_allclose(flat.hessp(at, v), flat.hessian(at) @ v, rtol=1e-12)
    columns = scipy.optimize.approx_fprime(at, flat.gradient, 1e-6)
    np.testing.assert_allclose(flat.hessian(at), columns, atol=1e-3)


class Counted:
    """Rosenbrock's function as a chunk that brings its own derivative, and counts: values, and pullbacks."""

    def __init__(self) -> None:
        self.values = self.pullbacks = 0

    def __call__(self, rows: Any, x: Any) -> Any:
        self.values += 1

        def pullback(cotangent: Any) -> Any:
            self.pullbacks += 1
            return None, cotangent * scipy.optimize.rosen_der(x)

        return scipy.optimize.rosen(x), pullback


@pytest.mark.parametrize("method", ["BFGS", "CG", "SLSQP", "L-BFGS-B", "TNC", "Powell"])
def test_values_in_line_searches_start_no_pullback(method: str) -> None:
    count = Counted()
    marked = dagad.extend.explicit(count)
    found = minimize(
        lambda x: dagad.reduce_sum(marked, np.ones(1), x, scheduler="sync"), np.array([-1.2, 1.0]), method=method
    )
    np.testing.assert_allclose(found.x, 1.0, rtol=1e-3)
    assert count.values == found.nfev
    assert count.pullbacks == {"Powell": 0, "TNC": found.nfev}.get(method, found.get("njev"))
    assert method != "SLSQP" or count.pullbacks < count.values


def test_steps_that_a_trust_region_turns_down_start_no_pullback() -> None:
    traced = []

    def well(rows: Any, x: Any) -> Any:
        traced.append(not isinstance(x, np.ndarray))
        return np.sum(rows) * np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)

    flat = FlatFunction(lambda x: dagad.reduce_sum(well, np.ones(1), x, scheduler="sync"), np.array([-1.2, 1.0]))
    pulled = []

    def gradient(x: Any) -> Any:
        before = len(traced)
        found = flat.gradient(x)
        pulled.append(len(traced) - before)
        return found

    found = scipy.optimize.minimize(flat.value, flat.x0, jac=gradient, hessp=flat.hessp, method="trust-ncg")
    np.testing.assert_allclose(found.x, 1.0, rtol=1e-4)
    assert found.njev < found.nfev  # some steps were turned down
    assert set(pulled) == {0}  # a gradient after its value does not run the function again


def test_a_gradient_that_somebody_writes_into_is_not_remembered_so() -> None:
    flat = FlatFunction(lambda x: np.sum(x**2), np.ones(2))
    for _ in range(2):
        for slope in (flat.value_and_gradient(flat.x0)[1], flat.gradient(flat.x0)):
            assert slope.tolist() == [2.0, 2.0]
            slope *= -1.0


def test_the_point_that_is_remembered_is_another_by_the_sign_of_a_zero() -> None:
    flat = FlatFunction(lambda x: np.arctan2(x, -1.0), 0.0)
    assert (flat.value(np.array([0.0])), flat.value(np.array([-0.0]))) == (np.pi, -np.pi)


def test_a_callback_gets_pytrees() -> None:
    seen = []

    def callback(p: Any) -> None:
        seen.append(p)

    def result(intermediate_result: Any) -> None:
        seen.append(intermediate_result.x)

    for told in (callback, result):
        minimize(lambda p: (p["a"] - 1.0) ** 2, {"a": 0.0}, callback=told)
    assert seen
    assert all(list(p) == ["a"] for p in seen)
    minimize(
        lambda p: (p["a"] - 1.0) ** 2,
        {"a": 0.0},
        method="trust-constr",
        callback=lambda p, state: seen.extend([p, state]),
    )
    assert list(seen[-2]) == ["a"]
    assert seen[-1].x == seen[-2]
    assert seen[-1].x_flat.shape == (1,)


@pytest.mark.parametrize("method", ["BFGS", "L-BFGS-B", "SLSQP", "COBYLA", "COBYQA", "Nelder-Mead", "trust-constr"])
def test_a_callback_of_either_form_gets_pytrees_and_may_end_the_loop(method: str) -> None:
    def fun(p: Any) -> Any:
        return anp.cosh(p["a"] - 1.0)

    seen: list[Any] = []
    minimize(fun, {"a": 3.0}, method=method, callback=lambda *args: seen.append(args[0]))
    assert len(seen) > 1
    assert all(list(p) == ["a"] for p in seen)

    def ended(intermediate_result: Any) -> None:
        seen.append(intermediate_result.x)
        raise StopIteration

    n_before = len(seen)
    # Of scipy before 1.16 SLSQP does not know that a callback may end it.
    passes_on = method == "SLSQP" and Version(scipy.__version__) < Version("1.16")
    with pytest.raises(StopIteration) if passes_on else contextlib.nullcontext():
        minimize(fun, {"a": 3.0}, method=method, callback=ended)
    assert [list(p) for p in seen[n_before:]] == [["a"]]


def test_least_squares_gets_its_jacobian_from_a_map(scheduler: Any) -> None:
    t = np.linspace(0.0, 1.0, 30)
    y = 2.0 * np.exp(-1.5 * t) + 0.01 * np.random.default_rng(1).standard_normal(30)

    def miss(pair: Any, p: Any) -> Any:
        return pair[1] - p["a"] * np.exp(-p["rate"][0] * pair[0])

    def residuals(p: Any) -> Any:
        return dagad.map(miss, (t, y), p, grainsize=10, scheduler=scheduler)

    start = {"a": 1.0, "rate": np.ones(1)}
    found = least_squares(residuals, start, xtol=1e-12, bounds={"a": (0, None), "rate": None})
    right, _ = scipy.optimize.curve_fit(lambda t, a, rate: a * np.exp(-rate * t), t, y, p0=[1.0, 1.0], xtol=1e-12)
    np.testing.assert_allclose([found.x["a"], *found.x["rate"]], right, rtol=1e-6)
    assert found.jac.shape == (30, 2)
    assert found.x["rate"].shape == (1,)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            lambda: minimize(np.sum, np.array([1, 2])),
            r"`x0` is an array of shape \(2,\) and dtype int64.*astype\(float\)",
        ),
        (lambda: minimize(np.sum, {"n": 1, "x": 1.0}), r"`x0\['n'\]` is an int, .*`0.0` for `0`.*`args=`"),
        (lambda: minimize(np.sum, 1j), "`x0` is a complex, .*real and imaginary part as two parameters"),
        (lambda: minimize(np.sum, ["name"]), r"`x0\[0\]` is a str, .*Give numbers"),
        (lambda: minimize(np.sum, {}), "`x0` holds no numbers"),
        (lambda: minimize(np.sum, np.zeros(0)), "`x0` holds no numbers"),
        (lambda: least_squares(np.sin, np.ones(2), jac="3-point"), "no keyword `jac`.*computes the Jacobian"),
        (lambda: least_squares(np.sin, np.ones(2), kwargs={}), "no keyword `kwargs`.*functools.partial"),
        (lambda: least_squares(lambda p: p["a"], {"a": np.ones(2)}, x_scale={"b": 1.0}), "`x_scale` is .*like `x0`"),
        (lambda: minimize(lambda x: x, np.ones(2)), "Return its sum"),
        (lambda: minimize(lambda x: x, np.ones(2), method="Powell"), "Return its sum"),
        (lambda: minimize(np.sum, np.ones(2), method="adam"), "'adam'` is not a method of scipy's .*'bfgs'.*Flat"),
        (
            lambda: minimize(np.dot, np.ones(2), args=[1.0, 2.0]),  # type: ignore[arg-type]  # on purpose
            r"`args=\(that,\)` for one .*`args=\(a, b\)` for several",
        ),
        (lambda: least_squares(np.dot, np.ones(2), args=Pair(1.0, 2.0)), r"`args=` is a Pair, .*`args=\(that,\)`"),
        (lambda: minimize(3, 1.0), "takes a function"),  # type: ignore[arg-type]  # on purpose
        (lambda: FlatFunction(np.sum, np.ones(2)).value(np.ones(3)), r"shape \(3,\), where `x0` holds 2 numbers"),
        (lambda: least_squares(np.sum, np.ones(2)), "the residuals are an array with one axis.*`minimize`"),
    ],
)
def test_minimize_and_least_squares_refuse_wrong_arguments_with_the_remedy(wrong: Any, said: str) -> None:
    with pytest.raises(dagad.DagadError, match=said):
        wrong()


def test_a_jacobian_that_is_asked_for_is_left_to_dagad() -> None:
    with pytest.raises(dagad.ArgumentsError, match=r"no keyword `jac`\. Leave it out: dagad computes it"):
        minimize(np.sum, np.ones(2), jac=True)  # type: ignore[call-arg]  # on purpose


def test_residuals_may_be_a_list_of_numbers_and_options_pytrees() -> None:
    seen: list[float] = []
    takes_callback = "callback" in inspect.signature(scipy.optimize.least_squares).parameters  # since scipy 1.16
    told: dict[str, Any] = {"callback": lambda p: seen.append(float(p["a"]))} if takes_callback else {}
    found = least_squares(
        lambda p: [p["a"] - 1.0, 10.0 * (p["b"][1] - p["a"] ** 2), p["b"][0]],
        {"a": 0.0, "b": np.zeros(2)},
        x_scale={"a": 1.0, "b": 0.1},
        **told,
    )
    right = scipy.optimize.least_squares(
        lambda x: [x[0] - 1.0, 10.0 * (x[2] - x[0] ** 2), x[1]], np.zeros(3), x_scale=[1.0, 0.1, 0.1]
    )
    np.testing.assert_allclose(found.x_flat, right.x, atol=1e-6)
    np.testing.assert_allclose(found.jac, right.jac, atol=1e-5)
    assert not takes_callback or seen[-1] == pytest.approx(1.0)
    for scale in ("jac", 2.0, np.ones(3)):
        again = least_squares(
            lambda p: [p["a"] - 1.0, p["b"][0], p["b"][1]], {"a": 0.0, "b": np.zeros(2)}, x_scale=scale
        )
        np.testing.assert_allclose(again.x_flat, [1.0, 0.0, 0.0], atol=1e-12)
