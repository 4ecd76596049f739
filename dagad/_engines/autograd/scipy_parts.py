"""Takes up what dagad has for a part of scipy when somebody has imported that part: dagad itself does without scipy."""

from __future__ import annotations

from typing import Any

from dagad._engines.autograd.patches import patches
from dagad._engines.autograd.rules import HOMES


def _special(module: Any) -> bool:
    del module
    from dagad._engines.autograd import scipy_rules

    patches.swap(scipy_rules.SWAPS)
    return True


def _linalg(module: Any) -> bool:
    del module
    from dagad._engines.autograd import scipy_linalg

    patches.swap(scipy_linalg.SWAPS)
    return True


def _stats(module: Any) -> bool:
    del module
    from dagad._engines.autograd import scipy_stats

    patches.swap(scipy_stats.SWAPS)
    return True


HOMES["scipy.special"] = _special
HOMES["scipy.stats"] = _stats
HOMES["scipy.linalg"] = _linalg
