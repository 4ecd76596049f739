"""Fits ``model.py``: ``python fit.py WHERE``. A run that was interrupted goes on when it is started again."""

import argparse
import contextlib
import difflib
import signal
import sys
import time
from pathlib import Path

import numpy as np
from distributed import Client
from distributed.security import Security
from scipy.optimize import minimize

import dagad
import model

QUEUES = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "sge": "SGECluster"}
ROLES = "client", "scheduler", "worker"
ROWS_PER_CHUNK = 1_000  # said here, so that the numbers have the same bits wherever they are computed
PATIENCE = 3600  # seconds until the queue starts the first job


def certificates(directory):
    """Return what ``tls/make_certificates.sh DIRECTORY`` has made."""
    found = Path(directory).resolve()
    parts = {"cert": ".pem", "key": "-key.pem"}
    named = {f"tls_{role}_{part}": str(found / f"{role}{end}") for role in ROLES for part, end in parts.items()}
    return Security(require_encryption=True, tls_ca_file=str(found / "ca.pem"), **named)


@contextlib.contextmanager
def opened(options):
    """Yield what `scheduler=` takes: a Client of the cluster, or a name like "threads"."""
    security = options.security and certificates(options.security)
    if options.where in QUEUES:
        import dask_jobqueue

        over_tls = {"security": security, "protocol": "tls://"} if security else {}
        with getattr(dask_jobqueue, QUEUES[options.where])(**over_tls) as cluster, Client(cluster) as client:
            print(f"scheduler {cluster.scheduler_address}, dashboard {cluster.dashboard_link}", flush=True)
            cluster.adapt(minimum_jobs=options.jobs, maximum_jobs=options.jobs)  # asks again for jobs that have died
            client.wait_for_workers(1, PATIENCE)  # a job that the queue refuses says so in its log only
            yield client
    elif options.where == "srun":  # inside a job: one process is the scheduler, one goes on here, the others work
        from dask_jobqueue.slurm import SLURMRunner

        address = {"interface": options.interface} if options.interface else {}
        parts = {"dashboard_address": "127.0.0.1:0", "preload": ["dagad_scheduler.preload"], **address}
        with SLURMRunner(scheduler_options=parts, worker_options={"nthreads": 1, **parts}) as runner:
            with Client(runner) as client:
                client.wait_for_workers(runner.n_workers, PATIENCE)
                yield client
    elif "://" in options.where:
        with Client(options.where, security=security) as client:
            yield client
    else:
        yield options.where


def stop(*_):
    """End in order: workers' jobs end with it. Queues and scripts may both ask for that, and the first one does it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit("stopped; start it again to go on")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("where", help=f"threads, {', '.join(QUEUES)}, srun, or the address of a scheduler")
    parser.add_argument("--jobs", type=int, default=2, help="how many jobs of the queue")
    parser.add_argument(
        "--checkpoint", default="checkpoint", help="where the run is written to; delete it to begin anew"
    )
    parser.add_argument("--security", help="the directory of the certificates, for TLS")
    parser.add_argument("--interface", help="the network of the cluster (srun), such as ib0")
    options = parser.parse_args()
    if options.where not in {*QUEUES, "srun", "threads", "sync", "processes"} and "://" not in options.where:
        near = difflib.get_close_matches(options.where, [*QUEUES, "srun", "threads", "sync", "processes"], n=1)
        guess = f" Did you mean {near[0]}?" if near else ""
        parser.error(f"{options.where} is neither of those nor an address such as tcp://10.0.0.1:8786.{guess}")
    if options.security and not (Path(options.security) / "ca.pem").is_file():
        parser.error(f"--security {options.security}: there is no ca.pem. tls/make_certificates.sh makes it.")
    signal.signal(signal.SIGTERM, stop)

    began = time.perf_counter()
    with opened(options) as scheduler, dagad.checkpoint(options.checkpoint) as run:
        if isinstance(scheduler, Client):
            scheduler.upload_file(model.__file__)  # workers that come later get it too
        rows = dagad.shard(model.load(), grainsize=ROWS_PER_CHUNK, scheduler=scheduler)

        def loss(theta):
            return -dagad.reduce_sum(model.log_likelihood, rows, theta)

        gradient = dagad.value_and_grad(loss)
        start = np.zeros(5)
        gradient(start)
        print(f"first gradient after {time.perf_counter() - began:.1f} s, {run.n_known} evaluations known", flush=True)
        found = minimize(gradient, start, jac=True, method="L-BFGS-B")
    print(f"log-likelihood {-found.fun:.4f} after {found.nit} iterations", flush=True)
    print("theta", *found.x.tolist(), flush=True)  # as many digits as tell each number apart from its neighbours


if __name__ == "__main__":
    main()
