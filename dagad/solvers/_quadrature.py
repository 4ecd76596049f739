"""`quad` of scipy.integrate, with derivatives in the limits and in what the integrand is made of.

An integral of arrays is one node on the tape of whoever traces its limits or parameters. Forward mode integrates the
integrand's tangents, reverse mode its pullback at a cotangent: integrals of arrays again, which others may trace.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import autograd.numpy as anp
import numpy as np

from dagad._engines.elsewhere import refuse_numbers
from dagad._errors import NotDifferentiableError
from dagad._kernels.context import are_directions_divided, refuse_divided
from dagad._tracebacks import public
from dagad._tracing import equalities
from dagad._tracing.embedded import Trace, innermost
from dagad._tracing.flat_functions import Leaves
from dagad._tracing.forward import TangentNode
from dagad._tracing.operands import array_of
from dagad._tracing.patches import patches
from dagad._tracing.private import isbox
from dagad._tracing.recalled import left_to_others
from dagad._tracing.rules import learn_rules, shaped
from dagad._tracing.tape import TapeNode, pull, refuse_stale, traceable, traced
from dagad._tracing.traced_array import new_box
from dagad._types import Args, Array, Cotangent, Value
from dagad._values import pytree
from dagad.solvers._given import Given, compare_at, is_anything_traced, plain, refuse_traced_options

# From a place to what is integrated, a flat array.
Field = Callable[[Any], Any]
A, B, PARAMS = range(3)  # where they stand among the leaves


class Settings(NamedTuple):
    """How exact an integral of arrays is to be, and where its integrand has edges."""

    epsabs: float
    epsrel: float
    limit: int
    points: Any


class Integrand(Protocol):
    """A function of one number that depends on parameters.

    Attributes
    ----------
    sizes
        How large each of its entries is when its parameters move by their own size: errors are measured by that.
    """

    sizes: np.ndarray

    def field(self, params: Sequence[Any]) -> contextlib.AbstractContextManager[Field]:
        """Give the integrand at some parameters, for as long as it is needed."""


class Written:
    """The user's integrand: one number."""

    sizes = np.ones(1)

    def __init__(self, call: Given) -> None:
        self._call, self._is_compared = call, False

    @contextlib.contextmanager
    def field(self, params: Sequence[Any]) -> Iterator[Field]:
        """Give the integrand; see `Integrand.field`."""
        fun, args = self._call.at(params)
        before, last = equalities.count(), None

        def integrand(x: Array) -> Any:
            nonlocal last
            last = x
            found = array_of(fun(x, *args))
            refuse_stale(found, "What an integrand returned")
            return anp.reshape(found, (1,))

        with left_to_others():
            yield integrand
        if equalities.count() != before and last is not None and not self._is_compared:
            self._is_compared = True
            compare_at([(0.0, last)], self._of_two, params, "quad")

    def _of_two(self, params: Sequence[Any]) -> Callable[[Any, Any], Any]:
        fun, args = self._call.at(params)
        return lambda _, x: anp.reshape(array_of(fun(x, *args)), (1,))


class TangentIntegrand:
    """The tangents of an integrand, one for each direction: the parameters at `moving` move."""

    def __init__(self, below: Integrand, moving: Sequence[int], scales: Sequence[float]) -> None:
        self._below, self._moving = below, tuple(moving)
        self._count = len(scales)
        self.sizes = np.concatenate([below.sizes / scale for scale in scales])

    @contextlib.contextmanager
    def field(self, params: Sequence[Any]) -> Iterator[Field]:
        """Give the tangents, whose trace is open for as long; see `Integrand.field`."""
        each = len(self._moving)
        n_below = len(params) - each * self._count
        boxed = list(params[:n_below])
        learn_rules()
        with patches.new_trace() as level:
            for index, position in enumerate(self._moving):
                node = TangentNode.new_root(list(params[n_below + index :: each]))
                boxed[position] = new_box(traceable(boxed[position]), level, node)
            with self._below.field(boxed) as field:
                yield functools.partial(self._tangents, field, level)

    def _tangents(self, field: Field, level: int, x: Array) -> Any:
        found, nothing = traced(field, x), np.zeros(len(self.sizes) // self._count)
        if not (isbox(found) and found._trace == level):
            return np.zeros(len(self.sizes))
        return anp.concatenate([nothing if part is None else part for part in found._node.g])


class Pulled:
    """The cotangents of the parameters at `moving`, for a cotangent of the integrand, which is its last parameter."""

    def __init__(self, below: Integrand, params: Sequence[Any], moving: Sequence[int]) -> None:
        self._below, self._moving = below, tuple(moving)
        lengths = [np.abs(np.ravel(pytree.plain(params[position]))) for position in moving]
        self.sizes = np.concatenate([np.where(length > 0, length, 1.0) for length in lengths])

    @contextlib.contextmanager
    def field(self, params: Sequence[Any]) -> Iterator[Field]:
        """Give the cotangents, whose trace is open for as long; see `Integrand.field`."""
        *boxed, seed = params
        leaves = [traceable(boxed[position]) for position in self._moving]
        learn_rules()
        with patches.new_trace() as level:
            roots = [TapeNode.new_root() for _ in leaves]
            for position, leaf, root in zip(self._moving, leaves, roots, strict=True):
                boxed[position] = new_box(leaf, level, root)
            with self._below.field(boxed) as field:
                yield functools.partial(self._cotangents, field, level, seed, leaves, roots)

    def _cotangents(self, field: Field, level: int, seed: Cotangent, leaves: Leaves, roots: Leaves, x: Array) -> Any:
        found = traced(field, x)
        if not (isbox(found) and found._trace == level):
            return np.zeros(len(self.sizes))
        parts = pull([found._node], [shaped(seed, found._value)], roots, leaves)
        return anp.concatenate([anp.reshape(part, (-1,)) for part in pytree.filled(parts, leaves)])


class Problem(NamedTuple):
    """An integral, but for its leaves ``[a, b, *parameters]``; `known` is its value, where that is known."""

    integrand: Integrand
    settings: Settings
    known: Any = None


def integral(problem: Problem, leaves: Sequence[Any]) -> Any:
    """Return an integral, a flat array: a differentiable function of the leaves."""
    trace = innermost(leaves)
    if trace is None:
        return _integrated(problem, leaves) if problem.known is None else problem.known
    value = integral(problem, trace.below)
    if not trace.moves:
        return trace.pulled([value], functools.partial(_pulled, problem, trace))[0]
    refuse_divided(are_directions_divided())
    tangents, count = trace.tangents()
    return trace.with_tangents(value, _jvp(problem, trace.below, tangents, count))


def _jvp(problem: Problem, leaves: Sequence[Any], tangents: dict[int, list[Any]], count: int) -> list[Any]:
    """Return the tangents of an integral, from those of its leaves; None is zero."""
    n = len(problem.integrand.sizes)
    tangents_out: list[Any] = [np.zeros(n)] * count
    moving = [position for position in tangents if position >= PARAMS]
    if moving:
        dense = {
            position: [pytree.zeros_like(leaves[position]) if part is None else part for part in tangents[position]]
            for position in moving
        }
        directions = [dense[position][number] for number in range(count) for position in moving]
        scales = [_scale(leaves, {position: dense[position][number] for position in moving}) for number in range(count)]
        integrand = TangentIntegrand(problem.integrand, [position - PARAMS for position in moving], scales)
        together = integral(Problem(integrand, problem.settings), [*leaves, *directions])
        tangents_out = [together[n * number : n * (number + 1)] for number in range(count)]
    for position, sign in ((A, -1.0), (B, 1.0)):
        if position in tangents:
            height = sign * _at_limit(problem, leaves, position)
            pairs = zip(tangents_out, tangents[position], strict=True)
            tangents_out = [one if part is None else one + height * part for one, part in pairs]
    return tangents_out


def _scale(leaves: Sequence[Any], direction: dict[int, Any]) -> float:
    """Return the size of a direction beside that of what moves along it."""
    size = length = 0.0
    for position, part in direction.items():
        part, leaf = (np.abs(np.ravel(pytree.plain(each))) for each in (part, leaves[position]))
        size = max(size, np.max(part, initial=0.0))
        length = max(length, np.max(leaf[part > 0], initial=0.0))
    return float(size / (length or 1.0)) or 1.0


def _at_limit(problem: Problem, leaves: Sequence[Any], position: int) -> Any:
    """Return the integrand at a limit; zero at an infinite one, or there would be no integral."""
    if np.isinf(pytree.plain(leaves[position])):
        return np.zeros(len(problem.integrand.sizes))
    with problem.integrand.field(leaves[PARAMS:]) as field:
        return field(leaves[position])


def _pulled(problem: Problem, trace: Trace, cotangent: Cotangent) -> tuple[Any, ...]:
    leaves, found = trace.below, {}
    for position, sign in ((A, -1.0), (B, 1.0)):
        if position in trace.nodes:
            height = anp.sum(cotangent * _at_limit(problem, leaves, position))
            found[position] = sign * shaped(height, pytree.plain(leaves[position]))
    moving = [position for position in trace.nodes if position >= PARAMS]
    if moving:
        params = leaves[PARAMS:]
        integrand = Pulled(problem.integrand, params, [position - PARAMS for position in moving])
        together, start = integral(Problem(integrand, problem.settings), [*leaves, cotangent]), 0
        for position in moving:
            shape = np.shape(pytree.plain(leaves[position]))
            stop = start + int(np.prod(shape, dtype=int))
            part = together[start:stop]
            found[position] = anp.reshape(shaped(part, pytree.plain(leaves[position])), shape) if shape else part[0]
            start = stop
    return tuple(found[position] for position in trace.nodes)


def _integrated(problem: Problem, leaves: Sequence[Any]) -> Any:
    """Return an integral of plain values: an array by `quad_vec`, where it succeeds, else each number by `quad`."""
    a, b, settings, sizes = float(leaves[A]), float(leaves[B]), problem.settings, problem.integrand.sizes
    if not len(sizes) or a == b:
        return np.zeros(len(sizes))
    with problem.integrand.field(leaves[PARAMS:]) as field:
        if len(sizes) == 1:
            with contextlib.suppress(_ComplexError):
                return _one_by_one(field, a, b, settings, sizes)
        try:
            found, error, facts = _together(field, min(a, b), max(a, b), settings, sizes)
        except Exception:  # of an integrand that `quad`, whose places are others, may never ask there
            facts = None
        if facts is None or not facts.success:
            with contextlib.suppress(_ComplexError):
                return _one_by_one(field, a, b, settings, sizes)
        if facts is None:
            found, error, facts = _together(field, min(a, b), max(a, b), settings, sizes)
        found = found if a < b else -found
    _check(np.max(np.abs(found)), error, [] if facts.success else [facts.message], settings)
    return found / sizes


def _together(field: Field, low: float, high: float, settings: Settings, sizes: np.ndarray) -> Any:
    """Return what `quad_vec` says of an integral, from below, where it looks for the points."""
    from scipy import integrate

    options = settings._asdict() | {"limit": 10_000, "norm": "max", "full_output": True}
    with np.errstate(divide="ignore", invalid="ignore"):  # it comes as near to a singular end as numbers do
        return integrate.quad_vec(lambda x: field(x) * sizes, low, high, **options)


class _ComplexError(Exception):
    """Raised where an integrand turns out to be complex: no place is known beforehand at which it may be asked."""


def _real(field: Field, index: int, x: float) -> Any:
    found = field(x)
    if np.iscomplexobj(found):
        raise _ComplexError
    return found[index]


def _one_by_one(field: Field, a: float, b: float, settings: Settings, sizes: np.ndarray) -> Any:
    """Return an integral of real numbers by `quad`, which knows how singular ends go on."""
    from scipy import integrate

    integrals = []
    for index, size in enumerate(sizes):
        options: Any = {**settings._asdict(), "epsabs": settings.epsabs / size, "full_output": 1}
        found, error, _, *trouble = integrate.quad(functools.partial(_real, field, index), a, b, **options)
        _check(found, error, trouble, settings)
        integrals.append(found)
    return np.array(integrals)


def _check(value: Value, error: float, trouble: Sequence[Any], settings: Settings) -> None:
    """Refuse to differentiate an integral that scipy complains of, unless its error is as small as was asked for."""
    if trouble and not error <= max(settings.epsabs, settings.epsrel * abs(value)):
        said = " ".join(str(trouble[0]).split()).rstrip(".")
        raise NotDifferentiableError(
            f"An integral is being differentiated, and scipy says of it, or of what it takes: {said}. Name the "
            "places where the integrand has edges by `points=`, split the interval there, or raise `limit`."
        )


@public
def quad(
    func: Callable[..., Any],
    a: Array,
    b: Array,
    args: Args = (),
    full_output: int = 0,
    epsabs: float = 1.49e-8,
    epsrel: float = 1.49e-8,
    limit: int = 50,
    points: Array = None,
    weight: object = None,
    **options: Any,
) -> Any:
    """Integrate a function between two limits as `scipy.integrate.quad` does, with derivatives.

    The values are scipy's own. Derivatives are those of the integral, in both limits and in whatever values `func`
    takes from `args` or from where it was defined, of any order, in every mode.

    Derivatives are taken under the integral. Where the integrand jumps at a place that depends on a parameter, as
    ``np.where(x < edge, f, g)`` does, the place moves too, of which they know nothing: write two integrals, up to the
    edge and from it on, as limits have derivatives. A kink, as that of ``np.maximum(x - edge, 0.0)``, does no harm.

    Parameters
    ----------
    func
        The integrand, ``func(x, *args)``, written with numpy.
    a, b
        The limits; they may be infinite.
    args
        Further arguments of `func`.
    full_output, epsabs, epsrel, limit
        As scipy takes them; the tolerances go for derivatives too, scaled by their parameters.
    points
        Places in between where the integrand has edges or is singular; they have no derivative.
    weight, options
        What scipy takes, for plain values only.

    Returns
    -------
    tuple
        The integral, which is differentiable, and scipy's estimate of its error; more with `full_output`.

    Raises
    ------
    NotDifferentiableError
        If a derivative is asked for with a `weight` or in `points`, or of an integral that scipy has not found.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.solvers import quad
    >>> def gaussian(width, end):
    ...     return quad(lambda x: np.exp(-0.5 * (x / width) ** 2), -np.inf, end)[0]
    >>> of_width, of_end = dagad.grad(gaussian, (0, 1))(2.0, 0.0)
    >>> print(round(float(of_width), 6), round(np.sqrt(np.pi / 2.0), 6), float(of_end))
    1.253314 1.253314 1.0
    """
    from scipy import integrate

    stock: dict[str, Any] = {"epsabs": epsabs, "epsrel": epsrel, "limit": limit, "points": points}
    refuse_numbers("`dagad.solvers.quad`", func, a, b, args, points, options)
    if not patches.somebody_traces():
        return integrate.quad(func, a, b, args, full_output, weight=weight, **stock, **options)
    call = Given(func, args if isinstance(args, tuple) else (args,))
    refuse_traced_options("quad", {**stock, "points": None, **options})
    if not is_anything_traced(a, b, points, call.params):
        return integrate.quad(func, a, b, args, full_output, weight=weight, **stock, **options)
    call.keep()
    if weight is not None or is_anything_traced(points):
        raise NotDifferentiableError(_WEIGHT if weight is not None else _POINTS)
    for leaf in (a, b, *call.params):
        refuse_stale(leaf, "A value that `quad` is given, or that its integrand carries,")
    bare, arguments = call.plain()
    found = call.after(integrate.quad(bare, plain(a), plain(b), arguments, 1, **stock, **options))
    _check(found[0], abs(found[1]), found[3:], Settings(**stock))
    problem = Problem(Written(call), Settings(**stock), np.array([found[0]]))
    limits = [end if pytree.is_traced(end) else float(end) for end in (a, b)]
    value = integral(problem, [*limits, *call.params])[0]
    return (value, *found[1:]) if full_output else (value, found[1])


_WEIGHT = (
    "An integral with a `weight` is being differentiated. Write the weight into the integrand, and call `quad` without "
    "`weight=`."
)
_POINTS = (
    "A derivative in `points` of an integral was asked for: at an edge of the integrand it is what the integrand jumps "
    "by. Split the interval there, `quad(f, a, c)[0] + quad(f, c, b)[0]`: limits have a derivative."
)
