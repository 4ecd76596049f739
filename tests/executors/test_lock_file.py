"""The lock of a checkpoint: does one process hold it, whatever the disk can, and is a stale one taken over?"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dagad
from dagad._executors import lock_file
from dagad._executors.journal import Journal
from dagad._executors.lock_file import Claim, LockFile, own_claim, read
from support.waiting import PATIENCE, in_background, until


def left(directory: Path, age: float = 0.0, **other: Any) -> Claim:
    """Leave a lock as another process has; return what it says."""
    claim = own_claim()._replace(**other)
    (directory / "lock").write_text(json.dumps(claim._asdict()), encoding="utf-8")
    then = time.time() - age
    os.utime(directory / "lock", (then, then))
    return claim


def ended() -> int:
    """Return the number that a process had."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_checkpoint_does_without_locks_of_the_file_system(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    for name in ("flock", "lockf", "fcntl"):
        monkeypatch.setattr(fcntl, name, refuse)
    for _ in range(2):
        with dagad.checkpoint(tmp_path / "run"), pytest.raises(dagad.CheckpointError, match="by this process already"):
            Journal(tmp_path / "run")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_lock_is_held_where_files_have_one_name_only(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    left(tmp_path, pid=ended())
    lock = LockFile(tmp_path)
    with pytest.raises(dagad.CheckpointError, match="another directory"):
        LockFile(tmp_path)
    lock.release()
    assert names(tmp_path) == []
    LockFile(tmp_path).release()


def test_a_lock_names_the_process_that_holds_it(tmp_path: Path) -> None:
    parent = os.getppid()
    left(tmp_path, pid=parent, started=lock_file.started(parent))
    with pytest.raises(
        dagad.CheckpointError, match=rf"written by process {parent} on {socket.gethostname()}\. Wait .*, end it, or"
    ):
        LockFile(tmp_path)


def test_a_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    left(tmp_path, pid=ended())
    lock = LockFile(tmp_path)
    found = read(tmp_path / "lock")
    assert found is not None
    assert found.claim == lock.claim
    assert names(tmp_path) == ["lock"]
    lock.release()


def test_a_lock_of_a_process_that_nobody_has_waited_for_is_taken_over(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        left(tmp_path, pid=process.pid, started="1")
        LockFile(tmp_path).release()


def test_a_lock_of_a_number_that_another_process_has_now_is_taken_over(tmp_path: Path) -> None:
    left(tmp_path, started="1")
    LockFile(tmp_path).release()


ELSEWHERE: dict[str, Any] = {"host": "node3", "machine": "another one"}


def test_a_lock_of_another_machine_that_nobody_touches_is_taken_over(tmp_path: Path) -> None:
    left(tmp_path, age=3600.0, **ELSEWHERE)
    LockFile(tmp_path).release()


def test_a_lock_of_another_machine_is_waited_for_before_it_is_taken_over(tmp_path: Path) -> None:
    left(tmp_path, age=1.0, **ELSEWHERE)
    with pytest.warns(dagad.DagadWarning, match=r"process \d+ on node3, which was heard of 1 s ago.*taken over unless"):
        LockFile(tmp_path, stale=1.5).release()


def test_a_lock_that_was_touched_in_the_future_is_not_waited_for_longer(tmp_path: Path) -> None:
    left(tmp_path, age=-1e6, **ELSEWHERE)
    with pytest.warns(dagad.DagadWarning, match=r"taken over unless that is heard of within 0 s"):
        LockFile(tmp_path, stale=0.4).release()


def test_a_lock_that_another_machine_touches_is_refused_at_once(tmp_path: Path) -> None:
    left(tmp_path, **ELSEWHERE)

    def opened_while_it_is_touched() -> Any:
        opening = in_background(LockFile, tmp_path)
        until(lambda: os.utime(tmp_path / "lock") or opening.done())  # type: ignore[func-returns-value]  # None is false
        return opening

    with pytest.warns(dagad.DagadWarning, match="is held by process"):
        opening = opened_while_it_is_touched()
    with pytest.raises(dagad.CheckpointError, match=r"written by process \d+ on node3"):
        opening.result(0)


def test_a_lock_that_nobody_can_read_is_taken_over_when_it_is_old(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    os.utime(tmp_path / "lock", (1.0, 1.0))
    LockFile(tmp_path).release()
    assert names(tmp_path) == []


def test_a_lock_is_taken_over_where_others_have_died_over_that(tmp_path: Path) -> None:
    first = left(tmp_path, pid=ended())
    second = own_claim()._replace(pid=ended())
    (tmp_path / f"lock.{first.token}").write_text(json.dumps(second._asdict()), encoding="utf-8")
    LockFile(tmp_path).release()
    assert names(tmp_path) == []


def test_one_of_many_takes_over_a_stale_lock(tmp_path: Path, rounds: Callable[[int], int]) -> None:
    for number in range(rounds(40)):
        directory = tmp_path / str(number)
        directory.mkdir()
        left(directory, pid=1 << 30)
        together = threading.Barrier(6)

        def take(directory: Path = directory, together: threading.Barrier = together) -> LockFile | None:
            together.wait(PATIENCE)
            try:
                return LockFile(directory)
            except dagad.CheckpointError:
                return None

        opening = [in_background(take) for _ in range(6)]
        (held,) = [lock for one in opening if (lock := one.result(PATIENCE)) is not None]
        assert names(directory) == ["lock"]
        held.release()
        assert names(directory) == []


@pytest.mark.parametrize("write", ["begun", "landed", "ended", "save"])
def test_a_process_that_has_lost_its_lock_writes_nothing_more(write: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    other = left(tmp_path, **ELSEWHERE)
    journal._lock_file._touched = 0.0  # it was stopped for long
    with pytest.raises(dagad.CheckpointError, match=r"taken over by process \d+ on node3.*Let that one go on"):
        getattr(journal, write)({"strand": "0", "number": 0, "generation": 0})
    assert {path.stat().st_size for path in tmp_path.iterdir() if path.name in ("chunks", "evaluations")} == {0}
    assert not (tmp_path / "state").exists()
    journal.close()
    found = read(tmp_path / "lock")
    assert found is not None
    assert found.claim == other


def test_a_lock_that_somebody_has_deleted_is_made_again(tmp_path: Path) -> None:
    lock = LockFile(tmp_path)
    (tmp_path / "lock").unlink()
    lock._touched = 0.0
    lock.check()
    found = read(tmp_path / "lock")
    assert found is not None
    assert found.claim == lock.claim
    lock.release()


def test_a_lock_is_touched_while_its_process_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_file, "BEAT", 0.01)
    lock = LockFile(tmp_path)
    os.utime(tmp_path / "lock", (1.0, 1.0))
    until(lambda: (tmp_path / "lock").stat().st_mtime > 1.0)
    lock.release()


# A driver with a child of its own, as programs have that fork; it is killed, and the child lives on.
DRIVER = """
import os, sys
import dagad

with dagad.checkpoint(sys.argv[1]) as run:
    if not os.fork():
        run._journal.close()
        os.write(1, b"child\\n")
        os.read(0, 1)
        os._exit(0)
    os.wait()
"""


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_child_of_a_killed_driver_does_not_hold_the_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdin is not None
        assert driver.stdout.readline() == "child\n"
        with pytest.raises(dagad.CheckpointError, match=f"written by process {driver.pid} on"):
            Journal(tmp_path / "run")
        driver.send_signal(signal.SIGKILL)
        driver.wait(PATIENCE)
        with dagad.checkpoint(tmp_path / "run"):
            assert driver.stdout.readable()  # the child has it open
        driver.stdin.write("x")
        driver.stdin.flush()
