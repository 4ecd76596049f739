"""dagad: derivatives of work that runs in parallel, on Dask task graphs."""

from __future__ import annotations

from dagad._collections import gradient as gradient, value_and_gradient as value_and_gradient
from dagad._deadly import find_deadly_chunk as find_deadly_chunk
from dagad._errors import (
    CancelledError as CancelledError,
    ClosureError as ClosureError,
    DagadError as DagadError,
    DataLostError as DataLostError,
    GradientError as GradientError,
    NotDifferentiableError as NotDifferentiableError,
    PlanError as PlanError,
    PortabilityError as PortabilityError,
    SchedulerLostError as SchedulerLostError,
    StructureError as StructureError,
    WorkerLostError as WorkerLostError,
)
from dagad._evaluation import Evaluation as Evaluation, get as get
from dagad._maps import map as map, map_rect as map_rect, map_reduce as map_reduce
from dagad._modes import hessian as hessian, hvp as hvp, jacfwd as jacfwd, jacrev as jacrev, jvp as jvp
from dagad._reductions import map_sum as map_sum, reduce_sum as reduce_sum
from dagad._shards import Shards as Shards, shard as shard
from dagad._transforms import (
    evaluate as evaluate,
    grad as grad,
    value_and_grad as value_and_grad,
    vjp as vjp,
)

__version__ = "0.1.0"
