"""What of jax's own machinery a traced array is made of: public names, for those who extend jax; see test_private."""

from dagad_scheduler.releases import taken_from

with taken_from("jax"):
    from jax import typeof as typeof
    from jax.core import Trace as Trace, Tracer as Tracer
    from jax.extend.core import set_current_trace as set_current_trace, take_current_trace as take_current_trace
