"""The kernel of a sum, as its engine wants to see rows: one that compiles is to see few shapes, and no long loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dagad._kernels.chunks import ChunkFunction
from dagad._kernels.cuts import ByItem, ByLength
from dagad._kernels.items import item_sum
from dagad._kernels.joins import Added
from dagad._kernels.kernel import Kernel, Summed
from dagad._kernels.over_parts import OverParts
from dagad._sources.plan import AnyPlan
from dagad._tracing.flat_functions import Engine, Traits
from dagad._types import Function


def sum_by_length(function: ChunkFunction, plan: AnyPlan) -> Kernel:
    """Return the kernel of a sum over rows."""
    if function.traits.pieces is None:
        return Summed(function)
    return OverParts(function, ByLength(function.engine, plan.grainsize), Added())


def sum_by_item(fun: Function, engine: Engine) -> tuple[Any, Callable[[ChunkFunction], Kernel]]:
    """Return what is called, and as which kernel, to sum a function of one item."""
    if Traits.of(engine).pieces is None:
        return item_sum(fun, engine), Summed
    return fun, lambda function: OverParts(function, ByItem(keeps=True), Added())
