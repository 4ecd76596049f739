"""Any engine, met by autograd's tracers: a function of its own is one node on their tapes, with derivatives of its own.

What surrounds the user's function in a chunk (sums over items, stacks, seeds, tangents) is differentiated by autograd's
tracer, as is the program outside. Where a traced leaf reaches a function of another engine, traces are taken off one by
one, the innermost first, as they are around a whole reduction: forward mode makes of the function its pushforward,
reverse mode its pullback, which are functions of the same kind. So the engine sees nothing but plain leaves, and a
derivative of any order is the value of a function that it has made itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from autograd.extend import JVPNode, VJPNode

from dagad._errors import NotDifferentiableError, StructureError
from dagad._tracing.flat_functions import (
    Composed,
    Engine,
    Flat,
    FlatFunction,
    LeafPullback,
    Leaves,
    Traits,
    outputs_of,
    refuse_count,
)
from dagad._tracing.forward import TangentNode
from dagad._tracing.in_place import CHANGED, refuse_stale_memory
from dagad._tracing.rules import shaped
from dagad._tracing.tape import OutputCotangents, TapeNode, nodes_of_outputs, traceable
from dagad._tracing.traced_array import new_box
from dagad._types import AnyEngine, Cotangent, Function, Leaf, Value
from dagad._values import pytree
from dagad._values.blocks import is_seed

_BARE = frozenset({np.ndarray, np.float64, float})


class Trace(NamedTuple):
    """The innermost of the traces of some leaves: its nodes by index, and the leaves below it."""

    level: int
    nodes: dict[int, Any]
    below: list[Any]

    @property
    def kind(self) -> Any:
        """What its nodes are."""
        return type(next(iter(self.nodes.values())))

    @property
    def moves(self) -> bool:
        """Whether it is one of forward mode."""
        return issubclass(self.kind, JVPNode)

    def tangents(self) -> tuple[dict[int, list[Any]], int]:
        """Return the tangents of the leaves that move, by index, and in how many directions."""
        many = self.kind is TangentNode
        found = {position: list(node.g) if many else [node.g] for position, node in self.nodes.items()}
        return found, len(next(iter(found.values())))

    def with_tangents(self, value: Value, tangents: list[Any]) -> Any:
        """Return an output in a box, with its tangents."""
        node = self.kind.new_root(tangents if self.kind is TangentNode else tangents[0])
        return new_box(traceable(value), self.level, node)

    def pulled(self, values: Sequence[Any], pull: Function) -> list[Any]:
        """Return outputs in boxes, with one node that pulls them all."""
        if not values:
            return []
        answer = traceable(values[0]) if len(values) == 1 else tuple(map(traceable, values))
        kind, parents = self.kind, tuple(self.nodes.values())
        if issubclass(kind, VJPNode):
            node = kind.__new__(kind)
            node.parents, node.vjp = parents, pull
            if kind is TapeNode and len(values) > 1:
                ends = nodes_of_outputs(node, len(values))
                return [new_box(traceable(value), self.level, end) for value, end in zip(values, ends, strict=True)]
        else:  # another tracer, which may look at what was called
            values = [self.below[position] for position in self.nodes]
            node = kind(answer, _strange, (pull, *values), {}, tuple(range(1, 1 + len(values))), parents)
        box = new_box(answer, self.level, node)
        return [box] if len(values) == 1 else list(pytree.open_containers(box))


def innermost(leaves: Sequence[Any]) -> Trace | None:
    """Return the innermost trace of some leaves; None if nobody traces them."""
    level = -1
    for leaf in leaves:
        if type(leaf) in pytree.TRACED and leaf._trace > level:
            level = leaf._trace
    if level < 0:
        return None
    if CHANGED:
        refuse_stale_memory(leaves)
    nodes: dict[int, Any] = {}
    below = list(leaves)
    for position, leaf in enumerate(leaves):
        if type(leaf) in pytree.TRACED and leaf._trace == level:
            nodes[position], below[position] = leaf._node, leaf._value
    return Trace(level, nodes, below)


def _strange(pull: Function, *leaves: Any) -> Any:
    """Stand for an operation on the tapes of other tracers; reverse mode never calls it."""
    raise NotDifferentiableError(
        "A reduction was differentiated by a tool that dagad does not know. Use dagad's own transforms, such as "
        "`dagad.grad`, or autograd's."
    )


class TracedEngine:
    """An engine whose functions may be given leaves that autograd traces."""

    __slots__ = ("_traits", "engine")

    def __init__(self, engine: Engine, traits: Traits | None = None) -> None:
        self.engine = engine
        self._traits = Traits.of(engine) if traits is None else traits

    def run(self, fun: FlatFunction, leaves: Leaves) -> Any:
        """Return what a task returns, free of the engine's own types."""
        return fun.merge(self.value(fun, leaves))

    def value(self, fun: Flat, leaves: Leaves) -> list[Any]:
        """Run a flat function; what comes out is traced by those who trace the leaves."""
        trace = innermost(leaves)
        if trace is None:
            return self.engine.value(fun, list(map(traceable, leaves)))
        return (self._forward if trace.moves else self._reverse)(fun, trace)

    def value_and_grad(self, fun: Flat, leaves: Leaves) -> tuple[list[Any], LeafPullback]:
        """Return what `linearize` does where the seed 1 of a number comes next: some engines compile both as one."""
        return self.linearize(fun, leaves, self._traits.value_and_grad)

    def linearize(self, fun: Flat, leaves: Leaves, how: Function | None = None) -> tuple[list[Any], LeafPullback]:
        own: LeafPullback | None
        if _BARE.issuperset(map(type, leaves)):  # nearly always
            values, own = (how or self.engine.linearize)(fun, leaves)
        elif any(map(pytree.is_traced, leaves)):
            values, own = self.value(fun, leaves), None
        else:
            leaves = list(map(traceable, leaves))
            values, own = self.engine.linearize(fun, leaves)
        return values, EnginePullback(self, fun, leaves, own)

    def _forward(self, fun: Flat, trace: Trace) -> list[Any]:
        """Move those leaves that are moved: a tangent of zero at an infinite slope would be nan."""
        below, (tangents, count) = trace.below, trace.tangents()
        pushforward: Flat = Composed(self.engine.pushforward(fun, count), fun, "pushforward", count)  # or it is refused
        if len(tangents) < len(below):
            pushforward = pushforward_in(self.engine, fun, list(tangents), count)
        moving = [
            pytree.dense(own[number], below[index], "A tangent")
            for number in range(count)
            for index, own in tangents.items()
        ]
        both = self.value(pushforward, [*below, *moving])
        each = len(both) // (1 + count)
        if len(both) != each * (1 + count):
            refuse_count(f"returned, as value and {count} tangents together,", len(both), f"{1 + count} equal parts")
        boxes = []
        for number, value in enumerate(both[:each]):
            if not pytree.is_differentiable_or_traced(value):
                boxes.append(value)
                continue
            own = [self.fitting(part, value, "tangent") for part in both[each + number :: each]]
            boxes.append(trace.with_tangents(value, own))
        return boxes

    def fitting(self, part: Leaf, leaf: Leaf, what: str) -> Any:
        """Return what an engine says of a leaf in the leaf's dtype, if it has the leaf's shape, and is as real."""
        what = f"A {what} from the engine {self.engine.name!r}"
        if part is not None and np.iscomplexobj(pytree.plain(part)) and not np.iscomplexobj(pytree.plain(leaf)):
            _refuse_complex(pytree.plain(part), what)
            part = shaped(part, leaf)
        return pytree.fitted(part, leaf, what)

    def _reverse(self, fun: Flat, trace: Trace) -> list[Any]:
        """Put one node on the tape, which pulls all outputs together."""
        return in_one_node(trace, *self.linearize(fun, trace.below))


def in_one_node(trace: Trace, values: Sequence[Any], pullback: LeafPullback) -> list[Any]:
    """Return the values of a function of leaves as a trace sees them: outputs of one node, which pulls all together."""
    floats = [position for position, value in enumerate(values) if pytree.is_differentiable_or_traced(value)]
    pull = NodePullback(pullback, trace.below, list(trace.nodes), floats, len(values))
    boxes = dict(zip(floats, trace.pulled([values[position] for position in floats], pull), strict=True))
    return [boxes.get(position, value) for position, value in enumerate(values)]


def _refuse_complex(part: Leaf, what: str) -> None:
    """Raise if the part of something real is complex, by more than a method of complex steps rounds."""
    largest = float(np.max(np.abs(np.imag(part)), initial=0.0))
    if largest > 1e-8 * float(np.max(np.abs(part), initial=0.0)):
        raise StructureError(
            f"{what} has an imaginary part, of up to {largest:.3g}, and belongs to a real number or array, whose "
            "derivatives are real. If the real part is the derivative, have the engine return `np.real(part)`."
        )


def traced_engine(engine: AnyEngine, traits: Traits | None = None) -> Any:
    """Return an engine as one whose functions may be given traced leaves: those of some may be already."""
    traits = Traits.of(engine) if traits is None else traits
    return engine if traits.is_autograds or traits.follows_traces else TracedEngine(engine, traits)


def pushforward_in(engine: Engine, fun: Flat, moving: Sequence[int], count: int) -> Composed:
    """Return ``[*x, *dx_1, ...] -> [*y, *dy_1, ...]``, with tangents of some of the leaves."""

    def pushforward(leaves: Leaves) -> list[Any]:
        n_leaves = len(leaves) - count * len(moving)
        still, own = leaves[:n_leaves], [leaves[index] for index in moving]

        def of_moving(own: Leaves) -> list[Any]:
            if len(own) != len(moving):
                refuse_count("called a function with", len(own), len(moving))
            at = dict(zip(moving, own, strict=True))
            return fun([at.get(index, leaf) for index, leaf in enumerate(still)])

        return engine.pushforward(Composed(of_moving, fun, "inputs", *moving), count)([*own, *leaves[n_leaves:]])

    return Composed(pushforward, fun, "pushforward", count, *moving)


class EnginePullback:
    """The pullback of an engine's function, by the engine's own, or by a function that pulls where somebody traces."""

    __slots__ = ("_engine", "_fun", "_leaves", "_own")

    def __init__(self, engine: TracedEngine, fun: Flat, leaves: Leaves, own: LeafPullback | None) -> None:
        self._engine, self._fun, self._leaves, self._own = engine, fun, leaves, own

    def __call__(self, cotangents: Sequence[Any]) -> list[Any]:
        if self._own is not None and len(cotangents) == 1 and type(cotangents[0]) in _BARE:  # nearly always
            return self._fitting(self._own(cotangents))
        seeded = [index for index, part in enumerate(cotangents) if part is not None]
        if not seeded:
            return [None] * len(self._leaves)
        if self._own is not None and not any(map(pytree.is_traced, cotangents)):
            return self._fitting(self._own(cotangents))
        fun = self._fun if len(seeded) == len(cotangents) else outputs_of(self._fun, seeded)
        pulled = Composed(self._engine.engine.pullback(fun, len(self._leaves)), fun, "pullback")
        found = self._engine.value(pulled, [*self._leaves, *(cotangents[index] for index in seeded)])
        return self._fitting(found)

    def many(self, many: Sequence[Sequence[Any] | None]) -> list[list[Any] | None]:
        """Pull many, all at once where the engine can; None where there is none."""
        together = getattr(self._own, "many", None)
        if together is None or any(pytree.is_traced(seed) for seeds in many for seed in seeds or ()):
            return [None if seeds is None else self(seeds) for seeds in many]
        return [None if found is None else self._fitting(found) for found in together(many)]

    def _fitting(self, found: Sequence[Any]) -> list[Any]:
        if len(found) != len(self._leaves):
            refuse_count("returned, as cotangents,", len(found), len(self._leaves))
        fitted = []
        for part, leaf in zip(found, self._leaves, strict=True):
            if type(part) is np.ndarray and type(leaf) is np.ndarray:  # nearly always
                if part.shape == leaf.shape and part.dtype == leaf.dtype:
                    fitted.append(part)
                    continue
            fitted.append(self._engine.fitting(part, leaf, "cotangent"))
        return fitted

    def nbytes(self) -> int:
        return 0 if self._own is None else self._own.nbytes()


def parts_of(cotangent: Cotangent) -> list[Any]:
    """Return the cotangents of the outputs of a node, None for none, from what a tape brings."""
    if type(cotangent) is OutputCotangents:
        return cotangent.listed()
    opened = pytree.open_containers(cotangent)
    return list(opened) if isinstance(opened, tuple | list) else [opened]


class NodePullback:
    """The pullback of an engine's function as a tape knows it: from one cotangent, a tuple for several outputs.

    Those that have one are at `floats` among the outputs of the function.
    """

    __slots__ = ("_floats", "_indices", "_leaves", "_n_outputs", "_pullback")

    def __init__(
        self, pullback: LeafPullback, leaves: list[Any], indices: list[int], floats: list[int], n_outputs: int
    ) -> None:
        self._indices, self._leaves, self._pullback = indices, leaves, pullback
        self._floats, self._n_outputs = floats, n_outputs

    def __call__(self, cotangent: Cotangent) -> tuple[Any, ...]:
        parts = parts_of(cotangent)
        seeds: list[Any] = [None] * self._n_outputs
        for position, part in zip(self._floats, parts, strict=True):
            # Of outputs that nobody used autograd says zero, which at an infinite slope would be nan.
            seeds[position] = part if is_seed(part) else None
        found = self._pullback(seeds)
        return tuple(pytree.dense(found[index], self._leaves[index], "A cotangent") for index in self._indices)
