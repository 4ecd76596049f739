"""Guides: does every block of every page run, in order, and print what the page shows?"""

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

pytestmark = pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")

GUIDE = Path(__file__).parents[2] / "examples" / "guide"
PAGES = sorted(page.name for page in GUIDE.glob("*.md"))
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
def test_every_block_of_a_guide_runs_and_prints_what_its_page_shows(page: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}  # as in a script: workers get functions by value
    checker = doctest.OutputChecker()
    for block in blocks((GUIDE / page).read_text(encoding="utf-8")):
        found, shown = printed(block, page, names), block.shown or ""
        assert checker.check_output(shown, found, AS_SHOWN), f"{page}, line {block.line}, printed:\n{found}"


def test_every_output_that_a_guide_shows_belongs_to_a_block() -> None:
    for page in PAGES:
        text = (GUIDE / page).read_text(encoding="utf-8")
        assert len(re.findall("^```text", text, re.MULTILINE)) == sum(b.shown is not None for b in blocks(text)), page


def headings(page: Path) -> set[str]:
    """What links after a `#` may name: headings as GitHub spells them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*GUIDE.glob("*.md"), GUIDE.parents[1] / "README.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)]+)", page.read_text(encoding="utf-8")):
            file, _, heading = target.partition("#")
            there = page.parent / file if file else page
            assert there.exists(), f"{page.name} links to {target}"
            assert not heading or heading in headings(there), f"{page.name} links to {target}"


def test_the_guide_of_settings_has_every_setting_with_its_default() -> None:
    defaults = yaml.safe_load(Path(dagad.__file__).with_name("dagad.yaml").read_text(encoding="utf-8"))["dagad"]
    rows = re.findall(
        r"^\| `dagad\.([\w.-]+)` \| `([^`]*)` \|", (GUIDE / "settings.md").read_text("utf-8"), re.MULTILINE
    )
    assert {name: yaml.safe_load(default) for name, default in rows} == defaults
