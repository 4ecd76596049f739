"""Patterns of `match`: a traced array fits those that an ordinary one does, and a traced number none of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dagad
from dagad._tracing import patterns
from dagad._tracing.traced_array import TracedArray
from support.compiled_quickly import compiled_quickly as compiled_quickly

ENGINES = [None, pytest.param("jax", marks=pytest.mark.needs("jax"))]
X = np.array([0.3, 1.7, -0.4, 0.9])


def by_entries(x: Any) -> Any:
    match x:
        case []:
            return 0.0
        case [a]:
            return a**2
        case [a, b, c]:
            return a * b + c
        case [a, b, _, d]:
            return a * b**2 + d
        case _:
            return np.sum(x) ** 3


def first_and_rest(x: Any) -> Any:
    match x:
        case [a, *rest]:
            return a**2 + sum(each * k for k, each in enumerate(rest))
        case _:
            return 5.0 * np.sum(x)


def nested(x: Any) -> Any:
    match x:
        case [[a, b], [c, d]]:
            return a * d - b * c
        case _:
            return np.sum(np.exp(x))


CASES = [
    (fun, x)
    for fun in (by_entries, first_and_rest, nested)
    for x in (X, X[:1], X[:3], X[:2], X[:0], X.reshape(2, 2), X.reshape(4, 1), 0.7, np.float64(0.7))
    if fun is not nested or np.ndim(x) == 2
]


def in_a_chunk(fun: Any, engine: Any) -> Any:
    return lambda x: dagad.reduce_sum(
        lambda row, x: np.sum(fun(x)) * row[0], np.ones(1), x, engine=engine, scheduler="sync"
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("fun", "x"), CASES)
def test_a_pattern_takes_the_same_way_with_and_without_derivatives(fun: Any, x: Any, engine: Any) -> None:
    value = float(np.sum(fun(x)))
    loss = in_a_chunk(fun, engine)
    found, gradient = dagad.value_and_grad(loss)(x)
    assert found == pytest.approx(value, rel=1e-14)
    assert dagad.jvp(loss, x, np.ones(np.shape(x)))[0] == pytest.approx(value, rel=1e-14)
    along = np.cos(np.arange(np.size(x))).reshape(np.shape(x))
    ahead, behind = (float(np.sum(fun(x + step * along))) for step in (1e-6, -1e-6))
    assert np.sum(gradient * along) == pytest.approx((ahead - behind) / 2e-6, rel=1e-8, abs=1e-9)
    assert dagad.jvp(loss, x, along)[1] == pytest.approx(np.sum(gradient * along))


def test_a_traced_array_fits_patterns_of_sequences_where_ordinary_arrays_do() -> None:
    of_sequences = 1 << 5
    assert (np.ndarray.__flags__ & of_sequences) == (TracedArray.__flags__ & of_sequences)


def test_a_number_fits_no_pattern_of_a_sequence_even_in_a_class_that_does() -> None:
    class Traced:
        def __init__(self, *shape: int) -> None:
            self.shape = shape

        def __len__(self) -> int:
            import sys

            return patterns.length(self.shape, sys._getframe(1))

        def __getitem__(self, at: int) -> int:
            return at

    patterns._SEQUENCES.register(Traced)
    number, vector = Traced(), Traced(300)
    for one in (number, vector):
        found = []
        match one:
            case []:
                found.append("empty")
            case [_]:
                found.append("one")
            case [_, _, *_]:
                found.append("many")
            case _:
                found.append("no sequence")
        assert found == (["many"] if one is vector else ["no sequence"])
    with pytest.raises(TypeError, match=r"len\(\) of unsized object"):
        len(number)
    assert len(vector) == 300
