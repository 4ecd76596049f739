"""What torch says of a tensor: whether it is being differentiated, and what it stands for."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from dagad._engines.xla import lines
from dagad._errors import NotDifferentiableError
from dagad._tracing.own_rules import REFUSERS, of_own_rule
from dagad._types import Array

levels: Any = torch._C._functorch  # where torch tells what tensors of torch.func stand for


def is_inside() -> bool:
    """Return whether a transform of torch's runs in this thread, as around each chunk, or records."""
    return levels.maybe_current_level() is not None


def is_differentiated(tensor: torch.Tensor) -> bool:
    """Return whether torch differentiates with respect to what a tensor was computed from, in reverse mode."""
    while levels.is_functorch_wrapped_tensor(tensor):
        if tensor.requires_grad:
            return True
        tensor = levels.get_unwrapped(tensor)
    return False


def opened(tensor: torch.Tensor) -> Any:
    """Return the tensor that one of transforms stands for."""
    while levels.is_functorch_wrapped_tensor(tensor):
        tensor = levels.get_unwrapped(tensor)
    return tensor


def refuse_derivatives(tensor: Array, what: str, how: str) -> None:
    """Refuse a tensor that is being differentiated, given to what has a rule that torch does not know."""
    if is_differentiated(tensor) or tensor.requires_grad or forward_ad.unpack_dual(tensor).tangent is not None:
        raise NotDifferentiableError(of_own_rule(lines.here(), what, how, "torch"))


REFUSERS[torch.Tensor] = REFUSERS[torch.nn.Parameter] = refuse_derivatives
