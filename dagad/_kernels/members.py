"""Many members' jobs as one: a kernel that runs each member's own on the rows of a chunk, which are read once for all.

Members share the rows and differ in what they carry and in their shared leaves, which come in groups, member by member,
as directions do. What is reduced is one term for each member, each added up by itself on the same fixed tree: so each
has the bits that it has alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from types import MemberDescriptorType
from typing import Any

import numpy as np

from dagad._graphs.linearization import PullbackFunction, pulled_many
from dagad._graphs.monoids import Monoid
from dagad._kernels.chunks import ChunkContext, ChunkFunction
from dagad._kernels.inputs import Targets, times
from dagad._kernels.job import Job, Land, Results
from dagad._kernels.kernel import Groups, Kernel, LeafNames, Outputs, Seeds, in_groups, split_groups
from dagad._sources.packed import Unpacked
from dagad._types import AnyRows, Value
from dagad._values import pytree
from dagad._values.shipping import opened
from dagad_scheduler.roles import Role


class Members(Kernel):
    """The kernels of some members on the same rows; one kernel for all where they are the same.

    Groups of leaves: those of the first member, then of the second, and so on.
    """

    __slots__ = (
        "_each",
        "copies",
        "count",
        "function",
        "gives",
        "pulls_itself",
        "reduces",
        "role",
        "stacks",
        "unpacks_itself",
    )

    def __init__(self, each: Sequence[Kernel], count: int) -> None:
        self._each: tuple[Kernel, ...] = tuple([opened(kernel) for kernel in each])
        self.count, self.function = count, self._each[0]
        self.reduces, self.stacks = self.function.reduces, self.function.stacks
        self.copies = count * self.function.copies
        self.role: Role = self.function.role
        self.gives, self.pulls_itself = self.function.gives, self.function.pulls_itself
        self.unpacks_itself = self.function.unpacks_itself

    def state(self) -> tuple[Any, ...]:
        return self._each, self.count

    def _members(self, shared: Groups, sliced: Groups) -> list[tuple[Kernel, Groups, Groups]]:
        each = self._each * self.count if len(self._each) == 1 else self._each
        return list(zip(each, split_groups(shared, self.count), split_groups(sliced, self.count), strict=True))

    def run(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups) -> Outputs:
        return _together([kernel.run(context, rows, *own) for kernel, *own in self._members(shared, sliced)])

    def value(self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups = ()) -> Outputs:
        """Run one chunk for each member, tracing nothing."""
        return _together([kernel.value(context, rows, *own) for kernel, *own in self._members(shared, sliced)])

    def record(
        self, context: ChunkContext, rows: AnyRows, shared: Groups, sliced: Groups = (), *, with_grad: bool = False
    ) -> Any:
        """Run one chunk traced for each member; None for the pullback where no member has one."""
        members = self._members(shared, sliced)
        made = [kernel.record(context, rows, *own, with_grad=with_grad) for kernel, *own in members]
        parts = _together([one[0] for one in made])
        if all(pull is None for _, pull, _ in made):
            return parts, None, int
        pairs = zip(made, members, strict=True)
        pullback = _Pullbacks([(_n_seeds(kernel, one), pull, own) for (one, pull, _), (kernel, *own) in pairs])
        return parts, pullback, lambda: sum(nbytes() for _, _, nbytes in made)

    def stacked_like(self, sliced: Groups) -> list[Any] | None:
        """Return the inputs that each member's stacked outputs correspond to."""
        found = [self.function.stacked_like(own) for own in split_groups(sliced, self.count)]
        return None if found[0] is None else [leaf for some in found for leaf in some or ()]

    def unpacked(self, sliced: Groups) -> list[list[Unpacked | None]]:
        """Unpack what is packed as each member does."""
        each = self._members((), sliced)
        return [group for kernel, _, own in each for group in kernel.unpacked(own)]

    def on_leaves(self, groups: Groups) -> Kernel:
        """Return the kernel that is given the leaves of what was packed; see `Kernel`."""
        return Members([kernel.on_leaves(own) for kernel, _, own in self._members((), groups)], self.count)

    @property
    def of_users(self) -> Sequence[ChunkFunction]:
        """The functions of all members."""
        return [one for kernel in self._each for one in kernel.of_users]

    @property
    def of_user(self) -> ChunkFunction:
        """The function of the first member."""
        found: ChunkFunction = self.function.of_user
        return found

    def check(self, reduced: Value, n_shared: int) -> None:
        """Raise unless what somebody has sent may be the sums of all members."""
        for part in reduced:
            self.function.check(part, n_shared // self.count)

    def inputs(self, names: LeafNames) -> LeafNames:
        """Return the names of all members' leaves."""
        inner = self.function.inputs(names)
        return LeafNames(inner.shared * self.count, inner.sliced * self.count)

    @property
    def name(self) -> str:
        """What the function of the first member is called."""
        return str(self.function.name)

    @property
    def signature(self) -> tuple[Any, ...]:
        """What tells these apart: as many members cost the same."""
        return type(self), self.count, *self.function.signature


def _together(parts: Sequence[Outputs]) -> Outputs:
    """Return what members gave, as one: in all chunks in the same order."""
    stacked = [leaf for one in parts for leaf in one.stacked]
    return Outputs(tuple([one.reduced for one in parts]), stacked, tuple([one.note for one in parts]))


def _n_seeds(kernel: Kernel, parts: Outputs) -> tuple[int, int]:
    """Return how many seeds the pullback of a chunk takes, of what it reduces and of what it stacks."""
    seeded = Outputs(parts.reduced[0], []) if kernel.pulls_itself else Outputs(parts.reduced, [])
    return len(seeded.all_leaves()), len(parts.stacked)


class _Pullbacks:
    """The pullbacks of one chunk, of all members: takes their seeds, one member after the other; first the reduced."""

    __slots__ = ("_members",)

    def __init__(self, members: Sequence[tuple[tuple[int, int], PullbackFunction | None, Sequence[Groups]]]) -> None:
        self._members = members

    def __call__(self, seeds: Seeds) -> tuple[Any, ...]:
        found = self.many([seeds])[0]
        assert found is not None
        return found

    def many(self, many: Sequence[Seeds | None]) -> list[tuple[Any, ...] | None]:
        """Pull many seeds; None where there are none."""
        seeds = [None if some is None else self._by_member(some) for some in many]
        each = [
            self._of_member(number, [None if some is None else some[number] for some in seeds])
            for number in range(len(self._members))
        ]
        shared, sliced = ([group for _, _, own in self._members for group in own[index]] for index in (0, 1))
        found = list[tuple[Any, ...] | None]()
        for index, some in enumerate(seeds):
            parts = [member[index] for member in each]
            flat = [leaf for own, _ in parts for leaf in own] + [leaf for _, own in parts for leaf in own]
            found.append(None if some is None else in_groups(flat, shared, sliced))
        return found

    def _by_member(self, seeds: Seeds) -> list[list[Any]]:
        """Return the seeds of each member: those of what it reduces, then of what it stacks."""
        rest, found = iter(seeds), list[list[Any]]()
        counts = [count for count, _, _ in self._members]
        for n_reduced, _ in counts:
            found.append([next(rest) for _ in range(n_reduced)])
        for own, (_, n_stacked) in zip(found, counts, strict=True):
            own.extend(next(rest, None) for _ in range(n_stacked))
        return found

    def _of_member(self, number: int, many: Sequence[Any]) -> list[tuple[list[Any], list[Any]]]:
        """Return the cotangents of a member's shared and sliced leaves for many seeds."""
        _, pull, (shared, sliced) = self._members[number]
        some = [None if one is None or all(seed is None for seed in one) else one for one in many]
        pulled = [None] * len(some) if pull is None else _pulled_as_alone(pull, some)
        n_shared, leaves = sum(map(len, shared)), [leaf for group in sliced for leaf in group]
        found = list[tuple[list[Any], list[Any]]]()
        for parts in pulled:
            if parts is None:
                found.append(([None] * n_shared, list(map(pytree.zeros_like, map(pytree.plain, leaves)))))
            else:
                found.append((list(parts[0]) if n_shared else [], list(parts[-1]) if leaves else []))
        return found


def _pulled_as_alone(pull: PullbackFunction, many: Sequence[Seeds | None]) -> list[tuple[Any, ...] | None]:
    """Pull a member's seeds; a single one, among those of others, by itself, as it would be pulled without them."""
    if sum(seeds is not None for seeds in many) == 1:
        return [None if seeds is None else pull(seeds) for seeds in many]
    return pulled_many(pull, many)


@dataclass(frozen=True, slots=True)
class EachItsOwn:
    """How what all members give is added up: each member's by the same monoid."""

    monoid: Monoid

    def lift(self, term: Value) -> Any:
        return None if term is None else tuple([None if one is None else self.monoid.lift(one) for one in term])

    def add(self, a: Value, b: Value, ours: bool) -> Any:
        return tuple([self._add(*pair, ours) for pair in zip(a, b, strict=True)])

    def _add(self, a: Value, b: Value, ours: bool) -> Any:
        if a is None or b is None:
            return b if a is None else a
        return self.monoid.add(a, b, ours)

    def lower(self, total: Value) -> Any:
        return None if total is None else tuple([None if one is None else self.monoid.lower(one) for one in total])


class Together:
    """The jobs of some members as one."""

    def __init__(self, jobs: Sequence[Job], kernels: Sequence[Kernel]) -> None:
        first, count = jobs[0], len(jobs)
        kernel, n_theta = Members(kernels, count), first.n_shared
        leaves = [leaf for job in jobs for leaf in job.leaves[:n_theta]]
        leaves += [leaf for job in jobs for leaf in job.leaves[n_theta:]]
        at = None if first.stacked_at is None else times(first.stacked_at, count)
        self.jobs = jobs
        self.job = first._replace(
            kernel=kernel,
            inputs=first.inputs.times(count),
            leaves=leaves,
            monoid=EachItsOwn(first.monoid),
            stacked_at=at,
            land=None,
        )

    def split(self, results: Results) -> list[Results]:
        """Return the results of each member."""
        lowered = self.job.monoid.lower(results.reduced) if self.job.kernel.reduces else [None] * len(self.jobs)
        found = []
        for number, (job, reduced) in enumerate(zip(self.jobs, lowered, strict=True)):
            own = Results.of(job)
            own.reduced, own.spent, own.ran_by = reduced, results.spent, results.ran_by
            own.refusals, own.n_compiled = results.refusals, results.n_compiled
            for chunk, stacked in enumerate(results.stacked):
                each = len(stacked) // len(self.jobs)
                own.stacked[chunk] = list(stacked[number * each : (number + 1) * each])
                own.notes[chunk] = (results.notes[chunk] or [None] * len(self.jobs))[number]
            found.append(own)
        return found

    def n_reduced(self, number: int, reduced: Value) -> int:
        """Return how many seeds a member's pullback takes of what it reduces."""
        if not self.job.kernel.reduces:
            return 0
        lowered = self.jobs[number].monoid.lower(reduced)
        value = lowered[0] if self.job.kernel.pulls_itself else lowered
        return len(Outputs(value, []).all_leaves())

    def land(self, lands: Sequence[Land | None]) -> Land:
        """Return what lets each member's cotangents land at its own; None for those who did not pull."""
        n_shared, n_leaves = self.jobs[0].n_shared, len(self.jobs[0].leaves)
        count, n_sliced = len(self.jobs), n_leaves - n_shared

        def land(targets: Targets, cotangents: Sequence[Any] | None, seeds: range) -> None:
            own: list[tuple[Targets, list[int]]] = [([], []) for _ in range(count)]
            for index, (leaf, rows) in enumerate(targets):
                if leaf < count * n_shared:
                    number, mine = divmod(leaf, n_shared)
                else:
                    number, mine = divmod(leaf - count * n_shared, n_sliced)
                    mine += n_shared
                own[number][0].append((mine, rows))
                own[number][1].append(index)
            starts = range(0, len(cotangents or ()), max(len(targets), 1))
            for (mine_at, indices), take in zip(own, lands, strict=True):
                if mine_at and take is not None:
                    parts = None if cotangents is None else [cotangents[start + n] for start in starts for n in indices]
                    take(mine_at, parts, seeds)

        return land


class SeedsTogether:
    """The seeds of all members; see `job.Seeds`."""

    def __init__(self, each: Sequence[Any]) -> None:
        self._each = each
        self.floats = [seed for one in each for seed in one.floats]
        self.reduced = [seed for one in each for seed in one.reduced]

    def stacked(self, number: int) -> list[Any]:
        """Return the seeds of the stacked leaves of one chunk."""
        return [seed for one in self._each for seed in one.stacked(number)]

    @property
    def sharded(self) -> list[Any]:
        """Those of stacked leaves that are Shards."""
        return [seed for one in self._each for seed in one.sharded]


class NoSeeds:
    """Those of a member that does not pull: so many of what it reduces, and of what each chunk stacks."""

    def __init__(self, n_reduced: int, n_stacked: Sequence[int], n_sharded: int) -> None:
        self.floats: list[Any] = []
        self.reduced, self.sharded = [None] * n_reduced, [None] * n_sharded
        self._n_stacked = n_stacked

    def stacked(self, number: int) -> list[Any]:
        """Return the seeds of the stacked leaves of one chunk."""
        return [None] * (self._n_stacked[number] if self._n_stacked else 0)


def has_same_rows(one: Job, other: Job) -> bool:
    """Return whether two jobs visit the same rows, to the last bit, cut alike, with as many leaves for each chunk."""
    if one.plan != other.plan or one.sliced.treedef != other.sliced.treedef or one.inputs != other.inputs:
        return False
    if one.stacked_at != other.stacked_at or one.runs != other.runs or not has_same_fields(one.monoid, other.monoid):
        return False
    forms = [job.sliced.treedef for job in (one, other)]
    # What records hold as metadata is compared by them, for whom -0.0 is 0.0.
    if not forms[0].is_leaf() and not is_same(*map(pytree.metadata_of, forms)):
        return False
    return all(map(has_same_fields, one.sliced.columns, other.sliced.columns))


def has_same_fields(one: object, other: object) -> bool:
    """Return whether two things are one, or of one dataclass, with the same fields and nothing else in them."""
    if one is other:
        return True
    cls: Any = type(one)
    look: Any = _only_fields_of_ours if cls.__module__.startswith("dagad.") else _only_fields
    names: frozenset[str] | None = look(cls) if cls is type(other) else None
    if names is None or not names.issuperset(getattr(one, "__dict__", ())):
        return False
    if not names.issuperset(getattr(other, "__dict__", ())):
        return False
    return all([is_same(getattr(one, name, None), getattr(other, name, None)) for name in names])


def _only_fields(cls: Any) -> frozenset[str] | None:
    """Return the names of a dataclass's fields; None where instances have room for more than these and a `__dict__`."""
    if "__dataclass_fields__" not in vars(cls):  # inherited they leave out what the class adds
        return None
    names = frozenset([field.name for field in dataclasses.fields(cls)])
    members = [item for base in cls.__mro__ for item in vars(base).items()]
    slots = {name for name, part in members if type(part) is MemberDescriptorType}
    return names if slots <= names and not any(map(_is_built_in, cls.__mro__)) else None


@functools.cache  # others' classes may come and go
def _only_fields_of_ours(cls: Any) -> frozenset[str] | None:
    return _only_fields(cls)


def _is_built_in(cls: type) -> bool:
    """Return whether a class may hold what is no attribute: a number, or the items of a list."""
    return cls is not object and not cls.__flags__ & HEAP_TYPE


HEAP_TYPE = 1 << 9  # `Py_TPFLAGS_HEAPTYPE`: a class that Python code has defined
_EXACT = frozenset({int, str, bool, bytes, range, slice, type(None)})


def is_same(one: Any, other: Any) -> bool:
    """Return whether two things are the same to the last bit, as far as that is seen at a glance."""
    if one is other:
        return True
    cls = type(one)
    if cls is not type(other):
        return False
    if cls in _EXACT:
        return bool(one == other)
    if cls is float or cls is complex or isinstance(one, np.generic):  # -0.0 equals 0.0, and a nan may hold something
        a, b = np.asarray(one), np.asarray(other)
        return a.dtype == b.dtype and not a.dtype.hasobject and a.tobytes() == b.tobytes()
    if cls is np.ndarray:  # others may hold more than numbers: a mask, a unit
        return bool(one.__array_interface__ == other.__array_interface__)  # the same memory
    if cls is list or cls is tuple:
        return len(one) == len(other) and all(map(is_same, one, other))
    if cls is dict:
        return is_same([*one.items()], [*other.items()])
    drawn = getattr(one, "drawn", None)
    if drawn is not None and other.drawn is not None:  # the same chunks of the same Shards
        return drawn.whole is other.drawn.whole and drawn.numbers == other.drawn.numbers
    return False
