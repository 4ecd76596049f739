"""Derivatives of Dask graphs: a graph in, a graph with its gradient or its tangent out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from dask.delayed import Delayed

from dagad._api.differentiable import check_floats, check_number, check_unused, collections_in, not_a_number
from dagad._engines.registry import find_engine
from dagad._errors import NotDifferentiableError, StructureError
from dagad._executors.evaluation import graph_width, new_names
from dagad._graphs.activity import Key
from dagad._graphs.collections import Collection, Derived, handed_out
from dagad._graphs.directions import directions
from dagad._graphs.linearization import cotangent_part, is_scalar, seed_of_one
from dagad._graphs.linearize import linearize
from dagad._graphs.policies import Keep, checked_policy
from dagad._graphs.primal import Primal
from dagad._graphs.scheduled import scheduled
from dagad._graphs.schedules import schedule_of
from dagad._graphs.tangent import tangent
from dagad._graphs.transpose import is_part, transpose
from dagad._tracebacks import public
from dagad._tracing.flat_functions import Traits
from dagad._types import AnyEngine, AnyPolicy, Array, Cotangent, Cotangents, DType, Tangent, Tangents, Tree, Value
from dagad._values import pytree
from dagad._values.partition import Partition
from dagad._values.pytree import TreeDef
from dagad._values.work_arrays import copied
from dagad._words import described
from dagad_scheduler.private import GraphNode, Task, TaskRef
from dagad_scheduler.process import patient_collector
from dagad_scheduler.roles import Names, Role


@public
def gradient(y: Array, wrt: Tree, *, policy: AnyPolicy = None, engine: AnyEngine = None, unused: str = "raise") -> Any:
    """Return the gradient of the result of a Dask graph, as a Dask graph.

    Nothing is computed yet: what is returned can be computed, persisted, visualized, or differentiated again. If you
    compute `y` beside it, the tasks of `y` run twice; `value_and_gradient` runs them once.

    Parameters
    ----------
    y
        A collection of Dask that holds one real number: a Delayed, a dask array without axes, an item of a bag, an
        xarray object.
    wrt
        The collections to differentiate with respect to, in any pytree. Each is a leaf of the graph of `y`, or any
        other of its nodes. What only loads data for a task that depends on them becomes part of that task, so that a
        task which is run again reads again, and holds nothing meanwhile: under ``extend.Recompute()`` a loader has to
        give the same numbers each time, so give one that draws them its seed. Where one is made of another, the
        gradient in the latter is the total derivative, by way of the former too.
    policy
        What happens to the tape of a task between value and gradient: ``extend.Keep()``, the default,
        ``extend.Recompute()`` or ``extend.Preaccumulate()``. Or which steps of the graph are stored and run again, so
        that the tapes of few steps are alive at a time: ``extend.Segment(k)``, ``extend.Revolve(slots)``, or a schedule
        of the package checkpoint_schedules. The gradient has the same bits with all of them.
    engine
        What differentiates the tasks: a name, such as ``"autograd"``, or an ``extend.Engine``; by default the setting
        ``dagad.engine``. Functions that are marked by ``extend.explicit`` use their own derivatives.
    unused
        What to do about a collection of `wrt` that is not in the graph of `y`, because `y` was built from something
        else, or because its graph has been persisted, optimized or cloned since: ``"raise"``, or return ``"zeros"``.

    Returns
    -------
    collections, in the same pytree
        One gradient per collection of `wrt`, of the same kind, with the value's own structure, shapes and dtypes; for
        a dask array also of the same chunks. None for leaves that are constants (integers, strings, objects). Where
        `y` does not depend on a collection of its graph: zeros. They share one graph, in which the derivative of a
        task has the annotations of the task: resources, workers, priority, retries.

    Raises
    ------
    NotDifferentiableError
        If `y` or `wrt` is no collection of numbers, or a collection of `wrt` is not in the graph of `y`; if `y` is not
        one real number, or one of `wrt` has no floating-point numbers in it, of which a Delayed tells when computed.
    PlanError
        If `policy`, `engine` or `unused` is none of the above, or a schedule does not fit the graph.
    StructureError
        If a task of the graph needs a key that is nowhere.

    Notes
    -----
    Reverse mode on the graph itself, after Griewank and Walther, *Evaluating Derivatives*, 2nd ed., section 3.2:
    every edge is turned round and every fan-out becomes a sum. Arrays are read-only for the tasks that are
    differentiated: one that wrote into what it reads would be wrong when it is run again.

    Examples
    --------
    >>> import dask
    >>> import dagad
    >>> a, b = dask.delayed(2.0), dask.delayed(5.0)
    >>> y = (a * b) + a
    >>> dask.compute(*dagad.gradient(y, [a, b]), scheduler="sync")
    (np.float64(6.0), np.float64(2.0))

    Whole arrays:

    >>> import dask.array as da
    >>> x = da.arange(6.0, chunks=2)
    >>> slope = dagad.gradient((x**2).mean(), x)
    >>> slope.chunks, slope.compute(scheduler="sync")
    (((2, 2, 2),), array([0.        , 0.33333333, 0.66666667, 1.        , 1.33333333,
           1.66666667]))
    """
    return _reverse(y, wrt, "gradient", policy, engine, unused)[1]


@public
def value_and_gradient(
    y: Array, wrt: Tree, *, policy: AnyPolicy = None, engine: AnyEngine = None, unused: str = "raise"
) -> tuple[Any, Any]:
    """Return the result of a Dask graph and its gradient, as one Dask graph: each task of `y` runs once.

    The value is computed first, and the gradient after it. A task that draws random numbers gives a value and a
    gradient of the same draw as long as its tape is kept: with ``policy=Recompute()`` or a schedule, or after the
    worker that held the tape is lost, it runs again.

    Parameters
    ----------
    y
        A collection that holds one real number; see `gradient`.
    wrt
        The collections to differentiate with respect to, in any pytree; see `gradient`.
    policy, engine, unused
        See `gradient`.

    Returns
    -------
    value
        A collection like `y`, with its value.
    gradients
        As from `gradient`.

    Raises
    ------
    NotDifferentiableError, PlanError, StructureError
        As by `gradient`.

    Examples
    --------
    >>> import dask
    >>> import dagad
    >>> a, b = dask.delayed(2.0), dask.delayed(5.0)
    >>> value, gradients = dagad.value_and_gradient(a * b + a, {"a": a, "b": b})
    >>> dask.compute(value, gradients, scheduler="sync")
    (np.float64(12.0), {'a': np.float64(6.0), 'b': np.float64(2.0)})

    >>> import dask.array as da
    >>> w = da.ones(3, chunks=2)
    >>> value, gradient = dagad.value_and_gradient((w * da.arange(3.0, chunks=2)).sum(), w)
    >>> dask.compute(value, gradient, scheduler="sync")
    (np.float64(3.0), array([0., 1., 2.]))
    """
    return _reverse(y, wrt, "value_and_gradient", policy, engine, unused)


def _reverse(y: Array, wrt: Tree, asked: str, policy: AnyPolicy, engine: AnyEngine, unused: str) -> tuple[Any, Any]:
    with patient_collector:  # nothing that is made here is garbage
        return _reversed(y, wrt, asked, policy, engine, unused)


def _reversed(y: Array, wrt: Tree, asked: str, policy: AnyPolicy, engine: AnyEngine, unused: str) -> tuple[Any, Any]:
    whole, moving, treedef = collections_in(y, wrt, asked, "wrt")
    check_number(whole)
    check_unused(unused)
    check_floats(moving, "wrt", unused)
    schedule, found = schedule_of(policy), find_engine(engine, None)
    chosen = Keep() if policy is None or schedule else checked_policy(policy)
    names = new_names()
    primal = Primal.of(whole, moving, names, unused)
    if Traits.of(found).is_autograds:  # others would take data that they load for constants of their programs
        primal = primal.loading_inside(only_stored=schedule is not None)
    (output,) = primal.outputs
    seed = names("input", "seed")
    if not schedule or primal.is_marked:  # a schedule counts levels where there are no marks, so they have to stay
        primal = primal.coarsened(names, graph_width(len(primal.live)), found)
    nodes, inputs = primal.nodes, primal.moving
    if schedule:
        linearized = scheduled(nodes, output, inputs, names, schedule, seed, primal.annotations, engine=found)
    else:
        linearized = linearize(nodes, [output], inputs, names, chosen, engine=found, order=primal.order)
    value: Key = linearized.values.get(output, output)
    cotangents, reverse = transpose(linearized.steps, {output: TaskRef(seed)}, names)
    for key, node in {**primal.others, seed: Task(seed, seed_of, TaskRef(value))}.items():
        linearized.graph.setdefault(key, node)
    if isinstance(y, Delayed) and isinstance(y.key, str):
        ends = [Derived.renamed(whole, value)]
    else:
        ends = [Derived.of(whole, names, Role.VALUE, "output", [(plain_value, TaskRef(value))])]
    for index, (one, keys) in enumerate(zip(moving, primal.sources, strict=True)):
        calls = _gradient_calls(one, keys, linearized.values, cotangents, reverse)
        ends.append(Derived.of(one, names, Role.GRADIENT, index, calls))
    # Whoever hands a part out takes it out of all parts itself, and an alias of a block has the part of the block.
    unread = {
        ref.key
        for source, ref in cotangents.items()
        if source not in linearized.values and is_part(reverse.get(ref.key))
    }
    tasks = itertools.chain(reverse.values(), *(end.tasks.values() for end in ends))
    unread -= {ref for node in tasks for ref in node.dependencies} if unread else set()
    linearized.graph.update({key: node for key, node in reverse.items() if key not in unread})
    made = _made(ends, linearized.graph, primal, linearized.numbers, names)
    return made[0], pytree.unflatten(treedef, made[1:])


def _gradient_calls(
    one: Collection,
    keys: Sequence[Key],
    values: Mapping[Key, Key],
    cotangents: Mapping[Key, Any],
    reverse: Mapping[Key, Any],
) -> Iterator[tuple[Any, ...]]:
    for source, (_, shape, dtype) in zip(keys, one.blocks(), strict=True):
        cotangent, at = cotangents.get(source), TaskRef(values.get(source, source))
        if cotangent is None and shape is not None:  # so that it need not be computed
            yield zeros_of, shape, dtype
        elif cotangent is not None and source not in values and is_part(reverse.get(cotangent.key)):
            yield complete_part, *reverse[cotangent.key].args, at  # nobody else reads that part
        else:
            yield complete_gradient, cotangent is not None, cotangent, at


def _made(
    ends: Sequence[Derived], graph: dict[Key, GraphNode], primal: Primal, numbers: Mapping[Any, Key], names: Names
) -> list[Any]:
    name = names("input", "")[0].replace("input", "graph")
    return handed_out(ends, name, primal.with_futures(graph), primal.annotated(numbers))


def jvp_of_collections(y: Array, wrt: Tree, tangents: Tangents) -> tuple[Any, Any]:
    """Return the result of a Dask graph and its tangent, as Dask graphs; the face of `jvp` for these.

    Parameters
    ----------
    y
        Any collection with floating-point leaves.
    wrt
        The collections that move: leaves or any other nodes of the graph of `y`.
    tangents
        Their tangents, in the same structure: collections, or values.

    Returns
    -------
    tuple of collections
        The value of `y`, and its tangent: zeros where `y` does not depend on `wrt`, None for leaves that are constants.
    """
    whole, moving, treedef = collections_in(y, wrt, "jvp", "primals")
    check_floats(moving, "primals")
    check_floats([whole], "y", "zeros")
    names = new_names()
    aimed = [directions(one, part) for one, part in zip(moving, _directions(treedef, tangents), strict=True)]
    primal = Primal.of(whole, moving, names, beside=[held for _, needed in aimed for held in needed])
    primal = primal.coarsened(names, graph_width(len(primal.live)))
    sources = [key for keys in primal.sources for key in keys]
    if len(set(sources)) < len(sources):
        raise StructureError("`primals` holds a collection twice. Give it once, with the sum of its tangents.")
    parts = dict(zip(sources, (part for own, _ in aimed for part in own), strict=True))
    moves = {key: names("input", ("direction", index)) for index, key in enumerate(parts)}
    refs = {key: TaskRef(name) for key, name in moves.items()}
    found = tangent(primal.nodes, primal.outputs, refs, names, find_engine(None, None))
    graph = primal.others | found.graph
    for source, name in moves.items():
        at = found.values.get(source, TaskRef(source))
        graph[name] = Task(name, fitting_direction, parts[source], at)
    values = [found.values.get(key, TaskRef(key)) for key in primal.outputs]
    calls = [(complete_tangent, found.tangents.get(key), at) for key, at in zip(primal.outputs, values, strict=True)]
    ends = [
        Derived.of(whole, names, Role.VALUE, "output", [(plain_value, at) for at in values]),
        Derived.of(whole, names, Role.GRADIENT, "tangent", calls),
    ]
    value, tangents_out = _made(ends, graph, primal, found.numbers, names)
    return value, tangents_out


def _directions(treedef: TreeDef, tangents: Tangents) -> list[Any]:
    try:
        return pytree.subtrees(treedef, tangents)
    except StructureError as error:
        raise StructureError(
            "The tangents have another structure than the primals. Give one tangent per collection, in the same "
            "containers; None where nothing moves."
        ) from error


# Tasks at the ends of a derived graph: its seed, its directions, and what is handed out, complete


def fitting_direction(tangent: Tangent, value: Value) -> Any:
    """Return the tangent of a Delayed that moves, checked against what the Delayed turned out to be."""
    partition = Partition.of(value, pytree.is_differentiable_or_traced)
    if not partition.positions and tangent is not None:
        raise NotDifferentiableError(
            f"A primal is {described(value)}, with respect to which there is no derivative. Make it floating point, "
            "with `float(...)` or `.astype(float)`, or leave it out."
        )
    try:
        parts = partition.extract(tangent)
    except StructureError as error:
        raise StructureError(
            "A tangent has another structure than the value of its Delayed. Give one number or array for each of the "
            "value's, in the same containers; None where nothing moves."
        ) from error
    pairs = zip(parts, partition.taken, strict=True)
    return partition.arrange(iter([pytree.fitted(part, leaf, "A tangent") for part, leaf in pairs]))


def complete_tangent(tangent: Tangent, value: Value) -> Any:
    """Return a complete tangent: zeros where nothing moves a leaf, None for constants."""
    partition = Partition.of(value, pytree.is_differentiable_or_traced)
    return partition.completed(partition.extract(tangent))


def plain_value(value: Value) -> Any:
    """Return a value as it is, under a key of its own."""
    return value


def seed_of(value: Value) -> Any:
    """Return the cotangent 1 of a real number, in its dtype."""
    plain = pytree.plain(value)
    if not is_scalar(plain):
        raise NotDifferentiableError(not_a_number(described(plain)))
    return seed_of_one(plain)


def zeros_of(shape: tuple[int, ...], dtype: DType) -> Any:
    """Return the gradient with respect to a block that `y` does not depend on."""
    return np.zeros(shape, dtype)


def complete_part(cotangents: Cotangents, index: int, value: Value) -> Any:
    """Return a complete gradient that is one of several cotangents."""
    return complete_gradient(True, cotangent_part(cotangents, index), value)


def complete_gradient(reached: bool, cotangent: Cotangent, value: Value) -> Any:
    """Return a complete gradient: zeros where `y` does not depend on a leaf, None for constants."""
    leaves, treedef = pytree.flatten(value)
    if not reached:
        return pytree.unflatten(treedef, list(map(pytree.zeros_like, leaves)))
    if not any(map(pytree.is_differentiable_or_traced, leaves)):
        raise NotDifferentiableError(
            f"The gradient with respect to {described(value)} was asked for, which does not exist. Make it floating "
            "point, with `float(...)` or `.astype(float)`, or leave it out of `wrt`."
        )
    # Its own: a cotangent may be another one's too, or data that a rule returned.
    return copied(complete_tangent(cotangent, value))
