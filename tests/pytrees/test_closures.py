"""Closures: whatever carries the value being differentiated, is the gradient right or refused by name?"""

from __future__ import annotations

import collections
import contextvars
import functools
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
from every_mode import MODES, check, derivatives

import dagad
from dagad._pytrees.closures import hoist

ROWS = onp.linspace(-1.0, 2.0, 9)


def wave(rows: Any, t: Any) -> Any:
    return np.sum(np.sin(rows * t) * t)


def expected_at(t: float) -> tuple[float, float]:
    return float(wave(ROWS, t)), float(autograd.grad(lambda t: wave(ROWS, t))(t))


# --- forms that are made right ----------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("name", FORMS)
def test_is_the_gradient_right_whatever_carries_the_value(name: str, scheduler: Any) -> None:
    build = FORMS[name]
    value, slope = expected_at(0.7)
    for differentiate in (dagad.value_and_grad, autograd.value_and_grad):
        found = differentiate(lambda t: dagad.reduce_sum(build(t), ROWS, grainsize=4, scheduler=scheduler))(0.7)
        assert found[0] == pytest.approx(value, rel=1e-13)
        assert found[1] == pytest.approx(slope, rel=1e-12)


@pytest.mark.parametrize("name", ["nested_function", "Model", "partial_keyword", "list_of_functions", "decorated"])
def test_is_a_second_derivative_right_whatever_carries_the_value(name: str) -> None:
    expected = autograd.grad(autograd.grad(lambda t: wave(ROWS, t)))(0.7)
    found = dagad.grad(dagad.grad(lambda t: dagad.reduce_sum(FORMS[name](t), ROWS, grainsize=4)))(0.7)
    assert found == pytest.approx(expected, rel=1e-11)


def test_may_a_value_come_by_a_closure_and_by_an_argument(scheduler: Any) -> None:
    def loss(t: Any) -> Any:
        scale = onp.array([1.0, 2.0]) * t
        return dagad.reduce_sum(
            lambda rows, u: wave(rows, t) * u * scale[1], ROWS * t, t, grainsize=4, scheduler=scheduler
        )

    expected = autograd.grad(lambda t: sum([wave(ROWS[i : i + 4] * t, t) * t * 2 * t for i in range(0, 9, 4)]))(0.7)
    assert dagad.grad(loss)(0.7) == pytest.approx(expected, rel=1e-12)


def test_may_arrays_be_closed_over(scheduler: Any) -> None:
    theta = onp.array([0.5, -1.0, 2.0])

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(
            lambda rows: np.sum(np.tanh(np.outer(rows, theta))), ROWS, grainsize=4, scheduler=scheduler
        )

    expected = autograd.grad(lambda theta: np.sum(np.tanh(np.outer(ROWS, theta))))(theta)
    assert onp.allclose(dagad.grad(loss)(theta), expected, rtol=1e-12)


def test_may_items_be_mapped_by_a_closure(scheduler: Any) -> None:
    def loss(t: Any) -> Any:
        return dagad.map_sum(lambda row: wave(row, t), ROWS, grainsize=4, scheduler=scheduler)

    assert dagad.grad(loss)(0.7) == pytest.approx(expected_at(0.7)[1], rel=1e-12)


def test_may_a_reduction_inside_a_chunk_close_over_the_chunks_values(scheduler: Any) -> None:
    def outer(rows: Any, t: Any) -> Any:
        scale = t * rows[0]
        return dagad.reduce_sum(lambda inner: wave(inner, scale) * t, rows, grainsize=2)

    def plain(t: Any) -> Any:
        return sum([wave(ROWS[i : i + 4], t * ROWS[i]) * t for i in range(0, 9, 4)])

    found = dagad.grad(lambda t: dagad.reduce_sum(outer, ROWS, t, grainsize=4, scheduler=scheduler))(0.7)
    assert found == pytest.approx(autograd.grad(plain)(0.7), rel=1e-12)


def test_may_a_boxed_container_of_autograds_be_closed_over() -> None:
    """Inside autograd's own grad a dict of parameters is one traced object; its entries are, once taken out."""

    def whole(params: Any) -> Any:
        return dagad.reduce_sum(lambda rows: wave(rows, params["a"] * params["b"][0]), ROWS, grainsize=4)

    def entries(params: Any) -> Any:
        a, b = params["a"], params["b"][0]
        return dagad.reduce_sum(lambda rows: wave(rows, a * b), ROWS, grainsize=4)

    at = {"a": 0.7, "b": [1.0]}
    assert autograd.grad(entries)(at)["a"] == pytest.approx(expected_at(0.7)[1], rel=1e-12)
    assert dagad.grad(whole)(at)["a"] == pytest.approx(expected_at(0.7)[1], rel=1e-12)
    assert autograd.grad(whole)(at)["a"] == pytest.approx(expected_at(0.7)[1], rel=1e-12)


class Event:
    """Has an attribute of the name that autograd's traced values have."""

    def __init__(self, x: float) -> None:
        self.x, self._trace = x, "a log"

    def wave(self, rows: Any) -> Any:
        return wave(rows, self.x)


def test_is_an_object_with_a_trace_of_its_own_no_traced_value(scheduler: Any) -> None:
    events = [Event(x) for x in ROWS]

    def by_rows(events: Any, t: Any) -> Any:
        return wave(np.array([event.x for event in events]), t)

    def by_argument(rows: Any, event: Any, t: Any) -> Any:
        return wave(rows, t * event.x)

    losses: list[Any] = [
        lambda t: dagad.reduce_sum(by_rows, events, t, grainsize=4, scheduler=scheduler),
        lambda t: dagad.reduce_sum(by_argument, ROWS, Event(1.0), t, grainsize=4, scheduler=scheduler),
        lambda t: dagad.reduce_sum(Event(t).wave, ROWS, grainsize=4, scheduler=scheduler),
    ]
    for loss in losses:
        assert dagad.grad(loss)(0.7) == pytest.approx(expected_at(0.7)[1], rel=1e-12)


# --- nothing is changed -----------------------------------------------------------------------------------------------


def test_is_the_users_own_object_left_alone() -> None:
    seen: list[Any] = []

    def loss(t: Any) -> Any:
        model = Model(t)
        before = dict(vars(model))
        result = dagad.reduce_sum(model.chunk, ROWS, grainsize=4)
        seen.append(all(vars(model)[key] is before[key] for key in before))
        return result

    dagad.grad(loss)(0.7)
    assert seen == [True]


def test_has_a_function_made_again_its_name_and_its_attributes() -> None:
    names: list[Any] = []

    def loss(t: Any) -> Any:
        def chunk(rows: Any, *, by: int = 2) -> Any:
            """Do something."""
            return wave(rows, t)

        vars(chunk)["mark"] = "mine"
        values, make = hoist(chunk)
        made = make([0.5])
        names.append((made.__name__, made.__qualname__, made.__doc__, made.__module__, made.mark, made.__kwdefaults__))
        assert len(values) == 1
        return dagad.reduce_sum(chunk, ROWS)

    dagad.grad(loss)(0.7)
    assert names[0][0] == "chunk"
    assert names[0][1].endswith("loss.<locals>.chunk")
    assert names[0][2:] == ("Do something.", __name__, "mine", {"by": 2})


def test_carries_a_function_without_traced_values_nothing_to_hoist() -> None:
    model = Model(0.5)
    values, make = hoist(model.chunk)
    assert values == []
    assert make([]) == model.chunk


# --- what is refused --------------------------------------------------------------------------------------------------

GLOBAL: Any = None
IN_A_LIST: list[Any] = []
IN_AN_OBJECT = types.SimpleNamespace(deep=[None])
MODULE = types.ModuleType("mine")
VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE")


class Shared:
    t: Any = None

    def __call__(self, rows: Any) -> Any:
        return wave(rows, self.t)


def global_chunk(rows: Any) -> Any:
    return wave(rows, GLOBAL)


def global_helper(rows: Any) -> Any:
    return global_chunk(rows)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {}


def refused(name: str) -> Callable[[Any], Any]:
    return lambda build: REFUSED.setdefault(build.__name__, (build, name))


@refused("GLOBAL")
def a_global(t: Any) -> Any:
    globals()["GLOBAL"] = t
    return global_chunk


@refused("GLOBAL")
def a_global_of_a_helper(t: Any) -> Any:
    globals()["GLOBAL"] = t
    return lambda rows: global_helper(rows)


@refused("IN_A_LIST")
def a_global_list(t: Any) -> Any:
    IN_A_LIST[:] = [t]
    return lambda rows: wave(rows, IN_A_LIST[0])


@refused("IN_AN_OBJECT")
def a_global_object(t: Any) -> Any:
    IN_AN_OBJECT.deep[0] = t
    return lambda rows: wave(rows, IN_AN_OBJECT.deep[0])


@refused(r"MODULE\.t")
def an_attribute_of_a_module(t: Any) -> Any:
    vars(MODULE)["t"] = t
    return lambda rows: wave(rows, MODULE.t)


BESIDE = """
def chunk(rows):
    from . import beside
    return wave(rows, beside.t)
"""


@refused(r"carrying\.beside\.t")
def an_attribute_of_a_module_beside_it(t: Any) -> Any:
    package, beside = types.ModuleType("carrying"), types.ModuleType("carrying.beside")
    vars(beside)["t"], vars(package)["beside"] = t, beside
    sys.modules |= {"carrying": package, "carrying.beside": beside}
    own: dict[str, Any] = {"__name__": "carrying.own", "__package__": "carrying", "wave": wave}
    exec(BESIDE, own)
    return own["chunk"]


@refused(r"Shared\.t")
def an_attribute_of_a_class(t: Any) -> Any:
    Shared.t = t
    return Shared()


@refused(r"Shared\.t")
def an_attribute_of_a_global_class(t: Any) -> Any:
    Shared.t = t
    return lambda rows: wave(rows, Shared.t)


@refused(".")
def a_context_variable(t: Any) -> Any:
    VARIABLE.set(t)
    return lambda rows: wave(rows, VARIABLE.get())


@refused(".")
def a_local_class(t: Any) -> Any:
    class Local:
        def __call__(self, rows: Any) -> Any:
            return wave(rows, t)

    return Local()


@refused(".")
def an_iterator(t: Any) -> Any:
    values = iter([t] * 99)
    return lambda rows: wave(rows, next(values))


@pytest.fixture
def _clean() -> Any:
    yield
    globals()["GLOBAL"], Shared.t, IN_AN_OBJECT.deep[0] = None, None, None
    IN_A_LIST.clear()
    vars(MODULE).pop("t", None)
    sys.modules.pop("carrying", None)
    sys.modules.pop("carrying.beside", None)


@pytest.mark.usefixtures("_clean")
@pytest.mark.parametrize("name", REFUSED)
def test_is_a_way_that_cant_be_replaced_refused_by_name(name: str, scheduler: Any) -> None:
    build, found = REFUSED[name]
    for more in ((), (0.5,)):  # another value is differentiated as an argument, or none

        def loss(t: Any, more: Any = more) -> Any:
            fun = build(t)
            chunk = (lambda rows, u: fun(rows) * u) if more else fun
            return dagad.reduce_sum(chunk, ROWS, *(t * u for u in more), grainsize=4, scheduler=scheduler)

        with pytest.raises((dagad.ClosureError, dagad.PortabilityError), match=found) as caught:
            dagad.grad(loss)(0.7)
        assert "shared argument" in str(caught.value) or (found == "." and "can't be pickled" in str(caught.value))


@pytest.mark.usefixtures("_clean")
def test_is_a_global_fine_that_nobody_differentiates_in(scheduler: Any) -> None:
    for build, _ in list(REFUSED.values())[:7]:
        build(0.7)
    loss = functools.partial(
        dagad.reduce_sum, lambda rows, t: np.sum(rows * t) * IN_AN_OBJECT.deep[0], ROWS, grainsize=4
    )
    assert dagad.grad(functools.partial(loss, scheduler="threads"))(1.0) == pytest.approx(ROWS.sum() * 0.7)


def test_is_forward_mode_of_autograd_through_a_closure_refused_or_right() -> None:
    jvp = autograd.make_jvp(lambda t: dagad.reduce_sum(lambda rows: wave(rows, t), ROWS, grainsize=4))
    try:
        tangent = jvp(0.7)(1.0)[1]
    except (NotImplementedError, dagad.DagadError):
        return
    assert tangent == pytest.approx(expected_at(0.7)[1], rel=1e-12)


# --- what is found when it comes out: one rule for all modes ----------------------------------------------------------

LEAKS: dict[str, Callable[[], Callable[[Any, Any], Any]]] = {}
MEMO: dict[str, Any] = {}


def leak(build: Any) -> Any:
    return LEAKS.setdefault(build.__name__, build)


@leak
def a_dict_in_a_closure() -> Any:
    cache: dict[str, Any] = {}
    return lambda rows, t: np.sum(rows * cache.setdefault("t", t**2))


@leak
def a_dict_in_a_closure_beside_the_value() -> Any:
    cache: dict[str, Any] = {}
    return lambda rows, t: np.sum(rows * cache.setdefault("t", t**2) * t)


@leak
def a_nonlocal_variable() -> Any:
    kept = None

    def chunk(rows: Any, t: Any) -> Any:
        nonlocal kept
        kept = t**2 if kept is None else kept
        return {"a": [np.sum(rows * kept), t]}["a"][0]

    return chunk


@leak
def a_field_of_a_record() -> Any:
    record = types.SimpleNamespace(kept=[])

    def chunk(rows: Any, t: Any) -> Any:
        record.kept.append(t**2)
        return np.sum(rows * record.kept[0])

    return chunk


@leak
def a_global_dict() -> Any:
    MEMO.clear()
    return lambda rows, t: np.sum(rows * MEMO.setdefault("t", t**2))


@leak
def a_cache_of_a_derivative_inside_the_chunk() -> Any:
    cache: dict[str, Any] = {}

    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(rows) * dagad.grad(lambda u: cache.setdefault("u", u**3))(t)

    return chunk


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", LEAKS)
@pytest.mark.parametrize("place", ["sync", "threads"])
def test_is_a_traced_value_of_another_chunk_refused_in_every_mode(name: str, mode: str, place: str) -> None:
    chunk = LEAKS[name]()
    with pytest.raises(dagad.ClosureError, match=r"shared argument|Compute it again"):
        check(mode, lambda t: dagad.reduce_sum(chunk, ROWS, t, grainsize=2, scheduler=place), [0.0] * 3)
    MEMO.clear()


@pytest.mark.parametrize("mode", MODES)
def test_is_a_value_left_over_from_a_derivative_that_is_over_refused(mode: str) -> None:
    cache: dict[str, Any] = {}

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: np.sum(rows * cache.setdefault("t", t**2)), ROWS, t, grainsize=9)

    right = derivatives(lambda t: np.sum(ROWS) * t**2)
    assert dagad.grad(loss)(0.7) == pytest.approx(right[1])  # one chunk: it is its own value
    with pytest.raises(dagad.ClosureError, match=r"kept, in a cache .* Compute it again"):
        check(mode, loss, right)
    if mode != "autograd's grad":
        with pytest.raises(dagad.ClosureError, match="Compute it again"):
            check(mode, lambda t: t * cache["t"], right)


@pytest.mark.parametrize("mode", MODES)
def test_is_a_value_of_a_derivative_that_another_thread_is_in_refused(mode: str) -> None:
    """It was taken for a constant: 0 for the derivative inside, without a word, when two threads met there."""
    cache: dict[str, Any] = {}
    put, taken = threading.Event(), threading.Event()

    def cube(u: Any, leads: bool) -> Any:
        if leads:
            cache["u"] = u**3
            put.set()
            taken.wait(20)
        put.wait(20)
        return cache["u"]

    def chunk(rows: Any, t: Any) -> Any:
        leads = rows[0] == ROWS[0]
        try:
            return np.sum(rows) * dagad.grad(lambda u: cube(u, leads))(t)
        finally:
            if not leads:
                taken.set()

    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(dagad.ClosureError, match=r"shared argument|Compute it again"):
            check(mode, lambda t: dagad.reduce_sum(chunk, ROWS, t, grainsize=5, scheduler=pool), [0.0] * 3)


@pytest.mark.parametrize("mode", ["value_and_grad", "jvp", "hessian"])
def test_is_it_refused_in_maps_and_nested_reductions_too(mode: str) -> None:
    def chunk(total: Any) -> Any:
        cache: dict[str, Any] = {}
        return lambda rows, t: total(rows * cache.setdefault("t", t**2))

    def nested(rows: Any, t: Any) -> Any:
        return dagad.reduce_sum(chunk(np.sum), rows, t, grainsize=1, scheduler="sync")

    losses: list[Callable[[Any], Any]] = [
        lambda t: dagad.map_sum(chunk(np.sum), ROWS, t, grainsize=4, scheduler="sync"),
        lambda t: np.sum(dagad.map(chunk(np.sum), ROWS, t, grainsize=4, scheduler="sync")),
        lambda t: np.sum(dagad.map_rect(chunk(lambda x: x * np.ones(2)), ROWS, t, grainsize=4, scheduler="sync")),
        lambda t: dagad.map_reduce(chunk(np.sum), np.add, ROWS, t, grainsize=4, scheduler="sync"),
        lambda t: dagad.reduce_sum(nested, ROWS, t, grainsize=9, scheduler="sync"),
    ]
    for loss in losses:
        with pytest.raises(dagad.ClosureError, match=r"shared argument|Compute it again"):
            check(mode, loss, [0.0] * 3)


DESCRIPTORS: dict[str, Callable[[Any], Any]] = {
    "property": lambda t: property(lambda self: t),
    "staticmethod": lambda t: staticmethod(lambda: t),
    "cached_property": lambda t: functools.cached_property(lambda self: t),
    "partialmethod": lambda t: functools.partialmethod(max, t),
}


@pytest.mark.parametrize("kind", DESCRIPTORS)
def test_is_a_descriptor_that_holds_a_traced_value_refused_before_any_chunk_runs(kind: str) -> None:
    def loss(t: Any) -> Any:
        held = DESCRIPTORS[kind](t)
        return dagad.reduce_sum(lambda rows: np.sum(rows) * (held is not None), ROWS, grainsize=3, scheduler="sync")

    with pytest.raises(dagad.ClosureError, match=f"held by a `{kind}`.*as a shared argument"):
        dagad.grad(loss)(1.5)
