"""A process with a real node, to be killed: makes the bank's calls one by one and says what was acknowledged.

`python -m tests.replay.pitrnode DIR FIRST COUNT`: the calls FIRST … of a seeded list, each under its own idempotency key, so that
a call whose answer a kill took away is made again and gets the same transaction. A line per call on standard output: `answered`,
its number, its transaction id.
"""

from __future__ import annotations

import itertools
import logging
import sys
from pathlib import Path
from typing import Any

import structlog

from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome
from cmdlog.node.settings import Settings
from procedures.idempotency.known_outcome import key_fingerprint
from procedures.samples.bank import db, loader, workload
from tests.node.rig import Pending, when_there_is_room

BRANCHES, CUSTOMERS = 12, 4
SETTINGS: dict[str, Any] = {
    "partitions": 3, "segment_bytes": 128 << 10, "segments": 10, "log_reserve_bytes": 64 << 10, "call_bytes_max": 8000,
    "batch_bytes_max": 16_000, "snapshots_kept": 2, "retention_window_s": 86_400.0, "sites": 1,
}  # fmt: skip


def calls() -> list[tuple[str, dict[str, Any]]]:
    """The whole list; every seventh call is one on all partitions."""
    rates = (("set_rate", {"name": "savings", "basis_points": 100 + n}) for n in itertools.count())
    listed = list(loader(branches=BRANCHES, customers=CUSTOMERS))
    for n, call in enumerate(workload(3, calls=20_000, branches=BRANCHES, customers=CUSTOMERS)):
        listed.append(call)
        if n % 7 == 0:
            listed.append(next(rates))
    return listed


def make(node: Node, number: int, name: str, params: dict[str, Any]) -> int:
    """The call's transaction; waits while the log is full."""
    route, key = node.routes[name], key_fingerprint("", f"call-{number}")
    pending = Pending()
    when_there_is_room(lambda: node.call(route, route.procedure.bind(params), key=key, done=pending.done))
    reply = pending.wait()
    assert isinstance(reply, CallOutcome), reply
    return reply.txn_id


def main() -> None:
    """See the module."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))  # standard output is ours
    directory, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    node = Node.open(str(directory), db, Settings(**SETTINGS))
    node.attach(None)
    listed = calls()
    for number in range(first, first + count):
        txn = make(node, number, *listed[number])
        sys.stdout.write(f"answered {number} {txn}\n")
        sys.stdout.flush()
    node.close()


if __name__ == "__main__":
    main()
