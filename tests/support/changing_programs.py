"""Functions that share what changes between their evaluations; for tests/values/test_changes.py.

Each is written into a module of its own that calls itself `__main__`, so that all of it travels by value, as from a
script or a notebook. What one can't see by value on bare Dask either (a deleted attribute of a class, the state of an
imported module on the worker) is left out.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

IMPORTS = """
import dataclasses, functools, types
import numpy as onp
import autograd.numpy as np
from autograd.extend import defvjp, primitive
"""


@dataclass(frozen=True, slots=True)
class Part:
    """What functions may share: how it is defined, read as a factor, and set to a number."""

    definition: str
    factor: str
    change: str


PARTS = {
    "a global": Part("G = 1.0", "G", "G = {v}"),
    "a container": Part("D = {'k': [1.0]}", "D['k'][0]", "D['k'][0] = {v}"),
    "an array": Part("A = onp.array([1.0, 2.0])", "A[0]", "A[0] = {v}"),
    "a class": Part("class C:\n    a = 1.0", "C.a", "C.a = {v}"),
    "a class by its instance": Part("class CI:\n    a = 1.0\nci = CI()", "ci.a", "CI.a = {v}"),
    "an instance": Part("class I:\n    a = 0.0\ni = I()\ni.a = 1.0", "i.a", "i.a = {v}"),
    "an instance with slots": Part("class S:\n    __slots__ = ('a',)\ns = S()\ns.a = 1.0", "s.a", "s.a = {v}"),
    "a base class": Part("class B:\n    a = 1.0\nclass E(B):\n    pass", "E().a", "B.a = {v}"),
    "a container of a class": Part("class T:\n    table = {'k': 1.0}", "T.table['k']", "T.table['k'] = {v}"),
    "a method": Part("class M:\n    def a(self): return 1.0", "M().a()", "M.a = lambda self: {v}"),
    "a static method": Part(
        "class SM:\n    @staticmethod\n    def a(): return 1.0", "SM.a()", "SM.a = staticmethod(lambda: {v})"
    ),
    "a class method": Part(
        "class K:\n    a = 1.0\n    @classmethod\n    def get(cls): return cls.a", "K.get()", "K.a = {v}"
    ),
    "a property": Part("class P:\n    a = property(lambda self: 1.0)", "P().a", "P.a = property(lambda self: {v})"),
    "a class in a class": Part("class O:\n    class In:\n        a = 1.0", "O.In.a", "O.In.a = {v}"),
    "a metaclass": Part("class Me(type):\n    a = 1.0\nclass CM(metaclass=Me):\n    pass", "CM.a", "Me.a = {v}"),
    "a class that knows itself": Part(
        "class Self:\n    a = 1.0\n    def get(self): return Self.a * (1.0 if isinstance(self, __class__) else 0.0)",
        "Self().get()",
        "Self.a = {v}",
    ),
    "a record": Part("@dataclasses.dataclass\nclass R:\n    a: float = 1.0\nr = R()", "r.a", "r.a = {v}"),
    "a closure": Part(
        """
        def make():
            x = 1.0
            def get(): return x
            def put(v):
                nonlocal x
                x = v
            return get, put
        get, put = make()
        """,
        "get()",
        "put({v})",
    ),
    "a default": Part("def df(a=1.0): return a", "df()", "df.__defaults__ = ({v},)"),
    "a keyword's default": Part("def kd(*, a=1.0): return a", "kd()", "kd.__kwdefaults__ = dict(a={v})"),
    "a code": Part("def co(): return 1.0", "co()", "co.__code__ = (lambda: {v}).__code__"),
    "an attribute of a function": Part("def fa(): return fa.a\nfa.a = 1.0", "fa()", "fa.a = {v}"),
    "a helper": Part("def h(x): return 1.0 * x", "h(1.0)", "def h(x): return {v} * x"),
    "a partial": Part(
        "def two(a, b): return a * b\npt = functools.partial(two, 1.0)", "pt(1.0)", "pt = functools.partial(two, {v})"
    ),
    "a module": Part("mod = types.ModuleType('made_here')\nmod.a = 1.0", "mod.a", "mod.a = {v}"),
    "a primitive": Part(
        """
        ps = {'k': 1.0}
        @primitive
        def p(x): return x * ps['k']
        defvjp(p, lambda ans, x: lambda g: g * ps['k'])
        """,
        "p(t[0])",
        "ps['k'] = {v}",
    ),
    "the rule of a primitive": Part(
        """
        qs = {'k': 1.0}
        @primitive
        def q(x): return x * 1.0
        defvjp(q, lambda ans, x: lambda g: g * qs['k'])
        """,
        "q(t[1])",
        "qs['k'] = {v}",
    ),
    "a class in a primitive": Part(
        """
        class PC:
            a = 1.0
        @primitive
        def pc(x): return x * PC.a
        defvjp(pc, lambda ans, x: lambda g: g * PC.a)
        """,
        "pc(t[1]) * PC.a",
        "PC.a = {v}",
    ),
}


class World:
    """Functions, and the parts that they share."""

    def __init__(self, functions: Sequence[Sequence[str]]) -> None:
        self._scope: dict[str, Any] = types.ModuleType("__main__").__dict__
        self._run(IMPORTS)
        for name in dict.fromkeys(name for names in functions for name in names):
            self._run(PARTS[name].definition)
        for number, names in enumerate(functions):
            factors = " * ".join(PARTS[name].factor for name in names)
            self._run(f"def f{number}(rows, t): return {number + 1.5} * {factors} * np.sum(np.tanh(np.dot(rows, t)))")

    def _run(self, source: str) -> None:
        exec(dedent(source), self._scope)

    def function(self, number: int) -> Callable[[Any, Any], Any]:
        """Return one of the functions, as it is now."""
        found: Callable[[Any, Any], Any] = self._scope[f"f{number}"]
        return found

    def change(self, name: str, value: float) -> None:
        """Give a part another value."""
        self._run(PARTS[name].change.format(v=value))
