"""A checkpoint on disk: what evaluations gave, what chunks of the one in progress gave, and the user's own state.

A directory of five files. Two are sequences of records, which are only appended to and emptied.

================  ==========================================================================================
`checkpoint.json`  the format's version, and grainsizes that were found out by timing
`evaluations`      one record for each operation that has ended, in their order: its sums, or what its chunks
                   have of their own, and six digests
`chunks`           one record for each chunk of the operation in progress, after one that says which that is
`state`            one record: what the user's loop has saved; replaced as a whole
`lock`             who writes; see `lock_file`
================  ==========================================================================================

So its size is bounded by a value and a gradient for each operation that ended since the last `save`, and those of each
chunk of the one in progress. Records are not forced to the disk one by one: that would cost more than short evaluations
do, and is needed only where the whole machine stops. Whatever is lost then is lost from the end of a file, or is seen
by the digest of a record; it is what was written in the last `sync_every` seconds.
"""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dagad._errors import CheckpointError
from dagad._executors import disk
from dagad._executors.lock_file import LockFile
from dagad._executors.records import Record, TornError, framed, records
from dagad._tracebacks import warn

FORMAT = 2
SYNC_EVERY = 5.0  # seconds: what a crash of the machine may cost; one of the process costs nothing of what was written
OURS = ("lock", "checkpoint.json.new")  # what there may be before the first file is whole


class Journal:
    """A checkpoint that this process writes.

    ============  ============================================================================================
    `_files`      the open files, by name
    `_where`      where the record of an operation is that is not read yet, by strand and number
    `generation`  how often the user's state has been saved: records of before that are not read
    `numbers`     how many operations have ended since then in this run of the program, by strand: an evaluation that
                  goes on by itself is a strand of its own
    `n_parted`    how many strands have begun since then beside each strand
    `n_known`     how many operations had ended when the checkpoint was opened
    `chunks`      records of the chunks of the one in progress, after one that says which that is
    `is_closed`   whether it is over: what runs on after that is not written down
    ============  ============================================================================================
    """

    def __init__(self, path: Path, sync_every: float = SYNC_EVERY) -> None:
        self.path, self._sync_every = path, sync_every
        self._files, self._lock, self.is_closed = dict[str, disk.AppendedFile](), threading.Lock(), False
        with disk.explained(path):
            disk.make_directory(path)
            self._lock_file = LockFile(path)
            try:
                self._open()
            except BaseException as error:
                self._lock_file.release()
                if isinstance(error, KeyError | TypeError):  # whole records, but not those of this file
                    raise CheckpointError(
                        f"The checkpoint {path} has a file that belongs elsewhere: its records are of another kind. "
                        "Restore the files from a copy, or delete the directory to begin anew."
                    ) from error
                raise

    def _open(self) -> None:
        self._check_format()
        state = self.state()
        self.generation: int = 0 if state is None else state["generation"]
        self._where = {
            (record["strand"], record["number"]): at
            for at, record in self._read("evaluations")
            if record["generation"] == self.generation
        }
        self.chunks = [record for _, record in self._read("chunks") if record["generation"] == self.generation]
        self.n_known, self.numbers, self.n_parted = len(self._where), Counter[str](), Counter[str]()
        for name in ("evaluations", "chunks"):
            self._files[name] = disk.AppendedFile(self.path / name, self._sync_every)

    def grainsize(self, name: str, find: Callable[[], int]) -> int:
        """Return a grainsize that was found before, by timing, which would find another one now; else find it."""
        sizes = self._about.get("grainsizes", {})
        if name not in sizes:
            sizes = {**sizes, name: find()}
            self._replace("checkpoint.json", json.dumps(self._about | {"grainsizes": sizes}).encode())
            self._about["grainsizes"] = sizes
        return int(sizes[name])

    def _check_format(self) -> None:
        about, file = {"format": FORMAT, "written by": "dagad"}, self.path / "checkpoint.json"
        if not file.exists():
            others = [one.name for one in self.path.iterdir() if not one.name.startswith(OURS)]
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

    def _read(self, name: str) -> Iterator[tuple[int, Record]]:
        """Yield the whole records of a file and where they are, one at a time, and cut off what is not whole."""
        file, n_whole = self.path / name, 0
        if not file.exists():
            return
        try:
            with open(file, "rb") as handle:
                for found in records(handle):
                    n_whole += 1
                    yield found
        except TornError as error:
            lost, copy = file.stat().st_size - error.at, disk.cut(file, error.at)
            warn(
                f"The checkpoint {self.path} is damaged: {name!r} from byte {error.at} on, {lost} bytes, because "
                f"{error}. {n_whole} records before that are whole; what came after them is computed again. The file "
                f"as it was is kept as {copy.name!r}."
            )

    def next(self, strand: str) -> Record | None:
        """Return the record of the next operation of a strand; None if that had not ended."""
        at = self._where.pop((strand, self.numbers[strand]), None)
        if at is None:
            return None
        with disk.explained(self.path), open(self.path / "evaluations", "rb") as file:
            file.seek(at)
            try:
                _, found = next(records(file))
            except (TornError, StopIteration) as error:
                raise CheckpointError(
                    f"The checkpoint {self.path} has changed since it was opened: operation {self.numbers[strand]} "
                    "can't be read. Run the program again; what is not whole is computed again."
                ) from error
        self.numbers[strand] += 1
        return found

    def ended(self, record: Record) -> None:
        """Write down what an operation gave; its chunks are not needed any more."""
        if record["generation"] != self.generation:
            return
        self._append("evaluations", record)
        self._empty("chunks")
        self.chunks = []
        self.numbers[record["strand"]] += 1

    def begun(self, record: Record) -> None:
        """Write down which operation is in progress."""
        if record["generation"] != self.generation:
            return
        self._empty("chunks")
        self.chunks = [record]
        self._append("chunks", record)

    def landed(self, record: Record) -> None:
        """Write down what a chunk of it gave."""
        self._append("chunks", record)

    def save(self, record: Record) -> None:
        """Write down the user's state; what led there, or began before, is not needed any more."""
        if self.is_closed:
            raise CheckpointError(
                f"A state was to be saved in the checkpoint {self.path}, whose `with` block has ended. Save it inside."
            )
        generation = self.generation + 1
        self._replace("state", framed(record | {"generation": generation}))
        with self._lock:
            self.generation = generation
        self._where, self.chunks, self.n_known = {}, [], 0
        self._empty("evaluations")
        self._empty("chunks")
        self.numbers.clear()
        self.n_parted.clear()

    def state(self) -> Record | None:
        """Return what was saved last; None if nothing was."""
        file = self.path / "state"
        if not file.exists():
            return None
        try:
            ((_, found),) = records(io.BytesIO(file.read_bytes()))
            if found.keys() != {"data", "generation"}:
                raise ValueError("it is of another kind")
        except (TornError, ValueError) as error:
            raise CheckpointError(
                f"The state in the checkpoint {self.path} is damaged ({error}), and without it the run can't go on. "
                "Restore the file from a copy, or delete the directory to begin anew."
            ) from error
        return found

    def close(self) -> None:
        """Force all to the disk, and let others write, even if the disk is full or gone."""
        with self._lock:
            files, self.is_closed = list(self._files.values()), True
            self._files.clear()
        with disk.explained(self.path), contextlib.ExitStack() as closing:
            closing.callback(self._lock_file.release)
            for file in files:
                closing.callback(file.close)

    def _append(self, name: str, record: Record) -> None:
        payload = framed(record)
        with self._lock, disk.explained(self.path):
            if self.is_closed or record["generation"] != self.generation:
                return
            self._lock_file.check()
            self._files[name].append(payload)

    def _empty(self, name: str) -> None:
        with self._lock, disk.explained(self.path):
            if not self.is_closed:
                self._lock_file.check()
                self._files[name].empty()

    def _replace(self, name: str, payload: bytes) -> None:
        with disk.explained(self.path):
            self._lock_file.check()
            disk.replace(self.path / name, payload)
