"""What Python gives locks and caches can't travel by value: is it named, with a module as the remedy?"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest

import dagad
from dagad._values.shipping import opened, pack

SOURCE = """
import functools

@functools.singledispatch
def doubled(rows):
    return 2 * rows

def chunk(rows):
    return doubled(rows)

class Model:
    @functools.cached_property
    def factor(self):
        return 2

    def __call__(self, rows):
        return self.factor * rows
"""


@pytest.fixture
def module() -> Any:
    """Return a module that travels by value, as what is defined in a program does."""
    made = types.ModuleType("a_program")
    sys.modules[made.__name__] = made
    exec(SOURCE, vars(made))
    cloudpickle.register_pickle_by_value(made)
    yield made
    with_value = cloudpickle.list_registry_pickle_by_value()
    if made.__name__ in with_value:
        cloudpickle.unregister_pickle_by_value(made)
    del sys.modules[made.__name__]


MADE: dict[str, Callable[[Any], Any]] = {
    "doubled": lambda module: module.chunk,
    "Model": lambda module: module.Model(),
}
CACHED_HAS_A_LOCK = hasattr(functools.cached_property(len), "lock")  # until Python 3.11


@pytest.mark.parametrize("name", MADE)
def test_a_thing_that_python_gives_locks_is_named_and_travels_by_a_module(name: str, module: Any) -> None:
    fun = MADE[name](module)
    if name == "doubled" or CACHED_HAS_A_LOCK:
        with pytest.raises(dagad.PortabilityError, match=rf"`{name}`, or what it holds.*into a module"):
            pack(fun)
    cloudpickle.unregister_pickle_by_value(module)
    np.testing.assert_array_equal(opened(pack(fun))(np.arange(3.0)), 2 * np.arange(3.0))
