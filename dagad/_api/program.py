"""A function at its arguments, as a function of their floating-point leaves: what every transform runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from dask.base import is_dask_collection

from dagad._errors import ArgumentsError, NotDifferentiableError, PortabilityError, StructureError
from dagad._executors.member import current_member
from dagad._sources.rows import BY_COLUMN
from dagad._tracebacks import warn
from dagad._tracing.forward import push
from dagad._tracing.patches import patches
from dagad._tracing.tape import pull, record
from dagad._types import Argnums, Args, Cotangent, Function, Kwargs, Leaf, Tree, Value
from dagad._values import pytree
from dagad._values.canonical import canonical, handed_out, is_future, library_of, snapshot
from dagad._values.fingerprint import identity_of
from dagad._values.partition import Partition
from dagad._words import a, argument_of, described, name_of


class Program:
    """A function at its arguments, as a function of the floating-point leaves of some of them."""

    def __init__(
        self, fun: Callable[..., Any], argnums: int | Sequence[int], args: Args, kwargs: Kwargs, has_aux: bool = False
    ) -> None:
        if type(argnums) is not int and isinstance(argnums, np.integer):
            argnums = int(argnums)
        self._fun, self._kwargs, self._argnums, self._has_aux = fun, kwargs, argnums, has_aux
        self._indices, args = _indices(argnums, args), list(args)
        for index in self._indices:
            args[index] = pytree.all_opened(args[index])
        self._args = args
        self.partitions = [Partition.of(args[index], pytree.is_differentiable_or_traced) for index in self._indices]
        for index, partition in zip(self._indices, self.partitions, strict=True):
            if len(partition.positions) < len(partition.leaves):
                _refuse_tables(argument_of(fun, index), partition)
                _warn_of_integers(argument_of(fun, index), partition)
            if not partition.positions:
                raise NotDifferentiableError(_no_leaves(argument_of(fun, index), args[index]))
        self.leaves = [canonical(leaf) for p in self.partitions for leaf in p.taken]

    def __reduce__(self) -> Any:
        raise PortabilityError(
            f"The pullback of `{self.name}` can't be sent to another process: what it needs was left here. Send the "
            "function that calls `dagad.vjp`, or what `dagad.grad` and `dagad.value_and_grad` return."
        )

    def recipe(self) -> tuple[Any, ...]:
        """Return the arguments that make this program again, of what travels."""
        return self._fun, self._argnums, tuple(self._args), self._kwargs, self._has_aux

    @property
    def name(self) -> str:
        """What sentences call the function."""
        return name_of(self._fun)

    @property
    def identity(self) -> Any:
        """What stays the same when the function is defined again."""
        return identity_of(self._fun)

    def leaf_name(self, leaf: int) -> str:
        """Return what sentences call a leaf that is being differentiated."""
        for index, partition in zip(self._indices, self.partitions, strict=True):
            if leaf < len(partition.positions):
                path = pytree.paths(self._args[index])[partition.positions[leaf]]
                return f"a{argument_of(self._fun, index)[1:]}" + (f", leaf {path}" if path else "")
            leaf -= len(partition.positions)
        return "it"

    def record(self, *, once: bool = False) -> tuple[Any, Any, Callable[[Sequence[Any]], Any]]:
        """Run the program: its value, what came along, and from cotangents of the value's leaves to the gradient.

        With `once` the pullback is called once: the tape goes before the gradient comes, which is not copied then.
        """
        value, aux, ends, roots = self.tape()

        def pullback(seeds: Sequence[Any]) -> Any:
            padded = [*seeds, *[None] * (len(ends) - len(seeds))]
            found = pull(ends, padded, roots, self.leaves)
            if once:
                ends.clear()
                roots.clear()
            return self._gradient(handed_out(found))

        return value, aux, pullback

    def tape(self) -> tuple[Any, Any, list[Any], list[Any]]:
        """Run the program: its value, what came along, the tape's nodes behind the value's leaves, and the roots."""
        output, ends, roots = record(self._run, self.leaves)
        value, aux = self._value_and_aux(output)
        return value, aux, ends if aux is None else ends[: len(pytree.flatten(value)[0])], roots

    def push(self, directions: Sequence[Sequence[Any]]) -> tuple[Any, Any, Any]:
        """Run the program on leaves that move: its value, what came along, and the tangents; see `forward.push`."""
        output, tangents_out = push(self._run, self.leaves, directions)
        value, aux = self._value_and_aux(output)
        return value, aux, list(map(handed_out, tangents_out))

    def _value_and_aux(self, output: Value) -> tuple[Any, Any]:
        """Return the value and what came along, whose leaves stand behind those of the value."""
        if not self._has_aux:
            return output, None
        if not isinstance(output, tuple) or len(output) != 2:
            raise StructureError(
                f"`has_aux=True` was said, but `{self.name}` returned {described(output)}. Return `(value, aux)`, or "
                "leave `has_aux` out."
            )
        return output

    def direction(self, tangents: Sequence[Any]) -> list[Any]:
        """Return one tangent per leaf, from one pytree per argument."""
        found: list[Any] = []
        for index, partition, tangent in zip(self._indices, self.partitions, tangents, strict=True):
            try:
                parts = partition.extract(pytree.all_opened(tangent))
            except StructureError as error:
                raise StructureError(
                    f"{self._tangent_of(index)} has another structure than the argument. Give one number or array for "
                    "each of the argument's, in the same containers; None where nothing moves."
                ) from error
            parts = self.as_they_are(parts)
            if all(map(_is_like, parts, partition.taken)):  # nearly always
                found.extend(parts)
            else:
                what = f"{self._tangent_of(index)}, or a part of it,"
                found.extend(_fitted(part, leaf, what) for part, leaf in zip(parts, partition.taken, strict=True))
        return found

    def as_they_are(self, parts: list[Any]) -> list[Any]:
        """Return tangents or cotangents that nobody can write into, where they may stay on somebody's tape.

        Of members of a `vmap` the arrays themselves are looked at, to see whether one of them changes what others use.
        """
        if not patches.somebody_traces() or (current_member() and not any(map(pytree.is_traced, self.leaves))):
            return parts
        return list(map(snapshot, parts))

    def _tangent_of(self, index: int) -> str:
        """Return what sentences call the tangent of an argument."""
        name = argument_of(self._fun, index)
        return f"The tangent of {name[0].lower()}{name[1:]}"

    def _run(self, leaves: Sequence[Any]) -> Any:
        rest, args = iter(leaves), list(self._args)
        for index, partition in zip(self._indices, self.partitions, strict=True):
            args[index] = partition.merge(rest)
        return self._fun(*args, **self._kwargs)

    def _gradient(self, cotangents: Sequence[Any]) -> Any:
        """Put cotangents into the structure of the arguments; zeros where the value does not depend on a leaf."""
        pairs = zip(cotangents, self.leaves, strict=True)
        return self.arranged([pytree.zeros_like(leaf) if part is None else fitting(part, leaf) for part, leaf in pairs])

    def arranged(self, parts: Sequence[Any]) -> Any:
        """Put one part per leaf into the structure of the arguments."""
        rest = iter(parts)
        gradients = tuple([p.arrange(rest) for p in self.partitions])
        return gradients[0] if isinstance(self._argnums, int) else gradients


def fitting(part: Cotangent, leaf: Leaf) -> Any:
    """Return a cotangent, if it has the shape of its leaf: some rules of autograd's forget what was broadcast."""
    if type(part) is np.ndarray and type(leaf) is np.ndarray and part.shape == leaf.shape:  # nearly always
        return part
    if not pytree.is_sharded(leaf) and np.shape(pytree.plain(part)) != np.shape(pytree.plain(leaf)):
        raise StructureError(
            f"A gradient has the shape {np.shape(pytree.plain(part))}, and its argument "
            f"{np.shape(pytree.plain(leaf))}: autograd's derivative of a function that broadcasts is wrong, such as "
            "`np.where` with a branch smaller than the result, or `np.linalg.norm` with `keepdims`. Broadcast its "
            "arguments first, by `* np.ones(shape)`, or do without that option."
        )
    if pytree.is_traced(part):
        return _typed(part, pytree.plain(leaf))
    # Of a number it is a number, also where rules of autograd's make an array without axes of it.
    return part[()] if type(part) is np.ndarray and not part.ndim and type(leaf) is not np.ndarray else part


def _typed(part: Cotangent, leaf: Leaf) -> Any:
    """Give a traced cotangent the dtype of its leaf; what is not traced has been given it where it was pulled."""
    plain, dtype = pytree.plain(part), pytree.dtype_of(leaf)
    if not isinstance(plain, np.ndarray | np.floating) or plain.dtype == dtype or plain.dtype.kind == "c":
        return part
    typed = part.astype(dtype)
    return typed if isinstance(leaf, np.ndarray) else typed[()]


def _is_like(part: Cotangent, leaf: Leaf) -> bool:
    """Return whether a tangent is a plain array of its leaf's shape and dtype."""
    return type(part) is type(leaf) is np.ndarray and part.dtype is leaf.dtype is _FLOAT and part.shape == leaf.shape


def _fitted(part: Cotangent, leaf: Leaf, what: str) -> Any:
    looked_at = part is not None and not pytree.is_traced(part)
    if looked_at and pytree.is_sharded(leaf):
        plan = pytree.plain(leaf).plan
        if not pytree.is_sharded(part) or part.plan != plan:
            cut = f"Shards of {part.plan}" if pytree.is_sharded(part) else described(part)
            raise StructureError(
                f"{what} is {cut}, where the argument is Shards of {plan}. Give Shards that were cut like it, by "
                f"{plan.how_to_cut('tangent')}."
            )
    elif looked_at and np.asarray(part).dtype.kind not in "fciub":
        raise StructureError(f"{what} is {described(part)}. Give a number, or an array of its argument's shape.")
    return pytree.fitted(part, leaf, what)


_FLOAT = np.dtype(float)
_SEVERAL = (tuple, list)
_INDEX = (int, np.integer)


def _indices(argnums: int | Sequence[int], args: Sequence[Any]) -> list[int]:
    wanted: Any = (argnums,) if isinstance(argnums, int) else argnums
    indices, n_args = list[int](), len(args)
    for index in wanted if isinstance(wanted, _SEVERAL) else ():
        if not isinstance(index, _INDEX):
            indices.clear()
            break
        if not -n_args <= index < n_args:
            raise StructureError(
                f"`argnums={argnums!r}` asks for argument {index}, but the function was called with {n_args} "
                "positional arguments. Pass by position what to differentiate with respect to."
            )
        number = int(index % n_args)
        if number in indices:
            raise StructureError(
                f"`argnums={argnums!r}` asks for argument {number} twice, and a derivative belongs to one "
                "place. Name each argument once, and use what comes out of it twice."
            )
        indices.append(number)
    if not indices:
        raise StructureError(
            f"`argnums={argnums!r}` is neither an int nor a tuple of ints. Give the positions of the arguments to "
            "differentiate with respect to."
        )
    return indices


def check_function(fun: Function, asked: str, argnums: Argnums = 0) -> None:
    """Raise unless a transform was given a function of plain values, and positions of its arguments."""
    if is_dask_collection(fun):
        instead = _OF_COLLECTIONS.get(asked)
        raise NotDifferentiableError(
            f"`dagad.{asked}` takes a function, and was given {described(fun)} of Dask. "
            + (f"Use `dagad.{instead}`." if instead else "Use `dagad.gradient(y, wrt)`, once more of what it returns.")
        )
    if not callable(fun):
        raise ArgumentsError(f"`dagad.{asked}` takes a function, and was given {described(fun)}.")
    positions = argnums if isinstance(argnums, tuple | list) else (argnums,)
    if not all(isinstance(index, _INDEX) for index in positions):
        raise StructureError(
            f"`argnums`, the second argument of `dagad.{asked}`, says which arguments to differentiate with respect "
            f"to, by an int or a tuple of ints; it was given {_listed(argnums)}. `dagad.{asked}` returns a function: "
            f"call that with the arguments, `dagad.{asked}({name_of(fun)})(...)`."
        )


def _listed(argnums: Argnums) -> str:
    """Return what was given as positions, in a few words."""
    if not isinstance(argnums, tuple | list):
        return described(argnums)
    return f"{described(argnums)} of {', '.join(described(one) for one in argnums)}"


_OF_COLLECTIONS = {
    "grad": "gradient(y, wrt)",
    "value_and_grad": "value_and_gradient(y, wrt)",
    "vjp": "gradient(y, wrt)",
    "evaluate": "value_and_gradient(y, wrt)",
}


def _refuse_tables(what: str, argument: Partition) -> None:
    for leaf in (leaf for at, leaf in enumerate(argument.leaves) if at not in argument.positions):
        if pytree.is_table(leaf) or library_of(leaf):
            raise NotDifferentiableError(
                f"{what} holds a `{type(leaf).__name__}`, which can't be differentiated with respect to. "
                + (
                    "Give the array behind it, `.to_numpy()`."
                    if hasattr(leaf, "to_numpy") and not hasattr(leaf, "columns")
                    else BY_COLUMN
                )
            )


def _warn_of_integers(what: str, argument: Partition) -> None:
    """Say which numbers have no derivative, and look as if they had: arrays and lists of records may well be data."""
    held = [at for at, leaf in enumerate(argument.leaves) if at not in argument.positions and _is_integer(leaf)]
    paths = pytree.in_plain_containers(argument.treedef, held) if held and argument.positions else []
    if paths:
        others = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        warn(
            f"{what} holds integers, which have no derivative: the gradient is None for {paths[0]}{others}. Write "
            "`0.0` for `0`, or `float(...)`; what stays constant is better passed as an argument of its own."
        )


def _is_integer(leaf: Leaf) -> bool:
    return type(leaf) is int or isinstance(leaf, np.integer)


def _no_leaves(what: str, argument: Tree) -> str:
    leaves = pytree.flatten(argument)[0]
    collection = next(filter(is_dask_collection, leaves), None)
    if collection is not None:
        return (
            f"{what} holds {a(type(collection).__name__)} of Dask, whose values are not known yet. Compute it "
            "first; or write the function as a graph of `dask.delayed` functions and use `dagad.gradient` or "
            "`dagad.jvp` of that."
        )
    foreign = next((leaf for leaf in leaves if "float" in str(getattr(leaf, "dtype", ""))), None)
    if foreign is not None:
        kind, name = type(foreign), what.partition("`")[2].rstrip("`)") or "..."
        asked = f"np.asarray({name})" if foreign is argument else f"optree.tree_map(np.asarray, {name})"
        return (
            f"{what} holds {a(kind.__name__)} of {kind.__module__.partition('.')[0]}, which is no array of numpy's. "
            f"Give `{asked}`."
        )
    future = next(filter(is_future, leaves), None)
    if future is not None:
        return f"{what} holds {a(type(future).__name__)}, whose value may not be there yet. Give its `.result()`."
    kinds = {str(getattr(leaf, "dtype", type(leaf).__name__)): leaf for leaf in leaves}
    if not leaves:
        held = "is None" if argument is None else "holds no numbers"
        return f"{what} {held}, so there is nothing to differentiate. Give numbers, arrays, or containers of these."
    found = ", ".join(sorted(kinds))
    return f"{what} holds no floating-point numbers, only {found}. {_how_to_float(list(kinds.values()))}"


def _how_to_float(leaves: Sequence[Any]) -> str:
    if all(np.asarray(leaf).dtype == bool for leaf in leaves if isinstance(leaf, bool | np.ndarray | np.generic)):
        if all(isinstance(leaf, bool | np.ndarray | np.generic) for leaf in leaves):
            return "True and False have no derivative: give a number such as `1.0`, or pass them as constants."
    if all(isinstance(leaf, int | np.ndarray | np.generic) for leaf in leaves):
        return "Convert integers with `float(...)` or `.astype(float)`."
    own = next((type(leaf) for leaf in leaves if hasattr(leaf, "__dict__") or _fields_of(type(leaf))), None)
    if own is None:
        return "Give numbers, arrays, or lists, tuples and dicts of these."
    if base := next((base for base in (dict, list, tuple, set) if issubclass(own, base)), None):
        name = base.__name__
        return f"`{own.__name__}` is derived from `{name}`, and may hold more than that: give `{name}(...)` of it."
    fields = _fields_of(own) or {"x": False, "y": False}
    parts = "".join(f"m.{name}, " for name in fields)
    by_name = ", ".join(f"{name}=parts[{index}]" for index, name in enumerate(fields))
    made = f"{own.__name__}({by_name if any(fields.values()) else '*parts'})"
    return (
        f"To look into `{own.__name__}`, register the class with optree: `optree.register_pytree_node({own.__name__}, "
        f'lambda m: (({parts}), None), lambda _, parts: {made}, namespace="dagad")`.'
    )


def _fields_of(cls: type) -> dict[str, bool]:
    """Return the fields that make an object of a dataclass, or of a class of attrs, and whether only their names do."""
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else getattr(cls, "__attrs_attrs__", ())
    return {field.name: bool(field.kw_only) for field in fields if field.init}
