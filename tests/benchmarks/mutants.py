"""Do the tests notice a mistake? Draws small changes of dagad's source, and runs the tests that run the changed line.

python tests/benchmarks/mutants.py lines FOLDER [--whole]   which tests run which lines; takes twice the tests' time
python tests/benchmarks/mutants.py try FOLDER [--whole]     writes FOLDER/quick.jsonl or whole.jsonl, a line for each
python tests/benchmarks/mutants.py report FOLDER            scores, and survivors with what FOLDER/verdicts.json says

With `--again` the survivors are tried once more, by all tests that run their lines and not by the quickest 400 only.
A mutant is found if a test fails, or hangs, that passes without it. What only workers of a cluster run is not seen by
the first command; such lines, and those that an import runs, are tried with tests of the same room.
`verdicts.json` says of survivors by name what a person has found: "equivalent", "not a number" (text, speed, memory,
an error's words), or "number". The score is that of those which change a number,
and only they are tried again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

from mutants_made import Mutant, drawn

ROOT = Path(__file__).resolve().parents[2]
FIRST = 25, 10.0  # tests and seconds of a first try, of those that take least
SECOND = 400, 90.0
ALL = sys.maxsize, float("inf")
LINT = ("tests/test_modules.py", "tests/test_words.py", "tests/test_private.py")
OF_A_ROOM = {
    "_kernels": ("kernels", "matrix", "api"),
    "_graphs": ("graphs", "executors", "matrix"),
    "_sources": ("sources", "matrix", "executors"),
    "_executors": ("executors", "matrix", "scheduler"),
    "_tracing": ("tracing", "rules", "engines", "matrix", "api"),
    "_rules": ("rules", "tracing", "matrix", "api"),
}


class Tests:
    """Which tests run a line, and how long each takes."""

    def __init__(self, folder: Path) -> None:
        from coverage import CoverageData  # not needed to report

        self.seconds: dict[str, float] = {}
        self.by_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        for path in folder.glob("*.json"):
            self.seconds |= json.loads(path.read_text())
        for path in folder.glob("*.coverage"):
            data = CoverageData(str(path))
            data.read()
            for file in data.measured_files():
                name = str(Path(file).relative_to(ROOT))
                for line, tests in data.contexts_by_lineno(file).items():
                    self.by_line[name, line] |= {test for test in tests if test in self.seconds}

    def running(self, mutant: Mutant) -> list[str]:
        """Return the tests of a mutant, those of few seconds first, and one of each function before others of it."""
        lines = range(mutant.line, mutant.end_line + 1)
        found = set().union(*(self.by_line.get((mutant.file, line), set()) for line in lines))
        if not found:
            rooms = tuple(f"tests/{room}/" for room in OF_A_ROOM[Path(mutant.file).parts[1]])
            found = {test for test in self.seconds if test.startswith(rooms)}
        found = {test for test in found if test.startswith("tests/") and not test.startswith(LINT)}
        seen: Counter[str] = Counter()
        ranked = []
        for test in sorted(found, key=lambda test: (self.seconds[test], test)):
            function = test.partition("[")[0]
            ranked.append((seen[function], self.seconds[test], test))
            seen[function] += 1
        return [test for _, _, test in sorted(ranked)]


def within(tests: list[str], seconds: dict[str, float], limits: tuple[int, float]) -> list[str]:
    count, budget = limits
    taken: list[str] = []
    for test in tests:
        budget -= seconds[test]
        if len(taken) == count or (budget < 0 and taken):
            break
        taken.append(test)
    return taken


def copy_of(root: Path, home: Path) -> Path:
    """Copy what git knows of a working tree."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    subprocess.run(["cp", "--parents", "-P", *filter(None, names.split("\0")), str(home)], cwd=root, check=True)
    return home


def pytest(home: Path, tests: list[str], timeout: float, *options: str) -> str | None:
    """Run tests on a copy; return what failed, None where all passed."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
        names.write("\n".join(tests))
        names.flush()
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--tb=no",
            "--no-header",
        ]
        with subprocess.Popen(
            [*command, *options, f"@{names.name}"],
            cwd=home,
            env=os.environ | {"PYTHONPATH": f"{home}:{home / 'scheduler'}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                return "hangs"
    if process.returncode == 0:
        return None
    failed = [line for line in out.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else f"exit {process.returncode}: {out[-300:]}"


TIMES = itertools.count(int(time.time()) - 1_000_000)  # one second for each file that is written


def write(path: Path, source: str) -> None:
    """Write a module, with a time of its own: by whole seconds Python knows whether it has its bytecode already."""
    path.write_text(source, encoding="utf-8")
    os.utime(path, (next(TIMES),) * 2)


def try_one(mutant: Mutant, home: Path, tests: Tests, options: list[str], is_thorough: bool) -> dict[str, Any]:
    path = home / mutant.file
    source = path.read_text(encoding="utf-8")
    write(path, mutant.applied(source))
    start, ran, failed = time.perf_counter(), 0, None
    try:
        ranked = tests.running(mutant)
        for limits in (FIRST, SECOND, ALL) if is_thorough else (FIRST, SECOND):
            chosen = within(ranked[ran:], tests.seconds, limits)
            if not chosen or failed:
                break
            ran += len(chosen)
            expected = sum(tests.seconds[test] for test in chosen)
            failed = pytest(home, chosen, 90.0 + 8.0 * expected, *options)
    finally:
        write(path, source)
    took = round(time.perf_counter() - start, 1)
    return {"name": mutant.name, "text": mutant.text, "found": failed, "tests": ran, "of": len(ranked), "seconds": took}


def results(path: Path) -> dict[str, Any]:
    """Return what was found of each mutant, the last time that it was tried."""
    return {one["name"]: one for one in map(json.loads, path.open())} if path.exists() else {}


def verdicts(folder: Path) -> dict[str, str]:
    path = folder / "verdicts.json"
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def try_all(folder: Path, n: int, seed: int, n_jobs: int, tier: str, again: bool) -> None:
    path = folder / f"{tier}.jsonl"
    done, harmless = results(path), {name for name, verdict in verdicts(folder).items() if verdict != "number"}
    if again:
        done = {name: one for name, one in done.items() if one["found"] or name in harmless}
    mutants = [mutant for mutant in drawn(ROOT, n, seed) if mutant.name not in done]
    if tier == "whole":  # what the quick tier finds, the whole one does
        left = {name for name, one in results(folder / "quick.jsonl").items() if not one["found"]} - harmless
        mutants = [mutant for mutant in mutants if mutant.name in left]
    tests, options = Tests(folder / tier), ["--whole"] if tier == "whole" else []
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(n_jobs) as pool, path.open("a") as file:
        homes: Queue[Path] = Queue()
        for number in range(n_jobs):
            (Path(scratch) / str(number)).mkdir()
            homes.put(copy_of(ROOT, Path(scratch) / str(number)))

        def run(mutant: Mutant) -> None:
            home = homes.get()
            try:
                found = try_one(mutant, home, tests, options, again)
            finally:
                homes.put(home)
            file.write(json.dumps(found) + "\n")
            file.flush()
            print(f"{found['seconds']:6} s  {found['name']} -> {found['text'][:60]!r}: {found['found']}", flush=True)

        list(pool.map(run, mutants))


def report(folder: Path) -> None:
    said = verdicts(folder)
    quick, whole = results(folder / "quick.jsonl"), results(folder / "whole.jsonl")
    late = {name for name, one in whole.items() if one["found"]}
    for tier, also in (("quick", set[str]()), ("whole", late)):
        found = {name for name, one in quick.items() if one["found"] or name in also}
        survivors = Counter(said.get(name, "not looked at") for name in quick.keys() - found)
        numbers = survivors["number"] + survivors["not looked at"]
        print(f"{tier}: {len(found)} of {len(quick)} found; survivors {dict(survivors)}")
        print(f"  of those that change a number: {len(found) / (len(found) + numbers):.1%}")
    for name, one in quick.items():
        if not one["found"]:
            print(f"{said.get(name, '?'):14} {'late' if name in late else 'never':6} {name} -> {one['text'][:100]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["lines", "try", "report"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--whole", action="store_const", dest="tier", const="whole", default="quick")
    parser.add_argument("--n", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--again", action="store_true", help="try survivors again, by all tests that run their lines")
    parser.add_argument("pytest", nargs="*", help="for `lines`: what to give pytest")
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    if asked.step == "lines":
        (folder / asked.tier).mkdir(parents=True, exist_ok=True)
        paths = [str(Path(__file__).parent), str(ROOT), str(ROOT / "scheduler"), os.environ.get("PYTHONPATH", "")]
        env = os.environ | {"DAGAD_MUTANTS_LINES": str(folder / asked.tier), "PYTHONPATH": os.pathsep.join(paths)}
        options = ["--whole"] if asked.tier == "whole" else []
        command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants_lines", *options, *asked.pytest]
        subprocess.run(command, cwd=ROOT, env=env)
    elif asked.step == "try":
        try_all(folder, asked.n, asked.seed, asked.jobs, asked.tier, asked.again)
    else:
        report(folder)


if __name__ == "__main__":
    main()
