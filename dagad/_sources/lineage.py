"""Lineage of rows of Shards that are no tasks yet: tasks make them when somebody asks, residents on their way.

So a loop over Shards submits nothing for a gradient that is used where it is, or not at all; and what a call has left
on a worker that is gone is computed again. What is made of what is an expression, the same for all chunks:

===========================  ========================================================================================
``["rows", number]``         rows that are there, results of tasks
``["taken", number]``        rows that a call takes of those that earlier ones have left, where it runs
``["left", number, index]``  in tasks: what a call has left at one of its indices; looked for, or computed again
``[rule, *arguments]``       what a rule makes of rows, by other expressions, and of numbers
===========================  ========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from dagad._graphs.linearization import scaled
from dagad._sources.base import Graph, Key
from dagad._sources.plan import AnyPlan, Chunk
from dagad._sources.rows import Rows
from dagad._types import AnyRows, Leaf
from dagad._values import pytree
from dagad._values.shipping import opened
from dagad_scheduler.private import DataNode, Task, TaskRef

Expression = Any


class Lineage(Protocol):
    """How the rows of Shards are made, each chunk apart.

    Attributes
    ----------
    n_pending
        How many Shards, these and those that they are made of, are no tasks.
    """

    n_pending: int

    def expression(self, inputs: Inputs) -> Expression:
        """Return the expression of the rows; `inputs` numbers what it speaks of."""

    def home(self, number: int) -> str:
        """Return on which worker something of a chunk was left; empty for none."""


class Inputs(Protocol):
    """The inputs of expressions, numbered as they are met."""

    def rows(self, shards: object) -> Expression:
        """Return the expression of Shards that are results of tasks."""

    def left(self, call: PastCall, index: int) -> Expression:
        """Return the expression of what a call has left at one of its indices."""


class PastCall(Protocol):
    """A call that has left rows on workers, and what it would take to make it again."""

    n_pending: int

    def expressions(self, inputs: Inputs) -> list[Expression]:
        """Return the expressions of the rows that it was about."""

    def recomputation(self, inputs: list[Expression]) -> Recomputation:
        """Return what finds the rows that it has left, or computes them again."""

    def own(self, number: int) -> dict[str, Any]:
        """Return what was sent for a chunk, and others of the same worker, alone."""


class Recomputation(Protocol):
    """Finds rows that a call has left on a worker, or computes them again. It travels."""

    def rows(self, chunk: Chunk, index: int, own: dict[str, Any], made: Callable[[Expression], Any]) -> Any:
        """Return those of a chunk that have an index; `made` returns rows by their expressions."""


class Mapped:
    """A rule for the rows of each chunk of some Shards, and for numbers."""

    def __init__(self, rule: Callable[..., Any], args: Sequence[Any]) -> None:
        self._rule, self._args = rule, args
        self.n_pending = 1 + sum(one.n_pending for one in args if pytree.is_sharded(one))

    def expression(self, inputs: Inputs) -> Expression:
        """Return the expression of the rows; `inputs` numbers what it speaks of."""
        return [self._rule.__name__, *(one.expression(inputs) if pytree.is_sharded(one) else one for one in self._args)]

    def home(self, number: int) -> str:
        """Return on which worker something of a chunk was left; empty for none."""
        homes = [one.home(number) for one in self._args if pytree.is_sharded(one)]
        return next(filter(None, homes), "")


class TaskInputs:
    """What tasks are given to make rows by an expression: Shards that are results of tasks, and calls."""

    def __init__(self) -> None:
        self.shards: dict[Any, int] = {}
        self.calls: dict[PastCall, int] = {}
        self.recomputations: list[Recomputation] = []

    def rows(self, shards: object) -> Expression:
        """Return the expression of Shards that are results of tasks."""
        return ["rows", self.shards.setdefault(shards, len(self.shards))]

    def left(self, call: PastCall, index: int) -> Expression:
        """Return the expression of what a call has left at one of its indices."""
        if call not in self.calls:
            recomputation = call.recomputation(call.expressions(self))
            self.calls[call] = len(self.calls)
            self.recomputations.append(recomputation)
        return ["left", self.calls[call], index]


class At(NamedTuple):
    """Which chunk a task is about, and where its rows may have been left; see `dagad_scheduler.running.placement`."""

    chunk: Chunk
    home: str


def tasks_of(
    lineage: Lineage, plan: AnyPlan, keys: Sequence[Key], names: Callable[..., Key]
) -> tuple[Graph, dict[Key, Any]]:
    """Return the tasks that make the rows of each chunk, by these keys, and what is kept that they need."""
    inputs, graph = TaskInputs(), Graph()
    expression, calls = lineage.expression(inputs), names("input", "calls")
    if inputs.recomputations:
        graph[calls] = DataNode(calls, inputs.recomputations)
    sent = dict[int, Key]()
    for chunk, key in zip(plan, keys, strict=True):
        owns = {number: own for call, number in inputs.calls.items() if (own := call.own(chunk.number))}
        for own in owns.values():
            if id(own) not in sent:
                sent[id(own)] = name = names("input", f"own-{len(sent)}")
                graph[name] = DataNode(name, own)
        refs = [TaskRef(sent[id(own)]) for own in owns.values()]
        rows = [one.rows(chunk.number) for one in inputs.shards]
        graph[key] = Task(
            key,
            made_rows,
            At(chunk, lineage.home(chunk.number)),
            expression,
            TaskRef(calls) if inputs.recomputations else [],
            list(owns),
            *refs,
            *rows,
        )
    return graph, {key: value for one in inputs.shards for key, value in one.kept.items()}


def made_rows(
    at: At, expression: Expression, calls: Sequence[Recomputation], owning: Sequence[int], *given: Any
) -> Any:
    """Make the rows of a chunk by an expression; of the calls that are `owning`, what was sent alone comes first."""
    count = len(owning)
    owns, rows = dict(zip(owning, given[:count], strict=True)), given[count:]

    def made(expression: Expression) -> Any:
        rule, *args = expression
        if rule == "left":
            number, index = args
            return calls[number].rows(at.chunk, index, owns.get(number, {}), made)
        return evaluated(expression, rows, made)

    return made(expression)


def there(rows: AnyRows) -> None:
    """Say that rows are there."""
    del rows


def evaluated(expression: Expression, rows: Sequence[Any], made: Callable[[Expression], Any]) -> Any:
    """Return rows that are there, or what a rule makes of others; `made` returns these by their expressions."""
    rule, *args = expression
    if rule == "rows":
        return rows[args[0]]
    return RULES[rule](*(arg if isinstance(arg, float) else made(arg) for arg in args))


def contents(rows: AnyRows) -> Any:
    """Return rows as the user gave them."""
    return opened(rows).merge(iter(()))


def gathered(rows: AnyRows) -> Rows:
    """Return rows with nothing left to be made, as they travel to whoever asks for them."""
    whole: Rows = opened(rows).made()
    return whole


def scaled_rows(rows: AnyRows, factor: float) -> Rows:
    """Return the floating-point leaves of rows times a number."""
    leaves, treedef = pytree.flatten(contents(rows))
    found = [_scaled(leaf, factor) if pytree.is_differentiable(leaf) else None for leaf in leaves]
    return Rows.of(pytree.unflatten(treedef, found))


def _scaled(leaf: Leaf, factor: float) -> Any:
    """Return a leaf times a number; zeros are zeros, whatever stood there."""
    return scaled(leaf, factor) if factor else pytree.zeros_like(leaf)


def added_rows(one: AnyRows, other: AnyRows) -> Rows:
    """Add the rows of two gradients."""
    trees = [pytree.flatten(contents(rows)) for rows in (one, other)]
    return Rows.of(pytree.unflatten(trees[0][1], [a + b for a, b in zip(trees[0][0], trees[1][0], strict=True)]))


# By their names residents know them.
RULES: dict[str, Callable[..., Any]] = {rule.__name__: rule for rule in (scaled_rows, added_rows)}
