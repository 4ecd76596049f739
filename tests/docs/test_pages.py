"""Pages of the site: does every block of every page run, in order, and print what the page shows?"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import dagad
import dagad_scheduler

pytestmark = pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")

DOCS = Path(__file__).parents[2] / "docs"
MADE = {"gallery", "api"}  # folders that hold what the build has written
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.parent.name not in MADE)
# A block of Python, and what it prints, if that is shown: the next thing on the page, in a block of its own.
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<shown>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
AS_SHOWN = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    line: int
    code: str
    shown: str | None


def blocks(text: str) -> Iterator[Block]:
    for found in BLOCK.finditer(text):
        yield Block(text.count("\n", 0, found.start("code")), found["code"], found["shown"])


def printed(block: Block, page: str, names: dict[str, Any]) -> str:
    """What a block prints; one that raises prints the error's last lines, as a script does."""
    code = compile("\n" * block.line + block.code, page, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            exec(code, names)
        except Exception as error:
            if block.shown is None or not re.search(r"^[\w.]*(Error|Warning): ", block.shown, re.MULTILINE):
                error.add_note(f"raised by the block in line {block.line} of {page}")
                raise
            output.write("".join(traceback.format_exception_only(error)))
    return output.getvalue()


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs_and_prints_what_is_shown(page: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}  # as in a script: workers get functions by value
    checker = doctest.OutputChecker()
    for block in blocks((DOCS / page).read_text(encoding="utf-8")):
        found, shown = printed(block, page, names), block.shown or ""
        assert checker.check_output(shown, found, AS_SHOWN), f"{page}, line {block.line}, printed:\n{found}"


def test_every_output_that_a_page_shows_belongs_to_a_block() -> None:
    for page in PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        assert len(re.findall("^```text", text, re.MULTILINE)) == sum(b.shown is not None for b in blocks(text)), page


def headings(page: Path) -> set[str]:
    """What links after a `#` may name: headings as GitHub spells them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*(DOCS / page for page in PAGES), DOCS.parent / "README.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)]+)", page.read_text(encoding="utf-8")):
            file, _, heading = target.partition("#")
            if Path(file).parent.name in MADE:
                continue  # the test of the built site follows these
            there = page.parent / file if file else page
            assert there.exists(), f"{page.name} links to {target}"
            assert not heading or heading in headings(there), f"{page.name} links to {target}"


def test_pages_that_messages_and_docstrings_name_are_there() -> None:
    named = set[str]()
    for package in (dagad, dagad_scheduler):
        home = Path(str(package.__file__)).parent
        for path in (*home.rglob("*.py"), *home.rglob("*.yaml")):
            named |= set(re.findall(r"\bdocs/[\w/-]+\.md(?:#[\w-]+)?", path.read_text(encoding="utf-8")))
    assert len(named) >= 3
    for target in named:
        file, _, heading = target.partition("#")
        page = DOCS.parent / file
        assert page.exists(), target
        assert not heading or heading in headings(page), target


def test_the_page_of_settings_has_every_setting_with_its_default() -> None:
    defaults = yaml.safe_load(Path(dagad.__file__).with_name("dagad.yaml").read_text(encoding="utf-8"))["dagad"]
    rows = re.findall(
        r"^\| `dagad\.([\w.-]+)` \| `([^`]*)` \|", (DOCS / "reference" / "settings.md").read_text("utf-8"), re.MULTILINE
    )
    assert {name: yaml.safe_load(default) for name, default in rows} == defaults
