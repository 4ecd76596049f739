"""Words, and objects of Python's, in place of numbers: is the derivative refused that would be lost in them?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad

AT = np.array([0.6, -0.7, 1.1])
OBJECTS = np.array([1, 2, 3], object)
LOST: dict[str, Callable[[Any], Any]] = {
    "astype": lambda t: np.sum(t.astype(object) ** 2),
    "astype of numpy's": lambda t: np.sum(np.astype(t, object) ** 2),
    "a product with itself": lambda t: np.sum(np.dot(t.astype("O"), t)),
    "words": lambda t: np.sum(t.astype("U32").astype(float) ** 2) + t[0],
    "bytes": lambda t: np.sum(t.astype("S32").astype(float) ** 2 + t),
    "full_like": lambda t: np.sum(np.full_like(t, t[0], dtype=object)),
}


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("take", [dagad.grad, dagad.jacfwd])
def test_numbers_that_become_words_or_objects_are_refused(name: str, take: Any) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"plain numbers or words.*Compute with numbers"):
        take(LOST[name])(AT)


@pytest.mark.parametrize("take", [dagad.grad, dagad.jacfwd, dagad.jacrev])
def test_an_array_of_objects_may_be_computed_with_and_not_returned(take: Any) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"returned an array of objects.*`.astype\(float\)`"):
        take(lambda t: t * OBJECTS)(AT)
    np.testing.assert_array_equal(take(lambda t: np.sum((t * OBJECTS).astype(float)))(AT), [1.0, 2.0, 3.0])


def test_whole_numbers_and_truths_are_constant_between_their_jumps() -> None:
    assert dagad.grad(lambda t: np.sum(t.astype(int) + t.astype(bool)) * t[0])(AT)[0] == 4.0
    np.testing.assert_array_equal(dagad.grad(lambda t: np.sum(np.full_like(t, t[0], dtype="f4")))(AT), [3.0, 0.0, 0.0])


JAXS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "objects": (lambda t: np.sum(t.astype(object)), "numbers of at most 64 bits"),
    "words": (lambda t: np.sum(t.astype("U32").astype(float)), "numbers of at most 64 bits"),
    "a key": (lambda t: {t[0]: 1.0}[t[0]] * t[1], "as a key, of a dict, a set or a cache"),
    "a whole number": (lambda t: t[0].__trunc__(), "asks for a Python number"),
}


@pytest.mark.needs("jax")
@pytest.mark.parametrize("name", JAXS)
def test_numbers_that_jax_has_not_are_refused_by_the_line(name: str) -> None:
    fun, text = JAXS[name]

    def total(t: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: fun(t) * np.sum(rows), np.ones(2), t, grainsize=1, engine="jax")

    with pytest.raises(dagad.NotDifferentiableError, match=f"(?s)Line .*{text}"):
        dagad.grad(total)(AT)
