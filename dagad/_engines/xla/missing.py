"""What a compiled function asks for and is not there: an entry out of bounds, say, for which numpy raises an error.

An index that jax traces is known when everything is compiled, and XLA would take another entry. A number can be nan in
its place. A whole number or a truth can't, and what stands there might add up to anything: so the result of the whole
function is made nan then, and its derivatives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._types import Array, DType, Index, Value


def beyond(dtype: DType) -> Any:
    """Return what stands for an entry that there is not, where an index is known too late for an error."""
    if dtype.kind in "fc":
        return np.nan
    if dtype.kind == "b":
        return True
    return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max


def by_axes(parts: Sequence[Any], ndim: int) -> Iterator[tuple[int, Any]]:
    """Yield those parts of an index that are traced, each with its axis."""
    n_axes = [0 if part is None or part is Ellipsis else _n_axes(part) for part in parts]
    axis, hidden = 0, ndim - sum(n_axes)
    for part, n_own in zip(parts, n_axes, strict=True):
        if isinstance(part, jax.Array):
            yield axis, part
        axis += hidden if part is Ellipsis else n_own


def _n_axes(part: Index) -> int:
    is_mask = not isinstance(part, slice | jax.Array) and np.asarray(part).dtype == bool
    return np.ndim(part) if is_mask else 1


def note_beyond(index: Array, n: int, least: int | None = None) -> Any:
    """Have the function's result be nan where an index is out of bounds; return whether it is.

    To find that out is no operation of the user's.
    """
    trace: Any = getattr(index, "_trace", None)
    n_operations = getattr(trace, "n_operations", None)
    is_beyond = jnp.any((index < (-n if least is None else least)) | (index >= n))
    note(is_beyond)
    if n_operations is not None:
        trace.n_operations = n_operations
    return is_beyond


def note(is_missing: Array) -> None:
    """Have the function's result be nan where something is true that is an error of numpy's.

    What another trace knows alone, that of a loop of jax's say, is not known at the end.
    """
    missing: Missing | None = getattr(getattr(is_missing, "_trace", None), "missing", None)
    if missing is not None:
        missing.note(is_missing)


class Missing:
    """Whether something was asked for that is not there, in one trace: a traced truth, or None for nothing."""

    __slots__ = ("_is_any",)

    def __init__(self) -> None:
        self._is_any: Any = None

    def note(self, is_missing: Array) -> None:
        """Note that something is not there where this is true."""
        self._is_any = is_missing if self._is_any is None else self._is_any | is_missing

    def marked(self, output: Value) -> Any:
        """Return an output of the function, nan where something was not there, and so in its gradient.

        A whole number is the least there is then, or the largest of those without a sign.
        """
        if self._is_any is None:
            return output
        dtype = jnp.result_type(output)
        if dtype.kind in "iu":
            return jnp.where(self._is_any, np.asarray(beyond(dtype), dtype), output)
        return output * jnp.where(self._is_any, jnp.nan, 1.0).astype(dtype) if dtype.kind in "fc" else output
