"""Equations that scipy integrates: what the user wrote, and the same with tangents of its states beside them.

An equation has parameters, which are all traced values that its right-hand side is made of. Its `extended` equation has
the states ``[y, s_1, ..., s_k]``, where each s is moved by ``ds/dt = (df/dy) s + (df/dp) dp``, and the parameters
``[*p, *dp_1, ..., *dp_k]``. It is an equation like any other, so it can be extended again.

State: `_LSODA`, a lock: before scipy 1.17 one LSODA of a process refuses to go on when another one has begun.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import autograd.numpy as anp
import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._executors.member import by_itself
from dagad._tracing import equalities
from dagad._tracing.forward import TangentNode, push
from dagad._tracing.operands import array_of
from dagad._tracing.patches import patches
from dagad._tracing.private import numpy_wrapper
from dagad._tracing.rules import learn_rules
from dagad._tracing.stacked_tangents import is_double, is_stack, stacked
from dagad._tracing.tape import refuse_stale, traceable, traced
from dagad._tracing.traced_array import TracedArray, array_of_numbers, new_box
from dagad._types import Array, Leaf
from dagad._values import pytree
from dagad.solvers._given import compare_at

# From a time and a state to its slope.
Field = Callable[[Any, Any], Any]
IMPLICIT = "Radau", "BDF", "LSODA"
_OF_THE_STATES = ("jac", "jac_sparsity", "lband", "uband")  # and not of their sensitivities
_STEPS = ("max_step", "min_step")
MOST_BAD = 300  # calls that give nan, before the time goes on: a step gets shorter by five each time or so
GOES_ON = 1e-10  # of the span


def is_kind_of(method: object, *names: str) -> bool:
    """Return whether a method, by its name or as a class of solvers, is one of these of scipy's, or made of one."""
    if isinstance(method, str):
        return method in names
    from scipy import integrate

    return isinstance(method, type) and issubclass(method, tuple(getattr(integrate, name) for name in names))


def is_implicit(method: object) -> bool:
    """Return whether a method asks for Jacobians."""
    return is_kind_of(method, *IMPLICIT)


class Settings(NamedTuple):
    """How scipy is to integrate; tolerances are the equation's own affair.

    Attributes
    ----------
    method
        A name that `scipy.integrate.solve_ivp` knows, or a class of solvers.
    options
        What the user gave to it, but for tolerances and Jacobians.
    rtol
        Relative tolerance, one for all states or one for each.
    pattern
        Where the Jacobian is not zero, a sparse matrix; None for everywhere.
    sparse_jacobian
        Where it is not zero at a time and a state, ``(t, y) -> matrix``, which is more as time goes on; or None.
    """

    method: Any
    options: dict[str, Any]
    rtol: Any
    pattern: Any = None
    sparse_jacobian: Callable[[float, Array], Any] | None = None

    @property
    def is_implicit(self) -> bool:
        """Whether the method asks for Jacobians."""
        return is_implicit(self.method)

    @property
    def is_lsoda(self) -> bool:
        """Whether the method is LSODA, which takes no sparse matrices."""
        return is_kind_of(self.method, "LSODA")

    def for_span(self, span: float) -> dict[str, Any]:
        """Return the options of an integration over a span that may be shorter than the user's."""
        found = {name: self.options[name] for name in _STEPS if name in self.options}
        if not isinstance(self.method, str):
            found |= {name: value for name, value in self.options.items() if name not in _OF_THE_STATES}
        first = self.options.get("first_step")
        if first is not None:
            found["first_step"] = min(first, span)
        return found


class RightHandSide(Protocol):
    """What the user wrote; `points` are some of the times and states at which it was called, as made last."""

    points: list[tuple[Any, Any]]

    def __call__(self, params: Sequence[Any]) -> Field:
        """Return the right-hand side for some parameters."""


class Equation(Protocol):
    """A right-hand side that depends on parameters.

    Attributes
    ----------
    settings
        How it is integrated.
    atol
        Absolute tolerances, one for each state.
    n_moving
        How many states come first of which none depends on a later one.
    """

    settings: Settings
    atol: np.ndarray
    n_moving: int

    def field(self, params: Sequence[Any]) -> contextlib.AbstractContextManager[Field]:
        """Give the right-hand side at some parameters, for as long as it is needed."""


class Written:
    """The user's equation: `make` returns its right-hand side for some parameters."""

    def __init__(self, make: RightHandSide, settings: Settings, atol: np.ndarray, name: str) -> None:
        self._make, self.settings, self.atol, self.n_moving = make, settings, atol, len(atol)
        self._name, self._is_compared = name, False

    @contextlib.contextmanager
    def field(self, params: Sequence[Any]) -> Iterator[Field]:
        """Give the right-hand side, which returns an array; see `Equation.field`."""
        before = equalities.count()
        yield self._shaped(params)
        if equalities.count() != before and not self._is_compared:
            self._is_compared = True
            compare_at(list(self._make.points), self._shaped, params, self._name)

    def _shaped(self, params: Sequence[Any]) -> Field:
        return functools.partial(_shaped_slope, self._make(params), len(self.atol))


def _shaped_slope(field: Field, n_states: int, t: Array, y: Array) -> Any:
    """Return the slope as an array, as scipy makes one of it."""
    slope = field(t, y)
    if type(slope) in (list, tuple) and len(slope) == n_states:
        quick = array_of_numbers(slope)
        slope = slope if quick is None else quick
    if type(slope) is type(y) is TracedArray and slope._trace == y._trace and type(slope._value) is np.ndarray:
        if slope._value.shape == (n_states,):  # nearly always
            return slope
    if type(slope) in (list, tuple) and all(np.ndim(pytree.plain(part)) == 0 for part in slope):
        slope = numpy_wrapper.array_from_args((), {}, *slope)  # a list of numbers, nearly always
    slope = array_of(slope)
    if np.shape(pytree.plain(slope)) != (n_states,):
        slope = anp.reshape(slope, (-1,)) * np.ones(n_states)
    if not (pytree.is_traced(slope) or pytree.is_traced(y)):
        return np.asarray(slope)
    refuse_stale(slope, "What the right-hand side of a differential equation returned")
    return slope


class Extended:
    """An equation with tangents of its states; the tolerances of a tangent are those of the states in its own scale."""

    def __init__(self, below: Equation, moving: Sequence[int], scales: Sequence[float]) -> None:
        self._below, self._moving = below, tuple(moving)
        self.settings = below.settings
        self.atol = np.concatenate([below.atol, *(below.atol * scale for scale in scales)])
        self.n_moving, self._count = len(below.atol), len(scales)

    @contextlib.contextmanager
    def field(self, params: Sequence[Any]) -> Iterator[Field]:
        """Give the slopes of states and tangents, whose trace is open for as long; see `Equation.field`."""
        each, count = len(self._moving), self._count
        n_below = len(params) - each * count
        boxed = list(params[:n_below])
        learn_rules()
        with patches.new_trace() as level:
            for index, place in enumerate(self._moving):
                boxed[place] = _moving(traceable(boxed[place]), level, list(params[n_below + index :: each]))
            with self._below.field(boxed) as field:
                yield functools.partial(self._moved, field, level)

    def _moved(self, field: Field, level: int, t: Array, y: Array) -> Any:
        """Return the slopes of the states and of their tangents."""
        count, n = self._count, self.n_moving
        rows = y.reshape((1 + count, n))
        tangents = rows[1:] if is_double(y) else [rows[1 + number] for number in range(count)]
        box = new_box(rows[0], level, TangentNode.new_root(tangents))
        slope = traced(functools.partial(field, t), box)
        if not (pytree.is_traced(slope) and slope._trace == level):
            return anp.concatenate([slope, np.zeros(count * n, _dtype_of(slope))])
        value, tangents = slope._value, slope._node.g
        if is_stack(tangents):
            if not (pytree.is_traced(value) or pytree.is_traced(tangents)):
                found = np.empty((1 + count, n))
                found[0], found[1:] = value, tangents
                return found.reshape(-1)
            return anp.concatenate([value, tangents.reshape((-1,))])
        if not any(map(pytree.is_traced, (value, *tangents))):
            found = np.zeros((1 + count, n), np.result_type(value, *(part for part in tangents if part is not None)))
            found[0] = value
            for number, part in enumerate(tangents):
                if part is not None:
                    found[1 + number] = part
            return found.reshape(-1)
        nothing = np.zeros(n, _dtype_of(value))
        return anp.concatenate([value, *(nothing if part is None else part for part in tangents)])


def _moving(leaf: Leaf, level: int, tangents: list[Any]) -> Any:
    """Return a parameter in a box, with its tangents in a stack where they are plain."""
    value = np.float64(leaf) if type(leaf) is float else leaf  # numpy's own division, for one, in any case
    return new_box(value, level, TangentNode.new_root(stacked(tangents, value)))


def _dtype_of(leaf: Leaf) -> Any:
    return pytree.dtype_of(pytree.plain(leaf))


# Integration, by scipy, of plain values


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


_LSODA = threading.RLock()


def solved(*args: Any, **kwargs: Any) -> Any:
    """Return what scipy's `solve_ivp` does, which is called with keywords; threads take turns where they have to."""
    from scipy import integrate

    method = kwargs["method"]
    is_alone = is_kind_of(method, "LSODA") and hasattr(integrate._ode, "LSODA_LOCK")
    if not is_alone:
        return integrate.solve_ivp(*args, **kwargs)
    with _LSODA, by_itself():  # a member that waited for others would have it while they come here
        return integrate.solve_ivp(*args, **kwargs)


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
        if not np.isfinite(slope).all():
            self._n_bad += 1
            if self._is_first or self._n_bad > MOST_BAD:
                raise NotDifferentiableError(not_finite(t))
        elif self._n_bad and abs(t - self._last) > self._least:
            self._last, self._n_bad = t, 0
        self._is_first = False
        return slope


def not_finite(t: float) -> str:
    """Tell that sensitivities can't be integrated across a time."""
    return (
        "A solution of differential equations is being differentiated, and the derivative of its right-hand side is "
        f"not finite at t = {t}, as that of `np.sqrt(y)`, or of a norm, at zero. Begin elsewhere, or write what has a "
        "finite slope there: `np.sqrt(y + 1e-12)`, or `np.sqrt(np.sum(y**2) + 1e-12)` for a norm."
    )


def integrate(equation: Equation, params: Sequence[Any], y0: Array, span: tuple[float, float], **asked: Any) -> Any:
    """Return scipy's result at plain values; what failed is refused."""
    with equation.field(params) as field:
        options = solver_options(equation, params, abs(span[1] - span[0]))
        found = solved(FiniteSlope(field, *span), span, y0, **asked, **options)
    check_solved(found, "the equations of its sensitivities, or of its adjoint,")
    return found


def check_solved(found: Any, what: str) -> None:
    """Refuse to differentiate what scipy did not integrate to the end."""
    if found.status != 0:
        reached = found.t[-1] if len(found.t) else "the beginning"
        raise NotDifferentiableError(
            f"A solution of differential equations is being differentiated, and scipy could not integrate {what} "
            f"beyond t = {reached}: {found.message} Try another `method` (Radau, BDF and LSODA are for stiff "
            "equations), other tolerances, or a shorter `t_span`."
        )
