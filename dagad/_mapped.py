"""One derived chunk function on all chunks: its graph is run for what is summed and owned, and turned round for seeds.

The general sibling of `_chunked`: any function of `_derived`, cotangents of any shape, derivatives of any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dask._task_spec import DataNode, GraphNode, Task, TaskRef

from dagad import _tree
from dagad._blocks import Blocks, Sweep, cut_rows
from dagad._chunks import Place
from dagad._columns import Sliced, owned
from dagad._derivatives import Pulled, Pushed, WithUnit
from dagad._derived import Derived, Parts, Seeds, joined
from dagad._evaluation import Scheduler, calm_process, new_names, run_graph
from dagad._graph.linearize import Linearized, linearize
from dagad._graph.policies import Keep, Policy, Preaccumulate
from dagad._graph.summation import PlainSum, Summation
from dagad._graph.transpose import pulled, transpose
from dagad._inputs import Inputs, Targets, apart, times
from dagad._linearization import Linearization, value_of_task
from dagad._plan import AnyPlan
from dagad._slots import Landing

Key = Any


@dataclass(slots=True)
class Mapped:
    """A derived function on all chunks, and what has been computed of it.

    ==========  ==========================================================================================
    `total`     what is summed, added up, and the leaves that are owned, put together; set once
    `places`    for each chunk, where the leaves it owns belong; found when they are put together
    `_kept`     linearizations that wait to be pulled, as the scheduler refers to them
    `_steps`    the linearized graph, with the keys of the chunks and of their inputs
    ==========  ==========================================================================================
    """

    function: Derived
    plan: AnyPlan
    sliced: Sliced
    inputs: Inputs
    scheduler: Scheduler
    policy: Policy
    summation: Summation = field(default_factory=PlainSum)
    places: list[Targets] | None = None
    total: Parts = field(default_factory=lambda: Parts(None, []))
    _kept: dict[Key, Any] = field(default_factory=dict)
    _lin: Linearized | None = None
    _chunks: list[Key] = field(default_factory=list)
    _inputs: dict[Key, Targets] = field(default_factory=dict)

    def pushed(self, count: int) -> Mapped:
        """Return the operation that gives value and tangents together, in so many directions."""
        places = None if self.places is None else times(self.places, 1 + count)
        return self._like(Pushed(self.function, count), self.inputs.times(1 + count), places)

    def moved(self, both: Parts, count: int) -> tuple[Parts, list[list[Any]]]:
        """Take what `pushed` gave apart: the value, and for each direction the tangents of its float leaves."""
        value, moving = both.summed if self.function.sums else (None, [[]] * count)
        each = len(both.own) // (1 + count)
        own_places = [[at for at in targets if at[0] < each] for targets in both.places]
        parts = Parts(value, both.own[:each], both.note, own_places)
        floats = [place for place, leaf in enumerate(parts.own) if _tree.is_differentiable_or_traced(leaf)]
        own = [[both.own[each * (1 + number) + place] for place in floats] for number in range(count)]
        return parts, [[*shared, *mine] for shared, mine in zip(moving, own, strict=True)]

    def with_unit(self) -> Mapped:
        """Return the operation that gives a reduction's value and its gradient for the seed 1."""
        function = WithUnit(self.function, owns=bool(sum(self.inputs.sliced)))
        return self._like(function, self.inputs, self.inputs.flat())

    def turned(self, value: Parts) -> Mapped:
        """Return the pullback, an operation on the leaves and on seeds for `value`."""
        floats = [place for place, leaf in enumerate(value.own) if _tree.is_differentiable_or_traced(leaf)]
        rows = None
        if self.function.owns:
            rows = [
                [(floats.index(leaf), own) for leaf, own in targets if leaf in floats] for targets in value.places or []
            ]
        n_summed = len(Parts(value.summed, []).floats())
        function = Pulled(self.function, bool(sum(self.inputs.theta)), bool(sum(self.inputs.sliced)))
        return self._like(function, self.inputs.and_seeds(n_summed, len(floats), rows), self.inputs.flat())

    def _like(self, function: Derived, inputs: Inputs, places: list[Targets] | None) -> Mapped:
        policy = Keep() if isinstance(self.policy, Preaccumulate) else self.policy
        return Mapped(function, self.plan, self.sliced, inputs, self.scheduler, policy, self.summation, places)

    def value(self, leaves: Sequence[Any]) -> Parts:
        """Run for the value, tracing nothing."""
        return self._evaluated(leaves, record=False)

    def linearized(self, leaves: Sequence[Any]) -> Parts:
        """Run for the value, ready to be pulled back."""
        return self._evaluated(leaves, record=True)

    def _evaluated(self, leaves: Sequence[Any], record: bool) -> Parts:
        names = new_names()
        with calm_process:
            graph = self._graph([_tree.laid_out(leaf) for leaf in leaves], names)
            values = {key: key for key in self._chunks}
            if record:
                self._lin = linearize(
                    graph, self._chunks, self._inputs, names, self.policy, apart=self.scheduler.remote
                )
                graph, values = self._lin.graph, self._lin.values
            owners, total = self._landing([values[key] for key in self._chunks], graph, names)
            results: dict[Key, Any] = {}
            keys = list(dict.fromkeys([*([total] if total else []), *owners]))
            kept = self._lin.recorded() if self._lin else ()
            run = run_graph(self.scheduler, graph, keys, results.__setitem__, keep=kept, kept=self.sliced.kept())
        self._kept = dict(run.kept or {}) if record else {}
        parts = [_plain(results[key]) for key in owners]
        summed = _plain(results[total]).summed if total else None
        own = self._joined(parts)
        self.total = Parts(summed, own, [part.note for part in parts], self.places)
        return self.total

    def _graph(self, leaves: Sequence[Any], names: Any) -> dict[Key, GraphNode]:
        """Return the graph of all chunks, without sums."""
        function, theta_key = names("input", "function"), names("input", "theta")
        graph: dict[Key, GraphNode] = {function: DataNode(function, self.function)}
        theta: Any = self.inputs.groups(leaves, self.inputs.theta)
        self._chunks, self._inputs = [], {}
        if sum(self.inputs.theta):
            graph[theta_key], theta = DataNode(theta_key, theta), TaskRef(theta_key)
            self._inputs[theta_key] = [(leaf, None) for leaf in range(sum(self.inputs.theta))]
        for chunk in self.plan:
            key, args = names("value", chunk.number), [Place(chunk, names), self.sliced.rows(chunk), theta]
            if sum(self.inputs.sliced):
                rows_key, targets = names("input", ("rows", chunk.number)), self.inputs.targets(chunk.number)
                own = [owned(leaves[leaf], rows) for leaf, rows in targets]
                sizes = [len(group) for group in self.inputs.rows[chunk.number]]
                graph[rows_key] = DataNode(rows_key, self.inputs.groups(own, sizes))
                self._inputs[rows_key] = targets
                args.append(TaskRef(rows_key))
            graph[key] = Task(key, value_of_task, TaskRef(function), *args)
            self._chunks.append(key)
        return graph

    def _landing(self, values: list[Key], graph: dict[Key, GraphNode], names: Any) -> tuple[list[Key], Key | None]:
        """Return the keys of what each chunk owns and of the sum, after adding what computes them."""
        if not self.function.sums:
            return values, None
        if not self.function.owns:
            total, sums = self.summation.tree([TaskRef(key) for key in values], lambda *at: names("sum", at))
            graph.update(sums)
            return [], total.key
        terms, own = list[Key](), list[Key]()
        for number, key in enumerate(values):
            for role, part, found in (("summed", summed_part, terms), ("own", own_part, own)):
                name = names("part", (role, number))
                graph[name] = Task(name, part, TaskRef(key))
                found.append(name)
        total, sums = self.summation.tree([TaskRef(key) for key in terms], lambda *at: names("sum", at))
        graph.update(sums)
        return own, total.key

    def _joined(self, parts: Sequence[Parts]) -> list[Any]:
        """Put what the chunks own together, and remember where it belongs."""
        if not parts or not any(part.own for part in parts):
            self.places = [[] for _ in self._chunks]
            return []
        if self.places is None and self.function.copies:
            self.places = apart(self.function.copies, len(parts[0].own), len(parts))
        if self.places is None:
            columns = list(zip(*(part.own for part in parts), strict=True))
            ends = [np.cumsum([0, *(len(leaf) for leaf in column)]) for column in columns]
            self.places = [
                [(leaf, slice(int(at[n]), int(at[n + 1]))) for leaf, at in enumerate(ends)] for n in range(len(parts))
            ]
            return [joined(column) for column in columns]
        found: dict[int, list[Any]] = {}
        for part, targets in zip(parts, self.places, strict=True):
            for (leaf, rows), own in zip(targets, part.own, strict=True):
                found.setdefault(leaf, []).append(own if rows is not None else [own])
        return [_put_together(found[leaf]) for leaf in sorted(found)]

    def pulled(self, leaves: Sequence[Any], seeds: Seeds) -> list[Any]:
        """Return the cotangents of `leaves`; may be called again, with other seeds."""
        assert self._lin is not None
        names = new_names()
        arriving = {}
        for number, chunk in enumerate(self._chunks):
            mine = self._seeds_of(number, seeds)
            if mine is not None:
                arriving[chunk] = names("input", ("seed", number))
        graph: dict[Key, GraphNode] = {
            key: DataNode(key, self._seeds_of(key[1][1], seeds)) for key in arriving.values()
        }
        refs = {chunk: TaskRef(key) for chunk, key in arriving.items()}
        cotangents, reverse = transpose(self._lin.steps, refs, names, pulled, self.summation)
        sinks = {cotangents[at].key: targets for at, targets in self._inputs.items() if at in cotangents}
        landing = Landing(leaves, sinks, {})
        for at, targets in self._inputs.items():
            if at not in cotangents:  # no seed leads there
                landing.slots.write_all(targets, None)
        if sinks:
            with calm_process:
                run_graph(self.scheduler, graph | reverse, list(sinks), landing, kept=self._all_kept())
        return landing.slots.seal()

    def pulled_many(self, leaves: Sequence[Any], many: Sequence[Seeds]) -> list[list[Any]]:
        """Return for each of `leaves` its cotangents for many seeds, no chunk recorded twice for them."""
        assert self._lin is not None

        def arriving(some: range) -> dict[Key, list[Any]]:
            found = {}
            for number, chunk in enumerate(self._chunks):
                mine = [self._seeds_of(number, many[index]) for index in some]
                if any(seeds is not None for seeds in mine):
                    found[chunk] = mine
            return found

        sweep = Sweep(self._lin.steps, self._inputs, self.scheduler, self._all_kept(), self.summation)
        with calm_process:
            return sweep.run(leaves, len(many), arriving)

    def _all_kept(self) -> dict[Key, Any]:
        return {**self.sliced.kept(), **self._kept}

    def _seeds_of(self, number: int, seeds: Seeds) -> list[Any] | None:
        """Return the seeds of one chunk; None where all are zero."""
        n_summed = len(Parts(self.total.summed, []).floats())
        own: Any = iter(seeds[n_summed:])
        own = [next(own) if _tree.is_differentiable_or_traced(leaf) else None for leaf in self.total.own]
        mine = [_full(seed) for seed in seeds[:n_summed]]
        for leaf, rows in (self.places or [])[number] if own else ():
            if _tree.is_differentiable_or_traced(self.total.own[leaf]):
                mine.append(cut_rows(own[leaf], rows))
        return mine if any(seed is not None and np.any(seed) for seed in mine) else None


def _full(seed: Any) -> Any:
    return seed.full() if isinstance(seed, Blocks) else seed


def _plain(result: Any) -> Any:
    return result.value if type(result) is Linearization else result


def summed_part(parts: Any) -> Parts:
    """Return what of a chunk is summed."""
    return Parts(_plain(parts).summed, [])


def own_part(parts: Any) -> Parts:
    """Return what of a chunk is its own."""
    return Parts(None, _plain(parts).own, _plain(parts).note)


def _put_together(parts: list[Any]) -> Any:
    return parts[0][0] if isinstance(parts[0], list) else joined(parts)
