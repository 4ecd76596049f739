"""What dagad takes from distributed that is not in its documentation; imported late, when there is a cluster."""

from dagad_scheduler.releases import taken_from

with taken_from("distributed"):
    from distributed.comm.core import connect as connect
    from distributed.core import Status as Status, clean_exception as clean_exception
    from distributed.diagnostics.task_stream import TaskStreamPlugin as TaskStreamPlugin
    from distributed.http.utils import RequestHandler as RequestHandler
    from distributed.protocol.pickle import dumps as dumps
    from distributed.protocol.serialize import to_serialize as to_serialize
    from distributed.worker_state_machine import SecedeEvent as SecedeEvent
