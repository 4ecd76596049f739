"""Autograd as it is without dagad, to compare with what it is while and after dagad runs."""

from __future__ import annotations

from typing import Any

import autograd.numpy as np
import numpy as onp
from autograd import core, tracer
from autograd.numpy import numpy_vjps, numpy_wrapper
from autograd.numpy.numpy_boxes import ArrayBox

from dagad._tracing.patches import patches

DATA = onp.linspace(0.0, 1.0, 8)


def state() -> dict[str, Any]:
    """Return what dagad changes while it runs."""
    return {
        "counter": (id(tracer.trace_stack), [key for key in vars(tracer.trace_stack) if key != "top"]),
        "operators": [(f, f.__code__, f.__kwdefaults__) for f in (ArrayBox.__pow__, ArrayBox.__rpow__)],
        "helpers": (numpy_wrapper.metadata, numpy_vjps.unbroadcast),
        "rules": [dict(core.primitive_vjps), dict(core.primitive_jvps)],
    }


STOCK = state()


def is_stock() -> bool:
    now = state()
    rules = now.pop("rules")
    kept = all(new[fun] is rule for new, old in zip(rules, STOCK["rules"], strict=True) for fun, rule in old.items())
    return kept and now == {key: value for key, value in STOCK.items() if key != "rules"} and not patches.depth


def cube(rows: Any, t: Any) -> Any:
    return np.sum(rows) * t**3
