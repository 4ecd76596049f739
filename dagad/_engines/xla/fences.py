"""Fences: where a long program is cut for XLA, which would otherwise compute the same again and again.

XLA's processor backend fuses elementwise operations, and a value that several of them need is computed in each of
them anew, with all that it is computed from. Along a loop that Python has unrolled this doubles with each step: the
program is larger the longer it is by far more than its length, takes minutes to compile, and runs slowly. So where an
expression that is used more than once has grown to `LARGEST` operations, its value is stored: it passes through a loop
of one round, of which XLA can't know that it has just one, and does not fuse across.

A fence changes no number. It costs what it takes to copy an array. Short programs have none. In what a loop of jax's
repeats there are fences as elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from dagad._engines.xla.loops import rolled
from dagad._types import Array, Value

LARGEST = 64  # operations, those of common parts counted as often as they are used
SHORTEST = 200  # equations: what is shorter is left to XLA alone
ROUNDS = np.int32(1)  # of the loop that a fence is: given to what is compiled as an argument

# Their results are stored by XLA anyway.
_STORED = frozenset(
    """
    dot_general conv_general_dilated reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or argmax argmin
    reduce sort scatter scatter-add scatter_mul scatter_min scatter_max cumsum cumprod cummax cummin cumlogsumexp
    while cond cholesky triangular_solve lu eigh eig qr svd fft householder_product custom_linear_solve top_k
    optimization_barrier
    """.split()
)
_REPEATED = "scan"
_WITH_A_PROGRAM = frozenset({"jit", "pjit", _REPEATED})  # XLA has the former in one with the rest


def shortened(program: ClosedJaxpr) -> Callable[..., list[Any]] | None:
    """Return a traced program with its loops and fences, as `fenced` does; None where it has neither."""
    loops = rolled(program) if n_equations(program.jaxpr) >= SHORTEST else None
    cut = fenced(program if loops is None else loops)
    if cut is not None or loops is None:
        return cut
    run = jaxpr_as_fun(loops)
    return lambda rounds, *inputs: run(*inputs)


def fenced(program: ClosedJaxpr) -> Callable[..., list[Any]] | None:
    """Return a traced program with fences, as a function of `ROUNDS` and its flat inputs; None where it needs none."""
    if n_equations(program.jaxpr) < SHORTEST:
        return None
    cuts = set[Any]()
    _grown(program.jaxpr, {}, cuts)
    if not cuts:
        return None

    def run(rounds: Array, *inputs: Any) -> list[Any]:
        return _evaluated(program.jaxpr, program.consts, inputs, cuts, rounds)

    return run


def n_equations(jaxpr: Jaxpr) -> int:
    """Return of how many equations a program consists, those of functions that it calls among them."""
    return sum(1 if inner is None else n_equations(inner.jaxpr) for _, inner in _equations(jaxpr))


def _equations(jaxpr: Jaxpr) -> Iterator[tuple[Any, Any]]:
    """Yield each equation, and the program that it calls or repeats, if there is one."""
    for equation in jaxpr.eqns:
        inner = equation.params.get("jaxpr") if equation.primitive.name in _WITH_A_PROGRAM else None
        yield equation, inner


def _grown(jaxpr: Jaxpr, sizes: dict[Any, int], cuts: set[Any]) -> list[int]:
    """Find the values that are to be stored; `sizes` of expressions are known for the inputs. Return the outputs'."""
    uses = Counter(v for v in (*(v for e in jaxpr.eqns for v in e.invars), *jaxpr.outvars) if not _is_constant(v))
    for v in jaxpr.invars:
        if sizes.get(v, 0) > LARGEST and uses[v] > 1 and _is_numeric(v):
            cuts.add(v)
            sizes[v] = 0
    for equation, inner in _equations(jaxpr):
        given = [0 if _is_constant(v) else sizes.get(v, 0) for v in equation.invars]
        if equation.primitive.name == _REPEATED:
            _grown(inner.jaxpr, {}, cuts)
            made = [0] * len(equation.outvars)
        elif inner is not None:
            made = _grown(inner.jaxpr, dict(zip(inner.jaxpr.invars, given, strict=True)), cuts)
        else:
            size = 0 if equation.primitive.name in _STORED else 1 + sum(given)
            made = [size] * len(equation.outvars)
        for v, size in zip(equation.outvars, made, strict=True):
            if size > LARGEST and uses[v] > 1 and _is_numeric(v):
                cuts.add(v)
                size = 0
            sizes[v] = size
    return [0 if _is_constant(v) else sizes.get(v, 0) for v in jaxpr.outvars]


def _evaluated(jaxpr: Jaxpr, consts: Sequence[Any], inputs: Sequence[Any], cuts: set[Any], rounds: Array) -> list[Any]:
    values = dict[Any, Any]()

    def keep(names: Sequence[Any], made: Sequence[Any]) -> None:
        for v, value in zip(names, made, strict=True):
            values[v] = _stored(value, rounds) if v in cuts else value

    def read(v: Array) -> Any:
        return v.val if _is_constant(v) else values[v]

    keep([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs])
    for equation, inner in _equations(jaxpr):
        given = list(map(read, equation.invars))
        if equation.primitive.name == _REPEATED:
            made = _repeated(equation.params, given, cuts, rounds)
        elif inner is not None:
            made = _evaluated(inner.jaxpr, inner.consts, given, cuts, rounds)
        else:
            found = equation.primitive.bind(*given, **equation.primitive.get_bind_params(equation.params))
            made = found if equation.primitive.multiple_results else [found]
        keep(equation.outvars, made)
    return list(map(read, jaxpr.outvars))


def _repeated(params: dict[str, Any], given: list[Any], cuts: set[Any], rounds: Array) -> list[Any]:
    """Return what a loop of jax's gives, with fences in what it repeats."""
    program, (n_consts, n_carry) = params["jaxpr"], _n_inputs(params)
    consts, first, columns = given[:n_consts], given[n_consts : n_consts + n_carry], given[n_consts + n_carry :]

    def one(state: list[Any], own: list[Any]) -> Any:
        found = _evaluated(program.jaxpr, program.consts, [*consts, *state, *own], cuts, rounds)
        return found[:n_carry], found[n_carry:]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    last, stacks = jax.lax.scan(one, first, columns, **options)
    return [*last, *stacks]


def _n_inputs(params: dict[str, Any]) -> tuple[int, int]:
    """Return how many inputs of a loop of jax's are the same in each round, and how many go from round to round."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()  # trees of nothing, from jax 0.12 on
    return len(list(consts)), len(list(carry))


def _stored(value: Value, rounds: Array) -> Any:
    """Return a value as it is, in a way that XLA does not see through."""

    def again(state: tuple[Array, Value]) -> Any:
        done, kept = state
        return done + 1, jnp.where(done < 0, jnp.zeros_like(kept), kept)

    return jax.lax.while_loop(lambda state: state[0] < rounds, again, (jnp.zeros_like(rounds), value))[1]


def _is_numeric(v: Array) -> bool:
    """Return whether a value is an array of numbers, and not of jax's random keys, say."""
    dtype = getattr(v.aval, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.kind in "biufc"


def _is_constant(v: Array) -> bool:
    return hasattr(v, "val")
