"""The doctor: does it find a healthy cluster healthy, and name what is broken, with the remedy?"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import autograd
import pytest
from distributed import Client
from distributed.comm.tcp import BaseTCPConnector

from dagad import doctor
from dagad._api import facts
from dagad._api.fitness import LAST_BITS, Finding, Part, Seen, findings
from support.clusters import a_process, without_dagad
from support.waiting import PATIENCE

pytestmark = [
    pytest.mark.whole("what is shown: pages, bars, certificates, examinations of clusters"),
]


def graded(found: list[Finding], check: str) -> dict[str, str]:
    """Return the texts of one check, by their grades."""
    texts: dict[str, str] = {}
    for finding in found:
        if finding.check == check:
            texts[finding.grade] = f"{texts.get(finding.grade, '')}{finding.text} -> {finding.remedy}\n"
    return texts


# Decisions


def seen(*workers: Part, **scheduler: Any) -> Seen:
    """A cluster of which everything is like here."""
    here = {**facts.facts(), "n_cpus": 8}
    asked = dict.fromkeys(("idle_timeout",), None) | {"allowed_failures": 3}
    return Seen("tcp://10.0.0.1:8786", here, here | asked | scheduler, (1e-3, 1e9), list(workers))


def worker(name: str = "tcp://10.0.0.2:1", *, part: dict[str, Any] | None = None, **said: Any) -> Part:
    own = {**facts.facts(), "n_cpus": 8, "directory": "/spill", "free": 10**12, "lifetime": None, **said}
    return Part(name, own["python"], memory_limit=10**9, facts=own, direct=(1e-3, 1e9), **(part or {}))


def settings(**some: Any) -> dict[str, Any]:
    return {**facts.facts()["settings"], **{f"distributed.{k.replace('__', '.')}": v for k, v in some.items()}}


@pytest.mark.parametrize(
    ("cluster", "check", "grade", "says"),
    [
        (seen(), "workers", "bad", "there are none -> Start some"),
        (seen(refusal="E"), "scheduler", "look", r"runs no functions \(E\) -> Take run_function out"),
        (seen(Part("b", "3.12.1")), "versions", "bad", "b: python 3.12.1, the client has .* -> Install the same"),
        (seen(worker(cpu="A"), worker("b", cpu="B")), "processors", "look", "b: B -> numpy picks its loops"),
        (seen(worker(jax_x64=False)), "precision", "look", "JAX computes in float32 -> Set JAX_ENABLE_X64=1"),
        (seen(worker(jax_x64=True)), "precision", "ok", "double"),
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
        (seen(worker(part={"gradients": {"graph": "wrong by 1"}})), "gradient (graph)", "bad", "wrong by 1"),
    ],
)
def test_the_doctor_grades_each_fact_of_a_cluster_and_names_a_remedy(
    cluster: Seen, check: str, grade: str, says: str
) -> None:
    assert re.search(says, graded(findings(cluster), check)[grade], re.DOTALL)


# A healthy cluster


def test_a_healthy_cluster_is_found_healthy(cluster: Client, capsys: pytest.CaptureFixture[str]) -> None:
    scheduler: Any = cluster.scheduler
    address = scheduler.address
    assert doctor.main([address]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "ok   gradient (hot loop): right, with the bits of the client, on 2 workers" in lines
    assert not [line for line in lines if line.startswith("bad")]
    assert doctor.main([address, "--json"]) == 0
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


def a_jax(folder: Path) -> str:
    """A package that is found where JAX is looked for, whose numbers are float32 unless a flag is set."""
    (folder / "jax").mkdir(parents=True)
    (folder / "jax" / "__init__.py").touch()
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
        "single": ([], {"path": a_jax(place / "single"), "JAX_ENABLE_X64": "0"}),
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
            env = {"JAX_ENABLE_X64": "1", **own}
            running.enter_context(a_process("worker", *alike, "--name", name, *where, *more, **env))
        with Client(scheduler_file=str(file), set_as_default=False, timeout=PATIENCE) as client:
            client.wait_for_workers(len(workers), PATIENCE)
            info = client.scheduler_info(n_workers=-1)
        yield info["address"], {said["name"]: address for address, said in info["workers"].items()}


def test_the_doctor_names_each_broken_worker_with_its_remedy(broken: tuple[str, dict[str, str]]) -> None:
    address, names = broken
    found = doctor.diagnosis(address)
    assert f"{names['away']}: the scheduler can't reach it -> Its address" in graded(found, "workers")["bad"]
    assert f"{names['without']}: can't import dagad (ModuleNotFoundError" in graded(found, "imports")["bad"]
    assert f"{names['older']}: autograd 1.8.0, the client has" in graded(found, "versions")["look"]
    assert f"{names['single']}: JAX computes in float32 -> Set JAX_ENABLE_X64=1" in graded(found, "precision")["look"]
    assert f"{names['flushing']}: numbers below 2.2e-308 are flushed" in graded(found, "precision")["bad"]
    assert f"{names['full']}: 0.00 GB free in" in graded(found, "spill")["bad"]
    assert "on 5 workers" in graded(found, "gradient (graph)")["ok"]
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
            address = client.scheduler_info(n_workers=-1)["address"]
        connect: Any = BaseTCPConnector.connect

        async def behind_a_firewall(self: Any, address: str, *args: Any, **kwargs: Any) -> Any:
            if f"tcp://{address}" != allowed:
                raise ConnectionRefusedError(address)
            return await connect(self, address, *args, **kwargs)

        allowed = address
        monkeypatch.setattr(BaseTCPConnector, "connect", behind_a_firewall)
        found = doctor.diagnosis(address, patience=5.0)
    assert "runs no functions (ValueError: The 'run_function' handler" in graded(found, "scheduler")["look"]
    assert "ok" in graded(found, "versions")
    assert "can't be reached from the client -> Calls go through the scheduler" in graded(found, "network")["look"]
    assert "on 1 workers" in graded(found, "gradient (hot loop)")["ok"]
