"""blackjax, by `as_jax`: does it draw from what is known, and the same wherever the density is computed?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import blackjax
import jax
import numpy as np
import pytest

from dagad.interop.jax import as_jax
from support.regression import assert_known, likelihood_on


@pytest.fixture(autouse=True)
def _x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def density_on(scheduler: Any) -> Any:
    likelihood = likelihood_on(scheduler)
    return as_jax(lambda mean: likelihood(mean) - 0.5 * mean**2)


def draws(density: Any, state: Any, parameters: dict[str, Any], n_draws: int, seed: int = 5) -> np.ndarray[Any, Any]:
    """Draw by NUTS, in a compiled loop that calls for the density."""
    step = blackjax.nuts(density, **parameters).step
    keys = jax.random.split(jax.random.key(seed), n_draws)
    _, states = jax.jit(lambda: jax.lax.scan(lambda state, key: (step(key, state)[0],) * 2, state, keys))()
    return np.asarray(states.position)


def test_draws_of_blackjax_are_from_the_known_posterior() -> None:
    density = density_on("sync")
    (state, parameters), _ = blackjax.window_adaptation(blackjax.nuts, density).run(jax.random.key(3), 0.0, 100)
    assert_known(draws(density, state, parameters, n_draws=400))


def test_draws_of_blackjax_are_the_same_on_every_scheduler(cluster: Any) -> None:
    parameters = {"step_size": 0.1, "inverse_mass_matrix": np.ones(1)}

    def found(scheduler: Any) -> np.ndarray[Any, Any]:
        density = density_on(scheduler)
        return draws(density, blackjax.nuts(density, **parameters).init(0.0), parameters, n_draws=20)

    here = found("sync")
    assert len(np.unique(here)) > 10
    for scheduler in ("threads", cluster):
        assert np.array_equal(found(scheduler), here)
