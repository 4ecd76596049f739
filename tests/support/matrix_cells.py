"""What the cells of the matrix run: features as programs of theta and rows, modes, and what plain autograd says.

Workers import it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import autograd
import autograd.numpy as anp
import numpy as np
import optree
import pandas
from distributed import Client, wait

import dagad
from dagad import extend
from support.waiting import PATIENCE

RNG = np.random.default_rng(0)
N_ROWS, GRAINSIZE, N_CHUNKS = 9, 2, 5  # no power of two, and the last chunk is shorter
THETA = np.array([0.3, -0.7, 1.1])
X = RNG.standard_normal((N_ROWS, 2))
RAGGED = [RNG.standard_normal(1 + n % 2) for n in range(N_ROWS)]
TABLE = {"x": X[:, 0].copy(), "y": X[:, 1].copy()}

Program = Callable[..., Any]  # of theta, and of the rows where it is differentiated in these


# What runs where a chunk does

_RUNS: list[None] = []  # of functions of chunks and items in this process; threads may append at the same time


def note_run() -> None:
    _RUNS.append(None)


def take_runs() -> int:
    """Return how often functions ran in this process since this was asked."""
    n_runs = len(_RUNS)
    del _RUNS[:n_runs]
    return n_runs


def take_all_runs(scheduler: Any) -> int:
    """Return the same of all processes."""
    away = scheduler.run(take_runs).values() if isinstance(scheduler, Client) else ()
    return take_runs() + sum(away)


# Functions of chunks and items, by how they read rows: two numbers a row


def of_array(rows: Any) -> Any:
    return rows[..., 0], rows[..., 1]


def of_table(rows: Any) -> Any:
    return rows["x"], rows["y"]


def of_list(rows: Any) -> Any:
    return anp.array([anp.sum(item) for item in rows]), anp.array([anp.sum(item**2) for item in rows])


def of_item(item: Any) -> Any:
    return anp.sum(item), anp.sum(item**2)


def terms(pair: Any, theta: Any) -> Any:
    x, y = pair
    return anp.logaddexp(0.0, x * theta[0] + y * theta[1]) * anp.exp(0.1 * theta[2] * x)


def total(read: Any, rows: Any, theta: Any) -> Any:
    return anp.sum(terms(read(rows), theta))


def totals(read: Any, rows: Any, theta: Any) -> Any:
    x, y = read(rows)
    return {
        "one": anp.sum(terms((x, y), theta)),
        "two": anp.stack([anp.sum(x * theta[1]), anp.sum((y * theta[2]) ** 2)]),
    }


def log_sum(read: Any, rows: Any, theta: Any) -> Any:
    return anp.log(anp.sum(anp.exp(terms(read(rows), theta))))


def point(read: Any, item: Any, theta: Any) -> Any:
    x, y = read(item)
    return anp.array([terms((x, y), theta), x * theta[0]])


def curve(read: Any, item: Any, theta: Any) -> Any:
    if read is of_item:  # as many outputs as the item is long
        return anp.exp(-theta[0] * item) * theta[1] + theta[2] * anp.sum(item)
    return point(read, item, theta)


def noted(f: Any, read: Any) -> Any:
    """Return the function of rows and theta that a user would give, which notes its runs."""

    def function(rows: Any, theta: Any) -> Any:
        note_run()
        return f(read, rows, theta)

    return function


class Own:
    """A policy of the user's own, which is no subclass of ours."""

    def __init__(self) -> None:
        self._kept = extend.Keep()

    @property
    def counters(self) -> Any:
        return self._kept.counters

    def linearize(self, task: Any, args: tuple[Any, ...]) -> Any:
        return self._kept.linearize(task, args)


# Features: how a user calls it, and the same without chunks


class Feature(NamedTuple):
    """How a user calls it, by which function of a chunk or an item, and the same on all rows in one piece."""

    call: Callable[..., Any]
    function: Callable[..., Any]
    by_item: bool = False
    assemble: Callable[[Sequence[Any]], Any] | None = None  # of what the items gave

    @property
    def n_runs(self) -> int:
        """How many runs of the function an evaluation takes that computes nothing twice."""
        return N_ROWS if self.by_item else N_CHUNKS

    def whole(self, source: Source) -> Program:
        """Return the function that was cut into chunks, of theta and the rows."""
        if self.assemble is None:
            return lambda theta, rows: self.function(source.read, rows, theta)
        assemble = self.assemble
        return lambda theta, rows: assemble([self.function(source.read_item, item, theta) for item in rows])


def _map_reduce(function: Any, rows: Any, theta: Any, **options: Any) -> Any:
    return dagad.map_reduce(function, anp.logaddexp, rows, theta, **options)


def _compensated(function: Any, rows: Any, theta: Any, **options: Any) -> Any:
    return dagad.reduce_sum(function, rows, theta, sum=extend.CompensatedSum(), **options)


def _own_policy(function: Any, rows: Any, theta: Any, **options: Any) -> Any:
    return dagad.reduce_sum(function, rows, theta, policy=Own(), **options)


FEATURES = {
    "sum": Feature(dagad.reduce_sum, total),
    "pytree": Feature(dagad.reduce_sum, totals),
    "map": Feature(dagad.map, point, True, anp.stack),
    "map_rect": Feature(dagad.map_rect, curve, True, anp.concatenate),
    "map_reduce": Feature(_map_reduce, log_sum),
    "compensated": Feature(_compensated, total),
    "own policy": Feature(_own_policy, total),
}


MANY_NUMBERS = ("pytree", "map", "map_rect", "map_reduce")  # more than one, or not added up


# Sources


class Source(NamedTuple):
    """Rows, how functions read them, and whether they are differentiated in."""

    rows: Any
    read: Any
    read_item: Any
    active: bool = False
    sharded: bool = False

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What programs are differentiated in."""
        return (THETA, self.rows) if self.active else (THETA,)


SOURCES = {
    "arrays": Source(X, of_array, of_array),
    "in arrays": Source(X, of_array, of_array, active=True),
    "ragged": Source(RAGGED, of_list, of_item, active=True),
    "shards": Source(X, of_array, of_array, sharded=True),
    "in shards": Source(X, of_array, of_array, active=True, sharded=True),
    "ragged shards": Source(RAGGED, of_list, of_item, sharded=True),
    "table": Source(TABLE, of_table, of_table),
    "table shards": Source(TABLE, of_table, of_table, sharded=True),
}


class Given(NamedTuple):
    """A program as it is differentiated, at which arguments, and in which directions."""

    program: Program
    args: tuple[Any, ...]
    tangents: tuple[Any, ...]
    scheduler: Any = "sync"


def given(feature: str, source: str, scheduler: Any, *, plain: bool = False, placed: bool = False) -> Given:
    """Return the program of a cell; `plain`: on arrays in the user's hands; `placed`: once Shards are on workers."""
    what, where = FEATURES[feature], SOURCES[source]
    rows, options, tangents = where.rows, {"scheduler": scheduler}, directions(where)
    if where.read is of_table and not plain:
        rows = pandas.DataFrame(where.rows | {"words": ["unused"] * N_ROWS})
    if where.sharded and not plain:
        cut = functools.partial(dagad.shard, grainsize=GRAINSIZE, scheduler=scheduler)
        rows, tangents = cut(rows), (tangents[0], *map(cut, tangents[1:]))
        if placed:
            with scheduler.as_current():
                wait([future for shards in (rows, *tangents[1:]) for future in shards.kept.values()], PATIENCE)
    else:
        options["grainsize"] = GRAINSIZE
    function = noted(what.function, where.read_item if what.by_item else where.read)
    if where.active:
        return Given(
            lambda theta, rows: what.call(function, rows, theta, **options), (THETA, rows), tangents, scheduler
        )
    return Given(lambda theta: what.call(function, rows, theta, **options), (THETA,), tangents, scheduler)


# Directions and seeds, without zeros


def filled_like(tree: Any, start: float) -> Any:
    count = itertools.count()
    return optree.tree_map(
        lambda leaf: np.cos(start + next(count) + np.arange(np.size(leaf)).reshape(np.shape(leaf))), tree
    )


def directions(source: Source) -> tuple[Any, ...]:
    return tuple(filled_like(source.arguments, 0.3))


def seeds_for(value: Any) -> Any:
    seeds = filled_like(value, 0.7)
    return optree.tree_map(lambda leaf, seed: seed if isinstance(leaf, np.ndarray) else float(seed), value, seeds)


def number_of(program: Program) -> Program:
    """Return the program with one real number as its outcome."""

    def weighted(*args: Any) -> Any:
        leaves = enumerate(leaves_of(program(*args)))
        return sum(anp.sum(anp.sin(leaf) * leaf) * (1.0 + 0.1 * n) for n, leaf in leaves)

    return weighted


# Modes


def _gradient(given: Given) -> Any:
    program, args, *_ = given
    return dagad.value_and_grad(number_of(program), _every(args))(*args)


def _vjp(given: Given) -> Any:
    value, pullback = dagad.vjp(given.program, *given.args)
    return value, pullback(seeds_for(value))


def _evaluate(given: Given) -> Any:
    program, args, *_ = given
    running = dagad.evaluate(number_of(program), *args, argnums=_every(args))
    return running.value(PATIENCE), running.gradient(PATIENCE)


def _slope(given: Given) -> Any:
    program, args, tangents, _ = given

    def slope(*args: Any) -> Any:
        return anp.sum(tangents[0] * dagad.grad(number_of(program))(*args))

    return dagad.grad(slope, _every(args))(*args)


def _every(args: Sequence[Any]) -> tuple[int, ...]:
    return tuple(range(len(args)))


MODES: dict[str, Callable[[Given], Any]] = {
    "value": lambda given: given.program(*given.args),
    "grad": _gradient,
    "vjp": _vjp,
    "evaluate": _evaluate,
    "jvp": lambda given: dagad.jvp(given.program, given.args, given.tangents),
    "jacfwd": lambda given: dagad.jacfwd(given.program, _every(given.args))(*given.args),
    "jacrev": lambda given: dagad.jacrev(given.program, _every(given.args))(*given.args),
    "hvp": lambda given: dagad.hvp(number_of(given.program), given.args, given.tangents),
    "hessian": lambda given: dagad.hessian(number_of(given.program), _every(given.args))(*given.args),
    "grad of grad": _slope,
}
SECOND_ORDER = ("hvp", "hessian", "grad of grad")
WHOLE_MATRICES = ("jacfwd", "jacrev", "hessian")


def leaves_of(result: Any) -> Iterator[Any]:
    """Yield the numbers and arrays of a result, in one order; those of Shards come home, sparse ones are filled up."""
    if isinstance(result, dagad.Shards):
        yield from leaves_of(result.gather())
    elif isinstance(result, dict):
        for name in sorted(result):
            yield from leaves_of(result[name])
    elif isinstance(result, tuple | list):
        for part in result:
            yield from leaves_of(part)
    else:
        yield result.toarray() if hasattr(result, "toarray") else result


def bits(result: Any) -> list[tuple[str, tuple[int, ...], bytes]]:
    """Return every bit of a result."""
    arrays = map(np.asarray, leaves_of(result))
    return [(array.dtype.str, array.shape, array.tobytes()) for array in arrays]


# What plain autograd says


class Right(NamedTuple):
    """Value and Jacobian of a program that was never cut, seeds; value, gradient and Hessian of its one number."""

    value: Any
    jacobian: Any
    seeds: Any
    number: float
    gradient: Any
    hessian: Any


def whole_args(source: Source) -> tuple[Any, Any]:
    """Return theta and the rows as the whole function takes them."""
    return THETA, Columns(source.rows) if isinstance(source.rows, dict) else source.rows


class Columns(dict[str, Any]):
    """A table as the whole function takes it: columns by name, or rows in turn."""

    def __iter__(self) -> Iterator[Any]:
        return iter([{name: self[name][n] for name in ("x", "y")} for n in range(N_ROWS)])


def right(feature: str, source: str) -> Right:
    """Return the derivatives of the whole function, of all arguments in one vector."""
    what, where = FEATURES[feature], SOURCES[source]
    like = next(name for name, other in SOURCES.items() if (other.rows is where.rows) and other.active == where.active)
    return _right(next(name for name, other in FEATURES.items() if other.function is what.function), like)


@functools.cache
def _right(feature: str, source: str) -> Right:
    where, whole = SOURCES[source], FEATURES[feature].whole(SOURCES[source])
    arguments: Any = where.arguments
    leaves, treedef = optree.tree_flatten(arguments)
    flat = np.concatenate([np.ravel(leaf) for leaf in leaves])
    bounds = np.cumsum([0, *(np.size(leaf) for leaf in leaves)])

    def outcome(vector: Any) -> Any:
        parts = [vector[start:stop] for start, stop in itertools.pairwise(bounds)]
        parts = [anp.reshape(part, np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
        given = optree.tree_unflatten(treedef, parts)
        return whole(*given, *whole_args(where)[len(given) :])

    def outputs(vector: Any) -> Any:
        return anp.concatenate([anp.ravel(leaf) for leaf in leaves_of(outcome(vector))])

    number, seeds = number_of(outcome), leaves_of(seeds_for(outcome(flat)))
    return Right(
        outputs(flat),
        autograd.jacobian(outputs)(flat),
        np.concatenate([np.ravel(seed) for seed in seeds]),
        float(number(flat)),
        autograd.grad(number)(flat),
        autograd.hessian(number)(flat),
    )


def expected(mode: str, feature: str, source: str) -> list[Any]:
    """Return what a mode has to give, as flat arrays."""
    found, n_theta = right(feature, source), len(THETA)
    tangents = np.concatenate([np.ravel(leaf) for leaf in leaves_of(directions(SOURCES[source]))])
    if mode == "value":
        return [found.value]
    if mode in ("grad", "evaluate"):
        return [[found.number], found.gradient]
    if mode == "vjp":
        return [found.value, found.seeds @ found.jacobian]
    if mode == "jvp":
        return [found.value, found.jacobian @ tangents]
    if mode in ("jacfwd", "jacrev"):
        return [found.jacobian]
    if mode == "hvp":
        return [found.hessian @ tangents]
    if mode == "hessian":
        return [found.hessian]
    return [found.hessian[:, :n_theta] @ tangents[:n_theta]]


def flattened(mode: str, source: str, result: Any) -> list[Any]:
    """Return a result in the form of `expected`."""
    if mode in WHOLE_MATRICES:
        return [matrix(result, [np.size(leaf) for leaf in leaves_of(SOURCES[source].arguments)])]
    parts = result if mode in ("grad", "evaluate", "vjp", "jvp") else (result,)
    return [np.concatenate([np.ravel(leaf) for leaf in leaves_of(part)]) for part in parts]


def matrix(result: Any, sizes: Sequence[int]) -> Any:
    """Put the blocks of a Jacobian together: those of one output stand beside each other, one per argument."""
    blocks = list(leaves_of(result))
    rows = [blocks[start : start + len(sizes)] for start in range(0, len(blocks), len(sizes))]
    return np.vstack(
        [np.hstack([np.reshape(b, (-1, size)) for b, size in zip(row, sizes, strict=True)]) for row in rows]
    )
