"""A kernel on chunks of Shards that are being differentiated: it is given their rows unpacked, and gives packed ones.

Outside of a chunk's task such rows are one leaf, see `_sources/packed`; the kernel itself knows of arrays only. What
belongs to these rows, tangents, cotangents and seeds, comes and goes packed like them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dagad._graphs.linearization import PullbackFunction
from dagad._kernels.chunks import ChunkContext
from dagad._kernels.kernel import Groups, Kernel, Outputs
from dagad._sources.packed import Unpacked, has_packed, packed, unpacked_seeds
from dagad._types import AnyRows, Cotangents
from dagad._values.shipping import opened


class Unpacking:
    """A kernel that takes packed rows among its sliced leaves, by one that takes their leaves."""

    __slots__ = ("_kernel",)

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def value(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups) -> Outputs:
        """Run one chunk, tracing nothing."""
        leaves = _Leaves(self._kernel, sliced)
        return leaves.packed_outputs(leaves.kernel.value(context, leaves.among(rows), shared, leaves.groups))

    def record(
        self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups
    ) -> tuple[Any, PullbackFunction | None, Callable[[], int]]:
        """Run one chunk traced; see `Kernel.record`."""
        leaves = _Leaves(self._kernel, sliced)
        parts, pull, nbytes = leaves.kernel.record(context, leaves.among(rows), shared, leaves.groups)
        return leaves.packed_outputs(parts), None if pull is None else leaves.packing(pull), nbytes


class _Leaves:
    """The sliced leaves of one chunk, unpacked in `groups`, the kernel for these, and what packs others like them."""

    __slots__ = ("_each", "_outputs", "_primal", "groups", "kernel")

    def __init__(self, kernel: Kernel, sliced: Groups) -> None:
        groups = kernel.unpacked(sliced)
        self.kernel = kernel.on_leaves(groups)
        self._each = [one for group in groups for one in group]
        self._outputs: Sequence[Unpacked | None] | None = kernel.stacked_like(groups)
        self._primal = [one for one in groups[0] if one is not None]
        self.groups = [
            [part for leaf, one in zip(group, some, strict=True) for part in ([leaf] if one is None else one.leaves)]
            for group, some in zip(sliced, groups, strict=True)
        ]

    def among(self, rows: AnyRows) -> Any:
        """Return the rows of the chunk with gaps for the leaves."""
        return opened(rows).with_unpacked(iter(self._primal))

    def packed_outputs(self, parts: Outputs) -> Outputs:
        """Return what a kernel gave, with what belongs to packed rows packed like them."""
        stacked = list(parts.stacked) if self._outputs is None else packed(self._outputs, parts.stacked)
        return parts._replace(stacked=stacked)

    def packing(self, pull: PullbackFunction) -> PullbackFunction:
        """Return a pullback that takes packed seeds, and gives packed cotangents."""

        def pullback(seeds: Cotangents) -> tuple[Any, ...]:
            *shared, sliced = pull(self._seeds(seeds))
            return (*shared, packed(self._each, sliced))

        return pullback

    def _seeds(self, seeds: Cotangents) -> list[Any]:
        """Return one seed for each leaf of what is reduced and stacked."""
        if self._outputs is None:
            return list(seeds)
        n_reduced = len(seeds) - len(self._outputs)
        return [*seeds[:n_reduced], *unpacked_seeds(self._outputs, seeds[n_reduced:])]


def zeros_of(kernel: Kernel, sliced: Groups) -> list[Any]:
    """Return the cotangents of the sliced leaves of a chunk that is not pulled: None, or packed zeros."""
    if not has_packed(sliced):
        return [None] * sum(map(len, sliced))
    each = [one for group in kernel.unpacked(sliced) for one in group]
    return [None if one is None else one.packed(iter([None] * len(one.leaves))) for one in each]
