"""What newer releases of numpy and scipy take or compute otherwise: derivatives are those of what is installed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import integrate, linalg, signal, special, stats
from scipy.sparse.linalg import aslinearoperator
from scipy.spatial import distance

import dagad
from dagad._rules.scipy_functions import defined
from dagad._tracing.patches import patches

RNG = np.random.default_rng(5)
X, W = RNG.normal(size=(4, 3)), RNG.uniform(0.5, 1.5, size=3)
STACK = np.einsum("aij,akj->aik", *[RNG.normal(size=(2, 3, 3))] * 2) + np.eye(3)


def weighed(out: Any) -> Any:
    return np.sum(np.cos(np.arange(np.size(out))).reshape(np.shape(out)) * out)


def is_right(fun: Callable[[Any], Any], at: Any) -> None:
    """Compare a derivative with differences, to second order, and the value with that of ordinary arrays."""

    def loss(x: Any) -> Any:
        return weighed(fun(x))

    along = np.sin(1.0 + np.arange(np.size(at))).reshape(np.shape(at))
    step = 1e-5 * along

    def slope(of: Callable[[Any], Any]) -> Any:
        return (8 * (of(at + step) - of(at - step)) - (of(at + 2 * step) - of(at - 2 * step))) / 12e-5

    value, gradient = dagad.value_and_grad(loss)(at)
    assert value == loss(at)
    assert np.sum(gradient * along) == pytest.approx(slope(loss), rel=1e-7, abs=1e-8)
    assert dagad.jvp(loss, at, along)[1] == pytest.approx(slope(loss), rel=1e-7, abs=1e-8)
    np.testing.assert_allclose(dagad.hvp(loss, at, along), slope(dagad.grad(loss)), rtol=1e-5, atol=1e-6)


def descending(order: Any, *args: Any, **options: Any) -> Any:
    return order(*args, descending=True, **options)  # which the types of an older numpy don't have


def is_taken(fun: Callable[[Any], Any], at: Any) -> bool:
    """Return whether this release takes something; what it does not take is refused with derivatives, too."""
    try:
        fun(at)
    except (TypeError, ValueError, AttributeError) as error:
        with pytest.raises((type(error), dagad.DagadError)):
            dagad.grad(lambda x: weighed(fun(x)))(at)
        return False
    return True


@pytest.mark.parametrize("options", [{"descending": True}, {"descending": True, "stable": True}, {"stable": True}])
@pytest.mark.parametrize("x", [X, X[:, 0], np.array([2.0, 1.0, 2.0, 0.5])], ids=["matrix", "vector", "equal"])
def test_a_sort_is_that_which_was_asked_for(x: Any, options: Any) -> None:
    if not is_taken(lambda x: np.sort(x, **options), x):
        return
    weights = np.cos(np.arange(x.size)).reshape(x.shape)

    along: dict[str, Any] = options | ({"axis": 0} if x.ndim > 1 else {})

    def sort(x: Any) -> Any:
        return np.sort(x, **along)

    def order(x: Any) -> Any:
        return np.argsort(x, **along)

    def loss(x: Any, sort: Any) -> Any:
        return np.sum(weights * sort(x))

    expected = np.zeros_like(x)
    np.put_along_axis(expected, order(x), weights, axis=0)
    np.testing.assert_array_equal(dagad.grad(loss)(x, sort), expected)
    assert dagad.jvp(lambda x: loss(x, sort), x, x)[1] == pytest.approx(np.sum(expected * x))
    np.testing.assert_array_equal(dagad.grad(loss)(x, lambda x: np.take_along_axis(x, order(x), 0)), expected)


@pytest.mark.needs("jax")
@pytest.mark.parametrize("kind", ["f8", "f4", "i8", "u1", "?"])
def test_a_compiled_sort_is_numpys_in_either_order(kind: str) -> None:
    numbers = np.array([3, 0, 2, 200, 2], kind)
    numbers = np.append(numbers, np.nan).astype(kind) if kind[0] == "f" else numbers

    weights = 3.0 ** np.arange(len(numbers))

    def chunk(rows: Any, t: Any) -> Any:
        ordered, order = descending(np.sort, rows[0]), descending(np.argsort, rows[0], stable=True)
        return np.stack([np.sum(weights * np.nan_to_num(ordered)) * t, np.sum(weights * order) * t])

    def compiled() -> Any:
        return dagad.reduce_sum(chunk, numbers[None], 1.0, engine="jax", scheduler="sync")

    if "descending" in inspect.signature(np.sort).parameters:
        np.testing.assert_array_equal(compiled(), chunk(numbers[None], 1.0))
    else:
        with pytest.raises(TypeError, match="descending"):
            compiled()


DISTANCES: dict[str, Callable[[Any, Any], Any]] = {
    "euclidean": lambda u, v: distance.euclidean(u, v),
    "weighed": lambda u, v: distance.euclidean(u, v, W),
    "sqeuclidean": lambda u, v: distance.sqeuclidean(u, v),
    "minkowski": lambda u, v: distance.minkowski(u, v, 3),
    "minkowski with weights": lambda u, v: distance.minkowski(u, v, 1.5, w=W),
    "cityblock": lambda u, v: distance.cityblock(u, v),
    "cosine": lambda u, v: distance.cosine(u, v),
}


@pytest.mark.parametrize("name", DISTANCES)
@pytest.mark.parametrize("others", [X[0] + 2.0, 2.0 * X[::-1] + 1.0], ids=["one", "as many"])
def test_distances_of_stacks_of_vectors_are_differentiated_one_by_one(name: str, others: Any) -> None:
    fun = DISTANCES[name]
    if not is_taken(lambda x: fun(x, others), X):
        return
    is_right(lambda x: fun(x, others), X)
    is_right(lambda v: fun(X, v), others)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("at", [STACK[0], STACK], ids=["one", "stack"])
def test_a_factor_in_one_triangle_has_in_the_other_what_scipy_leaves_there(at: Any, lower: bool) -> None:
    if not is_taken(lambda a: linalg.cho_factor(a)[0], at):
        return
    is_right(lambda a: linalg.cho_factor(a, lower)[0], at)
    is_right(lambda a: linalg.cho_solve(linalg.cho_factor(a, lower), 0.0 * at[..., :1] + 1.0), at)


def test_factors_of_a_stack_solve_for_what_is_differentiated() -> None:
    if not is_taken(lambda a: linalg.cho_factor(a)[0], STACK):
        return
    factors = linalg.cho_factor(STACK)  # and an array that says of each in which triangle it is
    is_right(lambda b: linalg.cho_solve(factors, b), RNG.normal(size=(2, 3, 2)))


@pytest.mark.parametrize("kind", ["u1", "i1", "?", "i8", "f4", "f8"])
@pytest.mark.parametrize(
    "points", [[9, 2, 7, 3], [100, -100, 90, -7, 3], [0, 1, 1, 2], [0, 0, 1], [2, 1, 1], [1, 1, 1]]
)
def test_an_integral_by_parabolas_has_the_widths_that_scipy_takes(points: list[int], kind: str) -> None:
    x = np.array(points).astype(kind)
    y = np.cos(np.arange(1.0, 1.0 + len(x)))

    def loss(t: Any) -> Any:  # linear in t
        return integrate.simpson(y * t, x=x)

    expected = loss(1.0)
    assert dagad.grad(loss)(1.3) == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert dagad.jvp(loss, 1.3, 1.0)[1] == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_an_integral_by_nodes_has_slopes_in_its_limits_and_in_what_it_integrates() -> None:
    is_right(lambda x: integrate.fixed_quad(np.exp, x[0], x[1] + 2.0)[0], X[0])
    is_right(lambda x: integrate.fixed_quad(lambda s, t: np.sin(s * t), 0.0, x[0], (x[1],), n=4)[0], X[0])
    is_right(lambda x: integrate.fixed_quad(lambda s: s * x[2], 0.0, 1.0)[0], X[0])
    with pytest.raises(ValueError, match="finite limits"):
        dagad.grad(lambda t: integrate.fixed_quad(np.exp, t, np.inf)[0])(0.0)


def test_a_matrix_that_may_be_overwritten_is_kept_for_its_derivative() -> None:
    at = np.asfortranarray(STACK[0])

    def loss(a: Any) -> Any:
        return np.sum(np.abs(linalg.eigvals(a, None, True)) ** 2) + np.sum(linalg.cholesky(a, False, True) ** 2)

    kept = dagad.grad(lambda a: np.sum(np.abs(linalg.eigvals(a)) ** 2) + np.sum(linalg.cholesky(a) ** 2))(at)
    np.testing.assert_allclose(dagad.grad(loss)(at), kept, rtol=1e-13)
    np.testing.assert_array_equal(at, STACK[0])


@pytest.mark.parametrize("kind", ["f2", "f4", "u1", "i1"])
def test_coefficients_of_a_small_type_filter_as_fine_as_the_signal(kind: str) -> None:
    a = np.array([0.3, 0.1]).astype(kind) if kind[0] == "f" else np.ones(2, kind)
    x = RNG.normal(size=9)

    def loss(t: Any, a: Any, b: Any) -> Any:
        return weighed(signal.lfilter(b, a, t * x))

    for wide in (a.astype(float), a):
        assert dagad.grad(loss)(1.3, wide, 0.3) == pytest.approx(loss(1.0, a.astype(float), 0.3), rel=1e-12)
    along = dagad.grad(lambda t: weighed(signal.filtfilt(t * W[:2], a, x, padlen=2)))(1.0)
    fine = dagad.grad(lambda t: weighed(signal.filtfilt(t * W[:2], a.astype(float), x, padlen=2)))(1.0)
    assert along == pytest.approx(fine, rel=1e-11)


def test_equations_of_circulant_matrices_have_their_solutions_along_the_axis_that_scipy_says() -> None:
    columns, sides = X + np.array([5.0, 0.0, 0.0]), RNG.normal(size=(3, 4))
    is_right(lambda c: linalg.solve_circulant(c, sides[:, 0]), columns)
    is_right(lambda b: linalg.solve_circulant(columns[0], b), sides)
    is_right(lambda c: linalg.solve_circulant(c, sides, baxis=0, outaxis=-1), columns)
    is_right(lambda b: linalg.solve_circulant(columns.T, b, caxis=0), sides)


@pytest.mark.filterwarnings("ignore")
def test_orders_of_spherical_functions_are_read_as_whole_numbers() -> None:
    orders = np.array([0.52, 1.7, 2.0])
    is_right(lambda z: special.spherical_jn(orders, z), W)
    is_right(lambda z: special.spherical_yn(orders, z), W)
    is_right(lambda z: special.spherical_in(orders, z), W)
    is_right(lambda z: special.spherical_kn(orders, z), W)


def test_eigenvalues_that_are_complex_whatever_they_are_keep_real_derivatives() -> None:
    apart = np.diag([1.0, 2.5, 4.0]) + 0.1 * X[:3]

    def vectors(a: Any) -> Any:
        return np.real(np.linalg.eig(a)[1]) ** 2

    is_right(lambda a: np.real(np.linalg.eigvals(a)) ** 2, apart)
    is_right(vectors, apart)
    is_right(lambda a: np.abs(linalg.eig(a)[1]) ** 2, apart)
    assert dagad.grad(lambda a: np.sum(np.real(np.linalg.eigvals(a))))(apart).dtype == float
    is_right(lambda q: np.real(linalg.solve_sylvester(np.diag(W), q * (1.0 + 1.0j), X[:3])), apart)


OPERATOR = aslinearoperator(RNG.normal(size=(3, 3)) + 1.0j * RNG.normal(size=(3, 3)))
PRODUCTS: dict[str, Callable[[Any], Any]] = {
    "@": lambda x: OPERATOR @ x,
    "dot": lambda x: OPERATOR.dot(x),
    "matvec": lambda x: OPERATOR.matvec(x),
    "rmatvec": lambda x: OPERATOR.rmatvec(x),
    "matmat": lambda x: OPERATOR.matmat(x),
    "rmatmat": lambda x: OPERATOR.rmatmat(x),
    "from the right": lambda x: x @ OPERATOR,
    "rdot": lambda x: OPERATOR.rdot(x),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 3), (2, 3, 3)], ids=str)
@pytest.mark.filterwarnings("ignore:Calling .* on 'column vectors':FutureWarning")
def test_products_with_an_operator_are_those_of_the_vectors_or_matrices_that_scipy_sees(name: str, shape: Any) -> None:
    at = RNG.normal(size=shape)
    if not is_taken(PRODUCTS[name], at):
        return
    is_right(lambda x: np.real((1.0 + 2.0j) * PRODUCTS[name](x)), at)


# Several ufuncs under one name did not know it at first.
LEGENDRE = f"scipy.special.{'legendre_p' if hasattr(special.legendre_p, '__name__') else 'MultiUFunc.__call__'}"


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("scipy.stats.kstat", lambda x: stats.kstat(x)),
        ("scipy.stats.ttest_ind", lambda x: stats.ttest_ind(x, x + 1)),
        (LEGENDRE, lambda x: special.legendre_p(2, x)),
    ],
)
def test_a_function_without_a_derivative_goes_by_its_name_whatever_wraps_it(name: str, call: Any) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=f"`{name}` makes an ordinary array"):
        dagad.grad(lambda x: np.sum(call(x)))(W)


def test_a_definition_that_does_not_fit_a_newer_release_is_refused_by_name() -> None:
    def of_rows(x: Any) -> Any:
        return np.sum(x**2, axis=-1)

    swap = defined(of_rows, lambda x: np.sum(x**2))
    original, code, other = swap
    assert original is of_rows
    patches.swap([swap])
    try:
        for mode in (dagad.grad, lambda loss: lambda x: dagad.jvp(loss, x, x)):
            assert mode(of_rows)(W) is not None
            with pytest.raises(
                dagad.NotDifferentiableError, match=r"no derivative of `.*of_rows` where it gives shape \(4,\)"
            ):
                mode(lambda x: np.sum(of_rows(x)))(X)
    finally:
        patches.swaps.remove(swap)
        of_rows.__code__ = code
    del other
