"""Names that are not in `dagad`: does the error say where they are, and does what it says lead there?"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

import dagad
from dagad import MissingNameError
from dagad._api import missing


def sentence(name: str) -> str:
    with pytest.raises(MissingNameError) as seen:
        getattr(dagad, name)
    return str(seen.value)


def named(said: str) -> str:
    """Return what the sentence says that it is, or may be."""
    found = re.search(r"(?:It is|Did you mean) `([\w.]+)`", said)
    assert found is not None, said
    return found[1]


ELSEWHERE = [path for path in missing._public_paths() if path.startswith("dagad.interop.") and path.count(".") == 3]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", ELSEWHERE)
def test_a_name_of_interop_is_found_with_its_import(path: str) -> None:
    door, _, name = path.rpartition(".")
    said = sentence(name)
    if named(said) != path:  # of two of one name the one that needs no neighbour is told
        assert hasattr(dagad.extend, name)
        return
    assert said.endswith(f", after `import {door}`.")
    if find_spec(door.rpartition(".")[2]) is not None:
        assert callable(getattr(importlib.import_module(door), name))


@pytest.mark.parametrize(
    ("name", "path"),
    {
        "sum_reduce": "dagad.reduce_sum",
        "grad_and_value": "dagad.value_and_grad",
        "Grad": "dagad.grad",
        "reducesum": "dagad.reduce_sum",
        "dashbord": "dagad.dashboard",
        "recompute": "dagad.extend.Recompute",
        "explict": "dagad.extend.explicit",
        "taylor_rate": "dagad.testing.taylor_rate",
        "PlanErr": "dagad.PlanError",
        "values_and_grad": "dagad.value_and_grad",
    }.items(),
)
def test_a_misspelt_name_leads_to_the_one_that_was_meant(name: str, path: str) -> None:
    found = named(sentence(name))
    assert found == path
    assert eval(found, {"dagad": dagad}) is not None


@pytest.mark.parametrize("name", ["random", "resume", "hmc", "log_likelihood"])
def test_a_name_like_no_other_is_not_guessed(name: str) -> None:
    assert sentence(name) == f"There is no `dagad.{name}`. `help(dagad)` shows what there is."


def test_the_doctor_is_a_command() -> None:
    code = "import dagad; dagad.doctor"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "`python -m dagad.doctor ADDRESS`" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "remedy"),
    {
        "remat": "policy=dagad.extend.Recompute()",
        "jit": "dagad.interop.jax.as_jax",
        "gradcheck": "dagad.testing.check_grads",
        "settings": "dask.config.set",
    }.items(),
)
def test_a_name_of_another_package_has_its_counterpart(name: str, remedy: str) -> None:
    assert remedy in sentence(name)


def test_no_name_is_guessed_for_what_tools_ask() -> None:
    assert sentence("__wrapped__") == "There is no `dagad.__wrapped__`."
