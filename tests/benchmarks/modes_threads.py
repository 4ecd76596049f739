"""Second order and forward mode on threads, in gradients: what `dagad.value_and_grad` takes in the same run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
from cluster_calls import check
from cluster_report import Section, Within, milliseconds, row_of
from competitor_processes import stopped, turn
from competitors import program
from models import Array
from report import Row
from run import interleaved
from workloads import N_COVARIATES, Case, negative_binomial_case

import dagad

N_ROWS = 1_000_000
COUNTS = (8, 16, 64)
ROUNDS = 5
MOST_GRADIENTS = 4
N_DIRECTIONS = 16

Total = Callable[..., Any]
Maker = Callable[[Total], Callable[[], Any]]


def hvp(n_rounds: int) -> Section:
    """Products of the Hessian and a vector, and the whole Hessian."""
    case = negative_binomial_case(N_ROWS)
    (vector,) = directions(1)
    whole = autograd.hessian(joined(case))(flat(case.params))
    makers: dict[str, tuple[Maker, Array]] = {
        "gradient": (partial(gradient, case), autograd.grad(joined(case))(flat(case.params))),
        "hvp": (lambda total: lambda: flat(dagad.hvp(total, case.params, apart(vector))), whole @ vector),
        "hessian": (lambda total: lambda: square(dagad.hessian(total, (0, 1))(*case.params)), whole),
    }
    rows = timed("hvp", case, makers, n_rounds)
    rows += [row for name in ("hvp", "hessian") for row in against(rows, name, "gradient", "gradients")]
    bar = Within(f"at most {MOST_GRADIENTS} gradients", "gradient", MOST_GRADIENTS)
    title = f"Hessian-vector product and Hessian: negative binomial, {N_ROWS:,} rows, 11 parameters, threads"
    return Section("hvp", title, "gradient", rows, (bar,), "hvp")


def jvp(n_rounds: int) -> Section:
    """Tangents in one direction and in many."""
    case, many = negative_binomial_case(N_ROWS), directions(N_DIRECTIONS)
    reference = autograd.grad(joined(case))(flat(case.params))
    one_by_one, together = f"{N_DIRECTIONS} x jvp", f"jacfwd of {N_DIRECTIONS}"
    makers: dict[str, tuple[Maker, Array]] = {
        "gradient": (partial(gradient, case), reference),
        "jvp": (lambda total: partial(tangents, total, case, many[:1]), many[:1] @ reference),
        one_by_one: (lambda total: partial(tangents, total, case, many), many @ reference),
        together: (lambda total: partial(columns, total, case, many), many @ reference),
    }
    rows = timed("jvp", case, makers, n_rounds)
    rows += [row for name in list(makers)[1:] for row in against(rows, name, "gradient", "gradients")]
    rows += against(rows, together, one_by_one, f"of {one_by_one}")
    title = f"forward mode: negative binomial, {N_ROWS:,} rows, threads"
    return Section("jvp", title, "gradient", rows)


def timed(name: str, case: Case, makers: dict[str, tuple[Maker, Array]], n_rounds: int) -> list[Row]:
    """The times of all, with each number of chunks, after all have given what they should."""
    turns = {}
    for family, (make, expected) in makers.items():
        for count in COUNTS:
            call = make(program(case, count))
            check(f"{name}, {family} with {count} chunks", (0.0, (call(),)), (0.0, (expected,)))
            turns[family, count] = partial(turn, stopped(call, 1))
    samples = interleaved(turns, n_rounds or ROUNDS)
    return [row_of(family, count, "ms", milliseconds(times)) for (family, count), times in samples.items()]


def against(rows: list[Row], family: str, other: str, what: str) -> list[Row]:
    """How many times as long one family takes as another, with the same chunks."""
    found = {(row.family, row.chunks): row for row in rows if row.what == "ms"}
    pairs = [(found[family, count], found[other, count]) for count in COUNTS]
    return [Row(family, a.chunks, what, a.least / b.least, a.median / b.median, a.n) for a, b in pairs]


def joined(case: Case) -> Callable[[Any], Any]:
    """The whole function at once, of all parameters in one array."""
    return lambda params: case.chunk(case.data, *apart(params))


def flat(arrays: Any) -> Array:
    """All numbers in one array."""
    return np.concatenate([np.ravel(array) for array in arrays])


def apart(params: Any) -> tuple[Any, Any]:
    """Slopes and log size."""
    return params[:-1], params[-1]


def square(blocks: Any) -> Array:
    """A Hessian by blocks as one matrix."""
    sizes = (N_COVARIATES, 1)
    return np.block([[np.reshape(block, (size, -1)) for block in row] for size, row in zip(sizes, blocks, strict=True)])


def directions(count: int) -> Array:
    """Directions in the space of the parameters, one a row."""
    return np.random.default_rng(8).standard_normal((count, N_COVARIATES + 1))


def gradient(case: Case, total: Total) -> Callable[[], Array]:
    """Value and gradient."""
    call = dagad.value_and_grad(total, (0, 1))
    return lambda: flat(call(*case.params)[1])


def tangents(total: Total, case: Case, many: Array) -> Array:
    """One direction after the other."""
    return np.array([dagad.jvp(total, case.params, apart(direction))[1] for direction in many])


def columns(total: Total, case: Case, many: Array) -> Array:
    """All directions at once: a Jacobian in how far to go in each."""
    slopes, log_size = case.params

    def moved(steps: Any) -> Any:
        return total(slopes + steps @ many[:, :-1], log_size + anp.dot(steps, many[:, -1]))

    found: Array = dagad.jacfwd(moved)(np.zeros(len(many)))
    return found
