"""Calls of client sessions beside calls without names and with keys: rate, CPU time, log bytes.

Run: `python bench/sessions.py [--quick]`. What the ratios mean: bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench._common import Bar, Bench, cpu_seconds, in_turns, make_parser, paired, work_directory
from bench._numbered import Names, run_numbered
from bench._server import bank_server, fetch, server_pids

SINGLE: tuple[Names, ...] = ("none", "session", "sessions", "key")
LINED: tuple[Names, ...] = ("none", "sessions", "key")
CLIENTS = 32
LINES, STREAMS = 1000, 2
TOLD = {"none": "without names", "session": "in one session", "sessions": "in sessions", "key": "with a key each"}


def main() -> None:
    options = make_parser("sessions", "Calls of client sessions.").parse_args()
    bench = Bench("sessions", options.seed, options.quick)
    bench.head()
    with work_directory(options.dir) as folder, ExitStack() as stack:
        server, port = stack.enter_context(bank_server(folder / "serve"))
        pids = server_pids(server, port)
        each = 150 if options.quick else 600
        bench.section(f"Single calls over {CLIENTS} connections, in one session and in one for each")
        measure(bench, options, port, pids, names=SINGLE, connections=CLIENTS, each=each, lines=0)
        each = 10 if options.quick else 40
        bench.section(f"/v1/batch: {STREAMS} clients, requests of {LINES:,} lines")
        measure(bench, options, port, pids, names=LINED, connections=STREAMS, each=each, lines=LINES)
    bench.write()


def log_bytes(port: int) -> float:
    """What all batches so far have taken in the log."""
    found = re.search(rb"^cmdlog_batch_bytes_sum(?:\{[^}]*\})? ([0-9.e+]+)$", fetch(port, "/metrics"), re.MULTILINE)
    assert found is not None
    return float(found[1])


def measure(
    bench: Bench,
    options: argparse.Namespace,
    port: int,
    pids: dict[str, int],
    *,
    names: tuple[Names, ...],
    connections: int,
    each: int,
    lines: int,
) -> None:
    """One load in turns: without names, in sessions, and with a key for each call."""
    rounds = 3 if options.quick else 9
    calls = connections * each * (lines or 1)
    logged: dict[str, float] = dict.fromkeys(names, 0.0)
    spent: dict[str, dict[str, float]] = {kind: dict.fromkeys(pids, 0.0) for kind in names}

    def turn(kind: Names) -> Callable[[int], float]:
        def play(number: int) -> float:
            before, cpu = log_bytes(port), {name: cpu_seconds(pid) for name, pid in pids.items()}
            found = run_numbered(port, kind, connections=connections, each=each, lines=lines, seed=options.seed + number)
            logged[kind] += log_bytes(port) - before
            for name, pid in pids.items():
                spent[kind][name] += cpu_seconds(pid) - cpu[name]
            return float(found["per_second"])

        return play

    rates = in_turns({kind: turn(kind) for kind in names}, rounds)
    for kind in names:
        bench.rates(TOLD[kind], rates[kind])
        for name, seconds in spent[kind].items():
            bench.value(f"{TOLD[kind]}: {name}, CPU per call", seconds / rounds / calls * 1e6, "us")
        bench.value(f"{TOLD[kind]}: log per call", logged[kind] / rounds / calls, "bytes")
    for kind in names[1:]:
        bar = None if kind == "key" else Bar(0.95, 1.0)
        bench.ratio(f"{TOLD[kind]} / without names", paired(rates[kind], rates["none"]), bar)
        bar = Bar(1.1, at_most=True) if lines and kind == "sessions" else None
        bench.ratio(f"log bytes {TOLD[kind]} / without names", logged[kind] / logged["none"], bar)


if __name__ == "__main__":
    main()
