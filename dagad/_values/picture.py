"""What functions can reach, as it was when somebody looked: what is something else by now, and may they read it.

Solvers refuse or put back what others have changed (`named`), pullbacks that functions bring along are made anew
(`reading`), and members of `dagad.vmap` run one by one (`members_process`).
"""

from __future__ import annotations

import enum
import functools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

from dagad._values.baseline import GENERATORS, Detail, Noted, differ
from dagad._values.bytecode import TAKERS, names_of, read_in, takes_all_attributes
from dagad._values.contents import wrapped_in
from dagad._values.homes import is_installed
from dagad._values.kinds import INSTANCE, MAPPING, SERIES, SET, kind_of
from dagad._values.reach import ANY, MISSING, WHOLE, Contents, Key, Reach, Slot, is_long, owned_by_libraries
from dagad._values.walk import runs_unnamed

# By what it is said where a generator stands.
_PLACES = frozenset("bit_generator get_state getstate jumped spawn state __getstate__ __reduce__".split())
counts_unnamed = functools.partial(runs_unnamed, frozenset())


class ByName:
    """What parts hold, as `inside` says; of the user's own objects the attributes that functions name.

    An object may lead to a whole program, of which a function reads a number.
    """

    __slots__ = ("_inside", "left_out", "names")

    def __init__(self, inside: Callable[[Any], Contents]) -> None:
        self._inside, self.left_out = inside, set[str]()
        self.names: frozenset[str] | None = frozenset()  # None for all

    def __call__(self, part: object) -> Contents:
        cls: Any = type(part)
        held = self._inside(part)
        if self.names is None or not held.attributes or not _is_bare(cls):
            return held
        words = [name if isinstance(name, str) else name[1] for name in held.attributes]
        indices = [index for index, word in enumerate(words) if word in self.names]
        if len(indices) == len(words):
            return held
        self.left_out.update(words)
        attributes, values = ([every[index] for index in indices] for every in (held.attributes, held.values))
        return held._replace(attributes=attributes, values=values)

    def reach(self, fun: object, most: int = sys.maxsize) -> Reach:
        """Return what a function reaches."""
        if self.names is not None and type(fun) is FunctionType:  # often these are all
            self.names |= read_in(fun.__code__)
        while True:
            self.left_out.clear()
            reach = Reach(fun, counts_unnamed, self, most)
            codes = reach.codes.values()
            if self.names is None or reach.is_full:
                return reach
            if any(map(takes_all_attributes, codes)) or hands_on(reach):
                self.names = None
                continue
            found = self.names.union(*map(read_in, codes))
            if self.left_out.isdisjoint(found - self.names):
                return reach
            self.names = found


def _is_bare(cls: type) -> bool:
    """Return whether a class is the user's, with all that it derives from, and a kind of nothing else."""
    return kind_of(cls) is INSTANCE and not any(is_installed(each.__module__) for each in cls.__mro__[:-1])


class Picture:
    """Parts of what functions reach, and what their names meant; `detail` says what is noted of a part.

    ============  ==================================================================================================
    `reach`       what the functions hold, and what they mean by names
    `known`       what may be something else later, by id
    `codes`       what the functions are made of
    ============  ==================================================================================================
    """

    __slots__ = ("_detail", "codes", "known", "reach")

    def __init__(self, reach: Reach, detail: Detail) -> None:
        self.reach, self._detail, self.known = reach, detail, dict[int, Noted]()
        self.codes = frozenset(reach.codes.values())

    def add(self, parts: Mapping[int, Any], among: Mapping[int, Any] | None = None) -> None:
        """Note some parts, of those given or of others; but for what libraries keep for themselves."""
        left_out = owned_by_libraries(among or parts, self.reach.owners) if parts else set()
        for key, part in parts.items():
            if key not in left_out and (noted := Noted.of(part, self._detail, self._held(key, part))) is not None:
                self.known[key] = noted

    def _held(self, key: int, part: object) -> Contents | None:
        return None if is_long(part) else self.reach.contents.get(key)

    def changes(self, besides: set[Key] | frozenset[Key] = frozenset()) -> Iterator[Key]:
        """Yield what is another object by now, or has other numbers, whether or not it is like what was there."""
        yield from (key for key in self.reach.rebound() if key not in besides)
        for number, noted in self.known.items():
            if (number, WHOLE) not in besides and noted.has_changed():
                yield from (key for key in entries_changed(noted) if key not in besides)

    def have_grown(self, changed: set[Key]) -> bool:
        """Return whether all is there that was, of what has changed: a list, say, may have become longer."""
        numbers = {number for number, _ in changed}
        return changed.isdisjoint(self.reach.slots) and all(self.known[number].has_grown() for number in numbers)

    def note_anew(self, changed: set[Key]) -> bool:
        """Note numbers that have changed; return whether that is all, and nothing leads to anything else now."""
        for number, name in changed:
            noted = self.known[number] if name is WHOLE else None
            if noted is None or noted.numbers is None or differ(noted.held, noted.now()):
                return False
            self.known[number] = noted._replace(numbers=noted.detail.numbers(noted.part))
        return True

    def may_be_read(self, key: Key) -> bool:
        """Return whether something may be read: an attribute that no function names is not, nor one only counted up."""
        number, name = key
        if name is WHOLE:
            return not self.is_drawn_from_only(number)
        return name is ANY or key in self.reach.slots or self.names(self.known[number].part, name)

    def is_drawn_from_only(self, number: int) -> bool:
        """Return whether a part is a generator, and no function asks where that stands.

        Who draws from one moves it: one that only others move, and no function that ran, is not read.
        """
        if not issubclass(type(self.known[number].part), GENERATORS):
            return False
        return not any(takes_all_attributes(code) or not _PLACES.isdisjoint(read_in(code)) for code in self.codes)

    def names(self, part: Any, name: Any) -> bool:
        """Return whether functions name an attribute of an object; entries of anything else need no name."""
        if kind_of(type(part)) is not INSTANCE or isinstance(name, int):
            return True
        return self._names_in(type(part), name[1] if isinstance(name, tuple) else name)

    def _names_in(self, home: object, word: str) -> bool:
        if any(word in read_in(code) or takes_all_attributes(code) for code in self.codes) or hands_on(self.reach):
            return True
        classes = home.__mro__ if isinstance(home, type) else ()
        return any(word in _names_of_class(cls) for cls in classes if is_installed(cls.__module__))

    def names_in(self, slot: Slot) -> bool:
        """Return whether a name in a module or a class may be read: one that is only bound or counted up is not."""
        return slot.is_global or slot.name.startswith("__") or self._names_in(slot.home, slot.name)


def hands_on(reach: Reach) -> bool:
    """Return whether functions hold what reads attributes that no code names, such as `operator.attrgetter`."""
    return any(_takes_attributes(part) for parts in (reach.held, reach.named) for part in parts.values())


def _takes_attributes(part: Any) -> bool:
    if type(part) in (FunctionType, BuiltinFunctionType):
        return part.__name__ in TAKERS or part in (getattr, vars)
    return type(part) in (operator.attrgetter, operator.methodcaller)


@functools.lru_cache(maxsize=256)
def _names_of_class(cls: type) -> frozenset[str]:
    """Return the names in the code of a class of a package, whose functions are not among those of the user's."""
    parts = [part for member in vars(cls).values() for part in (member, *wrapped_in(member))]
    return frozenset(name for part in parts if type(part) is FunctionType for name in names_of(part.__code__))


def entries_changed(noted: Noted) -> Iterator[Key]:
    """Yield what has changed in a part: entries, any of them where one comes or goes, or the part as a whole."""
    part, before, now, number = noted.part, noted.held, noted.now(), id(noted.part)
    old, new = (entries_of(part, held) if noted.numbers is None else None for held in (before, now))
    if (
        noted.is_made_otherwise
        or old is None
        or new is None
        or (kind_of(type(part)) is SERIES and len(before.rest) != len(now.rest))
    ):
        yield number, WHOLE
        return
    if kind_of(type(part)) is MAPPING and [name for name in old if name in new] != [
        name for name in new if name in old
    ]:
        yield number, WHOLE  # in another order
    for name in {**old, **new}:
        was, value = old.get(name, MISSING), new.get(name, MISSING)
        if was is not value:
            yield number, name
            if was is MISSING or value is MISSING:
                yield number, ANY


def entries_of(part: object, held: Contents) -> dict[Any, Any] | None:
    """Return what an object held, by the names of attributes, keys or places; None where only all of it counts."""
    kind = kind_of(type(part))
    if kind is SET:
        return None
    own = dict(zip(held.attributes, held.values, strict=True))
    if issubclass(type(part), enum.Enum):  # it notes what it has been asked for
        own = {name: value for name, value in own.items() if not _is_of_enum(name)}
    if kind is not MAPPING:
        return {**dict(enumerate([*held.first, *held.rest])), **own}
    count, n_left = divmod(len(held.rest), 2)
    if n_left:
        own["default_factory"] = held.rest[-1]
    if not all(type(key) is str for key in held.rest[:count]):
        return None
    return {**dict(zip(held.rest[:count], held.rest[count:], strict=False)), **own}


def _is_of_enum(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and name.endswith("_")
