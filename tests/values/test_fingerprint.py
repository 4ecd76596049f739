"""Frozen: is a function that has changed told from one that has only been defined again?"""

from __future__ import annotations

import functools
import math
import operator
import sys
import types
from collections import defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import autograd.numpy as anp
import cloudpickle
import numpy as np
import pytest
from autograd.extend import primitive

from dagad._api.bind import read_arguments
from dagad._engines.autograd import AutogradEngine
from dagad._engines.explicit import Explicit, ExplicitEngine
from dagad._graphs.linearization import Counters
from dagad._kernels.items import ItemSum, item_sum
from dagad._kernels.kernel import Summed
from dagad._values.fingerprint import fingerprint, has_same_parts, same
from dagad._values.pytree import flatten, register
from dagad.extend import Keep, Recompute

SCALE: Any = 2.0


def unchanged(one: Any, other: Any) -> bool:
    return same(fingerprint(one), fingerprint(other))


def is_frozen(thing: Any) -> bool:
    """Return whether nothing in it can change: then its fingerprint is that of itself."""
    taken = fingerprint(thing)
    assert (taken is not None) == same(taken, fingerprint(thing))
    return taken is not None


def capturing(contents: Any) -> Callable[..., Any]:
    def fun(rows: Any, theta: Any) -> Any:
        return contents

    return fun


def with_default(default: Any) -> Callable[..., Any]:
    def fun(rows: Any, theta: Any = default) -> Any:
        return theta

    return fun


def with_keyword(default: Any) -> Callable[..., Any]:
    def fun(rows: Any, *, theta: Any = default) -> Any:
        return theta

    return fun


def in_a_partial(argument: Any) -> Callable[..., Any]:
    return functools.partial(capturing(1.0), argument)


def in_a_partials_keyword(argument: Any) -> Callable[..., Any]:
    return functools.partial(capturing(1.0), theta=argument)


def nested(contents: Any) -> Callable[..., Any]:
    inner = capturing(contents)

    def outer(rows: Any, theta: Any) -> Any:
        return inner(rows, theta)

    return outer


def reading(value: Any, name: str = "SCALE") -> Callable[..., Any]:
    """Return a function of another module, as it were, with a global of its own."""
    scope = {"__name__": "elsewhere", name: value}
    made = types.FunctionType(_reader.__code__, scope, "_reader")
    return made


def _reader(rows: Any, theta: Any) -> Any:
    return SCALE * theta


WAYS = [capturing, with_default, with_keyword, in_a_partial, in_a_partials_keyword, nested, reading]
FROZEN: list[Any] = [
    *(1, -1, 0.5, 2.0 - 1.0j, "word", b"word", True, None, ..., math, np, np.sin, np.sum, len, math.sin, float),
    *(np.float64(0.5), np.float32(0.5), np.int64(3), np.bool_(True), (), (1.0, ("a", 2)), frozenset({1, 2})),
    *(ValueError, _reader, operator.add),
]


@dataclass
class Record:
    x: float


@dataclass(slots=True)
class Slotted:
    x: Any


@dataclass(frozen=True)
class WithRoom:
    x: Any


@dataclass(frozen=True, slots=True)
class Settings:
    x: Any
    y: Any = field(default=1.0, compare=False)


class Further(Settings):
    __slots__ = ("z",)


FROZEN += [Settings(1.0), Settings((1, Settings("a"))), Keep(), Recompute(counters=Counters())]
Pair = namedtuple("Pair", ["x", "y"])


class Tuned:
    """A record with metadata."""

    def __init__(self, weight: Any, options: Any) -> None:
        self.weight, self.options = weight, options


register(Tuned, lambda model: ((model.weight,), model.options), lambda options, parts: Tuned(parts[0], options))

MUTABLE = [
    *([1.0], {"a": 1.0}, {1.0}, bytearray(b"x"), np.ones(2), np.array(1.0), Record(1.0), object(), iter(()), range(3)),
    *(Pair([1.0], 2.0), ([1.0],), (np.ones(1),), ((1, ({},)),), {}.get, [].append, np.random.default_rng(0).normal),
    *(Slotted(1.0), WithRoom(1.0), Further(1.0), Settings([1.0]), Settings(1.0, np.ones(2))),
    *(Record(1.0).__repr__, types.SimpleNamespace(x=1.0), types.ModuleType("made"), primitive(lambda x: x)),
]


# The same


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("contents", FROZEN, ids=lambda value: repr(value).partition(" at 0x")[0])
def test_a_function_defined_again_has_the_same_fingerprint(way: Any, contents: Any) -> None:
    assert way(contents) is not way(contents)
    assert unchanged(way(contents), way(contents))


def test_equal_numbers_that_are_other_objects_have_the_same_fingerprint() -> None:
    assert unchanged(capturing(float("0.1")), capturing(float("0.10")))
    assert unchanged(capturing(10**30), capturing(10**30))
    assert unchanged(capturing(np.float64(0.25)), capturing(np.float64(0.25)))
    assert unchanged(capturing(("a", 1.5, (2,))), capturing(("a", float("1.5"), (2,))))


def test_a_recursive_function_defined_again_has_the_same_fingerprint() -> None:
    def make(step: float) -> Callable[..., Any]:
        def fun(rows: Any, theta: Any) -> Any:
            return fun(rows, theta - step) if theta > 0 else theta

        return fun

    assert unchanged(make(1.0), make(1.0))
    assert not unchanged(make(1.0), make(2.0))


def test_a_variable_without_a_value_has_a_fingerprint_of_its_own() -> None:
    def make(is_set: bool) -> Callable[..., Any]:
        def fun(rows: Any) -> Any:
            return late

        if is_set:
            late = 1.0
        return fun

    assert unchanged(make(False), make(False))
    assert not unchanged(make(False), make(True))


def test_a_fingerprint_sees_through_what_reductions_wrap_functions_in() -> None:
    for wrap in (ItemSum, Explicit, lambda fun: item_sum(Explicit(fun), ExplicitEngine())):
        assert unchanged(wrap(capturing(1.0)), wrap(capturing(1.0)))
        assert not unchanged(wrap(capturing(1.0)), wrap(capturing(2.0)))
        assert not unchanged(wrap(capturing(1.0)), capturing(1.0))
    assert not unchanged(ItemSum(capturing(1.0)), Explicit(capturing(1.0)))


@pytest.mark.parametrize("shared", [(), (2.0,), ((1.0, "a"), None)])
def test_a_chunk_function_of_the_usual_kind_is_frozen(shared: tuple[Any, ...]) -> None:
    """Else it would be pickled for every evaluation of a hot loop."""

    def state(scale: float, *, first: Any = shared) -> tuple[Any, ...]:
        def fun(rows: Any, theta: Any) -> Any:
            return anp.sum(anp.tanh(rows * theta)) * scale

        options = {"grainsize": 2, "engine": None, "policy": None, "scheduler": "sync"}
        read: Any = read_arguments(fun, np.zeros(4), first, options, Summed)
        return read.function.state()  # type: ignore[no-any-return]  # a tuple

    assert same(fingerprint(*state(1.0)), fingerprint(*state(1.0)))
    assert not same(fingerprint(*state(1.0)), fingerprint(*state(2.0)))
    assert not same(fingerprint(*state(1.0)), fingerprint(*state(1.0, first=(*shared, 3.0))))


def test_a_function_with_another_engine_has_another_fingerprint() -> None:
    assert not unchanged(AutogradEngine(), ExplicitEngine())


# Not the same


CHANGES = [
    *((1.0, 2.0), (0.0, -0.0), (1.0, 1), (True, 1), (False, 0), (1.0, True), (1, 1 + 0j), ("a", "b"), (b"a", "a")),
    *((None, 0), (np.float64(1.0), 1.0), (np.float32(1.0), np.float64(1.0)), (complex(0.0, -0.0), 0j)),
    *(((1.0,), (2.0,)), ((1.0,), (1.0, 1.0)), ((), ((),)), ((0.0, (0.0,)), (0.0, (-0.0,))), (((1,), 2), (1, (2,)))),
    *((Settings(1.0), Settings(2.0)), (Settings(1.0, 2), Settings(1.0)), (Keep(), Recompute()), (Keep(), Keep)),
    *((np.sin, np.cos), (len, sum), (math, operator), (int, float), (frozenset({1}), frozenset({2}))),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("before", "after"), CHANGES, ids=repr)
def test_a_function_that_holds_another_value_has_another_fingerprint(way: Any, before: Any, after: Any) -> None:
    assert not unchanged(way(before), way(after))
    assert not unchanged(way(after), way(before))


def test_nan_and_zero_have_different_fingerprints() -> None:
    assert not unchanged(capturing(math.nan), capturing(0.0))
    assert not unchanged(capturing(0.0), capturing(math.nan))


def test_functions_with_different_code_have_different_fingerprints() -> None:
    def one(rows: Any, theta: Any) -> Any:
        return rows

    def other(rows: Any, theta: Any) -> Any:
        return theta

    assert not unchanged(one, other)
    assert not unchanged(capturing(one), capturing(other))


def test_a_global_that_is_set_anew_changes_the_fingerprint_of_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def fun(rows: Any, theta: Any) -> Any:
        return [SCALE * row for row in rows]  # used in a comprehension, which may have a code of its own

    before = fingerprint(fun)
    assert same(before, fingerprint(fun))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert not same(before, fingerprint(fun))
    monkeypatch.delitem(globals(), "SCALE")
    assert not same(before, fingerprint(fun))


def test_a_fingerprint_shows_which_of_two_functions_is_used() -> None:
    def make(use_first: bool) -> Callable[..., Any]:
        first, second = capturing(1.0), nested(2.0)
        used = first if use_first else second

        def fun(rows: Any, theta: Any) -> Any:
            return first(rows, theta) + second(rows, theta) + used(rows, theta)

        return fun

    assert unchanged(make(True), make(True))
    assert not unchanged(make(True), make(False))


def test_fingerprints_of_different_numbers_of_parts_differ() -> None:
    assert not same(fingerprint(1.0), fingerprint(1.0, 1.0))
    assert not same(fingerprint(), fingerprint(1.0))
    assert same(fingerprint(), fingerprint())


# What may change


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("contents", MUTABLE, ids=lambda contents: type(contents).__name__)
def test_a_function_that_holds_a_mutable_object_is_not_frozen(way: Any, contents: Any) -> None:
    assert not is_frozen(way(contents))


def test_a_class_that_is_not_found_by_its_name_goes_by_what_it_consists_of() -> None:
    """Such a class travels with its attributes, and these may change."""

    class Base:
        rate = 1.0

    class Settings(Base):
        scale: Any = 1.0

        def scaled(self, x: Any) -> Any:
            return self.scale * x

        @property
        def twice(self) -> Any:
            return self.scaled(2.0)

    fun = capturing(Settings)
    for change in ("Settings.scale = 2.0", "Settings.scaled = capturing(1.0)", "Base.rate = 2.0", "Settings.new = 1"):
        before = fingerprint(fun)
        assert same(before, fingerprint(fun))
        exec(change, {"Settings": Settings, "Base": Base, "capturing": capturing})
        assert not same(before, fingerprint(fun)), change
    Settings.scale = [1.0]
    assert not is_frozen(fun)


def test_metadata_of_a_record_are_part_of_its_structure() -> None:
    """The structure is the same object for ever, and equals itself whatever becomes of what is in it."""
    options: dict[str, Any] = {"k": 1.0}
    assert not is_frozen(flatten(Tuned(1.0, options))[1])
    assert not is_frozen(flatten({"a": [Tuned(1.0, options)]})[1])
    for one, other in ((1.0, 2.0), ("a", "b"), ((1.0, ()), (1.0, (1,))), (capturing(1.0), capturing(2.0))):
        assert unchanged(flatten(Tuned(1.0, one))[1], flatten(Tuned(2.0, one))[1])
        assert not unchanged(flatten(Tuned(1.0, one))[1], flatten(Tuned(1.0, other))[1])
    assert unchanged(flatten({"a": 1.0, "b": [2.0]})[1], flatten({"a": 1.0, "b": [2.0]})[1])
    assert is_frozen(flatten(defaultdict(list, a=[1.0]))[1])


def test_attributes_of_a_partial_are_part_of_it() -> None:
    made: Any = functools.partial(min, 1.0)
    made.scale = 1.0
    before = fingerprint(capturing(made))
    assert same(before, fingerprint(capturing(made)))
    made.scale = 2.0
    assert not same(before, fingerprint(capturing(made)))
    made.scale = [2.0]
    assert not is_frozen(capturing(made))


def test_a_partial_that_leads_to_itself_is_not_frozen() -> None:
    made: Any = functools.partial(min, 1.0)
    made.itself = made
    assert not is_frozen(capturing(made))


def test_a_function_of_a_module_that_is_pickled_by_value_is_not_frozen() -> None:
    """Such a function travels with the globals that it reads, and these may be set anew."""
    assert is_frozen(_reader)
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        assert not _is_the_same_when(SCALE=3.0)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _is_the_same_when(**changed: Any) -> bool:
    before, found = fingerprint(_reader), {name: globals()[name] for name in changed}
    globals().update(changed)
    try:
        return same(before, fingerprint(_reader))
    finally:
        globals().update(found)


def test_a_function_with_attributes_is_not_frozen() -> None:
    fun: Any = capturing(1.0)
    fun.note = 1.0
    assert not is_frozen(fun)


def test_objects_without_a_fingerprint_are_not_the_same_as_themselves() -> None:
    assert not same(None, None)
    assert not same(fingerprint(1.0), None)
    assert not same(None, fingerprint(1.0))


def _kernel_of(fun: Callable[..., Any], shared: tuple[Any, ...] = (), engine: Any = None) -> Any:
    options: Any = {"scheduler": "sync", "grainsize": 2, "engine": engine or AutogradEngine(), "policy": Keep()}
    read: Any = read_arguments(fun, np.zeros(4), shared, options, Summed)
    return read.function


class EngineWithState(AutogradEngine):
    def __init__(self, state: float) -> None:
        self.state = state


def _add(rows: Any, *shared: Any) -> Any:
    return np.sum(rows) + sum(shared, 0.0)


_CARRYING: Any = capturing([1.0])
KERNELS: dict[str, tuple[Callable[[], Any], bool]] = {
    "one function": (lambda: _kernel_of(_add), True),
    "a function that is made again": (lambda: _kernel_of(capturing(0.0)), False),
    "one list in the closure": (lambda: _kernel_of(_CARRYING), True),  # at one moment it is what it is
    "an array": (lambda: _kernel_of(_add, (np.ones(2),)), False),
    "a number that is made again": (lambda: _kernel_of(_add, (float("0.5"),)), False),
    "an engine with a state": (lambda: _kernel_of(_add, engine=EngineWithState(1.0)), False),
    "a dict": (lambda: _kernel_of(_add, ({"a": 1},)), False),
}


@pytest.mark.parametrize("kind", KERNELS)
def test_kernels_have_the_same_parts_where_each_is_the_same_object(kind: str) -> None:
    make, expected = KERNELS[kind]
    assert has_same_parts(make(), make()) is expected
    assert has_same_parts(one := make(), one)


def test_a_truth_and_a_number_are_not_the_same_parts() -> None:
    assert not has_same_parts((1,), (True,))
    assert not has_same_parts(_kernel_of(_add, (1,)), _kernel_of(_add, (True,)))
    assert not has_same_parts(functools.partial(_add, 1), functools.partial(_add, 2))
    assert not has_same_parts(functools.partial(max, default=1), functools.partial(max, default=1))
