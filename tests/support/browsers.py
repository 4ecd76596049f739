"""A browser without a window, for tests of pages: chromium, led by its driver; its console must stay without errors."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
NEEDS_BROWSER = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="there is no chromium with its driver"),
    pytest.mark.needs("selenium"),
]
# Nothing is fetched from elsewhere: no updates, no accounts, no connection by another protocol.
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync"""
WIDE, NARROW = 1400, 400  # a desk, and a phone
HEIGHT = 900


@contextlib.contextmanager
def a_browser(profile: Path) -> Iterator[Any]:
    """Yield a browser that keeps what it keeps below a directory; what a page's scripts complain of fails the test."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS.split(), f"--window-size={WIDE},{HEIGHT}", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = Chrome(options=options, service=Service(str(DRIVER)))
    try:
        yield found
        log: Any = found.get_log
        assert [entry for entry in log("browser") if entry["level"] == "SEVERE"] == []
    finally:
        found.quit()


def look_like(browser: Any, width: int, scheme: str) -> None:
    """Have a browser be as wide as a desk or a phone, and its owner prefer light or dark."""
    command = browser.execute_cdp_cmd
    command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    command("Emulation.setDeviceMetricsOverride", size)


def too_wide_by(browser: Any) -> int:
    """Return by how much the page that is shown goes beyond the window."""
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    return int(browser.execute_script(wide))
