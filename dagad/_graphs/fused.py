"""Several tasks run as one: one after the other, each recorded by itself and pulled back by itself.

What the tasks compute does not change, and neither do the bits: each keeps its own tape, engine and policy, and where
several of them read the same input, its cotangents are added up along the fixed tree of all that read it.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dagad._graphs.activity import Key
from dagad._graphs.linearization import PullbackFunction, Recordable, portable_recipe, value_of_task
from dagad._graphs.policies import Policy
from dagad._graphs.sum_trees import Span, summed
from dagad._tracing.patches import patches
from dagad._types import AnyEngine, AnyTask, Cotangent, Function, Value
from dagad._values.pytree import nbytes_of
from dagad._values.shipping import Portable, opened
from dagad_scheduler.private import GraphNode, Task, TaskRef
from dagad_scheduler.process import Spared, patient_collector, process_settings


class Member(NamedTuple):
    """One of the tasks: its function, where its arguments stand, and which of these are differentiated."""

    function: Any
    positions: tuple[int, ...]
    active: tuple[int, ...]


class FusedTasks(Recordable, Portable):
    """Tasks that run one after the other, as a function of what they need from outside.

    ==========  ================================================================================================
    `_members`  the tasks; indices count the arguments, then `_opened`, then the values of the tasks
    `_n_args`   how many arguments there are
    `_opened`   components of arguments that are tuples: which argument, which component
    `_outputs`  the indices of the values that are handed out, as a tuple; None for the value of the last task alone
    `_active`   which arguments are differentiated
    `_spans`    for each of these, which terms of its cotangent arise here; None: their sum counts as one
    ==========  ================================================================================================

    The values of tasks that are not handed out are read by others of them only.
    """

    __slots__ = ("_active", "_members", "_n_args", "_opened", "_outputs", "_spans")
    is_fused = True

    def __init__(
        self,
        members: tuple[Member, ...],
        n_args: int,
        opened: tuple[tuple[int, int], ...],
        outputs: tuple[int, ...] | None,
        active: tuple[int, ...],
        spans: tuple[Span | None, ...] = (),
    ) -> None:
        self._members, self._n_args, self._opened, self._outputs = members, n_args, opened, outputs
        self._active, self._spans = active, spans

    def state(self) -> tuple[Any, ...]:
        return self._members, self._n_args, self._opened, self._outputs, self._active, self._spans

    def names(self) -> list[str]:
        """Return what the tasks are called, for pictures."""
        return [name for member in self._members for name in member.function.names()]

    @property
    def functions(self) -> Sequence[Any]:
        """What the tasks run, one after the other."""
        return [member.function for member in self._members]

    @property
    def active(self) -> tuple[int, ...]:
        """The indices of the arguments that are differentiated."""
        return self._active

    @property
    def spans(self) -> tuple[Span | None, ...]:
        """For each of these, which terms of its cotangent arise here; see the class."""
        return self._spans or (None,) * len(self._active)

    def as_nodes(self, arguments: Sequence[Any], key_of: Callable[[Any, Any], Key]) -> tuple[dict[Key, GraphNode], Key]:
        """Return the tasks as nodes of a graph that read `arguments`, and the key of what all give together.

        `key_of` gives the key of a function's value.
        """
        found, nodes = list(arguments), dict[Key, GraphNode]()

        def add(key: Key, function: Function, *parts: Any) -> None:
            nodes[key] = Task(key, function, *parts)
            found.append(TaskRef(key))

        for position, (arg, index) in enumerate(self._opened):
            add(key_of(None, ("component", position)), operator.getitem, found[arg], index)
        for number, (function, positions, _) in enumerate(self._members):
            add(key_of(function, number), value_of_task, function, *[found[position] for position in positions])
        if self._outputs is not None:
            add(key_of(None, "results"), as_tuple, *[found[position] for position in self._outputs])
        return nodes, found[-1].key

    def activated(self, active: tuple[int, ...], engine: AnyEngine) -> FusedTasks:
        """Return the same tasks, differentiated with respect to these arguments."""
        if active == self._active:
            return self.spanning(())
        moving = set(active)
        moving.update(self._n_args + position for position, (arg, _) in enumerate(self._opened) if arg in moving)
        first, members = self._n_args + len(self._opened), []
        for number, (function, positions, _) in enumerate(self._members):
            own = tuple(at for at, position in enumerate(positions) if position in moving)
            if own:
                moving.add(first + number)
            members.append(Member(function.activated(own, engine), positions, tuple(positions[at] for at in own)))
        return FusedTasks(tuple(members), self._n_args, self._opened, self._outputs, active)

    def counts(self) -> tuple[int, ...]:
        """Return how many terms of the cotangent of each differentiated argument arise here."""
        found = dict.fromkeys(self._active, 0)
        for member in self._members:
            for position in member.active:
                if position in found:
                    found[position] += 1
        return tuple(found[position] or 1 for position in self._active)

    def spanning(self, spans: Sequence[Span | None]) -> FusedTasks:
        """Return the same tasks, told which terms of the cotangents of their arguments are theirs."""
        return FusedTasks(self._members, self._n_args, self._opened, self._outputs, self._active, tuple(spans))

    def value(self, *args: Any) -> Any:
        """Run the tasks, tracing nothing."""
        return self._run(args, lambda member, own: member.function.value(*own))

    def _run(
        self, args: Sequence[Any], call: Callable[[Member, list[Any]], Any], tangents: list[Any] | None = None
    ) -> Any:
        """Run the tasks one by one; what no later one reads is let go of, and its tangent."""
        found = [*args, *(args[arg][index] for arg, index in self._opened)]
        with patient_collector, patches:
            for member, over in zip(self._members, self._read_last(), strict=True):
                found.append(call(member, [found[position] for position in member.positions]))
                for position in over:
                    found[position] = None
                    if tangents is not None:
                        tangents[position] = None
        return found[-1] if self._outputs is None else tuple(found[position] for position in self._outputs)

    def _read_last(self) -> list[list[int]]:
        """Return for each task which of the values that it reads no later one does, and nobody outside."""
        read, found = set(self._outputs or ()), []
        for member in reversed(self._members):
            found.append([position for position in member.positions if position not in read])
            read.update(member.positions)
        return found[::-1]

    def linearized(self, policy: Policy, args: tuple[Any, ...]) -> FusedLinearization:
        """Run the tasks, each as the policy says."""
        steps: list[Any] = []

        def call(member: Member, own: list[Any]) -> Any:
            if not member.active:
                steps.append(None)
                return member.function.value(*own)
            step = policy.linearize(member.function, tuple(own))
            steps.append(step)
            return step.value

        value = self._run(args, call)
        return FusedLinearization(value, (policy, self, args), steps)

    def pulled(self, steps: list[Any], cotangent: Cotangent, pull: Callable[[Any, Any], Any]) -> tuple[Any, ...]:
        """Return the cotangents of the arguments; `steps`, one per task, are let go of one by one."""
        arrived: dict[int, list[Any]] = {}
        first = self._n_args + len(self._opened)
        if self._outputs is None:
            arrived[first + len(steps) - 1] = [cotangent]
        else:
            parts = [None] * len(self._outputs) if cotangent is None else cotangent
            arrived = {position: [part] for position, part in zip(self._outputs, parts, strict=True)}
        with patient_collector, patches:
            for number in reversed(range(len(steps))):
                step, member = steps.pop(), self._members[number]
                if step is None:
                    continue
                own = _sum_of(arrived.pop(first + number))
                for position, part in zip(member.active, pull(step, own), strict=True):
                    arrived.setdefault(position, []).append(part)
        return self._collected(arrived)

    def _collected(self, arrived: dict[int, list[Any]]) -> tuple[Any, ...]:
        components: dict[int, list[Any]] = {}
        for position, (arg, _) in enumerate(self._opened, self._n_args):
            components.setdefault(arg, []).append(_sum_of(arrived.get(position, [None])))
        found: list[Any] = []
        for arg, span in zip(self._active, self._spans or [None] * len(self._active), strict=True):
            if arg in components:
                parts = components[arg]
                found.append(None if all(part is None for part in parts) else tuple(parts))
            else:
                terms = arrived.get(arg, [None])
                found.append(_sum_of(terms) if span is None else summed(span, terms[::-1]))
        return tuple(found)

    def record(self, *args: Any) -> tuple[Any, PullbackFunction, Callable[[], int]]:
        """Run the tasks, each recorded; see `Recordable`."""
        steps: list[Any] = []
        sizes: list[Callable[[], int]] = []

        def call(member: Member, own: list[Any]) -> Any:
            if not member.active:
                steps.append(None)
                return member.function.value(*own)
            value, pullback, nbytes = member.function.record(*own)
            steps.append(pullback)
            sizes.append(nbytes)
            return value

        value = self._run(args, call)
        return value, lambda cotangent: self.pulled(list(steps), cotangent, _call), lambda: sum(s() for s in sizes)

    def push(self, values: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        """Run the tasks on arguments that move: their value and its tangent."""
        moving: list[Any] = [None] * (self._n_args + len(self._opened))
        for arg, tangent in zip(self._active, tangents, strict=True):
            moving[arg] = tangent
        for position, (arg, index) in enumerate(self._opened, self._n_args):
            moving[position] = None if moving[arg] is None else moving[arg][index]

        def call(member: Member, own: list[Any]) -> Any:
            if not member.active:
                moving.append(None)
                return member.function.value(*own)
            value, tangent = member.function.push(own, [moving[position] for position in member.active])
            moving.append(tangent)
            return value

        value = self._run(values, call, moving)
        return value, moving[-1] if self._outputs is None else tuple(moving[position] for position in self._outputs)


def as_tuple(*parts: Any) -> tuple[Any, ...]:
    """Return several results as those of one task."""
    return parts


def _sum_of(terms: list[Any]) -> Any:
    """Return a cotangent from all its terms, the last of which came first."""
    return terms[0] if len(terms) == 1 else summed(Span(0, len(terms), len(terms)), terms[::-1])


class FusedLinearization:
    """The linearizations of tasks that run as one.

    ===========  =================================================================================
    `value`      what the tasks hand out; never changes
    `_recipe`    (policy, tasks, arguments), or a Parcel of them after a journey; never changes
    `_steps`     the linearizations, None for tasks that are constants; dropped when pulled
    `_spared`    keeps the collector patient while there are tapes: there are many more of their kind
    `_lock`      held while `_steps` are taken, not while anything is computed
    ===========  =================================================================================
    """

    __slots__ = ("_lock", "_recipe", "_spared", "_steps", "value")

    def __init__(self, value: Value, recipe: object, steps: list[Any] | None = None) -> None:
        self.value, self._recipe, self._steps, self._lock = value, recipe, steps, threading.Lock()
        self._spared = None if steps is None else Spared(process_settings)

    def pull_scaled(self, cotangent: Cotangent) -> tuple[Any, ...]:
        """Return the cotangents of the arguments that are differentiated; the tapes are dropped one by one."""
        with self._lock:
            steps, self._steps = self._steps, None
            spared, self._spared = self._spared, None
        policy, tasks, args = opened(self._recipe)
        if steps is None:
            steps = opened(tasks).linearized(policy, args)._steps
        found: tuple[Any, ...] = opened(tasks).pulled(steps, cotangent, _pull_scaled)
        del spared
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return FusedLinearization, (self.value, portable_recipe(self._recipe))

    def __sizeof__(self) -> int:
        return 200 + nbytes_of(self.value) + sum(map(sys.getsizeof, list(self._steps or ())))


def _pull_scaled(step: AnyTask, cotangent: Cotangent) -> Any:
    return step.pull_scaled(cotangent)


def _call(pullback: PullbackFunction, cotangent: Cotangent) -> Any:
    return pullback(cotangent)
