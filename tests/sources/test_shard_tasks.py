"""Tasks behind Shards: pieces of dask arrays and loaders, what is gathered, and what is left when workers are not."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import xarray as xr
from dask.delayed import delayed
from distributed import Client

import dagad
from dagad._values import pytree
from support.clusters import a_cluster, kill, pids_of
from support.gated_chunks import bits
from support.schedulers_of_shards import client as client, place as place, pool as pool
from support.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
    pytest.mark.sampled(3),
]

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((10, 3)), RNG.standard_normal(10)
CUBE = RNG.standard_normal((10, 3, 2))
THETA = np.array([0.3, -0.7, 1.1])


def chunk(rows: Any, theta: Any) -> Any:
    """Return a number to which every part of the rows contributes; one that depends on their layout in its bits."""
    leaves = [leaf for leaf in pytree.flatten(rows)[0] if isinstance(leaf, np.ndarray | float)]
    return sum(anp.sum(anp.tanh(leaf * theta[0]) * theta[1]) for leaf in leaves) + theta[2] * len(leaves)


def outcome(sliced: Any, theta: Any = THETA, **options: Any) -> list[bytes]:
    """Return the bits of value and gradient."""
    return bits(dagad.value_and_grad(lambda theta: dagad.reduce_sum(chunk, sliced, theta, **options))(theta))


def on_one_thread(data: Any, grainsize: int = 4) -> list[bytes]:
    return outcome(data, grainsize=grainsize, scheduler="sync")


def leaves_of(tree: Any) -> list[bytes]:
    return bits(pytree.flatten(tree)[0])


# Dask arrays


CHUNKINGS: list[tuple[Any, Any]] = [
    (Y, (10,)),
    (Y, ((4, 4, 2),)),
    (Y, ((1, 5, 0, 4),)),
    (X, ((4, 4, 2), (3,))),
    (X, ((5, 5), (2, 1))),
    (X, ((2, 3, 5), (1, 1, 1))),
    (np.asfortranarray(X), ((5, 5), (2, 1))),
    (X.astype("f4"), ((7, 3), (3,))),
    (CUBE, ((6, 4), (1, 2), (2,))),
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("array", "chunks"), CHUNKINGS)
@pytest.mark.parametrize("grainsize", [1, 4, 10, 11])
def test_a_dask_array_is_cut_like_any_array(array: Any, chunks: Any, grainsize: int, client: Client) -> None:
    expected = on_one_thread(array, grainsize)
    for where in ("sync", "threads", client):
        shards = dagad.shard(da.from_array(array, chunks=chunks), grainsize=grainsize, scheduler=where)
        assert outcome(shards) == expected
        assert leaves_of(shards.gather()) == leaves_of(array)


@pytest.mark.parametrize(("array", "chunks"), CHUNKINGS)
def test_a_dask_array_comes_in_its_own_pieces(array: Any, chunks: Any, place: Any) -> None:
    lazy = da.from_array(array, chunks=chunks)
    shards = dagad.shard(lazy, scheduler=place)
    assert [piece.stop - piece.start for piece in shards.plan] == [length for length in lazy.chunks[0] if length]
    assert outcome(shards) == outcome(dagad.shard(lazy, scheduler="sync"))
    if len({*lazy.chunks[0][:-1], 10}) < 3:
        assert outcome(shards) == on_one_thread(array, lazy.chunks[0][0])
    assert leaves_of(shards.gather()) == leaves_of(array)


@pytest.mark.sampled(6)
def test_shards_of_a_computed_dask_array_have_its_bits(place: Any) -> None:
    lazy = (da.from_array(X, chunks=(4, 2)) * 2.0 + 1.0)[::-1]
    shards = dagad.shard(lazy, grainsize=4, scheduler=place)
    assert outcome(shards) == on_one_thread(np.ascontiguousarray((X * 2.0 + 1.0)[::-1]))


def test_shards_take_dask_arrays_beside_arrays_and_lists(place: Any) -> None:
    items = [{"a": row} for row in X]
    data = {"x": da.from_array(X, chunks=(3, 3)), "y": da.from_array(Y, chunks=5), "z": Y, "items": items}
    shards = dagad.shard(data, grainsize=4, scheduler=place)
    plain = {"x": X, "y": Y, "z": Y, "items": items}
    assert outcome(shards) == on_one_thread(plain)
    assert leaves_of(shards.gather()) == leaves_of(plain)
    assert dagad.shard(data, scheduler="sync").plan == dagad.shard(data["x"], scheduler="sync").plan


@pytest.mark.parametrize("other", [Y[:9], np.append(Y, 1.0), list(Y[:9]), da.from_array(Y[:9], chunks=3)], ids=type)
def test_rows_that_do_not_agree_with_a_dask_arrays_are_refused(other: Any) -> None:
    with pytest.raises(dagad.StructureError, match="Each chunk gets the same rows"):
        dagad.shard({"x": da.from_array(X, chunks=(5, 3)), "other": other}, scheduler="sync")


def test_a_dask_array_of_unknown_length_is_refused() -> None:
    lazy = da.from_array(Y, chunks=4)
    for array in (lazy[lazy > 0], lazy.sum()):
        for data in (array, {"x": lazy, "y": array}):
            with pytest.raises(dagad.StructureError, match=r"`compute_chunk_sizes\(\)`|Each chunk gets the same rows"):
                dagad.shard(data, scheduler="sync")
    known = lazy[lazy > 0].compute_chunk_sizes()
    assert leaves_of(dagad.shard(known, scheduler="sync").gather()) == leaves_of(Y[Y > 0])


@pytest.mark.parametrize("grainsize", [4, "auto"])
def test_a_dask_array_without_rows_has_no_chunks(grainsize: Any, place: Any) -> None:
    shards = dagad.shard(da.zeros((0, 3)), grainsize=grainsize, scheduler=place)
    assert (shards.n_rows, len(shards.plan)) == (0, 0)
    assert float(dagad.reduce_sum(np.mean, shards)) == 0.0


# Loaders


def load(part: Any, log: str = "", trouble: bool = False) -> Any:
    if log:
        with open(log, "a") as file:  # short appends are whole
            file.write("loaded\n")
    if trouble:
        raise LookupError("no such file")
    return part


def loaders(*parts: Any, **options: Any) -> list[Any]:
    return [delayed(load, pure=False)(part, **options) for part in parts]


PIECES: dict[str, list[Any]] = {
    "array": [X[:4], X[4:5], X[5:]],
    "dict": [{"x": X[:3], "y": Y[:3]}, {"x": X[3:], "y": Y[3:]}],
    "list": [list(X[:6]), list(X[6:])],
    "tuple": [(X[:2], [1.0, 2.0]), (X[2:4], [3.0, 4.0])],
    "one": [Y],
    "empty": [Y[:0], Y[:4], Y[:0], Y[4:]],
}


@pytest.mark.parametrize("parts", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("grainsize", ["auto", 1, 3, 20])
def test_every_loader_gives_the_rows_of_a_piece(parts: list[Any], grainsize: Any, client: Client) -> None:
    def length(part: Any) -> int:
        return len(pytree.flatten(part, is_leaf=lambda leaf: isinstance(leaf, list))[0][0])

    most = 20 if grainsize == "auto" else grainsize
    sizes = [min(most, length(part) - start) for part in parts for start in range(0, length(part), most)]
    places = ("sync", "threads", client)
    found = [dagad.shard(loaders(*parts), grainsize=grainsize, scheduler=where) for where in places]
    for shards in found:
        assert [piece.stop - piece.start for piece in shards.plan] == sizes
        assert shards.n_rows == sum(map(length, parts))
        assert outcome(shards) == outcome(found[0])
        assert leaves_of(shards.gather()) == leaves_of(found[0].gather())


def test_loaders_give_the_bits_of_the_data_cut_alike(place: Any) -> None:
    shards = dagad.shard(loaders(X[:4], X[4:8], X[8:]), scheduler=place)
    assert outcome(shards) == on_one_thread(X)
    assert outcome(dagad.shard(loaders(X[:4], X[4:]), grainsize=2, scheduler=place)) == on_one_thread(X, 2)


def test_a_piece_is_loaded_once(client: Client, tmp_path: Path) -> None:
    for where in ("sync", "threads", client):
        log = tmp_path / str(type(where))
        log.touch()
        before = log.read_text().count("loaded")
        shards = dagad.shard(loaders(X[:4], X[4:], log=str(log)), grainsize=2, scheduler=where)
        for _ in range(2):
            outcome(shards)
        assert log.read_text().count("loaded") == before + 2


def test_a_loader_may_build_on_other_tasks(place: Any) -> None:
    whole = delayed(load, pure=False)(X)
    shards = dagad.shard([whole[:4], whole[4:]], scheduler=place)
    assert leaves_of(shards.gather()) == leaves_of(X)


def test_a_loader_that_fails_says_so_itself(place: Any) -> None:
    with pytest.raises(LookupError, match="no such file"):
        dagad.shard([*loaders(X), *loaders(X, trouble=True)], scheduler=place)


def test_a_loader_of_something_without_rows_is_refused(place: Any) -> None:
    with pytest.raises(dagad.StructureError, match="float, which has no rows"):
        dagad.shard(loaders(X, 3.0), scheduler=place)


@pytest.mark.parametrize("grainsize", [0, 2.5, "many"])
def test_a_grainsize_that_is_none_is_refused(grainsize: Any) -> None:
    for data in (loaders(X), da.from_array(X, chunks=(4, 3))):
        with pytest.raises(dagad.PlanError, match=r'Give a positive int or `"auto"`'):
            dagad.shard(data, grainsize=grainsize, scheduler="sync")


@pytest.mark.parametrize("wrap", [lambda one: one, lambda one: {"x": one}, lambda one: (one,)], ids=range(3))
def test_a_loader_that_is_not_in_a_list_is_refused(wrap: Any) -> None:
    """How many rows it has is not known before it has run; the remedy is a list of loaders."""
    (loader,) = loaders(X)
    with pytest.raises(dagad.StructureError, match="list"):
        dagad.shard(wrap(loader), scheduler="sync")
    with pytest.raises(dagad.StructureError, match=r"Delayed.*`dagad\.shard\(\[load\(path\), \.\.\.\]\)`"):
        dagad.reduce_sum(chunk, wrap(loader), THETA, grainsize=4, scheduler="sync")


# Workers die, and Shards are dropped


@pytest.fixture
def frail() -> Iterator[Client]:
    with a_cluster(2) as client:
        yield client


def kill_workers(client: Client, number: int = 2) -> None:
    """Kill workers and see others take their place."""
    before = pids_of(client)
    for pid in list(before.values())[:number]:
        kill(pid)
    until(lambda: len(set(client.nthreads()) - set(before)) == number)


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
@pytest.mark.parametrize("deaths", [1, 2])
def test_rows_are_there_again_when_their_workers_have_died(deaths: int, frail: Client, tmp_path: Path) -> None:
    plain, log = {"x": X, "items": list(Y)}, tmp_path / "log"
    of_data = dagad.shard(plain, grainsize=4, scheduler=frail)
    of_blocks = dagad.shard(da.from_array(X, chunks=(4, 2)), scheduler=frail)
    of_loaders = dagad.shard(loaders(X[:4], X[4:8], X[8:], log=str(log)), scheduler=frail)
    of_table = dagad.shard(pytest.importorskip("pandas").DataFrame({"y": Y}), grainsize=4, scheduler=frail)
    for _ in range(2):
        assert [outcome(of_data), outcome(of_blocks), outcome(of_loaders)] == [
            on_one_thread(plain),
            on_one_thread(X),
            on_one_thread(X),
        ]
        kill_workers(frail, deaths)
        assert leaves_of(of_data.gather()) == leaves_of(plain)
        assert of_table.gather()["y"].tobytes() == Y.tobytes()
        assert leaves_of(of_loaders.gather()) == leaves_of(of_blocks.gather()) == leaves_of(X)
    assert log.read_text().count("loaded") > 3  # what is lost is loaded again


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
def test_rows_wait_for_a_worker_to_come(frail: Client) -> None:
    """Nothing of them is bound to a worker that is gone."""
    cluster: Any = frail.cluster
    shards = dagad.shard(X, grainsize=4, scheduler=frail)
    expected = outcome(shards)
    cluster.scale(0)
    until(lambda: not frail.nthreads())
    cluster.scale(1)
    assert outcome(shards) == expected == on_one_thread(X)


@pytest.mark.whole("what stays in memory: pullbacks and evaluations are seen to go in this tier")
def test_shards_that_are_dropped_leave_no_task_on_their_cluster(client: Client) -> None:
    for data in (X, da.from_array(X, chunks=(2, 3)), loaders(*X.reshape(5, 2, 3))):
        assert_gone(client, dagad.shard(data, grainsize=2, scheduler=client))
        gc.collect()
        until(lambda: not client.run_on_scheduler(_tasks))


def assert_gone(client: Client, shards: dagad.Shards) -> None:
    """Use Shards in every way; what was held meanwhile is gone with them."""
    until(lambda: len(client.run_on_scheduler(_tasks)) >= 5)
    for _ in range(3):
        outcome(shards)
    evaluation = dagad.evaluate(lambda theta: dagad.reduce_sum(chunk, shards, theta), THETA, lazy=True)
    value, pullback = dagad.vjp(lambda theta: dagad.reduce_sum(chunk, shards, theta), THETA)
    assert evaluation.value(PATIENCE) == value
    assert bits(pullback(1.0)) == [outcome(shards)[1]]
    shards.gather()


def _tasks(dask_scheduler: Any) -> list[str]:
    return [str(key) for key in dask_scheduler.tasks]


def test_shards_without_rows_say_why_there_is_nothing_to_gather() -> None:
    shards = dagad.shard(np.zeros(0), grainsize=2)
    with pytest.raises(dagad.PlanError, match=r"hold no rows.*Ask for `shards\.n_rows` before `gather\(\)`"):
        shards.gather()


# What Dask and loaders only say of their rows


def short(block: Any) -> Any:
    return block[:2]


UNFIT: dict[str, tuple[Any, str]] = {
    "mask": (da.ma.masked_greater(da.from_array(X, chunks=4), 0.5), r"a MaskedArray.*dask.array.ma.filled"),
    "sparse": (da.from_array(X, chunks=(4, 3)).map_blocks(scipy.sparse.csr_array), r"a csr_array.*todense"),
    "short": (da.from_array(X, chunks=4).map_blocks(short, dtype=float), r"was to have 4 rows.*`shape=` of"),
    "file": (da.from_delayed(delayed(short)(X), X.shape, float), r"was to have 10 rows.*give loaders"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_shards_of_dask_arrays_whose_blocks_are_something_else_are_refused(name: str, place: Any) -> None:
    data, remedy = UNFIT[name]
    with pytest.raises(dagad.StructureError, match=remedy):
        dagad.shard(data, scheduler=place).gather()


def of_two_kinds(number: int, others: dict[str, Any]) -> Any:
    return {"x": Y} if number == 0 else others


OTHERS = [({"y": Y}, "structure"), ({"x": X}, r"rows of shape \(3,\)"), ({"x": list(Y)}, "a list")]


@pytest.mark.parametrize(("others", "found"), OTHERS)
def test_shards_whose_loaders_return_several_kinds_of_rows_are_not_gathered(
    others: Any, found: str, place: Any
) -> None:
    shards = dagad.shard([delayed(of_two_kinds)(number, others) for number in range(2)], scheduler=place)
    with pytest.raises(dagad.StructureError, match=f"those of chunk 1 differ from the first.*{found}"):
        shards.gather()


def test_shards_of_loaders_that_return_labelled_arrays_have_the_arrays(place: Any) -> None:
    loaders = [delayed(xr.Dataset)({"x": ("row", Y[start : start + 5])}) for start in (0, 5)]
    np.testing.assert_array_equal(dagad.shard(loaders, scheduler=place).gather()["x"], Y)


def test_the_error_of_rows_that_are_none_names_the_loader(place: Any) -> None:
    with pytest.raises(dagad.StructureError) as caught:
        dagad.shard([delayed(list)([1.0]), delayed(float)(2)], scheduler=place)
    assert "loader 1 of those" in "".join(caught.value.__notes__)


def test_data_that_were_persisted_on_a_cluster_are_not_placed_in_this_process(cluster: Client) -> None:
    # in old releases Dask's own `persist(scheduler=client)` brings data here where the client isn't the default one
    array, loader = cluster.persist([da.from_array(X, chunks=4), delayed(X)])
    for data in (array, [loader], {"x": array, "y": Y}):
        with pytest.raises(dagad.StructureError, match=r"persisted on a cluster.*scheduler=client"):
            dagad.shard(data, scheduler="threads")
    np.testing.assert_array_equal(dagad.shard([loader], scheduler=cluster).gather(), X)
    with pytest.raises(dagad.StructureError, match=r"holds a Future.*`dask.delayed\(future\)`"):
        dagad.shard([cluster.submit(len, X)], scheduler=cluster)


def test_arrays_of_delayed_are_refused_as_rows() -> None:
    with pytest.raises(dagad.StructureError, match="a Delayed among the data"):
        dagad.shard(da.from_array(X, chunks=4).to_delayed(), scheduler="sync")
