"""Chunks in plain numpy and scipy: is every mode right, and is it said what to write where that ends?"""

from __future__ import annotations

import functools
import math
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import autograd
import autograd.numpy as anp
import autograd.scipy.linalg
import autograd.scipy.special
import autograd.scipy.stats
import numpy as np
import pytest
import scipy.fft
import scipy.integrate
import scipy.linalg
import scipy.special
import scipy.stats
from autograd.numpy.numpy_boxes import ArrayBox

import dagad
from dagad._tracing.patches import patches
from dagad._tracing.tape import record
from support.called import PLAIN, X, Y, evaluated, function, total
from support.numpy_calls import FAMILIES, NOT_IN_JAX, calls, is_here, name
from support.tiers import optional

V = np.cos(1.7 * np.arange(12.0)) + 0.1
TRACED = {
    "np": anp,
    "special": autograd.scipy.special,
    "linalg": autograd.scipy.linalg,
    "stats": autograd.scipy.stats,
    "integrate": scipy.integrate,
    **dict.fromkeys(("distance", "fft", "signal", "ndimage")),  # C code there does not bear autograd's arrays
}
CALLS = [call for family in FAMILIES.values() for call in calls(family) if is_here(call, PLAIN)]
GUIDE = Path(__file__).parents[2] / "docs" / "reference" / "numpy_functions.md"


def slope(fun: Callable[[Any], Any], step: float = 1e-5) -> Any:
    """Return the derivative of a function along V, by differences of fourth order."""
    ahead, behind = (fun(X + k * V) - fun(X - k * V) for k in (step, 2 * step))
    return (8 * ahead - behind) / (12 * step)


@pytest.mark.parametrize("call", CALLS)
def test_a_function_by_its_plain_name_is_right_in_every_mode(call: str, one_in: Callable[[int, str], bool]) -> None:
    chunk = evaluated(call, PLAIN)
    loss, alone = total(chunk), partial(chunk, np.full(1, 2.0))  # differences need no reduction
    value, gradient = dagad.value_and_grad(loss)(X)
    assert value == loss(X)  # traced or not: the same bits
    assert gradient @ V == pytest.approx(slope(alone), rel=1e-7, abs=1e-8)
    assert dagad.jvp(loss, X, V) == (value, pytest.approx(gradient @ V, rel=1e-10, abs=1e-12))
    if one_in(2, call):
        curved = (dagad.grad(alone)(X + 1e-5 * V) - dagad.grad(alone)(X - 1e-5 * V)) / 2e-5
        np.testing.assert_allclose(dagad.hvp(loss, X, V), curved, rtol=1e-5, atol=1e-6 * max(1.0, abs(curved).max()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.filterwarnings("ignore")
def test_numpy_and_scipy_functions_give_the_same_bits_traced_and_untraced(kind: Any) -> None:
    for call in CALLS:
        fun = function(call, PLAIN)
        traced = record(partial(apply, fun), [X.astype(kind)])[0]
        assert flat(traced) == flat(fun(X.astype(kind))), call


def apply(fun: Callable[[Any], Any], leaves: Any) -> Any:
    return fun(*leaves)


def flat(out: Any) -> list[Any]:
    parts = map(np.asarray, out if isinstance(out, list | tuple) else [out])
    return [(part.shape, part.dtype, part.tobytes()) for part in parts]


def by_autograd(call: str) -> Any:
    """Return value and gradient by `autograd.numpy`; None where autograd has none, or a wrong one."""
    fun = evaluated(call, TRACED)
    try:
        found = autograd.value_and_grad(lambda x: 2.0 * fun(np.ones(1), x))(X)
    except Exception:
        return None
    return None if isinstance(found[1], ArrayBox) else found  # scipy asks less and less whether it is given arrays


@pytest.mark.filterwarnings("ignore")
def test_gradients_of_plain_numpy_functions_agree_with_autograds_where_those_are_right() -> None:
    both = wrong = 0
    for call in CALLS:
        theirs = by_autograd(call)
        if theirs is None:
            continue
        both += 1
        value, gradient = dagad.value_and_grad(total(evaluated(call, PLAIN)))(X)
        if np.allclose(gradient, theirs[1], rtol=1e-12, atol=1e-13):
            assert value == pytest.approx(theirs[0], rel=1e-13)
        else:
            wrong += 1
            assert not theirs[1] @ V == pytest.approx(slope(total(evaluated(call, PLAIN))), rel=1e-7), call
    assert both > 200
    assert wrong <= 30  # such as `where=`, which autograd's rules take no notice of


# --- where the protocols end ------------------------------------------------------------------------------------------


def assigned(x: Any) -> Any:
    out = np.zeros(12)
    out[0] = x[0]
    return np.sum(out)


def assigned_all(x: Any) -> Any:
    out = np.zeros(12)
    out[:] = x
    return np.sum(out)


def assigned_in_place(x: Any) -> Any:
    x[0] = 0.0
    return np.sum(x)


def added_in_place(x: Any) -> Any:
    out = np.zeros(12)
    out += x
    return np.sum(out)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "assigned": (assigned, r"np\.stack\(parts\).*np\.where"),
    "assigned_all": (assigned_all, r"np\.stack\(parts\).*np\.where"),
    "assigned_in_place": (assigned_in_place, r"np\.stack\(parts\).*np\.where"),
    "added_in_place": (added_in_place, r"`np\.add`.*total = total \+ x"),
    "out": (lambda x: np.exp(x, out=np.zeros(12)), r"`np\.exp` was to write.*np\.stack\(parts\)"),
    "out of a sum": (lambda x: np.sum(x, axis=0, out=np.zeros(())), r"`np\.sum` was to write.*np\.stack\(parts\)"),
    "put": (lambda x: np.put(np.zeros(12), [1], x[0]), r"np\.stack\(parts\)"),
    "array": (lambda x: np.sum(np.array([x[0], x[1]])), r"np\.stack\(\[a, b\]\)"),
    "asarray": (lambda x: np.sum(np.asarray(x)), r"Use the value as it is"),
    "sum of a list": (lambda x: np.sum([x[0], x[1]]), r"`np\.sum` makes an ordinary array.*np\.stack"),
    "full": (lambda x: np.full(3, x[0]), r"`np\.full` makes.*np\.ones\(shape\)"),
    "scipy fft": (
        lambda x: scipy.fft.fht(x, 1.0, 0.5),
        r"`scipy\.fft\.fht` makes an ordinary array.*functions of `np`",
    ),
    "series": (lambda x: np.sum(np.polynomial.Polynomial([1, 2])(x)), r"`np\.polynomial\.Polynomial\.__call__` makes"),
    "masked": (lambda x: np.ma.array(Y) * x, r"`np\.ma\.MaskedArray\.__mul__` makes an ordinary array"),
    "r_": (lambda x: np.r_[x, x], r"`np\.r_` makes.*np\.concatenate"),
    "method": (lambda x: Y.dot(x), r"write `a @ x`"),
    "math": (lambda x: math.exp(x[0]), r"np\.exp\(x\)` instead of `math\.exp\(x\)`"),
    "float": (lambda x: float(x[0]), r"as it is.*np\.exp"),
    "item": (lambda x: x[0].item(), r"`\.item\(\)`.*as it is"),
    "complex": (lambda x: complex(x[0]), r"as it is"),
    "count": (lambda x: range(x[0]), r"index or a count.*whole number"),
    "accumulate": (lambda x: np.maximum.accumulate(x, dtype=int), r"`np\.maximum\.accumulate` was called.*Do without"),
    "mean": (lambda x: np.sum(np.var(x, axis=0, mean=0.5)), r"`np\.var` was called with `mean`.*Do without|`var`"),
    "condition": (lambda x: np.sum(np.compress(x, Y)), r"no derivative of `compress`"),
    "where of a ufunc": (lambda x: np.log(x, where=Y > 1), r"`np\.log` was called with `where`"),
    "quantile": (
        lambda x: np.sum(np.quantile(x, 0.3, method="inverted_cdf", weights=Y)),
        r"`(np\.)?quantile` was called with `weights`",
    ),
    "order of a quantile": (lambda x: np.quantile(Y, x[0]), r"`np\.quantile` makes|no derivative of `quantile`"),
    "period": (lambda x: np.sum(np.unwrap(9 * x, period=6 + x[0])), r"`np\.unwrap` was called with `period`"),
    "odd": (
        lambda x: np.pad(x, 2, "reflect", reflect_type="odd")[0],
        r"`np\.pad` was called with `reflect_type='odd'`",
    ),
    "layout": (lambda x: np.ravel(x.reshape(3, 4)[:, ::2], "K")[0], r"`np\.ravel` was called with `order='K'`"),
    "unique": (lambda x: np.unique(x), r"no derivative of `unique`.*defvjp"),
    "polyfit": (lambda x: np.polyfit(Y, x, 2), r"no derivative of `polyfit`.*defvjp"),
    "degree": (lambda x: scipy.special.eval_legendre(-2, x)[0], r"no derivative of `scipy\.special\.eval_\*` in a"),
    "airy": (lambda x: scipy.special.airye(x)[0], r"no derivative of `scipy\.special\.airye`"),
    "order": (lambda x: np.sum(scipy.special.kv(x, 1.0)), r"no derivative of `kv`.*defvjp"),
    "svd": (lambda x: np.sum(np.linalg.svd(x.reshape(3, 4))[0]), r"no derivative of `svd` .*full_matrices"),
    "complex svd": (lambda x: np.abs(np.linalg.svd(1j * x.reshape(3, 4))[0][0, 0]), r"no derivative of `svd` .*full_m"),
    "scipy svd": (lambda x: np.sum(scipy.linalg.svd(x.reshape(3, 4))[0]), r"no derivative of `scipy\.linalg\.svd`"),
    "scipy qr": (lambda x: np.sum(scipy.linalg.qr(x.reshape(4, 3))[1]), r'no derivative of `scipy\.linalg\.qr`.*"econ'),
    "nct": (lambda x: np.sum(scipy.stats.nct.logpdf(Y, 3.0, x)), r"no derivative of `scipy\.stats\.nct\.logpdf`"),
    "entropy": (
        lambda x: np.sum(scipy.stats.norm.entropy(x)),
        r"`scipy\.stats\.norm\.entropy` makes.*autograd\.scipy\.stats",
    ),
    "frozen": (lambda x: scipy.stats.norm(x).entropy(), r"`scipy\.stats\.norm\.entropy` makes.*autograd\.scipy\.stats"),
    "banded": (
        lambda x: np.sum(scipy.linalg.solve_banded((0, 0), np.stack([x[None], x[None]]), Y)),
        r"no derivative of `scipy\.linalg\.solve_banded`",
    ),
    "ldl": (lambda x: scipy.linalg.ldl(np.outer(x, x)), r"`scipy\.linalg\.ldl` makes.*np\.linalg"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_numpy_function_without_a_derivative_is_refused_with_what_to_write(case: str) -> None:
    fun, sentence = REFUSED[case]
    for mode in (dagad.grad, lambda loss: lambda x: dagad.jvp(loss, x, V)):
        with pytest.raises(dagad.NotDifferentiableError, match=sentence):
            mode(total(lambda rows, x: fun(x)))(X)
        with pytest.raises(dagad.NotDifferentiableError, match=sentence):
            mode(fun)(X)


@pytest.mark.filterwarnings("ignore::dagad.DagadWarning")  # which says so
def test_derivatives_at_corners_are_what_the_guide_says() -> None:
    def square(x: Any) -> Any:
        return np.sum(x**2)

    corners: dict[float, list[Callable[[Any], Any]]] = {
        0.0: [
            lambda x: np.sum(np.abs(x)),
            lambda x: np.sqrt(np.where(square(x) > 0, square(x), 1.0)) * (square(x) > 0),
        ],
        0.5: [lambda x: np.sum(np.maximum(x, 0)), np.max],
        np.nan: [lambda x: np.hypot(x[0], x[1]), np.linalg.norm, np.std],
    }
    for expected, functions in corners.items():
        for fun in functions:
            with np.errstate(all="ignore"):
                assert np.array_equal(dagad.grad(fun)(np.zeros(2)), np.full(2, expected), equal_nan=True)


def test_a_method_that_a_traced_value_lacks_is_named() -> None:
    with pytest.raises(AttributeError, match=r"has no `sort`.*returns a new array"):
        dagad.grad(lambda x: x.sort())(X)
    with pytest.raises(AttributeError, match="has no `sorted`"):
        dagad.grad(lambda x: x.sorted())(X)


def test_a_traced_value_can_be_shown_and_asked() -> None:
    seen = []

    def chunk(rows: Any, x: Any) -> Any:
        seen.append(f"{x[0]:.3f} {x}")
        assert x.shape == np.shape(x) == (12,)
        assert np.ndim(x) == x.ndim == 1
        assert len(list(x)) == np.size(x) == 12
        assert (x.dtype, x.nbytes, x.itemsize) == (np.dtype(float), 96, 8)
        assert np.result_type(x, np.float32) == np.dtype(float)
        assert not np.iscomplexobj(x)
        assert divmod(x[0], 1.0)[0] == round(x[0] / 9) == x[0] // 1.0 == 1.0 // (2 + x[0]) == 0.0
        return np.sum(rows) * (x.dot(Y) + x.copy().conj().real.std() + x.flat[0] + (+x)[1] + x[None].mT.imag.sum())

    expected = 2.0 * (Y + (X - X.mean()) / (12 * X.std()) + (np.arange(12) < 2))
    np.testing.assert_allclose(dagad.grad(total(chunk))(X), expected)
    assert seen[0].startswith(f"{X[0]:.3f} ")


def test_objects_that_hold_traced_values_are_refused_when_they_come_out() -> None:
    def filled(x: Any) -> Any:
        out = np.empty(2, dtype=object)
        out[0], out[1] = x[0], x[1]
        return out

    with pytest.raises(dagad.NotDifferentiableError, match=r"array of objects.*np\.stack"):
        dagad.vjp(filled, X)
    with pytest.raises(dagad.NotDifferentiableError, match=r"np\.stack"):
        dagad.vjp(lambda x: np.array([x[0], x[1]], dtype=object), X)


# --- whose traces -----------------------------------------------------------------------------------------------------


def of_lists(rows: Any, x: Any) -> Any:
    return np.sum(np.stack([np.sum(rows * x**k) for k in range(3)]) * scipy.special.log_ndtr(x))


@pytest.mark.sampled(4)
def test_plain_numpy_is_differentiated_on_every_scheduler_and_in_outer_functions(scheduler: Any) -> None:
    def outer(x: Any) -> Any:
        return np.sin(dagad.reduce_sum(of_lists, Y, x, grainsize=5, scheduler=scheduler)) + np.hypot(x, 2.0)

    at, step = np.float64(0.7), 1e-3
    moved = [outer(at + k * step) for k in (-2, -1, 1, 2)]
    slope = (8 * (moved[2] - moved[1]) - (moved[3] - moved[0])) / (12 * step)
    assert dagad.grad(outer)(at) == pytest.approx(slope, rel=1e-6)
    assert dagad.jvp(outer, at, 1.0)[1] == pytest.approx(dagad.grad(outer)(at), rel=1e-12)
    curve = (dagad.grad(outer)(at + 1e-5) - dagad.grad(outer)(at - 1e-5)) / 2e-5
    assert dagad.hvp(outer, at, 1.0) == pytest.approx(curve, rel=1e-6)
    inner = partial(dagad.reduce_sum, of_lists, Y, grainsize=5, scheduler=scheduler)
    assert autograd.grad(inner)(at) == pytest.approx(dagad.grad(inner)(at))


def imports_inside(rows: Any, x: Any) -> Any:
    from scipy.linalg import cho_factor, cho_solve

    factor = cho_factor(np.outer(x, x) + np.eye(3))
    return np.sum(rows) * np.sum(cho_solve(factor, x))


def test_imports_inside_a_chunk_are_met_in_time(scheduler: Any) -> None:
    loss = partial(dagad.reduce_sum, imports_inside, Y, grainsize=6, scheduler=scheduler)
    gradient = dagad.grad(loss)(X[:3])
    for unit, part in zip(np.eye(3), gradient, strict=True):
        assert part == pytest.approx((loss(X[:3] + 1e-6 * unit) - loss(X[:3] - 1e-6 * unit)) / 2e-6, rel=1e-6)


FRESH = """
import sys
import numpy as np
import dagad

def chunk(rows, x):
    from scipy.linalg import solve
    from scipy.special import ndtr
    return np.sum(rows) * np.sum(solve(np.outer(x, x) + np.eye(3), ndtr(x)))

assert "scipy" not in sys.modules
x = np.array([0.3, 0.5, 0.7])
gradient = dagad.grad(lambda x: dagad.reduce_sum(chunk, np.ones(2), x, scheduler="sync"))(x)
ends = [2 * chunk(np.ones(1), x + sign * 1e-6 * np.eye(3)[0]) for sign in (1, -1)]
assert abs(gradient[0] - (ends[0] - ends[1]) / 2e-6) < 1e-8
"""


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_process_without_scipy_takes_it_up_in_a_chunk() -> None:
    subprocess.run([sys.executable, "-c", FRESH], check=True)


@pytest.mark.filterwarnings("ignore:Calling linalg.det.*dtype=object:DeprecationWarning")  # refused from scipy 1.20 on
def test_autograd_and_plain_calls_have_numpy_and_scipy_unchanged() -> None:
    def one_by_one(x: Any) -> Any:
        assert type(x) is ArrayBox
        assert not hasattr(x, "__array_function__")
        assert np.array([x[0], x[1]]).dtype == object
        return sum(np.array([x[0], x[1]]))

    functions = (scipy.linalg.solve, scipy.special.logsumexp, scipy.linalg.cholesky)
    codes = {function: function.__code__ for function in functions}
    dagad.grad(total(lambda rows, x: scipy.special.logsumexp(x)))(X)  # from here on, these are known
    assert {function: function.__code__ for function in functions} == codes
    with patches:
        assert not set(codes.values()) & {function.__code__ for function in functions}
        assert list(autograd.grad(one_by_one)(X)[:3]) == [1.0, 1.0, 0.0]
        for refused in (lambda x: scipy.special.entr(x)[0], lambda x: scipy.linalg.det(x.reshape(3, 4)[:, :3])):
            with pytest.raises((TypeError, ValueError)) as caught:
                autograd.grad(refused)(X)
            assert not isinstance(caught.value, dagad.DagadError)
        assert scipy.linalg.solve(np.eye(2), np.ones(2)) == pytest.approx(np.ones(2))
        with pytest.raises(np.linalg.LinAlgError):
            scipy.linalg.cholesky(-np.eye(2))
    assert {function: function.__code__ for function in functions} == codes


def test_autograd_inside_a_chunk_sees_the_same_values() -> None:
    def chunk(rows: Any, x: Any) -> Any:
        inner = autograd.grad(lambda t: anp.sum(anp.exp(t) * np.cumsum(x)))(0.3 * x)
        return np.sum(rows) * np.sum(inner * np.log(x))

    expected = 2.0 * autograd.grad(lambda x: anp.sum(anp.exp(0.3 * x) * anp.cumsum(x) * anp.log(x)))(X)
    np.testing.assert_allclose(dagad.grad(total(chunk))(X), expected, rtol=1e-12)


# --- tables and arrays of others --------------------------------------------------------------------------------------


@functools.cache
def others() -> dict[str, Any]:
    import pandas as pd
    import xarray as xr

    pl = optional("polars")
    series = pd.Series(Y, index=np.arange(12) + 5)
    return {
        "series": series,
        "frame": series.to_frame("y"),
        "polars": pl and pl.Series(Y),
        "xarray": xr.DataArray(Y, dims="t"),
    }


WITH_OTHERS: dict[str, Callable[[Any], Any]] = {
    "series * x": lambda x: np.sum(others()["series"] * x),
    "x * series": lambda x: np.sum(x * others()["series"]),
    "method": lambda x: (others()["series"] * x).sum(),
    "ufunc": lambda x: np.sum(np.multiply(others()["series"], x)),
    "ufunc of a frame": lambda x: np.sum(np.multiply(x[:, None], others()["frame"])),
    "column": lambda x: np.sum(others()["frame"]["y"] * x),
    "numbers": lambda x: np.sum(others()["frame"]["y"].to_numpy() * x),
    "x * polars": lambda x: np.sum(x * others()["polars"]),
    "polars numbers": lambda x: np.sum(others()["polars"].to_numpy() * x),
    "xarray * x": lambda x: (others()["xarray"] * x).sum().data,
    "x * xarray": lambda x: np.sum((x * others()["xarray"]).data),
    "xarray mean": lambda x: 12.0 * (others()["xarray"] * x).mean("t").data,
}


def with_marks(cases: Iterable[str]) -> list[Any]:
    return [pytest.param(case, marks=pytest.mark.needs("polars")) if "polars" in case else case for case in cases]


@pytest.mark.parametrize("case", with_marks(WITH_OTHERS))
def test_tables_and_traced_values_in_one_expression_have_the_right_derivative(case: str) -> None:
    fun = WITH_OTHERS[case]
    np.testing.assert_allclose(dagad.grad(fun)(X), Y)
    np.testing.assert_allclose(dagad.grad(total(lambda rows, x: fun(x)))(X), Y)
    assert dagad.jvp(fun, X, V)[1] == pytest.approx(Y @ V)


REFUSED_BY_OTHERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "polars * x": (lambda x: others()["polars"] * x, r"library other than numpy.*`\.to_numpy\(\)`"),
    "frame.dot": (lambda x: others()["frame"].T.dot(x), r"`pandas\.DataFrame\.dot` makes.*`frame\.to_numpy\(\)`"),
    "assign": (lambda x: others()["frame"].assign(x=x), r"`pandas\.DataFrame\.assign` makes.*to_numpy"),
    "Series": (lambda x: type(others()["series"])(x), r"`pandas\.Series\.__init__` makes.*to_numpy"),
    "item": (lambda x: (others()["xarray"] * x).sum().item(), r"as it is"),
}


@pytest.mark.parametrize("case", with_marks(REFUSED_BY_OTHERS))
def test_tables_that_cannot_hold_traced_values_are_refused_with_the_remedy(case: str) -> None:
    fun, sentence = REFUSED_BY_OTHERS[case]
    with pytest.raises(dagad.NotDifferentiableError, match=sentence):
        dagad.grad(fun)(X)


# --- the page of the guide --------------------------------------------------------------------------------------------


def test_the_guide_of_numpy_functions_lists_what_is_tested() -> None:
    assert len({name(call) for call in CALLS}) >= 200
    assert GUIDE.read_text(encoding="utf-8") == page(), f"To write it anew: PYTHONPATH=tests python {__file__}"


def page() -> str:
    """Return the page of the guide."""
    names, seen = dict[str, list[str]](), {""}
    for family, text in FAMILIES.items():
        names[family] = sorted({name(call) for call in calls(text)} - seen)
        seen.update(names[family])
    public = {
        "special.": "scipy.special.",
        "linalg.": "scipy.linalg.",
        "stats.": "scipy.stats.",
        "integrate.": "scipy.integrate.",
        "distance.": "scipy.spatial.distance.",
        "fft.": "scipy.fft.",
        "signal.": "scipy.signal.",
        "ndimage.": "scipy.ndimage.",
    }

    def shown(each: str) -> str:
        prefix = next((short for short in public if each.startswith(short)), "")
        return f"`{public.get(prefix, '')}{each.removeprefix(prefix)}`"

    parts = [HEAD.format(count=len({each for family in names.values() for each in family}))]
    for family, each in names.items():
        parts.append(f"## {family}\n\n" + ", ".join(map(shown, each)) + ".\n")
    compiled = {name(call) for text in FAMILIES.values() for call in calls(text) if call not in NOT_IN_JAX}
    rows = [ENGINES]
    for family, each in names.items():
        absent = [one for one in each if one not in compiled]
        rows.append(f"| {family} | {len(each)} | {len(each) - len(absent)} | {', '.join(map(shown, absent))} |\n")
    parts.append("".join(rows))
    return "\n".join(parts)


HEAD = """# Functions of numpy and scipy that work in chunks

Write chunk functions with `import numpy as np`, `scipy.special`, `scipy.linalg`, `scipy.signal` and so on, as you would
without derivatives.
The {count} functions below are called by these names in dagad's tests: value, gradient, jvp and hvp are right. What is
not here may work too; if not, the error says what to write instead. Operators (`+`, `**`, `@`, slices, comparisons) and
methods of arrays (`x.sum()`, `x.T`) work as well.

Four things work otherwise than with ordinary arrays:

* Entries can't be assigned to (`out[i] = x`, `out=`, `total += x` with an array `total`). Collect the parts in a list
  and write `np.stack(parts)`; write `np.where(mask, new, old)` to change some entries.
* `np.array([a, b])` and `np.asarray(x)` make ordinary arrays. Write `np.stack([a, b])`, and `x` as it is.
* `math.exp(x)`, `float(x)` and `x.item()` make Python numbers. Write `np.exp(x)`, and `x` as it is.
* `isinstance(x, np.ndarray)` is False of a value being differentiated, and so is `np.isscalar(x)`. Ask for
  `np.ndim(x)` or `hasattr(x, "shape")`.

Some functions have a derivative with respect to their last argument alone: Bessel functions such as `kv(order, x)`,
`hyp1f1(a, b, x)` and `hyp2f1(a, b, c, x)`. The error says which argument has none. Incomplete gamma and beta functions,
and the distributions that are made of them, have one in their shapes, too (compiled: some, of first order). Of a matrix
that is not square, `np.linalg.svd` needs `full_matrices=False` or `compute_uv=False`. Functions that read one triangle
of a matrix (`cholesky`, `eigh`, the solvers of `scipy.linalg` that are told of a structure) have a derivative in that
triangle only.

What `scipy.integrate`, `scipy.interpolate` and `scipy.optimize` solve has derivatives in `dagad.solvers`:
[equations, integrals and splines](../how-to/equations.md), [roots and optima](../how-to/optima.md).

Complex numbers are followed wherever numpy and scipy take them, and with `engine="jax"` too, but for these functions of
`scipy.special`, which jax has of real numbers only: `dawsn`, `elliprc`, `elliprd`, `elliprf`, `erf`, `erfc`, `fresnel`,
`gamma`, `hyp1f1`, `log_ndtr`, `loggamma`, `ndtr`, `psi`, `rgamma`, `sici`, `spence`, `wrightomega` and `zeta`. The
default engine has no derivative of `psi` there.

Sparse matrices and linear operators of `scipy.sparse` are constant: `A @ x`, `x @ A`, `A.dot(x)`, `A.matvec(x)` and
`scipy.sparse.linalg.spsolve(A, b)` have a derivative in the other operand. Make a new one rather than change a large
one, or what an operator computes with.

`np.apply_along_axis` and `np.piecewise` see what is being differentiated among their arguments only, and not in the
closures of the functions that they call: write `np.stack([f(row) for row in rows])` and `np.where` there.

Where a function has a corner, the derivative is what autograd says: 0 for `np.abs` at 0, half for `np.maximum(x, 0)`,
equal parts for entries that are the largest together in `np.max`. Where a square root of 0 is taken it is nan, and
dagad warns: `np.hypot(0, 0)`, `np.linalg.norm` of zeros, `np.std` of equal entries. If your numbers get there, choose
the square first: `np.sqrt(np.where(square > 0, square, 1.0)) * (square > 0)` has the derivative 0. So has a distance of
`scipy.spatial.distance` between points that are one, as on the diagonal of `cdist(X, X)`.

This page is written by `tests/tracing/test_numpy_protocols.py`.
"""

ENGINES = """## By engine

The default, `engine="autograd"`, has all of them. With [`engine="jax"`](../how-to/compiled.md) they are compiled, with
the same values to 1e-12 and gradients to 1e-10, but for those that jax has not, which are refused by name. Some others
are refused in some forms, such as `x[mask]`, `np.compress` by a condition that depends on values, pivoting in
`scipy.linalg.qr`, and, in `scipy.linalg`, band matrices of more than 1,000 rows, roots of matrices and equations of
Sylvester's, Lyapunov's and Riccati's with more than 1,024 unknowns; and `np.ravel(x, "K")`.

With [`engine="torch"`](../how-to/engines.md#torch) a chunk function gets tensors and is written with torch's functions;
none of numpy's is meant for tensors. A function of torch's without a derivative is refused by name.

| functions | autograd | jax | not in jax |
|---|---|---|---|
"""

if __name__ == "__main__":
    GUIDE.write_text(page(), encoding="utf-8")
