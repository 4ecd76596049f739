"""Tests of slopes that jax has by dagad's own rules: XLA compiles them without what it does for speed.

What users run, with all of that, is compared in `tests/engines/test_numpy_compiled.py`, function by function.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest


@functools.cache
def quickly() -> dict[str, Any]:
    """Return options for XLA, without those that the release of jax which is here no longer knows."""
    import jax

    options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda x: x, compiler_options=options)(1.0)
    except Exception as error:
        if "xla_cpu_use_fusion_emitters" not in str(error):
            raise
        del options["xla_cpu_use_fusion_emitters"]
    return options


@pytest.fixture(autouse=True)
def compiled_quickly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile in a third of the time where a test is one of jax's; imported by its module."""
    if any("jax" in mark.args for mark in request.node.iter_markers("needs")):
        from dagad._engines import jax_settings

        monkeypatch.setattr(jax_settings, "OPTIONS", jax_settings.OPTIONS | quickly())
