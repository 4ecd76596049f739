"""How many examples of Hypothesis' a test tries: a quarter in the quick tier, see `tiers`."""

from __future__ import annotations

from hypothesis import settings

OF_HUNDRED = {"quick": 25, "whole": 100, "rest": 100}


def configure(tier: str) -> None:
    settings.register_profile(tier, parent=settings.default, max_examples=OF_HUNDRED[tier])
    settings.load_profile(tier)


def examples(n: int) -> int:
    """Return how many of the examples that the whole tier tries are tried."""
    return n * settings().max_examples // 100
