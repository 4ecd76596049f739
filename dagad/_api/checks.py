"""A derivative against five-point differences: leaf by leaf along random directions, and chunk by chunk to find out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._api.subjects import Subject, dot
from dagad._errors import GradientError
from dagad._executors.evaluation import new_names
from dagad._operations.chunks import ChunkContext
from dagad._operations.kernel import Outputs
from dagad._pytrees import pytree
from dagad._pytrees.shipping import opened

# Differences of the fourth order: the step that balances what is cut off against what is rounded off.
WEIGHTS = {1: 8 / 12, -1: -8 / 12, 2: -1 / 12, -2: 1 / 12}


def direction_of(rng: np.random.Generator, leaf: Any) -> Any:
    """Return a random direction of a leaf's shape and dtype."""
    shape, dtype = pytree.shape_of(leaf), pytree.dtype_of(leaf)
    drawn = rng.standard_normal(shape)
    if dtype.kind == "c":
        drawn = drawn + 1j * rng.standard_normal(shape)
    return np.asarray(drawn, dtype) if isinstance(leaf, np.ndarray) else dtype.type(drawn)


def paired(parts: Sequence[Any], others: Sequence[Any]) -> float:
    """Return the pairing of vectors and covectors; None is zero."""
    pairs = zip(parts, others, strict=True)
    return float(sum(dot(np.asarray(a), np.asarray(b)) for a, b in pairs if a is not None and b is not None))


def moved(leaves: Sequence[Any], direction: Sequence[Any], step: float) -> list[Any]:
    """Return a point moved along a direction; None does not move."""
    pairs = zip(leaves, direction, strict=True)
    return [leaf if part is None else leaf + pytree.dtype_of(leaf).type(step) * part for leaf, part in pairs]


def differences(
    value: Callable[[Sequence[Any]], list[Any]], leaves: Sequence[Any], direction: Sequence[Any]
) -> list[Any]:
    """Return the directional derivative by five-point differences."""
    total: list[Any] = []
    step = step_of(leaves)
    for count, weight in WEIGHTS.items():
        parts = [np.asarray(part) * (weight / step) for part in value(moved(leaves, direction, count * step))]
        total = [a + b for a, b in zip(total, parts, strict=True)] if total else parts
    return total


def _eps(leaves: Sequence[Any]) -> float:
    return max([float(np.finfo(pytree.dtype_of(leaf)).eps) for leaf in leaves], default=2.0**-52)


def step_of(leaves: Sequence[Any]) -> float:
    """Return the step along a direction of about unit entries."""
    return float(_eps(leaves) ** 0.2)


def tolerance_of(leaves: Sequence[Any]) -> float:
    """Return how far, relatively, a right derivative may be from differences: 1e-7 in double precision."""
    return float(max(1e-7, 100 * _eps(leaves) ** 0.8))


class Check:
    """One check of one subject, with its random directions."""

    def __init__(self, subject: Subject, what: str, tolerance: float | None, seed: int) -> None:
        self._subject, self._what, self._rng = subject, what, np.random.default_rng(seed)
        self._tolerance = tolerance_of(subject.leaves) if tolerance is None else tolerance
        self.seeds = [direction_of(self._rng, leaf) for leaf in subject.value(subject.leaves)]
        self.direction = [direction_of(self._rng, leaf) for leaf in subject.leaves]

    def run(self, modes: Sequence[str]) -> None:
        """Raise `GradientError` for the first leaf whose derivative is wrong in some mode."""
        pulled = self._subject.pull(self.seeds) if "rev" in modes else None
        for place in range(len(self._subject.leaves)):
            along = [part if other == place else None for other, part in enumerate(self.direction)]
            expected = differences(self._subject.value, self._subject.leaves, along)
            scale = sum(float(np.sum(np.abs(np.asarray(a) * b))) for a, b in zip(expected, self.seeds, strict=True))
            by_differences = paired(expected, self.seeds)
            found = {}
            if "fwd" in modes:
                found["forward"] = paired(self._subject.push(along), self.seeds)
            if pulled is not None:
                found["reverse"] = paired([pulled[place]], [self.direction[place]])
            for mode, number in found.items():
                if not abs(number - by_differences) <= self._tolerance * max(scale, 1.0):
                    raise self._wrong(mode, place, number, by_differences)

    def _wrong(self, mode: str, place: int, found: float, expected: float) -> GradientError:
        return GradientError(
            f"The {mode}-mode derivative of {self._what} in {self._subject.names[place]} is wrong: along a random "
            f"direction it is {found:.10g}, and differences give {expected:.10g}. {self._where()}"
        )

    def _where(self) -> str:
        operations = self._subject.operations()
        for operation, leaves in operations:
            for chunk in operation.plan:
                wrong = wrong_leaf(operation, [pytree.plain(leaf) for leaf in leaves], chunk, self._tolerance)
                if wrong:
                    return (
                        f"It is chunk {chunk.number} (rows {chunk.start}:{chunk.stop}) that differs, in {wrong}: check "
                        "the derivative that its function brings, or its primitives."
                    )
        if operations:
            return "No chunk of its reductions differs by itself: look at what surrounds them."
        return "Check the derivatives that its functions and primitives bring."


def wrong_leaf(operation: Any, leaves: Sequence[Any], chunk: Any, tolerance: float) -> str:
    """Return which leaf one chunk has a wrong reverse-mode derivative in; nothing if it is right, or elsewhere."""
    rows, inputs = operation.sliced.rows(chunk), operation.inputs
    if not hasattr(opened(rows), "with_bundles") or any(map(pytree.is_placed, leaves)):  # they live on a cluster
        return ""
    theta = list(leaves[: inputs.shared[0]])
    own = [leaves[leaf] if at is None else leaves[leaf][at] for leaf, at in inputs.targets(chunk.number)]
    place, rng, point = ChunkContext(chunk, new_names()), np.random.default_rng(0), [*theta, *own]

    def parts(leaves: Sequence[Any]) -> Outputs:
        active = ([leaves[len(theta) :]],) if own else ()
        found: Outputs = operation.kernel.value(place, rows, [leaves[: len(theta)]], *active)
        return found

    def value(leaves: Sequence[Any]) -> list[Any]:
        return parts(leaves).floats()

    seeds = [direction_of(rng, leaf) for leaf in value(point)]
    _, pullback, _ = operation.kernel.record(place, rows, [theta], *(([own],) if own else ()))
    cotangents = [part for group in pullback(seeds) for part in group]
    for number, leaf in enumerate(point):
        along = [direction_of(rng, leaf) if other == number else None for other in range(len(point))]
        expected = paired(differences(value, point, along), seeds)
        if not abs(paired(cotangents, along) - expected) <= tolerance * max(abs(expected), 1.0):
            return (
                f"leaf {number} of what is shared" if number < len(theta) else f"leaf {number - len(theta)} of its rows"
            )
    return ""
