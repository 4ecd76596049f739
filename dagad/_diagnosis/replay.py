"""`replay`: the chunk that failed, alone, in the process of whoever looks for the mistake."""

from __future__ import annotations

import functools
import pdb
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from dagad._errors import (
    ArgumentsError,
    DataLostError,
    NonFiniteError,
    PortabilityError,
    SchedulerLostError,
    WorkerLostError,
)
from dagad._executors.evaluation import inside_task, new_names, process_settings, run_graph
from dagad._executors.graph_tasks import plain_value
from dagad._kernels.job import nested
from dagad._kernels.replay import REMEDY, Replay, ReplayNote, bring_along
from dagad._tracebacks import public, shorten, warn
from dagad._words import described
from dagad_scheduler.private import Task


@public
def replay(error: BaseException | None = None, *, debugger: bool = False) -> Any:
    """Run the chunk that failed again: alone, in this thread, with the same inputs and on the same way.

    Where that was on a worker, the rows of this one chunk come from there; if the worker is gone, they are made again.
    A chunk that failed when it was pulled back is run and pulled back with the same cotangent. A failure inside of
    several reductions, one in the chunk of another, is that of the outermost one's chunk.

    Parameters
    ----------
    error
        What was raised, by a call, an `Evaluation` or an ``await``. By default what ended the last cell or line in a
        notebook or an interactive session. For a `NonFiniteError` numpy is told to raise where nan or infinity arises.
    debugger
        Whether to look at the failure in a debugger: Python's own, or in IPython and notebooks that of IPython, at the
        line that failed. When you leave it, the error is raised.

    Returns
    -------
    object
        What the chunk gave, if it did not fail this time; a `DagadWarning` says so.

    Raises
    ------
    Exception
        What the chunk raises, with your own lines for a traceback.
    ArgumentsError
        If no chunk is known that failed.
    WorkerLostError
        If the chunk brought workers down: it is not run where it could end your session.
    DataLostError
        If the rows were on a cluster that is gone.
    PortabilityError
        If the error comes from another process.

    Notes
    -----
    While the error lives, it holds on to the rows of its chunk, and to what all chunks share. Arrays are not copied:
    what you have written into them since is seen by the chunk.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> def logs(rows, theta):
    ...     if np.any(rows < 0.0):
    ...         raise ValueError("a negative number")
    ...     return np.sum(np.log(rows + theta))
    >>> data = np.array([1.0, 2.0, -3.0, 4.0])
    >>> try:
    ...     dagad.reduce_sum(logs, data, 1.0, grainsize=2)
    ... except ValueError as error:
    ...     print(error.__notes__[0].splitlines()[-1])
    ...     failed = error
    To run it alone, here: `dagad.replay(error)`.
    >>> try:
    ...     dagad.replay(failed)
    ... except ValueError as error:
    ...     print(error)
    a negative number
    """
    failed, found = _brought_along(error)
    acts: list[Callable[..., Any]] = [functools.partial(_strictly, found.act), found.act]
    result = None
    for act in acts if isinstance(failed, NonFiniteError) else acts[1:]:
        try:
            with process_settings, inside_task:
                result = act(*_here(found))
        except Exception as again:
            bring_along(again, lambda _, act=act: found._replace(act=act))  # type: ignore[misc]  # called in this turn
            if debugger:
                shorten(again)
                _debug(again)
            raise
    warn(
        f"The {found} did not fail here. What may be different: another machine or version where it ran, random "
        "numbers, something that it keeps from call to call, or arrays that were written into since."
    )
    return result


def _strictly(act: Callable[..., Any], *parts: Any) -> Any:
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        return act(*parts)


def _brought_along(error: BaseException | None) -> tuple[BaseException, Replay]:
    """Return which exception, this one or one that led to it, tells of a chunk, and what runs that."""
    if error is None:
        error = getattr(sys, "last_value", None)
    if not isinstance(error, BaseException):
        raise ArgumentsError(
            f"`dagad.replay` was given {described(error)}, which is no exception. Give it the one that a call raised: "
            "`try: ... except Exception as error: dagad.replay(error)`, or `dagad.replay()` right after it was shown."
        )
    one: BaseException | None = error
    seen, notes = set[int](), list[Any]()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if isinstance(one, WorkerLostError):
            raise _deadly(one)
        notes += (own := getattr(one, "__notes__", []))
        if found := [note.replay for note in own if type(note) is ReplayNote]:
            return one, found[0]
        one = one.__cause__ or one.__context__
    raise _unknown(error, notes)


def _unknown(error: BaseException, notes: list[Any]) -> Exception:
    """Return why there is no chunk to run."""
    if any(str(note).endswith(REMEDY) for note in notes):
        return PortabilityError(
            f"This {type(error).__name__} has come from another process, or is a copy, and has left its chunk there. "
            "Call `dagad.replay` in the process in which it was raised."
        )
    if any(str(note).startswith("dagad: while task") for note in notes):
        return ArgumentsError(
            f"This {type(error).__name__} was raised by a task of your own graph, not by a chunk. Run all of them "
            'here, `.compute(scheduler="sync")`; or on a cluster this one, `client.recreate_error_locally(future)`.'
        )
    return ArgumentsError(
        f"This {type(error).__name__} was not raised in a chunk, so there is none to run again: what a chunk raises "
        "has a note that names it. Look at the traceback, all of it with Dask's setting `dagad.full-tracebacks`."
    )


def _deadly(error: WorkerLostError) -> WorkerLostError:
    suspects = ", ".join(error.suspects)
    return WorkerLostError(
        f"Workers died on {suspects}: run here, that may end this process, and a debugger with it. In one that you can "
        'do without, `python -X faulthandler`, call the reduction on these rows with `scheduler="sync"`.'
    )


def _here(found: Replay) -> list[Any]:
    """Return the parts of a chunk, after fetching those that live elsewhere."""
    if not found.kept:
        return found.parts
    key, landed = new_names()("input", "replay"), dict[Any, Any]()
    graph = {key: Task(key, plain_value, nested(found.parts))}
    try:
        run_graph(found.scheduler, graph, [key], landed.__setitem__, kept=found.kept)
    except (SchedulerLostError, DataLostError) as error:
        raise DataLostError(
            f"The rows of {found} were in Shards on a cluster that is gone or was restarted. Place the data again with "
            "`dagad.shard`, and call what has failed on them."
        ) from error
    parts: list[Any] = landed[key]
    return parts


def _debug(error: Exception) -> None:
    """Look at the innermost of the user's lines in a debugger."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None:
        pdb.post_mortem(error.__traceback__)
        return
    one = shell.debugger_cls()
    one.reset()
    one.interaction(None, error.__traceback__)
