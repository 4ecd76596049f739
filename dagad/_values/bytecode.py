"""The steps of a code object, as they would stand in every Python: what functions mean and do is read from them.

From Python 3.13 on, one step may load or bind two local variables, and from 3.14 on, loads may lend what they load.
Names of more than a byte need a step before them. Whoever looks for a step, or for the one before it, has to know none
of this.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import re
from collections.abc import Iterator
from importlib import util
from types import CodeType, FrameType

_BY_WORDS = frozenset({"getattr", "attrgetter", "globals", "vars", "__dict__"})
_EVALUATORS = _BY_WORDS | {"eval", "exec", "locals", "methodcaller", "getattr_static", "__getattribute__"}
_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_RUN_TEXTS = frozenset({"eval", "exec"})
_IMPORTERS = frozenset({"import_module", "__import__", "modules"})
STORES = {"STORE_SUBSCR": 1, "STORE_SLICE": 2}  # into entries, and how many values stand on the stack above their owner
_NONE_OF_ITS_OWN = frozenset({"CACHE", "EXTENDED_ARG"})
_LOAD, _STORE = dis.opmap["LOAD_FAST"], dis.opmap["STORE_FAST"]
_OF_TWO = {  # and what both are
    "LOAD_FAST_LOAD_FAST": (_LOAD, _LOAD),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": (_LOAD, _LOAD),
    "STORE_FAST_LOAD_FAST": (_STORE, _LOAD),
    "STORE_FAST_STORE_FAST": (_STORE, _STORE),
}


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code and those of the functions defined in it, but for those that only tell annotations."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType) and const.co_name != "__annotate__":  # which Python 3.14 defers
            yield from codes(const)


def steps(code: CodeType) -> Iterator[dis.Instruction]:
    """Yield what a code does, one thing at a time."""
    for step in dis.get_instructions(code):
        if step.opname in _OF_TWO:
            for opcode, name in zip(_OF_TWO[step.opname], step.argval, strict=True):
                yield step._replace(opname=dis.opname[opcode], opcode=opcode, argval=name, argrepr=name)
        elif step.opname == "LOAD_FAST_BORROW":
            yield step._replace(opname="LOAD_FAST")
        elif step.opname not in _NONE_OF_ITS_OWN:
            yield step


def is_storing(frame: FrameType) -> bool:
    """Return whether a function that runs is storing into entries of something."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] in STORES


@functools.lru_cache(maxsize=1024)
def used_in(code: CodeType) -> tuple[str, ...]:
    """Return the names of globals and attributes in a code, and its words where it looks things up by words."""
    found = dict.fromkeys(name for each in codes(code) for name in each.co_names)
    is_by_name = _BY_WORDS.isdisjoint(found) and _RUN_TEXTS.isdisjoint(globals_of(code))
    return tuple(found) if is_by_name else names_of(code)


@functools.lru_cache(maxsize=1024)
def names_of(code: CodeType) -> tuple[str, ...]:
    """Return the names of globals and attributes in a code, and words that may be asked for with `getattr`."""
    found: dict[str, None] = {}
    for each in codes(code):
        found.update(dict.fromkeys(each.co_names))
    return tuple(found | dict.fromkeys(words_of(code)))


def words_of(code: CodeType) -> Iterator[str]:
    """Yield the words among the constants of a code, and those in texts where it runs texts."""
    runs_texts = not _RUN_TEXTS.isdisjoint(globals_of(code))
    for each in codes(code):
        for const in each.co_consts:
            for text in const if isinstance(const, tuple | frozenset) else (const,):
                if isinstance(text, str):
                    yield from _WORD.findall(text) if runs_texts else [text] if text.isidentifier() else ()


_WORD = re.compile(r"[^\W\d]\w*")


@functools.lru_cache(maxsize=1024)
def globals_of(code: CodeType) -> tuple[str, ...]:
    """Return the names of the globals that a code reads, without those of attributes."""
    every = (step for each in codes(code) for step in steps(each))
    return tuple(dict.fromkeys(step.argval for step in every if step.opname in _READS))


@functools.lru_cache(maxsize=1024)
def read_in(code: CodeType) -> frozenset[str]:
    """Return the names and words in a code without those of attributes that it only binds, or only counts up."""
    read = set(words_of(code))
    for each in codes(code):
        before = None
        for step in steps(each):
            is_counted = step.opname == "LOAD_ATTR" and before == ("COPY", 1)  # as `self.calls += 1` begins
            if step.opname not in ("STORE_ATTR", "DELETE_ATTR") and not is_counted and isinstance(step.argval, str):
                read.add(step.argval)
            before = step.opname, step.arg
    return frozenset(read)


# Methods and functions of numpy's that write into an array they are given; and all that change what they are called on.
WRITE = frozenset("at copyto fill fill_diagonal itemset place put put_along_axis putmask shuffle".split())
CHANGE = WRITE | frozenset(
    "add append appendleft clear delattr delitem difference_update discard extend extendleft frombytes fromlist iadd "
    "iand iconcat ifloordiv ilshift imatmul imod imul insert intersection_update ior ipow irshift isub itruediv ixor "
    "move_to_end next pack_into partition pop popitem popleft put_nowait readinto remove reset resize reverse rotate "
    "seek send setattr setdefault setflags setfield setitem sort subtract symmetric_difference_update throw truncate "
    "update write writelines __delattr__ __delitem__ __iadd__ __setattr__ __setitem__ __setstate__".split()
)
_OTHERS = frozenset("STORE_ATTR DELETE_ATTR STORE_GLOBAL DELETE_GLOBAL DELETE_SUBSCR".split()).union(STORES)


@functools.lru_cache(maxsize=1024)
def changes_others(code: CodeType) -> bool:
    """Return whether a code may change what others hold: entries, attributes, variables of others, arrays in place."""
    for each in codes(code):
        if not CHANGE.isdisjoint(each.co_names) or any(map(names_out, each.co_consts)):
            return True
        for step in steps(each):
            if step.opname in _OTHERS or (step.opname == "BINARY_OP" and step.argrepr.endswith("=")):
                return True
            if step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in each.co_freevars:
                return True
    return False


@functools.lru_cache(maxsize=1024)
def binds_globals(code: CodeType) -> tuple[str, ...]:
    """Return the names of the globals that a code binds, or deletes."""
    every = (step for each in codes(code) for step in steps(each))
    return tuple(dict.fromkeys(step.argval for step in every if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")))


def names_out(constant: object) -> bool:
    """Return whether a constant names the keyword `out`: those of a call are a tuple."""
    return constant == "out" or (isinstance(constant, tuple) and "out" in constant)


# Functions that take all attributes of what they are given, by themselves.
TAKERS = frozenset("asdict astuple copy deepcopy dumps fields getmembers replace __getstate__ __reduce_ex__".split())


@functools.lru_cache(maxsize=1024)
def takes_all_attributes(code: CodeType) -> bool:
    """Return whether a code may read attributes that it does not name."""
    if looks_up_words(code) or any(not TAKERS.isdisjoint(each.co_names) for each in codes(code)):
        return True
    return any(step.opname == "MATCH_CLASS" for each in codes(code) for step in steps(each))  # by `__match_args__`


@functools.lru_cache(maxsize=1024)
def looks_up_words(code: CodeType) -> bool:
    """Return whether a code, or a function defined in it, looks things up by words, and not by names alone."""
    return any(not _EVALUATORS.isdisjoint(each.co_names) for each in codes(code))


@functools.lru_cache(maxsize=1024)
def imports_of(code: CodeType, package: str | None) -> tuple[str, ...]:
    """Return the names of the modules that a code of a package imports when it runs, and of what may be modules."""
    found: list[str] = []
    for each in codes(code):
        every = list(steps(each))
        for level, names, step in zip(every, every[1:], every[2:], strict=False):  # both are put before an import
            if step.opname == "IMPORT_NAME":
                with contextlib.suppress(ImportError):  # the function itself will tell
                    module = util.resolve_name("." * level.argval + step.argval, package)
                    found += [module, *(f"{module}.{name}" for name in names.argval or () if name != "*")]
        if not _IMPORTERS.isdisjoint(each.co_names):
            words = (const for const in each.co_consts if isinstance(const, str))
            found += [word for word in words if word.replace(".", "").isidentifier()]
    return tuple(found)
