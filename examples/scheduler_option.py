"""The options by which the examples are told where to run, and the clusters that these open."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dask.distributed import Client, LocalCluster
from distributed.security import Security

QUEUES = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "sge": "SGECluster"}
ROLES = "client", "scheduler", "worker"
PATIENCE = 3600  # seconds until the queue starts the first job


def add_options(parser: argparse.ArgumentParser) -> None:
    where = f"threads, sync, processes, tcp:// or tls://... of a cluster, or a queue ({', '.join(QUEUES)}), see deploy/"
    parser.add_argument("--scheduler", default="threads", help=where)
    parser.add_argument("--jobs", type=int, default=2, help="how many jobs of workers a queue is asked for")
    parser.add_argument("--security", metavar="DIRECTORY", help="of certificates, see deploy/tls")


def certificates(directory: str | None) -> Security | None:
    """Return what is in the directory; None leaves it to Dask's settings."""
    if directory is None:
        return None
    place, parts = Path(directory).expanduser().resolve(), {"cert": ".pem", "key": "-key.pem"}
    if not (place / "ca.pem").is_file():
        raise SystemExit(f"--security {directory}: there is no ca.pem. deploy/tls/make_certificates.sh makes it.")
    shown: Any = {f"tls_{role}_{part}": str(place / f"{role}{end}") for role in ROLES for part, end in parts.items()}
    return Security(require_encryption=True, tls_ca_file=str(place / "ca.pem"), **shown)


@contextlib.contextmanager
def opened(options: argparse.Namespace) -> Iterator[Any]:
    """What `scheduler=` takes: a name of Dask's, or a Client of a cluster that lives as long as the block."""
    security = certificates(options.security)
    if options.scheduler == "processes":
        local = LocalCluster(processes=True, threads_per_worker=1, dashboard_address=None)
        with local as cluster, Client(cluster) as client:
            yield client
    elif options.scheduler in QUEUES:
        import dask_jobqueue  # with its settings, as in deploy/slurm/jobqueue.yaml

        over_tls = {"security": security, "protocol": "tls://"} if security else {}
        with getattr(dask_jobqueue, QUEUES[options.scheduler])(**over_tls) as cluster, Client(cluster) as client:
            cluster.adapt(minimum_jobs=options.jobs, maximum_jobs=options.jobs)  # asks again for jobs that have died
            client.wait_for_workers(1, PATIENCE)
            yield client
    elif "://" in options.scheduler:
        with Client(options.scheduler, security=security) as client:
            yield client
    else:
        yield options.scheduler
