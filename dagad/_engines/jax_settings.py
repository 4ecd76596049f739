"""What jax has been told in the thread that happens to compile: not taken, for all threads use what comes of it."""

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
