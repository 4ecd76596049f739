"""Every mode of differentiation, of a function of one number, with what it must give by plain autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import numpy as onp

import dagad
from support.waiting import PATIENCE

AT = 0.7
Loss = Callable[[Any], Any]


def _evaluated(loss: Loss) -> Any:
    evaluation = dagad.evaluate(loss, AT)
    return evaluation.value(PATIENCE), evaluation.gradient(PATIENCE)


def _lazily(loss: Loss) -> Any:
    evaluation = dagad.evaluate(loss, AT, lazy=True)
    return evaluation.value(PATIENCE), evaluation.gradient(PATIENCE)


def _pulled(loss: Loss) -> Any:
    value, pullback = dagad.vjp(loss, AT)
    return value, pullback(1.0)[0]


# What each gives, as the orders of the derivatives.
MODES: dict[str, tuple[Callable[[Loss], Any], tuple[int, ...]]] = {
    "value_and_grad": (lambda loss: dagad.value_and_grad(loss)(AT), (0, 1)),
    "vjp": (_pulled, (0, 1)),
    "evaluate": (_evaluated, (0, 1)),
    "evaluate, lazy": (_lazily, (0, 1)),
    "jvp": (lambda loss: dagad.jvp(loss, (AT,), (1.0,)), (0, 1)),
    "jacfwd": (lambda loss: dagad.jacfwd(loss)(AT), (1,)),
    "jacrev": (lambda loss: dagad.jacrev(loss)(AT), (1,)),
    "hvp": (lambda loss: dagad.hvp(loss, (AT,), (1.0,)), (2,)),
    "hessian": (lambda loss: dagad.hessian(loss)(AT), (2,)),
    "grad of grad": (lambda loss: dagad.grad(dagad.grad(loss))(AT), (2,)),
    "jvp of jvp": (lambda loss: dagad.jvp(lambda t: dagad.jvp(loss, (t,), (1.0,))[1], (AT,), (1.0,)), (1, 2)),
    "autograd's grad": (lambda loss: autograd.value_and_grad(loss)(AT), (0, 1)),
}


def derivatives(whole: Loss) -> list[float]:
    """Return value, slope and curvature of the function before it was cut into chunks."""
    slope = autograd.grad(whole)
    return [float(whole(AT)), float(slope(AT)), float(autograd.grad(slope)(AT))]


def numbers(result: Any) -> list[float]:
    """Return the numbers that a mode gave."""
    return [float(onp.asarray(part).item()) for part in (result if isinstance(result, tuple) else (result,))]


def check(mode: str, loss: Loss, expected: list[float], tolerance: float = 1e-9) -> None:
    """Raise unless a mode gives what is expected."""
    run, orders = MODES[mode]
    found, right = numbers(run(loss)), [expected[order] for order in orders]
    assert onp.allclose(found, right, rtol=tolerance, atol=tolerance), f"{mode}: {found}, right is {right}"
