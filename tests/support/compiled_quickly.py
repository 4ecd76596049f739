"""Tests of slopes that jax has by dagad's own rules: XLA compiles them without what it does for speed.

What users run, with all of that, is compared in `tests/engines/test_numpy_compiled.py`, function by function.
"""

from __future__ import annotations

import pytest

QUICKLY = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}


@pytest.fixture(autouse=True)
def compiled_quickly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile in a third of the time where a test is one of jax's; imported by its module."""
    if any("jax" in mark.args for mark in request.node.iter_markers("needs")):
        from dagad._engines import jax as engine

        monkeypatch.setattr(engine, "OPTIONS", engine.OPTIONS | QUICKLY)
