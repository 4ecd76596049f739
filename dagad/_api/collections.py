"""Derivatives of Dask graphs: a graph in, a graph with its gradient or its tangent out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dask.base import is_dask_collection
from dask.delayed import Delayed, delayed
from dask.highlevelgraph import HighLevelGraph

from dagad._engines.registry import find_engine
from dagad._errors import NotDifferentiableError, PlanError, StructureError
from dagad._executors.evaluation import new_names
from dagad._graphs.activity import Key
from dagad._graphs.layers import inherited, with_layer
from dagad._graphs.linearization import is_scalar, unit_seed
from dagad._graphs.linearize import linearize
from dagad._graphs.policies import Keep, checked_policy
from dagad._graphs.primal import Primal
from dagad._graphs.tangent import tangent
from dagad._graphs.transpose import transpose
from dagad._pytrees import pytree
from dagad._pytrees.partition import Partition
from dagad._tracebacks import public
from dagad._words import a, described
from dagad_scheduler.private import GraphNode, Task, TaskRef
from dagad_scheduler.roles import Names

# Dask handles each gradient with all layers of its graph. A few may share the user's own; for many, all is one layer.
FEW = 8


@public
def gradient(y: Delayed, wrt: Any, *, policy: Any = None, engine: Any = None, unused: str = "raise") -> Any:
    """Return the gradient of the result of a Dask graph, as a Dask graph.

    Nothing is computed yet: what is returned can be computed, persisted, visualized, or differentiated again. If you
    compute `y` beside it, the tasks of `y` run twice; `value_and_gradient` runs them once.

    Parameters
    ----------
    y
        A Delayed whose value is one real number.
    wrt
        The Delayed to differentiate with respect to, or a pytree of them. Each is a leaf of the graph of `y`, or any
        other of its nodes.
    policy
        What happens to the tape of a task between value and gradient: ``extend.Keep()``, the default,
        ``extend.Recompute()`` or ``extend.Preaccumulate()``.
    engine
        What differentiates the tasks: a name, such as ``"autograd"``, or an ``extend.Engine``; by default the setting
        ``dagad.engine``. Functions that are marked by ``extend.explicit`` use their own derivatives.
    unused
        What to do about a Delayed of `wrt` that is not in the graph of `y`, because `y` was built from something else,
        or because its graph has been persisted, optimized or cloned since: ``"raise"``, or return ``"zeros"``.

    Returns
    -------
    Delayed, or a pytree of them
        One gradient per Delayed of `wrt`, with the value's own structure, shapes and dtypes; None for leaves that are
        constants (integers, strings, objects). Where `y` does not depend on a Delayed of its graph: zeros. They share
        one graph, in which the derivative of a task has the annotations of the task: resources, workers, priority,
        retries.

    Raises
    ------
    NotDifferentiableError
        If `y` or `wrt` is not a Delayed, or a Delayed of `wrt` is not in the graph of `y`; when computed, if `y` is not
        one real number, or a Delayed of `wrt` has no floating-point numbers in it.
    PlanError
        If `policy`, `engine` or `unused` is none of the above.
    StructureError
        If a task of the graph needs a key that is nowhere.

    Notes
    -----
    Reverse mode on the graph itself, after Griewank and Walther, *Evaluating Derivatives*, 2nd ed., section 3.2:
    every edge is turned round and every fan-out becomes a sum.

    Examples
    --------
    >>> import dask
    >>> import dagad
    >>> a, b = dask.delayed(2.0), dask.delayed(5.0)
    >>> y = (a * b) + a
    >>> dask.compute(*dagad.gradient(y, [a, b]), scheduler="sync")
    (np.float64(6.0), np.float64(2.0))
    """
    return _reverse(y, wrt, "gradient", policy, engine, unused)[1]


@public
def value_and_gradient(
    y: Delayed, wrt: Any, *, policy: Any = None, engine: Any = None, unused: str = "raise"
) -> tuple[Delayed, Any]:
    """Return the result of a Dask graph and its gradient, as one Dask graph: each task of `y` runs once.

    The value is computed first, and the gradient after it. A task that draws random numbers gives a value and a
    gradient of the same draw as long as its tape is kept: with ``policy=Recompute()``, or after the worker that held
    the tape is lost, it runs again.

    Parameters
    ----------
    y
        A Delayed whose value is one real number.
    wrt
        The Delayed to differentiate with respect to, or a pytree of them; see `gradient`.
    policy, engine, unused
        See `gradient`.

    Returns
    -------
    value
        A Delayed with the value of `y`.
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
    """
    return _reverse(y, wrt, "value_and_gradient", policy, engine, unused)


def _reverse(y: Any, wrt: Any, asked: str, policy: Any, engine: Any, unused: str) -> tuple[Delayed, Any]:
    leaves, treedef = pytree.flatten(wrt, is_leaf=is_delayed)
    _check_delayed(y, leaves, asked, "wrt")
    chosen, found = Keep() if policy is None else checked_policy(policy), find_engine(engine, None)
    if unused not in ("raise", "zeros"):
        raise PlanError(
            f'`unused={unused!r}` is not a choice for what is not in the graph of `y`. Give "raise" or "zeros".'
        )
    names = new_names()
    primal = Primal.of(y, leaves, names, unused)
    linearized = linearize(primal.nodes, [primal.output], set(primal.sources), names, chosen, engine=found)
    value: Key = linearized.values.get(primal.output, primal.output)
    seed = names("input", "seed")
    graph: dict[Key, GraphNode] = {**primal.others, seed: Task(seed, seed_of, TaskRef(value))}
    cotangents, reverse = transpose(linearized.steps, {primal.output: TaskRef(seed)}, names)
    graph |= linearized.graph | reverse
    keys = []
    for place, source in enumerate(primal.sources):
        key, at = names("gradient", place), TaskRef(linearized.values.get(source, source))
        graph[key] = Task(key, complete_gradient, source in cotangents, cotangents.get(source), at)
        keys.append(key)
    numbers = {step.linearization[1]: step.key for step in linearized.steps if step.linearization is not None}
    make = _maker(primal, graph, numbers, names)
    return make(value), pytree.unflatten(treedef, [make(key) for key in keys])


def _maker(
    primal: Primal, graph: Mapping[Key, GraphNode], numbers: Mapping[Any, Key], names: Names
) -> Callable[[Key], Delayed]:
    """Return what makes Delayed of keys of a derived graph, which they all share.

    `numbers` says by the numbers in its new keys which tasks of the primal they belong to.
    """
    name = names("input", "")[0].replace("input", "graph")
    derived = (key for key in graph if key not in primal.nodes and key not in primal.others)
    annotations = inherited(derived, numbers, primal.annotations)
    if len(primal.sources) > FEW:
        base = HighLevelGraph({}, {})
        annotations |= {key: own for key, own in primal.annotations.items() if key in graph}
    else:
        base = primal.layers
    known = base.to_dict()
    new: dict[Key, Any] = {key: node for key, node in graph.items() if key not in known}
    needed = {ref for node in new.values() for ref in node.dependencies}
    new |= {key: future for key, future in primal.futures.items() if key in needed and key not in known}
    whole = with_layer(base, name, new, annotations)
    return lambda key: Delayed(key, whole, layer=name)


def pushed(y: Delayed, wrt: Any, tangents: Any) -> tuple[Delayed, Delayed]:
    """Return the result of a Dask graph and its tangent, as Dask graphs; the face of `jvp` for these.

    Parameters
    ----------
    y
        Any Delayed with floating-point leaves.
    wrt
        The Delayed that move: leaves or any other nodes of the graph of `y`.
    tangents
        Their tangents, in the same structure: Delayed, or values.

    Returns
    -------
    tuple of Delayed
        The value of `y`, and its tangent: zeros where `y` does not depend on `wrt`, None for leaves that are constants.
    """
    leaves, treedef = pytree.flatten(wrt, is_leaf=is_delayed)
    _check_delayed(y, leaves, "jvp", "primals")
    parts = [part if is_delayed(part) else delayed(part) for part in _directions(treedef, tangents)]
    names = new_names()
    primal = Primal.of(y, leaves, names, beside=parts)
    sources, output = primal.sources, primal.output
    if len(set(sources)) < len(sources):
        raise StructureError("`primals` holds a Delayed twice. Give it once, with the sum of its tangents.")
    moving = {source: names("input", ("direction", place)) for place, source in enumerate(sources)}
    refs = {key: TaskRef(name) for key, name in moving.items()}
    found = tangent(primal.nodes, [output], refs, names, find_engine(None, None))
    graph = primal.others | found.graph
    for part, (source, name) in zip(parts, moving.items(), strict=True):
        at = found.values.get(source, TaskRef(source))
        graph[name] = Task(name, fitting_direction, TaskRef(part.key), at)
    keys = names("value", "output"), names("gradient", "tangent")
    graph[keys[0]] = Task(keys[0], plain_value, found.values.get(output, TaskRef(output)))
    graph[keys[1]] = Task(keys[1], complete_tangent, found.tangents.get(output), TaskRef(keys[0]))
    make = _maker(primal, graph, found.numbers, names)
    return make(keys[0]), make(keys[1])


def _directions(treedef: Any, tangents: Any) -> list[Any]:
    try:
        return pytree.subtrees(treedef, tangents)
    except StructureError as error:
        raise StructureError(
            "The tangents have another structure than the primals. Give one tangent per Delayed, in the same "
            "containers; None where nothing moves."
        ) from error


def is_delayed(obj: Any) -> bool:
    """Return whether something is a Delayed."""
    return isinstance(obj, Delayed)


def _check_delayed(y: Any, leaves: list[Any], asked: str, called: str) -> None:
    for what, obj in (("y", y), *((called, leaf) for leaf in leaves)):
        if is_dask_collection(obj) and not is_delayed(obj):
            raise NotDifferentiableError(
                f"`{asked}` takes Delayed of Dask, and `{what}` holds {a(type(obj).__name__)} of Dask. Make a Delayed "
                "of it, by `x = dask.delayed(x)`, and build `y` from that, in functions written with numpy."
            )
        if not is_delayed(obj):
            raise NotDifferentiableError(
                f"`{asked}` takes Delayed of Dask, and `{what}` holds {described(obj)}. Wrap it with `dask.delayed`, "
                f"or use `dagad.{asked.removesuffix('ient')}` for functions of plain values."
            )
    if not leaves:
        raise NotDifferentiableError(
            f"`{asked}` was given nothing to differentiate with respect to: `{called}` holds no Delayed. Give one of "
            "the graph of `y`, or a list of them."
        )


# Tasks at the ends of a derived graph: its seed, its directions, and what is handed out, complete


def fitting_direction(tangent: Any, value: Any) -> Any:
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


def complete_tangent(tangent: Any, value: Any) -> Any:
    """Return a complete tangent: zeros where nothing moves a leaf, None for constants."""
    partition = Partition.of(value, pytree.is_differentiable_or_traced)
    return partition.completed(partition.extract(tangent))


def plain_value(value: Any) -> Any:
    """Return a value as it is, under a key of its own."""
    return value


def seed_of(value: Any) -> Any:
    """Return the cotangent 1 of a real number, in its dtype."""
    plain = pytree.plain(value)
    if not is_scalar(plain):
        raise NotDifferentiableError(
            f"`gradient` needs a `y` that is one real floating-point number; this one is {described(plain)}. Reduce it "
            "to one, by a sum for instance, or take the gradient of one of its elements."
        )
    return unit_seed(plain)


def complete_gradient(reached: bool, cotangent: Any, value: Any) -> Any:
    """Return a complete gradient: zeros where `y` does not depend on a leaf, None for constants."""
    leaves, treedef = pytree.flatten(value)
    if not reached:
        return pytree.unflatten(treedef, list(map(pytree.zeros_like, leaves)))
    if not any(map(pytree.is_differentiable_or_traced, leaves)):
        raise NotDifferentiableError(
            f"The gradient with respect to {described(value)} was asked for, which does not exist. Make it floating "
            "point, with `float(...)` or `.astype(float)`, or leave it out of `wrt`."
        )
    return complete_tangent(cotangent, value)
