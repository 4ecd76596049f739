"""Programs of xarray's: do they have the derivatives that differences of them say, and is the rest refused?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dask.base import compute as dask_compute

import dagad
from support.xarray_programs import field, programs, total

compute: Any = dask_compute  # Dask has few types
PROGRAMS = programs()
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "xarray_operations.md"
RANDOM = np.random.default_rng(3)
AT, DIRECTION = 0.5 * RANDOM.normal(size=(4, 12)), RANDOM.normal(size=(4, 12))
# What computes by compiled code, or by a loop over entries, that no derivative can be followed through.
REFUSED = (
    "weighted(...).quantile",
    "resample(...).interpolate",
    "interpolate_na",
    "interp, linear",
    "interp, cubic",
    "interp_like",
    "polyfit",
    "curvefit",
)


def slope(program: Any, step: float = 1e-4) -> float:
    """Return the derivative of a program along a direction, by differences of fourth order, in memory."""

    def at(k: float) -> float:
        return float(total(program(field(AT + k * DIRECTION))))

    return (8.0 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12.0 * step)


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("chunks", [(2, 5), (4, 3)])
@pytest.mark.parametrize("kind", PROGRAMS)
def test_gradients_of_xarray_programs_are_what_differences_say(
    kind: str, chunks: tuple[int, int], one_in: Callable[[int, str], bool]
) -> None:
    for name, program in PROGRAMS[kind].items():
        if not one_in(3, name):
            continue
        x = field(AT).chunk(dict(zip(("lat", "date"), chunks, strict=True)))
        if name in REFUSED:
            with pytest.raises(dagad.NotDifferentiableError, match="makes an ordinary array"):
                compute(dagad.gradient(total(program(x)), x), scheduler="sync")
            continue
        value, gradient = compute(*dagad.value_and_gradient(total(program(x)), x), scheduler="sync")
        assert float(value) == pytest.approx(float(total(program(field(AT)))), rel=1e-12), name
        assert gradient.dims == x.dims, name
        assert float(np.sum(gradient.values * DIRECTION)) == pytest.approx(slope(program), rel=1e-7, abs=1e-7), name


def test_a_rolling_standard_deviation_is_the_root_of_a_variance_without_its_edges() -> None:
    """At the edges xarray takes a root of 0 and leaves it out: the slope there is nan, as the page says."""

    def spread(x: Any) -> Any:
        return x.rolling(date=4).var().dropna("date") ** 0.5

    x = field(AT).chunk(date=5)
    edges, found = dagad.gradient(total(x.rolling(date=4).std()), x), dagad.gradient(total(spread(x)), x)
    with np.errstate(all="ignore"):  # numpy would warn
        edges, found = compute(edges, found, scheduler="sync")
    assert np.isnan(edges.values).any()
    assert float(np.sum(found.values * DIRECTION)) == pytest.approx(slope(spread), rel=1e-7)


def test_the_page_of_xarray_operations_lists_what_is_tested() -> None:
    """The page's table is made of these programs: to write it anew, put `table()` there."""
    assert table() in PAGE.read_text(encoding="utf-8")


def shown(name: str) -> str:
    """Return a program's name with what is code in it as code."""
    parts = [part if " " in part or part in IN_WORDS else f"`{part}`" for part in name.split(", ")]
    return ", ".join(parts)


IN_WORDS = "allowed anomalies comparisons cubic linear nearest parallelized points reflect".split()


def table() -> str:
    rows = ["| of | right | refused |", "|---|---|---|"]
    for kind, named in PROGRAMS.items():
        right, refused = ([shown(name) for name in named if (name in REFUSED) is refuses] for refuses in (False, True))
        rows.append(f"| {kind} | {'; '.join(right)} | {'; '.join(refused)} |")
    n_all = sum(map(len, PROGRAMS.values()))
    rows += ["", f"{n_all - len(REFUSED)} of {n_all} programs."]
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
