"""Functions as they were before they ran: is what has changed since made again, and nothing else?"""

from __future__ import annotations

from typing import Any

import autograd
import numpy as np

from dagad._values.before import Before


class Model:
    def __init__(self) -> None:
        self.last: Any = None
        self.data = np.arange(3.0)
        self.known: dict[str, Any] = {}


class Dear:
    """Can't be made again: somebody is told when it goes."""

    value = 1.0

    def __del__(self) -> None:
        pass


def test_functions_that_have_changed_nothing_stay_as_they_are() -> None:
    model = Model()

    def fun() -> Any:
        return model

    assert Before((fun,)).at([])[0]() is model


def test_objects_variables_and_containers_are_made_again_as_they_were_each_time_anew() -> None:
    model, kept, count = Model(), [1], 0

    def fun(value: Any) -> Any:
        nonlocal count
        before = model.last, dict(model.known), list(kept), count
        model.last, model.known["v"], count = value, value, count + 1
        kept.append(value)
        return before

    then = Before((fun,))
    fun(7.0)
    for _ in range(2):
        (again,) = then.at([])
        assert again(8.0) == (None, {}, [1], 0)
        assert again(9.0) == (8.0, {"v": 8.0}, [1, 8.0], 1)
    assert fun(0.0) == (7.0, {"v": 7.0}, [1, 7.0], 1)


def test_data_that_an_object_holds_are_not_copied() -> None:
    model = Model()

    def fun() -> Any:
        return model

    then = Before((fun,))
    model.last = 1.0
    again = then.at([])[0]()
    assert again is not model
    assert again.data is model.data


def test_objects_that_cannot_be_made_again_stay() -> None:
    dear, model = Dear(), Model()

    def fun() -> Any:
        return dear, model

    then = Before((fun,))
    dear.value, model.last = 2.0, 2.0
    again = then.at([])[0]()
    assert again[0] is dear
    assert again[1].last is None


def test_objects_that_something_knows_by_their_id_stay() -> None:
    model = Model()
    names = {id(model): "a"}

    def fun() -> Any:
        return names[id(model)]

    then = Before((fun,))
    model.last = 1.0
    assert then.at([])[0]() == "a"


def test_traced_values_are_put_into_functions_as_they_were() -> None:
    model = Model()

    def total(x: Any) -> Any:
        model.last = x
        then = Before((lambda: model.last,))
        model.last = None
        assert then.at([5.0])[0]() == 5.0
        assert then.at([6.0])[0]() == 6.0
        return 2.0 * x

    assert autograd.grad(total)(3.0) == 2.0
