"""Names that users of JAX, autograd, Stan or Dask look for in `dagad`, and what there is instead."""

from __future__ import annotations

import difflib
import sys

from dagad._errors import MissingNameError
from dagad._tracebacks import public

_TREES = "dagad's functions take and return pytrees as they are; to work on one yourself use `optree`, as `optree.{}`."
_INSTEAD = {
    "sum": "Use `dagad.reduce_sum` for a function of many rows, `dagad.map_sum` for one of a single item.",
    "jit": "Chunks run as they are written: nothing is compiled, so leave it out.",
    "pmap": "Use `dagad.map`, which runs items in parallel, or `dagad.reduce_sum` for sums over rows.",
    "vmap": (
        "Write the function for many rows at once, with numpy, and sum over chunks of rows by "
        "`dagad.reduce_sum`. `dagad.map` takes a function of one item, and calls it once an item."
    ),
    "scan": "Write a Python loop, or combine chunks in order by `dagad.map_reduce`.",
    "jacobian": "Use `dagad.jacrev` for few outputs and many inputs, `dagad.jacfwd` for the opposite.",
    "elementwise_grad": "Use `dagad.vjp(fun, x)[1](np.ones(shape))`: the sum over outputs, differentiated.",
    "linearize": "Use `dagad.jvp(fun, primals, tangents)` for each tangent, or `dagad.vjp`, which records once.",
    "linear_transpose": "Use `dagad.vjp`: the pullback of a linear function is its transpose.",
    "checkpoint": "Pass `policy=dagad.extend.Recompute()`: chunks then keep nothing, and run again for their gradient.",
    "stop_gradient": (
        "Compute what is constant outside of the function, or compute it inside from "
        "`autograd.tracer.getval(x)`, the plain value of `x`."
    ),
    "custom_vjp": (
        "Mark a chunk function that returns `(value, pullback)` with `dagad.extend.explicit`; for a function inside a "
        "chunk use `autograd.extend.primitive` and `autograd.extend.defvjp`."
    ),
    "custom_jvp": "Use `autograd.extend.primitive` and `autograd.extend.defjvp`.",
    "primitive": "Use `autograd.extend.primitive`, with `autograd.extend.defvjp`.",
    "defvjp": "Use `autograd.extend.defvjp`.",
    "numpy": "Write `import numpy as np`.",
    "ravel_pytree": _TREES.format("integration.numpy.tree_ravel"),
    "tree_map": _TREES.format("tree_map"),
    "tree_util": _TREES.format("tree_map` and `optree.tree_flatten"),
    "tree": _TREES.format("tree_map` and `optree.tree_flatten"),
    "value_and_jacobian": "Use `dagad.vjp`, which gives the value and a pullback, or `dagad.jacrev`.",
    "hessian_vector_product": "It is called `dagad.hvp`.",
    "make_hvp": "It is called `dagad.hvp`.",
    "make_vjp": "It is called `dagad.vjp`.",
    "make_jvp": "It is called `dagad.jvp`.",
    "check_grads": "It is `dagad.testing.check_grads`.",
    "taylor_rate": "It is `dagad.testing.taylor_rate`.",
    "dot_product_gap": "It is `dagad.testing.dot_product_gap`.",
    "reduce_sum_static": "Use `dagad.reduce_sum`: for a given `grainsize` its bits are always the same.",
    "partial_sum": "That is the function you write: the first argument of `dagad.reduce_sum`.",
    "delayed": "Use `dask.delayed`; `dagad.gradient` differentiates what is built with it.",
    "compute": "Use `dask.compute`.",
    "Client": "Use `distributed.Client`; once there is one, dagad runs on it.",
    "cluster": "Use `distributed.LocalCluster`, or any other cluster of Dask's, and its `distributed.Client`.",
    "set_engine": 'Use `dask.config.set({"dagad.engine": name})`, or `engine=` of a reduction.',
    "minimize": "It is `dagad.interop.scipy.minimize`, by scipy's methods.",
    "interop": "Import the module you want: `import dagad.interop.scipy`, `.jax` or `.torch`.",
    "config": 'Use `dask.config.set({"dagad.grainsize": 10_000})`; `dagad/dagad.yaml` has all settings.',
}


@public
def missing(name: str) -> None:
    """Say what there is instead of a name that is not in `dagad`: its `__getattr__`."""
    there = dict(vars(sys.modules["dagad"]))
    for door in ("extend", "testing"):
        there |= {f"{door}.{one}": found for one, found in vars(there.get(door, object)).items()}
    near = difflib.get_close_matches(name, [one for one in there if not one.startswith("_")], n=1)
    guess = f"Did you mean `dagad.{near[0]}`?" if near else "`help(dagad)` shows what there is."
    raise MissingNameError(f"There is no `dagad.{name}`. {_INSTEAD.get(name, guess)}")
