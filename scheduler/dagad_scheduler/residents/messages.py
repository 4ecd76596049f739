"""How buffers stand in messages between the client and the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

INLINE = 2**16  # bytes that go inside a message; more go beside it, uncopied


def blob(buffer: Any) -> Any:
    """Return a buffer as a message takes it: a short one inside, a long one beside it, uncopied."""
    if len(buffer) <= INLINE:
        return bytes(buffer)
    from dagad_scheduler.private_distributed import to_serialize

    return to_serialize(np.frombuffer(buffer, np.uint8))


def has_buffers(part: object) -> bool:
    """Return whether part of a call, as messages take it, is more than a few words."""
    from dagad_scheduler.private_distributed import to_serialize

    return any(map(has_buffers, part)) if isinstance(part, list) else isinstance(part, bytes | to_serialize)


def nbytes(part: object) -> int:
    """Return how large the buffers are in part of a call, as messages take it."""
    from dagad_scheduler.private_distributed import to_serialize

    if isinstance(part, list | dict):
        return sum(map(nbytes, part.values() if isinstance(part, dict) else part))
    whole = part.data if isinstance(part, to_serialize) else part
    return len(whole) if isinstance(whole, bytes) else int(getattr(whole, "nbytes", 0))


_BUFFERS = (np.ndarray, memoryview)


def packed(part: object) -> Any:
    """Return part of a call as a message takes it."""
    if isinstance(part, _BUFFERS):
        return blob(part)
    return [packed(item) for item in part] if isinstance(part, list) else part


def all_packed(calls: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return calls as messages take them; what is one object stays one."""
    done: dict[int, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    for address, call in calls.items():
        words = found[address] = {}
        for name, part in call.items():
            if type(part) is not str and type(part) is not bool:
                key = id(part)
                if key not in done:
                    done[key] = packed(part)
                part = done[key]
            words[name] = part
    return found
