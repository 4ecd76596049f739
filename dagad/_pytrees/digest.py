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
import gc
import hashlib
import importlib
import struct
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata, util
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

import numpy as np

from dagad._errors import PortabilityError
from dagad._pytrees.canonical import is_frozen
from dagad._pytrees.kinds import INSTANCE, WHOLE, attributes_of, contents_of, kind_of
from dagad._pytrees.shipping import Primitives, as_primitive
from dagad._pytrees.walk import imports_of, used_in
from dagad._words import described

SIZE = 16  # bytes
_PLAIN = frozenset({type(None), bool, int, complex, str, bytes, type(Ellipsis), type(NotImplemented)})
_BUILT_IN: tuple[Any, ...] = (
    BuiltinFunctionType,
    type(len),
    type([].append),
    np.ufunc,
    type(np.sum),
    GetSetDescriptorType,
)
_DISPATCH: CodeType = functools.singledispatch(id).__code__  # type: ignore[attr-defined]  # it is a function
_PACKAGES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


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
        self._names: set[str] = set()
        self._modules: dict[str, ModuleType] = {}

    def of(self, part: Any, names: tuple[str, ...]) -> str:
        """Return the digest of a part, for a function that knows some names."""
        self._names.update(names)
        writer = self._writer()
        try:
            writer.take_of_names(part, names)
        except Exception:  # by code of others', which must not stop a value
            self.kept.append(part)
            return f"itself {id(part)}"
        return writer.hash.hexdigest()

    def of_modules(self) -> str:
        """Return the digest of what may be meant in modules that were found in parts."""
        writer = self._writer()
        writer.take_named()
        return writer.hash.hexdigest()

    def _writer(self) -> _Writer:
        writer = _Writer(here=True, kept=self.kept)
        writer.names, writer.modules = self._names, self._modules
        return writer


class _Writer:
    def __init__(self, here: bool = False, kept: list[Any] | None = None) -> None:
        self._here, self._kept = here, kept
        self.hash = hashlib.blake2b(digest_size=SIZE)
        self._seen: dict[int, int] = {}
        self._used: set[tuple[int, tuple[str, ...]]] = set()  # modules, and the names that a function knows
        self.modules: dict[str, ModuleType] = {}
        self.names: set[str] = set()  # of all functions
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
            self._object(part)

    def _alone(self, part: Any) -> str:
        """Return a digest of a part by itself, which may lead to what it is a part of."""
        writer = _Writer(self._here, self._kept)
        writer._seen, writer._alive = dict(self._seen), self._alive
        writer.modules, writer.names = self.modules, self.names
        writer.take(part)
        return writer.hash.hexdigest()

    def take_named(self) -> None:
        """Add what any function may mean in a module that another one hands it."""
        done: set[tuple[str, str]] = set()
        while left := {(home, name) for home in self.modules for name in self.names} - done:
            done |= left
            for home, name in sorted(left):
                if name in (scope := vars(self.modules[home])) and not isinstance(scope[name], ModuleType):
                    with contextlib.suppress(PortabilityError):  # it may be meant of something else
                        self._say("named", home, name, self._alone(scope[name]))

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

    def _object(self, part: Any) -> None:
        if id(part) in self._seen:
            self._say("again", self._seen[id(part)])
            return
        self._seen[id(part)] = len(self._seen)
        self._alive.append(part)
        if isinstance(part, ModuleType):
            self._say("module", part.__name__, _version(part.__name__))
            if _is_own_module(part):
                self.modules[part.__name__] = part
        elif isinstance(part, CodeType):
            self._code(part)
        elif isinstance(part, FunctionType):
            self._function(part)
        elif isinstance(part, type):
            self._class(part)
        elif type(part) in (set, frozenset):
            self._all(type(part).__name__, len(part), sorted(map(self._alone, part)))
        elif type(part).__name__ == "PyTreeDef":
            self._all("structure", 2, (part.node_data(), part.children()))  # of jax
        elif is_jitted(part):  # before its attributes are looked at, which are bound methods and change
            self._all("jitted", 4, jitted_parts(part))
        elif type(part) in WHOLE or (self._here and not isinstance(part, _BUILT_IN) and not _is_of_package(part)):
            kind = kind_of(type(part))
            self._all(type(part).__name__, 2, (kind.said(part), tuple(kind.parts(part))))
            if kind is INSTANCE:
                self._in_c(part)
        elif isinstance(part, _BUILT_IN):
            self._named(part)
        else:
            self._instance(part)

    def _in_c(self, part: Any) -> None:
        """Add what an object holds that is no attribute; it goes by its identity if it says nothing of that."""
        self.take(type(part))
        try:
            self._instance(part)
        except PortabilityError:
            if self._kept is None:
                raise
            self._itself(part, self._kept)

    def _itself(self, part: Any, kept: list[Any]) -> None:
        kept.append(part)
        self._say("itself", id(part))

    def _named(self, part: Any) -> None:
        module = str(getattr(part, "__module__", None))
        name = str(getattr(part, "__qualname__", getattr(part, "__name__", repr(part))))
        self._say("named", module, name, _version(module))
        owner = getattr(part, "__self__", None)
        if owner is not None and not isinstance(owner, ModuleType):  # of a dict or the like
            self.take(owner)
        for made_of in filter(callable, gc.get_referents(part) if isinstance(part, np.ufunc) else ()):
            self.take(made_of)  # by `numpy.frompyfunc`

    def _code(self, code: CodeType) -> None:
        counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
        self._say("code", code.co_name, *counts, code.co_flags)
        self.take(code.co_code)
        self.take(getattr(code, "co_exceptiontable", b""))  # which of it is under a `try`
        for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            self._say(len(names), *names)
        self.take(code.co_consts)

    def _primitive(self, function: FunctionType, how: Primitives) -> None:
        """Add what an engine computes and its rules: the function itself leads to all of the engine's tables."""
        _, home, *by_value = how.reduce(function)
        if by_value or not is_installed(home[0]):
            self._all("primitive", 1, how.state(function))
        else:
            self._say("named", *home, _version(home[0]))

    def _function(self, function: FunctionType) -> None:
        if (how := as_primitive(function)) is not None:
            self._primitive(function, how)
            return
        if is_installed(function.__module__) and _has_own_name(function):
            self._named(function)
            return
        if function.__code__ is _DISPATCH:
            self.take(vars(function)["registry"])
            return
        used = tuple(sorted(used_in(function.__code__)))
        self.names.update(used)
        held = [contents for cell in function.__closure__ or () for contents in contents_of(cell)]
        self._all("function", 3, (function.__code__, function.__defaults__, function.__kwdefaults__))
        for part in (*held, *_imported(function)):
            self.take_of_names(part, used)
        self.modules.update((part.__name__, part) for part in held if _is_own_module(part))
        self._named_in(function.__globals__, used)
        wrapped = getattr(function, "__wrapped__", None)
        copied = {"__wrapped__": wrapped} | getattr(wrapped, "__dict__", {})  # `functools.wraps` has
        self.take({name: value for name, value in vars(function).items() if copied.get(name, self) is not value})
        self.take(wrapped)

    def _named_in(self, scope: dict[str, Any], names: tuple[str, ...]) -> None:
        for name in names:
            if name in scope:
                self._say("global", name)
                self.take_of_names(scope[name], names)

    def take_of_names(self, part: Any, names: tuple[str, ...]) -> None:
        """Add what a function that has these names reaches: of a module that is not installed, what is called so."""
        if not _is_own_module(part):
            self.take(part)
        elif (id(part), names) not in self._used:
            self._used.add((id(part), names))
            self._say("module", part.__name__)
            self._named_in(vars(part), names)

    def _class(self, cls: type) -> None:
        module = cls.__module__ if isinstance(cls.__module__, str) else ""  # a class of classes may have a descriptor
        self._say("class", module, cls.__qualname__, _version(module))
        if (module and not is_installed(module)) or "<" in cls.__qualname__:  # a function of a package has made it
            parts = sorted((name, value) for name, value in vars(cls).items() if _is_of_class(name, value))
            self._all("parts", len(parts), [one for pair in parts for one in pair])
            for name, value in sorted((name, value) for name, value in vars(cls).items() if _may_say(name, value)):
                with contextlib.suppress(PortabilityError):  # a lock, say
                    self._say("part", name, self._alone(value))
            self._all("bases", len(cls.__bases__), (*cls.__bases__, type(cls)))

    def _instance(self, part: Any) -> None:
        """Add an object by what it is made of again: as pickle would."""
        state = getattr(part, "state", None)
        if callable(state) and hasattr(part, "parcel"):  # of what travels: without packing it
            self._all("portable", 2, (type(part), state()))
            return
        if _is_of_package(part):
            self._named(part)
            return
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


_METHODS: tuple[Any, ...] = (FunctionType, staticmethod, classmethod, property, functools.cached_property)
_CONSTANTS: tuple[Any, ...] = (
    *_PLAIN,
    float,
    tuple,
    list,
    dict,
    set,
    frozenset,
    type,
    functools.partial,
    np.ndarray,
    np.generic,
)


_OF_MEMBERS = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})
_OF_PYTHON = frozenset(
    "__module__ __qualname__ __name__ __doc__ __dict__ __weakref__ __annotations__ __firstlineno__ "
    "__static_attributes__ __slots__ __match_args__ __abstractmethods__ __parameters__ __orig_bases__ __hash__ "
    "__annotations_cache__ __annotate_func__ __slotnames__ __signature__ __text_signature__ __final__".split()
)


def _is_own_module(part: Any) -> bool:
    """Return whether something is a module of nobody's package."""
    return isinstance(part, ModuleType) and not is_installed(part.__name__)


def _is_of_class(name: str, value: Any) -> bool:
    """Return whether an attribute of a class belongs to what it does; Python has some of its own there."""
    own = name not in _OF_PYTHON and not name.startswith(("__dataclass_", "__attrs_"))
    return isinstance(value, _METHODS) or (own and isinstance(value, _CONSTANTS))


def _may_say(name: str, value: Any) -> bool:
    """Return whether any other attribute of a class may count."""
    other = not name.startswith("__") and not isinstance(value, GetSetDescriptorType | MemberDescriptorType)
    return other and not _is_of_class(name, value)


def _has_own_name(function: FunctionType) -> bool:
    """Return whether a function has a name that is no other's, as lambdas and what wraps a function have not."""
    if "<" in function.__qualname__:  # a lambda, or local to a function
        return False
    if not hasattr(function, "__wrapped__"):
        return True
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _imported(function: FunctionType) -> list[ModuleType]:
    """Return the modules that a function imports, but for those that are installed."""
    found = []
    for name in imports_of(function.__code__, function.__globals__.get("__package__")):
        with contextlib.suppress(Exception):  # the function itself will tell
            spec = util.find_spec(name.partition(".")[0])
            if spec is not None and not _is_of_packages(spec.origin):
                found.append(importlib.import_module(name))
    return found


def is_jitted(part: Any) -> bool:
    """Return whether an object is what `jax.jit` gives."""
    return type(part).__name__ == "PjitFunction"


def jitted_parts(part: Any) -> tuple[Any, ...]:
    """Return what is compiled, which has travelled where `__wrapped__` has not, and how; all else of it changes."""
    state = part.__reduce_ex__(2)[2]
    return state["fun"], state["static_argnums"], state["static_argnames"], repr(state["global_cache_key"])


@functools.lru_cache(1024)
def is_installed(module: str | None) -> bool:
    """Return whether a module belongs to an installed package, or to Python."""
    found = sys.modules.get(module or "")
    if module in (None, "__main__"):
        return False
    if found is None:  # of a part of what is written in C, say, which nobody imports by that name
        return is_installed(str(module).rpartition(".")[0] or None)
    if getattr(found, "__file__", None) is None and getattr(found, "__spec__", None) is None:
        return False  # made by hand, and not imported
    if (module or "").partition(".")[0] in sys.builtin_module_names:
        return True
    return (module or "").partition(".")[0] in ("dagad", "dagad_scheduler") or _is_of_packages(
        getattr(found, "__file__", None)
    )


def _is_of_package(part: Any) -> bool:
    """Return whether an object is what a module of an installed package has under its name."""
    module, name = getattr(part, "__module__", None), getattr(part, "__qualname__", getattr(part, "__name__", None))
    return isinstance(name, str) and is_installed(module) and getattr(sys.modules.get(str(module)), name, None) is part


def _is_of_packages(file: str | None) -> bool:
    return file in (None, "built-in", "frozen") or any(Path(str(file)).is_relative_to(path) for path in _PACKAGES)


@functools.lru_cache(1024)
def _version(module: str) -> str:
    """Return the version of the package of a module; that of Python's own is Python's."""
    name = module.partition(".")[0]
    found = getattr(sys.modules.get(name), "__version__", None)
    if isinstance(found, str):
        return found
    try:
        return metadata.version(name)
    except Exception:  # no package of its own
        return f"python {sys.version_info[0]}.{sys.version_info[1]}" if is_installed(module) else ""
