"""How jax compiles: by options of dagad's, and not as it has been told in the thread that happens to do it.

All threads use what comes of it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import jax

from dagad._errors import PlanError

config: Any = jax.config  # jax has no type for what is in it
# What shows in the numbers, or whether there are any, and how it is set for a `with` block.
_SETTINGS: dict[str, Any] = {
    "jax_default_matmul_precision": jax.default_matmul_precision,
    "jax_default_prng_impl": jax.default_prng_impl,
    "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
    "jax_numpy_rank_promotion": jax.numpy_rank_promotion,
    "jax_threefry_partitionable": jax.threefry_partitionable,
}

# One thread a call, or how many cores a worker has would show in the bits; chunks run side by side anyway.
# Of several orders of the operations the one that needs least memory: the bits are the same, and fresh memory is not
# had for nothing (a mixture of 50,000 rows: 40 ms, with it 24). Vectors as wide as the processor has: by itself XLA
# takes half of them (logistic rows 5.4 ms, with it 4.3; negative-binomial ones 9.9 and 8.2).
OPTIONS: Any = {
    "xla_cpu_multi_thread_eigen": False,
    "xla_cpu_prefer_vector_width": 512,
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
}


def compiled_for_cpu(lowered: Any) -> Any:
    """Compile something with `OPTIONS`, without those that this release of jax does not know."""
    options = dict(OPTIONS)
    while True:
        try:
            return lowered.compile(options)
        except Exception as error:
            unknown = [name for name in options if f"No such compile option: '{name}'" in str(error)]
            if not unknown:
                raise
            del options[unknown[0]]


def refuse_uncompiled() -> None:
    """Refuse to do without compiling, which is all that this engine does."""
    if config.jax_disable_jit:
        raise PlanError(
            '`jax.disable_jit()` is on around a reduction, map or graph with `engine="jax"`, which runs nothing but '
            "what it has compiled. Switch it off there, `with jax.disable_jit(False):`, and print by `jax.debug.print` "
            "in the chunk function; or call the function by hand, with some rows of jax's."
        )


@contextlib.contextmanager
def as_for_all() -> Iterator[None]:
    """Have jax's settings as all threads have them: those of a `with` block are of this thread alone."""
    found: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: found.update(_settings()))  # a new one has heard of no block
    thread.start()
    thread.join()
    with contextlib.ExitStack() as held:
        for name, mine in _settings().items():
            if mine != found[name]:
                held.enter_context(_SETTINGS[name](found[name]))
        yield


def _settings() -> dict[str, Any]:
    return {name: getattr(config, name) for name in _SETTINGS}
