"""Differential equations: ends, times, functions of time, complex states, Jacobians, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.sparse

import dagad
from dagad.solvers import odeint, quad, solve_ivp
from dagad.solvers._adjoint import pulled_through_time
from dagad.solvers._integration import solved

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-10}


def decay(t: Any, y: Any, rate: Any) -> Any:
    del t
    return -rate * y


def test_times_that_depend_on_parameters_move_along_the_solution() -> None:
    def at(p: Any) -> Any:  # the last time is the end
        times = np.stack([0.5 * p, p])
        return solve_ivp(decay, (0.0, p), [3.0], t_eval=times, args=(p,), **TIGHT).y[0]

    for derivative in (dagad.jacfwd(at), dagad.jacrev(at)):  # of 3 exp(-p^2 / 2) and 3 exp(-p^2)
        np.testing.assert_allclose(derivative(0.8), [-2.4 * np.exp(-0.32), -4.8 * np.exp(-0.64)], rtol=1e-7)
    second = dagad.jacfwd(dagad.jacrev(at))(0.8)
    np.testing.assert_allclose(second[0], 3.0 * (0.64 - 1.0) * np.exp(-0.32), rtol=1e-6)


@pytest.mark.parametrize("sensitivity", ["forward", "adjoint"])
def test_steps_between_moving_ends_stay_where_they_are(sensitivity: str) -> None:
    def states(ends: Any) -> Any:
        return solve_ivp(decay, (ends[0], ends[1]), [3.0], args=(0.5,), sensitivity=sensitivity, **TIGHT).y[0]

    ends = np.array([0.2, 1.7])
    times = scipy.integrate.solve_ivp(decay, ends, [3.0], args=(0.5,), **TIGHT).t
    jacobian = dagad.jacrev(states)(ends)
    right = np.stack([1.5 * np.exp(-0.5 * (times - 0.2)), np.zeros(len(times))], axis=1)
    right[0] = 0.0  # where it begins it has its initial value, wherever that is
    right[-1, 1] = -1.5 * np.exp(-0.75)
    np.testing.assert_allclose(jacobian, right, atol=1e-7)
    np.testing.assert_allclose(dagad.jacfwd(states)(ends), right, atol=1e-7)


@pytest.mark.parametrize("sensitivity", ["forward", "adjoint"])
def test_a_function_of_time_is_differentiated_where_it_is_called(sensitivity: str) -> None:
    def of_time(p: Any, t: Any) -> Any:
        options: Any = {"dense_output": True, "sensitivity": sensitivity, "method": "DOP853"}
        return solve_ivp(decay, (0.0, 2.0), [3.0, 1.0], args=(p,), **TIGHT | options).sol(t)

    stock = scipy.integrate.solve_ivp(decay, (0.0, 2.0), [3.0, 1.0], "DOP853", args=(0.7,), dense_output=True, **TIGHT)
    times = np.array([1.3, 0.4, 1.3])
    np.testing.assert_array_equal(dagad.vjp(of_time, 0.7, times)[0], stock.sol(times))
    of_p, of_t = dagad.jacrev(of_time, (0, 1))(0.7, times)
    np.testing.assert_allclose(of_p[0], -3.0 * times * np.exp(-0.7 * times), rtol=1e-6)
    np.testing.assert_allclose(of_t[1], np.diag(-0.7 * np.exp(-0.7 * times)), atol=1e-7)
    one = dagad.jacfwd(lambda t: of_time(0.7, t))(1.3)
    np.testing.assert_allclose(one, -0.7 * np.exp(-0.91) * np.array([3.0, 1.0]), rtol=1e-6)
    with pytest.raises(dagad.NotDifferentiableError, match="Make `t_span` longer"):
        dagad.grad(lambda p: of_time(p, 2.5)[0])(0.7)


@pytest.mark.parametrize("take", [dagad.jacfwd, dagad.jacrev])
def test_times_in_a_result_move_as_they_were_given(take: Any) -> None:
    def times(p: Any, t_eval: Any = None) -> Any:
        return solve_ivp(decay, (0.5 * p, 2.0 * p), [3.0], t_eval=t_eval, args=(0.7,)).t

    moved = take(times)(0.8)
    np.testing.assert_array_equal(moved[[0, -1]], [0.5, 2.0])
    np.testing.assert_array_equal(moved[1:-1], 0.0)
    np.testing.assert_array_equal(take(lambda p: times(p, np.stack([p, 1.5 * p])))(0.8), [1.0, 1.5])
    stock = scipy.integrate.solve_ivp(decay, (0.4, 1.6), [3.0], args=(0.7,)).t
    np.testing.assert_array_equal(dagad.vjp(times, 0.8)[0], stock)


@pytest.mark.parametrize("take", [dagad.grad, dagad.jacfwd])
def test_parts_of_a_function_of_time_have_no_derivative(take: Any) -> None:
    def sol(p: Any) -> Any:
        return solve_ivp(decay, (0.0, p), [3.0], args=(p,), dense_output=True).sol

    for part in (lambda sol: sol.interpolants[0](0.1)[0], lambda sol: sol.ts[-1], lambda sol: sol.t_max):
        with pytest.raises(dagad.NotDifferentiableError, match=r"Call `sol\(t\)`, and use the ends"):
            take(lambda p, part=part: part(sol(p)))(0.8)
    with pytest.raises(dagad.NotDifferentiableError, match="see that the time is no nan"):
        take(lambda p: sol(p)(np.nan)[0])(0.8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sensitivity", ["forward", "adjoint"])
def test_complex_states_have_derivatives(sensitivity: str) -> None:
    def real_part(v: Any) -> Any:
        rate, turn, re, im = v
        start = np.stack([re + 1j * im])
        found = solve_ivp(lambda t, y: (-rate + 1j * turn) * y, (0.0, 1.5), start, sensitivity=sensitivity, **TIGHT)
        return np.real(found.y[0, -1])

    def exact(v: Any) -> Any:
        rate, turn, re, im = v
        return np.exp(-1.5 * rate) * (re * np.cos(1.5 * turn) - im * np.sin(1.5 * turn))

    v = np.array([0.3, 2.0, 1.0, -0.5])
    np.testing.assert_allclose(dagad.grad(real_part)(v), dagad.grad(exact)(v), atol=1e-7)
    np.testing.assert_allclose(dagad.hessian(real_part)(v), dagad.hessian(exact)(v), atol=1e-6)

    def of_start(start: Any) -> Any:
        return np.real(solve_ivp(lambda t, y: (-0.3 + 2j) * y, (0.0, 1.5), start, sensitivity=sensitivity).y[0, -1])

    gradient = dagad.grad(of_start)(np.array([1.0 - 0.5j]))  # du/dx - i du/dy
    np.testing.assert_allclose(gradient, np.exp((-0.3 + 2j) * 1.5), rtol=1e-2)


def test_a_vectorized_right_hand_side_is_given_columns() -> None:
    def field(t: Any, y: Any, rate: Any) -> Any:
        assert y.ndim == 2
        return np.stack([-rate * y[0], rate * y[0] - y[1]])

    def end(rate: Any) -> Any:
        return solve_ivp(field, (0.0, 0.2), [1.0, 0.0], "Radau", vectorized=True, args=(rate,), **TIGHT).y[0, -1]

    assert dagad.grad(end)(0.5) == pytest.approx(-0.2 * np.exp(-0.1), rel=1e-7)
    assert dagad.hessian(end)(0.5) == pytest.approx(0.04 * np.exp(-0.1), rel=1e-6)


N = 12
LAPLACIAN = scipy.sparse.diags([1.0, -2.0, 1.0], [-1, 0, 1], shape=(N, N), format="csc")
HELPS: dict[str, Any] = {
    "sparsity": {"jac_sparsity": LAPLACIAN},
    "function": {"jac": lambda t, y, k: k * LAPLACIAN.toarray()},
    "sparse function": {"jac": lambda t, y, k: k * LAPLACIAN},
    "matrix": {"jac": 2.0 * LAPLACIAN.toarray()},
    "bands": {"method": "LSODA", "lband": 1, "uband": 1},
}


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("sensitivity", ["forward", "adjoint"])
@pytest.mark.parametrize("given", HELPS)
def test_jacobians_of_the_user_steer_the_method_and_are_no_derivative(given: str, sensitivity: str) -> None:
    options = {"method": "BDF", "sensitivity": sensitivity, "rtol": 1e-8, "atol": 1e-10} | HELPS[given]
    start = np.sin(np.pi * np.arange(1, N + 1) / (N + 1))
    mode = 2.0 - 2.0 * np.cos(np.pi / (N + 1))  # the first one is an eigenvector

    def end(k: Any) -> Any:
        def heat(t: Any, y: Any, k: Any) -> Any:
            left, right = np.concatenate([np.zeros(1), y[:-1]]), np.concatenate([y[1:], np.zeros(1)])
            return k * (left - 2.0 * y + right)

        return solve_ivp(heat, (0.0, 3.0), start, args=(k,), **options).y[3, -1]

    value, slope = dagad.value_and_grad(end)(2.0)
    assert value == pytest.approx(start[3] * np.exp(-6.0 * mode), rel=1e-5)
    assert slope == pytest.approx(-3.0 * mode * value, rel=1e-5)


def test_many_parameters_are_pulled_by_the_adjoint() -> None:
    calls = [0]

    def end(weights: Any) -> Any:
        def field(t: Any, y: Any) -> Any:
            calls[0] += 1
            return -np.sum(weights) * y

        return solve_ivp(field, (0.0, 1.0), [1.0]).y[0, -1]

    weights = np.full(400, 1.0 / 400)
    gradient = dagad.grad(end)(weights)
    np.testing.assert_allclose(gradient, -np.exp(-1.0), rtol=1e-2)
    assert calls[0] < 200  # not one solution for each


def test_odeint_has_scipys_bits_and_derivatives() -> None:
    times = np.array([0.0, 0.5, 2.0, 2.0, 3.0])

    def states(v: Any) -> Any:
        return odeint(lambda y, t, rate: [y[1], -rate * y[0]], [v[1], 0.0], times, (v[0],))

    v = np.array([2.0, 1.5])
    stock = scipy.integrate.odeint(lambda y, t, rate: [y[1], -rate * y[0]], [v[1], 0.0], times, (v[0],))
    np.testing.assert_array_equal(states(v), stock)
    np.testing.assert_array_equal(dagad.vjp(states, v)[0], stock)
    root = np.sqrt(2.0)
    of_rate = -1.5 * times * np.sin(root * times) / (2.0 * root)
    for derivative in (dagad.jacfwd(states)(v), dagad.jacrev(states)(v)):
        np.testing.assert_allclose(derivative[:, 0, 0], of_rate, atol=1e-6)
        np.testing.assert_allclose(derivative[:, 0, 1], np.cos(root * times), atol=1e-6)
    moved = dagad.jacrev(lambda t: odeint(lambda y, t: -0.5 * y, 3.0, t)[:, 0])(times[[0, 1, 2]])
    slope = 1.5 * np.exp(-0.5 * times[:3])
    right = [[0.0, 0.0, 0.0], [slope[1], -slope[1], 0.0], [slope[2], 0.0, -slope[2]]]
    np.testing.assert_allclose(moved, right, atol=1e-6)
    found, facts = odeint(lambda y, t: -y, 1.0, times, full_output=1)
    assert "successful" in facts["message"]
    assert found.shape == (5, 1)


@pytest.mark.parametrize("take", [dagad.grad, dagad.jacfwd])
def test_odeint_without_a_span_returns_where_it_begins(take: Any) -> None:
    for times in ([0.0], [0.5, 0.5]):

        def begin(a: Any, times: Any = times) -> Any:
            return odeint(lambda y, t: -a * y, a**2 * np.ones(1), times)[-1, 0]

        assert take(begin)(0.7) == 1.4


@dataclasses.dataclass
class Rate:
    """What a user keeps a parameter in."""

    rate: Any


def test_further_arguments_may_be_objects_that_hold_parameters() -> None:
    def by_solve_ivp(a: Any) -> Any:
        return solve_ivp(lambda t, y, p: -p.rate * y, (0.0, 1.0), [1.0], args=(Rate(a),), **TIGHT).y[0, -1]

    def by_odeint(a: Any) -> Any:
        return odeint(lambda y, t, p: -p.rate * y, [1.0], [0.0, 1.0], (Rate(a),))[-1, 0]

    for end in (by_solve_ivp, by_odeint):
        for take in (dagad.grad, dagad.jacfwd):
            assert take(end)(0.7) == pytest.approx(-np.exp(-0.7), rel=1e-5)
    by_quad = dagad.grad(lambda a: quad(lambda x, p: p.rate**2 * x, 0.0, 1.0, args=(Rate(a),))[0])
    assert by_quad(3.0) == pytest.approx(3.0)


# What is refused


def test_events_are_refused_where_they_would_need_a_derivative() -> None:
    def end(rate: Any) -> Any:
        return solve_ivp(decay, (0.0, 1.0), [1.0], args=(rate,), events=lambda t, y, rate: y[0] - 0.5).y[0, -1]

    assert end(0.5) == pytest.approx(np.exp(-0.5), rel=1e-3)
    with pytest.raises(dagad.NotDifferentiableError, match="integrate to it without `events`"):
        dagad.grad(end)(0.5)


def test_events_that_alone_are_traced_are_refused_too() -> None:
    def end(level: Any) -> Any:
        return solve_ivp(decay, (0.0, 1.0), [1.0], args=(0.5,), events=lambda t, y, rate: y[0] - level).t_events[0][0]

    with pytest.raises(dagad.NotDifferentiableError, match="integrate to it without `events`"):
        dagad.grad(end)(0.9)


@pytest.mark.parametrize("option", ["rtol", "atol", "max_step", "first_step"])
def test_traced_tolerances_and_steps_are_refused_by_name(option: str) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=rf"derivative in `{option}` of `solve_ivp`.*a plain number"):
        dagad.grad(lambda p: solve_ivp(decay, (0.0, 1.0), [1.0], args=(0.5,), **{option: p}).y[0, -1])(1e-3)


def test_further_arguments_in_no_tuple_are_refused_with_the_comma() -> None:
    for take in (dagad.grad, dagad.jacfwd):
        with pytest.raises(dagad.ArgumentsError, match=r"`args` of `solve_ivp` is a float.*Write `args=\(a,\)`"):
            take(lambda rate: solve_ivp(decay, (0.0, 1.0), [1.0], args=rate).y[0, -1])(0.5)


class OwnBDF(scipy.integrate.BDF):  # type: ignore[misc]  # scipy has no types
    """A method of the user's, made of an implicit one of scipy's."""


class OwnLSODA(scipy.integrate.LSODA):  # type: ignore[misc]  # scipy has no types
    """Another one."""


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("method", [scipy.integrate.Radau, OwnBDF, OwnLSODA])
@pytest.mark.parametrize("sensitivity", ["forward", "adjoint"])
def test_jacobians_of_the_users_go_with_classes_made_of_implicit_methods(method: Any, sensitivity: str) -> None:
    matrix = np.array([[-1.0, 0.5], [0.0, -30.0]])
    jacobians: list[Any] = [{"jac": lambda t, y: matrix}]
    if method is not OwnLSODA:
        jacobians += [{"jac": matrix}, {"jac_sparsity": np.triu(np.ones((2, 2)))}]
    for jacobian in jacobians:
        options = {"method": method, "sensitivity": sensitivity} | TIGHT | jacobian

        def last(a: Any, options: Any = options) -> Any:
            return solve_ivp(lambda t, y: a * (matrix @ y), (0.0, 1.0), [1.0, 0.0], **options).y[0, -1]

        assert dagad.grad(last)(1.0) == pytest.approx(-np.exp(-1.0), rel=1e-5)


def test_a_solution_that_ends_early_is_refused() -> None:
    def end(rate: Any) -> Any:
        return solve_ivp(lambda t, y: rate * y**2, (0.0, 2.0), [1.0]).y[0, -1]

    assert np.isfinite(dagad.grad(end)(0.2))
    with pytest.raises(dagad.NotDifferentiableError, match=r"could not integrate it beyond t = 0\.99.*Try another"):
        dagad.grad(end)(1.0)  # it has a pole there


def test_a_word_that_is_no_sensitivity_is_refused() -> None:
    with pytest.raises(dagad.PlanError, match='Give "forward", "adjoint" or "auto"'):
        solve_ivp(decay, (0.0, 1.0), [1.0], args=(0.5,), sensitivity="backward")


def test_times_beyond_which_a_method_may_not_look_are_refused() -> None:
    with pytest.raises(dagad.NotDifferentiableError, match="with a call of its own"):
        dagad.grad(lambda r: odeint(lambda y, t: -r * y, 1.0, np.array([0.0, 1.0]), tcrit=np.array([0.5]))[-1, 0])(0.3)


def test_wrong_calls_are_explained_by_scipy() -> None:
    for rate in (0.5, np.array(0.5)):
        with pytest.raises(ValueError, match="`t_eval` are not within `t_span`"):
            solve_ivp(decay, (0.0, 1.0), [1.0], t_eval=[2.0], args=(rate,))
    with pytest.raises(ValueError, match="`t_eval` are not within `t_span`"):
        dagad.grad(lambda rate: solve_ivp(decay, (0.0, 1.0), [1.0], t_eval=[2.0], args=(rate,)).y[0, 0])(0.5)


@pytest.mark.parametrize(("n_states", "n_params", "n_backward"), [(3, 60, 0), (3, 1000, 1), (400, 10, 0), (400, 60, 1)])
def test_the_adjoint_is_taken_where_it_takes_less_than_all_sensitivities(
    n_states: int, n_params: int, n_backward: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return pulled_through_time(*args)

    monkeypatch.setattr("dagad.solvers._trajectory.pulled_through_time", counted)
    shapes = np.random.default_rng(0).uniform(size=(n_states, n_params)) / n_params

    def last(p: Any) -> Any:
        return np.sum(solve_ivp(lambda t, y: -(shapes @ p) * y, (0.0, 1.0), np.ones(n_states), t_eval=[1.0], **TIGHT).y)

    p = np.full(n_params, 0.7)
    np.testing.assert_allclose(dagad.grad(last)(p), -np.exp(-shapes @ p) @ shapes, rtol=1e-6)
    assert len(calls) == n_backward


def test_a_solution_that_is_no_function_of_time_is_differentiated_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    def halted(*args: Any, **options: Any) -> Any:  # as LSODA does now and then, which ends with a step of no length
        if options["dense_output"]:
            raise ValueError("`ts` must be strictly increasing or decreasing.")
        return solved(*args, **options)

    monkeypatch.setattr("dagad.solvers._ivp.solved", halted)
    shapes = np.random.default_rng(0).uniform(size=(400, 60)) / 60

    def last(p: Any, **options: Any) -> Any:
        field = lambda t, y: -(shapes @ p) * y  # noqa: E731  # for so many parameters the adjoint would be taken
        return np.sum(solve_ivp(field, (0.0, 1.0), np.ones(400), t_eval=[1.0], **TIGHT, **options).y[:, -1])

    p = np.full(60, 0.7)
    value, slope = dagad.value_and_grad(last)(p)
    assert value == last(p)
    np.testing.assert_allclose(slope, -np.exp(-shapes @ p) @ shapes, rtol=1e-6)
    with pytest.raises(
        dagad.NotDifferentiableError, match=r'could not make one of it. Ask for `sensitivity="forward"`'
    ):
        dagad.grad(lambda p: last(p, sensitivity="adjoint"))(p)
    with pytest.raises(ValueError, match="strictly increasing"):
        dagad.grad(lambda p: last(p, dense_output=True))(p)


RATES = np.array([0.04, 1e4, 3e7])


def reacting(t: Any, y: Any, k: Any) -> Any:
    a, b, c = y.reshape((3, -1))
    return np.concatenate([-k[0] * a + k[1] * b * c, k[0] * a - k[1] * b * c - k[2] * b**2, k[2] * b**2])


def with_gaps(t: Any, y: Any, k: Any) -> Any:
    """Return the Jacobian without the entries that are zero just then."""
    a, b, c = y.reshape((3, -1))
    rows = [
        [-k[0] + 0.0 * a, k[1] * c, k[1] * b],
        [k[0] + 0.0 * a, -k[1] * c - 2.0 * k[2] * b, -k[1] * b],
        [0.0 * a, 2.0 * k[2] * b, 0.0 * c],
    ]
    found = scipy.sparse.bmat([[scipy.sparse.diags([part], [0]) for part in row] for row in rows], "csc")
    found.eliminate_zeros()
    return found


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("method", ["BDF", "Radau"])
@pytest.mark.parametrize("n_cells", [1, 16])
def test_jacobians_may_leave_out_what_is_zero_at_the_start(n_cells: int, method: str) -> None:
    start = np.concatenate([np.linspace(1.0, 0.5, n_cells), np.zeros(2 * n_cells)])
    n_asked = [0]

    def end(k: Any, **options: Any) -> Any:
        def counted(t: Any, y: Any) -> Any:
            n_asked[0] += 1
            assert n_asked[0] < 20_000, "the method makes no way"
            return reacting(t, y, k)

        tight: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-10, "sensitivity": "forward"}
        return solve_ivp(counted, (0.0, 4.0), start, method, **tight, **options).y[0, -1]

    found = dagad.grad(lambda k: end(k, jac=lambda t, y: with_gaps(t, y, RATES)))(RATES)
    assert found == pytest.approx(dagad.grad(end)(RATES), rel=1e-4)


class _SignallingMemory:
    """numpy, whose `empty` floats are signalling nans, as those of memory that held something else may be."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any = float) -> np.ndarray:
        found = np.zeros(shape, dtype)
        found.view(np.uint64)[...] = np.uint64(0x7FF0000000000001)
        return found


@pytest.mark.parametrize("method", ["BDF", scipy.integrate.BDF])
def test_unwritten_memory_of_bdf_does_not_warn(monkeypatch: pytest.MonkeyPatch, method: Any) -> None:
    def end(k: Any) -> Any:
        return solve_ivp(decay, (0.0, 1.0), [3.0, 1.0], method, args=(k,)).y[0, -1]

    before = dagad.value_and_grad(end)(0.5)
    monkeypatch.setattr("scipy.integrate._ivp.bdf.np", _SignallingMemory())
    with pytest.raises(RuntimeWarning, match="invalid value"):
        scipy.integrate.solve_ivp(decay, (0.0, 1.0), [3.0, 1.0], method, args=(0.5,))
    assert dagad.value_and_grad(end)(0.5) == before
    assert end(0.5) == before[0]  # as plain values go
