"""Opens a node, prints what a test asks for, and is killed: `python holder.py DIR MODE [SETTING=VALUE ...]`.

MODE `hang`: a call hangs in a site. MODE `load`: threads call; the number of each acknowledged call is printed before the next.
"""

from __future__ import annotations

import itertools
import signal
import sys
import threading
from typing import Any

import structlog

from cmdlog.node.embedded.embedded import open_embedded
from cmdlog.wal.ids import txn_tick
from tests.node.apps.faulty import db


def main() -> None:
    """Runs until it is killed."""
    directory, mode = sys.argv[1:3]
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    settings: dict[str, Any] = {
        "segment_bytes": 1 << 20,
        "segments": 32,
        "log_reserve_bytes": 64 << 10,
        "call_bytes_max": 100_000,
    }
    for argument in sys.argv[3:]:
        name, _, value = argument.partition("=")
        settings[name] = value if value.isalpha() else float(value) if "." in value else int(value)
    opened = open_embedded(directory, db, **settings)
    print("pids", *opened.node.status()["sites"], flush=True)
    if mode == "hang":
        opened.call("bump", id=1, amount=5)
        opened.submit("hang", id=1)
        print("hanging", flush=True)
        signal.pause()
    lock = threading.Lock()

    def load(thread: int) -> None:
        for n in itertools.count():
            txn = txn_tick(opened.invoke("bump", {"id": thread, "amount": 1}, idempotency_key=f"{thread}-{n}").txn_id)
            with lock:
                print("ack", thread, n, txn, flush=True)

    threads = [threading.Thread(target=load, args=(thread,)) for thread in range(4)]
    for each in threads:
        each.start()


if __name__ == "__main__":
    main()
