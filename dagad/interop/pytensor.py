"""PyTensor, and PyMC with it: an objective of dagad's in their graphs; needs ``pip install "dagad[pytensor]"``.

Three operations: value, value with gradient, the Hessian's product. A rewrite makes the first two one at one point.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import cloudpickle
import numpy as np

from dagad._api.program import check_function
from dagad._errors import DagadError, NotDifferentiableError, PortabilityError
from dagad._tracebacks import public
from dagad._types import Function, Leaf
from dagad._values import pytree
from dagad._words import described, name_of
from dagad.interop._objective import Objective

try:
    import pytensor.tensor as pt
    from pytensor.gradient import DisconnectedType
    from pytensor.graph.basic import Apply, Variable
    from pytensor.graph.op import Op
    from pytensor.graph.rewriting.basic import node_rewriter
    from pytensor.tensor.rewriting.basic import register_canonicalize
except ModuleNotFoundError as error:
    error.add_note('dagad: `dagad.interop.pytensor` needs PyTensor: `pip install "dagad[pytensor]"`.')
    raise

Variables = Sequence[Any]


@public
def as_pytensor(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of PyTensor's variables that computes `fun`, for `pymc.Potential` and the like.

    Value and gradient at one point are one evaluation, wherever PyTensor needs both; a value alone starts no pullback.

    Parameters
    ----------
    fun
        A function written with numpy that returns one real number; it may call `reduce_sum` and the like.

    Returns
    -------
    Callable
        From variables, or pytrees of them, to a scalar variable of dtype float64. PyTensor differentiates it twice:
        in its floating-point arguments, integers are constants.

    Raises
    ------
    NotDifferentiableError
        If an argument is not real, or, when PyTensor computes, `fun` does not return one real number.
    PortabilityError
        If PyTensor computes in a fork of this process, or wants to pickle what can't leave it.

    Notes
    -----
    PyMC's chains are processes that it forks, unless told otherwise, and threads and connections do not live on in
    these. Say ``pm.sample(cores=1)``: chains come one after the other, and each evaluation is as parallel as `fun` is.
    ``mp_ctx="spawn"`` is for functions that hold neither a Client nor Shards.

    Examples
    --------
    >>> import numpy as np
    >>> import pytensor
    >>> import pytensor.tensor as pt
    >>> import dagad
    >>> from dagad.interop.pytensor import as_pytensor
    >>> def squares(rows, centre):
    ...     return np.sum((rows - centre) ** 2)
    >>> loss = as_pytensor(lambda centre: dagad.reduce_sum(squares, np.arange(4.0), centre, grainsize=2))
    >>> centre = pt.scalar("centre", dtype="float64")
    >>> both = pytensor.function([centre], [loss(centre), pytensor.grad(loss(centre), centre)], mode="FAST_COMPILE")
    >>> [float(number) for number in both(1.0)]
    [6.0, -4.0]
    """
    check_function(fun, "interop.pytensor.as_pytensor")
    known = fun if isinstance(fun, Hashable) else functools.partial(fun)  # PyTensor asks for a hash

    @public
    @functools.wraps(fun, updated=())
    def variable_of(*args: Any) -> Any:
        leaves, treedef = pytree.flatten(args)
        return _Value(_Held(Objective(known, treedef)))(*(_variable(leaf, fun) for leaf in leaves))

    return variable_of


def _variable(leaf: Leaf, fun: Function) -> Any:
    try:
        variable = pt.as_tensor_variable(leaf)
        what = f"a variable of dtype {variable.dtype}"
    except (TypeError, ValueError, NotImplementedError):
        variable, what = None, described(leaf)
    if variable is None or variable.type.numpy_dtype.kind not in "fiub":
        raise NotDifferentiableError(
            f"`{name_of(fun)}` is called by PyTensor with {what}, which is no real number. Give it variables that are, "
            "and let the function find everything else in its closure."
        )
    return variable


@dataclasses.dataclass(frozen=True)
class _Held:
    """An objective, and the process in which it may be called."""

    objective: Objective
    process: int = dataclasses.field(default_factory=os.getpid, compare=False)

    @property
    def name(self) -> str:
        return name_of(self.objective)

    @property
    def here(self) -> Objective:
        if os.getpid() != self.process:
            raise PortabilityError(
                f"`{self.name}` was called in a fork of the process in which it was made: the threads and connections "
                "by which it reaches its workers are not there. With PyMC, write `pm.sample(cores=1)`: chains come one "
                'after the other, each evaluation in parallel. `mp_ctx="spawn"` starts processes afresh; it is for '
                "functions that hold neither a Client nor Shards."
            )
        return self.objective

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            return _held, (cloudpickle.dumps(self.objective),)
        except DagadError as error:
            raise PortabilityError(
                f"`{self.name}` can't go to another process. With PyMC, write `pm.sample(cores=1)`: chains come one "
                f"after the other, each evaluation in parallel. {error}"
            ) from error


def _held(objective: bytes) -> _Held:
    return _Held(cloudpickle.loads(objective))


class _OfObjective(Op):  # type: ignore[misc]  # PyTensor's types are not followed
    """What the three operations have in common."""

    __props__ = ("held",)

    def __init__(self, held: _Held) -> None:
        self.held = held

    def __str__(self) -> str:
        return f"{type(self).__name__[1:]}{{{self.held.name}}}"

    def pullback(self, inputs: Variables, outputs: Variables, cotangents: Variables) -> Any:
        return self.L_op(inputs, outputs, cotangents)  # as PyTensor 3 asks

    def do_constant_folding(self, fgraph: object, node: Apply) -> bool:
        return False  # to compile a graph is no reason to go through the data


class _Value(_OfObjective):
    """From the leaves of the arguments to the value."""

    def make_node(self, *inputs: Any) -> Any:
        return Apply(self, list(inputs), [pt.scalar(dtype="float64")])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: list[list[Any]]) -> None:
        output_storage[0][0] = np.asarray(self.held.here.value(inputs))

    def infer_shape(self, fgraph: object, node: Apply, input_shapes: Sequence[Any]) -> list[Any]:
        return [()]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[index in _floats(node.inputs)] for index in range(len(node.inputs))]

    def L_op(self, inputs: Variables, outputs: Variables, output_grads: Variables) -> list[Any]:
        both: Any = _ValueAndGradient(self.held)(*inputs)
        return _cotangents(inputs, [output_grads[0] * part for part in both[1:]])


class _ValueAndGradient(_OfObjective):
    """From the leaves of the arguments to the value, and the gradient in those that are floating point."""

    def make_node(self, *inputs: Any) -> Any:
        gradient = [inputs[index].type() for index in _floats(inputs)]
        return Apply(self, list(inputs), [pt.scalar(dtype="float64"), *gradient])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: list[list[Any]]) -> None:
        value, gradient = self.held.here.value_and_gradient(inputs, _floats(node.inputs))
        _store([value, *gradient], node.outputs, output_storage)

    def infer_shape(self, fgraph: object, node: Apply, input_shapes: Sequence[Any]) -> list[Any]:
        return [(), *(input_shapes[index] for index in _floats(node.inputs))]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        return [[index in _floats(node.inputs)] * len(node.outputs) for index in range(len(node.inputs))]

    def L_op(self, inputs: Variables, outputs: Variables, output_grads: Variables) -> list[Any]:
        of_value, *along = output_grads
        tangents = [
            inputs[index].zeros_like() if _is_disconnected(tangent) else tangent.astype(inputs[index].dtype)
            for index, tangent in zip(_floats(inputs), along, strict=True)
        ]
        parts: Any = _HessianProduct(self.held)(*inputs, *tangents, return_list=True)
        if not _is_disconnected(of_value):
            parts = [part + of_value * slope for part, slope in zip(parts, outputs[1:], strict=True)]
        return _cotangents(inputs, parts)


class _HessianProduct(_OfObjective):
    """From the leaves of the arguments, and a tangent for each that is floating point, to the Hessian's product."""

    def make_node(self, *inputs: Any) -> Any:
        return Apply(self, list(inputs), [inputs[index].type() for index in self._wanted(inputs)])

    def _wanted(self, inputs: Variables) -> tuple[int, ...]:
        return _floats(inputs[: self.held.objective.treedef.num_leaves])

    def perform(self, node: Apply, inputs: Sequence[Any], output_storage: list[list[Any]]) -> None:
        wanted, objective = self._wanted(node.inputs), self.held.here
        tangents = inputs[objective.treedef.num_leaves :]
        product = objective.hessian_product(inputs[: len(inputs) - len(tangents)], wanted, tangents)
        _store(product, node.outputs, output_storage)

    def infer_shape(self, fgraph: object, node: Apply, input_shapes: Sequence[Any]) -> list[Any]:
        return [input_shapes[index] for index in self._wanted(node.inputs)]

    def L_op(self, inputs: Variables, outputs: Variables, output_grads: Variables) -> list[Any]:
        raise NotDifferentiableError(
            f"PyTensor asked for the third derivative of `{self.held.name}`. `as_pytensor` has the first and the "
            "second; differentiate the function itself with dagad for more."
        )


@register_canonicalize("dagad_value_with_gradient")  # type: ignore[untyped-decorator]  # PyTensor's types are partial
@node_rewriter([_Value])  # type: ignore[untyped-decorator]  # likewise
def _value_with_gradient(fgraph: Any, node: Apply) -> Any:
    """Take a value from the evaluation that gives the gradient at the same point, where the graph has one."""
    both = _ValueAndGradient(node.op.held)
    clients = (client for client, _ in (fgraph.clients[node.inputs[0]] if node.inputs else ()))
    return next((client.outputs[:1] for client in clients if client.op == both and client.inputs == node.inputs), False)


def _floats(variables: Variables) -> tuple[int, ...]:
    """Return the indices of those that have derivatives."""
    return tuple(index for index, variable in enumerate(variables) if variable.dtype.startswith("float"))


def _is_disconnected(variable: Variable) -> bool:
    return isinstance(variable.type, DisconnectedType)


def _store(parts: Sequence[Any], outputs: Variables, storage: list[list[Any]]) -> None:
    for part, output, cell in zip(parts, outputs, storage, strict=True):
        cell[0] = np.asarray(part, output.dtype)


def _cotangents(inputs: Variables, parts: Variables) -> list[Any]:
    """Return a cotangent for each input; `parts` are those of the ones that are floating point."""
    found = [DisconnectedType()() for _ in inputs]
    for index, part in zip(_floats(inputs), parts, strict=True):
        found[index] = part.astype(inputs[index].dtype)
    return found
