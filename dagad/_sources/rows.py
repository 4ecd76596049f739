"""The rows of one chunk, with gaps for what is being differentiated: what a chunk task is given of the data."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from autograd.extend import defjvp, defvjp, primitive

from dagad._errors import NotDifferentiableError, PlanError, StructureError
from dagad._types import AnyRows, Array, Cotangent, Leaf, Tree, Value
from dagad._values import pytree
from dagad._values.canonical import all_read_only, as_given, snapshot, snapshots
from dagad._values.partition import Partition
from dagad._values.pytree import nbytes_of
from dagad._values.shipping import PortableResult, opened

BY_COLUMN = (
    "A table holds no traced values. Give its columns as arrays, `{name: table[name].to_numpy() for name in names}`."
)
Gaps = Sequence[tuple[int, int | None]]  # numbers of leaves, with the row where these are arrays of rows


class Piece(Protocol):
    """The rows that one source has in a chunk; what is not said otherwise is that of rows without gaps."""

    __slots__ = ()
    n_gaps: int = 0  # leaves that are missing, because they are being differentiated
    stays: bool = False  # whether it is the same object each time it is merged, and may be kept
    is_made: bool = False  # whether it is made anew each time it is merged
    mark: str | None = None  # what it is called where it only stands for rows that come another way

    def merge(self, leaves: Iterator[Any]) -> Any:
        """Return the rows, with the next of `leaves` in the gaps."""

    def extract(self, cotangent: Cotangent) -> Sequence[Any]:
        """Return the cotangents that belong in the gaps, from one of the rows or None."""
        del cotangent
        return ()

    def arrange(self, parts: Iterator[Any]) -> Any:
        """Return the next of `parts` where there are gaps, arranged as the rows are, and None elsewhere."""
        del parts

    def items(self, first: int, leaves: Sequence[Any]) -> Iterable[tuple[Piece, Gaps]]:
        """Yield each row as a piece, and its gaps; `first` is the number of the first gap among `leaves`."""
        del first, leaves
        return [(Constant(item), ()) for item in pytree.items_of(_row_by_row(self.merge(iter(()))))]

    def cut(self, rows: slice, first: int) -> tuple[Piece, list[tuple[int, slice | None]]]:
        """Return some of the rows as a piece, and its gaps; `first` is the number of the first gap."""
        del first
        leaves, treedef = pytree.flatten(self.merge(iter(())), is_leaf=pytree.is_list)
        parts = [leaf.cut(rows) if pytree.is_table(leaf) else leaf[rows] for leaf in leaves]
        return Constant(pytree.unflatten(treedef, parts)), []

    def snapshot(self) -> Piece:
        """Return a piece that stays what it is, whatever is written into the user's arrays."""
        return self

    def nbytes(self) -> int:
        """Return about how many bytes it holds."""
        return 0


class Rows(PortableResult):
    """The rows of one chunk: pieces to be put together, with gaps for the leaves that are being differentiated.

    With `views`, pieces are views of arrays that somebody may write into, and the rows are to stay what they are: they
    are copied by whoever uses them first, a chunk's task.
    """

    __slots__ = ("_bare", "_merged", "_pieces", "_treedef", "_views", "_whole", "kept")

    def __init__(self, treedef: pytree.TreeDef, pieces: list[Piece], views: bool = False) -> None:
        self._treedef, self._pieces, self._views = treedef, pieces, views
        self._whole: tuple[Any, ...] = ()
        self._bare = treedef is pytree.LEAF or treedef.is_leaf()  # one piece, and nothing around it
        self._merged = False
        self.kept: dict[str, Any] = {}  # what an engine has made of the constants among them

    def state(self) -> tuple[Any, ...]:
        return self._treedef, self._pieces

    @property
    def stays(self) -> bool:
        """Whether all rows are here, and nothing is missing or made where it is used."""
        return False not in [piece.stays for piece in self._pieces]

    @property
    def is_made(self) -> bool:
        """Whether some of the rows are made where they are used."""
        for piece in self._pieces:
            if piece.is_made:
                return True
        return False

    def joined(self, shards: Iterator[Any]) -> Rows:
        """Return the rows with what was elsewhere."""
        pieces = [
            Constant(opened(next(shards)).merge(iter(()))) if piece is ELSEWHERE else piece for piece in self._pieces
        ]
        return Rows(self._treedef, pieces, self._views)

    def made(self) -> Rows:
        """Return the rows with what is made where it is used made here, once and for all."""
        pieces = [piece if piece.stays or piece.n_gaps else Constant(piece.merge(iter(()))) for piece in self._pieces]
        return Rows(self._treedef, pieces, self._views)

    def snapshot(self) -> Rows:
        """Return rows that stay what they are, whatever is written into the arrays that they are views of."""
        return Rows(self._treedef, [piece.snapshot() for piece in self._pieces])

    def _take_snapshot(self) -> None:
        self._pieces, self._whole, self.kept = [piece.snapshot() for piece in self._pieces], (), {}
        self._views = False

    def __sizeof__(self) -> int:
        return 200 + sum(piece.nbytes() for piece in self._pieces)

    @classmethod
    def of(cls, tree: Tree) -> Rows:
        """Return rows with nothing taken out."""
        return cls(pytree.flatten(0)[1], [Constant(tree)])

    @property
    def marks(self) -> tuple[Any, ...]:
        """What stands for each piece that is not there; None for those that are."""
        return self._treedef, *(piece.mark for piece in self._pieces)

    @property
    def is_template(self) -> bool:
        """Whether no piece is there, so that all chunks have the same rows but for what comes from elsewhere."""
        return None not in [piece.mark for piece in self._pieces]

    def with_unpacked(self, unpacked: Iterator[Any]) -> Rows:
        """Return the rows with the columns of unpacked ones, and gaps for their leaves, where these belong."""
        trees, pieces = list[Any](), list[Piece]()
        for piece in self._pieces:
            one = next(unpacked) if piece is PACKED else None
            trees.append(piece if one is None else one.tree([object() for _ in one.pieces]))
            pieces.extend([piece] if one is None else one.pieces)
        treedef = pytree.flatten(pytree.unflatten(self._treedef, trees), is_leaf=pytree.is_list)[1]
        return Rows(treedef, pieces, self._views)

    def items(self, leaves: Sequence[Any]) -> Iterator[tuple[Rows, list[tuple[int, int | None]]]]:
        """Yield each row as rows of its own, and its gaps."""
        if self._views:
            self._take_snapshot()
        columns, first = list[Iterable[tuple[Piece, Gaps]]](), 0
        for piece in self._pieces:
            columns.append(piece.items(first, leaves))
            first += piece.n_gaps
        for row in zip(*columns, strict=True):
            yield Rows(self._treedef, [piece for piece, _ in row]), [gap for _, gaps in row for gap in gaps]

    def cut(self, rows: slice) -> tuple[Rows, list[tuple[int, slice | None]]]:
        """Return some of the rows, and their gaps: numbers of leaves, and which rows of it where it is an array."""
        if self._views:
            self._take_snapshot()
        pieces, gaps, first = list[Piece](), list[tuple[int, slice | None]](), 0
        for piece in self._pieces:
            part, own = piece.cut(rows, first)
            pieces.append(part)
            gaps.extend(own)
            first += piece.n_gaps
        return Rows(self._treedef, pieces), gaps

    def gaps(self) -> list[str]:
        """Return what sentences call the gaps."""
        pairs = zip(self._pieces, self._treedef.accessors(), strict=True)
        return [path.codify("rows") for piece, path in pairs for _ in range(piece.n_gaps)]

    def merge(self, leaves: Iterator[Any]) -> Any:
        """Return the rows, with the next of `leaves` in the gaps."""
        if self._views:
            self._take_snapshot()
        if self._bare:
            return self._pieces[0].merge(leaves)
        if self._whole:
            return self._whole[0]
        whole = pytree.unflatten(self._treedef, [piece.merge(leaves) for piece in self._pieces])
        if self._merged and self.stays:  # nearly all rows are used once, where looking costs more than it saves
            self._whole = (whole,)
        self._merged = True
        return whole

    def extract(self, cotangent: Cotangent) -> list[Any]:
        """Return the cotangents that belong in the gaps, from one for all rows."""
        for piece in self._pieces:
            if piece.n_gaps:
                break
        else:
            return []
        parts = [None] * len(self._pieces) if cotangent is None else pytree.subtrees(self._treedef, cotangent)
        return [leaf for piece, part in zip(self._pieces, parts, strict=True) for leaf in piece.extract(part)]


class Constant(Piece):
    """Rows nothing of which is being differentiated."""

    __slots__ = ("value",)
    stays = True

    def __init__(self, value: Value) -> None:
        self.value = value

    def merge(self, leaves: Iterator[Any]) -> Any:
        del leaves
        return self.value

    def snapshot(self) -> Constant:
        return Constant(snapshots(self.value))

    def nbytes(self) -> int:
        return nbytes_of(self.value)


class Made(Piece):
    """Rows that ``make(*args)`` makes where and whenever they are used; all that travels is how."""

    __slots__ = ("args", "make")
    is_made = True

    def __init__(self, make: Callable[..., Any], *args: Any) -> None:
        self.make, self.args = make, args

    def merge(self, leaves: Iterator[Any]) -> Any:
        del leaves
        return all_read_only(self.make(*self.args))


class _Mark(Piece):
    """Stands for rows that come another way: there is one of a kind, which travels by its name."""

    __slots__ = ()
    mark: str

    def merge(self, leaves: Iterator[Any]) -> Any:
        raise NotImplementedError("Rows that are elsewhere have to be joined first.")

    def __reduce__(self) -> str:
        return self.mark


class _Elsewhere(_Mark):
    """Stands for what `Rows.joined` brings."""

    __slots__ = ()
    mark = "ELSEWHERE"


class _Packed(_Mark):
    """Stands for rows in Shards that are being differentiated: what `Rows.with_unpacked` brings."""

    __slots__ = ()
    mark = "PACKED"


class _Gap(_Mark):
    """Stands for the rows of an array that is being differentiated."""

    __slots__ = ()
    n_gaps = 1
    mark = "GAP"

    def merge(self, leaves: Iterator[Any]) -> Any:
        return next(leaves)

    def extract(self, cotangent: Cotangent) -> Sequence[Any]:
        return (cotangent,)

    def arrange(self, parts: Iterator[Any]) -> Any:
        return next(parts)

    def items(self, first: int, leaves: Sequence[Any]) -> Iterable[tuple[Piece, Gaps]]:
        return [(GAP, ((first, row),)) for row in range(len(leaves[first]))]

    def cut(self, rows: slice, first: int) -> tuple[Piece, list[tuple[int, slice | None]]]:
        return self, [(first, rows)]


GAP, ELSEWHERE, PACKED = _Gap(), _Elsewhere(), _Packed()


class Item(Piece):
    """An item of a list, some leaves of which are being differentiated."""

    __slots__ = ("n_gaps", "partition")

    def __init__(self, partition: Partition) -> None:
        self.partition, self.n_gaps = partition, len(partition.positions)

    def merge(self, leaves: Iterator[Any]) -> Any:
        return self.partition.merge(leaves)

    def extract(self, cotangent: Cotangent) -> Sequence[Any]:
        return self.partition.extract(cotangent)

    def snapshot(self) -> Item:
        whole = self.partition
        return Item(Partition(whole.treedef, [snapshot(leaf) for leaf in whole.leaves], whole.positions))

    def nbytes(self) -> int:
        return nbytes_of(self.partition.leaves)


class Ragged(Piece):
    """Items of a list, some leaves of which are being differentiated."""

    __slots__ = ("n_gaps", "parts")

    def __init__(self, parts: list[Item]) -> None:
        self.parts, self.n_gaps = parts, sum(item.n_gaps for item in parts)

    def merge(self, leaves: Iterator[Any]) -> Any:
        return [item.merge(leaves) for item in self.parts]

    def extract(self, cotangent: Cotangent) -> Sequence[Any]:
        cotangents = [None] * len(self.parts) if cotangent is None else cotangent
        return [leaf for item, part in zip(self.parts, cotangents, strict=True) for leaf in item.extract(part)]

    def arrange(self, parts: Iterator[Any]) -> Any:
        return [item.partition.arrange(parts) for item in self.parts]

    def items(self, first: int, leaves: Sequence[Any]) -> Iterable[tuple[Piece, Gaps]]:
        for item in self.parts:
            piece: Piece = item if item.n_gaps else Constant(item.merge(iter(())))
            yield piece, [(first + gap, None) for gap in range(item.n_gaps)]
            first += item.n_gaps

    def cut(self, rows: slice, first: int) -> tuple[Piece, list[tuple[int, slice | None]]]:
        before = sum(item.n_gaps for item in self.parts[: rows.start])
        part = Ragged(self.parts[rows])
        return part, [(first + before + gap, None) for gap in range(part.n_gaps)]

    def snapshot(self) -> Ragged:
        return Ragged([item.snapshot() for item in self.parts])

    def nbytes(self) -> int:
        return nbytes_of([item.partition.leaves for item in self.parts])


def with_gaps(part: AnyRows) -> Piece:
    """Return an array or list as a piece with gaps wherever it has floating-point numbers."""
    if pytree.is_table(part):
        raise NotDifferentiableError(f"There is no derivative with respect to the rows of a table. {BY_COLUMN}")
    if pytree.is_differentiable(part):
        return GAP
    if isinstance(part, list):
        items = [Partition.of(item, pytree.is_differentiable) for item in part]
        if any(item.positions for item in items):
            return Ragged([Item(item.bare()) for item in items])
    return Constant(part)


def row_by_row(leaf: Leaf) -> Any:
    """Return an array laid out row by row: a row with gaps has other bits than one in a chunk of its own."""
    plain = pytree.plain(leaf)
    if type(plain) is not np.ndarray or plain.flags.c_contiguous:
        return leaf
    if pytree.is_traced(leaf):
        return _contiguous()(leaf)
    return as_given(np.ascontiguousarray(leaf))


@functools.cache  # made when first needed: to import dagad adds nothing to autograd's tables
def _contiguous() -> Any:
    made = primitive(_made_contiguous)
    defvjp(made, lambda ans, array: lambda cotangent: cotangent)
    defjvp(made, lambda tangent, ans, array: tangent)
    return made


def _made_contiguous(array: Array) -> Any:
    return np.ascontiguousarray(array)


def _row_by_row(piece: object) -> Any:
    if isinstance(piece, list):
        return piece
    leaves, treedef = pytree.flatten(piece, is_leaf=pytree.is_list)
    return pytree.unflatten(treedef, list(map(row_by_row, leaves)))


def joined_data(parts: list[Any]) -> Any:
    """Return pieces as one: arrays joined along their first axis, lists and tables one after the other."""
    if not parts:
        raise PlanError(
            "These Shards hold no rows, and so nothing is left of what their rows looked like. Ask for `shards.n_rows` "
            "before `gather()`, and treat data without rows before they are placed."
        )
    columns = [pytree.flatten(part, is_leaf=pytree.is_list) for part in parts]
    _check_alike(columns)
    leaves = zip(*(leaves for leaves, _ in columns), strict=True)
    return pytree.unflatten(columns[0][1], [_joined(pieces) for pieces in leaves])


def _check_alike(columns: list[tuple[list[Any], pytree.TreeDef]]) -> None:
    """Raise unless all pieces have the same structure: loaders may have returned whatever they liked."""
    (first, structure), *others = columns
    for number, (leaves, treedef) in enumerate(others, 1):
        what = (
            "The rows of Shards can be joined where each loader returns rows of one kind, and those of chunk "
            f"{number} differ from the first"
        )
        pytree.check_same_structure(structure, treedef, what)
        for expected, got in zip(map(_kind_of, first), map(_kind_of, leaves), strict=True):
            if expected != got:
                raise StructureError(f"{what}: expected {expected}, got {got}.")


def _kind_of(leaf: Leaf) -> str:
    if getattr(type(leaf), "is_rows", False):
        return f"a table of {', '.join(map(repr, sorted(leaf)))}"
    return "a list" if isinstance(leaf, list) else f"an array with rows of shape {np.shape(leaf)[1:]}"


def _joined(pieces: tuple[Any, ...]) -> Any:
    first, *others = pieces
    if pytree.is_table(first):
        return first.joined(others)
    return list(itertools.chain(*pieces)) if isinstance(first, list) else np.concatenate(pieces)
