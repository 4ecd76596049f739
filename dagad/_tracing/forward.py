"""Forward mode on autograd's tracer: tangents travel with the values, any number of directions at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from autograd.extend import JVPNode, vspace

from dagad._errors import NotDifferentiableError
from dagad._tracing import refusals
from dagad._tracing.flat_functions import Flat
from dagad._tracing.patches import patches
from dagad._tracing.private import isbox
from dagad._tracing.quick_tangents import quick_jvp
from dagad._tracing.rules import jvp_rule, learn_rules, vjp_rule
from dagad._tracing.stacked_tangents import is_double, is_stack, quickly_stacked, stacked
from dagad._tracing.tape import (
    RETURNED,
    TapeNode,
    pull,
    refuse_hidden_boxes,
    refuse_stale,
    refuse_unfit,
    traceable,
    traced,
)
from dagad._tracing.traced_array import OwnNode, new_box
from dagad._types import AnyNode, Argnums, Args, Function, Kwargs, Leaf, Tangent, Tangents, Value
from dagad._values import pytree

# One tangent per leaf, None for zero: a direction.
Direction = Sequence[Any]


class TangentNode(OwnNode, JVPNode):  # type: ignore[misc]  # autograd has no types
    """A value's tangents, one per direction; None is an exact zero, and costs nothing further on.

    They are a list, or a stack of arrays where the tangents that they come from are; see `stacked_tangents`.
    """

    __slots__ = ()
    moves = True
    g: Any

    def __init__(
        self, value: Value, fun: Function, args: Args, kwargs: Kwargs, argnums: Argnums, parents: Sequence[AnyNode]
    ) -> None:
        in_stacks = any(is_stack(parent.g) for parent in parents)
        if in_stacks:
            stack = None if kwargs else quickly_stacked(fun, value, args, argnums, parents)
            if stack is None:
                stack = _stacked_by_rule(fun, value, args, kwargs, argnums, parents)
            if stack is not None:
                self.g = stack
                return
        quick = None if kwargs else quick_jvp(fun, value, args, argnums, parents)
        if quick is None:
            directions = zip(*[parent.g for parent in parents], strict=True)
            quick = [_jvp(fun, value, args, kwargs, argnums, tangents) for tangents in directions]
        self.g = stacked(quick, value) if in_stacks else quick


def _stacked_by_rule(
    fun: Function, value: Value, args: Args, kwargs: Kwargs, argnums: Argnums, parents: Sequence[AnyNode]
) -> Any:
    """Return the stack of an operation by a rule of dagad's that takes stacks; None where its rule takes none."""
    stacks, of_stacks = [parent.g for parent in parents], getattr(jvp_rule(fun, args, kwargs), "of_stacks", None)
    if of_stacks is None or not is_double(value) or not all(map(is_stack, stacks)):
        return None
    try:
        return of_stacks(argnums, stacks, value, args, kwargs)
    except (KeyError, NotImplementedError):  # a rule for other arguments only
        return None


def push_stacks(run: Callable[[list[Any]], Any], leaves: Sequence[Any], stacks: Sequence[Any]) -> tuple[Any, Any]:
    """Run `run` on leaves that move by stacks of tangents.

    Returns its one output and the stack of that, a list of tangents if it has none; None where it does not move.
    """
    learn_rules()
    with patches.new_trace() as level:
        roots = map(TangentNode.new_root, stacks)
        moving = [new_box(traceable(leaf), level, root) for leaf, root in zip(leaves, roots, strict=True)]
        output = pytree.open_containers(traced(run, moving))
    if isbox(output) and output._trace == level:
        refuse_unfit(output._value)
        return output._value, output._node.g
    refuse_hidden_boxes(output, level)
    return output, None


def push(run: Callable[[list[Any]], Any], leaves: Sequence[Any], directions: Sequence[Direction]) -> tuple[Any, Any]:
    """Run `run` on leaves that move.

    Returns its value, and for each direction the tangents of the value's leaves; None where a leaf does not move.
    """
    held: list[pytree.TreeDef] = []

    def flat(leaves: Sequence[Any]) -> list[Any]:
        outputs, treedef = pytree.flatten(pytree.open_containers(run(list(leaves))))
        held.append(treedef)
        return outputs

    values, tangents = push_flat(flat, leaves, directions)
    return pytree.unflatten(held[-1], values), tangents


def push_flat(run: Flat, leaves: Sequence[Any], directions: Sequence[Direction]) -> tuple[list[Any], list[list[Any]]]:
    """Do so with a function that returns leaves."""
    learn_rules()
    level = patches.begin()
    try:
        outputs = traced(run, [_moving(leaf, at, level, directions) for at, leaf in enumerate(leaves)])
    finally:
        patches.end(level)
    values: list[Any] = []
    found: list[list[Any]] = [[] for _ in directions]
    for leaf in outputs:
        moves = type(leaf) in pytree.TRACED and leaf._trace == level
        value = leaf._value if moves else leaf
        if moves:
            refuse_unfit(value)
        else:
            refuse_stale(leaf, RETURNED)
            refuse_hidden_boxes(leaf, level)
        values.append(value)
        for number, own in enumerate(found):
            own.append(_shaped(leaf._node.g[number], value) if moves else None)
    return values, found


def _moving(leaf: Leaf, index: int, level: int, directions: Sequence[Direction]) -> Any:
    """Return a leaf as a trace sees it where some direction moves it; else as it is."""
    for direction in directions:
        if direction[index] is not None:
            break
    else:
        return leaf
    node = TangentNode.__new__(TangentNode)
    node.g = [direction[index] for direction in directions]
    return new_box(traceable(leaf), level, node)


def _shaped(tangent: Tangent, value: Value) -> Any:
    """Return a tangent with its value's dtype: float32 stays float32, real stays real."""
    kind = type(tangent)
    if kind is type(value) and (kind is np.float64 or (kind is np.ndarray and tangent.shape == value.shape)):
        return tangent if tangent.dtype == value.dtype else pytree.cast(tangent, value)
    if tangent is None or isbox(tangent) or isbox(value) or pytree.is_sharded(value):
        return tangent
    if np.shape(tangent) != np.shape(value):
        tangent = np.broadcast_to(tangent, np.shape(value))
    return pytree.cast(tangent, value)


def _jvp(
    fun: Function, value: Value, args: Args, kwargs: Kwargs, argnums: Sequence[int], tangents: Sequence[Any]
) -> Any:
    """Push one direction through one primitive."""
    if any(tangent is None for tangent in tangents):
        moving = [(argnum, tangent) for argnum, tangent in zip(argnums, tangents, strict=True) if tangent is not None]
        if not moving:
            return None
        argnums, tangents = zip(*moving, strict=True)
    rule = jvp_rule(fun, args, kwargs)
    if rule is None:
        return _by_transposition(fun, value, args, kwargs, argnums, tangents)
    try:
        tangent = rule(argnums, tangents, value, args, kwargs)
    except (KeyError, NotImplementedError):  # a rule for other arguments only
        return _by_transposition(fun, value, args, kwargs, argnums, tangents)
    if _fits(tangent, value):
        return tangent
    if vjp_rule(fun) is not None:
        return _by_transposition(fun, value, args, kwargs, argnums, tangents)
    return tangent + np.zeros(np.shape(pytree.plain(value)), pytree.dtype_of(pytree.plain(tangent)))


def _fits(tangent: Tangent, value: Value) -> bool:
    """Return whether a tangent has its value's shape; containers and autograd's sparse objects have none."""
    kind = type(tangent)
    if kind is type(value) and (kind is np.float64 or (kind is np.ndarray and tangent.shape == value.shape)):
        return True  # nearly always
    plain = pytree.plain(value)
    return not isinstance(plain, np.ndarray | np.number | float) or np.shape(pytree.plain(tangent)) == np.shape(plain)


def _by_transposition(fun: Any, value: Value, args: Args, kwargs: Kwargs, argnums: Argnums, tangents: Tangents) -> Any:
    """Push through a primitive that has a pullback only: this is linear, and its transpose is the pushforward.

    After J. Townsend, "A new trick for calculating Jacobian vector products" (2017), by primitive.
    """
    name = getattr(fun, "__name__", fun)
    rule = vjp_rule(fun)
    if rule is None:
        raise NotDifferentiableError(refusals.of_function(name, refusals.IN_ONE))
    # Not zeros: pullbacks may leave out what a zero cotangent does not need, as that of `eigh` does.
    start = vspace(value).ones()
    try:
        with patches.new_trace() as level:
            root = TapeNode.new_root()
            box = new_box(start, level, root)
            outputs = list(rule(argnums, value, args, kwargs)(box))
    except NotImplementedError as error:
        raise NotDifferentiableError(refusals.of_function(name, f" with these arguments ({error})")) from error
    ends = [output._node if isbox(output) and output._trace == level else None for output in outputs]
    # A container has no dtype that its tangent could be given; like what is traced, it comes as it is.
    leaf = box if isinstance(start, tuple | list | dict) else start
    tangent = pull(ends, tangents, [root], [leaf])[0]
    if tangent is not None and not _fits(tangent, value):
        raise NotDifferentiableError(
            f"autograd's derivative of `{name}` is wrong where it broadcasts: it has the shape "
            f"{np.shape(pytree.plain(tangent))}, the value has {np.shape(pytree.plain(value))}. Broadcast its "
            "arguments first, by `* np.ones(shape)`."
        )
    return tangent
