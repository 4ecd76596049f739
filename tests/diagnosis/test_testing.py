"""Testing: do the checks tell right derivatives from wrong ones, and where they are wrong?"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import autograd.numpy as np
import numpy as onp
import pytest
from autograd.extend import defvjp, primitive
from dask.delayed import delayed
from scipy import special

import dagad
from dagad.extend import explicit
from dagad.testing import check_grads, dot_product_gap, taylor_rate

X = onp.random.default_rng(5).standard_normal((17, 3))
THETA = onp.array([0.4, -0.2, 0.9])


class Params(NamedTuple):
    slope: Any
    name: str
    rest: Any


def test_taylor_rate_of_a_right_gradient_is_two(scheduler: Any) -> None:
    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: np.sum(np.exp(rows @ t)), X, theta, grainsize=5, scheduler=scheduler)

    assert taylor_rate(loss, THETA) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("wrong", [0.9, 1.1, -1.0, 0.0])
def test_taylor_rate_of_a_wrong_gradient_is_one(wrong: float) -> None:
    @explicit
    def chunk(rows: Any, theta: Any) -> Any:
        grown = onp.exp(rows @ theta)
        return grown.sum(), lambda seed: (None, wrong * seed * (rows.T @ grown))

    assert taylor_rate(partial(dagad.reduce_sum, chunk, X), THETA) < 1.2


def test_taylor_rate_finds_one_wrong_entry_of_a_gradient() -> None:
    @explicit
    def chunk(rows: Any, theta: Any) -> Any:
        grown = onp.exp(rows @ theta)
        return grown.sum(), lambda seed: (None, seed * (rows.T @ grown) + onp.array([0.0, 0.0, 1.0]))

    assert taylor_rate(partial(dagad.reduce_sum, chunk, X), THETA) < 1.2


def test_taylor_rate_moves_all_arguments_and_leaves() -> None:
    def loss(params: Any, factor: Any, count: int) -> Any:
        return factor**2 * np.sum(np.exp(params.slope)) * np.sin(params.rest["a"][0]) * count

    params = Params(THETA, "name", {"a": [0.5, 3], "b": None})
    assert taylor_rate(loss, params, 1.5, 2) == pytest.approx(2.0, abs=0.1)

    @explicit
    def ignores_its_rows(rows: Any, theta: Any) -> Any:
        return onp.sum(onp.exp(rows) * theta), lambda seed: (0 * rows, seed * onp.exp(rows).sum())

    assert taylor_rate(partial(dagad.reduce_sum, ignores_its_rows), X, 0.5) < 1.2


def test_taylor_rate_takes_complex_leaves() -> None:
    def loss(z: Any) -> Any:
        return np.sum(np.abs(np.exp(z)) ** 2)

    def other(z: Any) -> Any:
        return np.sum(np.real(z) ** 3 * np.imag(z) ** 2)

    for fun in (loss, other):
        assert taylor_rate(fun, onp.array([0.3 + 0.7j, -0.2 + 0.1j])) == pytest.approx(2.0, abs=0.1)


def test_taylor_rate_of_a_linear_function_is_none() -> None:
    rate = taylor_rate(lambda x: 2.0 * x, 0.5)
    assert math.isnan(rate) or rate < 2.1  # nothing but rounding remains


def test_taylor_rate_depends_on_its_seed_alone() -> None:
    def loss(x: Any) -> Any:
        return np.sum(np.exp(x) * x[0])

    assert taylor_rate(loss, THETA, seed=3) == taylor_rate(loss, THETA, seed=3)
    assert taylor_rate(loss, THETA, seed=3) != taylor_rate(loss, THETA, seed=4)


def test_taylor_rate_refuses_an_argument_without_floats() -> None:
    with pytest.raises(dagad.DagadError):
        taylor_rate(lambda n: 1.0 * n, 3)


# check_grads and dot_product_gap


def wrong_in_chunk(start: float) -> Any:
    @explicit
    def chunk(rows: Any, theta: Any) -> Any:
        factor = 2.1 if rows[0] == start else 2.0
        value = onp.sum(rows * theta["a"] ** 2)
        return value, lambda seed: (None, {"a": seed * factor * theta["a"] * onp.sum(rows)})

    return chunk


def test_check_grads_names_the_argument_and_the_chunk_that_are_wrong() -> None:
    def loss(scale: Any, theta: Any) -> Any:
        return scale * dagad.reduce_sum(wrong_in_chunk(13.0), onp.arange(1.0, 21.0), theta, grainsize=6)

    check_grads(partial(dagad.reduce_sum, wrong_in_chunk(-1.0), onp.arange(1.0, 21.0)), {"a": 0.7}, modes=("rev",))
    with pytest.raises(
        dagad.GradientError, match=r"chunk 2 \(rows 12:18\) that differs, in leaf 0 of what is shared"
    ) as e:
        check_grads(loss, 1.5, {"a": 0.7}, modes=("rev",))
    assert "reverse-mode derivative of `loss` in argument 1, leaf ['a'] is wrong" in str(e.value)


def test_check_grads_says_when_no_chunk_is_wrong_by_itself() -> None:
    @primitive  # type: ignore[untyped-decorator]  # autograd has no types
    def twice(x: Any) -> Any:
        return 2 * x

    defvjp(twice, lambda ans, x: lambda g: 3 * g)

    def loss(theta: Any) -> Any:
        return twice(dagad.reduce_sum(lambda rows, t: np.sum(np.sin(rows * t)), X, theta, grainsize=6))

    with pytest.raises(dagad.GradientError, match="No chunk of its reductions differs by itself"):
        check_grads(loss, 0.7, modes=("rev",))
    with pytest.raises(dagad.GradientError, match="forward-mode derivative of `twice` in argument 0 is wrong"):
        check_grads(twice, 0.7, modes=("fwd",))  # pushed by the transpose of the wrong pullback


def losses() -> dict[str, tuple[Any, ...]]:
    rows, lists = X[:, 0], [X[:2, 0], X[:0, 0], X[:3, 1]]

    def chunk(some: Any, t: Any) -> Any:
        return np.sum(np.tanh(some * t["a"])) * t["b"]

    def ragged(job: Any, t: Any) -> Any:
        return np.sin(job * t)

    def moments(some: Any) -> Any:
        return {"n": float(len(some)), "mean": np.mean(some)}

    def together(a: Any, b: Any) -> Any:
        n = a["n"] + b["n"]
        return {"n": n, "mean": (a["n"] * a["mean"] + b["n"] * b["mean"]) / n}

    theta = {"a": 0.5, "b": 1.2}
    return {
        "reduce_sum": (lambda x, t: dagad.reduce_sum(chunk, x, t, grainsize=6), rows, theta),
        "map_rect": (lambda x, t: dagad.map_rect(ragged, x, t, grainsize=2), lists, 0.3),
        "map": (lambda x, t: dagad.map(lambda x, t: {"s": x * t, "n": 3}, x, t, grainsize=4), rows, 0.3),
        "map_reduce": (lambda x: dagad.map_reduce(moments, together, x, grainsize=5), rows),
        "hvp": (lambda t, v: dagad.hvp(lambda t: dagad.reduce_sum(chunk, rows, t, grainsize=9), t, v), theta, theta),
        "hessian": (dagad.hessian(lambda t: dagad.reduce_sum(chunk, rows, t, grainsize=9)), theta),
        "complex": (lambda z: np.abs(z) ** 2 * np.exp(1j * z), 0.3 + 0.2j),
        "single": (lambda x: np.sum(x**2), onp.arange(1, 4, dtype=onp.float32)),
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", losses())
def test_right_derivatives_pass_check_grads_in_both_modes(name: str) -> None:
    fun, *args = losses()[name]
    check_grads(fun, *args, order=1 if name in ("hvp", "hessian", "single") else 2)
    assert dot_product_gap(fun, *args) < (1e-6 if name == "single" else 1e-12)


def test_check_grads_and_taylor_rate_take_dask_graphs() -> None:
    a, b = delayed(2.0), delayed(onp.array([1.0, 2.0]))
    waves = delayed(lambda a, b: np.sin(a * b))(a, b)
    y = delayed(lambda u: {"s": np.sum(u**2), "v": u, "n": 3})(waves)
    check_grads(y, a, b, order=2)
    assert dot_product_gap(y, a, b) < 1e-14
    assert taylor_rate(delayed(lambda u: np.sum(u**3))(waves), a, b) == pytest.approx(2.0, abs=0.1)

    @primitive  # type: ignore[untyped-decorator]  # autograd has no types
    def wrong(x: Any) -> Any:
        return x * x

    defvjp(wrong, lambda ans, x: lambda g: g * x)
    with pytest.raises(dagad.GradientError, match=f"in `{a.key}` is wrong"):
        check_grads(delayed(wrong)(a), a)


@pytest.mark.parametrize(("options", "match"), [({"order": 0}, "positive int"), ({"modes": ("up",)}, '"fwd", "rev"')])
def test_check_grads_refuses_an_order_or_a_mode_that_it_lacks(options: Any, match: str) -> None:
    with pytest.raises(dagad.StructureError, match=match):
        check_grads(np.sin, 1.0, **options)


def test_check_grads_of_integers_and_taylor_rate_of_an_array_are_refused() -> None:
    with pytest.raises(dagad.NotDifferentiableError, match="no derivative to check"):
        check_grads(lambda x: x, 3)
    with pytest.raises(dagad.NotDifferentiableError, match="one real number"):
        taylor_rate(lambda x: x, X)


# Right derivatives where one step is too long or too short, and differences that tell nothing

COUNTS = onp.arange(1.0, 200.0)
HARD: dict[str, tuple[Any, Any]] = {
    "a narrow normal density": (lambda t: np.sum(-0.5 * ((X - t[0]) / t[1]) ** 2 - np.log(t[1])), [0.4, 1e-3]),
    "a logarithm near zero": (lambda t: np.sum(X * np.log(t[0])), [1e-4]),
    "a root near zero": (lambda t: np.sqrt(t[0]), [1e-6]),
    "gammaln near zero": (lambda t: np.sum(special.gammaln(t[0] * COUNTS + t[0])), [0.01]),
    "fast waves": (lambda t: np.sum(np.sin(50.0 * t[0] * COUNTS)), [0.7]),
    "near a kink": (lambda t: np.abs(t[0] - 1.0), [1.0 + 1e-5]),
    "a large constant": (lambda t: np.sum(np.exp(t)) + 1e10, [0.3, 0.4]),
    "parameters of all sizes": (lambda t: np.sum((t - 1.0) ** 2), [1e6, 1e-6]),
    "a long way from zero": (lambda t: np.sum(np.sin(t)), [1e8]),
    "no value beyond": (lambda t: np.sum(np.linalg.cholesky(np.diag(t))), [1e-5, 2.0]),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", HARD)
def test_check_grads_tells_right_from_wrong_where_differences_are_hard(name: str) -> None:
    fun, at = HARD[name]
    point = onp.array(at)
    check_grads(fun, point)
    for factor in (1.001, 0.999):

        @explicit
        def chunk(rows: Any, theta: Any, factor: float = factor) -> Any:
            value, pullback = dagad.vjp(fun, theta)
            return value, lambda seed: (None, factor * pullback(seed)[0])

        if name != "a large constant":  # there, differences have five digits
            with pytest.raises(dagad.GradientError, match=r"reverse-mode .* is wrong"):
                check_grads(partial(dagad.reduce_sum, chunk, onp.ones(1)), point, modes=("rev",))


@pytest.mark.parametrize(
    "fun",
    [
        lambda t: np.sum(np.sqrt(t)),
        lambda t: np.sum(np.abs(t) ** 0.3),
        lambda t: np.sum(np.where(t > 0.0, t, 0.0)),
    ],
)
def test_check_grads_warns_of_a_derivative_that_differences_cannot_decide(fun: Any) -> None:
    with (
        onp.errstate(all="ignore"),
        pytest.warns(dagad.DagadWarning, match="Differences can't decide .* in argument 0 .* not a pass") as caught,
    ):
        check_grads(fun, onp.zeros(2), modes=("rev",))
    assert [one.filename for one in caught] == [__file__]


@pytest.mark.parametrize("slope", [0.0, 3.0])
def test_check_grads_does_not_take_a_wrong_derivative_of_a_line_for_a_kink(slope: float) -> None:
    @explicit
    def chunk(rows: Any, theta: Any) -> Any:
        return slope * theta, lambda seed: (None, 1.001 * seed * (slope or 1.0))

    with pytest.raises(dagad.GradientError, match=r"reverse-mode .* is wrong"):
        check_grads(partial(dagad.reduce_sum, chunk, onp.ones(1)), 0.7, modes=("rev",))


def test_check_grads_refuses_a_derivative_that_is_nan_where_differences_are_finite() -> None:
    with onp.errstate(all="ignore"), pytest.raises(dagad.GradientError, match=r"is wrong: .* it is nan"):
        check_grads(lambda t: np.where(t > 0.5, t, np.sqrt(t - 1.0)), 1.0, modes=("rev",))


def test_checks_of_a_function_marked_by_explicit_look_at_its_rule() -> None:
    def marked(factor: float) -> Any:
        return explicit(lambda t: (onp.sum(t**2), lambda seed: (seed * factor * t,)))

    check_grads(marked(2.0), THETA, order=2)
    assert taylor_rate(marked(2.0), THETA) == pytest.approx(2.0, abs=1e-3)
    assert taylor_rate(marked(5.0), THETA) == pytest.approx(1.0, abs=0.1)
    for mode in ("fwd", "rev"):
        with pytest.raises(dagad.GradientError, match="is wrong"):
            check_grads(marked(5.0), THETA, modes=(mode,))


def test_a_marked_function_that_is_multiplied_says_what_to_write() -> None:
    marked: Any = explicit(lambda t: (onp.sum(t**2), lambda seed: (seed * 2.0 * t,)))
    with pytest.raises(TypeError) as caught:
        dagad.grad(lambda t: dagad.reduce_sum(lambda rows, t: marked(t) * 1.0, X, t, scheduler="sync"))(THETA)
    assert "`marked.value(...)`" in "".join(caught.value.__notes__)


def test_checks_of_shards_alone_say_what_to_check() -> None:
    shards = dagad.shard(X, grainsize=4, scheduler="sync")
    for check in (check_grads, taylor_rate, dot_product_gap):
        with pytest.raises(dagad.NotDifferentiableError, match=r"Check with the data .*`shards.gather\(\)`"):
            check(lambda rows: dagad.reduce_sum(np.sum, rows), shards)
