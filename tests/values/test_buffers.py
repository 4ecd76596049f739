"""Wire: do leaves come out of a buffer as they went in, and is a buffer that does not fit refused?"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import dagad
from dagad._values.buffers import ALIGNMENT, BufferLayout, Spec, as_bytes
from support.examples import examples

DTYPES = ["f4", "f8", "c8", "c16"]
NUMBERS = [0.5, -0.0, 2.0 - 1.0j, np.float64(1.5), np.float32(0.1), np.complex64(1j), np.complex128(-0.0)]


def looks(leaf: Any) -> Any:
    """Return what has to agree: the type, how an array is laid out, and every bit."""
    array = np.asarray(leaf)
    return type(leaf), array.dtype, array.shape, array.flags.c_contiguous, array.flags.f_contiguous, array.tobytes("A")


def layout_of(*leaves: Any) -> BufferLayout:
    return BufferLayout([Spec.of(leaf) for leaf in leaves])


def sent(*leaves: Any) -> list[Any]:
    """Return the leaves as they arrive."""
    layout = layout_of(*leaves)
    buffer = np.empty(layout.nbytes, np.uint8)
    assert layout.write(leaves, buffer) == []
    return layout.read(as_bytes(buffer.tobytes(), layout.nbytes))


leaves_of_any_kind = st.one_of(
    st.sampled_from(NUMBERS),
    hnp.arrays(
        dtype=st.sampled_from(DTYPES),
        shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ).map(lambda array: np.asfortranarray(array) if array.size % 2 else array),
)


# There and back


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(st.lists(leaves_of_any_kind, max_size=6))
def test_leaves_in_a_buffer_arrive_as_they_left(leaves: list[Any]) -> None:
    assert list(map(looks, sent(*leaves))) == list(map(looks, leaves))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (3, 0), (1, 7), (2, 3, 4)])
def test_arrays_in_a_buffer_keep_their_dtype_and_their_layout(dtype: str, order: Any, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.random.default_rng(0).standard_normal(shape) * 3, dtype, order=order)
    (arrived,) = sent(array)
    assert looks(arrived) == looks(array)


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_numbers_in_a_buffer_stay_numbers_of_their_kind(number: Any) -> None:
    (arrived,) = sent(number)
    assert type(arrived) is type(number)
    assert repr(arrived) == repr(number)  # -0.0 too


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_infinity_and_the_sign_of_zero_survive_in_a_buffer(dtype: str) -> None:
    array = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, np.finfo(dtype).tiny], dtype)
    assert sent(array)[0].tobytes() == array.tobytes()


def test_an_array_that_is_laid_out_in_no_order_arrives_in_rows() -> None:
    array = np.arange(24.0).reshape(4, 6)[:, ::2]
    (arrived,) = sent(array)
    np.testing.assert_array_equal(arrived, array)
    assert arrived.flags.c_contiguous


def test_a_buffer_of_no_leaves_has_no_bytes() -> None:
    assert layout_of().nbytes == 0
    assert sent() == []


def test_every_leaf_is_aligned_and_has_this_processes_own_dtype() -> None:
    for arrived in sent(np.ones(3, "f4"), np.ones(1, "c16"), np.ones((2, 2)), np.ones(1, "f4")):
        assert arrived.flags.aligned
        assert arrived.dtype is np.dtype(arrived.dtype.char)


def test_a_message_that_begins_at_an_odd_byte_is_read_right() -> None:
    leaves = [np.arange(3.0), np.ones((2, 2), "c8"), 2.5]
    layout = layout_of(*leaves)
    whole = np.zeros(layout.nbytes + 1, np.uint8)
    layout.write(leaves, whole[1:])
    arrived = layout.read(whole[1:])
    assert list(map(looks, arrived)) == list(map(looks, leaves))
    assert all(leaf.flags.aligned for leaf in arrived[:2])


def test_arrays_read_from_a_buffer_are_views_of_it() -> None:
    layout = layout_of(np.ones(4))
    buffer = np.zeros(layout.nbytes, np.uint8)
    assert np.shares_memory(layout.read(buffer)[0], buffer)


def test_arrays_read_from_a_message_are_read_only() -> None:
    (arrived,) = sent(np.ones(4))
    assert not arrived.flags.writeable


def test_leaves_in_a_buffer_do_not_overlap() -> None:
    leaves = [np.full(3, float(number), "f4") for number in range(5)]
    layout = layout_of(*leaves)
    assert layout.nbytes == 5 * ALIGNMENT
    assert [leaf.tolist() for leaf in sent(*leaves)] == [[float(number)] * 3 for number in range(5)]


def test_a_layout_travels_as_its_specs() -> None:
    layout = layout_of(np.ones((2, 3), "f4"), 1.0)
    arrived = pickle.loads(pickle.dumps(layout))
    assert (arrived.specs, arrived.nbytes) == (layout.specs, layout.nbytes)


# Gaps


@pytest.mark.parametrize("gaps", [[], [0], [2], [0, 1, 2]])
def test_a_leaf_that_is_none_is_a_gap_in_a_buffer(gaps: list[int]) -> None:
    leaves: list[Any] = [np.ones(3), 2.0, np.ones((2, 2), "c16")]
    layout = layout_of(*leaves)
    for number in gaps:
        leaves[number] = None
    buffer = np.zeros(layout.nbytes, np.uint8)
    assert layout.write(leaves, buffer) == gaps
    arrived = layout.read(buffer, gaps)
    assert [leaf is None for leaf in arrived] == [leaf is None for leaf in leaves]
    assert [looks(leaf) for leaf in arrived if leaf is not None] == [looks(leaf) for leaf in leaves if leaf is not None]


@pytest.mark.parametrize("gaps", [[2], [-1], [0.5], ["0"], [[0]], [None]])
def test_gaps_of_a_buffer_where_no_leaf_is_are_refused(gaps: Any) -> None:
    layout = layout_of(np.ones(3), 2.0)
    with pytest.raises(dagad.StructureError, match="gap"):
        layout.read(np.zeros(layout.nbytes, np.uint8), gaps)


# What does not fit


@pytest.mark.parametrize(
    ("leaf", "other", "found", "wanted"),
    [
        (np.ones(3), np.ones(4), r"shape \(4,\) and dtype float64", r"shape \(3,\) and dtype float64"),
        (np.ones(3), np.ones((3, 1)), r"shape \(3, 1\)", r"shape \(3,\)"),
        (np.ones(3), np.ones(3, "f4"), "dtype float32", "dtype float64"),
        (np.ones(3, "f4"), np.ones(3), "dtype float64", "dtype float32"),
        (np.ones(3), np.ones(3, "c16"), "dtype complex128", "dtype float64"),
        (1.0, np.float32(1.0), "dtype float32", "dtype float64"),
        (1.0, 1, "dtype int64", "dtype float64"),
        (np.ones(()), np.ones(1), r"shape \(1,\)", r"shape \(\)"),
    ],
)
def test_a_leaf_that_differs_from_the_layout_of_a_buffer_is_refused(
    leaf: Any, other: Any, found: str, wanted: str
) -> None:
    layout = layout_of(leaf)
    buffer = np.zeros(layout.nbytes, np.uint8)
    with pytest.raises(dagad.StructureError, match=rf"A leaf of .*{found}.* was to travel as one of .*{wanted}"):
        layout.write([other], buffer)
    assert not buffer.any()


@pytest.mark.parametrize("leaves", [[], [np.ones(3)], [np.ones(3), 1.0, 1.0]])
def test_more_or_fewer_leaves_than_the_layout_of_a_buffer_are_refused(leaves: list[Any]) -> None:
    layout = layout_of(np.ones(3), 1.0)
    with pytest.raises(ValueError, match="argument"):
        layout.write(leaves, np.zeros(layout.nbytes, np.uint8))


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 31,
        b"\0" * 33,
        b"",
        np.zeros(32, np.int8),
        np.zeros(4),
        np.zeros((2, 16), np.uint8),
        "0" * 32,
        None,
        32,
        [0] * 32,
        {"data": b"\0" * 32},
    ],
    ids=lambda data: type(data).__name__,
)
def test_a_message_of_another_kind_or_length_is_refused(data: Any) -> None:
    with pytest.raises(dagad.StructureError, match="A message of 32 bytes was expected, and another came"):
        as_bytes(data, 32)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_a_buffer_is_read_from_bytes_of_any_kind(kind: Any) -> None:
    layout = layout_of(np.arange(4.0))
    buffer = np.empty(layout.nbytes, np.uint8)
    layout.write([np.arange(4.0)], buffer)
    (arrived,) = layout.read(as_bytes(kind(buffer.tobytes()), layout.nbytes))
    assert arrived.tolist() == [0.0, 1.0, 2.0, 3.0]
