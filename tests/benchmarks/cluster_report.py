"""What the benchmarks on a cluster print: a table for each section, ratios to one competitor, bars beside the rows."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

import report
from report import Row, Verdict, console
from rich.table import Table
from workloads import Limit


@dataclass(frozen=True, slots=True)
class Within:
    """At most `factor` times the row of `reference` with as many chunks (else: its only one), plus `plus`."""

    text: str
    reference: str
    factor: float
    plus: float = 0.0


@dataclass(frozen=True, slots=True)
class Section:
    """A table. `reference`: the family that all rows are compared with; `bars`: what rows of `judged` are held to."""

    name: str
    title: str
    reference: str
    rows: list[Row]
    bars: tuple[Within | Limit, ...] = ()
    judged: str = "dagad"
    more: dict[Row, list[Verdict]] = field(default_factory=dict)


def row_of(family: str, chunks: int | None, what: str, values: list[float]) -> Row:
    """Minimum and median of some samples."""
    return Row(family, chunks, what, min(values), statistics.median(values), len(values))


def milliseconds(times: list[tuple[float, ...]], k: int = 0) -> list[float]:
    """One of the stamps of each call."""
    return [1e3 * stamps[k] for stamps in times]


def at_most(text: str, row: Row, least: float, median: float) -> Verdict:
    """Whether a row stays below two figures."""
    return Verdict(text, row.label, row.least <= least, row.median <= median)


def verdicts(section: Section, row: Row) -> list[Verdict]:
    """What one row is held against."""
    found = list(section.more.get(row, ()))
    for bar in section.bars if row.family == section.judged else ():
        if isinstance(bar, Limit):
            if bar.row == row.what:
                found.append(at_most(bar.text, row, bar.least, bar.median))
        elif other := report.counterpart(row, section.rows, bar.reference):
            limits = (bar.factor * figure + bar.plus for figure in (other.least, other.median))
            found.append(at_most(bar.text, row, *limits))
    return found


def print_section(section: Section) -> dict[str, Any]:
    """Print the table; gives the figures and verdicts back, for JSON."""
    table = Table(title=f"{section.name}  {section.title}", title_justify="left", title_style="bold")
    table.add_column("competitor")
    for name in ("figure", "min", "median", "x min", "x median", "n"):
        table.add_column(name, justify="right")
    table.add_column(f"bar (x: against {section.reference})")
    judged = {row: verdicts(section, row) for row in section.rows}
    for row, found in judged.items():
        cells = report.figures(row, section.rows, section.reference)
        table.add_row(row.label, row.what, *cells, "; ".join(map(str, found)))
    console.print(table)
    console.print()
    return report.recorded(section.rows, [verdict for found in judged.values() for verdict in found])
