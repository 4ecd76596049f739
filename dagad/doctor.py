"""The command ``python -m dagad.doctor ADDRESS``: tells whether a cluster is fit for dagad, and what to do if not."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dagad._diagnosis.bounded import bounded
from dagad._diagnosis.examine import examine
from dagad._diagnosis.fitness import Finding, findings

PARTS = {"cert": ".pem", "key": "-key.pem"}


def security(directory: str | None) -> Any:
    """Return what ``deploy/tls/make_certificates.sh`` has put into a directory, else what Dask is set to."""
    from distributed import Security

    if directory is None:
        return Security()
    folder = Path(directory).expanduser().resolve()
    shown: dict[str, Any] = {f"tls_client_{part}": str(folder / f"client{end}") for part, end in PARTS.items()}
    return Security(require_encryption=True, tls_ca_file=str(folder / "ca.pem"), **shown)


def missing_files(directory: str | None) -> str:
    """Return which of the files that `security` takes are not in a directory, in words; nothing if all are."""
    names = () if directory is None else ("ca.pem", *(f"client{end}" for end in PARTS.values()))
    folder = Path(directory or "").expanduser()
    return ", ".join(name for name in names if not (folder / name).is_file())


async def _reach(address: str, shown: Any, patience: float) -> None:
    """Say something to the scheduler: where that fails a Client would, and complain again when it is collected."""
    from distributed import rpc

    line: Any = rpc(address, timeout=patience, connection_args=shown.get_connection_args("client"))
    try:
        # A connection that is taken waits for a word of the other side, which Dask itself does for ever.
        await asyncio.wait_for(line.echo(data=b""), 1.1 * patience)
    finally:
        await asyncio.wait_for(line.close_rpc(), patience)


def diagnosis(address: str, certificates: str | None = None, patience: float = 30.0) -> list[Finding]:
    """Return what there is to say about a cluster."""
    from distributed import Client

    shown = security(certificates)
    try:
        bounded(1.2 * patience, "A first word", asyncio.run, _reach(address, shown, patience))
        client = bounded(patience, "A Client", Client, address, security=shown, timeout=patience, set_as_default=False)
    except TimeoutError:
        return [_silent(f"{address} takes connections, and does not answer in {patience:g} s")]
    except (OSError, TypeError, ValueError) as error:
        remedy = (
            "Is it running, is the address right, and its port open to this machine? A tls:// address takes "
            "certificates: --security DIRECTORY, or Dask's settings under distributed.comm.tls."
        )
        return [Finding("scheduler", "bad", f"{address} can't be reached ({error})", remedy)]
    try:
        return findings(examine(client, patience))
    except TimeoutError as error:
        return [_silent(f"{address} does not answer any more ({error})")]
    finally:
        with contextlib.suppress(TimeoutError):
            bounded(patience, "To close a Client", client.close)


def _silent(text: str) -> Finding:
    remedy = (
        "Is it a scheduler of Dask, not stopped (kill -CONT), and nothing in between that takes connections for it, as "
        "tunnels and proxies do? It may also be very busy: look again, or with more --patience."
    )
    return Finding("scheduler", "bad", text, remedy)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each check; return 1 if something is broken."""
    parser = argparse.ArgumentParser(prog="python -m dagad.doctor", description=__doc__)
    parser.add_argument("address", help="of the scheduler, such as tcp://10.0.0.1:8786")
    parser.add_argument("--security", metavar="DIRECTORY", help="where ca.pem, client.pem and client-key.pem are")
    parser.add_argument("--patience", type=float, default=30.0, help="seconds that each part may take to answer")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(argv)
    if missing := missing_files(options.security):
        parser.error(f"--security {options.security}: there is no {missing}. deploy/tls/make_certificates.sh makes it.")
    found = diagnosis(options.address, options.security, options.patience)
    if options.json:
        print(json.dumps([asdict(finding) for finding in found], indent=1))
    else:
        for finding in found:
            print(f"{finding.grade:5}{finding.check}: {finding.text}")
            if finding.remedy:
                print(f"     -> {finding.remedy}")
    return int(any(finding.grade == "bad" for finding in found))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads that wait for a silent cluster would be waited for
