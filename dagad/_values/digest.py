"""A digest of what functions and data consist of: the same in every process, other when anything in them is.

By it a later process knows whether what it finds on disk belongs to what it is asked to compute. It is no pickle: that
depends on which strings are one object, and on the order of sets. Functions are digested with all that they can reach:
code, defaults, closures, the globals that their code names, and what it names of modules, by a word for `getattr` too.
A name that is put together when the code runs is not seen. What belongs to an installed package goes by its name and
the package's version.
"""

from __future__ import annotations

import contextlib
import copyreg
import enum
import functools
import hashlib
import importlib
import struct
import sys
from collections.abc import Container, Iterable, Iterator
from importlib import util
from types import BuiltinFunctionType, CodeType, FunctionType, GetSetDescriptorType, ModuleType
from typing import Any

import numpy as np
from dask.base import is_dask_collection

from dagad._errors import PortabilityError
from dagad._values.bytecode import imports_of, used_in
from dagad._values.canonical import is_frozen, library_of
from dagad._values.contents import attributes_of
from dagad._values.homes import (
    has_own_name,
    is_file_of_packages,
    is_installed,
    is_of_a_package,
    is_own_module,
    sent_by_value,
    version_of,
)
from dagad._values.kinds import CLASS, FUNCTION, INSTANCE, MODULE, Kind, is_exact, is_whole, kind_of
from dagad._values.names import CODE, Scopes, of_module
from dagad._values.shipping import Portable, Primitives, as_primitive
from dagad._words import described

SIZE = 16  # bytes
_PLAIN = frozenset({type(None), bool, int, complex, str, bytes, type(Ellipsis), type(NotImplemented)})
_BUILT_IN: tuple[Any, ...] = (BuiltinFunctionType, np.ufunc, type(np.sum), GetSetDescriptorType)
_DISPATCH: CodeType = functools.singledispatch(id).__code__  # type: ignore[attr-defined]  # it is a function


def digest(*parts: Any, here: bool = False) -> str:
    """Return a digest of some parts, as text; with `here` as this process has them, pickles would leave out some.

    Raises
    ------
    PortabilityError
        If something in them says nothing of what it consists of.

    Examples
    --------
    >>> digest([1.0, 2.0]) == digest([1.0, 2.0]), digest([1.0]) == digest((1.0,))
    (True, False)
    """
    writer = _Writer(here)
    for part in parts:
        writer.take(part)
    writer.take_named()
    return writer.hash.hexdigest()


class States:
    """Digests of parts as this process has them: of one function, which one may name what another holds.

    Arrays that nobody can write into go by their identity; what can't be taken apart, too. They are `kept`, or another
    object may come to stand at the same address.
    """

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self._scopes = Scopes()

    def of(self, part: object, names: tuple[str, ...]) -> str:
        """Return the digest of a part, for a function that knows some names."""
        self._scopes.meet(names)
        writer = self._writer()
        try:
            writer.reach(part, names)
        except Exception:  # by code of others', which must not stop a value
            self.kept.append(part)
            return f"itself {id(part)}"
        return writer.hash.hexdigest()

    def of_modules(self) -> Iterator[tuple[str, str]]:
        """Yield the names of all that may be meant in modules that were found in parts, and digests."""
        return self._writer().named()

    def _writer(self) -> _Writer:
        writer = _Writer(here=True, kept=self.kept)
        writer.scopes = self._scopes
        return writer


class _Writer:
    def __init__(self, here: bool = False, kept: list[Any] | None = None) -> None:
        self._here, self._kept = here, kept
        self.hash = hashlib.blake2b(digest_size=SIZE)
        self._seen: dict[int, int] = {}
        self._reached: set[tuple[str, str]] = set()  # modules, and names of what has been taken of them
        self.scopes = Scopes()
        self._alive: list[Any] = []  # or another object may come to stand at the same place

    def _say(self, *words: str | int) -> None:
        for word in words:
            text = word.encode("utf-8", "surrogatepass") if isinstance(word, str) else struct.pack("<q", word)
            self.hash.update(struct.pack("<q", len(text)))
            self.hash.update(text)

    def take(self, part: Any) -> None:
        """Add a part, and all that it consists of."""
        kind = type(part)
        if kind in _PLAIN:
            self._say(kind.__name__, repr(part))
        elif kind is float or isinstance(part, np.generic):
            self._array(np.asarray(part), kind.__name__)
        elif self._kept is not None and kind is np.ndarray and part.dtype != object and is_frozen(part):
            self._itself(part, self._kept)
        elif kind in (np.ndarray, np.memmap) and part.dtype != object:  # others hold more than numbers, such as masks
            self._array(part, kind.__name__)
        elif kind is tuple:  # two may be one object in one process and not in another, as two strings may
            self._all("tuple", len(part), part)
        else:
            self._object(part, kind_of(kind))

    def _alone(self, part: object) -> str:
        """Return a digest of a part by itself, which may lead to what it is a part of."""
        writer = _Writer(self._here, self._kept)
        writer._seen, writer._alive, writer.scopes = dict(self._seen), self._alive, self.scopes
        writer.take(part)
        return writer.hash.hexdigest()

    def take_named(self) -> None:
        """Add what any function may mean in a module that another one hands it."""
        for name, found in self.named():
            self._say("named", name, found)

    def named(self) -> Iterator[tuple[str, str]]:
        """Yield the names of what has not been reached in the modules that were met, and digests."""
        while fresh := self.scopes.fresh():
            for home, name, value in sorted(fresh, key=lambda one: (one[0].__name__, one[1])):
                if is_own_module(value):
                    self.scopes.enter(value)
                elif not isinstance(value, ModuleType) and (home.__name__, name) not in self._reached:
                    with contextlib.suppress(PortabilityError):  # it may be meant of something else
                        yield f"{home.__name__}.{name}", self._alone(value)

    def _all(self, name: str, count: int, parts: Iterable[Any]) -> None:
        self._say(name, count)
        for part in parts:
            self.take(part)

    def _array(self, array: np.ndarray[Any, Any], name: str) -> None:
        self._say(name, str(np.lib.format.dtype_to_descr(array.dtype)), array.ndim, *array.shape)  # names of fields too
        whole = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        if whole.dtype.hasobject:
            self.take(whole.tolist())
        else:
            self.hash.update(whole.reshape(-1).view(np.uint8).data if whole.size else b"")

    def _object(self, part: Any, kind: Kind) -> None:
        if id(part) in self._seen:
            self._say("again", self._seen[id(part)])
            return
        self._seen[id(part)] = len(self._seen)
        self._alive.append(part)
        cls = type(part)
        if kind is MODULE:
            self._say("module", part.__name__, version_of(part.__name__))
            if is_own_module(part):
                self.scopes.enter(part)
        elif kind is FUNCTION:
            self._function(part)
        elif kind is CLASS:
            self._class(part)
        elif isinstance(part, _BUILT_IN):
            self._named(part)
        elif is_whole(cls) or (self._here and not _is_known_to_pickle(part)) or _is_set(cls):
            self._opened(part, kind)
            if kind is INSTANCE:
                self._in_c(part)
        else:
            self._instance(part)

    def _opened(self, part: object, kind: Kind, copied: Container[int] = ()) -> None:
        """Add an object as the table of kinds has it."""
        cls = type(part)
        said, parts = kind.opened(part)
        self._all(cls.__name__, 2, (tuple(said), () if is_exact(cls, kind) else cls))
        if kind.is_ordered:
            self._all("parts", len(parts), ["copied" if id(one) in copied else one for one in parts])
        else:
            self._all("parts", len(parts), sorted(map(self._alone, parts)))

    def _in_c(self, part: object) -> None:
        """Add what an object holds that is no attribute; it goes by its identity if it says nothing of that."""
        try:
            self._instance(part)
        except PortabilityError:
            if self._kept is None:
                raise
            self._itself(part, self._kept)

    def _itself(self, part: object, kept: list[Any]) -> None:
        kept.append(part)
        self._say("itself", id(part))

    def _named(self, part: object) -> None:
        module = str(getattr(part, "__module__", None))
        name = str(getattr(part, "__qualname__", getattr(part, "__name__", repr(part))))
        self._say("named", module, name, version_of(module))
        owner = getattr(part, "__self__", None)
        held = kind_of(type(part)).first(part)  # by a method of a dict, say, or a function that is one of numpy's now
        for one in held or ([owner] if isinstance(owner, type) else ()):
            self.take(one)

    def _primitive(self, function: FunctionType, how: Primitives) -> None:
        """Add what an engine computes and its rules: the function itself leads to all of the engine's tables."""
        _, home, *by_value = how.reduce(function)
        if by_value or not is_installed(home[0]):
            self._all("primitive", 1, how.state(function))
        else:
            self._say("named", *home, version_of(home[0]))

    def _function(self, function: FunctionType) -> None:
        if (how := as_primitive(function)) is not None:
            self._primitive(function, how)
        elif is_installed(function.__module__) and has_own_name(function):
            self._named(function)
        elif function.__code__ is _DISPATCH:
            self.take(vars(function)["registry"])
        else:
            used = used_in(function.__code__)
            self.scopes.meet(used)
            _import_own(function)
            copied = getattr(getattr(function, "__wrapped__", None), "__dict__", {})  # by `functools.wraps`
            own = vars(function)
            self._opened(function, FUNCTION, {id(own[name]) for name in own if copied.get(name, self) is own[name]})
            # What a package's own functions hold is the user's, and what they name is the package's.
            is_packages = is_installed(function.__globals__.get("__name__"))
            for name, part in () if is_packages else FUNCTION.named(function, used):
                if name in function.__globals__ or is_own_module(part):
                    self._say("global", name)
                    self.reach(part, used)

    def reach(self, part: Any, names: tuple[str, ...]) -> None:
        """Add what a function that has these names reaches: of a module that is not installed, what is called so."""
        self.take(part)
        for name, value in of_module(part, names) if is_own_module(part) else ():
            if (part.__name__, name) not in self._reached:
                self._reached.add((part.__name__, name))
                self._say("global", name)
                self.reach(value, names)

    def _class(self, cls: type) -> None:
        module = cls.__module__ if isinstance(cls.__module__, str) else ""  # a class of classes may have a descriptor
        self._say("class", module, cls.__qualname__, version_of(module))
        if (module and not is_installed(module)) or "<" in cls.__qualname__:  # a function of a package has made it
            for name, value in sorted(CLASS.named(cls, ())):
                self._say("part", name)
                if isinstance(value, _MEMBERS):
                    self.take(value)
                else:
                    with contextlib.suppress(PortabilityError):  # a lock, say
                        self._say(self._alone(value))
            self._all("bases", len(cls.__bases__), CLASS.parts(cls))

    def _instance(self, part: Any) -> None:
        """Add an object by what it is made of again: as pickle would."""
        if isinstance(part, Portable):  # without packing it
            self._all("portable", 2, (type(part), part.state()))
            return
        if is_of_a_package(part, sent_by_value()):
            self._named(part)
            return
        library = library_of(part)
        # Attributes and caches that nobody asked for are not there yet; of a graph it says the name, not what is in it.
        if library == "xarray" and hasattr(type(part), "__dask_tokenize__") and not is_dask_collection(part):
            self.take(part.__dask_tokenize__())
            return
        if library == "pandas":
            part = _unread(part)
        reduce = copyreg.dispatch_table.get(type(part))  # of a compiled regular expression, say
        try:
            reduced: Any = part.__reduce_ex__(2) if reduce is None else reduce(part)
        except Exception as error:
            raise PortabilityError(
                f"A checkpoint can't tell what {described(part)} consists of ({error}), and so not whether it is the "
                "same when the run goes on. Leave it out of the function and its arguments, or give it a `__reduce__`."
            ) from error
        if isinstance(reduced, str):
            self._say("named", type(part).__qualname__, reduced)
            self.take(getattr(part, "__wrapped__", None))  # of a function that remembers what it gave
            return
        made, args, *rest = reduced
        items = [list(one) if index > 0 and one is not None else one for index, one in enumerate(rest[:3])]
        self._all("object", 3, (made, args, items))
        if isinstance(part, enum.Enum | np.ndarray):  # their pickles leave out what the user has put there
            keys, values = attributes_of(part)
            own = {str(key): value for key, value in zip(keys, values, strict=True) if key not in _OF_MEMBERS}
            self.take(own)


_MEMBERS: tuple[Any, ...] = (
    *(*CODE, *_PLAIN, float, tuple, list, dict, set, frozenset, type, functools.partial, np.ndarray, np.generic),
)
_OF_MEMBERS = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})


def _is_known_to_pickle(part: object) -> bool:
    """Return whether what pickle takes of an object is all that counts.

    What belongs to a package goes by its name. Tables and their columns also hold what was found out about them when
    somebody read them, and others what is of this process alone.
    """
    cls = type(part)
    if is_of_a_package(part, sent_by_value()) or getattr(cls, "travels_empty", False):
        return True
    return not isinstance(part, np.ndarray) and library_of(part) is not None and is_installed(cls.__module__)


def _unread(part: object) -> Any:
    """Return an array of pandas' as it is before anybody has read it: its pickle has what was found out then."""
    return part.view() if isinstance(part, sys.modules["pandas"].api.extensions.ExtensionArray) else part


def _is_set(cls: type) -> bool:
    """Return whether objects are sets and no more: their pickles have the order of this process."""
    base = next((base for base in (set, frozenset) if issubclass(cls, base)), None)
    own: Any = cls  # or its methods have types that nothing equals
    return base is not None and own.__reduce__ is base.__reduce__ and own.__reduce_ex__ is object.__reduce_ex__


def _import_own(function: FunctionType) -> None:
    """Import the modules, of nobody's package, that a function imports when it runs: another process may have."""
    for name in imports_of(function.__code__, function.__globals__.get("__package__")):
        if name not in sys.modules:
            with contextlib.suppress(Exception):  # the function itself will tell
                spec = util.find_spec(name.partition(".")[0])
                if spec is not None and not is_file_of_packages(spec.origin):
                    importlib.import_module(name)
