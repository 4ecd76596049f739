"""The gallery: a card and a page for each example, made of its docstring, its picture and its source."""

from __future__ import annotations

import ast
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

EXAMPLES = Path(__file__).parents[2] / "examples"
LEVELS = "Beginner", "Intermediate", "Advanced"


class Example(NamedTuple):
    """An example: its file, what is said on its card, and how to run it."""

    file: str
    title: str
    kind: str
    level: str
    shows: str
    run: str = ""

    @property
    def name(self) -> str:
        """Return the name of its page."""
        return self.file.partition(".")[0]

    @property
    def picture(self) -> str:
        """Return the picture of its card, seen from the pages of the gallery."""
        return f"{self.name}.png" if self.file.endswith(".ipynb") else f"../../examples/{self.name}.png"


ALL = (
    Example(
        "tour.ipynb", "A tour", "Notebook", "Beginner", "Values early, gradients behind them, a fit, standard errors."
    ),
    Example(
        "doctor_visits.py",
        "Doctor visits",
        "Regression",
        "Beginner",
        "A negative-binomial fit of 20,190 rows, beside statsmodels' own, on threads or on a cluster.",
    ),
    Example(
        "sum_of_models.py",
        "A sum of models",
        "Pytrees",
        "Intermediate",
        "An ensemble of dataclasses of several kinds, differentiated in their parameters and in x.",
    ),
    Example(
        "train_and_resume.py",
        "Killed, and resumed",
        "Network",
        "Intermediate",
        "A network trained by optax on samples of the chunks is killed, and goes on to the same bits.",
    ),
    Example(
        "chains_together.py",
        "Four chains as one program",
        "Bayes",
        "Intermediate",
        "NUTS in plain numpy, by `vmap` for four chains: each gradient of all of them is one pass over the rows.",
    ),
    Example(
        "starts_and_profiles.py",
        "Many starts, and profiles",
        "Likelihood",
        "Intermediate",
        "A mixture from sixteen starts in one loop, and the profiles of its parameters in another, by `vmap`.",
    ),
    Example(
        "pymc_potential.py",
        "A potential for PyMC",
        "Bayes",
        "Intermediate",
        "A sum over chunks as a part of a model of PyMC's, beside the posterior in closed form.",
    ),
    Example(
        "ridge_dask_array.py",
        "Ridge regression on zarr",
        "Dask arrays",
        "Intermediate",
        "A program of dask arrays on a store larger than the memory that it may use.",
    ),
    Example(
        "penalty.py",
        "How large should a ridge be?",
        "Regression",
        "Intermediate",
        "The penalty that predicts best, by derivatives through a fit over Shards, beside the normal equations.",
    ),
    Example(
        "heat.py",
        "Where was it hot?",
        "Simulation",
        "Intermediate",
        "The temperatures that a plate began with, from noisy ones at the end, through halos and time.",
    ),
    Example(
        "ensemble.py",
        "How sure is a forecast?",
        "Simulation",
        "Intermediate",
        "An ensemble of 4D-Vars on Lorenz's model, all members in one loop over the observations, by `vmap`.",
    ),
    Example(
        "cluster_tour.ipynb",
        "A tour on a cluster",
        "Notebook",
        "Intermediate",
        "Placed data, the dashboard, and a worker that is killed in the middle of a fit.",
    ),
    Example(
        "shallow_water.py",
        "Which water will a gauge see?",
        "Simulation",
        "Advanced",
        "Shallow water, and its adjoint as a film that runs backwards, with as many states as fit.",
    ),
    Example(
        "pharmacokinetics.py",
        "A thousand subjects",
        "Hierarchical fit",
        "Advanced",
        "Runge-Kutta inside `map_rect`, 2,000 parameters of subjects, by numpy on processes or compiled by jax.",
    ),
    Example(
        "pharmacokinetics_ivp.py",
        "Subjects solved by scipy",
        "Hierarchical fit",
        "Advanced",
        "`solve_ivp` for each subject in place of Runge-Kutta, its sensitivities beside those of matrix exponentials.",
    ),
    Example(
        "laplace.py",
        "An optimum in each group",
        "Bayes",
        "Advanced",
        "A hierarchical model by Laplace's approximation, differentiated through the optima, beside statsmodels.",
    ),
    Example(
        "nuts_on_shards.py",
        "NUTS on Shards",
        "Bayes",
        "Advanced",
        "A hierarchical model drawn by nutpie and blackjax, over rows that lie in two worker processes.",
    ),
)


def pages() -> Iterator[tuple[str, str]]:
    """Yield the page of cards, and one for each script."""
    yield "index", cards()
    for example in ALL:
        if example.file.endswith(".py"):
            yield example.name, page(example)


def cards() -> str:
    """Return the page that shows all examples, the easy ones first."""
    parts = [HEAD]
    for level in LEVELS:
        parts += [f"## {level}", "", "::::{grid} 1 2 3 3", ":gutter: 3", ""]
        for example in (one for one in ALL if one.level == level):
            parts.append(CARD.format(one=example))
        parts += ["::::", ""]
    entries = "\n".join(example.name for example in ALL)
    return "\n".join(parts) + f"\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"


def page(example: Example) -> str:
    """Return the page of a script."""
    docstring = ast.get_docstring(ast.parse((EXAMPLES / example.file).read_text(encoding="utf-8"))) or ""
    return PAGE.format(one=example, docstring=docstring.replace("``", "`"))


def notebooks() -> list[Path]:
    """Return the notebooks, which are shown as they were saved."""
    return [EXAMPLES / example.file for example in ALL if example.file.endswith(".ipynb")]


def read_notebook(path: Path) -> str:
    """Return a notebook as it is to lie in the gallery, from where other pages are elsewhere."""
    return path.read_text(encoding="utf-8").replace("](../docs/", "](../")


def last_picture(path: Path) -> bytes:
    """Return the last picture that a notebook shows, for its card."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    pictures = [
        output["data"]["image/png"]
        for cell in cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", ())
    ]
    return base64.b64decode("".join(pictures[-1]))


HEAD = """# Gallery

Whole programs, each run by a test. The scripts lie in `examples/` of a copy of the repository; `pip install
".[examples]"` there installs what they need, `pip install ".[samplers]"` what those with samplers and optax need.
Each takes `--help`, and `--check` to fail unless its numbers are right.
"""
CARD = """:::{{grid-item-card}} {one.title}
:link: {one.name}
:link-type: doc
:img-top: {one.picture}
:img-alt: {one.title}, as a picture

{{bdg-primary}}`{one.level}` {{bdg-secondary}}`{one.kind}`

{one.shows}
:::
"""
PAGE = """# {one.title}

{docstring}

{{bdg-primary}}`{one.level}` {{bdg-secondary}}`{one.kind}`

```sh
python examples/{one.file}
```

![The picture that this example draws]({one.picture})

```{{literalinclude}} ../../examples/{one.file}
:language: python
```
"""
