"""What solves an equation, differentiated by the equation: the implicit function theorem, of any order, in every mode.

If ``residual(x, a) = 0`` then ``A dx = -r da``, with A the derivative of the residual in x, and r that in a. The linear
system has a rule of its own, by products with A, which is a derivative that can be taken again. So nothing looks into
the solver, and the matrix is made, once for each solution, of plain numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np
from scipy.sparse.linalg import LinearOperator, gmres

from dagad._engines.differences import Compared
from dagad._engines.elsewhere import refuse_derivatives
from dagad._engines.ruled import applied, output_tangents, pulled_back
from dagad._errors import ArgumentsError, NotDifferentiableError, StructureError
from dagad._tracebacks import public
from dagad._tracing.flat_functions import Leaves
from dagad._tracing.forward import push
from dagad._tracing.operands import joined, vector_of
from dagad._tracing.tape import refuse_boxes
from dagad._types import Array
from dagad._values import pytree
from dagad._values.closures import as_now, closure_convert
from dagad._values.partition import Partition
from dagad._words import described, name_of
from dagad.solvers._factors import AS_THEY_ARE, IN_UNITS, Factors, OwnUnits, Units, own_units
from dagad.solvers._given import Then, refuse_remembered

LinearSolve = Callable[[Callable[[Any], Any], Any], Any]
DENSE = 500  # unknowns up to which the matrix is made
AT_ONCE = 64  # columns of it that are computed together
TOLERANCE = 1e-12  # of the iterations, relative to the right-hand side
SOLVED = 1e-4  # to which the user's own method has to solve: those of scipy stop at 1e-5
CYCLE = 200  # products after which they begin anew
RESTARTS = 10  # such cycles
ROUGH = 1e-3  # how well Newton's step is known where it is found by products
NEIGHBOURS = 2  # points beside the solution, at which one looks whether small entries of the matrix stay
NEAR, STAYS = 1e-6, 1e-2  # how far away, of the size of each unknown; by how much they may change, of their own


class System:
    """Equations for some unknowns, at a solution.

    Parameters
    ----------
    equations
        ``(x, leaves) -> residual``, written with numpy: x as the solver returned it, and the leaves that are traced.
    x
        The solution.
    name
        What sentences call the solver.
    linear_solve
        The user's ``(matvec, b) -> w``.
    refuse
        Raises where the solution has no derivative; it is given a function that returns the residual there.
    """

    def __init__(
        self,
        equations: Callable[[Any, Leaves], Any],
        x: Array,
        name: str,
        linear_solve: LinearSolve | None = None,
        refuse: Callable[[Callable[[], Any]], None] | None = None,
    ) -> None:
        self._equations, self.name, self._linear_solve, self._refuse = equations, name, linear_solve, refuse
        for leaf in pytree.flatten(x)[0]:
            refuse_boxes(leaf, f"What `{name}` returned")
        self._partition = Partition.of(x, pytree.is_differentiable)
        self.values = self._partition.taken
        if not self.values or any(np.iscomplexobj(value) for value in self.values):
            raise NotDifferentiableError(
                f"The derivative of what `{name}` returned was asked for, and that is {described(x)}. Return real "
                "floating-point numbers: a complex one as its real and imaginary part."
            )
        self.shapes = [np.shape(value) for value in self.values]
        self.size = sum(int(np.prod(shape)) for shape in self.shapes)
        self._compared = Compared(self._vector, len(self.values), functools.partial(refuse_remembered, name))
        self._factors: Any = None
        self._is_seen = False

    def unknowns(self, leaves: Leaves) -> Any:
        """Return the solution, as a function of the leaves that somebody traces."""
        return self._partition.merge(iter(applied(_Solution(self), leaves)))

    def residual(self, xs: Leaves, leaves: Leaves) -> Any:
        """Return the residual as one vector."""
        vector: Any = self._compared([*xs, *leaves])[0]
        return vector

    def _vector(self, both: Leaves) -> list[Any]:
        n = len(self.values)
        found = self._equations(self._partition.merge(iter(both[:n])), both[n:])
        _refuse_no_numbers(found, self.name)
        vector = vector_of(found)
        if vector.size != self.size:
            raise StructureError(
                f"`residual` returned {vector.size} numbers for {self.size} unknowns of `{self.name}`. Return as many "
                "equations as there are unknowns."
            )
        return [vector]

    def split(self, vector: Array) -> list[Any]:
        """Return the parts of a vector that belong to the unknowns."""
        parts, start = [], 0
        for shape in self.shapes:
            stop = start + int(np.prod(shape))
            parts.append(anp.reshape(vector[start:stop], shape) if shape else vector[start])
            start = stop
        return parts

    def product(self, vector: Array, transposed: bool, xs: Leaves, leaves: Leaves) -> Any:
        """Return the product of a vector and the derivative of the residual with respect to the unknowns."""

        def of_unknowns(xs: Leaves) -> list[Any]:
            return [self.residual(xs, leaves)]

        if not transposed:
            (product,) = output_tangents(of_unknowns, xs, dict(enumerate(self.split(vector))))
            return np.zeros(self.size) if product is None else product
        found = pulled_back(of_unknowns, xs, [vector], range(len(xs)))
        return joined([found[index] if index in found else np.zeros(shape) for index, shape in enumerate(self.shapes)])

    def solve(self, b: Array, transposed: bool, xs: Leaves, leaves: Leaves) -> Any:
        """Return the solution of the linear system, of plain numbers."""
        refuse = self._refuse  # another thread may be done with it
        if refuse is not None:
            refuse(lambda: np.asarray(self.residual(xs, leaves)))
            self._refuse = None  # all who pull from here come to the same point
        if self._linear_solve is None and self.size <= DENSE:
            return self._densely(b, transposed, xs, leaves)
        if not self._is_seen:
            self._look(xs, leaves)
            self._is_seen = True  # all who pull from here come to the same point
        if self._linear_solve is not None:
            found = self._by_user(self._linear_solve, np.array(b), transposed, xs, leaves)
            self._refuse_unsolved(self._matvec(transposed, xs, leaves)(found) - b, b)
            return found
        return self._by_products(b, transposed, xs, leaves) if np.any(b) else np.zeros_like(b)

    def _by_user(self, linear_solve: LinearSolve, b: Array, transposed: bool, xs: Leaves, leaves: Leaves) -> Any:
        found = np.asarray(linear_solve(self._matvec(transposed, xs, leaves), b), float)
        if found.shape != b.shape:
            raise StructureError(
                f"`linear_solve` returned an array of shape {found.shape} for a right-hand side of shape {b.shape}. "
                "Return the solution w of `matvec(w) == b`, a vector."
            )
        return found

    def _refuse_unsolved(self, left: Array, b: Array) -> None:
        if np.linalg.norm(left) > SOLVED * np.linalg.norm(b):  # false for nan, which everybody sees
            raise NotDifferentiableError(
                f"What `{self.name}` found could not be differentiated: `linear_solve` returned a w for which "
                f"`matvec(w) - b` is {np.linalg.norm(left):.1e}, where b is {np.linalg.norm(b):.1e}, by their norms; "
                f"{SOLVED:.0e} of b at most is asked for. Raise its number of iterations, give it a preconditioner or "
                "a relative tolerance, and see that it solves with the `matvec` that it is given."
            )

    def _densely(self, b: Array, transposed: bool, xs: Leaves, leaves: Leaves) -> Any:
        if self._factors is None:
            self._factors = self._factored(xs, leaves)
        if self._factors is _NOT_FINITE:
            return np.full(self.size, np.nan)
        return self._factors.solve(b, transposed)

    def _factored(self, xs: Leaves, leaves: Leaves) -> Any:
        matrix, residual = self._matrix(xs, leaves)
        if not np.isfinite(matrix).all():
            return _NOT_FINITE
        factors = Factors(matrix)
        if factors.rcond < IN_UNITS:
            units = own_units(matrix)
            scaled = Factors(matrix, units)
            if not (factors.is_singular and self._is_noise(matrix, units, xs, leaves)):
                factors = max(factors, scaled, key=lambda each: each.rcond)
        if factors.is_singular:
            raise NotDifferentiableError(
                f"What `{self.name}` found has no derivative: the derivative of the equations with respect to the "
                f"unknowns is singular there (its reciprocal condition number is {factors.rcond:.1e}), so that the "
                "solution is not the only one nearby, or a multiple one. Add the equations that fix it, or a small "
                "ridge."
            )
        step = factors.solve(residual, False)
        self._refuse_far(residual, step, xs, leaves, factors.units)
        if factors.is_weak:
            self._refuse_valley(factors, step, xs, leaves)
        return factors

    def _refuse_valley(self, factors: Factors, step: Array, xs: Leaves, leaves: Leaves) -> None:
        """Refuse one solution of many on a curve: the little slope along it is what the solver has left, and goes."""
        direction = factors.weakest()
        here, there = (self.product(direction, False, at, leaves) for at in (xs, self.split(joined(xs) - step)))
        if factors.units.is_lost(there - here, here):
            raise NotDifferentiableError(
                f"What `{self.name}` found has no derivative that can be trusted: in one direction the equations have "
                f"next to no slope (their reciprocal condition number is {factors.rcond:.1e}), and on a step of "
                f"Newton's, by {np.linalg.norm(step):.1e}, that changes by as much, as it does in a valley of "
                "solutions, where only a product of unknowns is fixed, say. Fix what is free, write one unknown for "
                "it, or add a small ridge; if there is one solution, solve to a smaller tolerance."
            )

    def _is_noise(self, matrix: Array, units: OwnUnits, xs: Leaves, leaves: Leaves) -> bool:
        """Return whether small entries, which count in units of their own, are what rounding leaves: others nearby."""
        at = joined(xs)
        for number in range(NEIGHBOURS):
            near = self.split(at * (1.0 + NEAR * np.cos(number + np.arange(self.size))))
            change = units.rows[:, None] * (self._matrix(near, leaves)[0] - matrix) * units.columns
            if not np.max(np.abs(change)) <= STAYS:  # true for nan
                return True
        return False

    def _refuse_far(self, residual: Array, step: Array, xs: Leaves, leaves: Leaves, units: Units = AS_THEY_ARE) -> None:
        """Refuse what is no solution, or a multiple one: there Newton's step is long, or goes to other slopes."""
        at = joined(xs)
        if units.is_far(step, at):
            raise NotDifferentiableError(
                f"What `{self.name}` found is no solution of the equations that it is differentiated by: a step of "
                f"Newton's moves it by {np.linalg.norm(step):.3g}, and its size is {np.linalg.norm(at):.3g}. Solve "
                "to a smaller tolerance, and see that `residual` is zero at the solution."
            )
        if units.is_exact(step, at):
            return
        there = self.product(step, False, self.split(at - step), leaves)  # here it is the residual
        if units.is_bent(there - residual, residual):
            raise NotDifferentiableError(
                f"What `{self.name}` found has no derivative that can be trusted: from there a step of Newton's, by "
                f"{np.linalg.norm(step):.3g}, leads to where the equations have another slope, as it is at a multiple "
                "root. Solve to a smaller tolerance, or write equations whose root is a simple one."
            )

    def _matrix(self, xs: Leaves, leaves: Leaves) -> tuple[Any, Any]:
        """Return the derivative of the residual in the unknowns, some columns at a time, and the residual."""
        residual: Any = None
        columns: list[Any] = []
        for start in range(0, self.size, AT_ONCE):
            units = np.eye(min(AT_ONCE, self.size - start), self.size, start)
            directions = list(map(self.split, units))
            (residual,), tangents_out = push(lambda xs: [self.residual(xs, leaves)], list(xs), directions)
            columns += [np.zeros(self.size) if part is None else np.asarray(part, float) for (part,) in tangents_out]
        return np.stack(columns, axis=1), np.asarray(residual, float)

    def _matvec(self, transposed: bool, xs: Leaves, leaves: Leaves) -> Callable[[Any], Any]:
        def matvec(vector: Array) -> Any:
            return np.asarray(self.product(np.asarray(vector, float).ravel(), transposed, xs, leaves), float)

        return matvec

    def _by_products(self, b: Array, transposed: bool, xs: Leaves, leaves: Leaves) -> Any:
        matvec = self._matvec(transposed, xs, leaves)
        found, failed = self._gmres(matvec, b, TOLERANCE)
        if failed:
            left = np.linalg.norm(matvec(found) - b) / np.linalg.norm(b)
            raise NotDifferentiableError(
                f"What `{self.name}` found, {self.size} unknowns, could not be differentiated: the linear system was "
                f"solved by GMRES to {left:.1e} of the right-hand side only, where {TOLERANCE:.0e} was asked for. Give "
                "`linear_solve(matvec, b)`, a method of your own with a preconditioner, say."
            )
        return found

    def _look(self, xs: Leaves, leaves: Leaves) -> None:
        """Refuse what is no solution, as far as a step of Newton's tells: it is found by products, or not at all."""
        residual = np.asarray(self.residual(xs, leaves), float)
        if not residual.any() or not np.isfinite(residual).all():
            return
        matvec = self._matvec(False, xs, leaves)
        if self._linear_solve is None:
            step, failed = self._gmres(matvec, residual, ROUGH)
        else:  # one that stops at an absolute tolerance may leave as it is what is small
            step = self._by_user(self._linear_solve, np.array(residual), False, xs, leaves)
            failed = not np.linalg.norm(matvec(step) - residual) <= ROUGH * np.linalg.norm(residual)
        if not failed:
            self._refuse_far(residual, step, xs, leaves)

    def _gmres(self, matvec: Callable[[Any], Any], b: Array, rtol: float) -> tuple[Any, bool]:
        operator = LinearOperator((self.size, self.size), matvec=matvec, dtype=float)
        found, failed = gmres(operator, b, rtol=rtol, atol=0.0, restart=min(self.size, CYCLE), maxiter=RESTARTS)
        return found, failed != 0


def _refuse_no_numbers(found: object, name: str) -> None:
    leaves = [leaf for leaf in pytree.flatten(found)[0] if leaf is not None]
    strange = [leaf for leaf in leaves if np.asarray(pytree.plain(leaf)).dtype.kind not in "fciub"]
    if strange or not leaves:
        raise StructureError(
            f"`residual` returned {described(strange[0] if strange else found)} for the unknowns of `{name}`, and no "
            "numbers. Return what is zero at the solution, by `return`: as many numbers as there are unknowns."
        )


_NOT_FINITE = object()


def given_to_solvers(box: object) -> Any:
    """Return the plain value of what somebody traces, as a solver gets it: its own, which it may write into."""
    plain = pytree.plain(box)
    return np.array(plain) if isinstance(plain, np.ndarray) else plain


class _Solution:
    """The solution of a system as a function of the leaves that its equations have."""

    def __init__(self, system: System) -> None:
        self._system = system

    def value(self, leaves: Leaves) -> list[Any]:
        del leaves
        return [np.array(part) if isinstance(part, np.ndarray) else part for part in self._system.values]

    def push(self, values: Leaves, leaves: Leaves, tangents: Mapping[int, Any]) -> Leaves:
        (tangent_out,) = output_tangents(lambda leaves: [self._system.residual(values, leaves)], leaves, tangents)
        if tangent_out is None:
            return [None] * len(values)
        return self._system.split(-_solved(self._system, False, tangent_out, values, leaves))

    def pull(self, values: Leaves, leaves: Leaves, cotangents: Sequence[Any], asked: Sequence[int]) -> dict[int, Any]:
        seed = joined(pytree.filled(cotangents, values))
        back = _solved(self._system, True, -seed, values, leaves)
        return pulled_back(lambda leaves: [self._system.residual(values, leaves)], leaves, [back], asked)


def _solved(system: System, transposed: bool, b: Array, xs: Leaves, leaves: Leaves) -> Any:
    return applied(_LinearSystem(system, transposed), [b, *xs, *leaves])[0]


class _LinearSystem:
    """The solution w of ``A w = b``, or of the transposed system, as a function of b and of all that A depends on."""

    def __init__(self, system: System, transposed: bool) -> None:
        self._system, self._transposed = system, transposed

    def _split(self, leaves: Leaves) -> tuple[Leaves, Leaves]:
        n_unknowns = len(self._system.shapes)
        return leaves[1 : 1 + n_unknowns], leaves[1 + n_unknowns :]

    def value(self, leaves: Leaves) -> list[Any]:
        return [self._system.solve(np.asarray(leaves[0], float), self._transposed, *self._split(leaves))]

    def _products(self, w: Array) -> Callable[[Leaves], list[Any]]:
        """Return the product of the matrix with a vector that stays, as a function of all leaves."""
        return lambda leaves: [self._system.product(w, self._transposed, *self._split(leaves))]

    def push(self, values: Leaves, leaves: Leaves, tangents: Mapping[int, Any]) -> Leaves:
        of_matrix = {index: tangent for index, tangent in tangents.items() if index}
        (tangent_out,) = output_tangents(self._products(values[0]), leaves, of_matrix) if of_matrix else (None,)
        right = tangents.get(0, 0.0) if tangent_out is None else tangents.get(0, 0.0) - tangent_out
        return [_solved(self._system, self._transposed, right, *self._split(leaves))] if np.ndim(right) else [None]

    def pull(self, values: Leaves, leaves: Leaves, cotangents: Sequence[Any], asked: Sequence[int]) -> dict[int, Any]:
        back = _solved(self._system, not self._transposed, cotangents[0], *self._split(leaves))
        of_matrix = [index for index in asked if index]
        found = pulled_back(self._products(values[0]), leaves, [-back], of_matrix) if of_matrix else {}
        return {**found, 0: back} if 0 in asked else found


@public
def implicit(
    solve: Callable[..., Any], residual: Callable[..., Any], *, linear_solve: LinearSolve | None = None
) -> Callable[..., Any]:
    """Return a function that solves an equation in any way, and is differentiated by the equation.

    Parameters
    ----------
    solve
        ``solve(*args) -> x``: anything that finds x, by compiled code, a search or a loop; it gets plain values.
        x is an array, a number or a pytree of these.
    residual
        ``residual(x, *args)``, which is zero at the solution: as many numbers as there are in x, in any pytree. It is
        written with numpy, and may be the gradient of a reduction.
    linear_solve
        ``linear_solve(matvec, b) -> w`` with ``matvec(w) == b``, for flat vectors of plain numbers; in reverse mode
        `matvec` is the transposed product. It is called once more, in either mode, for a step of Newton's, which tells
        whether x is a solution: solve with the `matvec` that is given. A w that leaves more than 1e-4 of b, by norms,
        is refused. By default the matrix is made for up to 500
        unknowns, and for more the system is solved by GMRES to 1e-12.

    Returns
    -------
    Callable
        ``(*args) -> x``, as `solve` returned it. Differentiated, with respect to the arguments or what the two
        functions have in their closures, it has every mode, of any order.

    Raises
    ------
    NotDifferentiableError
        When it is differentiated where the equation does not fix the solution, where what `solve` returned is no
        solution, or if the linear system could not be solved.
    StructureError
        If `residual` returns another count of numbers than there are unknowns.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.solvers import implicit
    >>> cube_root = implicit(lambda a: float(a) ** (1 / 3), lambda x, a: x**3 - a)
    >>> round(float(dagad.grad(cube_root)(8.0)), 9), round(float(dagad.hessian(cube_root)(8.0)), 9)
    (0.083333333, -0.006944444)
    """
    for what, fun in (("solve", solve), ("residual", residual)):
        if not callable(fun):
            raise ArgumentsError(f"`implicit` was given {described(fun)} for `{what}`. Give a function.")

    @public
    def solution(*args: Any) -> Any:
        boxes, make = closure_convert((solve, residual, args, linear_solve))
        if not boxes:
            refuse_derivatives(
                f"`{name_of(solve)}`", "`implicit` differentiates by its residual", solve, residual, args
            )
            return solve(*args)
        own_solve, _, plain, own_linear = make(list(map(given_to_solvers, boxes)))
        x = own_solve(*plain)
        # Derivatives run these later, after a loop has gone on, say; what `solve` has put down for them is there.
        own_linear, then = as_now(own_linear), Then((solve, residual, args, linear_solve), (residual, args))

        def equations(x: Array, leaves: Leaves) -> Any:
            _, own_residual, own_args, _ = then.at(leaves)
            found = own_residual(x, *own_args)
            then.settle()
            return found

        return System(equations, x, name_of(solve), own_linear).unknowns(boxes)

    return solution
