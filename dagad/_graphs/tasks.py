"""Any Dask task as a function of its dependencies, some of which are differentiated: it can be recorded and moved."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from dagad._engines.autograd import AutogradEngine
from dagad._engines.calls import by_engine, is_autograds
from dagad._engines.explicit_rules import check_count, fitted_cotangent, refuse_keywords
from dagad._engines.registry import own_engine
from dagad._errors import add_note_once
from dagad._graphs.activity import Key, is_copy, references, substituted, topological
from dagad._graphs.copies import CONTAINERS, container
from dagad._graphs.linearization import PullbackFunction, Recordable, value_of_task
from dagad._rules.dask_functions import substitute
from dagad._tracing.embedded import traced_engine
from dagad._tracing.flat_functions import Engine, FlatFunction, Traits
from dagad._tracing.forward import push
from dagad._tracing.patches import patches
from dagad._tracing.tape import pull, record, refuse_boxes
from dagad._types import AnyTask, Cotangent, Cotangents, Function, Value
from dagad._values import pytree
from dagad._values.canonical import as_given, canonical
from dagad._values.partition import Partition
from dagad._values.shipping import Portable, opened
from dagad._words import name_of
from dagad_scheduler.private import DataNode, GraphNode, Task, TaskRef
from dagad_scheduler.roles import words_about

_BARE = frozenset({np.ndarray, np.float64, float})
_AUTOGRAD = AutogradEngine()


def as_recordable(node: Task, inputs: Sequence[Key], engine: Engine | None = None) -> tuple[Any, tuple[Any, ...]]:
    """Return a task as something that can be recorded, differentiated with respect to `inputs`, and its arguments.

    It gives a cotangent for each of `inputs_of`.
    """
    if node.func is value_of_task:
        one = opened(node.args[0])
        if isinstance(one, TaskRef) or not (one.is_fused or one.task):  # no task of the user's graph
            return one, node.args[1:]
    function, keys = recordable(node, inputs, engine)
    return function, tuple(map(TaskRef, keys))


def recordable(
    node: Task, inputs: Sequence[Key], engine: Engine | None = None, read: tuple[Key, ...] | None = None
) -> tuple[Any, tuple[Key, ...]]:
    """Return the same with the keys of the arguments, of a node that takes nothing else; `read` is what it reads."""
    if node.func is value_of_task:
        function, keys = opened(node.args[0]), tuple([ref.key for ref in node.args[1:]])
        return function.activated(_indices(keys, inputs), engine), keys
    if is_copy(node):
        node, read = _without_copies(node), None
    keys = references(node) if read is None else read
    return TaskFunction(node, keys, _indices(keys, inputs), engine), keys


def _without_copies(node: Task) -> Task:
    while is_copy(node) and isinstance(node.args[0], Task):  # a copy of a copy, maybe
        node = node.args[0]
    return node


def traceable_task(part: object) -> Any:
    """Return a task, with all that stands in it, in which traced arrays go through Dask's own functions."""
    if not isinstance(part, Task):
        return part
    brings_engine = own_engine(part.func)[1] is not None  # then the whole task is that one's
    return _traceable(part, part.func if brings_engine else by_engine(substitute(part.func), None))


def _traceable(part: Task, function: Function) -> Any:
    if not part.kwargs and all([type(arg) is TaskRef for arg in part.args]):  # most: nothing stands in it
        return part if function is part.func else Task(part.key, function, *part.args)
    return _rebuilt(part, function, _traceable_part, lambda nodes: _each(nodes, _traceable_part))


def _traceable_part(part: object) -> Any:
    """Return what stands in a task; a function there that brings its own engine is one node on the task's tape."""
    if isinstance(part, Task):
        return _traceable(part, by_engine(substitute(part.func), None))
    return by_engine(part, None) if callable(part) and not isinstance(part, GraphNode) else part


def task_by_engine(part: object, engine: Engine, moving: Container[Key], given: bool = False) -> Any:
    """Return a task in which those functions that read `moving`, and are not left to autograd, are the engine's.

    `given` says that a function stands among the arguments of one that is left to autograd, and is called by it.
    """
    if not isinstance(part, Task):
        held = part.value if isinstance(part, DataNode) else part
        return by_engine(held, engine) if given and callable(held) and not isinstance(held, GraphNode) else part
    if not any(ref in moving for ref in references(part)):
        return part
    given = given if isinstance(part, CONTAINERS) else is_autograds(part.func)

    def inside(nodes: Mapping[Key, Any]) -> dict[Key, Any]:
        args = dict(zip(part.args[2], part.args[3:], strict=True))
        reading = {name for name, arg in args.items() if _reads(arg, moving)}
        called: dict[Key, Any] = {
            name: DataNode(name, by_engine(arg.value, engine))
            for name, arg in args.items()
            if isinstance(arg, DataNode) and callable(arg.value)
        }
        found = {}
        for key in topological(nodes, [part.args[1]]):
            node = nodes[key]
            if called and isinstance(node, Task) and is_autograds(node.func):
                node = node.substitute(called)
            found[key] = task_by_engine(node, engine, reading)
            if _reads(node, reading):
                reading.add(key)
        return found

    return _rebuilt(part, by_engine(part.func, engine), lambda arg: task_by_engine(arg, engine, moving, given), inside)


def _reads(part: object, moving: Container[Key]) -> bool:
    keys = [part.key] if isinstance(part, TaskRef) else references(part) if isinstance(part, GraphNode) else ()
    return any(key in moving for key in keys)


def _each(nodes: Mapping[Key, Any], change: Callable[[Any], Any]) -> dict[Key, Any]:
    return {key: change(node) for key, node in nodes.items()}


def _rebuilt(
    part: Task, function: Function, each: Callable[[Any], Any], inside: Callable[[Mapping[Key, Any]], dict[Key, Any]]
) -> Task:
    """Return a task with another function and other parts; itself if they are the same."""
    kwargs = _each(part.kwargs, each)
    same = function is part.func and all(kwargs[name] is value for name, value in part.kwargs.items())
    if part.has_subgraph():
        nodes = inside(part.args[0])
        same = same and all(nodes.get(key) is node for key, node in part.args[0].items())
        args: list[Any] = [nodes, *part.args[1:]]
    else:
        args = list(map(each, part.args))
        same = same and all(map(operator.is_, args, part.args))
    if same:
        return part
    if isinstance(part, CONTAINERS):
        return container(part, args)  # type: ignore[no-any-return]  # a task again
    return Task(part.key, function, *args, **kwargs)


def _indices(keys: Sequence[Key], inputs: Sequence[Key]) -> tuple[int, ...]:
    known = inputs if len(inputs) < 4 else frozenset(inputs)
    return tuple([index for index, key in enumerate(keys) if key in known])


class TaskFunction(Recordable, Portable):
    """A task as a function of its dependencies; what is dagad's own in a graph is autograd's to differentiate."""

    __slots__ = ("_active", "_engine", "_keys", "_task")

    def __init__(
        self, task: Task, keys: tuple[Key, ...], active: tuple[int, ...], engine: Engine | None = None
    ) -> None:
        fun, own = own_engine(task.func)
        if own is not None:
            task, engine = Task(task.key, fun, *task.args, **task.kwargs), own
        elif engine is None:
            engine = _AUTOGRAD
        elif Traits.of(engine).has_own_arrays:
            task, engine = task_by_engine(task, engine, {keys[index] for index in active}), _AUTOGRAD
        elif str(getattr(fun, "__module__", "")).startswith("dagad."):
            engine = _AUTOGRAD
        self._task, self._keys, self._active, self._engine = task, keys, active, engine

    def state(self) -> tuple[Any, ...]:
        return self._task, self._keys, self._active, self._engine

    @property
    def task(self) -> Task:
        """The task itself, as it stood in a graph."""
        return self._task

    @property
    def keys(self) -> tuple[Key, ...]:
        """What it reads, as its arguments come."""
        return self._keys

    @property
    def active(self) -> tuple[int, ...]:
        """The places of those that are differentiated."""
        return self._active

    def under(self, key: Key) -> TaskFunction:
        """Return the same task under another key."""
        task: Any = substituted(self._task, {}, key)
        if task.has_subgraph() and task.args[1] == self._task.key:  # its last part has its name
            inside, last, *rest = task.args
            parts = {**inside, key: substituted(inside[last], {}, key)}
            del parts[last]
            task = Task(key, task.func, parts, key, *rest)
        return TaskFunction(task, self._keys, self._active, self._engine)

    def on(self, task: AnyTask, moving: Container[Key]) -> Task:
        """Return a node that does what another task does, by the same engine."""
        keys = references(task)
        active = tuple([index for index, key in enumerate(keys) if key in moving])
        return Task(task.key, value_of_task, TaskFunction(task, keys, active, self._engine), *map(TaskRef, keys))

    @property
    def spans(self) -> tuple[None, ...]:
        """For each of these, which terms of its cotangent arise here: all."""
        return (None,) * len(self._active)

    def names(self) -> list[str]:
        """Return what the task is called, for pictures."""
        return [words_about(self._task.key)]

    def activated(self, active: tuple[int, ...], engine: Engine | None) -> TaskFunction:
        """Return the same task, differentiated with respect to other dependencies."""
        return TaskFunction(self._task, self._keys, active, engine)

    def value(self, *values: Any) -> Any:
        fun = _BoundTask(self._engine, self._task, self._keys, values, ())
        return traced_engine(self._engine).run(fun, [])

    def record(self, *values: Any) -> tuple[Any, PullbackFunction, Callable[[], int]]:
        fun = _BoundTask(self._engine, self._task, self._keys, values, self._active)
        try:
            outputs, pull_leaves = traced_engine(self._engine).linearize(fun, fun.leaves)
            value = fun.merge(outputs)
        except Exception as error:
            add_note_once(error, f"dagad: while task {self._task.key!r} was linearized")
            raise
        self._refuse_boxes(fun, value)

        def pullback(cotangent: Cotangent) -> tuple[Any, ...]:
            seeds = [canonical(seed) for seed in pytree.leaf_seeds(value, cotangent)]
            try:
                return fun.grouped(pull_leaves(fun.select(seeds)))
            except Exception as error:
                add_note_once(error, f"dagad: while task {self._task.key!r} was pulled back")
                raise

        return value, pullback, pull_leaves.nbytes

    def _refuse_boxes(self, fun: _BoundTask, value: Value) -> None:
        if type(value) in _BARE and np.result_type(value).kind != "O":
            return
        for leaf in pytree.flatten(value)[0] if not fun.traced else ():
            refuse_boxes(leaf, f"What task {self._task.key!r} returned")

    def push(self, values: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Run the task on dependencies that move: its value and tangent, zeros where nothing arrives."""
        fun = _BoundTask(self._engine, self._task, self._keys, values, self._active)
        run = functools.partial(traced_engine(self._engine).run, fun)
        try:
            value, (tangents_out,) = push(run, fun.leaves, [fun.directions(tangents)])
        except Exception as error:
            add_note_once(error, f"dagad: while task {self._task.key!r} was moved")
            raise
        self._refuse_boxes(fun, value)
        partition = Partition.of(value, pytree.is_differentiable_or_traced)
        return value, partition.completed([tangents_out[index] for index in partition.positions])


class _BoundTask(FlatFunction):
    """A task at the values of its dependencies, as a function of the leaves being differentiated."""

    is_also_numpys = True  # as in `BoundCall`

    def __init__(
        self, engine: Engine, task: Task, keys: Sequence[Key], values: Sequence[Any], active: tuple[int, ...]
    ) -> None:
        self.takes, self._task, self._keys = engine.takes, task, keys
        self._values, self._active = list(values), active
        self._partitions = [Partition.of(values[index], pytree.is_differentiable_or_traced) for index in active]
        self.leaves = [canonical(leaf) for p in self._partitions for leaf in p.taken]
        self.n_leaves, self.given = len(self.leaves), None

    @property
    def name(self) -> str:
        return name_of(self._task.func)

    @property
    def traced(self) -> bool:
        """Whether somebody traces it, for a derivative of this derivative: then its value is traced too."""
        held = (value for value in self._values if type(value) not in _BARE)
        return any(pytree.is_traced(leaf) for value in held for leaf in pytree.flatten(value)[0])

    def function(self, leaves: Sequence[Any]) -> Callable[..., Any]:
        del leaves  # a task carries none: they come by its dependencies
        task = traceable_task(self._task) if self.n_leaves else self._task
        return lambda *values: task(dict(zip(self._keys, values, strict=True)))

    def arguments(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        values, rest = list(self._values), iter(leaves)
        for index, partition in zip(self._active, self._partitions, strict=True):
            values[index] = partition.merge(rest)
        return tuple(map(_shown, values))

    def run(self, leaves: Sequence[Any]) -> Any:
        with patches:
            return pytree.open_containers(super().run(leaves))

    def extract(self, cotangents: Cotangents) -> list[Any]:
        """Return the cotangents of the leaves, from those of the function's arguments, which hold the leaves somewhere.

        The way from the leaves to the arguments (through lists, dicts, several at once) is a tape of its own.
        """
        leaves = list(map(pytree.plain, self.leaves))  # who traces them may be done: only the way counts here
        (args, _), ends, roots = record(self._gathered, leaves)
        partitions = [Partition.of(arg, lambda leaf: True) for arg in args]
        n_positional = sum(len(p.positions) for p in partitions)
        if any(end is not None for end in ends[n_positional:]):
            refuse_keywords()
        parts = check_count(cotangents, len(partitions))
        pairs = [
            pair
            for p, part in zip(partitions, parts, strict=True)
            for pair in zip(p.extract(part), p.taken, strict=True)
        ]
        seeds = []
        for (seed, leaf), end in zip(pairs, ends[:n_positional], strict=True):
            if end is not None and seed is None:  # one that is asked for; the engine says so
                return [None] * len(self.leaves)
            seeds.append(None if end is None else fitted_cotangent(seed, leaf))
        return pull(ends[:n_positional], seeds, roots, leaves)

    def _gathered(self, leaves: Sequence[Any]) -> Any:
        own = set(map(id, leaves))
        values = []
        for value in self.arguments(leaves):
            parts, treedef = pytree.flatten(value)
            values.append(
                pytree.unflatten(treedef, [part if id(part) in own else pytree.plain(part) for part in parts])
            )
        return Task(None, _gathered, *self._task.args, **self._task.kwargs)(dict(zip(self._keys, values, strict=True)))

    def directions(self, tangents: Sequence[Any]) -> list[Any]:
        """Return the tangents of the leaves, from one pytree per active dependency."""
        pairs = zip(self._partitions, tangents, strict=True)
        parts = [part for p, tangent in pairs for part in p.extract(tangent)]
        return [pytree.fitted(part, leaf, "A tangent") for part, leaf in zip(parts, self.leaves, strict=True)]

    def grouped(self, cotangents: Sequence[Any]) -> tuple[Any, ...]:
        """Return one pytree of cotangents per dependency, None where a leaf has none."""
        rest = iter(cotangents)
        return tuple(p.arrange(rest) for p in self._partitions)


def _shown(value: Value) -> Any:
    """Return what a task reads as it gets to see it, since it may run again and has to read the same.

    Arrays are read-only, and containers its own.
    """
    if type(value) is np.ndarray:
        value = canonical(value)
        if value.flags.writeable:
            value = as_given(value)
    elif type(value) not in _BARE and not pytree.is_traced(value):
        leaves, treedef = pytree.flatten(value)
        if not treedef.is_leaf():
            value = pytree.unflatten(treedef, list(map(_shown, leaves)) if np.ndarray in map(type, leaves) else leaves)
    return value


def _gathered(*args: Any, **kwargs: Any) -> Any:
    return list(args), kwargs
