"""The doctor: does it find a healthy cluster healthy, and name what is broken, with the remedy?"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import autograd
import pytest
from distributed import Client, Event
from distributed.comm.tcp import BaseTCPConnector

from dagad import doctor
from dagad._diagnosis import facts
from dagad._diagnosis.bounded import bounded
from dagad._diagnosis.fitness import LAST_BITS, NOT_SEEN, Finding, Seen, WorkerReport, findings
from dagad._errors import TimedOutError
from support.clusters import a_process, identity, without_dagad
from support.waiting import CANARY, PATIENCE, in_background, until

pytestmark = [
    pytest.mark.whole("what is shown: pages, bars, certificates, examinations of clusters"),
]
# Seconds within which an honest part of a cluster answers, however slow the machine is.
ENOUGH = round(max(5.0, 20.0 * CANARY))


def graded(found: list[Finding], check: str) -> dict[str, str]:
    """Return the texts of one check, by their grades."""
    texts: dict[str, str] = {}
    for finding in found:
        if finding.check == check:
            texts[finding.grade] = f"{texts.get(finding.grade, '')}{finding.text} -> {finding.remedy}\n"
    return texts


# Decisions


def seen(*workers: WorkerReport, **scheduler: Any) -> Seen:
    """A cluster of which everything is like here."""
    here = {**facts.facts(), "n_cpus": 8}
    asked = dict.fromkeys(("idle_timeout",), None) | {"allowed_failures": 3}
    return Seen("tcp://10.0.0.1:8786", here, here | asked | scheduler, (1e-3, 1e9), list(workers))


def worker(name: str = "tcp://10.0.0.2:1", *, part: dict[str, Any] | None = None, **said: Any) -> WorkerReport:
    own = {**facts.facts(), "n_cpus": 8, "directory": "/spill", "free": 10**12, "lifetime": None, **said}
    return WorkerReport(name, own["python"], memory_limit=10**9, facts=own, direct=(1e-3, 1e9), **(part or {}))


def settings(**some: Any) -> dict[str, Any]:
    return {**facts.facts()["settings"], **{f"distributed.{k.replace('__', '.')}": v for k, v in some.items()}}


@pytest.mark.parametrize(
    ("cluster", "check", "grade", "says"),
    [
        (seen(), "workers", "bad", "there are none -> Start some"),
        (seen(refusal="E"), "scheduler", "look", r"runs no functions \(E\) -> Take run_function out"),
        (
            seen(WorkerReport("b", "3.12.1")),
            "versions",
            "bad",
            "b: python 3.12.1, the client has .* -> Install the same",
        ),
        (seen(worker(cpu="A"), worker("b", cpu="B")), "processors", "look", "b: B -> numpy picks its loops"),
        (seen(worker()), "precision", "ok", "double"),
        (seen(worker(part={"busy": "late"})), "tasks", "look", "late -> Look again when the cluster is quiet"),
        (seen(worker(part={"busy": "late"})), "workers", "ok", "0 answer"),
        (seen(WorkerReport("b", busy="late")), "workers", "ok", "0 answer"),
        (seen(worker(part={"n_threads": 9})), "threads", "look", "9 threads of workers on 8 cores -> Start fewer"),
        (seen(worker(part={"n_threads": 2})), "threads", "look", "OMP_NUM_THREADS is .* -> Set OMP_NUM_THREADS=1"),
        (seen(worker(settings=settings(worker__memory__spill=False))), "spill", "bad", "does not spill"),
        (seen(worker()), "encryption", "look", "none -> Whoever reaches a port can run code"),
        (seen(worker(part={"skew": 3.0})), "clocks", "look", "3.0 s off -> Run NTP"),
        (seen(worker(), idle_timeout=60.0), "timeouts", "look", "ends after 60 s.*idle-timeout"),
        (seen(worker(lifetime=60.0), worker("b", lifetime=60.5)), "timeouts", "look", "end 60 s.*--lifetime-stagger"),
        (seen(worker(lifetime=60.0)), "timeouts", "look", "survives 3 of them -> .*allowed-failures to 10"),
        (seen(worker(lifetime=60.0), allowed_failures=10), "timeouts", "ok", "live 60 s or longer"),
        (seen(worker(part={"peer": "b", "at_work": {"flushes": False, "failure": "E"}})), "network", "bad", "reach b"),
        (seen(worker(part={"at_work": {"flushes": False, "line": (9e-3, 1e9)}})), "network", "look", "9.00 ms.*ib0"),
        (seen(worker(part={"gradients": {"graph": LAST_BITS}})), "gradient (graph)", "look", "last bits -> Have"),
        (
            seen(worker(part={"gradients": {"hot loop": f"{NOT_SEEN}E"}})),
            "gradient (hot loop)",
            "look",
            "E -> Look again",
        ),
        (seen(worker(part={"gradients": {"graph": "wrong by 1"}})), "gradient (graph)", "bad", "wrong by 1"),
    ],
)
def test_the_doctor_grades_each_fact_of_a_cluster_and_names_a_remedy(
    cluster: Seen, check: str, grade: str, says: str
) -> None:
    assert re.search(says, graded(findings(cluster), check)[grade], re.DOTALL)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "tls://[::1]:1", "inproc://10.0.0.1/1/2"])
def test_the_doctor_names_no_network_where_all_is_on_one_machine(address: str) -> None:
    slow = {"flushes": False, "line": (9e-3, 1e3)}
    here = replace(seen(worker(address, part={"at_work": slow})), address=address, line=(9e-3, 1e3))
    said = graded(findings(here), "network")
    assert "less busy: both ends are on it" in said["look"]
    assert "--interface" not in said["look"]


# Clusters that are silent, or busy


def test_the_doctor_waits_no_longer_than_its_patience_for_a_port_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as port:
        address = f"tcp://127.0.0.1:{port.getsockname()[1]}"
        (found,) = in_background(doctor.diagnosis, address, None, 0.5).result(PATIENCE)
        assert (found.check, found.grade) == ("scheduler", "bad")
        assert found.text == f"{address} takes connections, and does not answer in 0.5 s"
        assert "not stopped (kill -CONT), and nothing in between" in found.remedy
        command = [sys.executable, "-m", "dagad.doctor", address, "--patience", "0.5"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert "does not answer in 0.5 s" in done.stdout


def test_a_call_that_hangs_is_left_behind_and_others_give_what_they_give() -> None:
    gate = threading.Event()
    with pytest.raises(TimedOutError, match=r"A word took more than 0\.01 s\. Look again .* with more patience"):
        bounded(0.01, "A word", gate.wait)
    gate.set()
    assert bounded(PATIENCE, "A word", gate.wait) is True
    with pytest.raises(ZeroDivisionError):
        bounded(PATIENCE, "A word", lambda: 1 / 0)


def wait_for(name: str) -> None:
    Event(name).wait()


def test_a_busy_cluster_is_not_found_broken(cluster: Client) -> None:
    scheduler: Any = cluster.scheduler
    gate = Event("gate", client=cluster)
    workers = cluster.nthreads()
    holding = [
        cluster.submit(wait_for, "gate", workers=[address], pure=False)
        for address, n_threads in workers.items()
        for _ in range(n_threads)
    ]
    until(lambda: sum(map(len, cluster.processing().values())) == len(holding))
    try:
        found = doctor.diagnosis(scheduler.address, patience=ENOUGH)
    finally:
        gate.set()
        cluster.gather(holding)
    assert not [finding for finding in found if finding.grade == "bad"]
    assert (
        f"it did not run a task in {ENOUGH} s -> Look again when the cluster is quiet" in graded(found, "tasks")["look"]
    )


def test_a_worker_that_is_stopped_does_not_hold_up_the_doctor(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    alike = ["--scheduler-file", str(file), "--host", "127.0.0.1"]
    worker_of = [*alike, "--no-nanny", "--nthreads", "1"]
    with (
        a_process("scheduler", *alike, "--port", "0"),
        a_process("worker", *worker_of),
        a_process("worker", *worker_of, "--name", "stopped") as stopped,
    ):
        with Client(scheduler_file=str(file), set_as_default=False, timeout=PATIENCE) as client:
            client.wait_for_workers(2, PATIENCE)
            info = identity(client)
        stopped.send_signal(signal.SIGSTOP)
        (silent,) = [address for address, said in info["workers"].items() if said["name"] == "stopped"]
        found = in_background(doctor.diagnosis, info["address"], None, ENOUGH).result(4 * PATIENCE)
    assert f"{silent}: it did not answer in {ENOUGH} s" in graded(found, "tasks").get("look", ""), found
    assert graded(found, "workers") == {"ok": "1 answer -> \n"}


# A healthy cluster


def test_a_healthy_cluster_is_found_healthy(cluster: Client, capsys: pytest.CaptureFixture[str]) -> None:
    scheduler: Any = cluster.scheduler
    address = scheduler.address
    assert doctor.main([address, "--patience", str(ENOUGH)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "ok   gradient (hot loop): right, with the bits of the client, on 2 workers" in lines
    assert not [line for line in lines if line.startswith("bad")]
    assert doctor.main([address, "--json", "--patience", str(ENOUGH)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"workers", "versions", "spill", "network", "gradient (graph)"} <= {finding["check"] for finding in found}


def test_a_cluster_that_is_not_there_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["tcp://127.0.0.1:1", "--patience", "0.5"]) == 1
    assert "bad  scheduler: tcp://127.0.0.1:1 can't be reached" in capsys.readouterr().out


# A cluster that is broken in every way that is known

# What code built with -ffast-math does when it is loaded, to the thread that loads it and to those it starts.
FLUSHES = """
import ctypes, ctypes.util

libm, state = ctypes.CDLL(ctypes.util.find_library("m")), (ctypes.c_uint32 * 8)()
libm.fegetenv(state)
state[7] |= 0x8040
libm.fesetenv(state)
"""


@pytest.fixture(scope="module")
def no_room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk of one megabyte."""
    disk = tmp_path_factory.mktemp("disk")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("a small disk can be mounted by root only")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def an_older_autograd(folder: Path) -> str:
    """A copy of autograd that says it is another version."""
    shutil.copytree(Path(autograd.__file__).parent, folder / "autograd")
    about = folder / "autograd-1.8.0.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: autograd\nVersion: 1.8.0\n")
    return str(folder)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, no_room: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Start workers that are broken, each in one way; yield the scheduler's address, and theirs by name."""
    place = tmp_path_factory.mktemp("broken")
    file, flushing = place / "scheduler.json", place / "flushing.py"
    flushing.write_text(FLUSHES)
    quick = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "2s"}
    alike = ["--scheduler-file", str(file), "--no-nanny", "--nthreads", "1", "--memory-limit", "500MB"]
    workers: dict[str, Any] = {
        "healthy": ([], {}),
        "without": ([], {"path": without_dagad(place / "without")}),
        "older": ([], {"path": an_older_autograd(place / "older")}),
        "flushing": (["--preload", str(flushing)], {}),
        "full": (["--local-directory", str(no_room)], {}),
        "away": (["--listen-address", "tcp://127.0.0.1:0", "--contact-address", "tcp://127.0.0.1:1"], {}),
    }
    with contextlib.ExitStack() as running:
        options = ["--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file)]
        running.enter_context(a_process("scheduler", *options, **quick))
        for name, (more, own) in workers.items():
            where = [] if name == "full" else ["--local-directory", str(place)]
            where += [] if name == "away" else ["--host", "127.0.0.1"]
            running.enter_context(a_process("worker", *alike, "--name", name, *where, *more, **own))
        with Client(scheduler_file=str(file), set_as_default=False, timeout=PATIENCE) as client:
            client.wait_for_workers(len(workers), PATIENCE)
            info = identity(client)
        yield info["address"], {said["name"]: address for address, said in info["workers"].items()}


def test_the_doctor_names_each_broken_worker_with_its_remedy(broken: tuple[str, dict[str, str]]) -> None:
    address, names = broken
    found = doctor.diagnosis(address, patience=ENOUGH)
    assert f"{names['away']}: the scheduler can't reach it -> Its address" in graded(found, "workers")["bad"]
    assert f"{names['without']}: can't import dagad (ModuleNotFoundError" in graded(found, "imports")["bad"]
    assert f"{names['older']}: autograd 1.8.0, the client has" in graded(found, "versions")["look"]
    assert f"{names['flushing']}: numbers below 2.2e-308 are flushed" in graded(found, "precision")["bad"]
    assert f"{names['full']}: 0.00 GB free in" in graded(found, "spill")["bad"]
    assert "on 4 workers" in graded(found, "gradient (graph)")["ok"]
    assert "not tried: some workers can't run dagad -> Mend" in graded(found, "gradient (hot loop)")["look"]


def test_limits_that_a_site_sets_are_named_and_worked_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the scheduler reaches the workers, and runs no functions itself."""
    file, blocked = tmp_path / "scheduler.json", {"DASK_DISTRIBUTED__SCHEDULER__BLOCKED_HANDLERS": "['run_function']"}
    alike = ["--scheduler-file", str(file), "--host", "127.0.0.1"]
    with (
        a_process("scheduler", *alike, "--port", "0", **blocked),
        a_process("worker", *alike, "--no-nanny", "--nthreads", "1"),
    ):
        with Client(scheduler_file=str(file), set_as_default=False, timeout=PATIENCE) as client:
            client.wait_for_workers(1, PATIENCE)
            address = identity(client)["address"]
        connect: Any = BaseTCPConnector.connect

        async def behind_a_firewall(self: Any, address: str, *args: Any, **kwargs: Any) -> Any:
            if f"tcp://{address}" != allowed:
                raise ConnectionRefusedError(address)
            return await connect(self, address, *args, **kwargs)

        allowed = address
        monkeypatch.setattr(BaseTCPConnector, "connect", behind_a_firewall)
        found = doctor.diagnosis(address, patience=ENOUGH)
    assert "runs no functions (ValueError: The 'run_function' handler" in graded(found, "scheduler")["look"]
    assert "ok" in graded(found, "versions")
    assert "can't be reached from the client -> Calls go through the scheduler" in graded(found, "network")["look"]
    assert "on 1 workers" in graded(found, "gradient (hot loop)")["ok"]


def test_certificates_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ca.pem").touch()
    with pytest.raises(SystemExit):
        doctor.main(["tls://127.0.0.1:1", "--security", str(tmp_path)])
    said = capsys.readouterr().err
    assert "there is no client.pem, client-key.pem. deploy/tls/make_certificates.sh makes it." in said
    assert "Traceback" not in said
