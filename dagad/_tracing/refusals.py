"""What is said where a value being differentiated leaves numpy's protocols: what was asked, why not, what to write."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from dagad._errors import ClosureError, DagadError, NotDifferentiableError
from dagad._types import DType
from dagad._values.bytecode import is_storing

IN_ONE = " with respect to one of its arguments"
_STACK = "Make one array of several by `np.stack([a, b])` or `np.concatenate([a, b])`."
_COLLECT = (
    "Ordinary arrays hold numbers only, and carry no derivative. Collect the parts in a list and write "
    "`np.stack(parts)` or `np.concatenate(parts)`; to change some entries write `np.where(mask, new, old)`; to add up "
    "by group `np.bincount(group, weights=x, minlength=n_groups)`."
)
_NO_TYPE = "Can't differentiate w.r.t. type "
_LIBRARIES = frozenset({"numpy", "scipy", "pandas", "xarray", "polars", "statsmodels", "sklearn"})


def of_assignment() -> str:
    """Tell that a value was assigned into an ordinary array, or into entries of one being differentiated."""
    name = library_function_of(sys._getframe(2))
    if name is not None and name.startswith("scipy.optimize."):
        return of_solver(name)
    return (
        "Entries of an array were assigned to, as in `out[i] = x`, `np.add.at` or `np.fromiter`, where a value is "
        f"being differentiated. {_COLLECT}"
    )


def of_view() -> str:
    """Tell that an array is used of which another one has changed the memory."""
    return (
        "An array was changed in place, by `y *= 2` or the like, and another one is used afterwards that shares its "
        "memory, or the same one by another name: numpy changes both, and values being differentiated stay as they "
        "are. Write `y = y * 2` where only the one is meant, and use what that gives in place of the other where both "
        "are, by `np.where` or `np.concatenate` for a part of it."
    )


def of_written(shape: tuple[int, ...]) -> str:
    """Tell that an array was written into before the pullback that reads it."""
    return (
        f"An array of shape {shape} met a value being differentiated, as `b` in `x * b`, and was written into before "
        "the gradient was computed, which needs what it was. Write into another one, `b = b * 2` instead of `b *= 2`, "
        "or give the value one that stays: `x * b.copy()`."
    )


def of_out(name: str) -> str:
    """Tell that a function was to write its result into an array."""
    return (
        f"`{name}` was to write a value being differentiated into an array, by `out=`, `+=` or the like. {_COLLECT} "
        "Write `total = total + x` instead of `total += x`."
    )


def of_number() -> str:
    """Tell that a Python number was asked for."""
    name = library_function_of(sys._getframe(2))
    if name is not None and name.startswith(("scipy.integrate.", "scipy.optimize.")):
        return of_solver(name)
    return (
        "A Python number was asked for, by `float()`, `int()`, `.item()`, a function of `math` or the like, of a value "
        f"that is being differentiated: a Python number carries no derivative. {_AS_IT_IS}"
    )


_AS_IT_IS = (
    "Use the value as it is, and write `np.exp(x)` instead of `math.exp(x)`. An index or a count has no derivative: "
    "take it from what is constant."
)


def of_dtype(dtype: DType) -> str:
    """Tell that entries were to become words, or objects of Python's."""
    return (
        f"A value that is being differentiated was to be made an array of {dtype!r}, whose entries would be plain "
        "numbers or words, and carry no derivative. Compute with numbers, and convert what comes out where nobody "
        "differentiates it."
    )


def of_index() -> str:
    """Tell that a whole number was asked for."""
    return (
        "A value that is being differentiated was used as an index or a count, which has no derivative. Use a whole "
        "number that is not being differentiated; `np.where(mask, a, b)` chooses by a comparison."
    )


def of_conversion() -> str:
    """Tell who made an ordinary array of a value."""
    frame = sys._getframe(2)
    name = library_function_of(frame)
    if name is None:
        if is_storing(frame):
            return of_assignment()
        return (
            "A value being differentiated can't be put into an ordinary array, which carries no derivative. This is "
            "what `np.array`, `np.asarray`, functions that are given a list, methods of ordinary arrays such as "
            "`a.dot(x)`, and those of random generators do. Use the value as it is: it is an array already; write "
            "`a @ x`; draw "
            f"`noise = rng.normal(size=n)` before, and write `mean + scale * noise`. {_STACK}"
        )
    library = name.partition(".")[0]
    home = ".".join(name.split(".")[:2])
    advice = (
        _ADVICE.get(name)
        or (_instead_of(name) if name.startswith("scipy.optimize.") else _ADVICE.get(name.rpartition(".")[0]))
        or _ADVICE.get(home)
        or _ADVICE.get(library)
        or _ADVICE["scipy"]
    )
    if name.startswith("scipy.stats."):
        advice = f"Write `autograd.{name}`, if there is such a function, or its formula. {advice}"
    return (
        f"`{name}` makes an ordinary array of what it is given, and was given a value being differentiated. Ordinary "
        f"arrays hold numbers only, and carry no derivative. {advice}"
    )


_SOLVERS = (
    "Write the steps of the method with numpy, or give its derivative by `dagad.extend.explicit`: the page "
    "`docs/how-to/equations.md` shows both."
)
_INTEGRATION = (
    "`dagad.solvers` has `solve_ivp`, `odeint` and `quad`, with scipy's arguments and values, and with derivatives; "
    "what else there is has to be written with numpy. The page `docs/how-to/equations.md` shows it."
)
_SPARSE_LINALG = "scipy.sparse.linalg"
_SPARSE_SOLVE = (
    "Write `scipy.sparse.linalg.spsolve(A, b)`, which has a derivative in `b`, or have any solver differentiated by "
    "the equation that it solves: `dagad.solvers.implicit`."
)
_ADVICE = {
    **{
        f"scipy.integrate.{name}": (
            f"Write `dagad.solvers.{name}`, which has the arguments and the values of scipy's, and derivatives: the "
            "page `docs/how-to/equations.md` shows it."
        )
        for name in ("solve_ivp", "odeint", "quad")
    },
    "scipy.integrate": _INTEGRATION,
    "scipy.interpolate": (
        "`dagad.solvers` has `CubicSpline`, `PchipInterpolator` and `interp1d`, with scipy's arguments and values, and "
        "with derivatives in data, nodes and points."
    ),
    "scipy.sparse": (
        "What a sparse matrix holds is constant; its products `A @ x` and `x @ A` have a derivative. Scale the "
        "product, as in `t * (A @ x)` and `A @ (d * x)`, or write what is added up with "
        "`np.bincount(row, weights=v * x[column])`."
    ),
    _SPARSE_LINALG: _SPARSE_SOLVE,
    "np.vectorize": "Write the function for whole arrays: a loop over entries is slow here, too.",
    "np.full": "Write `value * np.ones(shape)`.",
    "np": f"Give it arrays and no lists, or write it with other functions of numpy. {_STACK}",
    "scipy": "Write it with functions of `np`, `np.linalg` and `scipy.special`; the guide has a table of them.",
    "pandas": "Take the numbers out first, by `series.to_numpy()` or `frame.to_numpy()`, and compute with these.",
}


# What scipy says in place of an error that its compiled code met in a function of the user's.
_HIDING = frozenset({"Result from function call is not a proper array of floats."})
_MINIMIZERS = (
    *("fmin", "fmin_bfgs", "fmin_cg", "fmin_l_bfgs_b", "fmin_powell"),
    *("minimize_scalar", "brent", "fminbound", "golden"),
)
_IN_SOLVERS = {
    **{name: name for name in ("fixed_point", "least_squares", "minimize", "root", "root_scalar")},
    **dict.fromkeys(("bisect", "brenth", "brentq", "newton", "ridder", "toms748"), "root_scalar"),
    **dict.fromkeys(("curve_fit", "leastsq", "lsq_linear", "nnls"), "least_squares"),
    **dict.fromkeys(_MINIMIZERS, "minimize"),
    **dict.fromkeys(("broyden1", "broyden2", "fsolve", "newton_krylov"), "root"),
}


def _instead_of(name: str) -> str:
    """Return what to write in place of a solver of scipy's."""
    instead = _IN_SOLVERS.get(name.rpartition(".")[2]) if name.startswith("scipy.optimize.") else None
    if instead is None:
        return _ADVICE.get(name, _SOLVERS)
    return (
        f"Write `dagad.solvers.{instead}`, which has the arguments and results of scipy's, and the derivative of the "
        "equation that it solves: the page `docs/how-to/optima.md` shows it."
    )


def of_solver(name: str) -> str:
    """Tell that a solver of scipy's was given a value, or a function that returns one."""
    return (
        f"`{name}` computes with ordinary numbers, which carry no derivative, and was given a value that is being "
        f"differentiated, or a function that returns one. {_instead_of(name)}"
    )


def _solver_in(error: Exception) -> str | None:
    """Return which solver of scipy's an error came through, with another text: the outermost of them."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("scipy.optimize.") and not frame.f_code.co_name.startswith("_"):
            return f"scipy.optimize.{frame.f_code.co_name}"
        trace = trace.tb_next
    return None


def of_function(name: str, why: str = "") -> str:
    """Tell that a function has no derivative, as far as is known here."""
    return (
        f"dagad has no derivative of `{name}`{why}. Write it with other functions of numpy, or give it a derivative "
        "with `autograd.extend.defvjp`."
    )


def of_option(name: str, options: Iterable[Any]) -> str:
    """Tell that a function is not differentiated with some of its options."""
    given = ", ".join(f"`{option}`" for option in options)
    return (
        f"`{name}` was called with {given}, and dagad has no derivative of it in that form. Do without, by "
        "`np.where`, `np.sum`, slices or another function of numpy."
    )


_SUPERLU = "argument 1 must be numpy.ndarray"  # of `SuperLU.solve`, which is compiled and has no frame


def _of_library(text: str) -> str:
    """Return what to write instead, by which library complains."""
    engine = "jax" if "JAX" in text else "torch" if "Tensor" in text else None
    if text.startswith(_SUPERLU):
        return f"{_SPARSE_SOLVE} A factorization, as `splu` and `factorized` make one, takes ordinary arrays only."
    if engine is None:
        return (
            "Take the numbers out of its own objects first, by `.to_numpy()` or `np.asarray(data)`, and compute with "
            "these."
        )
    module = {"jax": "jax.numpy", "torch": "torch"}[engine]
    return (
        f'Chunk functions may be written with `{module}`: `dagad.reduce_sum(f, data, theta, engine="{engine}")`. '
        f"What stands around a reduction, and a function without one, has no engine, whatever the setting says: write "
        "it with numpy."
    )


def explained(error: Exception) -> Exception:
    """Return the sentence for an error of numpy's, autograd's or another library's that hides one, else the error."""
    if isinstance(error, DagadError):
        return error
    cause, text = error.__cause__, str(error)
    hides = isinstance(cause, NotDifferentiableError)
    solver = _solver_in(error) if hides or text in _HIDING else None
    if solver is not None:
        sentence = of_solver(solver)
    elif hides:
        sentence = of_assignment() if text.startswith("setting an array element") else ""
    elif text.startswith("VJP of "):
        indices = re.findall(r"\d+", text.partition(" wrt ")[2])
        sentence = of_function(text.split()[2], f" with respect to its argument {indices[0]}" if indices else IN_ONE)
    elif text.startswith("Gradient of ") and isinstance(error, NotImplementedError):
        sentence = of_function(text.split()[2], f" in this form ({text})")
    elif isinstance(error, NotImplementedError) and cause is not None and str(cause).startswith(_NO_TYPE):
        kind = str(cause).removeprefix(_NO_TYPE).strip("<>' ").removeprefix("class '").rpartition(".")[2]
        sentence = (
            f"An operation on a value being differentiated gave a `{kind}`, which carries no derivative: one of its "
            "operands is such an object. Make a plain array of it first, `np.asarray(rows)`."
        )
    elif isinstance(error, ValueError) and "<traced " in text:
        sentence = f"A number, without a derivative, was read from the text of a value that has one. {_AS_IT_IS}"
    elif _was_sent(error):
        sentence = _IN_A_TASK
    elif isinstance(error, TypeError) and ("TracedArray" in text or text.startswith(_NO_TYPE)):
        sentence = (
            f"A library other than numpy was given a value being differentiated, and says: {text.rstrip('.')}. "
            f"{_of_library(text)}"
        )
    else:
        sentence = ""
    if not sentence:
        return error
    refusal = NotDifferentiableError(sentence).with_traceback(error.__traceback__)  # it shows the user's line
    refusal.__suppress_context__ = True
    return refusal


_IN_A_TASK = (
    "A value being differentiated was given to a task of Dask's own, by `dask.delayed`, `client.submit`, `client.map` "
    "or `client.scatter`, and can't go to another process with its derivative. Have dagad make the tasks, "
    "`dagad.reduce_sum(f, data, theta)` or `dagad.map(f, data, theta)`; or make a graph of plain numbers, and "
    "differentiate that: `dagad.gradient(y, wrt)`."
)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, what it was raised for, and so on."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _was_sent(error: Exception) -> bool:
    """Return whether an error is what Dask says of a value being differentiated that is to be sent, or named by it."""
    text = str(error)
    if "Could not serialize object" in text:
        return any(type(each) is ClosureError for each in _causes(error))
    return "cannot be deterministically hashed" in text and "<traced " in text


def library_function_of(frame: FrameType | None) -> str | None:
    """Return the name of the outermost function of a library that a conversion came from; None for the user's own."""
    name = None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        library = module.partition(".")[0]
        if library not in _LIBRARIES:
            return name
        known = _public(frame, module)
        if known is not None and not known.startswith("scipy._lib."):  # what wraps functions of scipy's
            name = known
        frame = frame.f_back
    return name


_PLACES = {
    "numpy.linalg": "np.linalg",
    "numpy.fft": "np.fft",
    "numpy.ma": "np.ma",
    "numpy.polynomial": "np.polynomial",
    "scipy.linalg": "scipy.linalg",
    "scipy.spatial": "scipy.spatial.distance",
    "scipy.stats": "scipy.stats",
}


# By the name under which they know the function that they call with arrays of it.
_WRAPPERS = {"wrapper": "f", "axis_nan_policy_wrapper": "hypotest_fun_in"}


def _public(frame: FrameType, module: str) -> str | None:
    """Return the name that users know a library's function by; None for what only leads to another one."""
    name, own = frame.f_code.co_name, frame.f_locals.get("self")
    if name in _WRAPPERS:
        function = frame.f_locals.get(_WRAPPERS[name])
        if function is None:
            return None
        name, module = function.__name__, function.__module__
    library, home = module.partition(".")[0], ".".join(module.split(".")[:2])
    if module.startswith(_SPARSE_LINALG):
        home = _SPARSE_LINALG
    if name == "__call__" and type(own).__name__ == "vectorize":
        name = "vectorize"
    if name == "__ua_function__":  # of scipy.fft, which looks first for somebody else who transforms
        name = frame.f_locals["method"].__name__
    if name == "__getitem__" and library == "numpy":
        name = {"RClass": "r_", "CClass": "c_"}.get(type(own).__name__, name)
    if home == "scipy.stats" and own is not None:
        owner = getattr(own, "dist", own)
        name = f"{getattr(owner, 'name', None) or type(owner).__name__.removesuffix('_gen')}.{name}"
    elif name == "__call__" and hasattr(own, "__name__"):  # several ufuncs of scipy.special's under one name
        name = str(getattr(own, "__name__", name))
    elif own is not None and (library != "numpy" or name.startswith("__")):
        name = f"{type(own).__name__}.{name}"
    return f"{_PLACES.get(home, 'np' if library == 'numpy' else home if library == 'scipy' else library)}.{name}"
