"""Tests of slopes that jax has by dagad's own rules: XLA compiles them without what it does for speed.

What users run, with all of that, is compared in `tests/engines/test_numpy_compiled.py`, function by function;
values and gradients at edges and corners are compiled so in that folder, and what is of higher order there quickly.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

OPTIONS: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


@functools.cache
def quickly() -> dict[str, Any]:
    """Return options for XLA, without those that the release of jax which is here no longer knows."""
    import jax

    options = dict(OPTIONS)
    for name, value in OPTIONS.items():
        try:
            jax.jit(lambda x: x, compiler_options={name: value})(1.0)
        except Exception as error:
            if name not in str(error):
                raise
            del options[name]
    return options


@contextmanager
def quick_compiler() -> Iterator[None]:
    """Compile what dagad runs in here in a third of the time, and use nothing that was compiled outside, nor later."""
    from dagad._engines import jax as engine, jax_settings
    from dagad._remembered import Remembered

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax_settings, "OPTIONS", jax_settings.OPTIONS | quickly())
        patch.setattr(engine, "_COMPILED", Remembered(engine.MOST_COMPILED))
        yield


@pytest.fixture(autouse=True)
def compiled_quickly(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile in a third of the time where a test is one of jax's; imported by its module."""
    if any("jax" in mark.args for mark in request.node.iter_markers("needs")):
        with quick_compiler():
            yield
    else:
        yield
