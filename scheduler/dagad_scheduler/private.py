"""What dagad takes from Dask that is not in its documentation, all of it; listed in test_private."""

from typing import Any

from dagad_scheduler.releases import taken_from

with taken_from("dask"):
    from dask._expr import LLGExpr as LLGExpr
    from dask._task_spec import (
        Alias as Alias,
        DataNode as DataNode,
        Dict as Dict,
        GraphNode as GraphNode,
        List as List,
        Set as Set,
        Task as Task,
        TaskRef as TaskRef,
        Tuple as Tuple,
        convert_legacy_graph as convert_legacy_graph,
    )
    from dask.blockwise import (
        Blockwise as Blockwise,
        fuse_roots as fuse_roots,
        optimize_blockwise as optimize_blockwise,
    )
    from dask.callbacks import local_callbacks as local_callbacks, unpack_callbacks as unpack_callbacks
    from dask.core import flatten as flatten
    from dask.dot import graphviz_to_file as graphviz_to_file
    from dask.local import finish_task as finish_task, start_state_from_dask as start_state_from_dask
    from dask.system import CPU_COUNT as CPU_COUNT
    from dask.utils import ensure_dict as ensure_dict


def give_tasks(layer: Blockwise, tasks: dict[Any, Any]) -> None:
    """Have a layer of blocks consist of these tasks, as if it had made them itself."""
    layer._cached_dict = {"dsk": tasks}
