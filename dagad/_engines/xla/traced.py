"""A traced array for jax: a tracer of jax's own kind, with numpy's protocols, operators and methods on top.

jax asks the current `Trace` what becomes of each of its operations. `NumpyTrace` stands above the one that was there,
and hands everything down to it, so that all of jax (`jit`, `grad`, `vmap`, `scan`) takes these tracers for what they
are; what comes back is put into such tracers again. So a function may be written with numpy, with jax.numpy, or both.
It counts operations on the way.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from dagad._engines.xla import (
    jaxs_core,
    lines,
    refusals,
    running as running,  # methods of ufuncs
)
from dagad._engines.xla.indexing import entries
from dagad._engines.xla.memory import Changes, as_now, changed, ghost_of, of_function
from dagad._engines.xla.missing import Missing
from dagad._engines.xla.operators import BINARY, COMPARING, UNARY, operate
from dagad._engines.xla.protocols import call_function, call_ufunc, takes_options
from dagad._engines.xla.scipy_functions import call_scipy
from dagad._errors import NotDifferentiableError
from dagad._tracing import patterns
from dagad._tracing.in_place import is_view
from dagad._tracing.refusals import library_function_of
from dagad._tracing.texts import numbered
from dagad._types import Args, Array, Axis, DType, Function, Index, Kwargs, Tree, Value

Trace: Any = jaxs_core.Trace
Tracer: Any = jaxs_core.Tracer
typeof: Any = jaxs_core.typeof


class NumpyTrace(Trace):  # type: ignore[misc]  # jax has no types for it
    """What becomes of operations on arrays that speak numpy: the trace below does them, and they are counted.

    Attributes
    ----------
    below
        The trace that was the current one.
    n_operations
        How many there were.
    is_numpys
        Whether a function of numpy's or scipy's was called with a traced array.
    is_jaxs
        Whether one of jax's was, by the user.
    depth
        How many of our own functions are on the stack: what they have jax do is not the user's call.
    asks_arrays
        Whether the user has asked for an ordinary array of what is traced.
    missing
        Whether an entry was asked for that is not there.
    changes
        What was changed in place, or refused otherwise: the user's function may catch that, and go on.
    """

    __slots__ = (
        "_most",
        "_name",
        "asks_arrays",
        "below",
        "changes",
        "depth",
        "is_jaxs",
        "is_numpys",
        "missing",
        "n_operations",
        "recorded",
    )

    def __init__(self, below: Any, name: str, most: int) -> None:
        super().__init__()
        self.below, self._name, self._most = below, name, most
        self.requires_low = below.requires_low  # type: ignore[misc]  # a slot of jax's
        self.n_operations = self.depth = 0
        self.is_numpys = self.is_jaxs = self.asks_arrays = False
        self.changes, self.missing = Changes(), Missing()
        self.recorded: list[Any] | None = None

    def opened(self, value: Value) -> Any:
        """Return what the trace below knows a value as, which is used now."""
        if type(value) is not XlaArray or value._trace is not self:
            return value
        if value.stale is not None or value.ghost is not None:
            self.changes.use(value)
        return value.inner

    def _count(self) -> None:
        self.n_operations += 1
        if not self.depth:
            self.is_jaxs = True
        if self.n_operations > self._most:
            raise self.refused(NotDifferentiableError(refusals.of_count(self._name, self._most)))

    def _bind(self, primitive: Any, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
        self._count()
        values = [as_now(self.opened(one)) for one in tracers]
        out = primitive.bind_with_trace(self.below, values, [typeof(value) for value in values], params)
        if self.recorded is not None:
            self.recorded.append(
                (primitive, params, [one.shape for one in (out if primitive.multiple_results else [out])])
            )
        return [XlaArray(self, one) for one in out] if primitive.multiple_results else XlaArray(self, out)

    def stage_value(self, value: Value) -> Any:
        return XlaArray(self, value)

    def process_primitive(self, primitive: object, tracers: Sequence[Any], params: Tree, /) -> Any:
        return self._bind(primitive, tracers, params)

    def process_custom_jvp_call(
        self, primitive: object, fun: Function, jvp: Function, tracers: Sequence[Any], /, **params: Any
    ) -> Any:
        return self._bind(primitive, tracers, {"subfuns": (fun, jvp), **params})

    def process_custom_vjp_call(
        self, primitive: object, fun: Function, fwd: Function, bwd: Function, tracers: Sequence[Any], /, **params: Any
    ) -> Any:
        return self._bind(primitive, tracers, {"subfuns": (fun, fwd, bwd), **params})

    def note_numpy(self) -> None:
        """Note that the user has called a function of numpy's or scipy's, as jax does at times itself."""
        self.is_numpys = self.is_numpys or lines.is_of_user(sys._getframe(2))

    def refused(self, error: Exception) -> Exception:
        """Return an error, which is raised again at the end if the user's function catches it."""
        self.changes.found = self.changes.found or str(error)
        return error

    def settle(self) -> None:
        """Refuse what was changed in place, or refused and caught, unless all that the user has called is jax's."""
        if self.is_numpys or not self.is_jaxs:
            self.changes.settle()

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Note that the user's own function runs meanwhile, which a function of ours calls."""
        depth, self.depth = self.depth, 0
        try:
            yield
        finally:
            self.depth = depth

    @contextlib.contextmanager
    def recording(self) -> Iterator[list[Any]]:
        """Give a list of the operations that are done meanwhile: primitives, parameters, shapes of results."""
        before, self.recorded = self.recorded, []
        try:
            yield self.recorded
        finally:
            self.recorded = before

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Note that what jax does meanwhile, we have asked it to."""
        self.depth += 1
        try:
            yield
        except NotDifferentiableError as error:
            self.refused(error)
            raise
        finally:
            self.depth -= 1


class XlaArray(Tracer):  # type: ignore[misc]  # jax has no types for it
    """An array that jax traces and numpy takes for its own.

    Attributes
    ----------
    inner
        What the trace below knows it as.
    ghost
        The memory that it shares with others in numpy, or None; see `memory`.
    stale
        What to say where it is used: it was changed in place, by another name. None else.
    """

    __slots__ = ("ghost", "inner", "stale")
    __pandas_priority__ = 10_000

    def __init__(self, trace: NumpyTrace, inner: Array) -> None:
        self._trace = trace  # type: ignore[misc]  # a slot of jax's
        self.aval = typeof(inner)  # type: ignore[misc]  # the same
        self.inner = inner
        self.ghost = self.stale = None

    # What has no meaning before there are numbers

    def _refused(self, error: Exception, is_numpys_too: bool = True) -> Exception:
        """Return what is raised where numpy gives a number, if there is one entry; else it raises an error, too."""
        has = self.size == 1 and is_numpys_too
        return self._trace.refused(error) if has else error

    def __bool__(self) -> bool:
        raise self._refused(NotDifferentiableError(refusals.of_truth()))

    def __float__(self) -> float:
        raise self._refused(NotDifferentiableError(refusals.of_number()))

    __int__ = __complex__ = __trunc__ = __float__

    def __hash__(self) -> int:
        raise self._trace.refused(NotDifferentiableError(refusals.of_key()))

    def item(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse to give Python numbers."""
        raise self._trace.refused(NotDifferentiableError(refusals.of_number()))

    tolist = tobytes = item

    def __index__(self) -> int:
        raise self._refused(NotDifferentiableError(refusals.of_index()), self.dtype.kind in "iu")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        if lines.is_of_user(sys._getframe(1)) and not lines.is_storing():
            self._trace.asks_arrays = True
        name = library_function_of(sys._getframe(1))
        raise self._trace.refused(NotDifferentiableError(refusals.of_conversion(name)))

    def __setitem__(self, where: Index, value: Value) -> None:
        raise self._trace.refused(NotDifferentiableError(refusals.of_assignment()))

    def __reduce__(self) -> Any:
        raise self._trace.refused(
            NotDifferentiableError(
                f"{lines.here()} pickles a value that jax traces. Pass it to the function as an argument."
            )
        )

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: object) -> Any:
        return self

    def __repr__(self) -> str:
        return numbered(f"traced by jax, {self.dtype}{list(self.shape)}")

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __getattr__(self, name: str) -> Any:
        if hasattr(np.ndarray, name) and not hasattr(self.aval, name):
            raise AttributeError(
                f"A value that jax traces has no `{name}`, which an ordinary array has. Write it with a function of "
                "numpy that returns a new array."
            )
        return super().__getattr__(name)

    # Protocols

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        self._trace.note_numpy()
        with self._trace.inside():
            return call_ufunc(ufunc, method, as_now(inputs), as_now(kwargs))

    def __array_function__(self, func: Function, types: object, args: Args, kwargs: Kwargs) -> Any:
        self._trace.note_numpy()
        return _called(self._trace, func, args, kwargs)

    def __dagad_scipy__(self, function: Function, args: Args, kwargs: Kwargs) -> Any:
        """Call a function of scipy's that knows no protocol: see `_rules/scipy_functions`."""
        self._trace.note_numpy()
        with self._trace.inside():
            return call_scipy(function, as_now(args), as_now(kwargs))

    # Entries

    def __getitem__(self, where: Index) -> Any:
        if self._trace.depth or not isinstance(self.dtype, np.dtype):  # random keys have a dtype of jax's
            return Tracer.__getitem__(self, where)
        with self._trace.inside():
            found = entries(self, as_now(where))
        if is_view(where):
            ghost = ghost_of(self)[where]
            if isinstance(ghost, np.ndarray):  # else numpy gives a number, not a part of the array
                found = found.copy() if found is self else found
                found.ghost = ghost
        return found

    def __len__(self) -> int:
        return patterns.length(self.shape, sys._getframe(1))

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __contains__(self, value: Value) -> Any:
        return bool((self == value).any())

    # Methods that are not numpy's functions with the array before the other arguments

    def __getattribute__(self, name: str) -> Any:
        if (
            name in _OURS and object.__getattribute__(self, "_trace").depth
        ):  # jax asks, within a function that we called
            return Tracer.__getattr__(self, name)
        return object.__getattribute__(self, name)

    def _of_jax(self, name: str) -> Any:
        """Return what jax has under a name."""
        return Tracer.__getattr__(self, name)

    def reshape(self, *shape: Any, order: Literal["C", "F"] = "C", **rest: Any) -> Any:
        """Return the array in another shape, given as one argument or as several."""
        if rest.keys() - {"copy"}:
            return self._of_jax("reshape")(*shape, order=order, **rest)
        return np.reshape(self, shape[0] if len(shape) == 1 else shape, order=order)

    def ravel(self, order: Literal["C", "F"] = "C", **rest: Any) -> Any:
        """Return the entries in one dimension."""
        return self._of_jax("ravel")(order, **rest) if rest else np.ravel(self, order)

    def flatten(self, order: Literal["C", "F"] = "C", **rest: Any) -> Any:
        """Return a copy of the entries in one dimension."""
        return self._of_jax("flatten")(order, **rest) if rest else np.ravel(self, order).copy()

    def transpose(self, *axes: Any) -> Any:
        """Return the array with its axes in another order, given as one argument or as several."""
        return np.transpose(self, axes[0] if len(axes) == 1 else axes or None)

    def astype(self, dtype: DType, *args: Any, **kwargs: Any) -> Any:
        """Return the array with entries of another type."""
        casting = kwargs.get("casting", args[1] if len(args) > 1 else "unsafe")
        if not np.can_cast(self.dtype, dtype, casting):
            raise TypeError(
                f"Cannot cast array data from {self.dtype!r} to {np.dtype(dtype)!r} by the rule {casting!r}"
            )
        return _called(self._trace, np.astype, (self, dtype), {"copy": kwargs.get("copy", True)})

    def compress(self, condition: Array, axis: Axis = None, out: Array = None) -> Any:
        """Return the entries where a condition is true."""
        return np.compress(condition, self, axis, out)

    def copy(self, order: str = "C") -> Any:
        """Return a copy."""
        del order
        return XlaArray(self._trace, self.inner)

    def view(self, dtype: DType = None, type: type[Any] | None = None) -> Any:
        """Return the array: as another class, it is what it was."""
        del type
        with self._trace.inside():
            found = self.copy() if dtype is None or dtype is np.ndarray else self._of_jax("view")(dtype)
        found.ghost = ghost_of(self)
        return found

    def sort(self, *args: Any, **kwargs: Any) -> Any:
        """Return the array sorted, as jax does; numpy sorts in place."""
        self._trace.changes.found = self._trace.changes.found or refusals.of_view(lines.here())
        with self._trace.inside():
            return self._of_jax("sort")(*args, **kwargs)

    def conj(self) -> Any:
        """Return the complex conjugate; of real numbers it is the array itself, as in numpy."""
        return np.conj(self) if self.dtype.kind == "c" else self

    conjugate = conj
    real = property(lambda self: np.real(self))
    imag = property(lambda self: np.imag(self))
    T = property(lambda self: np.transpose(self))
    mT = property(lambda self: np.matrix_transpose(self))
    flat = property(lambda self: np.ravel(self))
    nbytes = property(lambda self: self.size * self.dtype.itemsize)
    itemsize = property(lambda self: self.dtype.itemsize)

    def __pow__(self, other: Array) -> Any:
        is_square = type(other) is int and other == 2 and self.dtype == bool  # of truths numpy has another dtype then
        return np.square(self) if is_square else operate(np.power, self, self, other)

    def __round__(self, n: int | None = None) -> Any:
        return np.round(self, n or 0)


def _called(trace: NumpyTrace, func: Function, args: Args, kwargs: Kwargs) -> Any:
    with trace.inside():
        found = call_function(func, as_now(args), as_now(kwargs))
        return of_function(func, args, kwargs, found, XlaArray)


def _method(name: str) -> Any:
    function = getattr(np, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if takes_options(function, kwargs):
            return _called(self._trace, function, (self, *args), kwargs)
        return self._of_jax(name)(*args, **kwargs)

    method.__name__, method.__doc__ = name, f"Return what `np.{name}` does."
    return method


def _operators(ufunc: np.ufunc) -> Any:
    def forward(self: Any, other: Array) -> Any:
        return operate(ufunc, self, self, other)

    def backward(self: Any, other: Array) -> Any:
        return operate(ufunc, self, other, self)

    def in_place(self: Any, other: Array) -> Any:
        found = operate(ufunc, self, self, other)
        if found is NotImplemented or not (self.ndim or self.ghost is not None):  # a number is no memory
            return found
        return changed(self, found)

    return forward, backward, in_place


def _unary(ufunc: np.ufunc) -> Any:
    def apply(self: Any) -> Any:
        with self._trace.inside():
            return call_ufunc(ufunc, "__call__", (self,), {})

    return apply


_METHODS = """
sum mean std var prod max min argmax argmin argsort cumsum cumprod any all round clip trace take repeat searchsorted
nonzero choose dot argpartition squeeze swapaxes diagonal
""".split()
# Methods by whose name jax has one, too.
_OURS = frozenset(
    _METHODS
    + "reshape ravel flatten transpose astype compress copy view sort conj conjugate real "
    "imag T mT flat nbytes itemsize".split()
)
for _name in _METHODS:
    setattr(XlaArray, _name, _method(_name))
for _name, _ufunc in BINARY.items():
    _forward, _backward, _in_place = _operators(_ufunc)
    if _name != "pow":
        setattr(XlaArray, f"__{_name}__", _forward)
    setattr(XlaArray, f"__r{_name}__", _backward)
    if _name != "divmod":
        setattr(XlaArray, f"__i{_name}__", _in_place)
for _name, _ufunc in COMPARING.items():
    setattr(XlaArray, _name, _operators(_ufunc)[0])
for _name, _ufunc in UNARY.items():
    setattr(XlaArray, _name, _unary(_ufunc))
patterns.fit_as_arrays_do(XlaArray)
