"""What scipy returns beside a solution: its value is there, and its derivative is refused where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._tracing.embedded import innermost
from dagad._tracing.forward import TangentNode
from dagad._types import Value
from dagad._values import pytree

What = tuple[str, Sequence[str], str]  # an entry, those that have a derivative, and who has found them
_CONSTANT = frozenset({"active_mask", "execution_time"})  # numbers, but no function of anything


def unfollowed(value: Any, boxes: Sequence[Any], what: What) -> Any:
    """Return a value that is traced by those who trace the boxes; whoever asks for its derivative is told why not."""
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return type(value)(unfollowed(part, boxes, what) for part in value)
    if hasattr(value, "matvec") or hasattr(value, "toarray"):
        return Unfollowed(value, what)
    return _boxed(value, boxes, what) if pytree.is_differentiable(value) and np.size(value) else value


def unfollowed_rest(result: Any, known: Sequence[str], boxes: Sequence[Any], name: str) -> None:
    """Do so with all of a result of scipy's but for those entries that are known to have a derivative, or none."""
    for entry in result.keys() - {*known} - _CONSTANT:
        result[entry] = unfollowed(result[entry], boxes, (entry, known, name))


def _boxed(value: Value, boxes: Sequence[Any], what: What) -> Any:
    trace = innermost(boxes)
    if trace is None:
        return value
    below = _boxed(value, trace.below, what)
    if not trace.moves:
        return trace.pulled([below], _Refusing(what))[0]
    if trace.kind is not TangentNode:  # autograd's own, which looks at tangents whether they are used or not
        return trace.with_tangents(below, [np.full(np.shape(value), np.nan)[()]])
    tangents: Any = _Refusing(what)
    return trace.with_tangents(below, tangents)


class _Refusing:
    """A pullback, or a list of tangents, that nobody may use."""

    __slots__ = ("_what",)

    def __init__(self, what: What) -> None:
        self._what = what

    def _refuse(self, *_: Any) -> NoReturn:
        raise _refusal(*self._what)

    __call__ = __iter__ = __len__ = __getitem__ = _refuse


class Unfollowed:
    """An operator or a sparse matrix of scipy's, of which nothing can be asked where a derivative is."""

    def __init__(self, stock: object, what: What) -> None:
        self._stock, self._what = stock, what

    def __repr__(self) -> str:
        return repr(self._stock)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked by who copies or prints it
            raise AttributeError(name)
        raise _refusal(*self._what)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise _refusal(*self._what)

    __array_ufunc__: Callable[..., Any] = _refuse
    __call__ = __getitem__ = __array__ = __matmul__ = __rmatmul__ = __mul__ = __rmul__ = _refuse


_INSTEAD = {
    "jac": "`dagad.grad(fun)(result.x)`, or `dagad.jacfwd(fun)(result.x)` where there are several equations,",
    "grad": "`dagad.grad(fun)(result.x)`, of the sum of squares for `least_squares`,",
    "hess": "`dagad.hessian(fun)(result.x)`",
    "hess_inv": "`np.linalg.inv(dagad.hessian(fun)(result.x))`",
    "optimality": "`np.max(np.abs(dagad.grad(fun)(result.x)))`",
}


def _refusal(entry: str, known: Sequence[str], name: str) -> NotDifferentiableError:
    instead, have = _INSTEAD.get(entry, "its formula, of what has one,"), " and ".join(f"`{each}`" for each in known)
    return NotDifferentiableError(
        f"The derivative of `{entry}` in the result of `{name}` was asked for, which scipy has found on its own way. "
        f"Of that result {have} have a derivative. Write {instead} in its place, or "
        f"`dagad.solvers.{name.rpartition('.')[2]}` with plain values where it is meant to be constant."
    )
