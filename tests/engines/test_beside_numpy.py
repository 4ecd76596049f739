"""Plain numpy that jax traces, beside plain numpy: whole numbers, places, what is changed in place, callbacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dagad
from support.beside_numpy import DIFFERENT, REFUSED, SAME, compared
from support.fuzzed_numpy import ARGUMENTS, function_of, program
from support.views import APART, CHANGES, SHARE, SQUARE, changed, parts

U = np.array([1, 2, 250], np.uint8)
SIGNED = np.array([3, -4, 100], np.int8)
TRUE = np.array([True, False, True])
X = np.array([1.0, 2.0, 3.0])
WIDE = np.array([2**63, 5, 1], np.uint64)


def function(text: str) -> Any:
    return eval(f"lambda u, v=None: {text}", {"np": np})


def check(text: str, *args: Any) -> None:
    """Check that an expression is plain numpy's, in value, dtype and shape, or an error of the same kind."""
    how, theirs, ours = compared(function(text), args)
    assert how == SAME, f"{text}: numpy gives {theirs!r}, and traced it is {ours!r}"


# --- whole numbers ----------------------------------------------------------------------------------------------------

PYTHONS_OWN = """
u < 300; 300 > u; u == 300; u != -1; u > -1; u >= 300; u < 2**70; u > -2**70; u + 300; 300 - u; u * 300; u // 300
u % 300; u & 300; u << 300; np.minimum(u, 300); np.maximum(-1, u); np.clip(u, 0, 300); np.clip(u, -1, 10)
np.clip(u, 300, None); np.searchsorted(u, 300); np.searchsorted([1, 300], u); np.digitize(u, [1, 300])
np.where(u > 1, u, 300); np.select([u > 1], [u], 300); np.choose(u % 2, [u, 300]); np.insert(u, 1, 300)
np.max(u, initial=300); np.sum(u, initial=300); np.outer(u, 300); np.inner(u, 300); np.dot(u, 300)
np.diff(u, prepend=300); np.ediff1d(u, to_end=300); np.append(u, 300); np.full_like(u, 30); np.gcd(u, 300)
np.lcm(u, 300); np.power(u, 300); u**2; 2**u; np.multiply.outer(u, 300); np.add(u, 300, dtype=int)
np.nan_to_num(u, nan=300); np.isin(u, [1, 300]); np.linspace(u[0], 300, 3); np.add(u, 0.5, dtype=int)
"""
NARROW = """
np.cumsum(u); np.cumprod(u); np.sum(u); np.prod(u); u.sum(); u.cumsum(); np.nancumsum(u); np.cumulative_sum(u)
np.mean(u); np.var(u); np.polyval(u, 2); np.polyval([1, 2], u); np.vander(u); u // 0; u % 0; np.divmod(u, 0)
np.fmod(u, 0); u // u[0]; divmod(u, u - u); np.gradient(u); np.median(u); np.diff(u); np.dot(u, u); u / 2; u**2
np.round(u); np.trace(u[:, None] * u); np.einsum("i,i", u, u); np.kron(u, u); np.sort(u); np.argmax(u); -u * 2
np.bitwise_count(u); np.isin(u, [1]); np.average(u); np.count_nonzero(u); np.ptp(u); np.sqrt(u); np.sinc(u * 1.0)
"""


@pytest.mark.parametrize("text", parts(PYTHONS_OWN))
def test_whole_numbers_of_pythons_beyond_a_dtype_are_compared_or_refused_as_by_numpy(text: str) -> None:
    check(text, U)


@pytest.mark.parametrize("kind", [U, SIGNED, TRUE], ids=lambda kind: str(kind.dtype))
def test_narrow_whole_numbers_and_truths_have_numpys_dtypes_and_values(kind: Any) -> None:
    # What numpy or jax has not of truths.
    odd = {"-u * 2", "np.diff(u)", "np.ptp(u)", "np.round(u)", "np.bitwise_count(u)", "np.kron(u, u)"}
    for text in parts(NARROW):
        if kind.dtype != bool or text not in odd:
            check(text, kind)


def test_whole_numbers_with_and_without_a_sign_are_compared_as_numbers() -> None:
    for sign in ("<", "<=", ">", ">=", "==", "!="):
        check(f"u {sign} v", WIDE, np.array([3, -4, 1]))
        check(f"v {sign} u", WIDE, np.array([3, -4, 1]))


def test_negative_powers_of_whole_numbers_are_refused_as_numpy_does() -> None:
    how, theirs, ours = compared(function("u ** -1"), (SIGNED,))
    assert how == SAME
    assert str(theirs) == str(ours) == "Integers to negative integer powers are not allowed."
    for text in ("2 ** u", "u ** u", "np.power(2, u)"):
        with pytest.raises(dagad.NotDifferentiableError, match=r"negative ones of which numpy refuses.*`2\.0 \*\* n`"):
            raise compared(function(text), (SIGNED,))[2]
    check("2.0 ** u + np.power(2, abs(u).astype(np.uint8))", np.array([1, 2, -3], np.int8))


@pytest.mark.parametrize("text", ["np.convolve(u, u)", "np.correlate(u, u)", "np.angle(u)"])
def test_functions_of_whole_numbers_that_jax_computes_in_another_dtype_are_refused(text: str) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"for which numpy computes in .*`x\.astype\(float\)`"):
        raise compared(function(text), (U,))[2]


# --- options, and places ----------------------------------------------------------------------------------------------

OUT = """
np.round(u, 1, np.zeros(3)); np.round(u, out=np.zeros(3)); np.compress([True, False, True], u, None, np.zeros(2))
u.compress([True, False, True], out=np.zeros(2)); u.round(1, np.zeros(3)); np.clip(u, 0, 1, np.zeros(3))
np.clip(u, 0, 1, out=np.zeros(3)); np.take(u, [0], None, np.zeros(1)); np.choose([0], [u[:1]], np.zeros(1))
np.sum(u, out=np.zeros(())); np.concatenate([u, u], out=np.zeros(6)); np.einsum("i->", u, out=np.zeros(()))
np.add(u, 1, np.zeros(3)); np.dot(u, u, np.zeros(())); np.quantile(u, 0.5, None, np.zeros(())); u.sum(out=np.zeros(()))
np.nan_to_num(u, copy=False)
"""
PLACES = """
np.take(u, [9]); np.take(u, -4); np.take(u, [-1, 0]); np.take(u, [[0, 1], [2, 2]]); np.take(u, [9], mode="wrap")
np.take(u, [9], mode="clip"); u[[9]]; u[9]; u.take([9]); np.take_along_axis(u, np.array([9]), 0)
np.take_along_axis(u, np.array([-1]), 0); np.choose([0, 9], [u[:2], u[:2]]); np.choose([0, 1], [u[:2], 2 * u[:2]])
np.insert(u, 9, 1.0); np.insert(u, [0, 1], [4.0, 5.0]); np.insert(u, -1, 1.0); np.insert(u[None], 1, u, axis=0)
np.delete(u, 9); np.delete(u, [0, 9]); np.delete(u, -1); np.delete(u, slice(0, 2)); np.delete(u, [True, False, False])
np.repeat(u, [1, -1, 2]); np.quantile(u, 1.5); np.percentile(u, [5, 200]); np.bincount([-1, 0, 1], weights=u)
np.concatenate([u, u], dtype=int); np.add(u, u, dtype=int); u.astype(int, casting="safe"); np.repeat(u, [1, 0, 2])
np.einsum("i->", u, dtype=int); np.concatenate([u, u], dtype=np.float32); np.add(u, u, dtype=np.float32)
"""


@pytest.mark.parametrize("text", parts(OUT))
def test_a_result_that_is_to_be_written_into_an_array_is_refused_by_name(text: str) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"has `np\.\w+` write into an array.*np\.stack"):
        raise compared(function(text), (X,))[2]


@pytest.mark.parametrize("text", parts(PLACES))
def test_places_and_options_that_there_are_not_are_numpys_errors(text: str) -> None:
    check(text, X)


@pytest.mark.parametrize(
    "text", ["v[u]", "np.take(v, u)", "np.take_along_axis(v, u, 0)", "np.choose(u, [v[:2], v[:2]])"]
)
def test_places_that_are_traced_and_out_of_bounds_are_nan(text: str) -> None:
    found = compared(function(text), (np.array([0, 9]), X))[2]
    assert found[0] == 1.0
    assert np.isnan(found[1])


def test_truths_of_complex_numbers_and_powers_of_zero_are_numpys() -> None:
    z = np.array([0.5 + 1j, -1.0, 2j, 0.0])
    for text in ("np.insert([True], 0, u)", "u.astype(bool)", "np.array([0, 2, 0, 0]) ** u", "u ** u"):
        check(text, z)


# --- callbacks --------------------------------------------------------------------------------------------------------


def sorts(row: Any) -> Any:
    row.sort()
    return row


def beyond(row: Any, axis: int = 0) -> Any:
    return row[9]


IN_PIECES = r"`np\.piecewise` with a function that looks at several entries at once.*Write functions of single entries"
CALLBACKS: dict[str, tuple[Any, str | None]] = {  # each with what it is refused by; None: numpy's IndexError
    "sorted along an axis": (lambda x: np.apply_along_axis(sorts, 0, x), r"another one is used.*`np\.sort\(x\)`"),
    "beyond along an axis": (lambda x: np.apply_along_axis(beyond, 0, x), None),
    "beyond over axes": (lambda x: np.apply_over_axes(beyond, x, [0]), None),
    "beyond in pieces": (lambda x: np.piecewise(x, [x > 1.0], [beyond, 0.0]), None),
    "sums of pieces": (lambda x: np.piecewise(x, [x > 1.0], [lambda part: part - np.mean(part), 0.0]), IN_PIECES),
    "sorted pieces": (lambda x: np.piecewise(x, [x > 1.0], [lambda part: np.sort(part), 0.0]), IN_PIECES),
    "one by one": (
        lambda x: np.vectorize(beyond, signature="(n)->()")(x),
        r"asks for `np\.vectorize`, which makes an ordinary array.*Write it with other functions of `np`",
    ),
}


@pytest.mark.parametrize("case", CALLBACKS)
def test_functions_that_numpy_calls_run_as_the_users_do(case: str) -> None:
    fun, words = CALLBACKS[case]
    how, theirs, ours = compared(fun, (X[::-1].copy(),))
    if words is None:
        assert how == SAME
        assert isinstance(theirs, IndexError)
        return
    with pytest.raises(dagad.NotDifferentiableError, match=words):
        raise ours


def test_functions_that_numpy_calls_are_the_same_compiled() -> None:
    square = np.arange(6.0).reshape(2, 3)
    for text in (
        "np.apply_along_axis(lambda row: row - row[-1], 1, u)",
        "np.apply_along_axis(lambda row: row[:2], 0, u)",
        "np.apply_over_axes(np.sum, u, [0, -1])",
        "np.apply_over_axes(lambda x, axis: np.max(x, axis, keepdims=True), u, 1)",
        "np.piecewise(u, [u > 1.0, u > 3.0], [lambda x: x**2 * np.sin(x), -1.0, lambda x: np.clip(x, 0.2, 0.5)])",
    ):
        check(text, square)


# --- in place ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", parts(SHARE))
def test_arrays_that_share_memory_are_not_left_as_they_were(view: str) -> None:
    for change in CHANGES:
        how, theirs, ours = compared(changed(view, change), (SQUARE,))
        assert how == REFUSED or (view == "x" and how == SAME), f"{change}: {theirs!r}, {ours!r}"
        if how == REFUSED:
            assert "in place, and another one is used" in str(ours)
            assert "`x = x + y` instead of `x += y`" in str(ours)
    check_of(changed(view, "v *= 2.0", "v"))
    check_of(changed(view, "v = v * 2.0"))


@pytest.mark.parametrize("view", parts(APART))
def test_arrays_with_memory_of_their_own_may_be_changed_in_place(view: str) -> None:
    for change in CHANGES:
        check_of(changed(view, change))


def check_of(fun: Any) -> None:
    how, theirs, ours = compared(fun, (SQUARE,))
    assert how == SAME, f"numpy gives {theirs!r}, and traced it is {ours!r}"


def test_an_array_changed_in_place_by_another_name_is_refused() -> None:
    def by_a_function(x: Any) -> Any:
        def scale(v: Any) -> None:
            v *= 2.0

        x = x * 1.0
        scale(x)
        return x

    def in_a_table(x: Any) -> Any:
        held = {"a": x}
        held["a"] *= 2.0
        return x

    def interleaved(x: Any) -> Any:
        place, speed, _ = (x * 1.0).T
        place += 0.1 * speed
        return place, speed

    for fun in (by_a_function, in_a_table):
        with pytest.raises(dagad.NotDifferentiableError, match=r"another one is used.*Write `x = x \+ y` instead of"):
            raise compared(fun, (SQUARE,))[2]
    check_of(interleaved)


def test_an_array_changed_in_place_keeps_its_shape_and_dtype_or_is_refused() -> None:
    for change, what in (("v += np.ones((2, 2, 3))", "shape"), ("v += x", "dtype")):
        _, _, ours = compared(changed("x.astype(np.float32)", change), (SQUARE,))
        with pytest.raises(dagad.NotDifferentiableError, match=rf"whose {what} is .*`x = x \+ y`.*astype"):
            raise ours


def test_an_array_that_numpy_lets_nobody_write_into_is_not_changed_in_place() -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"lets nobody write into.*`x = x \+ y`"):
        raise compared(changed("np.broadcast_to(x, (2, 2, 3))", "v += 1.0", "v"), (SQUARE,))[2]


# --- random programs --------------------------------------------------------------------------------------------------


LEAST_VALUES = 10  # of 20 programs; others end in the same error, or are refused


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_random_programs_are_never_silently_another_one(start: int) -> None:
    different, n_values = [], 0
    for seed in range(start, start + 20):
        how, theirs, ours = compared(function_of(program(seed)), list(ARGUMENTS.values()))
        n_values += how == SAME and not isinstance(theirs, Exception)
        if how == DIFFERENT:
            different.append((program(seed), theirs, ours))
    assert not different
    assert n_values >= LEAST_VALUES


@pytest.mark.parametrize(
    "text", ["t = 0.0\nfor r in x: t += np.sum(r)", "t = x[0]\nfor r in x[1:]: t += r", "t = x.sum()\ns = t\nt += s"]
)
def test_sums_may_be_added_up_in_place(text: str) -> None:
    made: dict[str, Any] = {"np": np}
    exec("def fun(x):\n    " + text.replace("\n", "\n    ") + "\n    return t", made)
    check_of(made["fun"])
