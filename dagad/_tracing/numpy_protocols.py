"""Numpy's protocols for traced arrays: numpy's own functions lead to autograd's rules, at autograd's speed.

Functions of arrays come here by `__array_function__`, and find their primitive in autograd's table. Those which are
written with other functions (`concatenate` and what else takes lists) stand in `WRITTEN`. Ufuncs, those of
`scipy.special` too, come by `__array_ufunc__`. What has no derivative, or not in that form, gets a sentence.

State: `WRITTEN`, filled by `numpy_functions` when that is imported, and `UFUNCS`, when a process first meets a function
of scipy's (`scipy_rules`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._errors import NotDifferentiableError
from dagad._tracing import refusals
from dagad._tracing.operands import arrays_among, gathered
from dagad._tracing.private import SequenceBox, box_types, isbox, trace_primitives_map
from dagad._tracing.rules import learn_rules
from dagad._types import Args, Array, Function, Kwargs, Tree, Value
from dagad._values import pytree

WRITTEN: dict[Any, Function] = {}
UFUNCS: dict[Any, Function] = {}  # what autograd has no primitive for


# Functions of arrays


def call_function(func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Call a function of numpy's with traced values."""
    written = WRITTEN.get(func)
    if written is None:
        return _called(func)(*args, **kwargs)
    try:
        return opened(written(*args, **kwargs))
    except TypeError as error:
        if "unexpected keyword" in str(error):
            raise NotDifferentiableError(refusals.of_option(f"np.{getattr(func, '__name__', func)}", kwargs)) from error
        raise


@functools.cache
def _called(func: Function) -> Called:
    return Called(func)


_HARMLESS = frozenset({"axis", "keepdims"})
_REAL_OF_COMPLEX = frozenset({"np.std", "np.var"})  # unless they are told to be complex
_NOTHING = object()

# What numpy before 2.4 can't say of its functions written in C, of those that take numbers.
IN_C: dict[Any, Function] = {
    np.bincount: lambda x, /, weights=None, minlength=0: None,
    np.dot: lambda a, b, out=None: None,
    np.inner: lambda a, b, /: None,
    np.vdot: lambda a, b, /: None,
}


def parameters_of(func: Function) -> Collection[inspect.Parameter]:
    try:
        signature = inspect.signature(func)
    except ValueError:
        signature = inspect.signature(IN_C.get(func, lambda *args, **kwargs: None))
    return signature.parameters.values()


class Called:
    """A primitive, called as numpy's function may be: with keywords, lists, and options that say nothing."""

    def __init__(self, func: Function, primitive: Function | None = None, name: str = "") -> None:
        self.name = name or f"{func.__module__}.{func.__name__}".replace("numpy.", "np.", 1)
        self.primitive = primitive or trace_primitives_map.get(func)
        if self.primitive is None:
            raise NotDifferentiableError(refusals.of_function(self.name))
        parameters = parameters_of(func)
        several = any(each.kind is each.VAR_POSITIONAL for each in parameters)
        self.names = [] if several else [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
        self.defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
        self.by_keyword = bool(primitive and self.names)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = arrays_among(self.names, args, kwargs)
        if (kwargs and not _HARMLESS.issuperset(kwargs)) or (self.by_keyword and len(args) > 1):
            args, kwargs = self._as_rules_take_them(args, kwargs)
        for arg in args:
            if type(arg) in box_types:
                break
        else:
            args = tuple(map(gathered, args))
            if not any(map(isbox, args)):
                raise NotDifferentiableError(refusals.of_function(self.name, refusals.IN_ONE))
        try:
            result = self.primitive(*args, **kwargs)
        except TypeError as error:
            if "unexpected keyword" in str(error) or "positional argument" in str(error):  # of the rule
                telling = self._telling(args)
                if telling < len(args):
                    return self(*args[:telling], **kwargs)
                raise NotDifferentiableError(refusals.of_option(self.name, [*args[1:], *kwargs])) from error
            raise
        return opened(result) if type(result) is SequenceBox else result

    def _telling(self, args: tuple[Any, ...]) -> int:
        """Return how many of the arguments say more than what is so by default."""
        count = len(args)
        while 1 < count <= len(self.names) and args[count - 1] is self.defaults.get(self.names[count - 1], _NOTHING):
            count -= 1
        return count

    def _as_rules_take_them(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Leave out what is as by default, and put traced values where a tape looks for them: not under keywords."""
        if self.by_keyword:
            kwargs, args = dict(zip(self.names[1:], args[1:], strict=False)) | kwargs, args[:1]
        kwargs = {name: each for name, each in kwargs.items() if each is not self.defaults.get(name, _NOTHING)}
        own = getattr(pytree.plain(args[0]) if args else None, "dtype", None)
        if "dtype" in kwargs and kwargs["dtype"] == own and (own.kind != "c" or self.name not in _REAL_OF_COMPLEX):
            del kwargs["dtype"]
        if "out" in kwargs:
            raise NotDifferentiableError(refusals.of_out(self.name))
        traced = [at for at, name in enumerate(self.names) if isbox(kwargs.get(name))]
        last = max(traced, default=-1) + 1
        between = [kwargs.pop(name, self.defaults.get(name)) for name in self.names[len(args) : last]]
        if any(map(isbox, kwargs.values())):
            raise NotDifferentiableError(refusals.of_option(self.name, kwargs))
        return (*args, *between), kwargs


def opened(result: Value) -> Any:
    """Return traced lists and tuples as plain ones, as numpy has them, of entries that are traced unless whole numbers.

    Counts, exponents and orders are constant between their jumps, and serve as an index.
    """
    held = pytree.plain(result)
    if held is result or not isinstance(held, list | tuple):
        return result
    return pytree.like_series(held, [_opened_part(result, index, part) for index, part in enumerate(held)])


def _opened_part(result: Value, index: int, part: object) -> Any:
    dtype = getattr(pytree.plain(part), "dtype", None)
    return result[index] if dtype is None or dtype.kind in "fc" else pytree.plain(part)


# Ufuncs

CONSTANT: frozenset[Any] = frozenset({np.signbit, np.spacing})  # between jumps, but autograd does not know them so
METHODS_OF_UFUNCS: dict[tuple[Any, str], Any] = {
    (np.add, "reduce"): np.sum,
    (np.multiply, "reduce"): np.prod,
    (np.maximum, "reduce"): np.max,
    (np.minimum, "reduce"): np.min,
    (np.add, "accumulate"): np.cumsum,
    (np.multiply, "accumulate"): np.cumprod,
    # what `reduction_rules` and `ufunc_methods` have under these names
    (np.maximum, "accumulate"): "maximum.accumulate",
    (np.minimum, "accumulate"): "minimum.accumulate",
    (np.logaddexp, "reduce"): "logaddexp.reduce",
    (np.logaddexp, "accumulate"): "logaddexp.accumulate",
    (np.add, "reduceat"): "add.reduceat",
}
_AS_BY_DEFAULT = {"where": True, "dtype": None, "casting": "same_kind", "order": "K", "subok": True, "out": None}


def call_ufunc(ufunc: np.ufunc, method: str, inputs: Tree, kwargs: Kwargs) -> Any:
    """Call a ufunc in another way than `ufunc(*arrays)`, one that autograd does not know, or beside other libraries."""
    if method == "at":
        raise NotDifferentiableError(refusals.of_assignment())
    if any(each is not None for each in kwargs.get("out", ())):
        raise NotDifferentiableError(refusals.of_out(f"np.{ufunc.__name__}"))
    kwargs = {name: each for name, each in kwargs.items() if each is not _AS_BY_DEFAULT.get(name, _NOTHING)}
    if any(map(_is_strange, inputs)):
        if not all(_holds_numbers(each) for each in inputs if _is_strange(each)):
            return NotImplemented  # it may know what to do with a traced array
        inputs = [np.array(each) if _is_strange(each) else each for each in inputs]  # may be written into later
        return getattr(ufunc, method)(*inputs, **kwargs)
    if method == "outer":
        left, right = (each if isbox(each) else np.asarray(each) for each in inputs)
        return ufunc(anp.reshape(left, (*np.shape(left), *[1] * np.ndim(right))), right, **kwargs)
    function = METHODS_OF_UFUNCS.get((ufunc, method))
    if function is not None:
        return call_function(function, inputs, {"axis": 0} | kwargs)
    if method != "__call__":
        raise NotDifferentiableError(refusals.of_function(f"np.{ufunc.__name__}.{method}"))
    dtype = kwargs.pop("dtype", None)
    if kwargs or (dtype is not None and np.dtype(dtype).kind not in "fc"):
        raise NotDifferentiableError(refusals.of_option(f"np.{ufunc.__name__}", kwargs or ["dtype"]))
    if dtype is not None:  # what numpy computes in
        inputs = [each if getattr(each, "dtype", None) == dtype else anp.array(each).astype(dtype) for each in inputs]
    if ufunc in CONSTANT:
        return ufunc(*map(pytree.plain, inputs))
    if ufunc in WRITTEN:
        return WRITTEN[ufunc](*inputs)
    fun = primitive_of(ufunc)
    if fun is None:
        home = "np" if hasattr(np, ufunc.__name__) else "scipy.special"
        name = "np.frompyfunc" if set("".join(ufunc.types)) <= set("O->") else f"{home}.{ufunc.__name__}"
        raise NotDifferentiableError(refusals.of_function(name))
    return opened(fun(*inputs, called_by_autograd_dispatcher=True))


def primitive_of(ufunc: np.ufunc) -> Any:
    """Return what a ufunc is for traced values, those of `scipy.special` too; None where there is nothing."""
    fun = trace_primitives_map.get(ufunc) or UFUNCS.get(ufunc)
    if fun is None and learn_rules():
        fun = trace_primitives_map.get(ufunc) or UFUNCS.get(ufunc)
    return fun


def _is_strange(operand: Array) -> bool:
    kind = type(operand)
    return kind not in box_types and getattr(kind, "__array_ufunc__", None) not in (None, np.ndarray.__array_ufunc__)


def _holds_numbers(operand: Array) -> bool:
    """Return whether an array of another library is to be taken for its numbers: columns and tables of numbers."""
    kind = type(operand)
    return hasattr(kind, "__pandas_priority__") or kind.__module__.startswith("polars.")
