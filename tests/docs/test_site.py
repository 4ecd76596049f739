"""The site: is it built without a warning, does every link lead somewhere, has every public name a page?"""

from __future__ import annotations

import importlib
import os
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import dagad
from support import built_site
from support.browsers import NARROW, NEEDS_BROWSER, WIDE, a_browser, look_like, too_wide_by
from support.source_files import FILES
from support.waiting import until

NO_DOORS = "dagad.doctor", "dagad.interop"  # a command, and a folder of modules
pytestmark = [
    pytest.mark.whole("what is shown: pages, bars, certificates, examinations of clusters"),
    pytest.mark.needs("sphinx", "myst_nb", "numpydoc", "pydata_sphinx_theme", "sphinx_design", "sphinx_copybutton"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    of_run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # one for all processes
    found, said = built_site.built_once(of_run / "built-site")
    assert "build succeeded.\n" in said, said  # it would count warnings
    return found


def test_each_link_of_the_site_leads_somewhere(site: Path) -> None:
    assert built_site.dead_links(site) == []


def test_pages_need_nothing_from_elsewhere(site: Path) -> None:
    assert built_site.loaded_from_elsewhere(site) == set()


def test_each_link_each_picture_and_what_folds_out_have_words(site: Path) -> None:
    found = {path.name: built_site.page(path).without_words for path in built_site.pages_of(site)}
    assert {name: silent for name, silent in found.items() if silent} == {}


DOORS = [name for name in FILES if re.fullmatch(r"dagad(\.[a-z]\w*)?", name) and name not in NO_DOORS]


def public_names(door: str) -> set[str]:
    module = importlib.import_module(door)
    errors = {name for name in vars(module) if name.endswith(("Error", "Warning"))} if module is dagad else set()
    return {f"{door}.{name}" for name in {*module.__all__} | errors} - {*DOORS}


@pytest.mark.parametrize("door", DOORS)
def test_each_public_name_has_a_page(site: Path, door: str) -> None:
    anchors = {one for path in (site / "reference" / "api").glob("*.html") for one in built_site.page(path).anchors}
    assert public_names(door) - anchors == set()


def test_each_neighbour_has_a_page(site: Path) -> None:
    text = (site / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    neighbours = [name for name in FILES if re.fullmatch(r"dagad\.interop\.[a-z]\w*", name)]
    assert [name for name in neighbours if f"{name}." not in text] == []


def test_the_list_of_public_names_shows_no_backslash_of_its_source(site: Path) -> None:
    text = (site / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    assert "\\*" not in text.replace("&#92;", "\\")


def test_each_error_and_the_warning_have_sentences_with_anchors(site: Path) -> None:
    anchors = built_site.page(site / "reference" / "api" / "errors.html").anchors
    kinds = {name.lower() for name in vars(dagad) if name.endswith(("Error", "Warning"))} - {"dagaderror"}
    assert {kind for kind in kinds if not any(one.startswith(f"{kind}-") for one in anchors)} == set()
    assert any(one.startswith("planerror-cannot-cut-rows-by-grainsize") for one in anchors)
    composed = "notdifferentiableerror-dagad-has-no-derivative-of", "cancellederror-this-evaluation-was-cancelled"
    assert [words for words in composed if not any(one.startswith(words) for one in anchors)] == []


OF_PARAMETERS = {
    *("dagad._api.adding_up", "dagad._habits", "dagad._rules.numpy_functions"),
    *("dagad._engines.xla.memory", "dagad._engines.xla.watched", "dagad._engines.xla.written"),
}


def test_the_words_of_errors_are_found_where_they_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(built_site.PROJECT / "docs"))
    messages = importlib.import_module("made.messages")
    assert messages.unread() == OF_PARAMETERS  # whose sentences are given to what raises them
    page = messages.page(dict.fromkeys(messages.sentences(), ""))
    anchors = re.findall(r"^\((\w+-.*)\)=$", page, re.MULTILINE)
    assert len({*anchors}) == len(anchors) == page.count("\n* ")


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    handler = partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        del args


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    with a_browser(tmp_path / "profile") as found:
        yield found


def browses(test: Any) -> Any:
    for mark in NEEDS_BROWSER:
        test = mark(test)
    return test


def found_by(browser: Any, address: str, words: str) -> list[str]:
    """Return the pages that the site's search finds, the best first."""
    browser.get(f"{address}/search.html?q={words.replace(' ', '+')}")
    of_results = "return [...document.querySelectorAll('#search-results li > a')].map(one => one.getAttribute('href'))"
    done = "return !!document.querySelector('#search-results .search-summary')?.innerText.match(/found|match/)"
    until(lambda: browser.execute_script(done))
    return [str(link) for link in browser.execute_script(of_results)]


@browses
def test_the_search_finds_what_newcomers_look_for(address: str, browser: Any) -> None:
    found = {words: found_by(browser, address, words) for words in ("hvp", "checkpoint", "standard errors", "Slurm")}
    assert [words for words, pages in found.items() if not pages] == []
    assert any("dagad.hvp" in link for link in found["hvp"])
    assert any("checkpoint" in link for link in found["checkpoint"])


@browses
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_each_page_fits_a_desk_and_a_phone_and_runs_its_scripts(
    site: Path, address: str, browser: Any, width: int
) -> None:
    """Each page is loaded by somebody who prefers one scheme, and who then has the other: every other page dark."""
    found: dict[str, list[str]] = {"too wide": [], "out of reach": [], "nameless": [], "cut": []}
    schemes = ["light", "dark"]
    for path in shown(site):
        look_like(browser, width, schemes[0])
        browser.get(f"{address}/{path.relative_to(site)}")
        assert browser.execute_script(THEME) == schemes[0]
        until(partial(browser.execute_script, "return document.readyState === 'complete'"))
        for scheme in schemes:
            look_like(browser, width, scheme)
            until(partial(browser.execute_script, f"{THEME} === '{scheme}'"))
            found["too wide"] += [path.name] * (too_wide_by(browser) > 0)
            for name, script in (("out of reach", OUT_OF_REACH), ("nameless", NAMELESS), ("cut", CUT)):
                found[name] += [f"{path.name} ({scheme}): {one}" for one in browser.execute_script(script)]
        schemes.reverse()
    assert {name: pages for name, pages in found.items() if pages} == {}


def shown(site: Path) -> list[Path]:
    """Return the pages to look at: of those of public names, which are made alike, some."""
    return [path for path in built_site.pages_of(site) if path.parent.name != "api" or path.name in ALIKE]


THEME = "return document.documentElement.dataset.theme"
ALIKE = "index.html", "errors.html", "dagad.reduce_sum.html", "dagad.shards-class.html"
# What can be pressed has a name for those who don't see it, also where a narrow window leaves its words out.
NAMELESS = """
return [...document.querySelectorAll('button, summary')]
  .filter(one => one.offsetWidth && !one.innerText.trim() && !one.ariaLabel && !one.querySelector('svg > title'))
  .filter(one => !one.title && !one.dataset.bsOriginalTitle)
  .map(one => one.outerHTML.slice(0, 80))
"""
# What scrolls has to be reached by keys, and has no other way to be than by a place among what they step through.
OUT_OF_REACH = """
return [...document.querySelectorAll('main *')]
  .filter(one => ['auto', 'scroll'].includes(getComputedStyle(one).overflowX))
  .filter(one => one.scrollWidth > one.clientWidth && one.tabIndex < 0 && !one.querySelector('a, button, [tabindex]'))
  .map(one => one.outerHTML.slice(0, 80))
"""
# A table that sets one thing beside another is of no use where the other is out of sight.
CUT = """
return [...document.querySelectorAll('main table')]
  .filter(one => one.rows[0].cells.length <= 2 && one.scrollWidth > one.parentElement.clientWidth)
  .map(one => one.innerText.slice(0, 80))
"""
