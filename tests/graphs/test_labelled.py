"""xarray's objects: are derivatives those of their variables, whatever is in memory, and matched by name and label?"""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray
from dask.base import compute as dask_compute

import dagad

compute: Any = dask_compute  # Dask has few types
from_array: Any = da.from_array
A, B = np.arange(4.0), np.array([10.0, 20.0, 30.0, 40.0])


def cut(data: Any) -> tuple[str, Any]:
    return "x", from_array(data, chunks=2)


def whole() -> Any:
    return xarray.Dataset({"a": cut(A), "b": cut(B)})


def mixed() -> Any:
    return xarray.Dataset({"a": cut(A), "b": ("x", B)}, attrs={"of": "rivers"})


def pull(y: Any, wrt: Any, **options: Any) -> Any:
    return compute(dagad.gradient(y, wrt, **options), scheduler="sync")[0]


def push(y: Any, primal: Any, tangent: Any) -> Any:
    return compute(dagad.jvp(y, primal, tangent)[1], scheduler="sync")[0]


@pytest.mark.parametrize("ask", [lambda y, one: dagad.gradient(y, one), lambda y, one: dagad.jvp(y, one, one)])
def test_a_variable_of_numpy_in_a_dataset_is_refused_with_the_remedy(ask: Any) -> None:
    data = mixed()
    with pytest.raises(
        dagad.NotDifferentiableError, match=r"'b' is in memory.*`dataset = dataset\.chunk\(\)`"
    ) as caught:
        ask((data["a"] * data["b"]).sum(), data)
    assert "`dataset[['a']]`" in str(caught.value)
    chunked = data.chunk()
    found = pull((chunked["a"] * chunked["b"]).sum(), chunked)
    np.testing.assert_array_equal(found["b"], A)
    found = pull((data["a"] * data["b"]).sum(), data[["a"]])
    np.testing.assert_array_equal(found["a"], B)


def test_a_variable_of_numpy_in_a_dataset_has_zeros_where_they_are_asked_for() -> None:
    data = mixed()
    found = pull((data["a"] * data["b"]).sum(), data, unused="zeros")
    assert list(found) == ["a", "b"]
    assert found.attrs == data.attrs
    np.testing.assert_array_equal(found["a"], B)
    np.testing.assert_array_equal(found["b"], np.zeros(4))
    np.testing.assert_array_equal(data["b"], B)


@pytest.mark.parametrize("unused", ["raise", "zeros"])
@pytest.mark.parametrize("constant", [np.arange(4), np.array(list("wxyz")), np.arange(4).astype("M8[ns]")])
def test_a_variable_of_numpy_without_a_derivative_is_refused_whatever_is_asked(constant: Any, unused: str) -> None:
    data = xarray.Dataset({"a": cut(A), "n": ("x", constant)})
    with pytest.raises(dagad.NotDifferentiableError, match=r"'n' of dtype .* no derivative.*`dataset\[\['a'\]\]`"):
        dagad.gradient((data["a"] ** 2).sum(), data, unused=unused)


def test_an_array_of_numpy_with_a_coordinate_of_dask_is_refused_with_the_remedy() -> None:
    data = xarray.DataArray(A, dims="x", coords={"c": cut(B)})
    y = (data * data["c"]).sum()
    with pytest.raises(dagad.NotDifferentiableError, match=r"DataArray that is in memory.*`array = array\.chunk\(\)`"):
        dagad.gradient(y, data)
    np.testing.assert_array_equal(pull(y, data, unused="zeros"), np.zeros(4))
    np.testing.assert_array_equal(pull(y, data["c"]), A)


def test_an_array_of_numpy_is_refused_with_the_remedy() -> None:
    y = whole()["a"].sum()
    with pytest.raises(dagad.NotDifferentiableError, match=r"in memory.*`chunk\(\)`"):
        dagad.gradient(y, xarray.DataArray(A, dims="x"))


@pytest.mark.skipif(not hasattr(xarray, "DataTree"), reason="this release of xarray has no trees")
def test_a_tree_of_datasets_is_refused_with_the_remedy() -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=r"DataTree.*`tree\.to_dict\(\)`"):
        dagad.gradient(whole()["a"].sum(), xarray.DataTree(whole()))


def test_coordinates_of_dask_come_along_as_they_are() -> None:
    data = xarray.DataArray(from_array(A, chunks=2), dims="x", coords={"c": cut(B)}, attrs={"of": "rivers"}, name="d")
    found = pull((data**2 * data["c"]).sum(), data)
    np.testing.assert_array_equal(found, 2.0 * A * B)
    np.testing.assert_array_equal(found["c"], B)
    assert (found.name, found.attrs) == ("d", data.attrs)


def test_a_gradient_in_a_variable_of_xarray_is_a_variable() -> None:
    data = whole()
    found = dagad.gradient((data["a"] * data["b"]).sum(), data["a"].variable)
    assert type(found) is xarray.Variable
    np.testing.assert_array_equal(found.compute(scheduler="sync"), B)


def test_constants_in_y_have_the_tangent_zero() -> None:
    data = whole()
    y = xarray.Dataset({"s": (data["a"] ** 2).sum(), "c": 5.0, "d": ("x", B)})
    value, tangent = dagad.jvp(y, data["a"], np.ones(4))
    value, tangent = compute(value, tangent, scheduler="sync")
    assert (float(value["c"]), float(tangent["c"]), float(tangent["s"])) == (5.0, 0.0, 12.0)
    np.testing.assert_array_equal(value["d"], B)
    np.testing.assert_array_equal(tangent["d"], np.zeros(4))
    with pytest.raises(dagad.NotDifferentiableError, match=r"a Dataset of the variables 's', 'c', 'd'.*Reduce it"):
        dagad.gradient(y, data["a"])


def test_a_y_of_integers_has_no_tangent() -> None:
    x = from_array(A, chunks=2)
    with pytest.raises(dagad.NotDifferentiableError, match=r"`y` holds an Array of dtype int64.*`\.astype\(float\)`"):
        dagad.jvp((2.0 * x).astype(int), x, np.ones(4))
    with pytest.raises(dagad.NotDifferentiableError, match=r"`y` holds a Dataset.*'n' of dtype int64.*Leave it out"):
        dagad.jvp(xarray.Dataset({"a": 2.0 * cut(A)[1].sum(), "n": 3}), x, np.ones(4))


@pytest.mark.parametrize("chunked", [False, True])
def test_a_tangent_is_matched_by_the_names_of_variables_and_dimensions(chunked: bool) -> None:
    data, along = whole(), xarray.Dataset({"b": ("x", np.zeros(4)), "a": ("x", np.ones(4))})
    found = push((data["a"] ** 2 * data["b"]).sum(), data, along.chunk() if chunked else along)
    assert float(found) == (2.0 * A * B).sum()
    square = xarray.DataArray(from_array(A.reshape(2, 2), chunks=1), dims=("p", "q"))
    weights = xarray.DataArray(B.reshape(2, 2), dims=("p", "q"))
    direction = xarray.DataArray(np.array([[1.0, 5.0], [7.0, 9.0]]), dims=("p", "q"))
    other_way = direction.T.chunk() if chunked else direction.T
    assert float(push((square * weights).sum(), square, other_way)) == float((weights * direction).sum())


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (lambda t: t.rename(b="c"), r"variables 'a', 'c', its primal has 'a', 'b'.*ones_like"),
        (lambda t: t[["a"]], r"variables 'a', its primal has 'a', 'b'.*ones_like"),
        (lambda t: t.drop_indexes("x").rename(x="z"), r"dimensions 'z', its primal has 'x'.*ones_like"),
        (lambda t: t.isel(x=slice(None, None, -1)), r"other labels along 'x'.*reindex_like"),
    ],
)
def test_a_tangent_with_other_names_or_labels_is_refused_with_the_remedy(change: Any, remedy: str) -> None:
    data = whole().assign_coords(x=[1, 2, 3, 4])
    with pytest.raises(dagad.StructureError, match=remedy):
        dagad.jvp((data["a"] * data["b"]).sum(), data, change(xarray.ones_like(data)))


def test_a_variable_in_a_file_is_not_read_to_build_a_graph(tmp_path: Any) -> None:
    whole().compute(scheduler="sync").to_netcdf(tmp_path / "data", engine="scipy")
    lazy = xarray.open_dataset(tmp_path / "data", engine="scipy").assign(a=cut(A))
    with pytest.raises(dagad.NotDifferentiableError, match="'b' is in memory or in a file"):
        dagad.gradient((lazy["a"] ** 2).sum(), lazy)
    assert not lazy["b"].variable._in_memory
    lazy.close()
