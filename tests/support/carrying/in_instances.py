"""Ways to carry a value in instances: of classes with slots, properties, pickles and ends of their own."""

from __future__ import annotations

import enum
import types
from dataclasses import dataclass, field
from typing import Any

from support.carrying.way import FrozenSlotted, Holder, Read, Ways, shown

way = Ways()
by_name = Ways()  # those that put a value where everybody sees it


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
    """Closes when it goes; nobody counts it, as a count in the class would be one of the things that are carried."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __del__(self) -> None:
        self.value = None


class Member(enum.Enum):
    ONE = 1


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
