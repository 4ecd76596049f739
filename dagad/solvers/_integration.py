"""Equations integrated by scipy, of plain values: the one place that calls its solvers, and their options."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._tracing.forward import push
from dagad._tracing.stacked_tangents import FLOAT
from dagad._types import Array
from dagad.solvers._equations import Equation, Field, is_kind_of
from dagad.solvers._floats import at_times
from dagad.solvers._lsoda import at_times_by_lsoda, lsoda
from dagad.solvers._stepping import Slopes, stepped

MOST_BAD = 300  # calls that give nan, before the time goes on: a step gets shorter by five each time or so
GOES_ON = 1e-10  # of the span


def solver_options(equation: Equation, params: Sequence[Any], span: float) -> dict[str, Any]:
    """Return what scipy is told about how to integrate an equation."""
    settings = equation.settings
    rtol = settings.rtol
    if np.ndim(rtol):
        rtol = np.tile(rtol, len(equation.atol) // len(rtol))
    options = {**settings.for_span(span), "rtol": rtol, "atol": equation.atol, "method": settings.method}
    if settings.is_implicit:
        options["jac"] = Jacobian(equation, params)
    return options


class Jacobian:
    """The Jacobian of a right-hand side in its states, by tangents.

    That of an extended equation is made of the derivative in the states alone: A on the diagonal, and below it in the
    first column how A moves along each tangent. Without what is below the diagonal Newton's method would not converge.
    """

    def __init__(self, equation: Equation, params: Sequence[Any]) -> None:
        self._equation, self._params, self._n = equation, params, equation.n_moving
        self._sparsity: Sparsity | None = None
        self._seeds = np.eye(self._n) if equation.settings.pattern is None else self._know(equation.settings.pattern)

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
        from scipy import sparse

        self._look(t, y)
        n, blocks = self._n, len(y) // self._n
        seeds = np.zeros((len(self._seeds), len(y)))
        seeds[:, :n] = self._seeds
        _, tangents = push(lambda leaves: self._slope(t, leaves[0]), [y], [[seed] for seed in seeds])
        columns = np.stack([np.zeros_like(y) if part is None else part for (part,) in tangents], axis=-1)
        if not self._equation.settings.is_lsoda and not np.isfinite(columns).all():  # that one makes smaller steps
            raise NotDifferentiableError(not_finite(t))
        parts = [columns[n * row : n * (row + 1)] for row in range(blocks)]
        if self._sparsity is not None:
            parts = [self._sparsity.matrix(part) for part in parts]
        if blocks == 1:
            return as_array(parts[0]) if self._equation.settings.is_lsoda else parts[0]
        rows = [[parts[0], *[None] * (blocks - 1)]]
        for row in range(1, blocks):
            rows.append([parts[row], *[None] * (row - 1), parts[0], *[None] * (blocks - row - 1)])
        whole = sparse.bmat(rows, "csc")
        return whole.toarray() if self._equation.settings.is_lsoda else whole

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


def solved(*args: Any, **kwargs: Any) -> Any:
    """Return what scipy's `solve_ivp` does, which is called with keywords."""
    from scipy import integrate

    method = kwargs["method"]
    if method in ("BDF", integrate.BDF):
        kwargs["method"] = _initialised_bdf()
    if not is_kind_of(method, "LSODA"):
        return integrate.solve_ivp(*args, **kwargs)
    with lsoda(takes_turns=True):
        return integrate.solve_ivp(*args, **kwargs)


@functools.cache
def _initialised_bdf() -> Any:
    """Return scipy's BDF with all of its differences written.

    Its first step subtracts a row that nobody wrote before it is replaced (gh-16883). It is in no result, but where the
    memory holds a signalling nan, numpy warns of an invalid value, once in thousands of solutions.
    """
    from scipy import integrate

    class BDF(integrate.BDF):  # type: ignore[misc]  # scipy has no types
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.D[2:] = 0.0

    return BDF


def is_finite(slope: Array) -> bool:
    """Return whether all numbers of a slope are finite: of few, Python knows before numpy has begun."""
    if len(slope) < 32 and slope.dtype == FLOAT:
        return all(map(math.isfinite, slope.tolist()))
    return bool(np.isfinite(slope).all())


class FiniteSlope:
    """The slope of sensitivities or of an adjoint: scipy may meet nan in it, but not begin with that, nor stay there.

    It makes steps smaller where a trial of one gives nan. From a first step that is nan itself it never comes back, and
    towards a time of zero steps may become smaller and smaller.
    """

    def __init__(self, field: Field, start: float, stop: float) -> None:
        self._field, self._least = field, GOES_ON * abs(stop - start)
        self._last, self._n_bad, self._is_first = start, 0, True

    def __call__(self, t: float, y: Array) -> Any:
        slope = self._field(t, y)
        if not is_finite(slope):
            self._n_bad += 1
            if self._is_first or self._n_bad > MOST_BAD:
                raise NotDifferentiableError(not_finite(t))
        elif self._n_bad and abs(t - self._last) > self._least:
            self._last, self._n_bad = t, 0
        self._is_first = False
        return slope

    @property
    def numbers(self) -> Slopes | None:
        """Returns finite slopes of floats, with an error where there is more to say; None if there are none."""
        if self._is_first or self._n_bad:
            return None
        numbers: Slopes | None = getattr(self._field, "numbers", None)
        return numbers


def not_finite(t: float) -> str:
    """Tell that sensitivities can't be integrated across a time."""
    return (
        "A solution of differential equations is being differentiated, and the derivative of its right-hand side is "
        f"not finite at t = {t}, as that of `np.sqrt(y)`, or of a norm, at zero. Begin elsewhere, or write what has a "
        "finite slope there: `np.sqrt(y + 1e-12)`, or `np.sqrt(np.sum(y**2) + 1e-12)` for a norm."
    )


def integrate(equation: Equation, params: Sequence[Any], y0: Array, span: tuple[float, float], **asked: Any) -> Any:
    """Return scipy's result at plain values; what failed is refused."""
    with equation.plain_field(params) as field:
        options = solver_options(equation, params, abs(span[1] - span[0]))
        slope = FiniteSlope(field, *span)
        found = solved(slope, span, y0, **asked, **options | stepped(options["method"], y0, slope))
    check_solved(found, "the equations of its sensitivities, or of its adjoint,")
    return found


def integrate_to(
    equation: Equation, params: Sequence[Any], y0: Array, span: tuple[float, float], times: np.ndarray
) -> Any:
    """Return the solution at some times of the span, in its order, as columns; what failed is refused."""
    with equation.plain_field(params) as field:
        options = solver_options(equation, params, abs(span[1] - span[0]))
        along = at_times_by_lsoda if options["method"] == "LSODA" else at_times
        found = along(FiniteSlope(field, *span), y0, span, times, options)
    return integrate(equation, params, y0, span, t_eval=times).y if found is None else found


def check_solved(found: Any, what: str) -> None:
    """Refuse to differentiate what scipy did not integrate to the end."""
    if found.status != 0:
        reached = found.t[-1] if len(found.t) else "the beginning"
        raise NotDifferentiableError(
            f"A solution of differential equations is being differentiated, and scipy could not integrate {what} "
            f"beyond t = {reached}: {found.message} Try another `method` (Radau, BDF and LSODA are for stiff "
            "equations), other tolerances, or a shorter `t_span`."
        )
