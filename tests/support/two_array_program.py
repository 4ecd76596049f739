"""One program of two arrays, as a Dask graph and as a function: for tests of what is derived from graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import autograd.numpy as np
import numpy as onp
from dask.delayed import delayed

A, B = onp.array([0.5, -1.0, 2.0]), onp.array([1.5, 0.25, -0.75])


class Pair(NamedTuple):
    first: Any
    second: Any


def scale(x: Any, y: Any) -> Any:
    return np.sin(x) * y


def total(*parts: Any) -> Any:
    return sum([np.sum(part) for part in parts])


def split(x: Any) -> Any:
    return x[0] * x, np.exp(x[1:])


def combine(parts: Any, options: Any) -> Any:
    again = np.sum(parts[1]["again"]) ** options.get("power", 1)
    return np.sum(parts[0] * options["weight"]) * again + options["offset"]


def program(a: Any, b: Any, lift: Callable[[Any], Callable[..., Any]], nout: Callable[[Any], Any], **more: Any) -> Any:
    """A graph with fan-outs, several outputs, nested arguments, keyword arguments and operators; `more`: options."""
    scaled = lift(scale)(a, y=b)
    left, right = nout(split)(scaled)
    options = {"weight": left, "offset": lift(total)(a, b), **more}
    return lift(combine)([scaled, {"again": right}], options) * lift(total)(scaled, b) + lift(total)(left)


def as_graph(a: Any, b: Any, **more: Any) -> Any:
    return program(a, b, delayed, lambda f: delayed(f, nout=2), **more)


def as_function(a: Any, b: Any, **more: Any) -> Any:
    return program(a, b, lambda f: f, lambda f: f, **more)


def where(scheduler: Any) -> dict[str, Any]:
    """Return how Dask is told where to compute."""
    return {"scheduler": scheduler} if isinstance(scheduler, str) else {"scheduler": scheduler.get}
