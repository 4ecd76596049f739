"""Functions of an engine inside tasks of Dask graphs, whose other parts (numpy's, Dask's own) are autograd's.

A task that Dask made may run several functions: of those that a blockwise operation fused, some are the user's, and
some add up a block. Autograd follows them all, and meets a user's function as one node, which is the engine's.
"""

from __future__ import annotations

import functools
from typing import Any

from dagad._engines.engine_call import EngineCall
from dagad._engines.registry import own_engine
from dagad._rules.dask_functions import replaced_within
from dagad._tracing.flat_functions import Engine
from dagad._types import Function

# Packages whose functions are numpy's, or take what they are given as it is.
_AUTOGRADS = frozenset(
    "_operator autograd builtins cytoolz dagad dagad_scheduler dask distributed functools itertools numpy operator "
    "pandas scipy tlz toolz xarray".split()
)


def is_autograds(function: Function) -> bool:
    """Return whether a function of a task is left to autograd: of numpy, Dask or Python, or what makes an object."""
    if isinstance(function, functools.partial):
        return is_autograds(function.func)
    module = getattr(function, "__module__", None) or type(function).__module__
    return isinstance(function, type) or str(module).partition(".")[0] in _AUTOGRADS


def by_engine(function: Function, engine: Engine | None) -> Any:
    """Return what a task is to call in place of a function, so that what is not autograd's is the engine's.

    A function that brings its own engine is that one's; without `engine` all others are autograd's.
    """
    if (found := replaced_within(function, lambda inner: by_engine(inner, engine))) is not None:
        return found
    fun, own = own_engine(function)
    if own is not None:
        return EngineCall(own, fun)
    return function if engine is None or is_autograds(function) else EngineCall(engine, function)
