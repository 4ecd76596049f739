"""Carried values: however a traced value reaches a chunk, every mode gives the right number, or the same refusal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as onp
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

import dagad
from support.carrying.all_ways import BY_NAME, ENDS, WAYS, carried, clean
from support.every_mode import MODES, check, derivatives
from support.examples import examples

pytestmark = pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")

ROWS = onp.linspace(-1.0, 2.0, 9)
REFUSALS = (dagad.ClosureError, dagad.NotDifferentiableError, dagad.PortabilityError)
REFUSED = BY_NAME.keys() - {"a_single_instance"} | {
    "a_caller_of_methods",
    "a_cache_in_a_closure",
    "a_cache_beside_it",
    "a_variable_as_a_cache",
    "an_instance_as_a_cache",
    "an_instance_with_an_end",
    "a_local_class",
    "an_attribute_of_a_local_class",
    "a_registry_by_id",
    "a_generator",
    "an_endless_iterator",
    "an_exception",
}


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    clean()


def expected(ways: tuple[str, ...], how: str) -> list[float]:
    try:
        return derivatives(lambda t: carried(t, ways, how)(ROWS))
    finally:
        clean()


def refusal(mode: str, ways: tuple[str, ...], how: str, data: Any, **options: Any) -> str:
    """Return how a mode refuses a way to carry a value; empty where it gives the right number."""
    right = expected(ways, how)
    try:
        check(mode, lambda t: dagad.reduce_sum(carried(t, ways, how), data, **options), right)
    except REFUSALS as error:
        return f"{type(error).__name__}: {error}"
    finally:
        clean()
    return ""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WAYS)
def test_each_way_of_carrying_a_traced_value_is_right_or_refused_as_documented(name: str, scheduler: Any) -> None:
    for mode in ("value_and_grad", "hessian") if isinstance(scheduler, str) else ("hessian",):
        refused = refusal(mode, (name,), "in_its_closure", ROWS, grainsize=4, scheduler=scheduler)
        assert bool(refused) == (name in REFUSED), refused
        assert not refused or "shared argument" in refused or "can't be pickled" in refused


# --- nested, in every mode --------------------------------------------------------------------------------------------

PLANS = st.tuples(
    st.lists(st.sampled_from(sorted(WAYS)), min_size=1, max_size=3).map(tuple),
    st.sampled_from(sorted(ENDS)),
    st.lists(st.sampled_from(sorted(MODES)), min_size=2, max_size=3, unique=True),
)
QUICKLY: Any = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


def check_plan(plan: Any, data: Any, **options: Any) -> None:
    ways, how, modes = plan
    assume(sum(name in BY_NAME for name in ways) < 2)  # they use the same names
    found = {mode: refusal(mode, ways, how, data, **options) for mode in modes}
    assert len(set(map(bool, found.values()))) == 1, found


@settings(max_examples=examples(60), **QUICKLY)
@given(PLANS)
def test_every_mode_agrees_on_carried_values_in_this_thread(plan: Any) -> None:
    check_plan(plan, ROWS, grainsize=4, scheduler="sync")


@settings(max_examples=examples(30), **QUICKLY)
@given(PLANS)
def test_every_mode_agrees_on_carried_values_in_threads(plan: Any) -> None:
    check_plan(plan, ROWS, grainsize=2, scheduler="threads")


@pytest.mark.whole("many rounds, workers or bytes: the same is seen of few here")
@settings(max_examples=12, **QUICKLY)
@given(PLANS)
def test_every_mode_agrees_on_carried_values_in_processes(cluster: Any, plan: Any) -> None:
    check_plan(plan, ROWS, grainsize=4, scheduler=cluster)


@settings(max_examples=12, **QUICKLY)
@given(PLANS)
def test_every_mode_agrees_on_carried_values_with_residents(cluster: Any, plan: Any) -> None:
    """Again and again on data that stay, so that the later calls are answered by residents."""
    shards = dagad.shard(ROWS, grainsize=4, scheduler=cluster)
    ways, how, modes = plan
    check_plan((ways, how, [*modes, "value_and_grad"]), shards)
    found = {bool(refusal("value_and_grad", ways, how, shards)) for _ in range(4)}
    assert len(found) == 1
