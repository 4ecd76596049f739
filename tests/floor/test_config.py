"""Config: do Dask's settings under ``dagad:`` reach the reductions, and which engines do names mean?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import autograd.numpy as anp
import dask
import numpy as np
import pytest
import yaml

import dagad
from dagad import _config, extend, reduce_sum
from dagad._config import setting

DEFAULTS = yaml.safe_load(Path(dagad.__file__).with_name("dagad.yaml").read_text(encoding="utf-8"))["dagad"]


def chunk_lengths(n_rows: int, **options: Any) -> list[int]:
    seen: list[int] = []

    def count(rows: Any) -> float:
        seen.append(len(rows))
        return 0.0

    reduce_sum(count, np.zeros(n_rows), scheduler="sync", **options)
    return seen


def sum_of_squares(rows: Any, theta: Any) -> Any:
    return anp.sum((rows - theta) ** 2)


def by_hand(rows: Any, theta: Any) -> Any:
    return np.sum((rows - theta) ** 2), lambda seed: (None, -2 * seed * np.sum(rows - theta))


def gradient_with(function: Any, **options: Any) -> Any:
    def loss(theta: Any) -> Any:
        return reduce_sum(function, np.arange(6.0), theta, grainsize=2, scheduler="sync", **options)

    return dagad.value_and_grad(loss)(1.0)


def test_the_defaults_are_part_of_dasks_configuration() -> None:
    assert DEFAULTS["engine"] == "autograd"
    assert DEFAULTS["grainsize"] == "auto"
    for name, default in DEFAULTS.items():
        assert dask.config.get(f"dagad.{name}") == default or name == "full-tracebacks"  # which the tests set
        assert setting(name) == default or name == "full-tracebacks"


def test_a_setting_that_was_taken_out_falls_back_to_its_default() -> None:
    with dask.config.set(dagad={}):
        assert setting("grainsize") == "auto"
        assert setting("engine") == "autograd"


def test_the_configured_grainsize_is_used() -> None:
    with dask.config.set({"dagad.grainsize": 10}):
        assert chunk_lengths(25) == [10, 10, 5]


def test_a_given_grainsize_goes_before_the_configured_one() -> None:
    with dask.config.set({"dagad.grainsize": 10}):
        assert chunk_lengths(7, grainsize=3) == [3, 3, 1]


@pytest.mark.parametrize(
    ("unknown", "meant"), [("grain_size", "grainsize"), ("checkfinite", "check-finite"), ("Progress", "progress")]
)
@pytest.mark.parametrize("whole", [False, True], ids=["one", "all"])
def test_a_setting_that_nobody_reads_is_named_once_with_the_nearest_one(unknown: str, meant: str, whole: bool) -> None:
    _config._NAMED._entries.clear()
    asked = {"dagad": {unknown: 1}} if whole else {f"dagad.{unknown}": 1}
    with dask.config.set(asked):
        with pytest.warns(dagad.DagadWarning, match=rf"`dagad\.{unknown}` is none.* mean `dagad\.{meant}`") as seen:
            chunk_lengths(4)
        assert [Path(warning.filename).name for warning in seen] == [Path(__file__).name]
        chunk_lengths(4)
    with dask.config.set({f"dagad.{meant}": DEFAULTS[meant]}):
        chunk_lengths(4)


def test_a_setting_like_none_of_dagads_is_named_with_all_of_them() -> None:
    _config._NAMED._entries.clear()
    with dask.config.set({"dagad.zzz": 1}), pytest.warns(dagad.DagadWarning, match="Choose one of check-finite, eng"):
        chunk_lengths(4)


def test_a_setting_with_an_underscore_for_a_hyphen_is_known() -> None:
    _config._NAMED._entries.clear()
    with dask.config.set({"dagad": {"check_finite": True, "full_tracebacks": True}}):
        assert chunk_lengths(4)
        assert setting("check-finite") is True


@pytest.mark.parametrize("grainsize", [0, "many", 2.5])
def test_a_configured_grainsize_that_makes_no_sense_is_refused(grainsize: Any) -> None:
    with dask.config.set({"dagad.grainsize": grainsize}), pytest.raises(dagad.PlanError, match="Cannot cut 4 rows"):
        chunk_lengths(4)


@pytest.mark.whole("programs, pages, recipes and pools that start processes of their own")
def test_an_environment_variable_sets_the_grainsize() -> None:
    code = (
        "import dagad, numpy as np\n"
        "seen = []\n"
        "dagad.reduce_sum(lambda rows: seen.append(len(rows)) or 0.0, np.zeros(10), scheduler='sync')\n"
        "print(seen[:3])"  # then a few rows are looked at, whether they add up
    )
    environment = os.environ | {"DASK_DAGAD__GRAINSIZE": "4"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[4, 4, 2]"


@pytest.mark.parametrize("engine", [None, "autograd", extend.AutogradEngine()], ids=["default", "name", "object"])
def test_autograd_differentiates_by_default_by_name_and_as_an_object(engine: Any) -> None:
    assert gradient_with(sum_of_squares, engine=engine) == (31.0, -18.0)


def test_an_explicit_function_brings_its_engine() -> None:
    assert gradient_with(extend.explicit(by_hand)) == (31.0, -18.0)
    assert gradient_with(extend.explicit(by_hand), engine="autograd") == (31.0, -18.0)


@pytest.mark.parametrize("engine", ["explicit", extend.ExplicitEngine()], ids=["name", "object"])
def test_the_explicit_engine_takes_functions_that_are_not_marked(engine: Any) -> None:
    assert gradient_with(by_hand, engine=engine) == (31.0, -18.0)
    assert reduce_sum(by_hand, np.arange(6.0), 1.0, grainsize=2, engine=engine, scheduler="sync") == 31.0


def test_the_configured_engine_is_used() -> None:
    with dask.config.set({"dagad.engine": "explicit"}):
        assert gradient_with(by_hand) == (31.0, -18.0)


def test_an_engine_of_ones_own_is_asked_once_a_chunk() -> None:
    class Counting(extend.AutogradEngine):
        calls = 0

        def linearize(self, *args: Any) -> Any:
            type(self).calls += 1
            return super().linearize(*args)

    assert gradient_with(sum_of_squares, engine=Counting()) == (31.0, -18.0)
    assert Counting.calls == 3


@pytest.mark.parametrize("engine", ["jacks", "", "Autograd"])
def test_an_unknown_engine_is_refused_with_the_choice(engine: str) -> None:
    with pytest.raises(
        dagad.PlanError, match=rf"no engine '{engine}'. Choose one of \['autograd', 'explicit', 'jax', 'torch'"
    ):
        gradient_with(sum_of_squares, engine=engine)


@pytest.mark.parametrize("engine", [3, object()], ids=["int", "object"])
def test_an_object_that_is_no_engine_is_refused(engine: Any) -> None:
    with pytest.raises(dagad.PlanError, match=r"is not an engine.*`dagad\.extend\.Engine`"):
        gradient_with(sum_of_squares, engine=engine)


def test_a_configured_engine_that_does_not_exist_is_refused() -> None:
    with dask.config.set({"dagad.engine": "jacks"}), pytest.raises(dagad.PlanError, match="no engine 'jacks'"):
        gradient_with(sum_of_squares)
