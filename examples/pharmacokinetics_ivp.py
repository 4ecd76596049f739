"""The pharmacokinetics of `pharmacokinetics.py`, each subject's equations solved by scipy, to a tolerance.

Nothing changes but the function that predicts a subject. Its curves and their sensitivities are compared with those of
matrix exponentials, which these equations happen to have.
"""

import argparse
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from scipy.linalg import expm

import dagad
from dagad.solvers import solve_ivp
from dagad.testing import taylor_rate
from pharmacokinetics import (
    HOURS,
    NAMES,
    STEPS,
    Fit,
    Loss,
    Study,
    Subject,
    agrees,
    count,
    estimates,
    fit,
    flows,
    log_concentrations,
    neutral,
    simulate,
)
from scheduler_option import add_options, opened

TOLERANCES: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-7}
GUT = np.array([1.0, 0.0, 0.0])


def predict(item: Any, log_v2: Any) -> Any:
    """Log-concentrations of one subject: as many as samples were taken, from one dose to the next."""
    log_theta, subject = item
    matrix, state, amounts = flows(log_theta, log_v2), np.zeros(3), []
    for start, end in itertools.pairwise([*subject.doses, STEPS]):
        state = state + subject.doses[start] * GUT
        taken = [sample for sample in subject.samples if start < sample <= end]
        times = HOURS * np.array(sorted({*taken, end}))
        found = solve_ivp(lambda t, y: matrix @ y, (HOURS * start, HOURS * end), state, t_eval=times, **TOLERANCES)
        state = found.y[:, -1]
        amounts.append(found.y[1, : len(taken)])
    return np.log(np.concatenate(amounts)) - log_theta[2]


class SolvedLoss(Loss):
    """Minus the log of the posterior density, by subject."""

    def predict(self, params: Any) -> Any:
        """Log-concentrations of all subjects, one after the other, as they were observed."""
        return dagad.map_rect(predict, (params["subjects"], self.placed), params["log_v2"])


def of_solver(logs: Any, subject: Subject) -> Any:
    """Log-concentrations of one subject, whose parameters and the volume of whose periphery are `logs`."""
    return predict((logs[:4], subject), logs[4])


def of_exponentials(logs: Any, subject: Subject) -> Any:
    """The same, by the exponential of the matrix."""
    return log_concentrations(expm(HOURS * flows(logs[:4], logs[4])), logs[:4], subject)


def slopes(logs: np.ndarray, subject: Subject, step: float = 1e-5) -> np.ndarray:
    """How the exponentials' curves move along each parameter, by differences."""
    moved = [of_exponentials(logs + d, subject) - of_exponentials(logs - d, subject) for d in step * np.eye(len(logs))]
    return np.stack(moved, axis=1) / (2.0 * step)


def is_solved(study: Study, log_v2: float, console: Console) -> bool:
    """Compare some subjects' curves and sensitivities with those of matrix exponentials."""
    off = []
    for log_theta, subject in list(zip(study.log_theta, study.subjects, strict=True))[:10]:
        logs = np.append(log_theta, log_v2)
        value, jacobian = of_solver(logs, subject), dagad.jacfwd(of_solver)(logs, subject)
        gaps = value - of_exponentials(logs, subject), jacobian - slopes(logs, subject)
        off.append([np.abs(gap).max() for gap in gaps])
    value, slope = np.max(off, axis=0)
    console.print(
        f"solutions and matrix exponentials differ by {value:.1e} in logs, their sensitivities by {slope:.1e}"
    )
    return bool(value < 1e-4 and slope < 1e-4)


def draw(study: Study, fitted: Fit, path: str) -> None:
    """Draw subjects beside what was observed, and how the curve of one depends on each of its parameters."""
    figure = Figure(figsize=(11.0, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps, rows = list(range(1, STEPS + 1)), fitted.params["subjects"]
    hours = HOURS * np.array(steps)
    observed = np.split(study.log_observed, np.cumsum([len(subject.samples) for subject in study.subjects]))
    for place, (theta, subject) in enumerate(list(zip(rows, study.subjects, strict=True))[:4]):
        curve = np.exp(predict((theta, Subject(subject.doses, steps)), fitted.params["log_v2"]))
        left.semilogy(hours, curve, color=f"C{place}", linewidth=1.2, label=f"subject {place + 1}")
        left.semilogy(
            HOURS * np.array(subject.samples), np.exp(observed[place]), "o", color=f"C{place}", markersize=3.5
        )
    left.set(xlabel="hours", ylabel="concentration in the centre, mg/L", ylim=(0.05, 5.0))
    left.legend(frameon=False, fontsize="small")
    logs, asked = np.append(rows[0], fitted.params["log_v2"]), Subject(study.subjects[0].doses, steps)
    both = zip(dagad.jacfwd(of_solver)(logs, asked).T, slopes(logs, asked).T, strict=True)
    for place, (own, exact) in enumerate(both):
        right.plot(hours, own, color=f"C{place}", linewidth=1.2, label=NAMES[place].partition(",")[0])
        right.plot(hours[::3], exact[::3], "o", color=f"C{place}", markersize=3.0)
    right.set(xlabel="hours", ylabel="change of log(concentration) per change of a log", title="subject 1")
    aside: Any = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "title": "lines: dagad\npoints: exponentials"}
    right.legend(frameon=False, fontsize="small", title_fontsize="small", **aside)
    figure.savefig(path, dpi=110)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--subjects", type=count, help="how many (default: 60, with --check 12)")
    add_options(parser)
    parser.add_argument("--picture", default="pharmacokinetics_ivp.png", help="where it goes")
    parser.add_argument("--check", action="store_true", help="fail unless solutions, estimates and gradient are right")
    options = parser.parse_args(argv)
    options.subjects = options.subjects or (12 if options.check else 60)
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    console = Console()
    console.width = max(console.width, 90)  # the table needs it, also where the output is a file
    study = simulate(options.subjects)
    with opened(options) as scheduler:
        loss = SolvedLoss(study, scheduler=scheduler, grainsize=-(-options.subjects // 4))
        fitted = fit(loss, console)
        rate = taylor_rate(loss, neutral(options.subjects)) if options.check else 2.0
    console.print(estimates(study, fitted))
    solved = is_solved(study, fitted.params["log_v2"], console)
    draw(study, fitted, options.picture)
    console.print(f"picture: {options.picture}")
    return 0 if not options.check or (solved and agrees(fitted, rate, console)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
