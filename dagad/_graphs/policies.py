"""What happens to a linearization between value and gradient: keep it, compute it again, or use it up at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from dagad._errors import PlanError
from dagad._graphs.linearization import Counters, Linearization
from dagad._types import AnyPolicy, AnyTask


class Policy(Protocol):
    """What happens to the linearization of a task, its tape among it, between value and gradient.

    A task of a reduction is a run of chunks, as the executor cuts them: in the calling thread often all of them. Its
    `args` are the contexts of its chunks (``args[0][0].chunk.number`` is the number of the first one), their rows, the
    shared leaves, and the sliced ones if there are any; those of a task of a Dask graph are its own. `linearize`
    returns what that of `Keep()` or `Recompute()` does. A policy of your own that never runs a task again for its
    gradient may say so, ``runs_again = False``: else what functions carry is compared with what it was at the value.

    Examples
    --------
    >>> from dagad.extend import Keep, Policy, Recompute
    >>> policies: list[Policy] = [Keep(), Recompute()]
    >>> [policy.value_and_grad for policy in policies]
    [False, False]
    """

    @property
    def counters(self) -> Counters:
        """What was run."""

    @property
    def value_and_grad(self) -> bool:
        """Whether the gradient of a number is computed with its value."""

    def linearize(self, task: AnyTask, args: tuple[Any, ...]) -> Linearization:
        """Run a task so that it can be pulled back later."""


def may_run_again(policy: Policy) -> bool:
    """Return whether a policy may run tasks once more for their gradient: one of a user's own may not say."""
    return bool(getattr(policy, "runs_again", True))


def pulls_at_once(policy: Policy) -> bool:
    """Return whether a policy computes the gradient of a number with its value: one of a user's own may not say."""
    return bool(getattr(policy, "value_and_grad", False))


def checked_policy(policy: AnyPolicy) -> Policy:
    if callable(getattr(policy, "linearize", None)) and not isinstance(policy, type):
        return policy  # type: ignore[no-any-return]  # anything with the method is a policy
    if callable(getattr(policy, "actions", None)) and not isinstance(policy, type):
        raise PlanError(
            f"`policy={policy!r}` is a schedule for the steps of a Dask graph, and chunks have no steps. Give it to "
            "`dagad.gradient` or `value_and_gradient`; here `dagad.extend.Recompute()` takes the least memory."
        )
    raise PlanError(
        f"`policy={policy!r}` is not a policy. Give an object: `dagad.extend.Keep()`, `Recompute()` or "
        "`Preaccumulate()`, or None for what fits; for gradients of Dask graphs `Segment(k)` and `Revolve(slots)` too."
    )


@dataclass(frozen=True, slots=True)
class Counting:
    """What counts what it had done, in this process."""

    counters: Counters = field(default_factory=Counters, compare=False, repr=False, kw_only=True)
    value_and_grad: ClassVar[bool] = False
    runs_again: ClassVar[bool] = False

    @property
    def n_primal(self) -> int:
        """Runs of chunk functions in this process."""
        return self.counters.n_primal

    @property
    def n_pullback(self) -> int:
        """Pullbacks run in this process."""
        return self.counters.n_pullback

    @property
    def peak_linearizations(self) -> int:
        """Most tapes alive at the same time in this process."""
        return self.counters.peak_linearizations


@dataclass(frozen=True, slots=True)
class Keep(Counting):
    """Keep the tape until it is pulled: the least work, the most memory. A lost tape is recorded again.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.extend import Keep
    >>> def sum_of_squares(rows, theta):
    ...     return np.sum((rows - theta) ** 2)
    >>> policy = Keep()
    >>> def loss(theta):
    ...     return dagad.reduce_sum(sum_of_squares, np.arange(6.0), theta, grainsize=2, policy=policy)
    >>> float(dagad.grad(loss)(1.0))
    -18.0
    >>> policy.n_primal, policy.n_pullback, policy.peak_linearizations
    (3, 3, 3)
    """

    def linearize(self, task: AnyTask, args: tuple[Any, ...]) -> Linearization:
        return Linearization.recorded(task, args, self.counters)


@dataclass(frozen=True, slots=True)
class KeepRest(Counting):
    """Keep the tape of what is left to be pulled of a task that pulls itself, and counts what it has run."""

    def linearize(self, task: AnyTask, args: tuple[Any, ...]) -> Linearization:
        return Linearization.counted(task, args, self.counters)


@dataclass(frozen=True, slots=True)
class Recompute(Counting):
    """Keep the value only, and record when the gradient is asked for: the least memory, one more run of each chunk.

    What the function uses beside its arguments, a global say, has to be the same by then. If it has changed, the
    gradient is refused, and says what it was.

    Examples
    --------
    >>> from dagad.extend import Recompute
    >>> Recompute().n_primal
    0
    """

    runs_again: ClassVar[bool] = True

    def linearize(self, task: AnyTask, args: tuple[Any, ...]) -> Linearization:
        return Linearization.unrecorded(task, args, self.counters)


@dataclass(frozen=True, slots=True)
class Preaccumulate(Counting):
    """Compute the gradient of a scalar task with its value: the tape dies in the task, while it is still in cache.

    Tasks whose output is not one real number are kept as by `Keep`.

    Examples
    --------
    >>> from dagad.extend import Preaccumulate
    >>> Preaccumulate().peak_linearizations
    0
    """

    value_and_grad: ClassVar[bool] = True

    def linearize(self, task: AnyTask, args: tuple[Any, ...]) -> Linearization:
        return Linearization.with_grad(task, args, self.counters)


OURS: frozenset[Any] = frozenset({Keep, KeepRest, Recompute, Preaccumulate})
