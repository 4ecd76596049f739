"""How a task's function is traced for jax: in numpy's terms, with its operations counted, and refusals in sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from dagad._engines.autograd.patches import patches
from dagad._engines.autograd.rules import learn_rules
from dagad._engines.base import Flat, Leaves, Mark
from dagad._engines.xla import lines, refusals
from dagad._engines.xla.draws import no_draws
from dagad._engines.xla.making import arrays_are_traced
from dagad._engines.xla.traced import XlaArray, numpy_trace
from dagad._errors import NotDifferentiableError

Note = Callable[[int, bool], None]


def in_numpys_terms(base: Any, most: int, note: Note, call: Flat, leaves: Leaves) -> list[Any]:
    """Call a task's function with leaves and constants that speak numpy; its outputs are jax's own."""
    constants = base.given
    with numpy_trace(base.name, most) as trace:
        base.given = [XlaArray(trace, one) for one in constants]
        try:
            outputs = list(map(trace.opened, call([XlaArray(trace, leaf) for leaf in leaves])))
            trace.settle()
            note(trace.n_operations, trace.is_numpys)
            return outputs
        finally:
            base.given = constants


def traced(trace: Callable[[], Any], base: Any) -> Any:
    """Trace a task's function; what can't be traced is refused by a sentence of ours."""
    fun = base.function(list(map(Mark, range(base.n_leaves))))
    with patches, arrays_are_traced():  # functions of scipy's look for what is traced, too
        learn_rules()
        try:
            with no_draws(fun, base.name):
                return trace()
        except Exception as error:
            if isinstance(error, NotDifferentiableError) and learn_rules():  # the function imports a part of scipy
                return trace()
            sentence = _sentence(error)
            if sentence is None:
                raise
            raise NotDifferentiableError(sentence) from error


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
    if isinstance(error, NotImplementedError) and str(error).startswith(("Differentiation rule", "Derivatives of")):
        return refusals.of_derivative(line, str(error).partition("\n")[0])
    return None
