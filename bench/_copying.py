"""A cluster whose node is filled or lags: how fast it is made whole, and what that costs the calls."""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import orjson

from bench._cluster import NODES, Cluster, bank_cluster
from bench._common import ROOT, Bar, Bench, cpu_seconds
from bench._load import Target, run_closed, run_load
from bench._nodes import transfers
from bench._server import answered, batch_request, call_requests, load_accounts
from procedures.samples import bank

ACCOUNTS_PER_CALL: Final = 10_000
ROW_BYTES: Final = 50  # of an account in a state file, about
LOAD_CLIENTS: Final = 32
ROUND_S: Final = 1.0
DISK_BYTES: Final = 256 << 20
RATE: Final = 64 << 20  # the default of copy_rate_bytes_per_s
UNLIMITED: Final = ("--copy-rate-bytes-per-s", "0")


def measure_copies(bench: Bench, options: argparse.Namespace, folder: Path) -> None:
    """A follower whose disk is replaced, and what the disk takes without the network."""
    size = 10 << 20 if bench.quick else 500 << 20
    bench.section(f"Copy: about {size >> 20} MiB of state to an empty disk, no rate limit; and a file of the disk's own")
    disk, copies, spent = list[float](), list[float](), list[float]()
    with bank_cluster(folder / "cluster", options=UNLIMITED) as cluster:
        fill_accounts(cluster.ports[cluster.wait_until_level()], size)
        cluster.wait_until_level()
        for _ in range(1 if bench.quick else 5):
            disk.append(disk_rate(folder / "plain", DISK_BYTES // 4 if bench.quick else DISK_BYTES))
            with replaced_disk(cluster) as node:
                before = others_cpu(cluster, node)
                size, rate = copy_rate(cluster, node)
                copies.append(rate)
                spent.append((others_cpu(cluster, node) - before) / size * 1e9)
    bench.rates("plain file, written and synced", disk, "MB/s")
    bench.rates("copy, from its first byte to its last", copies, "MB/s")
    if not bench.quick:  # else they are mostly idle
        bench.value("CPU time of the other two nodes meanwhile", statistics.median(spent), "s/GB")
    fair = min(100, statistics.median(disk) / 2)  # a slower disk cannot give more
    bench.ratio("copy / the lesser of 100 MB/s and half the disk's", statistics.median(copies) / fair, Bar(1.0))


def measure_catch_up(bench: Bench, options: argparse.Namespace, folder: Path) -> None:
    """A follower that was away, beside a replay of what it missed."""
    calls = options.calls or (5_000 if bench.quick else 1_000_000)
    bench.section(f"Catch-up: a node {calls:,} calls away, by the log; and `cmdlog recover` of the same calls")
    with bank_cluster(folder / "cluster") as cluster:
        leader = cluster.wait_until_level()
        load_accounts(cluster.ports[leader])
        away = next(node for node in NODES if node != leader)
        cluster.wait_until_level()
        end_node(cluster, away)
        make_calls(cluster.ports[leader], calls, options.seed)
        taken = seconds_until_level(cluster, leader, away)
        end_node(cluster, away)
        without = seconds_until_level(cluster, leader, away)
        for node in NODES:
            end_node(cluster, node)
        replay = recover_seconds(folder / "cluster")
    bench.value("from its start until it is level", taken, "s")
    bench.value("the same when it lacked nothing", without, "s")
    bench.value(f"replay alone of {replay['replayed']:,} calls", replay["seconds"], "s")
    per_call, alone = (taken - without) / calls, replay["seconds"] / replay["replayed"]
    bench.ratio("catch-up per call / replay per call", per_call / alone, Bar(1.5, at_most=True))


def measure_beside(bench: Bench, options: argparse.Namespace, folder: Path) -> None:
    """Calls while a copy with the default rate limit is under way, in rounds before, beside and after it."""
    size = 20 << 20 if bench.quick else 600 << 20
    bench.section(f"Beside a copy of about {size >> 20} MiB with the default rate: {LOAD_CLIENTS} clients that wait for answers")
    around, beside, rates = [], [], []
    with options.clusters.loaded(folder / "cluster") as cluster:
        leader = cluster.wait_until_level()
        fill_accounts(cluster.ports[leader], size)
        cluster.wait_until_level()
        target = Target(cluster.ports[leader], call_requests(transfers(options.seed, 2000)))
        run_closed(target, LOAD_CLIENTS, ROUND_S)
        for _ in range(1 if bench.quick else 5):
            around += [p99(target) for _ in range(2)]
            with replaced_disk(cluster) as node:
                cluster.wait_for(lambda: cluster.copies(node))
                while cluster.copies(node):
                    beside.append(p99(target))
                rates.append(copy_rate(cluster, node)[1])
            around += [p99(target) for _ in range(2)]
        if cluster.wait_for_leader() != leader:
            raise RuntimeError("another node leads by now: the figures are of no one state")
    bench.times("p99 of a round around copies", around)
    bench.times("p99 of a round beside a copy", beside)
    bench.rates("copy, with the limit", rates, "MB/s")
    bench.ratio("copy / the limit", max(rates) * 1e6 / RATE, Bar(1.05, at_most=True))
    bench.ratio("p99 beside / around", statistics.median(beside) / statistics.median(around), Bar(1.5, at_most=True))


# -- pieces ----------------------------------------------------------------------------------------------------------------


def fill_accounts(port: int, size: int) -> None:
    """Accounts in branches that no call uses, about so many bytes of state."""
    first, count = 1_000, size // (ROW_BYTES * ACCOUNTS_PER_CALL)
    for branch in range(first, first + max(count, 1)):
        opened: bank.Call = (
            "open_accounts",
            {"branch": branch, "first": 0, "count": ACCOUNTS_PER_CALL, "savings": 10_000, "checking": 10_000},
        )
        answered(run_load(Target(port, [batch_request([opened])]), connections=1, count=1))


def seconds_until_level(cluster: Cluster, leader: int, node: int) -> float:
    """From the start of its process until it has run what the leader had committed by then."""
    committed, began = cluster.committed(leader), time.monotonic()
    cluster.start(node)
    cluster.wait_for(lambda: cluster.applied(node) >= committed)
    return time.monotonic() - began


def make_calls(port: int, count: int, seed: int) -> None:
    """So many transfers, by batches."""
    lines = 1_000
    bodies = [batch_request(transfers(seed + number, lines)) for number in range(8)]
    answered(run_load(Target(port, bodies), connections=2, count=max(count // lines, 1)))


@contextmanager
def replaced_disk(cluster: Cluster) -> Iterator[int]:
    """A follower has an empty disk and is started; at the end of the block it has to become a voter again."""
    leader = cluster.wait_for_leader()
    node = next(number for number in NODES if number != leader)
    end_node(cluster, node)
    cluster.wipe(node)
    cluster.forget_events(node)
    cluster.change("replace", node)
    cluster.start(node)
    yield node
    cluster.wait_for(lambda: cluster.state_of(node) == "member")
    cluster.wait_until_level()


def others_cpu(cluster: Cluster, node: int) -> float:
    """CPU seconds of the node processes that are not this one."""
    return sum(cpu_seconds(cluster.pids(other)["node"]) for other in NODES if other != node)


def copy_rate(cluster: Cluster, node: int) -> tuple[int, float]:
    """Bytes and MB/s, as the recipient's log says when its copy began, and when it had everything."""
    fetched = cluster.wait_for(lambda: cluster.last_event(node, "copy_fetched"))
    began = cluster.last_event(node, "copy_begun")
    seconds = (moment_of(fetched) - moment_of(began)).total_seconds()
    return int(fetched["bytes"]), fetched["bytes"] / seconds / 1e6


def moment_of(event: Mapping[str, Any]) -> datetime.datetime:
    """When it was logged."""
    return datetime.datetime.fromisoformat(event["timestamp"])


def disk_rate(path: Path, size: int) -> float:
    """MB/s of a file of so many bytes that is written and synced."""
    chunk, began = os.urandom(1 << 20), time.monotonic()
    with open(path, "wb") as file:
        for _ in range(size // len(chunk)):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    path.unlink()
    return size / (time.monotonic() - began) / 1e6


def p99(target: Target) -> float:
    """Seconds, of one round."""
    return run_closed(target, LOAD_CLIENTS, ROUND_S).p99_s


def recover_seconds(folder: Path) -> dict[str, Any]:
    """What `cmdlog recover` of all directories replays, and how long that takes."""
    directories = [f"n{node}" for node in NODES]
    done = subprocess.run(
        [sys.executable, "-m", "cmdlog.cli", "recover", *directories, "--to", "OUT", "--json"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    found: dict[str, Any] = orjson.loads(done.stdout.splitlines()[-1])
    return found


def end_node(cluster: Cluster, node: int) -> None:
    """SIGKILL."""
    cluster.signal(node, signal.SIGKILL)
    cluster.wait_for_end(node)
