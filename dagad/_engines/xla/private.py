"""What dagad takes from inside jax, all of it; listed in test_private."""

from dagad_scheduler.releases import taken_from

with taken_from("jax"):
    from jax._src.core import (
        Trace as Trace,
        Tracer as Tracer,
        set_current_trace as set_current_trace,
        trace_ctx as trace_ctx,
        typeof as typeof,
    )
