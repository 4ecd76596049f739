"""Tasks -> linearizing tasks: the primal graph, with a pullback behind each task that carries a derivative."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask._task_spec import Alias, GraphNode, Task, TaskRef

from dagad import _tree
from dagad._engines.autograd import AutogradEngine, refuse_boxes
from dagad._engines.base import Engine
from dagad._engines.forward import push
from dagad._engines.patches import patches
from dagad._errors import add_note_once
from dagad._graph.activity import Graph, Key, active, references, topological
from dagad._graph.sums import add_up
from dagad._linearization import (
    Counters,
    Preaccumulated,
    Pullback,
    is_scalar,
    unit_seed,
    value_and_pullback,
    value_of_task,
    value_part,
)
from dagad._portable import Portable

Names = Callable[[str, Any], Key]


@dataclass(frozen=True, slots=True)
class Step:
    """One task of the primal that carries a derivative, as `transpose` needs to see it."""

    key: Key  # what the primal calls it
    inputs: tuple[Key, ...]  # the inputs that carry a derivative, as the primal calls them
    linearization: Key | None  # where its linearization is; None: it is a sum or an alias, its own transpose


@dataclass(frozen=True, slots=True)
class Linearized:
    """A graph with pullbacks."""

    graph: dict[Key, GraphNode]
    steps: list[Step]
    values: dict[Key, Key] = field(default_factory=dict)  # key of the primal -> key that has its plain value here

    def recorded(self) -> list[Key]:
        """Return the keys of all linearizations."""
        return [step.linearization for step in self.steps if step.linearization is not None]


def linearize(
    graph: Graph, keys: Collection[Key], wrt: Collection[Key], names: Names, policy: Any, *, apart: bool = True
) -> Linearized:
    """Rewrite what `keys` need so that each task that depends on `wrt` also leaves a linearization.

    `apart` gives every value a key apart from its linearization, so that only values travel; without it, sums read
    values out of linearizations, which is cheaper in one process.
    """
    order = topological(graph, keys)
    result = Linearized({key: graph[key] for key in order}, [])
    own = names("value", 0)[0], names("sum", 0)[0]
    for place, (key, inputs) in enumerate(active(order, wrt).items()):
        node = result.graph.pop(key)
        # A graph that was built under these very names keeps its numbers: they are those of the chunks.
        index = key[1] if isinstance(key, tuple) and key[0] in own else place
        if isinstance(node, Alias) or (isinstance(node, Task) and node.func is add_up):
            _keep_linear(result, key, node, inputs, names("sum", index))
        elif isinstance(node, Task):
            _record(result, key, node, inputs, names, index, policy, apart)
    return result


def _keep_linear(result: Linearized, key: Key, node: GraphNode, inputs: Any, name: Key) -> None:
    here = result.values
    if isinstance(node, Alias):
        result.values[key] = here.get(node.target, node.target)
    else:
        assert isinstance(node, Task)
        carrying = set(inputs)
        inputs = tuple(arg.key for arg in node.args if arg.key in carrying)  # a term may stand there twice
        refs = [TaskRef(here.get(arg.key, arg.key)) for arg in node.args]
        result.graph[name] = Task(name, add_up, *refs)
        result.values[key] = name
    result.steps.append(Step(key, inputs, None))


def _record(
    result: Linearized, key: Key, node: Task, inputs: Any, names: Names, index: int, policy: Any, apart: bool
) -> None:
    name = names("value", index)
    task, args = _as_recordable(node, inputs)
    values = result.values
    plain = [TaskRef(values[arg.key]) if isinstance(arg, TaskRef) and arg.key in values else arg for arg in args]
    result.graph[name] = Task(name, value_and_pullback, policy, task, *plain)
    result.steps.append(Step(key, inputs, name))
    if apart:
        part = result.values[key] = names("part", index)
        result.graph[part] = Task(part, value_part, TaskRef(name))
    else:
        result.values[key] = name


def _as_recordable(node: Task, inputs: Sequence[Key]) -> tuple[Any, tuple[Any, ...]]:
    """Return the task as something that can be recorded, and its arguments."""
    if node.func is value_of_task and not isinstance(node.args[0], TaskFunction):
        return node.args[0], node.args[1:]
    if node.func is value_of_task:
        function: TaskFunction = node.args[0]
        keys = tuple(ref.key for ref in node.args[1:])
        return function.activated(tuple(keys.index(key) for key in inputs)), node.args[1:]
    keys = references(node)
    places = tuple(keys.index(key) for key in inputs)
    return TaskFunction(node, keys, places), tuple(TaskRef(key) for key in keys)


class TaskFunction(Portable):
    """Any Dask task as a function of its dependencies, some of which are differentiated."""

    __slots__ = ("_active", "_keys", "_task")

    def __init__(self, task: Task, keys: tuple[Key, ...], active: tuple[int, ...]) -> None:
        self._task, self._keys, self._active = task, keys, active

    def state(self) -> tuple[Any, ...]:
        return self._task, self._keys, self._active

    def activated(self, active: tuple[int, ...]) -> TaskFunction:
        """Return the same task, differentiated in other dependencies."""
        return TaskFunction(self._task, self._keys, active)

    def value(self, *values: Any) -> Any:
        """Run the task on the values of its dependencies."""
        with patches:
            return self._task(dict(zip(self._keys, map(_tree.settled, values), strict=True)))

    def record(self, *values: Any) -> tuple[Any, Pullback, Callable[[], int]]:
        """Run the task traced; see `Recordable`."""
        call = _BoundTask(self, values, self._active)
        engine: Engine = AutogradEngine()
        try:
            value, pull, nbytes = engine.linearize(call, call.leaves)
        except Exception as error:
            add_note_once(error, f"dagad: while task {self._task.key!r} was linearized")
            raise
        self._refuse_boxes(call, value)

        def pullback(cotangent: Any) -> tuple[Any, ...]:
            return call.grouped(pull([_tree.settled(seed) for seed in _tree.leaf_seeds(value, cotangent)]))

        return value, pullback, nbytes

    def _refuse_boxes(self, call: _BoundTask, value: Any) -> None:
        for leaf in _tree.flatten(value)[0] if not call.traced else ():
            refuse_boxes(leaf, f"What task {self._task.key!r} returned")

    def push(self, values: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Run the task on dependencies that move: its value and tangent, zeros where nothing arrives."""
        call = _BoundTask(self, values, self._active)
        try:
            value, (moved,) = push(call.run, call.leaves, [call.directions(tangents)])
        except Exception as error:
            add_note_once(error, f"dagad: while task {self._task.key!r} was moved")
            raise
        self._refuse_boxes(call, value)
        form = _tree.Form.of(value, _tree.is_differentiable_or_traced)
        parts = (moved[place] for place in form.positions)
        pairs = zip(parts, form.taken, strict=True)
        filled = [_tree.zeros_like(_tree.plain(leaf)) if part is None else part for part, leaf in pairs]
        return value, form.cotangent(iter(filled))

    def preaccumulate(self, counters: Counters, *values: Any) -> Preaccumulated:
        """Run the task traced and pull the seed 1 at once; see `Recordable`."""
        value, pullback, nbytes = self.record(*values)
        counters.recorded()
        if not is_scalar(value):
            return value, None, pullback, nbytes
        gradient = list(pullback(unit_seed(value)))
        counters.used_up()
        return value, gradient, pullback, nbytes


class _BoundTask:
    """A task at the values of its dependencies, as a function of the leaves being differentiated."""

    def __init__(self, function: TaskFunction, values: Sequence[Any], active: tuple[int, ...]) -> None:
        self.fun = function.value
        self._values, self._active = list(values), active
        self._forms = [_tree.Form.of(values[place], _tree.is_differentiable_or_traced) for place in active]
        # Traced already, by a derivative of this derivative: then the value is too, and rightly.
        self.traced = any(hasattr(leaf, "_trace") for value in values for leaf in _tree.flatten(value)[0])
        self.leaves = [_tree.settled(leaf) for form in self._forms for leaf in form.taken]

    def run(self, leaves: Sequence[Any]) -> Any:
        return self.fun(*self.arguments(leaves))

    def arguments(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        values, rest = list(self._values), iter(leaves)
        for place, form in zip(self._active, self._forms, strict=True):
            values[place] = form.fill(rest)
        return tuple(values)

    def leaf_cotangents(self, cotangents: Sequence[Any]) -> list[Any]:
        return [
            leaf for form, place in zip(self._forms, self._active, strict=True) for leaf in form.pick(cotangents[place])
        ]

    def directions(self, tangents: Sequence[Any]) -> list[Any]:
        """Return the tangents of the leaves, from one pytree per active dependency."""
        pairs = zip(self._forms, tangents, strict=True)
        parts = [part for form, tangent in pairs for part in form.pick(tangent)]
        return [
            part
            if part is None or _tree.is_traced(part) or _tree.is_traced(leaf)
            else _tree.cast_like(part, leaf, "A tangent came")
            for part, leaf in zip(parts, self.leaves, strict=True)
        ]

    def grouped(self, cotangents: Sequence[Any]) -> tuple[Any, ...]:
        """Return one pytree of cotangents per dependency, None where a leaf has none."""
        rest = iter(cotangents)
        return tuple(form.cotangent(rest) for form in self._forms)
