"""Functions that remember: is what one run kept never a constant for the next, which a gradient records?"""

from __future__ import annotations

import array
import contextlib
import fractions
import functools
import queue
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import autograd.numpy as np
import numpy as onp
import pytest

import dagad
from dagad.extend import Keep, Recompute, explicit
from support.carrying import state as carried_state

ROWS = onp.linspace(-1.0, 2.0, 8)
CACHE: dict[str, Any] = {}
KEPT: Any = None


def in_a_dict() -> Any:
    cache: dict[str, Any] = {}
    return lambda rows, t: np.sum(rows * cache.setdefault("t", t**2))


def in_a_list() -> Any:
    cache: list[Any] = []

    def chunk(rows: Any, t: Any) -> Any:
        cache.append({"t": t**2})
        return np.sum(rows * cache[0]["t"])

    return chunk


def in_a_variable() -> Any:
    kept: Any = None

    def chunk(rows: Any, t: Any) -> Any:
        nonlocal kept
        kept = t**2 if kept is None else kept
        return np.sum(rows * kept)

    return chunk


def in_an_attribute() -> Any:
    record = types.SimpleNamespace(kept=None)

    def chunk(rows: Any, t: Any) -> Any:
        record.kept = t**2 if record.kept is None else record.kept
        return np.sum(rows * record.kept)

    return chunk


def in_itself() -> Any:
    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(rows * vars(chunk).setdefault("kept", t**2))

    return chunk


def in_a_global() -> Any:
    globals()["KEPT"] = None

    def chunk(rows: Any, t: Any) -> Any:
        global KEPT
        KEPT = t**2 if KEPT is None else KEPT
        return np.sum(rows * KEPT)

    return chunk


def in_a_global_dict() -> Any:
    CACHE.clear()
    return lambda rows, t: np.sum(rows * CACHE.setdefault("t", t**2))


def in_a_module() -> Any:
    carried_state.record.value = None

    def chunk(rows: Any, t: Any) -> Any:
        record = carried_state.record
        record.value = t**2 if record.value is None else record.value
        return np.sum(rows * record.value)

    return chunk


def in_a_class() -> Any:
    carried_state.Settings.value = None

    def chunk(rows: Any, t: Any) -> Any:
        settings = carried_state.Settings
        settings.value = t**2 if settings.value is None else settings.value
        return np.sum(rows * settings.value)

    return chunk


def in_memory(buffer: Any) -> Any:
    record = types.SimpleNamespace(buffer=buffer)

    def chunk(rows: Any, t: Any) -> Any:
        if record.buffer[-1] == 0.0:
            record.buffer[-1] = t**2
        return np.sum(rows * record.buffer[-1])

    return chunk


def in_an_array() -> Any:
    return in_memory(onp.zeros(1))


def in_a_long_array() -> Any:
    return in_memory(onp.zeros(100_000)[::2])


def in_a_buffer() -> Any:
    return in_memory(array.array("d", [0.0]))


def in_a_view_of_memory() -> Any:
    return in_memory(memoryview(bytearray(8)).cast("d"))


def in_a_variable_of_the_thread() -> Any:
    local = threading.local()

    def chunk(rows: Any, t: Any) -> Any:
        local.kept = getattr(local, "kept", t**2)
        return np.sum(rows * local.kept)

    return chunk


def in_a_queue() -> Any:
    waiting: queue.Queue[Any] = queue.Queue()

    def chunk(rows: Any, t: Any) -> Any:
        if waiting.empty():
            waiting.put(t**2)
        return np.sum(rows * waiting.queue[0])

    return chunk


def deep_down() -> Any:
    cache: dict[str, Any] = {}
    return lambda rows, t: np.sum(rows * cache.setdefault("t", [[[({"t": [t**2]},)]]])[0][0][0][0]["t"][0])


def as_a_fraction() -> Any:
    cache: dict[str, Any] = {}

    def chunk(rows: Any, t: Any) -> Any:
        if not cache:
            cache["t"] = fractions.Fraction(float(t) ** 2)
        return np.sum(rows * float(cache["t"]))

    return chunk


ELSEWHERE = [in_a_variable_of_the_thread, in_a_queue, deep_down, as_a_fraction]
REFUSERS = [in_a_dict, in_a_list, in_a_variable, in_an_attribute, in_itself]
IN_MEMORY = [in_an_array, in_a_long_array, in_a_buffer, in_a_view_of_memory]
BY_NAME = [in_a_global, in_a_global_dict, in_a_module, in_a_class]


@pytest.fixture(autouse=True)
def _clean() -> Any:
    yield
    carried_state.reset()


def gradients(chunk: Any, data: Any, policy: Any, **options: Any) -> list[Callable[[], Any]]:
    def loss(t: Any) -> Any:
        return dagad.reduce_sum(chunk, data, t, policy=policy, **options)

    return [
        lambda: dagad.grad(loss)(1.5),
        lambda: dagad.vjp(loss, 1.5)[1](1.0)[0],
        lambda: dagad.jacrev(loss)(1.5),
        lambda: dagad.hessian(loss)(1.5) * 1.5,
    ]


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("keeper", REFUSERS + BY_NAME + IN_MEMORY + ELSEWHERE)
@pytest.mark.parametrize("place", ["sync", "threads"])
def test_a_traced_value_that_a_chunk_function_kept_is_refused_in_a_later_run(keeper: Any, place: str) -> None:
    for number in range(4):
        chunk = keeper()
        # What can't hold a traced value says so itself, in that chunk.
        with pytest.raises((dagad.ClosureError, ValueError, TypeError)) as caught:
            gradients(chunk, ROWS, Recompute(), grainsize=8, scheduler=place)[number]()
        told = "shared argument" if isinstance(caught.value, dagad.ClosureError) else "value of chunk"
        assert told in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


def test_a_gradient_by_residents_is_refused_or_right(cluster: Any) -> None:
    """A pullback that is refused there is run as a job of its own, of a copy of the function that has kept nothing."""
    shards = dagad.shard(ROWS, grainsize=4, scheduler=cluster)
    for keeper in REFUSERS:
        for _ in range(3):
            with contextlib.suppress(dagad.ClosureError):
                assert gradients(keeper(), shards, Recompute())[1]() == pytest.approx(3.0 * ROWS.sum())


def test_a_chunk_function_may_keep_counts_and_words() -> None:
    seen: list[Any] = []

    def chunk(rows: Any, t: Any) -> Any:
        seen.append((len(rows), ["text", None]))
        return np.sum(rows * t**2)

    for gradient in gradients(chunk, ROWS, Recompute(), grainsize=4, scheduler="threads"):
        assert gradient() == pytest.approx(3.0 * ROWS.sum())
    assert len(seen) >= 4 * 4


LOG: list[Any] = []


@pytest.fixture(autouse=True)
def _log_is_empty() -> Iterator[None]:
    yield
    LOG.clear()


def test_a_chunk_function_may_write_a_log_that_it_does_not_read() -> None:
    seen: list[Any] = []

    def chunk(rows: Any, t: Any) -> Any:
        seen.append(rows[0])
        LOG.append(float(rows[-1]))
        return np.sum(rows * t**2)

    for gradient in gradients(chunk, ROWS, Recompute(), grainsize=4, scheduler="threads"):
        assert gradient() == pytest.approx(3.0 * ROWS.sum())
    assert len(seen) == len(LOG) >= 4 * 4


def test_a_chunk_function_that_reads_its_log_is_refused() -> None:
    seen: list[Any] = []

    def chunk(rows: Any, t: Any) -> Any:
        seen.append(t**2)
        return np.sum(rows * seen[0])

    with pytest.raises(dagad.ClosureError, match="shared argument"):
        gradients(chunk, ROWS, Recompute(), grainsize=8, scheduler="sync")[0]()


def read_from_a_module() -> Any:
    module = types.ModuleType("log_of_a_module")
    exec("LOG = []\ndef put(value):\n    LOG.append(value)\n", vars(module))

    def chunk(rows: Any, t: Any) -> Any:
        module.put(t**2)
        return np.sum(rows * module.LOG[0])

    return chunk


def read_by_a_string() -> Any:
    def chunk(rows: Any, t: Any) -> Any:
        LOG.append(t**2)
        return np.sum(rows * globals()["LOG"][0])

    return chunk


@pytest.mark.parametrize("reader", [read_from_a_module, read_by_a_string])
def test_a_chunk_function_that_reads_its_log_under_another_name_is_refused(reader: Any) -> None:
    with pytest.raises(dagad.ClosureError, match="shared argument"):
        gradients(reader(), ROWS, Recompute(), grainsize=8, scheduler="sync")[0]()


HOLDERS: dict[str, Any] = {
    "a record": lambda seen: types.SimpleNamespace(seen=seen),
    "a tuple": lambda seen: (seen,),
    "a partial": lambda seen: functools.partial(list, seen),
    "a method": lambda seen: seen.copy,
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize("place", ["sync", "threads"])
def test_a_chunk_function_that_reads_its_log_by_another_holder_is_refused(holder: Any, place: str) -> None:
    """Held by a tuple, a partial or a method of its own, it was taken for a log: the gradient was 0 without a word."""
    seen: list[Any] = []
    held = holder(seen)

    def chunk(rows: Any, t: Any) -> Any:
        seen.append(t**2)
        again = held[0] if isinstance(held, tuple) else held() if callable(held) else held.seen
        return np.sum(rows * again[0])

    with pytest.raises(dagad.ClosureError, match="shared argument"):
        gradients(chunk, ROWS, Recompute(), grainsize=8, scheduler=place)[0]()


def test_an_explicit_function_can_remember() -> None:
    cache: dict[str, Any] = {}

    @explicit
    def chunk(rows: Any, t: Any) -> Any:
        square = cache.setdefault("t", t**2)
        return np.sum(rows) * square, lambda seed: (None, seed * np.sum(rows) * 2.0 * t)

    for gradient in gradients(chunk, ROWS, Recompute(), grainsize=4, scheduler="sync")[:2]:
        assert gradient() == pytest.approx(3.0 * ROWS.sum())


def test_one_chunk_can_keep_what_it_records() -> None:
    assert gradients(in_a_dict(), ROWS, Keep(), grainsize=8, scheduler="sync")[0]() == pytest.approx(3.0 * ROWS.sum())
