"""How many bytes things hold: told without drawing samples at random, as Dask does, so that nothing depends on luck."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from dagad._pytrees import pytree

SAMPLE = 64  # items of a list that are looked at


def nbytes_of(tree: Any) -> int:
    """Return about how many bytes a pytree holds: those of its arrays exactly, of long lists by every so many items.

    >>> import numpy as np
    >>> nbytes_of({"x": np.zeros(3), "items": [np.zeros(2)] * 1000})
    16024
    """
    if type(tree) is np.ndarray:
        return int(tree.nbytes)
    leaves = pytree.flatten(tree, is_leaf=pytree.is_list)[0]
    return sum(map(_nbytes_of_leaf, leaves))


def _nbytes_of_leaf(leaf: Any) -> int:
    if isinstance(leaf, list):
        some = leaf[:: max(-(-len(leaf) // SAMPLE), 1)]
        return round(sum(map(nbytes_of, some)) * len(leaf) / max(len(some), 1))
    nbytes = getattr(leaf, "nbytes", None)
    return int(nbytes) if isinstance(nbytes, int | np.integer) else sys.getsizeof(leaf)
