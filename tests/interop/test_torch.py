"""`as_torch`: derivatives of any order, torch's own checks and optimizer, and nothing that runs unasked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

import dagad
from dagad.interop.torch import as_torch

X = np.random.default_rng(0).standard_normal((24, 3))
Y = X @ np.array([1.0, -2.0, 0.5]) + 0.1 * np.random.default_rng(1).standard_normal(24)


def wave(rows: Any, p: Any) -> Any:
    return np.sum(np.sin(np.dot(rows, p["slopes"])) * np.exp(p["log scale"]))


def ours(scheduler: Any) -> Any:
    fun = as_torch(lambda p: dagad.reduce_sum(wave, X, p, grainsize=8, scheduler=scheduler))
    return lambda slopes, log_scale: fun({"slopes": slopes, "log scale": log_scale})


def theirs(slopes: Any, log_scale: Any) -> Any:
    return torch.sum(torch.sin(torch.from_numpy(X) @ slopes) * torch.exp(log_scale))


def parameters() -> tuple[Any, Any]:
    return (
        torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64, requires_grad=True),
        torch.tensor(0.5, dtype=torch.float64, requires_grad=True),
    )


def bits(parts: Any) -> list[bytes]:
    return [part.detach().numpy().tobytes() for part in parts]


def test_torch_checks_our_derivatives(scheduler: Any) -> None:
    assert torch.autograd.gradcheck(ours(scheduler), parameters())
    if scheduler == "sync":
        assert torch.autograd.gradgradcheck(ours(scheduler), parameters())


def test_a_function_of_as_torch_has_the_same_bits_on_every_scheduler(scheduler: Any) -> None:
    def found(where: Any) -> list[bytes]:
        p = parameters()
        value = ours(where)(*p)
        return bits((value, *torch.autograd.grad(value, p)))

    assert found(scheduler) == found("sync")


def test_derivatives_of_three_orders_are_what_torch_finds_of_its_own() -> None:
    def found(fun: Any) -> list[Any]:
        p = parameters()
        first = torch.autograd.grad(fun(*p), p, create_graph=True)
        second = torch.autograd.grad(torch.stack([torch.sum(part**2) for part in first]).sum(), p, create_graph=True)
        third = torch.autograd.grad(torch.stack([torch.sum(part**3) for part in second]).sum(), p)
        return [*first, *second, *third]

    for one, other in zip(found(ours("sync")), found(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    hessians = [torch.autograd.functional.hessian(fun, parameters()) for fun in (ours("sync"), theirs)]
    torch.testing.assert_close(*hessians, rtol=1e-12, atol=1e-12)
    slopes = [torch.func.grad(fun, argnums=(0, 1))(*parameters()) for fun in (ours("sync"), theirs)]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)


def test_mixed_derivatives_of_as_torch_are_right() -> None:
    for first, second in ((0, 1), (1, 0)):
        found = []
        for fun in (ours("sync"), theirs):
            p = parameters()
            (slope,) = torch.autograd.grad(fun(*p), p[first], create_graph=True)
            found.append(torch.autograd.grad(slope.sum(), p[second])[0])
        torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


class Counted:
    """A chunk function that brings its own derivative, and counts: values, and pullbacks."""

    def __init__(self) -> None:
        self.values = self.pullbacks = 0

    def __call__(self, rows: Any, t: Any) -> Any:
        self.values += 1

        def pullback(cotangent: Any) -> Any:
            self.pullbacks += 1
            return None, 2 * t * cotangent

        return np.sum(t**2), pullback


def test_a_value_by_as_torch_runs_no_pullback_until_backward() -> None:
    count = Counted()
    marked = dagad.extend.explicit(count)
    fun = as_torch(lambda t: dagad.reduce_sum(marked, np.ones(4), t, grainsize=1, scheduler="sync"))
    t = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert fun(t).item() == 12.0
    assert (count.values, count.pullbacks) == (4, 0)
    value = fun(t)
    assert value.item() == 12.0
    assert (count.values, count.pullbacks) == (8, 0)
    value.backward()
    assert (count.values, count.pullbacks) == (8, 4)
    assert t.grad is not None
    assert t.grad.tolist() == [8.0] * 3


def test_as_torch_keeps_dtypes_and_constants() -> None:
    def loss(t: Any, k: Any, other: Any, name: Any) -> Any:
        assert name == "a name"
        assert t.dtype == np.float64
        return dagad.reduce_sum(lambda rows, t: np.sum(rows * t**k), X, t, scheduler="sync") + float(other)

    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        t = torch.tensor(2.0, dtype=dtype, requires_grad=True)
        value = as_torch(loss)(t, torch.tensor(3), torch.ones((), dtype=dtype), "a name")
        value.backward()
        assert t.grad is not None
        assert value.dtype == t.grad.dtype == dtype
        torch.testing.assert_close(t.grad, torch.tensor(12 * X.sum(), dtype=dtype))


def test_float32_through_as_torch_is_only_rounded_at_the_end() -> None:
    big = np.full(100_000, 1.0 + 1e-7)
    fun = as_torch(lambda t: dagad.reduce_sum(lambda rows, t: np.sum(rows * t), big, t, scheduler="sync") - 1e5)
    assert fun(torch.tensor(1.0)).item() == pytest.approx(0.01, rel=1e-5)


def test_a_tensor_that_the_function_holds_is_refused_if_its_gradient_would_be_lost() -> None:
    held = torch.ones(3, dtype=torch.float64, requires_grad=True)

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(lambda rows, t: np.sum(rows * t * held.detach().numpy()), X, t, scheduler="sync")

    with pytest.raises(
        dagad.ClosureError, match=r"`loss` holds a tensor .*`held`.* as an argument, or `.detach\(\)` it"
    ):
        as_torch(loss)(torch.ones(()))
    held = held.detach()
    assert as_torch(loss)(torch.ones((), dtype=torch.float64)).item() == pytest.approx(X.sum())


def torch_free(t: Any) -> Any:
    return np.sum(t**2)


def in_forward_mode(fun: Any) -> Any:
    with forward_ad.dual_level():
        return fun(forward_ad.make_dual(torch.ones(2), torch.ones(2)))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own use of it
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: as_torch(lambda t: t)(torch.tensor(1j)), "complex tensors.*real and imaginary part"),
        (lambda: as_torch(lambda t: t)(torch.ones(2)), "Return its sum"),
        (lambda: as_torch(lambda t: t)(torch.ones(2, requires_grad=True)), "Return its sum"),
        (lambda: in_forward_mode(as_torch(torch_free)), "in forward mode.*`torch.autograd.functional.jvp`"),
        (lambda: torch.func.jacfwd(as_torch(torch_free))(torch.ones(2)), "in forward mode.*or `dagad.jvp`"),
        (lambda: as_torch(3), "takes a function, and was given an int"),  # type: ignore[arg-type]  # on purpose
    ],
)
def test_as_torch_refuses_arguments_modes_and_results_that_cannot_be_with_the_remedy(wrong: Any, said: str) -> None:
    with pytest.raises(dagad.DagadError, match=said):
        wrong()


def test_an_exception_of_a_chunk_comes_out_of_as_torch_as_it_is() -> None:
    def chunk(rows: Any, t: Any) -> Any:
        raise ZeroDivisionError("of the user's")

    with pytest.raises(ZeroDivisionError, match="of the user's"):
        as_torch(lambda t: dagad.reduce_sum(chunk, X, t, scheduler="sync"))(torch.ones((), requires_grad=True))


def test_lbfgs_finds_the_least_squares(scheduler: Any) -> None:
    shards = dagad.shard((X, Y), grainsize=8, scheduler=scheduler)

    def squares(rows: Any, t: Any) -> Any:
        x, y = rows
        return 0.5 * np.sum((y - np.dot(x, t)) ** 2)

    fun = as_torch(lambda t: dagad.reduce_sum(squares, shards, t))
    t = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([t], line_search_fn="strong_wolfe", tolerance_change=1e-12)

    def closure() -> Any:
        solver.zero_grad()
        value = fun(t)
        value.backward()
        return value

    solver.step(closure)
    np.testing.assert_allclose(t.detach().numpy(), np.linalg.lstsq(X, Y)[0], rtol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_tensors_of_a_gpu_get_their_gradients_there() -> None:
    slopes, log_scale = (part.detach().cuda().requires_grad_() for part in parameters())
    value = ours("sync")(slopes, log_scale)
    value.backward()
    assert value.device == slopes.grad.device == slopes.device
    here = parameters()
    torch.testing.assert_close(slopes.grad.cpu(), torch.autograd.grad(ours("sync")(*here), here)[0])
