"""Derivatives that dagad's own tapes take instead of autograd's: where those are wrong, or computed again and again.

autograd's tables stay as they are. A better rule stands here beside the rule that it replaces, and is used where a tape
or a push of dagad's would have used that one: a rule that a user gives, whenever that is, is the one that counts.

* ``chi2.pdf`` and ``chi2.logpdf`` have no derivative in x for autograd unless the degrees of freedom are whole.
* The order of a Bessel or polygamma function has the derivative 0 for autograd; it is refused.
* The derivatives of log-gamma and digamma are computed once, and not once per cotangent: counts and shapes have them in
  their likelihoods, and a Hessian pulls each of them many times. The second derivative, the trigamma function, comes
  from scipy as a Hurwitz zeta function, which takes half of a Hessian-vector product of negative-binomial rows; a
  recurrence and the asymptotic series are six times faster, to 4e-15.
* Pushed through ``where``, a branch may be smaller than the value.
* What is pulled back through ``x[index]`` is added to entries one by one.

State: `_VJPS`, `_JVPS`, `_WIDE` (where constants are to be wide) and `_WRONG`, by autograd's own rule; `_NEW_VJPS` and
`_NEW_JVPS`, by the primitive that has no rule. They are filled for numpy when a process first records, for a part of
autograd's scipy when it first does so after it has imported that part, and never changed. `HOMES` has what fills them
until then.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.extend import defjvp_argnums, defvjp, defvjp_argnums, primitive

from dagad._errors import NotDifferentiableError
from dagad._tracing import refusals
from dagad._tracing.private import primitive_jvps, primitive_vjps, trace_primitives_map, unbroadcast_f
from dagad._tracing.wide_numbers import wide_entries
from dagad._types import Args, Array, Cotangent, DType, Function, Kwargs, Leaf, Tangents, Value
from dagad._values import pytree

Better = Callable[[Any, Any, Any, Any], bool]  # of argnums, value, args, kwargs: are autograd's rules wrong?
_VJPS: dict[Any, Any] = {}
_JVPS: dict[Any, Any] = {}
_WIDE: dict[Any, Any] = {}
_WRONG: dict[Any, Callable[[Any, Any], bool]] = {}
_NEW_VJPS: dict[Any, Any] = {}
_NEW_JVPS: dict[Any, Any] = {}


def vjp_rule(fun: Function) -> Any:
    """Return what makes the pullback of a primitive; None where there is nothing."""
    rule = primitive_vjps.get(fun)
    if rule is None:
        return _NEW_VJPS.get(fun)
    better = _VJPS.get(rule)
    return _WIDE.get(rule, rule) if better is None else better


def jvp_rule(fun: Function, args: Args, kwargs: Kwargs) -> Any:
    """Return what pushes through a primitive; None where there is nothing, or it is wrong and a pullback is not."""
    rule = primitive_jvps.get(fun)
    if rule in _WRONG and fun in primitive_vjps and _WRONG[rule](args, kwargs):
        return None
    if rule is None:
        return None if fun in primitive_vjps else _NEW_JVPS.get(fun)
    return _JVPS.get(rule, rule)


def define(function: Function, vjp: Any, jvp: Function | None, better: Better | None = None) -> None:
    """Give a function of numpy's, or a primitive, rules where autograd has none; with `better`, where those are wrong.

    Without a `jvp` forward mode transposes the pullback.
    """
    fun = function if function in primitive_vjps else _traced(function)
    if fun is None:  # newer than this autograd
        return
    if better is None:
        _NEW_VJPS[fun], _NEW_JVPS[fun] = vjp, jvp
        return
    stock = primitive_vjps.get(fun)

    def pulled(argnums: Sequence[int], ans: Value, args: Args, kwargs: Kwargs) -> Any:
        return (vjp if better(argnums, ans, args, kwargs) else stock)(argnums, ans, args, kwargs)

    _replace(_VJPS, primitive_vjps, fun, pulled)
    if jvp is None:
        return
    stock_jvp = primitive_jvps.get(fun)

    def chosen_jvp(argnums: Sequence[int], tangents: Tangents, ans: Value, args: Args, kwargs: Kwargs) -> Any:
        return (jvp if better(argnums, ans, args, kwargs) else stock_jvp)(argnums, tangents, ans, args, kwargs)

    def of_stacks(argnums: Sequence[int], stacks: Sequence[Any], ans: Value, args: Args, kwargs: Kwargs) -> Any:
        return given(argnums, stacks, ans, args, kwargs) if better(argnums, ans, args, kwargs) else None

    given: Any = getattr(jvp, "of_stacks", None)
    if given is not None:
        chosen_jvp.of_stacks = of_stacks  # type: ignore[attr-defined]  # functions have what somebody gives them
    _replace(_JVPS, primitive_jvps, fun, chosen_jvp)


def replace_vjp(fun: Function, vjp: Function) -> None:
    """Give a function a pullback that does what autograd's does, in less time."""
    _replace(_VJPS, primitive_vjps, fun, vjp)


def own_primitive(raw: Callable[..., Any], vjp: Function, jvp: Function) -> Callable[..., Any]:
    """Return a function of our own as a primitive, which autograd has the rules of from the first call on.

    Not before: to import dagad changes nothing. And nobody gives this function to numpy: its name for it is forgotten.
    """
    made = primitive(raw)
    trace_primitives_map.pop(raw, None)

    @functools.wraps(raw)
    def call(*args: Any, **kwargs: Any) -> Any:
        if made not in primitive_jvps:  # the one that is entered last
            defvjp_argnums(made, vjp)
            defjvp_argnums(made, jvp)
        return made(*args, **kwargs)

    return call


def keep_real(*funs: Any) -> None:
    """Let functions send a real cotangent to a real argument that stands beside a complex one.

    What is complex there does harm where the argument was made of complex numbers, by `np.real` or the like.
    """
    for fun in funs:
        rule: Any = primitive_vjps.get(trace_primitives_map.get(fun, fun))
        if is_autograds(rule):
            _VJPS[rule] = _kept_real(_VJPS.get(rule, rule))


def compute_wide(*funs: Any) -> None:
    """Let functions of entries compute with constants that are as wide as their value; see `wide_numbers`."""
    for fun in funs:
        rule: Any = primitive_vjps.get(fun)
        if rule is not None and is_autograds(rule):
            if rule in _VJPS:
                _VJPS[rule] = _with_wide(_VJPS[rule])
            else:  # a better one may come, which counts
                _WIDE[rule] = _with_wide(rule)


def _with_wide(rule: Function) -> Any:
    def make(argnums: Sequence[int], ans: Value, args: Args, kwargs: Kwargs) -> Any:
        return rule(argnums, ans, [wide_entries(arg, ans) for arg in args], kwargs)

    return make


def _kept_real(rule: Function) -> Any:
    def make(argnums: Sequence[int], ans: Value, args: Args, kwargs: Kwargs) -> Any:
        pull = rule(argnums, ans, args, kwargs)
        if not np.iscomplexobj(pytree.plain(ans)):
            return pull
        return lambda g: tuple(shaped(part, args[at]) for at, part in zip(argnums, pull(g), strict=True))

    return make


def shaped(cotangent: Cotangent, leaf: Leaf) -> Any:
    """Return a cotangent of a real leaf as a real one."""
    odd = np.iscomplexobj(pytree.plain(cotangent)) > np.iscomplexobj(pytree.plain(leaf))
    return anp.real(cotangent) if odd else cotangent


def cast(x: Array, dtype: DType) -> Any:
    """Return an array, or a number, as another type: numpy 2.0 takes arrays only."""
    if isinstance(pytree.plain(x), np.ndarray):
        return anp.astype(x, dtype)
    return anp.astype(anp.reshape(x, (1,)), dtype)[0]


_LOADED = sys.modules.keys()  # as they are whenever somebody looks


def learn_rules() -> bool:
    """Take up the parts of scipy that somebody has imported; costs a look otherwise. Return whether there were any."""
    if _LOADED.isdisjoint(HOMES):  # nearly always
        return False
    found = False
    for home, read in list(HOMES.items()):
        module = sys.modules.get(home)
        if module is not None and not _is_half_made(module) and read(module):
            HOMES.pop(home, None)
            found = True
    if found:  # some import others
        learn_rules()
    return found


def learns_from(error: Exception | None) -> bool:
    """Return whether rules were lacking that are known now: what was refused may be tried again."""
    return isinstance(error, NotDifferentiableError) and learn_rules()


def _is_half_made(module: ModuleType) -> bool:
    """Return whether a module is being imported just now, by another thread: it lacks what it will have."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))  # Python asks that itself


def _replace(table: dict[Any, Any], rules: dict[Any, Any], fun: Function, better: Function) -> None:
    """Put a better rule beside autograd's own; a user's is not to be replaced."""
    rule = rules.get(fun)
    if rule is not None and is_autograds(rule):
        table.setdefault(rule, better)


def is_autograds(rule: Function) -> bool:
    """Return whether a rule of autograd's tables has been put there by autograd itself."""
    parts = [cell.cell_contents for cell in getattr(rule, "__closure__", None) or ()]
    parts = [each for part in parts for each in (part.values() if isinstance(part, dict) else (part,))]
    functions = [part for part in parts if isinstance(part, FunctionType) and not hasattr(part, "fun")]
    return all(str(function.__module__).startswith("autograd.") for function in (rule, *functions))


def stock_rules(table: Mapping[Any, Any], *funs: Function) -> dict[Any, Any]:
    """Return autograd's own rules of some primitives, None where a user has given one before dagad was imported."""
    return {fun: table[fun] if is_autograds(table[fun]) else None for fun in funs}


def _in_first(fun: Function, rule: Callable[..., Any]) -> Any:
    """Return what makes the pullback of a primitive that has a derivative in its first argument only."""

    def make(argnums: Sequence[int], ans: Value, args: Args, kwargs: Kwargs) -> Any:
        if tuple(argnums) != (0,):
            _refuse(fun, argnums)
        pull = rule(ans, *args, **kwargs)
        return lambda cotangent: (pull(cotangent),)

    return make


def _not_in_order(fun: Function) -> Any:
    """Return what makes the pullback of a primitive whose first argument is an order.

    As of autograd 1.9, its own forgets that there may be more orders than points.
    """
    rule: Any = primitive_vjps.get(fun)

    def make(argnums: Sequence[int], ans: Value, args: Args, kwargs: Kwargs) -> Any:
        if 0 in argnums:
            _refuse(fun, argnums)
        pull = rule(argnums, ans, args, kwargs)
        return lambda g: tuple(unbroadcast_f(args[at], _same)(part) for at, part in zip(argnums, pull(g), strict=True))

    return make


def _same(part: Cotangent) -> Any:
    return part


def _refuse(fun: Function, argnums: Sequence[int]) -> None:
    raise NotImplementedError(f"VJP of {fun.__name__} wrt argnums {tuple(argnums)} not defined")


# Numpy


def _where(argnums: Sequence[int], tangents: Sequence[Any], ans: Value, args: Args, kwargs: Kwargs) -> Any:
    """Push through `where`: autograd's own rule forgets that a branch may be smaller than the value."""
    del ans, kwargs
    moving = dict(zip(argnums, tangents, strict=True))
    dtype = np.result_type(*map(pytree.plain, tangents))
    filled = [moving.get(index, np.zeros(np.shape(pytree.plain(args[index])), dtype)) for index in (1, 2)]
    return anp.where(args[0], *filled)


def _several_axes(args: Args, kwargs: Kwargs) -> bool:
    """As of autograd 1.9, several axes counted from the end are put back in wrong places."""
    return isinstance(kwargs.get("axis", args[1] if len(args) > 1 else None), tuple)


def _not_flat(args: Args, kwargs: Kwargs) -> bool:
    """As of autograd 1.9, what is sorted is taken for flat."""
    del kwargs
    return bool(np.ndim(pytree.plain(args[0])) != 1)


def _not_linear(args: Args, kwargs: Kwargs) -> bool:
    """As of autograd 1.9, padding is taken for linear in every mode."""
    return kwargs.get("mode", args[2] if len(args) > 2 else None) in {"maximum", "median", "minimum"}


def _traced(function: Function) -> Any:
    """Return the primitive of a function of numpy's; some of those in `autograd.numpy` are wrappers of it."""
    return trace_primitives_map.get(function)


_replace(_JVPS, primitive_jvps, _traced(np.where), _where)
for _name in ("max", "min", "amax", "amin", "var", "std"):
    _replace(_WRONG, primitive_jvps, _traced(getattr(np, _name)), _several_axes)
for _name in ("sort", "partition"):
    _replace(_WRONG, primitive_jvps, _traced(getattr(np, _name)), _not_flat)
_replace(_WRONG, primitive_jvps, _traced(np.pad), _not_linear)


# Scipy: each reads a module, and returns whether it was there as a whole; another thread may be importing it


def _special(special: ModuleType) -> bool:
    if getattr(special, "logsumexp", None) not in primitive_jvps:  # the last one
        return False
    for fun, derivative in (
        (special.gammaln, special.psi),
        (special.psi, traced_trigamma(special)),
        (special.digamma, traced_trigamma(special)),
    ):
        _replace(_VJPS, primitive_vjps, fun, _in_first(fun, _once(derivative)))
    for fun in (special.polygamma, special.jn, special.iv):
        _replace(_VJPS, primitive_vjps, fun, _not_in_order(fun))
    _replace(_WRONG, primitive_jvps, special.logsumexp, _several_axes)
    compute_wide(*(getattr(special, name) for name in _OF_SEVERAL))
    return True


_OF_SEVERAL = "beta betainc betaln gammainc gammaincc ive iv jn polygamma yn".split()
_OF_A_DISTRIBUTION = "pdf cdf sf logpdf logcdf logsf pmf logpmf entropy".split()


def read_distribution(module: ModuleType) -> bool:
    """Let autograd's own rules of a distribution compute with constants that are wide enough."""
    compute_wide(*(vars(module)[name] for name in _OF_A_DISTRIBUTION if name in vars(module)))
    return True


def _chi2(chi2: ModuleType) -> bool:
    if getattr(chi2, "pdf", None) not in primitive_vjps:  # the last one
        return False

    def slope(x: Array, df: Array) -> Any:
        return (df - x - 2) / (2 * x)

    def of_pdf(ans: Value, x: Array, df: Array) -> Any:
        return unbroadcast_f(x, lambda g: g * ans * slope(x, df))

    def of_logpdf(ans: Value, x: Array, df: Array) -> Any:
        del ans
        return unbroadcast_f(x, lambda g: g * slope(x, df))

    _replace(_VJPS, primitive_vjps, chi2.pdf, _in_first(chi2.pdf, of_pdf))
    _replace(_VJPS, primitive_vjps, chi2.logpdf, _in_first(chi2.logpdf, of_logpdf))
    return read_distribution(chi2)


def _distributions(stats: ModuleType) -> bool:
    """Take up those that have nothing else; one look is enough for all, as they are imported together."""
    return all([read_distribution(vars(stats)[name]) for name in _OTHERS if name in vars(stats)])


_OTHERS = "beta dirichlet gamma multivariate_normal poisson t".split()
# Those parts that have not been taken up yet, by the names of modules.
HOMES: dict[str, Callable[[Any], bool]] = {
    "autograd.scipy.special": _special,
    "autograd.scipy.stats.chi2": _chi2,
    "autograd.scipy.stats": _distributions,
}


def _once(derivative: Callable[[Any], Any]) -> Any:
    """Return the rule of a function of one argument that computes its derivative when it is first pulled."""

    def rule(ans: Value, x: Array) -> Callable[[Any], Any]:
        del ans
        found: list[Any] = []

        def pull(cotangent: Cotangent) -> Any:
            if not found:
                found.append(derivative(x))
            return cotangent * found[0]

        return pull

    return rule


@functools.cache
def traced_trigamma(special: ModuleType) -> Any:
    """Return the trigamma function as a primitive: its derivative comes from autograd's special functions."""
    traced = primitive(trigamma)
    defvjp(traced, lambda ans, x: lambda g: g * special.polygamma(2, x))
    return traced


# Terms B(2k) / x**(2k + 1) of the asymptotic series, from the last one; after Abramowitz and Stegun, 6.4.12.
_BERNOULLI = (-691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6)
_SHIFTS = 8  # by 6.4.6: from 8 on the series is good to the last bits


def trigamma(x: Array) -> Any:
    """Return the second derivative of the log-gamma function."""
    if np.iscomplexobj(x):
        raise NotDifferentiableError(refusals.of_function("digamma", " of complex numbers"))
    at = np.asarray(x, float)
    if np.any(at <= 0):  # poles, and the reflection formula: rare enough to leave them to scipy
        from scipy.special import polygamma

        total = polygamma(1, at)
    else:
        total, shifted = np.zeros_like(at), at.copy()
        for _ in range(_SHIFTS):
            total += 1.0 / (shifted * shifted)
            shifted += 1.0
        inverse = 1.0 / shifted
        square, series = inverse * inverse, np.zeros_like(at)
        for number in _BERNOULLI:
            series = (series + number) * square
        total += inverse * (1.0 + inverse * 0.5 + series)
    dtype = getattr(x, "dtype", None)
    return np.asarray(total, dtype if dtype is not None and dtype.kind == "f" else float)[()]
