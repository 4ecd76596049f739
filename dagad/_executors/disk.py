"""Files of a checkpoint: appended to, emptied and replaced; what the disk refuses is said in a sentence."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from dagad._errors import CheckpointDiskError

OWNERS_ONLY = 0o600  # results of a run are for whoever runs it
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
LOCKED = {errno.EROFS, errno.EACCES, errno.EPERM}
NO_DIRECTORY = {errno.EEXIST, errno.ENOTDIR}


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say of the checkpoint at this path what its disk refuses, and what to do about it."""
    try:
        yield
    except CheckpointDiskError:
        raise
    except OSError as error:
        raise _sentence(path, error) from error


def _sentence(path: Path, error: OSError) -> CheckpointDiskError:
    goes_on = "What was written before is whole, and the program goes on from it when it runs again"
    if error.errno in NO_DIRECTORY:
        remedy = "There is a file where a directory has to be: move it away, or give the path of a directory."
    elif error.errno in FULL:
        remedy = f"Make room on this disk. {goes_on}."
    elif error.errno in LOCKED:
        remedy = "Make the directory writable for yourself, or give one on a disk that is: `dagad.checkpoint(path)`."
    else:
        remedy = f"Look after this disk, or copy the directory to another one. {goes_on}."
    found = CheckpointDiskError(f"The checkpoint {path} can't be written: {error.strerror or error}. {remedy}")
    found.errno = error.errno
    return found


class AppendedFile:
    """A file to whose end records are written, whole or not at all, and forced to the disk now and then.

    ==============  ==========================================================================================
    `_size`         how many bytes of whole records it has
    `_is_torn`      whether there may be more than these, of a record that was being written
    `_synced`       when it was last forced to the disk, else opened
    ==============  ==========================================================================================
    """

    def __init__(self, path: Path, sync_every: float) -> None:
        is_new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, OWNERS_ONLY)
        self._size, self._is_torn = os.fstat(self._file).st_size, False
        self._sync_every, self._synced = sync_every, time.monotonic()
        if is_new:
            sync_directory(path.parent)

    def append(self, payload: bytes) -> None:
        """Write a record at the end."""
        if self._is_torn:
            self._cut()
        self._is_torn = True
        try:
            write_all(self._file, payload)
        except BaseException:
            with contextlib.suppress(OSError):  # it is tried again before the next record
                self._cut()
            raise
        self._size, self._is_torn = self._size + len(payload), False
        # By the clock, and not by what was written last: what took long is on the disk before anything else happens.
        if time.monotonic() >= self._synced + self._sync_every:
            self.sync()

    def _cut(self) -> None:
        os.ftruncate(self._file, self._size)
        self._is_torn = False

    def empty(self) -> None:
        """Forget all records."""
        if self._size or self._is_torn:
            self._size = 0
            self._cut()

    def sync(self) -> None:
        """Force what was written to the disk."""
        os.fsync(self._file)
        self._synced = time.monotonic()

    def close(self) -> None:
        """Force what was written to the disk, and close the file even if that fails."""
        try:
            self.sync()
        finally:
            os.close(self._file)


def write_all(file: int, payload: bytes) -> None:
    """Write bytes: the system may take a part of them at a time."""
    rest = memoryview(payload)
    while rest:
        rest = rest[os.write(file, rest) :]


def replace(path: Path, payload: bytes) -> None:
    """Write a file as a whole: it is the old one or the new one, whenever the machine stops."""
    draft = path.with_name(f"{path.name}.new")
    try:
        with owned(draft) as file:
            write_all(file, payload)
            os.fsync(file)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    sync_directory(path.parent)


@contextlib.contextmanager
def owned(path: Path) -> Iterator[int]:
    """Yield a new, empty file that nobody else may read."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNERS_ONLY)
    try:
        yield file
    finally:
        os.close(file)


def cut(path: Path, size: int) -> Path:
    """Shorten a file that is damaged, and return where a copy of it as it was is."""
    copy = path.with_name(f"{path.name}.damaged")
    with owned(copy) as file, open(path, "rb") as source, open(file, "wb", closefd=False) as target:
        shutil.copyfileobj(source, target)
        target.flush()
        os.fsync(file)
    sync_directory(path.parent)
    with open(path, "r+b") as damaged:
        damaged.truncate(size)
        os.fsync(damaged.fileno())
    return copy


def make_directory(path: Path) -> None:
    """Make a directory and those above it, so that a crash of the machine leaves them there."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync_directory(one.parent)


def sync_directory(path: Path) -> None:
    """Force to the disk which files a directory has, where the file system can."""
    with contextlib.suppress(OSError):
        directory = os.open(path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
