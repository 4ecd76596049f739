"""Ways to carry a value in functions: in what they close over, in defaults, partials and methods."""

from __future__ import annotations

import functools
import operator
from typing import Any

from support.carrying.way import Read, Ways, kept, shown

way = Ways()


@way
def a_closure(x: Any, get: Read) -> Any:
    return shown(lambda: x, get)


@way
def a_closure_two_levels_down(x: Any, get: Read) -> Any:
    def outer() -> Any:
        def inner() -> Any:
            return x

        return inner()

    return shown(outer, get)


@way
def a_default(x: Any, get: Read) -> Any:
    def read(unused: int = 0, value: Any = x) -> Any:
        return value

    return shown(read, get)


@way
def a_keyword_default(x: Any, get: Read) -> Any:
    def read(*, value: Any = x, unused: int = 0) -> Any:
        return value

    return shown(read, get)


@way
def an_attribute_of_a_function(x: Any, get: Read) -> Any:
    def read() -> Any:
        return vars(read)["value"]

    vars(read)["value"] = x
    return shown(read, get)


@way
def a_partial(x: Any, get: Read) -> Any:
    return shown(functools.partial(kept, x), get)


@way
def a_partial_by_keyword(x: Any, get: Read) -> Any:
    return shown(functools.partial(functools.partial(kept, value=1.0), value=x), get)


@way
def a_decorated_function(x: Any, get: Read) -> Any:
    def read() -> Any:
        return x

    @functools.wraps(read)
    def wrapper() -> Any:
        return read()

    return shown(wrapper, get)


@way
def a_variable_that_two_functions_share(x: Any, get: Read) -> Any:
    value: Any = None

    def put() -> None:
        nonlocal value
        value = x

    def read() -> Any:
        put()
        return value

    return shown(read, get)


@way
def a_variable_that_the_chunk_changes(x: Any, get: Read) -> Any:
    state = x

    def turn() -> None:
        nonlocal state
        state = [state]

    def read() -> Any:
        nonlocal state
        turn()
        state = state[0]
        return state

    return shown(read, get)


@way
def functions_that_call_each_other(x: Any, get: Read) -> Any:
    def even(n: int) -> Any:
        return x if n == 0 else odd(n - 1)

    def odd(n: int) -> Any:
        return None if n == 0 else even(n - 1)

    return shown(lambda: even(4), get)


@way
def a_function_that_calls_itself(x: Any, get: Read) -> Any:
    def read(n: int = 3) -> Any:
        return x if n == 0 else read(n - 1)

    return shown(read, get)


@way
def a_single_dispatch(x: Any, get: Read) -> Any:
    @functools.singledispatch
    def read(key: Any) -> Any:
        raise TypeError(key)

    @read.register
    def _(key: int) -> Any:
        return x

    return read, lambda read: get(read(1))


@way
def a_cached_function(x: Any, get: Read) -> Any:
    @functools.lru_cache(maxsize=3)
    def read() -> Any:
        return x

    return shown(read, get)


@way
def a_cached_function_that_was_called(x: Any, get: Read) -> Any:
    @functools.cache
    def read() -> Any:
        return x

    read()
    return shown(read, get)


@way
def a_method_of_a_builtin(x: Any, get: Read) -> Any:
    return {"a": x}.get, lambda read: get(read("a"))


@way
def a_slot_method_of_a_builtin(x: Any, get: Read) -> Any:
    return (1.0, x).__getitem__, lambda read: get(read(1))


@way
def a_getter_of_items(x: Any, get: Read) -> Any:
    return (operator.itemgetter(1), (None, x)), lambda pair: get(pair[0](pair[1]))


@way
def a_caller_of_methods(x: Any, get: Read) -> Any:
    return operator.methodcaller("get", "b", x), lambda call: get(call({"a": 1.0}))
