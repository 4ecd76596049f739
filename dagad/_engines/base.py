"""The protocol of engines: one task as a function of its leaves -> its value and a pullback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

# Cotangents of the output's leaves -> cotangents of the inputs' leaves; None stands for "none" on both sides.
LeafPullback = Callable[[Sequence[Any]], list[Any]]


class Call(Protocol):
    """One task, seen as a function of the leaves that are being differentiated."""

    @property
    def fun(self) -> Callable[..., Any]:
        """The function."""

    def run(self, leaves: Sequence[Any]) -> Any:
        """Run the task with `leaves` where the differentiated ones belong."""

    def arguments(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments of `fun`, with `leaves` where the differentiated ones belong."""

    def leaf_cotangents(self, cotangents: Sequence[Any]) -> list[Any]:
        """Take one cotangent per argument apart into one per differentiated leaf."""


class Engine(Protocol):
    """What differentiates one task.

    An engine has to be importable or picklable, since it travels with the task.
    """

    name: str

    def linearize(self, call: Call, leaves: Sequence[Any]) -> tuple[Any, LeafPullback, Callable[[], int]]:
        """Run a task at `leaves`.

        Parameters
        ----------
        call
            The task.
        leaves
            Floating-point arrays or numbers to differentiate in.

        Returns
        -------
        value
            What the task returned, free of the engine's own types.
        pullback
            From one cotangent (or None) per leaf of the value to one (or None) per entry of `leaves`. It may be called
            again.
        nbytes
            Returns the memory, in bytes, that the pullback holds on to.
        """
