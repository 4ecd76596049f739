"""Ways to carry a value in containers: Python's, numpy's, and what is derived from them."""

from __future__ import annotations

import collections
import types
import weakref
from typing import Any, NamedTuple

import numpy as onp

from support.carrying.way import FrozenSlotted, Holder, Read, Ways

way = Ways()


class ByValue:
    """Equal where its name is."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByValue) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


class Pair(NamedTuple):
    name: str
    value: Any


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
