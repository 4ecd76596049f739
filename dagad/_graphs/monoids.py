"""How partial results are combined: monoids, and what it means to add two terms of any structure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dagad._errors import StructureError
from dagad._types import Array, Leaf, Value
from dagad._values import pytree


class Monoid(Protocol):
    """How terms are added up: what stands for a sum on its way, and how two of these become one.

    It has to be an addition: gradients are added up by it too. None adds nothing, and is never given to `add`.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> class Wide:
    ...     def lift(self, term):
    ...         return np.longdouble(term)
    ...     def add(self, a, b, ours):
    ...         return a + b
    ...     def lower(self, total):
    ...         return float(total)
    >>> dagad.reduce_sum(np.sum, np.array([1.0, 5.0, 2.0]), grainsize=1, sum=Wide())
    8.0
    """

    def lift(self, term: Value) -> Any:
        """Return the sum of one term; a sum stays what it is."""

    def add(self, a: Value, b: Value, ours: bool) -> Any:
        """Return the sum of two, in memory that is not `b`'s, and `a`'s only if that is `ours` to write into."""

    def lower(self, total: Value) -> Any:
        """Return the value of a sum; a value stays what it is."""


@dataclass(frozen=True, slots=True)
class PlainSum:
    """Add neighbours, then neighbours of these: the error grows with the logarithm of the number of chunks.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.extend import PlainSum
    >>> float(dagad.reduce_sum(np.sum, np.array([1e16, 1.0, -1e16]), grainsize=1, sum=PlainSum()))
    0.0
    """

    def lift(self, term: Value) -> Any:
        return term

    def add(self, a: Value, b: Value, ours: bool) -> Any:
        return _add(a, b, ours)

    def lower(self, total: Value) -> Any:
        return total


@dataclass(frozen=True, slots=True)
class CompensatedSum:
    """Carry along what each addition rounds off, and add it at the end: sums of chunks as if in twice the precision.

    Values and cotangents are both added up so; what happens inside a chunk is the function's own affair, and items of
    `map_sum` are added plainly there: give a small `grainsize`, as "auto" may make one chunk of all. For sums that
    cancel, and for gradients that have to be compared between plans. Costs a few more additions a chunk.

    Notes
    -----
    The correction is that of A. Neumaier, "Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen",
    ZAMM 54 (1974), at each node of the tree of sums in place of one running sum.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.extend import CompensatedSum
    >>> float(dagad.reduce_sum(np.sum, np.array([1e16, 1.0, -1e16]), grainsize=1, sum=CompensatedSum()))
    1.0
    """

    def lift(self, term: Value) -> Any:
        if isinstance(term, Exact):
            return term
        leaves, treedef = pytree.flatten_with_none(term)
        return Exact(treedef, leaves, [None] * len(leaves))

    def add(self, a: Value, b: Value, ours: bool) -> Any:
        del ours
        pytree.check_same_structure(a.treedef, b.treedef, DIFFERENT)
        added = [_added(*pair) for pair in zip(a.sums, a.errors, b.sums, b.errors, strict=True)]
        return Exact(a.treedef, [total for total, _ in added], [error for _, error in added])

    def lower(self, total: Value) -> Any:
        if not isinstance(total, Exact):
            return total
        leaves = [_rounded(*pair) for pair in zip(total.sums, total.errors, strict=True)]
        return pytree.unflatten(total.treedef, leaves)


PLAIN: Monoid = PlainSum()
DIFFERENT = "The partial sums of two chunks differ in structure"


class Exact:
    """A sum and what has been rounded off, leaf by leaf."""

    __slots__ = ("errors", "sums", "treedef")

    def __init__(self, treedef: pytree.TreeDef, sums: list[Any], errors: list[Any]) -> None:
        self.treedef, self.sums, self.errors = treedef, sums, errors

    def __reduce__(self) -> tuple[Any, ...]:
        return Exact, (self.treedef, self.sums, self.errors)

    def __sizeof__(self) -> int:
        return 200 + pytree.nbytes_of(self.sums) + pytree.nbytes_of(self.errors)


pytree.register(
    Exact,
    lambda exact: ((exact.sums, exact.errors), exact.treedef),
    lambda treedef, parts: Exact(treedef, *parts),
)


# Leaves

_NUMERIC = (np.ndarray, np.generic, int, float, complex)
NUMBERS = {float, np.float64}
_PLAIN_NUMBERS = {*NUMBERS, int}


def counted(value: Value) -> Any:
    """Return a term of a sum with 1 and 0 for what is true and false, as Python's `sum` has it: numpy adds by `or`."""
    if type(value) in NUMBERS:
        return value
    if type(value) is np.ndarray:
        return value if value.dtype.kind != "b" else value + 0
    if pytree.is_traced(value):
        return value
    leaves, treedef = pytree.flatten_with_none(value)
    if not any(_is_truth(leaf) for leaf in leaves):
        return value
    return pytree.unflatten(treedef, [leaf + 0 if _is_truth(leaf) else leaf for leaf in leaves])


def _is_truth(leaf: Leaf) -> bool:
    kind = type(leaf)
    return kind is bool or kind is np.bool_ or (kind is np.ndarray and leaf.dtype.kind == "b")


def _add(total: Value, term: Value, ours: bool) -> Any:
    kind = type(total)
    if kind is type(term) and kind in _PLAIN_NUMBERS:
        return total + term
    if kind is list and type(term) is list and len(total) == len(term):
        pairs = zip(total, term, strict=True)
        return [(_add if type(a) is type(b) is tuple else _add_leaf)(a, b, ours) for a, b in pairs]
    if kind is tuple and type(term) is tuple and len(total) == len(term):
        return tuple([_add(a, b, ours) for a, b in zip(total, term, strict=True)])
    if isinstance(total, _NUMERIC) and isinstance(term, _NUMERIC):
        return _add_leaf(total, term, ours)
    if total is None and term is None:
        return None
    a_leaves, a_def = pytree.flatten_with_none(total)
    b_leaves, b_def = pytree.flatten_with_none(term)
    pytree.check_same_structure(a_def, b_def, DIFFERENT)
    return pytree.unflatten(a_def, [_add_leaf(a, b, ours) for a, b in zip(a_leaves, b_leaves, strict=True)])


def _add_leaf(a: Leaf, b: Leaf, ours: bool) -> Any:
    if type(a) is np.ndarray and type(b) is np.ndarray:
        if a.shape != b.shape:
            _refuse_shapes(a, b)
        # In place only into memory allocated here: the first sum made it.
        return np.add(a, b, a) if ours and a.ndim and a.dtype == b.dtype else a + b
    if a is None or b is None:
        alone = b if a is None else a
        # A copy, unless it is ours: what this becomes part of will be added to in place.
        return alone if ours and b is None else _copied(alone)
    if type(a) in _PLAIN_NUMBERS and type(b) in _PLAIN_NUMBERS:
        return a + b
    # What stands in a list may be a list again, which `+` would put behind the other one.
    if not (pytree.is_leaf(a) and pytree.is_leaf(b)):
        return _add(a, b, ours)
    if np.shape(a) != np.shape(b):
        _refuse_shapes(a, b)
    return a + b


def _copied(term: Value) -> Any:
    if isinstance(term, _NUMERIC):
        return term.copy() if type(term) is np.ndarray else term
    leaves, treedef = pytree.flatten_with_none(term)
    return pytree.unflatten(treedef, [leaf.copy() if type(leaf) is np.ndarray else leaf for leaf in leaves])


def _added(a: Value, a_error: Array, b: Value, b_error: Array) -> tuple[Any, Any]:
    if a is None or b is None:
        return (b, b_error) if a is None else (a, a_error)
    if np.shape(a) != np.shape(b):
        _refuse_shapes(a, b)
    total = a + b
    if np.asarray(total).dtype.kind not in "fc":
        return total, None
    with np.errstate(invalid="ignore"):  # of infinite terms there is no rest
        partner = total - a
        error = (a - (total - partner)) + (b - partner)
        for rest in (a_error, b_error):
            error = error if rest is None else error + rest
    return total, error


def _rounded(total: Value, error: Array) -> Any:
    if error is None:
        return total
    rest = np.where(np.isfinite(total), error, 0).astype(np.asarray(total).dtype)
    return total + (rest if isinstance(total, np.ndarray) else rest[()])


def _refuse_shapes(a: Leaf, b: Leaf) -> None:
    raise StructureError(
        f"The partial sums of two chunks differ in shape: {np.shape(a)} and {np.shape(b)}. Each chunk has to return "
        "the same shape, however many rows it has; sum over the rows inside the function."
    )
