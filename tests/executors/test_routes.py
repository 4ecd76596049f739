"""The model of many workers: does it say what grows with what, and where one route crosses another?"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from dagad._executors import routes
from dagad._executors.routes import ROUTES, Site, Trip, Trips, Work, crossing, direct, graph, relayed, tree

SITE = Site()
LARGE, SMALL = 1e7, 1e3


def work(n_workers: int, theta: float = LARGE, **more: Any) -> Work:
    return Work(n_workers, theta, theta, **more)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("route", ROUTES.values())
def test_the_cost_of_a_route_grows_no_faster_than_its_workers(route: routes.Route) -> None:
    """Never workers times workers: ten times as many workers are ten times as busy stations at most."""
    for some in (work(100), work(100, SMALL)):
        before, after = (route(replace(some, n_workers=n), SITE).busy for n in (100, 1000))
        assert all(after[station] <= 10.01 * before[station] for station in before)


def test_bytes_at_one_process_grow_with_the_workers_of_a_star_only() -> None:
    links = [("client's link", direct), ("scheduler's link", relayed)]
    for station, route in links:
        assert route(work(1000), SITE).busy[station] == pytest.approx(10 * route(work(100), SITE).busy[station])
    before, after = (tree(work(n), SITE).busy["client's link"] for n in (100, 1000))
    assert before == after


@pytest.mark.parametrize("route", [direct, relayed])
@pytest.mark.parametrize("theta", [1e6, LARGE, 1e8])
def test_a_tree_of_workers_is_faster_than_a_star_from_the_crossing_on(route: routes.Route, theta: float) -> None:
    at = crossing(work(1, theta), SITE, route)
    assert at is not None
    assert tree(work(at, theta), SITE).seconds < route(work(at, theta), SITE).seconds
    assert tree(work(at - 1, theta), SITE).seconds >= route(work(at - 1, theta), SITE).seconds


def test_a_tree_of_workers_is_never_faster_for_small_parameters() -> None:
    assert [crossing(work(1, SMALL), SITE, route) for route in (direct, relayed)] == [None, None]


def test_slower_links_and_more_partial_sums_favour_a_tree_with_fewer_workers() -> None:
    def at(site: Site = SITE, **more: Any) -> float:
        return crossing(work(1, 1e6, **more), site) or math.inf

    assert at(Site(client_bandwidth=0.125e9)) < at() < at(Site(byte=0.0))
    assert at(n_partials=3.0) < at() < at(constants=1e8)


def test_a_task_for_each_thread_costs_less_than_one_for_each_chunk() -> None:
    some = work(100, n_chunks=1600, seconds=1e-3)
    assert tree(some, SITE).seconds < graph(some, SITE).seconds
    assert tree(some, SITE).saturated == "scheduler"
    assert direct(replace(some, theta=1.0, result=1.0, seconds=1.0), SITE).saturated == "workers"
    assert some.computing == pytest.approx(16e-3)
    assert replace(some, n_threads=4).computing == pytest.approx(4e-3)


# What is chosen


def trip(n_workers: int = 100, theta: int = 10**7, wall: float = 4.0, **more: Any) -> Trip:
    return Trip(n_workers, 1, theta, n_workers * theta, 0, 0.0, wall)._replace(**more)


def after(*trips: Trip, trees: tuple[float, ...] = ()) -> Trips:
    found = Trips()
    for one in trips:
        found = found.after_star(one)
    for wall in trees:
        found = found.after_tree(wall)
    return found


def test_a_tree_is_chosen_after_many_workers_were_called_with_large_parameters() -> None:
    assert not Trips().prefer_tree
    assert not after(*[trip()] * (routes.FAIR_TRIPS - 1)).prefer_tree
    assert after(*[trip()] * routes.FAIR_TRIPS).prefer_tree


@pytest.mark.parametrize(
    "other",
    [
        trip(routes.FEWEST_WORKERS - 1),
        trip(theta=1000, wall=9.0),  # whatever takes long, it is not the bytes
        trip(wall=0.1),  # links are fast
        trip(computing=3.9),  # it is not the way that takes long
        trip(constants=10**9),  # a graph has to bring them each time
    ],
)
def test_a_tree_is_not_chosen_for_few_workers_small_parameters_or_fast_links(other: Trip) -> None:
    assert not after(*[other] * 10).prefer_tree


def test_the_shortest_trip_decides_on_a_tree_not_one_that_was_held_up() -> None:
    assert not after(*[trip(wall=10.0)] * 9, trip(wall=0.1)).prefer_tree


def test_a_tree_that_was_slower_is_not_chosen_again() -> None:
    trips = [trip()] * routes.FAIR_TRIPS
    assert after(*trips, trees=(9.0,)).prefer_tree  # the first also pays for what is only done once
    assert after(*trips, trees=(9.0, 2.0)).prefer_tree
    assert not after(*trips, trees=(9.0, 8.0)).prefer_tree


def test_replies_that_would_fill_memory_go_by_a_tree_whatever_the_clock_says() -> None:
    large = trip(200, wall=1.0)
    assert large.received > routes.MOST_RECEIVED
    assert after(large, trees=(9.0, 9.0)).prefer_tree


def test_trips_to_another_number_of_workers_are_counted_anew() -> None:
    found = after(*[trip()] * routes.FAIR_TRIPS, trees=(1.0, 1.0))
    assert found.prefer_tree
    assert found.after_star(trip(101)) == Trips(trip(101), 1)
