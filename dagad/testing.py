"""Checks of derivatives, for users' functions and graphs and for dagad's own tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dagad._diagnosis import checks, subjects
from dagad._errors import NotDifferentiableError, StructureError
from dagad._tracebacks import public
from dagad._types import Function
from dagad._values import pytree

__all__ = ["check_grads", "dot_product_gap", "taylor_rate"]

STEPS = tuple(1e-2 / 2**i for i in range(4))


@public
def check_grads(
    fun: Function,
    *args: Any,
    order: int = 1,
    modes: Sequence[str] = ("fwd", "rev"),
    tolerance: float | None = None,
    seed: int = 0,
) -> None:
    """Raise unless the derivatives of a function agree with finite differences.

    Each floating-point number or array in the arguments is checked by itself, along a random direction, in each mode,
    against differences of the fourth order: by one step, and where these disagree with the derivative, by steps from
    long to short, of which those count that agree best with each other. Before that, the chunk function of each
    `dagad.reduce_sum` is called with some rows at once and with both halves of them, which has to add up. Shards can't
    be cut: check with the data.

    Parameters
    ----------
    fun
        A function of pytrees that returns floating-point numbers in any structure, and may call reductions and maps;
        or a Delayed of Dask. Of a function marked by `dagad.extend.explicit` the value and its rule are checked.
    *args
        Where to check: the arguments; for a Delayed, Delayed of its graph.
    order
        Up to which order: 2 also checks the derivatives of the derivatives, in all combinations of modes.
    modes
        "fwd" for forward mode, "rev" for reverse mode, or both.
    tolerance
        Largest difference that is accepted, relative to the size of the derivative where that is above 1. By default
        1e-7 in double precision, and about 3e-4 in single precision. Parts of a sum may differ from the whole by as
        much, relative to it, where that is more than what roundings do.
    seed
        Seed of the random directions.

    Returns
    -------
    None
        If all derivatives agree.

    Raises
    ------
    GradientError
        For the first one that is wrong, with both numbers, and with the chunk where a reduction or a map is wrong; or
        for a chunk function that does not add up, or gives other values each time.
    StructureError
        If `order` or `modes` are none of the above.

    Warns
    -----
    DagadWarning
        Where differences can't decide, because they are nan or differ from step to step: that is not a pass.

    Examples
    --------
    >>> import numpy as np
    >>> from dagad.testing import check_grads
    >>> check_grads(lambda x, y: np.sin(x) * y["scale"], 0.5, {"scale": np.array([1.0, 2.0])}, order=2)
    """
    if not isinstance(order, int) or order < 1 or not modes or not set(modes) <= {"fwd", "rev"}:
        raise StructureError(
            f"`check_grads` can't check `order={order!r}` in `modes={modes!r}`. Give a positive int for the order, and "
            '("fwd",), ("rev",) or ("fwd", "rev") for the modes.'
        )
    what = f"`{getattr(fun, '__name__', None) or getattr(fun, 'key', type(fun).__name__)}`"
    subject = subjects.subject_of(fun, args)
    checks.check_sums(subject, tolerance)
    pending = [(subject, what)]
    for done in range(1, order + 1):
        derived = []
        for subject, name in pending:
            check = checks.Check(subject, name, tolerance, seed)
            check.run(modes)
            for mode in modes:
                word = "tangent" if mode == "fwd" else "gradient"
                derived.append((subject.derived, mode, check, f"the {word} of {name}"))
        if done < order:
            pending = [(make(mode, run.direction, run.seeds), name) for make, mode, run, name in derived]


@public
def dot_product_gap(fun: Function, *args: Any, seed: int = 0) -> float:
    """Return how far forward and reverse mode are from agreeing with each other: ``|<Jv, w> - <v, J'w>|``.

    Parameters
    ----------
    fun
        See `check_grads`.
    *args
        Where to check: the arguments. All floating-point numbers in them take part.
    seed
        Seed of the random v and w.

    Returns
    -------
    float
        The difference, relative to the sum of the absolute values of the terms of ``<Jv, w>``; about 1e-15 if both are
        right.

    Raises
    ------
    NotDifferentiableError
        If no argument has floating-point numbers in it.

    Examples
    --------
    >>> import numpy as np
    >>> from dagad.testing import dot_product_gap
    >>> dot_product_gap(lambda x: np.exp(x) * x[0], np.array([0.5, 1.5])) < 1e-14
    True
    """
    subject, rng = subjects.subject_of(fun, args), np.random.default_rng(seed)
    direction = [checks.direction_of(rng, leaf) for leaf in subject.leaves]
    tangents = subject.push(direction)
    seeds = [checks.direction_of(rng, leaf) for leaf in subject.value(subject.leaves)]
    forward, reverse = checks.paired(tangents, seeds), checks.paired(subject.pull(seeds), direction)
    scale = sum(
        float(np.sum(np.abs(np.asarray(a) * np.asarray(b))))
        for a, b in zip(tangents, seeds, strict=True)
        if a is not None
    )
    return abs(forward - reverse) / scale if scale else abs(forward - reverse)


@public
def taylor_rate(fun: Function, *args: Any, seed: int = 0) -> float:
    """Return the rate at which the error of the first-order Taylor expansion falls with the step: 2 is right.

    The error ``fun(x + e v) - fun(x) - e <gradient, v>`` is taken along one random direction v for e = 0.01, 0.005,
    0.0025 and 0.00125; a wrong gradient gives 1. A function that is linear along v has no error, and gives nan.

    Parameters
    ----------
    fun
        A function of pytrees that returns one real number, or a Delayed of Dask that is one.
    *args
        Where to check: the arguments. All floating-point numbers in them are moved.
    seed
        Seed of the random direction.

    Returns
    -------
    float
        The median of the observed rates.

    Raises
    ------
    NotDifferentiableError
        If the value is not one real number.

    Examples
    --------
    >>> import numpy as np
    >>> from dagad.testing import taylor_rate
    >>> round(taylor_rate(lambda x: np.sum(np.exp(x)), np.array([0.5, 1.5])), 1)
    2.0
    """
    subject, rng = subjects.subject_of(fun, args), np.random.default_rng(seed)
    values = subject.value(subject.leaves)
    if len(values) != 1 or pytree.shape_of(values[0]) or np.iscomplexobj(values[0]):
        raise NotDifferentiableError(
            "The function returned something else than one real number, which a Taylor rate needs. Return a sum of it, "
            "or use `dagad.testing.check_grads`, which takes any value."
        )
    direction = [checks.direction_of(rng, leaf) for leaf in subject.leaves]
    slope = checks.paired(subject.pull([pytree.dtype_of(values[0]).type(1)]), direction)

    def remainder(step: float) -> float:
        there = subject.value(checks.stepped(subject.leaves, direction, step))[0]
        return abs(float(there) - float(values[0]) - step * slope)

    remainders = np.array([remainder(step) for step in STEPS])
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.median(np.log2(remainders[:-1] / remainders[1:])))
