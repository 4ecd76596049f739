"""Recipes: are their scripts, settings and manifests sound, and does a cluster on this machine start over TLS?"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest
import yaml
from distributed import Client
from distributed.security import Security
from packaging.requirements import Requirement
from packaging.version import Version

from dagad import doctor
from support.deploy_recipes import DEPLOY, FILES, KINDS, environment, jobqueue, run, section, theta
from support.waiting import PATIENCE

pytestmark = pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")

SCRIPTS = [
    path
    for path in (*FILES, Path(__file__).with_name("slurm_local.sh"))
    if path.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash")
]
PLACES = [f"{path.name}/" for path in sorted(DEPLOY.iterdir()) if path.is_dir() and path.name != "__pycache__"]
PROJECT: dict[str, Any] = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]


# What is tested of each file, by which tests of this directory.
TESTED = {
    "fit.py": ["a_fit_over_tls_has_the_bits_of_threads"],
    "model.py": ["a_fit_over_tls_has_the_bits_of_threads"],
    "ssh/cluster.sh": [
        "a_fit_over_tls_has_the_bits_of_threads",
        "a_cluster_of_the_ssh_recipe_listens_on_the_loopback_only",
    ],
    "tls/make_certificates.sh": ["certificates_are_their_owners_and_nobody_elses_are_taken"],
    "slurm/jobqueue.yaml": [
        "a_gradient_survives_the_jobs_it_runs_on",
        "a_section_for_a_queue_sets_options_that_there_are",
    ],
    "slurm/driver.sbatch": ["the_slurm_scripts_give_the_bits_of_threads_and_go_on_after_the_walltime"],
    "slurm/runner.sbatch": ["the_slurm_scripts_give_the_bits_of_threads_and_go_on_after_the_walltime"],
    "pbs/jobqueue.yaml": ["a_section_makes_jobs_whose_workers_retire_before_the_walltime"],
    "pbs/driver.pbs": [
        "a_driver_of_pbs_submits_one_that_goes_on_before_its_walltime",
        "a_driver_of_pbs_that_is_deleted_submits_nothing",
    ],
    "sge/jobqueue.yaml": ["a_section_makes_jobs_whose_workers_retire_before_the_walltime"],
    "sge/driver.sge": [
        "a_driver_of_grid_engine_submits_one_that_goes_on_at_its_walltime",
        "a_driver_of_grid_engine_that_is_suspended_and_deleted_submits_nothing",
    ],
    "kubernetes/cluster.yaml": ["manifests_are_what_the_operator_takes"],
    "container/Containerfile": ["an_image_has_pinned_versions_that_dagad_takes"],
    "container/requirements.txt": ["an_image_has_pinned_versions_that_dagad_takes"],
    **{f"{path}README.md": ["a_page_of_a_recipe_names_files_that_there_are"] for path in ("", *PLACES)},
}


def test_no_recipe_is_untested() -> None:
    assert {str(path.relative_to(DEPLOY)) for path in FILES} == TESTED.keys()
    here = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert not [test for tests in TESTED.values() for test in tests if f"def test_{test}(" not in here]


# Text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_of_a_recipe_passes_bash_and_shellcheck(script: Path) -> None:
    run("bash -n", str(script), cwd=DEPLOY)
    run("shellcheck --severity=warning", str(script), cwd=DEPLOY)
    assert script.stat().st_mode & 0o111


@pytest.mark.parametrize("page", sorted(DEPLOY.rglob("*.md")), ids=lambda page: page.parent.name)
def test_a_page_of_a_recipe_names_files_that_there_are(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text)]
    assert not [link for link in links if not (page.parent / link).exists()]
    places = "|".join(path.name for path in DEPLOY.iterdir() if path.is_dir())
    named = re.findall(rf"(?<![\w-])((?:{places})/\w+\.(?:sbatch|pbs|sge|sh|yaml)\b)", text)
    assert not [name for name in named if not (DEPLOY / name).exists()]


@pytest.mark.parametrize("queue", KINDS)
def test_a_section_for_a_queue_sets_options_that_there_are(queue: str) -> None:
    jobqueue()
    defaults = yaml.safe_load(Path(jobqueue().__file__).with_name("jobqueue.yaml").read_text(encoding="utf-8"))
    deprecated = {"extra", "job-extra", "env-extra", "header-skip", *(["project"] if queue != "sge" else [])}
    (ours,) = section(queue)["jobqueue"].values()
    assert ours.keys() <= defaults["jobqueue"][queue].keys() - deprecated
    assert defaults["jobqueue"][queue].keys() - ours.keys() <= deprecated | SELDOM


SELDOM = {"worker-command", "shebang", "job-cpu", "job-mem", "memory-per-core-property-name"}


@pytest.mark.parametrize("queue", KINDS)
def test_dashboards_of_a_queue_are_bound_to_the_loopback(queue: str) -> None:
    (ours,) = section(queue)["jobqueue"].values()
    bound = ours["worker-extra-args"][ours["worker-extra-args"].index("--dashboard-address") + 1]
    assert (bound, ours["scheduler-options"]["dashboard_address"]) == ("127.0.0.1:0", "127.0.0.1:8787")
    assert '"dashboard_address": "127.0.0.1:0"' in (DEPLOY / "fit.py").read_text(encoding="utf-8")  # within srun


@pytest.mark.parametrize("queue", KINDS)
def test_a_section_makes_jobs_whose_workers_retire_before_the_walltime(
    queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = getattr(jobqueue(f".{queue}"), f"{KINDS[queue]}Job")
    monkeypatch.chdir(tmp_path)
    with dask.config.set(dask.config.merge(dask.config.config, section(queue))):
        script = job("tcp://10.0.0.1:8786", name="0").job_script()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert {"slurm": "#SBATCH --cpus-per-task=8", "pbs": "ncpus=8:mem=16GB", "sge": "#$ -pe smp 8"}[queue] in script
    assert "--nworkers 8 --nanny" in script
    assert "--nthreads 1 --memory-limit 2.00GiB" in script
    (walltime,) = re.findall(r"(\d\d):(\d\d):00", script)
    lifetime, stagger = map(int, re.findall(r"--lifetime(?:-stagger)? (\d+)m", script))
    assert lifetime + stagger < 60 * int(walltime[0]) + int(walltime[1])


def test_a_job_script_is_the_section_and_nothing_of_the_shell(tmp_path: Path) -> None:
    code = "from dask_jobqueue.slurm import SLURMJob as J; print(J('tcp://10.0.0.1:8786', name='0').job_script())"
    printed = run(sys.executable, "-c", code, cwd=tmp_path, DASK_CONFIG=str(DEPLOY / "slurm" / "jobqueue.yaml"))
    assert "#SBATCH -t 04:00:00" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["dagad-logs"]


# What the operator's resource definitions of 2026.3 require, and what it looks for by name.
REQUIRED = {
    "DaskCluster": ["spec.worker.spec.containers", "spec.scheduler.spec.containers", "spec.scheduler.service"],
    "DaskAutoscaler": ["spec.cluster", "spec.minimum", "spec.maximum"],
    "NetworkPolicy": ["spec.podSelector", "spec.policyTypes", "spec.ingress"],
}
CONTAINER = {"name": str, "image": str, "args": list, "env": list, "resources": dict}


def at(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document[name]
    return document


def test_manifests_are_what_the_operator_takes() -> None:
    text = (DEPLOY / "kubernetes" / "cluster.yaml").read_text(encoding="utf-8")
    documents = {document["kind"]: document for document in yaml.safe_load_all(text)}
    assert documents.keys() == REQUIRED.keys()
    for kind, paths in REQUIRED.items():
        assert documents[kind]["apiVersion"] == (
            "networking.k8s.io/v1" if kind == "NetworkPolicy" else "kubernetes.dask.org/v1"
        )
        assert all(at(documents[kind], path) not in (None, []) for path in paths)
    cluster = documents["DaskCluster"]
    name = cluster["metadata"]["name"]
    assert documents["DaskAutoscaler"]["spec"]["cluster"] == name
    worker, scheduler = (at(cluster, f"spec.{part}.spec.containers")[0] for part in ("worker", "scheduler"))
    for container in (worker, scheduler):
        assert {key: type(container[key]) for key in CONTAINER} == CONTAINER
        assert {type(word) for word in container["args"]} == {str}
        assert all(isinstance(setting["value"], str) for setting in container["env"])
    assert worker["image"] == scheduler["image"]
    assert {"$(DASK_WORKER_NAME)", "--no-dashboard"} <= set(worker["args"])
    assert {port["name"] for port in scheduler["ports"]} == {"tcp-comm", "http-dashboard"}
    service = cluster["spec"]["scheduler"]["service"]
    assert {port["targetPort"] for port in service["ports"]} == {"tcp-comm", "http-dashboard"}
    assert service["selector"] == {"dask.org/cluster-name": name, "dask.org/component": "scheduler"}
    assert service["type"] == "ClusterIP"  # the dashboard: nobody from outside, and of others those the policy names
    assert at(documents["NetworkPolicy"], "spec.podSelector.matchLabels") == {"dask.org/cluster-name": name}
    limit = worker["args"][worker["args"].index("--memory-limit") + 1]
    assert limit.removesuffix("B") == worker["resources"]["limits"]["memory"]


def test_an_image_has_pinned_versions_that_dagad_takes() -> None:
    lines = (DEPLOY / "container" / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    steps = [line.split() for line in lines if line and not line.startswith("#")]
    assert {step[0] for step in steps} <= {"FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "CMD"}
    (base,) = (step[1] for step in steps if step[0] == "FROM")
    (python,) = re.findall(r"/python:(\d+\.\d+\.\d+)-", base)
    assert Version(python) >= Version(PROJECT["requires-python"].removeprefix(">="))
    copied = [path for step in steps if step[0] == "COPY" for path in step[1:-1]]
    assert not [path for path in copied if not (DEPLOY.parent / path).exists()]
    pinned = dict(
        line.split("==") for line in (DEPLOY / "container" / "requirements.txt").read_text(encoding="utf-8").split()
    )
    for requirement in map(Requirement, PROJECT["dependencies"]):
        assert requirement.specifier.contains(pinned[requirement.name]), requirement


# Drivers


# What stands for the program and the queue, and writes down how it is called. The program ends in order at TERM only:
# other signals kill it, and all processes of a job get those of the queue.
STAND_INS = {
    "python": "trap 'echo stopped; exit 1' TERM; echo begun; while :; do sleep 0.05; done",
    "qsub": 'echo "qsub $*"',
    "qstat": 'echo "$SAID"',
}
OF_PBS, OF_SGE = "    Resource_List.walltime = {}", "hard resource_list:         h_rt={},mem_free=1G"
FOLLOWS = {queue: f"qsub -v CHECKPOINT=checkpoint-17,JOBS=2 {queue}/driver.{queue}" for queue in ("pbs", "sge")}
ENDED = {queue: f"ended by qdel; to go on: {FOLLOWS[queue].replace(',JOBS=2', '')}" for queue in FOLLOWS}
UNKNOWN = "qstat shows no walltime of more than three minutes: at its end no job follows by itself"


def said_by_driver(queue: str, signals: Sequence[str], qstat: str, directory: Path) -> list[str]:
    """Return what a driver and its stand-ins say, when all of the job get some signals."""
    for name, does in STAND_INS.items():
        (directory / name).write_text(f"#!/usr/bin/env bash\n{does}\n", encoding="utf-8")
        (directory / name).chmod(0o755)
    env = environment(PBS_JOBID="17", JOB_ID="17", SAID=qstat)
    env["PATH"] = f"{directory}:{env['PATH']}"
    script = ["bash", str(DEPLOY / queue / f"driver.{queue}")]
    options: dict[str, Any] = {"cwd": directory, "env": env, "text": True, "start_new_session": True}
    with subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options) as driver:
        assert driver.stdout is not None
        said = [driver.stdout.readline()]
        while said[-1] not in ("begun\n", ""):
            said.append(driver.stdout.readline())
        try:
            for name in signals:
                os.killpg(driver.pid, getattr(signal, f"SIG{name}"))
            said += driver.communicate(timeout=PATIENCE)[0].splitlines()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
    # The program may be stopped twice, by the queue and by the script.
    return [line for line in dict.fromkeys(map(str.strip, said)) if "Terminated" not in line]


def test_a_driver_of_pbs_submits_one_that_goes_on_before_its_walltime(tmp_path: Path) -> None:
    assert said_by_driver("pbs", [], OF_PBS.format("00:03:02"), tmp_path) == ["begun", "stopped", FOLLOWS["pbs"]]


@pytest.mark.parametrize("walltime", ["24:00:00", "08:09:09"])
def test_a_driver_of_pbs_that_is_deleted_submits_nothing(walltime: str, tmp_path: Path) -> None:
    said = said_by_driver("pbs", ["TERM"], OF_PBS.format(walltime), tmp_path)
    assert said == ["begun", "stopped", ENDED["pbs"]]


def test_a_driver_of_pbs_that_does_not_know_its_walltime_says_so(tmp_path: Path) -> None:
    said = said_by_driver("pbs", ["TERM"], "", tmp_path)
    assert said == [UNKNOWN, "begun", "stopped", ENDED["pbs"]]


@pytest.mark.parametrize("qstat", [OF_SGE.format(200), ""])
def test_a_driver_of_grid_engine_submits_one_that_goes_on_at_its_walltime(qstat: str, tmp_path: Path) -> None:
    assert said_by_driver("sge", ["USR2"], qstat, tmp_path) == ["begun", "stopped", FOLLOWS["sge"]]


def test_a_driver_of_grid_engine_that_is_suspended_and_deleted_submits_nothing(tmp_path: Path) -> None:
    said = said_by_driver("sge", ["USR1", "USR2"], OF_SGE.format(86400), tmp_path)
    assert said == ["begun", "stopped", ENDED["sge"]]


# A cluster on this machine, over TLS


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Start a scheduler and two workers by the recipe; yield the address, and where the certificates are."""
    place = tmp_path_factory.mktemp("run")
    settings: Any = {"HOSTS": "localhost", "WORKERS": "2", "MEMORY": "1GiB", "TLS": "yes"}
    settings |= {"RUN": str(place), "PORT": free_port(), "DASHBOARD": f"127.0.0.1:{free_port()}"}
    script = str(DEPLOY / "ssh" / "cluster.sh")
    address = run(script, "start", cwd=place, **settings).strip()
    pids = [int(path.read_text(encoding="utf-8")) for path in place.glob("*.pid")]
    try:
        with Client(address, security=certificates(place / "tls"), set_as_default=False) as client:
            client.wait_for_workers(2, 60)
        yield address, place
    finally:
        run(script, "stop", cwd=place, **settings)
        psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=PATIENCE)


def certificates(directory: Path) -> Security:
    parts = {"tls_client_cert": "client.pem", "tls_client_key": "client-key.pem", "tls_ca_file": "ca.pem"}
    shown: Any = {name: str(directory / file) for name, file in parts.items()}
    return Security(require_encryption=True, **shown)


def test_a_fit_over_tls_has_the_bits_of_threads(started: tuple[str, Path], tmp_path: Path) -> None:
    address, place = started
    assert address.startswith("tls://127.0.0.1:")
    fit = f"{sys.executable} {DEPLOY / 'fit.py'}"
    here = run(fit, "threads", cwd=tmp_path)
    there = run(fit, address, "--security", str(place / "tls"), "--checkpoint", "there", cwd=tmp_path)
    assert theta(here) == theta(there)


def test_the_doctor_and_the_examples_take_certificates(
    started: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address, place = started
    shown = ("--security", str(place / "tls"))
    assert doctor.main([address, *shown]) == 0
    printed = capsys.readouterr().out
    assert "ok   encryption: TLS" in printed
    assert "ok   gradient (hot loop)" in printed
    assert doctor.main([address, "--patience", "2"]) == 1
    assert re.search(r"bad  scheduler: tls://.* can't be reached", capsys.readouterr().out)
    example = DEPLOY.parent / "examples" / "doctor_visits.py"
    assert "-43383.66" in run(f"{sys.executable} {example} --check --scheduler {address}", *shown, cwd=tmp_path)


def test_a_cluster_of_the_ssh_recipe_listens_on_the_loopback_only(started: tuple[str, Path]) -> None:
    _, place = started
    group = [int(path.read_text(encoding="utf-8")) for path in place.glob("*.pid")]
    parts = [part for pid in group for part in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]]
    listening = {
        line.laddr.ip for part in parts for line in part.net_connections() if line.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_certificates_are_their_owners_and_nobody_elses_are_taken(started: tuple[str, Path], tmp_path: Path) -> None:
    address, place = started
    assert place.stat().st_mode & 0o077 == 0
    assert not [path for path in (place / "tls").iterdir() if path.stat().st_mode & 0o077]
    assert not (place / "tls" / "ca-key.pem").exists()
    script = str(DEPLOY / "tls" / "make_certificates.sh")
    run(script, str(tmp_path / "others"), cwd=tmp_path)
    with pytest.raises(AssertionError, match="has certificates already"):
        run(script, str(tmp_path / "others"), cwd=tmp_path)
    with Client(address, security=certificates(place / "tls"), set_as_default=False) as client:
        parts = [address, *client.nthreads()]
    assert len(parts) == 3
    context = certificates(tmp_path / "others").get_connection_args("client")["ssl_context"]
    for part in parts:  # scheduler and workers, where hot loops are answered too
        host, port = part.removeprefix("tls://").split(":")
        with pytest.raises(OSError, match=r"certificate|unknown ca|reset|EOF"):
            ask(host, int(port), context)


def ask(host: str, port: int, context: ssl.SSLContext) -> None:
    with socket.create_connection((host, port), 10) as raw, context.wrap_socket(raw) as line:
        line.sendall(bytes(64))
        if not line.recv(1):
            raise ConnectionError("reset: hung up without a word")
