"""Engines: are derivatives in threads right, is autograd what it was, and are explicit functions held to their word?"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
from autograd import grad, tracer
from autograd.numpy import numpy_vjps, numpy_wrapper
from hypothesis import given, settings, strategies as st

import dagad
from dagad._engines import find_engine, shortcuts
from dagad._engines.autograd import pull, record, tape_nbytes
from dagad._engines.traces import MonotoneTraces, install_monotone_traces, traces
from dagad.extend import AutogradEngine, Call, ExplicitEngine, explicit

RNG = onp.random.default_rng(3)
X, THETA = RNG.standard_normal((11, 3)), onp.array([0.4, -0.2, 0.9])

# --- traces in threads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leavers", [0, 1, 2])
def test_is_a_mixed_derivative_right_when_other_threads_leave_their_traces(leavers: int) -> None:
    inside, leave = [threading.Event() for _ in range(leavers)], threading.Event()

    def hold(event: threading.Event) -> None:
        def square(z: Any) -> Any:
            event.set()
            leave.wait()
            return z * z

        grad(square)(1.0)

    threads = [threading.Thread(target=hold, args=(event,)) for event in inside]
    for thread, event in zip(threads, inside, strict=True):
        thread.start()
        event.wait()

    def body(x: Any) -> Any:
        leave.set()
        for thread in threads:
            thread.join()
        return x * grad(lambda y: x * y * y)(2.0)

    assert float(grad(body)(3.0)) == 24.0


def test_is_a_derivative_right_whose_traced_value_crosses_into_another_thread() -> None:
    with ThreadPoolExecutor(1) as pool:

        def body(x: Any) -> Any:
            return x * pool.submit(lambda: grad(lambda y: x * y)(3.0)).result()

        assert float(grad(body)(3.0)) == 6.0


def net(theta: Any, x: Any) -> Any:
    return np.sum(theta[2] * np.tanh(theta[0] * x + theta[1]))


POINTS = (0.3, 1.1)
WIDTH = 600  # so wide that numpy lets other threads run; with autograd's own counter 20 % of the calls are wrong


def misfit_then_slope(theta: Any) -> Any:
    misfit = sum([(net(theta, x) - np.sin(x)) ** 2 for x in POINTS])
    return misfit + sum([(grad(net, 1)(theta, x) - np.cos(x)) ** 2 for x in POINTS])


def residual_then_boundary(theta: Any) -> Any:
    residual = grad(net, 1)(theta, 0.3) + net(theta, 0.3)
    return residual**2 + (grad(net, 1)(theta, 1.0) - 0.5) ** 2


def three_inner_steps(theta: Any) -> Any:
    inner = theta[0]
    for _ in range(3):
        inner = inner - 0.1 * grad(lambda w: np.sum((np.tanh(w * theta[1]) - theta[2]) ** 2))(inner)
    return np.sum((inner - theta[1]) ** 2)


FORMS = [misfit_then_slope, residual_then_boundary, three_inner_steps]


@pytest.mark.parametrize("form", FORMS)
def test_is_no_nested_derivative_wrong_in_threads(form: Callable[[Any], Any]) -> None:
    thetas = [RNG.standard_normal((3, WIDTH)) for _ in range(20)]
    expected = [grad(form)(theta) for theta in thetas]

    def call(number: int) -> bool:
        return bool((grad(form)(thetas[number % 20]) == expected[number % 20]).all())

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(call, range(2000))) == 2000


@pytest.mark.parametrize("form", FORMS)
def test_is_no_nested_derivative_wrong_in_chunks_on_threads(form: Callable[[Any], Any]) -> None:
    rows = RNG.standard_normal((100, 3, WIDTH))

    def total(rows: Any, shift: Any) -> Any:
        return sum([form(row + shift) for row in rows])

    expected, slope = autograd.value_and_grad(partial(total, rows))(0.1)
    with ThreadPoolExecutor(8) as pool:
        loss = partial(dagad.reduce_sum, total, rows, grainsize=1, scheduler=pool)
        for _ in range(3):
            value, gradient = dagad.value_and_grad(loss)(0.1)
            assert value == pytest.approx(expected, rel=1e-12)
            assert gradient == pytest.approx(slope, rel=1e-12)


def test_does_an_exception_close_its_trace() -> None:
    def fail(x: Any) -> Any:
        raise KeyError

    before = traces.open
    for _ in range(5):
        with pytest.raises(KeyError):
            grad(lambda x: grad(fail)(x))(1.0)
    assert traces.open == before == 0


def test_do_numbers_of_traces_only_grow() -> None:
    mine = MonotoneTraces()
    numbers = []
    with mine.new_trace() as first, mine.new_trace() as second:
        assert mine.open == 2
    for _ in range(3):
        with mine.new_trace() as number:
            numbers.append(number)
    assert [first, second, *numbers] == sorted({first, second, *numbers})
    assert mine.open == 0


def test_is_an_unknown_autograd_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_monotone_traces() is traces
    monkeypatch.setattr(tracer, "trace_stack", object())
    with pytest.raises(ImportError, match=r"traces by object.*Install autograd 1\.9"):
        install_monotone_traces()


# --- autograd is what it was ------------------------------------------------------------------------------------------

OPERATIONS = """
import pickle
import sys
import autograd.numpy as np
import numpy as onp
from autograd import grad, jacobian, make_jvp

if sys.argv[1:] == ["dagad"]:
    import dagad
rng = onp.random.default_rng(0)
x, y, m, c = (rng.uniform(0.5, 2, shape) for shape in (4, (3, 4), (4, 4), 4))
one, row, z = rng.uniform(0.5, 2, (3, 1)), rng.uniform(0.5, 2, (1, 4)), c + 1j
bodies = '''
    x * y; y / x; one * x; x - row; x + 1.5; 2.5 / x; -x; x * x; abs(x - 1); x % 0.7; m @ x; x @ m; np.dot(y, x)
    np.outer(x, x); x @ x; np.tensordot(x, m, 1); np.einsum("i,ij->j", x, m); np.kron(x, x); np.maximum(x, y)
    np.minimum(x, one); np.where(y > 1, x, x * x); np.logaddexp(x, y); np.arctan2(x, one); np.clip(x, 1, 2)
    x[::2] * x[1]; x[onp.array([0, 0, 1])]; x[None, :] * one; np.concatenate([x, x * 2]); np.stack([x, x * x])
    np.array([x[0], x[1]]); np.mean(x * y, axis=0); np.std(x * y); np.var(y * x, axis=1); np.prod(x)
    np.max(x) * np.min(x); np.cumsum(x); np.sort(x) * x; np.linalg.norm(x); np.linalg.solve(m, x)
    np.linalg.inv(m * x); np.linalg.det(m * x); np.linalg.eigh(m + m.T + np.diag(x))[0]
    np.real(z * x * np.conj(z)); np.abs(z * x); np.imag(np.exp(z * x)); np.real(np.fft.fft(x)); x.astype("f4") * 2
    np.reshape(x, (2, 2)) * m[:2, :2]; np.reshape(x, (4, 1)) * np.reshape(x, (1, 4)); x.T @ m @ x
    np.tile(x, 2) * np.repeat(x, 2); x[0] / 3; float(2) * x[0]; np.exp(x) + np.log(x) + np.sin(x) * np.tanh(x)
    np.sqrt(x) / np.cos(x); np.power(x, 2.5); np.square(x)
'''
functions = [eval("lambda x: np.sum(%s)" % body) for line in bodies.strip().splitlines() for body in line.split(";")]
results = []


def note(call):
    try:
        result = onp.asarray(call())
        results.append((result.shape, result.dtype.str, result.tobytes()))
    except Exception as error:
        results.append(type(error).__name__)


for f in functions:
    for call in (f, grad(f), jacobian(grad(f)), lambda x: make_jvp(f)(x)(onp.ones(4))[1]):
        note(lambda: call(x))
for at in (3.0, onp.float32(2), onp.ones((1, 1)), onp.ones((1, 1, 1)), onp.array(1.5), onp.ones((3, 1), "f4"), z):
    note(lambda: grad(lambda t: np.real(np.sum(t * y * one)))(at))
assert sum(isinstance(result, tuple) for result in results) > 200
sys.stdout.buffer.write(pickle.dumps(results))
"""


def test_gives_autograd_the_same_bits_with_dagad_and_without() -> None:
    command = [sys.executable, "-W", "ignore", "-c", OPERATIONS]
    stock, ours = (
        subprocess.run([*command, *more], capture_output=True, check=True).stdout for more in ([], ["dagad"])
    )
    assert stock == ours


SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(SHAPES, st.integers(0, 3), st.sampled_from(["f8", "f4", "c16"]), st.sampled_from(["f8", "f4", "c16"]), st.data())
def test_do_the_shortcuts_answer_what_the_originals_do(shape: Any, more: int, kind: str, of: str, data: Any) -> None:
    target = onp.ones(tuple(size if data.draw(st.booleans()) else 1 for size in shape), of)
    target = target if target.shape or data.draw(st.booleans()) else target[()]
    x = onp.ones((2,) * more + shape, kind)
    x = x if x.shape or data.draw(st.booleans()) else x[()]
    assert numpy_wrapper.metadata is shortcuts.metadata
    assert numpy_vjps.unbroadcast is shortcuts.unbroadcast
    assert shortcuts.metadata(target) == shortcuts._metadata(target)
    summed, expected = (f(x, shortcuts._metadata(target)) for f in (shortcuts.unbroadcast, shortcuts._unbroadcast))
    assert onp.shape(summed) == onp.shape(expected)
    assert onp.asarray(summed).dtype == onp.asarray(expected).dtype
    assert onp.array_equal(summed, expected)


@pytest.mark.parametrize("exponent", [0.5, -1, 2, 3, 2.0, onp.float64(1.5), onp.array(2.0)], ids=repr)
def test_is_the_derivative_of_a_power_right(exponent: Any) -> None:
    x = onp.array([0.5, 1.5, 2.0])
    assert onp.allclose(
        grad(lambda x: np.sum(x**exponent))(x), onp.asarray(exponent) * x ** (onp.asarray(exponent) - 1.0)
    )
    assert (autograd.make_vjp(lambda x: x**exponent)(x)[1] == x**exponent).all()
    power = onp.asarray(exponent, float)
    assert grad(lambda p: np.sum(x**p))(power) == pytest.approx(onp.sum(x**power * onp.log(x)))
    assert onp.allclose(grad(lambda p: np.sum(2.0**p))(x), 2.0**x * onp.log(2.0))
    jvp = autograd.make_jvp(lambda x: np.sum(x**exponent))(x)(onp.ones(3))[1]
    assert float(jvp) == pytest.approx(onp.sum(power * x ** (power - 1)))


# --- the autograd engine ----------------------------------------------------------------------------------------------


class Whole:
    """A call all of whose arguments are differentiated."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.fun = fun

    def run(self, leaves: Sequence[Any]) -> Any:
        return self.fun(*leaves)

    def arguments(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(leaves)

    def leaf_cotangents(self, cotangents: Sequence[Any]) -> list[Any]:
        return list(cotangents)


def test_may_a_pullback_be_called_again_and_leaves_it_its_seeds_alone() -> None:
    call: Call = Whole(lambda a, b: {"s": a * b + a + a, "t": [np.sum(b), "text", 3]})
    value, pullback, _ = AutogradEngine().linearize(call, [THETA, THETA])
    assert value["t"][1:] == ["text", 3]
    seed = onp.array([1.0, 2.0, 3.0])
    first = pullback([seed, 2.0, None, None])
    again = pullback([seed, 2.0, None, None])
    assert seed.tolist() == [1.0, 2.0, 3.0]
    for one, other, expected in zip(first, again, [seed * (THETA + 2), seed * THETA + 2], strict=True):
        assert (one == other).all()
        assert onp.allclose(one, expected)


def test_is_there_no_cotangent_where_no_path_leads() -> None:
    value, pullback, _ = AutogradEngine().linearize(Whole(lambda a, b: (np.sum(a), np.sum(b))), [THETA, THETA])
    assert value == (THETA.sum(), THETA.sum())
    assert pullback([None, None]) == [None, None]
    of_a, of_b = pullback([None, 2.0])
    assert of_a is None
    assert of_b.tolist() == [2.0] * 3


def test_has_a_cotangent_the_dtype_of_its_leaf() -> None:
    leaves = [THETA.astype("f4"), onp.float32(2.0), 2.0, THETA, THETA + 1j]
    call = Whole(lambda a, b, c, d, e: np.sum(a * b * c * d * np.real(e * e)))
    _, pullback, _ = AutogradEngine().linearize(call, leaves)
    cotangents = pullback([1.0])
    assert [onp.asarray(cotangent).dtype for cotangent in cotangents] == ["f4", "f4", "f8", "f8", "c16"]
    assert [onp.shape(cotangent) for cotangent in cotangents] == [(3,), (), (), (3,), (3,)]


def test_are_a_long_tape_and_a_wide_one_pulled_without_a_deep_stack() -> None:
    def chain(x: Any) -> Any:
        for _ in range(5000):
            x = x + 0.001
        return x

    def wide(x: Any) -> Any:
        parts = [x * 1.0]
        for _ in range(40):
            parts.append(sum(parts))
        return parts[-1]

    for fun, slope in ((chain, 1.0), (wide, 2.0**39)):
        value, ends, roots = record(Whole(fun).run, [1.0])
        assert pull(ends, [1.0], roots, [1.0]) == [slope]
        assert value == pytest.approx(fun(1.0))


# --- engines by name --------------------------------------------------------------------------------------------------


class Doubling:
    """An engine from outside: what autograd says, times two."""

    name = "doubling"

    def linearize(self, call: Any, leaves: Any) -> Any:
        value, pullback, nbytes = AutogradEngine().linearize(call, leaves)
        return value, lambda seeds: [2 * part for part in pullback(seeds)], nbytes


def squares(rows: Any, theta: Any) -> Any:
    return np.sum((rows - theta) ** 2)


def test_may_an_engine_come_from_outside(scheduler: Any) -> None:
    loss = partial(dagad.reduce_sum, squares, X, grainsize=4, scheduler=scheduler)
    expected = dagad.grad(partial(loss, engine="autograd"))(THETA)
    assert (dagad.grad(partial(loss, engine=AutogradEngine()))(THETA) == expected).all()
    assert onp.allclose(dagad.grad(partial(loss, engine=Doubling()))(THETA), 2 * expected)


def test_is_an_unknown_engine_refused_with_the_choice() -> None:
    with pytest.raises(dagad.PlanError, match=r"no engine 'jaxx'.*'autograd', 'explicit'"):
        dagad.reduce_sum(squares, X, THETA, engine="jaxx")
    with pytest.raises(dagad.PlanError, match=r"has no method `linearize`"):
        find_engine(3, squares)
    assert isinstance(find_engine("autograd", explicit(squares)), ExplicitEngine)  # the function knows best


# --- explicit ---------------------------------------------------------------------------------------------------------


def squares_by_hand(rows: Any, theta: Any) -> Any:
    residual = rows - theta
    return onp.sum(residual**2), lambda seed: (2 * seed * residual, -2 * seed * residual.sum(axis=0))


def test_is_an_explicit_function_by_hand_what_it_was() -> None:
    fun: Any = explicit(squares_by_hand)
    value, pullback = fun(X, THETA)
    assert value == squares(X, THETA)
    assert pullback(1.0)[1].shape == (3,)
    assert fun.__name__ == "squares_by_hand"
    not_a_function: Any = 3
    with pytest.raises(dagad.NotDifferentiableError, match="marks a function"):
        explicit(not_a_function)


def test_may_the_engine_be_named_instead_of_marking(scheduler: Any) -> None:
    expected = dagad.grad(lambda t: dagad.reduce_sum(squares, X, t, grainsize=4))(THETA)
    loss = partial(dagad.reduce_sum, squares_by_hand, X, grainsize=4, engine="explicit", scheduler=scheduler)
    assert onp.allclose(dagad.grad(loss)(THETA), expected)


def test_runs_a_value_alone_no_explicit_pullback() -> None:
    @explicit
    def counted(rows: Any, theta: Any) -> Any:
        def pullback(seed: Any) -> Any:
            raise AssertionError(seed)

        return theta * float(onp.sum(rows)), pullback

    assert dagad.reduce_sum(counted, X, 2.0, grainsize=4) == pytest.approx(2 * X.sum())
    assert dagad.map_sum(counted, X, 2.0, grainsize=4) == pytest.approx(2 * X.sum())
    assert dagad.vjp(lambda t: dagad.reduce_sum(counted, X, t, grainsize=4), 2.0)[0] == pytest.approx(2 * X.sum())


def test_are_explicit_cotangents_pytrees_with_none_for_constants(scheduler: Any) -> None:
    @explicit
    def scaled(rows: Any, params: Any, name: Any) -> Any:
        def pullback(seed: Any) -> Any:
            part = (seed["a"] * rows["x"]).sum() + seed["b"]
            return {"x": seed["a"] * params["t"] * onp.ones_like(rows["x"]), "n": None}, {"t": part, "name": None}, None

        return {"a": params["t"] * rows["x"].sum(), "b": params["t"]}, pullback

    def program(x: Any, t: Any) -> Any:
        rows, params = {"x": x, "n": onp.arange(len(x))}, {"t": t, "name": "p"}
        total = dagad.reduce_sum(scaled, rows, params, "text", grainsize=4, scheduler=scheduler)
        return total["a"] ** 2 + 3.0 * total["b"]

    x = onp.arange(8.0)
    of_x, of_t = dagad.grad(program, (0, 1))(x, 0.5)
    assert onp.allclose(of_x, 2 * 14.0 * 0.5)
    assert of_t == pytest.approx(2 * 14.0 * 28.0 + 6.0)
    only_b = dagad.grad(lambda t: dagad.reduce_sum(scaled, {"x": x, "n": x}, {"t": t, "name": 3}, 4, grainsize=4)["b"])
    assert only_b(0.5) == pytest.approx(2.0)


def marked(pullback: Callable[[Any, Any, Any], Any]) -> Any:
    """Return an explicit function of rows and theta with this pullback of (seed, rows, theta)."""

    @explicit
    def fun(rows: Any, theta: Any) -> Any:
        return float(onp.sum(rows) * onp.sum(theta)), lambda seed: pullback(seed, rows, theta)

    return fun


REFUSED = [
    (
        lambda seed, rows, theta: (None, seed),
        dagad.StructureError,
        r"cotangent of shape \(\) where one of shape \(3,\)",
    ),
    (
        lambda seed, rows, theta: (None, onp.ones((3, 1))),
        dagad.StructureError,
        r"shape \(3, 1\) where one of shape \(3,\)",
    ),
    (
        lambda seed, rows, theta: (None, None),
        dagad.NotDifferentiableError,
        r"returned None for an argument that is being",
    ),
    (lambda seed, rows, theta: (theta,), dagad.StructureError, r"one cotangent for each of 2 arguments.*it returned 1"),
    (lambda seed, rows, theta: (None, theta, theta), dagad.StructureError, r"each of 2 arguments.*it returned 3"),
    (lambda seed, rows, theta: theta, dagad.StructureError, r"each of 2 arguments.*it returned a ndarray"),
    (lambda seed, rows, theta: None, dagad.StructureError, r"each of 2 arguments.*it returned a NoneType"),
]


@pytest.mark.parametrize(("pullback", "error", "found"), REFUSED)
def test_are_wrong_explicit_cotangents_refused_with_their_chunk(
    pullback: Any, error: type[Exception], found: str, scheduler: Any
) -> None:
    for total in (dagad.reduce_sum, dagad.map_sum):
        loss = partial(total, marked(pullback), X, grainsize=6, scheduler=scheduler)
        assert loss(THETA) == pytest.approx(X.sum() * THETA.sum())
        with pytest.raises(error, match=found) as caught:
            dagad.grad(loss)(THETA)
        assert any("chunk" in note for note in getattr(caught.value, "__notes__", []))


def test_is_an_explicit_cotangent_of_the_wrong_structure_refused() -> None:
    @explicit
    def wrong(rows: Any, params: Any) -> Any:
        return 1.0, lambda seed: (None, {"wrong": params["right"]})

    with pytest.raises(dagad.StructureError, match="wrong"):
        dagad.grad(lambda t: dagad.reduce_sum(wrong, X, {"right": t}, grainsize=6))(THETA)


@pytest.mark.parametrize(
    "returned", [1.0, (1.0, 2.0), (1.0, lambda seed: (None,), 3), None, [1.0, lambda seed: (None,)]]
)
def test_is_something_else_than_a_pair_refused_by_name(returned: Any) -> None:
    @explicit
    def not_a_pair(rows: Any, theta: Any) -> Any:
        return returned

    for total in (dagad.reduce_sum, dagad.map_sum):
        for call in (partial(total, not_a_pair, X), dagad.grad(partial(total, not_a_pair, X))):
            with pytest.raises(dagad.StructureError, match=r"`not_a_pair` is marked explicit.*`\(value, pullback\)`"):
                call(THETA)


def test_keeps_an_explicit_cotangent_the_dtype_of_its_argument() -> None:
    fun = marked(lambda seed, rows, theta: (None, [seed * rows.sum()] * 3))
    assert dagad.grad(partial(dagad.reduce_sum, fun, X, grainsize=6))(THETA.astype("f4")).dtype == "f4"


def square_by_hand(row: Any, theta: Any) -> Any:
    return (row @ theta) ** 2, lambda seed: (2 * seed * (row @ theta) * theta, 2 * seed * (row @ theta) * row)


@pytest.mark.parametrize(("total", "fun"), [(dagad.reduce_sum, squares_by_hand), (dagad.map_sum, square_by_hand)])
def test_is_a_second_derivative_of_an_explicit_function_refused_with_a_sentence(
    total: Any, fun: Any, scheduler: Any
) -> None:
    loss = partial(total, explicit(fun), X, grainsize=4, scheduler=scheduler)
    assert dagad.grad(loss)(THETA).shape == (3,)
    for second in (
        dagad.grad(lambda t: np.sum(dagad.grad(loss)(t) ** 2)),
        autograd.hessian(loss),
        autograd.grad(lambda t: np.sum(autograd.grad(loss)(t))),
    ):
        with pytest.raises(dagad.NotDifferentiableError, match="explicit"):
            second(THETA)


def test_is_a_derivative_caught_in_the_closure_of_an_explicit_function_refused() -> None:
    def loss(t: Any) -> Any:
        @explicit
        def by_closure(rows: Any) -> Any:
            return onp.sum(rows) * t, lambda seed: (None,)

        return dagad.reduce_sum(by_closure, X, grainsize=4)

    with pytest.raises(dagad.ClosureError, match=r"explicit function.*shared argument"):
        dagad.grad(loss)(2.0)


def test_the_size_of_a_long_tape_is_told_from_samples() -> None:
    weights = onp.ones(5_000)

    def chain(leaves: Any) -> Any:
        (x,) = leaves
        for _ in range(1000):
            x = np.tanh(x * weights)  # an array of its own each, and one that all share
        return np.sum(x)

    _, ends, _ = record(chain, [onp.linspace(0.0, 1.0, 5_000)])
    measured, held = tape_nbytes(ends), 1001 * weights.nbytes
    assert 0.9 * held < measured < 1.1 * held
