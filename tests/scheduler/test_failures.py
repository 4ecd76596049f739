"""Errors of tasks arrive with their class, their words and their notes, whatever they hold."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from dask.delayed import delayed
from distributed import Client
from distributed.scheduler import KilledWorker

import dagad
from dagad._api.shard import Loaded
from dagad._values.shipping import opened
from support.schedulers_of_shards import client as client, place as place, pool as pool


class TakesTwo(Exception):
    """Its class takes more than it keeps, so that pickle can't make it again."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{words} ({code})")
        self.code = code


class HoldsALock(Exception):
    def __init__(self) -> None:
        super().__init__("no connection")
        self.code, self.lock = 7, threading.Lock()


class SpeaksOfWhatItHolds(Exception):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __str__(self) -> str:
        return f"held: {self.lock.locked()}"


def of_a_cluster_within() -> KilledWorker:
    worker: Any = SimpleNamespace(address="tcp://elsewhere:1")
    return KilledWorker("a task of another cluster", worker, 3)


def of_a_class_within() -> Exception:
    class Within(Exception):
        pass

    return Within("within")


MADE: dict[str, tuple[Callable[[], Exception], str, str]] = {
    "takes two": (lambda: TakesTwo(7, "no fit"), "TakesTwo", r"^no fit \(7\)"),
    "holds a lock": (HoldsALock, "HoldsALock", "^no connection"),
    "has a lock in its words": (lambda: ValueError("lock", threading.Lock()), "ValueError", r"^\('lock', <unlocked"),
    "speaks of what it holds": (SpeaksOfWhatItHolds, "SpeaksOfWhatItHolds|RuntimeError", "held: False"),
    "of a class within": (of_a_class_within, "Within", "^within"),
}


def fails_with(kind: str, *args: Any) -> NoReturn:
    raise MADE[kind][0]()


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("kind", MADE)
def test_the_error_of_a_task_arrives_as_it_was_raised(kind: str, place: Any) -> None:
    _, name, words = MADE[kind]
    fails = functools.partial(fails_with, kind)

    def total(t: Any) -> Any:
        return dagad.reduce_sum(fails, np.arange(6.0), t, grainsize=2, scheduler=place)

    def loaded() -> Any:
        return dagad.shard([delayed(list)([1.0]), delayed(fails)()], scheduler=place)

    asked: list[tuple[Callable[[], Any], str]] = [
        (lambda: total(2.0), "value"),
        (lambda: dagad.grad(total)(2.0), "value"),
        (loaded, "loader 1"),
    ]
    for ask, note in asked:
        with pytest.raises(Exception, match=words) as caught:
            ask()
        assert type(caught.value).__name__ in name.split("|")
        assert f"dagad: {note} of " in "".join(caught.value.__notes__)
        assert getattr(caught.value, "code", 7) == 7


def test_an_error_of_another_cluster_is_not_that_of_a_dead_worker(client: Client) -> None:
    def fails(rows: Any, t: Any) -> NoReturn:
        raise of_a_cluster_within()

    with pytest.raises(Exception, match="a task of another cluster") as caught:
        dagad.reduce_sum(fails, np.arange(6.0), 2.0, grainsize=2, scheduler=client)
    assert not isinstance(caught.value, dagad.WorkerLostError | AttributeError)
    assert "value of chunk" in "".join(caught.value.__notes__)


def test_an_error_that_holds_a_lock_brings_its_cause_from_a_cluster(client: Client) -> None:
    def fails(rows: Any, t: Any) -> NoReturn:
        raise HoldsALock from KeyError("reason")

    with pytest.raises(HoldsALock) as caught:
        dagad.reduce_sum(fails, np.arange(6.0), 2.0, grainsize=2, scheduler=client)
    assert repr(caught.value.__cause__) == "KeyError('reason')"


# Rows that can't travel


class StaysWhereItIs:
    def __init__(self, number: float) -> None:
        self.number = number

    def __reduce__(self) -> NoReturn:
        raise TypeError("a handle of this process")


def handles(first: int) -> list[Any]:
    return [StaysWhereItIs(float(number)) for number in range(first, first + 2)]


def weighted(rows: Any, t: Any) -> Any:
    return sum(row.number for row in rows) * t


def test_rows_that_cannot_travel_are_used_where_they_are_and_refused_where_they_arrive(client: Client) -> None:
    """Dask tries for ever to get what can't be pickled from another worker, as it does when it evens out their work."""
    shards = dagad.shard([delayed(handles)(0), delayed(handles)(2)], scheduler=client)
    with pytest.raises(dagad.PortabilityError, match=r"`StaysWhereItIs`.* can't be pickled.*inside the function"):
        shards.gather()
    assert dagad.value_and_grad(lambda t: dagad.reduce_sum(weighted, shards, t))(2.0) == (12.0, 6.0)
    for key in shards.keys:
        (home,) = client.who_has()[key]
        (other,) = set(client.scheduler_info(n_workers=-1)["workers"]) - {home}
        moved = client.submit(_type_there, shards.kept[key], workers=[other], pure=False)
        assert moved.result() == "PortabilityError"


def _type_there(rows: Any) -> str:
    try:
        opened(rows)
    except dagad.PortabilityError as error:
        return type(error).__name__
    return "nothing was raised"


def test_rows_of_a_loader_travel_or_arrive_as_their_refusal() -> None:
    assert opened(pickle.loads(pickle.dumps(Loaded([1.0, 2.0])))).piece == [1.0, 2.0]
    arrived = pickle.loads(pickle.dumps(Loaded(handles(0))))
    with pytest.raises(dagad.PortabilityError, match="a handle of this process"):
        opened(arrived)


def test_a_loader_that_is_given_twice_runs_once() -> None:
    runs = list[int]()

    def load() -> Any:
        runs.append(1)
        return [float(len(runs))]

    loader = delayed(load, pure=False)()
    assert dagad.shard([loader, loader], scheduler="threads").gather() == [1.0, 1.0]
    assert len(runs) == 1
