"""Classes that go by value: do workers have what is in them now, no less and no more, and senders what they made?"""

from __future__ import annotations

import abc
import dataclasses
import enum
import os
import pickle
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from unittest import mock

import autograd.numpy as anp
import numpy as np
import pytest

import dagad
from dagad._values import arriving_classes
from dagad._values.shipping import pack
from dagad._values.singletons import Singletons

X = np.arange(1.0, 13.0).reshape(6, 2) / 3.0
THETA = np.array([0.7, -0.3])
T = TypeVar("T")
Step = tuple[Callable[[], Any], float]  # a change, and what the number is afterwards
Case = tuple[Callable[[], float], list[Step]]  # what a chunk takes a number from
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    return CASES.setdefault(make.__name__, make)


def nothing() -> None:
    """Change nothing."""


def set_and_deleted(cls: Any, name: str, value: Any, number: float, without: float) -> list[Step]:
    there = (lambda: setattr(cls, name, value)), number
    gone = (lambda: delattr(cls, name)), without
    return [(nothing, without), there, gone, there, (nothing, number), gone, (nothing, without)]


class Base:
    scale = 1.0

    def __call__(self) -> float:
        return self.scale


def derived() -> Any:
    class Derived(Base):
        pass

    return Derived


@case
def an_inherited_attribute() -> Case:
    cls = derived()
    held = cls()
    return lambda: held.scale, set_and_deleted(cls, "scale", 4.0, 4.0, 1.0)


@case
def an_attribute_that_is_patched_for_a_while() -> Case:
    cls = derived()
    patch = mock.patch.object(cls, "scale", 4.0)
    return lambda: cls.scale, [
        (nothing, 1.0),
        (patch.start, 4.0),
        (patch.stop, 1.0),
        (patch.start, 4.0),
        (patch.stop, 1),
    ]


@case
def an_attribute_that_becomes_that_of_the_base() -> Case:
    cls = derived()
    steps = [(lambda v=value: setattr(cls, "scale", v)) for value in (4.0, Base.scale, 3.0)]
    return lambda: cls.scale, list(zip([nothing, *steps, steps[1]], (1.0, 4.0, 1.0, 3.0, 1.0), strict=True))


@case
def a_call() -> Case:
    cls = derived()
    held = cls()
    return lambda: held(), set_and_deleted(cls, "__call__", lambda self: 5.0, 5.0, 1.0)


@case
def a_property() -> Case:
    cls = derived()
    return lambda: getattr(cls(), "more", 2.0), set_and_deleted(cls, "more", property(lambda self: 3.0), 3.0, 2.0)


@case
def a_property_of_a_metaclass() -> Case:
    class Meta(type):
        pass

    class Made(metaclass=Meta):
        pass

    return lambda: getattr(Made, "more", 2.0), set_and_deleted(Meta, "more", property(lambda cls: 3.0), 3.0, 2.0)


@case
def bases() -> Case:
    cls = derived()

    class Other:
        scale = 6.0

    class Base(Other):
        pass

    was = cls.__bases__
    there = (lambda: setattr(cls, "__bases__", (Base,))), 6.0
    back = (lambda: setattr(cls, "__bases__", was)), 1.0
    return lambda: cls.scale, [(nothing, 1.0), there, (nothing, 6.0), back, there, back]


@case
def the_metaclass() -> Case:
    class Meta(type):
        scale = 1.0

    class Other(type):
        scale = 2.0

    class Made(metaclass=Meta):
        pass

    steps = [(lambda v=value: setattr(Made, "__class__", v)) for value in (Other, Meta)]
    return lambda: Made.scale, list(zip([nothing, *steps], (1.0, 2.0, 1.0), strict=True))


@case
def a_name() -> Case:
    cls = derived()
    return lambda: float(len(cls.__name__)), [(nothing, 7.0), (lambda: setattr(cls, "__name__", "Short"), 5.0)]


@case
def a_generic_class() -> Case:
    class Of(Base, Generic[T]):
        pass

    return lambda: Of[int]()(), set_and_deleted(Of, "scale", 3.0, 3.0, 1.0)


@case
def an_abstract_class() -> Case:
    class Abstract(abc.ABC):
        def number(self) -> float:
            return 2.0

        @abc.abstractmethod
        def other(self) -> float:
            """Return anything."""

    class Concrete(Abstract):
        def other(self) -> float:
            return 0.0

    return lambda: Concrete().number(), set_and_deleted(Concrete, "number", lambda self: 4.0, 4.0, 2.0)


@case
def an_enumeration() -> Case:
    class Numbers(enum.Enum):
        first = 2.0

        def number(self) -> float:
            return float(self.value)

    return lambda: getattr(Numbers.first, "more", Numbers.first.number)(), set_and_deleted(
        Numbers, "more", lambda self: 3.0, 3.0, 2.0
    )


@case
def a_dataclass_with_slots() -> Case:
    @dataclasses.dataclass(slots=True)
    class Record:
        number: float = 2.0
        other: float = 1.0

    held = Record()
    return lambda: held.number * getattr(Record, "more", 1.0), set_and_deleted(Record, "more", 2.0, 4.0, 2.0)


@case
def what_one_base_has_and_another_hides() -> Case:
    class First(Base):
        pass

    class Second:
        scale = 7.0

    class Both(First, Second):
        scale = Second.scale

    return lambda: Both.scale, [(nothing, 7.0)]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("how", ["rows", "Shards"])
@pytest.mark.parametrize("name", CASES)
def test_a_class_is_on_workers_what_it_is_here(name: str, how: str, cluster: Any) -> None:
    number, steps = CASES[name]()
    data: Any = dagad.shard(X, grainsize=2, scheduler=cluster) if how == "Shards" else X
    options = {} if how == "Shards" else {"grainsize": 2, "scheduler": cluster}

    def chunk(rows: Any, theta: Any) -> Any:
        return number() * anp.sum(rows * theta**2)

    for change, expected in steps:
        change()
        value, gradient = dagad.value_and_grad(lambda t: dagad.reduce_sum(chunk, data, t, **options))(THETA)
        np.testing.assert_allclose(value, expected * np.sum(X * THETA**2), rtol=1e-13)
        np.testing.assert_allclose(gradient, expected * 2.0 * X.sum(0) * THETA, rtol=1e-13)


def test_a_deleted_class_attribute_that_a_users_own_task_brought_is_gone_on_workers(cluster: Any) -> None:
    cls = derived()
    with mock.patch.object(cls, "scale", 4.0):
        assert set(cluster.run(lambda: cls.scale).values()) == {4.0}
    assert dagad.map(lambda row, t: cls.scale * t, X, 1.0, scheduler=cluster).tolist() == [1.0] * len(X)


def test_attributes_that_code_on_a_worker_gives_a_class_stay_there(cluster: Any) -> None:
    class Table:
        scale = 1.0

        @classmethod
        def has_been_made(cls) -> float:
            if hasattr(cls, "made"):
                return 1.0
            setattr(cls, "made", {})  # noqa: B010  # mypy has not seen it before
            return 0.0

    known = set[float]()
    for scale in range(4):  # one of two workers gets it at least twice
        Table.scale = float(scale)
        found = dagad.map(lambda row, t: np.array([os.getpid(), Table.has_been_made()]) * t, X, 1.0, scheduler=cluster)
        assert all(made for process, made in found if process in known)
        known.update(found[:, 0])
    assert len(known) < 4


class FromHere:
    scale = 1.0


FromHere.__module__ = "__main__"  # as in a script


@pytest.mark.parametrize("is_local", [True, False])
def test_a_class_that_comes_back_late_is_what_it_is_now_where_it_was_made(
    is_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import __main__

    monkeypatch.setattr(__main__, "FromHere", FromHere, raising=False)
    cls: Any = derived() if is_local else FromHere
    sent = pickle.dumps(pack(cls))
    cls.scale, cls.more = 2.0, 3.0
    assert pickle.loads(sent).open() is cls
    assert (cls.scale, cls.more) == (2.0, 3.0)


def test_a_class_that_cannot_be_given_its_bases_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cls = derived()

    class Layout(Base):
        __slots__ = ("more",)

    others = {**arriving_classes.of_type(cls), "__bases__": (Layout,)}
    monkeypatch.setattr(arriving_classes, "of_type", lambda cls: others)
    sent = pickle.dumps(pack(cls))
    arriving_classes._made_here.clear()  # as in another process
    with pytest.raises(
        dagad.PortabilityError, match=r"`derived.<locals>.Derived` has other bases.*Restart the workers"
    ):
        pickle.loads(sent).open()


def test_other_bases_and_names_of_a_singleton_are_noticed() -> None:
    cls = derived()
    found = Singletons([cls])
    assert found.are_as_found()
    cls.__bases__ = (type("Other", (Base,), {}),)
    assert not found.are_as_found()
    cls.__bases__ = (Base,)
    assert found.are_as_found()
    cls.__name__ = "Other"
    assert not found.are_as_found()
