"""Ordinary arrays that are written into after they met a traced value: derivatives are of what they were then."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.special

import dagad
from dagad._tracing import residuals, writing
from dagad._tracing.tape import TapePullback, record

X = np.float64(0.7)
SIZES = [3, 200]  # copied each time; once, as long as it is the same
Write = Callable[[Any, int], None]
Meet = Callable[[Any, Any], Any]


def numbers(b: Any, k: int) -> Any:
    return 0.3 + k + np.linspace(0.1, 0.9, b.size)


# Ways to write


def filled(b: Any, k: int) -> None:
    b[:] = numbers(b, k)


def one_by_one(b: Any, k: int) -> None:
    for place, number in enumerate(numbers(b, k)):
        b[place] = number


def halves(b: Any, k: int) -> None:
    half = b[: len(b) // 2 + 1]  # a view
    half[:] = k
    b[len(b) // 2 :] = k + 0.5


def in_place(b: Any, k: int) -> None:
    b *= 0.5
    b += k + 1


def by_out(b: Any, k: int) -> None:
    np.add(numbers(b, k), 0.2, out=b)


def by_options(b: Any, k: int) -> None:
    options = {"out": b}
    np.add(numbers(b, k), 0.2, **options)


def by_methods(b: Any, k: int) -> None:
    b.fill(k + 0.1)
    np.add.at(b, [0, -1], 0.3)
    np.copyto(b[1:2], 5.0)
    np.put(b, [0], 0.4)


class Filler:
    def __init__(self, step: float = 0.1) -> None:
        self.step = step

    def go(self, b: Any, k: int) -> None:
        b[...] = numbers(b, k) + self.step


def by_an_object(b: Any, k: int) -> None:
    Filler().go(b, k)


WRITES: list[Write] = [filled, one_by_one, halves, in_place, by_out, by_options, by_methods, by_an_object]

# Ways to meet

MEETS: dict[str, Meet] = {
    "x * b": lambda x, b: np.sum(np.sin(x * b)),
    "b * x": lambda x, b: np.sum(np.sin(b * x)),
    "x / b": lambda x, b: np.sum(x / (1 + b)),
    "b / x": lambda x, b: np.sum(b / x),
    "x - b": lambda x, b: np.sum((x - b) ** 2),
    "b - x": lambda x, b: np.sum((b - x) ** 2),
    "x ** b": lambda x, b: np.sum(x**b),
    "b ** x": lambda x, b: np.sum(b**x),
    "array * b": lambda x, b: np.sum(np.cos(x * np.ones(b.size)) * b),
    "b @ array": lambda x, b: b @ np.cos(x * np.ones(b.size)),
    "array @ matrix": lambda x, b: np.sum(np.cos(x * np.ones(b.size)) @ b[:, None]),
    "matrix @ array": lambda x, b: np.sum(np.stack([b, b]) @ np.exp(x * np.ones(b.size) / 9) + b[0] * x),
    "view of b": lambda x, b: np.sum(np.exp(x * b[::-1] / 9)),
    "logaddexp": lambda x, b: np.sum(np.logaddexp(x, b)),
    "maximum": lambda x, b: np.sum(np.maximum(3 * x, b)),
    "hypot": lambda x, b: np.sum(np.hypot(x, b)),
    "where": lambda x, b: np.sum(np.where(b > 1.2, x**2, x)) * np.sum(np.where(b > 1, x * b, x)),
    "clip": lambda x, b: np.sum(np.clip(2 * x, b - 0.2, b + 0.3) ** 2),
    "einsum": lambda x, b: np.einsum("i,i->", np.cos(x * np.ones(b.size)), b),
    "dot": lambda x, b: np.dot(b, np.tanh(x * np.ones(b.size))),
    "outer": lambda x, b: np.sum(np.outer(b[:2], x * b[:3]) ** 2),
    "average": lambda x, b: np.average(np.exp(x * np.arange(b.size) / b.size), weights=b),
    "interp": lambda x, b: np.interp(0.3, np.linspace(0, 1, b.size), b * np.sin(x)),
    "convolve": lambda x, b: np.sum(np.convolve(x * np.arange(3.0), b[:5], "full") ** 2),
    "index": lambda x, b: np.sum((x * np.arange(5.0))[np.asarray(b[:2], int) % 5] ** 2),
    "take": lambda x, b: np.sum(np.take(x * np.arange(5.0), np.asarray(b[:2], int) % 5) ** 2),
    "mask": lambda x, b: np.sum((x * np.arange(float(b.size)))[b > b.mean()] ** 2),
    "xlogy": lambda x, b: np.sum(scipy.special.xlogy(b, x)),
    "gammainc": lambda x, b: np.sum(scipy.special.gammainc(b[:3], x)),
    "solve": lambda x, b: np.sum(np.linalg.solve(np.diag(b[:3] + 1), x * np.ones(3))),
}


def in_steps(meet: Meet, write: Write, size: int, keep: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that writes into one buffer again and again; `keep` may copy what meets what is traced."""

    def fun(x: Any) -> Any:
        buffer, total = np.ones(size), 0.0
        for step in range(3):
            write(buffer, step)
            total = total + meet(x, keep(buffer))
        buffer[:] = -1.0
        return total

    return fun


def of_every_mode(fun: Callable[[Any], Any]) -> list[Any]:
    value, gradient = dagad.value_and_grad(fun)(X)
    _, pullback = dagad.vjp(fun, X)
    return [
        value,
        gradient,
        pullback(1.0)[0],
        dagad.jvp(fun, X, 1.0)[1],
        dagad.hvp(fun, X, 1.0),
        dagad.grad(dagad.grad(fun))(X),
    ]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("meet", MEETS)
@pytest.mark.parametrize("write", WRITES)
def test_a_buffer_that_is_filled_again_and_again_has_the_derivatives_of_its_copies(write: Write, meet: str) -> None:
    for size in SIZES:
        found, expected = (of_every_mode(in_steps(MEETS[meet], write, size, keep)) for keep in (own, np.copy))
        assert found == expected, size
        assert found[0] == in_steps(MEETS[meet], write, size, own)(X)


def own(b: Any) -> Any:
    return b


def of_rows(rows: Any, x: Any) -> Any:
    return np.sum(rows) * in_steps(MEETS["x * b"], by_an_object, 500, own)(x)


def test_buffers_are_as_they_were_on_every_scheduler(scheduler: Any) -> None:
    def total(x: Any) -> Any:
        return dagad.reduce_sum(of_rows, np.arange(4.0), x, grainsize=2, scheduler=scheduler)

    expected = of_every_mode(lambda x: 6.0 * in_steps(MEETS["x * b"], by_an_object, 500, np.copy)(x))
    np.testing.assert_allclose(of_every_mode(total), expected, rtol=1e-13)


@pytest.mark.needs("jax")
@pytest.mark.parametrize("meet", sorted(MEETS.keys() - {"gammainc", "mask"}))
def test_a_compiled_function_that_fills_a_buffer_again_and_again_has_the_values_of_its_copies(meet: str) -> None:
    write = WRITES[len(meet) % len(WRITES)]

    def total(x: Any, fun: Callable[[Any], Any], engine: str | None) -> Any:
        chunk = lambda rows, x: np.sum(rows) * fun(x)  # noqa: E731  # what is compiled
        return dagad.reduce_sum(chunk, np.ones(2), x, engine=engine, scheduler="sync")

    for size in SIZES[:2]:
        expected = dagad.value_and_grad(total)(X, in_steps(MEETS[meet], write, size, np.copy), None)
        found = dagad.value_and_grad(total)(X, in_steps(MEETS[meet], write, size, own), "jax")
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.needs("jax")
def test_a_function_of_jaxs_that_fills_a_buffer_of_numpys_has_the_values_of_its_copies() -> None:
    import jax.numpy as jnp

    def chunk(rows: Any, x: Any) -> Any:
        buffer, total = np.zeros(300), jnp.zeros(())
        for step in range(3):
            filled(buffer, step)
            total = total + jnp.sum(jnp.multiply(x, buffer) ** 2)
        return jnp.sum(rows) * total

    def plain(x: Any) -> Any:
        return sum(2.0 * np.sum((x * numbers(np.zeros(300), step)) ** 2) for step in range(3))

    found = dagad.value_and_grad(lambda x: dagad.reduce_sum(chunk, np.ones(2), x, engine="jax", scheduler="sync"))(X)
    np.testing.assert_allclose(found, [plain(X), 2.0 * plain(X) / X], rtol=1e-12)


# Constants that are no arrays of numpy's own, and views


def by_diagonal(x: Any, keep: Any) -> Any:
    matrix, total = np.ones((8, 8)), 0.0
    for step in range(3):
        matrix[:] = step + np.arange(64.0).reshape(8, 8) / 64
        total = total + np.sum(np.sin(x * keep(np.diag(matrix))))
    return total


def by_windows(x: Any, keep: Any) -> Any:
    buffer, total = np.ones(8), 0.0
    for step in range(3):
        buffer[:] = step + np.arange(8.0) / 8
        windows = np.lib.stride_tricks.sliding_window_view(buffer, 3)
        total = total + np.sum(np.sin(x * keep(windows)) * keep(np.broadcast_to(buffer[:3], (6, 3))))
    return total


def by_sparse(kind: Any) -> Callable[[Any, Any], Any]:
    def fun(x: Any, keep: Any) -> Any:
        matrix, total = kind(np.eye(5)), 0.0
        for step in range(3):
            matrix[0, 0] = step + 2.0
            total = total + np.sum(np.sin(keep(matrix) @ (x * np.arange(1.0, 6.0))))
        return total

    return fun


def by_series(x: Any, keep: Any) -> Any:
    import pandas as pd

    series, total = pd.Series(np.ones(5)), 0.0
    for step in range(3):
        series[:] = step + 1.0
        total = total + np.sum(np.sin(x * keep(series)))
    return total


def by_lists(x: Any, keep: Any) -> Any:
    index, total = [[0] for _ in range(150)], 0.0
    for step in range(3):
        for one in index:
            one[0] = step + 1
        total = total + np.sum(np.sin((x * np.arange(1.0, 6.0))[keep(index)]))
    return total


def by_pingpong(x: Any, keep: Any) -> Any:
    now, after, total = np.ones(10_000), np.ones(10_000), 0.0
    for step in range(4):
        total = total + np.sum(np.sin(x * keep(now)))
        after[5 * step + 2] = step + 2.0
        now, after = after, now
    return total


def by_inner_gradients(x: Any, keep: Any) -> Any:
    buffer, total = np.ones(10_000), 0.0
    for step in range(3):
        buffer[7 * step + 1] = step + 2.0
        total = total + dagad.grad(lambda y: np.sum(np.sin(y * keep(buffer))))(x)
    return total


def by_coordinates(x: Any, keep: Any) -> Any:
    matrix, total = scipy.sparse.coo_array(np.eye(5)), 0.0
    for step in range(3):
        matrix.coords[1][:] = (np.arange(5) + step) % 5  # the numbers stay as they are
        total = total + np.sum(np.sin(keep(matrix) @ (x * np.arange(1.0, 6.0))) * np.arange(5.0))
    return total


def by_shape(x: Any, keep: Any) -> Any:
    total = 0.0
    for width in (5, 7, 6):
        matrix = scipy.sparse.csr_array((np.ones(5), np.arange(5), np.arange(6)), shape=(5, width))
        total = total + np.sum(np.sin(keep(matrix) @ (x * np.arange(float(width)))))
        del matrix
    return total


OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "a diagonal": by_diagonal,
    "windows": by_windows,
    "rows of a sparse matrix": by_sparse(scipy.sparse.csr_matrix),
    "a sparse array": by_sparse(scipy.sparse.lil_array),
    "coordinates of a sparse array": by_coordinates,
    "sparse arrays in one place": by_shape,
    "a column": by_series,
    "lists": by_lists,
    "two buffers by turns": by_pingpong,
    "a gradient in a gradient": by_inner_gradients,
}


def kept_by(fun: Callable[[Any, Any], Any], keep: Any, x: Any) -> Any:
    return fun(x, keep)


@pytest.mark.parametrize("name", OTHERS)
def test_views_matrices_columns_and_lists_that_are_written_into_are_what_they_were(name: str) -> None:
    found, expected = (of_every_mode(partial(kept_by, OTHERS[name], keep)) for keep in (own, copy.deepcopy))
    assert found == expected


# What nobody sees


LATER = ["x * b", "b / x", "x ** b", "b @ array", "array @ matrix", "maximum", "average", "einsum", "xlogy"]


@pytest.mark.parametrize("name", LATER)
def test_a_pullback_that_reads_a_large_array_that_was_written_into_later_is_refused(name: str) -> None:
    data = numbers(np.ones(10_000), 0)
    pullback = dagad.vjp(lambda x: MEETS[name](x, data), X)[1]
    assert np.isfinite(pullback(1.0)[0])
    data[-1] = 7.0
    with pytest.raises(dagad.NotDifferentiableError, match=r"shape \(10000,.*was written into.*`b = b \* 2`"):
        pullback(1.0)


@pytest.mark.parametrize("name", LATER)
def test_a_pullback_of_a_gradient_has_what_arrays_were_or_is_refused(name: str) -> None:
    data = numbers(np.ones(10_000), 0)
    pullback = dagad.vjp(dagad.grad(lambda x: MEETS[name](x, data)), X)[1]
    before = pullback(1.0)[0]
    data[-1] = 7.0
    try:
        after = pullback(1.0)[0]
    except dagad.NotDifferentiableError:
        return
    assert after == before


def test_a_small_array_of_a_global_is_what_it_was_when_it_met_a_traced_value() -> None:
    for size in (3, 300, 3_000):
        data = np.ones(size)
        _, pullback = dagad.vjp(lambda x, data=data: np.sum(x * data), X)
        data[-1] = 5.0
        assert pullback(1.0)[0] == size


def test_an_array_that_a_pullback_does_not_read_may_be_written_into() -> None:
    data, mask = np.ones(10_000), np.arange(10_000) % 2 == 0

    def fun(x: Any) -> Any:
        some = np.where(mask, x * np.ones(10_000), data)
        return np.sum(np.concatenate([(x + data) - data, data, x * np.ones(2), some]))

    _, pullback = dagad.vjp(fun, X)
    data[:] = 5.0
    assert pullback(1.0)[0] == 15_002.0


def test_arrays_that_nobody_can_write_to_are_held_as_they_are() -> None:
    data = np.ones(1_000)
    data.flags.writeable = False
    assert residuals.held(data) == (data, None)


# What it costs


def test_an_array_that_meets_many_values_is_copied_once() -> None:
    data = np.ones(1_000)

    def steps(leaves: Any) -> Any:
        (y,) = leaves
        for _ in range(100):
            y = np.tanh(y * data)
            data.fill(1.0)
        return np.sum(y)

    _, ends, roots = record(steps, [np.ones(1_000)])
    pullback = TapePullback(ends, roots, [np.ones(1_000)])
    assert pullback.nbytes() < 100 * (2 * 8_000 + 2_000)  # the results of both operations, and one copy of the data
    del pullback, ends, roots
    gc.collect()
    assert id(data) not in residuals._COPIES


def asks() -> bool:
    return writing.is_written_meanwhile(sys._getframe(1))


def adds_up(x: Any) -> Any:
    total = 0.0
    counts = {"n": 0}
    for key in "ab":
        total += np.sum(x)
        counts["n"] += 1
        counts[key] = 1
    return asks() * x


def counts_in_what_it_is_given(x: Any, info: Any = {"n": 0}) -> Any:  # noqa: B006  # which is the case
    info["n"] += 1
    return asks() * x


def stores_a_row(x: Any) -> Any:
    matrix, found = np.zeros((3, 3)), asks()
    row = matrix[0]
    row[:] = 1.0
    return found * x


def changes(x: Any) -> Any:
    array, found = np.zeros(3), asks()
    array += 1.0
    return found * x


def changes_an_entry(x: Any) -> Any:
    array, found = np.zeros(3), asks()
    array[1] += 1.0
    return found * x


def has_one_that_writes(x: Any) -> Any:
    array = np.zeros(3)

    def write() -> None:
        array[0] = 1.0

    write()
    return asks() * x


def puts(x: Any) -> Any:
    np.put(np.zeros(3), [0], 1.0)
    return asks() * x


def writes_around(x: Any) -> Any:
    array = np.zeros(3)
    found = dagad.grad(lambda y: y * asks())(x)
    array[0] = 1.0
    return x * found


WRITE = [stores_a_row, changes, changes_an_entry, has_one_that_writes, puts, writes_around]


@pytest.mark.parametrize("fun", WRITE)
def test_a_function_that_writes_into_arrays_is_seen_while_it_is_followed(fun: Any) -> None:
    assert dagad.grad(fun)(X) == 1.0


@pytest.mark.parametrize("fun", [adds_up, counts_in_what_it_is_given])
def test_a_function_that_adds_numbers_or_fills_dicts_does_not_count_as_one_that_writes(fun: Any) -> None:
    array = np.zeros(3)
    array[0] = 1.0  # what is around a trace has nothing to do with it
    assert not asks()
    assert dagad.grad(fun)(X) == 0.0


def test_verdicts_on_a_function_go_with_it() -> None:
    code = compile("def fun(b):\n b[0] = 1\n return find(b)", "a cell", "exec")
    scope: dict[str, Any] = {"find": lambda b: asks(), "__name__": "__main__"}
    exec(code, scope)
    scope["fun"](np.ones(3))
    key = id(scope["fun"].__code__)
    assert key in writing._WRITES
    gone = weakref.ref(scope["fun"].__code__)
    del scope, code
    gc.collect()
    assert gone() is None
    known = writing._WRITES.get(key)
    assert known is None or known[0]() is not None  # another one, in the same place
