"""Reverse mode on autograd's tracer: a function is recorded on a tape, and cotangents are pulled back through it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import numpy as np
from autograd.extend import Box, VJPNode

from dagad._errors import ClosureError, NotDifferentiableError
from dagad._tracing.caught import CAUGHT, refuse_another_way
from dagad._tracing.cotangent_sums import add_outgrads
from dagad._tracing.flat_functions import Flat
from dagad._tracing.in_place import CHANGED, refuse_stale_memory
from dagad._tracing.patches import patches, traces_of
from dagad._tracing.private import isbox
from dagad._tracing.recalled import SUSPECTED, refuse_remembered
from dagad._tracing.refusals import explained
from dagad._tracing.residuals import held_arguments, looking
from dagad._tracing.rules import learn_rules, learns_from, vjp_rule
from dagad._tracing.traced_array import OwnNode, new_box
from dagad._types import AnyNode, Argnums, Args, Cotangent, Function, Kwargs, Leaf, Value
from dagad._values import pytree
from dagad._values.blocks import Blocks, full
from dagad_scheduler.process import spared_if_large


class TapeNode(OwnNode, VJPNode):  # type: ignore[misc]  # autograd has no types
    """One operation on a tape: what it came from, and its pullback."""

    __slots__ = ()
    parents: Any
    vjp: Any

    def __init__(
        self, value: Value, fun: Function, args: Args, kwargs: Kwargs, argnums: Argnums, parents: Sequence[AnyNode]
    ) -> None:
        self.parents = parents
        rule = vjp_rule(fun)
        if rule is None:
            raise NotImplementedError(f"VJP of {getattr(fun, '__name__', fun)} wrt argnums {argnums} not defined")
        args, kwargs, looks = held_arguments(fun, args, kwargs, argnums)
        self.vjp = looking(rule(argnums, value, args, kwargs), looks)


class OutputCotangents:
    """Cotangents of some outputs of one operation, by their indices: of what nobody used there is none.

    A tape adds up those that arrive. Zeros in their place would be traced where somebody differentiates the pullback,
    and nan at infinite slopes.
    """

    __slots__ = ("_pairs", "count")

    def __init__(self, count: int, pairs: dict[int, tuple[Any, bool]]) -> None:
        self.count, self._pairs = count, pairs

    def added_to(self, before: OutputCotangents | None) -> OutputCotangents:
        pairs = {} if before is None else dict(before._pairs)
        for index, (cotangent, _) in self._pairs.items():
            pairs[index] = add_outgrads(pairs.get(index), cotangent)
        return OutputCotangents(self.count, pairs)

    def listed(self) -> list[Any]:
        """Return the cotangents of all outputs, None for none."""
        return [self._pairs[index][0] if index in self._pairs else None for index in range(self.count)]


def _cotangent_of_output(count: int, index: int, cotangent: Cotangent) -> tuple[OutputCotangents]:
    return (OutputCotangents(count, {index: (cotangent, False)}),)


def nodes_of_outputs(node: TapeNode, count: int) -> list[TapeNode]:
    """Return a node for each output of the operation behind a node."""
    found = []
    for index in range(count):
        output = TapeNode.__new__(TapeNode)  # of a pullback that is known
        output.parents, output.vjp = (node,), functools.partial(_cotangent_of_output, count, index)
        found.append(output)
    return found


def _added(before: tuple[Any, bool] | None, cotangent: Cotangent) -> tuple[Any, bool]:
    if type(cotangent) is OutputCotangents:
        return cotangent.added_to(None if before is None else before[0]), True
    found: tuple[Any, bool] = add_outgrads(before, cotangent)
    return found


_BARE = frozenset({np.ndarray, np.float64, float})


def record(fun: Callable[[Any], Any], leaves: Sequence[Any]) -> tuple[Any, list[Any], list[Any]]:
    """Run `fun` on traced leaves: its value, the tape's node behind each leaf of it (or None), and the tape's roots."""
    held: list[pytree.TreeDef] = []

    def flat(leaves: Sequence[Any]) -> list[Any]:
        output = fun(leaves)
        if isbox(output) and type(output._value) in _BARE:  # nearly always
            return [output]
        outputs, treedef = pytree.flatten(pytree.open_containers(output))
        held.append(treedef)
        return outputs

    values, ends, roots = record_flat(flat, leaves)
    return pytree.unflatten(held[0], values) if held else values[0], ends, roots


def record_flat(fun: Flat, leaves: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Run a flat function on traced leaves: its values, the tape's node behind each (or None), and the tape's roots."""
    learn_rules()
    with patches.new_trace() as level:
        roots = [TapeNode.new_root() for _ in leaves]
        boxes = [new_box(traceable(leaf), level, root) for leaf, root in zip(leaves, roots, strict=True)]
        outputs = traced(fun, boxes)
    spared = spared_if_large()
    if spared is not None and roots:
        roots[0].vjp = spared  # it lives as long as the tape; nobody asks a root for cotangents
    if len(outputs) == 1:  # nearly always
        value, end = untraced(outputs[0], level)
        return [value], [end], roots
    pairs = [untraced(output, level) for output in outputs]
    return [value for value, _ in pairs], [end for _, end in pairs], roots


def traced(fun: Callable[[Any], Any], boxes: Sequence[Any]) -> Any:
    """Run a function on traced leaves; again, if it has imported a part of scipy that dagad has rules for."""
    try:
        return _used(fun, boxes)
    except Exception as error:
        if not learns_from(error):
            raise explained(error)  # noqa: B904  # it may be the same
    return _used(fun, boxes)


def _used(fun: Callable[[Any], Any], boxes: Sequence[Any]) -> Any:
    output = fun(boxes)
    if CAUGHT:
        refuse_another_way(fun, boxes, output)
    if SUSPECTED:
        refuse_remembered(fun, boxes, output, record, pull)
    if CHANGED:
        refuse_stale_memory(pytree.flatten(pytree.open_containers(output))[0])
    return output


class TapePullback:
    """Sends cotangents back through a tape."""

    __slots__ = ("_ends", "_leaves", "_roots")

    def __init__(self, ends: Sequence[Any], roots: Sequence[Any], leaves: Sequence[Any]) -> None:
        self._ends, self._roots, self._leaves = ends, roots, leaves

    def __call__(self, cotangents: Sequence[Any]) -> list[Any]:
        return pull(self._ends, cotangents, self._roots, self._leaves)

    def nbytes(self) -> int:
        return tape_nbytes(self._ends)


def traceable(leaf: Leaf) -> Any:
    """Return a leaf as a type that autograd has a box for."""
    if type(leaf) is np.ndarray or not isinstance(leaf, np.ndarray):
        return leaf
    if np.ma.isMaskedArray(leaf):
        raise NotDifferentiableError(
            "The derivative with respect to a masked array was asked for, whose mask a trace does not see. Keep mask "
            "and numbers apart: `np.where(mask, 0.0, data)`, or nan and `np.nansum` and its like."
        )
    if pytree.has_own_operators(type(leaf)):
        raise NotDifferentiableError(
            f"The derivative with respect to a `{type(leaf).__module__}.{type(leaf).__qualname__}` was asked for, a "
            "class of arrays with arithmetic of its own. A trace sees numbers alone, and would differentiate another "
            "function. Give these, `np.asarray(m)`, and write in the function what the class does with them: `m @ x` "
            "for the product of two matrices, a factor for a unit."
        )
    return leaf.view(np.ndarray)


def untraced(leaf: Leaf, level: int) -> tuple[Any, Any]:
    """Return the value of an output leaf and its node on the tape of this level."""
    if isbox(leaf) and leaf._trace == level:
        refuse_unfit(leaf._value)
        return leaf._value, leaf._node
    refuse_stale(leaf, RETURNED)
    refuse_hidden_boxes(leaf, level)
    return leaf, None


def refuse_unfit(value: Value) -> None:
    """Refuse the value of an output that is kept from an earlier derivative, or made of Python's objects."""
    if type(value) is np.ndarray:
        if value.dtype.kind == "O":
            raise NotDifferentiableError(_OBJECTS + "Give constants and what it returns as numbers: `.astype(float)`.")
    elif isbox(value):
        refuse_stale(value, RETURNED)


_OBJECTS = "A function being differentiated returned an array of objects, with which numpy computes one by one. "


def refuse_hidden_boxes(leaf: Leaf, level: int) -> None:
    """Refuse an output that holds traced values where nobody would look for them."""
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "O" and any(isbox(item) for item in leaf.flat):
        raise NotDifferentiableError(
            _OBJECTS + "They hold traced values: make an array of numbers of them by `np.stack(parts)` or "
            "`np.concatenate(parts)`."
        )
    fields = getattr(leaf, "__dict__", None)
    if fields and any(isbox(item) and item._trace == level for item in fields.values()):
        raise NotDifferentiableError(
            f"A function being differentiated returned a `{type(leaf).__name__}` with traced values inside, which "
            'dagad can\'t look into. Return arrays, or register the class with optree in the namespace "dagad".'
        )


_HOW = (
    "a value being differentiated reached it by a cache, a global, an attribute or another way that dagad does not "
    "see. Pass that value to the function as a shared argument: by itself, or in an object whose class is registered "
    'with optree in the namespace "dagad".'
)


def refuse_boxes(leaf: Leaf, what: str) -> None:
    """Raise if a traced value comes out where only plain ones should be."""
    if isbox(leaf):
        raise ClosureError(f"{what} is a traced value of another derivative: {_HOW}")


def refuse_strangers(output: Value, leaves: Sequence[Any]) -> None:
    """Raise if what a task returns holds a trace that none of its `leaves` has.

    All that may be differentiated comes by the leaves. A trace of anybody else's, such as that of the chunk that filled
    a cache first, would be taken for a constant here, by every mode.
    """
    one: Any = output
    other: Any = leaves[0] if leaves else None
    while type(one) in Box.types and type(other) in Box.types and one._trace == other._trace:
        one, other = one._value, other._value
        if type(one) in _BARE:  # nearly always
            return
    known = {trace for leaf in leaves for trace in traces_of(leaf)}
    for leaf in pytree.flatten(output)[0]:
        if not known.issuperset(traces_of(leaf)):
            raise ClosureError(f"What a task of a reduction returned is a traced value of another derivative: {_HOW}")


def reverse_depth(leaf: Leaf) -> int:
    """Return by how many tapes a value is followed."""
    depth = 0
    while isbox(leaf):
        depth += isinstance(leaf._node, VJPNode)
        leaf = leaf._value
    return depth


RETURNED = "What a function being differentiated returned"


def refuse_stale(leaf: Leaf, what: str) -> None:
    """Raise if a value is of a derivative that is over, or of another task's: its own derivative went with it."""
    while type(leaf) in Box.types:
        if patches.is_over(leaf):
            raise ClosureError(
                f"{what} is a traced value that was kept, in a cache or a global perhaps, when the derivative that it "
                "belongs to was over. Compute it again where it is needed, or keep the plain value."
            )
        if patches.is_strange(leaf):
            raise ClosureError(f"{what} is a traced value of another derivative: {_HOW}")
        leaf = leaf._value


def pull(ends: Sequence[Any], cotangents: Sequence[Any], roots: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    """Send cotangents of the outputs back to the roots; None where no path leads."""
    arrived: dict[Any, tuple[Any, bool]] = {}
    for end, cotangent in zip(ends, cotangents, strict=True):
        if end is not None and cotangent is not None:
            arrived[end] = add_outgrads(arrived.get(end), cotangent)
    at_roots: dict[Any, Any] = dict.fromkeys(roots)
    try:
        with patches:
            _pull_down(arrived, at_roots)
    except NotImplementedError as error:
        raise explained(error)  # noqa: B904  # it may be the same
    return [like(at_roots[root], leaf) for root, leaf in zip(roots, leaves, strict=True)]


def _pull_down(arrived: dict[Any, tuple[Any, bool]], at_roots: dict[Any, Any]) -> None:
    for node in downward(list(arrived)):
        cotangent = arrived.pop(node)[0]
        if node in at_roots:
            at_roots[node] = cotangent
        else:
            for parent, part in zip(node.parents, node.vjp(cotangent), strict=True):
                is_first = type(part) in _BARE and parent not in arrived  # nearly always
                arrived[parent] = (part, False) if is_first else _added(arrived.get(parent), part)


def downward(ends: list[Any]) -> Iterator[Any]:
    """Yield nodes so that each comes after all that depend on it."""
    children: dict[Any, int] = dict.fromkeys(ends, 0)
    stack = list(ends)
    while stack:
        for parent in stack.pop().parents:
            if parent in children:
                children[parent] += 1
            else:
                children[parent] = 1
                stack.append(parent)
    free = [end for end in ends if not children[end]]
    while free:
        node = free.pop()
        yield node
        for parent in node.parents:
            children[parent] -= 1
            if not children[parent]:
                free.append(parent)


def like(cotangent: Cotangent, leaf: Leaf) -> Any:
    """Give a cotangent the dtype of its leaf: float32 stays float32, real stays real."""
    if type(cotangent) is np.ndarray and type(leaf) is np.ndarray and cotangent.dtype == leaf.dtype:  # nearly always
        return cotangent
    if cotangent is None or isbox(cotangent) or isbox(leaf) or pytree.is_sharded(leaf):
        return cotangent
    return pytree.cast(cotangent, leaf)


# Many cotangents at once: one walk over the tape; whole reductions get all of them together

Arrived = tuple[Any, bool] | None  # autograd's pair of a cotangent and whether it may be written to; None for zero


def pull_many(
    ends: Sequence[Any], many: Sequence[Sequence[Any]], roots: Sequence[Any], leaves: Sequence[Any]
) -> list[list[Any]]:
    """Send many sets of cotangents of the outputs back to the roots; for each root one cotangent per set, or None."""
    count = len(many)
    if not count:  # an output without entries
        return [[] for _ in roots]
    at_roots: dict[Any, list[Arrived]] = {root: [None] * count for root in roots}
    arrived: dict[Any, list[Arrived]] = {}
    for index, end in enumerate(ends):
        if end is not None:
            _arrive(arrived, end, [seeds[index] for seeds in many])
    for node in downward(list(arrived)):
        entries = [None if entry is None else entry[0] for entry in arrived.pop(node, ())]
        if not entries:  # nothing but zeros went this way
            continue
        if node in at_roots:
            at_roots[node] = entries
            continue
        for parent, parts in zip(node.parents, _through(node, entries), strict=True):
            _arrive(arrived, parent, parts)
    pairs = zip((at_roots[root] for root in roots), leaves, strict=True)
    return [[part if isinstance(part, Blocks) else like(part, leaf) for part in parts] for parts, leaf in pairs]


def _through(node: AnyNode, entries: list[Any]) -> list[list[Any]]:
    """Return for each parent of a node its cotangents."""
    together = getattr(node.vjp, "many", None)
    if together is not None:
        parts: list[list[Any]] = together(entries)
        return parts
    nothing = [None] * len(node.parents)
    with patches:
        rows = [nothing if entry is None else list(node.vjp(full(entry))) for entry in entries]
    return [list(column) for column in zip(*rows, strict=True)]


def _arrive(arrived: dict[Any, list[Arrived]], node: AnyNode, parts: Sequence[Any]) -> None:
    if all(part is None for part in parts):
        return
    before = arrived.get(node) or [None] * len(parts)
    arrived[node] = [_sum(entry, part) for entry, part in zip(before, parts, strict=True)]


def _sum(entry: Arrived, part: Cotangent) -> Arrived:
    if part is None:
        return entry
    if entry is None:
        return (part, False) if type(part) in _BARE else _added(None, part)
    whole = full(entry[0])
    return _added((whole, entry[1] or whole is not entry[0]), full(part))


# A tape of more nodes is measured by samples: looking behind each of them costs as much as recording it.
LONGEST_EXACT, RUN, EVERY = 1024, 64, 8


def tape_nbytes(ends: Sequence[Any]) -> int:
    """Return the bytes that a tape holds on to: its nodes and every array behind them, each once.

    Of a long tape, runs of neighbours are looked at: an array that is met in several runs is shared by the whole tape,
    one that is met in a single run stands for those in the parts left out.
    """
    nodes: dict[Any, None] = {}
    stack = [end for end in ends if end is not None]
    while stack:
        node = stack.pop()
        if node not in nodes:
            nodes[node] = None
            stack.extend(node.parents)
    order = list(nodes)
    whole = len(order) <= LONGEST_EXACT
    runs = [order] if whole else [order[start : start + RUN] for start in range(0, len(order), RUN * EVERY)]
    alone: dict[int, int] = {}
    shared: dict[int, int] = {}
    for run in runs:
        found: dict[int, int] = {}
        for node in run:
            _count_arrays(node.vjp, found, depth=5)
        for array, nbytes in found.items():
            if array in alone or array in shared:
                shared[array] = nbytes
                alone.pop(array, None)
            else:
                alone[array] = nbytes
    left_out = len(order) / max(sum(map(len, runs)), 1)
    return 500 * len(order) + sum(shared.values()) + int(sum(alone.values()) * left_out)


def _count_arrays(obj: Any, arrays: dict[int, int], depth: int) -> None:
    if isinstance(obj, np.ndarray):
        base = obj
        while isinstance(base.base, np.ndarray):
            base = base.base
        arrays[id(base)] = base.nbytes
    elif isbox(obj):
        _count_arrays(obj._value, arrays, depth)
    elif depth and isinstance(obj, FunctionType) and obj.__closure__:
        for cell in obj.__closure__:
            try:
                _count_arrays(cell.cell_contents, arrays, depth - 1)
            except ValueError:  # an empty cell
                continue
    elif depth and isinstance(obj, list | tuple):
        for item in obj:
            _count_arrays(item, arrays, depth - 1)
    elif depth and isinstance(obj, dict):
        for item in obj.values():
            _count_arrays(item, arrays, depth - 1)
