"""What scipy solves, with derivatives: solutions of equations are differentiated by the equations."""

from __future__ import annotations

from dagad.solvers._implicit import implicit as implicit
from dagad.solvers._optima import least_squares as least_squares, minimize as minimize
from dagad.solvers._roots import fixed_point as fixed_point, root as root, root_scalar as root_scalar

__all__ = [
    "fixed_point",
    "implicit",
    "least_squares",
    "minimize",
    "root",
    "root_scalar",
]
