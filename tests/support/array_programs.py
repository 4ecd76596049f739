"""Programs of whole dask arrays, each with the same program for plain autograd; the list is in array_programs.txt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import autograd.scipy.special as traced_special
import dask.array as da
import numpy as np
from dask.delayed import delayed
from scipy import special

Function = Callable[[Any], Any]
RANDOM = np.random.default_rng(7)
MATRIX = RANDOM.normal(size=(6, 4))
W = RANDOM.normal(size=(4, 3))
V = np.array([0.3, -1.2, 2.0, 0.7])
DATA: dict[str, Any] = {
    "any": MATRIX,
    "positive": 0.5 + np.abs(MATRIX),
    "line": RANDOM.normal(size=12),
    "square": RANDOM.normal(size=(6, 6)) + 5.0 * np.eye(6),
    "definite": (lambda a: a @ a.T + 4.0 * np.eye(6))(RANDOM.normal(size=(6, 6))),
    "cube": RANDOM.normal(size=(4, 3, 2)),
    "tall": RANDOM.normal(size=(12, 3)),
    "holes": np.where(np.arange(24).reshape(6, 4) % 7 == 3, np.nan, MATRIX),
    "zero": np.where(np.arange(24).reshape(6, 4) == 9, 0.0, MATRIX),
}
CHUNKS: dict[str, list[Any]] = {
    "any": [(6, 4), (3, 2), (2, 4), ((1, 4, 1), (3, 1))],
    "line": [12, 4, 5, ((1, 2, 9),)],
    "square": [(6, 6), (3, 3), (2, 2), (1, 1)],
    "cube": [(4, 3, 2), (2, 2, 1), (1, 3, 2), ((1, 3), (2, 1), 2)],
    "tall": [(12, 3), (4, 3), (6, 3), ((5, 7), 3)],
}
CHUNKS |= dict.fromkeys(("positive", "holes", "zero"), CHUNKS["any"]) | {"definite": CHUNKS["square"]}
ROWS = [(6, 4), (3, 4), (2, 4), ((1, 5), 4)]  # each row in one chunk
COLUMNS = [(6, 4), (6, 2), (6, 1), (6, (1, 3))]


# What stands for operations that autograd has no rule for


def at(x: Any) -> Any:
    """Return the numbers of a traced array."""
    while hasattr(x, "_value"):
        x = x._value
    return x


def without_nan(x: Any) -> Any:
    return anp.where(np.isnan(at(x)), 0.0, x)


def present(x: Any) -> Any:
    return ~np.isnan(at(x))


def nanvar(x: Any, axis: Any) -> Any:
    count = np.sum(present(x), axis=axis, keepdims=True)
    apart = anp.where(present(x), x - anp.sum(without_nan(x), axis=axis, keepdims=True) / count, 0.0)
    return anp.sum(apart**2, axis=axis) / np.sum(present(x), axis=axis)


def cumprod(x: Any) -> Any:
    rows = [x[0]]
    for index in range(1, len(x)):
        rows.append(rows[-1] * x[index])
    return anp.stack(rows)


def median(x: Any) -> Any:
    ranked = x[np.argsort(at(x), axis=0), np.arange(x.shape[1])]
    return (ranked[2] + ranked[3]) / 2.0


def qr(x: Any) -> tuple[Any, Any]:
    """Return what Cholesky says, with the signs of LAPACK."""
    signs = np.sign(np.diag(np.linalg.qr(at(x))[1]))
    r = signs[:, None] * anp.linalg.cholesky(anp.dot(x.T, x)).T
    return anp.linalg.solve(r.T, x.T).T, r


def wide_r(x: Any) -> Any:
    q, r = qr(x[:, :4])
    return anp.concatenate([r, anp.dot(q.T, x[:, 4:])], axis=1)


def pair(factors: Any) -> list[Any]:
    """Return what does not depend on the signs of factors."""
    q, r = factors
    return [q * q * q.sum(axis=0) ** 2, r * r]


def lu(x: Any) -> Any:
    """Return the upper factor of a matrix that needs no pivots."""
    rows = [x[index] for index in range(len(x))]
    for step in range(len(rows)):
        for below in range(step + 1, len(rows)):
            rows[below] = rows[below] - rows[below][step] / rows[step][step] * rows[step]
    return anp.triu(anp.stack(rows))


def assigned(xp: Any, x: Any) -> Any:
    z = xp.asarray(x).copy()
    z[1] = 2.0 * x[4]
    z[4] = 3.0
    return z


def assigned_to(x: Any) -> Any:
    return anp.concatenate([x[:1], 2.0 * x[4:5], x[2:4], np.full((1, 4), 3.0), x[5:]])


def masked(xp: Any, x: Any) -> Any:
    z = xp.asarray(x).copy()
    z[z < 0.0] = 0.5
    return z


def smoothed(block: Any) -> Any:
    """Return a stencil of three."""
    return np.concatenate([block[:1], (block[:-2] + block[1:-1] * 2.0 + block[2:]) / 4.0, block[-1:]])


def stencil(x: Any, ghosts: Any) -> Any:
    wide = anp.concatenate([ghosts[0], x, ghosts[1]])
    return (wide[:-2] + wide[1:-1] * 2.0 + wide[2:]) / 4.0


# The list


@dataclass(frozen=True)
class Program:
    """A program: of which data, with dask arrays, with autograd's numpy, and the ways to cut the data."""

    name: str
    data: str
    dask: Function
    plain: Function
    chunks: list[Any]


NAMES = globals() | {"delayed": delayed, "special": special, "traced_special": traced_special}


def function(text: str, xp: Any) -> Function:
    made: Function = eval(f"lambda x: {text}", {**NAMES, "xp": xp})
    return made


def programs(lines: list[str]) -> Iterator[tuple[str, Program]]:
    kind, ways = "", dict[str, str]()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("["):
            kind = line.strip("[]")
        elif line.startswith("    "):
            word, _, text = line.strip().partition(": ")
            ways[word] = text
        elif line and not line.startswith("#"):
            ways = dict(zip(("name", "data", "dask"), line.split(" | "), strict=True))
        if "name" in ways and not after.startswith("    "):
            dask, plain = function(ways["dask"], da), function(ways.get("numpy", ways["dask"]), anp)
            chunks = eval(ways["chunks"], NAMES) if "chunks" in ways else CHUNKS[ways["data"]]
            yield kind, Program(ways["name"], ways["data"], dask, plain, chunks)
            ways = {}


PROGRAMS: dict[str, list[Program]] = {}
for _kind, _program in programs(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()):
    PROGRAMS.setdefault(_kind, []).append(_program)


REFUSED = {  # and what the sentence names
    "as_gufunc, vectorized": "np.vectorize",
    "vectorize": "np.vectorize",
    "frompyfunc": "np.frompyfunc",
}
TWICE = [  # and pushed
    "sin", "divide", "where", "prod along an axis", "var", "nanmean", "cumprod", "median", "moment", "einsum", "solve",
    "matmul with itself", "cholesky", "svd, values", "qr", "concatenate", "pad, reflect", "assignment", "apply_gufunc",
    "map_overlap, reflect", "fft",
]  # fmt: skip


def weights(shape: tuple[int, ...]) -> Any:
    """Return other weights for each entry: what goes to a wrong place shows."""
    return np.cos(np.arange(1.0, 1 + int(np.prod(shape)))).reshape(shape)


def total(result: Any) -> Any:
    if not result.ndim:
        return result
    held = weights(result.shape)
    return (result * (da.from_array(held, chunks=result.chunks) if isinstance(result, da.Array) else held)).sum()


def plain_total(program: Program, x: Any) -> Any:
    result = program.plain(x)
    return anp.sum(result * weights(result.shape)) if result.shape else result


def same(actual: Any, expected: Any, rtol: float = 1e-11) -> bool:
    return bool(np.max(np.abs(actual - expected)) <= rtol * np.max(np.abs(expected)))
