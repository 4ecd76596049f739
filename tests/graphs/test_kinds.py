"""Kinds of collections: are derivatives of Delayed, arrays, bags and xarray objects right, and of the same kind?"""

from __future__ import annotations

import importlib
import operator
from typing import Any

import autograd
import autograd.numpy as anp
import dask.array as da
import dask.bag as db
import numpy as np
import pytest
import xarray
from dask.base import compute as dask_compute
from dask.delayed import delayed

import dagad
from dagad.extend import Recompute, Segment
from dagad_scheduler import Role, role_of

compute: Any = dask_compute  # Dask has few types
from_array: Any = da.from_array
X = np.arange(1.0, 13.0).reshape(4, 3) / 7.0
W = np.array([0.5, -1.0, 2.0])


def where(scheduler: Any) -> dict[str, Any]:
    return {"scheduler": scheduler} if isinstance(scheduler, str) else {"scheduler": scheduler.get}


def test_gradients_of_arrays_are_arrays_of_the_same_chunks(scheduler: Any) -> None:
    x, w = from_array(X, chunks=(3, 2)), from_array(W.astype("f4"), chunks=(2,))
    y = ((x @ w) ** 2).sum()
    value, of = dagad.value_and_gradient(y, {"x": x, "w": w})
    for made, like in ((value, y), (of["x"], x), (of["w"], w)):
        assert type(made) is da.Array
        assert (made.shape, made.chunks, made.dtype) == (like.shape, like.chunks, like.dtype)
    found_value, found = compute(value, of, **where(scheduler))
    product = X @ W.astype("f4")
    np.testing.assert_allclose(found_value, np.sum(product**2), rtol=1e-6)
    np.testing.assert_allclose(found["x"], 2.0 * product[:, None] * W, rtol=1e-6)
    np.testing.assert_allclose(found["w"], 2.0 * X.T @ product, rtol=1e-6)
    assert found["w"].dtype == "f4"


@pytest.mark.sampled(4)
def test_gradients_through_halos_of_overlapping_blocks_are_right(scheduler: Any) -> None:
    def step(u: Any) -> Any:
        return u + 0.4 * (np.roll(u, 1) - 2.0 * u + np.roll(u, -1))

    start = u = from_array(X.ravel(), chunks=5)
    adjoint = np.arange(12.0) ** 2
    for _ in range(3):
        u = u.map_overlap(step, depth=1, boundary="periodic", dtype=float)
    gradient = compute(dagad.gradient((u * adjoint).sum(), start), **where(scheduler))[0]
    for _ in range(3):
        adjoint = step(adjoint)  # the scheme is its own transpose
    np.testing.assert_allclose(gradient, adjoint, rtol=1e-14)


@pytest.mark.parametrize("size", [4, 12])  # in one block of which all tasks run as one
@pytest.mark.parametrize("policy", [None, Recompute(), Segment(2)])
def test_one_task_can_read_a_block_and_its_alias(size: int, policy: Any) -> None:
    def plain(x: Any) -> Any:
        return anp.sum(anp.sin(x * (0.5 * x) ** 2 / 3.0) ** 2)

    x, along = from_array(X.ravel(), chunks=size), np.cos(X.ravel())
    again = da.concatenate([x, x])[:12]  # Dask's aliases of blocks
    y = (da.sin(x * (0.5 * again) ** 2 / 3.0).rechunk(12) ** 2).sum()
    slope, second = autograd.grad(plain)(X.ravel()), autograd.grad(lambda x: anp.sum(autograd.grad(plain)(x) * along))
    value, gradient = dagad.value_and_gradient(y, x)
    derived = dagad.gradient(value, x, policy=policy), dagad.gradient((gradient * along).sum(), x, policy=policy)
    found = compute(gradient, *derived, dagad.jvp(value, x, along)[1], scheduler="sync")
    for actual, expected in zip(found, (slope, slope, second(X.ravel()), slope @ along), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-12)


PIECES: dict[str, Any] = {
    "a slice": lambda x, b: x[:2],
    "a block": lambda x, b: x.blocks[0],
    "a join": lambda x, b: da.concatenate([x, b]),
    "a join with itself": lambda x, b: da.concatenate([x[2:], x]),
    "a piece of a join": lambda x, b: da.concatenate([x, b])[2:6],
    "a block, delayed": lambda x, b: da.from_delayed(x.to_delayed()[0], (2,), float),
}


@pytest.mark.each_value("all combinations of parameters: each value of each is in this tier")
@pytest.mark.parametrize("policy", [None, Recompute(), Segment(2)])
@pytest.mark.parametrize("kind", PIECES)
def test_wrt_may_hold_an_array_and_a_piece_or_join_of_its_blocks(kind: str, policy: Any) -> None:
    x, b = (from_array(data, chunks=2) for data in (np.arange(1.0, 5.0), np.arange(5.0, 9.0)))
    piece = PIECES[kind](x, b)  # Dask makes aliases of it
    w = from_array(np.arange(2.0, 2.0 + piece.size), chunks=piece.chunks)
    y = (piece * w).sum() + (b**2).sum()
    alone = [dagad.gradient(y, one).compute(scheduler="sync") for one in (x, piece, b, w)]
    np.testing.assert_array_equal(alone[1], w.compute(scheduler="sync"))
    for wrt, expected in (([x, piece, b, w], alone), ([piece, x], alone[1::-1])):
        value, gradients = dagad.value_and_gradient(y, wrt, policy=policy)
        found_value, found = compute(value, gradients, scheduler="sync")
        assert found_value == y.compute(scheduler="sync")
        for actual, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(actual, wanted, rtol=1e-14)
    tangent_out = dagad.jvp(y, x, np.ones(4))[1].compute(scheduler="sync")
    assert tangent_out == alone[0].sum()


def test_a_block_that_y_does_not_need_is_not_computed() -> None:
    ran: list[Any] = []

    def noted(block: Any, block_info: Any = None) -> Any:
        ran.append(block_info[0]["chunk-location"] if block_info else None)
        return block

    x = from_array(X, chunks=(1, 3)).map_blocks(noted, dtype=float, meta=np.zeros((0, 0)))
    gradient = dagad.gradient((x[:2] ** 2).sum(), x)
    found = gradient.compute(scheduler="sync")
    np.testing.assert_allclose(found, np.where(np.arange(4)[:, None] < 2, 2.0 * X, 0.0))
    assert set(ran) == {(0, 0), (1, 0)}


@pytest.mark.sampled(4)
def test_a_gradient_of_a_gradient_of_arrays_is_right(scheduler: Any) -> None:
    w, x = from_array(W, chunks=2), from_array(X, chunks=(3, 2))
    first = dagad.gradient(((x @ w) ** 2).sum(), w)
    again = dagad.gradient((first**2).sum(), w)
    hessian = 2.0 * X.T @ X
    np.testing.assert_allclose(compute(again, **where(scheduler))[0], 2.0 * hessian @ hessian @ W, rtol=1e-12)


@pytest.mark.sampled(4)
def test_tangents_of_arrays_are_right(scheduler: Any) -> None:
    w, x = from_array(W, chunks=2), from_array(X, chunks=(3, 2))
    direction = np.array([1.0, 0.0, -3.0])
    for tangent in (direction, from_array(direction, chunks=3), from_array(direction, chunks=(2,))):
        value, tangent_out = dagad.jvp(x @ w, [w], [tangent])
        assert tangent_out.chunks == (x @ w).chunks
        found = compute(value, tangent_out, **where(scheduler))
        np.testing.assert_allclose(found[0], X @ W, rtol=1e-14)
        np.testing.assert_allclose(found[1], X @ direction, rtol=1e-14)


def test_gradients_of_bags_are_bags() -> None:
    bag: Any = db.from_sequence([1.0, 2.0, 3.0], npartitions=2)
    y = bag.map(lambda x: x**3).sum()
    value, gradient = dagad.value_and_gradient(y, bag)
    assert (type(value), type(gradient), gradient.npartitions) == (type(y), db.Bag, 2)
    assert compute(value, gradient, scheduler="sync") == (36.0, [3.0, 12.0, 27.0])


def test_gradients_of_what_bags_accumulate_are_right() -> None:
    bag: Any = db.from_sequence([1.0, 2.0, 3.0, 4.0], npartitions=2)
    products = bag.accumulate(operator.mul).sum()
    assert dagad.gradient(products, bag).compute(scheduler="sync") == [33.0, 16.0, 10.0, 6.0]


def test_gradients_of_xarray_objects_are_of_their_kind(scheduler: Any) -> None:
    a = xarray.DataArray(X, dims=("time", "place"), coords={"time": np.arange(4)}, name="depth").chunk({"time": 3})
    data = xarray.Dataset({"a": a, "b": a.sum("time") + 1.0})
    y = (data["a"] ** 2).mean() + data["b"].std()
    value, (of_a, of) = dagad.value_and_gradient(y, [a, data[["a"]]])
    assert (type(value), type(of_a), type(of), of_a.name) == (
        xarray.DataArray,
        xarray.DataArray,
        xarray.Dataset,
        "depth",
    )
    assert of_a.chunks == a.chunks
    assert (of_a["time"].values == np.arange(4)).all()
    found, of_a, of = compute(value, of_a, of, **where(scheduler))
    b = X.sum(0) + 1.0
    spread = (b - b.mean()) / (3 * b.std())
    np.testing.assert_allclose(float(found), np.mean(X**2) + b.std(), rtol=1e-13)
    np.testing.assert_allclose(of_a, X / 6.0 + spread, rtol=1e-12)
    np.testing.assert_allclose(of["a"], of_a, rtol=0)


def test_a_gradient_in_collections_of_several_kinds_runs_the_primal_once() -> None:
    ran: list[int] = []

    def scaled(block: Any, by: Any) -> Any:
        ran.append(1)
        return block * by

    x, by = from_array(X, chunks=(2, 3)), delayed(3.0)
    by_array = da.from_delayed(by, (), float)
    y = delayed(np.sqrt)(x.map_blocks(scaled, by_array, dtype=float, meta=np.zeros((0, 0))).sum())
    value, gradients = dagad.value_and_gradient(y, (x, by))
    ran.clear()
    found = compute(value, gradients, x - 0.1 * gradients[0], scheduler="sync")
    assert len(ran) == 2
    np.testing.assert_allclose(found[0], np.sqrt(3.0 * X.sum()))
    np.testing.assert_allclose(found[1][0], np.full((4, 3), 1.5 / found[0]))
    np.testing.assert_allclose(found[1][1], X.sum() / (2.0 * found[0]))


def test_every_pullback_of_dask_arrays_waits_for_the_value() -> None:
    x, w = from_array(X, chunks=(2, 2)), from_array(W, chunks=2)
    value, gradient = dagad.value_and_gradient(((x @ w) ** 2).sum(), [x, w])
    graph = dict(value.__dask_graph__()) | {
        key: node for each in gradient for key, node in each.__dask_graph__().items()
    }
    (read,) = graph[(value.name,)].dependencies
    pullbacks = [key for key in graph if role_of(key) is Role.PULLBACK]
    assert pullbacks
    for key in pullbacks:
        above, work = set[Any](), [key]
        while work:
            found = graph[work.pop()].dependencies - above
            above |= found
            work += [one for one in found if one in graph]
        assert read in above


def masked_gradient(x: Any) -> Any:
    return dagad.gradient((x**2).sum(), x).compute(scheduler="sync")


@pytest.mark.parametrize(
    ("ask", "remedy"),
    [
        (lambda x, w: dagad.gradient(x * 1.0, x), r"an Array of shape \(4, 3\).*Reduce it to one"),
        (lambda x, w: dagad.gradient((x > 0).sum(), x), r"dtype int64.*Reduce it to one"),
        (
            lambda x, w: dagad.gradient((x * w).sum(), w.astype(int)),
            r"`wrt` holds an Array of dtype int64.*astype\(float\)",
        ),
        (lambda x, w: dagad.gradient(x.sum(), w), r"not need.*made apart.*before that"),
        (lambda x, w: dagad.jvp(x, x, W), r"tangent has shape \(3,\).*primal's shape"),
        (lambda x, w: dagad.jvp(x[x > 0], x[x > 0], W), r"compute_chunk_sizes\(\)"),
        (lambda x, w: dagad.jvp(x, [x, w], [X]), "another structure"),
        (lambda x, w: masked_gradient(da.ma.masked_greater(w, 0.6)), r"masked array.*`np\.where\(mask, 0\.0, data\)`"),
    ],
)
def test_a_gradient_or_tangent_of_arrays_that_cannot_be_is_refused_with_the_remedy(ask: Any, remedy: str) -> None:
    x, w = from_array(X, chunks=2), from_array(W, chunks=2)
    with pytest.raises(dagad.DagadError, match=remedy):
        ask(x, w)


@pytest.mark.needs("pyarrow")
def test_a_dataframe_is_refused_with_the_remedy() -> None:
    dd = importlib.import_module("dask.dataframe")
    pd = importlib.import_module("pandas")
    table = dd.from_pandas(pd.DataFrame({"a": [1.0, 2.0]}), npartitions=2)
    column = table["a"].to_dask_array(lengths=True)
    for y, wrt in ((table["a"].sum(), column), (column.sum(), table), (column.sum(), table["a"])):
        with pytest.raises(dagad.NotDifferentiableError, match=r"to_dask_array\(lengths=True\).*dagad\.shard"):
            dagad.gradient(y, wrt)
    assert dagad.gradient((column**2).sum(), column).compute(scheduler="sync").tolist() == [2.0, 4.0]


def test_chunks_can_be_of_unknown_length() -> None:
    x = from_array(X.ravel() - 0.8, chunks=5)
    kept = x[x > 0]
    of_kept, of_x = compute(*dagad.gradient((kept**2).sum(), [kept, x]), scheduler="sync")
    at = X.ravel() - 0.8
    np.testing.assert_allclose(of_kept, 2.0 * at[at > 0])
    np.testing.assert_allclose(of_x, np.where(at > 0, 2.0 * at, 0.0))
