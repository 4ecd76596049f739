"""The torch engine: functions of torch's tensors, run as they are and derived by torch.func.

Two things keep the bits the same wherever a chunk runs: torch gets memory of its own, since what a product rounds to
depends on where numpy's array happens to lie, and one thread, in the thread that runs the chunk and nowhere else.

What a function was given it can't write into: it runs inside of a level of torch.func, and torch refuses there.

State, for all engines of a process, since each program brings its own: `_PLACED`, tensors of arrays that nobody can
write into, by device; and `_TURNS`, while functions run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from dagad._engines.own_arrays import ArrayPullback, OnDevice
from dagad._engines.torch_levels import is_differentiated, levels, opened
from dagad._engines.torch_settings import refuse_around, settled
from dagad._engines.torch_turns import Turns
from dagad._errors import NotDifferentiableError, PlanError, StructureError, add_note_once
from dagad._frames import ended_in
from dagad._misuse import NOT_TORCHS
from dagad._tracing.flat_functions import Flat, FlatFunction, LeafPullback, Leaves, Mark, Side
from dagad._tracing.patches import patches
from dagad._types import Args, Array, Cotangent, Function, Kwargs, Leaf, Value

vjp: Any = torch.func.vjp  # its type does not tell of what it returns beside
_OUT_OF_TORCH = frozenset(
    {torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__float__, torch.Tensor.__complex__}  # not `detach`
)
# Methods that numpy's arrays and tensors both have and mean otherwise, and how tensors are told what numpy does.
_OTHERWISE = {
    torch.Tensor.max: ("with `dim`, returns places too", "torch.amax(x, dim)"),
    torch.Tensor.min: ("with `dim`, returns places too", "torch.amin(x, dim)"),
    torch.Tensor.nonzero: ("returns a matrix", "torch.nonzero(x, as_tuple=True)"),
    torch.Tensor.repeat: ("repeats the whole", "torch.repeat_interleave(x, n)"),
    torch.Tensor.sort: ("leaves the tensor as it was", "torch.sort(x).values"),
    torch.Tensor.std: ("divides by n - 1", "torch.std(x, correction=0)"),
    torch.Tensor.transpose: ("swaps two axes", "torch.permute(x, axes)"),
    torch.Tensor.var: ("divides by n - 1", "torch.var(x, correction=0)"),
}
_CONSTANTS = frozenset({"detach", "detach_", "__get__"})  # of `.data`: who writes that wants a constant


class TorchEngine:
    """The engine of functions of torch's tensors; its name is "torch", or "torch:cuda" where they are on a GPU.

    All numbers that a function gets are tensors, in the dtypes that they have in numpy: float64 stays float64. Python's
    own ints and bools among the shared arguments stay what they are.

    Parameters
    ----------
    device
        Where the tensors are: "cpu", or "cuda", the current GPU of each worker.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> import dagad
    >>> def energy(rows, t):
    ...     return torch.sum(torch.sin(rows * t))
    >>> def total(t):
    ...     return dagad.reduce_sum(energy, np.arange(4.0), t, grainsize=2, engine="torch")
    >>> round(float(dagad.grad(total)(0.5)), 9)
    2.170398779
    """

    __slots__ = ("device", "name")
    has_own_arrays = True

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.name = "torch" if device == "cpu" else f"torch:{device}"

    def takes(self, leaf: Leaf) -> bool:
        """Take tensors, and numbers that may have a derivative."""
        if isinstance(leaf, np.ndarray | np.generic):
            return leaf.dtype.kind in "biufc"
        return isinstance(leaf, torch.Tensor | float | complex)

    def value(self, fun: Flat, leaves: Leaves) -> list[Any]:
        """Run a flat function; see `Engine.value`."""
        run = _untouched if getattr(fun, "base", None) is fun else _outputs_of  # what was derived has levels of its own
        return list(map(_as_numpy, self._run(run, fun, leaves)))

    def linearize(self, fun: Flat, leaves: Leaves) -> tuple[list[Any], LeafPullback]:
        """Run a flat function, and keep torch's graph of it; see `Engine.linearize`."""
        derived: _Derived = self._run(_Derived, fun, leaves)
        values = list(map(_as_numpy, derived.outputs))

        def pull(seeds: list[Any]) -> list[Any]:
            with self._settled():
                return list(map(_as_numpy, derived.pull(list(map(self._tensor, seeds)))))

        def pull_block(columns: list[Any]) -> list[Any] | None:
            with self._settled():
                found = derived.pull_block(list(map(self._tensor, columns)))
            return None if found is None else list(map(_as_numpy, found))

        return values, ArrayPullback((self, fun, leaves), values, pull, derived.nbytes, pull_block)

    def pushforward(self, fun: Flat, n: int) -> Flat:
        """Return its pushforward; see `Engine.pushforward`.

        It is the pullback of the pullback, which is linear: torch's own forward mode takes three times longer, and has
        no rules for users' own `torch.autograd.Function`.
        """

        def jvp(leaves: Leaves) -> list[Any]:
            each = len(leaves) // (1 + n)
            derived = _Derived(fun, leaves[:each])
            directions = [
                [dx.to(x.dtype) for x, dx in zip(leaves[:each], leaves[start : start + each], strict=True)]
                for start in range(each, len(leaves), each)
            ]
            tangents_out = derived.push(directions)
            rest = [iter(tangents) for tangents in tangents_out]
            tangents = [
                next(own) if _is_float(output) else torch.zeros_like(output)
                for own in rest
                for output in derived.outputs
            ]
            return [*derived.outputs, *tangents]

        return jvp

    def pullback(self, fun: Flat, n: int) -> Flat:
        """Return its pullback, as a function of the leaves and the cotangents; see `Engine.pullback`."""

        def pulled(leaves: Leaves) -> list[Any]:
            derived = _Derived(fun, leaves[:n])
            floats = filter(_is_float, derived.outputs)
            return derived.pull([_like(seed, value) for seed, value in zip(leaves[n:], floats, strict=True)])

        return pulled

    def _run(self, how: Callable[[Flat, list[Any]], Any], fun: Flat, leaves: Leaves) -> Any:
        """Run a flat function at tensors that stand for leaves, and for the constants of its task."""
        base: Any = getattr(fun, "base", None)
        _refuse_own(leaves)
        with self._settled():
            tensors = list(map(self._tensor, leaves))
            if base is None:
                return how(fun, tensors)
            base.given = [constant for side in base.sides() for constant in side.kept(self.name, self._constants)]
            try:
                with patches, _Watch(base, how is not _untouched), _TURNS:  # primitives of autograd's are seen
                    found = how(fun, tensors)
            except RuntimeError as error:
                if "saved tensor hooks" not in str(error):
                    raise
                raise _of_hooks(base.name) from error
            except TypeError as error:
                if ended_in(error, "numpy"):  # `np.sum(x)` is `x.sum(axis=None, dtype=None, out=None)`
                    add_note_once(error, f"dagad: {NOT_TORCHS}")
                raise
            finally:
                base.given = None
            base.out = None if base.out is None else base.out.bare()
            return found

    def check_around(self) -> None:
        """Refuse settings of torch's that the calling thread has, and the threads and workers of chunks have not."""
        refuse_around(self.name)

    def _settled(self) -> contextlib.AbstractContextManager[Any]:
        if self.device == "cuda" and not torch.cuda.is_available():
            raise PlanError(
                '`engine="torch:cuda"` computes on a GPU, and torch sees none here. Run where there is one, with a '
                'build of torch for it, or write `engine="torch"`.'
            )
        return settled(self.device)

    def _constants(self, side: Side) -> list[Any]:
        partition = side.constants()
        _refuse_own([leaf for leaf in partition.leaves if type(leaf) is not Mark])
        return list(map(self._tensor, partition.taken))

    def _tensor(self, number: Array) -> Any:
        return _PLACED[self.device](np.asarray(number))


class _Derived:
    """A flat function that has run at some tensors: its outputs, and pullbacks of those that have derivatives."""

    __slots__ = ("_pull", "_roots", "_still", "outputs")

    def __init__(self, fun: Flat, leaves: Leaves) -> None:
        self._roots: list[Any] = []
        self.outputs: list[Any]
        floats, self._pull, self.outputs = vjp(functools.partial(self._floats_and_rest, fun), *leaves, has_aux=True)
        self._still = [torch.zeros_like(part) for part in floats]

    def _floats_and_rest(self, fun: Flat, *leaves: Any) -> tuple[tuple[Any, ...], list[Any]]:
        """Return those outputs that have derivatives, or a number if none has, and all."""
        outputs = _outputs_of(fun, list(leaves))
        floats = tuple(filter(_is_float, outputs)) or (torch.zeros(()),)
        self._roots = [part.grad_fn for part in floats]
        return floats, outputs

    def _pulled(self, *seeds: Any) -> tuple[Any, ...]:
        found: tuple[Any, ...] = self._pull(seeds or tuple(self._still))
        # What comes of seeds changes with them, as long as it is not zero.
        if any(map(is_differentiated, seeds)) and any(not is_differentiated(part) and part.any() for part in found):
            raise NotDifferentiableError(
                "Forward mode and derivatives of higher order differentiate what torch does backward, and something "
                "there carries no derivative: an `autograd.Function` with `.detach()` in its `backward`, or a sparse "
                "tensor. Write it without, or ask for gradients only."
            )
        return found

    def pull(self, seeds: Sequence[Any]) -> list[Any]:
        """Pull one cotangent for each output that has a derivative; torch's cotangents are the conjugates of ours."""
        return [part.conj() for part in self._pulled(*(seed.conj() for seed in seeds))]

    def pull_block(self, columns: Sequence[Any]) -> Sequence[Any] | None:
        """Pull several cotangents at once, along a first axis; None where torch has no rule for that, or a slow one."""
        with contextlib.suppress(RuntimeError, UserWarning):
            found: Sequence[Any] = torch.func.vmap(lambda *seeds: tuple(self.pull(seeds)))(*columns)
            return found
        return None

    def push(self, directions: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
        """Return the tangents of these outputs in each direction."""
        _, transposed = vjp(self._pulled, *map(torch.ones_like, self._still))
        if len(directions) > 1:
            columns = [torch.stack(column) for column in zip(*directions, strict=True)]
            with contextlib.suppress(RuntimeError, UserWarning):  # what has no rule for many at once, or a slow one
                tangents_out: Any = torch.func.vmap(lambda *dx: transposed(dx))(*columns)
                return [[column[number] for column in tangents_out] for number in range(len(directions))]
        return [transposed(tuple(dx)) for dx in directions]

    def nbytes(self) -> int:
        """Return the memory of the tensors that torch's graph holds."""
        seen, todo, found = set[Any](), list(self._roots), dict[int, int]()
        while todo:
            node = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            todo.extend(parent for parent, _ in node.next_functions)
            saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"]
            for held in saved:
                for part in held if isinstance(held, tuple | list) else (held,):
                    if isinstance(part, torch.Tensor):
                        storage = opened(part).untyped_storage()
                        found[storage.data_ptr()] = storage.nbytes()
        return sum(found.values())


def _outputs_of(fun: Flat, leaves: Leaves) -> list[Any]:
    """Return what a function returns, as tensors."""
    outputs = fun(leaves)
    return [part if isinstance(part, torch.Tensor) else torch.from_numpy(np.array(part)) for part in outputs]


def _untouched(fun: Flat, leaves: Leaves) -> list[Any]:
    """Run a function inside of a level in which nothing is differentiated, so that it can't write into the data."""
    found = vjp(lambda still: (still, _outputs_of(fun, leaves)), torch.zeros(()), has_aux=True)
    return list(found[2])


class _Watch(TorchFunctionMode):
    """Refuses what torch would do in silence: to lose a derivative, or to write into data."""

    def __init__(self, base: FlatFunction, is_derived: bool) -> None:
        super().__init__()
        self._name, self._is_derived = base.name, is_derived
        self._is_also_numpys = base.is_also_numpys

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs = None) -> Any:
        if func in _OUT_OF_TORCH and is_differentiated(args[0]):
            raise NotDifferentiableError(
                f"`{self._name}` asked for a Python number, by `.item()`, `float()`, `.tolist()`, a function of `math` "
                "or the like, of a tensor that is being differentiated: a Python number carries no derivative. Use "
                "the tensor as it is, with `torch.exp` instead of `math.exp`, or write `x.detach().item()` if it is "
                "meant to be constant."
            )
        out = kwargs.get("out") if kwargs else None
        if out is not None and not all(map(levels.is_functorch_wrapped_tensor, out if type(out) is tuple else (out,))):
            raise StructureError(
                f"`{self._name}` was to write a result by `out=` into a tensor that it did not make itself. Leave "
                "`out=` out, and use what is returned."
            )
        found = func(*args, **(kwargs or {}))
        if self._is_also_numpys and func in _OTHERWISE:
            self._refuse_otherwise(func, found, args, kwargs or {})
        if (
            self._is_derived
            and not getattr(found, "requires_grad", False)
            and _is_lost(func, found, args, kwargs or {})
        ):
            raise NotDifferentiableError(
                f"`{self._name}` called `{func.__name__}` of torch's with a tensor that is being differentiated, and "
                "what it returns carries no derivative. Write it with functions that have one, such as "
                "`torch.stack([a, b])` for `torch.tensor([a, b])`, bring a derivative by an `autograd.Function` of "
                "your own, or write `x.detach()` if it is meant to be constant."
            )
        return found

    def _refuse_otherwise(self, func: Function, found: object, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Refuse a method that gives another value than numpy's, where Dask calls the function with numpy's arrays."""
        name = func.__name__
        if name in ("max", "min") and isinstance(found, torch.Tensor):
            return  # of all numbers
        if name in ("std", "var") and (options.get("correction") == 0 or options.get("unbiased") is False):
            return
        if name == "transpose" and (args[0].ndim != 2 or args[1] % 2 > args[2] % 2):
            return  # numpy refuses two of three axes
        does, instead = _OTHERWISE[func]
        raise NotDifferentiableError(
            f"`{self._name}` called the method `{name}` of a tensor, which {does}, and that of numpy's arrays, with "
            f"which Dask calls the function, does not: the value would be another. Write `{instead}`, or leave "
            '`engine="torch"` out.'
        )


def _of_hooks(name: str) -> NotDifferentiableError:
    return NotDifferentiableError(
        f"`{name}` runs where torch has been told how to keep what goes backward, by `torch.utils.checkpoint`, "
        "`save_on_cpu` or `saved_tensors_hooks`, in the function or around it, and `torch.func` does not allow that. "
        "Leave it out; to keep less between value and gradient, give the reduction `policy=dagad.extend.Recompute()` "
        "or smaller chunks."
    )


def _is_lost(func: Function, found: object, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Return whether floating-point numbers came of what is being differentiated, and torch has no derivative."""
    name = func.__name__
    given = args[1:] if name.startswith("new_") else args  # of the other only the dtype is taken
    if not (any(map(_holds_differentiated, given)) or any(map(_holds_differentiated, options.values()))):
        return False  # nearly always
    if name in _CONSTANTS or name.endswith("_like") or options.get("create_graph") or not torch.is_grad_enabled():
        return False
    made = [part for part in (found if isinstance(found, tuple | list) else [found]) if isinstance(part, torch.Tensor)]
    return any(map(_is_float, made)) and not any(map(is_differentiated, made))


def _holds_differentiated(part: object) -> bool:
    if isinstance(part, torch.Tensor):
        return is_differentiated(part)
    return isinstance(part, tuple | list) and any(map(_holds_differentiated, part))


def _refuse_own(parts: Sequence[Any]) -> None:
    """Raise if a task was given torch's own tensors."""
    if any(isinstance(part, torch.Tensor) for part in parts):
        raise StructureError(
            "A reduction or map was given a tensor of torch's own. Give it numpy's, `tensor.numpy()`: chunks get "
            "tensors of them. Inside of a function for torch write the sum with `torch`, or put the reduction around "
            "that function."
        )


def _is_float(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _like(seed: Cotangent, value: Value) -> Any:
    """Return a cotangent in the dtype of what it belongs to."""
    return (seed.real if seed.is_complex() and not value.is_complex() else seed).to(value.dtype)


def _as_numpy(tensor: torch.Tensor) -> Any:
    array = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().numpy()
    array.flags.writeable = False  # it may be what the function was given
    return array if array.ndim else array[()]


def _put(device: str, array: Array) -> Any:
    own = np.asarray(array, array.dtype.newbyteorder("="), order="C")
    return torch.tensor(own, device=device)


_PLACED = {device: OnDevice(functools.partial(_put, device), "torch") for device in ("cpu", "cuda")}


_TURNS = Turns()
