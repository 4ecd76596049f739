"""Roles: what is a key for, and what runs first?"""

from __future__ import annotations

from typing import Any

import pytest
from dask.utils import key_split
from distributed.utils import key_split_group

from dagad_scheduler import Names, Role, role_of
from dagad_scheduler.private import DataNode, Task, TaskRef
from dagad_scheduler.roles import PULLBACK_RANK, VALUE_RANK, depth_first, function_of, priorities, rank, words_of

TOKEN = "0f3a5c7e9b1d2f4a6c8e0b2d4f6a8c1e"


@pytest.mark.parametrize("role", list(Role))
def test_a_key_names_its_role_its_evaluation_and_its_index(role: Role) -> None:
    key = Names("4f2a")(role, 7)
    assert key == (f"dagad-{role}-4f2a", 7)
    assert role_of(key) is role


@pytest.mark.parametrize("role", list(Role))
def test_a_role_may_be_given_by_name(role: Role) -> None:
    assert Names("t")(str(role), 0) == Names("t")(role, 0)


def test_an_index_of_a_key_may_be_a_tuple() -> None:
    assert role_of(Names("t")("sum", ("cotangent", 0, 1, 2))) is Role.SUM


@pytest.mark.parametrize(
    "key", ["x", ("x", 0), ("dagad", 0), ("dagad-", 0), ("dagad-nonsense-t", 0), (), 3, None, (1, 2)]
)
def test_anybody_elses_key_has_no_role(key: Any) -> None:
    assert role_of(key) is None


def test_a_string_key_of_ours_has_a_role() -> None:
    assert role_of("dagad-value-t") is Role.VALUE


def test_two_tokens_never_give_the_same_key() -> None:
    assert Names("a")("value", 0) != Names("b")("value", 0)


def test_a_token_with_hyphens_is_still_a_token() -> None:
    assert role_of(Names("a-b-c")("pullback", 0)) is Role.PULLBACK
    assert rank("dagad-pullback-a-b-c") == PULLBACK_RANK


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("log_likelihood", "log-likelihood"),
        ("<lambda>", "lambda"),
        ("nll2_v3", "nll-v"),
        ("binomial", "Binomial"),  # Dask takes it for a number of 8 digits
        ("deadbeef_dagad", "Deadbeef-dagad"),
        ("größe", "größe"),
        ("f" * 100, "f" * 40),
        ("negative_log_likelihood_of_everything_there_is", "negative-log-likelihood-of-everything"),
        ("_", ""),
        ("", ""),
    ],
)
@pytest.mark.parametrize("role", list(Role))
def test_dask_shows_the_role_and_the_words_of_the_function(role: Role, name: str, words: str) -> None:
    assert words_of(name) == words
    key = Names(TOKEN, words)(role, 3)
    assert key_split(key) == "-".join(filter(None, ("dagad", role, words)))
    assert key_split_group(key) == key[0]
    assert (role_of(key), function_of(key)) == (role, words)
    assert rank(key[0]) == rank(f"dagad-{role}-t")


def test_names_about_a_key_have_its_function_and_a_function_that_was_given_stays() -> None:
    names = Names("t")
    assert names.about(("mul-3f2a", 0))("value", 1) == ("dagad-value-mul-t", 1)
    assert names.about(("dagad-value-matmul-u", 0))("pullback", 1) == ("dagad-pullback-matmul-t", 1)
    assert names.about(7)("value", 1) == ("dagad-value-Other-t", 1)
    assert Names("t", "loss").about("mul-3f2a")("value", 1) == ("dagad-value-loss-t", 1)


def test_keys_of_tasks_that_give_value_and_gradient_together_say_so() -> None:
    names = Names("t", "loss", gives_gradient=True)
    assert names("value", 2) == names(Role.PULLBACK, 2) == ("dagad-valuegrad-loss-t", 2)
    assert names("sum", 2) == ("dagad-sum-loss-t", 2)


def test_sums_come_before_values_and_values_before_pullbacks() -> None:
    names = Names("t")
    keys = [names(role, index) for role in ("pullback", "value", "sum", "getitem") for index in (0, 1)]
    found = priorities(keys)
    order = [role_of(key) for key in sorted(keys, key=found.__getitem__)]
    assert order[-4:] == [Role.VALUE, Role.VALUE, Role.PULLBACK, Role.PULLBACK]


def test_within_a_role_the_order_of_the_graph_decides() -> None:
    names = Names("t")
    keys = [names("value", index) for index in (2, 0, 1)]
    found = priorities(keys)
    assert sorted(keys, key=found.__getitem__) == keys


def test_priorities_follow_a_given_order_of_keys() -> None:
    found = priorities(["a", "b"], {"a": 1, "b": 0})
    assert found["b"] < found["a"]


def test_anybody_elses_keys_count_as_values() -> None:
    names = Names("t")
    found = priorities([names("pullback", 0), "theirs", ("theirs", 0), 12, names("sum", 0)])
    assert rank("theirs") == rank("dagad-nonsense-t") == VALUE_RANK
    assert found[names("sum", 0)] < found["theirs"] < found[names("pullback", 0)]


def test_a_depth_first_order_has_dependencies_right_before_their_dependents() -> None:
    graph: dict[Any, Any] = {
        key: Task(key, max, *map(TaskRef, needs)) for key, needs in [("y", "ab"), ("b", "d"), ("a", "c")]
    }
    graph |= {key: DataNode(key, 1.0) for key in "xdc"}
    assert list(depth_first(graph, ["y"])) == ["d", "b", "c", "a", "y", "x"]
    assert list(depth_first(graph, ["a", "y"])) == ["c", "a", "d", "b", "y", "x"]


def test_finding_an_order_takes_a_time_that_is_linear() -> None:
    """All parts are read by one task, and its result by all again: Dask's own order takes minutes for this."""
    looked_up = 0

    class Counted(dict[Any, Any]):
        def get(self, *args: Any) -> Any:
            nonlocal looked_up
            looked_up += 1
            return super().get(*args)

    def lookups(width: int) -> int:
        nonlocal looked_up
        looked_up = 0
        parts = [("part", i) for i in range(width)]
        graph = Counted({part: Task(part, abs, TaskRef("theta")) for part in parts})
        graph["sum"] = Task("sum", max, *map(TaskRef, parts))
        graph |= {("back", i): Task(("back", i), max, TaskRef("sum"), TaskRef(part)) for i, part in enumerate(parts)}
        graph["theta"] = DataNode("theta", 1.0)
        assert len(depth_first(graph, graph)) == len(graph)
        return looked_up

    assert lookups(4000) < 4.2 * lookups(1000)
