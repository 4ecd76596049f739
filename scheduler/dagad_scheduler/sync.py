"""One task after the other in the calling thread: the local scheduler with a single worker."""

from __future__ import annotations

from dagad_scheduler.threads import Threads


class Sync(Threads):
    """Run graphs in the calling thread, in the same order as `Threads` would start their tasks."""

    def __init__(self) -> None:
        super().__init__(num_workers=1, name="sync")
