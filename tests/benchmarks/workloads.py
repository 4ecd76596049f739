"""The workloads: data made from fixed seeds, numbers of chunks, and the bars that dagad has to reach on two threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import models
import numpy as np
from models import Array

N_COVARIATES = 10
N_GROUPS = 500
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Case:
    """One sum over rows. `own`: the first of `params` is sliced together with the data and heads the rows."""

    chunk: Callable[..., Any]
    data: tuple[Array, ...]
    params: tuple[Array, ...]
    own: bool = False
    explicit: Callable[..., Any] | None = None

    @property
    def n_rows(self) -> int:
        """How many rows the data have."""
        return len(self.data[0])

    def first(self, n_rows: int) -> Case:
        """The same sum over the first rows only."""
        params = (self.params[0][:n_rows], *self.params[1:]) if self.own else self.params
        return Case(self.chunk, tuple(a[:n_rows] for a in self.data), params, self.own, self.explicit)


@dataclass(frozen=True, slots=True)
class Bar:
    """At least `least` times as fast as `reference` (its best row): 1 / 1.05 reads "at most 1.05 times as long"."""

    text: str
    reference: str
    least: float
    auto_only: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """At most so much, in the unit of the row `row`: `least` for the smallest figure, `median` for the median."""

    text: str
    row: str
    least: float
    median: float


@dataclass(frozen=True, slots=True)
class Workload:
    """What is timed and against what. `kind` says how: calls, value and gradient apart, cost per chunk, or memory."""

    name: str
    title: str
    build: Callable[[], Case]
    counts: tuple[int, ...]
    rounds: int
    bars: tuple[Bar | Limit, ...]
    kind: str = "calls"
    families: tuple[str, ...] = ("plain", "cured", "loop", "pool", "delayed", "dagad")
    auto: bool = True


def poisson_case(n_rows: int) -> Case:
    """Covariates, counts and groups of a mixed Poisson regression, and a point near its maximum."""
    rng = np.random.default_rng(1)
    beta, groups = 0.1 * rng.standard_normal(N_COVARIATES), 0.1 * rng.standard_normal(N_GROUPS)
    covariates = rng.standard_normal((n_rows, N_COVARIATES))
    group = rng.integers(0, N_GROUPS, n_rows)
    counts = rng.poisson(1.0, n_rows).astype(float)
    return Case(models.poisson, (covariates, counts, group), (beta, groups))


def negative_binomial_case(n_rows: int) -> Case:
    """Covariates and overdispersed counts."""
    rng = np.random.default_rng(2)
    covariates = rng.standard_normal((n_rows, N_COVARIATES))
    counts = rng.negative_binomial(2.0, 0.5, n_rows).astype(float)
    return Case(
        models.negative_binomial, (covariates, counts), (0.1 * rng.standard_normal(N_COVARIATES), np.array(0.3))
    )


def kinetics_case(n_subjects: int, chunk: Callable[..., Any]) -> Case:
    """Doses and log concentrations; 6 shared parameters and 5 of each subject's own."""
    rng = np.random.default_rng(3)
    own = models.SPREAD_OF_SUBJECTS * rng.standard_normal((n_subjects, 5))
    shared = np.array([0.3, 1.0, 2.0, 1.2, 3.0, -1.0])
    dose = rng.uniform(50.0, 150.0, n_subjects)
    observed = 1.5 - 0.05 * np.arange(models.INTERVALS) + 0.3 * rng.standard_normal((n_subjects, models.INTERVALS))
    return Case(chunk, (dose, observed), (own, shared), own=True)


def mixture_case(n_points: int, n_dims: int, n_components: int) -> Case:
    """Points around random centres, and a start that is off by a little."""
    rng = np.random.default_rng(4)
    means = 3.0 * rng.standard_normal((n_components, n_dims))
    points = means[rng.integers(0, n_components, n_points)] + rng.standard_normal((n_points, n_dims))
    start = means + 0.1 * rng.standard_normal(means.shape)
    return Case(
        models.mixture, (points,), (rng.standard_normal(n_components), start, 0.1 * rng.standard_normal(means.shape))
    )


def tiny_case(n_rows: int, n_params: int, *, explicit: bool) -> Case:
    """One row a chunk, and as little work as possible on it."""
    rng = np.random.default_rng(5)
    points, theta = rng.standard_normal((n_rows, n_params)), rng.standard_normal(n_params)
    return Case(models.tiny, (points,), (theta,), explicit=models.tiny_explicit if explicit else None)


def slow_case() -> Case:
    """Eight rows, one a chunk, each of which sleeps forward and back."""
    return Case(models.slow, (np.linspace(0.5, 1.5, 8),), (np.array([0.3, -0.2]),))


COST_LIMITS = (
    Limit("at most 10 us a chunk", "us a chunk", 10.0, 10.0),
    Limit("at most 0.2 ms fixed", "fixed ms", 0.2, 0.2),
)
COST_FAMILIES = ("loop", "pool", "delayed", "dagad")
COST_COUNTS = (1, 4, 16, 64, 256, 1024)

WORKLOADS = (
    Workload(
        "W1-1e6",
        "mixed Poisson, 1e6 rows x 10, 500 groups",
        lambda: poisson_case(1_000_000),
        (2, 4, 8, 16, 64),
        12,
        (Bar(">= 2.1x plain", "plain", 2.1),),
        families=("plain", "pickled", "cured", "loop", "pool", "delayed", "dagad", "dagad pickled"),
    ),
    Workload(
        "W1-1e5",
        "mixed Poisson, 1e5 rows x 10, 500 groups",
        lambda: poisson_case(100_000),
        (1, 2, 4, 8),
        20,
        (Bar("at most 1.1x cured, auto", "cured", 1.0 / 1.1, auto_only=True),),
        families=("plain", "pickled", "cured", "loop", "pool", "delayed", "dagad", "dagad pickled"),
    ),
    Workload(
        "W2",
        "negative binomial, 1e6 rows x 10",
        lambda: negative_binomial_case(1_000_000),
        (2, 8, 16, 64),
        8,
        (Bar(">= 2.0x plain", "plain", 2.0), Bar(">= 1.6x loop", "loop", 1.6)),
    ),
    Workload(
        "W3a",
        "two-compartment kinetics, RK4, Python loop over 20 subjects",
        lambda: kinetics_case(20, models.kinetics_looped),
        (20,),
        3,
        (Bar(">= 3.3x plain", "plain", 3.3),),
        families=("plain", "loop", "pool", "delayed", "dagad"),
    ),
    Workload(
        "W3b",
        "the same vectorised over 1,000 subjects, 5,006 gradients",
        lambda: kinetics_case(1_000, models.kinetics_vectorised),
        (1, 2, 4),
        6,
        (Bar("at most 1.05x plain, auto", "plain", 1.0 / 1.05, auto_only=True),),
    ),
    Workload(
        "W4",
        "Gaussian mixture, 1e4 points, d=10, 25 components",
        lambda: mixture_case(10_000, 10, 25),
        (2, 8, 16, 32),
        12,
        (Bar(">= 2.1x plain", "plain", 2.1),),
    ),
    Workload(
        "W5",
        "hot loop: explicit function of a few us, 100 parameters, 2 chunks",
        lambda: tiny_case(2, 100, explicit=True),
        (2,),
        20,
        (Limit("at most 0.20 / 0.30 ms", "ms", 0.20, 0.30),),
        auto=False,
    ),
    Workload(
        "W6-autograd",
        "the runtime's own cost beyond the bare loop, an autograd chunk",
        lambda: tiny_case(max(COST_COUNTS), 10, explicit=False),
        COST_COUNTS,
        10,
        COST_LIMITS,
        kind="cost",
        families=COST_FAMILIES,
        auto=False,
    ),
    Workload(
        "W6-explicit",
        "the same, an explicit chunk",
        lambda: tiny_case(max(COST_COUNTS), 10, explicit=True),
        COST_COUNTS,
        10,
        COST_LIMITS,
        kind="cost",
        families=COST_FAMILIES,
        auto=False,
    ),
    Workload(
        "W7",
        "values early: 8 chunks, 50 ms forward, 200 ms back, 2 threads",
        slow_case,
        (8,),
        3,
        (Limit("at most 0.21 s", "value", 210.0, 210.0), Limit("at most 1.01 s", "gradient", 1010.0, 1010.0)),
        kind="early",
        families=("plain", "loop", "pool", "delayed", "dagad"),
        auto=False,
    ),
    Workload(
        "W8",
        "memory above rest, mixed Poisson, 4e6 rows x 10",
        lambda: poisson_case(4_000_000),
        (64,),
        2,
        (Limit("at most 10 MB at 64 chunks", "MB", 10.0, 10.0),),
        kind="memory",
        families=("plain", "cured", "loop", "pool", "delayed", "dagad"),
    ),
)
