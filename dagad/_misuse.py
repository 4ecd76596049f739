"""What public functions say of calls that don't fit, and of errors whose own words don't help; nothing is caught."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from dagad._errors import ArgumentsError, NotDifferentiableError, add_note_to_others
from dagad._frames import module_of
from dagad._types import Function
from dagad._words import described, name_of, signature_of

_ITEMS = "Items lie along the first axis: move it there by `np.moveaxis`; what all items share follows the data."
_ROWS = "Write `grainsize=`, the number of rows in a chunk."
_WHERE = 'Write `scheduler="threads"`, `scheduler="processes"`, or `scheduler=client` for a `distributed.Client`.'
_MANY = "How many threads run is Dask's setting: `dask.config.set(num_workers=4)`."
# What users of other packages look for, and what it is called here.
_KEYWORDS = {
    "holomorphic": "Complex numbers are differentiated as autograd does it: use `dagad.vjp` or `dagad.jvp`.",
    **dict.fromkeys(("jac", "hess", "hessp"), "Leave it out: dagad computes it. `fun` returns the value alone."),
    "allow_int": "Integers have no derivative: make them floating point, with `float(...)` or `.astype(float)`.",
    "argnum": "Write `argnums=`.",
    "has_aux": "Use `dagad.value_and_grad` or `dagad.vjp`, which have it.",
    "wrt": "Write `argnums=`, the positions of the arguments; `wrt` belongs to `dagad.gradient`.",
    "reduce": "Use `dagad.map_reduce(f, combine, sliced, *shared)`.",
    **dict.fromkeys(("in_axes", "out_axes", "axis_size", "in_dims", "axis"), _ITEMS),
    **dict.fromkeys(("chunks", "chunksize", "chunk_size", "n_chunks", "batch_size", "npartitions"), _ROWS),
    **dict.fromkeys(("n_jobs", "n_workers", "num_workers", "workers", "threads", "processes"), f"{_WHERE} {_MANY}"),
    **dict.fromkeys(("client", "cluster", "executor", "pool", "backend", "get"), _WHERE),
}
_READ_ONLY = (
    "arguments, rows and arrays in closures are read-only in a function: work on a copy, `x = x.copy()`, "
    "write `x = x + y`, or make the array inside."
)
_OF_TENSORS = _READ_ONLY.replace("x.copy()", "x.clone()")
NOT_TORCHS = (
    "numpy, or something else that is not torch's, was given a tensor that torch follows: write it with `torch`, or "
    'with numpy and without `engine="torch"`.'
)
_NO_LENGTH = (
    "it was asked for the length of a number, as torch does of what is being differentiated. Write it with "
    'numpy; what is written with torch goes into chunks, with `engine="torch"`.'
)
# Parts of what Python, numpy, autograd and torch say inside functions, and what to write instead.
_HINTS = {
    "truth value of an array": (
        "`if`, `and`, `or` and `not` take one truth value. For arrays write `np.where(condition, a, b)`, "
        "`np.logical_and(a, b)`, or `np.all(condition)`."
    ),
    "assignment destination is read-only": _READ_ONLY,
    "output array is read-only": _READ_ONLY,
    "would mutate a captured Tensor": _OF_TENSORS,
    "a leaf Variable that requires grad": _OF_TENSORS,
    "Can't call numpy() on Tensor": NOT_TORCHS,
    "Tensor that doesn't have storage": NOT_TORCHS,
    "can't multiply sequence by non-int": (
        "a list or tuple is no array: write `np.array(...)`. What `explicit` has marked returns its value and its "
        "pullback when it is called: the value alone, with that derivative, is `marked.value(...)`."
    ),
    **dict.fromkeys(("object of type 'numpy.float64' has no len()", "len() of unsized object"), _NO_LENGTH),
    "has no attribute 'to_numpy'": "the columns of a table are numpy's arrays inside a chunk: leave it out.",
    "has no attribute 'values'": "the columns of a table are numpy's arrays inside a chunk: leave it out.",
    "'method' and": "a method was not called: `name(...)`. A column of a table is `rows[name]` inside a chunk.",
}
_TRACED_BY_JAX = re.compile(r"Tracer|traced (array|value)|jax is compiling")
_PER_CHUNK = frozenset({"reduce_sum", "map_reduce", "find_grainsize"})


def explain(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what is wrong with a call to a public function, or with the function that it was given, if anything is."""
    try:
        signature = signature_of(fun)
        given = signature.bind(*args, **kwargs).arguments
    except ValueError:  # of a user's own function, that tells nothing of itself
        return
    except TypeError as reason:
        raise _unfit(name_of(fun), signature, kwargs, str(reason)) from None
    for name in {"fun", "f", "combine"} & given.keys() & signature.parameters.keys():
        if not callable(given[name]):
            raise ArgumentsError(
                f"`{name_of(fun)}` was given {described(given[name])} where a function belongs: it is called as "
                f"`{name_of(fun)}({_written(signature)})`."
            )
    if "fun" in given:
        positional = given.get("primals", given.get("args"))
        _refuse_function(given["fun"], positional if type(positional) is tuple else (positional,))
    if "sliced" in given:
        _refuse_chunk_function(name_of(fun), given["f"], given.get("shared", ()))


def add_hint(error: Exception) -> None:
    """Say in a note what to write instead, if the words of an error that is not ours don't."""
    said = str(error)
    for part, hint in _HINTS.items():
        if part in said:
            add_note_to_others(error, f"dagad: {hint}")
            return


def refuse_in_jax(error: Exception, caller: FrameType) -> None:
    """Raise what helps if a public function has failed at a value that jax traces, since jax called its caller."""
    frame: FrameType | None = caller if _TRACED_BY_JAX.search(str(error)) else None
    while frame is not None:
        module = module_of(frame)
        if module.startswith(("dagad.interop.", "dagad._engines.")):  # these know what they do
            return
        if module.partition(".")[0] == "jax":
            break
        frame = frame.f_back
    else:
        return
    raise NotDifferentiableError(
        "dagad was called in a function that jax traces, as `jax.jit`, `jax.grad` and `jax.vmap` do, and chunks run "
        "outside of jax. Make one of jax's functions of the whole objective, `from dagad.interop.jax "
        "import as_jax` and `jax.grad(as_jax(loss))`, or differentiate it by dagad, `dagad.grad(loss)`."
    ) from None


def _written(signature: inspect.Signature) -> str:
    """Return what a call has to give, as it is written."""
    needed = [one for one in signature.parameters.values() if one.default is one.empty and one.name != "self"]
    return ", ".join(_FORMS.get(one.kind, "{}").format(one.name) for one in needed)


_FORMS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*{}",
    inspect.Parameter.VAR_KEYWORD: "**{}",
    inspect.Parameter.KEYWORD_ONLY: "{}=...",
}


def _unfit(name: str, signature: inspect.Signature, kwargs: dict[str, Any], reason: str) -> ArgumentsError:
    parameters, written = signature.parameters, _written(signature)
    unknown = next((word for word in kwargs if word not in parameters), None)
    if unknown is None:
        return ArgumentsError(f"`{name}` can't be called like this: {reason}. It is called as `{name}({written})`.")
    words = [f"`{one.name}`" for one in parameters.values() if one.default is not one.empty]
    if unknown in _KEYWORDS:
        remedy = _KEYWORDS[unknown]
    elif "shared" in parameters:
        call = f"{name}({written.removesuffix('*shared')}{unknown})"
        remedy = f"What the function gets beside its rows goes by position: `{call}`."
    else:
        remedy = f"It is called as `{name}({written})`" + (f"; its keywords are {', '.join(words)}." if words else ".")
    return ArgumentsError(f"`{name}` has no keyword `{unknown}`. {remedy}")


def _refuse_function(fun: Function, args: Sequence[Any]) -> None:
    """Raise if a function can't be called with the arguments to differentiate it with respect to."""
    try:
        signature = signature_of(fun)
        signature.bind(*args)
    except ValueError:
        return
    except TypeError as error:
        raise _unfit(name_of(fun), signature, {}, str(error)) from None


def _refuse_chunk_function(asked: str, f: Function, shared: tuple[Any, ...]) -> None:
    """Raise if a function can't be called with a chunk, or an item, and what all chunks share."""
    try:
        signature = signature_of(f)
        signature.bind(None, *shared)
    except ValueError:
        return
    except TypeError as error:
        first = "some rows" if asked in _PER_CHUNK else "an item"
        given = ", ".join([first, *(described(one) for one in shared)])
        stan = _as_in_stan(asked, signature, shared)
        raise ArgumentsError(
            f"`{asked}` calls `{name_of(f)}{_plainly(signature)}` with {given}: {error}. What follows the data in "
            f"the call of `{asked}` is handed on, in its order; settings are keywords.{stan}"
        ) from None


def _plainly(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature without types."""
    parameters = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)


def _as_in_stan(asked: str, signature: inspect.Signature, shared: tuple[Any, ...]) -> str:
    names = list(signature.parameters)
    if asked == "reduce_sum" and names[1:3] in (["start", "end"], ["start", "stop"]):
        return (
            " Unlike in Stan there are no `start` and `end`: leave them out, and slice what goes with the rows too, "
            "`reduce_sum(f, (y, x), theta)`."
        )
    if asked == "reduce_sum" and shared and type(shared[0]) is int:
        return f" Unlike in Stan the grainsize is a keyword: `reduce_sum(f, sliced, *shared, grainsize={shared[0]})`."
    return ""
