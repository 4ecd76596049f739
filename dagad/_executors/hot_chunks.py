"""What runs on a worker in a hot loop: chunks of a reduction on rows that live there, added up by subtrees."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._engines.autograd.patches import patches
from dagad._errors import CancelledError, NotDifferentiableError
from dagad._graphs.linearization import Counters, Pullback, is_scalar, unit_seed
from dagad._graphs.sums import RunningTree, Subtree, assembled, halves
from dagad._operations.chunks import ChunkFunction, Place
from dagad._pytrees.buffers import Layout, Spec, as_bytes
from dagad._pytrees.memory import value_to_run_again
from dagad._pytrees.shipping import PYTHON, Parcel, Portable, Singletons, opened, pack_call
from dagad._sources.plan import AnyPlan, Chunk
from dagad._sources.rows import Rows

VALUE, GRADIENT = "value", "gradient"
PIECES_A_THREAD = 4
FEWEST_STACKED, LARGEST_STACK = 8, 2**20


class HotChunks(Portable):
    """A chunk function with everything that stays the same between evaluations.

    Parameters
    ----------
    function
        The chunk function.
    plan
        How the rows are cut.
    template
        The rows with gaps for what lives on the worker; None where one Shards is all of them.
    specs
        What the leaves look like that are being differentiated.
    names
        Names for the keys in notes on exceptions.
    """

    __slots__ = ("_singletons", "chunks", "function", "layout", "names", "plan", "template")

    def __init__(
        self, function: ChunkFunction, plan: AnyPlan, template: Rows | None, specs: tuple[Spec, ...], names: Any
    ) -> None:
        self.function: ChunkFunction = opened(function)
        self.plan, self.template, self.names = plan, None if template is None else opened(template), names
        sent: list[Any] = [function, template]
        self._singletons = Singletons(one for part in sent if type(part) is Parcel for one in part.singletons)
        self.layout, self.chunks = Layout(specs), list(plan)

    def state(self) -> tuple[Any, ...]:
        return self.function, self.plan, self.template, self.layout.specs, self.names

    def is_current(self) -> bool:
        """Return whether it still is what was sent: what others share with it may have changed with them."""
        return self._singletons.are_as_found()

    def job(self, role: str, arguments: Any, held: HotJob | None, *, keep: bool) -> HotJob:
        """Return one call."""
        theta = self.layout.read(as_bytes(arguments, self.layout.nbytes))
        return HotJob(self, role, theta, held, keep=keep)

    def arguments(self, number: int, rows: Sequence[Any], theta: list[Any]) -> tuple[Any, ...]:
        """Return the arguments of one chunk's task."""
        whole = rows[0] if self.template is None else self.template.joined(iter(rows))
        chunk: Chunk = self.chunks[number]
        return Place(chunk, self.names), whole, theta


def program_of(payload: Sequence[bytes], plan: AnyPlan, specs: tuple[Spec, ...], names: Any) -> list[memoryview]:
    """Return what a worker opens as HotChunks, from a function and a template that are pickled already.

    The payload's buffers are not copied: they may hold constants of many megabytes.
    """
    parcel = pack_call(_opened_program, Parcel(tuple(payload), PYTHON), plan, specs, names)
    return [memoryview(part) for part in parcel.payload]


def _opened_program(parcel: Parcel, plan: AnyPlan, specs: tuple[Spec, ...], names: Any) -> HotChunks:
    function, template = parcel.open()
    return HotChunks(function, plan, template, specs, names)


class HotJob:
    """One call of a program.

    =========  ==================================================================================================
    `_tapes`   value, pullback and its bytes, by chunk, where a value was computed and a gradient may be asked for
    =========  ==================================================================================================
    """

    def __init__(self, program: HotChunks, role: str, theta: list[Any], held: HotJob | None, *, keep: bool) -> None:
        self._program, self._role, self._theta = program, role, theta
        self._tapes: dict[int, tuple[Any, Pullback, Callable[[], int]]] = {} if held is None else held._tapes
        self._counters, self._keep = Counters(), keep

    def split(self, parts: Sequence[Subtree], n_threads: int) -> list[list[Subtree]]:
        """Return what each thread is to compute: runs of subtrees, of about as many chunks each."""
        parts = [Subtree(*part) for part in parts]
        if n_threads == 1:
            return [parts]
        n_chunks = len(self._program.chunks)
        while len(parts) < PIECES_A_THREAD * n_threads:
            finer = [half for part in parts for half in halves(part, n_chunks)]
            if len(finer) == len(parts):
                break
            parts = finer
        share = -(-len(parts) // n_threads)
        return [parts[start : start + share] for start in range(0, len(parts), share)]

    def part(self, part: Subtree, rows: Callable[[int], Sequence[Any]], stopped: Callable[[], bool]) -> list[Any]:
        """Return the value and the cotangents of a subtree's chunks, each added up."""
        start, stop = part[0], min(part[0] + (1 << part[1]), len(self._program.chunks))
        layout = self._program.layout
        total: Any = Stack(layout) if (stop - start) * layout.nbytes <= LARGEST_STACK else RunningTree()
        with patches:  # once for all chunks: each would install them anew
            for number in range(start, stop):
                if stopped():
                    raise CancelledError("Nobody waits for this evaluation any more.")
                total.push(self._chunk(number, rows))
        added: list[Any] = total.total()
        return added

    def _chunk(self, number: int, rows: Callable[[int], Sequence[Any]]) -> list[Any]:
        function, tape = self._program.function, self._tapes.pop(number, None)
        if tape is not None and self._role == GRADIENT:
            return [tape[0], *tape[1](unit_seed(tape[0]))[0]]
        args = self._program.arguments(number, rows(number), self._theta)
        if self._role == GRADIENT:
            value, gradient, _, _ = function.preaccumulate(self._counters, *args)
            if gradient is None or not is_scalar(value):
                raise _unfit(value)
            return [value, *gradient[0]]
        if self._keep:
            value, pullback, nbytes = function.record(*args)
            self._tapes[number] = value, pullback, nbytes
        else:
            value = value_to_run_again(function, args)
        if not is_scalar(value):
            raise _unfit(value)
        return [value]

    def nbytes(self) -> int:
        """Return how much memory the tapes hold."""
        return sum(nbytes() for _, _, nbytes in list(self._tapes.values()))  # they may be pulled meanwhile

    def reply(self, parts: Sequence[Subtree], sums: dict[Any, Any]) -> tuple[dict[str, Any], Any]:
        """Return the sums of the subtrees asked for in one buffer, with the dtype of the values."""
        by_part = {Subtree(*part): added for part, added in sums.items()}
        added = [assembled(by_part, len(self._program.chunks), Subtree(*part)) for part in parts]
        layout = reply_layout(self._program.layout.specs, np.asarray(added[0][0]).dtype.str, len(added[0]) > 1)
        buffer = np.empty((len(parts), layout.nbytes), np.uint8)
        gaps = [layout.write(leaves, row) for leaves, row in zip(added, buffer, strict=True)]
        return {"dtype": layout.specs[0].dtype, "gaps": gaps}, buffer.reshape(-1)


@functools.lru_cache(64)
def reply_layout(theta: tuple[Spec, ...], dtype: str, with_gradient: bool) -> Layout:
    """Return how a value of some dtype and the cotangents of theta stand in a reply."""
    value = Spec(dtype, (), "C", "numpy")
    return Layout((value, *(theta if with_gradient else ())))


class Stack:
    """Small terms, added up a level of the tree at a time: the same sums by fewer calls."""

    __slots__ = ("_layout", "_terms")

    def __init__(self, layout: Layout) -> None:
        self._layout, self._terms = layout, list[list[Any]]()

    def push(self, term: list[Any]) -> None:
        """Add the next term: a value, and cotangents of the layout's leaves or none."""
        self._terms.append(term)

    def total(self) -> list[Any]:
        """Return the sum of all terms."""
        if len(self._terms) < FEWEST_STACKED or not all(map(self._is_plain, self._terms)):
            tree = RunningTree()
            for term in self._terms:
                tree.push(term)
            total: list[Any] = tree.total()
            return total
        columns = [_added_up(np.stack(column)) for column in zip(*self._terms, strict=True)]
        return [columns[0][()], *columns[1:]]

    def _is_plain(self, term: list[Any]) -> bool:
        """Return whether a term is of numbers of double precision only, in arrays."""
        if type(term[0]) is not np.float64 and type(term[0]) is not float:
            return False
        return all(type(leaf) is np.ndarray and leaf.dtype == np.float64 for leaf in term[1:])


def _added_up(stack: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    while len(stack) > 1:
        even = len(stack) // 2 * 2
        sums = stack[:even:2] + stack[1:even:2]
        stack = np.concatenate([sums, stack[even:]]) if even < len(stack) else sums
    return np.asarray(stack[0])


def _unfit(value: Any) -> NotDifferentiableError:
    return NotDifferentiableError(
        f"A chunk returned a {type(value).__name__}; only the sum of real numbers takes the fast road. The graph takes "
        "anything."
    )
