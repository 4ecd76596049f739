"""Whatever may hold what a function leaves for later, or somebody else changes: how it is put there, and found."""

from __future__ import annotations

import array
import collections
import contextvars
import dataclasses
import functools
import io
import operator
import pickle
import queue
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse

from support.more_holders import MORE

ROWS = np.arange(1.0, 13.0).reshape(6, 2) / 5.0
Holder = tuple[Callable[[Any], Any], Callable[[], Any]]  # what puts something there, and what gets it again


class Saved(NamedTuple):
    rows: Any


class Bag:
    """An object of the user's, with what a class, a property and a method may hold."""

    shared: Any = None

    def __init__(self) -> None:
        self.stack, self._hidden = list[Any](), np.zeros(0)

    @property
    def hidden(self) -> Any:
        return self._hidden

    def top(self) -> Any:
        return self.stack[-1]


class Slots:
    __slots__ = ("rows",)


def in_a_dict(wrap: Callable[[Any], Any], unwrap: Callable[[Any], Any]) -> Callable[[], Holder]:
    def made() -> Holder:
        saved = dict[str, Any]()

        def put(rows: Any) -> None:
            saved["rows"] = wrap(rows)

        return put, lambda: unwrap(saved["rows"])

    return made


def on_a_stack() -> Holder:
    stack = list[Any]()
    return lambda rows: stack.append((rows, 1)), lambda: stack[-1][0]


def in_a_container(holder: Any, put: Callable[[Any, Any], Any], get: Callable[[Any], Any]) -> Callable[[], Holder]:
    def made() -> Holder:
        held = holder()
        return functools.partial(put, held), lambda: get(held)

    return made


def in_an_object(name: str, get: Callable[[Any], Any]) -> Callable[[], Holder]:
    def made() -> Holder:
        bag = Bag()
        return lambda rows: setattr(bag, name, rows), lambda: get(bag)

    return made


def on_the_stack_of_an_object() -> Holder:
    bag = Bag()
    return lambda rows: bag.stack.append(rows), lambda: bag.top()


def in_an_object_in_a_list() -> Holder:
    layers: list[Any] = [types.SimpleNamespace(), Slots()]
    return lambda rows: setattr(layers[1], "rows", rows), lambda: layers[1].rows


def in_a_class() -> Holder:
    kind: Any = type("Own", (Bag,), {"__module__": __name__})
    return lambda rows: setattr(kind, "shared", rows), lambda: kind.shared


def in_an_attribute_of_a_function() -> Holder:
    def helper() -> None: ...

    there: Any = helper
    return lambda rows: setattr(there, "rows", rows), lambda: there.rows


def in_a_module() -> Holder:
    module: Any = types.ModuleType("notebook")
    return lambda rows: setattr(module, "rows", rows), lambda: module.rows


def in_a_thread_local() -> Holder:
    local = threading.local()
    return lambda rows: setattr(local, "rows", rows), lambda: local.rows


def in_a_context_variable() -> Holder:
    variable = contextvars.ContextVar[Any]("rows")
    return variable.set, variable.get


CODE, KEPT = 0, ROWS


def in_a_global_number() -> Holder:
    def put(rows: Any) -> None:
        global CODE
        CODE = 10 * (round(rows[0, 0] * 5) // 2) + len(rows)

    return put, by_code


def by_code() -> Any:
    return ROWS[CODE // 10 :][: CODE % 10]


def in_a_global() -> Holder:
    def put(rows: Any) -> None:
        global KEPT
        KEPT = rows

    return put, lambda: KEPT


def in_bytes() -> Holder:
    held = bytearray(ROWS.nbytes)

    def put(rows: Any) -> None:
        held[: rows.nbytes] = rows.tobytes()
        held[rows.nbytes :] = bytes(ROWS.nbytes - rows.nbytes)

    return put, lambda: np.frombuffer(bytes(held)).reshape(-1, 2)


def in_a_strided_view_of_bytes() -> Holder:
    held = np.zeros((ROWS.size, 2))
    shown = memoryview(held)[::2]  # type: ignore[arg-type]  # an array has a buffer

    def put(rows: Any) -> None:
        np.asarray(shown)[...] = 0.0
        np.asarray(shown)[: len(rows)] = rows

    return put, lambda: np.array(shown)


class Unruly:
    """An object that says nothing of itself."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def beside_what_raises() -> Holder:
    held: dict[str, Any] = {"unruly": Unruly()}
    return lambda rows: held.update(rows=rows), lambda: held["rows"]


def in_an_array_of_python() -> Holder:
    held = array.array("d", [0.0] * ROWS.size)

    def put(rows: Any) -> None:
        for place in range(ROWS.size):
            held[place] = rows.flat[place] if place < rows.size else 0.0

    return put, lambda: np.array(held).reshape(-1, 2)


def in_a_large_array() -> Holder:
    bag: Any = types.SimpleNamespace(held=np.zeros((10_000, 2)))

    def put(rows: Any) -> None:
        bag.held[:] = 0.0
        bag.held[5_000 : 5_000 + len(rows)] = rows

    return put, lambda: bag.held[5_000:5_006].copy()


def in_a_view() -> Holder:
    bag: Any = types.SimpleNamespace(held=np.zeros((6, 2)))
    bag.shown = bag.held.view()
    bag.shown.flags.writeable = False

    def put(rows: Any) -> None:
        bag.held[:] = 0.0
        bag.held[: len(rows)] = rows

    return put, lambda: bag.shown.copy()


class Store:
    """What Python calls where no code names it."""

    def __init__(self) -> None:
        self.entries = dict[Any, Any]()

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def __getitem__(self, key: Any) -> Any:
        return self.entries[key]

    def __call__(self) -> Any:
        return self.entries["rows"]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.entries.values())

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.entries["rows"])

    def __matmul__(self, other: Any) -> Any:
        return self.entries["rows"]

    def __enter__(self) -> Any:
        return self.entries["rows"]

    def __exit__(self, *error: object) -> None: ...


def entered(store: Store) -> Any:
    with store as rows:
        return rows


class Dynamic:
    """Attributes of its own making."""

    def __init__(self) -> None:
        self.__dict__["made"] = dict[str, Any]()

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["made"][name]

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__["made"][name] = value


class Described:
    """An attribute that a descriptor keeps elsewhere."""

    class _Kept:
        def __get__(self, owner: Any, cls: Any = None) -> Any:
            return owner.__dict__["elsewhere"]

        def __set__(self, owner: Any, value: Any) -> None:
            owner.__dict__["elsewhere"] = value

    rows = _Kept()


class Above:
    kept: ClassVar[list[Any]] = [None]

    def read(self) -> Any:
        return self.hidden  # type: ignore[attr-defined]  # whoever holds it has put it there


class Below(Above):
    def read(self) -> Any:
        return super().read()


class Meta(type):
    @property
    def rows(cls) -> Any:
        return cls._rows  # type: ignore[attr-defined]  # as above


class OfMeta(metaclass=Meta): ...


class OfClass:
    _rows: Any = None

    @classmethod
    def put(cls, rows: Any) -> None:
        cls._rows = rows

    @staticmethod
    def get() -> Any:
        return OfClass._rows


@dataclasses.dataclass
class Record:
    rows: Any = None


def matched(record: Record) -> Any:
    match record:
        case Record(rows):
            return rows


class Cached:
    @functools.cached_property
    def box(self) -> list[Any]:
        return [None]


class Labels(list[Any]):
    rows: Any = None


class Printed:
    def __str__(self) -> str:
        return repr(self.rows.tolist())  # type: ignore[attr-defined]  # as above


class Itself:
    def put(self, rows: Any) -> None:
        self.last = rows

    def get(self) -> Any:
        return self.last


def in_an_attribute(make: Callable[[], Any], get: Callable[[Any], Any]) -> Callable[[], Holder]:
    def made() -> Holder:
        held = make()
        return lambda rows: setattr(held, "rows", rows), lambda: get(held)

    return made


def hidden_in_an_attribute() -> Holder:
    held: Any = Below()
    return lambda rows: setattr(held, "hidden", rows), lambda: held.read()


def in_a_list_of_a_base_class() -> Holder:
    held = Below()
    return lambda rows: operator.setitem(Above.kept, 0, rows), lambda: held.kept[0]


def in_itself() -> Holder:
    held = Itself()
    return held.put, held.get


def in_a_class_with_a_property_of_its_own() -> Holder:
    return lambda rows: setattr(OfMeta, "_rows", rows), lambda: OfMeta.rows


def by_a_getter(getter: Callable[[Any], Callable[[], Any]]) -> Callable[[], Holder]:
    def made() -> Holder:
        held = types.SimpleNamespace(rows=None)
        get = getter(held)
        return lambda rows: setattr(held, "rows", rows), lambda: get()

    return made


def by_a_getter_of_entries() -> Holder:
    held, get = dict[str, Any](), operator.itemgetter("rows")
    return lambda rows: held.update(rows=rows), lambda: get(held)


def by_a_bound_method_in_c() -> Holder:
    held = dict[str, Any]()
    get = held.get
    return lambda rows: held.update(rows=rows), lambda: get("rows")


def in_a_default() -> Holder:
    def read(box: Any = [None]) -> Any:  # noqa: B006  # it is what holds them
        return box[0]

    defaults: Any = read.__defaults__
    return lambda rows: operator.setitem(defaults[0], 0, rows), lambda: read()


def in_a_variable() -> Holder:
    kept: Any = None

    def put(rows: Any) -> None:
        nonlocal kept
        kept = rows

    return put, lambda: kept


def in_what_is_remembered() -> Holder:
    @functools.lru_cache
    def box() -> list[Any]:
        return [None]

    return lambda rows: operator.setitem(box(), 0, rows), lambda: box()[0]


def in_what_is_imported() -> Holder:
    module: Any = types.ModuleType("rows_of_holders")
    sys.modules[module.__name__] = module

    def get() -> Any:
        import rows_of_holders  # type: ignore[import-not-found]  # it is made above

        return rows_of_holders.rows

    return lambda rows: setattr(module, "rows", rows), get


def in_masked_numbers() -> Holder:
    bag: Any = types.SimpleNamespace(held=np.ma.zeros((6, 2)))

    def put(rows: Any) -> None:
        bag.held[:] = 0.0
        bag.held[: len(rows)] = rows

    return put, lambda: np.array(bag.held)


def in_a_field() -> Holder:
    bag: Any = types.SimpleNamespace(held=np.zeros(6, [("rows", float, 2), ("number", int)]))

    def put(rows: Any) -> None:
        bag.held["rows"] = 0.0
        bag.held["rows"][: len(rows)] = rows

    return put, lambda: bag.held["rows"].copy()


def in_an_array_of_objects() -> Holder:
    bag: Any = types.SimpleNamespace(held=np.empty(1, object))
    return lambda rows: operator.setitem(bag.held, 0, rows), lambda: bag.held[0]


def in_a_table() -> Holder:
    table = pd.DataFrame(np.zeros((6, 2)))

    def put(rows: Any) -> None:
        table.iloc[:] = 0.0
        table.iloc[: len(rows)] = rows

    return put, lambda: table.to_numpy(copy=True)


def in_bytes_of_a_file() -> Holder:
    held = io.BytesIO()

    def put(rows: Any) -> None:
        held.seek(0)
        held.truncate()
        held.write(np.ascontiguousarray(rows).tobytes())

    return put, lambda: np.frombuffer(held.getvalue()).reshape(-1, 2)


class Key: ...


def under_a_weak_key() -> Holder:
    key, held = Key(), weakref.WeakKeyDictionary[Any, Any]()
    return lambda rows: operator.setitem(held, key, rows), lambda: held[key]


def as_a_weak_value() -> Holder:
    held, kept = weakref.WeakValueDictionary[str, Any](), list[Any]()

    def put(rows: Any) -> None:
        kept.append(Record(rows))
        held["rows"] = kept[-1]

    return put, lambda: held["rows"].rows


def in_a_generator() -> Holder:
    def keeping() -> Any:
        rows: Any = None
        while True:
            rows = yield rows

    held = keeping()
    next(held)
    return held.send, lambda: held.gi_frame.f_locals["rows"]


HOLDERS: dict[str, Callable[[], Holder]] = {
    "a tuple in a dict": in_a_dict(lambda rows: (rows, 1), lambda held: held[0]),
    "a named tuple in a dict": in_a_dict(Saved, lambda held: held.rows),
    "a list in a tuple": in_a_dict(lambda rows: ([rows],), lambda held: held[0][0]),
    "bytes in a dict": in_a_dict(pickle.dumps, pickle.loads),
    "a function in a dict": in_a_dict(lambda rows: lambda: rows, lambda held: held()),
    "a partial in a dict": in_a_dict(lambda rows: functools.partial(np.array, rows), lambda held: held()),
    "a whole number": in_a_dict(
        lambda rows: 10 * (round(rows[0, 0] * 5) // 2) + len(rows), lambda code: ROWS[code // 10 :][: code % 10]
    ),
    "a table in a dict": in_a_dict(lambda rows: pd.DataFrame(rows), lambda held: held.to_numpy()),
    "a sparse matrix in a dict": in_a_dict(sparse.csr_array, lambda held: held.toarray()),
    "a stack of tuples": on_a_stack,
    "a deque": in_a_container(collections.deque, lambda held, rows: held.append(rows), lambda held: held[-1]),
    "a dict of the library": in_a_container(
        collections.UserDict, lambda held, rows: held.update(rows=rows), lambda held: held["rows"]
    ),
    "a queue": in_a_container(queue.LifoQueue, lambda held, rows: held.put(rows), lambda held: held.queue[-1]),
    "a property": in_an_object("_hidden", lambda bag: bag.hidden),
    "the stack of an object": on_the_stack_of_an_object,
    "an object in a list": in_an_object_in_a_list,
    "a class": in_a_class,
    "a function": in_an_attribute_of_a_function,
    "a module": in_a_module,
    "a thread local": in_a_thread_local,
    "a context variable": in_a_context_variable,
    "a global number that a helper reads": in_a_global_number,
    "a global": in_a_global,
    "a dict that holds what raises": beside_what_raises,
    "a strided view of bytes": in_a_strided_view_of_bytes,
    "bytes that are written into": in_bytes,
    "an array of Python's": in_an_array_of_python,
    "a large array": in_a_large_array,
    "a read-only view": in_a_view,
    "an item of an object": in_a_container(
        Store, lambda held, rows: operator.setitem(held, "rows", rows), lambda held: held["rows"]
    ),
    **{
        name: in_a_container(Store, lambda held, rows: operator.setitem(held.entries, "rows", rows), get)
        for name, get in {
            "an object that is called": lambda held: held(),
            "an object in a loop": lambda held: next(iter(held)),
            "an object as an array": lambda held: np.asarray(held),
            "an object with an operator": lambda held: held @ 1,
            "an object in a block": entered,
        }.items()
    },
    "attributes that are made": in_an_attribute(Dynamic, lambda held: held.rows),
    "a descriptor": in_an_attribute(Described, lambda held: held.rows),
    "an attribute of a list": in_an_attribute(Labels, lambda held: held.rows),
    "an attribute of numpy's": in_an_attribute(lambda: np.poly1d([0.0]), lambda held: held.rows),
    "all attributes": in_an_attribute(types.SimpleNamespace, lambda held: vars(held)["rows"]),
    "a record as a dict": in_an_attribute(Record, lambda held: dataclasses.asdict(held)["rows"]),
    "a record as a tuple": in_an_attribute(Record, lambda held: dataclasses.astuple(held)[0]),
    "a record that is matched": in_an_attribute(Record, matched),
    "an object that is printed": in_an_attribute(Printed, lambda held: np.array(eval(str(held)))),
    "an attribute by a base class": hidden_in_an_attribute,
    "a list of a base class": in_a_list_of_a_base_class,
    "a class with a property of its own": in_a_class_with_a_property_of_its_own,
    "methods of a class": lambda: (OfClass.put, OfClass.get),
    "bound methods": in_itself,
    "a property that is remembered": in_a_container(
        Cached, lambda held, rows: operator.setitem(held.box, 0, rows), lambda held: held.box[0]
    ),
    "a getter": by_a_getter(lambda held: functools.partial(operator.attrgetter("rows"), held)),
    "a partial getter": by_a_getter(lambda held: functools.partial(getattr, held, "rows")),
    "a getter of entries": by_a_getter_of_entries,
    "a bound method in C": by_a_bound_method_in_c,
    "a chain of dicts": in_a_container(
        lambda: collections.ChainMap({}), lambda held, rows: held.update(rows=rows), lambda held: held["rows"]
    ),
    "a default argument": in_a_default,
    "a variable": in_a_variable,
    "what is remembered": in_what_is_remembered,
    "a module that is imported": in_what_is_imported,
    "masked numbers": in_masked_numbers,
    "a field of an array": in_a_field,
    "an array of objects": in_an_array_of_objects,
    "a table": in_a_table,
    "a file of bytes": in_bytes_of_a_file,
    "a weak key": under_a_weak_key,
    "a weak value": as_a_weak_value,
    "a generator": in_a_generator,
    **MORE,
}
