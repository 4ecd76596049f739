"""Holders that are no containers: views of dicts, objects of libraries, what can not be copied, what is found late."""

from __future__ import annotations

import argparse
import collections
import configparser
import functools
import importlib
import importlib.util
import multiprocessing
import operator
import shelve
from collections.abc import Callable
from typing import Any

import numpy as np

Holder = tuple[Callable[[Any], Any], Callable[[], Any]]  # see `holders`


def in_a_view(cls: Any, name: str, find: Callable[[Any], Any]) -> Callable[[], Holder]:
    def made() -> Holder:
        held = cls(rows=None)
        view = getattr(held, name)()
        return functools.partial(operator.setitem, held, "rows"), lambda: find(view)

    return made


def in_a_default_factory() -> Holder:
    held = collections.defaultdict[str, Any](list)

    def get() -> Any:
        found = held["rows"]
        del held["rows"]
        return found

    def put(rows: Any) -> None:
        held.default_factory = lambda: rows

    return put, get


def in_a_namespace() -> Holder:
    held = argparse.Namespace()
    return lambda rows: setattr(held, "rows", rows), lambda: held.rows


def in_options() -> Holder:
    held = configparser.ConfigParser()
    held["model"] = {}
    put = functools.partial(operator.setitem, held["model"], "rows")
    return lambda rows: put(repr(rows.tolist())), lambda: np.array(eval(held["model"]["rows"]))


def on_a_shelf() -> Holder:
    shelf = shelve.Shelf[Any]({})
    return lambda rows: operator.setitem(shelf, "rows", rows), lambda: shelf["rows"]


def in_shared_memory() -> Holder:
    held: Any = multiprocessing.Array("d", 4)

    def put(rows: Any) -> None:
        np.frombuffer(held.get_obj())[: rows.size] = rows.ravel()

    return put, lambda: np.frombuffer(held.get_obj()).reshape(2, 2)


def at_an_edge() -> Holder:
    networkx: Any = importlib.import_module("networkx")

    graph = networkx.Graph([(0, 1)])
    return lambda rows: operator.setitem(graph[0][1], "rows", rows), lambda: graph.edges[0, 1]["rows"]


def at_a_vertex() -> Holder:
    networkx: Any = importlib.import_module("networkx")

    graph = networkx.DiGraph()
    return lambda rows: graph.add_node(0, rows=rows), lambda: graph.nodes[0]["rows"]


def in_a_matrix_of_symbols() -> Holder:
    sympy: Any = importlib.import_module("sympy")

    held = sympy.zeros(2, 2)

    def put(rows: Any) -> None:
        for where, number in np.ndenumerate(rows):
            held[where] = float(number)

    return put, lambda: np.array(held.tolist(), float)


class Closing:
    """What is closed when nobody has it any more can't be copied: it would be closed twice."""

    def __init__(self) -> None:
        self.rows, self.numbers = list[Any]([None]), np.zeros((2, 2))

    def __del__(self) -> None: ...


def in_a_list_of_what_is_closed() -> Holder:
    held = Closing()
    return lambda rows: operator.setitem(held.rows, 0, rows), lambda: held.rows[0]


def in_an_array_of_what_is_closed() -> Holder:
    held = Closing()

    def put(rows: Any) -> None:
        held.numbers[: len(rows)] = rows

    return put, lambda: held.numbers


def in_an_error() -> Holder:
    error = ValueError([None])
    return lambda rows: operator.setitem(error.args[0], 0, rows), lambda: error.args[0][0]


class Lazy:
    def __init__(self) -> None:
        self.entries = dict[str, Any]()

    @functools.cached_property
    def found(self) -> Any:
        return Found(self.entries)


class Found:
    def __init__(self, entries: dict[str, Any]) -> None:
        self.entries = entries


def in_a_property_that_is_cached() -> Holder:
    held = Lazy()
    return lambda rows: held.entries.update(rows=rows), lambda: held.found.entries["rows"]


def in_what_is_found_at_the_first_call() -> Holder:
    found, held = dict[str, Any](), list[Any]([None])

    def get() -> Any:
        if not found:
            found["rows"] = (held,)
        return found["rows"][0][0]

    return functools.partial(operator.setitem, held, 0), get


def in_a_class_that_is_given() -> Holder:
    def kind(rows: Any) -> Any:
        class Own:
            def rows(self) -> Any:
                return rows

        return Own

    held = kind(None)()
    return lambda rows: setattr(held, "__class__", kind(rows)), lambda: held.rows()


def in_a_code_that_is_given() -> Holder:
    def helper() -> Any: ...

    def put(rows: Any) -> None:
        scope: dict[str, Any] = {}
        exec(f"def helper(): return {rows.tolist()!r}", scope)
        helper.__code__ = scope["helper"].__code__

    return put, lambda: np.array(helper())


def values(view: Any) -> Any:
    return next(iter(view))


def last_of_an_item(view: Any) -> Any:
    return next(iter(view))[1]


MORE: dict[str, Callable[[], Holder]] = {
    "values of a dict": in_a_view(dict, "values", values),
    "items of a dict": in_a_view(dict, "items", last_of_an_item),
    "values of an ordered dict": in_a_view(collections.OrderedDict, "values", values),
    "a default factory": in_a_default_factory,
    "a namespace of arguments": in_a_namespace,
    "options": in_options,
    "a shelf": on_a_shelf,
    "memory of processes": in_shared_memory,
    "a list of what is closed": in_a_list_of_what_is_closed,
    "an array of what is closed": in_an_array_of_what_is_closed,
    "an error": in_an_error,
    "a property that is cached": in_a_property_that_is_cached,
    "a class that is given": in_a_class_that_is_given,
    "a code that is given": in_a_code_that_is_given,
    "what is found at the first call": in_what_is_found_at_the_first_call,
}
if importlib.util.find_spec("networkx") is not None:
    MORE |= {"an edge": at_an_edge, "a vertex": at_a_vertex}
if importlib.util.find_spec("sympy") is not None:
    MORE |= {"a matrix of symbols": in_a_matrix_of_symbols}
