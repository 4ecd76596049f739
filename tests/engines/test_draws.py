"""Numbers that a function draws, while jax traces it, from a generator without a seed: it would keep them for ever."""

from __future__ import annotations

import os
import random
import secrets
import uuid
from os import urandom
from typing import Any

import numpy as np
import pytest

import dagad

pytestmark = pytest.mark.needs("jax")

ROWS = np.linspace(0.1, 2.0, 24)


def at(fun: Any, t: Any = 0.7) -> Any:
    """Return value and gradient of a function of rows and a parameter, compiled."""
    return dagad.value_and_grad(lambda t: dagad.reduce_sum(fun, ROWS, t, grainsize=6, scheduler="sync", engine="jax"))(
        t
    )


def with_no_seed(draw: Any) -> Any:
    return lambda rows, t: np.sum(rows * t) + draw()


class Subclass(random.Random):
    pass


SYSTEMS = random.SystemRandom()
FRESH: dict[str, Any] = {
    "of Python's": lambda: random.Random().gauss(0.0, 1.0),
    "of a subclass": lambda: Subclass().random(),
    "seeded anew": lambda: reseeded().random(),
    "the system's": lambda: random.SystemRandom().random(),
    "the system's, held": lambda: SYSTEMS.random(),
    "bytes": lambda: os.urandom(9)[0] + 256 * os.urandom(9)[1],
    "bytes by their name": lambda: urandom(9)[0] + 256 * urandom(9)[1],
    "bytes of the kernel's": lambda: getattr(os, "getrandom", os.urandom)(9)[0] + 256 * os.urandom(9)[1],
    "secrets": lambda: secrets.randbelow(10**6),
    "a coin": lambda: secrets.randbelow(2),
    "a token": lambda: int.from_bytes(secrets.token_bytes(9)),
    "a name": lambda: uuid.uuid4().int % 10**6,
    "a name by the clock": lambda: uuid.uuid1().time % 10**9,
    "many": lambda: np.sum([random.Random().random() for _ in range(500)]),
}


def reseeded() -> random.Random:
    generator = random.Random(3)
    generator.seed()
    return generator


@pytest.mark.parametrize("case", FRESH)
def test_numbers_that_nobody_has_seeded_are_refused(case: str) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"without a seed, or the system's.*Draw them before"):
        at(with_no_seed(FRESH[case]))


def test_generators_of_pythons_with_a_seed_and_names_that_do_not_matter_are_not_refused() -> None:
    def own(rows: Any, t: Any) -> Any:
        return np.sum(rows * t) * random.Random(3).random() + 0.0 * len(str(uuid.uuid4()))

    assert at(own)[1] == pytest.approx(ROWS.sum() * random.Random(3).random())
