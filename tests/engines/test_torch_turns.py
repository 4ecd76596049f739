"""Chunks on threads may differentiate with torch's forward mode, whose levels are those of the process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch._functorch import eager_transforms
from torch.autograd import forward_ad

import dagad

X, T = np.random.default_rng(0).normal(size=(64, 3)), np.array([0.3, -0.7, 1.1])
func: Any = torch.func  # it has few types


def by_jvp(rows: Any, t: Any) -> Any:
    return func.jvp(lambda u: torch.sin(rows @ u).sum(), (t,), (torch.ones_like(t),))[1]


def by_hessian(rows: Any, t: Any) -> Any:
    return func.hessian(lambda u: torch.sin(rows @ u).sum())(t).sum()


def by_dual_numbers(rows: Any, t: Any) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(t, torch.ones_like(t))
        return forward_ad.unpack_dual(torch.sin(rows @ dual).sum()).tangent


def slopes(fun: Any, t: np.ndarray, scheduler: str) -> Any:
    loss = dagad.value_and_grad(lambda t: dagad.reduce_sum(fun, X, t, grainsize=2, engine="torch", scheduler=scheduler))
    return loss(t)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # by torch's own rules
@pytest.mark.parametrize("fun", [by_jvp, by_hessian, by_dual_numbers])
def test_forward_mode_of_torch_in_chunks_on_threads_has_the_same_bits(fun: Any) -> None:
    before = eager_transforms._jvp_with_argnums, forward_ad.dual_level
    value, slope = slopes(fun, T, "sync")
    moved = [slopes(fun, T + 1e-6 * step, "sync")[0] for step in (np.eye(3), -np.eye(3)) for step in step]
    assert slope == pytest.approx((np.array(moved[:3]) - moved[3:]) / 2e-6, rel=1e-6, abs=1e-6)
    for _ in range(10):
        ours = slopes(fun, T, "threads")
        assert ours[0] == value
        np.testing.assert_array_equal(ours[1], slope)
    assert (eager_transforms._jvp_with_argnums, forward_ad.dual_level) == before
