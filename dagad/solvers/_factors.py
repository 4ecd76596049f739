"""A linear system in the units of its own unknowns and equations, which may differ by many orders of magnitude."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from scipy.linalg import LinAlgWarning, get_lapack_funcs, lu_factor, lu_solve

from dagad._types import Array

SINGULAR = np.finfo(float).eps  # reciprocal condition numbers up to this one
IN_UNITS = 1e-8  # from which on it is asked whether the units are to blame
ROUNDS = 8  # of making rows and columns alike
FAR = 1e-2  # by how much of its size Newton's step may move what is said to be a solution
EXACT = 1e-13  # how short, of the size of the solution, a step is that nobody needs to look at
BENT = 0.1  # by how much of itself the slope may change on that step
WEAK = 1e-4  # reciprocal condition numbers up to which it is asked whether the least slope is one at all
LOST = 0.5  # by how much of itself that one may change on the same step
TURNS = 4  # of inverse iteration


class Units:
    """What steps and residuals are measured in: as they are."""

    def is_far(self, step: Array, at: Array) -> bool:
        """Return whether a step of Newton's is so long that it does not begin at a solution."""
        return bool(np.linalg.norm(step) > FAR * (np.linalg.norm(at) + FAR))

    def is_exact(self, step: Array, at: Array) -> bool:
        """Return whether a step is so short that nobody needs to look where it leads."""
        return bool(np.linalg.norm(step) <= EXACT * np.linalg.norm(at))

    def is_bent(self, change: Array, residual: Array) -> bool:
        """Return whether the slope changes on a step, by so much of what that step takes away."""
        return bool(np.linalg.norm(change) > BENT * np.linalg.norm(residual))

    def is_lost(self, change: Array, least: Array) -> bool:
        """Return whether the least slope changes on a step by so much of itself that it is none."""
        return not np.linalg.norm(change) <= LOST * np.linalg.norm(least)  # true for nan


class OwnUnits(Units):
    """Those in which the equations speak of all unknowns alike; equations are divided by rows, unknowns by columns."""

    def __init__(self, rows: np.ndarray, columns: np.ndarray) -> None:
        self.rows, self.columns = rows, columns

    def is_far(self, step: Array, at: Array) -> bool:
        """Return that; a small unknown counts as much as a large one."""
        least = FAR * np.exp(-np.mean(np.log(self.columns)))
        length, own = np.linalg.norm(step / self.columns), np.linalg.norm(at / self.columns)
        return super().is_far(step, at) or bool(length > FAR * (own + least))

    def is_exact(self, step: Array, at: Array) -> bool:
        """Return that, of each unknown by its own size: one near zero may be a multiple root."""
        return bool(np.all(np.abs(step) <= EXACT * np.abs(at)))

    def is_bent(self, change: Array, residual: Array) -> bool:
        """Return that; a small equation counts as much as a large one."""
        return super().is_bent(self.rows * change, self.rows * residual)

    def is_lost(self, change: Array, least: Array) -> bool:
        """Return that; a small equation counts as much as a large one."""
        return super().is_lost(self.rows * change, self.rows * least)


AS_THEY_ARE = Units()


class Factors:
    """A matrix, factored, and how far it is from a singular one: its reciprocal condition number."""

    def __init__(self, matrix: np.ndarray, units: OwnUnits | None = None) -> None:
        self.units: Units = AS_THEY_ARE if units is None else units
        self._own = units
        if units is not None:
            matrix = units.rows[:, None] * matrix * units.columns
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LinAlgWarning)  # of what is singular, which is refused
            self._factors = lu_factor(matrix, check_finite=False)
        (condition,) = get_lapack_funcs(("gecon",), (matrix,))
        self.rcond = float(condition(self._factors[0], np.linalg.norm(matrix, 1))[0])

    @property
    def is_singular(self) -> bool:
        """Whether the matrix is a singular one, as far as numbers of double precision tell."""
        return not self.rcond > SINGULAR  # true for nan

    @property
    def is_weak(self) -> bool:
        """Whether there is a direction in which the equations have next to no slope."""
        return self.rcond < WEAK

    def weakest(self) -> Any:
        """Return that direction, by inverse iteration."""
        found = np.cos(np.arange(len(self._factors[0])))
        for _ in range(TURNS):
            for is_transposed in (1, 0):
                found = lu_solve(self._factors, found, trans=is_transposed, check_finite=False)
                found /= np.linalg.norm(found)
        return found if self._own is None else self._own.columns * found

    def solve(self, b: Array, transposed: bool) -> Any:
        """Return the solution for a right-hand side."""
        if self._own is None:
            return lu_solve(self._factors, b, trans=int(transposed), check_finite=False)
        before, after = self._own.rows, self._own.columns
        if transposed:
            before, after = after, before
        return after * lu_solve(self._factors, before * b, trans=int(transposed), check_finite=False)


def own_units(matrix: np.ndarray) -> OwnUnits:
    """Return units in which no row and no column of a matrix is much larger than the others: powers of two, exact."""
    rows, columns = np.ones(len(matrix)), np.ones(len(matrix))
    sizes = np.abs(matrix)
    for _ in range(ROUNDS):
        now = rows[:, None] * sizes * columns
        rows, columns = rows * _power(np.max(now, axis=1)), columns * _power(np.max(now, axis=0))
    return OwnUnits(rows, columns)


def _power(largest: np.ndarray) -> Any:
    """Return the power of two next to one over the root of numbers, one for zero."""
    return np.exp2(-np.round(0.5 * np.log2(np.where(largest > 0.0, largest, 1.0))))
