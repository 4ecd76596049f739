"""For jax: an objective of dagad's as a function of jax's, differentiable again; needs ``pip install "dagad[jax]"``.

What jax compiles calls back into Python for a value, or for a value and a gradient together.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._api.program import check_function
from dagad._errors import ClosureError, NotDifferentiableError
from dagad._tracebacks import public
from dagad._types import Array, DType, Function, Leaf, Tangents, Tree, Value
from dagad._values.walk import Walk
from dagad._words import described, name_of
from dagad.interop._objective import Directional, Indices, Objective

try:
    import jax
    import jax.numpy as jnp
    from jax.custom_derivatives import SymbolicZero
    from jax.flatten_util import ravel_pytree
    from jax.lax import bitcast_convert_type as bitcast
    from jax.tree_util import keystr, tree_flatten, tree_flatten_with_path, tree_structure, tree_unflatten
except ModuleNotFoundError as error:
    error.add_note('dagad: `dagad.interop.jax` needs jax: `pip install "dagad[jax]"`.')
    raise

Numbers = Sequence[Any]
Shape: Any = jax.ShapeDtypeStruct  # jax has no type for it


@public
def as_jax(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return an objective as a function of jax's, for its transformations and for samplers and optimisers made with it.

    Parameters
    ----------
    fun
        A function that returns one real number, written for `dagad.value_and_grad`: it gets numpy's arrays, and its
        chunks may have any engine.

    Returns
    -------
    Callable
        The same function of jax's arrays, in any pytree that jax knows. It may be called inside of ``jax.jit``,
        ``jax.lax.scan`` and ``jax.vmap`` (one by one), and be differentiated by ``jax.grad``, ``jax.jvp``,
        ``jax.hessian`` and so on, in any order and mix of modes. Where only its value is asked for, no pullback runs;
        where the gradient is, both are computed together.

    Raises
    ------
    NotDifferentiableError
        If `fun` does not return one real number, or is called with complex numbers or with what is no number.
    ClosureError
        If `fun` holds a value that jax is tracing.

    Notes
    -----
    It is computed in float64 whatever ``jax_enable_x64`` says, and rounded to the dtype of the arguments: without x64
    that is float32, with 7 digits. Samplers of models with many rows want more:
    ``jax.config.update("jax_enable_x64", True)``.

    jax runs ahead of a Python loop over compiled steps, with up to 32 of them under way. Chunks in this process with
    ``engine="jax"`` then have no place to run: wait for each step, say by ``float(loss)``, put the loop into
    ``jax.lax.scan``, or set ``jax.config.update("jax_cpu_enable_async_dispatch", False)`` at the start of the program.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.interop.jax import as_jax
    >>> def loss(theta):
    ...     return dagad.reduce_sum(lambda rows, t: np.sum((rows - t) ** 2), np.arange(4.0), theta, grainsize=2)
    >>> value, slope = jax.jit(jax.value_and_grad(as_jax(loss)))(1.0)
    >>> float(value), float(slope)
    (6.0, -4.0)
    """
    check_function(fun, "interop.jax.as_jax")
    known = functools.partial(fun)  # has a hash, whatever the function is

    @public
    @functools.wraps(fun, updated=())
    def function(*args: Any) -> Any:
        with_paths, _ = tree_flatten_with_path(args)
        numbers = [_number(leaf, keystr(path), fun) for path, leaf in with_paths]
        _refuse_captured(fun)
        return _value(Objective(known, tree_structure(args)), numbers)

    return function


def _number(leaf: Leaf, path: str, fun: Function) -> Any:
    """Return a leaf as an array of jax's."""
    try:
        number = jnp.asarray(leaf)
    except TypeError:
        raise NotDifferentiableError(
            f"`{name_of(fun)}` is called by jax with {described(leaf)}, argument {path}, which is no number. Let the "
            "function find it in its closure, by `functools.partial` say."
        ) from None
    if jnp.issubdtype(number.dtype, jax.dtypes.prng_key):
        raise NotDifferentiableError(
            f"`{name_of(fun)}` is called by jax with a key of random numbers, argument {path}. Give the numbers in it, "
            "`jax.random.key_data(key)`, or let the function find it in its closure, by `functools.partial` say."
        )
    if jnp.issubdtype(number.dtype, jnp.complexfloating):
        raise NotDifferentiableError(
            f"`{name_of(fun)}` is called by jax with complex numbers, argument {path}. Give real and imaginary part as "
            "two arguments, and put them together in the function."
        )
    return number


class _Tracers:
    """The classes of what jax traces."""

    def __contains__(self, kind: object) -> bool:
        return isinstance(kind, type) and issubclass(kind, jax.core.Tracer)


def _refuse_captured(fun: Function) -> None:
    ways = Walk(fun, _Tracers(), read_only=True).ways()
    if ways:
        raise ClosureError(
            f"`{name_of(fun)}` holds a value that jax is tracing, {ways[0][1]}. Its derivative would be lost: pass the "
            "value to the function as an argument."
        )


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value(objective: Objective, numbers: Numbers) -> Any:
    return _called(_Task(Objective.value, objective), _like_value(numbers), numbers)


@functools.partial(_value.defjvp, symbolic_zeros=True)
def _value_jvp(objective: Objective, primals: Tree, tangents: Tangents) -> tuple[Any, Any]:
    (numbers,), (moves,) = primals, tangents
    wanted = _moving(moves)
    value, gradient = _value_and_gradient(objective, wanted, numbers)
    return value, _along(gradient, [moves[index] for index in wanted], value)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _value_and_gradient(objective: Objective, wanted: Indices, numbers: Numbers) -> tuple[Any, list[Any]]:
    like = _like_value(numbers), [numbers[index] for index in wanted]
    found: tuple[Any, list[Any]] = _called(_Task(Objective.value_and_gradient, objective, wanted), like, numbers)
    return found


@functools.partial(_value_and_gradient.defjvp, symbolic_zeros=True)
def _value_and_gradient_jvp(
    objective: Objective, wanted: Indices, primals: Tree, tangents: Tangents
) -> tuple[Any, Any]:
    (numbers,), (moves,) = primals, tangents
    indices = tuple(sorted({*wanted, *_moving(moves)}))
    value, gradient = _value_and_gradient(objective, indices, numbers)
    product_tangent = _hessian_product(objective, indices, numbers, _filled(moves, numbers, indices))
    tangent = _along(gradient, _filled(moves, numbers, indices), value), _picked(product_tangent, indices, wanted)
    return (value, _picked(gradient, indices, wanted)), tangent


def _hessian_product(objective: Objective, wanted: Indices, numbers: Numbers, direction: Numbers) -> list[Any]:
    """Return a Hessian times a vector, which jax may transpose and differentiate again, in any order.

    jax transposes no call of Python, but the solution of a linear system, and what it differentiates of that are the
    equations, whichever way it has been turned. So the product is written as one whose equations have the Hessian in
    them: ``y = direction`` and ``x - H y = 0``, in (x, y) symmetric and solved without dividing by anything.
    """
    alike = _varying([*numbers, *direction], [*numbers, *direction])  # in the equations it would be too late
    numbers, direction = alike[: len(numbers)], alike[len(numbers) :]
    whole, unravel = ravel_pytree(direction)  # jax transposes with respect to all of it, or not at all

    def product(vector: Array) -> Any:
        return ravel_pytree(_product(objective, wanted, numbers, unravel(vector)))[0]

    def equations(xy: Array) -> Any:
        x, y = jnp.split(xy, 2)
        return jnp.concatenate([y, x - product(y)])

    def solution(_: object, right: Array) -> Any:
        y, rest = jnp.split(right, 2)
        return jnp.concatenate([rest + product(y), y])

    right = jnp.concatenate([whole, jnp.zeros_like(whole)])
    found = jax.lax.custom_linear_solve(equations, right, solution, symmetric=True)
    return list(unravel(jnp.split(found, 2)[0]))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _product(objective: Objective, wanted: Indices, numbers: Numbers, direction: Numbers) -> list[Any]:
    """Return the same by a call of Python, which jax can't transpose; its derivatives are by the rule below."""
    task = _Task(_product_at, objective, wanted)
    found: list[Any] = _called(task, list(direction), numbers, direction)
    return found


def _product_at(objective: Objective, numbers: Numbers, wanted: Indices, direction: Numbers) -> list[Any]:
    """Return a Hessian times a vector; the derivatives of the solution ask along nothing, too, where `numbers` move."""
    if not any(map(np.any, direction)):
        return list(map(np.zeros_like, direction))
    return objective.hessian_product(numbers, wanted, direction)


@functools.partial(_product.defjvp, symbolic_zeros=True)
def _product_jvp(objective: Objective, wanted: Indices, primals: Tree, tangents: Tangents) -> tuple[Any, Any]:
    (numbers, direction), (moves, turn) = primals, tangents
    product = _product(objective, wanted, numbers, direction)
    tangent = [jnp.zeros_like(part) for part in product]
    if _moving(turn):
        turn_of_direction = _filled(turn, direction, range(len(direction)))
        tangent = _hessian_product(objective, wanted, numbers, turn_of_direction)
    if _moving(moves):  # the Hessian of the derivative in that direction
        along = Objective(Directional(objective, wanted), tree_structure((*numbers, *direction)))
        indices = tuple(sorted({*wanted, *_moving(moves)}))
        third = _hessian_product(along, indices, [*numbers, *direction], _filled(moves, numbers, indices))
        tangent = [part + more for part, more in zip(tangent, _picked(third, indices, wanted), strict=True)]
    return product, tangent


def _moving(moves: Numbers) -> Indices:
    """Return the indices of the numbers that move."""
    return tuple(index for index, move in enumerate(moves) if not isinstance(move, SymbolicZero))


def _filled(moves: Numbers, numbers: Numbers, indices: Sequence[int]) -> list[Any]:
    """Return the tangents of some numbers, zeros for those that don't move."""
    still = frozenset(range(len(moves))).difference(_moving(moves))
    return [jnp.zeros_like(numbers[index]) if index in still else moves[index] for index in indices]


def _picked(parts: Sequence[Any], indices: Indices, wanted: Indices) -> list[Any]:
    """Return of what there is for `indices` what belongs to those that are wanted."""
    return [part for part, index in zip(parts, indices, strict=True) if index in wanted]


def _along(gradient: Sequence[Any], moves: Numbers, value: Value) -> Any:
    """Return the derivative of a value in a direction."""
    total = jnp.zeros_like(value)
    for slope, move in zip(gradient, moves, strict=True):
        total = total + jnp.sum(slope * move).astype(value.dtype)
    return total


def _like_value(numbers: Numbers) -> Any:
    floats = [number.dtype for number in numbers if jnp.issubdtype(number.dtype, jnp.floating)]
    return Shape((), jnp.result_type(*floats) if floats else jnp.result_type(float))


@dataclasses.dataclass(frozen=True)
class _Task:
    """What Python computes for jax; equal to others of the same function, so that jax compiles once for all."""

    compute: Callable[..., Any]
    objective: Objective
    wanted: Indices | None = None
    dtypes: tuple[Any, ...] = ()

    def __call__(self, numbers: Numbers, *more: Any) -> Any:
        found = self.compute(self.objective, numbers, *(() if self.wanted is None else (self.wanted,)), *more)
        parts, treedef = tree_flatten(found)
        return tree_unflatten(
            treedef, [np.asarray(part, dtype) for part, dtype in zip(parts, self.dtypes, strict=True)]
        )


def _called(task: _Task, like: Tree, *args: Any) -> Any:
    """Have Python compute something: at once where jax knows the numbers, so that errors stay what they are."""
    parts, treedef = tree_flatten(like)
    task = dataclasses.replace(task, dtypes=tuple(part.dtype for part in parts))
    numbers, structure = tree_flatten(args)
    if not any(isinstance(number, jax.core.Tracer) for number in numbers):
        return jax.tree_util.tree_map(jnp.asarray, task(*args))
    halves = _InHalves(task, structure, tuple(number.dtype for number in numbers))
    shapes = [
        Shape((*part.shape, 2), np.uint32) if _is_long(part.dtype) else Shape(part.shape, part.dtype) for part in parts
    ]
    given = [bitcast(number, np.uint32) if _is_long(number.dtype) else number for number in numbers]
    back = jax.pure_callback(halves, shapes, *given, vmap_method="sequential")
    pairs = zip(_varying(back, numbers), task.dtypes, strict=True)
    return tree_unflatten(treedef, [bitcast(one, dtype) if _is_long(dtype) else one for one, dtype in pairs])


def _varying(parts: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
    """Return what was made of some numbers as varying along the axes of a mesh that these vary along."""
    axes = frozenset[str]().union(*map(_axes, numbers))
    more = [tuple(axes - _axes(part)) for part in parts]
    return [jax.lax.pcast(part, new, to="varying") if new else part for part, new in zip(parts, more, strict=True)]


def _axes(part: object) -> frozenset[str]:
    """Return along which axes of a mesh a part varies, inside of ``jax.shard_map``."""
    found: frozenset[str] = getattr(getattr(jax.typeof(part), "manual_axis_type", None), "varying", frozenset())
    return found


def _is_long(dtype: DType) -> bool:
    return bool(np.dtype(dtype).itemsize == 8)


@dataclasses.dataclass(frozen=True)
class _InHalves:
    """A task whose numbers of 64 bits come and go as two of 32.

    jax calls it from threads of its own too, and would round them there where x64 is on for a `with` block only.
    """

    task: _Task
    treedef: Any
    dtypes: tuple[Any, ...]

    def __call__(self, *parts: Any) -> list[Any]:
        numbers = [
            np.ascontiguousarray(part).view(dtype)[..., 0] if _is_long(dtype) else part
            for part, dtype in zip(parts, self.dtypes, strict=True)
        ]
        found, _ = tree_flatten(self.task(*tree_unflatten(self.treedef, numbers)))
        return [
            np.ascontiguousarray(part[..., None]).view(np.uint32) if _is_long(part.dtype) else part for part in found
        ]
