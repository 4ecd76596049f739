"""Engines: what differentiates one task. One engine a file."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dagad._config import setting
from dagad._engines.autograd import AutogradEngine
from dagad._engines.explicit import ExplicitEngine
from dagad._errors import PlanError
from dagad._tracing.flat_functions import Engine
from dagad._types import AnyEngine
from dagad._words import described


def _jax() -> Engine:
    try:
        from dagad._engines.jax import JaxEngine
    except ModuleNotFoundError as error:
        raise _not_installed("jax") from error
    return JaxEngine()


def _torch(device: str = "cpu") -> Engine:
    try:
        from dagad._engines.torch import TorchEngine
    except ModuleNotFoundError as error:
        raise _not_installed("torch") from error
    return TorchEngine(device)


def _not_installed(library: str) -> PlanError:
    return PlanError(
        f'`engine="{library}"` needs {library}, which is not installed here: `pip install "dagad[{library}]"`, on the '
        "workers too."
    )


_ENGINES: dict[str, Callable[[], Engine]] = {
    "autograd": AutogradEngine,
    "explicit": ExplicitEngine,
    "jax": _jax,
    "torch": _torch,
    "torch:cuda": functools.partial(_torch, "cuda"),
}
_METHODS = ("takes", "value", "linearize", "pushforward", "pullback")


def own_engine(fun: object) -> tuple[Any, Engine | None]:
    """Return a function, and the engine that it brings along; methods such as `Explicit.value` stand for their own."""
    owner = getattr(fun, "__self__", fun)
    found = getattr(owner, "__dagad_engine__", None)
    return (fun, None) if found is None else (owner, found)


def find_engine(engine: AnyEngine, fun: object) -> Engine:
    """Return the engine that a name means, or the one that a function brings along."""
    own = own_engine(fun)[1]
    if own is not None:
        return own
    chosen = setting("engine") if engine is None else engine
    if isinstance(chosen, str):
        if chosen not in _ENGINES:
            raise PlanError(
                f"There is no engine {chosen!r}. Choose one of {sorted(_ENGINES)}, or give a `dagad.extend.Engine`."
            )
        made = _ENGINES[chosen]()
        return made if chosen == "autograd" else _checked(made)  # numpy has no such settings
    missing = [name for name in _METHODS if not callable(getattr(chosen, name, None))]
    if missing or isinstance(chosen, type):
        what = f"has no method `{missing[0]}`" if missing else "is a class; give an object of it"
        raise PlanError(
            f"`engine=` was given {described(chosen)}, which is not an engine: it {what}. Give a name, one of "
            f"{sorted(_ENGINES)}, or an object with the methods of `dagad.extend.Engine`. What chunks get follows the "
            "data, by position."
        )
    return _checked(chosen)


def _checked(engine: Engine) -> Engine:
    """Return an engine, if the calling thread has no settings of its library's that chunks elsewhere have not."""
    check = getattr(engine, "check_around", None)
    if check is not None:
        check()
    return engine
