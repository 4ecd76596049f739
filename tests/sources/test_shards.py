"""Shards: are they the data that they were made of, on every scheduler and beside whatever other arguments?"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from threading import Event
from typing import Any, NamedTuple

import autograd.numpy as anp
import dask.array as da
import numpy as np
import pytest
from dask.delayed import delayed
from distributed import Client

import dagad
from dagad._values import pytree
from support.clusters import pids_of
from support.gated_chunks import bits
from support.schedulers_of_shards import client as client, place as place, pool as pool
from support.waiting import PATIENCE, in_background, until

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
]

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((10, 3)), RNG.standard_normal(10)
RAGGED = [RNG.standard_normal(1 + number % 4) for number in range(10)]
THETA = np.array([0.3, -0.7, 1.1])


class Pair(NamedTuple):
    x: Any
    y: Any


DATA: dict[str, Any] = {
    "array": Y,
    "matrix": X,
    "columns": np.asfortranarray(X),
    "single": X.astype("f4"),
    "strided": RNG.standard_normal((20, 6))[::2, ::2],
    "integers": np.arange(10),
    "dict": {"x": X, "y": Y},
    "tuple": (Y, X),
    "record": Pair(X, {"y": Y}),
    "ragged": RAGGED,
    "mixed": {"x": X, "items": RAGGED, "more": [{"y": number, "word": "a"} for number in Y]},
}


def chunk(rows: Any, theta: Any) -> Any:
    """Return a number to which every part of the rows contributes."""
    numbers = [leaf for leaf in pytree.flatten(rows)[0] if not isinstance(leaf, str)]
    return sum(anp.sum(anp.tanh(leaf * theta[0]) * theta[1]) for leaf in numbers) + theta[2]


def of_an_item(item: Any, theta: Any) -> Any:
    return chunk((item,), theta)


def outcome(sliced: Any, theta: Any = THETA, fun: Any = chunk, **options: Any) -> list[bytes]:
    """Return the bits of value and gradient."""
    reduction = options.pop("reduction", dagad.reduce_sum)
    return bits(dagad.value_and_grad(lambda theta: reduction(fun, sliced, theta, **options))(theta))


def on_one_thread(data: Any, grainsize: int = 4, **options: Any) -> list[bytes]:
    return outcome(data, grainsize=grainsize, scheduler="sync", **options)


# The same data


@pytest.mark.sampled(18)
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_shards_give_the_bits_of_the_data_cut_alike(data: Any, place: Any) -> None:
    shards = dagad.shard(data, grainsize=4, scheduler=place)
    assert (shards.n_rows, shards.grainsize, len(shards.plan)) == (10, 4, 3)
    assert repr(shards).startswith("<Shards: 10 rows in 3 chunks on ")
    for _ in range(2):
        assert outcome(shards) == on_one_thread(data)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
def test_gathered_shards_are_the_data_that_were_cut(data: Any, place: Any) -> None:
    gathered = dagad.shard(data, grainsize=4, scheduler=place).gather()
    leaves, treedef = pytree.flatten(gathered)
    expected, structure = pytree.flatten(data)
    assert treedef == structure
    assert bits(leaves) == bits(expected)
    assert [np.asarray(leaf).dtype for leaf in leaves] == [np.asarray(leaf).dtype for leaf in expected]


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_shards_on_the_scheduler_processes_give_the_bits_of_one_thread() -> None:
    shards = dagad.shard({"x": X, "items": RAGGED}, grainsize=5, scheduler="processes")
    assert outcome(shards, scheduler="processes") == on_one_thread({"x": X, "items": RAGGED}, 5)


def test_shards_that_are_cut_automatically_are_cut_the_same_everywhere(client: Client) -> None:
    here, there = (dagad.shard(X, scheduler=where) for where in ("sync", client))
    assert here.plan == there.plan
    assert outcome(here) == outcome(there) == on_one_thread(X, here.grainsize)


def test_the_number_of_rows_of_a_chunk_may_be_said_again(place: Any) -> None:
    assert outcome(dagad.shard(X, grainsize=4, scheduler=place), grainsize=4) == on_one_thread(X)


@pytest.mark.parametrize("grainsize", ["auto", 1, 5])
def test_one_row_is_one_chunk(grainsize: Any, place: Any) -> None:
    assert outcome(dagad.shard(X[:1], grainsize=grainsize, scheduler=place)) == on_one_thread(X[:1])


@pytest.mark.parametrize("data", [X[:0], [], {"x": X[:0], "y": []}], ids=["array", "list", "dict"])
@pytest.mark.parametrize("grainsize", ["auto", 3])
def test_no_rows_are_no_chunks(data: Any, grainsize: Any, place: Any) -> None:
    shards = dagad.shard(data, grainsize=grainsize, scheduler=place)
    assert (shards.n_rows, len(shards.plan)) == (0, 0)
    value, gradient = dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, shards, theta))(THETA)
    assert (float(value), gradient.tolist()) == (0.0, [0.0, 0.0, 0.0])


def seen_in(shards: dagad.Shards) -> list[Any]:
    """Return what chunks are given, in this process."""
    seen: list[Any] = []

    def look(rows: Any) -> float:
        seen.append(rows)
        return 0.0

    dagad.reduce_sum(look, shards)
    return seen


def test_in_this_process_chunks_are_read_only_views_of_one_copy() -> None:
    for where in ("sync", "threads"):
        seen = seen_in(dagad.shard({"x": X, "y": Y}, grainsize=4, scheduler=where))
        assert not any(np.shares_memory(rows["x"], X) or np.shares_memory(rows["y"], Y) for rows in seen)
        assert len({id(rows["x"].base) for rows in seen}) == 1
        assert not any(rows["x"].flags.writeable for rows in seen)
        assert sum(len(rows["x"]) for rows in seen) == 10
    assert X.flags.writeable


@pytest.mark.sampled(2)
def test_map_sum_takes_shards(place: Any) -> None:
    for data in (X, RAGGED, {"x": X, "items": RAGGED}):
        shards = dagad.shard(data, grainsize=4, scheduler=place)
        found = outcome(shards, fun=of_an_item, reduction=dagad.map_sum)
        assert found == on_one_thread(data, fun=of_an_item, reduction=dagad.map_sum)


# Beside other arguments


def test_parameters_of_the_rows_may_stand_beside_shards(place: Any) -> None:
    shards = dagad.shard(X, grainsize=4, scheduler=place)

    def loss(data: Any, **options: Any) -> Callable[[Any, Any, Any], Any]:
        def of(own: Any, items: Any, theta: Any) -> Any:
            sliced = {"x": data, "own": own, "items": items}
            return dagad.reduce_sum(chunk, sliced, theta, **options)

        return of

    args = Y, [{"a": item, "n": 2} for item in RAGGED], THETA
    there, here = (
        dagad.value_and_grad(each, argnums=(0, 1, 2))(*args)
        for each in (loss(shards), loss(X, grainsize=4, scheduler="sync"))
    )
    assert bits(pytree.flatten(there)[0]) == bits(pytree.flatten(here)[0])
    assert there[1][0].shape == Y.shape
    assert bits([loss(shards)(*args)]) == bits([there[0]])  # and with nothing to differentiate in


def test_several_shards_that_were_cut_alike_are_columns(place: Any) -> None:
    one, other = (dagad.shard(part, grainsize=4, scheduler=place) for part in (X, RAGGED))
    for _ in range(2):
        assert outcome((one, other)) == on_one_thread((X, RAGGED))
        assert outcome({"b": one, "a": other, "c": one}) == on_one_thread({"b": X, "a": RAGGED, "c": X})


def test_shards_of_arrays_and_of_pieces_that_were_cut_alike_are_columns_and_tangents(place: Any) -> None:
    pieces = dagad.shard(da.from_array(X, chunks=4), scheduler=place)
    loaded = dagad.shard([delayed(X[start : start + 4]) for start in (0, 4, 8)], scheduler=place)
    array = dagad.shard(X, grainsize=4, scheduler=place)
    expected = outcome((array, array))
    assert outcome((pieces, array)) == outcome((loaded, pieces)) == expected

    def total(rows: Any) -> Any:
        return dagad.reduce_sum(chunk, rows, THETA)

    tangents_out = {
        float(dagad.jvp(total, (one,), (other,))[1]) for one in (pieces, loaded) for other in (array, loaded)
    }
    assert len(tangents_out) == 1


def test_shards_that_were_cut_differently_are_refused(place: Any) -> None:
    one, other = (dagad.shard(X, grainsize=grainsize, scheduler=place) for grainsize in (4, 5))
    with pytest.raises(dagad.PlanError, match=r"cut differently.* with the same grainsize"):
        dagad.reduce_sum(chunk, (one, other), THETA)


def test_columns_of_another_length_are_refused(place: Any) -> None:
    shards = dagad.shard(X, grainsize=4, scheduler=place)
    for other in (Y[:9], dagad.shard(Y[:9], grainsize=4, scheduler=place)):
        with pytest.raises(dagad.StructureError, match=r"different numbers of rows.*Each chunk gets the same rows"):
            dagad.reduce_sum(chunk, (shards, other), THETA)


def test_second_derivatives_go_through_shards(place: Any) -> None:
    def loss(data: Any, **options: Any) -> Callable[[Any], Any]:
        return lambda theta: dagad.reduce_sum(chunk, data, theta, **options)

    def curvature(loss: Callable[[Any], Any]) -> Any:
        return dagad.grad(lambda theta: anp.dot(dagad.grad(loss)(theta), THETA))(THETA)

    shards = dagad.shard(X, grainsize=4, scheduler=place)
    assert bits([curvature(loss(shards))]) == bits([curvature(loss(X, grainsize=4, scheduler="sync"))])


# What is refused


@pytest.mark.parametrize("grainsize", [0, -1, 2.5, True, None, "many"])
def test_a_grainsize_that_is_none_is_refused(grainsize: Any) -> None:
    with pytest.raises(dagad.PlanError, match=r'Give a positive int or `"auto"`'):
        dagad.shard(X, grainsize=grainsize, scheduler="sync")


def test_a_reduction_cannot_cut_shards_in_another_way(place: Any) -> None:
    shards = dagad.shard(X, grainsize=4, scheduler=place)
    with pytest.raises(dagad.PlanError, match=r"chunks of 4 rows.*`dagad\.shard\(shards\.gather\(\), grainsize=3\)`"):
        dagad.reduce_sum(chunk, shards, THETA, grainsize=3)
    assert outcome(dagad.shard(shards.gather(), grainsize=3, scheduler=place)) == on_one_thread(X, 3)


def test_a_reduction_cannot_run_where_shards_are_not(client: Client) -> None:
    shards = dagad.shard(X, grainsize=4, scheduler=client)
    with Client(client.cluster, set_as_default=False) as other:
        for elsewhere in ("threads", "sync", other):
            with pytest.raises(dagad.PlanError, match=r"Leave `scheduler=` out.*`dagad\.shard\(shards\.gather\(\), s"):
                dagad.reduce_sum(chunk, shards, THETA, scheduler=elsewhere)
        there = dagad.shard(X, grainsize=4, scheduler=other)
        with pytest.raises(dagad.PlanError, match=r"with the client that placed them, but.*another client, be"):
            dagad.reduce_sum(chunk, (shards, there), THETA)
    assert outcome(shards, scheduler=client) == on_one_thread(X)


def test_reductions_run_where_the_shards_are(client: Client) -> None:
    def where(rows: Any) -> float:
        return float(os.getpid())

    shards = dagad.shard(X, grainsize=10, scheduler="threads")
    with client.as_current():  # what Dask would choose if nobody had said anything
        assert dagad.reduce_sum(where, shards) == os.getpid()
    assert dagad.reduce_sum(where, shards, scheduler=client) in pids_of(client).values()


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: {"x": s}, lambda s: (s, Y), lambda s: [s]], ids=range(4))
def test_shards_are_not_cut_again(wrap: Any, place: Any) -> None:
    shards = dagad.shard(X, grainsize=4, scheduler=place)
    with pytest.raises(dagad.DagadError, match=r"Shards.*gather"):
        dagad.shard(wrap(shards), grainsize=5, scheduler=place)


def test_shards_do_not_travel_inside_a_chunk_function(client: Client) -> None:
    shards = dagad.shard(Y, grainsize=4, scheduler=client)

    def inner(rows: Any, theta: Any) -> Any:
        return dagad.reduce_sum(lambda part: np.sum(part), shards) * theta

    calls: list[Callable[[Any], Any]] = [
        lambda theta: dagad.reduce_sum(inner, X, theta, grainsize=5, scheduler=client),
        lambda theta: dagad.reduce_sum(chunk, X, theta, shards, grainsize=5, scheduler=client),
        lambda theta: pickle.dumps(shards),
    ]
    for call in calls:
        with pytest.raises(dagad.PortabilityError, match=r"Shards can't be pickled.*as its sliced argument"):
            call(1.0)


@pytest.mark.parametrize("data", [3.0, np.array(1.0), {}, None, {"x": X, "n": 3}], ids=repr)
def test_shards_of_data_without_rows_are_refused(data: Any) -> None:
    with pytest.raises(dagad.StructureError, match=r"arrays|rows"):
        dagad.shard(data, scheduler="sync")


def test_shards_answer_others_while_something_is_found_out_about_them() -> None:
    shards, gate, began = dagad.shard(np.arange(4.0), grainsize=1, scheduler="threads"), Event(), Event()

    def digest() -> str:
        began.set()
        gate.wait(PATIENCE)
        return "digest"

    slow = in_background(shards.remembered, "digest", digest)
    until(began.is_set)
    try:
        assert in_background(shards.remembered, "loop", lambda: "loop").result(PATIENCE) == "loop"
    finally:
        gate.set()
    assert slow.result(PATIENCE) == "digest"


def test_a_gradient_in_shards_holds_no_more_than_itself(cluster: Client) -> None:
    shards = dagad.shard(np.arange(8.0), grainsize=1, scheduler=cluster)
    gradient = dagad.grad(lambda x: 3.0 * dagad.reduce_sum(lambda rows: anp.sum(rows**2), x))(shards)
    assert len(gradient.kept) == len(gradient.keys) == 8
    np.testing.assert_array_equal(gradient.gather(), 6.0 * np.arange(8.0))
