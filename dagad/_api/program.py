"""A function at its arguments, as a function of their floating-point leaves: what every transform runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from dask.base import is_dask_collection

from dagad._engines.autograd.forward import push
from dagad._engines.autograd.tape import pull, record
from dagad._errors import NotDifferentiableError, StructureError
from dagad._pytrees import pytree
from dagad._pytrees.canonical import canonical, handed_out, library_of
from dagad._pytrees.partition import Partition
from dagad._sources.rows import BY_COLUMN


class Program:
    """A function at its arguments, as a function of the floating-point leaves of some of them."""

    def __init__(self, fun: Callable[..., Any], argnums: int | Sequence[int], args: Any, kwargs: Any) -> None:
        self._fun, self._kwargs, self._argnums = fun, kwargs, argnums
        self._places, args = _places(argnums, args), list(args)
        for place in self._places:
            args[place] = pytree.all_opened(args[place])
        self._args = args
        self.partitions = [Partition.of(args[place], pytree.is_differentiable_or_traced) for place in self._places]
        for place, partition in zip(self._places, self.partitions, strict=True):
            if len(partition.positions) < len(partition.leaves):
                _refuse_tables(place, partition)
            if not partition.positions:
                raise NotDifferentiableError(_no_leaves(place, args[place]))
        self.leaves = [canonical(leaf) for p in self.partitions for leaf in p.taken]

    def record(self, *, once: bool = False) -> tuple[Any, Callable[[Sequence[Any]], Any]]:
        """Run the program: what it returned, and from cotangents of its leaves to the gradient.

        With `once` the pullback is called once: the tape goes before the gradient comes, which is not copied then.
        """
        value, ends, roots = self.tape()

        def pullback(seeds: Sequence[Any]) -> Any:
            padded = [*seeds, *[None] * (len(ends) - len(seeds))]
            found = pull(ends, padded, roots, self.leaves)
            if once:
                ends.clear()
                roots.clear()
            return self._gradient(handed_out(found))

        return value, pullback

    def tape(self) -> tuple[Any, list[Any], list[Any]]:
        """Run the program: what it returned, the tape's nodes behind its leaves, and the tape's roots."""
        return record(self._run, self.leaves)

    def push(self, directions: Sequence[Sequence[Any]]) -> tuple[Any, Any]:
        """Run the program on leaves that move; see `forward.push`."""
        return push(self._run, self.leaves, directions)

    def direction(self, tangents: Sequence[Any]) -> list[Any]:
        """Return one tangent per leaf, from one pytree per argument."""
        found: list[Any] = []
        for place, partition, tangent in zip(self._places, self.partitions, tangents, strict=True):
            what = f"The tangent of argument {place}"
            try:
                parts = partition.extract(pytree.all_opened(tangent))
            except StructureError as error:
                raise StructureError(f"{what} has not the structure of the argument.") from error
            pairs = zip(parts, partition.taken, strict=True)
            found.extend(_moved(part, leaf, f"{what} has a part") for part, leaf in pairs)
        return found

    def _run(self, leaves: Sequence[Any]) -> Any:
        rest, args = iter(leaves), list(self._args)
        for place, partition in zip(self._places, self.partitions, strict=True):
            args[place] = partition.merge(rest)
        return self._fun(*args, **self._kwargs)

    def _gradient(self, cotangents: Sequence[Any]) -> Any:
        """Put cotangents into the structure of the arguments; zeros where the value does not depend on a leaf."""
        pairs = zip(cotangents, self.leaves, strict=True)
        return self.arranged([pytree.zeros_like(leaf) if part is None else fitting(part, leaf) for part, leaf in pairs])

    def arranged(self, parts: Sequence[Any]) -> Any:
        """Put one part per leaf into the structure of the arguments."""
        rest = iter(parts)
        gradients = tuple(p.arrange(rest) for p in self.partitions)
        return gradients[0] if isinstance(self._argnums, int) else gradients


def fitting(part: Any, leaf: Any) -> Any:
    """Return a cotangent, if it has the shape of its leaf: some rules of autograd's forget what was broadcast."""
    if not pytree.is_placed(leaf) and np.shape(pytree.plain(part)) != np.shape(pytree.plain(leaf)):
        raise StructureError(
            f"A gradient of shape {np.shape(pytree.plain(part))} came where one of shape "
            f"{np.shape(pytree.plain(leaf))} belongs: autograd's derivative of a function that broadcasts is wrong, "
            "such as `np.where` with a branch smaller than the result, or `np.linalg.norm` with `keepdims`. Broadcast "
            "its arguments first, by `* np.ones(shape)`, or do without that option."
        )
    return _typed(part, pytree.plain(leaf)) if pytree.is_traced(part) else part


def _typed(part: Any, leaf: Any) -> Any:
    """Give a traced cotangent the dtype of its leaf; what is not traced has been given it where it was pulled."""
    plain, dtype = pytree.plain(part), pytree.dtype_of(leaf)
    if not isinstance(plain, np.ndarray | np.floating) or plain.dtype == dtype or plain.dtype.kind == "c":
        return part
    typed = part.astype(dtype)
    return typed if isinstance(leaf, np.ndarray) else typed[()]


def _moved(part: Any, leaf: Any, what: str) -> Any:
    looked_at = part is not None and not pytree.is_traced(part) and not pytree.is_placed(leaf)
    if looked_at and np.asarray(part).dtype.kind not in "fciub":
        raise StructureError(f"{what} that is a {type(part).__name__}, where a number or an array belongs.")
    return pytree.fitted(part, leaf, what)


def _places(argnums: int | Sequence[int], args: Sequence[Any]) -> list[int]:
    wanted = (argnums,) if isinstance(argnums, int) else argnums
    if not isinstance(wanted, tuple | list) or not all(isinstance(place, int) for place in wanted) or not wanted:
        raise StructureError(f"`argnums={argnums!r}` is neither an int nor a tuple of ints.")
    for place in wanted:
        if not -len(args) <= place < len(args):
            raise StructureError(
                f"`argnums={argnums!r}` asks for argument {place}, but the function was called with {len(args)} "
                "positional arguments. Pass what is to be differentiated in by position."
            )
    return [place % len(args) for place in wanted]


def _refuse_tables(place: int, argument: Partition) -> None:
    for leaf in (leaf for at, leaf in enumerate(argument.leaves) if at not in argument.positions):
        if getattr(type(leaf), "is_rows", False) or library_of(leaf):
            raise NotDifferentiableError(
                f"Argument {place} holds a `{type(leaf).__name__}`, which can't be differentiated in. {BY_COLUMN}"
            )


def _no_leaves(place: int, argument: Any) -> str:
    leaves = pytree.flatten(argument)[0]
    collection = next(filter(is_dask_collection, leaves), None)
    if collection is not None:
        return (
            f"Argument {place} holds a dask {type(collection).__name__}, whose values are not known yet. Compute it "
            "first; or write the function as a graph of `dask.delayed` functions and use `dagad.gradient` or "
            "`dagad.jvp` of that."
        )
    found = ", ".join(sorted({str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in leaves})) or "nothing"
    return (
        f"Argument {place} holds no floating-point numbers to differentiate in, only {found}. Convert integers with "
        '`float(...)` or `.astype(float)`; register a class of your own with optree in the namespace "dagad".'
    )
