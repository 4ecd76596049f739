"""Functions that compute and do nothing else, known by their code: nothing that they read changes while they run.

Most right-hand sides are of this kind. What solvers do to be sure of functions (note what they hold before they run,
and look again; call them beside a program of theirs) is not needed for one: the same call gives the same again.

It is a closed world. Such a function reads its arguments, and numbers, arrays, containers of these and functions of its
own kind, from variables and as globals, and functions of numpy's by name. It adds, multiplies, compares, takes entries
and makes lists. No step of its code writes into anything but its own variables, catches an error, asks what something
is or whose it is, or takes an attribute but for a few of arrays. One step that is not known here, and nothing is said.
"""

from __future__ import annotations

import copy
import dis
import functools
import itertools
import sys
from collections.abc import Sequence
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import autograd.numpy as anp
import numpy as np

from dagad._errors import ClosureError
from dagad._values import pytree
from dagad._values.bytecode import codes, steps
from dagad._values.canonical import is_frozen
from dagad._values.closures import Template
from dagad._values.reach import MISSING, SMALL, contents_of

_STEPS = frozenset(
    "BINARY_OP BINARY_SLICE BINARY_SUBSCR BUILD_LIST BUILD_SLICE BUILD_TUPLE CALL COMPARE_OP COPY COPY_FREE_VARS "
    "DELETE_FAST END_FOR FOR_ITER GET_ITER JUMP_BACKWARD JUMP_FORWARD JUMP_IF_FALSE_OR_POP JUMP_IF_TRUE_OR_POP "
    "LIST_APPEND LIST_EXTEND LOAD_ATTR LOAD_CLOSURE LOAD_CONST LOAD_DEREF LOAD_FAST LOAD_FAST_AND_CLEAR "
    "LOAD_FAST_CHECK LOAD_GLOBAL LOAD_METHOD LOAD_SMALL_INT MAKE_CELL MAKE_FUNCTION NOP NOT_TAKEN POP_ITER "
    "POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_TRUE "
    "POP_JUMP_IF_FALSE POP_JUMP_IF_TRUE POP_TOP PRECALL PUSH_NULL RERAISE RESUME RETURN_CONST RETURN_VALUE "
    "SET_FUNCTION_ATTRIBUTE STORE_DEREF STORE_FAST SWAP TO_BOOL UNARY_NEGATIVE UNARY_NOT UNPACK_SEQUENCE".split()
)
_LOADS = frozenset({"LOAD_GLOBAL", "LOAD_DEREF"})
_TAKES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_OF_ARRAYS = frozenset({"T", "dot", "ndim", "shape", "size", "sum"})
_NUMBERS = frozenset({type(None), bool, int, float, str, np.float64, np.int64})
_CONTAINERS = frozenset({tuple, list, dict})
_HOMES = frozenset({"numpy", "math", "autograd.numpy", "scipy.special"})
_OF_NUMPY = "array concatenate dot matmul ones ones_like stack sum zeros zeros_like".split()
_CALLABLE = frozenset({type, type(len), FunctionType, type(np.sum), type(np.concatenate)})
_FEW = 2  # arguments: a third one of numpy's functions may be an array that it writes into
_METHODS = {"dot": 1, "sum": 2}  # and how many arguments of these are only read
_UNSEEN = 1000  # arguments, where it is not plain to see how many there are
_MOST = 100  # parts: what has more is data
_KINDS = "fiub"  # of numbers in an array


# What writes into nothing that it is given.
_OWN = frozenset({enumerate, float, len, list, max, min, range, reversed, sum, tuple, zip, np.interp})


@functools.cache
def _known() -> frozenset[Any]:
    """Return the functions that may be called, but for universal ones."""
    of_numpy = (getattr(home, name) for home in (np, anp) for name in _OF_NUMPY)
    universal = (getattr(anp, name, len) for name, one in vars(np).items() if type(one) is np.ufunc)  # as primitives
    return frozenset([*_OWN, *of_numpy, *universal])


def _is_known(function: Any) -> bool:
    """Return whether a function may be called: of universal ones those of numpy's and scipy's, as users make others."""
    if type(function) is np.ufunc:
        homes = (sys.modules.get(name) for name in ("numpy", "scipy.special"))
        return any(getattr(home, function.__name__, None) is function for home in homes)
    return type(function) in _CALLABLE and function in _known()


class _Read(NamedTuple):
    """What a code reads from elsewhere: as a global or not, by which name, and the attributes that it takes of that.

    If that is a function, it is called with `n_given` arguments at most.
    """

    is_global: bool
    name: str
    names: tuple[str, ...]
    n_given: int


@functools.lru_cache(maxsize=1024)
def _read(code: CodeType) -> tuple[_Read, ...] | None:
    """Return what a code reads; None where it may do more than compute."""
    reads = dict[_Read, None]()
    for each in codes(code):
        every, taken = list(steps(each)), 0  # up to which step attributes belong to what was read before
        for number, step in enumerate(every):
            if not _only_computes(step, each):
                return None
            if step.opname in _TAKES and number >= taken:
                if step.argval not in _OF_ARRAYS or not _is_reading(step.argval, _n_given(every[number + 1 :])):
                    return None
            if step.opname in _LOADS:
                names = tuple(one.argval for one in itertools.takewhile(_is_taking, every[number + 1 :]))
                taken = number + 1 + len(names)
                reads[_Read(step.opname == "LOAD_GLOBAL", step.argval, names, _n_given(every[taken:]))] = None
    return tuple(reads)


def _n_given(following: Sequence[dis.Instruction]) -> int:
    """Return with how many arguments a function is called that has just been put on the stack."""
    above = 0  # values on the stack
    is_after_null = bool(following) and following[0].opname == "PUSH_NULL" and sys.version_info >= (3, 13)
    for step in following[is_after_null:]:  # it stands before the function until 3.12
        n_arguments = step.arg or 0
        if step.opname == "CALL" and n_arguments == above:
            return n_arguments
        if step.opname == "CALL":
            above -= n_arguments + 1
        elif step.opname != "PRECALL":
            above += dis.stack_effect(step.opcode, step.arg)
        if above < 0 or "JUMP" in step.opname or step.opname == "FOR_ITER":
            break
    return _UNSEEN


def _is_reading(method: str, n_given: int) -> bool:
    """Return whether a method of arrays writes into nothing, which one that is called with more arguments may."""
    return n_given <= _METHODS.get(method, _UNSEEN)


def _is_taking(step: Any) -> bool:
    return step.opname in _TAKES


def _only_computes(step: Any, code: CodeType) -> bool:
    if step.opname == "BINARY_OP":
        return not step.argrepr.endswith("=")
    return step.opname in _STEPS and (step.opname != "STORE_DEREF" or step.argval in code.co_cellvars)


class _World:
    """All that a function reads, as far as it is of this kind.

    ============  ====================================================================================================
    `boxes`       traced values, by their ids
    `arrays`      arrays that somebody may write into, by their ids
    `made`        what is made of others, by the ids of what has been made
    `carriers`    the ids of what is made again with others in it: variables, containers, and functions with these
    `named`       globals, with what they mean and the bits of what is an array
    `codes`       functions, with their codes
    `key`         what is the same for functions that compute the same of the traced values
    ============  ====================================================================================================
    """

    def __init__(self) -> None:
        self.boxes, self.arrays, self.carriers = dict[int, Any](), dict[int, Any](), set[int]()
        self.made = dict[int, Any]()
        self.codes = list[tuple[FunctionType, CodeType]]()
        self.named, self.key = list[tuple[dict[str, Any], str, Any, Any]](), list[Any]()
        self._met, self._is_writing, self._has_arrays = dict[int, int](), False, False

    @property
    def is_closed(self) -> bool:
        """Whether no function of numpy's can write into an array that was found."""
        return not (self._has_arrays and self._is_writing)

    def takes(self, part: Any, is_named: bool = False, n_given: int = _UNSEEN) -> bool:
        """Return whether something is of this kind, with all that it leads to; what is named is what a global means.

        If it is a function of numpy's, it is called with `n_given` arguments at most.
        """
        kind: Any = type(part)
        if len(self.key) > SMALL:
            return False
        if kind in _NUMBERS:
            self.key.append((kind, part.hex() if isinstance(part, float) else part))
            return True
        is_met = id(part) in self._met
        self.key.append((kind, self._met.setdefault(id(part), len(self._met))))
        is_known = callable(part) and _is_known(part)
        if is_known and part not in _OWN:
            self._is_writing = self._is_writing or n_given > getattr(getattr(part, "fun", part), "nin", _FEW)
        if is_met or len(self._met) > _MOST:
            return is_met
        if kind is ModuleType or is_known:
            self.key.append(id(part))
            return kind is not ModuleType or part.__name__ in _HOMES
        if kind is np.ndarray:
            return self._takes_array(part, is_named)
        if kind is FunctionType:
            return self._takes_function(part, is_named)
        return not is_named and self._takes_held(part)

    def _takes_held(self, part: Any) -> bool:
        kind: Any = type(part)
        names = vars(kind).get("computes_from")
        if names is not None:  # an object of ours, and what all its values come from
            self.carriers.add(id(part))
            self.key.append(names)
            return self._takes_made(part) and all(self.takes(getattr(part, name)) for name in names)
        if kind in pytree.TRACED:
            self.boxes[id(part)] = part
            plain: Any = pytree.plain(part)
            return type(plain) in (float, np.float64) or (type(plain) is np.ndarray and plain.dtype.kind in "fc")
        if kind is not CellType and kind not in _CONTAINERS:
            return False
        self.carriers.add(id(part))
        inner = contents_of(part).parts
        self.key.append(len(inner))
        n_given = 0 if kind is CellType else _UNSEEN  # by what reads a variable it is seen how that is called
        return all(self.takes(each, n_given=n_given) for each in inner)

    def _takes_made(self, part: Any) -> bool:
        """Take what is made of fewer numbers as these, to be made again of others: there are fewer to be moved."""
        made = getattr(part, "made", None)
        if made is None:
            return True
        self.made[id(part.made_value)] = made
        self._met[id(part.made_value)] = len(self._met)
        self.carriers |= {id(made), id(made.data)}
        self.key.append((made.name, tuple(made.options.items())))
        return all(map(self.takes, made.data))

    def _takes_array(self, array: np.ndarray, is_named: bool) -> bool:
        self._has_arrays = True
        if is_named and array.size > SMALL:
            return False
        if not is_named and not is_frozen(array):
            self.arrays[id(array)] = array
        bits = array.tobytes() if array.size <= SMALL else object()  # which is like no other
        self.key.append((array.shape, array.dtype, bits))
        return array.dtype.kind in _KINDS

    def _takes_function(self, function: FunctionType, is_named: bool) -> bool:
        reads = _read(function.__code__)
        held = [*(function.__closure__ or ()), function.__defaults__, function.__kwdefaults__]
        held = [part for part in held if part is not None]
        if reads is None or (is_named and held):
            return False
        if held:
            self.carriers.add(id(function))
        self.key.append(function.__code__)
        self.codes.append((function, function.__code__))
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        return all(map(self.takes, held)) and all(self._takes_read(function, cells, read) for read in reads)

    def _takes_read(self, function: FunctionType, cells: dict[str, CellType], read: _Read) -> bool:
        """Return whether what a function reads by a name is of this kind, with the attributes that it takes of it."""
        name = read.name
        if read.is_global:
            value = function.__globals__.get(name, MISSING)
            bits = value.tobytes() if type(value) is np.ndarray else None
            self.named.append((function.__globals__, name, value, bits))
            own: dict[str, Any] = function.__builtins__
            value = own.get(name) if value is MISSING else value
        elif name in cells:
            value = cells[name].cell_contents
        else:  # a variable of its own
            value = None
        rest = list(read.names)
        while type(value) is ModuleType and value.__name__ in _HOMES and rest:
            value = getattr(value, rest.pop(0), MISSING)
        if type(value) is ModuleType or not _OF_ARRAYS.issuperset(rest):
            return False
        return all(_is_reading(each, read.n_given) for each in rest) and self.takes(value, read.is_global, read.n_given)


class Arithmetic:
    """A function, or several in builtin containers, known to compute and nothing else, as it is when this is made.

    Attributes
    ----------
    leaves
        The traced values in it.
    key
        What is the same for functions that compute the same of these.
    """

    def __init__(self, fun: Any, world: _World) -> None:
        self._codes, self._named, self._arrays = world.codes, world.named, list(world.arrays.values())
        self.leaves, self.key = list(world.boxes.values()), tuple(world.key)
        self._places = {key: index for index, key in enumerate([*world.boxes, *world.arrays])}
        self._made = list(world.made.values())
        self._make = Template.of(fun, [*world.boxes, *world.arrays, *world.made], world.carriers)

    @classmethod
    def of(cls, fun: Any) -> Arithmetic | None:
        """Return what is known of a function; None where it may do more."""
        world = _World()
        try:
            return cls(fun, world) if world.takes(fun) and world.is_closed else None
        except (ClosureError, RecursionError, ValueError):  # a variable that has no value yet
            return None

    def kept(self) -> Arithmetic:
        """Return the same with arrays as they are now: others may write into them."""
        found = copy.copy(self)
        found._arrays = [array.copy("K") for array in self._arrays]
        return found

    def at(self, leaves: Sequence[Any]) -> Any:
        """Return the function as it was, with these in the place of the traced values."""
        given = [*leaves, *self._arrays]
        for one in self._made:
            places = [self._places.get(id(part)) for part in one.data]
            given.append(one.again([p if at is None else given[at] for p, at in zip(one.data, places, strict=True)]))
        made = self._make(given)
        if all(_is_still(*named) for named in self._named) and all(fun.__code__ is code for fun, code in self._codes):
            return made
        codes = {id(fun): code for fun, code in self._codes}
        named = {(id(scope), name): (value, bits) for scope, name, value, bits in self._named}
        return _rescoped(made, _Meant(named, codes), {})


def _is_still(scope: dict[str, Any], name: str, value: Any, bits: Any) -> bool:
    return scope.get(name, MISSING) is value and (bits is None or value.tobytes() == bits)


class _Meant(NamedTuple):
    """What names meant, by ids of scopes, and which codes functions had, by ids of these."""

    named: dict[tuple[int, str], Any]
    codes: dict[int, CodeType]


def _rescoped(part: Any, meant: _Meant, made: dict[int, Any]) -> Any:
    """Return functions like these, of their codes, that mean by names what they meant."""
    kind: Any = type(part)
    if kind in _CONTAINERS:
        return (
            {key: _rescoped(each, meant, made) for key, each in part.items()}
            if kind is dict
            else kind(_rescoped(each, meant, made) for each in part)
        )
    if kind is not FunctionType or _is_known(part):
        return part
    if id(part) not in made:
        scope, code = part.__globals__, meant.codes.get(id(part), part.__code__)
        cells = tuple(CellType() for _ in part.__closure__ or ())
        own = dict[str, Any](scope)
        new = made[id(part)] = FunctionType(code, own, part.__name__, _rescoped(part.__defaults__, meant, made), cells)
        new.__kwdefaults__ = _rescoped(part.__kwdefaults__, meant, made)
        for (home, name), (value, bits) in meant.named.items():
            if home == id(scope) and value is MISSING:
                own.pop(name, None)
            elif home == id(scope):
                was = value if bits is None else np.frombuffer(bits, value.dtype).reshape(value.shape)
                own[name] = _rescoped(was, meant, made)
        for cell, old in zip(cells, part.__closure__ or (), strict=True):
            cell.cell_contents = _rescoped(old.cell_contents, meant, made)
    return made[id(part)]
