"""Checksums of what a member's job is made of, when it is asked for: others go on until it runs, and may change it.

A list that is appended to, a counter, an array that is written into would give it another member's numbers. So all that
its function carries, its arguments and its rows are looked at again before it runs; what can't change is not looked at.
What chunk functions change themselves while they run is their own affair, as it is without members: then those who wait
note anew.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dagad._errors import ClosureError
from dagad._executors.member import current_member
from dagad._graphs import policies
from dagad._graphs.monoids import CompensatedSum, PlainSum
from dagad._graphs.policies import Policy
from dagad._kernels.job import Job, Seeds
from dagad._types import Array, Function
from dagad._values import pytree
from dagad._values.baseline import checksum
from dagad._values.canonical import is_frozen
from dagad._values.carried import states_of
from dagad._values.digest import States
from dagad._words import name_of

_FIXED_SETTINGS = policies.OURS | {PlainSum, CompensatedSum, type(None)}
_FIXED = frozenset({type(None), bool, int, float, complex, str, bytes, range})
SMALL = 2**12  # bytes that are looked at sooner than it is found out whether another view of them has been


class CurrentState:
    """What things are now, each looked at once; `_seen` are kept, or another may come to stand at the same address."""

    def __init__(self) -> None:
        self._seen: dict[Any, tuple[Any, Any]] = {}

    def function(self, fun: Function) -> dict[str, list[str]]:
        """Return the states of what a function carries, by name."""
        key = "function", id(fun)
        if key not in self._seen:
            states = States()
            self._seen[key] = states_of(fun, states), (fun, states)
        found: dict[str, list[str]] = self._seen[key][0]
        return found

    def has_own_thread(self, fun: Function) -> bool:
        """Return whether a function carries what is another thing in each thread."""
        self.function(fun)
        _, states = self._seen["function", id(fun)][1]
        return any(isinstance(part, threading.local) for part in states.kept)

    def part(self, part: Any) -> Any:
        """Return the state of an argument or of rows."""
        if type(part) in _FIXED or isinstance(part, np.generic) or pytree.is_sharded(part):
            return None
        is_plain = type(part) is np.ndarray and not part.dtype.hasobject
        if is_plain and is_frozen(part):
            return None
        key = _memory(part) if is_plain and part.nbytes > SMALL else id(part)
        if key not in self._seen:
            states = States()
            self._seen[key] = checksum(part) if is_plain else states.of(part, ()), (part, states)
        return self._seen[key][0]


def _memory(array: Array) -> Any:
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str


class Snapshot:
    """What a job is made of, and the seeds that are to be pulled, as they were."""

    def __init__(self, job: Job, seeds: Sequence[Seeds], now: CurrentState, policy: Policy | None = None) -> None:
        self._job, self._seeds = job, seeds
        # How terms are added up, and what happens to tapes; objects of a user's own may change.
        self._settings = [one for one in (job.monoid, policy) if type(one) not in _FIXED_SETTINGS]
        self._functions = [] if seeds else [one.fun for one in job.kernel.of_users]
        self.renew(now)
        self.has_own_thread = any(map(now.has_own_thread, self._functions))

    def renew(self, now: CurrentState) -> None:
        """Note anew."""
        self._kept = now
        self._carried = [now.function(fun) for fun in self._functions]
        self._parts = [now.part(part) for part in self._all_parts()]
        self._states = [now.part(one) for one in self._settings]

    def _all_parts(self) -> Iterator[Any]:
        if self._seeds:  # what they are pulled at is there
            for one in self._seeds:
                yield from one.floats
            return
        yield from self._job.leaves
        for function in self._job.kernel.of_users:
            yield from function.constants()
        for column in self._job.sliced.columns:
            if column.sharded is None:
                yield from column.read_from

    def change(self, number: int, now: CurrentState) -> ClosureError | None:
        """Return what refuses the job of a member, if something is not what it was; None if all is."""
        found = list[str]()
        for fun, before in zip(self._functions, self._carried, strict=True):
            states = now.function(fun)
            found += [name for name, state in before.items() if states.get(name) != state]
        if self._parts != [now.part(part) for part in self._all_parts()]:
            found.append("a cotangent" if self._seeds else "an argument, or the rows")
        if self._states != [now.part(one) for one in self._settings]:
            found.append("`sum` or `policy`")
        return _refusal(self._job.kernel.of_user.fun, number, found) if found else None


def _refusal(fun: Function, number: int, changed: Sequence[str]) -> ClosureError:
    name = name_of(fun)
    return ClosureError(
        f"Members of a `dagad.vmap` run together, and what `{name}` is given or uses is not what it was when member "
        f"{number} called it: {', '.join(dict.fromkeys(changed))}. Another member has changed it. Give each member its "
        "own, as an argument or made inside; or run one by one, `[fun(one) for one in members]`."
    )


def refused_between(fun: Function, number: int) -> ClosureError:
    """Return what refuses a member who has waited while another one has written what its program can reach."""
    name = name_of(fun)
    return ClosureError(
        f"Members of a `dagad.vmap` run together, and while member {number} of `{name}` waited for a reduction another "
        f"one has changed what `{name}` can reach: an array, an attribute, a variable of the function around it. Give "
        "each member its own, as an argument or made inside; or run one by one, `[fun(one) for one in members]`."
    )


@contextlib.contextmanager
def unchanged(fun: Function) -> Iterator[None]:
    """Refuse that what a function carries changes meanwhile: it runs afterwards, when other members have run, too."""
    member = current_member()
    if member is None:
        yield
        return
    before, after = CurrentState(), CurrentState()
    states = before.function(fun)
    yield
    now = after.function(fun)
    changed = [name for name, state in states.items() if now.get(name) != state]
    if changed:
        raise _refusal(fun, member.number, changed)
