"""What has a derivative of its own, or needs plain numbers, met by values that jax or torch follows.

These differentiate the operations that are done, and know no rule of ours: a search has the derivative zero. So what
goes by a rule refuses to be differentiated there, and what is scipy's is not called.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from dagad._engines.xla import lines
from dagad._errors import NotDifferentiableError
from dagad._types import Value
from dagad._values.walk import Walk


class _Followed:
    """The classes of values that jax traces, and of torch's tensors."""

    def __contains__(self, cls: Any) -> bool:
        return any(_is_library(base, "jax", "Tracer") or _is_library(base, "torch", "Tensor") for base in cls.__mro__)


def _is_library(cls: type, library: str, name: str) -> bool:
    return cls.__name__ == name and cls.__module__.partition(".")[0] == library


_FOLLOWED = _Followed()


def _library(value: Value) -> str:
    return "torch" if any(_is_library(base, "torch", "Tensor") for base in type(value).__mro__) else "jax"


def _is_anybody_there() -> bool:
    """Return whether jax or torch follows anything in this thread: seldom, and quickly seen."""
    with contextlib.suppress(ImportError):  # of a release that we don't know; plain solvers go on
        if "jax" in sys.modules:
            from dagad._engines.xla.watched import is_tracing

            if is_tracing():
                return True
    with contextlib.suppress(ImportError):
        if "torch" in sys.modules:
            from dagad._engines.torch_levels import is_inside

            return is_inside()
    return False


def refuse_derivatives(what: str, how: str, *given: Any) -> None:
    """Have values refuse derivatives that jax or torch would take of the code of something, which has its own rule."""
    for value, _ in Walk(given, _FOLLOWED).ways() if _is_anybody_there() else ():
        if _library(value) == "torch":
            from dagad._engines import torch_levels as home
        else:
            from dagad._engines.xla import watched as home  # type: ignore[no-redef]  # each has this
        home.refuse_derivatives(value, what, how)


def refuse_numbers(what: str, *given: Any) -> None:
    """Refuse to call a solver of scipy's, which takes ordinary numbers, with values that jax or torch follows."""
    for value in Walk(given, _FOLLOWED).boxes.values() if _is_anybody_there() else ():
        raise NotDifferentiableError(
            f"{lines.here()} calls {what} with values that {_library(value)} follows, and what it "
            "calls of scipy's computes with ordinary numbers. Leave out `engine=`, and the setting `dagad.engine`, and "
            "write the function with numpy: autograd, the default engine, goes by the derivative that it has."
        )
