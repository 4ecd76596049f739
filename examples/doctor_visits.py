"""Negative-binomial regression of doctor visits (RAND health insurance experiment), fitted beside statsmodels' own."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import statsmodels.api as sm
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from scipy.optimize import OptimizeResult, minimize
from scipy.special import gammaln

import dagad
from dagad.interop.scipy import standard_errors
from scheduler_option import add_options, opened

LABELS = {
    "lncoins": "coinsurance (log)",
    "idp": "individual deductible",
    "lpi": "incentive payment (log)",
    "fmde": "deductible (log)",
    "physlm": "physical limitation",
    "disea": "chronic diseases",
    "hlthg": "health: good",
    "hlthf": "health: fair",
    "hlthp": "health: poor",
}


@dataclass(frozen=True, slots=True)
class Data:
    y: np.ndarray
    X: np.ndarray
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients, then the dispersion alpha; their standard errors; what it took."""

    params: np.ndarray
    errors: np.ndarray
    log_likelihood: float
    seconds: float

    def intervals(self) -> np.ndarray:
        return self.params[:, None] + 1.959964 * self.errors[:, None] * np.array([-1.0, 1.0])


def chunk_log_likelihood(rows: Any, params: Any) -> Any:
    """NB2 log-likelihood of the rows of one chunk; `params` are the coefficients, then log(alpha)."""
    y, X = rows
    log_alpha, size = params[-1], np.exp(-params[-1])
    odds = np.dot(X, params[:-1]) + log_alpha
    per_row = gammaln(y + size) - gammaln(y + 1.0) + y * odds - (y + size) * np.logaddexp(0.0, odds)
    return np.sum(per_row) - len(y) * gammaln(size)


def load(rows: int | None) -> Data:
    frame = sm.datasets.randhie.load_pandas()
    y = np.asarray(frame.endog, dtype=float)
    X = np.asarray(sm.add_constant(frame.exog), dtype=float)
    if rows is not None:  # np.resize repeats the data from the start, whole rows at a time
        y, X = np.resize(y, rows), np.resize(X, (rows, X.shape[1]))
    if np.linalg.matrix_rank(X) < X.shape[1]:
        raise SystemExit(
            f"The first {len(y)} rows cannot tell the {X.shape[1]} coefficients apart: ask for more --rows."
        )
    return Data(y, X, ("const", *frame.exog.columns))


def standardize(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Centre and scale all columns but the first, the constant; the matrix takes coefficients back to the old scale."""
    means, scales = X[:, 1:].mean(axis=0), X[:, 1:].std(axis=0)
    back = np.diag(np.concatenate([[1.0], 1.0 / scales]))
    back[0, 1:] = -means / scales
    return np.dot(X, back), back


def maximize(data: Data, progress: Progress, **how: Any) -> tuple[np.ndarray, OptimizeResult]:
    """Climb on standardized columns, where the curvatures are alike, so that L-BFGS takes tens of steps."""
    X, back = standardize(data.X)
    rows = dagad.shard((data.y, X), **how)  # once; on a cluster only the parameters travel from then on
    task = progress.add_task("starting", total=None)

    def loss(params: Any) -> Any:
        return -dagad.reduce_sum(chunk_log_likelihood, rows, params) / len(data.y)

    def show(intermediate_result: OptimizeResult) -> None:
        progress.advance(task)
        progress.update(task, description=f"log-likelihood {-intermediate_result.fun * len(data.y):.4f}")

    start = np.zeros(X.shape[1] + 1)
    start[0] = np.log(data.y.mean())
    # The loss is about 2, so ftol is at the last bits of a double: only then are the coefficients good to 1e-6.
    options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 500, "maxls": 50}
    found = minimize(dagad.value_and_grad(loss), start, jac=True, method="L-BFGS-B", callback=show, options=options)
    progress.update(task, total=found.nit, completed=found.nit)
    return np.concatenate([np.dot(back, found.x[:-1]), found.x[-1:]]), found


def fit_dagad(data: Data, console: Console, **how: Any) -> Fit:
    columns = (
        SpinnerColumn(finished_text=" "),
        TextColumn("{task.completed} iterations,"),
        TextColumn("{task.description}"),
    )
    began = time.perf_counter()
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        params, found = maximize(data, progress, **how)

    def loss(params: Any) -> Any:
        return -dagad.reduce_sum(chunk_log_likelihood, (data.y, data.X), params, **how)

    errors = standard_errors(loss, params).flat
    alpha = np.exp(params[-1])
    return Fit(
        params=np.append(params[:-1], alpha),
        errors=np.append(errors[:-1], alpha * errors[-1]),  # the delta method: d alpha = alpha d log(alpha)
        log_likelihood=-found.fun * len(data.y),
        seconds=time.perf_counter() - began,
    )


def fit_statsmodels(data: Data) -> Fit:
    began = time.perf_counter()
    fit = sm.NegativeBinomial(data.y, data.X).fit(method="newton", maxiter=100, disp=False)
    return Fit(fit.params, fit.bse, float(fit.llf), time.perf_counter() - began)


def comparison(data: Data, ours: Fit, theirs: Fit) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=f"Doctor visits, {len(data.y):,} rows", pad_edge=False)
    for header in ("", "dagad", "se", "95 % interval", "statsmodels", "se"):
        table.add_column(header, justify="right" if header else "left", no_wrap=True)
    for i, (name, (low, high)) in enumerate(zip((*data.names, "alpha"), ours.intervals(), strict=True)):
        numbers = (ours.params[i], ours.errors[i], theirs.params[i], theirs.errors[i])
        own, own_error, other, other_error = (f"{number:.5f}" for number in numbers)
        table.add_row(name, own, own_error, f"[{low:7.4f}, {high:7.4f}]", other, other_error)
    table.add_section()
    table.add_row("log-likelihood", f"{ours.log_likelihood:.2f}", "", "", f"{theirs.log_likelihood:.2f}", "")
    table.add_row("seconds", f"{ours.seconds:.2f}", "", "", f"{theirs.seconds:.2f}", "")
    return table


def draw(data: Data, ours: Fit, theirs: Fit, path: str) -> None:
    shown = [i for i, name in enumerate(data.names) if name in LABELS]
    places = np.arange(len(shown))
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0.0, color="0.7", linewidth=0.8)
    for fit, name, shift, marker, colour in (
        (ours, "dagad", -0.14, "o", "C0"),
        (theirs, "statsmodels", 0.14, "s", "C1"),
    ):
        centre, spread = fit.params[shown], 1.959964 * fit.errors[shown]
        axes.errorbar(
            centre, places + shift, xerr=spread, fmt=marker, color=colour, label=name, capsize=3, markersize=5
        )
    axes.set_yticks(places, [LABELS[data.names[i]] for i in shown])
    axes.invert_yaxis()
    axes.set_xlabel("effect on log expected visits, 95 % interval")
    axes.set_title(f"Doctor visits: negative-binomial regression, {len(data.y):,} rows")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def agrees(ours: Fit, theirs: Fit, console: Console) -> bool:
    likelihood_gap = abs(ours.log_likelihood / theirs.log_likelihood - 1.0)
    coefficient_gap = np.max(np.abs(ours.params - theirs.params))
    error_gap = np.max(np.abs(ours.errors / theirs.errors - 1.0))
    console.print(f"log-likelihood differs by {likelihood_gap:.1e} (relative, limit 1e-6)")
    console.print(f"coefficients and alpha differ by {coefficient_gap:.1e} at most (absolute, limit 1e-4)")
    console.print(f"standard errors differ by {error_gap:.1e} at most (relative)")
    return bool(likelihood_gap <= 1e-6 and coefficient_gap <= 1e-4)


def count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def grainsize(text: str) -> int | str:
    return text if text == "auto" else count(text)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=count, help="repeat the data up to this many rows (default: as they come)")
    add_options(parser)
    parser.add_argument("--grainsize", type=grainsize, default="auto", help="rows per chunk, or auto")
    parser.add_argument("--output", default="doctor_visits.png", help="where the picture goes")
    parser.add_argument("--check", action="store_true", help="fail unless the fit agrees with that of statsmodels")
    options = parser.parse_args(argv)
    if options.rows is not None and options.check:
        parser.error("--check compares the data as they come: leave out --rows")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    console = Console()
    console.width = max(console.width, 90)  # the table needs it, also where the output is a file
    data = load(options.rows)
    with opened(options) as scheduler:
        ours = fit_dagad(data, console, scheduler=scheduler, grainsize=options.grainsize)
    theirs = fit_statsmodels(data)
    console.print(comparison(data, ours, theirs))
    draw(data, ours, theirs, options.output)
    console.print(f"picture: {options.output}")
    return 0 if not options.check or agrees(ours, theirs, console) else 1


if __name__ == "__main__":
    raise SystemExit(main())
