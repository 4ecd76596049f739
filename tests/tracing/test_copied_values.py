"""Copies of traced values: whatever way Python copies what holds a parameter, the derivative goes on through it."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import pickle
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import autograd.builtins
import cloudpickle
import numpy as np
import pytest
from dask.base import compute as dask_compute
from dask.delayed import delayed

import dagad

compute: Any = dask_compute  # Dask has few types
ROWS = np.linspace(-1.0, 1.5, 6)


@dataclasses.dataclass
class Record:
    slope: Any
    start: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    slope: Any
    start: Any


class Named(NamedTuple):
    slope: Any
    start: Any


class Plain:
    def __init__(self, slope: Any, start: Any) -> None:
        self.slope, self.start = slope, start


class WithSlots:
    __slots__ = ("slope", "start")

    def __init__(self, slope: Any, start: Any) -> None:
        self.slope, self.start = slope, start


def of_objects(slope: Any, start: Any) -> Any:
    made = np.empty(2, object)
    made[0], made[1] = slope, start
    return made


def attributes(held: Any) -> tuple[Any, Any]:
    return held.slope, held.start


def entries(held: Any) -> tuple[Any, Any]:
    return held["slope"], held["start"]


def by_number(held: Any) -> tuple[Any, Any]:
    return held[0], held[1]


# What holds two parameters, how they are copied with it, and how they are taken out again.
Way = tuple[Callable[[Any, Any], Any], Callable[[Any], Any], Callable[[Any], tuple[Any, Any]]]
WAYS: dict[str, Way] = {
    "asdict": (Record, dataclasses.asdict, entries),
    "astuple": (Record, dataclasses.astuple, by_number),
    "replace": (Record, dataclasses.replace, attributes),
    "a record": (Record, copy.deepcopy, attributes),
    "a record, flat": (Record, copy.copy, attributes),
    "a frozen record": (Frozen, copy.deepcopy, attributes),
    "asdict of a frozen record": (Frozen, dataclasses.asdict, entries),
    "a named tuple": (Named, copy.deepcopy, attributes),
    "replaced in a named tuple": (Named, lambda held: held._replace(start=copy.deepcopy(held.start)), attributes),
    "an instance": (Plain, copy.deepcopy, attributes),
    "an instance, flat": (Plain, copy.copy, attributes),
    "slots": (WithSlots, copy.deepcopy, attributes),
    "a namespace": (lambda a, b: types.SimpleNamespace(slope=a, start=b), copy.deepcopy, attributes),
    "a dict": (lambda a, b: {"slope": a, "start": b}, copy.deepcopy, entries),
    "a dict, flat": (lambda a, b: {"slope": a, "start": b}, dict.copy, entries),
    "a default dict": (lambda a, b: collections.defaultdict(list, slope=a, start=b), copy.deepcopy, entries),
    "a list": (lambda a, b: [a, b], copy.deepcopy, by_number),
    "a deque": (lambda a, b: collections.deque([a, b]), copy.deepcopy, by_number),
    "a tuple": (lambda a, b: (a, [b]), copy.deepcopy, lambda held: (held[0], held[1][0])),
    "an array of objects": (of_objects, copy.deepcopy, by_number),
    "a partial": (lambda a, b: functools.partial(max, a, b), copy.deepcopy, lambda held: held.args),
    "a traced dict": (lambda a, b: autograd.builtins.dict(slope=a, start=b), copy.deepcopy, entries),
    "a traced list": (lambda a, b: autograd.builtins.list([a, b]), copy.deepcopy, by_number),
    "each by itself": (lambda a, b: (a, b), lambda held: (copy.deepcopy(held[0]), copy.copy(held[1])), by_number),
    "copied twice": (Record, lambda held: copy.deepcopy(copy.deepcopy(held)), attributes),
}


def copied(way: str, slope: Any, start: Any) -> tuple[Any, Any]:
    make, duplicate, take = WAYS[way]
    return take(duplicate(make(slope, start)))


STEPS: list[Callable[[Any, Any], tuple[Any, Any]]] = [
    lambda x, y: (np.sin(x * y[0]), y),
    lambda x, y: (x, y * np.exp(-x * x)),
    lambda x, y: (x + y[1] ** 2, y),
    lambda x, y: (np.sum(y) * x, np.tanh(y)),
]


def model(seed: int, ways: list[str]) -> Callable[[Any, Any], Any]:
    """Return a chunk function of random form, that copies some of its parameters, and what it computes, on the way."""
    rng = np.random.default_rng(seed)
    kinds, weights = rng.integers(0, 4, 3), rng.normal(size=3)

    def chunk(rows: Any, t: Any) -> Any:
        x, y = t[0], t[1:]
        for kind, weight, way in zip(kinds, weights, [*ways, *[None] * 3][:3], strict=True):
            if way is not None:
                x, y = copied(way, x, y)
            x, y = STEPS[kind](weight * x, y)
        return np.sum((x * rows + y[0]) ** 2) + np.sum(y**2) * len(rows)

    return chunk


AT = np.array([0.4, -0.7, 0.9])
V = np.array([0.3, 1.0, -0.5])


def check(chunk: Any, plain: Any, scheduler: Any = "sync") -> None:
    def loss(t: Any, chunk: Any = chunk) -> Any:
        return dagad.reduce_sum(chunk, ROWS, t, grainsize=2, scheduler=scheduler)

    def uncut(t: Any) -> Any:
        return plain(ROWS, t)

    value, gradient = dagad.value_and_grad(loss)(AT)
    assert value == pytest.approx(uncut(AT), rel=1e-12)
    expected = dagad.grad(uncut)(AT)
    np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(dagad.jvp(loss, AT, V)[1], expected @ V, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(dagad.hvp(loss, AT, V), dagad.hvp(uncut, AT, V), rtol=1e-8, atol=1e-10)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_parameter_in_a_chunk_keeps_its_derivatives(way: str) -> None:
    for seed in range(3):
        check(model(seed, [way, way, way]), model(seed, []))


def test_copies_of_any_kind_in_random_models_keep_their_derivatives(rounds: Callable[[int], int]) -> None:
    rng = np.random.default_rng(1)
    for seed in range(rounds(300)):
        ways = [str(way) for way in rng.choice(list(WAYS), size=3)]
        check(model(seed, ways), model(seed, []))


@pytest.mark.parametrize("way", ["asdict", "an array of objects", "a traced dict", "a partial"])
def test_a_copy_of_a_parameter_keeps_its_derivatives_wherever_chunks_run(way: str, scheduler: Any) -> None:
    check(model(7, [way, way]), model(7, []), scheduler)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_parameter_around_chunks_keeps_its_derivatives(way: str) -> None:
    def loss(t: Any, copies: bool) -> Any:
        x, y = copied(way, t[0], t[1:]) if copies else (t[0], t[1:])
        return dagad.reduce_sum(lambda r, x, y: np.sum(np.sin(r * x) * y[0] + y[1] ** 2), ROWS, x, y, scheduler="sync")

    def plain(t: Any) -> Any:
        return loss(t, False)

    expected, curved = dagad.grad(plain)(AT), dagad.hvp(plain, AT, V)
    for loss_of in (lambda t: loss(t, True), lambda t: loss(copy.deepcopy(t), False)):
        assert dagad.jvp(loss_of, AT, V)[1] == pytest.approx(expected @ V)
        np.testing.assert_allclose(dagad.hvp(loss_of, AT, V), curved, rtol=1e-10)
        np.testing.assert_allclose(dagad.grad(loss_of)(AT), expected, rtol=1e-12)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_parameter_in_a_task_of_a_graph_keeps_its_derivatives(way: str) -> None:
    def task(t: Any, ways: list[str]) -> Any:
        return model(3, ways)(ROWS, t)

    t = delayed(AT)
    y, plain = delayed(task)(t, [way, way]), delayed(task)(t, [])
    found = compute(dagad.gradient(y, t), dagad.gradient(plain, t), scheduler="sync")
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)
    tangents = compute(dagad.jvp(y, t, V)[1], dagad.jvp(plain, t, V)[1], scheduler="sync")
    assert tangents[0] == pytest.approx(tangents[1])


@pytest.mark.needs("attrs")
def test_a_copy_of_a_class_of_attrs_keeps_its_derivatives() -> None:
    attrs = pytest.importorskip("attrs")
    made = attrs.make_class("Made", ["slope", "start"])
    for duplicate, take in ((attrs.asdict, entries), (attrs.astuple, by_number), (attrs.evolve, attributes)):

        def chunk(rows: Any, t: Any, duplicate: Any = duplicate, take: Any = take) -> Any:
            slope, start = take(duplicate(made(t[0], t[1:])))
            return np.sum((slope * rows + start[0]) ** 2) + np.sum(start**2)

        check(chunk, lambda rows, t: np.sum((t[0] * rows + t[1]) ** 2) + 3 * np.sum(t[1:] ** 2))


def test_a_traced_value_in_a_pickle_is_refused_with_what_to_do() -> None:
    """What comes out of it would be a constant."""

    def by_pickle(rows: Any, t: Any) -> Any:
        return np.sum(pickle.loads(pickle.dumps(t))[0] * rows)

    def by_closure(rows: Any, t: Any) -> Any:
        return cloudpickle.loads(cloudpickle.dumps(lambda: np.sum(t * 2.0)))() * np.sum(rows)

    for chunk in (by_pickle, by_closure):
        for mode in (dagad.grad, lambda loss: lambda at: dagad.jvp(loss, at, V), dagad.hessian):
            with pytest.raises(dagad.ClosureError, match=r"can't be pickled.*as an argument"):
                mode(lambda t, chunk=chunk: dagad.reduce_sum(chunk, ROWS, t, scheduler="sync"))(AT)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, np.copy])
def test_a_copy_of_a_value_is_changed_in_place_alone(copied: Callable[[Any], Any]) -> None:
    def product(x: Any) -> Any:
        other = copied(x)
        other *= 2.0
        return np.sum(other * x)

    np.testing.assert_array_equal(dagad.grad(product)(ROWS), 4.0 * ROWS)
    assert dagad.jvp(product, ROWS, np.ones(6)) == (2.0 * np.sum(ROWS * ROWS), pytest.approx(4.0 * np.sum(ROWS)))
