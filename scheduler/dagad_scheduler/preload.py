"""What ``dask scheduler --preload dagad_scheduler.preload`` and ``dask worker --preload ...`` run before they begin."""

from __future__ import annotations

from dagad_scheduler._types import Server


async def dask_setup(server: Server) -> None:
    """Give a scheduler the plugin that shows evaluations, a worker what answers in hot loops; a nanny needs nothing."""
    if hasattr(server, "register_scheduler_plugin"):
        from dagad_scheduler.watching.plugin import DagadPlugin

        plugin = DagadPlugin()
        await server.register_scheduler_plugin(plugin, name=plugin.name, idempotent=True)
    elif hasattr(server, "plugin_add"):
        from dagad_scheduler.residents.plugin import Resident

        await server.plugin_add(Resident(), name=Resident.name)
