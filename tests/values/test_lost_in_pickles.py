"""What Python's and numpy's own pickling changes without a word: does it arrive as it was?"""

from __future__ import annotations

import array
import functools
import gc
import weakref
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dagad
from dagad._values.shipping import Parcel, pack

X = np.linspace(-1.0, 1.0, 24).reshape(12, 2)


class Scaled(np.ndarray[Any, Any]):
    """Has a scale, as numpy's guide to subclasses does it."""

    def __array_finalize__(self, other: Any) -> None:
        self.scale = getattr(other, "scale", 1.0)


def scaled(data: Any, scale: float) -> Any:
    made = np.asarray(data).view(Scaled)
    made.scale = scale
    return made


class Thing:
    """Something that a set may hold weakly."""


def arrived(value: object) -> Any:
    sent = pack(value)
    return Parcel(tuple(map(bytes, sent.payload)), sent.python).open()


def test_a_memoryview_keeps_its_format_and_shape() -> None:
    square = np.arange(6, dtype="f4").reshape(2, 3)
    letters = memoryview(b"abcd").cast("c")
    some: list[Any] = [np.arange(3.0), square, square.T, b"abc", array.array("q", [7]), letters, letters[::2]]
    for data in some:
        view = memoryview(data)
        came = arrived([view])[0]
        assert type(came) is memoryview
        assert (came.format, came.shape, came.tolist()) == (view.format, view.shape, view.tolist())


def test_a_weak_set_keeps_its_items() -> None:
    things = [Thing(), Thing()]
    came = arrived(weakref.WeakSet(things))
    gc.collect()
    assert len(came) == 2
    held = arrived([things, weakref.WeakSet(things)])
    assert set(held[1]) == set(held[0])


def test_an_array_of_a_subclass_keeps_its_attributes() -> None:
    sent: Any = scaled(X, 2.0)
    sent.itself = sent
    came = arrived({"a": sent})["a"]
    assert type(came) is Scaled
    assert came.scale == 2.0
    assert vars(came)["itself"] is came
    np.testing.assert_array_equal(np.asarray(came), X)


def test_an_array_of_a_file_arrives_in_memory(tmp_path: Any) -> None:
    stored = np.memmap(tmp_path / "numbers", dtype=float, mode="w+", shape=(3,))
    stored[:] = 1.0, 2.0, 3.0
    assert arrived(stored).tolist() == [1.0, 2.0, 3.0]


def test_a_view_keeps_the_order_of_its_axes_in_memory() -> None:
    cube = np.random.default_rng(0).standard_normal((5, 6, 47))
    views = [cube.transpose(order) for order in ((1, 2, 0), (2, 0, 1), (0, 2, 1))]
    views += [cube[::-1, :, ::-1], cube[:, ::-1].transpose(2, 0, 1), np.broadcast_to(cube[:, :1], cube.shape)]
    views += [cube[::2, :, 3], cube[0, 0, ::-1], cube[:0, ::-1].T]
    for number, view in enumerate(views):
        came = arrived(view)
        np.testing.assert_array_equal(came, view)
        assert not (came.size and came.flags.writeable)
        if number < 5:  # without gaps
            assert came.strides == view.strides
            assert np.sum(came) == np.sum(view)


def test_chunks_on_workers_see_what_they_see_here(cluster: Client) -> None:
    twos: Any = np.full(3, 2.0)  # mypy knows no buffer of an array in Python 3.11
    seen, weights, set_of_things = memoryview(twos), scaled(np.ones(2), 3.0), [Thing(), Thing()]
    weak = weakref.WeakSet(set_of_things)

    def loss(rows: Any, theta: Any, view: Any) -> Any:
        return np.sum((np.asarray(rows) * theta) ** 2) * seen[0] * view[0] * weights.scale * rows.scale * len(weak)

    def total(theta: Any, scheduler: Any) -> Any:
        return dagad.reduce_sum(loss, scaled(X, 0.5), theta, seen, grainsize=5, scheduler=scheduler)

    found = []
    for scheduler in ("sync", cluster):
        fun = functools.partial(total, scheduler=scheduler)
        value, gradient = dagad.value_and_grad(fun)(1.5)
        found.append((value, gradient, *dagad.hvp(fun, (1.5,), (1.0,))))
    assert found[0] == found[1]
    assert found[0][:2] == pytest.approx((12 * 2.25 * np.sum(X**2), 36.0 * np.sum(X**2)))
