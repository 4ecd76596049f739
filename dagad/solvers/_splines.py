"""Piecewise polynomials: their coefficients from data, and their values, written with numpy for their derivatives.

Values are scipy's own, traced or not. What is written here is differentiated in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import autograd.numpy as anp
import numpy as np

from dagad._tracing.by_definition import movers, rules_of, with_stacks
from dagad._tracing.rules import own_primitive
from dagad._tracing.stacked_tangents import whole
from dagad._types import Args, Array, Cotangent, Kwargs, Tangents, Value
from dagad._values import pytree

plain = pytree.plain


def primitive_of(raw: Callable[..., Any], definition: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as a primitive that is differentiated by its definition."""
    return own_primitive(raw, *rules_of(raw.__name__.strip("_"), definition))


def along(width: Array, y: Array) -> Any:
    """Return a number for each row of an array, in a shape that is broadcast to that of the array."""
    return anp.reshape(width, (-1, *[1] * (np.ndim(plain(y)) - 1)))


# Tridiagonal systems


def _stock_tridiagonal(lower: Array, diagonal: Array, upper: Array, b: Array) -> Any:
    from scipy.linalg import solve_banded

    bands = np.zeros((3, len(diagonal)), np.result_type(lower, diagonal, upper))
    bands[0, 1:], bands[1], bands[2, :-1] = upper, diagonal, lower
    return solve_banded((1, 1), bands, b.reshape(len(b), -1), check_finite=False).reshape(b.shape)


def _tridiagonal_vjp(argnums: Sequence[int], ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del kwargs
    lower, diagonal, upper, _ = args

    def product(left: Array, right: Array) -> Any:
        return -anp.sum(anp.reshape(left * right, (np.shape(plain(left))[0], -1)), axis=1)

    def pullback(cotangent: Cotangent) -> tuple[Any, ...]:
        back = tridiagonal(upper, diagonal, lower, cotangent)
        of: list[Callable[[], Any]] = [
            lambda: product(back[1:], ans[:-1]),
            lambda: product(back, ans),
            lambda: product(back[:-1], ans[1:]),
            lambda: back,
        ]
        return tuple(of[argnum]() for argnum in argnums)

    return pullback


def _tridiagonal_jvp(argnums: Sequence[int], tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del kwargs
    by_argnum = dict(zip(argnums, tangents, strict=True))
    nothing = np.zeros((1, *np.shape(plain(ans))[1:]))
    right = by_argnum.get(3, 0.0 * ans)
    if 0 in by_argnum:
        right = right - anp.concatenate([nothing, along(by_argnum[0], ans) * ans[:-1]])
    if 1 in by_argnum:
        right = right - along(by_argnum[1], ans) * ans
    if 2 in by_argnum:
        right = right - anp.concatenate([along(by_argnum[2], ans) * ans[1:], nothing])
    return tridiagonal(*args[:3], right)


# Solves a system with these diagonals; what stands on the right may have columns.
tridiagonal = own_primitive(_stock_tridiagonal, _tridiagonal_vjp, _tridiagonal_jvp)


# Coefficients: a row for each power, the highest first, a column for each interval


def by_slopes(x: Array, y: Array, slopes: Array) -> Any:
    """Return the coefficients of cubic polynomials that have these values and slopes at the nodes."""
    width = along(x[1:] - x[:-1], y)
    secant = (y[1:] - y[:-1]) / width
    bend = (slopes[:-1] + slopes[1:] - 2.0 * secant) / width
    return anp.stack([bend / width, (secant - slopes[:-1]) / width - bend, slopes[:-1], y[:-1]])


def _stock_cubic(x: Array, y: Array, first: Array, last: Array, orders: tuple[Any, ...], axis: int) -> Any:
    from scipy.interpolate import CubicSpline

    pairs = zip(orders, (first, last), strict=True)
    ends = tuple(order if isinstance(order, str) else (order, value) for order, value in pairs)
    return CubicSpline(x, y, axis, "periodic" if orders[0] == "periodic" else ends).c


def _cubic(x: Array, y: Array, first: Array, last: Array, orders: tuple[Any, ...], axis: int) -> Any:
    """Return the coefficients of a cubic spline; an end has a word, or the order of its derivative and its value."""
    y = anp.moveaxis(y, axis, 0)
    widths = x[1:] - x[:-1]
    h, n = along(widths, y), len(plain(x))
    secant = (y[1:] - y[:-1]) / h
    # With two nodes every spline that is asked for less than slopes is the straight line.
    pairs = zip(orders, (first, last), strict=True)
    ends: Any = [(1, secant[0]) if n == 2 and type(order) is str else (order, value) for order, value in pairs]
    if n == 3 and orders[0] == "periodic":
        common = anp.sum(secant / h, axis=0) / anp.sum(1.0 / h, axis=0)
        return by_slopes(x, y, anp.stack([common] * 3))
    if n > 2 and orders[0] == "periodic":
        return by_slopes(x, y, _periodic_slopes(widths, h, secant))
    if n == 3 and orders == ("not-a-knot", "not-a-knot"):  # a parabola
        middle = (h[0] * secant[1] + h[1] * secant[0]) / (h[0] + h[1])
        return by_slopes(x, y, anp.stack([2.0 * secant[0] - middle, middle, 2.0 * secant[1] - middle]))
    start = _end(ends[0][0], ends[0][1], widths, h, secant)
    # The same from the other side: there slopes have the other sign.
    stop = _end(ends[1][0], ends[1][1] * (-1.0 if ends[1][0] == 1 else 1.0), widths[::-1], h[::-1], -secant[::-1])
    lower = anp.concatenate([widths[1:], anp.stack([stop[1]])])
    upper = anp.concatenate([anp.stack([start[1]]), widths[:-1]])
    inner = 2.0 * (widths[:-1] + widths[1:])
    diagonal = anp.concatenate([anp.stack([start[0]]), inner, anp.stack([stop[0]])])
    right = 3.0 * (h[1:] * secant[:-1] + h[:-1] * secant[1:])
    whole = anp.concatenate([start[2][None] + 0.0 * y[:1], right, -stop[2][None] + 0.0 * y[:1]])
    return by_slopes(x, y, tridiagonal(lower, diagonal, upper, whole))


def _end(order: object, value: Value, widths: Array, h: Array, secant: Array) -> tuple[Any, Any, Any]:
    """Return the first row of the system for slopes: two entries, and what stands on the right."""
    if order == "not-a-knot":
        both = widths[0] + widths[1]
        far = h[0] + h[1]
        return widths[1], both, ((h[0] + 2.0 * far) * h[1] * secant[0] + h[0] ** 2 * secant[1]) / far
    if order == 1:
        return 1.0 + 0.0 * widths[0], 0.0 * widths[0], value + 0.0 * secant[0]
    return 2.0 * widths[0], widths[0], 3.0 * secant[0] * h[0] - 0.5 * value * h[0] ** 2


def _periodic_slopes(widths: Array, h: Array, secant: Array) -> Any:
    """Return the slopes of a periodic spline: but for the last of them the system is tridiagonal."""
    before, h_before, secant_before = (anp.roll(each, 1, axis=0) for each in (widths, h, secant))
    right = 3.0 * (h * secant_before + h_before * secant)
    diagonal = 2.0 * (before + widths)
    lower, upper = widths[1:-1], before[:-2]
    n = len(plain(widths))
    rows, corner = np.arange(n - 1), [1] * (np.ndim(plain(secant)) - 1)
    first, last = ((rows == row).astype(float).reshape(-1, *corner) for row in (0, n - 2))
    without = tridiagonal(lower, diagonal[:-1], upper, right[:-1])
    # Where only one is in between, both ends are next to it.
    beside = tridiagonal(lower, diagonal[:-1], upper, -first * widths[0] - last * before[-2] + 0.0 * right[:-1])
    known = right[-1] - before[-1] * without[0] - widths[-1] * without[-1]
    one = known / (diagonal[-1] + before[-1] * beside[0] + widths[-1] * beside[-1])
    slopes = without + one * beside
    return anp.concatenate([slopes, one[None], slopes[:1]])


def _stock_monotone(x: Array, y: Array, axis: int) -> Any:
    from scipy.interpolate import PchipInterpolator

    return PchipInterpolator(x, y, axis).c


def _monotone(x: Array, y: Array, axis: int) -> Any:
    """Return the coefficients of Fritsch and Butland's cubic polynomials, which are monotone where the data are."""
    y = anp.moveaxis(y, axis, 0)
    h = along(x[1:] - x[:-1], y)
    secant = (y[1:] - y[:-1]) / h
    if len(plain(x)) == 2:
        return by_slopes(x, y, anp.concatenate([secant, secant]))
    is_flat = plain(secant[1:]) * plain(secant[:-1]) <= 0.0
    left, right = (anp.where(is_flat, 1.0, each) for each in (secant[:-1], secant[1:]))
    of_left, of_right = 2.0 * h[1:] + h[:-1], h[1:] + 2.0 * h[:-1]
    inner = anp.where(is_flat, 0.0, (of_left + of_right) / (of_left / left + of_right / right))
    ends = [_outermost(h[0], h[1], secant[0], secant[1]), _outermost(h[-1], h[-2], secant[-1], secant[-2])]
    return by_slopes(x, y, anp.concatenate([ends[0][None], inner, ends[1][None]]))


def _outermost(h0: Array, h1: Array, m0: Array, m1: Array) -> Any:
    slope = ((2.0 * h0 + h1) * m0 - h0 * m1) / (h0 + h1)
    turns = np.sign(plain(slope)) != np.sign(plain(m0))
    is_steep = (np.sign(plain(m0)) != np.sign(plain(m1))) & (np.abs(plain(slope)) > 3.0 * np.abs(plain(m0)))
    return anp.where(turns, 0.0, anp.where(is_steep, 3.0 * m0, slope))


cubic, monotone = primitive_of(_stock_cubic, _cubic), primitive_of(_stock_monotone, _monotone)


# Values


def _stock_lost(found: Array, is_lost: Array) -> Any:
    return np.where(is_lost, np.nan, found)


def _lost_vjp(argnums: Sequence[int], ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del argnums, ans, kwargs
    # What nobody asks of stays so: he may have masked what is nan.
    return lambda cotangent: (lost(cotangent, args[1] & (plain(cotangent) != 0.0)),)


def _lost_jvp(argnums: Sequence[int], tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del argnums, ans, kwargs
    return lost(tangents[0], args[1])


# Puts nan for values that are not there; their derivatives are nan too.
lost = own_primitive(_stock_lost, _lost_vjp, _lost_jvp)


def _stock_known(points: Array, node: float) -> Any:
    return np.where(np.isnan(points), node, points)


def _known_vjp(argnums: Sequence[int], ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del argnums, ans, args, kwargs
    return lambda cotangent: (cotangent,)


def _known_jvp(argnums: Sequence[int], tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    del argnums, ans, args, kwargs
    return tangents[0]


# Puts a node for points that are nan, which would spoil the cotangents of others: zero times nan is nan.
known = own_primitive(_stock_known, _known_vjp, _known_jvp)


def _located(x: Array, points: Array, extrapolate: bool | Literal["periodic"] | None) -> tuple[Array, Any, Array]:
    """Return in which interval each point is, how far from its first node, and which points have no value."""
    if extrapolate == "periodic":
        period = x[-1] - x[0]
        points = points - period * np.floor((plain(points) - plain(x[0])) / plain(period))
    nodes, at = plain(x), np.ravel(plain(points))
    is_lost = np.isnan(at) if extrapolate else ~((at >= nodes[0]) & (at <= nodes[-1]))
    points = known(points, nodes[0]) if np.any(is_lost) else points
    index = np.clip(np.searchsorted(nodes, at, "right") - 1, 0, len(nodes) - 2)
    return index, anp.reshape(points, (-1,)) - x[index], is_lost


def _factors(degree: int, nu: int) -> list[float]:
    """Return what a derivative brings each power down by, the lowest power first."""
    return [float(np.prod(np.arange(power - nu + 1, power + 1))) for power in range(degree + 1)]


def _stock_value(
    c: Array, x: Array, points: Array, nu: int, extrapolate: bool | Literal["periodic"] | None, axis: int
) -> Any:
    from scipy.interpolate import PPoly

    return PPoly.construct_fast(c, x, extrapolate, axis)(points, nu)


def _value(
    c: Array, x: Array, points: Array, nu: int, extrapolate: bool | Literal["periodic"] | None, axis: int
) -> Any:
    """Return a derivative of piecewise polynomials at some points, as scipy arranges its axes."""
    shape, trail = np.shape(plain(points)), np.shape(plain(c))[2:]
    index, beyond, is_lost = _located(x, points, extrapolate)
    beyond = along(beyond, np.zeros((1, *trail)))
    factors = _factors(len(plain(c)) - 1, nu)[::-1]
    found: Any = np.zeros((len(index), *trail))
    for row in range(len(factors) - nu):
        found = found * beyond + factors[row] * c[row][index]
    if np.any(is_lost):
        found = lost(found, along(is_lost, found))
    found = anp.reshape(found, (*shape, *trail))
    return anp.moveaxis(found, list(range(len(shape))), list(range(axis, axis + len(shape)))) if axis else found


_BY_DEFINITION: Any = rules_of("value", _value)


def _value_vjp(argnums: Sequence[int], ans: Value, args: Args, kwargs: Kwargs) -> Any:
    """Return the pullback: what a point gives is linear in the coefficients of its interval, and moves by its slope."""
    if 1 in argnums:
        return _BY_DEFINITION[0](argnums, ans, args, kwargs)
    of: dict[int, Any] = {0: _pulled_to_coefficients, 2: _pulled_to_points}
    return lambda cotangent: tuple([of[argnum](cotangent, *args, **kwargs) for argnum in argnums])


def _value_jvp(argnums: Sequence[int], tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    if 1 in argnums:
        return _BY_DEFINITION[1](argnums, tangents, ans, args, kwargs)
    moves = dict(zip(argnums, tangents, strict=True))
    parts = [value_at(moves[0], *args[1:], **kwargs)] if 0 in moves else []
    if 2 in moves:
        parts.append(_beside_trail(moves[2], args, kwargs["axis"]) * _slope(args, kwargs))
    return sum(parts[1:], parts[0])


def _stacks_of_values(argnums: Sequence[int], stacks: Sequence[Any], ans: Value, args: Args, kwargs: Kwargs) -> Any:
    """Return the tangents in all directions: those of coefficients are polynomials with one axis more."""
    if 1 in argnums:
        return _BY_DEFINITION[1].of_stacks(argnums, stacks, ans, args, kwargs)
    moves = dict(zip(argnums, stacks, strict=True))
    parts = []
    if 0 in moves:
        found = value_at(anp.moveaxis(moves[0], 0, -1), *args[1:], **kwargs)
        parts.append(anp.moveaxis(found, -1, 0))
    if 2 in moves:
        parts.append(_beside_trail(moves[2], args, kwargs["axis"], 1) * _slope(args, kwargs))
    return whole(sum(parts[1:], parts[0]), ans)


def _slope(args: Args, kwargs: Kwargs) -> Any:
    return value_at(*args, **{**kwargs, "nu": kwargs["nu"] + 1})


def _beside_trail(numbers: Array, args: Args, axis: int, before: int = 0) -> Any:
    """Return numbers for points in a shape that is broadcast to that of values, after so many axes of their own."""
    shape, n_trail = np.shape(plain(args[2])), np.ndim(plain(args[0])) - 2
    return anp.reshape(numbers, (*np.shape(plain(numbers))[:before], *[1] * axis, *shape, *[1] * (n_trail - axis)))


def _pulled_to_points(cotangent: Cotangent, c: Array, x: Array, points: Array, **kwargs: Any) -> Any:
    axis, n_points = kwargs["axis"], np.ndim(plain(points))
    is_lost = _beside_trail(_located(x, points, kwargs["extrapolate"])[2], (c, x, points), axis)
    # What nobody asks of stays so: he may have masked what is nan. Elsewhere a cotangent of zero may move.
    parts = cotangent * anp.where(is_lost & (plain(cotangent) == 0.0), 0.0, _slope((c, x, points), kwargs))
    trail = [each for each in range(np.ndim(plain(parts))) if not axis <= each < axis + n_points]
    found = anp.sum(parts, axis=tuple(trail)) if trail else parts
    return anp.real(found) if np.iscomplexobj(plain(found)) else found


def _pulled_to_coefficients(
    cotangent: Cotangent,
    c: Array,
    x: Array,
    points: Array,
    nu: int,
    extrapolate: bool | Literal["periodic"] | None,
    axis: int,
) -> Any:
    shape, (rows, n, *trail) = np.shape(plain(points)), np.shape(plain(c))
    if axis:
        cotangent = anp.moveaxis(cotangent, list(range(axis, axis + len(shape))), list(range(len(shape))))
    cotangent = anp.reshape(cotangent, (-1, *trail))
    index, beyond, is_lost = _located(x, points, extrapolate)
    if np.any(is_lost):
        cotangent = lost(cotangent, along(is_lost, cotangent) & (plain(cotangent) != 0.0))
    size = int(np.prod(trail, dtype=int))
    at = index[:, None] * size + np.arange(size)
    beyond = along(beyond, cotangent)
    found: list[Any] = [np.zeros((n, *trail))] * min(nu, rows)  # of the lowest powers nothing is left
    for power, factor in enumerate(_factors(rows - 1, nu)[nu:]):
        part = anp.reshape(factor * beyond**power * cotangent, (-1, size))
        found.append(anp.reshape(movers()[1](part, at, (n * size,)), (n, *trail)))
    return anp.stack(found[::-1])


def _stock_antiderivative(c: Array, x: Array, nu: int) -> Any:
    from scipy.interpolate import PPoly

    return PPoly.construct_fast(c, x).antiderivative(nu).c


def _antiderivative(c: Array, x: Array, nu: int) -> Any:
    """Return the coefficients of the integral from the first node on, or of its integral, and so on."""
    for _ in range(nu):
        c = _one_antiderivative(c, x)
    return c


def _one_antiderivative(c: Array, x: Array) -> Any:
    powers = along(np.arange(len(plain(c)), 0, -1), c)
    raised, width = c / powers, along(x[1:] - x[:-1], c[0])
    pieces = raised[0] * width
    for row in range(1, len(plain(c))):
        pieces = (pieces + raised[row]) * width
    sums = anp.cumsum(pieces, axis=0)
    starts = anp.concatenate([0.0 * sums[:1], sums[:-1]])
    return anp.concatenate([raised, starts[None]])


def _stock_integral(c: Array, x: Array, a: Array, b: Array, extrapolate: bool | Literal["periodic"] | None) -> Any:
    from scipy.interpolate import PPoly

    return PPoly.construct_fast(c, x, extrapolate).integrate(a, b)


def _integral(c: Array, x: Array, a: Array, b: Array, extrapolate: bool | Literal["periodic"] | None) -> Any:
    """Return the integral between two limits."""
    whole = _one_antiderivative(c, x)
    return _value(whole, x, b, 0, extrapolate, 0) - _value(whole, x, a, 0, extrapolate, 0)


def derivative(c: Array, nu: int) -> Any:
    """Return the coefficients of a derivative, with scipy's bits."""
    from scipy.special import poch

    n = len(plain(c)) - nu
    return c[:n] * along(poch(np.arange(n, 0, -1.0), nu), c) if nu and n > 0 else 0.0 * c[:1] if nu else c


value_at = own_primitive(_stock_value, _value_vjp, with_stacks(_value_jvp, _stacks_of_values))
integral_between = primitive_of(_stock_integral, _integral)
antiderivative = primitive_of(_stock_antiderivative, _antiderivative)
