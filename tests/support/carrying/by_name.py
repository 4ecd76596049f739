"""Ways to carry a value past the chunk function: by name, in what can't be looked into, and in caches."""

from __future__ import annotations

import contextvars
import functools
import itertools
import weakref
from typing import Any, ClassVar

import autograd.builtins
import autograd.numpy as np
import numpy as onp

from support.carrying import state as carried_state
from support.carrying.way import Holder, Read, Ways, shown

way = Ways()
by_name = Ways()  # those that put a value where everybody sees it


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
        from support.carrying import state

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
