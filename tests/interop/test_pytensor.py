"""PyTensor and PyMC: do their checks, their samplers and our own transforms agree?"""

from __future__ import annotations

import multiprocessing
from typing import Any

import autograd.numpy as anp
import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.gradient import verify_grad

import dagad
from dagad.interop.pytensor import as_pytensor
from support.regression import BETA, RNG, SCALE, X, assert_known, likelihood_on, loss_on

MODES = [None, "FAST_COMPILE"]


@pytest.fixture(autouse=True)
def _without_compiler() -> Any:
    """Compile nothing: what these tests ask of PyTensor takes its C compiler longer than it takes Python."""
    with pytensor.config.change_flags(cxx=""):
        yield


def variables() -> dict[str, Any]:
    return {"beta": pt.dvector("beta"), "scale": pt.dscalar("scale")}


class Counted:
    """A sum of squares that counts how often its value, and its pullback, is computed."""

    def __init__(self) -> None:
        self.values, self.pullbacks = 0, 0

    def __call__(self, theta: Any) -> Any:
        return dagad.reduce_sum(dagad.extend.explicit(self.squares), X, theta, grainsize=60, scheduler="sync")

    def squares(self, rows: Any, theta: Any) -> Any:
        self.values += 1

        def pullback(cotangent: Any) -> Any:
            self.pullbacks += 1
            return None, -2.0 * cotangent * np.sum(rows - theta, axis=0)

        return np.sum((rows - theta) ** 2), pullback


def test_pytensor_finds_the_gradient_right(scheduler: Any) -> None:
    loss = as_pytensor(loss_on(scheduler))
    verify_grad(lambda beta, scale: loss({"beta": beta, "scale": scale}), [BETA, np.array(SCALE)], rng=RNG)


def test_pytensor_finds_second_derivatives_right() -> None:
    loss, of = as_pytensor(loss_on("sync")), variables()

    def slopes(beta: Any, scale: Any) -> Any:
        return pt.concatenate(
            [part.ravel() for part in pytensor.grad(loss({"beta": beta, "scale": scale}), [beta, scale])]
        )

    verify_grad(slopes, [BETA, np.array(SCALE)], rng=RNG)
    with pytest.raises(
        dagad.NotDifferentiableError, match=r"third derivative of `loss`.*the function itself with dagad"
    ):
        pytensor.grad(pytensor.grad(pytensor.grad(loss(of), of["scale"]), of["scale"]), of["scale"])


def test_value_and_gradient_of_as_pytensor_have_the_bits_of_dagad(scheduler: Any) -> None:
    of, loss = variables(), loss_on(scheduler)
    value = as_pytensor(loss)(of)
    both = pytensor.function([*of.values()], [value, *pytensor.grad(value, [*of.values()])])
    expected, gradient = dagad.value_and_grad(loss_on("sync"))({"beta": BETA, "scale": SCALE})
    found = both(BETA, SCALE)
    assert found[0] == expected
    assert np.array_equal(found[1], gradient["beta"])
    assert found[2] == gradient["scale"]


@pytest.mark.parametrize("mode", MODES)
def test_value_and_gradient_at_one_point_are_one_evaluation(mode: str | None) -> None:
    counted, theta = Counted(), pt.dvector()
    value = as_pytensor(counted)(pt.exp(theta))
    both = pytensor.function([theta], [value, pytensor.grad(value, theta)], mode=mode)
    both(BETA)
    assert (counted.values, counted.pullbacks) == (1, 1)


@pytest.mark.parametrize("mode", MODES)
def test_a_value_alone_starts_no_pullback(mode: str | None) -> None:
    counted, theta = Counted(), pt.dvector()
    pytensor.function([theta], as_pytensor(counted)(theta), mode=mode)(BETA)
    assert (counted.values, counted.pullbacks) == (1, 0)


class Unhashable:
    """A function that is compared by what it holds."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhashable)

    def __call__(self, theta: Any) -> Any:
        return dagad.reduce_sum(lambda rows, theta: anp.sum(rows) * theta, X, theta, scheduler="sync")


def test_functions_without_a_hash_and_without_variables_are_computed_too() -> None:
    theta = pt.dscalar()
    value = as_pytensor(Unhashable())(theta)
    both = pytensor.function([theta], [value, pytensor.grad(value, theta)])
    assert both(2.0) == pytest.approx([2.0 * X.sum(), X.sum()])
    assert pytensor.function([], as_pytensor(lambda: Unhashable()(2.0))())() == pytest.approx(2.0 * X.sum())


def test_integers_are_constants_for_as_pytensor() -> None:
    of, power = variables(), pt.iscalar("power")
    value = as_pytensor(loss_on("sync"))(of, power)
    slope = pytensor.function([*of.values(), power], pytensor.grad(value, of["scale"]))
    expected = dagad.grad(loss_on("sync"))({"beta": BETA, "scale": SCALE}, 2)["scale"]
    assert slope(BETA, SCALE, 2) == expected
    with pytest.raises(pytensor.gradient.DisconnectedInputError):
        pytensor.grad(value, power)


def test_float32_is_computed_in_float64_and_its_gradient_is_float32() -> None:
    theta = pt.fvector("theta")
    value = as_pytensor(Counted())(theta)
    slope = pytensor.grad(value, theta)
    assert (value.dtype, slope.dtype) == ("float64", "float32")
    number, found = pytensor.function([theta], [value, slope])(BETA.astype(np.float32))
    assert number == np.sum((X - BETA.astype(np.float32).astype(float)) ** 2)
    assert np.allclose(found, -2.0 * np.sum(X - BETA, axis=0))


def test_as_pytensor_refuses_arguments_and_results_that_are_no_numbers() -> None:
    loss = as_pytensor(loss_on("sync"))
    with pytest.raises(dagad.NotDifferentiableError, match=r"`loss` is called by PyTensor with a str.* in its closure"):
        loss({"beta": pt.dvector(), "scale": "one"})
    with pytest.raises(dagad.NotDifferentiableError, match="a variable of dtype complex128"):
        loss({"beta": pt.zvector(), "scale": 1.0})
    with pytest.raises(dagad.ArgumentsError, match="takes a function, and was given an int"):
        as_pytensor(3)  # type: ignore[arg-type]  # on purpose
    theta = pt.dvector()
    with pytest.raises(dagad.NotDifferentiableError, match=r"Return its sum, `np.sum"):
        pytensor.function([theta], as_pytensor(lambda theta: theta)(theta))(BETA)


# Other processes


def test_a_compiled_function_of_as_pytensor_can_be_pickled() -> None:
    of = variables()
    value = as_pytensor(loss_on("threads"))(of)
    both = pytensor.function([*of.values()], [value, pytensor.grad(value, of["beta"])])
    again = cloudpickle.loads(cloudpickle.dumps(both))
    assert np.array_equal(again(BETA, SCALE)[1], both(BETA, SCALE)[1])


def test_shards_do_not_travel_and_a_sentence_says_what_to_do() -> None:
    shards, theta = dagad.shard(X, grainsize=20, scheduler="sync"), pt.dvector("theta")
    loss = as_pytensor(lambda theta: dagad.reduce_sum(lambda rows, t: anp.sum((rows - t) ** 2), shards, theta))
    both = pytensor.function([theta], loss(theta))
    with pytest.raises(dagad.PortabilityError, match=r"write `pm.sample\(cores=1\)`.*Shards"):
        cloudpickle.dumps(both)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # that is what is tested: what PyMC does
def test_a_fork_is_warned_and_does_not_wait_for_threads_that_are_not_there() -> None:
    theta, context = pt.dvector("theta"), multiprocessing.get_context("fork")
    value = pytensor.function([theta], as_pytensor(Counted())(theta))
    value(BETA)
    told, tells = context.Pipe(duplex=False)
    child = context.Process(target=say_error, args=(value, tells))
    child.start()
    assert told.poll(30)
    name, text = told.recv()
    child.join()
    assert name == "PortabilityError"
    assert "write `pm.sample(cores=1)`" in text


def say_error(value: Any, tells: Any) -> None:
    try:
        value(BETA)
    except Exception as error:
        tells.send((type(error).__name__, str(error)))


# PyMC


def draws(scheduler: Any, n: int) -> Any:
    likelihood = likelihood_on(scheduler)
    with pm.Model():
        mean = pm.Normal("mean", 0.0, 1.0)
        pm.Potential("rows", as_pytensor(likelihood)(mean))
        how: dict[str, Any] = {"cores": 1, "chains": 1, "random_seed": 3, "compute_convergence_checks": False}
        found = pm.sample(n, tune=n, progressbar=False, return_inferencedata=False, quiet=True, **how)
    return found["mean"]


def test_pymc_draws_from_the_posterior_that_is_known_and_the_same_on_a_cluster(cluster: Any) -> None:
    here = draws("sync", 50)
    assert_known(here)
    assert np.array_equal(here, draws(cluster, 50))
