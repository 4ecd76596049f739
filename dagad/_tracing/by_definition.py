"""Derivatives of functions that autograd has none for: by what such a function is, written with others.

The value is always the function's own, so that a chunk has the same bits traced and untraced. Only the derivative is
that of the definition, which is run, traced, when a cotangent or a tangent arrives.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defjvp, defvjp, primitive

from dagad._errors import NotDifferentiableError
from dagad._tracing import refusals
from dagad._tracing.forward import push, push_stacks
from dagad._tracing.private import isbox, primitive_jvps, subvals, trace_primitives_map, unbroadcast_f
from dagad._tracing.rules import shaped
from dagad._tracing.stacked_tangents import aligned, is_double, is_stack, stacked, whole
from dagad._tracing.tape import pull, record
from dagad._tracing.wide_numbers import all_wide, wide_entries
from dagad._types import Args, Array, Cotangent, Function, Index, Kwargs, Shape, Value
from dagad._values import pytree

_AS_GIVEN = "_dagad_takes_constants_as_given"


def as_given(definition: Function) -> Function:
    """Mark a definition that takes constants in their own types, and not as wide as its value."""
    setattr(definition, _AS_GIVEN, True)
    return definition


def rules_of(name: str, definition: Function) -> tuple[Function, Function]:
    """Return the rules of a function for both modes, from its definition."""
    parameters = inspect.signature(definition).parameters.values()
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    names = {each.name for each in parameters}

    by_index = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    most = sys.maxsize if any(each.kind is each.VAR_POSITIONAL for each in parameters) else len(by_index)

    def look(args: Args, kwargs: Kwargs) -> Any:
        if len(args) > most:
            raise NotDifferentiableError(refusals.of_option(name, args[most:]))
        if takes_any or names.issuperset(kwargs):
            return kwargs
        strange = [each for each in kwargs if each not in names and kwargs[each] is not None]
        if strange:
            raise NotDifferentiableError(refusals.of_option(name, strange))
        return {each: kwargs[each] for each in kwargs if each in names}

    def widen(args: Sequence[Any], kwargs: Kwargs, value: Value) -> Any:
        return (args, kwargs) if getattr(definition, _AS_GIVEN, False) else all_wide(by_index, args, kwargs, value)

    def leaves_like(ans: Value, found: Sequence[Any]) -> Any:
        """Return the leaves of a value, if these have the shapes of the definition's: a newer release may take more."""
        given = pytree.flatten(pytree.open_containers(ans))[0]
        here, known = ([np.shape(pytree.plain(leaf)) for leaf in leaves] for leaves in (given, found))
        if here != known:
            why = f" where it gives shape {here[0] if len(here) == 1 else here}, and none but {known} is known"
            raise NotDifferentiableError(refusals.of_function(name, why))
        return given

    return _vjp_of(definition, look, widen, leaves_like), _jvp_of(definition, look, widen, leaves_like)


def rules_near(name: str, expression: Function) -> tuple[Function, Function]:
    """Return the rules of a function that solves an equation, from what its value is nearby, to first order.

    `expression` is given the value, the arguments as they were, and then these as they move. What it does with the
    first two has derivatives, too: so there are those of every order.
    """

    def held(ans: Value, args: Args) -> Function:
        were = tuple(args)
        return as_given(lambda *moving, **options: expression(ans, were, *moving, **options))

    def vjp(argnums: Sequence[int], ans: Value, args: Args, kwargs: Kwargs) -> Any:
        return rules_of(name, held(ans, args))[0](argnums, ans, args, kwargs)

    def jvp(argnums: Sequence[int], tangents: Sequence[Any], ans: Value, args: Args, kwargs: Kwargs) -> Any:
        return rules_of(name, held(ans, args))[1](argnums, tangents, ans, args, kwargs)

    return vjp, jvp


def _vjp_of(definition: Function, look: Function, widen: Function, leaves_like: Function) -> Function:
    def make(argnums: Sequence[int], ans: Value, args: Sequence[Any], kwargs: Kwargs) -> Function:
        kwargs = look(args, kwargs)

        def pullback(cotangent: Cotangent) -> tuple[Any, ...]:
            run, leaves = _in_some(definition, argnums, *widen(args, kwargs, ans))
            value, ends, roots = record(run, leaves)
            cotangents = pytree.flatten(pytree.open_containers(cotangent))[0]
            found = pytree.flatten(value)[0]
            leaves_like(ans, found)
            pairs = zip(cotangents, found, strict=True)
            seeds = [shaped(part, leaf) for part, leaf in pairs]  # a definition may be real where the value is not
            return tuple(_dense(pull(ends, seeds, roots, leaves), leaves))

        return pullback

    return make


def _jvp_of(definition: Function, look: Function, widen: Function, leaves_like: Function) -> Function:
    def jvp(argnums: Sequence[int], tangents: Sequence[Any], ans: Value, args: Sequence[Any], kwargs: Kwargs) -> Any:
        run, leaves = _in_some(definition, argnums, *widen(args, look(args, kwargs), ans))
        values, directions = push(run, leaves, [tangents])
        flat, treedef = pytree.flatten(values)
        parts = zip(_dense(directions[0], flat), leaves_like(ans, flat), strict=True)
        return pytree.unflatten(treedef, [shaped(part, leaf) for part, leaf in parts])  # or the other way round

    def of_stacks(
        argnums: Sequence[int], stacks: Sequence[Any], ans: Value, args: Sequence[Any], kwargs: Kwargs
    ) -> Any:
        run, leaves = _in_some(definition, argnums, *widen(args, look(args, kwargs), ans))
        value, stack = push_stacks(run, leaves, stacks) if all(map(is_double, leaves)) else (None, None)
        if stack is None or not is_double(value) or np.shape(pytree.plain(value)) != np.shape(pytree.plain(ans)):
            return None
        found = stack if is_stack(stack) else stacked(_filled(stack, value), value)
        return found if is_stack(found) else None

    return with_stacks(jvp, of_stacks)


def _filled(tangents: Sequence[Any], value: Value) -> list[Any]:
    return [pytree.zeros_like(pytree.plain(value)) if part is None else part for part in tangents]


def with_stacks(jvp: Function, of_stacks: Function) -> Function:
    """Return a rule of forward mode that says what to do with stacks of tangents, too."""
    jvp.of_stacks = of_stacks  # type: ignore[attr-defined]  # functions have what somebody gives them
    return jvp


def _in_some(definition: Function, argnums: Sequence[int], args: Sequence[Any], kwargs: Kwargs) -> tuple[Function, Any]:
    def run(leaves: Sequence[Any]) -> Any:
        return definition(*subvals(args, list(zip(argnums, leaves, strict=True))), **kwargs)

    return run, [args[argnum] for argnum in argnums]


def _dense(parts: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
    pairs = zip(parts, leaves, strict=True)
    return [pytree.zeros_like(pytree.plain(leaf)) if part is None else shaped(part, leaf) for part, leaf in pairs]


# Functions that work entry by entry


def entrywise(name: str, *slopes: Function | None) -> tuple[Function, Function]:
    """Return the rules of a function of entries, from its partial derivatives: `slope(value, *args)`, None for none."""

    def slope(argnum: int, ans: Value, args: Sequence[Any]) -> Any:
        found = slopes[argnum]
        if found is None:
            raise NotImplementedError(f"VJP of {name} wrt argnums {argnum} not defined")
        return found(ans, *[wide_entries(arg, ans) for arg in args])

    def vjp(argnums: Sequence[int], ans: Value, args: Sequence[Any], kwargs: Kwargs) -> Function:
        del kwargs
        if any(slopes[argnum] is None for argnum in argnums):
            slope(next(argnum for argnum in argnums if slopes[argnum] is None), ans, args)

        def part(argnum: int) -> Any:
            return unbroadcast_f(args[argnum], lambda g: g * slope(argnum, ans, args))

        parts = [part(argnum) for argnum in argnums]
        return lambda g: tuple(pulled(g) for pulled in parts)

    def jvp(argnums: Sequence[int], tangents: Sequence[Any], ans: Value, args: Sequence[Any], kwargs: Kwargs) -> Any:
        del kwargs
        parts = [tangent * slope(argnum, ans, args) for argnum, tangent in zip(argnums, tangents, strict=True)]
        return functools.reduce(anp.add, parts)

    def of_stacks(
        argnums: Sequence[int], stacks: Sequence[Any], ans: Value, args: Sequence[Any], kwargs: Kwargs
    ) -> Any:
        del kwargs
        pairs = zip(argnums, stacks, strict=True)
        parts = [aligned(stack, ans.ndim) * slope(argnum, ans, args) for argnum, stack in pairs]
        return whole(functools.reduce(anp.add, parts), ans)

    return vjp, with_stacks(jvp, of_stacks)


# What is but moved: each entry of the value is an entry of the arguments


@functools.cache
def movers() -> tuple[Any, Any]:
    """Return the primitives that pick entries of an array, and that add them up where they came from."""

    def pick(x: Array, at: Index) -> Any:
        return np.ravel(x)[at]

    def put(x: Array, at: Index, shape: Shape) -> Any:
        if np.iscomplexobj(x):
            return put(np.real(x), at, shape) + 1j * put(np.imag(x), at, shape)
        sums = np.bincount(np.ravel(at), np.ravel(x), int(np.prod(shape, dtype=int)))
        return sums.astype(np.result_type(x), copy=False).reshape(shape)

    picked, added = primitive(pick), primitive(put)
    for raw in (pick, put):
        trace_primitives_map.pop(raw, None)  # nobody gives these to numpy
    defvjp(picked, lambda ans, x, at: lambda g: added(g, at, np.shape(pytree.plain(x))))
    defvjp(added, lambda ans, x, at, shape: lambda g: picked(g, at))
    defjvp(picked, "same")
    defjvp(added, "same")
    with_stacks(primitive_jvps[picked], _picked_from_stacks)
    return picked, added


def _picked_from_stacks(
    argnums: Sequence[int], stacks: Sequence[Any], ans: Value, args: Sequence[Any], _: Kwargs
) -> Any:
    del argnums, ans
    (stack,) = stacks
    return anp.reshape(stack, (len(stack), -1))[:, args[1]]


def as_gather(func: Function, *positions: int) -> Function:
    """Return the definition of a function that moves entries of its arguments at these indices, or of lists there.

    All else in its value has to be zero.
    """

    def definition(*args: Any, **kwargs: Any) -> Any:
        others = [arg for position, arg in enumerate(args) if position not in positions]
        if any(map(isbox, (*others, *kwargs.values()))):
            raise NotImplementedError(f"VJP of {func.__name__} wrt argnums other than {positions} not defined")
        leaves, treedef = pytree.flatten([args[position] for position in positions if position < len(args)])
        ends = np.cumsum([1, *(np.size(pytree.plain(leaf)) for leaf in leaves)])
        indices = [
            np.arange(start, stop).reshape(np.shape(pytree.plain(leaf)))
            for leaf, start, stop in zip(leaves, ends[:-1], ends[1:], strict=True)
        ]
        at = func(*subvals(args, list(zip(positions, pytree.unflatten(treedef, indices), strict=False))), **kwargs)
        whole = anp.concatenate([np.zeros(1, np.result_type(*map(pytree.plain, leaves))), *map(anp.ravel, leaves)])
        pick = movers()[0]
        return [pick(whole, each) for each in at] if isinstance(at, list | tuple) else pick(whole, at)

    return as_given(definition)  # the other arguments are indices and masks
