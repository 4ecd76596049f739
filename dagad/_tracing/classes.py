"""Of which class a traced value is: for the user's code it is that of the value which is being followed.

`isinstance`, a pattern such as ``case float()`` and `functools.singledispatch` ask for `__class__` where the type
itself doesn't fit, and `hasattr(x, "__len__")` whether it is an array. The user's code takes the same way then, traced
or not; libraries, to which an array is memory, and autograd are told the truth.
"""

from __future__ import annotations

import sys
from types import FrameType, MethodType
from typing import Any

import numpy as np

from dagad._frames import is_hidden, module_of
from dagad._types import Array, Function
from dagad._values import pytree
from dagad._values.bytecode import steps

_LIBRARIES = frozenset(
    "arviz astropy bokeh cloudpickle cupy jax jaxlib matplotlib msgpack networkx numba numexpr numpy optree pandas "
    "polars pyarrow pymc pytensor scipy sklearn sparse statsmodels torch xarray zarr".split()
)
_OTHERS = _LIBRARIES | (sys.stdlib_module_names - {"__main__"})
_BETWEEN = frozenset({"_py_abc", "abc", "functools", "typing"})  # who asks there asks for somebody else
_NUMBERS = (np.ndarray, np.generic, float, complex, int)


def seen(array: Array) -> type:
    """Return of which class a traced array is for who asks: the frame above this one, or for whom that one asks."""
    return _within(array) if _is_users(sys._getframe(1)) else type(array)


def _within(array: Array) -> type:
    """Return the class of the value that is followed; of an engine's own value, that of numpy's in its place."""
    plain = pytree.plain(array)
    kind = type(plain)
    if issubclass(kind, _NUMBERS):
        return kind
    dtype: Any = plain.dtype
    return np.ndarray if np.shape(plain) else dtype.type if isinstance(dtype, np.dtype) else type(array)


class _OfArrays:
    """A method that numbers of numpy's have not: so `hasattr` is told in the user's code, and nobody else."""

    def __init__(self, name: str, method: Function) -> None:
        self.name, self.method = name, method

    def __get__(self, array: Array | None, kind: object = None) -> Any:
        if array is None:
            return self.method
        if not hasattr(_within(array), self.name) and _is_named(sys._getframe(1), self.name):
            raise AttributeError(f"A number has no `{self.name}`.")
        return MethodType(self.method, array)


def hide_what_numbers_lack(kind: type) -> None:
    """Have `hasattr` find no length, and nothing to iterate over, in a traced number."""
    for name in ("__len__", "__iter__"):
        setattr(kind, name, _OfArrays(name, getattr(kind, name)))


def _is_named(frame: FrameType, name: str) -> bool:
    """Return whether a line of the user's asks for a name, as `hasattr` and `getattr` do, and not for what it does."""
    while frame.f_back is not None and _is_between(frame):
        frame = frame.f_back
    if name not in frame.f_code.co_consts or not _is_users(frame):
        return False
    before = [each.argval for each in steps(frame.f_code) if each.offset < frame.f_lasti and each.opname != "PRECALL"]
    return name in before[-2:]  # `getattr` may have a default after it


def _is_users(frame: FrameType) -> bool:
    while frame.f_back is not None and _is_between(frame):
        frame = frame.f_back
    return not is_hidden(frame) and module_of(frame).partition(".")[0] not in _OTHERS


def _is_between(frame: FrameType) -> bool:
    code = frame.f_code
    return module_of(frame) in _BETWEEN or code is np.isscalar.__code__ or code.co_name == "__getattribute__"
