"""Functions of tensors, and a rule of a user's own, for tests of the torch engine."""

from __future__ import annotations

from typing import Any

import numpy as onp
import torch

ROWS = onp.linspace(0.1, 2.0, 24)


def wave(rows: Any, z: Any) -> Any:
    return torch.sum(torch.exp(rows * z) * torch.conj(z) ** 2)


class Cubed(torch.autograd.Function):
    """A user's own rule: no forward mode, and none for many at once."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        del output
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        (x,) = ctx.saved_tensors
        return cotangents[0] * 3.0 * x**2
