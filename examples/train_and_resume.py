"""A small network is trained by optax on some of the chunks in each step, is killed, and goes on to the same bits.

The program trains once without a checkpoint. Then it starts itself in another process, with one, kills that in the
middle of an epoch (``kill -9``), and goes on where it was: parameters and losses are those of the first
run, bit for bit.
"""

import argparse
import itertools
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax
from matplotlib.figure import Figure

import dagad
from scheduler_option import add_options, opened

jax.config.update("jax_enable_x64", True)  # or optax would keep parameters in float32

SEED, N_ARMS, WIDTHS = 3, 3, (2, 24, 24, 3)
N_ROWS, N_CHUNKS, N_SAMPLED = 24_000, 24, 4  # an epoch is six steps


def spirals() -> tuple[np.ndarray, np.ndarray]:
    """Draw points of three arms that wind around each other, and the number of the arm of each."""
    rng = np.random.default_rng(SEED)
    arm, far = rng.integers(N_ARMS, size=N_ROWS), np.sqrt(rng.uniform(0.02, 1.0, size=N_ROWS))
    angle = 2.0 * np.pi * (arm / N_ARMS + far) + 0.25 * rng.standard_normal(N_ROWS)
    return 2.0 * np.stack([far * np.cos(angle), far * np.sin(angle)], axis=1), arm


def begin() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(SEED)
    sizes = itertools.pairwise(WIDTHS)
    return [{"w": rng.standard_normal((n, m)) / np.sqrt(n), "b": np.zeros(m)} for n, m in sizes]


def scores(x: Any, layers: Any) -> Any:
    """Return a score of each arm for each point."""
    for layer in layers[:-1]:
        x = np.tanh(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def cross_entropy(rows: Any, layers: Any) -> Any:
    x, arm = rows
    found = scores(x, layers)
    largest = np.max(found, axis=1, keepdims=True)
    logs = largest[:, 0] + np.log(np.sum(np.exp(found - largest), axis=1))
    return np.sum(logs - found[np.arange(len(arm)), arm])


def steps(shards: Any, n_steps: int) -> tuple[Any, Callable[[Any], Any]]:
    """Return the state before the first step, and a function that takes one; states are pytrees of numpy's arrays."""
    solver = optax.adam(optax.cosine_decay_schedule(0.02, n_steps))
    like = solver.init(begin())
    start = {"layers": begin(), "moments": jax.tree.leaves(like), "losses": np.full(n_steps, np.nan), "number": 0}

    def step(state: Any) -> Any:
        number = state["number"]
        sample = shards.sample(N_SAMPLED, seed=SEED, step=number)  # the same chunks whenever and wherever it is taken

        def loss(layers: Any) -> Any:
            return dagad.reduce_sum(cross_entropy, sample, layers) / sample.n_rows

        value, gradient = dagad.value_and_grad(loss)(state["layers"])
        moments = jax.tree.unflatten(jax.tree.structure(like), state["moments"])
        moves, moments = solver.update(gradient, moments, state["layers"])
        layers = jax.tree.map(np.asarray, optax.apply_updates(state["layers"], moves))
        losses = np.where(np.arange(n_steps) == number, value, state["losses"])
        moments = [np.asarray(leaf) for leaf in jax.tree.leaves(moments)]
        return {"layers": layers, "moments": moments, "losses": losses, "number": number + 1}

    return jax.tree.map(np.asarray, start) | {"number": 0}, step


def train(shards: Any, n_steps: int) -> Any:
    state, step = steps(shards, n_steps)
    while state["number"] < n_steps:
        state = step(state)
    return state


def train_with_checkpoint(shards: Any, n_steps: int, path: str, tell: Callable[[int], None]) -> tuple[Any, int]:
    """Train, and save the state after each tenth step; return it, and at which step this began."""
    start, step = steps(shards, n_steps)
    with dagad.checkpoint(path) as run:
        state = start if run.state is None else run.state
        first = state["number"]
        while state["number"] < n_steps:
            state = step(state)
            if state["number"] % 10 == 0:
                run.save(state)
            tell(state["number"])
    return state, first


def killed(path: str, kill_at: int, options: argparse.Namespace) -> int:
    """Train in another process, kill it after a step, and return how it ended."""
    asked = ["--directory", path, "--steps", str(options.steps), "--scheduler", options.scheduler]
    child = subprocess.Popen([sys.executable, __file__, *asked], stdout=subprocess.PIPE, text=True)
    with child:
        for line in child.stdout or ():
            if line.startswith("step") and int(line.split()[1]) >= kill_at:
                child.send_signal(signal.SIGKILL)
                break
    return child.returncode


def is_same(one: Any, other: Any) -> bool:
    return all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def right_share(rows: tuple[np.ndarray, np.ndarray], layers: Any) -> float:
    x, arm = rows
    return float(np.mean(np.argmax(scores(x, layers), axis=1) == arm))


def draw(rows: tuple[np.ndarray, np.ndarray], state: Any, kill_at: int, first: int, path: str) -> None:
    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    numbers = np.arange(len(state["losses"]))
    left.semilogy(numbers, state["losses"], color="0.75", linewidth=3.0, label="in one go")
    left.semilogy(numbers[:kill_at], state["losses"][:kill_at], color="C0", linewidth=0.9, label="until it is killed")
    left.semilogy(numbers[first:], state["losses"][first:], color="C3", linewidth=0.9, label="resumed")
    left.axvline(kill_at, color="0.4", linewidth=0.8, linestyle=":")
    left.set(xlabel="step", ylabel="loss of the rows of the step")
    left.legend(frameon=False)
    across = np.linspace(-2.2, 2.2, 240)
    points = np.stack(np.meshgrid(across, across), axis=-1).reshape(-1, 2)
    arms = np.argmax(scores(points, state["layers"]), axis=1).reshape(len(across), -1)
    right.contourf(across, across, arms, levels=np.arange(N_ARMS + 1) - 0.5, colors=["C0", "C1", "C2"], alpha=0.3)
    x, arm = rows[0][:900], rows[1][:900]
    right.scatter(*x.T, c=[f"C{one}" for one in arm], s=3.0)
    right.set(aspect="equal", xticks=[], yticks=[], title="which arm a point belongs to")
    figure.savefig(path, dpi=110)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="how many there are")
    parser.add_argument("--directory", help="train with a checkpoint there, and do nothing else")
    add_options(parser)
    parser.add_argument("--picture", default="train_and_resume.png", help="where it goes")
    parser.add_argument("--check", action="store_true", help="fail unless the bits are the same")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options, rows = parse(argv), spirals()
    with opened(options) as scheduler:
        shards = dagad.shard(rows, grainsize=N_ROWS // N_CHUNKS, scheduler=scheduler)
        if options.directory:
            train_with_checkpoint(
                shards, options.steps, options.directory, lambda number: print(f"step {number}", flush=True)
            )
            return 0
        whole = train(shards, options.steps)
        with tempfile.TemporaryDirectory() as path:
            kill_at = options.steps // 2 + 3
            ended = killed(path, kill_at, options)
            resumed, first = train_with_checkpoint(shards, options.steps, path, lambda number: None)
    same, share = is_same(whole, resumed), right_share(rows, resumed["layers"])
    print(f"killed after step {kill_at} (it ended with {ended}), resumed at step {first}")
    print(f"parameters, moments and {options.steps} losses are {'the same, bit for bit' if same else 'others'}")
    print(f"{100.0 * share:.1f} % of the points are given to the right arm")
    draw(rows, resumed, kill_at, first, options.picture)
    print(f"picture: {options.picture}")
    right = same and ended == -signal.SIGKILL and 0 < first < kill_at and share > 0.9
    return 0 if right or not options.check else 1


if __name__ == "__main__":
    raise SystemExit(main())
