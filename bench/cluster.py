"""Three nodes with one log on this machine, beside a node alone and others that replicate: load, ends of the leader, idleness,
and a node that is filled or catches up.

Run: `python bench/cluster.py [--quick] [--only PART,...] [--minutes N]`. What the ratios mean: bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench._cluster import NODES, Cluster, Clusters, bank_cluster, end_in_order
from bench._common import Bar, Bench, cpu_seconds, in_turns, make_parser, paired, percentile, work_directory
from bench._copying import measure_beside, measure_catch_up, measure_copies
from bench._etcd import etcd
from bench._failover import Ends, kill_leader, measure_ends
from bench._lanes import Cell, Lane
from bench._load import Sample, Target, run_closed, run_load, sample_of
from bench._nodes import transfers
from bench._postgres import postgres
from bench._server import answered, bank_server, batch_request, call_requests, server_pids

CLIENTS: Final = (1, 32, 256)
BATCH_LINES: Final = 1000
BATCH_STREAMS: Final = 2
IDLE_PARTITIONS: Final = 64
ELECTION_S: Final = 1.0  # the default time-out
ALONE, LEADER, CLUSTER = "node alone", "leader", "cluster of three"
POSTGRES = "PostgreSQL, one synchronous standby"
ETCD, ETCD_WINDOW = "etcd, three members", "etcd, three members, 64 puts under way"
CLIENTS_MAX: Final = {POSTGRES: 32, ETCD: 256}  # PostgreSQL has a process for each
BAR = Bar(0.3, 0.45)
PeerRun = Callable[[int, int], float]  # clients, round; answers per second


def main() -> None:
    parser = make_parser("cluster", "Three nodes with one log.")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to measure: " + ", ".join(PARTS))
    parser.add_argument("--minutes", type=float, help="of full load in the part `steady`; 2, with --quick 5 s")
    parser.add_argument("--ends", type=int, help="how often the leader is killed, and stopped; 20, with --quick 1")
    parser.add_argument("--calls", type=int, help="that a node lacks in the part `catch-up`; 1,000,000, with --quick 5,000")
    options = parser.parse_args()
    bench = Bench("cluster", options.seed, options.quick)
    bench.head()
    with work_directory(options.dir) as shared, ExitStack() as stack:
        options.clusters = Clusters(stack, shared if options.quick else None)
        for name in options.only.split(","):
            with work_directory(options.dir) as folder:
                PARTS[name](bench, options, folder)
    bench.write()


# -- load ----------------------------------------------------------------------------------------------------------------


def measure_load(bench: Bench, options: argparse.Namespace, folder: Path) -> None:
    """Single calls and batches, in turns with the node alone and with the peers that replicate."""
    with ExitStack() as stack:
        server, port = stack.enter_context(bank_server(folder / "alone"))
        cluster = stack.enter_context(options.clusters.loaded(folder / "cluster"))
        leader = cluster.wait_for_leader()
        pids = {ALONE: server_pids(server, port), CLUSTER: processes(cluster, leader)}
        ports = {ALONE: port, CLUSTER: cluster.ports[leader]}
        peers = peer_lanes(bench, stack, folder, options)
        calls = call_requests(transfers(options.seed, 2000))
        for clients in CLIENTS[::2] if options.quick else CLIENTS:
            bench.section(f"Single calls: {clients} clients that wait for their answers")
            lanes = {name: Lane(Target(ports[name], calls), pids[name]) for name in pids}
            others = {name: partial(run, clients) for name, run in peers.items() if clients <= CLIENTS_MAX[name]}
            compare(bench, options, lanes, partial(run_single, clients, 0.5 if options.quick else 1.0), others)
        bench.section(f"/v1/batch: {BATCH_STREAMS} streams of bodies of {BATCH_LINES:,} lines")
        bodies = [batch_request(transfers(options.seed + number, BATCH_LINES)) for number in range(4)]
        lanes = {name: Lane(Target(ports[name], bodies), pids[name]) for name in pids}
        compare(bench, options, lanes, run_batches, {ETCD_WINDOW: partial(peers[ETCD], 64)} if ETCD in peers else {})
        if cluster.wait_for_leader() != leader:
            raise RuntimeError("another node leads by now: the figures are of no one state")


def peer_lanes(bench: Bench, stack: ExitStack, folder: Path, options: argparse.Namespace) -> dict[str, PeerRun]:
    """Every peer that replicates and is installed."""
    started = {
        POSTGRES: stack.enter_context(postgres(folder, seconds=1 if options.quick else 2, seed=options.seed, standby=True)),
        ETCD: stack.enter_context(etcd(folder)),
    }
    for name, run in started.items():
        if isinstance(run, str):
            bench.note(f"{name}, is left out: {run}")
    return {name: run for name, run in started.items() if not isinstance(run, str)}


def processes(cluster: Cluster, leader: int) -> dict[str, int]:
    """All processes of a cluster, those of the leader and of the others under names of their own."""
    found = dict[str, int]()
    for node in NODES:
        role = LEADER if node == leader else f"follower {node}"
        found |= {f"{role} {name}": pid for name, pid in cluster.pids(node).items()}
    return found


def run_single(clients: int, seconds: float, target: Target) -> Sample:
    return run_closed(target, clients, seconds)


def run_batches(target: Target) -> Sample:
    """As calls: the sample counts lines."""
    found = run_load(target, connections=BATCH_STREAMS, count=BATCH_STREAMS * 4)
    found = answered(found)
    sample = sample_of(found)
    return Sample(
        sample.count * BATCH_LINES, sample.per_second * BATCH_LINES, sample.mean_s, sample.p50_s, sample.p99_s, sample.p999_s,
        sample.client_cpu_s,
    )  # fmt: skip


def compare(
    bench: Bench,
    options: argparse.Namespace,
    lanes: Mapping[str, Lane],
    work: Callable[[Target], Sample],
    others: Mapping[str, Callable[[int], float]],
) -> None:
    """One load on the node alone, on the cluster, and on other systems, in turns."""
    cells = {name: Cell() for name in lanes}
    for lane in lanes.values():
        work(lane.target)  # connections, caches
    variants = {name: partial(_round, lane, cells[name], work) for name, lane in lanes.items()}
    found = in_turns({**variants, **others}, 2 if options.quick else 15)
    for name, cell in cells.items():
        tell(bench, name, cell)
    bench.ratio(f"{CLUSTER} / {ALONE}", paired(found[CLUSTER], found[ALONE]), BAR)
    alone, all_nodes = (server_us(cells[name]) for name in (ALONE, CLUSTER))
    bench.ratio(f"CPU of {ALONE} / CPU of {CLUSTER}", alone / all_nodes)
    for name in others:
        bench.rates(name, found[name])
        bench.ratio(f"{CLUSTER} / {name}", paired(found[CLUSTER], found[name]), Bar(4) if name == ETCD_WINDOW else None)


def _round(lane: Lane, cell: Cell, work: Callable[[Target], Sample], _number: int) -> float:
    return lane.run(cell, work)


def server_us(cell: Cell) -> float:
    """CPU time per call of everything but the client."""
    return sum(spent for name, spent in cell.cpu_us().items() if name != "client")


def tell(bench: Bench, name: str, cell: Cell) -> None:
    """One row of the table, and the same as a figure."""
    p50, p99 = (cell.median(of) * 1e3 for of in (lambda s: s.p50_s, lambda s: s.p99_s))
    rate, used = statistics.median(cell.rates), cell.cpu_us()
    told = ", ".join(f"{process} {spent:.0f}" for process, spent in used.items())
    print(f"  {name:<18} {rate:>9,.0f}/s  p50 {p50:>7.2f}  p99 {p99:>7.2f} ms   CPU us: {told}")
    bench.figures.append({"name": name, "per_second": rate, "p50_ms": p50, "p99_ms": p99, "cpu_us": used})


# -- the leader ends -----------------------------------------------------------------------------------------------------


def measure_kills(bench: Bench, options: argparse.Namespace, folder: Path) -> None:
    """SIGKILL of the leader under calls."""
    ends = _measure(bench, options, folder, "SIGKILL of the leader", kill_leader)
    in_time = sum(gap <= 3 * ELECTION_S for gap in ends.gaps_s)
    bench.ratio(f"back within {3 * ELECTION_S:g} s", in_time / len(ends.gaps_s), Bar(49 / 50))


def measure_stops(bench: Bench, options: argparse.Namespace, folder: Path) -> None:
    """SIGTERM of the leader under calls."""
    ends = _measure(bench, options, folder, "SIGTERM of the leader", end_in_order)
    failed = sum(count for kind, count in ends.total().items() if kind != "refused")
    bench.ratio("calls without a known outcome", float(failed), Bar(0, at_most=True))
    bench.ratio("longest time without an answer / 200 ms", max(ends.gaps_s) / 0.2, Bar(1.0, at_most=True))


def _measure(bench: Bench, options: argparse.Namespace, folder: Path, title: str, end: Callable[[Cluster, int], None]) -> Ends:
    times = options.ends or (1 if options.quick else 20)
    bench.section(f"{title}, {times} times, under calls of callers that follow the leader")
    with options.clusters.loaded(folder) as cluster:
        ends = measure_ends(cluster, transfers(options.seed, 2000), end, times)
    tell_gaps(bench, ends)
    return ends


def tell_gaps(bench: Bench, ends: Ends) -> None:
    gaps = ends.gaps_s
    shares = {"shortest": 0.0, "median": 0.5, "90th percentile": 0.9, "longest": 1.0}
    for name, share in shares.items():
        bench.value(f"time without an answer: {name}", percentile(gaps, share) * 1e3, "ms")
    told = ", ".join(f"{kind} {count}" for kind, count in sorted(ends.total().items())) or "none"
    bench.note(f"answers that were no result, each repeated under its key: {told}")
    bench.figures.append({"gaps_s": gaps, "no_results": ends.others})


# -- idleness and steadiness ---------------------------------------------------------------------------------------------


def measure_idle(bench: Bench, options: argparse.Namespace, folder: Path) -> None:
    """What a cluster costs that nobody calls."""
    seconds = 3.0 if options.quick else 60.0
    bench.section(f"Idle: {IDLE_PARTITIONS} partitions, {seconds:g} s")
    with bank_cluster(folder, partitions=IDLE_PARTITIONS, options=("--sites", "1")) as cluster:
        time.sleep(1.0 if options.quick else 2.0)
        pids = {node: cluster.pids(node) for node in NODES}
        leader, frames, began = cluster.wait_for_leader(), cluster.frames(), time.monotonic()
        before = {node: sum(map(cpu_seconds, pids[node].values())) for node in NODES}
        time.sleep(seconds)
        spent = {node: sum(map(cpu_seconds, pids[node].values())) - before[node] for node in NODES}
        elapsed = time.monotonic() - began
        bench.value("messages per second, all nodes", (cluster.frames() - frames) / elapsed, "frames/s")
        for node in NODES:
            role = "leader" if node == leader else "follower"
            bench.ratio(f"{role} {node}: share of a core", spent[node] / elapsed, Bar(0.05, at_most=True))


def measure_steady(bench: Bench, options: argparse.Namespace, folder: Path) -> None:
    """Whether load alone ever costs an election."""
    minutes = options.minutes or (5 / 60 if options.quick else 2.0)
    bench.section(f"Full load for {minutes:.2g} minutes: 256 clients, then batches, in turns")
    with options.clusters.loaded(folder) as cluster:
        leader = cluster.wait_for_leader()
        single = Target(cluster.ports[leader], call_requests(transfers(options.seed, 2000)))
        bodies = Target(cluster.ports[leader], [batch_request(transfers(options.seed, BATCH_LINES))])
        terms, end, calls = cluster.terms(), time.monotonic() + 60 * minutes, 0
        while time.monotonic() < end:
            calls += run_closed(single, 256, min(5.0, 30 * minutes)).count + run_batches(bodies).count
        elections = sum(now - terms[group] for group, now in cluster.terms().items())
        bench.value("calls", float(calls), "")
        bench.ratio("elections", float(elections), Bar(0, at_most=True))


Part = Callable[[Bench, argparse.Namespace, Path], None]
PARTS: Final[dict[str, Part]] = {
    "load": measure_load, "kills": measure_kills, "stops": measure_stops, "idle": measure_idle, "steady": measure_steady,
    "copy": measure_copies, "catch-up": measure_catch_up, "beside-copy": measure_beside,
}  # fmt: skip

if __name__ == "__main__":
    main()
