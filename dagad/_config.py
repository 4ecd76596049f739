"""Defaults, in Dask's configuration under ``dagad:``; environment variables read ``DASK_DAGAD__ENGINE`` and so on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.config
import yaml

_DEFAULTS = yaml.safe_load(Path(__file__).with_name("dagad.yaml").read_text(encoding="utf-8"))
dask.config.update_defaults(_DEFAULTS)


def setting(name: str) -> Any:
    return dask.config.get(f"dagad.{name}", default=_DEFAULTS["dagad"][name])


def quick_setting(name: str) -> Any:
    """Return a setting whose name has no hyphen, for hot loops: Dask's own look at it takes ten times as long."""
    found = dask.config.config.get("dagad")
    return found.get(name, _DEFAULTS["dagad"][name]) if isinstance(found, dict) else _DEFAULTS["dagad"][name]
