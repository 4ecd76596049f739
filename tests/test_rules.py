"""Special functions: are their derivatives right, and computed once however often they are pulled?"""

from __future__ import annotations

from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
import scipy.special
from autograd.extend import defvjp, primitive
from autograd.scipy.special import digamma, gammaln, psi

import dagad
from dagad._engines import special
from dagad._engines.special import trigamma
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
def test_all_orders_are_right(function: Any) -> None:
    order = {gammaln: 0}.get(function, 1)  # gammaln is the one before psi, of which polygamma counts the derivatives
    onp.testing.assert_allclose(
        dagad.grad(lambda x: np.sum(function(x)))(X), scipy.special.polygamma(order, X), rtol=1e-13
    )
    second = dagad.hvp(lambda x: np.sum(function(x)), X, onp.ones(5))
    onp.testing.assert_allclose(second, scipy.special.polygamma(order + 1, X), rtol=1e-13)
    third = dagad.grad(lambda x: np.sum(dagad.hvp(lambda x: np.sum(function(x)), x, onp.ones(5))))(X)
    onp.testing.assert_allclose(third, scipy.special.polygamma(order + 2, X), rtol=1e-12)
    check_grads(function, X, order=2)


def test_a_hessian_computes_each_derivative_once() -> None:
    calls = []

    @primitive  # type: ignore[untyped-decorator]  # autograd has no types
    def cube(x: Any) -> Any:
        return x**3

    def derivative(x: Any) -> Any:
        calls.append(1)
        return 3 * x**2

    defvjp(cube, special._once(derivative))
    value, pullback = dagad.vjp(cube, X)
    for _ in range(3):
        (cotangent,) = pullback(onp.ones(5))
    assert len(value) == 5
    onp.testing.assert_allclose(cotangent, 3 * X**2)
    assert len(calls) == 1


def test_a_rule_of_the_users_is_not_replaced() -> None:
    assert not special._is_autograds(trigamma)
    assert special._is_autograds(autograd.scipy.special.gamma)
    assert not special._is_autograds(len)
