"""What may be differentiated, and in what: the collections that `gradient` and `jvp` are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dask.base import is_dask_collection
from dask.delayed import Delayed

from dagad._errors import NotDifferentiableError, PlanError
from dagad._graphs.collections import Collection, attribute
from dagad._graphs.labelled import is_dataset, is_labelled
from dagad._types import Array, Tree
from dagad._values import pytree
from dagad._words import a, described

_CONSTANT = "iubMmSU"  # kinds of numpy's dtypes that have no derivative: integers, times, words


def collections_in(y: Array, wrt: Tree, asked: str, called: str) -> tuple[Collection, list[Collection], Any]:
    """Return `y`, and the collections of `wrt` with the pytree that they are in."""
    leaves, treedef = pytree.flatten(wrt, is_leaf=_is_collection)
    for what, obj in (("y", y), *((called, leaf) for leaf in leaves)):
        if not _is_collection(obj):
            raise NotDifferentiableError(_not_a_collection(what, obj, asked))
        if type(obj).__module__.startswith("dask.dataframe"):
            raise NotDifferentiableError(
                f"`{asked}` takes collections of numbers, and `{what}` holds {a(type(obj).__name__)} of "
                "dask.dataframe, which pandas computes with. Take the numbers out, by "
                "`column.to_dask_array(lengths=True)`, and write it in arrays; or sum a function of the rows of "
                "`dagad.shard(table)` with `dagad.reduce_sum`."
            )
    if not leaves:
        raise NotDifferentiableError(
            f"`{asked}` was given nothing to differentiate with respect to: `{called}` holds no Delayed, dask array or "
            "other collection. Give one of the graph of `y`, or a list of them."
        )
    return Collection.of(y), list(map(Collection.of, leaves)), treedef


def _is_collection(obj: object) -> bool:
    # Asked for its graph, a Delayed makes another Delayed of the question first.
    return is_delayed(obj) or is_dask_collection(obj)


def is_delayed(obj: object) -> bool:
    """Return whether something is a Delayed."""
    return isinstance(obj, Delayed)


def _not_a_collection(what: str, obj: object, asked: str) -> str:
    holds = f"`{asked}` takes collections of Dask, and `{what}` holds {described(obj)}"
    if type(obj).__name__ == "DataTree":
        return f"{holds}. Give its datasets, in a dict: `tree.to_dict()`."
    if is_labelled(obj):
        return f"{holds} with its numbers in memory. Call its `chunk()`, and build `y` from that."
    return (
        f"{holds}. Wrap it with `dask.delayed`, or use `dagad.{asked.removesuffix('ient')}` for functions of plain "
        "values."
    )


def check_unused(unused: str) -> None:
    """Refuse what is no choice for collections that are not in the graph of `y`."""
    if unused not in ("raise", "zeros"):
        raise PlanError(
            f'`unused={unused!r}` is not a choice for what is not in the graph of `y`. Give "raise" or "zeros".'
        )


def check_number(y: Collection) -> None:
    """Refuse a `y` that is known not to be one real number."""
    shape, dtypes = attribute(y.made, "shape") or (), {part.dtype for part in y.parts} - {None}
    if len(y.keys) != 1 or y.constants or shape or any(dtype.kind != "f" for dtype in dtypes):
        what = a(type(y.made).__name__)
        if is_dataset(y.made):
            what += f" of the variables {', '.join(map(repr, y.made.data_vars))}"
        else:
            what += "".join(f" of shape {shape} and dtype {dtype}" for dtype in dtypes)
        raise NotDifferentiableError(not_a_number(what))


def not_a_number(what: str) -> str:
    """Return what is said of a `y` that is not one real number."""
    return (
        f"`gradient` needs a `y` that is one real floating-point number; this one is {what}. Reduce it to one, by a "
        "sum for instance, or take the gradient of one of its elements."
    )


def check_floats(moving: Sequence[Collection], called: str, unused: str | None = None) -> None:
    """Refuse what is known to have no derivative; arrays in memory too, which no graph depends on, but for zeros."""
    for one in moving:
        kind = a(type(one.made).__name__)
        for part in one.parts:
            if part.dtype is not None and part.dtype.kind in _CONSTANT:
                raise NotDifferentiableError(
                    f"`{called}` holds {kind} of dtype {part.dtype}, {_no_derivative(called)}. Make it floating point, "
                    f"with `.astype(float)`{', and build `y` from that' if called != 'y' else ''}, or leave it out."
                )
        for name, each in one.constants.items():
            if each.dtype.kind in _CONSTANT + "OV":
                what = f"{kind} with the variable {name!r}" if is_dataset(one.made) else kind
                raise NotDifferentiableError(
                    f"`{called}` holds {what} of dtype {each.dtype}, {_no_derivative(called)}. Leave it out"
                    f"{''.join(_others(one))}."
                )
            if unused != "zeros":
                what = f"{kind} whose variable {name!r} is" if is_dataset(one.made) else f"{kind} that is"
                raise NotDifferentiableError(_in_memory(called, what, one, unused))


def _no_derivative(called: str) -> str:
    return "which has no derivative" if called == "y" else "with respect to which there is no derivative"


def _others(one: Collection) -> Iterator[str]:
    """Yield how to take what there is a derivative in, if there is any."""
    if is_dataset(one.made) and one.parts:
        yield f": `dataset[{[name for name in one.made.data_vars if name not in one.constants]}]`"


def _in_memory(called: str, what: str, one: Collection, unused: str | None) -> str:
    chunk = "dataset = dataset.chunk()" if is_dataset(one.made) else "array = array.chunk()"
    remedies = [f"Make it Dask's, by `{chunk}`, and build `y` from that"]
    remedies += [f"leave it out{others}" for others in _others(one)]
    remedies += ['give `unused="zeros"`'] if unused else []
    return (
        f"`{called}` holds {what} in memory or in a file. No task reads that: it is a constant of the graph of `y`. "
        f"{'; or '.join(remedies)}."
    )
