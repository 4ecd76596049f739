"""Methods of ufuncs that are no functions of numpy's: sums of exponentials along an axis, and sums of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._tracing import refusals
from dagad._tracing.by_definition import rules_of
from dagad._tracing.numpy_protocols import WRITTEN
from dagad._tracing.rules import own_primitive
from dagad._types import Argnums, Args, Array, Axis, Cotangent, Function, Kwargs, Value
from dagad._values import pytree

plain = pytree.plain


def _log_sum(a: Array, axis: Axis = 0, keepdims: bool = False) -> Any:
    held = plain(a)
    high = np.max(held, axis, keepdims=True, initial=-np.inf)
    high = np.where(np.isfinite(high), high, 0.0)
    found = anp.log(anp.sum(anp.exp(a - high), axis=axis, keepdims=True)) + high
    return anp.reshape(found, np.shape(np.max(held, axis, keepdims=keepdims, initial=-np.inf)))


def log_sums(a: Array, axis: int, xp: ModuleType, pairwise: Function) -> Any:
    """Return logarithms of sums of exponentials up to each entry: twice as far back in each round.

    So no small sum is taken relative to a large one that comes later, as it would be with one maximum for all.
    """
    a = xp.moveaxis(a, axis, 0)
    shift = 1
    while shift < len(a):
        a = xp.concatenate([a[:shift], pairwise(a[shift:], a[:-shift])])
        shift *= 2
    return xp.moveaxis(a, 0, axis)


def axis_of(a: Array, axis: int | None) -> int:
    """Return the axis that a method of a ufunc goes along; None, which is that of a vector, is an error of others."""
    if axis is None and np.ndim(plain(a)) != 1:
        raise ValueError("this method takes one axis: `axis=None` is that of a vector")
    return axis or 0


def _log_sums(a: Array, axis: int | None = 0) -> Any:
    return log_sums(a, axis_of(a, axis), anp, anp.logaddexp)


def _reduce(a: Array, axis: Axis = 0, keepdims: bool = False) -> Any:
    reduce: Any = np.logaddexp.reduce
    return reduce(a, axis, keepdims=keepdims)


def _accumulate(a: Array, axis: Axis = 0) -> Any:
    return np.logaddexp.accumulate(a, axis)  # raises where None is no axis


def numbers_of(indices: Sequence[int] | Array, length: int) -> Any:
    """Return the first entry that `np.add.reduceat` adds up, and the number of the sum for each from there on."""
    firsts = np.asarray(indices).astype(np.intp)
    np.add.reduceat(np.zeros(length), firsts)  # raises what numpy raises
    lengths = np.diff(np.append(firsts, length))
    if np.any(lengths <= 0):  # of such a group numpy gives its first entry, and no empty sum
        raise NotDifferentiableError(refusals.of_function("np.add.reduceat", " with indices that do not increase"))
    return int(firsts[0]) if len(firsts) else length, np.repeat(np.arange(len(firsts)), lengths)


def _sums(a: Array, indices: Sequence[int], axis: Axis = 0) -> Any:
    return np.add.reduceat(a, np.asarray(indices).astype(np.intp), axis)


def _pull_sums(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Function:
    axis = axis_of(args[0], kwargs.get("axis", 0))
    first, numbers = numbers_of(args[1], np.shape(plain(args[0]))[axis])

    def pull(cotangent: Cotangent) -> tuple[Any]:
        found = anp.moveaxis(cotangent, axis, 0)[numbers]
        before = np.zeros((first, *np.shape(plain(found))[1:]), plain(found).dtype)
        return (anp.moveaxis(anp.concatenate([before, found]) if first else found, 0, axis),)

    return pull


def _push_sums(argnums: Argnums, tangents: Sequence[Any], ans: Value, args: Args, kwargs: Kwargs) -> Any:
    numbers_of(args[1], np.shape(plain(args[0]))[axis_of(args[0], kwargs.get("axis", 0))])  # for what it refuses
    return WRITTEN["add.reduceat"](tangents[0], *args[1:], **kwargs)


WRITTEN["logaddexp.reduce"] = own_primitive(_reduce, *rules_of("np.logaddexp.reduce", _log_sum))
WRITTEN["logaddexp.accumulate"] = own_primitive(_accumulate, *rules_of("np.logaddexp.accumulate", _log_sums))
WRITTEN["add.reduceat"] = own_primitive(_sums, _pull_sums, _push_sums)
