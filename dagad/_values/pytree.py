"""Pytrees: nested structures taken apart into leaves and put together again. The only user of optree.

State: `_tree_flatten`, which is optree's until the program ends; see `_ending`.
"""

from __future__ import annotations

import atexit
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import optree
from autograd.extend import Box

from dagad._ending import end_other_threads
from dagad._errors import StructureError
from dagad._types import AnyRows, Cotangent, Function, Leaf, Tree, Value
from dagad._words import described

NAMESPACE = "dagad"  # where records are looked up; it inherits what is registered globally
TreeDef = optree.PyTreeSpec
TRACED = Box.types  # the classes of traced values; autograd adds to them

_tree_flatten = optree.tree_flatten
atexit.register(end_other_threads, globals(), "_tree_flatten")
_BARE = frozenset({np.ndarray, np.float64, float})  # in what loops of short evaluations come by, looked at first
SAMPLE = 64  # items of a list that are looked at
_A_LEAF: Any = 0.0
LEAF: TreeDef = optree.tree_structure(_A_LEAF, namespace=NAMESPACE)
_SERIES, _CONTAINERS = (list, tuple), (list, tuple, dict)
_FLOATS = (float, complex, np.floating, np.complexfloating)
_NUMPYS = (np.ndarray, np.generic)


def flatten(tree: Tree, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeDef]:
    """Return the leaves and the structure; None is structure, not a leaf."""
    kind = type(tree)
    # Optree needs two microseconds to find that out.
    if kind in _BARE or kind in TRACED or getattr(kind, "is_sharded", False):
        return [tree], LEAF
    leaves, treedef = _tree_flatten(tree, is_leaf, namespace=NAMESPACE)
    return leaves, treedef


def flatten_with_none(tree: Tree) -> tuple[list[Any], TreeDef]:
    """Return the leaves, None among them, and the structure."""
    leaves, treedef = _tree_flatten(tree, none_is_leaf=True, namespace=NAMESPACE)
    return leaves, treedef


def unflatten(treedef: TreeDef, leaves: Sequence[Any]) -> Any:
    return treedef.unflatten(leaves)


def subtrees(treedef: TreeDef, tree: Tree) -> list[Any]:
    """Return what stands in `tree` where `treedef` has its leaves; None is allowed there."""
    try:
        return treedef.flatten_up_to(tree)
    except (ValueError, TypeError) as error:
        raise StructureError(f"A cotangent has another structure than the value that it belongs to. {error}") from None


def by_prefix(prefix: Tree, tree: Tree) -> list[Any]:
    """Return for each leaf of a tree, None among them, what stands there or further up in `prefix`.

    Raises
    ------
    ValueError
        If it is no prefix of the tree.
    """
    try:
        spread = optree.tree_broadcast_prefix(prefix, tree, none_is_leaf=True, namespace=NAMESPACE)
    except TypeError as error:
        raise ValueError(str(error)) from None
    # In the order of the tree: an `OrderedDict` has that in which it was filled, and goes with any dict of its keys.
    found: list[Any] = flatten_with_none(tree)[1].flatten_up_to(spread)
    return found


def paths(tree: Tree, is_leaf: Callable[[Any], bool] | None = None) -> list[str]:
    """Return how to write each leaf, such as ``['beta'][0]``."""
    return [accessor.codify("") for accessor in flatten(tree, is_leaf)[1].accessors()]


_DICT_OR_TUPLE = {optree.PyTreeKind[name] for name in ("DICT", "ORDEREDDICT", "DEFAULTDICT", "TUPLE")}


def in_plain_containers(treedef: TreeDef, indices: Iterable[int]) -> list[str]:
    """Return how to write those leaves that dicts and tuples lead to, and no record; they may be items of a list."""
    found, accessors = [], treedef.accessors()
    for index in indices:
        *around, last = (entry.kind for entry in accessors[index])
        if set(around) <= _DICT_OR_TUPLE and last in {*_DICT_OR_TUPLE, optree.PyTreeKind.LIST}:
            found.append(accessors[index].codify(""))
    return found


_SEQUENCES = {optree.PyTreeKind[name] for name in ("LIST", "TUPLE", "NAMEDTUPLE")}


def is_sequence(treedef: TreeDef) -> bool:
    """Return whether a tree is a list, a tuple or a namedtuple, of whatever."""
    return treedef.kind in _SEQUENCES


def is_leaf(obj: Tree) -> bool:
    """Return whether something has no parts; None is a leaf too."""
    leaf: bool = optree.tree_is_leaf(obj, none_is_leaf=True, namespace=NAMESPACE)
    return leaf


def has_own_operators(kind: type) -> bool:
    """Return whether a class is one of numpy's arrays with other operators, as `np.matrix` and masked arrays are."""
    own = issubclass(kind, np.ndarray) and not kind.__module__.startswith("jax")  # whose numbers with a dtype are some
    return own and any(getattr(kind, name) is not getattr(np.ndarray, name) for name in _ASKED)


_ASKED = """
__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ __rpow__ __matmul__ __rmatmul__
__neg__ __eq__ __lt__ __array_ufunc__ __array_function__
""".split()


def is_differentiable(leaf: Leaf) -> bool:
    """Return whether a leaf is real or complex floating point; all else is constant."""
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind in "fc"
    return isinstance(leaf, _FLOATS)


def shape_of(leaf: Leaf) -> tuple[int, ...]:
    """Return the shape of a numeric leaf; that of a number is ()."""
    return leaf.shape if isinstance(leaf, np.ndarray) else ()


def leaf_seeds(value: Value, cotangent: Cotangent) -> list[Any]:
    """Return the cotangents of the leaves of `value`; None for all when there is none."""
    if type(value) is np.float64 or type(value) is np.ndarray or type(value) is float:
        return [cotangent]
    if cotangent is None:
        return [None] * len(flatten(value)[0])
    # Where the value is None a sum that it went into may still send something: it belongs to other terms.
    leaves, treedef = flatten_with_none(value)
    parts = treedef.flatten_up_to(cotangent)
    return [part for leaf, part in zip(leaves, parts, strict=True) if leaf is not None]


def zeros_like(leaf: Leaf) -> Any:
    """Return zeros of the leaf's own shape and dtype, traced or not; None for what has no derivative."""
    leaf = plain(leaf)
    if isinstance(leaf, np.ndarray):
        return np.zeros(leaf.shape, leaf.dtype) if leaf.dtype.kind in "fciub" else None
    if is_sharded(leaf):
        return leaf.zeros()
    if isinstance(leaf, bool | int | float | complex | np.number | np.bool_):
        return type(leaf)(0)
    return None


def check_same_structure(expected: TreeDef, got: TreeDef, what: str) -> None:
    if expected != got:
        raise StructureError(f"{what}: expected the structure {_show(expected)}, got {_show(got)}.")


def _show(treedef: TreeDef) -> str:
    text = str(treedef).removeprefix("PyTreeSpec(").removesuffix(")")
    return text.replace(f", namespace={NAMESPACE!r}", "").replace(", NoneIsLeaf", "")


def cast_like(cotangent: Cotangent, leaf: Leaf, what: str) -> Any:
    """Return a cotangent with its leaf's dtype, after checking that it has the leaf's shape."""
    shape = cotangent.shape if type(cotangent) is np.ndarray else np.shape(cotangent)
    if shape != shape_of(leaf):
        raise StructureError(
            f"{what} has the shape {shape}, where {shape_of(leaf)} is needed: a cotangent or tangent has "
            "the shape of the number or array that it belongs to."
        )
    return cast(cotangent, leaf)


def fitted(part: Cotangent, leaf: Leaf, what: str) -> Any:
    """Return a tangent or cotangent as `cast_like` does; what is None, traced or of Shards as it is."""
    if part is None or is_traced(part) or is_traced(leaf) or is_sharded(leaf):
        return part
    if type(part) is not np.ndarray or part.dtype.kind != "f":
        _check_numbers(part, leaf, what)
    return cast_like(part, leaf, what)


def _check_numbers(part: object, leaf: Leaf, what: str) -> None:
    """Refuse a tangent or cotangent of which something would be dropped: a mask, an imaginary part, all of a word."""
    if np.ma.isMaskedArray(part):
        raise StructureError(
            f"{what} is a masked array, whose mask says nothing to a derivative. Give an array with a number in each "
            "place, `array.filled(0.0)` where what is masked is to have no part in it."
        )
    try:
        array = np.asarray(part)
    except ValueError:  # of lists of several lengths
        array = np.asarray(None)
    if array.dtype.kind not in "fciub":
        raise StructureError(
            f"{what} is {described(part)}, where numbers are needed. Give a number or an array of numbers, of the "
            "shape of what it belongs to."
        )
    largest = np.max(np.abs(np.imag(array)), initial=0.0) if array.dtype.kind == "c" else 0.0
    if dtype_of(leaf).kind != "c" and largest > 1e-8 * np.max(np.abs(array), initial=0.0):
        raise StructureError(
            f"{what} has an imaginary part, of up to {largest:.3g}, and belongs to a real number or array, whose "
            "derivatives are real. Give `np.real(array)`, or one derivative for the real part and one for the other."
        )


def dense(part: Cotangent, leaf: Leaf, what: str) -> Any:
    """Return a tangent or cotangent as `fitted` does; zeros for None."""
    return zeros_like(leaf) if part is None else fitted(part, leaf, what)


def filled(parts: Iterable[Any], leaves: Iterable[Any]) -> list[Any]:
    """Return tangents or cotangents of leaves, with zeros for None."""
    return [zeros_like(leaf) if part is None else part for part, leaf in zip(parts, leaves, strict=True)]


def cast(cotangent: Cotangent, leaf: Leaf) -> Any:
    """Return a cotangent with its leaf's dtype: float32 stays float32, real stays real."""
    dtype = dtype_of(leaf)
    if type(cotangent) is np.ndarray and cotangent.dtype == dtype:
        return cotangent
    if dtype.kind != "c" and np.iscomplexobj(cotangent):
        cotangent = np.real(cotangent)
    return np.asarray(cotangent, dtype) if isinstance(leaf, np.ndarray) else dtype.type(cotangent)


def plain(leaf: Leaf) -> Any:
    """Return the plain value of a leaf that somebody may be tracing."""
    while type(leaf) in TRACED:
        leaf = leaf._value
    return leaf


def is_traced(leaf: Leaf) -> bool:
    return type(leaf) in TRACED


def open_containers(output: Value) -> Any:
    """Return autograd's boxed lists, tuples and dicts as plain ones of boxed entries."""
    held = output
    while type(held) in TRACED:
        held = held._value
    if held is output or type(held) in _BARE:
        return output
    if isinstance(held, _SERIES):
        return like_series(held, [open_containers(output[i]) for i in range(len(held))])
    if isinstance(held, dict):
        return {key: open_containers(output[key]) for key in held}
    return output


def like_series(held: Sequence[Any], parts: Sequence[Any]) -> Any:
    """Return other parts in a list, a tuple, or a tuple with names, like another one."""
    return type(held)(*parts) if hasattr(held, "_fields") else type(held)(parts)  # type: ignore[call-arg]  # of any kind


def all_opened(tree: Tree) -> Any:
    """Return a tree in which no list, tuple or dict is boxed as a whole."""
    kind = type(tree)
    if kind in _BARE:
        return tree
    if kind in TRACED:
        return open_containers(tree) if isinstance(plain(tree), _CONTAINERS) else tree
    leaves, treedef = flatten(tree)
    for leaf in leaves:
        if type(leaf) in TRACED and isinstance(plain(leaf), _CONTAINERS):
            return unflatten(treedef, [open_containers(leaf) for leaf in leaves])
    return tree


def is_sharded(leaf: Leaf) -> bool:
    """Return whether a leaf is Shards: rows that are somewhere else."""
    kind = type(leaf)
    if kind in _BARE:
        return False
    return getattr(type(plain(leaf)) if kind in TRACED else kind, "is_sharded", False)


def is_differentiable_or_traced(leaf: Leaf) -> bool:
    """Return whether a leaf is floating point, or holds what is, be it traced by somebody else."""
    if type(leaf) is float or type(leaf) is np.float64:
        return True
    value = plain(leaf)
    if type(value) is np.ndarray:
        return value.dtype.kind in "fc"
    return is_differentiable(value) or is_sharded(value)


def dtype_of(leaf: Leaf) -> np.dtype[Any]:
    return leaf.dtype if isinstance(leaf, _NUMPYS) else np.dtype(type(leaf))


def nbytes_of(tree: Tree) -> int:
    """Return about how many bytes a pytree holds: those of its arrays exactly, of long lists by every so many items.

    Nothing is drawn at random, as Dask does: how rows are cut depends on it, and so do the bits.
    """
    if type(tree) is np.ndarray:
        return int(tree.nbytes)
    leaves = flatten(tree, is_leaf=is_list)[0]
    return sum(map(_nbytes_of_leaf, leaves))


def _nbytes_of_leaf(leaf: Leaf) -> int:
    if isinstance(leaf, list):
        some = leaf[:: max(-(-len(leaf) // SAMPLE), 1)]
        return round(sum(map(nbytes_of, some)) * len(leaf) / max(len(some), 1))
    nbytes = getattr(leaf, "nbytes", None)
    return int(nbytes) if isinstance(nbytes, int | np.integer) else sys.getsizeof(leaf)


def items_of(rows: AnyRows) -> Iterator[Any]:
    """Yield the items: one row of each array and one entry of each list."""
    if isinstance(rows, list):
        yield from rows
        return
    leaves, treedef = flatten(rows, is_leaf=is_list)
    columns = [leaf.by_item() if is_table(leaf) else leaf for leaf in leaves]
    for index in range(len(columns[0])):
        yield unflatten(treedef, [column[index] for column in columns])


def is_table(leaf: Leaf) -> bool:
    """Return whether a leaf is a table, or some rows of one: what several columns of rows hold."""
    return getattr(type(leaf), "is_rows", False)


def by_column(tree: Tree) -> Any:
    """Return a tree with dicts of columns for tables and their rows."""
    leaves, treedef = flatten(tree)
    return unflatten(treedef, [dict(leaf) if getattr(type(leaf), "has_columns", False) else leaf for leaf in leaves])


def is_list(obj: object) -> bool:
    """Return whether something is a list: those are rows, all else is structure."""
    return isinstance(obj, list)


def metadata_of(treedef: TreeDef) -> list[tuple[Any, ...]]:
    """Return of each node its class, what it holds beside its children, and which of these are nodes.

    Python's own classes go by their names. What a record holds there is the object itself, which may change.
    """
    found: list[tuple[Any, ...]] = []

    def note(cls: type, held: object, children: Sequence[Any]) -> None:
        nodes = tuple([index for index, child in enumerate(children) if child is None])
        of_python = cls in _BUILT_IN or cls is type(None)
        found.append((cls.__name__, _fixed(held), len(children), nodes) if of_python else (cls, held, nodes))

    if treedef is not LEAF:
        treedef.walk([0] * treedef.num_leaves, note)
    return found


def _fixed(held: object) -> Any:
    """Return the keys of a dict as a tuple; those of one with a factory stand beside it."""
    if type(held) is list:
        return tuple(held)
    return (held[0], tuple(held[1])) if type(held) is tuple else held


def is_structure(obj: object) -> bool:
    """Return whether something is a class that trees consist of, or that describes them."""
    if not isinstance(obj, type):
        return False
    known = obj is TreeDef or obj in _BUILT_IN or registration(obj) is not None
    return known or (issubclass(obj, tuple) and hasattr(obj, "_fields"))


_BUILT_IN = frozenset({list, dict, tuple, int, float, OrderedDict, defaultdict, deque})


def registration(cls: type) -> tuple[Any, ...] | None:
    """Return how a record is taken apart and put together, and in which namespace; None where it is no record."""
    for namespace in (NAMESPACE, ""):
        entry = optree.register_pytree_node.get(cls, namespace=namespace)
        if entry is not None and entry.type is cls and entry.kind == optree.PyTreeKind.CUSTOM:
            return entry.flatten_func, entry.unflatten_func, entry.path_entry_type, entry.namespace
    return None


def register(
    cls: type,
    flatten_func: Function,
    unflatten_func: Function,
    entry_type: type[optree.PyTreeEntry] = optree.AutoEntry,
    namespace: str = NAMESPACE,
) -> None:
    """Register a record, unless that has been done."""
    if registration(cls) is None:
        where: Any = namespace or getattr(optree.registry, "__GLOBAL_NAMESPACE")  # no mangling outside a class
        optree.register_pytree_node(cls, flatten_func, unflatten_func, path_entry_type=entry_type, namespace=where)
