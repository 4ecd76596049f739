"""Security: are the bits over TLS those of one thread, on both roads, and does dagad open no door of its own?"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from distributed import Client
from distributed.comm.core import connect
from distributed.security import Security

import dagad
from support.clusters import a_cluster, assert_empty, identity, kill, pids_of
from support.gated_chunks import THETA, TROUBLING, X, bits, chunk, fresh
from support.tls import tls_settings
from support.waiting import PATIENCE

pytestmark = [
    pytest.mark.whole("what is shown: pages, bars, certificates, examinations of clusters"),
]

Loss = Callable[[Any], Any]
NOTHING = {"require_encryption": False, "tls_ca_file": None, "tls_client_cert": None, "tls_client_key": None}


def evaluated(loss: Loss) -> list[Any]:
    evaluation = dagad.evaluate(loss, THETA)
    return [evaluation.value(PATIENCE), evaluation.gradient(PATIENCE)]


def pulled_twice(loss: Loss) -> list[Any]:
    value, pullback = dagad.vjp(loss, THETA)
    return [value, *pullback(1.0), *pullback(-2.0)]


WAYS: dict[str, Callable[[Loss], Any]] = {
    "value": lambda loss: [loss(THETA)],
    "value_and_grad": lambda loss: dagad.value_and_grad(loss)(THETA),
    "evaluate": evaluated,
    "vjp": pulled_twice,
}


def plain(scheduler: Any, reduction: Any) -> Loss:
    """Return a loss of plain arrays, which takes the graph each time."""
    rows = {"row": np.arange(len(X)), "x": X}
    return lambda theta: reduction(chunk, rows, theta, grainsize=4, scheduler=scheduler)


def sharded(scheduler: Any, reduction: Any = dagad.reduce_sum) -> Loss:
    """Return a loss of Shards, which goes past Dask's scheduler from the second time on."""
    shards, fun = dagad.shard({"row": np.arange(len(X)), "x": X}, grainsize=4, scheduler=scheduler), fresh(chunk)
    return lambda theta: reduction(fun, shards, theta)


def n_chunks_run(dask_scheduler: Any) -> int:
    """Count, on the scheduler, the tasks of dagad's that were ever sent to a worker and compute something."""
    prefixes = dask_scheduler.task_prefixes.items()
    return sum(
        found.state_counts["processing"] for name, found in prefixes if re.match("dagad-(?!shard|input|loop)", name)
    )


def listening() -> set[tuple[int, str, int]]:
    """Return the process, address and port of all sockets to which one can connect: the client's and the workers'."""
    me, found = psutil.Process(), set[tuple[int, str, int]]()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by now
            connections = process.net_connections("tcp")
            found |= {(process.pid, *one.laddr) for one in connections if one.status == psutil.CONN_LISTEN}
    return found


def addresses_of(client: Client) -> dict[str, list[str]]:
    """Return where one can speak with the parts of a cluster."""
    info = identity(client)
    workers = info["workers"]
    return {"scheduler": [info["address"]], "workers": list(workers), "nannies": [w["nanny"] for w in workers.values()]}


@pytest.fixture(scope="module")
def _secured() -> Iterator[Client]:
    with a_cluster(2, security=Security.temporary()) as client:
        yield client


@pytest.fixture
def secured(_secured: Client) -> Iterator[Client]:
    """A cluster over TLS, which every test leaves empty."""
    yield _secured
    assert_empty(_secured)


# The same bits


@pytest.mark.parametrize("reduction", [dagad.reduce_sum, dagad.map_sum])
@pytest.mark.parametrize("way", WAYS)
def test_graphs_over_tls_give_the_bits_of_one_thread(way: str, reduction: Any, secured: Client) -> None:
    before = secured.run_on_scheduler(n_chunks_run)
    assert bits(WAYS[way](plain(secured, reduction))) == bits(WAYS[way](plain("sync", reduction)))
    assert secured.run_on_scheduler(n_chunks_run) > before


@pytest.mark.parametrize("reduction", [dagad.reduce_sum, dagad.map_sum])
@pytest.mark.parametrize("way", WAYS)
def test_hot_loops_over_tls_give_the_bits_of_one_thread(way: str, reduction: Any, secured: Client) -> None:
    loss, expected = sharded(secured, reduction), bits(WAYS[way](sharded("sync", reduction)))
    assert bits(dagad.value_and_grad(loss)(TROUBLING)) == bits(
        dagad.value_and_grad(sharded("sync", reduction))(TROUBLING)
    )
    before = secured.run_on_scheduler(n_chunks_run)
    for _ in range(3):
        assert bits(WAYS[way](loss)) == expected
    assert secured.run_on_scheduler(n_chunks_run) == before


def test_large_parameters_of_a_hot_loop_over_tls_give_the_same_bits(secured: Client) -> None:
    def weighted(rows: Any, theta: Any) -> Any:
        return (rows["x"] @ THETA).sum() * (theta * theta).sum()

    def loss_on(scheduler: Any) -> Loss:
        shards, fun = dagad.shard({"x": X}, grainsize=4, scheduler=scheduler), fresh(weighted)
        return lambda theta: dagad.reduce_sum(fun, shards, theta)

    loss, theta = loss_on(secured), np.linspace(-1.0, 1.0, 300_000)
    expected = bits(dagad.value_and_grad(loss_on("sync"))(theta))
    assert bits(dagad.value_and_grad(loss)(theta)) == expected
    before = secured.run_on_scheduler(n_chunks_run)
    assert bits(dagad.value_and_grad(loss)(theta)) == expected
    assert secured.run_on_scheduler(n_chunks_run) == before


def test_a_worker_that_comes_later_answers_calls_over_tls() -> None:
    with a_cluster(1, security=Security.temporary()) as client:
        loss, expected = sharded(client), bits(dagad.value_and_grad(sharded("sync"))(THETA))
        for _ in range(2):
            assert bits(dagad.value_and_grad(loss)(THETA)) == expected
        (pid,) = pids_of(client).values()
        kill(pid)
        for _ in range(3):
            assert bits(dagad.value_and_grad(loss)(THETA)) == expected
        client.wait_for_workers(1, PATIENCE)
        del loss


def test_a_cluster_secured_by_dasks_settings_gives_the_same_bits() -> None:
    with dask.config.set(tls_settings()), a_cluster(1) as client:
        assert addresses_of(client)["workers"][0].startswith("tls://")
        assert_hot(client)


def assert_hot(client: Client) -> None:
    """See that evaluations of Shards go past Dask's scheduler, and give the right bits."""
    loss, expected = sharded(client), bits(dagad.value_and_grad(sharded("sync"))(THETA))
    assert bits(dagad.value_and_grad(loss)(THETA)) == expected
    before = client.run_on_scheduler(n_chunks_run)
    assert bits(dagad.value_and_grad(loss)(THETA)) == bits(evaluated(loss)) == expected
    assert client.run_on_scheduler(n_chunks_run) == before


# No door of its own


def test_a_cluster_over_tls_listens_on_dasks_encrypted_ports_only() -> None:
    elsewhere = listening()
    with a_cluster(2, security=Security.temporary()) as client:
        before = listening()  # a cluster as Dask starts it, which has not heard of dagad yet
        spoken_with = [address for some in addresses_of(client).values() for address in some]
        assert len(spoken_with) == 5
        assert all(address.startswith("tls://127.0.0.1:") for address in spoken_with)
        info = identity(client)
        dashboards = {part["services"]["dashboard"] for part in (info, *info["workers"].values())}
        ports = {int(address.rpartition(":")[2]) for address in spoken_with}
        assert {port for _, _, port in before - elsewhere} == ports | dashboards
        assert_hot(client)
        assert listening() == before


# Who has no certificate


@pytest.mark.parametrize("part", ["scheduler", "workers", "nannies"])
def test_a_connection_without_the_right_certificate_is_closed(part: str, secured: Client) -> None:
    assert_hot(secured)
    other = Security.temporary().get_connection_args("client")
    unasked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unasked.check_hostname, unasked.verify_mode = False, ssl.CERT_NONE  # it trusts everybody, and shows nothing
    for address in addresses_of(secured)[part]:
        assert answer(address, secured.security.get_connection_args("client")["ssl_context"])
        for context in (unasked, None):
            assert answer(address, context) == b""
        for scheme, options in {"tls": other, "tcp": {}}.items():
            with pytest.raises(OSError, match=r"certificate does not match|reset by peer|closed"):
                asyncio.run(ask(address.replace("tls", scheme), options))


def answer(address: str, context: ssl.SSLContext | None) -> bytes:
    """Say something at an address, and return what is answered until it is hung up."""
    host, port = address.removeprefix("tls://").split(":")
    try:
        with socket.create_connection((host, int(port)), PATIENCE) as raw:
            line = context.wrap_socket(raw) if context else raw
            with line:
                line.sendall(bytes(64))
                return line.recv(1)
    except (ssl.SSLError, ConnectionError):
        return b""


async def ask(address: str, options: dict[str, Any]) -> Any:
    """Ask what any part of a cluster would answer."""
    comm = await connect(address, timeout=PATIENCE, **options)
    try:
        await comm.write({"op": "dagad_connection"})
        return await comm.read()
    finally:
        comm.abort()


@pytest.mark.parametrize("which", ["none", "others"])
def test_a_client_without_the_certificates_is_refused(which: str, secured: Client) -> None:
    shown = Security(**NOTHING) if which == "none" else Security.temporary()

    async def begin() -> None:
        client = Client(addresses_of(secured)["scheduler"][0], asynchronous=True, security=shown)
        try:
            await client
        finally:
            await client.close()

    with pytest.raises((TypeError, OSError), match=r"TLS expects a `ssl_context`|TLS certificate does not match"):
        asyncio.run(begin())
    assert_hot(secured)
