"""Functions whose surroundings change and change back: is every evaluation, everywhere, one of what they are now?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import autograd
import numpy as np
import pytest
from distributed import Client
from hypothesis import HealthCheck, given, settings, strategies as st

import dagad
from support.changing_programs import PARTS, World
from support.hot_loops import THETA, X, a_watched_cluster, shards_on

EXAMPLES = int(os.environ.get("DAGAD_CHANGES", "12"))  # more by hand
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES == 12,
    suppress_health_check=list(HealthCheck),  # the cluster is for all examples
)
PLACES = ["sync", "threads", "graph", "hot", "hot", "hot"]
Step = tuple[tuple[str, float], tuple[int, str]]  # a part and its value; a function and where it is evaluated


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    """A cluster that is to be empty in the end."""
    with a_watched_cluster(threads_per_worker=int(os.environ.get("DAGAD_CHANGES_THREADS", "1"))) as client:
        yield client


@pytest.fixture(scope="module")
def shards(client: Client) -> Iterator[list[dagad.Shards]]:
    made = [shards_on(client), shards_on(client)]
    yield made
    made.clear()


@st.composite
def stories(draw: Any) -> tuple[list[list[str]], list[Step]]:
    """Draw the parts that each function uses, and what is done: changes, and evaluations here and there."""
    parts = draw(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=3, unique=True))
    functions = draw(
        st.lists(st.lists(st.sampled_from(parts), min_size=1, max_size=3, unique=True), min_size=2, max_size=3)
    )
    used = sorted({name for names in functions for name in names})
    change = st.tuples(st.sampled_from(used), st.sampled_from([1.0, 2.0]))
    look = st.tuples(st.integers(0, len(functions) - 1), st.sampled_from(PLACES))
    return functions, draw(st.lists(st.tuples(change, look), min_size=4, max_size=12))


def evaluated(function: Any, place: str, client: Client, shards: list[dagad.Shards], number: int) -> Any:
    options: dict[str, Any] = {} if place == "hot" else {"grainsize": 4}
    if place != "hot":
        options["scheduler"] = client if place == "graph" else place
    data: Any = shards[number % 2] if place == "hot" else X

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(function, data, t, **options)

    if number % 3 == 2:  # value first, and the pullback apart
        value, pullback = dagad.vjp(loss, THETA)
        return value, pullback(1.0)[0]
    return dagad.value_and_grad(loss)(THETA)


@pytest.mark.whole("many rounds, workers or bytes: the same is seen of few here")
@SETTINGS
@given(story=stories())
def test_every_evaluation_is_one_of_what_its_function_uses_now(
    story: Any, client: Client, shards: list[dagad.Shards]
) -> None:
    functions, steps = story
    world = World(functions)
    looks = [((functions[0][0], 1.0), (number, "hot")) for number in range(len(functions))]  # the first takes the graph
    for (part, value), (which, where) in [*looks, *looks, *steps, *looks]:
        world.change(part, value)
        function = world.function(which)
        expected = autograd.value_and_grad(lambda t, function=function: function(X, t))(THETA)
        found = evaluated(function, where, client, shards, which)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.sampled(48)
@pytest.mark.parametrize("name", PARTS)
def test_a_hot_loop_sees_each_part_of_its_function_change_and_change_back(
    name: str, client: Client, shards: list[dagad.Shards]
) -> None:
    """The shortest story of each, so that none depends on what is drawn."""
    world = World([[name], [name]])
    for which, value in [(0, 1.0), (1, 1.0), (0, 1.0), (1, 2.0), (0, 1.0), (0, 2.0), (1, 1.0), (0, 1.0)]:
        world.change(name, value)
        function = world.function(which)
        expected = autograd.value_and_grad(lambda t, function=function: function(X, t))(THETA)
        for a, b in zip(evaluated(function, "hot", client, shards, 0), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
