"""The tasks at the ends of a derived graph: its seed, its directions, and what is handed out, complete."""

from __future__ import annotations

from typing import Any

from dagad._errors import NotDifferentiableError, StructureError
from dagad._graphs.linearization import is_scalar, unit_seed
from dagad._pytrees import pytree
from dagad._pytrees.partition import Partition
from dagad._words import described


def fitting_direction(tangent: Any, value: Any) -> Any:
    """Return the tangent of a Delayed that moves, checked against what the Delayed turned out to be."""
    partition = Partition.of(value, pytree.is_differentiable_or_traced)
    if not partition.positions and tangent is not None:
        raise NotDifferentiableError(
            f"A primal is {described(value)}, with respect to which there is no derivative. Make it floating point, "
            "with `float(...)` or `.astype(float)`, or leave it out."
        )
    try:
        parts = partition.extract(tangent)
    except StructureError as error:
        raise StructureError(
            "A tangent has another structure than the value of its Delayed. Give one number or array for each of the "
            "value's, in the same containers; None where nothing moves."
        ) from error
    pairs = zip(parts, partition.taken, strict=True)
    return partition.arrange(iter([pytree.fitted(part, leaf, "A tangent") for part, leaf in pairs]))


def complete_tangent(tangent: Any, value: Any) -> Any:
    """Return a complete tangent: zeros where nothing moves a leaf, None for constants."""
    partition = Partition.of(value, pytree.is_differentiable_or_traced)
    return partition.completed(partition.extract(tangent))


def plain_value(value: Any) -> Any:
    """Return a value as it is, under a key of its own."""
    return value


def seed_of(value: Any) -> Any:
    """Return the cotangent 1 of a real number, in its dtype."""
    plain = pytree.plain(value)
    if not is_scalar(plain):
        raise NotDifferentiableError(
            f"`gradient` needs a `y` that is one real floating-point number; this one is {described(plain)}. Reduce it "
            "to one, by a sum for instance, or take the gradient of one of its elements."
        )
    return unit_seed(plain)


def complete_gradient(reached: bool, cotangent: Any, value: Any) -> Any:
    """Return a complete gradient: zeros where `y` does not depend on a leaf, None for constants."""
    leaves, treedef = pytree.flatten(value)
    if not reached:
        return pytree.unflatten(treedef, list(map(pytree.zeros_like, leaves)))
    if not any(map(pytree.is_differentiable_or_traced, leaves)):
        raise NotDifferentiableError(
            f"The gradient with respect to {described(value)} was asked for, which does not exist. Make it floating "
            "point, with `float(...)` or `.astype(float)`, or leave it out of `wrt`."
        )
    return complete_tangent(cotangent, value)
