"""Constraints of scipy's on a pytree: functions of it as functions of one vector, with derivatives by dagad."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._api.higher_order import hvp, jacfwd, jacrev
from dagad._api.transforms import vjp
from dagad._errors import PlanError, StructureError, add_note_to_others
from dagad._types import Args, Array, Function, Leaf, Tree
from dagad._values import pytree
from dagad._words import described, name_of
from dagad.interop._from_scipy import LinearOperator, optimize, sparse
from dagad.interop._parameters import Parameters, is_same_point

TAKERS = ("cobyla", "cobyqa", "slsqp", "trust-constr")  # the methods that take constraints
VALUES_ONLY = ("cobyla", "cobyqa")  # of these
DIFFERENCES = ("2-point", "3-point")
SETTINGS = ("exception_strategy", "min_curvature", "init_scale")  # of scipy's approximations of a Hessian
KEYS = ("type", "fun", "jac", "args")
FORMS = (
    "Give dicts `{'type': 'eq', 'fun': function}`, or `NonlinearConstraint` and `LinearConstraint` of scipy.optimize, "
    "one of them or a list."
)


def prepared(each: list[Any], parameters: Parameters, method: str) -> list[Any]:
    """Return constraints as a method of scipy's takes them, of the vector."""
    if each and method.lower() not in TAKERS:
        raise PlanError(
            f"`method={method!r}` takes no constraints: scipy would leave them out. Those that do are "
            '"SLSQP", "trust-constr", "COBYLA" and "COBYQA"; or write the constraint as a transformation of parameters.'
        )
    return [_prepared(one, f"Constraint {index}", parameters, method.lower()) for index, one in enumerate(each)]


def listed(constraints: object) -> list[Any]:
    """Return the constraints, of which scipy takes one or several."""
    if constraints is None:
        return []
    if isinstance(constraints, Mapping | optimize.NonlinearConstraint | optimize.LinearConstraint):
        return [constraints]
    if not isinstance(constraints, Iterable) or isinstance(constraints, str):
        raise PlanError(f"`constraints` are {described(constraints)}. {FORMS}")
    return list(constraints)


def _prepared(constraint: object, name: str, parameters: Parameters, method: str) -> Any:
    if isinstance(constraint, optimize.LinearConstraint):
        return _linear(constraint, name, parameters)
    if isinstance(constraint, optimize.NonlinearConstraint):
        return _nonlinear(constraint, name, parameters, method)
    if not isinstance(constraint, Mapping):
        raise PlanError(f"{name} is {described(constraint)}. {FORMS}")
    _check_entries(constraint, name)
    jac = constraint.get("jac")
    if not (jac is None or callable(jac)):
        raise PlanError(
            f"{name} has `jac` {jac!r}, and scipy takes functions there. Leave it out: dagad computes it; for finite "
            'differences write `NonlinearConstraint(fun, low, high, jac="3-point")`.'
        )
    flat = FlatConstraint(constraint["fun"], name, parameters, constraint.get("args", ()))
    flat.jac = _own_or(flat, jac, method)
    if method == "slsqp":
        return {"type": constraint["type"].lower(), "fun": flat.value, "jac": flat.jac}
    high = 0.0 if constraint["type"].lower() == "eq" else np.inf
    return _with_derivatives(flat, 0.0, high, method)


def _linear(constraint: optimize.LinearConstraint, name: str, parameters: Parameters) -> Any:
    n_columns, size = constraint.A.shape[1], parameters.x0.size
    if n_columns == size:
        return constraint
    raise StructureError(
        f"{name} is linear and has {n_columns} columns, where `x0` holds {size} numbers: {parameters.order()}. Give it "
        "a column for each, in this order; or write it as a function, `NonlinearConstraint(lambda p: ..., low, high)`."
    )


def _nonlinear(constraint: optimize.NonlinearConstraint, name: str, parameters: Parameters, method: str) -> Any:
    jac = None if isinstance(constraint.jac, str) and constraint.jac == "2-point" else constraint.jac  # its default
    flat = FlatConstraint(constraint.fun, name, parameters)
    flat.jac = _own_or(flat, jac, method)
    flat.low, flat.high = np.asarray(constraint.lb, float), np.asarray(constraint.ub, float)
    return _with_derivatives(
        flat,
        constraint.lb,
        constraint.ub,
        method,
        hess=constraint.hess,
        keep_feasible=constraint.keep_feasible,
        finite_diff_rel_step=constraint.finite_diff_rel_step,
        finite_diff_jac_sparsity=constraint.finite_diff_jac_sparsity,
    )


def _with_derivatives(
    flat: FlatConstraint, low: Array, high: Array, method: str, *, hess: object = None, **options: Any
) -> Any:
    """Return scipy's constraint with second derivatives too, where the method asks for these."""
    if method == "trust-constr" and (hess is None or _is_default(hess)) and callable(flat.jac):
        hess = flat.hessian
    elif callable(hess) and not isinstance(hess, optimize.BFGS):
        hess = flat.by_user(hess)
    elif isinstance(hess, str) and hess not in DIFFERENCES:
        raise PlanError(f"{flat.name} has `hess={hess!r}`. {LEFT_OUT}")
    return optimize.NonlinearConstraint(flat.value, low, high, flat.jac, hess, **options)


def _is_default(hess: object) -> bool:
    """Return whether this is the `BFGS()` that scipy puts where nothing was given; it has no setting of the user's."""
    if type(hess) is not optimize.BFGS:
        return False
    given, default = vars(hess), vars(optimize.BFGS())
    # The start may be a matrix, and one that scipy has used holds one beside its settings.
    return all(type(given[name]) is type(default[name]) and given[name] == default[name] for name in SETTINGS)


def _check_entries(constraint: Mapping[str, Any], name: str) -> None:
    unknown = [key for key in constraint if key not in KEYS]
    if unknown:
        raise PlanError(f"{name} has the entry {unknown[0]!r}, which scipy would not read. Its entries are {KEYS}.")
    kind = constraint.get("type")
    if not isinstance(kind, str) or kind.lower() not in ("eq", "ineq"):
        raise PlanError(
            f"{name} has `type` {kind!r}. Give `'type': 'eq'` where its function is to be zero, `'type': 'ineq'` where "
            "it is to be zero or above."
        )
    if "fun" not in constraint:
        raise PlanError(f"{name} has no `fun`. Give `'fun'`, the function of the parameters that is constrained.")


LEFT_OUT = (
    "The step of that is complex, which parameters are not. Leave it out: dagad computes this derivative; or give a "
    'function, or "3-point" for finite differences.'
)


def _own_or(flat: FlatConstraint, jac: object, method: str) -> Any:
    """Return what gives the Jacobian: dagad, the user's function, or scipy by finite differences where it was told."""
    if jac is None:
        return DIFFERENCES[0] if method in VALUES_ONLY else flat.jacobian  # scipy asks for one, and uses it for nothing
    if callable(jac):
        return flat.jacobian_by_user(jac)
    if isinstance(jac, str) and jac in DIFFERENCES:
        return jac
    raise PlanError(f"{flat.name} has `jac={jac!r}`. {LEFT_OUT}")


class FlatConstraint:
    """The function of a constraint, of one vector, with its derivatives; it remembers the last point."""

    def __init__(self, fun: Function, name: str, parameters: Parameters, args: Args = ()) -> None:
        if not callable(fun):
            raise PlanError(f"{name} has {described(fun)} in place of a function of the parameters.")
        self.name = f"{name} (`{name_of(fun)}`)"
        self._fun, self._parameters = fun, parameters
        if not isinstance(args, tuple | list):
            raise PlanError(f"{name} has `args` that are {described(args)}. Write `'args': (that,)` for one argument.")
        self._args = args
        self.low = self.high = np.zeros(())
        self.jac: Any = None
        self._n_values = 0
        self._last: tuple[Any, Any, Callable[[Any], Any] | None] | None = None

    def value(self, x: Array) -> Any:
        """Return the values at a vector, an array with one axis. No pullback runs."""
        if self._last is None or not is_same_point(self._last[0], x):
            pullback = None
            if self._n_values == 1 and self.jac == self.jacobian:  # the derivative goes on from here
                found, pullback = vjp(self._of_tree, self._parameters.tree(x))
            else:
                found = self._of_tree(self._parameters.tree(x))
            self._check_limits(len(found))
            self._n_values = len(found)
            self._last = np.array(x), np.array(found, float), pullback
        return self._last[1].copy()

    def jacobian(self, x: Array) -> Any:
        """Return the Jacobian at a vector, a matrix."""
        n_values = len(self.value(x))
        pullback = self._last[2] if self._last is not None else None
        tree = self._parameters.tree(x)
        if pullback is not None:
            return self._parameters.flat(pullback(np.ones(1))[0])[None]
        mode = jacrev if n_values <= self._parameters.x0.size else jacfwd
        return self._parameters.columns(mode(self._of_tree)(tree), n_values)

    def hessian(self, x: Array, v: Array) -> Any:
        """Return the Hessian of the values times `v`, as a linear operator: each product is one evaluation."""
        tree, size = self._parameters.tree(x), self._parameters.x0.size

        def weighted(p: Tree) -> Any:
            return anp.sum(np.array(v) * self._of_tree(p))

        def product(direction: Array) -> Any:
            tangent = self._parameters.tree(np.ravel(direction))
            return self._parameters.flat(hvp(weighted, (tree,), (tangent,))[0])

        return LinearOperator((size, size), matvec=product, rmatvec=product, dtype=float)

    def jacobian_by_user(self, jac: Callable[..., Any]) -> Callable[[Any], Any]:
        """Return the user's Jacobian as one of the vector: of a matrix, or of pytrees like `x0`."""

        def jacobian(x: Array) -> Any:
            found, n_values = self._called(jac, self._parameters.tree(x)), len(self.value(x))
            expected = n_values, self._parameters.x0.size
            if sparse.issparse(found) and found.shape == expected:
                return found
            if not sparse.issparse(found) and self._is_tree_of_rows(found, n_values):
                return self._parameters.columns(found, n_values)
            if np.shape(found) == expected or (n_values == 1 and np.shape(found) == expected[1:]):
                return np.asarray(found, float).reshape(expected)
            raise StructureError(
                f"The `jac` of {_lower(self.name)} returned {described(found)}. Return a pytree like `x0`, each leaf "
                f"with {n_values} in front of its shape; or an array of shape {expected}, with columns in this order: "
                f"{self._parameters.order()}; or leave it out: dagad computes it."
            )

        return jacobian

    def _is_tree_of_rows(self, found: Tree, n_values: int) -> bool:
        """Return whether each leaf has the rows of all values; a matrix with rows and columns swapped has not."""
        leaves, treedef = pytree.flatten(found)
        if treedef != self._parameters.treedef:
            return False
        shapes = zip(map(np.shape, leaves), self._parameters.shapes, strict=True)
        return all(own == (n_values, *shape) or (n_values == 1 and own == shape) for own, shape in shapes)

    def by_user(self, hess: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """Return the user's Hessian of the weighted values, a matrix or an operator on vectors, of a vector."""
        return lambda x, v: self._called(hess, self._parameters.tree(x), v)

    def _of_tree(self, p: Tree) -> Any:
        """Return the values as an array with one axis, of plain or traced parameters."""
        found = self._called(self._fun, p)
        leaves = pytree.flatten(found)[0] if isinstance(found, list | tuple) else [found]
        for leaf in leaves:
            self._check_value(leaf)
        rows = [anp.reshape(leaf, (-1,)) for leaf in leaves]
        return rows[0] if len(rows) == 1 else anp.concatenate(rows)

    def _called(self, fun: Callable[..., Any], *given: Any) -> Any:
        try:
            return fun(*given, *self._args)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            if not self._parameters.is_vector():
                add_note_to_others(
                    error,
                    f"dagad: {_lower(self.name)} gets the parameters as `fun` does, in a pytree like `x0`, not as "
                    f"scipy's vector: {', '.join(self._parameters.names)}.",
                )
            raise

    def _check_value(self, leaf: Leaf) -> None:
        plain = pytree.plain(leaf)
        kind = np.asarray(plain).dtype.kind
        if kind == "f" and np.ndim(plain) < 2:
            return
        if kind == "b":
            remedy = "Return the difference that is to be zero, or to be zero or above, in place of a comparison"
        else:
            remedy = "Return a real floating-point number, an array of these with one axis, or a list of such"
        raise StructureError(f"{self.name} returned {described(plain)}. {remedy}.")

    def _check_limits(self, n_values: int) -> None:
        for what, limit in (("lb", self.low), ("ub", self.high)):
            if limit.shape not in ((), (1,), (n_values,)):
                raise StructureError(
                    f"{self.name} returned {n_values} values, and its `{what}` has the shape {limit.shape}. Give one "
                    f"number for all of them, or an array of {n_values}."
                )


def _lower(name: str) -> str:
    return name[0].lower() + name[1:]
