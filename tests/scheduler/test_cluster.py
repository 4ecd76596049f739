"""Cluster: are the bits the same, do values go first, and does a gradient survive the death of a worker?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import dask
import numpy as np
import pytest
from dask._task_spec import Task, TaskRef
from distributed import Client, LocalCluster, get_client

import dagad
from dagad.extend import Keep, Preaccumulate, Recompute
from dagad_scheduler import Names, Progress, Role
from dagad_scheduler.running.cluster import Cluster
from support.waiting import PATIENCE

X = np.random.default_rng(0).standard_normal((24, 3))
THETA = np.array([0.3, -0.7, 1.1])


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def note(path: str, word: str) -> None:
    with open(path, "a") as file:  # short appends are whole
        file.write(word + "\n")


def wait_for(path: str) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    return Path(path).exists()


def nothing(*args: Any) -> None:
    pass


def increase(x: float) -> float:
    return x + 1


def loss_on(scheduler: Any, **options: Any) -> Callable[[Any], Any]:
    def chunk(rows: Any, theta: Any) -> Any:
        return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=4, scheduler=scheduler, **options)

    return loss


def logged_on(scheduler: Any, path: str, **options: Any) -> Callable[[Any], Any]:
    """Return a loss whose chunks write down where they run."""

    def chunk(rows: Any, theta: Any) -> Any:
        note(path, str(os.getpid()))
        return anp.sum(anp.tanh(anp.dot(rows, theta)))

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=4, scheduler=scheduler, **options)

    return loss


# The same results


@pytest.mark.parametrize("policy", [None, Keep(), Recompute(), Preaccumulate()], ids=["default", "keep", "rec", "pre"])
def test_value_and_gradient_on_a_cluster_have_the_bits_of_one_thread(policy: Any, cluster: Client) -> None:
    here, there = (dagad.value_and_grad(loss_on(where, policy=policy))(THETA) for where in ("sync", cluster))
    assert here[0] == there[0]
    assert here[1].tobytes() == there[1].tobytes()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("differentiated", [False, True])
def test_chunks_are_shared_out(differentiated: bool, cluster: Client, tmp_path: Path) -> None:
    path = str(tmp_path / "log")

    def chunk(rows: Any, theta: Any) -> Any:
        note(path, str(os.getpid()))
        time.sleep(0.05)  # work, so that nobody is done before the others have begun
        return theta * anp.sum(rows)

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, np.arange(8.0), theta, grainsize=1, scheduler=cluster)

    assert (dagad.grad(loss) if differentiated else loss)(1.0) == 28.0
    counts = Counter(Path(path).read_text().split())
    assert sum(counts.values()) == 8
    assert sorted(counts.values()) in ([3, 5], [4, 4])


def test_a_chunk_runs_once_for_value_and_gradient(cluster: Client, tmp_path: Path) -> None:
    for name, loss in {"together": None, "keep": Keep()}.items():
        path = tmp_path / name
        dagad.value_and_grad(logged_on(cluster, str(path), policy=loss))(THETA)
        assert len(path.read_text().split()) == 6


def test_kept_linearizations_are_pulled_where_they_are(cluster: Client, tmp_path: Path) -> None:
    path = tmp_path / "log"
    _, pullback = dagad.vjp(logged_on(cluster, str(path)), THETA)
    assert len(path.read_text().split()) == 6
    pullback(1.0)
    assert len(path.read_text().split()) == 6


def test_several_threads_may_use_one_client(cluster: Client) -> None:
    expected = dagad.grad(loss_on("sync"))(THETA)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(dagad.grad(loss_on(cluster)), [THETA] * 8):
            assert found.tobytes() == expected.tobytes()


def test_a_task_of_the_users_own_may_call_reductions(frail: Client) -> None:
    def slope(theta: float) -> float:
        def chunk(rows: Any, theta: Any) -> Any:
            return anp.sum(rows) * theta**2

        def loss(theta: Any) -> Any:
            return dagad.reduce_sum(chunk, np.arange(8.0), theta, grainsize=2)  # wherever it is

        return float(dagad.grad(loss)(theta))

    futures = frail.map(slope, [0.0, 1.0, 2.0, 3.0], pure=False)  # more than there are threads
    assert [future.result(timeout=PATIENCE) for future in futures] == [0.0, 56.0, 112.0, 168.0]


def test_a_task_of_the_users_own_may_use_the_cluster(frail: Client) -> None:
    def total(theta: float) -> float:
        def chunk(rows: Any, theta: Any) -> Any:
            return anp.sum(rows) * theta

        return float(dagad.reduce_sum(chunk, np.arange(8.0), theta, grainsize=2, scheduler=get_client()))

    futures = frail.map(total, [0.0, 1.0, 2.0, 3.0], pure=False)
    assert [future.result(timeout=PATIENCE) for future in futures] == [0.0, 28.0, 56.0, 84.0]


# The protocol


def test_a_worker_starts_its_values_before_its_pullbacks(cluster: Client, tmp_path: Path) -> None:
    names, folder, n = Names(os.urandom(4).hex()), str(tmp_path), 12
    graph: dict[Any, Any] = {}

    def run(word: str, *_: Any) -> None:
        note(f"{folder}/{os.getpid()}", word)

    for i in range(n):
        value, pullback = names(Role.VALUE, i), names(Role.PULLBACK, i)
        graph[value] = Task(value, run, "value")
        graph[pullback] = Task(pullback, run, "pullback", TaskRef(value))
    Cluster(cluster).start(graph, [names(Role.PULLBACK, i) for i in range(n)], nothing).wait()
    orders = [path.read_text().split() for path in tmp_path.iterdir()]
    assert sum(map(len, orders)) == 2 * n
    for order in orders:  # one value may be on its way when a pullback is all that the worker has
        assert "value" not in order[order.index("pullback") + 2 :]


def test_a_result_on_a_cluster_is_reported_while_others_are_still_to_come(cluster: Client, tmp_path: Path) -> None:
    gate, names = tmp_path / "gate", Names(os.urandom(4).hex())
    early, late = names(Role.VALUE, 0), names(Role.VALUE, 1)
    graph = {early: Task(early, increase, 1), late: Task(late, wait_for, str(gate))}
    results: dict[Any, Any] = {}

    def on_result(key: Any, result: Any) -> None:
        results[key] = result
        gate.touch()

    Cluster(cluster).start(graph, [early, late], on_result).wait()
    assert results == {early: 2, late: True}


def test_a_kept_result_on_a_cluster_serves_a_later_run(cluster: Client) -> None:
    names, results = Names(os.urandom(4).hex()), dict[Any, Any]()
    a, b, c = (names(Role.VALUE, i) for i in range(3))
    graph = {a: Task(a, increase, 1), b: Task(b, increase, TaskRef(a))}
    run = Cluster(cluster).start(graph, [b], results.__setitem__, keep=[a])
    run.wait()
    later = Cluster(cluster).start({c: Task(c, pow, TaskRef(a), 10)}, [c], results.__setitem__, kept=run.kept)
    later.wait()
    assert results == {b: 3, c: 2**10}


def test_a_wait_that_times_out_lets_the_tasks_go_on(cluster: Client, tmp_path: Path) -> None:
    gate, names, results = tmp_path / "gate", Names(os.urandom(4).hex()), dict[Any, Any]()
    key = names(Role.VALUE, 0)
    run = Cluster(cluster).start({key: Task(key, wait_for, str(gate))}, [key], results.__setitem__)
    with pytest.raises(TimeoutError, match=r"1 results were not there after 0\.05 seconds; they go on"):
        run.wait(0.05)
    gate.touch()
    run.wait()
    assert results == {key: True}
    assert run.progress() == Progress(1, 1, 0, 0)


def test_cancelling_a_run_on_a_cluster_that_is_done_changes_nothing(cluster: Client) -> None:
    key = Names(os.urandom(4).hex())(Role.VALUE, 0)
    run = Cluster(cluster).start({key: Task(key, increase, 1)}, [key], nothing)
    run.wait()
    run.cancel()
    run.cancel()
    assert cluster.submit(increase, 1, pure=False).result() == 2


def test_a_client_that_is_closed_is_named() -> None:
    options: Any = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**options) as made, Client(made, set_as_default=False) as client:
        assert dagad.grad(loss_on(client))(THETA).shape == (3,)
    with pytest.raises(Exception, match=r"(?i)client.*closed"):
        dagad.grad(loss_on(client))(THETA)


INTERRUPTED = """
import signal, time
import numpy as np
from distributed import Client, LocalCluster, get_client
import dagad

def chunk(rows):
    print("interrupt me", flush=True)
    time.sleep(0.5 if rows[0] else 20)
    return 0.0

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a background job it would be ignored
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as cluster:
        with Client(cluster, set_as_default=False) as client:
            try:
                dagad.reduce_sum(chunk, np.arange(4.0), grainsize=1, scheduler=client)
            except KeyboardInterrupt:
                pass
            print(dagad.reduce_sum(np.sum, np.arange(4.0), grainsize=4, scheduler="sync"), flush=True)
            while any(client.processing().values()):
                time.sleep(0.01)
            print("done", flush=True)
            import os
            os._exit(0)  # a running chunk can't be stopped, and need not be waited for
"""


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_control_c_gives_up_tasks_on_a_cluster_that_have_not_started() -> None:
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "interrupt me\n"
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE)
    assert output.split("\n") == ["6.0", "done", ""]


# Workers that die, leave or run out of memory


@pytest.fixture
def frail() -> Iterator[Client]:
    """A cluster of its own, since its workers will not live."""
    options: Any = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(**options) as made, Client(made, set_as_default=False) as client:
        yield client


def holders(client: Client) -> dict[str, int]:
    """Return how many linearizations each worker holds."""
    held: dict[str, int] = {}
    for key, workers in client.who_has().items():
        if "dagad-value" in str(key):
            for worker in workers:
                held[worker] = held.get(worker, 0) + 1
    return held


def kill_one(client: Client) -> None:
    """Kill a worker that holds linearizations, and wait until the cluster knows."""
    address = max(holders(client).items(), key=lambda item: item[1])[0]
    os.kill(client.run(os.getpid, workers=[address])[address], signal.SIGKILL)
    until(lambda: address not in client.nthreads())


def test_a_gradient_and_a_pullback_survive_the_death_of_their_worker(frail: Client) -> None:
    value, gradient = dagad.value_and_grad(loss_on("sync"))(THETA)
    evaluation = dagad.evaluate(loss_on(frail), THETA, lazy=True)
    early, pullback = dagad.vjp(loss_on(frail), THETA)
    assert evaluation.value(PATIENCE) == early == value
    kill_one(frail)
    assert evaluation.gradient(PATIENCE).tobytes() == gradient.tobytes()
    assert pullback(1.0)[0].tobytes() == gradient.tobytes()
    np.testing.assert_array_equal(pullback(-2.0)[0], -2.0 * gradient)


def test_a_pullback_of_arrays_can_be_called_again_after_the_death_of_its_worker(frail: Client) -> None:
    def chunk(rows: Any, theta: Any) -> Any:
        return anp.sum(anp.tanh(rows * theta), axis=0)

    def moments(scheduler: Any) -> Callable[[Any], Any]:
        return lambda theta: dagad.reduce_sum(chunk, X, theta, grainsize=4, scheduler=scheduler)

    here, there = (dagad.vjp(moments(where), THETA)[1] for where in ("sync", frail))
    for seed in np.eye(3)[:2]:
        assert there(seed)[0].tobytes() == here(seed)[0].tobytes()
    kill_one(frail)
    for seed in np.eye(3):
        assert there(seed)[0].tobytes() == here(seed)[0].tobytes()


def test_a_worker_that_dies_in_a_chunk_costs_only_time(frail: Client, tmp_path: Path) -> None:
    path = str(tmp_path / "died")

    def chunk(rows: Any, theta: Any) -> Any:
        if rows[0, 0] == X[8, 0] and not os.path.exists(path):
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, X, theta, grainsize=4, scheduler=frail)

    value, gradient = dagad.value_and_grad(loss)(THETA)
    expected = dagad.value_and_grad(loss_on("sync"))(THETA)
    assert Path(path).exists()
    assert value == expected[0]
    assert gradient.tobytes() == expected[1].tobytes()


def test_an_evaluation_waits_for_workers_that_come_later() -> None:
    options: Any = {"n_workers": 0, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with LocalCluster(**options) as made, Client(made, set_as_default=False) as client:
        evaluation = dagad.evaluate(loss_on(client), THETA)
        until(lambda: evaluation.progress.values_total)
        made.scale(2)
        assert evaluation.value(PATIENCE) == loss_on("sync")(THETA)
        assert evaluation.gradient(PATIENCE).tobytes() == dagad.grad(loss_on("sync"))(THETA).tobytes()


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_the_death_of_the_only_worker_costs_only_time(tmp_path: Path) -> None:
    path = str(tmp_path / "died")

    def chunk(rows: Any, theta: Any) -> Any:
        if rows[0] == 4 and not os.path.exists(path):
            Path(path).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return theta * anp.sum(rows)

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, np.arange(8.0), theta, grainsize=2, scheduler=client)

    options: Any = {"n_workers": 1, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(**options) as made, Client(made, set_as_default=False) as client:
        evaluation = dagad.evaluate(loss, 1.0)
        assert evaluation.value(PATIENCE) == 28.0
        assert evaluation.gradient(PATIENCE) == 28.0
        assert Path(path).exists()


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_a_chunk_that_kills_every_worker_is_given_up() -> None:
    def chunk(rows: Any, theta: Any) -> Any:
        if rows[0] == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return theta * anp.sum(rows)

    def loss(theta: Any) -> Any:
        return dagad.reduce_sum(chunk, np.arange(8.0), theta, grainsize=2, scheduler=client)

    options: Any = {"n_workers": 1, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with dask.config.set({"distributed.scheduler.allowed-failures": 1}):
        with LocalCluster(**options) as made, Client(made, set_as_default=False) as client:
            with pytest.raises(dagad.WorkerLostError, match=r"chunk 2 \(rows 4:6\).* with `scheduler=\"sync\"`"):
                dagad.grad(loss)(1.0)
            assert dagad.grad(loss_on(client))(THETA).tobytes() == dagad.grad(loss_on("sync"))(THETA).tobytes()


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_linearizations_move_when_their_worker_retires(frail: Client, tmp_path: Path) -> None:
    path = tmp_path / "log"
    value, gradient = dagad.value_and_grad(logged_on("sync", str(tmp_path / "here")))(THETA)
    early, pullback = dagad.vjp(logged_on(frail, str(path)), THETA)
    assert early == value
    before = holders(frail)
    frail.retire_workers(workers=[next(iter(before))])
    until(lambda: len(holders(frail)) == 1)
    assert sum(holders(frail).values()) == sum(before.values()) == 6
    assert pullback(1.0)[0].tobytes() == gradient.tobytes()
    assert len(path.read_text().split()) > 6  # a tape does not travel: it was recorded again


@pytest.mark.whole("many rounds, workers or bytes: the same is seen of few here")
def test_more_tapes_than_memory_are_spilled_and_recorded_again() -> None:
    def chunk(rows: Any, theta: Any) -> Any:
        x = np.ones(2**20) * rows[0] * theta  # each of the steps leaves 8 MB on the tape
        for _ in range(5):
            x = anp.sin(x)
        return anp.sum(x)

    def loss_on(scheduler: Any) -> Callable[[Any], Any]:
        return lambda theta: dagad.reduce_sum(chunk, np.arange(16.0), theta, grainsize=1, scheduler=scheduler)

    options: Any = {"n_workers": 1, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(memory_limit="700 MB", **options) as made, Client(made, set_as_default=False) as client:
        evaluation = dagad.evaluate(loss_on(client), 0.5)
        assert evaluation.value(PATIENCE) == loss_on("sync")(0.5)
        assert evaluation.gradient(PATIENCE) == dagad.grad(loss_on("sync"))(0.5)
