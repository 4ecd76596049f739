"""The pullback of a kernel for many seeds, as a kernel: each chunk is recorded once, and nobody differentiates it.

It is what is run where residuals were not left, or are lost. Chunks do what they do with residuals, so bits are those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dagad._engines.own_arrays import BLOCK
from dagad._graphs.linearization import pulled_many
from dagad._kernels.chunks import ChunkContext
from dagad._kernels.kernel import Groups, Kernel, Outputs, Seeds
from dagad._kernels.unpacking import Unpacking, zeros_of
from dagad._sources.packed import has_packed, is_packed
from dagad._types import AnyRows
from dagad._values import pytree
from dagad._values.blocks import is_seed
from dagad._values.canonical import canonical
from dagad._values.shipping import opened

# A job takes no more seeds than a call of residents does, or a task of a graph where rows in Shards belong to each.
# What all chunks give may be held at the same time, until it is written down: no more than so many bytes of it.
MOST_SEEDS, MOST_IN_SHARDS, MOST_BYTES = 64, 16, 2**28


def n_at_once(shared: Sequence[Any], sliced: Sequence[Any], n_chunks: int) -> int:
    """Return for how many seeds the cotangents of some leaves are asked for at once; 1 where they take much memory."""
    here = [leaf for leaf in sliced if not pytree.is_sharded(leaf)]
    most = MOST_SEEDS if len(here) == len(sliced) else MOST_IN_SHARDS
    nbytes = n_chunks * sum(map(pytree.nbytes_of, shared)) + sum(map(pytree.nbytes_of, here))
    # Engines show in the bits which seeds they pull at once: each is to keep its place among those.
    return max(min(MOST_BYTES // max(nbytes, 1), most) // BLOCK * BLOCK, 1)


class Pullbacks(Kernel):
    """The pullback of a function for `count` seeds.

    Groups of leaves: those of the function, then one of seeds, all of the first one, then of the second: with the
    shared leaves for what it reduces, with the sliced ones for what it stacks; None for zeros. So come the cotangents,
    too.
    """

    __slots__ = ("count", "function", "reduces", "stacks")
    gives = "gradient"
    unpacks_itself = True

    def __init__(self, function: Kernel, count: int, reduces: bool, stacks: bool) -> None:
        self.function: Kernel = opened(function)
        self.count, self.reduces, self.stacks = count, reduces, stacks

    def state(self) -> tuple[Any, ...]:
        return self.function, self.count, self.reduces, self.stacks

    def value(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups = ()) -> Outputs:
        """Record one chunk and pull its seeds; one that has none is not recorded."""
        function = self.function
        own, of_rows = (sliced[:-1], sliced[-1]) if function.stacks and sliced else (sliced, ())
        seeds, shared, pull = list(self._seeds(shared[-1], of_rows)), shared[:-1], None
        if any(some is not None for some in seeds):
            made = Unpacking(function) if has_packed(own) else function
            pull = made.record(context, rows, shared, own)[1]
        found = [None] * self.count if pull is None else pulled_many(pull, seeds)
        n_shared, n_own = (sum(map(len, groups)) for groups in (shared, own))
        zeros = zeros_of(function, own) if n_own else []
        of_shared = [[None] * n_shared if parts is None else parts[0] for parts in found] if n_shared else []
        of_own = [zeros if parts is None else parts[-1] for parts in found] if n_own else []
        return Outputs([part for parts in of_shared for part in parts], [part for parts in of_own for part in parts])

    def _seeds(self, reduced: Sequence[Any], stacked: Sequence[Any]) -> Iterator[Seeds | None]:
        """Yield the seeds of what the function gives, one after the other; None where all are zero."""
        n_reduced, n_stacked = len(reduced) // self.count, len(stacked) // self.count
        for number in range(self.count):
            mine = [
                *reduced[number * n_reduced : (number + 1) * n_reduced],
                *stacked[number * n_stacked : (number + 1) * n_stacked],
            ]
            yield list(map(canonical, mine)) if any(is_packed(seed) or is_seed(seed) for seed in mine) else None

    @property
    def name(self) -> str:
        """What the user's function is called, and which derivative of it this is."""
        return f"pullbacks_{self.function.name}"

    @property
    def signature(self) -> tuple[Any, ...]:
        """What tells derivatives of one function apart: they don't cost the same."""
        return type(self), self.count, *self.function.signature
