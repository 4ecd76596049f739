"""Models for nutpie's sampler, made of log-densities of dagad's; needs ``pip install "dagad[nutpie]"``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dagad._api.program import check_function
from dagad._api.transforms import value_and_grad
from dagad._errors import NonFiniteError, NotDifferentiableError, StructureError
from dagad._tracebacks import public
from dagad._types import DType, Leaf, Tree, Value
from dagad._values import pytree
from dagad._words import described, name_of

try:
    from nutpie.compiled_pyfunc import PyFuncModel, from_pyfunc
except ModuleNotFoundError as error:
    error.add_note('dagad: `dagad.interop.nutpie` needs nutpie: `pip install "dagad[nutpie]"`.')
    raise


@public
def compile_model(
    log_density: Callable[[Any], Any],
    params: Tree,
    *,
    expand: Callable[[Any], Mapping[str, Any]] | None = None,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
    jitter: float = 1.0,
) -> PyFuncModel:
    """Return a model for `nutpie.sample`; `log_density` is called here once, with its gradient, to see that it works.

    Parameters
    ----------
    log_density
        From parameters to the log of their density, up to a constant; it may call `reduce_sum` and the like. A chain is
        a thread of nutpie's: it may be called in several at a time.
    params
        Where chains start, as a pytree of floating-point numbers and arrays that may have any value: give the logarithm
        of what is positive, and add the logarithm of the slope to the density.
    expand
        From parameters to what is kept of each draw, numbers and arrays by name. None keeps the parameters, nested ones
        under their path: ``group.mean``.
    coords, dims
        As nutpie takes them: names for the entries of a dimension, and names for the dimensions of what is kept.
    jitter
        Chains start at `params` plus uniform numbers between -`jitter` and `jitter`.

    Returns
    -------
    nutpie.compiled_pyfunc.PyFuncModel
        What `nutpie.sample` takes. The draws depend on its `seed` and the density's bits, so not on the scheduler.

    Raises
    ------
    NotDifferentiableError
        If a parameter is no real floating-point number, or the density is not one.
    NonFiniteError
        If density or gradient are not finite at `params`.
    StructureError
        If `expand` does not return numbers by name.

    Examples
    --------
    >>> import nutpie
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.interop.nutpie import compile_model
    >>> def log_likelihood(rows, mean):
    ...     return -0.5 * np.sum((rows - mean) ** 2)
    >>> def log_density(params):
    ...     return dagad.reduce_sum(log_likelihood, np.arange(100.0), params["mean"], scheduler="sync")
    >>> model = compile_model(log_density, {"mean": 40.0})
    >>> trace = nutpie.sample(model, draws=200, tune=200, chains=1, seed=1, progress_bar=False)
    >>> round(float(trace.posterior["mean"].mean()), 1)
    49.5
    """
    check_function(log_density, "interop.nutpie.compile_model")
    point = _Point(params)
    density = _LogDensity(log_density, point)
    density.check()
    kept = _KeptDraws(expand or point.by_name, point)
    return from_pyfunc(
        point.start.size,
        lambda: density,
        lambda *seeds: kept,
        [array.dtype for array in kept.example.values()],
        [array.shape for array in kept.example.values()],
        list(kept.example),
        coords=dict(coords or {}),
        dims={name: tuple(names) for name, names in (dims or {}).items()},
        make_initial_point_fn=lambda seed: _near(point.start, jitter, seed),
    )


def _near(start: np.ndarray, jitter: float, seed: int) -> np.ndarray:
    jittered: np.ndarray = start + np.random.default_rng(seed).uniform(-jitter, jitter, start.size)
    return jittered


_STEP = re.compile(r"[^\[\]'.]+")  # of a path


class _Point:
    """Parameters as one array, and back."""

    def __init__(self, params: Tree) -> None:
        self._leaves, self._treedef = pytree.flatten(params)
        self._paths = pytree.paths(params)
        for path, leaf in zip(self._paths, self._leaves, strict=True):
            if not pytree.is_differentiable(leaf) or np.iscomplexobj(leaf):
                raise NotDifferentiableError(
                    f"`params{path}` is {described(leaf)}; a sampler moves real floating-point numbers. Write `1.0` "
                    "for 1, and give the log-density what is constant in another way, such as a closure."
                )
        if not self._leaves:
            raise NotDifferentiableError("`params` has no numbers in it. Give a point at which chains can start.")
        self._ends = np.cumsum([np.size(leaf) for leaf in self._leaves])
        self.start = self.flat(self._leaves)

    def flat(self, leaves: Sequence[Any]) -> np.ndarray:
        return np.concatenate([np.ravel(leaf) for leaf in leaves]).astype(np.float64)

    def flat_tree(self, tree: Tree) -> np.ndarray:
        return self.flat(pytree.flatten(tree)[0])

    def tree(self, x: np.ndarray) -> Any:
        pairs = zip(np.split(x, self._ends[:-1]), self._leaves, strict=True)
        return pytree.unflatten(self._treedef, [_like(part, leaf) for part, leaf in pairs])

    def by_name(self, params: Tree) -> dict[str, Any]:
        leaves, _ = pytree.flatten(params)
        named = {".".join(_STEP.findall(path)) or "x": leaf for path, leaf in zip(self._paths, leaves, strict=True)}
        if len(named) < len(leaves):
            raise StructureError(
                f"`params` has {len(leaves)} leaves, {', '.join(self._paths)}, and two of them would be called the "
                "same. Rename one, or give `expand`."
            )
        return named


def _like(part: np.ndarray, leaf: Leaf) -> Any:
    """Return numbers in the shape and dtype of a parameter, and in memory of their own."""
    return np.array(part, pytree.dtype_of(leaf)).reshape(np.shape(leaf))[()]


class _LogDensity:
    """What nutpie calls at each step: from one array to the density and its gradient as one array."""

    def __init__(self, fun: Callable[[Any], Any], point: _Point) -> None:
        self._fun, self._both, self._point = fun, value_and_grad(fun), point

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):  # steps that go too far are taken back; a sampler takes some
            value, gradient = self._both(self._point.tree(x))
        return float(value), self._point.flat_tree(gradient)

    def check(self) -> None:
        """Call it where chains start: what goes wrong there is told here, and not by one of nutpie's threads."""
        value, gradient = self(self._point.start)
        if not np.isfinite(value) or not np.all(np.isfinite(gradient)):
            raise NonFiniteError(
                f"`{name_of(self._fun)}` is {value} at `params`, and {np.sum(~np.isfinite(gradient))} of the "
                f"{gradient.size} numbers of its gradient are not finite. Give a point at which a chain can start."
            )


_KEPT = {"f": np.float64, "i": np.int64, "u": np.int64, "b": np.bool_}  # by the kind of dtype; nutpie knows these


class _KeptDraws:
    """What nutpie calls at each draw: from one array to the arrays that are kept, as they are at the start."""

    def __init__(self, expand: Callable[[Any], Mapping[str, Any]], point: _Point) -> None:
        self._expand, self._point = expand, point
        found = expand(point.tree(point.start))
        if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
            raise StructureError(
                f"`expand` returned {described(found)}. Return a dict: what is kept of a draw, by name."
            )
        arrays = {name: np.asarray(value) for name, value in found.items()}
        wrong = [name for name, array in arrays.items() if array.dtype.kind not in _KEPT]
        if wrong:
            raise StructureError(
                f"`expand` returned {described(arrays[wrong[0]])} as `{wrong[0]}`. Return real numbers and arrays of "
                "them."
            )
        self.example: dict[str, np.ndarray] = {
            name: array.astype(_KEPT[array.dtype.kind]) for name, array in arrays.items()
        }

    def __call__(self, x: np.ndarray) -> dict[str, np.ndarray]:
        found = self._expand(self._point.tree(x))
        return {name: _kept_as(found[name], array.dtype, name) for name, array in self.example.items()}


def _kept_as(value: Value, dtype: DType, name: str) -> np.ndarray:
    array = np.array(value)
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise StructureError(
            f"`expand` returned {described(value)} as `{name}`, and {dtype} where chains start. Return the same kind "
            "of numbers at every point, `0.0` for `0` say."
        )
    return array.astype(dtype)
