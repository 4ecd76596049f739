"""Arrays that a loop writes into after each reduction: derivatives are of what they were when it was called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad._api import bind
from dagad._kernels import operation
from dagad._remembered import Remembered
from dagad.extend import Keep, Recompute

ROWS = np.arange(4.0)
SCALE = np.array([0.3, 0.2])


def number(rows: Any, p: Any, scale: Any) -> Any:
    return np.sum(rows**2) * np.sum(np.exp(p * scale))


def vector(rows: Any, p: Any, scale: Any) -> Any:
    return np.sum(rows**2) * np.exp(p * scale)


def curve(item: Any, p: Any, scale: Any) -> Any:
    return np.exp(p * scale) * item


def closed(rows: Any, p: Any, scale: Any, **options: Any) -> Any:
    return dagad.reduce_sum(lambda rows, p: vector(rows, p, scale), rows, p, **options)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "a number": partial(dagad.reduce_sum, number),
    "an array": partial(dagad.reduce_sum, vector),
    "an array of a closure": closed,
    "a sum over items": partial(dagad.map_sum, curve),
    "a ragged map": partial(dagad.map_rect, curve),
    "what is combined": partial(dagad.map_reduce, vector, np.add),
    "a number, kept": partial(dagad.reduce_sum, number, policy=Keep()),
    "an array, recomputed": partial(dagad.reduce_sum, vector, policy=Recompute()),
}
MODES: dict[str, Callable[[Any], Any]] = {
    "grad": dagad.grad,
    "vjp": lambda fun: lambda p: dagad.vjp(fun, p)[1](1.0)[0],
    "jacrev": dagad.jacrev,
    "hessian": dagad.hessian,
    "hvp": lambda fun: lambda p: dagad.hvp(fun, p, 1.0),
    "grad of grad": lambda fun: dagad.grad(dagad.grad(fun)),
    "jacrev of jacfwd": lambda fun: dagad.jacrev(dagad.jacfwd(fun)),
    "evaluate": lambda fun: lambda p: dagad.evaluate(fun, p, lazy=True).gradient(),
    "autograd's grad": autograd.grad,
}


def loop(reduction: Callable[..., Any], is_written: bool, scheduler: Any) -> Callable[[Any], Any]:
    """Return a program that fills its arrays anew for each of its reductions and once more, or takes new ones."""

    def program(p: Any) -> Any:
        rows, scale, total = ROWS.copy(), SCALE.copy(), 0.0
        for step in range(3):
            if not is_written:
                rows, scale = rows.copy(), scale.copy()
            rows[:], scale[:] = ROWS + step, SCALE * (step + 1.0)
            if step < 2:
                total = total + anp.sum(reduction(rows, p, scale, grainsize=2, scheduler=scheduler) ** 2)
        return total

    return program


@cache
def right(reduction: Callable[..., Any], mode: str) -> Any:
    """Return what a mode gives of a program that takes new arrays; it is the same on every scheduler."""
    return MODES[mode](loop(reduction, False, "sync"))(0.7)


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_derivatives_are_of_what_arrays_held_when_a_reduction_was_called(name: str, mode: str, scheduler: Any) -> None:
    found = MODES[mode](loop(REDUCTIONS[name], True, scheduler))(0.7)
    np.testing.assert_allclose(found, right(REDUCTIONS[name], mode), rtol=1e-13)


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("mode", ["grad", "jacrev", "hvp", "evaluate"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_derivatives_under_a_checkpoint_are_of_what_arrays_held(
    name: str, mode: str, scheduler: Any, tmp_path: Path
) -> None:
    with dagad.checkpoint(tmp_path / "written"):
        found = MODES[mode](loop(REDUCTIONS[name], True, scheduler))(0.7)
    np.testing.assert_allclose(found, right(REDUCTIONS[name], mode), rtol=1e-13)


def test_rows_of_a_number_are_copied_once_and_no_more() -> None:
    seen, data = [], np.arange(6.0)

    def own(rows: Any, p: Any) -> Any:
        seen.append(np.shares_memory(rows, data))
        return np.sum(rows * p) ** 2

    for _ in range(3):
        seen.clear()
        dagad.grad(lambda p: dagad.reduce_sum(own, data, p, grainsize=6, scheduler="sync"))(2.0)
    assert seen == [True]


def number_or_vector(rows: Any, p: Any, scale: Any) -> Any:
    return np.sum(rows**2) * np.exp(p * scale)


def real_or_complex(rows: Any, p: Any, scale: Any) -> Any:
    found = np.sum(rows**2) * np.sum(np.exp(p * scale))
    return found * (1.0 + 0.5j * p) if rows[0] else found


@pytest.mark.parametrize("fun", [number_or_vector, real_or_complex])
def test_a_function_that_gave_a_number_before_has_derivatives_of_what_arrays_held(
    fun: Any, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((operation, "_GIVES_NUMBERS"), (bind, "_WAS_NUMBER")):  # nothing is known from elsewhere
        monkeypatch.setattr(module, name, Remembered[bool](64))

    def program(p: Any, is_written: bool) -> Any:
        scale, total = np.zeros(2), 0.0
        for step in range(3):
            scale = scale if is_written else scale.copy()
            scale[:] = SCALE * (step + 1.0)
            found = dagad.reduce_sum(fun, ROWS, p, scale, grainsize=2, scheduler=scheduler)
            total = total + np.sum(np.real(found) + np.imag(found))
        return total

    one = np.ones(())
    for _ in range(2):
        dagad.grad(lambda p: np.real(dagad.reduce_sum(fun, np.zeros(4), p, one, grainsize=2, scheduler=scheduler)))(0.7)
    found = [dagad.grad(partial(program, is_written=is_written))(0.7) for is_written in (True, False)]
    assert found[0] == pytest.approx(found[1], rel=1e-13)


def in_a_tuple(rows: Any, p: Any, scale: Any, **options: Any) -> Any:
    held = (scale, 2.0)
    return dagad.reduce_sum(lambda rows, p: vector(rows, p, held[0]) * held[1], rows, p, **options)


def as_a_default(rows: Any, p: Any, scale: Any, **options: Any) -> Any:
    return dagad.reduce_sum(lambda rows, p, held=(scale,): vector(rows, p, held[0]), rows, p, **options)


def combined_by(rows: Any, p: Any, scale: Any, **options: Any) -> Any:
    return dagad.map_reduce(
        lambda rows, p: np.sum(rows + 1.0) * np.sin(p), lambda a, b: a * b * scale, rows, p, **options
    )


def of_rows_alone(rows: Any, p: Any, scale: Any, **options: Any) -> Any:
    return dagad.reduce_sum(lambda rows, p: np.sum(rows * p) * np.ones(2), rows, p, **options)


HELD = [in_a_tuple, as_a_default, combined_by, of_rows_alone]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("mode", ["grad", "vjp", "jacrev", "hessian", "hvp", "grad of grad"])
@pytest.mark.parametrize("reduction", HELD)
def test_arrays_in_tuples_and_of_what_combines_are_as_they_were(reduction: Any, mode: str, scheduler: Any) -> None:
    found = MODES[mode](loop(reduction, True, scheduler))(0.7)
    np.testing.assert_allclose(found, right(reduction, mode), rtol=1e-13)


@pytest.fixture(scope="module")
def worker_of_this_process() -> Iterator[Client]:
    with Client(
        processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0", set_as_default=False
    ) as client:
        yield client


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("mode", ["grad", "jacrev"])
@pytest.mark.parametrize("reduction", HELD)
def test_workers_that_share_this_process_copy_rows_and_what_functions_hold(
    reduction: Any, mode: str, worker_of_this_process: Client
) -> None:
    found = MODES[mode](loop(reduction, True, worker_of_this_process))(0.7)
    np.testing.assert_allclose(found, right(reduction, mode), rtol=1e-13)


INNER: dict[str, Callable[[Any, Any, Any], Any]] = {
    "jvp": lambda fun, p, v: dagad.jvp(fun, (p,), (v,))[1],
    "hvp": lambda fun, p, v: dagad.hvp(lambda p: np.sum(fun(p)), p, v),
    "vjp": lambda fun, p, v: dagad.vjp(fun, p)[1](v)[0],
}


@pytest.mark.parametrize("outer", ["grad", "hessian", "vjp"])
@pytest.mark.parametrize("inner", INNER)
def test_tangents_and_cotangents_that_are_written_to_later_are_as_they_were(
    inner: str, outer: str, scheduler: Any
) -> None:
    def reduction(p: Any) -> Any:
        return dagad.reduce_sum(lambda rows, p: np.sum(rows) * np.exp(p), ROWS, p, grainsize=2, scheduler=scheduler)

    def program(p: Any, is_written: bool) -> Any:
        v = np.ones(2)
        found = INNER[inner](reduction, p, v)
        if is_written:
            v[:] = 5.0
        return np.sum(found)

    written, new = (MODES[outer](partial(program, is_written=one))(np.array([0.7, 0.4])) for one in (True, False))
    np.testing.assert_allclose(written, new, rtol=1e-13)


@pytest.mark.parametrize("mode", ["grad", "hessian", "jacrev"])
def test_workers_that_are_threads_of_this_process_see_arrays_as_they_were(
    mode: str, worker_of_this_process: Client
) -> None:
    found = MODES[mode](loop(REDUCTIONS["an array"], True, worker_of_this_process))(0.7)
    np.testing.assert_allclose(found, right(REDUCTIONS["an array"], mode), rtol=1e-13)
