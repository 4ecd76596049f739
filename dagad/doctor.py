"""The command ``python -m dagad.doctor ADDRESS``: tells whether a cluster is fit for dagad, and what to do if not."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dagad._api.examine import examine
from dagad._api.fitness import Finding, findings

PARTS = {"cert": ".pem", "key": "-key.pem"}


def security(directory: str | None) -> Any:
    """Return what ``deploy/tls/make_certificates.sh`` has put into a directory, else what Dask is set to."""
    from distributed import Security

    if directory is None:
        return Security()
    place = Path(directory).expanduser().resolve()
    shown: dict[str, Any] = {f"tls_client_{part}": str(place / f"client{end}") for part, end in PARTS.items()}
    return Security(require_encryption=True, tls_ca_file=str(place / "ca.pem"), **shown)


async def _reach(address: str, shown: Any, patience: float) -> None:
    """Say something to the scheduler: where that fails a Client would, and complain again when it is collected."""
    from distributed import rpc

    line: Any = rpc(address, timeout=patience, connection_args=shown.get_connection_args("client"))
    try:
        await line.echo(data=b"")
    finally:
        await line.close_rpc()


def diagnosis(address: str, certificates: str | None = None, patience: float = 30.0) -> list[Finding]:
    """Return what there is to say about a cluster."""
    from distributed import Client

    shown = security(certificates)
    try:
        asyncio.run(_reach(address, shown, patience))
        client = Client(address, security=shown, timeout=patience, set_as_default=False)
    except (OSError, TypeError, ValueError) as error:
        remedy = (
            "Is it running, is the address right, and its port open to this machine? A tls:// address takes "
            "certificates: --security DIRECTORY, or Dask's settings under distributed.comm.tls."
        )
        return [Finding("scheduler", "bad", f"{address} can't be reached ({error})", remedy)]
    with client:
        return findings(examine(client, patience))


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line for each check; return 1 if something is broken."""
    parser = argparse.ArgumentParser(prog="python -m dagad.doctor", description=__doc__)
    parser.add_argument("address", help="of the scheduler, such as tcp://10.0.0.1:8786")
    parser.add_argument("--security", metavar="DIRECTORY", help="where ca.pem, client.pem and client-key.pem are")
    parser.add_argument("--patience", type=float, default=30.0, help="seconds that each part may take to answer")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(argv)
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
    sys.exit(main())
