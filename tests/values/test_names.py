"""Names in code: does a function have on workers what it means here by words, and in classes that it defines?"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest

import dagad
from dagad._values.shipping import pack

X = np.arange(1.0, 13.0).reshape(6, 2) / 3.0
THETA = np.array([0.7, -0.3])

# Of a script: what it defines goes by value.
SCRIPT: dict[str, Any] = {"__name__": "__main__", "lock": threading.Lock(), "other": 2.0}
exec(
    """
def asked_for():
    return globals().get("rate", 1.0)

def looked_up():
    return globals()["rate"]

def looked_up_in_turn():
    return sum(globals()[name] for name in ("rate", "other")) - 2.0

def looked_up_by_helper():
    return [globals()["looked_up"]() for _ in range(2)][0]

def named_by_a_class():
    class Held:
        now = rate

        def there(self, factor=other):
            class Inner:
                now = rate
            return Inner.now * factor / 2.0
    return Held().there() * Held.now / rate

def evaluated():
    return eval("rate * 2") / 2.0

def put_together():
    return eval(f"rate * {1}")

def executed():
    found = {}
    exec("now = rate + other - 2.0", globals(), found)
    return found["now"]

def beside_a_lock():
    return looked_up() if globals().get("lock") is None or True else 0.0

def again(count=3):
    return globals()["again"](count - 1) if count else looked_up()
""",
    SCRIPT,
)
FUNCTIONS = {name: value for name, value in SCRIPT.items() if callable(value)}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("how", ["rows", "Shards"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_global_that_code_means_by_a_word_is_on_workers_what_it_is_here(name: str, how: str, cluster: Any) -> None:
    number: Callable[[], float] = FUNCTIONS[name]
    data: Any = dagad.shard(X, grainsize=2, scheduler=cluster) if how == "Shards" else X
    options = {} if how == "Shards" else {"grainsize": 2, "scheduler": cluster}

    def chunk(rows: Any, theta: Any) -> Any:
        return number() * anp.sum(rows * theta**2)

    for rate in (3.0, 3.0, 5.0, 5.0, 3.0):
        SCRIPT["rate"] = rate
        value, gradient = dagad.value_and_grad(lambda t: dagad.reduce_sum(chunk, data, t, **options))(THETA)
        np.testing.assert_allclose(value, rate * np.sum(X * THETA**2), rtol=1e-13)
        np.testing.assert_allclose(gradient, rate * 2.0 * X.sum(0) * THETA, rtol=1e-13)


def test_a_global_that_no_code_means_does_not_travel() -> None:
    SCRIPT["rate"], SCRIPT["unused"] = 1.0, np.zeros(10_000)
    for function in FUNCTIONS.values():
        parcel = pack(function)
        assert sum(memoryview(part).nbytes for part in parcel.payload) < 10_000
