"""Defaults, in Dask's configuration under ``dagad:``; environment variables read ``DASK_DAGAD__ENGINE`` and so on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.config
import yaml

_DEFAULTS = yaml.safe_load(Path(__file__).with_name("dagad.yaml").read_text(encoding="utf-8"))
dask.config.update_defaults(_DEFAULTS)


def setting(name: str) -> Any:
    """Return a setting as Dask has it now."""
    ours = dask.config.config.get("dagad")
    if isinstance(ours, dict) and name in ours:  # nearly always; Dask's own way there takes as long as a small chunk
        return ours[name]
    return dask.config.get(f"dagad.{name}", default=_DEFAULTS["dagad"][name])
