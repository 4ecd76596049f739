"""Known answers: are derivatives through time steps and halos what mathematics says, wherever they are computed?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as onp
import pytest
from dask.base import compute as dask_compute
from dask.local import get_sync as get

import dagad
from dagad._graphs.linearization import pull_back
from dagad.extend import Keep, Revolve, Segment
from dagad_scheduler.private import Task, convert_legacy_graph
from support.time_stepping import FORMS, PROBLEMS, burgers, derivatives, heat_gradients, in_one_piece, shallow, upwind

compute: Any = dask_compute  # Dask has few types
BLOCKS = {1: Keep(), 2: Segment(3), 3: Revolve(2), 7: Segment(2)}


def relative(found: Any, expected: Any) -> float:
    return float(onp.max(onp.abs(found - expected)) / onp.max(onp.abs(expected)))


def check_heat(n_steps: int, value: Any, of_start: Any, of_rate: Any) -> None:
    expected = heat_gradients(n_steps)
    assert relative(of_start, expected[0]) <= 1e-14
    assert relative(of_rate, expected[1]) <= 1e-14


def check_upwind(n_steps: int, value: Any, of_start: Any, of_rate: Any) -> None:
    assert of_start.tobytes() == onp.roll(upwind().weights, -n_steps).tobytes()


def check_burgers(n_steps: int, value: Any, of_start: Any, of_rate: Any) -> None:
    """Against a complex step, which has no rounding of differences."""
    problem, tiny = burgers(), 1e-30
    along = onp.cos(onp.arange(len(problem.start)) ** 2)
    tangent_out = in_one_piece(problem, n_steps, problem.start + 1j * tiny * along, problem.parameter).imag / tiny
    assert relative(of_start @ along, tangent_out) <= 1e-13
    thicker = in_one_piece(problem, n_steps, problem.start, problem.parameter + 1j * tiny).imag / tiny
    assert relative(of_rate, thicker) <= 1e-13


def check_shallow(n_steps: int, value: Any, of_start: Any, of_gravity: Any) -> None:
    """Mass is conserved whatever the state is."""
    assert onp.all(of_start[0] == 1.0)
    assert onp.all(of_start[1:] == 0.0)
    assert of_gravity == 0.0
    assert relative(value, onp.sum(shallow().start[0])) <= 1e-13


CHECKS: dict[str, Callable[..., None]] = {
    "heat": check_heat,
    "upwind": check_upwind,
    "burgers": check_burgers,
    "shallow": check_shallow,
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("local", ["sync", "threads"])
def test_derivatives_through_halos_are_what_is_known(name: str, form: str, local: str) -> None:
    for n_blocks, policy in BLOCKS.items():
        stepped = FORMS[form](PROBLEMS[name](), 3, n_blocks)
        value, (of_start, of_parameter) = compute(derivatives(stepped, policy), scheduler=local)[0]
        CHECKS[name](3, value, stepped.whole(of_start), of_parameter)


@pytest.mark.whole("many rounds, workers or bytes: the same is seen of few here")
def test_derivatives_through_halos_in_two_processes_are_the_known_ones(cluster: Any) -> None:
    """All at once, since each graph alone would wait for the scheduler most of the time."""
    cases = [(name, form, n_blocks) for name in PROBLEMS for form in FORMS for n_blocks in BLOCKS]
    n_steps = {1: 2, 2: 2, 3: 1, 7: 1}
    stepped = [FORMS[form](PROBLEMS[name](), n_steps[n_blocks], n_blocks) for name, form, n_blocks in cases]
    both = [derivatives(one, BLOCKS[case[2]]) for one, case in zip(stepped, cases, strict=True)]
    found = compute(both, scheduler=cluster.get)[0]
    for (name, _, n_blocks), one, (value, (of_start, of_parameter)) in zip(cases, stepped, found, strict=True):
        CHECKS[name](n_steps[n_blocks], value, one.whole(of_start), of_parameter)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_gradients_through_halos_agree_with_forward_mode(form: str) -> None:
    problem, rng = burgers(), onp.random.default_rng(5)
    direction = rng.standard_normal(problem.start.shape)
    for n_blocks, policy in BLOCKS.items():
        stepped = FORMS[form](problem, 4, n_blocks)
        parts = onp.array_split(direction, n_blocks) if form == "by hand" else direction
        _, tangent_out = dagad.jvp(stepped.y, [stepped.start, stepped.parameter], [parts, 0.7])
        pulled = derivatives(stepped, policy)[1]
        tangent_out, (of_start, of_nu) = compute([tangent_out, pulled], scheduler="threads")[0]
        assert relative(stepped.whole(of_start) @ direction + 0.7 * of_nu, tangent_out) <= 1e-14


def pulled_wrongly(factor: float, linearization: Any, cotangent: Any) -> Any:
    """Multiply what goes back to a block by its halo, which is one cell wide."""
    found = pull_back(linearization, cotangent)
    is_halo = isinstance(found, onp.ndarray) and 1 in linearization.value.shape
    return found * factor if is_halo else found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("factor", [0.0, 2.0, 1.0], ids=["dropped", "doubled", "right"])
def test_would_a_halo_that_is_dropped_or_doubled_be_found(name: str, form: str, factor: float) -> None:
    stepped = FORMS[form](PROBLEMS[name](), 2, 3)
    value, (of_start, of_parameter) = derivatives(stepped, Segment(2))
    collections = [value, of_parameter, *(of_start if isinstance(of_start, list) else [of_start])]
    graph: dict[Any, Any] = {}
    for one in collections:
        graph |= convert_legacy_graph(dict(one.dask))
    wrong = functools.partial(pulled_wrongly, factor)
    graph |= {key: Task(key, wrong, *node.args) for key, node in graph.items() if is_pullback(node)}
    found = []
    for one, results in zip(collections, get(graph, [one.__dask_keys__() for one in collections]), strict=True):
        finish, extra = one.__dask_postcompute__()
        found.append(finish(results, *extra))
    whole = stepped.whole(found[2:] if isinstance(of_start, list) else found[2])
    check = functools.partial(CHECKS[name], 2, found[0], whole, found[1])
    if factor == 1.0:
        check()
    else:
        with pytest.raises(AssertionError):
            check()


def is_pullback(node: Any) -> bool:
    return isinstance(node, Task) and node.func is pull_back
