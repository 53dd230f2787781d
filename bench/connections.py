"""The connection layer: what it costs beside uvicorn's own, and what hostile clients cost the good ones.

Run: `python bench/connections.py [--quick] [--client wrk|python]`. What the ratios mean: bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench._common import Bar, Bench, cpu_seconds, in_turns, make_parser, paired, rss_bytes, work_directory
from bench._load import Sample, Target, run_closed
from bench._nodes import transfers
from bench._open import run_open
from bench._server import bank_server, call_requests, module_server
from bench._siege import siege
from bench._wrk import choose_client
from cmdlog.node.settings import Settings

CLIENTS = 32
IDLE = HEADS = 1000
GOOD_CLIENTS = 8
FLOOD = 1000  # connections beyond `connections_max`
UVICORN, OURS, QUICK = "uvicorn's httptools", "ours, ASGI", "ours, below ASGI"


def main() -> None:
    parser = make_parser("connections", "The connection layer.")
    parser.add_argument("--client", choices=("wrk", "python"), help="of the comparison; wrk where it is installed")
    options = parser.parse_args()
    bench = Bench("connections", options.seed, options.quick)
    bench.head()
    measure_layers(bench, options)
    with work_directory(options.dir) as folder, bank_server(folder / "serve") as (server, port):
        target = Target(port, call_requests(transfers(options.seed, 2000)))
        measure_siege(bench, options, target, server.pid)
        measure_flood(bench, options, target)
    bench.write()


def measure_layers(bench: Bench, options: argparse.Namespace) -> None:
    """The same application that does nothing, the same requests, in turns."""
    name, client = choose_client(options.client)
    bench.section(f"An ASGI application that reads and answers, {CLIENTS} kept connections, client {name}")
    rounds, seconds = (3, 1.0) if options.quick else (10, 2.0)
    requests = call_requests(transfers(options.seed, 2000))
    spent: dict[str, list[float]] = {}
    with ExitStack() as stack:
        servers = {
            UVICORN: stack.enter_context(module_server("bench._empty", "asgi")),
            OURS: stack.enter_context(module_server("bench._layer")),
            QUICK: stack.enter_context(module_server("bench._layer", "--quick")),
        }

        def lane(told: str) -> Callable[[int], float]:
            pid, port = servers[told]

            def run(_round: int) -> float:
                before = cpu_seconds(pid)
                sample = client(Target(port, requests), CLIENTS, seconds)
                spent.setdefault(told, []).append((cpu_seconds(pid) - before) / sample.count * 1e6)
                return sample.per_second

            return run

        found = in_turns({told: lane(told) for told in servers}, rounds)
    for told in servers:
        bench.rates(told, found[told], "req/s  ")
        bench.value(f"{told}: CPU of the server", statistics.median(spent[told]), "us/request")
    for told in (OURS, QUICK):
        bench.ratio(f"{told} / uvicorn's", paired(found[told], found[UVICORN]), Bar(1.0, 1.2))


def measure_siege(bench: Bench, options: argparse.Namespace, target: Target, pid: int) -> None:
    """Good clients alone and beside silent and half-sent connections, in turns."""
    bench.section(f"{GOOD_CLIENTS} good clients beside {IDLE:,} silent connections and {HEADS:,} heads that never end")
    rounds, seconds = (2, 2.0) if options.quick else (5, 12.0)  # longer than `header_timeout_s`: each head is renewed
    rate = run_closed(target, GOOD_CLIENTS, 1.0).per_second / 2
    samples: dict[str, list[Sample]] = {"alone": [], "besieged": []}
    grown: list[float] = []
    renewed: list[float] = []

    def work(name: str, number: int) -> float:
        samples[name].append(run_open(target, per_second=rate, seconds=seconds, seed=options.seed + number))
        return samples[name][-1].p99_s

    def besieged(number: int) -> float:
        before = rss_bytes(pid)
        with siege(target.port, idle=IDLE, heads=HEADS) as found:
            p99 = work("besieged", number)
            grown.append((rss_bytes(pid) - before) / (IDLE + HEADS))
        renewed.append(found.opened - IDLE - HEADS)
        return p99

    p99 = in_turns({"alone": lambda number: work("alone", number), "besieged": besieged}, rounds)
    for name, found in samples.items():
        bench.value(f"{name}: median", statistics.median(one.p50_s for one in found) * 1e3, "ms")
        bench.value(f"{name}: p99", statistics.median(one.p99_s for one in found) * 1e3, "ms")
    bench.ratio("p99 besieged / alone", paired(p99["besieged"], p99["alone"]), Bar(2.0, at_most=True))
    bench.value("memory of the node per connection, at first", max(grown) / 1024, "KiB")
    bench.value("connections that had to be opened again, per round", statistics.median(renewed), "")


def measure_flood(bench: Bench, options: argparse.Namespace, target: Target) -> None:
    """More silent connections than there may be: good clients come and are served."""
    count = Settings().connections_max + FLOOD
    bench.section(f"{GOOD_CLIENTS} good clients that come when {count:,} silent connections are there")
    with siege(target.port, idle=count) as found:
        samples = [run_closed(target, GOOD_CLIENTS, 1.0) for _ in range(2 if options.quick else 5)]
    bench.rates("calls", [sample.per_second for sample in samples])
    bench.value("their p99", statistics.median(sample.p99_s for sample in samples) * 1e3, "ms")
    bench.value("silent connections that were opened", found.opened, "")


if __name__ == "__main__":
    main()
