"""Functions of scipy.special at points that the table of calls has not: edges, tails, second orders, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import special

import dagad
from support.compiled_quickly import compiled_quickly as compiled_quickly

ENGINES = [None, pytest.param("jax", marks=pytest.mark.needs("jax"))]


def summed(fun: Any, engine: str | None = None) -> Any:
    """Return the sum of what a function of entries gives, as that of one chunk."""

    def chunk(rows: Any, t: Any) -> Any:
        return np.sum(fun(t)) * np.sum(rows)

    return lambda t: dagad.reduce_sum(chunk, np.ones(1), t, grainsize=1, scheduler="sync", engine=engine)


def slopes(fun: Any, at: Any, engine: str | None = None) -> Any:
    return dagad.grad(summed(fun, engine))(np.asarray(at, float))


def curvatures(fun: Any, at: Any, engine: str | None = None) -> Any:
    at = np.asarray(at, float)
    return dagad.hvp(summed(fun, engine), at, np.ones_like(at))


@pytest.mark.parametrize("engine", ENGINES)
def test_elliptic_integrals_have_their_slopes_where_the_textbooks_formula_is_zero_by_zero(engine: str | None) -> None:
    series = [np.pi / 8, 9 * np.pi / 64, 75 * np.pi / 512]  # of K, that of m^n times n
    small = 1e-9
    assert slopes(special.ellipk, [0.0, small], engine) == pytest.approx(
        [series[0], series[0] + 2 * small * series[1] / 2], rel=1e-14
    )
    assert curvatures(special.ellipk, [0.0], engine) == pytest.approx([9 * np.pi / 64], rel=1e-14)
    assert slopes(special.ellipe, [0.0], engine) == pytest.approx([-np.pi / 8], rel=1e-14)
    assert curvatures(special.ellipe, [0.0], engine) == pytest.approx([-3 * np.pi / 64], rel=1e-14)
    in_m = slopes(lambda m: special.ellipkinc(1e-3, m), [0.0, 0.5], engine)
    np.testing.assert_allclose(in_m, [(1e-3 / 2 - np.sin(2e-3) / 4) / 2, 1.66666623333e-10], rtol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_incomplete_elliptic_integral_is_smooth_where_the_angle_is_right_and_beyond(engine: str | None) -> None:
    at = np.array([-4.0, np.pi / 2, 2.0, 10.0])
    np.testing.assert_allclose(
        slopes(lambda phi: special.ellipeinc(phi, 0.7), at, engine), np.sqrt(1 - 0.7 * np.sin(at) ** 2), rtol=1e-14
    )
    in_m = slopes(lambda m: special.ellipkinc(np.pi / 2, m), [0.3, 0.9], engine)
    np.testing.assert_allclose(in_m, slopes(special.ellipk, [0.3, 0.9], engine), rtol=1e-13)
    twice = slopes(lambda m: special.ellipeinc(np.pi, m), [0.3, 0.9], engine)
    np.testing.assert_allclose(twice, 2 * slopes(special.ellipe, [0.3, 0.9], engine), rtol=1e-13)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.filterwarnings("ignore")
def test_elliptic_integrals_that_diverge_have_no_finite_slope(engine: str | None) -> None:
    assert slopes(special.ellipe, [1.0], engine)[0] == -np.inf
    assert slopes(special.ellipk, [1.0], engine)[0] == np.inf
    assert not np.isfinite(slopes(lambda x: special.elliprf(0.0, 0.0, x), [1.0], engine)).any()
    assert np.isnan(slopes(special.ellipk, [2.0], engine)).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_line_profile_spreads_as_heat_does_and_its_tail_keeps_its_digits(engine: str | None) -> None:
    x = np.array([0.0, 1.0, 5.0, 8.0, 12.0, 500.0, 1e6])
    in_sigma = slopes(lambda s: special.voigt_profile(x, s, 0.4), np.full(7, 0.9), engine)
    np.testing.assert_allclose(
        in_sigma, 0.9 * curvatures(lambda x: special.voigt_profile(x, 0.9, 0.4), x, engine), rtol=1e-11
    )
    tail = 3 * 2 * 0.9 * 0.4 / np.pi / 1e6**4  # of gamma / (pi x^2) (1 + 3 sigma^2 / x^2), in sigma
    assert in_sigma[-1] == pytest.approx(tail, rel=1e-10)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_line_profile_without_a_width_of_one_kind_has_the_slopes_of_the_other(engine: str | None) -> None:
    x = np.array([-1.0, 0.3, 4.0])
    gauss = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(slopes(lambda t: special.voigt_profile(t, 1.0, 0.0), x, engine), -x * gauss, rtol=1e-12)
    lorentz = -2 * x / np.pi / (1 + x**2) ** 2
    np.testing.assert_allclose(slopes(lambda t: special.voigt_profile(t, 0.0, 1.0), x, engine), lorentz, rtol=1e-14)
    np.testing.assert_array_equal(slopes(lambda s: special.voigt_profile(x, s, 1.0), np.zeros(3), engine), 0.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_faddeevas_function_has_its_derivative_along_both_axes_and_below_the_real_line(engine: str | None) -> None:
    at = np.array([0.3 + 0.4j, 5.0 + 1e-9j, 7.0 - 0.2j, -3.0 + 6.0j, 1e3 + 1e-3j, 0.5 - 2.0j])
    right = -2 * at * special.wofz(at) + 2j / np.sqrt(np.pi)
    along = slopes(lambda x: np.real(special.wofz(x + 1j * at.imag)), at.real, engine)
    across = slopes(lambda y: np.real(special.wofz(at.real + 1j * y)), at.imag, engine)
    assert along == pytest.approx(right.real, rel=1e-8, abs=1e-13)
    for z, found, expected in zip(at, across, -right.imag, strict=True):
        assert found == pytest.approx(expected, rel=1e-5 if abs(z) > 100 else 1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_integrals_have_their_slopes_where_a_quotient_is_zero_by_zero(engine: str | None) -> None:
    np.testing.assert_allclose(slopes(lambda x: special.sici(x)[0], [0.0, 1e-9], engine), 1.0)
    np.testing.assert_allclose(curvatures(lambda x: special.sici(x)[0], [0.0, 3e-3], engine), [0.0, -1e-3], rtol=1e-5)
    np.testing.assert_allclose(slopes(special.spence, [1.0, 1.0 + 1e-9], engine), [-1.0, -1.0 + 5e-10], rtol=1e-15)
    np.testing.assert_allclose(curvatures(special.spence, [1.0], engine), [0.5], rtol=1e-15)
    np.testing.assert_array_equal(slopes(special.kolmogorov, [-1.0, 0.0, 1e-90], engine), 0.0)
    beside = slopes(special.kolmogorov, [1.0 - 1e-12, 1.0 + 1e-12], engine)
    assert beside[0] == pytest.approx(beside[1], rel=1e-11)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_branches_of_lambert_have_their_slopes_next_to_zero_and_in_complex_numbers(engine: str | None) -> None:
    principal = special.lambertw
    assert slopes(lambda x: principal(x).real, [0.0, 1e-9], engine) == pytest.approx([1.0, 1.0 - 2e-9], rel=1e-15)
    assert curvatures(lambda x: principal(x).real, [0.0, 1e-9], engine) == pytest.approx([-2.0, -2.0 + 9e-9], rel=1e-14)
    below = special.lambertw(-1e-9, -1).real
    assert slopes(lambda x: special.lambertw(x, -1).real, [-1e-9], engine) == pytest.approx(
        [below / (-1e-9) / (1 + below)]
    )
    w = special.lambertw(0.3 + 2j, 3)
    found = slopes(lambda x: special.lambertw(x + 2j, 3).imag, [0.3], engine)
    assert found == pytest.approx([(w / (0.3 + 2j) / (1 + w)).imag], rel=1e-14)


@pytest.mark.needs("jax")
@pytest.mark.parametrize("k", [-1, 0, 1, 2])
def test_compiled_branches_of_lambert_have_scipys_values_all_over_the_plane(k: int) -> None:
    rng = np.random.default_rng(3)
    z = np.exp(rng.uniform(-9, 9, 500)) * np.exp(1j * rng.uniform(-np.pi, np.pi, 500))
    z = np.concatenate([z, -np.exp(-1) + z / 1e3, np.linspace(-0.367, 3.0, 50), [0.3, 1e-200, -1e-200, 1e200]])

    def parts(w: Any) -> Any:
        return np.stack([np.real(w), np.imag(w)])

    def chunk(rows: Any, weights: Any, x: Any) -> Any:
        return np.sum(weights * parts(special.lambertw(x + 1j * z.imag, k))) * np.sum(rows)

    found = dagad.grad(
        lambda w: dagad.reduce_sum(chunk, np.ones(1), w, z.real, grainsize=1, scheduler="sync", engine="jax")
    )(np.ones((2, len(z))))
    right = special.lambertw(z, k)
    beside = np.abs(1 + right)  # next to the branch point W has as many digits fewer
    assert np.max(np.abs(found[0] + 1j * found[1] - right) * np.minimum(1, beside) / np.abs(right)) < 1e-12


def test_spherical_functions_are_those_of_the_recurrences_on_both_sides_of_zero() -> None:
    at = np.array([-3.0, -0.4, 0.7, 9.0])
    for name in ("spherical_jn", "spherical_yn", "spherical_in", "spherical_kn"):
        fun = getattr(special, name)
        for n in (0, 1, 4):
            assert slopes(lambda z, n=n, fun=fun: fun(n, z), at) == pytest.approx(
                fun(n, at, derivative=True), rel=1e-10
            )
            twice = slopes(lambda z, n=n, fun=fun: fun(n, z, derivative=True), at)
            assert curvatures(lambda z, n=n, fun=fun: fun(n, z), at) == pytest.approx(twice, rel=1e-12)
    np.testing.assert_allclose(slopes(lambda z: special.spherical_jn([[0], [1], [2]], z), [0.0]), [1 / 3])


def test_airys_functions_solve_their_equation_in_every_order() -> None:
    at = np.array([-20.0, -1.0, 0.0, 2.0, 9.0])
    np.testing.assert_allclose(curvatures(lambda x: special.airy(x)[0], at), at * special.airy(at)[0], rtol=1e-14)
    right = special.airy(at)[2] + at * special.airy(at)[3]
    np.testing.assert_allclose(curvatures(lambda x: special.airy(x)[3], at), right, rtol=1e-14)


def test_kelvins_functions_have_second_derivatives_at_zero_and_digits_where_scipys_own_slopes_have_fewer() -> None:
    np.testing.assert_allclose(curvatures(special.bei, [0.0]), [0.5], rtol=1e-15)
    third = -np.imag(special.jv(1, 12.0 * np.exp(0.75j * np.pi)) * np.exp(0.75j * np.pi))
    assert slopes(special.bei, [12.0]) == pytest.approx([third], rel=1e-13)
    assert slopes(special.bei, [12.0]) == pytest.approx(special.beip([12.0]), rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_means_of_equal_negative_and_distant_numbers_have_their_slopes(engine: str | None) -> None:
    assert slopes(lambda a: special.agm(a, [2.0, -2.0]), [2.0, -2.0], engine) == pytest.approx([0.5, 0.5], rel=1e-15)
    far = 1e-200
    tiny = np.pi / 2 / np.log(4 / far) ** 2 / far  # of pi / (2 log(4 / b))
    assert slopes(lambda b: special.agm(1.0, b), [far], engine) == pytest.approx([tiny], rel=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_dirichlets_kernel_is_smooth_at_whole_turns(engine: str | None) -> None:
    at = np.array([0.0, 1e-9, 2 * np.pi, 4 * np.pi])
    for n in (1, 2, 5):
        turned = np.array([1.0, 1.0, (-1.0) ** (n - 1), 1.0]) * -(n**2 - 1) / 12
        assert curvatures(lambda x, n=n: special.diric(x, n), at, engine) == pytest.approx(turned, rel=1e-12, abs=1e-13)
        assert slopes(lambda x, n=n: special.diric(x, n), at, engine) == pytest.approx(np.zeros(4), abs=1e-8)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_factorial_below_zero_is_constant(engine: str | None) -> None:
    np.testing.assert_allclose(slopes(special.factorial, [-1.5, -1.0, 0.0], engine), [0.0, 0.0, -np.euler_gamma])


@pytest.mark.parametrize("engine", ENGINES)
def test_polynomials_of_several_degrees_and_hurwitz_zeta_take_constants_beside_traced_values(
    engine: str | None,
) -> None:
    found = slopes(lambda x: special.eval_legendre([[0], [1], [2], [3]], x), [0.0, 0.5], engine)
    np.testing.assert_allclose(found, [1.0 - 1.5, 1.0 + 1.5 + (15 * 0.25 - 3) / 2], rtol=1e-14)
    np.testing.assert_allclose(
        slopes(lambda q: special.zeta([[2.5], [4]], q), [0.7], engine),
        -(2.5 * special.zeta(3.5, [0.7]) + 4 * special.zeta(5, [0.7])),
        rtol=1e-14,
    )


REFUSED: dict[str, tuple[Any, str]] = {
    "argument of zeta": (lambda x: special.zeta(1 + x, 2.0), r"no derivative of `zeta`"),
    "zeta of Riemann": (lambda x: special.zeta(1 + x), r"no derivative of `riemann_zeta`"),
    "branch": (lambda x: special.lambertw(0.3, x).real, r"ordinary array"),
    "order": (lambda x: np.real(special.hankel1(x, 1.0)), r"no derivative of `hankel1`"),
    "terms": (lambda x: special.diric(1.0, x), r"no derivative of `diric`"),
    "extension": (lambda x: special.factorial(x, extend="complex"), r"`scipy\.special\.factorial` was called with"),
    "scaled": (lambda x: special.airye(x)[0], r"no derivative of `scipy\.special\.airye`"),
    "order of spheres": (lambda x: special.spherical_jn(x, 1.0), r"no derivative|ordinary array"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_without_a_derivative_are_refused(case: str) -> None:
    fun, sentence = REFUSED[case]
    with pytest.raises(dagad.NotDifferentiableError, match=sentence):
        slopes(fun, [0.5, 1.5])


NOT_COMPILED: dict[str, tuple[Any, str]] = {
    "argument of zeta": (lambda x: special.zeta(1 + x, 2.0), r"`scipy\.special\.zeta` in its first argument"),
    "zeta of Riemann": (lambda x: special.zeta(1 + x), r"`scipy\.special\.zeta` of one argument"),
    "complex": (lambda x: np.real(special.fresnel(x + 0.5j)[0]), r"`scipy\.special\.fresnel` of complex numbers"),
    "Airy": (lambda x: special.airy(x)[0], r"`scipy\.special\.airy`, for which"),
    "branch": (lambda x: special.lambertw(0.3, x).real, r"array"),
    "spheres": (lambda x: special.spherical_jn(1, x), r"`scipy\.special\.spherical_jn`, for which"),
    "degree": (lambda x: special.eval_legendre(1.5, x), r"in a degree that is no whole number"),
    "traced degree": (lambda x: special.eval_legendre(x, 0.5), r"in a degree that jax traces"),
    "terms": (lambda x: special.diric(1.0, x), r"`scipy\.special\.diric` of a number of terms"),
    "freedom": (lambda x: special.stdtr(x, 1.0), r"with degrees of freedom that jax traces"),
    "extension": (lambda x: special.factorial(x, extend="complex"), r"`scipy\.special\.factorial` with `extend"),
}


@pytest.mark.needs("jax")
@pytest.mark.parametrize("case", NOT_COMPILED)
def test_special_functions_without_exact_values_in_jax_are_refused_by_name(case: str) -> None:
    fun, sentence = NOT_COMPILED[case]
    with pytest.raises(dagad.NotDifferentiableError, match=sentence):
        slopes(fun, [0.5, 1.5], "jax")


@pytest.mark.parametrize("name", ["fresnel", "sici", "shichi", "airy"])
def test_functions_with_several_results_have_scipys_results_and_shapes(name: str) -> None:
    fun, at, seen = getattr(special, name), np.array([[0.3, 0.7, 2.0]]), list[Any]()

    def kept(t: Any) -> Any:
        seen.append(fun(t))
        return sum(seen[0][1:], seen[0][0])

    right = sum(slopes(lambda t, number=number: fun(t)[number], at) for number in range(len(fun(at))))
    np.testing.assert_allclose(slopes(kept, at), right, rtol=1e-14)
    assert isinstance(seen[0], tuple)
    assert [part.shape for part in seen[0]] == [(1, 3)] * len(fun(at))


def test_arrays_without_entries_numbers_and_single_precision_are_taken_as_scipy_takes_them() -> None:
    for fun in (special.ellipk, special.spence, special.kolmogorov, special.ber, special.factorial):
        assert slopes(fun, np.zeros(0)).shape == (0,)
        assert slopes(fun, 0.3) == pytest.approx(slopes(fun, [0.3])[0], rel=1e-15)
        assert dagad.grad(summed(fun))(np.full(2, 0.3, np.float32)).dtype == np.float32
