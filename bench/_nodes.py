"""Nodes under load: a window of calls in flight, placed by one thread as answers come back."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import structlog

from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, Reply
from cmdlog.node.settings import Settings
from procedures.samples import bank

TARGET = "procedures.samples.bank:db"
CUSTOMERS = 5_000
BRANCHES = 4


class Accounts(NamedTuple):
    """What a bank holds before the first call."""

    branches: int
    customers: int  # of each branch
    checking: int  # of each customer


ACCOUNTS = Accounts(BRANCHES, CUSTOMERS, checking=1_000_000)

Sync = Literal["sync", "async", "off"]


@contextmanager
def open_node(
    folder: Path,
    *,
    log_sync: Sync = "sync",
    partitions: int = 1,
    sites: int | None = None,
    customers: int = CUSTOMERS,
    **more: Any,
) -> Iterator[Node]:
    """A node with so many accounts a branch. `sites` None: procedures run in this process. "off": acknowledged when written."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    durability: Literal["sync", "async"] = "async" if log_sync == "async" else "sync"
    settings = Settings(partitions=partitions, sites=sites or 0, durability=durability, **more)
    node = Node.open(str(folder), bank.db, settings, target=TARGET, inline=sites is None, log_sync=log_sync)
    try:
        node.attach(None)
        if customers:
            run_window(node, list(bank.loader(branches=BRANCHES, customers=customers, checking=1_000_000)), window=8)
        yield node
    finally:
        node.close()


def transfers(seed: int, count: int, customers: int = CUSTOMERS) -> list[bank.Call]:
    """Three-statement transfers that never abort."""
    chance = random.Random(seed)
    calls = []
    for _ in range(count):
        branch, source = chance.randrange(BRANCHES), chance.randrange(customers)
        target = (source + 1 + chance.randrange(customers - 1)) % customers
        calls.append(("transfer", {"branch": branch, "source": source, "target": target, "amount": chance.randrange(1, 10)}))
    return calls


def run_window(node: Node, calls: list[bank.Call], *, window: int, latencies: list[float] | None = None) -> float:
    """Keeps `window` calls in flight until all are answered; calls per second.

    Every answer lets one more call in, as a caller that waits for its own would. Raises: RuntimeError when a call has no result.
    """
    routes = node.routes
    bound = deque((routes[name], routes[name].procedure.bind(params)) for name, params in calls)
    count = len(bound)
    room, finished = threading.Semaphore(window), threading.Event()
    taken: list[float] = [] if latencies is None else latencies
    wrong: list[Reply] = []
    clock = time.perf_counter
    missing = [count]

    def done_since(began: float) -> Any:
        def done(reply: Reply) -> None:
            taken.append(clock() - began)
            if not isinstance(reply, CallOutcome) or reply.status:
                wrong.append(reply)
            missing[0] -= 1  # answers of one node come from one thread
            if not missing[0]:
                finished.set()
            room.release()

        return done

    start = clock()
    while bound:
        room.acquire()
        route, params = bound.popleft()
        node.call(route, params, done=done_since(clock()))
    finished.wait()
    if wrong:
        raise RuntimeError(f"{len(wrong)} of {count} calls failed, the first: {wrong[0]}")
    return count / (clock() - start)
