"""One derived chunk function on all chunks: its graph is run for what is summed and owned, and turned round for seeds.

The general sibling of `chunked`: any function of `derived`, cotangents of any shape, derivatives of any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dagad._executors.blocks import Blocks, Sweep, cut_rows
from dagad._executors.chunked import scaled
from dagad._executors.evaluation import Scheduler, calm_here, new_names, run_graph
from dagad._graphs.linearization import Linearization, is_scalar, unit_seed, value_of_task
from dagad._graphs.linearize import Linearized, linearize
from dagad._graphs.policies import Keep, Policy, Preaccumulate
from dagad._graphs.summation import PlainSum, Summation
from dagad._graphs.transpose import pulled, transpose
from dagad._operations.chunks import Place
from dagad._operations.derivatives import Pulled, Pushed, WithUnit
from dagad._operations.derived import DIFFERENT, Derived, Parts, Seeds, Summed, check_alike, joined
from dagad._operations.inputs import Inputs, Targets, apart, times
from dagad._pytrees import pytree
from dagad._pytrees.canonical import contiguous
from dagad._pytrees.partition import Partition
from dagad._sources.columns import Sliced, owned
from dagad._sources.plan import AnyPlan
from dagad._sources.slots import Landing
from dagad_scheduler.private import DataNode, GraphNode, Task, TaskRef

Key = Any


class Recorded(NamedTuple):
    """A linearized graph, the keys of its chunks and of their inputs, and its linearizations that wait to be pulled."""

    lin: Linearized
    chunks: list[Key]
    inputs: dict[Key, Targets]
    kept: dict[Key, Any]


@dataclass(slots=True)
class Mapped:
    """A derived function on all chunks, and what has been computed of it.

    ==========  ==========================================================================================
    `total`     what is summed, added up, and the leaves that are owned, put together; set once
    `places`    for each chunk, where the leaves it owns belong; found when they are put together
    `_recorded` what is needed to pull it; set at once, since several threads may pull
    `_unit`     the gradients for the seed 1, of a reduction to one real number; set once
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
    _recorded: Recorded | None = None
    _unit: list[Any] | None = None

    def pushed(self, count: int) -> Mapped:
        """Return the operation that gives value and tangents together, in so many directions."""
        places = None if self.places is None else times(self.places, 1 + count)
        return self._like(Pushed(self.function, count), self.inputs.times(1 + count), places)

    def moved(self, both: Parts, count: int) -> tuple[Parts, list[list[Any]]]:
        """Take what `pushed` gave apart: the value, and for each direction the tangents of its float leaves."""
        value, trees = both.summed if self.function.sums else (None, [None] * count)
        partition = Partition.of(value, pytree.is_differentiable_or_traced)
        moving = [partition.extract(tree) for tree in trees]
        each = len(both.own) // (1 + count)
        own_places = [[at for at in targets if at[0] < each] for targets in both.places]
        parts = Parts(value, both.own[:each], both.note, own_places)
        floats = [place for place, leaf in enumerate(parts.own) if pytree.is_differentiable_or_traced(leaf)]
        own = [[both.own[each * (1 + number) + place] for place in floats] for number in range(count)]
        return parts, [[*shared, *mine] for shared, mine in zip(moving, own, strict=True)]

    def with_unit(self) -> Mapped:
        """Return the operation that gives a reduction's value and its gradient for the seed 1."""
        function = WithUnit(self.function, owns=bool(sum(self.inputs.sliced)))
        return self._like(function, self.inputs, self.inputs.flat())

    def turned(self, value: Parts) -> Mapped:
        """Return the pullback, an operation on the leaves and on seeds for `value`."""
        floats = [place for place, leaf in enumerate(value.own) if pytree.is_differentiable_or_traced(leaf)]
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
        names, lin = new_names(), None
        with calm_here(self.scheduler):
            graph, chunks, inputs = self._graph([contiguous(leaf) for leaf in leaves], names)
            values = {key: key for key in chunks}
            if record:
                lin = linearize(graph, chunks, inputs, names, self.policy, apart=self.scheduler.remote)
                graph, values = lin.graph, lin.values
            owners, total = self._landing([values[key] for key in chunks], graph, names)
            results: dict[Key, Any] = {}
            keys = list(dict.fromkeys([*([total] if total else []), *owners]))
            kept = lin.recorded() if lin else ()
            run = run_graph(self.scheduler, graph, keys, results.__setitem__, keep=kept, kept=self.sliced.kept())
        parts = [_plain(results[key]) for key in owners]
        summed = _plain(results[total]).summed if total else None
        own = self._joined(parts)
        self.total = Parts(summed, own, [part.note for part in parts], self.places)
        self._recorded = Recorded(lin, chunks, inputs, dict(run.kept or {})) if lin else None
        return self.total

    def _graph(self, leaves: Sequence[Any], names: Any) -> tuple[dict[Key, GraphNode], list[Key], dict[Key, Targets]]:
        """Return the graph of all chunks, without sums, with the keys of the chunks and of their inputs."""
        function, theta_key = names("input", "function"), names("input", "theta")
        graph: dict[Key, GraphNode] = {function: DataNode(function, self.function)}
        theta: Any = self.inputs.groups(leaves, self.inputs.theta)
        chunks, inputs = list[Key](), dict[Key, Targets]()
        if sum(self.inputs.theta):
            graph[theta_key], theta = DataNode(theta_key, theta), TaskRef(theta_key)
            inputs[theta_key] = [(leaf, None) for leaf in range(sum(self.inputs.theta))]
        for chunk in self.plan:
            key, args = names("value", chunk.number), [Place(chunk, names), self.sliced.rows(chunk), theta]
            if sum(self.inputs.sliced):
                rows_key, targets = names("input", ("rows", chunk.number)), self.inputs.targets(chunk.number)
                own = [owned(leaves[leaf], rows) for leaf, rows in targets]
                sizes = [len(group) for group in self.inputs.rows[chunk.number]]
                graph[rows_key] = DataNode(rows_key, self.inputs.groups(own, sizes))
                inputs[rows_key] = targets
                args.append(TaskRef(rows_key))
            graph[key] = Task(key, value_of_task, TaskRef(function), *args)
            chunks.append(key)
        return graph, chunks, inputs

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
            self.places = [[] for _ in self.plan]
            return []
        if self.places is None and self.function.copies:
            self.places = apart(self.function.copies, len(parts[0].own), len(parts))
        if self.places is None:
            _check_alike(parts)
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
        recorded = self._recorded  # before looking whether it is needed: another thread may let go of it
        if not self._has_unit:
            return self._pulled(leaves, seeds, recorded or self._record(leaves))
        if self._unit is None:
            self._unit = self._pulled(leaves, [unit_seed(self.total.summed)], recorded or self._record(leaves))
            self._recorded = None
        return [scaled(part, seeds[0]) for part in self._unit]

    @property
    def _has_unit(self) -> bool:
        """Whether all is computed for the seed 1, and scaled: so the bits do not depend on the policy."""
        return type(self.function) is Summed and is_scalar(self.total.summed)

    def _record(self, leaves: Sequence[Any]) -> Recorded:
        """Record it now: a gradient for the seed 1 was hoped for, and there is none."""
        self.linearized(leaves)
        assert self._recorded is not None
        return self._recorded

    def _pulled(self, leaves: Sequence[Any], seeds: Seeds, recorded: Recorded) -> list[Any]:
        names, arriving, graph = new_names(), {}, dict[Key, GraphNode]()
        every = self.total.all_seeds(seeds)
        for number, chunk in enumerate(recorded.chunks):
            mine = self._seeds_of(number, every)
            if mine is not None:
                key = names("input", ("seed", number))
                graph[key], arriving[chunk] = DataNode(key, mine), TaskRef(key)
        cotangents, reverse = transpose(recorded.lin.steps, arriving, names, pulled, self.summation)
        sinks = {cotangents[at].key: targets for at, targets in recorded.inputs.items() if at in cotangents}
        landing = Landing(leaves, sinks, {})
        for at, targets in recorded.inputs.items():
            if at not in cotangents:  # no seed leads there
                landing.slots.write_all(targets, None)
        if sinks:
            with calm_here(self.scheduler):
                kept = {**self.sliced.kept(), **recorded.kept}
                run_graph(self.scheduler, graph | reverse, list(sinks), landing, kept=kept)
        return landing.slots.seal()

    def pulled_many(self, leaves: Sequence[Any], many: Sequence[Seeds]) -> list[list[Any]]:
        """Return for each of `leaves` its cotangents for many seeds, no chunk recorded twice for them."""
        if self._has_unit:
            nothing = [None] * len(leaves)
            rows = [nothing if seeds[0] is None else self.pulled(leaves, seeds) for seeds in many]
            return [list(column) for column in zip(*rows, strict=True)]
        recorded = self._recorded or self._record(leaves)

        def arriving(some: range) -> dict[Key, list[Any]]:
            found, every = {}, [self.total.all_seeds(many[index]) for index in some]
            for number, chunk in enumerate(recorded.chunks):
                mine = [self._seeds_of(number, seeds) for seeds in every]
                if any(seeds is not None for seeds in mine):
                    found[chunk] = mine
            return found

        kept = {**self.sliced.kept(), **recorded.kept}
        sweep = Sweep(recorded.lin.steps, recorded.inputs, self.scheduler, kept, self.summation)
        with calm_here(self.scheduler):
            return sweep.run(leaves, len(many), arriving)

    def _seeds_of(self, number: int, seeds: Seeds) -> list[Any] | None:
        """Return the seeds of one chunk, one per leaf, from those of all leaves; None where all are zero."""
        n_summed = len(seeds) - len(self.total.own)
        own = (self.places or [])[number] if self.total.own else ()
        mine = [*map(_full, seeds[:n_summed]), *(cut_rows(seeds[n_summed + leaf], rows) for leaf, rows in own)]
        return mine if any(seed is not None and np.any(seed) for seed in mine) else None


def _check_alike(parts: Sequence[Parts]) -> None:
    """Refuse outputs of items that differ between chunks."""
    for part in parts[1:]:
        pytree.check_same_structure(parts[0].note.treedef, part.note.treedef, DIFFERENT)
        for first, leaf in zip(parts[0].own, part.own, strict=True):
            check_alike(np.shape(first)[1:], np.shape(leaf)[1:])


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
