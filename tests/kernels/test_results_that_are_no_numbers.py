"""What a chunk function returns by mistake is refused in every mode: on a cluster Dask would wait for it for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad

MISTAKES: dict[str, Callable[..., Any]] = {
    "a generator": lambda rows, t: (row * t for row in rows),
    "a lock in a dict": lambda rows, t: {"sum": np.sum(rows) * t, "lock": threading.Lock()},
    "a string": lambda rows, t: "abc",
    "an array of objects": lambda rows, t: np.array([rows[0], None], dtype=object),
    "a masked array": lambda rows, t: np.ma.array([1.0, 2.0], mask=[False, True]),
    "nothing": lambda rows, t: None,
}
FORWARD: dict[str, Callable[[Any], Any]] = {
    "jvp": lambda f: dagad.jvp(f, (2.0,), (1.0,)),
    "hvp": lambda f: dagad.hvp(f, (2.0,), (1.0,)),
    "jacfwd": lambda f: dagad.jacfwd(f)(2.0),
    "gradient of a gradient": lambda f: dagad.grad(dagad.grad(f))(2.0),
    "gradient": lambda f: dagad.grad(f)(2.0),
    "value": lambda f: f(2.0),
}


@pytest.mark.parametrize("mode", FORWARD)
def test_a_chunk_function_that_returns_no_numbers_is_refused_in_every_mode(mode: str, scheduler: Any) -> None:
    for mistake in MISTAKES.values():

        def total(t: Any, mistake: Any = mistake) -> Any:
            return dagad.reduce_sum(mistake, np.arange(6.0), t, grainsize=2, scheduler=scheduler)

        with pytest.raises(dagad.DagadError, match=r"can't be summed.*Return|nothing to sum.*Return"):
            FORWARD[mode](total)
