"""Replies that no worker gives: with parts that are missing, of another kind, or cut; and gradients of another kind."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from dagad._executors.resident_program import Found
from dagad._values.buffers import pack_tree, unpack_tree


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


def gradients(change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], Any]:
    """Return a reply with other gradients beside the values, where there are gradients."""

    def changed(one: Any) -> Any:
        return (one[0], change(one[1]), one[2]) if isinstance(one, tuple) else one

    return found(lambda one: one._replace(reduced=list(map(changed, one.reduced))))


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
    "no gradients": gradients(lambda own: []),
    "more gradients": gradients(lambda own: own * 2),
    "no count": found(
        lambda one: one._replace(reduced=[one.reduced[0][:2]] if isinstance(one.reduced[0], tuple) else [])
    ),
    "something of its own": found(lambda one: one._replace(stacked=[[1.0]])),
    "other trees": found(lambda one: one._replace(reduced=[[value] for value in one.reduced])),
}
IMPOSSIBLE: dict[str, Callable[[Any], Any]] = {
    "shape": gradients(lambda own: [np.ones(2)]),
    "dtype": gradients(lambda own: [np.ones(3, "f4")]),
}
