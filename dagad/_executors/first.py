"""The first chunk that is not finite, whichever task fails first: the chunks before it are looked at as well."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from dagad._errors import NonFiniteError
from dagad._executors.evaluation import Scheduler, new_names, run_graph
from dagad._executors.graph_tasks import finite_or_error
from dagad._kernels.job import Job, Seeds, nested
from dagad._kernels.replay import parts_of
from dagad_scheduler.private import DataNode, Task, TaskRef


@contextlib.contextmanager
def first_refused(scheduler: Scheduler, job: Job, method: str, seeds: Sequence[Seeds], group: int) -> Iterator[None]:
    """Of the chunks that are not finite, have the first one refused: it is to be the same whatever the timing."""
    try:
        yield
    except NonFiniteError as error:
        before = [chunk for chunk in job.plan if chunk.stop <= error.rows[0]]
        in_order = not scheduler.remote and method != "pull"  # pullbacks begin at the end
        if in_order or not before:
            raise
        graph, names, found = dict[Any, Any](), new_names(job.kernel.name), dict[Any, Any]()
        batch, shared, kept = names("input", "function"), names("input", "theta"), job.kept()
        graph[batch], graph[shared] = DataNode(batch, job.batch), DataNode(shared, job.shared())
        reduced, keys = [list(one.reduced) for one in seeds], []
        for start in range(0, len(before), group):
            contexts, parts = parts_of(job, seeds, before[start : start + group], names)
            keys.append(names("value", start))
            args = TaskRef(batch), method, contexts, TaskRef(shared), reduced, nested(parts)
            graph[keys[-1]] = Task(keys[-1], finite_or_error, *args)
        for sharded in (sharded for one in seeds for sharded in one.sharded if sharded is not None):
            kept |= sharded.kept
        with contextlib.suppress(Exception):  # a cluster may come to its end: there is an error to tell of
            run_graph(scheduler, graph, keys, found.__setitem__, kept=kept)
        raise next((found[key] for key in keys if found.get(key) is not None), error) from None
