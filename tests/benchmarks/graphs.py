"""What derivatives of graphs cost: ``python tests/benchmarks/graphs.py [--sizes 1000,10000] [--only fan] [--cluster]``.

For each graph and size, per task of the primal: the call ``value_and_gradient``, and the runs of the primal, of value
and gradient, and of autograd on the same functions in a loop, in microseconds; then how many tasks the graphs have. The
runs take turns in every round and the least of each counts, in processor time, since other work may slow the machine;
on a cluster, with ``--cluster``, by the clock. Before anything is timed, the gradient has to be autograd's. Autograd's
own time is quadratic in the number of arguments, so of more than 2,000 the gradient has to be the known one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import autograd
import autograd.numpy as np
import dask
import numpy as onp
from dask.delayed import Delayed, delayed
from dask.threaded import get as dask_get
from distributed import Client, LocalCluster
from rich.console import Console
from rich.table import Table

import dagad
from dagad_scheduler.private import DataNode, List, Task, TaskRef

X = onp.linspace(0.1, 1.0, 8)
THETA = 0.3
BARS = {"build": 15.0, "run": 2.0, "cluster": 2.2, "tasks": 2.0}
MOST_OF_AUTOGRAD = 2000
Graph = dict[Any, Any]


def step(x: Any) -> Any:
    return np.sin(x) * 0.5 + x


def guided(x: Any, theta: Any) -> Any:
    return np.sin(x) * theta + x


def squares(x: Any, theta: Any) -> Any:
    return np.sum((x - theta) ** 2)


def total(*parts: Any) -> Any:
    return total_of(parts)


def total_of(parts: Any) -> Any:
    found = 0.0
    for part in parts:
        found = found + np.sum(part)
    return found


@dataclass(frozen=True, slots=True)
class Case:
    """A graph, what to differentiate with respect to, and the same in a loop."""

    y: Any
    wrt: list[Any]
    plain: Callable[..., Any]
    at: list[Any]
    n_tasks: int
    slopes: Callable[[], list[Any]] | None = None  # the gradients in closed form


def chain(n: int, function: Any = step) -> Case:
    """Steps one after the other."""
    graph: Graph = {"x0": DataNode("x0", X), "theta": DataNode("theta", THETA)}
    more, at = ([TaskRef("theta")], [X, THETA]) if function is guided else ([], [X])
    for number in range(n):
        graph[f"x{number + 1}"] = Task(f"x{number + 1}", function, TaskRef(f"x{number}"), *more)
    graph["y"] = Task("y", total, TaskRef(f"x{n}"))

    def plain(x: Any, *theta: Any) -> Any:
        for _ in range(n):
            x = function(x, *theta)
        return total(x)

    return Case(Delayed("y", graph), [Delayed(key, graph) for key in ("x0", "theta")[: len(at)]], plain, at, n + 1)


def guided_chain(n: int) -> Case:
    """Steps one after the other, which share a parameter."""
    return chain(n, guided)


def leaves_of(n: int) -> Graph:
    graph: Graph = {"theta": DataNode("theta", THETA)}
    for number in range(n):
        graph[f"x{number}"] = DataNode(f"x{number}", X + number)
        graph[f"f{number}"] = Task(f"f{number}", squares, TaskRef(f"x{number}"), TaskRef("theta"))
    return graph


def of_theta(n: int) -> Callable[[Any], Any]:
    return lambda theta: total_of([squares(X + number, theta) for number in range(n)])


def fan(n: int) -> Case:
    """Independent tasks that share a parameter, all read by one."""
    graph = leaves_of(n)
    graph["y"] = Task("y", total_of, List(*(TaskRef(f"f{number}") for number in range(n))))
    return Case(Delayed("y", graph), [Delayed("theta", graph)], of_theta(n), [THETA], n + 1)


def tree(n: int) -> Case:
    """Independent tasks that share a parameter, added up eight at a time."""
    graph = leaves_of(n)
    level, depth = [f"f{number}" for number in range(n)], 0
    while len(level) > 1:
        above = [f"s{depth}-{start}" for start in range(0, len(level), 8)]
        for place, key in enumerate(above):
            graph[key] = Task(key, total, *map(TaskRef, level[8 * place : 8 * place + 8]))
        level, depth = above, depth + 1
    n_tasks = sum(type(node) is Task for node in graph.values())
    return Case(Delayed(level[0], graph), [Delayed("theta", graph)], of_theta(n), [THETA], n_tasks)


def many_wrt(n: int) -> Case:
    """The fan, with respect to each of its leaves."""
    made = fan(n)
    leaves = [Delayed(f"x{number}", made.y.dask) for number in range(n)]
    at = [X + number for number in range(n)]
    plain, slopes = lambda *xs: total_of([squares(x, THETA) for x in xs]), lambda: [2 * (x - THETA) for x in at]
    return Case(made.y, leaves, plain, at, n + 1, slopes)


def many_inputs(n: int) -> Case:
    """One task of many inputs; costs are per input."""
    graph: Graph = {f"x{number}": DataNode(f"x{number}", float(number)) for number in range(n)}
    graph["y"] = Task("y", total_of, List(*map(TaskRef, list(graph))))
    leaves = [Delayed(f"x{number}", graph) for number in range(n)]
    at = [float(number) for number in range(n)]
    return Case(Delayed("y", graph), leaves, lambda *xs: total_of(xs), at, n, lambda: [1.0] * n)


def delayed_chain(n: int) -> Case:
    """Steps one after the other, made by ``dask.delayed``."""
    state = x = delayed(X)
    for _ in range(n):
        state = delayed(step, pure=False)(state)
    made = chain(n)
    return Case(delayed(total)(state), [x], made.plain, [X], n + 1)


def delayed_fan(n: int) -> Case:
    """Independent tasks that share a parameter, made by ``dask.delayed``."""
    theta = delayed(THETA)
    parts = [delayed(squares, pure=False)(delayed(X + number), theta) for number in range(n)]
    return Case(delayed(total_of)(parts), [theta], of_theta(n), [THETA], n + 1)


CASES = [chain, guided_chain, fan, tree, many_wrt, many_inputs, delayed_chain, delayed_fan]


@contextmanager
def timed(found: list[float], clock: Callable[[], float]) -> Iterator[None]:
    began = clock()
    yield
    found.append(clock() - began)


def measured(case: Case, how: str, get: Any, rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return microseconds per task of the primal, and tasks."""
    everything: Any = dask
    plain = autograd.value_and_grad(case.plain, tuple(range(len(case.at))))
    known = case.slopes if len(case.at) > MOST_OF_AUTOGRAD else None
    times: dict[str, list[float]] = {name: [] for name in ("build", "primal", "run", "autograd")}
    for number in range(rounds + 1):
        with timed(times["build"], time.process_time):
            if how == "jvp":
                value, gradients = dagad.jvp(case.y, case.wrt, case.at)
            else:
                value, gradients = dagad.value_and_gradient(case.y, case.wrt)
        with timed(times["primal"], clock):
            case.y.compute(scheduler=get)
        with timed(times["run"], clock):
            if known is None:
                found = everything.compute(value, gradients, scheduler=get)
            else:  # `dask.compute` takes a time that is quadratic in the number of collections
                keys = [value.key, *(one.key for one in gradients)]
                first, *rest = get(dict(value.dask), keys)
                found = first, rest
        with timed(times["autograd"], time.process_time):
            right = plain(*case.at) if known is None else (found[0], known())
        if not number:
            check(how, case, found, right)
            for samples in times.values():
                samples.clear()  # caches, imports
    n_own = len(dict(value.dask).keys() - dict(case.y.dask).keys())
    own = {name: 1e6 * min(samples) / case.n_tasks for name, samples in times.items()}
    middle = statistics.median(run / primal for run, primal in zip(times["run"], times["primal"], strict=True))
    return {**own, "tasks": n_own / case.n_tasks, "of primal": middle}


def check(how: str, case: Case, found: Any, right: Any) -> None:
    onp.testing.assert_allclose(found[0], right[0], rtol=1e-9)
    if how == "jvp":
        slope = sum(onp.sum(part * at) for part, at in zip(right[1], case.at, strict=True))
        onp.testing.assert_allclose(found[1], slope, rtol=1e-9)
    else:
        for one, other in zip(found[1], right[1], strict=True):
            onp.testing.assert_allclose(one, other, rtol=1e-9)


def main() -> None:
    """Read the command line, run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000", help="numbers of tasks")
    parser.add_argument("--only", default="", help="graphs by the beginning of their names: chain,fan")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cluster", action="store_true", help="on a cluster of two processes")
    options = parser.parse_args()
    sizes, only = [int(size) for size in options.sizes.split(",")], tuple(options.only.split(","))
    table = Table(title=f"us per task of the primal; bars: {BARS}")
    for column in ("graph", "tasks", "where", "build", "primal", "run", "autograd", "run / autograd", "run / primal"):
        table.add_column(column, justify="left" if column in ("graph", "where") else "right")
    table.add_column("tasks / primal's", justify="right")
    if options.cluster:
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as made, Client(made) as client:
            fill(table, sizes, only, options.rounds, {"cluster": client.get}, time.perf_counter)
    else:
        gets = {"dask's threads": dask_get, "dagad.get": dagad.get}
        fill(table, sizes, only, options.rounds, gets, time.process_time)
    Console(width=140).print(table)


def fill(table: Table, sizes: list[int], only: Any, rounds: int, gets: dict[str, Any], clock: Any) -> None:
    """Measure, a row for each graph, size and scheduler."""
    cases = [(case.__name__, case, "gradient") for case in CASES] + [("jvp_of_chain", chain, "jvp")]
    for name, build, how in cases:
        for size in sizes if name.startswith(only) else ():
            for where, get in gets.items():
                if get is dask_get and size > 10_000 and "chain" not in name:
                    continue  # Dask's own order takes minutes for these
                row = measured(build(size), how, get, rounds, clock)
                figures = [f"{row[each]:.1f}" for each in ("build", "primal", "run", "autograd")]
                ratios = [f"{ratio:.2f}" for ratio in (row["run"] / row["autograd"], row["of primal"], row["tasks"])]
                if name.startswith("many") and size > MOST_OF_AUTOGRAD:
                    figures[-1] = ratios[0] = ""
                table.add_row(name, str(size), where, *figures, *ratios)


if __name__ == "__main__":
    main()
