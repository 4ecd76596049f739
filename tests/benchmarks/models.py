"""The chunk functions that are measured: ``f(rows, *shared) -> partial sum``, as a user of autograd writes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import autograd.numpy as np
from autograd.extend import defvjp, primitive
from autograd.scipy.special import gammaln, logsumexp
from numpy.typing import NDArray

Array = NDArray[Any]
Rows = tuple[Array, ...]
Pullback = Callable[[Any], tuple[Any, ...]]

INTERVALS = 10
HOURS_PER_INTERVAL = 2.4
STEPS_LOOPED = 5
STEPS_VECTORISED = 5
SPREAD_OF_SUBJECTS = 0.3

FORWARD_S = 0.05
PULLBACK_S = 0.2


def poisson(rows: Rows, beta: Any, groups: Any) -> Any:
    """Mixed Poisson regression (W1): a slope per covariate, an intercept per group."""
    covariates, counts, group = rows
    eta = covariates @ beta + groups[group]
    return np.sum(counts * eta - np.exp(eta))


def negative_binomial(rows: Rows, beta: Any, log_size: Any) -> Any:
    """Negative binomial regression (W2), up to the constant that depends on the counts alone."""
    covariates, counts = rows
    eta = covariates @ beta
    size = np.exp(log_size)
    terms = gammaln(counts + size) + counts * eta - (counts + size) * np.log(size + np.exp(eta))
    return np.sum(terms) + len(counts) * (size * log_size - gammaln(size))


def mixture(rows: Rows, logits: Any, means: Any, log_scales: Any) -> Any:
    """Gaussian mixture with diagonal covariances (W4)."""
    (points,) = rows
    z = (points[:, None, :] - means) * np.exp(-log_scales)
    log_weights = logits - logsumexp(logits) - np.sum(log_scales, axis=1)
    return np.sum(logsumexp(log_weights - 0.5 * np.sum(z * z, axis=2), axis=1))


def _flow(state: tuple[Any, Any, Any], rates: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    absorption, out, to_peripheral, to_central = rates
    gut, central, peripheral = state
    absorbed = absorption * gut
    return (
        -absorbed,
        absorbed - out * central + to_central * peripheral,
        to_peripheral * central - to_central * peripheral,
    )


def _moved(state: tuple[Any, Any, Any], slope: tuple[Any, Any, Any], h: float) -> tuple[Any, Any, Any]:
    return state[0] + h * slope[0], state[1] + h * slope[1], state[2] + h * slope[2]


def _rk4_step(state: tuple[Any, Any, Any], rates: tuple[Any, ...], h: float) -> tuple[Any, Any, Any]:
    k1 = _flow(state, rates)
    k2 = _flow(_moved(state, k1, 0.5 * h), rates)
    k3 = _flow(_moved(state, k2, 0.5 * h), rates)
    k4 = _flow(_moved(state, k3, h), rates)
    mean = tuple((a + 2.0 * b + 2.0 * c + d) * (1.0 / 6.0) for a, b, c, d in zip(k1, k2, k3, k4, strict=True))
    return _moved(state, (mean[0], mean[1], mean[2]), h)


def _log_concentrations(own: Any, dose: Any, shared: Any, steps: int) -> Iterator[Any]:
    """Two-compartment kinetics: the log concentration at the end of each interval."""
    absorption, clearance, central_volume, exchange, peripheral_volume = (np.exp(shared[k] + own[k]) for k in range(5))
    to_peripheral = exchange / central_volume
    rates = (absorption, clearance / central_volume + to_peripheral, to_peripheral, exchange / peripheral_volume)
    state = (dose, 0.0 * dose, 0.0 * dose)
    for _ in range(INTERVALS):
        for _ in range(steps):
            state = _rk4_step(state, rates, HOURS_PER_INTERVAL / steps)
        yield np.log(state[1] / central_volume)


def _kinetics(own: Any, dose: Any, observed: Any, shared: Any, steps: int) -> Any:
    """Log-likelihood of such kinetics: `own` and `observed` have one entry per parameter and per time."""
    total = 0.0
    for k, predicted in enumerate(_log_concentrations(own, dose, shared, steps)):
        error = (observed[k] - predicted) * np.exp(-shared[5])
        total = total - 0.5 * error * error - shared[5]
    return np.sum(total) - 0.5 * np.sum(own * own) / SPREAD_OF_SUBJECTS**2


def kinetics_looped(rows: Rows, shared: Any) -> Any:
    """Pharmacokinetics with a Python loop over the subjects (W3a): a long tape of scalars."""
    own, dose, observed = rows
    return sum(_kinetics(own[i], dose[i], observed[i], shared, STEPS_LOOPED) for i in range(len(dose)))


def kinetics_vectorised(rows: Rows, shared: Any) -> Any:
    """The same for all subjects at once (W3b): the tape costs the same whatever the rows."""
    own, dose, observed = rows
    return _kinetics(own.T, dose, observed.T, shared, STEPS_VECTORISED)


def kinetics_curve(job: tuple[Any, Any], shared: Any) -> Any:
    """One subject's log concentrations: W3a as a map."""
    own, dose = job
    return np.array(list(_log_concentrations(own, dose, shared, STEPS_LOOPED)))


def waves(job: Any, rate: Any) -> Any:
    """As many outputs as the job has parameters, and next to no work."""
    return np.sin(rate * job)


def features(rows: Rows, first: Any, second: Any) -> Any:
    """Two layers of a network, summed over the rows: a function of many outputs."""
    (points,) = rows
    return np.sum(np.tanh(np.tanh(points @ first) @ second), axis=0)


def tiny(rows: Rows, theta: Any) -> Any:
    """Next to nothing (W5, W6)."""
    (points,) = rows
    return np.sum(points * theta)


def tiny_explicit(rows: Rows, theta: Array) -> tuple[float, Pullback]:
    """`tiny` in closed form: a few microseconds, and brings its own derivative."""
    (points,) = rows
    total = points.sum(axis=0)

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        return None, cotangent * total

    return float(total.dot(theta)), pullback


def weighted_explicit(rows: Rows, theta: Array) -> tuple[float, Pullback]:
    """A function of very many parameters that needs next to no data."""
    (weights,) = rows
    total = weights.sum()

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        return None, (cotangent * total) * theta

    return 0.5 * float(total * theta.dot(theta)), pullback


@primitive  # type: ignore[untyped-decorator]  # autograd has no annotations
def _slow_square(x: Array, n_rows: int) -> Array:
    time.sleep(FORWARD_S * n_rows)
    return x * x


def _pull_slow_square(answer: Array, x: Array, n_rows: int) -> Callable[[Array], Array]:
    del answer

    def pull(cotangent: Array) -> Array:
        time.sleep(PULLBACK_S * n_rows)
        return 2.0 * cotangent * x

    return pull


defvjp(_slow_square, _pull_slow_square, argnums=(0,))


def slow(rows: Rows, theta: Any) -> Any:
    """50 ms forward and 200 ms back for each row (W7)."""
    (points,) = rows
    return np.sum(points) * np.sum(_slow_square(theta, len(points)))


def slow_linearized(points: Array, theta: Array) -> tuple[float, SlowPullback]:
    """`slow` by hand: the value, and what pulls back."""
    time.sleep(FORWARD_S * len(points))
    weight = float(points.sum())
    return weight * float(theta.dot(theta)), SlowPullback(weight, len(points), theta)


@dataclass(frozen=True, slots=True)
class SlowPullback:
    """The pullback of `slow` by hand. It may travel, as a tape must not."""

    weight: float
    n_rows: int
    theta: Array

    def __call__(self) -> Array:
        """The gradient."""
        time.sleep(PULLBACK_S * self.n_rows)
        gradient: Array = 2.0 * self.weight * self.theta
        return gradient
