"""How a task's function is traced for jax: in numpy's terms, with its operations counted, and refusals in sentences."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from dagad._engines.xla import jaxs_core, lines, refusals
from dagad._engines.xla.draws import Draws
from dagad._engines.xla.patches import arrays_stay_traced, seeds_are_seen
from dagad._engines.xla.traced import NumpyTrace, XlaArray
from dagad._engines.xla.watched import refuse_derivatives
from dagad._errors import ClosureError, NotDifferentiableError
from dagad._tracing.flat_functions import Flat, Leaves, marked_function
from dagad._tracing.own_rules import REFUSERS
from dagad._tracing.patches import patches
from dagad._tracing.rules import learn_rules, learns_from

Note = Callable[[bool], None]
_set_current_trace: Any = jaxs_core.set_current_trace  # jax has no type for it
UNSEEDED = "a generator that it makes without a seed, or the system's"
AGAIN = 8  # how often a function is traced that draws from a generator without a seed
REFUSERS[XlaArray] = refuse_derivatives


@contextlib.contextmanager
def numpy_trace(name: str, most: int) -> Iterator[NumpyTrace]:
    """Have jax's operations in arrays that speak numpy, on top of the current trace."""
    with jaxs_core.take_current_trace() as below:
        trace = NumpyTrace(below, name, most)
    try:
        with _set_current_trace(trace):
            yield trace
    finally:
        trace.invalidate()


class InNumpysTerms:
    """How a task's function is called while it is traced: with leaves and constants that speak numpy.

    Parameters
    ----------
    base
        The function; its outputs are jax's own.
    most
        How many operations it may consist of.
    note
        Is told whether numpy was called.
    """

    __slots__ = ("_base", "_most", "_note", "asks_arrays")

    def __init__(self, base: Any, most: int, note: Note) -> None:
        self._base, self._most, self._note = base, most, note
        self.asks_arrays = False  # of what is traced, by `np.asarray` say

    def __call__(self, call: Flat, leaves: Leaves) -> list[Any]:
        base, constants = self._base, self._base.given
        with numpy_trace(base.name, self._most) as trace:
            base.given = [XlaArray(trace, one) for one in constants]
            try:
                outputs = call([XlaArray(trace, leaf) for leaf in leaves])
                with trace.inside():
                    outputs = list(map(trace.missing.marked, outputs))
                outputs = list(map(trace.opened, outputs))
                trace.settle()
                self._note(trace.is_numpys)
                return outputs
            finally:
                base.given = constants
                self.asks_arrays = self.asks_arrays or trace.asks_arrays


def traced(trace: Callable[[], Any], base: Any) -> Any:
    """Trace a task's function; what can't be traced is refused by a sentence of ours.

    It is traced once more where it has called `np.asarray` or its like with what is traced, where it has imported a
    part of scipy of which we know more, where a generator has moved, since another thread may have drawn from it, and
    where one was made without a seed, to see whether that matters: several times, since a coin may fall twice the same.
    """
    fun, terms, n_drawn, programs = marked_function(base), base.context, 0, _Programs()
    held = [leaf for side in base.sides() for leaf in side.constants().leaves]
    with patches, seeds_are_seen():  # functions of scipy's look for what is traced, too
        learn_rules()
        while True:
            had_arrays, n_seeds = terms.asks_arrays, seeds_are_seen.here.n_calls
            draws = Draws(fun, held, listens=n_drawn > 0 or programs.n > 0)
            with draws.watched():
                found, error = _tried(trace, arrays_stay_traced() if had_arrays else contextlib.nullcontext())
            if terms.asks_arrays and not had_arrays:
                continue
            if learns_from(error):
                continue
            if isinstance(error, jax.errors.UnexpectedTracerError):
                raise ClosureError(refusals.of_remembered(base.name)) from error
            if error is not None:
                sentence = _sentence(error)
                if sentence is None:
                    raise error
                raise NotDifferentiableError(sentence) from error
            drawn = draws.drawn()
            if seeds_are_seen.here.n_calls > n_seeds or draws.reaches_the_systems:
                programs.add(found[0].as_text())
                if not programs.differ and programs.n < AGAIN:
                    continue
                drawn = drawn or (UNSEEDED if programs.differ else None)
            if drawn is None:
                return found
            n_drawn += 1
            if n_drawn > 1 or programs.n:
                raise NotDifferentiableError(refusals.of_draws(base.name, drawn))


class _Programs:
    """What a function was traced to, time and again."""

    __slots__ = ("_first", "differ", "n")

    def __init__(self) -> None:
        self.n, self.differ, self._first = 0, False, ""

    def add(self, text: str) -> None:
        """Add one, and compare it with the first."""
        self._first = self._first or text
        self.n, self.differ = self.n + 1, self.differ or text != self._first


def _tried(trace: Callable[[], Any], context: Any) -> tuple[Any, Exception | None]:
    with context:
        try:
            return trace(), None
        except NotDifferentiableError as error:  # to which jax adds a note on its own frames, by the name of a setting
            error.__notes__ = [note for note in getattr(error, "__notes__", []) if _OF_FRAMES not in note]
            return None, error
        except Exception as error:
            return None, error


_OF_FRAMES = "JAX_TRACEBACK_FILTERING"


def _sentence(error: Exception) -> str | None:
    """Return what is to be said instead of an error of jax's, or of numpy's, that hides what the matter is."""
    if isinstance(error, NotDifferentiableError):
        return None
    if isinstance(error.__cause__, NotDifferentiableError):  # as numpy has it, where one was to become an entry
        return str(error.__cause__)
    line = lines.of_error(error)
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return refusals.of_numpy_inside(line)
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return refusals.of_truth(line)
    if isinstance(error, jax.errors.TracerIntegerConversionError):
        return refusals.of_index(line)
    if isinstance(error, jax.errors.ConcretizationTypeError):
        return refusals.of_number(line)
    if isinstance(error, ValueError) and "<traced by jax" in str(error):  # read from its text
        return refusals.of_number(line)
    if isinstance(error, ValueError) and str(error).startswith("Betainc gradient"):
        return refusals.of_derivative(line, str(error).partition("\n")[0])
    if isinstance(error, NotImplementedError) and str(error).startswith(("Differentiation rule", "Derivatives of")):
        return refusals.of_derivative(line, str(error).partition("\n")[0])
    return None
