"""Processes that end before their tasks: is the program told what it lacks, in a few lines?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")

PROGRAM = """
import os
import dagad
import numpy as np

def chunk(rows, theta):
    return np.sum((rows - theta) ** 2)

def deadly(rows, theta):
    os._exit(3)

def main(f=chunk):
    loss = lambda theta: dagad.reduce_sum(f, np.arange(6.0), theta, grainsize=2, scheduler="processes")
    print(dagad.value_and_grad(loss)(1.0))

"""
GUARD = 'if __name__ == "__main__":\n    '


def run(tmp_path: Path, end: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "fit.py"
    program.write_text(PROGRAM + end + "\n", encoding="utf-8")
    return subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False)


def test_a_program_without_a_main_guard_is_shown_one(tmp_path: Path) -> None:
    done = run(tmp_path, "main()")
    last = done.stderr.splitlines()[-1]
    assert last.startswith('dagad.PlanError: `scheduler="processes"` starts new processes')
    assert "fit.py" in last
    assert '`if __name__ == "__main__":`' in last
    assert len(done.stderr.splitlines()) < 15
    assert "31.0" in run(tmp_path, GUARD + "main()").stdout


def test_a_chunk_that_ends_its_process_is_not_taken_for_a_missing_guard(tmp_path: Path) -> None:
    done = run(tmp_path, GUARD + "main(deadly)")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dagad.WorkerLostError: A process ended while it ran a chunk.")
    assert '`scheduler="sync"`' in last
