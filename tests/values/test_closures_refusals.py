"""Closures that can't be replaced: is a value that a chunk finds by a global, a class or a module refused by name?"""

from __future__ import annotations

import contextvars
import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as np
import pytest

import dagad
from support.waves import ROWS, expected_at, wave

GLOBAL: Any = None
IN_A_LIST: list[Any] = []
IN_AN_OBJECT = types.SimpleNamespace(deep=[None])
MODULE = types.ModuleType("mine")
VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE")


class Shared:
    t: Any = None

    def __call__(self, rows: Any) -> Any:
        return wave(rows, self.t)


def global_chunk(rows: Any) -> Any:
    return wave(rows, GLOBAL)


def global_helper(rows: Any) -> Any:
    return global_chunk(rows)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {}


def refused(name: str) -> Callable[[Any], Any]:
    return lambda build: REFUSED.setdefault(build.__name__, (build, name))


@refused("GLOBAL")
def a_global(t: Any) -> Any:
    globals()["GLOBAL"] = t
    return global_chunk


@refused("GLOBAL")
def a_global_of_a_helper(t: Any) -> Any:
    globals()["GLOBAL"] = t
    return lambda rows: global_helper(rows)


@refused("IN_A_LIST")
def a_global_list(t: Any) -> Any:
    IN_A_LIST[:] = [t]
    return lambda rows: wave(rows, IN_A_LIST[0])


@refused("IN_AN_OBJECT")
def a_global_object(t: Any) -> Any:
    IN_AN_OBJECT.deep[0] = t
    return lambda rows: wave(rows, IN_AN_OBJECT.deep[0])


@refused(r"MODULE\.t")
def an_attribute_of_a_module(t: Any) -> Any:
    vars(MODULE)["t"] = t
    return lambda rows: wave(rows, MODULE.t)


BESIDE = """
def chunk(rows):
    from . import beside
    return wave(rows, beside.t)
"""


@refused(r"carrying\.beside\.t")
def an_attribute_of_a_module_beside_it(t: Any) -> Any:
    package, beside = types.ModuleType("carrying"), types.ModuleType("carrying.beside")
    vars(beside)["t"], vars(package)["beside"] = t, beside
    sys.modules |= {"carrying": package, "carrying.beside": beside}
    own: dict[str, Any] = {"__name__": "carrying.own", "__package__": "carrying", "wave": wave}
    exec(BESIDE, own)
    return own["chunk"]


@refused(r"Shared\.t")
def an_attribute_of_a_class(t: Any) -> Any:
    Shared.t = t
    return Shared()


@refused(r"Shared\.t")
def an_attribute_of_a_global_class(t: Any) -> Any:
    Shared.t = t
    return lambda rows: wave(rows, Shared.t)


@refused(".")
def a_context_variable(t: Any) -> Any:
    VARIABLE.set(t)
    return lambda rows: wave(rows, VARIABLE.get())


@refused(".")
def a_local_class(t: Any) -> Any:
    class Local:
        def __call__(self, rows: Any) -> Any:
            return wave(rows, t)

    return Local()


@refused(".")
def an_iterator(t: Any) -> Any:
    values = iter([t] * 99)
    return lambda rows: wave(rows, next(values))


@pytest.fixture
def _clean() -> Any:
    yield
    globals()["GLOBAL"], Shared.t, IN_AN_OBJECT.deep[0] = None, None, None
    IN_A_LIST.clear()
    vars(MODULE).pop("t", None)
    sys.modules.pop("carrying", None)
    sys.modules.pop("carrying.beside", None)


@pytest.mark.usefixtures("_clean")
@pytest.mark.parametrize("name", REFUSED)
def test_a_traced_value_that_cannot_be_replaced_is_refused_by_name(name: str, scheduler: Any) -> None:
    build, found = REFUSED[name]
    for more in ((), (0.5,)):  # another value is differentiated as an argument, or none

        def loss(t: Any, more: Any = more) -> Any:
            fun = build(t)
            chunk = (lambda rows, u: fun(rows) * u) if more else fun
            return dagad.reduce_sum(chunk, ROWS, *(t * u for u in more), grainsize=4, scheduler=scheduler)

        with pytest.raises((dagad.ClosureError, dagad.PortabilityError), match=found) as caught:
            dagad.grad(loss)(0.7)
        assert "shared argument" in str(caught.value) or (found == "." and "can't be pickled" in str(caught.value))


@pytest.mark.usefixtures("_clean")
def test_a_traced_global_that_nobody_differentiates_in_is_allowed(scheduler: Any) -> None:
    for build, _ in list(REFUSED.values())[:7]:
        build(0.7)
    loss = functools.partial(
        dagad.reduce_sum, lambda rows, t: np.sum(rows * t) * IN_AN_OBJECT.deep[0], ROWS, grainsize=4
    )
    assert dagad.grad(functools.partial(loss, scheduler="threads"))(1.0) == pytest.approx(ROWS.sum() * 0.7)


def test_forward_mode_of_autograd_through_a_closure_is_refused_or_right() -> None:
    jvp = autograd.make_jvp(lambda t: dagad.reduce_sum(lambda rows: wave(rows, t), ROWS, grainsize=4))
    try:
        tangent = jvp(0.7)(1.0)[1]
    except (NotImplementedError, dagad.DagadError):
        return
    assert tangent == pytest.approx(expected_at(0.7)[1], rel=1e-12)


DESCRIPTORS: dict[str, Callable[[Any], Any]] = {
    "property": lambda t: property(lambda self: t),
    "staticmethod": lambda t: staticmethod(lambda: t),
    "cached_property": lambda t: functools.cached_property(lambda self: t),
    "partialmethod": lambda t: functools.partialmethod(max, t),
}


@pytest.mark.parametrize("kind", DESCRIPTORS)
def test_a_descriptor_that_holds_a_traced_value_is_refused_before_any_chunk_runs(kind: str) -> None:
    def loss(t: Any) -> Any:
        held = DESCRIPTORS[kind](t)
        return dagad.reduce_sum(lambda rows: np.sum(rows) * (held is not None), ROWS, grainsize=3, scheduler="sync")

    with pytest.raises(dagad.ClosureError, match=f"held by a `{kind}`.*as a shared argument"):
        dagad.grad(loss)(1.5)
