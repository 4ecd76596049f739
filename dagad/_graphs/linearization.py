"""Value + lazy pullback of one task. A linearization is a cache: lost, moved or spilled, it is made again.

What travels is the value and the recipe (the task and its arguments), never the tape.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._errors import PortabilityError
from dagad._tracebacks import public
from dagad._types import AnyEngine, AnyPolicy, AnyTask, Cotangent, Cotangents, Tree, Value
from dagad._values import pytree
from dagad._values.pytree import nbytes_of
from dagad._values.shipping import opened, pack


class Counters:
    """What a policy has had done in this process: see `Keep`.

    `_gone` says how many tapes have gone that are still counted in `_live`. All else changes under `_lock`.
    """

    travels_empty = True  # counts are of one process
    __slots__ = ("_gone", "_live", "_lock", "n_primal", "n_pullback", "peak_linearizations")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gone: deque[int] = deque()
        self.n_primal = self.n_pullback = self.peak_linearizations = self._live = 0

    def ran(self, count: int = 1) -> None:
        """Count runs that left no tape."""
        with self._lock:
            self.n_primal += count

    def recorded(self, count: int = 1) -> None:
        """Count runs that left a tape each."""
        with self._lock:
            if self._gone:
                self._settle()
            self.n_primal += count
            self._live += count
            self.peak_linearizations = max(self.peak_linearizations, self._live)

    def pulled(self, count: int) -> None:
        """Count pullbacks of a tape that lives on."""
        with self._lock:
            self.n_pullback += count

    def used_up(self, count: int = 1, n_pulled: int | None = None) -> None:
        """Count the end of tapes, and pullbacks: as many unless it is said how many."""
        with self._lock:
            self.n_pullback += count if n_pulled is None else n_pulled
            self._live = max(self._live - count, 0)

    def dropped(self, count: int = 1) -> None:
        """Count tapes that are gone; where memory is freed, so maybe in a thread that has the lock: it takes none."""
        self._gone.append(count)

    def _settle(self) -> None:
        """Count what has gone; called under the lock."""
        while self._gone:
            self._live = max(self._live - self._gone.popleft(), 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return Counters, ()


# Cotangent of the value -> one cotangent per argument being differentiated.
PullbackFunction = Callable[[Any], tuple[Any, ...]]


def pulled_many(pull: Callable[[Any], Any], many: Sequence[Any]) -> list[Any]:
    """Pull many cotangents, None among them, all at once where the pullback knows how."""
    together = getattr(pull, "many", None) if len(many) > 1 else None
    if together is None:
        return [None if cotangent is None else pull(cotangent) for cotangent in many]
    found: list[Any] = together(many)
    return found


class Recordable:
    """A task that can be run for its value alone, or for its value and its pullback.

    Attributes
    ----------
    pulls_by_run
        Whether it is many runs of a function, which `pull_anew` records and pulls one by one.
    is_fused
        Whether it is several tasks of a graph, `functions`; else it may be one of them, `task`.
    """

    __slots__ = ()
    pulls_by_run = is_fused = False
    task: Any = None

    @property
    def functions(self) -> Sequence[Any]:
        """What the tasks run, one after the other, where it is several."""
        return ()

    def value(self, *args: Any) -> Any:
        """Run the task, tracing nothing."""
        raise NotImplementedError(f"`{type(self).__name__}.value` has to run a task.")

    def record(self, *args: Any) -> tuple[Any, PullbackFunction | None, Callable[[], int]]:
        """Run the task: its value, its pullback, and the bytes that the pullback holds on to.

        The pullback is None where nothing is left to be pulled: see `GradOrPullback`.
        """
        raise NotImplementedError(f"`{type(self).__name__}.record` has to run a task traced.")

    def rehearse(self, *args: Any) -> Any:
        """Run the task traced, for its value."""
        return self.record(*args)[0]

    def pull_anew(self, counters: Counters, value: Value, cotangent: Cotangent, *args: Any) -> tuple[Any, ...]:
        """Record and pull run after run, so that one tape is alive at a time."""
        raise NotImplementedError(f"`{type(self).__name__}.pull_anew` has to record and pull.")

    def linearized(self, policy: AnyPolicy, args: tuple[Any, ...]) -> Any:
        """Run the task as a policy says."""
        return policy.linearize(self, args)

    def activated(self, active: tuple[int, ...], engine: AnyEngine) -> Any:
        """Return the same task, differentiated with respect to these arguments."""
        del active, engine
        return self

    def names(self) -> list[str]:
        """Return what the tasks are called, for pictures."""
        return []

    def counts(self) -> tuple[int, ...] | None:
        """Return how many terms of the cotangent of each differentiated argument arise here; None: one of each."""
        return None

    def n_runs(self, *args: Any) -> int:
        """Return how many runs of a user's function one run is."""
        del args
        return 1

    def n_pulls(self, count: int, cotangent: Cotangent, *args: Any) -> int:
        """Return how many pullbacks of a user's function one pullback is, for what counts as so many cotangents."""
        del cotangent, args
        return count


class Linearization:
    """The value of one task, and its pullback on demand: what a policy returns.

    Examples
    --------
    >>> import dask
    >>> import dagad
    >>> x = dask.delayed(3.0)
    >>> value, gradient = dagad.value_and_gradient(x * x, x)
    >>> made = dask.get(dict(gradient.dask), list(gradient.dask))
    >>> [float(one.value) for one in made if isinstance(one, dagad.extend.Linearization)]
    [9.0]

    Notes
    -----
    =============  ================================================================================
    `value`        the task's value; never changes
    `_recipe`      (task, arguments), or a Parcel of them after a journey; None: nothing is left to pull; never changes
    `_pull`        the recorded pullback; dropped when it has been pulled
    `_gradient`    the cotangents for the seed 1, where they were computed with the value; dropped likewise
    `_lock`        held while `_pull` and `_gradient` are taken, not while anything is computed
    =============  ================================================================================
    """

    __slots__ = ("_counters", "_gradient", "_lock", "_n_runs", "_nbytes", "_pull", "_recipe", "value")

    def __init__(
        self, value: Value, recipe: object, counters: Counters | None = None, gradient: list[Any] | None = None
    ) -> None:
        self.value, self._recipe, self._counters, self._gradient = value, recipe, counters or Counters(), gradient
        self._pull: PullbackFunction | None = None
        self._nbytes: Callable[[], int] = int
        self._n_runs = 1
        self._lock = threading.Lock()

    @classmethod
    def unrecorded(cls, task: Recordable, args: tuple[Any, ...], counters: Counters | None = None) -> Linearization:
        """Run a task for its value; pulling will run it again.

        It is recorded all the same, and the tape let go of. What a function keeps of a run that traces nothing would be
        constants for the one that is recorded later; of a recorded one it keeps traced values, which are refused.
        """
        made = cls(opened(task).rehearse(*args), (task, args), counters)
        made._counters.ran(n_runs(task, args))
        return made

    @classmethod
    def recorded(cls, task: Recordable, args: tuple[Any, ...], counters: Counters | None = None) -> Linearization:
        """Run a task and keep its tape until it is pulled."""
        made = cls.counted(task, args, counters)
        made._counters.recorded(made._n_runs)
        return made

    @classmethod
    def counted(cls, task: Recordable, args: tuple[Any, ...], counters: Counters | None = None) -> Linearization:
        """Do so for a task that counts its runs itself, and of which nothing may be left to be pulled."""
        value, pull, nbytes = opened(task).record(*args)
        if pull is None:
            return cls(value, None, counters)
        return cls.pulled_by(pull, nbytes, value, (task, args), counters)

    def left(self) -> Linearization | None:
        """Return what is to be kept for a pullback: this, or None where nothing will be pulled."""
        return None if self._recipe is None else self

    @classmethod
    def with_grad(cls, task: AnyTask, args: tuple[Any, ...], counters: Counters) -> Linearization:
        """Run a task and pull the seed 1 at once; one without a scalar value is recorded instead."""
        made = cls.recorded(task, args, counters)
        # Of chunks `GradOrPullback` pulls one before it records the next: they are seeded otherwise.
        if is_scalar(made.value) and not opened(task).pulls_by_run:
            made._gradient = list(made.pull(seed_of_one(made.value)))
        return made

    @classmethod
    def pulled_by(
        cls,
        pull: PullbackFunction,
        nbytes: Callable[[], int],
        value: Value,
        recipe: tuple[Any, tuple[Any, ...]],
        counters: Counters | None = None,
    ) -> Linearization:
        """Return the linearization of a task that has been recorded."""
        made = cls(value, recipe, counters)
        made._pull, made._nbytes, made._n_runs = pull, nbytes, n_runs(*recipe)
        return made

    def pull(self, cotangent: Cotangent) -> tuple[Any, ...]:
        """Return the cotangents of the arguments being differentiated; the tape is dropped."""
        with self._lock:
            # `_nbytes` too: it looks at the tape, so it would keep it alive.
            pull, self._pull, self._nbytes = self._pull, None, int
        if pull is None:
            task, args = opened(self._recipe)
            if opened(task).pulls_by_run:
                found: tuple[Any, ...] = opened(task).pull_anew(self._counters, self.value, cotangent, *args)
                return found
            pull, self._n_runs = opened(task).record(*args)[1], n_runs(task, args)
            self._counters.recorded(self._n_runs)
        try:
            result = pull(cotangent)
        except BaseException:
            self._counters.dropped(self._n_runs)
            raise
        self._counters.used_up(self._n_runs, self._n_pulls(cotangent, 1))
        return result

    def _n_pulls(self, cotangent: Cotangent, count: int) -> int:
        """Return how many pullbacks of a user's function a pullback is, for what counts as so many cotangents."""
        task, args = opened(self._recipe)
        return int(opened(task).n_pulls(count, cotangent, *args))

    def pull_scaled(self, cotangent: Cotangent) -> tuple[Any, ...]:
        """Return the same as `pull`; of a real number those for the seed 1, times the cotangent.

        So the bits are the same whether a policy computed them with the value or does so now.
        """
        if cotangent is None or pytree.is_traced(cotangent) or not is_scalar(self.value):
            return self.pull(cotangent)
        with self._lock:
            held, self._gradient = self._gradient, None
        gradient = self.pull(seed_of_one(self.value)) if held is None else tuple(held)
        return tuple(scaled(part, cotangent) for part in gradient)

    def pull_again(self, cotangent: Cotangent, count: int) -> tuple[Any, ...]:
        """Return the same as `pull` for what counts as so many cotangents; the tape stays for more of them."""
        with self._lock:
            if self._pull is None:
                task, args = opened(self._recipe)
                _, self._pull, self._nbytes = opened(task).record(*args)
                self._n_runs = n_runs(task, args)
                self._counters.recorded(self._n_runs)
            pull = self._pull
        result = pull(cotangent)
        self._counters.pulled(self._n_pulls(cotangent, count))
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        recipe = None if self._recipe is None else portable_recipe(self._recipe)
        return Linearization, (self.value, recipe, self._counters, self._gradient)

    def __sizeof__(self) -> int:
        held = 0 if self._pull is None else self._measured()
        return 200 + held + nbytes_of(self.value) + nbytes_of(self._gradient)

    def _measured(self) -> int:
        """Return the tape's size, found once: walking it costs a third of recording it, and Dask asks twice."""
        nbytes = self._nbytes()
        with self._lock:
            if self._pull is not None:
                self._nbytes = functools.partial(int, nbytes)
        return nbytes

    def __del__(self) -> None:
        if getattr(self, "_pull", None) is not None:
            self._counters.dropped(self._n_runs)


def portable_recipe(recipe: object) -> Any:
    """Return a recipe packed; one that can't travel says so when it is opened: raising here would hang a cluster."""
    try:
        return recipe if hasattr(recipe, "payload") else pack(recipe)
    except Exception as error:
        return _Lost(str(error))


def n_runs(task: AnyTask, args: tuple[Any, ...]) -> int:
    """Return how many runs of a user's function one run of a task is."""
    return int(opened(task).n_runs(*args))


def value_of_task(task: AnyTask, *args: Any) -> Any:
    """Run a task for its value: a node of a primal graph. `linearize` knows how to replace it."""
    return opened(task).value(*args)


@public
def value_and_pullback(policy: AnyPolicy, task: AnyTask, *args: Any) -> Any:
    """Run a task as its policy says: a node of a linearized graph."""
    return opened(task).linearized(policy, args)


def value_part(linearization: Linearization) -> Any:
    """Return the value alone, so that nothing else needs to travel."""
    return linearization.value


@public
def pull_back(linearization: Linearization, cotangent: Cotangent) -> Any:
    """Return the cotangents of a task's arguments; a single one comes bare."""
    cotangents = linearization.pull_scaled(cotangent)
    return cotangents[0] if len(cotangents) == 1 else cotangents


def scaled(gradient: Tree, cotangent: Cotangent) -> Any:
    """Return a pytree of cotangents for the seed 1 times a number, each leaf in its own dtype."""
    factor = np.asarray(cotangent)[()]
    if factor == 1:
        return gradient
    if type(gradient) is np.ndarray:
        return gradient * gradient.dtype.type(factor)
    if pytree.is_sharded(gradient):
        return gradient.scaled(float(factor))
    leaves, treedef = pytree.flatten(gradient)
    return pytree.unflatten(treedef, [leaf * pytree.dtype_of(leaf).type(factor) for leaf in leaves])


def cotangent_part(cotangents: Cotangents, index: int) -> Any:
    return None if cotangents is None else cotangents[index]


class _Lost:
    """Stands for a recipe that could not travel."""

    payload: tuple[Any, ...] = ()

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __iter__(self) -> Any:
        raise PortabilityError(f"A linearization was moved to another process without its recipe. {self._reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _Lost, (self._reason,)


_ONE = np.float64(1.0)  # Python's own has no shape, which some of autograd's rules ask for


def seed_of_one(value: Value) -> Any:
    """Return the number 1 in a scalar value's own dtype."""
    if type(value) is np.float64 or type(value) is float:
        return _ONE
    return pytree.cast_like(1.0, value, "A seed")


def has_derivative(value: Value) -> bool:
    """Return whether some of a value is a floating-point number: integers have no derivative, with any seed."""
    return any(map(pytree.is_differentiable, pytree.flatten(value)[0]))


def is_scalar(value: Value) -> bool:
    """Return whether a value is one real floating-point number."""
    if type(value) is np.float64 or type(value) is float:
        return True
    return pytree.is_differentiable(value) and pytree.shape_of(value) == () and not np.iscomplexobj(value)
