"""Graph + scheduler + slots -> Evaluation: graphs are started here, and here one can watch, wait for and cancel them.

State, of an `Evaluation`; all but the futures change under its `_lock`:

==============  ==========================================================================================
`_value`        future of the value
`_gradient`     future of the gradient
`_backward`     what computes the gradient; set when the value is there, taken by the thread that runs it
`_requested`    whether somebody wants the gradient
`_watch`        what runs for it, and who is told of that
==============  ==========================================================================================

The only module that talks to `dagad_scheduler`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
from collections.abc import Callable, Collection, Generator, Mapping
from concurrent.futures import BrokenExecutor, Future, InvalidStateError
from typing import Any, Protocol

from dagad._config import setting
from dagad._errors import CancelledError, PlanError, PortabilityError, SchedulerLostError
from dagad._executors.losses import processes_lost, results_lost, worker_lost, workers_unfit
from dagad._executors.patience import result_of
from dagad._executors.profile import CANCELLED, Profile
from dagad._habits import ARITHMETIC, answering
from dagad._kernels.context import VALUES_FIRST, Mode, current_profile, recorded, written_profile
from dagad._tracebacks import public, shorten
from dagad._types import AnyScheduler, Tree, Value
from dagad._values.shipping import Portable
from dagad._words import Listing, described
from dagad_scheduler import (
    Names,
    Progress,
    ResultsLost,
    Role,
    Run as Run,
    Scheduler as Scheduler,
    SchedulerLost,
    WorkersLost,
    WorkersUnfit,
    get as get,
    resolve,
    role_of,
)
from dagad_scheduler.annotations import tasks_annotated as tasks_annotated
from dagad_scheduler.failures import say_where as say_where
from dagad_scheduler.private import GraphNode
from dagad_scheduler.process import process_settings as process_settings
from dagad_scheduler.roles import words_of
from dagad_scheduler.run import inside_task as inside_task
from dagad_scheduler.running.callbacks import is_watched as is_watched
from dagad_scheduler.running.resolve import is_inside_any_task as is_inside_any_task

Backward = Callable[[], Any]
TASKS_PER_THREAD, NARROWEST, NARROWEST_OF_CLUSTER = 16, 32, 256  # of derived graphs


class Watch(Protocol):
    """Where an evaluation is written down; see `_api.watching.watched`."""

    @property
    def profile(self) -> Any:
        """The `Profile` of it."""

    def begin(self) -> None: ...
    def gave(self, value: Value) -> None: ...
    def gave_gradient(self, gradient: Tree) -> None: ...
    def end(self, error: BaseException | None = None) -> None: ...


def new_names(function: str = "", token: str | None = None) -> Names:
    """Return names for the keys of one evaluation of a function; fresh ones unless a token is given."""
    return Names(os.urandom(16).hex() if token is None else token, words_of(function))


def find_scheduler(scheduler: AnyScheduler) -> Scheduler:
    """Return what runs graphs, from what a user writes after ``scheduler=``."""
    try:
        found = resolve(scheduler)
    except (ValueError, TypeError, RuntimeError) as error:
        raise PlanError(_no_scheduler(scheduler, error)) from None
    if getattr(found, "is_closed", False):  # one of a user's own may not say; before anything asks it and waits
        raise SchedulerLostError(
            "`scheduler=` is a `distributed.Client` that was closed, so nothing can run on its cluster. Connect a new "
            "one, `client = distributed.Client(...)`, and pass that, or leave `scheduler=` out."
        )
    return found


def _no_scheduler(scheduler: AnyScheduler, error: Exception) -> str:
    """Return what to write instead of something that is no scheduler."""
    connect = "and leave `scheduler=` out, or pass `scheduler=client`."
    if isinstance(scheduler, str) and "://" in scheduler:
        return (
            f"`scheduler={scheduler!r}` is an address, to which there is no connection yet. Connect once, "
            f"`client = distributed.Client({scheduler!r})`, {connect}"
        )
    if hasattr(scheduler, "scheduler_address"):
        return (
            f"`scheduler=` was given {described(scheduler)}. Connect to it, `client = distributed.Client(cluster)`, "
            f"{connect}"
        )
    if scheduler == "distributed":
        return (
            '`scheduler="distributed"` means an active client, and there is none. Start one, `client = '
            f"distributed.Client()`, {connect}"
        )
    if isinstance(scheduler, str | int):
        return (
            f'`scheduler={scheduler!r}` is not a scheduler. Choose "threads", "sync" or "processes", or pass a '
            "`distributed.Client`."
        )
    return f"`scheduler=` was given {described(scheduler)}, which can't run anything: {error}"


def graph_width(n_tasks: int) -> int:
    """Return how many tasks beside one another a derived graph leaves: as the setting says, or enough for all threads.

    These are of what Dask would run the graph on now. Nobody is asked for a graph that can't be wide.
    """
    asked = setting("graph-width")
    if type(asked) is int and asked > 0:
        return asked
    if asked != "auto":
        raise PlanError(
            f"The setting `dagad.graph-width` is {asked!r}. Give a positive int, a number of tasks, or 'auto': "
            f"{TASKS_PER_THREAD} for each thread of the cluster."
        )
    if n_tasks <= 2 * NARROWEST:
        return NARROWEST
    scheduler = resolve()
    if (count := n_threads_of(scheduler)) is not None:  # of workers, which may be more when it comes to run
        return max(TASKS_PER_THREAD * count, NARROWEST_OF_CLUSTER)
    return max(TASKS_PER_THREAD * (scheduler.workers or 1), NARROWEST)


def n_threads_of(scheduler: Scheduler) -> int | None:
    """Return how many threads the workers of a scheduler have; None where it does not say, as one of a user's own."""
    return scheduler.n_threads() if hasattr(scheduler, "n_threads") else None


def settings_here(scheduler: Scheduler) -> contextlib.AbstractContextManager[None]:
    """Return what holds this process's settings for chunks; nothing where the chunks run in other processes."""
    return contextlib.nullcontext() if scheduler.remote else process_settings


def run_graph(
    scheduler: Scheduler,
    graph: Mapping[Any, Any],
    keys: Collection[Any],
    on_result: Callable[[Any, Any], None],
    *,
    keep: Collection[Any] = (),
    kept: Mapping[Any, Any] | None = None,
) -> Run:
    """Run a graph to its end; the current evaluation can watch and cancel it."""
    if scheduler.remote:
        parts, profile = _pack(graph), written_profile()
        if profile is not None:
            profile.sends(parts)
    try:
        run = scheduler.start(graph, keys, on_result, keep=keep, kept=kept)
        follow(run)
    except WorkersLost as error:
        raise worker_lost(error, graph) from error
    except SchedulerLost as error:
        raise SchedulerLostError(
            f"{error} Start a cluster, connect a new `distributed.Client`, and begin again."
        ) from error
    except BrokenExecutor as error:
        raise processes_lost(sys.modules["__main__"]) from error
    except WorkersUnfit as error:
        raise workers_unfit(error.reasons) from error
    except ResultsLost as error:
        raise results_lost(any(role_of(key) == Role.SHARD for key in error.keys)) from error
    return run


def run_parts(scheduler: AnyScheduler, n_parts: int, run_part: Callable[[int], None], role: Role) -> Run:
    """Run numbered parts in threads of this process to their end; the current evaluation can watch and cancel it."""
    run: Run = scheduler.share(n_parts, run_part, role)
    follow(run)
    return run


def follow(run: Run) -> None:
    """Wait for a run; the current evaluation can watch and cancel it."""
    profile = current_profile()
    if profile is None:
        run.wait()
    else:
        profile.follow(run)


def _pack(graph: Mapping[Any, Any]) -> list[Portable]:
    """Pickle what has to travel here, where an error is still ours to tell; each thing only once."""
    parts, packed = list[Any](graph.values()), dict[int, Portable]()
    while parts:
        part = parts.pop()
        if isinstance(part, Portable):
            part.parcel()
            packed[id(part)] = part
        elif isinstance(part, list):  # the rows of several chunks
            parts.extend(part)
        elif isinstance(part, GraphNode):
            parts.extend((getattr(part, "value", None), *getattr(part, "args", ())))
    return list(packed.values())


_BOTH = "`evaluation.value()` and `evaluation.gradient()` wait for their results; `await evaluation` gives both."
_INSTEAD = {
    **dict.fromkeys(("result", "compute", "get", "wait", "gather", "join", "exception"), _BOTH),
    **dict.fromkeys(
        ("done", "running", "status", "is_done"),
        "`evaluation.progress` says how far it is: `values_done` of `values_total` chunks, and `gradients_done`.",
    ),
    **dict.fromkeys(("cancelled", "close", "abort", "stop"), "`evaluation.cancel()` ends it."),
    **dict.fromkeys(("grad", "jacobian", "backward"), "`evaluation.gradient()` waits for the gradient."),
}


@answering(
    "An Evaluation has",
    _INSTEAD.get,
    {
        "__getitem__": ("indexed or unpacked", _BOTH),
        **dict.fromkeys(("__float__", "__array__"), ("used as a number or an array", _BOTH)),
        **dict.fromkeys(ARITHMETIC, ("added or multiplied", _BOTH)),
    },
)
class Evaluation(metaclass=Listing):
    """A value and a gradient that are being computed; `evaluate` starts it, and returns it at once.

    Awaited, it gives both: ``value, gradient = await evaluation``.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> evaluation = dagad.evaluate(lambda x: np.sum(x**2), np.array([1.0, 2.0]))
    >>> evaluation.value(), evaluation.gradient()
    (np.float64(5.0), array([2., 4.]))
    """

    for_users = ("cancel", "gradient", "profile", "progress", "value")

    def __reduce__(self) -> Any:
        raise PortabilityError(
            "An Evaluation can't be sent to another process: it is going on in this one. Send its `.value()` and "
            "`.gradient()`, or start it there."
        )

    def __init__(self, forward: Callable[[], tuple[Any, Backward]], lazy: bool, watch: Watch) -> None:
        self._value: Future[Any] = Future()
        self._gradient: Future[Any] = Future()
        for future in (self._value, self._gradient):
            future.set_running_or_notify_cancel()  # an `await` that times out must not cancel what others wait for
        self._lock = threading.Lock()
        self._backward: Backward | None = None
        self._requested, self._watch = not lazy, watch
        watch.begin()
        self._start(self._walk_forward, forward)

    def _start(self, walk: Callable[..., None], *args: Any) -> None:
        context = contextvars.copy_context()
        # A daemon: a program that ends does not wait for a gradient that nobody waits for.
        threading.Thread(target=context.run, args=(walk, *args), name="dagad-evaluation", daemon=True).start()

    def _walk_forward(self, forward: Callable[[], tuple[Any, Backward]]) -> None:
        with Mode(VALUES_FIRST, lasting=True), recorded(self._watch.profile):
            try:
                value, backward = forward()
            except BaseException as error:
                self._fail(error, self._value, self._gradient)
                # The error stays in these futures, and its traceback has this frame: no cycle, without these names.
                del self, forward
                return
            with self._lock:
                self._backward = backward
            self._watch.gave(value)
            _settle(self._value, value)
            self._walk_backward()
            del self, forward, backward  # whose frames came from here, if it failed

    def _walk_backward(self) -> None:
        with self._lock:
            if not self._requested or self._backward is None:
                return
            backward, self._backward = self._backward, None
        with Mode(VALUES_FIRST), recorded(self._watch.profile):
            try:
                gradient = backward()
                self._watch.gave_gradient(gradient)
                self._watch.end()
            except BaseException as error:
                self._fail(error, self._gradient)
                del self, backward  # as above
                return
            _settle(self._gradient, gradient)

    def _fail(self, error: BaseException, *futures: Future[Any]) -> None:
        try:
            self._watch.end(error)
        except BaseException as other:  # somebody waits for the futures
            error.add_note(f"A callback that was told of this raised {other!r}.")
        for future in futures:
            if not future.done():
                with contextlib.suppress(InvalidStateError):
                    future.set_exception(error)

    @public
    def value(self, timeout: float | None = None) -> Any:
        """Return the value.

        Parameters
        ----------
        timeout
            Seconds to wait; None waits without limit.

        Returns
        -------
        object
            What the function returned.

        Raises
        ------
        TimedOutError
            If it is not ready in time (a subclass of ``TimeoutError``). The evaluation goes on.
        CancelledError
            If the evaluation was cancelled.
        """
        return result_of(self._value, timeout, "value")

    @public
    def gradient(self, timeout: float | None = None) -> Any:
        """Return the gradient; a lazy evaluation starts with its pullbacks now.

        Parameters
        ----------
        timeout
            Seconds to wait; None waits without limit.

        Returns
        -------
        object
            The gradient, of the structure of the argument: the same object at each call, so copy what you write into.

        Raises
        ------
        TimedOutError
            If it is not ready in time (a subclass of ``TimeoutError``). The evaluation goes on.
        CancelledError
            If the evaluation was cancelled.
        """
        self._request()
        return result_of(self._gradient, timeout, "gradient")

    def _request(self) -> None:
        with self._lock:
            ready, self._requested = self._backward is not None and not self._requested, True
        if ready:
            self._start(self._walk_backward)

    def __await__(self) -> Generator[Any, None, tuple[Any, Any]]:
        """Return value and gradient."""
        self._request()
        try:
            value = yield from asyncio.wrap_future(self._value).__await__()
            gradient = yield from asyncio.wrap_future(self._gradient).__await__()
        except Exception as error:
            shorten(error)
            raise
        return value, gradient

    @property
    def progress(self) -> Progress:
        """How many chunks have their value and their gradient, of those of all reductions that have started.

        Its fields are `values_done`, `values_total`, `gradients_done`, `gradients_total`, and `waits_for`, a text.
        """
        found: Progress = self._watch.profile.progress
        return found

    def profile(self) -> Profile:
        """Return the record of this evaluation: what ran for it, who ran it and why, how far it is, what it took.

        Returns
        -------
        Profile
            It is written while the evaluation runs; `seconds` is None until that ends.

        Examples
        --------
        >>> import numpy as np
        >>> import dagad
        >>> def loss(theta):
        ...     return dagad.reduce_sum(lambda rows, t: np.sum((rows - t) ** 2), np.arange(4.0), theta, grainsize=1)
        >>> evaluation = dagad.evaluate(loss, 1.0)
        >>> evaluation.gradient()
        np.float64(-4.0)
        >>> [(call.gives, call.n_chunks, call.executor) for call in evaluation.profile().calls]
        [('value', 4, 'graph'), ('gradient', 4, 'graph')]
        """
        found: Profile = self._watch.profile
        return found

    def cancel(self) -> None:
        """Give up: start no more chunks. `value` and `gradient` raise CancelledError unless they are there already."""
        with self._lock:
            self._backward = None  # it holds the tapes of a lazy gradient, which must go though the evaluation stays
        self._watch.profile.cancel()
        self._fail(CancelledError(CANCELLED), self._value, self._gradient)

    def _repr_html_(self) -> str:
        return self.profile()._repr_html_()

    def __repr__(self) -> str:
        done = self.progress
        return (
            f"<Evaluation: {done.values_done} of {done.values_total} values, "
            f"{done.gradients_done} of {done.gradients_total} gradients"
            f"{done.waits_for and f', waiting for {done.waits_for}'}>"
        )


def _settle(future: Future[Any], result: Value) -> None:
    if not future.done():
        with contextlib.suppress(InvalidStateError):  # cancelled just now, which is an answer too
            future.set_result(result)
