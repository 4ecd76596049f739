"""Numpy's protocols for what jax traces: numpy's functions lead to those of the same names in jax.numpy.

A function is called there as numpy would understand it: lists are arrays, what is as by default is left out, operands
have numpy's dtypes, and so have results. `written` has what is another function there, or none.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dagad._engines.xla import refusals
from dagad._engines.xla.jaxs_core import Tracer
from dagad._errors import NotDifferentiableError
from dagad._tracing.numpy_protocols import METHODS_OF_UFUNCS, parameters_of
from dagad._tracing.operands import ARRAYS, SEQUENCES

Function = Callable[..., Any]
WRITTEN: dict[Any, Function] = {}  # what is not a function of the same name, filled by `written`
UFUNCS_OF_SCIPY: dict[str, Function] = {}  # the same of `scipy.special`, by name, filled by `scipy_functions`
_PYTHON: dict[type, Any] = {bool: np.dtype(bool), int: int, float: float, complex: complex}
_WEAK = {"b": np.dtype(bool), "i": int, "u": int, "f": float, "c": complex}
_NOTHING = object()


# Operands


def holds_traced(value: Any) -> bool:
    """Return whether something is traced, or a list or tuple that holds something traced."""
    return isinstance(value, Tracer) or (isinstance(value, list | tuple) and any(map(holds_traced, value)))


def array_of(operand: Any) -> Any:
    """Return what numpy makes of an operand: of a list an array, and of others' columns their numbers."""
    if type(operand) in SEQUENCES:
        return jnp.array(operand) if holds_traced(operand) else np.asarray(operand)
    if hasattr(type(operand), "__pandas_priority__") and not isinstance(operand, Tracer):
        return np.asarray(operand)
    return operand


def kind_of(operand: Any) -> Any:
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


def as_dtype(operand: Any, dtype: Any) -> Any:
    """Return an operand in a dtype; a large constant of one number alone is made on the device."""
    if isinstance(operand, jax.Array):
        same = operand.dtype == dtype and not operand.weak_type
        return operand if same else jax.lax.convert_element_type(operand, dtype)
    array = np.asarray(operand, dtype)
    if array.size > 64 and (array == array.flat[0]).all():
        return jnp.full(array.shape, array.flat[0], dtype)
    return array


# Ufuncs

_AS_BY_DEFAULT = {"where": True, "dtype": None, "casting": "same_kind", "order": "K", "subok": True, "out": None}


def call_ufunc(ufunc: Any, method: str, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
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
    if method == "accumulate" and ufunc in _CUMULATIVE and not kwargs.keys() - {"axis"}:
        return _CUMULATIVE[ufunc](inputs[0], kwargs.get("axis", 0))
    if method != "__call__":
        raise NotDifferentiableError(refusals.of_function(f"{name}.{method}"))
    dtype = kwargs.pop("dtype", None)
    if kwargs:
        raise NotDifferentiableError(refusals.of_option(name, kwargs))
    return _called_ufunc(ufunc, inputs, dtype)


_CUMULATIVE = {
    np.maximum: lambda x, axis: jax.lax.cummax(x, axis % x.ndim),
    np.minimum: lambda x, axis: jax.lax.cummin(x, axis % x.ndim),
}


def ufunc_name(ufunc: Any) -> str:
    """Return the name of a ufunc as users write it."""
    if set("".join(ufunc.types)) <= set("O->"):
        return "np.frompyfunc"
    return f"{'np' if getattr(np, ufunc.__name__, None) is ufunc else 'scipy.special'}.{ufunc.__name__}"


def _called_ufunc(ufunc: Any, inputs: Sequence[Any], dtype: Any) -> Any:
    function = WRITTEN.get(ufunc) or _function_of_ufunc(ufunc)
    if ufunc.signature is None:
        np.broadcast_shapes(*map(np.shape, inputs))  # raises what numpy raises
    kinds = _resolved(ufunc, tuple(map(kind_of, inputs)), None if dtype is None else np.dtype(dtype))
    given, results = kinds[: ufunc.nin], kinds[ufunc.nin :]
    operands = [
        each if isinstance(each, int | float | complex) and not isinstance(each, bool) else as_dtype(each, own)
        for each, own in zip(inputs, given, strict=True)
    ]
    if not any(isinstance(each, jax.Array) and not each.weak_type for each in operands):
        operands = [as_dtype(each, own) for each, own in zip(inputs, given, strict=True)]
    found = function(*operands)
    if ufunc.nout == 1:
        return as_dtype(found, results[0])
    return tuple(as_dtype(each, own) for each, own in zip(found, results, strict=True))


@functools.lru_cache(1024)
def _resolved(ufunc: Any, kinds: tuple[Any, ...], dtype: Any) -> tuple[Any, ...]:
    """Return the dtypes in which numpy computes, and of the results."""
    rest = (None,) * ufunc.nout
    if dtype is None:
        found = tuple(ufunc.resolve_dtypes((*kinds, *rest)))
        plain = next((kind for kind in kinds if isinstance(kind, np.dtype)), np.dtype(int))
        return tuple(plain if one.hasobject else one for one in found)  # of numpy's comparisons with Python's ints
    signature = (*[None] * ufunc.nin, *[dtype] * ufunc.nout)
    return tuple(ufunc.resolve_dtypes((*kinds, *rest), signature=signature, casting="unsafe"))


@functools.cache
def _function_of_ufunc(ufunc: Any) -> Function:
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
    clip nan_to_num where average full_like insert unwrap searchsorted digitize
    """.split()
)
# These compute in floating point whatever they are given.
_FLOATING = frozenset(
    """
    mean std var median average quantile percentile nanmean nanstd nanvar nanmedian nanquantile nanpercentile interp
    cov corrcoef trapezoid gradient angle sinc i0 unwrap linspace logspace geomspace norm vector_norm matrix_norm cond
    solve inv pinv det slogdet cholesky eigh eigvalsh eig eigvals svd svdvals qr lstsq tensorsolve tensorinv
    matrix_rank
    """.split()
)
_ARRAYS = ARRAYS | {"indices", "repeats", "obj", "values", "v", "choices"}
_COUNTING = frozenset("cumsum cumprod cumulative_sum cumulative_prod nancumsum nancumprod".split())


def call_function(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a function of numpy's of whose arguments one at least is traced."""
    written = WRITTEN.get(func)
    if written is None:
        return _called(func)(*args, **kwargs)
    try:
        return written(*args, **kwargs)
    except TypeError as error:
        if "unexpected keyword" in str(error) and written.__name__ in str(error):
            raise NotDifferentiableError(refusals.of_option(public_name(func), kwargs)) from error
        raise


def public_name(func: Any) -> str:
    """Return the name of a function of numpy's as users write it."""
    return f"{func.__module__}.{func.__name__}".replace("numpy.", "np.", 1)


@functools.cache
def _called(func: Any) -> Called:
    return Called(func)


class Called:
    """A function of jax's, called as numpy's of that name may be."""

    def __init__(self, func: Any, function: Function | None = None, name: str = "") -> None:
        self.name = name or public_name(func)
        self._own = func.__name__
        self.function = function or _of_same_name(func)
        if self.function is None:
            raise NotDifferentiableError(refusals.of_function(self.name))
        parameters = list(parameters_of(func))
        several = any(each.kind is each.VAR_POSITIONAL for each in parameters)
        self.names = [] if several else [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY]
        self.defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
        self.takes = _names_of(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.names:
            if len(args) > len(self.names):
                raise TypeError(
                    f"{self.name}() takes {len(self.names)} positional arguments, and was given {len(args)}."
                )
            given = dict(zip(self.names, args, strict=False)) | kwargs
            given = {name: array_of(each) if name in _ARRAYS else each for name, each in given.items()}
            given = self._promoted(given)
            args = tuple(given.pop(name) for name in self.names if name in given and name not in self.defaults)
            kwargs = {name: each for name, each in given.items() if each is not self.defaults.get(name, _NOTHING)}
        else:
            args = tuple(map(array_of, args))
        if kwargs.get("out") is not None:
            raise NotDifferentiableError(refusals.of_out(self.name))
        strange = [name for name in kwargs if name not in self.takes]
        if strange:
            raise NotDifferentiableError(refusals.of_option(self.name, strange))
        return self.function(*args, **kwargs)

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
        if self._own in _JOINING:
            dtype = common_dtype(list(arrays.values()))
            given = given | {name: as_dtype(each, dtype) for name, each in arrays.items() if each.dtype.kind != "b"}
        if self._own in _FLOATING:
            whole = {name for name in arrays if given[name].dtype.kind in "iub" and name not in ("where", "condition")}
            given = given | {name: as_dtype(given[name], np.float64) for name in whole}
        if self._own in _COUNTING and given.get("dtype") is None:
            given = given | {name: as_dtype(each, np.int64) for name, each in arrays.items() if each.dtype.kind in "ib"}
        return given


def _is_float(array: Any) -> bool:
    return array.dtype.kind in "fc"


def _names_of(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _of_same_name(func: Any) -> Any:
    home = {"numpy": jnp, "numpy.linalg": jnp.linalg, "numpy.fft": jnp.fft}.get(func.__module__)
    return getattr(home, func.__name__, None)


# Operators

_USUAL = frozenset({np.ndarray, np.float64, float, int})


def operate(ufunc: Any, own: Any, left: Any, right: Any) -> Any:
    """Return what an operator gives of which one side is traced; to a sparse matrix numpy leaves it, and so do we."""
    other = right if left is own else left
    kind = type(other)
    if kind not in _USUAL and not isinstance(other, jax.Array | np.generic | int | float | complex):
        if kind.__module__.startswith("scipy.sparse."):
            return NotImplemented
        if not (kind in SEQUENCES or hasattr(kind, "__array__")):
            return NotImplemented
    with own._trace.inside():
        if not own.ndim and _PYTHONS.issuperset(map(kind_of, (own, other))):  # Python's numbers stay what they are
            return (WRITTEN.get(ufunc) or _function_of_ufunc(ufunc))(left, right)
        return call_ufunc(ufunc, "__call__", (left, right), {})


def takes_options(func: Any, options: dict[str, Any]) -> bool:
    """Return whether numpy's function knows these keywords; else they are jax's."""
    return _called_names(func).issuperset(options)


@functools.cache
def _called_names(func: Any) -> frozenset[str]:
    return frozenset(each.name for each in parameters_of(func))


_PYTHONS = frozenset({int, float, complex})
UNARY = {"__neg__": np.negative, "__pos__": np.positive, "__abs__": np.absolute, "__invert__": np.invert}
BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "matmul": np.matmul,
    "pow": np.power,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
    "divmod": np.divmod,
}
COMPARING = {
    "__lt__": np.less,
    "__le__": np.less_equal,
    "__gt__": np.greater,
    "__ge__": np.greater_equal,
    "__eq__": np.equal,
    "__ne__": np.not_equal,
}
