"""Replies of workers that are nonsense: none is believed, and the evaluation after it is as quick as ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import autograd.numpy as anp
import pytest
from distributed import Client

import dagad
from dagad_scheduler.residents.client import ResidentClient
from support.hot_loops import THETA, Act, X, a_watched_cluster, heat_up, in_all, is_hot, shards_on
from support.nonsense_replies import IMPOSSIBLE, NONSENSE

pytestmark = [
    pytest.mark.each_value("all combinations of parameters: each value of each is in this tier"),
    pytest.mark.sampled(2),
]


def chunk(rows: Any, theta: Any) -> Any:
    return anp.sum(anp.logaddexp(0.0, anp.dot(rows, theta)))


def on(sliced: Any, **options: Any) -> Act:
    return in_all(lambda theta: dagad.reduce_sum(chunk, sliced, theta, **options))


EXPECTED = on(X, grainsize=4, scheduler="sync")


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    """A cluster that is to be empty in the end."""
    with a_watched_cluster() as client:
        yield client


@pytest.fixture(scope="module")
def hot(client: Client) -> Iterator[list[Act]]:
    made = [on(shards_on(client))]
    heat_up(client, lambda: made[0](THETA))
    yield made
    made.clear()  # the last test may still hold the list


@pytest.mark.whole("deaths and losses: one in a value, a pullback and a hot loop is in this tier")
@pytest.mark.parametrize("spoil", NONSENSE.values(), ids=NONSENSE)
def test_a_nonsensical_reply_of_a_worker_is_not_believed(
    spoil: Any, hot: list[Act], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    (there,), exchange = hot, ResidentClient._exchange

    async def spoiled(self: Any, calls: Any) -> Any:
        replies = await exchange(self, calls)
        return replies | {address: spoil(replies[address]) for address in list(replies)[:1]}

    with monkeypatch.context() as patch:
        patch.setattr(ResidentClient, "_exchange", spoiled)
        found: list[bytes] = []
        assert not is_hot(client, lambda: found.extend(there(THETA)))
        assert found == EXPECTED(THETA)
    assert is_hot(client, lambda: there(THETA))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("spoil", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_gradients_of_another_kind_are_refused(
    spoil: Any, hot: list[Act], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    (there,), exchange = hot, ResidentClient._exchange

    async def spoiled(self: Any, calls: Any) -> Any:
        return {address: spoil(reply) for address, reply in (await exchange(self, calls)).items()}

    with monkeypatch.context() as patch:
        patch.setattr(ResidentClient, "_exchange", spoiled)
        with pytest.raises((dagad.StructureError, ValueError)):
            there(THETA)
    assert is_hot(client, lambda: there(THETA))
