"""Is dagad a good guest? Other people's suites beside it: autograd's own, and Dask's of its local schedulers.

Run as ``python tests/foreign_suites.py``; it takes two minutes of processor time. Each suite runs without dagad, then
in other processes under each condition; the same tests have to pass, or it exits with 1:

=========  =====================================================================================
imported   dagad is imported before anything else
used       before every eighth test, derivatives are taken with dagad, nested, in threads, and one fails
busy       a thread takes such derivatives over and over, from the first test to the last
get        those of Dask's that call a ``get``: ``dagad_scheduler.get`` in place of ``dask.threaded.get``
=========  =====================================================================================

Dask ships its tests in its wheel. autograd does not: the source archive of the installed version is fetched from the
package registry with pip. ``--autograd DIR`` names a folder that has one unpacked.

The same file is the plugin of pytest that makes the conditions, in the processes that it starts.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CALLS_GET = ["test_threaded", "test_local", "test_callbacks"]
DASK = [*CALLS_GET, "test_delayed", "test_traceback"]
CONDITIONS = {"autograd": ["imported", "used", "busy"], "dask": ["imported", "used", "busy", "get"]}
SECONDS_PER_TEST, AT_A_TIME = 120, 2
EVERY, PAUSE = 8, 0.02  # tests, and seconds: or the suites would be over much later

# What `get` is known to do in another way than Dask's; these are left out.
OTHERWISE = {
    "test_interrupt[True]": "twenty tasks that wait for each other, in a pool of as many threads",
    "test_pool_kwarg": "the size of a pool that is given",
    "test_broken_callback": "callbacks",
    "test_finish_always_called": "callbacks",
    "test_nested_schedulers": "callbacks",
}


# --- the conditions, in a process of pytest's -------------------------------------------------------------------------

_outcomes: dict[str, str] = {}
_started = itertools.count()
_stop = threading.Event()
_busy: list[threading.Thread] = []


def pytest_configure(config: Any) -> None:
    """Make the condition."""
    condition = os.environ["DAGAD_CONDITION"]
    if condition != "without":
        import dagad  # noqa: F401  # being imported is the condition
    if condition == "get":
        _put_get_in_place()
    if condition == "busy":
        _busy.append(threading.Thread(target=_keep_busy, daemon=True))
        _busy[0].start()


def pytest_runtest_setup(item: Any) -> None:
    """Use dagad between tests."""
    if os.environ["DAGAD_CONDITION"] == "used" and next(_started) % EVERY == 0:
        use_dagad()


def pytest_runtest_logreport(report: Any) -> None:
    """Note what became of a test: what failed in any of its phases has failed."""
    if report.when == "call" or report.outcome != "passed":
        known = _outcomes.get(report.nodeid)
        _outcomes[report.nodeid] = "failed" if "failed" in (known, report.outcome) else report.outcome


def pytest_unconfigure(config: Any) -> None:
    """Write down what became of all tests."""
    _stop.set()
    for thread in _busy:
        thread.join()
    if os.environ["DAGAD_CONDITION"] == "without" and "dagad" in sys.modules:
        raise AssertionError("dagad was imported where it was not to be.")
    Path(os.environ["DAGAD_OUTCOMES"]).write_text(json.dumps(_outcomes), encoding="utf-8")


def use_dagad() -> None:
    """Take derivatives of most kinds, and fail once."""
    import autograd
    import autograd.numpy as np

    import dagad

    data = np.linspace(0.5, 1.5, 8)

    def loss(t: Any, scheduler: str = "sync") -> Any:
        def chunk(rows: Any, t: Any) -> Any:
            return np.sum(rows**0.5 * t**2) * autograd.grad(lambda s: s**3 * t)(1.0)

        return dagad.reduce_sum(chunk, data, t, grainsize=2, scheduler=scheduler)

    def fails(t: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: rows[9] * t, data, t, grainsize=2, scheduler="sync")

    exact = float(np.sum(data**0.5)) * 9.0
    found = [
        dagad.grad(loss)(1.0),
        autograd.grad(loss)(1.0),
        dagad.grad(loss)(1.0, scheduler="threads"),
        dagad.jvp(loss, 1.0, 1.0)[1],
        dagad.hvp(loss, 1.0, 1.0) / 2.0,
    ]
    if max(abs(float(each) - exact) for each in found) > 1e-9:
        raise AssertionError(f"dagad was wrong beside others: {found} for {exact}.")
    try:
        dagad.grad(fails)(1.0)
    except IndexError:
        return
    raise AssertionError("What was to fail did not.")


def _keep_busy() -> None:
    while not _stop.wait(PAUSE):
        use_dagad()


def _put_get_in_place() -> None:
    import dask.base
    import dask.threaded

    import dagad_scheduler

    own = dask.threaded.get
    vars(dask.threaded)["get"] = dagad_scheduler.get
    for name, get in dask.base.named_schedulers.items():
        if get is own:
            dask.base.named_schedulers[name] = dagad_scheduler.get


# --- the processes, and what they found -------------------------------------------------------------------------------


def fetch_autograd(folder: Path) -> Path:
    """Return the unpacked source archive of the installed autograd."""
    version = importlib.metadata.version("autograd")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "autograd"]
    subprocess.run([*command, "--dest", str(folder), f"autograd=={version}"], check=True)
    (archive,) = folder.glob("autograd-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / f"autograd-{version}"


def run(suite: str, condition: str, tests: list[str], folder: Path) -> dict[str, Any]:
    """Run a suite under a condition, in a process of its own: the outcomes by test, and the time it took."""
    found = folder / f"{suite}-{condition}.json"
    ini = folder / "pytest.ini"
    ini.write_text("[pytest]\n", encoding="utf-8")
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "DAGAD_CONDITION": condition,
        "DAGAD_OUTCOMES": str(found),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    options = ["-c", str(ini), f"--rootdir={Path(tests[0]).parent}", "-p", Path(__file__).stem]
    if condition == "get":
        tests = [path for path in tests if Path(path).stem in CALLS_GET]
        options += ["-k", " and ".join(f"not {name}" for name in OTHERWISE)]
    options += ["-p", "no:cacheprovider", "-q", "--tb=short", f"--timeout={SECONDS_PER_TEST}", "-W", "ignore"]
    began = time.perf_counter()
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    outcomes = json.loads(found.read_text(encoding="utf-8")) if found.exists() else {}
    named = {f"{Path(name.partition('::')[0]).name}::{name.partition('::')[2]}": it for name, it in outcomes.items()}
    return {"outcomes": named, "seconds": seconds, "output": done.stdout + done.stderr}


def suites(autograd: Path) -> dict[str, list[str]]:
    """Return the test files of each suite."""
    import dask

    home = Path(dask.__file__).parent / "tests"
    return {
        "autograd": sorted(str(path) for path in (autograd / "tests").glob("test_*.py")),
        "dask": [str(home / f"{name}.py") for name in DASK],
    }


def differences(stock: dict[str, str], other: dict[str, str], condition: str) -> list[str]:
    """Return the tests that pass in one of two runs only."""
    names = sorted(stock.keys() | other.keys())
    if condition == "get":
        names = [name for name in names if name.partition(".")[0] in CALLS_GET]
    changed = [name for name in names if (stock.get(name) == "passed") != (other.get(name) == "passed")]
    return [name for name in changed if condition != "get" or not any(left_out in name for left_out in OTHERWISE)]


def main() -> int:
    """Run everything, print a table, and return 1 where a test passes only without dagad, or only with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--autograd", type=Path, help="an unpacked source archive of autograd's")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(AT_A_TIME) as pool:
        folder = Path(temporary)
        tests = suites(given.autograd or fetch_autograd(folder))
        cases = [(suite, condition) for suite in tests for condition in ("without", *CONDITIONS[suite])]
        runs = dict(
            zip(cases, pool.map(lambda case: run(case[0], case[1], tests[case[0]], folder), cases), strict=True)
        )
    print(f"{'suite':10}{'condition':12}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    wrong = 0
    for (suite, condition), result in runs.items():
        counts = [sum(it == kind for it in result["outcomes"].values()) for kind in ("passed", "failed", "skipped")]
        print(f"{suite:10}{condition:12}{counts[0]:8}{counts[1]:8}{counts[2]:9}{result['seconds']:9.1f}")
        changed = differences(runs[suite, "without"]["outcomes"], result["outcomes"], condition)
        for name in itertools.islice(changed, 20):
            print(f"    {name}: {result['outcomes'].get(name, 'missing')}, not so without dagad")
        if changed or not result["outcomes"]:
            wrong += max(len(changed), 1)
            print(result["output"][-3000:])
    print("the same tests pass" if not wrong else f"{wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
