"""`as_torch` as torch's users go about: torch.func, checkpoints, compilers, names of tensors, orders of derivatives."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import functional
from torch.utils.checkpoint import checkpoint

import dagad
from dagad.interop.torch import as_torch

ROWS = np.random.default_rng(0).normal(size=(5, 2))
T = torch.from_numpy(ROWS)
func: Any = torch.func  # partly typed
hessian: Any = functional.hessian
MANY = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)


def wave(rows: Any, p: Any) -> Any:
    return np.sum(np.sin(np.dot(rows, p[0])) * np.exp(0.5 * p[1]))


our_two = as_torch(lambda a, b: dagad.reduce_sum(wave, ROWS, (a, b), grainsize=2, scheduler="sync"))
ours = as_torch(lambda t: dagad.reduce_sum(lambda r, t: np.sum(np.tanh(r * t)), ROWS, t, grainsize=2, scheduler="sync"))


def their_two(a: Any, b: Any) -> Any:
    return torch.sum(torch.sin(T @ a) * torch.exp(b * 0.5))


def theirs(t: Any) -> Any:
    return torch.sum(torch.tanh(T * t))


def parts_of(tree: Any) -> list[Any]:
    return [tree] if isinstance(tree, torch.Tensor) else [part for each in tree for part in parts_of(each)]


def total(tree: Any) -> Any:
    return sum(torch.sum(torch.sin(part) * part) for part in parts_of(tree))


def at() -> tuple[Any, Any]:
    slopes = torch.tensor([0.3, 0.7], dtype=torch.float64, requires_grad=True)
    return slopes, torch.tensor(0.4, dtype=torch.float64, requires_grad=True)


DIRECTION = torch.tensor([0.5, -1.0], dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)


def of_sum(fun: Any) -> Any:
    return lambda a, b: total(fun(a, b))


NESTED: dict[str, Any] = {
    "grad": lambda fun: lambda a, b: torch.autograd.grad(total(fun(a, b)), (a, b), create_graph=True),
    "func.grad": lambda fun: torch.func.grad(of_sum(fun), argnums=(0, 1)),
    "func.jacrev": lambda fun: torch.func.jacrev(fun, argnums=(0, 1)),
    "jvp": lambda fun: lambda a, b: functional.jvp(of_sum(fun), (a, b), DIRECTION, create_graph=True)[1],
    "hessian": lambda fun: lambda a, b: functional.hessian(of_sum(fun), (a, b), create_graph=True),
    "hvp": lambda fun: lambda a, b: functional.hvp(of_sum(fun), (a, b), DIRECTION, create_graph=True)[1],
}
ORDERS = {name: 2 if name in ("hessian", "hvp") else 1 for name in NESTED}
# torch itself goes through no graph of its own from inside of its transforms.
WAYS = [
    way
    for n in (1, 2, 3)
    for way in product(NESTED, repeat=n)
    if sum(map(ORDERS.__getitem__, way)) <= 3
    and not any(inner not in ("func.grad", "func.jacrev") and "func" in outer for inner, outer in pairwise(way))
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_every_nesting_of_derivatives_to_third_order_is_torchs_own(way: tuple[str, ...]) -> None:
    ours_of, theirs_of = our_two, their_two
    for name in way:
        ours_of, theirs_of = NESTED[name](ours_of), NESTED[name](theirs_of)
    for found, right in zip(parts_of(ours_of(*at())), parts_of(theirs_of(*at())), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)


FUNC: dict[str, Any] = {
    "vmap": lambda fun: torch.func.vmap(fun)(MANY),
    "vmap of grad": lambda fun: torch.func.vmap(torch.func.grad(fun))(MANY),
    "grad of vmap": lambda fun: torch.func.grad(lambda t: total(torch.func.vmap(fun)(t)))(MANY),
    "vmap of second": lambda fun: torch.func.vmap(torch.func.grad(torch.func.grad(fun)))(MANY),
    "Hessian": lambda fun: torch.func.jacrev(torch.func.jacrev(lambda t: fun(t[0]) * fun(t[1] * t[2])))(MANY),
    "another axis": lambda fun: torch.func.vmap(lambda a, b: fun(a.sum() * b), (1, None))(T, MANY[0]),
    "many cotangents": lambda fun: functional.jacobian(lambda t: fun(t[0]) * t, MANY, vectorize=True),
}


@pytest.mark.parametrize("name", FUNC)
def test_a_function_of_as_torch_goes_through_torchs_vmap_one_by_one(name: str) -> None:
    torch.testing.assert_close(FUNC[name](ours), FUNC[name](theirs), rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # by torch's forward mode
def test_forward_mode_and_legacy_vectorizing_are_refused_with_the_remedy() -> None:
    one = torch.tensor(0.3, dtype=torch.float64)
    for mode in (func.hessian, func.jacfwd):
        with pytest.raises(dagad.NotDifferentiableError, match=r"forward mode.*torch.func.jacrev.torch.func.jacrev"):
            mode(ours)(one)
    with pytest.raises(dagad.NotDifferentiableError, match=r"vectorize=True.*Leave that out"):
        hessian(ours, one, vectorize=True)


def test_a_function_of_as_torch_goes_into_torchs_checkpoint() -> None:
    def found(fun: Any) -> Any:
        t = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(checkpoint(fun, t, use_reentrant=False), t)[0]

    torch.testing.assert_close(found(ours), found(theirs), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # which torch's compiler looks at
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # and calls
@pytest.mark.whole("torch's compiler takes seconds to start")
def test_a_function_of_as_torch_is_left_alone_by_torchs_compiler() -> None:
    of_tree = as_torch(lambda p: dagad.reduce_sum(misfit, ROWS, p, grainsize=2, scheduler="sync"))

    def twice(t: Any) -> Any:
        return of_tree({"weight": t * MANY[:2], "bias": t}) * 2

    t = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    found, right = torch.compile(twice, backend="eager")(t), twice(t)
    torch.testing.assert_close(found, right, rtol=0, atol=0)
    torch.testing.assert_close(torch.autograd.grad(found, t), torch.autograd.grad(right, t), rtol=0, atol=0)


def test_a_function_written_with_torch_says_what_to_write() -> None:
    with pytest.raises(TypeError) as caught:
        as_torch(lambda x: torch.sum(torch.tensor(x) ** 2))(torch.ones(2, requires_grad=True))
    assert 'goes into chunks, with `engine="torch"`' in "".join(caught.value.__notes__)


def misfit(rows: Any, p: Any) -> Any:
    return np.sum((rows * p["weight"] - p["bias"]) ** 2)


def by_word(p: Any) -> Any:
    return p["weight"] * globals()["bias"].item()


weight = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
bias = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)


def test_a_tensor_whose_name_is_a_key_of_the_arguments_is_not_held() -> None:
    """So are the parameters of a script called."""
    loss = as_torch(lambda p: dagad.reduce_sum(misfit, ROWS, p, grainsize=2, scheduler="sync"))
    found = loss({"weight": weight, "bias": bias})
    torch.testing.assert_close(found, torch.sum((T * weight - bias) ** 2), rtol=1e-12, atol=1e-12)


def test_a_tensor_that_is_looked_up_by_its_name_is_held() -> None:
    for held in (by_word, lambda p: p["weight"] * bias):
        with pytest.raises(dagad.ClosureError, match="the global `bias`"):
            as_torch(held)({"weight": weight})
