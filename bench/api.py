"""The server over HTTP: single calls beside an empty route, idle latency, batches, memory; PostgreSQL where it is installed.

Run: `python bench/api.py [--quick] [--soak]`. What the ratios mean: bench/README.md. (Not called http.py: a script of that name
would stand in for the standard library's `http`.)
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench._common import Bar, Bench, in_turns, make_parser, paired, percentile, rss_bytes, work_directory
from bench._load import Target, request, run_load, run_turns
from bench._nodes import transfers
from bench._postgres import Run, postgres
from bench._server import answered, bank_server, batch_request, call_requests, empty_server
from cmdlog.cli.demo_clients import Http
from cmdlog.cli.demo_server import ServerProcess

CONNECTIONS = 32
BATCH_LINES = 4000


def main() -> None:
    parser = make_parser("api", "The server over HTTP.")
    parser.add_argument("--soak", action="store_true", help="memory over 2 million calls instead of 200,000")
    options = parser.parse_args()
    bench = Bench("api", options.seed, options.quick)
    bench.head()
    with (
        work_directory(options.dir) as folder,
        empty_server() as empty_port,
        bank_server(folder / "serve") as (server, port),
        postgres(folder, seconds=1, seed=options.seed) as transfers_of_postgres,
    ):
        empty = Target(empty_port, [request("POST", "/nothing", b"{}", headers="Content-Type: application/json\r\n")])
        measure_idle(bench, options, port, empty)
        measure_single(bench, options, port, empty, transfers_of_postgres)
        measure_batch(bench, options, port)
        measure_memory(bench, options, server, port)
    bench.write()


def measure_idle(bench: Bench, options: argparse.Namespace, port: int, empty: Target) -> None:
    """One call at a time, in turns with the empty routes."""
    bench.section("Idle latency: one request at a time, in turns")
    calls = Target(port, call_requests(transfers(options.seed, 500)))
    health = Target(port, [request("GET", "/healthz")])
    found = run_turns([empty, health, calls], count=200 if options.quick else 2000)
    nothing = bench.times("empty route of a FastAPI application", found[0][20:])
    alive = bench.times("GET /healthz of the same server", found[1][20:])
    call = bench.times("POST /v1/procedures/transfer, durable", found[2][20:])
    bench.ratio("ms beyond an empty FastAPI route", (call - nothing) * 1e3, Bar(0.6, 0.3, at_most=True))
    bench.ratio("ms beyond /healthz", (call - alive) * 1e3)


def measure_single(bench: Bench, options: argparse.Namespace, port: int, empty: Target, in_postgres: Run | str) -> None:
    """Single calls from 32 connections, in turns with the empty routes and with PostgreSQL."""
    bench.section(f"Single calls over {CONNECTIONS} kept connections")
    count, rounds = (600, 2) if options.quick else (5000, 12)
    latencies: list[float] = []
    unkept: list[float] = []

    def lane(target: Target, keep: list[float] = unkept) -> Callable[[int], float]:
        def run(_round: int) -> float:
            found = answered(run_load(target, connections=CONNECTIONS, count=count))
            keep.extend(found["latencies"])
            return float(found["per_second"])

        return run

    lanes = {
        "empty": lane(empty),
        "health": lane(Target(port, [request("GET", "/healthz")])),
        "calls": lane(Target(port, call_requests(transfers(options.seed, 2000))), latencies),
    }
    if not isinstance(in_postgres, str):
        lanes["postgres"] = in_postgres
    found = in_turns(lanes, rounds)
    bench.rates("empty route of a FastAPI application", found["empty"], "req/s  ")
    bench.rates("GET /healthz of the same server", found["health"], "req/s  ")
    bench.rates("POST /v1/procedures/transfer, durable", found["calls"])
    median = bench.times("latency of a call", latencies)
    bench.ratio("calls / empty FastAPI route", paired(found["calls"], found["empty"]), Bar(0.7, 1.0))
    bench.ratio("calls / healthz", paired(found["calls"], found["health"]))
    bench.ratio("p99 / median latency", percentile(latencies, 0.99) / median, Bar(5.0, at_most=True))
    if isinstance(in_postgres, str):
        bench.note(f"PostgreSQL is not compared: {in_postgres}")
        return
    bench.rates("PostgreSQL, the same in PL/pgSQL, 32 clients of pgbench", found["postgres"])
    bench.ratio("calls / PostgreSQL", paired(found["calls"], found["postgres"]), Bar(1.0))


def measure_batch(bench: Bench, options: argparse.Namespace, port: int) -> None:
    """/v1/batch: prebuilt bodies of three-statement transfers."""
    bench.section(f"/v1/batch: bodies of {BATCH_LINES} transfers of three statements")
    bodies = [batch_request(transfers(options.seed + number, BATCH_LINES)) for number in range(4)]
    for connections in (2,) if options.quick else (1, 2, 4):
        count, rounds = (connections * 2, 2) if options.quick else (connections * 6, 5)
        rates = [
            float(answered(run_load(Target(port, bodies), connections=connections, count=count))["per_second"]) * BATCH_LINES
            for _ in range(rounds)
        ]
        median = bench.rates(f"{connections} streams at once", rates)
        bench.ratio(f"{connections} streams: thousand calls/s", median / 1e3, Bar(30, 60))


def measure_memory(bench: Bench, options: argparse.Namespace, server: ServerProcess, port: int) -> None:
    """Resident memory of the server's processes while calls pass through."""
    calls = 2_000_000 if options.soak else 40_000 if options.quick else 200_000
    bench.section(f"Memory over {calls:,} calls through /v1/batch")
    with Http() as http:
        sites = http.read(server.url, "GET", "/v1/status")["sites"]
    pids = {"node": server.pid, **{f"site {number}": pid for number, pid in enumerate(sites)}}
    target = Target(port, [batch_request(transfers(options.seed, BATCH_LINES))])
    marks = []
    for _ in range(10):
        answered(run_load(target, connections=2, count=max(1, calls // 10 // BATCH_LINES)))
        marks.append({name: rss_bytes(pid) / 2**20 for name, pid in pids.items()})
    for name in pids:
        series = [mark[name] for mark in marks]
        bench.value(f"{name}: after the first tenth", series[0], "MiB")
        bench.value(f"{name}: after all calls", series[-1], "MiB")
        bench.ratio(f"{name}: median of the last half / of the second to fifth tenth",
                    statistics.median(series[5:]) / statistics.median(series[1:5]), Bar(1.1, at_most=True))  # fmt: skip


if __name__ == "__main__":
    main()
