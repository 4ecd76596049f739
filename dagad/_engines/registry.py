"""Engines: what differentiates one task. One engine a file."""

from __future__ import annotations

from typing import Any

from dagad._config import setting
from dagad._engines.autograd.tape import AutogradEngine
from dagad._engines.base import Engine
from dagad._engines.explicit import Explicit, ExplicitEngine
from dagad._errors import PlanError

_ENGINES: dict[str, type[AutogradEngine] | type[ExplicitEngine]] = {
    "autograd": AutogradEngine,
    "explicit": ExplicitEngine,
}


def find_engine(engine: Any, fun: Any) -> Engine:
    """Return the engine that a name means, or the one that a function brings along."""
    if isinstance(fun, Explicit):
        return ExplicitEngine()
    chosen = setting("engine") if engine is None else engine
    if isinstance(chosen, str):
        if chosen not in _ENGINES:
            raise PlanError(f"There is no engine {chosen!r}. Choose one of {sorted(_ENGINES)}, or give an object.")
        return _ENGINES[chosen]()
    if not callable(getattr(chosen, "linearize", None)):
        raise PlanError(f"`engine={chosen!r}` is no engine: it has no method `linearize`. See `dagad.extend.Engine`.")
    return chosen  # type: ignore[no-any-return]  # anything with the method is an engine
