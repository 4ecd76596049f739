"""A real Slurm of two nodes: do the recipes run on it, and are the bits those of threads when its jobs end or die?"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import yaml
from distributed import Client

import dagad
from support import bits_of_examples
from support.deploy_recipes import DEPLOY, environment, jobqueue, run, section, theta
from support.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.whole("programs, pages, recipes and pools that start processes of their own"),
]

X, THETA = np.random.default_rng(0).standard_normal((40, 3)), np.array([0.3, -0.7, 1.1])
LONG = 3 * PATIENCE  # Slurm looks at walltimes twice a minute, and the queue takes its time
HERE = {"queue": "debug", "cores": 1, "processes": 1, "memory": "600 MiB", "interface": "lo", "walltime": "00:10:00"}


def loss_on(scheduler: Any) -> Callable[[Any], Any]:
    def slow(rows: Any, theta: Any) -> Any:
        time.sleep(0.05)  # work that lasts, for jobs to die in the middle of it
        return np.sum(np.exp(np.tanh(rows @ theta)))

    return lambda theta: dagad.reduce_sum(slow, X, theta, grainsize=1, scheduler=scheduler)


def gradient_on(scheduler: Any) -> bytes:
    value, gradient = dagad.value_and_grad(loss_on(scheduler))(THETA)
    return np.append(gradient, value).tobytes()


@pytest.fixture(scope="module")
def expected() -> bytes:
    return gradient_on("threads")


def settings(place: Path, **more: Any) -> dict[str, Any]:
    """Return the section that is shipped, with what has to be edited for this Slurm."""
    own = {"local-directory": str(place), "log-directory": str(place / "logs"), **more}
    own["scheduler-options"] = section("slurm")["jobqueue"]["slurm"]["scheduler-options"] | {
        "dashboard_address": "127.0.0.1:0"
    }
    edits = {"jobqueue": {"slurm": HERE | own}, "distributed": {"deploy": {"lost-worker-timeout": "1s"}}}
    merged: dict[str, Any] = dask.config.merge(section("slurm"), edits)
    return merged


def three_ports() -> int:
    """Return the first of three ports in a row that nobody has, below those that are given out to connections."""
    for first in range(20_000 + 10 * (os.getpid() % 1000), 32_000, 3):
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for port in range(first, first + 3):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("all ports are taken")


@pytest.fixture(scope="module")
def slurm() -> Iterator[Path]:
    """Start Slurm, and yield a place with a copy of the recipes, edited for it."""
    script = Path(__file__).with_name("slurm_local.sh")
    lab = Path(tempfile.mkdtemp(prefix="slurm"))  # short: the paths of sockets end at 108 bytes
    env = environment(LAB=str(lab), PORT=str(three_ports()), CPUS="4", MEM="4000")
    try:
        done = subprocess.run([script, "start"], env=env, capture_output=True, text=True, timeout=3 * PATIENCE)
        said = done.stdout + done.stderr
        if done.returncode and not shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin"):
            pytest.skip(f"Slurm can't be installed here: {said[-500:]}")
        assert done.returncode == 0, said
        place = lab / "recipes"
        shutil.copytree(DEPLOY, place)
        (place / "slurm" / "jobqueue.yaml").write_text(yaml.safe_dump(settings(place)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", str(lab / "etc" / "slurm.conf"))
            yield place
    finally:
        subprocess.run([script, "stop", "--purge"], env=env, capture_output=True, timeout=2 * PATIENCE)
        shutil.rmtree(lab, ignore_errors=True)


@contextlib.contextmanager
def a_cluster(place: Path, **more: Any) -> Iterator[tuple[Any, Client]]:
    """Open a cluster whose workers are jobs."""
    with dask.config.set(dask.config.merge(dask.config.config, jobqueue_defaults(), settings(place, **more))):
        with jobqueue().SLURMCluster() as cluster, Client(cluster, set_as_default=False) as client:
            yield cluster, client


def jobqueue_defaults() -> Any:
    path = Path(jobqueue().__file__).with_name("jobqueue.yaml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs(cluster: Any) -> list[str]:
    return [str(job.job_id) for job in cluster.workers.values() if job.job_id]


def evaluated_while(client: Client, happens: Callable[[], Any]) -> bytes:
    """Let something happen in the middle of a gradient, and return that."""
    evaluation = dagad.evaluate(loss_on(client), THETA)
    until(lambda: evaluation.progress.values_done > 4)
    happens()
    gradient = evaluation.gradient(LONG)
    return np.append(gradient, evaluation.value()).tobytes()


def state_of(job: str) -> str:
    said = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=True).stdout
    return str(re.findall(r"JobState=(\w+)", said)[0])


def test_a_gradient_survives_the_jobs_it_runs_on(slurm: Path, expected: bytes) -> None:
    began = time.perf_counter()
    with a_cluster(slurm) as (cluster, client):
        cluster.scale(jobs=2)
        client.wait_for_workers(2, PATIENCE)
        assert gradient_on(client) == expected
        print(f"from nothing to the first gradient: {time.perf_counter() - began:.1f} s")
        nodes = subprocess.run(["squeue", "-h", "-o", "%N"], capture_output=True, text=True, check=True).stdout.split()
        assert sorted(nodes) == ["n1", "n2"]
        first, second = jobs(cluster)
        cluster.adapt(minimum_jobs=2, maximum_jobs=2, interval="200ms")

        assert evaluated_while(client, lambda: subprocess.run(["scontrol", "requeue", first], check=True)) == expected
        assert "Restarts=1" in run(f"scontrol show job {first}", cwd=slurm)
        until(lambda: first not in jobs(cluster))
        client.wait_for_workers(2, LONG)  # others have taken its place

        (third,) = set(jobs(cluster)) - {second}
        assert evaluated_while(client, lambda: subprocess.run(["scancel", third], check=True)) == expected

        until(lambda: third not in jobs(cluster))
        client.wait_for_workers(2, LONG)
        # Only now does the walltime of the second end: Slurm sees that when it next looks, twice a minute, and if that
        # were while another job is on its way back, there would be no worker at all.
        run(f"scontrol update jobid={second} EndTime=now+1seconds", cwd=slurm)
        ends = time.monotonic() + LONG
        while state_of(second) == "RUNNING" and time.monotonic() < ends:
            assert gradient_on(client) == expected  # the last of them began before the walltime, and ended after it
        until(lambda: state_of(second) == "TIMEOUT")
        assert f"Time limit exhausted for JobId={second}" in (slurm.parent / "log" / "slurmctld.log").read_text()
        until(lambda: not {first, second, third} & set(jobs(cluster)))
        client.wait_for_workers(2, LONG)
        assert gradient_on(client) == expected
    until(lambda: not subprocess.run(["squeue", "-h"], capture_output=True, check=True).stdout)


def test_a_loop_survives_the_ends_of_its_workers_lives(slurm: Path) -> None:
    def short(rows: Any, theta: Any) -> Any:
        return np.sum(np.exp(np.tanh(rows @ theta)))

    def loop(scheduler: Any) -> Callable[[], bytes]:
        rows = dagad.shard(X, grainsize=5, scheduler=scheduler)
        gradient = dagad.grad(lambda theta: dagad.reduce_sum(short, rows, theta))
        return lambda: bytes(gradient(THETA).tobytes())

    lives = ["--lifetime", "4s", "--lifetime-stagger", "1s"]
    with a_cluster(slurm, **{"worker-extra-args": lives}) as (cluster, client):
        cluster.adapt(minimum_jobs=2, maximum_jobs=2, interval="200ms")
        client.wait_for_workers(2, PATIENCE)
        expected, evaluate = loop("sync")(), loop(client)
        first, ends = set(jobs(cluster)), time.monotonic() + LONG
        while first & set(jobs(cluster)) and time.monotonic() < ends:
            assert evaluate() == expected
        assert not first & set(jobs(cluster))
        assert evaluate() == expected


def test_the_examples_give_the_bits_of_threads_on_the_queue(slurm: Path) -> None:
    """The fit of `doctor_visits`, with its Hessian, and a gradient of `pharmacokinetics`."""
    program, examples = Path(bits_of_examples.__file__), DEPLOY.parent / "examples"
    config: Any = {"DASK_CONFIG": str(slurm / "slurm" / "jobqueue.yaml")}
    config["PYTHONPATH"] = os.pathsep.join([str(examples), *sys.path])
    printed = run(f"{sys.executable} {program} --scheduler slurm", cwd=slurm, **config)
    assert printed.splitlines() == ["doctor_visits: the same bits", "pharmacokinetics: the same bits"]


# The scripts of the recipe


def submitted(place: Path, script: str, *options: str) -> tuple[str, Path]:
    """Submit a script that is smaller than it is shipped; return the job, and where its log goes."""
    command = f"sbatch --parsable --export=ALL {' '.join(options)}"
    job = run(command, cwd=place, DASK_CONFIG=str(place / "slurm" / "jobqueue.yaml"), JOBS="1").strip()
    return job, place / f"dagad-{Path(script).stem}-{job}.log"


def said(log: Path, word: str) -> str:
    """Return what a job has said when it has said a word."""
    with contextlib.suppress(AssertionError):
        until(lambda: log.exists() and word in log.read_text(encoding="utf-8"), LONG)
    found = log.read_text(encoding="utf-8") if log.exists() else ""
    assert word in found, found + run("scontrol show jobs", cwd=log.parent)
    return found


@pytest.fixture(scope="module")
def fitted(slurm: Path) -> str:
    """What threads find, with a model that takes its time."""
    model = slurm / "model.py"
    text = model.read_text(encoding="utf-8")
    model.write_text(text.replace("    odds =", "    import time\n\n    time.sleep(0.01)\n    odds ="))
    return theta(run(f"{sys.executable} fit.py threads --checkpoint here", cwd=slurm))


def test_the_slurm_scripts_give_the_bits_of_threads_and_go_on_after_the_walltime(slurm: Path, fitted: str) -> None:
    run("tls/make_certificates.sh certificates", cwd=slurm)
    options = "--cpus-per-task=1 --mem=600M"
    job, log = submitted(slurm, "driver.sbatch", f"{options} slurm/driver.sbatch --security certificates")
    said(log, "first gradient")
    run(f"scancel --signal=USR1 --batch {job}", cwd=slurm)  # what Slurm sends before the walltime
    options = "--nodes=2 --ntasks=4 --mem-per-cpu=400M"  # while the first one waits, another one that holds all
    _, other = submitted(slurm, "runner.sbatch", f"{options} slurm/runner.sbatch --interface lo")
    assert theta(said(other, "theta")) == fitted
    text = said(log, "theta")
    assert theta(text) == fitted
    assert "scheduler tls://127.0.0.1:" in text
    known = [int(line.split()[-3]) for line in text.splitlines() if line.startswith("first gradient")]
    assert known[0] == 0 < known[-1], text
    until(lambda: not subprocess.run(["squeue", "-h"], capture_output=True, check=True).stdout)
