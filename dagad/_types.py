"""Floor: what annotations call values of many types, plain or traced: words for readers, as to mypy all are `Any`.

=============================  ===================================================================================
`Array`                        an array or a number, plain or traced
`Leaf`                         a leaf of a pytree: an array, a number, Shards, or what somebody traces in its place
`Tree`                         a pytree of leaves
`Value`                        what a function gives: a pytree
`Cotangent`, `Tangent`         that of one leaf, None for zero
`Cotangents`, `Tangents`       those of several leaves
`AnyRows`                      rows of a chunk: arrays, lists, tables or what else was cut
`Function`                     a function of the user's, of numpy's or of autograd's
`Args`, `Kwargs`               what a function is called with, as a tuple and as a dict
`Argnums`, `Axis`, `DType`,    what autograd and numpy call so
`Shape`
`Index`                        what stands in brackets after an array
`AnyNode`, `AnyTask`           a node of a tape, a task of a Dask graph
`AnyCollection`                a collection of Dask's, or an object of xarray's that holds some
`AnyDistribution`              a distribution of `scipy.stats`
`AnyEngine`, `AnyPolicy`,      what users give by these names: an object, a word or None
`AnyScheduler`
=============================  ===================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Array: TypeAlias = Any
Leaf: TypeAlias = Any
Tree: TypeAlias = Any
Value: TypeAlias = Any
Cotangent: TypeAlias = Any
Cotangents: TypeAlias = Any
Tangent: TypeAlias = Any
Tangents: TypeAlias = Any
AnyRows: TypeAlias = Any
AnyNode: TypeAlias = Any
AnyTask: TypeAlias = Any
AnyCollection: TypeAlias = Any
AnyDistribution: TypeAlias = Any
AnyEngine: TypeAlias = Any
AnyPolicy: TypeAlias = Any
AnyScheduler: TypeAlias = Any
Args: TypeAlias = Any
Kwargs: TypeAlias = Any
Argnums: TypeAlias = Any
Axis: TypeAlias = Any
DType: TypeAlias = Any
Shape: TypeAlias = Any
Index: TypeAlias = Any
Function: TypeAlias = Callable[..., Any]
