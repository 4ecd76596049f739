"""The steps of a graph, which schedules count in: levels of active tasks, or what users have marked as steps."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral

from dagad._errors import PlanError
from dagad._graphs.activity import Graph, Key, is_copy
from dagad._graphs.layers import MARK, Annotations
from dagad._graphs.linearization import cotangent_part, value_part
from dagad_scheduler.private import Alias, GraphNode, Task

Active = Mapping[Key, Sequence[Key]]  # from keys, in the order of the graph, to the inputs that carry derivatives
_SLICES = frozenset({"getitem", "getter", "getter_nofancy", "getter_inline"})  # what dask arrays call them


def steps_of(nodes: Graph, active: Active, annotations: Mapping[Key, Annotations]) -> list[list[Key]]:
    """Return the active tasks of each step, in the order of the graph."""
    marks = {key: _checked(key, annotations[key][MARK]) for key in active if MARK in annotations.get(key, ())}
    step_of = _marked(active, marks) if marks else _levels(nodes, active)
    steps: dict[int, list[Key]] = defaultdict(list)
    for key in active:
        steps[step_of[key]].append(key)
    return [steps[index] for index in sorted(steps)]


def _marked(active: Active, marks: Mapping[Key, int]) -> dict[Key, int]:
    """Return the steps that users have marked; what is not marked belongs to the latest step that it reads."""
    step_of: dict[Key, int] = {}
    first = min(marks.values())
    for key, inputs in active.items():
        last = max((ref for ref in inputs if ref in step_of), key=step_of.__getitem__, default=None)
        reads = first if last is None else step_of[last]
        step_of[key] = marks.get(key, reads)
        if step_of[key] < reads:
            raise PlanError(
                f"The steps go backwards: {key!r} is marked as step {step_of[key]}, and reads {last!r} of step "
                f"{reads}. A step may read its own tasks and those of earlier ones. Mark the steps in the order of "
                f"time, by `with dask.annotate({MARK}=t)`. If they are: `x.to_delayed()` inside of a `with` marks all "
                "that x is made of anew; write `x.to_delayed(optimize_graph=False)` there."
            )
    return step_of


def _levels(nodes: Graph, active: Active) -> dict[Key, int]:
    """Return how many tasks come before each one on the longest way; slices and aliases count with who reads them."""
    depth: dict[Key, int] = {}
    for key, inputs in active.items():
        below = max((depth[ref] for ref in inputs if ref in depth), default=-1)
        depth[key] = max(below, 0) if _is_slice(nodes[key]) else below + 1
    readers: dict[Key, int] = {}
    for key in reversed(active):
        if _is_slice(nodes[key]) and key in readers:
            depth[key] = readers[key]
        for ref in active[key]:
            readers[ref] = min(readers.get(ref, depth[key]), depth[key])
    return depth


def crossing(steps: Sequence[Sequence[Key]], active: Active) -> Callable[[int], list[Key]]:
    """Return what tells for a step which keys from before are read by it or by later ones: the state before it.

    What is read by the last step alone is left out: that one is recorded at once, and never runs again.
    """
    last = {ref: index for index, keys in enumerate(steps[:-1]) for key in keys for ref in active[key]}
    far = [(index, key) for index, keys in enumerate(steps) for key in keys if last.get(key, 0) > index + 1]

    def before(index: int) -> list[Key]:
        near = [key for key in steps[index - 1] if last.get(key, 0) >= index] if index else []
        return near + [key for made, key in far if made + 1 < index <= last[key]]

    return before


def _is_slice(node: GraphNode) -> bool:
    if not isinstance(node, Task):
        return isinstance(node, Alias)
    if node.func in (operator.getitem, cotangent_part, value_part) or is_copy(node):
        return True
    module, name = (str(getattr(node.func, what, "")) for what in ("__module__", "__name__"))
    return module.startswith("dask.") and name in _SLICES


def _checked(key: Key, mark: object) -> int:
    if not isinstance(mark, Integral) or isinstance(mark, bool):
        raise PlanError(f"`{MARK}={mark!r}`, which {key!r} is marked by, is no step. Number the steps by ints.")
    return int(mark)
