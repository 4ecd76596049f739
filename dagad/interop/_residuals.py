"""What `least_squares` gives scipy of a function of a pytree: residuals, their Jacobian, and options of the vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dagad._api.higher_order import jacfwd
from dagad._errors import ArgumentsError, StructureError
from dagad._tracing.operands import vector_of
from dagad._types import Array, Value
from dagad._values import pytree
from dagad._words import described
from dagad.interop._callbacks import with_pytrees
from dagad.interop._parameters import Parameters

_REFUSED = {
    "jac": "dagad computes the Jacobian, in forward mode. For finite differences call scipy's own",
    "kwargs": "what the function takes by name goes into it by `functools.partial`",
}


def options_of(options: dict[str, Any], parameters: Parameters) -> dict[str, Any]:
    """Return scipy's options, of the vector, from those that a user gives for the pytree."""
    for name, why in _REFUSED.items():
        if name in options:
            raise ArgumentsError(f"`least_squares` has no keyword `{name}`. Leave it out: {why}.")
    found = dict(options)
    if "callback" in found:
        found["callback"] = with_pytrees(found["callback"], parameters.tree)
    if not parameters.treedef.is_leaf() and not _is_of_vector(found.get("x_scale", 1.0)):
        found["x_scale"] = _scales(found["x_scale"], parameters)
    return found


def _is_of_vector(scale: object) -> bool:
    return scale is None or isinstance(scale, str | float | int | np.ndarray | np.generic)


def _scales(scale: object, parameters: Parameters) -> Any:
    """Return a scale for each number of the vector."""
    leaves, treedef = pytree.flatten(scale)
    if treedef != parameters.treedef:
        raise StructureError(
            f"`x_scale` is {described(scale)}, of another structure than `x0`. Give a pytree like `x0`, one number for "
            'all, an array with one for each number, or "jac".'
        )
    pairs = zip(leaves, parameters.shapes, strict=True)
    return parameters.flat(parameters.joined([np.broadcast_to(leaf, shape) for leaf, shape in pairs]))


def residuals_of(fun: Callable[..., Any], name: str, parameters: Parameters) -> tuple[Any, Any]:
    """Return the residuals and their Jacobian, as functions of the vector."""

    def as_array(p: object) -> Value:
        found = fun(p)
        return vector_of(found) if type(found) in (list, tuple) else found

    def residuals(x: Array) -> Any:
        found = as_array(parameters.tree(x))
        if np.ndim(found) != 1:
            raise StructureError(
                f"`{name}` returned {described(found)}; the residuals are an array with one axis, or a list of "
                "numbers. Return `np.ravel(...)` of it; a sum of squares goes to `minimize`."
            )
        return found

    def jacobian(x: Array) -> Any:
        found = jacfwd(as_array)(parameters.tree(x))
        return parameters.columns(found, len(pytree.flatten(found)[0][0]))

    return residuals, jacobian
