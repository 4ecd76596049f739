"""Plain numpy compiled by jax: every function, mode and scheduler, what is refused and how, and what stays numpy's."""

from __future__ import annotations

import cProfile
import gc
import random
import sys
import threading
import warnings
import weakref
from functools import partial
from typing import Any

import autograd.numpy as anp
import dask
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.special
import scipy.stats
from dask.delayed import delayed

import dagad
from dagad._engines.jax import JaxEngine
from dagad._engines.xla import gains, tracing
from dagad._engines.xla.traced import XlaArray
from dagad._engines.xla.tracing import numpy_trace
from dagad._tracing.patches import patches
from dagad._tracing.rules import learn_rules
from support.called import PLAIN, X, evaluated, function, total, weighed
from support.every_mode import MODES, check, numbers
from support.every_operation import OPERATIONS, RIGHT
from support.numpy_calls import FAMILIES, NOT_IN_JAX, calls, is_here

ENGINE = JaxEngine()
ROWS = np.linspace(0.1, 2.0, 24)
BATCH = 8


def at(fun: Any, t: Any = 0.7, rows: Any = ROWS, **options: Any) -> Any:
    """Return value and gradient of a function of rows and parameters, compiled."""
    how: dict[str, Any] = {"grainsize": 6, "scheduler": "sync", "engine": "jax", **options}
    return dagad.value_and_grad(lambda t: dagad.reduce_sum(fun, rows, t, **how))(t)


# --- every function ---------------------------------------------------------------------------------------------------


def traced_alone(call: str) -> None:
    """Trace value and gradient of an expression, compiling nothing."""
    fun = function(call, PLAIN)

    def spoken(x: Any) -> Any:
        with numpy_trace("call", 10_000) as trace:
            return trace.opened(weighed(fun(XlaArray(trace, x)), np))

    with patches, jax.enable_x64(True):
        jax.make_jaxpr(jax.grad(spoken))(X)


def is_refused(call: str) -> bool:
    learn_rules()
    try:
        traced_alone(call)
    except dagad.NotDifferentiableError as error:
        return "leave out `engine=`" in str(error)
    except NotImplementedError:  # of what has no derivative in jax: `traced` says so
        return True
    except ValueError as error:  # the same
        return str(error).startswith("Betainc gradient")
    return False


def batches() -> list[Any]:
    found = []
    for family, text in FAMILIES.items():
        some = [call for call in calls(text) if is_here(call, PLAIN) and call not in NOT_IN_JAX]
        found += [pytest.param(some[at : at + BATCH], id=f"{family} {at}") for at in range(0, len(some), BATCH)]
    return found


@pytest.mark.parametrize("some", batches())
def test_numpy_and_scipy_functions_have_the_same_values_and_gradients_compiled(some: list[str]) -> None:
    functions = [function(call, PLAIN) for call in some]

    def chunk(rows: Any, weights: Any, points: Any) -> Any:
        """Return a sum whose slopes in the weights are the values: one program for all that is compared."""
        return sum(w * weighed(fun(x), np) for w, fun, x in zip(weights, functions, points, strict=True)) * np.sum(rows)

    def compiled(at: Any) -> Any:
        return dagad.reduce_sum(chunk, np.full(1, 2.0), *at, grainsize=1, scheduler="sync", engine="jax")

    values, slopes = dagad.grad(compiled)((np.ones(len(some)), np.tile(X, (len(some), 1))))
    for call, value, slope in zip(some, values, slopes, strict=True):
        right, gradient = dagad.value_and_grad(total(evaluated(call, PLAIN)))(X)
        assert value == pytest.approx(right, rel=1e-12, abs=1e-12), call
        np.testing.assert_allclose(
            slope, gradient, rtol=1e-10, atol=1e-10 * max(1.0, abs(gradient).max()), err_msg=call
        )


def test_functions_that_jax_has_not_are_refused_by_name_and_listed_in_the_guide() -> None:
    every = [call for text in FAMILIES.values() for call in calls(text) if is_here(call, PLAIN) and call in NOT_IN_JAX]
    assert [call for call in every if is_refused(call)] == every  # that no other is refused, the test above shows


# Of rows in single precision numpy has these in double, or the other way round; jax has them in the rows' own.
OTHER_PRECISION = {
    "np.percentile(x, [20.0, 70.0])",
    "np.quantile(m, [0.3, 0.8], axis=0, keepdims=True)",
    "np.nanquantile(hole.reshape(3, 4), [0.3, 0.8], axis=1, keepdims=True)",
    "np.histogram(x, bins=3, density=True)[0]",
    "np.vander(x[:3])",
    "np.cov(m, bias=True)",
    "np.cov(m, ddof=2)",
    "np.cov(m)",
    "np.cov(x, y)",
    "np.cov(m, rowvar=False)",
    "np.corrcoef(m)",
    "np.geomspace(x[0], x[1], 4)",
    "np.geomspace(-x[0], -x[1], 4)",
    "np.geomspace(-x[:2], -8.0, 4)",
    "np.gradient(x[:3], [0.0, 1.0, 3.0])",
    "linalg.det(s)",
    "stats.logistic.logpdf(y, x, x)",
    "stats.gumbel_r.logpdf(y, x, x)",
    "stats.uniform.ppf(x, y, x)",
    "stats.bernoulli.cdf(np.arange(12) % 3 - 1, x)",
    "special.factorial(4 * x)",
    "special.diric(x, 5)",
    "special.diric(x - x[0], 4)",
    "np.polynomial.polynomial.polyval(2.0, x[:3])",
}


@pytest.mark.filterwarnings("ignore")
def test_shapes_and_dtypes_of_single_precision_are_numpys() -> None:
    learn_rules()
    x, different = X.astype(np.float32), []
    for call in (call for text in FAMILIES.values() for call in calls(text)):
        if call in NOT_IN_JAX or not is_here(call, PLAIN):
            continue
        fun = function(call, PLAIN)

        def spoken(x: Any, fun: Any = fun) -> Any:
            with numpy_trace("call", 10_000) as trace:
                found = fun(XlaArray(trace, x))
                return list(map(trace.opened, found if isinstance(found, list | tuple) else [found]))

        with patches, jax.enable_x64(True):
            ours = jax.eval_shape(spoken, x)
        theirs = fun(x)
        theirs = list(map(np.asarray, theirs if isinstance(theirs, list | tuple) else [theirs]))
        if [(one.shape, one.dtype) for one in ours] != [(one.shape, one.dtype) for one in theirs]:
            different.append(call)
    assert {*different} == OTHER_PRECISION


# --- every mode, operation and scheduler ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_of_plain_numpy_compiled_agrees_with_plain_autograd(mode: str, name: str, scheduler: Any) -> None:
    def found(where: Any) -> list[float]:
        return numbers(MODES[mode][0](partial(OPERATIONS[name][0], np, engine="jax", scheduler=where)))

    check(mode, partial(OPERATIONS[name][0], np, engine="jax", scheduler="sync"), RIGHT[name], tolerance=1e-10)
    assert found(scheduler) == found("sync")


def test_tasks_of_graphs_in_plain_numpy_are_compiled(scheduler: Any) -> None:
    def step(state: Any, rate: Any) -> Any:
        return np.where(state > 1.0, np.exp(-rate * state), scipy.special.expit(state * rate))

    rate, states = delayed(0.5), [delayed(np.array([0.5, 1.5]))]
    for _ in range(3):
        states.append(delayed(step)(states[-1], rate))
    y = delayed(np.sum)(states[-1])
    where = {} if not isinstance(scheduler, str) else {"scheduler": scheduler}
    slopes = [dagad.gradient(y, rate, engine=engine).compute(**where) for engine in ("jax", None)]
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-12)


# --- traced once, and never stale -------------------------------------------------------------------------------------


def test_a_thousand_evaluations_in_plain_numpy_trace_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []

    def counted(*args: Any) -> Any:
        traces.append(args)
        return numpy_trace(*args)

    def own(rows: Any, t: Any) -> Any:
        return np.sum(np.cos(rows * t))

    def loss(t: Any, where: str) -> Any:
        return dagad.reduce_sum(own, ROWS, t, grainsize=6, engine="jax", scheduler=where)

    monkeypatch.setattr(tracing, "numpy_trace", counted)
    for where in ("sync", "threads"):
        for number in range(500):
            dagad.value_and_grad(loss)(0.001 * number, where)
    assert len(traces) == 1


SCALE = 2.0


def scaled(rows: Any, t: Any) -> Any:
    return np.sum(SCALE * rows * t)


def test_a_changed_global_or_closure_of_a_numpy_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    held, options = np.ones(2), {"power": 2}

    def closed(rows: Any, t: Any) -> Any:
        return np.sum(rows * t ** options["power"]) * held[0]

    assert at(scaled, 3.0)[0] == pytest.approx(6.0 * ROWS.sum())
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert at(scaled, 3.0)[0] == pytest.approx(15.0 * ROWS.sum())
    assert at(closed, 3.0)[0] == pytest.approx(9.0 * ROWS.sum())
    held[0] = 2.0
    assert at(closed, 3.0)[0] == pytest.approx(18.0 * ROWS.sum())
    options["power"] = 3
    assert at(closed, 3.0)[0] == pytest.approx(54.0 * ROWS.sum())


# --- what a function may be -------------------------------------------------------------------------------------------


def lists(rows: Any, t: Any) -> Any:
    both = np.sum(rows * [1.0, 2.0, 0.5, 1.0, 2.0, 0.5]) + np.sum([1.0, 2.0] * np.stack([t, t * t]))
    return both * np.sum(rows[[0, -1]] + rows[[True, False] * 3][:2])


def arrays(rows: Any, t: Any) -> Any:
    out = np.zeros(3)
    out[1] = 2.0  # plain numbers may be written
    x = np.asarray(rows, dtype=float)
    both = np.array([t, t * t, 1.0])
    return np.sum(both * out) * np.ascontiguousarray(x).sum() + np.array([[t], [1.0]], ndmin=3).shape[0]


def methods(rows: Any, t: Any) -> Any:
    x = rows.reshape(2, 3).T @ np.ones(2)
    x = x.copy()
    x = x + t * x.mean(keepdims=True)
    first, *_, last = x
    return x.std() * x.clip(0.2, 1.5).sum() + divmod(x, 0.7)[1].sum() + abs(-x).max() + round(last) * first + len(x)


def autograds(rows: Any, t: Any) -> Any:
    return anp.sum(anp.logaddexp(rows, anp.stack([t] * 6))) + anp.linalg.norm(anp.concatenate([rows, rows]) * t)


def scipys(rows: Any, t: Any) -> Any:
    a = np.eye(3) * (1 + t) + np.outer(rows[:3], rows[:3])
    x = scipy.linalg.cho_solve(scipy.linalg.cho_factor(a), rows[:3])
    tails = scipy.stats.norm(t, 2.0).logpdf(rows) + scipy.stats.lognorm.logpdf(rows, t)
    return np.sum(x) + scipy.special.logsumexp(rows * t) + np.sum(tails) + np.sum(scipy.special.gammaln(rows + t))


@pytest.mark.filterwarnings("ignore:.*does not add up")
@pytest.mark.parametrize("fun", [lists, arrays, methods, autograds, scipys], ids=lambda fun: fun.__name__)
def test_a_function_of_plain_numpy_is_the_same_compiled(fun: Any) -> None:
    value, slope = at(fun, engine=None) if fun is not arrays else arrays_by_hand()
    found = at(fun)
    assert found == (pytest.approx(value, rel=1e-12), pytest.approx(slope, rel=1e-10))


def arrays_by_hand() -> tuple[float, float]:
    return 4 * 0.0 + 2.0 * 0.49 * ROWS.sum() + 4, 4 * 0.7 * ROWS.sum()


def test_numpy_and_jax_may_be_mixed_and_jaxs_transforms_take_what_is_traced() -> None:
    def mixed(rows: Any, t: Any) -> Any:
        final, _ = jax.lax.scan(lambda carry, x: (carry * jnp.cos(x * t), None), np.sum(rows), rows)
        each = jax.vmap(lambda x: jnp.exp(-x * t))(np.sin(rows))
        slope = jax.grad(lambda u: jnp.sum(jnp.sin(u * rows)))(t)
        return final + np.sum(each) + slope * jax.nn.relu(np.tanh(t)) + rows.at[0].set(t).sum()

    def plain(rows: Any, t: Any) -> Any:
        final = anp.sum(rows)
        for x in rows:
            final = final * anp.cos(x * t)
        slope = anp.sum(rows * anp.cos(t * rows)) * anp.tanh(t)
        return final + anp.sum(anp.exp(-anp.sin(rows) * t)) + slope + anp.sum(rows[1:]) + t

    value, gradient = at(plain, engine=None)
    assert at(mixed) == (pytest.approx(value, rel=1e-12), pytest.approx(gradient, rel=1e-12))


@pytest.mark.filterwarnings("ignore:.*gave nan")
def test_entries_that_are_out_of_bounds_are_an_error_or_nan() -> None:
    def static(rows: Any, t: Any) -> Any:
        return rows[6] * t

    def by_value(rows: Any, t: Any) -> Any:
        x, group = rows
        return np.sum(t[group] * x)

    with pytest.raises(IndexError, match="out of bounds"):
        at(static)
    theta, group = np.array([1.0, 2.0, 3.0]), np.arange(24) % 3 - 1
    value, gradient = at(by_value, theta, (ROWS, group))
    assert value == pytest.approx(np.sum(theta[group] * ROWS))
    assert gradient == pytest.approx([ROWS[group % 3 == k].sum() for k in range(3)])
    assert np.isnan(at(by_value, theta, (ROWS, group + 2))[0])
    with pytest.raises(ValueError, match="broadcast"):
        at(lambda rows, t: np.sum(rows + np.ones(5) * t))


@pytest.mark.filterwarnings("ignore:.*gave nan")
def test_groups_are_counted_up_to_their_number() -> None:
    def by_group(rows: Any, t: Any) -> Any:
        x, group = rows
        return np.sum(np.bincount(group, weights=x * t, minlength=3) * [1.0, 2.0, 3.0])

    group = np.arange(24) % 3
    assert at(by_group, 0.7, (ROWS, group))[1] == pytest.approx(np.sum(ROWS * (group + 1)))
    assert np.isnan(at(by_group, 0.7, (ROWS, group + 1))[0])


# --- what is refused --------------------------------------------------------------------------------------------------

GENERATOR = np.random.default_rng(0)


def branching(rows: Any, t: Any) -> Any:
    if t > 0.5:
        return np.sum(rows * t)
    return np.sum(rows)


def written(rows: Any, t: Any) -> Any:
    out = np.zeros(6)
    out[0] = rows[0] * t
    return np.sum(out)


def summed_into(rows: Any, t: Any) -> Any:
    out = np.zeros(6)
    out += rows * t
    return np.sum(out)


def view_changed(rows: Any, t: Any) -> Any:
    x = np.sin(rows * t)
    part = x[2:]
    part *= 2.0
    return np.sum(x)


def sorted_in_place(rows: Any, t: Any) -> Any:
    x = np.sin(rows * t)
    x.sort()
    return np.sum(x[:2])


def unseeded(rows: Any, t: Any) -> Any:
    return np.sum(rows * t) + np.random.default_rng().normal()


REFUSED: dict[str, tuple[Any, str]] = {
    "if": (
        branching,
        r"Line \d+ of test_numpy_compiled.py, `if t > 0.5:`, asks whether .*np\.where.*leave out `engine",
    ),
    "assert": (lambda rows, t: np.sum(rows * t) if np.all(rows > 0) else 0.0, r"asks whether.*np\.where"),
    "in jax": (lambda rows, t: jnp.sum(rows * jax.lax.cond(t > 0, lambda: t, lambda: 1.0 if t else t)), r"whether"),
    "float": (lambda rows, t: np.sum(rows) * float(t), r"asks for a Python number.*as it is.*leave out `engine="),
    "item": (lambda rows, t: np.sum(rows) * t.item(), r"asks for a Python number"),
    "range": (lambda rows, t: sum(rows[0] * t for _ in range(t)), r"as a count.*Python int.*leave out"),
    "constant": (lambda rows, t: np.sum(ROWS[(rows * t).astype(int)]), r"np\.(take|stack)"),
    "written": (written, r"`out\[0\] = rows\[0\] \* t`, writes into.*np\.stack\(parts\).*np\.where"),
    "item of a box": (lambda rows, t: rows.__setitem__(0, t), r"writes into entries"),
    "out": (summed_into, r"`out \+= rows \* t`, has `np\.add` write.*total = total \+ x"),
    "view": (view_changed, r"`part \*= 2.0` changes an array in place|`part \*= 2.0`, changes an array in place"),
    "sorted": (sorted_in_place, r"`x\.sort\(\)`,? changes an array in place.*np\.sort\(x\)"),
    "mask": (lambda rows, t: np.sum(rows[rows > t]), r"depends on values.*np\.where\(mask, x, 0\.0\)"),
    "nonzero": (lambda rows, t: np.nonzero(rows * t)[0].sum(), r"calls `np\.nonzero`.*depends on values"),
    "unique": (lambda rows, t: np.sum(np.unique(rows * t)), r"calls `np\.unique`.*leave out `engine="),
    "bincount": (lambda rows, t: np.bincount(rows.astype(int), weights=rows * t)[0], r"minlength=n_groups"),
    "missing": (lambda rows, t: np.sum(scipy.special.kv(1.5, rows * t)), r"`scipy\.special\.kv`, for which jax.*leave"),
    "missing of linalg": (
        lambda rows, t: np.real(scipy.linalg.eig(np.eye(2) * t)[0][0]),
        r"`scipy\.linalg\.eig`.*leave out",
    ),
    "missing of stats": (lambda rows, t: scipy.stats.nct.logpdf(rows, 3.0, t).sum(), r"`scipy\.stats\.nct\.logpdf`"),
    "unswapped": (lambda rows, t: np.sum(scipy.stats.norm.entropy(0.0, rows * t)), r"leave out `engine="),
    "option": (lambda rows, t: np.log(rows * t, where=ROWS[:6] > 1).sum(), r"`np\.log` with `where`.*leave out"),
    "derivative": (lambda rows, t: np.real(np.linalg.eig(np.eye(2) * t)[1]).sum(), r"no derivative in jax.*leave out"),
    "numpy in a scan": (
        lambda rows, t: jax.lax.scan(lambda c, x: (c + np.sin(x * t), None), 0.0 * t, rows)[0],
        r"calls numpy inside of a function that jax itself runs.*`jax\.numpy`",
    ),
    "draws": (lambda rows, t: np.sum(rows * t) + np.random.normal(), r"draws random numbers.*np\.random.*Draw them"),
    "draws of its own": (lambda rows, t: np.sum(rows * t) + GENERATOR.normal(), r"draws.*the global `GENERATOR`"),
    "draws unseeded": (unseeded, r"random numbers.*without a seed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_line_that_jax_cannot_follow_is_refused_with_the_line_and_the_remedy(case: str) -> None:
    fun, sentence = REFUSED[case]
    with pytest.raises(dagad.NotDifferentiableError, match=sentence) as caught:
        at(fun)
    assert "jax.errors" not in str(caught.value)


def test_a_value_that_another_trace_has_left_in_a_cache_is_refused_without_errors_of_jaxs() -> None:
    cache: dict[str, Any] = {}

    def chunk(rows: Any, t: Any) -> Any:
        if "scale" not in cache:
            cache["scale"] = np.exp(t)
        return np.sum(rows * cache["scale"])

    with pytest.raises(dagad.ClosureError, match=r"kept in a cache.*shared argument") as caught:
        dagad.reduce_sum(chunk, ROWS[:10], np.float64(0.7), grainsize=6, scheduler="sync", engine="jax")
    assert not any("JAX_" in note for note in getattr(caught.value, "__notes__", []))


@pytest.mark.parametrize("make", [np.random.default_rng, np.random.RandomState])
def test_a_generator_without_a_seed_is_refused_by_whatever_name_and_one_with_a_seed_is_not(make: Any) -> None:
    def own(rows: Any, t: Any) -> Any:
        return np.sum(rows * t) + make(3).normal()

    assert at(own)[1] == pytest.approx(ROWS.sum())
    assert at(lambda rows, t: np.sum(rows * t) + len(make().normal(size=3)))[1] == pytest.approx(ROWS.sum())
    with pytest.raises(dagad.NotDifferentiableError, match=r"without a seed.*Draw them before"):
        at(lambda rows, t: np.sum(rows * t) + make().normal())


class Held:
    """A generator where no attribute of a dict has it."""

    __slots__ = ("generator",)

    def __init__(self) -> None:
        self.generator = np.random.default_rng(3)


class Classes:
    shared = np.random.default_rng(4)


BITS = np.random.PCG64(9)
DEEP, HELD, PYTHONS, NORMAL = [[[[[{"a": (np.random.default_rng(5),)}]]]]], Held(), random.Random(6), GENERATOR.normal


def closing(draw: Any) -> Any:
    return lambda rows, t: np.sum(rows * t) + draw()


def of_default(rows: Any, t: Any, generator: Any = np.random.default_rng(7)) -> Any:  # noqa: B008  # it is to be one
    return np.sum(rows * t) + generator.normal()


WHERE: dict[str, tuple[Any, str]] = {
    "slots": (lambda rows, t: np.sum(rows * t) + HELD.generator.normal(), r"`generator` of `Held`"),
    "deep lists": (lambda rows, t: np.sum(rows * t) + DEEP[0][0][0][0][0]["a"][0].normal(), r"\['a'\] of an item of"),
    "a class": (lambda rows, t: np.sum(rows * t) + Classes.shared.normal(), r"`Classes\.shared`"),
    "a bound method": (lambda rows, t: np.sum(rows * t) + NORMAL(), r"`Generator\.normal` is bound to"),
    "one in a closure": (closing(GENERATOR.normal), r"`draw` in `closing"),
    "a partial": (partial(lambda g, rows, t: np.sum(rows * t) + g.normal(), np.random.default_rng(8)), r"the partial"),
    "a partial of a method": (closing(partial(GENERATOR.normal, 1.0)), r"that `draw` in `closing.* is bound to"),
    "a default argument": (of_default, r"a default argument of `of_default`"),
    "bits": (lambda rows, t: np.sum(rows * t) + np.random.Generator(BITS).normal(), r"the global `BITS`"),
    "a child": (lambda rows, t: np.sum(rows * t) + GENERATOR.spawn(1)[0].normal(), r"the global `GENERATOR`"),
    "Python's own": (lambda rows, t: np.sum(rows * t) + random.random(), r"Python's own generator, `random`"),
    "one of Python's": (lambda rows, t: np.sum(rows * t) + PYTHONS.gauss(0.0, 1.0), r"the global `PYTHONS`"),
    "a name of numpy's own": (closing(np.random.normal), r"numpy's"),
}


@pytest.mark.parametrize("case", WHERE)
def test_a_generator_is_found_wherever_it_hangs(case: str) -> None:
    fun, where = WHERE[case]
    with pytest.raises(dagad.NotDifferentiableError, match=rf"draws random numbers, from .*{where}.*Draw them before"):
        at(fun)


def test_a_generator_that_is_an_argument_is_found() -> None:
    def total(t: Any, generator: Any) -> Any:
        def own(rows: Any, t: Any, held: Any) -> Any:
            return np.sum(rows * t) + held[0].normal()

        return dagad.reduce_sum(own, ROWS, t, [generator], grainsize=6, engine="jax", scheduler="sync")

    with pytest.raises(dagad.NotDifferentiableError, match=r"from a generator of numpy's that is in an argument"):
        dagad.grad(total)(0.7, np.random.default_rng(3))


def test_numbers_that_another_thread_draws_meanwhile_are_none_of_the_functions() -> None:
    drawn: list[threading.Thread] = []

    def own(rows: Any, t: Any) -> Any:
        if not drawn:
            drawn.append(threading.Thread(target=np.random.normal))
            drawn[0].start()
            drawn[0].join()
        return np.sum(rows * t)

    def always(rows: Any, t: Any) -> Any:  # as threads of a worker draw from Python's own
        drawn.append(threading.Thread(target=random.random))
        drawn[-1].start()
        drawn[-1].join()
        return np.sum(rows * t * 2.0)

    assert at(own)[1] == pytest.approx(ROWS.sum())
    assert drawn
    assert at(always)[1] == pytest.approx(2.0 * ROWS.sum())
    assert len(drawn) > 2


def test_a_profiler_goes_on_where_another_thread_draws_while_a_function_is_compiled() -> None:
    def always(rows: Any, t: Any) -> Any:
        thread = threading.Thread(target=random.random)
        thread.start()
        thread.join()
        return np.sum(rows * t * 3.0)

    profiler = cProfile.Profile()
    profiler.enable()
    try:
        before = sys.getprofile()
        # Whose numbers they are can't be heard beside it.
        with pytest.raises(dagad.NotDifferentiableError, match="draws random numbers"):
            at(always)
        assert sys.getprofile() is before
    finally:
        profiler.disable()


def test_changing_in_place_means_to_functions_of_jax_what_it_did() -> None:
    def jaxs(rows: Any, t: Any) -> Any:
        x = jnp.sin(rows * t)
        part = x[2:]
        part *= 2.0
        return jnp.sum(x)

    assert at(jaxs)[0] == pytest.approx(np.sum(np.sin(ROWS * 0.7)))


# --- loops ------------------------------------------------------------------------------------------------------------


def unrolled(rows: Any, n: int, t: Any) -> Any:
    y = rows * 0.0
    for _ in range(n):
        y = y + np.sin(rows * t)
    return np.sum(y)


def test_a_loop_of_too_many_operations_is_refused_with_its_line(scheduler: Any) -> None:
    def found(n: int) -> Any:
        return dagad.grad(
            lambda t: dagad.reduce_sum(unrolled, ROWS, n, t, grainsize=6, engine="jax", scheduler=scheduler)
        )(0.7)

    with dask.config.set({"dagad.jax-most-operations": 30}):
        assert found(5) == pytest.approx(5 * np.sum(ROWS * np.cos(ROWS * 0.7)))
        with pytest.raises(dagad.NotDifferentiableError) as caught:
            found(50)
    line = unrolled.__code__.co_firstlineno + 2
    for part in (
        "`unrolled` was to be compiled by jax, and consists of more than 30 operations",
        f"Line {line} of test_numpy_compiled.py, `for _ in range(n):`, is where",
        "`jax.lax.scan`",
        "leave out `engine=`",
        "`dagad.jax-most-operations`",
    ):
        assert part in str(caught.value)


def eight(rows: Any, t: Any) -> Any:
    x = rows * t
    y = np.sin(x) + np.cos(x)
    return np.sum(y * y * x)  # and as many more in its derivatives


@pytest.mark.parametrize("mode", ["value_and_grad", "hvp", "jacfwd"])
def test_an_operation_is_one_of_the_function_itself_whatever_is_asked_of_it(mode: str) -> None:
    def loss(t: Any) -> Any:
        return dagad.reduce_sum(eight, ROWS, t, grainsize=6, engine="jax", scheduler="sync")

    with dask.config.set({"dagad.jax-most-operations": 8}):
        MODES[mode][0](loss)
    with dask.config.set({"dagad.jax-most-operations": 7}):
        # What was compiled before stays; this is another function.
        with pytest.raises(dagad.NotDifferentiableError, match="consists of more than 7 operations"):
            MODES[mode][0](
                lambda t: dagad.reduce_sum(
                    lambda rows, t: eight(rows, t), ROWS, t, grainsize=6, engine="jax", scheduler="sync"
                )
            )


@pytest.mark.parametrize("asked", [0, -1, 2.5, "many", True])
def test_a_setting_of_operations_that_is_no_count_is_refused(asked: Any) -> None:
    with dask.config.set({"dagad.jax-most-operations": asked}), pytest.raises(dagad.PlanError, match="positive int"):
        at(scaled)


def test_compiling_that_has_gained_less_than_it_took_is_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(rows: Any, t: Any) -> Any:
        return np.sum(np.arctan(rows * t))

    def often(fun: Any) -> list[warnings.WarningMessage]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for number in range(2 * gains.PATIENCE):
                at(fun, 0.01 * number, grainsize=24)
        return [one for one in told if issubclass(one.category, dagad.DagadWarning)]

    compared = []

    def timed(base: Any, *args: Any) -> Any:
        compared.append(base.name)
        return by_autograd(base, *args)

    by_autograd = gains._by_autograd
    monkeypatch.setattr(gains, "_by_autograd", timed)
    assert often(small) == []  # it took too short
    monkeypatch.setattr(gains, "LEAST", 1e-9)
    first, second = (lambda rows, t: np.sum(np.arctan(rows * t)) + 1.0), (lambda rows, t: np.sum(np.cosh(rows * t)))
    for fun in (first, second):  # of one name
        (told,) = often(fun)
        assert "to compile `<lambda>`, longer than its 30 runs since have gained over autograd" in str(told.message)
        assert "leave out `engine=`" in str(told.message)
    shorter = ROWS[:6]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(2 * gains.PATIENCE):  # compiled anew, and it has been said of it
            at(first, 0.01 * number, shorter)
    assert compared == ["<lambda>"] * 3
    assert often(lambda rows, t: jnp.sum(jnp.arctan(rows * t))) == []
    assert compared == ["<lambda>"] * 3  # autograd can't follow functions of jax, and is not asked to


def test_warnings_of_compiling_keep_no_function_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Any:
        return lambda rows, t: np.sum(np.sinh(rows * t)) * 2.0

    monkeypatch.setattr(gains, "LEAST", 1e-9)
    fun = made()
    for _ in range(gains.PATIENCE - 1):
        at(fun, grainsize=24)
    with pytest.warns(dagad.DagadWarning, match="to compile"):
        at(fun, grainsize=24)
    gone = weakref.ref(fun)
    del fun
    gc.collect()
    assert gone() is None
