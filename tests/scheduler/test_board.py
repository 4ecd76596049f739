"""The board: what is known of evaluations, from transitions and reports that are made up?"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest

from dagad_scheduler import Names
from dagad_scheduler.watching.board import MOST_ERRORS, MOST_EVALUATIONS, MOST_REASONS, Board
from dagad_scheduler.watching.evaluations import GRAPH, RESIDENT

N = 4


class Cluster:
    """Says what a scheduler says, at times of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.dependencies: dict[Any, list[Any]] = {}
        self.board = Board(lambda key: self.dependencies.get(key, []), lambda: self.now)

    def after(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            self.board.tick()

    def say(self, keys: Iterable[Any], *states: str, **told: Any) -> None:
        for key in keys:
            for start, finish in itertools.pairwise(states):
                self.board.transition(key, start, finish, stimulus_id="", **(told if finish == "erred" else {}))

    def first(self, **options: Any) -> dict[str, Any]:
        return dict(self.board.snapshot(**options)["evaluations"][0])


def keys_of(role: str, names: Names, n: int = N) -> list[Any]:
    return [names(role, number) for number in range(n)]


SENT = "released", "waiting", "processing"
LANDED = "processing", "memory"
GONE = "memory", "released", "forgotten"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_slots_of_an_evaluation_on_the_board_fill_one_after_the_other(cluster: Cluster) -> None:
    names = Names("t1", "loss")
    values = keys_of("value", names)
    cluster.say(values, *SENT)
    assert cluster.first()["cells"] == "wwww"
    assert cluster.first(executing={values[1]})["cells"] == "wrww"  # workers have the others in their queues
    cluster.say(values[:2], *LANDED)
    one = cluster.first()
    assert (one["function"], one["executor"], one["values"], one["gradients"]) == ("loss", GRAPH, [2, N], [0, 0])
    assert (one["cells"], one["is_running"]) == ("vvww", True)
    assert cluster.first(executing={values[1]})["cells"] == "vvww"  # workers say that every now and then
    cluster.say(values[2:], *LANDED)
    assert (cluster.first()["cells"], cluster.first()["is_running"]) == ("vvvv", False)


def test_pullbacks_belong_to_the_evaluation_of_their_values(cluster: Cluster) -> None:
    first, second = Names("t1", "loss"), Names("t2", "loss")
    values, pullbacks = keys_of("value", first), keys_of("pullback", second)
    cluster.dependencies = {
        pull: [value, second("input", "seed")] for pull, value in zip(pullbacks, values, strict=True)
    }
    cluster.say(values, *SENT, "memory")
    cluster.say([second("sum", (0, 0)), *pullbacks], *SENT)
    cluster.say(pullbacks[:3], *LANDED)
    one = cluster.first()
    assert (one["values"], one["gradients"], one["cells"]) == ([N, N], [3, N], "gggv")
    assert one["is_running"]
    cluster.say(pullbacks[3:], *LANDED)
    cluster.say([*values, *pullbacks], *GONE)
    assert cluster.first()["gradients"] == [N, N]
    found = cluster.board.snapshot()
    assert (found["values"], found["gradients"], len(found["evaluations"])) == (N, N, 1)
    assert not cluster.board._groups
    assert not cluster.board._by_token


def test_value_and_gradient_of_one_task_land_together(cluster: Cluster) -> None:
    keys = keys_of("value", Names("t1", "loss", gives_gradient=True))
    cluster.say(keys, *SENT)
    cluster.say(keys[:1], *LANDED)
    assert (cluster.first()["values"], cluster.first()["gradients"]) == ([1, N], [1, N])
    assert cluster.first()["cells"] == "gwww"


def test_a_value_that_is_lost_is_computed_again(cluster: Cluster) -> None:
    keys = keys_of("value", Names("t1", "loss"))
    cluster.say(keys, *SENT, "memory")
    cluster.say(keys[:1], "memory", "released", "waiting", "processing")
    assert cluster.first()["cells"] == "cvvv"
    assert cluster.board.n_recomputed == 0
    cluster.say(keys[:1], *LANDED)
    assert (cluster.first()["cells"], cluster.first()["values"]) == ("cvvv", [N, N])
    assert cluster.board.snapshot()["recomputed"] == 1


def test_the_board_shows_the_error_of_a_chunk_and_not_of_its_dependents(cluster: Cluster) -> None:
    names = Names("t1", "loss")
    keys, total = keys_of("value", names), names("sum", (0, 0))
    cluster.say([*keys, total], *SENT)
    told = {"exception_text": "ValueError('bad row')" + 1000 * "x", "worker": "tcp://w"}
    cluster.say(keys[1:2], "processing", "erred", cause=keys[1], **told)
    cluster.say([total], "waiting", "erred")
    (error,) = cluster.board.snapshot()["errors"]
    assert error["error"].startswith("ValueError('bad row')x")
    assert len(error["error"]) == 500
    assert (error["function"], error["where"], error["worker"]) == ("loss", "task 1", "tcp://w")
    assert cluster.first()["cells"] == "wfww"
    for number in range(2 * MOST_ERRORS):
        key = Names(f"e{number}", "loss")("value", 0)
        cluster.say([key], *SENT, "erred", cause=key, **told)
    assert len(cluster.board.snapshot()["errors"]) == MOST_ERRORS


def test_a_failed_chunk_stays_on_the_board_until_it_is_tried_again(cluster: Cluster) -> None:
    values = keys_of("valuegrad", Names("t1", "loss"))
    cluster.say(values, *SENT)
    cluster.say(values[:2], *LANDED)
    cluster.say(values[2:3], "processing", "erred", exception_text="ValueError('singular')", cause=values[2])
    assert (cluster.first()["cells"], cluster.first()["failed"]) == ("ggfw", 1)
    cluster.say(values[2:3], "erred", "released")
    assert (cluster.first()["cells"], cluster.first()["failed"]) == ("ggfw", 1)
    cluster.say(values[2:3], "released", "waiting", "processing")
    assert (cluster.first()["cells"], cluster.first()["failed"]) == ("ggww", 0)
    cluster.say(values[2:3], "processing", "erred", exception_text="ValueError('singular')", cause=values[2])
    cluster.say([values[2], values[3]], "erred", "released", "forgotten")
    cluster.say(values[:2], *GONE)
    over = cluster.first()
    assert (over["cells"], over["failed"], over["is_running"]) == ("ggfw", 1, False)


def test_an_evaluation_on_the_board_goes_on_while_it_awaits_its_gradient(cluster: Cluster) -> None:
    names, reverse = Names("t1", "loss"), Names("t2", "loss")
    values, pullbacks = keys_of("value", names), keys_of("pullback", reverse)
    cluster.say(values, *SENT, "memory")
    holding = {values[0][0]}
    seen = cluster.first(holding=holding)
    assert (seen["is_running"], seen["awaits_gradient"]) == (True, True)
    assert not cluster.first()["is_running"]  # a value that nobody wants to differentiate
    cluster.dependencies = dict(zip(pullbacks, ([value] for value in values), strict=True))
    cluster.say(pullbacks, *SENT)
    seen = cluster.first(holding=holding)
    assert (seen["is_running"], seen["awaits_gradient"]) == (True, False)
    cluster.say(pullbacks, *LANDED)
    seen = cluster.first(holding=holding)  # a pullback may be called once more
    assert (seen["is_running"], seen["awaits_gradient"]) == (False, False)


def test_the_board_remembers_workers_that_went_with_what_was_computed_again(cluster: Cluster) -> None:
    values = keys_of("value", Names("t1", "loss"))
    cluster.say(values, *SENT, "memory")
    cluster.board.forget_worker("one", is_lost=True)
    cluster.say(values[:3], "memory", "released", "waiting", "processing", "memory")
    cluster.after(5.0)
    cluster.board.forget_worker("other", is_lost=False)
    cluster.say(values[:1], "memory", "released", "waiting", "processing", "memory")
    other, one = cluster.board.snapshot()["departures"]
    assert other == {"time": 105.0, "worker": "other", "is_lost": False, "recomputed": 1}
    assert one == {"time": 100.0, "worker": "one", "is_lost": True, "recomputed": 3}


def test_rates_and_latencies_on_the_board_are_those_of_lately(cluster: Cluster) -> None:
    for number in range(20):
        keys = keys_of("value", Names(f"t{number}", "loss", gives_gradient=True))
        cluster.say(keys, *SENT)
        cluster.now += 0.25
        cluster.say(keys, *LANDED)
        cluster.say(keys, *GONE)
        cluster.now += 0.75
        cluster.board.tick()
    found = cluster.board.snapshot()["executors"]
    assert found[GRAPH]["evaluations"] == 20
    assert found[GRAPH]["per_second"] == pytest.approx(1.0, rel=0.11)
    assert found[GRAPH]["latency"] == pytest.approx(0.25)
    assert found[RESIDENT] == {"evaluations": 0, "seconds": 0.0, "per_second": 0.0, "latency": None}
    cluster.after(30)
    assert cluster.board.snapshot()["executors"][GRAPH]["per_second"] == 0.0
    rates = [one["rate"] for one in cluster.board.series() if one["executor"] == GRAPH]
    assert rates[5:19] == pytest.approx([1.0] * 14)
    assert rates[-1] == 0.0


def test_hot_loops_on_the_board_are_what_clients_report(cluster: Cluster) -> None:
    said = {"client": "c1", "loops": [["loss", "valuegrad", 100, 0.5, 0.02, N, N]], "fallbacks": [["a worker left", 2]]}
    for _ in range(10):
        cluster.after(1)
        cluster.board.take(said)
    cluster.board.take({"worker": "tcp://w", "held": (2, 4000), "calls": [1000, 4000, 4.0], "again": 3, "failures": []})
    found = cluster.board.snapshot()
    one = found["evaluations"][0]
    assert (one["executor"], one["count"], one["values"], one["gradients"]) == (RESIDENT, 1000, [N, N], [N, N])
    assert one["seconds"] == pytest.approx(0.005)
    assert one["is_running"]
    assert found["executors"][RESIDENT]["per_second"] == pytest.approx(100.0, rel=0.11)
    assert found["executors"][RESIDENT]["latency"] == pytest.approx(0.005)
    assert (found["values"], found["recomputed"], found["fell_back"]) == (1000 * N, 3, 20)
    assert found["fallbacks"][0]["reason"] == "a worker left"
    held = {"linearizations": 2, "linearization_bytes": 4000, "calls": 1000, "chunks": 4000, "seconds": 4.0}
    assert found["workers"] == {"tcp://w": held}
    cluster.after(5)
    assert not cluster.first()["is_running"]
    cluster.board.forget_worker("tcp://w")
    assert cluster.board.snapshot()["workers"] == {}


def test_the_board_adds_up_what_tasks_and_calls_hold(cluster: Cluster) -> None:
    cluster.board.take({"worker": "a", "held": (1, 10), "calls": [0, 0, 0.0]})
    found = cluster.board.snapshot({"a": (2, 5), "b": (1, 1)})["workers"]
    assert {name: (one["linearizations"], one["linearization_bytes"]) for name, one in found.items()} == {
        "a": (3, 15),
        "b": (1, 1),
    }


def test_a_board_stays_small(cluster: Cluster) -> None:
    for number in range(5 * MOST_EVALUATIONS):
        names = Names(f"t{number}", "loss")
        keys = keys_of("value", names)
        cluster.say([*keys, names("sum", (0, 0))], *SENT, "memory")
        if number % 2:
            cluster.say([*keys, names("sum", (0, 0))], *GONE)
        cluster.board.take({"client": f"c{number}", "loops": [["f", "value", 1, 0.1, 0.1, 1, 0]]})
        cluster.board.take({"client": "c", "fallbacks": [[f"reason {number}", 1]]})
    board = cluster.board
    assert len(board._evaluations) == MOST_EVALUATIONS
    assert max(len(board._groups), len(board._by_token)) <= 2 * MOST_EVALUATIONS
    assert len(board.snapshot()["fallbacks"]) == MOST_REASONS
    assert board.snapshot()["values"] == 5 * MOST_EVALUATIONS * (N + 1)
    cluster.after(1000)
    assert len(board.series()) < 1000


@pytest.mark.parametrize("key", ["x", ("x", 0), 7, ("dagad-input-t", 0), ("dagad-shard-t", 0), ("dagad-loop-f-t", 0)])
def test_the_board_ignores_tasks_that_are_not_dagads(cluster: Cluster, key: Any) -> None:
    cluster.say([key], *SENT, *LANDED, *GONE)
    assert cluster.board.snapshot()["evaluations"] == []


def test_tasks_that_were_there_before_are_not_half_followed(cluster: Cluster) -> None:
    cluster.say(keys_of("value", Names("t1", "loss")), *LANDED, *GONE)
    assert cluster.board.snapshot()["evaluations"] == []


def test_a_restart_ends_the_evaluations_on_the_board(cluster: Cluster) -> None:
    cluster.say(keys_of("value", Names("t1", "loss")), *SENT)
    cluster.board.restart()
    assert not cluster.first()["is_running"]
    assert json.loads(json.dumps(cluster.board.snapshot()))["evaluations"]
