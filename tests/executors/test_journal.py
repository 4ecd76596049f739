"""The files of a checkpoint: are they small, whole whenever they are left, and is a disk that refuses explained?"""

from __future__ import annotations

import errno
import operator
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dagad
from dagad._executors import disk
from dagad._executors.journal import Journal
from dagad.extend import CompensatedSum
from support import killed_writes
from support.gated_chunks import bits

N_CHUNKS, SIZE = 50, 400
THETA = np.linspace(0.1, 1.0, SIZE)
WORDS = 2_000  # bytes that a record may have beside its numbers


def wide(rows: Any, theta: Any) -> Any:
    return np.sum(rows) * np.sum(np.sin(theta))


def wide_gradient(scheduler: Any = "sync", **options: Any) -> Callable[[Any], Any]:
    rows = np.arange(float(N_CHUNKS))
    return dagad.value_and_grad(
        lambda theta: dagad.reduce_sum(wide, rows, theta, grainsize=1, scheduler=scheduler, **options)
    )


def fitted(path: Path, n_evaluations: int, before_last: Callable[[], Any] = list) -> int:
    """Evaluate under a checkpoint; return how many operations were known."""
    gradient = wide_gradient()
    with dagad.checkpoint(path) as run:
        for step in range(n_evaluations):
            if step == n_evaluations - 1:
                before_last()
            gradient(THETA + step)
        return run.n_known


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


# Size


@pytest.mark.parametrize("options", [{}, {"sum": CompensatedSum()}])
def test_a_journal_keeps_the_sums_of_evaluations_that_have_ended(options: dict[str, Any], tmp_path: Path) -> None:
    n_evaluations, gradient = 4, wide_gradient(**options)
    expected = [bits(gradient(THETA + step)) for step in range(n_evaluations)]
    for n_known in (0, n_evaluations):
        with dagad.checkpoint(tmp_path / "run") as run:
            assert run.n_known == n_known
            assert [bits(gradient(THETA + step)) for step in range(n_evaluations)] == expected
        assert size(tmp_path / "run") < (n_evaluations + 1) * (8 * SIZE + WORDS)


def test_a_journal_has_one_record_in_memory_when_it_is_opened(tmp_path: Path) -> None:
    with dagad.checkpoint(tmp_path / "run"):
        for step in range(3):
            wide_gradient()(THETA + step)
    journal = Journal(tmp_path / "run")
    try:
        assert all(type(at) is int for at in journal._where.values())
        assert len(journal._where) == 3
        assert journal.chunks == []
    finally:
        journal.close()


def number(rows: Any) -> int:
    return 10**12 + int(rows[0])


def test_a_journal_keeps_what_chunks_gave_where_no_record_holds_their_sum(tmp_path: Path) -> None:
    def product() -> Any:
        return dagad.map_reduce(number, operator.mul, np.arange(4.0), grainsize=1, scheduler="sync")

    expected = product()
    assert expected > 2**64
    for n_known in (0, 1):
        with dagad.checkpoint(tmp_path / "run") as run:
            assert run.n_known == n_known
            assert product() == expected


# Forced to the disk


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what names of files and directories are added to as they are forced to the disk."""
    found, sync = list[str](), os.fsync

    def noted(file: int) -> None:
        found.append(os.readlink(f"/proc/self/fd/{file}"))
        sync(file)

    monkeypatch.setattr(os, "fsync", noted)
    return found


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="it is read there what a number of a file stands for")
def test_a_journal_waits_for_the_disk_now_and_then(tmp_path: Path, synced: list[str]) -> None:
    gradient, n_evaluations = wide_gradient(), 20
    for sync_every, most in ((3600.0, 2), (0.0, n_evaluations * (N_CHUNKS + 2) + 2)):
        with dagad.checkpoint(tmp_path / f"{sync_every}", sync_every=sync_every):
            synced.clear()
            for step in range(n_evaluations):
                gradient(THETA + step)
        assert len(synced) == most


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="it is read there what a number of a file stands for")
def test_a_journal_forces_directories_to_the_disk_too(tmp_path: Path, synced: list[str]) -> None:
    run = tmp_path / "there" / "run"
    with dagad.checkpoint(run) as opened:
        assert {str(tmp_path), str(run.parent), str(run)} <= {*synced}
        synced.clear()
        opened.save(1.0)
        assert synced == [str(run / "state.new"), str(run)]


@pytest.mark.parametrize("seconds", [-1, float("nan"), "5", True])
def test_a_checkpoint_takes_a_number_of_seconds_between_waits_for_the_disk(seconds: Any, tmp_path: Path) -> None:
    with pytest.raises(dagad.ArgumentsError, match=r"sync_every=.*Give 0 to wait for the disk after each chunk"):
        dagad.checkpoint(tmp_path / "run", sync_every=seconds).__enter__()


# Kept, for their owner


def test_files_of_a_checkpoint_are_their_owners_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with dagad.checkpoint(tmp_path / "run") as run:
            wide_gradient()(THETA)
            run.save(1.0)
            wide_gradient()(THETA)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "run").iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["checkpoint.json", "chunks", "evaluations", "lock", "state"], 0o600)


def test_a_damaged_file_of_a_checkpoint_is_kept_as_it_was(tmp_path: Path) -> None:
    with dagad.checkpoint(tmp_path / "run"):
        wide_gradient()(THETA)
    file = tmp_path / "run" / "evaluations"
    damaged = file.read_bytes()[:-7]
    file.write_bytes(damaged)
    with pytest.warns(dagad.DagadWarning, match="as it was is kept as 'evaluations.damaged'"):
        assert fitted(tmp_path / "run", 1) == 0
    assert (tmp_path / "run" / "evaluations.damaged").read_bytes() == damaged
    with dagad.checkpoint(tmp_path / "run") as run:
        assert run.n_known == 1


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_a_checkpoint_that_is_killed_at_any_call_goes_on_to_the_same_bits() -> None:
    done = subprocess.run(
        [sys.executable, killed_writes.__file__], capture_output=True, text=True, timeout=600, check=False
    )
    assert re.search(r"killed at each of \d\d calls, it goes on to the same bits", done.stdout), done.stdout


# Disks that refuse


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Return what sets with which number all is refused that is written, after half of it; None for nothing."""
    numbers, write = list[int](), disk.write_all

    def half(file: int, payload: bytes) -> None:
        if not numbers:
            return write(file, payload)
        write(file, payload[: len(payload) // 2])
        raise OSError(numbers[0], os.strerror(numbers[0]))

    monkeypatch.setattr(disk, "write_all", half)
    return lambda number: numbers.__setitem__(slice(None), [] if number is None else [number])


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "No space left on device. Make room on this disk. What was written before is whole"),
        (errno.EDQUOT, "Make room on this disk"),
        (errno.EROFS, "Read-only file system. Make the directory writable for yourself, or give one"),
        (errno.EIO, "Look after this disk, or copy the directory"),
    ],
)
def test_a_disk_that_refuses_a_checkpoint_is_explained_and_the_process_goes_on(
    number: int, remedy: str, tmp_path: Path, refusing: Callable[[int | None], None]
) -> None:
    run, gradient = tmp_path / "run", wide_gradient()
    expected = [bits(gradient(THETA + step)) for step in range(2)]
    fitted(run, 1)
    with pytest.raises(dagad.CheckpointDiskError, match=rf"checkpoint {run} can't.*{remedy}") as held:
        fitted(run, 2, lambda: refusing(number))
    assert isinstance(held.value, OSError)
    assert held.value.errno == number
    refusing(None)
    with dagad.checkpoint(run) as again:  # without a warning: what was half written is gone
        assert again.n_known == 1
        assert [bits(gradient(THETA + step)) for step in range(2)] == expected


def test_a_program_goes_on_in_its_block_when_the_disk_has_room_again(
    tmp_path: Path, refusing: Callable[[int | None], None]
) -> None:
    gradient = wide_gradient()
    with dagad.checkpoint(tmp_path / "run") as run:
        run.save(1.0)
        refusing(errno.ENOSPC)
        with pytest.raises(dagad.CheckpointDiskError, match="Make room"):
            run.save(2.0)
        with pytest.raises(dagad.CheckpointDiskError, match="Make room"):
            gradient(THETA)
        refusing(None)
        expected = gradient(THETA)
    with dagad.checkpoint(tmp_path / "run") as run:
        assert (run.state, run.n_known) == (1.0, 1)
        assert bits(gradient(THETA)) == bits(expected)


@pytest.mark.parametrize("below", ["", "run"])
def test_a_file_in_the_way_of_a_checkpoint_is_explained(below: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(dagad.CheckpointDiskError, match=r"There is a file where a directory has to be: move it away"),
        dagad.checkpoint(tmp_path / "file" / below),
    ):
        pass
    assert (tmp_path / "file").read_text() == "mine"


def test_a_lock_is_let_go_of_when_files_of_a_checkpoint_can_not_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, sync = Journal(tmp_path / "run"), os.fsync

    def refuse(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(dagad.CheckpointDiskError, match="Input/output error"):
        journal.close()
    monkeypatch.setattr(os, "fsync", sync)
    Journal(tmp_path / "run").close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with 64 kB."""
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    ).returncode:
        pytest.skip("a small disk can be mounted by root only")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_a_run_goes_on_once_there_is_room_on_a_full_disk(small_disk: Path) -> None:
    gradient = wide_gradient()
    expected = bits(gradient(THETA))
    (small_disk / "filler").write_bytes(b"x" * 40_000)
    with pytest.raises(dagad.CheckpointDiskError, match=r"No space left on device\. Make room"):
        fitted(small_disk / "run", 1)
    (small_disk / "filler").unlink()
    with pytest.raises(dagad.CheckpointDiskError, match=r"No space left on device\. Make room"):
        fitted(small_disk / "run", 1)
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    with dagad.checkpoint(small_disk / "run"):
        assert bits(gradient(THETA)) == expected
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(dagad.CheckpointDiskError, match=r"Read-only file system\. Make the directory writable"):
        fitted(small_disk / "run", 1)


@pytest.mark.parametrize(("name", "other"), [("evaluations", "state"), ("state", "evaluations")])
def test_the_files_of_a_checkpoint_are_not_taken_for_each_other(name: str, other: str, tmp_path: Path) -> None:
    with dagad.checkpoint(tmp_path) as run:
        run.save({"step": 1})
        wide_gradient()(THETA)
    (tmp_path / name).write_bytes((tmp_path / other).read_bytes())
    with pytest.raises(dagad.CheckpointError, match="begin anew"), dagad.checkpoint(tmp_path):
        pass
