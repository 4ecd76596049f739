"""Options of the programs in deploy/ and examples/ that can't be: is each told in a line?"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["slrum"], "Did you mean slurm?"),
        (["elsewhere"], "nor an address such as tcp://10.0.0.1:8786."),
        (["threads", "--security", "/nonexistent"], "there is no ca.pem. tls/make_certificates.sh makes it."),
    ],
)
def test_an_option_of_fit_that_cannot_be_is_refused_in_a_line(options: list[str], sentence: str) -> None:
    command = [sys.executable, str(ROOT / "deploy" / "fit.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert sentence in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
@pytest.mark.skipif(shutil.which("setsid") is None, reason="cluster.sh starts its processes by setsid")
def test_a_port_that_is_taken_is_named_by_cluster_sh(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        about = {"HOSTS": "localhost", "PORT": port, "RUN": str(tmp_path / "run"), "PYTHON": sys.executable}
        command = ["bash", str(ROOT / "deploy" / "ssh" / "cluster.sh"), "start"]
        done = subprocess.run(command, env=os.environ | about, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"port {port} of localhost is taken: choose another one, PORT=8790 cluster.sh start" in done.stderr
