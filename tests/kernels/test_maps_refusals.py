"""Maps: what is refused, in which words, and does a user's own error arrive as it is?"""

from __future__ import annotations

from typing import Any

import autograd.numpy as np
import numpy as onp
import pytest
from distributed import Client

import dagad
from dagad.extend import explicit

RNG = onp.random.default_rng(3)
N = 7
X, Y = RNG.standard_normal((N, 3)), RNG.standard_normal(N)
RAGGED = [RNG.standard_normal(length) for length in (3, 1, 0, 5, 2, 2, 4)]


def wave(job: Any, rate: Any) -> Any:
    return np.sin(rate * job)


MODES: Any = {
    "value": lambda loss, x: loss(x),
    "gradient": lambda loss, x: dagad.grad(lambda x: np.sum(loss(x)))(x),
    "jvp": lambda loss, x: dagad.jvp(loss, (x,), (x,)),
    "hvp": lambda loss, x: dagad.hvp(lambda x: np.sum(loss(x)), (x,), (x,)),
}
UNLIKE: Any = {
    "shape": (lambda x: x, r"shape.*\(3,\) and \(1,\).*`dagad.map_rect`"),
    "dimension": (lambda x: x if len(x) == 3 else np.sum(x), r"shape.*\(3,\) and \(\).*`dagad.map_rect`"),
    "name": (lambda x: {"a" if len(x) == 3 else "b": np.sum(x)}, "return the same for every item.*'a'.*'b'"),
    "count": (lambda x: (np.sum(x),) * (1 + len(x) % 2), "return the same for every item"),
    "None": (lambda x: (np.sum(x), None if len(x) == 3 else 1.0), "return the same for every item"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("grainsize", [1, 4])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", UNLIKE)
def test_items_of_a_map_that_give_different_structures_are_refused(name: str, mode: str, grainsize: int) -> None:
    f, sentence = UNLIKE[name]
    items = [RAGGED[0], RAGGED[1] if name != "count" else RAGGED[4]]
    with pytest.raises(dagad.DagadError, match=sentence) as raised:
        MODES[mode](lambda x: dagad.map(f, x, grainsize=grainsize, scheduler="sync"), items)
    assert grainsize == 1 or "chunk 0 (rows 0:2)" in " ".join(raised.value.__notes__)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("grainsize", [1, 4])
def test_map_rect_needs_arrays_of_one_dimension(grainsize: int, mode: str) -> None:
    flat: Any = (np.sum, lambda x: np.outer(x, x), lambda x: [x], lambda x: None, lambda x: "a", lambda x: [])
    for f in flat:
        with pytest.raises(dagad.DagadError, match=r"Return "):
            MODES[mode](lambda x, f=f: dagad.map_rect(f, x, grainsize=grainsize, scheduler="sync"), RAGGED[:2])
    with pytest.raises(dagad.DagadError, match=r"`map_rect` needs an array of one.*float64.*`np.atleast_1d\(value\)`"):
        MODES[mode](lambda x: dagad.map_rect(np.sum, x, grainsize=grainsize, scheduler="sync"), RAGGED[:2])


@pytest.mark.parametrize("mode", MODES)
def test_a_map_that_returns_nothing_or_words_is_refused(mode: str) -> None:
    functions: Any = (lambda x: None, lambda x: [], lambda x: "a", lambda x: (x, "a"))
    for f in functions:
        with pytest.raises(dagad.DagadError, match="Return a number, an array, or tuples, lists and dicts of these"):
            MODES[mode](lambda x, f=f: dagad.map(f, x, grainsize=2, scheduler="sync"), RAGGED)


@pytest.mark.parametrize("mapping", [dagad.map, dagad.map_rect])
def test_wrong_arguments_of_a_map_are_refused_with_the_remedy(mapping: Any) -> None:
    for size in (0, -1, 1.5, "some", True):
        with pytest.raises(dagad.DagadError, match="Give a positive int"):
            mapping(wave, RAGGED, 0.7, grainsize=size)
    with pytest.raises(dagad.DagadError, match=r"different numbers of rows.*has 7.*has 3"):
        mapping(wave, (Y, Y[:3]), 0.7)
    with pytest.raises(dagad.DagadError, match="which has no rows"):
        mapping(wave, 1.0, 0.7)
    with pytest.raises(dagad.DagadError, match=r"only int64. Convert"):
        dagad.grad(lambda n: np.sum(mapping(lambda i, t: i * t, n, 1.0)))(onp.arange(3))
    marked = explicit(lambda x, t: (x * t, lambda s: (s * t, s * x)))
    with pytest.raises(dagad.DagadError, match="without `explicit`"):
        dagad.jvp(lambda t: mapping(marked, RAGGED, t, scheduler="sync"), 1.0, 1.0)


class OwnError(Exception):
    pass


def stumbling(item: Any, theta: Any) -> Any:
    if item["n"] == 5:
        raise OwnError("over 5")
    return item["x"] * theta


@pytest.mark.parametrize("mode", MODES)
def test_a_users_error_arrives_with_the_item_that_it_is_about(mode: str, cluster: Client) -> None:
    for scheduler in ("sync", cluster) if mode in ("value", "gradient") else ("sync",):
        with pytest.raises(OwnError, match="over 5") as raised:
            MODES[mode](
                lambda x, s=scheduler: dagad.map(
                    stumbling, {"x": x, "n": list(range(N))}, 2.0, grainsize=3, scheduler=s
                ),
                X,
            )
        notes = " ".join(raised.value.__notes__)
        assert "chunk 1 (rows 3:6)" in notes
        assert "item 5" in notes


def test_an_error_in_a_pullback_names_the_item() -> None:
    @explicit
    def job(item: Any) -> Any:
        def pullback(seed: Any) -> Any:
            if item == Y[4]:
                raise OwnError("backwards")
            return (seed,)

        return item, pullback

    with pytest.raises(OwnError, match="backwards") as raised:
        dagad.grad(lambda y: np.sum(dagad.map(job, y, grainsize=3, scheduler="sync")))(Y)
    assert "pullback of chunk 1 (rows 3:6)" in " ".join(raised.value.__notes__)
    assert "dagad: item 4" in raised.value.__notes__
