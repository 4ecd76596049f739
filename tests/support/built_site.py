"""The site, built anew from a copy of its sources: its pages, what they link to, and what they can be linked to by."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

from support.waiting import PATIENCE, until

PROJECT = Path(__file__).parents[2]
MADE = "api", "gallery"  # what an earlier build has written


def build(home: Path) -> tuple[Path, str]:
    """Build the site below a directory as the README says, and return where it is and what the build has said."""
    for folder in ("deploy", "docs", "examples"):
        shutil.copytree(PROJECT / folder, home / folder, ignore=shutil.ignore_patterns(*MADE, "__pycache__"))
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "--no-color", "docs", "site"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return home / "site", said


def built_once(home: Path) -> tuple[Path, str]:
    """Build the site below a directory that all processes of a run share, or wait for the one that does."""
    said, failure = home / "said.txt", home / "failure.txt"
    try:
        home.mkdir()
    except FileExistsError:
        until(lambda: said.exists() or failure.exists(), 10.0 * PATIENCE)
        assert not failure.exists(), failure.read_text(encoding="utf-8")
        return home / "site", said.read_text(encoding="utf-8")
    try:
        site, words = build(home)
    except BaseException as error:
        failure.write_text(str(error), encoding="utf-8")
        raise
    partial = home / "partial.txt"
    partial.write_text(words, encoding="utf-8")
    partial.rename(said)  # whoever sees it sees all of it
    return site, words


class Page(HTMLParser):
    """A page of the site, read for links, anchors, pictures and what folds out."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links, self.anchors, self.without_words = list[str](), set[str](), list[str]()
        self._link, self._words = "", ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.links += [found[name] for name in ("href", "src") if found.get(name)]
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "img" and not found.get("alt"):
            self.without_words.append(found.get("src", ""))
        if tag == "summary" or (tag == "a" and "href" in found):
            self._link, self._words = found.get("href", tag), found.get("aria-label", "")
        self._words += found.get("alt", "")

    def handle_data(self, data: str) -> None:
        self._words += data.strip()

    def handle_endtag(self, tag: str) -> None:
        if tag in ("a", "summary") and self._link:
            if not self._words:
                self.without_words.append(self._link)
            self._link = ""


@functools.cache
def page(path: Path) -> Page:
    return Page(path)


def pages_of(site: Path) -> list[Path]:
    """Return all pages; what the theme keeps in `_static` are parts of pages."""
    return [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]


def dead_links(site: Path) -> list[str]:
    """Return the links of all pages that lead nowhere inside the site; what is elsewhere is not asked."""
    dead = []
    for path in pages_of(site):
        for link in page(path).links:
            if link.startswith(("http:", "https:", "mailto:", "data:", "javascript:")):
                continue
            file, anchor = urldefrag(link)
            there = (path.parent / unquote(file.partition("?")[0])).resolve() if file else path
            there = there / "index.html" if there.is_dir() else there
            known = not anchor or there.suffix != ".html" or (there.exists() and unquote(anchor) in page(there).anchors)
            if not there.exists() or not known:
                dead.append(f"{path.relative_to(site)}: {link}")
    return dead


def loaded_from_elsewhere(site: Path) -> set[str]:
    """Return scripts, styles and pictures that a page would fetch from another machine."""
    return {
        link
        for path in pages_of(site)
        for link in page(path).links
        if link.startswith(("http:", "https:")) and link.partition("?")[0].endswith((".js", ".css", ".png", ".woff2"))
    }
