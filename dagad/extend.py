"""dagad's parts that can be replaced: engines, policies, ways to add up, and functions with derivatives of their own.

Give them to a reduction or a map::

    dagad.reduce_sum(f, data, theta, policy=dagad.extend.Recompute(), sum=dagad.extend.CompensatedSum())

What happens to a chunk's tape between value and gradient (``policy=``)
    Keep, Recompute, Preaccumulate    keep the tape, run the chunk again, or compute the gradient with the value
    Policy, Linearization             what they have in common, and what they return

Which steps of a Dask graph are stored and run again (``policy=`` of `dagad.gradient`)
    Segment(k), Revolve(slots)        every k-th state with k tapes, or so many states with one; in memory or on disk
    Schedule                          what they have in common; those of the package checkpoint_schedules do, too

What differentiates a chunk (``engine=``)
    explicit(f)                       marks a function that returns ``(value, pullback)``
    AutogradEngine, ExplicitEngine    the engines that there are
    Engine, FlatFunction, Composed, LeafPullback    what an engine of your own has, gets and returns

How chunks are added up (``sum=``), and Jacobians stored (``layout=``)
    PlainSum, CompensatedSum, Monoid
    Dense, Sparse, Layout
"""

from __future__ import annotations

from dagad._api.jacobian import Dense as Dense, Layout as Layout, Sparse as Sparse
from dagad._engines.autograd import AutogradEngine as AutogradEngine
from dagad._engines.explicit import ExplicitEngine as ExplicitEngine, explicit as explicit
from dagad._graphs.linearization import Linearization as Linearization
from dagad._graphs.monoids import CompensatedSum as CompensatedSum, Monoid as Monoid, PlainSum as PlainSum
from dagad._graphs.policies import (
    Keep as Keep,
    Policy as Policy,
    Preaccumulate as Preaccumulate,
    Recompute as Recompute,
)
from dagad._graphs.schedules import Revolve as Revolve, Schedule as Schedule, Segment as Segment
from dagad._tracing.flat_functions import (
    Composed as Composed,
    Engine as Engine,
    FlatFunction as FlatFunction,
    LeafPullback as LeafPullback,
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
    "Revolve",
    "Schedule",
    "Segment",
    "Sparse",
    "explicit",
]
