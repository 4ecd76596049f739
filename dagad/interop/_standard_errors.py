"""The covariance of estimates: the inverse Hessian, or the sandwich of two of these and scores of rows or groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from dagad._api.higher_order import hvp, jacfwd
from dagad._api.reductions import reduce_sum
from dagad._errors import ArgumentsError, NonFiniteError, NotDifferentiableError, StructureError
from dagad._frames import warn
from dagad._sources.columns import read_sliced
from dagad._types import AnyRows, Array, Function, Tree
from dagad._values import pytree
from dagad._words import described, name_of
from dagad.interop._parameters import Parameters, columns_of

SANDWICHES = ("HC0", "HC1", "cluster")
FAR = 0.1  # how many standard errors a minimum may be away before somebody is told
LIKE = 0.6  # how much of the curvature of a loss that of `losses` has to be, and the other way round


def check_asked(
    cov_type: object, losses: object, rows: AnyRows, groups: object, mean_over: Any, use_correction: bool
) -> None:
    """Raise unless what is given is what a covariance needs."""
    is_count = isinstance(mean_over, int | np.integer) and not isinstance(mean_over, bool)
    if not (mean_over is None or (is_count and mean_over > 0)):
        raise ArgumentsError(
            f"`mean_over` is {mean_over!r}. Say over how many rows the function is a mean, `mean_over=len(rows)`; "
            "leave it out of a sum."
        )
    if cov_type not in ("nonrobust", *SANDWICHES):
        raise ArgumentsError(
            f"`cov_type` is {cov_type!r}. Give 'nonrobust' for the inverse Hessian, 'HC0' for the sandwich, 'HC1' for "
            "that times n / (n - k), or 'cluster' for that of groups. 'HC2' and 'HC3' are of linear models alone."
        )
    if not use_correction and cov_type != "cluster":
        raise ArgumentsError(
            f"`use_correction=False` leaves out what 'cluster' is multiplied by, and `cov_type` is {cov_type!r}. Leave "
            "it at True; 'HC1' without its n / (n - k) is 'HC0'."
        )
    if cov_type == "nonrobust":
        if not (losses is None and rows is None and groups is None):
            raise ArgumentsError(
                "`losses`, `rows` and `groups` are for the sandwich, and `cov_type='nonrobust'` would read none of "
                "them. Say `cov_type='HC0'`, or 'cluster' where there are groups; or leave them out."
            )
        return
    if not callable(losses) or rows is None:
        raise ArgumentsError(
            f"`cov_type={cov_type!r}` needs the score of each row. Give `losses`, a function of some rows and the "
            "parameters that returns an array with the loss of each row, and `rows`, all of them, as "
            "`dagad.reduce_sum` takes them."
        )
    if (groups is None) == (cov_type == "cluster"):
        raise ArgumentsError(
            "`groups` go with `cov_type='cluster'`. Give both, `groups` an array with the name or number of the group "
            "that each row belongs to; or neither."
        )


# The bread


def inverse(hessian: Array, parameters: Parameters, called: str) -> Any:
    """Return the inverse of a Hessian at a minimum; that of what is no minimum is refused."""
    labels = parameters.labels
    if not np.all(np.isfinite(hessian)):
        index = int(np.argwhere(~np.isfinite(hessian))[0][0])
        raise NonFiniteError(
            f"The Hessian of `{called}` is not finite in `{labels[index]}`. Look at `dagad.hessian` there; a parameter "
            "at the edge of what it may be, such as a variance of 0, has no standard error."
        )
    curvatures = np.diag(hessian)
    if np.all(curvatures < 0.0):
        raise ArgumentsError(
            f"`{called}` has a maximum here. Give minus the log-likelihood, which is what is minimized."
        )
    if np.any(curvatures <= 0.0):
        index = int(np.argmin(curvatures))
        raise ArgumentsError(
            f"`{called}` is no minimum here in `{labels[index]}`: its second derivative is {curvatures[index]:.3g}. "
            "Fit on, from elsewhere; or leave out a parameter that the rows say nothing about."
        )
    scales = np.sqrt(curvatures)
    correlated = hessian / np.outer(scales, scales)
    values, vectors = np.linalg.eigh(0.5 * (correlated + correlated.T))
    if values[0] <= len(values) * 4.0 * np.finfo(float).eps * values[-1]:
        parts = np.abs(vectors[:, 0])
        among = [label for label, part in zip(labels, parts, strict=True) if part > 0.1 * parts.max()]
        raise ArgumentsError(
            f"`{called}` has no minimum of its own in {', '.join(f'`{label}`' for label in among)}: together they can "
            "change without changing it, to second order, or it falls. Leave one of them out, or add a penalty; if "
            "this is no optimum yet, fit on."
        )
    return (vectors / values) @ vectors.T / np.outer(scales, scales)


def check_optimum(gradient: Tree, covariance: Array, parameters: Parameters, called: str) -> None:
    """Warn where the minimum is elsewhere, by a Newton step in standard errors."""
    step = covariance @ gradient
    away = np.abs(step) / np.sqrt(np.diag(covariance))
    if np.max(away) > FAR:
        index = int(np.argmax(away))
        warn(
            f"`{called}` still falls: its minimum is about {away[index]:.2g} standard errors away in "
            f"`{parameters.labels[index]}`. Standard errors are those of a minimum: fit with a smaller `tol`; a "
            "parameter that stands at a bound has none."
        )


# What is between


def between(
    losses: Callable[..., Any], rows: AnyRows, groups: Array, parameters: Parameters, x: Array, **how: Any
) -> tuple[dict[str, Any], int | None]:
    """Return the sum of outer products of scores, with the number of rows and their loss, and the number of groups."""
    n_rows = read_sliced(rows)[0].n_rows
    if groups is None:
        found = reduce_sum(ScoresOfRows(losses), rows, parameters.tree(x), **how)
        _check_count(losses, int(found["n_rows"]), n_rows)
        return found, None
    codes, n_groups = _codes(groups, n_rows)
    found = reduce_sum(ScoresOfGroups(losses, n_groups), (rows, codes), parameters.tree(x), **how)
    return found | {"outer": found["sums"].T @ found["sums"]}, n_groups


class SumOfRows:
    """A chunk function: the sum of the losses of its rows."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.fun = fun

    def __call__(self, rows: AnyRows, p: Tree) -> Any:
        return np.sum(self.fun(rows, p))


class ScoresOfRows:
    """A chunk function: the sum of the outer products of the scores of its rows."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        self.fun = fun

    def __call__(self, rows: AnyRows, p: Tree) -> Any:
        each, scores = _scores(self.fun, rows, p)
        return {"outer": scores.T @ scores, "loss": np.sum(each), "n_rows": float(len(each))}


class ScoresOfGroups:
    """A chunk function: for each group the sum of the scores of its rows."""

    def __init__(self, fun: Callable[..., Any], n_groups: int) -> None:
        self.fun, self.n_groups = fun, n_groups

    def __call__(self, rows_and_codes: tuple[AnyRows, Array], p: Tree) -> Any:
        rows, codes = rows_and_codes
        each, scores = _scores(self.fun, rows, p)
        _check_count(self.fun, len(each), len(codes))
        sums = np.zeros((self.n_groups, scores.shape[1]))
        np.add.at(sums, np.asarray(codes), scores)
        return {"sums": sums, "loss": np.sum(each), "n_rows": float(len(each))}


def _scores(fun: Callable[..., Any], rows: AnyRows, p: Tree) -> tuple[Any, Any]:
    """Return the loss of each row, and its gradient in the order of the vector."""

    def of_parameters(p: Tree) -> Any:
        each = fun(rows, p)
        plain = pytree.plain(each)
        if np.ndim(plain) != 1:
            raise StructureError(
                f"`{name_of(fun)}` returned {described(plain)}. Return an array with one axis, the loss of each row: "
                "what is summed elsewhere."
            )
        return each, plain

    jacobian, each = jacfwd(of_parameters, has_aux=True)(p)
    return each, columns_of(jacobian, len(each), map(np.size, pytree.flatten(p)[0]))


def _check_count(fun: Function, n_losses: int, n_rows: int) -> None:
    if n_losses != n_rows:
        raise StructureError(
            f"`{name_of(fun)}` returned {n_losses} losses of {n_rows} rows. Return one for each row; rows that depend "
            "on each other belong to a group, `cov_type='cluster'`."
        )


# Groups


def _codes(groups: Array, n_rows: int) -> tuple[Any, int]:
    """Return the number of the group of each row, from 0, and how many there are."""
    # numpy would make words of numbers beside words, and a second axis of tuples
    is_listed = isinstance(groups, list | tuple)
    held = np.fromiter(groups, object, len(groups)) if is_listed else np.asarray(groups)
    if held.shape != (n_rows,):
        raise StructureError(
            f"`groups` are {described(held)}, and there are {n_rows} rows. Give the group of each row."
        )
    if np.ma.is_masked(groups):  # which numpy's own functions take no notice of
        _refuse_missing()
    codes, n_groups = _numbered(held.tolist()) if held.dtype.kind in "OT" else _numbered_by_numpy(held)
    if n_groups < 2:
        raise StructureError("`groups` are one group, of which there is no spread. Give two groups or more.")
    return codes, n_groups


def _numbered_by_numpy(names: Array) -> tuple[Any, int]:
    distinct, codes = np.unique(names, return_inverse=True)
    if np.any(distinct != distinct):
        _refuse_missing()
    return codes.astype(np.int64), len(distinct)


def _numbered(names: list[Any]) -> tuple[Any, int]:
    if any(map(_is_missing, names)):
        _refuse_missing()
    try:
        distinct = set(names)
    except TypeError as error:
        raise StructureError(
            "`groups` hold what is no name, such as a list. Give each row a word, a number, or a tuple of these."
        ) from error
    try:
        indices = {name: index for index, name in enumerate(sorted(distinct))}
    except TypeError as error:
        kinds = ", ".join(sorted({f"`{type(name).__name__}`" for name in distinct}))
        raise StructureError(
            f"What `groups` hold can't be put in order, which numbers groups alike everywhere: it is of {kinds}. Make "
            "all of them words, `[str(group) for group in groups]`, or all of them numbers."
        ) from error
    return np.fromiter((indices[name] for name in names), np.int64, len(names)), len(indices)


def _is_missing(name: object) -> bool:
    if name is None or name is np.ma.masked:
        return True
    if isinstance(name, tuple):
        return any(map(_is_missing, name))
    try:
        return bool(name != name)
    except TypeError:  # pandas' NA says neither
        return True
    except ValueError:  # an array, which is no name
        return False


def _refuse_missing() -> NoReturn:
    raise StructureError("In `groups` there are missing values. Give each row a group, or leave it out of the fit.")


# Whether losses and what was minimized are the same


def check_scale(value: float, loss: float, n_rows: int, mean_over: int | None, called: str) -> None:
    """Raise where a loss is a mean of what `losses` return, and nobody has said so, or the other way round."""

    def is_like(one: float) -> bool:
        return abs(one - loss) <= 1e-9 * abs(loss)

    if is_like(value * (mean_over or 1)):
        return
    if is_like(value):
        raise ArgumentsError(f"`{called}` is the sum of `losses`, and no mean. Leave out `mean_over={mean_over}`.")
    if is_like(value * n_rows):
        raise ArgumentsError(
            f"`{called}` is the mean of `losses` over {n_rows} rows. Say so, `mean_over={n_rows}`: a mean says too "
            "little of how well the rows tell its minimum."
        )


def check_curvature(
    losses: Callable[..., Any],
    rows: AnyRows,
    hessian: Array,
    covariance: Array,
    parameters: Parameters,
    x: Array,
    called: str,
    **how: Any,
) -> None:
    """Warn where the sum of `losses` is curved otherwise than what was minimized, along all standard errors together.

    A prior adds to a curvature, and constants that `losses` leaves out change a value: neither is wrong.
    """
    direction = np.sqrt(np.diag(covariance))

    def summed(p: Tree) -> Any:
        return reduce_sum(SumOfRows(losses), rows, p, **how)

    product = hvp(summed, (parameters.tree(x),), (parameters.tree(direction),))[0]
    ratio = float(direction @ parameters.flat(product) / (direction @ hessian @ direction))
    if not LIKE <= ratio <= 1.0 / LIKE:
        warn(
            f"`{name_of(losses)}` seems not to be what `{called}` sums up, but a multiple of it or another loss, whose "
            f"scores make a wrong sandwich: the curvature of its sum is {ratio:.2g} times that of `{called}`. Return "
            "the same loss of each row, and say `mean_over` of a mean; if it is the same, a prior says more than the "
            "rows do."
        )


def correction(cov_type: str, n_rows: int, n_groups: int | None, size: int) -> float:
    """Return what a sandwich of few rows or groups is multiplied by: of rows as in linear regressions."""
    if cov_type == "HC0":
        return 1.0
    if n_rows <= size:
        raise ArgumentsError(
            f"`cov_type={cov_type!r}` divides by n - k, of n rows and k parameters, where n is {n_rows} "
            f"and k is {size}. Say 'HC0', or `use_correction=False` for groups."
        )
    if n_groups is None:
        return n_rows / (n_rows - size)
    return n_groups / (n_groups - 1) * (n_rows - 1) / (n_rows - size)


# Functions of estimates


def check_real(found: Tree, called: str) -> None:
    """Raise unless a function of the estimates returned what can have a standard error."""
    leaves = pytree.flatten(found)[0]
    remedy = "Return real floating-point numbers that follow the estimates; of a complex one two, its parts"
    if not leaves:
        raise NotDifferentiableError(f"`{called}` returned {described(found)}, which holds no numbers. {remedy}.")
    for leaf, path in zip(leaves, pytree.paths(found), strict=True):
        if np.asarray(leaf).dtype.kind != "f":
            raise NotDifferentiableError(
                f"`{called}` returned {described(leaf)}{f' at `{path}`' if path else ''}, which has no standard error. "
                f"{remedy}; leave out the rest."
            )
