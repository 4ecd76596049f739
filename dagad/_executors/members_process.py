"""What is set for the whole process, often by a ``with`` block: warnings, Dask's settings, the environment, the output.

Members that took turns in such blocks would leave them in another order than that of blocks in blocks, and leave the
process as none of them found it; and each would run under what the last one set. So one that has changed it waits for
nobody until it is as it was, or the member is over. Where one writes what the programs of others read too, all run one
by one: see `ProgramState`.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import dask

from dagad._values.baseline import EXACT
from dagad._values.picture import Picture
from dagad._values.reach import MOST, Reach, all_of_a_class, opened_in_full


class ProgramState:
    """What a program could reach when somebody last looked; nothing, if it changes nothing.

    What is looked into is what the table of kinds says, held or reached by name; not what libraries hold.
    """

    __slots__ = ("_fun", "_picture", "only_grew")

    def __init__(self, fun: object) -> None:
        self.only_grew, self._fun, reach = True, fun, reach_of(fun)
        self._picture = _as_now(reach) if reach.may_change() else None

    def has_changed(self) -> bool:
        """Return whether it has changed since; what it can reach now is what the next one is compared with."""
        if self._picture is None:
            return False
        changed = set(self._picture.changes())
        if not changed:
            return False
        self.only_grew = self._picture.have_grown(changed)
        if not self._picture.note_anew(changed):
            self._picture = _as_now(reach_of(self._fun))
        return True


def reach_of(fun: object) -> Reach:
    """Return what a program can reach, with all that is in classes."""
    return Reach(fun, all_of_a_class, opened_in_full, MOST)


def _as_now(reach: Reach) -> Picture:
    picture = Picture(reach, EXACT)
    picture.add(reach.held | reach.named)
    return picture


class ProcessState:
    """What was set for the process when somebody last looked."""

    __slots__ = ("_config", "_environment", "_filters", "_rest", "_was")

    def __init__(self) -> None:
        self.note()

    def note(self) -> None:
        """Take what is set now for what there was."""
        self._rest, self._filters, self._was = _rest(), warnings.filters, list(warnings.filters)
        self._config, self._environment = _copied(dask.config.config), dict(_environment())

    def is_changed(self) -> bool:
        """Return whether something is set otherwise."""
        # A list of their own is what `warnings.catch_warnings` begins with.
        if warnings.filters is not self._filters or self._filters != self._was:
            return True
        if self._rest != _rest() or self._environment != _environment():
            return True
        try:
            return bool(dask.config.config != self._config)
        except Exception:  # of a value of the user's, an array say, which has no one truth
            return True


def _rest() -> tuple[Any, ...]:
    """Return what else there is: objects, that is, which ones."""
    found = sys.stdin, sys.stdout, sys.stderr, warnings.showwarning, getattr(warnings, "_showwarnmsg_impl", None)
    return (*map(id, found), _directory())


def _directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return ""


def _environment() -> dict[Any, Any]:
    found: dict[Any, Any] = getattr(os.environ, "_data", None) or dict(os.environ)  # decoding takes ten times as long
    return found


def _copied(config: object) -> Any:
    return {key: _copied(value) for key, value in config.items()} if isinstance(config, dict) else config
