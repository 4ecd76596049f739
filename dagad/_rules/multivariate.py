"""Distributions of several variables of scipy.stats: normal, Dirichlet, multinomial, as functions of all parameters.

Imported when a process records and has scipy.stats. The value is scipy's own, the derivative that of its formula, which
is all there is where jax traces. Of a covariance matrix the lower triangle counts, as for scipy.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import autograd.numpy as anp
import numpy as np
import scipy.stats as of

from dagad._errors import NotDifferentiableError
from dagad._rules.scipy_functions import primitive_of, stock, swap
from dagad._rules.scipy_rules import f
from dagad._tracing import refusals
from dagad._tracing.operands import gathered
from dagad._tracing.patches import Swap
from dagad._types import AnyDistribution, Args, Array, Function, Kwargs, Shape
from dagad._values import pytree

plain = pytree.plain
LOG_2PI = np.log(2.0 * np.pi)
ROUNDING = 10.0 * np.finfo(np.float64).eps  # a sum of probabilities that is as near to one is one


def _squeezed(xp: ModuleType, found: Array) -> Any:
    return xp.reshape(found, [n for n in np.shape(plain(found)) if n != 1])


def _matrix(xp: ModuleType, cov: Array, dim: int) -> Any:
    """Return a covariance matrix from its lower triangle, from variances, or from one for all."""
    if np.ndim(plain(cov)) < 2:
        return cov * np.eye(dim)
    return xp.tril(cov) + xp.transpose(xp.tril(cov, -1))


# Each formula is given functions of numpy's and scipy.special's: as autograd's primitives, or as they are for jax.


def normal(xp: ModuleType, special: ModuleType, x: Array, mean: Array = None, cov: Array = 1.0) -> Any:
    """Return the logarithm of the density of a normal distribution at points, whose coordinates are the last axis."""
    del special
    cov = 1.0 if cov is None else cov
    shape = np.shape(plain(cov))[1:] if mean is None else np.shape(plain(mean))
    dim = shape[0] if shape else 1
    x = xp.reshape(x, (-1, 1)) if dim == 1 and np.ndim(plain(x)) < 2 else x
    away = x if mean is None else x - mean
    root = xp.linalg.cholesky(xp.reshape(_matrix(xp, cov, dim), (dim, dim)))
    white = xp.linalg.solve(root, xp.transpose(xp.reshape(away, (-1, dim))))
    spread = 2.0 * xp.sum(xp.log(xp.diagonal(root))) + dim * LOG_2PI
    return _squeezed(xp, xp.reshape(-0.5 * (spread + xp.sum(white**2, axis=0)), np.shape(plain(away))[:-1]))


def dirichlet(xp: ModuleType, special: ModuleType, x: Array, alpha: Array) -> Any:
    """Return the logarithm of the density of a Dirichlet distribution at points, whose shares are the first axis."""
    if len(x) != len(alpha):  # the last share is what the others leave
        x = xp.concatenate([x, 1.0 - xp.sum(x, axis=0, keepdims=True)])
    scale = special.gammaln(xp.sum(alpha)) - xp.sum(special.gammaln(alpha))
    return _squeezed(xp, scale + xp.sum(special.xlogy(alpha - 1.0, xp.transpose(x)), axis=-1))


def summing_to_one(xp: ModuleType, p: Array) -> Any:
    """Return probabilities of which the last one is what the others leave, if it is not yet, as scipy does."""
    others = 1.0 - xp.sum(p[..., :-1], axis=-1, keepdims=True)
    off = xp.abs(1.0 - xp.sum(p, axis=-1, keepdims=True)) > ROUNDING
    return xp.concatenate([p[..., :-1], xp.where(off, others, p[..., -1:])], axis=-1)


def multinomial(xp: ModuleType, special: ModuleType, x: Array, n: Array, p: Array) -> Any:
    """Return the logarithm of the mass of counts, which are the last axis, where it is not zero."""
    p = summing_to_one(xp, p)
    return special.gammaln(n + 1.0) + xp.sum(special.xlogy(x, p) - special.gammaln(x + 1.0), axis=-1)


def _multinomial(xp: ModuleType, special: ModuleType, x: Array, n: Array, p: Array) -> Any:
    """Return the same, without a slope where there is no mass."""
    counts, total = np.asarray(plain(x)), np.asarray(plain(n)).astype(int)  # scipy cuts off what is no count
    inside = np.isfinite(of.multinomial.logpmf(counts, total, plain(p)))
    return xp.where(inside, multinomial(xp, special, np.where(inside[..., None], counts, 0), total, p), 0.0)


# By name: the logarithm where jax traces, the one that is differentiated, and what its methods are called.
FORMULAS: dict[str, tuple[Function, Function, str]] = {
    "multivariate_normal": (normal, normal, "pdf"),
    "dirichlet": (dirichlet, dirichlet, "pdf"),
    "multinomial": (multinomial, _multinomial, "pmf"),
}


def check_shapes(name: str, stock: Function, parts: Sequence[Any]) -> None:
    """Raise what scipy raises of parameters of such shapes, whatever they hold."""
    shapes = [None if part is None else np.shape(part) for part in parts]
    stock(getattr(of, name), *(_LIKE[name](number, shape) for number, shape in enumerate(shapes)))


def _like_normal(number: int, shape: Shape | None) -> Any:
    is_matrix = number == 2 and shape is not None and len(shape) == 2
    return None if shape is None else np.eye(*shape) if is_matrix else np.ones(shape)


def _like_shares(number: int, shape: Shape) -> Any:
    return np.ones(shape) if number else np.full(shape, 1.0 / (shape[0] if shape else 1))


def _like_counts(number: int, shape: Shape) -> Any:
    return np.full(shape, 1.0 / shape[-1]) if number == 2 and shape else np.zeros(shape, int)


_LIKE: dict[str, Function] = {
    "multivariate_normal": _like_normal,
    "dirichlet": _like_shares,
    "multinomial": _like_counts,
}
# Parameters that each may have, and where one of scipy's that has some keeps them.
_KEPT: dict[str, tuple[tuple[Any, ...], Function]] = {
    "multivariate_normal": ((), lambda frozen: (frozen.mean, frozen.cov_object.covariance)),
    "dirichlet": (([1.0, 1.0],), lambda frozen: (frozen.alpha,)),
    "multinomial": ((1, [0.5, 0.5]), lambda frozen: (frozen.n, frozen.p)),
}
# Of scipy's methods, by qualified name: formula, owner, method; those of owners that have their parameters; and what
# gives these to which.
METHODS: dict[str, tuple[Function, str, str]] = {}
FROZEN: dict[str, Function] = {}
FREEZING: dict[str, str] = {}


class Frozen:
    """A distribution with its parameters, of which one at least is traced; else it would be one of scipy's."""

    def __init__(self, name: str, parameters: dict[str, Any]) -> None:
        self._name, self._parameters = name, parameters

    def __getattr__(self, method: str) -> Function:
        if method.startswith("_"):  # what Python, numpy or pickle ask of any object
            raise AttributeError(method)
        if method not in _methods(self._name):
            raise NotDifferentiableError(refusals.of_function(f"scipy.stats.{self._name}.{method}"))
        return functools.partial(getattr(getattr(of, self._name), method), **self._parameters)


def freeze(name: str, stock: Function, args: Args, kwargs: Kwargs) -> Frozen:
    """Return a distribution with these parameters, which `stock` of scipy's would make of ordinary ones."""
    given = inspect.signature(stock).bind(None, *args, **kwargs).arguments
    return Frozen(name, {key: each for key, each in given.items() if key not in ("self", "seed")})


def read(name: str, method: str, stock: Function, args: Args, kwargs: Kwargs) -> list[Any]:
    """Return the arguments of a method in the order of its formula's parameters."""
    given = inspect.signature(stock).bind(None, *args, **kwargs)
    given.apply_defaults()
    _, *parts = (each for key, each in given.arguments.items() if key != "allow_singular")
    if given.arguments.get("allow_singular"):
        why = " with `allow_singular=True`"
        raise NotDifferentiableError(refusals.of_function(f"scipy.stats.{name}.{method}", why))
    if isinstance(parts[-1], of.Covariance):
        raise NotDifferentiableError(
            f"`scipy.stats.{name}.{method}` was given a `Covariance`, and dagad has its derivative for an array only. "
            "Give it the matrix: its attribute `covariance`."
        )
    return parts


def _methods(name: str) -> tuple[str, str]:
    kind = FORMULAS[name][-1]
    return kind, f"log{kind}"


def _ours(name: str, method: str, own: Function) -> Function:
    known, (_, formula, _) = getattr(of, name), FORMULAS[name]

    def value(*args: Any) -> Any:
        return own(known, *args)

    def definition(*args: Any) -> Any:
        found = formula(anp, f, *args)
        return found if method.startswith("log") else anp.exp(found)

    value.__name__ = f"scipy.stats.{name}.{method}"
    made = primitive_of(value, definition)

    def call(owner: AnyDistribution, *args: Any, **kwargs: Any) -> Any:
        del owner  # there is one of each
        parts = map(gathered, read(name, method, own, args, kwargs))
        return made(*(np.asarray(part) if isinstance(part, list | tuple) else part for part in parts))

    return call


def _with_parameters(name: str, own: Function) -> Function:
    def call(owner: AnyDistribution, *args: Any, **kwargs: Any) -> Any:
        del owner
        return freeze(name, own, args, kwargs)

    return call


def _of_frozen(name: str, method: str) -> Function:
    def call(frozen: AnyDistribution, x: Array) -> Any:
        return getattr(getattr(of, name), method)(x, *_KEPT[name][1](frozen))

    return call


def _swaps() -> list[Swap]:
    swaps = []
    for name, (bare, _, _) in FORMULAS.items():
        owner = getattr(of, name)
        kind, frozen = type(owner), type(owner(*_KEPT[name][0]))
        for method in _methods(name):
            function, with_parameters = getattr(kind, method), getattr(frozen, method)
            METHODS[function.__qualname__] = (bare, name, method)
            FROZEN[with_parameters.__qualname__] = _of_frozen(name, method)
            swaps.append(swap(function, _ours(name, method, stock(function))))
            swaps.append(swap(with_parameters, _of_frozen(name, method)))
        swaps.append(swap(kind.__call__, _with_parameters(name, stock(kind.__call__))))
        FREEZING[kind.__call__.__qualname__] = name
    return swaps


SWAPS: list[Swap] = _swaps()
