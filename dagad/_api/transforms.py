"""The public transforms, on programs that may contain reductions: `value_and_grad`, `grad`, `vjp`, `evaluate`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np

from dagad._api.non_finite import warn_of_nan
from dagad._api.program import Program, check_function
from dagad._errors import NotDifferentiableError
from dagad._executors.checkpointed import strand_of_its_own
from dagad._executors.evaluation import Evaluation
from dagad._graphs.linearization import is_scalar, seed_of_one
from dagad._kernels.context import VALUE_AND_GRAD, VALUES_FIRST, like_here
from dagad._tracebacks import public
from dagad._tracing.patches import patches
from dagad._types import Cotangent, Value
from dagad._values import pytree
from dagad._values.canonical import snapshots
from dagad._values.work_arrays import kept
from dagad._watching.watching import watched
from dagad._words import described


def _scalar_forward(program: Program) -> tuple[Any, Any, Callable[[], Any]]:
    """Run a program that returns one real number: the number, what came along, and the rest of the way."""
    value, aux, pullback = program.record(once=True)
    plain = pytree.plain(value)
    if is_scalar(plain):  # nearly always
        return value, aux, lambda: pullback([seed_of_one(plain)])
    check_number(plain, program.name)
    return value, aux, lambda: pullback([np.ones_like(plain)])


def check_number(value: Value, name: str) -> Any:
    """Return what a function returned, if that is one real number, or an array of one: autograd takes those too."""
    if is_scalar(value) or (isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind == "f"):
        return value
    raise NotDifferentiableError(
        f"`{name}` returned {described(value)}; only one real floating-point number has a gradient. {_remedy(value)}"
    )


def _remedy(value: Value) -> str:
    if value is None:
        return "Return that number: is a `return` missing?"
    if isinstance(value, tuple) and len(value) == 2:
        return "If the second is not to be differentiated, say `has_aux=True`; else return a sum, or use `dagad.vjp`."
    if isinstance(value, dict | list | tuple):
        return "Return that number itself; what else there is goes along by `has_aux=True`, as `return number, rest`."
    if isinstance(value, str):
        return "Return a number that was computed from the arguments."
    if isinstance(value, int | np.integer | np.bool_):
        return "Integers have no derivative: make it floating point, `float(...)`."
    if np.iscomplexobj(value):
        return "Return its real part or its modulus, or use `dagad.vjp`."
    return "Return its sum, `np.sum(...)`, or use `dagad.jacrev` or `dagad.vjp` for a value of any shape."


@public
def value_and_grad(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that computes both the value of `fun` and its gradient.

    Parameters
    ----------
    fun
        A function written with numpy that returns one real number, or an array of one; it may call
        `reduce_sum` and the like.
    argnums
        Which positional arguments to differentiate with respect to: an int, or a tuple of ints for a tuple of
        gradients.
    has_aux
        Whether `fun` returns ``(value, aux)``, where `aux` is handed through undifferentiated.

    Returns
    -------
    Callable
        ``(*args, **kwargs) -> (value, gradient)``, or ``((value, aux), gradient)`` with `has_aux`. The gradient has the
        structure, shapes and dtypes of the argument, and None for leaves that are constants. It can be written to.

    Raises
    ------
    NotDifferentiableError
        If the value is not one real number, or an argument has no floating-point numbers in it.
    StructureError
        If `argnums` does not fit the call, or `fun` returns no pair though `has_aux` says so.
    ArgumentsError
        If `fun` can't be called with these arguments.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> value, gradient = dagad.value_and_grad(lambda p: np.sum(p["x"] ** 2))({"x": np.array([1.0, 2.0])})
    >>> float(value), gradient
    (5.0, {'x': array([2., 4.])})
    """
    check_function(fun, "value_and_grad", argnums)

    @public
    @functools.wraps(fun, updated=())
    def value_and_gradient(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        program = Program(fun, argnums, args, kwargs, has_aux)
        # Patches once for the whole way there and back: to install them takes a while.
        with watched(program.name) as watch, patches, like_here(VALUE_AND_GRAD):
            value, aux, backward = _scalar_forward(program)
            watch.gave(value)
            gradient = backward()
            watch.gave_gradient(gradient)
        warn_of_nan(program, value, gradient)
        return ((value, aux), gradient) if has_aux else (value, gradient)

    return value_and_gradient


@public
def grad(fun: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that computes the gradient of `fun`.

    Parameters
    ----------
    fun, argnums, has_aux
        See `value_and_grad`.

    Returns
    -------
    Callable
        ``(*args, **kwargs) -> gradient``, or ``(gradient, aux)`` with `has_aux`.

    Raises
    ------
    NotDifferentiableError, StructureError
        As by `value_and_grad`.

    Examples
    --------
    >>> import dagad
    >>> float(dagad.grad(lambda x, y: x * y**2, argnums=1)(3.0, 2.0))
    12.0
    """
    check_function(fun, "grad", argnums)
    both = value_and_grad(fun, argnums, has_aux=has_aux)

    @public
    @functools.wraps(fun, updated=())
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, result = both(*args, **kwargs)
        return (result, value[1]) if has_aux else result

    return gradient


@overload
def vjp(
    fun: Callable[..., Any], *primals: Any, has_aux: Literal[False] = False
) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]: ...
@overload
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool) -> tuple[Any, Callable[[Any], tuple[Any, ...]], Any]: ...
@public
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return the value of a function, and its pullback: from cotangents of the value to those of the arguments.

    Parameters
    ----------
    fun
        A function written with numpy; it may return any pytree, and may call `reduce_sum` and the like.
    *primals
        Its arguments, pytrees with floating-point numbers.
    has_aux
        Whether `fun` returns ``(value, aux)``; then `aux` is returned too, third and undifferentiated.

    Returns
    -------
    value
        What `fun` returned.
    pullback
        From a cotangent, of the value's structure and shapes, to a tuple with one cotangent per primal: the gradient of
        the sum of the value's numbers, weighted by the cotangent. It may be called again, later, with another one.

    Raises
    ------
    NotDifferentiableError
        If a primal has no floating-point numbers in it.
    StructureError
        If a cotangent has another structure or other shapes than the value.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> value, pullback = dagad.vjp(lambda x: np.array([2.0, 3.0]) * x, 5.0)
    >>> value
    array([10., 15.])
    >>> [float(cotangent) for cotangent in pullback(np.array([1.0, 10.0]))]
    [32.0]
    """
    check_function(fun, "vjp")
    program = Program(fun, tuple(range(len(primals))), snapshots(primals), {}, has_aux)
    with watched(program.name) as watch, like_here(VALUES_FIRST, lasting=True):
        value, aux, pullback = program.record()
        value = kept(value)  # the tape has it, too
        watch.gave(value)
    outputs, treedef = pytree.flatten(value)

    @public
    def pull_back(cotangent: Cotangent) -> tuple[Any, ...]:
        cotangent = pytree.all_opened(cotangent)
        parts, given = pytree.flatten(cotangent)
        if given != treedef and pytree.flatten_with_none(cotangent)[1] == pytree.flatten_with_none(value)[1]:
            parts = pytree.leaf_seeds(value, cotangent)  # None is zero, and what belongs to a constant
        else:
            pytree.check_same_structure(treedef, given, "The cotangent has another structure than the value")
        seeds = [pytree.fitted(part, leaf, "A cotangent") for part, leaf in zip(parts, outputs, strict=True)]
        seeds = program.as_they_are(seeds)
        with watched(program.name) as watch, like_here(VALUES_FIRST):
            gradients: tuple[Any, ...] = pullback(seeds)
            watch.gave_gradient(gradients)
        return gradients

    return (value, pull_back, aux) if has_aux else (value, pull_back)


@public
def evaluate(fun: Callable[..., Any], *args: Any, argnums: int | Sequence[int] = 0, lazy: bool = False) -> Evaluation:
    """Start to compute a value and its gradient, and return at once.

    Parameters
    ----------
    fun
        See `value_and_grad`.
    *args
        Its arguments.
    argnums
        See `value_and_grad`.
    lazy
        Whether to start with the gradient only when `Evaluation.gradient` is called.

    Returns
    -------
    Evaluation
        ``.value()`` and ``.gradient()`` wait for their results, ``.progress`` says how far it is, ``.cancel()`` ends
        it, and ``await`` gives both.

    Raises
    ------
    NotDifferentiableError, StructureError
        As by `value_and_grad`: at once for the arguments, from ``.value()`` for what the function returns.

    Notes
    -----
    `fun` is called by another thread. Arrays that it reads may be written to when the value is there, not before.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> def loss(theta):
    ...     return dagad.reduce_sum(lambda rows, t: np.sum((rows - t) ** 2), np.arange(4.0), theta, grainsize=1)
    >>> evaluation = dagad.evaluate(loss, 1.0, lazy=True)
    >>> float(evaluation.value())
    6.0
    >>> evaluation.progress.values_done, evaluation.progress.gradients_done
    (4, 0)
    >>> float(evaluation.gradient())
    -4.0
    """
    check_function(fun, "evaluate", argnums)
    program = Program(fun, argnums, snapshots(args), {})

    def forward() -> tuple[Any, Callable[[], Any]]:
        value, _, backward = _scalar_forward(program)
        return value, backward

    with strand_of_its_own():
        return Evaluation(forward, lazy, watched.by_chunk(program.name))
