"""Derivatives of functions and graphs against five-point differences: leaf by leaf, and by chunk to find out which."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import autograd.numpy as anp
import numpy as np
from dask.base import compute
from dask.delayed import Delayed, delayed

from dagad._api.collections import gradient
from dagad._api.differentiable import is_delayed
from dagad._api.higher_order import jvp
from dagad._api.transforms import vjp
from dagad._errors import DagadWarning, GradientError, NotDifferentiableError
from dagad._executors.evaluation import new_names
from dagad._kernels.additivity import on_rows, why_no_sum
from dagad._kernels.chunks import ChunkContext
from dagad._kernels.context import operations_seen
from dagad._kernels.kernel import Outputs
from dagad._kernels.operation import Operation
from dagad._sources.plan import Chunk
from dagad._tracebacks import warn
from dagad._tracing.flat_functions import Leaves
from dagad._types import Array, Cotangents, Leaf, Tree
from dagad._values import pytree
from dagad._values.canonical import canonical
from dagad._values.partition import Partition
from dagad._values.shipping import opened
from dagad_scheduler.private import DataNode, ensure_dict

# Differences of the fourth order: the step that balances what is cut off against what is rounded off.
WEIGHTS = {1: 8 / 12, -1: -8 / 12, 2: -1 / 12, -2: 1 / 12}
LENGTHENED = 4.0  # from step to step, where one is not enough
UNDECIDED, FAR = 1e-3, 10.0  # relative errors of differences, and times that error, beyond which they don't agree
Value = Callable[[Sequence[Any]], list[Any]]


def direction_of(rng: np.random.Generator, leaf: Leaf) -> Any:
    """Return a random direction of a leaf's shape and dtype."""
    shape, dtype = pytree.shape_of(leaf), pytree.dtype_of(leaf)
    drawn = rng.standard_normal(shape)
    if dtype.kind == "c":
        drawn = drawn + 1j * rng.standard_normal(shape)
    return np.asarray(drawn, dtype) if isinstance(leaf, np.ndarray) else dtype.type(drawn)


def paired(parts: Sequence[Any], others: Sequence[Any]) -> float:
    """Return the pairing of vectors and covectors; None is zero."""
    pairs = zip(parts, others, strict=True)
    return float(sum(dot(np.asarray(a), np.asarray(b)) for a, b in pairs if a is not None and b is not None))


def stepped(leaves: Sequence[Any], direction: Sequence[Any], step: float) -> list[Any]:
    """Return a point moved along a direction; None does not move."""
    pairs = zip(leaves, direction, strict=True)
    return [leaf if part is None else leaf + pytree.dtype_of(leaf).type(step) * part for leaf, part in pairs]


class Slope(NamedTuple):
    """A directional derivative, weighted, by differences: how wrong it may be, and the sum of its absolute terms."""

    number: float
    error: float
    scale: float
    step: float


def slope_at(step: float, value: Value, leaves: Sequence[Any], direction: Sequence[Any], seeds: Sequence[Any]) -> Slope:
    """Return a slope by five-point differences with one step; nan where the function has no value that far away.

    Its error is what is rounded off.
    """
    total: list[Any] = []
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # what happens away from the point that is checked is not the user's
            for count, weight in WEIGHTS.items():
                values = value(stepped(leaves, direction, count * step))
                parts = [np.asarray(part) * (weight / step) for part in values]
                total = [a + b for a, b in zip(total, parts, strict=True)] if total else parts
    except (ArithmeticError, ValueError):  # outside of its domain: no Cholesky factor, say
        return Slope(np.nan, np.inf, np.nan, step)
    scale, size = _scale(total, seeds), _scale(values, seeds)
    number = paired(total, seeds)
    return Slope(number, (_eps(leaves) / step) * size, scale, step)


def settled_slope(
    value: Value, leaves: Sequence[Any], direction: Sequence[Any], seeds: Sequence[Any], claimed: float
) -> Slope:
    """Return the slope by the step at which differences agree best with those by shorter and by longer steps.

    `claimed` is what the derivative is said to be: a point that rounds to itself has a slope of zero.
    """
    eps, pairs = _eps(leaves), [(leaf, part) for leaf, part in zip(leaves, direction, strict=True) if part is not None]
    size = max((float(np.max(np.abs(leaf), initial=0.0)) for leaf, _ in pairs), default=0.0)
    first = eps**0.2
    steps = [first * LENGTHENED**n for n in range(5, -20, -1)]
    steps = [step for step in steps if eps**0.8 <= step <= 1.0]
    found = [slope_at(step, value, leaves, direction, seeds) for step in steps]
    best = Slope(np.nan, np.inf, np.nan, first)
    for step, longer, own, shorter in zip(steps[1:], found, found[1:], found[2:], strict=False):
        disagreement = max(abs(own.number - longer.number), abs(own.number - shorter.number))
        error = disagreement + own.error + eps * size / step * max(own.scale, abs(claimed))
        if error < best.error:  # false of nan
            best = own._replace(error=error)
    return best


def is_at_a_kink(
    slope: Slope, claimed: float, value: Value, leaves: Leaves, direction: Sequence[Any], seeds: Cotangents
) -> bool:
    """Return whether a derivative lies between slopes on both sides of a point that differ, and go on differing."""

    def bend(step: float) -> float:
        ahead, behind = (paired(value(stepped(leaves, direction, way * step)), seeds) for way in (1, -1))
        return abs(ahead - 2 * paired(value(leaves), seeds) + behind) / step

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        far, near = bend(slope.step), bend(slope.step / LENGTHENED)
    gap = abs(claimed - slope.number)
    return near > 0.5 * far and far > FAR * slope.error and not gap > 0.51 * near


def _scale(parts: Sequence[Any], seeds: Sequence[Any]) -> float:
    return sum(float(np.sum(np.abs(np.asarray(part) * seed))) for part, seed in zip(parts, seeds, strict=True))


def _eps(leaves: Sequence[Any]) -> float:
    return max([float(np.finfo(pytree.dtype_of(leaf)).eps) for leaf in leaves], default=2.0**-52)


class Check:
    """One check of one subject, with its random directions."""

    def __init__(self, subject: Subject, what: str, tolerance: float | None, seed: int) -> None:
        self._subject, self._what, self._rng = subject, what, np.random.default_rng(seed)
        # How far, relatively, a right derivative may be from differences: 1e-7 in double precision.
        self._tolerance = max(1e-7, 100 * _eps(subject.leaves) ** 0.8) if tolerance is None else tolerance
        self.seeds = [direction_of(self._rng, leaf) for leaf in subject.value(subject.leaves)]
        self.direction = [direction_of(self._rng, leaf) for leaf in subject.leaves]

    def run(self, modes: Sequence[str]) -> None:
        """Raise `GradientError` for the first leaf whose derivative is wrong in some mode."""
        pulled = self._subject.pull(self.seeds) if "rev" in modes else None
        for index in range(len(self._subject.leaves)):
            along = [part if other == index else None for other, part in enumerate(self.direction)]
            found = {}
            if "fwd" in modes:
                found["forward"] = paired(self._subject.push(along), self.seeds)
            if pulled is not None:
                found["reverse"] = paired([pulled[index]], [self.direction[index]])
            why = disagreement(self._subject.value, self._subject.leaves, along, self.seeds, found, self._tolerance)
            if why is UNSETTLED:
                self._warn(index)
            elif why is not None:
                mode, expected = why
                raise self._wrong(mode, index, found[mode], expected)

    def _warn(self, index: int) -> None:
        warn(
            f"Differences can't decide whether the derivative of {self._what} in {self._subject.names[index]} is "
            "right: they are nan, or differ from step to step. This is not a pass. Check at a point that is not at an "
            "edge of where the function is defined, nor at a kink, and with values that are more exact: a smaller "
            "tolerance of a solver, fewer rows, a smaller constant."
        )

    def _wrong(self, mode: str, index: int, found: float, expected: float) -> GradientError:
        return GradientError(
            f"The {mode}-mode derivative of {self._what} in {self._subject.names[index]} is wrong: along a random "
            f"direction it is {found:.10g}, and differences give {expected:.10g}. {self._where()}"
        )

    def _where(self) -> str:
        operations = self._subject.operations()
        for operation, leaves in operations:
            for chunk in operation.plan:
                wrong = wrong_leaf(operation, [pytree.plain(leaf) for leaf in leaves], chunk, self._tolerance)
                if wrong:
                    return (
                        f"It is chunk {chunk.number} (rows {chunk.start}:{chunk.stop}) that differs, in {wrong}: check "
                        "the derivative that its function brings, or its primitives."
                    )
        if operations:
            return "No chunk of its reductions differs by itself: look at what surrounds them."
        return "Check the derivatives that its functions and primitives bring."


def disagreement(
    value: Value,
    leaves: Sequence[Any],
    direction: Sequence[Any],
    seeds: Sequence[Any],
    found: Mapping[str, float],
    tolerance: float,
) -> tuple[str, float] | None:
    """Return which of some derivatives is wrong, and what differences give; None for none, or `UNSETTLED`.

    One step is enough where that agrees. Else it is a matter of which steps agree with each other.
    """
    near = slope_at(_eps(leaves) ** 0.2, value, leaves, direction, seeds)
    doubted = {
        mode: number
        for mode, number in found.items()
        if not abs(number - near.number) <= tolerance * max(near.scale, 1.0)
    }
    if not doubted:
        return None
    slope = settled_slope(value, leaves, direction, seeds, max(map(abs, doubted.values())))
    if not slope.error <= UNDECIDED * max(slope.scale, 1.0):
        return UNSETTLED
    for mode, number in doubted.items():
        if not abs(number - slope.number) <= tolerance * max(slope.scale, 1.0) + FAR * slope.error:
            at_a_kink = is_at_a_kink(slope, number, value, leaves, direction, seeds)
            return UNSETTLED if at_a_kink else (mode, slope.number)
    return None


UNSETTLED = ("", np.nan)


def check_sums(subject: Subject, tolerance: float | None) -> None:
    """Raise for the first reduction of a subject that gives something else for other chunks."""
    for operation, leaves in subject.operations():
        if not operation.kernel.is_reduction or operation.sliced.shards:  # Shards are cut already
            continue
        stop = min(max(operation.plan.chunk(0).stop, 2), operation.plan.n_rows)
        plain, middle, name = list(map(pytree.plain, leaves)), stop // 2, operation.kernel.function.name
        run = on_rows(operation.kernel, operation.sliced, plain, operation.inputs.shared[0], new_names())
        if stop > 1:
            parts, inputs = [run(0, middle), run(middle, stop)], (plain, operation.sliced.given(Chunk(0, 0, 1), plain))
            why = why_no_sum(name, run, (0, middle, stop), parts, inputs, tolerance or 0.0)
            if why is not None:
                raise GradientError(why)


def wrong_leaf(operation: Operation, leaves: Sequence[Any], chunk: Chunk, tolerance: float) -> str:
    """Return which leaf one chunk has a wrong reverse-mode derivative in; nothing if it is right, or elsewhere."""
    rows, inputs = operation.sliced.rows(chunk), operation.inputs
    if not hasattr(opened(rows), "with_unpacked") or any(map(pytree.is_sharded, leaves)):  # they live on a cluster
        return ""
    leaves = list(map(canonical, leaves))
    theta = leaves[: inputs.shared[0]]
    own = [leaves[leaf] if at is None else leaves[leaf][at] for leaf, at in inputs.targets(chunk.number)]
    context, rng, point = ChunkContext(chunk, new_names()), np.random.default_rng(0), [*theta, *own]

    def parts(leaves: Sequence[Any]) -> Outputs:
        active = ([leaves[len(theta) :]],) if own else ()
        found: Outputs = operation.kernel.value(context, rows, [leaves[: len(theta)]], *active)
        return found

    def value(leaves: Sequence[Any]) -> list[Any]:
        return parts(leaves).floats()

    seeds = [direction_of(rng, leaf) for leaf in value(point)]
    _, pullback, _ = operation.kernel.record(context, rows, [theta], *(([own],) if own else ()))
    cotangents = [part for group in pullback(seeds) for part in group]
    for number, leaf in enumerate(point):
        along = [direction_of(rng, leaf) if other == number else None for other in range(len(point))]
        found = {"reverse": paired(cotangents, along)}
        if disagreement(value, point, along, seeds, found, tolerance) not in (None, UNSETTLED):
            return (
                f"leaf {number} of what is shared" if number < len(theta) else f"leaf {number - len(theta)} of its rows"
            )
    return ""


# What is looked at, a function or a Dask graph, as lists of leaves that can be moved, pushed and pulled


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


def _floats(tree: Tree) -> list[Any]:
    return [leaf for leaf in pytree.flatten(tree)[0] if pytree.is_differentiable_or_traced(leaf)]


class FunctionSubject:
    """A function of pytrees, in all arguments that have floating-point leaves."""

    def __init__(self, fun: Callable[..., Any], args: Sequence[Any]) -> None:
        self._fun, self._args = fun, list(args)
        partitions = [Partition.of(arg, pytree.is_differentiable) for arg in args]
        self._partitions = {index: p for index, p in enumerate(partitions) if p.positions}
        if not self._partitions:
            raise NotDifferentiableError(
                "No argument has floating-point numbers, so there is no derivative to check. Convert integers with "
                "`float(...)` or `.astype(float)`."
            )
        self.leaves = [leaf for p in self._partitions.values() for leaf in p.taken]
        self.names = [
            f"argument {index}" + (f", leaf {path}" if path else "")
            for index, partition in self._partitions.items()
            for path in [pytree.paths(args[index])[position] for position in partition.positions]
        ]

    def _at(self, leaves: Sequence[Any]) -> list[Any]:
        rest, args = iter(leaves), list(self._args)
        for index, partition in self._partitions.items():
            args[index] = partition.merge(rest)
        return args

    def _moving(self, *moving: Any) -> Any:
        args = list(self._args)
        for index, argument in zip(self._partitions, moving, strict=True):
            args[index] = argument
        return self._fun(*args)

    @property
    def _primals(self) -> tuple[Any, ...]:
        return tuple([self._args[index] for index in self._partitions])

    def _trees(self, parts: Sequence[Any]) -> list[Any]:
        rest = iter(parts)
        return [p.arrange(rest) for p in self._partitions.values()]

    def value(self, leaves: Sequence[Any]) -> list[Any]:
        return _floats(self._fun(*self._at(leaves)))

    def push(self, tangents: Sequence[Any]) -> list[Any]:
        value, tangent = jvp(self._moving, self._primals, tuple(self._trees(tangents)))
        return Partition.of(value, pytree.is_differentiable_or_traced).extract(tangent)

    def pull(self, seeds: Sequence[Any]) -> list[Any]:
        value, pullback = vjp(self._moving, *self._primals)
        cotangents = pullback(Partition.of(value, pytree.is_differentiable_or_traced).arrange(iter(seeds)))
        partitions = self._partitions.values()
        return [part for p, tree in zip(partitions, cotangents, strict=True) for part in p.extract(tree)]

    def derived(self, mode: str, direction: Sequence[Any], seeds: Sequence[Any]) -> FunctionSubject:
        def tangent_out(*args: Any) -> Any:
            subject = FunctionSubject(self._fun, self._args)
            return jvp(subject._moving, args, tuple(self._trees(direction)))[1]

        def pulled(*args: Any) -> Any:
            value, pullback = vjp(self._moving, *args)
            return pullback(Partition.of(value, pytree.is_differentiable_or_traced).arrange(iter(seeds)))

        made = FunctionSubject(tangent_out if mode == "fwd" else pulled, self._primals)
        made.names = self.names
        return made

    def operations(self) -> list[Any]:
        with operations_seen() as seen, warnings.catch_warnings():
            warnings.simplefilter("ignore", DagadWarning)  # of what does not add up: that is looked for here, too
            vjp(self._moving, *self._primals)
        return seen


class GraphSubject:
    """A Dask graph, in some of its nodes; it is run here, one task after the other."""

    def __init__(self, y: Delayed, wrt: Sequence[Any]) -> None:
        self._y = y
        self._nodes = pytree.flatten(list(wrt), is_leaf=is_delayed)[0]
        values = compute(*self._nodes, scheduler="sync")
        self._partitions = [Partition.of(value, pytree.is_differentiable) for value in values]
        self.leaves = [leaf for p in self._partitions for leaf in p.taken]
        self.names = [
            f"`{node.key}`" for node, p in zip(self._nodes, self._partitions, strict=True) for _ in p.positions
        ]

    def _at(self, y: Delayed, leaves: Sequence[Any]) -> Delayed:
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


class _Held:
    """Keeps Dask from looking into a structure."""

    def __init__(self, value: Leaves) -> None:
        self.value = value

    def delayed(self) -> Delayed:
        held: Delayed = delayed(_released)(self)
        return held


def _released(held: _Held) -> Any:
    return held.value


def _dot(value: Value, seeds: _Held) -> Any:
    total = 0.0
    for leaf, seed in zip(_floats(value), seeds.value, strict=True):
        total = total + dot(leaf, seed)
    return total


def dot(a: Array, b: Array) -> Any:
    """Return the pairing of a vector and a covector, as autograd has it for complex numbers: nothing is conjugated."""
    product = a * b
    return anp.sum(anp.real(product)) if np.iscomplexobj(pytree.plain(product)) else anp.sum(product)
