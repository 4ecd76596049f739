"""Clusters over TLS: certificates made for one session, as Dask's settings; ``pytest --cluster tls`` turns them on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import dask
import pytest
from distributed.security import Security

ROLES = "client", "scheduler", "worker"


def tls_settings() -> dict[str, Any]:
    """Return settings with which every cluster and every client talks over TLS; the certificates are in memory only."""
    made = Security.temporary()
    parts = {f"{role}.{part}": getattr(made, f"tls_{role}_{part}") for role in ROLES for part in ("cert", "key")}
    settings = {f"distributed.comm.tls.{name}": text for name, text in (parts | {"ca-file": made.tls_ca_file}).items()}
    return settings | {"distributed.comm.require-encryption": True}


def as_environment(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the same settings for processes that are started from here."""
    return {f"DASK_{name.upper().replace('.', '__').replace('-', '_')}": str(v) for name, v in settings.items()}


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--cluster", choices=("tcp", "tls"), default="tcp", help="what the clusters of tests talk over")


def configure(config: pytest.Config) -> None:
    if config.getoption("--cluster") == "tls":
        settings = tls_settings()
        dask.config.set(settings)
        os.environ.update(as_environment(settings))
