"""Value with gradient is a kernel that any executor calls: are its bits those of the value and the pullback of 1?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import autograd.numpy as np
import numpy as onp
import pytest

from dagad._engines.autograd import AutogradEngine
from dagad._engines.explicit import Explicit, ExplicitEngine
from dagad._kernels.chunks import ChunkFunction
from dagad._kernels.cuts import ByItem
from dagad._kernels.finite import Finite
from dagad._kernels.inputs import Inputs
from dagad._kernels.joins import Added
from dagad._kernels.kernel import Kernel, Summed
from dagad._kernels.operation import Operation, WithGrad
from dagad._kernels.over_parts import OverParts
from dagad._sources.arrays import ArraySource
from dagad._sources.columns import Sliced
from dagad._sources.plan import Plan
from dagad._sources.shards import ShardSource
from dagad._sources.slots import Slots
from dagad._values import pytree
from dagad._values.partition import Partition
from dagad.extend import CompensatedSum, Keep, PlainSum, Preaccumulate
from support.cluster_of_dicts import OnPaper, PaperLines, Placed
from support.gated_chunks import bits
from support.operations_by_hand import EXECUTORS, Itself, Run
from support.toy_engine import ComplexStep

pytestmark = pytest.mark.sampled(16)

RNG = onp.random.default_rng(0)
N_ROWS, PLAN = 23, Plan(23, 3)
X = RNG.standard_normal((N_ROWS, 2)) * 10.0 ** RNG.integers(-4, 2, (N_ROWS, 1))
Y = RNG.standard_normal(N_ROWS)
THETA, SCALE = onp.array([0.3, -0.7]), 0.6


def number(rows: Any, theta: Any, scale: Any) -> Any:
    x, y = rows
    return np.sum(np.sin(x @ theta) * y) * scale


def unused(rows: Any, theta: Any, scale: Any) -> Any:
    return -np.sum(rows[1]) * scale  # theta has no part in it, and x neither


def sometimes_nothing(rows: Any, theta: Any, scale: Any) -> Any:
    return number(rows, theta, scale) if np.ravel(rows[0])[0] > 0 else 0


def one_of_single(rows: Any, theta: Any, scale: Any) -> Any:
    return np.sum(np.array(theta, "f4") * np.float32(np.ravel(rows[0])[0])) * np.float32(0.1)


def with_its_pullback(rows: Any, theta: Any, scale: Any) -> Any:
    (x, y), angles = rows, rows[0] @ theta

    def pullback(seed: Any) -> Any:
        slope = seed * scale * np.cos(angles) * y
        return (np.outer(slope, theta), seed * scale * np.sin(angles)), slope @ x, seed * np.sum(np.sin(angles) * y)

    return np.sum(np.sin(angles) * y) * scale, pullback


FUNCTIONS: dict[str, tuple[Callable[..., Any], Any]] = {
    "number": (number, AutogradEngine()),
    "unused": (unused, AutogradEngine()),
    "sometimes nothing": (sometimes_nothing, AutogradEngine()),
    "single precision": (one_of_single, AutogradEngine()),
    "complex step": (number, ComplexStep()),
    "explicit": (Explicit(with_its_pullback), ExplicitEngine()),
}
KERNELS: dict[str, Callable[[ChunkFunction], Kernel]] = {
    "whole": Summed,
    "looked at": lambda function: Finite(Summed(function)),
    "by item": lambda function: OverParts(function, ByItem(keeps=True), Added()),
}


def chunk_function(fun: Any, engine: Any) -> ChunkFunction:
    shared = tuple(Partition.of(leaf, pytree.is_differentiable).bare() for leaf in (THETA, SCALE))
    return ChunkFunction(Itself(fun), 0, shared, engine)


def operation(name: str, kernel: str, executor: str, monoid: Any, policy: Any, *, active: bool) -> Operation:
    sharded = Placed(X, PLAN)
    on_workers = executor == "residents"
    made = OnPaper(PaperLines([sharded], [0, 0, 1, 1, 0, 2, 2, 2], 2)) if on_workers else EXECUTORS[executor]
    x: Any = ShardSource(N_ROWS, sharded, None) if on_workers else ArraySource(N_ROWS, X, None)  # type: ignore[arg-type]  # on paper
    y = ArraySource(N_ROWS, None, 2) if active else ArraySource(N_ROWS, Y, None)
    shards: Any = (sharded,) if on_workers else ()
    sliced = Sliced(pytree.flatten((0, 0))[1], [x, y], N_ROWS, shards)
    function = KERNELS[kernel](chunk_function(*FUNCTIONS[name]))
    owner = (name, kernel, executor, active)
    return Operation(function, PLAN, sliced, Inputs.of(PLAN, sliced, 2), made, policy, owner, monoid)


def pulled_by_one(made: Operation, leaves: Sequence[Any]) -> list[bytes]:
    """Return the bits of the value, and of the cotangents of what was left behind for pullbacks."""
    job, slots = made.job(leaves), Slots(leaves)
    results, residuals = made.executor.linearize(job, Keep())
    value = made.monoid.lower(results.reduced)
    assert residuals is not None
    run = Run(made, leaves)
    seed = onp.asarray(1.0, pytree.dtype_of(value))[()]
    assert residuals.pull(job, [OfOne(seed)], slots.write_all)
    assert bits([value]) == bits([run.value.reduced])
    return bits([value, *slots.seal()])


class Wide:
    """A monoid of a user's own, in more precision: value, gradient and count come as one tree."""

    def lift(self, term: Any) -> Any:
        return self._cast(term, onp.longdouble)

    def add(self, a: Any, b: Any, ours: bool) -> Any:
        del ours
        (mine, treedef), (others, _) = pytree.flatten(a), pytree.flatten(b)
        return pytree.unflatten(treedef, [x + y for x, y in zip(mine, others, strict=True)])

    def lower(self, total: Any) -> Any:
        return self._cast(total, onp.float64)

    def _cast(self, tree: Any, dtype: Any) -> Any:
        leaves, treedef = pytree.flatten(tree)
        return pytree.unflatten(treedef, [onp.asarray(leaf, dtype)[()] for leaf in leaves])


@pytest.mark.parametrize("executor", [*EXECUTORS, "residents"])
def test_a_monoid_of_the_users_own_adds_up_value_and_gradient(executor: str) -> None:
    made = operation("number", "whole", executor, Wide(), Preaccumulate(), active=True)
    expected = pulled_by_one(made, [THETA, SCALE, Y])
    for _ in range(2):
        run = Run(made, [THETA, SCALE, Y])
        assert isinstance(run.state, WithGrad)
        assert bits([run.value.reduced, *run.pulled([1.0])]) == expected


class OfOne:
    """The seed of a number."""

    def __init__(self, seed: Any) -> None:
        self.floats, self.reduced, self.sharded = [seed], [seed], list[Any]()

    def stacked(self, number: int) -> list[Any]:
        del number
        return []


CELLS = [
    cell
    for cell in itertools.product(FUNCTIONS, KERNELS, [*EXECUTORS, "residents"], (False, True))
    if cell[:2] != ("explicit", "by item")  # such items are added up before they are a kernel
]


@pytest.mark.parametrize("monoid", [PlainSum(), CompensatedSum()], ids=["plain", "compensated"])
@pytest.mark.parametrize(("name", "kernel", "executor", "active"), CELLS)
def test_value_and_grad_has_the_bits_of_the_value_and_of_the_pullback_of_one(
    name: str, kernel: str, executor: str, active: bool, monoid: Any
) -> None:
    leaves = [THETA, SCALE, Y] if active else [THETA, SCALE]
    made = operation(name, kernel, executor, monoid, Preaccumulate(), active=active)
    expected = pulled_by_one(made, leaves)
    for _ in range(3):  # once it is known that it gives a number, it is a single call
        run = Run(made, leaves)
        assert bits([run.value.reduced, *run.pulled([1.0])]) == expected
    # As a kernel that others may differentiate in turn.
    reduced, shared, n_without = (both := made.value_and_grad().call(leaves)).reduced
    assert not n_without
    here, there = [run.value.reduced, *run.pulled([1.0])], [reduced, *shared, *both.stacked]
    assert bits([part + 0.0 for part in there]) == bits([part + 0.0 for part in here])  # of zeros, either sign
