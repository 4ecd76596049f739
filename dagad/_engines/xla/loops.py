"""Loops found again: what Python has unrolled and is the same in each iteration becomes one `jax.lax.scan`.

XLA compiles each equation of a program, and a loop of Python's is as many as its iterations have together, in the value
as in the derivative. So the equations are looked through for the longest stretch that repeats itself. What an equation
takes, over the iterations, is one of these:

* the same value or number in all of them, from before the loop,
* the result of an equation of the same iteration,
* a carry: the result of an equation some iterations earlier, and in the first ones values from before the loop,
* one of `xs`: another value or number from before the loop in each iteration.

What comes out is the last of a carry, or, where other iterations are asked for too, `ys`: all of them, stacked. A body
may have loops in it, and so may what is before and behind. A program in which nothing repeats itself stays as it is. So
does one whose iterations depend on each other in another way, or whose arrays are large: for these XLA gains more by
having in one piece what follows each other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from dagad._types import Array

FEWEST_ITERATIONS = 4
FEWEST_SAVED = 100  # equations: for fewer a loop doesn't pay
LONGEST_ITERATION = 4000  # equations
LARGEST = 4000  # entries of an array: of larger ones, what a loop stores for the way back takes up to twice the time
TRIES = 8  # stretches that repeat themselves, the longest first, of which the iterations may hang together
# What takes parts out of arrays. It is done as soon as the array is there, since it tells iterations apart: the numbers
# of the parts are not values but stand in the equation. Those of what puts parts into zeros, its transpose, become
# values.
_OF_PARTS = frozenset({"slice", "squeeze", "dynamic_slice", "gather", "reshape", "broadcast_in_dim"})
# What calls a program, with where that is; by now all has been differentiated, and rules for that have had their use.
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}


class _Number(NamedTuple):
    """A whole number among the inputs of a step, which stood in the equation."""

    val: int
    aval: Any = jax.core.ShapedArray((), np.dtype(np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An equation, with the numbers of its values; constants among the inputs are as jax has them."""

    kind: Hashable  # what it does
    apply: Callable[..., Any]
    inputs: tuple[Any, ...]
    outputs: tuple[int, ...]
    is_of_parts: bool = False
    n_iterations: ClassVar[int] = 1

    def run(self, values: _Values) -> None:
        """Add to values what it makes of them."""
        values.add(self.outputs, self.apply(*map(values.read, self.inputs)))


_Carry = tuple[list[Any], list[int], int]  # first values, their numbers in the body, the number of the next


@dataclass(slots=True, eq=False)
class RepeatedSteps:
    """Iterations of the same steps."""

    n_iterations: int
    steps: list[Step | RepeatedSteps]
    carries: list[_Carry] = field(default_factory=list)
    xs: list[tuple[list[Any], int]] = field(default_factory=list)  # values of all iterations, the number in the body
    last: dict[int, int] = field(default_factory=dict)  # numbers of values, by numbers of what the body gives at last
    ys: dict[int, dict[int, int]] = field(default_factory=dict)  # the same for several iterations, by iteration

    def run(self, values: _Values) -> None:
        """Add to values what the last iterations give, by a loop of jax's."""
        values.run_loop(self)


class _Flat:
    """A program whose equations are in one row, and have numbers for values, with what they are by number."""

    def __init__(self, program: ClosedJaxpr) -> None:
        self.avals: list[Any] = []
        self._kinds = defaultdict[Hashable, int](count().__next__)
        self.steps: list[Step] = []
        self._texts: dict[int, str] = {}  # of programs in parameters, which many equations share
        self.inputs = [self.new(v.aval) for v in program.jaxpr.invars]
        self.consts: dict[int, Any] = {}
        self.outputs = self._add(program, self.inputs)

    def new(self, aval: object) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def _add(self, program: ClosedJaxpr, given: Sequence[Any]) -> list[Any]:
        jaxpr: Jaxpr = program.jaxpr
        names: dict[Any, Any] = dict(zip(jaxpr.invars, given, strict=True))
        for v, value in zip(jaxpr.constvars, program.consts, strict=True):
            names[v] = self.new(v.aval)
            self.consts[names[v]] = value
        for equation in jaxpr.eqns:
            inputs = [v if _is_constant(v) else names[v] for v in equation.invars]
            called = equation.params.get(_CALLS.get(equation.primitive.name, ""))
            if called is not None:
                made = self._add(called, inputs)
            else:
                made = [self.new(v.aval) for v in equation.outvars]
                self.steps.append(_step(equation, tuple(inputs), tuple(made), self._texts))
            names.update(zip(equation.outvars, made, strict=True))
        return [v if _is_constant(v) else names[v] for v in jaxpr.outvars]

    def hoist(self) -> None:
        """Take parts of arrays right after these are there, each part once."""
        row_of, rows = dict[int, int](), [dict[Hashable, Step]()]  # the row of each value, and the steps of each row
        same = dict[Any, int]()  # parts that were taken before, by those taken again
        for step in self.steps:
            inputs = _renamed(step.inputs, same)
            if not step.is_of_parts:
                rows.append({})
            row = max((row_of.get(v, 0) for v in _values(inputs)), default=0) if step.is_of_parts else len(rows) - 1
            key = (self.kind(step), *map(_atom_key, inputs)) if step.is_of_parts else None
            before = rows[row].setdefault(key, replace(step, inputs=tuple(inputs)))
            same.update((v, old) for v, old in zip(step.outputs, before.outputs, strict=True) if v != old)
            row_of.update(dict.fromkeys(step.outputs, row))
        self.steps = [step for row in rows for step in row.values()]
        self.outputs = _renamed(self.outputs, same)

    def prune(self) -> None:
        """Leave out what nothing needs: a loop would store it."""
        needed, kept = set(_values(self.outputs)), list[Step]()
        for step in reversed(self.steps):
            if not needed.isdisjoint(step.outputs):
                needed.update(_values(step.inputs))
                kept.append(step)
        self.steps = kept[::-1]

    def kind(self, step: Step) -> int:
        """Return by what the steps of one iteration are told from each other."""
        avals = map(self.aval, (*step.inputs, *step.outputs))
        return self._kinds[step.kind, tuple(map(_shape_of, avals))]

    def aval(self, atom: Any) -> Any:
        return atom.aval if _is_constant(atom) else self.avals[atom]


def rolled(program: ClosedJaxpr) -> ClosedJaxpr | None:
    """Return a traced program whose loops are loops again; None where none is found."""
    if len(program.jaxpr.eqns) < FEWEST_ITERATIONS or program.jaxpr.effects:
        return None
    flat = _Flat(program)
    if len(flat.steps) < FEWEST_SAVED:
        return None
    flat.hoist()
    flat.prune()
    steps = _Search(flat).found(flat.steps, set(_values(flat.outputs)))
    if all(step.n_iterations == 1 for step in steps):
        return None

    def run(*inputs: Any) -> list[Any]:
        values = _Values(flat, dict(zip(flat.inputs, inputs, strict=True)) | flat.consts, {})
        values.run(steps)
        return [values.read(v) for v in flat.outputs]

    struct: Any = jax.ShapeDtypeStruct  # jax has no types for it
    given = [struct(a.shape, a.dtype, weak_type=a.weak_type) for a in program.in_avals]
    return jax.make_jaxpr(run)(*given)


class _Search:
    """How loops are found in steps."""

    def __init__(self, flat: _Flat) -> None:
        self._flat = flat

    def found(self, steps: list[Any], needed: set[int]) -> list[Any]:
        """Return steps with loops, which give the values that are needed after them."""
        kinds = np.array([self._flat.kind(step) for step in steps], int)
        for start, length, n_iterations in _repeated(kinds):
            loop = self._loop(steps, start, length, n_iterations, needed)
            if loop is not None:
                end = start + length * n_iterations
                loop.steps = self.found(loop.steps, {n for *_, n in loop.carries} | loop.last.keys() | loop.ys.keys())
                behind = {v for step in steps[start:] for v in _values(step.inputs)}
                return [*self.found(steps[:start], needed | behind), loop, *self.found(steps[end:], needed)]
        return list(steps)

    def _loop(
        self, steps: list[Step], start: int, length: int, n_iterations: int, needed: set[int]
    ) -> RepeatedSteps | None:
        """Return a stretch as a loop; None where its iterations hang together in another way."""
        iterations = [steps[start + k * length : start + (k + 1) * length] for k in range(n_iterations)]
        made = {
            v: (k, j, o)
            for k, each in enumerate(iterations)
            for j, s in enumerate(each)
            for o, v in enumerate(s.outputs)
        }
        if not all(_is_numeric(a) and math.prod(a.shape) <= LARGEST for a in map(self._flat.avals.__getitem__, made)):
            return None
        inside = _Iterations(self._flat, iterations, made)
        body = list[Step | RepeatedSteps]()
        for j, step in enumerate(iterations[0]):
            inputs = [inside.input([each[j].inputs[i] for each in iterations]) for i in range(len(step.inputs))]
            if None in inputs:
                return None
            body.append(replace(step, inputs=tuple(inputs)))
        loop = inside.loop
        loop.steps = body
        behind = needed | {v for step in steps[start + length * n_iterations :] for v in _values(step.inputs)}
        inside.give(behind)
        return loop


def _repeated(kinds: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield stretches that repeat themselves, the longest first: where they begin, how long a part is, how many."""
    found = list[tuple[int, int, int, int]]()
    for length in range(1, min(len(kinds) // FEWEST_ITERATIONS, LONGEST_ITERATION) + 1):
        differ = np.flatnonzero(kinds[length:] != kinds[:-length])
        edges = np.concatenate([[-1], differ, [len(kinds) - length]])
        runs = np.diff(edges) - 1
        start, run = int(edges[runs.argmax()]) + 1, int(runs.max())
        if length * (run // length) >= FEWEST_SAVED and run // length + 1 >= FEWEST_ITERATIONS:
            found.append((length * (run // length), length, start, run))
    found.sort(key=lambda one: (-one[0], one[1]))
    for _, length, start, run in found[:TRIES]:
        n_iterations = run // length + 1
        yield start, length, n_iterations
        yield start + run % length, length, n_iterations
        for left in (1, 2):
            if n_iterations - left >= FEWEST_ITERATIONS:
                yield start + left * length, length, n_iterations - left
                yield start, length, n_iterations - left


class _Iterations:
    """What goes in and out of the iterations of a loop that is being made."""

    def __init__(self, flat: _Flat, iterations: list[list[Step]], made: dict[int, tuple[int, int, int]]) -> None:
        self._flat, self._iterations, self._made = flat, iterations, made
        self.loop = RepeatedSteps(len(iterations), [])
        self._known: dict[Hashable, int] = {}

    def input(self, atoms: list[Any]) -> Any:
        """Return what an equation of the body takes, given what it takes in each iteration; None if that is no loop."""
        first = next((k for k, v in enumerate(atoms) if not _is_constant(v) and v in self._made), None)
        if first is None:
            return self._fixed_or_xs(atoms)
        _, j, o = self._made[atoms[first]]
        lag = first - self._made[atoms[first]][0]
        if lag != first or any(
            _is_constant(v) or self._made.get(v) != (k - lag, j, o) for k, v in enumerate(atoms) if k >= first
        ):
            return None
        return atoms[0] if lag == 0 else self._carry(atoms[:lag], self._iterations[0][j].outputs[o])

    def _fixed_or_xs(self, atoms: list[Any]) -> Any:
        if all(_same(v, atoms[0]) for v in atoms):
            return atoms[0]
        key = "xs", tuple(map(_atom_key, atoms))
        if key not in self._known:
            if not _is_numeric(self._flat.aval(atoms[0])):
                return None
            self._known[key] = self._flat.new(self._flat.aval(atoms[0]))
            self.loop.xs.append((atoms, self._known[key]))
        return self._known[key]

    def _carry(self, first: list[Any], made: int) -> int:
        key = "carry", tuple(map(_atom_key, first)), made
        if key not in self._known:
            numbers = [self._flat.new(self._flat.avals[made]) for _ in first]
            self.loop.carries.append((first, numbers, made))
            self._known[key] = numbers[0]
        return self._known[key]

    def give(self, needed: set[int]) -> None:
        """Note what is needed behind the loop."""
        asked = defaultdict[int, dict[int, int]](dict)
        for v, (k, j, o) in self._made.items():
            if v in needed:
                asked[self._iterations[0][j].outputs[o]][k] = v
        for name, by_iteration in asked.items():
            if by_iteration.keys() == {self.loop.n_iterations - 1}:
                self.loop.last[name] = by_iteration[self.loop.n_iterations - 1]
            else:
                self.loop.ys[name] = by_iteration


class _Values:
    """Values while a program with loops is traced again, by their numbers, and the stacks that some of them are in."""

    def __init__(self, flat: _Flat, known: dict[int, Any], stacks: dict[int, tuple[Any, int]]) -> None:
        self._flat, self._known, self._stacks = flat, known, stacks

    def read(self, atom: Any) -> Any:
        if _is_constant(atom):
            return atom.val
        if atom not in self._known:
            stack, index = self._stacks[atom]
            self._known[atom] = jax.lax.index_in_dim(stack, index, keepdims=False)
        return self._known[atom]

    def run(self, steps: Sequence[Step | RepeatedSteps]) -> None:
        for step in steps:
            step.run(self)

    def add(self, numbers: Sequence[int], found: Sequence[Any]) -> None:
        self._known.update(zip(numbers, found, strict=True))

    def run_loop(self, loop: RepeatedSteps) -> None:
        first = [[self._typed(v, made) for v in values] for values, _, made in loop.carries]
        own = [name for name in loop.last if name not in {made for _, _, made in loop.carries}]
        empty = [jnp.zeros(self._flat.avals[name].shape, self._flat.avals[name].dtype) for name in own]

        def one(state: Any, xs: Any) -> Any:
            carries, _ = state
            inside = _Values(self._flat, dict(self._known), dict(self._stacks))
            for (_, names, _), carry in zip(loop.carries, carries, strict=True):
                inside._known.update(zip(names, carry, strict=True))
            inside._known.update(zip((name for _, name in loop.xs), xs, strict=True))
            inside.run(loop.steps)
            after = [[*carry[1:], inside.read(made)] for (_, _, made), carry in zip(loop.carries, carries, strict=True)]
            return (after, list(map(inside.read, own))), list(map(inside.read, loop.ys))

        xs = [self._stacked(atoms, name) for atoms, name in loop.xs]
        (carries, rest), stacks = jax.lax.scan(one, (first, empty), xs, loop.n_iterations)
        found = dict(zip(own, rest, strict=True))
        found |= {made: carry[-1] for (_, _, made), carry in zip(loop.carries, carries, strict=True)}
        self._known.update({v: found[name] for name, v in loop.last.items()})
        for stack, by_iteration in zip(stacks, loop.ys.values(), strict=True):
            self._stacks.update({v: (stack, k) for k, v in by_iteration.items()})

    def _typed(self, atom: object, like: int) -> Any:
        return jnp.asarray(self.read(atom), self._flat.avals[like].dtype)

    def _stacked(self, atoms: list[Any], name: int) -> Any:
        """Return values of all iterations in one array; those that come out of a loop are in one already."""
        if all(map(_is_constant, atoms)):
            return np.array([v.val for v in atoms], atoms[0].aval.dtype)
        parts, k = [], 0
        while k < len(atoms):
            n, step = self._run_of(atoms[k:])
            if n < 2:
                parts.append(self._typed(atoms[k], name)[None])
            else:
                stack, index = self._stacks[atoms[k]]
                low = min(index, index + step * (n - 1))
                part = jax.lax.slice_in_dim(stack, low, low + n)
                parts.append(part if step > 0 else jax.lax.rev(part, (0,)))
            k += max(n, 1)
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)

    def _run_of(self, atoms: list[Any]) -> tuple[int, int]:
        """Return how many of the first values follow each other in a stack, and in which direction."""
        indices = [(None, 0) if _is_constant(v) else self._stacks.get(v, (None, 0)) for v in atoms]
        (stack, first), n = indices[0], 1
        if stack is None or len(indices) < 2 or abs(step := indices[1][1] - first) != 1:
            return 1, 1
        while n < len(indices) and indices[n][0] is stack and indices[n][1] == first + n * step:
            n += 1
        return n, step


def _step(equation: Any, inputs: tuple[Any, ...], outputs: tuple[int, ...], texts: dict[int, str]) -> Step:
    name, params = equation.primitive.name, equation.params
    if name == "pad" and all(low >= 0 and high >= 0 and not between for low, high, between in params["padding_config"]):
        starts = [_Number(int(low)) for low, _, _ in params["padding_config"]]
        return Step(name, partial(_written_into, equation.outvars[0].aval.shape), (*inputs, *starts), outputs)
    kind = equation.primitive, _key(params, texts)
    return Step(kind, partial(_bound, equation), inputs, outputs, name in _OF_PARTS)


def _bound(equation: Any, *given: Any) -> Any:
    found = equation.primitive.bind(*given, **equation.primitive.get_bind_params(equation.params))
    return found if equation.primitive.multiple_results else [found]


def _written_into(shape: tuple[int, ...], part: Array, rest: Array, *starts: Any) -> Any:
    """Return an array with a part where it starts, and elsewhere a number."""
    if all(isinstance(start, int) for start in starts):
        ends = [n - start - own for n, start, own in zip(shape, starts, part.shape, strict=True)]
        return [jax.lax.pad(part, rest, [(start, end, 0) for start, end in zip(starts, ends, strict=True)])]
    indices = [jnp.asarray(start, np.int32) for start in starts]
    return [jax.lax.dynamic_update_slice(jnp.broadcast_to(rest, shape), part, indices)]


def _is_constant(atom: object) -> bool:
    return hasattr(atom, "val")


def _values(atoms: Sequence[Any]) -> Iterator[int]:
    return (v for v in atoms if not _is_constant(v))


def _renamed(atoms: Sequence[Any], names: dict[Any, int]) -> list[Any]:
    return [v if _is_constant(v) else names.get(v, v) for v in atoms]


def _same(a: object, b: object) -> bool:
    return _atom_key(a) == _atom_key(b)


def _atom_key(atom: Any) -> Hashable:
    return (str(atom.aval), np.asarray(atom.val).tobytes()) if _is_constant(atom) else atom


def _shape_of(aval: object) -> Hashable:
    return getattr(aval, "shape", None), str(getattr(aval, "dtype", aval))


def _is_numeric(aval: object) -> bool:
    dtype = getattr(aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "biufc"


def _key(part: object, texts: dict[int, str]) -> Hashable:
    """Return what two parameters of equations have in common that mean the same; `texts` has those of programs."""
    if isinstance(part, dict):
        return tuple((name, _key(part[name], texts)) for name in sorted(part))
    if isinstance(part, tuple | list):
        return tuple([_key(each, texts) for each in part])
    if isinstance(part, ClosedJaxpr):
        return _key(part.jaxpr, texts), tuple(map(id, part.consts))
    if isinstance(part, Jaxpr):
        if id(part) not in texts:
            texts[id(part)] = str(part)
        return texts[id(part)]
    try:
        hash(part)
    except TypeError:
        return "only itself", id(part)
    return type(part), part
