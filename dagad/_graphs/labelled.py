"""Objects of xarray: the arrays that they label, and the same labels on other arrays.

What is differentiated are variables; coordinates and attributes come along as they are. A variable that is no
collection of Dask's is a constant of every graph: its own numbers are neither its gradient nor its tangent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from dask.base import is_dask_collection

from dagad._errors import StructureError
from dagad._types import AnyCollection, Tangent


def is_labelled(made: AnyCollection) -> bool:
    """Return whether something is xarray's."""
    return type(made).__module__.partition(".")[0] == "xarray"


def is_dataset(made: AnyCollection) -> bool:
    """Return whether something is a dataset."""
    return is_labelled(made) and hasattr(type(made), "data_vars")


def variables_of(made: AnyCollection) -> dict[Any, Any]:
    """Return xarray's variables by their names: those of a dataset, or the one that an array is."""
    if is_dataset(made):
        return {name: each.variable for name, each in made.data_vars.items()}
    return {made.name: made.variable} if hasattr(type(made), "variable") else {None: made}


def arrays_of(made: AnyCollection) -> Iterator[Any]:
    """Yield the arrays of Dask in a collection; of a collection that labels none, the collection."""
    if not is_labelled(made):
        yield made
    else:
        # Asked for its data, a variable in a file would be read.
        yield from (each.data for each in variables_of(made).values() if is_dask_collection(each))


def constants_of(made: AnyCollection) -> dict[Any, Any]:
    """Return the variables of a collection that are no arrays of Dask's, by their names."""
    if not is_labelled(made):
        return {}
    return {name: each for name, each in variables_of(made).items() if not is_dask_collection(each)}


def with_arrays(made: AnyCollection, arrays: Iterable[Any], *, constants: bool) -> Any:
    """Return the same labels on other arrays; `constants` says whether what is constant stays, or is zero."""
    left, new = iter(arrays), dict[Any, Any]()
    for name, each in variables_of(made).items():
        if is_dask_collection(each):
            new[name] = each.copy(data=next(left))
        elif not constants:
            new[name] = each.copy(data=np.zeros(each.shape, each.dtype))
    if is_dataset(made):
        return made.assign(new)
    return next((made.copy(data=each.data) for each in new.values()), made)


def data_like(primal: AnyCollection, tangent: Tangent) -> list[Any]:
    """Return what a tangent has for each array of its primal: by name and dimension, else in order."""
    if not is_labelled(tangent):
        return [tangent]
    _check_labels(primal, tangent)
    wanted, given = variables_of(primal) if is_labelled(primal) else {}, variables_of(tangent)
    if is_dataset(primal) and is_dataset(tangent):
        if set(given) != set(wanted):
            raise StructureError(
                f"The tangent of a dataset has the variables {_names(given)}, its primal has {_names(wanted)}. Give a "
                "dataset of the same variables, such as `xarray.ones_like(dataset)`; None where nothing moves."
            )
        return [_aligned(each, given[name]) for name, each in wanted.items()]
    if len(wanted) == len(given) == 1 and not (is_dataset(primal) or is_dataset(tangent)):
        return [_aligned(*wanted.values(), *given.values())]
    return [each.data for each in given.values()]


def _aligned(primal: AnyCollection, tangent: Tangent) -> Any:
    if set(primal.dims) != set(tangent.dims):
        raise StructureError(
            f"A tangent has the dimensions {_names(tangent.dims)}, its primal has {_names(primal.dims)}. Give one of "
            "the primal's, such as `xarray.ones_like(primal)`."
        )
    return tangent.transpose(*primal.dims).data


def _check_labels(primal: AnyCollection, tangent: Tangent) -> None:
    ours, theirs = getattr(primal, "indexes", {}), getattr(tangent, "indexes", {})
    for name in ours:
        if name in theirs and not ours[name].equals(theirs[name]):
            raise StructureError(
                f"A tangent has other labels along {name!r} than its primal, or has them in another order. Give "
                "`tangent.reindex_like(primal)`."
            )


def _names(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, names)) or "none"
