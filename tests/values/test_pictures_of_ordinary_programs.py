"""What others change in ordinary programs between a value and its derivative: what is not read is no matter."""

from __future__ import annotations

import ctypes
import enum
import functools
import mmap
import struct
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad
from dagad import solvers
from dagad.extend import explicit

Case = tuple[Callable[[], Any], Callable[[], Any]]  # what a function reads, and what others do meanwhile


class Flag(enum.Flag):
    ONE = enum.auto()
    TWO = enum.auto()


class Counted:
    count = 0

    def __init__(self) -> None:
        type(self).count += 1
        self.k, self.log, self.rng = 2.0, list[Any](), np.random.default_rng(0)

    def noisy(self, is_training: bool) -> Any:
        return self.k * self.rng.random() if is_training else self.k


@functools.lru_cache
def filled(k: int) -> Any:
    return np.full(3, float(k))


def filled_anew() -> None:
    filled.cache_clear()
    filled(5)


rng, model = np.random.default_rng(0), Counted()


def seeded() -> Any:
    again = np.random.RandomState(0)
    again.seed(0)
    return 2.0 if again.rand() < 1.0 else rng.random()


MEANWHILE: dict[str, Case] = {
    "a cache is emptied and filled": (lambda: filled(2)[0], filled_anew),
    "somebody draws random numbers": (seeded, lambda: rng.random()),
    "others draw what a model draws in training": (lambda: model.noisy(False), lambda: model.noisy(True)),
    "a flag is turned round": (lambda: 2.0 if Flag.ONE in ~Flag.TWO else 0.0, lambda: ~Flag.ONE),
    "objects are counted in their class": (lambda: (model or Counted()).k, Counted),
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_a_solver_takes_no_notice_of_things_that_are_not_read(what: str) -> None:
    read, others = MEANWHILE[what]
    read()

    def loss(a: Any) -> Any:
        found = solvers.root(lambda x: x - read() * a * np.ones(1), np.zeros(1)).x[0]
        others()
        return found

    for _ in range(2):
        np.testing.assert_allclose(dagad.grad(loss)(0.7), 2.0, rtol=1e-8)


def test_an_explicit_function_whose_layer_draws_random_numbers_keeps_its_pullback() -> None:
    layer: Any = types.SimpleNamespace(rng=np.random.default_rng(0), scale=2.0)

    @explicit
    def fun(row: Any, x: Any) -> Any:
        kept = 1.0 + layer.rng.random()
        return layer.scale * kept * row * x, lambda seed: (None, seed * layer.scale * kept * row)

    value, slope = dagad.value_and_grad(lambda x: sum(dagad.map(fun, [1.0, 2.0, 3.0], x, scheduler="sync")))(0.7)
    np.testing.assert_allclose(slope, value / 0.7, rtol=1e-12)


# What is read, and has to be seen

ordered, of_c, shared = OrderedDict(a=1.0, b=2.0, c=3.0), (ctypes.c_double * 2)(), mmap.mmap(-1, 8)
bag = Counted()
proxy, reference = weakref.proxy(bag), weakref.ref(bag)


class Record(ctypes.Structure):
    _fields_ = (("k", ctypes.c_double),)


record: Any = Record()


def packed(k: float) -> None:
    shared[:8] = struct.pack("d", k)


SEEN: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "the order of a dict": (
        lambda k: ordered.move_to_end("abc"[int(k) - 1], last=False),
        lambda: next(iter(ordered.values())),
    ),
    "an array of C": (lambda k: of_c.__setitem__(0, k), lambda: of_c[0]),
    "a record of C": (lambda k: setattr(record, "k", k), lambda: record.k),
    "memory that is mapped": (packed, lambda: struct.unpack("d", shared[:8])[0]),
    "what a weak proxy stands for": (lambda k: setattr(bag, "k", k), lambda: proxy.k),
    "what a weak reference leads to": (lambda k: setattr(bag, "k", k), lambda: reference().k),  # type: ignore[union-attr]  # it is there
}


@pytest.mark.parametrize("what", SEEN)
def test_a_solver_sees_whatever_others_change(what: str) -> None:
    check(*SEEN[what])


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_solver_sees_what_a_layer_of_torch_has_learned(is_replaced: bool) -> None:
    torch = pytest.importorskip("torch")
    holder: Any = types.SimpleNamespace(layer=torch.nn.Linear(1, 1, bias=False).double())

    def put(k: float) -> None:
        if is_replaced:
            holder.layer.weight = torch.nn.Parameter(torch.full((1, 1), k, dtype=torch.float64))
        with torch.no_grad():
            holder.layer.weight.fill_(k)

    check(put, lambda: float(holder.layer.weight.detach()[0, 0]))


def check(put: Callable[[Any], Any], read: Callable[[], Any]) -> None:
    """Check that a derivative in rounds is right, or refused."""

    def loss(a: Any) -> Any:
        total = 0.0
        for k in (1.0, 2.0, 3.0):
            put(k)
            total = total + k * solvers.quad(lambda x, a: 2.0 * read() * a * x, 0.0, 1.0, args=(a,))[0]
        return total

    try:
        found = dagad.grad(loss)(0.7)
    except dagad.ClosureError:
        return
    np.testing.assert_allclose(found, 14.0, rtol=1e-8)


# Objects that say nothing of themselves


class Standing:
    """What stands for an object that is not there now."""

    k = 2.0

    @property
    def __dict__(self) -> Any:  # type: ignore[override]  # as such classes do
        raise RuntimeError("nothing is there")


class Unseen(np.ndarray):
    def view(self, *args: Any) -> Any:  # type: ignore[override]  # as such classes do
        raise RuntimeError("no view")


def released() -> memoryview:
    found = memoryview(bytearray(8))
    found.release()
    return found


@pytest.mark.parametrize("make", [Standing, lambda: np.ones(3).view(Unseen), released])
def test_objects_that_raise_when_they_are_looked_at_are_passed(make: Callable[[], Any]) -> None:
    strange = make()

    def double(x: Any) -> Any:
        return strange if x is None else 2.0 * x

    @explicit
    def fun(row: Any, x: Any) -> Any:
        return double(x) * row, lambda seed: (None, double(seed) * row)

    assert dagad.grad(lambda x: sum(dagad.map(fun, [1.0, 2.0], x, scheduler="sync")))(0.7) == 6.0
    found = dagad.grad(lambda a: solvers.root(lambda x: x - double(a) * np.ones(1), np.zeros(1)).x[0])(0.7)
    np.testing.assert_allclose(found, 2.0, rtol=1e-8)
