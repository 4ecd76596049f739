"""Digests: are they the same in every process, and others when anything in a function or its data is another?"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from scipy import linalg, special

import dagad
from dagad import PortabilityError
from dagad._tracing.patches import patches
from dagad._values.digest import States, digest
from dagad._values.fingerprint import fingerprint, same
from dagad._values.pytree import flatten, register

SCALE = 2.0


def made(number: float, power: int = 2) -> Callable[..., Any]:
    def chunk(rows: Any, theta: Any) -> Any:
        return number * np.sum((rows - theta) ** power)

    return chunk


def by_class(factor: int) -> Callable[..., Any]:
    @functools.singledispatch
    def chunk(rows: Any) -> Any:
        return rows

    chunk.register(int, lambda rows: factor * rows)
    return chunk


def doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return 2.0 * function(*args)

    return wrapper


def class_of_a_package(number: int) -> Any:
    scope: dict[str, Any] = {"__name__": linalg.__name__}
    exec("def make(number):\n    class Made:\n        power = number\n    return Made\n", scope)
    return scope["make"](number)


def caught(x: Any) -> Any:
    try:
        x = float(x)
        x = 1.0 / x
    except ZeroDivisionError:
        x = 0.0
    return x


def caught_in_part(x: Any) -> Any:
    try:
        x = float(x)
    except ZeroDivisionError:
        x = 0.0
    else:
        x = 1.0 / x
    return x


caught_in_part.__code__ = caught_in_part.__code__.replace(co_name="caught")  # all else is the same bytecode


@dataclasses.dataclass
class Model:
    weight: float
    data: Any


PAIRS: list[tuple[Any, Any]] = [
    (1, 1.0),
    (1, True),
    (0.0, -0.0),
    ("a", b"a"),
    ([1, 2], (1, 2)),
    ([[1], 2], [[1, 2]]),
    ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
    ({1, 2}, {1, 3}),
    (np.zeros(2), np.zeros(3)),
    (np.zeros((2, 3)), np.zeros((3, 2))),
    (np.zeros(2), np.zeros(2, np.float32)),
    (np.zeros(2), np.zeros(4, np.float32)),
    (np.array([8, 0]), np.zeros((2, 0), int)),  # bytes like those that tell of a shape
    (np.array([0.0]), np.array([-0.0])),
    (np.float64(1), 1.0),
    (np.zeros(2, [("x", "f8"), ("y", "f8")]), np.zeros(2, [("y", "f8"), ("x", "f8")])),
    (np.frompyfunc(lambda x: 2 * x, 1, 1), np.frompyfunc(lambda x: 3 * x, 1, 1)),
    (MappingProxyType({"a": 1}), MappingProxyType({"a": 2})),
    (MappingProxyType({"a": 1}), {"a": 1}),
    (re.compile("a"), re.compile("b")),
    (by_class(2), by_class(3)),
    (np.array(["a", 1], object), np.array(["a", 2], object)),
    (made(1.0), made(2.0)),
    (made(1.0, 2), made(1.0, 3)),
    (lambda x: x + 1, lambda x: x + 2),
    (lambda x: np.sin(x), lambda x: np.cos(x)),
    (lambda x: np.sin(x), lambda x: anp.sin(x)),
    (functools.partial(made, 1.0), functools.partial(made, 2.0)),
    (Model(1.0, np.zeros(2)), Model(1.0, np.ones(2))),
    (special.expit, special.logit),
    (eval("lambda x: x + 1", vars(linalg)), eval("lambda x: x + 2", vars(linalg))),  # of an installed package
    (class_of_a_package(1), class_of_a_package(2)),
    (linalg.solve, doubled(linalg.solve)),
    (doubled(linalg.solve), doubled(linalg.inv)),
    (len, max),
    (caught.__code__, caught_in_part.__code__),
    (np.sin, np.cos),
    (Model, dict),
]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=[str(number) for number in range(len(PAIRS))])
def test_functions_and_data_that_differ_have_different_digests(one: Any, other: Any) -> None:
    assert digest(one) == digest(one)
    assert digest(one) != digest(other)


def test_functions_and_data_that_are_made_again_have_the_same_digest() -> None:
    assert digest(made(1.0)) == digest(made(1.0))
    assert digest(Model(1.0, np.zeros(2))) == digest(Model(1.0, np.zeros(2)))
    assert digest(np.zeros((4, 4))[::2]) == digest(np.zeros((2, 4)))
    assert digest(np.asfortranarray(np.arange(6.0).reshape(2, 3))) == digest(np.arange(6.0).reshape(2, 3))


def test_a_global_that_a_function_uses_changes_its_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunk(rows: Any) -> Any:
        return SCALE * rows

    before = digest(chunk)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert digest(chunk) != before


def test_functions_that_call_each_other_have_a_digest() -> None:
    def even(n: int) -> bool:
        return n == 0 or odd(n - 1)

    def odd(n: int) -> bool:
        return n != 0 and even(n - 1)

    assert digest(even) != digest(odd)


USED = [  # by a function of a module of the user's, in ways of their own: what is called NUMBER is edited
    "import helpers\ndef f(x):\n    return helpers.scale(x)",
    "import helpers as other\ndef f(x):\n    return other.SCALE * x",
    "def f(x):\n    from helpers import scale\n    return scale(x)",
    "def made():\n    import helpers\n    return lambda x: helpers.scale(x)\nf = made()",
    "class A:\n    def g(self, x):\n        return NUMBER * x\nclass B(A):\n    pass\ndef f(x):\n    return B().g(x)",
    "class A:\n    WEIGHTS = np.array([NUMBER])\n    def g(self, x):\n        return self.WEIGHTS * x\nf = A().g",
    "class A:\n    WEIGHTS = [NUMBER]\n    def g(self, x):\n        return self.WEIGHTS[0] * x\nf = A().g",
    "class A:\n    class B:\n        weight = NUMBER\ndef f(x):\n    return A.B.weight * x",
    "class M(type):\n    weight = NUMBER\nclass A(metaclass=M):\n    pass\ndef f(x):\n    return A.weight * x",
    "class A:\n    @functools.cached_property\n    def weight(self):\n        return NUMBER\nf = A()",
    "@functools.lru_cache\ndef weight():\n    return NUMBER\ndef f(x):\n    return weight() * x",
    "class A:\n    lock, weights = threading.Lock(), range(int(NUMBER))\ndef f(x):\n    return len(A.weights) * x",
    "class A:\n    @functools.lru_cache\n    def weight(self):\n        return NUMBER\nf = lambda x: A().weight() * x",
    "@primitive\ndef g(x):\n    return x\ndefvjp(g, lambda ans, x: lambda c: NUMBER * c)\ndef f(x):\n    return g(x)",
    "some = set()\nfor n in range(12):\n    some.add(lambda x, n=n: NUMBER * len(some))\nf = lambda x: len(some)",
    "find = {'weight': NUMBER}.get\ndef f(x):\n    return find('weight') * x",
    "weights = np.ma.array([1.0, 2.0], mask=[False, NUMBER > 2])\ndef f(x):\n    return weights.sum() * x",
]


@pytest.mark.parametrize("program", USED, ids=map(str, range(len(USED))))
def test_an_edit_of_what_a_function_uses_is_noticed(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)

    def found(number: float) -> str:
        for name, text in (("helpers", HELPERS), ("users", f"{IMPORTS}\n{program}\n")):
            (tmp_path / f"{name}.py").write_text(text.replace("NUMBER", str(number)))
            monkeypatch.delitem(sys.modules, name, raising=False)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        return digest(importlib.import_module("users").f)

    try:
        assert found(2.0) == found(2.0)
        assert found(2.0) != found(3.0)
    finally:
        sys.modules.pop("helpers", None)


RELATIVE = [
    "def f(x):\n    from .helpers import scale\n    return scale(x)",
    "def f(x):\n    from . import helpers\n    return helpers.scale(x)",
    "def f(x):\n    from ..package.helpers import SCALE\n    return SCALE * x",
]


@pytest.mark.parametrize("program", RELATIVE, ids=["module", "package", "above"])
def test_a_change_of_a_module_that_a_function_imports_itself_changes_its_digest(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "above" / "package").mkdir(parents=True)
    for name, text in (
        ("__init__", ""),
        ("package/__init__", ""),
        ("package/helpers", HELPERS),
        ("package/f", program),
    ):
        (tmp_path / "above" / f"{name}.py").write_text(text.replace("NUMBER", "2.0"))
    try:
        f = importlib.import_module("above.package.f").f
        before = digest(f)
        assert f(1.0) == 2.0
        compiled = fingerprint(f, here=True)
        assert digest(f) == before
        assert same(compiled, fingerprint(f, here=True))
        monkeypatch.setattr("above.package.helpers.SCALE", 3.0)
        assert f(1.0) == 3.0
        assert digest(f) != before
        assert not same(compiled, fingerprint(f, here=True))
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "above"]:
            del sys.modules[name]


IMPORTS = "import functools, threading\nimport numpy as np\nfrom autograd.extend import defvjp, primitive"
HELPERS = "SCALE = NUMBER\ndef scale(x):\n    return SCALE * x\n"

PROGRAM = """
import functools, numpy as np
from autograd.numpy import tanh
from dagad._values.digest import digest

NAMES = {"b", "a", "c"}

class Model:
    def __init__(self):
        self.weights = {"x": np.arange(3.0), "y": {1, 2, 3}}
    def value(self, rows):
        return sum(np.sum(rows * self.weights[name]) for name in NAMES if name in self.weights)

def chunk(rows, theta, scale=2.0):
    return scale * tanh(theta) * Model().value(rows)

print(digest(chunk, Model(), functools.partial(chunk, scale=3.0), lambda x: chunk(x, 1.0)))
"""


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_every_process_makes_the_same_digest() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(found) == 1


def test_a_digest_of_an_object_with_hidden_state_is_refused() -> None:
    with pytest.raises(PortabilityError, match="can't tell what"):
        digest(threading.Lock())


class Colour(enum.Enum):
    RED = 1


class Counted(np.ndarray[Any, Any]):
    """An array with attributes."""


class Rated:
    __rate__ = 1.0

    def rated(self, x: Any) -> Any:
        return x * self.__rate__


class Tuned:
    """A record with metadata."""

    def __init__(self, weight: Any, options: Any) -> None:
        self.weight, self.options = weight, options


register(Tuned, lambda model: ((model.weight,), model.options), lambda options, parts: Tuned(parts[0], options))


def test_metadata_of_a_record_are_in_the_digest_of_its_structure() -> None:
    knots = np.zeros(2000)  # numpy shows the first and last of them only
    structure = flatten(Tuned(1.0, {"knots": knots}))[1]
    before = digest(structure)
    assert digest(flatten(Tuned(2.0, {"knots": np.zeros(2000)}))[1]) == before
    knots[1000] = 1.0
    assert digest(structure) != before
    assert digest(flatten(Tuned(1.0, made(1.0)))[1]) == digest(flatten(Tuned(1.0, made(1.0)))[1])
    assert digest(flatten(Tuned(1.0, made(1.0)))[1]) != digest(flatten(Tuned(1.0, made(2.0)))[1])
    trees: list[Any] = [[1.0, [2.0]], [[1.0], 2.0], [[1.0, 2.0]], {"a": 1.0}, {"b": 1.0}, (1.0, None), None, 1.0]
    assert len({digest(flatten(tree)[1]) for tree in trees}) == len(trees)


def changes(part: Any, change: Callable[[Any], None], undo: Callable[[Any], None]) -> bool:
    """Return whether a change is in the digest of a function that holds the part."""
    before = digest(lambda: part)
    change(part)
    try:
        return digest(lambda: part) != before
    finally:
        undo(part)
        assert digest(lambda: part) == before


def test_attributes_that_pickles_leave_out_are_in_a_digest() -> None:
    scaled: Any = functools.partial(min, 1.0)
    for part in (scaled, Colour.RED, np.ones(3).view(Counted)):
        assert changes(part, lambda part: vars(part).update(scale=2.0), lambda part: vars(part).pop("scale"))


def test_constants_between_two_underscores_are_in_the_digest_of_a_class() -> None:
    assert changes(Rated, lambda cls: setattr(cls, "__rate__", 2.0), lambda cls: setattr(cls, "__rate__", 1.0))


def test_slot_names_that_pickling_leaves_on_a_class_are_not_in_its_digest() -> None:
    class Fresh:
        x = 1.0

    before = digest(Fresh)
    assert Fresh().__reduce_ex__(2)
    assert digest(Fresh) == before


def test_a_function_that_looks_like_a_single_dispatch_is_digested_by_its_code() -> None:
    one, other = made(1.0), made(2.0)
    for each in (one, other):
        vars(each)["registry"] = MappingProxyType({object: len})
    assert digest(one) != digest(other)


def test_which_of_two_equal_containers_is_meant_is_in_a_digest() -> None:
    one: list[Any] = [0.5]
    assert digest([one, one]) != digest([[0.5], [0.5]])
    assert digest([(0.5,), (0.5,)]) == digest([(0.5,)] * 2)  # no difference that a program could rely on
    held: list[Any] = [1.0]
    held.append(held)
    assert digest(held) == digest(held)


def test_a_name_that_another_function_means_in_a_module_is_in_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("made_for_this_test")
    module.rate = 1.0
    monkeypatch.setitem(sys.modules, "made_for_this_test", module)

    def reading(held: Any) -> Any:
        return held.rate

    def chunk() -> Any:
        return reading(module)

    before = digest(chunk)
    module.unrelated = 1.0
    assert digest(chunk) == before
    module.rate = 2.0
    assert digest(chunk) != before


def test_names_in_functions_of_a_package_are_no_state_of_what_holds_these() -> None:
    """Here it would be what holds patches, and how many traces there are."""

    def square(p: Any) -> Any:
        return anp.sum(p**2)

    slope = dagad.grad(square)
    before = digest(slope, here=True), States().of(slope, ())
    with patches:
        assert (digest(slope, here=True), States().of(slope, ())) == before
    assert digest(dagad.grad(lambda p: square(p)), here=True) != before[0]
