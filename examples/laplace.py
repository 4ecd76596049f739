"""What do firms invest, each with an effect of its own? An optimum in each firm, inside the fit (Laplace).

Grunfeld's firms (1935 to 1954) are in statsmodels. With normal errors the approximation is exact, so that its fit is
that of statsmodels' mixed models. With Student's errors, which forgive single years, there is no such model: the same
program fits it.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import statsmodels.api as sm
from matplotlib.figure import Figure
from scipy import optimize
from scipy.special import gammaln

import dagad
from dagad.interop.scipy import standard_errors
from dagad.solvers import root_scalar
from scheduler_option import add_options, opened

NAMES = "constant", "value", "capital", "log sigma", "log tau"
UNIT = 100.0  # in which money is counted, so that all parameters are about one


def firms() -> tuple[list[tuple[np.ndarray, np.ndarray]], list[str], Any]:
    """Return for each firm what explains its investments, with a constant, and these; the firms' names; the table."""
    table = sm.datasets.grunfeld.load_pandas().data
    money = ["invest", "value", "capital"]
    table[money] = table[money] / UNIT
    names = sorted(table["firm"].unique())
    each = [table[table["firm"] == name] for name in names]
    return [(sm.add_constant(rows[money[1:]]).to_numpy(), rows["invest"].to_numpy()) for rows in each], names, table


def of_errors(z: Any, log_sigma: Any, df: float) -> Any:
    """Minus the logarithm of the density of errors, which are `z` times sigma: Student's, or normal ones."""
    if np.isinf(df):
        return np.sum(0.5 * z**2 + log_sigma + 0.5 * np.log(2.0 * np.pi))
    constant = gammaln(0.5 * df) - gammaln(0.5 * (df + 1.0)) + 0.5 * np.log(np.pi * df)
    return np.sum(0.5 * (df + 1.0) * np.log1p(z**2 / df) + log_sigma + constant)


def joint(effect: Any, firm: Any, theta: Any, df: float) -> Any:
    """Minus the logarithm of the density of a firm's investments and of its effect."""
    x, y = firm
    log_sigma, log_tau = theta[3], theta[4]
    z = (y - x @ theta[:3] - effect) * np.exp(-log_sigma)
    of_effect = 0.5 * (effect * np.exp(-log_tau)) ** 2 + log_tau + 0.5 * np.log(2.0 * np.pi)
    return of_errors(z, log_sigma, df) + of_effect


def mode(firm: Any, theta: Any, df: float) -> Any:
    """The most likely effect of a firm."""
    slope = dagad.grad(joint)
    return root_scalar(lambda effect: slope(effect, firm, theta, df), bracket=(-50.0, 50.0), xtol=1e-13).root


def laplace(firm: Any, theta: Any, df: float) -> Any:
    """Minus the logarithm of a firm's likelihood: the integral over its effect, by the optimum and its curvature."""
    effect = mode(firm, theta, df)
    curvature = dagad.hessian(joint)(effect, firm, theta, df)
    return joint(effect, firm, theta, df) + 0.5 * np.log(curvature / (2.0 * np.pi))


def fit(total: Callable[[Any], Any], start: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return estimates, standard errors and the log likelihood, by Newton's method."""
    found = optimize.minimize(total, start, jac=dagad.grad(total), hess=dagad.hessian(total), method="trust-exact")
    return found.x, standard_errors(total, found.x).flat, -float(found.fun)


def show(title: str, fitted: tuple[np.ndarray, np.ndarray, float]) -> None:
    print(f"{title}: log likelihood {fitted[2]:.4f}")
    for name, estimate, error in zip(NAMES, *fitted[:2], strict=True):
        print(f"    {name:10} {estimate:9.4f} +- {error:.4f}")


def of_statsmodels(table: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """The same of statsmodels; it counts the variance of effects in that of errors."""
    found = sm.MixedLM.from_formula("invest ~ value + capital", table, groups="firm").fit(reml=False)
    log_sigma = 0.5 * np.log(found.scale)
    logs = [log_sigma, 0.5 * np.log(float(found.cov_re.iloc[0, 0]))]
    return np.append(found.fe_params, logs), np.append(found.bse_fe, [np.nan, np.nan]), float(found.llf)


def draw(names: Sequence[str], effects: dict[str, np.ndarray], path: str) -> None:
    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axis = figure.subplots()
    for (label, found), shift in zip(effects.items(), (-0.12, 0.12), strict=True):
        axis.plot(UNIT * found, np.arange(len(names)) + shift, "o", label=label)
    axis.axvline(0.0, color="0.7", linewidth=0.8)
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel("what a firm invests beyond the model, millions of dollars a year")
    axis.legend(frameon=False, title="errors")
    figure.savefig(path, dpi=110)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--df", type=float, default=4.0, help="degrees of freedom of Student's errors")
    add_options(parser)
    parser.add_argument("--picture", default="laplace.png", help="where the picture goes")
    parser.add_argument("--check", action="store_true", help="fail unless the fit is that of statsmodels")
    options = parser.parse_args(argv)
    groups, names, table = firms()
    with opened(options) as scheduler:

        def total(theta: Any, df: float = np.inf) -> Any:
            return dagad.map_sum(laplace, groups, theta, df, scheduler=scheduler)

        start = np.array([0.0, 0.0, 0.0, 0.0, 0.0])
        normal = fit(total, start)
        student = fit(lambda theta: total(theta, options.df), normal[0])
    theirs = of_statsmodels(table)
    show("normal errors", normal)
    show("statsmodels", theirs)
    show(f"Student's errors, {options.df:g} degrees of freedom", student)
    gap = np.abs(normal[0] - theirs[0]).max()
    print(
        f"normal errors and statsmodels differ by {gap:.1e}, in the log likelihood by {abs(normal[2] - theirs[2]):.1e}"
    )
    effects = {"normal": (normal[0], np.inf), "Student's": (student[0], options.df)}
    draw(names, {key: np.array([mode(g, *at) for g in groups]) for key, at in effects.items()}, options.picture)
    print(f"picture: {options.picture}")
    right = gap < 1e-3 and abs(normal[2] - theirs[2]) < 1e-5
    return 0 if right or not options.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
