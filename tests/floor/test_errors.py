"""Errors: does each say what to do instead, and does the next call work?"""

from __future__ import annotations

import builtins
import concurrent.futures
import pickle
import threading
from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from autograd.extend import primitive
from dask.delayed import delayed

import dagad
from dagad import _errors, map_sum, reduce_sum
from dagad._values.shipping import pack
from dagad.extend import Keep, explicit
from support.small_sums import X, grad, squares, total


@primitive  # type: ignore[untyped-decorator]  # autograd has no types
def ruleless(x: Any) -> Any:
    return np.sum(x)


class Holder:
    """Holds what it is given where dagad does not look."""

    held: Any = None

    def __init__(self, value: Any = None) -> None:
        self.value = value


def by_global(theta: Any) -> Any:
    globals()["HELD"] = theta
    try:
        return reduce_sum(lambda rows: anp.sum(rows * HELD), X, grainsize=2)  # type: ignore[name-defined]  # noqa: F821
    finally:
        del globals()["HELD"]


def by_class(theta: Any) -> Any:
    Holder.held = theta
    try:
        return reduce_sum(lambda rows: anp.sum(rows * Holder.held), X, grainsize=2)
    finally:
        Holder.held = None


def by_iterator(theta: Any) -> Any:
    values = iter([theta])
    return reduce_sum(lambda rows: anp.sum(rows * next(values)), X, grainsize=6)


def by_pair(first: Any, second: Any) -> Callable[[Any, Any], Any]:
    return lambda rows, theta: first if rows[0] == 0 else second


def explicitly(pullback: Any) -> Any:
    return explicit(lambda rows, theta: (0.0, pullback))


DELAYED = delayed(2.0)
NO_INT: Any = "theta"
NO_DELAYED: Any = 2.0
NOT = dagad.NotDifferentiableError
CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    # how the rows are cut
    "grainsize 0": (lambda: total(squares, grainsize=0), dagad.PlanError, 'Give a positive int or `"auto"`'),
    "no such engine": (
        lambda: total(squares, engine="jacks"),
        dagad.PlanError,
        r"Choose one of \['autograd', 'explicit', 'jax', 'torch'",
    ),
    "not an engine": (
        lambda: total(squares, engine=3),
        dagad.PlanError,
        r"it has no method `takes`. Give a name.*`dagad\.extend",
    ),
    "not a policy": (
        lambda: total(squares, policy=3),
        dagad.PlanError,
        r"`dagad\.extend\.Keep\(\)`.*or None for what fits",
    ),
    "a policy's class": (lambda: total(squares, policy=Keep), dagad.PlanError, "is not a policy. Give an object"),
    # the sliced argument
    "lengths": (
        lambda: total(squares, 1.0, {"x": X, "y": [X[:4], X]}),
        dagad.StructureError,
        r"\['x'\] has 6, \['y'\] has 2. Each chunk gets the same rows",
    ),
    "nothing sliced": (lambda: total(squares, 1.0, ()), dagad.StructureError, "nothing to cut. Give the data"),
    "sliced number": (
        lambda: total(squares, 1.0, 3.0),
        dagad.StructureError,
        "The sliced argument is a float, which has no rows",
    ),
    "sliced 0-d array": (lambda: total(squares, 1.0, np.array(3.0)), dagad.StructureError, "at least one dimension"),
    "sliced leaf": (
        lambda: total(squares, 1.0, (X, 3.0)),
        dagad.StructureError,
        r"Leaf \[1\] of the sliced argument is a float.* as a shared argument",
    ),
    "sliced text": (
        lambda: total(squares, 1.0, (X, "six")),
        dagad.StructureError,
        "is a str, which has no.*Read the",
    ),
    # what a chunk returns
    "None": (
        lambda: total(lambda rows, theta: None),
        dagad.StructureError,
        "nothing to sum.*Return a number, an array",
    ),
    "empty tuple": (lambda: total(lambda rows, theta: ()), dagad.StructureError, "nothing to sum"),
    "text": (
        lambda: total(lambda rows, theta: "six"),
        dagad.StructureError,
        "returned a str, which can't be summed. Return",
    ),
    "object": (lambda: total(lambda rows, theta: Holder()), dagad.StructureError, "returned a Holder, which can't be"),
    "array of text": (
        lambda: total(lambda rows, theta: np.array(["a"])),
        dagad.StructureError,
        "can't be summed. Return a",
    ),
    "shapes": (
        lambda: total(lambda rows, theta: rows, 1.0, np.arange(5.0)),
        dagad.StructureError,
        r"differ in shape: \(2,\) and \(1,\). Each chunk has to return the same shape.* sum over the rows",
    ),
    "shapes that broadcast": (lambda: total(by_pair(np.ones(3), 1.0)), dagad.StructureError, r"\(3,\) and \(\)"),
    "structures": (
        lambda: total(by_pair({"a": 1.0}, {"b": 1.0})),
        dagad.StructureError,
        r"two chunks differ in structure: expected the structure \{'a': \*\}, got \{'b': \*\}",
    ),
    "number and tuple": (lambda: total(by_pair(1.0, (1.0,))), dagad.StructureError, "two chunks differ in"),
    "array and tuple": (lambda: total(by_pair(np.ones(1), (1.0,))), dagad.StructureError, "two chunks differ in"),
    "array and list": (lambda: total(by_pair(np.ones(2), [1.0, 2.0])), dagad.StructureError, "two chunks differ in"),
    "list and array": (lambda: total(by_pair([1.0, 2.0], np.ones(2))), dagad.StructureError, "two chunks differ in"),
    "number and array": (lambda: total(by_pair(1.0, np.ones(2))), dagad.StructureError, r"\(\) and \(2,\)"),
    "lists of other lengths": (lambda: total(by_pair([1.0], [1.0, 2.0])), dagad.StructureError, "two chunks differ in"),
    "shapes of items": (
        lambda: map_sum(lambda item: np.ones(int(item)), [1.0, 2.0]),
        dagad.StructureError,
        r"two items differ in shape: \(1,\) and \(2,\).*Return the same shape for every item",
    ),
    "structures of items": (
        lambda: map_sum(lambda item: (item,) if item == 1.0 else item, [1.0, 2.0]),
        dagad.StructureError,
        "two items differ in structure",
    ),
    # what is asked for
    "argnums": (
        lambda: dagad.grad(squares, argnums=NO_INT)(X, 1.0),
        dagad.StructureError,
        "by an int or a tuple of ints.*returns a function",
    ),
    "argnums ()": (lambda: dagad.grad(squares, argnums=())(X, 1.0), dagad.StructureError, "neither an int nor a tuple"),
    "argnums 2": (
        lambda: dagad.grad(squares, argnums=2)(X, 1.0),
        dagad.StructureError,
        "called with 2 positional arguments. Pass by position",
    ),
    "aux": (
        lambda: dagad.grad(squares, has_aux=True)(X, 1.0),
        dagad.StructureError,
        r"`\(value, aux\)`, or leave",
    ),
    "cotangent's structure": (
        lambda: dagad.vjp(lambda x: (x, x), 1.0)[1](1.0),
        dagad.StructureError,
        r"expected the structure \(\*, \*\), got \*",
    ),
    "cotangent's shape": (
        lambda: dagad.vjp(lambda x: x, X)[1](np.ones(2)),
        dagad.StructureError,
        r"the shape \(2,\), where \(6,\) is needed",
    ),
    "an int": (
        lambda: dagad.grad(squares, 1)(X, 1),
        NOT,
        r"Argument 1 \(`theta`\) holds no floating-point.* only int. .*`float\(...\)`",
    ),
    "integers": (
        lambda: dagad.grad(squares)(np.arange(6), 1.0),
        NOT,
        r"only int64. Convert integers with.*`.astype\(float\)`",
    ),
    "no leaves": (lambda: dagad.grad(lambda x: 1.0)({}), NOT, "holds no numbers.*Give numbers, arrays"),
    "an own class": (
        lambda: dagad.grad(lambda x: 1.0)(Holder(1.0)),
        NOT,
        "only Holder.*register the class with optree",
    ),
    "integers in autograd": (
        lambda: autograd.grad(lambda theta: total(squares, theta))(np.arange(2)),
        NOT,
        r"is an array of shape \(2,\) and dtype int64.*Convert it with `\.astype\(float\)`",
    ),
    "gradient of an array": (
        lambda: dagad.grad(lambda x: 2 * x)(X),
        NOT,
        r"`<lambda>` returned an array of shape \(6,\) and dtype float64.*Return its sum",
    ),
    "gradient of None": (lambda: dagad.grad(lambda x: None)(1.0), NOT, "returned None.*is a `return` missing"),
    "gradient of a tuple": (lambda: dagad.grad(lambda x: (x, x))(1.0), NOT, "returned a tuple.*`has_aux=True`"),
    "gradient of an int": (
        lambda: dagad.grad(lambda x: 1)(1.0),
        NOT,
        "returned an int.*one real.*`float",
    ),
    "gradient of a complex": (
        lambda: dagad.grad(lambda x: x * 1j)(1.0),
        NOT,
        "one real.*real part",
    ),
    # engines
    "no rule": (
        lambda: grad(lambda rows, theta: ruleless(rows * theta)),
        NOT,
        "no derivative of `ruleless`.*give it a derivative with `autograd.extend.defvjp`",
    ),
    "array of objects": (
        lambda: grad(lambda rows, theta: np.array([theta, theta])),
        NOT,
        r"can't be put into an ordinary array.*Make one array of several by `np\.stack\(\[a, b\]\)`",
    ),
    "traced inside an object": (
        lambda: grad(lambda rows, theta: Holder(theta)),
        NOT,
        "returned a `Holder` with traced values inside.*register the class with optree",
    ),
    "explicit of a number": (lambda: explicit(3), dagad.ArgumentsError, "marks a function, and was given an int"),  # type: ignore[arg-type]  # so it is
    "explicit without a pair": (
        lambda: total(explicit(squares)),
        dagad.StructureError,
        r"`squares` is marked explicit, so it has to return `\(value, pullback\)`; it returned a float64",
    ),
    "explicit, no cotangent": (
        lambda: grad(explicitly(lambda s: (None, None))),
        NOT,
        "returned None for an argument.*Return",
    ),
    "explicit, too few": (
        lambda: grad(explicitly(lambda s: (None,))),
        dagad.StructureError,
        "one cotangent for each of 2 arguments, None for a constant one; it returned 1",
    ),
    "explicit, no tuple": (
        lambda: grad(explicitly(lambda s: s)),
        dagad.StructureError,
        "each of 2 arguments.*returned a float",
    ),
    "explicit, wrong shape": (
        lambda: grad(explicitly(lambda s: (None, np.ones(3)))),
        dagad.StructureError,
        r"cotangent that an explicit pullback returned has the shape \(3,\), where \(\) is needed",
    ),
    "explicit, wrong structure": (
        lambda: grad(explicitly(lambda s: (None, {"b": 1.0})), {"a": 1.0}),
        dagad.StructureError,
        "A cotangent has another structure than the value",
    ),
    "explicit, twice": (
        lambda: dagad.grad(lambda t: grad(explicit(lambda rows, t: (t**2, lambda s: (None, 2 * s * t))), t))(1.0),
        NOT,
        "derivative of a derivative.*Write it with numpy, without `explicit`",
    ),
    # closures
    "a global": (
        lambda: dagad.grad(by_global)(1.0),
        dagad.ClosureError,
        "through the global `HELD`.*as a shared argument",
    ),
    "a class": (lambda: dagad.grad(by_class)(1.0), dagad.ClosureError, r"through `Holder\.held`.*as a shared argument"),
    "an iterator": (lambda: dagad.grad(by_iterator)(1.0), dagad.ClosureError, "as a shared argument"),
    "explicit with a closure": (
        lambda: dagad.grad(lambda t: reduce_sum(explicit(lambda rows: (t, lambda s: (None,))), X, grainsize=2))(1.0),
        dagad.ClosureError,
        "explicit function has a value being differentiated in its closure.*as a shared argument",
    ),
    # graphs
    "gradient of no Delayed": (
        lambda: dagad.gradient(NO_DELAYED, DELAYED),
        NOT,
        "`y` holds a float. Wrap it with `dask.delayed`",
    ),
    "in no Delayed": (lambda: dagad.gradient(DELAYED, [2.0]), NOT, "`wrt` holds a float.*or use `dagad.grad`"),
    "in nothing": (
        lambda: dagad.gradient(DELAYED, []),
        NOT,
        "nothing to differentiate with respect to.*no",
    ),
    "Delayed array": (
        lambda: dagad.gradient(delayed(anp.multiply)(DELAYED, X), DELAYED).compute(scheduler="sync"),
        NOT,
        r"this one is an array of shape \(6,\) and dtype float64. Reduce it to one, by a sum for instance",
    ),
    "Delayed int": (
        lambda: (lambda i: dagad.gradient(DELAYED * i, i).compute(scheduler="sync"))(delayed(3)),
        NOT,
        r"with respect to an int was asked for.*Make it floating point, with `float\(...\)`",
    ),
    # journeys
    "unpicklable": (lambda: pack(threading.Lock()), dagad.PortabilityError, 'use `scheduler="threads"`'),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_an_error_says_what_to_do_and_the_next_call_works(case: str) -> None:
    act, kind, remedy = CASES[case]
    with pytest.raises(kind, match=f"(?s){remedy}") as caught:
        act()
    assert type(caught.value) is kind
    assert grad(squares) == -18.0
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is kind
    assert (str(copy), getattr(copy, "__notes__", [])) == (str(caught.value), getattr(caught.value, "__notes__", []))


DELIBERATE = [
    found
    for found in vars(_errors).values()
    if isinstance(found, type) and issubclass(found, dagad.DagadError) and found is not dagad.DagadError
]


@pytest.mark.parametrize("kind", DELIBERATE)
def test_a_deliberate_error_is_ours_and_a_builtin(kind: type[Exception]) -> None:
    assert getattr(dagad, kind.__name__) is kind
    standard = {*filter(callable, vars(builtins).values()), concurrent.futures.CancelledError}
    assert set(kind.__mro__) & standard - {Exception, BaseException, object}
    assert kind.__doc__
