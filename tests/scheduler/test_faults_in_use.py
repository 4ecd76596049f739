"""Faults of what is run and of who waits: is each told soon, and is the cluster afterwards as good as before?"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client

import dagad
from support.clusters import a_cluster, assert_empty, pids_of
from support.gated_chunks import (
    BOTH,
    THETA,
    TROUBLING,
    Refusal,
    Watch,
    X,
    bits,
    expected,
    first_of,
    loss_on,
    moments,
    outcome,
)
from support.waiting import PATIENCE, SOON, interrupted_when, until

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
    pytest.mark.sampled(3),
]


@pytest.fixture(scope="module")
def _sturdy() -> Iterator[Client]:
    with a_cluster(2) as client:
        yield client


@pytest.fixture
def client(_sturdy: Client) -> Iterator[Client]:
    """A cluster that every test here leaves as it was: it works, and nothing is left on it."""
    yield _sturdy
    assert outcome(loss_on(_sturdy)) == expected()
    assert_empty(_sturdy)


# Functions that can't work


def locked() -> Any:
    lock = threading.Lock()

    def fun(rows: Any, theta: Any) -> Any:
        with lock:
            return theta * 1.0

    return fun


def only_here() -> Any:
    return importlib.import_module("only_in_the_client").fun


def misshapen() -> Any:
    def fun(rows: Any, theta: Any) -> Any:
        return theta[0] * np.ones(1 + first_of(rows) // 4)

    return fun


FAULTY: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "not pickled": (locked, dagad.PortabilityError, r'can\'t be pickled.*lock.*use `scheduler="threads"`'),
    "not unpickled": (only_here, dagad.PortabilityError, "No module named 'only_in_the_client'.*on every worker"),
    "misshapen": (misshapen, dagad.StructureError, r"differ in shape: .*has to return the same shape"),
}
EXECUTORS: dict[str, Callable[[Any], Any]] = {
    "value": lambda total: total(THETA),
    "value_and_grad": lambda total: dagad.value_and_grad(lambda theta: anp.sum(total(theta)))(THETA),
    "early value": lambda total: dagad.evaluate(lambda theta: anp.sum(total(theta)), THETA).value(PATIENCE),
    "gradient": lambda total: dagad.evaluate(lambda theta: anp.sum(total(theta)), THETA).gradient(PATIENCE),
    "pullback": lambda total: dagad.vjp(total, THETA)[1](np.ones(3)),
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("reduction", [dagad.reduce_sum, dagad.map_sum])
@pytest.mark.parametrize("road", EXECUTORS)
@pytest.mark.parametrize("fault", FAULTY)
def test_a_function_that_cannot_work_is_refused_soon(
    fault: str, road: str, reduction: Any, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_in_the_client.py").write_text("def fun(rows, theta):\n    return theta * 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)  # the workers are there already, and don't hear of it
    monkeypatch.delitem(sys.modules, "only_in_the_client", raising=False)
    make, kind, remedy = FAULTY[fault]
    total = loss_on(client, fun=make(), reduction=reduction)
    began = time.monotonic()
    with pytest.raises(kind, match=remedy):
        EXECUTORS[road](lambda theta: total(theta, X))
    assert time.monotonic() - began < SOON


# Exceptions


def refused(client: Client, road: str, role: str, reduction: Any) -> tuple[type[Exception], int, int, str]:
    """Return what arrives when a chunk raises on its way to its value, or on its way back: type, row, process, note."""
    loss = loss_on(client, "", role, reduction=reduction)
    with pytest.raises(Refusal) as caught:
        EXECUTORS[road](lambda theta: loss(2.0 * theta, X))
    (note,) = caught.value.__notes__
    return type(caught.value), *caught.value.args, note


@pytest.mark.sampled(6)
@pytest.mark.parametrize("reduction", [dagad.reduce_sum, dagad.map_sum])
@pytest.mark.parametrize("role", ["value", "pullback"])
@pytest.mark.parametrize("road", ["value_and_grad", "gradient"])
def test_an_exception_keeps_its_type_and_tells_of_its_chunk(
    road: str, role: str, reduction: Any, client: Client
) -> None:
    kind, row, _, note = refused(client, road, role, reduction)
    assert kind is Refusal
    assert row == 8
    assert re.match(rf"dagad: {role} of chunk 2 \(rows 8:12\), key \('dagad-[\w-]+', ", note)


@pytest.mark.parametrize("role", ["value", "pullback"])
@pytest.mark.parametrize("road", ["value_and_grad", "gradient"])
def test_an_exception_tells_of_its_worker(road: str, role: str, client: Client) -> None:
    _, _, pid, note = refused(client, road, role, dagad.reduce_sum)
    (address,) = [address for address, found in pids_of(client).items() if found == pid]
    assert address in note


@pytest.mark.parametrize("fault", ["exception", "interrupt"])
def test_a_pullback_that_failed_can_be_called_again(fault: str, client: Client, tmp_path: Path) -> None:
    watch = Watch(tmp_path, "value")
    trouble = "cotangent" if fault == "exception" else ""
    _, there = dagad.vjp(loss_on(client, watch.folder, trouble, fun=moments), THETA, X)
    _, here = dagad.vjp(loss_on("sync", fun=moments), THETA, X)
    if fault == "exception":
        watch.open("pullback")
        with pytest.raises(Refusal):
            there(TROUBLING)
    else:
        with interrupted_when(lambda: watch.visits("pullback")), pytest.raises(KeyboardInterrupt):
            there(TROUBLING)
        watch.open("pullback")
    for cotangent in (THETA, X[0], THETA):
        assert bits(there(cotangent)) == bits(here(cotangent))


# Who waits gives up


@pytest.mark.parametrize("gate", ["value", "pullback"])
def test_a_wait_that_times_out_lets_the_evaluation_go_on(gate: str, client: Client, tmp_path: Path) -> None:
    watch = Watch(tmp_path, "pullback" if gate == "value" else "value")
    evaluation = dagad.evaluate(loss_on(client, watch.folder), THETA, X, argnums=BOTH)
    watch.wait(gate)
    wait = evaluation.value if gate == "value" else evaluation.gradient
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        wait(timeout=0.2)
    assert time.monotonic() - began < SOON
    watch.open(gate)
    assert bits([evaluation.value(PATIENCE), *evaluation.gradient(PATIENCE)]) == expected()
    assert len(watch.visits("value")) == len(watch.visits("pullback")) == 6


@pytest.mark.parametrize("gate", ["value", "pullback"])
def test_chunks_of_a_cancelled_evaluation_that_have_not_started_never_start(
    gate: str, client: Client, tmp_path: Path
) -> None:
    watch = Watch(tmp_path, "pullback" if gate == "value" else "value")
    evaluation = dagad.evaluate(loss_on(client, watch.folder, grainsize=1), THETA, X, argnums=BOTH)
    watch.wait(gate, processes=2)
    evaluation.cancel()
    with pytest.raises(dagad.CancelledError):
        evaluation.gradient(PATIENCE)
    until(lambda: not any(client.processing().values()))  # the word has come through
    watch.open(gate)
    for _ in range(2):  # each worker has to be done with what it had begun, and with all that it might have begun
        assert outcome(loss_on(client)) == expected()
    assert len(watch.visits(gate)) == 2


WAITS: dict[str, tuple[str, Callable[[Any], Callable[[], Any]]]] = {
    "value": ("value", lambda loss: functools.partial(loss, THETA, X)),
    "value_and_grad": ("value", lambda loss: functools.partial(dagad.value_and_grad(loss, BOTH), THETA, X)),
    "pullback": ("pullback", lambda loss: functools.partial(dagad.vjp(loss, THETA, X)[1], 1.0)),
    "evaluation": ("value", lambda loss: dagad.evaluate(loss, THETA, X, argnums=BOTH).value),
}


@pytest.mark.parametrize("road", WAITS)
def test_control_c_gives_up_waiting_and_leaves_the_client_usable(road: str, client: Client, tmp_path: Path) -> None:
    gate, start = WAITS[road]
    watch = Watch(tmp_path, "pullback" if gate == "value" else "value")
    wait = start(loss_on(client, watch.folder))
    with interrupted_when(lambda: watch.visits(gate)), pytest.raises(KeyboardInterrupt):
        wait()
    if road != "evaluation":  # which goes on
        until(lambda: not any(client.processing().values()))
    watch.open(gate)
