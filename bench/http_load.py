"""The server over HTTP beside applications that do nothing: single calls and batches, half load, a crowd, memory.

Run: `python bench/http_load.py [--quick] [--client wrk|python] [--soak]`. What the ratios mean: bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench._common import Bar, Bench, cpu_seconds, in_turns, make_parser, paired, rss_bytes, work_directory
from bench._lanes import Cell, Lane
from bench._load import Sample, Target, run_load, run_turns
from bench._nodes import transfers
from bench._open import run_open
from bench._server import answered, bank_server, batch_request, call_requests, module_server, server_pids
from bench._siege import siege
from bench._stages import Look, told_stages
from bench._wrk import Client, choose_client

CALL = "call, durable"
EMPTY = {"fastapi": "empty FastAPI", "starlette": "empty Starlette", "asgi": "empty ASGI"}
CLIENTS = (1, 32, 128)
BATCH_LINES = {1: 4000, 2: 4000, 32: 1000, 128: 250}  # by clients: what is under way stays below `inflight_calls_max`
MEMORY_LINES = 1000
CROWD = 1000


def main() -> None:
    parser = make_parser("http_load", "The server over HTTP.")
    parser.add_argument("--client", choices=("wrk", "python"), help="of single calls; wrk where it is installed")
    parser.add_argument("--soak", action="store_true", help="memory over 2 million calls instead of 200,000")
    options = parser.parse_args()
    name, client = choose_client(options.client)
    bench = Bench("http_load", options.seed, options.quick)
    bench.head()
    with work_directory(options.dir) as folder, ExitStack() as stack:
        server, port = stack.enter_context(bank_server(folder / "serve"))
        work = call_requests(transfers(options.seed, 2000))
        lanes = {CALL: Lane(Target(port, work), server_pids(server, port))}
        for kind, told in EMPTY.items():
            pid, empty_port = stack.enter_context(module_server("bench._empty", kind))
            lanes[told] = Lane(Target(empty_port, work), {"server": pid})
        measure_idle(bench, options, lanes)
        bench.note(f"client of single calls: {name}")
        measure_single(bench, options, lanes, client)
        measure_half_load(bench, options, lanes)
        measure_crowd(bench, options, lanes[CALL])
        measure_batch(bench, options, lanes[CALL])
        measure_memory(bench, options, lanes[CALL])
    bench.write()


def tell(bench: Bench, name: str, clients: int, cell: Cell, looks: tuple[Look, Look] | None = None) -> None:
    """One row of the table, and the same as a figure. `clients` 0: they do not wait for their answers."""
    p50, p99, p999 = (cell.median(of) * 1e3 for of in (lambda s: s.p50_s, lambda s: s.p99_s, lambda s: s.p999_s))
    rate, used = statistics.median(cell.rates), cell.cpu_us()
    told = ", ".join(f"{process} {spent:.0f}" for process, spent in used.items())
    shares = f"p50 {p50:>7.2f}  p99 {p99:>7.2f}  p999 {p999:>7.2f} ms"
    print(f"  {name:<18} {clients or 'open':>4} {rate:>9,.0f}/s  {shares}   CPU us: {told}")
    row: dict[str, Any] = {"name": name, "clients": clients, "per_second": rate, "rounds": len(cell.samples)}
    row |= {"p50_ms": p50, "p99_ms": p99, "p999_ms": p999, "cpu_us": used}
    if looks is not None:
        row["stages"] = looks[0].until(looks[1], cell.mean_ms())
        print(f"  {'':<18} {told_stages(row['stages'])}")
    bench.figures.append(row)


# -- single calls --------------------------------------------------------------------------------------------------------


def measure_idle(bench: Bench, options: argparse.Namespace, lanes: dict[str, Lane]) -> None:
    """One request at a time, in turns over all servers."""
    bench.section("Idle latency: one request at a time, in turns")
    found = run_turns([lane.target for lane in lanes.values()], count=200 if options.quick else 2000)
    medians = {name: bench.times(name, taken[20:]) for name, taken in zip(lanes, found, strict=True)}
    beyond = medians[CALL] - medians[EMPTY["fastapi"]]
    bench.ratio("ms beyond an empty FastAPI route", beyond * 1e3, Bar(0.6, 0.3, at_most=True))


def measure_single(bench: Bench, options: argparse.Namespace, lanes: dict[str, Lane], client: Client) -> None:
    """As many single calls as go through, in turns with the empty applications."""
    rounds, seconds = (2, 1.0) if options.quick else (9, 2.0)
    for clients in CLIENTS:
        bench.section(f"Single requests: {clients} clients that wait for their answers")

        def turn(lane: Lane, clients: int = clients) -> Callable[[int], float]:
            lane.cells[clients] = cell = Cell()
            return lambda _round: lane.run(cell, lambda target: client(target, clients, seconds))

        before = Look.at(lanes[CALL].target.port)
        in_turns({name: turn(lane) for name, lane in lanes.items()}, rounds)
        looks = before, Look.at(lanes[CALL].target.port)
        for name, lane in lanes.items():
            tell(bench, name, clients, lane.cells[clients], looks if name == CALL else None)
        calls = lanes[CALL].cells[clients].rates
        for name in EMPTY.values():
            bar = Bar(0.7, 1.0) if name == EMPTY["fastapi"] and clients > 1 else None
            bench.ratio(f"calls / {name}, {clients} clients", paired(calls, lanes[name].cells[clients].rates), bar)


def measure_half_load(bench: Bench, options: argparse.Namespace, lanes: dict[str, Lane]) -> None:
    """Latency when requests arrive at half the rate that 32 clients reached, whether or not others were answered."""
    bench.section("Half load: requests come when they are due, at half of what 32 clients reached")
    rounds, seconds = (2, 1.5) if options.quick else (7, 5.0)
    wanted = {name: lanes[name] for name in (CALL, EMPTY["fastapi"])}
    cells = {name: Cell() for name in wanted}

    def turn(name: str, lane: Lane) -> Callable[[int], float]:
        rate = statistics.median(lane.cells[32].rates) / 2
        return lambda number: lane.run(
            cells[name],
            lambda target: run_open(target, per_second=rate, seconds=seconds, seed=options.seed + number),
        )

    before = Look.at(lanes[CALL].target.port)
    in_turns({name: turn(name, lane) for name, lane in wanted.items()}, rounds)
    looks = before, Look.at(lanes[CALL].target.port)
    for name, cell in cells.items():
        tell(bench, name, 0, cell, looks if name == CALL else None)
        bar = Bar(3.0, at_most=True) if name == CALL else None
        bench.ratio(f"p99 / median, {name}", cell.median(lambda s: s.p99_s / s.p50_s), bar)


def measure_crowd(bench: Bench, options: argparse.Namespace, lane: Lane) -> None:
    """Half load again, without and with connections that say nothing and requests that never end."""
    bench.section(f"A crowd: {CROWD:,} idle connections and {CROWD:,} half-sent requests beside half load")
    rounds, seconds = (2, 1.0) if options.quick else (5, 5.0)
    rate = statistics.median(lane.cells[32].rates) / 2
    alone, crowded = Cell(), Cell()

    def work(number: int) -> Callable[[Target], Sample]:
        return lambda target: run_open(target, per_second=rate, seconds=seconds, seed=options.seed + number)

    def beside(number: int) -> float:
        with siege(lane.target.port, idle=CROWD, bodies=CROWD):
            return lane.run(crowded, work(number))

    in_turns({"alone": lambda number: lane.run(alone, work(number)), "crowd": beside}, rounds)
    tell(bench, "alone", 0, alone)
    tell(bench, "beside the crowd", 0, crowded)
    p99 = [[sample.p99_s for sample in cell.samples] for cell in (crowded, alone)]
    bench.ratio("p99 beside the crowd / alone", paired(*p99), Bar(2.0, at_most=True))


# -- batches and memory --------------------------------------------------------------------------------------------------


def measure_batch(bench: Bench, options: argparse.Namespace, lane: Lane) -> None:
    """/v1/batch: prebuilt bodies of three-statement transfers, from the Python client, which has little to do here."""
    bench.section("/v1/batch: bodies of transfers of three statements")
    port, pids = lane.target.port, lane.pids
    for clients, lines in BATCH_LINES.items():
        if options.quick and clients not in (2, 32):
            continue
        bodies = [batch_request(transfers(options.seed + number, lines)) for number in range(4)]
        count, rounds = (max(4, clients), 2) if options.quick else (max(12, clients * 3), 5)
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        rates = [
            float(answered(run_load(Target(port, bodies), connections=clients, count=count))["per_second"]) * lines
            for _ in range(rounds)
        ]
        spent = {name: (cpu_seconds(pid) - before[name]) / (rounds * count * lines) * 1e6 for name, pid in pids.items()}
        median = bench.rates(f"{clients} clients, bodies of {lines:,} lines", rates)
        bench.note("CPU us per call: " + ", ".join(f"{name} {used:.1f}" for name, used in spent.items()))
        bench.ratio(f"{clients} clients: thousand calls/s", median / 1e3, Bar(30, 60) if clients == 2 else None)


def measure_memory(bench: Bench, options: argparse.Namespace, lane: Lane) -> None:
    """Resident memory of the server's processes while calls pass through."""
    calls = 2_000_000 if options.soak else 10_000 if options.quick else 200_000
    bench.section(f"Memory over {calls:,} calls through /v1/batch")
    target = Target(lane.target.port, [batch_request(transfers(options.seed, MEMORY_LINES))])
    marks = []
    for _ in range(10):
        answered(run_load(target, connections=2, count=max(1, calls // 10 // MEMORY_LINES)))
        marks.append({name: rss_bytes(pid) / 2**20 for name, pid in lane.pids.items()})
    for name in lane.pids:
        series = [mark[name] for mark in marks]
        bench.value(f"{name}: after the first tenth", series[0], "MiB")
        bench.value(f"{name}: after all calls", series[-1], "MiB")
        bench.ratio(f"{name}: median of the last half / of the second to fifth tenth",
                    statistics.median(series[5:]) / statistics.median(series[1:5]), Bar(1.1, at_most=True))  # fmt: skip


if __name__ == "__main__":
    main()
