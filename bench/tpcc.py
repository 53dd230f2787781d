"""TPC-C at its full mix: new-orders a second in this process and over /v1/batch, and the consistency conditions afterwards.

Run: `python bench/tpcc.py [--quick] [--warehouses N]`. There are no terminals and no think times, so the figures are no tpmC. All
warehouses live on their partitions as slots fall; remote ones of other partitions are made local (`mix.Tally` counts them).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package
os.environ["PYTHONPATH"] = sys.path[0]

import httpx
import orjson
import structlog

from bench import _tpcc as tpcc
from bench._common import Bench, cpu_seconds, make_parser, work_directory
from bench._server import ServerProcess
from bench._tpcc import checks
from bench._tpcc.population import Call
from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, Reply
from cmdlog.node.settings import Settings
from cmdlog.node.slot_map import SlotMap

TARGET = "bench._tpcc:db"
WINDOW = 64  # calls in flight in this process
STREAMS = 2
LINES = 1_000  # of a batch request
LOAD_LINES = 20  # loading calls are long


def main() -> None:
    parser = make_parser("tpcc", "TPC-C at its full mix.")
    parser.add_argument("--warehouses", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=2)
    options = parser.parse_args()
    bench = Bench("tpcc", options.seed, options.quick)
    bench.head()
    small = {"customers": 300, "items": 10_000} if options.quick else {}
    population = tpcc.Population(warehouses=options.warehouses, **small)
    bench.note(f"{population}, {options.partitions} partitions")
    tally = tpcc.MixTally()
    slots, delivery = SlotMap(options.partitions), tpcc.db.procedures["delivery"]
    calls = list(
        tpcc.workload(
            options.seed,
            calls=4_000 if options.quick else 40_000,
            population=population,
            partition_of=lambda warehouse: slots.partition_of(delivery, [warehouse, 1]),
            tally=tally,
        )
    )
    bench.note(f"{tally}")
    with work_directory(options.dir) as folder:
        in_process(bench, options, folder / "embedded", population, calls)
        over_http(bench, options, folder / "served", population, calls)
    bench.write()


def in_process(
    bench: Bench, options: argparse.Namespace, folder: Path, population: tpcc.Population, calls: Sequence[Call]
) -> None:
    bench.section(f"In this process, {WINDOW} calls in flight, durable")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    node = Node.open(str(folder), tpcc.db, Settings(partitions=options.partitions), target=TARGET, inline=True)
    try:
        node.attach(None)
        began = time.perf_counter()
        run_window(node, list(tpcc.loader(population)))
        bench.value("loading", time.perf_counter() - began, "s")
        parts = 4
        rates = []
        spent, total = time.process_time(), 0
        for part in range(parts):
            some = calls[part * len(calls) // parts : (part + 1) * len(calls) // parts]
            began = time.perf_counter()
            sold = run_window(node, some)
            rates.append(sold / (time.perf_counter() - began))
            total += sold
        bench.rates("new-orders at full mix", rates, "new-orders/s")
        bench.value("CPU time, of the whole mix per new-order", (time.process_time() - spent) / total * 1e3, "ms")
        broken = list(checks.violations(lambda sql, params: node.query(sql, params).rows, range(1, population.warehouses + 1)))
        bench.note(f"consistency conditions broken: {broken or 'none'}")
    finally:
        node.close()


def run_window(node: Node, calls: Sequence[Call]) -> int:
    """Keeps calls in flight until all are answered; how many new-orders had a result."""
    room, finished, lock = threading.Semaphore(WINDOW), threading.Event(), threading.Lock()
    missing, sold = len(calls), 0
    wrong: list[Reply] = []

    def done(sells: bool, reply: Reply) -> None:
        nonlocal missing, sold
        with lock:
            if not isinstance(reply, CallOutcome) or reply.status not in (0, 1):
                wrong.append(reply)
            elif sells and reply.status == 0:
                sold += 1
            missing -= 1
            if not missing:
                finished.set()
        room.release()

    for name, params in calls:
        room.acquire()
        route = node.routes[name]
        node.call(route, route.procedure.bind(params), done=partial(done, name == "new_order"))
    finished.wait()
    if wrong:
        raise RuntimeError(f"{len(wrong)} calls failed, the first: {wrong[0]}")
    return sold


def over_http(
    bench: Bench, options: argparse.Namespace, folder: Path, population: tpcc.Population, calls: Sequence[Call]
) -> None:
    bench.section(f"/v1/batch: {STREAMS} streams, bodies of {LINES} calls")
    folder.mkdir()
    server = ServerProcess(folder / "data", partitions=options.partitions, log=folder / "server.log", application=TARGET)
    try:
        with client_of(server.url) as http:
            began = time.perf_counter()
            for some in bodies(list(tpcc.loader(population)), LOAD_LINES):
                sell(http, some)
            bench.value("loading", time.perf_counter() - began, "s")
        ready = bodies(calls, LINES)
        quarter = max(STREAMS, len(ready) // 4)
        rates = []
        with client_of(server.url) as http:
            pids = [server.pid, *http.get("/v1/status").json()["sites"]]
        spent, total = [cpu_seconds(pid) for pid in pids], 0
        for first in range(0, len(ready), quarter):
            began = time.perf_counter()
            sold = stream(server.url, ready[first : first + quarter])
            rates.append(sold / (time.perf_counter() - began))
            total += sold
        bench.rates("new-orders at full mix", rates, "new-orders/s")
        for pid, before in zip(pids, spent, strict=True):
            name = "node" if pid == server.pid else "site"
            bench.value(
                f"CPU time of the {name}, of the whole mix per new-order", (cpu_seconds(pid) - before) / total * 1e3, "ms"
            )
        server.stop()
    finally:
        server.kill([])


def bodies(calls: Sequence[Call], lines: int) -> list[bytes]:
    """The calls as bodies of batch requests."""
    texts = [orjson.dumps({"procedure": name, "params": params}) for name, params in calls]
    return [b"\n".join(texts[first : first + lines]) for first in range(0, len(texts), lines)]


def stream(url: str, ready: Sequence[bytes]) -> int:
    """Sends the bodies over several connections at once; how many new-orders had a result."""
    work, lock, sold = iter(ready), threading.Lock(), [0]
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with client_of(url) as http:
                while True:
                    with lock:
                        body = next(work, None)
                    if body is None:
                        return
                    found = sell(http, body)
                    with lock:
                        sold[0] += found
        except BaseException as error:  # noqa: BLE001 - raised again below
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sold[0]


def client_of(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=60)


def sell(http: httpx.Client, body: bytes) -> int:
    """One batch request. Raises: RuntimeError when a call failed."""
    answer = http.post("/v1/batch", content=body)
    status, data = answer.status_code, answer.content
    lines = data.splitlines()
    failed = [line for line in lines if b'"error"' in line and b"item_not_found" not in line]
    if status != 200 or failed:
        raise RuntimeError(f"/v1/batch answered {status}: {failed[:1] or data[:200]!r}")
    return data.count(b'"district_tax"')  # which a new-order alone has


if __name__ == "__main__":
    main()
