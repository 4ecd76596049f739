"""What is read from bytecode, and what signatures tell: is it the same whatever Python compiled a function?"""

from __future__ import annotations
import __future__

import dataclasses
import functools
import sys
import textwrap
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad
from dagad._tracing.writing import _writes
from dagad._values.bytecode import binds_globals, changes_others, globals_of, imports_of, is_storing, read_in, steps
from dagad.interop.scipy import minimize

X = np.arange(1.0, 7.0)


def compiled(source: str, **names: Any) -> Any:
    """Return what `fun` is in a module of the user's own, where the newest Pythons don't evaluate annotations."""
    flags = 0 if sys.version_info >= (3, 14) else __future__.annotations.compiler_flag
    scope: dict[str, Any] = {"np": np, "__name__": "__main__", **names}
    exec(compile(textwrap.dedent(source), "a cell", "exec", flags, dont_inherit=True), scope)
    return scope["fun"]


def test_a_step_that_loads_or_binds_two_variables_counts_as_two() -> None:
    fun = compiled(
        """
        def fun(a, b):
            c, d = a + b, a * b
            c = a
            return c, d
        """
    )
    found = list(steps(fun.__code__))
    assert not [step for step in found if step.opname.count("_FAST") > 1]
    assert {step.opname for step in found if "FAST" in step.opname} <= {"LOAD_FAST", "STORE_FAST"}
    assert [step.argval for step in found if step.opname == "STORE_FAST"] in (["c", "d", "c"], ["d", "c", "c"])
    assert sorted(step.argval for step in found if step.opname == "LOAD_FAST") == sorted("abab" + "a" + "cd")


# What each does to others, and to arrays
CODES: dict[str, tuple[str, bool, bool]] = {
    "reads": ("def fun(x, b): return x * b[0] + b[1:2]", False, False),
    "stores": ("def fun(x, b): b[0] = x", True, True),
    "stores a slice": ("def fun(x, b): b[:] = x", True, True),
    "stores part of a slice": ("def fun(x, b): b[x:] = 1.0", True, True),
    "stores by two variables": ("def fun(x, b, i): b[i] = x", True, True),
    "adds in place": ("def fun(x, b):\n b += x\n return b", True, True),
    "adds to a number": ("def fun(x):\n a = 0.0\n a += x\n return a", True, False),
    "adds to a small number": ("def fun(x):\n a = 0\n a += x\n return a", True, False),
    "binds two, one of which it fills": ("def fun(x):\n a, b = {}, np.zeros(3)\n b[0] = x\n return a", True, True),
    "fills a dict by a variable": ("def fun(x, k):\n a = {}\n a[k] = x\n return a", True, False),
    "fills what was a dict": ("def fun(x, k):\n b = {}\n a, b = x, np.zeros(3)\n b[k] = x\n return a", True, True),
    "writes by a keyword": ("def fun(x, b): return np.exp(x, out=b)", True, True),
    "annotates what is inside of it": (
        "def fun(x):\n def g(y: 'int') -> 'float': return y\n return g(x)",
        False,
        False,
    ),
}


@pytest.mark.parametrize("case", CODES)
def test_bytecode_tells_whether_a_function_changes_others_and_writes_into_arrays(case: str) -> None:
    source, changes, writes = CODES[case]
    code = compiled(source).__code__
    assert (changes_others(code), _writes(code)) == (changes, writes)


def test_names_past_the_first_byte_are_read_as_others_are() -> None:
    many = "\n ".join(f"x = x + a{index}" for index in range(300))
    bound = "total = x\n x.last = 1\n x.calls += x.by"
    fun = compiled(f"def fun(x):\n global total\n {many}\n {bound}\n import json.decoder\n return x")
    assert {"a0", "a299"} <= set(globals_of(fun.__code__))
    assert binds_globals(fun.__code__) == ("total",)
    assert {"a0", "a299", "by"} <= read_in(fun.__code__)
    assert read_in(fun.__code__).isdisjoint({"last", "calls"})
    assert imports_of(fun.__code__, None) == ("json.decoder",)


@pytest.mark.parametrize("line", ["b[0] = x", "b[:] = x", "b[1:] = x", "b[...] = x"])
def test_an_assignment_to_entries_is_known_while_it_runs(line: str) -> None:
    found: list[bool] = []

    class Asks:
        def __setitem__(self, index: Any, value: Any) -> None:
            found.append(is_storing(sys._getframe(1)))

        def __getitem__(self, index: Any) -> None:
            found.append(is_storing(sys._getframe(1)))

    compiled(f"def fun(x, b):\n {line}\n b[0]")(1.0, Asks())
    assert found == [True, False]


# Annotations that only type checkers understand

ANNOTATED = "def fun(rows: Rows, scale: 'Number') -> Unknown: return scale * rows.sum()"


def test_a_function_whose_annotations_name_nothing_is_differentiated(scheduler: Any) -> None:
    fun = compiled(ANNOTATED)
    assert dagad.grad(lambda s: dagad.reduce_sum(fun, X, s, grainsize=2, scheduler=scheduler))(2.0) == X.sum()


def test_a_function_whose_annotations_name_nothing_may_carry_what_is_differentiated(scheduler: Any) -> None:
    around = compiled(f"def fun(t):\n {ANNOTATED.replace('scale *', 't * scale *')}\n return fun")

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(around(t), X, 1.0, grainsize=2, scheduler=scheduler)

    assert dagad.grad(loss)(2.0) == X.sum()


BODY = (
    "\n    rate: Number = 2.0\n    def of(self, rows: Rows, s: float) -> Unknown: return self.rate * s * rows.sum()\n"
)
CLASSES = {
    "a class": "class Model:" + BODY,
    "a dataclass": "@dataclasses.dataclass\nclass Model:" + BODY,
    "a frozen dataclass": "@dataclasses.dataclass(frozen=True, slots=True)\nclass Model:" + BODY,
    "a tuple of names": "class Model(typing.NamedTuple):" + BODY,
    "a generic class": "class Model(typing.Generic[T]):" + BODY,
    "a class of a class": "class Base:" + BODY + "class Model(Base):\n    other: Unknown",
    "a class with a marked method": "class Model:" + BODY.replace("    def", "    @marked\n    def"),
}


@pytest.mark.parametrize("case", CLASSES)
def test_a_class_whose_annotations_name_nothing_works_on_every_scheduler(case: str, scheduler: Any) -> None:
    def marked(method: Any) -> Any:
        return functools.wraps(method)(lambda *args: method(*args))

    names: dict[str, Any] = {"dataclasses": dataclasses, "typing": typing, "T": typing.TypeVar("T"), "marked": marked}
    fun = compiled(
        CLASSES[case] + "\nmodel = Model()\ndef fun(rows: Model, s: Number): return model.of(rows, s)", **names
    )
    assert dagad.grad(lambda s: dagad.reduce_sum(fun, X, s, grainsize=2, scheduler=scheduler))(1.0) == 2.0 * X.sum()


@pytest.mark.parametrize(
    "call",
    [
        lambda fun: dagad.reduce_sum(fun, X, 1.0, 2.0, scheduler="sync"),
        lambda fun: dagad.grad(fun)(X),
    ],
)
def test_a_wrong_call_of_a_function_whose_annotations_name_nothing_is_explained(call: Callable[..., Any]) -> None:
    with pytest.raises(dagad.ArgumentsError, match="fun"):
        call(compiled(ANNOTATED))


def test_a_callback_whose_annotations_name_nothing_is_called() -> None:
    seen: list[Any] = []
    callback = compiled("def fun(xk: Vector) -> Unknown: seen.append(xk)", seen=seen)
    minimize(lambda t: np.sum((t - 1.0) ** 2), np.zeros(2), callback=callback)
    assert seen
