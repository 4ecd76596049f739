"""Replies that no worker gives: with parts that are missing, of another kind, or cut; and gradients of another kind."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from dagad._executors.resident_program import Found
from dagad._pytrees.buffers import pack_tree, unpack_tree


def without(name: str) -> Callable[[Any], Any]:
    return lambda reply: {key: part for key, part in reply.items() if key != name}


def with_(**parts: Any) -> Callable[[Any], Any]:
    return lambda reply: {**reply, **parts}


def found(change: Callable[[Found], Any]) -> Callable[[Any], Any]:
    """Return a reply with something else than was found."""

    def changed(reply: Any) -> Any:
        head, data = pack_tree(change(unpack_tree(bytes(reply["head"]), bytes(reply["data"]))))
        return {**reply, "head": head, "data": data.tobytes()}

    return changed


def only(reply: Any) -> Callable[[Any], Any]:
    return lambda _: reply


def longer(by: int) -> Callable[[Any], Any]:
    return lambda reply: {**reply, "data": (bytes(reply["data"]) + bytes(16))[: len(reply["data"]) + by]}


REPLIES: list[Any] = [None, b"", [], 7, {}, {"status": "OK"}]
HEADS: list[Any] = [None, b"", b"nonsense", "text", 3, [], pickle.dumps(3), pickle.dumps((3, [])), pack_tree([1.0])[0]]
NONSENSE: dict[str, Callable[[Any], Any]] = {
    **{f"no {name}": without(name) for name in ("status", "head", "data", "seconds")},
    **{repr(reply): only(reply) for reply in REPLIES},
    **{f"head {number}": with_(head=head) for number, head in enumerate(HEADS)},
    **{f"data {type(wrong).__name__}": with_(data=wrong) for wrong in (None, "text", 3.0, [1.0], b"")},
    **{f"data by {by}": longer(by) for by in (-16, -1, 1, 16)},
    **{f"status {status}": with_(status=status) for status in ("perhaps", "unknown", None)},
    "no number of seconds": with_(seconds="long"),
    "no values": found(lambda one: one._replace(reduced=[])),
    "more values": found(lambda one: one._replace(reduced=one.reduced * 2)),
    "no gradients": found(lambda one: one._replace(shared=[])),
    "something of its own": found(lambda one: one._replace(stacked=[[1.0]])),
    "other trees": found(lambda one: one._replace(reduced=[[value] for value in one.reduced])),
}
IMPOSSIBLE: dict[str, Callable[[Any], Any]] = {
    "shape": found(lambda one: one._replace(shared=[[np.ones(2)] for _ in one.shared])),
    "dtype": found(lambda one: one._replace(shared=[[np.ones(3, "f4")] for _ in one.shared])),
    "number": found(lambda one: one._replace(shared=[[np.ones(3)] * 2 for _ in one.shared])),
}
