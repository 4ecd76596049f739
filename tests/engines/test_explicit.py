"""Functions that bring their own derivative: have they every mode, and is no derivative guessed?"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest

import dagad
from dagad.extend import Keep, Preaccumulate, Recompute, explicit
from support.every_mode import MODES, check, derivatives
from support.every_operation import LISTS, PAIRS, ROWS, either, outputs, ragged, wave, weighed
from support.plain_autograd import bits

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

Explicit = Callable[..., tuple[Any, Callable[[Any], Any]]]


def by_numpy(rows: Any, t: Any) -> Any:
    decay, inside = np.exp(-t * t), rows * t

    def pullback(seed: Any) -> Any:
        slope = np.cos(inside) * decay
        return seed * t * slope, seed * (np.sum(rows * slope) - 2.0 * t * decay * np.sum(np.sin(inside)))

    return np.sum(np.sin(inside)) * decay, pullback


def by_compiled_code(rows: Any, t: Any) -> Any:
    """Compute the value as compiled code would; the pullback has the arguments and the value, and a constant."""
    value = np.float64(sum(math.sin(float(row) * float(t)) for row in rows) * math.exp(-(float(t) ** 2)))
    two = math.sqrt(4.0)

    def pullback(seed: Any) -> Any:
        slope = np.cos(rows * t) * np.exp(-t * t)
        return seed * t * slope, seed * (np.sum(rows * slope) - two * t * value)

    return value, pullback


def pair_of(item: Any, t: Any) -> Any:
    def pullback(seed: Any) -> Any:
        left, right = seed
        of_item = left * t * np.cos(item * t) + right * 2.0 * np.cos(t) * item
        return of_item, np.sum(left * item * np.cos(item * t)) - np.sum(right * np.sin(t) * item**2)

    return outputs(np, item, t), pullback


def ragged_of(item: Any, t: Any) -> Any:
    return ragged(np, item, t), lambda seed: (seed * t * np.cos(item * t), np.sum(seed * item * np.cos(item * t)))


OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "reduce_sum": (lambda f, t, **o: dagad.reduce_sum(f, ROWS, t, grainsize=2, **o), lambda t: wave(anp, ROWS, t)),
    "of rows": (lambda f, t, **o: dagad.reduce_sum(f, ROWS * t, t, grainsize=2, **o), lambda t: wave(anp, ROWS * t, t)),
    "not linear": (
        lambda f, t, **o: dagad.reduce_sum(f, ROWS, t, grainsize=3, **o) ** 2 * t,
        lambda t: wave(anp, ROWS, t) ** 2 * t,
    ),
    "map_sum": (
        lambda f, t, **o: dagad.map_sum(f, LISTS, t, grainsize=2, **o),
        lambda t: sum(wave(anp, item, t) for item in LISTS),
    ),
    "map_reduce": (
        lambda f, t, **o: dagad.map_reduce(f, either, ROWS, t, grainsize=4, **o),
        lambda t: either(wave(anp, ROWS[:4], t), wave(anp, ROWS[4:], t)),
    ),
}
MAPS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "map": (
        lambda t, **o: weighed(anp, dagad.map(explicit(pair_of), PAIRS * t, t, grainsize=2, **o)),
        lambda t: weighed(anp, outputs(anp, PAIRS * t, t)),
    ),
    "map_rect": (
        lambda t, **o: weighed(
            anp, dagad.map_rect(explicit(ragged_of), [item * t for item in LISTS], t, grainsize=2, **o)
        ),
        lambda t: weighed(anp, [ragged(anp, item * t, t) for item in LISTS]),
    ),
}


@pytest.mark.parametrize("fun", [by_numpy, by_compiled_code])
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("mode", MODES)
def test_an_explicit_function_has_every_mode(mode: str, name: str, fun: Explicit) -> None:
    run, whole = OPERATIONS[name]
    check(mode, partial(run, explicit(fun), scheduler="sync"), derivatives(whole))


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("mode", MODES)
def test_an_explicit_function_of_items_has_every_mode(mode: str, name: str) -> None:
    run, whole = MAPS[name]
    check(mode, partial(run, scheduler="threads"), derivatives(whole))


@pytest.mark.parametrize("fun", [by_numpy, by_compiled_code])
@pytest.mark.parametrize("mode", ["jvp", "hvp", "hessian", "jvp of jvp"])
def test_an_explicit_function_has_the_same_bits_wherever_it_runs(mode: str, fun: Explicit, scheduler: Any) -> None:
    def found(scheduler: Any) -> Any:
        return MODES[mode][0](partial(OPERATIONS["of rows"][0], explicit(fun), scheduler=scheduler))

    assert bits(found(scheduler)) == bits(found("sync"))


@pytest.mark.parametrize("policy", [Keep(), Recompute(), Preaccumulate()])
def test_an_explicit_function_has_second_derivatives_by_every_policy(policy: Any) -> None:
    run, whole = OPERATIONS["not linear"]
    check("hvp", partial(run, explicit(by_numpy), policy=policy, scheduler="threads"), derivatives(whole))


def test_an_explicit_function_over_shards_has_every_mode() -> None:
    shards = dagad.shard(ROWS, grainsize=2, scheduler="threads")
    for mode in MODES:
        check(mode, lambda t: dagad.reduce_sum(explicit(by_numpy), shards, t), derivatives(OPERATIONS["reduce_sum"][1]))


@pytest.mark.parametrize("fun", [by_numpy, by_compiled_code])
def test_an_explicit_function_has_third_derivatives(fun: Explicit) -> None:
    run, whole = OPERATIONS["of rows"]
    loss: Any = partial(run, explicit(fun), scheduler="sync")
    right = dagad.grad(dagad.grad(dagad.grad(whole)))(0.7)
    assert dagad.grad(dagad.grad(dagad.grad(loss)))(0.7) == pytest.approx(right, rel=1e-10)
    assert dagad.jacfwd(dagad.hessian(loss))(0.7) == pytest.approx(right, rel=1e-10)


def test_the_rule_of_an_explicit_function_counts_in_every_mode() -> None:
    """Ten times the derivative: whoever follows the function's body instead is found out."""
    tenfold = explicit(lambda rows, t: (np.sum(rows * t**2), lambda seed: (None, 20.0 * seed * t * np.sum(rows))))

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(tenfold, ROWS, t, grainsize=3, scheduler="sync")

    total = 20.0 * np.sum(ROWS)
    for found in (dagad.grad(loss)(2.0), dagad.jvp(loss, (2.0,), (1.0,))[1], dagad.jacfwd(loss)(2.0)):
        assert found == pytest.approx(2.0 * total)
    for found in (dagad.hessian(loss)(2.0), dagad.jacfwd(dagad.jacfwd(loss))(2.0), dagad.hvp(loss, 2.0, 1.0)):
        assert found == pytest.approx(total)


def test_float32_stays_float32_through_an_explicit_function() -> None:
    square = explicit(lambda rows, t: (np.sum(rows * t**2), lambda seed: (None, 2.0 * seed * t * np.sum(rows))))
    rows, t = ROWS.astype(np.float32), np.float32(2.0)
    value, tangent = dagad.jvp(lambda t: dagad.reduce_sum(square, rows, t, grainsize=3), (t,), (np.float32(1.0),))
    assert (value.dtype, tangent.dtype) == (np.float32, np.float32)
    assert tangent == pytest.approx(4.0 * np.sum(rows), rel=1e-5)


def test_compiled_code_in_an_explicit_function_is_called_by_the_value_of_another_one() -> None:
    sine = explicit(lambda x: (np.float64(math.sin(float(x))), lambda seed: (seed * np.cos(x),)))

    def scaled(rows: Any, t: Any) -> Any:
        high = sine.value(t)
        return np.sum(rows) * high**2, lambda seed: (None, 2.0 * seed * np.sum(rows) * high * np.cos(t))

    def square(t: Any) -> Any:
        return dagad.reduce_sum(explicit(scaled), ROWS, t, grainsize=4, scheduler="sync")

    def in_an_ordinary_function(t: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: np.sum(rows * sine.value(t)), ROWS, t, scheduler="sync")

    for mode in MODES:
        check(mode, square, derivatives(lambda t: np.sum(ROWS) * anp.sin(t) ** 2))
        check(mode, in_an_ordinary_function, derivatives(lambda t: np.sum(ROWS) * anp.sin(t)))


# What is refused


def second(fun: Explicit) -> Any:
    return dagad.hessian(lambda t: dagad.reduce_sum(explicit(fun), ROWS, t, grainsize=4, scheduler="sync"))(0.7)


def test_a_pullback_that_reads_what_compiled_code_computed_is_refused_by_name() -> None:
    def loses(rows: Any, t: Any) -> Any:
        slope = np.float64(sum(2.0 * float(t) * float(row) for row in rows))
        return np.sum(rows) * float(t) ** 2, lambda seed: (None, seed * slope)

    with pytest.raises(dagad.NotDifferentiableError, match=r"reads .*`slope`.*which was computed there.*Compute in"):
        second(loses)
    assert dagad.jacfwd(lambda t: dagad.reduce_sum(explicit(loses), ROWS, t))(0.7) == pytest.approx(1.4 * np.sum(ROWS))


def test_a_pullback_that_keeps_something_in_an_object_is_refused() -> None:
    class Model:
        slope = np.zeros(1)

        def __call__(self, rows: Any, t: Any) -> Any:
            self.slope = np.array([2.0 * float(t) * float(np.sum(rows))])
            return np.sum(rows) * float(t) ** 2, self.pullback

        def pullback(self, seed: Any) -> Any:
            return None, seed * self.slope[0]

    with pytest.raises(dagad.NotDifferentiableError, match=r"`slope` of .*which was computed there"):
        second(Model())


def test_a_library_that_keeps_something_between_two_calls_is_found_out_by_a_difference() -> None:
    def remembers(rows: Any, t: Any) -> Any:
        KEPT["slope"] = 2.0 * float(t) * float(np.sum(rows))
        return np.float64(np.sum(rows) * float(t) ** 2), _by_what_is_kept

    with pytest.raises(dagad.NotDifferentiableError, match="in another way than by what it holds"):
        second(remembers)


class Last:
    rows = 0
    t: Any = None
    found: Any = None


@pytest.mark.parametrize("is_equal", [np.array_equal, np.allclose, lambda a, b: np.all(a == b)])
def test_a_value_and_slope_that_are_remembered_have_no_second_derivative(is_equal: Any) -> None:
    def remembers(rows: Any, t: Any) -> Any:
        if Last.t is None or Last.rows != len(rows) or not is_equal(t, Last.t):
            Last.t, Last.rows, Last.found = t, len(rows), (np.sum(rows) * t**3, 3.0 * t**2 * np.sum(rows))
        value, slope = Last.found
        return value, lambda seed: (None, seed * slope)

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(explicit(remembers), ROWS[:3], t, grainsize=4, scheduler="sync")

    Last.t = None
    for derivative in (dagad.hessian(loss), dagad.jacfwd(dagad.grad(loss))):
        with pytest.raises(dagad.NotDifferentiableError, match="it remembers what it has computed"):
            derivative(0.7)
    Last.t = None
    assert dagad.grad(loss)(0.7) == pytest.approx(3.0 * 0.49 * np.sum(ROWS[:3]))


def test_an_explicit_function_that_asks_whether_an_argument_is_zero_has_its_second_derivative() -> None:
    def asks(rows: Any, t: Any) -> Any:
        slope = 2.0 * t if t == 0.0 else t + t
        return np.sum(rows) * t**2, lambda seed: (None, seed * slope * np.sum(rows))

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(explicit(asks), ROWS, t, grainsize=4, scheduler="sync")

    assert dagad.hessian(loss)(0.0) == pytest.approx(2.0 * np.sum(ROWS))


KEPT: dict[str, float] = {}


def _by_what_is_kept(seed: Any) -> Any:
    return None, seed * KEPT["slope"]


def test_a_pullback_that_leaves_numpy_is_refused_with_the_remedy() -> None:
    def leaves(rows: Any, t: Any) -> Any:
        return np.sum(rows) * t**2, lambda seed: (None, 2.0 * float(seed) * t * np.sum(rows))

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(explicit(leaves), ROWS, t, grainsize=4, scheduler="sync")

    assert dagad.grad(loss)(0.7) == pytest.approx(1.4 * np.sum(ROWS))
    for mode in (dagad.jacfwd(loss), dagad.jacfwd(dagad.jacfwd(loss))):
        with pytest.raises(dagad.NotDifferentiableError, match=r"leaves numpy.*Write the pullback with numpy; or use"):
            mode(0.7)


@pytest.mark.parametrize("rule", [lambda seed: seed**2, lambda seed: seed + 1.0, lambda seed: np.minimum(seed, 0.5)])
def test_a_pullback_that_is_not_linear_has_no_forward_mode(rule: Any) -> None:
    bent = explicit(lambda rows, t: (np.sum(rows) * t, lambda seed: (None, rule(seed) * np.sum(rows))))
    with pytest.raises(dagad.NotDifferentiableError, match=r"not linear.*or use reverse mode"):
        dagad.jvp(lambda t: dagad.reduce_sum(bent, ROWS, t, grainsize=4, scheduler="sync"), 2.0, 1.0)


def test_none_for_what_is_differentiated_is_refused_in_forward_mode_too() -> None:
    silent = explicit(lambda rows, t: (np.sum(rows) * t, lambda seed: (None, None)))
    with pytest.raises(dagad.NotDifferentiableError, match="returned None for an argument"):
        dagad.jvp(lambda t: dagad.reduce_sum(silent, ROWS, t, grainsize=4, scheduler="sync"), 2.0, 1.0)


@pytest.mark.parametrize("mode", [dagad.jacfwd, dagad.hessian])
def test_an_error_of_the_users_own_in_a_pullback_arrives_as_it_is(mode: Any) -> None:
    def refusing(rows: Any, t: Any) -> Any:
        def pullback(seed: Any) -> Any:
            raise ValueError("t must be negative")

        return t * np.sum(rows), pullback

    with pytest.raises(ValueError, match=r"^t must be negative") as caught:
        mode(lambda t: dagad.reduce_sum(explicit(refusing), np.arange(4.0), t, scheduler="sync"))(2.0)
    assert not isinstance(caught.value, dagad.DagadError)


@pytest.mark.filterwarnings("ignore::dagad.DagadWarning")
@pytest.mark.parametrize("rule", [lambda seed: np.nan, lambda seed: np.inf, lambda seed: np.nan * seed])
def test_a_cotangent_that_is_not_finite_shows_in_forward_mode_too(rule: Any) -> None:
    broken = explicit(lambda rows, t: (np.sum(rows) * t, lambda seed: (None, rule(seed))))

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(broken, ROWS, t, grainsize=4, scheduler="sync")

    assert not np.isfinite(dagad.grad(loss)(0.7))
    assert np.isnan(dagad.jacfwd(loss)(0.7))
    assert np.isnan(dagad.jvp(lambda t: broken.value(ROWS, t), 0.7, 1.0)[1])


WRONG: dict[str, tuple[Any, str]] = {
    "text": ("x", r"is a str, where a number or an array is needed.*None for a constant"),
    "a dict": ({"a": 1.0}, r"is a dict, where a number"),
    "lists of several lengths": ([1.0, [2.0, 3.0]], r"is a list, where a number"),
    "an array of texts": (np.array(["x", "y"]), r"is an array of .*, where a number"),
    "a complex number": (1.0 + 2.0j, r"imaginary part, of up to 2,.*return `np.real\(cotangent\)`"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("take", [dagad.grad, dagad.jacfwd])
def test_cotangents_of_another_kind_are_refused_in_words(take: Any, name: str) -> None:
    cotangent, text = WRONG[name]
    wrong = explicit(lambda rows, t: (np.sum(rows) * t, lambda seed: (None, cotangent)))
    for loss in (
        lambda t: dagad.reduce_sum(wrong, ROWS, t, grainsize=4, scheduler="sync"),
        lambda t: wrong.value(ROWS, t),
    ):
        with pytest.raises(dagad.StructureError, match=f"^A cotangent that an explicit pullback returned .*{text}"):
            take(loss)(0.7)


CAUSES = 10  # more than any error has here


def causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and len(found) < CAUSES:
        found.append(error)
        error = error.__cause__
    return found


def test_a_cotangent_of_another_shape_is_no_cause_of_itself_in_any_mode() -> None:
    """Dask follows causes to their end before an error leaves a worker, which would never come."""
    wrong = explicit(lambda rows, t: (np.sum(rows) * np.sum(t), lambda seed: (None, seed * np.ones(2))))

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(wrong, ROWS, t, grainsize=4, scheduler="sync")

    at = np.ones(3)
    modes: list[Any] = [dagad.grad, dagad.jacrev, dagad.jacfwd, dagad.hessian]
    modes += [lambda loss: lambda t: dagad.jvp(loss, (t,), (t,)), lambda loss: lambda t: dagad.hvp(loss, (t,), (t,))]
    for mode in modes:
        with pytest.raises(dagad.StructureError, match=r"has the shape \(2,\), where \(3,\) is needed") as caught:
            mode(loss)(at)
        assert len(causes(caught.value)) < CAUSES


def test_a_mistake_in_what_a_pullback_returns_is_named_in_second_derivatives_too() -> None:
    rules: list[tuple[Any, str]] = [
        (lambda seed: seed, "one cotangent for each of 2 arguments.*; it returned a float64"),
        (lambda seed: (None, None), "^An explicit pullback returned None for an argument that is being differentiated"),
        (lambda seed: (None, seed, seed), "one cotangent for each of 2 arguments.*; it returned 3"),
    ]
    for rule, text in rules:
        wrong = explicit(lambda rows, t, rule=rule: (np.sum(rows) * t, rule))
        for mode in (dagad.grad, dagad.jacfwd, dagad.hessian):
            with pytest.raises(dagad.DagadError, match=text):
                mode(lambda t, fun=wrong: dagad.reduce_sum(fun, ROWS, t, grainsize=4, scheduler="sync"))(0.7)


def test_an_explicit_function_cannot_write_into_its_arguments() -> None:
    """They are the caller's, and those of all other chunks."""

    def spoiling(rows: Any, t: Any) -> Any:
        t[0] += 1.0
        return np.sum(rows) * np.sum(t), lambda seed: (None, seed * np.sum(rows) * np.ones(2))

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(explicit(spoiling), ROWS, t, grainsize=4, scheduler="sync")

    for mode in (lambda t: loss(t), dagad.grad(loss), dagad.jacfwd(loss), lambda t: dagad.vjp(loss, t)):
        at = np.ones(2)
        with pytest.raises(ValueError, match="read-only"):
            mode(at)
        assert at.tolist() == [1.0, 1.0]


def turned(rows: Any, t: Any) -> Any:
    return np.sum(rows) * np.exp(1j * t), lambda seed: (None, np.real(seed * 1j * np.exp(1j * t)) * np.sum(rows))


def length(rows: Any, z: Any) -> Any:
    return np.sum(rows) * np.abs(z) ** 2, lambda seed: (None, 2.0 * seed * np.conj(z) * np.sum(rows))


def bent(rows: Any, z: Any) -> Any:
    """Return what is no function of a complex variable, with the transpose in real and imaginary parts."""
    value = np.sum(rows) * np.conj(z) * z * z
    return value, lambda w: (None, np.sum(rows) * (2.0 * w * z * np.conj(z) + np.conj(w * z * z)))


COMPLEX: dict[str, tuple[Explicit, Callable[[Any], Any]]] = {
    "to complex": (turned, lambda t: t),
    "to real": (length, lambda t: t**2 * np.exp(1j * t)),
    "complex": (bent, lambda t: t**2 * np.exp(1j * t)),
}


@pytest.mark.parametrize("case", COMPLEX)
def test_complex_functions_are_moved_by_the_real_part_of_their_pairing(case: str) -> None:
    fun, at = COMPLEX[case]

    def derived(of: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
        def total(t: Any) -> Any:
            value = dagad.reduce_sum(of, np.ones(4), at(t), grainsize=2)
            return np.real(value) + np.imag(value) ** 2

        return total

    ours, plain = derived(explicit(fun)), derived(lambda rows, z: fun(rows, z)[0])
    assert dagad.jvp(ours, (0.3,), (1.3,)) == pytest.approx(dagad.jvp(plain, (0.3,), (1.3,)))
    assert dagad.grad(ours)(0.3) == pytest.approx(dagad.grad(plain)(0.3))
    for nested in (dagad.hessian, lambda f: dagad.jacfwd(dagad.jacfwd(f)), lambda f: dagad.jacrev(dagad.jacfwd(f))):
        assert nested(ours)(0.3) == pytest.approx(nested(plain)(0.3))


@pytest.mark.parametrize("power", ["real", "imag"])
def test_complex_pullbacks_that_are_not_linear_are_refused(power: str) -> None:
    def squared(rows: Any, t: Any) -> Any:
        own, other = (np.real, np.imag) if power == "real" else (np.imag, np.real)
        return np.sum(rows) * np.exp(1j * t), lambda w: (None, (own(w) ** 2 + other(w)) * np.sum(rows))

    with pytest.raises(dagad.NotDifferentiableError, match="not linear"):
        dagad.jvp(lambda t: np.real(dagad.reduce_sum(explicit(squared), np.ones(4), t)), (0.3,), (1.0,))
