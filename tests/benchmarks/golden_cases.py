"""Features of dagad as programs of a few numbers, and modes of differentiating them, for what compares bits.

Only public names: the same file runs on earlier sources. Workers import it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import autograd.numpy as anp
import dask.array as da
import numpy as np
from dask.base import compute
from dask.delayed import delayed

import dagad
from dagad import extend
from support.matrix_cells import Own, leaves_of as leaves_of

RNG = np.random.default_rng(0)
X = RNG.standard_normal((29, 3))  # ten chunks of three rows: no power of two, and the last one is shorter
MANY = RNG.standard_normal((70, 3))  # with a grainsize of 1: as many cheap chunks as it takes to group them
RAGGED = [RNG.standard_normal(n) for n in (3, 0, 5, 1, 2, 7, 4)]
MODELS = [{"slope": RNG.standard_normal(2), "offset": float(n)} for n in range(7)]
THETA = np.array([0.3, -0.7, 1.1])
FACTORS = (1.0, 0.5)  # of theta, in the evaluations of one cell: the first one may take another executor

Program = Callable[..., Any]


class ChunkContext(NamedTuple):
    """Where the rows of a case are, and what runs it."""

    scheduler: Any
    resident: bool

    def cut(self, data: Any, grainsize: int) -> tuple[Any, dict[str, Any]]:
        """Return the rows as a reduction takes them, and its options."""
        if self.resident:
            return dagad.shard(data, grainsize=grainsize, scheduler=self.scheduler), {}
        return data, {"grainsize": grainsize, "scheduler": self.scheduler}

    def as_default(self) -> AbstractContextManager[Any]:
        """Have Shards that say nothing else, as tangents, go there."""
        return self.scheduler.as_current() if hasattr(self.scheduler, "as_current") else nullcontext()


class Case(NamedTuple):
    """A program of its arguments, and which modes it is run in: here, and in other processes, where each takes long."""

    make: Callable[[ChunkContext], tuple[Program, tuple[Any, ...]]]
    here: Sequence[str]
    away: Sequence[str]


# Functions of chunks and items


def total(rows: Any, theta: Any, scale: Any = 1.0) -> Any:
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta))) * scale


def vector(rows: Any, theta: Any) -> Any:
    return anp.dot(anp.tanh(anp.dot(rows, theta)), rows)


def tree(rows: Any, theta: Any) -> Any:
    return {"one": total(rows, theta), "two": (vector(rows, theta), anp.sum(rows * theta) ** 2)}


def line(model: Any, theta: Any) -> Any:
    return anp.sum(anp.exp(model["slope"] * theta[0])) * anp.sin(model["offset"] * theta[1])


def point(row: Any, theta: Any) -> Any:
    return anp.sin(row * theta)


def points(row: Any, theta: Any) -> Any:
    return {"sines": point(row, theta), "norm": anp.sum(row * theta) ** 2}


def decay(job: Any, theta: Any) -> Any:
    return theta[2] * anp.exp(-theta[0] * job)


def log_sum(rows: Any, theta: Any) -> Any:
    return anp.log(anp.sum(anp.exp(anp.dot(rows, theta))))


def factor(rows: Any, theta: Any) -> Any:
    return 1.0 + 0.01 * anp.sum(rows * theta)


def product(left: Any, right: Any) -> Any:
    return left * right


def wave(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.exp(1j * rows * theta) * rows)


@extend.explicit
def by_hand(rows: Any, theta: Any) -> Any:
    residual = rows @ theta
    return 0.5 * float(residual @ residual), lambda seed: (None, seed * (rows.T @ residual))


# Programs


def summed(f: Any, data: Any = X, grainsize: int = 3, theta: Any = THETA, **options: Any) -> Any:
    def make(context: ChunkContext) -> tuple[Program, tuple[Any, ...]]:
        rows, where = context.cut(data, grainsize)
        return lambda theta: dagad.reduce_sum(f, rows, theta, **where, **_made(options)), (theta,)

    return make


def mapped(call: Any, f: Any, data: Any, grainsize: int, *more: Any) -> Any:
    def make(context: ChunkContext) -> tuple[Program, tuple[Any, ...]]:
        rows, where = context.cut(data, grainsize)
        return lambda theta: call(f, *more, rows, theta, **where), (THETA,)

    return make


def in_rows(call: Any, f: Any, data: Any, grainsize: int) -> Any:
    """Differentiated in the rows too: Shards where these are resident."""

    def make(context: ChunkContext) -> tuple[Program, tuple[Any, ...]]:
        rows, where = context.cut(data, grainsize)
        return lambda theta, rows: call(f, rows, theta, **where), (THETA, rows)

    return make


def two_shared(context: ChunkContext) -> tuple[Program, tuple[Any, ...]]:
    rows, where = context.cut(X, 3)
    return lambda theta, scale: dagad.reduce_sum(total, rows, theta, scale, **where), (THETA, 1.3)


def closed_over(context: ChunkContext) -> tuple[Program, tuple[Any, ...]]:
    rows, where = context.cut(X, 3)
    return lambda theta: dagad.reduce_sum(lambda part: total(part, theta), rows, **where), (THETA,)


def one_after_the_other(context: ChunkContext) -> tuple[Program, tuple[Any, ...]]:
    rows, where = context.cut(X, 3)

    def program(theta: Any) -> Any:
        first = dagad.reduce_sum(vector, rows, theta, **where)
        return dagad.reduce_sum(total, rows, anp.tanh(first), **where)

    return program, (THETA,)


def nested(context: ChunkContext) -> tuple[Program, tuple[Any, ...]]:
    rows, where = context.cut(X, 10)

    def inner(part: Any, theta: Any) -> Any:
        return dagad.reduce_sum(total, part, theta, grainsize=4, scheduler="sync")

    return lambda theta: dagad.reduce_sum(inner, rows, theta, **where), (THETA,)


def _made(options: dict[str, Any]) -> dict[str, Any]:
    """A policy of its own for each program."""
    return {name: option() if name in ("policy", "sum") else option for name, option in options.items()}


ALL = ("value", "gradient", "vjp", "evaluate", "lazy", "jvp", "jacfwd", "jacrev", "hvp", "hessian", "grad of grad")
FIRST = ALL[:5]
SOME = ("value", "gradient", "vjp", "jvp", "hvp")
FEW = ("gradient", "vjp", "hvp")
PULLED = ("gradient", "vjp")

CASES: dict[str, Case] = {
    "reduce_sum": Case(two_shared, ALL, ALL),
    "reduce_sum, 70 chunks": Case(summed(total, MANY, 1), ALL, FEW),
    "reduce_sum, vector": Case(summed(vector), ALL, ALL),
    "reduce_sum, pytree": Case(summed(tree), ALL, SOME),
    "reduce_sum, float32": Case(summed(total, X.astype("f4"), theta=THETA.astype("f4")), SOME, FEW),
    "reduce_sum, complex": Case(summed(wave, theta=THETA + 0.5j * X[0]), ("value", *PULLED), PULLED),
    "reduce_sum, closure": Case(closed_over, SOME, FEW),
    "reduce_sum, twice": Case(one_after_the_other, SOME, FEW),
    "reduce_sum, nested": Case(nested, SOME, FEW),
    "map_sum": Case(mapped(dagad.map_sum, line, MODELS, 2), ALL, SOME),
    "map": Case(mapped(dagad.map, point, X, 3), ALL, ALL),
    "map, 70 chunks": Case(mapped(dagad.map, point, MANY, 1), SOME, ("gradient",)),
    "map, pytree": Case(mapped(dagad.map, points, X, 3), ALL, FEW),
    "map_rect": Case(mapped(dagad.map_rect, decay, RAGGED, 2), ALL, SOME),
    "map_reduce": Case(mapped(dagad.map_reduce, log_sum, X, 3, anp.logaddexp), ALL, SOME),
    "map_reduce, product": Case(mapped(dagad.map_reduce, factor, X, 3, product), SOME, PULLED),
    "compensated": Case(summed(total, sum=extend.CompensatedSum), ALL, SOME),
    "compensated, pytree": Case(summed(tree, sum=extend.CompensatedSum), SOME, PULLED),
    "keep": Case(summed(total, policy=extend.Keep), ALL, FEW),
    "keep, vector": Case(summed(vector, policy=extend.Keep), SOME, PULLED),
    "recompute": Case(summed(total, policy=extend.Recompute), ALL, FEW),
    "recompute, vector": Case(summed(vector, policy=extend.Recompute), SOME, PULLED),
    "preaccumulate": Case(summed(total, policy=extend.Preaccumulate), ALL, FEW),
    "preaccumulate, vector": Case(summed(vector, policy=extend.Preaccumulate), SOME, PULLED),
    "own policy": Case(summed(total, policy=Own), ALL, FEW),
    "explicit": Case(summed(by_hand), FIRST, FIRST),
    "explicit, keep": Case(summed(by_hand, policy=extend.Keep), FIRST, PULLED),
    "rows": Case(in_rows(dagad.reduce_sum, total, X, 3), (*FIRST, "jvp", "hvp"), (*FIRST, "jvp", "hvp")),
    "rows, vector": Case(in_rows(dagad.reduce_sum, vector, X, 3), SOME, SOME),
    "rows, map": Case(in_rows(dagad.map, point, X, 3), SOME, FEW),
    "rows, map_rect": Case(in_rows(dagad.map_rect, decay, RAGGED, 2), SOME, FEW),
}


# Modes


def seeds_like(value: Any, start: float = 0.3) -> Any:
    """A cotangent or tangent of the same structure and dtypes, without zeros; Shards of the same cut for Shards."""
    if isinstance(value, dagad.Shards):
        return dagad.shard(seeds_like(value.gather(), start), grainsize=value.grainsize)
    if isinstance(value, dict):
        return {name: seeds_like(part, start + 0.1 * n) for n, (name, part) in enumerate(sorted(value.items()))}
    if isinstance(value, tuple | list):
        return type(value)(seeds_like(part, start + 0.1 * n) for n, part in enumerate(value))
    array = np.asarray(value)
    filled = (start + 0.05 * np.arange(array.size, dtype=array.dtype)).reshape(array.shape).astype(array.dtype)
    return filled if isinstance(value, np.ndarray) else type(value)(filled)


def scalar(program: Program) -> Program:
    """The program with one real number as its outcome."""

    def weighted(*args: Any) -> Any:
        parts = enumerate(leaves_of(program(*args)))
        return sum(anp.real(anp.sum(part * anp.sin(part))) * (1.0 + 0.1 * n) for n, part in parts)

    return weighted


def gradient(program: Program, args: Any) -> Any:
    return dagad.value_and_grad(scalar(program), tuple(range(len(args))))(*args)


def pulled(program: Program, args: Any) -> Any:
    value, pullback = dagad.vjp(program, *args)
    return value, pullback(seeds_like(value)), pullback(seeds_like(value, -0.6))


def evaluated(program: Program, args: Any, lazy: bool = False) -> Any:
    running = dagad.evaluate(scalar(program), *args, argnums=tuple(range(len(args))), lazy=lazy)
    return running.value(60.0), running.gradient(60.0)


def jvp_of(program: Program, args: Any) -> Any:
    return dagad.jvp(program, args, tuple(map(seeds_like, args)))


def hessian_times(program: Program, args: Any) -> Any:
    return dagad.hvp(scalar(program), args, tuple(map(seeds_like, args)))


def twice(program: Program, args: Any) -> Any:
    fun = scalar(program)

    def slope(theta: Any) -> Any:
        return anp.sum(seeds_like(THETA) * dagad.grad(fun)(theta, *args[1:]))

    return dagad.grad(slope)(args[0])


MODES: dict[str, Callable[[Program, Any], Any]] = {
    "value": lambda program, args: program(*args),
    "gradient": gradient,
    "vjp": pulled,
    "evaluate": evaluated,
    "lazy": lambda program, args: evaluated(program, args, lazy=True),
    "jvp": jvp_of,
    "jacfwd": lambda program, args: dagad.jacfwd(program)(*args),
    "jacrev": lambda program, args: (
        dagad.jacrev(program)(*args),
        dagad.jacrev(program, layout=extend.Sparse())(*args),
    ),
    "hvp": hessian_times,
    "hessian": lambda program, args: dagad.hessian(scalar(program))(*args),
    "grad of grad": twice,
}


def results(case: Case, mode: str, context: ChunkContext) -> list[list[Any]]:
    """The numbers of a few evaluations, one after the other."""
    program, (theta, *others) = case.make(context)
    found = []
    with context.as_default():
        for scale in FACTORS:
            here = theta * theta.dtype.type(scale)
            found.append([np.asarray(leaf) for leaf in leaves_of(MODES[mode](program, (here, *others)))])
    return found


# Collections of Dask


def delayed_graph() -> tuple[Any, Any, Any]:
    """A total of ten chunks with a fan-out, of a parameter that is a Delayed."""
    theta = delayed(THETA, pure=True)
    bent = delayed(anp.tanh)(theta)
    parts = [delayed(total)(X[at : at + 3], bent) for at in range(0, len(X), 3)]
    return delayed(anp.sum)(delayed(anp.array)(parts)), theta, bent


def of_delayed() -> Any:
    y, theta, bent = delayed_graph()
    return dagad.value_and_gradient(y, (theta, bent))


def of_delayed_twice() -> Any:
    y, theta, _ = delayed_graph()
    slope = delayed(anp.sum)(delayed(anp.multiply)(dagad.gradient(y, theta), seeds_like(THETA)))
    return dagad.gradient(slope, theta)


def of_array() -> Any:
    x = da.from_array(X, chunks=(5, 2))
    return dagad.gradient((da.tanh(x) * x).sum(), x)


COLLECTIONS: dict[str, Callable[[], Any]] = {
    "gradient of Delayed": of_delayed,
    "gradient of the gradient of Delayed": of_delayed_twice,
    "gradient of a dask array": of_array,
}


def computed(make: Callable[[], Any], scheduler: Any) -> list[list[Any]]:
    """The numbers of collections."""
    return [[np.asarray(leaf) for leaf in leaves_of(compute(make(), scheduler=scheduler))]]
