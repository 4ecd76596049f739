"""A function of one item as a chunk function: the sum over the items of a chunk, in their order."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from dagad._engines.engine_call import BoundCall
from dagad._engines.explicit import Explicit, ExplicitEngine
from dagad._engines.explicit_rules import LatePullback, check_count, checked_pair, refuse_another_value
from dagad._errors import StructureError
from dagad._graphs.linearization import seed_of_one
from dagad._graphs.monoids import NUMBERS, counted
from dagad._graphs.sum_trees import add_up
from dagad._tracing.flat_functions import Engine
from dagad._types import AnyRows, Cotangent, Function, Leaf, Value
from dagad._values import pytree
from dagad._values.reading import LATER, NEVER, NEXT, TURNS
from dagad._values.work_arrays import kept
from dagad._words import name_of


class ItemSum:
    """``sum(fun(item, *shared) for item in rows)``."""

    __slots__ = ("fun",)
    __dagad_wraps__ = True

    def __init__(self, fun: Function) -> None:
        self.fun = fun

    def __call__(self, rows: AnyRows, *shared: Any) -> Any:
        total: Any = None
        for item in pytree.items_of(rows):
            value = self.fun(item, *shared)
            if total is not None:
                total = add_values(total, value)
            else:
                total = value if type(value) in NUMBERS else counted(kept(value))
        return total


class PairSum:
    """The same for a function that returns its value and its pullback."""

    __dagad_wraps__ = True

    def __init__(self, fun: Function) -> None:
        self.fun = fun

    def __call__(self, rows: AnyRows, *shared: Any) -> tuple[Any, Any]:
        values, pulls, found, pulled = list[Any](), list[Any](), list[Any](), TURNS.pulled
        is_next = pulled is NEXT
        for item in pytree.items_of(rows):
            value, pull = _pair_of(self.fun, (item, *shared), LATER if pulled is NEXT and not is_next else pulled)
            values.append(value)
            is_next = is_next and type(value) in NUMBERS
            if is_next:
                with suppress(Exception):  # it is raised again where a pullback is at fault
                    found.append(_part(pull, seed_of_one(value), shared))
            is_next = is_next and len(found) == len(values)
            if not is_next:
                pulls.append(pull)
            del pull  # who is gone when the next item comes need not note what it reads
        total = add_up(*values)

        def pullback(cotangent: Cotangent) -> tuple[Any, ...]:
            return _added([_part(pull, cotangent, shared) for pull in pulls], rows, shared)

        def pullback_of_one(cotangent: Cotangent) -> tuple[Any, ...]:
            if type(cotangent) in NUMBERS and cotangent == 1.0:
                return _added([*found, *[_part(pull, cotangent, shared) for pull in pulls]], rows, shared)
            name, again, pull = _called_again(self, (rows, *shared))
            refuse_another_value(name, [total], again)
            cotangents: tuple[Any, ...] = pull(cotangent)
            return cotangents

        return total, pullback_of_one if found else pullback


def _part(pull: Function, cotangent: Cotangent, shared: Sequence[Any]) -> Any:
    part = check_count(pull(cotangent), 1 + len(shared))
    return kept(part)


def _added(found: Sequence[Any], rows: AnyRows, shared: Sequence[Any]) -> tuple[Any, ...]:
    """Return the cotangents of all items, from those of each."""
    of_shared = [add_up(*(part[index + 1] for part in found)) for index in range(len(shared))]
    return _joined(rows, [part[0] for part in found]), *of_shared


def _called_again(fun: Function, args: tuple[Any, ...]) -> tuple[str, list[Any], Any]:
    TURNS.begin()
    value, pull = checked_pair(fun(*args), name_of(fun))
    return name_of(fun), pytree.flatten(value)[0], pull


def _pair_of(fun: Function, args: tuple[Any, ...], pulled: str) -> tuple[Any, Any]:
    """Return the value and the pullback of one item; where somebody traces it, by the function's own rule."""
    if not any(map(pytree.is_traced, pytree.flatten(args)[0])):
        TURNS.begin()
        value, pull = checked_pair(fun(*args), name_of(fun))
        value = value if type(value) in NUMBERS else counted(kept(value))
        if pulled is NEVER:
            TURNS.next()
            return value, None
        is_next = pulled is NEXT and type(value) in NUMBERS
        return value, LatePullback(pytree.flatten(value)[0], pull, partial(_called_again, fun, args), is_next)
    bound = BoundCall(ExplicitEngine(), fun, args, {})
    values, pull = ExplicitEngine().linearize(bound, bound.leaves)
    value = bound.merge(values)
    return value if type(value) in NUMBERS else counted(kept(value)), lambda cotangent: bound.arranged(
        pull(bound.select(pytree.leaf_seeds(value, cotangent)))
    )


# By engine, where its functions return something else than their value.
_SUMS = {ExplicitEngine.name: lambda fun: Explicit(PairSum(fun))}


def item_sum(fun: Function, engine: Engine) -> Any:
    """Return the chunk function for a function of one item and its engine."""
    return _SUMS.get(engine.name, ItemSum)(fun)


def add_values(total: Value, value: Value) -> Any:
    """Return the sum of what two items gave."""
    a_leaves, a_def = pytree.flatten(total)
    b_leaves, b_def = pytree.flatten(value)
    pytree.check_same_structure(a_def, b_def, "The values of two items differ in structure")
    for a, b in zip(a_leaves, b_leaves, strict=True):
        if pytree.shape_of(pytree.plain(a)) != pytree.shape_of(pytree.plain(b)):
            raise StructureError(
                f"The values of two items differ in shape: {pytree.shape_of(pytree.plain(a))} and "
                f"{pytree.shape_of(pytree.plain(b))}, so they have no sum. Return the same shape for every item."
            )
    return pytree.unflatten(a_def, [a + b for a, b in zip(a_leaves, b_leaves, strict=True)])


def _joined(rows: AnyRows, parts: list[Any]) -> Any:
    """Return one cotangent for all rows from one per item; None where no item has one."""
    if all(part is None for part in parts):
        return None
    if isinstance(rows, list):
        return parts
    leaves, treedef = pytree.flatten(rows, is_leaf=pytree.is_list)
    columns = zip(*(pytree.subtrees(treedef, part) for part in parts), strict=True)
    pairs = zip(leaves, columns, strict=True)
    return pytree.unflatten(treedef, [_column(leaf, list(column)) for leaf, column in pairs])


def _column(leaf: Leaf, parts: list[Any]) -> Any:
    if isinstance(leaf, list):
        return parts
    return None if any(part is None for part in parts) else np.stack(parts)
