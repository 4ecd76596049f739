"""Bounds of parameters, in scipy's forms and as pytrees of pairs, as the two ends that each number has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dagad._errors import StructureError
from dagad._types import Array, Tree
from dagad._values import pytree
from dagad._values.pytree import TreeDef
from dagad.interop._parameters import Parameters

Ends = tuple[Any, Any]  # the low and the high ones, as vectors


def ends_of_pairs(bounds: Sequence[Any], shape: tuple[int, ...], name: str) -> Ends:
    """Return the ends for an array by a pair for each number: what `scipy.optimize.minimize` takes."""
    size, remedy = int(np.prod(shape)), _for_minimize(shape)
    if _is_pair_of_numbers(bounds):
        bounds = [bounds]
    try:
        pairs = [(low, high) for low, high in bounds]
    except (TypeError, ValueError):
        raise StructureError(f"The bounds of {name} are {bounds!r}. {remedy}") from None
    if len(pairs) not in (1, size):
        raise StructureError(f"The bounds of {name} are {len(pairs)} pairs, where it holds {_numbers(size)}. {remedy}")
    low, high = zip(*pairs, strict=True)
    try:
        return _end(low, (len(pairs),), -np.inf) * np.ones(size), _end(high, (len(pairs),), np.inf) * np.ones(size)
    except (ValueError, TypeError):
        raise StructureError(f"The bounds of {name} are {bounds!r}. {remedy}") from None


def ends_of_two(bounds: Tree, shape: tuple[int, ...], name: str) -> Ends:
    """Return the ends for an array by the low ones and the high ones: what `scipy.optimize.least_squares` takes."""
    return _ends(bounds, shape, name)


def ends_of_tree(parameters: Parameters, bounds: Tree) -> Ends:
    """Return the ends by a pair at each leaf."""
    pairs = _up_to(parameters, bounds, "a pair `(low, high)`")
    for pair, shape, name in zip(pairs, parameters.shapes, parameters.names, strict=True):
        if shape == (2,) and _may_be_two_pairs(pair):
            raise StructureError(
                f"The bounds of {name} are {pair!r}, which may be the low and the high ends, or a pair for each of two "
                "numbers. Give the ends as arrays, `(np.array([low, low]), np.array([high, high]))`, with -np.inf and "
                "np.inf where there is no bound."
            )
    ends = map(_ends, pairs, parameters.shapes, parameters.names)
    low, high = zip(*ends, strict=True)
    return np.concatenate(low), np.concatenate(high)


def ends_of_bounds(parameters: Parameters, low: Array, high: Array, feasible: Array) -> tuple[Any, Any, Any]:
    """Return the ends by what scipy's `Bounds` hold, and which it is to stay within: pytrees, in arrays of objects."""
    return (
        _spread(parameters, low, -np.inf, "the low ends"),
        _spread(parameters, high, np.inf, "the high ends"),
        _spread(parameters, feasible, False, "`keep_feasible`").astype(bool),
    )


def _spread(parameters: Parameters, held: Tree, nowhere: float, what: str) -> Any:
    """Return what one of `Bounds` is for each number."""
    only = held.reshape(-1)[0] if held.size == 1 else None
    if held.size == 1 and _is_one_end(only):
        ends = [only] * len(parameters.shapes)  # for all of them
    elif held.size == 1 and held.dtype == object:
        ends = _up_to(parameters, only, f"{what} of `Bounds`")
    elif parameters.treedef.is_leaf():
        ends = [held]
    else:
        ends = _in_sequence(parameters, held, what)
    try:
        parts = [_end(end, shape, nowhere) for end, shape in zip(ends, parameters.shapes, strict=True)]
    except (ValueError, TypeError):
        raise StructureError(_unlike(parameters, what)) from None
    return np.concatenate(parts)


def _in_sequence(parameters: Parameters, held: Tree, what: str) -> list[Any]:
    """Return the ends of the leaves from a list or tuple of them, of which scipy has made an array."""
    children = parameters.treedef.children()
    if not pytree.is_sequence(parameters.treedef) or len(children) != len(held):
        raise StructureError(_unlike(parameters, what))
    ends: list[Any] = []
    for child, part in zip(children, held, strict=True):
        if not child.is_leaf() and isinstance(part, np.ndarray):  # a list of lists
            raise StructureError(_unlike(parameters, what))
        ends.extend(_up_to_one(child, part, parameters, what))
    return ends


def _up_to(parameters: Parameters, tree: Tree, what: str) -> list[Any]:
    try:
        found: list[Any] = parameters.treedef.flatten_up_to(tree)
        return found
    except (ValueError, TypeError) as error:
        raise StructureError(
            f"`bounds` have another structure than `x0`. Give {what} for each of {', '.join(parameters.names)}, in the "
            f"same containers; None where there is no bound. {error}"
        ) from None


def _up_to_one(child: TreeDef, part: Tree, parameters: Parameters, what: str) -> Sequence[Any]:
    if _is_one_end(part):  # one end for all, of which scipy has made as many as the other ends are
        return [part] * child.num_leaves
    try:
        found: Sequence[Any] = child.flatten_up_to(part)
        return found
    except (ValueError, TypeError):
        raise StructureError(_unlike(parameters, what)) from None


def _unlike(parameters: Parameters, what: str) -> str:
    if parameters.treedef.is_leaf():
        wanted = f"a number, or an array of shape {parameters.shapes[0]}"
    else:
        names = zip(parameters.names, parameters.shapes, strict=True)
        shapes = ", ".join(f"{name} of shape {shape}" for name, shape in names)
        wanted = f"one number, or a pytree like `x0` of numbers and arrays: {shapes}"
    return (
        f"In `Bounds`, {what} don't fit `x0`. Give {wanted}; or a pair `(low, high)` for each leaf, without `Bounds`."
    )


def _ends(pair: Tree, shape: tuple[int, ...], name: str) -> Ends:
    """Return the low and the high ends of a leaf."""
    try:
        low, high = (None, None) if pair is None else pair
        return _end(low, shape, -np.inf), _end(high, shape, np.inf)
    except (ValueError, TypeError):
        raise StructureError(
            f"The bounds of {name} are {pair!r}. Give a pair `(low, high)` of numbers, of arrays of shape {shape}, or "
            "of None where there is no bound."
        ) from None


def _end(end: Array, shape: tuple[int, ...], nowhere: float) -> Any:
    parts = np.array(end, object)  # there may be a None among them
    parts.flat[:] = [nowhere if part is None else part for part in parts.flat]
    return np.ravel(np.broadcast_to(parts.astype(float), shape))


def _is_one_end(end: object) -> bool:
    return end is None or isinstance(end, int | float | np.generic)


def _is_pair_of_numbers(bounds: Tree) -> bool:
    return isinstance(bounds, tuple | list) and len(bounds) == 2 and all(map(_is_number_or_none, bounds))


def _is_number_or_none(end: Array) -> bool:
    return end is None or np.ndim(end) == 0  # what is no number either is refused where it is read


def _may_be_two_pairs(pair: Tree) -> bool:
    """Return whether a pair for a leaf of two numbers holds pairs: arrays are ends, as nobody writes pairs so."""
    if isinstance(pair, np.ndarray):
        return np.shape(pair) == (2, 2)
    return isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(end, tuple | list) for end in pair)


def _for_minimize(shape: tuple[int, ...]) -> str:
    size = int(np.prod(shape))
    if not shape:
        return "Give a pair `(low, high)` of numbers, or of None where there is no bound."
    return (
        f"Give a sequence of {size} pairs `(low, high)`, one for each number, None where there is no bound; or "
        f"`scipy.optimize.Bounds(low, high)` of numbers or arrays of shape {shape}."
    )


def _numbers(size: int) -> str:
    return f"{size} number{'s' if size != 1 else ''}"
