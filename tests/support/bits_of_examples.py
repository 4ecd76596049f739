"""A program that says whether the examples have the bits of threads where ``--scheduler`` says."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import cloudpickle
import numpy as np
from rich.console import Console

import dagad
from dagad._values import pytree

if __name__ == "__main__":  # the examples are found by who runs this, and not by who looks for doctests
    doctor_visits, pharmacokinetics = import_module("doctor_visits"), import_module("pharmacokinetics")
    for module in (doctor_visits, pharmacokinetics):
        cloudpickle.register_pickle_by_value(module)  # as when it is the program; workers import no statsmodels


def visits(scheduler: Any) -> Any:
    """Return what the main job finds."""
    found = doctor_visits.fit_dagad(doctor_visits.load(None), Console(quiet=True), scheduler=scheduler, grainsize=2000)
    return found.params, found.errors, found.log_likelihood


def kinetics(scheduler: Any) -> Any:
    """Return value and gradient where the search begins."""
    loss = pharmacokinetics.Loss(pharmacokinetics.simulate(30), scheduler=scheduler, grainsize=8)
    return dagad.value_and_grad(loss)(pharmacokinetics.neutral(30))


def bits(found: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in pytree.flatten(found)[0]]


if __name__ == "__main__":
    with import_module("scheduler_option").opened(doctor_visits.parse(None)) as there:
        for example, compute in {"doctor_visits": visits, "pharmacokinetics": kinetics}.items():
            print(f"{example}:", "the same bits" if bits(compute(there)) == bits(compute("threads")) else "OTHERS")
