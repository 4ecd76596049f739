"""Which traced arrays share memory in numpy: changed in place there, one changes the others, and jax's share none.

Each array that is a view, or has one, has a *ghost*: an array of numpy's that nobody reads or writes, in the memory
that it would have. Numpy itself says what is a view of what, by its functions on ghosts; memory that nobody touches
costs nothing.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from typing import Any

import numpy as np

from dagad._engines.xla import lines, refusals
from dagad._errors import NotDifferentiableError
from dagad._tracing.in_place import share_memory
from dagad._tracing.residuals import copy_of, may_change
from dagad._types import Args, Array, Function, Kwargs, Value


def _has_numpy(name: str) -> bool:
    try:
        pkgutil.resolve_name(f"numpy:{name}")
    except AttributeError:  # an older one
        return False
    return True


# What may return views; whatever else numpy returns is new.
_NAMES = """
    reshape ravel transpose permute_dims matrix_transpose swapaxes squeeze moveaxis rollaxis diagonal diag expand_dims
    atleast_1d atleast_2d atleast_3d broadcast_to broadcast_arrays split array_split hsplit vsplit dsplit unstack real
    imag flip fliplr flipud rot90 asarray asanyarray ascontiguousarray asfortranarray array astype einsum real_if_close
    require meshgrid diff linalg.diagonal linalg.matrix_transpose lib.stride_tricks.sliding_window_view
""".split()  # fmt: skip
VIEWS = frozenset(pkgutil.resolve_name(f"numpy:{name}") for name in _NAMES if _has_numpy(name))


def as_now(given: Value) -> Any:
    """Return arguments with copies of the arrays in them that may be written into: jax reads them when it compiles."""
    if isinstance(given, np.ndarray):
        return copy_of(given) if may_change(given) else given
    if type(given) is dict:
        return {name: as_now(each) for name, each in given.items()}
    return type(given)(map(as_now, given)) if type(given) is list or type(given) is tuple else given


def ghost_of(array: Array) -> Any:
    """Return the ghost of a traced array; a number has none that lasts, since nothing shares its memory."""
    if array.ghost is not None:
        return array.ghost
    ghost = np.empty(array.shape, array.dtype)
    if array.ndim:
        array.ghost = ghost
    return ghost


def of_function(func: Function, args: Args, kwargs: Kwargs, found: Value, kind: type[Any]) -> Any:
    """Return what a function of numpy's has given, what is a view marked as such; none is an argument itself."""
    given = [each for each in _leaves((args, list(kwargs.values()))) if type(each) is kind]
    is_view = func in VIEWS and not (func is np.einsum and len(given) > 1)
    if not (is_view or any(found is each for each in given)):
        return found
    args, kwargs = _ghosts(args, kind), {name: _ghosts(each, kind) for name, each in kwargs.items()}
    try:
        with np.errstate(all="ignore"):  # nobody knows what a ghost holds
            theirs = func(*args, **kwargs)
    except Exception:  # with options that only we know, say: then nobody knows what it is
        return found
    ghosts = [each.ghost for each in given if each.ghost is not None]
    return _marked(found, theirs, ghosts, given, kind)


def _marked(found: Value, theirs: Value, ghosts: list[Any], given: list[Any], kind: type[Any]) -> Any:
    if isinstance(found, list | tuple):
        if not isinstance(theirs, list | tuple) or len(theirs) != len(found):
            return found
        parts = [_marked(one, other, ghosts, given, kind) for one, other in zip(found, theirs, strict=True)]
        return type(found)(*parts) if hasattr(found, "_fields") else type(found)(parts)
    if type(found) is not kind:
        return found
    fresh = found.copy() if any(found is each for each in given) else found
    if isinstance(theirs, np.ndarray) and any(np.may_share_memory(theirs, ghost) for ghost in ghosts):
        fresh.ghost = theirs
    return fresh


def _ghosts(value: Value, kind: type[Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_ghosts(each, kind) for each in value)
    return ghost_of(value) if type(value) is kind else value


def _leaves(value: Value) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def changed(array: Array, found: Array) -> Any:
    """Return what an array becomes that is changed in place: numpy keeps its shape and dtype, jax does not."""
    changes, line = array._trace.changes, lines.here()
    if array.ghost is not None and not array.ghost.flags.writeable and changes.found is None:
        changes.found = refusals.of_read_only(line)
    for kept, new, what in ((array.shape, found.shape, "shape"), (array.dtype, found.dtype, "dtype")):
        if kept != new and changes.found is None:
            changes.found = refusals.of_kept(line, what, kept, new)
    changes.note(array, refusals.of_view(line))
    return found.copy() if found is array else found


class Changes:
    """What was changed in place, and by which line, so that it can be told when an array is used that shares it."""

    __slots__ = ("_ghosts", "found")

    def __init__(self) -> None:
        self._ghosts: list[tuple[Any, str]] = []
        self.found: str | None = None

    def note(self, array: Array, sentence: str) -> None:
        """Note that an array was changed: what shares its memory, the array itself by another name too, is stale."""
        if array.ghost is None:
            array.stale = sentence
        else:
            self._ghosts.append((array.ghost, sentence))

    def use(self, array: Array) -> None:
        """Note that an array is used."""
        if self.found is not None:
            return
        if array.stale is not None:
            self.found = array.stale
        elif self._ghosts and array.ghost is not None:
            stale = (sentence for ghost, sentence in self._ghosts if share_memory(ghost, array.ghost))
            self.found = next(stale, None)

    def settle(self) -> None:
        """Refuse what numpy would have done otherwise."""
        if self.found is not None:
            raise NotDifferentiableError(self.found)
