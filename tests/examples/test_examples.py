"""Examples: do they run, and come to the right numbers?"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from support.waiting import PATIENCE

pytestmark = pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *options: str) -> str:
    command = [sys.executable, "-W", "error::RuntimeWarning", str(EXAMPLES / name), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_here(name: str, *options: str) -> str:
    """Run one that has run already in a process of its own, which takes seconds to import what it needs."""
    said = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(said), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("default")
        warnings.simplefilter("error", RuntimeWarning)
        patch.setattr(sys, "argv", [name, *options])
        patch.syspath_prepend(EXAMPLES)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert not ended.value.code, said.getvalue()
    return said.getvalue()


def drawn(tmp_path: Path, name: str, *options: str) -> str:
    """Run one that is to leave a picture behind, and look whether it has; return what it said."""
    picture = tmp_path / "picture.png"
    said = run(name, *options, "--picture", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    return said


@pytest.mark.parametrize(("run", "scheduler"), [(run, "threads"), (run_here, "sync")], ids=["threads", "sync"])
def test_doctor_visits_agrees_with_statsmodels(run: Callable[..., str], scheduler: str, tmp_path: Path) -> None:
    picture = tmp_path / "coefficients.png"
    output = run("doctor_visits.py", "--check", "--scheduler", scheduler, "--output", str(picture))
    assert re.search(r"-43,?383\.66", output)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_doctor_visits_takes_more_rows(tmp_path: Path) -> None:
    more = ["--rows", "30000", "--grainsize", "5000", "--output", str(tmp_path / "more.png")]
    output = run_here("doctor_visits.py", *more)
    assert re.search(r"30[, ]?000", output)


def test_laplace_agrees_with_the_mixed_models_of_statsmodels(tmp_path: Path) -> None:
    output = drawn(tmp_path, "laplace.py", "--check")
    assert re.search(r"normal errors: log likelihood -181\.312", output)


def test_the_penalty_that_predicts_best_is_that_of_the_normal_equations(tmp_path: Path) -> None:
    output = drawn(tmp_path, "penalty.py", "--check")
    assert re.search(r"the best penalty is (\d+\.\d+); by the normal equations alone \1", output)


def test_subjects_solved_by_scipy_have_the_sensitivities_of_matrix_exponentials(tmp_path: Path) -> None:
    output = drawn(tmp_path, "pharmacokinetics_ivp.py", "--check", "--subjects", "4")
    assert re.search(r"Taylor remainders fall at the rate 2\.0", output)


def test_a_network_whose_training_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    output = drawn(tmp_path, "train_and_resume.py", "--check", "--steps", "100")
    assert "killed after step 53 (it ended with -9), resumed at step 50" in output
    assert "losses are the same, bit for bit" in output


def test_chains_draw_together_what_they_draw_alone(tmp_path: Path) -> None:
    output = drawn(tmp_path, "chains_together.py", "--check", "--draws", "40")
    assert "together and alone the draws are the same, bit for bit" in output


def test_starts_and_profiles_in_one_loop_have_the_bits_of_loops(tmp_path: Path) -> None:
    output = drawn(tmp_path, "starts_and_profiles.py", "--check")
    assert output.count("the same, bit for bit") == 2


def test_an_ensemble_knows_how_wrong_its_forecast_is(tmp_path: Path) -> None:
    output = drawn(tmp_path, "ensemble.py", "--check", "--members", "8")
    assert "the last member together and alone: the same, bit for bit" in output


def test_heat_recovers_what_a_plate_began_with(tmp_path: Path) -> None:
    output = drawn(tmp_path, "heat.py", "--check", "--size", "40")
    assert re.search(r"gradient off by \d\.\de-1", output)


def test_ridge_of_dask_arrays_says_what_the_normal_equations_say(tmp_path: Path) -> None:
    output = drawn(tmp_path, "ridge_dask_array.py", "--check", "--data", "20MB", "--memory", "1GB")
    assert re.search(r"normal equations by \d\.\de-", output)


def test_pharmacokinetics_compiled_by_jax_recovers_what_was_simulated(tmp_path: Path) -> None:
    output = drawn(tmp_path, "pharmacokinetics.py", "--check", "--engine", "jax", "--subjects", "20")
    assert re.search(r"Taylor remainders fall at the rate 2\.0", output)


def test_shallow_water_knows_what_a_gauge_will_see(tmp_path: Path) -> None:
    small = ["--size", "32", "--exchanges", "5", "--slots", "2"]
    output = drawn(tmp_path, "shallow_water.py", "--check", *small)
    assert re.search(r"at most \d+ tapes", output)


def test_nuts_draws_the_same_on_shards_as_one_after_the_other(tmp_path: Path) -> None:
    small = ["--rows", "500", "--groups", "5", "--draws", "25", "--samplers", "nutpie", "--scheduler", "threads"]
    output = drawn(tmp_path, "nuts_on_shards.py", "--check", *small)
    assert "the same, bit for bit" in output


def test_pymc_draws_from_the_posterior_in_closed_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTENSOR_FLAGS", "cxx=")  # its C compiler takes longer than all that it would make faster here
    small = ["--rows", "100", "--draws", "100", "--chains", "1", "--scheduler", "sync"]
    output = drawn(tmp_path, "pymc_potential.py", "--check", *small)
    assert re.search(r"variance +drawn 0\.\d+", output)
