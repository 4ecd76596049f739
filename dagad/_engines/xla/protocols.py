"""Numpy's protocols for what jax traces: numpy's functions lead to those of the same names in jax.numpy.

A function is called there as numpy would understand it: lists are arrays, what is as by default is left out, operands
have numpy's dtypes, and so have results. `written` has what is another function there, or none.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import refusals
from dagad._engines.xla.conversions import as_dtype
from dagad._engines.xla.jaxs_core import Tracer
from dagad._engines.xla.special import exponent_of
from dagad._errors import NotDifferentiableError
from dagad._tracing.numpy_protocols import METHODS_OF_UFUNCS, parameters_of
from dagad._tracing.operands import ARRAYS, SEQUENCES
from dagad._types import Array, DType, Function, Tree, Value
from dagad._values import pytree

WRITTEN: dict[Any, Function] = {}  # what is not a function of the same name, filled by `written`
METHODS: dict[str, Function] = {}  # methods of ufuncs that are no functions of numpy's, by name, filled by `running`
UFUNCS_OF_SCIPY: dict[str, Function] = {}  # the same of `scipy.special`, by name, filled by `scipy_functions`
_PYTHON: dict[type, Any] = {bool: np.dtype(bool), int: int, float: float, complex: complex}
_WEAK = {"b": np.dtype(bool), "i": int, "u": int, "f": float, "c": complex}
_NOTHING = object()


# Operands


def holds_traced(value: Value) -> bool:
    """Return whether something is traced, or a list or tuple that holds something traced."""
    return isinstance(value, Tracer) or (isinstance(value, list | tuple) and any(map(holds_traced, value)))


def array_of(operand: Array) -> Any:
    """Return what numpy makes of an operand: of a list an array, and of others' columns their numbers."""
    if type(operand) in SEQUENCES:
        return jnp.array(operand) if holds_traced(operand) else np.asarray(operand)
    if hasattr(type(operand), "__pandas_priority__") and not isinstance(operand, Tracer):
        return np.array(operand)  # it may be written into later
    if type(operand) is not np.ndarray and pytree.has_own_operators(type(operand)):
        raise NotDifferentiableError(refusals.of_kind(type(operand)))
    return operand


def kind_of(operand: Array) -> Any:
    """Return a dtype, or for what takes the dtype of what it meets a type of Python's."""
    known = _PYTHON.get(type(operand))
    if known is not None:
        return known
    if isinstance(operand, jax.Array):
        return _WEAK[operand.dtype.kind] if operand.weak_type else np.dtype(operand.dtype)
    return np.asarray(operand).dtype


def common_dtype(operands: Sequence[Any]) -> Any:
    """Return the dtype in which numpy puts operands together."""
    return np.result_type(*(_ONE.get(kind, kind) for kind in map(kind_of, operands)))


_ONE: dict[Any, Any] = {int: 0, float: 0.0, complex: 0j}


# Ufuncs

_AS_BY_DEFAULT = {"where": True, "dtype": None, "casting": "same_kind", "order": "K", "subok": True, "out": None}


def call_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a ufunc with operands of which one at least is traced."""
    name = ufunc_name(ufunc)
    if method == "at":
        raise NotDifferentiableError(refusals.of_assignment())
    if any(each is not None for each in kwargs.get("out", ())):
        raise NotDifferentiableError(refusals.of_out(name))
    kwargs = {key: each for key, each in kwargs.items() if each is not _AS_BY_DEFAULT.get(key, _NOTHING)}
    inputs = tuple(map(array_of, inputs))
    if method == "outer":
        left, right = (each if isinstance(each, jax.Array) else np.asarray(each) for each in inputs)
        return ufunc(left[(..., *[None] * right.ndim)], right, **kwargs)
    function = METHODS_OF_UFUNCS.get((ufunc, method))
    if callable(function):
        return call_function(function, inputs, {"axis": 0} | kwargs)
    if function is not None and not kwargs.keys() - {"axis", "keepdims"}:
        return METHODS[function](*inputs, **kwargs)
    if method != "__call__":
        raise NotDifferentiableError(refusals.of_function(f"{name}.{method}"))
    dtype = kwargs.pop("dtype", None)
    if kwargs:
        raise NotDifferentiableError(refusals.of_option(name, kwargs))
    return _called_ufunc(ufunc, inputs, dtype)


def ufunc_name(ufunc: np.ufunc) -> str:
    """Return the name of a ufunc as users write it."""
    if set("".join(ufunc.types)) <= set("O->"):
        return "np.frompyfunc"
    return f"{'np' if getattr(np, ufunc.__name__, None) is ufunc else 'scipy.special'}.{ufunc.__name__}"


def _called_ufunc(ufunc: Any, inputs: Sequence[Any], dtype: DType) -> Any:
    function = WRITTEN.get(ufunc) or function_of_ufunc(ufunc)
    if ufunc.signature is None:
        np.broadcast_shapes(*map(np.shape, inputs))  # raises what numpy raises
    kinds = _resolved(ufunc, tuple(map(kind_of, inputs)), None if dtype is None else np.dtype(dtype))
    given, results = kinds[: ufunc.nin], kinds[ufunc.nin :]
    if ufunc in _COMPARISONS:
        beyond = _beyond_range(inputs, given)
        if beyond is not None:
            return jnp.full(np.broadcast_shapes(*map(np.shape, inputs)), bool(ufunc(*beyond)))
        if {each.kind for each in given} == {"i", "u"}:  # jax would compare them as floating-point numbers
            return _compared(ufunc, *map(as_dtype, inputs, given))
    if ufunc is np.power and given[1].kind == "i":
        _refuse_negative(inputs[1])
    operands = [_operand(each, own) for each, own in zip(inputs, given, strict=True)]
    is_scipys = getattr(np, ufunc.__name__, None) is not ufunc  # whose rules in jax take no whole numbers
    if is_scipys or not any(isinstance(each, jax.Array) and not each.weak_type for each in operands):
        operands = [as_dtype(each, own) for each, own in zip(inputs, given, strict=True)]
    if ufunc in (np.power, np.float_power):
        operands = [operands[0], exponent_of(inputs[1], operands[1], given[1])]
        if type(operands[0]) is int and given[0].kind == "f":  # else it is one of whole numbers
            operands[0] = float(operands[0])
    found = function(*operands)
    if ufunc.nout == 1:
        return as_dtype(found, results[0])
    return tuple(as_dtype(each, own) for each, own in zip(found, results, strict=True))


_COMPARISONS = frozenset({np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal})


def _operand(operand: Array, dtype: DType) -> Any:
    """Return an operand in a dtype; of Python's numbers jax makes what numpy does, but for whole ones: it wraps them.

    Those that the dtype has no place for numpy refuses here.
    """
    if type(operand) is int and (dtype.kind in "iu" or abs(operand) > _EXACT):
        return np.asarray(operand, dtype)
    if isinstance(operand, int | float | complex) and not isinstance(operand, bool):
        return operand
    return as_dtype(operand, dtype)


_EXACT = 2**53


def _beyond_range(inputs: Sequence[Any], dtypes: Sequence[Any]) -> list[int] | None:
    """Return operands that compare as these do, where one is a number that no entry of the other can reach."""
    if not any(type(each) is int for each in inputs):
        return None
    signs = [_side(each, own) for each, own in zip(inputs, reversed(dtypes), strict=True)]
    return signs if any(signs) else None


def _side(operand: Array, dtype: DType) -> int:
    """Return 1 for a whole number above all of a dtype, -1 for one below, else 0."""
    if type(operand) is not int or dtype.kind not in "iu":
        return 0
    bounds = np.iinfo(dtype)
    return int(operand > bounds.max) - int(operand < bounds.min)


def _compared(ufunc: np.ufunc, left: Array, right: Array) -> Any:
    """Compare whole numbers with and without a sign, as numpy does: those below zero are below all others."""
    signed, negative = (left, ufunc(-1, 0)) if left.dtype.kind == "i" else (right, ufunc(0, -1))
    found = function_of_ufunc(ufunc)(as_dtype(left, np.uint64), as_dtype(right, np.uint64))
    return jnp.where(jnp.less(signed, 0), bool(negative), found)


def _refuse_negative(exponent: Array) -> None:
    """Refuse negative powers of whole numbers, as numpy does, and those of which nobody knows yet."""
    if not isinstance(exponent, jax.Array):
        if np.any(np.less(exponent, 0)):
            raise ValueError("Integers to negative integer powers are not allowed.")
    elif exponent.dtype.kind == "i":
        raise NotDifferentiableError(refusals.of_whole_power())


@functools.lru_cache(1024)
def _resolved(ufunc: np.ufunc, kinds: tuple[Any, ...], dtype: DType) -> tuple[Any, ...]:
    """Return the dtypes in which numpy computes, and of the results."""
    rest = (None,) * ufunc.nout
    if dtype is None:
        found = tuple(ufunc.resolve_dtypes((*kinds, *rest)))
        plain = next((kind for kind in kinds if isinstance(kind, np.dtype)), np.dtype(int))
        return tuple(plain if one.hasobject else one for one in found)  # of numpy's comparisons with Python's ints
    signature = (*[None] * ufunc.nin, *[dtype] * ufunc.nout)
    return tuple(ufunc.resolve_dtypes((*kinds, *rest), signature=signature, casting="same_kind"))


@functools.cache
def function_of_ufunc(ufunc: np.ufunc) -> Function:
    """Return the function of jax's that is a ufunc of numpy's or scipy's."""
    name = ufunc_name(ufunc)
    found: Any
    if name.startswith("np."):
        found = getattr(jnp, ufunc.__name__, None)
    else:
        found = UFUNCS_OF_SCIPY.get(ufunc.__name__) or getattr(jax.scipy.special, ufunc.__name__, None)
    if found is None:
        raise NotDifferentiableError(refusals.of_function(name))
    made: Function = found
    return made


# Functions of arrays

# Operands of these are put together in one dtype before.
_JOINING = frozenset(
    """
    dot vdot inner outer tensordot kron cross convolve correlate trace interp append linspace logspace geomspace cov
    corrcoef trapezoid gradient diff ediff1d polyval solve lstsq tensorsolve multi_dot vecdot matmul matvec vecmat
    clip nan_to_num where average full_like unwrap searchsorted digitize
    """.split()
)
# Of these Python's numbers take the dtype of the arrays beside them; elsewhere they are arrays of their own.
_WEAKLY = frozenset("clip nan_to_num where full_like trapezoid gradient interp linspace logspace geomspace".split())
# These compute in floating point whatever they are given.
_FLOATING = frozenset(
    """
    mean std var median average quantile percentile nanmean nanstd nanvar nanmedian nanquantile nanpercentile interp
    cov corrcoef trapezoid gradient angle sinc i0 unwrap linspace logspace geomspace norm vector_norm matrix_norm cond
    solve inv pinv det slogdet cholesky eigh eigvalsh eig eigvals svd svdvals qr lstsq tensorsolve tensorinv
    matrix_rank
    """.split()
)
_ARRAYS = ARRAYS | {"indices", "repeats", "obj", "values", "v", "choices", "ar1", "ar2", "element", "test_elements"}
_COUNTING = frozenset("cumsum cumprod cumulative_sum cumulative_prod nancumsum nancumprod".split())
# Of these numpy takes a number for an array with one axis.
_OF_NUMBERS = frozenset(
    """
    sum prod max min all any nansum nanprod nanmax nanmin nanmean nanvar nanstd ptp argmax argmin count_nonzero
    cumsum cumprod nancumsum nancumprod
    """.split()
)
_PLACES = frozenset("searchsorted digitize".split())  # of which jax gives shorter whole numbers


def call_function(func: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a function of numpy's of whose arguments one at least is traced."""
    written = WRITTEN.get(func)
    if written is None:
        return _called(func)(*args, **kwargs)
    if kwargs.get("out") is not None:
        raise NotDifferentiableError(refusals.of_out(public_name(func)))
    try:
        return written(*args, **kwargs)
    except TypeError as error:
        if "unexpected keyword" in str(error) and written.__name__ in str(error):
            raise NotDifferentiableError(refusals.of_option(public_name(func), kwargs)) from error
        raise


def public_name(func: Function) -> str:
    """Return the name of a function of numpy's as users write it."""
    return f"{func.__module__}.{func.__name__}".replace("numpy.", "np.", 1)


@functools.cache
def _called(func: Function) -> Called:
    return Called(func)


class Called:
    """A function of jax's, called as numpy's of that name may be."""

    def __init__(self, func: Function, function: Function | None = None, name: str = "") -> None:
        self.name = name or public_name(func)
        self._own, self._home = func.__name__, func.__module__
        self.function = function or _of_same_name(func)
        if self.function is None:
            raise NotDifferentiableError(refusals.of_function(self.name))
        parameters = list(parameters_of(func))
        several = any(each.kind is each.VAR_POSITIONAL for each in parameters)
        self.names = [] if several else [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
        self.defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
        self.takes = _names_of(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        asked: dict[Any, Any]
        if self.names:
            if len(args) > len(self.names):
                raise TypeError(
                    f"{self.name}() takes {len(self.names)} positional arguments, and was given {len(args)}."
                )
            given = dict(zip(self.names, args, strict=False)) | kwargs
            given = {name: array_of(each) if name in _ARRAYS else each for name, each in given.items()}
            is_number = self._own in _OF_NUMBERS and np.ndim(given.get(self.names[0], 1)) == 0
            if is_number and given.get("axis") in (0, -1):
                given["axis"] = None
            asked = dict(given)
            if self._own in _JOINING and self._own not in _WEAKLY:
                given = {name: _own_array(each) if name in ARRAYS else each for name, each in given.items()}
            given = self._promoted(given)
            args = tuple(given.pop(name) for name in self.names if name in given and name not in self.defaults)
            kwargs = {name: each for name, each in given.items() if each is not self.defaults.get(name, _NOTHING)}
        else:
            args = tuple(map(array_of, args))
            asked = dict(enumerate(args)) | kwargs
        if kwargs.get("out") is not None:
            raise NotDifferentiableError(refusals.of_out(self.name))
        strange = [name for name in kwargs if name not in self.takes]
        if strange:
            raise NotDifferentiableError(refusals.of_option(self.name, strange))
        found = self.function(*args, **kwargs)
        found = as_dtype(found, np.int64) if self._own in _PLACES else found
        self._refuse_others(asked, found)
        return found

    def _refuse_others(self, asked: dict[Any, Any], found: Value) -> None:
        """Refuse what jax computes in another dtype than numpy, of whole numbers and truths.

        Numpy says in which, of arrays of ones that take no memory. Of floating-point numbers jax keeps the precision.
        """
        own = getattr(sys.modules.get(self._home), self._own, None)
        if own is None or not _are_whole(list(asked.values())):
            return
        asked = {name: _ones_in(each) for name, each in asked.items()}
        args = [asked.pop(name) for name in itertools.takewhile(asked.__contains__, self.names or range(len(asked)))]
        try:
            with np.errstate(all="ignore"):
                right = own(*args, **asked)
        except TypeError:  # truths that are subtracted, say
            raise
        except Exception:  # what numpy says of ones, it may not say of the numbers
            return
        theirs, ours = (
            [each.dtype for each in jax.tree.leaves(one) if hasattr(each, "dtype")] for one in (right, found)
        )
        if theirs != ours and len(theirs) == len(ours):
            raise NotDifferentiableError(refusals.of_dtype(self.name, *map(_named, (theirs, ours))))

    def _promoted(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of which arrays have the dtypes that numpy computes in."""
        arrays = {
            name: each
            for name, each in given.items()
            if name in ARRAYS and isinstance(each, jax.Array | np.ndarray | np.generic)
        }
        if not arrays or (
            len({each.dtype for each in arrays.values()}) == 1 and _is_float(next(iter(arrays.values())))
        ):
            return given
        if self._own in _JOINING and not self._home.startswith("scipy.ndimage"):  # whose precision is that of the image
            dtype = common_dtype(list(arrays.values()))
            given = given | {name: as_dtype(each, dtype) for name, each in arrays.items() if each.dtype.kind != "b"}
        if self._own in _FLOATING:
            whole = {name for name in arrays if given[name].dtype.kind in "iub" and name not in ("where", "condition")}
            given = given | {name: as_dtype(given[name], np.float64) for name in whole}
        if self._own in _COUNTING and given.get("dtype") is None:
            given = given | {name: as_dtype(each, _counting(each.dtype)) for name, each in arrays.items()}
        if self._own in _BOUNDING and type(given.get("initial")) is int and given["a"].dtype.kind in "iu":
            given = given | {"initial": np.asarray(given["initial"], given["a"].dtype)}
        return given


_BOUNDING = frozenset({"max", "min"})


def _own_array(value: Value) -> Any:
    return np.asarray(value) if type(value) in _PYTHON else value


def _counting(dtype: DType) -> Any:
    """Return the dtype in which numpy adds up."""
    return np.result_type(dtype, np.uint64 if dtype.kind == "u" else np.int64) if dtype.kind in "iub" else dtype


def _are_whole(parts: Tree) -> bool:
    """Return whether the arrays among arguments hold whole numbers and truths only."""
    kinds = {leaf.dtype.kind for leaf in jax.tree.leaves(parts) if isinstance(leaf, jax.Array | np.ndarray)}
    return bool(kinds) and kinds.issubset("iub")


def stand_in(array: Array) -> Any:
    """Return an array of numpy's with the shape and the dtype of a traced one, which takes no memory."""
    dtype = array.dtype if isinstance(array.dtype, np.dtype) else object  # jax's random keys have one of its own
    return np.broadcast_to(np.zeros((), dtype), array.shape)


def ones_like(array: Array) -> Any:
    """Return an array of numpy's with the shape and the dtype of a traced one, which takes no memory."""
    return np.broadcast_to(np.ones((), array.dtype), array.shape)


def _ones_in(value: Value) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_ones_in, value))
    return ones_like(value) if isinstance(value, jax.Array) else value


def _named(dtypes: Sequence[Any]) -> str:
    return ", ".join(map(str, dtypes))


def _is_float(array: Array) -> bool:
    return array.dtype.kind in "fc"


def _names_of(function: Function) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _of_same_name(func: Function) -> Any:
    home = {"numpy": jnp, "numpy.linalg": jnp.linalg, "numpy.fft": jnp.fft}.get(func.__module__)
    found = getattr(home, func.__name__, None)
    return None if found is func else found  # jax has some of numpy's own, which would come back here


def takes_options(func: Function, options: dict[str, Any]) -> bool:
    """Return whether numpy's function knows these keywords; else they are jax's."""
    return _called_names(func).issuperset(options)


@functools.cache
def _called_names(func: Function) -> frozenset[str]:
    return frozenset(each.name for each in parameters_of(func))
