"""The same durable transfer on cmdlog, PostgreSQL, Redis, SQLite, and SQLite served by FastAPI, in turns in one run.

Each peer is started and stopped here. Run: `python bench/peers.py [--quick] [--client wrk|python]`. A transfer looks at one
account and changes two: three statements. What is not installed is left out, with the name of its Debian package. What the
ratios mean: bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench._common import Bar, Bench, in_turns, make_parser, paired, work_directory
from bench._load import Target, run_load
from bench._nodes import open_node, run_window, transfers
from bench._postgres import postgres
from bench._redis import redis
from bench._server import answered, bank_server, batch_request, call_requests, module_server
from bench._sqlite import sqlite_lane
from bench._wrk import Client, choose_client
from cmdlog.node.embedded.embedded import Embedded

CLIENTS = (1, 32)
PIPELINED = 16
BATCH_LINES = 4000
BATCH_STREAMS = 2
SECONDS = 1
ROUTE = "SQLite served by FastAPI"
DURABILITY = {
    "cmdlog": "the call is logged and fdatasynced before it is answered; calls that wait at the same time share a sync",
    "PostgreSQL": "fsync on, synchronous_commit on: the commit record is synced before the answer; group commit",
    "Redis": "appendfsync always: the append-only file is synced before the answers of one event loop turn are sent",
    "SQLite": "WAL, synchronous=FULL: the write-ahead log is synced at every commit, one transaction at a time",
    "FastAPI": "the same SQLite, by a route of FastAPI under uvicorn: answered when it is synced",
}
Lane = Callable[[int], float]  # round; transfers per second


def main() -> None:
    parser = make_parser("peers", "The same transfer on other stores.")
    parser.add_argument("--client", choices=("wrk", "python"), help="of single calls over HTTP; wrk where it is installed")
    options = parser.parse_args()
    name, client = choose_client(options.client)
    bench = Bench("peers", options.seed, options.quick)
    bench.head()
    bench.section("What an answer promises: the transfer survives a power loss")
    for peer, promise in DURABILITY.items():
        bench.note(f"{peer:<11} {promise}")
    with work_directory(options.dir) as folder, ExitStack() as stack:
        lanes = cmdlog_lanes(stack, folder, options, client)
        lanes |= peer_lanes(bench, stack, folder, options) | route_lanes(stack, folder, options, client)
        found = in_turns(lanes, 1 if options.quick else 12)
    bench.section(f"Transfers, HTTP by {name}, pgbench, redis-benchmark; peers on Unix sockets where nothing else is said")
    for lane, rates in found.items():
        bench.rates(lane, rates, "transfers/s")
    tell_ratios(bench, found)
    bench.write()


def cmdlog_lanes(stack: ExitStack, folder: Path, options: argparse.Namespace, client: Client) -> dict[str, Lane]:
    """One partition, as the peers have one table: over HTTP single and in batches, and in this process."""
    _, port = stack.enter_context(bank_server(folder / "serve"))
    single = Target(port, call_requests(transfers(options.seed, 2000)))
    batches = Target(port, [batch_request(transfers(options.seed + number, BATCH_LINES)) for number in range(4)])
    embedded = stack.enter_context(open_node(folder / "embedded"))

    def http(clients: int) -> Lane:
        return lambda _round: client(single, clients, SECONDS).per_second

    def batch(_round: int) -> float:
        count = BATCH_STREAMS * (2 if options.quick else 4)
        return float(answered(run_load(batches, connections=BATCH_STREAMS, count=count))["per_second"]) * BATCH_LINES

    def one_at_a_time(number: int) -> float:
        calls, call = transfers(options.seed + number, 10_000), Embedded(embedded).call
        done, began = 0, time.perf_counter()
        while time.perf_counter() < began + SECONDS:
            name, params = calls[done % len(calls)]
            call(name, **params)
            done += 1
        return done / (time.perf_counter() - began)

    return {
        **{f"cmdlog over HTTP, {clients}": http(clients) for clients in CLIENTS},
        "cmdlog /v1/batch": batch,
        "cmdlog embedded, 1": one_at_a_time,
        "cmdlog embedded, 32": lambda number: run_window(embedded, transfers(options.seed + number, 4000), window=32),
    }


def peer_lanes(bench: Bench, stack: ExitStack, folder: Path, options: argparse.Namespace) -> dict[str, Lane]:
    """Every peer that is installed and has a protocol of its own, or none."""
    lanes: dict[str, Lane] = {}
    in_postgres = stack.enter_context(postgres(folder, seconds=SECONDS, seed=options.seed))
    if isinstance(in_postgres, str):
        bench.note(f"PostgreSQL is left out: {in_postgres}")
    else:
        lanes |= {f"PostgreSQL, {clients}": partial(in_postgres, clients) for clients in CLIENTS}
        lanes |= {f"PostgreSQL over TCP, {clients}": partial(in_postgres, clients, way="TCP") for clients in CLIENTS}
    in_redis = stack.enter_context(redis(folder, seconds=SECONDS))
    if isinstance(in_redis, str):
        bench.note(f"Redis is left out: {in_redis}")
    else:
        lanes |= {f"Redis, {clients}": partial(in_redis, clients, 1) for clients in CLIENTS}
        lanes[f"Redis, 32 pipelined by {PIPELINED}"] = partial(in_redis, 32, PIPELINED)
    lanes["SQLite, 1"] = sqlite_lane(folder / "peer.sqlite", seconds=SECONDS, seed=options.seed)
    return lanes


def route_lanes(stack: ExitStack, folder: Path, options: argparse.Namespace, client: Client) -> dict[str, Lane]:
    """What one would write with FastAPI and SQLite alone, asked with the same requests by the same client as cmdlog."""
    _, port = stack.enter_context(module_server("bench._sqlite_route", str(folder / "route.sqlite")))
    target = Target(port, call_requests(transfers(options.seed, 2000)))

    def http(clients: int) -> Lane:
        return lambda _round: client(target, clients, SECONDS).per_second

    return {f"{ROUTE}, {clients}": http(clients) for clients in CLIENTS}


def tell_ratios(bench: Bench, found: dict[str, list[float]]) -> None:
    """cmdlog / peer, each with the peer's way of asking that is like it."""
    bench.section("cmdlog / peer, medians of the rounds' own quotients")
    pairs: list[tuple[str, str, Bar | None]] = [
        ("cmdlog over HTTP, 1", "PostgreSQL, 1", Bar(0.5, 0.8)),
        ("cmdlog over HTTP, 32", "PostgreSQL, 32", Bar(1.3, 2)),
        ("cmdlog over HTTP, 1", "PostgreSQL over TCP, 1", None),
        ("cmdlog over HTTP, 32", "PostgreSQL over TCP, 32", None),
        ("cmdlog /v1/batch", "PostgreSQL, 32", None),
        ("cmdlog over HTTP, 1", f"{ROUTE}, 1", None),
        ("cmdlog over HTTP, 32", f"{ROUTE}, 32", None),
        ("cmdlog over HTTP, 1", "Redis, 1", None),
        ("cmdlog over HTTP, 32", "Redis, 32", None),
        ("cmdlog /v1/batch", f"Redis, 32 pipelined by {PIPELINED}", Bar(0.55, 1)),
        ("cmdlog embedded, 1", "SQLite, 1", Bar(0.8, 1.2)),
        ("cmdlog embedded, 32", "SQLite, 1", None),
    ]
    for ours, theirs, bar in pairs:
        if theirs in found:
            bench.ratio(f"{ours} / {theirs}", paired(found[ours], found[theirs]), bar)


if __name__ == "__main__":
    main()
