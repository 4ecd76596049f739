"""Losses whose chunks wait at gates or write down what they do; for tests of evaluations."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defvjp, primitive

import dagad
from dagad.extend import explicit
from support.waiting import PATIENCE as PATIENCE, until as until

LOCAL = ["sync", "threads"]
X = np.arange(8.0)


def evaluation_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("dagad")]


def squares(rows: Any, theta: Any) -> Any:
    return anp.sum((rows - theta) ** 2)


def loss_on(scheduler: Any, fun: Any = squares, **options: Any) -> Callable[[Any], Any]:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(fun, X, theta, grainsize=1, scheduler=scheduler, **options)

    return loss


class Steps:
    """A chunk function whose pullbacks wait at a gate, and a record of what was run in which order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.values, self.pullbacks = threading.Event(), threading.Event()

    def fun(self) -> Any:
        @explicit
        def fun(rows: Any, theta: Any) -> Any:
            assert self.values.wait(PATIENCE)
            self.events.append("value")

            def pullback(seed: Any) -> Any:
                assert self.pullbacks.wait(PATIENCE)
                self.events.append("pullback")
                return None, seed * rows[0]

            return theta * rows[0], pullback

        return fun

    def primitive(self) -> Any:
        @primitive  # type: ignore[untyped-decorator]  # autograd has no types
        def slow(theta: Any, row: Any) -> Any:
            assert self.values.wait(PATIENCE)
            self.events.append("value")
            return theta * row

        def pull(ans: Any, theta: Any, row: Any) -> Any:
            def pullback(seed: Any) -> Any:
                assert self.pullbacks.wait(PATIENCE)
                self.events.append("pullback")
                return seed * row

            return pullback

        defvjp(slow, pull, None)
        return lambda rows, theta: slow(theta, rows[0])


class Refusal(Exception):
    """A user's own."""
