"""The protocol of engines: what differentiates a flat function, which takes a list of leaves and returns one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from dagad._errors import StructureError
from dagad._types import Cotangents, Leaf, Value
from dagad._values import pytree
from dagad._values.partition import Partition

_BARE = frozenset({float, np.float64, np.ndarray})

Leaves = Sequence[Any]
# In an engine's own language: its arrays in, its arrays out.
Flat = Callable[[Leaves], list[Any]]


class Mark:
    """Stands for a leaf that is being differentiated, by its number."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


class Side(NamedTuple):
    """Some of the arguments of a task, with what an engine that compiles has to know of them.

    Attributes
    ----------
    holder
        An object with a dict `kept`, where an engine may keep by its name what it has made of the constants: they stay
        the same for as long as it lives. None if there is none.
    constants
        Returns the arguments, their constants taken out, with a `Mark` for each leaf that is being differentiated.
    code
        The function itself, where these are the arguments that all tasks share.
    """

    holder: Any
    constants: Callable[[], Partition]
    code: tuple[Any, ...] = ()

    def filled(self, leaves: Leaves, constants: Iterator[Any]) -> tuple[Any, ...]:
        """Return the arguments with the next of `constants`, and with leaves."""
        parts, treedef = pytree.flatten(self.constants().merge(constants))
        filled = [leaves[part.number] if type(part) is Mark else part for part in parts]
        arguments: tuple[Any, ...] = pytree.unflatten(treedef, filled)
        return arguments

    def kept(self, name: str, make: Callable[[Side], Any]) -> Any:
        """Return what an engine of that name makes of it, made once for as long as its constants live."""
        if self.holder is None:
            return make(self)
        found = self.holder.kept.get(name)
        if found is None:
            found = self.holder.kept[name] = make(self)
        return found


def constants_of(arguments: tuple[Any, ...], are_rows: bool = False) -> Partition:
    """Return arguments with their constants taken out; see `FlatFunction.constants`."""
    return Partition.of(pytree.by_column(arguments), _is_number if are_rows else _is_no_length)


def _is_no_length(leaf: Leaf) -> bool:
    return type(leaf) not in (int, bool) and _is_number(leaf)


def _is_number(leaf: Leaf) -> bool:
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind in "biufc"
    return isinstance(leaf, bool | int | float | complex)


class FlatFunction:
    """One task as a function of leaves to leaves: those of what it returns that are the engine's.

    An engine that compiles makes inputs of the constants: it puts what stands for them into `given` before it runs the
    function, or what was composed of it.

    Attributes
    ----------
    takes
        Which leaves are the engine's; see `Engine.takes`.
    n_leaves
        How many leaves it takes.
    given
        What stands for `constants`, in their order; None for the constants themselves.
    context
        How an engine has it called, from what calls it and its leaves to its outputs, where it runs in a context of
        the engine's; None where it is simply called.
    out
        The structure of the last output, with the leaves that are not the engine's; None for a single leaf.

    Examples
    --------
    An engine meets it as `fun`, a list of leaves in and a list of leaves out; see the example of `Engine`.

    >>> from dagad.extend import FlatFunction
    >>> FlatFunction.key
    ()
    """

    __slots__ = ("__dict__", "given", "n_leaves", "out", "takes")
    takes: Callable[[Any], bool]
    n_leaves: int
    given: Sequence[Any] | None
    context: Callable[[Flat, Leaves], list[Any]] | None = None  # of the class, but where an engine sets it
    out: Partition | None

    key: tuple[Any, ...] = ()
    is_also_numpys = False  # whether numpy calls the function too, and its value is to be what comes of that

    @property
    def base(self) -> FlatFunction:
        """The function of a task: itself."""
        return self

    @property
    def name(self) -> str:
        """The name of the user's function, for sentences about it."""
        raise NotImplementedError(f"`{type(self).__name__}.name` has to name a function.")

    def function(self, leaves: Leaves) -> Callable[..., Any]:
        """Return the user's function, with `leaves` where it carried differentiated ones."""
        raise NotImplementedError(f"`{type(self).__name__}.function` has to find a function.")

    def arguments(self, leaves: Leaves) -> tuple[Any, ...]:
        """Return its arguments, with `leaves` where the differentiated ones belong and numpy's constants elsewhere."""
        raise NotImplementedError(f"`{type(self).__name__}.arguments` has to find a function's arguments.")

    def constants(self) -> list[Any]:
        """Return the numbers among the arguments that are not differentiated.

        Python's own ints and bools are none of them, but among rows: a loop may be as long as they say, so that what is
        compiled is compiled for them.
        """
        return [number for side in self.sides() for number in side.constants().taken]

    def sides(self) -> list[Side]:
        """Return the arguments, in their order, in groups that live equally long."""
        marks = list(map(Mark, range(self.n_leaves)))
        return [Side(None, lambda: constants_of(self.arguments(marks)), (self.function(marks),))]

    def run(self, leaves: Leaves) -> Any:
        """Return what the user's function returns."""
        if self.given is None:
            return self.function(leaves)(*self.arguments(leaves))
        rest = iter(self.given)
        arguments = [argument for side in self.sides() for argument in side.filled(leaves, rest)]
        return self.function(leaves)(*arguments)

    def extract(self, cotangents: Cotangents) -> list[Any]:
        """Return one cotangent per differentiated leaf, from one per argument of the user's function."""
        raise NotImplementedError(f"`{type(self).__name__}.extract` has to sort cotangents.")

    def __call__(self, leaves: Leaves) -> list[Any]:
        return self._called(leaves) if self.context is None else self.context(self._called, leaves)

    def _called(self, leaves: Leaves) -> list[Any]:
        n_leaves = getattr(self, "n_leaves", None)  # functions of others may not say
        if n_leaves is not None and len(leaves) != n_leaves:
            refuse_count(f"called `{self.name}` with", len(leaves), n_leaves)
        output = self.run(leaves)
        if hasattr(output, "_trace"):  # autograd's, nearly always
            self.out = None
            return [output]
        return self.flatten(output)

    def flatten(self, output: Value) -> list[Any]:
        """Return the engine's leaves of an output, and remember the rest."""
        if type(output) in _BARE and self.takes(output):
            self.out = None
            return [output]
        self.out = Partition.of(output, self.takes)
        return self.out.taken

    def merge(self, leaves: Leaves) -> Any:
        """Return the output with other leaves where it has the engine's."""
        n_outputs = 1 if self.out is None else len(self.out.positions)
        if len(leaves) != n_outputs:
            refuse_count(f"returned, as the value of `{self.name}`,", len(leaves), n_outputs)
        return leaves[0] if self.out is None else self.out.merge(iter(leaves))

    def select(self, seeds: Sequence[Any]) -> Sequence[Any]:
        """Return the seeds of the engine's leaves, from those of all leaves of the output."""
        if self.out is None or len(self.out.positions) == len(seeds):
            return seeds
        return [seeds[index] for index in self.out.positions]


def refuse_count(what: str, n: int, needed: int | str) -> NoReturn:
    """Refuse what an engine does with another number of leaves than there are."""
    raise StructureError(
        f"An engine has {what} {n} {'leaf' if n == 1 else 'leaves'}, and needed {'is' if needed == 1 else 'are'} "
        f"{needed}. Of `pushforward(fun, n)` the leaves are `[*x, *dx_1, ..., *dx_n]`, 1 + n equal parts, and the "
        "results `[*y, *dy_1, ..., *dy_n]`; of `pullback(fun, n)` the first n leaves are x, the others one cotangent "
        "for each output, and the results one cotangent for each leaf of x."
    )


def marked_function(base: FlatFunction) -> Callable[..., Any]:
    """Return the user's function whatever the leaves are: with marks where it carried differentiated ones."""
    return base.function(list(map(Mark, range(base.n_leaves))))


class Composed:
    """A flat function that was made of another one, in the engine's own language.

    Attributes
    ----------
    base
        The task's function that it was made of in the end; None if nobody told.
    key
        How: two with equal keys do the same with their bases.

    Examples
    --------
    >>> from dagad.extend import Composed
    >>> twice = Composed(lambda leaves: [2.0 * leaf for leaf in leaves], None, "twice")
    >>> twice([3.0]), twice.key
    ([6.0], (('twice',),))
    """

    __slots__ = ("_call", "base", "key")

    def __init__(self, call: Flat, fun: Flat, *key: Any) -> None:
        self._call, self.base = call, getattr(fun, "base", None)
        self.key: tuple[Any, ...] = (*getattr(fun, "key", ()), key)

    def __call__(self, leaves: Leaves) -> list[Any]:
        return self._call(leaves)


def outputs_of(fun: Flat, indices: Sequence[int]) -> Composed:
    """Return a flat function with some of its outputs."""

    def some(leaves: Leaves) -> list[Any]:
        outputs = fun(leaves)
        return [outputs[index] for index in indices]

    return Composed(some, fun, "outputs", *indices)


class LeafPullback(Protocol):
    """From cotangents of a function's outputs to those of its leaves; None means zero on both sides.

    Examples
    --------
    >>> class OfTimes:
    ...     def __init__(self, factor):
    ...         self.factor = factor
    ...     def __call__(self, cotangents):
    ...         return [None if one is None else self.factor * one for one in cotangents]
    ...     def nbytes(self):
    ...         return 8
    >>> OfTimes(3.0)([1.0, None])
    [3.0, None]
    """

    def __call__(self, cotangents: Sequence[Any]) -> list[Any]:
        """Pull; may be called again, with other cotangents, in any thread."""

    def nbytes(self) -> int:
        """Return the memory, in bytes, that the pullback holds on to."""


class Engine(Protocol):
    """What differentiates the functions that run in chunks and tasks: autograd, or anything with these methods.

    An engine sees *flat functions*: a list of leaves in, a list of leaves out. It is given leaves as numpy's arrays and
    numbers and gives back the same; in between, the function is called with whatever arrays the engine likes, and
    returns such arrays. `pushforward` and `pullback` stay in that language: what they are given and what they return
    are functions of the engine's own arrays, so that any derivative of any derivative is `value` or `linearize` of a
    flat function. dagad composes them; an engine that knows no second order raises in `pushforward` and `pullback`.

    What is not differentiated, rows say, reaches the function as numpy's. An engine whose functions want its own arrays
    there too, or which compiles, and so has to know what may change between calls, finds a task's constants in
    ``fun.base``, a `FlatFunction`, and what was made of that one in ``fun.key``; see `Composed`.

    An engine that compiles may have two methods more. ``pieces(n_rows, grainsize)`` returns the lengths into which the
    rows of a chunk of a sum are cut, so that it sees few shapes; items are given to it one by one then.
    ``value_and_grad(fun, leaves)`` returns what `linearize` does, and is called in its place where the cotangent 1 of a
    number comes next.
    Profiles tell of its attributes ``n_compiled`` and ``n_compiled_by_thread``: how often it has compiled something in
    the process, and in the calling thread.

    An engine whose functions can't be numpy's has an attribute ``has_own_arrays``, which is true: in a Dask graph it
    differentiates the functions that users wrote, and autograd those of numpy, Dask and Python around them.

    An engine travels with its tasks, so it has to be importable or picklable. Give it as ``engine=`` to a reduction or
    a map, or in the setting ``dagad.engine``. `explicit` functions have an engine of their own.

    Examples
    --------
    Derivatives by the complex step: exact for functions that are analytic, and written in numpy.

    >>> import numpy as np
    >>> import dagad
    >>> def step(fun, leaves, direction):
    ...     there = [x + 1e-200j * dx for x, dx in zip(leaves, direction)]
    ...     return [np.imag(y) * 1e200 for y in fun(there)]
    >>> class ComplexStep:
    ...     name = "complex step"
    ...     def takes(self, leaf):
    ...         return np.asarray(leaf).dtype.kind in "fc"
    ...     def value(self, fun, leaves):
    ...         return [np.real(y)[()] for y in fun(leaves)]
    ...     def linearize(self, fun, leaves):
    ...         return self.value(fun, leaves), Numbers(fun, leaves)
    ...     def pushforward(self, fun, n):
    ...         raise dagad.NotDifferentiableError("The complex step gives first derivatives, in reverse.")
    ...     pullback = pushforward
    >>> class Numbers:
    ...     '''Of numbers, one number: as many steps as leaves.'''
    ...     def __init__(self, fun, leaves):
    ...         self.fun, self.leaves = fun, leaves
    ...     def __call__(self, cotangents):
    ...         units = np.eye(len(self.leaves))
    ...         return [step(self.fun, self.leaves, unit)[0] * cotangents[0] for unit in units]
    ...     def nbytes(self):
    ...         return 0
    >>> def energy(rows, a, b):
    ...     return np.sum(np.sin(a * rows) * b)
    >>> def total(a, b):
    ...     return dagad.reduce_sum(energy, np.arange(4.0), a, b, grainsize=2, engine=ComplexStep())
    >>> [round(float(part), 6) for part in dagad.grad(total, (0, 1))(0.5, 2.0)]
    [4.340798, 2.318392]
    """

    name: str

    def takes(self, leaf: Leaf) -> bool:
        """Return whether a leaf of what a function returned is the engine's: a number that may have a derivative.

        All others (words, integers, what the engine does not know) are handed on as they are.
        """

    def value(self, fun: Flat, leaves: Leaves) -> list[Any]:
        """Run a flat function at numpy leaves; return numpy leaves."""

    def linearize(self, fun: Flat, leaves: Leaves) -> tuple[list[Any], LeafPullback]:
        """Run a flat function at numpy leaves, ready to be pulled.

        Parameters
        ----------
        fun
            The function: a `FlatFunction`, or one that was `Composed` of it.
        leaves
            Floating-point arrays or numbers to differentiate with respect to.

        Returns
        -------
        leaves
            What `fun` returned, as numpy's.
        pullback
            A `LeafPullback`: from one cotangent (or None) per leaf of the output to one (or None) per entry of
            `leaves`.
        """

    def pushforward(self, fun: Flat, n: int) -> Flat:
        """Return ``[*x, *dx_1, ..., *dx_n] -> [*y, *dy_1, ..., *dy_n]``: a function in the engine's own language.

        Here `n` is the number of directions, not of leaves: x and each dx have ``len(leaves) // (1 + n)`` of them.
        """

    def pullback(self, fun: Flat, n: int) -> Flat:
        """Return ``[*x, *ybar] -> xbar``, with `n` leaves in x: a function in the engine's own language."""


class Traits(NamedTuple):
    """What an engine may say beside what it has to; see `Engine`. Asked for here only: engines of users are anything.

    Attributes
    ----------
    pieces, value_and_grad
        The two methods that one has that compiles; None of others.
    has_own_arrays
        Whether its functions can't be numpy's.
    follows_traces
        Whether it takes traced leaves as they are.
    is_autograds
        Whether what traces outside is what traces inside.
    """

    pieces: Callable[[int, int], list[int]] | None = None
    value_and_grad: Callable[[Flat, Leaves], tuple[list[Any], LeafPullback]] | None = None
    has_own_arrays: bool = False
    follows_traces: bool = False
    is_autograds: bool = False

    @classmethod
    def of(cls, engine: Engine) -> Traits:
        """Return what an engine says; a class may have it ready."""
        ready: Traits | None = vars(type(engine)).get("traits")
        if ready is not None:
            return ready
        found: Any = [getattr(engine, name, default) for name, default in cls._field_defaults.items()]
        return cls(*found)
