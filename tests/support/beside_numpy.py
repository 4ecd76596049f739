"""What a function of plain numpy gives, and what it does when jax traces it: traced once, run without compiling."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import dagad
from dagad._engines.xla.patches import arrays_stay_traced
from dagad._engines.xla.traced import XlaArray
from dagad._engines.xla.tracing import numpy_trace
from dagad._tracing.patches import patches
from dagad._tracing.rules import learn_rules

SAME, REFUSED, ERROR, DIFFERENT = "the same", "refused", "an error", "different"


def traced_and_run(fun: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Trace a function with its arrays and floats traced, and run what it consists of, an operation at a time."""
    places = [place for place, arg in enumerate(args) if isinstance(arg, np.ndarray | np.generic | float)]
    structure: list[Any] = []

    def spoken(*traced: Any) -> list[Any]:
        with numpy_trace("fun", 1_000_000) as trace:
            given = list(args)
            for place, one in zip(places, traced, strict=True):
                given[place] = XlaArray(trace, one)
            leaves, treedef = jax.tree.flatten(fun(*given))
            structure.append(treedef)
            leaves = list(map(trace.opened, leaves))
            trace.settle()
            return leaves

    learn_rules()
    with patches, jax.enable_x64(True), arrays_stay_traced():
        inputs = [args[place] for place in places]
        program = jax.make_jaxpr(spoken)(*inputs)
        found = _run(program.jaxpr, program.consts, inputs)
        return jax.tree.unflatten(structure[0], list(map(np.asarray, found)))


def _run(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

    def read(v: Any) -> Any:
        return v.val if hasattr(v, "val") else values[v]

    for equation in jaxpr.eqns:
        given = list(map(read, equation.invars))
        inner = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit") else None
        if inner is not None:
            made = _run(inner.jaxpr, inner.consts, given)
        else:
            found = equation.primitive.bind(*given, **equation.primitive.get_bind_params(equation.params))
            made = found if equation.primitive.multiple_results else [found]
        values.update(zip(equation.outvars, made, strict=True))
    return list(map(read, jaxpr.outvars))


def outcome(run: Callable[[], Any]) -> Any:
    """Return what a call gives, or its exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, at a division by zero say: what is compared are the numbers
        try:
            return run()
        except Exception as error:
            return error


def compared(fun: Callable[..., Any], args: Sequence[Any], exact: bool = False) -> tuple[str, Any, Any]:
    """Return how a function that jax traces compares with plain numpy, and what both of them give."""
    theirs = outcome(lambda: fun(*(arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args)))
    ours = outcome(lambda: traced_and_run(fun, args))
    if isinstance(ours, dagad.NotDifferentiableError):
        return REFUSED, theirs, ours
    if isinstance(ours, Exception):
        kind = type(ours).__name__.strip("_")
        same = isinstance(theirs, Exception) and (isinstance(theirs, type(ours)) or kind == type(theirs).__name__)
        return SAME if same else ERROR, theirs, ours
    if isinstance(theirs, Exception) or not _agree(theirs, ours, exact):
        return DIFFERENT, theirs, ours
    return SAME, theirs, ours


def _agree(theirs: Any, ours: Any, exact: bool) -> bool:
    if isinstance(theirs, list | tuple):
        return len(theirs) == len(ours) and all(map(_agree, theirs, ours, [exact] * len(theirs)))
    theirs = np.asarray(theirs)
    if (theirs.shape, theirs.dtype) != (ours.shape, ours.dtype):
        return False
    if exact or theirs.dtype.kind not in "fc":
        return np.array_equal(theirs, ours, equal_nan=theirs.dtype.kind in "fc")
    tolerance = 2e-2 if theirs.dtype == np.float16 else 1e-4 if theirs.dtype.itemsize <= 4 else 1e-9
    return bool(np.allclose(theirs, ours, tolerance, tolerance, equal_nan=True))
