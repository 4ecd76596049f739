"""Arguments and results of members that hold more than numbers: are they cut and stacked whole, or refused?"""

from __future__ import annotations

import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
import pytest

import dagad
from support.gated_chunks import bits

pd: Any = pytest.importorskip("pandas")
TWO = np.array([0.0, 1.0])
MASKED: Any = np.ma.masked_greater(np.arange(6.0).reshape(3, 2), 2.5)
BACKWARDS = [2, 1, 0]
SERIES = pd.Series([10.0, 20.0, 30.0], index=pd.MultiIndex.from_arrays([BACKWARDS]))


def number_of(part: Any) -> float:
    return float(np.asarray(part).sum())


class Unit(np.ndarray[Any, Any]):
    """An array that holds more than its numbers."""

    unit = "1"


class Notified(Unit):
    """One that says how it is stacked."""

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is not np.stack:
            return super().__array_function__(func, types, args, kwargs)
        found = func([np.asarray(one) for one in args[0]], *args[1:], **kwargs).view(Notified)
        found.unit = args[0][0].unit
        return found


def told(number: Any) -> Any:
    made = np.array([number]).view(Notified)
    made.unit = "m"
    return made


Case = tuple[Callable[[], Any], str]
LABELLED = r"its labels would say which entry is whose. Give numbers by position, `\.to_numpy\(\)`"
REFUSED: dict[str, Case] = {
    "a masked argument": (lambda: dagad.vmap(number_of)(MASKED), r"holds a masked array.*`array\.filled\(value\)`"),
    "a masked argument along its columns": (lambda: dagad.vmap(number_of, 1)(MASKED), r"`array\.filled\(value\)`"),
    "a masked result": (lambda: dagad.vmap(lambda t: MASKED + t)(TWO), r"`MaskedArray`.*`np\.ma\.getmaskarray"),
    "a masked result of one": (
        lambda: dagad.vmap(lambda t: MASKED if t else MASKED.data)(TWO),
        r"Return `array\.filled\(value\)`, or two arrays",
    ),
    "a masked number": (lambda: dagad.vmap(lambda t: np.ma.masked)(TWO), r"Return `array\.filled\(value\)`"),
    "a matrix": (
        lambda: dagad.vmap(lambda t: np.array([[t]]).view(np.matrix))(TWO),
        r"Return its numbers, `np\.asarray\(array\)`",
    ),
    "a unit": (lambda: dagad.vmap(lambda t: np.array([t]).view(Unit))(TWO), r"`Unit`.*`np\.asarray\(array\)`"),
    "a series": (lambda: dagad.vmap(number_of)(pd.Series([1.0, 2.0])), f"a Series of pandas.*{LABELLED}"),
    "a series whose index has levels": (lambda: dagad.vmap(number_of)(SERIES), LABELLED),
    "a series in a dict": (lambda: dagad.vmap(lambda t: number_of(t["a"]))({"a": SERIES}), LABELLED),
    "a series by keyword": (lambda: dagad.vmap(lambda *, t: number_of(t))(t=SERIES), f"Argument `t`.*{LABELLED}"),
    "a table": (lambda: dagad.vmap(number_of)(pd.DataFrame({"a": TWO})), f"a DataFrame.*{LABELLED}"),
    "columns of a table": (lambda: dagad.vmap(number_of, 1)(pd.DataFrame({"a": TWO})), LABELLED),
    "an index": (lambda: dagad.vmap(number_of)(pd.Index(TWO)), LABELLED),
    "an array of Dask": (
        lambda: dagad.vmap(number_of)(da.ones((2, 3))),
        "Array of Dask.*Compute it first.*`in_axes`",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_members_of_what_holds_more_than_numbers_are_refused_with_a_remedy(case: str) -> None:
    act, sentence = REFUSED[case]
    with pytest.raises(dagad.StructureError, match=sentence):
        act()


def test_arguments_that_members_share_and_arrays_that_stack_themselves_keep_what_they_hold() -> None:
    found = dagad.vmap(lambda t, series: t + series.iloc[1], (0, None))(TWO, SERIES)
    assert bits(list(found)) == bits(list(TWO + 20.0))
    assert dagad.vmap(lambda t, masked: float(masked.sum() + t), (0, None))(TWO, MASKED).tolist() == [3.0, 4.0]
    stacked = dagad.vmap(told)(TWO)
    assert (type(stacked), stacked.unit, np.asarray(stacked).tolist()) == (Notified, "m", [[0.0], [1.0]])


def test_arrays_of_xarray_are_cut_by_position() -> None:
    xarray = pytest.importorskip("xarray")
    data = xarray.DataArray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dims=("row", "column"), coords={"row": BACKWARDS})
    assert dagad.vmap(number_of)(data).tolist() == [3.0, 7.0, 11.0]
    assert dagad.vmap(number_of, 1)(data).tolist() == [9.0, 12.0]


def records() -> Any:
    return np.array([(1, 2.0), (3, 4.0)], dtype=[("a", int), ("b", float)])


def in_xarray() -> Any:
    return pytest.importorskip("xarray").DataArray(np.arange(4.0).reshape(2, 2))


def a_tensor() -> Any:
    return pytest.importorskip("torch").arange(4.0).reshape(2, 2)


OF_OTHERS: dict[str, tuple[Callable[[], Any], Any]] = {
    "records": (records, "a"),
    "a subclass": (lambda: np.arange(4.0).reshape(2, 2).view(Unit), 0),
    "an array of xarray": (in_xarray, 0),
    "a tensor": (a_tensor, 0),
}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.needs("torch") if what == "a tensor" else ()) for what in OF_OTHERS]
)
def test_members_may_write_into_arguments_of_other_kinds(what: str) -> None:
    make, key = OF_OTHERS[what]

    def fun(own: Any) -> Any:
        own[key] = 7
        return float(own[key])

    data = make()
    assert dagad.vmap(fun)(data).tolist() == [7.0, 7.0]
    assert np.asarray(data).tolist() == np.asarray(make()).tolist()


def test_axes_of_a_dict_go_by_its_keys_whatever_their_order() -> None:
    """Which axis of two is whose: a square array has both."""
    square = np.arange(4.0).reshape(2, 2)
    kinds: list[Any] = [dict, OrderedDict, lambda items: defaultdict(int, items)]
    for axes, data in itertools.product(kinds, kinds):
        p = data([("b", (square, 3.0)), ("a", square), ("c", None)])
        found = dagad.vmap(lambda p: (p["a"], p["b"][0]), (axes([("a", 1), ("c", None), ("b", (0, None))]),))(p)
        assert (found[0].tolist(), found[1].tolist()) == (square.T.tolist(), square.tolist())
