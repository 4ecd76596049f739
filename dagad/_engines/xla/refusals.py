"""What is said where a function that is being compiled leaves what jax can follow: the user's line, why, what to write.

Each returns a sentence. All of them offer the engine that follows anything: none, which is autograd's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp

from dagad._engines.xla import lines
from dagad._errors import NotDifferentiableError
from dagad._types import Array, DType, Function

LEAVE = "leave out `engine=`: autograd, the default engine, follows it"
_KNOWN = (
    "jax compiles the function before there are numbers: it knows shapes, dtypes, and Python's own ints and bools "
    "among the shared arguments"
)


def of_truth(line: str | None = None) -> str:
    """Tell that a line depends on whether a value is true."""
    return (
        f"{line or lines.here()} asks whether a value is true, by `if`, `while`, `and`, `not`, `assert`, `min()` or "
        f"the like, but {_KNOWN}. Choose by `np.where(mask, a, b)`, `np.maximum`, `np.minimum` or `np.clip`, or "
        f"{LEAVE}."
    )


def of_number(line: str | None = None) -> str:
    """Tell that a Python number was asked for."""
    if line is None and lines.is_storing():
        return of_assignment()
    return (
        f"{line or lines.here()} asks for a Python number, by `float()`, `int()`, `.item()`, a function of `math` or "
        f"the like, but {_KNOWN}. Use the value as it is, and write `np.exp(x)` instead of `math.exp(x)`, or {LEAVE}."
    )


def of_key() -> str:
    """Tell that a value was looked up, or remembered."""
    return (
        f"{lines.here()} uses a value as a key, of a dict, a set or a cache, but {_KNOWN}. Take a Python int as the "
        f"key, `np.where(mask, a, b)` where two are chosen from, or {LEAVE}."
    )


def of_words(dtype: DType) -> str:
    """Tell that entries were to become words, objects of Python's, or longer numbers than there are."""
    return (
        f"{lines.here()} makes an array of {dtype!r} of a value, but jax computes with numbers of at most 64 bits. "
        f"Compute with these, and convert what comes out, or {LEAVE} where they are numbers."
    )


def of_index(line: str | None = None) -> str:
    """Tell that a whole number was asked for."""
    return (
        f"{line or lines.here()} uses a value as a count, a length or an index into a list, but {_KNOWN}. Pass a "
        "Python int as a shared argument. Entries of a constant array at such an index are "
        "`jax.numpy.take(array, index)`, or `jnp.take` for short; "
        f"`np.where(mask, a, b)` chooses by a comparison. Or {LEAVE}."
    )


def of_conversion(name: str | None) -> str:
    """Tell that somebody asked for an ordinary array; `name` is the library's function, if it was one."""
    if lines.is_storing():
        return of_assignment()
    who = "an ordinary array" if name is None else f"`{name}`, which makes an ordinary array of what it is given"
    return (
        f"{lines.here()} asks for {who}, but {_KNOWN}. Write it with other functions of `np`, `scipy.special` or "
        "`jax.numpy`; make one array of several by `np.stack([a, b])`; write `value * np.ones(shape)` for "
        "`np.full(shape, value)`, and `jax.numpy.take(array, index, axis=0)` for entries of a constant array at an "
        f"index that is a value. Or {LEAVE}, or says what to write."
    )


def of_assignment() -> str:
    """Tell that a value was written into entries of an array."""
    return (
        f"{lines.here()} writes into entries of an array, by `out[i] = x`, `np.add.at` or the like, and jax's arrays "
        "can't be written into. Collect the parts in a list and write `np.stack(parts)` or `np.concatenate(parts)`; to "
        "change some entries write `np.where(mask, new, old)`; to add up by group `np.bincount(group, weights=x, "
        "minlength=n_groups)`. Plain numbers may be written into an array that is made there."
    )


def of_out(name: str) -> str:
    """Tell that a function was to write its result into an array."""
    return (
        f"{lines.here()} has `{name}` write into an array, by `out=`, `+=` or the like, and jax's arrays can't be "
        "written into. Write `total = total + x` instead of `total += x`, and collect parts in a list for "
        "`np.stack(parts)`."
    )


def of_view(line: str) -> str:
    """Tell that an array was changed in place, and one is used that shares its memory."""
    return (
        f"{line} changes an array in place, and another one is used afterwards that shares its memory, or the same by "
        "another name: numpy changes both, and jax's arrays share no memory. Write `x = x + y` instead of `x += y` "
        "where only the one is meant, `np.sort(x)` instead of `x.sort()`, and `np.where` or `np.stack` where both are, "
        f"or {LEAVE}."
    )


def of_piece() -> str:
    """Tell that a function of `np.piecewise` looks at several entries."""
    return (
        f"{lines.here()} calls `np.piecewise` with a function that looks at several entries at once: numpy gives it "
        f"those where its condition is true, but {_KNOWN}. Write functions of single entries, or {LEAVE}."
    )


def of_read_only(line: str) -> str:
    """Tell that an array was changed in place that numpy lets nobody write into."""
    return (
        f"{line} changes an array in place that numpy lets nobody write into, as what `np.broadcast_to` and "
        f"`np.diagonal` give. Write `x = x + y` instead of `x += y`, or {LEAVE}."
    )


def of_kept(line: str, what: str, kept: Array, new: Array) -> str:
    """Tell that an array that is changed in place would become one of another shape or dtype."""
    return (
        f"{line} changes an array in place, whose {what} is {kept} and would be {new}: numpy keeps it or raises an "
        f"error, and jax makes a new array. Write `x = x + y`, with `.astype(x.dtype)` to keep a dtype, or {LEAVE}."
    )


def of_remembered(name: str) -> str:
    """Tell that a function uses a traced value that another trace has left behind."""
    return (
        f"`{name}` uses a value that jax traced in another call, or for chunks of another length, and that was kept in "
        "a cache, a global or an attribute. Compute it again where it is needed, or pass it to the function as a "
        "shared argument."
    )


def of_function(name: str, why: str = "") -> str:
    """Tell that jax has no such function."""
    return (
        f"{lines.here()} calls `{name}`{why}, for which jax has no function with the same result. Write it with other "
        f"functions of numpy or with `jax.numpy`, or {LEAVE}."
    )


def of_option(name: str, options: Iterable[Any]) -> str:
    """Tell that jax's function does not have some options."""
    given = ", ".join(f"`{option}`" for option in options)
    return (
        f"{lines.here()} calls `{name}` with {given}, which jax's function does not take. Do without, by `np.where`, "
        f"`np.sum`, slices or another function of numpy, or {LEAVE}."
    )


def of_kind(kind: type) -> str:
    """Tell that an array of a class with operators of its own meets what is traced."""
    return (
        f"{lines.here()} puts a value together with a `{kind.__module__}.{kind.__qualname__}`, whose operators are its "
        "own, as the product of matrices is `*` there, and jax has only ordinary arrays. Write `np.asarray(m)` and "
        f"`m @ x`, `np.where(mask, x, 0.0)` for what is masked, or {LEAVE}."
    )


def of_whole_power() -> str:
    """Tell that whole numbers were raised to powers that may be negative."""
    return (
        f"{lines.here()} raises whole numbers to the power of whole numbers, negative ones of which numpy refuses, but "
        f"{_KNOWN}. Write `2.0 ** n` or `x.astype(float) ** n`, take a Python int as the power, or {LEAVE}."
    )


def of_dtype(name: str, theirs: DType, ours: DType) -> str:
    """Tell that jax computes a function of whole numbers or truths in another dtype than numpy."""
    return (
        f"{lines.here()} calls `{name}` with whole numbers or truths, for which numpy computes in {theirs} and jax in "
        f"{ours}. Convert what it is given, by `x.astype(float)` or `x.astype(int)`, or {LEAVE}."
    )


def of_shape(name: str, remedy: str = "`np.where(mask, x, 0.0)` keeps the shape") -> str:
    """Tell that the shape of a result would depend on values."""
    return (
        f"{lines.here()} calls `{name}`: how many entries come out of it depends on values, but {_KNOWN}. Keep the "
        f"shape: {remedy}. Or {LEAVE}."
    )


def of_numpy_inside(line: str) -> str:
    """Tell that numpy met what jax itself traces, inside one of jax's own transforms."""
    return (
        f"{line} calls numpy inside of a function that jax itself runs, by `jax.lax.scan`, `jax.vmap`, `jax.grad` or "
        "`jax.jit` say, and what jax gives it there is none of numpy's. Write that inner function with `jax.numpy`, or "
        f"{LEAVE}."
    )


def of_derivative(line: str, text: str) -> str:
    """Tell that jax has a function, and no derivative of it."""
    return (
        f"{line} has no derivative in jax, which says: {text.rstrip('.')}. Write it with other functions, or {LEAVE}."
    )


def of_draws(name: str, what: str) -> str:
    """Tell that numbers were drawn from a generator while a function was traced."""
    return (
        f"`{name}` draws random numbers, from {what}. It is compiled by jax, and would get the same numbers in each "
        "evaluation for ever. Draw them before, and pass them as rows or as a shared argument, or "
        f"{LEAVE}."
    )


def of_count(name: str, most: int) -> str:
    """Tell that a function consists of too many operations."""
    return (
        f"`{name}` was to be compiled by jax, and consists of more than {most:,} operations: a loop of Python's is "
        f"unrolled, and compiling that many takes long. {lines.loop()} is where. Write fewer and larger operations: "
        "for many rows, subjects or parameters at once instead of one after the other; write a long loop with "
        "`jax.lax.scan` in a function of `jax.numpy`; or leave out `engine=`: with autograd, the default engine, "
        "nothing is compiled. The setting `dagad.jax-most-operations` allows more."
    )


# Of functions in tables, where they are called


def refused(name: str, why: str) -> Function:
    """Return what refuses a function of scipy.special's by name."""

    def refuse(*args: Any) -> Any:
        raise NotDifferentiableError(of_function(f"scipy.special.{name}", why))

    return refuse


def of_real(name: str, function: Function) -> Function:
    """Return a function that takes real numbers only."""

    def call(*args: Any) -> Any:
        if any(jnp.result_type(arg).kind == "c" for arg in args):
            refused(name, " of complex numbers")()
        return function(*args)

    return call
