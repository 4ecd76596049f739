"""What users ask of dagad's objects by the habits of other packages, answered with what there is instead."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from dagad._errors import ArgumentsError, MissingNameError

C = TypeVar("C", bound=type)
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
ARITHMETIC = (*(f"__{one}__" for one in _BINARY), *(f"__r{one}__" for one in _BINARY), "__neg__", "__abs__")


def answering(
    what: str, attributes: Callable[[str], str | None], methods: Mapping[str, tuple[str, str]]
) -> Callable[[C], C]:
    """Have a class that lists what is `for_users` answer other attributes, and special methods, by sentences.

    Type checkers and completion see nothing of it, and what was missing is missing still: for ``hasattr`` too.

    Parameters
    ----------
    what
        What sentences call it, with a verb: "An Evaluation has".
    attributes
        From a name to what to write instead of it; None where nobody knows: then the nearest one is named.
    methods
        By the name of a special method, what was done, and what to write instead.
    """

    def decorated(cls: Any) -> Any:
        def missing(self: Any, asked: str) -> Any:
            if asked.startswith("_") or asked in cls.for_users:  # of tools; or a property of ours has failed
                return object.__getattribute__(self, asked)
            raise MissingNameError(f"{what} no `.{asked}`. {attributes(asked) or _nearest(asked, cls.for_users)}")

        cls.__getattr__ = missing
        for method, (done, instead) in methods.items():
            setattr(cls, method, _refusing(f"{what.rpartition(' ')[0]} can't be {done}. {instead}"))
        return cls

    return decorated


def _nearest(asked: str, names: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(asked.lower(), names, n=1)
    return f"Did you mean `.{near[0]}`?" if near else f"There are {', '.join(f'`.{one}`' for one in names)}."


def _refusing(sentence: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise ArgumentsError(sentence)

    return refuse
