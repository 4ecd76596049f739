"""The jax engine: functions in plain numpy or jax.numpy, compiled once a process, function and shapes, derived by jax.

A task arrives with objects that are new each time, so what was compiled is found by what a function consists of: its
code, what it has in closures, and the globals that it names (`digest`). What it reads elsewhere is a constant to jax.

State, for all engines of a process, since each program brings its own:

============  ================================================================================================
`_COMPILED`   what was compiled, by `Key`; each entry is compiled by the first who needs it, under its own lock
`_COUNT`      how many compilations there were
============  ================================================================================================
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten, tree_leaves, tree_structure, tree_unflatten

from dagad._config import setting
from dagad._engines.jax_constants import NAME, KeptConstants, refuse_long, refuse_own, shape_of
from dagad._engines.jax_settings import as_for_all, compiled_for_cpu, refuse_uncompiled
from dagad._engines.own_arrays import pulled_in_blocks
from dagad._engines.xla.fences import ROUNDS, shortened
from dagad._engines.xla.gains import Gains
from dagad._engines.xla.tracing import InNumpysTerms, traced
from dagad._errors import NotDifferentiableError, PlanError
from dagad._remembered import Remembered
from dagad._tracing.flat_functions import Composed, Flat, FlatFunction, LeafPullback, Leaves, outputs_of
from dagad._types import Array, Cotangent, Leaf, Value
from dagad._values import pytree
from dagad._values.partition import Partition

logger = logging.getLogger("dagad")

BASE = 16  # lengths up to a million are 5 shapes
MOST_COMPILED = 512
x64: Any = jax.enable_x64  # of this thread, while it is entered; jax has no type for it
Unflat = Callable[[Any], Any]
VALUE, LINEARIZE, VALUE_AND_GRAD, PULL = "value", "linearize", "value_and_grad", "pull"


def _setting() -> int:
    asked = setting("jax-most-operations")
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
        raise PlanError(
            f"The setting `dagad.jax-most-operations` is {asked!r}. Give a positive int: how many operations a "
            "function may consist of that jax compiles."
        )
    return asked


@dataclass(frozen=True, slots=True)
class JaxEngine:
    """The engine of functions that jax compiles, written with numpy, ``jax.numpy`` or both; its name is "jax".

    All numbers that a function gets are jax's arrays, in the dtypes that they have in numpy: float64 stays float64,
    whatever ``jax_enable_x64`` says in the process. They are traced by jax, and functions of numpy and scipy lead to
    jax's. Python's own ints and bools among the shared arguments stay what they are, so that loops may depend on them;
    each other value is compiled for.

    Parameters
    ----------
    most_operations
        How many operations a function may consist of; by default what the setting ``dagad.jax-most-operations`` says
        where the engine is made.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> def energy(rows, t):
    ...     return np.sum(np.sin(rows * t))
    >>> def total(t):
    ...     return dagad.reduce_sum(energy, np.arange(4.0), t, grainsize=2, engine="jax")
    >>> round(float(dagad.grad(total)(0.5)), 9)
    2.170398779
    """

    most_operations: int = field(default_factory=_setting)
    name, has_own_arrays = NAME, True

    @property
    def n_compiled(self) -> int:
        """How often something was compiled in this process."""
        return _COUNT.n

    @property
    def n_compiled_by_thread(self) -> int:
        """How often the calling thread has compiled something."""
        return _COUNT.by_thread()

    def pieces(self, n_rows: int, grainsize: int) -> list[int]:
        """Return the lengths into which the rows of a sum are cut, few of them for any number: powers of `BASE`.

        The chunks that a plan has most are whole.
        """
        if n_rows == grainsize:
            return [n_rows]
        found, size = list[int](), 1
        while size * BASE <= n_rows:
            size *= BASE
        while n_rows:
            count, n_rows = divmod(n_rows, size)
            found.extend([size] * count)
            size //= BASE
        return found

    def takes(self, leaf: Leaf) -> bool:
        """Take all that comes out of what is compiled: arrays, and numbers that may have a derivative."""
        if isinstance(leaf, np.ndarray | np.generic):
            return leaf.dtype.kind in "biufc"
        return isinstance(leaf, jax.Array | float | complex)

    def value(self, fun: Flat, leaves: Leaves) -> list[Any]:
        """Run a flat function, compiled; see `Engine.value`."""
        return list(map(_as_numpy, self._run(VALUE, fun, leaves)[1]))

    def linearize(self, fun: Flat, leaves: Leaves) -> tuple[list[Any], LeafPullback]:
        """Run a flat function, and leave on the device what its pullback needs; see `Engine.linearize`."""
        compiled, (outputs, residuals) = self._run(LINEARIZE, fun, leaves)
        values = list(map(_as_numpy, outputs))
        return values, _Pullback(self, fun, leaves, values, compiled, residuals)

    def value_and_grad(self, fun: Flat, leaves: Leaves) -> tuple[list[Any], LeafPullback]:
        """Do the same, but where the value is one real number, compute its gradient for the seed 1 along with it."""
        compiled, (outputs, rest) = self._run(VALUE_AND_GRAD, fun, leaves)
        values = list(map(_as_numpy, outputs))
        if not compiled.has_gradient:
            return values, _Pullback(self, fun, leaves, values, compiled, rest)
        return values, _Pullback(self, fun, leaves, values, gradient=list(map(_as_numpy, rest)))

    def pushforward(self, fun: Flat, n: int) -> Flat:
        """Return its pushforward, all directions together; see `Engine.pushforward`."""

        def jvp(leaves: Leaves) -> list[Any]:
            each = len(leaves) // (1 + n)
            x = [jnp.asarray(leaf) for leaf in leaves[:each]]
            columns = [
                jnp.stack([jnp.asarray(dx, leaf.dtype) for dx in leaves[each + number :: each]])
                for number, leaf in enumerate(x)
            ]
            batched: Any = jax.vmap(lambda *dx: _jvp(fun, x, dx), out_axes=(None, 0))
            values, tangents = batched(*columns)
            return [*values, *(column[number] for number in range(n) for column in tangents)]

        return jvp

    def pullback(self, fun: Flat, n: int) -> Flat:
        """Return its pullback, as a function of the leaves and the cotangents; see `Engine.pullback`."""

        def pulled(leaves: Leaves) -> list[Any]:
            outputs, pull = _pullback_at(fun, leaves[:n])
            return list(pull([_like(seed, value) for seed, value in zip(leaves[n:], outputs, strict=True)]))

        return pulled

    def check_around(self) -> None:
        """Refuse settings of jax's that the calling thread has, and the threads and workers of chunks have not."""
        refuse_uncompiled()

    def _run(self, what: str, fun: Any, leaves: Leaves) -> tuple[_Compiled, Any]:
        base = getattr(fun, "base", None)
        if base is None:
            raise NotDifferentiableError(
                "The jax engine was given a function that does not say what it was made of. Make it by "
                "`dagad.extend.Composed(call, fun, key)`."
            )
        with x64(True):
            refuse_own(leaves)
            keys, numbers = [], []
            for side in base.sides():
                kept: KeptConstants = side.kept(NAME, KeptConstants)
                keys.append(kept.key)
                numbers += kept.numbers
            key = Key(what, fun.key, tuple(keys), tuple(map(shape_of, leaves)))
            compiled = _COMPILED.find(key) or _COMPILED.change(key, lambda found: found or _Compiled(what))
            base.context = InNumpysTerms(base, self.most_operations, compiled.note)
            try:
                found = compiled([list(leaves), numbers], fun, base)
            finally:
                base.context = None
        base.out = compiled.out
        if compiled.is_to_be_looked_at and fun is base:
            compiled.is_to_be_looked_at = False
            compiled.gains.look(base, leaves, what != VALUE)
        return compiled, found


class Key(NamedTuple):
    """By what something compiled is found."""

    what: str
    derivative: tuple[Any, ...]  # which one, of the function of the task
    sides: tuple[Hashable, ...]  # what the function and its constants are
    leaves: tuple[Hashable, ...]


class _Compiled:
    """A function compiled for some shapes, by the first who calls it.

    =============  ====================================================================
    `out`          the structure of what the task's function returns
    `has_gradient` whether there is a gradient instead of residuals
    `gains`        what compiling took, and whether it pays; `is_to_be_looked_at`: it is time to ask
    `_treedef`     the structure of the pullback that the residuals are of
    `_forwarded`   which residuals are inputs, by their numbers, and None for the others
    `_call`        set once, under `_lock`
    `_pulls`       compiled pullbacks, by whether they pull a block of cotangents; set once, under `_lock`
    =============  ====================================================================
    """

    def __init__(self, what: str) -> None:
        self._what, self._lock = what, threading.Lock()
        self.out: Partition | None = None
        self.has_gradient = False
        self.gains, self.is_to_be_looked_at = Gains(), False
        self._is_numpys = False
        self._treedef: Any = None
        self._forwarded: list[int | None] = []
        self._call: Any = None
        self._pulls: dict[bool, Any] = {}

    def __call__(self, inputs: list[list[Any]], fun: Flat, base: FlatFunction | None) -> Any:
        if self._call is None:
            with self._lock:
                if self._call is None:
                    self._call = self._compile(inputs, fun, base)
        began = time.perf_counter()
        outputs = self._call(*inputs)
        if self.gains.ran(time.perf_counter() - began):
            self.is_to_be_looked_at = self._is_numpys
        if self._what == VALUE or self.has_gradient:
            return outputs
        values, rest = outputs
        if len(rest) < len(self._forwarded):
            made, given = iter(rest), [*inputs[0], *inputs[1]]
            rest = [next(made) if index is None else given[index] for index in self._forwarded]
        return values, rest

    def _compile(self, inputs: list[list[Any]], fun: Flat, base: Any) -> Any:
        refuse_long(inputs[0])

        def run(leaves: list[Any], constants: list[Any]) -> Any:
            base.given = constants
            try:
                found = self._traced(fun, leaves, constants)
            finally:
                base.given = None
            self.out = None if base.out is None else base.out.bare()
            return found

        with as_for_all():
            lowered, unflat = traced(lambda: _lowered(run, inputs), base)
        return self._finished(lowered, unflat, base.name)

    def note(self, is_numpys: bool) -> None:
        """Note whether the task's function calls numpy."""
        self._is_numpys = is_numpys

    def _finished(self, lowered: object, unflat: Unflat | None, name: str) -> Any:
        began = time.perf_counter()
        compiled = compiled_for_cpu(lowered)
        self.gains.seconds += time.perf_counter() - began
        _COUNT.add()
        logger.info("dagad: jax compiled %s, number %d in this process", name, _COUNT.n)
        return compiled if unflat is None else functools.partial(_flatly, compiled, unflat)

    def _traced(self, fun: Flat, leaves: list[Any], constants: list[Any]) -> Any:
        if self._what == VALUE:
            return fun(leaves)
        outputs, pull = _pullback_at(fun, leaves)
        first = jnp.asarray(outputs[0]) if len(outputs) == 1 else None
        if self._what == VALUE_AND_GRAD and first is not None and _is_number(first):
            self.has_gradient = True
            return outputs, list(pull([jnp.ones_like(first)]))
        residuals, self._treedef = tree_flatten(pull)
        given = {id(part): number for number, part in enumerate([*leaves, *constants])}
        self._forwarded = [given.get(id(part)) for part in residuals]
        return outputs, [part for part, index in zip(residuals, self._forwarded, strict=True) if index is None]

    def pull(self, residuals: Sequence[Any], seeds: Sequence[Any], is_block: bool = False) -> list[Any]:
        """Pull one cotangent for each output, or a block of them, along a first axis."""
        inputs = [list(residuals), list(seeds)]

        def pulled(parts: list[Any], seeds: list[Any]) -> list[Any]:
            def one(own: list[Any]) -> list[Any]:
                return list(self._unflat(parts)(own))

            return jax.vmap(one)(seeds) if is_block else one(seeds)

        with x64(True):
            if is_block not in self._pulls:
                with self._lock:
                    if is_block not in self._pulls:
                        with as_for_all():
                            lowered = _lowered(pulled, inputs)
                        self._pulls[is_block] = self._finished(*lowered, PULL)
            found: list[Any] = self._pulls[is_block](*inputs)
        return found

    def _unflat(self, residuals: Sequence[Any]) -> Any:
        return tree_unflatten(self._treedef, residuals)


def _lowered(function: Callable[..., Any], inputs: list[list[Any]]) -> tuple[Any, Unflat | None]:
    """Return what is to be compiled, with how its flat results are put together if it was shortened."""
    refuse_uncompiled()

    def run(*args: Any) -> Any:  # a new function each time: jax would not trace the same one twice
        return function(*args)

    program = jax.jit(run).trace(*inputs)
    cut = shortened(program.jaxpr) if jax.default_backend() == "cpu" else None
    if cut is None:
        return program.lower(), None
    unflat = functools.partial(tree_unflatten, tree_structure(program.out_info))
    return jax.jit(cut).lower(ROUNDS, *tree_leaves(inputs)), unflat


def _flatly(compiled: Callable[..., Any], unflat: Unflat, *inputs: list[Any]) -> Any:
    return unflat(compiled(ROUNDS, *tree_leaves(inputs)))


def _is_float(part: Array) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(part), jnp.inexact))


def _floats_and_rest(fun: Flat, x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return those outputs that have derivatives, and all: integers have none."""
    outputs = list(map(jnp.asarray, fun(list(x))))
    return list(filter(_is_float, outputs)), outputs


def _pullback_at(fun: Flat, leaves: Leaves) -> tuple[list[Any], Any]:
    """Return the outputs, and a pullback from a list of cotangents of those that have derivatives."""
    _, pull, outputs = jax.vjp(lambda *x: _floats_and_rest(fun, x), *leaves, has_aux=True)
    return outputs, pull


def _jvp(fun: Flat, x: Sequence[Any], dx: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the outputs and their tangents."""
    _, tangents, outputs = jax.jvp(lambda *x: _floats_and_rest(fun, x), tuple(x), tuple(dx), has_aux=True)
    rest = iter(tangents)
    return outputs, [next(rest) if _is_float(output) else jnp.zeros_like(output) for output in outputs]


def _like(seed: Cotangent, value: Value) -> Any:
    """Return a cotangent in the dtype of what it belongs to."""
    seed = jnp.asarray(seed)
    real = jnp.iscomplexobj(seed) and not jnp.iscomplexobj(value)
    return (jnp.real(seed) if real else seed).astype(value.dtype)


def _is_number(value: jax.Array) -> bool:
    return not value.shape and bool(jnp.issubdtype(value.dtype, jnp.floating))


class _Pullback:
    """A pullback: by the residuals, by the gradient for the seed 1, or, where some outputs have no seed, anew."""

    __slots__ = ("_compiled", "_engine", "_fun", "_gradient", "_leaves", "_residuals", "_values")

    def __init__(
        self,
        engine: JaxEngine,
        fun: Flat,
        leaves: Leaves,
        values: list[Any],
        compiled: _Compiled | None = None,
        residuals: Sequence[Any] = (),
        gradient: list[Any] | None = None,
    ) -> None:
        self._engine, self._fun, self._leaves, self._values = engine, fun, leaves, values
        self._compiled, self._residuals, self._gradient = compiled, residuals, gradient

    def __call__(self, cotangents: Sequence[Any]) -> list[Any]:
        if self._gradient is not None and cotangents[0] is not None and cotangents[0] == 1.0:
            return list(self._gradient)
        floats = [index for index, value in enumerate(self._values) if pytree.is_differentiable(value)]
        seeded = [index for index in floats if cotangents[index] is not None]
        seeds = [pytree.cast(cotangents[index], self._values[index]) for index in seeded]
        if self._compiled is not None and len(seeded) == len(floats):
            return list(map(_as_numpy, self._compiled.pull(self._residuals, seeds)))
        fun = outputs_of(self._fun, seeded)
        pulled = Composed(self._engine.pullback(fun, len(self._leaves)), fun, "pullback")
        return self._engine.value(pulled, [*self._leaves, *seeds])

    def many(self, many: Sequence[Sequence[Any] | None]) -> list[list[Any] | None]:
        """Pull many, None among them; see `pulled_in_blocks`."""
        return pulled_in_blocks(self, None if self._compiled is None else self._pull_block, self._values, many)

    def _pull_block(self, columns: list[Any]) -> list[Any]:
        assert self._compiled is not None
        return list(map(np.asarray, self._compiled.pull(self._residuals, columns, is_block=True)))

    def nbytes(self) -> int:
        """Return the memory of the residuals, on whatever device they are."""
        return sum(getattr(part, "nbytes", 8) for part in (*self._residuals, *(self._gradient or ())))


def _as_numpy(part: Array) -> Any:
    array = np.asarray(part)
    return array if array.ndim else array[()]


class _Count:
    __slots__ = ("_lock", "_mine", "n")

    def __init__(self) -> None:
        self.n, self._lock, self._mine = 0, threading.Lock(), threading.local()

    def add(self) -> None:
        """Count one more."""
        self._mine.n = self.by_thread() + 1
        with self._lock:
            self.n += 1

    def by_thread(self) -> int:
        """Return how many the calling thread has counted."""
        return getattr(self._mine, "n", 0)


_COMPILED: Remembered[_Compiled] = Remembered(MOST_COMPILED)
_COUNT = _Count()
