"""Whole Jacobians of a program: by columns, which are pushed, or rows, which are pulled; and how they are laid out."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import autograd.numpy as anp
import numpy as np

from dagad._api.directions import Found, SideBySide, bounds, in_groups
from dagad._api.program import Program, fitting
from dagad._errors import ClosureError, NotDifferentiableError, PlanError
from dagad._kernels.context import VALUES_FIRST, directions_divided, like_here
from dagad._tracing.tape import pull_many
from dagad._types import Array, Cotangent, Leaf, Value
from dagad._values import pytree
from dagad._values.blocks import Blocks, full, runs_of

# So many directions go through a program at once: each costs the memory of one more tangent of everything.
DIRECTIONS_AT_ONCE = 16
# How well values of several runs have to agree: machines may differ in how they round; and what is added up in single
# precision where it is differentiated is added up in double where it is not.
SAME, SAME_IN_SINGLE = 1e-10, 1e-4


class Layout(Protocol):
    """How the Jacobian of one output with respect to one argument is stored.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> class Norms:
    ...     def rows(self, cotangents, output, leaf):
    ...         return [0.0 if row is None else float(np.linalg.norm(row)) for row in cotangents]
    >>> dagad.jacrev(lambda x: np.array([3.0, 4.0]) * x[0], layout=Norms())(np.ones(2))
    [3.0, 4.0]
    """

    def rows(self, cotangents: Sequence[Any], output: Value, leaf: Leaf) -> Any:
        """Return the Jacobian, from one cotangent of `leaf` for each entry of `output`; None means zero."""


def checked_layout(layout: Any) -> Layout:
    if not callable(getattr(layout, "rows", None)) or isinstance(layout, type):
        raise PlanError(
            f"`layout={layout!r}` is not a layout of Jacobians. Give an object: `dagad.extend.Dense()` or "
            "`dagad.extend.Sparse()`, or None."
        )
    return layout  # type: ignore[no-any-return]  # anything with the method is a layout


@dataclass(frozen=True, slots=True)
class Dense:
    """An array of shape ``(*output.shape, *input.shape)``.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.extend import Dense
    >>> dagad.jacrev(lambda x: x * x, layout=Dense())(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """

    def rows(self, cotangents: Sequence[Any], output: Value, leaf: Leaf) -> Any:
        plain, shape = pytree.plain(leaf), np.shape(pytree.plain(output))
        if any(map(pytree.is_traced, cotangents)):
            stacked = anp.stack(pytree.filled(cotangents, [leaf] * len(cotangents)))
            return anp.reshape(stacked, (*shape, *np.shape(plain)))
        dense = np.zeros((len(cotangents), *np.shape(plain)), pytree.dtype_of(plain))
        for row, part in zip(dense, cotangents, strict=True) if dense.ndim > 1 else ():
            for rows, values in runs_of(part):
                row[rows] = values
        if dense.ndim == 1:
            dense[:] = [0 if part is None else part for part in cotangents]
        return dense.reshape((*shape, *np.shape(plain)))


@dataclass(frozen=True, slots=True)
class Sparse:
    """A ``scipy.sparse.csr_array`` of shape ``(output.size, input.size)``; needs scipy.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.extend import Sparse
    >>> def squares(rows):
    ...     return dagad.map(lambda x: x * x, rows)
    >>> jacobian = dagad.jacrev(squares, layout=Sparse())(np.array([1.0, 2.0, 3.0]))
    >>> jacobian.shape, jacobian.nnz, jacobian.diagonal()
    ((3, 3), 3, array([2., 4., 6.]))
    """

    def rows(self, cotangents: Sequence[Any], output: Value, leaf: Leaf) -> Any:
        del output
        from scipy.sparse import csr_array

        if any(map(pytree.is_traced, cotangents)):
            raise NotDifferentiableError(
                "A sparse Jacobian can't be differentiated: scipy's arrays are not traced. Leave `layout=` out."
            )
        found = [_entries(part, leaf) for part in cotangents]
        starts = np.cumsum([0, *(len(positions) for positions, _ in found)])
        positions = np.concatenate([np.zeros(0, np.intp), *(positions for positions, _ in found)])
        values = np.concatenate([np.zeros(0, pytree.dtype_of(leaf)), *(values for _, values in found)])
        return csr_array((values, positions, starts), shape=(len(cotangents), max(int(np.size(leaf)), 0)))


def _entries(part: Cotangent, leaf: Leaf) -> tuple[Any, Any]:
    """Return the places and values of a cotangent that may differ from zero, in order."""
    found = [(np.zeros(0, np.intp), np.zeros(0, pytree.dtype_of(leaf)))]
    for rows, values in sorted(runs_of(part), key=lambda run: run[0].start):
        flat = np.ravel(values)
        positions = np.flatnonzero(flat)
        found.append((positions + (rows.start or 0) * math.prod(np.shape(values)[1:]), flat[positions]))
    positions, flat = map(np.concatenate, zip(*found, strict=True))
    return positions, flat


def rows(program: Program, layout: Layout, side_by_side: SideBySide | None = None) -> tuple[Any, Any]:
    """Return the Jacobian of a program, recorded once and pulled from each entry of its value; and what came along."""
    _refuse_sharded(program.leaves)
    _refuse_complex(program.leaves)
    with like_here(VALUES_FIRST):
        groups = in_groups(side_by_side, "rows", program, pulled, _pulls)
    _refuse_other_values(program, [one for one, _, _ in groups])
    (value, aux, _), n_leaves = groups[0], len(program.leaves)
    columns = [[part for _, _, found in groups for part in found[leaf]] for leaf in range(n_leaves)]
    outputs, treedef = pytree.flatten(value)
    found: list[Any] = [None] * len(outputs)
    start = 0
    for position, leaf in _active(outputs):
        stop = start + np.size(leaf)
        pairs = zip((column[start:stop] for column in columns), program.leaves, strict=True)
        found[position] = program.arranged(
            [layout.rows(_fitting(own, leaf), outputs[position], leaf) for own, leaf in pairs]
        )
        start = stop
    return pytree.unflatten(treedef, found), aux


def pulled(program: Program, number: int, count: int) -> Found:
    """Record a program, and pull a group of the rows of its Jacobian."""
    with like_here(VALUES_FIRST), directions_divided(count > 1):
        return _Tape(program).pulled(number, count)


def _pulls(program: Program, n_threads: int) -> list[Callable[[], Found]]:
    """Record a program; return what pulls groups of the rows of its Jacobian through its tape."""
    with directions_divided(n_threads > 1):
        tape = _Tape(program)
    count = max(min(n_threads, tape.n_rows), 1)
    return [functools.partial(tape.pulled, number, count) for number in range(count)]


class _Tape:
    """A program that was recorded, from each entry of whose value a seed goes back."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.value, self.aux, self._ends, self._roots = program.tape()
        outputs = pytree.flatten(self.value)[0]
        self._active, self._n_outputs = _active(outputs), len(outputs)
        _refuse_complex([leaf for _, leaf in self._active])
        self.n_rows = sum(int(np.size(leaf)) for _, leaf in self._active)

    def pulled(self, number: int, count: int) -> Found:
        """Return the cotangents of each leaf for a group of rows."""
        start, stop = bounds(number, count, self.n_rows)
        entries = [(position, leaf, index) for position, leaf in self._active for index in range(np.size(leaf))]
        # All at once: what the chunks left behind is used up by a pull.
        seeds = [
            [Blocks.one_hot(leaf, index) if other == position else None for other in range(self._n_outputs)]
            for position, leaf, index in entries[start:stop]
        ]
        return self.value, self.aux, pull_many(self._ends, seeds, self._roots, self._program.leaves)


def _active(outputs: Sequence[Any]) -> list[tuple[int, Any]]:
    """Return the outputs that have derivatives, without traces, with their places."""
    return [(n, pytree.plain(one)) for n, one in enumerate(outputs) if pytree.is_differentiable_or_traced(one)]


def columns(program: Program, side_by_side: SideBySide | None = None) -> tuple[Any, Any]:
    """Return the Jacobian of a program, pushed in the direction of each entry of its leaves; and what came along."""
    _refuse_sharded(program.leaves)
    _refuse_complex(program.leaves)
    plain = list(map(pytree.plain, program.leaves))
    groups = in_groups(side_by_side, "columns", program, jvps, _pushes, _n_columns(program))
    _refuse_other_values(program, [one for one, _, _ in groups])
    (value, aux, _), tangents_out = groups[0], [tangents for _, _, some in groups for tangents in some]
    outputs, treedef = pytree.flatten(value)
    found: list[Any] = []
    for position, output in enumerate(outputs):
        if not pytree.is_differentiable_or_traced(output):
            found.append(None)
            continue
        _refuse_complex([pytree.plain(output)])
        rest = iter([tangents[position] for tangents in tangents_out])
        parts = [_column([next(rest) for _ in range(np.size(leaf))], output, leaf) for leaf in plain]
        found.append(program.arranged(parts))
    return pytree.unflatten(treedef, found), aux


def _fitting(parts: Sequence[Any], leaf: Leaf) -> list[Any]:
    return [part if part is None else fitting(part, leaf) for part in parts]


def _n_columns(program: Program) -> int:
    return sum(int(np.size(pytree.plain(leaf))) for leaf in program.leaves)


def _pushes(program: Program, n_threads: int) -> list[Callable[[], Found]]:
    """Return what pushes a program in groups: no more at once than without threads, and as many for each."""
    n_columns = _n_columns(program)
    n_rounds = -(-n_columns // (n_threads * DIRECTIONS_AT_ONCE))
    count = max(min(n_threads * n_rounds, n_columns), 1)
    return [functools.partial(jvps, program, number, count) for number in range(count)]


def jvps(program: Program, number: int, count: int) -> Found:
    """Push a program in a group of the directions of its leaves."""
    plain, tangents_out = list(map(pytree.plain, program.leaves)), list[Any]()
    entries = [(position, leaf, index) for position, leaf in enumerate(plain) for index in range(np.size(leaf))]
    start, stop = bounds(number, count, len(entries))
    directions = [
        [full(Blocks.one_hot(leaf, index)) if other == position else None for other in range(len(plain))]
        for position, leaf, index in entries[start:stop]
    ]
    value, aux, tangents_out = program.push([[None] * len(plain)]) if not directions else (None, None, [])
    values = []
    with directions_divided(count > 1):
        for first in range(0, len(directions), DIRECTIONS_AT_ONCE):
            value, aux, some = program.push(directions[first : first + DIRECTIONS_AT_ONCE])
            values.append(value)
            tangents_out = [*tangents_out, *some]
    _refuse_other_values(program, values)
    return value, aux, tangents_out


def _refuse_other_values(program: Program, values: Sequence[Any]) -> None:
    """Raise if a program that was run for several groups of directions has not given the same bits each time."""
    first, *others = [_numbers_of(value) for value in values] or [[]]
    if not all(_are_close(first, other) for other in others):
        raise ClosureError(
            f"The Jacobian of `{program.name}` takes several runs of it, one for each group of directions, and these "
            "gave different values: it draws random numbers, or reads what it changes. Its columns would be those of "
            "different functions. Draw before the call, and pass what was drawn as an argument; or use `dagad.jacrev` "
            "without `scheduler=`, which runs it once."
        )


def _numbers_of(value: Value) -> list[Any]:
    return [np.asarray(leaf) for _, leaf in _active(pytree.flatten(value)[0]) if not pytree.is_sharded(leaf)]


def _are_close(first: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether values are the same, but for what another machine rounds otherwise."""
    shapes = [[one.shape for one in some] for some in (first, other)]
    return shapes[0] == shapes[1] and all(map(_is_close, first, other))


def _is_close(one: Array, two: Array) -> bool:
    if one.dtype.char not in "fF":
        return np.allclose(one, two, rtol=SAME, atol=0.0, equal_nan=True)
    scale = float(np.max(np.abs(one), initial=0.0, where=np.isfinite(one)))
    return np.allclose(one, two, rtol=SAME_IN_SINGLE, atol=SAME_IN_SINGLE * scale, equal_nan=True)


def _column(tangents: Sequence[Any], output: Value, leaf: Leaf) -> Any:
    """Return the Jacobian of one output with respect to one leaf, from one tangent per entry of the leaf."""
    zeros = pytree.zeros_like(output)
    shape = (*np.shape(zeros), *np.shape(leaf))
    if not tangents:
        return np.zeros(shape, pytree.dtype_of(zeros))
    filled = [zeros if part is None else part for part in tangents]
    numpy = anp if any(map(pytree.is_traced, filled)) else np
    return numpy.reshape(numpy.stack(filled, axis=-1), shape)


def _refuse_complex(leaves: Sequence[Any]) -> None:
    if any(np.iscomplexobj(pytree.plain(leaf)) for leaf in leaves):
        raise NotDifferentiableError(
            "The Jacobian of a function of complex numbers is no array of complex numbers, unless the function is "
            "holomorphic. Use `dagad.vjp` or `dagad.jvp`, or a function of the real and imaginary parts."
        )


def _refuse_sharded(leaves: Sequence[Any]) -> None:
    if any(map(pytree.is_sharded, leaves)):
        raise NotDifferentiableError(
            "A Jacobian with respect to rows in Shards would bring all of them together here. Use `dagad.grad` or "
            "`dagad.jvp`, whose results stay where the rows are, or give the array that `shards.gather()` returns."
        )
