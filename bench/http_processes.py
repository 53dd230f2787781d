"""What a call costs the node's process when HTTP has processes of its own: single calls and batches, in turns.

One rule: what is held to a bar is CPU time of the node's process per call, which a busy machine distorts least; rates are ratios
to the server without such processes.

Run: `python bench/http_processes.py [--quick] [--client wrk|python]`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench._common import Bar, Bench, in_turns, make_parser, paired, work_directory
from bench._lanes import Cell, Lane
from bench._load import Sample, Target, run_load
from bench._nodes import transfers
from bench._server import answered, bank_server, batch_request, call_requests, server_pids
from bench._wrk import Client, choose_client

PROCESSES = (0, 1, 2)
CLIENTS = (1, 32, 128)
HELD = 32  # clients, of the bar
LINES = 1000
STREAMS = 2


def main() -> None:
    parser = make_parser("http_processes", "The node's share of a call beside HTTP processes.")
    parser.add_argument("--client", choices=("wrk", "python"), help="of single calls; wrk where it is installed")
    options = parser.parse_args()
    name, client = choose_client(options.client)
    bench = Bench("http_processes", options.seed, options.quick)
    bench.head()
    bench.note(f"client of single calls: {name}")
    with work_directory(options.dir) as folder, ExitStack() as stack:
        work = call_requests(transfers(options.seed, 2000))
        lanes = {}
        for count in PROCESSES:
            server, port = stack.enter_context(bank_server(folder / f"of{count}", "--http-processes", str(count)))
            lanes[count] = Lane(Target(port, work), server_pids(server, port))
        for clients in CLIENTS if not options.quick else (HELD,):
            measure_single(bench, options, lanes, client, clients)
        measure_batch(bench, options, lanes)
    bench.write()


def measure_single(bench: Bench, options: argparse.Namespace, lanes: dict[int, Lane], client: Client, clients: int) -> None:
    """As many single calls as go through, in turns."""
    rounds, seconds = (2, 2.0) if options.quick else (9, 2.0)
    bench.section(f"Single calls: {clients} clients that wait for their answers")
    tell(bench, lanes, clients, _rounds(lanes, clients, rounds, lambda target: client(target, clients, seconds)))
    for count in PROCESSES[1:]:
        spent_us = lanes[count].cells[clients].cpu_us()["node"]
        bar = Bar(12, 8, at_most=True) if clients == HELD else None
        bench.ratio(f"{count} HTTP processes, {clients} clients: us of node CPU per call", spent_us, bar)


def measure_batch(bench: Bench, options: argparse.Namespace, lanes: dict[int, Lane]) -> None:
    """/v1/batch: prebuilt bodies of transfers."""
    bench.section(f"/v1/batch: {STREAMS} clients, bodies of {LINES:,} transfers; CPU per line")
    body = batch_request(transfers(options.seed, LINES))
    count, rounds = (8, 2) if options.quick else (24, 7)

    def send(target: Target) -> Sample:
        return sample_of(answered(run_load(Target(target.port, [body]), connections=STREAMS, count=count)))

    tell(bench, lanes, -STREAMS, _rounds(lanes, -STREAMS, rounds, send))


def sample_of(found: dict[str, float]) -> Sample:
    """A round of batches, counted in lines."""
    mean_s = STREAMS / found["per_second"]
    return Sample(sum(found["statuses"].values()) * LINES, found["per_second"] * LINES, mean_s, mean_s, mean_s, mean_s, 0.0)


def _rounds(lanes: dict[int, Lane], key: int, rounds: int, work: Callable[[Target], Sample]) -> dict[int, list[float]]:
    def turn(lane: Lane) -> Callable[[int], float]:
        lane.cells[key] = cell = Cell()
        return lambda _round: lane.run(cell, work)

    in_turns({str(count): turn(lane) for count, lane in lanes.items()}, rounds)
    return {count: lane.cells[key].rates for count, lane in lanes.items()}


def tell(bench: Bench, lanes: dict[int, Lane], key: int, rates: dict[int, list[float]]) -> None:
    """Rates, their ratios, and where the CPU time went."""
    for count, lane in lanes.items():
        bench.rates(f"{count} HTTP processes", rates[count])
        bench.note("CPU us per call: " + ", ".join(f"{name} {spent:.1f}" for name, spent in lane.cells[key].cpu_us().items()))
    for count in PROCESSES[1:]:
        bench.ratio(f"calls with {count} HTTP processes / in the node", paired(rates[count], rates[0]))


if __name__ == "__main__":
    main()
