"""How terms are added up: plainly, or with what each addition rounds off carried along. The tree is the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dagad._errors import StructureError
from dagad._graphs.linearization import Linearization
from dagad._graphs.sums import FAN_IN, sum_tree
from dagad._pytrees import pytree
from dagad_scheduler.private import Task, TaskRef

Key = Any
Tasks = tuple[Any, dict[Key, Task]]


class Summation(Protocol):
    """How terms are added up."""

    def tree(self, terms: Sequence[Any], key_of: Callable[[int, int], Key]) -> Tasks:
        """Return a reference to the sum of `terms`, in their order, and the tasks that compute it."""


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

    def tree(self, terms: Sequence[Any], key_of: Callable[[int, int], Key]) -> Tasks:
        """Return a reference to the sum, and the tasks that compute it."""
        return sum_tree(terms, key_of)


@dataclass(frozen=True, slots=True)
class CompensatedSum:
    """Carry along what each addition rounds off, and add it at the end: sums of chunks as if in twice the precision.

    Values and cotangents are both added up so; what happens inside a chunk is the function's own affair. For sums that
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

    def tree(self, terms: Sequence[Any], key_of: Callable[[int, int], Key]) -> Tasks:
        """Return a reference to the sum, and the tasks that compute it."""
        tasks: dict[Key, Task] = {}
        level = 0
        while len(terms) > 1:
            add = add_up_exactly if len(terms) > FAN_IN else add_up_and_round
            above = []
            for position, start in enumerate(range(0, len(terms), FAN_IN)):
                key = key_of(level, position)
                tasks[key] = Task(key, add, *terms[start : start + FAN_IN])
                above.append(TaskRef(key))
            terms, level = above, level + 1
        return terms[0], tasks


class Exact:
    """A sum and what has been rounded off, leaf by leaf."""

    __slots__ = ("errors", "sums", "treedef")

    def __init__(self, treedef: pytree.TreeDef, sums: list[Any], errors: list[Any]) -> None:
        self.treedef, self.sums, self.errors = treedef, sums, errors

    @classmethod
    def of(cls, term: Any) -> Exact:
        """Return a term as a sum of one."""
        if isinstance(term, Exact):
            return term
        leaves, treedef = pytree.flatten_with_none(term.value if type(term) is Linearization else term)
        return cls(treedef, leaves, [None] * len(leaves))

    def plus(self, other: Exact) -> Exact:
        """Return the sum of two."""
        pytree.check_same_structure(self.treedef, other.treedef, "The partial sums of two chunks differ in structure")
        pairs = zip(self.sums, self.errors, other.sums, other.errors, strict=True)
        added = [_added(*pair) for pair in pairs]
        return Exact(self.treedef, [total for total, _ in added], [error for _, error in added])

    def rounded(self) -> Any:
        """Return the sum with what was rounded off."""
        return pytree.unflatten(self.treedef, [_rounded(*pair) for pair in zip(self.sums, self.errors, strict=True)])

    def __reduce__(self) -> tuple[Any, ...]:
        return Exact, (self.treedef, self.sums, self.errors)


def _added(a: Any, a_error: Any, b: Any, b_error: Any) -> tuple[Any, Any]:
    if a is None or b is None:
        return (b, b_error) if a is None else (a, a_error)
    if np.shape(a) != np.shape(b):
        raise StructureError(
            f"The partial sums of two chunks differ in shape: {np.shape(a)} and {np.shape(b)}. Each chunk has to "
            "return the same shape, however many rows it has; sum over the rows inside the function."
        )
    total = a + b
    if np.asarray(total).dtype.kind not in "fc":
        return total, None
    with np.errstate(invalid="ignore"):  # of infinite terms there is no rest
        partner = total - a
        error = (a - (total - partner)) + (b - partner)
        for rest in (a_error, b_error):
            error = error if rest is None else error + rest
    return total, error


def _rounded(total: Any, error: Any) -> Any:
    if error is None:
        return total
    rest = np.where(np.isfinite(total), error, 0).astype(np.asarray(total).dtype)
    return total + (rest if isinstance(total, np.ndarray) else rest[()])


def add_up_exactly(*terms: Any) -> Exact:
    """Add terms, neighbours first, and keep what is rounded off."""
    level = [Exact.of(term) for term in terms]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        level = [a.plus(b) for a, b in pairs] + (level[-1:] if len(level) % 2 else [])
    return level[0]


def add_up_and_round(*terms: Any) -> Any:
    """Add terms, neighbours first, and then what was rounded off."""
    return add_up_exactly(*terms).rounded()
