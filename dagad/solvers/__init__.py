"""What scipy solves, with derivatives: in chunk functions, in tasks of graphs and around reductions.

On plain values these are scipy's own functions, and differentiated they have scipy's values, bit for bit. Derivatives
are those of the solution, of any order, in every mode.

Equations, optima and fits (scipy.optimize)
    implicit                                          whatever solves ``residual(x, *args) = 0``
    root, root_scalar, fixed_point, minimize, least_squares

Differential equations and integrals (scipy.integrate)
    solve_ivp, odeint    sensitivities by the extended equation or by the adjoint one
    quad                 limits and parameters

Interpolation (scipy.interpolate)
    CubicSpline, PchipInterpolator, interp1d    data, nodes and points
"""

from __future__ import annotations

from dagad.solvers._implicit import implicit as implicit
from dagad.solvers._interpolate import (
    CubicSpline as CubicSpline,
    PchipInterpolator as PchipInterpolator,
    interp1d as interp1d,
)
from dagad.solvers._ivp import odeint as odeint, solve_ivp as solve_ivp
from dagad.solvers._optima import least_squares as least_squares, minimize as minimize
from dagad.solvers._quadrature import quad as quad
from dagad.solvers._roots import fixed_point as fixed_point, root as root, root_scalar as root_scalar

__all__ = [
    "CubicSpline",
    "PchipInterpolator",
    "fixed_point",
    "implicit",
    "interp1d",
    "least_squares",
    "minimize",
    "odeint",
    "quad",
    "root",
    "root_scalar",
    "solve_ivp",
]
