"""The page `/dagad` in a real browser: do its counts move while something is evaluated, and end full, without errors?

Needs chromium and its driver, and is skipped where there are none; what the page is made of is tested without.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from distributed import Client

import dagad
from support.browsers import NARROW, NEEDS_BROWSER, a_browser, look_like, too_wide_by
from support.clusters import a_cluster
from support.waiting import PATIENCE, until

pytestmark = [
    *NEEDS_BROWSER,
    pytest.mark.whole("what is shown: pages, bars, certificates, examinations of clusters"),
]

# The parts of bokeh are behind shadow roots.
TEXT_OF = """
const seek = (root) => {
  const found = root.querySelector('#' + arguments[0]);
  if (found) return found;
  for (const one of root.querySelectorAll('*')) {
    const inside = one.shadowRoot && seek(one.shadowRoot);
    if (inside) return inside;
  }
  return null;
};
const found = seek(document);
return found && found.innerText;
"""
N = 16
X = np.random.default_rng(0).standard_normal((20 * N, 3))
THETA = np.array([0.3, -0.7, 1.1])


def slow_likelihood(rows: Any, theta: Any) -> Any:
    time.sleep(0.3)
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))


def log_likelihood(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with a_cluster(2) as found:
        yield found


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    with a_browser(tmp_path / "profile") as found:
        yield found


def text(browser: Any, name: str) -> str:
    return str(browser.execute_script(TEXT_OF, name) or "")


def counts(browser: Any) -> list[int]:
    """Return how many values and gradients there are, each with how many there will be."""
    return [int(number) for number in re.findall(r"\d+", text(browser, "slots").partition(":")[2])]


def number(browser: Any, name: str) -> float:
    found = re.match(r"[\d.,e+]+", text(browser, name))
    return float(found[0].replace(",", "")) if found else 0.0


def test_a_browser_sees_the_slots_of_a_graph_fill(client: Client, browser: Any) -> None:
    browser.get(dagad.dashboard(client))
    until(lambda: "evaluations / s" in text(browser, "rate"))
    evaluation = dagad.evaluate(
        lambda theta: dagad.reduce_sum(slow_likelihood, X, theta, grainsize=20, scheduler=client), THETA
    )
    until(lambda: counts(browser)[:1] > [0])
    first = counts(browser)
    assert first[:2] < [N, N]
    until(lambda: counts(browser) > first)
    evaluation.gradient(PATIENCE)
    until(lambda: counts(browser) == [N, N, N, N])
    assert text(browser, "slots").startswith("slow-likelihood")


def test_a_browser_that_is_dark_and_narrow_shows_a_page_of_its_kind(client: Client, browser: Any) -> None:
    look_like(browser, NARROW, "dark")
    browser.get(dagad.dashboard(client))
    until(lambda: "evaluations / s" in text(browser, "rate"))
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", ground)[:3])) < 64
    assert too_wide_by(browser) <= 0


def test_a_browser_sees_a_hot_loop_go_on(client: Client, browser: Any) -> None:
    shards = dagad.shard(X, grainsize=20, scheduler=client)
    evaluate = dagad.value_and_grad(lambda theta: dagad.reduce_sum(log_likelihood, shards, theta))
    browser.get(dagad.dashboard(client))

    def is_seen(more_than: float) -> bool:
        for _ in range(20):
            evaluate(THETA)
        return number(browser, "evaluations") > more_than and counts(browser) == [N, N, N, N]

    until(lambda: is_seen(30.0))
    first = number(browser, "evaluations"), number(browser, "values")
    until(lambda: is_seen(first[0]))
    assert number(browser, "values") > first[1]
    assert number(browser, "rate") > 0.0
    assert "ms" in text(browser, "latency")
    assert text(browser, "slots").startswith("log-likelihood")
