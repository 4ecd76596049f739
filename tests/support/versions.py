"""What the tests run on, for their first lines; a release newer than those that are known to pass is told there."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec

from packaging.version import Version

from dagad_scheduler import releases

SHOWN = ("dask", "distributed", "autograd", "numpy", "scipy")


def told() -> list[str]:
    newer = [
        f"{package} {version(package)} is newer than {newest}, the last release that is known to pass: "
        "if all do, write it into dagad_scheduler.releases"
        for package, (_, newest) in releases.SEEN.items()
        if find_spec(package) is not None and Version(version(package)) > Version(newest)
    ]
    return ["on " + ", ".join(f"{package} {version(package)}" for package in SHOWN), *newer]
