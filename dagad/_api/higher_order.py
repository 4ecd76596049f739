"""The public modes beyond the gradient: `jvp`, `jacfwd`, `jacrev`, `hvp` and `hessian`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from dask.base import is_dask_collection

from dagad._api.collections import jvp_of_collections
from dagad._api.directions import check_scheduler, side_by_side
from dagad._api.jacobian import Dense, Layout, checked_layout, columns, rows
from dagad._api.program import Program, check_function
from dagad._api.transforms import grad
from dagad._errors import ArgumentsError, StructureError
from dagad._tracebacks import public
from dagad._types import AnyScheduler, Tangents, Tree
from dagad._values import pytree
from dagad._values.partition import Partition
from dagad._values.work_arrays import kept
from dagad._watching.watching import watched
from dagad._words import described


@overload
def jvp(fun: object, primals: Tree, tangents: Tangents, *, has_aux: Literal[False] = False) -> tuple[Any, Any]: ...
@overload
def jvp(fun: object, primals: Tree, tangents: Tangents, *, has_aux: bool) -> tuple[Any, Any, Any]: ...
@public
def jvp(fun: Any, primals: Tree, tangents: Tangents, *, has_aux: bool = False) -> Any:
    """Return the value of a function and its derivative in one direction: forward mode.

    Parameters
    ----------
    fun
        A function written with numpy; it may return any pytree, and may call `reduce_sum` and the like,
        whose chunks then compute value and tangent together. Or a collection of Dask.
    primals
        A tuple of its arguments; or a single argument as it is: an array, a number, a dict, a namedtuple, a registered
        record. A list is refused, as it might be either: ``([a, b],)`` is one argument that is a list, ``(a, b)`` are
        two. Of a collection: collections of its graph, in any pytree.
    tangents
        One tangent per primal, of its structure and shapes; None where nothing moves. For collections: numbers, or
        collections of the same kind, in the structure of the primals; one that is made of another moves with it, and by
        its own tangent on top.
    has_aux
        Whether `fun` returns ``(value, aux)``; then `aux` is returned too, third and undifferentiated.

    Returns
    -------
    value
        What `fun` returned.
    tangent
        Of the value's structure, shapes and dtypes; None for leaves that are constants. For a collection, two of its
        kind.

    Raises
    ------
    NotDifferentiableError
        If a primal has no floating-point numbers in it, or `fun` uses what has no derivative.
    StructureError
        If a tangent has another structure or other shapes than its primal.
    ArgumentsError
        If the primals of a function are a list.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> def total(theta):
    ...     return dagad.reduce_sum(lambda rows, t: np.sum(rows * t**2), np.arange(4.0), theta, grainsize=2)
    >>> value, tangent = dagad.jvp(total, (3.0,), (1.0,))
    >>> float(value), float(tangent)
    (54.0, 36.0)
    >>> value, tangent = dagad.jvp(lambda p: p[0] * p[1], ([2.0, 3.0],), ([1.0, None],))  # one argument, a list
    >>> float(value), float(tangent)
    (6.0, 3.0)

    >>> import dask.array as da
    >>> x = da.arange(4.0, chunks=2)
    >>> value, tangent = dagad.jvp(x**2, x, np.ones(4))
    >>> tangent.compute(scheduler="sync")
    array([0., 2., 4., 6.])
    """
    if is_dask_collection(fun):  # or what `jvp_of_collections` refuses
        if has_aux:
            raise ArgumentsError(
                "`has_aux=True` is for functions; a collection brings nothing along. Leave it out, and compute what is "
                "to come along beside the value."
            )
        return jvp_of_collections(fun, primals, tangents)
    primals, tangents, _ = _as_arguments("jvp", primals, tangents)
    program = Program(fun, tuple(range(len(primals))), primals, {}, has_aux)
    direction = program.direction(tangents)
    with watched(program.name) as watch:
        value, aux, (tangents_out,) = program.push([direction])
        value = kept(value)  # it may be an argument as it came
        watch.gave(value)
    partition = Partition.of(value, pytree.is_differentiable_or_traced)
    tangent = partition.completed([tangents_out[index] for index in partition.positions])
    return (value, tangent, aux) if has_aux else (value, tangent)


def _as_arguments(mode: str, primals: Tree, tangents: Tangents) -> tuple[tuple[Any, ...], tuple[Any, ...], bool]:
    """Return primals and tangents as tuples of arguments, and whether there was one that was given as it is.

    Only a tuple itself holds arguments: a namedtuple is a record, so it is one argument.
    """
    primals, tangents = pytree.open_containers(primals), pytree.open_containers(tangents)
    if isinstance(primals, list):
        raise ArgumentsError(
            "`primals` is a list, which may be one argument or several. Write "
            f"`dagad.{mode}(f, ([...],), ([...],))` for one argument that is a list, `dagad.{mode}(f, (a, b), (u, v))` "
            "for several arguments."
        )
    if type(primals) is not tuple:
        return (primals,), (tangents,), True
    if not primals:
        raise StructureError("`primals` is empty. Give at least one argument to differentiate with respect to.")
    if type(tangents) is not tuple or len(tangents) != len(primals):
        found = len(tangents) if type(tangents) is tuple else f"{described(tangents)}, not a tuple"
        raise StructureError(
            f"The number of `primals` is {len(primals)}, that of `tangents` is {found}. Give one tangent per primal, "
            "in a tuple; None where nothing moves."
        )
    return primals, tangents, False


@public
def hvp(fun: Callable[..., Any], primals: Tree, tangents: Tangents) -> Any:
    """Return the product of a Hessian and a vector, in one pass over the data, without the Hessian itself.

    Parameters
    ----------
    fun
        A function that returns one real number; it may call reductions and maps.
    primals
        A tuple of its arguments, or a single argument as it is; see `jvp`.
    tangents
        The vector, as one tangent per primal.

    Returns
    -------
    tuple, or a pytree
        One entry per primal, of its structure; for a single argument as it is the entry alone.

    Raises
    ------
    NotDifferentiableError, StructureError, ArgumentsError
        As by `grad` and `jvp`.

    Notes
    -----
    After Pearlmutter, "Fast Exact Multiplication by the Hessian", Neural Computation 6 (1994).

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> dagad.hvp(lambda x: np.sum(x**3), np.array([1.0, 2.0]), np.array([1.0, 10.0]))
    array([  6., 120.])
    >>> [float(part) for part in dagad.hvp(lambda x, y: x**3 * y, (1.0, 2.0), (1.0, None))]
    [12.0, 3.0]
    """
    check_function(fun, "hvp")
    primals, tangents, single = _as_arguments("hvp", primals, tangents)
    gradient = grad(fun, tuple(range(len(primals))))
    products: tuple[Any, ...] = jvp(gradient, primals, tangents)[1]
    return products[0] if single else products


@public
def jacfwd(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False, scheduler: AnyScheduler = None
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of `fun` column by column: for few inputs and many outputs.

    Parameters
    ----------
    fun
        A function written with numpy; it may return any pytree, and may call `reduce_sum` and the like,
        whose chunks then compute several columns together.
    argnums
        Which positional arguments to differentiate with respect to: an int, or a tuple of ints.
    has_aux
        Whether `fun` returns ``(value, aux)``, where `aux` is handed through undifferentiated.
    scheduler
        Where the directions run, in groups beside each other: "threads", or a ``distributed.Client``; see
        `reduce_sum`. None: one after the other, here. It pays where `fun` itself runs one step after the other. The
        reductions in `fun` keep their own scheduler, and the result has the same bits; where they have
        ``engine="jax"``, but for the last ones, which depend on how many directions a group has. Threads help where
        numpy lets go of the interpreter's lock, in arrays of some thousand numbers; in other processes `fun`, its
        arguments and what comes along have to travel.

    Returns
    -------
    Callable
        ``(*args, **kwargs) -> Jacobian``, or ``(Jacobian, aux)`` with `has_aux`: the value's structure, with in place
        of each leaf the structure of the argument (a tuple of them for several), its leaves of shape
        ``(*value.shape, *argument.shape)``.

    Raises
    ------
    NotDifferentiableError, StructureError
        As by `jvp`.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> dagad.jacfwd(lambda x: np.array([2.0, 3.0]) * x**2)(5.0)
    array([20., 30.])
    >>> def steps(x):
    ...     for _ in range(3):
    ...         x = x - 0.1 * np.sin(x)
    ...     return x
    >>> dagad.jacfwd(steps, scheduler="threads")(np.zeros(2)).round(3)
    array([[0.729, 0.   ],
           [0.   , 0.729]])
    """
    check_function(fun, "jacfwd", argnums)
    check_scheduler(scheduler)

    @public
    @functools.wraps(fun, updated=())
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        program = Program(fun, argnums, args, kwargs, has_aux)
        with watched(program.name):
            found, aux = columns(program, side_by_side(scheduler, (fun, args, kwargs)))
        return (found, aux) if has_aux else found

    return jacobian


@public
def jacrev(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    *,
    has_aux: bool = False,
    layout: Layout | None = None,
    scheduler: AnyScheduler = None,
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of `fun` row by row: for few outputs and many inputs.

    Chunks run once, whatever the number of rows of the Jacobian. The derivatives of a map's outputs with respect to
    other items are zero, and are never computed.

    Parameters
    ----------
    fun, argnums, has_aux
        See `jacfwd`.
    layout
        How the Jacobian is stored: ``extend.Dense()``, or ``extend.Sparse()`` for scipy's sparse arrays of shape
        ``(value.size, argument.size)``, which leave out the zeros of a map.
    scheduler
        Where the rows are pulled, in groups; see `jacfwd`. Threads share what was recorded once, other processes record
        it once for each group.

    Returns
    -------
    Callable
        ``(*args, **kwargs) -> Jacobian``; see `jacfwd`.

    Raises
    ------
    NotDifferentiableError, StructureError
        As by `vjp`.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> def cubes(rows):
    ...     return dagad.map(lambda x: x**3, rows, grainsize=1)
    >>> dagad.jacrev(cubes)(np.array([1.0, 2.0]))
    array([[ 3.,  0.],
           [ 0., 12.]])
    """
    check_function(fun, "jacrev", argnums)
    chosen = Dense() if layout is None else checked_layout(layout)
    check_scheduler(scheduler)

    @public
    @functools.wraps(fun, updated=())
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        program = Program(fun, argnums, args, kwargs, has_aux)
        with watched(program.name):
            found, aux = rows(program, chosen, side_by_side(scheduler, (fun, args, kwargs)))
        return (found, aux) if has_aux else found

    return jacobian


@public
def hessian(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False, scheduler: AnyScheduler = None
) -> Callable[..., Any]:
    """Return a function that computes the Hessian of `fun`: the Jacobian of its gradient.

    Parameters
    ----------
    fun
        A function that returns one real number; it may call reductions and maps.
    argnums
        Which positional arguments to differentiate with respect to: an int, or a tuple of ints.
    has_aux
        Whether `fun` returns ``(value, aux)``, where `aux` is handed through undifferentiated.
    scheduler
        Where the rows are pulled, in groups; see `jacrev`.

    Returns
    -------
    Callable
        ``(*args, **kwargs) -> Hessian``, or ``(Hessian, aux)`` with `has_aux`: the structure of the argument twice
        over, its leaves of shape ``(*argument.shape, *argument.shape)``.

    Raises
    ------
    NotDifferentiableError, StructureError
        As by `grad`.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> dagad.hessian(lambda x: x[0] ** 2 * x[1])(np.array([3.0, 5.0]))
    array([[10.,  6.],
           [ 6.,  0.]])
    """
    check_function(fun, "hessian", argnums)
    return jacrev(grad(fun, argnums, has_aux=has_aux), argnums, has_aux=has_aux, scheduler=scheduler)
