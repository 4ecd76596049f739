"""For those who extend dagad: engines, policies, and functions that bring their own derivative."""

from __future__ import annotations

from dagad._api.jacobian import Dense as Dense, Layout as Layout, Sparse as Sparse
from dagad._engines.autograd.engine import AutogradEngine as AutogradEngine
from dagad._engines.base import (
    Composed as Composed,
    Engine as Engine,
    FlatFunction as FlatFunction,
    LeafPullback as LeafPullback,
)
from dagad._engines.explicit import ExplicitEngine as ExplicitEngine, explicit as explicit
from dagad._graphs.linearization import Linearization as Linearization
from dagad._graphs.monoids import CompensatedSum as CompensatedSum, Monoid as Monoid, PlainSum as PlainSum
from dagad._graphs.policies import (
    Keep as Keep,
    Policy as Policy,
    Preaccumulate as Preaccumulate,
    Recompute as Recompute,
)

__all__ = [
    "AutogradEngine",
    "CompensatedSum",
    "Composed",
    "Dense",
    "Engine",
    "ExplicitEngine",
    "FlatFunction",
    "Keep",
    "Layout",
    "LeafPullback",
    "Linearization",
    "Monoid",
    "PlainSum",
    "Policy",
    "Preaccumulate",
    "Recompute",
    "Sparse",
    "explicit",
]
