"""What the torch engine can't differentiate: is nothing lost in silence, and is it said what to write?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import autograd.numpy as anp
import dask.array as da
import numpy as onp
import pytest
import torch
from dask.base import compute as dask_compute

import dagad
from support.every_mode import MODES, check, derivatives
from support.torch_functions import ROWS, Cubed, wave

compute: Any = dask_compute  # Dask has few types


def refused(fun: Callable[..., Any], *args: Any, rows: Any = ROWS, modes: str = "value grad jvp hvp") -> list[Any]:
    """Return the errors that a function leads to, in some modes."""

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(fun, rows, t, *args, grainsize=6, engine="torch", scheduler="sync")

    ways: dict[str, Callable[[], Any]] = {
        "value": lambda: loss(0.7),
        "grad": lambda: dagad.grad(loss)(0.7),
        "jvp": lambda: dagad.jvp(loss, (0.7,), (1.0,)),
        "hvp": lambda: dagad.hvp(loss, 0.7, 1.0),
    }
    errors = []
    for mode in modes.split():
        with pytest.raises((RuntimeError, dagad.DagadError)) as caught:
            ways[mode]()
        errors.append(caught.value)
    return errors


@pytest.mark.parametrize(
    "ask", [lambda t: t.item(), float, lambda t: t.tolist(), lambda t: onp.sin(float(t + 1.0)), lambda t: complex(t)]
)
def test_a_number_taken_out_of_what_is_differentiated_is_refused(ask: Callable[[Any], Any]) -> None:
    """Torch would go on, and its derivative would lack a term."""

    def loses(rows: Any, t: Any) -> Any:
        return torch.sum(rows * t * abs(ask(t)))

    for error in refused(loses, modes="grad jvp hvp"):
        assert isinstance(error, dagad.NotDifferentiableError)
        assert "`loses` asked for a Python number" in str(error)
        assert "write `x.detach().item()`" in str(error)


@pytest.mark.parametrize(
    ("name", "lose"),
    [
        ("tensor", lambda t: torch.tensor([t, 1.0])[0]),
        ("as_tensor", lambda t: torch.as_tensor([t])[0]),
        ("new_tensor", lambda t: t.new_tensor([t])[0]),
        ("linspace", lambda t: torch.linspace(0.0, t, 3)[-1]),
        ("special_bessel_j0", torch.special.bessel_j0),
        ("histc", lambda t: torch.histc(t)[0]),
        ("grad", lambda t: torch.autograd.grad(t**2, t)[0]),
    ],
)
@pytest.mark.filterwarnings("ignore:Converting a tensor:UserWarning")  # torch's, once a process, and it goes on
def test_functions_of_torch_that_lose_a_derivative_are_refused(name: str, lose: Callable[[Any], Any]) -> None:
    def loses(rows: Any, t: Any) -> Any:
        return torch.sum(rows * t) + lose(t).double()

    for error in refused(loses, modes="grad jvp hvp"):
        assert isinstance(error, dagad.NotDifferentiableError)
        assert f"`loses` called `{name}` of torch's" in str(error)
        assert "write `x.detach()`" in str(error)


def test_constants_made_of_what_is_differentiated_and_derivatives_inside_are_not_refused() -> None:
    def own(rows: Any, t: Any) -> Any:
        with torch.no_grad():
            constant = t * 0.0 + t.data * 0.0 + t.new_tensor(0.0) + torch.zeros_like(t) + (t > 9.0).to(t.dtype)
        inside = torch.autograd.grad(t**3, t, create_graph=True)[0] + torch.func.grad(torch.sin)(t) * t
        return constant + torch.sum(rows * inside) + torch.func.vmap(lambda x: x * t)(rows).sum()

    def right(t: Any) -> Any:
        return anp.sum(ROWS * (3.0 * t**2 + anp.cos(t) * t + t))

    loss = partial(dagad.reduce_sum, own, ROWS, grainsize=6, engine="torch", scheduler="sync")
    for mode in MODES:
        check(mode, loss, derivatives(right), tolerance=1e-12)


def test_numbers_that_carry_no_derivative_may_be_asked_for_and_decide() -> None:
    """Nothing is compiled, and many directions at once meet the function once, so that branches depend on data."""

    def asks(rows: Any, t: Any, weights: Any) -> Any:
        scale = weights.max().item() + float(weights[0] * 2.0) + t.detach().item() * 0.0
        assert f"{t:.1f}" == "0.7"
        return scale * torch.sum(torch.sin(rows * t)) if t > 0.5 and int(t) == 0 else t * 0.0

    def loss(t: Any) -> Any:
        return dagad.reduce_sum(asks, ROWS, t, onp.array([1.0, 3.0]), grainsize=6, engine="torch", scheduler="sync")

    for mode in MODES:
        check(mode, loss, derivatives(lambda t: 5.0 * anp.sum(anp.sin(ROWS * t))), tolerance=1e-12)
    jacobian = dagad.jacfwd(lambda t: loss(t[0] * t[1]))(onp.array([0.35, 2.0]))
    slope = 5.0 * onp.sum(ROWS * onp.cos(ROWS * 0.7))
    onp.testing.assert_allclose(jacobian, slope * onp.array([2.0, 0.35]), rtol=1e-12)


def test_data_can_not_be_written_into_and_copies_can() -> None:
    def spoils(rows: Any, t: Any) -> Any:
        rows[1:].mul_(2.0)
        return torch.sum(rows * t)

    def of_shared(rows: Any, t: Any, more: Any) -> Any:
        more["a"] += 1.0
        return torch.sum(rows * t)

    def by_out(rows: Any, t: Any) -> Any:
        torch.mul(rows, 2.0, out=rows)
        return torch.sum(rows * t)

    def of_leaves(rows: Any, t: Any) -> Any:
        t.mul_(2.0)
        return torch.sum(rows * t)

    data = ROWS.copy()
    errors = [*refused(spoils, rows=data), *refused(of_shared, {"a": onp.ones(2)})]
    for error in [*errors, *refused(of_leaves)]:
        assert any("work on a copy, `x = x.clone()`" in note for note in error.__notes__)
    for error in refused(by_out, rows=data):
        assert "Leave `out=` out" in str(error)
    assert data.tobytes() == ROWS.tobytes()

    def own(rows: Any, t: Any) -> Any:
        made = torch.zeros_like(rows)
        made[1:] = rows[:-1] * t
        return torch.sum(rows.clone().mul_(made).sin_())

    def right(t: Any) -> Any:
        parts = [ROWS[start : start + 6] for start in range(0, 24, 6)]
        return sum(anp.sum(anp.sin(part[1:] * part[:-1] * t)) for part in parts)

    for mode in MODES:
        loss = partial(dagad.reduce_sum, own, ROWS, grainsize=6, engine="torch", scheduler="sync")
        check(mode, loss, derivatives(right), tolerance=1e-12)


def with_numpy(rows: Any, t: Any) -> Any:
    return torch.sum(rows * t) * onp.sum(onp.sin(t))


def test_numpy_in_a_function_for_torch_and_torch_in_one_for_numpy_are_refused_with_the_remedy() -> None:
    for error in refused(with_numpy, modes="grad jvp hvp"):
        assert any("write it with `torch`, or" in note for note in error.__notes__)
    with pytest.raises(dagad.NotDifferentiableError, match=r'may be written with `torch`: .* engine="torch"\)`'):
        dagad.grad(lambda t: dagad.reduce_sum(wave, ROWS, t, grainsize=6, scheduler="sync"))(0.7)


@pytest.mark.parametrize("outside", ["sync", "threads"])
def test_tensors_and_reductions_inside_are_refused_with_the_remedy(outside: str) -> None:
    def nested(rows: Any, t: Any) -> Any:
        return dagad.reduce_sum(total, rows, t, grainsize=1, engine="torch")

    def total(rows: Any, t: Any) -> Any:
        return torch.sum(rows * t)

    def run(fun: Any, rows: Any, t: Any) -> Any:
        return dagad.reduce_sum(fun, rows, t, grainsize=6, engine="torch", scheduler=outside)

    for call in (partial(run, nested), dagad.grad(partial(run, nested), 1)):
        with pytest.raises(dagad.StructureError, match="put the reduction around that function"):
            call(ROWS, 0.7)
    with pytest.raises(dagad.StructureError, match=r"Give it numpy's, `tensor.numpy\(\)`"):
        run(total, torch.tensor(ROWS), 0.7)
    with pytest.raises(dagad.StructureError, match=r"no arrays of the dtype \w+. Convert the data"):
        run(total, ROWS.astype(onp.longdouble), 0.7)


class Detached(Cubed):
    """A rule whose derivative is lost where what it returns is differentiated again."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        (x,) = ctx.saved_tensors
        return cotangents[0].detach() * 3.0 * x**2


def of_sparse(rows: Any, t: Any) -> Any:
    return (
        torch.sum(rows)
        * torch.sparse_coo_tensor(torch.tensor([[0]]), t[None], (2,), check_invariants=False).to_dense()[0] ** 3
    )


@pytest.mark.parametrize(
    "fun",
    [of_sparse, lambda rows, t: torch.sum(Detached.apply(rows * t))],  # type: ignore[no-untyped-call]  # torch's own
)
def test_a_second_derivative_that_torch_lacks_is_refused(fun: Callable[..., Any]) -> None:
    loss = partial(dagad.reduce_sum, fun, ROWS, grainsize=6, engine="torch", scheduler="sync")
    right = 3.0 * 0.49 * onp.sum(ROWS if fun is of_sparse else ROWS**3)
    assert dagad.grad(loss)(0.7) == pytest.approx(right, rel=1e-12)
    for error in refused(fun, modes="jvp hvp"):
        assert isinstance(error, dagad.NotDifferentiableError)
        assert "or ask for gradients only" in str(error)


METHODS: list[Any] = [
    ("std", "correction=0", lambda b: b / b.std()),
    ("var", "correction=0", lambda b: b / b.var(0)),
    ("repeat", "repeat_interleave", lambda b: b[:, 0].repeat(2)[None]),
    ("transpose", "permute", lambda b: b.transpose(0, 1)),
    ("max", "amax", lambda b: b.max(0)[0] * b),
    ("sort", "torch.sort", lambda b: (b + 0.0).sort()[0]),
    ("nonzero", "as_tuple", lambda b: b[0][b[0].nonzero()]),
]


@pytest.mark.parametrize(("name", "said", "method"), METHODS, ids=lambda part: part if isinstance(part, str) else "")
def test_a_method_that_numpys_arrays_have_too_and_mean_otherwise_is_refused_in_a_task_of_a_graph(
    name: str, said: str, method: Any
) -> None:
    x = da.from_array(onp.random.default_rng(0).normal(size=(8, 6)), chunks=(4, 6))
    y = da.sum(x.map_blocks(method, dtype=float) ** 3)
    lazy = dagad.gradient(y, x, engine="torch")
    with pytest.raises(dagad.NotDifferentiableError, match=f"called the method `{name}` of a tensor.*{said}"):
        lazy.compute(scheduler="sync")


def test_methods_that_say_what_they_mean_have_the_value_that_dask_computes() -> None:
    x = da.from_array(onp.random.default_rng(0).normal(size=(8, 6)), chunks=(4, 6))

    def told(b: Any) -> Any:
        scale = b.std(correction=0) if isinstance(b, torch.Tensor) else b.std()
        return (b - b.mean()) / scale * b.max() + b.transpose(1, 0).sum()

    y = da.sum(x.map_blocks(told, dtype=float) ** 3)
    value, gradient = compute(*dagad.value_and_gradient(y, x, engine="torch"), scheduler="sync")
    assert value == pytest.approx(y.compute(scheduler="sync"), rel=1e-12)
    onp.testing.assert_allclose(gradient, dagad.gradient(y, x).compute(scheduler="sync"), rtol=1e-10)


def test_a_standard_deviation_in_a_chunk_for_torch_is_torchs_own() -> None:
    found = dagad.grad(lambda t: dagad.reduce_sum(lambda rows, t: (rows * t).std(), ROWS, t, engine="torch"))(0.7)
    assert found == pytest.approx(onp.std(ROWS, ddof=1))


@pytest.mark.parametrize("fun", [onp.sum, onp.mean, onp.max, onp.std])
def test_sums_of_numpys_in_a_chunk_for_torch_say_what_to_write(fun: Any) -> None:
    with pytest.raises(TypeError) as caught:
        dagad.grad(lambda t: dagad.reduce_sum(lambda rows, t: fun(rows * t), ROWS, t, engine="torch"))(0.7)
    assert "write it with `torch`, or with numpy and without" in "".join(caught.value.__notes__)
