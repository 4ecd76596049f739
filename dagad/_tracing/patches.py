"""What is changed in autograd while dagad's traces and chunks run: all of it is here, and undone on leaving.

======================================  ==========================================================================
`tracer.trace_stack.new_trace`          numbers that only grow, instead of a depth that goes up and down
`numpy_wrapper.metadata`,               the same answers, without asking numpy four questions at each operation
`numpy_vjps.unbroadcast`
`builtins.make_sequence`                autograd's own tuples and dicts see what dagad traces in plain ones inside them
`tracer.new_box`                        arrays in dagad's own traces speak numpy's protocols, see `traced_array`
`tracer.find_top_boxed_args`            knows these boxes, too, and looks less long at plain arrays and numbers
code of functions of scipy's            asks first whether an argument is dagad's, see `scipy_functions`; what
                                        `inspect.signature` says of them is noted at them once, and stays
======================================  ==========================================================================

Numbers of traces. autograd numbers nested traces by depth, with one counter for the whole process. When another thread
leaves its trace between the start of my outer and of my inner one, mine get the wrong order, and mixed derivatives come
out as plausible wrong numbers. Numbers that only grow can't: an inner trace always stands above every trace that was
open when it began, in whatever thread. (A counter per thread is not enough: traced values may cross threads.)

The two counters meet, since others trace with autograd alone while dagad comes and goes. No derivative may be wrong for
that, and none is, for these reasons:

* Numbers start above those of all traces that autograd's own counter has handed out, and autograd's counter goes on
  above ours. So every number is above all that were handed out before; only autograd's own may come back, as ever.
* Traces of others that begin in between are counted, and the counter stays until the last of them has been left: what
  is inside another trace never goes back to small numbers.
* `top`, autograd's own counter, is left to autograd meanwhile: those who began before us count it down when they leave.
  They are fewer than `GAP`, so they can't bring it below what we handed out.

Third parties may hold the trace stack or a box's method, so objects are changed, never the names that lead to them.

State, all of it in `_Patches` and changed only under its lock:

========  ===========================================================================================
`depth`   threads in a region, and traces begun in one, by anybody, and not yet left; the last one out undoes
`open`    the numbers of those that are traces, and the threads that began them
`last`    the largest number handed out
`rest`    autograd's own counter as it is when no trace of its own is open
`stack`   the counter that has been changed, or the last one that was
`swaps`   functions of scipy's, with their code and the one that they have meanwhile
========  ===========================================================================================
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

import numpy as np
from autograd.extend import JVPNode, VJPNode

from dagad._errors import NotDifferentiableError
from dagad._tracing.caught import CAUGHT
from dagad._tracing.in_place import CHANGED, OPEN
from dagad._tracing.private import (
    TraceStack,
    builtins,
    find_top_boxed_args as stock_find_top_boxed_args,
    isbox,
    new_box as stock_new_box,
    notrace_primitives,
    numpy_vjps,
    numpy_wrapper,
    tracer,
)
from dagad._tracing.recalled import SUSPECTED
from dagad._tracing.traced_array import OwnNode, TracedArray, find_top_boxed_args, is_own, new_box
from dagad._types import Array, Leaf, Tree

Swap = tuple[FunctionType, CodeType, CodeType]
_ident = threading.get_ident
GAP = 2**14  # more traces than are ever open at once: some hundred per thread would exhaust Python's own stack


class _Task(threading.local):
    """How deep a thread is inside, and the leaves of the task that it runs. Chunks enter again and again: no lock."""

    depth = 0
    leaves: Sequence[Any] | None = None


class _Patches:
    """A reentrant, process-wide hold: ``with patches:``. Entering from several threads at once is fine."""

    def __init__(self) -> None:
        self.lock, self.task = threading.Lock(), _Task()
        self.depth = 0
        self.open = OPEN
        self.last = self.rest = -1
        self.stack: Any = None
        self.swaps: list[Swap] = []

    def __reduce__(self) -> str:
        return "patches"  # each process has its own: what `dagad.grad` returns leads here, and travels

    def __enter__(self) -> None:
        task = self.task
        if not task.depth:
            with self.lock:
                if not self.depth:
                    self._install()
                self.depth += 1
        task.depth += 1

    def __exit__(self, *_: object) -> None:
        task = self.task
        task.depth -= 1
        if not task.depth:
            with self.lock:
                self.depth -= 1
                if not self.depth:
                    self._restore()

    def new_trace(self) -> _Trace:
        """Return a context that gives the number of a new trace, and holds the patches until it is left."""
        return _Trace(self)

    def begin(self) -> int:
        """Return the number of a trace that begins now."""
        with self.lock:
            if not self.depth:  # somebody asked for the trace while the last region was being left
                self._install()
            self.depth += 1
            # `top` is below, unless somebody holds autograd's own method and counts with it in between.
            last, top = self.last, self.stack.top
            self.last = number = (last if last > top else top) + 1
            self.open[number] = _ident()
            return number

    def end(self, number: int) -> None:
        with self.lock:
            self.open.pop(number, None)
            if CHANGED:
                CHANGED.pop(number, None)
            if CAUGHT:
                CAUGHT.pop(number, None)
            if SUSPECTED:
                SUSPECTED.pop(number, None)
            self.depth -= 1
            if not self.depth:
                self._restore()

    def somebody_traces(self) -> bool:
        """Return whether a trace may be open anywhere, ours or autograd's own; a failed gradient leaves one behind."""
        return bool(self.open) or tracer.trace_stack is not self.stack or self.stack.top != self.rest

    def has_opened_here(self) -> bool:
        """Return whether a trace of dagad's is open that this thread has opened."""
        return _ident() in [*self.open.values()]

    def is_over(self, box: Array) -> bool:
        """Return whether a traced value is left over from a derivative of dagad's; autograd doesn't tell of its own."""
        return box._trace not in self.open and is_own(box)

    def is_strange(self, box: Array) -> bool:
        """Return whether a traced value is of another thread's derivative, and not of what this task was given."""
        leaves, opener = self.task.leaves, self.open.get(box._trace)
        if leaves is None or opener == _ident():
            return False
        if opener is None:  # not of ours, or over since somebody looked
            return is_own(box)
        return not any(trace == box._trace for leaf in leaves for trace in traces_of(leaf))

    def _install(self) -> None:
        stack = tracer.trace_stack
        if stack is not self.stack:
            _check(stack)
            self.stack, self.rest = stack, -1
        # Those who are open now may have got any number up to `top` plus the number of those who have left since.
        self.last = max(self.last, stack.top + (GAP if stack.top != self.rest else 0))
        stack.new_trace = self.new_trace
        _replace_parts()
        for function, own, ours in self.swaps:
            if function.__code__ is own:  # or somebody has put other code there, which stays
                function.__code__ = ours

    def swap(self, swaps: Sequence[Swap]) -> None:
        """Put other code into functions of scipy's wherever dagad traces from now on; see `scipy_functions`."""
        with self.lock:
            self.swaps.extend(swaps)
            for function, own, ours in swaps:
                if "__wrapped__" not in vars(function):  # else it has the signature of that one, whatever its code
                    vars(function).setdefault("__signature__", inspect.signature(function))
                if self.depth and function.__code__ is own:
                    function.__code__ = ours

    def _restore(self) -> None:
        stack = self.stack
        del stack.new_trace
        n_before = max(stack.top - self.rest, 0)  # who began before us, and is still there
        self.rest = self.last + GAP if n_before else self.last
        stack.top = self.rest + n_before
        _put_parts_back()
        for function, own, ours in self.swaps:
            if function.__code__ is ours:
                function.__code__ = own


def traces_of(leaf: Leaf) -> Iterator[int]:
    """Yield the numbers of the traces that follow a value, the innermost first."""
    while isbox(leaf):
        yield leaf._trace
        leaf = leaf._value


class _Trace:
    __slots__ = ("_number", "_patches")

    def __init__(self, patches: _Patches) -> None:
        self._patches = patches

    def __enter__(self) -> int:
        self._number = self._patches.begin()
        return self._number

    def __exit__(self, *_: object) -> None:
        self._patches.end(self._number)


def _check(stack: object) -> None:
    """Refuse an autograd that numbers its traces in another way than we know; else let it know our nodes."""
    if type(stack) is not TraceStack or not isinstance(getattr(stack, "top", None), int):
        raise NotDifferentiableError(
            f"This autograd numbers its traces by {type(stack).__name__}, which dagad does not know: derivatives in "
            "threads could be silently wrong. Install autograd 1.9, or a newer dagad."
        )
    TracedArray.register(TracedArray)
    for kind in OwnNode.__subclasses__():  # what has no derivative for autograd has none for us
        notrace_primitives[kind] = notrace_primitives[VJPNode if issubclass(kind, VJPNode) else JVPNode]


# Helpers: answers for plain arrays and numbers, and the originals for everything else

_metadata, _unbroadcast = numpy_wrapper.metadata, numpy_vjps.unbroadcast
_make_sequence = builtins.make_sequence
_FLOAT = np.dtype(float)


def metadata(target: Array) -> Any:
    """Return shape, rank, dtype, and whether it is complex."""
    while isbox(target):
        target = target._value
    kind = type(target)
    if kind is np.ndarray:
        return target.shape, target.ndim, target.dtype, target.dtype.kind == "c"
    if kind is np.float64 or kind is float:
        return (), 0, _FLOAT, False
    return _metadata(target)


def unbroadcast(x: Array, target_meta: tuple[Any, ...], broadcast_idx: int = 0) -> Any:
    """Sum a cotangent over the axes along which its target was broadcast."""
    shape = target_meta[0]
    kind = type(x)
    if kind is np.ndarray:
        if x.shape == shape and 1 not in shape and x.dtype.kind != "c":
            return x
    elif (kind is np.float64 or kind is float) and not shape:
        return x
    return _unbroadcast(x, target_meta, broadcast_idx)


@functools.cache
def _agree() -> bool:
    """Return whether the originals mean the same."""
    samples = [1.0, np.float64(2.0), np.ones(3), np.ones((2, 1)), np.ones(2, complex), np.float32(1.0)]
    same = all(_metadata(sample) == metadata(sample) for sample in samples)
    pairs = [(np.ones(3), np.ones(3)), (np.ones((2, 3)), np.ones(3)), (np.float64(1.0), 2.0), (np.ones(3), 1.0)]
    return same and all(
        np.array_equal(_unbroadcast(x, _metadata(target)), unbroadcast(x, metadata(target))) for x, target in pairs
    )


# Containers: autograd hands its functions boxed containers, dagad plain ones of boxed entries. What is put into one of
# `autograd.builtins`, for `odeint` say, has to be boxed down to its entries.


def make_sequence(kind: type[Any], *items: Any) -> Any:
    """Make a list or a tuple of autograd's, boxed if anything in it is traced."""
    return _make_sequence(kind, *map(_boxed, items))


def _boxed(item: Tree) -> Any:
    if type(item) in (list, tuple, dict) and _holds_ours(item):
        return builtins.dict(item) if type(item) is dict else make_sequence(type(item), *item)
    return item


def _holds_ours(item: Tree) -> bool:
    if type(item) in (list, tuple, dict):
        return any(map(_holds_ours, item.values() if type(item) is dict else item))
    return isbox(item) and is_own(item)


_HELPERS: tuple[tuple[dict[str, Any], str, Any, Any], ...] = (
    (vars(tracer), "new_box", stock_new_box, new_box),
    (vars(tracer), "find_top_boxed_args", stock_find_top_boxed_args, find_top_boxed_args),
    (vars(numpy_wrapper), "metadata", _metadata, metadata),
    (vars(numpy_vjps), "unbroadcast", _unbroadcast, unbroadcast),
    (vars(builtins), "make_sequence", _make_sequence, make_sequence),
)


def _replace_parts() -> None:
    for space, name, autograds, ours in _HELPERS if _agree() else ():
        if space.get(name) is autograds:  # or somebody has put something there, which stays
            space[name] = ours


def _put_parts_back() -> None:
    for space, name, autograds, ours in _HELPERS:
        if space.get(name) is ours:
            space[name] = autograds


patches = _Patches()
