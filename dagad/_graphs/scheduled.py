"""A schedule and a graph -> the graph in which steps run again, each time behind a gate, to be recorded and pulled.

What is linearized is what `transpose` sees, in the same order, so the bits are those of `linearize`. A state is stored
by being read later; nothing else keeps it. A gate reads that pullbacks are done, and hands on the policy: what runs
again begins behind it. It would begin at once otherwise, and all tapes would be alive at the same time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dagad._errors import PlanError
from dagad._graphs.activity import Graph, Key, active, keep_alias, topological
from dagad._graphs.layers import Annotations
from dagad._graphs.linearization import Counters, value_and_pullback, value_part
from dagad._graphs.linearize import Linearized, Step, counts_of, inputs_of, is_sum, tell_spans
from dagad._graphs.policies import Keep, Recompute
from dagad._graphs.schedules import DISK, Schedule, kind_of
from dagad._graphs.states import read_state, write_state
from dagad._graphs.steps import Active, crossing, steps_of
from dagad._graphs.sum_trees import add_up
from dagad._graphs.tasks import as_recordable
from dagad._graphs.transpose import pullback_key
from dagad._tracebacks import public
from dagad._tracing.flat_functions import Engine
from dagad._types import AnyEngine, AnyPolicy, AnyTask, Value
from dagad_scheduler.private import Alias, Task, TaskRef
from dagad_scheduler.roles import Names


def scheduled(
    graph: Graph,
    key: Key,
    wrt: Collection[Key],
    names: Names,
    schedule: Schedule,
    seed: Key,
    annotations: Mapping[Key, Annotations],
    *,
    engine: Engine | None = None,
) -> Linearized:
    """Rewrite what `key` needs, so that each task that depends on `wrt` leaves a linearization when the schedule says.

    `seed` is the key of the cotangent of `key`: nothing runs again before that is there. `annotations` may mark steps.
    """
    order = topological(graph, [key])
    carrying = active(order, wrt)
    steps = steps_of(graph, carrying, annotations)
    tasks = _Tasks(graph, carrying, steps, names, schedule, seed, engine)
    course = _Course(tasks, steps)
    for action in schedule.actions(len(steps)) if steps else ():
        course.follow(action)
    course.finish()
    made = tasks.finished()
    made.graph.update((each, graph[each]) for each in order if each not in carrying)
    return made


class _Course:
    """How far a schedule has got.

    ========  ====================================================================================
    `at`      the step that comes next forwards
    `swept`   so many steps have run
    `end`     so many steps are still to be pulled
    `states`  before which steps a state is stored, each with whether that is on disk; maybe twice
    ========  ====================================================================================
    """

    def __init__(self, tasks: _Tasks, steps: Sequence[Sequence[Key]]) -> None:
        self._tasks, self._steps = tasks, steps
        self.at, self.swept, self.end = 0, 0, len(steps)
        self.states = set[tuple[int, bool]]()

    def follow(self, action: object) -> None:
        """Do what one action of the schedule says."""
        kind = kind_of(action)
        if kind == "Forward":
            self._forward(action)
        elif kind == "Reverse":
            self._reverse(action)
        elif kind in ("Copy", "Move"):
            self._take_up(action)
        elif kind not in ("EndForward", "EndReverse"):
            raise PlanError(
                f"The schedule holds {action!r}, which is no action. There are Forward, Reverse, Copy, Move, "
                "EndForward and EndReverse, as in the package checkpoint_schedules."
            )

    def finish(self) -> None:
        """Make sure that all has been pulled."""
        if self.end:
            raise PlanError(f"The schedule ends before steps 0 to {self.end - 1} are pulled back. Reverse them too.")

    def _forward(self, action: Any) -> None:
        stop = min(action.n1, len(self._steps))  # a schedule that is not told how many there are runs on and on
        if action.n0 != self.at or stop > self.end:
            raise PlanError(
                f"The schedule can't run {_steps(action.n0, stop)} after the first {self.at}, with {self.end} to be "
                "pulled back. Copy the state before a step first; run those only that are to be pulled back."
            )
        on_disk = _is_disk(action.storage)
        if action.write_adj_deps and on_disk:
            raise PlanError(
                f"The schedule puts the tapes of {_steps(action.n0, stop)} on disk, where states can be only. Keep "
                "tapes in memory: give it `storage=StorageType.RAM`, or take another schedule."
            )
        if action.write_ics:
            self._store(action.n0, on_disk)
        for index in range(action.n0, stop):
            for key in self._steps[index]:
                self._tasks.run(key, index < self.swept, action.write_adj_deps)
        self.at, self.swept = stop, max(self.swept, stop)

    def _reverse(self, action: Any) -> None:
        keys = [key for some in self._steps[action.n0 : action.n1] for key in some]
        missing = [key for key in keys if key not in self._tasks.recorded]
        if action.n1 != self.end or missing:
            why = f"{missing[0]!r} has not been recorded" if missing else f"the first {self.end} are to be pulled back"
            raise PlanError(
                f"The schedule can't pull back {_steps(action.n0, action.n1)}: {why}. Record steps by Forward with "
                "`write_adj_deps`, and pull them back from the last to the first."
            )
        self._tasks.pull(keys)
        self.end = action.n0

    def _take_up(self, action: Any) -> None:
        on_disk = _is_disk(action.from_storage)
        if (action.n, on_disk) in self.states:
            self.at = action.n
            if on_disk:
                self._tasks.take_up(action.n)
            if _is_disk(action.to_storage) != on_disk:
                self._store(action.n, not on_disk)
        elif not all(key in self._tasks.recorded for some in self._steps[action.n : action.n + 1] for key in some):
            raise PlanError(f"The schedule takes up step {action.n}, of which it has stored nothing there. Store it.")

    def _store(self, index: int, on_disk: bool) -> None:
        self.states.add((index, on_disk))
        if on_disk:
            self._tasks.write(index)


class _Tasks:
    """The tasks of the new graph.

    ==========  =============================================================================
    `made`      the graph, and what `transpose` sees of it
    `latest`    key of the primal -> key that has its value, from the latest run
    `recorded`  key of the primal -> its linearization, if it needs one, until it is pulled
    `_states`   step -> keys of the primal that it reads from before, in files -> their files
    `_files`    key that has a value -> key of the file with that value
    `_unread`   key of the primal -> the file that it is in, of a state that was taken up, until a step reads it
    `_gate`     the last gate; tasks that read something `_behind` it need not wait for it
    `_pulls`    what says that pullbacks are done, for the next gate before something runs again
    `_writes`   what says that the latest state is in its files, for the next gate of all
    ==========  =============================================================================
    """

    def __init__(
        self,
        graph: Graph,
        carrying: Active,
        steps: Sequence[Sequence[Key]],
        names: Names,
        schedule: Schedule,
        seed: Key,
        engine: AnyEngine,
    ) -> None:
        self.made = Linearized({}, [])
        self.latest: dict[Key, Key] = {}
        self.recorded: dict[Key, Key | None] = {}
        self._graph, self._carrying, self._names, self._engine = graph, carrying, names, engine
        self._policy = Keep(counters=getattr(schedule, "counters", None) or Counters())
        self._directory = getattr(schedule, "disk", None) or True
        self._crossing = crossing(steps, carrying)
        self._index = {key: index for index, key in enumerate(carrying)}
        self._n_runs = Counter[Key]()
        self._recordable: dict[Key, Any] = {}
        self._pulled: dict[Key, Step] = {}
        self._states: dict[int, dict[Key, Key]] = {}
        self._files: dict[Key, Key] = {}
        self._unread: dict[Key, Key] = {}
        self._gate: Key = None
        self._behind = set[Key]()
        self._pulls, self._writes = [seed], list[Key]()

    def run(self, key: Key, again: bool, record: bool) -> None:
        """Run a task of the primal."""
        node, name = self._graph[key], None
        self._unread.pop(key, None)
        if isinstance(node, Alias):
            self._stand_for(node)
        elif isinstance(node, Task) and not is_sum(node):
            name = self._ran(key, node, again, record)
        elif isinstance(node, Task) and not again:  # in a gradient that is differentiated again: it runs once
            self.latest[key] = self._names.about(key)("sum", self._index[key])
            self.made.graph[self.latest[key]] = Task(self.latest[key], add_up, *map(self._newest, node.args))
        if not again:
            self.made.values[key] = self.latest[key]
        if record:
            self.recorded[key] = name

    def _stand_for(self, alias: Alias) -> None:
        """Let an alias of the primal stand where the latest value of its target is."""
        graph, at = self.made.graph, self._newest(TaskRef(alias.target)).key
        name = self.latest[alias.key] = keep_alias(graph, alias, at, self._names, len(graph))
        self._behind.update({name} if at in self._behind else ())

    def _ran(self, key: Key, node: Task, again: bool, record: bool) -> Key:
        if key not in self._recordable:
            self._recordable[key] = as_recordable(node, self._carrying[key], self._engine)
        task, args = self._recordable[key]
        called, number = self._names.about(key), self._index[key] + len(self._carrying) * self._n_runs[key]
        self._n_runs[key] += 1
        self.made.numbers[number] = key
        refs = [self._newest(arg) for arg in args]
        name = self.latest[key] = called("value", number)
        if again:
            self._wait_for(self._pulls, self._writes)
        waits = self._gate is not None and not any(ref.key in self._behind for ref in refs if type(ref) is TaskRef)
        policy = TaskRef(self._gate) if waits else self._policy
        self.made.graph[name] = Task(name, value_and_pullback if record else value_alone, policy, task, *refs)
        if record:
            self.latest[key] = called("getitem", number)
            self.made.graph[self.latest[key]] = Task(self.latest[key], value_part, TaskRef(name))
        self._behind.add(self.latest[key])
        return name

    def _newest(self, arg: object) -> Any:
        if not isinstance(arg, TaskRef):
            return arg
        if arg.key in self._unread:
            self._read(arg.key, self._unread.pop(arg.key))
        return TaskRef(self.latest.get(arg.key, arg.key))

    def _wait_for(self, *lists: list[Key]) -> None:
        """Let what runs from now on wait until what is in some lists is done; they are empty then."""
        done = [key for some in lists for key in some]
        if done:
            before = [] if self._gate is None else [self._gate]
            self._gate = self._names("gate", ("closed", len(self.made.graph)))
            self.made.graph[self._gate] = Task(self._gate, handed_on, self._policy, *map(TaskRef, before + done))
            self._behind = set()
        for some in lists:
            some.clear()

    def _is_done(self, key: Key, done: Key) -> Key:
        """Return the key of what says that a task is done."""
        name = self._names.about(key)("gate", ("done", len(self.made.graph)))
        self.made.graph[name] = Task(name, is_done, TaskRef(done))
        return name

    def pull(self, keys: Sequence[Key]) -> None:
        """Let `transpose` pull some tasks, which come in the order of the graph."""
        inside: dict[Key, bool] = {}  # whether the cotangent of a key goes to a pullback of one of these tasks
        for key in keys:
            name, inputs = self.recorded.pop(key), inputs_of(self._graph[key], self._carrying[key])
            counts = None if name is None else counts_of(self._recordable[key][0])
            self._pulled[key] = Step(key, inputs, name, counts)
            inside[key] = any(inside.get(ref) for ref in inputs)
            if name is not None and not inside[key]:  # one after which no other one comes here
                self._pulls.append(self._is_done(key, pullback_key(name, self._names)))
            inside[key] |= name is not None

    def write(self, index: int) -> None:
        """Put the state before a step into files, and wait for those of the last one: two are in memory at most."""
        self._wait_for(self._writes)
        self._states[index] = {}
        for key in self._crossing(index):
            if key in self._unread:  # it is in its file still
                self._states[index][key] = self._unread[key]
                continue
            value = self.latest[key]
            if value not in self._files:
                name = self._files[value] = self._names.about(key)("getitem", ("written", self._index[key], index))
                self.made.graph[name] = Task(name, write_state, self._directory, TaskRef(value))
                self._writes.append(self._is_done(key, name))
            self._states[index][key] = self._files[value]

    def take_up(self, index: int) -> None:
        """Go on from the state before a step, which is in files; what no step reads again stays there."""
        self._wait_for(self._pulls, self._writes)
        self._unread.update(self._states[index])

    def _read(self, key: Key, file: Key) -> None:
        number = self._index[key]
        name = self.latest[key] = self._names.about(key)("getitem", ("read", number, len(self.made.graph)))
        self.made.graph[name] = Task(name, read_state, TaskRef(file), TaskRef(self._gate))
        self._files[name] = file
        self._behind.add(name)

    def finished(self) -> Linearized:
        """Return the graph, complete."""
        self.made.steps.extend(self._pulled[key] for key in self._carrying)
        tell_spans(self.made)
        return self.made


@public
def value_alone(policy: AnyPolicy, task: AnyTask, *args: Any) -> Any:
    """Run a task that is run again before it is pulled; it is recorded all the same, see `Linearization.unrecorded`."""
    return value_and_pullback(Recompute(counters=policy.counters), task, *args).value


def handed_on(policy: AnyPolicy, *done: Any) -> Any:
    """Return a policy, after pullbacks: a gate, behind which steps run again."""
    del done
    return policy


def is_done(result: Value) -> None:
    """Say that a task is done, where it was done, so that its result need not travel to a gate."""
    del result


def _is_disk(storage: object) -> bool:
    return bool(getattr(storage, "name", storage) == DISK)


def _steps(start: int, stop: int) -> str:
    return f"step {start}" if stop == start + 1 else f"steps {start} to {stop - 1}"
