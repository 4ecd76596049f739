"""autograd's trace counter, replaced by one that only grows, and its power operator, replaced by numpy's.

autograd numbers nested traces by depth, with one counter for the whole process that goes up and down. When another
thread leaves its trace between the start of my outer and of my inner one, mine get the wrong order and mixed
derivatives come out as plausible wrong numbers. Numbers that only grow can't: an inner trace always stands above every
trace that was open when it began, in whatever thread. (A counter per thread is not enough: traced values may cross
threads.)

State: autograd's own ``tracer.trace_stack`` and ``ArrayBox.__pow__``, set once, when this module is imported.
"""

from __future__ import annotations

import itertools
import operator
import threading
from typing import Any

import numpy as np
from autograd import core, tracer
from autograd.numpy import numpy_wrapper
from autograd.numpy.numpy_boxes import ArrayBox


class MonotoneTraces:
    """Numbers for traces, and which of them are being recorded, in whatever thread."""

    def __init__(self) -> None:
        self._numbers, self._lock = itertools.count(), threading.Lock()
        self._open: set[int] = set()

    @property
    def open(self) -> int:
        """How many traces are being recorded, in all threads."""
        return len(self._open)

    def is_open(self, number: int) -> bool:
        """Return whether a trace is being recorded; a value of one that is over has lost its derivative."""
        return number in self._open

    def new_trace(self) -> _Trace:
        """Return a context that gives the number of a new trace; leaving it changes no other number."""
        return _Trace(self)

    def begin(self) -> int:
        """Return the number of a trace that begins now."""
        with self._lock:  # `next` of a count is atomic only under the GIL
            number = next(self._numbers)
            self._open.add(number)
        return number

    def end(self, number: int) -> None:
        """Note that a trace is over."""
        with self._lock:
            self._open.discard(number)


class _Trace:
    """The context of one trace."""

    __slots__ = ("_number", "_traces")

    def __init__(self, traces: MonotoneTraces) -> None:
        self._traces = traces

    def __enter__(self) -> int:
        self._number = self._traces.begin()
        return self._number

    def __exit__(self, *_: object) -> None:
        self._traces.end(self._number)


def install_monotone_traces() -> MonotoneTraces:
    """Replace autograd's counter, unless that has been done or autograd is not what it was."""
    current = tracer.trace_stack
    if isinstance(current, MonotoneTraces):
        return current
    if type(current).__name__ != "TraceStack" or not hasattr(current, "new_trace"):
        raise ImportError(
            f"This autograd numbers its traces by {type(current).__name__}, which dagad does not know: derivatives "
            "in threads could be silently wrong. Install autograd 1.9, or a newer dagad."
        )
    traces = tracer.trace_stack = MonotoneTraces()
    return traces


# numpy's `**` on an array squares for 2, takes the root for 0.5 and so on; `numpy.power` does not, and differs in the
# last bit. Traced or not, a chunk must have the same value.
_operator_power = tracer.primitive(operator.pow)
core.primitive_vjps[_operator_power] = core.primitive_vjps[numpy_wrapper.power]
core.primitive_jvps[_operator_power] = core.primitive_jvps[numpy_wrapper.power]


def _plain(other: Any) -> bool:
    return isinstance(other, tracer.Box | np.ndarray | np.generic | int | float | complex)


def _power(self: ArrayBox, other: Any) -> Any:
    return _operator_power(self, other) if _plain(other) else numpy_wrapper.power(self, other)


def _power_of(self: ArrayBox, other: Any) -> Any:
    return _operator_power(other, self) if _plain(other) else numpy_wrapper.power(other, self)


traces = install_monotone_traces()
ArrayBox.__pow__, ArrayBox.__rpow__ = _power, _power_of
