"""Lets threads take turns at what torch has once a process, though functions of several threads use it.

`torch.func.functional_call` lends a module other weights and calls it: without turns a chunk would compute with those
of another one. Levels of forward mode are counted for all threads together: a chunk would push tangents of another one,
into memory that this one has freed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch._functorch import eager_transforms as _eager_transforms
from torch.autograd import forward_ad as _forward_ad
from torch.nn.utils import stateless as _stateless

stateless: Any = _stateless  # whose private functions are replaced, here and below
eager_transforms: Any = _eager_transforms
forward_ad: Any = _forward_ad


class Turns:
    """Lets threads take turns, for as long as functions run.

    ==========  ========================================================
    `_depth`    how many functions run; it changes under `_lock`
    `_before`   what is replaced, as it was found
    `_turn`     held by the thread that has torch's weights or levels: one for both, which may be nested either way
    ==========  ========================================================
    """

    def __init__(self) -> None:
        self._depth, self._lock, self._turn = 0, threading.Lock(), threading.RLock()
        self._before: list[Any] = []

    def __enter__(self) -> None:
        with self._lock:
            if not self._depth:
                self._before = [getattr(home, name) for home, name, _ in self._ways()]
                for (home, name, way), before in zip(self._ways(), self._before, strict=True):
                    setattr(home, name, way(before))
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._depth -= 1
            if not self._depth:
                for (home, name, _way), before in zip(self._ways(), self._before, strict=True):
                    setattr(home, name, before)

    def _ways(self) -> tuple[tuple[Any, str, Callable[[Any], Any]], ...]:
        return (
            (stateless, "_reparametrize_module", self._lending),
            (eager_transforms, "_jvp_with_argnums", self._pushing),  # of `jvp`, `jacfwd` and `hessian`
            (forward_ad, "dual_level", self._inside_level),
        )

    def _lending(self, before: Any) -> Any:
        @contextlib.contextmanager
        def lent(*args: Any, **options: Any) -> Iterator[None]:
            with self._turn, before(*args, **options):
                yield

        return lent

    def _pushing(self, before: Any) -> Any:
        def entered(*args: Any, **options: Any) -> Any:
            with self._turn:
                return before(*args, **options)

        return entered

    def _inside_level(self, before: Any) -> Any:
        turn = self._turn

        class dual_level(before):  # type: ignore[misc]  # a class that is found when it runs
            """Torch's own, in turn."""

            def __enter__(self) -> Any:
                with contextlib.ExitStack() as held:
                    held.enter_context(turn)
                    level = super().__enter__()
                    self._held = held.pop_all()
                    return level

            def __exit__(self, *error: Any) -> None:
                with self._held:
                    super().__exit__(*error)

        return dual_level
