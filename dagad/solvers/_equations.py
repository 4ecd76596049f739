"""Equations that scipy integrates: what the user wrote, and the same with tangents of its states beside them.

An equation has parameters, which are all traced values that its right-hand side is made of. Its `extended` equation has
the states ``[y, s_1, ..., s_k]``, where each s is moved by ``ds/dt = (df/dy) s + (df/dp) dp``, and the parameters
``[*p, *dp_1, ..., *dp_k]``. It is an equation like any other, so it can be extended again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import autograd.numpy as anp
import numpy as np

from dagad._tracing import equalities
from dagad._tracing.forward import TangentNode
from dagad._tracing.operands import array_of
from dagad._tracing.patches import patches
from dagad._tracing.private import numpy_wrapper
from dagad._tracing.recalled import left_to_others
from dagad._tracing.rules import learn_rules
from dagad._tracing.stacked_tangents import FLOAT, is_double, is_stack, stacked
from dagad._tracing.tape import refuse_stale, traceable, traced
from dagad._tracing.traced_array import TracedArray, array_of_numbers, new_box
from dagad._types import Array, Leaf
from dagad._values import pytree
from dagad.solvers._given import compare_at
from dagad.solvers._recorded import MOST_DIRECTIONS, MOST_STATES, RecordedSlopes, nearby
from dagad.solvers._recorded_tangents import entries_with_tangents, extended, level_above

# From a time and a state to its slope.
Field = Callable[[Any, Any], Any]
IMPLICIT = "Radau", "BDF", "LSODA"
_OF_THE_STATES = ("jac", "jac_sparsity", "lband", "uband")  # and not of their sensitivities
_STEPS = ("max_step", "min_step")


def is_kind_of(method: object, *names: str) -> bool:
    """Return whether a method, by its name or as a class of solvers, is one of these of scipy's, or made of one."""
    if isinstance(method, str):
        return method in names
    from scipy import integrate

    return isinstance(method, type) and issubclass(method, tuple(getattr(integrate, name) for name in names))


def is_implicit(method: object) -> bool:
    """Return whether a method asks for Jacobians."""
    return is_kind_of(method, *IMPLICIT)


class Settings(NamedTuple):
    """How scipy is to integrate; tolerances are the equation's own affair.

    Attributes
    ----------
    method
        A name that `scipy.integrate.solve_ivp` knows, or a class of solvers.
    options
        What the user gave to it, but for tolerances and Jacobians.
    rtol
        Relative tolerance, one for all states or one for each.
    pattern
        Where the Jacobian is not zero, a sparse matrix; None for everywhere.
    sparse_jacobian
        Where it is not zero at a time and a state, ``(t, y) -> matrix``, which is more as time goes on; or None.
    """

    method: Any
    options: dict[str, Any]
    rtol: Any
    pattern: Any = None
    sparse_jacobian: Callable[[float, Array], Any] | None = None

    @property
    def is_implicit(self) -> bool:
        """Whether the method asks for Jacobians."""
        return is_implicit(self.method)

    @property
    def is_lsoda(self) -> bool:
        """Whether the method is LSODA, which takes no sparse matrices."""
        return is_kind_of(self.method, "LSODA")

    def for_span(self, span: float) -> dict[str, Any]:
        """Return the options of an integration over a span that may be shorter than the user's."""
        found = {name: self.options[name] for name in _STEPS if name in self.options}
        if not isinstance(self.method, str):
            found |= {name: value for name, value in self.options.items() if name not in _OF_THE_STATES}
        first = self.options.get("first_step")
        if first is not None:
            found["first_step"] = min(first, span)
        return found


def not_finite(t: float) -> str:
    """Tell that sensitivities can't be integrated across a time."""
    return (
        "A solution of differential equations is being differentiated, and the derivative of its right-hand side is "
        f"not finite at t = {t}, as that of `np.sqrt(y)`, or of a norm, at zero. Begin elsewhere, or write what has a "
        "finite slope there: `np.sqrt(y + 1e-12)`, or `np.sqrt(np.sum(y**2) + 1e-12)` for a norm."
    )


class RightHandSide(Protocol):
    """What the user wrote; `points` are some of the times and states at which it was called, as made last."""

    points: list[tuple[Any, Any]]

    @property
    def remembers(self) -> bool:
        """Whether what the user wrote changes what it reads, as far as it has been run."""

    @property
    def key(self) -> Any:
        """What is the same for right-hand sides that compute the same; None where their code does not tell."""

    def __call__(self, params: Sequence[Any]) -> Field:
        """Return the right-hand side for some parameters, which notes these points."""

    def written(self, params: Sequence[Any]) -> Field:
        """Return the right-hand side for some parameters, as the user has written it."""


class Equation(Protocol):
    """A right-hand side that depends on parameters.

    Attributes
    ----------
    settings
        How it is integrated.
    atol
        Absolute tolerances, one for each state.
    n_moving
        How many states come first of which none depends on a later one.
    moving
        Which of the parameters have tangents.
    """

    settings: Settings
    atol: np.ndarray
    n_moving: int
    moving: tuple[int, ...]

    @property
    def written(self) -> Callable[[Sequence[Any]], Field] | None:
        """Returns the right-hand side for some parameters as it can be recorded; None where that does not do."""

    @property
    def key(self) -> Any:
        """Returns what is the same where the same is computed of states and parameters; None where nobody knows."""

    def bare_field(self, params: Sequence[Any]) -> contextlib.AbstractContextManager[Field]:
        """Give the right-hand side at plain parameters and states as the user has written it, or what is as good."""

    def field(self, params: Sequence[Any]) -> contextlib.AbstractContextManager[Field]:
        """Give the right-hand side at some parameters, for as long as it is needed."""

    def plain_field(self, params: Sequence[Any]) -> contextlib.AbstractContextManager[Field]:
        """Give the same where parameters, and all states that it is called with, are plain."""


class Written:
    """The user's equation: `make` returns its right-hand side for some parameters."""

    def __init__(self, make: RightHandSide, settings: Settings, atol: np.ndarray, name: str) -> None:
        self._make, self.settings, self.atol, self.n_moving = make, settings, atol, len(atol)
        self._name, self._is_compared = name, False
        self.moving: tuple[int, ...] = ()

    @property
    def written(self) -> Callable[[Sequence[Any]], Field] | None:
        """What the user has written; None where one call depends on others: each has to be the tracer's own."""
        return None if self._make.remembers else self._make.written

    @property
    def key(self) -> Any:
        """What is the same for equations that compute the same; see `Equation.key`."""
        return self._make.key

    def bare_field(self, params: Sequence[Any]) -> contextlib.AbstractContextManager[Field]:
        """Give what the user has written; see `Equation.bare_field`."""
        return contextlib.nullcontext(self._make.written(params))

    @contextlib.contextmanager
    def field(self, params: Sequence[Any]) -> Iterator[Field]:
        """Give the right-hand side, which returns an array; see `Equation.field`."""
        before = equalities.count()
        with left_to_others():
            yield self._shaped(params)
        if equalities.count() != before and not self._is_compared:
            self._is_compared = True
            compare_at(list(self._make.points), self._shaped, params, self._name)

    plain_field = field

    def _shaped(self, params: Sequence[Any]) -> Field:
        return functools.partial(_shaped_slope, self._make(params), len(self.atol))


def _shaped_slope(field: Field, n_states: int, t: Array, y: Array) -> Any:
    """Return the slope as an array, as scipy makes one of it."""
    slope = field(t, y)
    if type(slope) in (list, tuple) and len(slope) == n_states:
        quick = array_of_numbers(slope)
        slope = slope if quick is None else quick
    if type(slope) is type(y) is TracedArray and slope._trace == y._trace and type(slope._value) is np.ndarray:
        if slope._value.shape == (n_states,):  # nearly always
            return slope
    if type(slope) in (list, tuple) and all(np.ndim(pytree.plain(part)) == 0 for part in slope):
        slope = numpy_wrapper.array_from_args((), {}, *slope)  # a list of numbers, nearly always
    slope = array_of(slope)
    if np.shape(pytree.plain(slope)) != (n_states,):
        slope = anp.reshape(slope, (-1,)) * np.ones(n_states)
    if not (pytree.is_traced(slope) or pytree.is_traced(y)):
        return np.asarray(slope)
    refuse_stale(slope, "What the right-hand side of a differential equation returned")
    return slope


class Extended:
    """An equation with tangents of its states; the tolerances of a tangent are those of the states in its own scale."""

    def __init__(self, below: Equation, moving: Sequence[int], scales: Sequence[float]) -> None:
        self._below, self.moving = below, tuple(moving)
        self.settings = below.settings
        self.atol = np.concatenate([below.atol, *(below.atol * scale for scale in scales)])
        self.n_moving, self._count = len(below.atol), len(scales)

    @contextlib.contextmanager
    def field(self, params: Sequence[Any]) -> Iterator[Field]:
        """Give the slopes of states and tangents, whose trace is open for as long; see `Equation.field`."""
        with self._open(params) as (field, _):
            yield field

    @contextlib.contextmanager
    def plain_field(self, params: Sequence[Any]) -> Iterator[Field]:
        """Give the same for plain states, of which few are not followed at each call; see `Equation.plain_field`."""
        with self._open(params) as (field, boxed), self._recorded(field, boxed) as quick:
            yield quick

    bare_field = plain_field

    @property
    def written(self) -> Callable[[Sequence[Any]], Field] | None:
        """What the equation below is, for numbers with tangents."""
        written = self._below.written
        return None if written is None else functools.partial(self._written, written)

    @property
    def key(self) -> Any:
        """What is the same for equations that compute the same; see `Equation.key`."""
        key = self._below.key
        return None if key is None else (key, self.moving, self._count)

    def _written(self, written: Callable[[Sequence[Any]], Field], params: Sequence[Any]) -> Field:
        def field(t: Any, states: Any) -> Any:
            (leaves, tangents), level = self._split(params), level_above(states)
            for position, own in tangents.items():
                leaves[position] = entries_with_tangents(states.recording, leaves[position], own, level)
            return extended(written(leaves), self.n_moving, self._count, t, states)

        return field

    def _split(self, params: Sequence[Any]) -> tuple[list[Any], dict[int, list[Any]]]:
        """Return the parameters of the equation below, and the tangents of those that move."""
        each = len(self.moving)
        n_below = len(params) - each * self._count
        tangents = {position: list(params[n_below + index :: each]) for index, position in enumerate(self.moving)}
        return list(params[:n_below]), tangents

    @contextlib.contextmanager
    def _open(self, params: Sequence[Any]) -> Iterator[tuple[Field, Sequence[Any]]]:
        boxed, tangents = self._split(params)
        learn_rules()
        with patches.new_trace() as level:
            for position, own in tangents.items():
                boxed[position] = _moving(traceable(boxed[position]), level, own)
            with self._below.field(boxed) as field:
                yield functools.partial(self._extended_slopes, field, level), boxed

    @contextlib.contextmanager
    def _recorded(self, usual: Field, boxed: Sequence[Any]) -> Iterator[Field]:
        """Give slopes by a program of what the function did once, of few plain numbers; else the usual ones."""
        written = self._below.written
        leaves, stacks = list(boxed), [boxed[position]._node.g for position in self.moving]
        for position in self.moving:
            leaves[position] = boxed[position]._value
        is_small = len(self.atol) <= MOST_STATES and self._count <= MOST_DIRECTIONS
        is_plain = {np.ndarray}.issuperset(map(type, stacks)) and not any(map(pytree.is_traced, leaves))
        if written is None or not is_small or not is_plain:
            yield usual
            return

        def at(moving: Sequence[Any]) -> list[Any]:
            now = list(leaves)
            for position, leaf in zip(self.moving, moving, strict=True):
                now[position] = leaf
            return now

        params = [leaves[position] for position in self.moving]
        with contextlib.ExitStack() as stack:
            bare = functools.cache(lambda: stack.enter_context(self._below.bare_field(leaves)))  # seldom needed
            there, key = None, self._key_of(leaves, stacks)
            if params and key is None:
                others = list(map(nearby, params))
                there = others, stack.enter_context(self._below.bare_field(at(others)))
            yield RecordedSlopes(
                lambda moving: written(at(moving)), bare, there, params, stacks, self._count, usual, key
            )

    def _key_of(self, leaves: Sequence[Any], stacks: Sequence[Any]) -> Any:
        """Return what is the same where the same is computed of the parameters that move."""
        if self.key is None or any(leaves[position].dtype != FLOAT for position in self.moving):
            return None
        moving = [(leaves[position].shape, stack.shape) for position, stack in zip(self.moving, stacks, strict=True)]
        still = [_bits_of(leaf) for position, leaf in enumerate(leaves) if position not in self.moving]
        return None if None in still else (self.key, self.n_moving, *moving, *still)

    def _extended_slopes(self, field: Field, level: int, t: Array, y: Array) -> Any:
        """Return the slopes of the states and of their tangents."""
        count, n = self._count, self.n_moving
        rows = y.reshape((1 + count, n))
        tangents = rows[1:] if is_double(y) else [rows[1 + number] for number in range(count)]
        box = new_box(rows[0], level, TangentNode.new_root(tangents))
        slope = traced(functools.partial(field, t), box)
        if not (pytree.is_traced(slope) and slope._trace == level):
            return anp.concatenate([slope, np.zeros(count * n, _dtype_of(slope))])
        value, tangents = slope._value, slope._node.g
        if is_stack(tangents):
            if not (pytree.is_traced(value) or pytree.is_traced(tangents)):
                found = np.empty((1 + count, n))
                found[0], found[1:] = value, tangents
                return found.reshape(-1)
            return anp.concatenate([value, tangents.reshape((-1,))])
        if not any(map(pytree.is_traced, (value, *tangents))):
            found = np.zeros((1 + count, n), np.result_type(value, *(part for part in tangents if part is not None)))
            found[0] = value
            for number, part in enumerate(tangents):
                if part is not None:
                    found[1 + number] = part
            return found.reshape(-1)
        nothing = np.zeros(n, _dtype_of(value))
        return anp.concatenate([value, *(nothing if part is None else part for part in tangents)])


def _moving(leaf: Leaf, level: int, tangents: list[Any]) -> Any:
    """Return a parameter in a box, with its tangents in a stack where they are plain."""
    value = np.float64(leaf) if type(leaf) is float else leaf  # numpy's own division, for one, in any case
    return new_box(value, level, TangentNode.new_root(stacked(tangents, value)))


def _bits_of(leaf: Leaf) -> Any:
    """Return the bits of a parameter that stays as it is; None of one that is large."""
    array = np.asarray(leaf)
    return (type(leaf), array.shape, array.dtype, array.tobytes()) if array.size <= MOST_STATES else None


def _dtype_of(leaf: Leaf) -> Any:
    return pytree.dtype_of(pytree.plain(leaf))
