"""Any engine, met by autograd's tracers: a function of its own is one node on their tapes, with derivatives of its own.

What surrounds the user's function in a chunk (sums over items, stacks, seeds, tangents) is differentiated by autograd's
tracer, as is the program outside. Where a traced leaf reaches a function of another engine, traces are taken off one by
one, the innermost first, as they are around a whole reduction: forward mode makes of the function its pushforward,
reverse mode its pullback, which are functions of the same kind. So the engine sees nothing but plain leaves, and a
derivative of any order is the value of a function that it has made itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from autograd.extend import JVPNode

from dagad._engines.autograd.forward import TangentNode
from dagad._engines.autograd.tape import traceable
from dagad._engines.autograd.traced_array import new_box
from dagad._engines.base import Composed, Engine, Flat, FlatFunction, LeafPullback, Leaves
from dagad._pytrees import pytree

_BARE = frozenset({np.ndarray, np.float64, float})


class TracedEngine:
    """An engine whose functions may be given leaves that autograd traces."""

    __slots__ = ("_pulls_all", "engine")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._pulls_all = getattr(engine, "pulls_all", False)

    def run(self, fun: FlatFunction, leaves: Leaves) -> Any:
        """Return what a task returns, free of the engine's own types."""
        return fun.merge(self.value(fun, leaves))

    def value(self, fun: Flat, leaves: Leaves) -> list[Any]:
        """Run a flat function; what comes out is traced by those who trace the leaves."""
        level = max((leaf._trace for leaf in leaves if pytree.is_traced(leaf)), default=None)
        if level is None:
            return self.engine.value(fun, list(map(traceable, leaves)))
        nodes = {index: leaf._node for index, leaf in enumerate(leaves) if getattr(leaf, "_trace", None) == level}
        below = [leaf._value if index in nodes else leaf for index, leaf in enumerate(leaves)]
        if isinstance(next(iter(nodes.values())), JVPNode):
            return self._forward(fun, below, nodes, level)
        return self._reverse(fun, below, nodes, level)

    def linearize(self, fun: Flat, leaves: Leaves) -> tuple[list[Any], LeafPullback]:
        own: LeafPullback | None
        if _BARE.issuperset(map(type, leaves)):  # nearly always
            values, own = self.engine.linearize(fun, leaves)
            if self._pulls_all:
                return values, own
        elif any(map(pytree.is_traced, leaves)):
            values, own = self.value(fun, leaves), None
        else:
            leaves = list(map(traceable, leaves))
            values, own = self.engine.linearize(fun, leaves)
        return values, EnginePullback(self, fun, leaves, own)

    def _forward(self, fun: Flat, below: list[Any], nodes: dict[int, Any], level: int) -> list[Any]:
        """Move those leaves that are moved: a tangent of zero at an infinite slope would be nan."""
        many = isinstance(next(iter(nodes.values())), TangentNode)
        tangents = {index: node.g if many else [node.g] for index, node in nodes.items()}
        count = len(next(iter(tangents.values())))
        pushed: Flat = Composed(self.engine.pushforward(fun, count), fun, "pushforward", count)  # or it is refused
        if len(tangents) < len(below):
            pushed = pushforward_in(self.engine, fun, list(tangents), count)
        moving = [_dense(own[number], below[index]) for number in range(count) for index, own in tangents.items()]
        both = self.value(pushed, [*below, *moving])
        each = len(both) // (1 + count)
        boxes = []
        for number, value in enumerate(both[:each]):
            own = [self.fitting(part, value, "tangent") for part in both[each + number :: each]]
            node = TangentNode.new_root(own) if many else JVPNode.new_root(own[0])
            boxes.append(new_box(traceable(value), level, node))
        return boxes

    def fitting(self, part: Any, leaf: Any, what: str) -> Any:
        """Return what an engine says of a leaf in the leaf's dtype, if it has the leaf's shape."""
        return pytree.fitted(part, leaf, f"A {what} from the engine {self.engine.name!r}")

    def _reverse(self, fun: Flat, below: list[Any], nodes: dict[int, Any], level: int) -> list[Any]:
        """Put one node on the tape, which pulls all outputs together."""
        values, pullback = self.linearize(fun, below)
        if not values:
            return values
        kind: Any = type(next(iter(nodes.values())))
        node = kind.__new__(kind)
        node.parents, node.vjp = tuple(nodes.values()), _NodePullback(pullback, below, list(nodes))
        answer = traceable(values[0]) if len(values) == 1 else tuple(map(traceable, values))
        opened = pytree.open_containers(new_box(answer, level, node))
        return list(opened) if isinstance(opened, tuple) else [opened]


def traced_engine(engine: Any) -> Any:
    """Return an engine as one whose functions may be given traced leaves: autograd's may be already."""
    return engine if getattr(engine, "is_autograds", False) else TracedEngine(engine)


def pushforward_in(engine: Engine, fun: Flat, moving: Sequence[int], count: int) -> Composed:
    """Return ``[*x, *dx_1, ...] -> [*y, *dy_1, ...]``, with tangents of some of the leaves."""

    def pushed(leaves: Leaves) -> list[Any]:
        n_leaves = len(leaves) - count * len(moving)
        still, own = leaves[:n_leaves], [leaves[index] for index in moving]

        def of_moving(own: Leaves) -> list[Any]:
            at = dict(zip(moving, own, strict=True))
            return fun([at.get(index, leaf) for index, leaf in enumerate(still)])

        return engine.pushforward(Composed(of_moving, fun, "inputs", *moving), count)([*own, *leaves[n_leaves:]])

    return Composed(pushed, fun, "pushforward", count, *moving)


def outputs_of(fun: Flat, indices: Sequence[int]) -> Composed:
    """Return a flat function with some of its outputs."""

    def some(leaves: Leaves) -> list[Any]:
        outputs = fun(leaves)
        return [outputs[index] for index in indices]

    return Composed(some, fun, "outputs", *indices)


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

    def _fitting(self, found: Sequence[Any]) -> list[Any]:
        pairs = zip(found, self._leaves, strict=True)
        return [self._engine.fitting(part, leaf, "cotangent") for part, leaf in pairs]

    def nbytes(self) -> int:
        return 0 if self._own is None else self._own.nbytes()


class _NodePullback:
    """The pullback of an engine's function as a tape knows it: from one cotangent, a tuple for several outputs."""

    __slots__ = ("_indices", "_leaves", "_pullback")

    def __init__(self, pullback: LeafPullback, leaves: list[Any], indices: list[int]) -> None:
        self._pullback, self._leaves, self._indices = pullback, leaves, indices

    def __call__(self, cotangent: Any) -> tuple[Any, ...]:
        opened = pytree.open_containers(cotangent)
        parts = list(opened) if isinstance(opened, tuple | list) else [opened]
        # Of outputs that nobody used autograd says zero, which at an infinite slope would be nan.
        found = self._pullback([part if pytree.is_traced(part) or np.any(part) else None for part in parts])
        return tuple(_dense(found[index], self._leaves[index]) for index in self._indices)


def _dense(part: Any, leaf: Any) -> Any:
    return pytree.zeros_like(leaf) if part is None else pytree.fitted(part, leaf, "A tangent")
