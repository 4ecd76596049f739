"""The fixed binary tree that partial results are combined by: bits depend on the number of terms, and on nothing else.

Neighbours are combined, then neighbours of these, and a last one without a neighbour goes up as it is. A task combines
`FAN_IN` terms, three levels at once; whoever owns a run of chunks combines the subtrees that lie in it.
"""

from __future__ import annotations

import itertools
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dagad._errors import StructureError
from dagad._graphs.monoids import NUMBERS, PLAIN, Monoid
from dagad._types import Value
from dagad._values import pytree
from dagad_scheduler.private import Task, TaskRef

Key = Any
FAN_IN = 8  # wide enough to cost little, narrow enough that few partial gradients are alive at once
_DOUBLE = np.dtype(float)


def sum_tree(
    terms: Sequence[Any], key_of: Callable[[int, int], Key], monoid: Monoid | None = None
) -> tuple[Any, dict[Key, Task]]:
    """Return a reference to the sum of `terms`, in their order, and the tasks that compute it.

    `key_of(level, position)` names the nodes. Without a monoid they are nodes of `add_up`, their own derivative.
    """
    tasks: dict[Key, Task] = {}
    level = 0
    while len(terms) > 1:
        above: list[Any] = []
        last = len(terms) <= FAN_IN
        for position, start in enumerate(range(0, len(terms), FAN_IN)):
            key, some = key_of(level, position), terms[start : start + FAN_IN]
            tasks[key] = Task(key, add_up, *some) if monoid is None else Task(key, combined, monoid, last, *some)
            above.append(TaskRef(key))
        terms, level = above, level + 1
    return terms[0], tasks


class RunningTree:
    """The same tree, term after term: holds one partial sum a level."""

    __slots__ = ("_monoid", "_partials")

    def __init__(self, monoid: Monoid = PLAIN) -> None:
        self._monoid = monoid
        self._partials: list[tuple[int, Any, bool]] = []  # level, sum, whether its memory was allocated here

    def push(self, term: Value) -> None:
        """Add the next term."""
        partials, level, ours = self._partials, 0, False
        if term is not None:
            term = self._monoid.lift(term)
        while partials and partials[-1][0] == level:
            term, ours = _sum_of_two(self._monoid, partials.pop()[1:], (term, ours))
            level += 1
        partials.append((level, term, ours))

    def total(self) -> Any:
        """Return the sum of all terms, not lowered."""
        *others, (_, *last) = self._partials
        term, ours = last
        for _, *below in reversed(others):
            term, ours = _sum_of_two(self._monoid, below, (term, ours))
        return term


class OpenTree:
    """The same tree, its terms in any order and from any thread: who brings the second of two neighbours adds them.

    `_waiting` holds sums that wait for their neighbours, by level and index, and changes under `_lock`; nothing is
    added under it.
    """

    __slots__ = ("_lock", "_monoid", "_n_terms", "_total", "_waiting")

    def __init__(self, n_terms: int, monoid: Monoid = PLAIN) -> None:
        self._n_terms, self._monoid, self._lock = n_terms, monoid, threading.Lock()
        self._waiting: dict[tuple[int, int], tuple[Any, bool]] = {}
        self._total: Any = None

    def push(self, number: int, term: Value) -> None:
        """Add the term of a number."""
        level, at, width, found = 0, number, self._n_terms, (None if term is None else self._monoid.lift(term), False)
        while width > 1:
            neighbour = at ^ 1
            if neighbour < width:
                with self._lock:
                    if (level, neighbour) not in self._waiting:
                        self._waiting[level, at] = found
                        return
                    other = self._waiting.pop((level, neighbour))
                found = _sum_of_two(self._monoid, *((other, found) if neighbour < at else (found, other)))
            level, at, width = level + 1, at >> 1, (width + 1) >> 1
        self._total = found[0]

    def total(self) -> Any:
        """Return the sum of all terms, not lowered, when all are there."""
        return self._total


class Fold:
    """The same tree for many small terms, added up a level at a time: the same sums by fewer calls."""

    __slots__ = ("_monoid", "_terms", "_tree")

    def __init__(self, monoid: Monoid = PLAIN) -> None:
        self._monoid = monoid
        self._terms: list[Any] = []
        self._tree = None if monoid == PLAIN else RunningTree(monoid)

    def push(self, term: Value) -> None:
        """Add the next term: a number, a list of arrays, or anything else."""
        if self._tree is not None:
            self._tree.push(term)
            return
        n_before = len(self._terms)
        self._terms.append(term)
        if (not n_before and not _is_small(term)) or n_before + 1 == MOST_STACKED:
            self._in_turn()

    def _in_turn(self) -> RunningTree:
        if self._tree is None:
            self._tree = RunningTree(self._monoid)
            for term in self._terms:
                self._tree.push(term)
            self._terms.clear()
        return self._tree

    def total(self) -> Any:
        """Return the sum of all terms, not lowered."""
        terms = self._terms
        if len(terms) == 1:
            return terms[0]
        if len(terms) >= FEWEST_STACKED:
            columns, whole = _columns_of(terms)
            totals = [_total_of(column) for column in columns]
            if not any(total is _UNLIKE for total in totals):
                return whole(totals)
        if len(terms) == 2 and self._tree is None:  # few large chunks, often
            return _sum_of_two(self._monoid, (terms[0], False), (terms[1], False))[0]
        return self._in_turn().total()


_UNLIKE = object()  # in place of a sum that the tree has to find
_COUNTS, _NOTHING = frozenset({int}), frozenset({type(None)})
FEWEST_STACKED, MOST_STACKED, LARGEST_STACKED = 8, 4096, 2**20


def _is_small(term: Value) -> bool:
    """Return whether many such terms may be held at the same time."""
    if type(term) in NUMBERS or type(term) is int:
        return True
    if type(term) is tuple:
        return all([_is_small(part) for part in term])
    nbytes = 0
    for leaf in term if type(term) is list and tuple not in map(type, term) else pytree.flatten(term)[0]:
        nbytes += leaf.nbytes if type(leaf) is np.ndarray else 8
    return nbytes <= LARGEST_STACKED / 256


def _columns_of(terms: list[Any]) -> tuple[Iterable[Any], Callable[[list[Any]], Any]]:
    """Return the leaves of terms, each with those of the other terms in its place, and what makes a term of leaves."""
    kinds = set(map(type, terms))
    if kinds <= NUMBERS or kinds == _COUNTS or kinds == _NOTHING:
        return [terms], operator.itemgetter(0)
    if kinds == {list} and len(set(map(len, terms))) == 1:
        return _columns_of_parts(terms, list) if tuple in map(type, terms[0]) else (zip(*terms, strict=True), list)
    if kinds == {tuple} and len(set(map(len, terms))) == 1:
        return _columns_of_parts(terms, tuple)
    pairs = list(map(pytree.flatten_with_none, terms))
    treedef = pairs[0][1]
    if any(other != treedef for _, other in pairs):
        return [[_UNLIKE]], list  # let the tree say where they differ
    return zip(*(leaves for leaves, _ in pairs), strict=True), partial(pytree.unflatten, treedef)


def _columns_of_parts(
    terms: list[Any], series: Callable[[list[Any]], Any]
) -> tuple[Iterable[Any], Callable[[list[Any]], Any]]:
    """Do so for terms that are tuples, or lists of these, part by part."""
    parts = [_columns_of(list(column)) for column in zip(*terms, strict=True)]
    columns = [list(own) for own, _ in parts]

    def whole(totals: list[Any]) -> Any:
        rest = iter(totals)
        return series([make([next(rest) for _ in own]) for own, (_, make) in zip(columns, parts, strict=True)])

    return itertools.chain.from_iterable(columns), whole


def _total_of(column: Sequence[Any]) -> Any:
    """Return the sum of leaves that are counts, or of double precision only and shaped alike; else `_UNLIKE`."""
    kinds = set(map(type, column))
    if kinds == _NOTHING:
        return None
    if kinds == _COUNTS:
        return sum(column)
    if kinds == {float}:
        return float(_added_up(np.array(column)))
    if kinds == {np.float64}:
        return _added_up(np.array(column))[()]
    if kinds != {np.ndarray} or {array.dtype for array in column} != {_DOUBLE} or not column[0].ndim:
        return _UNLIKE
    return _added_up(np.stack(column)) if len({array.shape for array in column}) == 1 else _UNLIKE


def _added_up(stack: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    while len(stack) > 1:
        even = len(stack) // 2 * 2
        sums = stack[:even:2] + stack[1:even:2]
        stack = np.concatenate([sums, stack[even:]]) if even < len(stack) else sums
    return np.asarray(stack[0])


class Subtree(NamedTuple):
    """Terms `start` to ``start + 2**level`` of a tree, or as many of these as there are."""

    start: int
    level: int

    def terms(self, n_terms: int) -> range:
        """Return the numbers of its terms."""
        return range(self.start, min(self.start + (1 << self.level), n_terms))


def subtrees(start: int, stop: int, n_terms: int) -> list[Subtree]:
    """Return the largest subtrees of the tree over `n_terms` that together are its terms `start` to `stop`."""
    found: list[Subtree] = []
    while start < stop:
        level = 0
        while not start % (2 << level) and (start + (2 << level) <= stop or stop == n_terms) and 1 << level < n_terms:
            level += 1
        while stop == n_terms and level and start + (1 << level - 1) >= n_terms:
            level -= 1  # the higher ones are the same terms
        found.append(Subtree(start, level))
        start += 1 << level
    return found


def whole_row(level: int, n_terms: int) -> list[Subtree]:
    """Return all subtrees of a level; the last one may be smaller."""
    width = 1 << level
    starts = range(0, n_terms, width)
    return [Subtree(at, level if at + width <= n_terms else (n_terms - at - 1).bit_length()) for at in starts]


def halves(part: Subtree, n_terms: int) -> list[Subtree]:
    """Return the two subtrees that a subtree adds; itself where it is a single term."""
    start, level = part
    while level and start + (1 << level - 1) >= n_terms:
        level -= 1
    if not level:
        return [Subtree(start, 0)]
    return [Subtree(start, level - 1), Subtree(start + (1 << level - 1), level - 1)]


class Span(NamedTuple):
    """Terms `start` to `stop` of a tree over so many: where they are added up, their largest subtrees are sums."""

    start: int
    stop: int
    n_terms: int

    def parts(self) -> list[Subtree]:
        """Return these subtrees."""
        return subtrees(*self)


def summed(span: Span, terms: Sequence[Any]) -> Any:
    """Return the sums of the subtrees of a span, from all its terms; a single sum comes bare."""
    return _bare(assembled_into(span.parts(), [(at, 0) for at in range(*span[:2])], terms, span.n_terms, PLAIN))


def add_up_spans(spans: Sequence[Span], *sums: Any) -> Any:
    """Return what `summed` does for spans that follow one another, from that of each; None adds nothing."""
    parts, found = list[Subtree](), list[Any]()
    for span, own in zip(spans, sums, strict=True):
        new = span.parts()
        parts += new
        found += [own] if len(new) == 1 else [None] * len(new) if own is None else own
    roots = subtrees(spans[0].start, spans[-1].stop, spans[0].n_terms)
    return _bare(assembled_into(roots, parts, found, spans[0].n_terms, PLAIN))


def _bare(sums: list[Any]) -> Any:
    return sums[0] if len(sums) == 1 else sums


def span_tree(
    terms: Sequence[Any], counts: Sequence[int], key_of: Callable[[int, int], Key]
) -> tuple[Any, dict[Key, Task]]:
    """Return the same as `sum_tree`, where a term may be what `summed` makes of as many of them as `counts` says."""
    n_terms, spans, tasks, level = sum(counts), spans_of(counts), dict[Key, Task](), 0
    while len(terms) > 1:
        above: list[Any] = []
        for position, start in enumerate(range(0, len(terms), FAN_IN)):
            key, some = key_of(level, position), slice(start, start + FAN_IN)
            tasks[key] = Task(key, add_up_spans, spans[some], *terms[some])
            above.append(TaskRef(key))
        starts = [span.start for span in spans[::FAN_IN]]
        spans = [Span(*pair, n_terms) for pair in zip(starts, [*starts[1:], n_terms], strict=True)]
        terms, level = above, level + 1
    return terms[0], tasks


def spans_of(counts: Sequence[int]) -> list[Span]:
    """Return the spans that terms are, which count so much and follow one another."""
    ends = list(itertools.accumulate(counts, initial=0))
    return [Span(*pair, ends[-1]) for pair in itertools.pairwise(ends)]


Parts = Sequence[tuple[int, int]]  # subtrees
A_FAULT = "Report it, with your `scheduler=`: what ran the chunks is at fault, not your function."


def assembled(parts: Parts, sums: Iterable[Any], n_terms: int, monoid: Monoid = PLAIN, **how: Any) -> Any:
    """Return the sum of a tree from those of subtrees that together are all of it; see `assembled_into`."""
    return assembled_into([(0, (n_terms - 1).bit_length())], parts, sums, n_terms, monoid, **how)[0]


def assembled_into(
    roots: Parts, parts: Parts, sums: Iterable[Any], n_terms: int, monoid: Monoid, partial: bool = False
) -> list[Any]:
    """Return the sums of the subtrees `roots` from those of their `parts`; if `partial`, others add nothing."""
    given = dict(zip(parts, sums, strict=True))
    if roots == parts:
        return list(given.values())
    used: list[Any] = []

    def at(start: int, level: int) -> tuple[Any, bool]:
        part = start, level
        if part in given:
            used.append(part)
            return given[part], False
        if not level:
            if partial:
                return None, False
            raise StructureError(f"A sum lacks what chunk {start} gave. {A_FAULT}")
        half = 1 << level - 1
        if start + half >= n_terms:
            return at(start, level - 1)
        return _sum_of_two(monoid, at(start, level - 1), at(start + half, level - 1))

    found = [at(*root)[0] for root in roots]
    if len(used) != len(parts):
        raise StructureError(f"Of the {len(parts)} parts of a sum, {len(used)} belong to it. {A_FAULT}")
    return found


def add_up_subtrees(monoid: Monoid, parts: Parts, n_terms: int, *terms: Any) -> Any:
    """Add the sums of some subtrees of a tree, as the tree does, and hand out the value; others add nothing."""
    sums = [None if term is None else monoid.lift(term) for term in terms]
    return monoid.lower(assembled(parts, sums, n_terms, monoid, partial=True))


def add_up(*terms: Any) -> Any:
    """Add values or cotangents, neighbours first; None adds nothing. Never writes into what it was given."""
    numbers = list(terms)
    if set(map(type, numbers)) <= NUMBERS:
        while len(numbers) > 1:
            rest = numbers[-1:] if len(numbers) % 2 else []
            numbers = [a + b for a, b in zip(numbers[::2], numbers[1::2], strict=False)] + rest
        return numbers[0] if numbers else None
    return combined(PLAIN, False, *terms)


def combined(monoid: Monoid, last: bool, *terms: Any) -> Any:
    """Combine terms, neighbours first; the `last` of all tasks hands out the value."""
    tree = RunningTree(monoid)
    for term in terms:
        tree.push(term)
    total = tree.total() if terms else None
    return monoid.lower(total) if last else total


def _sum_of_two(monoid: Monoid, a: Value, b: Value) -> tuple[Any, bool]:
    """Add two terms, each with whether its memory was allocated here and may be written to."""
    (a, a_ours), (b, b_ours) = a, b
    if a is None:
        return b, b_ours
    if b is None:
        return a, a_ours
    return monoid.add(a, b, a_ours), True
