"""Memory that is copied into again: is a copy right as long as anybody holds it, and how much memory is there?"""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from dagad._engines.staging import ALIGNMENT, LEAST, Staging

LARGE = LEAST // 8
ARRAYS = {
    "rows": np.arange(3.0 * LARGE).reshape(-1, 3),
    "a column": np.arange(3.0 * LARGE).reshape(-1, 3)[:, 1],
    "reversed": np.arange(1.0 * LARGE)[::-1],
    "columns first": np.asfortranarray(np.arange(3.0 * LARGE).reshape(-1, 3)),
    "whole numbers": np.arange(LARGE),
    "complex": np.arange(LARGE) * (1.0 + 2.0j),
    "truths": np.arange(LEAST) % 3 == 0,
    "halves": np.arange(2 * LARGE, dtype=np.float32),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_a_copy_has_aligned_memory_of_its_own(array: np.ndarray) -> None:
    copy = Staging(lambda: 10**9).copy_of(array)
    np.testing.assert_array_equal(copy, array)
    assert copy.dtype == array.dtype
    assert copy.flags.c_contiguous
    assert copy.ctypes.data % ALIGNMENT == 0
    assert not np.shares_memory(copy, array)


@pytest.mark.parametrize(
    "array", [np.zeros(LARGE - 1), np.zeros(LARGE, ">f8"), np.zeros(LARGE, object), np.zeros(LARGE, "M8[s]")]
)
def test_small_arrays_and_others_than_numbers_are_not_copied(array: np.ndarray) -> None:
    assert Staging(lambda: 10**9).copy_of(array) is None


def test_memory_is_used_again_when_nobody_holds_a_part_of_it() -> None:
    staging, array = Staging(lambda: 10**9), np.arange(1.0 * LARGE)
    copy = staging.copy_of(array)
    part, where = copy[5:7].reshape(1, 2), copy.ctypes.data
    del copy
    gc.collect()
    other = staging.copy_of(array + 1.0)
    assert other.ctypes.data != where
    np.testing.assert_array_equal(part, [[5.0, 6.0]])
    del part
    gc.collect()
    assert staging.copy_of(array + 2.0).ctypes.data == where
    assert staging.nbytes == 2 * array.nbytes


def test_no_more_memory_is_taken_than_is_allowed() -> None:
    most = [3 * LEAST]
    staging = Staging(lambda: most[0])
    held = [staging.copy_of(np.zeros(LARGE)) for _ in range(4)]
    assert [each is None for each in held] == [False, False, False, True]
    del held
    gc.collect()
    assert staging.copy_of(np.zeros(2 * LARGE)) is not None  # those of another size make room
    assert staging.nbytes == 2 * LEAST
    most[0] = 0
    gc.collect()
    assert staging.copy_of(np.zeros(3 * LARGE)) is None
    assert staging.nbytes == 0


def test_threads_never_share_a_copy() -> None:
    staging, wrong = Staging(lambda: 4 * LEAST), list[int]()

    def copying(number: int) -> None:
        array = np.full(LARGE, float(number))
        for _ in range(200):
            copy = staging.copy_of(array)
            if copy is not None and not (copy == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=copying, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert staging.nbytes <= 4 * LEAST
