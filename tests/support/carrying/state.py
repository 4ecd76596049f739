"""A module that tests put values into: imported by name, so another process finds it as it was written."""

from __future__ import annotations

import types
from typing import Any, ClassVar

value: Any = 1.0
record = types.SimpleNamespace(value=1.0, items=[1.0])
items: list[Any] = [1.0]


class Settings:
    """A class with a value and a container."""

    value: Any = 1.0
    items: ClassVar[list[Any]] = [1.0]

    def read(self) -> Any:
        return self.items[0]


def read() -> Any:
    return items[0]


def reset() -> None:
    global value
    value = record.value = Settings.value = 1.0
    items[:] = record.items[:] = Settings.items[:] = [1.0]
