"""Tasks of a user's graph: do policies, engines and explicit functions do for them what they do for chunks?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import autograd.numpy as np
import numpy as onp
import pytest
from dask._task_spec import DataNode, Task, TaskRef
from dask.base import compute as dask_compute
from dask.config import set as dask_set
from dask.delayed import Delayed, delayed

import dagad
from dagad.extend import AutogradEngine, ExplicitEngine, Keep, Preaccumulate, Recompute, Revolve, Segment, explicit

compute: Any = dask_compute  # Dask has few types
A = onp.array([0.5, -1.0, 2.0])


def where(scheduler: Any) -> dict[str, Any]:
    return {"scheduler": scheduler} if isinstance(scheduler, str) else {"scheduler": scheduler.get}


def squares(x: Any) -> Any:
    return np.sum(x**2)


def weighted(total: Any, x: Any) -> Any:
    return 3.0 * total * np.sum(x)


def two_step(x: Any) -> Any:
    """A number that two tasks use, so that its cotangent is not 1."""
    return delayed(weighted)(delayed(squares)(delayed(np.sin)(x)), x)


def expected(x: Any) -> Any:
    return 3.0 * (2.0 * onp.sin(x) * onp.cos(x) * onp.sum(x) + onp.sum(onp.sin(x) ** 2))


# --- policies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "runs"), [(Keep(), 3), (Recompute(), 6), (Preaccumulate(), 3)])
def test_a_policy_decides_what_tasks_keep(policy: Any, runs: int) -> None:
    x = delayed(A)
    value, gradient = compute(*dagad.value_and_gradient(two_step(x), x, policy=policy), scheduler="sync")
    assert value == pytest.approx(3.0 * onp.sum(onp.sin(A) ** 2) * onp.sum(A))
    onp.testing.assert_allclose(gradient, expected(A), rtol=1e-12)
    assert (policy.n_primal, policy.n_pullback) == (runs, 3)


def test_the_policy_recompute_keeps_one_tape_of_a_graph_at_a_time() -> None:
    x = delayed(A)
    policies = Keep(), Recompute(), Preaccumulate()
    for policy in policies:
        compute(dagad.gradient(two_step(x), x, policy=policy), scheduler="sync")
    assert [policy.peak_linearizations for policy in policies] == [3, 1, 2]  # sin's is kept while squares' is pulled


def test_the_bits_of_a_gradient_graph_do_not_depend_on_the_policy(scheduler: Any) -> None:
    x = delayed(onp.random.default_rng(1).standard_normal(50))
    number = delayed(onp.float32)(2.0 / 3.0)
    y = two_step(x) * number
    found = [
        compute(*dagad.gradient(y, [x, number], policy=policy), **where(scheduler))
        for policy in (Keep(), Recompute(), Preaccumulate())
    ]
    assert len({of_x.tobytes() for of_x, _ in found}) == 1
    assert len({of_number.tobytes() for _, of_number in found}) == 1
    assert all(type(of_number) is onp.float32 for _, of_number in found)


def spoiling(data: Any, x: Any) -> Any:
    data += 1.0
    return data * x


def spoiling_inside(held: Any, x: Any) -> Any:
    held["parts"][0][:] += 1.0
    return held["parts"][0] * x


@pytest.mark.parametrize("policy", [Keep(), Recompute(), Preaccumulate(), Segment(1), Revolve(1)])
@pytest.mark.parametrize("inside", [False, True])
def test_a_task_that_spoils_its_data_is_refused_when_it_runs_again_and_never_wrong(policy: Any, inside: bool) -> None:
    x, data = delayed(A), delayed({"parts": (onp.ones(3),)} if inside else onp.ones(3))
    spoilt = delayed(spoiling_inside if inside else spoiling)(data, delayed(np.sin)(x))
    y = delayed(np.sum)(delayed(np.sin)(spoilt))
    for derived in (dagad.gradient(y, x, policy=policy), dagad.jvp(y, x, A)):
        with pytest.raises(ValueError, match="read-only") as caught:
            compute(derived, scheduler="sync")
        assert any("work on a copy" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("policy", [Keep(), Recompute(), Preaccumulate(), Segment(1), Revolve(1)])
def test_a_task_can_append_to_a_list_that_it_reads(policy: Any) -> None:
    def longer(items: Any, x: Any) -> Any:
        items["all"].append(2.0)
        return sum(items["all"]) * x

    x = delayed(A)
    y = delayed(np.sum)(delayed(np.sin)(delayed(longer)(delayed({"all": [1.0]}), delayed(np.sin)(x))))
    gradient = compute(dagad.gradient(y, x, policy=policy), scheduler="sync")[0]
    onp.testing.assert_allclose(gradient, onp.cos(3.0 * onp.sin(A)) * 3.0 * onp.cos(A), rtol=1e-12)


def test_a_gradient_under_any_policy_can_be_differentiated_again() -> None:
    x = delayed(A)
    for first, second in ((Preaccumulate(), Recompute()), (Recompute(), Preaccumulate())):
        slope = delayed(np.sum)(dagad.gradient(delayed(squares)(x * x), x, policy=first))
        found = compute(dagad.gradient(slope, x, policy=second), scheduler="sync")[0]
        onp.testing.assert_allclose(found, 12 * A**2, rtol=1e-12)


# --- engines ----------------------------------------------------------------------------------------------------------


class Counting(AutogradEngine):
    """Autograd, counted."""

    name = "counting"
    runs = 0

    def linearize(self, fun: Any, leaves: Any) -> Any:
        Counting.runs += 1
        return super().linearize(fun, leaves)


def pair(x: Any, scale: Any) -> Any:
    return onp.sum(x**2) * scale, lambda seed: (2.0 * seed * scale * x, None)


def test_an_engine_is_taken_by_name_as_an_object_and_from_the_settings() -> None:
    x = delayed(A)
    y = two_step(x)
    Counting.runs = 0
    onp.testing.assert_allclose(
        compute(dagad.gradient(y, x, engine=Counting()), scheduler="sync")[0], expected(A), rtol=1e-12
    )
    assert Counting.runs == 3
    onp.testing.assert_allclose(
        compute(dagad.gradient(y, x, engine="autograd"), scheduler="sync")[0], expected(A), rtol=1e-12
    )
    by_hand = delayed(pair)(x, 3.0)
    ways: list[dict[str, Any]] = [{"engine": "explicit"}, {"engine": ExplicitEngine(), "policy": Recompute()}]
    for options in ways:
        value, gradient = compute(*dagad.value_and_gradient(by_hand, x, **options), scheduler="sync")
        assert value == pytest.approx(3.0 * onp.sum(A**2))
        onp.testing.assert_allclose(gradient, 6.0 * A)
    with dask_set({"dagad.engine": "explicit"}):
        onp.testing.assert_allclose(compute(dagad.gradient(by_hand, x), scheduler="sync")[0], 6.0 * A)


def test_an_engine_of_the_users_own_travels(cluster: Any) -> None:
    x = delayed(A)
    found = cluster.compute(dagad.gradient(delayed(pair)(x, 3.0), x, engine="explicit"), sync=True)
    onp.testing.assert_allclose(found, 6.0 * A)


# --- explicit functions -----------------------------------------------------------------------------------------------


@explicit
def half_square(x: Any, scale: Any) -> Any:
    return 0.5 * scale * onp.sum(x**2), lambda seed: (seed * scale * x, seed * 0.5 * onp.sum(x**2))


@explicit
def mixed(parts: Any, options: Any) -> Any:
    """Take what is differentiated out of containers; one of them twice."""
    left, (right, _) = parts
    weight = options["weight"]

    def pullback(seed: Any) -> Any:
        of_right = seed["a"] * weight * left
        return [seed["a"] * weight * right, (of_right, None)], {"weight": seed["a"] * onp.sum(left * right), "n": None}

    return {"a": weight * onp.sum(left * right), "n": 3}, pullback


@pytest.mark.parametrize("fun", [half_square, half_square.value], ids=["marked", "its value"])
def test_explicit_functions_are_understood_as_tasks(fun: Any, scheduler: Any) -> None:
    x, scale = delayed(A), delayed(3.0)
    y = delayed(np.multiply)(delayed(fun)(delayed(np.sin)(x), scale), 2.0)
    value, (of_x, of_scale) = dagad.value_and_gradient(y, [x, scale])
    found = compute(value, of_x, of_scale, **where(scheduler))
    assert found[0] == pytest.approx(3.0 * onp.sum(onp.sin(A) ** 2))
    onp.testing.assert_allclose(found[1], 6.0 * onp.sin(A) * onp.cos(A), rtol=1e-12)
    assert found[2] == pytest.approx(onp.sum(onp.sin(A) ** 2))


def test_an_explicit_task_has_its_value_where_nothing_is_differentiated_too() -> None:
    """A pair goes into no other task, be it on the way of the derivative or not."""
    x, scale = delayed(A), delayed(3.0)
    constant = delayed(half_square)(delayed(A + 1.0), scale)
    doubled = delayed(lambda total: 2.0 * total)(constant)
    y = delayed(lambda a, b, c: a * b + c)(doubled, delayed(half_square)(x, 1.0), constant)
    value, (of_x, of_doubled) = dagad.value_and_gradient(y, [x, doubled])
    c, own = 1.5 * onp.sum((A + 1.0) ** 2), 0.5 * onp.sum(A**2)
    found = compute(value, of_x, of_doubled, scheduler="sync")
    assert found[0] == pytest.approx(2.0 * c * own + c)
    onp.testing.assert_allclose(found[1], 2.0 * c * A)
    assert found[2] == pytest.approx(own)


def test_dependencies_are_found_inside_the_arguments_of_an_explicit_task() -> None:
    x, weight = delayed(A), delayed(2.0)
    y = delayed(mixed)([x, (x, "text")], {"weight": weight, "n": 7})["a"]
    for policy in (None, Recompute(), Preaccumulate()):
        of_x, of_weight = compute(*dagad.gradient(y, [x, weight], policy=policy), scheduler="sync")
        onp.testing.assert_allclose(of_x, 4.0 * A)
        assert of_weight == pytest.approx(onp.sum(A**2))


@explicit
def by_compiled_code(x: Any) -> Any:
    return onp.sum(x**2), lambda seed: (onp.array([float(seed) * 2.0 * float(entry) for entry in x]),)


@pytest.mark.parametrize("fun", [half_square, half_square.value], ids=["marked", "its value"])
def test_explicit_tasks_have_forward_mode_and_second_derivatives(fun: Any, scheduler: Any) -> None:
    x, scale = delayed(A), delayed(3.0)
    y = delayed(fun)(delayed(np.sin)(x), scale)
    of_x, of_scale = dagad.gradient(y, [x, scale])
    tangent_out, twice = dagad.jvp(y, x, A)[1], dagad.gradient(delayed(np.sum)(of_x), [x, scale])
    mixed_first = dagad.gradient(of_scale, x)
    found = compute(tangent_out, *twice, mixed_first, **where(scheduler))
    slope = onp.sin(A) * onp.cos(A)
    onp.testing.assert_allclose(found[0], 3.0 * onp.sum(slope * A), rtol=1e-12)
    onp.testing.assert_allclose(found[1], 3.0 * onp.cos(2.0 * A), rtol=1e-12)
    onp.testing.assert_allclose(found[2], onp.sum(slope), rtol=1e-12)
    onp.testing.assert_allclose(found[3], slope, rtol=1e-12)


REFUSED: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "no cotangent": (
        lambda: dagad.gradient(delayed(explicit(lambda x: (onp.sum(x), lambda s: (None,))))(x := delayed(A)), x),
        dagad.NotDifferentiableError,
        "returned None for an argument that is being differentiated",
    ),
    "too few": (
        lambda: dagad.gradient(delayed(explicit(lambda x, n: (onp.sum(x), lambda s: (s * x,))))(x := delayed(A), 2), x),
        dagad.StructureError,
        "one cotangent for each of 2 arguments",
    ),
    "a wrong shape": (
        lambda: dagad.gradient(delayed(explicit(lambda x: (onp.sum(x), lambda s: (s,))))(x := delayed(A)), x),
        dagad.StructureError,
        r"shape \(\), where \(3,\) is needed",
    ),
    "no pair": (
        lambda: dagad.gradient(delayed(explicit(squares))(x := delayed(A)), x),
        dagad.StructureError,
        r"`squares` is marked explicit.*`\(value, pullback\)`",
    ),
    "by keyword": (
        lambda: dagad.gradient(delayed(np.sum)(delayed(half_square)(x := delayed(A), scale=x)), x),
        dagad.NotDifferentiableError,
        "by keyword.*Pass it by position",
    ),
    "twice": (
        lambda: dagad.gradient(delayed(np.sum)(dagad.gradient(delayed(by_compiled_code)(x := delayed(A)), x)), x),
        dagad.NotDifferentiableError,
        "It leaves numpy.*Write the pullback with numpy",
    ),
    "forward": (
        lambda: dagad.jvp(delayed(by_compiled_code)(x := delayed(A)), x, A)[1],
        dagad.NotDifferentiableError,
        "It leaves numpy.*Write the pullback with numpy",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_derivative_that_an_explicit_task_lacks_is_refused_with_its_task(name: str) -> None:
    ask, error, text = REFUSED[name]
    with pytest.raises(error, match=text) as caught:
        compute(ask(), scheduler="sync")
    assert any("while task" in note for note in caught.value.__notes__)


def test_an_explicit_task_takes_constants_by_keyword() -> None:
    x = delayed(A)
    found = compute(dagad.gradient(delayed(half_square_of)(x, scale=3.0), x), scheduler="sync")[0]
    onp.testing.assert_allclose(found, 3.0 * A)


@explicit
def half_square_of(x: Any, *, scale: Any) -> Any:
    return 0.5 * scale * onp.sum(x**2), lambda seed: (seed * scale * x,)


# --- the work ---------------------------------------------------------------------------------------------------------


class Key(str):
    """A key that counts how often it is compared with another: a search through a list shows, a look-up does not."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Key.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def comparisons(n_inputs: int, n_wrt: int, derivative: Callable[[Any, list[Any]], Any]) -> int:
    """Return how many comparisons of keys the derivative of a sum of inputs takes."""
    keys = [Key(f"x{number}") for number in range(n_inputs)]
    graph: dict[Any, Any] = {key: DataNode(key, 1.0) for key in keys}
    graph["y"] = Task("y", lambda *parts: sum(parts), *map(TaskRef, keys))
    Key.compared = 0
    derivative(Delayed("y", graph), [Delayed(key, graph) for key in keys[:n_wrt]])
    return Key.compared


@pytest.mark.parametrize(
    "derivative",
    [dagad.gradient, dagad.value_and_gradient, lambda y, wrt: dagad.jvp(y, wrt, [1.0] * len(wrt))],
    ids=["gradient", "value_and_gradient", "jvp"],
)
def test_building_a_derivative_is_linear_in_inputs_and_in_wrt(derivative: Callable[[Any, list[Any]], Any]) -> None:
    for few, many in (((200, 1), (800, 1)), ((200, 200), (800, 800))):
        assert comparisons(*many, derivative) <= 5 * max(comparisons(*few, derivative), 200)


def test_a_gradient_in_many_leaves_of_one_graph_is_right() -> None:
    """Dask handles each Delayed with all layers of its graph: these are few, and the same."""
    leaves = [delayed(float(number)) for number in range(300)]
    parts = [leaf * leaf for leaf in leaves]
    gradients = dagad.gradient(delayed(sum)(parts), leaves)
    graph = gradients[0].__dask_graph__()
    assert all(gradient.__dask_graph__() is graph for gradient in gradients)
    assert sum(len(gradient.__dask_graph__().layers) for gradient in gradients) == 300


class Wide:
    """A function of many inputs that knows how often it ran."""

    def __init__(self) -> None:
        self.runs, self.lock = 0, threading.Lock()

    def __call__(self, *parts: Any) -> Any:
        with self.lock:
            self.runs += 1
        return sum(parts)


def test_a_task_can_have_thousands_of_inputs_and_wrt_thousands_of_leaves() -> None:
    leaves, fun = [delayed(float(number)) for number in range(1000)], Wide()
    value, gradients = dagad.value_and_gradient(delayed(fun)(*leaves), leaves)
    total, found = compute(value, gradients, scheduler="sync")
    assert (total, set(found), len(found)) == (499500.0, {1.0}, 1000)
    assert fun.runs == 1
