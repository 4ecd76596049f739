"""What is asked of a cluster to tell whether it is fit; `fitness` judges the answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np
from dask import annotate  # type: ignore[attr-defined]  # dask's `__init__` does not say what it exports

from dagad._api.reductions import reduce_sum
from dagad._api.shard import shard
from dagad._api.transforms import evaluate, grad
from dagad._diagnosis import facts
from dagad._diagnosis.bounded import bounded
from dagad._diagnosis.fitness import LAST_BITS, NOT_SEEN, Seen, WorkerReport, same_python
from dagad._errors import TimedOutError
from dagad._types import AnyRows, AnyScheduler, Array

SIZE = 4_000_000  # bytes, to measure a line
X, THETA, N_ROWS = np.linspace(-1.0, 1.0, 48).reshape(16, 3), np.array([0.3, -0.7, 1.1]), 4
Trial = Callable[[Any, str, float], Any]
CLOSE = 1e-12  # of the gradient, relative


def examine(client: AnyScheduler, patience: float) -> Seen:
    """Ask all parts of a cluster, one after the other; each may take `patience` seconds."""
    here = facts.facts()
    known = bounded(patience, "The list of workers", client.sync, client.scheduler.identity)["workers"]
    parts = [
        WorkerReport(address, "", said["nthreads"], said["memory_limit"] or 0)
        for address, said in sorted(known.items())
    ]
    versions = bounded(patience, "The version of the scheduler", client.sync, _version, client)
    scheduler: dict[str, Any] = {"python": _python(versions), "packages": {}, "failures": {}}
    client.sync(_gather, [_ask_python(client, part, patience) for part in parts])
    mine = [part for part in parts if part.python and same_python(part.python, here["python"])]
    cloudpickle.register_pickle_by_value(facts)  # there may be no dagad where it goes
    try:
        if same_python(scheduler["python"], here["python"]):
            try:
                scheduler = bounded(patience, "A function on the scheduler", client.run_on_scheduler, facts.facts)
            except TimedOutError:
                raise
            except Exception as error:  # what the handlers of a site raise
                scheduler["refusal"] = f"{type(error).__name__}: {error}"
        client.sync(_gather, [_ask(client, part, patience) for part in mine])
    finally:
        cloudpickle.unregister_pickle_by_value(facts)
    line = client.sync(_measure, client, client.scheduler.address, patience)
    for part in parts:
        if part.facts is not None:
            with contextlib.suppress(Exception):  # every transport has its own
                part.direct = client.sync(_measure, client, part.address, patience)
    if "dagad" in scheduler["packages"] or "refusal" in scheduler:
        able = [part for part in mine if part.facts and "dagad" in part.facts["packages"]]
        # A loop over placed rows refuses a cluster with workers that can't run it, whichever of them it needs.
        trials: dict[str, Trial] = (
            TRIALS if len(able) == len([part for part in parts if part.python]) else {"graph": by_graph}
        )
        _try_all(client, able, trials, patience)
    return Seen(client.scheduler.address, here, scheduler, line, parts)


def _python(said: dict[str, Any]) -> str:
    """Return the version of Python as Python says it itself, 3.11.7 and not 3.11.7.final.0."""
    return ".".join(said["host"]["python"].split(".")[:3])


async def _gather(calls: Sequence[Any]) -> None:
    await asyncio.gather(*calls)


async def _version(client: AnyScheduler) -> Any:
    return await client.scheduler.versions()


async def _ask_python(client: AnyScheduler, part: WorkerReport, patience: float) -> None:
    """Have the scheduler ask a worker for its version: not all at once, for one that is silent would hold up all."""
    asking = client.scheduler.broadcast(msg={"op": "versions"}, workers=[part.address], on_error="ignore")
    try:
        answers = await asyncio.wait_for(asking, patience)
    except TimeoutError:
        part.busy = f"it did not answer in {patience:g} s"
        return
    if part.address in answers:
        part.python = _python(answers[part.address])


async def _ask(client: AnyScheduler, part: WorkerReport, patience: float) -> None:
    began = time.time()
    try:
        answers = await asyncio.wait_for(client.run(facts.facts, workers=[part.address], on_error="return"), patience)
    except TimeoutError:
        part.busy = f"it did not answer in {patience:g} s"
        return
    except Exception as error:
        part.failure = f"it can't be asked ({type(error).__name__}: {error})"
        return
    answer, ended = answers.get(part.address), time.time()
    if isinstance(answer, dict):
        part.facts, part.skew = answer, max(began - answer["time"], answer["time"] - ended, 0.0)
    else:
        part.failure = f"it can't be asked ({answer!r})"


async def _measure(client: AnyScheduler, address: str, patience: float) -> tuple[float, float]:
    from distributed import rpc

    line: Any = rpc(address, timeout=patience, connection_args=client.security.get_connection_args("client"))
    return await asyncio.wait_for(facts.measured(line, SIZE, patience), patience)


def _try_all(client: AnyScheduler, parts: Sequence[WorkerReport], trials: dict[str, Trial], patience: float) -> None:
    """Have every worker reach the next one, and compute gradients."""
    for part, peer in zip(parts, [*parts[1:], *parts[:1]], strict=True):
        part.peer = peer.address if peer is not part else ""
        task = client.submit(facts.at_work, part.peer or None, SIZE, workers=[part.address], pure=False, retries=0)
        try:
            part.at_work = task.result(timeout=patience)
        except TimeoutError:
            part.busy = f"it did not run a task in {patience:g} s"
            bounded(patience, "To cancel a task", task.cancel)
            continue
        except Exception as error:
            part.failure = f"a task failed there ({type(error).__name__}: {error})"
            continue
        part.gradients = {executor: _checked(run, client, part.address, patience) for executor, run in trials.items()}


def exponential(rows: AnyRows, theta: Array) -> Any:
    """Return the sum of exponentials: its gradient is known, the rows weighted by its terms."""
    return np.exp(rows @ theta).sum()


def by_graph(client: AnyScheduler, address: str, patience: float) -> Any:
    """Return the gradient as tasks of a worker compute it, and nothing to say of it."""
    with annotate(workers=[address]):
        evaluation = evaluate(
            lambda theta: reduce_sum(exponential, X, theta, grainsize=N_ROWS, scheduler=client), THETA
        )
        return evaluation.gradient(patience), ""


def by_hot_loop(client: AnyScheduler, address: str, patience: float) -> Any:
    """Return the gradient as a worker computes it in a hot loop; or why it is not."""
    with annotate(workers=[address]):
        rows = shard(X, grainsize=N_ROWS, scheduler=client)
    for _ in range(6):  # by the graph first; and a worker that was asked may just have lost its copy of the rows
        evaluation = evaluate(lambda theta: reduce_sum(exponential, rows, theta), THETA)
        found, profile = evaluation.gradient(patience), evaluation.profile()
        if "resident" in profile.executors:
            break
    else:
        refusals = [refusal for call in profile.calls for refusal in call.refusals]
        return found, f"it took the graph ({'; '.join(refusals) or profile.calls[0].reason})"
    return found, ""


TRIALS: dict[str, Trial] = {"graph": by_graph, "hot loop": by_hot_loop}


def _checked(run: Trial, client: AnyScheduler, address: str, patience: float) -> str:
    """Return what is wrong with a gradient; nothing if it is right."""
    try:
        found, unseen = bounded(patience, "A gradient", run, client, address, patience)
    except TimeoutError:
        return f"{NOT_SEEN}it was not there in {patience:g} s"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    known = X.T @ np.exp(X @ THETA)
    gap = float(np.max(np.abs(found - known)) / np.max(np.abs(known)))
    if not gap < CLOSE:
        return f"wrong by {gap:.1e}"
    here = grad(lambda theta: reduce_sum(exponential, X, theta, grainsize=N_ROWS, scheduler="sync"))(THETA)
    if found.tobytes() != here.tobytes():
        return LAST_BITS
    return f"{NOT_SEEN}{unseen}" if unseen else ""
