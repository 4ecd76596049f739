"""Programs of whole arrays: do they have the derivatives that plain autograd has, however the arrays are cut?"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import autograd
import autograd.numpy as anp
import dask.array as da
import numpy as np
import pytest
from dask.base import compute as dask_compute

import dagad
from support.array_programs import (
    DATA,
    MATRIX,
    PROGRAMS,
    REFUSED,
    TWICE,
    Program,
    plain_total,
    same,
    total,
    weights,
)

compute: Any = dask_compute  # Dask has few types
from_array: Any = da.from_array
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "dask_array_programs.md"
BY_NAME = {program.name: program for programs in PROGRAMS.values() for program in programs}


def where(scheduler: Any) -> dict[str, Any]:
    return {"scheduler": scheduler} if isinstance(scheduler, str) else {"scheduler": scheduler.get}


def cut(program: Program, chunks: Any) -> Any:
    return from_array(DATA[program.data], chunks=chunks)


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("number", [2, 0, 1, 3])
@pytest.mark.parametrize("kind", PROGRAMS)
def test_gradients_of_dask_array_programs_are_right_at_any_cut(
    kind: str, number: int, one_in: Callable[[int, str], bool]
) -> None:
    with np.errstate(all="ignore"):
        for program in PROGRAMS[kind]:
            if program.name in REFUSED or not one_in(2, program.name):
                continue
            value, gradient = autograd.value_and_grad(lambda x, program=program: plain_total(program, x))(
                DATA[program.data]
            )
            x = cut(program, program.chunks[number])
            found_value, found = compute(*dagad.value_and_gradient(total(program.dask(x)), x), scheduler="sync")
            assert same(found_value, value), f"value of {program.name} at {x.chunks}"
            assert same(found, gradient), f"{program.name} at {x.chunks}"


@pytest.mark.parametrize("name", REFUSED)
def test_dask_array_functions_without_a_derivative_are_refused_by_name(name: str) -> None:
    program = BY_NAME[name]
    for chunks in program.chunks:
        x = cut(program, chunks)
        with pytest.raises(dagad.NotDifferentiableError, match=re.escape(REFUSED[name])):
            compute(dagad.gradient(total(program.dask(x)), x), scheduler="sync")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", TWICE)
def test_tangents_and_second_derivatives_of_dask_array_programs_are_right(name: str) -> None:
    program = BY_NAME[name]
    at = DATA[program.data]
    direction = np.sin(np.arange(1.0, 1 + at.size)).reshape(at.shape)
    x = cut(program, program.chunks[-2])
    y = total(program.dask(x)) ** 2
    tangent_out = dagad.jvp(y, x, direction)[1]
    again = dagad.gradient((dagad.gradient(y, x) * from_array(direction, chunks=x.chunks)).sum(), x)
    found_tangent, found = compute(tangent_out, again, scheduler="sync")
    gradient = autograd.grad(lambda x: plain_total(program, x) ** 2)
    with np.errstate(all="ignore"):
        assert same(found_tangent, np.sum(gradient(at) * direction))
        assert same(found, autograd.grad(lambda x: anp.sum(gradient(x) * direction))(at), 1e-10)


@pytest.mark.parametrize("chunks", [(6, 4), (3, 2), (2, 4), (1, 1)])
def test_variances_of_complex_numbers_with_holes_are_right(chunks: Any) -> None:
    def plain(z: Any) -> Any:
        return np.nanvar(z, axis=1, ddof=0.5).sum()

    at = DATA["holes"] * (1.0 + 2.0j) + 1j * MATRIX**2
    z = from_array(at, chunks=chunks)
    y = da.nanvar(z, axis=1, ddof=0.5).sum()
    value, gradient = compute(*dagad.value_and_gradient(y, z), scheduler="sync")
    np.testing.assert_allclose([value, plain(at)], compute(y, scheduler="sync")[0], rtol=1e-12)
    np.testing.assert_allclose(gradient, dagad.grad(plain)(at), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("chunks", [(6, 4), (2, 3), (1, 1)])
def test_assignment_to_entries_of_dask_arrays_is_right_in_what_is_assigned_and_in_the_rest(chunks: Any) -> None:
    def assigned(x: Any, v: Any) -> Any:
        rows = da.tanh(x)
        rows[1:5:2, 1] = v
        rows[0] = 3.0
        return (rows**2 * from_array(weights(MATRIX.shape), chunks=chunks)).sum()

    def chosen(x: Any, v: Any) -> Any:
        column = np.eye(4)[1]
        is_v = np.isin(np.arange(6), [1, 3])[:, None] * column > 0
        spread = anp.dot(np.eye(6)[:, 1:5:2], anp.reshape(v, (2, 1))) * column
        rows = anp.where(np.arange(6)[:, None] == 0, 3.0, anp.where(is_v, spread, anp.tanh(x)))
        return anp.sum(rows**2 * weights(MATRIX.shape))

    v = np.array([0.7, -1.3])
    x, held = from_array(MATRIX, chunks=chunks), from_array(v, chunks=1)
    value, (of_x, of_v) = compute(*dagad.value_and_gradient(assigned(x, held), [x, held]), scheduler="sync")
    assert same(value, chosen(MATRIX, v))
    assert same(of_x, autograd.grad(chosen, 0)(MATRIX, v))
    assert same(of_v, autograd.grad(chosen, 1)(MATRIX, v))


@pytest.mark.parametrize("ddof", [0, 1])
def test_moments_that_are_combined_over_many_levels_are_right(ddof: int) -> None:
    at = np.sin(np.arange(1.0, 18.0))
    x = from_array(at, chunks=2)
    plain: Any
    for name, plain in (("var", lambda x: anp.var(x, ddof=ddof)), ("std", lambda x: anp.std(x, ddof=ddof))):
        spread: Any = getattr(da, name)
        y = spread(x, ddof=ddof, split_every=2) ** 2
        value, gradient = compute(*dagad.value_and_gradient(y, x), scheduler="sync")
        assert same(value, plain(at) ** 2)
        assert same(gradient, autograd.grad(lambda x, plain=plain: plain(x) ** 2)(at))
    moment: Any = da.moment
    cubed = moment(x, 3, split_every=2)
    value, gradient = compute(*dagad.value_and_gradient(cubed, x), scheduler="sync")
    assert same(gradient, autograd.grad(lambda x: anp.mean((x - anp.mean(x)) ** 3))(at), 1e-10)


@pytest.mark.parametrize("name", ["nanvar", "nanstd"])
def test_moments_of_blocks_without_entries_are_right(name: str) -> None:
    at = np.sin(np.arange(1.0, 18.0))
    at[[2, 3, 4, 8, 9]] = np.nan  # two blocks have nothing else
    x = from_array(at, chunks=2)
    y = getattr(da, name)(x, split_every=2) ** 2
    value, gradient = compute(*dagad.value_and_gradient(y, x), scheduler="sync")
    assert same(value, getattr(np, name)(at) ** 2)
    whole = autograd.grad(lambda x: getattr(anp, name.removeprefix("nan"))(x) ** 2)(at[~np.isnan(at)])
    assert same(gradient[~np.isnan(at)], whole)
    assert not np.any(gradient[np.isnan(at)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scheduler", ["threads", "cluster"], indirect=True)
def test_gradients_of_dask_array_programs_have_the_same_bits_on_every_scheduler(scheduler: Any) -> None:
    asked, names = [], TWICE[::4]
    for name in names:
        x = cut(BY_NAME[name], BY_NAME[name].chunks[1])
        asked.append(dagad.value_and_gradient(total(BY_NAME[name].dask(x)), x))
    with np.errstate(all="ignore"):
        here = compute(asked, scheduler="sync")[0]
        there = compute(asked, **where(scheduler))[0]
    for name, one, other in zip(names, here, there, strict=True):
        assert [np.asarray(each).tobytes() for each in one] == [np.asarray(each).tobytes() for each in other], name


def test_the_guide_lists_the_dask_array_programs_that_are_tested() -> None:
    """The guide's table is made of these programs: to write it anew, put `table()` there."""
    assert table() in PAGE.read_text(encoding="utf-8")


def table() -> str:
    rows = ["| of | right | refused |", "|---|---|---|"]
    for kind, programs in PROGRAMS.items():
        names = [program.name for program in programs]
        right, refused = ([name for name in names if (name in REFUSED) is refuses] for refuses in (False, True))
        rows.append(f"| {kind} | {'; '.join(right)} | {'; '.join(refused)} |")
    n_right = len(BY_NAME) - len(REFUSED)
    rows += ["", f"{n_right} of {len(BY_NAME)} programs, each at four ways of cutting the arrays."]
    return "\n".join(rows)


def test_a_variance_of_an_array_without_axes_has_a_gradient() -> None:
    x = from_array(np.array(3.0))
    assert dagad.gradient(x**2 + x.var(), x).compute(scheduler="sync") == 6.0
