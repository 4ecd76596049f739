"""Forms of chunk functions that carry a value: each is made right, with another value in the place of the first."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import autograd.numpy as np
import numpy as onp

from support.waves import wave

FORMS: dict[str, Callable[[Any], Any]] = {}


def form(build: Any) -> Any:
    return FORMS.setdefault(build.__name__, build)


@form
def nested_function(t: Any) -> Any:
    def chunk(rows: Any) -> Any:
        return wave(rows, t)

    return chunk


@form
def function_two_levels_down(t: Any) -> Any:
    def helper(rows: Any) -> Any:
        def inner() -> Any:
            return wave(rows, t)

        return inner()

    return lambda rows: helper(rows)


@form
def derived_value(t: Any) -> Any:
    half, third = t / 2, [t / 3]
    return lambda rows: wave(rows, half + third[0] + t / 6)


@form
def assigned_after_definition(t: Any) -> Any:
    def chunk(rows: Any) -> Any:
        return wave(rows, later)

    later = 0.0
    later = t
    return chunk


@form
def default_argument(t: Any) -> Any:
    def chunk(rows: Any, scale: Any = t) -> Any:
        return wave(rows, scale)

    return chunk


@form
def keyword_only_default(t: Any) -> Any:
    def chunk(rows: Any, *, scale: Any = t, power: int = 1) -> Any:
        return wave(rows, scale**power)

    return chunk


@form
def partial_positional(t: Any) -> Any:
    return functools.partial(lambda scale, rows: wave(rows, scale), t)


@form
def partial_keyword(t: Any) -> Any:
    return functools.partial(wave, t=t)


@form
def partial_of_a_partial_of_a_closure(t: Any) -> Any:
    def product(a: Any, b: Any, rows: Any, c: Any = 1.0) -> Any:
        return wave(rows, a * b * c * t / 6)

    return functools.partial(functools.partial(product, 2.0), 3.0, c=1.0)


class Model:
    """A model with its parameters inside."""

    offset = 0.0

    def __init__(self, t: Any) -> None:
        self.t = t
        self.children: list[Any] = [self.t / 2, {"rest": self.t / 2}]

    def chunk(self, rows: Any) -> Any:
        return wave(rows, self.children[0] + self.children[1]["rest"] + self.offset)

    def __call__(self, rows: Any) -> Any:
        return self.chunk(rows)

    @property
    def doubled(self) -> Any:
        return 2 * self.t

    def by_property(self, rows: Any) -> Any:
        return wave(rows, self.doubled / 2)


class Child(Model):
    """Inherits everything."""


class Slotted:
    """Keeps its parameters in slots."""

    __slots__ = ("t",)

    def __init__(self, t: Any) -> None:
        self.t = t

    def __call__(self, rows: Any) -> Any:
        return wave(rows, self.t)


@dataclass(frozen=True)
class Frozen:
    t: Any
    rest: tuple[Any, ...] = field(default=())

    def __call__(self, rows: Any) -> Any:
        return wave(rows, self.t + sum(self.rest))


@dataclass(frozen=True, slots=True)
class FrozenSlotted:
    t: Any

    def chunk(self, rows: Any) -> Any:
        return wave(rows, self.t)


class Record(NamedTuple):
    t: Any
    name: str

    def __call__(self, rows: Any) -> Any:
        return wave(rows, self.t)


form(Model)
form(Child)
form(Slotted)
form(Frozen)


@form
def bound_method(t: Any) -> Any:
    return Model(t).chunk


@form
def bound_method_of_a_property(t: Any) -> Any:
    return Child(t).by_property


@form
def bound_method_of_a_frozen_record(t: Any) -> Any:
    return FrozenSlotted(t).chunk


@form
def bound_call(t: Any) -> Any:
    return Frozen(t / 2, (t / 4, t / 4)).__call__


@form
def namedtuple_with_a_call(t: Any) -> Any:
    return Record(t, "name")


@form
def object_in_a_closure(t: Any) -> Any:
    model = Model(t)
    return lambda rows: model.chunk(rows)


@form
def object_in_an_object(t: Any) -> Any:
    outer = types.SimpleNamespace(inner=types.SimpleNamespace(models=[Frozen(t), "text"]))
    return lambda rows: outer.inner.models[0](rows)


@form
def list_of_values(t: Any) -> Any:
    values = [t, 2.0, None]
    return lambda rows: wave(rows, values[0])


@form
def nested_containers(t: Any) -> Any:
    values: Any = {"a": ({"b": [1.0, (t,)]}, "text"), 3: frozenset({1})}
    return lambda rows: wave(rows, values["a"][0]["b"][1][0])


@form
def special_containers(t: Any) -> Any:
    values: Any = collections.OrderedDict(a=Record(t / 2, "x"), b=collections.defaultdict(list, c=t / 2))
    return lambda rows: wave(rows, values["a"].t + values["b"]["c"])


@form
def array_of_objects(t: Any) -> Any:
    values = onp.ones((1, 1), dtype=object)
    values[0, 0] = t
    return lambda rows: wave(rows, values[0, 0])


@form
def list_of_functions(t: Any) -> Any:
    functions: list[Any] = [
        lambda rows: rows * t,
        lambda rows: np.sin(rows),
        functools.partial(lambda s, rows: np.sum(rows * s), t),
    ]

    def chunk(rows: Any) -> Any:
        for function in functions:
            rows = function(rows)
        return rows

    return chunk


@form
def dict_of_functions(t: Any) -> Any:
    functions: dict[str, Any] = {"wave": lambda rows: wave(rows, t), "other": max}
    return lambda rows: functions["wave"](rows)


def logged(fun: Any) -> Any:
    @functools.wraps(fun)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fun(*args, **kwargs)

    return wrapper


@form
def decorated(t: Any) -> Any:
    @logged
    @logged
    def chunk(rows: Any) -> Any:
        return wave(rows, t)

    return chunk


@form
def decorated_with_an_argument(t: Any) -> Any:
    def scaled(scale: Any) -> Any:
        def decorate(fun: Any) -> Any:
            @functools.wraps(fun)
            def wrapper(rows: Any) -> Any:
                return fun(rows, scale)

            return wrapper

        return decorate

    return scaled(t)(wave)


@form
def static_and_class_methods(t: Any) -> Any:
    class Local:
        @staticmethod
        def first(rows: Any) -> Any:
            return wave(rows, t)

        @classmethod
        def second(cls, rows: Any) -> Any:
            return cls.first(rows)

    return Local.first


@form
def recursive_helper_without_the_value(t: Any) -> Any:
    def count(n: int) -> int:
        return 0 if n == 0 else 1 + count(n - 1)

    return lambda rows: wave(rows, t) * count(3) / 3


@form
def a_function_that_refers_to_itself(t: Any) -> Any:
    def chunk(rows: Any) -> Any:
        return wave(rows, t) if len(rows) < 99 else chunk(rows[1:])

    return chunk


@form
def an_attribute_of_the_function(t: Any) -> Any:
    def chunk(rows: Any) -> Any:
        return wave(rows, vars(chunk)["scale"])

    vars(chunk)["scale"] = t
    return chunk


@form
def a_deque(t: Any) -> Any:
    values = collections.deque([t])
    return lambda rows: wave(rows, values[0])


@form
def a_cached_function(t: Any) -> Any:
    @functools.cache
    def parameter() -> Any:
        return t

    return lambda rows: wave(rows, parameter())


@form
def objects_that_refer_to_each_other(t: Any) -> Any:
    parent = types.SimpleNamespace(child=types.SimpleNamespace())
    parent.child.parent, parent.t = parent, t
    return lambda rows: wave(rows, parent.child.parent.t)
