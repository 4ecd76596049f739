"""Portability: does what is pickled by value keep its derivative, its dtype and its bits, or say what is amiss?"""

from __future__ import annotations

import collections
import functools
import gc
import json
import pickle
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import autograd
import autograd.numpy as np
import autograd.numpy.linalg
import autograd.scipy.special
import cloudpickle
import numpy as onp
import optree
import pytest
from autograd import core, tracer
from autograd.extend import defjvp, defvjp, primitive

import dagad
from dagad._tracing import primitives as arrived_primitives
from dagad._values.shipping import PYTHON, Parcel, pack
from support.waiting import PATIENCE

X = onp.linspace(-1.0, 1.0, 24).reshape(12, 2)


def plain_cube(x: Any) -> Any:
    return x**3


plain_cube.__name__ = "cube"
cube: Any = primitive(plain_cube)
defvjp(cube, lambda ans, x: lambda g: 3 * x**2 * g)


def travelled(obj: Any) -> Any:
    """Return what arrives when an object is packed, sent as Dask sends it, and opened."""
    buffers: list[pickle.PickleBuffer] = []
    sent = pickle.dumps(pack(obj), protocol=5, buffer_callback=buffers.append)
    return pickle.loads(sent, buffers=[bytes(buffer.raw()) for buffer in buffers]).open()


# --- primitives -------------------------------------------------------------------------------------------------------


def test_a_primitive_of_a_module_is_pickled_by_reference() -> None:
    known = [
        np.tanh,
        np.linalg.norm,
        np.where,
        np.fft.fft,
        autograd.scipy.special.gammaln,
        cube,
        autograd.numpy.linalg.det,
    ]
    for each in known:
        assert travelled(each) is each
    assert travelled({"f": [np.exp], "p": functools.partial(np.sum, axis=0)})["f"][0] is np.exp


def test_a_primitive_of_this_process_keeps_its_rule_when_it_comes_back() -> None:
    local: Any = primitive(lambda x: x**2)
    defvjp(local, lambda ans, x: lambda g: 2 * x * g)
    arrived = travelled(lambda x: local(x) * 3.0)
    assert float(autograd.grad(arrived)(2.0)) == 12.0
    assert float(autograd.grad(travelled(functools.partial(local)))(2.0)) == 4.0


@functools.wraps(np.sin)
def doubled(x: Any) -> Any:
    return 2.0 * np.sin(x)


@functools.wraps(cube)
def halved(x: Any) -> Any:
    return 0.5 * cube(x)


@pytest.mark.parametrize(("fun", "slope"), [(doubled, 2.0 * onp.cos(0.5)), (halved, 1.5 * 0.25)])
def test_a_decorated_primitive_keeps_its_value_and_slope_on_every_scheduler(
    fun: Any, slope: float, scheduler: Any
) -> None:
    """A decorator copies the marks of what it decorates. On a cluster it was the primitive alone: half the value."""

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(lambda rows: np.sum(fun(rows * t)), onp.ones(1), scheduler=scheduler)

    assert float(loss(0.5)) == pytest.approx(float(fun(0.5)), rel=1e-15)
    assert dagad.grad(loss)(0.5) == pytest.approx(slope, rel=1e-14)


SCRIPT = """
import functools, json, multiprocessing
import autograd.numpy as anp
import dask
import numpy as np
from autograd import grad
from autograd.extend import defjvp, defvjp, primitive
from autograd.numpy import dot, exp, sum, tanh
from autograd.numpy.linalg import norm
from distributed import Client, LocalCluster
import dagad


@primitive
def softplus(x, beta):
    return np.log1p(np.exp(beta * x)) / beta


@primitive
def half(x):
    return x / 2


def slope(ans, x, beta):
    return lambda g: g * anp.exp(beta * x) / (1 + anp.exp(beta * x)) + 0 * softplus(x, beta)  # it mentions itself


defvjp(softplus, slope, None)
defvjp(half, lambda ans, x: lambda g: half(g))


def imported(rows, theta):
    return sum(tanh(dot(rows, theta)) ** 2) + norm(rows * theta)


def own(rows, theta):
    return anp.sum(softplus(dot(rows, theta), 2.0)) + half(exp(theta[0]))


class Own:
    def __init__(self, f):
        self.f = {"f": f}

    def __call__(self, rows, theta):
        return anp.sum(self.f["f"](dot(rows, theta)))


def main(where):
    x, theta = np.linspace(-1, 1, 24).reshape(12, 2), np.array([0.3, -0.8])
    results = {}
    for name, f in {"imported": imported, "own": own, "carried": Own(half)}.items():
        whole = grad(lambda t: sum(anp.array([f(x[i:i + 5], t) for i in range(0, 12, 5)])))(theta)
        for _ in range(2):
            found = dagad.grad(lambda t: dagad.reduce_sum(f, x, t, grainsize=5, scheduler=where))(theta)
            results[name] = float(np.max(np.abs(found - whole)))
        single = dagad.grad(lambda t: dagad.map_sum(f, x, t, grainsize=5, scheduler=where))(theta)
        local = dagad.grad(lambda t: dagad.map_sum(f, x, t, grainsize=5, scheduler="sync"))(theta)
        results[name + " by items"] = float(np.max(np.abs(single - local)))
    loss = functools.partial(dagad.reduce_sum, own, x, grainsize=12, scheduler=where)
    second = dagad.grad(lambda t: anp.sum(dagad.grad(loss)(t)))(theta)
    results["second"] = float(np.max(np.abs(second - grad(lambda t: anp.sum(grad(own, 1)(x, t)))(theta))))
    print(json.dumps(results))


if __name__ == "__main__":
    # Each graph has a pool of its own: its process is forked off one that knows only what is installed.
    multiprocessing.set_forkserver_preload(["dagad", "dask.multiprocessing"])
    with dask.config.set({"num_workers": 1, "multiprocessing.context": "forkserver"}):
        main("processes")
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster:
        with Client(cluster) as client:
            main(client)
"""


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_primitives_of_the_main_program_keep_their_derivative_on_workers(tmp_path: Path) -> None:
    script = tmp_path / "main_program.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=2 * PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 2
    for line in done.stdout.splitlines():  # of processes of Dask's, and of a cluster
        results = json.loads(line)
        assert len(results) == 7
        assert max(results.values()) < 1e-13


# --- arrays -----------------------------------------------------------------------------------------------------------

ARRAYS = {
    "float64": X,
    "fortran": onp.asfortranarray(X),
    "strided": X[::2, ::-1],
    "transposed": onp.arange(24.0).reshape(2, 3, 4).transpose(1, 0, 2),
    "broadcast": onp.broadcast_to(onp.float64(2.0), (3, 2)),
    "float32": X.astype("f4"),
    "float16": X.astype("f2"),
    "longdouble": X.astype(onp.longdouble),
    "complex": X + 1j,
    "int8": onp.arange(5, dtype="i1"),
    "bool": X > 0,
    "text": onp.array(["a", "bcd"]),
    "bytes": onp.array([b"a", b"bcd"]),
    "times": onp.array(["2026-01-01", "NaT"], dtype="M8[s]"),
    "durations": onp.array([1, 2], dtype="m8[ms]"),
    "swapped": X.astype(">f8"),
    "record": onp.array([(1, 2.0), (3, 4.0)], dtype=[("n", "i4"), ("x", "f8")]),
    "objects": onp.array([{"a": 1}, None], dtype=object),
    "empty": onp.zeros((0, 3)),
    "empty fortran": onp.zeros((3, 0), order="F"),
    "no dimension": onp.array(1.5),
    "one column": onp.asfortranarray(X)[:, :1],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_arrives_as_it_was(name: str) -> None:
    array = ARRAYS[name]
    arrived = travelled({"a": [array]})["a"][0]
    assert type(arrived) is onp.ndarray
    assert arrived.dtype == array.dtype
    assert arrived.shape == array.shape
    assert arrived.tolist() == array.tolist() or name == "times"
    assert arrived.flags.f_contiguous == array.flags.f_contiguous or not array.flags.contiguous


@pytest.mark.parametrize(
    "name", ["float64", "fortran", "strided", "float32", "complex", "int8", "bool", "no dimension"]
)
def test_an_array_arrives_aligned_read_only_and_with_its_own_dtype(name: str) -> None:
    for shift in range(9):
        buffers: list[pickle.PickleBuffer] = []
        sent = pickle.dumps(pack(ARRAYS[name]), protocol=5, buffer_callback=buffers.append)
        moved = [memoryview(b" " * shift + bytes(buffer.raw()))[shift:] for buffer in buffers]
        arrived = pickle.loads(sent, buffers=moved).open()
        assert arrived.dtype is onp.dtype(arrived.dtype.char)
        assert arrived.flags.aligned
        assert not arrived.flags.writeable


def test_a_subclass_of_array_keeps_its_class_when_pickled() -> None:
    masked = onp.ma.masked_array([1.0, 2.0], [True, False])
    assert travelled([masked])[0].mask.tolist() == [True, False]
    assert travelled([ARRAYS["record"].view(onp.recarray)])[0].x.tolist() == [2.0, 4.0]


class Scaled(dict[str, float]):
    """Doubles what is put in."""

    def __setitem__(self, key: str, value: float) -> None:
        super().__setitem__(key, 2.0 * value)


class Shifted(list[float]):
    """Adds one to what is put in; knows how often that was."""

    n_appended = 0

    def append(self, value: float) -> None:
        self.n_appended += 1
        super().append(value + 1.0)

    def extend(self, values: Any) -> None:
        for value in values:
            self.append(value)


class Totals(collections.OrderedDict[str, float]):
    def __setitem__(self, key: str, value: float) -> None:
        super().__setitem__(key, self.get(key, 0.0) + value)


class Halves(collections.deque[float]):
    def extend(self, values: Any) -> None:
        super().extend(value / 2.0 for value in values)


class Percent(float):
    def __new__(cls, value: float) -> Any:
        return super().__new__(cls, value / 100.0)


class Dozens(int):
    def __new__(cls, value: int) -> Any:
        return super().__new__(cls, 12 * value)


class Loud(str):
    __slots__ = ("said",)

    def __new__(cls, value: str) -> Any:
        return super().__new__(cls, f"{value}!")


class Doubled(tuple[float, ...]):
    def __new__(cls, values: Any) -> Any:
        return super().__new__(cls, [2.0 * value for value in values])


class Negated(set[float]):
    def __init__(self, values: Any) -> None:
        super().__init__(-value for value in values)


class FrozenNegated(frozenset[float]):
    def __new__(cls, values: Any) -> Any:
        return super().__new__(cls, [-value for value in values])


HELD: dict[Any, Any] = {
    Percent: 5.0,
    Dozens: 2,
    Loud: "here",
    Doubled: [1.0, 2.0],
    Negated: [1.0, 2.0],
    FrozenNegated: [1.0, 2.0],
}


def filled(cls: Any) -> Any:
    if cls in HELD:
        of_value = cls(HELD[cls])
        of_value.said = ["here"]
        return of_value
    made: Any = cls() if cls is not Halves else cls(maxlen=3)
    if isinstance(made, dict):
        made["b"], made["a"] = 1.0, 2.0
    else:
        made.extend([3.0, 4.0])
    made.said = ["here"]
    return made


@pytest.mark.parametrize("cls", HELD)
def test_a_value_whose_class_makes_another_of_what_it_is_given_arrives_as_it_was(cls: Any) -> None:
    sent = filled(cls)
    keyed = {} if cls is Negated else {sent: 1.0}
    for arrived in (travelled({"held": sent})["held"], *travelled(keyed)):
        assert type(arrived) is cls
        assert arrived == sent
        assert arrived.said == ["here"]


@pytest.mark.parametrize("cls", [Scaled, Shifted, Totals, Halves])
def test_a_container_that_changes_what_is_put_in_arrives_as_it_was(cls: Any, cluster: Any) -> None:
    sent = filled(cls)
    arrived = travelled({"held": sent})["held"]
    assert type(arrived) is cls
    assert arrived == sent
    assert vars(arrived) == vars(sent)
    assert getattr(arrived, "maxlen", None) == getattr(sent, "maxlen", None)
    numbers = list(sent.values()) if isinstance(sent, dict) else list(sent)

    def chunk(rows: Any, theta: Any) -> Any:
        held = list(sent.values()) if isinstance(sent, dict) else list(sent)
        return np.sum(rows) * theta * sum(number * 10.0**place for place, number in enumerate(held))

    expected = sum(number * 10.0**place for place, number in enumerate(numbers)) * X.sum()
    for scheduler in ("sync", cluster):
        assert dagad.grad(lambda t, s=scheduler: dagad.reduce_sum(chunk, X, t, scheduler=s))(1.5) == pytest.approx(
            expected
        )


def test_a_container_with_a_word_of_its_own_on_pickling_is_heard() -> None:
    class Reduced(Scaled):
        def __reduce__(self) -> Any:
            return dict, ({"all": sum(self.values())},)

    assert travelled(filled(Reduced)) == {"all": 6.0}


def test_a_container_that_holds_itself_and_changes_what_is_put_in_arrives() -> None:
    sent: Any = Scaled(own=1.0)
    dict.__setitem__(sent, "self", sent)
    arrived = travelled(sent)
    assert arrived["self"] is arrived
    assert arrived["own"] == 1.0


# --- what can't travel ------------------------------------------------------------------------------------------------


def test_a_ufunc_is_pickled_by_the_name_of_a_module_that_everybody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    ufunc = onp.frompyfunc(abs, 1, 1)
    name = ufunc.__name__
    for module in (
        "__mp_main__",
        "has_a_ufunc",
    ):  # as after multiprocessing, then scipy are imported
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
        setattr(sys.modules[module], name, ufunc)
    parcel = pickle.loads(pickle.dumps(pack((ufunc, onp.exp))))
    delattr(sys.modules["__mp_main__"], name)  # another process runs another script
    assert parcel.open() == (ufunc, onp.exp)


def test_a_chunk_function_that_cannot_be_pickled_is_refused_with_part_and_remedy(cluster: Any) -> None:
    lock = threading.Lock()

    def chunk(rows: Any, t: Any) -> Any:
        with lock:
            return np.sum(rows) * t

    for call in (
        functools.partial(dagad.reduce_sum, chunk, X),
        dagad.grad(functools.partial(dagad.reduce_sum, chunk, X)),
    ):
        with pytest.raises(dagad.PortabilityError, match=r"lock.*scheduler=\"threads\""):
            call(1.0, scheduler=cluster)
    assert dagad.reduce_sum(chunk, X, 1.0, scheduler="threads") == pytest.approx(X.sum())


def test_a_traced_value_does_not_travel() -> None:
    def try_to_send(x: Any) -> Any:
        with pytest.raises(dagad.ClosureError, match="shared argument"):
            pack(lambda: x)
        with pytest.raises(dagad.ClosureError, match="shared argument"):
            pack({"a": [x]})
        return x

    autograd.grad(try_to_send)(1.0)
    autograd.grad(lambda x: np.sum(try_to_send(x)))(onp.ones(2))
    autograd.grad(lambda x: try_to_send(x)["a"])({"a": 1.0})


def test_a_parcel_that_cannot_be_opened_says_what_is_missing() -> None:
    parcel = Parcel((b"cnot_installed_here\nthing\n.",), PYTHON)
    again = pickle.loads(pickle.dumps(parcel))
    for each in (parcel, again):
        with pytest.raises(
            dagad.PortabilityError, match=r"No module named 'not_installed_here'.*every worker.*upload_file"
        ):
            each.open()


def test_bytecode_of_another_python_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagad._values.shipping.PYTHON", "2.7")
    sent = pickle.dumps(pack(lambda: X))
    monkeypatch.undo()
    for again in (pickle.loads(sent), pickle.loads(pickle.dumps(pickle.loads(sent)))):  # as it came, and as it moved on
        with pytest.raises(
            dagad.PortabilityError, match=r"by Python 2\.7, and this is .*Start workers of the client's"
        ):
            again.open()


def test_a_parcel_is_opened_once_and_as_big_as_it_says() -> None:
    parcel = pickle.loads(pickle.dumps(pack([X, "text"])))
    assert parcel.open() is parcel.open()
    assert X.nbytes < sys.getsizeof(parcel) < X.nbytes + 2000
    assert pickle.loads(pickle.dumps(pack([X]), protocol=4)).open()[0].tolist() == X.tolist()


def test_data_of_another_process_is_not_copied_into_the_head() -> None:
    big = onp.zeros(100_000)
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(pack({"a": big, "b": lambda: big}), protocol=5, buffer_callback=buffers.append)
    assert len(head) < 5000
    assert sum(memoryview(buffer).nbytes for buffer in buffers) < 1.5 * big.nbytes


class Line:
    def __init__(self, slope: Any) -> None:
        self.slope = slope


Line.__module__, Line.__qualname__ = "__main__", "Line"  # as in a script or a notebook
REGISTER: Any = optree.register_pytree_node
REGISTER(Line, lambda line: ((line.slope,), None), lambda _, slopes: Line(*slopes), namespace="dagad")


def slope_times(line: Any, x: Any) -> Any:
    return line.slope * x


def test_a_record_of_a_script_brings_its_registration(scheduler: Any) -> None:
    def total(lines: Any) -> Any:
        return dagad.map_sum(slope_times, lines, 2.0, grainsize=1, scheduler=scheduler)

    gradient = dagad.grad(total)([Line(1.0), Line(3.0)])
    assert [float(line.slope) for line in gradient] == [2.0, 2.0]


OPENED_ELSEWHERE = """
import pickle, sys
from dagad._values import pytree
print(pytree.flatten(pickle.loads(sys.stdin.buffer.read()).open())[0])
"""


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_record_of_a_module_that_goes_by_value_brings_its_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("notebook_helpers")
    exec("class Slope:\n    def __init__(self, value):\n        self.value = value\n", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    REGISTER(module.Slope, lambda slope: ((slope.value,), None), lambda _, own: module.Slope(*own), namespace="dagad")
    cloudpickle.register_pickle_by_value(module)
    try:
        sent = pickle.dumps(pack(module.Slope(1.5)))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    done = subprocess.run([sys.executable, "-c", OPENED_ELSEWHERE], input=sent, capture_output=True, check=True)
    assert done.stdout.strip() == b"[1.5]"


# --- primitives that arrive -------------------------------------------------------------------------------------------


def sent_by_another_process(slope: float) -> bytes:
    """Return a function of a primitive pickled, and forget the primitive: as if it had never been here."""
    local: Any = primitive(lambda x: slope * x**2)
    defvjp(local, lambda ans, x: lambda g: 2 * slope * g * x + 0.0 * local(x))  # a rule mentions its primitive
    defjvp(local, lambda g, ans, x: 2 * slope * g * x)
    payload = pickle.dumps(pack([local, lambda x: local(x)]))
    for table in (core.primitive_vjps, core.primitive_jvps):
        del table[local]
    tracer.trace_primitives_map.pop(local.fun, None)
    return payload


def tables() -> tuple[int, ...]:
    gc.collect()
    held = core.primitive_vjps, core.primitive_jvps, tracer.trace_primitives_map, arrived_primitives._PRIMITIVES
    return tuple(map(len, held))


def test_a_primitive_that_arrives_twice_is_one_and_freed_when_nobody_uses_it() -> None:
    dagad.jvp(np.sin, (1.5,), (1.0,))  # what dagad enters in these tables itself, once
    before = tables()
    for slope in (1.0, 2.0, 3.0):  # a function that makes a primitive is called again and again
        payload = sent_by_another_process(slope)
        assert tables() == before
        arrived, fun = pickle.loads(payload).open()
        again, _ = pickle.loads(payload).open()
        assert again is arrived
        assert [now - then for now, then in zip(tables(), before, strict=True)] == [1, 1, 0, 1]
        assert autograd.grad(fun)(1.5) == 3.0 * slope
        assert autograd.make_jvp(fun)(1.5)(1.0) == (2.25 * slope, 3.0 * slope)
        assert dagad.jvp(fun, (1.5,), (1.0,)) == (2.25 * slope, 3.0 * slope)
        onward = pickle.dumps(pack(fun))  # from worker to worker
        assert autograd.grad(pickle.loads(onward).open())(1.5) == 3.0 * slope
        del arrived, again, fun, _
        assert tables() == before
        there = pickle.loads(onward).open()
        assert autograd.grad(there)(1.5) == 3.0 * slope
        del there
    assert tables() == before


def test_an_arrived_primitive_can_be_given_another_rule() -> None:
    arrived, fun = pickle.loads(sent_by_another_process(1.0)).open()
    defvjp(arrived, lambda ans, x: lambda g: 7.0 * g)
    try:
        assert autograd.grad(fun)(1.5) == 7.0
        assert arrived_primitives.rules_of(arrived)[1] is core.primitive_vjps[arrived]
    finally:
        del core.primitive_vjps[arrived]
