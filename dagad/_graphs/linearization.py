"""Value + lazy pullback of one task. A linearization is a cache: lost, moved or spilled, it is made again.

What travels is the value and the recipe (the task and its arguments), never the tape.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from dagad._errors import PortabilityError
from dagad._graphs.counters import Counters as Counters
from dagad._pytrees import pytree
from dagad._pytrees.memory import value_to_run_again
from dagad._pytrees.pytree import nbytes_of
from dagad._pytrees.shipping import opened, pack

# Cotangent of the value -> one cotangent per argument being differentiated.
Pullback = Callable[[Any], tuple[Any, ...]]


class Recordable(Protocol):
    """A task that can be run for its value alone, or for its value and its pullback."""

    def value(self, *args: Any) -> Any:
        """Run the task, tracing nothing."""

    def record(self, *args: Any) -> tuple[Any, Pullback, Callable[[], int]]:
        """Run the task: its value, its pullback, and the bytes that the pullback holds on to."""

    def preaccumulate(self, counters: Counters, *args: Any) -> Preaccumulated:
        """Run the task and pull the seed 1 at once; count what was run in `counters`."""


# Value; for the seed 1 the cotangents, or None if the value is not one real number; then the pullback and its bytes.
Preaccumulated = tuple[Any, Sequence[Any] | None, Pullback, Callable[[], int]]


_TAKEN = type(...)  # stands where a cotangent for the seed 1 was; None is one as well


class Linearization:
    """The value of one task, and its pullback on demand.

    =============  ================================================================================
    `value`        the task's value; never changes
    `_recipe`      (task, arguments), or a Parcel of them after a journey; never changes
    `_pull`        the recorded pullback; dropped when it has been pulled
    `_gradient`    the cotangents for the seed 1, where they were computed with the value; dropped likewise
    `_lock`        held while `_pull` and `_gradient` are taken, not while anything is computed
    =============  ================================================================================
    """

    __slots__ = ("_counters", "_gradient", "_lock", "_nbytes", "_pull", "_recipe", "value")

    def __init__(self, value: Any, recipe: Any, counters: Counters | None = None) -> None:
        self.value, self._recipe, self._counters = value, recipe, counters or Counters()
        self._pull: Pullback | None = None
        self._gradient: list[Any] | None = None
        self._nbytes: Callable[[], int] = int
        self._lock = threading.Lock()

    @classmethod
    def unrecorded(cls, task: Recordable, args: tuple[Any, ...], counters: Counters | None = None) -> Linearization:
        """Run a task for its value; pulling will run it again."""
        made = cls(value_to_run_again(opened(task), args), (task, args), counters)
        made._counters.ran()
        return made

    @classmethod
    def recorded(cls, task: Recordable, args: tuple[Any, ...], counters: Counters | None = None) -> Linearization:
        """Run a task and keep its tape until it is pulled."""
        value, pull, nbytes = opened(task).record(*args)
        made = cls(value, (task, args), counters)
        made._pull, made._nbytes = pull, nbytes
        made._counters.recorded()
        return made

    @classmethod
    def preaccumulated(cls, task: Any, args: tuple[Any, ...], counters: Counters) -> Linearization:
        """Run a task and pull the seed 1 at once; one without a scalar value is recorded instead."""
        value, gradient, pull, nbytes = opened(task).preaccumulate(counters, *args)
        made = cls(value, (task, args), counters)
        made._gradient = None if gradient is None else list(gradient)
        if gradient is None:
            made._pull, made._nbytes = pull, nbytes
        return made

    def pull(self, cotangent: Any) -> tuple[Any, ...]:
        """Return the cotangents of the arguments being differentiated; the tape is dropped."""
        with self._lock:
            # `_nbytes` too: it looks at the tape, so it would keep it alive.
            pull, self._pull, self._nbytes = self._pull, None, int
        if pull is None:
            task, args = opened(self._recipe)
            pull = opened(task).record(*args)[1]
            self._counters.recorded()
        try:
            result = pull(cotangent)
        except BaseException:
            self._counters.dropped()
            raise
        self._counters.used_up()
        return result

    def pull_scaled(self, cotangent: Any) -> tuple[Any, ...]:
        """Return the same as `pull`; of a real number those for the seed 1, times the cotangent.

        So the bits are the same whether a policy computed them with the value or does so now.
        """
        if cotangent is None or pytree.is_traced(cotangent) or not is_scalar(self.value):
            return self.pull(cotangent)
        with self._lock:
            held, self._gradient = self._gradient, None
        whole = held is not None and _TAKEN not in map(type, held)
        unit = tuple(held or ()) if whole else self.pull(unit_seed(self.value))
        factor = np.asarray(cotangent)[()]
        return unit if factor == 1 else tuple(_scaled(part, factor) for part in unit)

    def pull_many(self, cotangents: Sequence[Any]) -> list[tuple[Any, ...] | None]:
        """Return the same as `pull` for several cotangents, some of them None; the tape stays for more of them."""
        with self._lock:
            if self._pull is None:
                task, args = opened(self._recipe)
                _, self._pull, self._nbytes = opened(task).record(*args)
                self._counters.recorded()
            pull = self._pull
        results = [None if cotangent is None else pull(cotangent) for cotangent in cotangents]
        self._counters.pulled(sum(result is not None for result in results))
        return results

    def gradient(self, place: int) -> Any:
        """Return the cotangent of one argument for the seed 1; None for a value that needs a seed of its own."""
        if not is_scalar(self.value):
            return None
        with self._lock:
            if self._gradient is not None and type(self._gradient[place]) is not _TAKEN:
                part, self._gradient[place] = self._gradient[place], ...
                return part
        return self.pull(unit_seed(self.value))[place]

    def __reduce__(self) -> tuple[Any, ...]:
        try:  # raising here would hang a cluster: what can't travel says so when it is pulled
            recipe = self._recipe if hasattr(self._recipe, "payload") else pack(self._recipe)
        except Exception as error:
            recipe = _Lost(str(error))
        return _arrived, (self.value, recipe, self._counters, self._gradient)

    def __sizeof__(self) -> int:
        held = 0 if self._pull is None else self._measured()
        return 200 + held + nbytes_of(self.value) + nbytes_of(self._gradient)

    def _measured(self) -> int:
        """Return the tape's size, found once: walking it costs a third of recording it, and Dask asks twice."""
        nbytes = self._nbytes()
        with self._lock:
            if self._pull is not None:
                self._nbytes = _Known(nbytes)
        return nbytes

    def __del__(self) -> None:
        if getattr(self, "_pull", None) is not None:
            self._counters.dropped()


def value_of_task(task: Any, *args: Any) -> Any:
    """Run a task for its value: a node of a primal graph. `linearize` knows how to replace it."""
    return opened(task).value(*args)


def value_and_pullback(policy: Any, task: Any, *args: Any) -> Linearization:
    """Run a task as its policy says: a node of a linearized graph."""
    result: Linearization = policy.linearize(task, args)
    return result


def value_part(linearization: Linearization) -> Any:
    """Return the value alone, so that nothing else needs to travel."""
    return linearization.value


def pull_back(linearization: Linearization, cotangent: Any) -> Any:
    """Return the cotangents of a task's arguments; a single one comes bare."""
    cotangents = linearization.pull_scaled(cotangent)
    return cotangents[0] if len(cotangents) == 1 else cotangents


def _scaled(cotangents: Any, factor: Any) -> Any:
    """Return a pytree of cotangents times a number, each leaf in its own dtype."""
    leaves, treedef = pytree.flatten(cotangents)
    return pytree.unflatten(treedef, [leaf * pytree.dtype_of(leaf).type(factor) for leaf in leaves])


def pull_back_many(linearization: Linearization, cotangents: Sequence[Any]) -> Any:
    """Return the cotangents of a task's arguments for each of several seeds, one after the other, by argument."""
    results = linearization.pull_many(cotangents)
    some = next(result for result in results if result is not None)
    groups = [
        [part for result in results for part in (result[number] if result else [None] * len(group))]
        for number, group in enumerate(some)
    ]
    return groups[0] if len(groups) == 1 else groups


def unit_part(linearization: Linearization, place: int) -> Any:
    """Return the cotangent of one argument for the seed 1."""
    return linearization.gradient(place)


def cotangent_part(cotangents: Any, index: int) -> Any:
    """Return the cotangent of one of several arguments."""
    return None if cotangents is None else cotangents[index]


def _arrived(value: Any, recipe: Any, counters: Counters, gradient: list[Any] | None) -> Linearization:
    made = Linearization(value, recipe, counters)
    made._gradient = gradient
    return made


class _Known:
    """A size that has been found."""

    __slots__ = ("_nbytes",)

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def __call__(self) -> int:
        return self._nbytes


class _Lost:
    """Stands for a recipe that could not travel."""

    payload: tuple[Any, ...] = ()

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __iter__(self) -> Any:
        raise PortabilityError(f"A linearization was moved to another process without its recipe. {self._reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _Lost, (self._reason,)


def unused_pullback(cotangent: Any) -> tuple[Any, ...]:
    """Stand where a pullback is not needed, since its cotangents are there already."""
    raise AssertionError(f"What was preaccumulated is not pulled with {cotangent!r}.")


def unit_seed(value: Any) -> Any:
    """Return the number 1 in a scalar value's own dtype."""
    if type(value) is np.float64 or type(value) is float:
        return 1.0
    return pytree.cast_like(1.0, value, "A seed")


def is_scalar(value: Any) -> bool:
    """Return whether a value is one real floating-point number."""
    if type(value) is np.float64 or type(value) is float:
        return True
    return pytree.is_differentiable(value) and pytree.shape_of(value) == () and not np.iscomplexobj(value)
