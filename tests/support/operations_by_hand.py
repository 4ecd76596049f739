"""Operations and jobs of plain functions, made without the public doors, for tests of executors and states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dagad._engines.autograd import AutogradEngine
from dagad._executors.evaluation import find_scheduler
from dagad._executors.graph import GraphExecutor
from dagad._executors.inline import Inline
from dagad._executors.threaded import ThreadedExecutor
from dagad._graphs.monoids import PLAIN, Monoid
from dagad._graphs.policies import Keep
from dagad._kernels.chunks import ChunkFunction
from dagad._kernels.inputs import Inputs
from dagad._kernels.kernel import Kernel, Outputs, Summed
from dagad._kernels.operation import Operation
from dagad._sources.arrays import ArraySource
from dagad._sources.columns import Sliced
from dagad._sources.plan import AnyPlan
from dagad._values import pytree
from dagad._values.partition import Partition

SYNC = find_scheduler("sync")
THREADS = find_scheduler("threads")
EXECUTORS: dict[str, Any] = {
    "inline": Inline(),
    "graph": GraphExecutor(SYNC),
    "grouped": GraphExecutor(SYNC, 2),
    "threads": ThreadedExecutor(THREADS),
    "grouped in threads": ThreadedExecutor(THREADS, 2),
}


class Itself:
    """Makes a function of the values in its closures, of which there are none."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.fun = fun

    def __call__(self, values: Any) -> Any:
        del values
        return self.fun


def chunk_function(fun: Callable[..., Any], theta: Sequence[Any]) -> ChunkFunction:
    """Return what runs a function on a chunk, differentiated in all of theta."""
    partitions = tuple(Partition.of(leaf, pytree.is_differentiable).bare() for leaf in theta)
    return ChunkFunction(Itself(fun), 0, partitions, AutogradEngine())


def operation(
    fun: Callable[..., Any],
    data: Any,
    theta: Sequence[Any],
    plan: AnyPlan,
    *,
    executor: Any = "graph",
    policy: Any = None,
    monoid: Monoid = PLAIN,
    kernel: Callable[[ChunkFunction], Kernel] = Summed,
    active: bool = False,
) -> Operation:
    """Return an operation on rows; with `active`, these are its last leaf."""
    source = ArraySource(len(data), None, len(theta)) if active else ArraySource(len(data), data, None)
    sliced = Sliced(pytree.flatten(0)[1], [source], len(data))
    inputs = Inputs.of(plan, sliced, len(theta))
    made = EXECUTORS[executor] if isinstance(executor, str) else executor
    function = kernel(chunk_function(fun, theta))
    return Operation(function, plan, sliced, inputs, made, policy or Keep(), (fun, active), monoid)


class Known:
    """Stands for what is remembered: whether each chunk is known to give a number."""

    def __init__(self, *, numbers: bool | None) -> None:
        self._numbers = numbers

    def find(self, signature: Any) -> bool | None:
        del signature
        return self._numbers

    def change(self, signature: Any, change: Any) -> None: ...


class Run:
    """An operation at leaves: its value, and pullbacks, one after the other."""

    def __init__(self, operation: Operation, leaves: Sequence[Any]) -> None:
        self.operation, self.leaves = operation, leaves
        self.value: Outputs
        self.value, self.state = operation.forward(leaves)

    def pulled(self, seeds: Sequence[Any]) -> list[Any]:
        """Return the cotangents of the leaves."""
        found, self.state = self.operation.backward(self.leaves, self.value, self.state, seeds)
        return found

    def many(self, seeds: Sequence[Any]) -> list[list[Any]]:
        """Return the cotangents of the leaves for many seeds."""
        found, self.state = self.operation.backward_many(self.leaves, self.value, self.state, seeds)
        return found
