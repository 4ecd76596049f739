"""Shards in calls of residents: how workers find rows being differentiated, and what calls leave there of them.

Cotangents of Shards stay with the workers that computed them, and no task is made for that. Such rows are a cache: all
that was sent is held here, so that a task can compute them again, by the same code and so to the same bits, when their
worker is gone, or has let go of them. Whoever wants them as results of tasks gets them by that same task, which looks
first for what was left. The rows that they were computed from are held too: that is what a lineage needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._executors.resident_program import THERE, SentCall
from dagad._kernels.job import Job, Seeds
from dagad._sources.base import Key, staying
from dagad._sources.lineage import Expression, Inputs
from dagad._sources.plan import AnyPlan
from dagad._sources.slots import cut_rows
from dagad._values import pytree
from dagad._values.buffers import pack_tree
from dagad_scheduler.private import TaskRef
from dagad_scheduler.residents.client import Lease


class ResidentRows:
    """All Shards of a call, of which its message speaks in expressions: they are the `Inputs` of these.

    Attributes
    ----------
    keyed
        Those that are results of tasks; first the constant rows, which are found by their indices.
    taken
        What is taken of the rows that earlier calls have left: these calls, and indices.
    sample
        Which chunks of the whole the call is about, where all are samples of the same chunks; else None.
    holders, plan
        What those that are results of tasks are, or are samples of, and how that is cut.
    """

    def __init__(self, job: Job, seeds: Sequence[Seeds]) -> None:
        for one in job.sliced.shards:
            one.submit(wait=True)  # what is read as rows is read again and again
        self.keyed: list[Any] = list(job.sliced.constant_shards)
        self.taken: list[tuple[ResidentCall, int]] = []
        self._n_constant = len(self.keyed)
        stays = job.sharded
        self.has_stays = bool(stays)  # see `Job`
        self._leaves = [one.expression(self) for one in stays]
        self._seeds = [[None if seed is None else seed.expression(self) for seed in one.sharded] for one in seeds]
        drawn = {None if one.drawn is None else one.drawn.numbers for one in self.keyed}
        self.sample: Sequence[int] | None = drawn.pop() if len(drawn) == 1 and job.runs is None else None
        self.holders = self.keyed if self.sample is None else [one.drawn.whole for one in self.keyed]
        self.plan: AnyPlan = job.plan if self.sample is None else self.holders[0].plan

    def rows(self, shards: object) -> Expression:
        """Return the expression of Shards that are results of tasks."""
        if shards not in self.keyed:
            self.keyed.append(shards)
        return ["rows", self.keyed.index(shards)]

    def left(self, call: ResidentCall, index: int) -> Expression:
        """Return the expression of what a call has left at one of its indices."""
        if (call, index) not in self.taken:
            self.taken.append((call, index))
        return ["taken", self.taken.index((call, index))]

    def keys(self, job: Job) -> list[tuple[Key, ...]]:
        """Return for each chunk of the whole the keys of the rows that are results of tasks."""
        if self.sample is not None:
            return list(zip(*[one.keys for one in self.holders], strict=True))
        more = self.keyed[self._n_constant :]
        return [(*own, *(one.keys[number] for one in more)) for number, own in enumerate(job.sliced.keys())]

    def message(self, job: Job) -> dict[str, Any]:
        """Return what all workers are told of it."""
        message: dict[str, Any] = {}
        if self.taken:
            message["taken"] = [(call.lease.number, index) for call, index in self.taken]
        if self.sample is not None:
            message["sample"] = list(self.sample)
        if self._leaves:
            message["sharded"] = self._leaves
        if any(self._seeds):
            message["seeds"] = self._seeds
        if self._leaves and _is_all_sharded(job):
            message["groups"] = list(job.inputs.sliced)
        return message


def _is_all_sharded(job: Job) -> bool:
    """Return whether all sliced leaves are Shards, so that nothing else comes by chunk."""
    return len(job.sharded) == len(job.leaves) - job.n_shared


def n_staying(job: Job) -> int:
    """Return how many of the stacked leaves of a chunk stay in Shards; as many in each."""
    return len(staying(job.stacked_at[0])) if job.stacked_at else 0


def own_messages(
    job: Job, seeds: Sequence[Seeds], rows: dict[int, Any] | None, left_by: ResidentCall | None
) -> Callable[[Sequence[int]], dict[str, Any]]:
    """Return what tells by its chunks what a worker is sent alone; what rows that are left are made of is noted."""
    if left_by is not None:
        return lambda chunks: left_by.sent(chunks, _own_message(job, chunks, seeds, rows, True))
    if rows is None and not seeds and not job.has_sliced:  # nearly always
        return _nothing
    return lambda chunks: _own_message(job, chunks, seeds, rows, False)


def _nothing(chunks: Sequence[int]) -> dict[str, Any]:
    del chunks
    return {}


def _own_message(
    job: Job, chunks: Sequence[int], seeds: Sequence[Seeds], rows: dict[int, Any] | None, lasting: bool
) -> dict[str, Any]:
    """Return what belongs to some chunks alone, without what their worker has in Shards.

    With `lasting` it is a copy, which does not change with the user's arrays.
    """
    found: dict[str, Any] = {}
    by_chunk = job.has_sliced and not _is_all_sharded(job)
    sliced = {number: _sliced_leaves(job, number) for number in chunks} if by_chunk else None
    stacked = None
    if job.kernel.stacks and seeds:
        stacked = {number: [_without_refs(one.stacked(number)) for one in seeds] for number in chunks}
    if sliced is not None or stacked is not None:
        found["own"] = list(pack_tree((sliced, stacked)))
    if rows is not None:
        payloads = [(number, rows[number].parcel().payload) for number in chunks]
        # Arrays, which travel in messages as they do with tasks.
        found["rows"] = [
            [number, [np.frombuffer(bytes(part) if lasting else part, np.uint8) for part in payload]]
            for number, payload in payloads
        ]
    return found


def _sliced_leaves(job: Job, number: int) -> Any:
    """Return the sliced leaves of a chunk in groups, without what is there."""
    pairs = [(job.leaves[leaf], rows) for leaf, rows in job.inputs.targets(number)]
    parts = [THERE if pytree.is_sharded(leaf) else cut_rows(leaf, rows) for leaf, rows in pairs]
    return job.inputs.groups(parts, [len(group) for group in job.inputs.rows[number]])


def _without_refs(seeds: Sequence[Any]) -> list[Any]:
    return [None if isinstance(seed, TaskRef) else seed for seed in seeds]


class ResidentCall:
    """A call that has left rows, by chunk and index, with all that it was sent; see `lineage.PastCall`."""

    def __init__(self, lease: Lease, program: Sequence[Any], message: dict[str, Any], sharded: ResidentRows) -> None:
        self.lease, self._program, self._message, self._sharded = lease, program, message, sharded
        self._own: dict[int, dict[str, Any]] = {}
        self.homes: dict[int, str] = {}
        self.n_pending: int = 1 + sum(call.n_pending for call, _ in sharded.taken)

    def left_at(self, chunks: dict[str, list[int]]) -> None:
        """Note which worker had which chunks."""
        self.homes = {number: address for address, some in chunks.items() for number in some}

    def sent(self, chunks: Sequence[int], own: dict[str, Any]) -> dict[str, Any]:
        """Note what the worker of some chunks is sent alone."""
        self._own.update(dict.fromkeys(chunks, own))
        return own

    def expressions(self, inputs: Inputs) -> list[Expression]:
        """Return the expressions of the rows that it was about."""
        keyed = [inputs.rows(one) for one in self._sharded.keyed]
        return [*keyed, *(inputs.left(call, index) for call, index in self._sharded.taken)]

    def recomputation(self, inputs: list[Expression]) -> SentCall:
        """Return what finds the rows that it has left, or computes them again."""
        return SentCall(self.lease.number, [bytes(part) for part in self._program], self._message, inputs)

    def own(self, number: int) -> dict[str, Any]:
        """Return what was sent for a chunk, and others of the same worker, alone."""
        return self._own[number]


class LeftRows:
    """The lineage of rows that a call has left at one index of each chunk; see `lineage.Lineage`."""

    def __init__(self, call: ResidentCall, index: int) -> None:
        self._call, self._index, self.n_pending = call, index, call.n_pending

    def expression(self, inputs: Inputs) -> Expression:
        """Return the expression of the rows; `inputs` numbers what it speaks of."""
        return inputs.left(self._call, self._index)

    def home(self, number: int) -> str:
        """Return on which worker those of a chunk were left."""
        return self._call.homes[number]
