"""Where the node process spends its CPU time under single calls: by work, by thread, and on the event loop's thread by part.

One rule: what is told is CPU time per call, which a busy machine distorts least; what a core carries follows from it.

Run: `python bench/node_profile.py [--quick] [--client wrk|python]`. How it samples: bench/_sampled.py.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench._common import ROOT, Bench, cpu_seconds, make_parser, work_directory
from bench._load import Target
from bench._nodes import TARGET, transfers
from bench._server import call_requests, fetch, load_accounts
from bench._wrk import Client, choose_client

CLIENTS = (32, 128)
WAIT_S = 20.0
FUNCTIONS_TOLD = 15
LOOP, LOG, OTHER = "event loop's thread", "log threads: take, encode, write, sync, deliver", "other threads of the node"
WORK = {
    "HTTP: connections, framing, sockets": ("HTTP: connection, framing, send", "HTTP: event loop, poll, receive"),
    "checks: JSON, parameters, answers": ("API: gate, checks, answer", "API: parameters bound, slot"),
    "sequencing": ("sequencer",),
    "log": ("log: waking its threads", LOG),
    "desk: site pipes, answers matched": ("site pipes and answers",),
}
"""Kinds of work, by the parts of the loop's thread and the threads that do it."""


def main() -> None:
    parser = make_parser("node_profile", "Where the node's CPU time goes.")
    parser.add_argument("--client", choices=("wrk", "python"), help="wrk where it is installed")
    options = parser.parse_args()
    _, client = choose_client(options.client)
    bench = Bench("node_profile", options.seed, options.quick)
    bench.head()
    for clients in CLIENTS:
        with work_directory(options.dir) as folder:
            measure(bench, options, folder, client, clients)
    bench.write()


def measure(bench: Bench, options: argparse.Namespace, folder: Path, client: Client, clients: int) -> None:
    """One server, warmed up, then sampled under load."""
    with sampled_server(folder) as (process, port):
        target = Target(port, call_requests(transfers(options.seed, 2000)))
        sites = orjson.loads(fetch(port, "/v1/status"))["sites"]
        client(target, clients, 2)
        process.send_signal(signal.SIGUSR1)
        before = sum(cpu_seconds(pid) for pid in sites)
        sample = client(target, clients, 5 if options.quick else 20)
        spent_by_sites = sum(cpu_seconds(pid) for pid in sites) - before
        process.send_signal(signal.SIGUSR1)
        found = _wait_for(folder / "samples.json")
    bench.section(f"{clients} clients: {sample.per_second:,.0f} calls/s; microseconds of CPU per call")
    threads_us = {thread: seconds / sample.count * 1e6 for thread, seconds in _by_kind(found["threads"]).items()}
    for thread, spent_us in threads_us.items():
        bench.value(thread, spent_us, "us")
    bench.value("site processes", spent_by_sites / sample.count * 1e6, "us")
    samples = sum(found["parts"].values())
    parts_us = {part: count / samples * threads_us[LOOP] for part, count in found["parts"].items()}
    _tell_work(bench, clients, {**threads_us, **parts_us}, total_us=sum(threads_us.values()))
    bench.section(f"{clients} clients: the event loop's thread, {samples:,} samples")
    for part, count in sorted(found["parts"].items(), key=lambda item: -item[1]):
        bench.value(f"{part} ({count / samples:.0%})", parts_us[part], "us")
    for function, count in list(found["functions"].items())[:FUNCTIONS_TOLD]:
        bench.note(f"{count / samples:6.1%}  {function}")
    bench.figures.append({"stacks": found["stacks"]})


def _tell_work(bench: Bench, clients: int, spent_us: dict[str, float], *, total_us: float) -> None:
    """The node process's time by kind of work, and what a core of it carries."""
    bench.section(f"{clients} clients: the node process, {total_us:.0f} us per call")
    for work, parts in WORK.items():
        taken_us = sum(spent_us.get(part, 0.0) for part in parts)
        bench.value(f"{work} ({taken_us / total_us:.0%})", taken_us, "us")
    bench.value("one core carries", 1e6 / total_us, "calls/s")


def _by_kind(threads: dict[str, float]) -> dict[str, float]:
    """CPU time of the loop's thread, of the log's threads together, and of the rest."""
    kinds = {LOOP: 0.0, LOG: 0.0, OTHER: 0.0}
    for name, seconds in threads.items():
        kinds[LOOP if name == "MainThread" else LOG if name.startswith("cmdlog-log") else OTHER] += seconds
    return kinds


@contextmanager
def sampled_server(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`cmdlog serve` with the sampler inside and loaded accounts; its process and port."""
    command = [sys.executable, "-m", "bench._sampled", str(folder / "samples.json"), "serve", TARGET]
    command += ["--data", str(folder / "data"), "--partitions", "1", "--host", "127.0.0.1", "--port", "0", "--json"]
    with (folder / "server.log").open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT)
    assert process.stdout is not None
    try:
        port = 0
        for line in process.stdout:
            said: dict[str, Any] = orjson.loads(line) if line.startswith(b"{") else {}
            if said.get("event") == "listening":
                port = int(said["url"].rpartition(":")[2])
            if said.get("event") == "ready":
                break
        load_accounts(port)
        yield process, port
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def _wait_for(path: Path) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server wrote no samples within {WAIT_S:g} s")
        time.sleep(0.05)
    found: dict[str, Any] = orjson.loads(path.read_bytes())
    return found


if __name__ == "__main__":
    main()
