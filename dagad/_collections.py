"""The direct face of the kernel: a Dask graph in, a Dask graph with its gradient out."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask._task_spec import Task, TaskRef, convert_legacy_graph
from dask.delayed import Delayed, delayed
from dask.tokenize import tokenize
from dask.utils import ensure_dict

from dagad import _tree
from dagad._errors import NotDifferentiableError, StructureError
from dagad._evaluation import new_names
from dagad._graph.forget import forget
from dagad._graph.linearize import linearize
from dagad._graph.policies import Keep
from dagad._graph.tangent import tangent
from dagad._graph.transpose import transpose
from dagad._linearization import is_scalar, unit_seed


def gradient(y: Delayed, wrt: Any) -> Any:
    """Return the gradient of a Dask graph's result, as a Dask graph.

    Nothing is computed: the graph of `y` is linearized and transposed, and what comes back can be computed, persisted,
    visualized, or differentiated again.

    Parameters
    ----------
    y
        A Delayed whose value is one real number.
    wrt
        The Delayed to differentiate in, or a pytree of them. Each is a leaf of the graph of `y`, or any other of its
        nodes.

    Returns
    -------
    Delayed, or a pytree of them
        One gradient per Delayed of `wrt`, with the value's own structure, shapes and dtypes; None for leaves that are
        constants (integers, strings, objects). Where `y` does not depend on a Delayed: zeros.

    Raises
    ------
    NotDifferentiableError
        If `y` or `wrt` is no Delayed; when computed, if `y` is not a real number or a Delayed of `wrt` has no
        floating-point leaves.

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
    >>> dask.compute(y, *dagad.gradient(y, [a, b]), scheduler="sync")
    (12.0, np.float64(6.0), np.float64(2.0))
    """
    leaves, treedef = _tree.flatten(wrt, is_leaf=_is_delayed)
    _check_delayed(y, leaves, "gradient", "wrt")
    names = new_names(tokenize("dagad.gradient", y.key, [leaf.key for leaf in leaves]))
    merged: dict[Any, Any] = {}
    for part in (*leaves, y):
        merged.update(ensure_dict(part.__dask_graph__()))
    converted = convert_legacy_graph(merged)
    # What is persisted on a cluster stands as its own future, which dask leaves out here: it goes along untouched.
    futures = {key: node for key, node in merged.items() if key not in converted}
    plain, renamed = forget(converted, names)
    output = renamed.get(y.key, y.key)
    sources = [renamed.get(leaf.key, leaf.key) for leaf in leaves]
    linearized = linearize(plain, [output], set(sources), names, Keep())
    value = TaskRef(linearized.values.get(output, output))
    seed = names("input", "seed")
    graph = linearized.graph | {seed: Task(seed, seed_of, value)}
    cotangents, reverse = transpose(linearized.steps, {output: TaskRef(seed)}, names)
    graph |= reverse | futures
    gradients = []
    for place, source in enumerate(sources):
        key = names("gradient", place)
        at = linearized.values.get(source, source)
        if at not in graph:  # y does not need it at all
            graph[at] = plain[source]
        graph[key] = Task(key, complete_gradient, source in cotangents, cotangents.get(source), TaskRef(at))
        gradients.append(key)
    return _tree.unflatten(treedef, [Delayed(key, graph) for key in gradients])


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
    leaves, treedef = _tree.flatten(wrt, is_leaf=_is_delayed)
    _check_delayed(y, leaves, "jvp", "primals")
    parts = [part if _is_delayed(part) else delayed(part) for part in _directions(treedef, tangents)]
    names = new_names(tokenize("dagad.jvp", y.key, [leaf.key for leaf in (*leaves, *parts)]))
    merged: dict[Any, Any] = {}
    for part in (*leaves, *parts, y):
        merged.update(ensure_dict(part.__dask_graph__()))
    converted = convert_legacy_graph(merged)
    futures = {key: node for key, node in merged.items() if key not in converted}
    plain, renamed = forget(converted, names)
    sources = [renamed.get(leaf.key, leaf.key) for leaf in leaves]
    if len(set(sources)) < len(sources):
        raise StructureError("`primals` holds a Delayed twice. Give it once, with the sum of its tangents.")
    moving = {source: names("part", ("direction", place)) for place, source in enumerate(sources)}
    output = renamed.get(y.key, y.key)
    graph, values, found = tangent(plain, [output], {key: TaskRef(name) for key, name in moving.items()}, names)
    graph = plain | graph | futures
    for part, (source, name) in zip(parts, moving.items(), strict=True):
        given = TaskRef(renamed.get(part.key, part.key))
        graph[name] = Task(name, fitting_direction, given, values.get(source, TaskRef(source)))
    keys = names("value", "output"), names("gradient", "tangent")
    graph[keys[0]] = Task(keys[0], plain_value, values.get(output, TaskRef(output)))
    graph[keys[1]] = Task(keys[1], complete_tangent, found.get(output), TaskRef(keys[0]))
    return Delayed(keys[0], graph), Delayed(keys[1], graph)


def _directions(treedef: Any, tangents: Any) -> list[Any]:
    try:
        return _tree.subtrees(treedef, tangents)
    except StructureError as error:
        raise StructureError(
            "The tangents have not the structure of the primals. Give one tangent per Delayed; None where nothing "
            "moves."
        ) from error


def fitting_direction(tangent: Any, value: Any) -> Any:
    """Return the tangent of a Delayed that moves, checked against what the Delayed turned out to be."""
    form = _tree.Form.of(value, _tree.is_differentiable_or_traced)
    if not form.positions and tangent is not None:
        raise NotDifferentiableError(
            f"A primal that is {_describe(value)} can't move. Make it floating point, with `float(...)` or "
            "`.astype(float)`, or leave it out."
        )
    try:
        parts = form.pick(tangent)
    except StructureError as error:
        raise StructureError("A tangent has not the structure of the Delayed that it moves.") from error
    return form.cotangent(iter([_fitting(*pair) for pair in zip(parts, form.taken, strict=True)]))


def _fitting(part: Any, leaf: Any) -> Any:
    if part is None or _tree.is_traced(part) or _tree.is_traced(leaf):
        return part
    return _tree.cast_like(part, leaf, "A tangent came")


def complete_tangent(tangent: Any, value: Any) -> Any:
    """Return a complete tangent: zeros where nothing moves a leaf, None for constants."""
    form = _tree.Form.of(value, _tree.is_differentiable_or_traced)
    pairs = zip(form.pick(tangent), form.taken, strict=True)
    return form.cotangent(iter([_tree.zeros_like(_tree.plain(leaf)) if part is None else part for part, leaf in pairs]))


def plain_value(value: Any) -> Any:
    """Return a value as it is, under a key of its own."""
    return value


def _is_delayed(obj: Any) -> bool:
    return isinstance(obj, Delayed)


def _check_delayed(y: Any, leaves: list[Any], asked: str, called: str) -> None:
    for what, obj in (("y", y), *((called, leaf) for leaf in leaves)):
        if not _is_delayed(obj):
            raise NotDifferentiableError(
                f"`{asked}` takes dask Delayed objects; `{what}` holds a {type(obj).__name__}. Wrap it with "
                f"`dask.delayed`, or use `dagad.{asked.removesuffix('ient')}` for functions of plain values."
            )
    if not leaves:
        raise NotDifferentiableError(f"`{asked}` got nothing to differentiate in: `{called}` holds no Delayed.")


def seed_of(value: Any) -> Any:
    """Return the cotangent 1 of a real number, in its dtype."""
    plain = _tree.plain(value)
    if not is_scalar(plain):
        raise NotDifferentiableError(
            f"`gradient` needs a `y` that is one real floating-point number; this one is {_describe(plain)}. Reduce it "
            "to one, by a sum for instance, or take the gradient of one of its elements."
        )
    return unit_seed(plain)


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    return f"a {type(value).__name__}"


def complete_gradient(reached: bool, cotangent: Any, value: Any) -> Any:
    """Return a complete gradient: zeros where `y` does not depend on a leaf, None for constants."""
    leaves, treedef = _tree.flatten(value)
    if reached and not any(map(_tree.is_differentiable, map(_tree.plain, leaves))):
        raise NotDifferentiableError(
            f"The gradient with respect to {_describe(value)} was asked for, which has no derivative. Make it floating "
            "point, with `float(...)` or `.astype(float)`, or leave it out of `wrt`."
        )
    arrived = [None] * len(leaves) if cotangent is None else _tree.subtrees(treedef, cotangent)
    return _tree.unflatten(treedef, [_complete(*pair, reached) for pair in zip(arrived, leaves, strict=True)])


def _complete(cotangent: Any, leaf: Any, reached: bool) -> Any:
    if cotangent is not None:
        return cotangent
    return None if reached and not _tree.is_differentiable(_tree.plain(leaf)) else _tree.zeros_like(_tree.plain(leaf))
