"""dagad: derivatives of work that runs in parallel, on Dask task graphs.

A *chunk function* takes some rows of the data and the parameters, and is written with numpy. dagad runs it on all
chunks, in threads, processes or on a Dask cluster, and differentiates whatever is built around it::

    import dagad
    import numpy as np

    def log_likelihood(rows, theta):
        x, y = rows
        return -0.5 * np.sum((y - np.dot(x, theta)) ** 2)

    def loss(theta):
        return -dagad.reduce_sum(log_likelihood, (x, y), theta)

    value, gradient = dagad.value_and_grad(loss)(theta)

Work on rows, in parallel
    reduce_sum(f, sliced, *shared)           the sum over all chunks of ``f(rows, *shared)``
    map_sum(f, sliced, *shared)              the sum over all items of ``f(item, *shared)``
    map(f, sliced, *shared)                  the results of all items, stacked
    map_rect(f, jobs, *shared)               the results of all jobs, arrays of any lengths, concatenated
    map_reduce(f, combine, sliced, *shared)  the results of all chunks, combined two by two
    shard(data)                              `Shards`: data that are cut and placed once, for many evaluations
    find_grainsize(f, sliced, *shared)       how many rows a chunk of `reduce_sum` has by itself

Derivatives of functions
    value_and_grad(fun)(*args), grad(fun)(*args)      value and gradient of a function that returns one number
    vjp(fun, *primals), jvp(fun, primals, tangents)   one step of reverse mode, of forward mode
    jacrev(fun)(*args), jacfwd(fun)(*args)            the Jacobian, row by row or column by column
    hessian(fun)(*args), hvp(fun, primals, tangents)  the Hessian, or its product with a vector
    evaluate(fun, *args)                              returns at once: an `Evaluation`, the value first

Derivatives of Dask graphs
    gradient(y, wrt), value_and_gradient(y, wrt)      graphs that compute the gradient of a Delayed
    jvp(y, wrt, tangents)                             the same in forward mode
    visualize(*collections)                           draws them, forward and reverse half side by side
    get                                               Dask's ``scheduler=dagad.get``: values before gradients

Long runs
    progress()                                        ``with dagad.progress():`` shows how far evaluations are and
                                                      counts them, as `Evaluations`; see `Evaluation.profile` too
    checkpoint(path)                                  a run that goes on where it stood when it was interrupted
    dashboard()                                       the page on Dask's dashboard that shows what a cluster evaluates

When something is wrong
    testing                                           `check_grads` and others compare derivatives with differences
    replay(error)                                     runs the chunk that failed, alone, here
    find_deadly_chunk(error)                          which chunk brought its workers down
    DagadError                                        all errors that dagad raises on purpose: ArgumentsError,
                                                      CancelledError, CheckpointDiskError, CheckpointError,
                                                      ClosureError, DataLostError, GradientError, MissingNameError,
                                                      NonFiniteError,
                                                      NotDifferentiableError, PlanError, PortabilityError,
                                                      SchedulerLostError, StructureError, TimedOutError,
                                                      WorkerLostError
    DagadWarning                                      what is most likely not meant: chunk functions that don't add up,
                                                      rows that make nan, gradients that are nan, integers
                                                      among parameters

To go further
    extend                                            engines, policies, functions with derivatives of their own
    interop                                           objectives for scipy, jax and torch: import the module you want

Dask's configuration holds the settings: ``dask.config.set({"dagad.grainsize": 10_000})``, or in the environment
``DASK_DAGAD__GRAINSIZE=10000``. The page ``examples/guide/settings.md`` explains them.
"""

from __future__ import annotations

from dagad import extend as extend, testing as testing
from dagad._api.checkpoint import Checkpoint as Checkpoint, checkpoint as checkpoint
from dagad._api.collections import gradient as gradient, value_and_gradient as value_and_gradient
from dagad._api.higher_order import hessian as hessian, hvp as hvp, jacfwd as jacfwd, jacrev as jacrev, jvp as jvp
from dagad._api.maps import map as map, map_rect as map_rect, map_reduce as map_reduce
from dagad._api.missing import missing as _missing
from dagad._api.reductions import find_grainsize as find_grainsize, map_sum as map_sum, reduce_sum as reduce_sum
from dagad._api.shard import shard as shard
from dagad._api.transforms import (
    evaluate as evaluate,
    grad as grad,
    value_and_grad as value_and_grad,
    vjp as vjp,
)
from dagad._diagnosis.replay import replay as replay
from dagad._errors import (
    ArgumentsError as ArgumentsError,
    CancelledError as CancelledError,
    CheckpointDiskError as CheckpointDiskError,
    CheckpointError as CheckpointError,
    ClosureError as ClosureError,
    DagadError as DagadError,
    DagadWarning as DagadWarning,
    DataLostError as DataLostError,
    GradientError as GradientError,
    MissingNameError as MissingNameError,
    NonFiniteError as NonFiniteError,
    NotDifferentiableError as NotDifferentiableError,
    PlanError as PlanError,
    PortabilityError as PortabilityError,
    SchedulerLostError as SchedulerLostError,
    StructureError as StructureError,
    TimedOutError as TimedOutError,
    WorkerLostError as WorkerLostError,
)
from dagad._executors.evaluation import Evaluation as Evaluation, get as get
from dagad._executors.losses import find_deadly_chunk as find_deadly_chunk
from dagad._graphs.drawing import visualize as visualize
from dagad._sources.shards import Shards as Shards
from dagad._watching.dashboard import dashboard as dashboard
from dagad._watching.evaluations import Evaluations as Evaluations
from dagad._watching.progress import progress as progress

__version__ = "0.1.0"
vars()["__getattr__"] = _missing  # in a way that type checkers don't see: for them every name would be there

# The errors are public too: `help(dagad)` would print all that they inherit from Exception, twelve times.
__all__ = [
    "Checkpoint",
    "Evaluation",
    "Evaluations",
    "Shards",
    "checkpoint",
    "dashboard",
    "evaluate",
    "extend",
    "find_deadly_chunk",
    "find_grainsize",
    "get",
    "grad",
    "gradient",
    "hessian",
    "hvp",
    "jacfwd",
    "jacrev",
    "jvp",
    "map",
    "map_rect",
    "map_reduce",
    "map_sum",
    "progress",
    "reduce_sum",
    "replay",
    "shard",
    "testing",
    "value_and_grad",
    "value_and_gradient",
    "visualize",
    "vjp",
]
