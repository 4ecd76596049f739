"""Rules of users, met by what jax or torch follows: is no derivative taken of the code that they stand for?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from autograd.differential_operators import checkpoint
from autograd.extend import JVPNode, VJPNode, defjvp, defvjp, primitive

import dagad
from dagad import solvers
from dagad._tracing.own_rules import has_own_rule
from dagad._tracing.private import notrace_primitives
from dagad.extend import explicit
from dagad.solvers import implicit
from dagad.testing import check_grads

A = 2.0  # whose root is 1, with the slope 1/4
SLOPE, CURVATURE = 0.25, -6.0 / 64.0


def search(a: Any) -> Any:
    where = torch.where if isinstance(a, torch.Tensor) else np.where
    low, high = 0.0 * a, 0.0 * a + 10.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        is_above = middle**3 + middle > a
        low, high = where(is_above, low, middle), where(is_above, middle, high)
    return 0.5 * (low + high)


def residual(x: Any, a: Any) -> Any:
    return x**3 + x - a


@explicit
def by_hand(a: Any) -> Any:
    x = search(a)
    return x, lambda seed: (seed / (3.0 * x**2 + 1.0),)


by_rule = primitive(search)
defvjp(by_rule, lambda ans, a: lambda seed: seed / (3.0 * ans**2 + 1.0))
defjvp(by_rule, lambda tangent, ans, a: tangent / (3.0 * ans**2 + 1.0))
RULES: dict[str, Callable[[Any], Any]] = {
    "a residual": implicit(search, residual),
    "a residual, of what is in a closure": lambda a: implicit(lambda: search(a), lambda x: residual(x, a))(),
    "a pullback": by_hand.value,
    "a primitive": by_rule,
}
TRANSFORMS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "grad": lambda fun: dagad.grad(fun)(A),
    "jvp": lambda fun: dagad.jvp(fun, (A,), (1.0,)),
    "jacfwd": lambda fun: dagad.jacfwd(fun)(A),
    "hessian": lambda fun: dagad.hessian(fun)(A),
    "vmap": lambda fun: dagad.vmap(dagad.grad(fun))(np.array([A, 3.0])),
}


def total(inner: Callable[[Any], Any], engine: str | None) -> Callable[[Any], Any]:
    def of(a: Any) -> Any:
        return dagad.reduce_sum(lambda rows, a: (rows * inner(a)).sum(), np.ones(4), a, grainsize=2, engine=engine)

    return of


@pytest.mark.parametrize("rule", RULES)
def test_rules_of_users_count_with_the_default_engine(rule: str) -> None:
    assert dagad.grad(total(RULES[rule], None))(A) == pytest.approx(4.0 * SLOPE)
    if rule != "a pullback":  # what it has computed is followed in its turn
        assert dagad.hessian(total(RULES[rule], None))(A) == pytest.approx(4.0 * CURVATURE)


@pytest.mark.parametrize("engine", ["jax", "torch"])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("rule", RULES)
def test_rules_of_users_are_refused_where_another_library_differentiates(
    rule: str, transform: str, engine: str
) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=f"{engine} follows the code instead.* Leave out `engine=`"):
        TRANSFORMS[transform](total(RULES[rule], engine))


@pytest.mark.parametrize("engine", ["jax", "torch"])
@pytest.mark.parametrize("rule", RULES)
def test_rules_of_users_leave_values_alone(rule: str, engine: str) -> None:
    assert total(RULES[rule], engine)(A) == pytest.approx(4.0)

    def beside(a: Any) -> Any:  # nothing is differentiated that goes there
        return dagad.reduce_sum(lambda rows, a, b: (rows * a * RULES[rule](b)).sum(), np.ones(4), a, A, engine=engine)

    assert dagad.grad(beside)(3.0) == pytest.approx(4.0)


def test_rules_of_users_are_refused_by_the_setting_too_and_for_rows() -> None:
    sliced = total(RULES["a residual"], None)
    with dask.config.set({"dagad.engine": "jax"}), pytest.raises(dagad.NotDifferentiableError, match="the setting"):
        dagad.grad(sliced)(A)

    def of_rows(rows: Any) -> Any:
        return dagad.reduce_sum(lambda rows: np.sum(RULES["a pullback"](rows)), rows, grainsize=2, engine="jax")

    with pytest.raises(dagad.NotDifferentiableError, match="`by_hand`, which is marked explicit"):
        dagad.grad(of_rows)(np.array([2.0, 3.0, 4.0]))


def test_refusals_that_a_function_catches_are_raised_all_the_same() -> None:
    def caught(a: Any) -> Any:
        try:
            return by_rule(a)
        except dagad.NotDifferentiableError:
            return 0.0 * a

    with pytest.raises(dagad.NotDifferentiableError, match="`search`, which has a rule of its own"):
        dagad.grad(total(caught, "jax"))(A)


def test_rules_of_users_are_refused_in_transforms_of_jax_and_torch_themselves() -> None:
    steps = implicit(lambda a: jnp.round(a), lambda x, a: x - a)
    for fun in (steps, jax.jit(steps)):
        with pytest.raises(dagad.NotDifferentiableError, match="jax follows the code"):
            jax.grad(fun)(A)
        assert fun(A) == 2.0
    with pytest.raises(dagad.NotDifferentiableError, match="torch follows the code"):
        torch.func.grad(implicit(torch.round, lambda x, a: x - a))(torch.tensor(A))


def test_primitives_with_rules_that_are_derivatives_of_their_code_go_on() -> None:
    assert dagad.grad(total(checkpoint(lambda a: a**2), "jax"))(A) == pytest.approx(16.0)
    stopped = primitive(lambda a: a * 1.0)
    for kind in (VJPNode, JVPNode):
        notrace_primitives[kind].add(stopped)
    assert has_own_rule(stopped)
    assert not has_own_rule(primitive(lambda a: a))
    with pytest.raises(dagad.NotDifferentiableError, match="has a rule of its own"):
        dagad.grad(total(stopped, "jax"))(A)


SOLVERS: dict[str, Callable[[Any], Any]] = {
    "root": lambda a: solvers.root(residual, np.ones(1), args=(a,)).x[0],
    "root_scalar": lambda a: solvers.root_scalar(lambda x: residual(x, a), x0=1.0, fprime=lambda x: 3.0 * x**2 + 1.0),
    "fixed_point": lambda a: solvers.fixed_point(lambda x, a: 0.5 * (x + a / x), 1.0, args=(a,)),
    "minimize": lambda a: solvers.minimize(lambda x: (x[0] - a) ** 2, np.ones(1)).x[0],
    "least_squares": lambda a: solvers.least_squares(lambda x: x - a, np.ones(1)).x[0],
    "solve_ivp": lambda a: solvers.solve_ivp(lambda t, y: -a * y, (0.0, 1.0), np.ones(1)).y[0, -1],
    "odeint": lambda a: solvers.odeint(lambda y, t, a: -a * y, np.ones(1), np.array([0.0, 1.0]), args=(a,))[-1, 0],
    "quad": lambda a: solvers.quad(lambda x: x, 0.0, a)[0],
    "CubicSpline": lambda a: solvers.CubicSpline(np.arange(4.0), np.arange(4.0))(a),
    "PchipInterpolator": lambda a: solvers.PchipInterpolator(np.arange(4.0), np.arange(4.0))(a),
    "interp1d": lambda a: solvers.interp1d(np.arange(4.0), np.arange(4.0))(a),
}


@pytest.mark.parametrize("engine", ["jax", "torch"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_of_scipys_name_the_line_that_calls_them_in_an_engine_of_other_arrays(
    solver: str, engine: str, capfd: pytest.CaptureFixture[str]
) -> None:
    what = f"`dagad.solvers.{solver}`" if solver not in ("CubicSpline", "PchipInterpolator") else "a spline"
    for derive in (dagad.value_and_grad, lambda fun: fun):
        with pytest.raises(dagad.NotDifferentiableError, match=f"Line .* calls {what}.* {engine} follows"):
            derive(total(SOLVERS[solver], engine))(A)
    assert not capfd.readouterr().err


def test_explicit_functions_refuse_what_they_have_in_a_closure() -> None:
    def closing(a: Any) -> Any:
        return explicit(lambda b: (search(a * b), lambda seed: (seed * a,))).value(1.0)

    def closing_beside(a: Any) -> Any:
        return explicit(lambda b: (search(a * b), lambda seed: (seed * a,))).value(a)

    for fun in (closing, closing_beside):
        for derive in (dagad.grad, dagad.jacfwd):
            with pytest.raises(dagad.ClosureError, match=r"in its closure.* Pass the value to the function"):
                derive(fun)(A)
            with pytest.raises(dagad.ClosureError, match="in its closure"):
                derive(total(fun, None))(A)
    check_grads(lambda a: by_hand.value(a) * a, A)
