"""A process that runs other code: `replay.fork.run` starts it, with its order as a line of JSON on standard input.

One rule: it does what the order says and reports in JSON lines on standard output. SIGTERM, or the end of its parent, ends it at
any moment: SQLite rolls an unfinished transaction back.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from cmdlog.wal.files import RealFiles
from procedures.bundle import Bundle, load_bundle
from replay.fork.bind_calls import Fitting
from replay.fork.rerun import ForkPlace
from replay.fork.run import Hands
from replay.log.archive_reach import source_from
from replay.log.scan import ScannedStream
from replay.recover.worker import serve_order, tell, writer


def run(order: dict[str, Any]) -> None:
    """Runs the calls after the fork point."""
    bundle = Bundle.from_bytes(str(order["bundle"]).encode())
    db = load_bundle(bundle)
    fitting = Fitting(db, bundle.hash, {int(v): value for v, value in order["catalogs"].items()}, order["slots"])
    source = source_from(RealFiles(), order["directory"], order["from_block"])
    gc.freeze()  # modules live as long as the process: collections need not look at them
    hands = Hands(
        db,
        fitting,
        order["missing"],
        lambda partition, calls: tell({"progress": [partition, calls]}),
        begun=writer(order["cell"]),
        careful=order["careful"],
    )
    places = {int(place["partition"]): ForkPlace(**place) for place in order["places"]}
    streams = {int(p): ScannedStream.from_json(value) for p, value in order["streams"].items()}
    results, tally = hands.run(order["target"], places, streams, source.read(from_block=order["from_block"]))
    tell({"done": [result.to_json() for result in results], "tally": tally.kept()})


def main() -> int:
    """Entry point of the process."""
    return serve_order(run)


if __name__ == "__main__":
    sys.exit(main())
