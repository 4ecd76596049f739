"""Defaults, in Dask's configuration under ``dagad:``; environment variables read ``DASK_DAGAD__ENGINE`` and so on."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import dask.config
import yaml

from dagad._frames import warn
from dagad._remembered import Remembered

_DEFAULTS = yaml.safe_load(Path(__file__).with_name("dagad.yaml").read_text(encoding="utf-8"))
dask.config.update_defaults(_DEFAULTS)
_KNOWN = frozenset(_DEFAULTS["dagad"])
_N_KNOWN = len(_KNOWN)
_NAMED: Remembered[bool] = Remembered(16)  # sets of names that nobody reads, of which that was said


def setting(name: str) -> Any:
    """Return a setting as Dask has it now; one that nobody reads is named, once."""
    ours = dask.config.config.get("dagad")
    if isinstance(ours, dict) and name in ours:  # nearly always; Dask's own way there takes as long as a small chunk
        if len(ours) > _N_KNOWN:
            _name_unknown(ours)
        return ours[name]
    if isinstance(ours, dict):
        _name_unknown(ours)
    return dask.config.get(f"dagad.{name}", default=_DEFAULTS["dagad"][name])


def _name_unknown(ours: dict[str, Any]) -> None:
    unknown = frozenset(ours.keys() - _KNOWN)
    if not unknown or _NAMED.find(unknown) is not None:
        return
    _NAMED.change(unknown, lambda found: True)
    for name in sorted(str(name) for name in unknown if str(name).replace("_", "-") not in _KNOWN):
        near = difflib.get_close_matches(name.lower().replace("_", "-"), sorted(_KNOWN), n=1)
        guess = f"Did you mean `dagad.{near[0]}`?" if near else f"Choose one of {', '.join(sorted(_KNOWN))}."
        warn(f"The setting `dagad.{name}` is none of dagad's: nothing reads it. {guess}")
