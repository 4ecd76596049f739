"""Residents without a cluster: the same messages, programs and jobs, answered here by workers that are a dict each."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from dask._task_spec import TaskRef

from dagad._executors.resident import ResidentExecutor
from dagad._sources.columns import read_sliced
from dagad._sources.plan import AnyPlan
from dagad_scheduler.residents.client import ResidentRun
from dagad_scheduler.residents.service import _opened


class Placed:
    """Rows that live on workers."""

    is_here = False
    drawn = None

    def __init__(self, data: Any, plan: AnyPlan) -> None:
        columns = read_sliced(data)[0]
        self.plan, self.data = plan, {("dagad-shard-paper", chunk.number): columns.rows(chunk) for chunk in plan}
        self.keys, self.kept = list(self.data), dict.fromkeys(self.data)
        self.token = self.keys[0]
        self._made: dict[Hashable, Any] = {}

    def submit(self, wait: bool = False) -> None:
        pass

    def rows(self, number: int) -> Any:
        return TaskRef(self.keys[number])

    def remembered(self, which: Hashable, make: Callable[[], Any]) -> Any:
        if which not in self._made:
            self._made[which] = make()
        return self._made[which]


class Lease:
    """What was left on workers, which forget it when this goes."""

    def __init__(self, workers: Mapping[str, Worker], number: str) -> None:
        self.number, self._workers = number, workers
        self._addresses: set[str] = set()

    def left_at(self, addresses: Any) -> None:
        self._addresses |= set(addresses)

    def taken_from(self, addresses: Any) -> None:
        self._addresses -= set(addresses)

    def __del__(self) -> None:
        for address in self._addresses:
            self._workers[address].held.pop(self.number, None)


class Worker:
    """Answers calls as a desk does, one after the other."""

    def __init__(self, data: Mapping[Any, Any], n_threads: int) -> None:
        self.data, self.n_threads = data, n_threads
        self.programs: dict[str, tuple[Any, dict[int, Any], Any]] = {}
        self.blocks: dict[str, tuple[Any, Mapping[str, Any]]] = {}
        self.held: dict[str, Any] = {}
        self.sums: dict[str, Any] = {}
        self.others: Mapping[str, Worker] = {}

    def call(self, message: dict[str, Any]) -> dict[str, Any]:
        token = message["token"]
        if "gather" in message:
            return self._gathered(message["gather"], *self.blocks[token])
        if "program" in message:
            program = _opened([bytes(part) for part in message["program"]])
            self.programs[token] = program, dict(message["keys"]), message["parts"]
            self.blocks[token] = message.get("blocks", ()), message.get("sources", {})
        if token not in self.programs:
            return {"status": "unknown"}
        program, keys, parts = self.programs[token]
        job = program.job(message, self.held.pop(message["number"], None))
        shares = job.split(parts, self.n_threads)
        assert len(shares) <= self.n_threads
        found = {
            part: job.part(part, lambda chunk: [self.data[key] for key in keys[chunk]], bool)
            for share in reversed(shares)  # threads are done in any order
            for part in share
        }
        head, buffer = job.reply(parts, found)
        if job.holds:
            self.held[message["number"]] = job
        if job.sums is not None:
            self.sums[message["later"]] = job.sums
        return {"status": "OK", "seconds": 0.0, "threads": len(shares), **head, "data": bytes(buffer)}

    def _gathered(self, number: str, blocks: Any, sources: Mapping[str, Any]) -> dict[str, Any]:
        """Add up larger subtrees, with what others have of them."""
        given = [(parts, *self.others[address].give(number, parts)) for address, parts in sources.items()]
        head, buffer = self.sums[number].total(blocks, given)
        self._forget(number)
        return {"status": "OK", "seconds": 0.0, "threads": 1, **head, "data": bytes(buffer)}

    def give(self, number: str, parts: Any) -> tuple[bytes, Any]:
        """Return what there is of some subtrees."""
        head, buffer = self.sums[number].give(parts)
        self._forget(number)
        return head["head"], bytes(buffer)

    def _forget(self, number: str) -> None:
        if not self.sums[number]:
            del self.sums[number]


class PaperLines:
    """Calls to such workers; `owners` says which of them has which chunk."""

    is_relayed = False

    def __init__(self, sharded: Sequence[Placed], owners: Sequence[int], n_threads: int = 1) -> None:
        data = {key: rows for one in sharded for key, rows in one.data.items()}
        self._placed = sharded
        self.move(owners)
        self.by_address = {address: Worker(data, n_threads) for address in sorted(set(self._owners.values()))}
        for worker in self.by_address.values():
            worker.others = self.by_address
        self.methods: list[str] = []
        self._numbers = map(str, itertools.count())

    def move(self, owners: Sequence[int]) -> None:
        """Have other workers own the chunks; it shows when somebody looks again."""
        pairs = [pair for one in self._placed for pair in zip(one.keys, owners, strict=True)]
        self._owners = {key: f"worker-{owner}" for key, owner in pairs}

    def install(self) -> None:
        pass

    def fell_back(self, reason: str) -> None:
        pass

    def refusal(self) -> str:
        return ""

    def workers(self) -> list[str]:
        return list(self.by_address)

    def homes(self, keys: Sequence[Any]) -> list[tuple[str, ...]]:
        return [(self._owners[key],) for key in keys]

    def lease(self) -> Lease:
        return Lease(self.by_address, next(self._numbers))

    def call(self, calls: Mapping[str, dict[str, Any]], n_values: int, n_gradients: int, limit: float) -> ResidentRun:
        del limit
        future: Future[Any] = Future()
        self.methods.extend({message.get("method", "gather") for message in calls.values()})
        future.set_result({address: self.by_address[address].call(message) for address, message in calls.items()})
        return ResidentRun(future, n_values, n_gradients, dict(calls))

    def n_held(self) -> int:
        """Return for how many later calls workers hold something."""
        return sum(len(worker.held) + len(worker.sums) for worker in self.by_address.values())


class OnPaper(ResidentExecutor):
    """Runs jobs by residents on paper, wherever their rows lie."""

    def __init__(self, lines: PaperLines) -> None:
        super().__init__(lines, 1.0)
        self.lines = lines

    def _loop(self, job: Any, sharded: Any) -> Any:
        loop = super()._loop(job, sharded)
        loop._rebalanced = time.monotonic()  # rows that lie unevenly stay where they are
        return loop
