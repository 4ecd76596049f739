"""What a user tries in the first hour, small, and all that is read of it where it fails."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import autograd.numpy as anp
import dask
import numpy as np
import pandas as pd
import pytest
from dask.delayed import delayed

import dagad

X, Y, THETA = np.arange(12.0).reshape(6, 2), np.arange(6.0), np.ones(2)
TABLE = pd.DataFrame({"a": Y, "b": Y + 1.0})
A: Any = delayed(2.0)
MOST_LINES = 12  # above the message of what a chunk raised


@pytest.fixture(autouse=True)
def _as_users_see_it() -> Iterator[None]:
    with dask.config.set({"dagad.full-tracebacks": False}):
        yield


def scaled(rows: Any, theta: Any) -> Any:
    return anp.sum(rows * theta)


def misses(rows: Any, theta: Any) -> Any:
    raise LookupError("no such station")


def cut(fun: Any, data: Any, *shared: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"grainsize": 2, "scheduler": "threads"}
    return dagad.reduce_sum(fun, data, *shared, **given | options)


def grad(fun: Any, data: Any, theta: Any = THETA, **options: Any) -> Any:
    return dagad.grad(lambda theta: cut(fun, data, theta, **options))(theta)


def told(act: Callable[[], Any]) -> tuple[Exception, str, int]:
    """Return what a call raises, all that a user reads of it, and how many lines of it stand above the message."""
    try:
        act()
    except Exception as error:
        lines = "".join(traceback.format_exception(error)).splitlines()
        name = f"{type(error).__module__}.{type(error).__name__}".removeprefix("builtins.")
        return error, "\n".join(lines), next(at for at, text in enumerate(lines) if text.startswith(name))
    raise AssertionError("nothing was raised")
