"""What a user gives to be checked: a function, one with its own rule, or a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask.delayed import Delayed

from dagad._diagnosis.checks import FunctionSubject, GraphSubject, Subject
from dagad._engines.explicit import Explicit
from dagad._errors import NotDifferentiableError
from dagad._types import Function
from dagad._values import pytree


def subject_of(fun: Function, args: Sequence[Any]) -> Subject:
    """Return what is to be checked: of a function marked by `explicit` the value, whose derivative is by the rule."""
    if isinstance(fun, Delayed):
        return GraphSubject(fun, args)
    leaves = pytree.flatten(args)[0]
    if any(map(pytree.is_sharded, leaves)) and not any(map(pytree.is_differentiable, leaves)):
        raise NotDifferentiableError(
            "Shards were to be checked, whose numbers can't be moved by small steps here. Check with the data that "
            "they are made of, `shards.gather()`, or with other arguments beside them."
        )
    return FunctionSubject(fun.value if isinstance(fun, Explicit) else fun, args)
