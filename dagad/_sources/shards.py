"""Shards: rows that were cut once and placed where the chunks will run, as tasks with a lineage; reduced many times."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from dagad._errors import ArgumentsError, PlanError, PortabilityError
from dagad._habits import answering
from dagad._html import bytes_of
from dagad._remembered import Remembered
from dagad._sources.base import AnyShards, Graph, Key, Source, Stays, Taken, Target
from dagad._sources.boxes import ANSWERS, tell_autograd
from dagad._sources.lineage import (
    Expression,
    Inputs,
    Lineage,
    Mapped,
    added_rows,
    contents,
    gathered,
    scaled_rows,
    tasks_of,
    there,
)
from dagad._sources.packed import is_packed
from dagad._sources.plan import AnyPlan, Chunk, html_of
from dagad._sources.rows import ELSEWHERE, PACKED, Piece, joined_data
from dagad._sources.samples import Drawn, drawn_numbers
from dagad._tracebacks import public
from dagad._types import AnyScheduler, Args, DType, Function, Kwargs, Leaf, Value
from dagad._values import pytree
from dagad._words import Listing
from dagad_scheduler.private import Task, TaskRef

MOST_REMEMBERED = 16  # combinations with other Shards
MOST_PENDING = 16  # Shards that are made of each other and are no tasks yet: all of them are held


@dataclass(frozen=True, slots=True)
class Home:
    """How graphs are run, for what knows neither schedulers nor evaluations."""

    names: Callable[[], Callable[[str, Any], Key]]  # fresh ones for keys
    run: Callable[..., Any]  # (scheduler, graph, keys, on_result, keep=, kept=) -> the run, at its end


class Kept(NamedTuple):
    """What a graph has left where it was computed: its key, and how a scheduler refers to it."""

    key: Key
    value: Any


@answering(*ANSWERS)
class Shards(metaclass=Listing):
    """Rows that were cut and put in place once, for many evaluations; `shard` makes them.

    They go wherever a reduction or a map takes its data. On a cluster each chunk is a task: when the worker that holds
    it is lost, it is loaded again as soon as it is needed. In one process the chunks are views of a copy, so that what
    is written into the data later does not change them. A gradient with respect to Shards is Shards of the same chunks:
    it stays where the rows are.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> data = dagad.shard((np.arange(6.0), np.ones(6)), grainsize=2)
    >>> data
    <Shards: 6 rows in 3 chunks on threads>
    >>> data.n_rows, data.grainsize, data.gather()[0]
    (6, 2, array([0., 1., 2., 3., 4., 5.]))
    """

    for_users = ("gather", "grainsize", "n_chunks", "n_rows", "sample")
    is_sharded = True
    drawn: Drawn | None = None  # what they are a sample of, and which chunks of it

    def __init__(
        self,
        plan: AnyPlan,
        scheduler: AnyScheduler,
        keys: Sequence[Key],
        kept: Mapping[Key, Any],
        home: Home,
        lineage: Lineage | None = None,
        row_kind: Hashable = None,
    ) -> None:
        tell_autograd(Shards)
        self.row_kind = row_kind
        self.plan, self.scheduler, self._home = plan, scheduler, home
        self.keys, self._kept, self.lineage = list(keys), dict(kept), lineage  # None, when tasks have been submitted
        self.is_here = lineage is None and all(map(is_packed, self._kept.values()))
        self._made = Remembered[Any](MOST_REMEMBERED)
        self._submitting = threading.Lock()

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.plan.n_rows

    @property
    def grainsize(self) -> int:
        """Largest number of rows in a chunk."""
        return self.plan.grainsize

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return len(self.plan)

    def __bool__(self) -> bool:
        return True

    def __array_function__(self, func: Function, types: object, args: Args, kwargs: Kwargs) -> NoReturn:
        _refuse_numpy(func.__name__)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> NoReturn:
        _refuse_numpy(ufunc.__name__)

    def __array__(self, dtype: DType = None, copy: bool | None = None) -> NoReturn:
        _refuse_numpy("asarray")

    @property
    def kept(self) -> dict[Key, Any]:
        """The rows of each chunk, as the scheduler refers to them: whoever asks for them has them made by tasks."""
        if self.lineage is not None:
            self.submit()
        return self._kept

    @property
    def token(self) -> Hashable:
        """What tells them from others: the key of the first chunk, which samples have in common with other samples."""
        drawn = self.drawn
        return self.keys[0] if drawn is None else (drawn.whole.token, drawn.numbers)

    def submit(self, wait: bool = False) -> None:
        """Have tasks make the rows, if they are none yet; wait for them where a call is to find them."""
        with self._submitting:  # one after the other: the same keys are not to stand for other tasks
            lineage = self.lineage
            if lineage is None:  # nearly always
                return
            names = self._home.names()
            graph, needed = tasks_of(lineage, self.plan, self.keys, names)
            done = {names("getitem", number): key for number, key in enumerate(self.keys)} if wait else {}
            graph.update((part, Task(part, there, TaskRef(key))) for part, key in done.items())
            run = self._home.run(self.scheduler, graph, list(done), ignore, keep=self.keys, kept=needed)
            self._kept, self.lineage = {key: run.kept[key] for key in self.keys}, None

    @property
    def n_pending(self) -> int:
        """How many Shards, these and those that they are made of, are no tasks yet."""
        lineage = self.lineage
        return 0 if lineage is None else lineage.n_pending

    def expression(self, inputs: Inputs) -> Expression:
        """Return the expression of the rows, see `lineage`; `inputs` numbers what it speaks of."""
        if self.n_pending > MOST_PENDING:
            self.submit(wait=True)
        lineage = self.lineage  # another thread may submit it meanwhile
        return inputs.rows(self) if lineage is None else lineage.expression(inputs)

    def home(self, number: int) -> str:
        """Return on which worker something of a chunk was left that is no task yet; empty for none."""
        lineage = self.lineage
        return "" if lineage is None else lineage.home(number)

    def rows(self, number: int) -> Any:
        key = self.keys[number]
        return self._kept[key] if self.is_here else TaskRef(key)

    def remembered(self, which: Hashable, make: Callable[[], Any]) -> Any:
        return self._made.made(which, make)

    def like(self, keys: Sequence[Key], kept: Mapping[Key, Any]) -> Shards:
        """Return Shards of the same cut, from what a run has kept; nothing else of it is held."""
        return Shards(
            self.plan, self.scheduler, keys, {key: kept[key] for key in keys}, self._home, None, self.row_kind
        )

    def made_by(self, lineage: Lineage) -> Shards:
        """Return Shards of the same cut, whose rows are made when somebody asks for them."""
        names = self._home.names()
        keys = [names("shard", number) for number in range(len(self.keys))]
        return Shards(self.plan, self.scheduler, keys, {}, self._home, lineage, self.row_kind)

    def of_chunks(self, rows: Mapping[int, Any]) -> Shards:
        """Return Shards of the same cut, of rows by chunk as whatever ran them keeps them; zeros for None."""
        if hasattr(rows[0], "expression"):  # residents leave the rows of all chunks, or none
            return self.made_by(rows[0])
        names, zeros = self._home.names(), self.zeros() if any(part is None for part in rows.values()) else None
        kept: dict[Key, Any] = {}
        for number in range(len(self.keys)):
            part = rows[number]
            if part is None and zeros is not None:
                part = Kept(zeros.keys[number], zeros.kept[zeros.keys[number]])
            key, value = part if type(part) is Kept else (names("shard", number), part)
            kept[key] = value
        return self.like(list(kept), kept)

    def filled(self, keys: Mapping[int, Key], kept: Mapping[Key, Any]) -> Shards:
        """Return Shards of the same cut: of some chunks by number what was kept under a key, zeros for the others."""
        chunks = range(len(self.keys))
        return self.of_chunks({n: Kept(keys[n], kept[keys[n]]) if n in keys else None for n in chunks})

    def mapped(self, rule: Function, *others: Any) -> Shards:
        """Return Shards of the same cut: what a rule makes of the rows of each chunk, and of those of other Shards."""
        made = self.made_by(Mapped(rule, (self, *others)))
        if made.n_pending > MOST_PENDING:  # at once: later, expressions would go as deep as sums are long
            made.submit()
        return self.like(made.keys, made.kept) if self.is_here else made

    def zeros(self) -> Shards:
        """Return zeros of the same cut, shapes and dtypes."""
        return self.mapped(scaled_rows, 0.0)

    def added(self, other: Shards) -> Shards:
        """Return the sums of the rows."""
        return self.mapped(added_rows, other)

    def scaled(self, factor: float) -> Shards:
        """Return the rows times a number."""
        return self if factor == 1.0 else self.mapped(scaled_rows, factor)

    @public
    def sample(self, n_chunks: int, *, seed: int = 0, step: int) -> Shards:
        """Return Shards of some of the chunks, for one step of a loop over data that need not all be seen in each.

        The chunks stay where they are. Which they are depends on the arguments alone, and not on the workers, so a loop
        that is resumed at a step goes on as it would have.

        Parameters
        ----------
        n_chunks
            How many chunks, from 1 to all.
        seed
            Another seed, other samples.
        step
            Number of the step, from 0 on. An epoch is as many steps as there are samples of other chunks, ``shards.
            n_chunks // n_chunks``; then the chunks are put in another order.

        Returns
        -------
        Shards
            No chunk comes twice, and their order is that of the whole. A sum over them is of `n_rows` rows: times
            ``shards.n_rows / sample.n_rows`` it estimates that over all.

        Raises
        ------
        PlanError
            If there are not so many chunks, if a number is negative or none, or if these are a sample already.

        Examples
        --------
        >>> import numpy as np
        >>> import dagad
        >>> shards = dagad.shard(np.arange(8.0), grainsize=2, scheduler="threads")
        >>> for step in range(3):
        ...     some = shards.sample(2, seed=1, step=step)
        ...     print(some.gather(), some.n_chunks, some.n_rows)
        [2. 3. 4. 5.] 2 4
        [0. 1. 6. 7.] 2 4
        [0. 1. 6. 7.] 2 4
        """
        if self.drawn is not None:
            raise PlanError(
                f"These Shards are a sample already, {self.n_chunks} of {len(self.drawn.whole.plan)} chunks. Sample "
                "those that they were sampled from: `shards.sample(n_chunks, seed=..., step=...)`."
            )
        numbers, whole = drawn_numbers(self.n_chunks, n_chunks, seed, step), self.kept
        keys = [self.keys[number] for number in numbers]
        plan, kept = self.plan.sampled(numbers), {key: whole[key] for key in keys}
        found = Shards(plan, self.scheduler, keys, kept, self._home, None, self.row_kind)
        found.drawn = Drawn(self, numbers)
        return found

    @public
    def gather(self) -> Any:
        """Return the data in one piece.

        Returns
        -------
        pytree
            Of the structure that was given to `shard`; the chunks of arrays are joined along their first axis.

        Raises
        ------
        DataLostError
            If the cluster that held them was restarted.
        """
        if self.is_here:
            parts = [contents(self.kept[key]) for key in self.keys]
        else:
            names, results = self._home.names(), dict[Key, Any]()
            copies = [names("getitem", number) for number in range(len(self.keys))]
            graph: Graph = {
                copy: Task(copy, gathered, TaskRef(key)) for copy, key in zip(copies, self.keys, strict=True)
            }
            self._home.run(self.scheduler, graph, copies, results.__setitem__, kept=self.kept)
            parts = [contents(results[copy]) for copy in copies]
        return joined_data(parts)

    def __dir__(self) -> tuple[str, ...]:
        return self.for_users

    def __repr__(self) -> str:
        return f"<Shards: {self.n_rows} rows in {len(self.plan)} chunks on {self._where()}>"

    def _where(self) -> str:
        gone = any(getattr(rows, "status", None) == "cancelled" for rows in self._kept.values())
        why = "the client was closed" if self.scheduler.is_closed else "it was restarted"
        return f"{self.scheduler.name}{f', gone since {why}' if gone else ''}"

    def _repr_html_(self) -> str:
        size = [("size", f"about {bytes_of(sum(map(sys.getsizeof, self._kept.values())))}")] if self.is_here else []
        return html_of(self.plan, ("on", self._where()), *size, title="Shards")

    def __reduce__(self) -> Any:
        raise PortabilityError(
            "Shards can't be pickled: they stand for data that are in place already. Pass them to a reduction as its "
            "sliced argument, and not to the chunk function."
        )


def _refuse_numpy(name: str) -> NoReturn:
    raise ArgumentsError(
        f"`np.{name}` was given Shards, which are no array: their rows are in several places. Sum a function over "
        f"them, `dagad.reduce_sum(f, shards)`, and call `np.{name}` in it; or take the data back in one piece, "
        "`shards.gather()`."
    )


@dataclass(slots=True)
class ShardSource(Source):
    """Rows that were cut and placed before."""

    n_rows: int
    sharded: AnyShards
    sharded_leaf: int | None

    @property
    def row_kind(self) -> Hashable:
        return self.sharded.row_kind

    def piece(self, chunk: Chunk) -> Piece:
        del chunk
        return ELSEWHERE if self.sharded_leaf is None else PACKED

    def targets(self, chunk: Chunk) -> Iterator[Target]:
        if self.sharded_leaf is not None:
            yield self.sharded_leaf, Stays(chunk.number)


def read_shards(leaf: Leaf, taken: Taken) -> Source | None:
    if not pytree.is_sharded(leaf):
        return None
    shards = pytree.plain(leaf)
    return ShardSource(shards.n_rows, shards, taken.take(leaf) if pytree.is_traced(leaf) else None)


def ignore(key: Key, result: Value) -> None:
    """Do nothing with a result that stays where it is."""
    del key, result
