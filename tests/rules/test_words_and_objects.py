"""Words, and objects of Python's, in place of numbers: is no derivative lost in them silently?"""

from __future__ import annotations

import pickle
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


ENGINES = ["autograd", pytest.param("jax", marks=pytest.mark.needs("jax"))]
TEXTS: dict[str, Callable[[Any], str]] = {
    "digits": lambda a: f"{a:.6f}",
    "as it is printed": lambda a: f"{a}",
    "str": str,
    "format": lambda a: format(a, ".3f"),
    "percent": lambda a: "%s" % a,  # noqa: UP031  # another way to it
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", TEXTS)
def test_a_height_remembered_by_a_text_is_that_of_one_argument(name: str, engine: str) -> None:
    def squared(rows: Any, t: Any) -> Any:
        known: dict[str, Any] = {}

        def height(a: Any) -> Any:
            return known.setdefault(TEXTS[name](a), np.exp(a) * np.sum(rows))

        return height(t[0]) * height(t[1])

    def total(t: Any) -> Any:
        return dagad.reduce_sum(squared, np.arange(1.0, 4.0), t, engine=engine)

    at, height = np.array([0.3, 0.3]), 6.0 * np.exp(0.3)
    for take in (dagad.grad, dagad.jacfwd):
        np.testing.assert_allclose(take(total)(at), [height**2, height**2], rtol=1e-12)
    np.testing.assert_allclose(dagad.hessian(total)(at), np.full((2, 2), height**2), rtol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", [lambda a: f"{a:.12f}", str], ids=["digits", "str"])
def test_no_number_is_read_from_the_text_of_a_value(text: Any, engine: str) -> None:
    def total(t: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: float(text(t[0])) * np.sum(rows), np.ones(2), t, engine=engine)

    with pytest.raises(dagad.NotDifferentiableError, match=r"number.*Use the value as it is"):
        dagad.grad(total)(AT)


def test_a_sparse_matrix_times_a_number_is_refused_with_what_to_write() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_matrix(np.eye(2))
    for times in (lambda t: (matrix * t) @ np.ones(2), lambda t: (t * matrix) @ np.ones(2)):
        with pytest.raises(dagad.NotDifferentiableError, match=r"Multiply what comes of it, `t \* \(A @ x\)`"):
            dagad.grad(lambda t, times=times: np.sum(times(t)))(1.5)
    assert dagad.grad(lambda t: np.sum(t * (matrix @ np.ones(2))))(1.5) == 2.0


@pytest.mark.needs("jax")
def test_a_table_with_words_is_refused_by_the_name_of_the_column_where_jax_computes() -> None:
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"x": np.arange(20.0), "s": list("ab") * 10})

    def total(t: Any, **options: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: np.sum((rows["x"] - t) ** 2), table, t, **options)

    assert dagad.grad(total)(0.0) == -380.0
    with pytest.raises(dagad.StructureError, match=r"The column 's' .* holds words.*Give the columns that are numbers"):
        dagad.grad(lambda t: total(t, engine="jax"))(0.0)


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


def test_digits_of_a_value_are_those_digits_and_the_key_of_nothing_else() -> None:
    seen = list[Any]()

    def looking(t: Any) -> Any:
        first, second = f"{t[0]:.1f}", f"{t[1]:.1f}"
        seen.extend([first == "0.5" == second, first == second, first in {"0.5", second}])
        seen.extend([pickle.loads(pickle.dumps(first)), {first: 1}.get(first), f"{first}!"])
        with pytest.raises(dagad.NotDifferentiableError, match="A Python number was asked for"):
            int(first)
        return np.sum(t)

    dagad.grad(looking)(np.array([0.5, 0.5]))
    assert seen[:6] == [True, True, False, "0.5", 1, "0.5!"]  # then it is compared with what is beside
    assert type(seen[3]) is str
