"""Two tiers of one suite: ``pytest`` runs the quick one, ``pytest --whole`` all, ``pytest --rest`` the difference.

The quick tier leaves out tests marked ``whole``, whose mark says why; of those marked ``each_value`` what only combines
values of parameters that others have, of those marked ``sampled`` all but some; of those that run on one scheduler
after the other, each case on all but one; and files that import a package which only the extra ``test-all`` installs,
on all machines alike. The whole tier leaves out what needs a package that is not here.
What a tier left out stands in its last lines, counted by reason; with ``--until`` this may be for lack of time.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import re
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support import examples

SUPPORT = Path(__file__).parent
# Packages of the extra `test-all` that are not in `test`, by the names that one imports.
HEAVY = frozenset(
    "arviz blackjax bokeh cryptography dask_jobqueue graphviz IPython jax jupyter_client "
    "matplotlib myst_nb nbclient nbformat nutpie numpydoc optax polars prometheus_client pyarrow pydata_sphinx_theme "
    "pymc pytensor selenium sphinx sphinx_copybutton sphinx_design statsmodels torch".split()
)
HOMES = {
    name: SUPPORT.parents[1] / folder
    for name, folder in (("support", "tests"), ("dagad", ""), ("dagad_scheduler", "scheduler"))
}
IMPORT = re.compile(r"^(?:(?:try|with .*):\n    )?(?:import|from) ([\w.]+)(?: import ([\w, ]+))?", re.MULTILINE)
TEST = re.compile(r"^def test_", re.MULTILINE)
NEEDS_MORE = "they need packages that only the extra `test-all` has"
SAMPLED = "parameters of one test that take long: some of them are in this tier, with as many values as can be"
SCHEDULERS = ("sync", "threads", "cluster")  # those of the fixture `scheduler`
ON_ONE = "schedulers: each case of a test is on one of them in this tier, and each of them in about as many cases"
NO_TIME = "no time was left for them: this machine is slow"
DO_LESS = {"rounds", "one_in"}  # fixtures, see conftest.py
MARKS = (
    "whole(reason): only the whole tier runs it, for this reason",
    "each_value(reason): the quick tier runs each value of each parameter, not all combinations",
    "sampled(n): the quick tier runs one of each n parameters, and as many of their values as it can",
    "needs(*packages): runs where these packages are, in the whole tier",
)


@functools.cache
def heavy_imports(path: Path) -> frozenset[str]:
    """Return the heavy packages that a file imports, by itself or by way of our own modules."""
    found = set()
    for module, names in IMPORT.findall(path.read_text(encoding="utf-8")):
        package = module.partition(".")[0]
        if package in HEAVY:
            found.add(package)
        elif module.startswith("distributed.dashboard"):
            found.add("bokeh")
        elif package in HOMES:
            for name in ("", *(name.split(" as ")[0].strip() for name in names.split(","))):
                file = HOMES[package].joinpath(*module.split("."), name).with_suffix(".py")
                if file.exists():
                    found |= heavy_imports(file)
    return frozenset(found)


def optional(package: str) -> Any:
    """Return a package, or None where it is not installed; tests that use it are marked ``needs``."""
    return importlib.import_module(package) if find_spec(package) else None


def missing(packages: frozenset[str]) -> list[str]:
    return sorted(name for name in packages if find_spec(name) is None)


def packages_of(item: pytest.Item) -> frozenset[str]:
    """Return the packages of `test-all` that a test needs."""
    marked = frozenset(name for mark in item.iter_markers("needs") for name in mark.args)
    return marked | (heavy_imports(item.path) if item.path.suffix == ".py" else frozenset())


def only_whole(items: list[pytest.Item]) -> dict[pytest.Item, str]:
    """Return the tests that are not in the quick tier, each with the reason."""
    found = {}
    for item in items:
        if packages_of(item):
            found[item] = NEEDS_MORE
        elif mark := item.get_closest_marker("whole"):
            found[item] = mark.args[0]
    for group, (why,) in marked("each_value", items, found):
        covering = {item for item, n_new in spread_out(group, by_chance=False) if n_new}
        found |= {item: why for item in group if item not in covering}
    for group, (n,) in marked("sampled", items, found):
        some = {item for item, _ in itertools.islice(spread_out(group, by_chance=True), math.ceil(len(group) / n))}
        found |= {item: SAMPLED for item in group if item not in some}
    return found | {item: ON_ONE for item in on_other_schedulers([item for item in items if item not in found])}


def on_other_schedulers(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield the tests that others repeat on another scheduler; of each case that stays which is used least so far.

    Of those used equally often the name of a test decides as if by chance.
    """
    tests: dict[Any, dict[Any, list[tuple[str, pytest.Item]]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        spec = getattr(item, "callspec", None)
        if spec and (scheduler := spec.params.get("scheduler")) in SCHEDULERS:
            case = frozenset(one for one in values_of(item) if one[0] != "scheduler")
            tests[item.path, getattr(item, "originalname", "")][case].append((scheduler, item))
    for cases in tests.values():
        used = Counter[str]()
        for repeated in sorted(cases.values(), key=len):
            kept = min(repeated, key=lambda one: (used[one[0]], zlib.crc32(one[1].nodeid.encode())))
            used[kept[0]] += 1
            yield from (item for _, item in repeated if item is not kept[1])


def marked(
    name: str, items: list[pytest.Item], out: Container[pytest.Item]
) -> Iterator[tuple[list[pytest.Item], tuple[Any, ...]]]:
    """Yield, for each test function that has a mark, the tests that are not out yet, and what the mark says."""
    groups: dict[Any, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item not in out and item.get_closest_marker(name):
            groups[item.path, getattr(item, "originalname", "")].append(item)
    for group in groups.values():
        mark = group[0].get_closest_marker(name)
        yield group, mark.args if mark else ()


def spread_out(group: list[pytest.Item], by_chance: bool) -> Iterator[tuple[pytest.Item, int]]:
    """Yield the tests of a function, and how many new values of parameters each brings: the one with most comes first.

    Of those that bring equally many it is the first, or the one of which their names decide as if by chance: where some
    values stay out, none would run on the last scheduler. One that has no parameters brings something new.
    """
    left, seen = list(group), set[tuple[str, int]]()
    values = {item: values_of(item) for item in group}
    chance = {item: zlib.crc32(item.nodeid.encode()) if by_chance else 0 for item in group}
    while left:
        best = max(left, key=lambda item: (len(values[item] - seen), chance[item]))
        n_new = len(values[best] - seen) if values[best] else 1
        seen |= values[best]
        left.remove(best)
        yield best, n_new


def values_of(item: pytest.Item) -> set[tuple[str, int]]:
    spec = getattr(item, "callspec", None)
    return {(name, id(value)) for name, value in spec.params.items()} if spec else set()


def does_less(item: pytest.Item) -> bool:
    """Return whether the quick tier does fewer rounds of a test, tries fewer examples, or goes through fewer cases."""
    has_examples = item.get_closest_marker("hypothesis") is not None
    return has_examples or not DO_LESS.isdisjoint(getattr(item, "fixturenames", ()))


class Tier:
    """Selects the tests of a tier, `quick`, `whole` or `rest`, and counts those that it leaves out, by reason."""

    def __init__(self, name: str, until: float = math.inf) -> None:
        self.name = name
        self.until = until  # as `time.time()` says it: one moment for all processes
        self.left_out: Counter[str] = Counter()

    def reason_for(self, packages: frozenset[str]) -> str | None:
        """Return why what needs these packages is left out."""
        if packages and self.name == "quick":
            return NEEDS_MORE
        absent = missing(packages)
        return f"not installed here: {', '.join(absent)}" if absent else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if collection_path.suffix != ".py" or not collection_path.is_file():
            return None
        reason = self.reason_for(heavy_imports(collection_path))
        if reason is None:
            return None
        self.left_out[reason] += max(1, len(TEST.findall(collection_path.read_text(encoding="utf-8"))))
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        later = only_whole(items)
        out = {item: reason for item in items if (reason := self.reason_for(packages_of(item)))}
        if self.name == "quick":
            out |= later
        if self.name == "rest":
            out |= {item: "they are in the quick tier" for item in items if item not in later and not does_less(item)}
        if out:
            self.left_out.update(out.values())
            config.hook.pytest_deselected(items=list(out))
            items[:] = [item for item in items if item not in out]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool | None:
        if time.time() < self.until:
            return None
        self.left_out[NO_TIME] += 1
        return True

    # With pytest-xdist the workers collect, each of them all, and the controller prints.

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["left_out"] = dict(self.left_out)
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.left_out[NO_TIME]:
            session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        found = Counter[str](getattr(node, "workeroutput", {}).get("left_out", {}))
        late = found.pop(NO_TIME, 0)  # each process has left out others
        self.left_out |= found
        if late:
            self.left_out[NO_TIME] += late

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.left_out:
            whole = " (`pytest --whole` runs them)" if self.name == "quick" else ""
            terminalreporter.write_line(f"The {self.name} tier left out {self.left_out.total():,} tests{whole}:")
            for reason, n in self.left_out.most_common():
                terminalreporter.write_line(f"{n:8,} {reason}")


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole", dest="tier", action="store_const", const="whole", default="quick", help="run everything"
    )
    parser.addoption(
        "--rest", dest="tier", action="store_const", const="rest", help="run what the quick tier leaves out"
    )
    parser.addoption(
        "--until", type=float, default=math.inf, help="begin no test later than at this time of `date +%%s`"
    )


def configure(config: pytest.Config) -> None:
    for line in MARKS:
        config.addinivalue_line("markers", line)
    examples.configure(config.getoption("tier"))
    config.pluginmanager.register(Tier(config.getoption("tier"), config.getoption("until")), "tiers")
