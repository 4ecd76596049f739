"""What dagad takes from inside autograd, all of it; listed in test_private."""

from dagad_scheduler.releases import taken_from

with taken_from("autograd"):
    from autograd import builtins as builtins, tracer as tracer
    from autograd.builtins import SequenceBox as SequenceBox
    from autograd.core import (
        SparseObject as SparseObject,
        add_outgrads as add_outgrads,
        primitive_jvps as primitive_jvps,
        primitive_vjps as primitive_vjps,
    )
    from autograd.numpy import (
        numpy_boxes as numpy_boxes,
        numpy_vjps as numpy_vjps,
        numpy_wrapper as numpy_wrapper,
    )
    from autograd.numpy.numpy_vjps import unbroadcast_f as unbroadcast_f
    from autograd.tracer import (
        TraceStack as TraceStack,
        box_types as box_types,
        find_top_boxed_args as find_top_boxed_args,
        isbox as isbox,
        new_box as new_box,
        notrace_primitives as notrace_primitives,
        trace_primitives_map as trace_primitives_map,
    )
    from autograd.util import subvals as subvals
