"""Records of a checkpoint: a length, a digest and bytes, so that one which was being written is known as such."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from dagad._errors import CheckpointError, StructureError
from dagad._values.buffers import pack_tree, unpack_tree

MAGIC = b"dagad\x00\x01\n"
HEAD = struct.Struct("<8sQ16s")
MOST_BYTES = 1 << 40

Record = dict[str, Any]  # words, and under "data" a pytree of numbers


class TornError(Exception):
    """A record is not whole; `at` is where it begins."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at


def framed(record: Record) -> bytes:
    """Return a record as bytes, with its length and its digest."""
    words = {name: part for name, part in record.items() if name != "data"}
    try:
        head, buffer = pack_tree(record.get("data", ()))
    except (pickle.PicklingError, AttributeError) as error:
        raise CheckpointError(
            f"A checkpoint holds records of classes that another process finds by their names, and was to hold another "
            f"({error}). Define it at the top of a module, or give tuples and dicts instead."
        ) from error
    text = json.dumps(words).encode()
    payload = b"".join([struct.pack("<QQ", len(text), len(head)), text, head, buffer.tobytes()])
    return HEAD.pack(MAGIC, len(payload), _digest(payload)) + payload


def records(file: BinaryIO) -> Iterator[tuple[int, Record]]:
    """Yield where each record of a file begins, and the record; raise TornError at one that is not whole."""
    while True:
        at = file.tell()
        head = file.read(HEAD.size)
        if not head:
            return
        if len(head) < HEAD.size:
            raise TornError(at, "it ends in the middle of a record")
        magic, length, expected = HEAD.unpack(head)
        if magic != MAGIC or length > MOST_BYTES:
            raise TornError(at, "there is something else than a record")
        payload = file.read(length)
        if len(payload) < length:
            raise TornError(at, "it ends in the middle of a record")
        if _digest(payload) != expected:
            raise TornError(at, "a record is not what was written")
        try:
            yield at, _opened(payload)
        except (StructureError, ValueError, struct.error) as error:
            raise TornError(at, f"a record can't be read ({error})") from error


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=16).digest()


def _opened(payload: bytes) -> Record:
    n_text, n_head = struct.unpack_from("<QQ", payload)
    start = 16 + n_text
    words: Record = json.loads(payload[16:start])
    data = np.frombuffer(payload, np.uint8, offset=start + n_head).copy()  # aligned, and writable
    return words | {"data": unpack_tree(payload[start : start + n_head], data)}
