"""What a user gives as the tangent of a collection -> a reference to a tangent for each of its keys."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from dask.base import is_dask_collection
from dask.delayed import delayed

from dagad._errors import StructureError
from dagad._graphs.collections import Collection, KeyedCollection, attribute
from dagad._graphs.labelled import data_like
from dagad._types import Tangent
from dagad_scheduler.private import DataNode, TaskRef


def directions(moving: Collection, tangent: Tangent) -> tuple[list[Any], list[Collection]]:
    """Return a tangent for each key of a collection, None for zero, and the collections that these are in."""
    found: list[Any] = []
    needed: list[Collection] = []
    for part, each in zip(moving.parts, _by_part(moving, tangent), strict=True):
        if each is None:
            found += [None] * len(part.keys)
        elif part.chunks is not None and not is_dask_collection(each):
            found += [DataNode(None, block) for block in _blocks(part, np.asarray(each))]
        else:
            needed.append(Collection.of(_of_same_cut(part, each)))
            found += map(TaskRef, needed[-1].keys)
    return found, needed


def _by_part(moving: Collection, tangent: Tangent) -> Sequence[Any]:
    count = len(moving.parts)
    if tangent is None:
        return [None] * count
    held = data_like(moving.made, tangent)
    if len(held) != count:
        raise StructureError(
            "The tangent of a dataset is no dataset of the same variables. Give one, such as "
            "`xarray.ones_like(dataset)`; None where nothing moves."
        )
    return held


def _of_same_cut(part: KeyedCollection, tangent: Tangent) -> Any:
    """Return a tangent as a collection with a key for each of a part's."""
    if not is_dask_collection(tangent):
        return delayed(tangent)
    if part.chunks is not None and attribute(tangent, "chunks") not in (None, part.chunks):
        _check_shape(part, tangent)
        tangent = tangent.rechunk(part.chunks)
    found = len(Collection.of(tangent).keys)
    if found != len(part.keys):
        raise StructureError(
            f"A tangent has {found} pieces, its primal has {len(part.keys)}. Give a collection of the same kind, cut "
            "like the primal."
        )
    return tangent


def _check_shape(part: KeyedCollection, tangent: Tangent) -> None:
    shape = tuple(map(sum, part.chunks))
    if any(map(math.isnan, shape)):
        raise StructureError(
            "The primal is a dask array of unknown chunks, so that a tangent can't be cut like it. Call its "
            "`compute_chunk_sizes()` first."
        )
    if tangent.shape != shape:
        raise StructureError(
            f"A tangent has shape {tangent.shape}, its primal has shape {shape}. Give one of the primal's shape."
        )


def _blocks(part: KeyedCollection, tangent: Tangent) -> list[Any]:
    _check_shape(part, tangent)
    bounds = [itertools.pairwise(itertools.accumulate(sizes, initial=0)) for sizes in part.chunks]
    cuts = itertools.product(*([slice(*pair) for pair in pairs] for pairs in bounds))
    return [np.array(tangent[at]) for at in cuts]
