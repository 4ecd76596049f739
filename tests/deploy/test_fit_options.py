"""Options of the programs in deploy/ and examples/ that can't be: is each told in a line?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


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
