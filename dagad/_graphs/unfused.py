"""Tasks of an earlier derivative that hold a node to differentiate with respect to -> that node in the graph again.

A derivative's graph runs several tasks of the user's as one, puts what loads data into the task that reads them, and
calls what carries derivatives by keys of its own. Differentiated again by such a node, it would be found to lack it, or
to depend on it in some places only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from dagad._graphs.activity import INSIDE, SAME, Graph, Key, own_key, substituted
from dagad._graphs.blockwise import refuse_nameless
from dagad._graphs.copies import standing_in, unfuse
from dagad._graphs.delinearize import delinearize, pull_back_of_task
from dagad._graphs.fused import as_tuple
from dagad._graphs.linearization import value_and_pullback, value_of_task
from dagad._graphs.linearize import linearize
from dagad._graphs.policies import Keep
from dagad._graphs.scheduled import value_alone
from dagad._graphs.sum_trees import Span, add_up_spans, sum_tree
from dagad._graphs.tangent import tangent, value_and_tangent
from dagad._graphs.transpose import transpose
from dagad._types import AnyNode, AnyTask, Cotangent, Function
from dagad._values.shipping import opened
from dagad_scheduler.private import Alias, DataNode, GraphNode, Task, TaskRef
from dagad_scheduler.roles import Names

# Tasks of derivatives, and where among their arguments the function stands that they run.
_FUNCTION = {value_of_task: 0, pull_back_of_task: 0, value_and_tangent: 0, value_and_pullback: 1, value_alone: 1}


def hidden(node: GraphNode, wrt: Collection[Key]) -> set[Key]:
    """Return which nodes of `wrt` a task of a derivative holds, or gives under another key."""
    if not isinstance(node, Task) or node.func not in _FUNCTION:
        return set()
    found = set(_keys_run(node))
    refuse_nameless(found, wrt)
    return {key for key in found if key in wrt and key != node.key}


def _keys_run(task: Task) -> Iterator[Key]:
    """Return the keys of all nodes whose values a task of a derivative makes for itself."""
    function = opened(task.args[_FUNCTION[task.func]])
    if task.func is not pull_back_of_task:
        yield _key_of(function)
    yield from _keys_inside(function)


def _key_of(function: AnyTask) -> Key:
    """Return the key that the user knows a task by, or None for what is not one task."""
    return None if function.task is None else own_key(function.task.key)


def _keys_inside(function: AnyTask) -> Iterator[Key]:
    """Return the keys of all nodes that a function runs before it has its value."""
    for member in function.functions:
        yield _key_of(member)
        yield from _keys_inside(member)
    task = function.task
    if task is not None and task.func in _FUNCTION:
        yield from _keys_run(task)
    elif task is not None:
        for key, part in standing_in(task):
            if own_key(key) != own_key(task.key):
                yield own_key(key)
            if isinstance(part, Task) and part.func in _FUNCTION:
                yield from _keys_run(part)


def unfused(graph: Graph, wrt: Collection[Key], names: Names) -> dict[Key, GraphNode]:
    """Return a graph without linearizations in which all nodes of `wrt` stand under their own keys."""
    result, work, count = dict(graph), list(graph), 0
    while work:
        key = work.pop()
        if hidden(node := result[key], wrt):
            count += 1
            opening = _Opening(Names(f"{names.token}-{count}"), wrt)
            result[key] = opening.open(node)
            # An alias under such a name leads to the task that it was fused into.
            new = {
                own: part
                for own, part in opening.nodes.items()
                if own not in result or (isinstance(result[own], Alias) and not isinstance(part, Alias))
            }
            result |= new
            work += new
    return result


class _Opening:
    """What stood in one task; `nodes` are those that are to stand beside it."""

    def __init__(self, names: Names, wrt: Collection[Key]) -> None:
        self.nodes: dict[Key, GraphNode] = {}
        self._names, self._wrt = names, wrt

    def open(self, node: AnyNode) -> GraphNode:
        """Return what takes the place of a task."""
        function, rest = opened(node.args[0]), node.args[1:]
        first = 0 if node.func is value_of_task else 1 if node.func is pull_back_of_task else 1 + rest[0]
        arguments = [self._argument(index, ref) for index, ref in enumerate(rest[first:])]
        output = self._values(function, list(map(TaskRef, arguments)))
        if node.func is value_of_task:
            return Alias(node.key, output)
        moving = [arguments[index] for index in function.active]
        if node.func is value_and_tangent:
            return self._jvp(node.key, output, dict(zip(moving, rest[1:first], strict=True)))
        spans = dict(zip(moving, function.spans, strict=True))
        return self._pulled(node.key, output, spans, rest[0])

    def _argument(self, index: int, ref: object) -> Key:
        """Return a key for an argument: a task may read the same one twice, by two keys."""
        key = self._names("input", ("argument", index))
        self.nodes[key] = Alias(key, ref.key) if isinstance(ref, TaskRef) else DataNode(key, ref)
        return key

    def _values(self, function: AnyTask, arguments: Sequence[Any]) -> Key:
        """Add the tasks that a function runs; return the key of its value."""
        if function.is_fused:
            nodes, output = function.as_nodes(arguments, self._name)
            self.nodes |= nodes
            return output
        key = self._name(function, "task")
        renamed = {old: ref.key for old, ref in zip(function.keys, arguments, strict=True)}
        task: Any = substituted(function.task, renamed, key)
        self.nodes[key] = self._nested(task) if hidden(task, self._wrt) else self._unfuse(function, task, renamed)
        return key

    def _name(self, function: Function, index: object) -> Key:
        """Return the key of a function's value: that of the user's task, or one that says which it was."""
        own = _key_of(function)
        return own if own in self._wrt else self._names.about(own)("input", (SAME, own, index))

    def _nested(self, task: Task) -> GraphNode:
        """Return what takes the place of a derivative's task that was itself a task of a derivative."""
        inner = _Opening(Names(f"{self._names.token}-nested"), self._wrt)
        node = inner.open(task)
        self.nodes |= inner.nodes
        return node

    def _unfuse(self, function: AnyTask, task: Task, renamed: Mapping[Key, Key]) -> GraphNode:
        """Return a task of which that is beside it now which stood in it, by the engine of `function`."""
        name = INSIDE, self._names("input", "task")  # no key of ours: what it reads may stay in it
        inside = unfuse({name: substituted(task, {}, name)}, [name], self._wrt)
        inside = self._without_linearizations(inside, "inside")[0]
        whole = substituted(inside.pop(name), {}, task.key)
        if isinstance(whole, Alias) and whole.target == task.key:  # the last of what is fused has the name of all
            whole = inside.pop(task.key)
        self.nodes |= inside
        # It may be another name of what it held.
        return function.on(whole, set(renamed.values())) if isinstance(whole, Task) else whole

    def _pulled(self, key: Key, output: Key, moving: Mapping[Key, Span | None], cotangent: Cotangent) -> GraphNode:
        """Return the cotangents of arguments, by pullbacks of the tasks that there are now.

        Of an argument with a span they are what `FusedTasks` gives: sums of subtrees, for whoever adds up all terms.
        """

        def added(source: Key, terms: Sequence[Any], key_of: Callable[..., Key]) -> tuple[Any, dict[Key, Task]]:
            span = moving.get(source)
            if span is None:
                return sum_tree(terms, key_of)
            name, single = key_of(0, 0), [Span(at, at + 1, span.n_terms) for at in range(span.start, span.stop)]
            return TaskRef(name), {name: Task(name, add_up_spans, single, *terms)}

        values, names = dict(self.nodes), Names(f"{self._names.token}-linearized")
        linearized = linearize(values, [output], list(moving), names, Keep())
        found, reverse = transpose(linearized.steps, {output: cotangent}, names, add_up=added)
        plain, renamed = self._without_linearizations(linearized.graph | reverse, "plain")
        self.nodes |= plain
        self._stand_for({own: renamed.get(at, at) for own, at in linearized.values.items()})
        parts = [found.get(argument) for argument in moving]
        parts = [TaskRef(renamed.get(ref.key, ref.key)) if isinstance(ref, TaskRef) else ref for ref in parts]
        return _together(key, parts) if len(parts) != 1 else _alone(key, parts[0])

    def _jvp(self, key: Key, output: Key, tangents: dict[Key, Any]) -> GraphNode:
        """Return a value and its tangent, by the tangents of the tasks that there are now."""
        made = tangent(dict(self.nodes), [output], tangents, self._names)
        self.nodes |= made.graph
        for name, node in made.graph.items():
            if isinstance(node, Task) and node.func is value_and_tangent and _key_of(opened(node.args[0])) in self._wrt:
                # It gives the value too, which is that under its own key from now on.
                function = opened(node.args[0]).under(self._names("input", ("moved", name)))
                self.nodes[name] = Task(name, node.func, function, *node.args[1:])
        self._stand_for({own: ref.key for own, ref in made.values.items()})
        return _together(key, [made.values.get(output, TaskRef(output)), made.tangents.get(output)])

    def _without_linearizations(self, graph: Graph, name: str) -> tuple[dict[Key, GraphNode], dict[Key, Key]]:
        """Return a graph as `delinearize` does, with nodes of `wrt` under their own keys all the same."""
        plain, renamed = delinearize(graph, Names(f"{self._names.token}-{name}"))
        for key in [key for key in renamed if key in self._wrt]:
            new = renamed.pop(key)
            plain |= {key: substituted(plain[new], {}, key), new: Alias(new, key)}
        return plain, renamed

    def _stand_for(self, values: dict[Key, Key]) -> None:
        """Let nodes of `wrt` stand where a derivative has values of its own."""
        self.nodes |= {at: Alias(at, own) for own, at in values.items() if own in self._wrt and at != own}


def _together(key: Key, parts: Sequence[Any]) -> Task:
    return Task(key, as_tuple, *parts)


def _alone(key: Key, part: object) -> GraphNode:
    return Alias(key, part.key) if isinstance(part, TaskRef) else DataNode(key, part)
