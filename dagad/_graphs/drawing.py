"""Pictures of derived graphs: the forward half and the reverse half side by side, coloured by what tasks are for."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import dask
from dask.base import is_dask_collection
from dask.delayed import Delayed

from dagad._graphs.activity import Key
from dagad._graphs.linearization import value_and_pullback
from dagad._types import AnyCollection, AnyNode, AnyTask
from dagad._values import pytree
from dagad._values.shipping import opened
from dagad_scheduler.private import Task, TaskRef, convert_legacy_graph, ensure_dict, graphviz_to_file
from dagad_scheduler.roles import Role, role_of, words_about


class Look(NamedTuple):
    """What is said of a kind of task, its colour, and in which half it stands."""

    words: str
    colour: str
    shape: str = "ellipse"
    is_reverse: bool = False


# Colours that those who see fewer colours can tell apart: P. Tol, "Colour schemes", the bright and the light ones.
DATA = Look("data", "#f5f5f5", "box")
PLAIN = Look("task without a derivative", "#dddddd")
VALUE = Look("value, with its tape", "#77aadd")
VALUE_AND_GRADIENT = Look("value and gradient", "#99ddff")
PART = Look("value or cotangent, taken out of a result", "#ffffff", "circle")
SEED = Look("seed", "#ffaabb", is_reverse=True)
PULLBACK = Look("pullback", "#ee8866", is_reverse=True)
SUM = Look("sum of cotangents", "#eedd88", is_reverse=True)
GRADIENT = Look("gradient", "#bbcc33", "box", is_reverse=True)
_ALL = [DATA, PLAIN, VALUE, VALUE_AND_GRADIENT, PART, SEED, PULLBACK, SUM, GRADIENT]
_LOOKS = {
    Role.VALUE: VALUE,
    Role.VALUE_AND_GRAD: VALUE_AND_GRADIENT,
    Role.GETITEM: PART,
    Role.PULLBACK: PULLBACK,
    Role.SUM: SUM,
    Role.GRADIENT: GRADIENT,
}


def visualize(*collections: Any, filename: str | None = "mydask", format: str | None = None, **options: Any) -> Any:
    """Draw the graphs of Dask collections, those of derivatives with their two halves side by side.

    The forward half goes up, the reverse half beside it goes down again: a pullback stands beside the task that it
    belongs to. Colours say what a task is for, and a legend says what they mean. Gradients and tangents have it as
    their method too: ``dagad.gradient(y, x).visualize()``.

    Parameters
    ----------
    *collections
        Dask collections, or containers of them.
    filename, format
        The file to write, without its ending, and what to write: ``"png"``, ``"svg"``, ``"pdf"``, ``"dot"``. No file
        for ``filename=None``.
    **options
        Graphviz's own for the whole graph, such as ``rankdir="LR"``. Dask draws instead where one of its options is
        given: `color`, `optimize_graph`, `engine` and those for the nodes.

    Returns
    -------
    IPython.display.Image, IPython.display.SVG, or None
        As from ``dask.visualize``.

    Raises
    ------
    RuntimeError
        If neither graphviz nor another of the engines that Dask draws with is installed.

    Examples
    --------
    >>> import dask
    >>> import dagad
    >>> x = dask.delayed(3.0)
    >>> value, gradient = dagad.value_and_gradient(x * x, x)
    >>> dagad.visualize(value, gradient, filename="gradient.svg")  # doctest: +SKIP
    """
    options = {name: value for name, value in options.items() if value or name not in _DASKS}
    engine = options.get("engine") or dask.config.get("visualization.engine", None)
    if _DASKS.intersection(options) or engine not in (None, "graphviz") or not _has_graphviz():
        given = {**options, "filename": filename} | ({"format": format} if format else {})
        return dask.visualize(*collections, **given)  # type: ignore[attr-defined]  # Dask has few types
    options.pop("engine", None)
    graph: dict[Key, Any] = {}
    for one in pytree.flatten(collections, is_leaf=is_dask_collection)[0]:
        if is_dask_collection(one):
            graph |= convert_legacy_graph(ensure_dict(one.__dask_graph__()))
    return graphviz_to_file(drawing(graph, **options), filename, format)


# Options of Dask's drawings that change what is drawn
_DASKS = frozenset(
    "color cmap maxval optimize_graph collapse_outputs verbose data_attributes function_attributes traverse".split()
)


def _has_graphviz() -> bool:
    try:
        import graphviz as graphviz
    except ImportError:  # Dask says what to install
        return False
    return True


def drawing(graph: Mapping[Key, Any], **options: Any) -> Any:
    """Return a `graphviz.Digraph` of a graph."""
    import graphviz

    whole = graphviz.Digraph(
        graph_attr={"rankdir": "BT", "newrank": "true", **options},
        node_attr={"fontname": "helvetica", "style": "filled"},
        edge_attr={"color": "#555555"},
    )
    looks = {key: _look(key, node) for key, node in graph.items()}
    names = {key: f"n{number}" for number, key in enumerate(graph)}
    for title, is_reverse in (("forward", False), ("reverse", True)):
        keys = [key for key, look in looks.items() if look.is_reverse is is_reverse]
        with whole.subgraph(name=f"cluster_{title}") as half:
            half.attr(label=title, color="#bbbbbb", fontname="helvetica")
            for key in keys:
                look, label = looks[key], _label(key, graph)
                half.node(names[key], label, fillcolor=look.colour, shape=look.shape, width="0.75" if label else "0.2")
    for key, node in graph.items():
        for other in sorted(node.dependencies & graph.keys(), key=names.__getitem__):
            _draw_edge(whole, names[other], names[key], looks[other].is_reverse, looks[key].is_reverse)
    _draw_legend(whole, looks.values())
    return whole


def _draw_edge(whole: Any, start: str, end: str, from_reverse: bool, to_reverse: bool) -> None:
    if from_reverse and to_reverse:  # drawn downwards: the reverse half goes back along the other one
        whole.edge(end, start, dir="back")
    else:
        whole.edge(start, end, constraint="false" if from_reverse != to_reverse else "true")


def _draw_legend(whole: Any, looks: Iterable[Look]) -> None:
    with whole.subgraph(name="cluster_legend") as legend:
        legend.attr(label="legend", color="#bbbbbb", fontname="helvetica")
        present = [look for look in _ALL if look in set(looks)]
        names = [f"legend{number}" for number in range(len(present))]
        for name, look in zip(names, present, strict=True):
            legend.node(name, look.words, fillcolor=look.colour, shape="box" if look.shape == "box" else "ellipse")
        for one, other in itertools.pairwise(names):
            legend.edge(one, other, style="invis")


def _look(key: Key, node: AnyNode) -> Look:
    role = role_of(key)
    if role is None or role is Role.INPUT:
        is_seed = role is Role.INPUT and key[1] == "seed"
        return SEED if is_seed else PLAIN if isinstance(node, Task) else DATA
    of_what = key[1][0] if isinstance(key[1], tuple) else None  # a part, or a sum, of cotangents
    look = _LOOKS.get(role, PLAIN)
    return look._replace(is_reverse=look.is_reverse or of_what == "cotangent")


def _label(key: Key, graph: Mapping[Key, Any]) -> str:
    """Return which functions of the user's a task is about."""
    role, node = role_of(key), graph[key]
    if role is Role.PULLBACK and node.args[0].key in graph:
        node = graph[node.args[0].key]
    if isinstance(node, Task) and node.func is value_and_pullback:
        return "\n".join(_functions_of(opened(node.args[1])))
    if role is Role.GETITEM:
        return ""
    return words_about(key) or ("seed" if role is Role.INPUT else str(role))


def _functions_of(task: AnyTask) -> list[str]:
    """Return the names of the functions that a task runs, in their order, those that come in a row as one."""
    names = [] if isinstance(task, TaskRef) else task.names()
    runs = [(name, len(list(same))) for name, same in itertools.groupby(names)]
    return [name if count == 1 else f"{name} \u00d7 {count}" for name, count in runs]


class DerivedDelayed(Delayed):
    """A Delayed of a derived graph, which is drawn by `visualize`."""

    __slots__ = ()

    def visualize(
        self, filename: str | None = "mydask", format: str | None = None, optimize_graph: bool = False, **options: Any
    ) -> Any:
        """Draw the graph; see `dagad.visualize`."""
        if optimize_graph:
            options["optimize_graph"] = optimize_graph
        return visualize(self, filename=filename, format=format, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return DerivedDelayed, (self._key, self._dask, self._length, self._layer)


def drawn(made: AnyCollection) -> Any:
    """Return a collection that `visualize` draws; one that can't be told to is Dask's to draw."""
    if type(made) is Delayed:
        make: Any = DerivedDelayed
        return make(made._key, made._dask, made._length, made._layer)
    if isinstance(getattr(made, "__dict__", None), dict):
        shown = copy.copy(made)  # held by itself, a collection and its graph would wait for the garbage collector
        vars(shown).update(vars(made))
        made.visualize = functools.partial(visualize, shown)
    return made
