"""The one node that an outer autograd program sees of a whole reduction: only values cross into chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autograd.extend import defvjp_argnums, primitive

from dagad import _tree
from dagad._chunked import Reduction
from dagad._engines.autograd import open_containers, traceable
from dagad._second_order import pulled_traced


def differentiable(reduction: Reduction, leaves: Sequence[Any]) -> Any:
    """Return the reduction's value as a function of the traced `leaves`."""
    outputs = open_containers(_reduction(reduction, *leaves))
    form = _form(reduction)
    return form.fill(iter(outputs if isinstance(outputs, tuple) else (outputs,)))


def _form(reduction: Reduction) -> _tree.Form:
    return _tree.Form.of(reduction.total, _tree.is_differentiable)


@primitive  # type: ignore[untyped-decorator]  # autograd has no types
def _reduction(reduction: Reduction, *leaves: Any) -> Any:
    """Return the floating-point leaves of the value: a single one bare, several as a tuple."""
    reduction.linearized([traceable(_tree.laid_out(leaf)) for leaf in leaves])
    outputs = _form(reduction).taken
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _pullback_of_reduction(argnums: Sequence[int], ans: Any, args: Sequence[Any], kwargs: Any) -> Callable[[Any], Any]:
    del ans, kwargs
    reduction, *leaves = args

    def pull(cotangent: Any) -> tuple[Any, ...]:
        """Return the cotangents of those leaves that this trace asks for."""
        opened = open_containers(cotangent)
        form = _form(reduction)
        seeds = form.cotangent(iter(opened if isinstance(opened, tuple | list) else (opened,)))
        # Traced from outside, so that a derivative of this derivative is wanted.
        if any(map(_tree.is_traced, (*leaves, *_tree.flatten(seeds)[0]))):
            cotangents = pulled_traced(reduction, leaves, seeds)
        else:
            cotangents = reduction.pulled([_tree.laid_out(leaf) for leaf in leaves], seeds)
        return tuple(cotangents[argnum - 1] for argnum in argnums)

    return pull


defvjp_argnums(_reduction, _pullback_of_reduction)
