"""A toy engine: derivatives of functions of numpy arrays that are analytic, by complex steps, of any order.

Around a circle, since derivatives of derivatives are taken at complex points: ``f'(x) = mean of f(x + w) / w``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

CIRCLE = 2.0**-4 * np.exp(2j * np.pi * np.arange(16) / 16)


class ComplexStep:
    name = "complex step"

    def takes(self, leaf: Any) -> bool:
        return isinstance(leaf, np.ndarray | np.number | float | complex) and np.asarray(leaf).dtype.kind in "fc"

    def value(self, fun: Any, leaves: Any) -> Any:
        derived = getattr(fun, "base", None) is not fun  # else it may run inside of another function, and get its steps
        return [np.asarray(np.real(y) if derived else y)[()] for y in fun(leaves)]

    def linearize(self, fun: Any, leaves: Any) -> Any:
        return self.value(fun, leaves), Pullback(self, fun, leaves)

    def pushforward(self, fun: Any, n: int) -> Any:
        def jvp(leaves: Any) -> Any:
            each = len(leaves) // (1 + n)
            x, *directions = (leaves[start : start + each] for start in range(0, len(leaves), each))
            return [*fun(x), *(part for dx in directions for part in along(fun, x, dx))]

        return jvp

    def pullback(self, fun: Any, n: int) -> Any:
        def pulled(leaves: Any) -> Any:
            x, ybar, xbar = leaves[:n], leaves[n:], [np.zeros(np.shape(leaf), complex) for leaf in leaves[:n]]
            for k, index in [(k, index) for k, part in enumerate(xbar) for index in np.ndindex(part.shape)]:
                dx = [np.zeros(np.shape(leaf)) for leaf in x]
                dx[k][index] = 1.0
                xbar[k][index] = sum(np.sum(a * b) for a, b in zip(along(fun, x, dx), ybar, strict=True))
            return xbar

        return pulled


class Pullback:
    def __init__(self, engine: Any, fun: Any, leaves: Any) -> None:
        self.engine, self.leaves, self.pulled, self.nbytes = engine, leaves, engine.pullback(fun, len(leaves)), int

    def __call__(self, cotangents: Any) -> Any:
        return self.engine.value(self.pulled, [*self.leaves, *(0.0 if part is None else part for part in cotangents)])


def along(fun: Any, x: Any, dx: Any) -> Any:
    """Return the derivative of a function in one direction, at a point that may be complex."""
    around = [fun([a + step * b for a, b in zip(x, dx, strict=True)]) for step in CIRCLE]
    return [sum(y / step for y, step in zip(ys, CIRCLE, strict=True)) / len(CIRCLE) for ys in zip(*around, strict=True)]
