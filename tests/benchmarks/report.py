"""What is printed: the machine, a table for each workload with the bars beside it, and who met them.

And what small benchmarks print: the shortest rounds of several ways.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from competitors import AUTO
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_info
from workloads import Bar, Limit, Workload

PACKAGES = ("numpy", "scipy", "autograd", "dask", "distributed")
GIB = 2**30

console = Console(width=132, highlight=False)


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one competitor: smallest and median of all samples. `chunks`: None for a fit over several."""

    family: str
    chunks: int | None
    what: str
    least: float
    median: float
    n: int

    @property
    def label(self) -> str:
        """Family and chunks, as printed."""
        chunks = {None: "", AUTO: " auto"}.get(self.chunks, f" {self.chunks}")
        return f"{self.family}{chunks}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bar, one of dagad's rows, and whether it is met by the minima and by the medians."""

    text: str
    row: str
    by_least: bool
    by_median: bool

    def __str__(self) -> str:
        words = {(True, True): "met", (True, False): "met by min only", (False, True): "met by median only"}
        return f"{self.text}: {words.get((self.by_least, self.by_median), 'not met')}"


def shortest(
    ways: Mapping[str, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Return the seconds of the shortest round of each of several ways, which take turns; a first round is for all."""
    found = dict.fromkeys(ways, float("inf"))
    for way in ways.values():
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            began = clock()
            way()
            found[name] = min(found[name], clock() - began)
    return found


def machine() -> dict[str, str]:
    """What the figures depend on."""
    facts = {
        "cpu": f"{len(os.sched_getaffinity(0))} x {cpu_model()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / GIB:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "blas": f"{blas()}, held at 1 thread",
    }
    settings = {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}
    return facts | ({"allocator": str(settings)} if settings else {})


def blas() -> str:
    """Name and version of the BLAS that numpy has loaded."""
    np.ones((2, 2)) @ np.ones((2, 2))
    return "; ".join(sorted({f"{b['internal_api']} {b['version']}" for b in threadpool_info()}))


def cpu_model() -> str:
    """The name of the processor."""
    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def print_machine(reference: str = "plain autograd") -> None:
    """The header."""
    console.print(" · ".join(f"{name} {value}" for name, value in machine().items()))
    console.print(f"min and median of all calls; x: times as fast as {reference}, by minima and by medians\n")


def print_workload(work: Workload, rows: list[Row]) -> list[Verdict]:
    """The table of one workload; gives the verdicts back."""
    table = Table(title=f"{work.name}  {work.title}", title_justify="left", title_style="bold")
    table.add_column("competitor")
    for name in ("figure", "min", "median", "x min", "x median", "calls"):
        table.add_column(name, justify="right")
    table.add_column("bar")
    verdicts: list[Verdict] = []
    for row in rows:
        judged = [] if row.family != "dagad" else judgements(work, row, rows)
        verdicts += judged
        table.add_row(row.label, row.what, *figures(row, rows), "; ".join(map(str, judged)))
    console.print(table)
    console.print()
    return verdicts


def figures(row: Row, rows: list[Row], reference: str = "plain") -> tuple[str, ...]:
    """Minimum, median, both ratios to a family of competitors, and how many calls they come from."""
    other = counterpart(row, rows, reference)
    ratios = ("", "")
    if other and row.least > 0:
        ratios = (f"{other.least / row.least:.2f}", f"{other.median / row.median:.2f}")
    return f"{row.least:.3f}", f"{row.median:.3f}", *ratios, str(row.n)


def counterpart(row: Row, rows: list[Row], family: str) -> Row | None:
    """The row of a family with the same figure, and with the same number of chunks if it has one."""
    found = [r for r in rows if r.family == family and r.what == row.what]
    return next((r for r in found if r.chunks == row.chunks), found[0] if found else None)


def judgements(work: Workload, row: Row, rows: list[Row]) -> list[Verdict]:
    """The bars that one of dagad's rows is held against."""
    verdicts = []
    for bar in work.bars:
        if isinstance(bar, Limit) and bar.row == row.what:
            verdicts.append(Verdict(bar.text, row.label, row.least <= bar.least, row.median <= bar.median))
        elif isinstance(bar, Bar) and (row.chunks == AUTO or not bar.auto_only):
            verdicts += against_reference(bar, row, rows)
    return verdicts


def against_reference(bar: Bar, row: Row, rows: list[Row]) -> list[Verdict]:
    """The verdict against the best row of the reference; none if that was not run."""
    references = [r for r in rows if r.family == bar.reference and r.what == row.what]
    if not references:
        return []
    least, median = min(r.least for r in references), min(r.median for r in references)
    return [Verdict(bar.text, row.label, least / row.least >= bar.least, median / row.median >= bar.least)]


def recorded(rows: list[Row], verdicts: list[Verdict]) -> dict[str, Any]:
    """The figures of one workload, for JSON."""
    return {"rows": [asdict(r) for r in rows], "verdicts": [asdict(v) for v in verdicts]}


def print_summary(workloads: dict[str, Any]) -> None:
    """For each bar: which of dagad's rows met it, by minima and medians both."""
    table = Table(title="bars", title_justify="left", title_style="bold")
    for name in ("workload", "bar", "met by", "not met by"):
        table.add_column(name)
    for name, record in workloads.items():
        for text in dict.fromkeys(v["text"] for v in record["verdicts"]):
            same = [v for v in record["verdicts"] if v["text"] == text]
            good = [v["row"] for v in same if v["by_least"] and v["by_median"]]
            table.add_row(name, text, ", ".join(good), ", ".join(v["row"] for v in same if v["row"] not in good))
    if table.row_count:
        console.print(table)
