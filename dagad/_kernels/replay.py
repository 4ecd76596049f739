"""A chunk that failed, with all that it takes to run it alone again: the note on an exception brings it along."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dagad._kernels.batch import Batch, BatchSeeds
from dagad._kernels.chunks import ChunkContext
from dagad._kernels.job import Job, Seeds, nested
from dagad._kernels.kernel import Groups
from dagad._sources.plan import Chunk
from dagad._values.shipping import opened
from dagad_scheduler.private import Task
from dagad_scheduler.roles import Names

REMEDY = "\nTo run it alone, here: `dagad.replay(error)`."
_LOCATION = re.compile(r"dagad: \w+ of chunk (\d+) \(rows (\d+):(\d+)\)")


class Replay(NamedTuple):
    """A chunk that failed: ``act(*parts)`` runs it. What of `parts` lives elsewhere are references, to what is `kept`.

    It holds on to the rows of this chunk, to what all chunks share, and on a cluster to what `kept` refers to.
    """

    chunk: Chunk
    act: Callable[..., Any]
    parts: list[Any]
    scheduler: Any = None  # where that is kept
    kept: Mapping[Any, Any] = {}

    def __str__(self) -> str:
        return f"chunk {self.chunk.number} (rows {self.chunk.start}:{self.chunk.stop})"


class ReplayNote(str):
    """A note on an exception that brings a chunk along. What travels or is copied of it are its words."""

    replay: Replay

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


def bring_along(error: BaseException, made: Callable[[Chunk], Replay]) -> None:
    """Have the note that names the chunk bring along what `made` returns for it.

    A chunk inside of a chunk has a note as well: the outermost chunk is the one whose inputs are known everywhere.
    """
    notes = getattr(error, "__notes__", None) or []
    for index, note in enumerate(notes):
        if isinstance(note, str) and note.endswith(REMEDY):
            notes[index] = note.removesuffix(REMEDY)
    found = [(index, match) for index, note in enumerate(notes) if (match := _LOCATION.match(str(note)))]
    if not found:
        return
    index, match = found[-1]
    with contextlib.suppress(Exception):  # a cluster may be gone; whatever it is, the user's own error is to arrive
        replay = made(Chunk(*map(int, match.groups())))
        notes[index] = ReplayNote(notes[index] + REMEDY)
        notes[index].replay = replay


def of_job(job: Job, method: str, seeds: Sequence[Seeds], chunk: Chunk) -> Replay:
    """Return what runs a chunk of a job by the method of an executor, or pulls seeds."""
    # A run of chunks that are combined is one of the job's: it is known by its rows.
    chunk = next(one for one in job.plan if one.start <= chunk.start and chunk.stop <= one.stop)
    contexts, parts = parts_of(job, seeds, [chunk], Names("replay"))
    act = functools.partial(attempt, job.batch, method, contexts, job.shared(), [one.reduced for one in seeds])
    needed = Task(None, list, nested(parts)).dependencies
    if not needed:
        return Replay(chunk, act, parts)
    kept, holders = job.kept(), [*job.sliced.shards, *job.sharded]
    for shards in (shards for one in seeds for shards in one.sharded if shards is not None):
        kept |= shards.kept
    return Replay(chunk, act, parts, holders[0].scheduler, {key: kept[key] for key in needed})


def parts_of(job: Job, seeds: Sequence[Seeds], chunks: Sequence[Chunk], names: Names) -> tuple[Any, list[Any]]:
    """Return the contexts of some chunks, and the rest that is theirs: rows, leaves, and seeds one after the other."""
    contexts, rows, _, *own = job.arguments(chunks, names)
    owns = job.kernel.stacks
    stacked = [[one.stacked(chunk.number) for chunk in chunks] if owns else None for one in seeds]
    return contexts, [rows, own[0] if own else None, stacked]


def attempt(
    batch: Batch,
    method: str,
    contexts: Sequence[ChunkContext],
    shared: Groups,
    reduced: Sequence[Sequence[Any]],
    rows: Sequence[Any],
    sliced: Sequence[Groups] | None,
    stacked: Sequence[Any],
) -> Any:
    """Run some chunks as an executor's method does, or pull their seeds: what they give, or their cotangents."""
    batch = opened(batch)
    args = contexts, rows, shared, *([] if sliced is None else [sliced])
    if method == "call":
        value = batch.value(*args)
    else:
        value, pull, _ = batch.record(*args)
        if method == "pull" and pull is not None:
            return pull([BatchSeeds(some, own) for some, own in zip(reduced, stacked, strict=True)])
    if batch.kernel.pulls_itself:  # the gradient beside the value is not what the function gave
        return batch.monoid.lower(value.reduced if batch.kernel.stacks else value)[0]
    if not batch.kernel.stacks:
        return batch.monoid.lower(value)
    return value.stacked[0] if value.reduced is None else (batch.monoid.lower(value.reduced), value.stacked[0])
