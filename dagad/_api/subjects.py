"""What a check looks at, a function or a Dask graph, as lists of leaves that can be moved, pushed and pulled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import autograd.numpy as anp
import numpy as np
from dask.base import compute
from dask.delayed import Delayed, delayed

from dagad._api.collections import gradient
from dagad._api.higher_order import jvp
from dagad._api.transforms import vjp
from dagad._errors import NotDifferentiableError
from dagad._operations.context import operations_seen
from dagad._pytrees import pytree
from dagad._pytrees.partition import Partition
from dagad_scheduler.private import DataNode, ensure_dict


class Subject(Protocol):
    """Something with a derivative, at a point."""

    leaves: list[Any]  # the point
    names: list[str]  # how a user would call each leaf

    def value(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the floating-point leaves of the value at another point."""

    def push(self, tangents: Sequence[Any]) -> list[Any]:
        """Return the tangents of these, by forward mode."""

    def pull(self, seeds: Sequence[Any]) -> list[Any]:
        """Return the cotangents of the leaves, by reverse mode."""

    def derived(self, mode: str, direction: Sequence[Any], seeds: Sequence[Any]) -> Subject:
        """Return the derivative in one mode as a subject of its own."""

    def operations(self) -> list[Any]:
        """Return the reductions and maps in it, with their leaves."""


def subject_of(fun: Any, args: Sequence[Any]) -> Subject:
    """Return what is to be checked."""
    return GraphSubject(fun, args) if isinstance(fun, Delayed) else FunctionSubject(fun, args)


def _floats(tree: Any) -> list[Any]:
    return [leaf for leaf in pytree.flatten(tree)[0] if pytree.is_differentiable_or_traced(leaf)]


class FunctionSubject:
    """A function of pytrees, in all arguments that have floating-point leaves."""

    def __init__(self, fun: Callable[..., Any], args: Sequence[Any]) -> None:
        self._fun, self._args = fun, list(args)
        partitions = [Partition.of(arg, pytree.is_differentiable) for arg in args]
        self._partitions = {place: p for place, p in enumerate(partitions) if p.positions}
        if not self._partitions:
            raise NotDifferentiableError(
                "No argument has floating-point numbers, so there is no derivative to check. Convert integers with "
                "`float(...)` or `.astype(float)`."
            )
        self.leaves = [leaf for p in self._partitions.values() for leaf in p.taken]
        self.names = [
            f"argument {place}" + (f", leaf {path}" if path else "")
            for place, partition in self._partitions.items()
            for path in [pytree.paths(args[place])[position] for position in partition.positions]
        ]

    def _at(self, leaves: Sequence[Any]) -> list[Any]:
        rest, args = iter(leaves), list(self._args)
        for place, partition in self._partitions.items():
            args[place] = partition.merge(rest)
        return args

    def _moving(self, *moving: Any) -> Any:
        args = list(self._args)
        for place, argument in zip(self._partitions, moving, strict=True):
            args[place] = argument
        return self._fun(*args)

    @property
    def _primals(self) -> list[Any]:
        return [self._args[place] for place in self._partitions]

    def _trees(self, parts: Sequence[Any]) -> list[Any]:
        rest = iter(parts)
        return [p.arrange(rest) for p in self._partitions.values()]

    def value(self, leaves: Sequence[Any]) -> list[Any]:
        return _floats(self._fun(*self._at(leaves)))

    def push(self, tangents: Sequence[Any]) -> list[Any]:
        value, tangent = jvp(self._moving, self._primals, self._trees(tangents))
        return Partition.of(value, pytree.is_differentiable_or_traced).extract(tangent)

    def pull(self, seeds: Sequence[Any]) -> list[Any]:
        value, pullback = vjp(self._moving, *self._primals)
        cotangents = pullback(Partition.of(value, pytree.is_differentiable_or_traced).arrange(iter(seeds)))
        partitions = self._partitions.values()
        return [part for p, tree in zip(partitions, cotangents, strict=True) for part in p.extract(tree)]

    def derived(self, mode: str, direction: Sequence[Any], seeds: Sequence[Any]) -> FunctionSubject:
        def moved(*args: Any) -> Any:
            subject = FunctionSubject(self._fun, self._args)
            return jvp(subject._moving, args, self._trees(direction))[1]

        def pulled(*args: Any) -> Any:
            value, pullback = vjp(self._moving, *args)
            return pullback(Partition.of(value, pytree.is_differentiable_or_traced).arrange(iter(seeds)))

        made = FunctionSubject(moved if mode == "fwd" else pulled, self._primals)
        made.names = self.names
        return made

    def operations(self) -> list[Any]:
        with operations_seen() as seen:
            vjp(self._moving, *self._primals)
        return seen


class GraphSubject:
    """A Dask graph, in some of its nodes; it is run here, one task after the other."""

    def __init__(self, y: Delayed, wrt: Sequence[Any]) -> None:
        self._y = y
        self._nodes = pytree.flatten(list(wrt), is_leaf=_is_delayed)[0]
        values = compute(*self._nodes, scheduler="sync")
        self._partitions = [Partition.of(value, pytree.is_differentiable) for value in values]
        self.leaves = [leaf for p in self._partitions for leaf in p.taken]
        self.names = [
            f"`{node.key}`" for node, p in zip(self._nodes, self._partitions, strict=True) for _ in p.positions
        ]

    def _at(self, y: Delayed, leaves: Sequence[Any]) -> Delayed:
        """Return a graph with other values for the nodes that move."""
        rest, graph = iter(leaves), dict(ensure_dict(y.__dask_graph__()))
        for node, partition in zip(self._nodes, self._partitions, strict=True):
            graph[node.key] = DataNode(node.key, partition.merge(rest))
        made: Delayed = Delayed(y.key, graph)
        return made

    def _trees(self, parts: Sequence[Any]) -> list[Any]:
        rest = iter(parts)
        return [p.arrange(rest) for p in self._partitions]

    def value(self, leaves: Sequence[Any]) -> list[Any]:
        return _floats(self._at(self._y, leaves).compute(scheduler="sync"))

    def push(self, tangents: Sequence[Any]) -> list[Any]:
        pair = jvp(self._y, self._nodes, [_Held(tree).delayed() for tree in self._trees(tangents)])
        value, tangent = compute(*pair, scheduler="sync")
        return Partition.of(value, pytree.is_differentiable).extract(tangent)

    def pull(self, seeds: Sequence[Any]) -> list[Any]:
        gradients = compute(*gradient(self._dotted(seeds), self._nodes), scheduler="sync")
        return [part for p, tree in zip(self._partitions, gradients, strict=True) for part in p.extract(tree)]

    def _dotted(self, seeds: Sequence[Any]) -> Delayed:
        dotted: Delayed = delayed(_dot)(self._y, _Held(list(seeds)))
        return dotted

    def derived(self, mode: str, direction: Sequence[Any], seeds: Sequence[Any]) -> GraphSubject:
        if mode == "fwd":
            trees = [_Held(tree).delayed() for tree in self._trees(direction)]
            return GraphSubject(jvp(self._y, self._nodes, trees)[1], self._nodes)
        return GraphSubject(delayed(list)(gradient(self._dotted(seeds), self._nodes)), self._nodes)

    def operations(self) -> list[Any]:
        return []


def _is_delayed(obj: Any) -> bool:
    return isinstance(obj, Delayed)


class _Held:
    """Keeps Dask from looking into a structure."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def delayed(self) -> Delayed:
        """Return a Delayed of the value."""
        held: Delayed = delayed(_released)(self)
        return held


def _released(held: _Held) -> Any:
    return held.value


def _dot(value: Any, seeds: _Held) -> Any:
    total = 0.0
    for leaf, seed in zip(_floats(value), seeds.value, strict=True):
        total = total + dot(leaf, seed)
    return total


def dot(a: Any, b: Any) -> Any:
    """Return the pairing of a vector and a covector, as autograd has it for complex numbers: nothing is conjugated."""
    return _real_sum(a * b)


def _real_sum(product: Any) -> Any:
    return anp.sum(anp.real(product)) if np.iscomplexobj(pytree.plain(product)) else anp.sum(product)
