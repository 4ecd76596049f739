"""Roots, fixed points, optima and fits: are values scipy's, and derivatives those of closed forms, in every mode?"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from dask.base import compute as dask_compute
from dask.delayed import delayed
from scipy import optimize
from scipy.sparse import csr_matrix

import dagad
from dagad import solvers
from dagad._values import pytree
from dagad.solvers import fixed_point, least_squares, minimize, root, root_scalar
from support.every_mode import AT, MODES, check, derivatives
from support.plain_autograd import bits

compute: Any = dask_compute  # Dask has few types
ROWS = np.linspace(0.3, 1.8, 5)
POINTS = np.array([1.0, 2.0, 4.0])
OPTIONS = {"gtol": 1e-10}


# Each as a function of one number and a row, beside its closed form.


def by_root(t: Any, row: Any) -> Any:
    found = root(lambda x, a: np.stack([x[0] ** 2 - a, x[0] * x[1] - 1.0]), np.ones(2), args=(t * row,), tol=1e-13)
    return found.x[0] + found.x[1]


def by_root_scalar(t: Any, row: Any) -> Any:
    return root_scalar(lambda x: x**3 - t * row, bracket=(0.0, 5.0), xtol=1e-14).root


def by_fixed_point(t: Any, row: Any) -> Any:
    return fixed_point(lambda x, a: 0.5 * (x + a / x), 1.0, args=(t * row,), xtol=1e-13)


def by_minimize(t: Any, row: Any) -> Any:
    def loss(x: Any, ridge: Any) -> Any:
        return np.sum((POINTS - x[0]) ** 2) + ridge * x[0] ** 2 + (x[1] - ridge) ** 2

    found = minimize(loss, np.zeros(2), args=t * row, method="BFGS", jac=dagad.grad(loss), options=OPTIONS)
    return found.x[0] * found.x[1] + found.fun


def _minimum(a: Any) -> Any:
    x = 7.0 / (3.0 + a)
    return x * a + anp.sum((POINTS - x) ** 2) + a * x**2


def by_least_squares(t: Any, row: Any) -> Any:
    def residuals(x: Any) -> Any:
        return np.concatenate([x[0] - POINTS, np.sqrt(t * row) * x])

    found = least_squares(residuals, np.zeros(1), xtol=1e-15, gtol=1e-15, ftol=1e-15, jac="3-point")
    return found.x[0] + found.cost + found.fun[0] ** 2


def _fit(a: Any) -> Any:
    x = 7.0 / (3.0 + a)
    return x + 0.5 * (anp.sum((x - POINTS) ** 2) + a * x**2) + (x - 1.0) ** 2


FOUND: dict[Any, Callable[[Any], Any]] = {
    by_root: lambda a: anp.sqrt(a) + 1.0 / anp.sqrt(a),
    by_root_scalar: lambda a: a ** (1.0 / 3.0),
    by_fixed_point: lambda a: anp.sqrt(a),
    by_minimize: _minimum,
    by_least_squares: _fit,
}


def in_chunks(find: Any, t: Any, **options: Any) -> Any:
    return dagad.reduce_sum(lambda rows, t: sum(find(t, row) * row for row in rows), ROWS, t, grainsize=2, **options)


def for_items(find: Any, t: Any, **options: Any) -> Any:
    return anp.sum(dagad.map(lambda row, t: find(t, row) * row, ROWS, t, grainsize=2, **options))


def whole(find: Any, t: Any) -> Any:
    return sum(FOUND[find](t * row) * row for row in ROWS)


@pytest.mark.parametrize("find", FOUND, ids=lambda find: find.__name__)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.sampled(4)
def test_solutions_of_scipys_inside_chunks_have_every_mode(mode: str, find: Any) -> None:
    check(mode, functools.partial(in_chunks, find, scheduler="sync"), derivatives(functools.partial(whole, find)), 1e-5)


@functools.cache
def checked_here(mode: str, find: Any) -> list[Any]:
    """Return the bits of what a mode gives in this thread, which is right."""
    loss = functools.partial(for_items, find, scheduler="sync")
    check(mode, loss, derivatives(functools.partial(whole, find)), 1e-5)
    return bits(MODES[mode][0](loss))


@pytest.mark.parametrize("find", FOUND, ids=lambda find: find.__name__)
@pytest.mark.parametrize("mode", ["jacfwd", "hvp", "hessian", "grad of grad"])
@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
def test_solutions_of_scipys_have_the_same_bits_wherever_they_are_found(mode: str, find: Any, scheduler: Any) -> None:
    found = MODES[mode][0](functools.partial(for_items, find, scheduler=scheduler))
    assert bits(found) == checked_here(mode, find)


# Values


def loss_of(x: Any, a: Any) -> Any:
    return np.sum((x - a) ** 2) + np.sum(x**4)


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "root": lambda home, a: home.root(lambda x, a: x**3 - a, np.ones(2), args=(a,)),
    "root by krylov": lambda home, a: home.root(lambda x, a: x**3 - a, np.ones(2), args=(a,), method="krylov"),
    "root with its jacobian": lambda home, a: home.root(
        lambda x, a: (x**2 - a, np.diag(2.0 * x)), np.ones(2), args=(a,), jac=True
    ),
    "root_scalar": lambda home, a: home.root_scalar(lambda x, a: x**3 - a, args=(a,), bracket=(0.0, 3.0)),
    "root_scalar by newton": lambda home, a: home.root_scalar(
        lambda x, a: (x**3 - a, 3.0 * x**2), args=(a,), x0=1.0, fprime=True
    ),
    "fixed_point": lambda home, a: home.fixed_point(lambda x, a: np.sqrt(a + x), np.ones(2), args=(a,)),
    "minimize": lambda home, a: home.minimize(loss_of, np.zeros(2), args=(a,)),
    "minimize by Nelder-Mead": lambda home, a: home.minimize(
        loss_of, np.zeros(2), args=(a,), method="Nelder-Mead", tol=1e-9
    ),
    "minimize within bounds": lambda home, a: home.minimize(loss_of, np.zeros(2), args=a, bounds=[(0, 1), (None, 3)]),
    "least_squares": lambda home, a: home.least_squares(lambda x, a: x**3 - a, np.ones(2), args=(a,)),
    "least_squares, robust": lambda home, a: home.least_squares(
        lambda x, a: np.concatenate([x - a, x - 3.0]), np.ones(2), args=(a,), loss="soft_l1", f_scale=0.3
    ),
}
DIFFERENTIABLE = ("x", "root", "fun", "cost")


@pytest.mark.parametrize("name", CALLS)
def test_values_are_scipys_bit_for_bit(name: str) -> None:
    def plain(result: Any) -> Any:
        return [result[key] for key in DIFFERENTIABLE if key in result] if isinstance(result, dict) else result

    right = plain(CALLS[name](optimize, 0.7))
    assert bits(plain(CALLS[name](solvers, 0.7))) == bits(right)
    assert bits(dagad.vjp(lambda a: plain(CALLS[name](solvers, a)), 0.7)[0]) == bits(right)
    assert bits(dagad.jvp(lambda a: plain(CALLS[name](solvers, a)), 0.7, 1.0)[0]) == bits(right)


@pytest.mark.parametrize("name", ["root", "root_scalar", "fixed_point", "minimize", "least_squares"])
def test_a_function_has_scipys_signature_and_result(name: str) -> None:
    assert inspect.signature(getattr(solvers, name)) == inspect.signature(getattr(optimize, name))

    def kept(a: Any) -> Any:
        results.append(CALLS[name](solvers, a))
        return a

    results: list[Any] = []
    dagad.grad(kept)(0.7)
    right = CALLS[name](optimize, 0.7)
    assert type(results[0]) is type(right) or name == "fixed_point"
    if isinstance(right, dict):
        assert results[0].keys() == right.keys()
        for key in right.keys() - {*DIFFERENTIABLE}:
            np.testing.assert_array_equal(pytree.plain(results[0][key]), right[key])  # traced, to be refused


@pytest.mark.parametrize("name", CALLS)
def test_derivatives_agree_with_differences(name: str) -> None:
    def number(home: Any, a: Any) -> Any:
        result = CALLS[name](home, a)
        parts = [result[key] for key in DIFFERENTIABLE if key in result] if isinstance(result, dict) else [result]
        return sum(np.sum(np.cos(part)) for part in parts)

    step = 1e-3
    difference = (number(optimize, 0.7 + step) - number(optimize, 0.7 - step)) / (2.0 * step)
    assert dagad.grad(functools.partial(number, solvers))(0.7) == pytest.approx(difference, abs=2e-3)
    assert dagad.jacfwd(functools.partial(number, solvers))(0.7) == pytest.approx(difference, abs=2e-3)


def test_starts_and_brackets_have_derivative_zero() -> None:
    assert dagad.grad(lambda s: root_scalar(lambda x: x**3 - 2.0, bracket=(0.0, s)).root)(3.0) == 0.0
    assert dagad.grad(lambda s: minimize(loss_of, s * np.ones(2), args=(1.0,)).x[0])(0.3) == 0.0


def test_a_minimum_around_a_reduction_is_differentiated_by_the_reduction(scheduler: Any) -> None:
    rows = np.linspace(-1.0, 2.0, 9)
    shards = dagad.shard(rows, grainsize=2, scheduler=scheduler)

    def estimate(ridge: Any) -> Any:
        def loss(x: Any) -> Any:
            return dagad.reduce_sum(lambda r, x: np.sum((r - x[0]) ** 2), shards, x) + ridge * x[0] ** 2

        return minimize(loss, np.zeros(1), jac=dagad.grad(loss), method="BFGS", options=OPTIONS).x[0]

    def closed(ridge: Any) -> Any:
        return np.sum(rows) / (len(rows) + ridge)

    assert dagad.grad(estimate)(0.5) == pytest.approx(dagad.grad(closed)(0.5), rel=1e-9)
    assert dagad.hessian(estimate)(0.5) == pytest.approx(dagad.hessian(closed)(0.5), rel=1e-9)
    assert dagad.jacfwd(estimate)(0.5) == pytest.approx(dagad.grad(closed)(0.5), rel=1e-9)


def test_solutions_may_stand_inside_the_equations_of_others() -> None:
    def inner(a: Any) -> Any:
        return root_scalar(lambda y: y**3 + y - a, bracket=(-9.0, 9.0), xtol=1e-14).root

    def outer(t: Any) -> Any:
        def loss(x: Any) -> Any:
            return (x[0] - t) ** 2 + inner(x[0] * t) ** 2

        return minimize(loss, np.zeros(1), jac=dagad.grad(loss), method="BFGS", options={"gtol": 1e-11}).x[0]

    step = 3e-3
    slope = dagad.grad(outer)
    assert slope(AT) == pytest.approx((outer(AT + step) - outer(AT - step)) / (2.0 * step), rel=1e-4)
    assert dagad.hessian(outer)(AT) == pytest.approx((slope(AT + step) - slope(AT - step)) / (2.0 * step), rel=1e-4)


def test_a_task_of_a_graph_may_find_a_root(scheduler: Any) -> None:
    a = delayed(1.3)
    y = delayed(lambda a: np.sum(root(lambda x: [x[0] ** 2 - a, x[0] * x[1] - 1.0], [1.0, 1.0], tol=1e-13).x))(a)
    slope = dagad.gradient(y, a)
    found = compute(y, slope, dagad.jvp(y, a, 1.0)[1], dagad.gradient(slope, a), scheduler=scheduler)
    first, second = 0.5 * (1.3**-0.5 - 1.3**-1.5), 0.25 * (3.0 * 1.3**-2.5 - 1.3**-1.5)
    np.testing.assert_allclose(found, [1.3**0.5 + 1.3**-0.5, first, first, second], rtol=1e-9)


# Bounds and losses


@pytest.mark.parametrize("method", ["L-BFGS-B", "TNC", "SLSQP", "Powell", "Nelder-Mead"])
def test_a_bound_that_holds_an_unknown_holds_its_derivative(method: str) -> None:
    """The second unknown wants to go to a, and may go to 1 or to b."""

    def found(a: Any, b: Any) -> Any:
        bounds = [(None, None), (0.0, b)]
        loss = lambda x: (x[0] + x[1] - a) ** 2 + (x[1] - a) ** 2  # noqa: E731  # of one line, as in its formula
        return minimize(loss, np.zeros(2), bounds=bounds, method=method, tol=1e-9).x

    held = dagad.jacrev(found, (0, 1))(2.0, 1.0)  # x = (a - b, b)
    np.testing.assert_allclose(held, ([1.0, 0.0], [-1.0, 1.0]), atol=1e-5)
    free = dagad.jacrev(found, (0, 1))(2.0, 5.0)  # x = (0, a)
    np.testing.assert_allclose(free, ([0.0, 1.0], [0.0, 0.0]), atol=1e-4)


def test_bounds_of_least_squares_hold_their_unknowns_too() -> None:
    def found(a: Any, b: Any) -> Any:
        residuals = lambda x: np.stack([x[0] + x[1] - a, x[1] - a])  # noqa: E731  # of one line, as in its formula
        return least_squares(residuals, 0.5 * np.ones(2), bounds=(-10.0, [10.0, b]), method="dogbox", xtol=1e-14).x

    np.testing.assert_allclose(dagad.jacfwd(found, (0, 1))(2.0, 1.0), ([1.0, 0.0], [-1.0, 1.0]), atol=1e-6)
    np.testing.assert_allclose(dagad.jacfwd(found, (0, 1))(2.0, 5.0), ([0.0, 1.0], [0.0, 0.0]), atol=1e-6)


@pytest.mark.parametrize("loss", ["linear", "soft_l1", "huber", "cauchy", "arctan"])
def test_robust_losses_have_derivatives(loss: str) -> None:
    outlier = np.array([1.0, 1.3, 0.8, 6.0])

    def found(home: Any, shift: Any) -> Any:
        result = home.least_squares(
            lambda x: x[0] - outlier * shift, np.ones(1), loss=loss, f_scale=0.7, xtol=1e-14, gtol=1e-14, ftol=1e-14
        )
        return result.x[0] + result.cost

    step = 1e-4
    right = (found(optimize, 1.0 + step) - found(optimize, 1.0 - step)) / (2.0 * step)
    assert dagad.grad(functools.partial(found, solvers))(1.0) == pytest.approx(right, rel=1e-5)


# What else is in a result


def fit_of(a: Any, **options: Any) -> Any:
    return least_squares(lambda x: np.stack([x[0] - a, x[0] ** 2 - a]), np.ones(1), **options)


def minimum_of(a: Any, method: str = "BFGS") -> Any:
    return minimize(loss_of, np.zeros(2), args=(a,), method=method)


ENTRIES: dict[str, Callable[[Any], Any]] = {
    "least_squares, jac": lambda a: fit_of(a).jac[1, 0],
    "least_squares, grad": lambda a: fit_of(a).grad[0],
    "least_squares, optimality": lambda a: fit_of(a).optimality,
    "least_squares, jac of a sparse one": lambda a: (
        fit_of(a, jac=lambda x: csr_matrix([[1.0], [2.0 * x[0]]]), tr_solver="lsmr").jac @ np.ones(1)
    )[0],
    "minimize, hess_inv": lambda a: minimum_of(a).hess_inv[0, 1],
    "minimize, hess_inv of L-BFGS-B": lambda a: minimum_of(a, "L-BFGS-B").hess_inv.todense()[0, 1],
    "minimize, hess_inv times a vector": lambda a: (minimum_of(a, "L-BFGS-B").hess_inv @ np.ones(2))[0],
    "minimize, jac": lambda a: 2.0 * minimum_of(a).jac[0],
    "minimize, final_simplex": lambda a: minimum_of(a, "Nelder-Mead").final_simplex[0][0, 0],
    "root, fjac": lambda a: root(lambda x: x**3 - a, np.ones(2)).fjac[0, 0],
}
TAKES = [dagad.grad, dagad.jacfwd, dagad.hessian, lambda f: dagad.jacfwd(dagad.jacfwd(f))]


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("take", TAKES)
def test_other_entries_of_a_result_are_refused_when_they_are_differentiated(take: Any, name: str) -> None:
    solver, _, rest = name.partition(", ")
    text = rf"derivative of `{rest.split()[0]}` in the result of `scipy.optimize.{solver}` was asked for.*`x` and `fun`"
    with pytest.raises(dagad.NotDifferentiableError, match=f"{text}.* Write .* in its place"):
        take(ENTRIES[name])(0.7)


@pytest.mark.parametrize("take", [dagad.grad, dagad.jacfwd])
def test_entries_of_a_result_may_be_printed_and_compared(take: Any) -> None:
    def found(a: Any) -> Any:
        result, other = fit_of(a), minimum_of(a, "L-BFGS-B")
        assert result.optimality < 1.0
        assert np.isfinite(result.jac).all()
        assert "grad" in repr(result)
        assert "hess_inv" in repr(other)
        return result.x[0]

    assert take(found)(1.0) == pytest.approx(0.6)


# What is refused

BY_SCIPY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "minimize": (lambda t: optimize.minimize(lambda x: np.sum((x - t) ** 2), np.zeros(1)).x[0], "minimize"),
    "with args": (lambda t: optimize.minimize(loss_of, np.zeros(2), args=(t,)).x[0], "minimize"),
    "root": (lambda t: optimize.root(lambda x: x - t, np.zeros(1)).x[0], "root"),
    "root_scalar": (lambda t: optimize.root_scalar(lambda x: x - t, bracket=(0.0, 2.0)).root, "root_scalar"),
    "brentq": (lambda t: optimize.brentq(lambda x: x - t, 0.0, 2.0), "root_scalar"),
    "newton's method": (lambda t: optimize.newton(lambda x: x * x - t, 1.0, fprime=lambda x: 2.0 * x), "root_scalar"),
    "newton's method at the root": (lambda t: optimize.newton(lambda x: x * x - t, np.sqrt(AT * 0.3)), "root_scalar"),
    "newton's method for arrays": (lambda t: optimize.newton(lambda x: x * x - t, np.ones(2))[0], "root_scalar"),
    "root_scalar by newton": (
        lambda t: optimize.root_scalar(lambda x: x * x - t, x0=1.0, fprime=lambda x: 2.0 * x).root,
        "root_scalar",
    ),
    "a bracket": (lambda t: optimize.brentq(lambda x: x * x - 1.0, 0.0, t + 2.0), "root_scalar"),
    "a bracket of bisection": (lambda t: optimize.bisect(lambda x: x * x - 1.0, 0.0, b=t + 2.0), "root_scalar"),
    "golden sections": (lambda t: optimize.golden(lambda x: (x - t) ** 2), "minimize"),
    "brent": (lambda t: optimize.brent(lambda x, t: (x - t) ** 2, (t,)), "minimize"),
    "fminbound": (lambda t: optimize.fminbound(lambda x: (x - t) ** 2, 0.0, 5.0), "minimize"),
    "an end of fminbound": (lambda t: optimize.fminbound(lambda x: x * x, -1.0, t), "minimize"),
    "lsq_linear": (lambda t: optimize.lsq_linear(np.eye(2), t * np.ones(2)).x[0], "least_squares"),
    "fsolve": (lambda t: optimize.fsolve(lambda x: x - t, np.zeros(1))[0], "root"),
    "fixed_point": (lambda t: optimize.fixed_point(lambda x: 0.0 * x + t, 1.0), "fixed_point"),
    "least_squares": (lambda t: optimize.least_squares(lambda x: x - t, np.zeros(1)).x[0], "least_squares"),
}


@pytest.mark.parametrize("name", BY_SCIPY)
def test_solvers_of_scipys_own_are_refused_with_the_one_to_use(name: str) -> None:
    find, instead = BY_SCIPY[name]
    with pytest.raises(dagad.NotDifferentiableError, match=rf"^`scipy.optimize.*Write `dagad.solvers.{instead}`,"):
        dagad.grad(lambda t: dagad.map_sum(lambda row, t: find(row * t), ROWS, t, scheduler="sync"))(AT)


WITHOUT_ONE: dict[str, Callable[[Any], Any]] = {
    "bracket": lambda t: optimize.bracket(lambda x: (x - t) ** 2)[1],
    "line_search": lambda t: optimize.line_search(
        lambda x: (x[0] - t) ** 2, lambda x: 2.0 * (x - t), np.zeros(1), np.ones(1)
    )[0],
    "milp": lambda t: optimize.milp(t * np.ones(2)).x[0],
}


@pytest.mark.parametrize("name", WITHOUT_ONE)
@pytest.mark.parametrize("take", [dagad.jacfwd, dagad.grad])
def test_searches_of_scipys_own_are_refused_by_name(name: str, take: Any) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=rf"^`scipy.optimize.{name}` .*Write the steps of the"):
        take(WITHOUT_ONE[name])(AT)


def test_solvers_of_scipys_own_have_their_values_and_errors_where_something_else_is_traced() -> None:
    def beside(t: Any) -> Any:
        found.append(
            (
                optimize.newton(lambda x, a: x * x - a, 1.0, args=(2.0,), full_output=True)[0],
                optimize.golden(lambda x: (x - 1.0) ** 2, brack=(0.0, 2.0)),
                optimize.brentq(lambda x: x * x - 2.0, 0.0, b=2.0),
                optimize.milp(np.ones(2), bounds=optimize.Bounds(0.0, 1.0)).fun,
            )
        )
        with pytest.raises(TypeError, match=r"newton.*missing"):
            optimize.newton(lambda x: x)
        return t * found[-1][0]

    found: list[Any] = []
    assert dagad.grad(beside)(1.0) == found[0][0]
    beside(1.0)
    assert bits(list(found[0])) == bits(list(found[1]))


def drop(x: Any, a: Any) -> Any:
    return np.sum((x - a) ** 2)


CURVE = np.linspace(0.1, 1.0, 20)
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a root that there is not": (
        lambda a: root(lambda x, a: x**2 + a, np.ones(1), args=(a,)).x[0],
        r"`scipy.optimize.root` did not converge: .*Begin elsewhere",
    ),
    "iterations that run out": (
        lambda a: root_scalar(lambda x, a: x**3 - a, args=(a,), bracket=(0.0, 9.0), maxiter=2).root,
        r"`scipy.optimize.root_scalar` did not converge: .*raise `maxiter`",
    ),
    "a multiple root": (
        lambda a: (
            root_scalar(
                lambda x, a: (x - a) ** 2, args=(a,), x0=3.0, method="newton", fprime=lambda x, a: 2 * (x - a)
            ).root
        ),
        r"another slope, as it is at a multiple root.*a simple one",
    ),
    "a minimum that was not reached": (
        lambda a: minimize(loss_of, np.ones(2), args=(a,), options={"maxiter": 1}).x[0],
        r"`scipy.optimize.minimize` did not converge: .*give `jac=dagad.grad\(fun\)`",
    ),
    "a valley": (
        lambda a: minimize(lambda x: (x[0] + x[1] - a) ** 2, np.ones(2)).x[0],
        r"no derivative.*singular there",
    ),
    "a curved valley": (
        lambda a: minimize(lambda x: (x[0] * x[1] - a) ** 2, np.array([2.0, 0.1]), method="BFGS").x[0],
        r"no derivative that can be trusted.*valley of solutions.*Fix what is free",
    ),
    "a fit of which a product is fixed": (
        lambda a: least_squares(lambda q: a * CURVE - q[0] * np.exp(q[1]) * CURVE**2, np.array([2.0, 0.1])).x[0],
        r"no derivative that can be trusted.*valley of solutions.*small ridge",
    ),
    "constraints": (
        lambda a: minimize(drop, np.ones(2), args=(a,), constraints={"type": "eq", "fun": lambda x: x[0] - 1.0}).x[1],
        r"under `constraints` was asked for.*equations of Lagrange by `dagad.solvers.implicit`",
    ),
    "a bound that does not hold": (
        lambda a: minimize(drop, np.ones(1), args=(a,), bounds=[(0.7, None)]).x[0],
        r"at a bound that does not hold it.*Move the bound",
    ),
    "a loss of one's own": (
        lambda a: least_squares(lambda x: x - a, np.ones(1), loss=lambda z: np.stack([z, 1 + 0 * z, 0 * z])).x[0],
        r"with a `loss` of your own.*Choose one of \['arctan'",
    ),
    "a fit that was not finished": (
        lambda a: least_squares(lambda x: np.exp(x) - a, 5.0 * np.ones(1), max_nfev=2).x[0],
        r"`scipy.optimize.least_squares` did not converge: .*raise `max_nfev`",
    ),
    "compiled code": (
        lambda a: root_scalar(lambda x: float(x) ** 3 - float(a), bracket=(0.0, 3.0)).root,
        r"A Python number was asked for",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("take", [dagad.jacfwd, dagad.grad])
def test_a_result_without_a_derivative_is_refused_when_it_is_differentiated_only(name: str, take: Any) -> None:
    find, text = REFUSED[name]
    with pytest.raises(dagad.NotDifferentiableError, match=text):
        take(find)(AT)
    assert np.isfinite(find(AT))
    assert np.isfinite(dagad.value_and_grad(lambda a: (a**2, find(a)), has_aux=True)(AT)[0][1])


EXPONENTIALS: Any = np.linspace(0.0, 4.0, 60)
WEAK: dict[str, tuple[Callable[[Any], Any], Any, Any]] = {  # equations of next to no slope, each of one solution
    "two rates alike": (
        lambda a: (
            least_squares(
                lambda q: (
                    a * (3.0 * np.exp(-EXPONENTIALS) + 2.0 * np.exp(-1.3 * EXPONENTIALS))
                    - q[0] * np.exp(-q[1] * EXPONENTIALS)
                    - q[2] * np.exp(-q[3] * EXPONENTIALS)
                ),
                np.array([3.2, 1.1, 2.1, 1.4]),
                **dict.fromkeys(("xtol", "ftol", "gtol"), 1e-15),
            ).x
        ),
        1.0,
        [3.0, 0.0, 2.0, 0.0],
    ),
    "columns alike": (
        lambda a: (
            least_squares(
                lambda q: (1.0 / (np.arange(8.0)[:, None] + np.arange(1.0, 5.0))) @ (q - a * np.arange(4.0)), np.ones(4)
            ).x
        ),
        1.0,
        np.arange(4.0),
    ),
    "a narrow valley with a bottom": (
        lambda a: (
            minimize(
                lambda q: (a - q[0]) ** 2 + 1e3 * (q[1] - q[0] ** 2) ** 2,
                np.ones(2),
                method="Newton-CG",
                jac=lambda q: np.stack([2.0 * (q[0] - a) - 4e3 * q[0] * (q[1] - q[0] ** 2), 2e3 * (q[1] - q[0] ** 2)]),
                tol=1e-12,
            ).x
        ),
        1.0,
        [1.0, 2.0],
    ),
}


@pytest.mark.parametrize("name", WEAK)
def test_a_solution_that_is_the_only_one_has_its_derivative_where_equations_have_next_to_no_slope(name: str) -> None:
    find, at, expected = WEAK[name]
    np.testing.assert_allclose(dagad.jacfwd(find)(at), expected, rtol=1e-3, atol=1e-3)
