"""Run the programs of whole arrays with arrays of Dask's expressions, in a process of its own; see `main`.

Which arrays `dask.array` has is settled when it is imported: those of `array.query-planning` by a setting, those of the
package dask-array by taking it for `dask.array`.
"""

from __future__ import annotations

import collections
import importlib
import json
import sys
from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as anp
import dask
import dask.base
import numpy as np
from distributed import Client, LocalCluster

import dagad

compute: Any = dask.base.compute  # Dask has few types
PLANNED, PACKAGE = "array.query-planning", "dask-array"


def take(kind: str) -> Any:
    """Have `dask.array` be of a kind; return it."""
    if kind == PLANNED:
        dask.config.set({PLANNED: True})
        return importlib.import_module("dask.array")
    importlib.import_module("dask.array.fft")  # Dask's own modules go on with Dask's own arrays
    package: Any = importlib.import_module("dask_array")
    sys.modules["dask.array"] = package
    dask.array = package
    return package


def main(kind: str, step: str) -> None:
    """Print as JSON what became of every so many programs: how many are right, or are none of Dask's; and the rest."""
    da, counts, failures = take(kind), collections.Counter[str](), list[str]()
    programs: Any = importlib.import_module("support.array_programs")
    every = [program for of_kind in programs.PROGRAMS.values() for program in of_kind]
    np.seterr(all="ignore")
    for number, program in enumerate(every[:: int(step)]):
        cuts = program.chunks if step == "1" else program.chunks[number % len(program.chunks) :][:1]
        for chunks in cuts if program.name not in programs.REFUSED else ():
            try:
                x = da.from_array(programs.DATA[program.data], chunks=chunks)
                y = programs.total(program.dask(x))
                compute(y, scheduler="sync")
            except Exception:  # many functions are still to be written for these arrays
                counts["unknown to Dask"] += 1
                continue
            try:
                is_right = _is_right(programs, program, x, y)
            except Exception as error:
                is_right, program = False, f"{program.name}: {error!r}"
            counts["right"] += is_right
            failures += [] if is_right else [f"{program} at {chunks}"]
    print(json.dumps({**counts, "failures": failures}))


def _is_right(programs: Any, program: Any, x: Any, y: Any) -> bool:
    at, same = programs.DATA[program.data], programs.same

    def plain(x: Any) -> Any:
        return programs.plain_total(program, x)

    value, gradient = autograd.value_and_grad(plain)(at)
    found = compute(*dagad.value_and_gradient(y, x), scheduler="sync")
    is_right = same(found[0], value) and same(found[1], gradient)
    if program.name in programs.TWICE:
        direction = np.sin(np.arange(1.0, 1 + at.size)).reshape(at.shape)
        tangent_out = dagad.jvp(y, x, direction)[1]
        again = dagad.gradient((dagad.gradient(y**2, x) * x).sum(), x)
        found = compute(tangent_out, again, scheduler="sync")
        of_square = autograd.grad(lambda x: plain(x) ** 2)
        expected = autograd.grad(lambda x: anp.sum(of_square(x) * x))(at)
        is_right = is_right and same(found[0], np.sum(gradient * direction)) and same(found[1], expected, 1e-10)
    return bool(is_right)


def pieces(kind: str) -> None:
    """Print, as JSON by scheduler, how far derivatives in an array and in pieces of it are from autograd's."""
    da, at = take(kind), np.sin(np.arange(24.0)).reshape(6, 4)

    def loss(x: Any, first: Any, cut: Any, turned: Any) -> Any:
        return (x**2).sum() + (first**3).sum() + (cut**4).sum() + (turned**5).sum()

    def of_x(x: Any) -> Any:
        return anp.sum(x**2) + anp.sum(x[:2] ** 3) + anp.sum(x**4 + x**5)

    def of_others(first: Any, cut: Any, turned: Any) -> Any:
        return anp.sum(first**3) + anp.sum(cut**4) + anp.sum(turned**5)

    x = da.from_array(at, chunks=(3, 2))
    wrt = [x, x[:2], x.rechunk((2, 4)), x.T]
    y = loss(*wrt)
    gradients, tangent_out = dagad.gradient(y, wrt), dagad.jvp(y, x, np.cos(at))[1]
    of_all = autograd.grad(of_x)(at)
    right = [of_all, *autograd.grad(lambda parts: of_others(*parts))((at[:2], at, at.T)), np.sum(of_all * np.cos(at))]
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as made, Client(made) as client:
        gaps = {}
        for name, get in (("sync", "sync"), ("threads", "threads"), ("cluster", client.get)):
            found, tangent = compute(gradients, tangent_out, scheduler=get)
            gaps[name] = max(float(np.max(np.abs(f - r))) for f, r in zip([*found, tangent], right, strict=True))
    print(json.dumps(gaps))


def hidden(kind: str) -> None:
    """Print as JSON how far derivatives by an array that an earlier derivative reads too are from autograd's."""
    da, at = take(kind), np.array([0.5, 2.0, 3.0, 0.1])
    gaps = {}
    for chunks in (4, 2):
        x = da.from_array(at, chunks=chunks)
        a = da.sin(x)
        slope = dagad.gradient(da.exp(a).sum(), x)
        gradient = dagad.gradient((slope**2).sum() + (a**2).sum(), a)
        of_a = autograd.grad(lambda a: anp.sum((anp.exp(a) * np.cos(at)) ** 2) + anp.sum(a**2))(np.sin(at))
        found = compute(gradient, scheduler="sync")[0]
        gaps[f"in the middle, {chunks}"] = float(np.max(np.abs(found - of_a)))
        w = da.map_blocks(_doubled, x, dtype=float)
        z = da.from_array(at + 1, chunks=chunks)
        slope = dagad.gradient(da.sin(z * w).sum(), z)
        y = (slope**2).sum() + (w**2).sum()
        tangent_out = dagad.jvp(y, w, np.ones(4))[1]
        of_w = autograd.grad(lambda w: anp.sum((anp.cos((at + 1) * w) * w) ** 2) + anp.sum(w**2))(2 * at)
        found, tangent = compute(dagad.gradient(y, w), tangent_out, scheduler="sync")
        gaps[f"beside, {chunks}"] = float(np.max(np.abs(found - of_w)) + abs(tangent - np.sum(of_w)))
    print(json.dumps(gaps))


def _doubled(block: Any) -> Any:
    return block * 2.0


COMMANDS: dict[str, Callable[..., None]] = {"main": main, "pieces": pieces, "hidden": hidden}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
