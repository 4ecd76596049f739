"""Which workers a cluster has, and whether they can run what will be sent to them; asked before anything is sent.

A worker that can't import dagad dies of the first task that it reads, and one of another version of Python of the first
function: functions travel as bytecode. Whoever waits would wait for ever. So every worker is looked at once, with
nothing but what any version of Dask answers and functions of the standard library, by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import pkgutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection
from concurrent.futures import CancelledError, Future
from typing import Any

from dagad_scheduler._types import Client
from dagad_scheduler.departures import heed
from dagad_scheduler.run import SchedulerLost, WorkersUnfit

ASK_AGAIN, ANSWER_WITHIN, COUNT_EVERY = 1.0, 3.0, 5.0  # seconds
NAME = "dagad-workers"


def workers_of(client: Client) -> Workers:
    """Return what is known of the workers of a client's cluster; it stays with the client."""
    found: Workers = client.extensions.setdefault(NAME, Workers(client))
    return found


class Workers:
    """The workers of a client's cluster.

    ==========  ============================================================================================
    `_seen`     addresses of workers that have been found fit
    `_asked`    addresses of workers that have been asked, and the answer that is to come
    `_warned`     differences that have been warned of
    `_counted`  when the workers were last counted, how many there were, and how many threads they had
    ==========  ============================================================================================

    `_asked` changes under `_lock`; two threads that look at the others at the same time find the same.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._seen: set[str] = set()
        self._asked: dict[frozenset[str], Future[Any]] = {}
        self._lock = threading.Lock()
        self._warned: set[tuple[str, Any]] = set()
        self._counted = (-COUNT_EVERY, 1, 1)

    def count(self) -> tuple[int, int]:
        """Return how many workers there were lately, and how many threads they had."""
        now = time.monotonic()
        if now > self._counted[0] + COUNT_EVERY:
            threads = self._threads()
            self._counted = now, len(threads), sum(threads.values())
        return self._counted[1:]

    def addresses(self) -> list[str]:
        """Return where the workers are; raise soon if there is no scheduler any more that could tell."""
        return sorted(self._threads())

    def _threads(self) -> dict[str, int]:
        """Return how many threads the worker at each address has."""
        client = self._client
        while client.status == "running":
            with contextlib.suppress(OSError):  # it may be busy, or the client has yet to notice that it is gone
                return dict(client.sync(client.scheduler.ncores, callback_timeout=ASK_AGAIN))
        raise SchedulerLost(f"The client {client.id} is {client.status}: it has lost its scheduler.")

    def fit(self, among: Collection[str] | None = None, patience: float | None = None) -> list[str]:
        """Return where the workers are; raise WorkersUnfit if one that has joined can't run our tasks.

        Only those `among` them matter, if that is given. What is not answered in `patience` seconds is read next time.
        """
        addresses = self.addresses()
        until = time.monotonic() + (ANSWER_WITHIN if patience is None else patience)
        with self._lock:
            for some in [some for some in self._asked if not some <= set(addresses)]:
                self._asked.pop(some).cancel()  # Dask would wait long for one that is gone; the others are asked anew
            known = self._seen.union(*self._asked)
            new = frozenset(one for one in addresses if one not in known and (among is None or one in among))
            if new:
                self._asked[new] = asyncio.run_coroutine_threadsafe(self._ask(new), self._client.loop.asyncio_loop)
            asked = dict(self._asked)
        for some, answer in asked.items():
            answers = {}
            try:
                answers = answer.result(max(until - time.monotonic(), 0.0))
            except (OSError, CancelledError):
                if not answer.done():  # one of them imports from a slow disk, or nobody has noticed yet that it is gone
                    continue
            with self._lock:
                self._asked.pop(some, None)
            self._look_at(answers)
        return addresses

    def refuse_unseen(self, address: str) -> None:
        """Raise for a worker that died before anybody could look at it, where none has been found fit so far."""
        if not self._seen:
            raise WorkersUnfit(
                {address: "it joined and died at once; its own log says why, most often that dagad can't be imported"}
            )

    async def _ask(self, new: Collection[str]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
        """Return what new workers say of themselves, and whether they can import dagad; let those that can `heed`."""
        ask = functools.partial(self._client.scheduler.broadcast, on_error="ignore")
        versions = await ask(msg={"op": "versions"}, workers=list(new))
        imports = await ask(msg=_run(pkgutil.resolve_name, "dagad:__version__"), workers=list(versions))
        able = [address for address, imported in imports.items() if imported.get("status") == "OK"]
        await ask(msg=_run(heed), workers=able)
        return {address: (versions[address], imports[address]) for address in imports}

    def _look_at(self, answers: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> None:
        reasons = {address: _reason(*answer) for address, answer in answers.items()}
        if unfit := {address: reason for address, reason in reasons.items() if reason}:
            raise WorkersUnfit(unfit)
        for address, (versions, imported) in answers.items():
            self._compare(address, "numpy", versions["packages"].get("numpy"), _version_here("numpy"))
            self._compare(address, "dagad", imported.get("result"), _version_here("dagad"))
        self._seen.update(answers)

    def _compare(self, address: str, package: str, there: object, here: object) -> None:
        if there != here and None not in (there, here) and (package, there) not in self._warned:
            self._warned.add((package, there))
            warnings.warn(
                f"The worker {address} has {package} {there}, and the client {here}. Results may differ, in their last "
                "bits or in more. Install the same version on both.",
                stacklevel=2,
            )


def _run(function: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Return the message at which a worker calls a function."""
    from dagad_scheduler.private_distributed import dumps

    return {"op": "run", "wait": True, "function": dumps(function), "args": dumps(args), "kwargs": dumps({})}


def _reason(versions: dict[str, Any], imported: dict[str, Any]) -> str:
    """Return what is wrong with a worker; nothing if it is fit."""
    from dagad_scheduler.private_distributed import clean_exception

    there, here = str(versions["host"]["python"]).split(".")[:2], list(map(str, sys.version_info[:2]))
    if there != here:
        return (
            f"it runs Python {'.'.join(there)} and the client {'.'.join(here)}, and functions travel as bytecode, "
            "which no other version runs"
        )
    if imported.get("status") == "OK":
        return ""
    _, error, _ = clean_exception(**imported)
    return f"it can't import dagad ({type(error).__name__}: {error})"


def _version_here(package: str) -> Any:
    return getattr(sys.modules.get(package), "__version__", None)
