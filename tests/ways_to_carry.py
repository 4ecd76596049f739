"""Ways to carry a value: each puts it into something, and says how a chunk gets it out again.

A way takes what is carried and how it is read, and returns what carries it and how that is read; so ways can be nested.
"""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import itertools
import operator
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import autograd.builtins
import autograd.numpy as np
import carried_state
import numpy as onp

Read = Callable[[Any], Any]
Way = Callable[[Any, Read], tuple[Any, Read]]

WAYS: dict[str, Way] = {}
BY_NAME: set[str] = set()  # those that put a value where everybody sees it
ENDS: dict[str, Callable[[Any, Read], Callable[[Any], Any]]] = {}


def way(build: Way) -> Way:
    return WAYS.setdefault(build.__name__, build)


def by_name(build: Way) -> Way:
    BY_NAME.add(build.__name__)
    return way(build)


def end(build: Any) -> Any:
    return ENDS.setdefault(build.__name__, build)


def wave(rows: Any, t: Any) -> Any:
    return np.sum(np.sin(rows * t) * t)


def kept(value: Any) -> Any:
    return value


def shown(holder: Any, get: Read) -> tuple[Any, Read]:
    return holder, lambda holder: get(holder())


# --- functions --------------------------------------------------------------------------------------------------------


@way
def a_closure(x: Any, get: Read) -> Any:
    return shown(lambda: x, get)


@way
def a_closure_two_levels_down(x: Any, get: Read) -> Any:
    def outer() -> Any:
        def inner() -> Any:
            return x

        return inner()

    return shown(outer, get)


@way
def a_default(x: Any, get: Read) -> Any:
    def read(unused: int = 0, value: Any = x) -> Any:
        return value

    return shown(read, get)


@way
def a_keyword_default(x: Any, get: Read) -> Any:
    def read(*, value: Any = x, unused: int = 0) -> Any:
        return value

    return shown(read, get)


@way
def an_attribute_of_a_function(x: Any, get: Read) -> Any:
    def read() -> Any:
        return vars(read)["value"]

    vars(read)["value"] = x
    return shown(read, get)


@way
def a_partial(x: Any, get: Read) -> Any:
    return shown(functools.partial(kept, x), get)


@way
def a_partial_by_keyword(x: Any, get: Read) -> Any:
    return shown(functools.partial(functools.partial(kept, value=1.0), value=x), get)


@way
def a_decorated_function(x: Any, get: Read) -> Any:
    def read() -> Any:
        return x

    @functools.wraps(read)
    def wrapper() -> Any:
        return read()

    return shown(wrapper, get)


@way
def a_variable_that_two_functions_share(x: Any, get: Read) -> Any:
    value: Any = None

    def put() -> None:
        nonlocal value
        value = x

    def read() -> Any:
        put()
        return value

    return shown(read, get)


@way
def a_variable_that_the_chunk_changes(x: Any, get: Read) -> Any:
    state = x

    def turn() -> None:
        nonlocal state
        state = [state]

    def read() -> Any:
        nonlocal state
        turn()
        state = state[0]
        return state

    return shown(read, get)


@way
def functions_that_call_each_other(x: Any, get: Read) -> Any:
    def even(n: int) -> Any:
        return x if n == 0 else odd(n - 1)

    def odd(n: int) -> Any:
        return None if n == 0 else even(n - 1)

    return shown(lambda: even(4), get)


@way
def a_function_that_calls_itself(x: Any, get: Read) -> Any:
    def read(n: int = 3) -> Any:
        return x if n == 0 else read(n - 1)

    return shown(read, get)


@way
def a_single_dispatch(x: Any, get: Read) -> Any:
    @functools.singledispatch
    def read(key: Any) -> Any:
        raise TypeError(key)

    @read.register
    def _(key: int) -> Any:
        return x

    return read, lambda read: get(read(1))


@way
def a_cached_function(x: Any, get: Read) -> Any:
    @functools.lru_cache(maxsize=3)
    def read() -> Any:
        return x

    return shown(read, get)


@way
def a_cached_function_that_was_called(x: Any, get: Read) -> Any:
    @functools.cache
    def read() -> Any:
        return x

    read()
    return shown(read, get)


@way
def a_method_of_a_builtin(x: Any, get: Read) -> Any:
    return {"a": x}.get, lambda read: get(read("a"))


@way
def a_slot_method_of_a_builtin(x: Any, get: Read) -> Any:
    return (1.0, x).__getitem__, lambda read: get(read(1))


@way
def a_getter_of_items(x: Any, get: Read) -> Any:
    return (operator.itemgetter(1), (None, x)), lambda pair: get(pair[0](pair[1]))


@way
def a_caller_of_methods(x: Any, get: Read) -> Any:
    return operator.methodcaller("get", "b", x), lambda call: get(call({"a": 1.0}))


# --- instances --------------------------------------------------------------------------------------------------------


class Holder:
    scale = 1.0

    def __init__(self, value: Any) -> None:
        self.value = value

    def read(self) -> Any:
        return self.value

    def __call__(self) -> Any:
        return self.value

    @property
    def shown(self) -> Any:
        return self.value

    @functools.cached_property
    def remembered(self) -> Any:
        return self.value


class Slotted:
    __slots__ = ("__hidden", "value")

    def __init__(self, value: Any) -> None:
        self.__hidden, self.value = value, None

    def read(self) -> Any:
        return self.__hidden


class SlottedChild(Slotted):
    __slots__ = ("value",)


@dataclass(frozen=True)
class Frozen:
    value: Any
    rest: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FrozenSlotted:
    value: Any


class ByValue:
    """Equal where its name is."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByValue) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


class Single:
    """There is one only."""

    only: Any = None

    def __new__(cls) -> Single:
        cls.only = cls.only or super().__new__(cls)
        return cls.only  # type: ignore[no-any-return]  # Any, so that there may be none


class Checked:
    """A descriptor that keeps the value under its own name, and changes what is assigned."""

    def __set_name__(self, owner: Any, name: str) -> None:
        self.name = name

    def __get__(self, obj: Any, owner: Any = None) -> Any:
        return vars(obj)[self.name]

    def __set__(self, obj: Any, value: Any) -> None:
        vars(obj)[self.name] = [value]


class WithChecked:
    value = Checked()


class Forwarding:
    def __init__(self, target: Any) -> None:
        self.target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "target"), name)


class Pickled:
    """Pickles without its value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getstate__(self) -> Any:
        return {}

    def __copy__(self) -> Any:
        return Pickled(None)


class Closing:
    """Closes when it goes."""

    closed = 0

    def __init__(self, value: Any) -> None:
        self.value = value

    def __del__(self) -> None:
        type(self).closed += 1


class Member(enum.Enum):
    ONE = 1


class Pair(NamedTuple):
    name: str
    value: Any


@way
def an_instance(x: Any, get: Read) -> Any:
    return Holder(x), lambda holder: get(holder.value)


@way
def a_bound_method(x: Any, get: Read) -> Any:
    return shown(Holder(x).read, get)


@way
def an_instance_that_is_called(x: Any, get: Read) -> Any:
    return shown(Holder(x), get)


@way
def a_property(x: Any, get: Read) -> Any:
    return Holder(x), lambda holder: get(holder.shown)


@way
def a_cached_property(x: Any, get: Read) -> Any:
    return Holder(x), lambda holder: get(holder.remembered)


@way
def hidden_slots(x: Any, get: Read) -> Any:
    return Slotted(x), lambda holder: get(holder.read())


@way
def slots_of_parents(x: Any, get: Read) -> Any:
    return SlottedChild(x), lambda holder: get(holder.read())


@way
def a_frozen_record(x: Any, get: Read) -> Any:
    return Frozen(None, [x]), lambda record: get(record.rest[0])


@way
def a_frozen_record_with_slots(x: Any, get: Read) -> Any:
    return FrozenSlotted(x), lambda record: get(record.value)


@way
def a_namespace(x: Any, get: Read) -> Any:
    return types.SimpleNamespace(a=types.SimpleNamespace(b=x)), lambda space: get(space.a.b)


@by_name
def a_single_instance(x: Any, get: Read) -> Any:
    single = Single()
    vars(single)["value"] = x
    return single, lambda single: get(vars(single)["value"])


@way
def a_descriptor_that_changes_values(x: Any, get: Read) -> Any:
    holder = WithChecked()
    holder.value = x
    return holder, lambda holder: get(holder.value[0])


@way
def a_forwarding_instance(x: Any, get: Read) -> Any:
    return Forwarding(Holder(x)), lambda holder: get(holder.value)


@way
def an_instance_that_pickles_otherwise(x: Any, get: Read) -> Any:
    return Pickled(x), lambda holder: get(holder.value)


@way
def an_instance_with_an_end(x: Any, get: Read) -> Any:
    return Closing(x), lambda holder: get(holder.value)


@by_name
def a_member_of_an_enumeration(x: Any, get: Read) -> Any:
    vars(Member.ONE)["held"] = x
    return Member.ONE, lambda member: get(vars(member)["held"])


@way
def a_local_class(x: Any, get: Read) -> Any:
    class Local:
        def read(self) -> Any:
            return x

    return Local(), lambda local: get(local.read())


@way
def an_attribute_of_a_local_class(x: Any, get: Read) -> Any:
    local = type("Local", (), {"held": [x]})
    return local(), lambda local: get(local.held[0])


@way
def a_static_method(x: Any, get: Read) -> Any:
    class Local:
        @staticmethod
        def read() -> Any:
            return x

    return Local.read, lambda read: get(read())


@way
def parent_and_child(x: Any, get: Read) -> Any:
    parent, child = Holder(x), Holder(None)
    vars(parent)["child"], vars(child)["parent"] = child, parent
    return child, lambda child: get(child.parent.child.parent.value)


# --- containers -------------------------------------------------------------------------------------------------------


class MyList(list[Any]):
    scale = 0.0


class MyTuple(tuple[Any, ...]):
    scale = 0.0


class MyDict(dict[Any, Any]):
    scale = 0.0

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, [value])


class MyArray(onp.ndarray[Any, Any]):
    scale: Any = 0.0

    def __array_finalize__(self, other: Any) -> None:
        self.scale = 0.0


@way
def a_dict(x: Any, get: Read) -> Any:
    return {"a": [1.0, (x,)], 3: None, "{}": 1}, lambda held: get(held["a"][1][0])


@way
def a_list(x: Any, get: Read) -> Any:
    return [1.0, x, "text"], lambda held: get(held[1])


@way
def a_tuple(x: Any, get: Read) -> Any:
    return (x, None), lambda held: get(held[0])


@way
def a_set(x: Any, get: Read) -> Any:
    return {FrozenSlotted(None), ByValue("x", x)}, lambda held: get(
        next(h for h in held if isinstance(h, ByValue)).value
    )


@way
def a_frozenset(x: Any, get: Read) -> Any:
    return frozenset({ByValue("x", x)}), lambda held: get(next(iter(held)).value)


@way
def a_counter(x: Any, get: Read) -> Any:
    held: Any = collections.Counter("aab")
    held["c"] = x
    return held, lambda held: get(held["c"])


@way
def a_default_dict(x: Any, get: Read) -> Any:
    return collections.defaultdict(list, a=x), lambda held: get(held["a"] if held["b"] == [] else None)


@way
def what_a_default_dict_makes(x: Any, get: Read) -> Any:
    return collections.defaultdict(lambda: x, a=1.0), lambda held: get(held["b"])


@way
def an_ordered_dict(x: Any, get: Read) -> Any:
    held = collections.OrderedDict(a=1.0, b=x)
    held.move_to_end("a")
    return held, lambda held: get(held[next(iter(held))])


@way
def a_deque(x: Any, get: Read) -> Any:
    return collections.deque([1.0, 2.0, x], maxlen=2), lambda held: get(held[1] if held.maxlen == 2 else None)


@way
def a_named_tuple(x: Any, get: Read) -> Any:
    return Pair("name", x), lambda held: get(held.value)


@way
def a_chain_of_maps(x: Any, get: Read) -> Any:
    return collections.ChainMap({"a": 1.0}, {"b": x}), lambda held: get(held["b"])


@way
def a_user_dict(x: Any, get: Read) -> Any:
    return collections.UserDict(a=x), lambda held: get(held["a"])


@way
def a_mapping_proxy(x: Any, get: Read) -> Any:
    return types.MappingProxyType({"a": x}), lambda held: get(held["a"])


@way
def a_list_of_a_kind_of_its_own(x: Any, get: Read) -> Any:
    held = MyList([x])
    held.scale = 1.0
    return held, lambda held: get(held[0]) * held.scale


@way
def an_attribute_of_a_list(x: Any, get: Read) -> Any:
    held = MyList([1.0])
    vars(held)["scale"] = x
    return held, lambda held: get(held.scale)


@way
def a_tuple_of_a_kind_of_its_own(x: Any, get: Read) -> Any:
    held = MyTuple([x])
    held.scale = 1.0
    return held, lambda held: get(held[0]) * held.scale


@way
def a_dict_of_a_kind_of_its_own(x: Any, get: Read) -> Any:
    held = MyDict()
    held["a"], held.scale = x, 1.0
    return held, lambda held: get(held["a"][0]) * held.scale


@way
def a_dict_with_keys_that_hold_it(x: Any, get: Read) -> Any:
    key = Holder(x)
    return (key, {key: 1.0}), lambda pair: get(pair[0].value) * pair[1].get(pair[0], 2.0)


@way
def a_weak_dict_with_keys_that_hold_it(x: Any, get: Read) -> Any:
    key = Holder(x)
    return (key, weakref.WeakKeyDictionary({key: 1.0})), lambda pair: get(pair[0].value) * pair[1].get(pair[0], 2.0)


@way
def a_registry_by_id(x: Any, get: Read) -> Any:
    key = Holder(x)
    return (key, {id(key): 1.0}), lambda pair: get(pair[0].value) * pair[1].get(id(pair[0]), 2.0)


@way
def a_list_that_holds_itself(x: Any, get: Read) -> Any:
    held: list[Any] = [x]
    held.append((held,))
    return held, lambda held: get(held[1][0][1][0][0])


@way
def the_same_thing_twice(x: Any, get: Read) -> Any:
    held = [x]
    return (held, [held]), lambda pair: get(pair[0][0]) if pair[0] is pair[1][0] else None


@way
def an_array_of_objects(x: Any, get: Read) -> Any:
    held = onp.empty((2, 1), object)
    held[1, 0] = x
    return [held], lambda held: get(held[0][1, 0])


@way
def an_array_without_axes(x: Any, get: Read) -> Any:
    held = onp.empty((), object)
    held[()] = x
    return held, lambda held: get(held[()])


@way
def an_attribute_of_an_array(x: Any, get: Read) -> Any:
    held = onp.arange(3.0).view(MyArray)
    held.scale = x
    return held, lambda held: get(held.scale) if held[2] == 2.0 else None


# --- by name, and what can't be looked into ---------------------------------------------------------------------------

GLOBAL: dict[str, Any] = {}
VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE")


class Registry:
    """Knows its instances; chunks do not ask."""

    instances: ClassVar[list[Any]] = []

    def __init__(self, value: Any) -> None:
        self.value = value
        self.instances[:] = [self]

    def read(self) -> Any:
        return self.value


@way
def a_class_that_knows_its_instances(x: Any, get: Read) -> Any:
    return shown(Registry(x).read, get)


@by_name
def a_global_dict(x: Any, get: Read) -> Any:
    GLOBAL["x"] = x
    return None, lambda _: get(GLOBAL["x"])


@by_name
def a_global_by_its_name(x: Any, get: Read) -> Any:
    GLOBAL["x"] = x
    return None, lambda _: get(globals()["GLOBAL"]["x"])


@by_name
def a_module(x: Any, get: Read) -> Any:
    carried_state.value = x
    return None, lambda _: get(carried_state.value)


@by_name
def an_object_in_a_module(x: Any, get: Read) -> Any:
    carried_state.record.value = x
    return None, lambda _: get(carried_state.record.value)


@by_name
def a_list_in_an_object_in_a_module(x: Any, get: Read) -> Any:
    carried_state.record.items[0] = x
    return carried_state, lambda module: get(module.record.items[0])


@by_name
def a_function_of_a_module(x: Any, get: Read) -> Any:
    carried_state.items[0] = x
    return None, lambda _: get(carried_state.read())


@by_name
def a_module_imported_inside(x: Any, get: Read) -> Any:
    carried_state.items[0] = x

    def read(_: Any) -> Any:
        import carried_state as state

        name = "items"  # no name in the code
        return get(getattr(state, name)[0])

    return None, read


@by_name
def a_class_of_a_module(x: Any, get: Read) -> Any:
    carried_state.Settings.value = x
    return carried_state.Settings(), lambda settings: get(settings.value)


@by_name
def a_list_of_a_class_of_a_module(x: Any, get: Read) -> Any:
    carried_state.Settings.items[0] = x
    return carried_state.Settings(), lambda settings: get(settings.read())


@by_name
def a_context_variable(x: Any, get: Read) -> Any:
    VARIABLE.set(x)
    return None, lambda _: get(VARIABLE.get())


@way
def a_generator(x: Any, get: Read) -> Any:
    return (x for _ in range(999)), lambda values: get(next(values))


@way
def an_endless_iterator(x: Any, get: Read) -> Any:
    return itertools.repeat(x), lambda values: get(next(values))


@by_name
def a_weak_reference(x: Any, get: Read) -> Any:
    GLOBAL["kept"] = holder = Holder(x)
    return weakref.ref(holder), lambda ref: get(ref().value)


@way
def a_weak_link_to_the_parent(x: Any, get: Read) -> Any:
    parent, child = Holder(x), Holder(None)
    child.value, vars(parent)["child"] = weakref.ref(parent), child
    return (parent, child), lambda pair: get(pair[1].value().value)


@by_name
def an_iterator_in_a_module(x: Any, get: Read) -> Any:
    carried_state.record.value = itertools.repeat(x)
    return None, lambda _: get(next(carried_state.record.value))


@way
def an_exception(x: Any, get: Read) -> Any:
    return ValueError(x), lambda error: get(error.args[0])


# --- caches that the chunk fills --------------------------------------------------------------------------------------


@way
def a_cache_in_a_closure(x: Any, get: Read) -> Any:
    cache: dict[str, Any] = {}
    return x, lambda held: cache.setdefault("x", get(held))


@way
def a_cache_beside_it(x: Any, get: Read) -> Any:
    return (x, []), lambda pair: (pair[1].append(get(pair[0])), pair[1][0])[1]


@way
def a_variable_as_a_cache(x: Any, get: Read) -> Any:
    cache: Any = None

    def read(held: Any) -> Any:
        nonlocal cache
        cache = get(held) if cache is None else cache
        return cache

    return x, read


@way
def an_instance_as_a_cache(x: Any, get: Read) -> Any:
    cache = Holder(None)

    def read(held: Any) -> Any:
        cache.value = get(held) if cache.value is None else cache.value
        return cache.value

    return x, read


@way
def an_instance_that_caches(x: Any, get: Read) -> Any:
    def read(holder: Any) -> Any:
        if "kept" not in vars(holder):
            vars(holder)["kept"] = get(holder.value)
        return vars(holder)["kept"]

    return Holder(x), read


@by_name
def a_global_cache(x: Any, get: Read) -> Any:
    GLOBAL.pop("cache", None)
    return x, lambda held: GLOBAL.setdefault("cache", get(held))


@way
def a_cache_by_argument(x: Any, get: Read) -> Any:
    @functools.cache
    def twice(value: Any) -> Any:
        return value * 2.0

    return x, lambda held: twice(get(held)) / 2.0 if is_number(get(held)) else get(held)


# --- what autograd makes of values ------------------------------------------------------------------------------------


def is_number(x: Any) -> bool:
    while hasattr(x, "_trace"):
        x = x._value
    return isinstance(x, float | onp.floating)


@way
def an_array(x: Any, get: Read) -> Any:
    return (np.array([1.0, x]), lambda held: get(held[1])) if is_number(x) else (x, get)


@way
def a_traced_dict(x: Any, get: Read) -> Any:
    return (autograd.builtins.dict(a=x, b=1.0), lambda held: get(held["a"])) if is_number(x) else (x, get)


@way
def a_traced_tuple(x: Any, get: Read) -> Any:
    return (autograd.builtins.tuple((x, 1.0)), lambda held: get(held[0])) if is_number(x) else (x, get)


# --- how the chunk function has it ------------------------------------------------------------------------------------


@end
def in_its_closure(x: Any, get: Read) -> Any:
    return lambda rows: wave(rows, get(x))


@end
def in_a_default(x: Any, get: Read) -> Any:
    def chunk(rows: Any, held: Any = x) -> Any:
        return wave(rows, get(held))

    return chunk


@end
def in_a_partial(x: Any, get: Read) -> Any:
    return functools.partial(lambda held, rows: wave(rows, get(held)), x)


class Model:
    def __init__(self, held: Any, get: Read) -> None:
        self.held, self.get = held, get

    def chunk(self, rows: Any) -> Any:
        return wave(rows, self.get(self.held))

    def __call__(self, rows: Any) -> Any:
        return self.chunk(rows)


@end
def in_the_instance_it_is_bound_to(x: Any, get: Read) -> Any:
    return Model(x, get).chunk


@end
def in_itself(x: Any, get: Read) -> Any:
    return Model(x, get)


def carried(t: Any, ways: tuple[str, ...], how: str) -> Callable[[Any], Any]:
    """Return a chunk function that carries a value in the ways named, the first innermost."""
    held: Any = t
    get: Read = kept
    for name in ways:
        held, get = WAYS[name](held, get)
    return ENDS[how](held, get)


def clean() -> None:
    """Take the value out of what lives on."""
    GLOBAL.clear()
    Registry.instances.clear()
    Single.only = None
    vars(Member.ONE).pop("held", None)
    carried_state.reset()
