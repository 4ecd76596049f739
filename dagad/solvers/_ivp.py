"""`solve_ivp` and `odeint` of scipy.integrate, with derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import autograd.numpy as anp
import numpy as np

from dagad._engines.elsewhere import refuse_numbers
from dagad._errors import ArgumentsError, NotDifferentiableError, PlanError
from dagad._tracebacks import public
from dagad._tracing.operands import array_of
from dagad._tracing.patches import patches
from dagad._tracing.tape import refuse_stale
from dagad._types import Args, Array
from dagad._values import pytree
from dagad._values.canonical import snapshots
from dagad._values.closures import closure_convert
from dagad._words import described
from dagad.solvers._equations import Field, Settings, Written, is_implicit, is_kind_of
from dagad.solvers._given import Given, is_anything_traced, plain, refuse_traced_options, taken
from dagad.solvers._integration import check_solved, solved
from dagad.solvers._jacobians import pattern_of
from dagad.solvers._lsoda import stock_odeint
from dagad.solvers._stepping import quick
from dagad.solvers._trajectory import MOVING, T0, Moments, Problem, adjoint_in_directions, solution, spread

SENSITIVITIES = ("auto", "forward", "adjoint")
# Up to so many states a sparse `jac` does not say where the Jacobian is zero: it may leave out what is so at the start.
DENSE = 100


class _RightHandSide:
    """Makes the right-hand side of an equation, from its parameters."""

    def __init__(self, call: Given, is_vectorized: bool, is_time_second: bool = False) -> None:
        self._call, self._is_vectorized, self._is_time_second = call, is_vectorized, is_time_second
        self.points: list[tuple[Any, Any]] = []

    @property
    def remembers(self) -> bool:
        """Whether what the user has written changes what it reads."""
        return self._call.remembers

    @property
    def key(self) -> Any:
        """What is the same for right-hand sides that compute the same; None where their code does not tell."""
        key = self._call.key
        return None if key is None else (key, self._is_vectorized, self._is_time_second)

    def written(self, params: Sequence[Any]) -> Field:
        """Return the right-hand side for some parameters, as the user has written it."""
        fun, args = self._call.at(params)
        if self._is_vectorized:
            return lambda t, y: anp.ravel(array_of(fun(t, y[:, None], *args)))
        if self._is_time_second:
            return lambda t, y: fun(y, t, *args)
        return (lambda t, y: fun(t, y, *args)) if args else fun

    def __call__(self, params: Sequence[Any]) -> Field:
        written = self.written(params)
        points: list[tuple[Any, Any]] = []
        self.points, count, noted = points, 0, 1

        def field(t: Array, y: Array) -> Any:
            nonlocal count, noted
            count += 1
            if count == noted:  # some, more and more seldom; copies, as LSODA writes all states into one array
                noted *= 2
                points.append((plain(t), np.array(plain(y))))
            return written(t, y)

        return field


def check_sensitivity(sensitivity: object) -> None:
    """Refuse what is no way to find sensitivities."""
    if sensitivity not in SENSITIVITIES:
        raise PlanError(
            f'`sensitivity={sensitivity!r}` is no way to differentiate a solution. Give "forward", "adjoint" or "auto".'
        )


@public
def solve_ivp(
    fun: Callable[..., Any],
    t_span: Sequence[Any],
    y0: Array,
    method: object = "RK45",
    t_eval: Array = None,
    dense_output: bool = False,
    events: object = None,
    vectorized: bool = False,
    args: Args = None,
    *,
    sensitivity: str = "auto",
    **options: Any,
) -> Any:
    """Solve an initial value problem as `scipy.integrate.solve_ivp` does, with derivatives.

    The values are scipy's own. Derivatives are those of the solution: in `y0`, in both ends of `t_span`, in `t_eval`,
    and in whatever values `fun` takes from `args` or from where it was defined. They are found by scipy's method too,
    with the same tolerances; those of a sensitivity are scaled by its parameter. All modes, of any order.

    Parameters
    ----------
    fun
        The right-hand side, ``fun(t, y, *args)``, written with numpy.
    t_span
        Where the integration begins and ends.
    y0
        The state at the beginning: an array, or a list of numbers.
    method
        "RK45", "RK23", "DOP853", "Radau", "BDF", "LSODA" or a class of solvers, as scipy takes it.
    t_eval
        Times at which the solution is wanted; None for the steps of the method.
    dense_output
        Whether to return the solution as a function of time, too.
    events
        Functions whose zeros are looked for: for plain values only.
    vectorized
        Whether `fun` takes states in columns.
    args
        Further arguments of `fun`, and of the option `jac`.
    sensitivity
        "forward" solves the equations of all sensitivities together with those of the states; "adjoint" solves the
        adjoint equation, backwards in time, whose size doesn't grow with the number of parameters; "auto" takes the one
        that should take less. In forward mode there is no choice.
    options
        What scipy takes: ``rtol``, ``atol``, ``first_step``, ``max_step``, ``jac``, ``jac_sparsity`` and others.

    Returns
    -------
    OdeResult
        What scipy returns. ``y`` is differentiable, ``sol`` where it is called, and ``t`` where times were given, as
        `t_eval` or as ends of `t_span`; the rest is plain.

    Raises
    ------
    ArgumentsError
        If `method` is LSODA within a right-hand side that LSODA is integrating: scipy can't.
    NotDifferentiableError
        If a derivative is asked for with `events`, or scipy did not integrate to the end.
    PlanError
        If `sensitivity` is none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.solvers import solve_ivp
    >>> def left(rate):
    ...     decay = solve_ivp(lambda t, y: -rate * y, (0.0, 2.0), [3.0], rtol=1e-8, atol=1e-8)
    ...     return decay.y[0, -1]
    >>> slope = dagad.grad(left)(0.5)  # of 3 exp(-2 rate)
    >>> print(round(float(slope), 5), round(-6.0 * np.exp(-1.0), 5))
    -2.20728 -2.20728
    """
    check_sensitivity(sensitivity)
    refuse_numbers("`dagad.solvers.solve_ivp`", fun, t_span, y0, t_eval, events, args, options)
    stock = {"t_eval": t_eval, "dense_output": dense_output, "events": events, "vectorized": vectorized, "args": args}
    if not patches.somebody_traces():
        return solved(fun, t_span, y0, method=method, **stock, **options)
    (start, end), call = _ends(t_span), Given(fun, _as_tuple(args), *filter(callable, (method, options.get("jac"))))
    y0, t_eval = array_of(pytree.all_opened(y0)), array_of(pytree.all_opened(t_eval))
    refuse_traced_options("solve_ivp", options)
    is_traced = is_anything_traced(start, end, y0, t_eval, call.params, closure_convert(events)[0])
    if not is_traced and (not dense_output or events is not None):  # else a time may be traced that comes later
        return solved(fun, t_span, y0, method=method, **stock, **options)
    call.keep()
    if events is not None:
        raise NotDifferentiableError(_EVENTS)
    _refuse_stale([start, end, y0, t_eval, *call.params], "solve_ivp")
    bare, arguments = call.plain()
    own, state = options | _plain_jacobian(options, args), taken(y0)
    may_go_back = _may_be_adjoint(sensitivity, method, [y0, *call.params])
    stock |= {"t_eval": plain(t_eval), "args": arguments or None, "method": method}
    begin = (plain(start), plain(end)), np.array(plain(y0))  # which the solution as a function of time keeps
    found, sensitivity = call.after(_found(may_go_back, sensitivity, bare, *begin, **stock, **own))
    if is_traced:
        check_solved(found, "it")
    if not len(found.t) or found.status != 0:  # no times were asked for, or what is known ends early
        return found
    settings = _settings(method, snapshots(own), begin[0][0], plain(state), arguments)
    atol = np.broadcast_to(settings.options.get("atol", 1e-6), len(found.y))
    equation = Written(_RightHandSide(call, vectorized), settings, atol, "solve_ivp")
    moments, moving = _moments(taken(found.t), start, end, t_eval)
    problem = Problem(equation, moments, sensitivity, found.y, None if found.sol is None else lambda: found.sol)
    return _result(found, problem, [state, start, moving, *call.params], dense_output)


_EVENTS = (
    "A solution of differential equations with `events` is being differentiated, and the time at which an event takes "
    "place would have a derivative of its own. Find the time first, with plain values, and integrate to it without "
    "`events`; where it depends on what is differentiated, write it as a root of `dagad.solvers.root_scalar`, which "
    "solves up to a time: `root_scalar(lambda t: solve_ivp(fun, (t0, t), y0).y[0, -1] - level, bracket=(t1, t2))`."
)


def _found(may_go_back: bool, sensitivity: str, *args: Any, **options: Any) -> tuple[Any, str]:
    """Return what scipy finds, as a function of time too if somebody may go back along it, and how to differentiate."""
    options["method"] = quick(options["method"])
    if not may_go_back or options["dense_output"]:
        return solved(*args, **options), sensitivity
    try:
        return solved(*args, **options | {"dense_output": True}), sensitivity
    except ValueError as error:  # LSODA may end with a step of no length, which scipy has no function of time for
        found = solved(*args, **options)
        if sensitivity == "adjoint":
            raise NotDifferentiableError(_NO_FUNCTION_OF_TIME) from error
    return found, "forward"


_NO_FUNCTION_OF_TIME = (
    "A solution of differential equations is being differentiated by the adjoint equation, which needs the solution as "
    'a function of time, and scipy could not make one of it. Ask for `sensitivity="forward"`, or take another `method`.'
)


def _refuse_stale(leaves: Sequence[Any], name: str) -> None:
    for leaf in leaves:
        refuse_stale(leaf, f"A value that `{name}` is given, or that its function carries,")


def _as_tuple(args: object) -> Any:
    """Return further arguments, refused in scipy's words where they stand in no tuple."""
    args = () if args is None else pytree.open_containers(args)
    if not isinstance(args, tuple | list) and not np.ndim(pytree.plain(args)):
        raise ArgumentsError(
            f"`args` of `solve_ivp` is {described(pytree.plain(args))}, and has to be a tuple of further arguments of "
            "the right-hand side. Write `args=(a,)`, with the comma, for one."
        )
    return args


def _ends(t_span: Array) -> tuple[Any, Any]:
    start, end = pytree.all_opened(t_span)
    return (start if pytree.is_traced(start) else float(start)), (end if pytree.is_traced(end) else float(end))


def _plain_jacobian(options: dict[str, Any], args: Args) -> dict[str, Any]:
    """Return the user's Jacobian without anything traced in it: it steers Newton's method, and is no derivative."""
    jac = options.get("jac")
    return {"jac": Given(jac, () if args is None else args).plain()[0]} if callable(jac) else {}


def _settings(method: object, options: dict[str, Any], start: float, y0: Array, args: tuple[Any, ...]) -> Settings:
    """Return how to integrate, and where the Jacobian is not zero as far as the user says so."""
    jac, pattern, at = options.get("jac"), options.get("jac_sparsity"), None
    if pattern is None and jac is not None and np.size(y0) > DENSE and not is_kind_of(method, "LSODA"):
        pattern = jac(start, y0, *args) if callable(jac) else jac
        pattern = pattern if hasattr(pattern, "toarray") else None
        if pattern is not None and callable(jac):  # an entry that is zero here may be left out of it

            def at(t: float, y: Array) -> Any:
                return jac(t, y, *args)

    pattern = None if pattern is None else pattern_of(pattern)
    return Settings(method, options, options.get("rtol", 1e-3), pattern, at)


def _may_be_adjoint(sensitivity: str, method: object, leaves: Sequence[Any]) -> bool:
    """Return whether the solution between the times may be wanted, to go back along it; the state is the first leaf."""
    if sensitivity != "auto":
        return sensitivity == "adjoint"
    sizes = [np.size(pytree.plain(leaf)) if pytree.is_traced(leaf) else 0 for leaf in leaves]
    n_states = np.size(pytree.plain(leaves[0]))
    return sum(sizes) > adjoint_in_directions(n_states, sum(sizes[1:]), is_implicit(method), 1)


def _moments(times: Array, start: Array, end: Array, t_eval: Array) -> tuple[Moments, Any]:
    """Return when the solution is wanted, and those of these times that are being differentiated."""
    span = abs(pytree.plain(end) - pytree.plain(start))
    if pytree.is_traced(t_eval):
        return Moments(times, np.arange(len(times)), span), t_eval
    if t_eval is None and is_anything_traced(start, end):  # the steps in between stay where they are
        return Moments(times, np.array([0, len(times) - 1]), span), anp.stack([start, end])
    return Moments(times, np.zeros(0, int), span), np.zeros(0)


def _result(found: Any, problem: Problem, leaves: list[Any], dense_output: bool) -> Any:
    result = type(found)(found)
    result.y = solution(problem, leaves)
    moments, moving = problem.moments, leaves[MOVING]
    result.t = np.array(found.t)  # the user's own: that one the solution as a function of time may have
    if len(moments.moving):
        result.t = result.t + anp.dot(moving - plain(moving), spread(moments))
    result.sol = Solution(found.sol, problem, leaves) if dense_output else None
    return result


class Solution:
    """A solution as a function of time: what scipy returns as ``sol``, differentiable between the steps."""

    def __init__(self, stock: Any, problem: Problem, leaves: list[Any]) -> None:
        self._stock, self._problem, self._leaves = stock, problem, leaves

    def __call__(self, t: Array) -> Any:
        """Return the solution at a time, or in columns for several."""
        t = array_of(pytree.all_opened(t))
        at = plain(t)
        known, times = self._stock(at), np.atleast_1d(taken(at))
        first, last = self._stock.t_min, self._stock.t_max
        if not np.all((first <= times) & (times <= last)):  # nan is in no interval
            raise NotDifferentiableError(
                f"A solution was asked for at a time that is not between {first} and {last}, where it is known, and is "
                "being differentiated: what is beyond is a polynomial of the method's. Make `t_span` longer, or see "
                "that the time is no nan."
            )
        moving = np.arange(len(times)) if pytree.is_traced(t) else np.zeros(0, int)
        moments = self._problem.moments._replace(times=times, moving=moving)
        problem = self._problem._replace(moments=moments, known=known.reshape(len(known), -1))
        start, begin, _, *params = self._leaves
        ends = anp.reshape(t, (-1,)) if pytree.is_traced(t) else np.zeros(0)
        found = solution(problem, [start, begin, ends, *params])
        return found if known.ndim > 1 else found[:, 0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked by who copies it, before it is made
            raise AttributeError(name)
        is_of_time = name in ("ts", "t_min", "t_max") and is_anything_traced(self._leaves[T0], self._leaves[MOVING])
        if is_of_time or (name == "interpolants" and is_anything_traced(self._leaves)):
            raise NotDifferentiableError(
                f"`sol.{name}` of a solution was asked for, which is being differentiated, and `{name}` holds plain "
                "numbers of scipy's. Call `sol(t)`, and use the ends of `t_span` as you gave them."
            )
        return getattr(self._stock, name)


@public
def odeint(
    func: Callable[..., Any],
    y0: Array,
    t: Array,
    args: tuple[Any, ...] = (),
    Dfun: object = None,
    col_deriv: int = 0,
    full_output: int = 0,
    *,
    tfirst: bool = False,
    sensitivity: str = "auto",
    **options: Any,
) -> Any:
    """Integrate a system of differential equations as `scipy.integrate.odeint` does, with derivatives.

    The values are scipy's own. Derivatives are those of the solution, in `y0`, in the times and in whatever values
    `func` takes from `args` or from where it was defined; see `solve_ivp`. They are found by LSODA too.

    Parameters
    ----------
    func
        The right-hand side, ``func(y, t, *args)``, written with numpy.
    y0
        The state at the first of the times.
    t
        The times, the first of which is the beginning.
    args
        Further arguments of `func`.
    Dfun, col_deriv, full_output
        As scipy takes them.
    tfirst
        Whether `func` takes the time first.
    sensitivity
        "forward", "adjoint" or "auto"; see `solve_ivp`.
    options
        What scipy takes: ``rtol``, ``atol``, ``hmax`` and others. ``tcrit`` is for plain values only.

    Returns
    -------
    array
        The states, a row for each time; with `full_output` a dict beside it.

    Raises
    ------
    ArgumentsError
        If it is called within a right-hand side that LSODA is integrating: scipy can't.
    NotDifferentiableError
        If a derivative is asked for with ``tcrit``, or scipy did not integrate to the end.
    PlanError
        If `sensitivity` is none of the three.

    Examples
    --------
    >>> import numpy as np
    >>> import dagad
    >>> from dagad.solvers import odeint
    >>> times = np.array([0.0, 1.0, 2.0])
    >>> slopes = dagad.jacfwd(lambda rate: odeint(lambda y, t: -rate * y, 3.0, times)[:, 0])(0.5)
    >>> print(slopes.round(4), (-3.0 * times * np.exp(-0.5 * times)).round(4))
    [ 0.     -1.8196 -2.2073] [-0.     -1.8196 -2.2073]
    """
    check_sensitivity(sensitivity)
    refuse_numbers("`dagad.solvers.odeint`", func, y0, t, args, Dfun, options)
    stock = {"Dfun": Dfun, "col_deriv": col_deriv, "tfirst": tfirst, **options}
    if not patches.somebody_traces():
        return stock_odeint(func, y0, t, args, full_output=full_output, **stock)
    y0, t = array_of(pytree.all_opened(y0)), array_of(pytree.all_opened(t))
    call = Given(func, args if isinstance(args, tuple) else (args,), *filter(callable, [Dfun]))
    refuse_traced_options("odeint", options)
    if not is_anything_traced(y0, t, call.params):
        return stock_odeint(func, y0, t, args, full_output=full_output, **stock)
    call.keep()
    if options.get("tcrit") is not None:
        raise NotDifferentiableError(
            "A solution with `tcrit` is being differentiated. Integrate from one such time to the next, each with a "
            "call of its own, or use `dagad.solvers.solve_ivp` with `max_step`."
        )
    _refuse_stale([y0, t, *call.params], "odeint")
    bare, arguments = call.plain()
    state, times, own = taken(y0), taken(t), snapshots({**options, "tfirst": tfirst})
    if callable(Dfun):
        stock["Dfun"] = Given(Dfun, arguments).plain()[0]
    known, facts = call.after(stock_odeint(bare, plain(y0), plain(t), arguments, full_output=1, **stock))
    if "successful" not in facts["message"] and np.any(plain(t) != plain(t)[0]):  # else nothing is to be done
        raise NotDifferentiableError(
            f"A solution of `odeint` is being differentiated, and scipy says: {facts['message']} Try other tolerances, "
            "or `dagad.solvers.solve_ivp` with another method."
        )
    found = _integrated(call, known, state, times, own, sensitivity)
    return (found, facts) if full_output else found


_TOLERANCE = 1.49012e-8  # of odeint, where none is given
_AS_SOLVE_IVP = {"hmax": "max_step", "hmin": "min_step", "h0": "first_step"}


def _integrated(call: Given, known: Array, y0: Array, t: Array, options: dict[str, Any], sensitivity: str) -> Any:
    """Return what odeint found, as a function of what it depends on."""
    steps = {name: options[own] for own, name in _AS_SOLVE_IVP.items() if options.get(own)}
    rtol, atol = (_TOLERANCE if options.get(name) is None else options[name] for name in ("rtol", "atol"))
    equation = Written(
        _RightHandSide(call, False, not options["tfirst"]),
        Settings("LSODA", steps, rtol),
        np.broadcast_to(atol, known.shape[1]),
        "odeint",
    )
    times = plain(t)
    moving = np.arange(len(times)) if pytree.is_traced(t) else np.zeros(0, int)
    moments = Moments(times, moving, abs(times[-1] - times[0]))
    leaves = [anp.reshape(y0, (-1,)), t[0], t if len(moving) else np.zeros(0), *call.params]
    return anp.transpose(solution(Problem(equation, moments, sensitivity, known.T), leaves))
