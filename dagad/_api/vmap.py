"""The public function `vmap`: many members of a function, which go through it from reduction to reduction."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np
from dask.base import is_dask_collection

from dagad._api.directions import is_followed
from dagad._api.program import check_function
from dagad._errors import PlanError, StructureError, add_note_once
from dagad._executors.checkpointed import is_checkpointed
from dagad._executors.evaluation import is_inside_any_task
from dagad._executors.member import current_member
from dagad._executors.members import Meeting
from dagad._executors.members_pace import Pace
from dagad._executors.members_threads import MemberThreads
from dagad._tracebacks import public
from dagad._tracing.patches import patches
from dagad._types import Axis, Cotangent, Function, Leaf, Tree
from dagad._values import pytree
from dagad._values.canonical import library_of
from dagad._values.pytree import TreeDef
from dagad._values.work_arrays import kept
from dagad._watching.watching import watched
from dagad._words import argument_of, described, name_of


@public
def vmap(fun: Callable[..., Any], in_axes: Tree = 0) -> Callable[..., Any]:
    """Return a function that runs `fun` for many members, such as parameter vectors, in one pass over the data.

    `fun` runs as it is for each member, with plain values, so that `if`, solvers and loops work. Where all members have
    come to a reduction or a map, on the same rows, it is one job: each chunk of rows is visited once for all members,
    and a loop over Shards sends one message to each worker. Each member has the bits that it has alone.

    Parameters
    ----------
    fun
        A function, or what a transform makes of one: ``vmap(dagad.value_and_grad(loss))``.
    in_axes
        Along which axis of the arguments the members lie: an int; None for what all members share; or a tuple or list
        of these, one for each positional argument, each of which may be a pytree that begins like its argument.
        Arguments by keyword have their members along the first axis.

    Returns
    -------
    Callable
        ``(*args, **kwargs) -> results``: what `fun` returns, with the members along a new first axis of each number and
        array.

    Raises
    ------
    PlanError
        If `in_axes` does not fit the arguments.
    StructureError
        If there are no members, if arguments have different numbers of them, or if members return results of different
        structures or shapes.
    ClosureError
        If a member changes what another one that waits has used, or what its reduction is waiting to use: its rows, its
        arguments, or what its function carries.

    Notes
    -----
    What `fun` raises for a member has a note with `member` and its number, from 0. Members whose programs part company,
    by another number of reductions or other rows, run these one by one; `Evaluation.profile` says so. They also run one
    by one, as in a loop, where `fun` changes what it finds around it: an array, a list, an attribute, random numbers;
    where somebody differentiates the whole, in a chunk, and where a checkpoint writes down what runs; and in this
    process from the third call of the function that is returned on, where that has taken less time.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> shards = dagad.shard(np.arange(6.0), grainsize=2, scheduler="threads")
    >>> def loss(theta):
    ...     return dagad.reduce_sum(lambda rows, t: np.sum((rows - t) ** 2), shards, theta)
    >>> values, gradients = dagad.vmap(dagad.value_and_grad(loss))(np.array([0.0, 1.0, 2.0, 3.0]))
    >>> values, gradients
    (array([55., 31., 19., 19.]), array([-30., -18.,  -6.,   6.]))
    """
    check_function(fun, "vmap")
    pace, threads = Pace(), MemberThreads()

    @public
    @functools.wraps(fun, updated=())
    def of_members(*args: Any, **kwargs: Any) -> Any:
        calls = _calls(fun, in_axes, args, kwargs)
        acts = [functools.partial(fun, *own, **words) for own, words in calls]
        with watched(name_of(fun)):
            is_traced = any(map(pytree.is_traced, pytree.flatten((args, kwargs))[0])) or is_followed(fun)
            results = _run(fun, acts, pace, threads, is_traced)
        return _stacked(results)

    return of_members


def _run(
    fun: Function, acts: Sequence[Callable[[], Any]], pace: Pace, threads: MemberThreads, is_traced: bool
) -> list[Any]:
    """Run the programs of all members: together, or one by one where somebody follows them, or wants their order."""
    if len(acts) < 2 or is_traced or is_inside_any_task() or is_checkpointed():
        return _one_by_one(acts)
    threads.begin_call()
    if current_member() is not None:  # the members around this one are to come to the same reductions
        return Meeting(fun, acts, threads).run()
    began = time.perf_counter()
    if pace.choose(len(acts)):
        meeting = Meeting(fun, acts, threads)
        results = meeting.run()
        pace.took(len(acts), True, time.perf_counter() - began, meeting.is_remote)
        if meeting.is_one_by_one and not meeting.can_try_again:
            pace.parted(len(acts))
    else:
        results = _one_by_one(acts)
        pace.took(len(acts), False, time.perf_counter() - began)
    return results


def _one_by_one(acts: Sequence[Callable[[], Any]]) -> list[Any]:
    found = []
    with patches:  # held for all: to change autograd and change it back takes as long as a small chunk
        for number, act in enumerate(acts):
            try:
                result = act()
                found.append(kept(result))
            except BaseException as error:
                add_note_once(error, f"dagad: member {number} of a `dagad.vmap`")
                raise
    return found


# Arguments


def _calls(fun: Function, in_axes: Tree, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Return the arguments of each member."""
    axes = [*_by_argument(in_axes, len(args)), *[0] * len(kwargs)]
    columns = [pytree.flatten_with_none(pytree.all_opened(argument)) for argument in (*args, *kwargs.values())]
    names = [argument_of(fun, index) for index in range(len(args))] + [f"Argument `{name}`" for name in kwargs]
    found = [_axes_of(name, axis, column) for name, axis, column in zip(names, axes, columns, strict=True)]
    count = _n_members(names, found, columns)
    by_argument = [_by_member(*column, some, count) for column, some in zip(columns, found, strict=True)]
    return [
        (own[: len(args)], dict(zip(kwargs, own[len(args) :], strict=True))) for own in zip(*by_argument, strict=True)
    ]


def _by_argument(in_axes: Tree, n_args: int) -> list[Any]:
    if in_axes is None or _is_axis(in_axes):
        return [in_axes] * n_args
    if type(in_axes) not in _SEVERAL:
        raise PlanError(
            f"`in_axes` is {described(in_axes)}. Give an int, None for what all members share, or a tuple of "
            "these, one for each positional argument."
        )
    if len(in_axes) != n_args:
        raise PlanError(
            f"`in_axes` has {len(in_axes)} entries, and the function was called with {n_args} positional arguments. "
            "Give one entry for each of them: None for what all members share. Arguments by keyword have their members "
            "along the first axis."
        )
    return list(in_axes)


_SEVERAL = (tuple, list)


def _is_axis(axis: Axis) -> bool:
    return isinstance(axis, int | np.integer) and not isinstance(axis, bool)


def _axes_of(name: str, axis: Axis, column: tuple[list[Any], Any]) -> list[int | None]:
    """Return the axis of each leaf of an argument."""
    leaves, treedef = column
    try:
        axes = pytree.by_prefix(axis, treedef.unflatten(leaves))
    except ValueError as error:
        raise PlanError(
            f"{name} has another structure than its entry of `in_axes`, {axis!r}: {error}. Give one axis for the whole "
            "argument, or a pytree that begins like it."
        ) from None
    found: list[int | None] = []
    for leaf, one in zip(leaves, axes, strict=True):
        if one is not None and not _is_axis(one):
            raise PlanError(f"`in_axes` has {described(one)} for {_lower(name)}. Give an int, or None.")
        found.append(None if one is None or leaf is None else _checked(name, leaf, int(one)))
    return found


def _lower(name: str) -> str:
    return name[0].lower() + name[1:]


def _checked(name: str, leaf: Leaf, axis: int) -> int:
    plain = pytree.plain(leaf)
    if is_dask_collection(plain):
        raise StructureError(
            f"{name} holds {described(plain)} of Dask, whose values are not known yet, and members were to lie along "
            "it. Compute it first; or give None for it in `in_axes` if all members share it."
        )
    if (
        pytree.is_sharded(leaf)
        or isinstance(plain, str | bytes)
        or (not hasattr(plain, "__array__") and not np.isscalar(plain))
    ):
        raise PlanError(
            f"{name} holds {described(plain)}, along which no members can lie. Give None for it in `in_axes`: all "
            "members share it."
        )
    _refuse_labels(name, plain)
    n_axes = np.ndim(plain)
    if not -n_axes <= axis < n_axes:
        raise PlanError(
            f"{name} holds {described(plain)} of {n_axes} axes, and its members were to lie along axis {axis}. Give it "
            "that axis, one entry for each member; or None in `in_axes` if all members share it."
        )
    return axis % n_axes


def _refuse_labels(name: str, plain: object) -> None:
    """Raise for a leaf that would not be cut by position into numbers and arrays."""
    library = library_of(plain)
    if library is None or (library == "xarray" and hasattr(plain, "dtype")):  # arrays of xarray go by position
        return
    if isinstance(plain, np.ma.MaskedArray):
        raise StructureError(
            f"{name} holds a masked array, along which members were to lie: one that is masked has no number. Give "
            "`array.filled(value)`, once you have decided what to do about missing numbers."
        )
    raise StructureError(
        f"{name} holds {described(plain)} of {library}, along which members were to lie: its labels would say which "
        "entry is whose. Give numbers by position, `.to_numpy()` of it or of its columns."
    )


def _n_members(names: Sequence[str], axes: Sequence[list[int | None]], columns: Sequence[Any]) -> int:
    """Return how many members there are, after seeing that all leaves agree."""
    counts: dict[int, str] = {}
    for name, some, (leaves, _) in zip(names, axes, columns, strict=True):
        for leaf, axis in zip(leaves, some, strict=True):
            if axis is not None:
                counts.setdefault(int(np.shape(pytree.plain(leaf))[axis]), name)
    if len(counts) > 1:
        listed = ", ".join(f"{_lower(name)} has {count}" for count, name in counts.items())
        raise StructureError(
            f"The arguments have different numbers of members: {listed}. Give all of them the same number, or None in "
            "`in_axes` for what all members share."
        )
    if not counts:
        raise PlanError(
            "`in_axes` says that all members share all arguments, so nothing says how many there are. Give the axis of "
            "at least one argument; or call the function itself."
        )
    count = next(iter(counts))
    if not count:
        raise StructureError("There are no members: the arguments have length 0 along them. Give at least one.")
    return count


def _by_member(leaves: list[Any], treedef: TreeDef, axes: Sequence[int | None], count: int) -> list[Any]:
    """Return what each member has of an argument: its own containers and memory, into which it may write."""
    columns = [_parts(leaf, axis, count) for leaf, axis in zip(leaves, axes, strict=True)]
    if len(columns) == 1 and treedef.is_leaf():
        return columns[0]
    return [treedef.unflatten([column[number] for column in columns]) for number in range(count)]


def _parts(leaf: Leaf, axis: int | None, count: int) -> list[Any]:
    """Return what each member has of a leaf."""
    if axis is None:
        return [leaf] * count
    whole = leaf if hasattr(leaf, "__getitem__") else np.asarray(leaf)
    before: tuple[Any, ...] = (slice(None),) * axis
    parts = [whole[(*before, number)] for number in range(count)]
    return list(map(_own, parts))


def _own(part: Cotangent) -> Any:
    """Return a part of an array in memory of its own."""
    if type(part) is np.ndarray:  # nearly always
        return part.copy(order="C")
    if isinstance(part, np.ndarray | np.void):  # an entry of a record is a view, too
        return part.copy()
    if isinstance(part, np.generic):
        return part
    copy = getattr(part, "clone", None) if hasattr(part, "data_ptr") else None  # a tensor
    if library_of(part) is not None:
        copy = getattr(part, "copy", None)
    return copy() if callable(copy) else part


# Results


def _stacked(results: Sequence[Any]) -> Any:
    """Return the results of all members with a new first axis."""
    columns = [pytree.flatten(pytree.open_containers(result)) for result in results]
    first = columns[0][1]
    for number, (_, treedef) in enumerate(columns):
        if treedef != first:
            raise StructureError(
                f"Members return results of different structures: member 0 {first}, member {number} {treedef}. Return "
                "the same structure for every member."
            )
    return first.unflatten([_column(list(leaves)) for leaves in zip(*[leaves for leaves, _ in columns], strict=True)])


def _column(leaves: list[Any]) -> Any:
    plain = list(map(pytree.plain, leaves))
    kinds = set(map(type, plain))
    for kind in kinds:
        if issubclass(kind, np.ndarray) and not _is_stacked_whole(kind):
            _refuse_class(kind)
    if not all(issubclass(kind, _NUMBERS) for kind in kinds):
        if all(leaf is plain[0] or (type(leaf) is str and leaf == plain[0]) for leaf in plain):
            return plain[0]
        raise StructureError(
            f"Members return {described(plain[0])}, which can't be stacked. Return numbers and arrays, in any pytree."
        )
    shapes = list(map(np.shape, plain))
    if len(set(shapes)) > 1:
        number = next(number for number, shape in enumerate(shapes) if shape != shapes[0])
        raise StructureError(
            f"Members return arrays of different shapes: member 0 {shapes[0]}, member {number} {shapes[number]}. "
            "Return the same shape for every member."
        )
    return (anp if any(map(pytree.is_traced, leaves)) else np).stack(leaves)


_NUMBERS = (np.ndarray, np.generic, int, float, complex)
_PLAIN = frozenset({np.ndarray, np.memmap, np.recarray})
_OF_MASKED = "`array.filled(value)`, or two arrays, `array.filled(0.0)` and `np.ma.getmaskarray(array)`"


def _is_stacked_whole(kind: type) -> bool:
    """Return whether arrays of a class are stacked with all that they hold: of numpy's own, or as they say."""
    stacks = getattr(kind, "__array_function__", None)
    return kind in _PLAIN or stacks is not np.ndarray.__array_function__


def _refuse_class(kind: type) -> None:
    is_masked = issubclass(kind, np.ma.MaskedArray)  # looked up here: numpy imports it when it is first asked for
    instead = _OF_MASKED if is_masked else "its numbers, `np.asarray(array)`"
    raise StructureError(
        f"Members return an array of the class `{kind.__name__}`, and what that holds beside its numbers would be lost "
        f"where these are stacked. Return {instead}."
    )
