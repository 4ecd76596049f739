"""Transforms: do `value_and_grad`, `grad`, `vjp` and `evaluate` agree with autograd, on any program and any pytree?"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, NamedTuple

import autograd
import autograd.numpy as np
import numpy as onp
import optree
import pytest
from autograd.builtins import dict as boxed_dict

import dagad
from dagad.testing import taylor_rate

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

RNG = onp.random.default_rng(1)
X, THETA = RNG.standard_normal((13, 3)), onp.array([0.4, -0.2, 0.9])


class Point(NamedTuple):
    x: Any
    y: Any


def misfit(rows: Any, theta: Any) -> Any:
    return np.sum(np.tanh(rows @ theta) ** 2)


def loss(theta: Any, scheduler: Any = "sync") -> Any:
    return np.exp(0.1 * dagad.reduce_sum(misfit, X, theta, grainsize=4, scheduler=scheduler)) + np.sum(theta**2)


def plain(theta: Any) -> Any:
    return np.exp(0.1 * misfit(X, theta)) + np.sum(theta**2)


def close(actual: Any, expected: Any, rtol: float = 1e-12) -> bool:
    gap = onp.max(onp.abs(onp.asarray(actual) - onp.asarray(expected)), initial=0.0)
    return bool(gap <= rtol * onp.max(onp.abs(expected), initial=1e-300)) and onp.shape(actual) == onp.shape(expected)


def test_value_and_grad_agrees_with_autograd(scheduler: Any) -> None:
    value, gradient = dagad.value_and_grad(loss)(THETA, scheduler=scheduler)
    expected, expected_gradient = autograd.value_and_grad(plain)(THETA)
    assert close(value, expected)
    assert close(gradient, expected_gradient)
    assert close(dagad.grad(loss)(THETA, scheduler), expected_gradient)


def test_taylor_rate_of_a_loss_with_a_reduction_is_two(scheduler: Any) -> None:
    assert taylor_rate(partial(loss, scheduler=scheduler), THETA) == pytest.approx(2.0, abs=0.1)


def test_vjp_agrees_with_autograd_and_can_be_pulled_again(scheduler: Any) -> None:
    def program(x: Any, theta: Any) -> Any:
        return np.outer(theta, theta) * dagad.reduce_sum(misfit, x, theta, grainsize=4, scheduler=scheduler)

    value, pullback = dagad.vjp(program, X, THETA)
    assert close(value, onp.outer(THETA, THETA) * misfit(X, THETA))
    for seed in RNG.standard_normal((3, 3, 3)):
        expected = [
            autograd.make_vjp(lambda x, t: np.outer(t, t) * misfit(x, t), place)(X, THETA)[0](seed) for place in (0, 1)
        ]
        assert all(close(*pair) for pair in zip(pullback(seed), expected, strict=True))


def test_a_pullback_of_arrays_can_be_pulled_again(scheduler: Any) -> None:
    def columns(rows: Any, theta: Any) -> Any:
        return np.sum(np.sin(rows * theta), axis=0)

    value, pullback = dagad.vjp(lambda t: dagad.reduce_sum(columns, X, t, grainsize=4, scheduler=scheduler), THETA)
    assert close(value, columns(X, THETA))
    reference = autograd.make_vjp(lambda t: columns(X, t))(THETA)[0]
    for seed in (onp.ones(3), onp.array([1.0, 0.0, -2.0]), onp.ones(3)):
        assert close(pullback(seed)[0], reference(seed))


def test_evaluate_agrees_with_autograd(scheduler: Any) -> None:
    expected, expected_gradient = autograd.value_and_grad(plain)(THETA)
    for lazy in (False, True):
        evaluation = dagad.evaluate(partial(loss, scheduler=scheduler), THETA, lazy=lazy)
        assert close(evaluation.value(), expected)
        assert close(evaluation.gradient(), expected_gradient)

    async def wait() -> Any:
        return await dagad.evaluate(partial(loss, scheduler=scheduler), THETA)

    value, gradient = asyncio.run(wait())
    assert close(value, expected)
    assert close(gradient, expected_gradient)


def test_a_gradient_has_the_pytree_of_its_argument() -> None:
    def program(tree: Any) -> Any:
        return tree["point"].x * tree["point"].y[0] ** 2 + np.sum(tree["list"][1]) * tree["pair"][0]

    tree: Any = {
        "point": Point(2.0, [onp.float32(3.0), "text", None, 7]),
        "list": [onp.arange(3), onp.ones(2), True],
        "pair": (5.0, onp.array(["a"])),
        "unused": {"a": onp.ones((2, 2), "f4"), "b": 1.5, "c": 1j},
    }
    gradient = dagad.grad(program)(tree)
    assert type(gradient["point"]) is Point
    assert gradient["point"].x == 9.0
    assert gradient["point"].y == [12.0, None, None, None]
    assert type(gradient["point"].y[0]) is onp.float32
    assert gradient["list"][0] is None
    assert gradient["list"][2] is None
    assert gradient["list"][1].tolist() == [5.0, 5.0]
    assert gradient["pair"] == (2.0, None)
    unused = gradient["unused"]
    assert unused["a"].dtype == "f4"
    assert unused["a"].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert (unused["b"], unused["c"]) == (0.0, 0j)
    assert optree.tree_structure(gradient, none_is_leaf=True) == optree.tree_structure(tree, none_is_leaf=True)


def test_argnums_can_be_an_int_or_a_tuple() -> None:
    def program(a: Any, b: Any, c: Any) -> Any:
        return a * b**2 * c["c"] ** 3

    args = (2.0, 3.0, {"c": 0.5})
    assert float(dagad.grad(program)(*args)) == pytest.approx(9 * 0.125)
    assert float(dagad.grad(program, 1)(*args)) == pytest.approx(12 * 0.125)
    assert float(dagad.grad(program, -1)(*args)["c"]) == pytest.approx(18 * 0.75)
    value, gradients = dagad.value_and_grad(program, (2, 0))(*args)
    assert value == pytest.approx(18 * 0.125)
    assert type(gradients) is tuple
    assert float(gradients[0]["c"]) == pytest.approx(18 * 0.75)
    assert float(gradients[1]) == pytest.approx(9 * 0.125)
    (single,) = dagad.grad(program, (1,))(*args)
    assert float(single) == pytest.approx(12 * 0.125)
    assert float(dagad.evaluate(program, *args, argnums=1).gradient()) == pytest.approx(12 * 0.125)


def test_grad_hands_keyword_arguments_through() -> None:
    def program(x: Any, *, power: int, data: Any = None) -> Any:
        return dagad.reduce_sum(lambda rows, x: np.sum(rows * x**power), data, x, grainsize=4)

    data = onp.arange(10.0)
    assert float(dagad.grad(program)(2.0, power=3, data=data)) == pytest.approx(45 * 12)


def test_aux_is_handed_through_undifferentiated() -> None:
    def program(theta: Any) -> Any:
        total = dagad.reduce_sum(misfit, X, theta, grainsize=4)
        return total, {"norm": np.sum(theta**2), "total": total, "name": "aux", "none": None, "list": [theta, 3]}

    (value, aux), gradient = dagad.value_and_grad(program, has_aux=True)(THETA)
    assert close(gradient, autograd.grad(lambda t: misfit(X, t))(THETA))
    assert aux["total"] == value
    assert type(aux["norm"]) is onp.float64
    assert type(aux["list"][0]) is onp.ndarray
    assert (aux["name"], aux["none"], aux["list"][1]) == ("aux", None, 3)
    gradient_again, aux_again = dagad.grad(program, has_aux=True)(THETA)
    assert gradient_again.tobytes() == gradient.tobytes()
    assert aux_again["total"] == value
    assert close(dagad.grad(lambda t: dagad.grad(program, has_aux=True)(t)[1]["norm"])(THETA), 2 * THETA)


def test_grad_keeps_the_name_of_its_function() -> None:
    assert dagad.grad(loss).__name__ == "loss"
    assert dagad.value_and_grad(partial(loss))(THETA)[0] == loss(THETA)


def test_a_gradient_that_nothing_depends_on_is_zero() -> None:
    gradients = dagad.grad(lambda a, b: np.sum(a), (0, 1))(onp.ones(2), {"b": onp.ones((3, 1), "f4")})
    assert gradients[1]["b"].shape == (3, 1)
    assert gradients[1]["b"].dtype == "f4"
    assert not gradients[1]["b"].any()
    assert float(dagad.grad(lambda x: 3.0)(1.0)) == 0.0


@pytest.mark.sampled(4)
def test_derivatives_of_every_kind_nest(scheduler: Any) -> None:
    total = partial(dagad.reduce_sum, misfit, X, grainsize=4, scheduler=scheduler)
    direction = onp.array([1.0, 2.0, -1.0])
    expected = autograd.hessian_vector_product(lambda t: misfit(X, t))(THETA, direction)
    assert close(dagad.grad(lambda t: np.sum(dagad.grad(total)(t) * direction))(THETA), expected, 1e-11)
    assert close(autograd.hessian_vector_product(total)(THETA, direction), expected, 1e-11)
    assert close(dagad.grad(lambda t: np.sum(autograd.grad(total)(t) * direction))(THETA), expected, 1e-11)
    assert close(autograd.grad(lambda t: np.sum(dagad.grad(total)(t) * direction))(THETA), expected, 1e-11)
    assert close(autograd.hessian(total)(THETA), autograd.hessian(lambda t: misfit(X, t))(THETA), 1e-11)
    assert close(dagad.vjp(dagad.grad(total), THETA)[1](direction)[0], expected, 1e-11)


def test_a_mixed_derivative_is_right_in_the_outer_variable() -> None:
    def inner(t: Any, u: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t, u: np.sum(np.sin(rows * t) * u**3), X, t, u, grainsize=4)

    def plain_inner(t: Any, u: Any) -> Any:
        return np.sum(np.sin(X * t) * u**3)

    mixed = dagad.grad(lambda u: u * dagad.grad(inner)(0.3, u))(1.7)
    assert close(mixed, autograd.grad(lambda u: u * autograd.grad(plain_inner)(0.3, u))(1.7), 1e-11)


def test_a_gradient_of_a_function_with_complex_values_inside_is_right() -> None:
    def program(x: Any) -> Any:
        return np.real(np.sum(np.exp(1j * x) * np.conj(np.exp(2j * x)) * x))

    gradient = dagad.grad(program)(onp.array([0.3, 0.8]))
    assert gradient.dtype == float
    assert close(gradient, autograd.grad(program)(onp.array([0.3, 0.8])))


def test_a_subclass_of_array_counts_as_an_array() -> None:
    class Named(onp.ndarray):
        pass

    gradient = dagad.grad(lambda x: np.sum(x**2))(onp.array([1.0, 2.0]).view(Named))
    assert onp.asarray(gradient).tolist() == [2.0, 4.0]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (lambda x: x * onp.ones(3), r"array of shape \(3,\) and dtype float64"),
        (lambda x: {"a": x}, "a dict"),
        (lambda x: None, "None"),
        (lambda x: x * 1j, "complex"),
        (lambda x: 3, "int"),
        (lambda x: (x, x), "tuple"),
    ],
)
def test_a_gradient_of_something_else_than_a_number_is_refused_with_the_remedy(returned: Any, found: str) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=f"returned .*{found}.*one real floating-point number"):
        dagad.grad(returned)(1.0)
    with pytest.raises(dagad.NotDifferentiableError, match=found):
        dagad.evaluate(returned, 1.0).value()


@pytest.mark.parametrize(
    ("argument", "found"), [(3, "only int"), ({"a": onp.arange(2)}, "only int64"), (None, "is None"), ("a", "only str")]
)
def test_an_argument_without_floats_is_refused(argument: Any, found: str) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=rf"Argument 1 .*{found}"):
        dagad.grad(lambda x, y: x, (0, 1))(1.0, argument)
    with pytest.raises(dagad.NotDifferentiableError, match="Argument 1"):
        dagad.vjp(lambda x, y: x, 1.0, argument)
    with pytest.raises(dagad.NotDifferentiableError, match="Argument 0"):
        dagad.evaluate(lambda x: 1.0, argument)


@pytest.mark.parametrize("argnums", [2, -3, (0, 2), "0", (), 1.0, (0, "1"), None])
def test_argnums_that_do_not_fit_are_refused(argnums: Any) -> None:
    with pytest.raises(dagad.StructureError, match="argnums"):
        dagad.grad(lambda x, y: x * y, argnums)(1.0, 2.0)


def test_an_argument_is_named_once_by_argnums_and_may_be_named_by_a_number_of_numpys() -> None:
    def power(x: Any, y: Any) -> Any:
        return x**3 * y

    for argnums in ((0, 0), (0, -2), (1, 0, 1)):
        for transform in (dagad.grad, dagad.value_and_grad, dagad.jacfwd, dagad.jacrev, dagad.hessian):
            with pytest.raises(dagad.StructureError, match=r"asks for argument [01] twice.*Name each argument once"):
                transform(power, argnums)(2.0, 3.0)
        with pytest.raises(dagad.StructureError, match=r"asks for argument [01] twice"):
            dagad.evaluate(power, 2.0, 3.0, argnums=argnums)
    assert dagad.grad(power, np.int64(1))(2.0, 3.0) == 8.0
    assert dagad.grad(power, (np.int64(-1), 0))(2.0, 3.0) == (8.0, 36.0)
    assert dagad.jacrev(power, np.int8(0))(2.0, 3.0) == 36.0


def test_a_value_is_the_callers_own_and_its_pullback_does_not_read_it() -> None:
    theta, seed = onp.zeros(2), onp.ones(2)
    functions: list[Any] = [np.exp, lambda t: t, lambda t: t[::-1], lambda t: {"a": (np.exp(t), t)}]
    for fun in functions:
        before = optree.tree_map(onp.copy, fun(theta))
        value, pullback = dagad.vjp(fun, theta)
        found_jvp, tangent = dagad.jvp(fun, (theta,), (seed,))
        both: Any = (value, found_jvp)
        for leaf in optree.tree_leaves(both):
            leaf += 5.0
        seeds = optree.tree_map(onp.ones_like, before)
        onp.testing.assert_array_equal(pullback(seeds)[0], dagad.vjp(fun, theta)[1](seeds)[0])
        assert all(onp.all(leaf == 1.0) for leaf in optree.tree_leaves(tangent))
        assert optree.tree_all(optree.tree_map(lambda a, b: onp.array_equal(a, b + 5.0), value, before))
    onp.testing.assert_array_equal(theta, onp.zeros(2))


def test_a_missing_aux_is_refused() -> None:
    for returned in (1.0, (1.0, 2.0, 3.0), [1.0, 2.0]):
        with pytest.raises(dagad.StructureError, match=r"has_aux=True.*returned a"):
            dagad.grad(lambda x, returned=returned: returned, has_aux=True)(1.0)


def test_a_cotangent_of_another_shape_or_structure_is_refused() -> None:
    pullback = dagad.vjp(lambda x: {"a": x * onp.ones(2), "b": x}, 1.0)[1]
    with pytest.raises(dagad.StructureError, match="structure"):
        pullback(onp.ones(2))
    with pytest.raises(dagad.StructureError, match=r"shape \(3,\), where \(2,\) is needed"):
        pullback({"a": onp.ones(3), "b": 1.0})
    assert float(pullback({"a": onp.ones(2), "b": 1.0})[0]) == 3.0


def test_hidden_traced_values_are_refused() -> None:
    class Holder:
        def __init__(self, value: Any) -> None:
            self.value = value

    with pytest.raises(dagad.NotDifferentiableError, match=r"Holder.*optree"):
        dagad.vjp(lambda x: Holder(x), 1.0)
    with pytest.raises(dagad.NotDifferentiableError, match=r"np\.stack"):
        dagad.vjp(lambda x: onp.array([x, x], dtype=object), 1.0)

    def filled(x: Any) -> Any:
        out = onp.empty(2, dtype=object)
        out[0] = out[1] = x
        return out

    with pytest.raises(dagad.NotDifferentiableError, match=r"array of objects.*np\.stack"):
        dagad.vjp(filled, 1.0)


def test_an_exception_leaves_later_derivatives_alone() -> None:
    def fail(x: Any) -> Any:
        raise KeyError("mine")

    for _ in range(5):
        with pytest.raises(KeyError, match="mine"):
            dagad.grad(lambda x: x * dagad.grad(fail)(x))(1.0)
    assert float(dagad.grad(lambda x: x * dagad.grad(lambda y: x * y * y)(2.0))(3.0)) == 24.0


# --- inside autograd's own derivatives, and as they are ---------------------------------------------------------------

NESTED: dict[str, Any] = {
    "a dict": (lambda p: dagad.grad(lambda q: q["a"] ** 3)(p)["a"], {"a": 2.0}, {"a": 12.0}),
    "a list of a dict": (
        lambda p: dagad.value_and_grad(lambda q: q[0]["x"] ** 3 * q[1])(p)[1][0]["x"],
        [{"x": 2.0}, 3.0],
        [{"x": 36.0}, 12.0],
    ),
    "a tuple": (lambda p: dagad.grad(lambda q: q[0] ** 3 * q[1])(p)[1], (2.0, 3.0), (12.0, 0.0)),
    "hvp": (lambda p: dagad.hvp(lambda q: q["a"] ** 3, (p,), (p,))[0]["a"], {"a": 2.0}, {"a": 24.0}),
    "jvp": (lambda p: dagad.jvp(lambda q: q["a"] ** 3, (p,), (p,))[1], {"a": 2.0}, {"a": 36.0}),
    "vjp": (
        lambda p: dagad.vjp(lambda q: {"y": q["a"] ** 3}, p)[1](boxed_dict({"y": p["a"]}))[0]["a"],
        {"a": 2.0},
        {"a": 36.0},
    ),
    "a reduction": (
        lambda p: dagad.grad(
            lambda q: dagad.reduce_sum(lambda r, q: np.sum(r) * q["a"] ** 3, onp.ones(4), q, grainsize=2)
        )(p)["a"],
        {"a": 2.0},
        {"a": 48.0},
    ),
}


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("outer", [autograd.grad, dagad.grad])
def test_autograd_can_stand_outside_with_containers(outer: Any, name: str) -> None:
    fun, point, expected = NESTED[name]
    assert outer(fun)(point) == expected


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", [(1,), (1, 1), ()])
def test_an_array_of_one_number_is_a_value_as_for_autograd(shape: Any, scheduler: Any) -> None:
    data, at = onp.arange(4.0), onp.full(shape, 3.0)

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(lambda r, t: np.sum(r) * t**2, data, t, grainsize=2, scheduler=scheduler)

    for fun in (loss, lambda t: t**2 * 6.0):
        value, gradient = dagad.value_and_grad(fun)(at)
        assert onp.shape(value) == onp.shape(gradient) == shape
        assert value == 54.0
        assert gradient == autograd.grad(fun)(at) == 36.0
        assert dagad.hvp(fun, at, onp.ones(shape)) == 12.0
        assert dagad.hessian(fun)(at).shape == shape * 2
    evaluation = dagad.evaluate(loss, at)
    assert evaluation.value() == 54.0
    assert evaluation.gradient() == 36.0


@pytest.mark.parametrize("fun", [lambda x: x, lambda x: x[:0], lambda x: x[:1] * 1j, lambda x: onp.ones(1, int)])
def test_a_gradient_of_anything_but_one_real_number_is_refused(fun: Any) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"one real floating-point number.*dagad.vjp"):
        dagad.grad(fun)(onp.ones(2))


def test_tangents_of_shards_that_are_not_cut_alike_are_refused() -> None:
    data = onp.arange(8.0).reshape(8, 1)
    shards = dagad.shard(data, grainsize=2, scheduler="sync")

    def total(rows: Any) -> Any:
        return dagad.reduce_sum(lambda part: np.sum(np.sin(part)), rows)

    others = [(dagad.shard(data, grainsize=2, scheduler="sync"),), data, dagad.shard(data, grainsize=4)]
    for tangent in others:
        for ask in (dagad.hvp, dagad.jvp):
            with pytest.raises(dagad.StructureError, match=r"`dagad.shard\(tangent, grainsize=2\)`"):
                ask(total, (shards,), (tangent,))
