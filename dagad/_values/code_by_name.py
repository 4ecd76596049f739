"""Code that other processes find by its name in modules of the user's: whether it is there what the sender means.

Functions and classes of modules go by reference. After a reload, a patch or an edit on one side the same name is other
code on the other side, silently. So digests go with what is sent, of the code of all functions that it leads to there.

State: `_KNOWN`, what functions, classes and members of modules meant when they were last sent, `_REMEMBERED` at most.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import hashlib
import inspect
import itertools
import sys
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set as AbstractSet
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from dagad._errors import PortabilityError
from dagad._values.bytecode import codes, used_in
from dagad._values.homes import is_importable, is_imported, is_installed, is_own_module, own, sent_by_value
from dagad._values.kinds import WRAPPER, kind_of
from dagad._values.names import of_function

OfOneName = (
    tuple[tuple[bytes, tuple[tuple[str, str], ...]], ...] | None
)  # of functions behind one name: codes and defaults; None if nothing can be
Digests = tuple[Any, ...]
_WRAPPED = ("__wrapped__", "fun", "py_func")
_DEEP, _MOST, _REMEMBERED = 8, 2_000, 1_000  # wrappers around one function; functions that one leads to; all of that
# Where these differ the code of one source does.
_PYTHON = sys.implementation.name, sys.hexversion, sys.flags.optimize
_PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None)})


class CodeByName:
    """What a function or a class means by its names in modules of the user's; another one as soon as that changes.

    It goes by its own name; or by one that it has in a module, its `home`.
    """

    __slots__ = ("_by_value", "_codes", "_looked_up", "_rest", "_root", "_seen", "digests", "used")

    def __init__(self, home: ModuleType | None, name: str, root: Any) -> None:
        self._root = root
        self.digests: dict[tuple[str, str], OfOneName] = {}
        self.used: dict[str, None] = {}  # names in the code of all of it
        self._by_value = sent_by_value()
        self._looked_up: list[tuple[Mapping[str, Any], str, Any]] = []
        self._codes: list[tuple[FunctionType, CodeType, Any, Any]] = []
        self._seen: dict[int, Any] = {}
        self._rest = list[Any]()
        if home is not None:
            self._member(home, name, root)
        elif isinstance(root, type):
            self._rest.append(root)
        else:
            self._add(root.__module__, root.__qualname__, root)
        while self._rest and len(self._seen) < _MOST:
            self._look(self._rest.pop())

    def holds(self) -> bool:
        """Return whether all of it is as it was; asked at every evaluation of a hot loop."""
        try:
            for scope, name, value in self._looked_up:
                if scope[name] is not value:
                    return False
        except KeyError:
            return False
        for function, code, defaults, keywords in self._codes:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ is not keywords:
                return False
        return True

    def _look(self, part: Any) -> None:
        if id(part) in self._seen:
            return
        self._seen[id(part)] = part
        if isinstance(part, type):
            self._class(part)
            return
        used = used_in(part.__code__)
        self.used.update(dict.fromkeys(used))
        modules = [value for _, value in of_function(part, used) if isinstance(value, ModuleType)]
        home = sys.modules.get(part.__globals__.get("__name__", ""))
        if home is not None and vars(home) is part.__globals__:
            modules.append(home)
        for member in members_of(modules, used, self._by_value):
            self._member(*member)

    def _member(self, home: ModuleType, name: str, value: object) -> None:
        self._looked_up.append((vars(home), name, value))
        cls = value if isinstance(value, type) else type(value)
        if not (cls is not value and self._add(home.__name__, name, value)) and _is_own_class(cls, self._by_value):
            self._rest.append(cls)

    def _class(self, cls: type) -> None:
        for name, value in list(vars(cls).items()):
            if not isinstance(value, type) and self._add(cls.__module__, f"{cls.__qualname__}.{name}", value):
                self._looked_up.append((vars(cls), name, value))
        self._rest += [base for base in cls.__bases__ if _is_own_class(base, self._by_value)]

    def _add(self, module: str, path: str, value: object) -> bool:
        """Note the digests of the functions behind a name; return whether there are any."""
        functions = functions_in(value)
        if functions:
            self.digests[module, path] = _of_functions(functions)
            self._codes += [(each, each.__code__, each.__defaults__, each.__kwdefaults__) for each in functions]
            self._rest += functions
        return bool(functions)


# By functions, addresses of classes, or those of the contents of modules, and names; each keeps that alive.
_KNOWN: dict[Hashable, CodeByName] = {}


class References:
    """Collects the code of all that is sent by its name: one function may name what another one holds."""

    __slots__ = ("_by_value", "_found", "_modules", "_used")

    def __init__(self, by_value: AbstractSet[str]) -> None:
        self._by_value, self._found = by_value, list[CodeByName]()
        self._modules, self._used = list[ModuleType](), list[tuple[str, ...]]()

    def by_name(self, thing: Any) -> None:
        """Add something that goes by its name: a function, a class or a module; of others there is nothing to tell."""
        cls = type(thing)
        if cls is ModuleType:
            self._modules += [] if is_installed(thing.__name__) else [thing]
        elif (cls is FunctionType or isinstance(thing, type)) and not is_installed(thing.__module__):
            key = thing if cls is FunctionType else id(thing)  # the hash of a class may be code of the user's
            try:
                found = _KNOWN[key]
            except KeyError:
                found = None
            self._found += [found if found is not None and found.holds() else _known(key, None, "", thing)]

    def by_value(self, function: FunctionType, used: tuple[str, ...], named: Iterable[tuple[str, Any]]) -> None:
        """Add a function that goes by value, by the names in its code and what they mean: globals go with it."""
        if not is_installed(function.__module__):
            self._used += [used]
            self._modules += [it for _, it in named if type(it) is ModuleType and not is_installed(it.__name__)]

    def found(self) -> list[CodeByName]:
        """Return all of it."""
        if not self._modules:
            return self._found
        used = dict.fromkeys(itertools.chain(*self._used, *(each.used for each in self._found)))
        members = members_of(self._modules, used, self._by_value)
        return self._found + [_known((id(vars(home)), name), home, name, value) for home, name, value in members]


def _known(key: Hashable, *what: Any) -> CodeByName:
    """Return what was found before, as long as it holds."""
    found = _KNOWN.get(key)
    if found is None or not found.holds():
        if len(_KNOWN) >= _REMEMBERED:
            _KNOWN.clear()
        found = _KNOWN[key] = CodeByName(*what)
    return found


def members_of(
    modules: Iterable[ModuleType], used: Collection[str], by_value: AbstractSet[str]
) -> Iterator[tuple[ModuleType, str, Any]]:
    """Yield what names mean in modules of the user's that others import: the module, the name, what it is."""
    rest, seen = list(modules), set[int]()
    while rest:
        module = rest.pop()
        if id(module) in seen or not is_own_module(module) or not is_imported(module.__name__, by_value):
            continue
        seen.add(id(module))
        inside = vars(module)
        for name in used:
            if isinstance(value := inside.get(name), ModuleType):
                rest.append(value)
            elif name in inside:
                yield module, name, value


def _is_own_class(cls: type, by_value: AbstractSet[str]) -> bool:
    module = cls.__module__
    return isinstance(module, str) and not is_installed(module) and is_importable(cls, by_value)


def functions_in(value: object) -> list[FunctionType]:
    """Return the user's functions behind a function, a member of a class or what decorates them, the innermost last."""
    found, outer = list[FunctionType](), [value]
    for _ in range(_DEEP):
        found += [each for each in outer if isinstance(each, FunctionType) and _is_own(each)]
        outer = [inner for each in outer for inner in _inside(each) if inner is not None]
    return found


def _is_own(function: FunctionType) -> bool:
    return not is_installed(function.__globals__.get("__name__"))


def _inside(value: Any) -> list[Any]:
    """Return what something wraps; no code of the user's runs."""
    cls = type(value)  # another class may be what an object says of itself
    if issubclass(cls, property):
        return [value.fget, value.fset, value.fdel]
    if issubclass(cls, MethodType | classmethod | staticmethod):
        return [value.__func__]
    if issubclass(cls, functools.partial | functools.cached_property):
        return [value.func]
    if kind_of(cls) is WRAPPER:
        return [value.fun]
    held = own(value, "__dict__") if callable(value) and not issubclass(cls, type) else None
    return [held[name] for name in _WRAPPED if name in held][:1] if isinstance(held, dict) else []


# Digests of functions


def _of_functions(functions: Iterable[FunctionType]) -> OfOneName:
    sent = []
    for each in functions:
        code = digest_of(each.__code__)
        if code is None:
            return None
        sent.append((code, tuple((name, repr(_constant(value))) for name, value in _defaults_of(each))))
    return tuple(sent)


def _defaults_of(function: FunctionType) -> list[tuple[str, object]]:
    given, code = function.__defaults__ or (), function.__code__
    names = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
    return [*zip(names, given, strict=False), *sorted((function.__kwdefaults__ or {}).items(), key=lambda one: one[0])]


def _constant(value: object) -> object:
    """Return a default as it may be compared: other objects are of one process."""
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    return value if type(value) in _PLAIN else type(value).__name__


@functools.lru_cache(4096)
def digest_of(code: CodeType) -> bytes | None:
    """Return a digest of what a code does, wherever it stands; None for one that has been rewritten by pytest."""
    if any(name.startswith("@py") for each in codes(code) for name in (*each.co_names, *each.co_varnames)):
        return None
    return hashlib.blake2b(repr(_of_code(code)).encode("utf-8", "backslashreplace"), digest_size=8).digest()


def _of_code(code: CodeType) -> tuple[object, ...]:
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    consts = code.co_consts
    if consts and isinstance(consts[0], str):
        steps = dis.get_instructions(code)
        if not any(step.opcode in dis.hasconst and step.arg == 0 for step in steps):  # what documents it
            consts = consts[1:]
    table = getattr(code, "co_exceptiontable", b"")
    return code.co_name, counts, names, code.co_code, table, [_of_constant(one) for one in consts]


def _of_constant(value: object) -> object:
    if isinstance(value, CodeType):
        return _of_code(value)
    if isinstance(value, frozenset):  # in the order of this process
        return "frozenset", sorted(repr(_of_constant(one)) for one in value)
    return [_of_constant(one) for one in value] if isinstance(value, tuple) else repr(value)


# Where it has arrived


def digests_of(found: Iterable[CodeByName]) -> Digests:
    """Return the digests that are sent along, by module and path."""
    digests: dict[tuple[str, str], OfOneName] = {}
    for each in found:
        digests.update(each.digests)
    return (_PYTHON, *((*where, sent) for where, sent in sorted(digests.items()) if sent)) if digests else ()


def refuse_other_code(digests: Digests) -> None:
    """Raise if a function that was meant is another one in this process."""
    if not digests or digests[0] != _PYTHON:
        return
    for module, path, sent in digests[1:]:
        functions = list(functions_in(_found(module, path)))
        here = _of_functions(functions)
        if not here or (here[-1:] == sent[-1:] and len(here) != len(sent)):  # decorated on one side
            continue
        if here != sent and not _is_in_source(module, functions, here, sent):
            raise PortabilityError(
                f"`{module}.{path}` is other code in this process than where it was sent from: the module has been "
                "reloaded, patched or edited there since it was imported here. Restart the workers, have them reload "
                f"it, `client.run(importlib.reload, {module})`, or let what it defines travel with your functions, "
                f"`cloudpickle.register_pickle_by_value({module})`."
            )


def _found(module: str, path: str) -> Any:
    """Return what stands under a name: no code of the user's runs."""
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = vars(found).get(name) if isinstance(found, ModuleType | type) else None
    return found


def _is_in_source(module: str, functions: Sequence[FunctionType], here: Any, there: Any) -> bool:
    """Return whether the source has both: a module chooses, by what is installed say, or computes defaults.

    Defaults are looked for where functions are defined: other modules import them, by other names.
    """
    both = [{code for code, _ in one} for one in (here, there)]
    with contextlib.suppress(Exception):
        if both[0] == both[1]:
            defaults = [{default for _, given in one for default in given} for one in (here, there)]
            differing = {name for name, _ in defaults[0] ^ defaults[1]}
            return differing <= {name for each in functions for name in _computed_defaults(each)}
        compiled = compile(inspect.getsource(sys.modules[module]), module, "exec", dont_inherit=True)
        return {digest_of(each) for each in codes(compiled)} >= both[0] | both[1]
    return False


def _computed_defaults(function: FunctionType) -> set[str]:
    """Return the names of arguments, of functions of the name of one in its module, whose defaults are no constants."""
    found, name = set[str](), function.__code__.co_name
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[function.__globals__["__name__"]]))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            ordered, given = [*node.args.posonlyargs, *node.args.args], node.args.defaults
            pairs = list[tuple[ast.arg, ast.expr | None]](zip(ordered[len(ordered) - len(given) :], given, strict=True))
            pairs += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            found |= {arg.arg for arg, default in pairs if default is not None and not _is_constant(default)}
    return found


def _is_constant(default: ast.AST) -> bool:
    return all(isinstance(part, _OF_LITERALS) for part in ast.walk(default))


_OF_LITERALS = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.unaryop, ast.expr_context)
