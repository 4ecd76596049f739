"""What holds a number that others change: is a derivative of what ran before that of the number as it was, or refused?

All that may hold one, by the table that explicit functions are tried with too: what one of those who ask knows, all do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dagad
from dagad import solvers
from support.holders import HOLDERS, ROWS

# What can't be made again as it was, or is everybody's: a change of it is refused by name
REFUSED = {
    "a class": "`Own.shared`",
    "a class with a property of its own": r"`OfMeta\._rows`",
    "a class that is given": "of",
    "a context variable": "a part of",
    "a file of bytes": "what is in a variable",
    "a generator": "of",
    "a large array": "`held` of",
    "a list of a base class": r"`Above\.kept`",
    "a module": r"`notebook\.rows`",
    "a module that is imported": r"`rows_of_holders\.rows`",
    "a strided view of bytes": "what is in a variable",
    "a list of what is closed": "of",
    "a shelf": "of",
    "a thread local": "`rows` of",
    "an array of what is closed": "of",
    "an error": "of",
    "memory of processes": "of",
    "methods of a class": r"`OfClass\._rows`",
    "what is remembered": "of",
}
BY_NAME = {
    "a code that is given",
    "a property that is cached",
    "a vertex",
    "an edge",
    "what is found at the first call",
}  # refused there alone
PAIRS = [ROWS[start : start + 2] for start in (0, 2, 4)]


def solved(read: Callable[[], Any], put: Callable[[Any], Any], a: Any) -> Any:
    total: Any = 0.0
    for rows in PAIRS:
        put(rows)
        total = total + solvers.quad(lambda x: np.exp(-a * x) * read()[0, 0], 0.0, 1.0)[0] ** 2
    return total


def by_name(get: Callable[[], Any]) -> Callable[[], Any]:
    scope: dict[str, Any] = {"get": get}
    exec("def read(): return get()", scope)
    read: Callable[[], Any] = scope["read"]
    return read


@pytest.mark.parametrize("way", ["held", "by name"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_solver_has_the_number_of_its_own_call_or_refuses(holder: str, way: str) -> None:
    put, get = HOLDERS[holder]()
    read = get if way == "held" else by_name(get)
    exact = dagad.grad(lambda a: sum(((1.0 - np.exp(-a)) / a * rows[0, 0]) ** 2 for rows in PAIRS))(0.7)
    if holder in REFUSED or (way == "by name" and holder in BY_NAME):
        said = REFUSED.get(holder, "of")
        with pytest.raises(dagad.ClosureError, match=f"not what it was then: .*{said}"):
            dagad.grad(lambda a: solved(read, put, a))(0.7)
    else:
        found = dagad.grad(lambda a: solved(read, put, a))(0.7)
        assert found == pytest.approx(exact, rel=1e-8)


def chunk(rows: Any, t: Any) -> Any:
    return np.sum(rows) * t


@pytest.mark.parametrize("holder", HOLDERS)
def test_members_find_what_they_have_left_for_themselves_in_any_holder(holder: str) -> None:
    put, get = HOLDERS[holder]()

    def program(number: Any, t: Any) -> Any:
        put(PAIRS[int(number)])
        return dagad.reduce_sum(chunk, np.arange(4.0), t) * get()[0, 0]

    found = dagad.vmap(program, in_axes=(0, None))(np.arange(3), 1.5)
    np.testing.assert_allclose(found, [9.0 * rows[0, 0] for rows in PAIRS])
