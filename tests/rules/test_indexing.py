"""Indexing: do cotangents of entries go back where they belong, with the bits of `np.add.at`?"""

from __future__ import annotations

from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

import dagad
from dagad._rules.indexing import BLOCK, add_at
from dagad._tracing.tape import record, tape_nbytes

RNG = np.random.default_rng(5)
DTYPES = ("f8", "f4", "c16", "c8")


@st.composite
def additions(draw: Any) -> tuple[Any, Any, Any]:
    """Draw an array, an index of any kind, and as many terms as that takes."""
    dtype, rng = draw(st.sampled_from(DTYPES)), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    whole = np.asarray((rng.normal(size=shape) * draw(st.booleans())).astype(dtype))
    several = draw(arrays.array_shapes(max_dims=2, max_side=3))
    kinds = ["whole", "slice"] if draw(st.booleans()) else ["array", "list", "mask", "slice", "whole", "new", "dots"]
    parts: list[Any] = []
    axis = 0
    while axis < len(shape) and draw(st.integers(0, 5)):
        size = shape[axis]
        kind = draw(st.sampled_from(kinds)) if size else "slice"
        if kind == "dots" and any(part is Ellipsis for part in parts):
            kind = "new"
        bound = st.none() | st.integers(-size - 1, size + 1)
        step = draw(st.sampled_from([None, 1, 2, -1, -2]))
        made: dict[str, Any] = {
            "whole": lambda size=size: draw(st.sampled_from([int, np.int64]))(draw(st.integers(-size, size - 1))),
            "slice": lambda bound=bound, step=step: slice(draw(bound), draw(bound), step),
            "array": lambda size=size: rng.integers(-size, size, several),
            "list": lambda size=size: [int(one) for one in rng.integers(-size, size, 3)],
            "mask": lambda size=size: rng.random(size) < 0.5,
            "new": lambda: None,
            "dots": lambda: Ellipsis,
        }
        parts.append(made[kind]())
        axis += kind not in ("new", "dots")
    index = parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)
    try:
        taken = whole[index]
    except IndexError:  # arrays that don't go together
        index, taken = (), whole
    terms = np.asarray(rng.normal(size=np.shape(taken)) * 10.0 ** rng.integers(-4, 4, np.shape(taken)))
    terms = np.asarray(terms.astype(draw(st.sampled_from([dtype, dtype, "f4", "i4"]))))
    return whole, index, terms[()] if draw(st.booleans()) else terms


@settings(max_examples=400, deadline=None, derandomize=True)
@given(additions())
def test_entries_are_added_to_with_the_bits_of_numpy(case: Any) -> None:
    whole, index, terms = case
    expected, found = whole.copy(), whole.copy()
    np.add.at(expected, index, terms)
    add_at(found, index, terms)
    assert found.tobytes() == expected.tobytes()


def test_rows_that_are_taken_again_and_again_are_added_up_in_order_across_blocks() -> None:
    index = RNG.integers(-7, 7, (3, BLOCK // 4 + 11))
    terms = RNG.normal(size=(*index.shape, 2, 3)) * 10.0 ** RNG.integers(-8, 8, (*index.shape, 2, 3))
    expected, found = np.zeros((7, 2, 3)), np.zeros((7, 2, 3))
    np.add.at(expected, index, terms)
    add_at(found, index, terms)
    assert found.tobytes() == expected.tobytes()


X = RNG.normal(size=(5, 4))
GROUPS = np.array([0, 3, 0, -1, 3, 0])
INDICES: dict[str, Any] = {
    "row": 2,
    "entry": (1, -1),
    "slices": (slice(1, -1), slice(None, None, 2)),
    "backwards": (slice(None, None, -1), slice(3, 0, -2)),
    "new axis": (None, slice(1, 3), Ellipsis),
    "rows again": GROUPS,
    "rows in two axes": GROUPS.reshape(2, 3),
    "pairs": (GROUPS, np.array([3, 0, 3, 1, 0, 3])),
    "list": [1, 1, 0],
    "columns": (slice(None), np.array([0, 2, 0])),
    "mask": np.array([True, False, True, True, False]),
    "nothing": slice(0, 0),
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
def test_every_mode_through_an_index_agrees_with_autograd(index: Any) -> None:
    weights = RNG.normal(size=np.shape(X[index]))

    def fun(x: Any) -> Any:
        return anp.sum(weights * anp.tanh(x[index]) * x[index] ** 2)

    def summed(x: Any) -> Any:
        return dagad.reduce_sum(lambda r, x: np.sum(r) * fun(x), np.ones(3), x, grainsize=1, scheduler="sync") / 3.0

    tangent = RNG.normal(size=X.shape)
    for mine in (fun, summed):
        assert np.allclose(dagad.grad(mine)(X), autograd.grad(fun)(X), rtol=1e-12, atol=1e-14)
        assert np.allclose(dagad.jvp(mine, (X,), (tangent,))[1], autograd.make_jvp(fun)(X)(tangent)[1])
        second = autograd.grad(lambda x: anp.sum(autograd.grad(fun)(x) * tangent))(X)
        assert np.allclose(dagad.hvp(mine, (X,), (tangent,)), second, rtol=1e-12, atol=1e-14)
        twice = dagad.grad(lambda x, of=mine: np.sum(dagad.grad(of)(x) * tangent))(X)
        assert np.allclose(twice, second, rtol=1e-12, atol=1e-14)
    if X[index].size:
        assert np.allclose(dagad.jacrev(lambda x: x[index] ** 2)(X), autograd.jacobian(lambda x: x[index] ** 2)(X))
    assert dagad.grad(fun)(X).tobytes() == autograd.grad(fun)(X).tobytes()


def test_a_tape_does_not_keep_the_array_of_which_it_takes_a_part() -> None:
    large = np.ones(100_000)
    ends = record(lambda leaves: np.exp(leaves[0] + 1.0)[0] * 1.0, [large])[1]
    assert tape_nbytes(ends) < 2 * large.nbytes  # the exponential keeps its value
