"""Words: does each module, public name and error say what it is for, in plain words?"""

from __future__ import annotations

import ast
import importlib
import inspect
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import dagad
import dagad.extend
import dagad.solvers
import dagad.testing
import dagad_scheduler
from support.source_files import FILES, trees

pytestmark = pytest.mark.whole("what the source looks like")


def is_summary(line: str) -> bool:
    return (
        line.endswith(".") and "\n" not in line and (line[0].isupper() or line.startswith(("`", "dagad", "autograd")))
    )


def test_each_module_begins_by_saying_where_it_stands() -> None:
    docstrings = {name: ast.get_docstring(tree) or "" for name, tree in trees().items()}
    assert not [name for name, docstring in docstrings.items() if not is_summary(docstring.split("\n\n")[0] or "-")]


DOORS = [dagad, dagad.extend, dagad.solvers, dagad.testing, dagad_scheduler]
PUBLIC = {
    f"{door.__name__}.{name}": found
    for door in DOORS
    for name in door.__all__
    if isinstance(found := getattr(door, name), FunctionType | type)
}


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_a_public_module_offers_what_it_lists(door: Any) -> None:
    errors = {name for name, found in vars(dagad).items() if isinstance(found, type) and issubclass(found, Exception)}
    own = {name for name, found in vars(door).items() if getattr(found, "__module__", "").startswith("dagad")}
    own = {name for name in own if not name.startswith("_")} - errors - {"public"}
    assert own | ({"extend", "testing"} if door is dagad else set()) == set(door.__all__)


def test_each_public_name_is_explained() -> None:
    summaries = {name: (inspect.getdoc(found) or "").split("\n")[0] for name, found in PUBLIC.items()}
    assert not [name for name, summary in summaries.items() if not summary.endswith((".", ":"))]


def sections(docstring: str) -> set[str]:
    found = set(re.findall(r"^([A-Z]\w+(?: \w+)?)\n-{3,}$", docstring, flags=re.MULTILINE))
    return found | {"Returns"} if "Yields" in found else found  # of a context manager


OF_USERS: dict[str, Any] = {name: found for name, found in PUBLIC.items() if "scheduler" not in name}


def missing_in(function: Any) -> set[str]:
    """Return the sections and parameters that the docstring of a function lacks."""
    docstring = inspect.getdoc(function) or ""
    explained = {
        parameter
        for parameter in inspect.signature(function).parameters
        if re.search(rf"^(?:\w+, )*\*{{0,2}}{parameter}(?:, \w+)*$", docstring, flags=re.MULTILINE)
    }
    return {"Parameters", "Returns", "Raises", "Examples", *inspect.signature(function).parameters} - (
        sections(docstring) | explained
    )


def test_each_public_function_explains_its_parameters_results_and_errors() -> None:
    missing = {name: missing_in(found) for name, found in OF_USERS.items() if isinstance(found, FunctionType)}
    assert not {name: parts for name, parts in missing.items() if parts}


def test_each_public_name_has_an_example() -> None:
    assert not [name for name, found in OF_USERS.items() if ">>>" not in (inspect.getdoc(found) or "")]


def test_each_public_class_explains_its_methods() -> None:
    classes = {
        name: found
        for name, found in OF_USERS.items()
        if isinstance(found, type) and (name.count(".") == 1 or getattr(found, "_is_protocol", False))
    }
    assert not [
        f"{name}.{method}"
        for name, found in classes.items()
        for method in dir(found)
        if not method.startswith("_")
        and isinstance(call := vars(found).get(method), FunctionType)
        and not inspect.getdoc(call)
    ]


PLAIN_WORDS = re.compile(
    r"differentiated? in\b(?! (this|its|forward|reverse|a|parallel|real))|stand bare|can't be had|told as such|end to "
    r"end|show in the bits|brings? (its|their) own deriv|[Ww]hat becomes of|\ba (?!one)[aeio]|\ban [bcdgjkpqtvwz]"
)


def help_on(door: Any) -> str:
    return pydoc.plain(pydoc.render_doc(door))


@pytest.mark.parametrize("door", [dagad, dagad.extend, dagad.solvers, dagad.testing], ids=lambda door: door.__name__)
def test_help_is_in_plain_words(door: Any) -> None:
    text = help_on(door)
    assert not re.search(r" \|  _(?!_)", text)  # nothing of what is our own
    said = [found.group() for found in PLAIN_WORDS.finditer(text)]
    assert not said


def test_help_on_dagad_lists_functions_that_users_call_and_no_others() -> None:
    functions = help_on(dagad).partition("\nFUNCTIONS\n")[2].partition("\nDATA\n")[0]
    assert functions.startswith("    checkpoint(")
    assert "__getattr__" not in functions


@pytest.mark.parametrize("made", [dagad.Shards, dagad.Evaluation], ids=lambda made: made.__name__)
def test_help_on_what_functions_return_shows_what_users_call(made: type) -> None:
    text = help_on(made)
    assert "__" not in text
    assert f"{made.__name__}(" not in text.replace(f"class {made.__name__}(builtins.object)", "")


def sentences(tree: ast.AST) -> Iterator[str]:
    """Yield what is raised, with {} for what is filled in."""
    for node in ast.walk(tree):
        for part in ast.walk(node) if isinstance(node, ast.Raise) else ():
            if isinstance(part, ast.JoinedStr):
                yield "".join(one.value if isinstance(one, ast.Constant) else "{}" for one in part.values)  # type: ignore[misc]  # text
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def test_messages_are_in_plain_words() -> None:
    said = [text for name, tree in trees().items() if name.startswith("dagad.") for text in sentences(tree)]
    assert not [text for text in said if PLAIN_WORDS.search(text) or re.search(r"\ba \{\}", text)]


def test_help_begins_with_a_table_of_what_there_is() -> None:
    text = help_on(dagad)
    table = text[: text.index("PACKAGE CONTENTS")]
    errors = {name for name, found in vars(dagad).items() if isinstance(found, type) and issubclass(found, Exception)}
    assert not [name for name in {*dagad.__all__} | errors if name not in table]


def test_all_deliberate_errors_are_public() -> None:
    errors = importlib.import_module("dagad._errors")
    defined = {name for name, found in vars(errors).items() if isinstance(found, type) and not name.startswith("_")}
    assert defined <= vars(dagad).keys()


def is_bare(raised: ast.expr | None) -> bool:
    """Return whether what is raised is a class, or made of nothing."""
    if isinstance(raised, ast.Name):
        return raised.id[0].isupper()
    return isinstance(raised, ast.Call) and not raised.args


def test_no_exception_is_raised_without_a_sentence() -> None:
    nodes = [(name, node) for name, tree in trees().items() for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    assert not [f"{name}, line {node.lineno}" for name, node in nodes if is_bare(node.exc)]


TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
QUESTION = re.compile(r"test_(is|are|was|were|does|do|did|may|can|has|have|must|will|what|how|when|where|who|why)_")
OUR_JARGON = {"turned", "apart", "road", "place", "told"}
OF_FORWARD_MODE = {"pushed", "moved"}  # in names of the source, where the field says jvp and tangent


def test_the_name_of_each_test_is_a_statement_in_the_words_of_the_field() -> None:
    names = {
        name.replace("in_place", "")
        for path in Path(__file__).parent.rglob("test_*.py")
        for name in TEST.findall(path.read_text(encoding="utf-8"))
    }
    assert len(names) > 1000
    assert not {name for name in names if QUESTION.match(name) or OUR_JARGON & {*name.split("_")}}


def bound_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def test_no_name_in_the_source_is_of_our_own_jargon() -> None:
    names = {
        f"{module}: {name}"
        for module, tree in trees().items()
        for name in bound_names(tree)
        if (OUR_JARGON | OF_FORWARD_MODE) & {*re.findall(r"[a-z]+|[A-Z][a-z]*", name.lower().replace("in_place", ""))}
    }
    assert not names


IGNORED = re.compile(r"#\s*(type: ignore(\[[\w, -]+\])?|noqa(: [A-Z]+\d+(, [A-Z]+\d+)*)?)(?P<reason>.*)")


def test_each_ignored_check_has_its_reason_on_the_line() -> None:
    here = Path(__file__)
    unexplained = [
        f"{path}, line {number}: {line.strip()}"
        for path in [*FILES.values(), *sorted(here.parent.rglob("*.py"))]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if path != here and (match := IGNORED.search(line)) and len(match["reason"].strip("# ")) <= 3
    ]
    assert not unexplained
