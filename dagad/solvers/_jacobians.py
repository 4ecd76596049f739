"""Jacobians of right-hand sides in their states, for implicit methods: dense, or sparse where many entries are zero."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._tracing.forward import push
from dagad._tracing.stacked_tangents import FLOAT
from dagad._types import Array
from dagad.solvers._equations import Equation, Extended, Field, not_finite
from dagad.solvers._recorded import MOST_DIRECTIONS, MOST_STATES

_DENSE = 100  # states with their tangents: of fewer, a dense matrix is sooner made, and factored, than a sparse one


class Jacobian:
    """The Jacobian of a right-hand side in its states, by tangents.

    That of an extended equation is made of the derivative in the states alone: A on the diagonal, and below it in the
    first column how A moves along each tangent. Without what is below the diagonal Newton's method would not converge.
    """

    def __init__(self, equation: Equation, params: Sequence[Any], until: contextlib.ExitStack) -> None:
        self._equation, self._params, self._n, self._until = equation, params, equation.n_moving, until
        self._sparsity: Sparsity | None = None
        self._seeds = np.eye(self._n) if equation.settings.pattern is None else self._know(equation.settings.pattern)
        self._with_columns: Field | None = None

    def _know(self, pattern: Any) -> Any:
        """Note where the Jacobian is not zero; return the tangents by which it is found."""
        self._pattern, self._sparsity = pattern, Sparsity(pattern, self._n // pattern.shape[0])
        return self._sparsity.seeds

    def _look(self, t: float, y: Array) -> None:
        """Join what is not zero with what is not zero here: of what was zero before, the user's matrix has no entry."""
        jacobian = self._equation.settings.sparse_jacobian
        if jacobian is not None:
            joined = pattern_of(self._pattern + pattern_of(jacobian(t, y[: self._pattern.shape[0]])))
            if joined.nnz > self._pattern.nnz:
                self._seeds = self._know(joined)

    def __call__(self, t: float, y: Array) -> Any:
        self._look(t, y)
        columns, is_lsoda = self._columns(t, y), self._equation.settings.is_lsoda
        if not is_lsoda and not np.isfinite(columns).all():  # that one makes smaller steps
            raise NotDifferentiableError(not_finite(t))
        n = self._n
        if self._sparsity is None and (is_lsoda or len(y) <= _DENSE):
            whole = np.kron(np.eye(len(y) // n), columns[:n])
            whole[n:, :n] = columns[n:]
            return whole
        parts = [columns[start : start + n] for start in range(0, len(y), n)]
        if self._sparsity is not None:
            parts = [self._sparsity.matrix(part) for part in parts]
        if len(parts) == 1:
            return as_array(parts[0]) if is_lsoda else parts[0]
        return self._in_blocks(parts)

    def _in_blocks(self, parts: Sequence[Any]) -> Any:
        from scipy import sparse

        first, *others = parts
        rows = [[first, *[None] * len(others)]]
        for row, part in enumerate(others):
            rows.append([part, *[None] * row, first, *[None] * (len(others) - row - 1)])
        whole = sparse.bmat(rows, "csc")
        return whole.toarray() if self._equation.settings.is_lsoda else whole

    def _columns(self, t: float, y: Array) -> Any:
        """Return how the slope moves along each seed, as columns."""
        seeds = np.zeros((len(self._seeds), len(y)))
        seeds[:, : self._n] = self._seeds
        is_small = len(y) * (1 + len(seeds)) <= MOST_STATES and len(seeds) <= MOST_DIRECTIONS
        if is_small and self._sparsity is None and y.dtype == FLOAT:
            return self._field()(t, np.concatenate([y, seeds.reshape(-1)]))[len(y) :].reshape(seeds.shape).T
        _, tangents = push(lambda leaves: self._slope(t, leaves[0]), [y], [[seed] for seed in seeds])
        return np.stack([np.zeros_like(y) if part is None else part for (part,) in tangents], axis=-1)

    def _field(self) -> Field:
        """Return the right-hand side with its columns, which may be recorded: as it is extended once more.

        Parameters that move there move here too, by nothing: so what is recorded holds for others.
        """
        if self._with_columns is None:
            moving = self._equation.moving
            still = [np.zeros(np.shape(self._params[position])) for position in moving]
            extended = Extended(self._equation, moving, [1.0] * self._n)
            params = [*self._params, *still * self._n]
            self._with_columns = self._until.enter_context(extended.plain_field(params))
        return self._with_columns

    def _slope(self, t: float, y: Array) -> Any:
        with self._equation.field(self._params) as field:
            return field(t, y)


def pattern_of(matrix: object) -> Any:
    """Return a sparse matrix with a one wherever a matrix has an entry, one that is zero too."""
    from scipy import sparse

    found = sparse.csc_matrix(matrix)
    return sparse.csc_matrix((np.ones(found.nnz), found.indices, found.indptr), found.shape)


class Sparsity:
    """Where a Jacobian of lower blocks is not zero; columns that share no row are found by one tangent."""

    def __init__(self, pattern: object, n_blocks: int) -> None:
        from scipy import sparse

        self._pattern = sparse.kron(np.tri(n_blocks), pattern, "csc")
        self._rows, ends = self._pattern.indices, self._pattern.indptr
        n = self._pattern.shape[1]
        taken: list[set[int]] = [set() for _ in range(n)]
        colours = np.zeros(n, int)
        for column in range(n):
            rows = self._rows[ends[column] : ends[column + 1]]
            used = set().union(*(taken[row] for row in rows))
            colours[column] = next(colour for colour in range(n) if colour not in used)
            for row in rows:
                taken[row].add(int(colours[column]))
        self.seeds = (colours == np.arange(colours.max(initial=0) + 1)[:, None]).astype(float)
        self._colours = np.repeat(colours, np.diff(ends))

    def matrix(self, columns: np.ndarray) -> Any:
        """Return the Jacobian, from its products with the seeds."""
        found = self._pattern.astype(columns.dtype)
        found.data = columns[self._rows, self._colours]
        return found


def as_array(matrix: Array) -> np.ndarray:
    """Return a matrix, sparse or not, as an array."""
    return matrix.toarray() if hasattr(matrix, "toarray") else np.asarray(matrix)
