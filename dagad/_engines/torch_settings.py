"""What torch has been told in the thread where a chunk happens to run: held meanwhile, so that bits don't show it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dagad._errors import PlanError


def refuse_around(name: str) -> None:
    """Refuse what the user wants of the chunks, and tells the calling thread alone."""
    device = _autocast_device()
    if device is not None:
        raise PlanError(
            f'`torch.autocast("{device}")` is on around a reduction, map or graph with `engine="{name}"`. It is a '
            "setting of one thread, and chunks run in others too, or on workers, which compute without it. Write `with "
            f'torch.autocast("{device}"):` in the chunk function, or switch it off around what is to be computed in '
            "full, by `enabled=False`."
        )


@contextlib.contextmanager
def settled(device: str) -> Iterator[None]:
    """Hold what torch may have been told in this thread: threads, to record nothing, other devices and dtypes."""
    there = torch.get_default_device().type == device  # nearly always; else each operation costs more
    where = contextlib.nullcontext() if there else torch.device(device)
    with _one_thread(), torch.inference_mode(False), torch.no_grad(), where, _in_full():
        yield


def _in_full() -> contextlib.AbstractContextManager[Any]:
    """Switch autocast off; a pullback may be called inside of one, and a chunk has its own."""
    device = _autocast_device()
    if device is None:
        return contextlib.nullcontext()
    held = contextlib.ExitStack()
    for each in _AUTOCAST:
        if torch.is_autocast_enabled(each):
            held.enter_context(torch.autocast(each, enabled=False))
    return held


def _autocast_device() -> str | None:
    """Return the device for which autocast is on in the calling thread."""
    return next((device for device in _AUTOCAST if torch.is_autocast_enabled(device)), None)


_AUTOCAST = ("cpu", "cuda")


def _thread_counts() -> list[Callable[[int], int]]:
    """Return what sets how many threads torch's loops and products have, in the calling thread, and returns the last.

    `torch.set_num_threads` would do so for all threads to come, too.
    """
    found, library = list[Callable[[int], int]](), ctypes.CDLL(torch._C.__file__)
    with contextlib.suppress(AttributeError):  # a build without OpenMP
        count, change = library.omp_get_max_threads, library.omp_set_num_threads

        def loops(n: int) -> int:
            before = int(count())
            change(n)
            return before

        found.append(loops)
    with contextlib.suppress(AttributeError):  # a build without MKL
        found.append(library.MKL_Set_Num_Threads_Local)  # in lower case it is Fortran's
    return found


_COUNTS = _thread_counts()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Hold torch at one thread, in this thread: chunks run side by side, and more would show in the bits."""
    torch.get_num_threads()  # its first call in a thread would set them
    before = [count(1) for count in _COUNTS]
    try:
        yield
    finally:
        for count, n in zip(_COUNTS, before, strict=True):
            count(n)
