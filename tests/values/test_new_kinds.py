"""A new kind of thing: does one line in the table make every visitor see what is inside?"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad
from dagad._values import kinds
from dagad._values.carried import Carried
from dagad._values.closures import closure_convert
from dagad._values.contents import made_by
from dagad._values.digest import digest
from dagad._values.fingerprint import fingerprint, same
from dagad._values.shipping import opened, pack
from dagad._values.walk import Walk
from dagad.extend import Recompute

ROWS = np.arange(1.0, 7.0)


class Sealed:
    """Holds something where no attribute leads, as what is written in C does."""

    __slots__ = ("_held",)


SLOT: Any = vars(Sealed)["_held"]
type.__delattr__(Sealed, "_held")


def seal(made: Any, parts: Any) -> None:
    for part in parts:
        SLOT.__set__(made, part)


def content(thing: Any) -> Any:
    return SLOT.__get__(thing)


def sealed(held: Any) -> Sealed:
    made = Sealed()
    seal(made, [held])
    return made


THE_LINE = kinds.Kind(
    rest=lambda obj: (content(obj),),
    making=lambda obj: (functools.partial(made_by, Sealed), seal),
    labels="what is sealed in {}",
    is_whole=True,
    needs_table=True,
)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setitem(kinds._EXACT, Sealed, THE_LINE)


def chunk_of(thing: Sealed) -> Callable[..., Any]:
    return lambda rows, *t: np.sum(rows) * content(thing) * sum(t, 1.0)


def is_noticed_by(look: Callable[[Any], Any], alike: Callable[[Any, Any], bool]) -> bool:
    """Return whether a look at a function tells what it holds from something else, and from nothing else."""
    thing = sealed(1.0)
    chunk = chunk_of(thing)
    before = look(chunk)
    stays = alike(before, look(chunk))
    seal(thing, [2.0])
    return stays and not alike(before, look(chunk))


def equal(one: Any, other: Any) -> bool:
    return bool(one == other)


def test_a_traced_value_in_it_is_found_and_replaced(line: Any) -> None:
    def loss(t: Any) -> Any:
        found.append(len(closure_convert(chunk_of(sealed(t)))[0]))
        return dagad.reduce_sum(chunk_of(sealed(t**2)), ROWS, grainsize=2, scheduler="sync")

    found: list[int] = []
    line()
    assert dagad.value_and_grad(loss)(1.5) == (21.0 * 1.5**2, 21.0 * 3.0)
    assert dagad.hessian(loss)(1.5) == 42.0
    assert set(found) == {1}


def test_it_is_called_as_the_line_says(line: Any) -> None:
    chunk = chunk_of(sealed(1.0 + 1.0j))
    assert not Walk(chunk, {complex}).ways()
    line()
    ((value, way),) = Walk(chunk_of(sealed({"a": Marked()})), {Marked}).ways()
    assert (type(value), way) == (Marked, "['a'] of what is sealed in `thing` in `chunk_of.<locals>.<lambda>`")


class Marked:
    pass


LOOKS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], bool]]] = {
    "fingerprint": (fingerprint, same),
    "fingerprint here": (functools.partial(fingerprint, here=True), same),
    "digest": (digest, equal),
    "digest here": (functools.partial(digest, here=True), equal),
}


@pytest.mark.parametrize("look", LOOKS)
def test_its_content_counts_for_whether_a_function_is_the_same(look: str, line: Any) -> None:
    line()
    assert is_noticed_by(*LOOKS[look])


def test_without_the_line_nothing_looks_inside() -> None:
    """Else this file would show nothing."""
    assert not is_noticed_by(fingerprint, same)
    assert not is_noticed_by(digest, equal)
    with pytest.raises(AttributeError):
        content(through_a_pickle(sealed(1.0)))


def through_a_pickle(thing: Any) -> Any:
    return opened(pickle.loads(pickle.dumps(pack(thing))))


def test_recompute_notices_that_its_content_has_changed(line: Any) -> None:
    line()
    thing = sealed(1.0)
    chunk = chunk_of(thing)
    Carried(chunk).settle().refuse_changes()
    options: Any = {"grainsize": 2, "scheduler": "sync", "policy": Recompute()}
    _, pull = dagad.vjp(lambda t: dagad.reduce_sum(chunk, ROWS, t, **options), 1.0)
    seal(thing, [2.0])
    with pytest.raises(dagad.ClosureError, match="is not what it was at the value: `thing` in its closure"):
        pull(1.0)


def test_it_travels_with_its_content(line: Any, cluster: Any) -> None:
    line()
    thing = sealed([2.0])
    seal(thing, [[2.0, thing]])  # it leads back to itself

    def chunk(rows: Any, t: Any) -> Any:
        number, again = content(thing)
        return np.sum(rows) * number * t * (again is thing)

    found = dagad.value_and_grad(lambda t: dagad.reduce_sum(chunk, ROWS, t, grainsize=2, scheduler=cluster))(1.5)
    assert found == (63.0, 42.0)
    assert content(through_a_pickle(sealed(1.0))) == 1.0
