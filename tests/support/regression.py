"""What the tests of samplers share: a regression, in a module that workers import without any sampler."""

from __future__ import annotations

from typing import Any

import autograd.numpy as anp
import numpy as np

import dagad

RNG = np.random.default_rng(7)
X = RNG.standard_normal((60, 3))
Y = X @ np.array([1.0, -0.5, 0.2]) + 0.3 * RNG.standard_normal(60)
BETA, SCALE = np.array([0.7, -0.2, 0.1]), 0.6


def log_likelihood(rows: Any, beta: Any, scale: Any) -> Any:
    x, y = rows
    return -0.5 * anp.sum(((y - anp.dot(x, beta)) / scale) ** 2) - len(y) * anp.log(scale)


def loss_on(scheduler: Any) -> Any:
    def loss(params: Any, power: Any = 1) -> Any:
        return dagad.reduce_sum(
            log_likelihood, (X, Y), params["beta"], params["scale"] ** power, grainsize=20, scheduler=scheduler
        )

    return loss


# A mean of normal numbers with variance 1, whose prior is standard normal too: what is known of it is normal again.
PRECISION = 1.0 + len(Y)
MEAN = float(np.sum(Y)) / PRECISION


def of_mean(rows: Any, mean: Any) -> Any:
    return -0.5 * anp.sum((rows - mean) ** 2)


def likelihood_on(scheduler: Any) -> Any:
    """Return the log-likelihood of the mean, over rows that are placed."""
    shards = dagad.shard(Y, grainsize=20, scheduler=scheduler)

    def likelihood(mean: Any) -> Any:
        return dagad.reduce_sum(of_mean, shards, mean)

    return likelihood


def assert_known(draws: Any) -> None:
    """See that draws are of what is known; correlated ones are worth a few times fewer."""
    assert abs(np.mean(draws) - MEAN) < 4.0 / np.sqrt(len(draws) / 5 * PRECISION)
    assert abs(np.std(draws) * np.sqrt(PRECISION) - 1.0) < 4.0 / np.sqrt(len(draws) / 2.5)
