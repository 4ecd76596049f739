"""dagad: derivatives of work that runs in parallel, on Dask task graphs."""

from __future__ import annotations

from dagad._api.collections import gradient as gradient, value_and_gradient as value_and_gradient
from dagad._api.higher_order import hessian as hessian, hvp as hvp, jacfwd as jacfwd, jacrev as jacrev, jvp as jvp
from dagad._api.maps import map as map, map_rect as map_rect, map_reduce as map_reduce
from dagad._api.reductions import map_sum as map_sum, reduce_sum as reduce_sum
from dagad._api.shard import shard as shard
from dagad._api.transforms import (
    evaluate as evaluate,
    grad as grad,
    value_and_grad as value_and_grad,
    vjp as vjp,
)
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
from dagad._executors.deadly import find_deadly_chunk as find_deadly_chunk
from dagad._executors.evaluation import Evaluation as Evaluation, get as get
from dagad._sources.shards import Shards as Shards

__version__ = "0.1.0"
