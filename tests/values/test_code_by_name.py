"""Code of the user's modules: is it on workers what it is here, or does a sentence say which function is not?"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import autograd.numpy as anp
import cloudpickle
import numpy as np
import pytest
from distributed import Client

import dagad
from dagad._values import code_by_name
from dagad._values.fingerprint import fingerprint, same

X = np.arange(1.0, 13.0).reshape(6, 2) / 3.0
THETA = np.array([0.7, -0.3])

SOURCE = """
import functools, os
import autograd.numpy as np

def through(fun):
    @functools.wraps(fun)
    def wrapped(*args):
        return fun(*args)
    return wrapped

class Model:
    "Instances are called."
    def __call__(self, rows, theta):
        return np.sum(self.scaled(rows) * theta**2)
    def scaled(self, rows):
        return rows * FACTOR
    @staticmethod
    def at(rows):
        return rows * FACTOR

MODEL = Model()

def scaled(rows):
    "A DOCUMENT."
    return rows * FACTOR

@through
def decorated(rows):
    return rows * FACTOR

if os.environ.get("DAGAD_TEST_SIDE"):
    def chosen(rows):
        return 1.0 * rows
else:
    def chosen(rows):
        return rows * 1.0

def with_default(rows, factor=FACTOR, process=os.getpid()):
    return rows * factor

def with_document(rows, theta):
    "Return it: DOCUMENT."
    return np.sum(scaled(rows) * theta**2)

def by_model(rows, theta):
    return MODEL(rows, theta)

def by_static_method(rows, theta):
    return np.sum(Model.at(rows) * theta**2)

def by_decorated(rows, theta):
    return np.sum(decorated(rows) * theta**2)

def by_chosen(rows, theta):
    return np.sum(chosen(rows) * theta**2) * FACTOR
"""


class Module:
    """A module of the user's, here and on workers; FACTOR stands in its code."""

    def __init__(self, folder: Path, name: str, client: Client) -> None:
        self.file, self.name, self.client, self._time = folder / f"{name}.py", name, client, 1_000_000_000
        self.write(1)
        self.here: Any = importlib.import_module(name)

    def write(self, factor: int, document: str = "") -> None:
        self.file.write_text(SOURCE.replace("FACTOR", f"{factor}.0").replace("DOCUMENT", document))
        self._time += 10
        os.utime(self.file, (self._time, self._time))

    def reload_there(self) -> None:
        self.client.run(importlib.reload, self.here)

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Return functions of a chunk that go by name, by value, in a closure and as an object."""
        here = self.here
        named = {name: value for name, value in vars(here).items() if name.startswith(("by_", "with_document"))}
        return named | {
            "value": lambda rows, theta: anp.sum(here.scaled(rows) * theta**2),
            "handed": lambda rows, theta, of=here: anp.sum(scaled_by(of, rows) * theta**2),
            "object": here.Model(),
            "method": here.Model().__call__,
        }


def scaled_by(module: Any, rows: Any) -> Any:
    return module.scaled(rows)


@pytest.fixture
def module(tmp_path: Path, cluster: Client, monkeypatch: pytest.MonkeyPatch, request: Any) -> Iterator[Module]:
    name = f"module_{abs(hash(request.node.name))}"
    monkeypatch.syspath_prepend(tmp_path)
    folder = str(tmp_path)
    cluster.run(lambda: sys.path.insert(0, folder))  # the path of there
    monkeypatch.setenv("DAGAD_TEST_SIDE", "here")
    yield Module(tmp_path, name, cluster)
    cluster.run(lambda: sys.path.remove(folder))
    sys.modules.pop(name, None)


NAMES = "with_document by_model by_static_method by_decorated by_chosen value handed object method".split()


def expect(function: Any, factor: float, data: Any, options: Any) -> None:
    for _ in range(2):
        value, gradient = dagad.value_and_grad(lambda t: dagad.reduce_sum(function, data, t, **options))(THETA)
        np.testing.assert_allclose(value, factor * np.sum(X * THETA**2), rtol=1e-13)
        np.testing.assert_allclose(gradient, factor * 2.0 * X.sum(0) * THETA, rtol=1e-13)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("how", ["rows", "Shards"])
@pytest.mark.parametrize("name", NAMES)
def test_code_that_was_reloaded_here_alone_is_refused_by_name_until_it_is_there(
    name: str, how: str, module: Module
) -> None:
    data: Any = dagad.shard(X, grainsize=2, scheduler=module.client) if how == "Shards" else X
    options = {} if how == "Shards" else {"grainsize": 2, "scheduler": module.client}
    expect(module.functions()[name], 1.0, data, options)
    module.write(1, "what it says is no code")
    importlib.reload(module.here)
    expect(module.functions()[name], 1.0, data, options)
    module.write(9)
    importlib.reload(module.here)
    for _ in range(2):
        with pytest.raises(dagad.PortabilityError, match=rf"`{module.name}\.\w+(\.\w+)?` is other code.*Restart"):
            expect(module.functions()[name], 9.0, data, options)
    module.reload_there()
    expect(module.functions()[name], 9.0, data, options)


@pytest.mark.parametrize("how", ["rows", "Shards"])
def test_a_helper_that_is_patched_here_alone_is_refused_by_name_while_it_is(how: str, module: Module) -> None:
    data: Any = dagad.shard(X, grainsize=2, scheduler=module.client) if how == "Shards" else X
    options = {} if how == "Shards" else {"grainsize": 2, "scheduler": module.client}
    functions = module.functions()
    for name in ("with_document", "value"):
        expect(functions[name], 1.0, data, options)
        with mock.patch.object(module.here, "scaled", lambda rows: rows * 7.0):
            with pytest.raises(dagad.PortabilityError, match=rf"`{module.name}\.scaled` is other code"):
                expect(functions[name], 7.0, data, options)
            cloudpickle.register_pickle_by_value(module.here)
            try:
                expect(functions[name], 7.0, data, options)
            finally:
                cloudpickle.unregister_pickle_by_value(module.here)
        expect(functions[name], 1.0, data, options)


def test_a_function_whose_code_was_replaced_in_place_is_another() -> None:
    home: Any = types.ModuleType("module_made_by_hand")
    exec("def inner(x):\n    return x\ndef outer(x):\n    return inner(x)", vars(home))
    with mock.patch.dict(sys.modules, {home.__name__: home}):
        before = fingerprint(home.outer)
        assert same(before, fingerprint(home.outer))
        home.inner.__code__ = (lambda x: 3.0 * x).__code__  # as `%autoreload` does it
        assert not same(before, fingerprint(home.outer))
        before = fingerprint(home.outer)
        home.inner.__defaults__ = (1.0,)
        assert not same(before, fingerprint(home.outer))


def test_a_default_that_is_edited_counts_and_one_that_is_computed_does_not(module: Module) -> None:
    computed, edited = module.here.with_default, module.here.scaled
    sent = code_by_name.digests_of(
        [code_by_name.CodeByName(None, "", computed), code_by_name.CodeByName(None, "", edited)]
    )
    computed.__defaults__ = (1.0, 0)  # the number of another process
    code_by_name.refuse_other_code(sent)
    computed.__defaults__ = (2.0, 0)
    with pytest.raises(dagad.PortabilityError, match=r"with_default` is other code"):
        code_by_name.refuse_other_code(sent)
    computed.__defaults__ = (1.0, 0)
    edited.__defaults__ = (2.0,)
    with pytest.raises(dagad.PortabilityError, match=r"scaled` is other code"):
        code_by_name.refuse_other_code(sent)


def test_a_computed_default_is_looked_for_where_the_function_is_defined(module: Module) -> None:
    importer: Any = types.ModuleType("module_that_imports")
    importer.imported = module.here.with_default  # by another name, too
    exec("def of_imported(rows):\n    return imported(rows)", vars(importer))
    with mock.patch.dict(sys.modules, {importer.__name__: importer}):
        references = code_by_name.CodeByName(importer.of_imported, "", importer.of_imported)
        sent = code_by_name.digests_of([references])
        module.here.with_default.__defaults__ = (1.0, 0)
        code_by_name.refuse_other_code(sent)
        module.here.with_default.__defaults__ = (2.0, 0)
        with pytest.raises(dagad.PortabilityError, match=r"module_that_imports\.\w+` is other code"):
            code_by_name.refuse_other_code(sent)


def test_code_that_another_python_made_is_not_compared(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = code_by_name.digests_of([code_by_name.CodeByName(None, "", module.here.scaled)])
    module.here.scaled.__code__ = (lambda rows: rows).__code__
    with pytest.raises(dagad.PortabilityError, match=r"other code"):
        code_by_name.refuse_other_code(sent)
    monkeypatch.setattr(code_by_name, "_PYTHON", ("optimized",))
    code_by_name.refuse_other_code(sent)


def test_a_function_that_is_decorated_on_one_side_is_the_same(module: Module) -> None:
    sent = code_by_name.digests_of([code_by_name.CodeByName(None, "", module.here.scaled)])
    module.here.scaled = module.here.through(module.here.scaled)
    code_by_name.refuse_other_code(sent)
    module.here.scaled = module.here.through(lambda rows: rows)
    with pytest.raises(dagad.PortabilityError, match=r"other code"):
        code_by_name.refuse_other_code(sent)


def test_functions_rewritten_by_pytest_and_those_of_packages_are_not_compared() -> None:
    def checked(x: Any) -> Any:
        assert x > 0
        return x

    assert code_by_name.digest_of(checked.__code__) is None
    referred = code_by_name.References(frozenset())
    referred.by_name(np.linalg.norm)
    referred.by_name(dagad.grad)
    referred.by_name(np)
    referred.by_value(scaled_by, (), [("np", np)])  # type: ignore[arg-type]  # any function has another type for mypy
    assert code_by_name.digests_of(referred.found()) == ()
