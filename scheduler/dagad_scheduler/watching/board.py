"""What is known of evaluations on a cluster, from transitions of tasks and from reports of hot loops: no I/O in here.

State of a `Board`, touched by the scheduler's event loop only:

==============  ================================================================================================
`_groups`       groups of tasks that are being followed, by what Dask calls them
`_by_token`     evaluations, by the tokens of their keys
`_evaluations`  the same, the oldest first; those that are over go when they are too many
`_landing`      those all of whose chunks have landed lately: the sum may still be on its way
`_loops`        hot loops, by client, function and role
`_workers`      what workers did and hold in hot loops, by address
`_fallbacks`    why evaluations took the graph instead, with how many and when the last one did
`_errors`       the last errors, each with where it was
`_departures`   the last workers that went, when, whether they were lost, and what had been computed again by then
`_totals`       for each road, how many evaluations are over, and their seconds
`_history`      these totals every second
`_closed`       how many values and gradients there were in evaluations that the board has let go of
`n_recomputed`  how many values were computed again, or recorded again
`n_failed`      how many chunks raised something
`n_fallbacks`   how many evaluations took the graph since residents could not
==============  ================================================================================================
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from dagad_scheduler.roles import Key, Role, function_of, role_of
from dagad_scheduler.watching.evaluations import (
    EXECUTORS,
    GRAPH,
    RESIDENT,
    STOPPED,
    EvaluationRecord,
    LoopRecord,
    TasksRecord,
    Worker,
)

MOST_EVALUATIONS, MOST_LOOPS, MOST_REASONS, MOST_ERRORS, MOST_DEPARTURES = 50, 20, 20, 20, 20
NOTHING: Mapping[str, tuple[int, int]] = MappingProxyType({})
MOST_LETTERS = 500  # of an error
SECONDS_SHOWN = 300
RATE_OVER = 10  # seconds
QUIET = 1.0  # seconds without a result after which an evaluation whose chunks have landed is over


def _no_dependencies(key: Key) -> Iterable[Key]:
    del key
    return ()


class Board:
    """Follows evaluations; `needs` returns what a task depends on."""

    def __init__(
        self, needs: Callable[[Key], Iterable[Key]] = _no_dependencies, clock: Callable[[], float] = time.time
    ) -> None:
        self._needs, self._clock = needs, clock
        self._groups: dict[Any, TasksRecord] = {}
        self._by_token: dict[str, EvaluationRecord] = {}
        self._evaluations: deque[EvaluationRecord] = deque()
        self._landing: list[EvaluationRecord] = []
        self._loops: OrderedDict[tuple[str, str, str], LoopRecord] = OrderedDict()
        self._workers: dict[str, Worker] = {}
        self._fallbacks: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._errors: deque[dict[str, Any]] = deque(maxlen=MOST_ERRORS)
        self._departures: deque[dict[str, Any]] = deque(maxlen=MOST_DEPARTURES)
        self._totals: dict[str, tuple[int, float]] = {executor: (0, 0.0) for executor in EXECUTORS}
        self._history: deque[tuple[float, dict[str, tuple[int, float]]]] = deque(maxlen=SECONDS_SHOWN)
        self._closed = [0, 0]
        self.n_recomputed = self.n_failed = self.n_fallbacks = 0
        self.tick()

    # Tasks

    def transition(self, key: Key, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Take note of a task; called for every task of the cluster, so it is written for speed."""
        if type(key) is not tuple:
            return
        tasks = self._groups.get(key[0])
        if tasks is None:
            if start != "released" or finish == "forgotten" or (tasks := self._begin(key)) is None:
                return
        index, states = key[1], tasks.states
        if tasks.failed and finish in ("memory", "processing"):
            tasks.failed.discard(index)  # it was tried again
        if finish == "memory":
            tasks.evaluation.last = self._clock()
            if index in tasks.landed:
                self._landed_again(tasks, index)
            else:
                tasks.landed[index] = 1
                tasks.n_left -= 1
                if not tasks.n_left:
                    self._all_landed(tasks)
        elif index not in states:
            tasks.n_left += 1
        elif finish == "erred":
            tasks.failed.add(index)
            self._failed(key, tasks, kwargs)
        elif finish == "forgotten":
            tasks.n_forgotten += 1
        states[index] = finish
        if finish == "forgotten" and tasks.n_forgotten == len(states):
            self._all_forgotten(tasks.evaluation)

    def _begin(self, key: Key) -> TasksRecord | None:
        """Return where a task of a group not met before is followed; None if it is not."""
        head, role = key[0], role_of(key)
        if role not in (Role.VALUE, Role.VALUE_AND_GRAD, Role.PULLBACK, Role.SUM):
            return None
        token = head.rpartition("-")[2]
        evaluation = self._by_token.get(token)
        if evaluation is None and role is Role.PULLBACK:  # the keys of its values have another token
            tokens = [needed[0].rpartition("-")[2] for needed in self._needs(key) if role_of(needed) is Role.VALUE]
            evaluation = next((self._by_token[one] for one in tokens if one in self._by_token), None)
        if evaluation is None:
            if role is Role.SUM:  # of pullbacks, say, which are to come
                return None
            now = self._clock()
            evaluation = EvaluationRecord(function_of(key) or "?", now, now)
            self._evaluations.append(evaluation)
            self._make_room()
        if token not in self._by_token:
            self._by_token[token] = evaluation
            evaluation.tokens.append(token)
        tasks = self._groups[head] = evaluation.groups[head] = TasksRecord(evaluation, role)
        return tasks

    def _landed_again(self, tasks: TasksRecord, index: object) -> None:
        tasks.landed[index] += 1
        self.n_recomputed += tasks.role is not Role.SUM

    def _all_landed(self, tasks: TasksRecord) -> None:
        """Take note that all tasks of a group have landed."""
        evaluation = tasks.evaluation
        values = evaluation.of(Role.VALUE, Role.VALUE_AND_GRAD)
        if not evaluation.has_landed and values and not any(one.n_left for one in values):
            evaluation.has_landed = True
            self._landing.append(evaluation)

    def _all_forgotten(self, evaluation: EvaluationRecord) -> None:
        """Take note that a group is gone; an evaluation is over when all are."""
        if all(one.n_forgotten == len(one.states) for one in evaluation.groups.values() if one.role is not Role.SUM):
            self._close(evaluation)

    def _close(self, evaluation: EvaluationRecord) -> None:
        values, gradients = evaluation.n_done()
        self._closed[0] += values
        self._closed[1] += gradients
        for head in evaluation.groups:
            self._groups.pop(head, None)
        for token in evaluation.tokens:
            self._by_token.pop(token, None)
        evaluation.close()

    def _make_room(self) -> None:
        while len(self._evaluations) > MOST_EVALUATIONS:
            gone = next((one for one in self._evaluations if one.over is not None), self._evaluations[0])
            if not gone.over is not None:
                self._close(gone)
            self._evaluations.remove(gone)

    def _failed(self, key: Key, tasks: TasksRecord, event: dict[str, Any]) -> None:
        text = event.get("exception_text")
        if not text or event.get("cause", key) != key:  # a task that it needs did
            return
        self.n_failed += 1
        self._note_error(tasks.evaluation.function, str(tasks.role), f"task {key[1]}", text, event.get("worker"))

    def _note_error(self, function: str, role: str, where: str, text: str, worker: object) -> None:
        found = {"function": function, "role": role, "where": where, "error": text[:MOST_LETTERS]}
        self._errors.append({"time": self._clock(), **found, "worker": str(worker or "")})

    def held_keys(self) -> Iterator[Key]:
        """Yield the keys that may hold linearizations now."""
        for evaluation in self._evaluations:
            for head, tasks in evaluation.groups.items():
                if tasks.role is Role.VALUE:
                    yield from ((head, index) for index, state in tasks.states.items() if state == "memory")

    # Hot loops

    def take(self, report: dict[str, Any]) -> None:
        """Take what a worker or a client says of a hot loop."""
        now, client, address = self._clock(), report.get("client"), str(report.get("worker", ""))
        for loop in report.get("loops", ()) if client is not None else ():
            self._take_loop(str(client), now, *loop)
        for reason, count in report.get("fallbacks", ()):
            self.n_fallbacks += count
            before, _ = self._fallbacks.pop(reason, (0, 0.0))
            self._fallbacks[reason] = before + count, now
            while len(self._fallbacks) > MOST_REASONS:
                self._fallbacks.popitem(last=False)
        if "held" in report:
            worker = self._workers.setdefault(address, Worker())
            worker.n_held, worker.nbytes = report["held"]
            n_calls, n_chunks, seconds = report["calls"]
            worker.n_calls, worker.n_chunks = worker.n_calls + n_calls, worker.n_chunks + n_chunks
            worker.seconds += seconds
        self.n_recomputed += report.get("again", 0)
        for function, role, reason in report.get("failures", ()):
            self.n_failed += 1
            self._note_error(function, role, "hot loop", reason, address)

    def _take_loop(
        self, client: str, now: float, function: str, role: str, n: int, seconds: float, slowest: float, *chunks: int
    ) -> None:
        at = client, function, role
        loop = self._loops.setdefault(at, LoopRecord(function, role, now - seconds, now))
        if now > loop.last + STOPPED:
            loop.began, loop.slowest = now - seconds, 0.0
        loop.n, loop.seconds, loop.last = loop.n + n, loop.seconds + seconds, now
        loop.slowest = max(loop.slowest, slowest)
        loop.n_values, loop.n_gradients = chunks
        self._closed[0] += n * loop.n_values
        self._closed[1] += n * loop.n_gradients
        self._loops.move_to_end(at)
        while len(self._loops) > MOST_LOOPS:
            self._loops.popitem(last=False)
        self._add(RESIDENT, n, seconds)

    def forget_worker(self, address: str, *, is_lost: bool = True) -> None:
        """Let go of what a worker said that is gone; it `is_lost` if nobody had asked it to go."""
        self._workers.pop(address, None)
        found = {"time": self._clock(), "worker": address, "is_lost": is_lost, "recomputed": self.n_recomputed}
        self._departures.append(found)

    def restart(self) -> None:
        """Let go of what was under way: the cluster has been restarted."""
        for evaluation in self._evaluations:
            if evaluation.over is None:
                self._close(evaluation)
        self._workers.clear()

    # What is shown

    def _add(self, executor: str, n: int, seconds: float) -> None:
        before, spent = self._totals[executor]
        self._totals[executor] = before + n, spent + seconds

    def tick(self) -> None:
        """Write down how many evaluations there have been; called every second."""
        now, still = self._clock(), list[EvaluationRecord]()
        for one in self._landing:
            if one.over is not None or now > one.last + QUIET:
                self._add(GRAPH, 1, one.last - one.began)
            else:
                still.append(one)
        self._landing = still
        self._history.append((now, dict(self._totals)))

    def series(self, over: int = 1) -> list[dict[str, Any]]:
        """Return for each road and every second how many evaluations per second there were, and how long they took."""
        history = list(self._history)
        found = []
        for (began, before), (ended, after) in zip(history, history[over:], strict=False):
            for executor in EXECUTORS:
                n, seconds = (one - other for one, other in zip(after[executor], before[executor], strict=True))
                rate = n / max(ended - began, 1e-9)
                found.append({"time": ended, "executor": executor, "rate": rate, "latency": seconds / n if n else None})
        return found

    def _rate(self, executor: str) -> dict[str, Any]:
        """Return how many evaluations there were, and how quick they are now."""
        now, (n, seconds) = self._clock(), self._totals[executor]
        then, before = next((one for one in self._history if one[0] >= now - RATE_OVER), self._history[-1])
        lately, spent = n - before[executor][0], seconds - before[executor][1]
        landing = [one.last - one.began for one in self._landing] if executor == GRAPH else []
        return {
            "evaluations": n + len(landing),
            "seconds": seconds + sum(landing),
            "per_second": lately / max(now - then, 1.0),
            "latency": spent / lately if lately else None,
        }

    def _recent(self, executing: Collection[Key], holding: Collection[str]) -> list[dict[str, Any]]:
        """Return what is known of each evaluation by tasks and each hot loop, the latest first."""
        now = self._clock()
        found = [one.shown(now, executing, holding) for one in self._evaluations]
        found += [one.shown(now) for one in self._loops.values()]
        return sorted(found, key=lambda one: (one["is_running"], one["last"]), reverse=True)

    def snapshot(
        self,
        held: Mapping[str, tuple[int, int]] = NOTHING,
        executing: Collection[Key] = (),
        holding: Collection[str] = (),
    ) -> dict[str, Any]:
        """Return all of it as plain numbers and words.

        Tasks hold linearizations: `held` says how many there are on each worker, and their bytes, and `holding` are the
        groups of these tasks. `executing` are tasks on which somebody works.
        """
        values, gradients = self._closed
        for one in self._evaluations:
            if one.over is None:
                more = one.n_done()
                values, gradients = values + more[0], gradients + more[1]
        return {
            "time": self._clock(),
            "executors": {executor: self._rate(executor) for executor in EXECUTORS},
            "values": values,
            "gradients": gradients,
            "recomputed": self.n_recomputed,
            "failed": self.n_failed,
            "fell_back": self.n_fallbacks,
            "evaluations": self._recent(executing, holding),
            "workers": self._of_workers(held),
            "fallbacks": [
                {"reason": reason, "count": count, "last": last}
                for reason, (count, last) in reversed(self._fallbacks.items())
            ],
            "errors": list(reversed(self._errors)),
            "departures": self._gone(),
        }

    def _gone(self) -> list[dict[str, Any]]:
        """Return the workers that went, the last first, each with what was computed again until the next one did."""
        found, until = list[dict[str, Any]](), self.n_recomputed
        for one in reversed(self._departures):
            found.append(one | {"recomputed": until - one["recomputed"]})
            until = one["recomputed"]
        return found

    def _of_workers(self, held: Mapping[str, tuple[int, int]]) -> dict[str, dict[str, Any]]:
        found = {}
        for address in sorted({*self._workers, *held}):
            own, (n, nbytes) = self._workers.get(address, Worker()), held.get(address, (0, 0))
            found[address] = {
                "linearizations": own.n_held + n,
                "linearization_bytes": own.nbytes + nbytes,
                "calls": own.n_calls,
                "chunks": own.n_chunks,
                "seconds": own.seconds,
            }
        return found
