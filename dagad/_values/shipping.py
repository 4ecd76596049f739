"""How functions and their data travel: pickled once, opened in the task that needs them, with ten repairs.

* A primitive goes as its engine says: autograd's by reference, or with its rules. Stock pickling makes a copy without
  derivatives.
* An array arrives with this process's own dtype object and aligned. With an equal dtype that came out of a pickle
  ``np.add.at`` is fifty times slower; at an odd address numpy avoids BLAS, and the last bits differ.
* An array of a subclass brings its attributes, which numpy's own pickling drops; a view keeps the order that its axes
  have in memory, which is the order of a sum.
* A memoryview keeps its format, and a WeakSet its items alive. cloudpickle makes bytes of the one, and of the other a
  set that is empty on arrival.
* A ufunc goes by the name of a module that others have too. Once multiprocessing is imported, pickle's search for those
  that don't say where they are from, as scipy's, may end at `__mp_main__`, which is this process's script or notebook.
* A function brings the globals that classes in its body name, or that it asks for by words (`globals()["rate"]`).
* A container, number or word whose class makes something else of what it is given arrives as it was: pickle would give
  it what it holds once more.
* A class that goes by value is brought to the sender's state: see `arriving_classes`.
* A record that is defined in `__main__` brings its registration as a pytree, or the other side takes it for a leaf.
* A traced value does not travel: its tape would be copied and the derivative lost.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Container
from types import CodeType, FunctionType
from typing import Any, ForwardRef, Literal, NamedTuple, NoReturn

import cloudpickle
import numpy as np

from dagad._errors import ClosureError, PortabilityError
from dagad._types import Array
from dagad._values import arriving_classes, pytree
from dagad._values.bytecode import used_in
from dagad._values.code_by_name import References, digests_of, refuse_other_code
from dagad._values.contents import makes_anew, value_like, variables_of, with_texts_for_annotations
from dagad._values.homes import is_importable, sent_by_value
from dagad._values.kinds import CONTAINERS, FUNCTION, kind_of
from dagad._values.names import of_function, unnamed_globals
from dagad._values.work_arrays import sharing

PYTHON = ".".join(map(str, sys.version_info[:2]))


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle's, with the repairs."""

    follows_words = True  # globals that functions mean by words go with them

    def __init__(self, *args: Any, frozen: Container[int] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.arrays, self._frozen = list[Array](), frozen  # what is met, and the ids of those that arrive read-only
        self._on_the_way: set[type] = set()  # records whose registration is being written
        self.singletons: list[Any] = []  # classes and primitives that go by value and exist once a process
        self.referred = References(sent_by_value())  # functions, classes and modules that go by their names

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is made again."""
        kind = type(obj)
        if kind is np.ndarray and obj.dtype.kind in "biufcSU":
            self.arrays.append(obj)
            return _reduce_array(_locked(obj) if id(obj) in self._frozen else obj)
        if isinstance(obj, np.ndarray) and _loses_attributes(kind, obj):
            return _array_of_class, (obj.view(np.ndarray), kind), vars(obj), None, None, _set_attributes
        if kind is memoryview:
            return _memoryview, (np.asarray(obj), obj.format)
        if kind is weakref.WeakSet:
            return _weak_set, (list(obj),)
        if kind is ForwardRef:  # from Python 3.14 on it holds all globals of where it stands
            return kind, (obj.__forward_arg__,)
        if kind is np.ufunc and (home := _home(obj)) != "__main__":
            return getattr, (sys.modules[home], obj.__name__)
        if isinstance(obj, Portable):  # inside another: one parcel, with the singletons of both
            return kind, obj.state()
        if isinstance(obj, type) and obj not in self._on_the_way:
            how = None if is_importable(obj, sent_by_value()) else pytree.registration(obj)
            if how is not None:
                self._on_the_way.add(obj)
                return _arrived_record, (obj, *how)
        if kind in pytree.TRACED:
            raise ClosureError(
                "A chunk function holds a value that is being differentiated where dagad does not see it (a global, "
                "or an attribute of a class). Pass that value to the function as a shared argument."
            )
        held = kind_of(kind)
        if held.needs_table and not (hasattr(obj, "__qualname__") and is_importable(obj, sent_by_value())):
            return held.reduced(obj)
        if makes_anew(kind):
            return held.reduced(obj) if held in CONTAINERS else value_like(obj)
        return self._by_cloudpickle(obj, kind)

    def _by_cloudpickle(self, obj: Any, kind: type) -> Any:
        """Return how cloudpickle makes an object again, and note what it goes by."""
        own = as_primitive(obj) if kind is FunctionType and obj.__dict__ else None
        try:
            reduced = own.reduce(obj) if own else super().reducer_override(obj)
        except Exception:  # cloudpickle evaluates annotations, which may name what is there for type checkers only
            if kind is not FunctionType or sys.version_info < (3, 14):
                raise
            reduced = super().reducer_override(with_texts_for_annotations(obj))
        if not isinstance(reduced, tuple) or len(reduced) <= 2:  # without a state: by reference
            self.referred.by_name(obj)
            return reduced
        if kind is not FunctionType or own:
            self.singletons.append(obj)
            return reduced if own else arriving_classes.reduced(obj, reduced)
        used = used_in(obj.__code__)
        self.referred.by_value(obj, used, of_function(obj, used))
        if self.follows_words:
            sent = reduced[2][1]["__globals__"]
            sent.update((name, value) for name, value in unnamed_globals(obj, sent) if not _fails(value))
        return reduced


class Primitives(NamedTuple):
    """How an engine's primitives travel: functions of one code, which mean nothing without the engine's tables."""

    code: CodeType
    reduce: Callable[[Any], tuple[Any, ...]]
    state: Callable[[Any], tuple[Any, ...]]  # what counts as a change of one


_PRIMITIVES: list[Primitives] = []


def register(primitives: Primitives) -> None:
    """Say how an engine's primitives travel; called when the engine is imported."""
    _PRIMITIVES.append(primitives)


def as_primitive(function: object) -> Primitives | None:
    """Return how a primitive travels. Attributes say nothing: a decorator copies those of what it decorates."""
    code = getattr(function, "__code__", None)
    return next((each for each in _PRIMITIVES if each.code is code), None)


def _home(ufunc: object) -> str:
    """Return the name of a module that has a ufunc: in Python the search is right, pickle has its own in C."""
    name: str = pickle.whichmodule(ufunc, ufunc.__name__)  # type: ignore[attr-defined]  # typeshed lacks it
    return name


def _arrived_record(cls: type, *how: Any) -> type:
    """Register a class that came by value: its importers do it where it is imported, and nobody imported this one."""
    pytree.register(cls, *how)
    return cls


def _reduce_array(array: Array) -> tuple[Any, ...]:
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        return _restore_view, _laid_out(array)
    order = "C" if array.flags.c_contiguous else "F"
    return _restore_array, (pickle.PickleBuffer(array), array.dtype.str, array.shape, order)


def _laid_out(array: Array) -> tuple[Array, tuple[int, ...], tuple[int, ...]]:
    """Return an array with its axes in the order of memory; that order; and in which direction each axis runs."""
    steps = tuple(-1 if stride < 0 else 1 for stride in array.strides)
    axes = tuple(sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])))
    lying = np.ascontiguousarray(_reversed(array, steps).transpose(axes))
    return lying if array.flags.writeable else _locked(lying), axes, steps


def _restore_view(lying: Array, axes: tuple[int, ...], steps: tuple[int, ...]) -> Array:
    back = sorted(range(len(axes)), key=axes.__getitem__)
    return _reversed(lying.transpose(back), steps)


def _reversed(array: Array, steps: tuple[int, ...]) -> Array:
    return array[tuple([slice(None, None, step) for step in steps])]


def _loses_attributes(kind: type, array: Array) -> bool:
    """Return whether numpy pickles an array of a subclass, and without what the subclass has put into it."""
    own = ("__reduce__", "__reduce_ex__", "__setstate__")
    by_numpy = all(getattr(kind, name) is getattr(np.ndarray, name) for name in own)
    # That of a file has the file itself in an attribute, and arrives in memory.
    return by_numpy and not issubclass(kind, np.memmap) and bool(getattr(array, "__dict__", None))


def _locked(array: Array) -> Array:
    """Return a view of an array that can't be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


def _array_of_class(array: Array, kind: type[Any]) -> Array:
    return array.view(kind)


def _set_attributes(array: object, attributes: dict[str, Any]) -> None:
    vars(array).update(attributes)


def _memoryview(array: Array, code: str) -> memoryview:
    view = memoryview(array)
    if view.format == code:
        return view
    bare: Any = memoryview(bytes(view)).cast("B")
    return bare.cast(code, array.shape)  # type: ignore[no-any-return]  # typeshed has one overload for each code


def _weak_set(items: list[Any]) -> weakref.WeakSet[Any]:
    """Make a set that keeps its items: nobody else has them here, and they would go as soon as they have come."""
    made = weakref.WeakSet(items)
    made.__dict__["kept"] = items
    return made


def _restore_array(
    buffer: bytes | bytearray | memoryview, dtype: str, shape: tuple[int, ...], order: Literal["C", "F"]
) -> np.ndarray[Any, Any]:
    if 0 in shape:
        return np.empty(shape, np.dtype(dtype), order)
    array = np.frombuffer(buffer, np.dtype(dtype)).reshape(shape, order=order)
    if not array.flags.aligned:
        array = array.copy("K")
        array.flags.writeable = False
    return array


class Parcel:
    """Something pickled. It travels as bytes, and can neither fail to be pickled nor to be unpickled.

    ============  ===========================================================================================
    `payload`     pickles one after the other: the contents, `singletons`, digests of `code_by_name`; and buffers
    `python`      the version of Python that packed it: functions by value are bytecode, which no other runs
    `singletons`  the classes and primitives that go by value, once it is open; see `singletons`
    ============  ===========================================================================================
    """

    __slots__ = ("_contents", "_lock", "payload", "python", "singletons")

    def __init__(self, payload: tuple[Any, ...], python: str, contents: object = None) -> None:
        self.payload, self.python, self._contents = payload, python, contents
        self.singletons: tuple[Any, ...] = ()
        self._lock = threading.Lock()

    def open(self) -> Any:
        """Return what is inside, unpickled once a process."""
        with self._lock:
            if self._contents is None:
                if self.python != PYTHON:
                    raise PortabilityError(
                        f"A function and its data were packed by Python {self.python}, and this is Python {PYTHON}, "
                        "which can't run the other's bytecode. Start workers of the client's version of Python."
                    )
                head, *buffers = self.payload
                try:
                    unpickler = pickle.Unpickler(io.BytesIO(head), buffers=buffers)
                    contents = unpickler.load()
                    self.singletons = unpickler.load()
                    refuse_other_code(unpickler.load())
                    self._contents = contents
                except PortabilityError:  # what could not be packed, and travels as its refusal
                    raise
                except Exception as error:
                    raise PortabilityError(
                        f"A function and its data could not be unpickled here ({type(error).__name__}: {error}). "
                        f"{_remedy(error)}"
                    ) from error
        return self._contents

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        head, *buffers = self.payload
        wrap = pickle.PickleBuffer if protocol >= 5 else bytes
        parts = [wrap(buffer) for buffer in buffers]
        return _parcel, (self.python, head, *parts)

    def __sizeof__(self) -> int:
        return 200 + sum(memoryview(part).nbytes for part in self.payload)


def _remedy(error: Exception) -> str:
    remedy = "The modules that it needs must be importable, in the same versions, on every worker."
    name = (getattr(error, "name", None) or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if name:
        remedy += (
            f' If {name} is a file of yours, send it there with `client.upload_file("{name}.py")`, or let what it '
            f"defines travel with your functions: `cloudpickle.register_pickle_by_value({name})`."
        )
    return remedy


def _parcel(python: str, *payload: Any) -> Parcel:
    return Parcel(payload, python)


def pack(obj: object) -> Parcel:
    """Pickle something for another process; what can't be pickled is refused by its name.

    Arrays that share memory here don't there: what is written into one would not be in the other. So they arrive
    read-only.
    """
    parcel, arrays = _packed(obj, ())
    shared = sharing(arrays) if len(arrays) > 1 else ()
    return _packed(obj, shared)[0] if shared else parcel


def _packed(obj: object, frozen: Container[int]) -> tuple[Parcel, list[Array]]:
    """Return something pickled, and the arrays that it has; those of some ids arrive read-only."""
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    pickler = Pickler(file, protocol=5, buffer_callback=buffers.append, frozen=frozen)
    try:
        pickler.dump(obj)
        pickler.dump(tuple(pickler.singletons))  # the same pickler's: references to what it has written already
        pickler.dump(digests_of(pickler.referred.found()))
    except ClosureError:
        raise
    except Exception as error:
        raise PortabilityError(
            f"{_what_cannot(obj)} can't be pickled ({type(error).__name__}: {error}), so it can't be sent to another "
            "process. Make locks, open files, connections and generators inside the function; put what Python "
            "itself gives locks and caches, as `functools.singledispatch` and `cached_property` do, into a module that "
            'workers import; or use `scheduler="threads"`.'
        ) from error
    parcel = Parcel((file.getvalue(), *(buffer.raw() for buffer in buffers)), PYTHON, obj)
    parcel.singletons = tuple(pickler.singletons)
    return parcel, pickler.arrays


class _Noting(Pickler):
    """Notes what it comes to, to find out what can't be pickled."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), protocol=5, buffer_callback=_drop)
        self.met: list[Any] = []

    def reducer_override(self, obj: object) -> Any:
        """Note an object."""
        self.met.append(obj)
        return super().reducer_override(obj)


class _Trying(Pickler):
    """Shows whether something can be pickled: what its functions mean by words is left out where it can't."""

    follows_words = False


def _drop(buffer: pickle.PickleBuffer) -> None:
    del buffer


def _what_cannot(obj: object) -> str:
    """Return what can't be pickled, by the name that a user's function has for it."""
    pickler = _Noting()
    with contextlib.suppress(Exception):
        pickler.dump(obj)
    guilty = pickler.met[-1] if pickler.met else None
    for fun in (met for met in reversed(pickler.met) if type(met) is FunctionType):
        used = used_in(fun.__code__)
        for name, value in (*variables_of(fun), *FUNCTION.named(fun, used)):
            kind = kind_of(type(value))
            named = (part for _, part in kind.named(value, used))
            if any(guilty is part for part in (value, *kind.parts(value), *named)):
                return f"`{fun.__name__}` uses `{name}`, which"
    # The innermost function or class that can't travel by itself either.
    named = (met for met in reversed(pickler.met) if isinstance(met, FunctionType | type))
    own = (met for met in named if met.__module__.partition(".")[0] not in sys.stdlib_module_names - {"__main__"})
    innermost = next((met for met in own if _fails(met)), None)
    if innermost is not None:
        return f"`{innermost.__qualname__}`, or what it holds,"
    if guilty is None or type(guilty).__module__.startswith("dagad."):
        return "A chunk function or its data"
    return f"`{type(guilty).__qualname__}`, in a chunk function or its data,"


def _fails(obj: object) -> bool:
    try:
        _Trying(io.BytesIO(), protocol=5, buffer_callback=_drop).dump(obj)
    except Exception:
        return True
    return False


def pack_call(function: Callable[..., Any], *args: Any) -> Parcel:
    """Pickle a call: what is opened is what it returns there."""
    return pack(_Recipe(function, args))


class Portable:
    """Base of what travels by `pack`; unpickled it is a Parcel, to be opened by the task."""

    __slots__ = ("_parcel",)
    _parcel: Parcel

    def state(self) -> tuple[Any, ...]:
        """Return the arguments that make this object again."""
        raise NotImplementedError(f"`{type(self).__name__}.state` has to say what the object consists of.")

    def parcel(self) -> Parcel:
        """Return this object packed; packed once."""
        try:
            return self._parcel
        except AttributeError:
            self._parcel = pack(_Recipe(type(self), self.state()))
            return self._parcel

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return self.parcel().__reduce_ex__(protocol)


class PortableResult(Portable):
    """Base of what tasks give: what can't be packed travels as its refusal, which is raised by whoever opens it.

    Dask moves results between workers whenever it likes, and tries for ever to get one whose pickling raises.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        try:
            return super().__reduce_ex__(protocol)
        except PortabilityError as error:
            return pack_call(_refused, str(error)).__reduce_ex__(protocol)


def _refused(why: str) -> NoReturn:
    raise PortabilityError(f"Rows of Shards were to move to another process. {why}")


class _Recipe:
    __slots__ = ("make",)

    def __init__(self, cls: Any, state: tuple[Any, ...]) -> None:
        self.make = (cls, state)

    def __reduce__(self) -> tuple[Any, ...]:
        cls, state = self.make
        return cls, state


def opened(obj: object) -> Any:
    """Return what a parcel holds; anything else as it is."""
    return obj.open() if type(obj) is Parcel else obj
