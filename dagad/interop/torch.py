"""For torch: an objective of dagad's as a function of tensors, differentiable again."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dagad._api.program import check_function
from dagad._api.transforms import check_number, vjp
from dagad._errors import ClosureError, NotDifferentiableError
from dagad._tracebacks import public
from dagad._types import Array, Function, Tree, Value
from dagad._values import pytree
from dagad._values.walk import Walk
from dagad._words import name_of
from dagad.interop._objective import Directional, Indices, Objective, Restricted, widened

try:
    import torch
    from torch.autograd.forward_ad import unpack_dual
    from torch.autograd.function import FunctionCtx
except ModuleNotFoundError as error:
    error.add_note('dagad: `dagad.interop.torch` needs torch: `pip install "dagad[torch]"`.')
    raise


_functorch: Any = torch._C._functorch  # where torch tells what tensors of `torch.func` stand for


@public
def as_torch(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return an objective as a function of torch's tensors, for its optimizers and inside of its models.

    Parameters
    ----------
    fun
        A function that returns one real number, written for `dagad.value_and_grad`: it gets numpy's arrays, and its
        chunks may have any engine.

    Returns
    -------
    Callable
        The same function, of tensors in any pytree; it returns a tensor without axes. ``backward``,
        ``torch.autograd`` and ``torch.func`` find its derivatives, of any order, and ``torch.func.vmap`` runs it one by
        one; there is no forward mode. No pullback runs until somebody goes backward, and under ``torch.no_grad()``
        nothing is kept for one. ``torch.compile`` leaves it as it is.

    Raises
    ------
    NotDifferentiableError
        If `fun` does not return one real number, or is called with complex tensors.
    ClosureError
        If `fun` holds a tensor that requires a gradient.

    Notes
    -----
    It is computed in float64, and rounded to the dtype of the tensors; value and gradients are on their devices.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> import dagad
    >>> from dagad.interop.torch import as_torch
    >>> def loss(theta):
    ...     return dagad.reduce_sum(lambda rows, t: np.sum((rows - t) ** 2), np.arange(4.0), theta, grainsize=2)
    >>> theta = torch.tensor(1.0, requires_grad=True)
    >>> value = as_torch(loss)(theta)
    >>> value.backward()
    >>> value.item(), theta.grad.item()
    (6.0, -4.0)
    """
    check_function(fun, "interop.torch.as_torch")

    def called(*args: Any) -> Any:
        leaves, treedef = pytree.flatten(args)
        indices = tuple(index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        tensors = [leaves[index] for index in indices]
        _check(fun, tensors)
        objective = Objective(fun, _Around(treedef, leaves, indices))
        is_inside = any(map(_functorch.is_functorch_wrapped_tensor, tensors))  # `torch.func` has no `requires_grad`
        wanted = tuple(
            index for index, one in enumerate(tensors) if one.requires_grad or (is_inside and one.is_floating_point())
        )
        if is_inside or (wanted and torch.is_grad_enabled()):
            return _Value.apply(objective, wanted, {}, *tensors)  # type: ignore[no-untyped-call]  # torch's
        return _as_tensor(objective.value(_numbers(tensors)), _like_value(tensors))

    @public
    @functools.wraps(fun, updated=())
    def function(*args: Any) -> Any:
        if torch.compiler.is_compiling():  # it would follow what is in here, down to numpy
            return torch.compiler.disable(called)(*args)
        return called(*args)

    return function


@dataclasses.dataclass(frozen=True, eq=False)
class _Around:
    """The arguments around the tensors."""

    treedef: Any
    leaves: list[Any]
    indices: Indices

    def unflatten(self, tensors: Sequence[Any]) -> Any:
        leaves = list(self.leaves)
        for index, tensor in zip(self.indices, tensors, strict=True):
            leaves[index] = tensor
        return pytree.unflatten(self.treedef, leaves)


def _no_forward_mode(fun: Function) -> NotDifferentiableError:
    return NotDifferentiableError(
        f"`{name_of(fun)}` is called by torch in forward mode, which `as_torch` has not. Write "
        "`torch.autograd.functional.jvp` and `torch.func.jacrev(torch.func.jacrev(f))`, which go backward twice, or "
        "`dagad.jvp` and `dagad.hessian` of the function itself."
    )


def _refuse_forward_mode(ctx: Any, *tangents: Any) -> Any:
    del tangents
    raise _no_forward_mode(ctx.objective)


class _Value(torch.autograd.Function):
    """The value; its backward pass multiplies the gradient by what arrives."""

    @staticmethod
    def forward(objective: Objective, wanted: Indices, kept: dict[str, Any], *tensors: Any) -> Any:
        leaves = widened(_numbers(tensors))
        if not wanted:
            return _as_tensor(objective.value(leaves), _like_value(tensors))
        some = Restricted(objective, tuple(leaves), wanted)
        value, kept["pullback"] = vjp(some, *(leaves[index] for index in wanted))
        check_number(value, name_of(objective))
        kept["one"] = np.ones_like(value)
        return _as_tensor(value, _like_value(tensors))

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Tree, output: Value) -> None:
        _keep(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        tensors = ctx.saved_tensors  # once: of what `torch.utils.checkpoint` makes anew there is one
        gradient = _Gradient.apply(ctx.objective, ctx.wanted, ctx.kept, *tensors)  # type: ignore[no-untyped-call]  # torch's
        return _to_inputs(ctx, [cotangents[0].to(part.device, part.dtype) * part for part in gradient])

    jvp = staticmethod(_refuse_forward_mode)

    @staticmethod
    def vmap(
        info: object, in_dims: Tree, objective: Objective, wanted: Indices, _: object, *tensors: Any
    ) -> tuple[Any, int]:
        members = _members(info, in_dims, tensors)
        return torch.stack([_Value.apply(objective, wanted, {}, *each) for each in members]), 0  # type: ignore[no-untyped-call]  # torch's


class _Gradient(torch.autograd.Function):
    """The gradient; its backward pass is the gradient of the derivative in the direction that arrives."""

    @staticmethod
    def forward(objective: Objective, wanted: Indices, kept: dict[str, Any], *tensors: Any) -> Any:
        if "pullback" in kept:
            gradient = kept["pullback"](kept["one"])
        else:
            gradient = objective.value_and_gradient(_numbers(tensors), wanted)[1]
        return tuple(_as_tensor(part, tensors[index]) for part, index in zip(gradient, wanted, strict=True))

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Tree, output: Value) -> None:
        _keep(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        tensors = ctx.saved_tensors
        direction = [
            torch.zeros_like(tensors[index]) if part is None else part
            for part, index in zip(cotangents, ctx.wanted, strict=True)
        ]
        along = Objective(
            Directional(ctx.objective, ctx.wanted), pytree.flatten((0.0,) * (len(tensors) + len(direction)))[1]
        )
        needed = tuple(index for index, needs in enumerate(ctx.needs_input_grad[3:]) if needs)
        gradient = _Gradient.apply(along, needed, {}, *tensors, *direction)  # type: ignore[no-untyped-call]  # torch's
        return _to_inputs(ctx, gradient, needed)

    jvp = staticmethod(_refuse_forward_mode)

    @staticmethod
    def vmap(
        info: object, in_dims: Tree, objective: Objective, wanted: Indices, _: object, *tensors: Any
    ) -> tuple[Any, Any]:
        members = _members(info, in_dims, tensors)
        found = [_Gradient.apply(objective, wanted, {}, *each) for each in members]  # type: ignore[no-untyped-call]  # torch's
        return tuple(map(torch.stack, zip(*found, strict=True))), (0,) * len(wanted)


def _members(info: Any, in_dims: Tree, tensors: Sequence[Any]) -> list[list[Any]]:
    """Return the tensors of each member of a vmap."""
    pairs = list(zip(tensors, in_dims[3:], strict=True))
    return [
        [one if dim is None else one.select(dim, number) for one, dim in pairs] for number in range(info.batch_size)
    ]


def _keep(ctx: Any, inputs: Tree) -> None:
    ctx.objective, ctx.wanted, ctx.kept, *tensors = inputs
    ctx.n_tensors = len(tensors)
    ctx.save_for_backward(*tensors)


def _to_inputs(ctx: Any, gradient: Sequence[Any], indices: Indices | None = None) -> tuple[Any, ...]:
    """Return one cotangent for each input, None for what is none of the tensors wanted."""
    found: list[Any] = [None] * (3 + ctx.n_tensors)
    for index, part in zip(ctx.wanted if indices is None else indices, gradient, strict=True):
        found[3 + index] = part
    return tuple(found)


def _check(fun: Function, tensors: Sequence[Any]) -> None:
    if any(tensor.is_complex() for tensor in tensors):
        raise NotDifferentiableError(
            f"`{name_of(fun)}` is called with complex tensors. Give real and imaginary part as two arguments, and put "
            "them together in the function."
        )
    if any(unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise _no_forward_mode(fun)
    for tensor, way in Walk(fun, _Tensors(), read_only=True).ways():
        if tensor.requires_grad:
            raise ClosureError(
                f"`{name_of(fun)}` holds a tensor that requires a gradient, {way}. Its derivative would be lost: pass "
                "the tensor to the function as an argument, or `.detach()` it."
            )


class _Tensors:
    """The classes of tensors."""

    def __contains__(self, kind: object) -> bool:
        return isinstance(kind, type) and issubclass(kind, torch.Tensor)


def _numbers(tensors: Sequence[Any]) -> list[Any]:
    """Return tensors as numpy's arrays: those of floating-point numbers in float64, for numpy has not all dtypes."""
    if any(map(_functorch.is_legacy_batchedtensor, tensors)):
        raise NotDifferentiableError(
            "A function of `as_torch` is called with many tensors at once, as `torch.autograd.functional.hessian(..., "
            "vectorize=True)` and `is_grads_batched=True` of second derivatives do. Leave that out, or write "
            "`torch.func.vmap` and `torch.func.jacrev(torch.func.jacrev(f))`."
        )
    return [(one.double() if one.is_floating_point() else one).detach().cpu().numpy() for one in tensors]


def _as_tensor(number: Array, like: torch.Tensor) -> Any:
    return torch.tensor(np.asarray(number), dtype=like.dtype, device=like.device)


def _like_value(tensors: Sequence[Any]) -> Any:
    """Return a tensor of the dtype and on the device of the value."""
    floats = [one for one in tensors if one.is_floating_point()]
    dtype = (
        functools.reduce(torch.promote_types, [one.dtype for one in floats]) if floats else torch.get_default_dtype()
    )
    device = (floats or tensors or [torch.zeros(())])[0].device
    return torch.empty((), dtype=dtype, device=device)
