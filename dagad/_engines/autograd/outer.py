"""The one node that an outer program sees of a reduction: traces are taken off here, only values cross into chunks.

Traces are peeled one by one, the innermost first. Forward mode makes a reduction of values and tangents together;
reverse mode over nothing runs the reduction, over a further trace it makes a reduction of the pullback.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from autograd.extend import JVPNode, VJPNode

from dagad._engines.autograd.forward import TangentNode
from dagad._engines.autograd.private import new_box
from dagad._engines.autograd.tape import traceable
from dagad._errors import NotDifferentiableError
from dagad._executors.blocks import Blocks
from dagad._executors.chunked import Reduction
from dagad._executors.context import is_in_a_transform, note_operation
from dagad._executors.mapped import Mapped
from dagad._graphs.policies import Preaccumulate
from dagad._operations.derived import Parts, Summed
from dagad._operations.inputs import Inputs
from dagad._pytrees import pytree
from dagad._pytrees.canonical import contiguous, writable
from dagad._pytrees.partition import Partition

Operation = Reduction | Mapped


def differentiable(operation: Operation, leaves: Sequence[Any]) -> Any:
    """Return what an operation gives, as a function of its leaves, some of which somebody traces."""
    note_operation(operation, leaves)
    parts = _applied(operation, leaves)
    return parts.summed if isinstance(operation, Reduction) else parts


def _applied(operation: Operation, leaves: Sequence[Any]) -> Parts:
    level = max((leaf._trace for leaf in leaves if pytree.is_traced(leaf)), default=None)
    if not len(operation.plan):  # nothing depends on anything
        return Parts(0.0, [])
    if level is None:
        return mapped(operation).value(list(map(traceable, leaves)))
    nodes = {place: leaf._node for place, leaf in enumerate(leaves) if getattr(leaf, "_trace", None) == level}
    below = [leaf._value if place in nodes else leaf for place, leaf in enumerate(leaves)]
    moving = isinstance(next(iter(nodes.values())), JVPNode)
    return (_forward if moving else _reverse)(operation, below, nodes, level)


def mapped(operation: Operation) -> Mapped:
    """Return an operation as one whose derivatives, of all modes, are operations again."""
    if isinstance(operation, Mapped):
        return operation
    return Mapped(
        Summed(operation.function),
        operation.plan,
        operation.sliced,
        Inputs.of(operation.plan, operation.sliced, operation.n_theta),
        operation.scheduler,
        operation.policy,
    )


# Forward


def _forward(operation: Operation, below: list[Any], nodes: dict[int, Any], level: int) -> Parts:
    """Move the leaves: one operation gives the value and the tangents in all directions."""
    _refuse_placed(below)
    operation = mapped(operation)
    many = isinstance(next(iter(nodes.values())), TangentNode)
    tangents = {place: node.g if many else [node.g] for place, node in nodes.items()}
    count, n_theta = len(next(iter(tangents.values()))), sum(operation.inputs.theta)
    moving = [
        [_dense(tangents[place][number] if place in tangents else None, leaf) for place, leaf in enumerate(below)]
        for number in range(count)
    ]
    copies = [below, *moving]
    leaves = [leaf for copy in copies for leaf in copy[:n_theta]] + [leaf for copy in copies for leaf in copy[n_theta:]]
    both = _applied(operation.pushed(count), leaves)
    value, directions = operation.moved(both, count)
    boxes = (
        new_box(leaf, level, TangentNode.new_root(list(parts)) if many else JVPNode.new_root(parts[0]))
        for leaf, parts in zip(value.floats(), zip(*directions, strict=True), strict=True)
    )
    return _filled(value, boxes)


def _dense(tangent: Any, leaf: Any) -> Any:
    if tangent is None:
        return pytree.zeros_like(pytree.plain(leaf))
    if pytree.is_traced(tangent) or pytree.is_traced(leaf):
        return tangent
    return pytree.cast_like(tangent, leaf, "A tangent came")


def _filled(value: Parts, leaves: Iterator[Any]) -> Parts:
    """Return a result with other leaves where it has floating-point ones."""
    summed = Partition.of(value.summed, pytree.is_differentiable_or_traced).merge(leaves)
    own = [next(leaves) if pytree.is_differentiable_or_traced(leaf) else leaf for leaf in value.own]
    return Parts(summed, own, value.note, value.places)


# Reverse


def _reverse(operation: Operation, below: list[Any], nodes: dict[int, Any], level: int) -> Parts:
    """Run the operation; its pullback becomes one node of the outer tape."""
    if not any(map(pytree.is_traced, below)):
        below = [traceable(contiguous(leaf)) for leaf in below]
    value, unit = _ready(operation, below)
    outputs = value.floats()
    if not outputs:
        return value
    pull = Pull(operation, below, value, unit, tuple(nodes))
    answer = outputs[0] if len(outputs) == 1 else tuple(outputs)
    node = _node_of(tuple(nodes.values()), pull, answer, [below[place] for place in nodes])
    opened = pytree.open_containers(new_box(answer, level, node))
    return _filled(value, iter(opened if isinstance(opened, tuple) else (opened,)))


def _node_of(parents: tuple[Any, ...], pull: Pull, answer: Any, values: list[Any]) -> Any:
    kind: Any = type(parents[0])
    if not issubclass(kind, VJPNode):  # another tracer, which may look at the operation
        return kind(answer, _node, (pull, *values), {}, tuple(range(1, 1 + len(values))), parents)
    node = kind.__new__(kind)
    node.parents, node.vjp = parents, pull
    return node


def _ready(operation: Operation, below: list[Any]) -> tuple[Parts, list[Any] | None]:
    """Return the value, ready to be pulled; with it the gradients for the seed 1, where these are operations too."""
    traced = any(map(pytree.is_traced, below))
    if not traced and isinstance(operation, Reduction):
        return Parts(operation.linearized(below), []), None
    _refuse_placed(below)
    general = mapped(operation)
    if isinstance(operation.policy, Preaccumulate) and type(general.function) is Summed:
        both = _applied(general.with_unit(), below)
        value, shared = both.summed
        return Parts(value, []), None if shared is None else [*shared, *both.own]
    return (_applied(general, below) if traced else general.linearized(below)), None


class Pull:
    """The pullback of an operation, as the outer tape knows it."""

    def __init__(
        self, operation: Operation, leaves: list[Any], value: Parts, unit: list[Any] | None, places: tuple[int, ...]
    ) -> None:
        self._operation, self._leaves, self._value, self._unit = operation, leaves, value, unit
        self._places = places  # of the leaves that this trace asks for

    def __call__(self, cotangent: Any) -> tuple[Any, ...]:
        cotangents = self._pulled(_opened(cotangent))
        found = (cotangents[place] for place in self._places)
        # Autograd's own transforms hand out what they get.
        return tuple(found if is_in_a_transform() else map(writable, found))

    def many(self, cotangents: Sequence[Any]) -> list[list[Any]]:
        """Return for each parent of the node its cotangents for many seeds, None for zero."""
        seeds = [None if cotangent is None else _opened(cotangent) for cotangent in cotangents]
        traced = any(pytree.is_traced(seed) for some in seeds for seed in some or ())
        if traced or self._unit is not None or any(map(pytree.is_traced, self._leaves)):
            nothing = [None] * len(self._leaves)
            rows = [nothing if some is None else self._pulled([_full(seed) for seed in some]) for some in seeds]
            found = [list(column) for column in zip(*rows, strict=True)]
        elif isinstance(self._operation, Reduction):
            trees = [None if some is None else self._structured(list(map(_full, some))) for some in seeds]
            found = self._operation.pulled_many(self._leaves, trees)
        else:
            nothing = [None] * len(self._value.floats())
            found = self._operation.pulled_many(self._leaves, [some or nothing for some in seeds])
        return [found[place] for place in self._places]

    def _structured(self, seeds: Sequence[Any]) -> Any:
        return Partition.of(self._value.summed, pytree.is_differentiable_or_traced).arrange(iter(seeds))

    def _pulled(self, seeds: list[Any]) -> list[Any]:
        if self._unit is not None:
            return [part * seeds[0] for part in self._unit]
        if any(map(pytree.is_traced, (*self._leaves, *seeds))):
            return self._pulled_traced(seeds)
        if isinstance(self._operation, Reduction):
            return self._operation.pulled(self._leaves, self._structured(seeds))
        return self._operation.pulled(self._leaves, seeds)

    def _pulled_traced(self, seeds: list[Any]) -> list[Any]:
        """Pull by an operation of its own, since somebody differentiates the pullback."""
        _refuse_placed(self._leaves)
        operation = mapped(self._operation)
        n_theta = sum(operation.inputs.theta)
        filled = [_dense(seed, leaf) for seed, leaf in zip(seeds, self._value.floats(), strict=True)]
        n_summed = len(Parts(self._value.summed, []).floats())
        leaves = [*self._leaves[:n_theta], *filled[:n_summed], *self._leaves[n_theta:], *filled[n_summed:]]
        back = _applied(operation.turned(self._value), leaves)
        return [*(back.summed or ()), *back.own]


def _opened(cotangent: Any) -> list[Any]:
    opened = pytree.open_containers(cotangent)
    return list(opened) if isinstance(opened, tuple | list) else [opened]


def _full(seed: Any) -> Any:
    return seed.full() if isinstance(seed, Blocks) else seed


def _node(pull: Pull, *leaves: Any) -> Any:
    """Stand for an operation on the tapes of other tracers; reverse mode never calls it."""
    raise NotDifferentiableError(
        f"A reduction was met by a tracer that dagad does not know, at {len(leaves)} leaves with {pull!r}. Use dagad's "
        "or autograd's own transforms."
    )


def _refuse_placed(leaves: Sequence[Any]) -> None:
    if any(map(pytree.is_placed, leaves)):
        raise NotDifferentiableError(
            "Rows in Shards can be differentiated in once, in reverse mode, in a plain sum; this is a derivative of a "
            "derivative, forward mode, a map or another sum. Pass what `shards.gather()` returns instead."
        )
