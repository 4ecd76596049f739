"""The explicit engine: chunk functions that return their own derivative."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from dagad._engines.autograd import AutogradEngine
from dagad._engines.elsewhere import refuse_derivatives
from dagad._engines.engine_call import EngineCall
from dagad._engines.explicit_rules import OwnPullback, checked_pair, read_only_view, transposed
from dagad._errors import ArgumentsError, ClosureError
from dagad._tracebacks import public
from dagad._tracing.embedded import Trace, in_one_node, innermost
from dagad._tracing.flat_functions import Flat, FlatFunction, LeafPullback, Leaves
from dagad._tracing.patches import patches
from dagad._tracing.tape import traceable
from dagad._types import Leaf
from dagad._values import pytree
from dagad._values.closures import carries_traced
from dagad._values.reading import LATER, NEVER, NEXT, TURNS
from dagad._words import described, name_of


class ExplicitEngine:
    """The engine of functions that return their own pullback.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> def by_hand(rows, theta):
    ...     return theta * rows.sum(), lambda seed: (None, seed * rows.sum())
    >>> def total(theta):
    ...     return dagad.reduce_sum(by_hand, np.arange(4.0), theta, engine="explicit")
    >>> float(dagad.grad(total)(2.0))
    6.0
    """

    __slots__ = ()
    name = "explicit"
    follows_traces = True  # what somebody traces, it takes as it is

    def takes(self, leaf: Leaf) -> bool:
        """Take everything: the function's pullback speaks of all that it returned."""
        del leaf
        return True

    def run(self, fun: FlatFunction, leaves: Leaves) -> Any:
        """Return what a task returns; the leaves may be traced."""
        return fun.merge(self.value(fun, leaves))

    def value(self, fun: Any, leaves: Leaves) -> list[Any]:
        """Return the first of what the function returns; what comes out is traced by those who trace the leaves."""
        if not hasattr(fun, "run"):  # a derivative, which is written with numpy
            found: list[Any] = fun(leaves)
            return found
        trace = innermost(leaves)
        if trace is None:
            return self._called(fun, list(map(traceable, leaves)), NEVER)[0]
        return (self._forward if trace.moves else self._reverse)(fun, trace)

    def linearize(self, fun: Any, leaves: Leaves) -> tuple[list[Any], LeafPullback]:
        """Call the function; see `Engine.linearize`."""
        if not _BARE.issuperset(map(type, leaves)):
            if any(map(pytree.is_traced, leaves)):
                values = self.value(fun, leaves)
                return values, OwnPullback(fun, leaves, values, None, functools.partial(self.value, fun))
            leaves = list(map(traceable, leaves))
        return self._called(fun, leaves, LATER) if hasattr(fun, "run") else _AUTOGRAD.linearize(fun, leaves)

    def value_and_grad(self, fun: object, leaves: Leaves) -> tuple[list[Any], LeafPullback]:
        """Do the same where the cotangent 1 of a number comes next: what the pullback reads is still what it was."""
        if not hasattr(fun, "run") or not _BARE.issuperset(map(type, leaves)):
            return self.linearize(fun, leaves)
        return self._called(fun, leaves, NEXT)

    def _called(self, fun: Any, leaves: Leaves, pulled: str) -> tuple[list[Any], Any]:
        """Call the function; `pulled` says when its pullback is pulled."""
        TURNS.begin(pulled)
        pair = fun.run(list(map(read_only_view, leaves)))
        # To find the name costs as much as a chunk.
        good = type(pair) is tuple and len(pair) == 2 and callable(pair[1])
        value, pullback = pair if good else checked_pair(pair, fun.name)
        outputs = fun.flatten(value)
        if pulled is NEVER:
            TURNS.next()
            return outputs, None
        is_next = pulled is NEXT and len(outputs) == 1 and type(outputs[0]) in _NUMBERS  # else it is not pulled at once
        return outputs, OwnPullback(fun, leaves, outputs, pullback, is_next=is_next)

    def pushforward(self, fun: Flat, n: int) -> Flat:
        """Return the transpose of the pullback; see `Engine.pushforward`."""
        return _AUTOGRAD.pushforward(functools.partial(self.value, fun), n)

    def pullback(self, fun: Flat, n: int) -> Flat:
        """Return the function's own pullback, which is written with numpy; see `Engine.pullback`."""
        return _AUTOGRAD.pullback(functools.partial(self.value, fun), n)

    def _forward(self, fun: FlatFunction, trace: Trace) -> list[Any]:
        """Move the leaves by the transpose of the pullback."""
        values, pullback = self.linearize(fun, trace.below)
        tangents, count = trace.tangents()
        floats = [index for index, value in enumerate(values) if pytree.is_differentiable_or_traced(value)]
        directions = [{index: own[number] for index, own in tangents.items()} for number in range(count)]
        tangents_out = transposed(pullback, values, floats, directions)
        columns = zip(*tangents_out, strict=True)
        boxes = {
            index: trace.with_tangents(values[index], list(own)) for index, own in zip(floats, columns, strict=True)
        }
        return [boxes.get(index, value) for index, value in enumerate(values)]

    def _reverse(self, fun: FlatFunction, trace: Trace) -> list[Any]:
        """Put one node on the tape, whose pullback is the function's own."""
        return in_one_node(trace, *self.linearize(fun, trace.below))


_BARE, _NUMBERS = frozenset({np.ndarray, np.float64, float}), frozenset({np.float64, float})
_AUTOGRAD = AutogradEngine()


class Explicit:
    """A chunk function that returns its value and its pullback; see `explicit`."""

    __dagad_wraps__ = True

    def __init__(self, fun: Callable[..., tuple[Any, Callable[[Any], Any]]]) -> None:
        functools.update_wrapper(self, fun)
        self.fun = fun

    @property
    def __dagad_engine__(self) -> ExplicitEngine:
        return ExplicitEngine()

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Callable[[Any], Any]]:
        return self.fun(*args, **kwargs)

    def value(self, *args: Any, **kwargs: Any) -> Any:
        """Return the value alone; where somebody traces the arguments, its derivative is by the function's own rule."""
        is_traced = any(map(pytree.is_traced, pytree.flatten((args, kwargs))[0]))
        if (is_traced or patches.has_opened_here()) and carries_traced(self.fun):
            raise ClosureError(
                f"`{name_of(self.fun)}` is marked explicit, and has a value being differentiated in its closure, for "
                "which its pullback returns no cotangent. Pass the value to the function as an argument."
            )
        if is_traced:
            return EngineCall(self.__dagad_engine__, self.fun)(*args, **kwargs)
        refuse_derivatives(f"`{name_of(self.fun)}`", "is marked explicit", self.fun, args, kwargs)
        return checked_pair(self.fun(*args, **kwargs), name_of(self.fun))[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return Explicit, (self.fun,)


@public
def explicit(fun: Callable[..., tuple[Any, Callable[[Any], Any]]]) -> Explicit:
    """Mark a chunk function that returns its own derivative beside its value.

    Parameters
    ----------
    fun
        ``fun(rows, *shared) -> (value, pullback)``, where ``pullback(cotangent)`` takes a cotangent of the value's
        structure and returns one cotangent for each argument of `fun`, of that argument's structure; None for an
        argument that is constant. It may run after `fun` was called again, for other chunks: where it reads what those
        may have changed, `fun` runs once more before.

    Returns
    -------
    Explicit
        The function, to go wherever a chunk function goes. Called by hand, it does what `fun` does; its `value` is the
        function of the value alone. As a task of a graph write ``dask.delayed(marked.value)(...)``: then the value is
        what Dask computes too. In a derivative, ``dask.delayed(marked)(...)`` means the same.

    Raises
    ------
    ArgumentsError
        If `fun` can't be called.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.extend import explicit
    >>> @explicit
    ... def half_square(rows, theta):
    ...     residual = rows - theta
    ...     return 0.5 * residual @ residual, lambda seed: (None, -seed * residual.sum())
    >>> data = np.array([1.0, 2.0, 6.0])
    >>> value, slope = dagad.value_and_grad(lambda theta: dagad.reduce_sum(half_square, data, theta, grainsize=2))(1.0)
    >>> float(value), float(slope)
    (13.0, -6.0)
    """
    if not callable(fun):
        raise ArgumentsError(
            f"`explicit` marks a function, and was given {described(fun)}. Write `@dagad.extend.explicit` above one."
        )
    return Explicit(fun)
