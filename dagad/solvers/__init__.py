"""What scipy solves, with derivatives: solutions of equations are differentiated by the equations."""

from __future__ import annotations

from dagad.solvers._implicit import implicit as implicit

__all__ = [
    "implicit",
]
