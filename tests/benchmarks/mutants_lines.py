"""A plugin of pytest for `mutants.py`: which lines of dagad each test runs in this process, and how long it takes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

FOLDER = Path(os.environ["DAGAD_MUTANTS_LINES"])


class Lines:
    def __init__(self, root: Path) -> None:
        self.seconds: dict[str, float] = {}
        data = str(FOLDER / f"{os.getpid()}.coverage")
        self.coverage: Any = coverage.Coverage(
            data_file=data, config_file=False, source=[str(root / "dagad")], concurrency="thread", messages=False
        )
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        if sys.gettrace() is None:  # a test has taken the place of the tracer, as debuggers do
            self.coverage.stop()
            self.coverage.start()
        self.coverage.switch_context(item.nodeid)
        start = time.perf_counter()
        result = yield
        self.seconds[item.nodeid] = time.perf_counter() - start
        self.coverage.switch_context("")
        return result

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        (FOLDER / f"{os.getpid()}.json").write_text(json.dumps(self.seconds))


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", 0):
        config.pluginmanager.register(Lines(config.rootpath))
