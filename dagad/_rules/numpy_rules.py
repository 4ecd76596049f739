"""Functions of numpy's that autograd has no derivative of, or a wrong one: what they are, written with others.

A definition in `DEFINED` gives the derivative of a function, whose value stays numpy's; those in `BETTER` take the
place of autograd's own rules, which are wrong for some arguments.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defjvp, defvjp, primitive

from dagad._errors import NotDifferentiableError
from dagad._rules import coefficients, fft_rules, reduction_rules
from dagad._rules.reduction_rules import is_deep
from dagad._rules.scipy_integrate import trapezoid
from dagad._rules.tails import BETTER_SLOPES, TANH
from dagad._tracing import refusals
from dagad._tracing.by_definition import as_gather, entrywise, movers, rules_of
from dagad._tracing.private import isbox, numpy_vjps, trace_primitives_map
from dagad._tracing.rules import HOMES, Better, cast, define, keep_real, shaped
from dagad._tracing.wide_numbers import is_narrow
from dagad._types import Argnums, Args, Array, Axis, DType, Function, Kwargs, Shape, Value
from dagad._values import pytree

plain = pytree.plain


# Signals and interpolation


def _array(x: Array) -> Any:
    return x if isbox(x) else np.asarray(x)


def _steps(x: Array) -> Any:
    return x[..., 1:] - x[..., :-1]


def _in_one_period(x: Array, xp: Array, fp: Array, period: Array) -> tuple[Any, Any, Any]:
    """Return points and sorted knots in one period, with those before and after."""
    xp = anp.mod(xp, period)
    order = np.argsort(plain(xp))
    xp, fp = xp[order], _array(fp)[order]
    ends = xp[-1:] - period, xp[:1] + period
    return anp.mod(x, period), anp.concatenate([ends[0], xp, ends[1]]), anp.concatenate([fp[-1:], fp, fp[:1]])


def _interp(x: Array, xp: Array, fp: Array, left: Array = None, right: Array = None, period: Array = None) -> Any:
    if period is not None:
        x, xp, fp = _in_one_period(x, xp, fp, abs(period))
        left = right = None
    at, knots = plain(x), np.asarray(plain(xp))
    low = np.clip(np.searchsorted(knots, at, "right") - 1, 0, len(knots) - 2)
    xp, fp = anp.array(xp), anp.array(fp)
    if len(knots) == 1:
        found = fp[0] + 0.0 * anp.array(x)
    else:
        slope = (fp[low + 1] - fp[low]) / (xp[low + 1] - xp[low])
        found = fp[low] + slope * (x - xp[low])
    found = anp.where(at < knots[0], fp[0] if left is None else left, found)
    return anp.where(at > knots[-1], fp[-1] if right is None else right, found)


def _convolve_part(func: Function, n: int, m: int, mode: str) -> slice:
    """Return which part of a full convolution a mode keeps, from where it has one entry of two unit vectors."""
    whole = np.zeros(n), np.zeros(m)
    whole[0][n // 2] = whole[1][(m - (func is np.convolve)) // 2] = 1.0
    kept, full = (np.flatnonzero(func(*whole, mode))[0] for mode in (mode, "full"))
    return slice(full - kept, full - kept + len(func(*whole, mode)))


@functools.cache
def _convolution() -> Any:
    """Return the full convolution as a primitive: its derivatives are convolutions with what is turned round."""

    def convolution(a: Array, v: Array) -> Any:
        return np.convolve(a, v)

    made = primitive(convolution)
    trace_primitives_map.pop(convolution, None)  # nobody gives this one to numpy

    def part(g: Array, other: Array, own: Array) -> Any:
        start = np.size(plain(other)) - 1
        return numpy_vjps.match_complex(own, made(g, other[::-1])[start : start + np.size(plain(own))])

    defvjp(made, lambda ans, a, v: lambda g: part(g, v, a), lambda ans, a, v: lambda g: part(g, a, v))
    defjvp(made, lambda g, ans, a, v: made(g, v), lambda g, ans, a, v: made(a, g))
    return made


def _convolve(a: Array, v: Array, mode: str = "full") -> Any:
    part = _convolve_part(np.convolve, np.size(plain(a)), np.size(plain(v)), mode)
    return _convolution()(anp.ravel(a), anp.ravel(v))[part]


def _correlate(a: Array, v: Array, mode: str = "valid") -> Any:
    part = _convolve_part(np.correlate, np.size(plain(a)), np.size(plain(v)), mode)
    return _convolve(a, anp.conj(anp.ravel(v))[::-1])[part]


def _gradient(f: Array, *spacing: Any, axis: Axis = None, edge_order: int = 1) -> Any:
    n_dims = np.ndim(plain(f))
    axes = range(n_dims) if axis is None else np.atleast_1d(axis)
    given = list(map(_array, spacing))
    steps = given * len(axes) if len(given) == 1 else given or [1.0] * len(axes)
    found = [_slopes(anp.moveaxis(f, each, -1), step, each, edge_order) for each, step in zip(axes, steps, strict=True)]
    return found[0] if len(found) == 1 else tuple(found)


def _slopes(f: Array, step: Array, axis: int, edge_order: int) -> Any:
    h = _steps(step) if np.ndim(plain(step)) else step * np.ones(f.shape[-1] - 1)
    rise = _steps(f) / h
    inner = (h[1:] * rise[..., :-1] + h[:-1] * rise[..., 1:]) / (h[1:] + h[:-1])
    first, last = rise[..., :1], rise[..., -1:]
    if edge_order == 2:  # straight on from the slopes in the middle of the two steps there
        first = first - h[:1] * (rise[..., 1:2] - first) / (h[:1] + h[1:2])
        last = last + h[-1:] * (last - rise[..., -2:-1]) / (h[-1:] + h[-2:-1])
    return anp.moveaxis(anp.concatenate([first, inner, last], -1), -1, axis)


def _ediff1d(ary: Array, to_end: Array = None, to_begin: Array = None) -> Any:
    ends = [[] if end is None else [anp.ravel(anp.array(end))] for end in (to_begin, to_end)]
    return anp.concatenate([*ends[0], anp.diff(anp.ravel(ary)), *ends[1]])


def _diff(a: Array, n: int = 1, axis: int = -1, prepend: Array = None, append: Array = None) -> Any:
    shape = list(np.shape(plain(a)))
    shape[axis] = 1
    ends = [
        [] if end is None or end is np._NoValue else [end * np.ones(shape) if np.ndim(plain(end)) == 0 else end]
        for end in (prepend, append)
    ]
    whole = anp.concatenate([*ends[0], a, *ends[1]], axis) if any(ends) else a
    for _ in range(n):
        rows = _steps(anp.moveaxis(whole, axis, -1))
        whole = anp.moveaxis(rows, -1, axis)
    return whole


def _linspace(start: Array, stop: Array, num: int = 50, endpoint: bool = True, axis: int = 0) -> Any:
    at = np.arange(num) / max(num - 1 if endpoint else num, 1)
    rise = stop - start
    return anp.moveaxis(start + at.reshape(-1, *[1] * np.ndim(plain(rise))) * rise, 0, axis)


def _trace(a: Array, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: DType = None, out: object = None) -> Any:
    del dtype, out
    return anp.sum(as_gather(np.diagonal, 0)(a, offset, axis1, axis2), axis=-1)


def _outer(a: Array, b: Array) -> Any:
    return anp.ravel(a)[:, None] * anp.ravel(b)[None, :]


def _sinc_slope(ans: Value, x: Array) -> Any:
    small = np.abs(plain(x)) < 1e-2
    at, square = anp.where(small, 1.0, x), (np.pi * x) ** 2
    series = np.pi**2 * x * (-1.0 / 3.0 + square * (1.0 / 30.0 - square / 840.0 + square**2 / 45360.0))
    return anp.where(small, series, (anp.cos(np.pi * x) - anp.sinc(at)) / at)


def _cross(a: Array, b: Array, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Axis = None) -> Any:
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    a, b = anp.moveaxis(a, axisa, -1), anp.moveaxis(b, axisb, -1)
    whole = np.ones(np.broadcast_shapes(np.shape(plain(a)), np.shape(plain(b))))
    return anp.moveaxis(anp.cross(a * whole, b * whole), -1, axisc)


def _by_layout(a: Array, order: str) -> str:
    """Return the order in which an array is read whose own layout decides: "A" or "K"."""
    flags = np.asarray(plain(a)).flags
    if not (flags.c_contiguous or flags.f_contiguous) and order.upper() == "K":
        raise NotDifferentiableError(refusals.of_option("np.ravel", ["order='K'"]))
    return "F" if flags.f_contiguous and not flags.c_contiguous else "C"


def _reshape(a: Array, shape: Shape, order: str = "C", *, copy: bool | None = None) -> Any:
    del copy
    return anp.reshape(a, shape, order=_by_layout(a, order))


def _ravel(a: Array, order: str = "C") -> Any:
    return anp.reshape(a, (-1,), order=_by_layout(a, order))


def _nan_to_num(x: Array, copy: bool = True, nan: Array = 0.0, posinf: Array = None, neginf: Array = None) -> Any:
    del copy
    found = anp.where(np.isnan(plain(x)), nan, x)
    for infinity, filled in ((np.inf, posinf), (-np.inf, neginf)):
        found = anp.where(plain(x) == infinity, 0.0 if filled is None else filled, found)
    return found


def _unwrap(p: Array, discont: Array = None, axis: int = -1, *, period: Array = 2.0 * np.pi) -> Any:
    """Return the angles as they are: jumps by whole turns are constant."""
    del axis
    if isbox(discont) or isbox(period):
        raise NotImplementedError("VJP of unwrap wrt argnums other than 0 not defined")
    return p + 0.0


def _angle(z: Array, deg: bool = False) -> Any:
    is_complex = np.iscomplexobj(plain(z))
    angle = anp.arctan2(anp.imag(z), anp.real(z)) if is_complex else anp.arctan2(0.0, z)
    return angle * (180.0 / np.pi) if deg else angle


def _pad(array: Array, pad_width: Array, mode: str | Function = "constant", **kwargs: Any) -> Any:
    if kwargs.get("reflect_type") == "odd":
        raise NotDifferentiableError(refusals.of_option("np.pad", ["reflect_type='odd'"]))
    if mode in ("edge", "reflect", "symmetric", "wrap"):
        return as_gather(np.pad, 0)(array, pad_width, mode, **kwargs)
    if mode != "constant":
        raise NotDifferentiableError(refusals.of_option("np.pad", [f"mode={mode!r}"]))
    return as_gather(np.pad, 0)(array, pad_width)


def _where(condition: Array, x: Array, y: Array) -> Any:
    whole = np.ones(np.broadcast_shapes(*(np.shape(plain(each)) for each in (condition, x, y))))
    return anp.where(condition, x * whole, y * whole)


def _bincount(x: Array, weights: Array = None, minlength: int = 0) -> Any:
    at = np.asarray(x).astype(np.intp, copy=False)
    return movers()[1](weights, at, (max(int(np.max(at, initial=-1)) + 1, minlength),))


def _histogram(
    a: Array, bins: Array = 10, range: Array = None, density: bool | None = None, weights: Array = None
) -> Any:
    """Return sums of weights and edges; counts, which are whole numbers, never get here."""
    edges = _edges(a, bins, range)
    # By numpy's own edges: the last of those that are made here may be a last bit below the largest number.
    at = bins_of(np.ravel(plain(a)), _edges(plain(a), plain(bins), range))
    weights = np.ones(np.size(at)) if weights is None else weights
    sums = movers()[1](anp.ravel(weights), at, (len(plain(edges)) + 1,))[1:-1]
    return (sums / _steps(edges) / anp.sum(sums) if density else sums), edges


def bins_of(sample: Array, edges: Array) -> Any:
    """Return the numbers of the bins that numbers lie in, from 1; 0 and the one past the last are those outside."""
    at = np.searchsorted(edges, sample, "right")
    return np.where(sample == edges[-1], len(edges) - 1, at)  # the last one holds its end


def _edges(a: Array, bins: Array = 10, range: Array = None, weights: Array = None) -> Any:
    """Return the edges of bins: as given, or in equal steps between the least and the largest number."""
    if np.ndim(plain(bins)) == 1:
        return bins
    found = np.histogram_bin_edges(plain(a), plain(bins), range, plain(weights))
    if range is not None or np.size(plain(a)) == 0 or not isbox(a):
        return found
    low, high = anp.min(a), anp.max(a)
    widened = 0.5 * (plain(low) == plain(high))
    return _linspace(low - widened, high + widened, len(found))


def _i0(x: Array) -> Any:
    from scipy import special  # nobody else here needs it

    return special.i0(x)


DEFINED: dict[Any, Function] = {
    np.bincount: _bincount,
    np.modf: lambda x: (x - anp.trunc(x), anp.trunc(x)),
    np.divmod: lambda x, y: (anp.floor_divide(x, y), anp.mod(x, y)),
    np.trapezoid: trapezoid,
    np.interp: _interp,
    np.convolve: _convolve,
    np.correlate: _correlate,
    np.ediff1d: _ediff1d,
    np.unwrap: _unwrap,
    np.vdot: lambda a, b: anp.sum(anp.conj(anp.ravel(a)) * anp.ravel(b)),
    np.vecdot: lambda a, b, axis=-1: anp.sum(anp.conj(a) * b, axis=axis),
    np.diagflat: lambda v, k=0: anp.diag(anp.ravel(v), k),
    np.logspace: lambda start, stop, num=50, endpoint=True, base=10.0: base ** _linspace(start, stop, num, endpoint),
    np.geomspace: lambda start, stop, num=50, endpoint=True: (
        start * anp.exp(_linspace(0.0, anp.log(stop / start), num, endpoint))
    ),
    np.float_power: anp.power,
    np.histogram: _histogram,
    np.histogram_bin_edges: _edges,
    np.i0: _i0,
} | {
    func: as_gather(func, 0)
    for func in (np.flip, np.take, np.take_along_axis, np.delete, np.resize, np.matrix_transpose)
}
DEFINED |= {np.compress: as_gather(np.compress, 1), np.extract: as_gather(np.extract, 1)}
NEWER: dict[str, Function] = {  # than numpy 2.0
    "cumulative_sum": reduction_rules.cumulative(anp.cumsum, 0.0),
    "cumulative_prod": reduction_rules.cumulative(reduction_rules.cumprod, 1.0),
    "unstack": lambda x, axis=0: as_gather(np.unstack, 0)(x, axis=axis),
    "matvec": lambda a, x: anp.einsum("...ij,...j->...i", a, x),
    "vecmat": lambda x, a: anp.einsum("...i,...ij->...j", anp.conj(x), a),
}


def _always(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    del argnums, ans, args, kwargs
    return True


def _not_flat(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    del argnums, ans, kwargs
    return any(np.ndim(plain(arg)) != 1 for arg in args[:2])


def _not_a_count(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    del argnums, ans
    shift = args[1] if len(args) > 1 else next(iter(kwargs.values()))
    return np.ndim(shift) > 0 or is_narrow(shift)


def _is_real(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    """Return whether a size is that of a real number: autograd's rule divides by it, and is nan at infinity."""
    del argnums, ans, kwargs
    return not np.iscomplexobj(plain(args[0]))


def _from_end(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    """As of autograd 1.9, axes counted from the end are put back in wrong places."""
    del argnums, ans
    axes = args[1] if len(args) > 1 else kwargs.get("axes")
    return axes is not None and min(axes, default=0) < 0


def _of_any_layout(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    """As of autograd 1.9, what comes back is read by its own layout, and not by that of the argument."""
    del argnums, ans
    return str(kwargs.get("order", args[-1])).upper() in ("A", "K")


def _differ(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    del argnums, ans, kwargs
    return bool(np.shape(plain(args[0])) != np.shape(plain(args[1])))


def _has_no_rows(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    """Return whether what is made a matrix has one axis: numpy makes rows of it, and autograd's rule takes all back."""
    del argnums, ans, kwargs
    return np.ndim(plain(args[0])) < 2


def _has_more(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    """Return whether there is more than one argument, as there is none that autograd's rule knows."""
    return len(args) + len(kwargs) > 1


def _grows(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> bool:
    del kwargs
    return any(np.shape(plain(args[argnum])) != np.shape(plain(ans)) for argnum in argnums)


BETTER: dict[Any, tuple[Function, Better]] = {
    np.tile: (as_gather(np.tile, 0), _always),
    np.repeat: (as_gather(np.repeat, 0), _always),
    np.roll: (as_gather(np.roll, 0), _not_a_count),
    np.rollaxis: (as_gather(np.rollaxis, 0), _always),
    np.broadcast_to: (as_gather(np.broadcast_to, 0), _always),
    np.diagonal: (as_gather(np.diagonal, 0), _always),
    np.diag: (as_gather(np.diag, 0), is_deep),
    np.tril: (as_gather(np.tril, 0), _has_no_rows),
    np.triu: (as_gather(np.triu, 0), _has_no_rows),
    np.trace: (_trace, _always),
    np.outer: (_outer, _not_flat),
    np.linspace: (_linspace, _always),
    np.gradient: (_gradient, _always),
    np.diff: (_diff, _always),
    np.nan_to_num: (_nan_to_num, _always),
    np.pad: (_pad, _always),
    np.angle: (_angle, _has_more),
    np.where: (_where, _grows),
    np.transpose: (as_gather(np.transpose, 0), _from_end),
    np.reshape: (_reshape, _of_any_layout),
    np.ravel: (_ravel, _of_any_layout),
    np.cross: (_cross, _differ),
    np.hsplit: (as_gather(np.hsplit, 0), _has_no_rows),
}


ENTRYWISE: dict[Any, tuple[Function | None, ...]] = {
    np.cbrt: (lambda ans, x: 1.0 / (3.0 * ans**2),),
    np.positive: (lambda ans, x: 1.0,),
    np.copysign: (lambda ans, x, y: anp.sign(x) * anp.sign(ans), lambda ans, x, y: 0.0 * y),
    np.fmod: (lambda ans, x, y: 1.0 + 0.0 * ans, lambda ans, x, y: -anp.trunc(x / y)),
    np.ldexp: (lambda ans, x, n: 2.0**n + 0.0 * ans, None),
    np.nextafter: (lambda ans, x, y: 1.0, lambda ans, x, y: 0.0 * y),
    np.heaviside: (lambda ans, x, y: 0.0 * ans, lambda ans, x, y: x == 0.0),
}


def _astype_vjp(argnums: Argnums, ans: Value, args: Args, kwargs: Kwargs) -> Any:
    """Return a pullback that takes plain numbers, too, such as a seed; of real numbers made complex the real part."""
    del argnums, ans, kwargs

    def pulled(g: Array) -> tuple[Any]:
        g = g * np.float64(1.0) if type(plain(g)) is float else shaped(g, args[0])
        return (cast(g, pytree.dtype_of(plain(args[0]))),)

    return pulled


def learn(module: ModuleType) -> bool:
    """Enter all rules."""
    del module
    newer = {getattr(np, name): each for name, each in NEWER.items() if hasattr(np, name)}
    for func, definition in (
        DEFINED | coefficients.DEFINED | fft_rules.DEFINED | reduction_rules.DEFINED | newer
    ).items():
        define(func, *rules_of(func.__name__, definition))
    for func, (definition, better) in (BETTER | fft_rules.BETTER | reduction_rules.BETTER).items():
        define(func, *rules_of(func.__name__, definition), better)
    for func, slopes in ENTRYWISE.items():
        define(func, *entrywise(func.__name__, *slopes))
    for func, slopes in BETTER_SLOPES.items():
        define(func, *entrywise(func.__name__, *slopes), _always)
    for func in (anp.abs, anp.absolute):
        define(func, *entrywise("abs", lambda ans, x: anp.sign(x)), _is_real)
    define(np.sinc, *entrywise("sinc", _sinc_slope), _always)
    define(np.tanh, *TANH, _always)
    define(np.astype, _astype_vjp, None, _always)
    keep_real(np.where, anp.concatenate_args, anp.array_from_args, anp.inner, anp.cross)
    return True


HOMES["numpy"] = learn
