"""What a deploy costs the calls beside it: their p99 in the second of the switch and in the worst second, and calls that fail.

Run: `python bench/deploy.py [--quick]`. What the ratios mean: bench/README.md.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench._common import Bar, Bench, make_parser, percentile, work_directory
from bench._load import Target, encode_targets, request, run_module
from cmdlog.cli.demo.server import LaunchedServer
from cmdlog.client import Client
from cmdlog.wal.directory.local_token import find_local_token
from procedures.code.bundle import Bundle, capture_bundle

CLIENTS = 32
ROWS = 1000
CALM_S, AFTER_S = 4.0, 4.0  # of load before a deploy begins, and after it has ended
DEPLOY_S_MAX = 60.0
APP = '''
from sqlalchemy import Column, Integer, bindparam, insert, update

from procedures import Database, Transaction

VERSION = {version}
db = Database("deployed")
COUNT = Column("count", Integer, nullable=False)
rows = db.table("rows", Column("id", Integer, primary_key=True), COUNT{columns}, partition_by="id")
NEW = insert(rows).values(id=bindparam("id_"), count=1)
MORE = update(rows).values(count=rows.c.count + 1).where(rows.c.id == bindparam("id_"))


@db.procedure(partition_by="id")
def hit(tx: Transaction, id: int) -> int:
    """Counts."""
    if tx.execute(MORE, id_=id).rowcount == 0:
        tx.execute(NEW, id_=id)
    return VERSION
'''
COLUMN = ', Column("c{version}", Integer)'


def main() -> None:
    options = make_parser("deploy", "Deploys under full load.").parse_args()
    bench = Bench("deploy", options.seed, options.quick)
    bench.head()
    with work_directory(options.dir) as folder:
        measure(bench, options, folder)
    bench.write()


def make_bundle(folder: Path, version: int, columns: str) -> Bundle:
    """The application of this version, as its file in the folder says it."""
    sys.modules.pop("deploy_app", None)
    (folder / "deploy_app.py").write_text(APP.format(version=version, columns=columns))
    importlib.invalidate_caches()
    return capture_bundle(importlib.import_module("deploy_app").db, "deploy_app:db")


@contextmanager
def loaded(port: int, seconds: float) -> Iterator[list[dict[str, Any]]]:
    """Full load beside the block; what it found, once the block has ended."""
    requests = [request("POST", "/v1/procedures/hit", orjson.dumps({"id": number})) for number in range(ROWS)]
    order = {"connections": CLIENTS, "seconds": seconds, "targets": encode_targets([Target(port, requests)])}
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(run_module("bench._stamped", orjson.dumps(order))))
    thread.start()
    try:
        yield found
    finally:
        thread.join()


def p99_within(answers: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Of the calls that were answered between these moments."""
    return percentile([latency for at, latency in answers if begin < at <= end] or [0.0], 0.99)


def measure(bench: Bench, options: argparse.Namespace, folder: Path) -> None:
    """One deploy after the other; every second one adds a column."""
    bench.section(f"Deploys beside {CLIENTS} clients that call without a pause, 4 partitions")
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    switch: list[float] = []
    worst: list[float] = []
    taken: list[float] = []
    failed = 0
    columns = ""
    make_bundle(folder, 1, columns)
    server = LaunchedServer(folder / "data", "--partitions", "4", "--port", "0", log=folder / "log", application="deploy_app:db")
    try:
        server.wait_ready()
        port = int(server.url.rpartition(":")[2])
        with Client(server.url, token=find_local_token) as client:
            for version in range(2, 4 if options.quick else 10):
                columns += COLUMN.format(version=version) if version % 2 else ""
                bundle = make_bundle(folder, version, columns)
                seconds = taken[-1] * 2 + CALM_S + AFTER_S if taken else DEPLOY_S_MAX / 3
                with loaded(port, seconds) as found:
                    time.sleep(CALM_S)
                    begun = time.monotonic()
                    answer = client.deploy(bundle=bundle, timeout_s=DEPLOY_S_MAX)
                    ended = time.monotonic()
                assert answer["version"] == version
                answers, statuses = found[0]["answers"], found[0]["statuses"]
                failed += sum(count for status, count in statuses.items() if status != "200")
                calm = p99_within(answers, begun - CALM_S + 1, begun)
                seconds_of = [p99_within(answers, begun + at, begun + at + 1) for at in range(int(ended - begun) + 1)]
                switch.append(p99_within(answers, ended - 0.9, ended + 0.1) / calm)
                worst.append(max(seconds_of) / calm)
                taken.append(ended - begun)
                bench.value(f"deploy {version}: p99 before, ms", calm * 1e3, "ms")
        server.stop()
    finally:
        if server.alive:
            server.kill([])
    bench.value("time of a deploy, median", statistics.median(taken), "s")
    bench.ratio("p99 in the second of the switch / before the deploy", statistics.median(switch), Bar(3.0, at_most=True))
    bench.ratio("p99 in the worst second, beside the check too / before", statistics.median(worst))
    bench.ratio("calls that failed", failed, Bar(0.0, at_most=True))


if __name__ == "__main__":
    main()
