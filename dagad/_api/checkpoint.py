"""The public `checkpoint`: a run that goes on where it stood, after its process, its cluster or its machine died."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dagad._errors import ArgumentsError, CheckpointDiskError, CheckpointError
from dagad._executors.checkpointed import checkpointing
from dagad._executors.journal import SYNC_EVERY, Journal
from dagad._habits import answering
from dagad._types import Leaf, Tree
from dagad._values import pytree
from dagad._words import described


class Checkpoint:
    """A run that is written to disk; `checkpoint` makes it.

    Attributes
    ----------
    path
        The directory.
    state
        What was saved last, by this run or the one before it; None if nothing was.

    Examples
    --------
    >>> import tempfile
    >>> import dagad
    >>> def count(path, stop):
    ...     with dagad.checkpoint(path) as run:
    ...         state = run.state or {"step": 0}
    ...         while state["step"] < stop:
    ...             state = {"step": state["step"] + 1}
    ...             run.save(state)
    ...     return state, run.state
    >>> with tempfile.TemporaryDirectory() as path:
    ...     count(path, 3), count(path, 2)
    (({'step': 3}, {'step': 3}), ({'step': 3}, {'step': 3}))
    """

    def __init__(self, journal: Journal) -> None:
        self._journal, self.path = journal, journal.path
        found = journal.state()
        self.state: Any = None if found is None else found["data"]

    @property
    def n_known(self) -> int:
        """How many operations had ended when the checkpoint was opened: these are read, and not computed."""
        return self._journal.n_known

    def save(self, state: Tree) -> None:
        """Save the state of the program's own loop, all at once; what led there is forgotten.

        Parameters
        ----------
        state
            A pytree of numbers and arrays, from which the loop can go on.

        Raises
        ------
        CheckpointError
            If something in it is neither a number nor an array, or the block has ended.
        """
        for leaf in pytree.flatten(state)[0]:
            if type(leaf) not in _NUMBERS and not (_is_numpys(leaf) and leaf.dtype.kind in "fciub"):
                raise CheckpointError(
                    f"A state holds {described(leaf)} ({type(leaf).__qualname__}). Save numbers, numpy's arrays, and "
                    "tuples, lists and dicts of these; of others' arrays `np.asarray(x)`, as in "
                    "`jax.tree.map(np.asarray, state)`; of a masked array its `data` and its `mask`; of a random "
                    "generator, the numbers in `generator.bit_generator.state`, without the name."
                )
        self._journal.save({"data": state})
        self.state = state

    def __repr__(self) -> str:
        return f"<Checkpoint: {self._journal.numbers.total()} operations in {str(self.path)!r}>"


_NUMBERS = frozenset({bool, int, float, complex})


def _is_numpys(leaf: Leaf) -> bool:
    """Return whether a leaf is numpy's own, and comes back as what it was: masks, units and labels would be lost."""
    return isinstance(leaf, np.generic) or type(leaf) in (np.ndarray, np.memmap)


def _instead(name: str) -> str:
    return f"Write `with dagad.checkpoint(path) as run:`, and `run.{name}` in that block, with what is to be kept."


@answering("A checkpoint that is not open has", _instead, {})
class Unopened(contextlib.ContextDecorator):
    """A checkpoint that is not open: ``with`` opens it, for each block anew."""

    for_users = ()

    def __init__(self, path: Path, sync_every: float, by_chunk: bool) -> None:
        self._path, self._sync_every, self._by_chunk = path, sync_every, by_chunk
        self._blocks = contextlib.ExitStack()

    def __enter__(self) -> Checkpoint:
        return self._blocks.enter_context(_opened(self._path, self._sync_every, self._by_chunk))

    def __exit__(self, *error: Any) -> bool | None:
        return self._blocks.__exit__(*error)

    def __repr__(self) -> str:
        return f"<Checkpoint in {str(self._path)!r}, not open: use it by `with ... as run:`>"


@contextlib.contextmanager
def _opened(path: Path, sync_every: float, by_chunk: bool) -> Iterator[Checkpoint]:
    journal = Journal(path, sync_every)
    try:
        with checkpointing(journal, by_chunk):
            yield Checkpoint(journal)
    except BaseException:
        with contextlib.suppress(CheckpointDiskError):  # most likely the same once more
            journal.close()
        raise
    journal.close()


def checkpoint(path: str | os.PathLike[str], *, sync_every: float = SYNC_EVERY, chunks: bool = True) -> Unopened:
    """Write what is computed in this block to disk, so that the same program goes on from there when it runs again.

    What each chunk of a reduction or map gives, its value and its gradient, is written as it lands. If the program is
    interrupted, by a signal or by the loss of the cluster or the machine, run it again: evaluations that had
    ended are read, the one in progress computes the chunks that are missing, and the results have the bits of a run
    without interruption. The program has to take the same way again: the same data, start and random numbers.

    A loop of many evaluations saves its own state now and then, with `Checkpoint.save`, and begins from
    `Checkpoint.state`; what led there need not be repeated then, nor kept. Until then the directory holds a value and
    a gradient for each evaluation that has ended, and those of each chunk for the one in progress.

    Parameters
    ----------
    path
        A directory for this run alone; it is made if there is none. Delete it to begin anew.
    sync_every
        How many seconds of work a crash of the whole machine may cost: as often at most is it waited until what was
        written has come to the disk. Whatever happens to the process alone costs nothing of what was written.
    chunks
        Whether what each chunk gives is written as it lands. With False a reduction is written when all of it is there,
        and until then runs as it does without a checkpoint: in a loop of short ones, over Shards say, that is many
        times as fast, and an interruption costs the one in progress.

    Returns
    -------
    ContextManager
        Entered, it gives a `Checkpoint`, with the state that was saved last.

    Raises
    ------
    CheckpointError
        If the checkpoint belongs to another program, data or plan, if another process writes it, or if it can't be
        read.
    CheckpointDiskError
        If the disk is full, can't be written, or has a file where the directory is to be. It is an OSError too.
    ArgumentsError
        If `sync_every` is no number of seconds, or `chunks` neither True nor False.

    Warns
    -----
    DagadWarning
        If the end of it is damaged: what is not whole is computed again, and a copy is kept. If it is held by a process
        on another machine of which nothing is heard: it is waited for that, and taken over after a minute and a half.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dagad
    >>> def squares(rows, theta):
    ...     return np.sum((rows - theta) ** 2)
    >>> def run(path):
    ...     with dagad.checkpoint(path) as run:
    ...         return run.n_known, dagad.grad(lambda t: dagad.reduce_sum(squares, np.arange(4.0), t, grainsize=1))(1.0)
    >>> with tempfile.TemporaryDirectory() as path:
    ...     run(path), run(path)
    ((0, np.float64(-4.0)), (1, np.float64(-4.0)))
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentsError(
            "`dagad.checkpoint` takes the path of a directory, to which a run is written, and was given "
            f"{described(path)}. For tapes that are not kept, pass `policy=dagad.extend.Recompute()`."
        )
    if isinstance(sync_every, bool) or not isinstance(sync_every, (int, float)) or not sync_every >= 0:
        raise ArgumentsError(
            f"`dagad.checkpoint(..., sync_every={sync_every!r})` is no number of seconds. Give 0 to wait for the disk "
            "after each chunk, or leave it out."
        )
    if not isinstance(chunks, bool):
        raise ArgumentsError(
            f"`dagad.checkpoint(..., chunks={chunks!r})` is neither True nor False. Give False to have reductions "
            "written down when they have ended, or leave it out; how rows are cut is said by `grainsize=`."
        )
    return Unopened(Path(path), sync_every, chunks)
