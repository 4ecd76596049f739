"""What the tests of hot loops share: did an evaluation take the graph, and are its bits those of one thread?

Workers and schedulers import it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from distributed import Client, SchedulerPlugin

import dagad
from dagad._values import pytree
from dagad_scheduler import Role, role_of
from support.clusters import a_cluster
from support.gated_chunks import bits
from support.waiting import until

X = np.random.default_rng(0).standard_normal((24, 3))
THETA = np.array([0.3, -0.7, 1.1])
GRAINSIZE = 4

Act = Callable[..., list[bytes]]  # evaluates something, and returns every bit of what it gave
Make = Callable[..., Callable[..., Any]]  # from the rows and the options of a reduction to a function of parameters


class Graphs(SchedulerPlugin):
    """Counts the chunks that were tasks, and all tasks but those that stand for loops."""

    name = "dagad-tests-graphs"

    def __init__(self) -> None:
        self.n_chunks = self.n_tasks = 0

    def transition(self, key: Any, start: Any, finish: Any, *args: Any, **kwargs: Any) -> None:
        is_new = start == "released" and finish == "waiting"
        self.n_chunks += is_new and role_of(key) in (Role.VALUE, Role.VALUE_AND_GRAD)
        self.n_tasks += is_new and role_of(key) != Role.LOOP


@contextlib.contextmanager
def a_watched_cluster(n_workers: int = 2, **options: Any) -> Iterator[Client]:
    """Start a cluster that counts the chunks that are tasks."""
    with a_cluster(n_workers, **options) as client:
        client.register_plugin(Graphs())
        yield client


def chunks_as_tasks(client: Client) -> int:
    """Return how many chunks have been tasks until now."""
    return int(client.run_on_scheduler(_n_chunks))


def _n_chunks(dask_scheduler: Any) -> int:
    return int(dask_scheduler.plugins[Graphs.name].n_chunks)


def tasks_made(client: Client) -> int:
    """Return how many tasks there have been until now, whatever for."""
    return int(client.run_on_scheduler(_n_tasks))


def _n_tasks(dask_scheduler: Any) -> int:
    return int(dask_scheduler.plugins[Graphs.name].n_tasks)


def is_hot(client: Client, act: Callable[[], Any]) -> bool:
    """Do something; return whether it went without tasks."""
    before = chunks_as_tasks(client)
    act()
    return chunks_as_tasks(client) == before


@contextlib.contextmanager
def refusals() -> Iterator[list[str]]:
    """Collect why calls past the scheduler could not be made meanwhile."""
    reasons: list[str] = []

    class Collecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            reasons.append(record.getMessage())

    logger, handler = logging.getLogger("dagad"), Collecting()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield reasons
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def until_hung_up(client: Client) -> None:
    """Wait until nobody has connections to the workers, of those who are gone."""

    def is_over() -> bool:
        gc.collect()
        place = client.extensions.get("dagad-residents")
        return place is None or place.residents() is None

    until(is_over)


def heat_up(client: Client, act: Callable[[], Any]) -> None:
    """Do something until it goes without tasks: the first time, workers also import all that it needs."""
    until(lambda: is_hot(client, act))


def in_all(fun: Callable[..., Any]) -> Act:
    """Return what evaluates a function and its gradients in all arguments."""

    def act(*args: Any) -> list[bytes]:
        found = dagad.value_and_grad(fun, argnums=tuple(range(len(args))))(*args)
        return bits(pytree.flatten(found)[0])

    return act


def times(args: Any, factor: float) -> Any:
    """Return arguments times a number, of their own types and layouts."""

    def scaled(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):
            return np.multiply(leaf, leaf.dtype.type(factor), out=np.empty_like(leaf))
        return leaf * type(leaf)(factor)

    leaves, treedef = pytree.flatten(args)
    return pytree.unflatten(treedef, [scaled(leaf) for leaf in leaves])


def shards_on(scheduler: Any, data: Any = X, grainsize: int = GRAINSIZE) -> dagad.Shards:
    """Cut and place the usual data."""
    return dagad.shard(data, grainsize=grainsize, scheduler=scheduler)


def check(
    client: Client,
    make: Make,
    *args: Any,
    how: Callable[[Any], Act] = in_all,
    warm: Callable[[Any], Act] | None = None,
    data: Any = X,
    grainsize: int = GRAINSIZE,
) -> None:
    """See that a loop gets hot, and that its bits are those of one thread before and after that.

    `how` says what is evaluated, `warm` what is evaluated instead until it is hot.
    """
    fun = make(shards_on(client, data, grainsize))
    there, here = how(fun), how(make(data, grainsize=grainsize, scheduler="sync"))

    def same(factor: float) -> None:
        scaled = times(args, factor)
        assert there(*scaled) == here(*scaled)

    if warm is not None:
        warm(fun)(*args)  # what workers import for the first evaluation counts as time of its chunks
    same(1.0)
    heat_up(client, lambda: same(1.0) if warm is None else warm(fun)(*args))
    for factor in (0.5, -2.0, 1.0):
        with refusals() as reasons:
            assert is_hot(client, functools.partial(same, factor)), reasons
