"""Sums: has a sum the same bits however its terms are shared out, and are the terms left as they were?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from autograd.extend import defvjp, primitive
from dask._task_spec import DataNode, GraphNode, Task, TaskRef
from hypothesis import given, settings, strategies as st

import dagad
from dagad import StructureError
from dagad._graphs.monoids import PLAIN
from dagad._graphs.sum_trees import (
    FAN_IN,
    Fold,
    OpenTree,
    RunningTree,
    Subtree,
    add_up,
    add_up_subtrees,
    assembled,
    assembled_into,
    halves,
    subtrees,
    sum_tree,
)
from support.examples import examples

Terms = list[Any]
Cuts = list[int]

often = settings(max_examples=examples(50), deadline=None, derandomize=True)


# Terms, their bits, and their sum by the book


def bits(tree: Any) -> Any:
    """Return what has to agree: types, structure and every bit."""
    if isinstance(tree, list | tuple):
        return type(tree).__name__, [bits(part) for part in tree]
    if isinstance(tree, dict):
        return {key: bits(part) for key, part in tree.items()}
    if tree is None:
        return None
    return type(tree).__name__, np.asarray(tree).dtype.str, np.shape(tree), np.asarray(tree).tobytes()


def plus(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, list | tuple):
        return type(a)(plus(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return {key: plus(a[key], b[key]) for key in a}
    return a + b


def by_the_book(terms: Sequence[Any]) -> Any:
    """Add neighbours, then neighbours of these; a last one without a neighbour goes up as it is."""
    level = list(terms)
    while len(level) > 1:
        pairs = [plus(*pair) for pair in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def one(kind: str, rng: np.random.Generator, gaps: float) -> Any:
    """Return a term: numbers of all magnitudes, so that the order of additions shows."""

    def number() -> float:
        return float(rng.standard_normal() * 10.0 ** rng.integers(-8, 8))

    def array(dtype: Any = float, order: Any = "C") -> Any:
        return np.array([[number(), number()], [number(), number()]], dtype, order=order)

    def perhaps(part: Any) -> Any:
        return None if rng.random() < gaps else part

    if kind == "list":  # what a chunk of a hot loop gives: its value, and cotangents
        return [number(), perhaps(array()), perhaps(array("f4")), perhaps(np.float64(number()))]
    if kind == "tangents":  # of a value with its gradient, in one direction; a count has none
        return (number(), [array(), perhaps(array())], 1), [(np.float64(number()), [array(), perhaps(array())], None)]
    made = {
        "float": number(),
        "float32": np.float32(number()),
        "complex": complex(number(), number()),
        "array": array(order="F"),
        "zero-d": np.array(number()),
        "float32 array": array("f4"),
        "tree": {"a": (array(), number()), "b": [array("c8"), perhaps(array())]},
        "nest": [[number(), [array(), perhaps(number())]], perhaps((number(), {"a": perhaps(array())})), number()],
    }
    return made[kind] if kind in ("tree", "nest") else perhaps(made[kind])


KINDS = ["float", "float32", "complex", "array", "zero-d", "float32 array", "list", "tangents", "tree", "nest"]


@st.composite
def terms_of(draw: Any, most: int = 80) -> Terms:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, gaps = draw(st.integers(1, most)), draw(st.sampled_from([0.0, 0.3, 0.9]))
    kind = draw(st.sampled_from(KINDS))
    return [one(kind, rng, gaps) for _ in range(count)]


@st.composite
def terms_and_cuts(draw: Any, most: int = 80) -> tuple[Terms, Cuts]:
    """Return terms, and where a worker's run of them ends and the next one's begins."""
    terms = draw(terms_of(most))
    return terms, sorted({0, len(terms), *draw(st.lists(st.integers(0, len(terms)), max_size=6))})


# The ways of adding up


def all_at_once(terms: Terms) -> Any:
    return add_up(*terms)


def one_after_the_other(terms: Terms) -> Any:
    tree = RunningTree()
    for term in terms:
        tree.push(term)
    return tree.total()


def a_level_at_a_time(terms: Terms) -> Any:
    fold = Fold()
    for term in terms:
        fold.push(term)
    return fold.total()


def in_any_order(terms: Terms) -> Any:
    tree = OpenTree(len(terms))
    for number in np.random.default_rng(len(terms)).permutation(len(terms)).tolist():
        tree.push(number, terms[number])
    return tree.total()


def by_tasks(terms: Terms) -> Any:
    graph: dict[Any, GraphNode] = {number: DataNode(number, term) for number, term in enumerate(terms)}
    total, tasks = sum_tree([TaskRef(number) for number in graph], lambda level, place: ("sum", level, place))
    return _run({**graph, **tasks}, total.key)


def _run(graph: dict[Any, GraphNode], key: Any) -> Any:
    return graph[key]({need: _run(graph, need) for need in graph[key].dependencies})


def by_subtrees(terms: Terms, cuts: Cuts) -> Any:
    """Let each worker add up the subtrees in its own run of terms."""
    parts = [part for start, stop in itertools.pairwise(cuts) for part in subtrees(start, stop, len(terms))]
    return assembled(parts, [one_after_the_other(covered(part, terms)) for part in parts], len(terms))


def covered(part: Subtree, terms: Terms) -> Terms:
    start, level = part
    return terms[start : start + (1 << level)]


WAYS: list[Callable[[Terms], Any]] = [
    all_at_once,
    one_after_the_other,
    a_level_at_a_time,
    in_any_order,
    by_tasks,
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS)
@often
@given(terms_of(most=200))
def test_every_way_of_adding_up_adds_neighbours_first(way: Callable[[Terms], Any], terms: Terms) -> None:
    expected = bits(by_the_book(terms))
    assert bits(way(terms)) == expected


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS)
@often
@given(terms_of(most=200), st.integers(0, 7))
def test_groups_of_any_power_of_two_are_whole_subtrees(way: Callable[[Terms], Any], terms: Terms, level: int) -> None:
    expected, size = bits(by_the_book(terms)), 1 << level
    groups = [one_after_the_other(terms[start : start + size]) for start in range(0, len(terms), size)]
    assert bits(way(groups)) == expected


@often
@given(terms_and_cuts())
def test_the_bits_of_a_sum_do_not_depend_on_who_has_which_run(drawn: tuple[Terms, Cuts]) -> None:
    terms, cuts = drawn
    expected = bits(by_the_book(terms))
    assert bits(by_subtrees(terms, cuts)) == expected


@often
@given(terms_of(most=40), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_the_bits_of_a_sum_do_not_depend_on_who_has_which_scattered_terms(
    terms: Terms, workers: int, seed: int
) -> None:
    owners, expected = np.random.default_rng(seed).integers(0, workers, len(terms)), bits(by_the_book(terms))
    sums: dict[Subtree, Any] = {}
    for _, run in itertools.groupby(range(len(terms)), lambda number: int(owners[number])):
        numbers = list(run)
        for part in subtrees(numbers[0], numbers[-1] + 1, len(terms)):
            sums[part] = one_after_the_other(covered(part, terms))
    assert bits(assembled(list(sums), sums.values(), len(terms))) == expected


@often
@given(terms_and_cuts(), st.integers(0, 8))
def test_the_bits_of_a_sum_do_not_depend_on_how_threads_share_a_subtree(drawn: tuple[Terms, Cuts], times: int) -> None:
    terms, cuts = drawn
    n_terms, found, expected = len(terms), dict[Subtree, Any](), bits(by_the_book(terms))
    for start, stop in itertools.pairwise(cuts):
        parts = subtrees(start, stop, n_terms)
        finer = list(parts)
        for _ in range(times):
            finer = [half for part in finer for half in halves(part, n_terms)]
        by_threads = [one_after_the_other(covered(part, terms)) for part in finer]
        found.update(zip(parts, assembled_into(parts, finer, by_threads, n_terms, PLAIN), strict=True))
    assert bits(assembled(list(found), found.values(), n_terms)) == expected


# Nothing is dropped in silence


@often
@given(terms_and_cuts(), st.data())
def test_a_sum_that_lacks_a_part_is_an_error(drawn: tuple[Terms, Cuts], data: st.DataObject) -> None:
    terms, cuts = drawn
    parts = [part for start, stop in itertools.pairwise(cuts) for part in subtrees(start, stop, len(terms))]
    sums = [one_after_the_other(covered(part, terms)) for part in parts]
    lost = data.draw(st.integers(0, len(parts) - 1))
    rest, others = parts[:lost] + parts[lost + 1 :], sums[:lost] + sums[lost + 1 :]
    with pytest.raises(StructureError, match=rf"lacks what chunk {parts[lost].start} gave.*Report it"):
        assembled(rest, others, len(terms))
    expected = assembled(parts, [*sums[:lost], None, *sums[lost + 1 :]], len(terms))
    assert bits(add_up_subtrees(PLAIN, rest, len(terms), *others)) == bits(expected)  # here it is meant


@pytest.mark.parametrize(
    "parts",
    [
        [(0, 1), (2, 0), (2, 0)],  # twice
        [(0, 1), (2, 0), (3, 0)],  # beyond the last term
        [(0, 1), (1, 0), (2, 0)],  # a part of another one
        [(0, 1), (1, 1), (2, 0)],  # no subtree
    ],
)
def test_a_part_that_does_not_belong_to_a_sum_is_an_error(parts: list[tuple[int, int]]) -> None:
    with pytest.raises(StructureError, match=r"Of the 3 parts of a sum, 2 belong to it.*Report it"):
        assembled(parts, [1.0, 2.0, 4.0], 3)
    with pytest.raises(StructureError, match="2 belong to it"):
        add_up_subtrees(PLAIN, parts, 3, 1.0, 2.0, 4.0)


# The shape of the tree


@often
@given(st.integers(1, 300), st.data())
def test_subtrees_are_all_of_a_run_and_no_more(n_terms: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n_terms))
    stop = data.draw(st.integers(start, n_terms))
    parts = subtrees(start, stop, n_terms)
    assert list(itertools.chain(*(covered(part, list(range(n_terms))) for part in parts))) == list(range(start, stop))
    assert len(parts) <= 2 * n_terms.bit_length()
    for part in parts:
        assert part.start % (1 << part.level) == 0
        assert not part.level or part.start + (1 << part.level - 1) < n_terms  # else it is a lower one


@often
@given(st.integers(1, 300), st.data())
def test_halves_are_a_subtree_again(n_terms: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n_terms - 1))
    for part in subtrees(start, n_terms, n_terms):
        everything = covered(part, list(range(n_terms)))
        finer = halves(part, n_terms)
        assert len(finer) == min(len(everything), 2)
        assert list(itertools.chain(*(covered(half, list(range(n_terms))) for half in finer))) == everything
        assert all(half.level < part.level for half in finer) or finer == [part]


@pytest.mark.parametrize("n_terms", [1, 2, 3, 7, 8, 9, 64, 65, 100, 513])
def test_all_terms_of_a_sum_are_one_subtree(n_terms: int) -> None:
    (whole,) = subtrees(0, n_terms, n_terms)
    assert assembled([whole], ["sum"], n_terms) == "sum"
    assert subtrees(0, 0, n_terms) == subtrees(n_terms, n_terms, n_terms) == []


def test_a_task_adds_whole_subtrees() -> None:
    assert FAN_IN & (FAN_IN - 1) == 0


# What is given is left alone


def locked(terms: Terms) -> Terms:
    """Make all arrays read-only, as they are that came in a message."""
    stack: list[Any] = list(terms)
    while stack:
        part = stack.pop()
        if isinstance(part, np.ndarray):
            part.flags.writeable = False
        elif isinstance(part, list | tuple | dict):
            stack.extend(part.values() if isinstance(part, dict) else part)
    return terms


@pytest.mark.sampled(6)
@pytest.mark.parametrize("way", WAYS)
@often
@given(terms_of())
def test_no_term_is_written_into(way: Callable[[Terms], Any], terms: Terms) -> None:
    before = bits(terms)
    way(terms)
    assert bits(terms) == before
    way(locked(terms))


@often
@given(terms_and_cuts())
def test_no_partial_sum_is_written_into(drawn: tuple[Terms, Cuts]) -> None:
    terms, cuts = drawn
    before = bits(terms)
    by_subtrees(terms, cuts)
    assert bits(terms) == before
    parts = [part for start, stop in itertools.pairwise(cuts) for part in subtrees(start, stop, len(terms))]
    sums = locked([by_the_book(covered(part, terms)) for part in parts])
    before, expected = bits(sums), bits(by_the_book(terms))
    assert bits(assembled(parts, sums, len(terms))) == expected
    assert bits(sums) == before


@pytest.mark.parametrize("gap", [None, [None, None]])
def test_a_term_added_to_nothing_is_not_written_into_afterwards(gap: Any) -> None:
    """A sum with nothing is the other term itself, which belongs to whoever gave it."""
    mine = np.ones(3)
    terms = [gap, [mine, None], [np.ones(3), None], [np.ones(3), None]]
    for way in WAYS:
        assert way(list(terms))[0].tolist() == [3.0, 3.0, 3.0]
        assert mine.tolist() == [1.0, 1.0, 1.0]


def test_a_cotangent_of_the_users_own_is_not_written_into() -> None:
    slope = np.ones(3)

    @primitive  # type: ignore[untyped-decorator]  # autograd has no types
    def height(theta: Any) -> Any:
        return np.dot(theta, slope)

    defvjp(height, lambda ans, theta: lambda cotangent: slope)

    def chunk(rows: Any, theta: Any) -> Any:
        return height(theta) if rows[0] else 0.0

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, np.arange(8), theta, grainsize=1, scheduler="sync")

    assert dagad.grad(loss)(np.zeros(3)).tolist() == [7.0, 7.0, 7.0]
    assert slope.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cut", [1, 2, 4])
def test_partial_sums_that_are_lists_of_lists_are_added_not_joined(cut: int, scheduler: Any) -> None:
    def chunk(rows: Any, t: Any) -> Any:
        return [[rows.sum() * t, t], (rows.sum(), [t]), {"square": t**2}, t]

    def total(t: Any) -> Any:
        return dagad.reduce_sum(chunk, np.arange(4.0), t, grainsize=cut, scheduler=scheduler)

    n, t = 4 // cut, 2.0
    assert total(t) == [[6.0 * t, n * t], (6.0, [n * t]), {"square": n * t**2}, n * t]

    def loss(t: Any) -> Any:
        (first, again), (_, [third]), squares, last = total(t)
        return first + 10.0 * again + 100.0 * third + 1000.0 * squares["square"] + last

    assert dagad.grad(loss)(t) == pytest.approx(6.0 + 110.0 * n + 2000.0 * t * n + n)


# Terms that do not agree


@pytest.mark.parametrize("way", [add_up, lambda *terms: one_after_the_other(list(terms))])
@pytest.mark.parametrize(
    "terms",
    [
        (np.ones(2), np.ones(3)),
        ([1.0, np.ones(2)], [1.0, np.ones(1)]),
        ([1.0], [1.0] * 2),
        (1.0, np.ones(1)),
        (np.ones(1), 1.0),
        ([1.0, np.ones(2)], [np.ones(2), 1.0]),
    ],
)
def test_terms_of_other_shapes_are_refused(way: Any, terms: Any) -> None:
    with pytest.raises(dagad.StructureError, match="partial sums of two chunks differ in"):
        way(*terms)


def test_tasks_of_sums_are_named_as_asked() -> None:
    _, tasks = sum_tree([TaskRef(number) for number in range(FAN_IN + 1)], lambda level, place: (level, place))
    assert set(tasks) == {(0, 0), (0, 1), (1, 0)}
    assert all(isinstance(task, Task) for task in tasks.values())
