"""Names that users of JAX, autograd, Stan or Dask look for in `dagad`, and what there is instead."""

from __future__ import annotations

import ast
import difflib
import importlib
import sys
from pathlib import Path
from typing import Any, final

from dagad._errors import MissingNameError
from dagad._tracebacks import public

CLOSE = 0.7  # of difflib's ratios: below it, names have little more than letters in common
_TREES = "dagad's functions take and return pytrees as they are; to work on one yourself use `optree`, as `optree.{}`."
_INSTEAD = {
    "sum": "Use `dagad.reduce_sum` for a function of many rows, `dagad.map_sum` for one of a single item.",
    "jit": (
        'Chunks run as they are written, so leave it out. With `engine="jax"` of a reduction jax compiles each; '
        "to call what dagad made in a program of jax's, use `dagad.interop.jax.as_jax`."
    ),
    "pmap": "Use `dagad.map`, which runs items in parallel, or `dagad.reduce_sum` for sums over rows.",
    **dict.fromkeys(("fori_loop", "while_loop"), "Write a Python loop."),
    "cond": "Write `if`, on plain values; on traced ones `np.where(condition, a, b)`.",
    "scan": "Write a Python loop, or combine chunks in order by `dagad.map_reduce`.",
    "jacobian": "Use `dagad.jacrev` for few outputs and many inputs, `dagad.jacfwd` for the opposite.",
    "elementwise_grad": "Use `dagad.vjp(fun, x)[1](np.ones(shape))`: the sum over outputs, differentiated.",
    "linearize": "Use `dagad.jvp(fun, primals, tangents)` for each tangent, or `dagad.vjp`, which records once.",
    "linear_transpose": "Use `dagad.vjp`: the pullback of a linear function is its transpose.",
    **dict.fromkeys(
        ("remat", "rematerialize"),
        "Pass `policy=dagad.extend.Recompute()`: chunks then keep nothing, and run again for their gradient.",
    ),
    "stop_gradient": (
        "Compute what is constant outside of the function, or compute it inside from "
        "`autograd.tracer.getval(x)`, the plain value of `x`."
    ),
    "custom_vjp": (
        "Mark a chunk function that returns `(value, pullback)` with `dagad.extend.explicit`; for a function inside a "
        "chunk use `autograd.extend.primitive` and `autograd.extend.defvjp`."
    ),
    "custom_jvp": "Use `autograd.extend.primitive` and `autograd.extend.defjvp`.",
    "gradcheck": "It is `dagad.testing.check_grads`.",
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
    "reduce_sum_static": "Use `dagad.reduce_sum`: for a given `grainsize` its bits are always the same.",
    "partial_sum": "That is the function you write: the first argument of `dagad.reduce_sum`.",
    "delayed": "Use `dask.delayed`; `dagad.gradient` differentiates what is built with it.",
    "compute": "Use `dask.compute`.",
    "persist": "Use `dask.persist`, or `dagad.shard` for rows.",
    "Delayed": "Use `dask.delayed`; `dagad.gradient` differentiates what is built with it.",
    "Client": "Use `distributed.Client`; once there is one, dagad runs on it.",
    **dict.fromkeys(
        ("LocalCluster", "cluster"),
        "Use `distributed.LocalCluster`, or any other cluster of Dask's, and its `distributed.Client`.",
    ),
    "set_engine": 'Use `dask.config.set({"dagad.engine": name})`, or `engine=` of a reduction.',
    "interop": "Import the module you want: `import dagad.interop.scipy`, `.jax`, `.torch`, `.pytensor` or `.nutpie`.",
    "settings": 'They are Dask\'s: `dask.config.set({"dagad.grainsize": 10_000})`; `dagad/dagad.yaml` has all of them.',
    "config": 'Use `dask.config.set({"dagad.grainsize": 10_000})`; `dagad/dagad.yaml` has all settings.',
}


@final
class _Missing:
    """The module's `__getattr__`. It is no function, since `help(dagad)` would begin its functions with it."""

    @public
    def __call__(self, name: str) -> Any:
        """Say what there is instead of a name that is not in `dagad`.

        `dagad.solvers` is there when somebody asks for it: it imports scipy.
        """
        if name == "solvers":
            return importlib.import_module("dagad.solvers")
        raise MissingNameError(f"There is no `dagad.{name}`. {_INSTEAD.get(name) or _guess(name)}".rstrip())

    def __repr__(self) -> str:
        return "<says what there is instead of a name that is not here>"


missing = _Missing()


def _guess(name: str) -> str:
    """Say where something of this name is, or of the same words in another order, else of nearly this name."""
    if name.startswith("_"):  # asked by tools, not by users
        return ""
    there = {path.rpartition(".")[2]: path for path in reversed(_public_paths())}
    by_words = {_words_of(last): path for last, path in there.items()}
    if path := by_words.get(_words_of(name)):
        return f"It is `{path}`{_reached(path)}."
    by_case = {last.lower(): path for last, path in there.items()}
    if near := difflib.get_close_matches(name.lower(), list(by_case), n=1, cutoff=CLOSE):
        return f"Did you mean `{by_case[near[0]]}`{_reached(by_case[near[0]])}?"
    return "`help(dagad)` shows what there is."


def _words_of(name: str) -> tuple[str, ...]:
    return tuple(sorted(name.lower().split("_")))


def _reached(path: str) -> str:
    if path == "dagad.doctor":
        return ", for the command line: `python -m dagad.doctor ADDRESS`"
    if not path.startswith("dagad.interop."):
        return ""
    return f", after `import {'.'.join(path.split('.')[:3])}`"


def _public_paths() -> list[str]:
    """Return all that is public, as it is written; nothing is imported to find it, as neighbours may not be there."""
    module = sys.modules["dagad"]
    paths = [f"dagad.{name}" for name in vars(module) if name in module.__all__ or name.endswith(("Error", "Warning"))]
    root = Path(module.__file__ or "").parent
    for file in sorted(root.glob("[a-z]*.py")):
        paths += [f"dagad.{file.stem}", *(f"dagad.{file.stem}.{name}" for name in _listed(file))]
    for file in sorted(root.glob("interop/[a-z]*.py")):
        paths.append(f"dagad.interop.{file.stem}")
        tree = ast.parse(file.read_text(encoding="utf-8"))
        defined = (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef))
        paths += [f"dagad.interop.{file.stem}.{name}" for name in defined if not name.startswith("_")]
    # Of two of one name, `minimize` say, the one for a whole objective is told.
    paths += [f"dagad.solvers.{name}" for name in _listed(root / "solvers" / "__init__.py")]
    return paths


def _listed(file: Path) -> list[str]:
    """Return what a module's ``__all__`` says."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []
