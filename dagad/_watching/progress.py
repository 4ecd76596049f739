"""The public context manager `progress`: evaluations are shown while it is entered, and counted for who asks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from dagad._errors import ArgumentsError
from dagad._executors.profile import Profile
from dagad._tracebacks import public
from dagad._watching.display import Display
from dagad._watching.evaluations import Evaluations
from dagad._watching.screens import screen_for
from dagad._watching.watching import watching
from dagad._words import described


@public
def progress(
    *,
    show: bool | None = None,
    every: float = 1.0,
    callback: Callable[[Profile], Any] | None = None,
    file: TextIO | None = None,
) -> contextlib.AbstractContextManager[Evaluations]:
    """Show the evaluations of a ``with`` block: how far each is, and a line for each that is over.

    A line has the number of the evaluation, the function, its value, the norm of its gradient, its time, what ran it,
    and what it fell back from. While one lasts, two bars show how many chunks have their value and their gradient, how
    many a second, and how long it will take. In a terminal that is drawn by rich if it is installed, in a notebook in
    the cell's output, which is saved with it; elsewhere nothing is printed unless it is asked for.

    What this thread evaluates is seen, `evaluate` and ``await`` included; not what other threads do.

    Parameters
    ----------
    show
        Whether to show anything: None for where somebody looks (a terminal, a notebook), True everywhere, as plain
        lines where it is no terminal, False nowhere.
    every
        Seconds for each line: where evaluations are shorter only some have one, and the last. 0: all have one.
    callback
        Called with the `Profile` of each evaluation when it is over, in the thread that has run it. What it raises ends
        the program that evaluates.
    file
        Where to print; ``sys.stderr`` by default.

    Returns
    -------
    ContextManager
        Entered, it gives `Evaluations`: how many there were, how long they took, what ran them, and the profiles of the
        last ones. Its method `iterated` is a callback for scipy's optimisers.

    Raises
    ------
    ArgumentsError
        If an argument can't be what it is.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> def loss(theta):
    ...     return dagad.reduce_sum(lambda rows, t: np.sum((rows - t) ** 2), np.arange(4.0), theta, grainsize=1)
    >>> def tell(profile):
    ...     print(profile.number, profile.name, profile.value, profile.gradient_norm)
    >>> with dagad.progress(callback=tell) as seen:
    ...     for theta in (1.0, 1.5):
    ...         value, gradient = dagad.value_and_grad(loss)(theta)
    1 loss 6.0 4.0
    2 loss 5.0 0.0
    >>> seen.count, seen.n_failed, seen.last.progress.values_done
    (2, 0, 4)
    """
    if show not in (None, True, False):
        raise ArgumentsError(
            f"`show={show!r}` does not say where to show progress. Choose None for terminals and notebooks, True for "
            "everywhere, False for nowhere."
        )
    if isinstance(every, bool) or not isinstance(every, int | float) or not every >= 0:
        raise ArgumentsError(f"A line every `every={every!r}` seconds can't be printed. Give a number, 0 for each one.")
    if not (callback is None or callable(callback)):
        raise ArgumentsError(
            f"`callback=` was given {described(callback)}. Give a function that takes the profile of an evaluation."
        )
    if not (file is None or hasattr(file, "write")):
        raise ArgumentsError(
            f"`file=` was given {described(file)}, which can't be written to. Give an open file, such as `sys.stdout`."
        )
    return _shown(show, every, callback, file)


@contextlib.contextmanager
def _shown(
    show: bool | None, every: float, callback: Callable[[Profile], Any] | None, file: TextIO | None
) -> Iterator[Evaluations]:
    display = Display(screen_for(show, file), every=every, callback=callback)
    try:
        with watching(display):
            yield display.seen
    finally:
        display.close()
