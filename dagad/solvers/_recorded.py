"""Right-hand sides of few numbers, with tangents: the operations of one call, written down as a program of floats.

Of two or three states nearly all time goes into following the user's function, call by call. So its operations are
recorded once. What they do to numbers, and to their tangents in each direction, becomes a Python function of floats,
which does what the tracer does, in the same order, so with the same bits. What decides in the function, a comparison,
is compared again, and where it comes out otherwise than in all programs so far, the function is recorded anew. The
time is recorded too: what depends on it is no constant.

Not everything can be seen so: a function may read what it changes. One that has changed anything as scipy ran it is
not recorded. Of others a program is used only where it gives all bits that the tracer gives, at the first call and at a
later time, and at each call the function itself has to return its slopes, at parameters nearby; else the tracer does
it. What can't be recorded, as arrays, other operations and `float(y[0])`, is left to it as well.

States of `RecordedSlopes`: nothing recorded yet, recorded, given up.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import numpy as np

from dagad._tracing.stacked_tangents import FLOAT
from dagad._types import Array, Leaf
from dagad.solvers._programs import MOST_RECORDS, Portable, keep, kept, maker
from dagad.solvers._recorded_arrays import RecordedArray, entries
from dagad.solvers._recording import MOST_LINES, NotRecorded, Number, Recording, parts_of
from dagad.solvers._stepping import Slopes

MOST_DIRECTIONS, MOST_STATES = 64, 600  # states with their tangents: of more, arrays are as quick
Field = Callable[[Any, Any], Any]


class RecordedSlopes:
    """Slopes of states and of their tangents, from a program where there is one that holds.

    Parameters
    ----------
    written
        Returns the slopes of the states alone at some parameters, as they can be recorded.
    bare
        Returns the same at those that are given, of plain states.
    nearby
        Other parameters, and the same at these; None where slopes are compared at those that are given.
    params, stacks
        The parameters that move, and their tangents in all directions.
    count
        How many directions there are.
    usual
        The slopes by the tracer.
    key
        What is the same where the same is computed of the parameters that move, if the function is known to compute and
        nothing else: its programs are kept, and not compared with it at each call. Else None.
    """

    def __init__(
        self,
        written: Callable[[Sequence[Any]], Field],
        bare: Callable[[], Field],
        nearby: tuple[Sequence[Any], Field] | None,
        params: Sequence[Any],
        stacks: Sequence[Any],
        count: int,
        usual: Field,
        key: Any = None,
    ) -> None:
        self._written, self._params, self._stacks, self._usual = written, params, stacks, usual
        self._bare, self._nearby, self._count, self._key = bare, nearby, count, key
        self._programs: list[Callable[..., Any]] = []  # the one that was used last is the first
        self._probes: dict[Callable[..., Any], Callable[..., Any]] = {}  # of programs, at the parameters nearby
        self._new: dict[Callable[..., Any], Leaf] = {}  # those that have not been compared again, with their times
        self._quick: Slopes | None = None  # the first program with its comparison, once it has been compared again
        self._n_records = self._n_lines = 0
        self._portable: dict[Callable[..., Any], Portable] = {}  # of programs that are to be kept
        self._programs += [program.at(params, stacks) for program in kept(key)]
        if self._programs:
            self._quick = self._checked(self._programs[0], 0)

    def __call__(self, t: Leaf, y: Array) -> Any:
        if self._quick is not None:  # nearly always
            # The tracer meets errors too, and says whose they are; of parameters nearby nobody is told.
            with contextlib.suppress(Exception), np.errstate(all="ignore"):
                return np.array(self._quick(float(t), y.tolist()), float)
        found = self._by_program(t, y) if self._programs else None
        if found is None:
            found = self._usual(t, y)
            if self._n_records < MOST_RECORDS and self._n_lines < MOST_LINES:
                self._record(t, y, found)
        elif self._new and self._new.get(self._programs[0], t) != t:
            return self._compared(t, y, found)
        return found

    @property
    def numbers(self) -> Slopes | None:
        """Returns finite slopes of floats, with an error where there is more to say; None if there are none."""
        return self._quick

    def _compared(self, t: Leaf, y: Array, found: Array) -> Any:
        """Return the tracer's slopes once more: at the start much may be zero that has derivatives later."""
        program = self._programs[0]
        del self._new[program]
        usual = self._usual(t, y)
        if usual.tobytes() != found.tobytes():
            self._give_up()
        elif program in self._portable:
            keep(self._key, self._portable.pop(program))
        return usual

    def _by_program(self, t: Leaf, y: Array) -> Any:
        """Return the slopes by the first program that decides as the function does here; None where none does."""
        n = len(y) // (1 + self._count)
        try:
            for index, program in enumerate(self._programs):
                found = program(float(t), *y.tolist())
                if found is None:
                    continue
                if not self._is(program, found, t, y[:n]):
                    self._give_up()
                    return None
                if index:
                    self._programs.insert(0, self._programs.pop(index))
                if index or self._quick is None:
                    self._quick = self._checked(program, n)
                # Python's numbers overflow without the warnings that numpy's have.
                return np.array(found, float) if isfinite(sum(found)) else None
        except Exception:  # the tracer meets it too, and says whose it is
            return None
        return None

    def _checked(self, program: Callable[..., Any], n: int) -> Slopes | None:
        """Return a program that compares itself nearby; it raises an error where there is more to say."""
        probe = self._probes.get(program)
        if program in self._new or (probe is None) != (self._nearby is None):
            return None
        if self._key is not None:
            return functools.partial(_finite, program)
        field = self._bare() if self._nearby is None else self._nearby[1]
        parts = nearby(np.zeros(n)).tolist()  # a state that stays zero would hide what its rate is

        def slopes(t: float, y: list[float]) -> list[float]:
            found: list[float] = program(t, *y)
            near = y[:n] if probe is None else [v + part * (1.0 + abs(v)) for v, part in zip(y, parts, strict=False)]
            there = found[:n] if probe is None else probe(t, *near)
            slope = field(np.float64(t), np.array(near))
            if there != (slope if type(slope) is list else list(slope)) or not isfinite(sum(there) + sum(found)):
                raise NotRecorded("The function itself returns other slopes than its program, or some are not finite.")
            return found

        return slopes

    def _is(self, program: Callable[..., Any], found: Sequence[float], t: Leaf, y: Array) -> bool:
        """Return whether the user's function returns these slopes; rather nearby, where that can be said.

        What a function decides by the type of a number shows where its branches differ in value, and at the parameters
        that are given they may not.
        """
        probe = self._probes.get(program)
        if probe is not None and self._nearby is not None:
            try:
                with np.errstate(all="ignore"):  # nobody has asked for these parameters
                    near = nearby(y)  # a state that stays zero would hide what its rate is
                    there, slope = probe(float(t), *near.tolist()), self._nearby[1](t, near)
            except Exception:  # it may not be defined there
                there = None
            if there is not None and isfinite(sum(there)):
                return _are_same(slope, there, len(y))
        return _are_same(self._bare()(t, y.copy()), found, len(y))

    def _give_up(self) -> None:
        self._programs.clear()
        self._probes.clear()
        self._quick = None
        self._n_records = MOST_RECORDS

    def _record(self, t: Leaf, y: Array, usual: Array) -> None:
        """Write the operations of a call down, if they give what the tracer has given."""
        self._n_records += 1
        recording = Recording(self._count, RecordedArray, self._key is not None)
        n, is_right = len(y) // (1 + self._count), False
        try:
            if y.dtype == FLOAT:
                ends = self._recorded(recording, self._params, t, y[:n])
                make = maker(recording, ends, list(recording.constants), self._count)
                program = make(*recording.constants.values())
                if self._nearby is not None:
                    with np.errstate(all="ignore"):
                        self._probes[program] = self._probe(recording, ends, self._nearby[0], t, y[:n])
                found = program(float(t), *y.tolist())
                # The function sees each state that this sees: what it keeps of one is found out at the next.
                is_right = np.array(found, float).tobytes() == usual.tobytes() and self._is(program, found, t, y[:n])
        except Exception:  # what can't be written down the tracer has done
            is_right = False
        if is_right and recording.is_open:
            self._programs.insert(0, program)
            self._new[program], self._quick = t, None
            portable = None if self._key is None else Portable.of(recording, make)
            if portable is not None:
                self._portable[program] = portable
        else:
            self._give_up()
        recording.is_open = False
        self._n_lines += recording.n_lines

    def _recorded(self, recording: Recording, params: Sequence[Any], t: Leaf, y: Array) -> list[Number]:
        """Record a call at some parameters, a time and some states; return the slopes."""
        states = [Number(recording, f"y{index}", y[index], moves=True, varies=True) for index in range(len(y))]
        leaves = enumerate(zip(params, self._stacks, strict=True))
        given = [entries(recording, leaf, stack, param) for param, (leaf, stack) in leaves]
        time = Number(recording, "t", t, moves=False, varies=True)
        slope = self._written(given)(time, recording.of_parts(states))
        return list(map(recording.number, parts_of(recording, slope, len(y))))

    def _probe(
        self, recording: Recording, ends: Sequence[Number], params: Sequence[Any], t: Leaf, y: Array
    ) -> Callable[..., Any]:
        """Return the program at other parameters, without tangents; recorded anew where parameters alone decided."""
        if not recording.is_portable:
            recording = Recording(0, RecordedArray)
            ends = self._recorded(recording, params, t, y)
            return maker(recording, ends, list(recording.constants), 0)(*recording.constants.values())
        taken = {name: float(np.ravel(params[param])[index]) for name, (param, index) in recording.taken.items()}
        names = {name: value for name, value in recording.constants.items() if name not in recording.tangents}
        constants = names | taken
        return maker(recording, ends, list(constants), 0)(*constants.values())


def _finite(program: Callable[..., Any], t: float, y: list[float]) -> list[float]:
    found: list[float] = program(t, *y)
    if not isfinite(sum(found)):
        raise NotRecorded("Some slopes are not finite: numpy warns of what Python's numbers do in silence.")
    return found


def _are_same(slope: Any, found: Sequence[float], n: int) -> bool:
    """Return whether a function has returned the first `n` of these numbers."""
    if type(slope) is np.ndarray and slope.shape == (n,):
        slope = slope.tolist()
    return type(slope) in (list, tuple) and len(slope) == n and all(map(operator.eq, slope, found))


def nearby(leaf: Array) -> Any:
    """Return other numbers than a parameter's, each of them by another part of its size."""
    parts = 1e-6 * (1.0 + np.arange(np.size(leaf)) / np.pi).reshape(np.shape(leaf))
    return (leaf + parts * (1.0 + np.abs(leaf))).astype(leaf.dtype)
