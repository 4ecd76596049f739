"""Pytrees: nested structures taken apart into leaves and put together again. The only user of optree.

State: `_tree_flatten`, which is optree's until the program ends; see `_ending`.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import optree

from dagad._ending import end_other_threads
from dagad._errors import StructureError

NAMESPACE = "dagad"  # where records are looked up; it inherits what is registered globally
TreeDef = optree.PyTreeSpec

_ARRAYS = frozenset({np.ndarray, np.memmap})
_tree_flatten = optree.tree_flatten
atexit.register(end_other_threads, globals(), "_tree_flatten")
_BARE = frozenset({np.ndarray, np.float64, float})
_A_LEAF: Any = 0.0
_LEAF: TreeDef = optree.tree_structure(_A_LEAF, namespace=NAMESPACE)
_FLOATS = (float, complex, np.floating, np.complexfloating)


def flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeDef]:
    """Return the leaves and the structure; None is structure, not a leaf."""
    if type(tree) in _BARE:  # optree needs a microsecond to find that out
        return [tree], _LEAF
    leaves, treedef = _tree_flatten(tree, is_leaf, namespace=NAMESPACE)
    return leaves, treedef


def flatten_with_none(tree: Any) -> tuple[list[Any], TreeDef]:
    """Return the leaves, None among them, and the structure."""
    leaves, treedef = _tree_flatten(tree, none_is_leaf=True, namespace=NAMESPACE)
    return leaves, treedef


def unflatten(treedef: TreeDef, leaves: Sequence[Any]) -> Any:
    """Put leaves back into their structure."""
    return optree.tree_unflatten(treedef, leaves)


def subtrees(treedef: TreeDef, tree: Any) -> list[Any]:
    """Return what stands in `tree` where `treedef` has its leaves; None is allowed there."""
    try:
        return treedef.flatten_up_to(tree)
    except (ValueError, TypeError) as error:
        raise StructureError(f"A cotangent has not the structure of what it belongs to. {error}") from None


def paths(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[str]:
    """Return how to write each leaf, such as ``['beta'][0]``."""
    return [accessor.codify("") for accessor in flatten(tree, is_leaf)[1].accessors()]


def is_leaf(obj: Any) -> bool:
    """Return whether something has no parts; None is a leaf too."""
    leaf: bool = optree.tree_is_leaf(obj, none_is_leaf=True, namespace=NAMESPACE)
    return leaf


def is_differentiable(leaf: Any) -> bool:
    """Return whether a leaf is real or complex floating point; all else is constant."""
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind in "fc"
    return isinstance(leaf, _FLOATS)


def shape_of(leaf: Any) -> tuple[int, ...]:
    """Return the shape of a numeric leaf; that of a number is ()."""
    return leaf.shape if isinstance(leaf, np.ndarray) else ()


def leaf_seeds(value: Any, cotangent: Any) -> list[Any]:
    """Return the cotangents of the leaves of `value`; None for all when there is none."""
    if type(value) is np.float64 or type(value) is np.ndarray or type(value) is float:
        return [cotangent]
    if cotangent is None:
        return [None] * len(flatten(value)[0])
    # Where the value is None a sum that it went into may still send something: it belongs to other terms.
    leaves, treedef = flatten_with_none(value)
    parts = treedef.flatten_up_to(cotangent)
    return [part for leaf, part in zip(leaves, parts, strict=True) if leaf is not None]


def zeros_like(leaf: Any) -> Any:
    """Return zeros of the leaf's own shape and dtype; None for what has no derivative."""
    if isinstance(leaf, np.ndarray):
        return np.zeros(leaf.shape, leaf.dtype) if leaf.dtype.kind in "fciub" else None
    if is_placed(leaf):
        return leaf.zeros()
    if isinstance(leaf, bool | int | float | complex | np.number | np.bool_):
        return type(leaf)(0)
    return None


def check_same_structure(expected: TreeDef, got: TreeDef, what: str) -> None:
    """Raise unless two structures are equal."""
    if expected != got:
        raise StructureError(f"{what}: expected the structure {_show(expected)}, got {_show(got)}.")


def _show(treedef: TreeDef) -> str:
    text = str(treedef).removeprefix("PyTreeSpec(").removesuffix(")")
    return text.replace(f", namespace={NAMESPACE!r}", "").replace(", NoneIsLeaf", "")


def cast_like(cotangent: Any, leaf: Any, what: str) -> Any:
    """Return a cotangent with its leaf's dtype, after checking that it has the leaf's shape."""
    if type(cotangent) is np.ndarray and type(leaf) is np.ndarray:
        if cotangent.shape == leaf.shape and cotangent.dtype == leaf.dtype:
            return cotangent
    if np.shape(cotangent) != shape_of(leaf):
        raise StructureError(
            f"{what} of shape {np.shape(cotangent)} where one of shape {shape_of(leaf)} belongs. "
            "A cotangent has the shape of what it belongs to."
        )
    dtype = leaf.dtype if isinstance(leaf, np.ndarray | np.generic) else np.dtype(type(leaf))
    if dtype.kind != "c" and np.iscomplexobj(cotangent):
        cotangent = np.real(cotangent)
    return np.asarray(cotangent, dtype) if isinstance(leaf, np.ndarray) else dtype.type(cotangent)


_OWN_DTYPES = {char: np.dtype(char) for char in "bBhHiIlLqQefdgFDG?"}


def settled(leaf: Any) -> Any:
    """Return the leaf as this process would have made it: with its own dtype object, and aligned.

    A dtype that came out of a pickle equals ours but is another object, and numpy then misses its fast paths:
    ``np.add.at``, which is autograd's rule for ``x[index]``, becomes fifty times slower. An array that points into a
    message may begin at any byte; numpy then takes other roads, without BLAS, which are slower and round differently.
    """
    if type(leaf) is np.ndarray:
        own = _OWN_DTYPES.get(leaf.dtype.char)
        if own is not None and own is not leaf.dtype and own == leaf.dtype:
            leaf = leaf.view(own)
        if not leaf.flags.aligned:
            leaf = leaf.copy("K")
    return leaf


def laid_out(leaf: Any) -> Any:
    """Return the leaf as it would arrive in another process: settled and contiguous. Its layout shows in the bits."""
    leaf = settled(leaf)
    if type(leaf) is np.ndarray and not (leaf.flags.c_contiguous or leaf.flags.f_contiguous):
        return np.ascontiguousarray(leaf)
    return leaf


def protected(leaf: Any) -> Any:
    """Return a laid out view that can't be written to: what spoils its data would be wrong when run again."""
    if type(leaf) is np.memmap:
        leaf = leaf.view(np.ndarray)
    if type(leaf) is np.ndarray:
        leaf = laid_out(leaf).view()
        leaf.flags.writeable = False
    return leaf


def all_protected(tree: Any) -> Any:
    """Return a tree with all its arrays protected."""
    leaves, treedef = flatten(tree)
    held = not _ARRAYS.isdisjoint(map(type, leaves))
    return unflatten(treedef, [protected(leaf) for leaf in leaves]) if held else tree


def plain(leaf: Any) -> Any:
    """Return the plain value of a leaf that somebody may be tracing."""
    while hasattr(leaf, "_trace"):
        leaf = leaf._value
    return leaf


def is_traced(leaf: Any) -> bool:
    """Return whether somebody is tracing a leaf."""
    return hasattr(leaf, "_trace")


def is_placed(leaf: Any) -> bool:
    """Return whether a leaf is Shards: rows that are somewhere else."""
    return getattr(type(plain(leaf)), "is_placed", False)


def is_differentiable_or_traced(leaf: Any) -> bool:
    """Return whether a leaf is floating point, or holds what is, be it traced by somebody else."""
    return is_differentiable(plain(leaf)) or is_placed(leaf)


class Form:
    """A pytree with some of its leaves taken out.

    Parameters
    ----------
    treedef
        The structure.
    leaves
        All leaves; those at `positions` are of no account.
    positions
        Where leaves were taken out.
    """

    __slots__ = ("_bare", "_whole", "leaves", "positions", "treedef")

    def __init__(self, treedef: TreeDef, leaves: list[Any], positions: tuple[int, ...]) -> None:
        self.treedef, self.leaves, self.positions = treedef, leaves, positions
        self._bare = bool(positions) and treedef.is_leaf()
        # Without holes the tree is made once; a bare leaf needs no making at all.
        self._whole = (unflatten(treedef, leaves),) if not positions else ()

    @classmethod
    def of(cls, tree: Any, take: Callable[[Any], bool]) -> Form:
        """Take out the leaves for which `take` says so."""
        leaves, treedef = flatten(tree)
        return cls(treedef, leaves, tuple(i for i, leaf in enumerate(leaves) if take(leaf)))

    @property
    def taken(self) -> list[Any]:
        """The leaves that were taken out."""
        return [self.leaves[i] for i in self.positions]

    def fill(self, values: Iterator[Any]) -> Any:
        """Return the tree with the next of `values` where leaves were taken out."""
        if self._whole:
            return self._whole[0]
        if self._bare:
            return next(values)
        leaves = list(self.leaves)
        for i in self.positions:
            leaves[i] = next(values)
        return unflatten(self.treedef, leaves)

    def pick(self, cotangent: Any) -> list[Any]:
        """Return the cotangents of the leaves that were taken out; None for all when there is none."""
        if not self.positions:
            return []
        if cotangent is None:
            return [None] * len(self.positions)
        if self._bare:
            return [cotangent]
        parts = subtrees(self.treedef, cotangent)
        return [parts[i] for i in self.positions]

    def cotangent(self, values: Iterator[Any]) -> Any:
        """Return the next of `values` in this structure, None for all other leaves."""
        parts: list[Any] = [None] * len(self.leaves)
        for i in self.positions:
            parts[i] = next(values)
        return unflatten(self.treedef, parts)

    def bare(self) -> Form:
        """Return the form without the leaves that were taken out, so that they do not travel with it."""
        held = set(self.positions)
        return Form(self.treedef, [None if i in held else leaf for i, leaf in enumerate(self.leaves)], self.positions)

    def __reduce__(self) -> tuple[Any, ...]:
        return Form, (self.treedef, self.leaves, self.positions)


def dtype_of(leaf: Any) -> np.dtype[Any]:
    """Return the dtype of a numeric leaf."""
    return leaf.dtype if isinstance(leaf, np.ndarray | np.generic) else np.dtype(type(leaf))


def stack(leaves: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Return equal leaves as one array with a new first axis."""
    return np.stack(leaves)


def items_of(rows: Any) -> Iterator[Any]:
    """Yield the items: one row of each array and one entry of each list."""
    if isinstance(rows, list):
        yield from rows
        return
    leaves, treedef = flatten(rows, is_leaf=is_list)
    for index in range(len(leaves[0])):
        yield unflatten(treedef, [leaf[index] for leaf in leaves])


def is_list(obj: Any) -> bool:
    """Return whether something is a list: those are rows, all else is structure."""
    return isinstance(obj, list)


def registration(cls: type) -> tuple[Any, ...] | None:
    """Return how a record is taken apart and put together, and in which namespace; None where it is no record."""
    for namespace in (NAMESPACE, ""):
        entry = optree.register_pytree_node.get(cls, namespace=namespace)
        if entry is not None and entry.type is cls and entry.kind == optree.PyTreeKind.CUSTOM:
            return entry.flatten_func, entry.unflatten_func, entry.path_entry_type, entry.namespace
    return None


def register(cls: type, flatten_func: Any, unflatten_func: Any, entry_type: Any, namespace: str) -> None:
    """Register a record, unless that has been done."""
    if registration(cls) is None:
        where: Any = namespace or getattr(optree.registry, "__GLOBAL_NAMESPACE")  # no mangling outside a class
        optree.register_pytree_node(cls, flatten_func, unflatten_func, path_entry_type=entry_type, namespace=where)
