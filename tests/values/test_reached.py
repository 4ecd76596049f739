"""What a function reaches by name, or holds in classes derived from others: does every visitor see it change?"""

from __future__ import annotations

import collections
import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, ClassVar

import autograd.numpy as anp
import numpy as np
import pytest

import dagad
from dagad._values.carried import Carried
from dagad._values.closures import closure_convert, with_arrays
from dagad._values.digest import digest
from dagad._values.fingerprint import fingerprint, identity_of, same
from dagad._values.walk import Walk
from dagad.extend import Linearization, Recompute

Case = tuple[Callable[..., Any], Callable[[], Any]]
RATES: Any = ModuleType("rates_of_this_test")
PACKAGE: Any = ModuleType("package_of_this_test")
CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    return CASES.setdefault(make.__name__, make)


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (RATES, PACKAGE):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        module.rate, module.unused = 1.0, 1.0
    PACKAGE.rates = RATES
    yield
    vars(PACKAGE).pop("table", None)


def rate_of(module: Any) -> Any:
    return module.rate


def rate_of_a_part(package: Any) -> Any:
    return rate_of(package.rates)


@case
def a_global_module_that_is_handed_to_a_helper() -> Case:
    return lambda rows, t: np.sum(rows) * t**2 * rate_of(RATES), lambda: setattr(RATES, "rate", 2.0)


@case
def a_module_in_a_module_that_is_handed_to_a_helper() -> Case:
    return lambda rows, t: np.sum(rows) * t**2 * rate_of_a_part(PACKAGE), lambda: setattr(RATES, "rate", 2.0)


@case
def a_module_that_is_imported_by_a_word() -> Case:
    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(rows) * t**2 * importlib.import_module("rates_of_this_test").rate

    return chunk, lambda: setattr(RATES, "rate", 2.0)


@case
def a_function_that_numpy_was_given() -> Case:
    held = [1.0]
    scaled = np.frompyfunc(lambda x: x * held[0], 1, 1)
    return lambda rows, t: np.sum(rows) * t**2 * scaled(1.0), lambda: held.__setitem__(0, 2.0)


class Weights(np.ndarray[Any, Any]):
    pass


@case
def numbers_of_an_array_of_a_class_of_its_own() -> Case:
    weights = np.ones(2).view(Weights)
    return lambda rows, t: np.sum(rows) * t**2 * float(weights[0]), lambda: weights.__setitem__(0, 2.0)


@case
def numbers_of_a_masked_array() -> Case:
    weights = np.ma.array([1.0, 1.0], mask=[False, True])
    return lambda rows, t: np.sum(rows) * t**2 * float(weights[0]), lambda: weights.__setitem__(0, 2.0)


@case
def an_attribute_of_a_class_of_dicts() -> Case:
    class Table(dict[str, float]):
        rate = 1.0

    table = Table()
    return lambda rows, t: np.sum(rows) * t**2 * table.rate, lambda: setattr(Table, "rate", 2.0)


@case
def an_attribute_of_a_class_of_counters() -> Case:
    class Table(collections.Counter[str]):
        rate = 1.0

    table = Table()
    return lambda rows, t: np.sum(rows) * t**2 * table.rate, lambda: setattr(Table, "rate", 2.0)


@case
def an_attribute_of_a_class_of_lists() -> Case:
    class Table(list[float]):
        rate = 1.0

    table = Table()
    return lambda rows, t: np.sum(rows) * t**2 * table.rate, lambda: setattr(Table, "rate", 2.0)


@pytest.mark.parametrize("name", CASES)
def test_a_change_is_in_the_digest_and_in_the_fingerprint_of_its_function(name: str) -> None:
    chunk, change = CASES[name]()
    looks: list[tuple[Callable[[], Any], Callable[[Any, Any], bool]]] = [
        (functools.partial(digest, chunk), lambda a, b: bool(a == b)),
        (functools.partial(digest, chunk, here=True), lambda a, b: bool(a == b)),
        (functools.partial(fingerprint, chunk, here=True), same),
    ]
    before = [look() for look, _ in looks]
    assert [before[0], before[1]] == [looks[0][0](), looks[1][0]()]
    change()
    assert not any(alike(found, look()) for found, (look, alike) in zip(before, looks, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_recompute_notices_what_a_function_reaches_by_name(name: str) -> None:
    chunk, change = CASES[name]()
    Carried(chunk).settle().refuse_changes()
    options: Any = {"grainsize": 2, "scheduler": "sync", "policy": Recompute()}
    _, pull = dagad.vjp(lambda t: dagad.reduce_sum(chunk, np.arange(4.0), t, **options), 1.5)
    change()
    with pytest.raises(dagad.ClosureError, match=r"is not what it was at the value: .*as a shared argument"):
        pull(1.0)


class Again:
    """A policy with what its protocol names, and no more: it does not say that it runs chunks again."""

    value_and_grad = False

    def __init__(self) -> None:
        self.counters = Recompute().counters

    def linearize(self, task: Any, args: tuple[Any, ...]) -> Linearization:
        return Linearization.unrecorded(task, args, self.counters)


def test_a_policy_of_a_users_own_notices_a_change_that_leaves_the_value_alone() -> None:
    RATES.rate = 2.0
    how: Any = {"grainsize": 2, "scheduler": "sync", "policy": Again()}
    _, pull = dagad.vjp(lambda t: dagad.reduce_sum(power_of_rates, np.arange(4.0), t, **how), 1.0)
    RATES.rate = 3.0
    with pytest.raises(dagad.ClosureError, match=r"is not what it was at the value: .*as a shared argument"):
        pull(1.0)


def power_of_rates(rows: Any, t: Any) -> Any:
    return np.sum(rows * t**RATES.rate)


@pytest.mark.needs("jax")
@pytest.mark.parametrize("name", CASES)
def test_jax_compiles_again_for_what_a_function_reaches_by_name(name: str) -> None:
    chunk, change = CASES[name]()

    def evaluated() -> tuple[float, float]:
        options: Any = {"grainsize": 2, "scheduler": "sync", "engine": "jax"}
        value, slope = dagad.value_and_grad(lambda t: dagad.reduce_sum(jnp_chunk, np.arange(4.0), t, **options))(1.5)
        return float(value), float(slope)

    def jnp_chunk(rows: Any, t: Any) -> Any:
        return chunk(np.ones(1), 1.0) * rows.sum() * t**2

    assert evaluated() == evaluated() == (13.5, 18.0)
    change()
    assert evaluated() == (27.0, 36.0)


def test_recompute_says_which_name_of_a_module_has_changed_and_leaves_others_alone() -> None:
    chunk, change = CASES["a_global_module_that_is_handed_to_a_helper"]()
    carried = Carried(chunk).settle()
    RATES.unused = 2.0
    carried.refuse_changes()
    change()
    with pytest.raises(dagad.ClosureError, match=r"at the value: `rates_of_this_test\.rate`\. Pass"):
        carried.refuse_changes()


def test_a_counter_in_a_module_hides_no_other_change_in_it() -> None:
    def counting(module: Any) -> Any:
        module.unused += 1.0
        return module.rate

    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(rows) * t * counting(RATES)

    carried = Carried(chunk)
    chunk(np.ones(2), 1.0)
    carried.settle().refuse_changes()
    RATES.rate = 2.0
    with pytest.raises(dagad.ClosureError, match=r"`rates_of_this_test\.rate`"):
        carried.refuse_changes()


def test_a_traced_value_in_a_module_that_is_imported_by_a_word_is_refused_by_name() -> None:
    chunk, _ = CASES["a_module_that_is_imported_by_a_word"]()

    def loss(t: Any) -> Any:
        RATES.rate = t
        return dagad.reduce_sum(chunk, np.arange(4.0), 1.0, grainsize=2, scheduler="sync")

    with pytest.raises(dagad.ClosureError, match=r"`rates_of_this_test\.rate`.*shared argument"):
        dagad.grad(loss)(1.5)


def test_methods_of_one_object_have_digests_of_their_own() -> None:
    pair = (1.0, 2.0)
    assert digest(pair.__len__, here=True) != digest(pair.__getitem__, here=True)


class Answering:
    """Answers whoever asks for anything, and remembers what."""

    __slots__ = ("value",)
    asked: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return 1.0

    def __call__(self, rows: Any) -> Any:
        return rows

    def __eq__(self, other: object) -> bool:
        self.asked.append("==")
        return True

    def __hash__(self) -> int:
        return 0


def test_no_code_of_the_users_runs_in_what_every_evaluation_looks_through() -> None:
    thing = Answering()
    for chunk in (thing, lambda rows, held=thing: held, functools.partial(thing, 1), {"a": [thing]}.get):
        for look in (Walk, closure_convert, identity_of, fingerprint, functools.partial(fingerprint, here=True)):
            look(chunk)
            look([chunk, thing])
        with_arrays(chunk, np.copy)
    assert Answering.asked == []


PROGRAM = """
from dagad._values.digest import digest
class Names(set):
    pass
print(digest(Names(["a", "b", "c", "d", "e"])))
"""


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_a_class_of_sets_has_one_digest_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(found) == 1


@functools.cache
def cached(x: float) -> float:
    return 2.0 * x


def test_a_cached_function_travels(cluster: Any) -> None:
    """Pickle looks it up by its name, which a local one has not."""

    @functools.lru_cache(maxsize=4)
    def factorial(n: int) -> int:
        return n * factorial(n - 1) if n else 1

    def chunk(rows: Any, t: Any) -> Any:
        return anp.sum(rows) * t**2 * factorial(3) * cached(1.0)

    found = dagad.value_and_grad(lambda t: dagad.reduce_sum(chunk, np.ones(4), t, grainsize=2, scheduler=cluster))(1.5)
    assert found == (108.0, 144.0)
