"""`as_jax` in every nesting of jax's derivatives up to the third order: is each one jax's own, or is a term lost?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dagad
from dagad.interop.jax import as_jax
from support.compiled_quickly import quickly

ROWS = np.random.default_rng(0).normal(size=(3, 2))  # two chunks
P = {"slopes": np.array([0.3, 0.7]), "log scale": np.array(0.4)}
DIRECTION = {"slopes": np.array([0.5, -1.0]), "log scale": np.array(2.0)}


@pytest.fixture(autouse=True)
def _x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def wave(rows: Any, p: Any) -> Any:
    return np.sum(np.sin(np.dot(rows, p["slopes"])) * np.exp(0.5 * p["log scale"]))


def theirs(p: Any) -> Any:
    return jnp.sum(jnp.sin(ROWS @ p["slopes"]) * jnp.exp(0.5 * p["log scale"]))


ours = as_jax(lambda p: dagad.reduce_sum(wave, ROWS, p, grainsize=2, scheduler="sync"))


def total(tree: Any) -> Any:
    return sum(jnp.sum(jnp.sin(part) * part) for part in jax.tree.leaves(tree))


def pulled(fun: Any, seed: Any) -> Any:
    def found(p: Any) -> Any:
        out, pull = jax.vjp(fun, p)
        return pull(jax.tree.map(seed, out))[0]

    return found


NESTED: dict[str, Any] = {
    "grad": lambda fun: jax.grad(lambda p: total(fun(p))),
    "jvp": lambda fun: lambda p: jax.jvp(fun, (p,), (DIRECTION,))[1],
    "jvp along itself": lambda fun: lambda p: jax.jvp(fun, (p,), (p,))[1],
    "vjp": lambda fun: pulled(fun, jnp.ones_like),
    "vjp of itself": lambda fun: pulled(fun, jnp.sin),
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": jax.hessian,
}
ORDERS = {name: 2 if name == "hessian" else 1 for name in NESTED}
WAYS = [way for n in (1, 2, 3) for way in product(NESTED, repeat=n) if sum(map(ORDERS.__getitem__, way)) <= 3]
GROUPS = {inner: [way for way in WAYS if way[1:] == inner] for inner in dict.fromkeys(way[1:] for way in WAYS)}
LOST = [("grad",) * 3, ("vjp of itself", "grad", "jvp"), ("jacrev", "jacrev", "jacfwd"), ("grad", "hessian")]


def compiled(fun: Any) -> Any:
    """Compile something in a third of the time: compared are jax's rules of functions, not what XLA makes of them."""
    return jax.jit(fun, compiler_options=quickly())


def nested(way: tuple[str, ...], fun: Any) -> Any:
    for name in way:
        fun = NESTED[name](fun)
    return fun


def assert_as_jaxs_own(ways: list[tuple[str, ...]], *compilers: Any) -> None:
    def all_of(fun: Any) -> Any:  # one program: to compile many small ones takes twice as long
        return lambda p: [nested(way, fun)(p) for way in ways]

    rights = compiled(all_of(theirs))(P)
    for compiler in compilers:
        for way, found, right in zip(ways, compiler(all_of(ours))(P), rights, strict=True):
            assert str(jax.tree.structure(found)) == str(jax.tree.structure(right)), way
            for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10, err_msg="-".join(way))


@pytest.mark.parametrize("way", LOST, ids="-".join)
def test_a_derivative_of_a_transposed_hessian_product_has_its_third_derivatives(way: tuple[str, ...]) -> None:
    assert_as_jaxs_own([way], compiled, lambda fun: fun)


@pytest.mark.whole("each nesting of three derivatives, half of which are told apart by those above")
@pytest.mark.parametrize("inner", GROUPS, ids=lambda inner: "-".join(inner) or "first order")
def test_every_nesting_of_derivatives_to_third_order_is_jaxs_own(inner: tuple[str, ...]) -> None:
    assert_as_jaxs_own(GROUPS[inner], compiled)


@pytest.mark.whole("programs of three derivatives, not compiled: seconds each")
@pytest.mark.parametrize("inner", [*product(["grad", "jvp", "vjp"], repeat=2)], ids="-".join)
def test_every_nesting_of_products_to_third_order_is_jaxs_own_without_a_compiler(inner: tuple[str, ...]) -> None:
    assert_as_jaxs_own([(outer, *inner) for outer in ("grad", "jvp", "vjp")], lambda fun: fun)


PROGRAMS: dict[str, Any] = {
    "a step of descent": lambda fun: lambda p: fun(jax.tree.map(lambda x, g: x - 0.1 * g, p, jax.grad(fun)(p))),
    "a penalty on the gradient": lambda fun: lambda p: total(jax.grad(fun)(p)),
    "a determinant": lambda fun: (
        lambda p: jnp.linalg.slogdet(jax.jacrev(jax.grad(lambda x: fun({**p, "slopes": x})))(p["slopes"]))[1]
    ),
}


DERIVED: dict[str, Any] = {
    "grad": jax.grad,
    "hessian": jax.hessian,
    "many": lambda fun: lambda p: jax.vmap(jax.grad(fun))(jax.tree.map(lambda x: jnp.stack([x, x + 0.1]), p)),
    "checkpoint": lambda fun: jax.grad(jax.checkpoint(fun)),
}
# The Hessian of a determinant is a fourth derivative, of each number of a matrix: minutes.
TAKEN = [pair for pair in product(PROGRAMS, DERIVED) if pair != ("a determinant", "hessian")]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "mode"), TAKEN)
def test_a_program_that_holds_derivatives_of_as_jax_is_differentiated_like_jaxs_own(name: str, mode: str) -> None:
    found, right = (compiled(DERIVED[mode](PROGRAMS[name](fun)))(P) for fun in (ours, theirs))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


class Counted:
    """An objective that knows how often a derivative of it was taken in a direction."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, t: Any) -> Any:
        self.n += 1
        return np.sum(np.sin(t))


def test_a_hessian_product_along_nothing_is_not_computed() -> None:
    count = Counted()
    found = jax.jit(lambda t: jax.jvp(jax.grad(as_jax(count)), (t,), (jnp.zeros_like(t),))[1])(jnp.ones(2))
    assert (np.asarray(found).tolist(), count.n) == ([0.0, 0.0], 0)


cut: Any = jax.sharding.PartitionSpec
summed: Any = jax.lax.psum


def of_two(slopes: Any, scale: Any) -> Any:
    return jnp.sum(jnp.sin(slopes)) * jnp.sum(jnp.cos(scale))


def norm(fun: Any) -> Any:
    return jax.grad(lambda *args: total(jax.grad(fun, (0, 1))(*args)), (0, 1))


@pytest.mark.parametrize(
    "mode", [lambda fun: fun, lambda fun: jax.grad(fun, (0, 1)), lambda fun: jax.hessian(fun, (0, 1)), norm]
)
def test_a_function_of_as_jax_is_differentiated_inside_of_shard_map(mode: Any) -> None:
    def spread(fun: Any) -> Any:
        parts, whole = cut("i"), cut()
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
        return jax.shard_map(lambda *args: summed(fun(*args), "i"), mesh=mesh, in_specs=(parts, whole), out_specs=whole)

    our_two = as_jax(lambda slopes, scale: np.sum(np.sin(slopes)) * np.sum(np.cos(scale)))
    found, right = (jax.jit(mode(spread(fun)))(jnp.arange(8.0), jnp.arange(3.0)) for fun in (our_two, of_two))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
