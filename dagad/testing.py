"""Checks of gradients, for users' functions and for dagad's own tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dagad import _tree
from dagad._transforms import value_and_grad

STEPS = tuple(1e-2 / 2**i for i in range(4))


def taylor_rate(fun: Callable[..., Any], *args: Any, seed: int = 0) -> float:
    """Return the rate at which the first-order Taylor remainder falls with the step: 2 for a right gradient.

    The remainder ``fun(x + e v) - fun(x) - e <gradient, v>`` is taken along one random direction v for e = 0.01, 0.005,
    0.0025 and 0.00125; a wrong gradient gives 1. A function that is linear along v has no remainder and gives nan.

    Parameters
    ----------
    fun
        A function of pytrees that returns one real number.
    *args
        Where to check; all floating-point leaves of all arguments are moved.
    seed
        Seed of the random direction.

    Returns
    -------
    float
        The median of the observed rates.

    Examples
    --------
    >>> import autograd.numpy as np
    >>> from dagad.testing import taylor_rate
    >>> round(taylor_rate(lambda x: np.sum(np.exp(x)), np.array([0.5, 1.5])), 1)
    2.0
    """
    places = tuple(i for i, arg in enumerate(args) if any(map(_tree.is_differentiable, _tree.flatten(arg)[0])))
    value, gradients = value_and_grad(fun, places)(*args)
    rng = np.random.default_rng(seed)
    forms = [_tree.Form.of(args[place], _tree.is_differentiable) for place in places]
    directions = [[_direction(rng, leaf) for leaf in form.taken] for form in forms]
    slope = sum(
        np.sum(np.real(np.conj(v) * g)) if np.iscomplexobj(v) else np.sum(v * g)
        for form, gradient, vs in zip(forms, gradients, directions, strict=True)
        for v, g in zip(vs, form.pick(gradient), strict=True)
    )

    def remainder(step: float) -> float:
        moved = list(args)
        for place, form, vs in zip(places, forms, directions, strict=True):
            pairs = zip(form.taken, vs, strict=True)
            moved[place] = form.fill(iter([leaf + _leaf_type(leaf)(step) * v for leaf, v in pairs]))
        return abs(float(fun(*moved)) - float(value) - step * float(slope))

    remainders = np.array([remainder(step) for step in STEPS])
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.median(np.log2(remainders[:-1] / remainders[1:])))


def _leaf_type(leaf: Any) -> Any:
    """Return the scalar type of a leaf."""
    return _tree.dtype_of(leaf).type


def _direction(rng: np.random.Generator, leaf: Any) -> Any:
    drawn = rng.standard_normal(_tree.shape_of(leaf))
    return np.asarray(drawn, _tree.dtype_of(leaf)) if _tree.shape_of(leaf) else _leaf_type(leaf)(drawn)
