"""What the tasks of a job's graph do: they run batches, take what they give apart, and add it up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dagad._errors import NonFiniteError
from dagad._executors.evaluation import say_where
from dagad._graphs.linearization import Counters, Linearization, Recordable
from dagad._graphs.monoids import Monoid
from dagad._kernels.batch import Batch, BatchSeeds
from dagad._kernels.chunks import ChunkContext
from dagad._kernels.job import STAYED
from dagad._kernels.kernel import BY_THREAD, Groups, n_compiled
from dagad._kernels.replay import attempt
from dagad._types import Value
from dagad._values.shipping import Portable, opened

Lists = list[list[Any]]  # of each chunk of a batch, what belongs to its own leaves


def seeds_of_batch(reduced: Sequence[Any], stacked: Sequence[Any]) -> list[BatchSeeds]:
    """Return the seeds of a batch, from those that all have and those of its own."""
    return [BatchSeeds(some, own) for some, own in zip(reduced, stacked, strict=True)]


def pull_batch(linearization: Linearization | None, seeds: Sequence[BatchSeeds]) -> Any:
    """Return the cotangents of a batch's inputs; those of a single input come bare."""
    return None if linearization is None else _bare(linearization.pull(seeds))


def pull_batch_again(linearization: Linearization | None, seeds: Sequence[BatchSeeds]) -> Any:
    """Return the same; the tape stays for more seeds."""
    return None if linearization is None else _bare(linearization.pull_again(seeds, len(seeds)))


def _bare(cotangents: tuple[Any, ...]) -> Any:
    return cotangents[0] if len(cotangents) == 1 else cotangents


def plain_value(value: Value) -> Any:
    """Return a value as it is, under a key of its own."""
    return value


def landing_part(found: Lists | None, stays: Sequence[tuple[int, int]]) -> Lists | None:
    """Return the lists of some chunks without what stays; None if there are none."""
    if found is None:
        return None
    lists = [list(own) for own in found]
    for chunk, index in stays:
        lists[chunk][index] = STAYED
    return lists


def staying_part(found: Lists | None, chunk: int, index: int) -> Any:
    """Return what of one chunk stays."""
    return None if found is None else found[chunk][index]


def landing_stacked(result: Measured, stays: Sequence[tuple[int, int]]) -> Measured:
    """Return what batches gave without what of the stacked leaves stays."""
    return result.of(result.value._replace(stacked=landing_part(result.value.stacked, stays)))


def staying_stacked(result: Measured, chunk: int, index: int) -> Any:
    """Return what stays of the stacked leaves of one chunk."""
    return result.value.stacked[chunk][index]


def reduced_part(result: Measured) -> Measured:
    """Return what of a batch is reduced."""
    return result.of(result.value.reduced)


def stacked_part(result: Measured) -> Measured:
    """Return what of a batch is stacked; what that took is told with what is reduced."""
    return Measured(result.value._replace(reduced=None), 0.0, 0)


def residual_part(linearization: Linearization) -> Any:
    """Return what is left of a batch for pullbacks; None if nothing is."""
    return linearization.left()


class Measured(NamedTuple):
    """What batches gave, how many seconds that took, and how often it took something to be compiled."""

    value: Any
    seconds: float
    n_compiled: int

    def of(self, value: Value) -> Measured:
        """Return a part of the value, which took all of that."""
        return self._replace(value=value)


class MeasuredBatch(Recordable, Portable):
    """A batch that notes what its chunks take: its values are `Measured`."""

    __slots__ = ("batch",)
    pulls_by_run = True

    def __init__(self, batch: Batch) -> None:
        self.batch: Batch = opened(batch)

    def state(self) -> tuple[Any, ...]:
        return (self.batch,)

    def value(self, *args: Any) -> Measured:
        """Run the chunks for what they give."""
        begun = self._begun()
        return self._measured(self.batch.value(*args), begun)

    def rehearse(self, *args: Any) -> Measured:
        """Do so traced, each tape dying before the next is recorded."""
        begun = self._begun()
        return self._measured(self.batch.rehearse(*args), begun)

    def record(self, *args: Any) -> Any:
        """Record every chunk; see `Recordable`."""
        begun = self._begun()
        value, pull, nbytes = self.batch.record(*args)
        return self._measured(value, begun), pull, nbytes

    def _begun(self) -> tuple[float, int]:
        return time.perf_counter(), n_compiled(self.batch.kernel, BY_THREAD)

    def _measured(self, value: Value, begun: tuple[float, int]) -> Measured:
        seconds, compiled = (now - before for now, before in zip(self._begun(), begun, strict=True))
        return Measured(value, seconds, int(compiled))

    def pull_anew(self, counters: Counters, value: Measured, *args: Any) -> tuple[Any, ...]:
        """Record and pull chunk after chunk."""
        return self.batch.pull_anew(counters, value.value, *args)

    def n_runs(self, *args: Any) -> int:
        """Return how many runs of the kernel one run is."""
        return self.batch.n_runs(*args)

    def n_pulls(self, *args: Any) -> int:
        """Return how many pullbacks of the kernel one pullback is."""
        return self.batch.n_pulls(*args)


@dataclass(frozen=True, slots=True)
class MeasuredSum:
    """The sums of a monoid, and of what their terms took."""

    monoid: Monoid

    def lift(self, term: Measured) -> Measured:
        return term.of(self.monoid.lift(term.value))

    def add(self, a: Measured, b: Measured, ours: bool) -> Measured:
        value = self.monoid.add(a.value, b.value, ours)
        return Measured(value, a.seconds + b.seconds, a.n_compiled + b.n_compiled)

    def lower(self, total: Measured) -> Measured:
        return total.of(self.monoid.lower(total.value))


def finite_or_error(
    batch: Batch, method: str, contexts: Sequence[ChunkContext], shared: Groups, reduced: Value, parts: Sequence[Any]
) -> Any:
    """Return why what some chunks give is refused, if it is not finite; None if it is."""
    try:
        attempt(batch, method, contexts, shared, reduced, *parts)
    except NonFiniteError as error:
        say_where(error)
        return error
    return None
