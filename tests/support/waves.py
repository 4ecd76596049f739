"""A sum of waves over nine rows, its value and its slope; for tests of what a chunk function carries."""

from __future__ import annotations

from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp

ROWS = onp.linspace(-1.0, 2.0, 9)


def wave(rows: Any, t: Any) -> Any:
    return np.sum(np.sin(rows * t) * t)


def expected_at(t: float) -> tuple[float, float]:
    return float(wave(ROWS, t)), float(autograd.grad(lambda t: wave(ROWS, t))(t))
