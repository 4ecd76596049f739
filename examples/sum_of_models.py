"""An ensemble of unlike models, fitted as one sum to scattered measurements, and then climbed to its summit."""

import argparse
import functools
import timeit
from collections.abc import Callable, Sequence
from typing import Any

import autograd
import autograd.numpy as np  # and not numpy itself: plain autograd runs the same models, to compare with
import optree
from matplotlib.figure import Figure
from optree.dataclasses import dataclass, field
from optree.integrations.numpy import tree_ravel
from scipy.optimize import minimize

import dagad
from scheduler_option import add_options, opened

NOISE = 0.02  # standard deviation of a measurement
ACTIVATIONS = {"tanh": np.tanh, "sin": np.sin}
RECORD: dict[str, Any] = {"frozen": True, "namespace": "dagad"}  # where dagad looks up what a record is made of
CONSTANT = {"pytree_node": False}  # part of the structure, like the class itself: nothing is differentiated in it


@dataclass(**RECORD)
class Bump:
    """A hill: a Gaussian for `power` 2, with a flat top for 4."""

    height: Any
    center: Any
    sharpness: Any
    power: int = field(metadata=CONSTANT)

    def __call__(self, x: Any) -> Any:
        squares = np.sum(((x - self.center) * self.sharpness) ** 2, axis=-1)
        return self.height * np.exp(-(squares ** (self.power // 2)))


@dataclass(**RECORD)
class Network:
    """A neural network with one hidden layer."""

    weights: Any
    biases: Any
    outputs: Any
    activation: str = field(metadata=CONSTANT)

    def __call__(self, x: Any) -> Any:
        return np.dot(ACTIVATIONS[self.activation](np.dot(x, self.weights) + self.biases), self.outputs)


def call(model: Any, x: Any) -> Any:
    return model(x)


def plain_sum(models: Sequence[Any], x: Any) -> Any:
    return sum(model(x) for model in models)


def loss(total: Callable[..., Any], models: Any, points: Any, heights: Any) -> Any:
    """Mean square of what the sum of the models leaves of the measurements, in units of their noise."""
    return np.mean(((total(models, points) - heights) / NOISE) ** 2)


def franke(x: np.ndarray) -> np.ndarray:
    """Franke's surface on the unit square (1979), the usual trial of what fits scattered data."""
    u, v = 9.0 * x[..., 0], 9.0 * x[..., 1]
    hills = 0.75 * np.exp(-((u - 2) ** 2 + (v - 2) ** 2) / 4) + 0.75 * np.exp(-((u + 1) ** 2) / 49 - (v + 1) / 10)
    return hills + 0.5 * np.exp(-((u - 7) ** 2 + (v - 3) ** 2) / 4) - 0.2 * np.exp(-((u - 4) ** 2) - (v - 7) ** 2)


def make_models(n_models: int, hidden: int, rng: np.random.Generator) -> list[Any]:
    """Bumps and networks in turn, each kind in two varieties."""
    models: list[Any] = []
    for i in range(n_models):
        variety = i // 2 % 2
        if i % 2 == 0:
            center, sharpness = rng.uniform(size=2), rng.uniform(2.0, 8.0, size=2)
            models.append(Bump(0.1 * rng.standard_normal(), center, sharpness, (2, 4)[variety]))
        else:
            weights, biases = 3.0 * rng.standard_normal((2, hidden)), rng.standard_normal(hidden)
            outputs = rng.standard_normal(hidden) / (hidden * n_models)
            models.append(Network(weights, biases, outputs, ("tanh", "sin")[variety]))
    return models


def plain_value_and_gradients(models: Any, points: Any, heights: Any) -> tuple[Any, Any, Any]:
    """Plain autograd on the plain sum. It does not look into records, so they are taken apart around it."""
    leaves, structure = optree.tree_flatten(models, namespace="dagad")

    def of_leaves(boxes: Any) -> Any:
        opened = optree.tree_unflatten(structure, [boxes[i] for i in range(len(leaves))])
        return loss(plain_sum, opened, boxes[-1], heights)

    value, (*parts, for_x) = autograd.value_and_grad(of_leaves)([*leaves, points])
    return value, optree.tree_unflatten(structure, parts), for_x


def largest_gap(actual: Any, expected: Any) -> float:
    """The largest difference in any leaf, relative to the largest number of that leaf; the structures are equal."""
    leaves, structure = optree.tree_flatten(actual, namespace="dagad")
    others, other_structure = optree.tree_flatten(expected, namespace="dagad")
    assert structure == other_structure, f"{structure} is not {other_structure}"
    return float(max(np.max(np.abs(a - b)) / np.max(np.abs(b)) for a, b in zip(leaves, others, strict=True)))


def compare(total: Callable[..., Any], models: list[Any], data: tuple[Any, Any]) -> bool:
    """Put the gradients for the models and for x beside those of plain autograd; return whether they are the same."""
    parallel, plain = (
        functools.partial(dagad.value_and_grad(functools.partial(loss, each), argnums=(0, 1)), models, *data)
        for each in (total, plain_sum)
    )
    value, (for_models, for_x) = parallel()
    print(f"{len(models)} models at {len(data[0])} points; the shapes of the gradient for the models:")
    for model in optree.tree_map(np.shape, for_models, namespace="dagad")[:4]:
        print(f"  {model}")
    gaps = list(map(largest_gap, (value, for_models, for_x), plain_value_and_gradients(models, *data)))
    print("largest relative difference from plain autograd: value {:.1e}, models {:.1e}, x {:.1e}".format(*gaps))
    times = [1e3 * np.median(timeit.repeat(run, number=1, repeat=7)) for run in (parallel, plain)]
    print("value and both gradients: {:.1f} ms in parallel, {:.1f} ms of the plain sum".format(*times))
    return max(gaps) <= 1e-12


def fit(total: Callable[..., Any], models: list[Any], data: tuple[Any, Any], steps: int) -> tuple[list[Any], Any]:
    """Return the models where their loss is least, and what the search has to say."""
    start, as_models = tree_ravel(models, namespace="dagad")
    both = dagad.value_and_grad(functools.partial(loss, total))

    def objective(flat: Any) -> tuple[Any, Any]:
        value, gradient = both(as_models(flat), *data)
        return value, tree_ravel(gradient, namespace="dagad")[0]  # models too: they come apart alike

    found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": steps, "maxcor": 30})
    return as_models(found.x), found


def climb(total: Callable[..., Any], models: list[Any], starts: np.ndarray, steps: int = 120) -> np.ndarray:
    """Return the ways up the summed surface, shape (steps, starts, 2): steepest ascent within the unit square."""

    def heights(x: Any) -> Any:
        return np.sum(total(models, x))  # no point has a part in another's height, so each gets its own slope

    slopes, ways = dagad.grad(heights), [starts]
    for _ in range(steps):
        ways.append(np.clip(ways[-1] + 0.025 * slopes(ways[-1]), 0.0, 1.0))
    return np.array(ways)


def draw(models: list[Any], ways: np.ndarray, summit: np.ndarray, path: str) -> None:
    axis = np.linspace(0.0, 1.0, 81)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1)
    fitted = plain_sum(models, grid)
    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    figure.colorbar(left.contourf(axis, axis, fitted, 20), ax=left)
    left.plot(ways[..., 0], ways[..., 1], color="white", linewidth=1.2)
    left.plot(ways[0, :, 0], ways[0, :, 1], "o", color="white", markersize=4)
    left.plot(*summit, "*", color="C3", markersize=14)
    left.set_title(f"sum of {len(models)} fitted models, and the ways up")
    levels = np.linspace(-3.0 * NOISE, 3.0 * NOISE, 21)
    gap = right.contourf(axis, axis, fitted - franke(grid), levels, cmap="coolwarm", extend="both")
    figure.colorbar(gap, ax=right)
    right.set_title("fitted sum minus the true surface")
    figure.savefig(path, dpi=110)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=24, help="how many models to sum, at least 2")
    add_options(parser)
    parser.add_argument("--picture", default="sum_of_models.png", help="where the picture goes")
    parser.add_argument("--check", action="store_true", help="a small run; fail unless gradients and summit are right")
    options = parser.parse_args(argv)
    if options.models < 2:
        parser.error(f"--models {options.models}: two kinds of models take at least 2")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    rng = np.random.default_rng(1979)
    points = rng.uniform(size=(500 if options.check else 4000, 2))
    data = (points, franke(points) + NOISE * rng.standard_normal(len(points)))
    models = make_models(options.models, 8 if options.check else 64, rng)
    starts = np.array([[u, v] for u in (0.1, 0.5, 0.9) for v in (0.1, 0.5, 0.9)])
    with opened(options) as scheduler:
        # One model of each variety in a chunk makes chunks alike; a size that is given makes all schedulers agree.
        total = functools.partial(dagad.map_sum, call, grainsize=4, scheduler=scheduler)
        right = compare(total, models, data)
        fitted, found = fit(total, models, data, steps=100 if options.check else 200)
        ways = climb(total, fitted, starts)
    error, ends = np.sqrt(found.fun), ways[-1]
    summit = ends[np.argmax(plain_sum(fitted, ends))]
    print(f"fit: residuals {error:.3f} times the noise, after {found.nfev} gradients for the models")
    true = minimize(lambda x: -franke(x), summit, method="Nelder-Mead", tol=1e-10)
    distance = np.linalg.norm(summit - true.x)
    print(f"summit: {plain_sum(fitted, summit):.4f} at {summit}; in truth {-true.fun:.4f}, {distance:.4f} away")
    draw(fitted, ways, summit, options.picture)
    print(f"picture: {options.picture}")
    return 0 if not options.check or (right and error < 3.0 and distance < 0.1) else 1


if __name__ == "__main__":
    raise SystemExit(main())
