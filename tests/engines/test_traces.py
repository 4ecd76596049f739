"""Traces: is nobody's derivative wrong while dagad comes and goes, in this thread and in others?"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
from autograd import grad, tracer

import dagad
from dagad._tracing.patches import patches
from support.plain_tracers import DATA, cube, is_stock

pytestmark = pytest.mark.sampled(3)

RNG = onp.random.default_rng(3)


@pytest.fixture
def holders() -> Iterator[Any]:
    """Start threads that open a trace of autograd's own, and leave it when they are told."""
    leave, threads = threading.Event(), []

    def start(count: int) -> Callable[[], None]:
        for _ in range(count):
            inside = threading.Event()

            def hold(z: Any, inside: threading.Event = inside) -> Any:
                inside.set()
                leave.wait()
                return z * z

            threads.append(threading.Thread(target=grad(hold), args=(1.0,)))
            threads[-1].start()
            inside.wait()
        return all_leave

    def all_leave() -> None:
        leave.set()
        for thread in threads:
            thread.join()

    yield start
    all_leave()


@pytest.mark.parametrize("leavers", [0, 1, 2])
@pytest.mark.parametrize("inner", [grad, dagad.grad])
def test_a_mixed_derivative_is_right_when_other_threads_leave_their_traces(
    leavers: int, inner: Any, holders: Any
) -> None:
    all_leave = holders(leavers)

    def body(x: Any) -> Any:
        all_leave()
        return x * inner(lambda y: x * y * y)(2.0)

    assert float(dagad.grad(body)(3.0)) == 24.0
    assert is_stock()


@pytest.mark.parametrize("leavers", [0, 1, 2])
def test_a_derivative_of_dagad_is_right_inside_one_that_autograd_had_begun(leavers: int, holders: Any) -> None:
    all_leave = holders(leavers)

    def body(x: Any) -> Any:  # autograd's own number; then those before it leave, so that the counter falls below
        all_leave()
        return x * dagad.grad(lambda y: dagad.reduce_sum(lambda r, x, y: np.sum(r) * x * y * y, DATA, x, y))(2.0)

    assert float(grad(body)(3.0)) == pytest.approx(24.0 * DATA.sum())


def test_patches_stay_until_the_last_trace_that_began_in_them_is_over() -> None:
    opened, leave, done = threading.Event(), threading.Event(), threading.Event()
    found = []

    def body(x: Any) -> Any:
        opened.set()
        leave.wait()  # dagad is gone when the inner trace opens
        return x * grad(lambda y: x * y * y)(2.0)

    def run() -> None:
        found.append(float(grad(body)(3.0)))
        done.set()

    thread = threading.Thread(target=run)
    with patches:
        thread.start()
        opened.wait()
    assert "new_trace" in vars(tracer.trace_stack)
    assert float(grad(lambda x: x * grad(lambda y: x * y * y)(2.0))(3.0)) == 24.0
    leave.set()
    thread.join()
    assert found == [24.0]
    assert is_stock()


def test_a_trace_that_is_entered_after_the_patches_are_gone_does_no_harm() -> None:
    with patches:
        late = tracer.trace_stack.new_trace()
    with late as number:
        assert number > -1
        assert float(grad(lambda x: x * grad(lambda y: x * y * y)(2.0))(3.0)) == 24.0
        with tracer.trace_stack.new_trace() as inner:
            assert inner > number
    assert is_stock()


def test_a_value_kept_from_a_derivative_that_is_over_is_a_constant_for_the_next() -> None:
    """A solver that starts where it ended, say, and keeps the traced value; autograd's own counter allows that."""
    kept = [1.0]

    def loss(x: Any) -> Any:
        kept.append(x * 2.0)
        return x * kept[-2]

    with patches:
        assert grad(loss)(3.0) == 1.0
    assert grad(loss)(3.0) == 6.0  # not 0: the number of what was kept must not stand above the new trace's
    assert grad(loss)(3.0) == 6.0


def test_numbers_of_traces_are_never_handed_out_twice() -> None:
    kept: list[int] = []

    def numbers(count: int) -> Any:
        with tracer.trace_stack.new_trace() as number:
            kept.append(number)
            return [numbers(count - 1)] if count else None

    own = tracer.trace_stack.new_trace()
    with own as below:  # one of autograd's own stays open all the time
        for _ in range(3):
            with patches:
                numbers(3)
    with patches:
        numbers(3)
    assert [below, *kept] == sorted({below, *kept})
    assert is_stock()


def test_an_exception_closes_its_trace() -> None:
    def fail(x: Any) -> Any:
        raise KeyError

    for _ in range(5):
        with pytest.raises(KeyError):
            dagad.grad(lambda x: grad(fail)(x))(1.0)
    assert not patches.open
    assert is_stock()


def test_a_gradient_that_failed_in_autograd_does_no_harm() -> None:
    def fail(x: Any) -> Any:
        raise KeyError

    for _ in range(3):
        with pytest.raises(KeyError):
            grad(lambda x: grad(fail)(x))(1.0)  # leaves autograd's own counter too high, for ever
    assert float(grad(lambda x: x * dagad.grad(lambda y: x * y * y)(2.0))(3.0)) == 24.0
    assert float(dagad.grad(lambda x: x * grad(lambda y: x * y * y)(2.0))(3.0)) == 24.0
    assert dagad.reduce_sum(cube, DATA, 2.0, grainsize=2) == pytest.approx(32.0)
    assert is_stock()


def test_a_derivative_whose_traced_value_crosses_into_another_thread_is_right() -> None:
    with ThreadPoolExecutor(1) as pool:

        def body(x: Any) -> Any:
            return x * pool.submit(lambda: grad(lambda y: x * y)(3.0)).result()

        assert float(dagad.grad(body)(3.0)) == 6.0
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
def test_nested_derivatives_are_right_in_threads(form: Callable[[Any], Any], rounds: Callable[[int], int]) -> None:
    thetas = [RNG.standard_normal((3, WIDTH)) for _ in range(20)]
    expected = [dagad.grad(form)(theta) for theta in thetas]  # by one thread
    for theta, alone in zip(thetas, expected, strict=True):  # the last bit may be another one, as with numpy 2.0
        onp.testing.assert_allclose(alone, grad(form)(theta), rtol=1e-12, atol=1e-14)

    def call(number: int) -> bool:
        return bool((dagad.grad(form)(thetas[number % 20]) == expected[number % 20]).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(rounds(1000))))
    assert is_stock()


@pytest.mark.parametrize("form", FORMS)
def test_nested_derivatives_are_right_in_chunks_on_threads(
    form: Callable[[Any], Any], rounds: Callable[[int], int]
) -> None:
    rows = RNG.standard_normal((rounds(100), 3, WIDTH))

    def total(rows: Any, shift: Any) -> Any:
        return sum([form(row + shift) for row in rows])

    expected, slope = autograd.value_and_grad(partial(total, rows))(0.1)
    with ThreadPoolExecutor(8) as pool:
        loss = partial(dagad.reduce_sum, total, rows, grainsize=1, scheduler=pool)
        for _ in range(3):
            value, gradient = dagad.value_and_grad(loss)(0.1)
            assert value == pytest.approx(expected, rel=1e-12)
            assert gradient == pytest.approx(slope, rel=1e-12)
        slopes = partial(dagad.reduce_sum, lambda rows: sum([grad(form)(row) for row in rows]), rows, grainsize=1)
        for _ in range(3):  # only values are asked for: what the chunks differentiate is their own affair
            assert onp.allclose(slopes(scheduler=pool), sum(grad(form)(row) for row in rows), rtol=1e-12)
    assert is_stock()


def test_derivatives_of_others_are_right_while_dagad_comes_and_goes(rounds: Callable[[int], int]) -> None:
    """One thread uses autograd alone, which that is safe with; the others enter and leave as fast as they can."""
    stop, counts = threading.Event(), [0, 0, 0]

    def come_and_go(number: int) -> None:
        while not stop.is_set():
            with patches:
                counts[number] += 1
            dagad.grad(lambda x: x * grad(lambda y: x * y * y)(2.0))(3.0)

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    kept = [1.0]
    wrong = 0

    def body(x: Any) -> Any:
        warm = kept[-1]
        kept[:] = [x * 1.0]
        return (
            x * grad(lambda y: x * y * y)(2.0) * grad(lambda z: z * x * grad(lambda y: z * y)(1.0))(1.0) / x + 0 * warm
        )

    try:
        for _ in range(rounds(1500)):
            wrong += float(grad(body)(3.0)) != 48.0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == 0
    assert min(counts) > 0
    assert is_stock()


@pytest.mark.parametrize("outer", ["autograd", "dagad"])
def test_a_derivative_is_right_when_dagad_is_first_imported_inside_one(outer: str) -> None:
    code = f"""
import autograd, autograd.numpy as np
data = np.linspace(0., 1., 8)
def f(x):
    import dagad
    cost = lambda y: dagad.reduce_sum(lambda r, y, x: np.sum(r*x**2*y**3), data, y, x, grainsize=2, scheduler="sync")
    return dagad.grad(cost)(x) + autograd.grad(cost)(x)
if {outer!r} == "dagad":
    import dagad
import {outer}
print({outer}.grad(f)(0.7))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(2 * 12 * 4.0 * 0.7**3 * 1.0)
    assert not done.stderr


def test_third_parties_that_hold_the_trace_stack_are_right() -> None:
    code = """
import autograd.numpy as np
from autograd.core import VJPNode, backward_pass
from autograd.tracer import isbox, new_box, trace_stack
import autograd, dagad
data = np.linspace(0., 1., 8)
def their_grad(fun):
    def gradient(x):
        root = VJPNode.new_root()
        with trace_stack.new_trace() as number:
            end = fun(new_box(x, number, root))
            assert isbox(end) and end._trace == number
        return backward_pass(1.0, end._node)
    return gradient
def f(x):
    chunk = lambda r, y, x: np.sum(r * x**2 * y**3)
    return their_grad(lambda y: dagad.reduce_sum(chunk, data, y, x, grainsize=2, scheduler="sync"))(x)
print(autograd.grad(f)(0.7), dagad.grad(f)(0.7), their_grad(f)(0.7))
print(dagad.grad(lambda t: autograd.grad(lambda s: their_grad(lambda u: s * u * t)(2.0) * t)(1.0))(3.0))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert [float(part) for part in first.split()] == pytest.approx([12 * 4.0 * 0.7**3 * 1.0] * 3)
    assert float(second) == 6.0
