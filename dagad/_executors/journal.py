"""A checkpoint on disk: what evaluations gave, what chunks of the one in progress gave, and the user's own state.

A directory of five files. Two are sequences of records, which are only appended to; a record is a length, a digest and
its bytes, so that one that was being written when the process was killed is known as such.

================  ==========================================================================================
`checkpoint.json`  the format's version, and grainsizes that were found out by timing
`evaluations`      one record for each operation that has ended, in their order
`chunks`           one record for each chunk of the operation in progress, after one that says which that is
`state`            one record: what the user's loop has saved; replaced as a whole
`lock`             held by the process that writes
================  ==========================================================================================
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dagad._errors import CheckpointError, StructureError
from dagad._pytrees.buffers import pack_tree, unpack_tree
from dagad._tracebacks import warn

FORMAT = 1
MAGIC = b"dagad\x00\x01\n"
HEAD = struct.Struct("<8sQ16s")
SYNC_EVERY = 0.5  # seconds: what a crash of the machine may cost; one of the process costs nothing of what was written
MOST_BYTES = 1 << 40

Record = dict[str, Any]  # words, and under "data" a pytree of numbers


def framed(record: Record) -> bytes:
    """Return a record as bytes, with its length and its digest."""
    words = {name: part for name, part in record.items() if name != "data"}
    head, buffer = pack_tree(record.get("data", ()))
    text = json.dumps(words).encode()
    payload = b"".join([struct.pack("<QQ", len(text), len(head)), text, head, buffer.tobytes()])
    return HEAD.pack(MAGIC, len(payload), _digest(payload)) + payload


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=16).digest()


def _opened(payload: bytes) -> Record:
    n_text, n_head = struct.unpack_from("<QQ", payload)
    start = 16 + n_text
    words: Record = json.loads(payload[16:start])
    data = np.frombuffer(payload, np.uint8, offset=start + n_head).copy()  # aligned, and writable
    return words | {"data": unpack_tree(payload[start : start + n_head], data)}


class TornError(Exception):
    """A record is not whole; `at` is where it begins."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at


def records(file: BinaryIO) -> Iterator[Record]:
    """Yield the records of a file; raise TornError at one that is not whole."""
    while True:
        at = file.tell()
        head = file.read(HEAD.size)
        if not head:
            return
        if len(head) < HEAD.size:
            raise TornError(at, "it ends in the middle of a record")
        magic, length, expected = HEAD.unpack(head)
        if magic != MAGIC or length > MOST_BYTES:
            raise TornError(at, "there is something else than a record")
        payload = file.read(length)
        if len(payload) < length:
            raise TornError(at, "it ends in the middle of a record")
        if _digest(payload) != expected:
            raise TornError(at, "a record is not what was written")
        try:
            yield _opened(payload)
        except (StructureError, ValueError, struct.error) as error:
            raise TornError(at, f"a record can't be read ({error})") from error


class Journal:
    """A checkpoint that this process writes.

    ============  ============================================================================================
    `_files`      the open files, by name
    `_synced`     when each was last forced to the disk
    `generation`  how often the user's state has been saved: records of before that are not read
    `numbers`     how many operations have ended since then in this run of the program, by strand: an evaluation that
                  goes on by itself is a strand of its own
    `n_parted`    how many strands have begun since then beside each strand
    `n_known`     how many operations had ended when the checkpoint was opened
    `chunks`      records of the chunks of the one in progress, after one that says which that is
    `is_closed`   whether it is over: what runs on after that is not written down
    ============  ============================================================================================
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock_file = open(path / "lock", "a")  # held until the checkpoint is closed
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock_file.close()
            raise CheckpointError(
                f"The checkpoint {path} is being written by another process. Wait until that has ended, or choose "
                "another directory."
            ) from error
        try:
            self._check_format()
            self._files: dict[str, BinaryIO] = {}
            self._synced: dict[str, float] = {}
            self._lock = threading.Lock()
            state = self.state()
            self.generation: int = 0 if state is None else state["generation"]
            past, self.chunks = (
                [record for record in self._read(name) if record["generation"] == self.generation]
                for name in ("evaluations", "chunks")
            )
            self.n_known, self._past = len(past), {(record["strand"], record["number"]): record for record in past}
            self.numbers, self.n_parted = Counter[str](), Counter[str]()
            self.is_closed = False
        except BaseException:
            self._lock_file.close()
            raise

    def grainsize(self, name: str, find: Callable[[], int]) -> int:
        """Return a grainsize that was found before, by timing, which would find another one now; else find it."""
        sizes = self._about.setdefault("grainsizes", {})
        if name not in sizes:
            sizes[name] = find()
            self._replace("checkpoint.json", json.dumps(self._about).encode())
        return int(sizes[name])

    def _check_format(self) -> None:
        about, file = {"format": FORMAT, "written by": "dagad"}, self.path / "checkpoint.json"
        if not file.exists():
            others = [one.name for one in self.path.iterdir() if one.name != "lock"]
            if others:
                raise CheckpointError(
                    f"{self.path} is no checkpoint, and not empty: it has {sorted(others)[0]!r}. Give a directory of "
                    "its own."
                )
            self._replace("checkpoint.json", json.dumps(about).encode())
        try:
            self._about: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            found = self._about["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{file} can't be read. Restore it, or delete {self.path} to begin anew.") from error
        if found != FORMAT:
            raise CheckpointError(
                f"The checkpoint {self.path} has format {found}, and this dagad writes {FORMAT}. Go on with the "
                "version of dagad that wrote it, or delete it to begin anew."
            )

    def _read(self, name: str) -> list[Record]:
        """Return the whole records of a file, and cut off what is not whole."""
        file, found = self.path / name, list[Record]()
        if not file.exists():
            return found
        with open(file, "r+b") as handle:
            try:
                found.extend(records(handle))
            except TornError as error:
                lost = os.fstat(handle.fileno()).st_size - error.at
                handle.truncate(error.at)
                os.fsync(handle.fileno())
                warn(
                    f"The checkpoint {self.path} is damaged: {name!r} from byte {error.at} on, {lost} bytes, because "
                    f"{error}. {len(found)} records before that are whole; what came after them is computed again."
                )
        return found

    def next(self, strand: str) -> Record | None:
        """Return the record of the next operation of a strand; None if that had not ended."""
        found = self._past.pop((strand, self.numbers[strand]), None)
        if found is not None:
            self.numbers[strand] += 1
        return found

    def ended(self, record: Record) -> None:
        """Write down what an operation gave; its chunks are not needed any more."""
        if record["generation"] != self.generation:
            return
        self._append("evaluations", record, now=True)
        self._truncate("chunks")
        self.chunks = []
        self.numbers[record["strand"]] += 1

    def begun(self, record: Record) -> None:
        """Write down which operation is in progress."""
        if record["generation"] != self.generation:
            return
        self._truncate("chunks")
        self.chunks = [record]
        self._append("chunks", record, now=True)

    def landed(self, record: Record) -> None:
        """Write down what a chunk of it gave."""
        self._append("chunks", record)

    def save(self, record: Record) -> None:
        """Write down the user's state; what led there, or began before, is not needed any more."""
        if self.is_closed:
            raise CheckpointError(
                f"A state was to be saved in the checkpoint {self.path}, whose `with` block has ended. Save it inside."
            )
        self.generation += 1
        self._replace("state", framed(record | {"generation": self.generation}))
        self._truncate("evaluations")
        self._truncate("chunks")
        self._past, self.chunks, self.n_known = {}, [], 0
        self.numbers.clear()
        self.n_parted.clear()

    def state(self) -> Record | None:
        """Return what was saved last; None if nothing was."""
        file = self.path / "state"
        if not file.exists():
            return None
        try:
            (found,) = records(io.BytesIO(file.read_bytes()))
        except (TornError, ValueError) as error:
            raise CheckpointError(
                f"The state in the checkpoint {self.path} is damaged ({error}), and without it the run can't go on. "
                "Restore the file from a copy, or delete the directory to begin anew."
            ) from error
        return found

    def close(self) -> None:
        """Force all to the disk, and let others write."""
        with self._lock:
            for file in self._files.values():
                os.fsync(file.fileno())
                file.close()
            self._files.clear()
            self.is_closed = True
        self._lock_file.close()

    def _append(self, name: str, record: Record, *, now: bool = False) -> None:
        payload = framed(record)
        with self._lock:
            if self.is_closed or record["generation"] != self.generation:
                return
            file = self._open(name)
            file.write(payload)
            file.flush()
            if now or time.monotonic() > self._synced.get(name, 0.0) + SYNC_EVERY:
                os.fsync(file.fileno())
                self._synced[name] = time.monotonic()

    def _open(self, name: str) -> BinaryIO:
        if name not in self._files:
            self._files[name] = open(self.path / name, "ab")  # closed with the journal
        return self._files[name]

    def _truncate(self, name: str) -> None:
        with self._lock:
            if self.is_closed:
                return
            file = self._open(name)
            file.truncate(0)
            os.fsync(file.fileno())

    def _replace(self, name: str, payload: bytes) -> None:
        """Write a file as a whole: it is the old one or the new one, whenever the machine stops."""
        draft = self.path / f"{name}.new"
        with open(draft, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self.path / name)
        with contextlib.suppress(OSError):  # not all file systems can
            directory = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
