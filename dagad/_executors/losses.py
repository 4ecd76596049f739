"""What is said when a cluster can't run our tasks, or has lost what it kept for us."""

from __future__ import annotations

from collections.abc import Mapping

from dagad._errors import DataLostError, PortabilityError


def workers_unfit(reasons: Mapping[str, str]) -> PortabilityError:
    """Return the error for workers that can't run our tasks, by their addresses, each with the reason."""
    said = " ".join(f"Nothing of this can run on the worker {address}: {why}." for address, why in reasons.items())
    return PortabilityError(
        f"{said} Start such workers in an environment like the client's, with the same version of Python and of dagad, "
        f"or do without them: `client.retire_workers({list(reasons)!r})`."
    )


def results_lost(are_shards: bool) -> DataLostError:
    """Return the error for what was kept on a cluster that has been restarted."""
    restart = "`client.restart()`, or a scheduler that was started anew, takes away all that was on the cluster"
    if are_shards:
        return DataLostError(f"These Shards are gone: {restart}. Place the data again with `dagad.shard`.")
    return DataLostError(f"What this evaluation had left on the cluster is gone: {restart}. Evaluate it again.")
