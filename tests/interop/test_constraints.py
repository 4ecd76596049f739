"""Constraints of `dagad.interop.scipy.minimize`: they get the pytree, and dagad's derivatives."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
import scipy
from packaging.version import Version
from scipy import optimize, sparse

import dagad
from dagad.interop._constraints import FlatConstraint, prepared
from dagad.interop._parameters import Parameters
from dagad.interop.scipy import minimize

ROWS = np.random.default_rng(0).standard_normal((50, 2))
START = {"weights": np.array([0.3, 0.3]), "offset": 0.1}
# COBYLA takes equations from scipy 1.16 on.
BY_VALUES = ["COBYQA"] if Version(scipy.__version__) < Version("1.16") else ["COBYLA", "COBYQA"]
METHODS = ["SLSQP", "trust-constr", *BY_VALUES]
TIGHT: dict[str, Any] = {
    "SLSQP": {"ftol": 1e-12},
    "trust-constr": {"gtol": 1e-9, "xtol": 1e-11, "barrier_tol": 1e-10},  # from within, where a limit is active
}
CLOSE = {"SLSQP": 1e-6, "trust-constr": 2e-5, "COBYLA": 1e-3, "COBYQA": 1e-3}


def squares(rows: Any, p: Any) -> Any:
    return np.sum((rows @ p["weights"] - p["offset"] - rows[:, 0]) ** 2)


def powers(rows: Any, p: Any) -> Any:
    return np.sum((rows * p["weights"]) ** 2, axis=0)


def moments(rows: Any, p: Any) -> Any:
    return np.sum(rows @ p["weights"])


class Problem:
    """A loss and two constraints, one of them with two values, all of them reductions of the same Shards."""

    def __init__(self, scheduler: Any) -> None:
        self.shards = dagad.shard(ROWS, grainsize=10, scheduler=scheduler)

    def loss(self, p: Any) -> Any:
        return dagad.reduce_sum(squares, self.shards, p) / len(ROWS)

    def power(self, p: Any) -> Any:
        return dagad.reduce_sum(powers, self.shards, p) / len(ROWS) - 0.2

    def moment(self, p: Any, times: float = 1.0) -> Any:
        return times * (dagad.reduce_sum(moments, self.shards, p) / len(ROWS) - p["offset"])


def by_scipy_alone() -> Any:
    """Return the solution, by finite differences of functions of the vector: the offset, then the weights."""

    def loss(x: Any) -> Any:
        return np.sum((ROWS @ x[1:] - x[0] - ROWS[:, 0]) ** 2) / len(ROWS)

    constraints: Any = [
        {"type": "ineq", "fun": lambda x: np.sum((ROWS * x[1:]) ** 2, axis=0) / len(ROWS) - 0.2},
        {"type": "eq", "fun": lambda x: np.sum(ROWS @ x[1:]) / len(ROWS) - x[0] - 0.1},
    ]
    start, bounds = np.array([0.1, 0.3, 0.3]), [(None, None), (0.0, 1.0), (0.0, 1.0)]
    found = optimize.minimize(
        loss, start, bounds=bounds, constraints=constraints, method="SLSQP", options={"ftol": 1e-14}
    )
    assert found.success
    return found.x


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_constraints_get_the_pytree_and_bounds_beside_them(method: str, scheduler: str) -> None:
    problem = Problem(scheduler)
    constraints = [
        {"type": "ineq", "fun": problem.power},
        optimize.NonlinearConstraint(problem.moment, 0.1, 0.1),
    ]
    bounds = {"weights": (0.0, 1.0), "offset": None}
    found = minimize(
        problem.loss, START, method=method, bounds=bounds, constraints=constraints, options=TIGHT.get(method)
    )
    assert list(found.x) == ["weights", "offset"]
    np.testing.assert_allclose(found.x_flat, by_scipy_alone(), atol=CLOSE[method])


def test_constraints_have_the_same_bits_on_every_scheduler(scheduler: Any) -> None:
    def fitted(where: Any) -> bytes:
        problem = Problem(where)
        each = [{"type": "ineq", "fun": problem.power}, {"type": "eq", "fun": problem.moment, "args": (2.0,)}]
        return bytes(minimize(problem.loss, START, constraints=each).x_flat.tobytes())

    assert fitted(scheduler) == fitted("sync")


def curved(p: Any, scale: float = 1.0) -> Any:
    return [p["a"][0] * p["b"] ** 2 * scale, anp.sin(p["a"]) * p["b"]]  # a list of a number and an array


AT = {"a": np.array([0.4, -0.7]), "b": 1.3}


def vector_of(x: Any) -> Any:
    return np.array([x[0] * x[2] ** 2, *(np.sin(x[:2]) * x[2])])


def test_derivatives_of_constraints_are_those_of_finite_differences() -> None:
    parameters = Parameters(AT)
    flat = FlatConstraint(curved, "Constraint 0", parameters)
    x, v = parameters.x0, np.array([0.5, -1.0, 2.0])
    np.testing.assert_allclose(flat.value(x), vector_of(x), rtol=1e-15)
    np.testing.assert_allclose(flat.jacobian(x), optimize.approx_fprime(x, vector_of, 1e-7), atol=1e-6)
    columns = optimize.approx_fprime(x, lambda x: v @ flat.jacobian(x), 1e-7)
    np.testing.assert_allclose(flat.hessian(x, v) @ np.eye(3), columns, atol=1e-6)
    tall = FlatConstraint(lambda p: anp.outer(anp.arange(4.0), p["a"]).ravel(), "Constraint 0", parameters)
    assert tall.jacobian(x).shape == (8, 3)  # by columns, of which there are fewer
    np.testing.assert_array_equal(tall.jacobian(x)[:, 0], np.repeat(np.arange(4.0), 2) * ([1, 0] * 4))


def test_a_constraint_of_one_value_goes_on_from_where_its_value_was_taken() -> None:
    ran: list[str] = []

    def counted(p: Any) -> Any:
        ran.append("traced" if type(p["b"]) is not np.float64 else "plain")
        return p["a"][0] * p["b"] - 1.0

    parameters = Parameters(AT)
    (constraint,) = prepared([{"type": "eq", "fun": counted}], parameters, "SLSQP")
    for shift in (0.0, 0.1, 0.2):
        x = parameters.x0 + shift
        constraint["fun"](x)
        np.testing.assert_allclose(constraint["jac"](x), [[x[2], 0.0, x[0]]], rtol=1e-15)
    assert ran == ["plain", "traced", "traced", "traced"]  # at first it was not known how many values there are


@pytest.mark.parametrize("method", BY_VALUES)
def test_methods_of_values_alone_differentiate_no_constraint(method: str) -> None:
    def plain(p: Any) -> Any:
        return float(p["a"]) - 1.0  # which nothing that is traced has

    found = minimize(lambda p: p["a"] ** 2, {"a": 3.0}, method=method, constraints={"type": "ineq", "fun": plain})
    np.testing.assert_allclose(found.x["a"], 1.0, atol=1e-3)


def test_trust_constr_gets_second_derivatives_unless_others_are_asked_for() -> None:
    parameters = Parameters(AT)

    def hess_of(hess: Any, jac: Any = "2-point") -> Any:
        constraint = optimize.NonlinearConstraint(curved, 0.0, 1.0, jac=jac, hess=hess)
        return prepared([constraint], parameters, "trust-constr")[0].hess

    for hess in (None, optimize.BFGS()):  # the one stands for the other
        assert hess_of(hess)(parameters.x0, np.ones(3)).shape == (3, 3)
    assert isinstance(hess_of(optimize.SR1()), optimize.SR1)
    for own in (
        optimize.BFGS(exception_strategy="damp_update"),
        optimize.BFGS(min_curvature=1e-4),
        optimize.BFGS(init_scale=2.0),
        optimize.BFGS(init_scale=np.eye(3)),
        optimize.SR1(min_denominator=1e-6),
    ):
        assert hess_of(own) is own
    used = optimize.BFGS()
    used.initialize(3, "hess")  # as scipy does with what it was given
    assert hess_of(used)(parameters.x0, np.ones(3)).shape == (3, 3)
    assert isinstance(hess_of(None, "3-point"), optimize.BFGS)
    assert hess_of("2-point") == "2-point"
    seen: list[Any] = []
    hess_of(lambda p, v: seen.append((p, v)) or np.eye(3))(parameters.x0, np.ones(3))  # type: ignore[func-returns-value]  # None, then the matrix
    assert list(seen[0][0]) == ["a", "b"]


@pytest.mark.parametrize("given", [optimize.BFGS(exception_strategy="damp_update"), optimize.SR1(), optimize.BFGS()])
def test_an_approximation_with_settings_of_the_users_is_moved_by_scipy(given: Any) -> None:
    constraint = optimize.NonlinearConstraint(lambda p: p["a"][0] * p["b"] ** 3, 1.0, 1.0, hess=given)
    start = {"a": np.array([1.5, 0.5]), "b": 1.0}

    def loss(p: Any) -> Any:
        return anp.sum(p["a"] ** 2) + 3.0 * p["b"] ** 2

    found = minimize(loss, start, method="trust-constr", constraints=constraint)
    np.testing.assert_allclose(found.x_flat, [1.0, 0.0, 1.0], atol=1e-4)
    is_default = isinstance(given, optimize.BFGS) and given.exception_strategy == "skip_update"
    assert (given.B is None) == is_default  # it has learnt something, unless dagad's products took its place


JACOBIANS: dict[str, Any] = {
    "pytree": lambda p: {"a": np.array([[p["b"], 0.0]]), "b": p["a"][:1]},
    "matrix": lambda p: np.array([[p["b"], 0.0, p["a"][0]]]),
    "row": lambda p: np.array([p["b"], 0.0, p["a"][0]]),
    "sparse": lambda p: sparse.csr_array(np.array([[p["b"], 0.0, p["a"][0]]])),
}


def of_product(method: str, form: str, jac: Any) -> tuple[Any, dict[str, int]]:
    """Return a minimum under a constraint with a Jacobian of the user's, and how often each was called."""
    called = {"fun": 0, "jac": 0, "traced": 0}

    def product(p: Any, *more: Any) -> Any:
        assert more == (("more",) if form == "dict" else ())
        called["traced" if type(p["b"]) is not np.float64 else "fun"] += 1
        return p["a"][0] * p["b"] - 1.0

    def counted(p: Any, *more: Any) -> Any:
        assert more == (("more",) if form == "dict" else ())
        called["jac"] += 1
        return jac(p)

    own: Any = counted if callable(jac) else jac
    constraint: Any = {"type": "eq", "fun": product, "jac": own, "args": ("more",)}
    if form == "object":
        constraint = optimize.NonlinearConstraint(product, 0.0, 0.0, jac=own)
    start = {"a": np.array([1.5, 0.5]), "b": 1.0}
    found = minimize(lambda p: anp.sum(p["a"] ** 2) + p["b"] ** 2, start, method=method, constraints=constraint)
    return found, called


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("method", "form", "kind"),
    [
        (method, form, kind)
        for method in ("SLSQP", "trust-constr")
        for form in ("dict", "object")
        for kind in JACOBIANS
        if (method, form, kind) != ("SLSQP", "dict", "sparse")  # which scipy does not take there
    ],
)
def test_a_jacobian_of_the_user_is_taken(method: str, form: str, kind: str) -> None:
    found, called = of_product(method, form, JACOBIANS[kind])
    np.testing.assert_allclose(found.x_flat, [1.0, 0.0, 1.0], atol=1e-4)
    assert called["jac"] >= found.nit > 1
    assert (called["traced"] > 0) == (method == "trust-constr")  # products with second derivatives, nothing else


def test_a_jacobian_by_finite_differences_is_taken() -> None:  # "trust-constr" warns of those of what is nearly linear
    found, called = of_product("SLSQP", "object", "3-point")
    np.testing.assert_allclose(found.x_flat, [1.0, 0.0, 1.0], atol=1e-4)
    assert called["traced"] == 0
    assert called["fun"] > 3 * found.nit


@pytest.mark.parametrize("method", BY_VALUES)
@pytest.mark.parametrize("form", ["dict", "object"])
def test_methods_of_values_alone_call_no_jacobian(method: str, form: str) -> None:
    found, called = of_product(method, form, JACOBIANS["pytree"])
    np.testing.assert_allclose(found.x_flat, [1.0, 0.0, 1.0], atol=2e-3)
    assert called["jac"] == called["traced"] == 0


@pytest.mark.parametrize("method", METHODS)
def test_a_linear_constraint_has_columns_in_the_order_of_the_vector(method: str) -> None:
    constraint = optimize.LinearConstraint([[1.0, 0.0, 2.0]], 3.0, 3.0)  # of "a", then of "b"
    start = {"b": np.ones(2), "a": 0.5}
    found = minimize(lambda p: p["a"] ** 2 + anp.sum(p["b"] ** 2), start, method=method, constraints=constraint)
    np.testing.assert_allclose(found.x_flat, [0.6, 0.0, 1.2], atol=2e-3)


@pytest.mark.parametrize("x0", [np.full((2, 2), 0.5), 0.5, (np.full(2, 0.5), 0.5)])
def test_a_constraint_gets_what_the_function_gets(x0: Any) -> None:
    structures: set[str] = set()

    def total(p: Any) -> Any:
        leaves = p if isinstance(p, tuple) else (p,)
        structures.add(f"{type(p).__name__ if isinstance(p, tuple) else ''} {[np.shape(leaf) for leaf in leaves]}")
        return sum(anp.sum(leaf**2) for leaf in leaves)

    minimize(total, x0, constraints=optimize.NonlinearConstraint(total, 0.1, np.inf))
    assert len(structures) == 1


def of(**entries: Any) -> dict[str, Any]:
    return {"type": "eq", "fun": lambda p: p["a"] - 1.0} | entries


def nonlinear(fun: Any, low: Any = 0.0, high: Any = 0.0, **more: Any) -> Any:
    return optimize.NonlinearConstraint(fun, low, high, **more)


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        (3, "`constraints` are an int. Give dicts"),
        ("eq", "`constraints` are a str. Give dicts"),
        ([of(), lambda p: 0.0], "Constraint 1 is a function. Give dicts .*NonlinearConstraint"),
        (of(jacobian=None), r"the entry 'jacobian', which scipy would not read\. Its entries are \('type', 'fun'"),
        (of(type="equal"), "`type` 'equal'. Give `'type': 'eq'` .*`'type': 'ineq'`"),
        ({"fun": np.sum}, "`type` None. Give `'type': 'eq'`"),
        ({"type": "eq"}, "Constraint 0 has no `fun`. Give `'fun'`"),
        (of(fun=1.0), "Constraint 0 has a float in place of a function"),
        (of(args=2.0), r"`args` that are a float\. Write `'args': \(that,\)`"),
        (of(jac="3-point"), r"`jac` '3-point', .*Leave it out: dagad computes it; .*`NonlinearConstraint\(fun, low"),
        (nonlinear(np.sum, jac="cs"), "`jac='cs'`.*Leave it out: dagad computes"),
        (of(fun=lambda p: p["a"] > 1.0), r"returned a bool.*Return the difference that is to be zero"),
        (of(fun=lambda p: None), "returned None. Return a real floating-point number"),
        (of(fun=lambda p: np.eye(2) * p["a"]), r"shape \(2, 2\) .*an array of these with one axis"),
        (of(fun=lambda p: 3), "returned an int. Return a real floating-point"),
        (of(jac=lambda p: np.ones((2, 2))), r"The `jac` of constraint 0 .*shape \(1, 3\).*`x0\['b'\]` of shape \(2,\)"),
        (of(jac=lambda p: {"a": 1.0, "b": 1.0}), r"The `jac` of constraint 0 .*a pytree like `x0`.*leave it out"),
        (nonlinear(lambda p: p["b"], 0.0, np.zeros(3)), r"2 values, and its `ub` has the shape \(3,\)\. Give one num"),
        (optimize.LinearConstraint([[1.0, 2.0]]), r"2 columns, where `x0` holds 3 .*`x0\['a'\]`, `x0\['b'\]` of shape"),
    ],
)
def test_constraints_that_are_none_are_refused_with_the_remedy(constraints: Any, said: str) -> None:
    with pytest.raises(dagad.DagadError, match=said):
        minimize(lambda p: p["a"] ** 2 + anp.sum(p["b"] ** 2), {"a": 3.0, "b": np.ones(2)}, constraints=constraints)


@pytest.mark.parametrize("x0", [np.ones(3), {"a": np.ones(3)}])
def test_a_jacobian_with_rows_and_columns_swapped_is_refused(x0: Any) -> None:
    def pair(p: Any) -> Any:
        p = p["a"] if isinstance(p, dict) else p
        return p[:2] - 1.0

    def swapped(p: Any) -> Any:
        found = np.eye(3)[:, :2]
        return {"a": found} if isinstance(p, dict) else found

    with pytest.raises(dagad.StructureError, match=r"The `jac` of constraint 0 .*an array of shape \(2, 3\)"):
        minimize(
            lambda p: 0.0 * anp.sum(p["a"] if isinstance(p, dict) else p), x0, constraints=of(fun=pair, jac=swapped)
        )


def test_a_hessian_by_complex_steps_is_refused() -> None:
    with pytest.raises(dagad.PlanError, match=r"`hess='cs'`.*Leave it out"):
        minimize(np.sum, np.ones(2), method="trust-constr", constraints=nonlinear(np.sum, hess="cs"))


@pytest.mark.parametrize("method", ["BFGS", "L-BFGS-B", "trust-exact", "Nelder-Mead"])
def test_a_method_that_would_leave_constraints_out_is_refused(method: str) -> None:
    with pytest.raises(dagad.PlanError, match=r'takes no constraints.*"SLSQP", "trust-constr", "COBYLA" and "COBYQA"'):
        minimize(lambda p: p["a"] ** 2, {"a": 3.0}, method=method, constraints=of())
    minimize(lambda p: p["a"] ** 2, {"a": 3.0}, method=method, constraints=[])


@pytest.mark.parametrize("form", ["dict", "object", "list"])
def test_an_error_of_a_constraint_that_takes_parameters_for_the_vector_says_what_it_gets(form: str) -> None:
    def first(x: Any) -> Any:
        return x[0] - 1.0

    one: Any = {"type": "eq", "fun": first} if form == "dict" else nonlinear(first)
    with pytest.raises(KeyError) as seen:
        minimize(lambda p: p["a"] ** 2, {"a": 3.0, "b": np.ones(2)}, constraints=[one] if form == "list" else one)
    assert "constraint 0 (`first`) gets the parameters as `fun` does" in seen.value.__notes__[-1]
    assert "`x0['a']`, `x0['b']`" in seen.value.__notes__[-1]
