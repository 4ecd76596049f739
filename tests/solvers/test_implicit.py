"""The implicit function theorem: are derivatives of solutions those of closed forms, in every mode?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from scipy.sparse.linalg import LinearOperator, cg

import dagad
from dagad.solvers import implicit
from dagad.testing import check_grads
from support.every_mode import AT, MODES, check, derivatives
from support.plain_autograd import bits

RNG = np.random.default_rng(7)
X, NOISE = RNG.normal(size=(23, 3)), RNG.normal(size=23)
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.1 * NOISE


def fitted(x: Any, y: Any, ridge: Any) -> Any:
    assert not hasattr(ridge, "_trace")  # what is traced goes into no solver
    return np.linalg.solve(x.T @ x + float(ridge) * np.eye(3), x.T @ y)


def normal_equations(beta: Any, x: Any, y: Any, ridge: Any) -> Any:
    return x.T @ (x @ beta - y) + ridge * beta


def closed_form(x: Any, y: Any, ridge: Any) -> Any:
    return anp.linalg.solve(anp.dot(x.T, x) + ridge * np.eye(3), anp.dot(x.T, y))


ridge_regression = implicit(fitted, normal_equations)
JACOBIANS: dict[str, Callable[[Any], Any]] = {
    "jacfwd": dagad.jacfwd,
    "jacrev": dagad.jacrev,
    "forward over reverse": lambda f: dagad.jacfwd(dagad.jacrev(f)),
    "reverse over forward": lambda f: dagad.jacrev(dagad.jacfwd(f)),
    "reverse over reverse": lambda f: dagad.jacrev(dagad.jacrev(f)),
    "forward over forward": lambda f: dagad.jacfwd(dagad.jacfwd(f)),
    "three times": lambda f: dagad.jacrev(dagad.jacfwd(dagad.jacrev(f))),
}


@pytest.mark.parametrize("mode", JACOBIANS)
def test_a_ridge_regression_has_the_derivatives_of_its_closed_form_in_the_penalty(mode: str) -> None:
    take = JACOBIANS[mode]
    found = take(lambda ridge: ridge_regression(X, Y, ridge))(2.0)
    np.testing.assert_allclose(found, take(lambda ridge: closed_form(X, Y, ridge))(2.0), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("take", [dagad.jacfwd, dagad.jacrev])
def test_a_ridge_regression_has_the_derivatives_of_its_closed_form_in_the_data(take: Any) -> None:
    for argnum in (0, 1):
        found = take(lambda x, y: ridge_regression(x, y, 2.0), argnum)(X, Y)
        np.testing.assert_allclose(found, take(lambda x, y: closed_form(x, y, 2.0), argnum)(X, Y), atol=1e-13)


def test_the_value_is_what_the_solver_returned_bit_for_bit() -> None:
    here = fitted(X, Y, 2.0)
    for found in (
        ridge_regression(X, Y, 2.0),
        dagad.vjp(lambda ridge: ridge_regression(X, Y, ridge), 2.0)[0],
        dagad.jvp(lambda ridge: ridge_regression(X, Y, ridge), 2.0, 1.0)[0],
    ):
        assert found.tobytes() == here.tobytes()


# Inside chunks


def root_of_cubic(a: Any) -> Any:
    """Return the real root of x**3 + x = a, by a search, for an array of them."""
    low, high = -np.abs(a) - 1.0, np.abs(a) + 1.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        above = middle**3 + middle > a
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return 0.5 * (low + high)


cubic = implicit(root_of_cubic, lambda x, a: x**3 + x - a)
ROWS = np.linspace(0.2, 2.1, 7)


def _cube_roots(half: Any, root: Any) -> Any:
    return (half + root) ** (1.0 / 3.0) - (root - half) ** (1.0 / 3.0)


def in_chunks(t: Any, **options: Any) -> Any:
    return dagad.reduce_sum(lambda rows, t: np.sum(cubic(rows * t) * rows), ROWS, t, grainsize=2, **options)


def for_items(t: Any, **options: Any) -> Any:
    return anp.sum(dagad.map(lambda row, t: cubic(row * t) * row, ROWS, t, grainsize=2, **options) ** 2)


def by_closure(t: Any, **options: Any) -> Any:
    solve = implicit(lambda row: root_of_cubic(row * t), lambda x, row: x**3 + x - row * t)
    return dagad.reduce_sum(lambda rows: np.sum(solve(rows) * rows), ROWS, grainsize=2, **options)


def around(t: Any, **options: Any) -> Any:
    """Solve for a mean whose third powers have a given sum: the equation is a reduction."""

    def total(x: Any, t: Any) -> Any:
        return dagad.reduce_sum(lambda rows, x, t: np.sum((x + t * rows) ** 3), ROWS, x, t, grainsize=2, **options)

    def bisected(t: Any) -> Any:
        low, high = -10.0, 10.0
        for _ in range(100):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if np.sum((middle + t * ROWS) ** 3) > 1.0 else (middle, high)
        return 0.5 * (low + high)

    return implicit(bisected, lambda x, t: total(x, t) - 1.0)(t) ** 2


WHOLE: dict[Any, Callable[[Any], Any]] = {
    in_chunks: lambda t: anp.sum(_cube_roots(ROWS * t / 2.0, _root(ROWS * t)) * ROWS),
    for_items: lambda t: anp.sum((_cube_roots(ROWS * t / 2.0, _root(ROWS * t)) * ROWS) ** 2),
    by_closure: lambda t: anp.sum(_cube_roots(ROWS * t / 2.0, _root(ROWS * t)) * ROWS),
}


def _root(a: Any) -> Any:
    return anp.sqrt(a**2 / 4.0 + 1.0 / 27.0)


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("loss", WHOLE, ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("mode", MODES)
def test_roots_inside_chunks_have_every_mode(mode: str, loss: Any) -> None:
    check(mode, functools.partial(loss, scheduler="sync"), derivatives(WHOLE[loss]))


@functools.cache
def bits_here(mode: str, loss: Any) -> list[Any]:
    return bits(MODES[mode][0](functools.partial(loss, scheduler="sync")))


@pytest.mark.parametrize("loss", [in_chunks, for_items, by_closure, around], ids=lambda loss: loss.__name__)
@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("mode", MODES)
def test_solutions_have_the_same_bits_wherever_they_are_found(mode: str, loss: Any, scheduler: Any) -> None:
    found = MODES[mode][0](functools.partial(loss, scheduler=scheduler))
    assert bits(found) == bits_here(mode, loss)


@pytest.mark.parametrize("mode", MODES)
def test_a_solution_of_an_equation_that_is_a_reduction_has_every_mode(mode: str) -> None:
    def slope_of(t: Any, x: Any) -> Any:
        return -anp.sum(3.0 * (x + t * ROWS) ** 2 * ROWS) / anp.sum(3.0 * (x + t * ROWS) ** 2)

    x = float(np.sqrt(around(AT, scheduler="sync")))
    x = x if abs(np.sum((x + AT * ROWS) ** 3) - 1.0) < 1e-9 else -x
    first = slope_of(AT, x)
    second = dagad.grad(slope_of)(AT, x) + dagad.grad(slope_of, 1)(AT, x) * first
    right = [x**2, 2.0 * x * first, 2.0 * first**2 + 2.0 * x * second]
    check(mode, functools.partial(around, scheduler="sync"), right)


def test_a_solver_may_write_into_what_it_gets() -> None:
    def in_place(a: Any) -> Any:
        a /= 2.0
        return a

    solution = implicit(in_place, lambda x, a: 2.0 * x - a)
    np.testing.assert_allclose(dagad.grad(lambda a: np.sum(solution(a * 1.0) * a))(np.ones(3)), np.ones(3))


# Pytrees, sizes, methods


class Line(NamedTuple):
    slope: Any
    ends: Any


def test_unknowns_and_arguments_may_be_pytrees() -> None:
    def solve(p: Any) -> Any:
        return {"line": Line(p["a"] / 2.0, np.array([p["b"] ** 2, p["a"] * p["b"]])), "n": 3}

    def residual(x: Any, p: Any) -> Any:
        line = x["line"]
        return [
            2.0 * line.slope - p["a"],
            {"ends": line.ends - np.stack([p["b"] ** 2, p["a"] * p["b"]]) * (x["n"] - 2)},
        ]

    solution = implicit(solve, residual)

    def loss(p: Any) -> Any:
        line = solution(p)["line"]
        return line.slope**2 * line.ends[0] + line.ends[1] ** 3

    def plain(p: Any) -> Any:
        return (p["a"] / 2.0) ** 2 * p["b"] ** 2 + (p["a"] * p["b"]) ** 3

    at = {"a": 1.2, "b": 0.7}
    assert loss(at) == pytest.approx(plain(at))
    assert dagad.grad(loss)(at) == pytest.approx(dagad.grad(plain)(at), rel=1e-9)
    found, right = dagad.hessian(loss)(at), dagad.hessian(plain)(at)
    for name in "ab":
        for other in "ab":
            assert found[name][other] == pytest.approx(right[name][other], rel=1e-9)


def diffusion(n: int) -> Any:
    """Return the source of a line held at zero, and its solution for a conductivity."""
    source = np.sin(np.arange(1, n + 1))

    def flow(x: Any, k: Any) -> Any:
        padded = np.concatenate([np.zeros(1), x, np.zeros(1)])
        return k * (2.0 * x - padded[:-2] - padded[2:]) + x - source

    def solve(k: Any) -> Any:
        matrix = np.diag(np.full(n, 2.0 * k + 1.0)) - k * (np.eye(n, k=1) + np.eye(n, k=-1))
        return np.linalg.solve(matrix, source)

    return solve, flow


@pytest.mark.parametrize("n", [40, pytest.param(501, marks=pytest.mark.whole("the true limit: 40 show the same"))])
def test_many_unknowns_are_solved_for_by_products(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagad.solvers._implicit.DENSE", min(n - 1, 500))
    solve, flow = diffusion(n)

    def loss(k: Any) -> Any:
        return np.sum(implicit(solve, flow)(k) ** 2)

    step = 1e-4
    right = (np.sum(solve(0.7 + step) ** 2) - np.sum(solve(0.7 - step) ** 2)) / (2.0 * step)
    assert dagad.grad(loss)(0.7) == pytest.approx(right, rel=1e-6)
    assert dagad.jacfwd(loss)(0.7) == pytest.approx(dagad.grad(loss)(0.7), rel=1e-9)
    assert dagad.hvp(loss, 0.7, 1.0) == pytest.approx(dagad.grad(dagad.grad(loss))(0.7), rel=1e-8)


def test_a_linear_solver_of_the_users_gets_plain_vectors_and_the_transposed_product() -> None:
    matrix, seen = np.array([[3.0, 1.0], [0.0, 2.0]]), []

    def by_columns(matvec: Any, b: Any) -> Any:
        assert (type(b), b.shape) == (np.ndarray, (2,))
        seen.append(np.stack([matvec(unit) for unit in np.eye(2)], axis=1))
        return np.linalg.solve(seen[-1], b)

    solution = implicit(lambda a: np.linalg.solve(matrix, a), lambda x, a: matrix @ x - a, linear_solve=by_columns)
    np.testing.assert_allclose(dagad.jacfwd(solution)(np.ones(2)), np.linalg.inv(matrix), atol=1e-15)
    assert all(np.array_equal(one, matrix) for one in seen)
    seen.clear()
    np.testing.assert_allclose(dagad.jacrev(solution)(np.ones(2)), np.linalg.inv(matrix), atol=1e-15)
    assert all(np.array_equal(one, matrix.T) for one in seen)


def test_derivatives_of_solutions_are_those_of_differences() -> None:
    check_grads(lambda a: np.sum(np.sin(cubic(a))), ROWS, order=2)


def test_float32_stays_float32_through_a_solution() -> None:
    value, pullback = dagad.vjp(cubic, ROWS.astype(np.float32))
    assert (value.dtype, pullback(np.ones(7, np.float32))[0].dtype) == (np.float32, np.float32)


def test_autograds_own_grad_goes_through_a_solution() -> None:
    assert autograd.grad(lambda a: cubic(a))(1.3) == pytest.approx(dagad.grad(lambda a: cubic(a))(1.3))


# What is refused

REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "a multiple root": (
        implicit(lambda a: np.zeros(2), lambda x, a: a * x**2),
        dagad.NotDifferentiableError,
        r"no derivative.*singular.*Add the equations that fix it",
    ),
    "no solution": (
        implicit(lambda a: a + 1.0, lambda x, a: x - a),
        dagad.NotDifferentiableError,
        r"no solution of the equations.*Solve to a smaller tolerance",
    ),
    "too few equations": (
        implicit(lambda a: a * np.ones(2), lambda x, a: x[0] - a),
        dagad.StructureError,
        r"1 numbers for 2 unknowns.*as many equations",
    ),
    "a whole number": (
        implicit(lambda a: 3, lambda x, a: x - a),
        dagad.NotDifferentiableError,
        r"that is an int.*Return real floating-point numbers",
    ),
    "a complex number": (
        implicit(lambda a: 1.0j * a, lambda x, a: x - 1.0j * a),
        dagad.NotDifferentiableError,
        r"its real and imaginary part",
    ),
    "a linear solver's shape": (
        implicit(lambda a: a, lambda x, a: x - a, linear_solve=lambda matvec, b: np.ones(2)),
        dagad.StructureError,
        r"`linear_solve` returned an array of shape \(2,\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("take", [dagad.jacfwd, dagad.jacrev])
def test_a_solution_without_a_derivative_is_refused_with_the_remedy(name: str, take: Any) -> None:
    solution, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        take(lambda a: np.sum(solution(a)))(2.0)


@pytest.mark.parametrize("take", [dagad.jacfwd, dagad.jacrev])
def test_many_unknowns_that_are_no_solution_or_a_multiple_one_are_refused(
    take: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagad.solvers._implicit.DENSE", 10)
    solve, flow = diffusion(20)
    nearly = implicit(lambda k: 1.02 * solve(k), flow)
    with pytest.raises(dagad.NotDifferentiableError, match=r"no solution of the equations.*Solve to a smaller"):
        take(lambda k: np.sum(nearly(k)))(0.7)
    multiple = implicit(lambda a: a + 1e-5 + np.zeros(20), lambda x, a: (x - a) ** 2)
    with pytest.raises(dagad.NotDifferentiableError, match=r"multiple root.*whose root is a simple one"):
        take(lambda a: np.sum(multiple(a)))(0.7)
    other = implicit(solve, lambda x, k: flow(x, 1.1 * k))  # it is written wrongly
    with pytest.raises(dagad.NotDifferentiableError, match="no solution of the equations"):
        take(lambda k: np.sum(other(k)))(0.7)


def by_columns(matvec: Any, b: Any) -> Any:
    return np.linalg.solve(np.stack([matvec(unit) for unit in np.eye(len(b))], axis=1), b)


@pytest.mark.parametrize("take", [dagad.jacfwd, dagad.jacrev])
def test_with_a_linear_solver_of_the_users_what_is_no_solution_is_refused(take: Any) -> None:
    solve, flow = diffusion(20)
    nearly = implicit(lambda k: 1.02 * solve(k), flow, linear_solve=by_columns)
    with pytest.raises(dagad.NotDifferentiableError, match=r"no solution of the equations.*Solve to a smaller"):
        take(lambda k: np.sum(nearly(k)))(0.7)
    other = implicit(solve, lambda x, k: flow(x, 1.1 * k), linear_solve=by_columns)
    with pytest.raises(dagad.NotDifferentiableError, match="no solution of the equations"):
        take(lambda k: np.sum(other(k)))(0.7)
    multiple = implicit(lambda a: a + 1e-5 + np.zeros(3), lambda x, a: (x - a) ** 2, linear_solve=by_columns)
    with pytest.raises(dagad.NotDifferentiableError, match=r"multiple root.*whose root is a simple one"):
        take(lambda a: np.sum(multiple(a)))(0.7)


@pytest.mark.parametrize("take", [dagad.jacfwd, dagad.jacrev])
@pytest.mark.parametrize("returned", [None, [], "zero", {"a": "b"}])
def test_residuals_without_numbers_are_refused_in_words(take: Any, returned: Any) -> None:
    solution = implicit(lambda a: a, lambda x, a: returned)
    with pytest.raises(dagad.StructureError, match=r"`residual` returned .* by `return`: as many numbers"):
        take(solution)(2.0)


@pytest.mark.parametrize("take", [dagad.jacfwd, dagad.jacrev])
def test_a_linear_solver_of_the_users_that_has_not_converged_is_refused(take: Any) -> None:
    entries = np.arange(1.0, 51.0)

    def by_iterations(matvec: Any, b: Any, **options: Any) -> Any:
        return cg(LinearOperator((50, 50), matvec=matvec, dtype=float), b, **options)[0]

    def total(linear_solve: Any) -> Any:
        solution = implicit(lambda a: a / entries, lambda x, a: entries * x - a, linear_solve=linear_solve)
        return lambda a: np.sum(solution(a * np.ones(50)))

    assert take(total(by_iterations))(2.0) == pytest.approx(np.sum(1.0 / entries), rel=1e-4)
    for poor in (functools.partial(by_iterations, maxiter=5), lambda matvec, b: 0.0 * b):
        with pytest.raises(dagad.NotDifferentiableError, match=r"`linear_solve` returned a w for which.*iterations"):
            take(total(poor))(2.0)


@pytest.mark.parametrize("take", [dagad.jacfwd, dagad.jacrev])
def test_a_linear_solver_of_the_users_is_called_once_more_for_each_solution(take: Any) -> None:
    sizes: list[float] = []

    def counted(matvec: Any, b: Any) -> Any:
        sizes.append(float(np.linalg.norm(b)))
        return by_columns(matvec, b)

    solve, flow = diffusion(20)
    nearly = implicit(lambda k: solve(k) * (1.0 + 1e-9), flow, linear_solve=counted)
    found = take(lambda k: nearly(k)[:3])(0.7)
    right = dagad.jacfwd(lambda k: implicit(solve, flow)(k)[:3])(0.7)
    np.testing.assert_allclose(found, right, rtol=1e-7)
    assert len(sizes) == (2 if take is dagad.jacfwd else 4)  # of the residual, and of what is asked for
    assert sizes[0] < 1e-7 < min(sizes[1:])


def test_a_linear_solver_that_leaves_small_right_hand_sides_as_they_are_is_taken() -> None:
    def to_a_tolerance(matvec: Any, b: Any) -> Any:
        return by_columns(matvec, b) if np.linalg.norm(b) > 1e-6 else np.zeros_like(b)

    solve, flow = diffusion(20)
    nearly = implicit(lambda k: solve(k) * (1.0 + 1e-9), flow, linear_solve=to_a_tolerance)
    right = dagad.grad(lambda k: np.sum(implicit(solve, flow)(k)))(0.7)
    assert dagad.grad(lambda k: np.sum(nearly(k)))(0.7) == pytest.approx(right, rel=1e-7)


@pytest.mark.parametrize("take", [dagad.jacfwd, dagad.jacrev])
def test_a_step_of_newtons_is_found_by_as_many_products_as_the_derivative(
    take: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagad.solvers._implicit.DENSE", 10)
    monkeypatch.setattr("dagad.solvers._implicit.CYCLE", 10)
    solve, flow = diffusion(20)
    nearly = implicit(lambda k: 1.02 * solve(k), flow)
    with pytest.raises(dagad.NotDifferentiableError, match="no solution of the equations"):
        take(lambda k: np.sum(nearly(k)))(5.0)  # one cycle does not come to three digits


def test_an_iteration_that_does_not_converge_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    solve, flow = diffusion(20)
    monkeypatch.setattr("dagad.solvers._implicit.DENSE", 10)
    monkeypatch.setattr("dagad.solvers._implicit.TOLERANCE", 1e-30)
    monkeypatch.setattr("dagad.solvers._implicit.RESTARTS", 2)
    with pytest.raises(dagad.NotDifferentiableError, match=r"by GMRES to .* Give `linear_solve"):
        dagad.grad(lambda k: np.sum(implicit(solve, flow)(k) ** 2))(0.7)


def test_a_solution_whose_value_alone_is_used_is_not_refused() -> None:
    nowhere = implicit(lambda a: a + 1.0, lambda x, a: x - a)
    assert nowhere(2.0) == 3.0
    assert dagad.value_and_grad(lambda a: (a**2, nowhere(a)), has_aux=True)(2.0) == ((4.0, 3.0), 4.0)


def test_nan_passes_through_a_solution() -> None:
    assert np.isnan(dagad.jacfwd(implicit(lambda a: a, lambda x, a: x * np.nan - a))(2.0))


def test_implicit_takes_functions_only() -> None:
    with pytest.raises(dagad.ArgumentsError, match=r"`implicit` was given a float for `residual`"):
        implicit(root_of_cubic, 3.0)  # type: ignore[arg-type]  # so it is
