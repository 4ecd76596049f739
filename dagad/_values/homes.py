"""Whose something is: Python's, an installed package's or the user's, and what other processes find by its name."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Set as AbstractSet
from importlib import metadata
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import numpy as np

_LIBRARIES = frozenset(
    "numpy scipy pandas autograd dagad dask distributed cloudpickle optree jax jaxlib torch tensorflow sklearn numba "
    "statsmodels sympy matplotlib polars pyarrow xarray zarr pymc pytensor networkx "
    "_pytest pytest pluggy".split()  # an `assert` in a test's chunk function leads to the whole session
)
# A logger, say, leads to every other logger. What is usually used to hold values is looked into.
_CLOSED = (sys.stdlib_module_names | _LIBRARIES) - {"__main__", "types", "collections"}
_PACKAGES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
# What has a name of its own. Bound methods are made anew whenever they are looked up.
_HAVE_A_NAME = (type, FunctionType, type(np.sum))
_MAY_GO_BY_NAME: tuple[Any, ...] = (*_HAVE_A_NAME, BuiltinFunctionType, ModuleType)
_OFTEN = frozenset({type, FunctionType})


def own(obj: object, name: str, default: object = None) -> Any:
    """Return an attribute as an object has it: no ``__getattr__`` of the user's runs."""
    try:
        return _own(obj, name)
    except AttributeError:
        return default


_own = object.__getattribute__


def root_of(thing: object) -> str:
    """Return the top-level package that a module or a class belongs to."""
    home = thing.__name__ if isinstance(thing, ModuleType) else thing.__module__
    return str(home).partition(".")[0]


def is_closed(root: str) -> bool:
    """Return whether a package is known to hold nothing of its users: Python's own, and libraries that are at hand."""
    return root in _CLOSED


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
    root = (module or "").partition(".")[0]
    if root in sys.builtin_module_names or root in ("dagad", "dagad_scheduler"):
        return True
    return is_file_of_packages(getattr(found, "__file__", None))


def is_file_of_packages(file: str | None) -> bool:
    return file in (None, "built-in", "frozen") or any(Path(str(file)).is_relative_to(path) for path in _PACKAGES)


def is_own_module(part: object) -> bool:
    """Return whether something is a module of nobody's package."""
    return isinstance(part, ModuleType) and not is_installed(part.__name__)


@functools.lru_cache(1024)
def version_of(module: str) -> str:
    """Return the version of the package of a module; that of Python's own is Python's."""
    name = module.partition(".")[0]
    found = None if name in sys.stdlib_module_names else getattr(sys.modules.get(name), "__version__", None)
    if isinstance(found, str):
        return found
    try:
        return metadata.version(name)
    except Exception:  # no package of its own
        return f"python {sys.version_info[0]}.{sys.version_info[1]}" if is_installed(module) else ""


def sent_by_value() -> AbstractSet[str]:
    """Return the modules that somebody wants to go by value, nearly always none: who looks at many things asks once."""
    found: set[str] = cloudpickle.list_registry_pickle_by_value()
    return found


def is_imported(name: str, by_value: AbstractSet[str]) -> bool:
    """Return whether every process can import a module under this name, and it is none of those that go by value."""
    if name == "__main__" or name not in sys.modules:
        return False
    for one in by_value:
        if f"{name}.".startswith(f"{one}."):
            return False
    return True


def is_importable(thing: Any, by_value: AbstractSet[str]) -> bool:
    """Return whether every process finds a class or a function under its name."""
    module: str = thing.__module__ or ""
    return is_imported(module, by_value) and _found(module, thing.__qualname__) is thing


def is_found(thing: Any) -> bool:
    """Return whether this process has a class under its name, the script or the notebook too."""
    module = thing.__module__  # a class of classes may have a descriptor
    return isinstance(module, str) and _found(module, thing.__qualname__) is thing


def _found(module: str, name: str) -> Any:
    """Return what a module that is imported has under a name."""
    found: Any = sys.modules.get(module)
    if "." not in name:  # nearly always
        return getattr(found, name, None)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def goes_by_name(part: object, by_value: AbstractSet[str]) -> bool:
    """Return whether another process finds a thing under its name, so that pickling it would not show any change."""
    if type(part) in _OFTEN:
        return is_importable(part, by_value)
    if not isinstance(part, _MAY_GO_BY_NAME):
        return False
    if isinstance(part, _HAVE_A_NAME):
        return is_importable(part, by_value)
    if isinstance(part, BuiltinFunctionType):
        return part.__self__ is None or isinstance(part.__self__, ModuleType)
    return is_imported(part.__name__, by_value) and sys.modules[part.__name__] is part


def is_of_a_package(part: object, by_value: AbstractSet[str]) -> bool:
    """Return whether a thing goes by its name and belongs to an installed package, so that nobody changes it."""
    if isinstance(part, ModuleType):
        return is_installed(part.__name__)
    if isinstance(part, BuiltinFunctionType):
        return goes_by_name(part, by_value)
    module, name = own(part, "__module__"), own(part, "__qualname__", own(part, "__name__"))
    if not isinstance(name, str) or not is_installed(str(module)):
        return False
    return is_imported(module, by_value) and _found(module, name) is part


def has_own_name(function: FunctionType) -> bool:
    """Return whether a function has a name that is no other's, as lambdas and what wraps a function have not."""
    if "<" in function.__qualname__:  # a lambda, or local to a function
        return False
    return not hasattr(function, "__wrapped__") or _found(function.__module__, function.__qualname__) is function
