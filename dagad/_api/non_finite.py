"""Which chunk made a sum nan or infinite: looked for when it is, once per function and plan, and said in a warning.

State: `_SOUGHT`, by functions and plans of which something was said, whether the chunk was looked for: it is not after
a long run.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from dagad._api.program import Program
from dagad._errors import CancelledError
from dagad._executors.checkpointed import unwritten
from dagad._executors.evaluation import is_inside_any_task
from dagad._kernels.context import VALUE_AND_GRAD, Mode
from dagad._kernels.finite import bad_row, is_finite
from dagad._kernels.kernel import Unreduced
from dagad._kernels.operation import Operation
from dagad._remembered import Remembered
from dagad._sources.plan import Chunk
from dagad._tracebacks import warn
from dagad._types import Tree, Value
from dagad._values import pytree
from dagad._values.shipping import opened

LONGEST_SOUGHT = 1.0  # seconds that a run may have taken which is done again; looking at rows may take as long
MOST_REMEMBERED = 1024
_SOUGHT: Remembered[bool] = Remembered(MOST_REMEMBERED)
_OF_A_ROW = "Row {} holds nan or infinity: leave such rows out, or fill them in."
_SEE = (
    "Call it with {} to see where that comes from: 0/0, infinity minus infinity, a logarithm or a root of a negative "
    "number."
)


def name_chunk(operation: Operation, leaves: Sequence[Any], total: Value, seconds: float) -> None:
    """Warn of the chunk that gave what is not finite, after a run that took so long.

    Infinity may be meant, as the logarithm of a density is where that is zero: of that the rows have to be the cause.
    """
    floats = filter(pytree.is_differentiable, map(pytree.plain, pytree.flatten(total)[0]))
    has_nan = any(bool(np.any(np.isnan(leaf))) for leaf in floats)
    again = len(operation.plan) == 1 or seconds <= LONGEST_SOUGHT
    key = operation.owner, operation.plan.key, has_nan
    if is_inside_any_task() or _is_known(key, again):  # a chunk's sum is a chunk's
        return
    try:
        plain = [pytree.plain(leaf) for leaf in leaves]
        why = _why(operation, plain, has_nan) if again else _why_long(operation, plain, has_nan, seconds)
    except CancelledError:
        raise
    except Exception:  # the user's, of a second run: he has a value
        return
    if why:
        warn(why)


def warn_of_nan(program: Program, value: Value, gradient: Tree) -> None:
    """Warn of the argument in which a gradient is nan though the value is finite."""
    if is_finite(gradient) or not is_finite(value) or is_inside_any_task():
        return
    leaves = enumerate(pytree.plain(leaf) for leaf in pytree.flatten_with_none(gradient)[0] if leaf is not None)
    bad = [index for index, leaf in leaves if pytree.is_differentiable(leaf) and np.any(np.isnan(leaf))]
    if not bad or _is_known((program.identity, "gradient"), True):
        return
    warn(
        f"`{program.name}` gave a finite value, and a gradient that is nan in {program.leaf_name(bad[0])}. Both "
        "branches of `np.where` are differentiated, the one that is not taken too: make it finite, "
        "`np.where(ok, np.sqrt(np.where(ok, x, 1.0)), 0.0)`. So is what `np.nansum` and `where=` leave out: zero times "
        "nan is nan, so fill gaps before you compute with them, `np.where(ok, y, 0.0)`, and leave the terms out then. "
        "Roots, norms and powers below 1 have no finite slope at "
        'zero. `dask.config.set({"dagad.check-finite": True})` finds the chunk.'
    )


def _is_known(key: Hashable, again: bool) -> bool:
    sought = _SOUGHT.find(key)
    if sought or (sought is not None and not again):
        return True
    _SOUGHT.change(key, lambda _: again)
    return False


def _why_long(operation: Operation, leaves: list[Any], has_nan: bool, seconds: float) -> str:
    """Return what can be said without running anything again; nothing of what may be meant."""
    if not has_nan:
        return ""
    row, said = _first_bad_row(operation, leaves), f"`{operation.kernel.function.name}` gave nan. "
    if row is not None:
        return said + _OF_A_ROW.format(row)
    unsought = f"Which chunk did is not looked for, since that takes as long again ({seconds:.1f} s). "
    return said + unsought + _SEE.format("some of the rows at a time")


def _why(operation: Operation, leaves: list[Any], has_nan: bool) -> str:
    """Return which chunks are not finite, and whether their rows are; nothing where nothing is known."""
    if not has_nan and _first_bad_row(operation, leaves) is None:
        return ""
    bad = _bad_chunks(operation, leaves)
    row = _bad_row(operation, leaves, bad[0]) if bad else None
    if not bad or (row is None and not has_nan):
        return ""
    (number, start, stop), n_chunks = bad[0], len(operation.plan)
    where = f"all {n_chunks} chunks" if len(bad) == n_chunks > 1 else f"chunk {number} (rows {start}:{stop})"
    others = f" and {len(bad) - 1} more of {n_chunks}" if 1 < len(bad) < n_chunks else ""
    said = f"`{operation.kernel.function.name}` gave {'nan' if has_nan else 'infinity'} for {where}{others}. "
    if row is not None:
        return said + _OF_A_ROW.format(row)
    if len(bad) == n_chunks > 1:
        return f"{said}Look at the arguments that all chunks share."
    return said + _SEE.format("these rows")


def _first_bad_row(operation: Operation, leaves: list[Any]) -> int | None:
    began = perf_counter()
    for chunk in operation.plan:
        row = _bad_row(operation, leaves, chunk)
        if row is not None or perf_counter() > began + LONGEST_SOUGHT:
            return row
    return None


class Searched(Unreduced):
    """A chunk function that is run again to see what each chunk gives."""

    __slots__ = ()
    gives = "search"


def _bad_chunks(operation: Operation, leaves: list[Any]) -> list[Chunk]:
    if len(operation.plan) == 1:
        return list(operation.plan)
    with Mode(VALUE_AND_GRAD), unwritten():
        found = replace(operation, kernel=Searched(operation.kernel.function)).call(leaves)
    positions = zip(operation.plan, found.positions, strict=True)
    return [chunk for chunk, at in positions if not all(is_finite(found.stacked[index]) for index, _ in at)]


def _bad_row(operation: Operation, leaves: list[Any], chunk: Chunk) -> int | None:
    """Return the first row of a chunk that is not finite; None if there is none here."""
    if any(map(pytree.is_sharded, leaves)):
        return None
    own = [leaves[leaf] if at is None else leaves[leaf][at] for leaf, at in operation.inputs.targets(chunk.number)]
    row = bad_row(opened(operation.sliced.rows(chunk)), own)
    return None if row is None else chunk.start + row
