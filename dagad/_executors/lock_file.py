"""The lock of a checkpoint: a file that says who writes, which works on disks without locks of their own.

`flock` is not everywhere (Lustre without its option, NFS without its daemon), and children of a process keep it when
the process has been killed. So the file itself is the lock. It is made by a call of which one process only can have
success, and says which process that is, on which machine, and since when that process runs: a number that was given to
another process later is not taken for it. While the process lives it touches the file, for those who look from other
machines.

A lock is stale if its process is dead, as seen from the same machine, or if nobody has touched it for `STALE` seconds.
Whoever takes it over makes the file `lock.<token>`, with the token of the stale one in its name, which again one
process only can; if the lock is still that one, the file becomes the lock by being renamed. A process that wakes up
late, and finds another one's lock, writes nothing more.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import NamedTuple

from dagad._errors import CheckpointError
from dagad._executors.disk import OWNERS_ONLY, owned, sync_directory, write_all
from dagad._tracebacks import warn

BEAT = 5.0  # seconds between two touches
STALE = 90.0  # seconds without a touch after which a process on another machine is taken for dead
LOOK = 0.2  # seconds between two looks at the lock of another machine
NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


class Claim(NamedTuple):
    """Who writes, or wants to: `machine` tells hosts of one name from each other, `started` processes of one number."""

    host: str
    machine: str
    pid: int
    started: str
    token: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" if self.pid else "a process that has not said which"

    def is_from_here(self) -> bool:
        """Return whether the process would be one of those that this one can see."""
        return bool(self.pid) and (self.host, self.machine) == (socket.gethostname(), machine())


def own_claim() -> Claim:
    return Claim(socket.gethostname(), machine(), os.getpid(), started(os.getpid()) or "", secrets.token_hex(8))


def machine() -> str:
    """Return what names the running system and its numbers of processes, which containers have of their own."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def started(pid: int) -> str | None:
    """Return when a process began, in the system's own count; nothing if it doesn't say; None if there is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return ""  # somebody else's
    try:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return None if words[0] in "ZX" else words[19]  # one that has ended, and whose parent has not looked yet


class Found(NamedTuple):
    """A lock as it stands on the disk: whose it is, and when it was touched, by the clock of the disk."""

    claim: Claim
    touched: float


def read(path: Path) -> Found | None:
    """Return what a lock says; None if there is none."""
    try:
        with open(path, "rb") as file:  # opening it has file systems of a network ask for what is there now
            touched, content, number = os.fstat(file.fileno()).st_mtime, file.read(), os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return None
    try:
        return Found(Claim(**json.loads(content)), touched)
    except (ValueError, TypeError):  # it is being written just now, or was when its process died
        return Found(Claim("", "", 0, "", f"unread-{number}"), touched)


class LockFile:
    """A lock that this process holds from its making until `release`.

    ============  ============================================================================================
    `claim`       what it says of this process
    `_touched`    when it was last seen to be this process's
    `_lost_to`    who has taken it over while this process was away; None nearly always
    `_ended`      set when nobody is to touch it any more
    ============  ============================================================================================
    """

    def __init__(self, directory: Path, stale: float = STALE) -> None:
        self._directory, self.path, self._stale = directory, directory / "lock", stale
        self.claim = own_claim()
        self._lost_to: Claim | None = None
        self._ended = threading.Event()
        while not (self._make(self.path) or self._take_over()):
            pass
        self._clean_up()
        sync_directory(directory)
        self._touched = time.time()  # of the day: the other clock stands still while a machine sleeps
        self._beating = threading.Thread(target=self._beat, name="dagad-checkpoint-lock", daemon=True)
        self._beating.start()

    def _make(self, path: Path) -> bool:
        """Make a file that says who this is, all at once, unless there is one."""
        draft, said = self._directory / f"lock.new-{self.claim.token}", json.dumps(self.claim._asdict()).encode()
        try:
            with owned(draft) as file:
                write_all(file, said)
            return self._linked(draft, path)
        except FileExistsError:
            found = read(path)  # a network may lose the answer, and ask again
            return found is not None and found.claim == self.claim
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            return self._make_in_two(path, said)
        finally:
            draft.unlink(missing_ok=True)

    @staticmethod
    def _linked(draft: Path, path: Path) -> bool:
        try:
            os.link(draft, path)
        except FileNotFoundError:  # whoever has the lock by now has cleaned up
            return False
        return True

    @staticmethod
    def _make_in_two(path: Path, said: bytes) -> bool:
        """Do the same where files can't have two names: if the process dies in between, nobody knows whose it is."""
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNERS_ONLY)
        except FileExistsError:
            return False
        try:
            write_all(file, said)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)
        return True

    def _take_over(self) -> bool:
        """Take over a stale lock; return False if it has changed meanwhile, raise if its process lives."""
        first = last = read(self.path)
        if first is None or last is None:
            return False
        passed = []  # those who wanted to take it over, and died over it
        while following := read(after := self._directory / f"lock.{last.claim.token}"):
            passed.append(after)
            last = following
        self._wait_until_stale(passed[-1] if passed else self.path, last)
        if not self._make(after):
            return False
        now = read(self.path)
        if now is None or now.claim != first.claim:
            after.unlink(missing_ok=True)
            return False
        os.replace(after, self.path)
        return True

    def _clean_up(self) -> None:
        """Delete what those have left who died when they wanted the lock; those who live see that it is taken."""
        for path in self._directory.glob("lock.*"):
            if path.name != f"lock.{self.claim.token}":
                path.unlink(missing_ok=True)

    def _wait_until_stale(self, path: Path, found: Found) -> None:
        """Return when a lock is stale; raise as soon as its process gives a sign of life."""
        claim = found.claim
        if claim.is_from_here():
            there = started(claim.pid)
            if there is None or (claim.started and there and there != claim.started):
                return
            if claim.started and there:
                raise self._held(claim)
        age, began = max(self._now() - found.touched, 0.0), time.monotonic()  # clocks are set back, too
        if age < self._stale:
            warn(
                f"The checkpoint {self._directory} is held by {claim}, which was heard of {age:.0f} s ago. "
                f"It is taken over unless that is heard of within {self._stale - age:.0f} s."
            )
        while age + time.monotonic() - began < self._stale:
            self._ended.wait(LOOK)
            again = read(path)
            if again is None or again.claim != claim:
                return  # what follows sees whose it is now
            if again.touched != found.touched:
                raise self._held(claim)

    def _now(self) -> float:
        """Return what time it is by the clock of the disk, which may be another machine's."""
        probe = self._directory / f"lock.clock-{self.claim.token}"
        try:
            with owned(probe) as file:
                return os.fstat(file).st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _held(self, claim: Claim) -> CheckpointError:
        if claim.pid == os.getpid() and claim.is_from_here():
            return CheckpointError(
                f"The checkpoint {self._directory} is being written by this process already. Wait until that `with` "
                "block has ended, or choose another directory."
            )
        return CheckpointError(
            f"The checkpoint {self._directory} is being written by {claim}. Wait until that has ended, end it, or "
            "choose another directory."
        )

    def check(self) -> None:
        """Raise if another process has taken the lock over while this one was away: stopped, or without its disk."""
        if time.time() - self._touched > self._stale / 2:
            self._touch()
        if self._lost_to is not None:
            raise CheckpointError(
                f"The checkpoint {self._directory} was taken over by {self._lost_to}, since nothing was heard of this "
                "process for long. Let that one go on; what this one computes is written no more."
            )

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            with contextlib.suppress(OSError):  # a disk that is away for a while; `check` looks again
                self._touch()

    def _touch(self) -> None:
        found = read(self.path)
        if found is None and self._make(self.path):  # somebody has cleaned up
            found = read(self.path)
        if found is not None and found.claim != self.claim:
            self._lost_to = found.claim
            return
        os.utime(self.path)
        self._touched = time.time()

    def release(self, patience: float = 5.0) -> None:
        """Let others write."""
        if os.getpid() != self.claim.pid:  # a child of that process has no thread to end, and no lock
            return
        self._ended.set()
        self._beating.join(patience)
        with contextlib.suppress(OSError):  # whoever comes next sees that this process is dead, or has let go
            found = read(self.path)
            if found is not None and found.claim == self.claim:
                self.path.unlink()
