"""nutpie: does it draw from what is known, and the same wherever the density is computed?"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import nutpie
import pytest

import dagad
from dagad.interop.nutpie import _KeptDraws, _Point, compile_model
from support.clusters import a_cluster, kill, pids_of
from support.regression import assert_known, likelihood_on


class Effects(NamedTuple):
    mean: Any
    group: Any


def sampled(model: Any, **how: Any) -> Any:
    chosen = {"draws": 25, "tune": 25, "chains": 2, "cores": 2, "seed": 5, "progress_bar": False, **how}
    return nutpie.sample(model, **chosen)


def density_on(scheduler: Any) -> Any:
    likelihood = likelihood_on(scheduler)
    return lambda params: likelihood(params["mean"]) - 0.5 * params["mean"] ** 2


def normal(params: Any) -> Any:
    mean, group = params["effects"]
    return -0.5 * (mean**2 + np.sum(group**2) + np.sum((params["x"] - 3.0) ** 2))


def means(model: Any, **how: Any) -> np.ndarray:
    found: np.ndarray = sampled(model, **how).posterior["mean"].values
    return found


def test_draws_of_nutpie_are_from_the_known_posterior() -> None:
    assert_known(means(compile_model(density_on("sync"), {"mean": 0.0}), draws=400, tune=100, chains=1)[0])


def test_draws_of_nutpie_are_the_same_on_every_scheduler(cluster: Any) -> None:
    here = means(compile_model(density_on("sync"), {"mean": 0.0}))
    for scheduler in ("threads", cluster):
        assert np.array_equal(means(compile_model(density_on(scheduler), {"mean": 0.0})), here)
    assert not np.array_equal(means(compile_model(density_on("sync"), {"mean": 0.0}), seed=6), here)


def test_a_worker_that_dies_while_chains_go_on_changes_no_draw() -> None:
    here = means(compile_model(density_on("sync"), {"mean": 0.0}))
    with a_cluster(2) as client:
        there, count = [density_on(client)], itertools.count()
        victim = next(iter(pids_of(client).values()))

        def log_density(params: Any) -> Any:
            if next(count) == 60:
                kill(victim)
            return there[0](params)

        found = means(compile_model(log_density, {"mean": 0.0}))
        assert next(count) > 60
        there.clear()
    assert np.array_equal(found, here)


def test_parameters_are_a_pytree_and_draws_have_their_names() -> None:
    start = {"x": np.zeros(2, np.float32), "effects": Effects(0.0, np.zeros((2, 3)))}
    posterior = sampled(compile_model(normal, start)).posterior
    shapes = {name: found.shape[2:] for name, found in posterior.items()}
    assert shapes == {"effects.mean": (), "effects.group": (2, 3), "x": (2,)}


def test_compile_model_takes_what_nutpie_keeps_and_its_dimensions() -> None:
    def expand(params: Any) -> dict[str, Any]:
        return {"scale": np.exp(params["effects"].mean), "group": params["effects"].group[0], "n": 3, "ok": True}

    start = {"x": np.zeros(2), "effects": Effects(0.0, np.zeros((2, 3)))}
    names = {"coords": {"site": ["a", "b", "c"]}, "dims": {"group": ("site",)}}
    posterior = sampled(compile_model(normal, start, expand=expand, **names)).posterior  # type: ignore[arg-type]  # mixed
    assert posterior["group"].dims == ("chain", "draw", "site")
    assert list(posterior["site"].values) == ["a", "b", "c"]
    assert np.all(posterior["scale"] > 0.0)
    assert (posterior["n"].dtype, posterior["ok"].dtype) == (np.int64, np.bool_)
    assert np.all(posterior["n"] == 3)


def test_draws_of_another_dtype_than_at_the_start_are_refused_and_not_rounded() -> None:
    kept = _KeptDraws(lambda params: {"n": 0 if params == 0.0 else params}, _Point(0.0))
    assert kept(np.zeros(1))["n"].tolist() == 0
    with pytest.raises(dagad.StructureError, match=r"float64 as `n`, and int64 where chains start.*`0.0` for `0`"):
        kept(np.ones(1))


def test_chains_start_near_the_parameters() -> None:
    model = compile_model(lambda params: -0.5 * np.sum((params - 50.0) ** 2), np.array([50.0, 50.0]), jitter=0.5)
    first = model._make_initial_points(1)
    assert np.all(np.abs(first - 50.0) <= 0.5)
    assert np.array_equal(first, model._make_initial_points(1))
    assert not np.array_equal(first, model._make_initial_points(2))


def test_an_infinite_log_density_of_nutpie_gives_no_warning() -> None:
    density = compile_model(lambda params: -np.exp(params), 1.0)._make_logp_func()
    value, gradient = density(np.array([800.0]))
    assert (value, gradient[0]) == (-np.inf, -np.inf)


def test_compile_model_refuses_a_density_that_nutpie_cannot_sample() -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"`params\['n'\]` is an int.* Write `1.0`"):
        compile_model(lambda params: -(params["x"] ** 2), {"x": 1.0, "n": 3})
    with pytest.raises(dagad.NotDifferentiableError, match="has no numbers in it"):
        compile_model(lambda params: 0.0, {})
    with pytest.raises(dagad.NotDifferentiableError, match=r"only one real.* Return its sum"):
        compile_model(lambda params: params, np.zeros(2))
    with pytest.raises(dagad.NonFiniteError, match=r"is -inf at `params`.* Give a point at which"):
        compile_model(lambda params: -np.inf * params, 1.0)
    with pytest.raises(dagad.ArgumentsError, match="takes a function, and was given a float"):
        compile_model(3.0, 1.0)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(dagad.StructureError, match=r"`expand` returned a float.*Return a dict"):
        compile_model(lambda params: -(params**2), 1.0, expand=lambda params: params)
    with pytest.raises(dagad.StructureError, match=r"as `name`. Return real numbers"):
        compile_model(lambda params: -(params**2), 1.0, expand=lambda params: {"name": "one"})
    with pytest.raises(dagad.StructureError, match="would be called the same"):
        compile_model(lambda params: -(params["a.b"] ** 2) - params["a"]["b"] ** 2, {"a.b": 1.0, "a": {"b": 1.0}})
