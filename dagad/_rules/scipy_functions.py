"""Functions of scipy that know no protocol: their code asks first whether an argument is one of dagad's traced arrays.

scipy.linalg, and what is no ufunc in scipy.special, makes ordinary arrays of what it is given. So while dagad traces,
`patches` puts other code into these functions: it looks at the arguments, and goes on with scipy's own code unless one
of them is a traced array of dagad's. It is the code that changes, and not the function, since others hold the function,
by ``from scipy.linalg import solve``. Meanwhile a warning that scipy sends to its caller names this module.
"""

from __future__ import annotations

import functools
import inspect
from types import CodeType, FunctionType
from typing import Any

from dagad._tracing.by_definition import rules_of
from dagad._tracing.numpy_protocols import Called
from dagad._tracing.operands import arrays_among
from dagad._tracing.patches import Swap
from dagad._tracing.rules import own_primitive
from dagad._tracing.traced_array import TracedArray
from dagad._types import Function


class _First:
    """Looks at the arguments of a function of scipy's, and goes on with scipy's own code or with ours."""

    __slots__ = ("_names", "_ours", "_stock")

    def __init__(self, ours: Function, stock: Function) -> None:
        self._ours, self._stock = ours, stock
        self._names = list(inspect.signature(stock).parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(map(_is_traced, args)) or any(map(_is_traced, kwargs.values())):
            args, kwargs = arrays_among(self._names, args, kwargs)
            return self._ours(*args, **kwargs)
        for arg in (*args, *kwargs.values()):
            call = _elsewhere(arg)
            if call is not None:
                return call(self._stock, args, kwargs)
        return self._stock(*args, **kwargs)


def _is_traced(arg: Any) -> bool:
    kind = type(arg)
    return kind is TracedArray or (kind in (tuple, list) and any(map(_is_traced, arg)))


def _elsewhere(arg: Any) -> Any:
    """Return how another engine calls functions of scipy's with what it traces: its method `__dagad_scipy__`."""
    if type(arg) in (tuple, list):
        return next(filter(None, map(_elsewhere, arg)), None)
    return getattr(arg, "__dagad_scipy__", None) if hasattr(type(arg), "__dagad_scipy__") else None


FIRST = "what looks first"


def _code(*args: Any, **kwargs: Any) -> Any:
    first: Any = "what looks first"
    return first(*args, **kwargs)


@functools.cache
def _code_beside(n_free: int) -> CodeType:
    """Return this code with free variables, as many as the function has that it is put into.

    They have to be there when the frame begins, or whoever looks at its variables (a debugger, pytest) crashes Python.
    """
    names = "".join(f"free_{number}, " for number in range(n_free))
    body = f" def _code(*args, **kwargs):\n  first = {FIRST!r}\n  return first(*args, **kwargs); {names}\n return _code"
    here = "\n" * (_code.__code__.co_firstlineno - 2)  # tracebacks show the lines of that one
    space: dict[str, Any] = {}
    exec(compile(f"{here}def around({names}):\n{body}", __file__, "exec"), space)
    code: CodeType = space["around"](*range(n_free)).__code__
    return code


def stock(function: Function) -> Any:
    """Return a function that does what a function of scipy's does, whatever code is in that one."""
    code, closure = function.__code__, function.__closure__
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    vars(made).update(vars(function))  # where its signature is
    return made


def swap(function: Function, ours: Function) -> Swap:
    """Return what puts `ours` into a function of scipy's, for traced arrays."""
    return replaced(function, _First(ours, stock(function)))


def replaced(function: Any, first: Function) -> Swap:
    """Return what has `first` called in place of a function of scipy's."""
    code = function.__code__
    ours = _code_beside(len(code.co_freevars)) if code.co_freevars else _code.__code__
    consts = tuple(first if const == FIRST else const for const in ours.co_consts)
    return function, code, ours.replace(co_consts=consts)


def primitive_of(raw: Function, definition: Function) -> Any:
    """Return a function as a primitive that is differentiated by its definition."""
    return own_primitive(raw, *rules_of(raw.__name__, definition))


def with_rules(function: Function, vjp: Function, jvp: Function, look: Function | None = None) -> tuple[Swap, Any]:
    """Return the swap of a function with these rules, and the primitive; `look` sees the arguments first."""
    own = stock(function)
    made = own_primitive(own, vjp, jvp)
    kept = _KeepingPrimitive(own, made)

    def ours(*args: Any, **kwargs: Any) -> Any:
        if look is not None:
            look(*args, **kwargs)
        return kept(*args, **kwargs)

    return swap(function, kept if look is None else ours), made


def defined(function: Function, definition: Function, look: Function | None = None) -> Swap:
    """Return the swap of a function that is differentiated by its definition."""
    return with_rules(function, *rules_of(f"{home_of(function)}.{function.__name__}", definition), look)[0]


def home_of(function: Function) -> str:
    """Return the part of scipy by whose name users call a function."""
    home = ".".join(inspect.unwrap(function).__module__.split(".")[:2])  # what wraps it may live elsewhere
    return "scipy.spatial.distance" if home == "scipy.spatial" else home


class _KeepingPrimitive:
    """A primitive of scipy's, called as users do, but that it keeps what it is given: tapes need that."""

    __slots__ = ("_called", "_spoiling")

    def __init__(self, function: Function, made: Function) -> None:
        self._called = Called(function, made, f"{home_of(function)}.{function.__name__}")
        parameters = enumerate(inspect.signature(function).parameters.values())
        self._spoiling = {at: each.default for at, each in parameters if each.name.startswith("overwrite")}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kept = {name: each for name, each in kwargs.items() if not name.startswith("overwrite")}
        return self._called(*(self._spoiling.get(at, arg) for at, arg in enumerate(args)), **kept)
