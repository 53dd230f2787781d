"""The Python clients: calls of many threads and tasks with and without shared requests, `.batch` beside a prebuilt body, latency.

Run: `python bench/clients.py [--quick]`. Client and server share the cores; every variant calls the same server, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package
os.environ["PYTHONPATH"] = sys.path[0]

import orjson

from bench._common import Bench, in_turns, make_parser, paired, work_directory
from bench._load import Target, run_load
from bench._nodes import transfers
from bench._server import answered, bank_server, batch_request
from cmdlog import AsyncClient, AutoBatch, Client, Result
from procedures.samples import bank

CALLERS = (32, 128)
BATCH_LINES = 4000
SHARED = {"alone": None, "shared": AutoBatch(), "shared, 2 streams": AutoBatch(streams=2)}


def main() -> None:
    parser = make_parser("clients", "The Python clients.")
    options = parser.parse_args()
    bench = Bench("clients", options.seed, options.quick)
    bench.head()
    with work_directory(options.dir) as folder, bank_server(folder / "serve") as (server, port):
        measure_latency(bench, options, server.url, port)
        for callers in CALLERS:
            measure_callers(bench, options, server.url, callers)
        measure_batch(bench, options, server.url, port)
    bench.write()


def measure_latency(bench: Bench, options: argparse.Namespace, url: str, port: int) -> None:
    """One caller, one call at a time, in turns with the standard library's client and the bare bytes."""
    bench.section("One call at a time, durable")
    calls = transfers(options.seed, 100 if options.quick else 1000)
    plain: list[float] = []
    ours: list[float] = []
    shared: list[float] = []
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with Client(url) as client, Client(url, auto_batch=True) as sharing:
        for name, params in calls:
            plain.append(_timed(lambda: _plain(connection, name, params)))  # noqa: B023 - called at once
            ours.append(_timed(lambda: client.call(name, **params)))  # noqa: B023
            shared.append(_timed(lambda: sharing.call(name, **params)))  # noqa: B023
    connection.close()
    bare = bench.times("http.client, no retries", plain[10:])
    median = bench.times("Client.call", ours[10:])
    alone = bench.times("Client.call, auto_batch", shared[10:])
    bench.value("Client.call beyond http.client", (median - bare) * 1e3, "ms")
    bench.value("auto_batch beyond Client.call", (alone - median) * 1e3, "ms")


def measure_callers(bench: Bench, options: argparse.Namespace, url: str, callers: int) -> None:
    """Many callers at once; each makes one call after the other."""
    bench.section(f"{callers} callers at once")
    each, rounds = (4, 3) if options.quick else (10, 6)
    work = transfers(options.seed, callers * each)
    shares = [work[number::callers] for number in range(callers)]
    lanes: dict[str, Callable[[int], float]] = {}
    for told, auto_batch in SHARED.items():
        given = {} if auto_batch is None else {"auto_batch": auto_batch}
        lanes[f"threads, {told}"] = lambda _round, given=given: _by_threads(url, shares, given)  # type: ignore[misc]
        lanes[f"tasks, {told}"] = lambda _round, given=given: asyncio.run(_by_tasks(url, shares, given))  # type: ignore[misc]
    found = in_turns(lanes, rounds)
    for name, rates in found.items():
        bench.rates(name, rates)
    for kind in ("threads", "tasks"):
        bench.ratio(f"{kind}: shared / alone", paired(found[f"{kind}, shared"], found[f"{kind}, alone"]))
        bench.ratio(f"{kind}: 2 streams / 1", paired(found[f"{kind}, shared, 2 streams"], found[f"{kind}, shared"]))


def measure_batch(bench: Bench, options: argparse.Namespace, url: str, port: int) -> None:
    """`.batch` encodes, keys and decodes; a prebuilt body does nothing of it."""
    bench.section(f".batch of {BATCH_LINES} transfers, beside one prebuilt body")
    calls = transfers(options.seed, BATCH_LINES)
    body = Target(port, [batch_request(calls)])

    def prebuilt(_round: int) -> float:
        return float(answered(run_load(body, connections=1, count=1))["per_second"]) * BATCH_LINES

    lanes = {
        "prebuilt body, no keys": prebuilt,
        "Client.batch, no keys": lambda _round: _by_batch(url, calls, keys="none"),
        "Client.batch": lambda _round: _by_batch(url, calls, keys="new"),
    }
    found = in_turns(lanes, 3 if options.quick else 12)
    for name, rates in found.items():
        bench.rates(name, rates)
    bench.ratio("Client.batch without keys / prebuilt", paired(found["Client.batch, no keys"], found["prebuilt body, no keys"]))
    bench.ratio("Client.batch with keys / without", paired(found["Client.batch"], found["Client.batch, no keys"]))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _plain(connection: http.client.HTTPConnection, name: str, params: dict[str, Any]) -> Any:
    connection.request("POST", f"/v1/procedures/{name}", orjson.dumps(params), {"Content-Type": "application/json"})
    return orjson.loads(connection.getresponse().read())["result"]


def _by_threads(url: str, shares: Sequence[Sequence[bank.Call]], given: dict[str, Any]) -> float:
    with Client(url, connections_max=256, **given) as client:
        ready = threading.Barrier(len(shares) + 1)

        def run(share: Sequence[bank.Call]) -> None:
            client.invoke(*share[0])  # the connection is made before the clock starts
            ready.wait()
            for name, params in share:
                client.call(name, **params)

        threads = [threading.Thread(target=run, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        ready.wait()
        began = time.perf_counter()
        for thread in threads:
            thread.join()
        return sum(map(len, shares)) / (time.perf_counter() - began)


async def _by_tasks(url: str, shares: Sequence[Sequence[bank.Call]], given: dict[str, Any]) -> float:
    async with AsyncClient(url, connections_max=256, **given) as client:

        async def run(share: Sequence[bank.Call]) -> None:
            for name, params in share:
                await client.call(name, **params)

        await asyncio.gather(*(run(share[:1]) for share in shares))  # connections
        began = time.perf_counter()
        await asyncio.gather(*(run(share) for share in shares))
        return sum(map(len, shares)) / (time.perf_counter() - began)


def _by_batch(url: str, calls: Sequence[bank.Call], *, keys: Any) -> float:
    with Client(url, keys=keys) as client:
        began = time.perf_counter()
        count = sum(isinstance(answer, Result) for answer in client.batch(_each(calls)))
        if count != len(calls):
            raise RuntimeError(f"{len(calls) - count} of {len(calls)} calls have no result")
        return count / (time.perf_counter() - began)


def _each(calls: Sequence[bank.Call]) -> Iterator[bank.Call]:
    yield from calls


if __name__ == "__main__":
    main()
