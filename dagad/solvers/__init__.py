"""What scipy solves, with derivatives: in chunk functions, in tasks of graphs and around reductions.

On plain values these are scipy's own functions, and differentiated they have scipy's values, bit for bit. Derivatives
are those of the solution, of any order, in every mode.

Differential equations and integrals (scipy.integrate)
    solve_ivp, odeint    sensitivities by the extended equation or by the adjoint one
    quad                 limits and parameters

Interpolation (scipy.interpolate)
    CubicSpline, PchipInterpolator, interp1d    data, nodes and points
"""

from __future__ import annotations

from dagad.solvers._interpolate import (
    CubicSpline as CubicSpline,
    PchipInterpolator as PchipInterpolator,
    interp1d as interp1d,
)
from dagad.solvers._ivp import odeint as odeint, solve_ivp as solve_ivp
from dagad.solvers._quadrature import quad as quad

__all__ = ["CubicSpline", "PchipInterpolator", "interp1d", "odeint", "quad", "solve_ivp"]
