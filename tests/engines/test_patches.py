"""Patches: is autograd what it was before and after, and is nobody's derivative wrong while dagad comes and goes?"""

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
from autograd import core, grad, tracer
from autograd.builtins import dict as traced_dict, list as traced_list, tuple as traced_tuple
from autograd.extend import defvjp
from autograd.numpy import numpy_vjps, numpy_wrapper
from autograd.numpy.numpy_boxes import ArrayBox
from autograd.scipy.integrate import odeint
from hypothesis import given, settings, strategies as st

import dagad
from dagad._engines.autograd import patches as changes
from dagad._engines.autograd.patches import patches

RNG = onp.random.default_rng(3)
DATA = onp.linspace(0.0, 1.0, 8)

# --- nothing at import, and nothing afterwards ------------------------------------------------------------------------

SNAPSHOT = """
import gc, random, signal, sys, warnings
import autograd, autograd.core, autograd.numpy, dask.base, dask.config, dask.delayed, dask.threaded, numpy
from autograd import tracer
if "scipy" in sys.argv: import autograd.scipy.special, autograd.scipy.stats


def inside(obj):
    if isinstance(obj, dict):
        return {key if isinstance(key, str) else id(key): id(value) for key, value in obj.items()}
    return [id(item) for item in obj] if isinstance(obj, list | set | frozenset) else None


def snapshot():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("autograd", "numpy", "dask", "random", "gc"):
            for key, value in list(vars(module).items()):
                found[name, key] = id(value), inside(value), getattr(value, "__code__", None)
                parts = {} if type(value) is type(sys) or "__" in key else getattr(value, "__dict__", {})
                for attribute, held in list(parts.items()):
                    code, defaults = getattr(held, "__code__", None), getattr(held, "__kwdefaults__", None)
                    found[name, key, attribute] = id(held), inside(held), code, defaults
    found["top"] = tracer.trace_stack.top
    found["gc"] = gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()
    found["random"] = random.getstate(), str(numpy.random.get_state())
    found["process"] = list(warnings.filters), [signal.getsignal(number) for number in signal.valid_signals()]
    return found


def differences(before, after):
    ours = {("dask.config", "config"), ("dask.config", "global_config"), ("dask.config", "defaults"),
            ("dask.context", "_globals"), ("dask.utils", "_method_cache")}  # our section, and a cache of Dask's
    return sorted(str(key) for key in before if key not in ours and before[key] != after.get(key))


settings, before = dict(dask.config.config), snapshot()
import dagad, dagad.extend, dagad.testing
assert {key: value for key, value in dask.config.config.items() if key != "dagad"} == settings
assert differences(before, snapshot()) == [], differences(before, snapshot())
"""


@pytest.mark.parametrize("more", [[], ["scipy"]])
def test_to_import_dagad_changes_nothing(more: list[str]) -> None:
    subprocess.run([sys.executable, "-c", SNAPSHOT, *more], check=True)


def state() -> dict[str, Any]:
    """Return what dagad changes while it runs."""
    return {
        "counter": (id(tracer.trace_stack), [key for key in vars(tracer.trace_stack) if key != "top"]),
        "operators": [(f, f.__code__, f.__kwdefaults__) for f in (ArrayBox.__pow__, ArrayBox.__rpow__)],
        "helpers": (numpy_wrapper.metadata, numpy_vjps.unbroadcast),
        "rules": [dict(core.primitive_vjps), dict(core.primitive_jvps)],
    }


STOCK = state()


def is_stock() -> bool:
    now = state()
    rules = now.pop("rules")
    kept = all(new[fun] is rule for new, old in zip(rules, STOCK["rules"], strict=True) for fun, rule in old.items())
    return kept and now == {key: value for key, value in STOCK.items() if key != "rules"} and not patches.depth


def cube(rows: Any, t: Any) -> Any:
    return np.sum(rows) * t**3


def fails(rows: Any, t: Any) -> Any:
    raise KeyError(float(rows[0]))


def test_everything_is_undone_on_leaving(scheduler: Any) -> None:
    loss = partial(dagad.reduce_sum, cube, DATA, grainsize=2, scheduler=scheduler)
    assert loss(2.0) == pytest.approx(32.0)
    assert is_stock()
    assert dagad.grad(loss)(2.0) == pytest.approx(48.0)
    assert autograd.grad(loss)(2.0) == pytest.approx(48.0)
    assert dagad.hessian(loss)(2.0) == pytest.approx(48.0)
    assert dagad.jvp(loss, 2.0, 1.0)[1] == pytest.approx(48.0)
    _, pullback = dagad.vjp(loss, 2.0)
    assert is_stock()
    assert pullback(1.0)[0] == pytest.approx(48.0)
    evaluation = dagad.evaluate(loss, 2.0)
    assert evaluation.value() == pytest.approx(32.0)
    assert evaluation.gradient() == pytest.approx(48.0)
    assert is_stock()


def test_everything_is_undone_after_an_error(scheduler: Any) -> None:
    loss = partial(dagad.reduce_sum, fails, DATA, grainsize=2, scheduler=scheduler)
    for call in (loss, dagad.grad(loss), autograd.grad(loss), partial(dagad.vjp, loss), dagad.grad(dagad.grad(loss))):
        with pytest.raises(KeyError):
            call(2.0)
    evaluation = dagad.evaluate(loss, 2.0)
    with pytest.raises(KeyError):
        evaluation.value()
    assert is_stock()


def seen_in_chunk(rows: Any, t: Any) -> Any:
    assert "new_trace" in vars(tracer.trace_stack)
    assert numpy_vjps.unbroadcast is not changes._unbroadcast
    return np.sum(rows) * t


def worker_state() -> tuple[list[str], int, bool]:
    return (list(vars(tracer.trace_stack)), patches.depth, numpy_vjps.unbroadcast is changes._unbroadcast)


def test_are_patches_in_force_where_chunks_run_and_gone_there_too(scheduler: Any, cluster: Any) -> None:
    loss = partial(dagad.reduce_sum, seen_in_chunk, DATA, grainsize=2, scheduler=scheduler)
    assert loss(2.0) == pytest.approx(8.0)
    assert dagad.grad(loss)(2.0) == pytest.approx(4.0)
    assert set(map(str, cluster.run(worker_state).values())) == {str((["top"], 0, True))}


def test_what_somebody_else_puts_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(*args: Any) -> Any:
        return changes._unbroadcast(*args)

    monkeypatch.setattr(numpy_vjps, "unbroadcast", theirs)  # before
    with patches:
        assert numpy_vjps.unbroadcast is theirs
    assert numpy_vjps.unbroadcast is theirs
    monkeypatch.undo()
    with patches:
        assert numpy_vjps.unbroadcast is changes.unbroadcast
        monkeypatch.setattr(numpy_vjps, "unbroadcast", theirs)  # meanwhile
    assert numpy_vjps.unbroadcast is theirs


OPERATIONS = """
import pickle
import sys
import autograd.numpy as np
import numpy as onp
from autograd import grad, jacobian, make_jvp

if sys.argv[1:]:
    import dagad
    from dagad._engines.autograd.patches import patches

    if sys.argv[1:] == ["held"]:
        patches.__enter__()
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
    np.sqrt(x) / np.cos(x); np.power(x, 2.5); np.square(x); x ** 0.5; x[0] ** 2 * x; 2 ** x[1] * x; x ** -x
    np.real((z * x) ** 2); np.real((z[0] * x[0]) ** 1.5) * x; np.real((1 + 2j) ** x); x ** 2; x ** 3.0 * 0.5 ** x
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


@pytest.mark.parametrize("how", ["imported", "held"])
def test_gives_autograd_the_same_bits_with_dagad_and_without(how: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", OPERATIONS]
    stock, ours = (subprocess.run([*command, *more], capture_output=True, check=True).stdout for more in ([], [how]))
    assert stock == ours


SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(SHAPES, st.integers(0, 3), st.sampled_from(["f8", "f4", "c16"]), st.sampled_from(["f8", "f4", "c16"]), st.data())
def test_do_the_helpers_answer_what_the_originals_do(shape: Any, more: int, kind: str, of: str, data: Any) -> None:
    target = onp.ones(tuple(size if data.draw(st.booleans()) else 1 for size in shape), of)
    target = target if target.shape or data.draw(st.booleans()) else target[()]
    x = onp.ones((2,) * more + shape, kind)
    x = x if x.shape or data.draw(st.booleans()) else x[()]
    with patches:
        assert numpy_wrapper.metadata is changes.metadata
        assert numpy_vjps.unbroadcast is changes.unbroadcast
    assert changes.metadata(target) == numpy_wrapper.metadata(target)
    summed, expected = (f(x, changes._metadata(target)) for f in (changes.unbroadcast, numpy_vjps.unbroadcast))
    assert onp.shape(summed) == onp.shape(expected)
    assert onp.asarray(summed).dtype == onp.asarray(expected).dtype
    assert onp.array_equal(summed, expected)


# --- traces, by dagad and by others, in this thread and in others -----------------------------------------------------


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
def test_is_a_mixed_derivative_right_when_other_threads_leave_their_traces(
    leavers: int, inner: Any, holders: Any
) -> None:
    all_leave = holders(leavers)

    def body(x: Any) -> Any:
        all_leave()
        return x * inner(lambda y: x * y * y)(2.0)

    assert float(dagad.grad(body)(3.0)) == 24.0
    assert is_stock()


@pytest.mark.parametrize("leavers", [0, 1, 2])
def test_is_a_derivative_of_ours_right_inside_one_that_autograd_had_begun(leavers: int, holders: Any) -> None:
    all_leave = holders(leavers)

    def body(x: Any) -> Any:  # autograd's own number; then those before it leave, so that the counter falls below
        all_leave()
        return x * dagad.grad(lambda y: dagad.reduce_sum(lambda r, x, y: np.sum(r) * x * y * y, DATA, x, y))(2.0)

    assert float(grad(body)(3.0)) == pytest.approx(24.0 * DATA.sum())


def test_stay_patches_until_the_last_trace_that_began_in_them_is_over() -> None:
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


def test_is_a_context_that_was_asked_for_in_time_and_entered_too_late_no_harm() -> None:
    with patches:
        late = tracer.trace_stack.new_trace()
    with late as number:
        assert number > -1
        assert float(grad(lambda x: x * grad(lambda y: x * y * y)(2.0))(3.0)) == 24.0
        with tracer.trace_stack.new_trace() as inner:
            assert inner > number
    assert is_stock()


def test_is_a_value_kept_from_a_derivative_that_is_over_a_constant_for_the_next() -> None:
    """A solver that starts where it ended, say, and keeps the traced value; autograd's own counter allows that."""
    kept = [1.0]

    def loss(x: Any) -> Any:
        kept.append(x * 2.0)
        return x * kept[-2]

    with patches:
        assert grad(loss)(3.0) == 1.0
    assert grad(loss)(3.0) == 6.0  # not 0: the number of what was kept must not stand above the new trace's
    assert grad(loss)(3.0) == 6.0


def test_are_numbers_never_handed_out_twice_whoever_asks() -> None:
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


def test_does_an_exception_close_its_trace() -> None:
    def fail(x: Any) -> Any:
        raise KeyError

    for _ in range(5):
        with pytest.raises(KeyError):
            dagad.grad(lambda x: grad(fail)(x))(1.0)
    assert not patches.open
    assert is_stock()


def test_does_a_gradient_that_failed_in_autograd_do_no_harm() -> None:
    def fail(x: Any) -> Any:
        raise KeyError

    for _ in range(3):
        with pytest.raises(KeyError):
            grad(lambda x: grad(fail)(x))(1.0)  # leaves autograd's own counter too high, for ever
    assert float(grad(lambda x: x * dagad.grad(lambda y: x * y * y)(2.0))(3.0)) == 24.0
    assert float(dagad.grad(lambda x: x * grad(lambda y: x * y * y)(2.0))(3.0)) == 24.0
    assert dagad.reduce_sum(cube, DATA, 2.0, grainsize=2) == pytest.approx(32.0)
    assert is_stock()


def test_is_a_derivative_right_whose_traced_value_crosses_into_another_thread() -> None:
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
def test_is_no_nested_derivative_wrong_in_threads(form: Callable[[Any], Any]) -> None:
    thetas = [RNG.standard_normal((3, WIDTH)) for _ in range(20)]
    expected = [grad(form)(theta) for theta in thetas]

    def call(number: int) -> bool:
        return bool((dagad.grad(form)(thetas[number % 20]) == expected[number % 20]).all())

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(call, range(1000))) == 1000
    assert is_stock()


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
        slopes = partial(dagad.reduce_sum, lambda rows: sum([grad(form)(row) for row in rows]), rows, grainsize=1)
        for _ in range(3):  # only values are asked for: what the chunks differentiate is their own affair
            assert onp.allclose(slopes(scheduler=pool), sum(grad(form)(row) for row in rows), rtol=1e-12)
    assert is_stock()


def test_is_no_derivative_of_others_wrong_while_dagad_comes_and_goes() -> None:
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
        for _ in range(1500):
            wrong += float(grad(body)(3.0)) != 48.0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == 0
    assert min(counts) > 0
    assert is_stock()


@pytest.mark.parametrize("outer", ["autograd", "dagad"])
def test_is_a_derivative_right_when_dagad_is_first_imported_inside_one(outer: str) -> None:
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


def test_are_third_parties_right_that_hold_the_trace_stack() -> None:
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


def test_is_an_unknown_autograd_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "trace_stack", object())
    with pytest.raises(dagad.NotDifferentiableError, match=r"traces by object.*Install autograd 1\.9"):
        dagad.grad(lambda x: x)(1.0)
    monkeypatch.undo()
    assert dagad.grad(lambda x: x**2)(1.0) == 2.0
    assert is_stock()


# --- powers -----------------------------------------------------------------------------------------------------------


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


BEYOND = [
    (lambda x: x**2, 1e200),
    (lambda x: 2**x, 2000.0),
    (lambda x: x ** (1 / 3), -8.0),
    (lambda x: (-2) ** x, 0.5),
    (lambda x: (x + 0j) ** 2 + 0 * x, 1e200),
    (lambda x: x**0.5, -1.0),
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::dagad.DagadWarning")  # nan on purpose
@pytest.mark.parametrize(("fun", "x"), BEYOND)
def test_are_powers_of_numbers_inf_and_nan_where_they_are_for_autograd(fun: Any, x: float) -> None:
    expected = autograd.value_and_grad(lambda x: np.real(fun(x)))(x)
    for of in (autograd.value_and_grad, dagad.value_and_grad):
        assert onp.array_equal(of(lambda x: np.real(fun(x)))(x), expected, equal_nan=True)
    value, gradient = dagad.value_and_grad(
        lambda x: dagad.reduce_sum(lambda r, x: np.real(fun(x)) * np.sum(r), onp.ones(1), x, scheduler="sync")
    )(x)
    assert onp.array_equal((value, gradient), expected, equal_nan=True)
    pushed = dagad.jvp(lambda x: np.real(fun(x)), x, 1.0)
    assert onp.array_equal(pushed[0], expected[0], equal_nan=True)


POWERS: dict[str, Callable[[Any, Any], Any]] = {
    "numbers": lambda row, t: row[0] ** 2 + row[1] ** 3 + row[2] ** 1.5 + row[0] ** -1 + t[0] ** 2.7,
    "bases": lambda row, t: 2 ** row[0] + 1.5 ** row[1] + 0.3 ** t[0] + row[0] ** row[1] + t[0] ** row[2],
    "arrays": lambda row, t: np.sum(row**0.5 + row**2 + row**-1 + row**1.5 + 2**row + t**row),
    "complex": lambda row, t: np.real((1 + 2j * row[0]) ** 2 + np.sum((row + 1j) ** 0.5) + (t[0] + 1j) ** row[1]),
}


@pytest.mark.parametrize("name", POWERS)
def test_has_a_chunk_the_same_bits_traced_and_untraced(name: str, scheduler: Any) -> None:
    rows, t = RNG.uniform(0.2, 3.0, (40, 3)), RNG.uniform(0.2, 3.0, 2)[:1]

    def chunk(rows: Any, t: Any) -> Any:
        return sum([POWERS[name](row, t) for row in rows])

    loss = partial(dagad.reduce_sum, chunk, grainsize=10, scheduler=scheduler)
    value = loss(rows, t)
    for argnums in (0, 1, (0, 1)):
        assert dagad.value_and_grad(loss, argnums)(rows, t)[0] == value
    assert dagad.jvp(loss, (rows, t), (rows, t))[0] == value
    scalar = partial(dagad.map_sum, lambda row, t: row**2.7 + 1.3**row + t**row, rows[:, 0].tolist(), scheduler="sync")
    assert dagad.value_and_grad(scalar)(1.7)[0] == scalar(1.7)  # Python's own numbers


def test_counts_a_rule_of_the_users_for_powers(monkeypatch: pytest.MonkeyPatch, scheduler: Any) -> None:
    defined = core.primitive_vjps[np.power]
    try:
        defvjp(np.power, lambda ans, x, y: lambda g: g * 100.0, lambda ans, x, y: lambda g: g * 1000.0)
        assert dagad.grad(lambda x: x**2)(3.0) == 100.0
        assert dagad.grad(lambda x: 2**x)(3.0) == 1000.0
        if scheduler in ("sync", "threads"):
            loss = partial(dagad.reduce_sum, lambda rows, t: np.sum(rows) * t**2, DATA, scheduler=scheduler)
            assert dagad.grad(loss)(3.0) == pytest.approx(400.0)
    finally:
        core.primitive_vjps[np.power] = defined
    assert dagad.grad(lambda x: x**2)(3.0) == 6.0


# --- containers of autograd's own -------------------------------------------------------------------------------------

TIMES, START = onp.linspace(0.0, 1.0, 4), onp.array([1.0, 2.0])


def decay(p: Any, rate: Callable[[Any], Any]) -> Any:
    return np.sum(odeint(lambda y, t, p: -rate(p) * y, START, TIMES, traced_tuple((p,))))


def decay_exactly(rate: Any) -> Any:
    return sum([3.0 * np.exp(-rate * t) for t in TIMES])


@pytest.mark.parametrize("p", [[1.0], (1.0,), onp.array([1.0])])
def test_takes_odeint_its_parameters_in_containers(p: Any, scheduler: Any) -> None:
    expected = grad(decay_exactly)(1.0)
    assert float(dagad.grad(partial(decay, rate=lambda p: p[0]))(p)[0]) == pytest.approx(expected, rel=1e-5)

    def loss(p: Any) -> Any:
        return dagad.map_sum(
            lambda row, p: decay(p, lambda p: p[0]) * row, DATA[:2], p, grainsize=1, scheduler=scheduler
        )

    assert float(dagad.grad(loss)(p)[0]) == pytest.approx(DATA[1] * expected, rel=1e-5)
    assert float(grad(loss)(p)[0]) == pytest.approx(DATA[1] * expected, rel=1e-5)


def test_are_containers_boxed_down_to_their_entries() -> None:
    def fun(p: Any) -> Any:
        made = traced_dict({"a": p, "b": [p["k"][0] * 2.0, 1.0]})
        return made["a"]["k"][0] * made["b"][0] * traced_list((p["s"], 1.0))[0]

    point = {"k": [3.0], "s": 2.0}
    assert dagad.grad(lambda p: decay(p, lambda p: p["k"][0] * p["s"]))(point)["s"] == pytest.approx(
        3.0 * grad(decay_exactly)(6.0), rel=1e-5
    )
    value, gradient = dagad.value_and_grad(fun)(point)
    assert float(value) == 36.0
    assert (float(gradient["k"][0]), float(gradient["s"])) == (24.0, 18.0)
    assert float(dagad.jvp(fun, (point,), ({"k": [1.0], "s": 1.0},))[1]) == 42.0
    with patches:  # nothing of ours in it: as it was
        assert traced_tuple(([1.0], 2.0)) == ([1.0], 2.0)
        assert float(grad(lambda x: traced_tuple((x * 3.0, [1.0]))[0])(1.0)) == 3.0
