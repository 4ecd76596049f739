"""Whether compiling a function pays: what it took, beside what its evaluations have gained over autograd so far.

State: `_WARNED`, the functions of which it was said, once a process: by what tells them apart, which is not they.
"""

from __future__ import annotations

import time

import numpy as np

from dagad._engines.autograd import AutogradEngine
from dagad._frames import warn
from dagad._remembered import Remembered
from dagad._tracing.flat_functions import FlatFunction, Leaves, marked_function
from dagad._values.fingerprint import identity_of

LEAST = 5.0  # seconds of compiling that are worth a word
PATIENCE = 30  # evaluations after which it is looked at


class Gains:
    """How long a compiled function took to compile, and to run since."""

    __slots__ = ("n", "seconds", "spent")

    def __init__(self) -> None:
        self.n, self.seconds, self.spent = 0, 0.0, 0.0

    def ran(self, seconds: float) -> bool:
        """Note a run. Return whether it is time to look."""
        self.n, self.spent = self.n + 1, self.spent + seconds
        return self.n == PATIENCE and self.seconds >= LEAST

    def look(self, base: FlatFunction, leaves: Leaves, with_gradient: bool) -> None:
        """Warn, once, where compiling took longer than the runs have gained: autograd is timed for that, on one."""
        each = _by_autograd(base, leaves, with_gradient)
        if each is None:
            return
        gain = max(0.0, each - self.spent / self.n)
        who = identity_of(marked_function(base))
        if gain * self.n >= self.seconds or _WARNED.find(who) is not None:
            return
        _WARNED.change(who, lambda found: True)
        enough = f"pays from about {self.seconds / gain:,.0f} runs on" if gain else "does not pay: autograd is as fast"
        warn(
            f"jax took {self.seconds:.1f} s to compile `{base.name}`, longer than its {self.n} runs since have gained "
            f"over autograd, about {gain * self.n:.2g} s: it {enough}. For fewer leave out `engine=`; fewer shapes and "
            "fewer operations, in loops say, compile sooner."
        )


def _by_autograd(base: FlatFunction, leaves: Leaves, with_gradient: bool) -> float | None:
    """Return how long autograd takes for one run; None where it can't follow the function."""
    engine, takes = AutogradEngine(), base.takes
    out, base.takes = base.out, engine.takes
    try:
        began = time.perf_counter()
        if with_gradient:
            values, pull = engine.linearize(base, leaves)
            pull([np.ones_like(values[0]), *[None] * (len(values) - 1)])
        else:
            engine.value(base, leaves)
        return time.perf_counter() - began
    except Exception:  # of a function of jax's, say: then there is nothing to compare with
        return None
    finally:
        base.takes, base.out = takes, out


_WARNED: Remembered[bool] = Remembered(64)
