"""Values that jax traces, and that refuse to be differentiated: there is a rule that jax does not know."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp

from dagad._engines.xla import jaxs_core, lines
from dagad._engines.xla.traced import XlaArray
from dagad._errors import NotDifferentiableError
from dagad._tracing.own_rules import of_own_rule
from dagad._types import Value


def is_tracing() -> bool:
    """Return whether jax traces in this thread: then the current trace is none that computes."""
    with jaxs_core.take_current_trace() as trace:
        return type(trace).__name__ != "EvalTrace"


def refuse_derivatives(value: Value, what: str, how: str) -> None:
    """Have a value refuse derivatives, in what jax traces now and wherever it differentiates that later."""
    trace: Any = getattr(value, "_trace", None)
    with trace.inside() if type(value) is XlaArray else contextlib.nullcontext():
        if jnp.issubdtype(value.dtype, jnp.inexact):
            _watched(value, of_own_rule(lines.here(), what, how, "jax"))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _watched(value: Value, sentence: str) -> Any:
    del sentence
    return value


@_watched.defjvp
def _refused(sentence: str, primals: object, tangents: object) -> Any:  # where the tangent is zero, jax calls nothing
    del primals, tangents
    raise NotDifferentiableError(sentence)
