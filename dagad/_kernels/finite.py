"""Whether what chunks give is finite: the kernel that looks, where the setting `dagad.check-finite` asks for it."""

from __future__ import annotations

import cmath
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dagad._errors import NonFiniteError, add_note_once
from dagad._graphs.linearization import PullbackFunction
from dagad._kernels.chunks import ChunkContext
from dagad._kernels.kernel import Groups, Kernel, LeafNames, Outputs, Seeds
from dagad._sources.packed import Unpacked
from dagad._types import AnyRows, Leaf, Value
from dagad._values import pytree
from dagad._values.shipping import opened

_FLOATS = (float, np.float64)
# Numbers of BLAS: their sum of squares is finite if they are, or it overflows. It costs less than a look at each.
_OF_BLAS = frozenset("fdFD")


def is_finite(value: Value) -> bool:
    """Return whether all numbers in a value are finite."""
    value = pytree.plain(value)
    kind = type(value)
    if kind in _FLOATS:  # nearly always
        return math.isfinite(value)
    for leaf in value if kind is tuple else pytree.flatten(value)[0]:
        if not (is_finite(leaf) if kind is tuple else is_finite_leaf(pytree.plain(leaf))):
            return False
    return True


def is_finite_leaf(leaf: Leaf) -> bool:
    """Return whether all numbers in a leaf are finite; what has no derivative is."""
    if type(leaf) is not np.ndarray:
        return math.isfinite(leaf) if type(leaf) in _FLOATS else not pytree.is_differentiable(leaf) or _all_finite(leaf)
    if leaf.dtype.char not in _OF_BLAS:
        return leaf.dtype.kind not in "fc" or _all_finite(leaf)
    if leaf.ndim != 1:
        if not leaf.flags.c_contiguous:
            return _all_finite(leaf)
        leaf = leaf.reshape(-1)
    return cmath.isfinite(np.vdot(leaf, leaf)) or _all_finite(leaf)  # `dot` warns of an overflow


def _all_finite(leaf: Leaf) -> bool:
    return bool(np.all(np.isfinite(leaf)))


def bad_row(rows: AnyRows, leaves: Sequence[Any]) -> int | None:
    """Return the first of some rows that is not finite, `leaves` in their gaps; None if there is none here."""
    if not hasattr(rows, "with_unpacked") or rows.is_made:  # they are not here
        return None
    columns = pytree.flatten(pytree.by_column(rows.merge(iter(leaves))), is_leaf=pytree.is_list)[0]
    return min((row for column in columns for row in _bad_rows(column)), default=None)


def _bad_rows(column: object) -> Iterable[int]:
    if isinstance(column, list):
        return (row for row, item in enumerate(column) if not is_finite(item))
    column = np.asarray(column)
    if not pytree.is_differentiable(column) or not column.ndim:
        return ()
    return map(int, np.flatnonzero(~np.isfinite(column).reshape(len(column), -1).all(axis=1))[:1])


class Finite(Kernel):
    """A kernel whose values and cotangents are looked at where they arise: the first that is nan or inf is refused."""

    __slots__ = ("copies", "function", "gives", "is_reduction", "reduces", "stacks")

    def __init__(self, function: Kernel) -> None:
        self.function: Kernel = opened(function)
        self.reduces, self.stacks, self.copies = self.function.reduces, self.function.stacks, self.function.copies
        self.is_reduction, self.gives = self.function.is_reduction, self.function.gives

    def state(self) -> tuple[Any, ...]:
        return (self.function,)

    @property
    def name(self) -> str:
        """What the function is called."""
        return self.function.name

    @property
    def signature(self) -> tuple[Any, ...]:
        """What tells kernels apart that don't cost the same: a look does not show, nor does it choose who runs."""
        return self.function.signature

    def stacked_like(self, sliced: Groups) -> list[Any] | None:
        """Return what the function does."""
        return self.function.stacked_like(sliced)

    def unpacked(self, sliced: Groups) -> list[list[Unpacked | None]]:
        """Unpack what is packed as the function does."""
        return self.function.unpacked(sliced)

    def on_leaves(self, groups: Groups) -> Kernel:
        """Return the kernel that is given the leaves of what was packed; see `Kernel`."""
        return Finite(self.function.on_leaves(groups))

    def value(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups = ()) -> Outputs:
        """Run one chunk, tracing nothing."""
        return self._looked_at(self.function.value(context, rows, shared, sliced), context, rows, shared, sliced)

    def record(
        self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups = (), *, with_grad: bool = False
    ) -> tuple[Any, PullbackFunction, Callable[[], int]]:
        """Run one chunk traced; see `Kernel`."""
        parts, pull, nbytes = self.function.record(context, rows, shared, sliced, with_grad=with_grad)
        args = context, rows, shared, sliced
        return self._looked_at(parts, *args), self._pulled(pull, *args), nbytes

    def _looked_at(self, parts: Outputs, *args: Any) -> Outputs:
        if not is_finite(parts.reduced) or not all(map(is_finite_leaf, parts.stacked)):
            _refuse(self.function, self.function.named(parts, self._names(args[1])), "value", *args)
        return parts

    def _pulled(self, pull: PullbackFunction, *args: Any) -> PullbackFunction:
        def pullback(seeds: Seeds) -> tuple[Any, ...]:
            cotangents = pull(seeds)
            self._look_at_cotangents(cotangents, *args)
            return cotangents

        return pullback

    def _look_at_cotangents(self, groups: Sequence[Any], *args: Any) -> None:
        if all(leaf is None or is_finite_leaf(leaf) for group in groups for leaf in group):
            return
        inputs = self.function.inputs(self._names(args[1]))
        names = [*(inputs.shared if any(args[2]) else ()), *inputs.sliced]
        named = zip(names, itertools.chain(*groups), strict=False)
        _refuse(self.function, ((f"the gradient in {name}", leaf) for name, leaf in named), "pullback", *args)

    def _names(self, rows: AnyRows) -> LeafNames:
        return LeafNames.of(self.function.of_user, opened(rows))


def _refuse(kernel: Kernel, named: Iterator[tuple[str, Any]], role: str, *args: Any) -> None:
    """Raise for the first of some leaves that is not finite, which is one of them, in a chunk with these arguments."""
    context, rows, shared, sliced = kernel.narrowed(*args)
    (number, start, stop), function = context.chunk, kernel.of_user
    what, leaf = next(pair for pair in named if not is_finite(pair[1]))
    row = bad_row(opened(rows), sliced[0] if sliced else ())
    given = [name for name, part in function.named_shared(shared[0] if shared else ()) if not is_finite(part)]
    if row is not None:
        why = f"Row {start + row} holds nan or infinity: leave such rows out, or fill them in."
    elif given:
        why = f"So is {given[0]}, which every chunk is given: look at where that comes from."
    else:
        why = (
            "What the chunk was given is finite, so it arises in the function: 0/0, infinity minus infinity, a "
            "logarithm or a root of a negative number, an overflow. `dagad.replay(error)` stops where numpy meets it."
        )
    found = "nan" if np.any(np.isnan(leaf)) else "infinite"
    error = NonFiniteError(f"In chunk {number} (rows {start}:{stop}) of `{function.name}` {what} is {found}. {why}")
    error.chunk, error.rows, error.argument = number, (start, stop), what
    add_note_once(error, context.note(role))
    raise error
