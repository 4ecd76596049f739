"""Memories: bounded, the entry unused for longest goes first, and threads don't lose what another found."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

from dagad._remembered import Remembered
from support.waiting import PATIENCE, in_background, until


def test_a_full_memory_drops_the_entry_unused_for_longest() -> None:
    memory: Remembered[int] = Remembered(3)
    for key in "abc":
        memory.change(key, lambda found: 1)
    assert memory.find("a") == 1
    memory.change("d", lambda found: 2)
    assert [memory.find(key) for key in "abcd"] == [1, None, 1, 2]
    assert len(memory) == 3


def test_an_entry_of_a_memory_is_changed_by_what_it_was() -> None:
    memory: Remembered[int] = Remembered(3)
    for _ in range(4):
        memory.change("a", lambda found: (found or 0) + 1)
    assert memory.find("a") == 4


def test_a_memory_loses_no_entry_between_threads() -> None:
    memory: Remembered[int] = Remembered(64)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: memory.change(n % 4, lambda found: (found or 0) + 1), range(4000)))
    assert [memory.find(key) for key in range(4)] == [1000] * 4


def test_a_memory_answers_while_an_entry_is_being_made() -> None:
    memory: Remembered[str] = Remembered(8)
    began, gate = Event(), Event()
    memory.change("known", lambda _: "entry")

    def make() -> str:
        began.set()
        gate.wait(PATIENCE)
        return memory.made("inner", lambda: "inner")

    slow = in_background(memory.made, "slow", make)
    until(began.is_set)
    meanwhile = in_background(lambda: (memory.find("known"), memory.made("other", lambda: "other"), len(memory)))
    try:
        assert meanwhile.result(PATIENCE) == ("entry", "other", 2)
    finally:
        gate.set()
    assert slow.result(PATIENCE) == "inner"
    assert memory.find("slow") == "inner"


def test_of_two_entries_made_at_the_same_time_a_memory_keeps_the_first() -> None:
    memory: Remembered[object] = Remembered(8)
    first = object()

    def make() -> object:
        memory.made("key", lambda: first)  # as another thread does meanwhile
        return object()

    assert memory.made("key", make) is first
