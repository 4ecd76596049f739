"""What the tasks of a job's graph do: they run batches, take what they give apart, and add it up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from dagad._errors import NonFiniteError
from dagad._executors.evaluation import say_where
from dagad._graphs.linearization import Linearization, has_derivative
from dagad._graphs.monoids import Monoid
from dagad._graphs.policies import Policy
from dagad._graphs.sum_trees import combined
from dagad._operations.batch import Batch, Batched, BatchSeeds
from dagad._operations.kernel import BY_THREAD, n_compiled
from dagad._operations.replay import attempt
from dagad._pytrees.shipping import opened


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


def plain_result(result: Any) -> Any:
    return result.value if type(result) is Linearization else result


class _Stayed:
    """Stands in a list for what stays where it is."""

    def __reduce__(self) -> str:
        return "STAYED"


STAYED = _Stayed()


def plain_value(value: Any) -> Any:
    """Return a value as it is, under a key of its own."""
    return value


def landing_part(result: Any, stays: Sequence[tuple[int, int]]) -> Any:
    """Return the lists of some chunks without what stays; None if there are none."""
    found = _lists(result)
    if found is None:
        return None
    lists = [list(own) for own in found]
    for chunk, place in stays:
        lists[chunk][place] = STAYED
    return result._replace(stacked=lists) if isinstance(result, Batched) else lists


def staying_part(result: Any, chunk: int, place: int) -> Any:
    """Return what of one chunk stays."""
    found = _lists(result)
    return None if found is None else found[chunk][place]


def _lists(result: Any) -> Any:
    if type(result) is Linearization:  # of what has no gradient for the seed 1
        return None
    if type(result) is Unit:
        return result.sliced
    return result.stacked if isinstance(result, Batched) else result


def reduced_part(batched: Any) -> Any:
    """Return what of a batch is reduced."""
    return plain_result(batched).reduced


def stacked_part(batched: Any) -> Any:
    """Return what of a batch is stacked."""
    return plain_result(batched)._replace(reduced=None)


class Unit(NamedTuple):
    """What batches gave: the value, and for the seed 1 their cotangents, of which some are missing if not complete."""

    value: Any
    shared: Any
    sliced: Any
    seconds: float
    is_complete: bool = True
    has_numbers: bool = True  # whether any of the cotangents depend on the seed
    n_compiled: int = 0  # for these batches


class Together:
    """A policy that has a task return its `Unit`; a linearization where the value is not one real number."""

    def __init__(self, policy: Policy) -> None:
        self._counters = policy.counters

    def linearize(self, task: Any, args: tuple[Any, ...]) -> Any:
        began, kernel = time.perf_counter(), opened(task).kernel
        before = n_compiled(kernel, BY_THREAD)
        made = Linearization.preaccumulated(task, args, self._counters)
        if made.local_gradient is None:
            return made
        shared, sliced, found = any(args[2]), len(args) > 3, made.local_gradient
        seconds = time.perf_counter() - began
        numbers = has_derivative(made.value)
        compiled = n_compiled(kernel, BY_THREAD) - before
        parts = found[0] if shared else None, found[-1] if sliced else None
        return Unit(made.value, *parts, seconds, True, numbers, compiled)


def unit_of(result: Any) -> Unit:
    return result if type(result) is Unit else Unit(plain_result(result), None, None, 0.0, False, False)


def add_up_units(monoid: Monoid, last: bool, *results: Any) -> Unit:
    """Add values and cotangents in their fixed order."""
    units = list(map(unit_of, results))
    is_complete = all(unit.is_complete for unit in units)
    value = combined(monoid, last, *(unit.value for unit in units))
    shared = combined(monoid, last, *(unit.shared for unit in units)) if is_complete else None
    has_numbers = any(unit.has_numbers for unit in units)
    seconds, compiled = sum(unit.seconds for unit in units), sum(unit.n_compiled for unit in units)
    return Unit(value, shared, None, seconds, is_complete, has_numbers, compiled)


def summed_part(result: Any) -> Unit:
    """Return what is added up: neither the cotangents of rows, nor a linearization, whose recipe has rows."""
    return unit_of(result)._replace(sliced=None)


def residual_part(result: Any) -> Any:
    """Return the linearization of a batch that needs seeds; None where the seed 1 was enough."""
    return result if type(result) is Linearization else None


def finite_or_error(batch: Batch, method: str, contexts: Any, shared: Any, reduced: Any, parts: Any) -> Any:
    """Return why what some chunks give is refused, if it is not finite; None if it is."""
    try:
        attempt(batch, method, contexts, shared, reduced, *parts)
    except NonFiniteError as error:
        say_where(error)
        return error
    return None
