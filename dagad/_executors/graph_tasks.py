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
from dagad._kernels.batch import Batch, Batched, BatchSeeds
from dagad._kernels.chunks import ChunkContext
from dagad._kernels.job import STAYED
from dagad._kernels.kernel import BY_THREAD, Groups, n_compiled
from dagad._kernels.replay import attempt
from dagad._types import Value
from dagad._values.shipping import Portable, opened


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


def plain_result(result: Value) -> Any:
    return result.value if type(result) is Linearization else result


def plain_value(value: Value) -> Any:
    """Return a value as it is, under a key of its own."""
    return value


def landing_part(result: Value, stays: Sequence[tuple[int, int]]) -> Any:
    """Return the lists of some chunks without what stays; None if there are none."""
    whole = unmeasured(plain_result(result))
    found = _lists(whole)
    if found is None:
        return None
    lists = [list(own) for own in found]
    for chunk, place in stays:
        lists[chunk][place] = STAYED
    return _like(result, whole._replace(stacked=lists) if isinstance(whole, Batched) else lists)


def staying_part(result: Value, chunk: int, place: int) -> Any:
    """Return what of one chunk stays."""
    found = _lists(unmeasured(plain_result(result)))
    return None if found is None else found[chunk][place]


def _lists(result: Value) -> Any:
    return result.stacked if isinstance(result, Batched) else result


def reduced_part(result: Value) -> Any:
    """Return what of a batch is reduced."""
    plain = plain_result(result)
    return _like(plain, unmeasured(plain).reduced)


def stacked_part(result: Value) -> Any:
    """Return what of a batch is stacked."""
    return unmeasured(plain_result(result))._replace(reduced=None)


def residual_part(linearization: Linearization) -> Any:
    """Return what is left of a batch for pullbacks; None if nothing is."""
    return linearization.left()


class Measured(NamedTuple):
    """What batches gave, how many seconds that took, and how often it took something to be compiled."""

    value: Any
    seconds: float
    n_compiled: int


class Measure:
    """What all results of a graph took."""

    def __init__(self) -> None:
        self.seconds, self.n_compiled = 0.0, 0

    def taken(self, result: Value) -> Any:
        """Return what a result is of, after adding what that took."""
        plain = plain_result(result)
        if type(plain) is not Measured:
            return plain
        self.seconds, self.n_compiled = self.seconds + plain.seconds, self.n_compiled + plain.n_compiled
        return plain.value


def unmeasured(result: Value) -> Any:
    return result.value if type(result) is Measured else result


def _like(result: Value, value: Value) -> Any:
    """Return a value, measured if a result is."""
    return result._replace(value=value) if type(result) is Measured else value


class MeasuredBatch(Recordable, Portable):
    """A batch in another process: its values are `Measured`."""

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
        return term._replace(value=self.monoid.lift(term.value))

    def add(self, a: Measured, b: Measured, ours: bool) -> Measured:
        value = self.monoid.add(a.value, b.value, ours)
        return Measured(value, a.seconds + b.seconds, a.n_compiled + b.n_compiled)

    def lower(self, total: Measured) -> Measured:
        return total._replace(value=self.monoid.lower(total.value))


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
