"""Patches: is autograd what it was before and after, and does it give the same bits while they are in force?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import pytest
from autograd import grad, tracer
from autograd.builtins import dict as traced_dict, list as traced_list, tuple as traced_tuple
from autograd.numpy import numpy_vjps, numpy_wrapper
from autograd.scipy.integrate import odeint
from hypothesis import given, settings, strategies as st

import dagad
from dagad._tracing import patches as changes
from dagad._tracing.patches import patches
from support.examples import examples
from support.plain_tracers import DATA, cube, is_stock

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


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
@pytest.mark.parametrize("more", [[], ["scipy"]])
def test_to_import_dagad_changes_nothing(more: list[str]) -> None:
    subprocess.run([sys.executable, "-c", SNAPSHOT, *more], check=True)


def fails(rows: Any, t: Any) -> Any:
    raise KeyError(float(rows[0]))


@pytest.mark.sampled(2)
def test_patches_of_autograd_are_undone_after_each_mode(scheduler: Any) -> None:
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


def test_patches_of_autograd_are_undone_after_an_error(scheduler: Any) -> None:
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


@pytest.mark.sampled(4)
def test_patches_are_in_force_where_chunks_run_and_gone_there_too(scheduler: Any, cluster: Any) -> None:
    loss = partial(dagad.reduce_sum, seen_in_chunk, DATA, grainsize=2, scheduler=scheduler)
    assert loss(2.0) == pytest.approx(8.0)
    assert dagad.grad(loss)(2.0) == pytest.approx(4.0)
    assert set(map(str, cluster.run(worker_state).values())) == {str((["top"], 0, True))}


def test_a_patch_of_somebody_else_in_autograd_stays(monkeypatch: pytest.MonkeyPatch) -> None:
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
    from dagad._tracing.patches import patches

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


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
@pytest.mark.parametrize("how", ["imported", "held"])
def test_autograd_gives_the_same_bits_with_dagads_patches_and_without(how: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", OPERATIONS]
    stock, ours = (subprocess.run([*command, *more], capture_output=True, check=True).stdout for more in ([], [how]))
    assert stock == ours


SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(SHAPES, st.integers(0, 3), st.sampled_from(["f8", "f4", "c16"]), st.sampled_from(["f8", "f4", "c16"]), st.data())
def test_patched_helpers_of_autograd_answer_what_the_originals_do(
    shape: Any, more: int, kind: str, of: str, data: Any
) -> None:
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


def test_an_unknown_autograd_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracer, "trace_stack", object())
    with pytest.raises(dagad.NotDifferentiableError, match=r"traces by object.*Install autograd 1\.9"):
        dagad.grad(lambda x: x)(1.0)
    monkeypatch.undo()
    assert dagad.grad(lambda x: x**2)(1.0) == 2.0
    assert is_stock()


# --- containers of autograd's own -------------------------------------------------------------------------------------

TIMES, START = onp.linspace(0.0, 1.0, 4), onp.array([1.0, 2.0])


def decay(p: Any, rate: Callable[[Any], Any]) -> Any:
    return np.sum(odeint(lambda y, t, p: -rate(p) * y, START, TIMES, traced_tuple((p,))))


def decay_exactly(rate: Any) -> Any:
    return sum([3.0 * np.exp(-rate * t) for t in TIMES])


@pytest.mark.sampled(12)
@pytest.mark.parametrize("p", [[1.0], (1.0,), onp.array([1.0])])
def test_odeint_takes_its_parameters_in_containers(p: Any, scheduler: Any) -> None:
    expected = grad(decay_exactly)(1.0)
    assert float(dagad.grad(partial(decay, rate=lambda p: p[0]))(p)[0]) == pytest.approx(expected, rel=1e-5)

    def loss(p: Any) -> Any:
        return dagad.map_sum(
            lambda row, p: decay(p, lambda p: p[0]) * row, DATA[:2], p, grainsize=1, scheduler=scheduler
        )

    assert float(dagad.grad(loss)(p)[0]) == pytest.approx(DATA[1] * expected, rel=1e-5)
    assert float(grad(loss)(p)[0]) == pytest.approx(DATA[1] * expected, rel=1e-5)


def test_containers_are_boxed_down_to_their_entries() -> None:
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
