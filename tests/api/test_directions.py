"""Directions of Jacobians side by side: have they the bits of a loop, and do they run beside each other?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import autograd
import autograd.numpy as anp
import dask
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad._kernels.context import is_in_a_transform
from dagad._values import pytree
from dagad.solvers import odeint, quad, solve_ivp
from support.clusters import a_cluster
from support.gated_chunks import bits

RNG = np.random.default_rng(0)
X, ROWS = RNG.standard_normal(7), RNG.standard_normal((20, 7))


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    with a_cluster(2) as client:
        yield client


@pytest.fixture(params=["sync", "threads", "client"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[Any]:
    with dask.config.set(num_workers=3):
        yield request.getfixturevalue("client") if request.param == "client" else request.param


def steps(x: Any) -> Any:
    for _ in range(5):
        x = x + 0.1 * anp.sin(x) * anp.roll(x, 1)
    return x


def with_branches(x: Any) -> Any:
    return steps(x) if np.sum(x) > 100.0 else steps(2.0 * x)[:3]


def chunk(rows: Any, x: Any) -> Any:
    return anp.sum(anp.tanh(rows @ x) ** 2)


def vectors(rows: Any, x: Any) -> Any:
    return anp.sum(anp.tanh(rows * x), axis=0)


def item(row: Any, x: Any) -> Any:
    return anp.sin(row @ x)


def total(x: Any) -> Any:
    return dagad.reduce_sum(chunk, ROWS, steps(x), grainsize=4)


def around_a_sum(x: Any) -> Any:
    return steps(x) * total(x)


def of_vectors(x: Any) -> Any:
    return steps(dagad.reduce_sum(vectors, ROWS, x, grainsize=4, scheduler="threads"))


def of_items(x: Any) -> Any:
    return dagad.map(item, ROWS, steps(x), grainsize=4)


def of_a_dict(x: Any) -> Any:
    return {"a": steps(x), "b": (total(x), 3.0), "n": 2, "word": "w"}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    fun.__name__: fun for fun in (steps, with_branches, total, around_a_sum, of_vectors, of_items, of_a_dict)
}


def every_bit(tree: Any) -> list[bytes]:
    return bits([leaf for leaf in pytree.flatten(tree)[0] if not isinstance(leaf, str)])


@pytest.mark.parametrize("mode", [dagad.jacfwd, dagad.jacrev], ids=["jacfwd", "jacrev"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_jacobian_side_by_side_has_the_bits_of_one_direction_after_the_other(
    name: str, mode: Any, scheduler: Any
) -> None:
    fun = FUNCTIONS[name]
    found, expected = mode(fun, scheduler=scheduler)(X), mode(fun)(X)
    assert pytree.flatten(found)[1] == pytree.flatten(expected)[1]
    assert every_bit(found) == every_bit(expected)


def decays(x: Any) -> Any:
    rates = np.exp(x)
    return solve_ivp(lambda t, y: -rates * y + y[::-1], (0.0, 2.0), np.linspace(1.0, 2.0, x.size), t_eval=[1.0, 2.0]).y


def decay_of_items(x: Any) -> Any:
    def end(row: Any, x: Any) -> Any:
        return odeint(lambda y, t: [-x[0] * y[0], y[0] - x[1] * y[1]], [1.0, row[0] + x[2]], [0.0, 1.0])[-1]

    return dagad.map_rect(end, ROWS, x, grainsize=4, scheduler="threads")


def integrals(x: Any) -> Any:
    return np.stack(
        [quad(lambda s, rate: np.exp(-x[0] * s) * np.cos(rate * s), 0.0, 1.0 + x[2], rate)[0] for rate in x]
    )


def total_of_decays(x: Any) -> Any:
    return dagad.reduce_sum(lambda rows, x: anp.sum(decays(x) * rows[0, 0]), ROWS, x, grainsize=4)


def gradient_of_decays(x: Any) -> Any:
    return dagad.grad(lambda x: np.sum(decays(x) ** 2))(x)


JOINT: dict[str, Callable[..., Any]] = {
    fun.__name__: fun for fun in (decays, decay_of_items, integrals, total_of_decays, gradient_of_decays)
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("mode", [dagad.jacfwd, dagad.jacrev], ids=["jacfwd", "jacrev"])
@pytest.mark.parametrize("name", JOINT)
def test_directions_that_a_solver_takes_together_have_the_bits_that_they_have_without_groups(
    name: str, mode: Any, scheduler: Any
) -> None:
    found, expected = mode(JOINT[name], scheduler=scheduler)(X), mode(JOINT[name])(X)
    assert every_bit(found) == every_bit(expected)


def test_columns_are_pushed_in_no_transform_of_ours_so_that_others_inside_hand_out_arrays_of_their_own(
    scheduler: Any,
) -> None:
    seen = list[bool]()

    def fun(x: Any) -> Any:
        seen.append(is_in_a_transform())
        return steps(x)

    here = None if isinstance(scheduler, Client) else scheduler
    dagad.jacfwd(fun, scheduler=here)(X)
    dagad.jacfwd(fun)(X)
    assert seen
    assert not any(seen)


def decays_or_nothing(x: Any) -> Any:
    try:
        return decays(x)
    except Exception:  # where a solver fails
        return np.zeros(x.size) * x


@pytest.mark.parametrize("mode", [dagad.jacfwd, dagad.hessian], ids=["jacfwd", "hessian"])
def test_a_function_that_catches_errors_of_solvers_does_not_catch_that_directions_are_divided(
    mode: Any, scheduler: Any
) -> None:
    def total(x: Any) -> Any:
        return np.sum(decays_or_nothing(x) ** 2)

    fun = total if mode is dagad.hessian else decays_or_nothing
    assert every_bit(mode(fun, scheduler=scheduler)(X)) == every_bit(mode(fun)(X))


def test_workers_write_no_error_down_where_directions_are_not_divided(client: Client) -> None:
    def errors() -> int:
        return sum(level == "ERROR" for logs in client.get_worker_logs().values() for level, _ in logs)

    def on_workers(x: Any) -> Any:
        rows = dagad.reduce_sum(lambda rows, x: anp.sum(decays(x) * rows[0, 0]), ROWS, x, grainsize=4, scheduler=client)
        return rows * x

    before = errors()
    dagad.jacfwd(decays, scheduler=client)(X)
    with dask.config.set(num_workers=3):
        dagad.jacfwd(on_workers, scheduler="threads")(X)
    assert errors() == before


@pytest.mark.parametrize("sensitivity", ["auto", "adjoint"])
def test_rows_through_many_parameters_have_the_bits_that_they_have_without_groups(
    sensitivity: str, scheduler: Any
) -> None:
    """So many that one row is pulled by the adjoint equation, and all of them are not."""
    weights = np.random.default_rng(0).normal(size=(9, 1000)) / 50.0

    def end(x: Any) -> Any:
        asked: dict[str, Any] = {"args": (x,), "sensitivity": sensitivity, "t_eval": [1.0]}
        return solve_ivp(lambda t, y, x: -np.exp(weights @ x) * y, (0.0, 1.0), np.ones(9), **asked).y[:, 0]

    x = np.ones(1000)
    found, expected = (dagad.jacrev(end, scheduler=one)(x) for one in (scheduler, None))
    assert every_bit(found) == every_bit(expected)


@pytest.mark.parametrize("mode", [dagad.jacfwd, dagad.jacrev], ids=["jacfwd", "jacrev"])
def test_a_jacobian_side_by_side_is_that_of_autograd(mode: Any, scheduler: Any) -> None:
    np.testing.assert_allclose(mode(steps, scheduler=scheduler)(X), autograd.jacobian(steps)(X), rtol=1e-12)


def test_a_hessian_side_by_side_has_the_bits_and_the_numbers_of_autograd(scheduler: Any) -> None:
    found = dagad.hessian(total, scheduler=scheduler)(X)
    assert every_bit(found) == every_bit(dagad.hessian(total)(X))
    np.testing.assert_allclose(found, autograd.hessian(lambda x: chunk(ROWS, steps(x)))(X), rtol=1e-10)


@pytest.mark.parametrize("mode", [dagad.jacfwd, dagad.jacrev], ids=["jacfwd", "jacrev"])
def test_a_jacobian_side_by_side_takes_pytrees_places_and_what_comes_along(mode: Any, scheduler: Any) -> None:
    def fun(a: Any, scale: Any, b: Any, *, power: int) -> Any:
        return {"y": steps(a["x"]) ** power * scale * b}, {"norm": float(np.sum(pytree.plain(a["x"]))), "word": "w"}

    args = {"x": X}, 3.0, 2.0
    found, aux = mode(fun, (0, 2), has_aux=True, scheduler=scheduler)(*args, power=2)
    expected, other = mode(fun, (0, 2), has_aux=True)(*args, power=2)
    assert every_bit(found) == every_bit(expected)
    assert aux == other


@pytest.mark.parametrize("n_inputs", [0, 1, 2, 16, 17, 40])
@pytest.mark.parametrize("mode", [dagad.jacfwd, dagad.jacrev], ids=["jacfwd", "jacrev"])
def test_numbers_of_directions_that_groups_do_not_divide_are_all_there(
    mode: Any, n_inputs: int, scheduler: Any
) -> None:
    x = np.linspace(0.0, 1.0, n_inputs)
    found = mode(lambda x: steps(x) * 2.0, scheduler=scheduler)(x)
    assert found.shape == (n_inputs, n_inputs)
    assert every_bit(found) == every_bit(mode(lambda x: steps(x) * 2.0)(x))


def test_a_sparse_jacobian_side_by_side_has_the_same_entries(scheduler: Any) -> None:
    def cubes(x: Any) -> Any:
        return dagad.map(lambda one: one**3, x, grainsize=2)

    layout = dagad.extend.Sparse()
    found, expected = (dagad.jacrev(cubes, layout=layout, scheduler=one)(X) for one in (scheduler, None))
    assert found.nnz == expected.nnz == len(X)
    assert bits(found.toarray()) == bits(expected.toarray())


@pytest.mark.parametrize("size", [6, 40])
@pytest.mark.parametrize("options", [{}, {"scheduler": "threads"}])
def test_a_function_that_draws_is_refused_where_its_columns_take_several_runs(
    size: int, options: dict[str, Any]
) -> None:
    generator = np.random.default_rng(0)

    def drawn(x: Any) -> Any:
        return np.cos(x) * generator.uniform()

    once = np.unique(np.diag(dagad.jacrev(drawn)(np.ones(size))))
    assert len(once) == 1
    if size <= 16 and not options:
        assert len(np.unique(np.diag(dagad.jacfwd(drawn)(np.ones(size))))) == 1
        return
    with pytest.raises(dagad.ClosureError, match=r"several runs.*different values.*Draw before.*`dagad\.jacrev`"):
        dagad.jacfwd(drawn, **options)(np.ones(size))


def test_directions_run_beside_each_other_in_threads() -> None:
    """The first waits for the second, which never came if they took turns."""
    meeting, seen = threading.Barrier(2), set[int]()

    def fun(x: Any) -> Any:
        meeting.wait(30.0)
        seen.add(threading.get_ident())
        return steps(x)

    with dask.config.set(num_workers=2):
        dagad.jacfwd(fun, scheduler="threads")(X)
    assert len(seen) == 2


def test_the_tape_is_recorded_once_for_all_threads_and_once_for_each_group_elsewhere(
    client: Client, tmp_path: Path
) -> None:
    def fun(x: Any) -> Any:
        with open(tmp_path / "runs", "a") as file:
            file.write("x")
        return steps(x)

    with dask.config.set(num_workers=3):
        dagad.jacrev(fun, scheduler="threads")(X)
    assert (tmp_path / "runs").read_text() == "x"
    dagad.jacrev(fun, scheduler=client)(X)
    assert (tmp_path / "runs").read_text() == "xxx"


def test_reductions_inside_keep_their_own_scheduler_and_settings() -> None:
    seen = list[Any]()

    def sees(rows: Any, x: Any) -> Any:
        seen.append(threading.current_thread().name)
        return vectors(rows, x)

    def fun(x: Any) -> Any:
        return dagad.reduce_sum(sees, ROWS, x, grainsize=4, scheduler="sync")

    with dask.config.set(num_workers=2):
        dagad.jacfwd(fun, scheduler="threads")(X)
    assert all(name.startswith("dagad-directions") for name in seen[-5:])


def test_shards_on_a_cluster_are_reduced_there_from_threads(client: Client) -> None:
    shards = dagad.shard(ROWS, grainsize=4, scheduler=client)

    def fun(x: Any) -> Any:
        return dagad.reduce_sum(vectors, shards, x)

    def alone(x: Any) -> Any:
        return dagad.reduce_sum(vectors, ROWS, x, grainsize=4, scheduler="sync")

    with dask.config.set(num_workers=2):
        for mode in (dagad.jacfwd, dagad.jacrev):
            for _ in range(4):  # at first by graphs, then hot
                assert every_bit(mode(fun, scheduler="threads")(X)) == every_bit(mode(alone)(X))
    with pytest.raises(dagad.PortabilityError, match='or use `scheduler="threads"`'):
        dagad.jacfwd(fun, scheduler=client)(X)


def test_a_jacobian_that_is_differentiated_stays_in_its_thread(scheduler: Any) -> None:
    def norm(x: Any, **options: Any) -> Any:
        return anp.sum(dagad.jacrev(steps, **options)(x) ** 2)

    assert every_bit(dagad.grad(norm)(X, scheduler=scheduler)) == every_bit(dagad.grad(norm)(X))


def test_an_error_of_a_direction_comes_as_it_is_with_a_note(scheduler: Any) -> None:
    def fun(x: Any) -> Any:
        raise ZeroDivisionError("this model")

    for mode in (dagad.jacfwd, dagad.jacrev):
        with pytest.raises(ZeroDivisionError, match="this model"):
            mode(fun, scheduler=scheduler)(X)
    with pytest.raises(ZeroDivisionError) as caught:
        dagad.jacfwd(fun, scheduler="threads")(X)
    assert any("columns of a Jacobian, group 0 of 3" in note for note in caught.value.__notes__) or scheduler == "sync"


class Executor:
    """What runs chunks: two methods, neither of which is called."""

    name, remote = "own", False

    def call(self, job: Any) -> Any: ...

    def linearize(self, job: Any, policy: Any) -> Any: ...


def test_an_executor_and_nonsense_are_refused_where_the_function_is_made() -> None:
    for mode in (dagad.jacfwd, dagad.jacrev, dagad.hessian):
        with pytest.raises(dagad.PlanError, match="the executor belongs to the reductions"):
            mode(steps, scheduler=Executor())
        with pytest.raises(dagad.PlanError, match='Choose "threads", "sync" or "processes"'):
            mode(steps, scheduler="thread")


def test_a_checkpoint_writes_reductions_down_in_their_order(tmp_path: Path) -> None:
    expected = dagad.jacfwd(of_vectors)(X)
    for n_known in (0, 1):
        with dagad.checkpoint(tmp_path / "run") as run:
            assert every_bit(dagad.jacfwd(of_vectors, scheduler="threads")(X)) == every_bit(expected)
        assert run.n_known == n_known


def test_a_jacobian_inside_a_chunk_stays_in_its_thread() -> None:
    def of_rows(rows: Any, x: Any) -> Any:
        return anp.sum(dagad.jacfwd(lambda x: rows * x, scheduler="threads")(x))

    data = ROWS[:, :1]
    expected = dagad.reduce_sum(lambda rows, x: anp.sum(dagad.jacfwd(lambda x: rows * x)(x)), data, 1.5, grainsize=4)
    assert dagad.reduce_sum(of_rows, data, 1.5, grainsize=4) == expected


def beside_an_integer(p: Any) -> Any:
    return p["x"] * p["n"]


def in_threads() -> Any:
    return dagad.jacfwd(beside_an_integer, scheduler="threads")({"x": X, "n": 2})


def in_members() -> Any:
    return dagad.vmap(dagad.grad(lambda p: anp.sum(beside_an_integer(p))))({"x": ROWS[:3], "n": np.arange(3)})


@pytest.mark.parametrize("act", [in_threads, in_members], ids=lambda act: act.__name__)
def test_a_warning_in_a_thread_of_ours_stands_at_the_line_of_the_user(act: Callable[[], Any]) -> None:
    code = act.__code__
    with dask.config.set(num_workers=3), pytest.warns(dagad.DagadWarning, match="holds integers") as warned:
        act()
    assert {(one.filename, one.lineno) for one in warned} == {(code.co_filename, code.co_firstlineno + 1)}
