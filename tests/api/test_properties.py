"""Properties: is any program over any pytree, in any mode, what plain autograd makes of the uncut function?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as np
import numpy as onp
import optree
import pytest
from hypothesis import HealthCheck, given, settings

import dagad
from support.random_programs import Program, feature, flatten, is_float, plain, programs


def packed(tree: Any, conjugate: bool = False) -> Any:
    """Return the floating-point leaves of a tree as one real vector."""
    parts = [np.zeros(0)]
    for leaf in flatten(tree)[0]:
        flat = np.reshape(leaf, (-1,)) if is_float(plain(leaf)) else None
        if flat is not None and onp.iscomplexobj(plain(leaf)):
            parts.extend([np.real(flat), np.imag(flat) * (-1.0 if conjugate else 1.0)])
        elif flat is not None:
            parts.append(flat)
    return np.concatenate(parts)


def unpacked(vector: Any, like: Any, conjugate: bool = False, bare: bool = False) -> Any:
    """Return a real vector in the structure of a tree, in double precision; `bare`: with None for constants."""
    leaves, treedef = flatten(like)
    at, size, found = 0, vector.shape[0], list[Any]()

    def take(leaf: Any) -> Any:
        nonlocal at
        at += onp.size(leaf)
        # A product in place of a slice, whose second derivative autograd gets wrong where it has no dimensions.
        picked = onp.eye(size)[at - onp.size(leaf) : at]
        return np.reshape(np.dot(picked, vector), onp.shape(leaf))

    for leaf in leaves:
        if not is_float(leaf):
            found.append(None if bare else leaf)
        elif onp.iscomplexobj(leaf):
            real, imag = take(leaf), take(leaf)
            found.append(real - 1j * imag if conjugate else real + 1j * imag)
        else:
            found.append(take(leaf))
    return optree.tree_unflatten(treedef, found)


def typed(tree: Any, like: Any) -> Any:
    """Return a tree with the dtypes of another; None where that has constants."""
    leaves, treedef = flatten(like)
    own = treedef.flatten_up_to(tree)
    cast = [onp.asarray(a, onp.asarray(b).dtype)[()] if is_float(b) else None for a, b in zip(own, leaves, strict=True)]
    return optree.tree_unflatten(treedef, cast)


def assert_like(actual: Any, like: Any) -> None:
    """Assert that structure, shapes and dtypes are those of a tree; None where that has constants."""
    leaves, treedef = flatten(like)
    for a, b in zip(treedef.flatten_up_to(actual), leaves, strict=True):
        if not is_float(b):
            assert a is None
        else:
            assert onp.shape(a) == onp.shape(b)
            assert onp.asarray(a).dtype == onp.asarray(b).dtype
            # Second derivatives in an array without dimensions come as numbers: autograd has no such boxes.
            assert isinstance(a, onp.ndarray) == isinstance(b, onp.ndarray) or not onp.shape(b)


def loss_of(fun: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: feature(fun(*args), 0.7)


class Check:
    """One program, in one mode after the other; derivatives are in all arguments that have floating-point numbers."""

    def __init__(self, program: Program, rng: Any) -> None:
        self.program, self.rng, self.args = program, rng, program.args
        self.value, self.z = program.whole(*self.args), packed(self.args)
        self.moving = tuple(n for n, arg in enumerate(self.args) if packed(arg).size)
        self.primals = tuple(self.args[n] for n in self.moving)
        single = any(onp.asarray(leaf).dtype.char in "fF" for leaf in flatten(self.args)[0])
        self.rtol, self.rtol_second = (1e-5, 1e-5) if single else (1e-12, 1e-10)

    # the uncut function, as one of a real vector

    def whole(self, z: Any) -> Any:
        return packed(self.program.whole(*unpacked(z, self.args)))

    def whole_loss(self, z: Any) -> Any:
        return loss_of(self.program.whole)(*unpacked(z, self.args))

    def jacobian(self) -> Any:
        return autograd.jacobian(self.whole)(self.z) if packed(self.value).size else onp.zeros((0, self.z.size))

    # the chunked one, as one of the arguments that move

    def chunked(self, *moving: Any) -> Any:
        rest = iter(moving)
        return self.program.chunked(*[next(rest) if n in self.moving else arg for n, arg in enumerate(self.args)])

    def all_moving(self) -> tuple[int, ...]:
        return tuple(range(len(self.moving)))

    def tangents(self) -> tuple[Any, Any]:
        tangents = typed(unpacked(self.rng.standard_normal(self.z.size), self.args), self.args)
        return tuple(tangents[n] for n in self.moving), packed(tangents)

    # comparisons

    def close(self, actual: Any, expected: Any, rtol: float) -> None:
        scale = max(float(onp.max(onp.abs(expected), initial=0.0)), 1.0)
        onp.testing.assert_allclose(actual, expected, rtol=0, atol=scale * rtol)

    def cotangents(self, gradients: Any, expected: Any, order: int = 1) -> None:
        for gradient, primal in zip(gradients, self.primals, strict=True):
            assert_like(gradient, primal)
        self.close(packed(gradients, conjugate=True), expected, self.rtol if order == 1 else self.rtol_second)

    def blocks(self, jacobian: Any, outputs: Any, rtol: float, expected: Any) -> None:
        rows = [onp.zeros((0, self.z.size))]
        (leaves, treedef), (inner, inner_def) = flatten(outputs), flatten(self.primals)
        for leaf, own in zip(leaves, treedef.flatten_up_to(jacobian), strict=True):
            if not is_float(leaf):
                assert own is None
                continue
            row = [onp.zeros((onp.size(leaf), 0))]
            for part, primal in zip(inner_def.flatten_up_to(own), inner, strict=True):
                assert (part is None) == (not is_float(primal))
                if part is not None:
                    assert part.shape == onp.shape(leaf) + onp.shape(primal)
                    row.append(onp.reshape(part, (onp.size(leaf), onp.size(primal))))
            rows.append(onp.concatenate(row, axis=1))
        self.close(onp.concatenate(rows), expected, rtol)

    # modes

    def value_and_grad(self) -> None:
        value, gradients = dagad.value_and_grad(loss_of(self.chunked), self.all_moving())(*self.primals)
        self.close(value, self.whole_loss(self.z), self.rtol)
        self.cotangents(gradients, autograd.grad(self.whole_loss)(self.z))
        self.close(packed(self.chunked(*self.primals)), packed(self.value), self.rtol)

    def vjp(self) -> None:
        value, pullback = dagad.vjp(self.chunked, *self.primals)
        self.close(packed(value), packed(self.value), self.rtol)
        pull = autograd.make_vjp(self.whole)(self.z)[0]
        for _ in range(2):
            seed = self.rng.standard_normal(packed(self.value).size)
            self.cotangents(pullback(unpacked(seed, self.value, conjugate=True)), pull(seed))

    def jvp(self) -> None:
        tangents, direction = self.tangents()
        value, tangent = dagad.jvp(self.chunked, self.primals, tangents)
        self.close(packed(value), packed(self.value), self.rtol)
        assert_like(tangent, value)
        self.close(packed(tangent), self.jacobian() @ direction, self.rtol)

    def jacfwd(self) -> None:
        self.whole_jacobian(dagad.jacfwd)

    def jacrev(self) -> None:
        self.whole_jacobian(dagad.jacrev)

    def whole_jacobian(self, transform: Any) -> None:
        jacobian = transform(self.chunked, self.all_moving())
        if has_complex(self.primals) or has_complex(self.value):
            with pytest.raises(dagad.NotDifferentiableError, match="holomorphic"):
                jacobian(*self.primals)
        else:
            self.blocks(jacobian(*self.primals), self.value, self.rtol, self.jacobian())

    def hvp(self) -> None:
        tangents, direction = self.tangents()
        found = dagad.hvp(loss_of(self.chunked), self.primals, tangents)
        self.cotangents(found, autograd.hessian(self.whole_loss)(self.z) @ direction, order=2)

    def hessian(self) -> None:
        loss, every = loss_of(self.chunked), self.all_moving()
        for hessian in (dagad.hessian(loss, every), dagad.jacfwd(dagad.grad(loss, every), every)):
            if has_complex(self.primals):
                with pytest.raises(dagad.NotDifferentiableError, match="holomorphic"):
                    hessian(*self.primals)
            else:
                expected = autograd.hessian(self.whole_loss)(self.z)
                self.blocks(hessian(*self.primals), self.primals, self.rtol_second, expected)

    def grad_of_grad(self) -> None:
        def twice(*moving: Any) -> Any:
            return feature(dagad.grad(loss_of(self.chunked), self.all_moving())(*moving), 1.7)

        def whole(z: Any) -> Any:
            tree = unpacked(autograd.grad(self.whole_loss)(z), self.args, conjugate=True, bare=True)
            return feature(tuple(tree[n] for n in self.moving), 1.7)

        gradients = dagad.grad(twice, self.all_moving())(*self.primals)
        self.cotangents(gradients, autograd.grad(whole)(self.z), order=2)

    def grad_of_jvp(self) -> None:
        tangents, direction = self.tangents()

        def along(*moving: Any) -> Any:
            return feature(dagad.jvp(self.chunked, moving, tangents)[1], 1.7)

        def whole(z: Any) -> Any:
            start = onp.zeros(packed(self.value).size)
            moved = autograd.make_vjp(lambda seed: autograd.make_vjp(self.whole)(z)[0](seed))(start)[0](direction)
            return feature(unpacked(moved, self.value, bare=True), 1.7)

        gradients = dagad.grad(along, self.all_moving())(*self.primals)
        self.cotangents(gradients, autograd.grad(whole)(self.z), order=2)


def has_complex(tree: Any) -> bool:
    return any(onp.asarray(leaf).dtype.kind == "c" for leaf in flatten(tree)[0])


MODES = ["value_and_grad", "vjp", "jvp", "jacfwd", "jacrev", "hvp", "hessian", "grad_of_grad", "grad_of_jvp"]


@pytest.mark.filterwarnings("ignore:Argument . .*holds integers:dagad.DagadWarning")  # constants on purpose
@pytest.mark.parametrize("mode", MODES)
def test_any_program_has_the_derivatives_of_the_uncut_function(mode: str, rounds: Callable[[int], int]) -> None:
    @settings(max_examples=rounds(25), deadline=None, suppress_health_check=list(HealthCheck))
    @given(programs())
    def check(made: Any) -> None:
        checked = Check(*made)
        if checked.moving:
            getattr(checked, mode)()

    check()
