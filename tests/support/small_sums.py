"""A small sum and its gradient, for tests of what goes wrong in one."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np

import dagad
from dagad import reduce_sum

X = np.arange(6.0)


def squares(rows: Any, theta: Any) -> Any:
    return anp.sum((rows - theta) ** 2)


def total(fun: Any, theta: Any = 1.0, sliced: Any = X, *shared: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"grainsize": 2, "scheduler": "sync"}
    return reduce_sum(fun, sliced, theta, *shared, **given | options)


def grad(fun: Any, theta: Any = 1.0, sliced: Any = X, **options: Any) -> Any:
    return dagad.grad(lambda theta: total(fun, theta, sliced, **options))(theta)
