"""The mistakes of the first hour: is each told by its remedy, in a few lines, on threads and on a cluster?"""

from __future__ import annotations

import dataclasses
import math
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import autograd
import autograd.numpy as anp
import dask
import dask.array
import distributed
import numpy as np
import optree
import pandas as pd
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
from dask.delayed import delayed

import dagad
import dagad_scheduler
from dagad import ArgumentsError, MissingNameError, NotDifferentiableError, PlanError, PortabilityError, StructureError
from dagad.extend import explicit
from support.first_hour import (
    MOST_LINES,
    TABLE,
    THETA,
    A,
    X,
    Y,
    _as_users_see_it as _as_users_see_it,
    cut,
    grad,
    misses,
    scaled,
    told,
)

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

B: Any = A * 3.0


@dataclasses.dataclass
class Model:
    """A record that nobody has registered."""

    slope: float
    offset: float


class Foreign:
    """An array of a library that dagad does not know."""

    dtype = "float32"


def line(rows: Any, theta: Any) -> Any:
    x, y = rows
    return anp.sum((y - anp.dot(x, theta)) ** 2)


def unsummed(rows: Any, theta: Any) -> Any:
    return rows * theta


def as_in_stan(rows: Any, start: Any, end: Any, theta: Any) -> Any:
    return anp.sum(rows * theta)


def three(rows: Any, x: Any, r: Any) -> Any:
    return anp.sum(rows * x * r)


def job(phi: Any, theta: Any, x_r: Any, x_i: Any) -> Any:
    return phi * theta


def square(x: Any) -> Any:
    return anp.sum(x**2)


def with_aux(x: Any) -> Any:
    return square(x), {"x": x}


def holding(lock: Any) -> Any:
    def locked(rows: Any, theta: Any) -> Any:
        with lock:
            return anp.sum(rows * theta)

    return locked


def writes_theta(rows: Any, theta: Any) -> Any:
    theta[0] = 0.0
    return anp.sum(rows * theta[0])


def writes_rows(rows: Any, theta: Any) -> Any:
    rows *= 2.0
    return anp.sum(rows * theta)


def branches(rows: Any, theta: Any) -> Any:
    return anp.sum(rows * theta[0]) if theta > 0 else 0.0


def fills(rows: Any, theta: Any) -> Any:
    out = np.zeros(2)
    out[0] = theta[0]
    return np.sum(out)


def misfits(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.dot(rows, np.ones(5)) * theta)


def no_way_back(rows: Any, theta: Any) -> Any:
    def pullback(seed: Any) -> Any:
        raise LookupError("no way back")

    return 0.0, pullback


def any_call(name: str) -> Any:
    """Return a public function without its type, for calls that it does not allow."""
    return getattr(dagad, name)


# What a user does: the error that comes, and its remedy.
Case = tuple[Callable[[], Any], type[Exception], str]
CALLS: dict[str, Case] = {
    # other packages' names
    **{
        name: (lambda name=name: getattr(dagad, name), MissingNameError, remedy)  # type: ignore[misc]  # a default argument has no type
        for name, remedy in {
            "jit": "leave it out",
            "pmap": r"dagad\.map",
            "custom_vjp": r"dagad\.extend\.explicit",
            "jacobian": r"dagad\.jacrev",
            "linearize": r"dagad\.jvp",
            "stop_gradient": "getval",
            "ravel_pytree": r"optree\.integration",
            "tree_map": r"optree\.tree_map",
            "scan": r"dagad\.map_reduce",
            "reduce_sum_static": r"dagad\.reduce_sum",
            "check_grads": r"dagad\.testing\.check_grads",
            "explict": r"Did you mean `dagad\.extend\.explicit`",
            "reduce_sums": r"Did you mean `dagad\.reduce_sum`",
            "no_such_thing": r"help\(dagad\)",
        }.items()
    },
    # how functions are called
    "holomorphic": (lambda: any_call("grad")(square, holomorphic=True), ArgumentsError, r"dagad\.vjp"),
    "allow_int": (lambda: any_call("grad")(square, allow_int=True), ArgumentsError, r"\.astype\(float\)"),
    "in_axes": (lambda: any_call("map")(square, X, in_axes=1), ArgumentsError, "moveaxis"),
    "n_jobs": (lambda: cut(scaled, Y, 1.0, n_jobs=2), ArgumentsError, "scheduler=client"),
    "n_chunks": (lambda: cut(scaled, Y, 1.0, n_chunks=3), ArgumentsError, "grainsize=.*number of rows"),
    "client=": (lambda: cut(scaled, Y, 1.0, client=None), ArgumentsError, "scheduler="),
    "shared by keyword": (lambda: cut(scaled, Y, theta=1.0), ArgumentsError, r"`reduce_sum\(f, sliced, theta\)`"),
    "no such keyword": (lambda: any_call("shard")(Y, where=1), ArgumentsError, "keywords are `grainsize`, `scheduler`"),
    "hvp curried": (lambda: any_call("hvp")(square)(Y, Y), ArgumentsError, r"`hvp\(fun, primals, tangents\)`"),
    "gradient curried": (lambda: any_call("gradient")(square)(Y), ArgumentsError, r"`gradient\(y, wrt\)`"),
    "grad of a point": (lambda: any_call("grad")(square, Y), StructureError, r"`dagad\.grad\(square\)\(\.\.\.\)`"),
    "hessian at a point": (lambda: any_call("hessian")(square, Y), StructureError, r"dagad\.hessian\(square\)"),
    "grad of a number": (lambda: any_call("grad")(3.0), ArgumentsError, "takes a function, and was given a float"),
    "too few arguments": (lambda: dagad.grad(line)(X), ArgumentsError, r"`line\(rows, theta\)`"),
    "too few primals": (lambda: dagad.vjp(line, X), ArgumentsError, r"`line\(rows, theta\)`"),
    "data first": (lambda: cut(Y, scaled, 1.0), StructureError, "The function comes first"),
    "a number for f": (lambda: cut(3.0, Y, 1.0), ArgumentsError, "a float where a function belongs"),
    "too many shared": (
        lambda: cut(scaled, Y, 1.0, 2.0),
        ArgumentsError,
        r"calls `scaled\(rows, theta\)` with some rows, a float, a float",
    ),
    "too many shared, differentiated": (
        lambda: dagad.grad(lambda t: cut(scaled, Y, t, t))(1.0),
        ArgumentsError,
        r"^dagad\.ArgumentsError: `reduce_sum` calls `scaled\(rows, theta\)` with some rows",
    ),
    "too few shared": (lambda: cut(scaled, Y), ArgumentsError, "missing a required argument: 'theta'"),
    "Stan's grainsize": (lambda: cut(three, Y, 500, Y, 1.0), ArgumentsError, r"grainsize=500\)`"),
    "Stan's start and end": (lambda: cut(as_in_stan, Y, THETA), ArgumentsError, "no `start` and `end`"),
    "Stan's map_rect": (lambda: dagad.map_rect(job, 1.0, [Y, Y], [X, X], [1, 2]), StructureError, "has no rows to cut"),
    "argnums too large": (lambda: dagad.grad(square, 3)(Y), StructureError, "Pass by position"),
    # how the work is cut, and where it runs
    "grainsize in words": (lambda: cut(scaled, Y, 1.0, grainsize="1000"), PlanError, 'positive int or `"auto"`'),
    "grainsize 1e3": (lambda: cut(scaled, Y, 1.0, grainsize=1e3), PlanError, "positive int"),
    "an address": (
        lambda: cut(scaled, Y, 1.0, scheduler="tcp://h:1"),
        PlanError,
        r"distributed\.Client\('tcp://h:1'\)",
    ),
    "a misspelt scheduler": (lambda: cut(scaled, Y, 1.0, scheduler="threds"), PlanError, 'Choose "threads"'),
    "a number of workers": (lambda: cut(scaled, Y, 1.0, scheduler=4), PlanError, 'Choose "threads"'),
    "no client": (lambda: cut(scaled, Y, 1.0, scheduler="distributed"), PlanError, r"Start one.*Client\(\)"),
    "no engine": (lambda: cut(scaled, Y, 1.0, engine="jaxx"), PlanError, "Choose one of"),
    "a policy in words": (lambda: cut(scaled, Y, 1.0, policy="recompute"), PlanError, r"`dagad\.extend\.Keep\(\)`"),
    "other chunks": (
        lambda: cut(scaled, dagad.shard(Y, 3), 1.0),
        PlanError,
        r"shard\(shards\.gather\(\), grainsize=2\)",
    ),
    "Shards in shard": (lambda: dagad.shard(dagad.shard(Y)), PlanError, r"`\.gather\(\)`"),
    # the data
    "lengths": (lambda: cut(line, (X, Y[:4]), THETA), StructureError, "give them the same number"),
    "a number": (lambda: cut(scaled, 3.0, 1.0), StructureError, "is a float, which has no rows"),
    "a generator": (lambda: cut(scaled, iter([1.0]), 1.0), StructureError, r"Make a list of it, `list\(\.\.\.\)`"),
    "a set": (lambda: cut(scaled, {1.0, 2.0}, 1.0), StructureError, r"`sorted\(\.\.\.\)`"),
    "a path": (lambda: cut(scaled, "data.csv", 1.0), StructureError, r"np\.loadtxt\(path\)"),
    "nothing": (lambda: cut(scaled, {}, 1.0), StructureError, "nothing to cut"),
    "a Series": (lambda: cut(scaled, TABLE["a"], 1.0), StructureError, r"`column\.to_numpy\(\)`"),
    "a dict of Series": (lambda: cut(scaled, {"a": TABLE["a"]}, 1.0), StructureError, r"`column\.to_numpy\(\)`"),
    "a list of Delayed": (
        lambda: cut(scaled, [A, B], 1.0),
        StructureError,
        r"dagad\.shard\(\[load\(path\), \.\.\.\]\)",
    ),
    "a Delayed": (lambda: cut(scaled, A, 1.0), StructureError, r"dagad\.shard\(\[load\(path\), \.\.\.\]\)"),
    "a dask array": (lambda: cut(scaled, dask.array.ones(4), 1.0), StructureError, r"`dagad\.shard\(array\)`"),
    # what is differentiated
    "theta is a Series": (lambda: grad(scaled, Y, pd.Series([1.0])), NotDifferentiableError, r"`\.to_numpy\(\)`"),
    "theta is a table": (lambda: grad(scaled, Y, TABLE), NotDifferentiableError, r"table\[name\]\.to_numpy\(\)"),
    "theta is a dask array": (lambda: grad(scaled, Y, dask.array.ones(2)), NotDifferentiableError, "Compute it first"),
    "theta is an int": (
        lambda: dagad.grad(square)(3),
        NotDifferentiableError,
        r"0 \(`x`\) .* only int.*`float\(\.\.\.\)`",
    ),
    "theta is a word": (lambda: dagad.grad(square)("a"), NotDifferentiableError, "only str. Give numbers, arrays"),
    "theta is another's array": (
        lambda: dagad.grad(square)(Foreign()),
        NotDifferentiableError,
        r"a Foreign of test_mistakes, which is no array of numpy's. Give `np\.asarray",
    ),
    "theta is a record": (
        lambda: dagad.grad(lambda m: m.slope)(Model(1.0, 2.0)),
        NotDifferentiableError,
        r"register_pytree_node\(Model, lambda m: \(\(m\.slope, m\.offset.*namespace=\"dagad\"",
    ),
    "grad of a Delayed": (lambda: dagad.grad(B), NotDifferentiableError, r"`dagad\.gradient\(y, wrt\)`"),
    "value_and_grad of a Delayed": (lambda: dagad.value_and_grad(B), NotDifferentiableError, "value_and_gradient"),
    "hessian of a Delayed": (lambda: dagad.hessian(B), NotDifferentiableError, "once more of what it returns"),
    "at a Delayed": (lambda: dagad.grad(square)(A), NotDifferentiableError, r"`dagad\.gradient`"),
    "swapped": (lambda: dagad.gradient(A, B), NotDifferentiableError, r"swapped.*`dagad\.gradient\(y, wrt\)`"),
    "gradient of a function": (lambda: any_call("gradient")(square, Y), NotDifferentiableError, r"use `dagad\.grad`"),
    "gradient of an array": (
        lambda: any_call("gradient")(dask.array.ones(3), A),
        NotDifferentiableError,
        "one real",
    ),
    "with respect to nothing": (lambda: dagad.gradient(B, []), NotDifferentiableError, "Give one of"),
    "elsewhere": (lambda: dagad.gradient(B, delayed(1.0)), NotDifferentiableError, 'unused="zeros"'),
    # what functions return
    "forgot to sum": (lambda: grad(unsummed, Y, 1.0), NotDifferentiableError, r"`<lambda>` returned an array.*np\.sum"),
    "a list": (
        lambda: dagad.grad(lambda x: [x])(1.0),
        NotDifferentiableError,
        "returned a list.*Return that number itself",
    ),
    "forgot has_aux": (
        lambda: dagad.grad(with_aux)(Y),
        NotDifferentiableError,
        "`with_aux` returned a tuple.*has_aux=True",
    ),
    "has_aux without aux": (lambda: dagad.grad(square, has_aux=True)(Y), StructureError, r"Return `\(value, aux\)`"),
    "forgot to return": (lambda: dagad.grad(lambda x: None)(1.0), NotDifferentiableError, "is a `return` missing"),
    "complex": (lambda: dagad.grad(lambda x: x * 1j)(1.0), NotDifferentiableError, "real part"),
    "a pair of primals": (lambda: dagad.jvp(line, (X, Y), (X,)), StructureError, "one tangent per primal"),
    "has_aux of a Delayed": (
        lambda: dagad.jvp(B, A, 1.0, has_aux=True),
        ArgumentsError,
        "is for functions.*Leave it out",
    ),
    "a tangent's shape": (lambda: dagad.jvp(square, Y, THETA), StructureError, r"shape \(2,\), where \(6,\) is needed"),
    "a cotangent's shape": (lambda: dagad.vjp(square, Y)[1](Y), StructureError, r"shape \(6,\), where \(\) is needed"),
    "a lock": (
        lambda: cut(holding(threading.Lock()), Y, 1.0, scheduler="processes"),
        PortabilityError,
        "`locked` uses `lock`.*inside the function",
    ),
}

# Inside chunks, on a cluster too: the function, its data, the error and its remedy, in the message or in a note.
CHUNKS: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "a user's own": (misses, Y, LookupError, r"value of chunk \d \(rows \d:\d\)"),
    "a user's own pullback": (explicit(no_way_back), Y, LookupError, r"pullback of chunk \d \(rows \d:\d\)"),
    "shapes": (misfits, X, ValueError, r"not aligned"),
    "theta is written into": (writes_theta, Y, NotDifferentiableError, r"`np\.where\(mask, new, old\)`"),
    "rows are written into": (writes_rows, Y, ValueError, r"`x = x\.copy\(\)`"),
    "math": (lambda rows, theta: math.exp(theta[0]), Y, NotDifferentiableError, r"`np\.exp\(x\)`"),
    "float": (lambda rows, theta: float(theta[0]), Y, NotDifferentiableError, "Use the value as it is"),
    "item": (lambda rows, theta: theta[0].item(), Y, NotDifferentiableError, "Use the value as it is"),
    "a function of scipy's that fills arrays": (
        lambda rows, theta: np.sum(scipy.stats.gaussian_kde(theta)(rows)),
        Y,
        NotDifferentiableError,
        "`scipy.stats.gaussian_kde.*Write it with",
    ),
    "a fresh array is filled": (fills, Y, NotDifferentiableError, r"`np\.stack\(parts\)`"),
    "an array of objects": (
        lambda rows, theta: np.sum(np.array([theta[0]], dtype=object)),
        Y,
        NotDifferentiableError,
        r"`np\.stack\(\[a, b\]\)`",
    ),
    "a condition on an array": (branches, Y, ValueError, r"`np\.where\(condition, a, b\)`"),
    "no return": (lambda rows, theta: None, Y, StructureError, "is a `return` missing"),
    "words": (lambda rows, theta: "six", Y, StructureError, "returned a str.*Return a number"),
    "another length in each chunk": (unsummed, np.arange(5.0), StructureError, "sum over the rows inside"),
    "a table's attribute": (lambda rows, t: anp.sum(rows.a * t), TABLE, MissingNameError, r"`rows\[\"a\"\]`"),
    "a table's columns": (lambda rows, t: anp.sum(rows[["a"]] * t), TABLE, StructureError, r"np\.stack"),
    "a table's arithmetic": (lambda rows, t: anp.sum(rows * t[0]), TABLE, StructureError, r"`rows\[name\]`"),
    "a column's to_numpy": (lambda rows, t: anp.sum(rows["a"].to_numpy() * t), TABLE, AttributeError, "leave it out"),
    "a column that is not there": (lambda rows, t: anp.sum(rows["c"]), TABLE, KeyError, "it has 'a', 'b'"),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_wrong_call_is_refused_in_a_few_lines_with_its_remedy(case: str) -> None:
    act, kind, remedy = CALLS[case]
    error, text, lines = told(act)
    assert type(error) is kind
    message = text.splitlines()[lines]
    assert re.search(remedy, message), message
    assert message.startswith(f"dagad.{kind.__name__}: ")
    assert message.endswith((".", "?"))
    assert not re.search(r"\ba (?=[aeiou])(?!u)|\bcan't be had|ifferentiated? in\b", message)
    assert lines <= 13  # of this file: `told`, the case, and its helpers
    assert "dagad/_" not in text


@pytest.mark.parametrize("case", CHUNKS)
def test_a_mistake_in_a_chunk_is_explained_in_a_few_lines(case: str, scheduler: Any) -> None:
    fun, data, kind, remedy = CHUNKS[case]
    theta: Any = THETA[0] if case == "another length in each chunk" else THETA

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(fun, data, theta, grainsize=2, scheduler=scheduler)

    error, text, lines = told(lambda: dagad.grad(loss)(theta))
    assert type(error) is kind
    assert re.search(remedy, text), text
    assert lines <= MOST_LINES + 6, text  # of this test: `told` and the lambda, which a user does not have
    assert not any(f'"{home}/' in text for home in LIBRARIES), text
    if kind is not StructureError or "rows" in fun.__code__.co_names:
        assert f"in {fun.__name__}" in text or case == "a user's own pullback"


LIBRARIES = [Path(str(one.__file__)).parent for one in (dagad, dagad_scheduler, dask, distributed, autograd)]
SUM = "sum"  # type checkers know that there is none
TOLD: dict[str, tuple[Callable[[], Any], str]] = {
    "positions": (
        lambda: dagad.value_and_grad(lambda t: t, cast(Any, (Y, Y))),
        r"was given a tuple of an array.*\(<lambda>\)\(\.\.\.\)",
    ),
    "None": (lambda: dagad.grad(lambda t: t)(None), r"Argument 0 \(`t`\) is None.*Give numbers"),
    "bool": (lambda: dagad.grad(lambda t: t)(True), "True and False have no derivative"),
    "sum": (lambda: getattr(dagad, SUM), r"Use `dagad\.reduce_sum`"),
    "n_jobs": (lambda: dagad.reduce_sum(np.sum, Y, **cast(Any, {"n_jobs": 2})), r"dask\.config\.set\(num_workers=4\)"),
    "attribute": (
        lambda: dagad.reduce_sum(lambda rows: rows.mean(), TABLE),
        r"`rows\[\"a\"\]` for a column, and for a",
    ),
    "number from map_rect": (lambda: dagad.map_rect(lambda row: row * 2.0, Y), r"Return `np\.atleast_1d\(value\)`"),
}


@pytest.mark.parametrize("name", TOLD)
def test_an_error_of_a_wrong_call_says_what_to_write(name: str) -> None:
    call, remedy = TOLD[name]
    with pytest.raises(dagad.DagadError, match=remedy):
        call()


LEAVES_NUMPY: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "vectorize": (lambda x, t: np.sum(np.vectorize(lambda v: v * t[0])(x)), r"`np\.vectorize` .*whole arrays"),
    "fromiter": (lambda x, t: np.sum(np.fromiter((v * t[0] for v in x), float)), r"`np\.fromiter`.*np\.stack\(parts\)"),
    "generator": (lambda x, t: np.random.default_rng(0).normal(t[0]), r"mean \+ scale \* noise"),
    "quad": (
        lambda x, t: scipy.integrate.quad(lambda s: s * t[0], 0, 1)[0],
        r"`scipy\.integrate\.quad`.*equations\.md",
    ),
    "solve_ivp": (
        lambda x, t: np.sum(scipy.integrate.solve_ivp(lambda s, y: -t[0] * y, (0, 1), [1.0]).y),
        r"`scipy\.integrate\.solve_ivp`.*equations\.md",
    ),
    "brentq": (
        lambda x, t: scipy.optimize.brentq(lambda s: s - t[0], 0, 9),
        r"`scipy\.optimize\.brentq` computes with ordinary numbers.*Write `dagad\.solvers\.root_scalar`.*optima\.md",
    ),
}


def test_a_root_finder_in_c_is_refused_before_it_calls_python_with_an_error_pending() -> None:
    """Python then may fail anywhere."""
    calls: list[float] = []

    def chunk(x: Any, t: Any) -> Any:
        return scipy.optimize.brentq(lambda s: calls.append(s) or s - t[0], 0, 9)  # type: ignore[func-returns-value]  # it returns None

    with pytest.raises(NotDifferentiableError, match=r"`scipy\.optimize\.brentq` computes with ordinary numbers"):
        dagad.grad(lambda theta: dagad.reduce_sum(chunk, Y, theta, scheduler="sync"))(np.array([1.0, 2.0]))
    assert set(calls) == {0.0}


@pytest.mark.parametrize("name", LEAVES_NUMPY)
def test_a_traced_value_taken_out_of_numpy_is_refused_with_the_remedy(name: str) -> None:
    chunk, remedy = LEAVES_NUMPY[name]
    with pytest.raises(NotDifferentiableError, match=remedy):
        dagad.grad(lambda theta: dagad.reduce_sum(chunk, Y, theta, scheduler="sync"))(np.array([1.0, 2.0]))


@dataclasses.dataclass
class InOrder:
    a: float
    b: float


@dataclasses.dataclass(kw_only=True)
class ByName:
    a: float
    b: float


@dataclasses.dataclass(slots=True)
class InSlots:
    a: float
    b: float
    total: float = dataclasses.field(init=False, default=0.0)


@pytest.mark.parametrize("cls", [InOrder, ByName, InSlots])
def test_the_line_that_registers_a_class_runs_as_it_is_written(cls: Any) -> None:
    made = type(cls.__name__, (cls,), {"__module__": __name__})
    with pytest.raises(dagad.DagadError, match="register the class with optree") as caught:
        dagad.grad(lambda m: m.a**2 * m.b)(made(a=1.0, b=2.0))
    line = str(caught.value).split("`")[-2]
    assert line.startswith("optree.register_pytree_node(")
    eval(line, {"optree": optree, cls.__name__: made})
    gradient = dagad.grad(lambda m: m.a**2 * m.b)(made(a=3.0, b=2.0))
    assert (gradient.a, gradient.b) == (12.0, 9.0)
