"""Indexing: do cotangents of entries go back where they belong, with the bits of `np.add.at`?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from autograd import extend

import dagad
from dagad._rules import indexing
from dagad._rules.indexing import BLOCK, add_at
from dagad._tracing.tape import record, tape_nbytes

RNG = np.random.default_rng(5)


def a_part(rng: np.random.Generator, kind: str, size: int, several: Any) -> Any:
    """Return a part of an index, for an axis of some size, if it takes one."""
    bounds: list[Any] = [None if rng.random() < 0.4 else int(rng.integers(-size - 1, size + 2)) for _ in range(2)]
    step: Any = (None, 1, 2, -1, -2)[rng.integers(5)]
    made: dict[str, Callable[[], Any]] = {
        "whole": lambda: (int, np.int64)[rng.integers(2)](rng.integers(-size, size)),
        "slice": lambda: slice(bounds[0], bounds[1], step),
        "array": lambda: rng.integers(-size, size, several),
        "small": lambda: rng.integers(0, size, several).astype(rng.choice(["u1", "i4", "u8"])),
        "list": lambda: [int(one) for one in rng.integers(-size, size, 3)],
        "mask": lambda: rng.random(size) < 0.5,
        "truths": lambda: (rng.random(size) < 0.5).tolist(),
        "new": lambda: None,
        "dots": lambda: Ellipsis,
        "truth": lambda: (True, False, np.True_)[rng.integers(3)],
    }
    return made[kind]()


NO_AXIS = "new", "dots", "truth"
KINDS = {"basic": ("whole", "slice", *NO_AXIS), "arrays": ("array", "small")}
KINDS["any"] = *KINDS["basic"], *KINDS["arrays"], "list", "truths", "mask"


def an_addition(rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Return an array, an index of any kind, and as many terms as that takes."""
    dtype = rng.choice(["f8", "f4", "c16", "c8"])
    shape = tuple(rng.integers(rng.random() > 0.1, 5, rng.integers(0, 4)))
    whole = np.asarray((rng.normal(size=shape) * rng.integers(0, 2)).astype(dtype), order=rng.choice(["C", "F"]))
    kinds, several = KINDS[rng.choice([*KINDS])], tuple(rng.integers(1, 4, rng.integers(1, 3)))
    parts: list[Any] = []
    axis, ends = 0, rng.random() < 0.5
    while len(parts) < 5 and not (ends and rng.random() < 0.3):
        kind = rng.choice(kinds)
        if kind == "dots" and any(part is Ellipsis for part in parts):
            continue
        if kind not in NO_AXIS:
            if axis == len(shape):
                break
            kind, axis = kind if shape[axis] else "slice", axis + 1
        parts.append(a_part(rng, kind, shape[axis - 1] if axis else 0, several))
    index = parts[0] if len(parts) == 1 and rng.random() < 0.5 else tuple(parts)
    terms = np.asarray(rng.normal(size=np.shape(whole[index])))
    if terms.size and rng.random() < 0.2:  # numpy broadcasts fewer terms
        terms = terms[tuple([slice(None, 1) if rng.random() < 0.5 else slice(None)] * terms.ndim)]
        terms = terms[0] if terms.ndim and rng.random() < 0.5 else terms
    terms = np.asarray(terms.astype(rng.choice([dtype, dtype, "f4", "i4", "f8"])), order=rng.choice(["C", "F"]))
    return whole, index, terms[()] if rng.random() < 0.2 else terms


@pytest.mark.parametrize("small", [0, indexing.SMALL])
def test_entries_are_added_to_with_the_bits_of_numpy(
    small: int, rounds: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "SMALL", small)
    rng, n_right = np.random.default_rng(7), 0
    for _ in range(rounds(4000)):
        try:
            whole, index, terms = an_addition(rng)
        except IndexError:  # arrays that don't go together
            continue
        expected, found = whole.copy(order="K"), whole.copy(order="K")
        np.add.at(expected, index, terms)
        add_at(found, index, terms)
        assert found.tobytes() == expected.tobytes(), (whole, index, terms)
        n_right += 1
    assert n_right > 0.8 * rounds(4000)


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


def test_a_list_of_truths_is_a_mask() -> None:
    """For autograd it is a list of the whole numbers 0 and 1 when the cotangent goes back."""
    mask, weights = [False, True, False, True, True], RNG.normal(size=(3, 4))

    def fun(x: Any, index: Any = mask) -> Any:
        return anp.sum(weights * x[index] ** 2)

    expected = autograd.grad(lambda x: fun(x, np.array(mask)))(X)
    assert dagad.grad(fun)(X).tobytes() == expected.tobytes()
    assert np.allclose(dagad.hvp(fun, (X,), (X,)), expected)
    nothing = dagad.grad(lambda x: np.sum(x[[]]) + np.sum(x))(X)
    assert (nothing == 1.0).all()


def test_a_cotangent_that_is_to_be_broadcast_to_the_entries_is() -> None:
    tools: Any = extend
    row_sums = tools.primitive(lambda x: x.sum(axis=1))
    tools.defvjp(row_sums, lambda ans, x: lambda g: g[:, None])
    for index in (np.array([0, 2, 2]), np.arange(300) % 5, slice(1, 3)):
        fun = lambda x, index=index: anp.sum(row_sums(x[index]) ** 2)  # noqa: E731  # it carries the index
        assert dagad.grad(fun)(X).tobytes() == autograd.grad(fun)(X).tobytes()


def test_a_tape_does_not_keep_the_array_of_which_it_takes_a_part() -> None:
    large = np.ones(100_000)
    ends = record(lambda leaves: np.exp(leaves[0] + 1.0)[0] * 1.0, [large])[1]
    assert tape_nbytes(ends) < 2 * large.nbytes  # the exponential keeps its value
