"""Whether a cluster is fit, decided from what its parts have said: no sockets, no clock, no Dask."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Grade = Literal["ok", "look", "bad"]
Line = tuple[float, float]  # seconds of a round trip, bytes per second
EXACT = "python", "numpy", "dask", "distributed", "autograd", "dagad"  # what shows in the bits, or has to agree
SLOW_TRIP, SLOW_LINE = 5e-3, 50e6
SPILL_SPACE, SKEW = 0.5, 1.0  # of a worker's memory; seconds


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was found and, where something is wrong, what to do about it."""

    check: str
    grade: Grade
    text: str
    remedy: str = ""


@dataclass(slots=True)
class WorkerReport:
    """A worker, as the scheduler knows it, and what it said.

    Attributes
    ----------
    python
        Its version; nothing if it can't be reached.
    facts, failure
        What it said of itself, or why it said nothing.
    busy
        What it did not do in time: it may be at work for somebody else.
    skew
        How many seconds its clock is away from the client's, at least.
    direct
        The line from the client; None if there is none.
    peer, at_work
        Another worker, and what a task found: the line to it or why there is none.
    gradients
        By "graph" and "hot loop": what was wrong with a gradient, or nothing; `LAST_BITS` if only these, `NOT_SEEN`
        and why if nothing can be said of it.
    """

    address: str
    python: str = ""
    n_threads: int = 1
    memory_limit: int = 0
    facts: dict[str, Any] | None = None
    failure: str = ""
    busy: str = ""
    skew: float = 0.0
    direct: Line | None = None
    peer: str = ""
    at_work: dict[str, Any] | None = None
    gradients: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Seen:
    """All that was learned about a cluster."""

    address: str
    client: dict[str, Any]
    scheduler: dict[str, Any]
    line: Line
    workers: list[WorkerReport]

    def asked(self) -> list[tuple[WorkerReport, dict[str, Any]]]:
        """Return the workers that said something, and what."""
        return [(part, part.facts) for part in self.workers if part.facts is not None]

    def parts(self) -> list[tuple[str, dict[str, Any]]]:
        """Return what the scheduler and the workers said."""
        return [("the scheduler", self.scheduler), *((part.address, found) for part, found in self.asked())]


def findings(seen: Seen) -> list[Finding]:
    """Return what there is to say about a cluster, a finding or more for each check."""
    return [finding for check in CHECKS for finding in check(seen)]


def same_python(one: str, other: str) -> bool:
    """Return whether functions can travel between two versions: they do as bytecode."""
    return one.split(".")[:2] == other.split(".")[:2]


def named(addresses: Iterable[str]) -> str:
    """Return some of the workers by their addresses, and how many there are more."""
    some = sorted(set(addresses))
    return ", ".join(some[:3]) + (f" and {len(some) - 3} more" if len(some) > 3 else "")


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return for each text whom it is about."""
    found = defaultdict(list)
    for address, text in pairs:
        found[text].append(address)
    return {text: named(addresses) for text, addresses in found.items()}


def about(check: str, grade: Grade, pairs: Iterable[tuple[str, str]], remedy: str, otherwise: str) -> Iterable[Finding]:
    """Yield a finding for each text, or that all is well."""
    wrong = [Finding(check, grade, f"{who}: {text}", remedy) for text, who in grouped(pairs).items()]
    return wrong or [Finding(check, "ok", otherwise)]


def workers(seen: Seen) -> Iterable[Finding]:
    """See whether there are any, and whether they answer."""
    if not seen.workers:
        remedy = "Start some, or look for their jobs in the queue, and into the logs of those that died."
        return [Finding("workers", "bad", "there are none", remedy)]
    silent = [
        (part.address, part.failure or "the scheduler can't reach it")
        for part in seen.workers
        if part.failure or not (part.python or part.busy)
    ]
    remedy = (
        "Its address has to be reachable from the scheduler: start it with --interface or --host (--contact-address "
        "behind a proxy), and open the ports of workers between the machines."
    )
    return about("workers", "bad", silent, remedy, f"{sum(not part.busy for part in seen.workers)} answer")


def scheduler(seen: Seen) -> Iterable[Finding]:
    """See whether it can be asked."""
    refusal = seen.scheduler.get("refusal")
    if not refusal:
        return [Finding("scheduler", "ok", "answers")]
    remedy = (
        "Take run_function out of its distributed.scheduler.blocked-handlers: gradients do without, but nothing tells "
        "how far they are, what they took, or which chunk kills its workers."
    )
    return [Finding("scheduler", "look", f"runs no functions ({refusal})", remedy)]


def imports(seen: Seen) -> Iterable[Finding]:
    """See whether everybody can import what tasks need."""
    failed = [
        (who, f"can't import {name} ({found['failures'][name]})")
        for who, found in seen.parts()
        for name in EXACT
        if name in found["failures"]
    ]
    remedy = "Install dagad there, in the environment that the scheduler and the workers are started from."
    return about("imports", "bad", failed, remedy, "dagad and what it needs, everywhere")


def versions(seen: Seen) -> Iterable[Finding]:
    """See whether they are the client's."""
    here = {"python": seen.client["python"], **seen.client["packages"]}
    said = {part.address: {"python": part.python} for part in seen.workers if part.python}
    said |= {who: {"python": found["python"], **found["packages"]} for who, found in seen.parts()}
    other = [
        (who, f"{name} {there[name]}, the client has {here[name]}")
        for who, there in said.items()
        for name in EXACT
        if name in there and name in here and there[name] != here[name]
    ]
    grade: Grade = "bad" if any(text.startswith(("dagad", "python")) for _, text in other) else "look"
    remedy = "Install the same versions everywhere: results may differ in their last bits, or what is sent not be read."
    ours = ", ".join(f"{name} {here[name]}" for name in EXACT if name in here)
    return about("versions", grade, other, remedy, f"{ours}, everywhere")


def processors(seen: Seen) -> Iterable[Finding]:
    """See whether all workers have the same one."""
    models = {found["cpu"] for _, found in seen.asked()}
    if len(models) < 2:
        return [Finding("processors", "ok", models.pop() if models else "unknown")]
    pairs = [(part.address, found["cpu"]) for part, found in seen.asked()]
    remedy = "numpy picks its loops by the processor: for the same bits ask the queue for one kind of machine."
    return about("processors", "look", pairs, remedy, "")


def precision(seen: Seen) -> Iterable[Finding]:
    """See whether anybody computes with less than double precision."""
    flushing = [
        (part.address, "numbers below 2.2e-308 are flushed to zero")
        for part, found in seen.asked()
        if found["flushes"] or (part.at_work or {}).get("flushes")
    ]
    remedy = "A library that was built with -ffast-math turns that on when it is loaded: load another build of it."
    return about("precision", "bad", flushing, remedy, "double, with denormals")


def threads(seen: Seen) -> Iterable[Finding]:
    """See whether each has a core."""
    hosts: dict[str, list[tuple[WorkerReport, dict[str, Any]]]] = defaultdict(list)
    for part, found in seen.asked():
        hosts[found["host"]].append((part, found))
    crowded = []
    for host, parts in hosts.items():
        n_threads, n_cpus = sum(part.n_threads for part, _ in parts), max(found["n_cpus"] for _, found in parts)
        if n_threads > n_cpus:
            crowded.append((host, f"{n_threads} threads of workers on {n_cpus} cores"))
    loose = [
        (part.address, f"{part.n_threads} threads, and OMP_NUM_THREADS is {found['threads']['OMP_NUM_THREADS']}")
        for part, found in seen.asked()
        if part.n_threads > 1 and found["threads"]["OMP_NUM_THREADS"] != "1"
    ]
    if not crowded and not loose:
        return [Finding("threads", "ok", f"{sum(part.n_threads for part in seen.workers)}, a core for each")]
    remedy = "Set OMP_NUM_THREADS=1 for workers: dagad holds BLAS at one thread, other libraries take one per core."
    return [
        *(about("threads", "look", crowded, "Start fewer workers, or with --nthreads 1.", "") if crowded else ()),
        *(about("threads", "look", loose, remedy, "") if loose else ()),
    ]


def memory(seen: Seen) -> Iterable[Finding]:
    """See whether workers have limits, and disks to spill to."""
    endless = [(part.address, "no limit of memory") for part in seen.workers if not part.memory_limit]
    full: list[tuple[str, str]] = []
    for part, found in seen.asked():
        if found["settings"]["distributed.worker.memory.spill"] is False:
            full.append((part.address, "does not spill, distributed.worker.memory.spill is false"))
        elif found["free"] < SPILL_SPACE * part.memory_limit:
            free, limit = found["free"] / 1e9, part.memory_limit / 1e9
            full.append((part.address, f"{free:.2f} GB free in {found['directory']}, for {limit:.2f} GB of memory"))
    remedy = "Start it with --local-directory on a disk with room: a worker that can't spill pauses, and all wait."
    bounds = "Start it with --memory-limit: without, a worker never spills nor pauses, and takes its machine down."
    return [
        *about("spill", "bad", full, remedy, "room for what does not fit into memory"),
        *(about("memory", "look", endless, bounds, "") if endless else [Finding("memory", "ok", "all have a limit")]),
    ]


def encryption(seen: Seen) -> Iterable[Finding]:
    """See whether it is on."""
    open_ones = [
        address for address in (seen.address, *(part.address for part in seen.workers)) if "tls" not in address
    ]
    if not open_ones:
        return [Finding("encryption", "ok", "TLS")]
    if all(map(is_loopback, open_ones)):
        return [Finding("encryption", "ok", "none, and only this machine can reach it")]
    remedy = "Whoever reaches a port can run code in your name: make certificates, see deploy/tls."
    return [Finding("encryption", "look", "none", remedy)]


def clocks(seen: Seen) -> Iterable[Finding]:
    """See whether they agree."""
    late = [(part.address, f"{part.skew:.1f} s off") for part, _ in seen.asked() if part.skew > SKEW]
    remedy = "Run NTP there: certificates, dashboards and timeouts go by the clock."
    return about("clocks", "look", late, remedy, f"within {SKEW:.0f} s")


def timeouts(seen: Seen) -> Iterable[Finding]:
    """See whether something ends the cluster, or its workers, by itself."""
    found, idle = [], seen.scheduler.get("idle_timeout")
    if idle:
        remedy = "It ends between two evaluations that are further apart: raise distributed.scheduler.idle-timeout."
        found.append(Finding("timeouts", "look", f"the scheduler ends after {idle:.0f} s without work", remedy))
    lives = [facts["lifetime"] for _, facts in seen.asked() if facts.get("lifetime")]
    if lives:
        if len(lives) > 1 and max(lives) - min(lives) < 0.02 * max(lives):
            remedy = "Give them --lifetime-stagger, lest they take all they hold with them at once."
            found.append(Finding("timeouts", "look", f"all workers end {max(lives):.0f} s after they began", remedy))
        if seen.scheduler.get("allowed_failures", 10) < 10:
            remedy = "Set distributed.scheduler.allowed-failures to 10: a task that sees its workers retire counts it."
            text = f"workers retire, and a task survives {seen.scheduler['allowed_failures']} of them"
            found.append(Finding("timeouts", "look", text, remedy))
    lost = seen.client["settings"]["distributed.deploy.lost-worker-timeout"]
    said = (
        f"workers live {min(lives):.0f} s or longer, lost jobs are replaced after {lost}"
        if lives
        else "nothing ends by itself"
    )
    return found or [Finding("timeouts", "ok", said)]


def as_line(line: Line) -> str:
    """Return a line in words."""
    return f"{line[0] * 1e3:.2f} ms there and back, {line[1] / 1e6:.0f} MB/s"


def worst(lines: Sequence[Line]) -> Line:
    """Return the longest round trip and the lowest bandwidth."""
    return max(line[0] for line in lines), min(line[1] for line in lines)


def is_loopback(address: str) -> bool:
    """Return whether an address can be reached from its own machine only."""
    return address.split("://")[-1].startswith(("127.", "[::1]", "localhost")) or address.startswith("inproc")


def graded(check: str, lines: Sequence[Line], between: str, here: bool) -> Iterable[Finding]:
    """Yield whether lines are fast, which may be all on this machine."""
    if not lines:
        return ()
    line = worst(lines)
    if line[0] > SLOW_TRIP or line[1] < SLOW_LINE:
        remedy = (
            "Look again when this machine is less busy: both ends are on it."
            if here
            else "Run the client near the cluster, on its fast network (--interface ib0): evaluations wait for both."
        )
        return [Finding(check, "look", f"{between}: {as_line(line)}, at worst", remedy)]
    return [Finding(check, "ok", f"{between}: {as_line(line)}, at worst")]


def network(seen: Seen) -> Iterable[Finding]:
    """See who reaches whom, and how fast."""
    unreachable = [
        (part.address, "can't be reached from the client") for part, _ in seen.asked() if part.direct is None
    ]
    cut = [
        (part.address, f"can't reach {part.peer} ({part.at_work['failure']})")
        for part in seen.workers
        if part.at_work and part.at_work.get("failure")
    ]
    busy = [(part.address, part.busy) for part in seen.workers if part.busy]
    here = all(map(is_loopback, [seen.address, *(part.address for part in seen.workers)]))
    between_workers = [tuple(p.at_work["line"]) for p in seen.workers if p.at_work and "line" in p.at_work]
    relayed = "Calls go through the scheduler, which is slower: run the client inside of the cluster's network."
    between = "Open the ports between workers (--worker-port gives a range): tasks whose inputs are elsewhere fail."
    return [
        *graded("network", [seen.line], "client to scheduler", is_loopback(seen.address)),
        *(about("network", "look", unreachable, relayed, "") if unreachable else ()),
        *graded("network", [part.direct for part in seen.workers if part.direct], "client to workers", here),
        *(about("network", "bad", cut, between, "") if cut else ()),
        *graded("network", between_workers, "workers", here),
        *(about("tasks", "look", busy, QUIET, "") if busy else ()),
    ]


def gradients(seen: Seen) -> Iterable[Finding]:
    """See whether they were right, on every worker, by the graph and by the hot loop."""
    tried = [part for part in seen.workers if part.gradients]
    found: list[Finding] = []
    for executor in ("graph", "hot loop"):
        wrong = [(part.address, part.gradients[executor]) for part in tried if part.gradients.get(executor)]
        bits = [(address, text) for address, text in wrong if text == LAST_BITS]
        unseen = [(address, text.removeprefix(NOT_SEEN)) for address, text in wrong if text.startswith(NOT_SEEN)]
        rest = [pair for pair in wrong if pair[1] != LAST_BITS and not pair[1].startswith(NOT_SEEN)]
        remedy = "Have the same versions and the same kind of processor everywhere, where bits matter."
        found += about(f"gradient ({executor})", "look", bits, remedy, "") if bits else ()
        found += about(f"gradient ({executor})", "look", unseen, QUIET, "") if unseen else ()
        found += about(f"gradient ({executor})", "bad", rest, "See the other findings first.", "") if rest else ()
        n_tried = sum(executor in part.gradients for part in tried)
        if n_tried and not wrong:
            text = f"right, with the bits of the client, on {n_tried} workers"
            found.append(Finding(f"gradient ({executor})", "ok", text))
        elif tried and not n_tried:
            remedy = "Mend them, or retire them: dagad refuses a cluster with such workers."
            found.append(Finding(f"gradient ({executor})", "look", "not tried: some workers can't run dagad", remedy))
    return found


LAST_BITS, NOT_SEEN = "right but for the last bits", "not seen: "
QUIET = "Look again when the cluster is quiet, or with more --patience: others may be at work on it."
CHECKS: tuple[Callable[[Seen], Iterable[Finding]], ...] = (
    *(scheduler, workers, imports, versions, processors, precision, threads, memory),
    *(encryption, clocks, timeouts, network, gradients),
)
