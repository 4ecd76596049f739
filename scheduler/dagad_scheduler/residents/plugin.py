"""Plugins of a distributed cluster. The one module that needs `distributed` to be imported; others do when it runs."""

from __future__ import annotations

from distributed import WorkerPlugin

from dagad_scheduler._types import Worker
from dagad_scheduler.departures import heed
from dagad_scheduler.residents.reports import WANTED
from dagad_scheduler.residents.service import ResidentService


class Resident(WorkerPlugin):
    """Gives every worker a desk for calls in a hot loop, those that join later too."""

    name, idempotent = "dagad-resident", True
    service: ResidentService | None = None  # until it is open

    def setup(self, worker: Worker) -> None:
        """Open the desk."""
        heed(worker)
        self.service = ResidentService(worker)
        worker.handlers["dagad_connection"] = self.service.connection
        worker.handlers["dagad_relayed"] = self.service.relayed
        worker.handlers["dagad_sums"] = self.service.exchange.give
        worker.stream_handlers[WANTED] = self.service.wanted

    def teardown(self, worker: Worker) -> None:
        """Close it; it may still be told what is wanted."""
        for name in ("dagad_connection", "dagad_relayed", "dagad_sums"):
            worker.handlers.pop(name, None)
