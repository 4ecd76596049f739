"""What a task holds that jax does not differentiate: constants, on the device once; a function and words, by digests.

State, for all engines of a process, since each program brings its own:

============  ========================================================================================================
`_CONTENTS`   digests of functions, by their code, with the fingerprints that say whether they still are right
`_ON_DEVICE`  arrays that nobody can write into, such as those of Shards, on the device
`_STAGING`    memory for copies of others, for as long as an evaluation uses them
============  ========================================================================================================
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np

from dagad._config import setting
from dagad._engines.own_arrays import OnDevice, of_dtype
from dagad._engines.staging import ALIGNMENT, Staging
from dagad._engines.xla.conversions import LONG
from dagad._engines.xla.refusals import LEAVE
from dagad._errors import NotDifferentiableError, PortabilityError, StructureError
from dagad._remembered import Remembered
from dagad._tracing.flat_functions import Mark, Side
from dagad._types import Array, Leaf
from dagad._values import pytree
from dagad._values.digest import digest
from dagad._values.fingerprint import fingerprint, identity_of, same

NAME = "jax"
MOST_CONTENTS = 512


class KeptConstants:
    """What is made of the constants of one side of a task, once for all that it lives."""

    __slots__ = ("key", "numbers")

    def __init__(self, side: Side) -> None:
        partition = side.constants()
        refuse_own(partition.taken)
        self.numbers = [_ON_DEVICE(one) if np.ndim(one) else one for one in partition.taken]
        taken = set(partition.positions)
        kinds = [0 if i in taken else 1 + (type(leaf) is Mark) for i, leaf in enumerate(partition.leaves)]
        rest = [leaf for kind, leaf in zip(kinds, partition.leaves, strict=True) if kind == 1]
        refuse_own(rest)
        structure: Any = partition.treedef
        if any(
            isinstance(node[0], type) for node in pytree.metadata_of(structure)
        ):  # records, whose metadata may change
            structure, rest = None, [*rest, partition.treedef]
        contents = _contents(side.code, rest) if side.code or rest else None
        self.key: Hashable = structure, tuple(kinds), tuple(map(shape_of, self.numbers)), contents


def refuse_own(parts: Sequence[Any]) -> None:
    """Raise if a task was given jax's own arrays, or what stands for them in a function that is being compiled."""
    for part in parts:
        if type(part) in _NUMPYS:
            continue
        if isinstance(part, jax.Array):
            _refuse_jax(part)
        if hasattr(type(part), "refuse_engine"):  # a column of a table that holds no numbers
            part.refuse_engine(NAME)
        if pytree.has_own_operators(type(part)):
            raise NotDifferentiableError(
                f"A task for jax was given a `{type(part).__module__}.{type(part).__qualname__}`, whose operators are "
                "its own, as the product of matrices is `*` there, and jax has only ordinary arrays. Give it "
                f"`np.asarray(m)`, and write `m @ x`, or {LEAVE}."
            )


def refuse_long(leaves: Sequence[Any]) -> None:
    """Raise if there is no such array in jax as one of those that are differentiated."""
    for leaf in leaves:
        if isinstance(leaf, np.ndarray) and leaf.dtype in LONG:
            raise StructureError(of_dtype(NAME, leaf.dtype))


_NUMPYS = frozenset({np.ndarray, np.float64, float, int})


def _refuse_jax(own: object) -> None:
    if isinstance(own, jax.core.Tracer):
        raise NotDifferentiableError(
            "A reduction or map runs inside of a function that jax is compiling, and was given one of its values. Put "
            "the reduction around that function, or write the sum with `jax.numpy` there."
        )
    raise StructureError(
        "A reduction, map or task was given an array of jax's own. Give it numpy's, `np.asarray(array)`: they are put "
        "on the device where the chunks run, once for data that `dagad.shard` has placed."
    )


_WORDS = frozenset({str, bytes, int, bool})


def _contents(code: tuple[Any, ...], rest: list[Any]) -> Hashable:
    """Return what stands for a function and for constants that are no numbers, and changes when anything in them does.

    Anything else goes by its digest, which takes a millisecond: where nothing can change unseen, it is remembered.
    """
    if not code and _WORDS.issuperset(map(type, rest)):
        return tuple((type(word).__name__, word) for word in rest)
    found = fingerprint(code, tuple(rest), here=True)
    who = identity_of(code[0]) if code else None
    known = _CONTENTS.find(who) if found is not None else None
    if known is not None and same(known[0], found):
        return known[1]
    try:
        made = digest(code, rest, here=True)
    except PortabilityError:
        return object()  # equal to nothing: it is compiled again for each evaluation
    if found is not None:
        _CONTENTS.change(who, lambda _: (found, made))
    return made


def _put(array: Array) -> Any:
    placed = jax.device_put(array, may_alias=False)
    return placed if placed.dtype == array.dtype else None


def shape_of(leaf: Leaf) -> Hashable:
    """Return by what a leaf is told from others that are compiled for."""
    if type(leaf) is np.ndarray:
        return leaf.shape, leaf.dtype.str
    if isinstance(leaf, np.ndarray | np.generic | jax.Array):
        return leaf.shape, leaf.dtype.str if isinstance(leaf, np.ndarray) else str(leaf.dtype)
    return type(leaf).__name__  # Python's own take the dtype of what they meet


_CONTENTS: Remembered[tuple[Any, str]] = Remembered(MOST_CONTENTS)
_STAGING = Staging(lambda: setting("keep-freed-memory") or 0)


def _copied(array: Array) -> Any:
    """Return an array that XLA may take as it lies, or has to copy: not one that lies so and may be written into."""
    copy = _STAGING.copy_of(array)
    if copy is not None:
        return copy
    return array.copy() if array.ctypes.data % ALIGNMENT == 0 else array


_ON_DEVICE = OnDevice(_put, NAME, _copied)
