"""The grammar of keys, ``("dagad-<role>-<function>-<token>", i)``: what a key is for, and which role runs first.

Dask shows tasks by the words with which their keys begin: the role and the words of the user's function.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dask.utils import key_split

Key = Any  # what Dask takes for one: a string, a number, or a tuple that begins with a string


class Role(StrEnum):
    """What a key is for."""

    INPUT = "input"  # what the graph is evaluated at: rows, shared arguments, a seed
    SHARD = "shard"  # the rows of one chunk, where they stay
    VALUE = "value"  # a chunk's value, with its linearization where one is wanted
    VALUE_AND_GRAD = "valuegrad"  # a chunk's value with its gradient; one word, as Dask shows no underscores
    GETITEM = "getitem"  # one component of another key's result; costs nothing
    SUM = "sum"  # a node in a tree of sums
    PULLBACK = "pullback"  # the cotangents of one chunk's inputs
    GRADIENT = "gradient"  # the cotangent of one input, complete
    GATE = "gate"  # what runs again waits for it; computes nothing
    LOOP = "loop"  # stands for a hot loop on one worker; computes nothing


# Sums go first: they are short and let go of memory. Pullbacks go last: no value waits for them.
_FIRST = (Role.INPUT, Role.SHARD, Role.GETITEM, Role.SUM, Role.GRADIENT, Role.GATE, Role.LOOP)
_RANK = {**dict.fromkeys(_FIRST, 0), Role.VALUE: 1, Role.VALUE_AND_GRAD: 1, Role.PULLBACK: 2}
_OF_CHUNKS = (Role.VALUE, Role.PULLBACK)
MOST_LETTERS = 40  # of a function's name
RANK_SHIFT = 48  # a priority is a rank above, a place below
VALUE_RANK, PULLBACK_RANK = _RANK[Role.VALUE], _RANK[Role.PULLBACK]
RANKS = ("sum", "value", "pullback")  # what keys of each rank are for, in profiles
_BY_NAME = {str(role): role for role in Role}
_PREFIX = {f"dagad-{role}": rank for role, rank in _RANK.items()}


@dataclass(frozen=True, slots=True)
class Names:
    """Keys of one evaluation. Two evaluations never share a token, so their keys never collide.

    Attributes
    ----------
    token
        What tells evaluations apart.
    function
        What is evaluated, in Dask's words; empty where that is nothing of the user's.
    gives_gradient
        Whether the tasks that give values give gradients too.
    """

    token: str
    function: str = ""
    gives_gradient: bool = False

    def __call__(self, role: Role | str, index: object) -> Key:
        if self.gives_gradient and role in _OF_CHUNKS:
            role = Role.VALUE_AND_GRAD
        return (f"dagad-{role}-{self.function}-{self.token}" if self.function else f"dagad-{role}-{self.token}", index)

    def about(self, key: Key) -> Names:
        """Return names for what has to do with a key, be it ours or anybody's: a function that was given stays."""
        if self.function:
            return self
        return Names(self.token, words_of(words_about(key)), self.gives_gradient)


@functools.lru_cache(1024)
def words_of(name: str) -> str:
    """Return the words of a function's name as Dask shows them.

    Dask cuts a name at what is not a word, and at words that it takes for numbers of 8 digits.

    Examples
    --------
    >>> words_of("log_likelihood2"), words_of("<lambda>"), words_of("log_binomial")
    ('log-likelihood', 'lambda', 'log-Binomial')
    """
    words = [word for word in re.findall(r"[^\W\d_]+", name) if word.isalpha()]
    words = [word.capitalize() if len(word) == 8 and word[0] in "abcdef" else word for word in words]
    kept = "-".join(words)[:MOST_LETTERS]
    return kept if len(words) < 2 or len(kept) < MOST_LETTERS else kept.rpartition("-")[0] or kept


def role_of(key: Key) -> Role | None:
    """Return the role of a key of ours, or None for anybody else's."""
    head = group_of(key)
    if isinstance(head, str) and head.startswith("dagad-"):
        return _BY_NAME.get(head.split("-", 2)[1])
    return None


def function_of(key: Key) -> str:
    """Return which function a key of ours is about, in Dask's words; empty where that is nobody's."""
    return "-".join(str(group_of(key)).split("-")[2:-1])


def words_about(key: Key) -> str:
    """Return the words by which Dask's dashboard knows a task of the user's, or what one of ours is about."""
    return str(key_split(key)) if role_of(key) is None else function_of(key)


def group_of(key: Key) -> Any:
    """Return what Dask groups keys by."""
    return key[0] if isinstance(key, tuple) and key else key


def rank_of(key: Key) -> int:
    """Return the place of a key in the queue."""
    return rank(group_of(key))


def rank(group: object) -> int:
    """Return the place of a group of keys in the queue; anybody else's keys count as values."""
    if isinstance(group, str) and group.startswith("dagad-"):
        return _PREFIX.get(group[: group.find("-", 6)], VALUE_RANK)
    return VALUE_RANK


def priorities(keys: Iterable[Key], positions: Mapping[Key, int] | None = None) -> dict[Key, int]:
    """Give each key a number: role first, then its place (by default where it stands in `keys`)."""
    ranks: dict[Any, int] = {}
    result: dict[Key, int] = {}
    for position, key in enumerate(keys):
        group = key[0] if type(key) is tuple and key else key
        found = ranks.get(group)
        if found is None:
            found = ranks[group] = rank(group) << RANK_SHIFT
        result[key] = found + (position if positions is None else positions[key])
    return result


def depth_first(graph: Mapping[Key, Any], wanted: Iterable[Key]) -> dict[Key, int]:
    """Return the place of every key: what one of the `wanted` needs comes right before it, and results live shortly.

    Dask's own order weighs more, and takes a time that grows with the square of the tasks where many results are read
    by one task and its result by many again, as in every gradient of a wide graph; this one is linear.

    Raises
    ------
    RuntimeError
        If the graph has a cycle.
    """
    at = {key: position for position, key in enumerate(graph)}
    positions: dict[Key, int] = {}
    begun = set[Key]()
    stack = [*list(graph)[::-1], *list(wanted)[::-1]]
    while stack:
        key = stack[-1]
        node = graph.get(key)
        if node is None or key in positions:
            stack.pop()
            continue
        needed = [other for other in node.dependencies if other not in positions and other in at]
        if not needed:
            positions[stack.pop()] = len(positions)
        elif key in begun:
            raise RuntimeError(f"The graph has a cycle: {key!r} needs {needed[0]!r}, which needs it in turn.")
        else:
            begun.add(key)
            stack += sorted(needed, key=at.__getitem__, reverse=True)
    return positions
