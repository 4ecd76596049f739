"""The first hour: does what users of numpy expect just work, and is what is something else here told?"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
import scipy.special
from distributed import Client

import dagad
from dagad import ArgumentsError
from dagad._api import non_finite
from dagad._remembered import Remembered
from dagad.extend import Keep, Preaccumulate, Recompute
from support.first_hour import TABLE, THETA, X, Y

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

# What works at once


def test_plain_numpy_scipy_and_formatting_just_work(scheduler: Any) -> None:
    def chunk(rows: Any, theta: Any) -> Any:
        assert f"{theta[0]:.1f}" == "1.0"
        return np.sum(scipy.special.expit(rows * theta[0])) + np.sum(rows @ np.ones(len(rows)) * theta[1])

    def by_autograd(rows: Any, theta: Any) -> Any:
        return anp.sum(1.0 / (1.0 + anp.exp(-rows * theta[0]))) + anp.sum(rows) * theta[1]

    found, wanted = (
        dagad.grad(lambda theta, f=f: dagad.reduce_sum(f, Y, theta, grainsize=2, scheduler=scheduler))(THETA)
        for f in (chunk, by_autograd)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_submodules_of_dagad_are_there_without_an_import_of_their_own() -> None:
    code = "import dagad; dagad.testing.check_grads; dagad.extend.Keep; print(hasattr(dagad, 'pmap'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_aux_values_come_along_in_every_mode() -> None:
    matrix = X[:2]

    def both(x: Any) -> Any:
        return anp.dot(matrix, x), {"x": x, "n": 3}

    def one(x: Any) -> Any:
        return anp.sum(x**3), {"x": x, "n": 3}

    values, pullback, aux = dagad.vjp(both, THETA, has_aux=True)
    np.testing.assert_array_equal(values, matrix @ THETA)
    np.testing.assert_array_equal(pullback(values)[0], matrix.T @ values)
    found = [aux, dagad.jvp(both, THETA, THETA, has_aux=True)[2]]
    np.testing.assert_array_equal(dagad.jvp(both, THETA, THETA, has_aux=True)[1], matrix @ THETA)
    for transform in (dagad.jacrev, dagad.jacfwd):
        jacobian, aux = transform(both, has_aux=True)(THETA)
        np.testing.assert_array_equal(jacobian, matrix)
        found.append(aux)
    hessian, aux = dagad.hessian(one, has_aux=True)(THETA)
    np.testing.assert_array_equal(hessian, 6.0 * np.eye(2))
    found += [aux, dagad.grad(one, has_aux=True)(THETA)[1], dagad.value_and_grad(one, has_aux=True)(THETA)[0][1]]
    for aux in found:
        assert aux["n"] == 3
        assert type(aux["x"]) is np.ndarray
        np.testing.assert_array_equal(aux["x"], THETA)
    nested = dagad.jacfwd(dagad.grad(lambda x: dagad.jvp(one, x, THETA, has_aux=True)[1]))(THETA)
    np.testing.assert_array_equal(nested, 6.0 * np.eye(2))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("policy", [None, Keep, Recompute, Preaccumulate])
def test_gradients_can_be_written_to(policy: Any, scheduler: Any) -> None:
    theta = {"a": np.ones(1), "b": [np.ones(2)]}

    def loss(theta: Any, rows: Any = X) -> Any:
        options = {"grainsize": 2, "scheduler": scheduler, "policy": policy and policy()}
        part = lambda rows, theta: anp.sum((rows * theta["a"] - theta["b"][0]) ** 2)  # noqa: E731  # one line is enough
        return dagad.reduce_sum(part, rows, theta, **options)

    found = [
        dagad.grad(loss)(theta),
        dagad.value_and_grad(loss)(theta)[1],
        dagad.vjp(loss, theta)[1](1.0)[0],
        dagad.evaluate(loss, theta).gradient(),
        dagad.hvp(loss, theta, theta),
        dagad.hessian(loss)(theta)["a"],
    ]
    for gradient in found:
        for leaf in (gradient["a"], gradient["b"][0]):
            leaf *= 0.1
            np.clip(leaf, -1.0, 1.0, out=leaf)
    rows = dagad.grad(loss, 1)(theta, X)
    rows += 1.0
    np.testing.assert_array_equal(loss(theta), loss(theta, np.arange(12.0).reshape(6, 2)))


# What is silently something else elsewhere


def test_a_table_given_as_rows_has_as_many_as_its_length(scheduler: Any) -> None:
    def count(rows: Any) -> Any:
        assert rows.shape == (len(rows), 2)
        assert dict(rows).keys() == {"a", "b"}
        return len(rows)

    assert dagad.reduce_sum(count, TABLE, grainsize=4, scheduler=scheduler) == len(TABLE)
    assert dagad.map(lambda row: float(len(row)), TABLE, scheduler=scheduler).tolist() == [2.0] * len(TABLE)


@pytest.mark.parametrize("fun", [np.sum, np.mean, np.exp, np.asarray, np.shape, lambda shards: np.ones(2) * shards])
def test_a_numpy_function_of_shards_is_refused_with_what_to_write(fun: Any, scheduler: Any) -> None:
    shards = dagad.shard(Y, grainsize=2, scheduler=scheduler)
    with pytest.raises(ArgumentsError, match=r"`np\..* was given Shards.*dagad\.reduce_sum\(f, shards\).*\.gather\(\)"):
        fun(shards)
    assert shards.n_chunks == 3


def test_a_gradient_that_is_nan_is_warned_of_once_with_its_argument(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(non_finite, "_SOUGHT", Remembered(8))

    def chunk(rows: Any, theta: Any) -> Any:
        return np.sum(np.where(rows > theta["at"], np.sqrt(np.abs(rows - theta["at"])), 0.0) * theta["by"])

    def loss(scale: Any, theta: Any) -> Any:
        return scale * dagad.reduce_sum(chunk, Y, theta, grainsize=4, scheduler=scheduler)

    both = dagad.value_and_grad(loss, (0, 1))
    match = (
        r"`loss` gave a finite value, and a gradient that is nan in argument 1 \(`theta`\), leaf \['at'\].*np\.where"
    )
    with np.errstate(all="ignore"), pytest.warns(dagad.DagadWarning, match=match) as caught:
        both(2.0, {"at": 2.0, "by": 1.0})
    assert [one.filename for one in caught] == [__file__]
    with np.errstate(all="ignore"):
        assert np.isnan(both(2.0, {"at": 3.0, "by": 1.0})[1][1]["at"])


def test_gaps_that_a_sum_leaves_out_are_to_be_filled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(non_finite, "_SOUGHT", Remembered(8))
    rows = (np.array([1.0, 2.0, 3.0]), np.array([1.0, np.nan, 2.0]))

    def left_out(rows: Any, t: Any) -> Any:
        return np.nansum((rows[1] - t * rows[0]) ** 2)

    def filled(rows: Any, t: Any) -> Any:
        ok = ~np.isnan(rows[1])
        return np.sum(ok * (np.where(ok, rows[1], 0.0) - t * rows[0]) ** 2)

    with pytest.warns(dagad.DagadWarning, match=r"what `np\.nansum` and `where=` leave out.*fill gaps before"):
        assert np.isnan(dagad.grad(lambda t: dagad.reduce_sum(left_out, rows, t))(0.5))
    assert dagad.grad(lambda t: dagad.reduce_sum(filled, rows, t))(0.5) == -4.0


def test_a_gradient_has_the_type_of_its_argument(scheduler: Any) -> None:
    def loss(a: Any, b: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: np.sum(rows * t[0] + t[1]), Y, np.stack([a, b]), scheduler=scheduler)

    for found in (*dagad.grad(loss, (0, 1))(0.1, 0.2), *dagad.grad(loss, (0, 1))(np.float64(0.1), 0.2)):
        assert type(found) is np.float64
    assert dagad.grad(loss)(np.array(0.1), 0.2).shape == ()


def test_shards_of_a_closed_client_are_said_to_be_gone(cluster: Client) -> None:
    with Client(cluster.scheduler_info()["address"], set_as_default=False) as client:
        shards = dagad.shard(Y, grainsize=2, scheduler=client)
        assert "gone" not in repr(shards)
    assert repr(shards) == "<Shards: 6 rows in 3 chunks on distributed, gone since the client was closed>"
