"""What is said when a cluster lost workers or what it kept, or can't run our tasks; how a deadly chunk is found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dagad._errors import DagadError, DataLostError, PlanError, PortabilityError, WorkerLostError
from dagad._tracebacks import public
from dagad._words import described

MOST_NAMED = 8


def worker_lost(error: Any, graph: Mapping[Any, Any]) -> WorkerLostError:
    """Return what to tell the user about the scheduler's `WorkersLost`: what Dask knows, nothing has been tried."""
    suspects = [_what(key, graph) for key in error.suspects]
    named = ", ".join(suspects[:MOST_NAMED])
    others = f" and {len(suspects) - MOST_NAMED} others" if len(suspects) > MOST_NAMED else ""
    deaths = f"{error.n_deaths} workers died one after the other, the last one {error.worker},"
    if len(suspects) == 1:
        lost = WorkerLostError(
            f"{deaths} on {named}. It may need more memory than a worker has, or bring the process down: run these "
            'rows with `scheduler="sync"` to see.'
        )
    else:
        lost = WorkerLostError(
            f"{deaths} while they had {named}{others}. One of these may bring a process down, or need more memory than "
            'a worker has, or they do so together: run their rows with `scheduler="sync"` to see, or let '
            "`dagad.find_deadly_chunk(error)` run each of them alone, which costs further workers. Else give workers "
            "more memory or fewer threads."
        )
    lost.suspects = tuple(suspects)
    lost.experiment = functools.partial(_found, error.find_deadly, dict(zip(error.suspects, suspects, strict=True)))
    return lost


def processes_lost(program: object) -> DagadError:
    """Return what to tell when processes of a pool have ended before their tasks: by the program, or by its work."""
    main = Path(getattr(program, "__file__", None) or "")
    if main.is_file() and "__main__" not in main.read_text(encoding="utf-8", errors="ignore"):
        return PlanError(
            f'`scheduler="processes"` starts new processes, which import the program {main}, and would run it again '
            "from its start. Put what runs into a function, `def main():`, and call it under "
            '`if __name__ == "__main__":`; or use `scheduler="threads"`.'
        )
    return WorkerLostError(
        "A process ended while it ran a chunk. It may have needed more memory than there is, or a library has brought "
        'it down: run the rows with `scheduler="sync"` to see, or use fewer processes, '
        "`dask.config.set(num_workers=2)`."
    )


def _found(
    find_deadly: Callable[[float | None], Any], suspects: Mapping[Any, str], timeout: float | None
) -> str | None:
    key = find_deadly(timeout)
    return None if key is None else suspects[key]


@public
def find_deadly_chunk(error: WorkerLostError, *, timeout: float | None = 60.0) -> str | None:
    """Find out which chunk brings its workers down, by running the suspects again, each of them alone.

    Dask gives a task up when several workers have died while they had it, and can't tell which of a worker's tasks it
    was. This is an experiment on the cluster: the guilty chunk takes as many workers with it as Dask's setting
    ``distributed.scheduler.allowed-failures`` lets it, and one more, with all that is in their memory. So dagad does
    not do it by itself.

    Parameters
    ----------
    error
        What was raised; its client has to be connected still.
    timeout
        Seconds to wait for each suspect; one that takes longer is held to be innocent. None waits for as long as it
        takes.

    Returns
    -------
    str or None
        The chunk and its rows, such as ``"chunk 2 (rows 8:12)"``; None if no suspect brings a worker down alone: then
        they need too much memory together, or it does not happen every time.

    Raises
    ------
    PortabilityError
        If the error comes from another process: the experiment can be made only where the call was made.

    Examples
    --------
    >>> def fit(theta):
    ...     try:
    ...         return dagad.value_and_grad(loss)(theta)
    ...     except dagad.WorkerLostError as error:
    ...         print(error.suspects)
    ...         print(dagad.find_deadly_chunk(error))
    """
    if not isinstance(error, WorkerLostError):
        raise PlanError(
            f"`dagad.find_deadly_chunk` was given {described(error)}, which is not about workers that died. "
            "Give it the `dagad.WorkerLostError` that was raised."
        )
    if error.experiment is None:
        raise PortabilityError(
            "This WorkerLostError has come from another process, without the chunks it tells of. Call "
            "`dagad.find_deadly_chunk` in the process in which it was raised."
        )
    return error.experiment(timeout)


def _what(key: object, graph: Mapping[Any, Any]) -> str:
    """Return which chunks a task works on, as its user would say it."""
    first = next(
        (arg for arg in getattr(graph.get(key), "args", ()) if hasattr(arg, "chunk") or _is_indices(arg)), None
    )
    if first is None:
        return f"the task {key!r}"
    chunks = [index.chunk for index in (first if isinstance(first, list) else [first])]
    numbers = f"chunk {chunks[0].number}" if len(chunks) == 1 else f"chunks {chunks[0].number} to {chunks[-1].number}"
    return f"{numbers} (rows {chunks[0].start}:{chunks[-1].stop})"


def _is_indices(arg: object) -> bool:
    return isinstance(arg, list) and bool(arg) and hasattr(arg[0], "chunk")


def workers_unfit(reasons: Mapping[str, str]) -> PortabilityError:
    """Return the error for workers that can't run our tasks, by their addresses, each with the reason."""
    said = " ".join(f"Nothing of this can run on the worker {address}: {why}." for address, why in reasons.items())
    return PortabilityError(
        f"{said} Start such workers in an environment like the client's, with the same version of Python and of dagad, "
        f"or do without them: `client.retire_workers({list(reasons)!r})`."
    )


def results_lost(are_shards: bool) -> DataLostError:
    """Return the error for what was kept on a cluster that has been restarted."""
    restart = "`client.restart()`, or a scheduler that was started anew, takes away all that was on the cluster"
    if are_shards:
        return DataLostError(f"These Shards are gone: {restart}. Place the data again with `dagad.shard`.")
    return DataLostError(f"What this evaluation had left on the cluster is gone: {restart}. Evaluate it again.")
