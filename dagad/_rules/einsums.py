"""`numpy.einsum` in all its forms: autograd knows subscripts in letters, each once at an array and of one length."""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._tracing.by_definition import as_gather, rules_of
from dagad._tracing.operands import array_of
from dagad._tracing.rules import cast, own_primitive
from dagad._types import Array, DType
from dagad._values import pytree

plain = pytree.plain
_LETTERS = string.ascii_uppercase + string.ascii_lowercase  # of the numbers of indices, in numpy's order


def einsum(
    *operands: Any, optimize: object = False, dtype: DType = None, casting: str = "safe", order: str = "K"
) -> Any:
    """Return a sum of products, of traced arrays and others."""
    subscripts, arrays = _spelled(operands)
    if dtype is None and order == "K" and _is_usual(subscripts.partition("->")[0].split(","), arrays):
        return anp.einsum(subscripts, *arrays, optimize=optimize)
    return _of_any_form()(subscripts, *arrays, optimize=optimize, dtype=dtype, casting=casting, order=order)


def _spelled(operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return the subscripts in letters, and the arrays."""
    if isinstance(operands[0], str):
        return operands[0].replace(" ", ""), list(map(array_of, operands[1:]))
    end = len(operands) // 2 * 2
    subscripts = ",".join(map(_in_letters, operands[1:end:2]))
    given = [f"->{_in_letters(each)}" for each in operands[end:]]
    return "".join((subscripts, *given)), list(map(array_of, operands[:end:2]))


def _in_letters(indices: Sequence[Any]) -> str:
    return "".join("..." if each is Ellipsis else _LETTERS[each] for each in indices)


def _lengths(written: str, array: Array) -> list[tuple[str, int]]:
    """Return the letters at an array with the lengths of its axes; those of an ellipsis have none."""
    shape = np.shape(plain(array))
    head, _, tail = written.partition("...")
    return [*zip(head, shape, strict=False), *zip(reversed(tail), reversed(shape), strict=False)]


def _is_usual(written: Sequence[str], arrays: Sequence[Any]) -> bool:
    found: dict[str, int] = {}
    for each, array in zip(written, arrays, strict=False):
        lengths = _lengths(each, array)
        if len(dict(lengths)) < len(lengths) or any(found.setdefault(*pair) != pair[1] for pair in lengths):
            return False
    return True


@functools.cache
def _of_any_form() -> Any:
    """Return `einsum` as a primitive: that of diagonals, where an index stands twice, each as long as the longest."""

    def einsum(subscripts: str, *operands: Any, **options: Any) -> Any:
        return np.einsum(subscripts, *operands, **options)

    return own_primitive(einsum, *rules_of("einsum", _definition))


def _definition(
    subscripts: str,
    *operands: Any,
    optimize: object = False,
    dtype: DType = None,
    casting: object = None,
    order: object = None,
) -> Any:
    del casting, order
    left, arrow, right = subscripts.partition("->")
    once = [each for each in sorted({*left} - {*".,"}) if left.count(each) == 1]
    right = right if arrow else "..." * ("..." in left) + "".join(once)
    kept, taken = [], []
    for written, operand in zip(left.split(","), operands, strict=True):
        head, dots, tail = written.partition("...")
        others = dots + "".join(dict.fromkeys(head + tail))
        operand = operand if dtype is None else cast(operand, dtype)  # numpy multiplies and adds in it
        taken.append(operand if written == others else _diagonals(f"{written}->{others}", operand))
        kept.append(others)
    longest: dict[str, int] = {}
    for written, operand in zip(kept, taken, strict=True):
        for letter, length in _lengths(written, operand):
            longest[letter] = max(length, longest.get(letter, length)) if length != 1 else longest.get(letter, 1)
    full = [_stretched(*pair, longest) for pair in zip(kept, taken, strict=True)]
    return anp.einsum(f"{','.join(kept)}->{right}", *full, optimize=optimize)


def _diagonals(subscripts: str, operand: Array) -> Any:
    return as_gather(functools.partial(np.einsum, subscripts), 0)(operand)


def _stretched(written: str, operand: Array, longest: dict[str, int]) -> Any:
    """Return an operand whose axes are as long as those of the others with the same index."""
    shape = list(np.shape(plain(operand)))
    head, _, tail = written.partition("...")
    shape[: len(head)] = [longest[letter] for letter in head]
    shape[len(shape) - len(tail) :] = [longest[letter] for letter in tail]
    return operand if tuple(shape) == np.shape(plain(operand)) else anp.broadcast_to(operand, tuple(shape))
