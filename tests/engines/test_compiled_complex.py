"""Functions of complex numbers, compiled and not: in all quadrants, at 0, by name where jax takes real ones only."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

import dagad

pytestmark = pytest.mark.whole("compiled once for each function")

AT = np.array([0.7, -0.8, -0.6, 1.7, -1.6, 0.01, 0.4, 0.5, -0.4, -0.3, 0.2, -1.3])  # real parts, then imaginary ones
ALONG = np.cos(1.7 * np.arange(12.0)) + 0.1
WEIGHTS = np.linspace(0.4, 1.3, 6)
ENGINES = pytest.mark.parametrize("engine", [None, "jax"])
NAMES = {"np": np, "special": scipy.special}


def summed(chunk: Callable[[Any], Any], engine: str | None) -> Any:
    return lambda t: dagad.reduce_sum(
        lambda rows, t: np.sum(rows) * chunk(t), np.ones(1), t, grainsize=1, scheduler="sync", engine=engine
    )


def loss_of(call: str, engine: str | None) -> tuple[Any, Any]:
    """Return a function of numbers that are made complex, as chunks and as it is."""
    code = compile(call, "<call>", "eval")

    def chunk(t: Any) -> Any:
        out = eval(code, {**NAMES, "t": t, "z": t[:6] + 1j * t[6:]})
        return np.sum(WEIGHTS * (np.real(out) + 0.6 * np.imag(out) + np.real(out * out)))

    return summed(chunk, engine), chunk


def slope(fun: Callable[[Any], Any], step: float = 1e-4) -> Any:
    ahead, behind = (fun(AT + k * ALONG) - fun(AT - k * ALONG) for k in (step, 2 * step))
    return (8 * ahead - behind) / (12 * step)


CALLS = """
np.arccosh(z); np.arccosh(z)**2 * z; np.sign(z); np.sign(z * z + 0.2); np.abs(z); np.abs(np.sign(z) + z)
np.arcsin(z); np.arctanh(z); np.sqrt(z); np.log(z); z**z; np.interp(t[:6], [-1.0, 0.3, 0.9, 2.0], z[:4])
np.interp(t[:6], [-0.7, 0.3, 0.9, 1.0], z[1:5], left=2j, right=z[0]); special.wofz(z); special.erfcx(z)
"""


@ENGINES
@pytest.mark.parametrize("call", [call.strip() for line in CALLS.split("\n") for call in line.split(";") if call])
def test_a_function_of_complex_numbers_in_all_quadrants_is_right_in_every_mode(call: str, engine: str | None) -> None:
    loss, chunk = loss_of(call, engine)
    value, gradient = dagad.value_and_grad(loss)(AT)
    assert value == pytest.approx(chunk(AT), rel=1e-13)
    assert gradient @ ALONG == pytest.approx(slope(chunk), rel=1e-8)
    assert dagad.jvp(loss, AT, ALONG)[1] == pytest.approx(slope(chunk), rel=1e-8)
    curved = slope(dagad.grad(loss))
    np.testing.assert_allclose(dagad.hvp(loss, AT, ALONG), curved, rtol=1e-6, atol=1e-7 * abs(curved).max())


@ENGINES
@pytest.mark.parametrize("function", [np.abs, np.sign])
def test_sizes_and_directions_of_complex_numbers_have_no_derivatives_at_zero(function: Any, engine: Any) -> None:
    loss = summed(lambda t: np.sum(np.real(function(t * (1 + 1j)))), engine)
    value, gradient = dagad.value_and_grad(loss)(np.array([0.0, 2.0]))
    assert value == pytest.approx(np.sum(np.real(function(np.array([0.0, 2.0]) * (1 + 1j)))), rel=1e-15)
    np.testing.assert_allclose(gradient, [0.0, np.sqrt(2.0) if function is np.abs else 0.0], atol=1e-15)
    np.testing.assert_allclose(dagad.hessian(loss)(np.array([0.0, 2.0])), np.zeros((2, 2)), atol=1e-15)


def test_directions_of_complex_numbers_have_the_same_bits_traced_and_untraced() -> None:
    at = np.array([0.3 + 0.4j, -2e-300 + 1e-300j, 0.0, -1e200j, complex(np.inf, 0.0), np.nan], complex)
    for kind in (np.complex128, np.complex64):
        with np.errstate(all="ignore"):
            own, found = np.sign(at.astype(kind)), dagad.vjp(np.sign, at.astype(kind))[0]
        assert found.dtype == own.dtype
        assert found.tobytes() == own.tobytes()


OF_COMPLEX = [
    name
    for name in sorted(vars(scipy.special))
    if isinstance(ufunc := getattr(scipy.special, name), np.ufunc)
    and any(re.fullmatch("[dp]*D->D", kind) for kind in ufunc.types)
]
EXACT = "erfcx eval_chebyt eval_chebyu eval_gegenbauer eval_genlaguerre eval_laguerre eval_legendre expm1 log1p wofz"


@pytest.mark.parametrize("name", OF_COMPLEX)
def test_special_functions_of_complex_numbers_are_scipys_or_refused_by_name_when_compiled(name: str) -> None:
    function = getattr(scipy.special, name)
    kinds = next(kind for kind in function.types if re.fullmatch("[dp]*D->D", kind)).partition("->")[0]
    orders = [3.0 if name.startswith("eval") else 0.7] * (len(kinds) - 1)
    z = AT[:6] + 1j * AT[6:]

    def parts(t: Any) -> Any:
        out = function(*orders, t[:6] + 1j * t[6:])
        return np.stack([np.real(out), np.imag(out)])

    def compiled() -> Any:
        return dagad.map(lambda rows, t: parts(t)[None], np.ones(1), AT, engine="jax")[0]

    if name in EXACT.split():
        own = function(*orders, z)
        np.testing.assert_allclose(compiled().reshape(2, 6), [own.real, own.imag], rtol=1e-11, atol=1e-13)
        return
    sentence = rf"`scipy\.special\.{function.__name__}`.*no function with the same result"
    with pytest.raises(dagad.NotDifferentiableError, match=sentence):
        compiled()


@pytest.mark.parametrize("kind", [np.longdouble, np.clongdouble])
def test_longer_numbers_than_jax_has_are_refused_by_their_dtype_as_what_is_differentiated(kind: Any) -> None:
    loss = summed(lambda t: np.sum(np.abs(t)), "jax")
    with pytest.raises(dagad.StructureError, match=rf"no arrays of the dtype {np.dtype(kind)}.*astype"):
        dagad.grad(loss)(np.ones(2, kind))
