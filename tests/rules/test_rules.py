"""Rules beside autograd's: are derivatives right that autograd has wrong, and autograd's own tables left alone?"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import autograd
import autograd.numpy as np
import dask.array as da
import numpy as onp
import pytest
import scipy.special
from autograd import core
from autograd.extend import defjvp, defvjp, primitive
from autograd.scipy import special, stats
from autograd.scipy.special import digamma, gammaln, psi
from dask.delayed import delayed

import dagad
from dagad._tracing import rules
from dagad._tracing.rules import trigamma
from dagad.testing import check_grads

X = onp.array([0.3, 1.0, 2.5, 7.0, 40.0])


def test_trigamma_is_that_of_scipy() -> None:
    at = onp.concatenate([onp.geomspace(1e-8, 1e12, 2001), onp.linspace(0.01, 30.0, 2001)])
    onp.testing.assert_allclose(trigamma(at), scipy.special.polygamma(1, at), rtol=1e-14)
    assert trigamma(onp.inf) == 0.0
    assert onp.isnan(trigamma(onp.nan))
    onp.testing.assert_allclose(trigamma(onp.array([-0.5, 2.0])), scipy.special.polygamma(1, onp.array([-0.5, 2.0])))
    assert trigamma(onp.ones(2, onp.float32)).dtype == onp.float32


@pytest.mark.parametrize("function", [gammaln, psi, digamma])
def test_derivatives_of_gamma_functions_are_right_to_all_orders(function: Any) -> None:
    order = {gammaln: 0}.get(function, 1)  # gammaln is the one before psi, of which polygamma counts the derivatives
    onp.testing.assert_allclose(
        dagad.grad(lambda x: np.sum(function(x)))(X), scipy.special.polygamma(order, X), rtol=1e-13
    )
    second = dagad.hvp(lambda x: np.sum(function(x)), X, onp.ones(5))
    onp.testing.assert_allclose(second, scipy.special.polygamma(order + 1, X), rtol=1e-13)
    third = dagad.grad(lambda x: np.sum(dagad.hvp(lambda x: np.sum(function(x)), x, onp.ones(5))))(X)
    onp.testing.assert_allclose(third, scipy.special.polygamma(order + 2, X), rtol=1e-12)
    check_grads(function, X, order=2)


def test_a_pullback_computes_the_derivative_of_a_primitive_once() -> None:
    calls = []

    @primitive  # type: ignore[untyped-decorator]  # autograd has no types
    def cube(x: Any) -> Any:
        return x**3

    def derivative(x: Any) -> Any:
        calls.append(1)
        return 3 * x**2

    defvjp(cube, rules._once(derivative))
    value, pullback = dagad.vjp(cube, X)
    for _ in range(3):
        (cotangent,) = pullback(onp.ones(5))
    assert len(value) == 5
    onp.testing.assert_allclose(cotangent, 3 * X**2)
    assert len(calls) == 1


# --- chi-squared, orders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pdf", "logpdf"])
@pytest.mark.parametrize("df", [1.0, 2.5, 4.0, onp.array([0.7, 2.0, 3.3, 5.0, 9.9])])
def test_the_derivative_of_chi_squared_is_right_for_all_degrees_of_freedom(name: str, df: Any) -> None:
    fun, step = getattr(stats.chi2, name), 1e-6
    slope = (fun(X + step, df) - fun(X - step, df)) / (2 * step)
    onp.testing.assert_allclose(dagad.grad(lambda x: np.sum(fun(x, df)))(X), slope, rtol=1e-5, atol=1e-9)
    onp.testing.assert_allclose(dagad.jvp(lambda x: fun(x, df), X, onp.ones(5))[1], slope, rtol=1e-5, atol=1e-9)
    check_grads(lambda x: fun(x, df), X, order=2)


def test_the_derivative_of_chi_squared_is_right_in_chunks(scheduler: Any) -> None:
    def loss(scale: Any) -> Any:
        return dagad.reduce_sum(
            lambda rows, s: np.sum(stats.chi2.logpdf(rows * s, 2.5)), X, scale, grainsize=2, scheduler=scheduler
        )

    expected = onp.sum(X * (2.5 - 1.3 * X - 2.0) / (2.0 * 1.3 * X))
    assert dagad.grad(loss)(1.3) == pytest.approx(expected)
    assert autograd.grad(loss)(1.3) == pytest.approx(expected)


def test_autograd_keeps_its_own_rule_for_chi_squared() -> None:
    assert dagad.grad(lambda x: stats.chi2.logpdf(x, 2.5))(1.3) == pytest.approx(-0.3076923076923077)
    assert autograd.grad(lambda x: stats.chi2.logpdf(x, 2.5))(1.3) == 0.0


def test_degrees_of_freedom_and_orders_without_a_derivative_are_refused() -> None:
    refused = [
        ("logpdf", lambda v: stats.chi2.logpdf(1.3, v)),
        ("pdf", lambda v: stats.chi2.pdf(v, v)),
        ("iv", lambda v: special.iv(v, 0.7)),  # 0 for autograd, -0.29 in truth
        ("ive", lambda v: special.ive(v, v)),
        ("jv", lambda v: special.jn(v, 0.7)),
        ("polygamma", lambda v: special.polygamma(v, 0.7)),
    ]
    for name, fun in refused:
        with pytest.raises(dagad.NotDifferentiableError, match=f"no derivative of `{name}`.*defvjp"):
            dagad.grad(lambda t, f=fun: dagad.reduce_sum(lambda r, t: f(t), onp.ones(1), t, scheduler="sync"))(2.0)
        with pytest.raises(dagad.NotDifferentiableError, match=f"no derivative of `{name}`.*defvjp"):
            dagad.jvp(fun, 2.0, 1.0)
    assert dagad.grad(lambda x: special.iv(1.5, x))(0.7) == pytest.approx(scipy.special.ivp(1.5, 0.7))


# --- whose rule counts ------------------------------------------------------------------------------------------------


def test_a_rule_that_a_user_gives_later_is_used() -> None:
    before = dict(core.primitive_vjps), dict(core.primitive_jvps)
    assert dagad.grad(gammaln)(2.5) == pytest.approx(scipy.special.psi(2.5))
    try:
        defvjp(gammaln, lambda ans, x: lambda g: g * 100.0)
        assert dagad.grad(gammaln)(2.5) == 100.0
        assert dagad.jvp(gammaln, 2.5, 1.0)[1] == 100.0
        where = rules._traced(onp.where)
        defjvp(where, None, lambda g, ans, c, x, y: 7.0 * g, lambda g, ans, c, x, y: g)
        assert dagad.jvp(lambda x: np.where(True, x, 0.0), 2.5, 1.0)[1] == 7.0
    finally:
        for table, old in zip((core.primitive_vjps, core.primitive_jvps), before, strict=True):
            table.update(old)
    assert dagad.grad(gammaln)(2.5) == pytest.approx(scipy.special.psi(2.5))


def test_rules_of_autograds_are_known_from_others() -> None:
    autograds = [core.primitive_vjps[fun] for fun in (gammaln, special.iv, np.add, stats.norm.pdf)]
    assert all(map(rules.is_autograds, autograds))
    assert rules.is_autograds(core.primitive_jvps[np.max])

    @primitive  # type: ignore[untyped-decorator]  # autograd has no types
    def mine(x: Any) -> Any:
        return x

    defvjp(mine, lambda ans, x: lambda g: g)
    defjvp(mine, lambda g, ans, x: g)
    assert not rules.is_autograds(core.primitive_vjps[mine])
    assert not rules.is_autograds(core.primitive_jvps[mine])


def test_a_module_that_another_thread_imports_is_taken_up_when_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    read, module = list[str](), ModuleType("half_made")
    spec: Any = ModuleSpec("half_made", None)
    module.__spec__ = spec
    monkeypatch.setitem(sys.modules, "half_made", module)

    def take_up(module: ModuleType) -> bool:
        read.append(module.__name__)
        return True

    monkeypatch.setitem(rules.HOMES, "half_made", take_up)
    for being_imported, expected in ((True, []), (False, ["half_made"]), (False, ["half_made"])):
        spec._initializing = being_imported
        rules.learn_rules()
        assert read == expected


def half(x: Any) -> Any:
    return np.sum(np.where(x > 0.0, x, 0.0))


@pytest.mark.parametrize("order", [1, 2])
def test_cotangents_of_numbers_have_the_shape_that_rules_expect(order: int) -> None:
    def total(theta: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: half(t) * np.sum(rows), onp.arange(4.0), theta**order, grainsize=2)

    assert dagad.grad(total)(0.5) == 6.0 * order * 0.5 ** (order - 1)
    assert dagad.grad(half)(0.5) == 1.0
    w = delayed(0.5)
    assert dagad.gradient(delayed(half)(w), w).compute(scheduler="sync") == 1.0
    x = da.from_array(onp.array(0.5))
    assert dagad.gradient(da.where(x > 0.0, x, 0.0).sum(), x).compute(scheduler="sync") == 1.0
    if order == 2:
        assert dagad.hvp(total, 0.5, 1.0) == 12.0


@pytest.mark.parametrize("ive", [scipy.special.ive, special.ive], ids=["scipy", "autograd"])
def test_a_scaled_bessel_function_of_complex_numbers_is_refused_in_every_mode(ive: Any) -> None:
    """It is scaled by the real part: autograd's rule for its tangent is that of real numbers."""
    at = onp.array([0.5 + 0.3j, 1.0 - 0.2j])

    def loss(z: Any) -> Any:
        return dagad.reduce_sum(lambda rows, z: np.sum(np.real(ive(1.5, z)) * rows), onp.ones(1), z, scheduler="sync")

    for mode in (lambda: dagad.grad(loss)(at), lambda: dagad.jvp(loss, at, at), lambda: dagad.hvp(loss, at, at)):
        with pytest.raises(dagad.NotDifferentiableError, match="derivative of `ive`"):
            mode()


def test_the_largest_number_lies_in_the_last_bin_of_a_histogram_for_its_weights_too() -> None:
    """The edges that are differentiated may end a last bit below it; it is numpy's own that say where numbers lie."""
    for seed in range(100):
        rng = onp.random.default_rng(seed)
        x, n_bins = rng.normal(size=12), int(rng.integers(2, 9))
        heights = onp.arange(1.0, n_bins + 1)
        held = [onp.argmax(onp.histogram(x, bins=n_bins, weights=one)[0]) for one in onp.eye(12)]
        found = dagad.grad(lambda w, x=x, n=n_bins, h=heights: onp.sum(onp.histogram(x, bins=n, weights=w)[0] * h))
        assert (found(onp.ones(12)) == heights[held]).all(), seed
