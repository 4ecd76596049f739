"""Which releases of Dask, distributed and autograd all tests have passed with, and what is said of others.

What is private in them may move with any release. So it is imported in one module for each, within `taken_from`, and an
import that fails says which release has moved what, and which one to install.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.metadata import version

# The oldest and the newest. The oldest are the lower bounds in pyproject.toml, and pinned in .ci/oldest.txt.
SEEN = {
    "autograd": ("1.9.0", "1.9.1"),
    "dask": ("2025.11.0", "2026.8.0"),
    "distributed": ("2025.11.0", "2026.8.0"),
    "jax": ("0.10.2", "0.12.0.1"),
}


@contextlib.contextmanager
def taken_from(package: str) -> Iterator[None]:
    """Have an import of what is private in a package say, where it fails, with which releases it does not."""
    try:
        yield
    except ImportError as error:
        home = error.name or ""
        is_absent = home == package and isinstance(error, ModuleNotFoundError)
        if home.partition(".")[0] == package and not is_absent:  # else it lacks what it needs itself
            error.add_note(_remedy(package))
        raise


def _remedy(package: str) -> str:
    oldest, newest = SEEN[package]
    return (
        f"dagad: {package} {version(package)} has not got, or no longer here, what dagad takes from inside it. Install "
        f'a release that dagad is tested with, `pip install "{package}>={oldest},<={newest}"`, or a newer dagad.'
    )
