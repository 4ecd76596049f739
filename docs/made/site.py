"""A Sphinx extension: writes the pages that are made, labels each page with its kind, and links public names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes

from made import gallery, messages, public_names

KINDS = {
    "tutorials": "Tutorial: learn by doing",
    "how-to": "How-to: get something done",
    "reference": "Reference: look it up",
    "explanation": "Explanation: understand it",
    "coming-from": "Coming from elsewhere",
    "gallery": "Example",
}
HEADINGS = {
    "dagad": "dagad",
    "dagad.extend": "dagad.extend: parts that can be replaced",
    "dagad.testing": "dagad.testing: checks of derivatives",
}


def setup(app: Any) -> dict[str, Any]:
    """Tell Sphinx what this does, and when."""
    app.connect("builder-inited", write_pages)
    app.connect("doctree-read", label)
    app.connect("doctree-read", link_names)
    app.connect("html-page-context", name_what_folds, priority=900)  # after the theme, whose function it wraps
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write_pages(app: Any) -> None:
    """Write the pages of the reference and of the gallery that are made, each into a folder of its own."""
    source = Path(app.srcdir)
    _write(source / "reference" / "api", {f"{name}.md": text.encode() for name, text in reference_pages()})
    shown = {f"{name}.md": text.encode() for name, text in gallery.pages()}
    for notebook in gallery.notebooks():
        shown[notebook.name] = gallery.read_notebook(notebook).encode()
        shown[f"{notebook.stem}.png"] = gallery.last_picture(notebook)
    _write(source / "gallery", shown)


def _write(home: Path, files: dict[str, bytes]) -> None:
    """Have a folder hold these files; what is as it was stays as it is, and need not be read again."""
    home.mkdir(exist_ok=True)
    for old in home.iterdir():
        if old.name not in files:
            old.unlink()
    for name, content in files.items():
        path = home / name
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def reference_pages() -> Iterator[tuple[str, str]]:
    """Yield a page for each public name, one that lists them, and that of the errors."""
    names = public_names.all_names()
    for name in names:
        yield name.page, NAME.format(path=name.path, kind=name.kind, members=MEMBERS[name.kind])
    yield "index", index()
    summaries = {name.path.rpartition(".")[2]: name.summary for name in names if name.kind == "exception"}
    yield "errors", messages.page(summaries)


def index() -> str:
    """Return the page that lists all names, by module and by what they are for."""
    parts = ["# All public names", ""]
    for door in public_names.doors():
        names = public_names.names_of(door)
        parts += [f"## {HEADINGS.get(door, door)}", ""]
        groups = list(dict.fromkeys(name.group for name in names))
        for group in groups:
            inside = [name for name in names if name.group == group]
            parts += [f"### {group}", ""] if groups != [public_names.OTHERS] else []
            parts += ["| name | what it is |", "|---|---|"]
            parts += [f"| [`{name.path}`]({name.page}.md) | {_cell(name.summary)} |" for name in inside]
            parts.append("")
    entries = "\n".join(name.page for name in public_names.all_names())
    return "\n".join(parts) + f"\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"


def _cell(text: str) -> str:
    """Return the words of a docstring as a cell of a table; a star in code is a star already."""
    parts = re.split("(`[^`]*`)", text.replace("``", "`").replace("|", r"\|"))
    return "".join(part if part.startswith("`") else part.replace("*", r"\*") for part in parts)


NAME = """# {path}

```{{eval-rst}}
.. auto{kind}:: {path}{members}
```
"""
MEMBERS = {"function": "", "class": "\n   :members:", "exception": "\n   :show-inheritance:"}


def label(app: Any, doctree: nodes.document) -> None:
    """Say below the title of a page which kind of page it is."""
    folder = app.env.docname.partition("/")[0]
    title = next(iter(doctree.findall(nodes.title)), None)
    if title is not None and folder in KINDS:
        words = nodes.paragraph("", KINDS[folder], classes=["kind", f"kind-{folder}"])
        title.parent.insert(title.parent.index(title) + 1, words)


CALL = re.compile(r"^(dagad\.[\w.]+)(?:\(.*)?$")


def link_names(app: Any, doctree: nodes.document) -> None:
    """Have each public name that stands in a page by itself, as code, lead to its page."""
    known = {name.path for name in public_names.all_names()}
    short = {path.partition(".")[2]: path for path in known}
    in_reference = app.env.docname.startswith("reference/api/")  # where docstrings name `shard` and `Shards`
    for literal in list(doctree.findall(nodes.literal)):
        if _is_in(literal, nodes.reference | addnodes.pending_xref | nodes.title):
            continue
        text = literal.astext()
        found = CALL.match(text)
        is_short = in_reference or text.startswith(("extend.", "testing."))
        path = found[1] if found else short.get(text if is_short else "")
        if path in known and not app.env.docname.endswith(path.lower()):
            link = addnodes.pending_xref("", refdomain="py", reftype="obj", reftarget=path, refexplicit=True)
            link["refdoc"], link["refwarn"] = app.env.docname, True
            literal.replace_self(link)
            link += literal


def name_what_folds(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Give what folds out in the list of pages a name, for those who hear it: the theme's is an arrow alone."""
    listed = context["generate_toctree_html"]
    context["generate_toctree_html"] = lambda *args, **options: str(listed(*args, **options)).replace(
        "<summary>", '<summary aria-label="Pages below">'
    )


def _is_in(node: Any, kinds: Any) -> bool:
    """Return whether something above a node is of these kinds: a link in a link would have no words."""
    while (node := node.parent) is not None:
        if isinstance(node, kinds):
            return True
    return False
